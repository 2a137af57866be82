#include "seg.h"

#include <tailrace/batch.h>

#include "alloc.h"
#include "check.h"

void tr_pool_init(struct tr_pool *p, uint64_t limit, double high_ratio, double low_ratio)
{
    TR_ASSERT(limit > 0 && low_ratio > 0 && low_ratio < high_ratio && high_ratio <= 1);
    *p = (struct tr_pool){.limit = limit, .high = (uint64_t)((double)limit * high_ratio), .low = (uint64_t)((double)limit * low_ratio)};
}

uint64_t tr_pool_charged(const struct tr_pool *p)
{
    return atomic_load_explicit(&p->charged, memory_order_relaxed);
}

bool tr_pool_above_high(const struct tr_pool *p)
{
    return tr_pool_charged(p) > p->high;
}

bool tr_pool_below_low(const struct tr_pool *p)
{
    return tr_pool_charged(p) <= p->low;
}

static void note_peak(struct tr_pool *p, uint64_t now)
{
    uint64_t peak = atomic_load_explicit(&p->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&p->peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void credit(struct tr_pool *p, uint64_t n)
{
    uint64_t before = atomic_fetch_sub_explicit(&p->charged, n, memory_order_relaxed);
    TR_ASSERT(before >= n);
    if (before > p->low && before - n <= p->low && p->on_low)
        p->on_low(p->on_low_arg);
}

/* cap is charged already. */
static int make(struct tr_pool *p, size_t cap, struct tr_seg **ret)
{
    struct tr_seg *s = tr_calloc(1, sizeof *s);
    if (!s || tr_buf_reserve(&s->buf, cap) < 0) {
        tr_free(s);
        credit(p, cap);
        return TR_NOMEM;
    }
    s->pool = p;
    s->charge = cap;
    atomic_init(&s->refs, 1);
    *ret = s;
    return TR_OK;
}

int tr_seg_new(struct tr_pool *p, size_t cap, struct tr_seg **ret)
{
    uint64_t now = atomic_load_explicit(&p->charged, memory_order_relaxed);
    do {
        if (now != 0 && now + cap > p->limit)
            return TR_AGAIN;
    } while (!atomic_compare_exchange_weak_explicit(&p->charged, &now, now + cap, memory_order_relaxed, memory_order_relaxed));
    note_peak(p, now + cap);
    return make(p, cap, ret);
}

int tr_seg_force(struct tr_pool *p, size_t cap, struct tr_seg **ret)
{
    note_peak(p, atomic_fetch_add_explicit(&p->charged, cap, memory_order_relaxed) + cap);
    return make(p, cap, ret);
}

static void set_charge(struct tr_seg *s, uint64_t to)
{
    if (to > s->charge) {
        uint64_t add = to - s->charge;
        note_peak(s->pool, atomic_fetch_add_explicit(&s->pool->charged, add, memory_order_relaxed) + add);
    } else if (to < s->charge) {
        credit(s->pool, s->charge - to);
    }
    s->charge = to;
}

void tr_seg_recharge(struct tr_seg *s)
{
    set_charge(s, s->buf.cap);
}

/* A chunk sealed early (an idle flush of a few rows) must not hold a whole chunk's budget while it waits. */
void tr_seg_trim(struct tr_seg *s)
{
    if (s->buf.cap < 4096 || s->buf.n > s->buf.cap / 2)
        return;
    size_t to = s->buf.n ? s->buf.n : 1;
    uint8_t *p = tr_realloc(s->buf.p, to);
    if (!p)
        return; /* keeping the larger block is only less thrifty */
    s->buf.p = p;
    s->buf.cap = to;
    set_charge(s, to);
}

struct tr_seg *tr_seg_ref(struct tr_seg *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

struct tr_seg *tr_seg_unref(struct tr_seg *s)
{
    if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        uint64_t charge = s->charge;
        struct tr_pool *p = s->pool;
        tr_buf_done(&s->buf);
        tr_free(s);
        credit(p, charge);
    }
    return NULL;
}

void tr_chunk_swap(const struct tr_chunk *c, struct tr_buf *b)
{
    struct tr_buf had = c->seg->buf;
    c->seg->buf = *b;
    *b = had;
}
