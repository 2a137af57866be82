/* thread.h - threads, locks, and the bounded queue between them.
 *
 * Purpose: thin wrappers over pthreads whose waits have deadlines on CLOCK_MONOTONIC, and tr_queue, by which threads share.
 * Owner:   the starter owns a tr_thread until join. A queue borrows the pointers that pass through it.
 * Threads: tr_queue: any number of producers and consumers.
 * Errors:  TR_RETRY when the system has no thread to give; TR_NOMEM. Misuse of a lock is an assertion.
 *
 * All signals are blocked in started threads: only the main thread handles them.
 */
#ifndef TR_THREAD_H
#define TR_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/err.h>

struct tr_thread;
struct tr_waker;

typedef void (*tr_thread_fn)(void *arg);

/* name: at most 15 bytes are shown by the system. */
int tr_thread_start(struct tr_thread **ret, const char *name, tr_thread_fn fn, void *arg, struct tr_err *err);
struct tr_thread *tr_thread_join(struct tr_thread *t); /* waits; NULL is accepted; returns NULL */
int tr_thread_pin(int cpu, struct tr_err *err);        /* the calling thread */

struct tr_mutex {
	pthread_mutex_t m;
};

struct tr_cond {
	pthread_cond_t c;
};

#define TR_MUTEX_INITIALIZER { PTHREAD_MUTEX_INITIALIZER }

void tr_mutex_init(struct tr_mutex *m);
void tr_mutex_done(struct tr_mutex *m);
void tr_mutex_lock(struct tr_mutex *m);
void tr_mutex_unlock(struct tr_mutex *m);

void tr_cond_init(struct tr_cond *c);
void tr_cond_done(struct tr_cond *c);
void tr_cond_signal(struct tr_cond *c);
void tr_cond_broadcast(struct tr_cond *c);
/* false: the deadline (real CLOCK_MONOTONIC ns; INT64_MAX: none) has passed. True may be spurious: loop over the condition. */
bool tr_cond_wait_until(struct tr_cond *c, struct tr_mutex *m, int64_t deadline_ns);

struct tr_queue {
	struct tr_mutex lock; /* guards all below */
	struct tr_cond ready;
	void **v;
	size_t head, n, cap;
	size_t waiting; /* consumers in pop */
	bool closed, want_room;
	struct tr_waker *on_push, *on_room;
};

int tr_queue_init(struct tr_queue *q, size_t cap, struct tr_err *err);
void tr_queue_done(struct tr_queue *q); /* no thread may use it any more; what is left in it is the caller's loss */
/* Before the first use. on_push: woken by each push and by close (NULL: none). on_room: woken by the first pop after a push was
 * refused. */
void tr_queue_set_wakers(struct tr_queue *q, struct tr_waker *on_push, struct tr_waker *on_room);
/* Never blocks. TR_AGAIN: full; TR_EOF: closed. p is not NULL. */
int tr_queue_try_push(struct tr_queue *q, void *p);
/* TR_AGAIN: nothing until the deadline (0: only look); TR_EOF: closed and empty. */
int tr_queue_pop(struct tr_queue *q, int64_t deadline_ns, void **ret);
/* As many as are there, up to max, in order; waits only for the first. The count, or as tr_queue_pop. */
int tr_queue_pop_many(struct tr_queue *q, int64_t deadline_ns, void **v, size_t max);
size_t tr_queue_count(struct tr_queue *q);
void tr_queue_close(struct tr_queue *q); /* what is in it can still be popped */

#endif
