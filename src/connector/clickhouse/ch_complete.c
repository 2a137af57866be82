/*
 * ch_complete.c: records that lack something get it from the table.
 *
 * An update with unchanged columns, and a tombstone that keeps its row's last values, rest on the row as it was before. That row is in the batch
 * itself, or in the table, where every earlier batch is durable by now. So: the keys that are asked for are gathered, their rows read in one query
 * (FINAL, by key; the keys go along as a table of the request), and the batch is gone through in order, with what each of those keys holds at that
 * moment. What they become is made beside the chunks and takes their place when nothing can fail any more.
 *
 *   PATCH      the live row with a lower version; none: the record is left out
 *   MOVE       the live row under the old key with a lower version, else the live row under the new key; none: left out
 *   TOMBSTONE  whatever row is there with a lower version; none: the key, and NULL or the type's default
 *
 * A record that is no newer than what its key holds is left out: it was applied before, and what it was completed from may be another row by now.
 */
#include <stdio.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "map.h"
#include "random.h"
#include "rowbinary.h"

enum { ANSWER_MAX = 1 << 30 };

struct base {
    bool known, deleted;
    uint64_t version;
    struct tr_slice row;       /* its cells, in the arena */
};

struct ch_completer {
    const struct ch_sink *s;
    struct tr_map bases;       /* key → struct base *, in the arena */
    struct tr_arena arena;
    struct tr_buf key, keys, answer;
    uint32_t n_keys;
    const struct ch_table *t;
    uint32_t *ends, *base_ends; /* of the table's cells, in the arena */
};

struct opened {
    uint8_t how;
    uint64_t version;
    struct tr_slice key, base, states, cells; /* cells: of the columns, then ours */
};

static int no_memory(const struct ch_completer *c, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to complete a batch", c->s->sql.what);
}

static int broken(const struct ch_completer *c, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_SINK, "%s: a batch's own bytes are broken", c->s->sql.what);
}

static bool open_record(const struct ch_table *t, struct tr_slice body, struct opened *ret)
{
    struct tr_cur c = tr_cur_of(body);
    ret->how = tr_cur_u8(&c);
    ret->version = tr_cur_le64(&c);
    ret->key = tr_cur_bytes(&c, tr_cur_varint(&c));
    ret->base = tr_cur_bytes(&c, tr_cur_varint(&c));
    ret->states = tr_cur_bytes(&c, t->schema->n_columns);
    ret->cells = tr_cur_bytes(&c, tr_cur_left(&c));
    return tr_cur_ok(&c);
}

/* ---- what is asked for ---- */

static int want(struct ch_completer *c, struct tr_slice key, struct tr_err *err)
{
    if (tr_map_get(&c->bases, key))
        return TR_OK;
    struct base *b = TR_ARENA_NEW(&c->arena, struct base);
    if (!b || tr_map_put(&c->bases, key, b, NULL) < 0 || tr_buf_append_slice(&c->keys, key) < 0)
        return no_memory(c, err);
    c->n_keys++;
    return TR_OK;
}

static int gather(struct ch_completer *c, const struct tr_part *p, struct tr_err *err)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct tr_cur at = tr_cur_of(p->v[i].bytes);
        struct ch_record r;
        int rc;
        while ((rc = tr_ch_record_next(&at, &r, err)) >= 0) {
            struct opened o;
            if (r.kind != CH_OPEN)
                continue;
            if (!open_record(c->t, r.body, &o))
                return broken(c, err);
            rc = want(c, o.key, err);
            if (rc >= 0 && o.base.n)
                rc = want(c, o.base, err);
            if (rc < 0)
                return rc;
        }
        if (rc != TR_EOF)
            return rc;
    }
    return TR_OK;
}

/* ---- what is there ---- */

static int learn(struct ch_completer *c, struct base *b, const uint8_t *row, const uint32_t *ends, struct tr_err *err)
{
    uint64_t version = tr_ch_row_version(c->t, row, ends);
    if (b->known && b->version >= version)
        return TR_OK;
    struct tr_slice copy = tr_arena_dup(&c->arena, tr_slice_of(row, ends[c->t->n - 1]));
    if (!copy.p)
        return no_memory(c, err);
    *b = (struct base){.known = true, .deleted = tr_ch_row_deleted(c->t, row, ends), .version = version, .row = copy};
    return TR_OK;
}

/* A row that somebody may wait for. */
static int see(struct ch_completer *c, struct tr_cur *at, struct tr_err *err)
{
    const uint8_t *row = at->p;
    if (!tr_ch_row(c->t, at, c->ends))
        return TR_AGAIN;
    tr_buf_clear(&c->key);
    if (tr_ch_row_key(c->t, row, c->ends, &c->key) < 0)
        return no_memory(c, err);
    struct base *b = tr_map_get(&c->bases, tr_buf_slice(&c->key));
    return b ? learn(c, b, row, c->ends, err) : TR_OK;
}

/* The query and the keys as a multipart/form-data body (RFC 7578). The boundary is a random one, which no key holds. */
static int fetch(struct ch_completer *c, struct tr_httpc *h, const struct tr_endpoint *ep, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf params = {0}, head = {0}, tail = {0};
    char boundary[48], type[96];
    uint64_t r[2] = {tr_random_u64(), tr_random_u64()};
    snprintf(boundary, sizeof boundary, "tailrace-%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    snprintf(type, sizeof type, "multipart/form-data; boundary=%s", boundary);
    bool ok = tr_buf_append_str(&params, "&keys_format=RowBinary&select_sequential_consistency=1&keys_structure=") >= 0;
    if (!c->t->today) {
        tr_buf_clear(&params);
        ok = tr_buf_append_str(&params, "&keys_format=RowBinary&keys_structure=") >= 0;
    }
    ok = ok && tr_ch_url_escape(tr_slice_str(c->t->keys), &params) >= 0 &&
         tr_buf_printf(&head, "--%s\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\n", boundary) >= 0 && tr_buf_append_str(&head, c->t->select) >= 0 &&
         tr_buf_printf(&head, "\r\n--%s\r\nContent-Disposition: form-data; name=\"keys\"; filename=\"keys\"\r\nContent-Type: application/octet-stream\r\n\r\n", boundary) >= 0 &&
         tr_buf_printf(&tail, "\r\n--%s--\r\n", boundary) >= 0;
    struct tr_slice body[] = {tr_buf_slice(&head), tr_buf_slice(&c->keys), tr_buf_slice(&tail)};
    struct ch_query q = {.params = ok ? tr_buf_cstr(&params) : NULL, .body = body, .n_body = 3, .content_type = type, .answer_max = ANSWER_MAX, .data = true};
    tr_buf_clear(&c->answer);
    int rc = q.params ? tr_ch_ask(c->s, h, ep, &q, deadline_ns, &c->answer, err) : no_memory(c, err);
    tr_buf_done(&params);
    tr_buf_done(&head);
    tr_buf_done(&tail);
    struct tr_cur at = tr_cur_of(tr_buf_slice(&c->answer));
    while (rc >= 0 && tr_cur_left(&at))
        rc = see(c, &at, err);
    if (rc == TR_AGAIN)
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the rows that were asked for are no rows of the table", c->s->sql.what);
    return rc;
}

/* ---- completing ---- */

static const struct base *base_of(const struct ch_completer *c, const struct opened *o, const struct base *k, bool *ret_leave)
{
    static const struct base none;
    const struct base *b = o->base.n ? tr_map_get(&c->bases, o->base) : NULL;
    bool live = k->known && !k->deleted;
    *ret_leave = k->known && k->version >= o->version;
    if (o->how == CH_TOMBSTONE)
        return k->known ? k : &none;
    if (o->how == CH_MOVE && b && b->known && !b->deleted && b->version < o->version)
        return b;
    *ret_leave |= !live;
    return k;
}

static int put_cells(struct ch_completer *c, const struct opened *o, const struct base *b, struct tr_buf *out, struct tr_err *err)
{
    const struct ch_table *t = c->t;
    struct tr_cur have = tr_cur_of(o->cells), there = tr_cur_of(b->row);
    if (b->known && !tr_ch_row(t, &there, c->base_ends))
        return broken(c, err);
    for (uint32_t i = 0; i < t->schema->n_columns; i++) {
        const struct tr_ch_type *type = t->columns[i].type;
        const uint8_t *from = have.p;
        int rc;
        if (o->states.p[i]) {
            bool null = type->nullable && tr_cur_u8(&have);
            if (!null)
                tr_cur_bytes(&have, type->value->width ? type->value->width : tr_cur_varint(&have));
            rc = tr_cur_ok(&have) ? tr_buf_append(out, from, (size_t)(have.p - from)) : broken(c, err);
        } else if (b->known) {
            uint32_t begin = i ? c->base_ends[i - 1] : 0;
            rc = tr_buf_append(out, b->row.p + begin, c->base_ends[i] - begin);
        } else {
            rc = tr_rowbinary_default(type, out, err);
        }
        if (rc < 0)
            return rc == TR_FATAL ? rc : no_memory(c, err);
    }
    return tr_buf_append(out, have.p, tr_cur_left(&have)) < 0 ? no_memory(c, err) : TR_OK;
}

static int complete_one(struct ch_completer *c, struct tr_slice body, struct tr_buf *out, struct tr_err *err)
{
    struct opened o;
    if (!open_record(c->t, body, &o))
        return broken(c, err);
    struct base *k = tr_map_get(&c->bases, o.key);
    bool leave;
    const struct base *b = base_of(c, &o, k, &leave);
    if (leave)
        return TR_OK;
    size_t from = out->n;
    int rc = tr_ch_record_begin(CH_ROW, out) < 0 ? no_memory(c, err) : put_cells(c, &o, b, out, err);
    if (rc < 0)
        return rc;
    tr_ch_record_end(out, from);
    struct tr_cur row = tr_cur_of(tr_slice_of(out->p + from + 5, out->n - from - 5));
    return tr_ch_row(c->t, &row, c->ends) ? learn(c, k, out->p + from + 5, c->ends, err) : broken(c, err);
}

static void truncate_bases(struct ch_completer *c, struct tr_slice body)
{
    struct tr_cur at = tr_cur_of(body);
    uint64_t version = tr_cur_le64(&at);
    size_t it = 0;
    struct tr_slice key;
    void *v;
    while (tr_map_next(&c->bases, &it, &key, &v)) {
        struct base *b = v;
        if (b->known && !b->deleted && b->version < version) {
            b->deleted = true;
            b->version = version;
        }
    }
}

static int complete_chunk(struct ch_completer *c, struct tr_slice chunk, struct tr_buf *out, struct tr_err *err)
{
    struct tr_cur at = tr_cur_of(chunk);
    struct ch_record r;
    int rc;
    for (;;) {
        const uint8_t *from = at.p;
        rc = tr_ch_record_next(&at, &r, err);
        if (rc < 0)
            return rc == TR_EOF ? TR_OK : rc;
        if (r.kind == CH_OPEN) {
            rc = complete_one(c, r.body, out, err);
        } else {
            struct tr_cur row = tr_cur_of(r.body);
            if (r.kind == CH_TRUNCATE)
                truncate_bases(c, r.body);
            else if ((rc = see(c, &row, err)) == TR_AGAIN)
                rc = broken(c, err);
            if (rc >= 0 && tr_buf_append(out, from, (size_t)(at.p - from)) < 0)
                rc = no_memory(c, err);
        }
        if (rc < 0)
            return rc;
    }
}

static int complete_part(struct ch_completer *c, struct tr_httpc *h, const struct tr_endpoint *ep, const struct tr_part *p, int64_t deadline_ns, struct tr_err *err)
{
    c->t = tr_ch_table_of(p->target);
    if (c->t->kind != TR_TABLE_MIRROR_SOFT)
        return TR_OK;
    c->ends = tr_arena_alloc(&c->arena, c->t->n * sizeof *c->ends);
    c->base_ends = tr_arena_alloc(&c->arena, c->t->n * sizeof *c->base_ends);
    struct tr_buf *made = tr_arena_calloc(&c->arena, p->n + 1, sizeof *made);
    int rc = c->ends && c->base_ends && made ? gather(c, p, err) : no_memory(c, err);
    if (rc < 0 || !c->n_keys)
        return rc;
    rc = fetch(c, h, ep, deadline_ns, err);
    for (uint32_t i = 0; i < p->n && rc >= 0; i++)
        rc = complete_chunk(c, p->v[i].bytes, &made[i], err);
    for (uint32_t i = 0; i < p->n && made; i++) {
        if (rc >= 0)
            tr_chunk_swap(&p->v[i], &made[i]);
        tr_buf_done(&made[i]);
    }
    return rc;
}

static void forget(struct ch_completer *c)
{
    tr_map_clear(&c->bases);
    tr_arena_reset(&c->arena);
    tr_buf_clear(&c->keys);
    c->n_keys = 0;
}

int tr_ch_complete(struct ch_completer *c, struct tr_httpc *h, const struct tr_endpoint *ep, struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < b->n_parts && rc >= 0; i++) {
        rc = complete_part(c, h, ep, &b->parts[i], deadline_ns, err);
        forget(c);
    }
    return rc;
}

struct ch_completer *tr_ch_completer_new(const struct ch_sink *s)
{
    struct ch_completer *c = tr_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->s = s;
    tr_map_init(&c->bases);
    tr_arena_init(&c->arena, 64 << 10, 0);
    return c;
}

struct ch_completer *tr_ch_completer_free(struct ch_completer *c)
{
    if (!c)
        return NULL;
    tr_map_done(&c->bases);
    tr_arena_done(&c->arena);
    tr_buf_done(&c->key);
    tr_buf_done(&c->keys);
    tr_buf_done(&c->answer);
    tr_free(c);
    return NULL;
}
