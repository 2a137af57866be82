
#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>

#include "alloc.h"
#include "check.h"
#include "cursor.h"
#include "list.h"
#include "map.h"
#include "mem_lock.h"
#include "rowimage.h"

enum { OUTCOMES_MAX = 4096 };

struct mem_target {
    struct tr_target spi;
    struct mem_target *next;
};

struct kept {
    struct tr_mem_row r;
    struct tr_slice *v;
    uint8_t *state;
};

struct tr_mem_sink {
    struct tr_sink spi;
    struct tr_mem_sink_def def;
    struct tr_mutex lock;
    struct tr_cond changed;
    struct mem_target *targets;
    struct tr_mem_outcome script[OUTCOMES_MAX];
    size_t script_at, script_n;
    int bind_rc, probe_rc, swap_rc;
    uint32_t bind_times, probe_times, swap_times;
    char bind_msg[160];
    uint64_t down;
    bool hold;
    struct kept **rows;
    size_t n_rows, cap_rows;
    struct tr_mem_batch *batches;
    size_t n_batches, cap_batches;
    struct tr_map state;   /* table, variant, key -> struct kept */
    struct tr_map tokens;
    struct tr_u64map built; /* table -> snapshot_id */
    struct tr_u64map shadow; /* table -> snapshot_id of its shadow */
    uint32_t refuses[3][TR_TARGET_VARIANTS_]; /* enum tr_mem_taking, variant: bits by table */
    struct tr_mem_sink_stats stats;
};

static struct tr_mem_sink *sink_of(struct tr_sink *s)
{
    return tr_container_of(s, struct tr_mem_sink, spi);
}

/* ---- encoder ---------------------------------------------------------------------------------------------------------- */

struct mem_encoder {
    struct tr_encoder spi;
    struct tr_buf held; /* columnar */
    bool columnar;
};

static int encode_row(const struct tr_change *c, struct tr_buf *out)
{
    size_t at = out->n;
    if (tr_buf_reserve(out, 4 + 1 + 2 + 8 + 8 + c->key.n + c->old_key.n) < 0)
        return TR_NOMEM;
    tr_buf_put_u32le(out, 0);
    tr_buf_put_u8(out, c->op);
    tr_buf_put_u16le(out, c->flags);
    tr_buf_put_u64le(out, c->version);
    tr_buf_put_u32le(out, (uint32_t)c->key.n);
    tr_buf_put(out, c->key.p, c->key.n);
    tr_buf_put_u32le(out, (uint32_t)c->old_key.n);
    tr_buf_put(out, c->old_key.p, c->old_key.n);
    int rc = tr_rowimage_encode(c->after.n ? &c->after : &c->before, out);
    if (rc < 0) {
        out->n = at;
        return rc;
    }
    uint32_t n = htole32((uint32_t)(out->n - at - 4));
    memcpy(out->p + at, &n, 4);
    return TR_OK;
}

static int encode(struct tr_encoder *spi, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    struct mem_encoder *e = tr_container_of(spi, struct mem_encoder, spi);
    for (uint32_t i = 0; i < n; i++) {
        int rc = encode_row(&v[i], e->columnar ? &e->held : out);
        if (rc < 0) {
            *ret_done = i;
            return tr_err_set(err, rc, TR_DOM_SINK, "row %u cannot be encoded", i);
        }
    }
    *ret_done = n;
    return TR_OK;
}

static int finish_chunk(struct tr_encoder *spi, struct tr_buf *out, struct tr_err *err)
{
    struct mem_encoder *e = tr_container_of(spi, struct mem_encoder, spi);
    if (tr_buf_append_slice(out, tr_buf_slice(&e->held)) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a block");
    tr_buf_clear(&e->held);
    return TR_OK;
}

static size_t buffered(const struct tr_encoder *spi)
{
    const struct mem_encoder *e = (const struct mem_encoder *)(const void *)spi;
    return e->held.n;
}

static void encoder_free(struct tr_encoder *spi)
{
    struct mem_encoder *e = tr_container_of(spi, struct mem_encoder, spi);
    tr_buf_done(&e->held);
    tr_free(e);
}

static const struct tr_encoder_ops row_encoder_ops = {encode, NULL, NULL, encoder_free};
static const struct tr_encoder_ops columnar_encoder_ops = {encode, finish_chunk, buffered, encoder_free};

static int encoder_new(struct tr_sink *spi, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err)
{
    struct mem_encoder *e = tr_calloc(1, sizeof *e);
    (void)t;
    if (!e)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for an encoder");
    e->columnar = sink_of(spi)->def.columnar;
    e->spi.ops = e->columnar ? &columnar_encoder_ops : &row_encoder_ops;
    *ret = &e->spi;
    return TR_OK;
}

/* ---- applying --------------------------------------------------------------------------------------------------------- */

static struct kept *decode(const struct tr_target *t, struct tr_slice bytes, uint64_t batch)
{
    /* One allocation: the struct, a copy of the bytes, slices and states for as many columns as there can be. */
    struct tr_slice img;
    struct tr_slice key, old_key;
    uint32_t kn, on, cols = 0;
    const uint8_t *p = bytes.p;
    memcpy(&kn, p + 11, 4);
    memcpy(&on, p + 15 + le32toh(kn), 4);
    kn = le32toh(kn);
    on = le32toh(on);
    img = tr_slice_sub(bytes, 19 + kn + on, bytes.n);
    for (size_t i = 0, shift = 0; i < img.n; i++, shift += 7) {
        cols |= (uint32_t)(img.p[i] & 0x7f) << shift;
        if (!(img.p[i] & 0x80))
            break;
    }
    struct kept *k = tr_calloc(1, sizeof *k + cols * sizeof(struct tr_slice) + cols + bytes.n);
    TR_ASSERT(k != NULL);
    k->v = (struct tr_slice *)(k + 1);
    k->state = (uint8_t *)(k->v + cols);
    uint8_t *copy = k->state + cols;
    memcpy(copy, bytes.p, bytes.n);
    key = tr_slice_of(copy + 15, kn);
    old_key = tr_slice_of(copy + 19 + kn, on);
    uint16_t flags;
    uint64_t version;
    memcpy(&flags, copy + 1, 2);
    memcpy(&version, copy + 3, 8);
    k->r = (struct tr_mem_row){.batch = batch,
                               .table_id = t->table_id,
                               .schema_version = t->schema_version,
                               .variant = t->variant,
                               .op = copy[0],
                               .flags = le16toh(flags),
                               .version = le64toh(version),
                               .key = key,
                               .old_key = old_key};
    struct tr_err err;
    int rc = tr_rowimage_decode(tr_slice_of(copy + 19 + kn + on, img.n), cols, k->v, k->state, &k->r.row, &err);
    TR_ASSERT(rc >= 0); /* our own encoder wrote it */
    return k;
}

static int state_key(struct tr_buf *b, const struct tr_mem_row *r, struct tr_slice key)
{
    tr_buf_clear(b);
    if (tr_buf_reserve(b, 5 + key.n) < 0)
        return TR_NOMEM;
    tr_buf_put_u32le(b, r->table_id);
    tr_buf_put_u8(b, (uint8_t)r->variant);
    tr_buf_put(b, key.p, key.n);
    return TR_OK;
}

/* MERGE_COLUMNS: what the source left unchanged is taken from the row that is there. */
static void merge(const struct kept *old, struct kept *k)
{
    for (uint32_t i = 0; i < k->r.row.n; i++)
        if (k->state[i] == TR_UNCHANGED && i < old->r.row.n) {
            k->state[i] = old->state[i];
            k->v[i] = old->v[i];
        }
}

static bool is_tombstone(const struct kept *k, struct tr_slice key)
{
    return k->r.op == TR_OP_DELETE || k->r.op == TR_OP_TRUNCATE || ((k->r.flags & TR_CHG_MOVED) && tr_slice_eq(key, k->r.old_key));
}

static struct kept *state_get(struct tr_mem_sink *s, const struct tr_mem_row *r, struct tr_slice key)
{
    struct tr_buf b = {0};
    TR_ASSERT(state_key(&b, r, key) >= 0);
    struct kept *k = tr_map_get(&s->state, tr_buf_slice(&b));
    tr_buf_done(&b);
    return k;
}

static void state_put(struct tr_mem_sink *s, struct kept *k, struct tr_slice key)
{
    struct tr_buf b = {0};
    struct kept *old = state_get(s, &k->r, key);
    if (old && (s->def.caps & TR_CAP_MONOTONIC) && old->r.version >= k->r.version) /* the same again: what it was completed from may be another by now */
        return;
    TR_ASSERT(state_key(&b, &k->r, key) >= 0);
    TR_ASSERT(tr_map_put(&s->state, tr_buf_slice(&b), k, NULL) >= 0);
    tr_buf_done(&b);
}

/* All rows below its version are tombstones of it from now on. */
static void truncate_state(struct tr_mem_sink *s, struct kept *k)
{
    size_t it = 0;
    struct tr_slice key;
    void *val;
    while (tr_map_next(&s->state, &it, &key, &val)) {
        const struct kept *was = val;
        if (was->r.table_id == k->r.table_id && (enum tr_target_variant)key.p[4] == k->r.variant && was->r.version < k->r.version)
            TR_ASSERT(tr_map_put(&s->state, key, k, NULL) == 1); /* a key that is there keeps its place */
    }
}

static void apply_row(struct tr_mem_sink *s, const struct tr_target *t, struct tr_slice bytes)
{
    s->stats.rows++;
    if (s->def.count_only)
        return;
    struct kept *k = decode(t, bytes, s->n_batches);
    if (s->n_rows == s->cap_rows) {
        s->cap_rows = s->cap_rows ? s->cap_rows * 2 : 256;
        s->rows = tr_realloc(s->rows, s->cap_rows * sizeof(void *));
        TR_ASSERT(s->rows != NULL);
    }
    s->rows[s->n_rows++] = k;
    if (k->r.op == TR_OP_TRUNCATE) {
        truncate_state(s, k);
        return;
    }
    struct tr_slice from = k->r.flags & TR_CHG_MOVED ? k->r.old_key : k->r.key;
    struct kept *base = s->def.caps & TR_CAP_MERGE_COLUMNS ? state_get(s, &k->r, from) : NULL;
    if (base && !is_tombstone(base, from)) /* what a tombstone holds is nobody's value any more */
        merge(base, k);
    if (k->r.flags & TR_CHG_MOVED)
        state_put(s, k, k->r.old_key);
    if (!(k->r.flags & TR_CHG_NO_UPSERT))
        state_put(s, k, k->r.key);
}

static void apply_part(struct tr_mem_sink *s, const struct tr_part *p)
{
    if ((s->def.caps & TR_CAP_TOKEN) && tr_map_put(&s->tokens, tr_slice_str(p->token), s, NULL) == 1) {
        s->stats.duplicates++;
        return;
    }
    uint64_t before = s->stats.rows;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tr_chunk *c = &p->v[i];
        if (s->def.count_only) {
            s->stats.rows += c->rows;
            s->stats.bytes += c->bytes.n;
            continue;
        }
        const uint8_t *at = c->bytes.p, *end = at + c->bytes.n;
        while (at < end) {
            uint32_t n;
            memcpy(&n, at, 4);
            n = le32toh(n);
            apply_row(s, p->target, tr_slice_of(at + 4, n));
            at += 4 + n;
        }
        TR_ASSERT(at == end);
        s->stats.bytes += c->bytes.n;
    }
    TR_ASSERT(s->stats.rows - before == p->rows);
}

/* Under the lock. */
static void apply(struct tr_mem_sink *s, const struct tr_sealed *b, uint32_t parts, uint32_t shard, uint32_t endpoint)
{
    for (uint32_t i = 0; i < b->n_parts && i < parts; i++)
        apply_part(s, &b->parts[i]);
    if (!s->def.count_only) {
        if (s->n_batches == s->cap_batches) {
            s->cap_batches = s->cap_batches ? s->cap_batches * 2 : 64;
            s->batches = tr_realloc(s->batches, s->cap_batches * sizeof *s->batches);
            TR_ASSERT(s->batches != NULL);
        }
        struct tr_mem_batch *m = &s->batches[s->n_batches++];
        *m = (struct tr_mem_batch){.n_parts = b->n_parts, .shard = shard, .endpoint = endpoint, .rows = b->rows, .tx_end = b->tx_end};
        if (b->n_parts)
            memcpy(m->token, b->parts[0].token, sizeof m->token);
        if (b->n_spans)
            m->span = b->spans[0];
    }
    s->stats.batches++;
    s->stats.last_write_ns = tr_now_ns();
    tr_cond_broadcast(&s->changed);
}

/* ---- script ----------------------------------------------------------------------------------------------------------- */

static struct tr_mem_outcome next_outcome(struct tr_mem_sink *s)
{
    if (s->script_at == s->script_n)
        return (struct tr_mem_outcome){.apply = true};
    struct tr_mem_outcome *o = &s->script[s->script_at], r = *o;
    if (o->times <= 1)
        s->script_at++;
    else
        o->times--;
    r.apply |= r.rc == TR_OK;
    return r;
}

void tr_mem_script(struct tr_mem_sink *s, const struct tr_mem_outcome *o)
{
    tr_mem_lock(&s->lock);
    TR_ASSERT(s->script_n < OUTCOMES_MAX);
    s->script[s->script_n++] = *o;
    tr_mem_unlock(&s->lock);
}

void tr_mem_script_swap(struct tr_mem_sink *s, int rc, uint32_t times)
{
    tr_mem_lock(&s->lock);
    s->swap_rc = rc;
    s->swap_times = times;
    tr_mem_unlock(&s->lock);
}

void tr_mem_script_bind(struct tr_mem_sink *s, int rc, const char *msg, uint32_t times)
{
    tr_mem_lock(&s->lock);
    s->bind_rc = rc;
    s->bind_times = times;
    snprintf(s->bind_msg, sizeof s->bind_msg, "%s", msg);
    tr_mem_unlock(&s->lock);
}

void tr_mem_taking(struct tr_mem_sink *s, uint32_t table_id, enum tr_target_variant variant, enum tr_mem_taking how)
{
    TR_ASSERT(table_id < 32);
    tr_mem_lock(&s->lock);
    for (int i = TR_MEM_TAKES; i <= TR_MEM_REFUSES_BINDS; i++) {
        uint32_t *bits = &s->refuses[i][variant];
        *bits = i == (int)how ? *bits | 1u << table_id : *bits & ~(1u << table_id);
    }
    tr_mem_unlock(&s->lock);
}

static bool refuses(const struct tr_mem_sink *s, enum tr_mem_taking how, uint32_t table_id, enum tr_target_variant variant)
{
    return table_id < 32 && s->refuses[how][variant] >> table_id & 1;
}

/* The first part of a batch that its table refuses; n_parts: none. */
static uint32_t refused_part(const struct tr_mem_sink *s, const struct tr_sealed *b)
{
    uint32_t i = 0;
    while (i < b->n_parts && !refuses(s, TR_MEM_REFUSES_ROWS, b->parts[i].target->table_id, b->parts[i].target->variant))
        i++;
    return i;
}

void tr_mem_script_probe(struct tr_mem_sink *s, int rc, uint32_t times)
{
    tr_mem_lock(&s->lock);
    s->probe_rc = rc;
    s->probe_times = times;
    tr_mem_unlock(&s->lock);
}

void tr_mem_endpoint_down(struct tr_mem_sink *s, uint32_t endpoint, bool down)
{
    tr_mem_lock(&s->lock);
    s->down = down ? s->down | UINT64_C(1) << endpoint : s->down & ~(UINT64_C(1) << endpoint);
    tr_mem_unlock(&s->lock);
}

void tr_mem_hold(struct tr_mem_sink *s, bool on)
{
    tr_mem_lock(&s->lock);
    s->hold = on;
    tr_cond_broadcast(&s->changed);
    tr_mem_unlock(&s->lock);
}

/* ---- writer ----------------------------------------------------------------------------------------------------------- */

struct pending {
    const struct tr_sealed *b;
    uint64_t ticket;
    int64_t ready_ns;
    struct tr_mem_outcome o;
};

struct mem_writer {
    struct tr_writer spi;
    struct tr_mem_sink *s;
    uint32_t shard;
    bool interrupted;
    struct pending *v;   /* pipelined: FIFO of window */
    uint32_t n, window;
};

static struct mem_writer *writer_of(struct tr_writer *w)
{
    return tr_container_of(w, struct mem_writer, spi);
}

/* Under the lock. False: interrupted, or the deadline came first. */
static bool pass_time(struct mem_writer *w, int64_t delay_ns, int64_t deadline_ns)
{
    struct tr_mem_sink *s = w->s;
    int64_t until = tr_deadline_ns(tr_now_ns(), delay_ns);
    for (;;) {
        int64_t now = tr_now_ns();
        if (w->interrupted || now >= deadline_ns)
            return false;
        if (!s->hold && now >= until)
            return true;
        tr_cond_wait_until(&s->changed, &s->lock, TR_MIN(deadline_ns, s->hold ? INT64_MAX : until));
    }
}

static int fail_as(const struct tr_mem_outcome *o, struct tr_err *err)
{
    tr_err_set(err, o->rc, TR_DOM_SINK, "scripted outcome of a write");
    err->blame = o->blame;
    err->retry_after_ms = o->retry_after_ms;
    err->code = o->part;
    return o->rc;
}

static int writer_write(struct tr_writer *spi, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    struct mem_writer *w = writer_of(spi);
    struct tr_mem_sink *s = w->s;
    uint32_t e = ep ? (uint32_t)((uintptr_t)ep - 1) : 0;
    int rc;
    tr_mem_lock(&s->lock);
    w->interrupted = false;
    s->stats.writes++;
    if (++s->stats.in_write > s->stats.in_write_max)
        s->stats.in_write_max = s->stats.in_write;
    if (s->down >> e & 1) {
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "endpoint %u is down", e);
        err->blame = TR_BLAME_ENDPOINT;
    } else {
        struct tr_mem_outcome o = next_outcome(s);
        uint32_t bad = refused_part(s, b);
        if (bad < b->n_parts)
            o = (struct tr_mem_outcome){.rc = TR_REJECT, .part = bad, .blame = TR_BLAME_BATCH};
        bool passed = !(s->hold || o.delay_ns || s->def.write_ns) || pass_time(w, o.delay_ns + s->def.write_ns, deadline_ns);
        if (passed && o.apply)
            apply(s, b, o.apply_parts ? o.apply_parts : UINT32_MAX, w->shard, e);
        rc = !passed ? tr_err_set(err, TR_RETRY, TR_DOM_SINK, "the write was interrupted or ran out of time") : o.rc < 0 ? fail_as(&o, err) : TR_OK;
    }
    s->stats.in_write--;
    tr_mem_unlock(&s->lock);
    return rc;
}

static int writer_complete(struct tr_writer *spi, struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    struct mem_writer *w = writer_of(spi);
    (void)b;
    (void)deadline_ns;
    (void)err;
    tr_mem_lock(&w->s->lock);
    w->s->stats.completes++;
    tr_mem_unlock(&w->s->lock);
    return TR_OK;
}

static int writer_submit(struct tr_writer *spi, const struct tr_sealed *b, uint64_t ticket, struct tr_err *err)
{
    struct mem_writer *w = writer_of(spi);
    struct tr_mem_sink *s = w->s;
    (void)err;
    tr_mem_lock(&s->lock);
    int rc = TR_AGAIN;
    if (w->n < w->window) {
        struct tr_mem_outcome o = next_outcome(s);
        w->v[w->n++] = (struct pending){.b = b, .ticket = ticket, .o = o, .ready_ns = tr_deadline_ns(tr_now_ns(), o.delay_ns + s->def.write_ns)};
        s->stats.writes++;
        s->stats.in_write_max = TR_MAX(s->stats.in_write_max, w->n);
        rc = TR_OK;
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static void forget(struct mem_writer *w, uint32_t from, uint32_t n)
{
    memmove(w->v + from, w->v + from + n, (w->n - from - n) * sizeof *w->v);
    w->n -= n;
}

static int writer_reap(struct tr_writer *spi, int timeout_ms, struct tr_done *v, uint32_t max, struct tr_err *err)
{
    struct mem_writer *w = writer_of(spi);
    struct tr_mem_sink *s = w->s;
    int64_t deadline = tr_deadline_ns(tr_now_ns(), timeout_ms * TR_NS_PER_MS);
    uint32_t n = 0;
    tr_mem_lock(&s->lock);
    while (n == 0) {
        while (n < max && w->n && !s->hold && w->v[0].ready_ns <= tr_now_ns()) {
            struct pending p = w->v[0];
            if (p.o.apply)
                apply(s, p.b, p.o.apply_parts ? p.o.apply_parts : UINT32_MAX, w->shard, 0);
            v[n++] = (struct tr_done){.ticket = p.ticket, .rc = p.o.rc};
            if (p.o.rc < 0)
                fail_as(&p.o, err);
            /* ORDERED: when one fails, all later ones fail too. With MONOTONIC a refused one need not hold up the others. */
            forget(w, 0, p.o.rc >= 0 || (p.o.rc == TR_REJECT && (s->def.caps & TR_CAP_MONOTONIC)) ? 1 : w->n);
            if (p.o.rc < 0)
                break; /* one message per call */
        }
        int64_t until = w->n && !s->hold ? TR_MIN(deadline, w->v[0].ready_ns) : deadline;
        if (n || w->interrupted || tr_now_ns() >= deadline)
            break;
        tr_cond_wait_until(&s->changed, &s->lock, until);
    }
    w->interrupted = false;
    tr_mem_unlock(&s->lock);
    return (int)n;
}

static int writer_drain(struct tr_writer *spi, int64_t deadline_ns, struct tr_err *err)
{
    struct mem_writer *w = writer_of(spi);
    (void)deadline_ns;
    (void)err;
    tr_mem_lock(&w->s->lock);
    w->s->stats.drains++; /* nothing lingers here: reap says the rest */
    tr_mem_unlock(&w->s->lock);
    return TR_OK;
}

static void writer_abandon(struct tr_writer *spi)
{
    struct mem_writer *w = writer_of(spi);
    tr_mem_lock(&w->s->lock);
    w->n = 0;
    w->s->stats.abandons++;
    tr_mem_unlock(&w->s->lock);
}

static void writer_interrupt(struct tr_writer *spi)
{
    struct mem_writer *w = writer_of(spi);
    tr_mem_lock(&w->s->lock);
    w->interrupted = true;
    w->s->stats.interrupts++;
    tr_cond_broadcast(&w->s->changed);
    tr_mem_unlock(&w->s->lock);
}

static void writer_free(struct tr_writer *spi)
{
    struct mem_writer *w = writer_of(spi);
    tr_free(w->v);
    tr_free(w);
}

static const struct tr_writer_ops blocking_ops = {.write = writer_write, .interrupt = writer_interrupt, .free = writer_free};
static const struct tr_writer_ops completing_ops = {.complete = writer_complete, .write = writer_write, .interrupt = writer_interrupt, .free = writer_free};
static const struct tr_writer_ops pipelined_ops = {
    .submit = writer_submit, .reap = writer_reap, .drain = writer_drain, .abandon = writer_abandon, .interrupt = writer_interrupt, .free = writer_free};

static int writer_new(struct tr_sink *spi, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    struct tr_mem_sink *s = sink_of(spi);
    struct mem_writer *w = tr_calloc(1, sizeof *w);
    if (w) {
        w->window = s->def.window;
        w->v = tr_calloc(w->window, sizeof *w->v);
    }
    if (!w || !w->v) {
        tr_free(w);
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a writer");
    }
    w->s = s;
    w->shard = shard;
    w->spi.ops = s->def.caps & TR_CAP_PIPELINED ? &pipelined_ops : s->def.complete ? &completing_ops : &blocking_ops;
    *ret = &w->spi;
    return TR_OK;
}

/* ---- targets ---------------------------------------------------------------------------------------------------------- */

/* The rows that the table has in `goes` go; those it has in `from` are in `goes` from now on, if that is another. */
static void keep_state(struct tr_mem_sink *s, uint32_t table_id, enum tr_target_variant from, enum tr_target_variant goes)
{
    struct tr_map old = s->state;
    size_t it = 0;
    struct tr_slice key;
    void *val;
    tr_map_init(&s->state);
    while (tr_map_next(&old, &it, &key, &val)) {
        struct kept *k = val;
        enum tr_target_variant is = (enum tr_target_variant)key.p[4]; /* not the row's own: that of a key update stands under two keys */
        if (k->r.table_id == table_id && is == goes)
            continue;
        if (k->r.table_id == table_id)
            k->r.variant = is == from ? goes : is;
        struct tr_buf b = {0};
        TR_ASSERT(state_key(&b, &k->r, tr_slice_sub(key, 5, key.n)) >= 0 && tr_map_put(&s->state, tr_buf_slice(&b), k, NULL) >= 0);
        tr_buf_done(&b);
    }
    tr_map_done(&old);
}

static bool is_build(const struct tr_mem_sink *s, uint32_t table_id, uint64_t snapshot_id)
{
    uint64_t there = 0;
    return tr_u64map_find(&s->built, table_id, &there) && there == snapshot_id;
}

/* Rows of another build go. */
static void fresh_shadow(struct tr_mem_sink *s, uint32_t table_id, uint64_t snapshot_id)
{
    uint64_t old = 0;
    if (tr_u64map_find(&s->shadow, table_id, &old) && old == snapshot_id)
        return;
    keep_state(s, table_id, TR_TARGET_SHADOW, TR_TARGET_SHADOW);
    TR_ASSERT(tr_u64map_put(&s->shadow, table_id, snapshot_id) >= 0);
}

static int bind(struct tr_sink *spi, const struct tr_schema *schema, enum tr_target_variant variant, uint64_t snapshot_id, int64_t deadline_ns,
                struct tr_target **ret, struct tr_err *err)
{
    struct tr_mem_sink *s = sink_of(spi);
    uint32_t id = s->def.caps & TR_CAP_ONE_TARGET ? 0 : schema->table_id, version = s->def.caps & TR_CAP_ONE_TARGET ? 0 : schema->version;
    int rc = TR_OK;
    (void)deadline_ns;
    tr_mem_lock(&s->lock);
    s->stats.binds++;
    if (s->bind_times) {
        s->bind_times--;
        rc = tr_err_set(err, s->bind_rc, TR_DOM_SINK, "%s", s->bind_msg);
    } else if (variant == TR_TARGET_MIRROR && snapshot_id && !is_build(s, id, snapshot_id)) {
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "table %u is not the build that was made", id);
    } else if (refuses(s, TR_MEM_REFUSES_BINDS, id, variant)) {
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK, "table %u refuses to be bound", id);
    } else {
        if (variant == TR_TARGET_SHADOW)
            fresh_shadow(s, id, snapshot_id);
        struct mem_target *t = s->targets;
        while (t && (t->spi.table_id != id || t->spi.schema_version != version || t->spi.variant != variant))
            t = t->next;
        if (!t) {
            t = tr_calloc(1, sizeof *t);
            TR_ASSERT(t != NULL);
            t->spi = (struct tr_target){.table_id = id, .schema_version = version, .variant = variant};
            t->next = s->targets;
            s->targets = t;
        }
        *ret = &t->spi;
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static int swap(struct tr_sink *spi, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_mem_sink *s = sink_of(spi);
    uint64_t built = 0, shadow = 0;
    (void)deadline_ns;
    tr_mem_lock(&s->lock);
    if (s->swap_times) {
        s->swap_times--;
        int rc = tr_err_set(err, s->swap_rc, TR_DOM_SINK, "table %u cannot be swapped", schema->table_id);
        tr_mem_unlock(&s->lock);
        return rc;
    }
    s->stats.swaps++;
    tr_u64map_find(&s->built, schema->table_id, &built);
    tr_u64map_find(&s->shadow, schema->table_id, &shadow);
    if (built != snapshot_id || shadow == snapshot_id) { /* made again after a crash, it is ahead of the mirror */
        keep_state(s, schema->table_id, TR_TARGET_SHADOW, TR_TARGET_MIRROR);
        TR_ASSERT(tr_u64map_put(&s->built, schema->table_id, snapshot_id) >= 0);
        tr_u64map_del(&s->shadow, schema->table_id, NULL);
    }
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

static int built(struct tr_sink *spi, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err)
{
    struct tr_mem_sink *s = sink_of(spi);
    (void)deadline_ns;
    (void)err;
    *ret_snapshot_id = 0;
    tr_mem_lock(&s->lock);
    tr_u64map_find(&s->built, schema->table_id, ret_snapshot_id);
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

static int probe(struct tr_sink *spi, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_mem_sink *s = sink_of(spi);
    int rc = TR_OK;
    (void)deadline_ns;
    tr_mem_lock(&s->lock);
    s->stats.probes++;
    if (s->probe_times) {
        s->probe_times--;
        rc = tr_err_set(err, s->probe_rc, TR_DOM_SINK, "scripted failure of a probe");
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static void close_sink(struct tr_sink *spi)
{
    struct tr_mem_sink *s = sink_of(spi);
    for (struct mem_target *t = s->targets, *next; t; t = next) {
        next = t->next;
        tr_free(t);
    }
    for (size_t i = 0; i < s->n_rows; i++)
        tr_free(s->rows[i]);
    tr_free(s->rows);
    tr_free(s->batches);
    tr_map_done(&s->state);
    tr_map_done(&s->tokens);
    tr_u64map_done(&s->built);
    tr_u64map_done(&s->shadow);
    tr_free(s->spi.endpoints);
    tr_cond_done(&s->changed);
    tr_mutex_done(&s->lock);
    tr_free(s);
}

static const struct tr_sink_ops sink_ops = {.bind = bind, .swap = swap, .built = built, .probe = probe, .encoder_new = encoder_new, .writer_new = writer_new, .close = close_sink};

int tr_mem_sink_new(const struct tr_mem_sink_def *def, struct tr_mem_sink **ret)
{
    struct tr_mem_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return TR_NOMEM;
    s->def = *def;
    s->def.window = def->window ? def->window : 16;
    s->spi = (struct tr_sink){.ops = &sink_ops, .caps = def->caps, .shards = TR_MAX(def->shards, 1u), .n_endpoints = TR_MAX(def->endpoints, 1u)};
    s->spi.endpoints = tr_calloc((size_t)s->spi.shards * s->spi.n_endpoints, sizeof(void *));
    if (!s->spi.endpoints) {
        tr_free(s);
        return TR_NOMEM;
    }
    for (uint32_t i = 0; i < s->spi.shards * s->spi.n_endpoints; i++) /* not pointers, only numbers: 1 + endpoint */
        s->spi.endpoints[i] = (struct tr_endpoint *)(uintptr_t)(1 + i % s->spi.n_endpoints);
    tr_mutex_init(&s->lock);
    tr_cond_init(&s->changed);
    tr_map_init(&s->state);
    tr_map_init(&s->tokens);
    tr_u64map_init(&s->built);
    tr_u64map_init(&s->shadow);
    *ret = s;
    return TR_OK;
}

struct tr_sink *tr_mem_sink_spi(struct tr_mem_sink *s)
{
    return &s->spi;
}

/* ---- looking ---------------------------------------------------------------------------------------------------------- */

void tr_mem_sink_stats(struct tr_mem_sink *s, struct tr_mem_sink_stats *ret)
{
    tr_mem_lock(&s->lock);
    *ret = s->stats;
    tr_mem_unlock(&s->lock);
}

bool tr_mem_wait_rows(struct tr_mem_sink *s, uint64_t rows, int64_t deadline_ns)
{
    tr_mem_lock(&s->lock);
    bool in_time = true;
    while (s->stats.rows < rows && in_time)
        in_time = tr_cond_wait_until(&s->changed, &s->lock, deadline_ns);
    bool there = s->stats.rows >= rows;
    tr_mem_unlock(&s->lock);
    return there;
}

void tr_mem_each_row(struct tr_mem_sink *s, void (*cb)(void *arg, const struct tr_mem_row *r), void *arg)
{
    tr_mem_lock(&s->lock);
    for (size_t i = 0; i < s->n_rows; i++)
        cb(arg, &s->rows[i]->r);
    tr_mem_unlock(&s->lock);
}

void tr_mem_each_batch(struct tr_mem_sink *s, void (*cb)(void *arg, const struct tr_mem_batch *b), void *arg)
{
    tr_mem_lock(&s->lock);
    for (size_t i = 0; i < s->n_batches; i++)
        cb(arg, &s->batches[i]);
    tr_mem_unlock(&s->lock);
}

void tr_mem_read_back(struct tr_mem_sink *s, uint32_t table_id, enum tr_target_variant variant,
                      void (*cb)(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row), void *arg)
{
    size_t it = 0;
    struct tr_slice k;
    void *val;
    tr_mem_lock(&s->lock);
    while (tr_map_next(&s->state, &it, &k, &val)) {
        const struct kept *kept = val;
        if (kept->r.table_id != table_id || kept->r.variant != variant)
            continue;
        struct tr_slice key = tr_slice_sub(k, 5, k.n);
        bool dead = is_tombstone(kept, key);
        cb(arg, key, kept->r.version + ((kept->r.flags & TR_CHG_MOVED) && !dead), dead, &kept->r.row); /* a key update owns two versions: the tombstone's, then the new row's */
    }
    tr_mem_unlock(&s->lock);
}
