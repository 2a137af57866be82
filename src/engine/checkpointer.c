#include "checkpointer.h"

#include <string.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"

enum { RING_MIN = 64 };
enum { OUTSTANDING = 0, DELIVERED = 1, FAILED = 2 };

void tr_ckpt_init(struct tr_ckpt *c, uint32_t polls_max, int64_t interval_ns, bool eager, int64_t now_ns)
{
    TR_ASSERT(polls_max >= RING_MIN && (polls_max & (polls_max - 1)) == 0);
    *c = (struct tr_ckpt){.polls_max = polls_max, .interval_ns = interval_ns, .eager = eager, .next_ns = eager ? now_ns : tr_deadline_ns(now_ns, interval_ns)};
}

void tr_ckpt_done(struct tr_ckpt *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        tr_free(c->v[i].ring);
    tr_free(c->v);
    c->v = NULL;
    c->n = c->cap = 0;
}

static struct tr_ckpt_lane *find(const struct tr_ckpt *c, uint32_t lane)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->v[i].lane == lane)
            return &c->v[i];
    return NULL;
}

const struct tr_ckpt_lane *tr_ckpt_lane(const struct tr_ckpt *c, uint32_t lane, uint32_t epoch)
{
    const struct tr_ckpt_lane *l = find(c, lane);
    return l && l->epoch == epoch ? l : NULL;
}

int tr_ckpt_begin_epoch(struct tr_ckpt *c, uint32_t lane, uint32_t epoch, int64_t now_ns)
{
    struct tr_ckpt_lane *l = find(c, lane);
    struct tr_ckpt_poll *ring = tr_calloc(RING_MIN, sizeof *ring);
    if (!ring)
        return TR_NOMEM;
    if (l) {
        tr_free(l->ring);
    } else {
        if (c->n == c->cap) {
            uint32_t cap = c->cap ? c->cap * 2 : 8;
            struct tr_ckpt_lane *v = tr_realloc(c->v, cap * sizeof *v);
            if (!v) {
                tr_free(ring);
                return TR_NOMEM;
            }
            c->v = v;
            c->cap = cap;
        }
        l = &c->v[c->n++];
    }
    *l = (struct tr_ckpt_lane){
        .lane = lane, .epoch = epoch, .ring = ring, .cap = RING_MIN, .upto = INT64_MIN, .committed = INT64_MIN, .moved_ns = now_ns, .stalled_since_ns = INT64_MAX};
    return TR_OK;
}

void tr_ckpt_end_epoch(struct tr_ckpt *c, uint32_t lane, uint32_t epoch)
{
    struct tr_ckpt_lane *l = find(c, lane);
    if (!l || l->epoch != epoch)
        return;
    tr_free(l->ring);
    size_t at = (size_t)(l - c->v);
    memmove(l, l + 1, (c->n - at - 1) * sizeof *l);
    c->n--;
}

static int grow(struct tr_ckpt *c, struct tr_ckpt_lane *l, uint64_t seq)
{
    uint32_t cap = l->cap;
    while (seq - l->head >= cap) {
        TR_ASSERT(cap < c->polls_max); /* the engine polls no further ahead */
        cap *= 2;
    }
    struct tr_ckpt_poll *ring = tr_calloc(cap, sizeof *ring);
    if (!ring)
        return TR_NOMEM;
    for (uint64_t s = l->head; s < l->head + l->cap; s++)
        ring[s & (cap - 1)] = l->ring[s & (l->cap - 1)];
    tr_free(l->ring);
    l->ring = ring;
    l->cap = cap;
    return TR_OK;
}

int tr_ckpt_on_resolved(struct tr_ckpt *c, uint32_t lane, uint32_t epoch, uint64_t seq, int64_t upto, bool failed, int64_t now_ns)
{
    struct tr_ckpt_lane *l = find(c, lane);
    if (!l || l->epoch != epoch) {
        c->stale++;
        return 0;
    }
    TR_ASSERT(seq >= l->head);
    if (seq - l->head >= l->cap && grow(c, l, seq) < 0)
        return TR_NOMEM;
    struct tr_ckpt_poll *p = &l->ring[seq & (l->cap - 1)];
    TR_ASSERT(p->state == OUTSTANDING);
    *p = (struct tr_ckpt_poll){.upto = upto, .state = failed ? FAILED : DELIVERED};
    if (failed && l->stalled_since_ns == INT64_MAX)
        l->stalled_since_ns = now_ns;
    int64_t before = l->upto;
    for (p = &l->ring[l->head & (l->cap - 1)]; p->state == DELIVERED; p = &l->ring[l->head & (l->cap - 1)]) {
        if (p->upto > l->upto)
            l->upto = p->upto;
        p->state = OUTSTANDING;
        l->head++;
    }
    if (l->upto == before)
        return 0;
    l->moved_ns = now_ns;
    return 1;
}

int tr_ckpt_settled(const struct tr_ckpt *c, uint32_t lane, uint32_t epoch, uint64_t issued)
{
    const struct tr_ckpt_lane *l = tr_ckpt_lane(c, lane, epoch);
    if (!l || l->head >= issued)
        return 1;
    return l->stalled_since_ns != INT64_MAX ? -1 : 0;
}

static bool dirty(const struct tr_ckpt *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->v[i].upto > c->v[i].committed)
            return true;
    return false;
}

bool tr_ckpt_due(const struct tr_ckpt *c, int64_t now_ns)
{
    return now_ns >= tr_ckpt_next_wake(c);
}

size_t tr_ckpt_collect(const struct tr_ckpt *c, struct tr_watermark *v, size_t max)
{
    size_t n = 0;
    for (uint32_t i = 0; i < c->n && n < max; i++) {
        const struct tr_ckpt_lane *l = &c->v[i];
        if (l->upto > l->committed)
            v[n++] = (struct tr_watermark){.lane = l->lane, .epoch = l->epoch, .upto = l->upto};
    }
    return n;
}

void tr_ckpt_on_committed(struct tr_ckpt *c, const struct tr_watermark *v, size_t n, int64_t now_ns)
{
    for (size_t i = 0; i < n; i++) {
        struct tr_ckpt_lane *l = find(c, v[i].lane);
        if (l && l->epoch == v[i].epoch && v[i].upto > l->committed)
            l->committed = v[i].upto;
    }
    c->next_ns = c->eager ? now_ns : tr_deadline_ns(now_ns, c->interval_ns);
}

void tr_ckpt_on_commit_failed(struct tr_ckpt *c, int64_t now_ns, int64_t retry_ns)
{
    c->next_ns = tr_deadline_ns(now_ns, retry_ns);
}

int64_t tr_ckpt_next_wake(const struct tr_ckpt *c)
{
    return dirty(c) ? c->next_ns : INT64_MAX;
}

int64_t tr_ckpt_stalled_since(const struct tr_ckpt *c)
{
    int64_t r = INT64_MAX;
    for (uint32_t i = 0; i < c->n; i++)
        r = TR_MIN(r, c->v[i].stalled_since_ns);
    return r;
}
