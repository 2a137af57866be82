#include "key.h"

#include "cursor.h"
#include "hash.h"

/* "-0.50" and "-0.5" are one number to PostgreSQL; so is "-0" and "0". What is not digits (NaN, Infinity) stays as it is. */
static struct tr_slice canonical(uint8_t type, struct tr_slice v)
{
    if (type == TR_TYPE_DECIMAL) {
        if (v.n && memchr(v.p, '.', v.n)) {
            while (v.n && v.p[v.n - 1] == '0')
                v.n--;
            if (v.n && v.p[v.n - 1] == '.')
                v.n--;
        }
    }
    if ((type == TR_TYPE_DECIMAL || type == TR_TYPE_FLOAT32 || type == TR_TYPE_FLOAT64) && tr_slice_eq_str(v, "-0"))
        v = tr_slice_sub(v, 1, 2);
    return v;
}

int tr_key_encode(const struct tr_schema *s, const struct tr_row *row, struct tr_buf *out, struct tr_err *err)
{
    for (uint32_t k = 0; k < s->n_key; k++) {
        uint32_t i = s->key[k];
        if (i >= row->n || row->state[i] != TR_PRESENT)
            return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "key column %s of table %s.%s was not sent with a value", s->columns[i].name, s->ns,
                              s->name);
        struct tr_slice v = canonical(s->columns[i].type, row->v[i]);
        if (tr_buf_reserve(out, v.n + TR_VARINT_MAX) < 0)
            return tr_err_set(err, TR_NOMEM, TR_DOM_CODEC, "no memory for a key of table %s.%s", s->ns, s->name);
        tr_buf_put_varint(out, v.n);
        tr_buf_put(out, v.p, v.n);
    }
    return TR_OK;
}

int tr_key_decode(struct tr_slice key, uint32_t n_key, struct tr_slice *ret_cols, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(key);
    for (uint32_t i = 0; i < n_key; i++)
        ret_cols[i] = tr_cur_bytes(&c, tr_cur_varint(&c));
    if (!tr_cur_done(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "an encoded key of %zu bytes does not hold %u columns", key.n, n_key);
    return TR_OK;
}

uint64_t tr_key_hash(struct tr_slice key)
{
    return tr_hash64(key.p, key.n);
}
