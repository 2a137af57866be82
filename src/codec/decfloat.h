/*
 * decfloat.h: decimal text to the nearest Float64 or Float32, ties to even; without locale, NUL or allocation.
 *
 *   text = ["-"] digits ["." digits] [("e" | "E") ["+" | "-"] digits] | "NaN" | ["-"] "Infinity"
 *
 * Method: up to 19 digits and exponents near 0 by one or two multiplications with a 128-bit power of five (Lemire, "Number Parsing at a Gigabyte per
 * Second", 2021; that these suffice: Mushtak and Lemire, "Fast Number Parsing Without Fallback", 2023); all others by exact long arithmetic.
 */
#ifndef TR_DECFLOAT_H
#define TR_DECFLOAT_H

#include <tailrace/slice.h>

struct tr_decfloat {
    uint64_t w;          /* the first 19 significant digits */
    int32_t exp10;       /* of w's last digit */
    uint32_t digits;     /* significant ones: without leading zeros; where they are more than 15, without trailing zeros behind the point */
    uint8_t kind;        /* 'n' a number, 'i' infinity, 'N' not a number */
    bool minus;
    struct tr_slice text;
};

bool tr_decfloat_scan(struct tr_slice text, struct tr_decfloat *ret); /* false: it is no such text */

/* The bits. An overflow is infinity, an underflow zero: compare with what was scanned. */
uint64_t tr_decfloat_f64(const struct tr_decfloat *d);
uint32_t tr_decfloat_f32(const struct tr_decfloat *d);

#endif
