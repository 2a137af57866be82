/*
 * service.c: keeps capture and the sinks running. Each unit has a thread that opens it, starts it, watches it and, when it failed, frees
 * it and begins again after a pause; so a source that is away does not keep a sink from draining the log, and the other way round.
 */
#include "service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>
#include <tailrace/metric.h>
#include <tailrace/oslog.h>

#include "alloc.h"
#include "apply.h"
#include "capture.h"
#include "check.h"
#include "proc.h"
#include "service_internal.h"
#include "text.h"

#define BACKOFF_MIN (200 * TR_NS_PER_MS)
#define BACKOFF_MAX (30 * TR_NS_PER_S)
#define STEADY (60 * TR_NS_PER_S) /* a run this long resets the backoff */
#define DRAIN_TOLD (5 * TR_NS_PER_S)

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
        s->stopping_us = tr_wall_us();
    }
    atomic_store(&s->stop, true);
    tr_cond_broadcast(&s->cond);
    tr_mutex_unlock(&s->lock);
}

/* ---- units ---- */

static void set_unit(struct unit *u, enum unit_state state)
{
    struct tr_service *s = u->service;
    tr_mutex_lock(&s->lock);
    u->state = state;
    if (state == UNIT_RUNNING)
        memset(&u->err, 0, sizeof u->err);
    u->since_us = tr_wall_us();
    tr_mutex_unlock(&s->lock);
}

/* True when it is to be told. */
static bool unit_failed(struct unit *u, const struct tr_err *err)
{
    struct tr_service *s = u->service;
    tr_mutex_lock(&s->lock);
    u->state = UNIT_FAILED;
    u->err = *err;
    u->since_us = tr_wall_us();
    u->restarts++;
    bool tell = tr_oslog_failed(&u->trouble, err);
    tr_mutex_unlock(&s->lock);
    tr_counter_inc(u->m_restarts);
    return tell;
}

/* A unit that failed is well again only when it does its work, which is later than that it runs. */
static void unit_well(struct unit *u)
{
    struct tr_service *s = u->service;
    char why[8], lasted[TR_OSLOG_LASTED_CHARS];
    tr_mutex_lock(&s->lock);
    bool over = u->trouble.since_us && tr_service_unit_ready(u, why, sizeof why) && tr_oslog_well(&u->trouble, lasted);
    tr_mutex_unlock(&s->lock);
    if (over)
        tr_oslog_fields(TR_OSLOG_INFO, "service", TR_OSLOG_F({"unit", u->name}), "running again after %s", lasted);
}

void tr_service_sink_takes(const struct tr_service_sink *k, const char *ns, const char *name, bool *ret_mirror, bool *ret_changelog)
{
    struct tr_slice n = tr_slice_str(ns), t = tr_slice_str(name);
    bool want = k->tables.n == 0;
    for (size_t i = 0; i < k->tables.n; i++)
        want |= tr_glob_table(tr_slice_str(k->tables.v[i]), n, t);
    for (size_t i = 0; i < k->exclude.n; i++)
        want &= !tr_glob_table(tr_slice_str(k->exclude.v[i]), n, t);
    *ret_mirror = want;
    *ret_changelog = false;
    for (size_t i = 0; want && i < k->changelog.n; i++)
        *ret_changelog |= tr_glob_table(tr_slice_str(k->changelog.v[i]), n, t);
}

static void mode(void *arg, const char *ns, const char *name, struct tr_apply_table_mode *ret)
{
    struct unit *u = arg;
    *ret = (struct tr_apply_table_mode){0};
    if (strcmp(ns, u->service->beat_ns) != 0 || strcmp(name, u->service->beat_name) != 0)
        tr_service_sink_takes(u->sink, ns, name, &ret->mirror, &ret->changelog);
}

static bool kept_by_a_changelog(void *arg, const char *ns, const char *name)
{
    struct tr_service *s = arg;
    bool mirror, changelog = false;
    for (uint32_t i = 0; i < s->cfg.n_sinks && !changelog; i++)
        tr_service_sink_takes(&s->cfg.sinks[i], ns, name, &mirror, &changelog);
    return changelog;
}

static bool note_opening(void *arg, struct tr_cdc_session *session)
{
    struct tr_service *s = arg;
    tr_mutex_lock(&s->lock);
    s->units[0].opening = session;
    tr_mutex_unlock(&s->lock);
    return !stopping(s);
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
    struct tr_runtime_tuning p;
    tr_runtime_tuning_default(&p);
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
                                  .has_changelog = kept_by_a_changelog,
                                  .opening = note_opening,
                                  .arg = s,
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

static void status_unit(struct unit *u, struct tr_runtime_status *st)
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

static void log_drain(struct unit *u, const char *how, int64_t left_ns)
{
    struct tr_runtime_status st;
    status_unit(u, &st);
    tr_oslog_fields(TR_OSLOG_INFO, "service", TR_OSLOG_F({"unit", u->name}, {"trouble", st.error.rc < 0 ? st.error.msg : NULL}),
                    "%s: %" PRIu64 " bytes on their way to being durable, for at most %" PRId64 " s", how, st.inflight_bytes, left_ns / TR_NS_PER_S);
}

/* Until everything in flight is durable and recorded, or the drain timeout has passed. Never silent for long. */
static void drain(struct unit *u)
{
    struct tr_service *s = u->service;
    int64_t end = in(s->cfg.drain_timeout_ns);
    set_unit(u, UNIT_DRAINING);
    log_drain(u, "draining", s->cfg.drain_timeout_ns);
    stop_unit(u);
    while (!join_unit(u, TR_MIN(in(DRAIN_TOLD), end + 5 * TR_NS_PER_S))) {
        if (tr_now_ns() >= end + 5 * TR_NS_PER_S) {
            tr_oslog_fields(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"unit", u->name}), "did not end within its drain timeout");
            return;
        }
        log_drain(u, "still draining", TR_MAX(end - tr_now_ns(), 0));
    }
}

/* Runs until it fails (true) or the service stops (false). */
static bool watch(struct unit *u, struct tr_err *err)
{
    struct tr_service *s = u->service;
    while (!join_unit(u, in(100 * TR_NS_PER_MS))) {
        unit_well(u);
        if (stopping(s)) {
            drain(u);
            break;
        }
    }
    struct tr_runtime_status st;
    status_unit(u, &st);
    if (st.state != TR_RT_FAILED)
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
        set_unit(u, UNIT_OPENING);
        int64_t began = tr_now_ns();
        int rc = open_unit(u, &err);
        if (rc >= 0) {
            set_unit(u, UNIT_RUNNING);
            if (!u->trouble.since_us) /* else that is told when it is well */
                tr_oslog_fields(TR_OSLOG_INFO, "service", TR_OSLOG_F({"unit", u->name}), "running");
            bool failed = watch(u, &err);
            free_unit(u);
            if (!failed)
                break;
        }
        if (stopping(s))
            break;
        bool tell = unit_failed(u, &err), ends = err.rc == TR_FENCED || (rc < 0 && !u->sink && (rc == TR_REJECT || rc == TR_FATAL));
        if (ends) {
            tr_oslog_err(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"unit", u->name}), &err);
            end_service(s, &err);
            return;
        }
        if (tr_now_ns() - began > STEADY)
            backoff = BACKOFF_MIN;
        char pause[TR_DURATION_CHARS];
        if (tell)
            tr_oslog_err(err.rc == TR_RETRY ? TR_OSLOG_WARN : TR_OSLOG_ERROR, "service",
                         TR_OSLOG_F({"unit", u->name}, {"again_in", tr_format_duration(backoff / TR_NS_PER_MS * TR_NS_PER_MS, pause)}), &err);
        rest(s, in(backoff));
        backoff = TR_MIN(backoff * 2, BACKOFF_MAX);
    }
    set_unit(u, UNIT_STOPPED);
}

/* What is tried again and again: told when it begins to fail and when it works again. rc 1: it was not tried. */
static void retried(const char *what, struct tr_oslog_episode *trouble, int rc, const struct tr_err *err)
{
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (rc < 0 && tr_oslog_failed(trouble, err))
        tr_oslog_err(TR_OSLOG_WARN, what, NULL, 0, err);
    else if (rc == TR_OK && tr_oslog_well(trouble, lasted))
        tr_oslog_write(TR_OSLOG_INFO, what, "works again after %s", lasted);
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
    struct tr_oslog_episode trouble = {0};
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
        retried("heartbeat", &trouble, stopping(s) || !up ? 1 : rc, &err);
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

struct find {
    const char *want;
    struct tr_ctl_table *ret;
    bool found;
    char near[140];
    size_t distance;
};

static void find_table(void *arg, const struct tr_ctl_table *t)
{
    struct find *f = arg;
    char name[140];
    const char *v[] = {name};
    snprintf(name, sizeof name, "%s.%s", t->ns, t->name);
    struct tr_slice want = tr_slice_str(f->want);
    if (!strcmp(name, f->want)) {
        f->found = true;
        *f->ret = *t;
        return;
    }
    size_t d = !strcmp(t->name, f->want) ? 0 : tr_nearest(want, v, 1) ? tr_edit_distance(want, tr_slice_str(name)) : SIZE_MAX;
    if (d < f->distance) {
        f->distance = d;
        memcpy(f->near, name, sizeof name);
    }
}

int tr_service_find_table(struct tr_control *c, const char *source, const char *table, struct tr_ctl_table *ret, struct tr_err *err)
{
    struct find f = {.want = table, .ret = ret, .distance = SIZE_MAX};
    int rc = c->ops->table_list(c, source, find_table, &f, err);
    if (rc < 0 || f.found)
        return rc < 0 ? rc : TR_OK;
    return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "there is no table %s among those that are captured%s%s%s", table, *f.near ? "; did you mean " : " (tailrace table list shows them, as schema.table)",
                      f.near, *f.near ? "?" : "");
}

static int resume(struct tr_service *s, const char *scope, const char *table, const struct tr_ctl_table *t, struct tr_err *err)
{
    bool known = !*scope, any = false;
    for (uint32_t i = 1; i < s->n_units; i++) {
        struct unit *u = &s->units[i];
        if (*scope && strcmp(scope, u->name) != 0)
            continue;
        known = true;
        any |= u->apply && tr_apply_resume(u->apply, table) == TR_OK;
    }
    if (any)
        return TR_OK;
    if (!known)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "there is no sink %s", scope);
    if (t->state == TR_TABLE_PAUSED)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "table %s is paused at capture, where only a new snapshot helps: tailrace table resnapshot %s (%.200s)", table, table, t->reason);
    return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "table %s is not paused in %s%s", table, *scope ? "sink " : "any sink", scope);
}

static int resnapshot(struct tr_service *s, const char *table, const struct tr_ctl_table *t, struct tr_err *err)
{
    if (!s->units[0].capture)
        return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "capture is not running");
    if (t->state == TR_TABLE_NO_SNAPSHOT)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "table %s can have no snapshot: %s", table, t->reason);
    if (tr_capture_request(s->units[0].capture, t->ns, t->name) != TR_OK)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "table %s is not captured now: it does not exist, or is not selected by the configuration", table);
    return TR_OK;
}

static int carry_out(struct tr_service *s, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    struct tr_ctl_table t = {0};
    bool is_resume = !strcmp(kind, "resume");
    if (!is_resume && strcmp(kind, "resnapshot") != 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "there is no request %s, only resume and resnapshot", kind);
    int rc = is_resume && !*table ? TR_OK : tr_service_find_table(s->cfg.control, s->cfg.source_name, table, &t, err); /* no table: all that are paused */
    if (rc < 0)
        return rc;
    tr_mutex_lock(&s->lock);
    if (stopping(s))
        rc = tr_err_set(err, TR_RETRY, TR_DOM_CDC, "tailrace is stopping");
    else
        rc = is_resume ? resume(s, scope, table, &t, err) : resnapshot(s, table, &t, err);
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
        int rc = tr_service_request(s, "control store", kind, scope, table, &why);
        if (rc == TR_RETRY) { /* not now, so it is put back */
            s->cfg.control->ops->request_put(s->cfg.control, "control store", kind, scope, table, NULL);
            return;
        }
        if (rc < 0)
            tr_oslog_err(TR_OSLOG_WARN, "service", TR_OSLOG_F({"request", kind}, {"table", table}), &why);
    }
}

static void keep_house(void *arg)
{
    struct tr_service *s = arg;
    struct tr_oslog_episode lease = {0}, retention = {0};
    int64_t renew = 0, retain = tr_now_ns() + 30 * TR_NS_PER_S; /* when catch-ups that a restart interrupted have set their pins */
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
            retried("lease", &lease, rc < 0 ? rc : TR_OK, &err);
        }
        if (now >= retain) {
            retain = now + 30 * TR_NS_PER_S;
            int rc = s->cfg.log->ops->retain(s->cfg.log, tr_wall_us(), &err);
            retried("retention", &retention, rc < 0 ? rc : TR_OK, &err);
        }
        take_requests(s);
        tr_service_watch(s);
        rest(s, in(500 * TR_NS_PER_MS));
    }
}

/* ---- life ---- */

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
    int rc = tr_service_watch_init(s, err);
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
    int rc = tr_service_set_back(s, err);
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
    if (!s->stopping_us)
        s->stopping_us = tr_wall_us();
    atomic_store(&s->stop, true);
    tr_cond_broadcast(&s->cond);
    if (s->units[0].opening)
        s->units[0].opening->ops->interrupt(s->units[0].opening);
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
