#include "pqueue.h"

#include "alloc.h"
#include "check.h"

void
tr_pqueue_init(struct tr_pqueue *q)
{
	*q = (struct tr_pqueue){ 0 };
}

void
tr_pqueue_done(struct tr_pqueue *q)
{
	if (!q)
		return;
	tr_free(q->v);
	tr_pqueue_init(q);
}

int
tr_pqueue_reserve(struct tr_pqueue *q, size_t n)
{
	struct tr_pqueue_node **v;

	if (n <= q->cap)
		return TR_OK;
	if (n > PTRDIFF_MAX / sizeof *v)
		return TR_NOMEM;
	v = tr_realloc(q->v, n * sizeof *v);
	if (!v)
		return TR_NOMEM;
	q->v = v;
	q->cap = n;
	return TR_OK;
}

static bool
before(const struct tr_pqueue_node *a, const struct tr_pqueue_node *b)
{
	return a->key != b->key ? a->key < b->key : a->seq < b->seq;
}

static void
place(struct tr_pqueue *q, size_t i, struct tr_pqueue_node *node)
{
	q->v[i] = node;
	node->pos = i + 1;
}

static void
sift_up(struct tr_pqueue *q, size_t i, struct tr_pqueue_node *node)
{
	while (i > 0) {
		size_t up = (i - 1) / 2;

		if (!before(node, q->v[up]))
			break;
		place(q, i, q->v[up]);
		i = up;
	}
	place(q, i, node);
}

static void
sift_down(struct tr_pqueue *q, size_t i, struct tr_pqueue_node *node)
{
	for (;;) {
		size_t down = 2 * i + 1;

		if (down >= q->n)
			break;
		if (down + 1 < q->n && before(q->v[down + 1], q->v[down]))
			down++;
		if (!before(q->v[down], node))
			break;
		place(q, i, q->v[down]);
		i = down;
	}
	place(q, i, node);
}

int
tr_pqueue_push(struct tr_pqueue *q, struct tr_pqueue_node *node, int64_t key)
{
	TR_ASSERT(node->pos == 0);
	if (q->n == q->cap && tr_pqueue_reserve(q, q->cap ? q->cap * 2 : 16) < 0)
		return TR_NOMEM;
	node->key = key;
	node->seq = q->seq++;
	q->n++;
	sift_up(q, q->n - 1, node);
	return TR_OK;
}

static void
resift(struct tr_pqueue *q, size_t i, struct tr_pqueue_node *node)
{
	if (i > 0 && before(node, q->v[(i - 1) / 2]))
		sift_up(q, i, node);
	else
		sift_down(q, i, node);
}

void
tr_pqueue_remove(struct tr_pqueue *q, struct tr_pqueue_node *node)
{
	struct tr_pqueue_node *last;
	size_t i;

	if (node->pos == 0)
		return;
	i = node->pos - 1;
	TR_ASSERT(i < q->n && q->v[i] == node);
	node->pos = 0;
	last = q->v[--q->n];
	if (last != node)
		resift(q, i, last);
}

struct tr_pqueue_node *
tr_pqueue_pop(struct tr_pqueue *q)
{
	struct tr_pqueue_node *node = tr_pqueue_peek(q);

	if (node)
		tr_pqueue_remove(q, node);
	return node;
}

void
tr_pqueue_update(struct tr_pqueue *q, struct tr_pqueue_node *node, int64_t key)
{
	size_t i = node->pos - 1;

	TR_ASSERT(node->pos != 0 && i < q->n && q->v[i] == node);
	node->key = key;
	node->seq = q->seq++;
	resift(q, i, node);
}
