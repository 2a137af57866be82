#include "sqlsink.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "sqlbatch.h"
#include "text.h"

/* A table the sink keeps for a source table. */
struct place {
    char ns[TR_SQL_NAME_MAX + 1], name[TR_SQL_NAME_MAX + 1];
    char said[2 * TR_SQL_NAME_MAX + 2]; /* for people */
};

static struct tr_sqlsink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct tr_sqlsink, sink);
}

/* With a suffix, before it is shortened: so that a mirror and what stands beside it keep different names. */
static void name_of(const char *one_ns, const char *ns, const char *name, const char *suffix, char out[TR_SQL_NAME_MAX + 1])
{
    char base[2 * TR_SQL_NAME_MAX + 4];
    bool prefixed = one_ns && strcmp(ns, "public") != 0;
    snprintf(base, sizeof base, "%s%s%s", prefixed ? ns : "", prefixed ? "__" : "", name);
    tr_sql_derived(base, suffix, out);
}

void tr_sqlsink_name(const char *one_ns, const char *ns, const char *name, char out[TR_SQL_NAME_MAX + 1])
{
    name_of(one_ns, ns, name, "", out);
}

static struct place place_of(const struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v)
{
    struct place p;
    snprintf(p.ns, sizeof p.ns, "%s", v == TR_TARGET_META ? s->meta_ns : s->ns ? s->ns : sc->ns);
    if (v == TR_TARGET_META)
        snprintf(p.name, sizeof p.name, "_tailrace_heartbeat");
    else
        name_of(s->ns, sc->ns, sc->name, v == TR_TARGET_SHADOW ? "__tr_build" : v == TR_TARGET_CHANGELOG ? "_changelog" : "", p.name);
    snprintf(p.said, sizeof p.said, "%s%s%s", p.ns, *p.ns ? "." : "", p.name);
    return p;
}

void tr_sqlsink_place(const struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v, char out[TR_SQL_NAME_MAX + 1])
{
    struct place p = place_of(s, sc, v);
    memcpy(out, p.name, sizeof p.name);
}

static const char *kind_name(enum tr_target_variant v)
{
    return v == TR_TARGET_MIRROR ? "mirror" : v == TR_TARGET_SHADOW ? "shadow" : v == TR_TARGET_CHANGELOG ? "changelog" : "meta";
}

static enum tr_table_kind table_kind(const struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v)
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

int tr_sqlsink_want(const struct tr_sqlsink *s, enum tr_table_kind kind, const struct tr_schema *sc, const char *ns, const char *name, struct tr_want *ret, struct tr_err *err)
{
    int rc = tr_want_new(s->dialect, kind, sc, ns, name, ret, err);
    if (rc >= 0 && s->shape && (rc = s->shape(s, sc, ret, err)) < 0)
        tr_want_done(ret);
    return rc;
}

static struct tr_table_note note_of(const struct tr_schema *sc, enum tr_target_variant v)
{
    struct tr_table_note n = {.schema_version = sc->version};
    snprintf(n.source, sizeof n.source, "%.64s.%.64s", sc->ns, sc->name);
    snprintf(n.kind, sizeof n.kind, "%s", kind_name(v));
    return n;
}

static int nomem(const struct tr_sqlsink *s, const struct place *p, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for table %s", s->what, p->said);
}

static int removed(const struct tr_sqlsink *s, const char *thing, const struct place *p, const struct tr_table_note *n, struct tr_err *err)
{
    return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: %s %s was removed from the sink; take a new snapshot: tailrace table resnapshot %s", s->what, thing, p->said, n->source);
}

static int describe(struct tr_sqlsink *s, const struct place *p, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    memset(ret, 0, sizeof *ret);
    return s->catalog->ops->describe(s->catalog, p->ns, p->name, deadline_ns, ret, err);
}

static int refused(const struct tr_sqlsink *s, const struct tr_plan *p, struct tr_err *err)
{
    return p->refused ? tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: %s", s->what, p->reason) : TR_OK;
}

static int execute(struct tr_sqlsink *s, const struct tr_plan *p, int64_t deadline_ns, struct tr_err *err)
{
    if (p->refused)
        return refused(s, p, err);
    int rc = p->n ? s->catalog->ops->execute(s->catalog, p, deadline_ns, err) : TR_OK;
    if (rc == TR_STALE) { /* a statement of ours that the database does not take: asking again will not help */
        rc = TR_REJECT;
        if (err)
            err->rc = rc;
    }
    return rc;
}

/* ---- bind ---- */

static int check_owner(const struct tr_sqlsink *s, const struct place *p, const struct tr_table_note *n, const struct tr_table_desc *have, struct tr_err *err)
{
    if (!have->ours || !strcmp(have->note.source, n->source))
        return TR_OK;
    return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s mirrors %s already; %s would need the same name", s->what, p->said, have->note.source, n->source);
}

static int plan_bind(struct tr_sqlsink *s, const struct tr_want *w, const struct place *p, enum tr_target_variant v, const struct tr_table_note *n,
                     const struct tr_table_desc *have, struct tr_plan *ret, struct tr_err *err)
{
    int owner = check_owner(s, p, n, have, err);
    if (owner < 0)
        return owner;
    bool other = n->snapshot_id && (!have->ours || have->note.snapshot_id != n->snapshot_id);
    if (v == TR_TARGET_MIRROR && !have->exists && (have->ours || other)) /* history and bookkeeping are begun anew; a mirror would lack what it had */
        return removed(s, "table", p, n, err);
    if (v == TR_TARGET_MIRROR && have->ours && other)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: table %s is not the build that was made of %s (restored from another time?); take a new snapshot: tailrace table resnapshot %s",
                          s->what, p->said, n->source, n->source);
    const struct tr_table_desc none = {.no_ns = have->no_ns};
    bool other_build = v == TR_TARGET_SHADOW && have->ours && other;
    const struct tr_table_desc *is = other_build || !have->exists ? &none : have;
    int rc = other_build ? tr_plan_drop(w->dialect, w->ns, w->name, ret, err) : TR_OK;
    if (rc >= 0)
        rc = tr_reconcile(w, is, ret, err);
    if (rc < 0 || ret->refused)
        return rc;
    bool changed = ret->n > 0;
    if (v == TR_TARGET_MIRROR && (changed || !is->view)) /* a hand that cures a table may have had to drop its view */
        rc = tr_plan_view(w, ret, err);
    struct tr_table_note note = *n;
    note.snapshot_id = v == TR_TARGET_SHADOW ? n->snapshot_id : is->note.snapshot_id;
    note.schema_version = TR_MAX(n->schema_version, is->note.schema_version);
    if (rc < 0 || (!changed && note.schema_version == is->note.schema_version))
        return rc;
    struct tr_buf pos;
    tr_buf_init(&pos);
    bool newest = n->schema_version >= is->note.schema_version;
    if ((newest && tr_positions_put(w, &pos) < 0) || tr_plan_note(ret, p->ns, p->name, &note, newest ? tr_buf_cstr(&pos) : NULL) < 0)
        rc = nomem(s, p, err);
    tr_buf_done(&pos);
    return rc;
}

/* Where a table and its record are not one transaction, the table is made with it: one that was left without would be nobody's. */
static int note_with_table(const struct tr_sqlsink *s, const struct tr_table_note *n, enum tr_target_variant v, const struct place *p, struct tr_want *w, struct tr_err *err)
{
    struct tr_buf pos = {0}, text = {0};
    struct tr_table_note first = *n;
    if (!tr_dialect_clickhouse(s->dialect))
        return TR_OK;
    first.snapshot_id = v == TR_TARGET_SHADOW ? n->snapshot_id : 0;
    bool ok = tr_positions_put(w, &pos) >= 0 && tr_buf_cstr(&pos) && tr_ch_note_put(&first, tr_buf_cstr(&pos), &text) >= 0 && tr_buf_cstr(&text) && (w->note = tr_strdup(tr_buf_cstr(&text)));
    tr_buf_done(&pos);
    tr_buf_done(&text);
    return ok ? TR_OK : nomem(s, p, err);
}

static struct tr_sqltarget *known_target(const struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v)
{
    TR_LIST_EACH (n, &s->targets) {
        struct tr_sqltarget *t = tr_container_of(n, struct tr_sqltarget, link);
        if (t->target.table_id == sc->table_id && t->target.schema_version == sc->version && t->target.variant == v && t->schema->fingerprint == sc->fingerprint)
            return t;
    }
    return NULL;
}

static int new_target(struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v, const struct place *p, struct tr_target **ret, struct tr_err *err)
{
    struct tr_sqltarget *t = tr_calloc(1, sizeof *t);
    if (!t)
        return nomem(s, p, err);
    tr_list_init(&t->link);
    t->target = (struct tr_target){.table_id = sc->table_id, .schema_version = sc->version, .variant = v};
    t->schema = tr_schema_ref(sc);
    t->id = ++s->next_id;
    memcpy(t->ns, p->ns, sizeof t->ns);
    memcpy(t->name, p->name, sizeof t->name);
    int rc = tr_sqlm_init(&t->m, s->dialect, table_kind(s, sc, v), t->schema, t->ns, t->name, err);
    if (rc < 0) {
        tr_schema_unref(t->schema);
        tr_free(t);
        return rc;
    }
    tr_list_push_back(&s->targets, &t->link);
    *ret = &t->target;
    return TR_OK;
}

/* What there is to do to a table; nothing of it is done. */
static int plan_table(struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v, const struct place *p, uint64_t snapshot_id, uint32_t version, int64_t deadline_ns,
                      struct tr_plan *ret, struct tr_err *err)
{
    struct tr_table_note n = note_of(sc, v);
    struct tr_want w = {0};
    struct tr_table_desc have = {0};
    n.snapshot_id = snapshot_id;
    n.schema_version = version;
    int rc = tr_sqlsink_want(s, table_kind(s, sc, v), sc, p->ns, p->name, &w, err);
    w.schema_version = version;
    if (rc >= 0)
        rc = note_with_table(s, &n, v, p, &w, err);
    if (rc >= 0)
        rc = describe(s, p, deadline_ns, &have, err);
    if (rc >= 0)
        rc = plan_bind(s, &w, p, v, &n, &have, ret, err);
    tr_table_desc_done(&have);
    tr_want_done(&w);
    return rc;
}

int tr_sqlsink_check(struct tr_sink *ts, const struct tr_schema *sc, enum tr_target_variant v, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_sqlsink *s = of(ts);
    struct place p = place_of(s, sc, v);
    struct tr_plan plan = {0};
    int rc = plan_table(s, sc, v, &p, 0, UINT32_MAX, deadline_ns, &plan, err);
    if (rc >= 0)
        rc = refused(s, &plan, err);
    tr_plan_done(&plan);
    return rc;
}

/* The table becomes what it should be. A statement that is refused because an earlier request of ours, which was given up, has been carried out meanwhile
 * is none of the table's faults: what is left to do is done. */
static int fit(struct tr_sqlsink *s, const struct tr_schema *sc, enum tr_target_variant v, const struct place *p, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_plan plan = {0}, rest = {0};
    struct tr_err why;
    int rc = plan_table(s, sc, v, p, snapshot_id, sc->version, deadline_ns, &plan, err);
    if (rc >= 0)
        rc = execute(s, &plan, deadline_ns, err);
    if (rc == TR_REJECT && plan.n && plan_table(s, sc, v, p, snapshot_id, sc->version, deadline_ns, &rest, &why) >= 0 && !rest.refused && rest.n < plan.n)
        rc = execute(s, &rest, deadline_ns, err);
    tr_plan_done(&rest);
    tr_plan_done(&plan);
    return rc;
}

int tr_sqlsink_bind(struct tr_sink *ts, const struct tr_schema *sc, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret,
                    struct tr_err *err)
{
    struct tr_sqlsink *s = of(ts);
    if (v == TR_TARGET_APPEND)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s keeps mirrors and changelog tables only: it cannot append to %s.%s", s->what, sc->ns, sc->name);
    struct place p = place_of(s, sc, v);
    int rc = fit(s, sc, v, &p, snapshot_id, deadline_ns, err);
    if (rc < 0)
        return rc;
    struct tr_sqltarget *t = known_target(s, sc, v);
    if (t)
        *ret = &t->target;
    return t ? TR_OK : new_target(s, sc, v, &p, ret, err);
}

/* ---- swap ---- */

int tr_sqlsink_swap(struct tr_sink *ts, const struct tr_schema *sc, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_sqlsink *s = of(ts);
    struct place shadow = place_of(s, sc, TR_TARGET_SHADOW), mirror = place_of(s, sc, TR_TARGET_MIRROR);
    struct tr_table_note n = note_of(sc, TR_TARGET_MIRROR);
    struct tr_table_desc build = {0}, there = {0};
    struct tr_want w = {0};
    struct tr_plan plan = {0};
    int rc = describe(s, &shadow, deadline_ns, &build, err);
    if (rc >= 0)
        rc = describe(s, &mirror, deadline_ns, &there, err);
    /* The build first: one that was made again, because a crash came between its swap and the note of it, is ahead of the mirror. */
    bool have_build = rc >= 0 && build.exists && build.ours && build.note.snapshot_id == snapshot_id;
    bool done = rc >= 0 && !have_build && there.exists && there.ours && there.note.snapshot_id == snapshot_id;
    if (rc >= 0)
        rc = check_owner(s, &mirror, &n, &there, err);
    if (rc >= 0 && !done && !have_build)
        rc = removed(s, "the build of table", &mirror, &n, err);
    if (rc >= 0 && !done)
        rc = tr_sqlsink_want(s, table_kind(s, sc, TR_TARGET_MIRROR), sc, mirror.ns, mirror.name, &w, err);
    if (rc >= 0 && !done)
        rc = tr_plan_swap(&w, &there, shadow.name, &build, &plan, err);
    if (rc >= 0)
        rc = execute(s, &plan, deadline_ns, err);
    uint64_t now = 0;
    struct tr_err why;
    if (rc == TR_REJECT && plan.n && there.note.snapshot_id != snapshot_id && tr_sqlsink_built(ts, sc, deadline_ns, &now, &why) >= 0 && now == snapshot_id)
        rc = TR_OK; /* as in fit: an earlier request had it through */
    tr_plan_done(&plan);
    tr_want_done(&w);
    tr_table_desc_done(&there);
    tr_table_desc_done(&build);
    return rc;
}

int tr_sqlsink_built(struct tr_sink *ts, const struct tr_schema *sc, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err)
{
    struct tr_sqlsink *s = of(ts);
    struct place p = place_of(s, sc, TR_TARGET_MIRROR);
    struct tr_table_desc d;
    int rc = describe(s, &p, deadline_ns, &d, err);
    struct tr_table_note n = note_of(sc, TR_TARGET_MIRROR);
    *ret_snapshot_id = rc >= 0 && d.exists && d.ours && !strcmp(d.note.source, n.source) ? d.note.snapshot_id : 0;
    tr_table_desc_done(&d);
    return rc;
}

/* ---- life ---- */

int tr_sqlsink_encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    (void)s;
    (void)t;
    return tr_sqlbatch_encoder_new(ret, err);
}

void tr_sqlsink_init(struct tr_sqlsink *s, const struct tr_sink_ops *ops, enum tr_dialect d, struct tr_catalog *catalog, const struct tr_component_env *env)
{
    *s = (struct tr_sqlsink){.sink = {.ops = ops, .caps = TR_SQLSINK_CAPS, .shards = 1, .n_endpoints = 1},
                             .catalog = catalog,
                             .dialect = d,
                             .meta_ns = "",
                             .lease_token = env->lease_token,
                             .hard_delete = env->hard_delete};
    snprintf(s->name, sizeof s->name, "%s", env->name);
    snprintf(s->what, sizeof s->what, "sink %s", s->name);
    tr_list_init(&s->targets);
}

void tr_sqlsink_done(struct tr_sqlsink *s)
{
    struct tr_list *l;
    while ((l = tr_list_pop_front(&s->targets))) {
        struct tr_sqltarget *t = tr_container_of(l, struct tr_sqltarget, link);
        tr_sqlm_done(&t->m);
        tr_schema_unref(t->schema);
        tr_free(t);
    }
}
