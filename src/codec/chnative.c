#include "chnative.h"

#include "alloc.h"
#include "check.h"

/* A column, or one within: of elements, keys, values. */
struct node {
    const struct tr_ch_type *type; /* tells Nullable */
    const struct tr_ch_type *value;
    struct tr_buf data, nulls;  /* scalars, or the offsets of an ARRAY or a MAP; a flag a row */
    struct node *inner;         /* value->n of them where there are inner types */
    uint64_t rows;
    size_t mark_data, mark_nulls; /* before the latest cell */
    uint64_t mark_rows;
    struct tr_ch_from from;     /* of columns only */
};

struct tr_chnative {
    struct node *columns;
    struct tr_buf *heads; /* name and type as they stand before the data */
    uint32_t n;
    uint64_t rows;
    struct tr_buf scratch;
};

static int no_memory(struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a Native block");
}

static bool has_offsets(const struct tr_ch_type *v)
{
    return v->kind == TR_CH_ARRAY || v->kind == TR_CH_MAP;
}

static uint32_t n_inner(const struct tr_ch_type *v)
{
    return v->depth ? v->n : 0;
}

/* ---- birth and death ---- */

static int node_init(struct node *c, const struct tr_ch_type *t)
{
    c->type = t;
    c->value = t->value;
    uint32_t n = n_inner(c->value);
    if (!n)
        return TR_OK;
    c->inner = tr_calloc(n, sizeof *c->inner);
    if (!c->inner)
        return TR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (node_init(&c->inner[i], c->value->of[i]) < 0)
            return TR_NOMEM;
    return TR_OK;
}

static void node_done(struct node *c)
{
    for (uint32_t i = 0; c->inner && i < n_inner(c->value); i++)
        node_done(&c->inner[i]);
    tr_free(c->inner);
    tr_buf_done(&c->data);
    tr_buf_done(&c->nulls);
}

static int head_init(struct tr_buf *head, const struct tr_chnative_column *def, struct tr_buf *text)
{
    tr_buf_clear(text);
    if (tr_ch_type_print(def->type, true, text) < 0 || tr_buf_append_varint(head, def->name.n) < 0 || tr_buf_append_slice(head, def->name) < 0 ||
        tr_buf_append_varint(head, text->n) < 0)
        return TR_NOMEM;
    return tr_buf_append_slice(head, tr_buf_slice(text));
}

int tr_chnative_new(const struct tr_chnative_column *columns, uint32_t n, struct tr_chnative **ret, struct tr_err *err)
{
    struct tr_chnative *b = tr_calloc(1, sizeof *b);
    int rc = TR_NOMEM;
    if (!b)
        return no_memory(err);
    b->columns = tr_calloc(n ? n : 1, sizeof *b->columns);
    b->heads = tr_calloc(n ? n : 1, sizeof *b->heads);
    if (b->columns && b->heads)
        for (rc = TR_OK; rc == TR_OK && b->n < n; b->n++) {
            b->columns[b->n].from = columns[b->n].from;
            rc = node_init(&b->columns[b->n], columns[b->n].type);
            if (rc == TR_OK)
                rc = head_init(&b->heads[b->n], &columns[b->n], &b->scratch);
        }
    if (rc < 0) {
        tr_chnative_free(b);
        return no_memory(err);
    }
    *ret = b;
    return TR_OK;
}

struct tr_chnative *tr_chnative_free(struct tr_chnative *b)
{
    if (!b)
        return NULL;
    for (uint32_t i = 0; i < b->n; i++) {
        node_done(&b->columns[i]);
        tr_buf_done(&b->heads[i]);
    }
    tr_free(b->columns);
    tr_free(b->heads);
    tr_buf_done(&b->scratch);
    tr_free(b);
    return NULL;
}

/* ---- cells ---- */

static inline void mark(struct node *c)
{
    c->mark_data = c->data.n;
    c->mark_nulls = c->nulls.n;
    c->mark_rows = c->rows;
    for (uint32_t i = 0; c->inner && i < c->value->n; i++)
        mark(&c->inner[i]);
}

static void restore(struct node *c)
{
    c->data.n = c->mark_data;
    c->nulls.n = c->mark_nulls;
    c->rows = c->mark_rows;
    for (uint32_t i = 0; c->inner && i < c->value->n; i++)
        restore(&c->inner[i]);
}

/* The value below a NULL is zeros, whatever the type's default is; but of an Enum it is a member, since some functions of the server look at it. */
static int put_null(struct node *c)
{
    const struct tr_ch_type *v = c->value;
    uint32_t width = v->width ? v->width : 1; /* 1: the length of String's '' */
    if (tr_buf_reserve(&c->data, width) < 0 || tr_buf_append_u8(&c->nulls, 1) < 0)
        return TR_NOMEM;
    if (v->kind == TR_CH_ENUM8 || v->kind == TR_CH_ENUM16) {
        if (tr_ch_value_append_default(v, &c->data) < 0)
            return TR_NOMEM;
    } else {
        memset(c->data.p + c->data.n, 0, width);
        c->data.n += width;
    }
    c->rows++;
    return TR_OK;
}

static int put_default(struct node *c)
{
    const struct tr_ch_type *v = c->value;
    int rc = TR_OK;
    if (c->type->nullable)
        return put_null(c);
    if (has_offsets(v))
        rc = tr_buf_append_u64le(&c->data, c->inner[0].rows);
    else if (v->kind == TR_CH_TUPLE)
        for (uint32_t i = 0; rc == TR_OK && i < v->n; i++)
            rc = put_default(&c->inner[i]);
    else
        rc = tr_ch_value_append_default(v, &c->data);
    if (rc == TR_OK)
        c->rows++;
    return rc;
}

static int put(struct node *c, struct tr_ch_from from, const struct tr_slice *text, uint8_t *scratch, struct tr_err *err);

static int part(void *ctx, uint32_t inner, const struct tr_slice *text, struct tr_ch_from from, uint8_t *scratch, struct tr_err *err)
{
    struct node *c = ctx;
    return put(&c->inner[inner], from, text, scratch, err);
}

static int put_parts(struct node *c, struct tr_ch_from from, struct tr_slice text, uint8_t *scratch, struct tr_err *err)
{
    uint64_t n;
    int rc = tr_ch_value_parts(c->value, from, text, scratch, part, c, &n, err);
    if (rc == TR_OK && has_offsets(c->value) && tr_buf_append_u64le(&c->data, c->inner[0].rows) < 0)
        return no_memory(err);
    return rc;
}

static int put(struct node *c, struct tr_ch_from from, const struct tr_slice *text, uint8_t *scratch, struct tr_err *err)
{
    if (!text) {
        if (!c->type->nullable)
            return tr_ch_value_no_null(c->type, err);
        return put_null(c) < 0 ? no_memory(err) : TR_OK;
    }
    if (c->type->nullable && tr_buf_append_u8(&c->nulls, 0) < 0)
        return no_memory(err);
    int rc = c->inner ? put_parts(c, from, *text, scratch, err) : tr_ch_value_append(c->value, from.type, *text, &c->data, err);
    if (rc == TR_OK)
        c->rows++;
    return rc;
}

int tr_chnative_cell(struct tr_chnative *b, uint32_t column, const struct tr_slice *text, struct tr_err *err)
{
    TR_ASSERT(column < b->n && b->columns[column].rows == b->rows);
    struct node *c = &b->columns[column];
    if (c->inner && text && tr_buf_reserve(&b->scratch, c->type->depth * text->n) < 0)
        return no_memory(err);
    mark(c);
    int rc = put(c, c->from, text, b->scratch.p, err);
    if (rc < 0)
        restore(c);
    return rc;
}

int tr_chnative_default(struct tr_chnative *b, uint32_t column, struct tr_err *err)
{
    TR_ASSERT(column < b->n && b->columns[column].rows == b->rows);
    struct node *c = &b->columns[column];
    mark(c);
    if (put_default(c) == TR_OK)
        return TR_OK;
    restore(c);
    return no_memory(err);
}

void tr_chnative_row(struct tr_chnative *b)
{
    b->rows++;
    for (uint32_t i = 0; i < b->n; i++)
        TR_ASSERT(b->columns[i].rows == b->rows);
}

void tr_chnative_drop(struct tr_chnative *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (b->columns[i].rows != b->rows)
            restore(&b->columns[i]);
}

/* ---- the block ---- */

uint64_t tr_chnative_rows(const struct tr_chnative *b)
{
    return b->rows;
}

static size_t node_bytes(const struct node *c)
{
    size_t n = c->data.n + c->nulls.n;
    for (uint32_t i = 0; c->inner && i < c->value->n; i++)
        n += node_bytes(&c->inner[i]);
    return n;
}

size_t tr_chnative_bytes(const struct tr_chnative *b)
{
    size_t n = 0;
    for (uint32_t i = 0; i < b->n; i++)
        n += node_bytes(&b->columns[i]);
    return n;
}

static void node_put(const struct node *c, struct tr_buf *out)
{
    tr_buf_put(out, c->nulls.p, c->nulls.n);
    tr_buf_put(out, c->data.p, c->data.n);
    for (uint32_t i = 0; c->inner && i < c->value->n; i++)
        node_put(&c->inner[i], out);
}

static void node_clear(struct node *c)
{
    tr_buf_clear(&c->data);
    tr_buf_clear(&c->nulls);
    c->rows = 0;
    for (uint32_t i = 0; c->inner && i < c->value->n; i++)
        node_clear(&c->inner[i]);
}

void tr_chnative_clear(struct tr_chnative *b)
{
    b->rows = 0;
    for (uint32_t i = 0; i < b->n; i++)
        node_clear(&b->columns[i]);
}

int tr_chnative_finish(struct tr_chnative *b, struct tr_buf *out, struct tr_err *err)
{
    size_t n = 2 * TR_VARINT_MAX + tr_chnative_bytes(b);
    if (!b->rows)
        return TR_OK;
    for (uint32_t i = 0; i < b->n; i++) {
        TR_ASSERT(b->columns[i].rows == b->rows);
        n += b->heads[i].n;
    }
    if (tr_buf_reserve(out, n) < 0)
        return no_memory(err);
    tr_buf_put_varint(out, b->n);
    tr_buf_put_varint(out, b->rows);
    for (uint32_t i = 0; i < b->n; i++) {
        tr_buf_put(out, b->heads[i].p, b->heads[i].n);
        node_put(&b->columns[i], out);
    }
    tr_chnative_clear(b);
    return TR_OK;
}
