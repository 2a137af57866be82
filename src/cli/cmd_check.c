/* cmd_check.c: tailrace check. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tailrace/clock.h>

#include "agreement.h"
#include "alloc.h"
#include "ask.h"
#include "check.h"
#include "compose.h"
#include "fs.h"
#include "text.h"

struct report {
    bool json, color;
    int errors, warnings, findings;
};

static const char *level_name(enum tr_finding_level l)
{
    static const char *const names[] = {"ok", "note", "warning", "error"};
    return names[l];
}

static void json_pair(struct tr_buf *b, const char *k, const char *v, const char *comma)
{
    tr_buf_printf(b, "%s\"%s\": ", comma, k);
    tr_json_string(b, tr_slice_str(v));
}

static void show(void *arg, const struct tr_finding *f)
{
    struct report *r = arg;
    r->errors += f->level == TR_FINDING_ERROR;
    r->warnings += f->level == TR_FINDING_WARN;
    if (r->json) {
        struct tr_buf b = {0};
        tr_buf_append_str(&b, r->findings ? ",\n  {" : "\n  {");
        json_pair(&b, "level", level_name(f->level), "");
        json_pair(&b, "code", f->code, ", ");
        json_pair(&b, "subject", f->subject, ", ");
        json_pair(&b, "text", f->text, ", ");
        json_pair(&b, "cure", f->cure, ", ");
        tr_buf_append_str(&b, "}");
        fwrite(b.p, 1, b.n, stdout);
        tr_buf_done(&b);
    } else {
        static const char *const colors[] = {"\033[32m", "\033[36m", "\033[33m", "\033[31m"};
        printf("%s%-7s%s  %s\n", r->color ? colors[f->level] : "", level_name(f->level), r->color ? "\033[0m" : "", f->text);
        if (*f->cure)
            printf("         cure: %s\n", f->cure);
    }
    r->findings++;
}

__attribute__((format(printf, 6, 7))) static void say(struct report *r, enum tr_finding_level level, const char *code, const char *subject, const char *cure, const char *fmt, ...)
{
    struct tr_finding f = {.level = level};
    snprintf(f.code, sizeof f.code, "%s", code);
    snprintf(f.subject, sizeof f.subject, "%s", subject);
    snprintf(f.cure, sizeof f.cure, "%s", cure);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f.text, sizeof f.text, fmt, ap);
    va_end(ap);
    show(r, &f);
}

struct source_report {
    struct report *report;
    const struct tr_config *cfg;
};

static void amend(char *to, size_t cap, const char *more)
{
    size_t n = strlen(to);
    snprintf(to + n, cap - n, "%s", more);
}

static bool takes(const struct tr_config_sink *k, const char *ns, const char *name, bool *ret_changelog)
{
    const struct tr_service_sink s = {.tables = k->common.tables, .exclude = k->common.exclude, .changelog = k->common.changelog};
    bool mirror;
    tr_service_sink_takes(&s, ns, name, &mirror, ret_changelog);
    return mirror;
}

/* What the sinks make of a table is not for the source to know. */
static void show_of_source(void *arg, const struct tr_finding *f)
{
    struct source_report *sr = arg;
    struct tr_finding g = *f;
    char ns[64], more[300], why[200];
    bool kept = false, changelog;
    const char *dot = strchr(f->subject, '.');
    if (strcmp(f->code, "table_key") != 0 || !dot) {
        show(sr->report, f);
        return;
    }
    snprintf(ns, sizeof ns, "%.*s", (int)(dot - f->subject), f->subject);
    for (uint32_t i = 0; i < sr->cfg->n_sinks; i++) {
        takes(&sr->cfg->sinks[i], ns, dot + 1, &changelog);
        kept |= changelog;
    }
    if (f->level == TR_FINDING_WARN && kept) {
        amend(g.text, sizeof g.text, "; only the changelog that a sink keeps of it");
    } else if (f->level == TR_FINDING_WARN) {
        amend(g.text, sizeof g.text, "; and no sink has it in its changelog: nothing of it is kept");
        snprintf(more, sizeof more, "; or, for its history alone, changelog: ['%.150s'] in a sink", f->subject);
        amend(g.cure, sizeof g.cure, more);
    }
    show(sr->report, &g);
    for (uint32_t i = 0; i < sr->cfg->n_sinks; i++) {
        const struct tr_config_sink *k = &sr->cfg->sinks[i];
        *why = 0;
        if (k->type->check_table && takes(k, ns, dot + 1, &changelog))
            k->type->check_table(k->options, ns, dot + 1, why, sizeof why);
        if (!*why)
            continue;
        snprintf(more, sizeof more, "rename it at the source, or exclude: ['%.150s'] in sink %.60s", f->subject, k->common.name);
        say(sr->report, TR_FINDING_WARN, "table_name", f->subject, more, "%s: %s, so sink %s will pause it", f->subject, why, k->common.name);
    }
}

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

/* Whose slot it is, and what the next start will do, by the rules of capture itself. */
static void check_agreement(struct tr_app *a, struct tr_cdc_session *s, struct report *r)
{
    struct tr_control *c = NULL;
    struct tr_ctl_source src = {0};
    struct tr_cdc_identity id;
    struct tr_cdc_slot slot;
    struct tr_err err;
    char ledger_slot[64] = "", why[256], cure[500] = "", lsn[TR_LSN_CHARS];
    const char *name = a->cdc->ops->slot_name(a->cdc), *dir = a->cfg->root.state_dir;
    struct tr_agreement_facts f = {.slot_name = name, .id = &id, .slot = &slot, .src = &src, .ledger_slot = ledger_slot, .tail_offset = UINT64_MAX};
    int rc = tr_ask_control(a->cfg, &c, &err);
    if (rc >= 0)
        rc = c->ops->source_get(c, a->cfg->source.name, &src, &err);
    if (rc >= 0)
        rc = c->ops->slot_get(c, a->cfg->source.name, ledger_slot, &f.ledger, &err);
    if (c)
        c->ops->close(c);
    if (rc < 0 && rc != TR_NOT_READY) {
        say(r, TR_FINDING_ERROR, "control_store", dir, "use the program that wrote it, or restore it from a copy", "%s", err.msg);
        return;
    }
    rc = s->ops->identity(s, in(15 * TR_NS_PER_S), &id, &err);
    if (rc >= 0)
        rc = s->ops->slot_state(s, in(15 * TR_NS_PER_S), &slot, &err);
    if (rc < 0) {
        say(r, TR_FINDING_ERROR, "source", a->cfg->source.name, "check that the server runs, and that this user may look at it", "%s", err.msg);
        return;
    }
    json_t *running = NULL;
    switch (tr_agreement_decide(&f, why, sizeof why)) {
    case TR_AGREE_RESUME:
        say(r, TR_FINDING_OK, "resume", name, "", "slot %s is the one of %s; capture goes on from %s", name, dir, tr_format_lsn(src.confirm_lsn, lsn));
        break;
    case TR_AGREE_FIRST:
        say(r, TR_FINDING_OK, "resume", name, "", "%s: at the first start slot %s is made, and every table snapshotted", why, name);
        break;
    case TR_AGREE_NEW_EPOCH:
        say(r, TR_FINDING_WARN, "resume", name, "make sure that source.dsn, source.slot and state_dir belong together; if they do, start: mirrors stay readable until they are built anew",
            "at the next start a new epoch begins, and every table is snapshotted anew: %s", why);
        break;
    case TR_AGREE_FOREIGN:
        snprintf(cure, sizeof cure, "set state_dir to the one it belongs to, or another source.slot; if nobody needs it: SELECT pg_drop_replication_slot('%s')", name);
        say(r, TR_FINDING_ERROR, "resume", name, cure, "%s (%s)", why, dir);
        break;
    case TR_AGREE_IN_USE:
        if (tr_ask_status(a->cfg, &running, &err) >= 0) {
            say(r, TR_FINDING_OK, "resume", name, "", "slot %s is being read by the tailrace that runs (server process %" PRId64 ")", name, slot.active_pid);
            json_decref(running);
            break;
        }
        snprintf(cure, sizeof cure,
                 "look who it is: SELECT application_name, client_addr, backend_start FROM pg_stat_replication WHERE pid = %" PRId64
                 "; stop it; a process that has just died is let go within 10 s",
                 slot.active_pid);
        say(r, TR_FINDING_ERROR, "resume", name, cure, "slot %s is in use by server process %" PRId64 ", and no tailrace answers at admin.listen, %s", name, slot.active_pid,
            a->cfg->admin.listen);
        break;
    }
}

/* ---- patterns that match nothing: most likely a slip of the pen ---- */

struct names {
    struct {
        char text[130]; /* schema.table */
        size_t dot;
    } *v;
    size_t n, cap;
    bool failed;
};

static void add_name(void *arg, const struct tr_cdc_table *t)
{
    struct names *s = arg;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        void *v = tr_realloc(s->v, cap * sizeof *s->v);
        if (!v) {
            s->failed = true;
            return;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n].dot = strlen(t->ns);
    snprintf(s->v[s->n++].text, sizeof s->v[0].text, "%s.%s", t->ns, t->name);
}

static const char *nearest(const char *pattern, const struct names *s)
{
    const char **names = strchr(pattern, '*') ? NULL : tr_calloc(s->n + 1, sizeof *names), *near = NULL;
    for (size_t i = 0; names && i < s->n; i++)
        names[i] = s->v[i].text + (strchr(pattern, '.') ? 0 : s->v[i].dot + 1);
    if (names)
        near = tr_nearest(tr_slice_str(pattern), names, s->n);
    tr_free(names);
    return near;
}

/* captured: of is what source.tables selects, and not all that the source has */
static void check_list(struct report *r, enum tr_finding_level level, const char *setting, const struct tr_strv *list, const struct names *of, bool captured)
{
    for (size_t i = 0; i < list->n; i++) {
        bool any = false;
        for (size_t k = 0; k < of->n && !any; k++)
            any = tr_glob_table(tr_slice_str(list->v[i]), tr_slice_of(of->v[k].text, of->v[k].dot), tr_slice_str(of->v[k].text + of->v[k].dot + 1));
        if (any)
            continue;
        const char *near = nearest(list->v[i], of);
        char cure[400];
        snprintf(cure, sizeof cure, "%s%.130s%scorrect the pattern (schema.table, * for any run of characters)%s, or leave it if such a table is still to come",
                 near ? "did you mean " : "", near ? near : "", near ? "? " : "", captured ? ", or select the table in source.tables" : "");
        say(r, level, "pattern", setting, cure, "%s: '%.130s' matches no table %s", setting, list->v[i], captured ? "that is captured" : "of the source");
    }
}

/* All tables of the source, by a second look with the patterns replaced. */
static int list_all(struct tr_app *a, const struct tr_strv **ret_patterns, struct names *all, struct tr_err *err)
{
    static const char *const everything[] = {"*.*"};
    const struct tr_source_type *t = a->cfg->source_type;
    unsigned char *options = tr_calloc(1, t->options_size);
    struct tr_cdc *cdc = NULL;
    struct tr_cdc_session *s = NULL;
    if (!options)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CLI, "no memory");
    memcpy(options, a->cfg->source_options, t->options_size);
    for (size_t i = 0; i < t->n_fields; i++) {
        if (!strcmp(t->fields[i].name, "tables")) {
            *ret_patterns = (const void *)((const char *)a->cfg->source_options + t->fields[i].offset);
            memcpy(options + t->fields[i].offset, &(struct tr_strv){everything, 1}, sizeof(struct tr_strv));
        } else if (!strcmp(t->fields[i].name, "exclude")) {
            memset(options + t->fields[i].offset, 0, sizeof(struct tr_strv));
        }
    }
    int rc = t->cdc_new(options, &a->envs[0], &cdc, err);
    if (rc >= 0)
        rc = cdc->ops->session_new(cdc, TR_CDC_PRIMARY, &s, err);
    if (rc >= 0)
        rc = s->ops->tables(s, in(15 * TR_NS_PER_S), add_name, all, err);
    if (s)
        s->ops->free(s);
    if (cdc)
        cdc->ops->close(cdc);
    tr_free(options);
    return rc;
}

static void check_patterns(struct tr_app *a, struct tr_cdc_session *s, struct report *r)
{
    struct names all = {0}, captured = {0};
    const struct tr_strv *patterns = NULL;
    struct tr_err err;
    int rc = s->ops->tables(s, in(15 * TR_NS_PER_S), add_name, &captured, &err);
    if (rc >= 0)
        rc = list_all(a, &patterns, &all, &err);
    if (rc < 0)
        say(r, TR_FINDING_ERROR, "source", a->cfg->source.name, "check that the server runs, and that this user may look at it", "%s", err.msg);
    if (rc >= 0 && !all.failed && !captured.failed) {
        if (patterns)
            check_list(r, TR_FINDING_WARN, "source.tables", patterns, &all, false);
        for (uint32_t i = 0; i < a->cfg->n_sinks; i++) {
            const struct tr_set_sink *k = &a->cfg->sinks[i].common;
            const struct {
                const char *name;
                const struct tr_strv *list;
                enum tr_finding_level level;
            } lists[] = {{"tables", &k->tables, TR_FINDING_WARN}, {"exclude", &k->exclude, TR_FINDING_NOTE}, {"changelog", &k->changelog, TR_FINDING_WARN}, {"hard_delete", &k->hard_delete, TR_FINDING_WARN}};
            for (size_t l = 0; l < TR_ARRAY_LEN(lists); l++) {
                char setting[80];
                snprintf(setting, sizeof setting, "sinks[%.40s].%s", k->name, lists[l].name);
                check_list(r, lists[l].level, setting, lists[l].list, &captured, true);
            }
        }
    }
    tr_free(all.v);
    tr_free(captured.v);
}

static void check_source(struct tr_app *a, struct report *r)
{
    struct tr_err err;
    struct tr_cdc_session *s = NULL;
    struct source_report sr = {r, a->cfg};
    int rc = tr_app_source(a, &err);
    if (rc >= 0)
        rc = a->cdc->ops->session_new(a->cdc, TR_CDC_PRIMARY, &s, &err);
    if (rc >= 0)
        rc = s->ops->check(s, in(30 * TR_NS_PER_S), show_of_source, &sr, &err);
    if (rc < 0)
        say(r, TR_FINDING_ERROR, "source", a->cfg->source.name, "check that the server runs, that source.dsn is right, and that pg_hba.conf lets this user in", "%s", err.msg);
    else {
        check_patterns(a, s, r);
        check_agreement(a, s, r);
    }
    if (s)
        s->ops->free(s);
    if (a->cdc && a->cdc->ops->has_replica(a->cdc)) {
        struct tr_cdc_session *p = NULL;
        uint64_t xmin;
        rc = a->cdc->ops->session_new(a->cdc, TR_CDC_REPLICA, &p, &err);
        if (rc >= 0)
            rc = p->ops->xmin(p, in(15 * TR_NS_PER_S), &xmin, &err);
        say(r, rc < 0 && rc != TR_NOT_READY ? TR_FINDING_ERROR : TR_FINDING_OK, "replica", a->cfg->source.name, rc < 0 ? "check source.replica_dsn, or leave it out" : "", "%s",
            rc < 0 && rc != TR_NOT_READY ? err.msg : "the replica answers");
        if (p)
            p->ops->free(p);
    }
}

/* Its tables in a sink: what the sink would pause it for. */
static void check_table(struct tr_app *a, uint32_t sink, const struct tr_schema *schema, struct report *r)
{
    struct tr_sink *s = a->sinks[sink].sink;
    struct tr_err err;
    bool changelog, mirror = takes(&a->cfg->sinks[sink], schema->ns, schema->name, &changelog);
    char subject[130];
    snprintf(subject, sizeof subject, "%.64s.%.64s", schema->ns, schema->name);
    if (mirror && schema->n_key && s->ops->check(s, schema, TR_TARGET_MIRROR, in(15 * TR_NS_PER_S), &err) == TR_REJECT)
        say(r, TR_FINDING_ERROR, "sink_table", subject, "see the message; until then the table is paused in that sink", "%s", err.msg);
    if (changelog && s->ops->check(s, schema, TR_TARGET_CHANGELOG, in(15 * TR_NS_PER_S), &err) == TR_REJECT)
        say(r, TR_FINDING_ERROR, "sink_table", subject, "see the message; until then its changelog is paused in that sink", "%s", err.msg);
}

static void check_tables(struct tr_app *a, const bool *reached, struct report *r)
{
    struct names captured = {0};
    struct tr_cdc_session *s = NULL;
    struct tr_err err;
    /* what the source has to say of this has been said */
    int rc = a->cdc->ops->session_new(a->cdc, TR_CDC_PRIMARY, &s, &err);
    if (rc >= 0)
        rc = s->ops->tables(s, in(15 * TR_NS_PER_S), add_name, &captured, &err);
    for (size_t i = 0; i < captured.n && rc >= 0; i++) {
        struct tr_schema *schema = NULL;
        char ns[130];
        snprintf(ns, sizeof ns, "%.*s", (int)captured.v[i].dot, captured.v[i].text);
        if (s->ops->describe(s, ns, captured.v[i].text + captured.v[i].dot + 1, in(15 * TR_NS_PER_S), &schema, &err) < 0)
            continue;
        for (uint32_t k = 0; k < a->cfg->n_sinks; k++)
            if (reached[k] && a->sinks[k].sink->ops->check)
                check_table(a, k, schema, r);
        tr_schema_unref(schema);
    }
    if (s)
        s->ops->free(s);
    tr_free(captured.v);
}

static void check_sinks(struct tr_app *a, struct report *r)
{
    bool *reached = tr_calloc(a->cfg->n_sinks + 1, sizeof *reached);
    struct tr_err err;
    int rc = tr_app_sinks(a, &err);
    if (rc < 0) {
        say(r, TR_FINDING_ERROR, "sink", "sinks", "see the message", "%s", err.msg);
        tr_free(reached);
        return;
    }
    for (uint32_t i = 0; i < a->cfg->n_sinks; i++) {
        struct tr_sink *s = a->sinks[i].sink;
        rc = s->ops->probe(s, in(15 * TR_NS_PER_S), &err);
        if (rc < 0)
            say(r, TR_FINDING_ERROR, "sink", a->sinks[i].name, "check that the sink is up and its settings are right; changes wait in the log meanwhile", "%s", err.msg);
        else
            say(r, TR_FINDING_OK, "sink", a->sinks[i].name, "", "sink %s (%s) can be written", a->sinks[i].name, a->sinks[i].type);
        if (reached)
            reached[i] = rc >= 0;
    }
    if (a->cdc && reached)
        check_tables(a, reached, r);
    tr_free(reached);
}

static void check_state(struct tr_app *a, struct report *r)
{
    struct tr_err err;
    const char *dir = a->cfg->root.state_dir;
    uint64_t free_bytes = 0;
    char size[TR_SIZE_CHARS], cure[600];
    int rc = tr_fs_mkdir_p(tr_fs_posix(), dir, &err);
    if (rc >= 0)
        rc = tr_fs_free_bytes(tr_fs_posix(), dir, &free_bytes, &err);
    tr_format_size(free_bytes >> 20 << 20, size);
    snprintf(cure, sizeof cure, "free some space on the file system of %s, or lower log.retention", dir);
    if (rc < 0)
        say(r, TR_FINDING_ERROR, "state_dir", dir, "make the directory, or set state_dir to one that this user may write", "%s", err.msg);
    else if (free_bytes < 4 * a->cfg->log.segment_size)
        say(r, TR_FINDING_ERROR, "disk", dir, cure, "only %s are free under %s; capture stops when the disk is full", size, dir);
    else
        say(r, free_bytes < UINT64_C(10) << 30 ? TR_FINDING_WARN : TR_FINDING_OK, "disk", dir, free_bytes < UINT64_C(10) << 30 ? cure : "", "%s are free under %s", size, dir);
}

int tr_cli_cmd_check(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "check", "cj", 0, &o);
    if (at < 0)
        return -1 - at;
    struct tr_config *cfg = tr_cli_load(&o, TR_CONFIG_TO_RUN);
    if (!cfg)
        return TR_EXIT_CONFIG;
    struct tr_app a = {.cfg = cfg};
    struct report r = {.json = o.json, .color = isatty(1)};
    if (r.json)
        fputs("{\"findings\": [", stdout);
    check_state(&a, &r);
    check_source(&a, &r);
    check_sinks(&a, &r);
    if (r.json)
        printf("],\n\"errors\": %d, \"warnings\": %d}\n", r.errors, r.warnings);
    else
        printf("%d finding%s: %d error%s, %d warning%s\n", r.findings, r.findings == 1 ? "" : "s", r.errors, r.errors == 1 ? "" : "s", r.warnings, r.warnings == 1 ? "" : "s");
    tr_app_close(&a);
    tr_config_free(cfg);
    return r.errors ? TR_EXIT_FINDINGS : TR_EXIT_OK;
}
