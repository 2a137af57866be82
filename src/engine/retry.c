#include "retry.h"

#include <tailrace/clock.h>

#include "check.h"

int64_t tr_retry_delay_ns(const struct tr_retry *r, uint32_t attempt, uint32_t retry_after_ms, struct tr_prng *prng)
{
    int64_t max = TR_MAX(r->max_ns, 1), base = TR_MIN(TR_MAX(r->min_ns, 1), max);
    for (uint32_t i = 0; i < attempt && base < max; i++)
        base = base > max / 2 ? max : base * 2;
    int64_t delay = base / 2 + tr_prng_range(prng, 0, base - base / 2);
    int64_t wish = (int64_t)retry_after_ms * TR_NS_PER_MS, bound = max > INT64_MAX / 10 ? INT64_MAX : max * 10;
    return TR_MAX(delay, TR_MIN(wish, bound));
}
