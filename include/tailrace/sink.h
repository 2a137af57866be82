/*
 * sink.h: the contract of a sink.
 *
 * A connector writes: describe and make tables (target thread), encode a run of rows (pipeline thread), write one sealed
 * batch to one endpoint (writer thread) and classify errors. Batching, routing, rotation, retry, drain and metrics are the
 * engine's. Connectors never log.
 *
 * Threads
 *   bind, swap, probe      the sink's one target thread; may block, to the deadline (monotonic ns)
 *   encoder_*, encode …    the pipeline thread that made the encoder
 *   writer_*, write …      the writer thread that made the writer; interrupt from any thread
 *
 * bind: create or additively evolve the table for (schema, variant) and return its target, which lives until the sink is closed; the same
 * one for the same definition, lest a sink that comes and goes for months gather them. Idempotent. Answers REJECT naming the column (or table) and the cure when the change is not additive or a type cannot
 * be held: the engine pauses that one table. RETRY: the peer is away, the engine tries again with backoff.
 * A SHADOW is built for one snapshot_id: leftovers of any other id are dropped first. A MIRROR with a snapshot_id must be there and be that
 * build, else REJECT; with 0 it is whatever is there, and made if need be.
 * swap: SHADOW of that table becomes MIRROR, atomically; the old mirror goes. Idempotent: it records snapshot_id beside the
 * table, and a second call with the same id does nothing unless a SHADOW was built under it since. NOT_READY: a peer that must take part is away,
 * and nothing was done: the table goes on being built, the others go on, and it is asked again later.
 * check, optional: what bind would refuse of a table that is there, REJECT by the same words; changes nothing in it. The schema's version is not looked at.
 * built: the snapshot_id recorded beside the mirror, 0 when there is no mirror. Asked before a pipeline starts, so that a crash
 * between swap and its note in the control store is told from one before it.
 *
 * Shards: a row of a table goes to the shard of its key, TRUNCATE to all; a key update whose keys are of two shards comes as a DELETE to one and an
 * UPDATE to the other, and is refused by name where the source left a column unchanged, which only the other shard knows.
 *
 * encode: appends rows [0, n) to out; *ret_done says how many were taken; less than n only together with an error (REJECT by
 * column); of the row that failed nothing is left in out. finish_chunk: a columnar encoder writes its block. buffered: bytes held inside the encoder.
 *
 * Writers come in two shapes.
 *   blocking    write returns 0 when the batch is *durable at the peer* (SQLite synchronous=FULL, PostgreSQL
 *               synchronous_commit=on, …). Otherwise: RETRY (may or may not have been applied; the same bytes will come
 *               again, here or elsewhere), REJECT (nothing of it was applied, err names what is bad and
 *               err->code is the index of the part that is: the engine pauses that table and writes the batch without it), STALE (the target
 *               changed: it will be bound again, then the same bytes once more; the same answer again and again becomes REJECT, so err->code is the
 *               part here, too), FENCED (someone else owns this sink now),
 *               FATAL. err->blame says what the breaker counts.
 *   complete    optional, before freezing: fills what the source left unchanged. Called when every earlier batch of the
 *               shard is durable. It may write the bytes of the parts' segments anew, in place and at the very end, when nothing can fail any more.
 *   pipelined   submit returns once the peer's client has accepted the bytes (accepted is not durable). AGAIN: the same call
 *               again, it knows how far it came. The batch lives until its ticket was reaped. reap returns how many {ticket, rc} it put
 *               into v, or AGAIN; err is about the one that failed. OK = all up to ticket durable; RETRY = all from
 *               ticket on again, in order, and the writer has forgotten them; REJECT = that one is bad (and, on an ORDERED sink, all later ones failed with it and
 *               come again in order). drain: everything submitted is durable or the deadline passed.
 *               abandon: forget everything. interrupt: a blocked call returns soon (any thread).
 * A writer has the functions of its shape, and free; interrupt and drain may be NULL, if no call blocks for long. check, swap, built and probe of a sink may be NULL: without
 * swap it builds no SHADOW. A failure is told with err filled in: the engine knows no other reason.
 *
 * Below a ticket a writer may split, slice and renumber as its wire demands; the batch's bytes and tokens never change.
 *
 * Lease: a sink that is a database checks, in the same transaction as its rows, the lease token it was opened with, and
 * answers FENCED when a newer one has been seen.
 */
#ifndef TAILRACE_SINK_H
#define TAILRACE_SINK_H

#include <tailrace/batch.h>
#include <tailrace/change.h>
#include <tailrace/push.h>

enum { /* capabilities, checked at start */
    TR_CAP_MULTI = 1u << 0,     /* many parts in one atomic write */
    TR_CAP_BOUNDARY = 1u << 1,  /* seal at source transaction ends; needs MULTI, one log partition, one shard, one in flight */
    TR_CAP_MONOTONIC = 1u << 2, /* keeps the higher version per key by itself */
    TR_CAP_ORDERED = 1u << 3,   /* the peer keeps submit order per endpoint across its own retries */
    TR_CAP_TOKEN = 1u << 4,     /* drops a batch whose token it has seen */
    TR_CAP_MERGE_COLUMNS = 1u << 5, /* can keep a column it is not sent */
    TR_CAP_SHADOW = 1u << 6,    /* can build a table beside the live one and swap */
    TR_CAP_DELETE = 1u << 7,    /* can remove rows (hard delete mode) */
    TR_CAP_PIPELINED = 1u << 8, /* the writer's second shape */
    TR_CAP_ONE_TARGET = 1u << 9, /* total order over all tables: bind answers one target for everything (the change log) */
    TR_CAP_COMPLETE_DELETES = 1u << 10, /* a deleted row is completed too: what its tombstone keeps is read back */
};

struct tr_sink;
struct tr_encoder;
struct tr_writer;
struct tr_endpoint; /* opaque; endpoints[0 … n_endpoints) of the sink, per shard */

struct tr_done {
    uint64_t ticket;
    int rc;
};

struct tr_encoder_ops {
    int (*encode)(struct tr_encoder *e, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err);
    int (*finish_chunk)(struct tr_encoder *e, struct tr_buf *out, struct tr_err *err); /* may be NULL */
    size_t (*buffered)(const struct tr_encoder *e);                                    /* may be NULL */
    void (*free)(struct tr_encoder *e);
};

struct tr_encoder {
    const struct tr_encoder_ops *ops;
};

struct tr_writer_ops {
    int (*complete)(struct tr_writer *w, struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err); /* may be NULL */
    int (*write)(struct tr_writer *w, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err);
    int (*submit)(struct tr_writer *w, const struct tr_sealed *b, uint64_t ticket, struct tr_err *err);
    int (*reap)(struct tr_writer *w, int timeout_ms, struct tr_done *v, uint32_t max, struct tr_err *err);
    int (*drain)(struct tr_writer *w, int64_t deadline_ns, struct tr_err *err);
    void (*abandon)(struct tr_writer *w);
    void (*interrupt)(struct tr_writer *w);
    void (*free)(struct tr_writer *w);
};

struct tr_writer {
    const struct tr_writer_ops *ops;
};

struct tr_target { /* first member of a sink's own struct; freed by the sink at close */
    uint32_t table_id, schema_version;
    enum tr_target_variant variant;
};

struct tr_sink_ops {
    int (*bind)(struct tr_sink *s, const struct tr_schema *schema, enum tr_target_variant variant, uint64_t snapshot_id,
                int64_t deadline_ns, struct tr_target **ret, struct tr_err *err);
    int (*check)(struct tr_sink *s, const struct tr_schema *schema, enum tr_target_variant variant, int64_t deadline_ns, struct tr_err *err);
    int (*swap)(struct tr_sink *s, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err);
    int (*built)(struct tr_sink *s, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err);
    int (*probe)(struct tr_sink *s, int64_t deadline_ns, struct tr_err *err);
    int (*encoder_new)(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err);
    int (*writer_new)(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err);
    void (*close)(struct tr_sink *s);
};

struct tr_sink { /* first member of an implementation's own struct */
    const struct tr_sink_ops *ops;
    uint32_t caps;
    uint32_t shards;                /* >= 1 */
    uint32_t n_endpoints;           /* per shard, >= 1 */
    const uint32_t *shard_endpoints; /* how many of them each shard has, >= 1; NULL: all */
    struct tr_endpoint **endpoints; /* [shard * n_endpoints + i]; may be NULL when n_endpoints is 1 */
};

#endif
