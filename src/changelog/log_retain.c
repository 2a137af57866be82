/*
 * Retention, pins, and the files for segments to come.
 *
 * Before a segment goes, definitions that no younger segment holds are repeated in the active one and synced, so that the log never
 * forgets a definition. Each removal is a rename (to be recycled) or an unlink, and is synced before anything else is done: neither
 * a hole among the segments nor a zeroed file under a segment's name can come out of a crash.
 */
#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "log_internal.h"

uint64_t tr_logpart_pinned(struct tr_logpart *p)
{
    uint64_t least = UINT64_MAX;
    TR_LIST_EACH(it, &p->pins)
        least = TR_MIN(least, tr_container_of(it, struct tr_logpin, link)->offset);
    return least;
}

int tr_logpart_pin(struct tr_logpart *p, const char *who, uint64_t offset, struct tr_err *err)
{
    size_t n = strlen(who) + 1;
    struct tr_logpin *fresh = offset == UINT64_MAX ? NULL : tr_calloc(1, sizeof *fresh + n), *found = NULL;
    if (!fresh && offset != UINT64_MAX)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for the pin of %s", who);
    tr_mutex_lock(&p->lock);
    TR_LIST_EACH(it, &p->pins) {
        struct tr_logpin *pin = tr_container_of(it, struct tr_logpin, link);
        if (strcmp(pin->who, who) == 0)
            found = pin;
    }
    if (offset == UINT64_MAX && found) {
        tr_list_del(&found->link);
        fresh = found; /* to be freed */
    } else if (found) {
        found->offset = offset;
    } else if (fresh) {
        memcpy(fresh->who, who, n);
        fresh->offset = offset;
        tr_list_push_back(&p->pins, &fresh->link);
        fresh = NULL;
    }
    tr_mutex_unlock(&p->lock);
    tr_free(fresh);
    return TR_OK;
}

/* ---- spares ---- */

static int spare_path(struct tr_logpart *p, const char *kind, uint32_t id, struct tr_buf *out)
{
    char name[TR_LOGNAME_MAX];
    snprintf(name, sizeof name, "%s-%08u", kind, id);
    return tr_logseg_path(out, p->dir, name);
}

bool tr_logpart_spare_take(struct tr_logpart *p, uint32_t *ret_id)
{
    tr_mutex_lock(&p->lock);
    bool ready = p->n_spares && p->spares[0].ready && !p->preparing;
    if (ready) {
        *ret_id = p->spares[0].id;
        p->n_spares--;
        memmove(&p->spares[0], &p->spares[1], p->n_spares * sizeof p->spares[0]);
        tr_counter_inc(p->cells.recycled);
    }
    tr_mutex_unlock(&p->lock);
    return ready;
}

/* The step's own work, on a file nobody else uses: p->preparing keeps it in place. */
static int zero_some(struct tr_logpart *p, struct tr_logspare *s, uint64_t bytes, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf from = {0};
    TR_CLEANUP(tr_buf_done) struct tr_buf to = {0};
    struct tr_fs *fs = p->log->o.fs;
    struct tr_file *f = NULL;
    uint64_t want = p->log->o.segment_bytes, n = TR_MIN(bytes, want - s->zeroed), size = 0;
    if (spare_path(p, "spare", s->id, &from) < 0 || spare_path(p, "ready", s->id, &to) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_fs_open(fs, (const char *)from.p, TR_FS_RDWR | TR_FS_CREATE, &f, err);
    if (rc == TR_OK)
        rc = tr_file_size(f, &size, err);
    if (rc == TR_OK && size > want) /* an oversized one, before it is synced as ready */
        rc = tr_file_truncate(f, want, err);
    if (rc == TR_OK)
        rc = tr_file_preallocate_zero(f, s->zeroed, n, err);
    tr_file_close(f);
    if (rc < 0)
        return rc;
    s->zeroed += n;
    if (s->zeroed < want)
        return TR_OK;
    rc = tr_fs_rename(fs, (const char *)from.p, (const char *)to.p, err);
    if (rc == TR_OK) /* or a crash might keep the next rename and lose this one: two names for one file */
        rc = tr_fs_fsync_dir(fs, p->dir, err);
    if (rc == TR_OK)
        s->ready = true;
    return rc;
}

/* A spare is wanted once the active segment is a quarter full. */
bool tr_logpart_spare_wanted(const struct tr_logpart *p)
{
    return p->n && p->pos >= p->log->o.segment_bytes / 4 && !(p->n_spares && p->spares[0].ready) && !p->preparing && p->failed == 0;
}

bool tr_logpart_spare_step(struct tr_logpart *p, uint64_t bytes)
{
    struct tr_err ignored;
    tr_mutex_lock(&p->lock);
    bool wanted = tr_logpart_spare_wanted(p) && tr_now_ns() >= p->no_spare_until_ns;
    if (wanted && p->n_spares == 0)
        p->spares[p->n_spares++] = (struct tr_logspare){.id = p->spare_next++};
    p->preparing = wanted;
    struct tr_logspare s = p->spares[0];
    tr_mutex_unlock(&p->lock);
    if (!wanted)
        return false;
    int rc = zero_some(p, &s, bytes, &ignored);
    if (rc < 0) { /* a spare is no promise: without it segments grow. A full disk gets its bytes back */
        TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
        if (spare_path(p, "spare", s.id, &path) == TR_OK)
            (void)tr_fs_unlink(p->log->o.fs, (const char *)path.p, &ignored);
    }
    tr_mutex_lock(&p->lock);
    p->preparing = false;
    p->spares[0] = s;
    if (rc < 0) {
        p->n_spares--;
        memmove(&p->spares[0], &p->spares[1], p->n_spares * sizeof p->spares[0]);
        p->no_spare_until_ns = tr_deadline_ns(tr_now_ns(), 10 * TR_NS_PER_S);
    }
    tr_mutex_unlock(&p->lock);
    return rc == TR_OK && !s.ready;
}

/* ---- removal ---- */

/* May the oldest segment go? Held. */
static bool removable(struct tr_logpart *p, int64_t now_us, uint64_t room)
{
    uint64_t max = p->log->part_size_max;
    if (p->n < 2 || p->segs[0]->end > p->durable.offset || p->segs[0]->end > tr_logpart_pinned(p))
        return false;
    if (max && p->bytes + room > max)
        return true;
    return now_us != INT64_MIN && p->log->o.retention_us != INT64_MAX && now_us - p->segs[0]->sealed_us > p->log->o.retention_us;
}

/* Definitions that stand in this segment and in no younger one. None may be carried into an open transaction, which recovery would
 * cut: AGAIN then. */
static int carry_definitions(struct tr_logpart *p, uint64_t base, struct tr_err *err)
{
    size_t it = 0;
    uint64_t key, val;
    bool any = false;
    while (tr_u64map_next(&p->defs, &it, &key, &val)) {
        struct tr_logdef *d = (struct tr_logdef *)(uintptr_t)val;
        if (d->in != base && d->in != TR_LOGDEF_NOWHERE)
            continue;
        if (p->walk.open)
            return TR_AGAIN;
        int rc = tr_logpart_def_carry(p, d, err);
        if (rc < 0)
            return rc;
        any = true;
    }
    if (!any)
        return TR_OK;
    tr_mutex_lock(&p->lock);
    int rc = tr_logpart_sync(p, true, err);
    tr_mutex_unlock(&p->lock);
    return rc;
}

static void take_out_first(struct tr_logpart *p)
{
    struct tr_logseg *s = p->segs[0];
    p->n--;
    memmove((void *)&p->segs[0], (void *)&p->segs[1], p->n * sizeof p->segs[0]);
    p->bytes -= s->bytes;
    s->dropped = true;
    if (s->readers == 0)
        tr_logseg_free(s);
    tr_logpart_wake_readers(p); /* some may stand below the oldest now */
    tr_counter_inc(p->cells.removed);
    tr_gauge_set(p->cells.segments, (int64_t)p->n);
    tr_gauge_set(p->cells.disk, (int64_t)p->bytes);
}

/* A file that a reader of this process has open is not recycled: it would read zeros. (Others look whether the name is still there.) */
static int remove_first(struct tr_logpart *p, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    TR_CLEANUP(tr_buf_done) struct tr_buf idx = {0};
    TR_CLEANUP(tr_buf_done) struct tr_buf to = {0};
    struct tr_fs *fs = p->log->o.fs;
    char name[TR_LOGNAME_MAX];
    struct tr_err ignored;
    uint64_t base = p->segs[0]->base;
    tr_mutex_lock(&p->lock);
    bool recycle = p->segs[0]->readers == 0 && p->n_spares < TR_LOG_SPARES_MAX;
    uint32_t id = p->spare_next;
    if (recycle)
        p->spare_next++;
    p->segs[0]->removed = true; /* no reader enters it from here on */
    tr_mutex_unlock(&p->lock);
    if (tr_logseg_path(&path, p->dir, tr_logseg_name(name, base, ".seg")) < 0 || spare_path(p, "spare", id, &to) < 0 ||
        tr_logseg_path(&idx, p->dir, tr_logseg_name(name, base, ".idx")) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    (void)tr_fs_unlink(fs, (const char *)idx.p, &ignored);
    int rc = recycle ? tr_fs_rename(fs, (const char *)path.p, (const char *)to.p, err) : tr_fs_unlink(fs, (const char *)path.p, err);
    if (rc == TR_OK)
        rc = tr_fs_fsync_dir(fs, p->dir, err);
    tr_mutex_lock(&p->lock);
    if (rc == TR_OK) {
        take_out_first(p);
        if (recycle)
            p->spares[p->n_spares++] = (struct tr_logspare){.id = id};
    } else {
        struct tr_err why = *err;
        rc = tr_logpart_fail(p, &why);
    }
    tr_mutex_unlock(&p->lock);
    return rc;
}

int tr_logpart_retain(struct tr_logpart *p, int64_t now_us, uint64_t room, struct tr_err *err)
{
    struct tr_err none;
    if (!err)
        err = &none;
    for (;;) {
        tr_mutex_lock(&p->lock);
        int rc = tr_logpart_check(p, err);
        bool more = rc == TR_OK && removable(p, now_us, room);
        tr_mutex_unlock(&p->lock);
        if (!more)
            return rc;
        rc = carry_definitions(p, p->segs[0]->base, err);
        if (rc == TR_AGAIN)
            return 1;
        if (rc == TR_OK)
            rc = remove_first(p, err);
        if (rc < 0)
            return rc;
    }
}
