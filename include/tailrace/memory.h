/*
 * memory.h: a source and a sink in memory, scripted by the caller: the test kit of everything above the contracts.
 *
 * The first implementations of source.h and sink.h. They keep every clause and record what the engine did with them. All
 * tr_mem_* functions may be called from any thread; each object has one lock. close (by the contracts) frees: where a pipeline has
 * taken source or sink, tr_running_free does it, so what was kept is looked at before. A wrong use of the kit ends the process.
 *
 * Source. A lane id is a log of payloads that stays, like a Kafka partition: assigning it makes a lane that reads from a position
 * on, so a restart can be played by assigning it again from what was committed, once tr_mem_lane_open says that the one before is closed.
 * Positions are the caller's and must rise.
 *
 * Sink. Rows are encoded as
 *   row = u32 length, u8 op, u16 flags, u64 version, u32 n, key, u32 n, old key, image of the columns (of `after`; else of `before`)
 * and decoded when they are applied. Two things are kept: the sequence of all rows applied, and the state by key, which keeps the
 * higher version (as MONOTONIC promises; without that capability the later row wins); TRUNCATE makes a tombstone of every row below its version. A write consults the script: one outcome per
 * write, in order; without script it succeeds. Rows of TR_ENCODED are the program's own bytes: for them the sink counts only (count_only).
 */
#ifndef TAILRACE_MEMORY_H
#define TAILRACE_MEMORY_H

#include <tailrace/sink.h>
#include <tailrace/source.h>

/* ---- source --------------------------------------------------------------------------------------------------------- */

struct tr_mem_source;

int tr_mem_source_new(struct tr_mem_source **ret);
struct tr_source *tr_mem_source_spi(struct tr_mem_source *s);

/* Data of a lane id. The row form copies the change and everything it points to but its schema, of which it takes a reference.
 * NOMEM. */
int tr_mem_push(struct tr_mem_source *s, uint32_t lane, int64_t position, struct tr_slice key, struct tr_slice value, uint32_t flags);
int tr_mem_push_row(struct tr_mem_source *s, uint32_t lane, int64_t position, const struct tr_change *c);
int tr_mem_push_tx_end(struct tr_mem_source *s, uint32_t lane, int64_t position);
/* n payloads of value_bytes each, position 1 … n, made as they are polled: for measuring. tx_every 0: no transactions. */
int tr_mem_generate(struct tr_mem_source *s, uint32_t lane, uint64_t n, uint32_t value_bytes, uint32_t tx_every);
void tr_mem_upto(struct tr_mem_source *s, uint32_t lane, int64_t upto);        /* an idle poll moves the position to it */
void tr_mem_eof(struct tr_mem_source *s, uint32_t lane);                       /* EOF behind what is there now */
void tr_mem_poll_max(struct tr_mem_source *s, uint32_t lane, uint32_t max);    /* payloads per poll; 0: what the engine asks */
void tr_mem_fail_poll(struct tr_mem_source *s, uint32_t lane, int rc, uint32_t times);
void tr_mem_fail_commit(struct tr_mem_source *s, int rc, uint32_t times);

/* Events. assign: reads payloads with position > from. */
int tr_mem_assign(struct tr_mem_source *s, uint32_t lane, uint32_t epoch, int64_t from);
void tr_mem_revoke(struct tr_mem_source *s, uint32_t lane);
void tr_mem_lose(struct tr_mem_source *s, uint32_t lane, const char *why);
void tr_mem_fail_event(struct tr_mem_source *s, int rc, uint32_t times);
void tr_mem_end(struct tr_mem_source *s);  /* EOF behind the events that are there now */

struct tr_mem_source_stats {
    uint64_t polls, tends, pauses, resumes, assigned_answers, revoked_answers, commits, sync_commits, commit_failures, closed_lanes;
    int64_t last_commit_ns;
    bool order_broken;     /* a watermark went back, or came for a lane that is not assigned */
};
void tr_mem_source_stats(struct tr_mem_source *s, struct tr_mem_source_stats *ret);
int64_t tr_mem_committed(struct tr_mem_source *s, uint32_t lane); /* INT64_MIN: nothing */
int64_t tr_mem_committed_sync(struct tr_mem_source *s, uint32_t lane);
bool tr_mem_lane_open(struct tr_mem_source *s, uint32_t lane);
bool tr_mem_lane_paused(struct tr_mem_source *s, uint32_t lane);

/* ---- sink ----------------------------------------------------------------------------------------------------------- */

struct tr_mem_sink;

struct tr_mem_sink_def {
    uint32_t caps, shards, endpoints; /* 0 counts as 1 */
    uint32_t window;                  /* pipelined: submits beyond it say AGAIN; 0: 16 */
    int64_t write_ns;                 /* every write takes so long */
    bool count_only;                  /* applied rows are counted, not kept */
    bool complete;                    /* the writer has `complete` */
    bool columnar;                    /* the encoder holds rows until finish_chunk */
};

/* What one write (or submission) comes to. */
struct tr_mem_outcome {
    int rc;
    bool apply;           /* take effect before saying rc: RETRY that was applied */
    uint32_t apply_parts; /* with apply: only so many parts; 0: all */
    int64_t delay_ns;
    uint32_t part;        /* REJECT */
    uint8_t blame;
    uint32_t retry_after_ms;
    uint32_t times;       /* 0 counts as 1 */
};

struct tr_mem_row {
    uint64_t batch;       /* number of the applied batch */
    uint32_t table_id, schema_version;
    enum tr_target_variant variant;
    uint8_t op;
    uint16_t flags;
    uint64_t version;
    struct tr_slice key, old_key;
    struct tr_row row;
};

struct tr_mem_batch {
    char token[40];       /* of the first part */
    uint32_t n_parts, shard, endpoint;
    uint64_t rows;
    bool tx_end;
    struct tr_span span;  /* the first */
};

int tr_mem_sink_new(const struct tr_mem_sink_def *def, struct tr_mem_sink **ret);
struct tr_sink *tr_mem_sink_spi(struct tr_mem_sink *s);
void tr_mem_script(struct tr_mem_sink *s, const struct tr_mem_outcome *o);
void tr_mem_script_bind(struct tr_mem_sink *s, int rc, const char *msg, uint32_t times);
void tr_mem_script_swap(struct tr_mem_sink *s, int rc, uint32_t times);
/* What a table of the sink does with rows that come for it, from now on: takes them; refuses every write that has some; refuses binds. */
enum tr_mem_taking { TR_MEM_TAKES, TR_MEM_REFUSES_ROWS, TR_MEM_REFUSES_BINDS };
void tr_mem_taking(struct tr_mem_sink *s, uint32_t table_id, enum tr_target_variant variant, enum tr_mem_taking how); /* table_id < 32 */
void tr_mem_script_probe(struct tr_mem_sink *s, int rc, uint32_t times);
void tr_mem_endpoint_down(struct tr_mem_sink *s, uint32_t endpoint, bool down); /* RETRY, blame ENDPOINT */
void tr_mem_hold(struct tr_mem_sink *s, bool on);  /* writes wait (to their deadline, or an interrupt) */

struct tr_mem_sink_stats {
    uint64_t writes, batches, rows, bytes, binds, swaps, probes, interrupts, abandons, duplicates, completes, drains;
    uint32_t in_write, in_write_max;
    int64_t last_write_ns;
};
void tr_mem_sink_stats(struct tr_mem_sink *s, struct tr_mem_sink_stats *ret);
/* Until at least so many rows were applied; false: the deadline. */
bool tr_mem_wait_rows(struct tr_mem_sink *s, uint64_t rows, int64_t deadline_ns);
/* Everything applied, in order. The callback must not call into the sink. */
void tr_mem_each_row(struct tr_mem_sink *s, void (*cb)(void *arg, const struct tr_mem_row *r), void *arg);
void tr_mem_each_batch(struct tr_mem_sink *s, void (*cb)(void *arg, const struct tr_mem_batch *b), void *arg);
/* The state: one call per key. deleted rows are included, as tombstones. */
void tr_mem_read_back(struct tr_mem_sink *s, uint32_t table_id, enum tr_target_variant variant,
                      void (*cb)(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row), void *arg);

#endif
