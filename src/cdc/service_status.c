/*
 * service_status.c: the state of everything as one JSON object, and the two probes. Read under the service's lock from published
 * snapshots; never waits for a unit. docs/status.md describes the fields.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "clock.h"
#include "proc.h"
#include "service_internal.h"
#include "text.h"

static const char *unit_state_name(enum unit_state s)
{
    static const char *const names[] = {"stopped", "opening", "running", "draining", "failed"};
    return names[s];
}

static const char *table_state_name(uint8_t s)
{
    switch (s) {
#define X(n, v, t)                                                                                                     \
    case v:                                                                                                            \
        return t;
        TR_TABLE_STATES(X)
#undef X
    default:
        return "unknown";
    }
}

static const char *sink_table_state_name(uint8_t s)
{
    switch (s) {
#define X(n, v, t)                                                                                                     \
    case v:                                                                                                            \
        return t;
        TR_SINK_TABLE_STATES(X)
#undef X
    default:
        return "unknown";
    }
}

struct json {
    const struct tr_service *service;
    struct tr_buf *out;
    int rc;
    bool comma;
};

static void raw(struct json *j, const char *s)
{
    if (j->rc >= 0)
        j->rc = tr_buf_append_str(j->out, s);
}

static void key(struct json *j, const char *k)
{
    if (j->comma)
        raw(j, ", ");
    raw(j, "\"");
    raw(j, k);
    raw(j, "\": ");
    j->comma = true;
}

static void open_(struct json *j, const char *k, const char *bracket)
{
    if (k)
        key(j, k);
    else if (j->comma)
        raw(j, ", ");
    raw(j, bracket);
    j->comma = false;
}

static void close_(struct json *j, const char *bracket)
{
    raw(j, bracket);
    j->comma = true;
}

static void str(struct json *j, const char *k, const char *v)
{
    key(j, k);
    if (j->rc >= 0)
        j->rc = tr_json_string(j->out, tr_slice_str(v));
}

static void num(struct json *j, const char *k, int64_t v)
{
    key(j, k);
    if (j->rc >= 0)
        j->rc = tr_buf_printf(j->out, "%" PRId64, v);
}

static void boolean(struct json *j, const char *k, bool v)
{
    key(j, k);
    raw(j, v ? "true" : "false");
}

static void lsn(struct json *j, const char *k, uint64_t v)
{
    char s[TR_LSN_CHARS];
    str(j, k, tr_format_lsn(v, s));
}

static void pipeline(struct json *j, const struct unit *u, struct tr_pipeline_status *st)
{
    memset(st, 0, sizeof *st);
    struct tr_apply_lag lag;
    if (u->apply)
        tr_apply_status(u->apply, st, &lag);
    else if (u->capture)
        tr_capture_status(u->capture, st, NULL);
    str(j, "state", unit_state_name(u->state));
    num(j, "since_us", u->since_us);
    num(j, "restarts", (int64_t)u->restarts);
    const struct tr_err *e = u->err.rc < 0 ? &u->err : &st->error;
    str(j, "error", e->rc < 0 ? e->msg : "");
    num(j, "records_in", (int64_t)st->records_in);
    num(j, "rows_out", (int64_t)st->rows_out);
    num(j, "bytes_out", (int64_t)st->bytes_out);
    num(j, "batches", (int64_t)st->batches);
    num(j, "retries", (int64_t)st->retries);
    num(j, "inflight_bytes", (int64_t)st->inflight_bytes);
    boolean(j, "blocked", st->blocked);
}

static void table(void *arg, const struct tr_ctl_table *t)
{
    struct json *j = arg;
    char name[140];
    if (!strcmp(t->ns, j->service->beat_ns) && !strcmp(t->name, j->service->beat_name))
        return; /* ours, and never snapshotted */
    snprintf(name, sizeof name, "%s.%s", t->ns, t->name);
    open_(j, NULL, "{");
    str(j, "name", name);
    str(j, "state", table_state_name(t->state));
    num(j, "rows_read", (int64_t)t->rows_read);
    num(j, "rows_estimate", (int64_t)t->rows_estimate);
    str(j, "reason", t->reason);
    close_(j, "}");
}

static void sink_table(void *arg, const char *name, const struct tr_ctl_sink_table *t)
{
    struct json *j = arg;
    open_(j, NULL, "{");
    str(j, "name", name);
    str(j, "state", sink_table_state_name(t->state));
    str(j, "reason", t->reason);
    close_(j, "}");
}

static void alarm_(void *arg, const struct tr_ctl_alarm *a)
{
    struct json *j = arg;
    open_(j, NULL, "{");
    str(j, "kind", a->kind);
    str(j, "subject", a->subject);
    str(j, "text", a->text);
    num(j, "since_us", a->since_us);
    close_(j, "}");
}

int tr_service_status(struct tr_service *s, struct tr_buf *out)
{
    struct json js = {.service = s, .out = out}, *j = &js;
    struct tr_control *c = s->cfg.control;
    struct tr_pipeline_status st;
    struct tr_ctl_source src = {0};
    struct tr_log_stats log = {0};
    c->ops->source_get(c, s->cfg.source_name, &src, NULL);
    s->cfg.log->ops->stats(s->cfg.log, 0, &log, NULL);
    open_(j, NULL, "{");
    num(j, "now_us", tr_wall_us());
    num(j, "started_us", s->started_us);
    num(j, "rss_bytes", (int64_t)tr_proc_rss_bytes());
    tr_mutex_lock(&s->lock);
    open_(j, "capture", "{");
    pipeline(j, &s->units[0], &st);
    uint64_t pos = 0;
    if (s->units[0].capture)
        tr_capture_status(s->units[0].capture, &st, &pos);
    str(j, "source", s->cfg.source_name);
    num(j, "epoch", src.epoch);
    lsn(j, "stream_lsn", pos);
    lsn(j, "confirmed_lsn", src.confirm_lsn);
    num(j, "slot_retained_bytes", s->slot.retained_bytes);
    if (s->slot.exists && s->slot.headroom_bytes != INT64_MAX)
        num(j, "slot_headroom_bytes", s->slot.headroom_bytes);
    open_(j, "tables", "[");
    tr_mutex_unlock(&s->lock);
    c->ops->table_list(c, s->cfg.source_name, table, j, NULL);
    close_(j, "]");
    close_(j, "}");
    open_(j, "log", "{");
    num(j, "first_offset", (int64_t)log.first_offset);
    num(j, "durable_offset", (int64_t)log.durable_offset);
    num(j, "bytes", (int64_t)log.bytes);
    num(j, "segments", (int64_t)log.segments);
    close_(j, "}");
    open_(j, "sinks", "[");
    tr_mutex_lock(&s->lock);
    for (uint32_t i = 1; i < s->n_units; i++) {
        struct unit *u = &s->units[i];
        open_(j, NULL, "{");
        str(j, "name", u->name);
        str(j, "type", u->sink->type);
        pipeline(j, u, &st);
        num(j, "offset", st.watermark + 1);
        num(j, "behind", (int64_t)log.durable_offset - (st.watermark + 1));
        struct tr_apply_lag lag = u->lag;
        if (lag.measured_us) {
            open_(j, "lag_us", "{");
            num(j, "end_to_end", lag.end_to_end_us);
            num(j, "capture", lag.capture_us);
            num(j, "log", lag.log_us);
            num(j, "apply", lag.apply_us);
            num(j, "measured_us", lag.measured_us);
            close_(j, "}");
        }
        num(j, "freshness_target_us", u->sink->freshness_ns / 1000);
        open_(j, "tables", "[");
        if (u->apply)
            tr_apply_tables(u->apply, sink_table, j);
        close_(j, "]");
        close_(j, "}");
    }
    tr_mutex_unlock(&s->lock);
    close_(j, "]");
    open_(j, "alarms", "[");
    c->ops->alarm_list(c, alarm_, j, NULL);
    close_(j, "]");
    close_(j, "}\n");
    return js.rc < 0 ? js.rc : TR_OK;
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
        struct tr_pipeline_status st = {0};
        struct tr_apply_lag lag;
        if (u->state != UNIT_RUNNING)
            continue; /* being opened again, visibly: a restart of the process would not help */
        if (u->apply)
            tr_apply_status(u->apply, &st, &lag);
        else if (u->capture)
            tr_capture_status(u->capture, &st, NULL);
        else
            continue;
        if (st.state == TR_PL_RUNNING && st.poll_heartbeat_ns && now - st.poll_heartbeat_ns > HEARTBEAT_FRESH) {
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
    bool ok = true;
    snprintf(ret_reason, cap, "ok");
    tr_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_units && ok; i++) {
        struct unit *u = &s->units[i];
        struct tr_pipeline_status st = {0};
        struct tr_apply_lag lag;
        if (u->apply)
            tr_apply_status(u->apply, &st, &lag);
        else if (u->capture)
            tr_capture_status(u->capture, &st, NULL);
        ok = u->state == UNIT_RUNNING && st.lanes_assigned && st.sinks_probed;
        if (!ok)
            snprintf(ret_reason, cap, "%s: %s%s%s", u->name, unit_state_name(u->state), u->err.rc < 0 ? ": " : "", u->err.rc < 0 ? u->err.msg : "");
    }
    tr_mutex_unlock(&s->lock);
    return ok;
}
