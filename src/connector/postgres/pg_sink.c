/*
 * pg_sink.c: a PostgreSQL database as a mirror. Tables keep schema and name, or all go into one schema (option `schema`: public.t → t,
 * other.t → other__t); beside each <t>_live (a view without tombstones) and, if asked for, <t>_changelog. A table being built is
 * <t>__tr_build.
 *
 * Bookkeeping, in the schema `meta_schema`: _tailrace_tables (which tables are ours, what they mirror, which build they are) and
 * _tailrace_lease (the highest lease token that has written for a sink). DDL of one bind or swap and its note are one transaction.
 */
#include "pg_sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "clock.h"
#include "connector_postgres.h"
#include "sqlbatch.h"
#include "text.h"

static struct pg_sink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct pg_sink, sink);
}

static const char *cstr(struct tr_buf *b)
{
    const char *s = tr_buf_cstr(b);
    return s ? s : "";
}

static int meta_name(const struct pg_sink *s, const char *table, struct tr_buf *b)
{
    return tr_sql_name(s->o->meta_schema, table, b);
}

static int make_meta(struct pg_sink *s, struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    const char *v[] = {s->o->meta_schema};
    PGresult *r = NULL;
    int rc = tr_pg_exec(c, "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname IN ('_tailrace_tables', '_tailrace_lease')",
                        1, v, deadline_ns, &r, err);
    bool there = rc >= 0 && !strcmp(tr_pg_val(r, 0, 0), "2");
    PQclear(r);
    if (rc < 0 || there)
        return rc;
    /* two writers may come at once: the second waits for the first */
    tr_buf_append_str(&q, "BEGIN; SELECT pg_advisory_xact_lock(7526751); CREATE SCHEMA IF NOT EXISTS ");
    tr_quote_ident(&q, tr_slice_str(s->o->meta_schema));
    tr_buf_append_str(&q, "; CREATE TABLE IF NOT EXISTS ");
    meta_name(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " (ns text, name text, source text NOT NULL, kind text NOT NULL, snapshot_id bigint NOT NULL, schema_version bigint NOT NULL, positions text NOT NULL,"
                           " PRIMARY KEY (ns, name)); CREATE TABLE IF NOT EXISTS ");
    meta_name(s, "_tailrace_lease", &q);
    tr_buf_append_str(&q, " (sink text PRIMARY KEY, token bigint NOT NULL); COMMIT");
    rc = tr_pg_script(c, cstr(&q), deadline_ns, err);
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

/* ---- names ---- */

static void variant_name(const struct pg_sink *s, const struct tr_schema *sc, enum tr_target_variant v, char ns[64], char name[64])
{
    char base[160];
    bool one = s->o->schema && *s->o->schema;
    if (v == TR_TARGET_META) {
        snprintf(ns, 64, "%s", s->o->meta_schema);
        tr_sql_derived("_tailrace_heartbeat", "", name);
        return;
    }
    snprintf(ns, 64, "%s", one ? s->o->schema : sc->ns);
    if (one && strcmp(sc->ns, "public") != 0)
        snprintf(base, sizeof base, "%s__%s", sc->ns, sc->name);
    else
        snprintf(base, sizeof base, "%s", sc->name);
    tr_sql_derived(base, v == TR_TARGET_SHADOW ? "__tr_build" : v == TR_TARGET_CHANGELOG ? "_changelog" : "", name);
}

static const char *kind_name(enum tr_target_variant v)
{
    return v == TR_TARGET_MIRROR ? "mirror" : v == TR_TARGET_SHADOW ? "shadow" : v == TR_TARGET_CHANGELOG ? "changelog" : "meta";
}

static enum tr_table_kind table_kind(const struct pg_sink *s, const struct tr_schema *sc, enum tr_target_variant v)
{
    if (v == TR_TARGET_CHANGELOG)
        return TR_TABLE_LOG;
    if (v == TR_TARGET_META)
        return TR_TABLE_MIRROR_HARD;
    for (size_t i = 0; i < s->hard_delete.n; i++)
        if (tr_glob_table(tr_slice_str(s->hard_delete.v[i]), tr_slice_str(sc->ns), tr_slice_str(sc->name)))
            return TR_TABLE_MIRROR_HARD;
    return TR_TABLE_MIRROR_SOFT;
}

/* ---- bookkeeping ---- */

struct note {
    char source[200], kind[16];
    uint64_t snapshot_id;
    uint32_t schema_version;
};

/* positions: may be NULL. */
static int find(struct pg_sink *s, const char *ns, const char *name, struct note *ret, struct tr_table_desc *positions, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "SELECT source, kind, snapshot_id, schema_version, positions FROM ");
    meta_name(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " WHERE ns = $1 AND name = $2");
    const char *v[] = {ns, name};
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn, cstr(&q), 2, v, deadline_ns, &r, err);
    tr_buf_done(&q);
    if (rc < 0)
        return rc;
    rc = PQntuples(r) ? TR_OK : 1;
    if (rc == TR_OK) {
        snprintf(ret->source, sizeof ret->source, "%s", tr_pg_val(r, 0, 0));
        snprintf(ret->kind, sizeof ret->kind, "%s", tr_pg_val(r, 0, 1));
        ret->snapshot_id = strtoull(tr_pg_val(r, 0, 2), NULL, 10);
        ret->schema_version = (uint32_t)strtoul(tr_pg_val(r, 0, 3), NULL, 10);
        if (positions)
            tr_positions_get(tr_pg_val(r, 0, 4), positions);
    }
    PQclear(r);
    return rc;
}

static int note(struct pg_sink *s, const char *ns, const char *name, const char *source, const char *kind, uint64_t snapshot_id, uint32_t schema_version, const char *positions,
                int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    char id[24], version[16];
    snprintf(version, sizeof version, "%u", schema_version);
    snprintf(id, sizeof id, "%llu", (unsigned long long)snapshot_id);
    tr_buf_append_str(&q, "INSERT INTO ");
    meta_name(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " AS t VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, '')) ON CONFLICT (ns, name) DO UPDATE SET source = excluded.source, kind = excluded.kind,"
                           " snapshot_id = excluded.snapshot_id, schema_version = excluded.schema_version, positions = coalesce($7, t.positions)");
    const char *v[] = {ns, name, source, kind, id, version, positions};
    int rc = tr_pg_exec(&s->conn, cstr(&q), 7, v, deadline_ns, NULL, err);
    tr_buf_done(&q);
    return rc;
}

static int forget(struct pg_sink *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "DELETE FROM ");
    meta_name(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " WHERE ns = $1 AND name = $2");
    const char *v[] = {ns, name};
    int rc = tr_pg_exec(&s->conn, cstr(&q), 2, v, deadline_ns, NULL, err);
    tr_buf_done(&q);
    return rc;
}

static int describe(struct pg_sink *s, const char *ns, const char *name, struct tr_table_desc *ret, int64_t deadline_ns, struct tr_err *err)
{
    memset(ret, 0, sizeof *ret);
    const char *v[] = {ns, name};
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn,
                        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, coalesce(array_position((string_to_array(i.indkey::text, ' ')::int2[])[:i.indnkeyatts], a.attnum), 0)"
                        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
                        " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary WHERE n.nspname = $1 AND c.relname = $2 ORDER BY a.attnum",
                        2, v, deadline_ns, &r, err);
    for (int i = 0; rc >= 0 && i < PQntuples(r); i++)
        if (tr_desc_add(ret, tr_pg_val(r, i, 0), tr_pg_val(r, i, 1), tr_pg_bool(r, i, 2), (uint16_t)atoi(tr_pg_val(r, i, 3))) < 0)
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory to describe table %s", name);
    PQclear(r);
    ret->exists = ret->n_columns > 0;
    char live[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(name, "_live", live);
    const char *view[] = {ns, live};
    r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'v'", 2, view,
                        deadline_ns, &r, err);
    ret->view = rc >= 0 && PQntuples(r) == 1;
    PQclear(r);
    struct note n;
    if (rc >= 0)
        rc = find(s, ns, name, &n, ret, deadline_ns, err);
    ret->ours = rc == TR_OK;
    ret->snapshot_id = ret->ours ? n.snapshot_id : 0;
    ret->schema_version = ret->ours ? n.schema_version : 0;
    return rc < 0 ? rc : TR_OK;
}

/* ---- DDL ---- */

static int run_plan(struct pg_sink *s, const struct tr_plan *p, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < p->n && rc >= 0; i++)
        rc = tr_pg_script(&s->conn, p->steps[i].sql, deadline_ns, err);
    if (rc == TR_STALE && err)
        err->rc = rc = TR_REJECT;
    return rc;
}

static int begin(struct pg_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    return rc >= 0 ? tr_pg_script(&s->conn, "BEGIN", deadline_ns, err) : rc;
}

static int end(struct pg_sink *s, int rc, int64_t deadline_ns, struct tr_err *err)
{
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "COMMIT", deadline_ns, err);
    else if (s->conn.pg)
        tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, NULL);
    return rc;
}

static int make_schema(struct pg_sink *s, const char *ns, int64_t deadline_ns, struct tr_err *err)
{
    const char *v[] = {ns};
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn, "SELECT FROM pg_namespace WHERE nspname = $1", 1, v, deadline_ns, &r, err);
    bool there = rc >= 0 && PQntuples(r) == 1;
    PQclear(r);
    if (rc < 0 || there)
        return rc;
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "CREATE SCHEMA ");
    tr_quote_ident(&q, tr_slice_str(ns));
    rc = tr_pg_script(&s->conn, cstr(&q), deadline_ns, err);
    tr_buf_done(&q);
    return rc;
}

static int drop_old_build(struct pg_sink *s, const char *ns, const char *name, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct note n;
    int rc = find(s, ns, name, &n, NULL, deadline_ns, err);
    if (rc != TR_OK || n.snapshot_id == snapshot_id)
        return rc < 0 ? rc : TR_OK;
    struct tr_plan p = {0};
    rc = tr_plan_drop(TR_DIALECT_POSTGRES, ns, name, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    tr_plan_done(&p);
    return rc >= 0 ? forget(s, ns, name, deadline_ns, err) : rc;
}

static int make_table(struct pg_sink *s, const struct tr_schema *sc, enum tr_target_variant v, uint64_t snapshot_id, const char *ns, const char *name, int64_t deadline_ns,
                      struct tr_err *err)
{
    char source[200];
    snprintf(source, sizeof source, "%.64s.%.64s", sc->ns, sc->name);
    struct tr_want w = {0};
    struct tr_table_desc have = {0};
    struct tr_plan p = {0};
    struct note n = {0};
    int rc = tr_want_new(TR_DIALECT_POSTGRES, table_kind(s, sc, v), sc, ns, name, &w, err);
    if (rc >= 0)
        rc = make_schema(s, ns, deadline_ns, err);
    if (rc >= 0)
        rc = find(s, ns, name, &n, NULL, deadline_ns, err);
    bool noted = rc == TR_OK;
    if (noted && strcmp(n.source, source) != 0)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s.%s mirrors %s already; %s would need the same name", s->what, ns, name, n.source, source);
    if (rc >= 0 && v == TR_TARGET_SHADOW)
        rc = drop_old_build(s, ns, name, snapshot_id, deadline_ns, err);
    if (rc >= 0)
        rc = describe(s, ns, name, &have, deadline_ns, err);
    if (rc >= 0 && noted && !have.exists && v != TR_TARGET_SHADOW)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s.%s was removed from the sink; take a new snapshot: tailrace table resnapshot %s", s->what, ns, name, source);
    if (rc >= 0)
        rc = tr_reconcile(&w, &have, &p, err);
    if (rc >= 0 && p.refused)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: %s", s->what, p.reason);
    bool changed = p.n > 0;
    if (rc >= 0 && (changed || !have.view) && v == TR_TARGET_MIRROR) /* a hand that cures a table may have had to drop its view */
        rc = tr_plan_view(&w, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    uint32_t newest = TR_MAX(sc->version, have.schema_version);
    struct tr_buf pos = {0};
    bool newer = sc->version >= have.schema_version;
    if (rc >= 0 && newer && tr_positions_put(&w, &pos) < 0)
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for table %s", name);
    if (rc >= 0 && (changed || newest != have.schema_version))
        rc = note(s, ns, name, source, kind_name(v), v == TR_TARGET_SHADOW ? snapshot_id : have.snapshot_id, newest, newer ? tr_buf_cstr(&pos) : NULL, deadline_ns, err);
    tr_buf_done(&pos);
    tr_plan_done(&p);
    tr_table_desc_done(&have);
    tr_want_done(&w);
    return rc;
}

static int new_target(struct pg_sink *s, const struct tr_schema *sc, enum tr_target_variant v, const char *ns, const char *name, struct tr_target **ret, struct tr_err *err)
{
    struct pg_target *t = tr_calloc(1, sizeof *t);
    if (!t)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for table %s", name);
    tr_list_init(&t->link);
    t->target = (struct tr_target){.table_id = sc->table_id, .schema_version = sc->version, .variant = v};
    t->schema = tr_schema_ref(sc);
    t->id = ++s->next_id;
    snprintf(t->ns, sizeof t->ns, "%s", ns);
    snprintf(t->name, sizeof t->name, "%s", name);
    int rc = tr_sqlm_init(&t->m, TR_DIALECT_POSTGRES, table_kind(s, sc, v), t->schema, t->ns, t->name, err);
    if (rc < 0) {
        tr_schema_unref(t->schema);
        tr_free(t);
        return rc;
    }
    tr_list_push_back(&s->targets, &t->link);
    *ret = &t->target;
    return TR_OK;
}

static int bind(struct tr_sink *ts, const struct tr_schema *sc, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret,
                struct tr_err *err)
{
    struct pg_sink *s = of(ts);
    char ns[64], name[64];
    variant_name(s, sc, v, ns, name);
    int rc = begin(s, deadline_ns, err);
    if (rc < 0)
        return rc;
    rc = end(s, make_table(s, sc, v, snapshot_id, ns, name, deadline_ns, err), deadline_ns, err);
    return rc < 0 ? rc : new_target(s, sc, v, ns, name, ret, err);
}

/* DROP takes the old primary key's index along; the new one keeps the name it was made with, which says __tr_build for ever. */
static int rename_key(struct pg_sink *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_err *err)
{
    const char *v[] = {ns, name};
    char want[64];
    tr_sql_derived(name, "_pkey", want);
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn,
                        "SELECT k.conname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
                        " WHERE k.contype = 'p' AND n.nspname = $1 AND c.relname = $2",
                        2, v, deadline_ns, &r, err);
    if (rc < 0 || PQntuples(r) == 0 || !strcmp(tr_pg_val(r, 0, 0), want)) {
        PQclear(r);
        return rc;
    }
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "ALTER TABLE ");
    tr_sql_name(ns, name, &q);
    tr_buf_append_str(&q, " RENAME CONSTRAINT ");
    tr_quote_ident(&q, tr_slice_str(tr_pg_val(r, 0, 0)));
    tr_buf_append_str(&q, " TO ");
    tr_quote_ident(&q, tr_slice_str(want));
    rc = tr_pg_script(&s->conn, cstr(&q), deadline_ns, err);
    tr_buf_done(&q);
    PQclear(r);
    return rc;
}

static int renamed(struct pg_sink *s, const char *ns, const char *shadow, const char *mirror, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "UPDATE ");
    meta_name(s, "_tailrace_tables", &q);
    tr_buf_append_str(&q, " SET name = $3, kind = 'mirror' WHERE ns = $1 AND name = $2");
    const char *v[] = {ns, shadow, mirror};
    int rc = tr_pg_exec(&s->conn, cstr(&q), 3, v, deadline_ns, NULL, err);
    tr_buf_done(&q);
    return rc;
}

static int swap_in(struct pg_sink *s, const struct tr_schema *sc, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    char ns[64], mirror[64], shadow[64], source[200];
    struct note n = {0};
    struct tr_table_desc there = {0};
    variant_name(s, sc, TR_TARGET_SHADOW, ns, shadow);
    variant_name(s, sc, TR_TARGET_MIRROR, ns, mirror);
    snprintf(source, sizeof source, "%.64s.%.64s", sc->ns, sc->name);
    /* The build first: one that was made again, because a crash came between its swap and the note of it, is ahead of the mirror. */
    int rc = find(s, ns, shadow, &n, NULL, deadline_ns, err);
    if (rc == 1) {
        rc = find(s, ns, mirror, &n, NULL, deadline_ns, err);
        if (rc == TR_OK && n.snapshot_id == snapshot_id)
            return TR_OK;
        rc = rc < 0 ? rc : 1;
    }
    if (rc == 1 || (rc == TR_OK && n.snapshot_id != snapshot_id))
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: the build of table %s.%s was removed from the sink; take a new snapshot: tailrace table resnapshot %s", s->what, ns,
                          mirror, source);
    if (rc >= 0)
        rc = describe(s, ns, mirror, &there, deadline_ns, err);
    if (rc >= 0 && there.exists && !there.ours)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s.%s exists and was not made by tailrace; rename or drop it, or give the sink a schema of its own, then resume",
                        s->what, ns, mirror);
    struct tr_want w = {0};
    struct tr_plan p = {0};
    if (rc >= 0)
        rc = tr_want_new(TR_DIALECT_POSTGRES, table_kind(s, sc, TR_TARGET_MIRROR), sc, ns, mirror, &w, err);
    if (rc >= 0)
        rc = tr_plan_swap(&w, shadow, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    if (rc >= 0)
        rc = rename_key(s, ns, mirror, deadline_ns, err);
    if (rc >= 0)
        rc = forget(s, ns, mirror, deadline_ns, err);
    if (rc >= 0)
        rc = renamed(s, ns, shadow, mirror, deadline_ns, err);
    tr_plan_done(&p);
    tr_want_done(&w);
    tr_table_desc_done(&there);
    return rc;
}

static int swap(struct tr_sink *ts, const struct tr_schema *sc, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_sink *s = of(ts);
    int rc = begin(s, deadline_ns, err);
    return rc < 0 ? rc : end(s, swap_in(s, sc, snapshot_id, deadline_ns, err), deadline_ns, err);
}

static int built(struct tr_sink *ts, const struct tr_schema *sc, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err)
{
    struct pg_sink *s = of(ts);
    char ns[64], name[64];
    struct tr_table_desc d = {0};
    *ret_snapshot_id = 0;
    variant_name(s, sc, TR_TARGET_MIRROR, ns, name);
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    if (rc >= 0)
        rc = describe(s, ns, name, &d, deadline_ns, err);
    if (rc >= 0 && d.exists && d.ours)
        *ret_snapshot_id = d.snapshot_id;
    tr_table_desc_done(&d);
    return rc;
}

static int probe(struct tr_sink *ts, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_sink *s = of(ts);
    int rc = tr_pg_sink_connect(s, &s->conn, deadline_ns, err);
    return rc >= 0 ? tr_pg_script(&s->conn, "SELECT 1", deadline_ns, err) : rc;
}

static int encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    (void)s;
    (void)t;
    return tr_sqlbatch_encoder_new(ret, err);
}

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    (void)shard;
    return tr_pg_writer_new(of(s), ret, err);
}

static void close_sink(struct tr_sink *ts)
{
    struct pg_sink *s = of(ts);
    struct tr_list *l;
    while ((l = tr_list_pop_front(&s->targets))) {
        struct pg_target *t = tr_container_of(l, struct pg_target, link);
        tr_sqlm_done(&t->m);
        tr_schema_unref(t->schema);
        tr_free(t);
    }
    tr_pgconn_done(&s->conn);
    tr_free(s);
}

static const struct tr_sink_ops ops = {.bind = bind, .swap = swap, .built = built, .probe = probe, .encoder_new = encoder_new, .writer_new = writer_new, .close = close_sink};

#define CAPS                                                                                                                                                     \
    (TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE)

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    struct pg_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", env->name);
    s->sink = (struct tr_sink){.ops = &ops, .caps = CAPS, .shards = 1, .n_endpoints = 1};
    s->o = options;
    snprintf(s->name, sizeof s->name, "%s", env->name);
    snprintf(s->what, sizeof s->what, "sink %s", s->name);
    s->lease_token = env->lease_token;
    s->hard_delete = env->hard_delete;
    tr_pgconn_init(&s->conn, s->what);
    tr_list_init(&s->targets);
    *ret = &s->sink;
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
    .caps = CAPS,
    .sink_new = sink_new,
};
