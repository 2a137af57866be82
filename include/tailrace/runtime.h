/*
 * runtime.h: the runtime that moves records from one source through a chain into one or more sinks, at least once.
 *
 * Threads of one pipeline (each body is `step(now) -> next wake`):
 *   controller        source events, checkpointer, commit ticks, drain, health
 *   pipeline 0 … N-1  poll, chain, encode; one wait for all lanes of the thread and its waker
 *   shard worker      per sink and shard: batcher, dispatcher, breaker, timers
 *   writer            per sink, shard and in-flight slot: one write at a time (pipelined sinks: submit + reap)
 *   target            per sink: bind, swap, probe
 *
 * Failure scope: FATAL ends the pipeline (state FAILED, the error is kept); the owner restarts it with backoff from its
 * committed positions. Sinks that are slow or away are retried for ever, visibly. Only a *failed* batch stalls a watermark;
 * stalled longer than stalled_fail_after_ns it fails the pipeline.
 *
 * The caller owns the pipeline object; new, start, stop, join, free are one thread's. status may be called from any thread.
 */
#ifndef TAILRACE_RUNTIME_H
#define TAILRACE_RUNTIME_H

#include <tailrace/push.h>
#include <tailrace/sink.h>
#include <tailrace/source.h>

struct tr_runtime;
struct tr_metrics;

struct tr_sink_tuning {
    uint32_t inflight;             /* concurrent writes per shard; forced to 1 unless the capabilities allow more */
    bool order_none;               /* declared by the user: rows of a key may be applied in any order */
    uint64_t batch_rows_max, batch_bytes_max;
    int64_t linger_ns;             /* a batch is sealed at the latest this long after its first row; at once when the shard is idle */
    int64_t pace_ns;               /* batches that are sealed because the shard is idle begin at least so far apart; 0: each at once */
    uint64_t chunk_bytes;          /* target size of a chunk */
    uint32_t queue_chunks;         /* bound of the shard's queue */
    uint32_t open_chunks_max;
    uint64_t open_bytes_max;
    uint32_t acks_max;             /* a chunk holding more polls than this is sealed */
    uint64_t record_bytes_max;     /* a larger encoded row is refused by table and column */
    int64_t write_timeout_ns;
    int64_t backoff_min_ns, backoff_max_ns; /* exponential, with jitter */
    uint32_t breaker_failures;     /* consecutive endpoint failures that open the breaker */
    int64_t breaker_open_ns;
};

struct tr_runtime_tuning {
    uint32_t threads;
    uint32_t poll_max;             /* payloads per poll */
    uint64_t max_inflight_bytes;
    double high_ratio, low_ratio;  /* 0.8, 0.5 */
    int64_t min_pause_ns;
    int64_t commit_interval_ns;    /* 5 s */
    int64_t stalled_fail_after_ns; /* 120 s */
    int64_t drain_timeout_ns;      /* 25 s */
    bool commit_eagerly;           /* hand watermarks to the source as soon as they move (capture: the slot is released and
                                      snapshot chunks are marked without waiting for the interval) */
};

void tr_sink_tuning_default(struct tr_sink_tuning *t);
void tr_runtime_tuning_default(struct tr_runtime_tuning *t);

struct tr_runtime_sink {
    const char *name;
    struct tr_sink *sink;          /* borrowed; closed by its owner after the pipeline is freed */
    struct tr_sink_tuning tuning;
};

enum tr_reject_answer {
    TR_REJECT_FAIL,  /* fail the pipeline with this error */
    TR_REJECT_DROP,  /* the owner has recorded the table as paused at `first`; write the batch without that part */
};

enum tr_runtime_state { TR_RT_STARTING, TR_RT_RUNNING, TR_RT_DRAINING, TR_RT_STOPPED, TR_RT_FAILED };

struct tr_runtime_def {
    const char *name;
    struct tr_runtime_tuning tuning;
    struct tr_source *source;      /* borrowed likewise */
    const struct tr_runtime_sink *sinks; /* copied */
    uint32_t n_sinks;
    /* One chain per pipeline thread. outs[i] belongs to sinks[i] and lives as long as the chain. */
    int (*chain_new)(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n_outs, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err);
    /* A writer (or the bind that a STALE asked for) refused a part for good. `first`: lowest position of that part. Called on the shard
     * worker's thread, and again for each batch that holds rows which were put for that table before the chain unbound it: they are refused too,
     * without being tried. A bind that tr_out_bind asked for is refused to the chain alone. */
    enum tr_reject_answer (*on_reject)(void *arg, uint32_t sink, const struct tr_target *t, int64_t first, const struct tr_err *err);
    /* Called on the controller's thread when watermarks moved (after commit was handed to the source). */
    void (*on_watermark)(void *arg, const struct tr_watermark *v, size_t n);
    void *arg;
    struct tr_metrics *metrics;
};

struct tr_runtime_status {
    enum tr_runtime_state state;
    struct tr_err error;             /* FAILED: why; else the last retryable trouble, rc 0 when there is none */
    int64_t error_since_us;
    int64_t error_since_ns;          /* of a trouble, monotonic */
    uint64_t records_in, rows_out, bytes_out, batches, retries, rejects;
    uint64_t inflight_bytes, inflight_limit;
    bool blocked;                    /* back-pressure is engaged now */
    int64_t poll_heartbeat_ns;       /* monotonic time of the last pipeline-thread step */
    int64_t watermark_stalled_ns;    /* how long a failed batch has held a watermark; 0 */
    bool lanes_assigned, sinks_probed; /* readiness */
    int64_t watermark;               /* of lane 0; INT64_MIN: none yet */
};

/* Checks capabilities against tuning (REJECT names the setting) and the sizing rule (writes the arithmetic to ret_warning, which
 * may be NULL, and goes on). */
int tr_runtime_new(const struct tr_runtime_def *def, struct tr_runtime **ret, char *ret_warning, size_t warning_cap, struct tr_err *err);
int tr_runtime_start(struct tr_runtime *p, struct tr_err *err);
void tr_runtime_stop(struct tr_runtime *p); /* begins the drain; returns at once; any thread */
/* Waits until STOPPED or FAILED (true) or the deadline (false). */
bool tr_runtime_join(struct tr_runtime *p, int64_t deadline_ns);
void tr_runtime_status(const struct tr_runtime *p, struct tr_runtime_status *ret);
struct tr_runtime *tr_runtime_free(struct tr_runtime *p);

#endif
