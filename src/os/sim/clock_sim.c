#include "check.h"

#include <tailrace/clock.h>

static int64_t
sim_now_ns(struct tr_clock *c)
{
	return tr_container_of(c, struct tr_clock_sim, clock)->now_ns;
}

static int64_t
sim_wall_us(struct tr_clock *c)
{
	return tr_container_of(c, struct tr_clock_sim, clock)->wall_us;
}

static void
sim_sleep_ns(struct tr_clock *c, int64_t ns)
{
	tr_clock_sim_advance(tr_container_of(c, struct tr_clock_sim, clock), ns);
}

void
tr_clock_sim_init(struct tr_clock_sim *c, int64_t now_ns, int64_t wall_us)
{
	c->clock = (struct tr_clock){ sim_now_ns, sim_wall_us, sim_sleep_ns };
	c->now_ns = now_ns;
	c->wall_us = wall_us;
}

void
tr_clock_sim_advance(struct tr_clock_sim *c, int64_t ns)
{
	/* whole microseconds by difference of the totals, so that small steps are not lost */
	int64_t before_us = c->now_ns / TR_NS_PER_US;

	TR_ASSERT(ns >= 0);
	c->now_ns += ns;
	c->wall_us += c->now_ns / TR_NS_PER_US - before_us;
}
