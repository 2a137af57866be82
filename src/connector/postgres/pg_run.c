#include "pg_run.h"

#include "alloc.h"
#include "hash.h"

void tr_pg_run_done(struct pg_run *r)
{
    for (uint32_t i = 0; i < r->cap; i++)
        tr_buf_done(&r->columns[i]);
    tr_free(r->columns);
    r->columns = NULL;
    r->cap = 0;
}

void tr_pg_run_clear(struct pg_run *r)
{
    for (uint32_t i = 0; i < r->n_columns; i++)
        tr_buf_clear(&r->columns[i]);
    r->target = NULL;
    r->n = r->n_columns = 0;
    r->bytes = 0;
    memset(r->keys, 0, sizeof r->keys);
}

static uint64_t hash_of(struct tr_slice key)
{
    uint64_t h = tr_hash64(key.p, key.n);
    return h ? h : 1;
}

static uint32_t slot_of(const struct pg_run *r, uint64_t h)
{
    uint32_t i = (uint32_t)h % TR_ARRAY_LEN(r->keys);
    while (r->keys[i] && r->keys[i] != h)
        i = (i + 1) % TR_ARRAY_LEN(r->keys);
    return i;
}

bool tr_pg_run_suits(const struct tr_sqlm_step *s)
{
    return s->kind == TR_SQLM_UPSERT || s->kind == TR_SQLM_LOG;
}

bool tr_pg_run_takes(const struct pg_run *r, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_slice key)
{
    if (!r->target)
        return true;
    return t == r->target && s->kind == r->kind && (s->kind == TR_SQLM_LOG || !r->keys[slot_of(r, hash_of(key))]);
}

bool tr_pg_run_full(const struct pg_run *r)
{
    return r->n >= PG_RUN_ROWS || r->bytes >= PG_RUN_BYTES;
}

static int reserve_columns(struct pg_run *r, uint32_t n)
{
    if (n <= r->cap)
        return TR_OK;
    struct tr_buf *v = tr_realloc(r->columns, n * sizeof *v);
    if (!v)
        return TR_NOMEM;
    for (uint32_t i = r->cap; i < n; i++)
        tr_buf_init(&v[i]);
    r->columns = v;
    r->cap = n;
    return TR_OK;
}

/* An element of an array's text form: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO */
static void put_element(struct tr_buf *b, const struct tr_sqlm_param *p)
{
    tr_buf_put_u8(b, b->n ? ',' : '{');
    if (p->null) {
        tr_buf_put(b, "NULL", 4);
        return;
    }
    tr_buf_put_u8(b, '"');
    const uint8_t *from = p->text.p, *end = from + p->text.n;
    for (const uint8_t *q = from; q < end; q++) {
        if (*q != '"' && *q != '\\')
            continue;
        tr_buf_put(b, from, (size_t)(q - from));
        tr_buf_put_u8(b, '\\');
        from = q;
    }
    if (end > from)
        tr_buf_put(b, from, (size_t)(end - from));
    tr_buf_put_u8(b, '"');
}

int tr_pg_run_add(struct pg_run *r, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_slice key, uint32_t part)
{
    if (reserve_columns(r, s->n) < 0)
        return TR_NOMEM;
    for (uint32_t i = 0; i < s->n; i++)
        if (tr_buf_reserve(&r->columns[i], 2 * s->params[i].text.n + 8) < 0)
            return TR_NOMEM;
    for (uint32_t i = 0; i < s->n; i++) {
        put_element(&r->columns[i], &s->params[i]);
        r->bytes += s->params[i].text.n;
    }
    if (s->kind != TR_SQLM_LOG) {
        uint64_t h = hash_of(key);
        r->keys[slot_of(r, h)] = h;
    }
    r->target = t;
    r->kind = s->kind;
    r->part = part;
    r->n_columns = s->n;
    r->n++;
    return TR_OK;
}

int tr_pg_run_values(struct pg_run *r, const char **ret)
{
    for (uint32_t i = 0; i < r->n_columns; i++) {
        if (tr_buf_append_str(&r->columns[i], "}") < 0 || !(ret[i] = tr_buf_cstr(&r->columns[i])))
            return TR_NOMEM;
    }
    return TR_OK;
}
