/*
 * ch_catalog.c: a ClickHouse database as its own table catalog. The record of a table is the comment of its column _tr_version, so that it is made,
 * renamed and exchanged with the table (types/ddl_clickhouse.h).
 */
#include <stdio.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"

static struct ch_sink *of(struct tr_catalog *c)
{
    return tr_container_of(c, struct ch_sink, catalog);
}

static int no_memory(const struct ch_sink *s, const char *name, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to describe table %s", s->sql.what, name);
}

static int look(struct ch_sink *s, const char *select, const char *ns_is, const char *ns, const char *name_is, const char *name, int64_t deadline_ns, struct tr_buf *out, struct tr_err *err)
{
    tr_buf_clear(out);
    return tr_ch_question(s, select, ns_is, ns, name_is, name, "RowBinary", deadline_ns, out, err);
}

static bool string(struct tr_cur *c, struct tr_buf *to)
{
    struct tr_slice s = tr_cur_bytes(c, tr_cur_varint(c));
    tr_buf_clear(to);
    return tr_cur_ok(c) && tr_buf_append_slice(to, s) >= 0 && tr_buf_cstr(to);
}

static int columns(const struct ch_sink *s, struct tr_slice answer, const char *table, struct tr_table_desc *ret, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(answer);
    struct tr_buf name = {0}, type = {0}, comment = {0}, filled = {0};
    int rc = TR_OK;
    const char *positions = NULL;
    struct tr_buf record = {0};
    while (rc >= 0 && tr_cur_left(&c)) {
        if (!string(&c, &name) || !string(&c, &type) || !string(&c, &comment) || !string(&c, &filled) || tr_desc_add(ret, tr_buf_cstr(&name), tr_buf_cstr(&type), false, 0) < 0)
            rc = no_memory(s, table, err);
        else if (!strcmp(tr_buf_cstr(&name), "_tr_version") && tr_ch_note_get(tr_buf_cstr(&comment), &ret->note, &positions)) {
            ret->ours = true;
            if (tr_buf_append_str(&record, positions) < 0)
                rc = no_memory(s, table, err);
        }
        if (rc >= 0)
            ret->columns[ret->n_columns - 1].filled = filled.n > 1; /* with the NUL */
    }
    if (rc >= 0 && ret->ours && (!tr_buf_cstr(&record) || tr_positions_get(tr_buf_cstr(&record), ret) < 0))
        rc = no_memory(s, table, err);
    ret->exists = ret->n_columns > 0;
    tr_buf_done(&name);
    tr_buf_done(&type);
    tr_buf_done(&comment);
    tr_buf_done(&filled);
    tr_buf_done(&record);
    return rc;
}

/* The view has its columns, and their types, from when it was made: a hand that altered the table did not alter it. */
static bool view_fits(struct tr_slice answer, const struct tr_table_desc *d)
{
    struct tr_cur c = tr_cur_of(answer);
    struct tr_buf name = {0}, type = {0};
    uint32_t n = 0, wanted = 0;
    bool fits = true;
    for (; fits && tr_cur_left(&c); n++) {
        fits = string(&c, &name) && string(&c, &type);
        bool found = false;
        for (uint32_t i = 0; fits && !found && i < d->n_columns; i++)
            found = !strcmp(d->columns[i].name, tr_buf_cstr(&name)) && !strcmp(d->columns[i].type, tr_buf_cstr(&type));
        fits = found;
    }
    for (uint32_t i = 0; i < d->n_columns; i++)
        wanted += strncmp(d->columns[i].name, "_tr_", 4) != 0 && (d->columns[i].source_pos || !d->columns[i].filled);
    tr_buf_done(&name);
    tr_buf_done(&type);
    return fits && n && n == wanted;
}

/* Sorting key, partitions, engine; a window of deduplication that the table itself does not say is the server's. */
static int describe_engine(struct ch_sink *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_buf *a, struct tr_table_desc *ret, struct tr_err *err)
{
    struct tr_buf key = {0}, partition = {0}, engine = {0};
    int rc = look(s, "SELECT sorting_key, partition_key, engine_full FROM system.tables", "database", ns, "name", name, deadline_ns, a, err);
    struct tr_cur c = tr_cur_of(tr_buf_slice(a));
    ret->window = -1;
    if (rc >= 0 && a->n && string(&c, &key) && string(&c, &partition) && string(&c, &engine)) {
        tr_ch_sorting_key(tr_buf_cstr(&key), ret);
        ret->engine = tr_strdup(tr_buf_cstr(&engine));
        ret->partition = tr_strdup(tr_buf_cstr(&partition));
        if (!ret->engine || !ret->partition)
            rc = no_memory(s, name, err);
    }
    const char *setting = rc >= 0 && ret->engine && (s->sql.dialect & TR_CLICKHOUSE_TODAY) && !s->o->allow_duplicates ? tr_ch_window(ret->engine, &ret->window) : NULL;
    if (setting && ret->window < 0) {
        rc = look(s, *setting == 'r' ? "SELECT toInt64(value) FROM system.replicated_merge_tree_settings" : "SELECT toInt64(value) FROM system.merge_tree_settings", "name", setting, NULL, NULL, deadline_ns, a, err);
        c = tr_cur_of(tr_buf_slice(a));
        int64_t window = (int64_t)tr_cur_le64(&c);
        ret->window = rc >= 0 && tr_cur_done(&c) ? window : -1;
    }
    tr_buf_done(&key);
    tr_buf_done(&partition);
    tr_buf_done(&engine);
    return rc;
}

static int describe_table(struct ch_sink *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    struct tr_buf a = {0};
    char live[TR_SQL_NAME_MAX + 1];
    int rc = look(s, "SELECT name, type, comment, default_kind FROM system.columns", "database", ns, "table", name, deadline_ns, &a, err);
    if (rc >= 0)
        rc = columns(s, tr_buf_slice(&a), name, ret, err);
    if (rc >= 0 && ret->exists)
        rc = describe_engine(s, ns, name, deadline_ns, &a, ret, err);
    tr_sql_derived(name, "_live", live);
    if (rc >= 0)
        rc = look(s, "SELECT name, type FROM system.columns", "database", ns, "table", live, deadline_ns, &a, err);
    ret->view = rc >= 0 && view_fits(tr_buf_slice(&a), ret);
    if (rc >= 0 && !ret->exists) {
        rc = look(s, "SELECT name FROM system.databases", "name", ns, NULL, NULL, deadline_ns, &a, err);
        ret->no_ns = rc >= 0 && !a.n;
    }
    tr_buf_done(&a);
    return rc;
}

static int describe(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    struct ch_sink *s = of(c);
    int rc = tr_ch_connect(s, deadline_ns, err);
    return rc >= 0 ? describe_table(s, ns, name, deadline_ns, ret, err) : rc;
}

/* Records of a table as it is now, with the step's in place of it. */
static int record(struct ch_sink *s, const struct tr_plan_step *p, int64_t deadline_ns, struct tr_err *err)
{
    bool renamed = p->op == TR_PLAN_RENAMED;
    const char *name = renamed ? p->to : p->name;
    struct tr_table_desc d = {0};
    struct tr_table_note note = p->note;
    struct tr_buf text = {0}, sql = {0}, none = {0};
    int rc = renamed || !p->positions ? describe_table(s, p->ns, name, deadline_ns, &d, err) : TR_OK;
    if (rc >= 0 && renamed) {
        note = d.note;
        snprintf(note.kind, sizeof note.kind, "%s", p->note.kind);
        if (note.snapshot_id != p->note.snapshot_id) /* the build is where the next step drops what the mirror was */
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: table %s is not the build that was swapped in this moment: an earlier request was carried out late, and its swap is made again", s->sql.what, name);
    }
    bool ok = rc < 0 || (tr_ch_note_put(&note, p->positions ? p->positions : d.positions, &text) >= 0 && tr_buf_cstr(&text) &&
                         tr_ch_note_sql(p->ns, name, tr_buf_cstr(&text), &sql) >= 0 && tr_buf_cstr(&sql));
    if (!ok)
        rc = no_memory(s, name, err);
    if (rc >= 0)
        rc = tr_ch_say(s, tr_buf_cstr(&sql), "", false, deadline_ns, &none, err);
    tr_table_desc_done(&d);
    tr_buf_done(&text);
    tr_buf_done(&sql);
    tr_buf_done(&none);
    return rc;
}

static int execute(struct tr_catalog *c, const struct tr_plan *plan, int64_t deadline_ns, struct tr_err *err)
{
    struct ch_sink *s = of(c);
    struct tr_buf none = {0};
    TR_ASSERT(!plan->refused);
    int rc = tr_ch_connect(s, deadline_ns, err);
    /* a table of ours may be larger than what the server lets go without being told so */
    const char *params = s->sql.dialect & TR_CLICKHOUSE_TODAY ? "&max_table_size_to_drop=0" : "";
    for (uint32_t i = 0; i < plan->n && rc >= 0; i++) {
        const struct tr_plan_step *p = &plan->steps[i];
        tr_buf_clear(&none);
        rc = p->op == TR_PLAN_SQL ? tr_ch_say(s, p->sql, params, false, deadline_ns, &none, err) : record(s, p, deadline_ns, err);
    }
    tr_buf_done(&none);
    return rc;
}

const struct tr_catalog_ops tr_ch_catalog_ops = {.describe = describe, .execute = execute};
