#include "engine.h"

#include <inttypes.h>

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"

/* How long a drain lets a payload wait for what is not back-pressure (a bind, say). */
#define DRAIN_NOT_READY_NS TR_NS_PER_S
/* How long a lane whose trouble recurs must be without it. */
#define PROVING_NS (20 * TR_NS_PER_S)

/* A pipeline thread. Each step: take new lanes, let every lane do one thing (retry its push, poll, or be tended), flush what is due,
 * and say when to be called again. The loop then waits once, for all lanes and the waker. */

/* ---- one lane -------------------------------------------------------------------------------------------------------- */

static void lane_tend(struct tr_worker *w, struct tr_lane_rt *l)
{
    struct tr_err err = {0};
    if (w->now_ns - l->tended_ns < TR_TEND_NS)
        return;
    l->tended_ns = w->now_ns;
    if (l->lane->ops->tend && l->lane->ops->tend(l->lane, w->now_ns, &err) == TR_FATAL)
        tr_pl_fail(w->p, &err);
}

static void set_blocked(struct tr_lane_rt *l, bool on)
{
    if (l->blocked == on)
        return;
    l->blocked = on;
    if (l->lane->ops->pause)
        l->lane->ops->pause(l->lane, on);
}

static void push_failed(struct tr_worker *w, struct tr_lane_rt *l, int rc, struct tr_err *err)
{
    if (err->rc >= 0)
        tr_pl_answered(err, rc < 0 ? rc : TR_FATAL, "the chain");
    tr_pl_fail(w->p, err);
    tr_ack_fail(l->cur.ack);
    tr_ack_unref(l->cur.ack);
    l->pending = false;
    l->ended = true; /* nothing more of this lane; the pipeline is ending */
}

/* True when the push is done. */
static bool lane_push(struct tr_worker *w, struct tr_lane_rt *l)
{
    struct tr_push ret = {.next = l->next, .linger_at_ns = INT64_MAX};
    struct tr_err err = {0};
    int rc = w->ops->push_batch(w->chain, &l->cur, l->next, &ret, &err);
    TR_ASSERT(ret.next >= l->next && ret.next <= l->cur.n);
    atomic_fetch_add_explicit(&w->records, ret.next - l->next, memory_order_relaxed);
    tr_counter_add(w->p->m_records, ret.next - l->next);
    l->next = ret.next;
    w->chain_linger_ns = ret.linger_at_ns;
    if (rc < 0 || ret.state == TR_PUSH_FAILED) {
        push_failed(w, l, rc, &err);
        return false;
    }
    l->not_ready = ret.state == TR_PUSH_NOT_READY;
    if (ret.state == TR_PUSH_BLOCKED) {
        tr_budget_on_refused(&w->budget, w->now_ns);
        set_blocked(l, true);
        return false;
    }
    set_blocked(l, false);
    if (l->not_ready)
        return false;
    tr_ack_unref(l->cur.ack);
    l->cur.ack = NULL;
    l->pending = false;
    return true;
}

static void lane_begin(struct tr_worker *w, struct tr_lane_rt *l)
{
    uint64_t seq = atomic_load_explicit(&l->issued, memory_order_relaxed);
    int64_t upto = l->cur.upto;
    l->upto = TR_MAX(l->upto, upto);
    struct tr_ack *a;
    if (tr_ack_new(&w->p->acks, l->id, l->epoch, seq, upto, &a) < 0) {
        struct tr_err err;
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "no memory for the acknowledgement of a poll of lane %u", l->id);
        tr_pl_fail(w->p, &err);
        l->ended = true;
        return;
    }
    a->payloads = l->cur.n;
    l->cur.ack = a;
    l->cur.lane = l->id;
    l->next = 0;
    l->pending = true;
    atomic_store_explicit(&l->issued, seq + 1, memory_order_release);
    lane_push(w, l); /* also with n == 0: the chain learns that the position moved */
}

/* Too many polls are out ahead of the delivered prefix: the checkpointer's ring is bounded. */
static bool too_far(const struct tr_lane_rt *l)
{
    return atomic_load_explicit(&l->issued, memory_order_relaxed) - atomic_load_explicit(&l->resolved, memory_order_acquire) >= TR_POLLS_MAX - 1;
}

/* A lane that is well each time until it meets the same obstacle again (a transaction that does not fit on the disk) is in trouble all the time: one
 * that fails again soon after must prove itself. */
static void lane_failed(struct tr_worker *w, struct tr_lane_rt *l, const struct tr_err *err)
{
    if (!l->trouble.set)
        l->recurs = l->well_ns && w->now_ns - l->well_ns < PROVING_NS;
    l->proving_ns = 0;
    tr_pl_trouble(w->p, &l->trouble, err);
}

static void lane_well(struct tr_worker *w, struct tr_lane_rt *l)
{
    if (!l->trouble.set)
        return;
    if (!l->proving_ns)
        l->proving_ns = w->now_ns;
    if (l->recurs && w->now_ns - l->proving_ns < PROVING_NS)
        return;
    l->well_ns = w->now_ns;
    l->proving_ns = 0;
    tr_pl_well(w->p, &l->trouble);
}

/* A source that says what cannot be must not lose rows by it: what lies below a position that was committed is never read again. */
static int lane_check(const struct tr_lane_rt *l, int rc, struct tr_err *err)
{
    const struct tr_payloads *in = &l->cur;
    if (rc == TR_EOF && in->n)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "lane %u ended in a poll with %u payloads: a poll that has some answers 0, the next one EOF", l->id, in->n);
    if (rc < 0)
        return rc;
    if (in->n && !in->v)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "lane %u said that a poll has %u payloads, and gave none", l->id, in->n);
    if (in->upto != INT64_MIN && in->upto < l->upto)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "lane %u went back: a poll up to %" PRId64 " after one up to %" PRId64, l->id, in->upto, l->upto);
    return !in->n && (in->upto == INT64_MIN || in->upto == l->upto) ? TR_AGAIN : rc; /* it says nothing new */
}

/* True when something came. */
static bool lane_poll(struct tr_worker *w, struct tr_lane_rt *l)
{
    struct tr_err err = {0};
    l->cur = (struct tr_payloads){.upto = INT64_MIN};
    int rc = l->lane->ops->poll(l->lane, w->p->def.tuning.poll_max, &l->cur, &err);
    l->tended_ns = w->now_ns;
    bool answered = rc >= 0;
    rc = lane_check(l, rc, &err);
    if (rc >= 0) {
        lane_well(w, l);
        lane_begin(w, l);
        return true;
    }
    if (rc == TR_AGAIN || rc == TR_NOT_READY) {
        if (answered || l->proving_ns) /* it is back, and nothing has happened since */
            lane_well(w, l);
        return false;
    }
    if (rc == TR_EOF) {
        l->ended = true;
        atomic_store(&l->eof, true);
        return true;
    }
    tr_pl_answered(&err, rc, l->party.who);
    if (rc == TR_RETRY || rc == TR_NOMEM) {
        l->hold_ns = w->now_ns + 5 * TR_NS_PER_MS; /* a lane that is always ready to fail must not make us spin */
        lane_failed(w, l, &err);
        return false;
    }
    tr_pl_fail(w->p, &err);
    l->ended = true;
    return false;
}

/* ---- flushing -------------------------------------------------------------------------------------------------------- */

/* False when the chain could not (it says BLOCKED or NOT_READY): again later. */
static bool chain_flush(struct tr_worker *w, enum tr_flush why)
{
    struct tr_push ret = {.linger_at_ns = INT64_MAX};
    struct tr_err err = {0};
    int rc = w->ops->flush ? w->ops->flush(w->chain, why, &ret, &err) : TR_OK;
    w->chain_linger_ns = ret.linger_at_ns;
    if (rc < 0 || ret.state == TR_PUSH_FAILED) {
        if (err.rc >= 0)
            tr_pl_answered(&err, rc < 0 ? rc : TR_FATAL, "the chain");
        tr_pl_fail(w->p, &err);
        return false;
    }
    if (ret.state == TR_PUSH_BLOCKED)
        tr_budget_on_refused(&w->budget, w->now_ns);
    return ret.state == TR_PUSH_DONE;
}

static void flush(struct tr_worker *w, enum tr_flush why)
{
    chain_flush(w, why);
    for (uint32_t i = 0; i < w->n_outs; i++)
        tr_out_flush(w->outs[i], why, w->now_ns);
}

static int64_t next_linger(const struct tr_worker *w)
{
    int64_t r = w->chain_linger_ns;
    for (uint32_t i = 0; i < w->n_outs; i++)
        r = TR_MIN(r, tr_out_next_linger(w->outs[i]));
    return r;
}

/* ---- back-pressure --------------------------------------------------------------------------------------------------- */

static void regulate(struct tr_worker *w)
{
    struct tr_runtime *p = w->p;
    bool parked = false;
    for (uint32_t i = 0; i < w->n_outs; i++)
        parked |= !tr_out_unpark(w->outs[i]);
    if (parked)
        tr_budget_on_refused(&w->budget, w->now_ns);
    int64_t before = w->budget.blocked_ns;
    uint64_t level = parked ? UINT64_MAX : tr_pool_charged(&p->pool);
    tr_budget_on_level(&w->budget, level, w->now_ns);
    tr_counter_add(p->m_blocked_ns, (uint64_t)(w->budget.blocked_ns - before));
    bool on = w->budget.engaged;
    if (on != w->pressing) {
        w->pressing = on;
        atomic_store(&w->blocked, on);
        if (on)
            atomic_fetch_add(&p->pressure, 1);
        else
            atomic_fetch_sub(&p->pressure, 1);
    }
    for (uint32_t i = 0; on && !tr_pool_below_low(&p->pool) && w->now_ns - w->budget.since_ns > p->def.tuning.min_pause_ns && i < w->n_outs; i++)
        tr_out_press(w->outs[i]);
}

/* ---- the step -------------------------------------------------------------------------------------------------------- */

static void take_inbox(struct tr_worker *w)
{
    tr_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_inbox; i++) {
        tr_list_push_back(&w->lanes, &w->inbox[i]->node);
        w->inbox[i]->tended_ns = w->now_ns;
        w->n_lanes++;
    }
    w->n_inbox = 0;
    tr_mutex_unlock(&w->lock);
}

static void lane_quiet(struct tr_worker *w, struct tr_lane_rt *l)
{
    if (!l->flushed) { /* what it put must not wait for others */
        if (!chain_flush(w, TR_FLUSH_IDLE))
            return;
        for (uint32_t i = 0; i < w->n_outs; i++)
            tr_out_force(w->outs[i]);
        l->flushed = true;
        atomic_store(&l->phase, TR_LANE_QUIET);
        tr_waker_wake(&w->p->waker);
    }
}

/* The poll whose push is pending will be read again. */
static void give_up(struct tr_lane_rt *l)
{
    if (!l->pending)
        return;
    tr_ack_fail(l->cur.ack);
    tr_ack_unref(l->cur.ack);
    l->pending = false;
}

/* True when something came in. */
static bool lane_step(struct tr_worker *w, struct tr_lane_rt *l)
{
    bool draining = atomic_load_explicit(&w->p->draining, memory_order_relaxed);
    int want = atomic_load(&l->want);
    if (want == TR_LANE_GIVE) {
        give_up(l); /* a push still pending: its barrier timed out */
        set_blocked(l, false);
        tr_list_del(&l->node);
        w->n_lanes--;
        atomic_store(&l->phase, TR_LANE_GIVEN); /* from here on it is the controller's */
        tr_waker_wake(&w->p->waker);
        return false;
    }
    if (l->pending) {
        if (!(l->blocked && w->budget.engaged) && lane_push(w, l))
            return true;
        lane_tend(w, l);
        return false;
    }
    if (l->ended || want != TR_LANE_RUN || draining) {
        if (!draining || l->ended || want != TR_LANE_RUN)
            lane_quiet(w, l);
        lane_tend(w, l);
        return false;
    }
    if (w->now_ns < l->hold_ns || too_far(l)) {
        lane_tend(w, l);
        return false;
    }
    return lane_poll(w, l);
}

static void drain(struct tr_worker *w)
{
    if (atomic_load(&w->drained) || !atomic_load(&w->p->draining))
        return;
    if (!w->drain_since_ns)
        w->drain_since_ns = w->now_ns;
    bool waiting = false;
    TR_LIST_EACH (n, &w->lanes) {
        struct tr_lane_rt *l = tr_container_of(n, struct tr_lane_rt, node);
        /* room will come as the sinks drain; what a chain waits for otherwise may need the very lanes that are no longer polled */
        if (l->pending && !l->blocked && w->now_ns - w->drain_since_ns >= DRAIN_NOT_READY_NS)
            give_up(l);
        waiting |= l->pending;
    }
    if (waiting)
        return;
    if (!w->final_done) {
        if (!chain_flush(w, TR_FLUSH_FINAL))
            return;
        for (uint32_t i = 0; i < w->n_outs; i++)
            tr_out_flush(w->outs[i], TR_FLUSH_FINAL, w->now_ns);
        w->final_done = true;
    }
    for (uint32_t i = 0; i < w->n_outs; i++)
        if (!tr_out_unpark(w->outs[i]))
            return;
    atomic_store(&w->drained, true);
    tr_waker_wake(&w->p->waker);
}

/* Next wake; now: at once. */
static int64_t worker_step(struct tr_worker *w, int64_t now_ns)
{
    w->now_ns = now_ns;
    atomic_store_explicit(&w->heartbeat_ns, now_ns, memory_order_relaxed);
    take_inbox(w);
    regulate(w);
    bool came = false, held = false;
    TR_LIST_EACH (n, &w->lanes) {
        struct tr_lane_rt *l = tr_container_of(n, struct tr_lane_rt, node);
        came |= lane_step(w, l);
    }
    TR_LIST_EACH (n, &w->lanes)
        held |= tr_container_of(n, struct tr_lane_rt, node)->pending;
    drain(w);
    if (w->final_done)
        return now_ns + TR_WORKER_WAIT_NS;
    if (!came)
        flush(w, TR_FLUSH_IDLE);
    else if (next_linger(w) <= now_ns)
        flush(w, TR_FLUSH_LINGER);
    if (came)
        return now_ns;
    int64_t wake = now_ns + (held && !w->budget.engaged ? 5 * TR_NS_PER_MS : TR_WORKER_WAIT_NS);
    wake = TR_MIN(wake, tr_budget_next_wake(&w->budget));
    int64_t linger = next_linger(w);
    return TR_MIN(wake, linger <= now_ns ? now_ns + TR_NS_PER_MS : linger);
}

/* Descriptors and deadlines of the lanes that said AGAIN. False: one is ready already. */
static bool arm(struct tr_worker *w, size_t *ret_n)
{
    size_t n = 0;
    if (w->cap_waits < w->n_lanes) {
        struct tr_wait *v = tr_realloc(w->waits, w->n_lanes * sizeof *v);
        if (!v) {
            *ret_n = 0;
            return true; /* the waker and 50 ms are still there */
        }
        w->waits = v;
        w->cap_waits = w->n_lanes;
    }
    bool draining = atomic_load_explicit(&w->p->draining, memory_order_relaxed);
    TR_LIST_EACH (node, &w->lanes) {
        struct tr_lane_rt *l = tr_container_of(node, struct tr_lane_rt, node);
        if (l->pending || l->ended || draining || atomic_load(&l->want) != TR_LANE_RUN)
            continue;
        struct tr_wait *v = &w->waits[n];
        *v = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
        if (w->now_ns < l->hold_ns) {
            v->deadline_ns = l->hold_ns;
            n++;
            continue;
        }
        if (l->lane->ops->arm(l->lane, &w->waker, v) == 1) {
            *ret_n = 0;
            return false;
        }
        n++;
    }
    *ret_n = n;
    return true;
}

static void abandon(struct tr_worker *w)
{
    TR_LIST_EACH (n, &w->lanes) {
        struct tr_lane_rt *l = tr_container_of(n, struct tr_lane_rt, node);
        give_up(l);
    }
    if (!w->final_done && w->ops->abandon)
        w->ops->abandon(w->chain);
    for (uint32_t i = 0; i < w->n_outs; i++)
        tr_out_abandon(w->outs[i]);
}

void tr_worker_main(void *arg)
{
    struct tr_worker *w = arg;
    struct tr_runtime *p = w->p;
    struct tr_err err;
    while (!atomic_load(&w->quit) && !atomic_load(&p->abort)) {
        int64_t now = tr_now_ns(), wake = worker_step(w, now);
        size_t n = 0;
        if (wake <= now || !arm(w, &n))
            continue;
        if (tr_wait_many(&w->waker, w->waits, n, TR_MIN(wake - now, (int64_t)TR_WORKER_WAIT_NS), &err) == TR_FATAL) {
            tr_pl_fail(p, &err);
            break;
        }
    }
    abandon(w);
    w->ops->free(w->chain);
    w->chain = NULL;
}
