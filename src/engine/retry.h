/*
 * retry.h: how long to wait before the nth repetition: exponential, capped, jittered over its upper half, and never
 * shorter than what the peer asked for (which is honoured up to ten times the cap, so that a peer cannot park us for ever).
 *
 * A pure function of attempt, wish and generator.
 */
#ifndef TR_RETRY_H
#define TR_RETRY_H

#include <stdint.h>

#include "prng.h"

struct tr_retry {
    int64_t min_ns, max_ns;
};

/* attempt: 0 for the first repetition. */
int64_t tr_retry_delay_ns(const struct tr_retry *r, uint32_t attempt, uint32_t retry_after_ms, struct tr_prng *prng);

#endif
