/*
 * One allocation holds the struct, its columns, the key and all strings, so that unref is one free and a schema can be
 * handed around without thinking about its parts.
 */
#include <tailrace/schema.h>

#include <stdatomic.h>
#include <stdlib.h>

#include "alloc.h"
#include "check.h"
#include "cursor.h"
#include "hash.h"

enum { SCHEMA_FORMAT = 1 };
enum { COL_NOT_NULL = 1, COL_GENERATED = 2, COL_HAS_FILL = 4, COL_HAS_DEFAULT = 8 };
enum { COL_BYTES_MIN = 9 }; /* two empty strings, type, flags, five numbers */

const char *tr_type_name(uint8_t type)
{
    switch (type) {
#define X(name, num, text)                                                                                             \
    case num:                                                                                                          \
        return text;
        TR_TYPE_LIST(X)
#undef X
    default:
        return "unknown";
    }
}

static bool type_known(uint8_t type)
{
    return type <= TR_TYPE_NETWORK;
}

static int check_def(const struct tr_schema_def *d, uint32_t *ret_n_key, struct tr_err *err)
{
    if (!d->ns || !d->name || !*d->name)
        return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "a table without a name");
    if (d->n_columns > TR_COLUMNS_MAX)
        return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "table %s.%s has %u columns; the limit is %d", d->ns, d->name, d->n_columns,
                          TR_COLUMNS_MAX);
    uint32_t n_key = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->n_columns; i++) {
        const struct tr_column *c = &d->columns[i];
        if (!c->name || !*c->name)
            return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "column %u of table %s.%s has no name", i + 1, d->ns, d->name);
        if (!type_known(c->type))
            return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "column %s of table %s.%s has unknown type number %u", c->name, d->ns, d->name,
                              c->type);
        if (c->key_pos) {
            n_key++;
            sum += c->key_pos;
        }
    }
    /* positions 1 … n_key, each once */
    uint32_t seen = 0;
    for (uint32_t p = 1; p <= n_key; p++)
        for (uint32_t i = 0; i < d->n_columns; i++)
            if (d->columns[i].key_pos == p) {
                seen++;
                break;
            }
    if (seen != n_key || sum != (uint64_t)n_key * (n_key + 1) / 2)
        return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "the key positions of table %s.%s are not 1 to %u", d->ns, d->name, n_key);
    *ret_n_key = n_key;
    return TR_OK;
}

static void hash_str(struct tr_hasher *h, const char *s)
{
    tr_hasher_add_u64(h, strlen(s));
    tr_hasher_add(h, s, strlen(s));
}

static uint64_t fingerprint(const struct tr_schema_def *d)
{
    struct tr_hasher h;
    tr_hasher_init(&h);
    hash_str(&h, d->ns);
    hash_str(&h, d->name);
    hash_str(&h, d->no_key_reason ? d->no_key_reason : "");
    tr_hasher_add_u64(&h, d->full_identity);
    tr_hasher_add_u64(&h, d->n_columns);
    for (uint32_t i = 0; i < d->n_columns; i++) {
        const struct tr_column *c = &d->columns[i];
        hash_str(&h, c->name);
        hash_str(&h, c->source_type ? c->source_type : "");
        tr_hasher_add_u64(&h, c->type);
        tr_hasher_add_u64(&h, c->key_pos);
        tr_hasher_add_u64(&h, (uint64_t)(int64_t)c->source_pos);
        tr_hasher_add_u64(&h, c->source_type_id);
        tr_hasher_add_u64(&h, (uint64_t)c->not_null | (uint64_t)c->generated << 1 | (uint64_t)c->has_default << 2 | (uint64_t)(c->fill_default != NULL) << 3);
        if (c->fill_default)
            hash_str(&h, c->fill_default);
    }
    struct tr_hash128 x = tr_hasher_end128(&h);
    return x.lo ^ x.hi;
}

static char *put_str(char **at, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = *at;
    memcpy(p, s, n);
    *at += n;
    return p;
}

int tr_schema_new(const struct tr_schema_def *d, struct tr_schema **ret, struct tr_err *err)
{
    uint32_t n_key = 0;
    int rc = check_def(d, &n_key, err);
    if (rc < 0)
        return rc;
    const char *reason = d->no_key_reason ? d->no_key_reason : "";
    size_t strings = strlen(d->ns) + strlen(d->name) + strlen(reason) + 3;
    for (uint32_t i = 0; i < d->n_columns; i++) {
        const struct tr_column *c = &d->columns[i];
        strings += strlen(c->name) + 1 + (c->source_type ? strlen(c->source_type) : 0) + 1 + (c->fill_default ? strlen(c->fill_default) + 1 : 0);
    }
    size_t cols_at = (sizeof(struct tr_schema) + 15) & ~(size_t)15;
    size_t key_at = cols_at + d->n_columns * sizeof(struct tr_column);
    size_t str_at = key_at + n_key * sizeof(uint16_t);
    uint8_t *mem = tr_calloc(1, str_at + strings);
    if (!mem)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for the schema of table %s.%s", d->ns, d->name);
    struct tr_schema *s = (struct tr_schema *)(void *)mem;
    struct tr_column *cols = (struct tr_column *)(void *)(mem + cols_at);
    uint16_t *key = (uint16_t *)(void *)(mem + key_at);
    char *at = (char *)mem + str_at;

    s->table_id = d->table_id;
    s->version = d->version;
    s->ns = put_str(&at, d->ns);
    s->name = put_str(&at, d->name);
    s->no_key_reason = put_str(&at, reason);
    s->n_columns = d->n_columns;
    s->n_key = n_key;
    s->columns = cols;
    s->key = key;
    s->full_identity = d->full_identity;
    s->source_id = d->source_id;
    for (uint32_t i = 0; i < d->n_columns; i++) {
        const struct tr_column *c = &d->columns[i];
        cols[i] = *c;
        cols[i].name = put_str(&at, c->name);
        cols[i].source_type = put_str(&at, c->source_type ? c->source_type : "");
        cols[i].fill_default = c->fill_default ? put_str(&at, c->fill_default) : NULL;
        if (c->key_pos)
            key[c->key_pos - 1] = (uint16_t)i;
    }
    s->fingerprint = fingerprint(d);
    atomic_init(&s->refs, 1);
    *ret = s;
    return TR_OK;
}

/* The count is the one mutable thing in a schema; everyone else sees it as const. */
static struct tr_schema *mut(const struct tr_schema *s)
{
    union {
        const struct tr_schema *c;
        struct tr_schema *m;
    } u = {.c = s};
    return u.m;
}

struct tr_schema *tr_schema_ref(const struct tr_schema *s)
{
    struct tr_schema *m = mut(s);
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

struct tr_schema *tr_schema_unref(const struct tr_schema *s)
{
    if (!s)
        return NULL;
    struct tr_schema *m = mut(s);
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1)
        tr_free(m);
    return NULL;
}

int tr_schema_renumber(const struct tr_schema *s, uint32_t table_id, uint32_t version, struct tr_schema **ret, struct tr_err *err)
{
    struct tr_schema_def d = {
        .table_id = table_id,
        .version = version,
        .ns = s->ns,
        .name = s->name,
        .no_key_reason = s->no_key_reason,
        .columns = s->columns,
        .n_columns = s->n_columns,
        .full_identity = s->full_identity,
    };
    return tr_schema_new(&d, ret, err);
}

int tr_schema_find(const struct tr_schema *s, struct tr_slice name)
{
    for (uint32_t i = 0; i < s->n_columns; i++)
        if (tr_slice_eq_str(name, s->columns[i].name))
            return (int)i;
    return -1;
}

static void put_slice(struct tr_buf *out, const char *s)
{
    size_t n = strlen(s);
    tr_buf_put_varint(out, n);
    tr_buf_put(out, s, n);
}

static uint64_t zigzag(int64_t v)
{
    return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
}

int tr_schema_encode(const struct tr_schema *s, struct tr_buf *out)
{
    size_t need = 64 + strlen(s->ns) + strlen(s->name) + strlen(s->no_key_reason);
    for (uint32_t i = 0; i < s->n_columns; i++) {
        const struct tr_column *c = &s->columns[i];
        need += 96 + strlen(c->name) + strlen(c->source_type) + (c->fill_default ? strlen(c->fill_default) : 0);
    }
    if (tr_buf_reserve(out, need) < 0)
        return TR_NOMEM;
    tr_buf_put_u8(out, SCHEMA_FORMAT);
    tr_buf_put_varint(out, s->table_id);
    tr_buf_put_varint(out, s->version);
    put_slice(out, s->ns);
    put_slice(out, s->name);
    put_slice(out, s->no_key_reason);
    tr_buf_put_u8(out, s->full_identity);
    tr_buf_put_varint(out, s->n_columns);
    for (uint32_t i = 0; i < s->n_columns; i++) {
        const struct tr_column *c = &s->columns[i];
        put_slice(out, c->name);
        put_slice(out, c->source_type);
        tr_buf_put_u8(out, c->type);
        tr_buf_put_u8(out, (uint8_t)((c->not_null ? COL_NOT_NULL : 0) | (c->generated ? COL_GENERATED : 0) | (c->fill_default ? COL_HAS_FILL : 0) |
                                 (c->has_default ? COL_HAS_DEFAULT : 0)));
        if (c->fill_default)
            put_slice(out, c->fill_default);
        tr_buf_put_varint(out, c->key_pos);
        tr_buf_put_varint(out, zigzag(c->precision));
        tr_buf_put_varint(out, zigzag(c->scale));
        tr_buf_put_varint(out, c->source_type_id);
        tr_buf_put_varint(out, zigzag(c->source_pos));
    }
    return TR_OK;
}

/* A NUL-terminated copy inside one scratch block that is as long as the input plus one byte per string. */
static const char *take_str(struct tr_cur *c, char **at)
{
    struct tr_slice s = tr_cur_bytes(c, tr_cur_varint(c));
    if (!tr_cur_ok(c) || (s.n && memchr(s.p, 0, s.n))) {
        tr_cur_fail(c);
        return "";
    }
    char *p = *at;
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = 0;
    *at += s.n + 1;
    return p;
}

static int decode_into(struct tr_slice bytes, struct tr_column *cols, size_t cap, char *scratch, struct tr_schema **ret, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(bytes);
    struct tr_schema_def d = {.columns = cols};
    if (tr_cur_u8(&c) != SCHEMA_FORMAT)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "schema definition has a format this program does not know");
    d.table_id = tr_cur_varint32(&c);
    d.version = tr_cur_varint32(&c);
    d.ns = take_str(&c, &scratch);
    d.name = take_str(&c, &scratch);
    d.no_key_reason = take_str(&c, &scratch);
    uint8_t full = tr_cur_u8(&c);
    d.full_identity = full;
    uint64_t n = tr_cur_varint(&c);
    if (n > cap || full > 1)
        tr_cur_fail(&c);
    for (uint64_t i = 0; i < n && tr_cur_ok(&c); i++) {
        struct tr_column *k = &cols[i];
        memset(k, 0, sizeof *k);
        k->name = take_str(&c, &scratch);
        k->source_type = take_str(&c, &scratch);
        k->type = tr_cur_u8(&c);
        uint8_t f = tr_cur_u8(&c);
        if (f & ~(COL_NOT_NULL | COL_GENERATED | COL_HAS_FILL | COL_HAS_DEFAULT))
            tr_cur_fail(&c);
        k->not_null = f & COL_NOT_NULL;
        k->generated = f & COL_GENERATED;
        k->has_default = f & COL_HAS_DEFAULT;
        k->fill_default = f & COL_HAS_FILL ? take_str(&c, &scratch) : NULL;
        k->key_pos = (uint16_t)tr_cur_varint_max(&c, UINT16_MAX);
        k->precision = (int32_t)tr_cur_zigzag_within(&c, INT32_MIN, INT32_MAX);
        k->scale = (int32_t)tr_cur_zigzag_within(&c, INT32_MIN, INT32_MAX);
        k->source_type_id = tr_cur_varint32(&c);
        k->source_pos = (int16_t)tr_cur_zigzag_within(&c, INT16_MIN, INT16_MAX);
    }
    if (!tr_cur_done(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "schema definition is malformed (%zu bytes)", bytes.n);
    d.n_columns = (uint32_t)n;
    return tr_schema_new(&d, ret, err);
}

int tr_schema_decode(struct tr_slice bytes, struct tr_schema **ret, struct tr_err *err)
{
    /* a string of n bytes takes n + 1 in scratch and at least n + 1 in the input */
    size_t cap = TR_MIN(bytes.n / COL_BYTES_MIN, (size_t)TR_COLUMNS_MAX);
    struct tr_column *cols = tr_malloc(cap * sizeof *cols + 1);
    char *scratch = tr_malloc(bytes.n + 1);
    int rc = cols && scratch ? decode_into(bytes, cols, cap, scratch, ret, err)
                             : tr_err_set(err, TR_NOMEM, TR_DOM_CODEC, "no memory to decode a schema definition");
    tr_free(cols);
    tr_free(scratch);
    return rc;
}
