#include "budget.h"

#include <tailrace/clock.h>

void tr_budget_init(struct tr_budget *b, uint64_t high, uint64_t low, int64_t min_pause_ns)
{
    *b = (struct tr_budget){.high = high, .low = low, .min_pause_ns = min_pause_ns};
}

void tr_budget_on_refused(struct tr_budget *b, int64_t now_ns)
{
    if (b->engaged)
        return;
    b->engaged = true;
    b->fits = false;
    b->since_ns = now_ns;
    b->engagements++;
}

bool tr_budget_on_level(struct tr_budget *b, uint64_t charged, int64_t now_ns)
{
    if (charged > b->high)
        tr_budget_on_refused(b, now_ns);
    if (!b->engaged)
        return false;
    b->fits = charged <= b->low;
    if (!b->fits || now_ns < tr_deadline_ns(b->since_ns, b->min_pause_ns))
        return false;
    b->engaged = false;
    b->blocked_ns += now_ns - b->since_ns;
    return true;
}

int64_t tr_budget_next_wake(const struct tr_budget *b)
{
    return b->engaged && b->fits ? tr_deadline_ns(b->since_ns, b->min_pause_ns) : INT64_MAX;
}
