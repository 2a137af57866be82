#include <tailrace/err.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* s holds n bytes of text that was cut there: drop a character that was cut in its middle. */
static void
trim_partial_char(char *s, size_t n)
{
	size_t lead = n, need;
	unsigned char c;

	/* back over continuation bytes to the last lead byte, at most three away */
	while (lead > 0 && n - lead < 4) {
		lead--;
		c = (unsigned char)s[lead];
		if ((c & 0xC0) == 0x80)
			continue;
		need = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
		if (n - lead < need)
			s[lead] = '\0';
		return;
	}
}

__attribute__((format(printf, 3, 0))) static size_t
format_cut(char *out, size_t cap, const char *fmt, va_list ap)
{
	int n = vsnprintf(out, cap, fmt, ap);

	if (n < 0) {
		out[0] = '\0';
		return 0;
	}
	if ((size_t)n >= cap)
		trim_partial_char(out, cap - 1);
	return strlen(out);
}

/* src is NUL-terminated and may be longer than dst has room for. */
static void
copy_cut(char *dst, size_t cap, const char *src)
{
	size_t n = strlen(src);
	bool cut = n >= cap;

	if (cut)
		n = cap - 1;
	memcpy(dst, src, n);
	dst[n] = '\0';
	if (cut)
		trim_partial_char(dst, n);
}

int
tr_err_set(struct tr_err *err, int rc, uint16_t domain, const char *fmt, ...)
{
	char text[sizeof err->msg];
	va_list ap;

	if (!err)
		return rc;
	/* formatted aside first: the arguments may point into *err */
	va_start(ap, fmt);
	format_cut(text, sizeof text, fmt, ap);
	va_end(ap);
	memset(err, 0, sizeof *err);
	err->rc = rc;
	err->domain = domain;
	memcpy(err->msg, text, strlen(text) + 1);
	return rc;
}

int
tr_err_sys(struct tr_err *err, int rc, int errno_value, const char *fmt, ...)
{
	char text[sizeof err->msg], scratch[128], both[sizeof text + sizeof scratch + 4];
	va_list ap;

	if (!err)
		return rc;
	va_start(ap, fmt);
	format_cut(text, sizeof text, fmt, ap);
	va_end(ap);
	memset(err, 0, sizeof *err);
	err->rc = rc;
	err->domain = TR_DOM_SYS;
	err->code = errno_value;
	snprintf(both, sizeof both, "%s: %s", text, strerror_r(errno_value, scratch, sizeof scratch));
	copy_cut(err->msg, sizeof err->msg, both);
	return rc;
}

void
tr_err_where(struct tr_err *err, const char *fmt, ...)
{
	char text[sizeof err->where];
	va_list ap;

	if (!err)
		return;
	va_start(ap, fmt);
	format_cut(text, sizeof text, fmt, ap);
	va_end(ap);
	memcpy(err->where, text, strlen(text) + 1);
}

const char *
tr_rc_name(int rc)
{
	static const char *const names[] = { "OK",    "AGAIN", "EOF",       "RETRY", "REJECT",
		                             "FENCED", "FATAL", "NOT_READY", "STALE", "NOMEM" };

	if (rc >= 0)
		return names[0];
	return rc >= TR_NOMEM ? names[-rc] : "UNKNOWN";
}

const char *
tr_err_domain_name(uint16_t domain)
{
	static const char *const names[] = { "none",   "sys",    "pg",   "sqlite", "config", "log",
		                             "control", "engine", "source", "sink", "http",   "kafka",
		                             "codec",  "schema", "cdc",  "curl",   "tls",    "cli" };

	_Static_assert(sizeof names / sizeof names[0] == TR_DOM_COUNT_, "one name per domain");
	return domain < TR_DOM_COUNT_ ? names[domain] : "unknown";
}
