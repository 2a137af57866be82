/* list.h - intrusive doubly linked list with a sentinel.
 *
 * Purpose: queues and sets whose members know their place; no allocation.
 * Owner:   members are embedded in the caller's objects; the list owns nothing.
 * Threads: one at a time. Errors: none.
 *
 * A node that is in no list points to itself after tr_list_init or tr_list_del, so deleting twice is harmless.
 */
#ifndef TR_LIST_H
#define TR_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "check.h"

struct tr_list {
	struct tr_list *prev, *next;
};

static inline void
tr_list_init(struct tr_list *l)
{
	l->prev = l->next = l;
}

/* No members; or, asked of a node: in no list. */
static inline bool
tr_list_empty(const struct tr_list *l)
{
	return l->next == l;
}

static inline void
tr_list_insert_before(struct tr_list *pos, struct tr_list *n)
{
	n->prev = pos->prev;
	n->next = pos;
	pos->prev->next = n;
	pos->prev = n;
}

static inline void
tr_list_push_back(struct tr_list *l, struct tr_list *n)
{
	tr_list_insert_before(l, n);
}

static inline void
tr_list_push_front(struct tr_list *l, struct tr_list *n)
{
	tr_list_insert_before(l->next, n);
}

static inline void
tr_list_del(struct tr_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	tr_list_init(n);
}

/* NULL when empty. */
static inline struct tr_list *
tr_list_first(const struct tr_list *l)
{
	return l->next == l ? NULL : l->next;
}

static inline struct tr_list *
tr_list_last(const struct tr_list *l)
{
	return l->prev == l ? NULL : l->prev;
}

static inline struct tr_list *
tr_list_pop_front(struct tr_list *l)
{
	struct tr_list *n = tr_list_first(l);

	if (n)
		tr_list_del(n);
	return n;
}

/* All members of from go to the end of l; from is empty then. */
static inline void
tr_list_splice_back(struct tr_list *l, struct tr_list *from)
{
	if (tr_list_empty(from))
		return;
	from->next->prev = l->prev;
	l->prev->next = from->next;
	from->prev->next = l;
	l->prev = from->prev;
	tr_list_init(from);
}

static inline size_t
tr_list_count(const struct tr_list *l)
{
	const struct tr_list *i;
	size_t n = 0;

	for (i = l->next; i != l; i = i->next)
		n++;
	return n;
}

/* it may be deleted within the body; other members may not. */
#define TR_LIST_EACH(it, l)                                                               \
	for (struct tr_list *it = (l)->next, *it##_next_ = it->next; it != (l);           \
	     it = it##_next_, it##_next_ = it->next)

#endif
