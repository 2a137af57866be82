#include "csv_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tailrace/sink.h>

enum { TABLES_MAX = 64, HEADER_MAX = 8192 };

struct options {
    const char *dir;
};

struct table {
    struct tr_target target; /* first */
    char name[200];          /* of the table, and of its file */
    int fd;
};

struct csv {
    struct tr_sink sink; /* first */
    const struct options *o;
    int dir;
    struct table *tables[TABLES_MAX];
    size_t n;
};

/* ---- encoder: rows as text ---- */

static int put_value(struct tr_slice v, struct tr_buf *out)
{
    bool quote = !v.n; /* so that '' and NULL differ */
    for (size_t i = 0; i < v.n && !quote; i++)
        quote = strchr(",\"\r\n", v.p[i]) != NULL;
    if (!quote)
        return tr_buf_append_slice(out, v);
    if (tr_buf_reserve(out, 2 * v.n + 2) < 0)
        return TR_NOMEM;
    tr_buf_put_u8(out, '"');
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] == '"')
            tr_buf_put_u8(out, '"');
        tr_buf_put_u8(out, v.p[i]);
    }
    tr_buf_put_u8(out, '"');
    return TR_OK;
}

static int encode(struct tr_encoder *e, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    (void)e;
    for (*ret_done = 0; *ret_done < n; ++*ret_done) {
        const struct tr_change *c = &v[*ret_done];
        size_t begun = out->n;
        int rc = TR_OK;
        if (c->op != TR_OP_INSERT && c->op != TR_OP_READ)
            return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "a CSV file takes new rows only, no %s", c->op == TR_OP_DELETE ? "deletes" : "updates");
        for (uint32_t i = 0; i < c->after.n && rc >= 0; i++) {
            rc = i ? tr_buf_append_u8(out, ',') : TR_OK;
            if (rc >= 0 && c->after.state[i] == TR_PRESENT)
                rc = put_value(c->after.v[i], out);
        }
        if (rc < 0 || tr_buf_append_u8(out, '\n') < 0) {
            out->n = begun;
            return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a row");
        }
    }
    return TR_OK;
}

static void encoder_free(struct tr_encoder *e)
{
    free(e);
}

static const struct tr_encoder_ops encoder_ops = {.encode = encode, .free = encoder_free};

static int encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    (void)s;
    (void)t;
    *ret = malloc(sizeof **ret);
    if (!*ret)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for an encoder");
    (*ret)->ops = &encoder_ops;
    return TR_OK;
}

/* ---- writer: one sealed batch, which has one part ---- */

static int write_all(int fd, struct tr_slice b)
{
    while (b.n) {
        ssize_t n = write(fd, b.p, b.n);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n > 0)
            b = tr_slice_sub(b, (size_t)n, b.n);
    }
    return 0;
}

static int write_batch(struct tr_writer *w, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    (void)w;
    (void)ep;
    (void)deadline_ns; /* a local file */
    const struct tr_part *p = &b->parts[0];
    const struct table *t = (const struct table *)p->target;
    off_t was = lseek(t->fd, 0, SEEK_END);
    bool ok = was >= 0;
    for (uint32_t i = 0; i < p->n && ok; i++)
        ok = write_all(t->fd, p->v[i].bytes) == 0;
    if (ok && fdatasync(t->fd) == 0)
        return TR_OK;
    int why = errno;
    if (was >= 0 && ftruncate(t->fd, was) < 0) /* what is left of it is cut off when the table is bound again */
        return tr_err_sys(err, TR_STALE, why, "%s.csv: cannot be written", t->name);
    return tr_err_sys(err, TR_RETRY, why, "%s.csv: cannot be written", t->name);
}

static void writer_free(struct tr_writer *w)
{
    free(w);
}

static void interrupt(struct tr_writer *w)
{
    (void)w;
}

static const struct tr_writer_ops writer_ops = {.write = write_batch, .interrupt = interrupt, .free = writer_free};

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    (void)s;
    (void)shard;
    *ret = malloc(sizeof **ret);
    if (!*ret)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a writer");
    (*ret)->ops = &writer_ops;
    return TR_OK;
}

/* ---- tables ---- */

/* Cuts off what stands behind the last line feed. */
static int whole_lines(int fd, off_t size)
{
    char last;
    while (size > 0) {
        if (pread(fd, &last, 1, size - 1) != 1)
            return -1;
        if (last == '\n')
            break;
        size--;
    }
    return ftruncate(fd, size);
}

static int header_of(const struct tr_schema *s, char *to, size_t cap)
{
    struct tr_buf b = {0};
    int rc = TR_OK;
    for (uint32_t i = 0; i < s->n_columns && rc >= 0; i++) {
        rc = i ? tr_buf_append_u8(&b, ',') : TR_OK;
        if (rc >= 0)
            rc = put_value(tr_slice_str(s->columns[i].name), &b);
    }
    if (rc >= 0)
        rc = tr_buf_append_u8(&b, '\n');
    if (rc >= 0 && b.n < cap)
        snprintf(to, cap, "%.*s", (int)b.n, (const char *)b.p);
    else
        rc = TR_NOMEM;
    tr_buf_done(&b);
    return rc;
}

static int open_table(const struct csv *s, struct table *t, const struct tr_schema *schema, struct tr_err *err)
{
    char file[220], want[HEADER_MAX], have[HEADER_MAX];
    struct stat st;
    if (header_of(schema, want, sizeof want) < 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: the names of its columns are longer than %d bytes", t->name, HEADER_MAX);
    snprintf(file, sizeof file, "%s.csv", t->name);
    t->fd = openat(s->dir, file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (t->fd < 0 || fstat(t->fd, &st) < 0 || whole_lines(t->fd, st.st_size) < 0 || fstat(t->fd, &st) < 0 || fsync(s->dir) < 0)
        return tr_err_sys(err, TR_RETRY, errno, "%s/%s: cannot be opened", s->o->dir, file);
    if (st.st_size == 0)
        return write_all(t->fd, tr_slice_str(want)) == 0 && fdatasync(t->fd) == 0 ? TR_OK : tr_err_sys(err, TR_RETRY, errno, "%s/%s: cannot be written", s->o->dir, file);
    ssize_t n = pread(t->fd, have, strlen(want), 0);
    if (n != (ssize_t)strlen(want) || memcmp(have, want, strlen(want)) != 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s/%s has other columns than %.*s: move it away", s->o->dir, file, (int)strlen(want) - 1, want);
    return TR_OK;
}

static int bind_table(struct tr_sink *sink, const struct tr_schema *schema, enum tr_target_variant variant, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err)
{
    struct csv *s = (struct csv *)sink;
    (void)snapshot_id;
    (void)deadline_ns;
    if (variant != TR_TARGET_APPEND)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "%s: a CSV file is appended to, and cannot be a mirror: the output's variant is TR_TARGET_APPEND", schema->name);
    for (size_t i = 0; i < s->n; i++)
        if (s->tables[i]->target.table_id == schema->table_id && s->tables[i]->target.schema_version == schema->version) {
            *ret = &s->tables[i]->target;
            return TR_OK;
        }
    struct table *t = s->n < TABLES_MAX ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for table %s", schema->name);
    t->target = (struct tr_target){.table_id = schema->table_id, .schema_version = schema->version, .variant = variant};
    t->fd = -1;
    snprintf(t->name, sizeof t->name, "%.100s", schema->name);
    int rc = open_table(s, t, schema, err);
    if (rc < 0) {
        if (t->fd >= 0)
            close(t->fd);
        free(t);
        return rc;
    }
    s->tables[s->n++] = t;
    *ret = &t->target;
    return TR_OK;
}

static int no_swap(struct tr_sink *s, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    (void)s;
    (void)schema;
    (void)snapshot_id;
    (void)deadline_ns;
    return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "a CSV file cannot be built beside another");
}

static int built(struct tr_sink *s, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err)
{
    (void)s;
    (void)schema;
    (void)deadline_ns;
    (void)err;
    *ret_snapshot_id = 0;
    return TR_OK;
}

static int probe(struct tr_sink *sink, int64_t deadline_ns, struct tr_err *err)
{
    const struct csv *s = (const struct csv *)sink;
    (void)deadline_ns;
    return access(s->o->dir, W_OK) == 0 ? TR_OK : tr_err_sys(err, TR_RETRY, errno, "%s: no files can be made there", s->o->dir);
}

static void close_sink(struct tr_sink *sink)
{
    struct csv *s = (struct csv *)sink;
    for (size_t i = 0; i < s->n; i++) {
        close(s->tables[i]->fd);
        free(s->tables[i]);
    }
    if (s->dir >= 0)
        close(s->dir);
    free(s);
}

static const struct tr_sink_ops ops = {
    .bind = bind_table, .swap = no_swap, .built = built, .probe = probe, .encoder_new = encoder_new, .writer_new = writer_new, .close = close_sink};

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    struct csv *s = calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", env->name);
    s->sink = (struct tr_sink){.ops = &ops, .shards = 1, .n_endpoints = 1};
    s->o = options;
    s->dir = open(s->o->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0) {
        int rc = tr_err_sys(err, TR_REJECT, errno, "sink %s: the directory %s cannot be opened", env->name, s->o->dir);
        close_sink(&s->sink);
        return rc;
    }
    *ret = &s->sink;
    return TR_OK;
}

static const struct tr_field fields[] = {{.name = "dir", .type = TR_F_STRING, .offset = offsetof(struct options, dir), .help = "Where the files are."}};

const struct tr_sink_type csv_sink_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "csv",
    .help = "CSV files, one per table.",
    .fields = fields,
    .n_fields = 1,
    .options_size = sizeof(struct options),
    .sink_new = sink_new,
};
