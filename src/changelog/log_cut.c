/*
 * Taking back an unfinished transaction while the log is open. Nobody has seen any of it: readers stop at the durable point, which lies at or
 * before the last transaction end. Segments that hold nothing else go, youngest first; the one with the transaction end becomes
 * the active one again and is zeroed behind it. In short, recovery without closing.
 */
#include "alloc.h"
#include "check.h"
#include "log_internal.h"

static int unlink_named(struct tr_logpart *p, uint64_t base, const char *suffix, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    if (tr_logseg_path(&path, p->dir, tr_logseg_name(name, base, suffix)) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_fs_unlink(p->log->o.fs, (const char *)path.p, err);
    return rc == TR_NOT_READY ? TR_OK : rc;
}

static int open_named(struct tr_logpart *p, uint64_t base, const char *suffix, struct tr_buf *path, struct tr_file **ret, struct tr_err *err)
{
    char name[TR_LOGNAME_MAX];
    if (tr_logseg_path(path, p->dir, tr_logseg_name(name, base, suffix)) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    return ret ? tr_fs_open(p->log->o.fs, (const char *)path->p, TR_FS_RDWR, ret, err) : TR_OK;
}

/* The index of a sealed segment, in memory again. */
static int index_back(struct tr_logpart *p, struct tr_logseg *s, struct tr_file *f, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    struct tr_logseg_header h;
    struct tr_err why = {0};
    if (s->index)
        return TR_OK;
    struct tr_logindex *x = tr_calloc(1, sizeof *x);
    int rc = x ? open_named(p, s->base, ".idx", &path, NULL, err) : tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
    if (rc == TR_OK && tr_logindex_read(p->log->o.fs, (const char *)path.p, true, x, &why) < 0) {
        rc = tr_logseg_header_read(f, p->id, s->base, &h, err);
        if (rc == TR_OK)
            rc = tr_logindex_build(f, &h, s->data_end, s->end, x, err);
    }
    if (rc < 0) {
        tr_free(x);
        return rc;
    }
    tr_mutex_lock(&p->lock);
    s->index = x;
    tr_mutex_unlock(&p->lock);
    return TR_OK;
}

/* The last segment goes; the one before it is the active one. */
static int step_back(struct tr_logpart *p, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    struct tr_logseg *dead = p->segs[p->n - 1], *s = p->segs[p->n - 2];
    struct tr_file *f = NULL;
    TR_ASSERT(dead->readers == 0);
    int rc = open_named(p, s->base, ".seg", &path, &f, err);
    if (rc == TR_OK)
        rc = index_back(p, s, f, err);
    if (rc == TR_OK)
        rc = unlink_named(p, s->base, ".idx", err);
    if (rc == TR_OK)
        rc = unlink_named(p, dead->base, ".seg", err);
    if (rc == TR_OK)
        rc = tr_fs_fsync_dir(p->log->o.fs, p->dir, err);
    if (rc < 0) {
        tr_file_close(f);
        return rc;
    }
    tr_file_close(p->file);
    tr_mutex_lock(&p->lock);
    p->file = f;
    p->n--;
    p->bytes -= dead->bytes;
    p->pos = s->data_end;
    s->end = UINT64_MAX;
    s->data_end = 0;
    tr_mutex_unlock(&p->lock);
    tr_logseg_free(dead);
    return TR_OK;
}

/* Where a definition stands is not tracked beyond the youngest segment: one that may have been cut is repeated before its next use, and
 * carried before the next removal. */
static void forget_definitions(struct tr_logpart *p, const struct tr_logseg *s)
{
    size_t it = 0;
    uint64_t key, val;
    while (tr_u64map_next(&p->defs, &it, &key, &val)) {
        struct tr_logdef *d = (struct tr_logdef *)(uintptr_t)val;
        if (d->in != UINT64_MAX && d->in >= s->base)
            d->in = TR_LOGDEF_NOWHERE;
    }
    for (uint32_t i = 0; i < s->index->n_d; i++) {
        struct tr_logdef *d = tr_u64map_get_ptr(&p->defs, tr_logdef_key(s->index->d[i].table_id, s->index->d[i].version));
        if (d)
            d->in = s->base;
    }
}

static int cut_back(struct tr_logpart *p, struct tr_err *err)
{
    int rc = TR_OK;
    while (rc == TR_OK && p->segs[p->n - 1]->base > p->end.base)
        rc = step_back(p, err);
    if (rc == TR_OK)
        rc = tr_logseg_zero_rest(p->file, p->end.pos, err);
    if (rc < 0)
        return rc;
    struct tr_logseg *s = p->segs[p->n - 1];
    tr_mutex_lock(&p->lock);
    p->walk = (struct tr_logwalk){.now = p->walk.end, .end = p->walk.end};
    p->pos = p->end.pos;
    p->dirty_to = 0;
    while (s->index->n && s->index->v[s->index->n - 1].pos >= p->pos)
        s->index->n--;
    while (s->index->n_d && s->index->d[s->index->n_d - 1].pos >= p->pos)
        s->index->n_d--;
    forget_definitions(p, s);
    tr_mutex_unlock(&p->lock);
    tr_gauge_set(p->cells.segments, (int64_t)p->n);
    tr_gauge_set(p->cells.disk, (int64_t)p->bytes);
    return TR_OK;
}

int tr_logpart_cut(struct tr_logpart *p, struct tr_err *err)
{
    struct tr_err none;
    if (!err)
        err = &none;
    tr_mutex_lock(&p->busy);
    tr_mutex_lock(&p->lock);
    int rc = tr_logpart_check(p, err);
    bool any = rc == TR_OK && p->walk.open;
    while (any && p->syncing)
        tr_cond_wait_until(&p->moved, &p->lock, INT64_MAX);
    if (any)
        p->syncing = true; /* nobody syncs, and so nobody holds the file */
    tr_mutex_unlock(&p->lock);
    if (any) {
        rc = cut_back(p, err);
        tr_mutex_lock(&p->lock);
        p->syncing = false;
        tr_cond_broadcast(&p->moved);
        tr_cond_signal(&p->work);
        if (rc < 0) {
            struct tr_err why = *err;
            rc = tr_logpart_fail(p, &why); /* half cut: only recovery knows what is left */
        }
        tr_mutex_unlock(&p->lock);
    }
    tr_mutex_unlock(&p->busy);
    return rc;
}
