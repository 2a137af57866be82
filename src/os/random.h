/* random.h - unpredictable numbers from the kernel (getrandom), replaceable for the simulator.
 *
 * Purpose: seeds, identities, tokens, jitter. Long sequences: seed a tr_prng.
 * Owner:   whoever replaces the source keeps ctx alive until it is put back.
 * Threads: reading: any. Replacing: at start or between test cases.
 * Errors:  none; a kernel without getrandom is an assertion.
 */
#ifndef TR_RANDOM_H
#define TR_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef void (*tr_random_fn)(void *ctx, void *p, size_t n);

uint64_t tr_random_u64(void);
void tr_random_bytes(void *p, size_t n);
void tr_random_set(tr_random_fn fn, void *ctx); /* NULL: the kernel's */

struct tr_prng;
void tr_random_set_prng(struct tr_prng *prng); /* the simulator's: reproducible, one thread */

#endif
