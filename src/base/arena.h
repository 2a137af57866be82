/* arena.h - bump allocation that dies all at once.
 *
 * Purpose: one per batch, passed explicitly; what is decoded into it dies with tr_arena_reset. After
 *          a few batches a reset arena allocates no more: it keeps its largest chunk.
 * Owner:   whoever holds the struct. A zeroed struct is not valid: call tr_arena_init.
 * Threads: one at a time.
 * Errors:  NULL without memory or beyond bytes_max; nothing is half done then.
 */
#ifndef TR_ARENA_H
#define TR_ARENA_H

#include <tailrace/slice.h>

struct tr_arena_chunk;

struct tr_arena {
	struct tr_arena_chunk *head; /* the one being filled; older ones behind it */
	uint8_t *p, *end;
	size_t chunk_bytes; /* least size of a new chunk */
	size_t bytes_max;   /* of all chunks together; 0: no bound */
	size_t bytes;       /* held now */
};

void tr_arena_init(struct tr_arena *a, size_t chunk_bytes, size_t bytes_max);
void tr_arena_done(struct tr_arena *a);
void tr_arena_reset(struct tr_arena *a);

void *tr_arena_alloc_slow(struct tr_arena *a, size_t n, size_t align);

/* align: a power of two, at most 64. Contents are not initialised. */
static inline void *
tr_arena_alloc_aligned(struct tr_arena *a, size_t n, size_t align)
{
	size_t room = (size_t)(a->end - a->p);
	size_t pad = (size_t)(-(uintptr_t)a->p & (align - 1));

	if (__builtin_expect(a->p == NULL || room < pad || room - pad < n, 0))
		return tr_arena_alloc_slow(a, n, align);
	a->p += pad + n;
	return a->p - n;
}

/* Aligned for any plain type. */
static inline void *
tr_arena_alloc(struct tr_arena *a, size_t n)
{
	return tr_arena_alloc_aligned(a, n, _Alignof(max_align_t));
}

void *tr_arena_calloc(struct tr_arena *a, size_t count, size_t size);
/* Copies; p is NULL without memory (an empty copy has a p). */
struct tr_slice tr_arena_dup(struct tr_arena *a, struct tr_slice s);
char *tr_arena_strdup(struct tr_arena *a, struct tr_slice s); /* NUL-terminated */

#define TR_ARENA_NEW(a, type) ((type *)tr_arena_calloc((a), 1, sizeof(type)))

#endif
