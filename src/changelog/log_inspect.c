#include "log_inspect.h"

#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "log_segment.h"
#include "map.h"
#include "text.h"

/* One segment, walked from its header to the end of its data. */
struct look {
    struct tr_fs *fs;
    char dir[512];
    uint32_t partition;
    struct tr_names names;    /* of the partition's directory */
    struct tr_u64map schemas; /* of the segment at hand: key -> struct tr_schema */
    struct tr_buf path;
    struct tr_file *file;
    struct tr_logseg_header h;
    struct tr_logscan scan;
    struct tr_logwalk walk;
    bool last;
};

static void forget_schemas(struct look *k)
{
    size_t it = 0;
    uint64_t key, val;
    while (tr_u64map_next(&k->schemas, &it, &key, &val))
        tr_schema_unref((const struct tr_schema *)(uintptr_t)val);
    tr_u64map_clear(&k->schemas);
}

static void look_done(struct look *k)
{
    forget_schemas(k);
    tr_u64map_done(&k->schemas);
    tr_names_done(&k->names);
    tr_buf_done(&k->path);
    tr_logscan_done(&k->scan);
    k->file = tr_file_close(k->file);
}

static int look_into(struct look *k, struct tr_fs *fs, const char *dir, uint32_t partition, struct tr_err *err)
{
    memset(k, 0, sizeof *k);
    k->fs = fs;
    k->partition = partition;
    k->scan.check_crc = true;
    if ((size_t)snprintf(k->dir, sizeof k->dir, "%s/p%04u", dir, partition) >= sizeof k->dir)
        return tr_err_set(err, TR_REJECT, TR_DOM_LOG, "the path %.64s… is too long", dir);
    return tr_fs_list(fs, k->dir, &k->names, err);
}

/* The ith name, if it is a segment's. */
static bool segment_at(const struct look *k, size_t i, uint64_t *ret_base)
{
    return i < k->names.n && strlen(k->names.v[i]) == 24 && tr_logseg_parse(k->names.v[i], ".seg", ret_base);
}

/* Is the name of the segment at hand gone? Then retention took it, and what was read may be zeros. */
static bool is_gone(struct look *k)
{
    bool there = false;
    struct tr_err ignored;
    return tr_fs_exists(k->fs, (const char *)k->path.p, &there, &ignored) == TR_OK && !there;
}

/* 1: open; 0: it is gone. */
static int enter(struct look *k, size_t i, uint64_t base, struct tr_err *err)
{
    uint64_t next, size = 0;
    forget_schemas(k);
    k->file = tr_file_close(k->file);
    if (tr_logseg_path(&k->path, k->dir, k->names.v[i]) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    k->last = true;
    for (size_t j = i + 1; j < k->names.n && k->last; j++)
        k->last = !segment_at(k, j, &next);
    int rc = tr_fs_open(k->fs, (const char *)k->path.p, TR_FS_RDONLY, &k->file, err);
    if (rc == TR_NOT_READY)
        return 0;
    if (rc == TR_OK)
        rc = tr_file_size(k->file, &size, err);
    if (rc == TR_OK) {
        rc = tr_logseg_header_read(k->file, k->partition, base, &k->h, err);
        if (rc == TR_FATAL && is_gone(k))
            return 0;
    }
    if (rc < 0)
        return rc;
    k->walk = k->h.walk;
    tr_logscan_to(&k->scan, k->file, TR_LOGSEG_DATA, TR_MAX(size, (uint64_t)TR_LOGSEG_DATA));
    return 1;
}

static int learn(struct look *k, const struct tr_frame_body *b, struct tr_err *err)
{
    struct tr_schema *s = NULL;
    uint64_t key = tr_logdef_key(b->table_id, b->schema_version);
    if (tr_u64map_get_ptr(&k->schemas, key))
        return TR_OK;
    int rc = tr_schema_decode(b->change.message, &s, err);
    if (rc == TR_OK && (s->table_id != b->table_id || s->version != b->schema_version)) {
        tr_schema_unref(s);
        rc = tr_err_set(err, TR_REJECT, TR_DOM_LOG, "the definition of another table, or of another version, than its frame says");
    } else if (rc == TR_OK && tr_u64map_put_ptr(&k->schemas, key, s) < 0) {
        tr_schema_unref(s);
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a schema");
    }
    return rc;
}

/* The next frame, decoded; repeats too (then *ret_repeat). 1, 0 at the end, REJECT for damage. */
static int next_frame(struct look *k, struct tr_frame *ret, bool *ret_repeat, struct tr_err *err)
{
    struct tr_slice raw;
    struct tr_logframe f;
    struct tr_frame_body b;
    int rc = tr_logscan_next(&k->scan, true, &raw, &f, err);
    if (rc <= 0)
        return rc;
    rc = tr_frame_decode(raw, &b, err);
    if (rc == TR_OK && b.change.op == TR_OP_SCHEMA)
        rc = learn(k, &b, err);
    if (rc < 0) {
        k->scan.pos -= raw.n;
        return rc;
    }
    *ret_repeat = b.head.kind == TR_FRAME_REPEAT;
    *ret = (struct tr_frame){
        .offset = k->walk.now.offset,
        .change = b.change,
        .table_id = b.table_id,
        .schema_version = b.schema_version,
        .image = b.image,
        .old_image = b.old_image,
        .raw = raw,
    };
    if (b.table_id)
        ret->change.schema = tr_u64map_get_ptr(&k->schemas, tr_logdef_key(b.table_id, b.schema_version));
    tr_logwalk_step(&k->walk, &f);
    ret->tx_end = !k->walk.open;
    return 1;
}

/* Nothing, damage, or the unfinished end of the last segment. */
static int judge(struct look *k, int rc, const struct tr_err *why, struct tr_err *err)
{
    if (rc == TR_REJECT && (k->last || is_gone(k)))
        return TR_OK;
    if (rc == TR_REJECT)
        return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "%s is damaged at byte %llu: %s", tr_file_path(k->file), (unsigned long long)k->scan.pos, why->msg);
    if (rc < 0 && err)
        *err = *why;
    return rc;
}

int tr_log_inspect_partitions(struct tr_fs *fs, const char *dir, uint32_t *ret, struct tr_err *err)
{
    struct tr_names names = {0};
    int rc = tr_fs_list(fs, dir, &names, err);
    if (rc < 0)
        return rc;
    *ret = 0;
    for (size_t i = 0; i < names.n; i++) {
        char want[16];
        snprintf(want, sizeof want, "p%04u", *ret);
        if (strcmp(names.v[i], want) == 0)
            ++*ret;
    }
    tr_names_done(&names);
    return *ret ? TR_OK : tr_err_set(err, TR_NOT_READY, TR_DOM_LOG, "there is no change log in %s", dir);
}

/* ---- ls ---- */

/* A name for every definition seen; the walk goes over the whole segment when it has no index. */
static int add_use(struct tr_log_table_use **v, uint32_t *n, const struct tr_frame *f)
{
    struct tr_log_table_use *p = tr_realloc(*v, (*n + 1) * sizeof *p);
    if (!p)
        return TR_NOMEM;
    *v = p;
    p[(*n)++] = (struct tr_log_table_use){f->table_id, f->schema_version, f->change.schema->ns, f->change.schema->name};
    return TR_OK;
}

static int ls_walk(struct look *k, struct tr_log_segment_info *s, struct tr_log_table_use **uses, struct tr_err *err)
{
    struct tr_frame f;
    struct tr_err why = {0};
    bool repeat;
    int rc;
    while ((rc = next_frame(k, &f, &repeat, &why)) > 0)
        if (f.change.op == TR_OP_SCHEMA && add_use(uses, &s->n_tables, &f) < 0)
            return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory to list the log");
    s->frames = k->walk.now.offset - k->h.base;
    s->data_bytes = k->scan.pos - TR_LOGSEG_DATA;
    return judge(k, rc, &why, err);
}

/* From the index: only the definitions are read. REJECT or NOT_READY: walk. */
static int ls_index(struct look *k, struct tr_log_segment_info *s, struct tr_log_table_use **uses, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_logindex x = {0};
    struct tr_frame f;
    bool repeat;
    if (tr_logseg_path(&path, k->dir, tr_logseg_name(name, s->base, ".idx")) < 0)
        return TR_NOMEM;
    int rc = k->last ? TR_NOT_READY : tr_logindex_read(k->fs, (const char *)path.p, false, &x, err);
    if (rc < 0)
        return rc;
    s->frames = x.frames;
    s->data_bytes = x.data_end - TR_LOGSEG_DATA;
    s->last_us = x.last_us;
    for (uint32_t i = 0; i < x.n_d && rc >= 0; i++) {
        tr_logscan_to(&k->scan, k->file, x.d[i].pos, x.data_end);
        rc = next_frame(k, &f, &repeat, err);
        if (rc <= 0 || f.change.op != TR_OP_SCHEMA)
            rc = TR_REJECT;
        else
            rc = add_use(uses, &s->n_tables, &f);
    }
    tr_logindex_done(&x);
    return rc;
}

static int ls_one(struct look *k, tr_log_segment_fn fn, void *arg, struct tr_err *err)
{
    struct tr_log_segment_info s = {.partition = k->partition, .path = (const char *)k->path.p, .base = k->h.base, .first_us = k->h.created_us, .last = k->last};
    struct tr_log_table_use *uses = NULL;
    struct tr_err why = {0};
    uint64_t end = k->scan.limit;
    int rc = tr_file_size(k->file, &s.file_bytes, err);
    if (rc == TR_OK && ls_index(k, &s, &uses, &why) < 0) {
        s.n_tables = 0;
        k->walk = k->h.walk;
        tr_logscan_to(&k->scan, k->file, TR_LOGSEG_DATA, end);
        rc = ls_walk(k, &s, &uses, err);
    }
    s.tables = uses;
    if (rc == TR_OK)
        rc = fn(arg, &s);
    tr_free(uses);
    return rc;
}

int tr_log_inspect_ls(struct tr_fs *fs, const char *dir, tr_log_segment_fn fn, void *arg, struct tr_err *err)
{
    uint32_t n = 0;
    int rc = tr_log_inspect_partitions(fs, dir, &n, err);
    for (uint32_t p = 0; p < n && rc >= 0; p++) {
        struct look k;
        uint64_t base;
        rc = look_into(&k, fs, dir, p, err);
        for (size_t i = 0; rc >= 0 && i < k.names.n; i++)
            if (segment_at(&k, i, &base) && (rc = enter(&k, i, base, err)) > 0)
                rc = ls_one(&k, fn, arg, err);
        look_done(&k);
    }
    return rc < 0 ? rc : TR_OK;
}

/* ---- cat ---- */

/* Frames behind the last transaction end of the last segment are not shown: they may yet be cut. */
static int cat_one(struct look *k, uint64_t offset, uint64_t end, uint64_t *left, tr_log_frame_fn fn, void *arg, struct tr_err *err)
{
    struct tr_frame f;
    struct tr_err why = {0};
    bool repeat = false;
    int rc = 1;
    while (*left && k->walk.now.offset < end && (rc = next_frame(k, &f, &repeat, &why)) > 0) {
        if (repeat || f.offset < offset)
            continue;
        int stop = fn(arg, k->partition, &f);
        if (stop < 0)
            return stop;
        --*left;
    }
    return judge(k, rc, &why, err);
}

/* Where the last transaction ends in the last segment. */
static int end_of_last(struct look *k, uint64_t *ret, struct tr_err *err)
{
    uint64_t limit = k->scan.limit;
    struct tr_frame f;
    struct tr_err why = {0};
    bool repeat;
    int rc;
    while ((rc = next_frame(k, &f, &repeat, &why)) > 0)
        ;
    *ret = k->walk.end.offset;
    rc = judge(k, rc, &why, err);
    forget_schemas(k);
    k->walk = k->h.walk;
    tr_logscan_to(&k->scan, k->file, TR_LOGSEG_DATA, limit);
    return rc;
}

int tr_log_inspect_cat(struct tr_fs *fs, const char *dir, uint32_t partition, uint64_t offset, uint64_t max, tr_log_frame_fn fn, void *arg, struct tr_err *err)
{
    struct look k;
    uint64_t base = 0, oldest = UINT64_MAX, left = max ? max : UINT64_MAX, end = 0;
    size_t first = SIZE_MAX, last = 0;
    int rc = look_into(&k, fs, dir, partition, err);
    for (size_t i = 0; rc >= 0 && i < k.names.n; i++)
        if (segment_at(&k, i, &base)) {
            oldest = TR_MIN(oldest, base);
            if (base <= offset)
                first = i;
            last = i;
        }
    if (rc >= 0 && first == SIZE_MAX) {
        rc = tr_err_set(err, TR_FATAL, TR_DOM_LOG, "offset %llu is not in %s: the oldest is %llu", (unsigned long long)offset, k.dir, (unsigned long long)oldest);
        if (err)
            err->code = (int64_t)oldest;
    }
    if (rc >= 0 && segment_at(&k, last, &base) && (rc = enter(&k, last, base, err)) > 0)
        rc = end_of_last(&k, &end, err);
    for (size_t i = first; rc >= 0 && i < k.names.n && left; i++)
        if (segment_at(&k, i, &base) && (rc = enter(&k, i, base, err)) > 0)
            rc = cat_one(&k, offset, end, &left, fn, arg, err);
    look_done(&k);
    return rc < 0 ? rc : TR_OK;
}

/* ---- verify ---- */

struct verify {
    tr_log_damage_fn fn;
    void *arg;
    struct tr_log_verdict *v;
    uint64_t expect;      /* base of the next segment; UINT64_MAX: not known */
    uint64_t prev_base, prev_end;
};

static int report(struct verify *x, const char *path, uint64_t pos, const char *what)
{
    x->v->damaged++;
    return x->fn ? x->fn(x->arg, path, pos, what) : TR_OK;
}

static int verify_rest(struct look *k, struct verify *x, struct tr_err *err)
{
    uint8_t buf[4096];
    for (uint64_t pos = k->scan.pos; pos < k->scan.limit; pos += sizeof buf) {
        size_t got = 0;
        int rc = tr_file_pread(k->file, buf, (size_t)TR_MIN(k->scan.limit - pos, (uint64_t)sizeof buf), pos, &got, err);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < got; i++)
            if (buf[i])
                return is_gone(k) ? TR_OK : report(x, tr_file_path(k->file), pos + i, "there are bytes behind the end of the data");
    }
    return TR_OK;
}

static int verify_index(struct look *k, struct verify *x, struct tr_err *err)
{
    TR_CLEANUP(tr_buf_done) struct tr_buf path = {0};
    char name[TR_LOGNAME_MAX];
    struct tr_logindex i = {0};
    struct tr_err why = {0};
    if (tr_logseg_path(&path, k->dir, tr_logseg_name(name, k->h.base, ".idx")) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_LOG, "no memory for a path");
    int rc = tr_logindex_read(k->fs, (const char *)path.p, true, &i, &why);
    bool wrong = rc == TR_OK && (i.base != k->h.base || i.frames != k->walk.now.offset - k->h.base || i.data_end != k->scan.pos);
    tr_logindex_done(&i);
    if (wrong || rc == TR_REJECT)
        return is_gone(k) ? TR_OK : report(x, (const char *)path.p, 0, wrong ? "the index is of another segment" : why.msg);
    return TR_OK; /* none is fine: it is made at the next open */
}

static int verify_one(struct look *k, struct verify *x, struct tr_err *err)
{
    const char *path = tr_file_path(k->file);
    struct tr_frame f;
    struct tr_err why = {0};
    bool repeat;
    int rc, bad = TR_OK;
    if (x->expect != UINT64_MAX && (k->h.base != x->expect || k->h.prev_base != x->prev_base || k->h.prev_end != x->prev_end) && !is_gone(k))
        bad = report(x, path, 0, "it does not follow the segment before it: one is missing, or is cut short");
    x->v->segments++;
    while (bad >= 0 && (rc = next_frame(k, &f, &repeat, &why)) > 0) {
        x->v->frames += !repeat;
        x->v->bytes += f.raw.n;
        if (f.table_id && !f.change.schema)
            bad = report(x, path, k->scan.pos - f.raw.n, "a frame comes before the definition it needs");
    }
    if (bad < 0)
        return bad;
    x->expect = k->walk.now.offset;
    x->prev_base = k->h.base;
    x->prev_end = k->scan.pos;
    if (rc < 0 && rc != TR_REJECT) {
        if (err)
            *err = why;
        return rc;
    }
    if (k->last || is_gone(k))
        return TR_OK;
    if (rc == TR_REJECT) {
        x->expect = UINT64_MAX;
        return report(x, path, k->scan.pos, why.msg);
    }
    rc = verify_rest(k, x, err);
    return rc < 0 ? rc : verify_index(k, x, err);
}

int tr_log_inspect_verify(struct tr_fs *fs, const char *dir, tr_log_damage_fn fn, void *arg, struct tr_log_verdict *ret, struct tr_err *err)
{
    uint32_t n = 0;
    int rc = tr_log_inspect_partitions(fs, dir, &n, err);
    memset(ret, 0, sizeof *ret);
    for (uint32_t p = 0; p < n && rc >= 0; p++) {
        struct look k;
        struct verify x = {.fn = fn, .arg = arg, .v = ret, .expect = UINT64_MAX};
        uint64_t base;
        rc = look_into(&k, fs, dir, p, err);
        for (size_t i = 0; rc >= 0 && i < k.names.n; i++) {
            struct tr_err why = {0};
            if (!segment_at(&k, i, &base))
                continue;
            rc = enter(&k, i, base, &why);
            if (rc > 0)
                rc = verify_one(&k, &x, err);
            else if (rc == TR_FATAL) {
                x.expect = UINT64_MAX;
                rc = report(&x, (const char *)k.path.p, 0, why.msg);
            } else if (rc < 0 && err)
                *err = why;
            else
                x.expect = UINT64_MAX;
        }
        look_done(&k);
    }
    return rc < 0 ? rc : TR_OK;
}
