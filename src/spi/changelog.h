/*
 * changelog.h: the contract of the change log, the only system of record.
 *
 * The log is partitioned; a partition is a sequence of frames with dense offsets 0, 1, 2 … that are never reused. A frame
 * is one tr_change in its persisted form (codec/frame.h, docs/formats/frame.md), with a CRC32C of its own. A row change
 * names its schema by (table_id, version); the definition stands in band before its first use in every segment (repeated
 * definitions have no offset of their own).
 *
 * Transactions. The frames of one source transaction are contiguous and end with COMMIT. tr_op_opens_tx says which ops open
 * one; others (READ, FILL, SCHEMA, SNAPSHOT_BEGIN/END) stand alone. The *durable position* and all readers move only to
 * places where no transaction is open. Recovery cuts an incomplete tail, whose offsets nobody has seen.
 *
 * Appending: one appender (capture), one thread. append copies encoded frames behind the end; it does not wait for the
 * disk. AGAIN: the partition's size bound is reached and retention may not free anything (what waits only for the end of the open
 * transaction is no hindrance: until then the bound is exceeded); a full disk is RETRY with errno:
 * capture stops, loudly, and loses nothing: the same frames are appended again later. An append that failed half way leaves
 * no trace (the tail is as before).
 * durable waits until at least one new transaction end is on disk or the timeout passed and returns the durable offset
 * (one past the last durable frame). Group commit: whatever was appended meanwhile shares one fdatasync.
 * cut: takes back what was appended behind the last transaction end, as recovery would. For a capture pipeline that failed in the
 * middle of a transaction and starts again in the same process.
 * tail: identity of the last complete transaction and the highest version it holds, found again at open by reading the tail.
 *
 * Reading: any number of readers, each owned by one thread. poll yields frames borrowed until the next poll, never beyond the
 * durable offset. AGAIN: at the end; arm as a lane. Below retention: FATAL, err->code = oldest offset held, never a silent
 * jump. A frame whose CRC does not match: FATAL naming segment and offset.
 * schema: the definition of (table_id, version) as of the frames polled so far; borrowed, NULL when unknown.
 * A reader holds retention at its position while `pin` is set by its owner through tr_log_pin.
 *
 * Threads: append and tail the appender's; durable, pin, stats, readers' wake-ups any thread.
 */
#ifndef TR_CHANGELOG_H
#define TR_CHANGELOG_H

#include <tailrace/change.h>
#include <tailrace/source.h>

struct tr_log;
struct tr_log_reader;

struct tr_pos {              /* zeroed: the log is empty */
    uint64_t offset;         /* one past the last complete frame */
    uint64_t commit_lsn;     /* of the last COMMIT frame of this epoch */
    uint64_t version;        /* highest version given so far, both halves of a key update counted */
    uint8_t epoch;           /* of the last COMMIT or SNAPSHOT_BEGIN frame */
    bool any_commit;         /* in this epoch */
};

struct tr_frame {
    uint64_t offset;
    struct tr_change change; /* rows are NOT decoded: before/after.n is 0; see image/old_image */
    uint32_t table_id, schema_version;
    struct tr_slice image, old_image; /* codec/rowimage.h */
    struct tr_slice raw;              /* the whole encoded frame */
    bool tx_end;                      /* no transaction is open after this frame */
};

/* A run of encoded frames, as made by codec/frame.h. */
struct tr_log_run {
    struct tr_slice bytes;
    uint32_t frames;
};

struct tr_log_stats {
    uint64_t first_offset, durable_offset, appended_offset;
    uint64_t bytes, segments, size_max;
    int64_t oldest_us;             /* append time of the oldest segment, Unix µs */
    uint64_t pinned_offset;        /* lowest pin, UINT64_MAX: none */
};

struct tr_log_ops {
    int (*append)(struct tr_log *l, uint32_t partition, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err);
    int (*durable)(struct tr_log *l, uint32_t partition, uint64_t want, int timeout_ms, uint64_t *ret_offset, struct tr_err *err);
    int (*tail)(struct tr_log *l, uint32_t partition, struct tr_pos *ret, struct tr_err *err);
    int (*cut)(struct tr_log *l, uint32_t partition, struct tr_err *err);
    int (*reader_new)(struct tr_log *l, uint32_t partition, uint64_t offset, struct tr_log_reader **ret, struct tr_err *err);
    int (*pin)(struct tr_log *l, const char *who, uint32_t partition, uint64_t offset, struct tr_err *err); /* UINT64_MAX: unpin */
    int (*stats)(struct tr_log *l, uint32_t partition, struct tr_log_stats *ret, struct tr_err *err);
    int (*retain)(struct tr_log *l, int64_t now_us, struct tr_err *err); /* applies retention; the log's owner calls it now and then */
    void (*close)(struct tr_log *l);
};

struct tr_log {
    const struct tr_log_ops *ops;
    uint32_t partitions;
};

struct tr_log_reader_ops {
    int (*poll)(struct tr_log_reader *r, struct tr_frame *v, size_t max, struct tr_err *err); /* number of frames, or AGAIN, FATAL */
    int (*arm)(struct tr_log_reader *r, struct tr_waker *w, struct tr_wait *ret);             /* 1: data is ready */
    const struct tr_schema *(*schema)(struct tr_log_reader *r, uint32_t table_id, uint32_t version);
    int (*seek)(struct tr_log_reader *r, uint64_t offset, struct tr_err *err);
    void (*free)(struct tr_log_reader *r);
};

/* What a reader wants; zeroed: everything. Of frames that it does not want, poll yields the last of a run, with nothing but offset, table_id, op and
 * tx_end; their bytes are not looked at. SCHEMA frames always come. */
struct tr_log_want {
    uint32_t table_id; /* frames of this table only; 0: of all */
    uint32_t skip;     /* 1 << op, for each kind that is not wanted */
};

struct tr_log_reader {
    const struct tr_log_reader_ops *ops;
    uint64_t next; /* offset of the next frame poll will yield */
    struct tr_log_want want; /* the owner's, to be changed between polls */
};

static inline int tr_log_append(struct tr_log *l, uint32_t p, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err)
{
    return l->ops->append(l, p, v, n, ret_next, err);
}
/* Waits until the durable offset is >= want (0: any progress) or the timeout passed (AGAIN). */
static inline int tr_log_durable(struct tr_log *l, uint32_t p, uint64_t want, int timeout_ms, uint64_t *ret, struct tr_err *err)
{
    return l->ops->durable(l, p, want, timeout_ms, ret, err);
}
static inline int tr_log_tail(struct tr_log *l, uint32_t p, struct tr_pos *ret, struct tr_err *err)
{
    return l->ops->tail(l, p, ret, err);
}
static inline int tr_log_reader_poll(struct tr_log_reader *r, struct tr_frame *v, size_t max, struct tr_err *err)
{
    return r->ops->poll(r, v, max, err);
}

#endif
