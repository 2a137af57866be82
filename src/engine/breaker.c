#include "breaker.h"

#include <tailrace/clock.h>

void tr_breaker_init(struct tr_breaker *b, uint32_t failures_max, int64_t open_ns)
{
    *b = (struct tr_breaker){.failures_max = failures_max, .open_ns = open_ns};
}

bool tr_breaker_allows(struct tr_breaker *b, int64_t now_ns)
{
    if (b->state == TR_BREAKER_OPEN && now_ns >= b->until_ns) {
        b->state = TR_BREAKER_HALF;
        b->trial = false;
    }
    return b->state == TR_BREAKER_CLOSED || (b->state == TR_BREAKER_HALF && !b->trial);
}

void tr_breaker_on_start(struct tr_breaker *b)
{
    if (b->state == TR_BREAKER_HALF)
        b->trial = true;
}

void tr_breaker_on_ok(struct tr_breaker *b)
{
    b->state = TR_BREAKER_CLOSED;
    b->failures = 0;
    b->trial = false;
}

void tr_breaker_on_failure(struct tr_breaker *b, int64_t now_ns)
{
    if (b->failures < UINT32_MAX)
        b->failures++;
    /* An OPEN breaker hears of writes that were under way when it opened; they do not lengthen the pause. */
    if (b->failures_max == 0 || b->state == TR_BREAKER_OPEN)
        return;
    if (b->state == TR_BREAKER_HALF || b->failures >= b->failures_max) {
        b->state = TR_BREAKER_OPEN;
        b->until_ns = tr_deadline_ns(now_ns, b->open_ns);
        b->trial = false;
    }
}

void tr_breaker_on_neutral(struct tr_breaker *b)
{
    b->trial = false;
}

int64_t tr_breaker_next_wake(const struct tr_breaker *b)
{
    return b->state == TR_BREAKER_OPEN ? b->until_ns : INT64_MAX;
}
