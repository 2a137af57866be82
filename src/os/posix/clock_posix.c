
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include <tailrace/clock.h>

static struct tr_clock *_Atomic replaced;

static int64_t
read_clock(clockid_t id, int64_t per_s, int64_t ns_per_unit)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * per_s + ts.tv_nsec / ns_per_unit;
}

int64_t
tr_now_ns(void)
{
	struct tr_clock *c = atomic_load_explicit(&replaced, memory_order_acquire);

	return c ? c->now_ns(c) : read_clock(CLOCK_MONOTONIC, TR_NS_PER_S, 1);
}

int64_t
tr_wall_us(void)
{
	struct tr_clock *c = atomic_load_explicit(&replaced, memory_order_acquire);

	return c ? c->wall_us(c) : read_clock(CLOCK_REALTIME, 1000000, 1000);
}

void
tr_sleep_ns(int64_t ns)
{
	struct tr_clock *c = atomic_load_explicit(&replaced, memory_order_acquire);
	struct timespec ts;

	if (ns <= 0)
		return;
	if (c) {
		c->sleep_ns(c, ns);
		return;
	}
	ts = (struct timespec){ .tv_sec = ns / TR_NS_PER_S, .tv_nsec = ns % TR_NS_PER_S };
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

void
tr_clock_set(struct tr_clock *clock)
{
	atomic_store_explicit(&replaced, clock, memory_order_release);
}
