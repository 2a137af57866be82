#include "hash.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>

static const uint8_t nothing[1];

uint64_t
tr_hash64(const void *p, size_t n)
{
	return XXH3_64bits(p ? p : nothing, n);
}

uint64_t
tr_hash64_seed(uint64_t seed, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p ? p : nothing, n, seed);
}

struct tr_hash128
tr_hash128(const void *p, size_t n)
{
	XXH128_hash_t h = XXH3_128bits(p ? p : nothing, n);

	return (struct tr_hash128){ h.low64, h.high64 };
}

void
tr_hash128_hex(struct tr_hash128 h, char out[33])
{
	snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo);
}

void
tr_hasher_init(struct tr_hasher *h)
{
	XXH3_128bits_reset(&h->state);
}

void
tr_hasher_add(struct tr_hasher *h, const void *p, size_t n)
{
	if (n)
		XXH3_128bits_update(&h->state, p, n);
}

void
tr_hasher_add_u64(struct tr_hasher *h, uint64_t v)
{
	v = htole64(v);
	XXH3_128bits_update(&h->state, &v, sizeof v);
}

struct tr_hash128
tr_hasher_end128(const struct tr_hasher *h)
{
	XXH128_hash_t d = XXH3_128bits_digest(&h->state);

	return (struct tr_hash128){ d.low64, d.high64 };
}
