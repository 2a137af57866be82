/* tailrace/err.h - what a failing call tells its caller.
 *
 * Purpose: every function that can fail returns an int. 0 or more is success; below 0 is one of
 *          the codes below and says what the caller does *next*. The details (which system said
 *          what, about which value) go into a struct tr_err that the caller owns.
 * Owner:   the caller, usually on its stack. Fixed size, no allocation, nothing to release.
 * Threads: a struct tr_err belongs to one thread at a time; the functions here share nothing.
 * Errors:  none of these fails. Every one accepts err == NULL and still returns rc.
 *
 * Messages name the thing and the cure. They never contain a secret or a row's values.
 */
#ifndef TAILRACE_ERR_H
#define TAILRACE_ERR_H

#include <stdint.h>

enum {
	TR_OK = 0,
	TR_AGAIN = -1,     /* nothing now; the same call later */
	TR_EOF = -2,       /* ended cleanly */
	TR_RETRY = -3,     /* the same bytes again, elsewhere or later; they may have been applied */
	TR_REJECT = -4,    /* this record, batch or value is bad, and nothing of it was applied */
	TR_FENCED = -5,    /* someone else owns this now: stop */
	TR_FATAL = -6,     /* our promise cannot be kept: fail the pipeline */
	TR_NOT_READY = -7, /* a dependency is pending; nothing pauses */
	TR_STALE = -8,     /* the target changed: reconcile, then the same bytes once more */
	TR_NOMEM = -9,     /* no memory, or an arena's bound was reached */
};

/* Whose number err->code is. */
enum tr_err_domain {
	TR_DOM_NONE = 0,
	TR_DOM_SYS,     /* errno */
	TR_DOM_PG,      /* sqlstate holds the five characters */
	TR_DOM_SQLITE,  /* extended result code */
	TR_DOM_CONFIG,  /* a setting; where says file and line */
	TR_DOM_LOG,     /* change log */
	TR_DOM_CONTROL, /* control store */
	TR_DOM_ENGINE,
	TR_DOM_SOURCE,
	TR_DOM_SINK,
	TR_DOM_HTTP,    /* status code */
	TR_DOM_KAFKA,   /* librdkafka or protocol error code */
	TR_DOM_CODEC,   /* bytes that do not decode */
	TR_DOM_SCHEMA,  /* types, evolution, catalogs */
	TR_DOM_CDC,
	TR_DOM_CURL,
	TR_DOM_TLS,
	TR_DOM_CLI,
	TR_DOM_COUNT_
};

/* What the circuit breaker counts a failure against. */
enum tr_err_blame { TR_BLAME_NONE = 0, TR_BLAME_ENDPOINT, TR_BLAME_TARGET, TR_BLAME_BATCH };

/* Written on failure only: after success its content is whatever it was before. */
struct tr_err {
	int rc;
	uint16_t domain;         /* enum tr_err_domain */
	uint8_t blame;           /* enum tr_err_blame */
	uint32_t retry_after_ms; /* the peer's wish; 0: none */
	int64_t code;            /* in the domain's own numbers */
	char sqlstate[6];
	char where[256];         /* where the value came from: file:line, table.column, URL without secrets */
	char msg[512];
};

/* Overwrite *err wholly (code, blame, where and the rest become 0) and return rc. The arguments may
 * point into *err itself, so an outer layer can wrap: tr_err_set(err, rc, dom, "table %s: %s", t, err->msg).
 * What does not fit is cut at a character's border. */
int tr_err_set(struct tr_err *err, int rc, uint16_t domain, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* As tr_err_set in domain SYS with code = errno_value, and ": <text of errno>" appended. */
int tr_err_sys(struct tr_err *err, int rc, int errno_value, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Set only err->where. */
void tr_err_where(struct tr_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "RETRY", "REJECT", ...; "OK" for 0 and above. */
const char *tr_rc_name(int rc);

/* "sys", "pg", ...: stable, lower case; used in logs and metrics. */
const char *tr_err_domain_name(uint16_t domain);

#endif
