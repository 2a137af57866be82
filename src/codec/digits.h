/*
 * digits.h: eight ASCII digits at once, by arithmetic on a word.
 */
#ifndef TR_DIGITS_H
#define TR_DIGITS_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The number at p[0 … 7]; false if one of them is no digit. */
static inline bool tr_digits8(const uint8_t *p, uint32_t *ret)
{
    uint64_t c;
    memcpy(&c, p, sizeof c);
    c = le64toh(c) - UINT64_C(0x3030303030303030);
    if ((c | (c + UINT64_C(0x7676767676767676))) & UINT64_C(0x8080808080808080))
        return false;
    c = c * 10 + (c >> 8); /* pairs */
    c = (c & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) + (c >> 16 & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001);
    *ret = (uint32_t)(c >> 32);
    return true;
}

#endif
