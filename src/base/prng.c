#include "prng.h"

#include "check.h"

uint64_t
tr_splitmix64(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

void
tr_prng_init(struct tr_prng *r, uint64_t seed)
{
	for (int i = 0; i < 4; i++)
		r->s[i] = tr_splitmix64(&seed);
}

static uint64_t
rotl(uint64_t x, int k)
{
	return (x << k) | (x >> (64 - k));
}

uint64_t
tr_prng_u64(struct tr_prng *r)
{
	uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	return result;
}

uint64_t
tr_prng_below(struct tr_prng *r, uint64_t n)
{
	unsigned __int128 x;

	TR_ASSERT(n > 0);
	/* The high half of x * n. 2^64 mod n values of the low half would make some results likelier: draw again. Only a low half below n can be one of
	 * them, so that the division is rarely needed. */
	x = (unsigned __int128)tr_prng_u64(r) * n;
	if ((uint64_t)x < n)
		for (uint64_t floor = (0 - n) % n; (uint64_t)x < floor;)
			x = (unsigned __int128)tr_prng_u64(r) * n;
	return (uint64_t)(x >> 64);
}

int64_t
tr_prng_range(struct tr_prng *r, int64_t lo, int64_t hi)
{
	uint64_t span;

	TR_ASSERT(lo <= hi);
	span = (uint64_t)hi - (uint64_t)lo;
	if (span == UINT64_MAX)
		return (int64_t)tr_prng_u64(r);
	return (int64_t)((uint64_t)lo + tr_prng_below(r, span + 1));
}

bool
tr_prng_chance(struct tr_prng *r, uint64_t num, uint64_t den)
{
	return tr_prng_below(r, den) < num;
}

double
tr_prng_unit(struct tr_prng *r)
{
	return (double)(tr_prng_u64(r) >> 11) * 0x1.0p-53;
}

void
tr_prng_fill(struct tr_prng *r, void *p, size_t n)
{
	uint8_t *b = p;
	uint64_t x = 0;

	for (size_t i = 0; i < n; i++) {
		if (i % 8 == 0)
			x = tr_prng_u64(r);
		b[i] = (uint8_t)(x >> (8 * (i % 8)));
	}
}
