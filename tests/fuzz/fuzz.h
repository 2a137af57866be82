/*
 * fuzz.h: what the fuzz targets share. A target is one program with LLVMFuzzerTestOneInput, which holds what it is given against the properties
 * of the code under test, and aborts where one does not hold. libFuzzer calls it (make fuzz), or replay.c over the stored inputs (suite fuzz).
 *
 * Inputs lie in a block of exactly their size, so that a sanitizer sees any read beyond.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>
#include <tailrace/slice.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define FUZZ_MUST(cond) ((cond) ? (void)0 : fuzz_broken(__FILE__, __LINE__, #cond))

_Noreturn static inline void fuzz_broken(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

/* rc is one of a decoder's two answers, and a refusal says why. */
static inline bool fuzz_taken(int rc, int refusal, const struct tr_err *err)
{
    if (rc == TR_OK)
        return true;
    if (rc != refusal || err->rc != rc || !err->msg[0])
        fprintf(stderr, "rc %d, err.rc %d, '%s'\n", rc, err->rc, err->msg);
    FUZZ_MUST(rc == refusal && err->rc == rc && err->msg[0]);
    return false;
}

/* The bytes behind the settings that a target takes from the head of its input, in a block of their own. */
static inline uint8_t *fuzz_rest(const uint8_t *p, size_t n, size_t head, size_t *ret_n)
{
    *ret_n = n > head ? n - head : 0;
    uint8_t *rest = malloc(*ret_n ? *ret_n : 1);
    FUZZ_MUST(rest != NULL);
    if (*ret_n)
        memcpy(rest, p + head, *ret_n);
    return rest;
}

#endif
