#include "engine.h"

#include <string.h>

#include "alloc.h"
#include "check.h"
#include "hash.h"

/* Sealing: the items of a batch become parts, chunks in item order within a part. A table that comes in one definition is one part. One
 * that changes to another and back (a snapshot's rows, then the changes since its beginning) is a part for each stretch, since two rows of a
 * key must not change places. The batch owns its items until its end, and with them segments and acks. */

static struct tr_msg *msg_of(struct tr_list *n)
{
    return tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct tr_msg, it);
}

struct tr_msg *tr_msg_new(struct tr_out *o)
{
    struct tr_msg *m = tr_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    tr_list_init(&m->it.node);
    m->out = o;
    m->spans = m->inline_span;
    m->cap_spans = TR_ARRAY_LEN(m->inline_span);
    tr_ackset_init(&m->acks);
    return m;
}

static void msg_free(struct tr_msg *m)
{
    m->seg = tr_seg_unref(m->seg);
    tr_generation_unref(m->generation);
    if (m->spans != m->inline_span)
        tr_free(m->spans);
    tr_free(m);
}

void tr_msg_fail(struct tr_msg *m)
{
    tr_ackset_done(&m->acks);
    msg_free(m);
}

void tr_msg_deliver(struct tr_msg *m)
{
    struct tr_out *o = m->seg ? m->out : NULL;
    tr_ackset_deliver(&m->acks);
    msg_free(m);
    if (o)
        tr_out_on_done(o);
}

static void free_arrays(struct tr_ebatch *b)
{
    tr_free(b->parts);
    tr_free(b->chunks);
    tr_free(b->spans);
    tr_free(b->part_first);
    b->parts = NULL;
    b->chunks = NULL;
    b->spans = NULL;
    b->part_first = NULL;
}

static void span_add(struct tr_span *v, uint32_t *n, const struct tr_span *s)
{
    for (uint32_t i = 0; i < *n; i++)
        if (v[i].lane == s->lane && v[i].epoch == s->epoch) {
            v[i].first = TR_MIN(v[i].first, s->first);
            v[i].last = TR_MAX(v[i].last, s->last);
            return;
        }
    v[(*n)++] = *s;
}

/* Gives each item its part: that of the item before it of the same table, if that one has the same target. */
static int count_parts(struct tr_ebatch *b, uint32_t *ret_parts, uint32_t *ret_items, uint32_t *ret_spans)
{
    uint32_t parts = 0, items = 0, spans = 0;
    struct tr_u64map last; /* table and variant -> struct tr_msg */
    int rc = TR_OK;
    tr_u64map_init(&last);
    TR_LIST_EACH (n, &b->items) {
        struct tr_msg *m = msg_of(n), *before = tr_u64map_get_ptr(&last, m->it.table);
        bool same = before && before->target == m->target && (before->it.binding == m->it.binding || !b->shard->sink->multi);
        m->part = same ? before->part : parts++;
        if (rc >= 0)
            rc = tr_u64map_put_ptr(&last, m->it.table, m);
        items++;
        spans += m->n_spans;
    }
    tr_u64map_done(&last);
    *ret_parts = parts;
    *ret_items = items;
    *ret_spans = spans;
    return rc < 0 ? rc : TR_OK;
}

static void fill(struct tr_ebatch *b, uint32_t n_parts)
{
    struct tr_sealed *d = &b->sealed;
    d->rows = d->bytes = 0;
    d->n_spans = 0;
    d->oldest_ns = INT64_MAX;
    b->dependent = false;
    for (uint32_t i = 0; i < n_parts; i++)
        b->part_first[i] = INT64_MAX;
    TR_LIST_EACH (n, &b->items) { /* how many chunks has each part */
        struct tr_msg *m = msg_of(n);
        struct tr_part *p = &b->parts[m->part];
        p->target = m->target;
        p->n++;
        p->rows += m->rows;
        p->bytes += m->seg->buf.n;
        d->rows += m->rows;
        d->bytes += m->seg->buf.n;
        d->oldest_ns = TR_MIN(d->oldest_ns, m->it.oldest_ns);
        b->dependent |= m->dependent;
        for (uint32_t i = 0; i < m->n_spans; i++) {
            span_add(b->spans, &d->n_spans, &m->spans[i]);
            b->part_first[m->part] = TR_MIN(b->part_first[m->part], m->spans[i].first);
        }
    }
    struct tr_chunk *c = b->chunks;
    for (uint32_t i = 0; i < n_parts; i++) {
        b->parts[i].v = c;
        c += b->parts[i].n;
        b->parts[i].n = 0;
    }
    TR_LIST_EACH (n, &b->items) {
        struct tr_msg *m = msg_of(n);
        struct tr_part *p = &b->parts[m->part];
        b->chunks[(p->v - b->chunks) + p->n++] = (struct tr_chunk){.bytes = tr_buf_slice(&m->seg->buf), .rows = m->rows, .seg = m->seg};
    }
    d->parts = b->parts;
    d->n_parts = n_parts;
    d->spans = b->spans;
}

static int build(struct tr_ebatch *b)
{
    uint32_t parts, items, spans;
    free_arrays(b);
    int rc = count_parts(b, &parts, &items, &spans);
    if (rc >= 0) {
        b->parts = tr_calloc(parts, sizeof *b->parts);
        b->part_first = tr_calloc(parts, sizeof *b->part_first);
        b->chunks = tr_calloc(items, sizeof *b->chunks);
        b->spans = tr_calloc(spans ? spans : 1, sizeof *b->spans);
        if (b->parts && b->part_first && b->chunks && b->spans)
            fill(b, parts);
        else
            rc = TR_NOMEM;
    }
    b->completed = b->has_tokens = false;
    return rc;
}

static uint32_t count_end(struct tr_shard *s, const struct tr_ebatch *b)
{
    const struct tr_msg *m = msg_of(tr_list_last(&b->items));
    struct tr_span end = m->n_spans ? m->spans[m->n_spans - 1] : (struct tr_span){0};
    bool same = m->n_spans && s->end.lane == end.lane && s->end.epoch == end.epoch && s->end.last == end.last;
    s->same_end = same ? s->same_end + 1 : 0;
    s->end = end;
    return s->same_end;
}

int tr_ebatch_new(struct tr_shard *s, struct tr_list *items, bool tx_end, struct tr_ebatch **ret)
{
    struct tr_ebatch *b = tr_calloc(1, sizeof *b);
    if (!b)
        return TR_NOMEM;
    tr_list_init(&b->items);
    tr_list_init(&b->node);
    b->shard = s;
    b->sealed.tx_end = tx_end;
    tr_list_splice_back(&b->items, items);
    if (build(b) < 0) {
        tr_list_splice_back(items, &b->items);
        free_arrays(b);
        tr_free(b);
        return TR_NOMEM;
    }
    b->nth = count_end(s, b);
    *ret = b;
    return TR_OK;
}

/* The segments may be others in length now. */
void tr_ebatch_completed(struct tr_ebatch *b)
{
    uint32_t n_chunks = 0;
    for (uint32_t i = 0; i < b->sealed.n_parts; i++)
        n_chunks += b->parts[i].n;
    for (uint32_t i = 0; i < n_chunks; i++) {
        b->chunks[i].bytes = tr_buf_slice(&b->chunks[i].seg->buf);
        tr_seg_recharge(b->chunks[i].seg);
    }
    b->sealed.bytes = 0;
    for (uint32_t i = 0; i < b->sealed.n_parts; i++) {
        b->parts[i].bytes = 0;
        for (uint32_t k = 0; k < b->parts[i].n; k++)
            b->parts[i].bytes += b->parts[i].v[k].bytes.n;
        b->sealed.bytes += b->parts[i].bytes;
    }
}

void tr_ebatch_tokens(struct tr_ebatch *b, const char *sink)
{
    for (uint32_t i = 0; i < b->sealed.n_parts; i++) {
        struct tr_part *p = &b->parts[i];
        struct tr_hasher h;
        tr_hasher_init(&h);
        tr_hasher_add(&h, sink, strlen(sink) + 1);
        tr_hasher_add_u64(&h, (uint64_t)p->target->table_id << 32 | p->target->schema_version);
        tr_hasher_add_u64(&h, (uint64_t)p->target->variant | (uint64_t)b->nth << 8);
        TR_LIST_EACH (n, &b->items) {
            struct tr_msg *m = msg_of(n);
            for (uint32_t k = 0; m->part == i && k < m->n_spans; k++) {
                tr_hasher_add_u64(&h, (uint64_t)m->spans[k].lane << 32 | m->spans[k].epoch);
                tr_hasher_add_u64(&h, (uint64_t)m->spans[k].first);
                tr_hasher_add_u64(&h, (uint64_t)m->spans[k].last);
            }
        }
        const struct tr_chunk *v = b->sealed.parts[i].v;
        for (uint32_t k = 0; k < b->sealed.parts[i].n; k++)
            tr_hasher_add(&h, v[k].bytes.p, v[k].bytes.n);
        tr_hash128_hex(tr_hasher_end128(&h), p->token);
    }
    b->has_tokens = true;
}

int tr_ebatch_drop_part(struct tr_ebatch *b, uint32_t part)
{
    TR_LIST_EACH (n, &b->items) {
        struct tr_msg *m = msg_of(n);
        if (m->part != part)
            continue;
        tr_list_del(&m->it.node);
        tr_msg_deliver(m);
    }
    return tr_list_empty(&b->items) ? TR_OK : build(b);
}

static void batch_free(struct tr_ebatch *b)
{
    free_arrays(b);
    tr_free(b);
}

void tr_ebatch_deliver(struct tr_ebatch *b)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(&b->items)))
        tr_msg_deliver(msg_of(n));
    batch_free(b);
}

void tr_ebatch_fail(struct tr_ebatch *b)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(&b->items)))
        tr_msg_fail(msg_of(n));
    batch_free(b);
}
