/*
 * service_status.c: the state of everything as one JSON object, and the two probes. Read under the service's lock from published
 * snapshots; never waits for a unit. docs/status.md describes the fields.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "json.h"
#include "proc.h"
#include "runtime_json.h"
#include "service_internal.h"
#include "text.h"

static const char *unit_state_name(enum unit_state s)
{
    static const char *const names[] = {"stopped", "opening", "running", "draining", "failed"};
    return names[s];
}

const char *tr_service_table_state(uint8_t s)
{
    switch (s) {
#define X(n, v, t)                                                                                                     \
    case v:                                                                                                            \
        return t;
        TR_TABLE_STATES(X)
#undef X
    default:
        return NULL;
    }
}

const char *tr_service_sink_table_state(uint8_t s)
{
    switch (s) {
#define X(n, v, t)                                                                                                     \
    case v:                                                                                                            \
        return t;
        TR_SINK_TABLE_STATES(X)
#undef X
    default:
        return NULL;
    }
}

int64_t tr_service_lag_us(const struct tr_service *s, const struct unit *u, int64_t wall_us)
{
    if (!s->cfg.heartbeat_interval_ns)
        return u->lag.end_to_end_us;
    int64_t silent = wall_us - (u->lag.measured_us ? u->lag.measured_us : s->started_us) - s->cfg.heartbeat_interval_ns / 1000;
    return TR_MAX(TR_MAX(u->lag.end_to_end_us, silent), 0);
}

#define MOMENT_NS (2 * TR_NS_PER_S) /* what a retry mends at once is nobody's business */

/* The trouble that it has now, with the time it began; NULL: none. */
static const struct tr_err *trouble_of(const struct unit *u, const struct tr_runtime_status *st, int64_t *ret_since_us)
{
    const struct tr_err *e = u->err.rc < 0 ? &u->err : st->error.rc < 0 ? &st->error : NULL;
    *ret_since_us = u->trouble.since_us ? u->trouble.since_us : st->error_since_us;
    return e;
}

static void unit_status(const struct unit *u, struct tr_runtime_status *st)
{
    struct tr_apply_lag lag;
    memset(st, 0, sizeof *st);
    if (u->apply)
        tr_apply_status(u->apply, st, &lag);
    else if (u->capture)
        tr_capture_status(u->capture, st, NULL);
}

bool tr_service_unit_ready(const struct unit *u, char *ret_why, size_t cap)
{
    struct tr_runtime_status st;
    int64_t since_us;
    unit_status(u, &st);
    const struct tr_err *e = trouble_of(u, &st, &since_us);
    int64_t s = e ? TR_MAX(tr_wall_us() - since_us, 0) / 1000000 : 0;
    if (u->state != UNIT_RUNNING)
        snprintf(ret_why, cap, "%s: %s%s%s", u->name, unit_state_name(u->state), e ? ": " : "", e ? e->msg : "");
    else if (st.error.rc < 0 && tr_now_ns() - st.error_since_ns > MOMENT_NS)
        snprintf(ret_why, cap, "%s: in trouble for %" PRId64 " s: %s", u->name, s, e->msg);
    else if (!st.lanes_assigned || !st.sinks_probed)
        snprintf(ret_why, cap, "%s: %s", u->name, st.error.rc < 0 ? st.error.msg : "has not reached its sink yet");
    else
        return true;
    return false;
}

/* When an alarm was raised. */
struct raised {
    char kind[32], subject[TR_ALARM_SUBJECT_CHARS];
    int64_t since_us;
};

struct json {
    struct tr_json w;
    const struct tr_service *service;
    struct raised *raised;
    size_t n_raised, cap_raised;
    const char *sink; /* whose tables are being shown */
};

static void keep_raised(void *arg, const struct tr_ctl_alarm *a)
{
    struct json *j = arg;
    if (j->n_raised == j->cap_raised) {
        size_t cap = j->cap_raised ? j->cap_raised * 2 : 16;
        struct raised *v = tr_realloc(j->raised, cap * sizeof *v);
        if (!v) {
            j->w.rc = TR_NOMEM;
            return;
        }
        j->raised = v;
        j->cap_raised = cap;
    }
    struct raised *r = &j->raised[j->n_raised++];
    snprintf(r->kind, sizeof r->kind, "%s", a->kind);
    snprintf(r->subject, sizeof r->subject, "%s", a->subject);
    r->since_us = a->since_us;
}

static void lsn(struct json *j, const char *k, uint64_t v)
{
    char s[TR_LSN_CHARS];
    tr_json_str(&j->w, k, tr_format_lsn(v, s));
}

/* A table that stands still has an alarm, and that knows since when. */
static void since(struct json *j, enum tr_alarm a, const char *subject)
{
    for (size_t i = 0; i < j->n_raised; i++)
        if (!strcmp(j->raised[i].kind, tr_alarm_kind(a)) && !strcmp(j->raised[i].subject, subject))
            tr_json_num(&j->w, "since_us", j->raised[i].since_us);
}

static void pipeline(struct json *j, const struct unit *u, struct tr_runtime_status *st)
{
    int64_t since_us;
    unit_status(u, st);
    const struct tr_err *e = trouble_of(u, st, &since_us);
    tr_json_str(&j->w, "state", unit_state_name(u->state));
    tr_json_num(&j->w, "since_us", u->since_us);
    tr_json_num(&j->w, "restarts", (int64_t)u->restarts);
    tr_json_str(&j->w, "error", e ? e->msg : "");
    if (e)
        tr_json_num(&j->w, "error_since_us", since_us);
    tr_runtime_status_json(st, &j->w);
}

static const char *named(const char *state)
{
    return state ? state : "unknown";
}

static void table(void *arg, const struct tr_ctl_table *t)
{
    struct json *j = arg;
    char name[140], subject[TR_ALARM_SUBJECT_CHARS];
    if (!strcmp(t->ns, j->service->beat_ns) && !strcmp(t->name, j->service->beat_name))
        return; /* ours, and never snapshotted */
    snprintf(name, sizeof name, "%s.%s", t->ns, t->name);
    tr_json_open(&j->w, NULL, '{');
    tr_json_str(&j->w, "name", name);
    tr_json_str(&j->w, "state", named(tr_service_table_state(t->state)));
    if (t->state == TR_TABLE_PAUSED)
        since(j, TR_ALARM_TABLE, tr_alarm_subject(subject, NULL, name));
    tr_json_num(&j->w, "rows_read", (int64_t)t->rows_read);
    tr_json_num(&j->w, "rows_estimate", (int64_t)t->rows_estimate);
    tr_json_str(&j->w, "reason", t->reason);
    tr_json_close(&j->w, '}');
}

static void sink_table(void *arg, const char *name, const struct tr_ctl_sink_table *t)
{
    struct json *j = arg;
    char subject[TR_ALARM_SUBJECT_CHARS];
    tr_json_open(&j->w, NULL, '{');
    tr_json_str(&j->w, "name", name);
    tr_json_str(&j->w, "state", named(tr_service_sink_table_state(t->state)));
    if (t->state == TR_ST_PAUSED)
        since(j, TR_ALARM_TABLE, tr_alarm_subject(subject, j->sink, name));
    else if (t->state == TR_ST_GAPPED)
        since(j, TR_ALARM_GAPPED, j->sink);
    tr_json_str(&j->w, "reason", t->reason);
    tr_json_close(&j->w, '}');
}

static void alarm_(void *arg, const struct tr_ctl_alarm *a)
{
    struct json *j = arg;
    tr_json_open(&j->w, NULL, '{');
    tr_json_str(&j->w, "kind", a->kind);
    tr_json_str(&j->w, "subject", a->subject);
    tr_json_str(&j->w, "text", a->text);
    tr_json_num(&j->w, "since_us", a->since_us);
    tr_json_close(&j->w, '}');
}

int tr_service_status(struct tr_service *s, struct tr_buf *out)
{
    struct json js = {.w = {.out = out}, .service = s}, *j = &js;
    struct tr_control *c = s->cfg.control;
    struct tr_runtime_status st;
    struct tr_ctl_source src = {0};
    struct tr_log_stats log = {0};
    c->ops->source_get(c, s->cfg.source_name, &src, NULL);
    s->cfg.log->ops->stats(s->cfg.log, 0, &log, NULL);
    c->ops->alarm_list(c, keep_raised, j, NULL);
    int64_t now_us = tr_wall_us();
    tr_json_open(&j->w, NULL, '{');
    tr_json_num(&j->w, "now_us", now_us);
    tr_json_num(&j->w, "started_us", s->started_us);
    tr_json_num(&j->w, "rss_bytes", (int64_t)tr_proc_rss_bytes());
    tr_mutex_lock(&s->lock);
    tr_json_str(&j->w, "state", s->stopping_us ? "draining" : "running");
    if (s->stopping_us)
        tr_json_num(&j->w, "draining_since_us", s->stopping_us);
    tr_json_open(&j->w, "capture", '{');
    pipeline(j, &s->units[0], &st);
    uint64_t pos = 0;
    if (s->units[0].capture)
        tr_capture_status(s->units[0].capture, &st, &pos);
    tr_json_str(&j->w, "source", s->cfg.source_name);
    tr_json_num(&j->w, "epoch", src.epoch);
    lsn(j, "stream_lsn", pos);
    lsn(j, "confirmed_lsn", src.confirm_lsn);
    if (s->slot.exists) {
        tr_json_str(&j->w, "slot_wal_status", s->slot.wal_status);
        tr_json_num(&j->w, "slot_retained_bytes", s->slot.retained_bytes);
        if (s->slot.headroom_bytes != INT64_MAX)
            tr_json_num(&j->w, "slot_headroom_bytes", s->slot.headroom_bytes);
    }
    tr_json_open(&j->w, "tables", '[');
    tr_mutex_unlock(&s->lock);
    c->ops->table_list(c, s->cfg.source_name, table, j, NULL);
    tr_json_close(&j->w, ']');
    tr_json_close(&j->w, '}');
    tr_json_open(&j->w, "log", '{');
    tr_json_num(&j->w, "first_offset", (int64_t)log.first_offset);
    tr_json_num(&j->w, "durable_offset", (int64_t)log.durable_offset);
    tr_json_num(&j->w, "bytes", (int64_t)log.bytes);
    tr_json_num(&j->w, "segments", (int64_t)log.segments);
    tr_json_close(&j->w, '}');
    tr_json_open(&j->w, "sinks", '[');
    for (uint32_t i = 1; i < s->n_units; i++) {
        struct unit *u = &s->units[i];
        uint64_t recorded = 0;
        c->ops->offset_get(c, u->name, 0, &recorded, NULL);
        tr_mutex_lock(&s->lock);
        tr_json_open(&j->w, NULL, '{');
        tr_json_str(&j->w, "name", u->name);
        tr_json_str(&j->w, "type", u->sink->type);
        pipeline(j, u, &st);
        int64_t offset = u->apply ? st.watermark + 1 : (int64_t)recorded;
        tr_json_num(&j->w, "offset", offset);
        tr_json_num(&j->w, "behind", (int64_t)log.durable_offset - offset);
        struct tr_apply_lag lag = u->lag;
        if (lag.measured_us) {
            tr_json_open(&j->w, "lag_us", '{');
            tr_json_num(&j->w, "end_to_end", tr_service_lag_us(s, u, now_us));
            tr_json_num(&j->w, "last", lag.end_to_end_us);
            tr_json_num(&j->w, "capture", lag.capture_us);
            tr_json_num(&j->w, "log", lag.log_us);
            tr_json_num(&j->w, "apply", lag.apply_us);
            tr_json_num(&j->w, "measured_us", lag.measured_us);
            tr_json_close(&j->w, '}');
        }
        tr_json_num(&j->w, "freshness_target_us", u->sink->freshness_ns / 1000);
        tr_json_open(&j->w, "tables", '[');
        j->sink = u->name;
        if (u->apply)
            tr_apply_tables(u->apply, sink_table, j);
        tr_json_close(&j->w, ']');
        tr_json_close(&j->w, '}');
        tr_mutex_unlock(&s->lock);
    }
    tr_json_close(&j->w, ']');
    tr_json_open(&j->w, "alarms", '[');
    c->ops->alarm_list(c, alarm_, j, NULL);
    tr_json_close(&j->w, ']');
    tr_json_close(&j->w, '}');
    tr_free(js.raised);
    return js.w.rc < 0 ? js.w.rc : tr_buf_append_str(out, "\n");
}

#define HEARTBEAT_FRESH (10 * TR_NS_PER_S)

bool tr_service_live(struct tr_service *s, char *ret_reason, size_t cap)
{
    bool ok = true;
    int64_t now = tr_now_ns();
    snprintf(ret_reason, cap, "ok");
    tr_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_units && ok; i++) {
        struct unit *u = &s->units[i];
        struct tr_runtime_status st = {0};
        struct tr_apply_lag lag;
        if (u->state != UNIT_RUNNING)
            continue; /* being opened again, visibly: a restart of the process would not help */
        if (u->apply)
            tr_apply_status(u->apply, &st, &lag);
        else if (u->capture)
            tr_capture_status(u->capture, &st, NULL);
        else
            continue;
        if (st.state == TR_RT_RUNNING && st.poll_heartbeat_ns && now - st.poll_heartbeat_ns > HEARTBEAT_FRESH) {
            snprintf(ret_reason, cap, "%s: its loop has not turned for %" PRId64 " s", u->name, (now - st.poll_heartbeat_ns) / TR_NS_PER_S);
            ok = false;
        } else if (st.watermark_stalled_ns > s->cfg.stalled_fail_after_ns) {
            snprintf(ret_reason, cap, "%s: its position has been stuck behind a failed batch for %" PRId64 " s", u->name, st.watermark_stalled_ns / TR_NS_PER_S);
            ok = false;
        }
    }
    tr_mutex_unlock(&s->lock);
    return ok;
}

bool tr_service_ready(struct tr_service *s, char *ret_reason, size_t cap)
{
    size_t n = 0;
    char why[700];
    snprintf(ret_reason, cap, "ok");
    tr_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_units; i++)
        if (!tr_service_unit_ready(&s->units[i], why, sizeof why) && n < cap)
            n += (size_t)snprintf(ret_reason + n, cap - n, "%s%s", n ? "\n" : "", why);
    tr_mutex_unlock(&s->lock);
    return n == 0;
}
