/*
 * Opening and recovery of one partition.
 *
 * Every segment but the last is complete and durable (log.h), so only the last is walked. It is cut behind the last place where no
 * transaction was open. When it has none at all (it lies within one transaction that never ended) it is removed, and the one
 * before it is the last: the header of each segment says whether that is so. What follows the cut is made zero before anything
 * else happens, and stale names go, durably.
 *
 * A frame that does not check ends the walk: it was on its way when the machine went down. But not below the mark in the file
 * "tail" (written at rest and at close): there it is corruption, and FATAL. (Between the mark and the end a lost durable byte looks like
 * a torn write; the owner finds it by comparing the log's end with the control store's.)
 */
#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "log_internal.h"
#include "text.h"

void tr_logseg_free(struct tr_logseg *s)
{
    if (!s)
        return;
    tr_logindex_done(s->index);
    tr_free(s->index);
    tr_free(s);
}

int tr_logpart_push(struct tr_logpart *p, struct tr_logseg *s)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        void *v = tr_realloc((void *)p->segs, cap * sizeof *p->segs);
        if (!v)
            return TR_NOMEM;
        p->segs = v;
        p->cap = cap;
    }
    if (s)
        p->segs[p->n++] = s;
    return TR_OK;
}

struct recovery {
    struct tr_logpart *p;
    struct tr_logtail mark;
    bool has_mark, names_changed;
    struct tr_logseg_header h; /* of the last segment */
    struct tr_logwalk cut;
    uint64_t cut_pos;
    bool found;
};

static int path_to(struct tr_logpart *p, const char *name, struct tr_buf *out, struct tr_err *err)
{
    return tr_logseg_path(out, p->dir, name) < 0 ? tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path") : TR_OK;
}

static int drop_name(struct recovery *r, const char *name, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    int rc = path_to(r->p, name, &path, err);
    if (rc == TR_OK)
        rc = tr_fs_unlink(r->p->log->o.fs, (const char *)path.p, err);
    if (rc == TR_NOT_READY)
        return TR_OK;
    r->names_changed |= rc == TR_OK;
    return rc;
}

static int sync_names(struct recovery *r, struct tr_err *err)
{
    if (!r->names_changed)
        return TR_OK;
    r->names_changed = false;
    return tr_fs_fsync_dir(r->p->log->o.fs, r->p->dir, err);
}

static int read_mark(struct recovery *r, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char *raw = NULL;
    size_t n = 0;
    int rc = path_to(r->p, "tail", &path, err);
    if (rc == TR_OK)
        rc = tr_fs_read_file(r->p->log->o.fs, (const char *)path.p, 4096, &raw, &n, err);
    if (rc == TR_NOT_READY)
        return TR_OK;
    if (rc == TR_OK) {
        struct tr_err why = {0};
        r->has_mark = tr_logtail_decode(tr_slice_of(raw, n), &r->mark, &why) == TR_OK;
        if (!r->has_mark)
            rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged; if the segments are known to be good, remove it", (const char *)path.p);
    }
    tr_free(raw);
    return rc;
}

/* ---- the names ---- */

static int add_spare(struct recovery *r, const char *name, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    bool ready = strncmp(name, "ready-", 6) == 0;
    uint64_t id = 0;
    if (tr_parse_u64(tr_slice_str(name + 6), &id, err) < 0 || id >= UINT32_MAX || p->n_spares == TR_LOG_SPARES_MAX)
        return drop_name(r, name, err);
    if (p->spare_next <= id)
        p->spare_next = (uint32_t)id + 1;
    struct tr_logspare s = {.id = (uint32_t)id, .zeroed = ready ? p->log->o.segment_bytes : 0, .ready = ready};
    size_t at = p->n_spares++;
    if (ready) { /* the sorted names give ready ones first */
        memmove(&p->spares[1], &p->spares[0], at * sizeof s);
        at = 0;
    }
    p->spares[at] = s;
    return TR_OK;
}

static int add_segment(struct recovery *r, const char *name, uint64_t base, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    struct tr_file *f = NULL;
    uint64_t size = 0;
    struct tr_logseg *before = p->n ? p->segs[p->n - 1] : NULL;
    int rc = path_to(p, name, &path, err);
    if (rc == TR_OK)
        rc = tr_fs_open(p->log->o.fs, (const char *)path.p, TR_FS_RDONLY, &f, err);
    if (rc == TR_OK)
        rc = tr_logseg_header_read(f, p->id, base, &r->h, err);
    if (rc == TR_OK)
        rc = tr_file_size(f, &size, err);
    tr_file_close(f);
    if (rc == TR_OK && before && r->h.prev_base != before->base)
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "a segment is missing before %s: it follows one that begins at offset %llu", (const char *)path.p,
                        (unsigned long long)r->h.prev_base);
    if (rc < 0)
        return rc;
    struct tr_logseg *s = tr_calloc(1, sizeof *s);
    if (!s || tr_logpart_push(p, s) < 0) {
        tr_free(s);
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a segment");
    }
    s->base = base;
    s->end = UINT64_MAX;
    s->bytes = size;
    s->created_us = r->h.created_us;
    p->bytes += size;
    if (before) {
        before->end = base;
        before->data_end = r->h.prev_end;
        before->sealed_us = r->h.created_us;
    }
    return TR_OK;
}

static bool has_segment(const struct tr_logpart *p, uint64_t base)
{
    size_t lo = 0, hi = p->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->segs[mid]->base < base)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->n && p->segs[lo]->base == base;
}

static int take_names(struct recovery *r, struct tr_err *err)
{
    struct tr_names names = {0};
    uint64_t base;
    int rc = tr_fs_list(r->p->log->o.fs, r->p->dir, &names, err);
    for (size_t i = 0; i < names.n && rc == TR_OK; i++) {
        const char *name = names.v[i];
        size_t n = strlen(name);
        if (n == 24 && tr_logseg_parse(name, ".seg", &base))
            rc = add_segment(r, name, base, err);
        else if (strncmp(name, "ready-", 6) == 0 || strncmp(name, "spare-", 6) == 0)
            rc = add_spare(r, name, err);
        else if (n > 4 && strcmp(name + n - 4, ".tmp") == 0)
            rc = drop_name(r, name, err);
    }
    /* an index without its segment; that of the last segment is stale as well */
    for (size_t i = 0; i < names.n && rc == TR_OK; i++)
        if (strlen(names.v[i]) == 24 && tr_logseg_parse(names.v[i], ".idx", &base) &&
            (!has_segment(r->p, base) || base == r->p->segs[r->p->n - 1]->base))
            rc = drop_name(r, names.v[i], err);
    tr_names_done(&names);
    return rc < 0 ? rc : sync_names(r, err);
}

/* ---- the tail ---- */

static int damaged(struct recovery *r, uint64_t pos, const char *why, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged at byte %llu (below offset %llu, which was durable): %s; restore the file from a copy",
                      tr_file_path(r->p->file), (unsigned long long)pos, (unsigned long long)r->mark.offset, why);
}

/* Walks the last segment; its index, up to the cut, is in x. */
static int walk_last(struct recovery *r, struct tr_logindex *x, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    struct tr_logscan s = {.check_crc = true};
    struct tr_logwalk w = r->h.walk;
    struct tr_logframe f;
    struct tr_slice raw;
    struct tr_err why = {0};
    uint64_t size = 0, must = r->has_mark && r->mark.base == r->h.base ? r->mark.pos : 0;
    uint32_t n = 0, n_d = 0;
    int rc = tr_file_size(p->file, &size, err);
    if (rc < 0)
        return rc;
    if (must && r->mark.failed)
        size = TR_MIN(size, must);
    r->found = !w.open;
    r->cut = w;
    r->cut_pos = TR_LOGSEG_DATA;
    tr_logscan_to(&s, p->file, TR_LOGSEG_DATA, TR_MAX(size, (uint64_t)TR_LOGSEG_DATA));
    for (uint64_t at = s.pos; (rc = tr_logscan_next(&s, true, &raw, &f, &why)) > 0; at = s.pos) {
        if (tr_logindex_reserve(x, 1, 1) < 0) {
            rc = tr_err_set(&why, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
            break;
        }
        tr_logindex_note(x, &w, &f, at);
        tr_logwalk_step(&w, &f);
        if (w.open)
            continue;
        r->found = true;
        r->cut = w;
        r->cut_pos = s.pos;
        n = x->n;
        n_d = x->n_d;
    }
    x->n = n;
    x->n_d = n_d;
    tr_logscan_done(&s);
    if (rc < 0 && rc != TR_REJECT) {
        if (err)
            *err = why;
        return rc;
    }
    return r->cut_pos < must ? damaged(r, s.pos, rc ? why.msg : "data ends too early", err) : TR_OK;
}

static int open_last(struct recovery *r, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    uint64_t base = p->segs[p->n - 1]->base;
    int rc = path_to(p, tr_logseg_name(name, base, ".seg"), &path, err);
    if (rc == TR_OK)
        rc = tr_fs_open(p->log->o.fs, (const char *)path.p, TR_FS_RDWR, &p->file, err);
    return rc < 0 ? rc : tr_logseg_header_read(p->file, p->id, base, &r->h, err);
}

/* The last segment holds nothing but a part of a transaction that began before it and never ended. */
static int drop_last(struct recovery *r, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    struct tr_logseg *s = p->segs[p->n - 1];
    char name[TR_LOGNAME_MAX];
    if (p->n == 1)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s begins within a transaction whose beginning is in no segment", tr_file_path(p->file));
    p->file = tr_file_close(p->file);
    int rc = drop_name(r, tr_logseg_name(name, s->base, ".seg"), err);
    if (rc == TR_OK) /* of the one before, which is the last from now on */
        rc = drop_name(r, tr_logseg_name(name, p->segs[p->n - 2]->base, ".idx"), err);
    if (rc == TR_OK)
        rc = sync_names(r, err);
    if (rc < 0)
        return rc;
    p->n--;
    p->bytes -= s->bytes;
    tr_logseg_free(s);
    p->segs[p->n - 1]->end = UINT64_MAX;
    p->segs[p->n - 1]->data_end = 0;
    return TR_OK;
}

static int find_cut(struct recovery *r, struct tr_logindex *x, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    if (r->has_mark && r->mark.base > p->segs[p->n - 1]->base)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "the last segment of %s, from offset %llu, is missing", p->dir, (unsigned long long)r->mark.base);
    for (;;) {
        int rc = open_last(r, err);
        if (rc == TR_OK) {
            tr_logindex_done(x);
            *x = (struct tr_logindex){.partition = p->id, .base = r->h.base, .first_us = r->h.created_us};
            rc = walk_last(r, x, err);
        }
        if (rc < 0 || r->found)
            return rc;
        rc = drop_last(r, err);
        if (rc < 0)
            return rc;
    }
}

static int cut(struct recovery *r, struct tr_logindex *x, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    struct tr_logseg *s = p->segs[p->n - 1];
    int rc = tr_logseg_zero_rest(p->file, r->cut_pos, err);
    if (rc < 0)
        return rc;
    s->index = tr_calloc(1, sizeof *s->index);
    if (!s->index)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
    *s->index = *x;
    *x = (struct tr_logindex){0};
    p->bytes -= s->bytes;
    s->bytes = TR_MAX(s->bytes, p->log->o.segment_bytes);
    p->bytes += s->bytes;
    p->walk = r->cut;
    p->pos = r->cut_pos;
    p->end = p->durable = (struct tr_logpoint){s->base, p->pos, p->walk.now.offset};
    p->reported = 0;
    if (!r->mark.failed) {
        if (r->has_mark)
            p->marked = (struct tr_logpoint){r->mark.base, r->mark.pos, r->mark.offset};
        return TR_OK;
    }
    tr_logpart_mark_tail(p, false); /* or the next open would cut there again */
    if (p->marked.pos == p->durable.pos && p->marked.base == p->durable.base)
        return TR_OK;
    return tr_err_set(err, TR_RETRY, TR_DOM_LOG, "cannot write %s/tail", p->dir);
}

/* ---- definitions ---- */

static int learn_from(struct tr_logpart *p, struct tr_file *f, const struct tr_logdef_at *d, uint64_t base, uint64_t limit, struct tr_err *err)
{
    struct tr_logscan s = {.check_crc = true};
    struct tr_logframe fr;
    struct tr_slice raw;
    struct tr_logdef *def = NULL;
    struct tr_err why = {0};
    if (tr_u64map_get_ptr(&p->defs, tr_logdef_key(d->table_id, d->version)))
        return TR_OK; /* a younger segment has it */
    tr_logscan_to(&s, f, d->pos, limit);
    int rc = tr_logscan_next(&s, true, &raw, &fr, &why);
    if (rc > 0 && (fr.head.op != TR_OP_SCHEMA || fr.table_id != d->table_id || fr.schema_version != d->version))
        rc = 0;
    if (rc > 0)
        rc = tr_logpart_def_learn(p, raw, &fr, &def, err);
    else if (rc < 0 && rc != TR_REJECT)
        *err = why;
    else
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged at byte %llu: no definition of table %u there; restore the file from a copy",
                        tr_file_path(f), (unsigned long long)d->pos, d->table_id);
    if (rc == TR_OK)
        def->in = base;
    tr_logscan_done(&s);
    return rc;
}

static int learn_all(struct tr_logpart *p, struct tr_file *f, const struct tr_logindex *x, uint64_t limit, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < x->n_d && rc == TR_OK; i++)
        rc = learn_from(p, f, &x->d[i], x->base, limit, err);
    return rc;
}

/* Its index from its file; made anew when that is missing or bad, and then kept for the housekeeping to write. */
static int index_of(struct tr_logpart *p, struct tr_logseg *s, struct tr_file *f, struct tr_logindex *ret, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_logseg_header h;
    struct tr_err why = {0};
    int rc = path_to(p, tr_logseg_name(name, s->base, ".idx"), &path, err);
    if (rc < 0)
        return rc;
    rc = tr_logindex_read(p->log->o.fs, (const char *)path.p, false, ret, &why);
    if (rc == TR_OK && ret->base == s->base && ret->partition == p->id && ret->frames == s->end - s->base && ret->data_end == s->data_end)
        return TR_OK;
    tr_logindex_done(ret);
    rc = tr_logseg_header_read(f, p->id, s->base, &h, err);
    if (rc == TR_OK)
        rc = tr_logindex_build(f, &h, s->data_end, s->end, ret, err);
    if (rc < 0)
        return rc;
    ret->last_us = s->sealed_us;
    s->index = tr_calloc(1, sizeof *s->index);
    if (s->index) { /* else it is made again next time */
        *s->index = *ret;
        ret->v = NULL;
        if (!(ret->d = tr_calloc(ret->n_d + 1, sizeof *ret->d)))
            return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
        if (ret->n_d)
            memcpy(ret->d, s->index->d, ret->n_d * sizeof *ret->d);
    }
    return TR_OK;
}

/* From young to old, each definition from the youngest segment that has it. */
static int learn_sealed(struct tr_logpart *p, struct tr_err *err)
{
    int rc = TR_OK;
    for (size_t i = p->n - 1; i-- > 0 && rc == TR_OK;) {
        struct tr_logseg *s = p->segs[i];
        TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
        char name[TR_LOGNAME_MAX];
        struct tr_file *f = NULL;
        struct tr_logindex x = {0};
        rc = path_to(p, tr_logseg_name(name, s->base, ".seg"), &path, err);
        if (rc == TR_OK)
            rc = tr_fs_open(p->log->o.fs, (const char *)path.p, TR_FS_RDONLY, &f, err);
        if (rc == TR_OK)
            rc = index_of(p, s, f, &x, err);
        if (rc == TR_OK)
            rc = learn_all(p, f, &x, s->data_end, err);
        tr_logindex_done(&x);
        tr_file_close(f);
    }
    return rc;
}

int tr_logpart_open(struct tr_logpart *p, struct tr_err *err)
{
    struct recovery r = {.p = p, .names_changed = true}; /* by a process that may have ended before it synced them */
    struct tr_logindex x = {0};
    struct tr_err none;
    if (!err)
        err = &none;
    int rc = read_mark(&r, err);
    if (rc == TR_OK)
        rc = take_names(&r, err);
    if (rc == TR_OK && p->n == 0)
        return r.has_mark ? tr_err_set(err, TR_FATAL, TR_DOM_LOG, "the segments of %s are missing", p->dir) : tr_logpart_append(p, NULL, 0, NULL, err);
    if (rc == TR_OK)
        rc = find_cut(&r, &x, err);
    if (rc == TR_OK)
        rc = cut(&r, &x, err);
    if (rc == TR_OK)
        rc = learn_all(p, p->file, p->segs[p->n - 1]->index, p->pos, err);
    if (rc == TR_OK)
        rc = learn_sealed(p, err);
    tr_logindex_done(&x);
    return rc;
}
