#include "log_segment.h"

#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "check.h"
#include "crc32c.h"
#include "cursor.h"

static const char seg_magic[8] = {'T', 'R', 'L', 'O', 'G', 'S', 'E', 'G'};
static const char idx_magic[8] = {'T', 'R', 'L', 'O', 'G', 'I', 'D', 'X'};
static const char tail_magic[8] = {'T', 'R', 'L', 'O', 'G', 'E', 'N', 'D'};
enum { FORMAT = 1 };

/* ---- frames ---- */

int tr_logframe_peek(struct tr_slice bytes, struct tr_logframe *ret, struct tr_err *err)
{
    int rc = tr_frame_peek(bytes, &ret->head, err);
    if (rc < 0)
        return rc;
    struct tr_cur c = tr_cur_of(tr_slice_sub(bytes, TR_FRAME_HEADER, ret->head.length));
    ret->table_id = tr_cur_varint32(&c);
    ret->schema_version = tr_cur_varint32(&c);
    ret->version = tr_cur_varint(&c);
    ret->commit_lsn = tr_cur_varint(&c);
    if (!tr_cur_ok(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a frame of %u bytes is malformed", ret->head.length);
    return TR_OK;
}

void tr_logwalk_step(struct tr_logwalk *w, const struct tr_logframe *f)
{
    if (f->head.kind == TR_FRAME_REPEAT)
        return;
    struct tr_pos *p = &w->now;
    uint8_t op = f->head.op;
    p->offset++;
    if ((op >= TR_OP_INSERT && op <= TR_OP_TRUNCATE) || op == TR_OP_SNAPSHOT_BEGIN) {
        uint64_t v = f->version + (op == TR_OP_UPDATE && (f->head.flags & TR_CHG_MOVED) ? 1 : 0);
        p->version = TR_MAX(p->version, v);
    }
    if ((op == TR_OP_COMMIT || op == TR_OP_SNAPSHOT_BEGIN) && p->epoch != f->head.epoch) { /* positions of two epochs do not compare */
        p->epoch = f->head.epoch;
        p->commit_lsn = 0;
        p->any_commit = false;
    }
    if (op == TR_OP_COMMIT) {
        p->commit_lsn = f->commit_lsn;
        p->any_commit = true;
        w->open = false;
    } else if (tr_op_opens_tx(op)) {
        w->open = true;
    }
    if (!w->open)
        w->end = *p;
}

/* ---- the header ---- */

void tr_logseg_header_encode(const struct tr_logseg_header *h, uint8_t out[TR_LOGSEG_HEADER])
{
    struct tr_buf b = {.p = out, .n = 0, .cap = TR_LOGSEG_HEADER};
    tr_buf_put(&b, seg_magic, sizeof seg_magic);
    tr_buf_put_u32le(&b, FORMAT);
    tr_buf_put_u32le(&b, h->partition);
    tr_buf_put_u64le(&b, h->base);
    tr_buf_put_u64le(&b, (uint64_t)h->created_us);
    tr_buf_put_u64le(&b, h->prev_base);
    tr_buf_put_u64le(&b, h->prev_end);
    tr_buf_put_u64le(&b, h->walk.now.commit_lsn);
    tr_buf_put_u64le(&b, h->walk.now.version);
    tr_buf_put_u64le(&b, h->walk.end.offset);
    tr_buf_put_u64le(&b, h->walk.end.commit_lsn);
    tr_buf_put_u64le(&b, h->walk.end.version);
    tr_buf_put_u8(&b, h->walk.now.epoch);
    tr_buf_put_u8(&b, h->walk.now.any_commit);
    tr_buf_put_u8(&b, h->walk.end.epoch);
    tr_buf_put_u8(&b, h->walk.end.any_commit);
    tr_buf_put_u8(&b, h->walk.open);
    tr_buf_put(&b, "\0\0\0", 3);
    tr_buf_put_u32le(&b, tr_crc32c(0, out, b.n));
    TR_ASSERT(b.n == TR_LOGSEG_HEADER);
}

int tr_logseg_header_decode(struct tr_slice bytes, struct tr_logseg_header *ret, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(bytes);
    const uint8_t *magic = tr_cur_take(&c, sizeof seg_magic);
    if (bytes.n < TR_LOGSEG_HEADER || !magic || memcmp(magic, seg_magic, sizeof seg_magic) != 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "not a segment");
    uint32_t format = tr_cur_le32(&c);
    if (format != FORMAT)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a segment of format %u, which this program does not know", format);
    ret->partition = tr_cur_le32(&c);
    ret->base = tr_cur_le64(&c);
    ret->created_us = (int64_t)tr_cur_le64(&c);
    ret->prev_base = tr_cur_le64(&c);
    ret->prev_end = tr_cur_le64(&c);
    struct tr_logwalk *w = &ret->walk;
    w->now.offset = ret->base;
    w->now.commit_lsn = tr_cur_le64(&c);
    w->now.version = tr_cur_le64(&c);
    w->end.offset = tr_cur_le64(&c);
    w->end.commit_lsn = tr_cur_le64(&c);
    w->end.version = tr_cur_le64(&c);
    w->now.epoch = tr_cur_u8(&c);
    w->now.any_commit = tr_cur_u8(&c) != 0;
    w->end.epoch = tr_cur_u8(&c);
    w->end.any_commit = tr_cur_u8(&c) != 0;
    w->open = tr_cur_u8(&c) != 0;
    tr_cur_take(&c, 3);
    if (tr_cur_le32(&c) != tr_crc32c(0, bytes.p, TR_LOGSEG_HEADER - 4) || !tr_cur_ok(&c))
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a segment header fails its checksum");
    if (w->open ? w->end.offset > w->now.offset || w->end.version > w->now.version
                : w->end.offset != w->now.offset || w->end.version != w->now.version || w->end.commit_lsn != w->now.commit_lsn || w->end.epoch != w->now.epoch ||
                      w->end.any_commit != w->now.any_commit)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a segment header contradicts itself: it begins at offset %llu, and the last transaction ended at %llu",
                          (unsigned long long)w->now.offset, (unsigned long long)w->end.offset);
    return TR_OK;
}

int tr_logseg_header_read(struct tr_file *f, uint32_t partition, uint64_t base, struct tr_logseg_header *ret, struct tr_err *err)
{
    uint8_t raw[TR_LOGSEG_HEADER];
    size_t n = 0;
    int rc = tr_file_pread(f, raw, sizeof raw, 0, &n, err);
    if (rc < 0)
        return rc;
    struct tr_err why = {0};
    if (tr_logseg_header_decode(tr_slice_of(raw, n), ret, &why) < 0)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s: %s; restore the file from a copy, or rebuild the log from the source", tr_file_path(f),
                          why.msg);
    if (ret->partition != partition || ret->base != base)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s says it is partition %u from offset %llu: it is not in its own place", tr_file_path(f),
                          ret->partition, (unsigned long long)ret->base);
    return TR_OK;
}

/* ---- the tail ---- */

void tr_logtail_encode(const struct tr_logtail *t, uint8_t out[TR_LOGTAIL_BYTES])
{
    struct tr_buf b = {.p = out, .n = 0, .cap = TR_LOGTAIL_BYTES};
    tr_buf_put(&b, tail_magic, sizeof tail_magic);
    tr_buf_put_u32le(&b, FORMAT);
    tr_buf_put_u32le(&b, t->failed ? 1 : 0);
    tr_buf_put_u64le(&b, t->base);
    tr_buf_put_u64le(&b, t->pos);
    tr_buf_put_u64le(&b, t->offset);
    tr_buf_put_u32le(&b, 0);
    tr_buf_put_u32le(&b, tr_crc32c(0, out, b.n));
    TR_ASSERT(b.n == TR_LOGTAIL_BYTES);
}

int tr_logtail_decode(struct tr_slice bytes, struct tr_logtail *ret, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(bytes);
    const uint8_t *magic = tr_cur_take(&c, sizeof tail_magic);
    uint32_t format = tr_cur_le32(&c);
    ret->failed = tr_cur_le32(&c) != 0;
    ret->base = tr_cur_le64(&c);
    ret->pos = tr_cur_le64(&c);
    ret->offset = tr_cur_le64(&c);
    tr_cur_le32(&c);
    uint32_t crc = tr_cur_le32(&c);
    if (!tr_cur_done(&c) || memcmp(magic, tail_magic, sizeof tail_magic) != 0 || format != FORMAT || crc != tr_crc32c(0, bytes.p, TR_LOGTAIL_BYTES - 4))
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "not a tail mark");
    return TR_OK;
}

/* ---- the index ---- */

void tr_logindex_done(struct tr_logindex *x)
{
    if (!x)
        return;
    tr_free(x->v);
    tr_free(x->d);
    x->v = NULL;
    x->d = NULL;
    x->n = x->cap = x->n_d = x->cap_d = 0;
}

int tr_logindex_reserve(struct tr_logindex *x, uint32_t entries, uint32_t defs)
{
    if (x->cap - x->n < entries) {
        uint32_t cap = TR_MAX(x->n + entries, x->cap * 2);
        struct tr_logentry *v = tr_realloc(x->v, cap * sizeof *v);
        if (!v)
            return TR_NOMEM;
        x->v = v;
        x->cap = cap;
    }
    if (x->cap_d - x->n_d < defs) {
        uint32_t cap = TR_MAX(x->n_d + defs, x->cap_d * 2);
        struct tr_logdef_at *d = tr_realloc(x->d, cap * sizeof *d);
        if (!d)
            return TR_NOMEM;
        x->d = d;
        x->cap_d = cap;
    }
    return TR_OK;
}

bool tr_logindex_wants(const struct tr_logindex *x, uint64_t pos)
{
    return x->n == 0 || pos - x->v[x->n - 1].pos >= TR_LOGINDEX_EVERY;
}

void tr_logindex_note(struct tr_logindex *x, const struct tr_logwalk *w, const struct tr_logframe *f, uint64_t pos)
{
    if (tr_logindex_wants(x, pos)) {
        TR_ASSERT(x->n < x->cap);
        x->v[x->n++] = (struct tr_logentry){.offset = w->now.offset, .pos = pos, .open = w->open};
    }
    if (f->head.op == TR_OP_SCHEMA) {
        TR_ASSERT(x->n_d < x->cap_d);
        x->d[x->n_d++] = (struct tr_logdef_at){.table_id = f->table_id, .version = f->schema_version, .pos = pos};
    }
}

const struct tr_logentry *tr_logindex_find(const struct tr_logindex *x, uint64_t offset)
{
    uint32_t lo = 0, hi = x->n; /* all below lo are <= offset */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (x->v[mid].offset <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? &x->v[lo - 1] : NULL;
}

int tr_logindex_encode(const struct tr_logindex *x, struct tr_buf *out)
{
    size_t at = out->n;
    if (tr_buf_reserve(out, TR_LOGINDEX_HEAD + (size_t)x->n_d * 16 + 8 + (size_t)x->n * 16) < 0)
        return TR_NOMEM;
    tr_buf_put(out, idx_magic, sizeof idx_magic);
    tr_buf_put_u32le(out, FORMAT);
    tr_buf_put_u32le(out, x->partition);
    tr_buf_put_u64le(out, x->base);
    tr_buf_put_u64le(out, x->frames);
    tr_buf_put_u64le(out, x->data_end);
    tr_buf_put_u64le(out, (uint64_t)x->first_us);
    tr_buf_put_u64le(out, (uint64_t)x->last_us);
    tr_buf_put_u32le(out, x->n_d);
    tr_buf_put_u32le(out, x->n);
    for (uint32_t i = 0; i < x->n_d; i++) {
        tr_buf_put_u32le(out, x->d[i].table_id);
        tr_buf_put_u32le(out, x->d[i].version);
        tr_buf_put_u64le(out, x->d[i].pos);
    }
    tr_buf_put_u32le(out, tr_crc32c(0, out->p + at, out->n - at));
    at = out->n;
    for (uint32_t i = 0; i < x->n; i++) {
        tr_buf_put_u64le(out, x->v[i].offset);
        tr_buf_put_u64le(out, x->v[i].pos | (uint64_t)x->v[i].open << 63);
    }
    tr_buf_put_u32le(out, tr_crc32c(0, out->p + at, out->n - at));
    return TR_OK;
}

static void decode_entries(struct tr_cur *c, uint32_t n, struct tr_logindex *x)
{
    const uint8_t *from = c->p;
    for (x->n = 0; x->n < n; x->n++) {
        struct tr_logentry *e = &x->v[x->n];
        e->offset = tr_cur_le64(c);
        uint64_t pos = tr_cur_le64(c);
        e->open = pos >> 63;
        e->pos = pos & (UINT64_MAX >> 1);
    }
    uint32_t crc = tr_crc32c(0, from, (size_t)n * 16);
    if (tr_cur_le32(c) != crc || !tr_cur_done(c))
        tr_cur_fail(c);
}

int tr_logindex_decode(struct tr_slice bytes, bool entries, struct tr_logindex *ret, struct tr_err *err)
{
    struct tr_logindex x = {0};
    struct tr_cur c = tr_cur_of(bytes);
    const uint8_t *magic = tr_cur_take(&c, sizeof idx_magic);
    uint32_t format = tr_cur_le32(&c);
    x.partition = tr_cur_le32(&c);
    x.base = tr_cur_le64(&c);
    x.frames = tr_cur_le64(&c);
    x.data_end = tr_cur_le64(&c);
    x.first_us = (int64_t)tr_cur_le64(&c);
    x.last_us = (int64_t)tr_cur_le64(&c);
    uint32_t n_d = tr_cur_le32(&c), n = tr_cur_le32(&c);
    size_t left = tr_cur_left(&c);
    if (!tr_cur_ok(&c) || memcmp(magic, idx_magic, sizeof idx_magic) != 0 || format != FORMAT || n_d > left / 16 ||
        (entries && n > (left - (size_t)n_d * 16) / 16))
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "not an index");
    if (tr_logindex_reserve(&x, entries ? n : 0, n_d) < 0) {
        tr_logindex_done(&x);
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
    }
    for (x.n_d = 0; x.n_d < n_d; x.n_d++) {
        struct tr_logdef_at *d = &x.d[x.n_d];
        d->table_id = tr_cur_le32(&c);
        d->version = tr_cur_le32(&c);
        d->pos = tr_cur_le64(&c);
    }
    uint32_t crc = tr_crc32c(0, bytes.p, TR_LOGINDEX_HEAD + (size_t)n_d * 16);
    if (tr_cur_le32(&c) != crc)
        tr_cur_fail(&c);
    if (entries && tr_cur_ok(&c))
        decode_entries(&c, n, &x);
    if (!tr_cur_ok(&c)) {
        tr_logindex_done(&x);
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "an index fails its checksum");
    }
    *ret = x;
    return TR_OK;
}

/* Only the front of the file is read for head and definitions: enough for a few hundred tables, else again, wholly. */
int tr_logindex_read(struct tr_fs *fs, const char *path, bool entries, struct tr_logindex *ret, struct tr_err *err)
{
    struct tr_file *f = NULL;
    TR_CLEANUP(tr_buf_done) struct tr_buf b = {0};
    uint64_t size = 0;
    size_t got = 0;
    int rc = tr_fs_open(fs, path, TR_FS_RDONLY, &f, err);
    if (rc < 0)
        return rc;
    rc = tr_file_size(f, &size, err);
    if (rc == TR_OK && size > (UINT64_C(1) << 30))
        rc = tr_err_set(err, TR_REJECT, TR_DOM_LOG, "%s is too large to be an index", path);
    for (int whole = entries; rc == TR_OK && whole <= 1; whole++) {
        size_t want = whole ? (size_t)size : (size_t)TR_MIN(size, (uint64_t)8192);
        tr_buf_clear(&b);
        if (tr_buf_reserve(&b, want) < 0)
            rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to read %s", path);
        else
            rc = tr_file_pread(f, b.p, want, 0, &got, err);
        if (rc == TR_OK)
            rc = tr_logindex_decode(tr_slice_of(b.p, got), entries, ret, err);
        if (rc == TR_OK)
            break;
        if (rc == TR_REJECT && !whole && want < size)
            rc = TR_OK;
    }
    tr_file_close(f);
    return rc;
}

/* ---- scanning ---- */

void tr_logscan_done(struct tr_logscan *s)
{
    if (s)
        tr_buf_done(&s->win);
}

void tr_logscan_to(struct tr_logscan *s, struct tr_file *f, uint64_t pos, uint64_t limit)
{
    s->f = f;
    s->pos = s->win_at = pos;
    s->limit = limit;
    tr_buf_clear(&s->win);
}

/* At least need bytes from pos into the window, or all up to limit. */
static int scan_fill(struct tr_logscan *s, size_t need, struct tr_err *err)
{
    size_t used = (size_t)(s->pos - s->win_at), have = s->win.n - used;
    uint64_t left = s->limit - s->pos;
    size_t want = (size_t)TR_MIN((uint64_t)TR_MAX(need, TR_LOGSCAN_WINDOW), left), got = 0;
    if (used && have)
        memmove(s->win.p, s->win.p + used, have);
    s->win.n = have;
    s->win_at = s->pos;
    if (want <= have)
        return TR_OK;
    if (have == 0 && s->win.cap > 8 * TR_LOGSCAN_WINDOW && want <= TR_LOGSCAN_WINDOW)
        tr_buf_done(&s->win); /* it was grown for one large frame */
    if (tr_buf_reserve(&s->win, want - have) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to read %zu bytes of %s", want, tr_file_path(s->f));
    int rc = tr_file_pread(s->f, s->win.p + have, want - have, s->pos + have, &got, err);
    if (rc == TR_OK)
        s->win.n = have + got;
    return rc;
}

int tr_logscan_next(struct tr_logscan *s, bool fill, struct tr_slice *ret_raw, struct tr_logframe *ret, struct tr_err *err)
{
    for (size_t need = TR_FRAME_HEADER;;) {
        uint64_t left = s->limit - s->pos;
        struct tr_slice at = tr_slice_sub(tr_buf_slice(&s->win), (size_t)(s->pos - s->win_at), s->win.n);
        if (left == 0)
            return 0;
        if (at.n < need && at.n < left) {
            if (!fill)
                return TR_AGAIN;
            int rc = scan_fill(s, need, err);
            if (rc < 0)
                return rc;
            at = tr_buf_slice(&s->win);
            if (at.n < need && at.n < left)
                left = at.n; /* the file is shorter than was thought */
        }
        if (at.n >= 4 && memcmp(at.p, "\0\0\0\0", 4) == 0)
            return 0;
        int rc = tr_logframe_peek(at, ret, err);
        if (rc == TR_AGAIN && at.n >= TR_FRAME_HEADER && ret->head.length <= left && need < ret->head.length) {
            need = ret->head.length;
            continue;
        }
        if (rc == TR_AGAIN)
            return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a frame is cut off");
        if (rc < 0)
            return rc;
        if (s->check_crc) {
            uint32_t crc;
            memcpy(&crc, at.p + 4, 4);
            if (le32toh(crc) != tr_crc32c(0, at.p + 8, ret->head.length - 8))
                return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a frame of %u bytes fails its checksum", ret->head.length);
        }
        *ret_raw = tr_slice_sub(at, 0, ret->head.length);
        s->pos += ret->head.length;
        return 1;
    }
}

int tr_logindex_build(struct tr_file *f, const struct tr_logseg_header *h, uint64_t data_end, uint64_t end_offset, struct tr_logindex *ret,
                      struct tr_err *err)
{
    struct tr_logscan s = {.check_crc = true};
    struct tr_logwalk w = h->walk;
    struct tr_logindex x = {.partition = h->partition, .base = h->base, .first_us = h->created_us, .data_end = data_end};
    struct tr_logframe fr;
    struct tr_slice raw;
    struct tr_err why = {0};
    int rc;
    tr_logscan_to(&s, f, TR_LOGSEG_DATA, data_end);
    for (uint64_t at = s.pos; (rc = tr_logscan_next(&s, true, &raw, &fr, &why)) > 0; at = s.pos) {
        if (tr_logindex_reserve(&x, 1, 1) < 0) {
            rc = tr_err_set(&why, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
            break;
        }
        tr_logindex_note(&x, &w, &fr, at);
        tr_logwalk_step(&w, &fr);
    }
    x.frames = w.now.offset - h->base;
    if (rc == TR_REJECT || (rc == 0 && (s.pos != data_end || w.now.offset != end_offset)))
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged at byte %llu (offset %llu): %s; restore the file from a copy", tr_file_path(f),
                        (unsigned long long)s.pos, (unsigned long long)w.now.offset, rc < 0 ? why.msg : "it does not end where the next segment begins");
    else if (rc < 0 && err)
        *err = why;
    if (rc < 0)
        tr_logindex_done(&x);
    else
        *ret = x;
    tr_logscan_done(&s);
    return rc;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

int tr_logseg_zero_rest(struct tr_file *f, uint64_t pos, struct tr_err *err)
{
    enum { STEP = 64 << 10 };
    uint64_t size = 0;
    int rc = tr_file_size(f, &size, err);
    uint8_t *buf = tr_malloc(STEP), *zeros = tr_calloc(1, STEP);
    if (!buf || !zeros)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to look behind the end of %s", tr_file_path(f));
    for (; rc == TR_OK && pos < size; pos += STEP) {
        size_t n = (size_t)TR_MIN(size - pos, (uint64_t)STEP), got = 0;
        rc = tr_file_pread(f, buf, n, pos, &got, err);
        if (rc == TR_OK && !all_zero(buf, got))
            rc = tr_file_pwrite(f, zeros, got, pos, err);
    }
    tr_free(buf);
    tr_free(zeros);
    return rc < 0 ? rc : tr_file_fdatasync(f, err);
}

/* ---- names ---- */

char *tr_logseg_name(char out[TR_LOGNAME_MAX], uint64_t base, const char *suffix)
{
    snprintf(out, TR_LOGNAME_MAX, "%020llu%s", (unsigned long long)base, suffix);
    return out;
}

bool tr_logseg_parse(const char *name, const char *suffix, uint64_t *ret_base)
{
    uint64_t v = 0;
    for (int i = 0; i < 20; i++) {
        if (name[i] < '0' || name[i] > '9' || __builtin_mul_overflow(v, UINT64_C(10), &v) ||
            __builtin_add_overflow(v, (uint64_t)(name[i] - '0'), &v))
            return false;
    }
    *ret_base = v;
    return strcmp(name + 20, suffix) == 0;
}

int tr_logseg_path(struct tr_buf *out, const char *dir, const char *name)
{
    tr_buf_clear(out);
    if (tr_buf_printf(out, "%s/%s", dir, name) < 0 || !tr_buf_cstr(out))
        return TR_NOMEM;
    return TR_OK;
}
