#include "sqlbatch.h"

#include "alloc.h"
#include "frame.h"
#include "rowimage.h"

static int encode(struct tr_encoder *e, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        struct tr_change c = v[i];
        uint16_t flags = c.flags;
        /* apply's notes stand in the high byte, which a frame does not keep: NO_UPSERT and FILLED travel in otherwise unused fields */
        c.snapshot_id = flags >> 8;
        int rc = tr_frame_encode(&c, out, err);
        if (rc < 0) {
            *ret_done = i;
            return rc;
        }
    }
    *ret_done = n;
    return TR_OK;
}

static void free_encoder(struct tr_encoder *e)
{
    tr_free(e);
}

static const struct tr_encoder_ops ops = {.encode = encode, .free = free_encoder};

int tr_sqlbatch_encoder_new(struct tr_encoder **ret, struct tr_err *err)
{
    *ret = tr_calloc(1, sizeof **ret);
    if (!*ret)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for an encoder");
    (*ret)->ops = &ops;
    return TR_OK;
}

void tr_sqlbatch_begin(struct tr_sqlbatch_iter *it, const struct tr_part *part, const struct tr_schema *schema, struct tr_arena *arena)
{
    *it = (struct tr_sqlbatch_iter){.part = part, .schema = schema, .arena = arena};
}

static int image(struct tr_sqlbatch_iter *it, struct tr_slice bytes, struct tr_row *ret, struct tr_err *err)
{
    *ret = (struct tr_row){0};
    if (!bytes.n)
        return TR_OK;
    uint32_t n = it->schema->n_columns;
    struct tr_slice *v = tr_arena_alloc(it->arena, (n + 1) * sizeof *v);
    uint8_t *st = tr_arena_alloc_aligned(it->arena, n + 1, 1);
    if (!v || !st)
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for a row");
    return tr_rowimage_decode(bytes, n, v, st, ret, err);
}

int tr_sqlbatch_next(struct tr_sqlbatch_iter *it, struct tr_change *ret, struct tr_err *err)
{
    while (it->chunk < it->part->n && it->off >= it->part->v[it->chunk].bytes.n) {
        it->chunk++;
        it->off = 0;
    }
    if (it->chunk >= it->part->n)
        return TR_EOF;
    const struct tr_chunk *c = &it->part->v[it->chunk];
    struct tr_frame_body f;
    int rc = tr_frame_decode(tr_slice_sub(c->bytes, it->off, c->bytes.n), &f, err);
    if (rc >= 0) {
        it->off += f.head.length;
        *ret = f.change;
        ret->schema = it->schema;
        ret->flags |= (uint16_t)(f.change.snapshot_id << 8);
        ret->snapshot_id = 0;
        rc = image(it, f.image, &ret->after, err);
    }
    if (rc >= 0)
        rc = image(it, f.old_image, &ret->before, err);
    if (rc < 0 && rc != TR_RETRY && err)
        err->rc = rc = TR_FATAL; /* nobody but us has touched these bytes */
    return rc;
}
