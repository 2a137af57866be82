/*
 * alloc_count.h: how often the heap was asked, by anyone in the program: an interposed allocator. One file of a program includes it.
 * Under a sanitizer, which has interposed its own already, that one's hook counts.
 */
#ifndef TR_ALLOC_COUNT_H
#define TR_ALLOC_COUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

static _Atomic uint64_t alloc_count_n;

static inline uint64_t alloc_count(void)
{
    return atomic_load(&alloc_count_n);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOC_COUNT_HOOK 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_COUNT_HOOK 1
#endif

#ifdef ALLOC_COUNT_HOOK
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t), void (*on_free)(const volatile void *));

static void alloc_count_on_malloc(const volatile void *p, size_t n)
{
    (void)p;
    (void)n;
    atomic_fetch_add(&alloc_count_n, 1);
}

static void alloc_count_on_free(const volatile void *p)
{
    (void)p;
}

__attribute__((constructor)) static void alloc_count_install(void)
{
    __sanitizer_install_malloc_and_free_hooks(alloc_count_on_malloc, alloc_count_on_free);
}
#else
/* glibc's own names of what is interposed. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t n);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t count, size_t n);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t align, size_t n);

void *malloc(size_t n)
{
    atomic_fetch_add(&alloc_count_n, 1);
    return __libc_malloc(n);
}

void *calloc(size_t count, size_t n)
{
    atomic_fetch_add(&alloc_count_n, 1);
    return __libc_calloc(count, n);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&alloc_count_n, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&alloc_count_n, 1);
    return __libc_memalign(align, n);
}
#endif

#endif
