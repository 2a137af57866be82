#include <limits.h>

#include <tailrace/waker.h>

#include "alloc.h"
#include "check.h"
#include "thread.h"

int
tr_queue_init(struct tr_queue *q, size_t cap, struct tr_err *err)
{
	TR_ASSERT(cap > 0);
	*q = (struct tr_queue){ .cap = cap };
	q->v = (void **)tr_calloc(cap, sizeof *q->v);
	if (!q->v)
		return tr_err_set(err, TR_NOMEM, TR_DOM_SYS, "no memory for a queue of %zu", cap);
	tr_mutex_init(&q->lock);
	tr_cond_init(&q->ready);
	return TR_OK;
}

void
tr_queue_done(struct tr_queue *q)
{
	if (!q || !q->v)
		return;
	tr_free(q->v);
	q->v = NULL;
	tr_cond_done(&q->ready);
	tr_mutex_done(&q->lock);
}

void
tr_queue_set_wakers(struct tr_queue *q, struct tr_waker *on_push, struct tr_waker *on_room)
{
	q->on_push = on_push;
	q->on_room = on_room;
}

int
tr_queue_try_push(struct tr_queue *q, void *p)
{
	int rc = TR_OK;
	bool signal = false;

	TR_ASSERT(p != NULL);
	tr_mutex_lock(&q->lock);
	if (q->closed) {
		rc = TR_EOF;
	} else if (q->n == q->cap) {
		q->want_room = true;
		rc = TR_AGAIN;
	} else {
		size_t at = q->head + q->n++;

		q->v[at >= q->cap ? at - q->cap : at] = p;
		signal = q->waiting > 0;
	}
	if (signal)
		tr_cond_signal(&q->ready);
	/* Woken under the lock: after close and a last pop the owner may take the queue apart. */
	if (rc == TR_OK)
		tr_waker_wake(q->on_push);
	tr_mutex_unlock(&q->lock);
	return rc;
}

int
tr_queue_pop_many(struct tr_queue *q, int64_t deadline_ns, void **v, size_t max)
{
	size_t k = 0;
	int rc;

	tr_mutex_lock(&q->lock);
	while (q->n == 0 && !q->closed && deadline_ns > 0) {
		bool in_time;

		q->waiting++;
		in_time = tr_cond_wait_until(&q->ready, &q->lock, deadline_ns);
		q->waiting--;
		if (!in_time)
			break;
	}
	while (k < max && k < INT_MAX && q->n) {
		v[k++] = q->v[q->head];
		q->head = q->head + 1 == q->cap ? 0 : q->head + 1;
		q->n--;
	}
	if (k && q->want_room) {
		q->want_room = false;
		tr_waker_wake(q->on_room);
	}
	rc = k ? (int)k : q->n ? 0 : q->closed ? TR_EOF : TR_AGAIN;
	tr_mutex_unlock(&q->lock);
	return rc;
}

int
tr_queue_pop(struct tr_queue *q, int64_t deadline_ns, void **ret)
{
	int rc = tr_queue_pop_many(q, deadline_ns, ret, 1);

	return rc > 0 ? TR_OK : rc;
}

size_t
tr_queue_count(struct tr_queue *q)
{
	size_t n;

	tr_mutex_lock(&q->lock);
	n = q->n;
	tr_mutex_unlock(&q->lock);
	return n;
}

void
tr_queue_close(struct tr_queue *q)
{
	tr_mutex_lock(&q->lock);
	q->closed = true;
	tr_cond_broadcast(&q->ready);
	tr_waker_wake(q->on_push);
	tr_waker_wake(q->on_room);
	tr_mutex_unlock(&q->lock);
}
