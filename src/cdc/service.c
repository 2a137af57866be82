/*
 * service.c: keeps capture and the sinks running. Each unit has a thread that opens it, starts it, watches it and, when it failed, frees
 * it and begins again after a pause; so a source that is away does not keep a sink from draining the log, and the other way round.
 */
#include "service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "apply.h"
#include "capture.h"
#include "check.h"
#include "clock.h"
#include "metric.h"
#include "oslog.h"
#include "proc.h"
#include "service_internal.h"
#include "text.h"

#define BACKOFF_MIN (200 * TR_NS_PER_MS)
#define BACKOFF_MAX (30 * TR_NS_PER_S)
#define STEADY (60 * TR_NS_PER_S) /* a run this long resets the backoff */

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

static bool stopping(struct tr_service *s)
{
    return atomic_load(&s->stop);
}

/* Sleeps until the deadline or the stop. */
static void rest(struct tr_service *s, int64_t until_ns)
{
    tr_mutex_lock(&s->lock);
    while (!stopping(s) && tr_now_ns() < until_ns)
        tr_cond_wait_until(&s->cond, &s->lock, until_ns);
    tr_mutex_unlock(&s->lock);
}

static void end_service(struct tr_service *s, const struct tr_err *why)
{
    tr_mutex_lock(&s->lock);
    if (!s->ended) {
        s->ended = true;
        s->end_err = *why;
    }
    atomic_store(&s->stop, true);
    tr_cond_broadcast(&s->cond);
    tr_mutex_unlock(&s->lock);
}

/* ---- units ---- */

static void set_unit(struct unit *u, enum unit_state state, const struct tr_err *err)
{
    struct tr_service *s = u->service;
    tr_mutex_lock(&s->lock);
    u->state = state;
    if (err)
        u->err = *err;
    else if (state == UNIT_RUNNING)
        memset(&u->err, 0, sizeof u->err);
    u->since_us = tr_wall_us();
    tr_mutex_unlock(&s->lock);
}

static void mode(void *arg, const char *ns, const char *name, struct tr_apply_table_mode *ret)
{
    struct unit *u = arg;
    const struct tr_service_sink *k = u->sink;
    struct tr_slice n = tr_slice_str(ns), t = tr_slice_str(name);
    *ret = (struct tr_apply_table_mode){.heartbeat = !strcmp(ns, u->service->beat_ns) && !strcmp(name, u->service->beat_name)};
    if (ret->heartbeat)
        return;
    bool want = k->tables.n == 0;
    for (size_t i = 0; i < k->tables.n; i++)
        want |= tr_glob_table(tr_slice_str(k->tables.v[i]), n, t);
    for (size_t i = 0; i < k->exclude.n; i++)
        want &= !tr_glob_table(tr_slice_str(k->exclude.v[i]), n, t);
    ret->mirror = want;
    for (size_t i = 0; want && i < k->changelog.n; i++)
        ret->changelog |= tr_glob_table(tr_slice_str(k->changelog.v[i]), n, t);
}

/* What fits into the budget may be one row: nothing else bounds it but the 32-bit lengths of the row image. */
static uint64_t largest_row(uint64_t max_inflight)
{
    return TR_MIN(max_inflight, (uint64_t)UINT32_MAX / 2);
}

static int open_unit(struct unit *u, struct tr_err *err)
{
    struct tr_service *s = u->service;
    const struct tr_service_config *c = &s->cfg;
    struct tr_pipeline_tuning p;
    tr_pipeline_tuning_default(&p);
    p.commit_interval_ns = c->commit_interval_ns;
    p.drain_timeout_ns = c->drain_timeout_ns;
    p.stalled_fail_after_ns = c->stalled_fail_after_ns;
    int rc;
    if (u->sink) {
        p.max_inflight_bytes = u->sink->max_inflight_bytes;
        struct tr_sink_tuning tuning = u->sink->tuning;
        tuning.record_bytes_max = largest_row(p.max_inflight_bytes);
        struct tr_apply_config a = {.name = u->sink->name,
                                    .sink = u->sink->sink,
                                    .log = c->log,
                                    .control = c->control,
                                    .metrics = c->metrics,
                                    .pipeline = p,
                                    .tuning = tuning,
                                    .mode = mode,
                                    .arg = u};
        struct tr_apply_run *run = NULL;
        rc = tr_apply_open(&a, &run, err);
        if (rc >= 0)
            rc = tr_apply_start(run, err);
        if (rc < 0) {
            tr_apply_free(run);
            return rc;
        }
        tr_mutex_lock(&s->lock);
        u->apply = run;
        tr_mutex_unlock(&s->lock);
        return TR_OK;
    }
    p.max_inflight_bytes = c->capture_inflight_bytes;
    struct tr_capture_config k = {.source_name = c->source_name,
                                  .heartbeat_ns = s->beat_ns,
                                  .heartbeat_name = s->beat_name,
                                  .cdc = c->cdc,
                                  .control = c->control,
                                  .log = c->log,
                                  .metrics = c->metrics,
                                  .snapshot = {.workers = c->snapshot_workers,
                                               .chunk_bytes = c->chunk_bytes,
                                               .chunk_rows_max = c->chunk_rows_max,
                                               .tables_max = c->snapshot_tables_max},
                                  .pipeline = p};
    tr_sink_tuning_default(&k.sink);
    k.sink.inflight = 1;
    k.sink.record_bytes_max = largest_row(c->capture_inflight_bytes);
    k.sink.linger_ns = 2 * TR_NS_PER_MS;
    k.sink.chunk_bytes = 256 << 10;
    k.sink.batch_bytes_max = TR_MAX(c->capture_inflight_bytes / 8, 1 << 20);
    struct tr_capture_run *run = NULL;
    rc = tr_capture_open(&k, &run, err);
    if (rc >= 0)
        rc = tr_capture_start(run, err);
    if (rc < 0) {
        tr_capture_free(run);
        return rc;
    }
    tr_mutex_lock(&s->lock);
    u->capture = run;
    tr_mutex_unlock(&s->lock);
    return TR_OK;
}

static void stop_unit(struct unit *u)
{
    if (u->apply)
        tr_apply_stop(u->apply);
    if (u->capture)
        tr_capture_stop(u->capture);
}

static bool join_unit(struct unit *u, int64_t deadline_ns)
{
    return u->apply ? tr_apply_join(u->apply, deadline_ns) : tr_capture_join(u->capture, deadline_ns);
}

static void status_unit(struct unit *u, struct tr_pipeline_status *st)
{
    struct tr_apply_lag lag;
    if (u->apply)
        tr_apply_status(u->apply, st, &lag);
    else
        tr_capture_status(u->capture, st, NULL);
}

static void free_unit(struct unit *u)
{
    struct tr_service *s = u->service;
    tr_mutex_lock(&s->lock);
    struct tr_apply_run *a = u->apply;
    struct tr_capture_run *c = u->capture;
    u->apply = NULL;
    u->capture = NULL;
    tr_mutex_unlock(&s->lock);
    tr_apply_free(a);
    tr_capture_free(c);
}

/* Runs until it fails (true) or the service stops (false). */
static bool watch(struct unit *u, struct tr_err *err)
{
    struct tr_service *s = u->service;
    while (!join_unit(u, in(100 * TR_NS_PER_MS)))
        if (stopping(s)) {
            set_unit(u, UNIT_DRAINING, NULL);
            stop_unit(u);
            if (!join_unit(u, in(s->cfg.drain_timeout_ns + 5 * TR_NS_PER_S)))
                tr_oslog_fields(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"unit", u->name}), "did not end within its drain timeout");
            break;
        }
    struct tr_pipeline_status st;
    status_unit(u, &st);
    if (st.state != TR_PL_FAILED)
        return false;
    *err = st.error;
    return !stopping(s);
}

static void run_unit(void *arg)
{
    struct unit *u = arg;
    struct tr_service *s = u->service;
    int64_t backoff = BACKOFF_MIN;
    while (!stopping(s)) {
        struct tr_err err = {0};
        set_unit(u, UNIT_OPENING, NULL);
        int64_t began = tr_now_ns();
        int rc = open_unit(u, &err);
        if (rc >= 0) {
            set_unit(u, UNIT_RUNNING, NULL);
            tr_oslog_fields(TR_OSLOG_INFO, "service", TR_OSLOG_F({"unit", u->name}), "running");
            bool failed = watch(u, &err);
            free_unit(u);
            if (!failed)
                break;
        } else if (!u->sink && (rc == TR_REJECT || rc == TR_FATAL)) {
            set_unit(u, UNIT_FAILED, &err);
            tr_oslog_err(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"unit", u->name}), &err);
            end_service(s, &err);
            return;
        }
        if (err.rc == TR_FENCED) {
            end_service(s, &err);
            return;
        }
        set_unit(u, UNIT_FAILED, &err);
        u->restarts++;
        if (tr_now_ns() - began > STEADY)
            backoff = BACKOFF_MIN;
        char pause[TR_DURATION_CHARS];
        tr_oslog_err(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"unit", u->name}, {"again_in", tr_format_duration(backoff / TR_NS_PER_MS * TR_NS_PER_MS, pause)}), &err);
        rest(s, in(backoff));
        backoff = TR_MIN(backoff * 2, BACKOFF_MAX);
    }
    set_unit(u, UNIT_STOPPED, NULL);
}

/* ---- the pulse: heartbeat, slot headroom ---- */

/* Told when a message takes the row's place, and when that ends. */
static void tell_beat(const struct tr_cdc_beat *now, bool *message)
{
    if (now->message && !*message)
        tr_oslog_fields(TR_OSLOG_INFO, "heartbeat", TR_OSLOG_F({"cure", now->cure}), "heartbeats are transactional messages: %s", now->why);
    else if (!now->message && *message)
        tr_oslog_write(TR_OSLOG_INFO, "heartbeat", "heartbeats are rows of their table again");
    *message = now->message;
}

static void pulse(void *arg)
{
    struct tr_service *s = arg;
    struct tr_err err;
    struct tr_cdc_beat beat;
    bool message = false;
    int64_t every = s->cfg.heartbeat_interval_ns;
    while (!stopping(s)) {
        int64_t next = in(every);
        struct tr_cdc_slot slot;
        /* the tables must be there: capture makes them when it opens */
        bool up;
        tr_mutex_lock(&s->lock);
        up = s->units[0].state == UNIT_RUNNING;
        tr_mutex_unlock(&s->lock);
        int rc = up ? s->session->ops->heartbeat(s->session, tr_wall_us(), in(10 * TR_NS_PER_S), &beat, &err) : TR_OK;
        if (up && rc >= 0)
            tell_beat(&beat, &message);
        if (up && rc >= 0)
            rc = s->session->ops->slot_state(s->session, in(10 * TR_NS_PER_S), &slot, &err);
        if (rc < 0 && !stopping(s) && TR_OSLOG_ONCE_PER(30))
            tr_oslog_err(TR_OSLOG_WARN, "heartbeat", NULL, 0, &err);
        if (up && rc >= 0) {
            tr_mutex_lock(&s->lock);
            s->slot = slot;
            tr_mutex_unlock(&s->lock);
            tr_gauge_set(s->m_retained, slot.retained_bytes);
            tr_gauge_set(s->m_headroom, slot.headroom_bytes == INT64_MAX ? -1 : slot.headroom_bytes);
        }
        rest(s, up ? next : in(200 * TR_NS_PER_MS));
    }
}

/* ---- housekeeping ---- */

static void split(const char *table, char ns[64], char name[64])
{
    const char *dot = strchr(table, '.');
    snprintf(ns, 64, "%.*s", dot ? (int)TR_MIN((size_t)(dot - table), 63) : 6, dot ? table : "public");
    snprintf(name, 64, "%.63s", dot ? dot + 1 : table);
}

static int carry_out(struct tr_service *s, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    int rc = 1;
    tr_mutex_lock(&s->lock);
    if (!strcmp(kind, "resume")) {
        for (uint32_t i = 1; i < s->n_units; i++)
            if (s->units[i].apply && (!*scope || !strcmp(scope, s->units[i].name)) && tr_apply_resume(s->units[i].apply, table) == TR_OK)
                rc = TR_OK;
        if (rc)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_CDC, "table %s is not paused in %s%s", table, *scope ? "sink " : "any sink", scope);
    } else if (!strcmp(kind, "resnapshot")) {
        char ns[64], name[64];
        split(table, ns, name);
        if (s->units[0].capture)
            rc = tr_capture_request(s->units[0].capture, ns, name);
        if (rc)
            rc = tr_err_set(err, s->units[0].capture ? TR_REJECT : TR_RETRY, TR_DOM_CDC, s->units[0].capture ? "table %s is not captured" : "capture is not running; table %s stays as it is", table);
    } else {
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CDC, "unknown request %s", kind);
    }
    tr_mutex_unlock(&s->lock);
    return rc;
}

int tr_service_request(struct tr_service *s, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    int rc = carry_out(s, kind, scope, table, err);
    struct tr_ctl_audit a = {.at_us = tr_wall_us()};
    snprintf(a.actor, sizeof a.actor, "%s", actor);
    snprintf(a.action, sizeof a.action, "%s", kind);
    snprintf(a.subject, sizeof a.subject, "%.60s%s%.90s", scope, *scope ? "/" : "", table);
    snprintf(a.outcome, sizeof a.outcome, "%s", rc < 0 ? "refused" : "done");
    if (rc < 0 && err)
        snprintf(a.detail, sizeof a.detail, "%.500s", err->msg);
    s->cfg.control->ops->audit(s->cfg.control, &a, NULL);
    return rc;
}

static void take_requests(struct tr_service *s)
{
    char kind[32], scope[64], table[160];
    struct tr_err err;
    tr_mutex_lock(&s->lock);
    bool up = s->units[0].capture != NULL;
    tr_mutex_unlock(&s->lock);
    if (!up) /* taken is gone: a snapshot that nobody can begin stays in the store */
        return;
    while (s->cfg.control->ops->request_take(s->cfg.control, kind, scope, table, &err) == TR_OK) {
        struct tr_err why;
        if (tr_service_request(s, "control store", kind, scope, table, &why) < 0)
            tr_oslog_err(TR_OSLOG_WARN, "service", TR_OSLOG_F({"request", kind}, {"table", table}), &why);
    }
}

/* Over its freshness target for five minutes: an alarm. */
static void watch_lag(struct tr_service *s)
{
    int64_t now = tr_now_ns(), wall = tr_wall_us();
    for (uint32_t i = 1; i < s->n_units; i++) {
        struct unit *u = &s->units[i];
        struct tr_apply_lag lag = {0};
        struct tr_pipeline_status st;
        tr_mutex_lock(&s->lock);
        if (u->apply)
            tr_apply_status(u->apply, &st, &lag);
        if (lag.measured_us)
            u->lag = lag;
        /* no heartbeat came through: the lag is at least the time since the last one that did */
        int64_t silent = u->lag.measured_us ? wall - u->lag.measured_us - s->cfg.heartbeat_interval_ns / 1000 : 0;
        int64_t us = TR_MAX(u->lag.end_to_end_us, silent);
        bool over = u->lag.measured_us && us * 1000 > u->sink->freshness_ns;
        if (!over)
            u->over_since_ns = 0;
        else if (!u->over_since_ns)
            u->over_since_ns = now;
        bool alarm = u->over_since_ns && now - u->over_since_ns > 300 * TR_NS_PER_S, was = u->lag_alarm;
        u->lag_alarm = alarm;
        tr_mutex_unlock(&s->lock);
        tr_gauge_set(u->m_lag, us);
        struct tr_control *c = s->cfg.control;
        if (alarm && !was) {
            char text[160];
            snprintf(text, sizeof text, "end-to-end lag is %" PRId64 " ms, over its target for five minutes", us / 1000);
            c->ops->alarm_set(c, "lag", u->name, text, NULL);
        } else if (!alarm && was) {
            c->ops->alarm_clear(c, "lag", u->name, NULL);
        }
    }
}

static void watch_headroom(struct tr_service *s)
{
    tr_mutex_lock(&s->lock);
    struct tr_cdc_slot slot = s->slot;
    tr_mutex_unlock(&s->lock);
    bool alarm = slot.exists && slot.headroom_bytes != INT64_MAX && slot.headroom_bytes < slot.retained_bytes;
    struct tr_control *c = s->cfg.control;
    if (alarm && !s->headroom_alarm) {
        char text[200];
        snprintf(text, sizeof text, "the slot holds back %" PRId64 " MiB of WAL and has %" PRId64 " MiB left before the server gives up on it", slot.retained_bytes >> 20,
                 slot.headroom_bytes >> 20);
        c->ops->alarm_set(c, "headroom", s->cfg.source_name, text, NULL);
    } else if (!alarm && s->headroom_alarm) {
        c->ops->alarm_clear(c, "headroom", s->cfg.source_name, NULL);
    }
    s->headroom_alarm = alarm;
}

static void keep_house(void *arg)
{
    struct tr_service *s = arg;
    int64_t renew = 0, retain = 0;
    while (!stopping(s)) {
        struct tr_err err = {0};
        int64_t now = tr_now_ns();
        if (now >= renew) {
            renew = now + TR_SERVICE_LEASE_TTL_MS * TR_NS_PER_MS / 3;
            int rc = s->cfg.control->ops->lease_renew(s->cfg.control, TR_SERVICE_LEASE, s->cfg.lease_token, TR_SERVICE_LEASE_TTL_MS, &err);
            if (rc == TR_FENCED) {
                tr_oslog_err(TR_OSLOG_ERROR, "service", NULL, 0, &err);
                end_service(s, &err);
                return;
            }
            if (rc < 0 && TR_OSLOG_ONCE_PER(10))
                tr_oslog_err(TR_OSLOG_WARN, "service", NULL, 0, &err);
        }
        if (now >= retain) {
            retain = now + 30 * TR_NS_PER_S;
            if (s->cfg.log->ops->retain(s->cfg.log, tr_wall_us(), &err) < 0 && TR_OSLOG_ONCE_PER(60))
                tr_oslog_err(TR_OSLOG_WARN, "service", NULL, 0, &err);
        }
        take_requests(s);
        watch_lag(s);
        watch_headroom(s);
        rest(s, in(500 * TR_NS_PER_MS));
    }
}

/* ---- life ---- */

static int make_metrics(struct tr_service *s, struct tr_err *err)
{
    struct tr_family *lag, *retained, *headroom;
    struct tr_metric_def d1 = {.name = "tailrace_end_to_end_lag_seconds", .help = "Heartbeat: source clock to durable in the sink.", .unit = "seconds", .type = TR_GAUGE, .scale = 1e-6};
    struct tr_metric_def d2 = {.name = "tailrace_slot_retained_bytes", .help = "WAL the source holds back for our slot.", .unit = "bytes", .type = TR_GAUGE};
    struct tr_metric_def d3 = {.name = "tailrace_slot_headroom_bytes", .help = "WAL the source will still keep for our slot; -1: unbounded.", .unit = "bytes", .type = TR_GAUGE};
    struct tr_label src = {"source", s->cfg.source_name};
    int rc = tr_metrics_family(s->cfg.metrics, &d1, &lag, err);
    if (rc >= 0)
        rc = tr_metrics_family(s->cfg.metrics, &d2, &retained, err);
    if (rc >= 0)
        rc = tr_metrics_family(s->cfg.metrics, &d3, &headroom, err);
    if (rc >= 0)
        rc = tr_family_cell(retained, &src, 1, &s->m_retained, err);
    if (rc >= 0)
        rc = tr_family_cell(headroom, &src, 1, &s->m_headroom, err);
    for (uint32_t i = 1; i < s->n_units && rc >= 0; i++) {
        struct tr_label l = {"sink", s->units[i].name};
        rc = tr_family_cell(lag, &l, 1, &s->units[i].m_lag, err);
    }
    return rc;
}

int tr_service_new(const struct tr_service_config *cfg, struct tr_service **ret, struct tr_err *err)
{
    struct tr_service *s = tr_calloc(1, sizeof *s);
    if (s)
        s->units = tr_calloc(cfg->n_sinks + 1, sizeof *s->units);
    if (!s || !s->units) {
        tr_free(s);
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the service");
    }
    s->cfg = *cfg;
    cfg->cdc->ops->heartbeat_table(cfg->cdc, &s->beat_ns, &s->beat_name);
    tr_mutex_init(&s->lock);
    tr_cond_init(&s->cond);
    s->n_units = cfg->n_sinks + 1;
    s->started_us = tr_wall_us();
    for (uint32_t i = 0; i < s->n_units; i++) {
        s->units[i].service = s;
        s->units[i].sink = i ? &cfg->sinks[i - 1] : NULL;
        s->units[i].name = i ? cfg->sinks[i - 1].name : "capture";
    }
    cfg->control->ops->act_under(cfg->control, TR_SERVICE_LEASE, cfg->lease_token);
    int rc = make_metrics(s, err);
    if (rc >= 0)
        rc = cfg->cdc->ops->session_new(cfg->cdc, TR_CDC_PRIMARY, &s->session, err);
    if (rc < 0) {
        tr_service_free(s);
        return rc;
    }
    *ret = s;
    return TR_OK;
}

int tr_service_start(struct tr_service *s, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < s->n_units && rc >= 0; i++)
        rc = tr_thread_start(&s->units[i].thread, i ? "tr-apply" : "tr-capture", run_unit, &s->units[i], err);
    if (rc >= 0)
        rc = tr_thread_start(&s->house, "tr-house", keep_house, s, err);
    if (rc >= 0 && s->cfg.heartbeat_interval_ns)
        rc = tr_thread_start(&s->pulse, "tr-pulse", pulse, s, err);
    return rc;
}

void tr_service_stop(struct tr_service *s)
{
    tr_mutex_lock(&s->lock);
    atomic_store(&s->stop, true);
    tr_cond_broadcast(&s->cond);
    tr_mutex_unlock(&s->lock);
}

bool tr_service_ended(struct tr_service *s, struct tr_err *err)
{
    tr_mutex_lock(&s->lock);
    bool r = s->ended;
    if (r)
        *err = s->end_err;
    tr_mutex_unlock(&s->lock);
    return r;
}

void tr_service_join(struct tr_service *s)
{
    tr_service_stop(s);
    if (s->session)
        s->session->ops->interrupt(s->session);
    for (uint32_t i = 0; i < s->n_units; i++)
        s->units[i].thread = tr_thread_join(s->units[i].thread);
    s->house = tr_thread_join(s->house);
    s->pulse = tr_thread_join(s->pulse);
}

struct tr_service *tr_service_free(struct tr_service *s)
{
    if (!s)
        return NULL;
    tr_service_join(s);
    if (s->session)
        s->session->ops->free(s->session);
    tr_mutex_done(&s->lock);
    tr_cond_done(&s->cond);
    tr_free(s->units);
    tr_free(s);
    return NULL;
}
