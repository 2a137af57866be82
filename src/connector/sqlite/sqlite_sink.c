/*
 * sqlite_sink.c: a SQLite database as a mirror. Table names: public.t → t, other.t → other__t; beside each <t>_live (a view without
 * tombstones) and, if asked for, <t>_changelog. A table being built is <t>__tr_build.
 *
 * All DDL of one bind or swap, and the note of it in _tailrace_tables, is one transaction.
 */
#include "sqlite_sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "clock.h"
#include "connector_sqlite.h"
#include "sqlbatch.h"
#include "text.h"

static struct sqlite_sink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct sqlite_sink, sink);
}

static void base_name(const char *ns, const char *name, char out[160])
{
    if (!strcmp(ns, "public"))
        snprintf(out, 160, "%s", name);
    else
        snprintf(out, 160, "%s__%s", ns, name);
}

static void variant_name(const struct tr_schema *s, enum tr_target_variant v, char out[200])
{
    char base[160], name[TR_SQL_NAME_MAX + 1];
    base_name(s->ns, s->name, base);
    tr_sql_derived(v == TR_TARGET_META ? "_tailrace_heartbeat" : base, v == TR_TARGET_SHADOW ? "__tr_build" : v == TR_TARGET_CHANGELOG ? "_changelog" : "", name);
    snprintf(out, 200, "%s", name);
}

static const char *kind_name(enum tr_target_variant v)
{
    return v == TR_TARGET_MIRROR ? "mirror" : v == TR_TARGET_SHADOW ? "shadow" : v == TR_TARGET_CHANGELOG ? "changelog" : "meta";
}

static enum tr_table_kind table_kind(const struct sqlite_sink *s, const struct tr_schema *sc, enum tr_target_variant v)
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

static int run_plan(struct sqlite_sink *s, const struct tr_plan *p, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < p->n && rc >= 0; i++)
        rc = tr_sqlite_exec(&s->db, p->steps[i].sql, deadline_ns, err);
    if (rc == TR_STALE && err)
        err->rc = rc = TR_REJECT; /* a statement of ours that the database does not take */
    return rc;
}

static int end_tx(struct sqlite_sink *s, int rc, int64_t deadline_ns, struct tr_err *err)
{
    if (rc >= 0)
        rc = tr_sqlite_exec(&s->db, "COMMIT", deadline_ns, err);
    if (rc < 0)
        sqlite3_exec(s->db.db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static int check_owner(struct sqlite_sink *s, const char *name, const char *source, bool *ret_noted, struct tr_err *err)
{
    struct tr_sqlite_note n;
    int rc = tr_sqlite_find(&s->db, name, &n, err);
    *ret_noted = rc == TR_OK;
    if (rc == TR_OK && strcmp(n.source, source) != 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s mirrors %s already; %s would need the same name", s->what, name, n.source, source);
    return rc < 0 ? rc : TR_OK;
}

/* What of an older build of this table is left. */
static int drop_old_build(struct sqlite_sink *s, const char *name, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_sqlite_note n;
    int rc = tr_sqlite_find(&s->db, name, &n, err);
    if (rc != TR_OK || n.snapshot_id == snapshot_id)
        return rc < 0 ? rc : TR_OK;
    struct tr_plan p = {0};
    rc = tr_plan_drop(TR_DIALECT_SQLITE, "", name, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    tr_plan_done(&p);
    return rc >= 0 ? tr_sqlite_forget(&s->db, name, err) : rc;
}

static int make_table(struct sqlite_sink *s, const struct tr_schema *sc, enum tr_target_variant v, uint64_t snapshot_id, const char *name, int64_t deadline_ns,
                      struct tr_err *err)
{
    char source[200];
    snprintf(source, sizeof source, "%.64s.%.64s", sc->ns, sc->name);
    struct tr_want w = {0};
    struct tr_table_desc have = {0};
    struct tr_plan p = {0};
    bool noted = false;
    int rc = tr_want_new(TR_DIALECT_SQLITE, table_kind(s, sc, v), sc, "", name, &w, err);
    if (rc >= 0)
        rc = check_owner(s, name, source, &noted, err);
    if (rc >= 0 && v == TR_TARGET_SHADOW)
        rc = drop_old_build(s, name, snapshot_id, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_describe(&s->db, name, &have, err);
    if (rc >= 0 && noted && !have.exists && v != TR_TARGET_SHADOW)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s was removed from the sink; take a new snapshot: tailrace table resnapshot %s", s->what, name, source);
    if (rc >= 0)
        rc = tr_reconcile(&w, &have, &p, err);
    if (rc >= 0 && p.refused)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: %s", s->what, p.reason);
    bool changed = p.n > 0;
    if (rc >= 0 && (changed || !have.view) && v == TR_TARGET_MIRROR) /* a hand that cures a table may have had to drop its view */
        rc = tr_plan_view(&w, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    struct tr_sqlite_note n = {.snapshot_id = v == TR_TARGET_SHADOW ? snapshot_id : have.snapshot_id, .schema_version = TR_MAX(sc->version, have.schema_version)};
    snprintf(n.source, sizeof n.source, "%s", source);
    snprintf(n.kind, sizeof n.kind, "%s", kind_name(v));
    struct tr_buf pos = {0};
    bool newer = sc->version >= have.schema_version;
    if (rc >= 0 && newer && tr_positions_put(&w, &pos) < 0)
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for table %s", name);
    if (rc >= 0 && (changed || n.schema_version != have.schema_version))
        rc = tr_sqlite_note(&s->db, name, &n, newer ? tr_buf_cstr(&pos) : NULL, err);
    tr_buf_done(&pos);
    tr_plan_done(&p);
    tr_table_desc_done(&have);
    tr_want_done(&w);
    return rc;
}

static int new_target(struct sqlite_sink *s, const struct tr_schema *sc, enum tr_target_variant v, const char *name, struct tr_target **ret, struct tr_err *err)
{
    struct sqlite_target *t = tr_calloc(1, sizeof *t);
    if (!t)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for table %s", name);
    tr_list_init(&t->link);
    t->target = (struct tr_target){.table_id = sc->table_id, .schema_version = sc->version, .variant = v};
    t->schema = tr_schema_ref(sc);
    t->id = ++s->next_id;
    snprintf(t->name, sizeof t->name, "%s", name);
    int rc = tr_sqlm_init(&t->m, TR_DIALECT_SQLITE, table_kind(s, sc, v), t->schema, "", t->name, err);
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
    struct sqlite_sink *s = of(ts);
    char name[200];
    variant_name(sc, v, name);
    int rc = tr_sqlite_open(&s->db, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(&s->db, "BEGIN IMMEDIATE", deadline_ns, err);
    if (rc < 0)
        return rc;
    rc = make_table(s, sc, v, snapshot_id, name, deadline_ns, err);
    rc = end_tx(s, rc, deadline_ns, err);
    return rc < 0 ? rc : new_target(s, sc, v, name, ret, err);
}

static int swap_in(struct sqlite_sink *s, const struct tr_schema *sc, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    char shadow[200], mirror[200], source[200];
    struct tr_sqlite_note n = {0};
    variant_name(sc, TR_TARGET_SHADOW, shadow);
    variant_name(sc, TR_TARGET_MIRROR, mirror);
    snprintf(source, sizeof source, "%.64s.%.64s", sc->ns, sc->name);
    /* The build first: one that was made again, because a crash came between its swap and the note of it, is ahead of the mirror. */
    int rc = tr_sqlite_find(&s->db, shadow, &n, err);
    if (rc == 1) {
        rc = tr_sqlite_find(&s->db, mirror, &n, err);
        if (rc == TR_OK && n.snapshot_id == snapshot_id)
            return TR_OK;
        rc = rc < 0 ? rc : 1;
    }
    if (rc == 1 || (rc == TR_OK && n.snapshot_id != snapshot_id))
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: the build of table %s was removed from the sink; take a new snapshot: tailrace table resnapshot %s", s->what, mirror,
                          source);
    struct tr_want w = {0};
    struct tr_plan p = {0};
    struct tr_table_desc there = {0};
    if (rc >= 0)
        rc = tr_sqlite_describe(&s->db, mirror, &there, err);
    if (rc >= 0 && there.exists && !there.ours)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s exists and was not made by tailrace; rename or drop it, then resume", s->what, mirror);
    if (rc >= 0)
        rc = tr_want_new(TR_DIALECT_SQLITE, table_kind(s, sc, TR_TARGET_MIRROR), sc, "", mirror, &w, err);
    if (rc >= 0)
        rc = tr_plan_swap(&w, shadow, &p, err);
    if (rc >= 0)
        rc = run_plan(s, &p, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_rename(&s->db, shadow, mirror, "mirror", err);
    tr_plan_done(&p);
    tr_want_done(&w);
    tr_table_desc_done(&there);
    return rc;
}

static int swap(struct tr_sink *ts, const struct tr_schema *sc, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct sqlite_sink *s = of(ts);
    int rc = tr_sqlite_open(&s->db, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(&s->db, "BEGIN IMMEDIATE", deadline_ns, err);
    if (rc < 0)
        return rc;
    return end_tx(s, swap_in(s, sc, snapshot_id, deadline_ns, err), deadline_ns, err);
}

static int built(struct tr_sink *ts, const struct tr_schema *sc, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err)
{
    struct sqlite_sink *s = of(ts);
    char name[200];
    struct tr_table_desc d = {0};
    *ret_snapshot_id = 0;
    variant_name(sc, TR_TARGET_MIRROR, name);
    int rc = tr_sqlite_open(&s->db, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_describe(&s->db, name, &d, err);
    if (rc >= 0 && d.exists && d.ours)
        *ret_snapshot_id = d.snapshot_id;
    tr_table_desc_done(&d);
    return rc;
}

static int probe(struct tr_sink *ts, int64_t deadline_ns, struct tr_err *err)
{
    struct sqlite_sink *s = of(ts);
    int rc = tr_sqlite_open(&s->db, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(&s->db, "BEGIN IMMEDIATE", deadline_ns, err); /* writable, and not only there */
    return rc < 0 ? rc : end_tx(s, TR_OK, deadline_ns, err);
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
    return tr_sqlite_writer_new(of(s), ret, err);
}

static void close_sink(struct tr_sink *ts)
{
    struct sqlite_sink *s = of(ts);
    struct tr_list *l;
    while ((l = tr_list_pop_front(&s->targets))) {
        struct sqlite_target *t = tr_container_of(l, struct sqlite_target, link);
        tr_sqlm_done(&t->m);
        tr_schema_unref(t->schema);
        tr_free(t);
    }
    tr_sqlite_close(&s->db);
    tr_free(s);
}

static const struct tr_sink_ops ops = {.bind = bind, .swap = swap, .built = built, .probe = probe, .encoder_new = encoder_new, .writer_new = writer_new, .close = close_sink};

#define CAPS                                                                                                                                                     \
    (TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE)

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    struct sqlite_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", env->name);
    s->sink = (struct tr_sink){.ops = &ops, .caps = CAPS, .shards = 1, .n_endpoints = 1};
    s->o = options;
    snprintf(s->name, sizeof s->name, "%s", env->name);
    snprintf(s->what, sizeof s->what, "sink %s", s->name);
    s->lease_token = env->lease_token;
    s->hard_delete = env->hard_delete;
    s->db.path = s->o->path;
    s->db.what = s->what;
    tr_list_init(&s->targets);
    *ret = &s->sink;
    return TR_OK;
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
    .caps = CAPS,
    .sink_new = sink_new,
};
