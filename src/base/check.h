/* check.h - assertions that stay on, and small helpers of the language.
 *
 * Purpose: TR_ASSERT is for our own mistakes only; bytes from outside never reach one. Also cleanup
 *          attributes, array length, container_of, object magics.
 * Owner:   nothing is owned.
 * Threads: any.
 * Errors:  a failed assertion prints file, line and expression to stderr and aborts.
 */
#ifndef TR_CHECK_H
#define TR_CHECK_H

#include <stddef.h>
#include <stdint.h>

_Noreturn void tr_assert_failed(const char *file, int line, const char *func, const char *what);

#define TR_ASSERT(cond)                                                                   \
	((cond) ? (void)0 : tr_assert_failed(__FILE__, __LINE__, __func__, #cond))

#define TR_UNREACHABLE() tr_assert_failed(__FILE__, __LINE__, __func__, "unreachable")

/* TR_CLEANUP(tr_buf_done) struct tr_buf b = {0};  -- fn gets the variable's address. */
#define TR_CLEANUP(fn) __attribute__((cleanup(fn)))

#define TR_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define TR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TR_MAX(a, b) ((a) > (b) ? (a) : (b))

#define TR_LIKELY(x) __builtin_expect(!!(x), 1)
#define TR_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The struct that member is a field of. Not for const pointers. */
#define tr_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* Object magics: the first field of an object with a life of its own is `uint32_t magic`, a constant
 * per type. Set at birth, checked where a pointer arrives from far away (callbacks, queues), and
 * wiped at death, so that a stale or foreign pointer stops at the first use. */
#define TR_MAGIC_SET(obj, value) ((void)((obj)->magic = (value)))
#define TR_MAGIC_CHECK(obj, value) TR_ASSERT((obj) != NULL && (obj)->magic == (value))
#define TR_MAGIC_WIPE(obj, value)                                                         \
	do {                                                                              \
		TR_MAGIC_CHECK(obj, value);                                               \
		(obj)->magic = ~(uint32_t)(value);                                        \
	} while (0)

#endif
