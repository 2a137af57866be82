/* crc32c.h - CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as in RFC 3720 appendix B.4.
 *
 * Purpose: checksum of change-log frames; a persisted format.
 * Owner:   nothing. Threads: any. Errors: none.
 *
 * tr_crc32c(0, p, n) is the checksum of p; tr_crc32c(crc of A, B) is that of A followed by B.
 * The SSE4.2 instruction is used where the processor has it, else eight tables of 1 KiB.
 */
#ifndef TR_CRC32C_H
#define TR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t tr_crc32c(uint32_t seed, const void *p, size_t n);

/* The table variant, whatever the processor: for tests. */
uint32_t tr_crc32c_portable(uint32_t seed, const void *p, size_t n);

#endif
