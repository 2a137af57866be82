/*
 * log_segment.h: the bytes of segments and indexes (docs/formats/segment.md), and walking over the frames of one.
 *
 * Ownership: an index and a scan own their buffers; a scan borrows its file.
 * Threads: one at a time.
 * Errors: REJECT from decoders: the bytes are not what they should be; who calls decides whether that is a tail or corruption.
 */
#ifndef TR_LOG_SEGMENT_H
#define TR_LOG_SEGMENT_H

#include <tailrace/buf.h>

#include "changelog.h"
#include "frame.h"
#include "fs.h"

#define TR_LOGSEG_DATA 4096u        /* first frame; the header has a page to itself, so that appending never rewrites it */
#define TR_LOGINDEX_EVERY (64u << 10)
#define TR_LOGSCAN_WINDOW ((size_t)1 << 20)
enum { TR_LOGSEG_HEADER = 100, TR_LOGINDEX_HEAD = 64, TR_LOGTAIL_BYTES = 48, TR_LOGNAME_MAX = 32 };

/* What a walk over frames has learnt. */
struct tr_logwalk {
    struct tr_pos now; /* after the frame seen last; now.offset is the next frame's */
    struct tr_pos end; /* as of the last place where no transaction was open */
    bool open;         /* a transaction is */
};

/* The head of a frame and the first fields of its body: all the log looks at. */
struct tr_logframe {
    struct tr_frame_head head;
    uint32_t table_id, schema_version;
    uint64_t version, commit_lsn;
};

/* AGAIN: not all of it is here; REJECT: not a frame. The CRC is not checked. */
int tr_logframe_peek(struct tr_slice bytes, struct tr_logframe *ret, struct tr_err *err);
void tr_logwalk_step(struct tr_logwalk *w, const struct tr_logframe *f);

static inline uint64_t tr_logdef_key(uint32_t table_id, uint32_t version)
{
    return (uint64_t)table_id << 32 | version;
}

struct tr_logseg_header {
    uint32_t partition;
    uint64_t base;
    int64_t created_us;
    uint64_t prev_base; /* UINT64_MAX: there was none */
    uint64_t prev_end;  /* where the data of the previous segment ends, in its file */
    struct tr_logwalk walk;
};

void tr_logseg_header_encode(const struct tr_logseg_header *h, uint8_t out[TR_LOGSEG_HEADER]);
int tr_logseg_header_decode(struct tr_slice bytes, struct tr_logseg_header *ret, struct tr_err *err);
/* Reads the header and compares it with what the file's name and place say; FATAL names the file. */
int tr_logseg_header_read(struct tr_file *f, uint32_t partition, uint64_t base, struct tr_logseg_header *ret, struct tr_err *err);

/* "tail": up to pos of segment base all frames are durable. failed: after a failed sync nothing beyond is to be trusted. */
struct tr_logtail {
    uint64_t base, pos, offset;
    bool failed;
};

void tr_logtail_encode(const struct tr_logtail *t, uint8_t out[TR_LOGTAIL_BYTES]);
int tr_logtail_decode(struct tr_slice bytes, struct tr_logtail *ret, struct tr_err *err);

struct tr_logentry {
    uint64_t offset; /* of the first ordinary frame at or behind pos */
    uint64_t pos;    /* a frame begins here */
    bool open;       /* a transaction is open before it */
};

struct tr_logdef_at {
    uint32_t table_id, version;
    uint64_t pos; /* of the definition's frame, ordinary or repeated */
};

struct tr_logindex {
    uint32_t partition;
    uint64_t base, frames, data_end; /* frames and data_end: set when the segment is sealed */
    int64_t first_us, last_us;       /* our clock: made, sealed */
    struct tr_logentry *v;
    uint32_t n, cap;
    struct tr_logdef_at *d;
    uint32_t n_d, cap_d;
};

void tr_logindex_done(struct tr_logindex *x);
int tr_logindex_reserve(struct tr_logindex *x, uint32_t entries, uint32_t defs); /* NOMEM */
/* Within what was reserved: the frame f stands at pos, and w is the walk before it. */
void tr_logindex_note(struct tr_logindex *x, const struct tr_logwalk *w, const struct tr_logframe *f, uint64_t pos);
bool tr_logindex_wants(const struct tr_logindex *x, uint64_t pos);
/* The last entry at or below offset; NULL when there is none. */
const struct tr_logentry *tr_logindex_find(const struct tr_logindex *x, uint64_t offset);
int tr_logindex_encode(const struct tr_logindex *x, struct tr_buf *out);
/* entries: the sparse entries too, else only head and definitions (bytes may then end behind these). */
int tr_logindex_decode(struct tr_slice bytes, bool entries, struct tr_logindex *ret, struct tr_err *err);
/* Reads the file; NOT_READY or REJECT: rebuild it. */
int tr_logindex_read(struct tr_fs *fs, const char *path, bool entries, struct tr_logindex *ret, struct tr_err *err);

/* One frame after the other, from pos to limit. Frames are borrowed until the next call that may fill. */
struct tr_logscan {
    struct tr_file *f;
    uint64_t pos, limit; /* of the next frame; where data ends at most */
    struct tr_buf win;
    uint64_t win_at;     /* position of win's first byte */
    bool check_crc;
};

void tr_logscan_done(struct tr_logscan *s);
void tr_logscan_to(struct tr_logscan *s, struct tr_file *f, uint64_t pos, uint64_t limit);
/* 1: a frame; 0: the end (a length of zero, or limit); AGAIN: fill is false and the window must move for the next frame; REJECT: what is at
 * pos is not a whole frame; else what reading said. */
int tr_logscan_next(struct tr_logscan *s, bool fill, struct tr_slice *ret_raw, struct tr_logframe *ret, struct tr_err *err);

/* Walks a sealed segment wholly and makes its index. FATAL names file and position. */
int tr_logindex_build(struct tr_file *f, const struct tr_logseg_header *h, uint64_t data_end, uint64_t end_offset, struct tr_logindex *ret,
                      struct tr_err *err);

/* Makes all that follows from pos zero, writing only where it is not; syncs. */
int tr_logseg_zero_rest(struct tr_file *f, uint64_t pos, struct tr_err *err);

/* Names within a partition. */
char *tr_logseg_name(char out[TR_LOGNAME_MAX], uint64_t base, const char *suffix);
bool tr_logseg_parse(const char *name, const char *suffix, uint64_t *ret_base);
int tr_logseg_path(struct tr_buf *out, const char *dir, const char *name); /* NUL-terminated in out->p */

#endif
