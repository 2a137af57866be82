/*
 * service_watch.c: what the house looks at, twice a second: lag and headroom, which raise their alarms here; and, for the gauges, whether the
 * units do their work, the tables by state and the alarms by kind. A gauge of a sink's tables keeps its value while that sink is being
 * opened again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/metric.h>

#include "check.h"
#include "service_internal.h"

#define COUNT_EVERY (2 * TR_NS_PER_S) /* these ask the control store */

/* Over its freshness target for five minutes: an alarm. One that a run before this one raised stands until it is measured again. */
static void watch_lag(struct tr_service *s)
{
    int64_t now = tr_now_ns(), wall = tr_wall_us();
    for (uint32_t i = 1; i < s->n_units; i++) {
        struct unit *u = &s->units[i];
        struct tr_apply_lag lag = {0};
        struct tr_runtime_status st;
        tr_mutex_lock(&s->lock);
        if (u->apply)
            tr_apply_status(u->apply, &st, &lag);
        if (lag.measured_us)
            u->lag = lag;
        int64_t us = tr_service_lag_us(s, u, wall);
        bool over = us > u->sink->freshness_ns / 1000, was = u->lag_alarm;
        if (!over)
            u->over_since_ns = 0;
        else if (!u->over_since_ns)
            u->over_since_ns = now;
        bool alarm = over ? was || now - u->over_since_ns > 300 * TR_NS_PER_S : was && !u->lag.measured_us;
        u->lag_alarm = alarm;
        tr_mutex_unlock(&s->lock);
        tr_gauge_set(u->m_lag, us);
        char text[160];
        snprintf(text, sizeof text, "end-to-end lag is %" PRId64 " ms, over its target for five minutes", us / 1000);
        if (alarm != was)
            tr_control_alarm(s->cfg.control, TR_ALARM_LAG, u->name, alarm ? text : NULL);
    }
}

static void watch_headroom(struct tr_service *s)
{
    tr_mutex_lock(&s->lock);
    struct tr_cdc_slot slot = s->slot;
    tr_mutex_unlock(&s->lock);
    bool alarm = slot.exists ? slot.headroom_bytes != INT64_MAX && slot.headroom_bytes < slot.retained_bytes : s->headroom_alarm;
    char text[200];
    snprintf(text, sizeof text, "the slot holds back %" PRId64 " MiB of WAL and has %" PRId64 " MiB left before the server gives up on it", slot.retained_bytes >> 20,
             slot.headroom_bytes >> 20);
    if (alarm != s->headroom_alarm)
        tr_control_alarm(s->cfg.control, TR_ALARM_HEADROOM, s->cfg.source_name, alarm ? text : NULL);
    s->headroom_alarm = alarm;
}

/* ---- counts ---- */

struct counts {
    const struct tr_service *service;
    int64_t v[SERVICE_STATES_MAX];
};

#define X(n, v, t) _Static_assert((v) < SERVICE_STATES_MAX, "no gauge for the state " t);
TR_TABLE_STATES(X)
TR_SINK_TABLE_STATES(X)
#undef X

static void count(struct counts *c, uint8_t state)
{
    if (state < SERVICE_STATES_MAX) /* one that another release has written may not be */
        c->v[state]++;
}

static void count_table(void *arg, const struct tr_ctl_table *t)
{
    struct counts *c = arg;
    if (strcmp(t->ns, c->service->beat_ns) != 0 || strcmp(t->name, c->service->beat_name) != 0)
        count(c, t->state);
}

static void count_sink_table(void *arg, const char *name, const struct tr_ctl_sink_table *t)
{
    (void)name;
    count(arg, t->state);
}

static void show_counts(const struct unit *u, const struct counts *c)
{
    for (int i = 0; i < SERVICE_STATES_MAX; i++)
        tr_gauge_set(u->m_tables[i], c->v[i]);
}

static void count_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    int64_t *n = arg;
    uint32_t i = 0;
    while (i < TR_ALARM_COUNT && strcmp(tr_alarm_kind((enum tr_alarm)i), a->kind) != 0)
        i++;
    n[i]++;
}

/* A source that is not bound yet begins with the first: an alert on changes does not hear of that. */
static void show_epoch(struct tr_service *s)
{
    struct tr_control *c = s->cfg.control;
    struct tr_ctl_source src;
    if (c->ops->source_get(c, s->cfg.source_name, &src, NULL) >= 0)
        tr_gauge_set(s->m_epoch, TR_MAX(src.epoch, 1));
}

static void watch_counts(struct tr_service *s)
{
    int64_t now = tr_now_ns();
    if (now < s->counted_ns)
        return;
    s->counted_ns = now + COUNT_EVERY;
    struct tr_control *c = s->cfg.control;
    struct counts n = {.service = s};
    show_epoch(s);
    if (c->ops->table_list(c, s->cfg.source_name, count_table, &n, NULL) >= 0)
        show_counts(&s->units[0], &n);
    for (uint32_t i = 1; i < s->n_units; i++) {
        n = (struct counts){.service = s};
        tr_mutex_lock(&s->lock);
        bool there = s->units[i].apply != NULL;
        if (there)
            tr_apply_tables(s->units[i].apply, count_sink_table, &n);
        tr_mutex_unlock(&s->lock);
        if (there)
            show_counts(&s->units[i], &n);
    }
    int64_t alarms[SERVICE_KINDS] = {0};
    if (c->ops->alarm_list(c, count_alarm, alarms, NULL) >= 0)
        for (uint32_t i = 0; i < SERVICE_KINDS; i++)
            tr_gauge_set(s->m_alarms[i], alarms[i]);
}

static void watch_units(struct tr_service *s)
{
    char why[8];
    for (uint32_t i = 0; i < s->n_units; i++) {
        tr_mutex_lock(&s->lock);
        bool up = tr_service_unit_ready(&s->units[i], why, sizeof why);
        tr_mutex_unlock(&s->lock);
        tr_gauge_set(s->units[i].m_up, up);
    }
}

void tr_service_watch(struct tr_service *s)
{
    watch_lag(s);
    watch_headroom(s);
    watch_units(s);
    watch_counts(s);
}

/* ---- the beginning ---- */

static bool is(const struct tr_ctl_alarm *a, enum tr_alarm kind, const char *subject)
{
    return !strcmp(a->kind, tr_alarm_kind(kind)) && !strcmp(a->subject, subject);
}

/* Raised before, and not over yet as far as anybody knows. */
static void take_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    struct tr_service *s = arg;
    if (is(a, TR_ALARM_HEADROOM, s->cfg.source_name))
        s->headroom_alarm = true;
    for (uint32_t i = 1; i < s->n_units; i++)
        if (is(a, TR_ALARM_LAG, s->units[i].name))
            s->units[i].lag_alarm = true;
}

static int gauge(struct tr_service *s, const char *name, const char *help, const char *unit, double scale, struct tr_family **ret, struct tr_err *err)
{
    struct tr_metric_def d = {.name = name, .help = help, .unit = unit, .type = TR_GAUGE, .scale = scale};
    return tr_metrics_family(s->cfg.metrics, &d, ret, err);
}

static int table_cells(struct tr_family *f, struct unit *u, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint8_t i = 0; i < SERVICE_STATES_MAX && rc >= 0; i++) {
        const char *state = u->sink ? tr_service_sink_table_state(i) : tr_service_table_state(i);
        struct tr_label l[2] = {{"pipeline", u->name}, {"state", state}};
        if (state)
            rc = tr_family_cell(f, l, 2, &u->m_tables[i], err);
    }
    return rc;
}

int tr_service_watch_init(struct tr_service *s, struct tr_err *err)
{
    struct tr_family *lag, *retained, *headroom, *epoch, *up, *restarts, *tables, *alarms;
    struct tr_metric_def counter = {.name = "tailrace_pipeline_restarts_total", .help = "How often it failed and was opened again.", .type = TR_COUNTER};
    struct tr_label src = {"source", s->cfg.source_name};
    int rc = gauge(s, "tailrace_end_to_end_lag_seconds", "Heartbeat: source clock to durable in the sink.", "seconds", 1e-6, &lag, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_slot_retained_bytes", "WAL the source holds back for our slot.", "bytes", 0, &retained, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_slot_headroom_bytes", "WAL the source will still keep for our slot; -1: unbounded.", "bytes", 0, &headroom, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_source_epoch", "One more after each break, at which every table is snapshotted anew.", NULL, 0, &epoch, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_pipeline_up", "1 while it runs, has reached its peer and no trouble lasts.", NULL, 0, &up, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_tables", "Tables by state, at capture and in each sink.", NULL, 0, &tables, err);
    if (rc >= 0)
        rc = gauge(s, "tailrace_alarms", "Alarms raised now.", NULL, 0, &alarms, err);
    if (rc >= 0)
        rc = tr_metrics_family(s->cfg.metrics, &counter, &restarts, err);
    if (rc >= 0)
        rc = tr_family_cell(retained, &src, 1, &s->m_retained, err);
    if (rc >= 0)
        rc = tr_family_cell(headroom, &src, 1, &s->m_headroom, err);
    if (rc >= 0)
        rc = tr_family_cell(epoch, &src, 1, &s->m_epoch, err);
    for (uint32_t i = 0; i < s->n_units && rc >= 0; i++) {
        struct unit *u = &s->units[i];
        struct tr_label sink = {"sink", u->name}, pipeline = {"pipeline", u->name};
        if (u->sink)
            rc = tr_family_cell(lag, &sink, 1, &u->m_lag, err);
        if (rc >= 0)
            rc = tr_family_cell(up, &pipeline, 1, &u->m_up, err);
        if (rc >= 0)
            rc = tr_family_cell(restarts, &pipeline, 1, &u->m_restarts, err);
        if (rc >= 0)
            rc = table_cells(tables, u, err);
    }
    for (uint32_t i = 0; i < SERVICE_KINDS && rc >= 0; i++) { /* there from the start, so that an alert on them never lacks its series */
        struct tr_label l = {"kind", i < TR_ALARM_COUNT ? tr_alarm_kind((enum tr_alarm)i) : "other"};
        rc = tr_family_cell(alarms, &l, 1, &s->m_alarms[i], err);
    }
    if (rc >= 0)
        show_epoch(s);
    return rc < 0 ? rc : s->cfg.control->ops->alarm_list(s->cfg.control, take_alarm, s, err);
}
