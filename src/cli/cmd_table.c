/* cmd_table.c: tailrace table list | resume | resnapshot. */
#include <stdio.h>
#include <string.h>

#include "ask.h"
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

static int request(const struct tr_config *c, const char *kind, const char *sink, const char *table)
{
    struct tr_err err;
    int rc = tr_ask_request(c, kind, sink ? sink : "", table, &err);
    if (rc >= 0) {
        printf("%s: %s\n", table, !strcmp(kind, "resume") ? "resumed" : "a new snapshot begins");
        return TR_EXIT_OK;
    }
    if (rc == TR_REJECT)
        return tr_cli_fail(&err, TR_EXIT_FAILED);
    struct tr_control *ctl = NULL;
    rc = tr_ask_control(c, &ctl, &err);
    if (rc >= 0) {
        rc = ctl->ops->request_put(ctl, "command line", kind, sink ? sink : "", table, &err);
        ctl->ops->close(ctl);
    }
    if (rc < 0)
        return tr_cli_fail(&err, TR_EXIT_FAILED);
    printf("%s: tailrace is not running; the request is kept for its next start\n", table);
    return TR_EXIT_OK;
}

int tr_cli_cmd_table(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "table", "cjs", &o);
    if (at < 0)
        return -1 - at;
    const char *verb = at < argc ? argv[at] : "", *table = at + 1 < argc ? argv[at + 1] : NULL;
    bool is_list = !strcmp(verb, "list"), is_request = !strcmp(verb, "resume") || !strcmp(verb, "resnapshot");
    if (!is_list && !(is_request && table && strchr(table, '.'))) {
        fputs("tailrace table: list, resume TABLE or resnapshot TABLE, with TABLE as schema.table\n", stderr);
        return TR_EXIT_USAGE;
    }
    struct tr_config *c = tr_cli_load(&o);
    if (!c)
        return TR_EXIT_CONFIG;
    int code = is_list ? list(c, o.json) : request(c, verb, o.sink, table);
    tr_config_free(c);
    return code;
}
