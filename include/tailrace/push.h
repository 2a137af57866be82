/*
 * push.h: the boundary between the engine's pipeline loop and whatever happens to records: one indirect call per batch.
 *
 * A chain is owned by one pipeline thread and called by it alone. Records are born and die inside one call; what leaves the
 * chain leaves it encoded, through a tr_out (the terminal stage the engine lends to the chain).
 *
 * push_batch(in, from): consumes in->v[from … n). `next` is the first payload not consumed; the engine calls again with
 * from = next and no operator runs twice for a record. Before a payload is begun tr_out_room is asked; once begun, all its
 * output (fan-out, several sinks) is taken and parked if need be.
 * A poll without payloads is pushed as well: its `upto` tells that the position moved.
 *   DONE       everything was consumed
 *   BLOCKED    no room: back-pressure is engaged and the lane paused; polling of other lanes goes on
 *   NOT_READY  a bind, a swap or a schema fetch is pending, or the payload must wait for another lane: nothing is paused
 *   FAILED     err says why; FATAL fails the pipeline
 * One waker per pipeline thread announces room, readiness and stop.
 *
 * flush(why): IDLE when all lanes of the thread said AGAIN; LINGER when linger_at_ns passed; FINAL at drain. It may block
 * like push. FINAL seals at the last transaction boundary for sinks that want boundaries and *fails* the rest: replay, not
 * half a transaction.
 * abandon: fails every ack held, frees nothing else. free: after abandon or a FINAL flush.
 */
#ifndef TAILRACE_PUSH_H
#define TAILRACE_PUSH_H

#include <tailrace/buf.h>
#include <tailrace/change.h>
#include <tailrace/payload.h>

enum tr_push_state { TR_PUSH_DONE, TR_PUSH_BLOCKED, TR_PUSH_NOT_READY, TR_PUSH_FAILED };
enum tr_flush { TR_FLUSH_IDLE, TR_FLUSH_LINGER, TR_FLUSH_FINAL };

struct tr_push {
    uint32_t next;
    enum tr_push_state state;
    int64_t linger_at_ns; /* when flush(LINGER) wants to be called; INT64_MAX: never */
};

struct tr_chain_ops {
    int (*push_batch)(void *chain, const struct tr_payloads *in, uint32_t from, struct tr_push *ret, struct tr_err *err);
    int (*flush)(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err);
    void (*abandon)(void *chain);
    void (*free)(void *chain);
};

/* ---- the terminal stage, as a chain sees it ------------------------------------------------------------------------
 *
 * One tr_out per (pipeline thread, sink), lent by the engine; calls are the pipeline thread's. All answers are immediate.
 *
 * tr_out_room    0, or AGAIN when a queue, the byte budget or the parking space has no room for one more payload's output.
 * tr_out_bind    0 and the target; NOT_READY while the target thread works on it (ask again later, same schema); REJECT
 *                with the reason in err when the sink refuses this table at this version: the table pauses.
 *                Targets are cached by (table_id, version, variant, snapshot_id). variant tells apart the tables a sink may
 *                keep for one source table (TR_TARGET_*); snapshot_id names the build of a SHADOW, or the one a MIRROR must be; else 0.
 * tr_out_put     encodes a run of rows of one target on behalf of `ack` (position `pos`). Takes all or fails FATAL/REJECT
 *                (by column name; nothing of the run was taken).
 * tr_out_open    the other way to put one row: the bytes of the chunk that rows of `key` go to. The caller appends the row in the sink's own
 *                format, and grows the buffer if need be, with no call in between; then
 * tr_out_close   takes it on behalf of `ack`, or with keep false takes back what was appended. REJECT when the row is too large: taken back.
 *                Between the two nothing else is asked of this tr_out. FATAL for sinks whose encoder holds rows inside.
 * tr_out_tx_end  a source transaction ended; boundary sinks may seal here.
 * tr_out_barrier 0 once everything put so far is durable, else NOT_READY (and open chunks are sealed and sent at once).
 *                Requires that no transaction is open.
 * tr_out_swap    asks the target thread to carry out a catalog operation (tr_sink_ops.swap); NOT_READY until it is done. Call
 *                after a barrier.
 * tr_out_unbind  forgets the target of a table (all versions of that variant), e.g. after a swap.
 */
struct tr_out;
struct tr_target;

enum tr_target_variant {
    TR_TARGET_MIRROR = 0,    /* the live current-state table */
    TR_TARGET_SHADOW = 1,    /* the table being built beside it by a snapshot */
    TR_TARGET_CHANGELOG = 2, /* the append-only history */
    TR_TARGET_META = 3,      /* the sink's own bookkeeping (heartbeat) */
    TR_TARGET_APPEND = 4,    /* rows as they are, with no column of ours: a table of the user's, or made for them */
    TR_TARGET_VARIANTS_
};

int tr_out_room(struct tr_out *o);
int tr_out_bind(struct tr_out *o, const struct tr_schema *s, enum tr_target_variant variant, uint64_t snapshot_id,
                struct tr_target **ret, struct tr_err *err);
int tr_out_put(struct tr_out *o, struct tr_target *t, const struct tr_change *v, uint32_t n, struct tr_ack *ack, int64_t pos,
               struct tr_err *err);
int tr_out_open(struct tr_out *o, struct tr_target *t, struct tr_slice key, struct tr_buf **ret, struct tr_err *err);
int tr_out_close(struct tr_out *o, bool keep, struct tr_ack *ack, int64_t pos, struct tr_err *err);
int tr_out_tx_end(struct tr_out *o, struct tr_err *err);
int tr_out_barrier(struct tr_out *o, struct tr_err *err);
int tr_out_swap(struct tr_out *o, const struct tr_schema *s, uint64_t snapshot_id, struct tr_err *err);
void tr_out_unbind(struct tr_out *o, uint32_t table_id, enum tr_target_variant variant);

#endif
