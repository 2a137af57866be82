/*
 * service.h: the running platform: one source's capture and every sink's apply, each restarted with backoff when it fails; leases,
 * heartbeat, retention, operator requests and alarms.
 *
 * Owner: the composition root, which also owns control store, log, source and sinks and closes them after the service is freed.
 * Threads: new, start, stop, join and free are one thread's; status and the requests may come from any.
 *
 * Failure scope. A unit (capture, or one sink) that fails is started again from its committed position, for ever, visibly. The service
 * itself ends, with an error, only when it lost its lease, or when capture cannot resume for a reason that waiting does not cure (REJECT,
 * FATAL at open: a foreign slot, a missing privilege).
 */
#ifndef TR_SERVICE_H
#define TR_SERVICE_H

#include <tailrace/runtime.h>
#include <tailrace/sink.h>

#include "changelog.h"
#include "cdc_source.h"
#include "control.h"

struct tr_service;
struct tr_metrics;

struct tr_service_sink {
    const char *name;
    const char *type;
    struct tr_sink *sink;
    struct tr_sink_tuning tuning;
    uint64_t max_inflight_bytes;
    struct tr_strv tables, exclude; /* patterns; no tables: all */
    struct tr_strv changelog;       /* patterns of tables that also get an append-only history */
    int64_t freshness_ns;           /* declared target of end-to-end lag */
};

/* Does this sink mirror such a table, if it has a key, and does it keep a changelog of it? By its patterns alone. */
void tr_service_sink_takes(const struct tr_service_sink *k, const char *ns, const char *name, bool *ret_mirror, bool *ret_changelog);

struct tr_service_config {
    const char *source_name;
    struct tr_cdc *cdc;
    struct tr_control *control;
    uint64_t lease_token;           /* taken by the caller under TR_SERVICE_LEASE */
    struct tr_log *log;
    struct tr_metrics *metrics;
    int64_t heartbeat_interval_ns;  /* 0: none */
    int64_t commit_interval_ns, drain_timeout_ns, stalled_fail_after_ns;
    uint64_t capture_inflight_bytes;
    uint32_t snapshot_workers, snapshot_tables_max;
    uint64_t chunk_bytes, chunk_rows_max;
    const struct tr_service_sink *sinks;
    uint32_t n_sinks;
};

#define TR_SERVICE_LEASE "tailrace"
#define TR_SERVICE_LEASE_TTL_MS 15000

int tr_service_new(const struct tr_service_config *cfg, struct tr_service **ret, struct tr_err *err);
int tr_service_start(struct tr_service *s, struct tr_err *err);
void tr_service_stop(struct tr_service *s);                     /* begins the drain; signal handlers use a flag, not this */
bool tr_service_ended(struct tr_service *s, struct tr_err *err); /* err: why, when it ended by itself (rc < 0) */
/* Waits for the drain; then everything is down, or was abandoned loudly. */
void tr_service_join(struct tr_service *s);
struct tr_service *tr_service_free(struct tr_service *s);

/* The state of everything as one JSON object (docs/status.md). */
int tr_service_status(struct tr_service *s, struct tr_buf *out);
/* live: heartbeats of all loops are fresh and no watermark is stuck. ready: every unit runs, has reached its peer, and no trouble lasts; in other
 * words, changes flow from the source into every sink. The reasons in words otherwise, for ready one a line. */
bool tr_service_live(struct tr_service *s, char *ret_reason, size_t cap);
bool tr_service_ready(struct tr_service *s, char *ret_reason, size_t cap);
/* Operator actions: kind "resume" (scope: sink name or ""), "resnapshot". The audit row is written either way. REJECT: refused, with the
 * reason; RETRY: not now. */
int tr_service_request(struct tr_service *s, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err);
/* A table by its name, schema.table, among those that this source was ever asked for. REJECT: there is none; the message has the nearest. */
int tr_service_find_table(struct tr_control *c, const char *source, const char *table, struct tr_ctl_table *ret, struct tr_err *err);

#endif
