/* ring.h - fixed-capacity FIFO of pointers.
 *
 * Purpose: bounded queues within one thread (between threads: tr_queue in os).
 * Owner:   the array is the ring's; what the pointers point to is the caller's.
 * Threads: one at a time.
 * Errors:  TR_NOMEM from init; TR_AGAIN from push when full.
 */
#ifndef TR_RING_H
#define TR_RING_H

#include "alloc.h"
#include "check.h"

#include <tailrace/err.h>

struct tr_ring {
	void **v;
	size_t head, n, cap;
};

static inline int
tr_ring_init(struct tr_ring *r, size_t cap)
{
	TR_ASSERT(cap > 0);
	*r = (struct tr_ring){ (void **)tr_calloc(cap, sizeof(void *)), 0, 0, cap };
	return r->v ? TR_OK : TR_NOMEM;
}

static inline void
tr_ring_done(struct tr_ring *r)
{
	if (!r)
		return;
	tr_free(r->v);
	*r = (struct tr_ring){ 0 };
}

static inline bool
tr_ring_full(const struct tr_ring *r)
{
	return r->n == r->cap;
}

static inline int
tr_ring_push(struct tr_ring *r, void *p)
{
	size_t at = r->head + r->n;

	if (r->n == r->cap)
		return TR_AGAIN;
	r->v[at >= r->cap ? at - r->cap : at] = p;
	r->n++;
	return TR_OK;
}

/* The ith from the front. */
static inline void *
tr_ring_at(const struct tr_ring *r, size_t i)
{
	size_t at = r->head + i;

	TR_ASSERT(i < r->n);
	return r->v[at >= r->cap ? at - r->cap : at];
}

static inline void *
tr_ring_peek(const struct tr_ring *r)
{
	return r->n ? r->v[r->head] : NULL;
}

/* NULL when empty. */
static inline void *
tr_ring_pop(struct tr_ring *r)
{
	void *p = tr_ring_peek(r);

	if (r->n) {
		r->head = r->head + 1 == r->cap ? 0 : r->head + 1;
		r->n--;
	}
	return p;
}

#endif
