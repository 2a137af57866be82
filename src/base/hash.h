/* hash.h - XXH3 in 64 and 128 bits.
 *
 * Purpose: one place for non-cryptographic hashing. XXH3-64 chooses partitions and shards and
 *          XXH3-128 makes insert tokens; both are persisted formats, so neither algorithm nor seed 0
 *          ever changes. https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
 * Owner:   values. struct tr_hasher is ~600 bytes, meant for the stack.
 * Threads: any; one hasher, one thread.
 * Errors:  none.
 */
#ifndef TR_HASH_H
#define TR_HASH_H

#define XXH_STATIC_LINKING_ONLY /* the state by value; its layout is stable since 0.8.0 */
#include <xxhash.h>

#include <tailrace/slice.h>

struct tr_hash128 {
	uint64_t lo, hi;
};

uint64_t tr_hash64(const void *p, size_t n);
uint64_t tr_hash64_seed(uint64_t seed, const void *p, size_t n);
struct tr_hash128 tr_hash128(const void *p, size_t n);
/* 32 lower-case hex digits and a NUL, high half first (the order xxh128sum prints). */
void tr_hash128_hex(struct tr_hash128 h, char out[33]);

/* A good mixing of one integer (splitmix64's finaliser); not XXH3. */
static inline uint64_t
tr_hash_u64(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* Piecewise; the sum of the pieces hashes as their concatenation. */
struct tr_hasher {
	XXH3_state_t state;
};

void tr_hasher_init(struct tr_hasher *h);
void tr_hasher_add(struct tr_hasher *h, const void *p, size_t n);
void tr_hasher_add_u64(struct tr_hasher *h, uint64_t v); /* as eight little-endian bytes */
struct tr_hash128 tr_hasher_end128(const struct tr_hasher *h);

#endif
