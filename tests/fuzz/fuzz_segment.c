/*
 * A segment file of the change log, from its first frame on. First byte: bit 0, the frames' checksums are made right before; bit 1, the file's
 * header is the input's own first 100 bytes (with bit 0: its checksum made right), else that of a log's first segment; bit 2, another segment follows it,
 * so that it is sealed; bit 3, the next bytes are its index (else it has none).
 *
 * The log opens or says what is damaged; what it holds then is the input's own frames up to the end of a transaction, readable, and still there after more was
 * appended and the log opened again.
 */
#include "crc32c.h"
#include "fs_sim.h"
#include "fuzz.h"
#include "log.h"
#include "log_inspect.h"
#include "log_segment.h"

enum { FIX = 1, OWN_HEADER = 2, SEALED = 4, OWN_INDEX = 8, BYTES_MAX = 64 << 10 };

static void put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, 4);
}

/* The checksum of each frame, as far as lengths lead from one to the next. */
static void fix_frames(uint8_t *p, size_t n)
{
    struct tr_frame_head head;
    for (size_t at = 0; tr_frame_peek(tr_slice_of(p + at, n - at), &head, NULL) == TR_OK; at += head.length)
        put32(p + at + 4, tr_crc32c(0, p + at + 8, head.length - 8));
}

static struct tr_log_options options(struct tr_fs *fs)
{
    struct tr_log_options o;
    tr_log_options_init(&o);
    o.dir = "/log";
    o.fs = fs;
    o.segment_bytes = TR_LOG_SEGMENT_BYTES_MIN;
    o.sync_thread = false;
    return o;
}

static void write_file(struct tr_fs *fs, const char *path, const void *head, size_t n_head, const uint8_t *p, size_t n)
{
    struct tr_file *f = NULL;
    FUZZ_MUST(tr_fs_open(fs, path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_TRUNC, &f, NULL) == TR_OK);
    FUZZ_MUST(tr_file_pwrite(f, head, n_head, 0, NULL) == TR_OK);
    if (n)
        FUZZ_MUST(tr_file_pwrite(f, p, n, TR_LOGSEG_DATA, NULL) == TR_OK);
    tr_file_close(f);
}

/* The files as they are before the log is opened. Returns the frames, within the input. */
static struct tr_slice lay_out(struct tr_fs *fs, uint8_t settings, uint8_t *p, size_t n)
{
    uint8_t head[TR_LOGSEG_HEADER];
    struct tr_logseg_header h = {.prev_base = UINT64_MAX, .created_us = 1};
    size_t taken = 0;
    tr_logseg_header_encode(&h, head);
    if (settings & OWN_HEADER && n >= TR_LOGSEG_HEADER) {
        memcpy(head, p, TR_LOGSEG_HEADER);
        taken = TR_LOGSEG_HEADER;
        if (settings & FIX)
            put32(head + TR_LOGSEG_HEADER - 4, tr_crc32c(0, head, TR_LOGSEG_HEADER - 4));
    }
    if (settings & OWN_INDEX && n - taken >= TR_LOGINDEX_HEAD) {
        struct tr_file *f = NULL;
        if (settings & FIX)
            put32(p + taken + TR_LOGINDEX_HEAD - 4, tr_crc32c(0, p + taken, TR_LOGINDEX_HEAD - 4));
        FUZZ_MUST(tr_fs_open(fs, "/log/p0000/00000000000000000000.idx", TR_FS_RDWR | TR_FS_CREATE | TR_FS_TRUNC, &f, NULL) == TR_OK);
        FUZZ_MUST(tr_file_pwrite(f, p + taken, TR_LOGINDEX_HEAD, 0, NULL) == TR_OK);
        tr_file_close(f);
        taken += TR_LOGINDEX_HEAD;
    }
    struct tr_slice frames = {p + taken, n - taken};
    if (settings & FIX)
        fix_frames(p + taken, n - taken);
    write_file(fs, "/log/p0000/00000000000000000000.seg", head, sizeof head, frames.p, frames.n);
    if (settings & SEALED) {
        struct tr_logwalk w = {0};
        struct tr_logframe f;
        char name[TR_LOGNAME_MAX], path[64];
        size_t at = 0;
        while (tr_logframe_peek(tr_slice_of(frames.p + at, frames.n - at), &f, NULL) == TR_OK) {
            tr_logwalk_step(&w, &f);
            at += f.head.length;
        }
        h = (struct tr_logseg_header){.base = w.now.offset, .created_us = 2, .prev_base = 0, .prev_end = TR_LOGSEG_DATA + at, .walk = w};
        tr_logseg_header_encode(&h, head);
        if (h.base) {
            snprintf(path, sizeof path, "/log/p0000/%s", tr_logseg_name(name, h.base, ".seg"));
            write_file(fs, path, head, sizeof head, NULL, 0);
        }
    }
    FUZZ_MUST(tr_fs_fsync_dir(fs, "/log/p0000", NULL) == TR_OK);
    return frames;
}

static int damage(void *arg, const char *path, uint64_t pos, const char *what)
{
    (void)pos;
    FUZZ_MUST(path[0] && what[0]);
    ++*(uint64_t *)arg;
    return TR_OK;
}

/* Whole frames as far as their lengths and checksums lead: of these none has a body that is no body, which no writer makes under a right checksum. */
static bool is_sound(struct tr_slice frames)
{
    struct tr_frame_head head;
    struct tr_frame_body f;
    for (size_t at = 0; tr_frame_peek(tr_slice_of(frames.p + at, frames.n - at), &head, NULL) == TR_OK; at += head.length) {
        struct tr_slice raw = tr_slice_of(frames.p + at, head.length);
        struct tr_schema *s = NULL;
        struct tr_err err;
        if (tr_frame_decode(raw, &f, &err) < 0 && strstr(err.msg, "checksum"))
            return true; /* recovery ends there */
        if (tr_frame_decode(raw, &f, NULL) < 0 || head.op < TR_OP_READ || head.op > TR_OP_MESSAGE || head.kind > TR_FRAME_REPEAT)
            return false;
        if (head.op != TR_OP_SCHEMA)
            continue;
        bool known = tr_schema_decode(f.change.message, &s, NULL) == TR_OK && s->table_id == f.table_id && s->version == f.schema_version;
        tr_schema_unref(s);
        if (!known)
            return false;
    }
    return true;
}

/* All that can be read are frames of the input, in their order, then those of `more`. Returns the offset behind the last one. */
static uint64_t read_all(struct tr_log *l, struct tr_slice input, struct tr_slice more, bool whole)
{
    struct tr_log_reader *r = NULL;
    struct tr_frame v[8];
    struct tr_err err = {0};
    struct tr_log_stats st;
    size_t at = 0, more_at = 0;
    int n;
    FUZZ_MUST(l->ops->stats(l, 0, &st, &err) == TR_OK);
    uint64_t next = st.first_offset;
    bool ended = true;
    FUZZ_MUST(l->ops->reader_new(l, 0, next, &r, &err) == TR_OK);
    while ((n = tr_log_reader_poll(r, v, 8, &err)) > 0)
        for (int i = 0; i < n; i++) {
            struct tr_frame_head head;
            FUZZ_MUST(v[i].offset == next++);
            ended = v[i].tx_end;
            if (v[i].change.schema)
                FUZZ_MUST(v[i].change.schema->table_id == v[i].table_id && v[i].change.schema->version == v[i].schema_version);
            /* repeated definitions have no offset, and no reader sees them */
            while (at < input.n && tr_frame_peek(tr_slice_of(input.p + at, input.n - at), &head, NULL) == TR_OK && head.kind == TR_FRAME_REPEAT)
                at += head.length;
            if (at + v[i].raw.n <= input.n && memcmp(input.p + at, v[i].raw.p, v[i].raw.n) == 0) {
                at += v[i].raw.n;
                FUZZ_MUST(more_at == 0);
                continue;
            }
            FUZZ_MUST(more_at + v[i].raw.n <= more.n && memcmp(more.p + more_at, v[i].raw.p, v[i].raw.n) == 0);
            more_at += v[i].raw.n;
        }
    if (n != TR_AGAIN && whole)
        fprintf(stderr, "reader: %s\n", err.msg);
    FUZZ_MUST(n == TR_AGAIN || (n == TR_FATAL && err.msg[0]));
    FUZZ_MUST(n == TR_FATAL || (ended && more_at == more.n));
    FUZZ_MUST(!whole || n == TR_AGAIN);
    r->ops->free(r);
    return n == TR_AGAIN ? next : UINT64_MAX;
}

static void life(struct tr_fs *fs, struct tr_slice frames, bool sealed)
{
    struct tr_log_options o = options(fs);
    struct tr_log *l = NULL;
    struct tr_err err = {0};
    struct tr_pos tail, later;
    struct tr_buf b = {0};
    uint64_t next = 0;
    if (!fuzz_taken(tr_log_embedded_open(&o, &l, &err), TR_FATAL, &err)) {
        FUZZ_MUST(strstr(err.msg, "/log/"));
        return;
    }
    FUZZ_MUST(tr_log_tail(l, 0, &tail, &err) == TR_OK);
    /* what the last segment holds was walked at open; a sealed one is looked at when it is read */
    bool whole = !sealed && is_sound(frames);
    uint64_t end = read_all(l, frames, tr_slice_of(NULL, 0), whole);
    if (end != UINT64_MAX && end != tail.offset)
        fprintf(stderr, "read up to %llu, the tail is %llu\n", (unsigned long long)end, (unsigned long long)tail.offset);
    FUZZ_MUST(end == UINT64_MAX || end == tail.offset);
    FUZZ_MUST(tr_frame_encode(&(struct tr_change){.op = TR_OP_HEARTBEAT, .epoch = tail.epoch}, &b, NULL) == TR_OK);
    FUZZ_MUST(tr_frame_encode(&(struct tr_change){.op = TR_OP_COMMIT, .epoch = tail.epoch, .commit_lsn = tail.commit_lsn + 1}, &b, NULL) == TR_OK);
    struct tr_log_run add = {tr_buf_slice(&b), 2};
    FUZZ_MUST(tr_log_append(l, 0, &add, 1, &next, &err) == TR_OK && next == tail.offset + 2);
    FUZZ_MUST(tr_log_embedded_sync(l, &err) == TR_OK);
    tr_log_embedded_abandon(l);
    tr_fs_sim_kill(fs);
    FUZZ_MUST(tr_log_embedded_open(&o, &l, &err) == TR_OK);
    FUZZ_MUST(tr_log_tail(l, 0, &later, &err) == TR_OK && later.offset == next && later.version == tail.version);
    FUZZ_MUST(end == UINT64_MAX || read_all(l, frames, tr_buf_slice(&b), whole) == next);
    l->ops->close(l);
    tr_buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    uint8_t settings = n ? p[0] : 0;
    size_t rest;
    if (n > BYTES_MAX)
        return 0;
    uint8_t *bytes = fuzz_rest(p, n, 1, &rest);
    struct tr_fs *fs = tr_fs_sim_new(1);
    struct tr_log_options o = options(fs);
    struct tr_log *l = NULL;
    struct tr_err err = {0};
    struct tr_log_verdict verdict;
    uint64_t damaged = 0;
    /* a log that is made, and whose first segment and mark are taken away again */
    FUZZ_MUST(tr_log_embedded_open(&o, &l, NULL) == TR_OK);
    l->ops->close(l);
    FUZZ_MUST(tr_fs_unlink(fs, "/log/p0000/tail", NULL) == TR_OK);
    struct tr_slice frames = lay_out(fs, settings, bytes, rest);
    int rc = tr_log_inspect_verify(fs, "/log", damage, &damaged, &verdict, &err);
    FUZZ_MUST(rc == TR_OK ? verdict.damaged == damaged : err.rc == rc && err.msg[0]);
    life(fs, frames, settings & SEALED);
    tr_fs_sim_free(fs);
    free(bytes);
    return 0;
}
