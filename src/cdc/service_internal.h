/* service_internal.h: shared by service.c (life), service_setback.c (a log that lost its end), service_watch.c (what the house looks at) and service_status.c (what it shows of itself). */
#ifndef TR_SERVICE_INTERNAL_H
#define TR_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include <tailrace/oslog.h>

#include "apply.h"
#include "capture.h"
#include "service.h"
#include "thread.h"

enum unit_state { UNIT_STOPPED, UNIT_OPENING, UNIT_RUNNING, UNIT_DRAINING, UNIT_FAILED };

enum {
    SERVICE_STATES_MAX = 8,             /* numbers of persisted states are below */
    SERVICE_KINDS = TR_ALARM_COUNT + 1, /* of alarms; the last: those of a kind that only another release knows */
};

struct unit {
    struct tr_service *service;
    const char *name;
    const struct tr_service_sink *sink; /* NULL: capture */
    struct tr_thread *thread;
    /* under the service's lock */
    enum unit_state state;
    struct tr_err err;
    int64_t since_us;
    struct tr_cdc_session *opening; /* of the capture that is being opened */
    struct tr_capture_run *capture;
    struct tr_apply_run *apply;
    struct tr_apply_lag lag;
    int64_t over_since_ns;
    bool lag_alarm;
    uint64_t restarts;
    struct tr_oslog_episode trouble; /* since it failed, until it is ready again */
    struct tr_cell *m_lag, *m_up, *m_restarts;
    struct tr_cell *m_tables[SERVICE_STATES_MAX];
};

struct tr_service {
    struct tr_service_config cfg;
    const char *beat_ns, *beat_name; /* the source's heartbeat table */
    struct tr_mutex lock;
    struct tr_cond cond;
    _Atomic(bool) stop;
    bool ended;                /* lock */
    struct tr_err end_err;     /* lock */
    struct unit *units;        /* [0] capture, then the sinks */
    uint32_t n_units;
    struct tr_thread *house, *pulse;
    struct tr_cdc_session *session; /* the pulse's */
    struct tr_cdc_slot slot;   /* lock */
    bool headroom_alarm;
    int64_t started_us;
    int64_t stopping_us;       /* lock: when the drain began; 0: not yet */
    struct tr_cell *m_retained, *m_headroom, *m_epoch;
    struct tr_cell *m_alarms[SERVICE_KINDS];
    int64_t counted_ns;        /* the house's */
};

/* service_watch.c: metrics, and one round of looking. Lag and headroom raise their alarms there. */
int tr_service_watch_init(struct tr_service *s, struct tr_err *err);
void tr_service_watch(struct tr_service *s);

/* service_setback.c: before anything is appended. */
int tr_service_set_back(struct tr_service *s, struct tr_err *err);

/* service_status.c. Both under the lock. */
/* End-to-end lag now: what the last heartbeat measured, and at least the time since one should have come through. */
int64_t tr_service_lag_us(const struct tr_service *s, const struct unit *u, int64_t wall_us);
/* Does it do its work? It runs, has its lanes, has reached its peer, and no trouble has lasted. In words otherwise. */
bool tr_service_unit_ready(const struct unit *u, char *ret_why, size_t cap);
/* Names of the persisted states; NULL: there is no such state. */
const char *tr_service_table_state(uint8_t state);
const char *tr_service_sink_table_state(uint8_t state);

#endif
