#include "dispatcher.h"

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"

int tr_dispatcher_init(struct tr_dispatcher *d, const struct tr_disp_cfg *cfg, struct tr_prng *prng)
{
    TR_ASSERT(cfg->inflight > 0 && cfg->endpoints > 0);
    *d = (struct tr_dispatcher){.cfg = *cfg, .cap = cfg->inflight + cfg->queue, .prng = prng, .ticket_next = 1};
    d->slots = tr_calloc(d->cap, sizeof *d->slots);
    d->breakers = tr_calloc(cfg->endpoints, sizeof *d->breakers);
    if (!d->slots || !d->breakers) {
        tr_dispatcher_done(d);
        return TR_NOMEM;
    }
    for (uint32_t i = 0; i < cfg->endpoints; i++)
        tr_breaker_init(&d->breakers[i], cfg->breaker_failures, cfg->breaker_open_ns);
    return TR_OK;
}

void tr_dispatcher_done(struct tr_dispatcher *d)
{
    tr_free(d->slots);
    tr_free(d->breakers);
    d->slots = NULL;
    d->breakers = NULL;
}

static struct tr_disp_slot *at(const struct tr_dispatcher *d, uint32_t i)
{
    uint32_t k = d->head + i;
    return &d->slots[k >= d->cap ? k - d->cap : k];
}

static void pop_gone(struct tr_dispatcher *d)
{
    while (d->n && at(d, 0)->state == TR_DISP_GONE) {
        d->head = d->head + 1 == d->cap ? 0 : d->head + 1;
        d->n--;
    }
}

bool tr_dispatcher_room(const struct tr_dispatcher *d)
{
    return d->n < d->cap;
}

bool tr_dispatcher_idle(const struct tr_dispatcher *d)
{
    return d->n == 0;
}

void tr_dispatcher_on_sealed(struct tr_dispatcher *d, void *batch, bool dependent)
{
    TR_ASSERT(d->n < d->cap);
    *at(d, d->n) = (struct tr_disp_slot){.batch = batch, .not_before_ns = INT64_MIN, .state = TR_DISP_READY, .dependent = dependent};
    d->n++;
}

static bool durable(const struct tr_disp_slot *s)
{
    return s->state == TR_DISP_FINISHED || s->state == TR_DISP_GONE;
}

static bool pick_endpoint(struct tr_dispatcher *d, int64_t now_ns, uint32_t *ret)
{
    for (uint32_t i = 0; i < d->cfg.endpoints; i++) {
        uint32_t e = (d->ep_next + i) % d->cfg.endpoints;
        if (tr_breaker_allows(&d->breakers[e], now_ns)) {
            *ret = e;
            return true;
        }
    }
    return false;
}

static struct tr_disp_action act(enum tr_disp_kind kind, const struct tr_disp_slot *s)
{
    return (struct tr_disp_action){.kind = kind, .batch = s->batch, .ticket = s->ticket, .endpoint = s->endpoint, .attempt = s->attempt};
}

static bool tell(struct tr_disp_slot *s, struct tr_disp_action *ret)
{
    switch (s->state) {
    case TR_DISP_FINISHED:
        s->state = TR_DISP_GONE;
        *ret = act(TR_DISP_ACT_DONE, s);
        return true;
    case TR_DISP_REFUSED:
        s->state = TR_DISP_REFUSED_TOLD;
        *ret = act(TR_DISP_ACT_REJECTED, s);
        return true;
    case TR_DISP_STALE:
        s->state = TR_DISP_STALE_TOLD;
        *ret = act(TR_DISP_ACT_REBIND, s);
        return true;
    case TR_DISP_FAILED:
        s->state = TR_DISP_FAILED_TOLD;
        *ret = act(TR_DISP_ACT_FAIL, s);
        return true;
    default:
        return false;
    }
}

struct tr_disp_action tr_dispatcher_next(struct tr_dispatcher *d, int64_t now_ns)
{
    struct tr_disp_action a = {0};
    for (uint32_t i = 0; i < d->n; i++)
        if (tell(at(d, i), &a)) {
            pop_gone(d);
            return a;
        }
    bool all_durable = true;
    uint32_t window = 0;
    for (uint32_t i = 0; i < d->n && window < d->cfg.inflight; i++) {
        struct tr_disp_slot *s = at(d, i);
        if (durable(s))
            continue;
        window++;
        if (s->state == TR_DISP_READY && (!s->dependent || all_durable) && s->not_before_ns <= now_ns) {
            uint32_t e;
            if (!pick_endpoint(d, now_ns, &e))
                return a;
            d->ep_next = (e + 1) % d->cfg.endpoints;
            tr_breaker_on_start(&d->breakers[e]);
            s->state = TR_DISP_BUSY;
            s->endpoint = e;
            s->ticket = d->ticket_next++;
            s->started_ns = now_ns;
            d->busy++;
            return act(TR_DISP_ACT_WRITE, s);
        }
        if (d->cfg.pipelined && s->state != TR_DISP_BUSY)
            return a; /* strictly in order */
        all_durable = false;
    }
    return a;
}

int64_t tr_dispatcher_next_wake(const struct tr_dispatcher *d)
{
    int64_t r = INT64_MAX, breaker = INT64_MAX;
    bool all_open = true;
    for (uint32_t e = 0; e < d->cfg.endpoints; e++) {
        int64_t w = tr_breaker_next_wake(&d->breakers[e]);
        all_open &= w != INT64_MAX;
        breaker = TR_MIN(breaker, w);
    }
    uint32_t window = 0;
    bool all_durable = true;
    for (uint32_t i = 0; i < d->n && window < d->cfg.inflight; i++) {
        const struct tr_disp_slot *s = at(d, i);
        if (durable(s))
            continue;
        window++;
        if (s->state == TR_DISP_READY && (!s->dependent || all_durable))
            r = TR_MIN(r, s->not_before_ns);
        if (d->cfg.pipelined && s->state != TR_DISP_BUSY)
            break;
        all_durable = false;
    }
    return r == INT64_MAX || !all_open ? r : TR_MAX(r, breaker);
}

static struct tr_disp_slot *busy_by_ticket(const struct tr_dispatcher *d, uint64_t ticket)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct tr_disp_slot *s = at(d, i);
        if (s->state == TR_DISP_BUSY && s->ticket == ticket)
            return s;
    }
    return NULL;
}

static void leave_busy(struct tr_dispatcher *d, struct tr_disp_slot *s, enum tr_disp_state to)
{
    TR_ASSERT(s->state == TR_DISP_BUSY && d->busy > 0);
    s->state = (uint8_t)to;
    d->busy--;
}

static void retry(struct tr_dispatcher *d, struct tr_disp_slot *s, uint32_t retry_after_ms, int64_t now_ns)
{
    int64_t delay = tr_retry_delay_ns(&d->cfg.retry, s->attempt, retry_after_ms, d->prng);
    s->not_before_ns = tr_deadline_ns(now_ns, delay);
    if (s->attempt < UINT32_MAX)
        s->attempt++;
    d->retries++;
}

static void pipelined_result(struct tr_dispatcher *d, struct tr_disp_slot *s, uint64_t ticket, int rc)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct tr_disp_slot *o = at(d, i);
        if (o == s || o->state != TR_DISP_BUSY)
            continue;
        if (rc >= 0 && o->ticket < ticket)
            leave_busy(d, o, TR_DISP_FINISHED);
        else if (rc < 0 && rc != TR_REJECT && o->ticket > ticket) {
            leave_busy(d, o, TR_DISP_READY);
            o->not_before_ns = INT64_MIN; /* order holds it behind s */
        }
    }
}

void tr_dispatcher_on_result(struct tr_dispatcher *d, uint64_t ticket, int rc, uint8_t blame, uint32_t retry_after_ms, int64_t now_ns)
{
    struct tr_disp_slot *s = busy_by_ticket(d, ticket);
    if (!s)
        return;
    struct tr_breaker *b = &d->breakers[s->endpoint];
    if (d->cfg.pipelined)
        pipelined_result(d, s, ticket, rc);
    if (rc >= 0) {
        tr_breaker_on_ok(b);
        leave_busy(d, s, TR_DISP_FINISHED);
    } else if (rc == TR_RETRY || rc == TR_NOMEM || rc == TR_AGAIN || rc == TR_NOT_READY) {
        if (rc == TR_RETRY && (blame == TR_BLAME_ENDPOINT || blame == TR_BLAME_NONE))
            tr_breaker_on_failure(b, now_ns);
        else
            tr_breaker_on_neutral(b);
        leave_busy(d, s, TR_DISP_READY);
        retry(d, s, retry_after_ms, now_ns);
    } else {
        tr_breaker_on_neutral(b);
        leave_busy(d, s, rc == TR_REJECT ? TR_DISP_REFUSED : rc == TR_STALE ? TR_DISP_STALE : TR_DISP_FAILED);
    }
}

void tr_dispatcher_on_forgotten(struct tr_dispatcher *d, uint64_t after_ticket, int64_t not_before_ns)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct tr_disp_slot *s = at(d, i);
        if (s->state != TR_DISP_BUSY || s->ticket <= after_ticket)
            continue;
        tr_breaker_on_neutral(&d->breakers[s->endpoint]);
        leave_busy(d, s, TR_DISP_READY);
        s->not_before_ns = not_before_ns;
    }
}

static struct tr_disp_slot *by_batch(const struct tr_dispatcher *d, const void *batch)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (at(d, i)->batch == batch && at(d, i)->state != TR_DISP_GONE)
            return at(d, i);
    TR_UNREACHABLE();
}

static void answer(struct tr_dispatcher *d, const void *batch, enum tr_disp_state from, enum tr_disp_state to)
{
    struct tr_disp_slot *s = by_batch(d, batch);
    TR_ASSERT(s->state == from);
    s->state = (uint8_t)to;
    s->not_before_ns = INT64_MIN;
}

void tr_dispatcher_on_rewritten(struct tr_dispatcher *d, void *batch)
{
    answer(d, batch, TR_DISP_REFUSED_TOLD, TR_DISP_READY);
}

void tr_dispatcher_on_dropped(struct tr_dispatcher *d, void *batch)
{
    answer(d, batch, TR_DISP_REFUSED_TOLD, TR_DISP_FINISHED);
}

void tr_dispatcher_on_rebound(struct tr_dispatcher *d, void *batch, int64_t not_before_ns)
{
    answer(d, batch, TR_DISP_STALE_TOLD, TR_DISP_READY);
    by_batch(d, batch)->not_before_ns = not_before_ns;
}

void tr_dispatcher_on_rebind_failed(struct tr_dispatcher *d, void *batch, int rc)
{
    answer(d, batch, TR_DISP_STALE_TOLD, rc == TR_REJECT ? TR_DISP_REFUSED : TR_DISP_FAILED);
}

void *tr_dispatcher_take(struct tr_dispatcher *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct tr_disp_slot *s = at(d, i);
        if (s->state == TR_DISP_BUSY || s->state == TR_DISP_GONE)
            continue;
        s->state = TR_DISP_GONE;
        void *batch = s->batch;
        pop_gone(d);
        return batch;
    }
    return NULL;
}

uint32_t tr_dispatcher_open_breakers(const struct tr_dispatcher *d)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < d->cfg.endpoints; e++)
        n += d->breakers[e].state == TR_BREAKER_OPEN;
    return n;
}
