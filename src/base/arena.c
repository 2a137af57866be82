#include "arena.h"

#include "alloc.h"
#include "check.h"

struct tr_arena_chunk {
	struct tr_arena_chunk *next;
	size_t n; /* bytes of data */
	_Alignas(64) uint8_t data[];
};

void
tr_arena_init(struct tr_arena *a, size_t chunk_bytes, size_t bytes_max)
{
	memset(a, 0, sizeof *a);
	a->chunk_bytes = chunk_bytes ? chunk_bytes : 4096;
	a->bytes_max = bytes_max;
}

static void
free_chain(struct tr_arena_chunk *c)
{
	while (c) {
		struct tr_arena_chunk *next = c->next;

		tr_free(c);
		c = next;
	}
}

void
tr_arena_done(struct tr_arena *a)
{
	if (!a)
		return;
	free_chain(a->head);
	a->head = NULL;
	a->p = a->end = NULL;
	a->bytes = 0;
}

void
tr_arena_reset(struct tr_arena *a)
{
	struct tr_arena_chunk *c, *keep = a->head;
	struct tr_arena_chunk **link;

	if (!keep)
		return;
	for (c = a->head; c; c = c->next)
		if (c->n > keep->n)
			keep = c;
	for (link = &a->head; *link != keep; link = &(*link)->next)
		;
	*link = keep->next;
	free_chain(a->head);
	keep->next = NULL;
	a->head = keep;
	a->p = keep->data;
	a->end = keep->data + keep->n;
	a->bytes = keep->n;
}

void *
tr_arena_alloc_slow(struct tr_arena *a, size_t n, size_t align)
{
	struct tr_arena_chunk *c;
	size_t want;

	TR_ASSERT(align != 0 && (align & (align - 1)) == 0 && align <= 64);
	if (n > PTRDIFF_MAX - sizeof *c - 64)
		return NULL;
	/* Chunks grow with what is already held, so that a large batch needs few of them. */
	want = TR_MAX(a->chunk_bytes, a->bytes);
	if (a->bytes_max) {
		size_t left = a->bytes_max > a->bytes ? a->bytes_max - a->bytes : 0;

		if (n > left)
			return NULL;
		want = TR_MIN(want, left);
	}
	want = TR_MAX(want, n);
	c = tr_aligned_alloc(64, sizeof *c + want);
	if (!c)
		return NULL;
	c->n = want;
	c->next = a->head;
	a->head = c;
	a->bytes += want;
	a->p = c->data + n; /* data is aligned to 64: no padding */
	a->end = c->data + want;
	return c->data;
}

void *
tr_arena_calloc(struct tr_arena *a, size_t count, size_t size)
{
	size_t n;
	void *p;

	if (__builtin_mul_overflow(count, size, &n))
		return NULL;
	p = tr_arena_alloc(a, n);
	if (p && n)
		memset(p, 0, n);
	return p;
}

struct tr_slice
tr_arena_dup(struct tr_arena *a, struct tr_slice s)
{
	void *p = tr_arena_alloc_aligned(a, s.n, 1);

	if (p && s.n)
		memcpy(p, s.p, s.n);
	return tr_slice_of(p, p ? s.n : 0);
}

char *
tr_arena_strdup(struct tr_arena *a, struct tr_slice s)
{
	char *p = s.n < SIZE_MAX ? tr_arena_alloc_aligned(a, s.n + 1, 1) : NULL;

	if (!p)
		return NULL;
	if (s.n)
		memcpy(p, s.p, s.n);
	p[s.n] = '\0';
	return p;
}
