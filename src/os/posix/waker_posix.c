
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <tailrace/clock.h>
#include <tailrace/waker.h>

#include "alloc.h"
#include "check.h"

int
tr_waker_init(struct tr_waker *w, struct tr_err *err)
{
	atomic_init(&w->pending, 0);
	w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w->fd < 0)
		return tr_err_sys(err, TR_RETRY, errno, "eventfd");
	return TR_OK;
}

void
tr_waker_done(struct tr_waker *w)
{
	if (!w || w->fd < 0)
		return;
	close(w->fd);
	w->fd = -1;
}

void
tr_waker_wake(struct tr_waker *w)
{
	int saved = errno;
	uint64_t one = 1;

	if (!w || atomic_exchange_explicit(&w->pending, 1, memory_order_acq_rel))
		return;
	/* fails only when the counter is full, and then it is readable anyway */
	while (write(w->fd, &one, sizeof one) < 0 && errno == EINTR)
		;
	errno = saved;
}

void
tr_waker_clear(struct tr_waker *w)
{
	uint64_t count;

	/* Read first: the other way round a wake between the two would set pending, its write would be read away here, and
	 * no later wake would ever write again. A wake between them in this order finds pending set and writes nothing,
	 * but the caller has yet to look, and the exchange makes it see what that wake announced. */
	while (read(w->fd, &count, sizeof count) < 0 && errno == EINTR)
		;
	atomic_exchange_explicit(&w->pending, 0, memory_order_acq_rel);
}

enum { ON_STACK = 64 };

static int
count_ready(struct tr_waker *w, const struct tr_wait *v, size_t n, const struct pollfd *p)
{
	int64_t now = tr_now_ns();
	int ready = 0;

	for (size_t i = 0; i < n; i++)
		ready += (v[i].fd >= 0 && p[i].revents != 0) || v[i].deadline_ns <= now;
	if (w && p[n].revents) {
		tr_waker_clear(w);
		ready++;
	}
	return ready;
}

int
tr_wait_many(struct tr_waker *w, const struct tr_wait *v, size_t n, int64_t max_ns, struct tr_err *err)
{
	struct pollfd few[ON_STACK + 1], *p = few;
	int64_t now = tr_now_ns(), until = tr_deadline_ns(now, max_ns);
	struct timespec ts, *timeout = NULL;
	int rc;

	if (n > ON_STACK) {
		p = tr_malloc((n + 1) * sizeof *p);
		if (!p)
			return tr_err_set(err, TR_NOMEM, TR_DOM_SYS, "no memory to wait for %zu descriptors", n);
	}
	for (size_t i = 0; i < n; i++) {
		p[i] = (struct pollfd){ .fd = v[i].fd, .events = v[i].events };
		until = TR_MIN(until, v[i].deadline_ns);
	}
	p[n] = (struct pollfd){ .fd = w ? w->fd : -1, .events = POLLIN };
	if (until != INT64_MAX) {
		int64_t left = until > now ? until - now : 0;

		ts = (struct timespec){ .tv_sec = left / TR_NS_PER_S, .tv_nsec = left % TR_NS_PER_S };
		timeout = &ts;
	}
	rc = ppoll(p, n + 1, timeout, NULL);
	if (rc >= 0)
		rc = count_ready(w, v, n, p);
	else if (errno == EINTR)
		rc = 0;
	else
		rc = tr_err_sys(err, TR_FATAL, errno, "poll on %zu descriptors", n + 1);
	if (p != few)
		tr_free(p);
	return rc;
}
