/*
 * nomem_kit.h: a scenario is run once to count its allocations, then again and again: with the nth failing, with all from the nth on failing, for every n or a sample.
 * It must not crash, leave nothing behind (LeakSanitizer looks), answer with an error that says why or be right all the same, and work again afterwards.
 */
#ifndef NOMEM_KIT_H
#define NOMEM_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc.h"

#include <tailrace/err.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NOMEM_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define NOMEM_SANITIZED 1
#endif
#ifdef NOMEM_SANITIZED
enum { NOMEM_COARSER = 8 };
#else
enum { NOMEM_COARSER = 1 };
#endif

struct nomem_case {
    const char *what;
    uint64_t samples;             /* at most so many n; 0: all */
    void *arg;
    void (*before)(void *arg);    /* with memory; NULL: nothing */
    int (*run)(void *arg, struct tr_err *err); /* leaves nothing behind but in arg; looks at its own results when it succeeds */
    void (*after)(void *arg, int rc, const struct tr_err *err); /* with memory again: what must be right whatever failed; NULL: nothing */
};

/* An error that says so, in words of the operator's. */
static inline void nomem_said(const char *what, uint64_t n, int rc, const struct tr_err *err)
{
    bool known = rc == TR_NOMEM || rc == TR_RETRY || rc == TR_FATAL;
    if (!known || err->rc != rc || !(strstr(err->msg, "memory") || strstr(err->msg, "ENOMEM")))
        fail_msg("%s, allocation %llu: rc %d, err.rc %d, '%s'", what, (unsigned long long)n, rc, err->rc, err->msg);
}

static inline int nomem_run(const struct nomem_case *c, uint64_t n, bool lasting, uint64_t *ret_left, struct tr_err *err)
{
    memset(err, 0, sizeof *err);
    if (c->before)
        c->before(c->arg);
    if (lasting)
        tr_alloc_fail_from(n);
    else
        tr_alloc_fail_nth(n);
    int rc = c->run(c->arg, err);
    *ret_left = tr_alloc_fail_nth(0);
    if (c->after)
        c->after(c->arg, rc, err);
    return rc;
}

static inline void nomem_every(const struct nomem_case *c)
{
    const uint64_t far = UINT64_C(1) << 60;
    uint64_t refused = 0, absorbed = 0, left;
    struct tr_err err;
    if (nomem_run(c, far, false, &left, &err) < 0)
        fail_msg("%s: %s", c->what, err.msg);
    uint64_t n = far - left, most = c->samples / NOMEM_COARSER, step = most ? (n + most - 1) / most : 1;
    assert_true(n > 0);
    for (uint64_t k = 1; k <= n; k += step)
        for (int lasting = 0; lasting < 2; lasting++) {
            int rc = nomem_run(c, k, lasting, &left, &err);
            if (rc < 0) {
                assert_int_equal(left, 0);
                nomem_said(c->what, k, rc, &err);
            }
            refused += rc < 0;
            absorbed += rc >= 0 && left == 0;
        }
    if (nomem_run(c, 0, false, &left, &err) < 0)
        fail_msg("%s, afterwards: %s", c->what, err.msg);
    print_message("%s: %llu allocations, step %llu: %llu runs refused, %llu right all the same\n", c->what, (unsigned long long)n, (unsigned long long)step,
                  (unsigned long long)refused, (unsigned long long)absorbed);
    assert_true(refused > 0);
}

#endif
