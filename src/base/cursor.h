/* cursor.h - reading foreign bytes with a sticky error.
 *
 * Purpose: decoders read without checking each field. A read past the end, a malformed varint or a
 *          missing terminator sets `bad`; from then on every read yields zero or an empty slice and the
 *          cursor does not move. One mandatory tr_cur_ok (or tr_cur_done) ends each message.
 * Owner:   a value on the decoder's stack; the bytes are borrowed, and so are slices taken from it.
 * Threads: one.
 * Errors:  only through `bad`. Loops bounded by a count from outside must also stop at `bad`.
 */
#ifndef TR_CURSOR_H
#define TR_CURSOR_H

#include <endian.h>

#include <tailrace/slice.h>

struct tr_cur {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct tr_cur
tr_cur_of(struct tr_slice s)
{
	static const uint8_t none[1];
	const uint8_t *p = s.p ? s.p : none;

	return (struct tr_cur){ p, p + (s.p ? s.n : 0), false };
}

static inline bool
tr_cur_ok(const struct tr_cur *c)
{
	return !c->bad;
}

/* Everything was well formed and nothing is left. */
static inline bool
tr_cur_done(const struct tr_cur *c)
{
	return !c->bad && c->p == c->end;
}

static inline size_t
tr_cur_left(const struct tr_cur *c)
{
	return c->bad ? 0 : (size_t)(c->end - c->p);
}

static inline void
tr_cur_fail(struct tr_cur *c)
{
	c->bad = true;
}

/* n bytes, or NULL and bad. */
static inline const uint8_t *
tr_cur_take(struct tr_cur *c, size_t n)
{
	const uint8_t *p = c->p;

	if (__builtin_expect(c->bad || (size_t)(c->end - p) < n, 0)) {
		c->bad = true;
		return NULL;
	}
	c->p = p + n;
	return p;
}

static inline uint8_t
tr_cur_u8(struct tr_cur *c)
{
	const uint8_t *p = tr_cur_take(c, 1);

	return p ? *p : 0;
}

#define TR_CUR_FIXED_(name, type, conv)                                                   \
	static inline type tr_cur_##name(struct tr_cur *c)                                \
	{                                                                                 \
		const uint8_t *p = tr_cur_take(c, sizeof(type));                          \
		type v = 0;                                                               \
		if (p)                                                                    \
			memcpy(&v, p, sizeof v);                                          \
		return conv(v);                                                           \
	}
TR_CUR_FIXED_(be16, uint16_t, be16toh)
TR_CUR_FIXED_(be32, uint32_t, be32toh)
TR_CUR_FIXED_(be64, uint64_t, be64toh)
TR_CUR_FIXED_(le16, uint16_t, le16toh)
TR_CUR_FIXED_(le32, uint32_t, le32toh)
TR_CUR_FIXED_(le64, uint64_t, le64toh)
#undef TR_CUR_FIXED_

/* LEB128, at most ten bytes and 64 bits; anything longer is bad. */
static inline uint64_t
tr_cur_varint(struct tr_cur *c)
{
	uint64_t v = 0;
	unsigned shift;

	if (!c->bad && c->p != c->end && !(*c->p & 0x80)) /* most are this short */
		return *c->p++;
	for (shift = 0; shift < 64; shift += 7) {
		uint8_t b = tr_cur_u8(c);

		if (c->bad || (shift == 63 && b > 1))
			break;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			return v;
	}
	c->bad = true;
	return 0;
}

/* A varint that must not be above max: a larger one is malformed, not cut down to what fits. */
static inline uint64_t
tr_cur_varint_max(struct tr_cur *c, uint64_t max)
{
	uint64_t v = tr_cur_varint(c);

	if (v <= max)
		return v;
	c->bad = true;
	return 0;
}

static inline uint32_t
tr_cur_varint32(struct tr_cur *c)
{
	return (uint32_t)tr_cur_varint_max(c, UINT32_MAX);
}

/* Zigzag on top of a varint (Avro, protobuf sint). */
static inline int64_t
tr_cur_zigzag(struct tr_cur *c)
{
	uint64_t v = tr_cur_varint(c);

	return (int64_t)((v >> 1) ^ (~(v & 1) + 1));
}

static inline int64_t
tr_cur_zigzag_within(struct tr_cur *c, int64_t min, int64_t max)
{
	int64_t v = tr_cur_zigzag(c);

	if (v >= min && v <= max)
		return v;
	c->bad = true;
	return 0;
}

static inline struct tr_slice
tr_cur_bytes(struct tr_cur *c, size_t n)
{
	const uint8_t *p = tr_cur_take(c, n);

	return (struct tr_slice){ p, p ? n : 0 };
}

/* Up to a NUL, which is consumed and not part of the slice (but stands behind it). */
static inline struct tr_slice
tr_cur_cstr(struct tr_cur *c)
{
	size_t left = tr_cur_left(c);
	const uint8_t *p = c->p, *nul = left ? (const uint8_t *)memchr(p, 0, left) : NULL;

	if (!nul) {
		c->bad = true;
		return (struct tr_slice){ NULL, 0 };
	}
	c->p = nul + 1;
	return (struct tr_slice){ p, (size_t)(nul - p) };
}

#endif
