#include "alloc.h"

#include <stdatomic.h>
#include <stdbool.h>

/* 0: not armed; k: the kth allocation from now fails; with LASTING, and all behind it. */
static _Atomic uint64_t countdown;

#define LASTING (UINT64_C(1) << 63)

static _Thread_local unsigned spared;

static bool
must_fail(void)
{
	uint64_t k = atomic_load_explicit(&countdown, memory_order_relaxed);

	if (k != 0 && spared)
		return false;
	while (k != 0) {
		if (k == LASTING)
			return true;
		if (atomic_compare_exchange_weak_explicit(&countdown, &k, k - 1, memory_order_relaxed,
		                                          memory_order_relaxed))
			return (k & ~LASTING) == 1;
	}
	return false;
}

uint64_t
tr_alloc_fail_nth(uint64_t nth)
{
	return atomic_exchange_explicit(&countdown, nth, memory_order_relaxed) & ~LASTING;
}

void
tr_alloc_fail_from(uint64_t nth)
{
	atomic_store_explicit(&countdown, nth | LASTING, memory_order_relaxed);
}

void
tr_alloc_spared(bool on)
{
	spared += on ? 1 : -1u;
}

void *
tr_malloc(size_t n)
{
	return must_fail() ? NULL : malloc(n ? n : 1);
}

void *
tr_calloc(size_t count, size_t size)
{
	if (count == 0 || size == 0)
		count = size = 1;
	return must_fail() ? NULL : calloc(count, size);
}

void *
tr_realloc(void *p, size_t n)
{
	return must_fail() ? NULL : realloc(p, n ? n : 1);
}

void *
tr_aligned_alloc(size_t align, size_t n)
{
	if (n > SIZE_MAX - align)
		return NULL;
	n = (n + align - 1) / align * align;
	return must_fail() ? NULL : aligned_alloc(align, n ? n : align);
}

char *
tr_strdup(const char *cstr)
{
	return tr_strndup(tr_slice_str(cstr));
}

char *
tr_strndup(struct tr_slice s)
{
	char *r = s.n < SIZE_MAX ? tr_malloc(s.n + 1) : NULL;

	if (!r)
		return NULL;
	if (s.n)
		memcpy(r, s.p, s.n);
	r[s.n] = '\0';
	return r;
}
