/* clock.h - the only clock.
 *
 * Purpose: monotonic nanoseconds for deadlines and intervals, wall time for records; both through a replaceable
 *          struct tr_clock, so that the simulator owns time.
 * Owner:   whoever sets a clock keeps it alive until the next tr_clock_set.
 * Threads: reading: any. Setting: at start or between test cases.
 * Errors:  none.
 *
 * Waits in the kernel (tr_cond_wait_until, tr_wait_many) measure against the real CLOCK_MONOTONIC; the simulator
 * runs no threads and never waits.
 */
#ifndef TAILRACE_CLOCK_H
#define TAILRACE_CLOCK_H

#include <stdint.h>

#define TR_NS_PER_US INT64_C(1000)
#define TR_NS_PER_MS INT64_C(1000000)
#define TR_NS_PER_S INT64_C(1000000000)

struct tr_clock {
	int64_t (*now_ns)(struct tr_clock *c);
	int64_t (*wall_us)(struct tr_clock *c);
	void (*sleep_ns)(struct tr_clock *c, int64_t ns);
};

int64_t tr_now_ns(void);  /* monotonic; only differences mean anything */
int64_t tr_wall_us(void); /* microseconds since 1970-01-01 UTC */
void tr_sleep_ns(int64_t ns);
void tr_clock_set(struct tr_clock *clock); /* NULL: the system's */

/* now + delta without overflow; a delta of INT64_MAX is "never". */
static inline int64_t
tr_deadline_ns(int64_t now_ns, int64_t delta_ns)
{
	int64_t r;

	return __builtin_add_overflow(now_ns, delta_ns, &r) ? (delta_ns > 0 ? INT64_MAX : INT64_MIN) : r;
}

/* A clock that stands still until it is moved; sleeping moves it. One thread. */
struct tr_clock_sim {
	struct tr_clock clock;
	int64_t now_ns, wall_us;
};

void tr_clock_sim_init(struct tr_clock_sim *c, int64_t now_ns, int64_t wall_us);
void tr_clock_sim_advance(struct tr_clock_sim *c, int64_t ns); /* wall time goes along */

#endif
