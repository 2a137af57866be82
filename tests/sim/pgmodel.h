/*
 * pgmodel.h: a model of PostgreSQL, small and random where the real one may do this or that: rows with versions, transactions with
 * subtransactions, snapshots, a write-ahead log that a crash cuts off, a standby, a publication, a slot and its walsender.
 *
 *   pgmodel.c   transactions, rows, WAL, crash, standby
 *   pgwire.c    the walsender's messages, and libpq: the shipped stream (pg_stream.c, pg_decode.c, pg_txbuf.c) talks to it
 *   pgsource.c  spi/cdc_source.h on the model: sessions, chunks, fences
 *
 * What it has that matters: a transaction is flushed, and streamed, before it is visible (a commit that hangs in synchronous
 * replication); or visible before it is flushed (asynchronous commit), and a crash undoes it and gives its id and its LSN out again; a row
 * is logged before its unique index is checked, so that INSERT waits behind it; TRUNCATE locks and is not bound to snapshots; a table
 * enters a publication in the middle of transactions. Facts: docs/decisions/0002-snapshot.md.
 *
 * Tables: id integer PRIMARY KEY, a integer, t text of which updates say "unchanged". Keys 1 … KEYS.
 *
 * One model at a time, one thread of the scheduler at a time: nothing here waits but sessions, which say so.
 */
#ifndef PGMODEL_H
#define PGMODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/buf.h>

#include "cdc_source.h"
#include "prng.h"

enum { PG_PUBLISHINGS_MAX = 256, PG_TABLES = 2, PG_KEYS = 6, PG_TX_MAX = 2048, PG_REC_MAX = 16384, PG_VER_MAX = 8192, PG_PENDING_MAX = 8 };
#define PG_BASE UINT64_C(0x1000000)
#define PG_REC_BYTES 32

enum pg_tx_state { TX_ACTIVE, TX_RECORDED, TX_VISIBLE, TX_ABORTED }; /* RECORDED: the commit record is written, and nobody sees it yet */
enum pg_kind { K_INSERT, K_UPDATE, K_UPDATE_T, K_MOVE, K_DELETE, K_TRUNCATE, K_BEAT };
enum pg_rec_type { REC_CHANGE, REC_COMMIT, REC_ABORT, REC_SUB_ABORT, REC_RESTART };

struct pg_tx {
    enum pg_tx_state state;
    int parent;               /* -1: a top-level one */
    uint64_t xid;             /* 0: none yet */
    bool async, hangs, wrote[PG_TABLES], truncated;
    int storage[PG_TABLES];   /* of its own TRUNCATE, not yet everybody's; -1 */
    int commit_rec;           /* -1 */
    int64_t commit_us;
    int pending[PG_PENDING_MAX]; /* versions whose unique check waits */
    uint32_t n_pending;
    int sub;                  /* the savepoint in force; -1 */
};

struct pg_ver {
    uint8_t table, key;
    uint32_t a, t;
    int xmin, xmax, storage;  /* transactions; xmax -1 */
    bool indexed, gone;       /* gone: of a transaction that a crash has undone */
};

struct pg_rec {
    enum pg_rec_type type;
    enum pg_kind kind;
    int tx;                   /* may be a subtransaction; -1: nobody's */
    uint8_t table, k1, k2;
    uint32_t a, t;
    bool unchanged;           /* t */
    uint64_t xid;
};

struct pg_row {
    bool there;
    uint32_t a, t;
};

struct pg_snapshot {
    uint64_t xmin, xmax;
    uint32_t n;               /* transactions made later are not in it */
    bool visible[PG_TX_MAX];
};

struct pg_counts {
    uint64_t tx, commits, aborts, sub_aborts, moves, truncates, async_undone, hung_streamed, unique_waits, crashes, failovers, slots_lost, streamed, streamed_aborted, chunks,
        replica_chunks, fills, empty_fills, fence_waits, beats, adds, removals;
};

struct pgmodel {
    struct tr_prng *prng;
    struct pg_counts *c;
    bool with_async, with_hang, with_replica; /* of this seed */
    uint32_t crash_after_read; /* one time in so many the server crashes when a client has just read; 0: never */
    uint32_t stream_one_in;   /* a change of an open transaction makes the walsender stream it, one time in so many; 0: never */
    int server_version;

    struct pg_tx tx[PG_TX_MAX];
    uint32_t n_tx;
    struct pg_ver ver[PG_VER_MAX];
    uint32_t n_ver;
    struct pg_rec wal[PG_REC_MAX];
    uint32_t n_wal, flushed, replayed;
    uint64_t next_xid, latest_xid; /* latest_xid: highest completed */
    int storage[PG_TABLES], next_storage;
    uint32_t value;
    uint32_t timeline;
    bool up;                  /* takes connections */
    uint64_t boot;            /* grows with each restart: connections of an older one are dead */
    bool cut;                 /* the network: nothing arrives */

    uint32_t sent_max;        /* the walsender lags: it has got no further than this record */

    /* what selects and carries the tables */
    bool hidden[PG_TABLES];   /* not selected by the configuration yet */
    struct pg_publishing {    /* since that record, it is published or not */
        uint32_t rec;
        bool on;
    } publishing[PG_TABLES][PG_PUBLISHINGS_MAX];
    uint32_t n_publishing[PG_TABLES];
    bool by_first;            /* a transaction is published if it first wrote after that; else each change by its own place */
    uint64_t membership[PG_TABLES];
    struct pg_slot {
        bool exists, lost;
        uint64_t confirmed, on_disk; /* a crash may bring the latter back */
        uint64_t created;
        int64_t active_until_ns;
        void *active;         /* connection */
    } slot;

    uint64_t generation;      /* of all sessions ever connected */
};

void pgmodel_init(struct pgmodel *m, struct tr_prng *prng, struct pg_counts *c);

static inline uint64_t pg_lsn(uint32_t rec)
{
    return PG_BASE + (uint64_t)rec * PG_REC_BYTES;
}

static inline uint32_t pg_rec_at(uint64_t lsn)
{
    return lsn <= PG_BASE ? 0 : (uint32_t)((lsn - PG_BASE + PG_REC_BYTES - 1) / PG_REC_BYTES);
}

/* ---- what clients do; false: it has to wait, or there is nothing to do */
int pgmodel_begin(struct pgmodel *m);
bool pgmodel_op(struct pgmodel *m, int tx, enum pg_kind kind, uint32_t table, uint32_t k1, uint32_t k2, bool late_check);
bool pgmodel_check(struct pgmodel *m, int tx);     /* goes on with the unique checks that wait */
void pgmodel_savepoint(struct pgmodel *m, int tx);
void pgmodel_rollback_to(struct pgmodel *m, int tx);
void pgmodel_commit(struct pgmodel *m, int tx);    /* writes the record */
bool pgmodel_can_show(const struct pgmodel *m, int tx);
void pgmodel_show(struct pgmodel *m, int tx);      /* to others */
void pgmodel_abort(struct pgmodel *m, int tx);
uint64_t pgmodel_xid(struct pgmodel *m);           /* takes an id and gives it up again */
void pgmodel_beat(struct pgmodel *m, int64_t at_us);
void pgmodel_flush(struct pgmodel *m, uint32_t upto);
void pgmodel_crash(struct pgmodel *m);             /* comes back when `up` is set */
void pgmodel_promote(struct pgmodel *m);           /* the standby takes its place */

/* ---- what is there */
int pgmodel_top(const struct pgmodel *m, int tx);
bool pgmodel_open(const struct pgmodel *m, int tx); /* active or recorded */
uint64_t pgmodel_xmin(const struct pgmodel *m);
uint64_t pgmodel_replica_xmin(const struct pgmodel *m);
void pgmodel_snapshot(const struct pgmodel *m, bool replica, struct pg_snapshot *ret);
bool pgmodel_locked(const struct pgmodel *m, uint32_t table, bool replica); /* by TRUNCATE */
/* The row as a read under this snapshot finds it now. */
struct pg_row pgmodel_read(const struct pgmodel *m, const struct pg_snapshot *s, bool replica, uint32_t table, uint32_t key);
struct pg_row pgmodel_now(const struct pgmodel *m, uint32_t table, uint32_t key); /* all that is visible */
bool pgmodel_is_published(const struct pgmodel *m, uint32_t rec);
bool pgmodel_publishes(const struct pgmodel *m, uint32_t table); /* now */
bool pgmodel_slot_active(const struct pgmodel *m); /* somebody reads from it, or the server has not noticed yet that nobody does */
void pgmodel_publish(struct pgmodel *m, uint32_t table, bool on);

/* ---- pgsource.c, pgwire.c */
struct tr_cdc *pgsource_new(struct pgmodel *m); /* of one life of the process; its memory is its own */
void pgwire_bind(struct pgmodel *m);
bool pgwire_fd_ready(int fd, short events);
void pgwire_hang_up(int64_t noticed_ns);        /* the process died: the server sees it then */
struct pg_result *pgwire_describe(void);        /* what the catalog says of each table: the columns that pg_schema.c asks for */

#endif
