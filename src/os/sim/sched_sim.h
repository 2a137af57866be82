/* sched_sim.h - threads, locks and waits as coroutines under one seeded scheduler.
 *
 * Purpose: to run the shipped threads, all of them, in one real thread and in an order that a seed decides: what a run did, the
 *          same seed does again. Linked in place of posix/thread_posix.c and posix/waker_posix.c (tr_os_sched_sim_dep first), so that
 *          thread.h and waker.h are the interface, and the clock of clock.h stands still while anybody can run.
 * Owner:   one simulation at a time. The caller of tr_sched_start is a thread of it, like those that tr_thread_start makes.
 * Threads: one real one.
 * Errors:  when everybody waits for ever, the `stuck` callback is called; it does not return.
 *
 * Where threads change: at each lock (one time in `preempt`), at every wait, wake and sleep. A thread that is ready may be held up for a
 * random while (one time in `stall`), as a busy machine would. Condition variables wake without cause now and then.
 *
 * tr_sched_crash is what SIGKILL does: all threads but the one that started the simulation are gone in the midst of what they did, and whatever lock they held
 * is free again. Their memory is lost, also to the leak checker.
 */
#ifndef TR_SCHED_SIM_H
#define TR_SCHED_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct tr_sched_options {
	uint64_t seed;
	uint32_t preempt, stall; /* one time in so many; 0: never */
	int64_t stall_max_ns;
	void (*stuck)(const char *who); /* names of the threads, with what they wait for */
	bool (*fd_ready)(int fd, short events); /* for descriptors of tr_wait_many, which are the caller's own invention */
};

void tr_sched_start(const struct tr_sched_options *o); /* also sets the clock: monotonic 1 s, wall time of 2026 */
void tr_sched_stop(void);                              /* as crash; the system's clock again */
void tr_sched_crash(void);                             /* from any thread; the one that started the simulation goes on */
void tr_sched_yield(void);
void tr_sched_step_wall(int64_t us);                   /* somebody sets the clock */
uint64_t tr_sched_switches(void);

#endif
