#include "engine.h"

#include <stdio.h>
#include <string.h>

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"

/* The controller: source events, acks, watermarks, lanes on their way out, health, and the drain.
 *
 * A lane ends (EOF, REVOKED, LOST) in steps, each seen by looking, none waited for: the worker makes it quiet (its push done, its
 * rows sent), its polls are delivered, the worker gives it away, its position is committed synchronously, the revoke is
 * answered, the lane closed.
 *
 * The drain: the workers finish their pushes and flush FINAL; the shards' queues are closed and run empty; the threads end; a last
 * synchronous commit; the lanes are closed. What is not done at the deadline is abandoned, and says so. */

enum { SYNC_COMMIT_S = 5, COMMIT_RETRY_S = 1, EVENTS_PER_STEP = 64 };

static void log_state(struct tr_runtime *p, const char *what)
{
    tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({"pipeline", p->name}), "%s", what);
}

/* ---- committing ------------------------------------------------------------------------------------------------------ */

static int commit(struct tr_runtime *p, int64_t now_ns, int64_t sync_deadline_ns)
{
    struct tr_source *src = p->def.source;
    struct tr_err err = {0};
    size_t n = tr_ckpt_collect(&p->ckpt, p->marks, p->cap_marks);
    if (n == 0 && !sync_deadline_ns) /* a synchronous one is also for what was only recorded before */
        return TR_OK;
    int rc = src->ops->commit(src, p->marks, n, sync_deadline_ns, &err);
    if (rc < 0) {
        tr_pl_answered(&err, rc, "the commit of the source");
        tr_ckpt_on_commit_failed(&p->ckpt, now_ns, COMMIT_RETRY_S * TR_NS_PER_S);
        if (rc == TR_FATAL || rc == TR_FENCED || rc == TR_REJECT)
            tr_pl_fail(p, &err);
        else
            tr_pl_trouble(p, &p->commit_trouble, &err);
        return rc;
    }
    tr_pl_well(p, &p->commit_trouble);
    tr_ckpt_on_committed(&p->ckpt, p->marks, n, now_ns);
    tr_counter_inc(p->m_commits);
    if (p->def.on_watermark)
        p->def.on_watermark(p->def.arg, p->marks, n);
    return TR_OK;
}

static void take_acks(struct tr_runtime *p, int64_t now_ns)
{
    struct tr_ack *a = tr_ack_sink_take(&p->acks);
    while (a) {
        struct tr_ack *next = a->next;
        bool failed = atomic_load_explicit(&a->status, memory_order_relaxed) == TR_ACK_FAILED;
        if (tr_ckpt_on_resolved(&p->ckpt, a->lane, a->epoch, a->seq, a->upto, failed, now_ns) == TR_NOMEM) {
            struct tr_err err;
            tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "no memory to note an acknowledgement of lane %u", a->lane);
            tr_pl_fail(p, &err);
        }
        tr_ack_free(a);
        a = next;
    }
    for (uint32_t i = 0; i < p->n_lanes; i++) {
        struct tr_lane_rt *l = p->lanes[i];
        const struct tr_ckpt_lane *c = tr_ckpt_lane(&p->ckpt, l->id, l->epoch);
        if (!c)
            continue;
        atomic_store_explicit(&l->resolved, c->head, memory_order_release);
        if (l->id == 0 || p->n_lanes == 1)
            atomic_store_explicit(&p->watermark, c->upto, memory_order_relaxed);
    }
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static struct tr_lane_rt *find_lane(struct tr_runtime *p, uint32_t id)
{
    for (uint32_t i = 0; i < p->n_lanes; i++)
        if (p->lanes[i]->id == id)
            return p->lanes[i];
    return NULL;
}

static int reserve_lane(struct tr_runtime *p, struct tr_worker *w)
{
    if (p->n_lanes == p->cap_lanes) {
        uint32_t cap = p->cap_lanes ? p->cap_lanes * 2 : 8;
        struct tr_lane_rt **v = tr_realloc(p->lanes, cap * sizeof *v);
        if (!v)
            return TR_NOMEM;
        p->lanes = v;
        struct tr_watermark *m = tr_realloc(p->marks, cap * sizeof *m);
        if (!m)
            return TR_NOMEM;
        p->marks = m;
        p->cap_marks = p->cap_lanes = cap;
    }
    int rc = TR_OK;
    tr_mutex_lock(&w->lock);
    if (w->n_inbox == w->cap_inbox) {
        uint32_t cap = w->cap_inbox ? w->cap_inbox * 2 : 8;
        struct tr_lane_rt **v = tr_realloc(w->inbox, cap * sizeof *v);
        if (v) {
            w->inbox = v;
            w->cap_inbox = cap;
        } else {
            rc = TR_NOMEM;
        }
    }
    tr_mutex_unlock(&w->lock);
    return rc;
}

static int wire(struct tr_runtime *p, const struct tr_event *ev, int64_t now_ns, struct tr_err *err)
{
    if (!ev->lane)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "the source assigned lane %u without a lane", ev->lane_id);
    if (find_lane(p, ev->lane_id)) {
        ev->lane->ops->close(ev->lane); /* ours since the event */
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "the source assigned lane %u again before it was given back", ev->lane_id);
    }
    struct tr_worker *w = &p->workers[0];
    for (uint32_t i = 1; i < p->def.tuning.threads; i++)
        if (atomic_load(&p->workers[i].load) < atomic_load(&w->load))
            w = &p->workers[i];
    struct tr_lane_rt *l = tr_calloc(1, sizeof *l);
    if (!l || reserve_lane(p, w) < 0 || tr_ckpt_begin_epoch(&p->ckpt, ev->lane_id, ev->epoch, now_ns) < 0) {
        tr_free(l);
        ev->lane->ops->close(ev->lane);
        return tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "no memory for lane %u", ev->lane_id);
    }
    l->lane = ev->lane;
    l->id = ev->lane_id;
    l->epoch = ev->epoch;
    l->upto = INT64_MIN;
    l->worker = w;
    snprintf(l->party.who, sizeof l->party.who, "lane %u", l->id);
    l->trouble.with = &l->party;
    tr_list_init(&l->node);
    atomic_fetch_add(&w->load, 1);
    p->lanes[p->n_lanes++] = l;
    tr_mutex_lock(&w->lock);
    w->inbox[w->n_inbox++] = l;
    tr_mutex_unlock(&w->lock);
    tr_waker_wake(&w->waker);
    atomic_store(&p->assigned, true);
    return TR_OK;
}

static void begin_end(struct tr_lane_rt *l, int64_t barrier_ns)
{
    l->closing = true;
    l->barrier_ns = barrier_ns;
    int run = TR_LANE_RUN;
    atomic_compare_exchange_strong(&l->want, &run, TR_LANE_STOP);
    tr_waker_wake(&l->worker->waker);
}

static int on_event(struct tr_runtime *p, const struct tr_event *ev, int64_t now_ns, struct tr_err *err)
{
    struct tr_source *src = p->def.source;
    struct tr_lane_rt *l;
    int rc;
    switch (ev->kind) {
    case TR_EVENT_ASSIGNED:
        rc = wire(p, ev, now_ns, err);
        return rc < 0 ? rc : src->ops->answer(src, ev, err);
    case TR_EVENT_REVOKED:
    case TR_EVENT_LOST:
        l = find_lane(p, ev->lane_id);
        if (!l) /* ended by itself in the meantime */
            return ev->kind == TR_EVENT_REVOKED ? src->ops->answer(src, ev, err) : TR_OK;
        if (ev->kind == TR_EVENT_LOST)
            tr_oslog_fields(TR_OSLOG_WARN, "engine", TR_OSLOG_F({"pipeline", p->name}), "lane %u was lost: %s", l->id, ev->text ? ev->text : "");
        l->revoked = true;
        l->answer = ev->kind == TR_EVENT_REVOKED;
        l->ev = *ev;
        l->ev.text = NULL;
        begin_end(l, tr_deadline_ns(now_ns, p->def.tuning.drain_timeout_ns));
        return TR_OK;
    case TR_EVENT_STATS:
        return TR_OK;
    }
    return TR_OK;
}

static void take_events(struct tr_runtime *p, int64_t now_ns)
{
    struct tr_source *src = p->def.source;
    for (int i = 0; i < EVENTS_PER_STEP; i++) {
        struct tr_event ev = {0};
        struct tr_err err = {0};
        int rc = src->ops->poll_event(src, &ev, &err);
        if (rc == TR_AGAIN || rc >= 0)
            tr_pl_well(p, &p->source_trouble);
        p->source_ended = rc == TR_EOF;
        if (rc == TR_AGAIN || rc == TR_NOT_READY || rc == TR_EOF)
            return;
        if (rc >= 0)
            rc = on_event(p, &ev, now_ns, &err);
        if (rc >= 0)
            continue;
        tr_pl_answered(&err, rc, "the source");
        if (rc == TR_RETRY || rc == TR_NOMEM)
            tr_pl_trouble(p, &p->source_trouble, &err);
        else
            tr_pl_fail(p, &err);
        return;
    }
}

/* ---- lanes on their way out ------------------------------------------------------------------------------------------ */

static void lane_close(struct tr_runtime *p, struct tr_lane_rt *l)
{
    l->lane->ops->close(l->lane);
    tr_ckpt_end_epoch(&p->ckpt, l->id, l->epoch);
    tr_pl_forget(p, &l->trouble);
    atomic_fetch_sub(&l->worker->load, 1);
    tr_free(l);
}

/* True when the lane is gone. */
static bool lane_given(struct tr_runtime *p, struct tr_lane_rt *l, int64_t now_ns)
{
    struct tr_err err = {0};
    if (now_ns < l->sync_next_ns)
        return false;
    int rc = commit(p, now_ns, TR_MIN(l->barrier_ns, tr_now_ns() + SYNC_COMMIT_S * TR_NS_PER_S));
    if (rc < 0 && now_ns < l->barrier_ns) {
        l->sync_next_ns = now_ns + COMMIT_RETRY_S * TR_NS_PER_S;
        return false;
    }
    if (l->answer && (rc = p->def.source->ops->answer(p->def.source, &l->ev, &err)) < 0) {
        tr_pl_answered(&err, rc, "the source");
        if (rc == TR_RETRY || rc == TR_NOMEM)
            tr_pl_trouble(p, &p->source_trouble, &err);
        else
            tr_pl_fail(p, &err);
    }
    lane_close(p, l);
    return true;
}

static void lanes_progress(struct tr_runtime *p, int64_t now_ns)
{
    for (uint32_t i = 0; i < p->n_lanes;) {
        struct tr_lane_rt *l = p->lanes[i];
        if (!l->closing && atomic_load(&l->eof))
            begin_end(l, INT64_MAX);
        if (!l->closing) {
            i++;
            continue;
        }
        int phase = atomic_load(&l->phase);
        int settled = phase == TR_LANE_QUIET ? tr_ckpt_settled(&p->ckpt, l->id, l->epoch, atomic_load(&l->issued)) : 0;
        if (phase != TR_LANE_GIVEN && (settled == 1 || (settled < 0 && l->revoked) || now_ns >= l->barrier_ns)) {
            if (settled != 1 && atomic_load(&l->want) != TR_LANE_GIVE)
                tr_oslog_fields(TR_OSLOG_WARN, "engine", TR_OSLOG_F({"pipeline", p->name}), "lane %u is given up with polls that are not durable; they will come again", l->id);
            atomic_store(&l->want, TR_LANE_GIVE);
            tr_waker_wake(&l->worker->waker);
        }
        if (phase == TR_LANE_GIVEN && lane_given(p, l, now_ns))
            p->lanes[i] = p->lanes[--p->n_lanes];
        else
            i++;
    }
}

/* ---- health ---------------------------------------------------------------------------------------------------------- */

static void health(struct tr_runtime *p, int64_t now_ns)
{
    int64_t since = tr_ckpt_stalled_since(&p->ckpt), stalled = since == INT64_MAX ? 0 : now_ns - since, age = 0, beat = INT64_MAX;
    bool blocked = false;
    atomic_store_explicit(&p->stalled_ns, stalled, memory_order_relaxed);
    for (uint32_t i = 0; i < p->n_lanes; i++) {
        const struct tr_lane_rt *l = p->lanes[i];
        const struct tr_ckpt_lane *c = tr_ckpt_lane(&p->ckpt, l->id, l->epoch);
        if (c && c->head < atomic_load_explicit(&p->lanes[i]->issued, memory_order_relaxed))
            age = TR_MAX(age, now_ns - c->moved_ns);
    }
    for (uint32_t i = 0; i < p->def.tuning.threads; i++) {
        beat = TR_MIN(beat, atomic_load_explicit(&p->workers[i].heartbeat_ns, memory_order_relaxed));
        blocked |= atomic_load_explicit(&p->workers[i].blocked, memory_order_relaxed);
    }
    tr_gauge_set(p->m_inflight, (int64_t)tr_pool_charged(&p->pool));
    tr_gauge_set(p->m_blocked, blocked);
    tr_gauge_set(p->m_heartbeat, TR_MAX(now_ns - beat, 0));
    tr_gauge_set(p->m_watermark_age, age);
    tr_gauge_set(p->m_stalled, stalled);
    if (stalled > p->def.tuning.stalled_fail_after_ns) {
        struct tr_err err;
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "a failed batch has held the watermark back for %llds (stalled_fail_after): restart and replay",
                   (long long)(stalled / TR_NS_PER_S));
        tr_pl_fail(p, &err);
    }
}

/* ---- ending ---------------------------------------------------------------------------------------------------------- */

static void interrupt_writers(struct tr_shard *s)
{
    tr_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_writers; i++) {
        struct tr_writer_rt *w = &s->writers[i];
        struct tr_writer *wr = atomic_load(&w->w);
        tr_cond_signal(&w->wake);
        if (wr && wr->ops->interrupt && !atomic_load(&w->finished))
            wr->ops->interrupt(wr);
    }
    tr_mutex_unlock(&s->lock);
}

static void end_writers(struct tr_runtime *p, struct tr_shard *s)
{
    struct tr_err err;
    tr_mutex_lock(&s->lock);
    s->quit = true;
    for (uint32_t i = 0; i < s->n_writers; i++)
        tr_cond_signal(&s->writers[i].wake);
    tr_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_writers; i++) {
        struct tr_writer_rt *w = &s->writers[i];
        /* An interrupt can come just before the call that it should end: so again and again. */
        while (w->thread && !atomic_load(&w->finished)) {
            if (atomic_load(&p->abort))
                interrupt_writers(s);
            tr_wait_many(&p->waker, NULL, 0, 20 * TR_NS_PER_MS, &err);
        }
        w->thread = tr_thread_join(w->thread);
    }
}

void tr_pl_end_threads(struct tr_runtime *p)
{
    for (uint32_t i = 0; i < p->def.tuning.threads; i++) {
        atomic_store(&p->workers[i].quit, true);
        tr_waker_wake(&p->workers[i].waker);
    }
    for (uint32_t i = 0; i < p->def.tuning.threads; i++)
        p->workers[i].thread = tr_thread_join(p->workers[i].thread);
    atomic_store(&p->ended, true);
    for (uint32_t i = 0; i < p->n_sinks; i++) {
        struct tr_sink_rt *k = &p->sinks[i];
        tr_waker_wake(&k->waker);
        for (uint32_t j = 0; j < k->n_shards; j++) {
            end_writers(p, &k->shards[j]);
            tr_waker_wake(&k->shards[j].waker);
            k->shards[j].thread = tr_thread_join(k->shards[j].thread);
        }
    }
}

static void finish(struct tr_runtime *p, enum tr_runtime_state state)
{
    for (uint32_t i = 0; i < p->n_lanes; i++)
        lane_close(p, p->lanes[i]);
    p->n_lanes = 0;
    atomic_store(&p->state, (int)state);
    log_state(p, state == TR_RT_FAILED ? "pipeline failed" : "pipeline stopped");
    tr_mutex_lock(&p->lock);
    p->over = true;
    tr_cond_broadcast(&p->ended_cond);
    tr_mutex_unlock(&p->lock);
}

static bool failed(struct tr_runtime *p)
{
    tr_mutex_lock(&p->lock);
    bool f = p->failed;
    tr_mutex_unlock(&p->lock);
    return f;
}

static void end_failed(struct tr_runtime *p)
{
    atomic_store(&p->state, TR_RT_FAILED);
    atomic_store(&p->abort, true);
    tr_pl_end_threads(p);
    take_acks(p, tr_now_ns());
    finish(p, TR_RT_FAILED);
}

static void end_drained(struct tr_runtime *p)
{
    tr_pl_end_threads(p);
    int64_t now = tr_now_ns();
    take_acks(p, now);
    int64_t deadline = TR_MAX(atomic_load(&p->drain_deadline_ns), now + 100 * TR_NS_PER_MS);
    while (commit(p, tr_now_ns(), deadline) == TR_RETRY && tr_now_ns() < deadline)
        tr_sleep_ns(50 * TR_NS_PER_MS);
    finish(p, failed(p) ? TR_RT_FAILED : TR_RT_STOPPED);
}

static void abandon(struct tr_runtime *p)
{
    struct tr_err err;
    tr_err_set(&err, TR_RETRY, TR_DOM_ENGINE, "drain_timeout passed with %u batches and %llu bytes not durable: abandoned, they will be read again",
               atomic_load(&p->writes), (unsigned long long)tr_pool_charged(&p->pool));
    tr_oslog_err(TR_OSLOG_ERROR, "engine", TR_OSLOG_F({"pipeline", p->name}), &err);
    tr_mutex_lock(&p->lock);
    p->failure = err;
    p->failure_us = tr_wall_us();
    tr_mutex_unlock(&p->lock);
    atomic_store(&p->abort, true);
    end_drained(p);
}

static void begin_drain(struct tr_runtime *p, int64_t now_ns)
{
    log_state(p, "pipeline is draining");
    atomic_store(&p->drain_deadline_ns, tr_deadline_ns(now_ns, p->def.tuning.drain_timeout_ns));
    atomic_store(&p->state, TR_RT_DRAINING);
    atomic_store(&p->draining, true);
    tr_pl_wake_workers(p);
}

static bool all_workers_drained(struct tr_runtime *p)
{
    for (uint32_t i = 0; i < p->def.tuning.threads; i++)
        if (!atomic_load(&p->workers[i].drained))
            return false;
    return true;
}

static void close_queues(struct tr_runtime *p)
{
    p->queues_closed = true;
    for (uint32_t i = 0; i < p->n_sinks; i++)
        for (uint32_t j = 0; j < p->sinks[i].n_shards; j++) {
            struct tr_shard *s = &p->sinks[i].shards[j];
            tr_queue_close(&s->queue);
            tr_mutex_lock(&s->lock);
            s->closing = true;
            tr_cond_signal(&s->writers[0].wake);
            tr_mutex_unlock(&s->lock);
        }
}

static bool all_shards_drained(struct tr_runtime *p)
{
    for (uint32_t i = 0; i < p->n_sinks; i++)
        for (uint32_t j = 0; j < p->sinks[i].n_shards; j++)
            if (!atomic_load(&p->sinks[i].shards[j].drained))
                return false;
    return true;
}

/* True when the pipeline has ended. */
static bool drain_progress(struct tr_runtime *p, int64_t now_ns)
{
    int64_t reserve = TR_MIN(2 * TR_NS_PER_S, p->def.tuning.drain_timeout_ns / 10); /* for the last commit */
    if (now_ns >= atomic_load(&p->drain_deadline_ns) - reserve) {
        abandon(p);
        return true;
    }
    if (!p->queues_closed && all_workers_drained(p))
        close_queues(p);
    if (!p->queues_closed || !all_shards_drained(p))
        return false;
    end_drained(p);
    return true;
}

/* Next wake, or INT64_MIN: the pipeline has ended. */
static int64_t controller_step(struct tr_runtime *p, int64_t now_ns)
{
    bool draining = atomic_load(&p->draining);
    if (!draining && (atomic_load(&p->stop) || (p->source_ended && !p->n_lanes))) {
        begin_drain(p, now_ns);
        draining = true;
    }
    if (!draining)
        take_events(p, now_ns);
    take_acks(p, now_ns);
    lanes_progress(p, now_ns);
    if (tr_ckpt_due(&p->ckpt, now_ns))
        commit(p, now_ns, 0);
    health(p, now_ns);
    if (failed(p)) {
        end_failed(p);
        return INT64_MIN;
    }
    if (draining && drain_progress(p, now_ns))
        return INT64_MIN;
    return TR_MIN(now_ns + (int64_t)TR_CONTROLLER_WAIT_NS, tr_ckpt_next_wake(&p->ckpt));
}

void tr_controller_main(void *arg)
{
    struct tr_runtime *p = arg;
    struct tr_source *src = p->def.source;
    log_state(p, "pipeline started");
    for (;;) {
        struct tr_err err = {0};
        struct tr_wait w = {.fd = -1, .deadline_ns = INT64_MAX};
        int64_t now = tr_now_ns(), wake = controller_step(p, now);
        if (wake == INT64_MIN)
            return;
        if (!atomic_load(&p->draining) && src->ops->arm && src->ops->arm(src, &p->waker, &w) == 1)
            wake = now;
        if (wake <= now)
            wake = now + TR_NS_PER_MS / 10;
        if (tr_wait_many(&p->waker, &w, 1, wake - now, &err) == TR_FATAL)
            tr_pl_fail(p, &err);
    }
}
