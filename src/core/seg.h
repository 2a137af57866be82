/*
 * seg.h: byte segments and the in-flight budget, which are one thing.
 *
 * Every byte between an encoder and a durable write lives in a tr_seg taken from a tr_pool. A segment is charged to the
 * pool at its capacity when it is taken (or grown) and credited at its last unref: the pool's balance *is* the in-flight
 * byte budget. There is no second account.
 *
 * Threads: a segment has one owner until sealed (the pipeline thread that fills it); sealed segments are immutable and
 * may be referenced from any thread. The pool's balance is atomic.
 *
 * Errors: tr_seg_new answers AGAIN when the budget is exhausted (the pipeline then reports BLOCKED) and NOMEM when malloc
 * fails. One segment always passes when the pool is otherwise empty, so that an oversized row cannot block for ever.
 */
#ifndef TR_SEG_H
#define TR_SEG_H

#include <stdatomic.h>
#include <stdbool.h>

#include <tailrace/buf.h>

struct tr_pool {
    uint64_t limit;             /* max_inflight_bytes */
    uint64_t high, low;         /* watermarks in bytes: pause above high, resume at or below low */
    _Atomic(uint64_t) charged;
    _Atomic(uint64_t) peak;     /* highest balance ever, for tests and metrics */
    void (*on_low)(void *arg);  /* called (any thread) when the balance falls to or below low; must not block */
    void *on_low_arg;
};

struct tr_seg {
    struct tr_buf buf; /* buf.n bytes are used */
    struct tr_pool *pool;
    uint64_t charge;
    _Atomic(uint32_t) refs;
};

void tr_pool_init(struct tr_pool *p, uint64_t limit, double high_ratio, double low_ratio);
bool tr_pool_above_high(const struct tr_pool *p);
bool tr_pool_below_low(const struct tr_pool *p);
uint64_t tr_pool_charged(const struct tr_pool *p);

int tr_seg_new(struct tr_pool *p, size_t cap, struct tr_seg **ret);
int tr_seg_force(struct tr_pool *p, size_t cap, struct tr_seg **ret); /* charged but never refused: for rows whose payload has begun. NOMEM */
void tr_seg_recharge(struct tr_seg *s);   /* after buf grew: charges the difference, never refuses (the row is already here) */
void tr_seg_trim(struct tr_seg *s);       /* at sealing: gives back unused capacity when it is worth a realloc */
struct tr_seg *tr_seg_ref(struct tr_seg *s);
struct tr_seg *tr_seg_unref(struct tr_seg *s); /* always NULL */

#endif
