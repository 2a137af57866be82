#include "rowimage.h"

#include "cursor.h"

int tr_rowimage_encode(const struct tr_row *row, struct tr_buf *out)
{
    uint32_t n = row->n;
    size_t need = TR_VARINT_MAX + (n + 3) / 4;
    for (uint32_t i = 0; i < n; i++)
        if (row->state[i] == TR_PRESENT)
            need += TR_VARINT_MAX + row->v[i].n;
    if (tr_buf_reserve(out, need) < 0)
        return TR_NOMEM;
    tr_buf_put_varint(out, n);
    for (uint32_t i = 0; i < n; i += 4) {
        unsigned b = 0;
        for (uint32_t j = 0; j < 4 && i + j < n; j++)
            b |= (unsigned)(row->state[i + j] & 3) << (2 * j);
        tr_buf_put_u8(out, (uint8_t)b);
    }
    for (uint32_t i = 0; i < n; i++)
        if (row->state[i] == TR_PRESENT) {
            tr_buf_put_varint(out, row->v[i].n);
            tr_buf_put(out, row->v[i].p, row->v[i].n);
        }
    return TR_OK;
}

int tr_rowimage_decode(struct tr_slice image, uint32_t cap, struct tr_slice *v, uint8_t *state, struct tr_row *ret, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(image);
    uint64_t n = image.n ? tr_cur_varint(&c) : 0;
    if (n > cap)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a row image holds %llu columns where the schema has %u", (unsigned long long)n, cap);
    struct tr_slice bits = tr_cur_bytes(&c, (size_t)(n + 3) / 4);
    if (n % 4 && bits.n && bits.p[bits.n - 1] >> (2 * (n % 4))) /* states of columns that it does not hold */
        tr_cur_fail(&c);
    if (!tr_cur_ok(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a row image of %zu bytes is cut off, or states columns beyond its own", image.n);
    for (uint32_t i = 0; i < n; i++) {
        state[i] = (bits.p[i / 4] >> (2 * (i % 4))) & 3;
        v[i] = state[i] == TR_PRESENT ? tr_cur_bytes(&c, tr_cur_varint(&c)) : (struct tr_slice){NULL, 0};
    }
    if (!tr_cur_done(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a row image of %zu bytes is malformed", image.n);
    *ret = (struct tr_row){.v = v, .state = state, .n = (uint32_t)n};
    return TR_OK;
}
