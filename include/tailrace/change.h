/*
 * change.h: one thing that happened to one row, as it travels from a source through the change log to a sink.
 *
 * A tr_change borrows everything it points to, for exactly one call (push_batch, encode). Who needs it longer encodes it.
 *
 * Four states of a column, kept apart from capture to sink:
 *   PRESENT    the text is here
 *   NULL       SQL NULL
 *   UNCHANGED  the source did not send it because the row keeps the value it had (an untouched TOAST value)
 *   ABSENT     unknown and not to be touched (the non-key columns of a key-only before image)
 *
 * Version: strictly increasing in the log over row operations (READ and FILL carry their SNAPSHOT_BEGIN's); a sink keeps
 * the higher version per key. A change with MOVED set is a key update: it owns *two* versions, `version` for the tombstone
 * of the old key and `version + 1` for the upsert of the new one.
 *
 * Identity: (epoch, commit_lsn, ordinal). Equal identity is the same change, delivered again.
 */
#ifndef TAILRACE_CHANGE_H
#define TAILRACE_CHANGE_H

#include <tailrace/schema.h>
#include <tailrace/slice.h>

/* Numbers are a persisted format: append only. */
#define TR_OP_LIST(X)                                                                                                  \
    X(READ, 1, "read")                     /* a row of a snapshot chunk */                                             \
    X(INSERT, 2, "insert")                                                                                             \
    X(UPDATE, 3, "update")                                                                                             \
    X(DELETE, 4, "delete")                                                                                             \
    X(TRUNCATE, 5, "truncate")                                                                                         \
    X(COMMIT, 6, "commit")                 /* ends the frames of one source transaction */                             \
    X(SCHEMA, 7, "schema")                 /* a definition, before its first use */                                    \
    X(SNAPSHOT_BEGIN, 8, "snapshot_begin")                                                                             \
    X(SNAPSHOT_END, 9, "snapshot_end")                                                                                 \
    X(FILL, 10, "fill")                    /* the unchanged values of one key update, read later by its new key */     \
    X(HEARTBEAT, 11, "heartbeat")                                                                                      \
    X(MESSAGE, 12, "message")              /* a transactional logical message */

enum tr_op {
#define X(name, num, text) TR_OP_##name = num,
    TR_OP_LIST(X)
#undef X
};

enum tr_state { TR_ABSENT = 0, TR_NULL = 1, TR_UNCHANGED = 2, TR_PRESENT = 3 }; /* persisted: two bits */

/* Columns by schema index. n may be 0: no image at all. */
struct tr_row {
    const struct tr_slice *v; /* v[i] is meaningful where state[i] is TR_PRESENT */
    const uint8_t *state;     /* enum tr_state */
    uint32_t n;
};

enum {                       /* tr_change.flags; the low byte is persisted in frames */
    TR_CHG_MOVED = 1 << 0,   /* UPDATE of the key: old_key and key differ */
    TR_CHG_UNCHANGED = 1 << 1, /* some column of `after` is UNCHANGED */
    TR_CHG_EMPTY = 1 << 2,   /* FILL: the row was no more */
    TR_CHG_NO_UPSERT = 1 << 8, /* apply's note to the sink: the tombstone half only (an empty FILL) */
    TR_CHG_FILLED = 1 << 9,    /* apply's note: unchanged columns were completed from a FILL, which wins over live rows */
};

struct tr_change {
    uint8_t op;      /* enum tr_op */
    uint8_t epoch;   /* 0..127 */
    uint16_t flags;
    uint32_t ordinal; /* 0-based within the transaction, over surviving row changes */
    const struct tr_schema *schema; /* NULL for COMMIT, MESSAGE */
    uint64_t version;
    uint64_t commit_lsn;  /* of the commit record; for READ, FILL: 0, or for FILL that of the change it completes */
    uint64_t change_lsn;  /* of the change's own record; not ordered per key */
    uint64_t end_lsn;     /* COMMIT: end of the transaction; READ, FILL, SNAPSHOT_END: H, what must have passed */
    uint64_t xid;         /* top-level, 64 bits with the wraparound epoch where the source gives it */
    uint64_t snapshot_id; /* READ, FILL, SNAPSHOT_BEGIN, SNAPSHOT_END */
    int64_t commit_us;    /* Unix microseconds, the source's clock */
    int64_t capture_us;   /* Unix microseconds, ours */
    struct tr_slice key;     /* encoded key of the row as it is after the change; of the deleted row for DELETE */
    struct tr_slice old_key; /* MOVED: the key before */
    struct tr_row before;    /* what the source gave of the old row */
    struct tr_row after;
    struct tr_slice message; /* MESSAGE: content; prefix is not carried */
};

static inline bool tr_op_is_row(uint8_t op)
{
    return op >= TR_OP_READ && op <= TR_OP_TRUNCATE;
}

/* Frames that open a source transaction, which only COMMIT closes. All others stand between or inside without effect. */
static inline bool tr_op_opens_tx(uint8_t op)
{
    return (op >= TR_OP_INSERT && op <= TR_OP_TRUNCATE) || op == TR_OP_HEARTBEAT || op == TR_OP_MESSAGE;
}

const char *tr_op_name(uint8_t op);

#endif
