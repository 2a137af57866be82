/* pg_catalog.c: a PostgreSQL database as its own table catalog; its records are the table _tailrace_tables in the sink's meta_schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ddl.h"
#include "pg_sink.h"

static struct pg_sink *of(struct tr_catalog *c)
{
    return tr_container_of(c, struct pg_sink, catalog);
}

static int nomem(const struct pg_sink *s, const char *name, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for table %s", s->sql.what, name);
}

/* Runs `before` meta_schema.`_tailrace_tables` `after`. */
static int on_records(struct pg_sink *s, const char *before, const char *after, int n, const char *const *v, int64_t deadline_ns, PGresult **ret, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = TR_NOMEM;
    if (tr_buf_append_str(&q, before) >= 0 && tr_pg_sink_meta(s, "_tailrace_tables", &q) >= 0 && tr_buf_append_str(&q, after) >= 0 && tr_buf_cstr(&q))
        rc = tr_pg_exec(&s->conn, tr_buf_cstr(&q), n, v, deadline_ns, ret, err);
    else
        rc = nomem(s, v[1], err); /* v[0], v[1]: namespace and name */
    tr_buf_done(&q);
    return rc;
}

static int columns(struct pg_sink *s, const char *const v[2], int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn,
                        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, coalesce(array_position((string_to_array(i.indkey::text, ' ')::int2[])[:i.indnkeyatts], a.attnum), 0),"
                        " coalesce(k.relname, '')"
                        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
                        " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary LEFT JOIN pg_class k ON k.oid = i.indexrelid"
                        " WHERE n.nspname = $1 AND c.relname = $2 ORDER BY a.attnum",
                        2, v, deadline_ns, &r, err);
    for (int i = 0; rc >= 0 && i < PQntuples(r); i++) {
        snprintf(ret->key_name, sizeof ret->key_name, "%s", tr_pg_val(r, i, 4));
        if (tr_desc_add(ret, tr_pg_val(r, i, 0), tr_pg_val(r, i, 1), tr_pg_bool(r, i, 2), (uint16_t)atoi(tr_pg_val(r, i, 3))) < 0)
            rc = nomem(s, v[1], err);
    }
    PQclear(r);
    ret->exists = ret->n_columns > 0;
    return rc;
}

static int surroundings(struct pg_sink *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    char live[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(name, "_live", live);
    const char *v[] = {ns, live};
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn,
                        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),"
                        " EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'v')",
                        2, v, deadline_ns, &r, err);
    if (rc >= 0) {
        ret->no_ns = !tr_pg_bool(r, 0, 0);
        ret->view = tr_pg_bool(r, 0, 1);
    }
    PQclear(r);
    return rc;
}

static int record(struct pg_sink *s, const char *const v[2], int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    PGresult *r = NULL;
    int rc = on_records(s, "SELECT source, kind, snapshot_id, schema_version, positions FROM ", " WHERE ns = $1 AND name = $2", 2, v, deadline_ns, &r, err);
    if (rc >= 0 && PQntuples(r)) {
        ret->ours = true;
        snprintf(ret->note.source, sizeof ret->note.source, "%s", tr_pg_val(r, 0, 0));
        snprintf(ret->note.kind, sizeof ret->note.kind, "%s", tr_pg_val(r, 0, 1));
        ret->note.snapshot_id = strtoull(tr_pg_val(r, 0, 2), NULL, 10);
        ret->note.schema_version = (uint32_t)strtoul(tr_pg_val(r, 0, 3), NULL, 10);
        if (tr_positions_get(tr_pg_val(r, 0, 4), ret) < 0)
            rc = nomem(s, v[1], err);
    }
    PQclear(r);
    return rc;
}

static int describe(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    struct pg_sink *s = of(c);
    const char *v[] = {ns, name};
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    if (rc >= 0)
        rc = columns(s, v, deadline_ns, ret, err);
    if (rc >= 0)
        rc = surroundings(s, ns, name, deadline_ns, ret, err);
    return rc >= 0 ? record(s, v, deadline_ns, ret, err) : rc;
}

static int note(struct pg_sink *s, const struct tr_plan_step *p, int64_t deadline_ns, struct tr_err *err)
{
    char id[24], version[16];
    snprintf(version, sizeof version, "%u", p->note.schema_version);
    snprintf(id, sizeof id, "%llu", (unsigned long long)p->note.snapshot_id);
    const char *v[] = {p->ns, p->name, p->note.source, p->note.kind, id, version, p->positions};
    return on_records(s, "INSERT INTO ",
                      " AS t VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, '')) ON CONFLICT (ns, name) DO UPDATE SET source = excluded.source, kind = excluded.kind,"
                      " snapshot_id = excluded.snapshot_id, schema_version = excluded.schema_version, positions = coalesce($7, t.positions)",
                      7, v, deadline_ns, NULL, err);
}

static int renamed(struct pg_sink *s, const struct tr_plan_step *p, int64_t deadline_ns, struct tr_err *err)
{
    const char *old[] = {p->ns, p->to}, *v[] = {p->ns, p->name, p->to, p->note.kind};
    int rc = on_records(s, "DELETE FROM ", " WHERE ns = $1 AND name = $2", 2, old, deadline_ns, NULL, err);
    return rc >= 0 ? on_records(s, "UPDATE ", " SET name = $3, kind = $4 WHERE ns = $1 AND name = $2", 4, v, deadline_ns, NULL, err) : rc;
}

static int execute(struct tr_catalog *c, const struct tr_plan *plan, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_sink *s = of(c);
    TR_ASSERT(!plan->refused);
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "BEGIN", deadline_ns, err);
    for (uint32_t i = 0; i < plan->n && rc >= 0; i++) {
        const struct tr_plan_step *p = &plan->steps[i];
        rc = p->op == TR_PLAN_NOTE      ? note(s, p, deadline_ns, err)
             : p->op == TR_PLAN_RENAMED ? renamed(s, p, deadline_ns, err)
                                        : tr_pg_script(&s->conn, p->sql, deadline_ns, err);
    }
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "COMMIT", deadline_ns, err);
    else if (s->conn.pg)
        tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, NULL);
    return rc;
}

const struct tr_catalog_ops tr_pg_catalog_ops = {.describe = describe, .execute = execute};
