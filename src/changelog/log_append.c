/*
 * Appending. An append is planned first, without touching anything: which definitions must be repeated where, which index entries come,
 * where the tail will be. Then the pieces are written behind the tail, and only when all of them are, the plan becomes the
 * state, under the lock. Whatever fails before leaves the old state; bytes it wrote lie behind the tail and are zeroed before the
 * next append (dirty_to), so that nothing can ever be found there.
 */
#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "crc32c.h"
#include "failpoint.h"
#include "log_internal.h"

enum { STAGE_MAX = 256 << 10 };

struct plan {
    struct tr_logwalk walk;
    struct tr_logpoint end;
    uint64_t pos;
    struct tr_slice *pieces;
    size_t n, cap;
    struct tr_logdef **touched; /* whose `in` this append changed */
    size_t n_touched, cap_touched;
    struct tr_logindex add;
    uint64_t bytes; /* of the caller's */
};

/* ---- definitions ---- */

static struct tr_logdef *def_find(struct tr_logpart *p, uint32_t table_id, uint32_t version)
{
    return tr_u64map_get_ptr(&p->defs, tr_logdef_key(table_id, version));
}

static int same_definition(struct tr_slice a, struct tr_slice b, bool *ret, struct tr_err *err)
{
    struct tr_frame_body x, y;
    int rc = tr_frame_decode(a, &x, err);
    if (rc == TR_OK)
        rc = tr_frame_decode(b, &y, err);
    if (rc == TR_OK)
        *ret = tr_slice_eq(x.change.message, y.change.message);
    return rc;
}

/* Remembers a definition as the frame that repeats it: kind set, checksum made anew. */
int tr_logpart_def_learn(struct tr_logpart *p, struct tr_slice raw, const struct tr_logframe *f, struct tr_logdef **ret, struct tr_err *err)
{
    struct tr_logdef *d = def_find(p, f->table_id, f->schema_version);
    if (d && d->in == UINT64_MAX) { /* of an append that failed: it was never in the log */
        tr_u64map_del(&p->defs, tr_logdef_key(f->table_id, f->schema_version), NULL);
        tr_buf_done(&d->frame);
        tr_free(d);
        d = NULL;
    }
    if (d) {
        bool same = false;
        int rc = same_definition(raw, tr_buf_slice(&d->frame), &same, err);
        if (rc < 0)
            return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "the definition of version %u of table %u does not decode", f->schema_version, f->table_id);
        if (!same)
            return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "version %u of table %u is defined again, differently", f->schema_version, f->table_id);
        *ret = d;
        return TR_OK;
    }
    d = tr_calloc(1, sizeof *d);
    if (!d || tr_buf_append_slice(&d->frame, raw) < 0 || tr_u64map_put_ptr(&p->defs, tr_logdef_key(f->table_id, f->schema_version), d) < 0) {
        if (d)
            tr_buf_done(&d->frame);
        tr_free(d);
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for the definition of table %u", f->table_id);
    }
    d->frame.p[11] = TR_FRAME_REPEAT;
    uint32_t crc = htole32(tr_crc32c(0, d->frame.p + 8, d->frame.n - 8));
    memcpy(d->frame.p + 4, &crc, 4);
    d->table_id = f->table_id;
    d->version = f->schema_version;
    d->in = UINT64_MAX;
    *ret = d;
    return TR_OK;
}

/* ---- the plan ---- */

static int grow(void **v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return TR_OK;
    size_t k = *cap ? *cap * 2 : 16;
    void *q = tr_realloc(*v, k * size);
    if (!q)
        return TR_NOMEM;
    *v = q;
    *cap = k;
    return TR_OK;
}

static int plan_touch(struct plan *a, struct tr_logdef *d, uint64_t base)
{
    if (d->in == base)
        return TR_OK;
    void *v = (void *)a->touched;
    if (grow(&v, a->n_touched, &a->cap_touched, sizeof *a->touched) < 0)
        return TR_NOMEM;
    a->touched = v;
    a->touched[a->n_touched++] = d;
    d->was = d->in;
    d->in = base;
    return TR_OK;
}

/* Frames that lie behind one another become one piece. */
static int plan_piece(struct plan *a, struct tr_slice s)
{
    if (a->n && a->pieces[a->n - 1].p + a->pieces[a->n - 1].n == s.p) {
        a->pieces[a->n - 1].n += s.n;
        return TR_OK;
    }
    void *v = a->pieces;
    if (grow(&v, a->n, &a->cap, sizeof *a->pieces) < 0)
        return TR_NOMEM;
    a->pieces = v;
    a->pieces[a->n++] = s;
    return TR_OK;
}

static int plan_frame(struct tr_logpart *p, struct plan *a, struct tr_slice raw, const struct tr_logframe *f)
{
    const struct tr_logindex *x = p->segs[p->n - 1]->index;
    uint64_t last = a->add.n ? a->add.v[a->add.n - 1].pos : x->n ? x->v[x->n - 1].pos : 0;
    bool far = last == 0 || a->pos - last >= TR_LOGINDEX_EVERY;
    if (((far || f->head.op == TR_OP_SCHEMA) && tr_logindex_reserve(&a->add, 1, 1) < 0) || plan_piece(a, raw) < 0)
        return TR_NOMEM;
    if (far)
        a->add.v[a->add.n++] = (struct tr_logentry){.offset = a->walk.now.offset, .pos = a->pos, .open = a->walk.open};
    if (f->head.op == TR_OP_SCHEMA)
        a->add.d[a->add.n_d++] = (struct tr_logdef_at){.table_id = f->table_id, .version = f->schema_version, .pos = a->pos};
    tr_logwalk_step(&a->walk, f);
    a->pos += raw.n;
    if (!a->walk.open)
        a->end = (struct tr_logpoint){p->segs[p->n - 1]->base, a->pos, a->walk.now.offset};
    return TR_OK;
}

static int plan_repeat(struct tr_logpart *p, struct plan *a, struct tr_logdef *d)
{
    struct tr_logframe f;
    struct tr_slice raw = tr_buf_slice(&d->frame);
    TR_ASSERT(tr_logframe_peek(raw, &f, NULL) == TR_OK);
    if (plan_touch(a, d, p->segs[p->n - 1]->base) < 0)
        return TR_NOMEM;
    return plan_frame(p, a, raw, &f);
}

static int plan_one(struct tr_logpart *p, struct plan *a, struct tr_slice raw, const struct tr_logframe *f, struct tr_err *err)
{
    uint64_t base = p->segs[p->n - 1]->base;
    struct tr_logdef *d = NULL;
    int rc = TR_OK;
    if (f->head.op == TR_OP_SCHEMA) {
        rc = tr_logpart_def_learn(p, raw, f, &d, err);
        if (rc < 0)
            return rc;
        rc = plan_touch(a, d, base);
    } else if (f->table_id) {
        d = def_find(p, f->table_id, f->schema_version);
        if (!d || d->in == UINT64_MAX)
            return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "a %s frame uses version %u of table %u, which was never defined in this log",
                              tr_op_name(f->head.op), f->schema_version, f->table_id);
        if (d->in != base)
            rc = plan_repeat(p, a, d);
    }
    if (rc == TR_OK)
        rc = plan_frame(p, a, raw, f);
    return rc < 0 ? tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to append") : TR_OK;
}

static int plan_run(struct tr_logpart *p, struct plan *a, const struct tr_log_run *run, struct tr_err *err)
{
    uint32_t frames = 0;
    for (size_t at = 0; at < run->bytes.n;) {
        struct tr_slice rest = tr_slice_sub(run->bytes, at, run->bytes.n);
        struct tr_logframe f;
        struct tr_err why = {0};
        int rc = tr_logframe_peek(rest, &f, &why);
        if (rc < 0 || f.head.kind != TR_FRAME_ORDINARY)
            return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "a run to be appended holds at byte %zu what is no ordinary frame%s%s", at, rc == TR_REJECT ? ": " : "",
                              rc == TR_REJECT ? why.msg : "");
        rc = plan_one(p, a, tr_slice_sub(rest, 0, f.head.length), &f, err);
        if (rc < 0)
            return rc;
        at += f.head.length;
        frames++;
    }
    if (frames != run->frames)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "a run to be appended says %u frames and holds %u", run->frames, frames);
    a->bytes += run->bytes.n;
    return TR_OK;
}

static void plan_begin(struct tr_logpart *p, struct plan *a)
{
    *a = (struct plan){.walk = p->walk, .end = p->end, .pos = p->pos};
}

static void plan_done(struct plan *a)
{
    tr_free(a->pieces);
    tr_free((void *)a->touched);
    tr_logindex_done(&a->add);
}

static void plan_undo(struct plan *a)
{
    for (size_t i = a->n_touched; i-- > 0;)
        a->touched[i]->in = a->touched[i]->was;
}

/* ---- writing ---- */

static int clean_dirt(struct tr_logpart *p, struct tr_err *err)
{
    if (p->dirty_to <= p->pos) {
        p->dirty_to = 0;
        return TR_OK;
    }
    uint8_t *zeros = tr_calloc(1, STAGE_MAX);
    uint64_t size = 0;
    int rc = zeros ? tr_file_size(p->file, &size, err) : tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to append");
    uint64_t to = TR_MIN(p->dirty_to, size);
    for (uint64_t at = p->pos; rc == TR_OK && at < to; at += STAGE_MAX)
        rc = tr_file_pwrite(p->file, zeros, (size_t)TR_MIN(to - at, (uint64_t)STAGE_MAX), at, err);
    tr_free(zeros);
    if (rc == TR_OK)
        p->dirty_to = 0;
    return rc;
}

/* Small pieces are gathered so that one append is, as a rule, one write. */
static int write_pieces(struct tr_logpart *p, const struct plan *a, struct tr_err *err)
{
    uint64_t at = p->pos;
    int rc = TR_OK;
    tr_buf_clear(&p->staging);
    for (size_t i = 0; i <= a->n && rc == TR_OK; i++) {
        struct tr_slice s = i < a->n ? a->pieces[i] : (struct tr_slice){NULL, 0};
        bool last = i == a->n, large = s.n > STAGE_MAX || (i == 0 && a->n == 1);
        if (p->staging.n && (last || large || p->staging.n + s.n > STAGE_MAX)) {
            rc = tr_file_pwrite(p->file, p->staging.p, p->staging.n, at, err);
            at += p->staging.n;
            tr_buf_clear(&p->staging);
        }
        if (rc < 0 || last)
            break;
        if (large) {
            rc = tr_file_pwrite(p->file, s.p, s.n, at, err);
            at += s.n;
        } else if (tr_buf_append_slice(&p->staging, s) < 0) {
            rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to append");
        }
    }
    return rc;
}

static void commit(struct tr_logpart *p, struct plan *a)
{
    struct tr_logseg *s = p->segs[p->n - 1];
    struct tr_logindex *x = s->index;
    uint64_t frames = a->walk.now.offset - p->walk.now.offset;
    tr_mutex_lock(&p->lock);
    if (a->add.n) /* may be NULL otherwise */
        memcpy(x->v + x->n, a->add.v, a->add.n * sizeof *x->v);
    if (a->add.n_d)
        memcpy(x->d + x->n_d, a->add.d, a->add.n_d * sizeof *x->d);
    x->n += a->add.n;
    x->n_d += a->add.n_d;
    p->walk = a->walk;
    p->pos = a->pos;
    p->end = a->end;
    if (p->pos > s->bytes) {
        p->bytes += p->pos - s->bytes;
        s->bytes = p->pos;
    }
    if (p->end.offset != p->durable.offset)
        tr_cond_signal(&p->work);
    bool spare = tr_logpart_spare_wanted(p);
    tr_mutex_unlock(&p->lock);
    if (spare)
        tr_elog_poke(p->log);
    tr_counter_add(p->cells.bytes, a->bytes);
    tr_counter_add(p->cells.frames, frames);
    tr_gauge_set(p->cells.disk, (int64_t)p->bytes);
}

static int reserve_index(struct tr_logpart *p, const struct plan *a, struct tr_err *err)
{
    tr_mutex_lock(&p->lock); /* it may move, and a new reader looks into it */
    int rc = tr_logindex_reserve(p->segs[p->n - 1]->index, a->add.n, a->add.n_d);
    tr_mutex_unlock(&p->lock);
    return rc < 0 ? tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to append") : TR_OK;
}

static int carry_out(struct tr_logpart *p, struct plan *a, struct tr_err *err)
{
    int rc = reserve_index(p, a, err);
    if (rc == TR_OK)
        rc = clean_dirt(p, err);
    if (rc == TR_OK) {
        p->dirty_to = a->pos;
        rc = write_pieces(p, a, err);
    }
    if (rc < 0) {
        struct tr_err ignored;
        plan_undo(a);
        (void)clean_dirt(p, &ignored); /* else the next append does it */
        return rc;
    }
    p->dirty_to = 0;
    commit(p, a);
    return TR_OK;
}

int tr_logpart_def_carry(struct tr_logpart *p, struct tr_logdef *d, struct tr_err *err)
{
    struct plan a;
    plan_begin(p, &a);
    int rc = plan_repeat(p, &a, d);
    if (rc < 0) {
        plan_undo(&a);
        tr_err_set(err, rc, TR_DOM_LOG, "no memory to append");
    } else {
        rc = carry_out(p, &a, err);
    }
    plan_done(&a);
    return rc;
}

/* ---- the roll ---- */

/* A file that is all zero behind the header, under a name that is not a segment's yet. */
static int new_file(struct tr_logpart *p, struct tr_buf *ret_path, struct tr_file **ret, struct tr_err *err)
{
    char name[TR_LOGNAME_MAX];
    uint32_t id;
    bool ready = tr_logpart_spare_take(p, &id);
    if (ready)
        snprintf(name, sizeof name, "ready-%08u", id);
    else
        snprintf(name, sizeof name, "new.tmp");
    if (tr_logseg_path(ret_path, p->dir, name) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    return tr_fs_open(p->log->o.fs, (const char *)ret_path->p, ready ? TR_FS_RDWR : TR_FS_RDWR | TR_FS_CREATE | TR_FS_TRUNC, ret, err);
}

static int write_header(struct tr_file *f, const struct tr_logseg_header *h, struct tr_err *err)
{
    uint8_t *page = tr_calloc(1, TR_LOGSEG_DATA);
    if (!page)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a segment header");
    tr_logseg_header_encode(h, page);
    int rc = tr_file_pwrite(f, page, TR_LOGSEG_DATA, 0, err);
    if (rc == TR_OK)
        rc = tr_file_fdatasync(f, err);
    tr_free(page);
    return rc;
}

static struct tr_logseg *new_segment(struct tr_logpart *p, const struct tr_logseg_header *h, uint64_t size)
{
    struct tr_logseg *s = tr_calloc(1, sizeof *s);
    if (s)
        s->index = tr_calloc(1, sizeof *s->index);
    if (!s || !s->index || tr_logpart_push(p, NULL) < 0) {
        tr_logseg_free(s);
        return NULL;
    }
    s->base = h->base;
    s->end = UINT64_MAX;
    s->created_us = h->created_us;
    s->bytes = TR_MAX(size, p->log->o.segment_bytes); /* it may grow that far without asking again */
    *s->index = (struct tr_logindex){.partition = p->id, .base = h->base, .first_us = h->created_us};
    return s;
}

/* The new file takes over; the old segment is durable wholly. */
static void switch_over(struct tr_logpart *p, struct tr_logseg *s, struct tr_file *f, int64_t now_us)
{
    struct tr_file *old = p->file;
    tr_mutex_lock(&p->lock);
    while (p->syncing)
        tr_cond_wait_until(&p->moved, &p->lock, INT64_MAX);
    if (p->n) {
        struct tr_logseg *was = p->segs[p->n - 1];
        was->end = s->base;
        was->data_end = p->pos;
        was->sealed_us = now_us;
        was->index->frames = was->end - was->base;
        was->index->data_end = p->pos;
        was->index->last_us = now_us;
    } else {
        p->durable = p->end = (struct tr_logpoint){s->base, TR_LOGSEG_DATA, s->base};
    }
    TR_ASSERT(tr_logpart_push(p, s) == TR_OK);
    p->bytes += s->bytes;
    p->file = f;
    p->pos = TR_LOGSEG_DATA;
    tr_mutex_unlock(&p->lock);
    tr_file_close(old);
    tr_gauge_set(p->cells.segments, (int64_t)p->n);
    tr_gauge_set(p->cells.disk, (int64_t)p->bytes);
}

static int fatal(struct tr_logpart *p, int rc, struct tr_err *err)
{
    if (rc >= 0)
        return rc;
    struct tr_err why = *err;
    tr_mutex_lock(&p->lock);
    rc = tr_logpart_fail(p, &why);
    tr_mutex_unlock(&p->lock);
    return rc;
}

/* Also makes the first segment of a partition. */
static int roll_to(struct tr_logpart *p, struct tr_err *err)
{
    struct tr_fs *fs = p->log->o.fs;
    TR_CLEANUP(tr_buf_done) struct tr_buf from = {0};
    TR_CLEANUP(tr_buf_done) struct tr_buf to = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_file *f = NULL;
    uint64_t size = 0;
    struct tr_logseg_header h = {.partition = p->id, .base = p->walk.now.offset, .created_us = tr_wall_us(), .prev_base = UINT64_MAX, .walk = p->walk};
    if (p->n) {
        h.prev_base = p->segs[p->n - 1]->base;
        h.prev_end = p->pos;
    }
    struct tr_logseg *s = NULL;
    int rc = new_file(p, &from, &f, err);
    if (rc == TR_OK)
        rc = write_header(f, &h, err);
    if (rc == TR_OK)
        rc = tr_file_size(f, &size, err);
    if (rc == TR_OK && ((s = new_segment(p, &h, size)) == NULL || tr_logseg_path(&to, p->dir, tr_logseg_name(name, h.base, ".seg")) < 0))
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a segment");
    if (rc < 0) {
        struct tr_err ignored;
        if (f)
            (void)tr_fs_unlink(fs, (const char *)from.p, &ignored);
        tr_file_close(f);
        tr_logseg_free(s);
        return rc;
    }
    rc = tr_fs_rename(fs, (const char *)from.p, (const char *)to.p, err);
    if (rc == TR_OK)
        rc = tr_fs_fsync_dir(fs, p->dir, err);
    if (rc < 0) { /* what the directory holds now is not known */
        tr_file_close(f);
        tr_logseg_free(s);
        return fatal(p, rc, err);
    }
    tr_free(f->path); /* it is called so from now on, also in messages */
    f->path = (char *)tr_buf_take(&to, &(size_t){0});
    switch_over(p, s, f, h.created_us);
    return TR_OK;
}

static int roll(struct tr_logpart *p, uint64_t need, struct tr_err *err)
{
    uint64_t max = p->log->part_size_max, more = TR_MAX(need, p->log->o.segment_bytes);
    if (TR_FAILPOINT("log.roll"))
        return tr_err_set(err, TR_RETRY, TR_DOM_LOG, "fault point log.roll in %s", p->dir);
    if (max && p->bytes + more > max) {
        int rc = tr_logpart_retain(p, INT64_MIN, more, err);
        if (rc < 0)
            return rc;
        if (rc == TR_OK && p->bytes + more > max) /* not if it is this transaction that must end first: it never could */
            return tr_err_set(err, TR_AGAIN, TR_DOM_LOG,
                              "%s holds %llu bytes and may hold %llu, and nothing may be removed yet: raise the log's size, or let its readers catch up", p->dir,
                              (unsigned long long)p->bytes, (unsigned long long)max);
    }
    int rc = clean_dirt(p, err);
    if (rc == TR_OK) {
        tr_mutex_lock(&p->lock);
        rc = tr_logpart_sync(p, true, err);
        tr_mutex_unlock(&p->lock);
    }
    return rc < 0 ? rc : roll_to(p, err);
}

/* ---- append ---- */

static int append_locked(struct tr_logpart *p, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err)
{
    uint64_t need = 0;
    struct tr_err none;
    if (!err)
        err = &none;
    tr_mutex_lock(&p->lock);
    int rc = tr_logpart_check(p, err);
    tr_mutex_unlock(&p->lock);
    if (rc < 0)
        return rc;
    if (TR_FAILPOINT("log.append"))
        return tr_err_set(err, TR_RETRY, TR_DOM_LOG, "fault point log.append in %s", p->dir);
    for (size_t i = 0; i < n; i++)
        need += v[i].bytes.n;
    if (p->log->part_size_max && p->bytes > p->log->part_size_max && !p->walk.open && (rc = tr_logpart_retain(p, INT64_MIN, 0, err)) < 0)
        return rc;
    /* a segment that holds repeated definitions only is not rolled: the next one would have its name */
    if (p->n == 0)
        rc = roll_to(p, err);
    else if (need && p->walk.now.offset > p->segs[p->n - 1]->base && p->pos + need > p->log->o.segment_bytes)
        rc = roll(p, need + TR_LOGSEG_DATA, err);
    if (rc < 0)
        return rc;
    struct plan a;
    plan_begin(p, &a);
    for (size_t i = 0; i < n && rc == TR_OK; i++)
        rc = plan_run(p, &a, &v[i], err);
    if (rc < 0)
        plan_undo(&a);
    else
        rc = carry_out(p, &a, err);
    plan_done(&a);
    if (rc == TR_OK && ret_next)
        *ret_next = p->walk.now.offset;
    return rc;
}

/* n == 0 makes the first segment of a new partition. */
int tr_logpart_append(struct tr_logpart *p, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err)
{
    tr_mutex_lock(&p->busy);
    int rc = append_locked(p, v, n, ret_next, err);
    tr_mutex_unlock(&p->busy);
    return rc;
}
