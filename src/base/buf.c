#include <tailrace/buf.h>

#include <stdio.h>

#include "alloc.h"

void
tr_buf_done(struct tr_buf *b)
{
	if (!b)
		return;
	tr_free(b->p);
	tr_buf_init(b);
}

int
tr_buf_grow(struct tr_buf *b, size_t extra)
{
	size_t want, cap;
	uint8_t *p;

	/* objects beyond PTRDIFF_MAX do not exist, so below that nothing here overflows */
	if (extra > PTRDIFF_MAX || b->n > PTRDIFF_MAX - extra)
		return TR_NOMEM;
	want = b->n + extra;
	cap = b->cap < 64 ? 64 : b->cap;
	while (cap < want)
		cap = cap > PTRDIFF_MAX / 2 ? PTRDIFF_MAX : cap * 2;
	p = tr_realloc(b->p, cap);
	if (!p)
		return TR_NOMEM;
	b->p = p;
	b->cap = cap;
	return TR_OK;
}

uint8_t *
tr_buf_take(struct tr_buf *b, size_t *ret_n)
{
	uint8_t *p = b->p;

	if (ret_n)
		*ret_n = b->n;
	tr_buf_init(b);
	return p;
}

const char *
tr_buf_cstr(struct tr_buf *b)
{
	if (tr_buf_reserve(b, 1) < 0)
		return NULL;
	b->p[b->n] = '\0';
	return (const char *)b->p;
}

int
tr_buf_vprintf(struct tr_buf *b, const char *fmt, va_list ap)
{
	va_list again;
	size_t room = b->cap - b->n;
	int n, rc = TR_OK;

	va_copy(again, ap);
	n = vsnprintf(room ? (char *)b->p + b->n : NULL, room, fmt, ap);
	if (n < 0) {
		rc = TR_NOMEM;
	} else if ((size_t)n >= room) {
		rc = tr_buf_reserve(b, (size_t)n + 1);
		if (rc == TR_OK)
			vsnprintf((char *)b->p + b->n, (size_t)n + 1, fmt, again);
	}
	if (rc == TR_OK)
		b->n += (size_t)n;
	va_end(again);
	return rc;
}

int
tr_buf_printf(struct tr_buf *b, const char *fmt, ...)
{
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = tr_buf_vprintf(b, fmt, ap);
	va_end(ap);
	return rc;
}
