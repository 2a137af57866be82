#include "frame.h"

#include "crc32c.h"
#include "cursor.h"
#include "rowimage.h"

static uint64_t zigzag(int64_t v)
{
    return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
}

/* The length of the image is known only when it is encoded: five bytes are kept free for it (a padded varint), so that it need not
 * be encoded twice or moved. */
static int put_image(struct tr_buf *out, const struct tr_row *row)
{
    if (row->n == 0)
        return tr_buf_append_u8(out, 0);
    size_t at = out->n;
    if (tr_buf_reserve(out, 5) < 0)
        return TR_NOMEM;
    out->n += 5;
    if (tr_rowimage_encode(row, out) < 0)
        return TR_NOMEM;
    size_t n = out->n - at - 5;
    for (int i = 0; i < 4; i++, n >>= 7)
        out->p[at + (size_t)i] = (uint8_t)(n | 0x80);
    out->p[at + 4] = (uint8_t)n;
    return TR_OK;
}

static int put_bytes(struct tr_buf *out, struct tr_slice s)
{
    if (tr_buf_reserve(out, s.n + TR_VARINT_MAX) < 0)
        return TR_NOMEM;
    tr_buf_put_varint(out, s.n);
    tr_buf_put(out, s.p, s.n);
    return TR_OK;
}

static int encode(const struct tr_change *c, uint8_t kind, struct tr_buf *out, struct tr_err *err)
{
    size_t at = out->n;
    if (tr_buf_reserve(out, TR_FRAME_HEADER + 11 * TR_VARINT_MAX) < 0)
        goto nomem;
    out->n += 8;
    tr_buf_put_u8(out, c->op);
    tr_buf_put_u8(out, (uint8_t)c->flags);
    tr_buf_put_u8(out, c->epoch);
    tr_buf_put_u8(out, kind);
    tr_buf_put_varint(out, c->schema ? c->schema->table_id : 0);
    tr_buf_put_varint(out, c->schema ? c->schema->version : 0);
    tr_buf_put_varint(out, c->version);
    tr_buf_put_varint(out, c->commit_lsn);
    tr_buf_put_varint(out, c->change_lsn);
    tr_buf_put_varint(out, c->end_lsn);
    tr_buf_put_varint(out, c->xid);
    tr_buf_put_varint(out, c->ordinal);
    tr_buf_put_varint(out, c->snapshot_id);
    tr_buf_put_varint(out, zigzag(c->commit_us));
    tr_buf_put_varint(out, zigzag(c->capture_us));
    if (put_bytes(out, c->key) < 0 || put_bytes(out, c->old_key) < 0 || put_image(out, &c->before) < 0 || put_image(out, &c->after) < 0 ||
        put_bytes(out, c->message) < 0)
        goto nomem;
    size_t n = out->n - at;
    if (n > TR_FRAME_MAX) {
        out->n = at;
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a change of %zu bytes in table %s.%s is larger than a frame may be (1 GiB)", n,
                          c->schema ? c->schema->ns : "", c->schema ? c->schema->name : "");
    }
    uint32_t len = htole32((uint32_t)(n - 4));
    memcpy(out->p + at, &len, 4);
    uint32_t crc = htole32(tr_crc32c(0, out->p + at + 8, n - 8));
    memcpy(out->p + at + 4, &crc, 4);
    return TR_OK;
nomem:
    out->n = at;
    return tr_err_set(err, TR_NOMEM, TR_DOM_CODEC, "no memory to encode a change");
}

int tr_frame_encode(const struct tr_change *c, struct tr_buf *out, struct tr_err *err)
{
    return encode(c, TR_FRAME_ORDINARY, out, err);
}

int tr_frame_encode_schema(const struct tr_schema *s, uint8_t epoch, uint8_t kind, struct tr_buf *out, struct tr_err *err)
{
    struct tr_buf def;
    tr_buf_init(&def);
    int rc = tr_schema_encode(s, &def);
    if (rc == TR_OK) {
        struct tr_change c = {.op = TR_OP_SCHEMA, .epoch = epoch, .schema = s, .message = tr_buf_slice(&def)};
        rc = encode(&c, kind, out, err);
    } else {
        tr_err_set(err, rc, TR_DOM_CODEC, "no memory to encode the schema of table %s.%s", s->ns, s->name);
    }
    tr_buf_done(&def);
    return rc;
}

int tr_frame_peek(struct tr_slice bytes, struct tr_frame_head *ret, struct tr_err *err)
{
    if (bytes.n < TR_FRAME_HEADER)
        return TR_AGAIN;
    struct tr_cur c = tr_cur_of(bytes);
    uint32_t len = tr_cur_le32(&c);
    tr_cur_le32(&c);
    if (len < TR_FRAME_HEADER - 4 || len > TR_FRAME_MAX - 4)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a frame says it is %u bytes long", len);
    ret->length = len + 4;
    ret->op = tr_cur_u8(&c);
    ret->flags = tr_cur_u8(&c);
    ret->epoch = tr_cur_u8(&c);
    ret->kind = tr_cur_u8(&c);
    return bytes.n < ret->length ? TR_AGAIN : TR_OK;
}

int tr_frame_decode(struct tr_slice bytes, struct tr_frame_body *ret, struct tr_err *err)
{
    memset(ret, 0, sizeof *ret);
    int rc = tr_frame_peek(bytes, &ret->head, err);
    if (rc == TR_AGAIN)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a frame is cut off after %zu bytes", bytes.n);
    if (rc < 0)
        return rc;
    struct tr_cur c = tr_cur_of(tr_slice_sub(bytes, 4, ret->head.length));
    uint32_t crc = tr_cur_le32(&c);
    if (crc != tr_crc32c(0, bytes.p + 8, ret->head.length - 8))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a frame of %u bytes fails its checksum", ret->head.length);
    tr_cur_bytes(&c, 4);
    struct tr_change *g = &ret->change;
    g->op = ret->head.op;
    g->flags = ret->head.flags;
    g->epoch = ret->head.epoch;
    ret->table_id = tr_cur_varint32(&c);
    ret->schema_version = tr_cur_varint32(&c);
    g->version = tr_cur_varint(&c);
    g->commit_lsn = tr_cur_varint(&c);
    g->change_lsn = tr_cur_varint(&c);
    g->end_lsn = tr_cur_varint(&c);
    g->xid = tr_cur_varint(&c);
    g->ordinal = tr_cur_varint32(&c);
    g->snapshot_id = tr_cur_varint(&c);
    g->commit_us = tr_cur_zigzag(&c);
    g->capture_us = tr_cur_zigzag(&c);
    g->key = tr_cur_bytes(&c, tr_cur_varint(&c));
    g->old_key = tr_cur_bytes(&c, tr_cur_varint(&c));
    ret->old_image = tr_cur_bytes(&c, tr_cur_varint(&c));
    ret->image = tr_cur_bytes(&c, tr_cur_varint(&c));
    g->message = tr_cur_bytes(&c, tr_cur_varint(&c));
    if (!tr_cur_done(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a %s frame of %u bytes is malformed", tr_op_name(g->op), ret->head.length);
    return TR_OK;
}
