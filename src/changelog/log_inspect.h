/*
 * log_inspect.h: looking at a log's files from outside: `tailrace log ls|cat|verify`.
 *
 * No lock is taken and nothing is written, so another process may append meanwhile. Segments that retention removes or recycles under
 * our eyes are skipped. What is behind the last transaction end of the last segment is not judged: it may be on its way.
 *
 * Ownership: everything handed to a callback is borrowed for the call. A callback below 0 ends the walk with that value.
 * Threads: any; each call stands alone.
 * Errors: NOT_READY: there is no log; FATAL: damaged (verify reports damage to its callback instead, and goes on).
 */
#ifndef TR_LOG_INSPECT_H
#define TR_LOG_INSPECT_H

#include "changelog.h"

struct tr_fs;

struct tr_log_table_use {
    uint32_t table_id, version;
    const char *ns, *name;
};

struct tr_log_segment_info {
    uint32_t partition;
    const char *path;
    uint64_t base, frames;      /* offsets base … base + frames - 1 */
    uint64_t data_bytes, file_bytes;
    int64_t first_us, last_us;  /* our clock: made, sealed; of the last segment last_us is 0 */
    bool last;
    const struct tr_log_table_use *tables; /* definitions that stand in it */
    uint32_t n_tables;
};

typedef int (*tr_log_segment_fn)(void *arg, const struct tr_log_segment_info *s);
typedef int (*tr_log_frame_fn)(void *arg, uint32_t partition, const struct tr_frame *f); /* change.schema is set when it is known */
typedef int (*tr_log_damage_fn)(void *arg, const char *path, uint64_t pos, const char *what);

int tr_log_inspect_partitions(struct tr_fs *fs, const char *dir, uint32_t *ret, struct tr_err *err);
int tr_log_inspect_ls(struct tr_fs *fs, const char *dir, tr_log_segment_fn fn, void *arg, struct tr_err *err);
/* From offset on, at most max frames (0: all). FATAL with err->code = oldest when offset is below what is held. */
int tr_log_inspect_cat(struct tr_fs *fs, const char *dir, uint32_t partition, uint64_t offset, uint64_t max, tr_log_frame_fn fn, void *arg, struct tr_err *err);

struct tr_log_verdict {
    uint64_t segments, frames, bytes, damaged;
};

/* Every byte of every segment: headers, checksums, bodies, offsets without a gap, definitions before their use, indexes, nothing but
 * zeros behind the data of sealed segments. Returns 0 also when damage was found: see ret->damaged. */
int tr_log_inspect_verify(struct tr_fs *fs, const char *dir, tr_log_damage_fn fn, void *arg, struct tr_log_verdict *ret, struct tr_err *err);

#endif
