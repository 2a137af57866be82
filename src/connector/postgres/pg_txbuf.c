/*
 * A transaction is a list of records, first in one growing buffer, then (once it was the largest while memory ran out) in a file.
 * Record: u32 subxid, u64 lsn, u32 length, bytes. All of a spilled transaction's later records go through the same buffer and are
 * appended to the file in pieces of SPILL_PIECE.
 */
#include "pg_txbuf.h"

#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "cursor.h"
#include "fs.h"

enum { REC_HEAD = 16, SPILL_PIECE = 1 << 20 };

struct tr_pg_tx {
    uint32_t xid;
    struct tr_buf mem;        /* not yet on disk; while reading a spilled one: the window */
    struct tr_file *file;     /* NULL: never spilled */
    uint64_t on_disk, charged; /* charged: to the buffer's memory account */
    struct tr_u64map aborted; /* subxids */
    uint64_t read_at;         /* file offset of the window's end */
    size_t at;                /* within mem */
};

void tr_pg_txbuf_init(struct tr_pg_txbuf *b, const char *dir, uint64_t memory_max)
{
    memset(b, 0, sizeof *b);
    tr_u64map_init(&b->by_xid);
    b->dir = dir;
    b->memory_max = memory_max;
}

struct tr_pg_tx *tr_pg_tx_free(struct tr_pg_txbuf *b, struct tr_pg_tx *t)
{
    if (!t)
        return NULL;
    b->memory -= t->charged;
    b->spilled -= t->on_disk;
    tr_file_close(t->file);
    tr_buf_done(&t->mem);
    tr_u64map_done(&t->aborted);
    tr_free(t);
    return NULL;
}

void tr_pg_txbuf_done(struct tr_pg_txbuf *b)
{
    size_t it = 0;
    uint64_t xid, v;
    while (tr_u64map_next(&b->by_xid, &it, &xid, &v))
        tr_pg_tx_free(b, (struct tr_pg_tx *)(uintptr_t)v);
    tr_u64map_done(&b->by_xid);
}

static int to_disk(struct tr_pg_txbuf *b, struct tr_pg_tx *t, struct tr_err *err)
{
    if (!t->file) {
        char path[512];
        snprintf(path, sizeof path, "%s/spill-%u", b->dir, t->xid);
        int rc = tr_fs_open(tr_fs_posix(), path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_TRUNC, &t->file, err);
        if (rc < 0)
            return rc;
        tr_fs_unlink(tr_fs_posix(), path, NULL);
        b->spill_count++;
    }
    int rc = tr_file_pwrite(t->file, t->mem.p, t->mem.n, t->on_disk, err);
    if (rc < 0)
        return rc;
    t->on_disk += t->mem.n;
    b->spilled += t->mem.n;
    b->memory -= t->charged;
    t->charged = 0;
    tr_buf_done(&t->mem);
    tr_buf_init(&t->mem);
    return TR_OK;
}

static int make_room(struct tr_pg_txbuf *b, struct tr_err *err)
{
    while (b->memory > b->memory_max) {
        struct tr_pg_tx *largest = NULL;
        size_t it = 0;
        uint64_t xid, v;
        while (tr_u64map_next(&b->by_xid, &it, &xid, &v)) {
            struct tr_pg_tx *t = (struct tr_pg_tx *)(uintptr_t)v;
            if (!largest || t->mem.cap > largest->mem.cap)
                largest = t;
        }
        if (!largest || largest->mem.n == 0)
            return TR_OK;
        int rc = to_disk(b, largest, err);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

int tr_pg_txbuf_add(struct tr_pg_txbuf *b, uint32_t xid, uint32_t subxid, uint64_t lsn, struct tr_slice msg, struct tr_err *err)
{
    struct tr_pg_tx *t = tr_u64map_get_ptr(&b->by_xid, xid);
    if (!t) {
        t = tr_calloc(1, sizeof *t);
        if (!t)
            return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for transaction %u", xid);
        t->xid = xid;
        if (tr_u64map_put_ptr(&b->by_xid, xid, t) < 0) {
            tr_free(t);
            return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for transaction %u", xid);
        }
    }
    size_t cap = t->mem.cap;
    if (tr_buf_reserve(&t->mem, REC_HEAD + msg.n) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for transaction %u", xid);
    tr_buf_put_u32le(&t->mem, subxid);
    tr_buf_put_u64le(&t->mem, lsn);
    tr_buf_put_u32le(&t->mem, (uint32_t)msg.n);
    tr_buf_put(&t->mem, msg.p, msg.n);
    b->memory += t->mem.cap - cap;
    t->charged += t->mem.cap - cap;
    int rc = t->file && t->mem.n >= SPILL_PIECE ? to_disk(b, t, err) : make_room(b, err);
    if (rc < 0 && t->mem.n >= REC_HEAD + msg.n) { /* it is given again: it must not be there twice */
        t->mem.n -= REC_HEAD + msg.n;
        return rc;
    }
    return TR_OK; /* or this one is safe on disk, and another had no room: the next call will say so */
}

int tr_pg_txbuf_abort(struct tr_pg_txbuf *b, uint32_t xid, uint32_t subxid, struct tr_err *err)
{
    struct tr_pg_tx *t = tr_u64map_get_ptr(&b->by_xid, xid);
    if (!t)
        return TR_OK;
    if (xid != subxid) /* unnoted, the rows of the subtransaction would come back to life */
        return tr_u64map_put(&t->aborted, subxid, 1) >= 0 ? TR_OK : tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for transaction %u", xid);
    tr_u64map_del(&b->by_xid, xid, NULL);
    tr_pg_tx_free(b, t);
    return TR_OK;
}

struct tr_pg_tx *tr_pg_txbuf_take(struct tr_pg_txbuf *b, uint32_t xid)
{
    uint64_t v = 0;
    if (!tr_u64map_del(&b->by_xid, xid, &v))
        return NULL;
    return (struct tr_pg_tx *)(uintptr_t)v;
}

/* Slides the window over the file: keeps the unread tail and reads behind it. */
static int fill_window(struct tr_pg_tx *t, size_t want, struct tr_err *err)
{
    size_t left = t->mem.n - t->at;
    if (t->at)
        memmove(t->mem.p, t->mem.p + t->at, left);
    t->at = 0;
    t->mem.n = left;
    if (left >= want)
        return TR_OK;
    size_t n = want - left > SPILL_PIECE ? want - left : SPILL_PIECE;
    if (n > t->on_disk - t->read_at)
        n = (size_t)(t->on_disk - t->read_at);
    if (left + n < want)
        return TR_EOF;
    if (tr_buf_reserve(&t->mem, n) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory to read back transaction %u", t->xid);
    int rc = tr_file_pread(t->file, t->mem.p + left, n, t->read_at, NULL, err);
    if (rc < 0)
        return rc;
    t->mem.n += n;
    t->read_at += n;
    return TR_OK;
}

int tr_pg_tx_next(struct tr_pg_txbuf *b, struct tr_pg_tx *t, struct tr_slice *ret_msg, uint64_t *ret_lsn, bool *ret_aborted, struct tr_err *err)
{
    if (t->file && t->read_at == 0 && t->at == 0 && t->mem.n) { /* first call: the last piece joins the file */
        int rc = tr_file_pwrite(t->file, t->mem.p, t->mem.n, t->on_disk, err);
        if (rc < 0)
            return rc;
        t->on_disk += t->mem.n;
        b->spilled += t->mem.n;
        t->mem.n = 0;
    }
    if (t->mem.n - t->at < REC_HEAD) {
        int rc = t->file ? fill_window(t, REC_HEAD, err) : TR_EOF;
        if (rc < 0)
            return rc;
    }
    struct tr_cur c = tr_cur_of(tr_slice_of(t->mem.p + t->at, REC_HEAD));
    uint32_t subxid = tr_cur_le32(&c);
    *ret_lsn = tr_cur_le64(&c);
    uint32_t n = tr_cur_le32(&c);
    if (t->mem.n - t->at < REC_HEAD + (size_t)n) {
        int rc = t->file ? fill_window(t, REC_HEAD + (size_t)n, err) : TR_EOF;
        if (rc == TR_EOF)
            return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "the spill file of transaction %u is cut off", t->xid);
        if (rc < 0)
            return rc;
    }
    *ret_msg = tr_slice_of(t->mem.p + t->at + REC_HEAD, n);
    t->at += REC_HEAD + (size_t)n;
    *ret_aborted = tr_u64map_find(&t->aborted, subxid, NULL);
    return TR_OK;
}
