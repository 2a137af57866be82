/*
 * apply.h: one run of one sink's projection of the log, until it fails or is stopped. cdc/service.c runs it again and again.
 */
#ifndef TR_APPLY_H
#define TR_APPLY_H

#include <tailrace/runtime.h>
#include <tailrace/sink.h>

#include "changelog.h"
#include "control.h"

struct tr_metrics;
struct tr_cell;

/* How a sink takes one table. Asked once per table. */
struct tr_apply_table_mode {
    bool mirror;
    bool changelog;
};

struct tr_apply_config {
    const char *name;
    struct tr_sink *sink;
    struct tr_log *log;
    struct tr_control *control;
    struct tr_metrics *metrics;
    struct tr_runtime_tuning pipeline;
    struct tr_sink_tuning tuning;
    void (*mode)(void *arg, const char *ns, const char *name, struct tr_apply_table_mode *ret);
    void *arg;
};

/* Measured on the heartbeat: its way from the source's clock to the durable write in the sink, and the parts of that way. */
struct tr_apply_lag {
    int64_t measured_us;      /* when; 0: not yet */
    int64_t end_to_end_us, capture_us, log_us, apply_us;
};

struct tr_apply_run;

int tr_apply_open(const struct tr_apply_config *cfg, struct tr_apply_run **ret, struct tr_err *err);
int tr_apply_start(struct tr_apply_run *r, struct tr_err *err);
void tr_apply_stop(struct tr_apply_run *r);
bool tr_apply_join(struct tr_apply_run *r, int64_t deadline_ns);
void tr_apply_status(struct tr_apply_run *r, struct tr_runtime_status *ret, struct tr_apply_lag *ret_lag);
/* cb: borrowed, under the lock. */
void tr_apply_tables(struct tr_apply_run *r, void (*cb)(void *arg, const char *name, const struct tr_ctl_sink_table *t), void *arg);
int tr_apply_resume(struct tr_apply_run *r, const char *table); /* rc 1: no such table, or neither paused nor with an alarm to be noted */
struct tr_apply_run *tr_apply_free(struct tr_apply_run *r);

#endif
