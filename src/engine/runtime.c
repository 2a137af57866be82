#include "engine.h"

#include <stdio.h>
#include <string.h>

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "random.h"
#include "runtime_json.h"
#include "text.h"

/* Making, starting, watching and freeing a pipeline. */

void tr_sink_tuning_default(struct tr_sink_tuning *t)
{
    *t = (struct tr_sink_tuning){.inflight = 2,
                                 .batch_rows_max = 100000,
                                 .batch_bytes_max = UINT64_C(16) << 20,
                                 .linger_ns = TR_NS_PER_S,
                                 .chunk_bytes = UINT64_C(1) << 20,
                                 .queue_chunks = 16,
                                 .open_chunks_max = 64,
                                 .open_bytes_max = UINT64_C(32) << 20,
                                 .acks_max = 1024,
                                 .record_bytes_max = UINT64_C(64) << 20,
                                 .write_timeout_ns = 30 * TR_NS_PER_S,
                                 .backoff_min_ns = 100 * TR_NS_PER_MS,
                                 .backoff_max_ns = 30 * TR_NS_PER_S,
                                 .breaker_failures = 5,
                                 .breaker_open_ns = 5 * TR_NS_PER_S};
}

void tr_runtime_tuning_default(struct tr_runtime_tuning *t)
{
    *t = (struct tr_runtime_tuning){.threads = 1,
                                    .poll_max = 1024,
                                    .max_inflight_bytes = UINT64_C(256) << 20,
                                    .high_ratio = 0.8,
                                    .low_ratio = 0.5,
                                    .min_pause_ns = 10 * TR_NS_PER_MS,
                                    .commit_interval_ns = 5 * TR_NS_PER_S,
                                    .stalled_fail_after_ns = 120 * TR_NS_PER_S,
                                    .drain_timeout_ns = 25 * TR_NS_PER_S};
}

/* ---- troubles and failure -------------------------------------------------------------------------------------------- */

void tr_pl_answered(struct tr_err *err, int rc, const char *who)
{
    err->rc = rc;
    if (!err->msg[0])
        snprintf(err->msg, sizeof err->msg, "%s answered %s and gave no reason", who, tr_rc_name(rc));
}

void tr_pl_fail(struct tr_runtime *p, const struct tr_err *err)
{
    tr_mutex_lock(&p->lock);
    /* What goes wrong in a teardown is its consequence. */
    bool first = !p->failed && !atomic_load(&p->abort);
    if (first) {
        p->failed = true;
        p->failure = *err;
        p->failure_us = tr_wall_us();
    }
    tr_mutex_unlock(&p->lock);
    if (first)
        tr_oslog_err(TR_OSLOG_ERROR, "engine", TR_OSLOG_F({"pipeline", p->name}), err);
    tr_waker_wake(&p->waker);
}

void tr_pl_trouble(struct tr_runtime *p, struct tr_trouble *t, const struct tr_err *err)
{
    tr_mutex_lock(&p->lock);
    t->err = *err;
    if (!t->set) {
        t->set = true;
        t->with->n++;
        tr_list_push_back(&p->troubles, &t->node);
    }
    bool tell = tr_oslog_failed(&t->with->episode, err);
    tr_mutex_unlock(&p->lock);
    if (tell)
        tr_oslog_err(TR_OSLOG_WARN, "engine", TR_OSLOG_F({"pipeline", p->name}, {"who", t->with->who}), err);
}

/* True when that was the last of them. */
static bool take_out(struct tr_runtime *p, struct tr_trouble *t, char ret_lasted[TR_OSLOG_LASTED_CHARS])
{
    tr_mutex_lock(&p->lock);
    t->set = false;
    tr_list_del(&t->node);
    bool over = --t->with->n == 0 && tr_oslog_well(&t->with->episode, ret_lasted);
    tr_mutex_unlock(&p->lock);
    return over;
}

void tr_pl_well(struct tr_runtime *p, struct tr_trouble *t)
{
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (t->set && take_out(p, t, lasted))
        tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({"pipeline", p->name}, {"who", t->with->who}, {"was", t->err.msg}), "well again after %s", lasted);
}

void tr_pl_forget(struct tr_runtime *p, struct tr_trouble *t)
{
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (t->set)
        take_out(p, t, lasted);
}

void tr_pl_wake_workers(struct tr_runtime *p)
{
    for (uint32_t i = 0; i < p->def.tuning.threads; i++)
        tr_waker_wake(&p->workers[i].waker);
}

static void on_low(void *arg)
{
    tr_pl_wake_workers(arg);
}

static void on_acks(void *arg)
{
    struct tr_runtime *p = arg;
    tr_waker_wake(&p->waker);
}

/* ---- checks ---------------------------------------------------------------------------------------------------------- */

#define REFUSE(...) return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, __VA_ARGS__)

static int check_sink(const struct tr_runtime_def *d, const struct tr_runtime_sink *s, struct tr_err *err)
{
    const struct tr_sink_tuning *t = &s->tuning;
    uint32_t caps = s->sink->caps;
    const char *n = s->name;
    if (t->inflight == 0 || t->batch_rows_max == 0 || t->batch_bytes_max == 0 || t->chunk_bytes == 0 || t->queue_chunks == 0 || t->open_chunks_max == 0 ||
        t->open_bytes_max == 0 || t->acks_max == 0 || t->record_bytes_max == 0)
        REFUSE("sink %s: inflight, batch_rows_max, batch_bytes_max, chunk_bytes, queue_chunks, open_chunks_max, open_bytes_max, acks_max and record_bytes_max must not be 0", n);
    if (t->write_timeout_ns <= 0 || t->linger_ns < 0 || t->backoff_min_ns < 0 || t->backoff_max_ns < t->backoff_min_ns)
        REFUSE("sink %s: write_timeout must be above 0, linger not below, and backoff_max not below backoff_min", n);
    if (t->record_bytes_max > UINT64_C(2) << 30 || t->chunk_bytes > UINT64_C(1) << 30)
        REFUSE("sink %s: record_bytes_max is at most 2 GiB and chunk_bytes at most 1 GiB", n);
    if (t->record_bytes_max > d->tuning.max_inflight_bytes)
        REFUSE("sink %s: record_bytes_max %llu exceeds max_inflight %llu: such a row could never be in flight", n, (unsigned long long)t->record_bytes_max,
               (unsigned long long)d->tuning.max_inflight_bytes);
    if (s->sink->shards == 0 || s->sink->shards > 1024 || s->sink->n_endpoints == 0)
        REFUSE("sink %s: it has %u shards and %u endpoints; both must be at least 1", n, s->sink->shards, s->sink->n_endpoints);
    for (uint32_t i = 0; s->sink->shard_endpoints && i < s->sink->shards; i++)
        if (s->sink->shard_endpoints[i] == 0 || s->sink->shard_endpoints[i] > s->sink->n_endpoints)
            REFUSE("sink %s: shard %u has %u endpoints; each has 1 to %u", n, i, s->sink->shard_endpoints[i], s->sink->n_endpoints);
    if ((caps & TR_CAP_BOUNDARY) && (!(caps & TR_CAP_MULTI) || s->sink->shards != 1))
        REFUSE("sink %s: sealing at transaction ends needs many tables in one write and exactly one shard (it has %u)", n, s->sink->shards);
    if ((caps & TR_CAP_ONE_TARGET) && s->sink->shards != 1)
        REFUSE("sink %s: a total order needs exactly one shard (it has %u)", n, s->sink->shards);
    return TR_OK;
}

static int check(const struct tr_runtime_def *d, struct tr_err *err)
{
    const struct tr_runtime_tuning *t = &d->tuning;
    if (!d->name || !*d->name || !d->source || !d->chain_new || d->n_sinks == 0)
        REFUSE("a pipeline needs a name, a source, a chain and at least one sink");
    if (t->threads == 0 || t->threads > 1024)
        REFUSE("pipeline %s: threads must be 1 to 1024", d->name);
    if (t->poll_max == 0 || t->max_inflight_bytes == 0)
        REFUSE("pipeline %s: poll_max and max_inflight must not be 0", d->name);
    if (!(t->low_ratio > 0 && t->low_ratio < t->high_ratio && t->high_ratio <= 1))
        REFUSE("pipeline %s: 0 < low_ratio < high_ratio <= 1 does not hold", d->name);
    if (t->commit_interval_ns < 0 || t->stalled_fail_after_ns <= 0 || t->drain_timeout_ns <= 0 || t->min_pause_ns < 0)
        REFUSE("pipeline %s: commit_interval and min_pause must not be below 0, stalled_fail_after and drain_timeout must be above", d->name);
    for (uint32_t i = 0; i < d->n_sinks; i++) {
        int rc = check_sink(d, &d->sinks[i], err);
        if (rc < 0)
            return rc;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(d->sinks[i].name, d->sinks[k].name) == 0)
                REFUSE("pipeline %s: two sinks are called %s", d->name, d->sinks[i].name);
    }
    return TR_OK;
}

/* More than one write at a time per shard only where order per key survives it. */
static uint32_t allowed_inflight(const struct tr_sink *s, const struct tr_sink_tuning *t)
{
    bool boundary = s->caps & TR_CAP_BOUNDARY;
    bool free_order = (s->caps & TR_CAP_MONOTONIC) || t->order_none || ((s->caps & TR_CAP_ORDERED) && (s->caps & TR_CAP_PIPELINED));
    return boundary || !free_order ? 1 : t->inflight;
}

static void sizing_rule(const struct tr_runtime *p, char *ret, size_t cap)
{
    uint64_t need = 0;
    char a[TR_SIZE_CHARS], b[TR_SIZE_CHARS], c[TR_SIZE_CHARS], d[TR_SIZE_CHARS], terms[256] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < p->n_sinks; i++) {
        const struct tr_sink_rt *k = &p->sinks[i];
        need += (uint64_t)k->n_shards * k->t.inflight * k->t.batch_bytes_max + (uint64_t)k->n_shards * k->t.queue_chunks * k->t.chunk_bytes;
        int n = snprintf(terms + at, sizeof terms - at, "%s%s: %u shards x %u in flight x %s + %u shards x %u chunks x %s", i ? "; " : "", k->name, k->n_shards,
                         k->t.inflight, tr_format_size(k->t.batch_bytes_max, a), k->n_shards, k->t.queue_chunks, tr_format_size(k->t.chunk_bytes, b));
        at = n < 0 ? at : TR_MIN(at + (size_t)n, sizeof terms - 1);
    }
    double have = (double)p->pool.limit * p->def.tuning.low_ratio;
    if (have >= 2.0 * (double)need)
        return;
    snprintf(ret, cap,
             "max_inflight %s x low_ratio %.2f = %s is less than 2 x %s (%s): a saturated pipeline will pause and resume at min_pause; "
             "raise max_inflight to at least %llu bytes or lower batch_size",
             tr_format_size(p->pool.limit, a), p->def.tuning.low_ratio, tr_format_size((uint64_t)have, b), tr_format_size(need, c), terms,
             (unsigned long long)(2.0 * (double)need / p->def.tuning.low_ratio) + 1);
    (void)d;
}

/* ---- metrics --------------------------------------------------------------------------------------------------------- */

static struct tr_family *family(struct tr_metrics *reg, const char *name, const char *help, enum tr_metric_type type, double scale)
{
    struct tr_metric_def d = {.name = name, .help = help, .type = type, .scale = scale};
    struct tr_family *f = NULL;
    if (type == TR_HISTOGRAM) {
        d.bounds = tr_latency_bounds_ns;
        d.n_bounds = TR_LATENCY_BOUNDS;
    }
    if (!reg || tr_metrics_family(reg, &d, &f, NULL) < 0)
        return NULL;
    return f;
}

static struct tr_cell *cell(struct tr_metrics *reg, const char *name, const char *help, enum tr_metric_type type, double scale, const struct tr_label *l, size_t n)
{
    struct tr_family *f = family(reg, name, help, type, scale);
    struct tr_cell *c = NULL;
    return f && tr_family_cell(f, l, n, &c, NULL) >= 0 ? c : NULL;
}

static void make_metrics(struct tr_runtime *p)
{
    struct tr_metrics *r = p->def.metrics;
    struct tr_label l[2] = {{"pipeline", p->name}};
    p->m_records = cell(r, "tailrace_pipeline_records_in_total", "Payloads the chain has consumed.", TR_COUNTER, 0, l, 1);
    p->m_inflight = cell(r, "tailrace_pipeline_inflight_bytes", "Bytes between encoders and durable writes.", TR_GAUGE, 0, l, 1);
    p->m_blocked = cell(r, "tailrace_pipeline_blocked", "1 while back-pressure is engaged.", TR_GAUGE, 0, l, 1);
    p->m_blocked_ns = cell(r, "tailrace_pipeline_blocked_seconds_total", "Time back-pressure was engaged.", TR_COUNTER, 1e-9, l, 1);
    p->m_heartbeat = cell(r, "tailrace_pipeline_poll_heartbeat_age_seconds", "Time since the slowest pipeline thread last polled.", TR_GAUGE, 1e-9, l, 1);
    p->m_watermark_age = cell(r, "tailrace_pipeline_watermark_age_seconds", "Time since the slowest lane with outstanding polls last advanced.", TR_GAUGE, 1e-9, l, 1);
    p->m_stalled = cell(r, "tailrace_pipeline_watermark_stalled_seconds", "How long a failed batch has held a watermark back.", TR_GAUGE, 1e-9, l, 1);
    p->m_commits = cell(r, "tailrace_pipeline_commits_total", "Hand-overs of watermarks to the source.", TR_COUNTER, 0, l, 1);
    for (uint32_t i = 0; i < p->n_sinks; i++) {
        struct tr_sink_rt *k = &p->sinks[i];
        l[1] = (struct tr_label){"sink", k->name};
        k->m_rows = cell(r, "tailrace_pipeline_rows_out_total", "Rows durable in the sink.", TR_COUNTER, 0, l, 2);
        k->m_bytes = cell(r, "tailrace_pipeline_bytes_out_total", "Encoded bytes durable in the sink.", TR_COUNTER, 0, l, 2);
        k->m_batches = cell(r, "tailrace_pipeline_batches_total", "Batches durable in the sink.", TR_COUNTER, 0, l, 2);
        k->m_retries = cell(r, "tailrace_pipeline_retries_total", "Writes that have to be repeated.", TR_COUNTER, 0, l, 2);
        k->m_rejects = cell(r, "tailrace_pipeline_rejects_total", "Parts the sink refused.", TR_COUNTER, 0, l, 2);
        k->m_breakers = cell(r, "tailrace_pipeline_breakers_open", "Endpoints with an open circuit breaker.", TR_GAUGE, 0, l, 2);
        struct tr_family *f = family(r, "tailrace_pipeline_batch_write_seconds", "Duration of one write of a batch.", TR_HISTOGRAM, 1e-9);
        if (f)
            tr_family_histogram(f, l, 2, &k->m_write, NULL);
    }
}

/* ---- new, start, free ------------------------------------------------------------------------------------------------ */

static int make_sink(struct tr_runtime *p, uint32_t i, const struct tr_runtime_sink *d, struct tr_err *err)
{
    struct tr_sink_rt *k = &p->sinks[i];
    k->p = p;
    k->index = i;
    snprintf(k->name, sizeof k->name, "%s", d->name);
    snprintf(k->party.who, sizeof k->party.who, "%s", d->name);
    k->trouble.with = &k->party;
    k->sink = d->sink;
    k->t = d->tuning;
    k->t.inflight = allowed_inflight(d->sink, &d->tuning);
    k->multi = d->sink->caps & TR_CAP_MULTI;
    k->boundary = d->sink->caps & TR_CAP_BOUNDARY;
    k->one_target = d->sink->caps & TR_CAP_ONE_TARGET;
    k->pipelined = d->sink->caps & TR_CAP_PIPELINED;
    k->waker.fd = -1;
    tr_mutex_init(&k->lock);
    tr_list_init(&k->targets);
    tr_list_init(&k->rebinds);
    tr_prng_init(&k->prng, tr_random_u64());
    if (tr_refusals_init(&k->refusals) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for sink %s", d->name);
    int rc = tr_waker_init(&k->waker, err);
    if (rc < 0)
        return rc;
    k->shards = tr_calloc(d->sink->shards, sizeof *k->shards);
    if (!k->shards)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "sink %s: no memory for shards", d->name);
    for (uint32_t s = 0; s < d->sink->shards; s++) {
        k->n_shards++;
        if ((rc = tr_shard_init(&k->shards[s], k, s, err)) < 0)
            return rc;
    }
    return TR_OK;
}

static int make_worker(struct tr_runtime *p, uint32_t i, struct tr_err *err)
{
    struct tr_worker *w = &p->workers[i];
    w->p = p;
    w->index = i;
    w->chain_linger_ns = INT64_MAX;
    tr_list_init(&w->lanes);
    tr_budget_init(&w->budget, p->pool.high, p->pool.low, p->def.tuning.min_pause_ns);
    w->outs = tr_calloc(p->n_sinks, sizeof *w->outs);
    if (!w->outs)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for a pipeline thread");
    for (uint32_t k = 0; k < p->n_sinks; k++) {
        if (tr_out_new(w, &p->sinks[k], &w->outs[k]) < 0)
            return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for a pipeline thread");
        w->n_outs++;
    }
    return tr_waker_init(&w->waker, err);
}

static int make_parts(struct tr_runtime *p, const struct tr_runtime_def *d, struct tr_err *err)
{
    int rc = tr_waker_init(&p->waker, err);
    if (rc < 0)
        return rc;
    p->sinks = tr_calloc(d->n_sinks, sizeof *p->sinks);
    p->workers = tr_calloc(d->tuning.threads, sizeof *p->workers);
    if (!p->sinks || !p->workers)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for pipeline %s", d->name);
    for (uint32_t i = 0; i < d->tuning.threads; i++) {
        p->workers[i].waker.fd = -1;
        tr_mutex_init(&p->workers[i].lock);
    }
    for (uint32_t i = 0; i < d->n_sinks; i++) {
        p->n_sinks++;
        if ((rc = make_sink(p, i, &d->sinks[i], err)) < 0)
            return rc;
    }
    for (uint32_t i = 0; i < d->tuning.threads; i++)
        if ((rc = make_worker(p, i, err)) < 0)
            return rc;
    return TR_OK;
}

int tr_runtime_new(const struct tr_runtime_def *def, struct tr_runtime **ret, char *ret_warning, size_t warning_cap, struct tr_err *err)
{
    if (ret_warning && warning_cap)
        ret_warning[0] = '\0';
    int rc = check(def, err);
    if (rc < 0)
        return rc;
    struct tr_runtime *p = tr_calloc(1, sizeof *p);
    if (!p)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for pipeline %s", def->name);
    snprintf(p->name, sizeof p->name, "%s", def->name);
    p->def = *def;
    p->def.name = p->name;
    p->def.sinks = NULL;
    p->waker.fd = -1;
    tr_pool_init(&p->pool, def->tuning.max_inflight_bytes, def->tuning.high_ratio, def->tuning.low_ratio);
    p->pool.on_low = on_low;
    p->pool.on_low_arg = p;
    tr_ack_sink_init(&p->acks, on_acks, p);
    tr_mutex_init(&p->lock);
    tr_cond_init(&p->ended_cond);
    tr_list_init(&p->troubles);
    p->source_party = (struct tr_party){.who = "source"};
    p->source_trouble.with = &p->source_party;
    p->commit_party = (struct tr_party){.who = "commit"};
    p->commit_trouble.with = &p->commit_party;
    tr_prng_init(&p->prng, tr_random_u64());
    atomic_store(&p->watermark, INT64_MIN);
    tr_ckpt_init(&p->ckpt, TR_POLLS_MAX, def->tuning.commit_interval_ns, def->tuning.commit_eagerly, tr_now_ns());
    rc = make_parts(p, def, err);
    if (rc < 0) {
        tr_runtime_free(p);
        return rc;
    }
    make_metrics(p);
    if (ret_warning && warning_cap)
        sizing_rule(p, ret_warning, warning_cap);
    *ret = p;
    return TR_OK;
}

static int start_threads(struct tr_runtime *p, struct tr_err *err)
{
    char name[32];
    int rc;
    for (uint32_t i = 0; i < p->n_sinks; i++) {
        struct tr_sink_rt *k = &p->sinks[i];
        if ((rc = tr_thread_start(&k->thread, "tr-target", tr_target_main, k, err)) < 0)
            return rc;
        for (uint32_t s = 0; s < k->n_shards; s++) {
            if ((rc = tr_thread_start(&k->shards[s].thread, "tr-shard", tr_shard_main, &k->shards[s], err)) < 0)
                return rc;
            for (uint32_t w = 0; w < k->shards[s].n_writers; w++)
                if ((rc = tr_thread_start(&k->shards[s].writers[w].thread, "tr-writer", tr_writer_main, &k->shards[s].writers[w], err)) < 0)
                    return rc;
        }
    }
    for (uint32_t i = 0; i < p->def.tuning.threads; i++) {
        snprintf(name, sizeof name, "tr-pipe-%u", i);
        atomic_store(&p->workers[i].heartbeat_ns, tr_now_ns());
        if ((rc = tr_thread_start(&p->workers[i].thread, name, tr_worker_main, &p->workers[i], err)) < 0)
            return rc;
    }
    atomic_store(&p->state, TR_RT_RUNNING);
    return tr_thread_start(&p->thread, "tr-control", tr_controller_main, p, err);
}

int tr_runtime_start(struct tr_runtime *p, struct tr_err *err)
{
    TR_ASSERT(!p->started);
    for (uint32_t i = 0; i < p->def.tuning.threads; i++) {
        struct tr_worker *w = &p->workers[i];
        int rc = p->def.chain_new(p->def.arg, i, w->outs, w->n_outs, &w->ops, &w->chain, err);
        if (rc < 0) {
            w->chain = NULL;
            return rc;
        }
        if (!w->ops)
            return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "pipeline %s: chain_new succeeded and made no chain", p->name);
    }
    p->started = true;
    int rc = start_threads(p, err);
    if (rc < 0) {
        atomic_store(&p->abort, true);
        atomic_store(&p->state, TR_RT_FAILED);
        tr_pl_end_threads(p);
        p->over = true;
    }
    return rc;
}

void tr_runtime_stop(struct tr_runtime *p)
{
    atomic_store(&p->stop, true);
    tr_waker_wake(&p->waker);
}

bool tr_runtime_join(struct tr_runtime *p, int64_t deadline_ns)
{
    tr_mutex_lock(&p->lock);
    bool in_time = true;
    while (!p->over && in_time)
        in_time = tr_cond_wait_until(&p->ended_cond, &p->lock, deadline_ns);
    bool over = p->over;
    tr_mutex_unlock(&p->lock);
    return over;
}

void tr_runtime_status(const struct tr_runtime *cp, struct tr_runtime_status *ret)
{
    struct tr_runtime *p = (struct tr_runtime *)(uintptr_t)cp; /* the lock is not part of what is promised const */
    *ret = (struct tr_runtime_status){
        .state = (enum tr_runtime_state)atomic_load(&p->state),
        .rows_out = atomic_load(&p->rows_out),
        .bytes_out = atomic_load(&p->bytes_out),
        .batches = atomic_load(&p->batches),
        .retries = atomic_load(&p->retries),
        .rejects = atomic_load(&p->rejects),
        .inflight_bytes = tr_pool_charged(&p->pool),
        .inflight_limit = p->pool.limit,
        .poll_heartbeat_ns = INT64_MAX,
        .watermark_stalled_ns = atomic_load(&p->stalled_ns),
        .lanes_assigned = atomic_load(&p->assigned),
        .sinks_probed = true,
        .watermark = atomic_load(&p->watermark),
    };
    for (uint32_t i = 0; i < p->def.tuning.threads; i++) {
        ret->records_in += atomic_load(&p->workers[i].records);
        ret->blocked |= atomic_load(&p->workers[i].blocked);
        ret->poll_heartbeat_ns = TR_MIN(ret->poll_heartbeat_ns, atomic_load(&p->workers[i].heartbeat_ns));
    }
    for (uint32_t i = 0; i < p->n_sinks; i++)
        ret->sinks_probed &= atomic_load(&p->sinks[i].probed);
    tr_mutex_lock(&p->lock);
    if (p->failure.rc < 0) {
        ret->error = p->failure;
        ret->error_since_us = p->failure_us;
    } else if (!tr_list_empty(&p->troubles)) {
        const struct tr_trouble *t = tr_container_of(tr_list_first(&p->troubles), struct tr_trouble, node);
        ret->error = t->err;
        ret->error_since_us = t->with->episode.since_us;
        ret->error_since_ns = t->with->episode.since_ns;
    }
    tr_mutex_unlock(&p->lock);
}

static void free_sink(struct tr_sink_rt *k)
{
    for (uint32_t s = 0; s < k->n_shards; s++)
        tr_shard_done(&k->shards[s]);
    tr_free(k->shards);
    struct tr_list *n;
    tr_refusals_done(&k->refusals);
    while ((n = tr_list_first(&k->targets)))
        tr_target_ent_free(tr_container_of(n, struct tr_target_ent, node));
    tr_waker_done(&k->waker);
    tr_mutex_done(&k->lock);
}

static void free_worker(struct tr_worker *w)
{
    if (w->chain)
        w->ops->free(w->chain);
    for (uint32_t i = 0; i < w->n_outs; i++)
        tr_out_free(w->outs[i]);
    tr_free(w->outs);
    tr_free(w->waits);
    tr_free(w->inbox);
    tr_waker_done(&w->waker);
    tr_mutex_done(&w->lock);
}

struct tr_runtime *tr_runtime_free(struct tr_runtime *p)
{
    if (!p)
        return NULL;
    if (p->thread) {
        struct tr_err err;
        if (!tr_runtime_join(p, 0)) { /* not stopped: torn down at once; everything comes again */
            tr_err_set(&err, TR_RETRY, TR_DOM_ENGINE, "pipeline %s was freed while it was running", p->name);
            tr_pl_fail(p, &err);
            tr_runtime_join(p, INT64_MAX);
        }
        p->thread = tr_thread_join(p->thread);
    }
    for (uint32_t i = 0; i < p->n_sinks; i++) /* they wake the workers, so they go first */
        p->sinks[i].thread = tr_thread_join(p->sinks[i].thread);
    for (uint32_t i = 0; p->workers && i < p->def.tuning.threads; i++)
        free_worker(&p->workers[i]);
    for (uint32_t i = 0; i < p->n_sinks; i++)
        free_sink(&p->sinks[i]);
    for (struct tr_ack *a = tr_ack_sink_take(&p->acks), *next; a; a = next) {
        next = a->next;
        tr_ack_free(a);
    }
    tr_ckpt_done(&p->ckpt);
    for (uint32_t i = 0; i < p->n_lanes; i++) {
        p->lanes[i]->lane->ops->close(p->lanes[i]->lane);
        tr_free(p->lanes[i]);
    }
    tr_free(p->lanes);
    tr_free(p->marks);
    tr_free(p->workers);
    tr_free(p->sinks);
    tr_waker_done(&p->waker);
    tr_cond_done(&p->ended_cond);
    tr_mutex_done(&p->lock);
    tr_free(p);
    return NULL;
}

void tr_runtime_status_json(const struct tr_runtime_status *st, struct tr_json *j)
{
    tr_json_num(j, "records_in", (int64_t)st->records_in);
    tr_json_num(j, "rows_out", (int64_t)st->rows_out);
    tr_json_num(j, "bytes_out", (int64_t)st->bytes_out);
    tr_json_num(j, "batches", (int64_t)st->batches);
    tr_json_num(j, "retries", (int64_t)st->retries);
    tr_json_num(j, "inflight_bytes", (int64_t)st->inflight_bytes);
    tr_json_bool(j, "blocked", st->blocked);
}
