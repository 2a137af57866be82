/*
 * pg_sink.c: a PostgreSQL database as a mirror; the tables it keeps are client/sql/sqlsink.h's. They keep schema and name, or all go into one
 * schema (option `schema`).
 *
 * Bookkeeping, in the schema `meta_schema`: _tailrace_tables (pg_catalog.c) and _tailrace_lease (the highest lease token that has written
 * for a sink).
 */
#include "pg_sink.h"

#include <tailrace/connectors.h>

#include "alloc.h"
#include "check.h"
#include "text.h"

static struct pg_sink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct pg_sink, sql.sink);
}

int tr_pg_sink_meta(const struct pg_sink *s, const char *table, struct tr_buf *b)
{
    return tr_sql_name(s->o->meta_schema, table, b);
}

static int make_meta(struct pg_sink *s, struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    const char *v[] = {s->o->meta_schema};
    PGresult *r = NULL;
    int rc = tr_pg_exec(c, "SELECT count(c.oid), count(n.oid) > 0 FROM pg_namespace n LEFT JOIN pg_class c ON n.oid = c.relnamespace AND c.relname IN ('_tailrace_tables', '_tailrace_lease')"
                           " WHERE n.nspname = $1",
                        1, v, deadline_ns, &r, err);
    bool there = rc >= 0 && !strcmp(tr_pg_val(r, 0, 0), "2"), schema = rc >= 0 && tr_pg_bool(r, 0, 1);
    PQclear(r);
    if (rc < 0 || there)
        return rc;
    /* two writers may come at once: the second waits for the first */
    tr_buf_append_str(&q, "BEGIN; SELECT pg_advisory_xact_lock(7526751);");
    if (!schema) { /* IF NOT EXISTS asks for the privilege to make schemas where there is nothing to make, too */
        tr_buf_append_str(&q, "CREATE SCHEMA IF NOT EXISTS ");
        tr_quote_ident(&q, tr_slice_str(s->o->meta_schema));
        tr_buf_append_str(&q, ";");
    }
    tr_buf_append_str(&q, "CREATE TABLE IF NOT EXISTS ");
    tr_pg_sink_meta(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " (ns text, name text, source text NOT NULL, kind text NOT NULL, snapshot_id bigint NOT NULL, schema_version bigint NOT NULL, positions text NOT NULL,"
                           " PRIMARY KEY (ns, name)); CREATE TABLE IF NOT EXISTS ");
    tr_pg_sink_meta(s, "_tailrace_lease", &q);
    tr_buf_append_str(&q, " (sink text PRIMARY KEY, token bigint NOT NULL); COMMIT");
    const char *text = tr_buf_cstr(&q);
    rc = text ? tr_pg_script(c, text, deadline_ns, err) : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory", s->sql.what);
    if (rc < 0 && c->pg)
        tr_pg_script(c, "ROLLBACK", deadline_ns, NULL);
    tr_buf_done(&q);
    return rc;
}

int tr_pg_sink_connect(struct pg_sink *s, struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err)
{
    if (c->pg)
        return TR_OK;
    struct tr_pg_params p = {.dsn = s->o->dsn, .application_name = "tailrace sink", .settings = "-c synchronous_commit=on -c lock_timeout=15000 -c idle_in_transaction_session_timeout=0"};
    int rc = tr_pgconn_open(c, &p, deadline_ns, err);
    if (rc >= 0 && (rc = make_meta(s, c, deadline_ns, err)) < 0)
        tr_pgconn_close(c); /* so that the next call makes it again */
    return rc;
}

static int probe(struct tr_sink *ts, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_sink *s = of(ts);
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    return rc >= 0 ? tr_pg_script(&s->conn, "SELECT 1", deadline_ns, err) : rc;
}

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    (void)shard;
    return tr_pg_writer_new(of(s), ret, err);
}

static void close_sink(struct tr_sink *ts)
{
    struct pg_sink *s = of(ts);
    tr_sqlsink_done(&s->sql);
    tr_pgconn_done(&s->conn);
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
    struct pg_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", env->name);
    s->o = options;
    tr_sqlsink_init(&s->sql, &ops, TR_DIALECT_POSTGRES, &s->catalog, env);
    s->sql.ns = s->o->schema && *s->o->schema ? s->o->schema : NULL;
    s->sql.meta_ns = s->o->meta_schema;
    s->catalog.ops = &tr_pg_catalog_ops;
    tr_pgconn_init(&s->conn, s->sql.what);
    *ret = &s->sql.sink;
    return TR_OK;
}

#define F(field) offsetof(struct tr_pg_sink_options, field)

static const struct tr_field fields[] = {
    {.name = "dsn", .type = TR_F_SECRET, .offset = F(dsn), .help = "Connection string of the database that holds the mirror."},
    {.name = "schema", .type = TR_F_STRING, .optional = true, .offset = F(schema),
     .help = "One schema for all mirrored tables; without it each keeps the schema it has at the source. Needed when source and mirror are one database."},
    {.name = "meta_schema", .type = TR_F_STRING, .def = "tailrace", .offset = F(meta_schema), .help = "Schema of tailrace's own bookkeeping tables."},
};

const struct tr_sink_type tr_postgres_sink_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "postgres",
    .help = "Mirror in a PostgreSQL database.",
    .fields = fields,
    .n_fields = TR_ARRAY_LEN(fields),
    .options_size = sizeof(struct tr_pg_sink_options),
    .caps = TR_SQLSINK_CAPS,
    .sink_new = sink_new,
};
