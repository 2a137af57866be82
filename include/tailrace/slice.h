/* tailrace/slice.h - borrowed bytes.
 *
 * Purpose: pointer and length of bytes that somebody else owns. Never freed through this.
 * Owner:   the giver; each interface that hands one out says how long it lives.
 * Threads: a value; as safe as the bytes it points to.
 * Errors:  none.
 */
#ifndef TAILRACE_SLICE_H
#define TAILRACE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tr_slice {
	const uint8_t *p;
	size_t n;
};

/* A slice of a string literal, usable in static initialisers. */
#define TR_SLICE_LIT(s) { (const uint8_t *)("" s), sizeof(s) - 1 }

/* printf("%" TR_SLICE_FMT, TR_SLICE_ARG(s)); bytes are printed up to the first NUL. */
#define TR_SLICE_FMT ".*s"
#define TR_SLICE_ARG(s) ((s).n > 0x7fffffff ? 0x7fffffff : (int)(s).n), ((s).p ? (const char *)(s).p : "")

static inline struct tr_slice
tr_slice_of(const void *p, size_t n)
{
	return (struct tr_slice){ (const uint8_t *)p, n };
}

/* NULL gives the empty slice. */
static inline struct tr_slice
tr_slice_str(const char *cstr)
{
	return (struct tr_slice){ (const uint8_t *)cstr, cstr ? strlen(cstr) : 0 };
}

static inline bool
tr_slice_eq(struct tr_slice a, struct tr_slice b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool
tr_slice_eq_str(struct tr_slice a, const char *cstr)
{
	return tr_slice_eq(a, tr_slice_str(cstr));
}

/* Order by unsigned bytes, a prefix before what it is a prefix of. */
static inline int
tr_slice_cmp(struct tr_slice a, struct tr_slice b)
{
	size_t n = a.n < b.n ? a.n : b.n;
	int c = n ? memcmp(a.p, b.p, n) : 0;

	return c ? c : (a.n > b.n) - (a.n < b.n);
}

static inline bool
tr_slice_has_prefix(struct tr_slice s, struct tr_slice prefix)
{
	return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

/* [from, to) of s, both clamped to its length. */
static inline struct tr_slice
tr_slice_sub(struct tr_slice s, size_t from, size_t to)
{
	if (to > s.n)
		to = s.n;
	if (from > to)
		from = to;
	return (struct tr_slice){ s.p ? s.p + from : NULL, to - from };
}

#endif
