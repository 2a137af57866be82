#include "engine.h"

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "random.h"

/* The shard worker: pops chunks, feeds the batcher and the dispatcher, carries their actions out, and is told by its writers and by
 * the target thread how these went. */

enum {
    SEALED_AHEAD = 1, /* batches sealed while all slots are busy: the next write starts without a pause */
    STALES_MAX = 3,
};

static uint32_t inflight_of(const struct tr_sink_rt *k)
{
    return k->t.inflight;
}

int tr_shard_init(struct tr_shard *s, struct tr_sink_rt *k, uint32_t index, struct tr_err *err)
{
    s->sink = k;
    s->index = index;
    s->trouble.with = &k->party;
    s->waker.fd = -1;
    tr_mutex_init(&s->lock);
    tr_list_init(&s->rebound);
    tr_prng_init(&s->prng, tr_random_u64());
    s->n_writers = k->pipelined ? 1 : inflight_of(k);
    s->writers = tr_calloc(s->n_writers, sizeof *s->writers);
    s->subs = tr_calloc(inflight_of(k), sizeof *s->subs);
    s->cap_results = 4 * inflight_of(k); /* twice what can be under way, and a resync for each: a result needs no memory */
    s->results = tr_calloc(s->cap_results, sizeof *s->results);
    s->taken = tr_calloc(s->cap_results, sizeof *s->taken);
    struct tr_batcher_cfg bc = {.multi = k->multi,
                                .boundary = k->boundary,
                                .rows_max = k->t.batch_rows_max,
                                .bytes_max = k->t.batch_bytes_max,
                                .tx_bytes_max = k->p->pool.limit / 2,
                                .linger_ns = k->t.linger_ns,
                                .pace_ns = k->t.pace_ns,
                                .bins_max = TR_BINS_MAX,
                                .groups_max = k->p->def.tuning.threads};
    struct tr_disp_cfg dc = {.inflight = inflight_of(k),
                             .queue = SEALED_AHEAD,
                             .endpoints = k->pipelined ? 1 : k->sink->shard_endpoints ? k->sink->shard_endpoints[index] : k->sink->n_endpoints,
                             .pipelined = k->pipelined,
                             .retry = {k->t.backoff_min_ns, k->t.backoff_max_ns},
                             .breaker_failures = k->t.breaker_failures,
                             .breaker_open_ns = k->t.breaker_open_ns};
    if (!s->writers || !s->subs || !s->results || !s->taken || tr_batcher_init(&s->batcher, &bc) < 0 || tr_dispatcher_init(&s->disp, &dc, &s->prng) < 0 ||
        tr_queue_init(&s->queue, k->t.queue_chunks, err) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "sink %s: no memory for a shard", k->name);
    for (uint32_t i = 0; i < s->n_writers; i++) {
        s->writers[i].s = s;
        s->writers[i].index = i;
        tr_cond_init(&s->writers[i].wake);
    }
    int rc = tr_waker_init(&s->waker, err);
    if (rc < 0)
        return rc;
    tr_queue_set_wakers(&s->queue, &s->waker, NULL);
    atomic_store(&s->quiet, true);
    return TR_OK;
}

static struct tr_msg *msg_of(struct tr_list *n)
{
    return tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct tr_msg, it);
}

static void fail_items(struct tr_list *l)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(l)))
        tr_msg_fail(msg_of(n));
}

/* All threads are gone: what is left fails. */
void tr_shard_done(struct tr_shard *s)
{
    struct tr_list left;
    tr_list_init(&left);
    void *m;
    if (s->queue.v) {
        tr_queue_close(&s->queue);
        while (tr_queue_pop(&s->queue, 0, &m) == TR_OK)
            tr_msg_fail(m);
        tr_queue_done(&s->queue);
    }
    if (s->batcher.bins) {
        tr_batcher_take_all(&s->batcher, &left);
        fail_items(&left);
        tr_batcher_done(&s->batcher);
    }
    if (s->disp.slots) {
        tr_dispatcher_on_forgotten(&s->disp, 0, 0); /* no writer holds any of them now */
        struct tr_ebatch *b;
        while ((b = tr_dispatcher_take(&s->disp))) {
            tr_ebatch_fail(b);
            atomic_fetch_sub(&s->sink->p->writes, 1);
        }
        tr_dispatcher_done(&s->disp);
    }
    for (uint32_t i = 0; i < s->n_results; i++)
        tr_free(s->results[i].err);
    tr_free(s->results);
    tr_free(s->taken);
    tr_free(s->subs);
    tr_free(s->writers);
    tr_waker_done(&s->waker);
    tr_mutex_done(&s->lock);
}

void tr_shard_post(struct tr_shard *s, uint64_t ticket, int rc, const struct tr_err *err, bool resync)
{
    struct tr_err *copy = NULL;
    if (rc < 0) {
        copy = tr_malloc(sizeof *copy); /* without memory the message is lost, not the result */
        if (copy) {
            *copy = *err;
            copy->rc = rc;
        }
    }
    tr_mutex_lock(&s->lock);
    TR_ASSERT(s->n_results < s->cap_results); /* a result that is lost would be a write that never ends */
    s->results[s->n_results++] = (struct tr_result){.ticket = ticket, .rc = rc, .err = copy, .resync = resync};
    if (resync) {
        s->n_subs = 0;
        s->resync = true;
    }
    tr_mutex_unlock(&s->lock);
    tr_waker_wake(&s->waker);
}

/* ---- results --------------------------------------------------------------------------------------------------------- */

static struct tr_ebatch *busy_batch(const struct tr_dispatcher *d, uint64_t ticket)
{
    for (uint32_t i = 0; i < d->n; i++) {
        const struct tr_disp_slot *s = &d->slots[(d->head + i) % d->cap];
        if (s->state == TR_DISP_BUSY && s->ticket == ticket)
            return s->batch;
    }
    return NULL;
}

static uint64_t lowest_busy(const struct tr_dispatcher *d)
{
    uint64_t r = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct tr_disp_slot *s = &d->slots[(d->head + i) % d->cap];
        if (s->state == TR_DISP_BUSY && (r == 0 || s->ticket < r))
            r = s->ticket;
    }
    return r;
}

static void fail(const struct tr_shard *s, const struct tr_err *err)
{
    struct tr_err told = *err, said;
    tr_err_set(&said, err->rc, err->domain, "sink %s: %s", s->sink->name, err->msg);
    memcpy(told.msg, said.msg, sizeof told.msg);
    tr_pl_fail(s->sink->p, &told);
}

static void on_result(struct tr_shard *s, const struct tr_result *r, int64_t now_ns)
{
    struct tr_runtime *p = s->sink->p;
    struct tr_err err = {.rc = r->rc};
    if (r->err)
        err = *r->err;
    if (r->rc < 0)
        tr_pl_answered(&err, r->rc, s->sink->name);
    uint64_t ticket = r->ticket ? r->ticket : lowest_busy(&s->disp);
    struct tr_ebatch *b = busy_batch(&s->disp, ticket);
    if (r->rc < 0 && b)
        b->err = err;
    if (r->rc >= 0)
        tr_pl_well(p, &s->trouble);
    else if (r->rc != TR_REJECT) /* a refused part is its table's trouble, and says nothing of the sink */
        tr_pl_trouble(p, &s->trouble, &err);
    tr_dispatcher_on_result(&s->disp, ticket, r->rc, err.blame, err.retry_after_ms, now_ns);
    if (r->resync) /* even if the ticket is history: what was handed over behind it was dropped */
        tr_dispatcher_on_forgotten(&s->disp, r->ticket, INT64_MIN);
    if (!b && r->rc < 0 && r->rc != TR_RETRY && r->rc != TR_REJECT && r->rc != TR_STALE)
        fail(s, &err);
}

static bool take_results(struct tr_shard *s, int64_t now_ns)
{
    tr_mutex_lock(&s->lock);
    struct tr_result *v = s->results;
    uint32_t n = s->n_results;
    s->results = s->taken;
    s->taken = v;
    s->n_results = 0;
    struct tr_list rebound;
    tr_list_init(&rebound);
    tr_list_splice_back(&rebound, &s->rebound);
    if (s->resync) {
        s->resync = false;
        s->n_subs = 0;
    }
    tr_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < n; i++) {
        on_result(s, &v[i], now_ns);
        tr_free(v[i].err);
    }
    bool any = n > 0;
    struct tr_list *node;
    while ((node = tr_list_pop_front(&rebound))) {
        struct tr_ebatch *b = tr_container_of(node, struct tr_ebatch, node);
        any = true;
        if (b->bind_rc == TR_OK) {
            tr_dispatcher_on_rebound(&s->disp, b, INT64_MIN);
        } else if (b->bind_rc == TR_STALE) {
            b->stales--; /* nobody has looked at its target yet */
            struct tr_retry retry = {s->sink->t.backoff_min_ns, s->sink->t.backoff_max_ns};
            tr_pl_trouble(s->sink->p, &s->trouble, &b->err);
            tr_dispatcher_on_rebound(&s->disp, b, tr_deadline_ns(now_ns, tr_retry_delay_ns(&retry, 2, b->err.retry_after_ms, &s->prng)));
        } else {
            b->err.code = b->bind_part;
            tr_dispatcher_on_rebind_failed(&s->disp, b, b->bind_rc);
        }
    }
    return any;
}

/* ---- actions --------------------------------------------------------------------------------------------------------- */

static void start_write(struct tr_shard *s, const struct tr_disp_action *a)
{
    struct tr_writer *wake = NULL;
    tr_mutex_lock(&s->lock);
    if (s->sink->pipelined) {
        TR_ASSERT(s->n_subs < inflight_of(s->sink));
        s->subs[s->n_subs++] = (struct tr_submission){.batch = a->batch, .ticket = a->ticket};
        tr_cond_signal(&s->writers[0].wake);
        if (s->writers[0].reaping)
            wake = atomic_load(&s->writers[0].w);
        if (wake && wake->ops->interrupt)
            wake->ops->interrupt(wake);
    } else {
        struct tr_writer_rt *w = NULL;
        for (uint32_t i = 0; i < s->n_writers && !w; i++)
            if (!s->writers[i].job)
                w = &s->writers[i];
        TR_ASSERT(w != NULL);
        w->job = a->batch;
        w->ticket = a->ticket;
        w->endpoint = a->endpoint;
        tr_cond_signal(&w->wake);
    }
    tr_mutex_unlock(&s->lock);
}

static void on_done(struct tr_shard *s, struct tr_ebatch *b)
{
    struct tr_runtime *p = s->sink->p;
    uint64_t rows = 0, bytes = 0;
    if (!tr_list_empty(&b->items)) {
        rows = b->sealed.rows;
        bytes = b->sealed.bytes;
        atomic_fetch_add_explicit(&p->batches, 1, memory_order_relaxed);
        tr_counter_inc(s->sink->m_batches);
    }
    atomic_fetch_add_explicit(&p->rows_out, rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->bytes_out, bytes, memory_order_relaxed);
    tr_counter_add(s->sink->m_rows, rows);
    tr_counter_add(s->sink->m_bytes, bytes);
    tr_ebatch_deliver(b);
    atomic_fetch_sub(&p->writes, 1);
}

/* Pipelined and not MONOTONIC: those submitted behind the refused one must not overtake its rest. The writer forgets them; they
 * come again in order. */
static void forget_later(struct tr_shard *s)
{
    tr_mutex_lock(&s->lock);
    s->n_subs = 0;
    s->abandon = true;
    tr_cond_signal(&s->writers[0].wake);
    tr_mutex_unlock(&s->lock);
    tr_dispatcher_on_forgotten(&s->disp, 0, INT64_MIN);
}

static int refuse(struct tr_sink_rt *k, const struct tr_target *t, const struct tr_err *err)
{
    tr_mutex_lock(&k->lock);
    int rc = tr_refusals_add(&k->refusals, t->table_id, (uint32_t)t->variant, err);
    atomic_store(&k->any_refusal, k->refusals.n > 0);
    tr_mutex_unlock(&k->lock);
    return rc;
}

/* Does it hold a part that is refused with one before it? ret->code: which. */
static bool refused_before(struct tr_sink_rt *k, const struct tr_ebatch *b, struct tr_err *ret)
{
    if (!atomic_load(&k->any_refusal))
        return false;
    const struct tr_err *why = NULL;
    tr_mutex_lock(&k->lock);
    atomic_store(&k->any_refusal, tr_refusals_expire(&k->refusals));
    TR_LIST_EACH (n, &b->items) {
        const struct tr_msg *m = msg_of(n);
        why = tr_refusals_why(&k->refusals, m->target->table_id, (uint32_t)m->target->variant, m->it.binding);
        if (why) {
            *ret = *why;
            ret->code = m->part;
            break;
        }
    }
    tr_mutex_unlock(&k->lock);
    return why != NULL;
}

static void on_rejected(struct tr_shard *s, struct tr_ebatch *b)
{
    struct tr_runtime *p = s->sink->p;
    struct tr_err err = b->err;
    uint32_t part = b->sealed.n_parts == 1 ? 0 : (uint32_t)err.code;
    err.rc = TR_REJECT;
    atomic_fetch_add(&p->rejects, 1);
    tr_counter_inc(s->sink->m_rejects);
    if (s->sink->pipelined && !(s->sink->sink->caps & TR_CAP_MONOTONIC))
        forget_later(s);
    enum tr_reject_answer answer = TR_REJECT_FAIL;
    if (b->sealed.n_parts > 1 && (err.code < 0 || err.code >= (int64_t)b->sealed.n_parts))
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "a batch was refused without saying which of its %u parts: %s", b->sealed.n_parts, b->err.msg);
    else if (refuse(s->sink, b->sealed.parts[part].target, &err) < 0)
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "no memory to note a refused table");
    else if (p->def.on_reject)
        answer = p->def.on_reject(p->def.arg, s->sink->index, b->sealed.parts[part].target, b->part_first[part], &err);
    if (answer == TR_REJECT_DROP && tr_ebatch_drop_part(b, part) < 0) {
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "no memory to write a batch without its refused part");
        answer = TR_REJECT_FAIL;
    }
    if (answer == TR_REJECT_FAIL)
        fail(s, &err); /* the batch stays where it is and fails with the teardown */
    else if (tr_list_empty(&b->items))
        tr_dispatcher_on_dropped(&s->disp, b);
    else
        tr_dispatcher_on_rewritten(&s->disp, b);
    b->stales = 0;
}

static bool act(struct tr_shard *s, int64_t now_ns)
{
    struct tr_disp_action a = tr_dispatcher_next(&s->disp, now_ns);
    struct tr_ebatch *b = a.batch;
    switch (a.kind) {
    case TR_DISP_ACT_NONE:
        return false;
    case TR_DISP_ACT_WRITE:
        if (refused_before(s->sink, b, &b->err))
            tr_dispatcher_on_result(&s->disp, a.ticket, TR_REJECT, TR_BLAME_BATCH, 0, now_ns);
        else
            start_write(s, &a);
        return true;
    case TR_DISP_ACT_DONE:
        on_done(s, b);
        return true;
    case TR_DISP_ACT_REJECTED:
        on_rejected(s, b);
        return true;
    case TR_DISP_ACT_REBIND:
        if (b->stales++ < STALES_MAX)
            tr_sink_rebind(s->sink, b);
        else /* its target is as it should be: something else is missing, in a trigger perhaps */
            tr_dispatcher_on_rebind_failed(&s->disp, b, TR_REJECT);
        return true;
    case TR_DISP_ACT_FAIL:
        fail(s, &b->err);
        return true;
    }
    return false;
}

/* ---- the step -------------------------------------------------------------------------------------------------------- */

static bool take_messages(struct tr_shard *s)
{
    bool any = false;
    while (tr_batcher_wants_more(&s->batcher)) {
        void *p;
        int rc = tr_queue_pop(&s->queue, 0, &p);
        if (rc == TR_EOF && !s->eof) {
            struct tr_list tail;
            s->eof = true;
            tr_list_init(&tail);
            tr_batcher_on_close(&s->batcher);
            tr_batcher_take_staged(&s->batcher, &tail); /* behind the last transaction end: replay */
            fail_items(&tail);
            any = true;
        }
        if (rc < 0)
            break;
        any = true;
        struct tr_msg *m = p;
        uint8_t flags = m->flags;
        uint32_t group = m->it.group;
        if (m->seg)
            tr_batcher_on_item(&s->batcher, &m->it);
        else
            tr_msg_deliver(m);
        if (flags & TR_MSG_BOUNDARY)
            tr_batcher_on_boundary(&s->batcher, group);
        if (flags & TR_MSG_IDLE)
            tr_batcher_on_idle(&s->batcher);
        if (flags & TR_MSG_FORCE)
            tr_batcher_on_force(&s->batcher);
    }
    return any;
}

/* One write at a time of all tables is what groups commits; where more go in parallel anyway, a free slot is enough. */
static bool is_quiet(const struct tr_shard *s)
{
    if (s->sink->multi && !s->sink->pipelined)
        return tr_dispatcher_idle(&s->disp);
    return s->disp.n < inflight_of(s->sink);
}

static bool seal(struct tr_shard *s, int64_t now_ns)
{
    struct tr_list items;
    bool tx_end;
    tr_list_init(&items);
    if (s->broken || !tr_dispatcher_room(&s->disp) || !tr_batcher_next(&s->batcher, now_ns, is_quiet(s), &items, &tx_end))
        return false;
    struct tr_ebatch *b;
    if (tr_ebatch_new(s, &items, tx_end, &b) < 0) {
        struct tr_err err;
        tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory to seal a batch", s->sink->name);
        fail_items(&items);
        s->broken = true; /* what comes behind them must not be written: a row's later version would hide what is missing */
        tr_pl_fail(s->sink->p, &err);
        return false;
    }
    atomic_fetch_add(&s->sink->p->writes, 1);
    tr_dispatcher_on_sealed(&s->disp, b, b->dependent);
    return true;
}

/* The budget is used up by a transaction that is open here, and nobody is writing anything: only a split gets us on. */
static bool press(struct tr_shard *s)
{
    struct tr_runtime *p = s->sink->p;
    if (!s->sink->boundary || atomic_load(&p->pressure) == 0 || tr_pool_below_low(&p->pool) || atomic_load(&p->writes) != 0 || !tr_batcher_staged(&s->batcher) ||
        !tr_batcher_empty(&s->batcher) || tr_queue_count(&s->queue) != 0)
        return false;
    tr_batcher_split(&s->batcher);
    return true;
}

static void publish(struct tr_shard *s, bool popped)
{
    struct tr_runtime *p = s->sink->p;
    bool quiet = is_quiet(s);
    atomic_store(&s->quiet, quiet);
    for (uint32_t i = 0; i < p->def.tuning.threads && (quiet || popped); i++)
        tr_out_wake(p->workers[i].outs[s->sink->index], popped, quiet);
    if (s->disp.retries != s->retries_seen) {
        tr_counter_add(s->sink->m_retries, s->disp.retries - s->retries_seen);
        atomic_fetch_add(&p->retries, s->disp.retries - s->retries_seen);
        s->retries_seen = s->disp.retries;
    }
    if (s->batcher.splits != s->splits_seen) {
        s->splits_seen = s->batcher.splits;
        if (TR_OSLOG_ONCE_PER(10))
            tr_oslog_fields(TR_OSLOG_WARN, "engine", TR_OSLOG_F({"pipeline", p->name}, {"sink", s->sink->name}),
                            "a transaction larger than half of max_inflight is written in parts");
    }
    tr_gauge_set(s->sink->m_breakers, tr_dispatcher_open_breakers(&s->disp));
}

static int64_t shard_step(struct tr_shard *s, int64_t now_ns)
{
    bool popped = false, more = true;
    while (more) {
        more = take_results(s, now_ns);
        bool got = take_messages(s);
        popped |= got;
        more |= got;
        while (seal(s, now_ns))
            more = true;
        while (act(s, now_ns))
            more = true;
        more |= press(s);
    }
    publish(s, popped);
    if (s->eof && tr_batcher_empty(&s->batcher) && tr_dispatcher_idle(&s->disp) && !atomic_exchange(&s->drained, true))
        tr_waker_wake(&s->sink->p->waker);
    int64_t batch = tr_dispatcher_room(&s->disp) ? tr_batcher_next_wake(&s->batcher, is_quiet(s)) : INT64_MAX;
    return TR_MIN(batch, tr_dispatcher_next_wake(&s->disp));
}

void tr_shard_main(void *arg)
{
    struct tr_shard *s = arg;
    struct tr_runtime *p = s->sink->p;
    struct tr_err err;
    while (!atomic_load(&p->ended) && !atomic_load(&p->abort)) {
        int64_t now = tr_now_ns(), wake = shard_step(s, now);
        if (wake <= now)
            wake = now + TR_NS_PER_MS; /* not before something changes, but never never */
        if (tr_wait_many(&s->waker, NULL, 0, TR_MIN(wake - now, 100 * TR_NS_PER_MS), &err) == TR_FATAL) {
            tr_pl_fail(p, &err);
            return;
        }
    }
}
