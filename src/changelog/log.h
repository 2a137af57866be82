/*
 * log.h: the embedded change log, one directory of segment files behind spi/changelog.h.
 *
 * Layout (docs/formats/segment.md):
 *   <dir>/LOCK            held by the process that appends; RETRY names it
 *   <dir>/log.meta        format and number of partitions, written last when a log is made
 *   <dir>/p0000/          one partition
 *     <20 digits>.seg     a segment; the name is the offset of its first frame
 *     <20 digits>.idx     of a sealed segment: sparse index and definitions; rebuilt when missing or bad
 *     tail                how far the last segment was known durable when it was written: frames below must be intact
 *     ready-*, spare-*    files for segments to come: zeroed, and not yet zeroed
 *
 * Decisions.
 * - Stale bytes: *zeroing ahead*. A segment comes into life only from a file that is all zero behind its header (fresh, or recycled and
 *   zeroed and synced under another name), recovery zeroes whatever is not zero behind the cut, and a failed append zeroes what it left
 *   before anything else is written. So behind the tail there is nothing that could be taken for a frame, whatever a crash keeps.
 *   Frames on disk stay exactly what the encoder made, and archive and tools need no salt to read them.
 * - A roll waits for the disk: the old segment is synced wholly, the new one's header and name too, before a frame goes into it. Hence every
 *   segment but the last is complete and durable, any fault in one is corruption, and recovery walks the last segment only (each
 *   header carries the state at its beginning). An append goes into one segment as a whole, which may make that one larger.
 * - Removals are synced one by one, oldest first, so that a crash never leaves a hole.
 *
 * Ownership: the log borrows fs and metrics; both outlive it. Readers are freed before close.
 * Threads: as changelog.h says. Each partition has a sync thread, and the log one more for housekeeping (zeroing files for segments to
 * come, writing indexes and, once a second, marks), unless sync_thread is false: then the owner calls
 * tr_log_embedded_sync, durable() does not wait, and everything runs on one thread, reproducibly.
 */
#ifndef TR_LOG_H
#define TR_LOG_H

#include "changelog.h"

struct tr_fs;
struct tr_metrics;

enum { TR_LOG_PARTITIONS_MAX = 64, TR_LOG_SPARES_MAX = 4 };
#define TR_LOG_SEGMENT_BYTES_DEFAULT (UINT64_C(64) << 20)
#define TR_LOG_SEGMENT_BYTES_MIN (UINT64_C(8) << 10)
#define TR_LOG_SEGMENT_BYTES_MAX (UINT64_C(16) << 30)
#define TR_LOG_RETENTION_US_DEFAULT (INT64_C(7) * 86400 * 1000000)

struct tr_log_options {
    const char *dir;
    uint64_t segment_bytes; /* 0: the default */
    uint64_t size_max;      /* of all partitions, spares aside; each gets an equal share. 0: no bound */
    int64_t retention_us;   /* 0: the default; INT64_MAX: for ever */
    uint32_t partitions;    /* 1 … 64; 0: 1. Fixed for the life of the log */
    struct tr_fs *fs;       /* NULL: the real one */
    struct tr_metrics *metrics; /* NULL: not counted */
    bool sync_thread;
};

/* Defaults, and sync_thread set. */
void tr_log_options_init(struct tr_log_options *o);

/* Makes or recovers the log. RETRY: another process has it, or no space; REJECT: an option that makes no sense; FATAL: corruption, with
 * file and position. */
int tr_log_embedded_open(const struct tr_log_options *o, struct tr_log **ret, struct tr_err *err);

/* What the sync threads do, by hand: one group commit of every partition, then one step of housekeeping. Only without sync_thread. */
int tr_log_embedded_sync(struct tr_log *l, struct tr_err *err);

/* As close, but as a crashed process would leave it: nothing is synced or written. For tests. */
void tr_log_embedded_abandon(struct tr_log *l);

#endif
