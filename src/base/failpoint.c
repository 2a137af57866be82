#include "failpoint.h"

#include <stdlib.h>
#include <string.h>

#include <tailrace/slice.h>

enum action { ACT_KILL, ACT_ERROR, ACT_SLEEP };

struct point {
	char name[TR_FAILPOINT_NAME_MAX + 1];
	enum action action;
	uint64_t ms, from, to; /* acts on passings from … to */
	_Atomic uint64_t hits;
};

/* The first tr_failpoints_armed entries are valid; published by the release store of that count. */
_Atomic uint32_t tr_failpoints_armed;
static struct point points[TR_FAILPOINTS_MAX];
static tr_failpoint_kill_fn do_kill;
static tr_failpoint_sleep_fn do_sleep;

void
tr_failpoint_set_hooks(tr_failpoint_kill_fn kill_fn, tr_failpoint_sleep_fn sleep_fn)
{
	do_kill = kill_fn;
	do_sleep = sleep_fn;
}

bool
tr_failpoint_hit(const char *name)
{
	uint32_t n = atomic_load_explicit(&tr_failpoints_armed, memory_order_acquire);
	bool fail = false;

	for (uint32_t i = 0; i < n; i++) {
		struct point *p = &points[i];
		uint64_t k;

		if (strcmp(p->name, name) != 0)
			continue;
		k = atomic_fetch_add_explicit(&p->hits, 1, memory_order_relaxed) + 1;
		if (k < p->from || k > p->to)
			continue;
		switch (p->action) {
		case ACT_KILL:
			if (do_kill)
				do_kill();
			abort();
		case ACT_SLEEP:
			if (do_sleep)
				do_sleep(p->ms);
			break;
		case ACT_ERROR:
			fail = true;
			break;
		}
	}
	return fail;
}

uint64_t
tr_failpoint_hits(const char *name)
{
	uint32_t n = atomic_load_explicit(&tr_failpoints_armed, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++)
		if (strcmp(points[i].name, name) == 0)
			return atomic_load_explicit(&points[i].hits, memory_order_relaxed);
	return 0;
}

void
tr_failpoint_clear(void)
{
	atomic_store_explicit(&tr_failpoints_armed, 0, memory_order_release);
}

/* Digits at *s; moves *s behind them. */
static bool
number(const char **s, const char *end, uint64_t *ret)
{
	const char *p = *s;
	uint64_t v = 0;

	while (p < end && *p >= '0' && *p <= '9') {
		if (v > UINT64_MAX / 16)
			return false;
		v = v * 10 + (uint64_t)(*p++ - '0');
	}
	if (p == *s)
		return false;
	*s = p;
	*ret = v;
	return true;
}

static bool
word(const char **s, const char *end, const char *w)
{
	size_t n = strlen(w);

	if ((size_t)(end - *s) < n || memcmp(*s, w, n) != 0)
		return false;
	*s += n;
	return true;
}

static bool
parse_point(const char *s, const char *end, struct point *p)
{
	const char *eq = memchr(s, '=', (size_t)(end - s));

	if (!eq || eq == s || eq - s > TR_FAILPOINT_NAME_MAX)
		return false;
	memset(p->name, 0, sizeof p->name);
	memcpy(p->name, s, (size_t)(eq - s));
	s = eq + 1;
	p->ms = 0;
	if (word(&s, end, "kill"))
		p->action = ACT_KILL;
	else if (word(&s, end, "error"))
		p->action = ACT_ERROR;
	else if (word(&s, end, "sleep:") && number(&s, end, &p->ms))
		p->action = ACT_SLEEP;
	else
		return false;
	p->from = 1;
	p->to = UINT64_MAX;
	if (s < end) {
		if (!word(&s, end, ":") || !number(&s, end, &p->from) || p->from == 0)
			return false;
		if (!word(&s, end, "+"))
			p->to = p->from;
	}
	atomic_store_explicit(&p->hits, 0, memory_order_relaxed);
	return s == end;
}

int
tr_failpoint_arm(const char *spec, struct tr_err *err)
{
	uint32_t n = atomic_load_explicit(&tr_failpoints_armed, memory_order_relaxed);
	const char *s = spec;

	while (*s) {
		const char *end = strchrnul(s, ',');

		if (n == TR_FAILPOINTS_MAX)
			return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "more than %d fault points",
			                  TR_FAILPOINTS_MAX);
		if (!parse_point(s, end, &points[n]))
			return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG,
			                  "fault point '%.*s' is not name=kill|error|sleep:ms[:N[+]]",
			                  (int)(end - s > 100 ? 100 : end - s), s);
		n++;
		s = *end ? end + 1 : end;
	}
	atomic_store_explicit(&tr_failpoints_armed, n, memory_order_release);
	return TR_OK;
}
