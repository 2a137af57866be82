/* alloc.h - the heap, with a seam for tests.
 *
 * Purpose: malloc and friends that can be told to fail the nth time, so that the whole suite can be run
 *          with each allocation failing once. Costs one relaxed atomic load per call.
 * Owner:   memory belongs to the caller and is released with free() or tr_free(), which are the same.
 * Threads: any. The countdown is shared by all threads.
 * Errors:  NULL without memory.
 */
#ifndef TR_ALLOC_H
#define TR_ALLOC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <tailrace/slice.h>

void *tr_malloc(size_t n) __attribute__((malloc));
void *tr_calloc(size_t count, size_t size) __attribute__((malloc));
void *tr_realloc(void *p, size_t n);
void *tr_aligned_alloc(size_t align, size_t n); /* n is rounded up to a multiple of align */
char *tr_strdup(const char *cstr);
char *tr_strndup(struct tr_slice s); /* NUL-terminated copy */

static inline void
tr_free(void *p)
{
	free(p);
}

/* The nth allocation from now fails (1 = the next), once; 0 disarms. Returns how many allocations
 * were still to go: 0 means that the armed failure has happened. */
uint64_t tr_alloc_fail_nth(uint64_t nth);
/* The same, and all that follow it fail too, until tr_alloc_fail_nth(0). */
void tr_alloc_fail_from(uint64_t nth);
/* Of this thread's allocations none fails or counts until as many false as true: a test kit's own, which it asserts to have. */
void tr_alloc_spared(bool on);

#endif
