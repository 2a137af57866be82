/* waker.h - one wait for everything.
 *
 * Purpose: an engine thread sleeps in exactly one place: tr_wait_many, over the descriptors and deadlines of its lanes
 *          and its own waker (an eventfd).
 * Owner:   the waiting thread owns its waker; wakers of others hold borrowed pointers and must be gone before tr_waker_done.
 * Threads: tr_waker_wake: any thread, and signal handlers. The rest: the waiting thread.
 * Errors:  TR_RETRY from init when descriptors have run out; TR_FATAL from a wait that the kernel refuses.
 *
 * Wakes coalesce: while one is pending, further ones cost one atomic exchange and no system call. Nobody may conclude
 * from a wake what happened: after each wait, look at everything. tr_wait_many clears the waker when it fired, *before* it
 * returns, so what was published before a wake is seen by the look that follows.
 */
#ifndef TAILRACE_WAKER_H
#define TAILRACE_WAKER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/err.h>

struct tr_waker {
	_Atomic uint32_t pending;
	int fd;
};

struct tr_wait {
	int fd;              /* -1: none */
	short events;        /* POLLIN, POLLOUT */
	int64_t deadline_ns; /* on tr_now_ns; INT64_MAX: none */
};

int tr_waker_init(struct tr_waker *w, struct tr_err *err);
void tr_waker_done(struct tr_waker *w);
void tr_waker_wake(struct tr_waker *w); /* NULL: nothing */
void tr_waker_clear(struct tr_waker *w);

/* How many are ready: waits whose descriptor is (errors and hang-ups included) or whose deadline has passed, plus the waker
 * (NULL: none). 0: max_ns have passed (0: only look; INT64_MAX: no limit) or a signal came. */
int tr_wait_many(struct tr_waker *w, const struct tr_wait *v, size_t n, int64_t max_ns, struct tr_err *err);

#endif
