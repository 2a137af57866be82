/* sqlite_sink.c: a SQLite database file as a mirror; the tables it keeps are client/sql/sqlsink.h's. */
#include "sqlite_sink.h"

#include <stdio.h>
#include <strings.h>

#include <tailrace/connectors.h>

#include "alloc.h"
#include "check.h"

static struct sqlite_sink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct sqlite_sink, sql.sink);
}

static int probe(struct tr_sink *ts, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_sqlite_db *d = &of(ts)->db;
    int rc = tr_sqlite_open(d, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(d, "BEGIN IMMEDIATE", deadline_ns, err); /* writable, and not only there */
    return rc >= 0 ? tr_sqlite_exec(d, "ROLLBACK", deadline_ns, err) : rc;
}

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    (void)shard;
    return tr_sqlite_writer_new(of(s), ret, err);
}

static void close_sink(struct tr_sink *ts)
{
    struct sqlite_sink *s = of(ts);
    tr_sqlsink_done(&s->sql);
    tr_sqlite_close(&s->db);
    tr_free(s);
}

static const struct tr_sink_ops ops = {.bind = tr_sqlsink_bind,
                                       .check = tr_sqlsink_check,
                                       .swap = tr_sqlsink_swap,
                                       .built = tr_sqlsink_built,
                                       .probe = probe,
                                       .encoder_new = tr_sqlsink_encoder_new,
                                       .writer_new = writer_new,
                                       .close = close_sink};

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    struct sqlite_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", env->name);
    tr_sqlsink_init(&s->sql, &ops, TR_DIALECT_SQLITE, &s->catalog, env);
    s->sql.ns = "";
    s->catalog.ops = &tr_sqlite_catalog_ops;
    s->o = options;
    s->db.path = s->o->path;
    s->db.what = s->sql.what;
    *ret = &s->sql.sink;
    return TR_OK;
}

static void check_table(const void *options, const char *ns, const char *name, char *ret, size_t cap)
{
    (void)options;
    char here[TR_SQL_NAME_MAX + 1];
    tr_sqlsink_name("", ns, name, here);
    if (!strncasecmp(here, "sqlite_", 7))
        snprintf(ret, cap, "SQLite keeps names that begin with sqlite_ to itself");
}

static const struct tr_field fields[] = {
    {.name = "path", .type = TR_F_STRING, .offset = offsetof(struct tr_sqlite_options, path), .help = "The database file; made when it is not there."},
};

const struct tr_sink_type tr_sqlite_sink_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "sqlite",
    .help = "Mirror in a SQLite database file: the embedded default.",
    .fields = fields,
    .n_fields = TR_ARRAY_LEN(fields),
    .options_size = sizeof(struct tr_sqlite_options),
    .caps = TR_SQLSINK_CAPS,
    .check_table = check_table,
    .sink_new = sink_new,
};
