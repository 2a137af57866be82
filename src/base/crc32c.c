#include "crc32c.h"

#include <endian.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static uint32_t table[8][256];
static bool have_sse42;

/* Before main, so that no thread ever sees a half-built table and no call pays for a check. */
__attribute__((constructor)) static void
crc32c_setup(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int k = 0; k < 8; k++)
			c = (c >> 1) ^ (UINT32_C(0x82F63B78) & (0u - (c & 1)));
		table[0][i] = c;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int t = 1; t < 8; t++)
			table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 0xff];
#if defined(__x86_64__)
	__builtin_cpu_init();
	have_sse42 = __builtin_cpu_supports("sse4.2");
#endif
}

uint32_t
tr_crc32c_portable(uint32_t seed, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint32_t c = ~seed;

	while (n >= 8) {
		uint64_t w;

		memcpy(&w, p, 8);
		w = le64toh(w) ^ c;
		c = table[7][w & 0xff] ^ table[6][(w >> 8) & 0xff] ^ table[5][(w >> 16) & 0xff] ^
		    table[4][(w >> 24) & 0xff] ^ table[3][(w >> 32) & 0xff] ^ table[2][(w >> 40) & 0xff] ^
		    table[1][(w >> 48) & 0xff] ^ table[0][w >> 56];
		p += 8;
		n -= 8;
	}
	while (n--)
		c = (c >> 8) ^ table[0][(c ^ *p++) & 0xff];
	return ~c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
crc32c_sse42(uint32_t seed, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint64_t c = (uint32_t)~seed;

	while (n >= 8) {
		uint64_t w;

		memcpy(&w, p, 8);
		c = _mm_crc32_u64(c, w);
		p += 8;
		n -= 8;
	}
	while (n--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	return ~(uint32_t)c;
}
#endif

uint32_t
tr_crc32c(uint32_t seed, const void *p, size_t n)
{
#if defined(__x86_64__)
	if (have_sse42)
		return crc32c_sse42(seed, p, n);
#endif
	return tr_crc32c_portable(seed, p, n);
}
