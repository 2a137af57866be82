#include "engine.h"

#include "alloc.h"
#include "check.h"

/* Writer threads. Blocking sinks have one per in-flight slot: a job is one complete (once per batch) and one write. Pipelined sinks
 * have one per shard: it submits what the shard hands it, and reaps.
 *
 * Resync. When a pipelined writer reports that everything from a ticket on must come again, submissions may already be on their
 * way that must not be sent before it. So with the report it empties the FIFO and raises `resync`, and submits nothing until the
 * shard has seen the report, emptied the FIFO again and lowered the flag. */

static struct tr_writer *writer_get(struct tr_writer_rt *w, struct tr_err *err, int *ret_rc)
{
    struct tr_writer *wr = atomic_load(&w->w);
    *ret_rc = TR_OK;
    if (wr)
        return wr;
    struct tr_sink *sink = w->s->sink->sink;
    int rc = sink->ops->writer_new(sink, w->s->index, &wr, err);
    if (rc < 0) {
        *ret_rc = rc == TR_AGAIN || rc == TR_NOT_READY || rc == TR_NOMEM ? TR_RETRY : rc;
        return NULL;
    }
    atomic_store(&w->w, wr);
    return wr;
}

static int64_t write_deadline(const struct tr_writer_rt *w, int64_t now_ns)
{
    const struct tr_runtime *p = w->s->sink->p;
    int64_t d = tr_deadline_ns(now_ns, w->s->sink->t.write_timeout_ns);
    return atomic_load(&p->draining) ? TR_MIN(d, atomic_load(&p->drain_deadline_ns)) : d;
}

/* Before freezing: fill what is unchanged, then the tokens are made. */
static int freeze(struct tr_writer_rt *w, struct tr_writer *wr, struct tr_ebatch *b, int64_t deadline_ns, struct tr_err *err)
{
    if (!b->completed && wr->ops->complete && b->dependent) {
        int rc = wr->ops->complete(wr, &b->sealed, deadline_ns, err);
        if (rc < 0)
            return rc;
        tr_ebatch_completed(b);
    }
    b->completed = true;
    if (!b->has_tokens && (w->s->sink->sink->caps & TR_CAP_TOKEN))
        tr_ebatch_tokens(b, w->s->sink->name);
    return TR_OK;
}

static struct tr_endpoint *endpoint(const struct tr_writer_rt *w, uint32_t e)
{
    const struct tr_sink *k = w->s->sink->sink;
    return k->endpoints ? k->endpoints[w->s->index * k->n_endpoints + e] : NULL;
}

static int do_job(struct tr_writer_rt *w, struct tr_ebatch *b, struct tr_err *err)
{
    int rc;
    struct tr_writer *wr = writer_get(w, err, &rc);
    if (!wr)
        return rc;
    int64_t start = tr_now_ns(), deadline = write_deadline(w, start);
    rc = freeze(w, wr, b, deadline, err);
    if (rc >= 0)
        rc = wr->ops->write(wr, endpoint(w, w->endpoint), &b->sealed, deadline, err);
    tr_histogram_observe(w->s->sink->m_write, (uint64_t)(tr_now_ns() - start));
    return rc;
}

static void blocking_main(struct tr_writer_rt *w)
{
    struct tr_shard *s = w->s;
    tr_mutex_lock(&s->lock);
    while (!s->quit) {
        struct tr_ebatch *b = w->job;
        if (!b) {
            tr_cond_wait_until(&w->wake, &s->lock, INT64_MAX);
            continue;
        }
        uint64_t ticket = w->ticket;
        tr_mutex_unlock(&s->lock);
        struct tr_err err = {0};
        int rc = do_job(w, b, &err);
        tr_mutex_lock(&s->lock);
        w->job = NULL;
        tr_mutex_unlock(&s->lock);
        tr_shard_post(s, ticket, rc, &err, false);
        tr_mutex_lock(&s->lock);
    }
    tr_mutex_unlock(&s->lock);
}

static bool outstanding(const struct tr_writer_rt *w)
{
    return w->acked_ticket < w->last_ticket;
}

/* Everything from ticket on (0: all) must come again, or the pipeline ends. Without MONOTONIC a refused ticket is like that too: those
 * behind it must not overtake what is left of it. */
static void post_and_stop(struct tr_writer_rt *w, uint64_t ticket, int rc, const struct tr_err *err)
{
    w->held = NULL;
    w->last_ticket = ticket > w->acked_ticket ? ticket - 1 : w->acked_ticket; /* those before it are still to be reaped */
    tr_shard_post(w->s, ticket, rc, err, true);
}

static void reap(struct tr_writer_rt *w, struct tr_writer *wr, int timeout_ms)
{
    struct tr_done v[64];
    struct tr_err err = {0};
    int n = wr->ops->reap(wr, timeout_ms, v, (uint32_t)TR_ARRAY_LEN(v), &err);
    if (n == TR_AGAIN)
        return;
    if (n < 0) {
        post_and_stop(w, 0, n, &err);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (v[i].rc >= 0) {
            w->acked_ticket = TR_MAX(w->acked_ticket, v[i].ticket);
            tr_shard_post(w->s, v[i].ticket, TR_OK, NULL, false);
        } else if (v[i].rc == TR_REJECT && (w->s->sink->sink->caps & TR_CAP_MONOTONIC)) {
            tr_shard_post(w->s, v[i].ticket, v[i].rc, &err, false);
        } else {
            post_and_stop(w, v[i].ticket, v[i].rc, &err);
        }
    }
}

static bool next_submission(struct tr_writer_rt *w)
{
    struct tr_shard *s = w->s;
    bool got = false;
    tr_mutex_lock(&s->lock);
    if (s->n_subs && !s->resync && !s->abandon) { /* what is to be forgotten is forgotten first */
        w->held = s->subs[0].batch;
        w->held_ticket = s->subs[0].ticket;
        s->n_subs--;
        for (uint32_t i = 0; i < s->n_subs; i++)
            s->subs[i] = s->subs[i + 1];
        got = true;
    }
    tr_mutex_unlock(&s->lock);
    return got;
}

/* True: go on at once. */
static bool submit_one(struct tr_writer_rt *w, struct tr_writer *wr, bool *ret_full)
{
    struct tr_err err = {0};
    *ret_full = false;
    if (!w->held && !next_submission(w))
        return false;
    int rc = freeze(w, wr, w->held, write_deadline(w, tr_now_ns()), &err);
    if (rc >= 0)
        rc = wr->ops->submit(wr, &w->held->sealed, w->held_ticket, &err);
    if (rc == TR_AGAIN) {
        *ret_full = true;
        return false;
    }
    uint64_t ticket = w->held_ticket;
    w->held = NULL;
    if (rc < 0) {
        post_and_stop(w, ticket, rc, &err);
        return true;
    }
    w->last_ticket = ticket;
    return true;
}

/* Waits for work: in reap while something is in flight, else on the condition. */
static void pipelined_wait(struct tr_writer_rt *w, struct tr_writer *wr, bool full)
{
    struct tr_shard *s = w->s;
    tr_mutex_lock(&s->lock);
    bool work = (s->n_subs && !s->resync && !full) || s->abandon || s->quit;
    if (!work && !outstanding(w) && !full) {
        tr_cond_wait_until(&w->wake, &s->lock, tr_now_ns() + 50 * TR_NS_PER_MS);
        tr_mutex_unlock(&s->lock);
        return;
    }
    w->reaping = !work;
    tr_mutex_unlock(&s->lock);
    reap(w, wr, work ? 0 : full ? 1 : 20);
    tr_mutex_lock(&s->lock);
    w->reaping = false;
    tr_mutex_unlock(&s->lock);
}

static void pipelined_main(struct tr_writer_rt *w)
{
    struct tr_shard *s = w->s;
    bool drained = false;
    for (;;) {
        struct tr_err err = {0};
        int rc;
        tr_mutex_lock(&s->lock);
        bool quit = s->quit, forget = s->abandon, closing = s->closing && s->n_subs == 0;
        s->abandon = false;
        tr_mutex_unlock(&s->lock);
        if (quit)
            return;
        struct tr_writer *wr = writer_get(w, &err, &rc);
        if (!wr) {
            tr_mutex_lock(&s->lock);
            uint64_t first = s->n_subs ? s->subs[0].ticket : 0;
            if (!first)
                tr_cond_wait_until(&w->wake, &s->lock, tr_now_ns() + 50 * TR_NS_PER_MS);
            tr_mutex_unlock(&s->lock);
            if (first || rc != TR_RETRY)
                post_and_stop(w, first, rc, &err);
            continue;
        }
        if (forget) {
            wr->ops->abandon(wr);
            w->held = NULL;
            w->acked_ticket = w->last_ticket;
        }
        bool full = false;
        while (submit_one(w, wr, &full))
            ;
        if (closing && !drained && wr->ops->drain && outstanding(w)) {
            drained = true;
            wr->ops->drain(wr, write_deadline(w, tr_now_ns()), &err); /* how it went is said by reap */
        }
        pipelined_wait(w, wr, full);
    }
}

void tr_writer_main(void *arg)
{
    struct tr_writer_rt *w = arg;
    struct tr_err err = {0};
    int rc;
    writer_get(w, &err, &rc); /* a connection made before it is needed; a failure is reported with the first batch */
    if (w->s->sink->pipelined)
        pipelined_main(w);
    else
        blocking_main(w);
    struct tr_writer *wr = atomic_load(&w->w);
    tr_mutex_lock(&w->s->lock); /* interrupt is called under it */
    atomic_store(&w->w, NULL);
    tr_mutex_unlock(&w->s->lock);
    if (wr) {
        if (w->s->sink->pipelined && wr->ops->abandon)
            wr->ops->abandon(wr);
        wr->ops->free(wr);
    }
    atomic_store(&w->finished, true);
    tr_waker_wake(&w->s->sink->p->waker);
}
