#include "log.h"

#include <inttypes.h>
#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "log_internal.h"
#include "text.h"

void tr_log_options_init(struct tr_log_options *o)
{
    *o = (struct tr_log_options){
        .segment_bytes = TR_LOG_SEGMENT_BYTES_DEFAULT,
        .retention_us = TR_LOG_RETENTION_US_DEFAULT,
        .partitions = 1,
        .sync_thread = true,
    };
}

struct tr_elog *tr_elog_of(struct tr_log *l)
{
    return tr_container_of(l, struct tr_elog, log);
}

struct tr_logpart *tr_logpart_at(struct tr_log *l, uint32_t p, struct tr_err *err)
{
    if (p < l->partitions)
        return &tr_elog_of(l)->parts[p];
    tr_err_set(err, TR_REJECT, TR_DOM_LOG, "partition %u of a log that has %u", p, l->partitions);
    return NULL;
}

/* ---- the interface ---- */

static int log_append(struct tr_log *l, uint32_t partition, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    return p ? tr_logpart_append(p, v, n, ret_next, err) : TR_REJECT;
}

/* want 0: progress since the last such call. */
static int log_durable(struct tr_log *l, uint32_t partition, uint64_t want, int timeout_ms, uint64_t *ret_offset, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    if (!p)
        return TR_REJECT;
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : tr_deadline_ns(tr_now_ns(), timeout_ms * TR_NS_PER_MS);
    int rc = TR_OK;
    tr_mutex_lock(&p->lock);
    uint64_t least = want ? want : p->reported + 1;
    while (p->durable.offset < least && (rc = tr_logpart_check(p, err)) == TR_OK) {
        if (tr_elog_of(l)->o.sync_thread && timeout_ms != 0 && !p->syncing && p->end.offset >= least) { /* who waits does it: to hand it over costs two switches */
            if (tr_logpart_sync(p, false, err) == TR_OK)
                tr_elog_synced(p->log);
            continue;
        }
        if (!tr_elog_of(l)->o.sync_thread || timeout_ms == 0 || !tr_cond_wait_until(&p->moved, &p->lock, deadline)) {
            if (p->durable.offset < least)
                rc = tr_err_set(err, TR_AGAIN, TR_DOM_LOG, "nothing new is durable in %s", p->dir);
            break;
        }
    }
    if (want == 0)
        p->reported = p->durable.offset;
    if (ret_offset)
        *ret_offset = p->durable.offset;
    tr_mutex_unlock(&p->lock);
    return rc;
}

static int log_tail(struct tr_log *l, uint32_t partition, struct tr_pos *ret, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    if (!p)
        return TR_REJECT;
    tr_mutex_lock(&p->lock);
    *ret = p->walk.end;
    tr_mutex_unlock(&p->lock);
    return TR_OK;
}

static int log_cut(struct tr_log *l, uint32_t partition, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    return p ? tr_logpart_cut(p, err) : TR_REJECT;
}

static int log_reader_new(struct tr_log *l, uint32_t partition, uint64_t offset, struct tr_log_reader **ret, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    return p ? tr_logpart_reader_new(p, offset, ret, err) : TR_REJECT;
}

static int log_pin(struct tr_log *l, const char *who, uint32_t partition, uint64_t offset, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    return p ? tr_logpart_pin(p, who, offset, err) : TR_REJECT;
}

static int log_stats(struct tr_log *l, uint32_t partition, struct tr_log_stats *ret, struct tr_err *err)
{
    struct tr_logpart *p = tr_logpart_at(l, partition, err);
    if (!p)
        return TR_REJECT;
    tr_mutex_lock(&p->lock);
    *ret = (struct tr_log_stats){
        .first_offset = p->segs[0]->base,
        .durable_offset = p->durable.offset,
        .appended_offset = p->walk.now.offset,
        .bytes = p->bytes,
        .segments = p->n,
        .size_max = tr_elog_of(l)->part_size_max,
        .oldest_us = p->segs[0]->created_us,
        .pinned_offset = tr_logpart_pinned(p),
    };
    tr_mutex_unlock(&p->lock);
    return TR_OK;
}

static int log_retain(struct tr_log *l, int64_t now_us, struct tr_err *err)
{
    for (uint32_t i = 0; i < l->partitions; i++) {
        struct tr_logpart *p = &tr_elog_of(l)->parts[i];
        tr_mutex_lock(&p->busy);
        int rc = tr_logpart_retain(p, now_us, 0, err);
        tr_mutex_unlock(&p->busy);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

/* ---- the end ---- */

static void stop_thread(struct tr_logpart *p)
{
    tr_mutex_lock(&p->lock);
    p->stop = true;
    tr_cond_broadcast(&p->work);
    tr_mutex_unlock(&p->lock);
    p->thread = tr_thread_join(p->thread);
}

static void part_done(struct tr_logpart *p)
{
    size_t it = 0;
    uint64_t key, val;
    if (!p->dir)
        return;
    tr_file_close(p->file);
    for (size_t i = 0; i < p->n; i++) {
        TR_ASSERT(p->segs[i]->readers == 0);
        tr_logseg_free(p->segs[i]);
    }
    tr_free((void *)p->segs);
    while (tr_u64map_next(&p->defs, &it, &key, &val)) {
        struct tr_logdef *d = (struct tr_logdef *)(uintptr_t)val;
        tr_buf_done(&d->frame);
        tr_free(d);
    }
    tr_u64map_done(&p->defs);
    tr_buf_done(&p->staging);
    TR_LIST_EACH(pin, &p->pins)
        tr_free(tr_container_of(pin, struct tr_logpin, link));
    tr_mutex_done(&p->lock);
    tr_mutex_done(&p->marking);
    tr_mutex_done(&p->busy);
    tr_cond_done(&p->work);
    tr_cond_done(&p->moved);
    tr_free(p->dir);
}

static void end(struct tr_elog *e, bool orderly)
{
    struct tr_err ignored;
    if (!e)
        return;
    tr_mutex_lock(&e->tend_lock);
    e->tend_stop = true;
    tr_cond_signal(&e->tend_work);
    tr_mutex_unlock(&e->tend_lock);
    e->tender = tr_thread_join(e->tender);
    for (uint32_t i = 0; e->parts && i < e->log.partitions; i++) {
        struct tr_logpart *p = &e->parts[i];
        if (!p->dir)
            continue;
        if (p->thread)
            stop_thread(p);
        if (orderly && p->n) {
            tr_mutex_lock(&p->lock);
            int rc = tr_logpart_sync(p, false, &ignored);
            tr_mutex_unlock(&p->lock);
            if (rc == TR_OK)
                tr_logpart_mark_tail(p, false);
        }
        part_done(p);
    }
    tr_file_close(e->lock);
    tr_mutex_done(&e->tend_lock);
    tr_cond_done(&e->tend_work);
    tr_free(e->parts);
    tr_free(e->dir);
    tr_free(e);
}

static void log_close(struct tr_log *l)
{
    if (l)
        end(tr_elog_of(l), true);
}

void tr_log_embedded_abandon(struct tr_log *l)
{
    if (l)
        end(tr_elog_of(l), false);
}

int tr_log_embedded_sync(struct tr_log *l, struct tr_err *err)
{
    TR_ASSERT(!tr_elog_of(l)->o.sync_thread);
    for (uint32_t i = 0; i < l->partitions; i++) {
        struct tr_logpart *p = &tr_elog_of(l)->parts[i];
        tr_mutex_lock(&p->lock);
        int rc = tr_logpart_sync(p, false, err);
        tr_mutex_unlock(&p->lock);
        if (rc < 0)
            return rc;
        (void)tr_logpart_tend(p);
    }
    return TR_OK;
}

/* ---- the beginning ---- */

static int cell(struct tr_metrics *m, const char *name, const char *help, const char *unit, enum tr_metric_type type, const struct tr_label *label,
                struct tr_cell **ret, struct tr_err *err)
{
    struct tr_family *f = NULL;
    struct tr_metric_def def = {.name = name, .help = help, .unit = unit, .type = type};
    int rc = tr_metrics_family(m, &def, &f, err);
    return rc < 0 ? rc : tr_family_cell(f, label, 1, ret, err);
}

static int make_cells(struct tr_logpart *p, struct tr_metrics *m, struct tr_err *err)
{
    struct tr_logcells *c = &p->cells;
    char id[16];
    struct tr_label label = {"partition", id};
    struct tr_metric_def sync = {
        .name = "tailrace_log_sync_seconds",
        .help = "Time of one fdatasync of the change log.",
        .unit = "seconds",
        .type = TR_HISTOGRAM,
        .scale = 1e-9,
        .bounds = tr_latency_bounds_ns,
        .n_bounds = TR_LATENCY_BOUNDS,
    };
    struct tr_family *f = NULL;
    if (!m)
        return TR_OK;
    snprintf(id, sizeof id, "%u", p->id);
    int rc = cell(m, "tailrace_log_appended_bytes_total", "Bytes of frames appended.", "bytes", TR_COUNTER, &label, &c->bytes, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_appended_frames_total", "Frames appended.", NULL, TR_COUNTER, &label, &c->frames, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_segments", "Segments held.", NULL, TR_GAUGE, &label, &c->segments, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_bytes", "Bytes that segments hold on disk.", "bytes", TR_GAUGE, &label, &c->disk, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_durable_offset", "One past the last durable frame.", NULL, TR_GAUGE, &label, &c->durable, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_recycled_segments_total", "Segments made from files written before.", NULL, TR_COUNTER, &label, &c->recycled, err);
    if (rc == TR_OK)
        rc = cell(m, "tailrace_log_removed_segments_total", "Segments that retention removed.", NULL, TR_COUNTER, &label, &c->removed, err);
    if (rc == TR_OK)
        rc = tr_metrics_family(m, &sync, &f, err);
    if (rc == TR_OK)
        rc = tr_family_histogram(f, &label, 1, &c->sync_ns, err);
    return rc;
}

static int part_init(struct tr_elog *e, uint32_t id, struct tr_err *err)
{
    struct tr_logpart *p = &e->parts[id];
    TR_CLEANUP(tr_buf_done) struct tr_buf dir = {0};
    size_t n;
    if (tr_buf_printf(&dir, "%s/p%04u", e->dir, id) < 0 || !tr_buf_cstr(&dir) || !(p->dir = (char *)tr_buf_take(&dir, &n)))
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    p->log = e;
    p->id = id;
    tr_mutex_init(&p->lock);
    tr_mutex_init(&p->marking);
    tr_mutex_init(&p->busy);
    tr_cond_init(&p->work);
    tr_cond_init(&p->moved);
    tr_u64map_init(&p->defs);
    tr_list_init(&p->pins);
    tr_list_init(&p->readers);
    int rc = make_cells(p, e->o.metrics, err);
    if (rc == TR_OK)
        rc = tr_fs_mkdir_p(e->o.fs, p->dir, err);
    if (rc == TR_OK)
        rc = tr_logpart_open(p, err);
    if (rc < 0)
        return rc;
    tr_gauge_set(p->cells.segments, (int64_t)p->n);
    tr_gauge_set(p->cells.disk, (int64_t)p->bytes);
    tr_gauge_set(p->cells.durable, (int64_t)p->durable.offset);
    return TR_OK;
}

static const char meta_text[] = "tailrace change log, format 1\npartitions ";

/* The file log.meta: written last, so that a log is whole when it is there. */
static int check_meta(struct tr_elog *e, bool *ret_there, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char *text = NULL;
    size_t n = 0;
    uint64_t partitions = 0;
    if (tr_logseg_path(&path, e->dir, "log.meta") < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_fs_read_file(e->o.fs, (const char *)path.p, 4096, &text, &n, err);
    *ret_there = rc == TR_OK;
    if (rc == TR_NOT_READY)
        return TR_OK;
    if (rc < 0)
        return rc;
    size_t k = sizeof meta_text - 1;
    if (n <= k || strncmp(text, meta_text, k) != 0 || text[n - 1] != '\n' || tr_parse_u64(tr_slice_of(text + k, n - k - 1), &partitions, err) < 0)
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is not of a change log that this program knows", (const char *)path.p);
    else if (partitions != e->o.partitions)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_LOG,
                        "the log in %s has %" PRIu64 " partitions and the setting says %u: set it to %" PRIu64 ", or begin a new log in another directory", e->dir,
                        partitions, e->o.partitions, partitions);
    tr_free(text);
    return rc;
}

static int write_meta(struct tr_elog *e, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char text[128];
    int n = snprintf(text, sizeof text, "%s%u\n", meta_text, e->o.partitions);
    if (tr_logseg_path(&path, e->dir, "log.meta") < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    return tr_fs_write_file(e->o.fs, (const char *)path.p, text, (size_t)n, err);
}

static int check_options(struct tr_elog *e, const struct tr_log_options *o, struct tr_err *err)
{
    struct tr_log_options *x = &e->o;
    *x = *o;
    if (!x->fs)
        x->fs = tr_fs_posix();
    if (!x->segment_bytes)
        x->segment_bytes = TR_LOG_SEGMENT_BYTES_DEFAULT;
    if (!x->retention_us)
        x->retention_us = TR_LOG_RETENTION_US_DEFAULT;
    if (!x->partitions)
        x->partitions = 1;
    if (!x->dir || !*x->dir)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "the log has no directory");
    if (x->partitions > TR_LOG_PARTITIONS_MAX)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "a log of %u partitions: at most %d are possible", x->partitions, TR_LOG_PARTITIONS_MAX);
    if (x->segment_bytes < TR_LOGSEG_DATA * 2 || x->segment_bytes > TR_LOG_SEGMENT_BYTES_MAX)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "segments of %" PRIu64 " bytes: from 8 KiB to 16 GiB are possible", x->segment_bytes);
    if (x->retention_us < 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "the log's retention is negative");
    e->part_size_max = x->size_max / x->partitions;
    if (x->size_max && e->part_size_max < 2 * x->segment_bytes)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "the log's size of %" PRIu64 " bytes is less than two segments of each partition: at least %" PRIu64, x->size_max,
                          2 * x->segment_bytes * x->partitions);
    return TR_OK;
}

static int open_all(struct tr_elog *e, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    bool there = false;
    int rc = tr_fs_mkdir_p(e->o.fs, e->dir, err);
    if (rc == TR_OK && tr_logseg_path(&path, e->dir, "LOCK") < 0)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    if (rc == TR_OK)
        rc = tr_fs_lock(e->o.fs, (const char *)path.p, &e->lock, err);
    if (rc == TR_OK)
        rc = check_meta(e, &there, err);
    for (uint32_t i = 0; i < e->o.partitions && rc == TR_OK && there; i++) {
        char name[32];
        bool is = false;
        snprintf(name, sizeof name, "p%04u", i);
        if (tr_logseg_path(&path, e->dir, name) < 0)
            rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
        else if ((rc = tr_fs_exists(e->o.fs, (const char *)path.p, &is, err)) == TR_OK && !is)
            rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "partition %s is missing", (const char *)path.p);
    }
    for (uint32_t i = 0; i < e->o.partitions && rc == TR_OK; i++)
        rc = part_init(e, i, err);
    if (rc == TR_OK && !there)
        rc = write_meta(e, err);
    for (uint32_t i = 0; i < e->o.partitions && rc == TR_OK && e->o.sync_thread; i++) {
        char name[32];
        snprintf(name, sizeof name, "log-sync-%u", i);
        rc = tr_thread_start(&e->parts[i].thread, name, tr_logpart_thread, &e->parts[i], err);
    }
    if (rc == TR_OK && e->o.sync_thread)
        rc = tr_thread_start(&e->tender, "log-tend", tr_elog_tender, e, err);
    return rc;
}

int tr_log_embedded_open(const struct tr_log_options *o, struct tr_log **ret, struct tr_err *err)
{
    static const struct tr_log_ops ops = {
        .append = log_append,
        .durable = log_durable,
        .tail = log_tail,
        .cut = log_cut,
        .reader_new = log_reader_new,
        .pin = log_pin,
        .stats = log_stats,
        .retain = log_retain,
        .close = log_close,
    };
    struct tr_elog *e = tr_calloc(1, sizeof *e);
    if (!e)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for the log");
    e->log.ops = &ops;
    tr_mutex_init(&e->tend_lock);
    tr_cond_init(&e->tend_work);
    int rc = check_options(e, o, err);
    if (rc == TR_OK) {
        e->log.partitions = e->o.partitions;
        e->dir = tr_strdup(e->o.dir);
        e->parts = tr_calloc(e->o.partitions, sizeof *e->parts);
        rc = e->dir && e->parts ? open_all(e, err) : tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for the log");
    }
    if (rc < 0) {
        end(e, false);
        return rc;
    }
    *ret = &e->log;
    return TR_OK;
}
