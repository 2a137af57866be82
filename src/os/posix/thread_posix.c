#include "thread.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"

struct tr_thread {
	pthread_t id;
	tr_thread_fn fn;
	void *arg;
	char name[16];
};

static void *
thread_main(void *p)
{
	struct tr_thread *t = p;

	pthread_setname_np(pthread_self(), t->name);
	t->fn(t->arg);
	return NULL;
}

int
tr_thread_start(struct tr_thread **ret, const char *name, tr_thread_fn fn, void *arg, struct tr_err *err)
{
	struct tr_thread *t = tr_calloc(1, sizeof *t);
	sigset_t all, before;
	int e;

	if (!t)
		return tr_err_set(err, TR_NOMEM, TR_DOM_SYS, "no memory for thread %s", name);
	t->fn = fn;
	t->arg = arg;
	memcpy(t->name, name, strnlen(name, sizeof t->name - 1));
	/* Blocked here, inherited there: no moment in which the child could take one. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	e = pthread_create(&t->id, NULL, thread_main, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (e) {
		tr_free(t);
		return tr_err_sys(err, TR_RETRY, e, "start of thread %s", name);
	}
	*ret = t;
	return TR_OK;
}

struct tr_thread *
tr_thread_join(struct tr_thread *t)
{
	if (t) {
		int e = pthread_join(t->id, NULL);

		TR_ASSERT(e == 0);
		tr_free(t);
	}
	return NULL;
}

int
tr_thread_pin(int cpu, struct tr_err *err)
{
	cpu_set_t set;
	int e;

	if (cpu < 0 || cpu >= CPU_SETSIZE)
		return tr_err_set(err, TR_REJECT, TR_DOM_SYS, "there is no processor %d", cpu);
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	e = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
	return e ? tr_err_sys(err, TR_REJECT, e, "pin to processor %d", cpu) : TR_OK;
}

#define MUST(call)                                                                        \
	do {                                                                              \
		int must_ = (call);                                                       \
		TR_ASSERT(must_ == 0);                                                    \
	} while (0)

void
tr_mutex_init(struct tr_mutex *m)
{
	MUST(pthread_mutex_init(&m->m, NULL));
}

void
tr_mutex_done(struct tr_mutex *m)
{
	MUST(pthread_mutex_destroy(&m->m));
}

void
tr_mutex_lock(struct tr_mutex *m)
{
	MUST(pthread_mutex_lock(&m->m));
}

void
tr_mutex_unlock(struct tr_mutex *m)
{
	MUST(pthread_mutex_unlock(&m->m));
}

void
tr_cond_init(struct tr_cond *c)
{
	pthread_condattr_t attr;

	MUST(pthread_condattr_init(&attr));
	MUST(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
	MUST(pthread_cond_init(&c->c, &attr));
	MUST(pthread_condattr_destroy(&attr));
}

void
tr_cond_done(struct tr_cond *c)
{
	MUST(pthread_cond_destroy(&c->c));
}

void
tr_cond_signal(struct tr_cond *c)
{
	MUST(pthread_cond_signal(&c->c));
}

void
tr_cond_broadcast(struct tr_cond *c)
{
	MUST(pthread_cond_broadcast(&c->c));
}

bool
tr_cond_wait_until(struct tr_cond *c, struct tr_mutex *m, int64_t deadline_ns)
{
	struct timespec ts = { 0 };
	int e;

	if (deadline_ns == INT64_MAX) {
		MUST(pthread_cond_wait(&c->c, &m->m));
		return true;
	}
	if (deadline_ns > 0) {
		ts.tv_sec = deadline_ns / TR_NS_PER_S;
		ts.tv_nsec = deadline_ns % TR_NS_PER_S;
	}
	e = pthread_cond_timedwait(&c->c, &m->m, &ts);
	TR_ASSERT(e == 0 || e == ETIMEDOUT);
	return e == 0;
}
