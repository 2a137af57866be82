/* prng.h - seeded pseudo-random numbers: xoshiro256**, seeded by splitmix64 (Blackman and Vigna, public domain).
 *
 * Purpose: the simulator, jitter, tests. The same seed gives the same sequence on every machine, for ever.
 *          Not for secrets: those come from tr_random_u64.
 * Owner:   a value. Threads: one per generator. Errors: none.
 */
#ifndef TR_PRNG_H
#define TR_PRNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tr_prng {
	uint64_t s[4];
};

/* One step of splitmix64; also good for deriving seeds from a seed. */
uint64_t tr_splitmix64(uint64_t *state);
void tr_prng_init(struct tr_prng *r, uint64_t seed);
uint64_t tr_prng_u64(struct tr_prng *r);
uint64_t tr_prng_below(struct tr_prng *r, uint64_t n);            /* 0 … n-1 without bias; n > 0 */
int64_t tr_prng_range(struct tr_prng *r, int64_t lo, int64_t hi); /* lo … hi, both included */
bool tr_prng_chance(struct tr_prng *r, uint64_t num, uint64_t den); /* true num times in den */
double tr_prng_unit(struct tr_prng *r);                           /* [0, 1) */
void tr_prng_fill(struct tr_prng *r, void *p, size_t n);

#endif
