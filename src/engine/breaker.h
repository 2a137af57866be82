/*
 * breaker.h: a circuit breaker for one endpoint.
 *
 * CLOSED lets everything pass and counts consecutive failures; `failures` of them open it. OPEN lets nothing pass for
 * open_ns, then becomes HALF: one write may pass as a trial. Its success closes the breaker, its failure opens it again. What
 * is not the endpoint's fault (blame TARGET or BATCH) is not reported here.
 *
 * A pure machine: no clock, no lock, no allocation. Owned by a dispatcher, that is by one shard worker.
 */
#ifndef TR_BREAKER_H
#define TR_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum tr_breaker_state { TR_BREAKER_CLOSED, TR_BREAKER_OPEN, TR_BREAKER_HALF };

struct tr_breaker {
    uint32_t failures_max; /* 0: never opens */
    int64_t open_ns;
    enum tr_breaker_state state;
    uint32_t failures;     /* consecutive */
    int64_t until_ns;      /* OPEN: end */
    bool trial;            /* HALF: one write is under way */
};

void tr_breaker_init(struct tr_breaker *b, uint32_t failures_max, int64_t open_ns);
/* May a write go there now? No state changes but OPEN → HALF by the clock. */
bool tr_breaker_allows(struct tr_breaker *b, int64_t now_ns);
void tr_breaker_on_start(struct tr_breaker *b);
void tr_breaker_on_ok(struct tr_breaker *b);
void tr_breaker_on_failure(struct tr_breaker *b, int64_t now_ns);
void tr_breaker_on_neutral(struct tr_breaker *b); /* the write ended without telling anything about the endpoint */
int64_t tr_breaker_next_wake(const struct tr_breaker *b);

#endif
