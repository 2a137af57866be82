/* tailrace/buf.h - growable, owned bytes.
 *
 * Purpose: what encoders write into. Fixed-width integers are little endian, varints LEB128.
 * Owner:   whoever holds the struct; tr_buf_done releases the bytes. A zeroed struct is an empty buffer.
 * Threads: one at a time.
 * Errors:  TR_NOMEM, and then the buffer is as before. Bounds are the caller's: check n before appending.
 *
 * tr_buf_append_* check the room themselves. tr_buf_put_* do not: one tr_buf_reserve covers a run of them.
 * Pointers into p die with the next call that may grow it.
 */
#ifndef TAILRACE_BUF_H
#define TAILRACE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tailrace/err.h>
#include <tailrace/slice.h>

struct tr_buf {
	uint8_t *p;
	size_t n, cap;
};

enum { TR_VARINT_MAX = 10 }; /* bytes of the longest u64 varint */

static inline void
tr_buf_init(struct tr_buf *b)
{
	b->p = NULL;
	b->n = b->cap = 0;
}

/* Release the bytes; the buffer is empty and usable afterwards. NULL is accepted. */
void tr_buf_done(struct tr_buf *b);

/* Slow half of reserve. */
int tr_buf_grow(struct tr_buf *b, size_t extra);

/* Room for extra more bytes. TR_OK or TR_NOMEM. */
static inline int
tr_buf_reserve(struct tr_buf *b, size_t extra)
{
	return extra <= b->cap - b->n ? TR_OK : tr_buf_grow(b, extra);
}

static inline void
tr_buf_clear(struct tr_buf *b)
{
	b->n = 0;
}

static inline struct tr_slice
tr_buf_slice(const struct tr_buf *b)
{
	return (struct tr_slice){ b->p, b->n };
}

/* The bytes become the caller's, to be released with free(); NULL if nothing was ever allocated. */
uint8_t *tr_buf_take(struct tr_buf *b, size_t *ret_n);

/* A NUL behind the last byte, not counted in n; NULL without memory. Lives until the next change. */
const char *tr_buf_cstr(struct tr_buf *b);

int tr_buf_printf(struct tr_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int tr_buf_vprintf(struct tr_buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* ---- unchecked: the caller has reserved ---- */

static inline void
tr_buf_put(struct tr_buf *b, const void *p, size_t n)
{
	if (n) {
		memcpy(b->p + b->n, p, n);
		b->n += n;
	}
}

static inline void
tr_buf_put_u8(struct tr_buf *b, uint8_t v)
{
	b->p[b->n++] = v;
}

static inline void
tr_buf_put_u16le(struct tr_buf *b, uint16_t v)
{
	const uint8_t le[] = { (uint8_t)v, (uint8_t)(v >> 8) };

	tr_buf_put(b, le, sizeof le);
}

static inline void
tr_buf_put_u32le(struct tr_buf *b, uint32_t v)
{
	const uint8_t le[] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) };

	tr_buf_put(b, le, sizeof le);
}

static inline void
tr_buf_put_u64le(struct tr_buf *b, uint64_t v)
{
	const uint8_t le[] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24), (uint8_t)(v >> 32), (uint8_t)(v >> 40), (uint8_t)(v >> 48), (uint8_t)(v >> 56) };

	tr_buf_put(b, le, sizeof le);
}

static inline void
tr_buf_put_varint(struct tr_buf *b, uint64_t v)
{
	while (v >= 0x80) {
		b->p[b->n++] = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	b->p[b->n++] = (uint8_t)v;
}

/* ---- checked ---- */

static inline int
tr_buf_append(struct tr_buf *b, const void *p, size_t n)
{
	if (tr_buf_reserve(b, n) < 0)
		return TR_NOMEM;
	tr_buf_put(b, p, n);
	return TR_OK;
}

static inline int
tr_buf_append_slice(struct tr_buf *b, struct tr_slice s)
{
	return tr_buf_append(b, s.p, s.n);
}

static inline int
tr_buf_append_str(struct tr_buf *b, const char *cstr)
{
	return tr_buf_append(b, cstr, strlen(cstr));
}

static inline int
tr_buf_append_u8(struct tr_buf *b, uint8_t v)
{
	if (tr_buf_reserve(b, 1) < 0)
		return TR_NOMEM;
	tr_buf_put_u8(b, v);
	return TR_OK;
}

static inline int
tr_buf_append_u16le(struct tr_buf *b, uint16_t v)
{
	if (tr_buf_reserve(b, 2) < 0)
		return TR_NOMEM;
	tr_buf_put_u16le(b, v);
	return TR_OK;
}

static inline int
tr_buf_append_u32le(struct tr_buf *b, uint32_t v)
{
	if (tr_buf_reserve(b, 4) < 0)
		return TR_NOMEM;
	tr_buf_put_u32le(b, v);
	return TR_OK;
}

static inline int
tr_buf_append_u64le(struct tr_buf *b, uint64_t v)
{
	if (tr_buf_reserve(b, 8) < 0)
		return TR_NOMEM;
	tr_buf_put_u64le(b, v);
	return TR_OK;
}

static inline int
tr_buf_append_varint(struct tr_buf *b, uint64_t v)
{
	if (tr_buf_reserve(b, TR_VARINT_MAX) < 0)
		return TR_NOMEM;
	tr_buf_put_varint(b, v);
	return TR_OK;
}

#endif
