#include "rowbinary.h"

void tr_rowbinary_done(struct tr_rowbinary *rb)
{
    tr_buf_done(&rb->scratch);
}

static int no_memory(struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a RowBinary row");
}

struct parts {
    const struct tr_ch_type *t;
    struct tr_buf *out;
};

static int cell(const struct tr_ch_type *t, struct tr_ch_from from, const struct tr_slice *text, uint8_t *scratch, struct tr_buf *out, struct tr_err *err);

static int part(void *ctx, uint32_t inner, const struct tr_slice *text, struct tr_ch_from from, uint8_t *scratch, struct tr_err *err)
{
    struct parts *p = ctx;
    return cell(p->t->of[inner], from, text, scratch, p->out, err);
}

/* The count stands before the elements and is known behind them: room for a short one, more is made if it is long. */
static int counted(const struct tr_ch_type *t, struct tr_ch_from from, struct tr_slice text, uint8_t *scratch, struct tr_buf *out, struct tr_err *err)
{
    struct parts p = {t, out};
    size_t at = out->n;
    uint64_t n = 0;
    if (tr_buf_append_u8(out, 0) < 0)
        return no_memory(err);
    int rc = tr_ch_value_parts(t, from, text, scratch, part, &p, &n, err);
    if (rc < 0)
        return rc;
    if (n < 0x80) {
        out->p[at] = (uint8_t)n;
        return TR_OK;
    }
    if (tr_buf_reserve(out, TR_VARINT_MAX) < 0)
        return no_memory(err);
    size_t end = out->n, extra = (size_t)(63 - __builtin_clzll(n)) / 7; /* bytes of the count beyond the first */
    memmove(out->p + at + 1 + extra, out->p + at + 1, end - at - 1);
    out->n = at;
    tr_buf_put_varint(out, n);
    out->n = end + extra;
    return TR_OK;
}

static int cell(const struct tr_ch_type *t, struct tr_ch_from from, const struct tr_slice *text, uint8_t *scratch, struct tr_buf *out, struct tr_err *err)
{
    const struct tr_ch_type *v = t->value;
    struct parts p = {v, out};
    uint64_t n;
    if (!text && !t->nullable)
        return tr_ch_value_no_null(t, err);
    if (t->nullable && tr_buf_append_u8(out, !text) < 0)
        return no_memory(err);
    if (!text)
        return TR_OK;
    switch (v->kind) {
    case TR_CH_ARRAY:
    case TR_CH_MAP:
        return counted(v, from, *text, scratch, out, err);
    case TR_CH_TUPLE:
        return tr_ch_value_parts(v, from, *text, scratch, part, &p, &n, err);
    default:
        return tr_ch_value_append(v, from.type, *text, out, err);
    }
}

int tr_rowbinary_cell(struct tr_rowbinary *rb, const struct tr_ch_type *t, struct tr_ch_from from, const struct tr_slice *text, struct tr_buf *out, struct tr_err *err)
{
    size_t n0 = out->n;
    if (t->depth && text && tr_buf_reserve(&rb->scratch, t->depth * text->n) < 0)
        return no_memory(err);
    int rc = cell(t, from, text, rb->scratch.p, out, err);
    if (rc < 0)
        out->n = n0;
    return rc;
}

static int append_default(const struct tr_ch_type *t, struct tr_buf *out)
{
    const struct tr_ch_type *v = t->value;
    if (t->nullable)
        return tr_buf_append_u8(out, 1);
    switch (v->kind) {
    case TR_CH_ARRAY:
    case TR_CH_MAP:
        return tr_buf_append_u8(out, 0);
    case TR_CH_TUPLE:
        for (uint32_t i = 0; i < v->n; i++)
            if (append_default(v->of[i], out) < 0)
                return TR_NOMEM;
        return TR_OK;
    default:
        return tr_ch_value_append_default(v, out);
    }
}

int tr_rowbinary_default(const struct tr_ch_type *t, struct tr_buf *out, struct tr_err *err)
{
    size_t n0 = out->n;
    if (append_default(t, out) == TR_OK)
        return TR_OK;
    out->n = n0;
    return no_memory(err);
}

static int string(struct tr_slice s, struct tr_buf *out)
{
    return tr_buf_append_varint(out, s.n) < 0 ? TR_NOMEM : tr_buf_append_slice(out, s);
}

static int header(const struct tr_slice *names, const struct tr_ch_type *const *types, uint32_t n, struct tr_buf *text, struct tr_buf *out)
{
    if (tr_buf_append_varint(out, n) < 0)
        return TR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (string(names[i], out) < 0)
            return TR_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        tr_buf_clear(text);
        if (tr_ch_type_print(types[i], false, text) < 0 || string(tr_buf_slice(text), out) < 0)
            return TR_NOMEM;
    }
    return TR_OK;
}

int tr_rowbinary_header(const struct tr_slice *names, const struct tr_ch_type *const *types, uint32_t n, struct tr_buf *out, struct tr_err *err)
{
    struct tr_buf text = {0};
    size_t n0 = out->n;
    int rc = header(names, types, n, &text, out);
    tr_buf_done(&text);
    if (rc == TR_OK)
        return TR_OK;
    out->n = n0;
    return no_memory(err);
}
