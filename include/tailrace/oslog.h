/* oslog.h - the program's own log: lines of text or JSON on stderr.
 *
 * Purpose: for engine, cdc, admin and cli only; modules below them never log, but for a server's notices (client/pg). (tr_log_* is the change log; this is tr_oslog_*.)
 * Owner:   one setting per process, made at start.
 * Threads: any. Each line is one write(2), so lines do not mix.
 * Errors:  none: a log line that cannot be written is lost, never waited for beyond the write itself.
 *
 * Text:  2026-01-31T12:00:00.123456Z INFO  engine: pipeline started pipeline=orders sinks=2
 *        A value with blanks, quotes, '=' or control characters is written as a JSON string.
 * JSON:  {"ts":"...","level":"info","component":"engine","msg":"...","pipeline":"orders"}
 * Lines are cut at 16 KiB by shortening values. Never a secret, never a row's values.
 */
#ifndef TAILRACE_OSLOG_H
#define TAILRACE_OSLOG_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/err.h>

enum { TR_OSLOG_LASTED_CHARS = 32 };
enum tr_oslog_level { TR_OSLOG_DEBUG, TR_OSLOG_INFO, TR_OSLOG_WARN, TR_OSLOG_ERROR, TR_OSLOG_OFF };

struct tr_oslog_field {
	const char *key, *value; /* NULL value: the field is left out */
};

void tr_oslog_setup(enum tr_oslog_level least, bool json, int fd); /* default: INFO, text, 2 */
bool tr_oslog_enabled(enum tr_oslog_level level);
int tr_oslog_parse_level(const char *name, enum tr_oslog_level *ret); /* debug info warn error off; TR_REJECT */

void tr_oslog_write(enum tr_oslog_level level, const char *component, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void tr_oslog_fields(enum tr_oslog_level level, const char *component, const struct tr_oslog_field *v, size_t n,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The failure's message with rc, domain, code, sqlstate and where as fields, after those of v. */
void tr_oslog_err(enum tr_oslog_level level, const char *component, const struct tr_oslog_field *v, size_t n,
                  const struct tr_err *err);

/* struct tr_oslog_field array in place: tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({"sink", name}), "...") */
#define TR_OSLOG_F(...)                                                                   \
	(const struct tr_oslog_field[]){ __VA_ARGS__ },                                   \
		sizeof((const struct tr_oslog_field[]){ __VA_ARGS__ }) / sizeof(struct tr_oslog_field)

/* One per call site. True at most once per interval; *ret_suppressed (may be NULL): refused since the last time. */
struct tr_oslog_limit {
	_Atomic int64_t next_ns;
	_Atomic uint64_t refused;
};
bool tr_oslog_allow(struct tr_oslog_limit *limit, int64_t interval_ns, uint64_t *ret_suppressed);

/* A trouble that is retried: told when it begins, again when it has changed or lasts, and when it is over. Zeroed: all is well. Its owner says
 * after each try how that went, by failed or well. It belongs to one thread, or is under its lock. since_us may be shown; it is 0 while all is well. */
struct tr_oslog_episode {
	int64_t since_us, since_ns, next_ns;
	uint64_t told; /* hash of the message last told */
};
/* True when this failure is to be told: the first, another one at most every 30 s, the same one every 5 minutes. */
bool tr_oslog_failed(struct tr_oslog_episode *e, const struct tr_err *err);
/* True when there was trouble; ret says how long, in words for a log line. */
bool tr_oslog_well(struct tr_oslog_episode *e, char ret[TR_OSLOG_LASTED_CHARS]);

/* if (TR_OSLOG_ONCE_PER(10)) tr_oslog_write(...); */
#define TR_OSLOG_ONCE_PER(seconds)                                                        \
	({                                                                                \
		static struct tr_oslog_limit limit_;                                      \
		tr_oslog_allow(&limit_, (int64_t)(seconds)*INT64_C(1000000000), NULL);    \
	})

#endif
