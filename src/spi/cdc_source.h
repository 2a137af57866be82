/*
 * cdc_source.h: the contract of a source of row changes, beyond source.h. cdc/ sees only this; it knows no libpq.
 *
 * A tr_cdc makes two kinds of things:
 *   the stream    a tr_source with one lane (id 0): committed transactions in commit order, each change a decoded tr_change,
 *                 each end a TX_END payload whose tr_change is a COMMIT (commit_lsn, end_lsn, xid, commit_us). In-progress
 *                 transactions are held inside. Lane positions are LSNs; `upto` moves at transaction ends and, when no
 *                 transaction is being delivered, with keepalives. commit(watermark) confirms to the server.
 *   sessions      blocking conversations for snapshots, checks and heartbeats. One session belongs to one thread; every call
 *                 has a deadline (monotonic ns) that binds. RETRY: the connection is gone (the next call reconnects); whatever was
 *                 held (a chunk, a fence) is lost, and the caller is told by `generation`, which grows with each connection.
 *
 * Schemas given by the stream and by describe() carry table_id 0 and version 0: capture numbers them. Those of the stream carry source_id. Both must yield
 * the same fingerprint for the same table at the same moment.
 *
 * Values are text under the pinned settings of both, so that snapshot and stream store identical bytes.
 *
 * Waiting: a chunk or fence that cannot be passed yet answers NOT_READY and describes in err->msg the transaction waited for
 * (who, since when, what).
 */
#ifndef TR_CDC_SOURCE_H
#define TR_CDC_SOURCE_H

#include <tailrace/change.h>
#include <tailrace/component.h>
#include <tailrace/source.h>

struct tr_cdc;
struct tr_cdc_session;

struct tr_cdc_identity {
    char system_id[32];
    uint32_t timeline;
    int32_t server_version;   /* 150018 */
    char database[64];
    uint64_t position;        /* insert position now */
};

enum tr_finding_level { TR_FINDING_OK, TR_FINDING_NOTE, TR_FINDING_WARN, TR_FINDING_ERROR };

struct tr_finding {
    enum tr_finding_level level;
    char code[40];      /* stable, e.g. "wal_level" */
    char subject[160];
    char text[512];
    char cure[512];     /* a command or setting; "" for OK */
};

struct tr_cdc_slot {
    bool exists, active;
    int64_t active_pid;
    uint64_t confirmed, restart;
    uint64_t published;       /* when what selects the tables was made, if we made it; a slot confirmed before that cannot go on. 0: unknown */
    char wal_status[16];      /* reserved, extended, unreserved, lost */
    int64_t headroom_bytes;   /* bytes of WAL the server will still keep for us; INT64_MAX: unbounded */
    int64_t retained_bytes;   /* WAL held back by the slot now */
};

enum tr_cdc_role { TR_CDC_PRIMARY, TR_CDC_REPLICA };

/* A table that the configuration selects and that exists now. key_ok false: no_key says why. */
struct tr_cdc_table {
    char ns[64], name[64];
    bool published;               /* all that happens to it is streamed; false: unpublished says why */
    bool partial;                 /* but only some rows or columns: those that a snapshot reads as well */
    char unpublished[256];
    bool no_identity;             /* while it is published, UPDATE and DELETE of it fail at the source: a publication of ours does not hold it */
    bool generated_identity;      /* for it has a generated column, which is not published */
    bool key_ok;
    char no_key[256];
    uint64_t rows_estimate, bytes_estimate;
    uint64_t storage_fingerprint; /* over its own and its partitions' relfilenodes and membership: changes when rows may have
                                     appeared or gone without being streamed */
    uint64_t membership;          /* since when it is published without a break: another number when changes may have come that were not streamed. Upper half: what
                                     selects the tables, as a whole; lower half: the table's place in it. 0: it is not published */
    uint64_t filenode, attributes; /* its own storage, and over the definitions of its columns: when both change at once, its rows were rewritten. 0: does not apply */
    uint32_t source_id;           /* the table's own number, which it keeps when it is renamed: that of the stream's definitions of it */
};

/* How a heartbeat was sent: as a row of the heartbeat table or, for the reason given, as a transactional message, of which the stream makes
 * the same change of that table. cure: what would make the row possible. */
struct tr_cdc_beat {
    bool message;
    char why[256], cure[512];
};

/* One row of a chunk or of fetch. Borrowed until the session's next call. */
struct tr_cdc_row {
    const struct tr_schema *schema;
    struct tr_row row;
};

struct tr_cdc_ops {
    int (*session_new)(struct tr_cdc *c, enum tr_cdc_role role, struct tr_cdc_session **ret, struct tr_err *err);
    bool (*has_replica)(const struct tr_cdc *c);

    /* The stream, from `from` on (the position recorded in the control store; never below what the slot has confirmed, else
     * FATAL). Confirms nothing above what commit() was given. */
    int (*stream_new)(struct tr_cdc *c, uint64_t from, struct tr_source **ret, struct tr_err *err);

    void (*close)(struct tr_cdc *c);
    const char *(*slot_name)(const struct tr_cdc *c);
    void (*heartbeat_table)(const struct tr_cdc *c, const char **ret_ns, const char **ret_name); /* the table that heartbeat() writes, or seems to */
};

struct tr_cdc {
    const struct tr_cdc_ops *ops;
};

struct tr_cdc_session_ops {
    int (*identity)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_cdc_identity *ret, struct tr_err *err);
    int (*check)(struct tr_cdc_session *s, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_finding *f), void *arg, struct tr_err *err);
    int (*tables)(struct tr_cdc_session *s, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_cdc_table *t), void *arg, struct tr_err *err);
    int (*describe)(struct tr_cdc_session *s, const char *ns, const char *name, int64_t deadline_ns, struct tr_schema **ret, struct tr_err *err);

    /* Publication: holds exactly the selected tables (and the heartbeat table, if heartbeats are rows) afterwards; *ret_changed says whether it had to change. */
    int (*publish)(struct tr_cdc_session *s, int64_t deadline_ns, bool *ret_changed, struct tr_err *err);
    int (*slot_create)(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_lsn, struct tr_err *err);
    int (*slot_drop)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_err *err);
    int (*slot_state)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_cdc_slot *ret, struct tr_err *err);

    /* Fences (primary). fence_xid hands out a real transaction id (64 bits), taken in a transaction that is rolled back. xmin is
     * that of a fresh snapshot; *ret_xmin below the fence: err describes the oldest transaction. */
    int (*fence_xid)(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_xid, struct tr_err *err);
    int (*xmin)(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_xmin, struct tr_err *err);
    int (*position)(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_insert, uint64_t *ret_flush, struct tr_err *err);
    int (*nudge)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_err *err); /* writes a little WAL so that an idle stream moves */
    int (*flush)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_err *err); /* has everything written so far flushed, without waiting for standbys */
    uint64_t (*generation)(const struct tr_cdc_session *s);

    /* Chunks. plan: the upper bound (encoded key, into ret_hi) of the next chunk of about `rows` rows after lo; empty: this is the
     * last one. open: a REPEATABLE READ snapshot with xmin >= min_xmin, else NOT_READY. next: AGAIN never; EOF at the end. close: ends
     * the transaction after taking H (insert position on the primary, replay position on a replica; *ret_needs_flush says whether
     * the caller must wait for flush >= H with `position` on this same connection). A second chunk may not be open. */
    int (*chunk_plan)(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice lo, uint64_t rows, int64_t deadline_ns,
                      struct tr_buf *ret_hi, struct tr_err *err);
    int (*chunk_open)(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice lo, struct tr_slice hi, uint64_t min_xmin,
                      int64_t deadline_ns, struct tr_err *err);
    int (*chunk_next)(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_cdc_row *ret, struct tr_err *err);
    int (*chunk_close)(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err);

    /* One row by key, under a snapshot in which transaction xid is visible as committed (else NOT_READY). Rc 1: no such row. Ends its
     * transaction and returns H as close does. */
    int (*fetch)(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice key, uint64_t xid, int64_t deadline_ns,
                 struct tr_cdc_row *ret, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err);

    /* Writes the heartbeat row (or a transactional message where no table may be written or published), synchronous_commit=local. */
    int (*heartbeat)(struct tr_cdc_session *s, int64_t now_us, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err);

    void (*interrupt)(struct tr_cdc_session *s); /* any thread: the call under way returns RETRY soon */
    void (*free)(struct tr_cdc_session *s);
};

struct tr_cdc_session { /* first member of an implementation's own struct */
    const struct tr_cdc_session_ops *ops;
};

#endif
