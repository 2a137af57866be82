#undef _FORTIFY_SOURCE /* it takes a jump to another stack for a mistake */

#include "sched_sim.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <tailrace/clock.h>
#include <tailrace/waker.h>

#include "check.h"
#include "prng.h"
#include "thread.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK = 512 << 10, FIBERS_MAX = 256 };

enum fiber_state { FREE, READY, BLOCKED };

/* Where a fiber goes on; apart from what the scheduler looks through at each step. */
struct place {
	ucontext_t ctx; /* its beginning; what comes later is in `at`: switching contexts costs two system calls, jumping none */
	jmp_buf at;
};

struct fiber {
	bool begun;
	void *stack;             /* kept for the next thread in this place */
	enum fiber_state state;
	const char *what;
	const struct tr_wait *waits;
	size_t n_waits;
	int64_t deadline_ns;
	bool by_time;            /* what made it ready */
	struct tr_thread *thread;
#ifdef WITH_ASAN
	void *fake;
	const void *bottom;
	size_t size;
#endif
};

struct tr_thread {
	tr_thread_fn fn;
	void *arg;
	char name[16];
	struct fiber *fiber; /* NULL: it has ended */
};

/* What lies in the memory of a tr_mutex. */
struct held {
	uint64_t life; /* of the process that took it: a crash frees all */
	struct fiber *by;
};

_Static_assert(sizeof(struct held) <= sizeof(struct tr_mutex), "a lock of the simulation fits into a tr_mutex");

static struct fiber fibers[FIBERS_MAX];
static struct place places[FIBERS_MAX]; /* of the fiber in the same place */
/* What it waits for: mutex, condition, waker or thread. NULL: only time, or nothing. Apart, because every unlock looks through them. */
static const void *waits_for[FIBERS_MAX];
static uint32_t n_fibers;
static struct fiber *running;
static struct tr_prng prng;
static struct tr_sched_options opt;
static struct tr_clock_sim sim_clock;
static uint64_t life = 1, switches;

static struct place *
place_of(const struct fiber *f)
{
	return &places[f - fibers];
}

static bool
chance(uint32_t one_in)
{
	return one_in != 0 && tr_prng_below(&prng, one_in) == 0;
}

/* ---- the scheduler ---- */

static void
make_ready(struct fiber *f, bool by_time)
{
	f->state = READY;
	f->by_time = by_time;
	waits_for[f - fibers] = NULL;
	f->waits = NULL;
	f->n_waits = 0;
}

static void
set_free(struct fiber *f)
{
	f->state = FREE;
	waits_for[f - fibers] = NULL;
}

static bool
has_input(const struct fiber *f)
{
	for (size_t i = 0; i < f->n_waits; i++)
		if (f->waits[i].fd >= 0 && opt.fd_ready && opt.fd_ready(f->waits[i].fd, f->waits[i].events))
			return true;
	return false;
}

static _Noreturn void
all_wait(void)
{
	char who[1024];
	size_t n = 0;

	for (uint32_t i = 0; i < n_fibers && n < sizeof who - 64; i++)
		if (fibers[i].state == BLOCKED)
			n += (size_t)snprintf(who + n, sizeof who - n, " %s:%s", fibers[i].thread ? fibers[i].thread->name : "main", fibers[i].what);
	opt.stuck(who);
	TR_UNREACHABLE();
}

static struct fiber *
pick(void)
{
	for (;;) {
		struct fiber *ready[FIBERS_MAX];
		uint32_t n = 0;
		int64_t next = INT64_MAX;

		for (uint32_t i = 0; i < n_fibers; i++) {
			struct fiber *f = &fibers[i];

			if (f->state == BLOCKED) {
				if (f->deadline_ns <= sim_clock.now_ns)
					make_ready(f, true);
				else if (f->n_waits && has_input(f))
					make_ready(f, false);
				else
					next = TR_MIN(next, f->deadline_ns);
			}
			if (f->state == READY)
				ready[n++] = f;
		}
		if (n)
			return ready[n == 1 ? 0 : tr_prng_below(&prng, n)];
		if (next == INT64_MAX)
			all_wait();
		tr_clock_sim_advance(&sim_clock, next - sim_clock.now_ns);
	}
}

static void
switch_to(struct fiber *to)
{
	struct fiber *from = running;

	switches++;
	tr_clock_sim_advance(&sim_clock, (int64_t)tr_prng_below(&prng, 2 * TR_NS_PER_US));
	if (to == from)
		return;
	running = to;
#ifdef WITH_ASAN
	__sanitizer_start_switch_fiber(from->state == FREE ? NULL : &from->fake, to->bottom, to->size);
#endif
	if (_setjmp(place_of(from)->at) == 0) {
		if (to->begun)
			_longjmp(place_of(to)->at, 1);
		to->begun = true;
		setcontext(&place_of(to)->ctx);
	}
#ifdef WITH_ASAN
	__sanitizer_finish_switch_fiber(running->fake, NULL, NULL);
#endif
}

/* Until `on` is announced, one of the waits is ready, or the deadline. True: the latter. */
static bool
block(const void *on, const char *what, const struct tr_wait *v, size_t n, int64_t deadline_ns)
{
	struct fiber *f = running;

	f->state = BLOCKED;
	waits_for[f - fibers] = on;
	f->what = what;
	f->waits = v;
	f->n_waits = n;
	f->deadline_ns = deadline_ns;
	switch_to(pick());
	return f->by_time;
}

static void
announce(const void *on, bool all)
{
	struct fiber *waiting[FIBERS_MAX];
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_fibers; i++)
		if (waits_for[i] == on)
			waiting[n++] = &fibers[i];
	if (n && !all) {
		make_ready(waiting[tr_prng_below(&prng, n)], false);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		make_ready(waiting[i], false);
}

void
tr_sched_yield(void)
{
	if (chance(opt.stall))
		block(NULL, "held up", NULL, 0, sim_clock.now_ns + 1 + (int64_t)tr_prng_below(&prng, (uint64_t)opt.stall_max_ns));
	else
		switch_to(pick());
}

/* ---- the clock ---- */

static int64_t
now_ns(struct tr_clock *c)
{
	(void)c;
	return sim_clock.now_ns;
}

static int64_t
wall_us(struct tr_clock *c)
{
	(void)c;
	return sim_clock.wall_us;
}

static void
sleep_ns(struct tr_clock *c, int64_t ns)
{
	(void)c;
	block(NULL, "sleep", NULL, 0, tr_deadline_ns(sim_clock.now_ns, ns));
}

static struct tr_clock clock_of_all = { now_ns, wall_us, sleep_ns };

void
tr_sched_step_wall(int64_t us)
{
	sim_clock.wall_us += us;
}

/* ---- life ---- */

void
tr_sched_start(const struct tr_sched_options *o)
{
	opt = *o;
	tr_prng_init(&prng, o->seed);
	tr_clock_sim_init(&sim_clock, TR_NS_PER_S, INT64_C(1790000000000000));
	tr_clock_set(&clock_of_all);
	switches = 0;
	n_fibers = TR_MAX(n_fibers, 1u);
	for (uint32_t i = 0; i < n_fibers; i++)
		set_free(&fibers[i]);
	running = &fibers[0];
	running->state = READY;
	running->begun = true;
	running->thread = NULL;
}

void
tr_sched_crash(void)
{
	for (uint32_t i = 1; i < n_fibers; i++)
		set_free(&fibers[i]);
	life++;
	if (running == &fibers[0])
		return;
	make_ready(&fibers[0], false);
	switch_to(&fibers[0]);
	TR_UNREACHABLE();
}

void
tr_sched_stop(void)
{
	tr_sched_crash();
	tr_clock_set(NULL);
}

uint64_t
tr_sched_switches(void)
{
	return switches;
}

/* ---- thread.h ---- */

static void
fiber_main(void)
{
	struct fiber *self = running;
	struct tr_thread *t = self->thread;

#ifdef WITH_ASAN
	{
		const void *bottom;
		size_t size;

		__sanitizer_finish_switch_fiber(NULL, &bottom, &size);
		if (!fibers[0].bottom) { /* the first switch came from the caller's stack */
			fibers[0].bottom = bottom;
			fibers[0].size = size;
		}
	}
#endif
	t->fn(t->arg);
	t->fiber = NULL;
	announce(t, true);
	self->state = FREE;
	switch_to(pick());
	TR_UNREACHABLE();
}

static struct fiber *
free_place(void)
{
	struct fiber *f = NULL;

	for (uint32_t i = 1; i < n_fibers && !f; i++)
		if (fibers[i].state == FREE)
			f = &fibers[i];
	if (!f && n_fibers < FIBERS_MAX)
		f = &fibers[n_fibers++];
	TR_ASSERT(f != NULL);
	if (!f->stack) {
		f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		TR_ASSERT(f->stack != MAP_FAILED);
	}
	return f;
}

int
tr_thread_start(struct tr_thread **ret, const char *name, tr_thread_fn fn, void *arg, struct tr_err *err)
{
	struct tr_thread *t = calloc(1, sizeof *t);
	struct fiber *f = free_place();
	ucontext_t *ctx = &place_of(f)->ctx;

	(void)err;
	TR_ASSERT(t != NULL);
	t->fn = fn;
	t->arg = arg;
	memcpy(t->name, name, strnlen(name, sizeof t->name - 1));
	t->fiber = f;
	getcontext(ctx);
	ctx->uc_stack.ss_sp = f->stack;
	ctx->uc_stack.ss_size = STACK;
	ctx->uc_link = NULL;
	f->thread = t;
	f->deadline_ns = INT64_MAX;
#ifdef WITH_ASAN
	__asan_unpoison_memory_region(f->stack, STACK);
	f->fake = NULL;
	f->bottom = f->stack;
	f->size = STACK;
#endif
	f->begun = false;
	makecontext(ctx, fiber_main, 0);
	make_ready(f, false);
	*ret = t;
	tr_sched_yield();
	return TR_OK;
}

struct tr_thread *
tr_thread_join(struct tr_thread *t)
{
	if (t) {
		while (t->fiber)
			block(t, "join", NULL, 0, INT64_MAX);
		free(t);
	}
	return NULL;
}

int
tr_thread_pin(int cpu, struct tr_err *err)
{
	(void)cpu;
	(void)err;
	return TR_OK;
}

static struct held *
held_of(struct tr_mutex *m)
{
	return (struct held *)(void *)m;
}

void
tr_mutex_init(struct tr_mutex *m)
{
	memset(m, 0, sizeof *m);
}

void
tr_mutex_done(struct tr_mutex *m)
{
	struct held *h = held_of(m);

	TR_ASSERT(!(h->by && h->life == life));
}

static void
take(struct tr_mutex *m)
{
	struct held *h = held_of(m);

	while (h->by && h->life == life) {
		TR_ASSERT(h->by != running);
		block(m, "lock", NULL, 0, INT64_MAX);
	}
	*h = (struct held){ life, running };
}

void
tr_mutex_lock(struct tr_mutex *m)
{
	if (chance(opt.preempt))
		tr_sched_yield();
	take(m);
}

void
tr_mutex_unlock(struct tr_mutex *m)
{
	struct held *h = held_of(m);

	TR_ASSERT(h->by == running && h->life == life);
	h->by = NULL;
	announce(m, false);
	if (chance(opt.preempt))
		tr_sched_yield();
}

void
tr_cond_init(struct tr_cond *c)
{
	memset(c, 0, sizeof *c);
}

void
tr_cond_done(struct tr_cond *c)
{
	(void)c;
}

void
tr_cond_signal(struct tr_cond *c)
{
	announce(c, false);
}

void
tr_cond_broadcast(struct tr_cond *c)
{
	announce(c, true);
}

bool
tr_cond_wait_until(struct tr_cond *c, struct tr_mutex *m, int64_t deadline_ns)
{
	struct held *h = held_of(m);
	bool late;

	TR_ASSERT(h->by == running && h->life == life);
	h->by = NULL;
	announce(m, false);
	if (chance(64)) { /* wakes without cause */
		tr_sched_yield();
		late = sim_clock.now_ns >= deadline_ns;
	} else {
		late = block(c, "condition", NULL, 0, deadline_ns);
	}
	take(m);
	return !late;
}

/* ---- waker.h ---- */

int
tr_waker_init(struct tr_waker *w, struct tr_err *err)
{
	(void)err;
	atomic_init(&w->pending, 0);
	w->fd = 0;
	return TR_OK;
}

void
tr_waker_done(struct tr_waker *w)
{
	if (w)
		w->fd = -1;
}

void
tr_waker_wake(struct tr_waker *w)
{
	if (!w)
		return;
	atomic_store(&w->pending, 1);
	announce(w, true);
	if (chance(opt.preempt))
		tr_sched_yield();
}

void
tr_waker_clear(struct tr_waker *w)
{
	atomic_store(&w->pending, 0);
}

int
tr_wait_many(struct tr_waker *w, const struct tr_wait *v, size_t n, int64_t max_ns, struct tr_err *err)
{
	int64_t until = tr_deadline_ns(sim_clock.now_ns, max_ns);
	int ready = 0;

	(void)err;
	for (size_t i = 0; i < n; i++)
		until = TR_MIN(until, v[i].deadline_ns);
	running->waits = v;
	running->n_waits = n;
	if (max_ns == 0 || (w && atomic_load(&w->pending)) || until <= sim_clock.now_ns || has_input(running)) {
		tr_sched_yield();
	} else {
		block(w, "wait", v, n, until);
	}
	running->waits = NULL;
	running->n_waits = 0;
	for (size_t i = 0; i < n; i++)
		ready += (v[i].fd >= 0 && opt.fd_ready && opt.fd_ready(v[i].fd, v[i].events)) || v[i].deadline_ns <= sim_clock.now_ns;
	if (w && atomic_exchange(&w->pending, 0))
		ready++;
	return ready;
}
