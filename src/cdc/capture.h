/*
 * capture.h: one run of capture: from a source to the log, until it fails or is stopped. cdc/service.c runs it again and again.
 *
 * open brings source, slot, publication, control store and log into agreement before anything flows (blocking, RETRY when something is
 * away), start sets the pipeline and the snapshot going, stop and join end them.
 */
#ifndef TR_CAPTURE_H
#define TR_CAPTURE_H

#include <tailrace/runtime.h>

#include "cdc_internal.h"

struct tr_metrics;

struct tr_capture_config {
    const char *source_name;
    const char *heartbeat_ns, *heartbeat_name;
    struct tr_cdc *cdc;
    struct tr_control *control;
    struct tr_log *log;
    struct tr_metrics *metrics;
    struct tr_snapshot_tuning snapshot;
    struct tr_runtime_tuning pipeline;
    struct tr_sink_tuning sink;
    bool (*has_changelog)(void *arg, const char *ns, const char *name); /* does any sink keep a changelog of it? For what is said of a table without a key */
    /* The session that an open works with, and NULL when it is through: for whoever wants to stop meanwhile to interrupt (making a slot waits for
     * all open transactions of the server). False: do not begin. */
    bool (*opening)(void *arg, struct tr_cdc_session *s);
    void *arg;
};

struct tr_capture_run;

int tr_capture_open(const struct tr_capture_config *cfg, struct tr_capture_run **ret, struct tr_err *err);
int tr_capture_start(struct tr_capture_run *r, struct tr_err *err);
void tr_capture_stop(struct tr_capture_run *r);
bool tr_capture_join(struct tr_capture_run *r, int64_t deadline_ns);
void tr_capture_status(struct tr_capture_run *r, struct tr_runtime_status *ret, uint64_t *ret_stream_pos);
int tr_capture_request(struct tr_capture_run *r, const char *ns, const char *name); /* a new snapshot; rc 1: unknown table */
struct tr_capture_run *tr_capture_free(struct tr_capture_run *r);

#endif
