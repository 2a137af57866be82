#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "check.h"

/* ---- numbers ---- */

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit durations[] = { { "d", UINT64_C(86400000000000) }, { "h", UINT64_C(3600000000000) },
	                                 { "m", UINT64_C(60000000000) },    { "s", UINT64_C(1000000000) },
	                                 { "ms", 1000000 },                 { "us", 1000 },
	                                 { "ns", 1 } };

/* The first spelling of each power is the one that formatting uses. */
static const struct unit sizes[] = {
	{ "TiB", UINT64_C(1) << 40 }, { "Ti", UINT64_C(1) << 40 }, { "T", UINT64_C(1) << 40 },
	{ "GiB", UINT64_C(1) << 30 }, { "Gi", UINT64_C(1) << 30 }, { "G", UINT64_C(1) << 30 },
	{ "MiB", UINT64_C(1) << 20 }, { "Mi", UINT64_C(1) << 20 }, { "M", UINT64_C(1) << 20 },
	{ "KiB", UINT64_C(1) << 10 }, { "Ki", UINT64_C(1) << 10 }, { "K", UINT64_C(1) << 10 },
	{ "k", UINT64_C(1) << 10 },   { "B", 1 },                  { "", 1 },
	{ "kB", 1000 },               { "MB", 1000000 },           { "GB", 1000000000 },
	{ "TB", UINT64_C(1000000000000) },
};

/* Quoted in a message: short, and nothing beyond ASCII graphics. */
static const char *
shown(struct tr_slice s, char out[48])
{
	size_t n = 0;

	for (size_t i = 0; i < s.n && n < 40; i++)
		out[n++] = s.p[i] >= 0x20 && s.p[i] < 0x7f ? (char)s.p[i] : '?';
	if (n < s.n) {
		memcpy(out + n, "...", 3);
		n += 3;
	}
	out[n] = '\0';
	return out;
}

static int
refuse(struct tr_err *err, struct tr_slice s, const char *expected)
{
	char text[48];

	return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "'%s' is not %s", shown(s, text), expected);
}

/* Leading digits of s into *ret; how many there were, or 0 also for more than 64 bits. */
static size_t
digits(struct tr_slice s, uint64_t *ret)
{
	uint64_t v = 0;
	size_t i;

	for (i = 0; i < s.n && s.p[i] >= '0' && s.p[i] <= '9'; i++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
			return 0;
	*ret = v;
	return i;
}

static const struct unit *
find_unit(const struct unit *v, size_t n, struct tr_slice name)
{
	for (size_t i = 0; i < n; i++)
		if (tr_slice_eq_str(name, v[i].name))
			return &v[i];
	return NULL;
}

int
tr_parse_duration(struct tr_slice s, int64_t *ret_ns, struct tr_err *err)
{
	static const char form[] = "a duration such as 250ms, 5s, 2m, 1h30m or 7d (at most 292 years)";
	struct tr_slice rest = s;
	uint64_t total = 0;

	if (tr_slice_eq_str(s, "0")) {
		*ret_ns = 0;
		return TR_OK;
	}
	if (s.n == 0)
		return refuse(err, s, form);
	while (rest.n) {
		const struct unit *u;
		uint64_t v = 0;
		size_t n = digits(rest, &v), k;

		if (n == 0)
			return refuse(err, s, form);
		rest = tr_slice_sub(rest, n, rest.n);
		for (k = 0; k < rest.n && (rest.p[k] < '0' || rest.p[k] > '9'); k++)
			;
		u = find_unit(durations, TR_ARRAY_LEN(durations), tr_slice_sub(rest, 0, k));
		if (!u || __builtin_mul_overflow(v, u->factor, &v) ||
		    __builtin_add_overflow(total, v, &total) || total > INT64_MAX)
			return refuse(err, s, form);
		rest = tr_slice_sub(rest, k, rest.n);
	}
	*ret_ns = (int64_t)total;
	return TR_OK;
}

char *
tr_format_duration(int64_t ns, char out[TR_DURATION_CHARS])
{
	uint64_t v = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
	size_t i = 0;

	while (v % durations[i].factor)
		i++;
	if (v == 0)
		snprintf(out, TR_DURATION_CHARS, "0");
	else
		snprintf(out, TR_DURATION_CHARS, "%s%" PRIu64 "%s", ns < 0 ? "-" : "", v / durations[i].factor,
		         durations[i].name);
	return out;
}

int
tr_parse_size(struct tr_slice s, uint64_t *ret_bytes, struct tr_err *err)
{
	static const char form[] = "a size such as 4096, 512k, 64MiB or 1GiB";
	const struct unit *u;
	uint64_t v = 0;
	size_t n = digits(s, &v);

	u = n ? find_unit(sizes, TR_ARRAY_LEN(sizes), tr_slice_sub(s, n, s.n)) : NULL;
	if (!u || __builtin_mul_overflow(v, u->factor, &v))
		return refuse(err, s, form);
	*ret_bytes = v;
	return TR_OK;
}

char *
tr_format_size(uint64_t bytes, char out[TR_SIZE_CHARS])
{
	static const struct unit steps[] = { { "TiB", UINT64_C(1) << 40 }, { "GiB", UINT64_C(1) << 30 },
		                             { "MiB", UINT64_C(1) << 20 }, { "KiB", UINT64_C(1) << 10 },
		                             { "", 1 } };
	size_t i = 0;

	while (bytes % steps[i].factor || (bytes == 0 && steps[i].factor > 1))
		i++;
	snprintf(out, TR_SIZE_CHARS, "%" PRIu64 "%s", bytes / steps[i].factor, steps[i].name);
	return out;
}

static bool
eq_nocase(struct tr_slice s, const char *word)
{
	return s.n == strlen(word) && strncasecmp((const char *)s.p, word, s.n) == 0;
}

int
tr_parse_bool(struct tr_slice s, bool *ret, struct tr_err *err)
{
	if (s.n && (eq_nocase(s, "true") || eq_nocase(s, "yes") || eq_nocase(s, "on")))
		*ret = true;
	else if (s.n && (eq_nocase(s, "false") || eq_nocase(s, "no") || eq_nocase(s, "off")))
		*ret = false;
	else
		return refuse(err, s, "true or false");
	return TR_OK;
}

int
tr_parse_u64(struct tr_slice s, uint64_t *ret, struct tr_err *err)
{
	uint64_t v = 0;
	size_t n = digits(s, &v);

	if (n == 0 || n != s.n)
		return refuse(err, s, "a whole number of 0 or more");
	*ret = v;
	return TR_OK;
}

int
tr_parse_i64(struct tr_slice s, int64_t *ret, struct tr_err *err)
{
	bool minus = s.n && s.p[0] == '-', sign = minus || (s.n && s.p[0] == '+');
	struct tr_slice rest = tr_slice_sub(s, sign ? 1 : 0, s.n);
	uint64_t v = 0;
	size_t n = digits(rest, &v);

	if (n == 0 || n != rest.n || v > (uint64_t)INT64_MAX + (minus ? 1 : 0))
		return refuse(err, s, "a whole number of 64 bits");
	*ret = (int64_t)(minus ? 0 - v : v);
	return TR_OK;
}

static int
hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int
tr_parse_lsn(struct tr_slice s, uint64_t *ret, struct tr_err *err)
{
	uint64_t half[2] = { 0, 0 };
	size_t i = 0;

	for (int k = 0; k < 2; k++) {
		size_t from = i;

		for (; i < s.n && hex_digit(s.p[i]) >= 0; i++)
			half[k] = half[k] << 4 | (uint64_t)hex_digit(s.p[i]);
		if (i == from || i - from > 8 || (k == 0 && (i == s.n || s.p[i++] != '/')))
			return refuse(err, s, "an LSN such as 16/B374D848");
	}
	if (i != s.n)
		return refuse(err, s, "an LSN such as 16/B374D848");
	*ret = half[0] << 32 | half[1];
	return TR_OK;
}

char *
tr_format_lsn(uint64_t lsn, char out[TR_LSN_CHARS])
{
	snprintf(out, TR_LSN_CHARS, "%" PRIX32 "/%" PRIX32, (uint32_t)(lsn >> 32), (uint32_t)lsn);
	return out;
}

char *
tr_format_utc(int64_t us, char out[TR_UTC_CHARS])
{
	int64_t sec = us / 1000000, frac = us % 1000000;
	time_t t;
	struct tm tm;

	if (frac < 0) {
		frac += 1000000;
		sec--;
	}
	t = (time_t)sec;
	gmtime_r(&t, &tm);
	snprintf(out, TR_UTC_CHARS, "%04d-%02d-%02d %02d:%02d:%02d.%06d", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
	         tm.tm_min, tm.tm_sec, (int)frac);
	return out;
}

/* ---- quoting ---- */

static int
quoted(struct tr_buf *b, struct tr_slice s, uint8_t quote, bool backslash)
{
	/* worst case, once: every byte doubled, two quotes, " E" */
	if (s.n > (SIZE_MAX - 4) / 2 || tr_buf_reserve(b, 2 * s.n + 4) < 0)
		return TR_NOMEM;
	if (backslash)
		tr_buf_put(b, " E", 2); /* the blank keeps the E off a word before it */
	tr_buf_put_u8(b, quote);
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == quote || (backslash && s.p[i] == '\\'))
			tr_buf_put_u8(b, s.p[i]);
		tr_buf_put_u8(b, s.p[i]);
	}
	tr_buf_put_u8(b, quote);
	return TR_OK;
}

int
tr_quote_ident(struct tr_buf *b, struct tr_slice name)
{
	if (name.n == 0 || memchr(name.p, 0, name.n))
		return TR_REJECT;
	return quoted(b, name, '"', false);
}

int
tr_quote_literal(struct tr_buf *b, struct tr_slice text)
{
	if (text.n && memchr(text.p, 0, text.n))
		return TR_REJECT;
	return quoted(b, text, '\'', text.n && memchr(text.p, '\\', text.n));
}

/* ---- near and like ---- */

static uint8_t
lower(uint8_t c)
{
	return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

size_t
tr_edit_distance(struct tr_slice a, struct tr_slice b)
{
	uint8_t row[3][66];
	size_t i, j;

	if (a.n > 64 || b.n > 64)
		return SIZE_MAX;
	for (j = 0; j <= b.n; j++)
		row[0][j] = (uint8_t)j;
	for (i = 1; i <= a.n; i++) {
		uint8_t *now = row[i % 3];
		const uint8_t *up = row[(i + 2) % 3], *upup = row[(i + 1) % 3];

		now[0] = (uint8_t)i;
		for (j = 1; j <= b.n; j++) {
			uint8_t ca = lower(a.p[i - 1]), cb = lower(b.p[j - 1]);
			int best = up[j - 1] + (ca != cb);

			best = TR_MIN(best, up[j] + 1);
			best = TR_MIN(best, now[j - 1] + 1);
			if (i > 1 && j > 1 && ca == lower(b.p[j - 2]) && cb == lower(a.p[i - 2]))
				best = TR_MIN(best, upup[j - 2] + 1);
			now[j] = (uint8_t)best;
		}
	}
	return row[a.n % 3][b.n];
}

const char *
tr_nearest(struct tr_slice s, const char *const *names, size_t n)
{
	/* one error in short words, a third of the letters in long ones */
	size_t best = TR_MAX(s.n / 3, (size_t)1) + 1;
	const char *found = NULL;

	for (size_t i = 0; i < n; i++) {
		size_t d = tr_edit_distance(s, tr_slice_str(names[i]));

		if (d < best) {
			best = d;
			found = names[i];
		}
	}
	return found;
}

bool
tr_glob(struct tr_slice pattern, struct tr_slice text)
{
	size_t p = 0, t = 0, star = SIZE_MAX, mark = 0;

	/* On a mismatch go back to the last star only and let it take one more: enough for "*". */
	while (t < text.n) {
		size_t lit = p;

		if (p < pattern.n && pattern.p[p] == '*') {
			star = ++p;
			mark = t;
			continue;
		}
		if (p + 1 < pattern.n && pattern.p[p] == '\\')
			lit = p + 1;
		if (lit < pattern.n && pattern.p[lit] == text.p[t]) {
			p = lit + 1;
			t++;
			continue;
		}
		if (star == SIZE_MAX)
			return false;
		p = star;
		t = ++mark;
	}
	while (p < pattern.n && pattern.p[p] == '*')
		p++;
	return p == pattern.n;
}

bool
tr_glob_table(struct tr_slice pattern, struct tr_slice schema, struct tr_slice table)
{
	for (size_t i = 0; i < pattern.n; i++) {
		if (pattern.p[i] == '\\')
			i++;
		else if (pattern.p[i] == '.')
			return tr_glob(tr_slice_sub(pattern, 0, i), schema) &&
			       tr_glob(tr_slice_sub(pattern, i + 1, pattern.n), table);
	}
	return tr_glob(pattern, table);
}

/* ---- UTF-8, JSON, hex ---- */

/* Length of the well-formed character at p (n > 0), or 0. Table 3-7 of the Unicode standard. */
static size_t
utf8_char(const uint8_t *p, size_t n)
{
	uint8_t c = p[0], lo = 0x80, hi = 0xBF;
	size_t len;

	if (c < 0x80)
		return 1;
	if (c < 0xC2 || c > 0xF4)
		return 0;
	len = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
	if (n < len)
		return 0;
	if (c == 0xE0)
		lo = 0xA0;
	else if (c == 0xED)
		hi = 0x9F;
	else if (c == 0xF0)
		lo = 0x90;
	else if (c == 0xF4)
		hi = 0x8F;
	if (p[1] < lo || p[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((p[i] & 0xC0) != 0x80)
			return 0;
	return len;
}

bool
tr_utf8_valid(struct tr_slice s)
{
	size_t i = 0;

	while (i < s.n) {
		size_t k;

		while (s.n - i >= 8) { /* runs of ASCII, eight at a time */
			uint64_t w;

			memcpy(&w, s.p + i, 8);
			if (w & UINT64_C(0x8080808080808080))
				break;
			i += 8;
		}
		if (i == s.n)
			break;
		k = utf8_char(s.p + i, s.n - i);
		if (k == 0)
			return false;
		i += k;
	}
	return true;
}

static int
json_special(struct tr_buf *b, uint8_t c)
{
	static const char hex[] = "0123456789abcdef";
	char out[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };

	switch (c) {
	case '"':
	case '\\':
		out[1] = (char)c;
		break;
	case '\n':
		out[1] = 'n';
		break;
	case '\r':
		out[1] = 'r';
		break;
	case '\t':
		out[1] = 't';
		break;
	case '\b':
		out[1] = 'b';
		break;
	case '\f':
		out[1] = 'f';
		break;
	default:
		return tr_buf_append(b, out, 6);
	}
	return tr_buf_append(b, out, 2);
}

int
tr_json_escape(struct tr_buf *b, struct tr_slice s)
{
	size_t i = 0, from = 0, n0 = b->n;
	int rc = TR_OK;

	while (i < s.n && rc == TR_OK) {
		uint8_t c = s.p[i];
		size_t k = utf8_char(s.p + i, s.n - i);

		if (k && c >= 0x20 && c != '"' && c != '\\') {
			i += k;
			continue;
		}
		rc = tr_buf_append(b, s.p + from, i - from);
		if (rc == TR_OK)
			rc = k ? json_special(b, c) : tr_buf_append(b, "\xEF\xBF\xBD", 3);
		from = ++i;
	}
	if (rc == TR_OK && i > from)
		rc = tr_buf_append(b, s.p + from, i - from);
	if (rc < 0)
		b->n = n0;
	return rc;
}

int
tr_json_string(struct tr_buf *b, struct tr_slice s)
{
	size_t n0 = b->n;

	if (tr_buf_append_u8(b, '"') < 0 || tr_json_escape(b, s) < 0 || tr_buf_append_u8(b, '"') < 0) {
		b->n = n0;
		return TR_NOMEM;
	}
	return TR_OK;
}

int
tr_hex_encode(struct tr_buf *b, struct tr_slice s)
{
	static const char hex[] = "0123456789abcdef";

	if (s.n > SIZE_MAX / 2 || tr_buf_reserve(b, 2 * s.n) < 0)
		return TR_NOMEM;
	for (size_t i = 0; i < s.n; i++) {
		tr_buf_put_u8(b, (uint8_t)hex[s.p[i] >> 4]);
		tr_buf_put_u8(b, (uint8_t)hex[s.p[i] & 15]);
	}
	return TR_OK;
}

int
tr_hex_decode(struct tr_buf *b, struct tr_slice hex)
{
	size_t n0 = b->n;

	if (hex.n % 2)
		return TR_REJECT;
	if (tr_buf_reserve(b, hex.n / 2) < 0)
		return TR_NOMEM;
	for (size_t i = 0; i < hex.n; i += 2) {
		int hi = hex_digit(hex.p[i]), lo = hex_digit(hex.p[i + 1]);

		if (hi < 0 || lo < 0) {
			b->n = n0;
			return TR_REJECT;
		}
		tr_buf_put_u8(b, (uint8_t)(hi << 4 | lo));
	}
	return TR_OK;
}
