/*
 * engine.h: what the parts of the runtime know of each other. Internal to src/engine.
 *
 *   runtime.c   making and ending a pipeline, status, metrics          controller.c  the controller thread
 *   worker.c    pipeline threads                                       terminal.c    tr_out_*
 *   shard.c     shard workers          batch.c  sealed batches         writer.c      writer threads     target.c  bind, swap, probe
 *
 * The life of an ack: the worker makes it with the poll (one reference of its own, given up when the push is done); each chunk with
 * rows of that poll holds one through its ackset; the shard delivers the acksets of a batch when it is durable, and whoever tears
 * down fails them. The last reference posts the ack to the controller.
 *
 * Locks, none held while another is taken: tr_runtime.lock (troubles, failure), tr_worker.lock (its inbox), tr_shard.lock
 * (jobs, results), tr_sink_rt.lock (targets, refusals). Everything else is owned by one thread, as the comments say, or atomic.
 */
#ifndef TR_ENGINE_H
#define TR_ENGINE_H

#include <stdatomic.h>

#include <tailrace/clock.h>
#include <tailrace/metric.h>
#include <tailrace/oslog.h>
#include <tailrace/runtime.h>

#include "ack.h"
#include "batcher.h"
#include "budget.h"
#include "checkpointer.h"
#include "dispatcher.h"
#include "list.h"
#include "map.h"
#include "pqueue.h"
#include "refusal.h"
#include "seg.h"
#include "thread.h"

enum {
    TR_POLLS_MAX = 1 << 16,   /* polls of one lane made but not in the delivered prefix */
    TR_BINS_MAX = 256,
    TR_ENCODERS_IDLE_MAX = 32,
    TR_TEND_NS = 400 * 1000 * 1000,
    TR_WORKER_WAIT_NS = 50 * 1000 * 1000,
    TR_CONTROLLER_WAIT_NS = 100 * 1000 * 1000,
};

/* Whom trouble is with: a sink, the source, a lane. However many reporters it has (a sink's shards and its target thread), it is one trouble to
 * people: told once, over with the last of them. Under tr_runtime.lock; `who` does not change. */
struct tr_party {
    char who[64];
    uint32_t n;                   /* reporters in trouble */
    struct tr_oslog_episode episode;
};

/* The last trouble of one reporter, kept until its next success. Under tr_runtime.lock but for `set`, which is the reporter's. */
struct tr_trouble {
    struct tr_list node;
    struct tr_party *with;        /* set once, before its first trouble */
    bool set;
    struct tr_err err;
};

/* ---- messages from terminals to shards, and batches -------------------------------------------------------------- */

enum { TR_MSG_BOUNDARY = 1, TR_MSG_IDLE = 2, TR_MSG_FORCE = 4 };

/* A chunk (seg set) or a bare mark. */
struct tr_msg {
    struct tr_batcher_item it;
    struct tr_out *out;
    struct tr_target *target;
    struct tr_seg *seg;
    uint32_t rows, part;   /* part: of the batch it is in */
    uint8_t flags;
    bool dependent;        /* some row rests on what earlier batches left: MOVED, an unchanged column, TRUNCATE, a DELETE that is completed */
    struct tr_generation *generation; /* its terminal's when the chunk was begun, it.binding; NULL: a mark */
    struct tr_ackset acks;
    uint32_t n_spans, cap_spans;
    struct tr_span *spans; /* inline_span until it grows */
    struct tr_span inline_span[2];
};

struct tr_msg *tr_msg_new(struct tr_out *o);
void tr_msg_fail(struct tr_msg *m);    /* fails its acks, frees */
void tr_msg_deliver(struct tr_msg *m); /* delivers its acks, tells its terminal, frees */

struct tr_ebatch {
    struct tr_list items;  /* struct tr_msg */
    struct tr_sealed sealed;
    struct tr_part *parts;
    struct tr_chunk *chunks;
    struct tr_span *spans;
    int64_t *part_first;
    bool dependent, completed, has_tokens;
    int bind_rc;           /* the target thread's answer to a rebind */
    uint32_t stales;       /* times in a row that its targets were bound again */
    uint32_t bind_part;
    uint32_t nth;          /* of the batches that end within the rows of one payload; part of its tokens: they may be alike to the last byte */
    struct tr_list node;   /* rebind queue */
    struct tr_shard *shard;
    struct tr_err err;     /* why it was last refused or failed */
};

int tr_ebatch_new(struct tr_shard *s, struct tr_list *items, bool tx_end, struct tr_ebatch **ret);
void tr_ebatch_completed(struct tr_ebatch *b);
void tr_ebatch_tokens(struct tr_ebatch *b, const char *sink);
int tr_ebatch_drop_part(struct tr_ebatch *b, uint32_t part); /* its rows are skipped; the rest is a new batch. NOMEM */
void tr_ebatch_deliver(struct tr_ebatch *b);
void tr_ebatch_fail(struct tr_ebatch *b);

/* ---- sinks --------------------------------------------------------------------------------------------------------- */

struct tr_target_key {
    uint32_t table_id, version;
    uint64_t snapshot_id;
    uint32_t variant, zero;
};

enum tr_bind_state { TR_BIND_PENDING, TR_BIND_READY, TR_BIND_REFUSED };

struct tr_target_ent { /* under tr_sink_rt.lock; a swap lives until its answer is taken, a bind until the pipeline is freed */
    struct tr_list node;
    struct tr_target_key key;
    struct tr_schema *schema;
    enum tr_bind_state state;
    bool forgotten, swap;  /* swap: a swap job instead of a bind */
    struct tr_target *target;
    int64_t not_before_ns;
    uint32_t attempt;
    struct tr_err err;
};

struct tr_sink_rt {
    struct tr_runtime *p;
    uint32_t index;
    char name[64];
    struct tr_sink *sink;
    struct tr_sink_tuning t;
    bool multi, boundary, one_target, pipelined;
    struct tr_shard *shards;
    uint32_t n_shards;
    struct tr_mutex lock;
    struct tr_list targets;       /* tr_target_ent */
    struct tr_list rebinds;       /* tr_ebatch */
    struct tr_refusals refusals;  /* under lock */
    _Atomic uint64_t generation;  /* the present one of `refusals`: targets were forgotten at its beginning */
    _Atomic bool any_refusal;     /* falls with the last of them */
    _Atomic bool probed;
    struct tr_waker waker;        /* the target thread's */
    struct tr_thread *thread;
    int64_t probe_ns;             /* the target thread's: next probe */
    uint32_t probe_attempt;
    struct tr_prng prng;
    struct tr_party party;        /* for its shards as well */
    struct tr_trouble trouble;    /* the target thread's */
    struct tr_cell *m_rows, *m_bytes, *m_batches, *m_retries, *m_rejects, *m_breakers;
    struct tr_histogram *m_write;
};

struct tr_writer_rt {
    struct tr_shard *s;
    uint32_t index;
    struct tr_thread *thread;
    struct tr_cond wake;          /* with tr_shard.lock */
    struct tr_ebatch *job;        /* under tr_shard.lock: set by the shard, cleared by the writer */
    uint64_t ticket;
    uint32_t endpoint;
    bool reaping;                 /* under tr_shard.lock */
    _Atomic bool finished;        /* its thread is past its last call */
    _Atomic(struct tr_writer *) w; /* made and used by the writer thread; interrupt from others */
    struct tr_ebatch *held;       /* pipelined: a submit that said AGAIN */
    uint64_t held_ticket, last_ticket, acked_ticket;
};

struct tr_result {
    uint64_t ticket;              /* 0: all in flight */
    int rc;
    bool resync;                  /* pipelined: the writer has dropped what was behind the ticket */
    struct tr_err *err;           /* owned; NULL when rc >= 0 */
};

struct tr_submission {
    struct tr_ebatch *batch;
    uint64_t ticket;
};

struct tr_shard {
    struct tr_sink_rt *sink;
    uint32_t index;
    struct tr_queue queue;        /* tr_msg from all terminals */
    struct tr_waker waker;
    struct tr_thread *thread;
    struct tr_batcher batcher;
    struct tr_dispatcher disp;
    struct tr_prng prng;
    struct tr_trouble trouble;
    uint64_t retries_seen, splits_seen;
    struct tr_span end;             /* where the last batch ended, and how many in a row have ended there */
    uint32_t same_end;
    bool eof;
    bool broken;                  /* something was lost on its way: no batch is sealed any more */
    _Atomic bool quiet;           /* a flush would be written at once */
    _Atomic bool drained;
    struct tr_writer_rt *writers;
    uint32_t n_writers;

    struct tr_mutex lock;         /* guards what follows and tr_writer_rt.job */
    struct tr_result *results;
    uint32_t n_results, cap_results;
    struct tr_result *taken;      /* the shard's: those it works on, or an empty array for the next */
    struct tr_list rebound;       /* tr_ebatch back from the target thread */
    struct tr_submission *subs;   /* pipelined: FIFO of `inflight` */
    uint32_t n_subs;
    bool resync;                  /* the writer reported a failure: it submits nothing until the shard has seen it */
    bool abandon;                 /* the writer must forget everything before it goes on */
    bool quit;                    /* writers end */
    bool closing;                 /* drain: pipelined writers call drain once */
};

/* ---- pipeline threads ---------------------------------------------------------------------------------------------- */

enum tr_lane_want { TR_LANE_RUN, TR_LANE_STOP, TR_LANE_GIVE };
enum tr_lane_phase { TR_LANE_RUNNING, TR_LANE_QUIET, TR_LANE_GIVEN };

struct tr_lane_rt {
    struct tr_lane *lane;
    uint32_t id, epoch;
    struct tr_worker *worker;
    struct tr_list node;            /* worker's */
    /* shared */
    _Atomic int want;               /* the controller's */
    _Atomic int phase;              /* the worker's */
    _Atomic bool eof;
    _Atomic uint64_t issued;        /* polls made */
    _Atomic uint64_t resolved;      /* the controller's: delivered prefix */
    /* the worker's */
    struct tr_payloads cur;
    uint32_t next;
    bool pending, blocked, not_ready, ended, flushed;
    int64_t upto;                   /* of its polls, the highest; INT64_MIN: none said one */
    int64_t tended_ns, hold_ns;
    int64_t well_ns;                /* when its last trouble was over; 0: it had none */
    int64_t proving_ns;             /* in trouble, and since when polls succeed; 0: they do not */
    bool recurs;                    /* the trouble began anew as soon as it was over */
    struct tr_party party;
    struct tr_trouble trouble;
    /* the controller's */
    bool revoked, answer, closing;
    struct tr_event ev;
    int64_t barrier_ns;             /* deadline of the barrier */
    int64_t sync_next_ns;
};

struct tr_worker {
    struct tr_runtime *p;
    uint32_t index;
    struct tr_thread *thread;
    struct tr_waker waker;
    const struct tr_chain_ops *ops;
    void *chain;
    struct tr_out **outs;
    uint32_t n_outs;
    struct tr_list lanes;           /* tr_lane_rt; the worker's */
    uint32_t n_lanes;
    struct tr_budget budget;
    int64_t now_ns;                 /* of this step */
    int64_t chain_linger_ns;
    uint64_t blocked_seen;
    struct tr_wait *waits;
    uint32_t cap_waits;
    bool pressing, final_done, barrier_flush;
    int64_t drain_since_ns;
    struct tr_mutex lock;           /* guards inbox */
    struct tr_lane_rt **inbox;
    uint32_t n_inbox, cap_inbox;
    /* shared */
    _Atomic uint32_t load;          /* lanes; the controller's */
    _Atomic bool drained, quit;
    _Atomic uint64_t records;
    _Atomic int64_t heartbeat_ns;
    _Atomic bool blocked;
};

struct tr_runtime {
    char name[64];
    struct tr_runtime_def def;
    struct tr_pool pool;
    struct tr_worker *workers;
    struct tr_sink_rt *sinks;
    uint32_t n_sinks;
    struct tr_ack_sink acks;
    struct tr_waker waker;          /* the controller's */
    struct tr_thread *thread;
    struct tr_prng prng;
    bool started;
    /* shared */
    _Atomic int state;              /* enum tr_runtime_state */
    _Atomic bool stop, abort, draining;
    _Atomic bool ended;             /* threads end */
    _Atomic int64_t drain_deadline_ns;
    _Atomic uint32_t pressure;      /* workers whose back-pressure is engaged */
    _Atomic uint32_t writes;        /* batches sealed and not finished, all sinks */
    _Atomic uint64_t rows_out, bytes_out, batches, retries, rejects;
    _Atomic int64_t watermark, stalled_ns;
    _Atomic bool assigned;
    struct tr_mutex lock;           /* guards what follows */
    struct tr_cond ended_cond;
    struct tr_list troubles;
    bool failed, over;              /* over: the controller has finished */
    struct tr_err failure;          /* why FAILED, or that the drain was abandoned */
    int64_t failure_us;
    /* the controller's */
    struct tr_ckpt ckpt;
    struct tr_lane_rt **lanes;
    uint32_t n_lanes, cap_lanes;
    struct tr_watermark *marks;
    uint32_t cap_marks;
    struct tr_party source_party, commit_party;
    struct tr_trouble source_trouble, commit_trouble;
    bool queues_closed;
    bool assigned_before;
    bool source_ended;              /* no event will come any more: when the last lane has ended the pipeline stops by itself */
    struct tr_cell *m_records, *m_inflight, *m_blocked_ns, *m_blocked, *m_heartbeat, *m_watermark_age, *m_stalled, *m_commits;
};

/* runtime.c */
void tr_pl_fail(struct tr_runtime *p, const struct tr_err *err); /* any thread; the first one counts */
/* What `who` answered is told as rc, and never without a reason: not every author of a connector gives one. */
void tr_pl_answered(struct tr_err *err, int rc, const char *who);
void tr_pl_trouble(struct tr_runtime *p, struct tr_trouble *t, const struct tr_err *err);
void tr_pl_well(struct tr_runtime *p, struct tr_trouble *t);
void tr_pl_forget(struct tr_runtime *p, struct tr_trouble *t);   /* its reporter ends */
void tr_pl_wake_workers(struct tr_runtime *p);

/* Loops of the threads; each calls its step. */
void tr_controller_main(void *arg);
void tr_worker_main(void *arg);
void tr_shard_main(void *arg);
void tr_writer_main(void *arg);
void tr_target_main(void *arg);

/* shard.c */
int tr_shard_init(struct tr_shard *s, struct tr_sink_rt *k, uint32_t index, struct tr_err *err);
void tr_shard_done(struct tr_shard *s);
/* A writer's result. resync: nothing is submitted until the shard has seen it. */
void tr_shard_post(struct tr_shard *s, uint64_t ticket, int rc, const struct tr_err *err, bool resync);

/* terminal.c */
int tr_out_new(struct tr_worker *w, struct tr_sink_rt *k, struct tr_out **ret);
void tr_out_free(struct tr_out *o);
void tr_out_flush(struct tr_out *o, enum tr_flush why, int64_t now_ns);
void tr_out_force(struct tr_out *o);        /* everything complete goes, and is sealed, now */
void tr_out_press(struct tr_out *o);        /* back-pressure: what blocks the budget inside an open transaction moves on */
bool tr_out_unpark(struct tr_out *o);       /* true: nothing is parked any more */
int64_t tr_out_next_linger(const struct tr_out *o);
void tr_out_abandon(struct tr_out *o);
void tr_out_on_done(struct tr_out *o);      /* shard: one of its chunks is durable */
void tr_out_wake(struct tr_out *o, bool room, bool idle); /* shard: there is room, it is quiet */

/* controller.c: ends worker, shard and writer threads; `abort` is set or everything is drained */
void tr_pl_end_threads(struct tr_runtime *p);

/* target.c */
void tr_sink_rebind(struct tr_sink_rt *k, struct tr_ebatch *b);
void tr_target_ent_free(struct tr_target_ent *e); /* takes it out of its list */

#endif
