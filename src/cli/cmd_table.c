/* cmd_table.c: tailrace table list | resume | resnapshot. */
#include <stdio.h>
#include <string.h>

#include "ask.h"
#include "check.h"
#include "service.h"
#include "text.h"

static void line(const char *name, const char *where, const char *state, const char *reason)
{
    printf("%-36s %-14s %-16s %s\n", name, where, state, reason);
}

static const char *str(const json_t *o, const char *k)
{
    const char *s = json_string_value(json_object_get(o, k));
    return s ? s : "";
}

static int list(const struct tr_config *c, bool json)
{
    json_t *root = NULL, *t, *s;
    size_t i, k;
    struct tr_err err;
    if (tr_ask_status(c, &root, &err) < 0)
        return tr_cli_fail(&err, TR_EXIT_NOT_RUNNING);
    json_t *capture = json_object_get(json_object_get(root, "capture"), "tables"), *sinks = json_object_get(root, "sinks");
    if (json) {
        json_t *o = json_pack("{s:O, s:O}", "capture", capture, "sinks", sinks);
        json_dumpf(o, stdout, JSON_COMPACT);
        puts("");
        json_decref(o);
    } else {
        line("TABLE", "WHERE", "STATE", "REASON");
        json_array_foreach(capture, i, t)
            line(str(t, "name"), "capture", str(t, "state"), str(t, "reason"));
        json_array_foreach(sinks, i, s) {
            json_t *tables = json_object_get(s, "tables");
            json_array_foreach(tables, k, t)
                line(str(t, "name"), str(s, "name"), str(t, "state"), str(t, "reason"));
        }
    }
    json_decref(root);
    return TR_EXIT_OK;
}

/* Nobody can carry it out now: the control store keeps it, if that knows the table. */
static int keep_request(const struct tr_config *c, const char *kind, const char *sink, const char *table, const struct tr_err *why)
{
    struct tr_control *ctl = NULL;
    struct tr_ctl_table t;
    struct tr_err err;
    int rc = tr_ask_control(c, &ctl, &err);
    if (rc >= 0) {
        rc = tr_service_find_table(ctl, c->source.name, table, &t, &err);
        if (rc >= 0)
            rc = ctl->ops->request_put(ctl, "command line", kind, sink, table, &err);
        ctl->ops->close(ctl);
    }
    if (rc < 0)
        return tr_cli_fail(&err, TR_EXIT_FAILED);
    printf("%s: %s\nthe request is kept, and carried out as soon as it can be\n", table, why->msg);
    return TR_EXIT_OK;
}

static bool know_sink(const struct tr_config *c, const char *sink)
{
    const char *names[64];
    size_t n = 0;
    for (uint32_t i = 0; i < c->n_sinks; i++) {
        if (!strcmp(c->sinks[i].common.name, sink))
            return true;
        if (n < TR_ARRAY_LEN(names))
            names[n++] = c->sinks[i].common.name;
    }
    const char *near = tr_nearest(tr_slice_str(sink), names, n);
    fprintf(stderr, "tailrace: there is no sink %s in the configuration%s%s%s\n", sink, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return false;
}

static int request(const struct tr_config *c, const char *kind, const char *sink, const char *table)
{
    struct tr_err err;
    if (*sink && !know_sink(c, sink))
        return TR_EXIT_FAILED;
    int rc = tr_ask_request(c, kind, sink, table, &err);
    if (rc == TR_RETRY || rc == TR_NOT_READY)
        return keep_request(c, kind, sink, table, &err);
    if (rc < 0)
        return tr_cli_fail(&err, TR_EXIT_FAILED);
    printf("%s: %s\n", table, !strcmp(kind, "resume") ? "resumed" : "a new snapshot begins");
    return TR_EXIT_OK;
}

int tr_cli_cmd_table(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "table", "cjs", 2, &o);
    if (at < 0)
        return -1 - at;
    const char *verb = at < argc ? argv[at] : "", *table = at + 1 < argc ? argv[at + 1] : NULL;
    bool is_list = !strcmp(verb, "list"), is_resume = !strcmp(verb, "resume");
    if (!is_list && !is_resume && strcmp(verb, "resnapshot") != 0) {
        fprintf(stderr, "tailrace table: list, resume TABLE or resnapshot TABLE, not '%s'\n", verb);
        return TR_EXIT_USAGE;
    }
    if (is_list == (table != NULL && *table)) {
        fprintf(stderr, "tailrace table %s: %s\n", verb, is_list ? "it takes no table" : "name the table, as in public.orders; tailrace table list shows them");
        return TR_EXIT_USAGE;
    }
    if (tr_cli_stray(&o, "table", verb, is_resume ? "" : "s"))
        return TR_EXIT_USAGE;
    struct tr_config *c = tr_cli_load(&o, TR_CONFIG_TO_LOOK);
    if (!c)
        return TR_EXIT_CONFIG;
    int code = is_list ? list(c, o.json) : request(c, verb, o.sink ? o.sink : "", table);
    tr_config_free(c);
    return code;
}
