/*
 * Parameters, in order:
 *   UPSERT     all columns, version
 *   PATCH      the columns that are set (key columns among them), version
 *   MOVE       the columns that are set, version, the old key's columns
 *   TOMBSTONE  key columns, version, time of the delete
 *   TRUNCATE   version, time
 *   LOG        epoch, commit LSN, ordinal, op, commit time, xid, version, unchanged columns, old key, all columns
 */
#include "sqlmirror.h"

#include <inttypes.h>
#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "key.h"
#include "text.h"

enum { LOG_OURS = 9 }; /* parameters of LOG before the table's own columns */

int tr_sqlm_init(struct tr_sqlm *m, enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *s, const char *ns, const char *name, struct tr_err *err)
{
    *m = (struct tr_sqlm){.dialect = d, .kind = kind, .schema = s, .ns = ns, .name = name, .n_rest = (uint16_t)(s->n_columns - s->n_key)};
    m->types = tr_calloc(s->n_columns + 1, sizeof *m->types);
    struct tr_buf b;
    tr_buf_init(&b);
    bool ok = m->types;
    for (uint32_t i = 0; i < s->n_columns && ok; i++) {
        tr_buf_clear(&b);
        ok = tr_sql_type(d, &s->columns[i], &b) >= 0 && (m->types[i] = tr_strndup(tr_buf_slice(&b)));
    }
    tr_buf_done(&b);
    if (ok)
        return TR_OK;
    tr_sqlm_done(m);
    return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for the statements of table %s", name);
}

void tr_sqlm_done(struct tr_sqlm *m)
{
    for (uint32_t i = 0; m->types && i < m->schema->n_columns; i++)
        tr_free(m->types[i]);
    tr_free(m->types);
    m->types = NULL;
}

/* ---- planning ---- */

struct planner {
    const struct tr_sqlm *m;
    struct tr_arena *a;
    struct tr_sqlm_param *v;
    uint32_t n;
    bool nomem;
};

static void param(struct planner *p, uint8_t type, bool null, struct tr_slice text)
{
    p->v[p->n++] = (struct tr_sqlm_param){.type = type, .null = null, .text = text};
}

static void param_text(struct planner *p, uint8_t type, const char *s)
{
    struct tr_slice d = tr_arena_dup(p->a, tr_slice_str(s));
    p->nomem |= !d.p;
    param(p, type, false, d);
}

static void param_u64(struct planner *p, uint64_t v)
{
    char s[24];
    snprintf(s, sizeof s, "%" PRIu64, v);
    param_text(p, TR_TYPE_INT64, s);
}

static void param_time(struct planner *p, int64_t us)
{
    char utc[TR_UTC_CHARS], s[TR_UTC_CHARS + 3];
    snprintf(s, sizeof s, "%s+00", tr_format_utc(us, utc));
    param_text(p, TR_TYPE_TIMESTAMPTZ, s);
}

static void param_column(struct planner *p, uint32_t i, const struct tr_row *r)
{
    bool there = i < r->n && r->state[i] == TR_PRESENT;
    param(p, p->m->schema->columns[i].type, !there, there ? r->v[i] : (struct tr_slice){NULL, 0});
}

static bool start(struct planner *p, const struct tr_sqlm *m, struct tr_arena *a)
{
    *p = (struct planner){.m = m, .a = a, .v = tr_arena_alloc(a, (2 * (size_t)m->schema->n_columns + 12) * sizeof *p->v)};
    return p->v;
}

static void finish(const struct planner *p, enum tr_sqlm_kind kind, const uint8_t *left_out, struct tr_sqlm_step *s)
{
    *s = (struct tr_sqlm_step){.kind = kind, .left_out = left_out, .params = p->v, .n = p->n};
}

static int param_key(struct planner *p, struct tr_slice key, struct tr_err *err)
{
    const struct tr_schema *s = p->m->schema;
    struct tr_slice *cols = tr_arena_alloc(p->a, (s->n_key + 1) * sizeof *cols);
    if (!cols) {
        p->nomem = true;
        return TR_OK;
    }
    int rc = tr_key_decode(key, s->n_key, cols, err);
    for (uint32_t k = 0; k < s->n_key && rc >= 0; k++)
        param(p, s->columns[s->key[k]].type, false, cols[k]);
    return rc;
}

static int no_memory(struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory to plan a statement");
}

static int tombstone(const struct tr_sqlm *m, const struct tr_change *g, struct tr_slice key, uint64_t version, struct tr_arena *a, struct tr_sqlm_step *s,
                     struct tr_err *err)
{
    struct planner p;
    if (!start(&p, m, a))
        return no_memory(err);
    int rc = param_key(&p, key, err);
    param_u64(&p, version);
    if (m->kind == TR_TABLE_MIRROR_SOFT)
        param_time(&p, g->commit_us);
    finish(&p, TR_SQLM_TOMBSTONE, NULL, s);
    return rc < 0 ? rc : p.nomem ? no_memory(err) : TR_OK;
}

/* SQLite compares numeric keys as text: they are stored in the canonical form that equality rests on (codec/key.h). */
static int canonical_key(struct planner *p, const struct tr_change *g, struct tr_slice **ret, struct tr_err *err)
{
    *ret = NULL;
    if (p->m->dialect != TR_DIALECT_SQLITE)
        return TR_OK;
    *ret = tr_arena_alloc(p->a, (p->m->schema->n_key + 1) * sizeof **ret);
    return *ret ? tr_key_decode(g->key, p->m->schema->n_key, *ret, err) : no_memory(err);
}

static int upsert(const struct tr_sqlm *m, const struct tr_change *g, uint64_t version, struct tr_arena *a, struct tr_sqlm_step *s, struct tr_err *err)
{
    struct planner p;
    const struct tr_schema *sc = m->schema;
    if (!start(&p, m, a))
        return no_memory(err);
    bool open = false;
    for (uint32_t i = 0; i < g->after.n; i++)
        open |= g->after.state[i] == TR_UNCHANGED;
    uint8_t *out = NULL;
    if (open && !(out = tr_arena_calloc(a, sc->n_columns, 1)))
        return no_memory(err);
    struct tr_slice *key;
    int rc = canonical_key(&p, g, &key, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < sc->n_columns; i++) {
        if (open && i < g->after.n && g->after.state[i] == TR_UNCHANGED)
            out[i] = 1;
        else if (key && sc->columns[i].key_pos)
            param(&p, sc->columns[i].type, false, key[sc->columns[i].key_pos - 1]);
        else
            param_column(&p, i, &g->after);
    }
    param_u64(&p, version);
    bool moved = g->flags & TR_CHG_MOVED;
    if (open && moved)
        rc = param_key(&p, g->old_key, err);
    finish(&p, !open ? TR_SQLM_UPSERT : moved ? TR_SQLM_MOVE : TR_SQLM_PATCH, out, s);
    return rc < 0 ? rc : p.nomem ? no_memory(err) : TR_OK;
}

static int unchanged_names(const struct tr_sqlm *m, const struct tr_change *g, struct tr_buf *b)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < g->after.n && rc >= 0; i++)
        if (g->after.state[i] == TR_UNCHANGED) {
            rc = tr_buf_append_str(b, b->n ? ", " : "[");
            if (rc >= 0)
                rc = tr_json_string(b, tr_slice_str(m->schema->columns[i].name));
        }
    return rc >= 0 && b->n ? tr_buf_append_u8(b, ']') : rc;
}

static int old_key_json(const struct tr_sqlm *m, const struct tr_change *g, struct tr_arena *a, struct tr_buf *b, struct tr_err *err)
{
    uint32_t n = m->schema->n_key;
    struct tr_slice *cols = tr_arena_alloc(a, (n + 1) * sizeof *cols);
    if (!cols)
        return TR_NOMEM;
    int rc = tr_key_decode(g->old_key, n, cols, err);
    for (uint32_t k = 0; k < n && rc >= 0; k++) {
        rc = tr_buf_append_str(b, k ? ", " : "[");
        if (rc >= 0)
            rc = tr_json_string(b, cols[k]);
    }
    return rc >= 0 ? tr_buf_append_u8(b, ']') : rc;
}

static int log_row(const struct tr_sqlm *m, const struct tr_change *g, struct tr_arena *a, struct tr_sqlm_step *s, struct tr_err *err)
{
    struct planner p;
    if (!start(&p, m, a))
        return no_memory(err);
    param_u64(&p, g->epoch);
    param_u64(&p, g->commit_lsn);
    param_u64(&p, g->ordinal);
    param_text(&p, TR_TYPE_TEXT, tr_op_name(g->op));
    param_time(&p, g->commit_us);
    param_u64(&p, g->xid);
    param_u64(&p, g->version);
    struct tr_buf b;
    tr_buf_init(&b);
    int rc = unchanged_names(m, g, &b);
    struct tr_slice d = b.n ? tr_arena_dup(a, tr_buf_slice(&b)) : (struct tr_slice){NULL, 0};
    param(&p, TR_TYPE_TEXT, !b.n, d);
    tr_buf_clear(&b);
    if (rc >= 0 && (g->flags & TR_CHG_MOVED))
        rc = old_key_json(m, g, a, &b, err);
    d = b.n ? tr_arena_dup(a, tr_buf_slice(&b)) : (struct tr_slice){NULL, 0};
    param(&p, TR_TYPE_TEXT, !b.n, d);
    tr_buf_done(&b);
    const struct tr_row *r = g->op == TR_OP_DELETE ? &g->before : &g->after;
    for (uint32_t i = 0; i < m->schema->n_columns; i++)
        param_column(&p, i, r);
    finish(&p, TR_SQLM_LOG, NULL, s);
    return rc < 0 || p.nomem ? no_memory(err) : TR_OK;
}

int tr_sqlm_plan(const struct tr_sqlm *m, const struct tr_change *g, struct tr_arena *a, struct tr_sqlm_step steps[2], struct tr_err *err)
{
    int rc;
    if (m->kind == TR_TABLE_LOG) {
        rc = log_row(m, g, a, &steps[0], err);
        return rc < 0 ? rc : 1;
    }
    switch (g->op) {
    case TR_OP_DELETE:
        rc = tombstone(m, g, g->key, g->version, a, &steps[0], err);
        return rc < 0 ? rc : 1;
    case TR_OP_TRUNCATE: {
        struct planner p;
        if (!start(&p, m, a))
            return no_memory(err);
        param_u64(&p, g->version);
        if (m->kind == TR_TABLE_MIRROR_SOFT)
            param_time(&p, g->commit_us);
        finish(&p, TR_SQLM_TRUNCATE, NULL, &steps[0]);
        return p.nomem ? no_memory(err) : 1;
    }
    case TR_OP_READ:
    case TR_OP_INSERT:
    case TR_OP_UPDATE:
    case TR_OP_HEARTBEAT:
        break;
    default:
        return 0;
    }
    int n = 0;
    bool moved = g->flags & TR_CHG_MOVED;
    if (!(g->flags & TR_CHG_NO_UPSERT)) {
        rc = upsert(m, g, g->version + moved, a, &steps[n++], err);
        if (rc < 0)
            return rc;
    }
    if (moved) {
        rc = tombstone(m, g, g->old_key, g->version, a, &steps[n++], err);
        if (rc < 0)
            return rc;
    }
    return n;
}

int tr_sqlm_param_column(const struct tr_schema *s, enum tr_sqlm_kind kind, const uint8_t *left_out, uint32_t n)
{
    if (kind == TR_SQLM_TOMBSTONE)
        return n && n <= s->n_key ? s->key[n - 1] : -1;
    if (kind == TR_SQLM_TRUNCATE)
        return -1;
    uint32_t at = kind == TR_SQLM_LOG ? LOG_OURS : 0;
    for (uint32_t i = 0; i < s->n_columns; i++)
        if (!(left_out && left_out[i]) && ++at == n)
            return (int)i;
    return -1;
}

/* ---- texts ---- */

struct writer {
    const struct tr_sqlm *m;
    struct tr_buf *out;
    int rc;
    uint32_t next; /* placeholder */
    bool run;      /* values come from arrays, u(c1, c2, …) */
};

static void lit(struct writer *w, const char *s)
{
    if (w->rc >= 0)
        w->rc = tr_buf_append_str(w->out, s);
}

static void ident(struct writer *w, const char *s)
{
    if (w->rc >= 0)
        w->rc = tr_quote_ident(w->out, tr_slice_str(s));
}

static void table(struct writer *w)
{
    if (w->rc >= 0)
        w->rc = tr_sql_name(w->m->ns, w->m->name, w->out);
}

static void hold_n(struct writer *w, uint32_t n, const char *type)
{
    bool pg = w->m->dialect == TR_DIALECT_POSTGRES;
    if (w->rc >= 0)
        w->rc = pg ? tr_buf_printf(w->out, "$%u::%s", n, type) : tr_buf_printf(w->out, "?%u", n);
}

/* An array of arrays is no array of its elements, and box has a delimiter of its own: both travel as text. */
static bool as_text(const char *type)
{
    size_t n = strlen(type);
    return !strcmp(type, "box") || (n > 2 && !strcmp(type + n - 2, "[]"));
}

static void hold(struct writer *w, const char *type)
{
    if (!w->run)
        hold_n(w, w->next++, type);
    else if (w->rc >= 0)
        w->rc = tr_buf_printf(w->out, as_text(type) ? "u.c%u::%s" : "u.c%u", w->next, type);
    w->next += w->run;
}

static const char *col_name(const struct writer *w, uint32_t i)
{
    return w->m->schema->columns[i].name;
}

static bool set_by(const struct tr_sqlm_step *s, uint32_t i)
{
    return !s->left_out || !s->left_out[i];
}

#define BIG "bigint"
#define TSZ "timestamp with time zone"

/* col = placeholder AND … over the key, whose placeholders begin at first */
static void where_key(struct writer *w, uint32_t first)
{
    const struct tr_schema *s = w->m->schema;
    for (uint32_t k = 0; k < s->n_key; k++) {
        lit(w, k ? " AND " : "");
        ident(w, col_name(w, s->key[k]));
        lit(w, " = ");
        hold_n(w, first + k, w->m->types[s->key[k]]);
    }
}

static void conflict_key(struct writer *w)
{
    const struct tr_schema *s = w->m->schema;
    lit(w, " ON CONFLICT (");
    for (uint32_t k = 0; k < s->n_key; k++) {
        lit(w, k ? ", " : "");
        ident(w, col_name(w, s->key[k]));
    }
    lit(w, ") DO UPDATE SET ");
}

static bool soft(const struct writer *w)
{
    return w->m->kind == TR_TABLE_MIRROR_SOFT;
}

static void column_list(struct writer *w)
{
    lit(w, "INSERT INTO ");
    table(w);
    lit(w, " AS t (");
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++) {
        ident(w, col_name(w, i));
        lit(w, ", ");
    }
    lit(w, soft(w) ? "_tr_version, _tr_deleted, _tr_deleted_at)" : "_tr_version)");
}

static const char *no(const struct writer *w)
{
    return w->m->dialect == TR_DIALECT_POSTGRES ? "false" : "0";
}

static const char *yes(const struct writer *w)
{
    return w->m->dialect == TR_DIALECT_POSTGRES ? "true" : "1";
}

static void on_conflict_take_all(struct writer *w)
{
    conflict_key(w);
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++) {
        ident(w, col_name(w, i));
        lit(w, " = excluded.");
        ident(w, col_name(w, i));
        lit(w, ", ");
    }
    lit(w, "_tr_version = excluded._tr_version");
    if (soft(w))
        lit(w, ", _tr_deleted = excluded._tr_deleted, _tr_deleted_at = excluded._tr_deleted_at");
    lit(w, " WHERE t._tr_version < excluded._tr_version");
}

static void array(struct writer *w, const char *type)
{
    if (w->rc >= 0)
        w->rc = tr_buf_printf(w->out, "%s$%u::%s[]", w->next > 1 ? ", " : "", w->next, as_text(type) ? "text" : type);
    w->next++;
}

/* FROM unnest($1::t[], …) AS u(c1, …): the columns, between what stands before them in the statement and behind. */
static void from_arrays(struct writer *w, const char *const *before, size_t n_before, const char *const *behind, size_t n_behind)
{
    lit(w, " FROM unnest(");
    w->next = 1;
    for (size_t i = 0; i < n_before; i++)
        array(w, before[i]);
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++)
        array(w, w->m->types[i]);
    for (size_t i = 0; i < n_behind; i++)
        array(w, behind[i]);
    lit(w, ") AS u(");
    for (uint32_t i = 1; i < w->next && w->rc >= 0; i++)
        w->rc = tr_buf_printf(w->out, i > 1 ? ", c%u" : "c%u", i);
    lit(w, ")");
}

static void text_upsert(struct writer *w)
{
    static const char *const version[] = {BIG};
    column_list(w);
    lit(w, w->run ? " SELECT " : " VALUES (");
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++) {
        hold(w, w->m->types[i]);
        lit(w, ", ");
    }
    hold(w, BIG);
    if (soft(w)) {
        lit(w, ", ");
        lit(w, no(w));
        lit(w, ", NULL");
    }
    if (w->run)
        from_arrays(w, NULL, 0, version, 1);
    else
        lit(w, ")");
    on_conflict_take_all(w);
}

static void text_patch(struct writer *w, const struct tr_sqlm_step *s)
{
    const struct tr_schema *sc = w->m->schema;
    uint32_t at[TR_COLUMNS_MAX];
    lit(w, "UPDATE ");
    table(w);
    lit(w, " SET ");
    for (uint32_t i = 0; i < sc->n_columns; i++) {
        if (!set_by(s, i))
            continue;
        at[i] = w->next;
        ident(w, col_name(w, i));
        lit(w, " = ");
        hold(w, w->m->types[i]);
        lit(w, ", ");
    }
    lit(w, "_tr_version = ");
    uint32_t version = w->next;
    hold(w, BIG);
    lit(w, " WHERE ");
    for (uint32_t k = 0; k < sc->n_key; k++) {
        ident(w, col_name(w, sc->key[k]));
        lit(w, " = ");
        hold_n(w, at[sc->key[k]], w->m->types[sc->key[k]]);
        lit(w, " AND ");
    }
    lit(w, "_tr_version < ");
    hold_n(w, version, BIG);
    if (soft(w)) {
        lit(w, " AND NOT _tr_deleted");
    }
}

/* (SELECT rank, the columns that are left out FROM t WHERE key AND live) */
static void base(struct writer *w, const struct tr_sqlm_step *s, const char *rank, uint32_t first, const uint32_t *at)
{
    const struct tr_schema *sc = w->m->schema;
    lit(w, "SELECT ");
    lit(w, rank);
    lit(w, " AS _tr_rank");
    for (uint32_t i = 0; i < sc->n_columns; i++)
        if (!set_by(s, i)) {
            lit(w, ", ");
            ident(w, col_name(w, i));
        }
    lit(w, " FROM ");
    table(w);
    lit(w, " WHERE ");
    if (at) {
        for (uint32_t k = 0; k < sc->n_key; k++) {
            lit(w, k ? " AND " : "");
            ident(w, col_name(w, sc->key[k]));
            lit(w, " = ");
            hold_n(w, at[sc->key[k]], w->m->types[sc->key[k]]);
        }
    } else {
        where_key(w, first);
    }
    if (soft(w))
        lit(w, " AND NOT _tr_deleted");
}

static void text_move(struct writer *w, const struct tr_sqlm_step *s)
{
    const struct tr_schema *sc = w->m->schema;
    uint32_t at[TR_COLUMNS_MAX];
    column_list(w);
    lit(w, " SELECT ");
    for (uint32_t i = 0; i < sc->n_columns; i++) {
        at[i] = w->next;
        if (set_by(s, i)) {
            hold(w, w->m->types[i]);
        } else {
            lit(w, "b.");
            ident(w, col_name(w, i));
        }
        lit(w, ", ");
    }
    hold(w, BIG);
    if (soft(w)) {
        lit(w, ", ");
        lit(w, no(w));
        lit(w, ", NULL");
    }
    lit(w, " FROM (");
    base(w, s, "0", w->next, NULL);
    lit(w, " UNION ALL ");
    base(w, s, "1", 0, at);
    lit(w, " ORDER BY 1 LIMIT 1) AS b WHERE true");
    on_conflict_take_all(w);
}

static void text_tombstone(struct writer *w)
{
    const struct tr_schema *sc = w->m->schema;
    if (!soft(w)) {
        lit(w, "DELETE FROM ");
        table(w);
        lit(w, " WHERE ");
        where_key(w, 1);
        lit(w, " AND _tr_version < ");
        hold_n(w, sc->n_key + 1, BIG);
        return;
    }
    lit(w, "INSERT INTO ");
    table(w);
    lit(w, " AS t (");
    for (uint32_t k = 0; k < sc->n_key; k++) {
        ident(w, col_name(w, sc->key[k]));
        lit(w, ", ");
    }
    lit(w, "_tr_version, _tr_deleted, _tr_deleted_at) VALUES (");
    for (uint32_t k = 0; k < sc->n_key; k++) {
        hold(w, w->m->types[sc->key[k]]);
        lit(w, ", ");
    }
    hold(w, BIG);
    lit(w, ", ");
    lit(w, yes(w));
    lit(w, ", ");
    hold(w, TSZ);
    lit(w, ")");
    conflict_key(w);
    lit(w, "_tr_version = excluded._tr_version, _tr_deleted = excluded._tr_deleted, _tr_deleted_at = excluded._tr_deleted_at"
           " WHERE t._tr_version < excluded._tr_version");
}

static void text_truncate(struct writer *w)
{
    lit(w, soft(w) ? "UPDATE " : "DELETE FROM ");
    table(w);
    if (soft(w)) {
        lit(w, " SET _tr_version = ");
        hold_n(w, 1, BIG);
        lit(w, ", _tr_deleted_at = CASE WHEN _tr_deleted THEN _tr_deleted_at ELSE ");
        hold_n(w, 2, TSZ);
        lit(w, " END, _tr_deleted = ");
        lit(w, yes(w));
    }
    lit(w, " WHERE _tr_version < ");
    hold_n(w, 1, BIG);
}

static void text_log(struct writer *w)
{
    static const char *const ours[LOG_OURS] = {"_tr_epoch", "_tr_commit_lsn", "_tr_ordinal", "_tr_op", "_tr_commit_time", "_tr_xid", "_tr_version", "_tr_unchanged", "_tr_old_key"};
    static const char *const types[LOG_OURS] = {BIG, BIG, BIG, "text", TSZ, BIG, BIG, "text", "text"};
    lit(w, "INSERT INTO ");
    table(w);
    lit(w, " (");
    for (size_t i = 0; i < TR_ARRAY_LEN(ours); i++) {
        lit(w, i ? ", " : "");
        lit(w, ours[i]);
    }
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++) {
        lit(w, ", ");
        ident(w, col_name(w, i));
    }
    lit(w, w->run ? ") SELECT " : ") VALUES (");
    for (size_t i = 0; i < TR_ARRAY_LEN(ours); i++) {
        lit(w, i ? ", " : "");
        hold(w, types[i]);
    }
    for (uint32_t i = 0; i < w->m->schema->n_columns; i++) {
        lit(w, ", ");
        hold(w, w->m->types[i]);
    }
    if (w->run)
        from_arrays(w, types, TR_ARRAY_LEN(types), NULL, 0);
    else
        lit(w, ")");
    lit(w, " ON CONFLICT DO NOTHING");
}

int tr_sqlm_text(const struct tr_sqlm *m, const struct tr_sqlm_step *s, struct tr_buf *out)
{
    struct writer w = {.m = m, .out = out, .next = 1};
    switch (s->kind) {
    case TR_SQLM_UPSERT: text_upsert(&w); break;
    case TR_SQLM_PATCH: text_patch(&w, s); break;
    case TR_SQLM_MOVE: text_move(&w, s); break;
    case TR_SQLM_TOMBSTONE: text_tombstone(&w); break;
    case TR_SQLM_TRUNCATE: text_truncate(&w); break;
    case TR_SQLM_LOG: text_log(&w); break;
    }
    return w.rc < 0 ? w.rc : TR_OK;
}

int tr_sqlm_text_run(const struct tr_sqlm *m, enum tr_sqlm_kind kind, struct tr_buf *out)
{
    struct writer w = {.m = m, .out = out, .next = 1, .run = true};
    TR_ASSERT(m->dialect == TR_DIALECT_POSTGRES && (kind == TR_SQLM_UPSERT || kind == TR_SQLM_LOG));
    if (kind == TR_SQLM_UPSERT)
        text_upsert(&w);
    else
        text_log(&w);
    return w.rc < 0 ? w.rc : TR_OK;
}
