/*
 * control.h: the contract of the control store: small, strongly consistent, apart from the log and from every sink.
 *
 * Typed operations, each one transaction, each durable when it returns. Positions recorded here may lag what they describe,
 * never lead it: a sink's offset is committed after its write, a position to be confirmed to the source is recorded *before*
 * the feedback that carries it.
 *
 * Leases. A process works on a stream under a lease with a fencing token, which grows by one each time it changes hands. Every
 * mutating call carries the token of the lease it acts under; a stale one is answered FENCED and changes nothing. Token 0
 * is for administration from the command line and is accepted only by the operations that say so.
 *
 * An operator's action writes its audit row in the same transaction.
 *
 * Threads: any; implementations serialise. Blocking, bounded by the store's own timeout (5 s): RETRY when it could not get through.
 * Errors: RETRY (busy, disk full: nothing changed), FENCED, REJECT (an argument or state that makes no sense, by name), FATAL (the
 * store is corrupt or newer than this program).
 *
 * Returned strings and blobs are copies owned by the caller's struct; the *_done functions free them. Lists come through a
 * callback, called with borrowed records while the store is locked: it must not call the store.
 */
#ifndef TR_CONTROL_H
#define TR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tailrace/err.h>
#include <tailrace/slice.h>

struct tr_control;

/* Capture's side of one source. */
struct tr_ctl_source {
    char system_id[32];     /* "" : not bound yet */
    uint32_t timeline;
    char slot[64];
    uint8_t epoch;          /* 1 … 127 */
    uint64_t confirm_lsn;   /* highest position that may be confirmed; 0: none yet */
    uint64_t log_offset;    /* the log was durable up to here when confirm_lsn was recorded */
};

enum tr_slot_state { TR_SLOT_NONE = 0, TR_SLOT_CREATING = 1, TR_SLOT_CREATED = 2 };

/* How far a table is, on the capture side. Numbers are persisted. */
#define TR_TABLE_STATES(X)                                                                                             \
    X(NEW, 0, "new")             /* known, not entered yet */                                                          \
    X(FENCING, 1, "fencing")     /* waiting for the fences of its snapshot */                                          \
    X(CHUNKS, 2, "snapshot")     /* SNAPSHOT_BEGIN is in the log; chunks are being read */                             \
    X(FILLING, 3, "filling")     /* all chunks are in; FILLs */                                                        \
    X(LIVE, 4, "live")           /* SNAPSHOT_END is in the log */                                                      \
    X(PAUSED, 5, "paused")       /* needs an operator: see reason */                                                   \
    X(NO_SNAPSHOT, 6, "changelog_only") /* no usable key: streamed, never snapshotted */

enum tr_table_state {
#define X(n, v, t) TR_TABLE_##n = v,
    TR_TABLE_STATES(X)
#undef X
};

/* What a table's snapshot read, and since when without a break it is streamed: cdc/snapshot_tables.c compares it at each look. All but the first as
 * in struct tr_cdc_table (cdc_source.h). 0: not known. */
struct tr_table_storage {
    uint64_t fingerprint; /* which table, in what storage: capture's, made and taken apart in cdc/snapshot_internal.h */
    uint64_t membership, filenode, attributes;
};

struct tr_ctl_table {
    uint32_t table_id;
    char ns[64], name[64];
    uint8_t state;
    uint64_t snapshot_id;   /* of the snapshot under way or last completed; grows */
    uint64_t begin_offset;  /* log offset at or below its SNAPSHOT_BEGIN frame; UINT64_MAX: none */
    uint64_t end_offset;    /* likewise of SNAPSHOT_END; UINT64_MAX: not complete */
    uint32_t schema_version;
    uint64_t rows_read, rows_estimate;
    struct tr_table_storage storage;
    char reason[512];
};

struct tr_ctl_chunk {
    uint32_t table_id;
    uint64_t snapshot_id;
    uint32_t seq;
    bool done;
    uint64_t rows;
    struct tr_slice lo, hi; /* encoded key bounds: (lo, hi]; empty lo: from the start, empty hi: to the end */
};

/* How far a table is in one sink. Numbers are persisted. */
#define TR_SINK_TABLE_STATES(X)                                                                                        \
    X(WAITING, 0, "waiting")         /* no SNAPSHOT_BEGIN seen yet */                                                  \
    X(LOADING, 1, "loading")         /* pass 1: READ rows into the shadow */                                           \
    X(CATCHING_UP, 2, "catching_up") /* pass 2: changes from BEGIN into the shadow, or from a pause into the mirror */ \
    X(LIVE, 3, "live")                                                                                                 \
    X(PAUSED, 4, "paused")           /* see reason; continues at pause_offset */                                       \
    X(GAPPED, 5, "gapped")           /* the log no longer holds what it needs: re-snapshot */                          \
    X(REFUSED, 6, "refused")         /* reserved: no release has written it */

enum tr_sink_table_state {
#define X(n, v, t) TR_ST_##n = v,
    TR_SINK_TABLE_STATES(X)
#undef X
};

struct tr_ctl_sink_table {
    uint32_t table_id;
    uint8_t state;
    bool relive;               /* PAUSED, CATCHING_UP: the mirror exists and is continued in place (no shadow) */
    bool mirror_live;          /* a mirror exists and receives changes while its shadow is built */
    uint64_t snapshot_id;      /* of the shadow being built, or of the live mirror */
    uint64_t begin_offset;     /* of that snapshot's SNAPSHOT_BEGIN */
    uint64_t end_offset;       /* of its SNAPSHOT_END; UINT64_MAX: not seen yet */
    uint64_t catchup_offset;   /* LOADING: next offset of pass 1; CATCHING_UP: of pass 2 */
    uint64_t pause_offset;     /* PAUSED: first offset not applied */
    uint64_t log_from;         /* first offset that the changelog table lacks, having refused it; UINT64_MAX: none */
    char reason[512];
};

struct tr_ctl_offset {         /* one commit of a sink */
    const char *sink;
    uint32_t partition;
    uint64_t offset;           /* next offset to apply; below what is committed already: refused */
    bool set_back;             /* unless the log itself has lost what it held */
    const struct tr_ctl_sink_table *tables; /* rows to put in the same transaction */
    uint32_t n_tables;
};

/* What stands still, or was lost, until somebody acts. Names are persisted. */
#define TR_ALARM_KINDS(X)                                                                                              \
    X(LAG, "lag")             /* a sink is over its freshness target */                                                \
    X(HEADROOM, "headroom")   /* the source may give up on our slot */                                                 \
    X(TABLE, "table")         /* a table is paused, at capture or in a sink */                                         \
    X(CHANGELOG, "changelog") /* a sink's changelog table lacks changes for ever */                                    \
    X(GAPPED, "gapped")       /* the log does not hold any more what a sink had not read */

enum tr_alarm {
#define X(n, t) TR_ALARM_##n,
    TR_ALARM_KINDS(X)
#undef X
    TR_ALARM_COUNT
};

enum { TR_ALARM_SUBJECT_CHARS = 160 };

static inline const char *tr_alarm_kind(enum tr_alarm a)
{
#define X(n, t) t,
    static const char *const names[] = {TR_ALARM_KINDS(X)};
#undef X
    return names[a];
}

/* The subject of an alarm about one table, "schema.table": in a sink, or (NULL) at capture. Those about a sink or the source as a whole have its
 * name. Returns ret. */
static inline const char *tr_alarm_subject(char ret[TR_ALARM_SUBJECT_CHARS], const char *sink, const char *table)
{
    if (sink)
        snprintf(ret, TR_ALARM_SUBJECT_CHARS, "%.60s/%.90s", sink, table);
    else
        snprintf(ret, TR_ALARM_SUBJECT_CHARS, "%.159s", table);
    return ret;
}

struct tr_ctl_alarm {
    char kind[32];             /* TR_ALARM_KINDS, or one that another release knows */
    char subject[TR_ALARM_SUBJECT_CHARS];
    char text[512];
    int64_t since_us;
};

struct tr_ctl_audit {
    int64_t at_us;
    char actor[64], action[64], subject[160], outcome[32], detail[512];
};

struct tr_control_ops {
    /* leases: take succeeds when the lease is free, expired or already ours (same holder); else RETRY naming the holder. Expiry is
     * by the store's own clock. A new holder's token is above the last one and not below the wall clock in µs, so that of two
     * stores that feed one sink the later taker's is the higher. renew: FENCED when lost. */
    int (*lease_take)(struct tr_control *c, const char *name, const char *holder, int64_t ttl_ms, uint64_t *ret_token, struct tr_err *err);
    int (*lease_renew)(struct tr_control *c, const char *name, uint64_t token, int64_t ttl_ms, struct tr_err *err);
    int (*lease_release)(struct tr_control *c, const char *name, uint64_t token, struct tr_err *err);
    /* the lease under which all following mutating calls of this handle act */
    void (*act_under)(struct tr_control *c, const char *lease, uint64_t token);

    int (*source_get)(struct tr_control *c, const char *source, struct tr_ctl_source *ret, struct tr_err *err); /* zeroed when unknown */
    int (*source_bind)(struct tr_control *c, const char *source, const struct tr_ctl_source *v, struct tr_err *err);
    int (*confirm)(struct tr_control *c, const char *source, uint64_t confirm_lsn, uint64_t log_offset, struct tr_err *err); /* never goes back */
    int (*slot_get)(struct tr_control *c, const char *source, char slot[64], enum tr_slot_state *ret, struct tr_err *err);
    int (*slot_put)(struct tr_control *c, const char *source, const char *slot, enum tr_slot_state state, struct tr_err *err);

    int (*table_ensure)(struct tr_control *c, const char *source, const char *ns, const char *name, struct tr_ctl_table *ret, struct tr_err *err);
    int (*table_put)(struct tr_control *c, const struct tr_ctl_table *v, struct tr_err *err); /* all but table_id, ns, name */
    int (*table_list)(struct tr_control *c, const char *source, void (*cb)(void *arg, const struct tr_ctl_table *t), void *arg, struct tr_err *err);
    /* Rises, and is not below the wall clock in µs: a mirror in a sink is told by it, also from one that another store's owner built there. */
    int (*snapshot_id_next)(struct tr_control *c, uint64_t *ret, struct tr_err *err);

    int (*schema_put)(struct tr_control *c, uint32_t table_id, uint64_t effective_lsn, struct tr_slice bytes, uint64_t fingerprint,
                      uint32_t *ret_version, struct tr_err *err); /* same fingerprint as the latest: its version; one that returns after another is new */
    int (*schema_list)(struct tr_control *c, uint32_t table_id, void (*cb)(void *arg, uint32_t version, uint64_t effective_lsn, struct tr_slice bytes),
                       void *arg, struct tr_err *err);

    int (*chunk_put)(struct tr_control *c, const struct tr_ctl_chunk *v, struct tr_err *err);
    int (*chunk_list)(struct tr_control *c, uint32_t table_id, uint64_t snapshot_id, void (*cb)(void *arg, const struct tr_ctl_chunk *k), void *arg, struct tr_err *err);
    int (*chunk_clear)(struct tr_control *c, uint32_t table_id, uint64_t below_snapshot_id, struct tr_err *err);

    int (*offset_get)(struct tr_control *c, const char *sink, uint32_t partition, uint64_t *ret, struct tr_err *err); /* 0 when unknown; rc 1 then */
    int (*offset_commit)(struct tr_control *c, const struct tr_ctl_offset *v, struct tr_err *err);
    int (*sink_table_list)(struct tr_control *c, const char *sink, void (*cb)(void *arg, const struct tr_ctl_sink_table *t), void *arg, struct tr_err *err);
    int (*sink_list)(struct tr_control *c, void (*cb)(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us), void *arg, struct tr_err *err);

    /* Requests from operators (token 0 accepted): picked up by the running process, or at its next start. kind: "resume"
     * or "resnapshot". The audit row is written in the same transaction. */
    int (*request_put)(struct tr_control *c, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err);
    int (*request_take)(struct tr_control *c, char kind[32], char scope[64], char table[160], struct tr_err *err); /* AGAIN: none */
    int (*audit)(struct tr_control *c, const struct tr_ctl_audit *v, struct tr_err *err);
    int (*audit_list)(struct tr_control *c, uint32_t last, void (*cb)(void *arg, const struct tr_ctl_audit *a), void *arg, struct tr_err *err);

    int (*alarm_set)(struct tr_control *c, const char *kind, const char *subject, const char *text, struct tr_err *err); /* keeps since_us of one already set */
    int (*alarm_clear)(struct tr_control *c, const char *kind, const char *subject, struct tr_err *err);
    int (*alarm_list)(struct tr_control *c, void (*cb)(void *arg, const struct tr_ctl_alarm *a), void *arg, struct tr_err *err);

    void (*close)(struct tr_control *c);
};

struct tr_control { /* first member of an implementation's own struct */
    const struct tr_control_ops *ops;
};

/* text NULL: it is over. Errors of the store are not answered. */
static inline void tr_control_alarm(struct tr_control *c, enum tr_alarm kind, const char *subject, const char *text)
{
    if (text)
        c->ops->alarm_set(c, tr_alarm_kind(kind), subject, text, NULL);
    else
        c->ops->alarm_clear(c, tr_alarm_kind(kind), subject, NULL);
}

#endif
