/* service_internal.h: shared by service.c (life) and service_status.c (what it shows of itself). */
#ifndef TR_SERVICE_INTERNAL_H
#define TR_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include "apply.h"
#include "capture.h"
#include "service.h"
#include "thread.h"

enum unit_state { UNIT_STOPPED, UNIT_OPENING, UNIT_RUNNING, UNIT_DRAINING, UNIT_FAILED };

struct unit {
    struct tr_service *service;
    const char *name;
    const struct tr_service_sink *sink; /* NULL: capture */
    struct tr_thread *thread;
    /* under the service's lock */
    enum unit_state state;
    struct tr_err err;
    int64_t since_us;
    struct tr_capture_run *capture;
    struct tr_apply_run *apply;
    struct tr_apply_lag lag;
    int64_t over_since_ns;
    bool lag_alarm;
    uint64_t restarts;
    struct tr_cell *m_lag;
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
    struct tr_cell *m_retained, *m_headroom;
};

#endif
