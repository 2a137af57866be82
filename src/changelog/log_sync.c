/*
 * Group commit, by whoever waits for it or by one thread per partition, and housekeeping, one thread per log; or both by tr_log_embedded_sync.
 *
 * A sync that failed is never tried again: the kernel may have dropped the pages and would report success. The partition is FATAL
 * for ever, and the file "tail" tells the next open to trust nothing beyond what was durable before.
 */
#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "log_internal.h"

#define MARK_EVERY_NS TR_NS_PER_S
#define ZERO_STEP (UINT64_C(4) << 20)

int tr_logpart_check(struct tr_logpart *p, struct tr_err *err)
{
    if (p->failed < 0 && err)
        *err = p->why;
    return p->failed;
}

int tr_logpart_fail(struct tr_logpart *p, const struct tr_err *why)
{
    if (p->failed == 0) {
        p->failed = TR_FATAL;
        p->why = *why;
        p->why.rc = TR_FATAL;
        tr_cond_broadcast(&p->moved);
        tr_logpart_wake_readers(p);
    }
    return p->failed;
}

void tr_logpart_advance(struct tr_logpart *p, struct tr_logpoint to)
{
    bool more = to.offset > p->durable.offset;
    if (to.base > p->durable.base || (to.base == p->durable.base && to.pos > p->durable.pos))
        p->durable = to;
    if (!more)
        return;
    tr_gauge_set(p->cells.durable, (int64_t)to.offset);
    tr_cond_broadcast(&p->moved);
    tr_logpart_wake_readers(p);
}

static int sync_now(struct tr_logpart *p, struct tr_file *f, struct tr_err *err)
{
    if (TR_FAILPOINT("log.before_sync"))
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "fault point log.before_sync in %s", p->dir);
    int64_t t = tr_now_ns();
    int rc = tr_file_fdatasync(f, err);
    tr_histogram_observe(p->cells.sync_ns, (uint64_t)(tr_now_ns() - t));
    if (rc == TR_OK)
        (void)TR_FAILPOINT("log.after_sync");
    return rc;
}

int tr_logpart_sync(struct tr_logpart *p, bool force, struct tr_err *err)
{
    struct tr_err why = {0};
    while (p->syncing)
        tr_cond_wait_until(&p->moved, &p->lock, INT64_MAX);
    struct tr_logpoint to = p->end;
    struct tr_file *f = p->file;
    if (p->failed < 0)
        return tr_logpart_check(p, err);
    if (!f || (!force && to.offset == p->durable.offset))
        return TR_OK;
    p->syncing = true;
    tr_mutex_unlock(&p->lock);
    int rc = sync_now(p, f, &why);
    tr_mutex_lock(&p->lock);
    p->syncing = false;
    tr_cond_broadcast(&p->moved);
    if (rc == TR_OK) {
        tr_logpart_advance(p, to);
        return TR_OK;
    }
    tr_logpart_fail(p, &why);
    tr_mutex_unlock(&p->lock);
    tr_logpart_mark_tail(p, true);
    tr_mutex_lock(&p->lock);
    return tr_logpart_check(p, err);
}

/* Best effort: without it recovery knows less, not something wrong. After a failed sync nothing replaces what that says. */
void tr_logpart_mark_tail(struct tr_logpart *p, bool failed)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    uint8_t raw[TR_LOGTAIL_BYTES];
    struct tr_err ignored;
    tr_mutex_lock(&p->marking);
    tr_mutex_lock(&p->lock);
    struct tr_logpoint d = p->durable;
    bool due = failed || (p->failed == 0 && (d.base != p->marked.base || d.pos != p->marked.pos));
    tr_mutex_unlock(&p->lock);
    tr_logtail_encode(&(struct tr_logtail){.base = d.base, .pos = d.pos, .offset = d.offset, .failed = failed}, raw);
    if (due && tr_logseg_path(&path, p->dir, "tail") == TR_OK &&
        tr_fs_write_file(p->log->o.fs, (const char *)path.p, raw, sizeof raw, &ignored) == TR_OK) {
        tr_mutex_lock(&p->lock);
        p->marked = d;
        tr_mutex_unlock(&p->lock);
    }
    tr_mutex_unlock(&p->marking);
}

/* The index of the oldest sealed segment that has none on disk. A segment that goes meanwhile leaves an orphan, which the next open
 * removes. */
static bool write_an_index(struct tr_logpart *p)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    TR_CLEANUP(tr_buf_done) struct tr_buf bytes = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_err ignored;
    struct tr_logindex *x = NULL;
    uint64_t base = 0;
    tr_mutex_lock(&p->lock);
    for (size_t i = 0; i + 1 < p->n && !x; i++)
        if (p->segs[i]->index) {
            x = p->segs[i]->index;
            base = p->segs[i]->base;
        }
    int rc = x ? tr_logindex_encode(x, &bytes) : TR_EOF;
    tr_mutex_unlock(&p->lock);
    if (rc < 0)
        return false;
    if (tr_logseg_path(&path, p->dir, tr_logseg_name(name, base, ".idx")) < 0)
        return false;
    rc = tr_fs_write_file(p->log->o.fs, (const char *)path.p, bytes.p, bytes.n, &ignored);
    if (rc < 0)
        return false;
    tr_mutex_lock(&p->lock);
    for (size_t i = 0; i + 1 < p->n; i++)
        if (p->segs[i]->base == base) {
            tr_logindex_done(p->segs[i]->index);
            tr_free(p->segs[i]->index);
            p->segs[i]->index = NULL;
        }
    tr_mutex_unlock(&p->lock);
    return true;
}

bool tr_logpart_tend(struct tr_logpart *p)
{
    if (tr_logpart_spare_step(p, ZERO_STEP))
        return true;
    return write_an_index(p);
}

void tr_logpart_thread(void *arg)
{
    struct tr_logpart *p = arg;
    struct tr_err err;
    tr_mutex_lock(&p->lock);
    while (!p->stop) {
        if (p->failed == 0 && p->end.offset != p->durable.offset) {
            if (tr_logpart_sync(p, false, &err) == TR_OK)
                tr_elog_synced(p->log);
        } else {
            tr_cond_wait_until(&p->work, &p->lock, INT64_MAX);
        }
    }
    tr_mutex_unlock(&p->lock);
}

void tr_elog_poke(struct tr_elog *e)
{
    tr_mutex_lock(&e->tend_lock);
    e->tend_due = true;
    tr_cond_signal(&e->tend_work);
    tr_mutex_unlock(&e->tend_lock);
}

void tr_elog_synced(struct tr_elog *e)
{
    tr_mutex_lock(&e->tend_lock);
    if (e->tend_hears) {
        e->tend_due = true;
        tr_cond_signal(&e->tend_work);
    }
    tr_mutex_unlock(&e->tend_lock);
}

/* Marks of all partitions; false: each says what is durable. */
static bool unmarked(struct tr_elog *e, bool mark)
{
    bool any = false;
    for (uint32_t i = 0; i < e->log.partitions; i++) {
        struct tr_logpart *p = &e->parts[i];
        if (mark)
            tr_logpart_mark_tail(p, false);
        tr_mutex_lock(&p->lock);
        any |= p->failed == 0 && (p->durable.base != p->marked.base || p->durable.pos != p->marked.pos);
        tr_mutex_unlock(&p->lock);
    }
    return any;
}

/* One thread per log, beside those that sync, so that zeroing files for later never stands in a commit's way. */
void tr_elog_tender(void *arg)
{
    struct tr_elog *e = arg;
    int64_t mark_at = tr_deadline_ns(tr_now_ns(), MARK_EVERY_NS);
    for (;;) {
        bool more = false, mark = tr_now_ns() >= mark_at;
        tr_mutex_lock(&e->tend_lock);
        e->tend_due = false;
        e->tend_hears = true; /* before it looks: what is synced after the look is heard of */
        bool stop = e->tend_stop;
        tr_mutex_unlock(&e->tend_lock);
        if (stop)
            return;
        for (uint32_t i = 0; i < e->log.partitions; i++)
            more |= tr_logpart_tend(&e->parts[i]);
        if (mark)
            mark_at = tr_deadline_ns(tr_now_ns(), MARK_EVERY_NS);
        bool later = unmarked(e, mark);
        tr_mutex_lock(&e->tend_lock);
        e->tend_hears = !later;
        while (!more && !e->tend_stop && !e->tend_due)
            if (!tr_cond_wait_until(&e->tend_work, &e->tend_lock, later ? mark_at : INT64_MAX))
                break;
        tr_mutex_unlock(&e->tend_lock);
    }
}
