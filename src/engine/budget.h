/*
 * budget.h: when back-pressure begins and ends.
 *
 * It is engaged by a refusal (a full queue, the byte budget, parked chunks) or when the balance exceeds `high`. It is released
 * once the balance is at or below `low` *and* at least min_pause_ns have passed: without the pause a source at its limit
 * would flap with every finished write.
 *
 * A pure machine, one per pipeline thread.
 */
#ifndef TR_BUDGET_H
#define TR_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct tr_budget {
    uint64_t high, low;
    int64_t min_pause_ns;
    bool engaged;
    bool fits;             /* engaged, but the balance is low again: only the pause is left */
    int64_t since_ns;
    uint64_t engagements;
    int64_t blocked_ns;    /* total of finished engagements */
};

void tr_budget_init(struct tr_budget *b, uint64_t high, uint64_t low, int64_t min_pause_ns);
void tr_budget_on_refused(struct tr_budget *b, int64_t now_ns);
/* The balance as it is now; true when this released it. */
bool tr_budget_on_level(struct tr_budget *b, uint64_t charged, int64_t now_ns);
int64_t tr_budget_next_wake(const struct tr_budget *b);

#endif
