
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "check.h"
#include "hash.h"
#include "text.h"

enum { LINE_MAX_BYTES = 16384, VALUE_MAX_BYTES = 2048 };

#define SAME_AGAIN (300 * TR_NS_PER_S)
#define OTHER_AGAIN (30 * TR_NS_PER_S)

static _Atomic int least_level = TR_OSLOG_INFO;
static _Atomic bool as_json;
static _Atomic int out_fd = 2;

static const char *const level_names[] = { "debug", "info", "warn", "error", "off" };

void
tr_oslog_setup(enum tr_oslog_level least, bool json, int fd)
{
	atomic_store(&least_level, (int)least);
	atomic_store(&as_json, json);
	atomic_store(&out_fd, fd);
}

bool
tr_oslog_enabled(enum tr_oslog_level level)
{
	return (int)level >= atomic_load_explicit(&least_level, memory_order_relaxed) && level < TR_OSLOG_OFF;
}

int
tr_oslog_parse_level(const char *name, enum tr_oslog_level *ret)
{
	for (size_t i = 0; i < TR_ARRAY_LEN(level_names); i++)
		if (strcmp(name, level_names[i]) == 0) {
			*ret = (enum tr_oslog_level)i;
			return TR_OK;
		}
	return TR_REJECT;
}

static struct tr_slice
cut(const char *s)
{
	size_t n = strnlen(s, VALUE_MAX_BYTES);

	/* back to a character's border if it was cut; json_escape would replace the half */
	if (s[n])
		while (n && ((uint8_t)s[n] & 0xC0) == 0x80)
			n--;
	return tr_slice_of(s, n);
}

static bool
plain(struct tr_slice s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] == '"' || s.p[i] == '=' || s.p[i] == '\\' || s.p[i] == 0x7f)
			return false;
	return s.n > 0 && tr_utf8_valid(s);
}

static void
put_field(struct tr_buf *b, bool json, const char *key, const char *value)
{
	struct tr_slice v;
	size_t n0 = b->n;
	int rc;

	if (!value)
		return;
	v = cut(value);
	if (json) {
		rc = tr_buf_append_u8(b, ',');
		rc = rc < 0 ? rc : tr_json_string(b, cut(key));
		rc = rc < 0 ? rc : tr_buf_append_u8(b, ':');
		rc = rc < 0 ? rc : tr_json_string(b, v);
	} else {
		rc = tr_buf_printf(b, " %s=", key);
		rc = rc < 0 ? rc : plain(v) ? tr_buf_append_slice(b, v) : tr_json_string(b, v);
	}
	/* a field that does not fit is left out whole, and the line stays well formed */
	if (rc < 0 || b->n > LINE_MAX_BYTES - 2)
		b->n = n0;
}

static void
put_head(struct tr_buf *b, bool json, enum tr_oslog_level level, const char *component, const char *msg)
{
	static const char *const shown[] = { "DEBUG", "INFO ", "WARN ", "ERROR" };
	int64_t us = tr_wall_us();
	time_t s = (time_t)(us / 1000000);
	struct tm tm;
	char when[32];

	gmtime_r(&s, &tm);
	if (strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
		when[0] = '\0';
	if (json) {
		tr_buf_printf(b, "{\"ts\":\"%s.%06dZ\",\"level\":\"%s\",\"component\":", when, (int)(us % 1000000),
		              level_names[level]);
		tr_json_string(b, cut(component));
		tr_buf_append_str(b, ",\"msg\":");
		tr_json_string(b, cut(msg));
	} else {
		tr_buf_printf(b, "%s.%06dZ %s %s: ", when, (int)(us % 1000000), shown[level], component);
		tr_json_escape(b, cut(msg)); /* one line stays one line */
	}
}

static void
emit(enum tr_oslog_level level, const char *component, const struct tr_oslog_field *v, size_t n,
     const struct tr_oslog_field *more, size_t n_more, const char *msg)
{
	TR_CLEANUP(tr_buf_done) struct tr_buf b = { 0 };
	bool json = atomic_load(&as_json);
	int saved = errno;

	put_head(&b, json, level, component, msg);
	for (size_t i = 0; i < n; i++)
		put_field(&b, json, v[i].key, v[i].value);
	for (size_t i = 0; i < n_more; i++)
		put_field(&b, json, more[i].key, more[i].value);
	if (tr_buf_append_str(&b, json ? "}\n" : "\n") == TR_OK)
		while (write(atomic_load(&out_fd), b.p, b.n) < 0 && errno == EINTR)
			;
	errno = saved;
}

void
tr_oslog_write(enum tr_oslog_level level, const char *component, const char *fmt, ...)
{
	char msg[VALUE_MAX_BYTES];
	va_list ap;

	if (!tr_oslog_enabled(level))
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof msg, fmt, ap);
	va_end(ap);
	emit(level, component, NULL, 0, NULL, 0, msg);
}

void
tr_oslog_fields(enum tr_oslog_level level, const char *component, const struct tr_oslog_field *v, size_t n,
                const char *fmt, ...)
{
	char msg[VALUE_MAX_BYTES];
	va_list ap;

	if (!tr_oslog_enabled(level))
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof msg, fmt, ap);
	va_end(ap);
	emit(level, component, v, n, NULL, 0, msg);
}

void
tr_oslog_err(enum tr_oslog_level level, const char *component, const struct tr_oslog_field *v, size_t n,
             const struct tr_err *err)
{
	char code[24];
	struct tr_oslog_field more[5] = { { "rc", tr_rc_name(err->rc) },
		                          { "domain", err->domain ? tr_err_domain_name(err->domain) : NULL },
		                          { "code", err->code ? code : NULL },
		                          { "sqlstate", err->sqlstate[0] ? err->sqlstate : NULL },
		                          { "where", err->where[0] ? err->where : NULL } };

	if (!tr_oslog_enabled(level))
		return;
	snprintf(code, sizeof code, "%" PRId64, err->code);
	emit(level, component, v, n, more, TR_ARRAY_LEN(more), err->msg);
}

bool
tr_oslog_allow(struct tr_oslog_limit *limit, int64_t interval_ns, uint64_t *ret_suppressed)
{
	int64_t now = tr_now_ns(), next = atomic_load_explicit(&limit->next_ns, memory_order_relaxed);

	/* next_ns is 0 before the first time: always allowed */
	if ((next != 0 && now < next) ||
	    !atomic_compare_exchange_strong_explicit(&limit->next_ns, &next, tr_deadline_ns(now, interval_ns),
	                                             memory_order_relaxed, memory_order_relaxed)) {
		atomic_fetch_add_explicit(&limit->refused, 1, memory_order_relaxed);
		return false;
	}
	if (ret_suppressed)
		*ret_suppressed = atomic_exchange_explicit(&limit->refused, 0, memory_order_relaxed);
	return true;
}

bool
tr_oslog_failed(struct tr_oslog_episode *e, const struct tr_err *err)
{
	int64_t now = tr_now_ns();
	uint64_t told = tr_hash64(err->msg, strlen(err->msg));
	bool first = e->since_us == 0, tell = first || now >= e->next_ns || (told != e->told && now >= e->next_ns - SAME_AGAIN + OTHER_AGAIN);

	if (first) {
		e->since_us = tr_wall_us();
		e->since_ns = now;
	}
	if (tell) {
		e->told = told;
		e->next_ns = tr_deadline_ns(now, SAME_AGAIN);
	}
	return tell;
}

bool
tr_oslog_well(struct tr_oslog_episode *e, char ret[TR_OSLOG_LASTED_CHARS])
{
	int64_t ms = (tr_now_ns() - e->since_ns) / TR_NS_PER_MS;

	if (e->since_us == 0)
		return false;
	if (ms < 60 * 1000)
		snprintf(ret, TR_OSLOG_LASTED_CHARS, "%" PRId64 ".%" PRId64 " s", ms / 1000, ms % 1000 / 100);
	else
		snprintf(ret, TR_OSLOG_LASTED_CHARS, "%" PRId64 " min %" PRId64 " s", ms / 60000, ms / 1000 % 60);
	*e = (struct tr_oslog_episode){ 0 };
	return true;
}
