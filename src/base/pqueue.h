/* pqueue.h - intrusive binary heap by an int64 key, least first.
 *
 * Purpose: timers, linger, deadlines. A node knows its place, so it can be moved or removed in O(log n).
 *          Equal keys come out in the order of insertion, so that a simulated run is the same run again.
 * Owner:   nodes are embedded in the caller's objects; the heap owns only its array of pointers.
 * Threads: one at a time.
 * Errors:  TR_NOMEM from reserve and push only. A machine that may not allocate after init reserves its
 *          bound once; push within it cannot fail.
 */
#ifndef TR_PQUEUE_H
#define TR_PQUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/err.h>

struct tr_pqueue_node {
	int64_t key;
	uint64_t seq;
	size_t pos; /* 1-based place in the heap; 0: in none */
};

struct tr_pqueue {
	struct tr_pqueue_node **v;
	size_t n, cap;
	uint64_t seq;
};

void tr_pqueue_init(struct tr_pqueue *q);
void tr_pqueue_done(struct tr_pqueue *q); /* leaves the nodes alone */
int tr_pqueue_reserve(struct tr_pqueue *q, size_t n);
/* The node must be in no heap. */
int tr_pqueue_push(struct tr_pqueue *q, struct tr_pqueue_node *node, int64_t key);
struct tr_pqueue_node *tr_pqueue_pop(struct tr_pqueue *q); /* NULL when empty */
/* No effect on a node that is in no heap. */
void tr_pqueue_remove(struct tr_pqueue *q, struct tr_pqueue_node *node);
/* The node must be in the heap; it counts as newly inserted among equal keys. */
void tr_pqueue_update(struct tr_pqueue *q, struct tr_pqueue_node *node, int64_t key);

static inline struct tr_pqueue_node *
tr_pqueue_peek(const struct tr_pqueue *q)
{
	return q->n ? q->v[0] : NULL;
}

static inline bool
tr_pqueue_contains(const struct tr_pqueue_node *node)
{
	return node->pos != 0;
}

/* The least key, or INT64_MAX: reads as a deadline. */
static inline int64_t
tr_pqueue_next_key(const struct tr_pqueue *q)
{
	return q->n ? q->v[0]->key : INT64_MAX;
}

#endif
