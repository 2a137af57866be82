/*
 * ch_native.c: rows in RowBinary as one Native block (codec/chnative.h has its grammar): the same cells, column after column. It is made at each write of
 * the same frozen rows, and so is the same each time.
 *
 * The server converts what a block holds to the column's type without a word, where RowBinaryWithNamesAndTypes is refused: a column that a hand gave
 * another type is noticed at the next bind only.
 */
#include "alloc.h"
#include "ch_sink.h"
#include "check.h"

struct column {
    struct tr_buf nulls, data;
};

struct ch_native {
    struct column *v;
    uint32_t n;                /* of them; as many as the widest table so far has */
    struct tr_buf head;
};

struct ch_native *tr_ch_native_new(void)
{
    return tr_calloc(1, sizeof(struct ch_native));
}

struct ch_native *tr_ch_native_free(struct ch_native *b)
{
    for (uint32_t i = 0; b && i < b->n; i++) {
        tr_buf_done(&b->v[i].nulls);
        tr_buf_done(&b->v[i].data);
    }
    if (b) {
        tr_free(b->v);
        tr_buf_done(&b->head);
    }
    tr_free(b);
    return NULL;
}

static int reserve(struct ch_native *b, uint32_t n)
{
    if (n > b->n) {
        struct column *v = tr_realloc(b->v, n * sizeof *v);
        if (!v)
            return TR_NOMEM;
        memset(v + b->n, 0, (n - b->n) * sizeof *v);
        b->v = v;
        b->n = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        tr_buf_clear(&b->v[i].nulls);
        tr_buf_clear(&b->v[i].data);
    }
    tr_buf_clear(&b->head);
    return TR_OK;
}

/* A NULL's value is never looked at: zeros, or an empty String. */
static int put_null(struct column *c, uint32_t width)
{
    uint32_t n = width ? width : 1;
    if (tr_buf_append_u8(&c->nulls, 1) < 0 || tr_buf_reserve(&c->data, n) < 0)
        return TR_NOMEM;
    memset(c->data.p + c->data.n, 0, n);
    c->data.n += n;
    return TR_OK;
}

static int put_row(struct ch_native *b, const struct ch_table *t, struct tr_slice row)
{
    struct tr_cur c = tr_cur_of(row);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tr_ch_type *type = t->columns[i].type;
        int rc;
        if (type->nullable && tr_cur_u8(&c)) {
            rc = put_null(&b->v[i], type->value->width);
        } else {
            const uint8_t *from = c.p;
            tr_cur_bytes(&c, type->value->width ? type->value->width : tr_cur_varint(&c));
            rc = type->nullable ? tr_buf_append_u8(&b->v[i].nulls, 0) : TR_OK;
            if (rc >= 0)
                rc = tr_buf_append(&b->v[i].data, from, (size_t)(c.p - from));
        }
        if (rc < 0)
            return rc;
    }
    return tr_cur_done(&c) ? TR_OK : TR_FATAL;
}

int tr_ch_native_block(struct ch_native *b, const struct ch_table *t, const struct tr_slice *rows, size_t n, struct tr_slice *ret)
{
    int rc = reserve(b, t->n);
    for (size_t i = 0; i < n && rc >= 0; i++)
        rc = put_row(b, t, rows[i]);
    if (rc < 0 || tr_buf_append_varint(&b->head, t->n) < 0 || tr_buf_append_varint(&b->head, n) < 0)
        return rc < 0 ? rc : TR_NOMEM;
    ret[0] = tr_buf_slice(&b->head);
    for (uint32_t i = 0; i < t->n; i++) {
        ret[1 + 3 * i] = t->columns[i].head;
        ret[2 + 3 * i] = tr_buf_slice(&b->v[i].nulls);
        ret[3 + 3 * i] = tr_buf_slice(&b->v[i].data);
    }
    return TR_OK;
}
