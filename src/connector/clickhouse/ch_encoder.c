/*
 * ch_encoder.c: changes into records (ch_sink.h). Every value is converted and checked here, so that what a table cannot hold pauses it at that very
 * row, by the column's name, and is never sent.
 */
#include <stdio.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "key.h"
#include "rowbinary.h"
#include "text.h"

struct ch_encoder {
    struct tr_encoder encoder;
    const struct tr_sqltarget *target;
    const struct ch_table *t;
    struct tr_rowbinary rb;
    struct tr_arena arena;
    bool whole;                /* a tombstone keeps the row's last values */
};

static int no_memory(const struct ch_encoder *e, struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a row of table %s", e->target->name);
}

static int cell(struct ch_encoder *e, uint32_t i, const struct tr_slice *text, struct tr_buf *out, struct tr_err *err)
{
    const struct ch_column *c = &e->t->columns[i];
    int rc = tr_rowbinary_cell(&e->rb, c->type, c->from, text, out, err);
    if (rc != TR_REJECT)
        return rc;
    const struct tr_schema *s = e->t->schema;
    bool theirs = i >= e->t->first && i - e->t->first < s->n_columns;
    return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "column %s of table %s.%s: %s; correct it at the source, or have the column kept as text (as_text of the sink), then take a new snapshot: tailrace table resnapshot %s.%s",
                      theirs ? s->columns[i - e->t->first].name : "_tr_…", s->ns, s->name, err ? err->msg : "", s->ns, s->name);
}

static int key_cells(struct ch_encoder *e, struct tr_slice key, struct tr_slice **ret, struct tr_err *err)
{
    uint32_t n = e->t->schema->n_key;
    *ret = tr_arena_alloc(&e->arena, (n + 1) * sizeof **ret);
    return *ret ? tr_key_decode(key, n, *ret, err) : no_memory(e, err);
}

/* _tr_version, _tr_deleted, _tr_deleted_at of a mirror that keeps tombstones; _tr_version alone of one that does not */
static int ours(struct ch_encoder *e, uint64_t version, bool deleted, int64_t at_us, struct tr_buf *out, struct tr_err *err)
{
    char utc[TR_UTC_CHARS], text[TR_UTC_CHARS + 3];
    if (tr_buf_append_u64le(out, version) < 0)
        return no_memory(e, err);
    if (e->t->kind != TR_TABLE_MIRROR_SOFT)
        return TR_OK;
    if (tr_buf_append_u8(out, deleted) < 0)
        return no_memory(e, err);
    if (!deleted)
        return cell(e, e->t->n - 1, NULL, out, err);
    snprintf(text, sizeof text, "%s+00", tr_format_utc(at_us, utc));
    struct tr_slice at = tr_slice_str(text);
    return cell(e, e->t->n - 1, &at, out, err);
}

/* The cells of a row of which nothing is unchanged; a column that the definition has and the row has not is NULL. */
static int columns(struct ch_encoder *e, const struct tr_row *r, const struct tr_slice *key, struct tr_buf *out, struct tr_err *err)
{
    const struct tr_schema *s = e->t->schema;
    for (uint32_t i = 0; i < s->n_columns; i++) {
        bool there = i < r->n && r->state[i] == TR_PRESENT;
        const struct tr_slice *v = s->columns[i].key_pos ? &key[s->columns[i].key_pos - 1] : there ? &r->v[i] : NULL;
        int rc = cell(e, e->t->first + i, v, out, err);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

static int whole(struct ch_encoder *e, const struct tr_change *g, uint64_t version, struct tr_buf *out, struct tr_err *err)
{
    struct tr_slice *key;
    size_t at = out->n;
    int rc = tr_ch_record_begin(CH_ROW, out) < 0 ? no_memory(e, err) : key_cells(e, g->key, &key, err);
    if (rc >= 0)
        rc = columns(e, &g->after, key, out, err);
    if (rc >= 0)
        rc = ours(e, version, false, 0, out, err);
    if (rc >= 0)
        tr_ch_record_end(out, at);
    return rc;
}

/* varint(n) and the cells of a key */
static int put_key(struct ch_encoder *e, const struct tr_slice *key, struct tr_buf *out, struct tr_err *err)
{
    const struct tr_schema *s = e->t->schema;
    struct tr_buf cells = {0};
    int rc = TR_OK;
    for (uint32_t k = 0; k < s->n_key && rc >= 0; k++)
        rc = cell(e, e->t->first + s->key[k], &key[k], &cells, err);
    if (rc >= 0 && (tr_buf_append_varint(out, cells.n) < 0 || tr_buf_append_slice(out, tr_buf_slice(&cells)) < 0))
        rc = no_memory(e, err);
    tr_buf_done(&cells);
    return rc;
}

/* r: NULL for a tombstone, of which the key alone is known. */
static int open_row(struct ch_encoder *e, enum ch_how how, uint64_t version, struct tr_slice key, struct tr_slice base, const struct tr_row *r, int64_t at_us, struct tr_buf *out,
                    struct tr_err *err)
{
    const struct tr_schema *s = e->t->schema;
    struct tr_slice *k, *b;
    size_t at = out->n;
    int rc = tr_ch_record_begin(CH_OPEN, out) < 0 || tr_buf_append_u8(out, (uint8_t)how) < 0 || tr_buf_append_u64le(out, version) < 0 ? no_memory(e, err) : key_cells(e, key, &k, err);
    if (rc >= 0)
        rc = put_key(e, k, out, err);
    if (rc >= 0 && base.n) {
        rc = key_cells(e, base, &b, err);
        if (rc >= 0)
            rc = put_key(e, b, out, err);
    } else if (rc >= 0 && tr_buf_append_u8(out, 0) < 0) {
        rc = no_memory(e, err);
    }
    size_t states = out->n;
    if (rc >= 0 && tr_buf_reserve(out, s->n_columns) < 0)
        rc = no_memory(e, err);
    if (rc >= 0) {
        for (uint32_t i = 0; i < s->n_columns; i++)
            out->p[states + i] = s->columns[i].key_pos || (r && !(i < r->n && r->state[i] == TR_UNCHANGED));
        out->n += s->n_columns;
    }
    for (uint32_t i = 0; i < s->n_columns && rc >= 0; i++) {
        bool there = r && i < r->n && r->state[i] == TR_PRESENT;
        if (out->p[states + i])
            rc = cell(e, e->t->first + i, s->columns[i].key_pos ? &k[s->columns[i].key_pos - 1] : there ? &r->v[i] : NULL, out, err);
    }
    if (rc >= 0)
        rc = ours(e, version, how == CH_TOMBSTONE, at_us, out, err);
    if (rc >= 0)
        tr_ch_record_end(out, at);
    return rc;
}

static int tombstone(struct ch_encoder *e, const struct tr_change *g, struct tr_slice key, struct tr_buf *out, struct tr_err *err)
{
    if (e->whole)
        return open_row(e, CH_TOMBSTONE, g->version, key, (struct tr_slice){NULL, 0}, NULL, g->commit_us, out, err);
    struct tr_slice *k;
    const struct tr_row none = {0};
    size_t at = out->n;
    int rc = tr_ch_record_begin(CH_ROW, out) < 0 ? no_memory(e, err) : key_cells(e, key, &k, err);
    if (rc >= 0)
        rc = columns(e, &none, k, out, err);
    if (rc >= 0)
        rc = ours(e, g->version, true, g->commit_us, out, err);
    if (rc >= 0)
        tr_ch_record_end(out, at);
    return rc;
}

static int truncate_record(struct ch_encoder *e, const struct tr_change *g, struct tr_buf *out, struct tr_err *err)
{
    size_t at = out->n;
    if (tr_ch_record_begin(CH_TRUNCATE, out) < 0 || tr_buf_append_u64le(out, g->version) < 0 || tr_buf_append_u64le(out, (uint64_t)g->commit_us) < 0)
        return no_memory(e, err);
    tr_ch_record_end(out, at);
    return TR_OK;
}

/* A row of a changelog: what the planner of SQL mirrors says, whose parameters are that table's columns in order. */
static int history(struct ch_encoder *e, const struct tr_change *g, struct tr_buf *out, struct tr_err *err)
{
    struct tr_sqlm_step step[2];
    size_t at = out->n;
    int rc = tr_sqlm_plan(&e->target->m, g, &e->arena, step, err);
    if (rc < 0)
        return rc == TR_RETRY ? no_memory(e, err) : rc;
    TR_ASSERT(rc == 1 && step[0].n == e->t->n);
    rc = tr_ch_record_begin(CH_ROW, out) < 0 ? no_memory(e, err) : TR_OK;
    for (uint32_t i = 0; i < step[0].n && rc >= 0; i++)
        rc = cell(e, i, step[0].params[i].null ? NULL : &step[0].params[i].text, out, err);
    if (rc >= 0)
        tr_ch_record_end(out, at);
    return rc;
}

static bool open_columns(const struct tr_row *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->state[i] == TR_UNCHANGED)
            return true;
    return false;
}

static int change(struct ch_encoder *e, const struct tr_change *g, struct tr_buf *out, struct tr_err *err)
{
    if (e->t->kind == TR_TABLE_LOG)
        return history(e, g, out, err);
    switch (g->op) {
    case TR_OP_DELETE:
        return tombstone(e, g, g->key, out, err);
    case TR_OP_TRUNCATE:
        return truncate_record(e, g, out, err);
    case TR_OP_READ:
    case TR_OP_INSERT:
    case TR_OP_UPDATE:
    case TR_OP_HEARTBEAT:
        break;
    default:
        return TR_OK;
    }
    bool moved = g->flags & TR_CHG_MOVED;
    int rc = TR_OK;
    if (!(g->flags & TR_CHG_NO_UPSERT)) {
        if (open_columns(&g->after))
            rc = open_row(e, moved ? CH_MOVE : CH_PATCH, g->version + moved, g->key, moved ? g->old_key : (struct tr_slice){NULL, 0}, &g->after, 0, out, err);
        else
            rc = whole(e, g, g->version + moved, out, err);
    }
    return rc >= 0 && moved ? tombstone(e, g, g->old_key, out, err) : rc;
}

static int encode(struct tr_encoder *te, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    struct ch_encoder *e = tr_container_of(te, struct ch_encoder, encoder);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = out->n;
        tr_arena_reset(&e->arena);
        int rc = change(e, &v[i], out, err);
        if (rc < 0) {
            out->n = at;
            *ret_done = i;
            return rc;
        }
    }
    *ret_done = n;
    return TR_OK;
}

static void free_encoder(struct tr_encoder *te)
{
    struct ch_encoder *e = tr_container_of(te, struct ch_encoder, encoder);
    tr_rowbinary_done(&e->rb);
    tr_arena_done(&e->arena);
    tr_free(e);
}

static const struct tr_encoder_ops ops = {.encode = encode, .free = free_encoder};

int tr_ch_encoder_new(struct tr_sink *ts, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    const struct ch_sink *s = tr_container_of(ts, struct ch_sink, sql.sink);
    if (tr_ch_table_of(t)->append)
        return tr_ch_append_encoder(tr_ch_table_of(t), ret, err);
    struct ch_encoder *e = tr_calloc(1, sizeof *e);
    if (!e)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for an encoder");
    e->encoder.ops = &ops;
    e->target = tr_sqltarget_of(t);
    e->t = tr_ch_table_of(t);
    e->whole = s->o->tombstone == TR_CH_TOMBSTONE_ROW;
    tr_arena_init(&e->arena, 16 << 10, 0);
    *ret = &e->encoder;
    return TR_OK;
}
