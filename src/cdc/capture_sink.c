/*
 * capture_sink.c: the change log as a sink of the capture pipeline: frames are encoded on the pipeline thread, appended and made durable
 * on the writer thread, which is thereby the log's only appender.
 *
 * A batch may end inside a source transaction. What such a batch is asked for is only that everything up to the last transaction end in
 * it is durable: a poll's position never covers a transaction that is not complete, so acknowledging rows of an open one
 * claims nothing.
 */
#include <tailrace/clock.h>

#include "alloc.h"
#include "cdc_internal.h"
#include "check.h"
#include "frame.h"

struct capture_sink {
    struct tr_sink sink;
    struct tr_target target;
    struct tr_log *log;
};

struct capture_writer {
    struct tr_writer writer;
    struct tr_log *log;
    _Atomic(bool) interrupted;
    struct tr_log_run *runs;
    uint32_t cap;
};

static int bind(struct tr_sink *s, const struct tr_schema *schema, enum tr_target_variant variant, uint64_t snapshot_id, int64_t deadline_ns,
                struct tr_target **ret, struct tr_err *err)
{
    (void)schema;
    (void)variant;
    (void)snapshot_id;
    (void)deadline_ns;
    (void)err;
    *ret = &tr_container_of(s, struct capture_sink, sink)->target;
    return TR_OK;
}

static int probe(struct tr_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    (void)s;
    (void)deadline_ns;
    (void)err;
    return TR_OK; /* it was opened and recovered before the pipeline was made */
}

static int encode(struct tr_encoder *e, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        int rc = v[i].op == TR_OP_SCHEMA ? tr_frame_encode_schema(v[i].schema, v[i].epoch, TR_FRAME_ORDINARY, out, err) : tr_frame_encode(&v[i], out, err);
        if (rc < 0) {
            *ret_done = i;
            return rc;
        }
    }
    *ret_done = n;
    return TR_OK;
}

static void encoder_free(struct tr_encoder *e)
{
    tr_free(e);
}

static const struct tr_encoder_ops encoder_ops = {.encode = encode, .free = encoder_free};

static int encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    (void)s;
    (void)t;
    *ret = tr_calloc(1, sizeof **ret);
    if (!*ret)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for an encoder");
    (*ret)->ops = &encoder_ops;
    return TR_OK;
}

static int gather(struct capture_writer *w, const struct tr_sealed *b, uint32_t *ret_n, struct tr_err *err)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < b->n_parts; p++)
        n += b->parts[p].n;
    if (n > w->cap) {
        struct tr_log_run *v = tr_realloc(w->runs, n * sizeof *v);
        if (!v)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for a batch of %u chunks", n);
        w->runs = v;
        w->cap = n;
    }
    n = 0;
    for (uint32_t p = 0; p < b->n_parts; p++)
        for (uint32_t i = 0; i < b->parts[p].n; i++) {
            const struct tr_chunk *c = &b->parts[p].v[i];
            w->runs[n++] = (struct tr_log_run){.bytes = c->bytes, .frames = c->rows};
        }
    *ret_n = n;
    return TR_OK;
}

static int write_batch(struct tr_writer *tw, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    (void)ep;
    struct capture_writer *w = tr_container_of(tw, struct capture_writer, writer);
    uint32_t n = 0;
    int rc = gather(w, b, &n, err);
    if (rc < 0)
        return rc;
    uint64_t next = 0;
    rc = tr_log_append(w->log, 0, w->runs, n, &next, err);
    if (rc == TR_AGAIN)
        return tr_err_set(err, TR_RETRY, TR_DOM_LOG,
                          "the change log has reached its size bound and retention may not remove anything yet; raise log.size_max or let the slowest reader catch up");
    if (rc < 0)
        return rc;
    struct tr_pos tail;
    rc = tr_log_tail(w->log, 0, &tail, err);
    /* once appended there is no way back: a batch sent again would be in the log twice, so waiting has no deadline but a stop */
    (void)deadline_ns;
    while (rc >= 0) {
        uint64_t durable = 0;
        int d = tr_log_durable(w->log, 0, tail.offset, 100, &durable, err);
        if (d >= 0 && durable >= tail.offset)
            return TR_OK;
        if (d < 0 && d != TR_AGAIN)
            return d;
        if (atomic_load(&w->interrupted))
            return tr_err_set(err, TR_FATAL, TR_DOM_LOG, "interrupted while waiting for the change log's disk");
    }
    return rc;
}

static void interrupt(struct tr_writer *tw)
{
    atomic_store(&tr_container_of(tw, struct capture_writer, writer)->interrupted, true);
}

static void writer_free(struct tr_writer *tw)
{
    struct capture_writer *w = tr_container_of(tw, struct capture_writer, writer);
    tr_free(w->runs);
    tr_free(w);
}

static const struct tr_writer_ops writer_ops = {.write = write_batch, .interrupt = interrupt, .free = writer_free};

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    (void)shard;
    struct capture_writer *w = tr_calloc(1, sizeof *w);
    if (!w)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for a writer");
    w->writer.ops = &writer_ops;
    w->log = tr_container_of(s, struct capture_sink, sink)->log;
    *ret = &w->writer;
    return TR_OK;
}

static void close_sink(struct tr_sink *s)
{
    tr_free(tr_container_of(s, struct capture_sink, sink));
}

static const struct tr_sink_ops ops = {
    .bind = bind, .probe = probe, .encoder_new = encoder_new, .writer_new = writer_new, .close = close_sink};

int tr_capture_sink_new(struct tr_log *log, struct tr_sink **ret, struct tr_err *err)
{
    struct capture_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the capture sink");
    s->sink = (struct tr_sink){.ops = &ops, .caps = TR_CAP_MULTI | TR_CAP_ORDERED | TR_CAP_ONE_TARGET, .shards = 1, .n_endpoints = 1};
    s->log = log;
    *ret = &s->sink;
    return TR_OK;
}
