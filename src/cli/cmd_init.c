/* cmd_init.c: tailrace init: a configuration that works as it is, with the choices explained where they are made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>

#include "compose.h"
#include "fs.h"
#include "text.h"

struct found {
    struct tr_buf list;
    uint32_t n, no_key;
};

static void see(void *arg, const struct tr_cdc_table *t)
{
    struct found *f = arg;
    if (!strcmp(t->name, "heartbeat") && !strcmp(t->ns, "tailrace"))
        return;
    f->n++;
    f->no_key += !t->key_ok;
    if (f->n <= 40)
        tr_buf_printf(&f->list, "#   %s.%s%s%s\n", t->ns, t->name, t->key_ok ? "" : ": no mirror, ", t->key_ok ? "" : t->no_key);
}

/* Does the connection string carry a password? It must not land in a file. */
static bool has_password(const char *dsn)
{
    if (strstr(dsn, "password="))
        return true;
    const char *at = strchr(dsn, '@'), *slashes = strstr(dsn, "://");
    if (!at || !slashes)
        return false;
    for (const char *c = slashes + 3; c < at; c++)
        if (*c == ':')
            return true;
    return false;
}

static int look(const char *dsn, struct found *f, struct tr_err *err)
{
    struct tr_buf y = {0};
    tr_buf_append_str(&y, "source:\n  tables: ['*.*']\n  dsn: ");
    tr_json_string(&y, tr_slice_str(dsn)); /* JSON strings are YAML strings */
    tr_buf_append_str(&y, "\nsinks:\n  - {name: x, type: sqlite, path: x}\n");
    /* a dollar sign in a password is not a variable */
    struct tr_buf e = {0};
    for (size_t i = 0; i < y.n; i++)
        tr_buf_append_str(&e, y.p[i] == '$' ? "$$" : (char[2]){(char)y.p[i], 0});
    struct tr_config *cfg = NULL;
    int rc = tr_config_parse(tr_buf_cstr(&e), "--dsn", &tr_cli_registry, TR_CONFIG_TO_RUN, &cfg, err);
    tr_buf_done(&y);
    tr_buf_done(&e);
    if (rc < 0)
        return rc;
    struct tr_app a = {.cfg = cfg};
    struct tr_cdc_session *s = NULL;
    rc = tr_app_source(&a, err);
    if (rc >= 0)
        rc = a.cdc->ops->session_new(a.cdc, TR_CDC_PRIMARY, &s, err);
    if (rc >= 0)
        rc = s->ops->tables(s, tr_now_ns() + 30 * TR_NS_PER_S, see, f, err);
    if (s)
        s->ops->free(s);
    tr_app_close(&a);
    tr_config_free(cfg);
    return rc;
}

static void compose(struct tr_buf *b, const char *dsn, const struct found *f)
{
    bool secret = has_password(dsn);
    tr_buf_append_str(b, "# tailrace configuration. All settings: tailrace help config. Check it with: tailrace check\n\n"
                         "# The change log, the control store and spill files. One process at a time.\n"
                         "state_dir: tailrace-state\n\n"
                         "source:\n"
                         "  name: main\n"
                         "  type: postgres\n");
    if (secret) {
        tr_buf_append_str(b, "  # The connection string has a password in it, so it is not written here: export TAILRACE_DSN='postgresql://…'\n  dsn: ${TAILRACE_DSN}\n");
    } else {
        tr_buf_append_str(b, "  dsn: ");
        struct tr_buf e = {0};
        tr_json_string(&e, tr_slice_str(dsn));
        for (size_t i = 0; i < e.n; i++)
            tr_buf_append_str(b, e.p[i] == '$' ? "$$" : (char[2]){(char)e.p[i], 0});
        tr_buf_done(&e);
        tr_buf_append_str(b, "\n");
    }
    tr_buf_append_str(b, "  # Patterns of schema.table; a table created later enters as soon as it matches.\n"
                         "  tables: ['public.*']\n"
                         "  # exclude: ['public.audit_*']\n"
                         "  # A standby to read snapshots from, instead of loading the primary:\n"
                         "  # replica_dsn: postgresql://…\n");
    if (f->n) {
        tr_buf_printf(b, "# Tables found (%u%s):\n", f->n, f->n > 40 ? ", the first 40" : "");
        tr_buf_append(b, f->list.p, f->list.n);
    }
    tr_buf_append_str(b, "\nsinks:\n"
                         "  # A SQLite file: tables named as at the source, and <table>_live without the rows marked deleted.\n"
                         "  - name: lite\n"
                         "    type: sqlite\n"
                         "    path: mirror.db\n"
                         "    # changelog: ['public.*']     # an append-only history beside each mirror\n"
                         "    # hard_delete: ['public.sessions']\n"
                         "  # A PostgreSQL database:\n"
                         "  # - name: warehouse\n"
                         "  #   type: postgres\n"
                         "  #   dsn: ${WAREHOUSE_DSN}\n"
                         "  #   freshness: 30s\n"
                         "  # A ClickHouse server, here the local one; query <table>_live, or <table> with FINAL:\n"
                         "  # - name: olap\n"
                         "  #   type: clickhouse\n"
                         "  #   urls: ['http://localhost:8123']\n"
                         "  #   database: mirror            # made when it is not there\n"
                         "  #   # user: default\n"
                         "  #   # password: ${CLICKHOUSE_PASSWORD}\n"
                         "  #   # low_cardinality: ['public.*.state']\n"
                         "  #   # partition_by: ['public.events = toYYYYMM(day)']   # columns of the key alone\n\n"
                         "log:\n"
                         "  retention: 7d      # how far back a sink can be rebuilt, and how long it may be away\n\n"
                         "admin:\n"
                         "  listen: 127.0.0.1:7171   # /metrics, /healthz, /readyz, /status\n");
}

int tr_cli_cmd_init(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "init", "do", 0, &o);
    if (at < 0)
        return -1 - at;
    if (!o.dsn) {
        fputs("tailrace init: --dsn is missing: postgresql://user@host:port/database\n", stderr);
        return TR_EXIT_USAGE;
    }
    struct found f = {0};
    struct tr_err err;
    if (look(o.dsn, &f, &err) < 0)
        return tr_cli_fail(&err, TR_EXIT_FAILED);
    struct tr_buf b = {0};
    compose(&b, o.dsn, &f);
    const char *to = o.output ? o.output : "tailrace.yaml";
    int code = TR_EXIT_OK;
    bool there = false;
    if (!strcmp(to, "-")) {
        fwrite(b.p, 1, b.n, stdout);
    } else if (tr_fs_exists(tr_fs_posix(), to, &there, &err) < 0) {
        code = tr_cli_fail(&err, TR_EXIT_FAILED);
    } else if (there) {
        fprintf(stderr, "tailrace init: %s is there already; name another file with -o, or remove it\n", to);
        code = TR_EXIT_FAILED;
    } else if (tr_fs_write_file(tr_fs_posix(), to, b.p, b.n, &err) < 0) {
        code = tr_cli_fail(&err, TR_EXIT_FAILED);
    } else {
        printf("%s written: %u table%s found, %u of them without a usable key. Next: %stailrace check -c %s, then tailrace run -c %s\n", to, f.n, f.n == 1 ? "" : "s", f.no_key,
               has_password(o.dsn) ? "export TAILRACE_DSN='…' (the connection string, which has a password and was not written), then " : "", to, to);
    }
    tr_buf_done(&b);
    tr_buf_done(&f.list);
    return code;
}
