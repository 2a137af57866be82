/*
 * Readers. Each has a file handle and a window of its own; it shares with the log only the list of segments and the durable point, looked at
 * once per poll. Everything below the durable point is complete, so whatever does not decode there is corruption.
 */
#include "alloc.h"
#include "check.h"
#include "log_internal.h"

struct reader {
    struct tr_log_reader r;
    struct tr_logpart *p;
    struct tr_list link;      /* L: in p->readers while armed */
    struct tr_waker *waker;   /* L */
    struct tr_logseg *seg;    /* where it stands; it counts in seg->readers */
    struct tr_file *file;
    struct tr_logscan scan;
    struct tr_logwalk walk;   /* .now.offset and .open only */
    uint64_t end, data_end;   /* of seg; UINT64_MAX: it is the active one */
    struct tr_u64map schemas; /* key -> struct tr_schema, one reference each */
    uint64_t last_key;
    const struct tr_schema *last;
};

static struct reader *reader_of(struct tr_log_reader *r)
{
    return tr_container_of(r, struct reader, r);
}

static const char *where(struct reader *r)
{
    return r->file ? tr_file_path(r->file) : r->p->dir;
}

static int gone(struct reader *r, uint64_t offset, uint64_t oldest, struct tr_err *err)
{
    int rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG,
                        "offset %llu of %s is no longer in the log: retention removed it; the oldest is %llu. Take a new snapshot of what was missed",
                        (unsigned long long)offset, r->p->dir, (unsigned long long)oldest);
    if (err)
        err->code = (int64_t)oldest;
    return rc;
}

static int damaged(struct reader *r, uint64_t pos, const char *why, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged at byte %llu (offset %llu): %s; restore the file from a copy", where(r),
                      (unsigned long long)pos, (unsigned long long)r->r.next, why);
}

/* ---- schemas ---- */

static const struct tr_schema *schema_of(struct reader *r, uint32_t table_id, uint32_t version)
{
    uint64_t key = tr_logdef_key(table_id, version);
    if (r->last && key == r->last_key)
        return r->last;
    const struct tr_schema *s = tr_u64map_get_ptr(&r->schemas, key);
    if (s) {
        r->last = s;
        r->last_key = key;
    }
    return s;
}

static int learn(struct reader *r, const struct tr_frame_body *b, struct tr_err *err)
{
    uint64_t key = tr_logdef_key(b->table_id, b->schema_version);
    struct tr_schema *s = NULL;
    struct tr_err why = {0};
    if (tr_u64map_get_ptr(&r->schemas, key))
        return TR_OK;
    int rc = tr_schema_decode(b->change.message, &s, &why);
    if (rc == TR_NOMEM)
        return tr_err_set(err, rc, TR_DOM_LOG, "%s", why.msg);
    if (rc < 0)
        return damaged(r, r->scan.pos, why.msg, err);
    if (s->table_id != b->table_id || s->version != b->schema_version) {
        tr_schema_unref(s);
        return damaged(r, r->scan.pos, "the definition of another table, or of another version, than its frame says", err);
    }
    if (tr_u64map_put_ptr(&r->schemas, key, s) < 0) {
        tr_schema_unref(s);
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a schema");
    }
    return TR_OK;
}

/* A definition at a position known from an index, which lies before where the reader begins. */
static int learn_at(struct reader *r, const struct tr_logdef_at *d, uint64_t limit, struct tr_err *err)
{
    struct tr_logscan s = {0};
    struct tr_logframe f;
    struct tr_frame_body b;
    struct tr_slice raw;
    struct tr_err why = {0};
    if (tr_u64map_get_ptr(&r->schemas, tr_logdef_key(d->table_id, d->version)))
        return TR_OK;
    tr_logscan_to(&s, r->file, d->pos, limit);
    int rc = tr_logscan_next(&s, true, &raw, &f, &why);
    if (rc > 0)
        rc = tr_frame_decode(raw, &b, &why) < 0 || f.head.op != TR_OP_SCHEMA ? TR_REJECT : TR_OK;
    else if (rc == 0)
        rc = TR_REJECT;
    if (rc == TR_REJECT)
        rc = damaged(r, d->pos, "a definition that the index names is not there", err);
    else if (rc < 0 && err)
        *err = why;
    else
        rc = learn(r, &b, err);
    tr_logscan_done(&s);
    return rc;
}

/* ---- where it stands ---- */

static void leave(struct reader *r)
{
    struct tr_logseg *dead = NULL;
    tr_mutex_lock(&r->p->lock);
    if (r->seg && --r->seg->readers == 0 && r->seg->dropped)
        dead = r->seg;
    tr_mutex_unlock(&r->p->lock);
    if (dead)
        tr_logseg_free(dead);
    r->seg = NULL;
    r->file = tr_file_close(r->file);
}

/* The first offset that retention has left. Held; there is always a segment. */
static uint64_t oldest_of(const struct tr_logpart *p)
{
    return p->segs[p->segs[0]->removed && p->n > 1 ? 1 : 0]->base;
}

/* Up to where frames of seg may be read. Held. */
static uint64_t limit_of(const struct tr_logpart *p, const struct tr_logseg *seg)
{
    if (p->durable.base > seg->base)
        return seg->data_end;
    return p->durable.base == seg->base ? p->durable.pos : TR_LOGSEG_DATA;
}

/* A copy of what is in memory of seg's index; n == 0 when its file must be read. Held. */
static int copy_index(const struct tr_logseg *seg, struct tr_logindex *ret)
{
    const struct tr_logindex *x = seg->index;
    if (!x)
        return TR_OK;
    if (tr_logindex_reserve(ret, x->n, x->n_d) < 0)
        return TR_NOMEM;
    if (x->n)
        memcpy(ret->v, x->v, x->n * sizeof *ret->v);
    if (x->n_d)
        memcpy(ret->d, x->d, x->n_d * sizeof *ret->d);
    ret->n = x->n;
    ret->n_d = x->n_d;
    return TR_OK;
}

struct place {
    uint64_t base, limit, end, data_end;
    struct tr_logindex index;
};

static int find_segment(struct reader *r, uint64_t offset, struct place *ret, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    int rc = TR_OK;
    memset(ret, 0, sizeof *ret);
    tr_mutex_lock(&p->lock);
    size_t i = p->n;
    while (i > 0 && p->segs[i - 1]->base > offset)
        i--;
    if (i == 0) {
        rc = gone(r, offset, oldest_of(p), err); /* the first one may be on its way out */
    } else if (p->segs[i - 1]->removed) {
        rc = gone(r, offset, i < p->n ? p->segs[i]->base : offset, err);
    } else if (offset > p->durable.offset) {
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "offset %llu lies ahead of %s, which ends at %llu: the log lost its tail, or this is another log",
                        (unsigned long long)offset, p->dir, (unsigned long long)p->durable.offset);
        if (err)
            err->code = (int64_t)p->durable.offset;
    } else {
        struct tr_logseg *s = p->segs[i - 1];
        r->seg = s;
        s->readers++;
        ret->base = s->base;
        ret->limit = limit_of(p, s);
        ret->end = s->end;
        ret->data_end = s->data_end;
        if (offset > s->base && copy_index(s, &ret->index) < 0)
            rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for an index");
    }
    tr_mutex_unlock(&p->lock);
    return rc;
}

/* Opens the file of r->seg and stands at its first frame. 1: it was removed meanwhile, and offset was the end of it: the next one it is. */
static int enter(struct reader *r, uint64_t offset, const struct place *at, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_logseg_header h;
    if (tr_logseg_path(&path, r->p->dir, tr_logseg_name(name, at->base, ".seg")) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_fs_open(r->p->log->o.fs, (const char *)path.p, TR_FS_RDONLY, &r->file, err);
    if (rc == TR_NOT_READY) {
        struct tr_logpart *p = r->p;
        tr_mutex_lock(&p->lock);
        bool removed = r->seg->removed;
        uint64_t oldest = oldest_of(p);
        tr_mutex_unlock(&p->lock);
        if (removed)
            return offset >= oldest ? 1 : gone(r, offset, oldest, err);
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is missing: somebody removed it under the running program", (const char *)path.p);
    }
    if (rc == TR_OK)
        rc = tr_logseg_header_read(r->file, r->p->id, at->base, &h, err);
    if (rc < 0)
        return rc;
    tr_logscan_to(&r->scan, r->file, TR_LOGSEG_DATA, at->limit);
    r->walk = h.walk;
    r->end = at->end;
    r->data_end = at->data_end;
    return TR_OK;
}

/* From the nearest index entry frame by frame to the wanted one; its repeated definitions are then read in passing. */
static int walk_to(struct reader *r, uint64_t offset, struct tr_err *err)
{
    struct tr_logframe f;
    struct tr_slice raw;
    struct tr_err why = {0};
    while (r->walk.now.offset < offset) {
        uint64_t pos = r->scan.pos;
        int rc = tr_logscan_next(&r->scan, true, &raw, &f, &why);
        if (rc == 0 || rc == TR_REJECT)
            return damaged(r, pos, rc ? why.msg : "data ends too early", err);
        if (rc < 0) {
            if (err)
                *err = why;
            return rc;
        }
        tr_logwalk_step(&r->walk, &f);
    }
    return TR_OK;
}

static int load_index(struct reader *r, struct place *at, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_logseg_header h;
    struct tr_err why = {0};
    if (at->index.n || at->end == UINT64_MAX)
        return TR_OK;
    if (tr_logseg_path(&path, r->p->dir, tr_logseg_name(name, at->base, ".idx")) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_logindex_read(r->p->log->o.fs, (const char *)path.p, true, &at->index, &why);
    if (rc == TR_OK && at->index.base == at->base && at->index.data_end == at->data_end)
        return TR_OK;
    tr_logindex_done(&at->index); /* missing or bad: made anew, in memory */
    rc = tr_logseg_header_read(r->file, r->p->id, at->base, &h, err);
    return rc < 0 ? rc : tr_logindex_build(r->file, &h, at->data_end, at->end, &at->index, err);
}

static int stand_at(struct reader *r, uint64_t offset, struct tr_err *err)
{
    struct place at = {0};
    int rc;
    do {
        tr_logindex_done(&at.index);
        leave(r);
        rc = find_segment(r, offset, &at, err);
        if (rc == TR_OK)
            rc = enter(r, offset, &at, err);
    } while (rc == 1);
    if (rc == TR_OK && offset > at.base) {
        rc = load_index(r, &at, err);
        const struct tr_logentry *e = rc == TR_OK ? tr_logindex_find(&at.index, offset) : NULL;
        if (e && e->pos <= at.limit) {
            r->scan.pos = r->scan.win_at = e->pos;
            r->walk.now.offset = e->offset;
            r->walk.open = e->open;
        }
        if (rc == TR_OK)
            rc = walk_to(r, offset, err);
        for (uint32_t i = 0; i < at.index.n_d && rc == TR_OK; i++)
            if (at.index.d[i].pos < r->scan.pos)
                rc = learn_at(r, &at.index.d[i], at.limit, err);
    }
    tr_logindex_done(&at.index);
    if (rc < 0)
        leave(r);
    else
        r->r.next = offset;
    return rc;
}

/* ---- the interface ---- */

/* Looks at the log once. 1: the segment it stands in was removed, and it had come to its end: the next one it is. */
static int refresh(struct reader *r, struct tr_err *err)
{
    struct tr_logpart *p = r->p;
    int rc = TR_OK;
    tr_mutex_lock(&p->lock);
    uint64_t oldest = p->n ? oldest_of(p) : 0;
    if (r->r.next < oldest) {
        rc = gone(r, r->r.next, oldest, err);
    } else if (r->seg && r->seg->removed) {
        rc = 1;
    } else if (r->seg) {
        r->scan.limit = limit_of(p, r->seg);
        r->end = r->seg->end;
        r->data_end = r->seg->data_end;
        if (r->r.next >= p->durable.offset && p->failed < 0)
            rc = tr_logpart_check(p, err); /* nothing more will ever come */
    }
    tr_mutex_unlock(&p->lock);
    return rc;
}

static int take(struct reader *r, struct tr_slice raw, struct tr_frame *v, bool *ret_repeat, struct tr_err *err)
{
    struct tr_frame_body b;
    struct tr_err why = {0};
    if (tr_frame_decode(raw, &b, &why) < 0)
        return damaged(r, r->scan.pos - raw.n, why.msg, err);
    if (b.change.op == TR_OP_SCHEMA) {
        int rc = learn(r, &b, err);
        if (rc < 0)
            return rc;
    }
    *ret_repeat = b.head.kind == TR_FRAME_REPEAT;
    if (*ret_repeat)
        return TR_OK;
    struct tr_logframe f = {.head = b.head};
    v->offset = r->walk.now.offset;
    tr_logwalk_step(&r->walk, &f);
    v->change = b.change;
    v->change.schema = b.table_id ? schema_of(r, b.table_id, b.schema_version) : NULL;
    v->table_id = b.table_id;
    v->schema_version = b.schema_version;
    v->image = b.image;
    v->old_image = b.old_image;
    v->raw = raw;
    v->tx_end = !r->walk.open;
    return TR_OK;
}

static bool wanted(const struct tr_log_want *w, const struct tr_logframe *f)
{
    return f->head.op == TR_OP_SCHEMA || (!(w->skip >> f->head.op & 1) && (!w->table_id || w->table_id == f->table_id));
}

static void pass_by(struct reader *r, const struct tr_logframe *f, bool first, struct tr_frame *v)
{
    if (first)
        *v = (struct tr_frame){0};
    v->offset = r->walk.now.offset;
    v->table_id = f->table_id;
    v->change.op = f->head.op;
    tr_logwalk_step(&r->walk, f);
    v->tx_end = !r->walk.open;
    r->r.next = r->walk.now.offset;
}

/* As many as lie in the window; the window moves only while there is none yet. */
static int read_some(struct reader *r, struct tr_frame *v, size_t max, struct tr_err *err)
{
    size_t n = 0;
    bool passed = false; /* v[n] is of a run that is not wanted */
    while (n < max) {
        uint64_t pos = r->scan.pos;
        struct tr_slice raw;
        struct tr_logframe f;
        struct tr_err why = {0};
        bool repeat = false;
        int rc = tr_logscan_next(&r->scan, n == 0 && !passed, &raw, &f, &why);
        if (rc == TR_AGAIN || (rc == 0 && pos == r->scan.limit))
            break;
        if (rc > 0 && !wanted(&r->r.want, &f)) {
            pass_by(r, &f, !passed, &v[n]);
            passed = true;
            continue;
        }
        if (passed && ++n == max) {
            r->scan.pos = pos;
            return (int)n;
        }
        passed = false;
        if (rc > 0)
            rc = take(r, raw, &v[n], &repeat, &why);
        else if (rc == 0 || rc == TR_REJECT)
            rc = damaged(r, pos, rc ? why.msg : "data ends too early", &why);
        if (rc < 0) {
            r->scan.pos = pos; /* the same again next time */
            if (n)
                break;
            if (err)
                *err = why;
            return rc;
        }
        if (!repeat) {
            n++;
            r->r.next = r->walk.now.offset;
        }
    }
    return (int)(n + passed);
}

static int reader_poll(struct tr_log_reader *lr, struct tr_frame *v, size_t max, struct tr_err *err)
{
    struct reader *r = reader_of(lr);
    if (max > INT32_MAX)
        max = INT32_MAX;
    for (;;) {
        int rc = r->seg ? TR_OK : stand_at(r, r->r.next, err);
        while (rc == TR_OK && (rc = refresh(r, err)) == 1)
            rc = stand_at(r, r->r.next, err);
        if (rc < 0)
            return rc;
        rc = read_some(r, v, max, err);
        if (rc != 0)
            return rc;
        if (r->end == UINT64_MAX || r->scan.pos != r->data_end || r->scan.limit != r->data_end)
            return TR_AGAIN;
        rc = stand_at(r, r->end, err); /* the next segment; its header says whether a transaction is open */
        if (rc < 0)
            return rc;
    }
}

static int reader_arm(struct tr_log_reader *lr, struct tr_waker *w, struct tr_wait *ret)
{
    struct reader *r = reader_of(lr);
    struct tr_logpart *p = r->p;
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    tr_mutex_lock(&p->lock);
    bool ready = p->durable.offset > lr->next || p->failed < 0 || (p->n && lr->next < p->segs[0]->base) || (r->seg && r->seg->removed);
    tr_list_del(&r->link);
    if (!ready) {
        r->waker = w;
        tr_list_push_back(&p->readers, &r->link);
    }
    tr_mutex_unlock(&p->lock);
    return ready;
}

/* Those armed, once. */
void tr_logpart_wake_readers(struct tr_logpart *p)
{
    TR_LIST_EACH(it, &p->readers) {
        struct reader *r = tr_container_of(it, struct reader, link);
        tr_list_del(&r->link);
        tr_waker_wake(r->waker);
    }
}

static const struct tr_schema *reader_schema(struct tr_log_reader *r, uint32_t table_id, uint32_t version)
{
    return schema_of(reader_of(r), table_id, version);
}

static int reader_seek(struct tr_log_reader *r, uint64_t offset, struct tr_err *err)
{
    return stand_at(reader_of(r), offset, err);
}

static void reader_free(struct tr_log_reader *lr)
{
    if (!lr)
        return;
    struct reader *r = reader_of(lr);
    size_t it = 0;
    uint64_t key, val;
    tr_mutex_lock(&r->p->lock);
    tr_list_del(&r->link);
    tr_mutex_unlock(&r->p->lock);
    leave(r);
    while (tr_u64map_next(&r->schemas, &it, &key, &val))
        tr_schema_unref((const struct tr_schema *)(uintptr_t)val);
    tr_u64map_done(&r->schemas);
    tr_logscan_done(&r->scan);
    tr_free(r);
}

int tr_logpart_reader_new(struct tr_logpart *p, uint64_t offset, struct tr_log_reader **ret, struct tr_err *err)
{
    static const struct tr_log_reader_ops ops = {
        .poll = reader_poll,
        .arm = reader_arm,
        .schema = reader_schema,
        .seek = reader_seek,
        .free = reader_free,
    };
    struct reader *r = tr_calloc(1, sizeof *r);
    if (!r)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a reader");
    r->r.ops = &ops;
    r->p = p;
    tr_list_init(&r->link);
    tr_u64map_init(&r->schemas);
    int rc = stand_at(r, offset, err);
    if (rc < 0) {
        reader_free(&r->r);
        return rc;
    }
    *ret = &r->r;
    return TR_OK;
}
