/*
 * ch_writer.c: a sealed batch into INSERTs: one for all rows of the part, but where TRUNCATE stands among them, or where they are more than the server
 * takes as one block. Each has the part's token and its own number, so that one that was applied and did not get to answer is dropped when it comes again.
 *
 * Pace. Each INSERT makes a part, and a table of too many parts is slow to read and in the end refuses INSERTs. Once a second a table that is written is
 * asked for its active parts: above PARTS_FREE each INSERT keeps a distance from the one before, that grows with them up to GAP_MAX; rows gather in the
 * meantime, and come in fewer parts.
 *
 * TRUNCATE is an INSERT … SELECT of tombstones for the rows that live; the engine sees to it that every earlier batch is durable by then.
 */
#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "failpoint.h"
#include "text.h"

enum { ROWS_MAX = 1000000, BYTES_MAX = 200 << 20 }; /* a block of the server's holds 1,048,449 rows and 256 MiB */

enum { PARTS_FREE = 60, GAP_PER_PART_MS = 5, GAP_MAX_MS = 1000 };

struct ch_writer {
    struct tr_writer writer;
    struct ch_sink *sink;
    uint32_t shard;
    struct tr_httpc *http;
    struct ch_completer *completer;
    struct tr_slice *slices;   /* of one INSERT: statement, header, rows */
    size_t n, cap;
    uint64_t rows, bytes;
    uint32_t group;            /* number of the INSERT in its part */
    struct ch_packer *packer;
    struct ch_native *native;
    struct tr_buf packed, answer, text;
    _Atomic(bool) interrupted; /* while it waits */
};

static struct ch_writer *of(struct tr_writer *w)
{
    return tr_container_of(w, struct ch_writer, writer);
}

static int no_memory(const struct ch_writer *w, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for a batch", w->sink->sql.what);
}

static int add(struct ch_writer *w, struct tr_slice s, struct tr_err *err)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 4096;
        struct tr_slice *v = tr_realloc(w->slices, cap * sizeof *v);
        if (!v)
            return no_memory(w, err);
        w->slices = v;
        w->cap = cap;
    }
    w->slices[w->n++] = s;
    return TR_OK;
}

/* The rows gathered take the form of one block. */
static int block(struct ch_writer *w, const struct ch_table *t, struct tr_err *err)
{
    size_t first = 1, parts = 1 + 3 * (size_t)t->n, n = w->n - first;
    if (!w->native && !(w->native = tr_ch_native_new()))
        return no_memory(w, err);
    while (w->n < first + n + parts) { /* room behind the rows, which the block is made of */
        int rc = add(w, (struct tr_slice){NULL, 0}, err);
        if (rc < 0)
            return rc;
    }
    int rc = tr_ch_native_block(w->native, t, w->slices + first, n, w->slices + first + n);
    if (rc < 0)
        return rc == TR_FATAL ? tr_err_set(err, rc, TR_DOM_SINK, "%s: a batch's own bytes are broken", w->sink->sql.what) : no_memory(w, err);
    memmove(w->slices + first, w->slices + first + n, parts * sizeof *w->slices);
    w->n = first + parts;
    return TR_OK;
}

#define MANY_PARTITIONS "&max_partitions_per_insert_block=0" /* the server's bound, 100, would refuse such a batch for ever */

/* Whatever a profile of the server's says: one block, at once, nothing made up, and this token. */
static int params(struct ch_writer *w, const struct ch_table *t, const struct tr_part *p)
{
    tr_buf_clear(&w->text);
    if (!t->today)
        return tr_buf_append_str(&w->text, "&max_insert_block_size=1048449&min_insert_block_size_rows=1048449&min_insert_block_size_bytes=268435456");
    return tr_buf_printf(&w->text,
                         "&async_insert=0&insert_deduplicate=1&insert_deduplication_token=%s-%u&input_format_null_as_default=0&input_format_skip_unknown_fields=0&max_insert_threads=1"
                         "&max_insert_block_size=1048449&min_insert_block_size_rows=1048449&min_insert_block_size_bytes=268435456%s",
                         p->token, w->group, t->partitioned ? MANY_PARTITIONS : "");
}

static int ask(struct ch_writer *w, const struct tr_endpoint *ep, const struct ch_query *q, int64_t deadline_ns, struct tr_err *err)
{
    tr_buf_clear(&w->answer);
    return tr_ch_ask(w->sink, w->http, ep, q, deadline_ns, &w->answer, err);
}

/* The rows gathered so far. */
static int insert(struct ch_writer *w, const struct tr_endpoint *ep, const struct ch_table *t, const struct tr_part *p, int64_t deadline_ns, struct tr_err *err)
{
    if (!w->rows)
        return TR_OK;
    static const char *const encodings[] = {[TR_CH_ZSTD] = "zstd", [TR_CH_LZ4] = "lz4"};
    const char *encoding = t->today ? encodings[w->sink->o->compression] : NULL; /* older servers know neither */
    int rc = params(w, t, p) < 0 || !tr_buf_cstr(&w->text) ? no_memory(w, err) : t->native ? block(w, t, err) : TR_OK;
    if (rc >= 0 && encoding)
        rc = tr_ch_pack(w->packer, w->sink, w->slices, w->n, &w->packed, err);
    struct tr_slice packed = tr_buf_slice(&w->packed);
    struct ch_query q = {.params = tr_buf_cstr(&w->text), .body = encoding ? &packed : w->slices, .n_body = encoding ? 1 : w->n, .content_encoding = encoding, .answer_max = 1 << 20};
    if (rc >= 0) {
        TR_FAILPOINT("sink.before_commit");
        rc = ask(w, ep, &q, deadline_ns, err);
        TR_FAILPOINT("sink.after_commit");
    }
    w->rows = w->bytes = 0;
    w->n = 0;
    w->group++;
    return rc;
}

static int begin(struct ch_writer *w, const struct ch_table *t, struct tr_err *err)
{
    int rc = add(w, tr_slice_str(t->insert), err);
    return rc >= 0 && t->header.n ? add(w, t->header, err) : rc;
}

static int truncate_rows(struct ch_writer *w, const struct tr_endpoint *ep, const struct ch_table *t, struct tr_slice body, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_cur c = tr_cur_of(body);
    uint64_t version = tr_cur_le64(&c);
    int64_t us = (int64_t)tr_cur_le64(&c);
    char utc[TR_UTC_CHARS];
    tr_buf_clear(&w->text);
    int rc = tr_buf_append_str(&w->text, t->truncate[0]);
    if (rc >= 0)
        rc = tr_buf_printf(&w->text, "%llu, 1, '%s%s'", (unsigned long long)version, tr_format_utc(us, utc), t->today ? "" : "+00");
    if (rc >= 0)
        rc = tr_buf_append_str(&w->text, t->truncate[1]);
    if (rc >= 0)
        rc = tr_buf_printf(&w->text, "%llu", (unsigned long long)version);
    struct tr_slice sql = tr_buf_slice(&w->text);
    struct ch_query q = {.params = !t->today ? "" : t->partitioned ? "&async_insert=0" MANY_PARTITIONS : "&async_insert=0", .body = &sql, .n_body = 1, .content_type = "text/plain", .answer_max = 1 << 20};
    return rc < 0 ? no_memory(w, err) : ask(w, ep, &q, deadline_ns, err);
}

static int write_record(struct ch_writer *w, const struct tr_endpoint *ep, const struct ch_table *t, const struct tr_part *p, const struct ch_record *r, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    if (r->kind == CH_TRUNCATE) {
        rc = insert(w, ep, t, p, deadline_ns, err);
        return rc >= 0 ? truncate_rows(w, ep, t, r->body, deadline_ns, err) : rc;
    }
    if (r->kind != CH_ROW)
        return tr_err_set(err, TR_FATAL, TR_DOM_SINK, "%s: a row of a batch was not completed", w->sink->sql.what);
    if (w->rows == ROWS_MAX || w->bytes + r->body.n > BYTES_MAX)
        rc = insert(w, ep, t, p, deadline_ns, err);
    if (rc >= 0 && !w->n)
        rc = begin(w, t, err);
    if (rc >= 0)
        rc = add(w, r->body, err);
    w->rows++;
    w->bytes += r->body.n;
    return rc;
}

static void learn_pace(struct ch_writer *w, const struct tr_endpoint *ep, struct ch_table *t, int64_t now_ns, int64_t deadline_ns)
{
    int64_t due = atomic_load(&t->ask_ns);
    if (now_ns < due || !atomic_compare_exchange_strong(&t->ask_ns, &due, now_ns + TR_NS_PER_S)) /* one of the writers */
        return;
    struct tr_slice sql = tr_slice_str(t->parts);
    struct ch_query q = {.params = "", .body = &sql, .n_body = 1, .content_type = "text/plain", .answer_max = 1 << 20, .data = true};
    if (ask(w, ep, &q, deadline_ns, NULL) < 0)
        return;
    struct tr_cur c = tr_cur_of(tr_buf_slice(&w->answer));
    uint64_t parts = tr_cur_le64(&c);
    int64_t gap = parts > PARTS_FREE ? (int64_t)TR_MIN((parts - PARTS_FREE) * GAP_PER_PART_MS, GAP_MAX_MS) : 0;
    if (tr_cur_done(&c))
        atomic_store(&t->gap_ns, gap * TR_NS_PER_MS);
}

/* RETRY: interrupted, or there is no time left. */
static int keep_pace(struct ch_writer *w, const struct tr_endpoint *ep, struct ch_table *t, int64_t deadline_ns, struct tr_err *err)
{
    int64_t now = tr_now_ns();
    learn_pace(w, ep, t, now, deadline_ns);
    int64_t at = atomic_load(&t->next_ns), mine;
    do
        mine = TR_MAX(at, now);
    while (!atomic_compare_exchange_weak(&t->next_ns, &at, mine + atomic_load(&t->gap_ns)));
    while (now < mine && now < deadline_ns && !atomic_load(&w->interrupted)) {
        tr_sleep_ns(TR_MIN(mine - now, 10 * TR_NS_PER_MS));
        now = tr_now_ns();
    }
    return now >= mine ? TR_OK : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the batch did not get its turn before its deadline", w->sink->sql.what);
}

/* A table of the user's: chunks are rows as they are sent. */
static int append_part(struct ch_writer *w, const struct tr_endpoint *ep, const struct ch_table *t, const struct tr_part *p, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < p->n && rc >= 0; i++) {
        const struct tr_chunk *c = &p->v[i];
        if (w->rows + c->rows > ROWS_MAX || w->bytes + c->bytes.n > BYTES_MAX)
            rc = insert(w, ep, t, p, deadline_ns, err);
        if (rc >= 0 && !w->n)
            rc = begin(w, t, err);
        if (rc >= 0)
            rc = add(w, c->bytes, err);
        w->rows += c->rows;
        w->bytes += c->bytes.n;
    }
    return rc >= 0 ? insert(w, ep, t, p, deadline_ns, err) : rc;
}

static int write_part(struct ch_writer *w, const struct tr_endpoint *ep, const struct tr_part *p, int64_t deadline_ns, struct tr_err *err)
{
    struct ch_table *t = tr_ch_table_of(p->target);
    int rc = keep_pace(w, ep, t, deadline_ns, err);
    w->n = 0;
    w->rows = w->bytes = w->group = 0;
    if (rc >= 0 && t->append)
        return append_part(w, ep, t, p, deadline_ns, err);
    for (uint32_t i = 0; i < p->n && rc >= 0; i++) {
        struct tr_cur c = tr_cur_of(p->v[i].bytes);
        struct ch_record r;
        while (rc >= 0 && (rc = tr_ch_record_next(&c, &r, err)) >= 0)
            rc = write_record(w, ep, t, p, &r, deadline_ns, err);
        if (rc == TR_EOF)
            rc = TR_OK;
    }
    return rc >= 0 ? insert(w, ep, t, p, deadline_ns, err) : rc;
}

/* HTTP has no transactions: who takes the lease over between this look and the INSERT is not seen. What such an INSERT does is what any late
 * delivery does: nothing, where rows of a higher version are. */
static int check_lease(struct ch_writer *w, const struct tr_endpoint *ep, int64_t deadline_ns, struct tr_err *err)
{
    const struct ch_sink *s = w->sink;
    if (!s->sql.lease_token) /* nobody is fenced: component.h */
        return TR_OK;
    tr_buf_clear(&w->text);
    int rc = tr_buf_append_str(&w->text, "SELECT max(token) FROM ");
    if (rc >= 0)
        rc = tr_ch_name(s->sql.meta_ns, "_tailrace_lease", &w->text);
    if (rc >= 0)
        rc = tr_buf_append_str(&w->text, " WHERE sink = ");
    if (rc >= 0)
        rc = tr_ch_literal(tr_slice_str(s->sql.name), &w->text);
    if (rc >= 0)
        rc = tr_buf_append_str(&w->text, " FORMAT RowBinary");
    struct tr_slice sql = tr_buf_slice(&w->text);
    struct ch_query q = {.params = "", .body = &sql, .n_body = 1, .content_type = "text/plain", .answer_max = 1 << 20, .data = true};
    rc = rc < 0 ? no_memory(w, err) : ask(w, ep, &q, deadline_ns, err);
    if (rc < 0)
        return rc;
    struct tr_cur c = tr_cur_of(tr_buf_slice(&w->answer));
    uint64_t token = tr_cur_le64(&c);
    if (!tr_cur_done(&c))
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the answer to the question for the lease is none", s->sql.what);
    if (token > s->sql.lease_token)
        return tr_err_set(err, TR_FENCED, TR_DOM_SINK, "%s: a process with a newer lease has written here, so this one must stop; if the state directory was restored from a backup, see docs/operations.md, Backup",
                          s->sql.what);
    if (token == s->sql.lease_token)
        return TR_OK;
    tr_buf_clear(&w->text);
    rc = tr_buf_append_str(&w->text, "INSERT INTO ");
    if (rc >= 0)
        rc = tr_ch_name(s->sql.meta_ns, "_tailrace_lease", &w->text);
    if (rc >= 0)
        rc = tr_buf_append_str(&w->text, " (sink, token) VALUES (");
    if (rc >= 0)
        rc = tr_ch_literal(tr_slice_str(s->sql.name), &w->text);
    if (rc >= 0)
        rc = tr_buf_printf(&w->text, ", %llu)", (unsigned long long)s->sql.lease_token);
    sql = tr_buf_slice(&w->text);
    q.data = false;
    q.params = s->sql.dialect & TR_CLICKHOUSE_TODAY ? "&async_insert=0" : "";
    return rc < 0 ? no_memory(w, err) : ask(w, ep, &q, deadline_ns, err);
}

static struct tr_endpoint *replica(const struct ch_writer *w, uint32_t i)
{
    const struct tr_sink *sink = &w->sink->sql.sink;
    return sink->endpoints[w->shard * sink->n_endpoints + i % sink->shard_endpoints[w->shard]];
}

static uint64_t bit_of(const struct ch_writer *w, const struct tr_endpoint *ep)
{
    return UINT64_C(1) << (ep - w->sink->endpoints);
}

/* A table that this server was not seen with may be another there, or none. STALE has it looked at; one that is away is looked at when it answers. */
static int check_bound(const struct ch_writer *w, const struct tr_endpoint *ep, const struct tr_sealed *b, struct tr_err *err)
{
    for (uint32_t i = 0; i < b->n_parts; i++) {
        if (atomic_load(&tr_ch_table_of(b->parts[i].target)->bound) & bit_of(w, ep))
            continue;
        int rc = atomic_load(&ep->away) ? TR_RETRY : TR_STALE;
        tr_err_set(err, rc, TR_DOM_SINK, "%s: %s was away when table %s was looked at, and waits for that", w->sink->sql.what, ep->url, tr_sqltarget_of(b->parts[i].target)->name);
        if (err) {
            err->code = i;
            err->blame = rc == TR_STALE ? TR_BLAME_TARGET : TR_BLAME_ENDPOINT;
        }
        return rc;
    }
    return TR_OK;
}

/* The replica to ask, from `first` on: one that is there and has the tables. STALE where one is there and has not: it may be the only one for long. */
static int to_be_asked(const struct ch_writer *w, uint32_t first, const struct tr_sealed *b, const struct tr_endpoint **ret, struct tr_err *err)
{
    uint32_t n = w->sink->sql.sink.shard_endpoints[w->shard];
    int rc = TR_RETRY;
    for (uint32_t i = 0; i < 2 * n && (i < n || rc != TR_STALE); i++) {
        const struct tr_endpoint *ep = replica(w, first + i);
        if (atomic_load(&ep->away) != (i >= n)) /* those that are away come last */
            continue;
        rc = check_bound(w, ep, b, err);
        *ret = ep;
        if (rc >= 0)
            return TR_OK;
    }
    return rc;
}

/* Asks where the shard's last batch was acknowledged; if that one does not answer, or has not the table, the next. */
static int complete_batch(struct tr_writer *tw, struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    struct ch_writer *w = of(tw);
    _Atomic(uint32_t) *acked = &w->sink->acked[w->shard];
    uint32_t n = w->sink->sql.sink.shard_endpoints[w->shard], first = atomic_load(acked);
    const struct tr_endpoint *ep = NULL;
    int rc = to_be_asked(w, first, b, &ep, err);
    if (rc < 0)
        return rc;
    rc = tr_ch_complete(w->completer, w->http, ep, b, deadline_ns, err);
    if (rc == TR_RETRY)
        atomic_store(acked, (first + 1) % n);
    return rc == TR_REJECT ? TR_RETRY : rc; /* it was a question, and says nothing of the rows */
}

static int write_parts(struct ch_writer *w, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    int rc = check_bound(w, ep, b, err);
    for (uint32_t i = 0; i < b->n_parts && rc >= 0; i++) {
        rc = write_part(w, ep, &b->parts[i], deadline_ns, err);
        if (rc == TR_STALE)
            atomic_fetch_and(&tr_ch_table_of(b->parts[i].target)->bound, ~bit_of(w, ep));
        if ((rc == TR_REJECT || rc == TR_STALE) && err)
            err->code = i;
    }
    return rc;
}

/* A server that is silent would have the batch wait to its deadline each time that its breaker lets one through. */
static int pass_over(const struct ch_writer *w, const struct tr_endpoint *ep, struct tr_err *err)
{
    for (uint32_t i = 0; atomic_load(&ep->away) && i < w->sink->sql.sink.shard_endpoints[w->shard]; i++)
        if (!atomic_load(&replica(w, i)->away)) {
            int rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: %s did not answer, and is passed over until it does", w->sink->sql.what, ep->url);
            if (err)
                err->blame = TR_BLAME_ENDPOINT;
            return rc;
        }
    return TR_OK;
}

static int write_batch(struct tr_writer *tw, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    struct ch_writer *w = of(tw);
    atomic_store(&w->interrupted, false);
    int rc = pass_over(w, ep, err);
    if (rc < 0)
        return rc;
    rc = check_lease(w, ep, deadline_ns, err);
    if (rc == TR_STALE || rc == TR_REJECT) { /* its table is gone, or no such: nothing of the rows' table */
        atomic_store(&ep->known, false);
        rc = TR_RETRY;
        if (err) {
            err->rc = rc;
            err->blame = TR_BLAME_ENDPOINT;
        }
        return rc;
    }
    if (rc >= 0)
        rc = write_parts(w, ep, b, deadline_ns, err);
    for (uint32_t i = 0; rc >= 0 && i < w->sink->sql.sink.shard_endpoints[w->shard]; i++)
        if (replica(w, i) == ep)
            atomic_store(&w->sink->acked[w->shard], i);
    return rc < 0 ? rc : TR_OK;
}

static void interrupt(struct tr_writer *tw)
{
    atomic_store(&of(tw)->interrupted, true);
    tr_httpc_interrupt(of(tw)->http);
}

static void free_writer(struct tr_writer *tw)
{
    struct ch_writer *w = of(tw);
    tr_httpc_free(w->http);
    tr_ch_completer_free(w->completer);
    tr_ch_packer_free(w->packer);
    tr_ch_native_free(w->native);
    tr_free(w->slices);
    tr_buf_done(&w->packed);
    tr_buf_done(&w->answer);
    tr_buf_done(&w->text);
    tr_free(w);
}

static const struct tr_writer_ops ops = {.complete = complete_batch, .write = write_batch, .interrupt = interrupt, .free = free_writer};

int tr_ch_writer_new(struct ch_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    struct ch_writer *w = tr_calloc(1, sizeof *w);
    if (!w)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a writer");
    w->writer.ops = &ops;
    w->sink = s;
    w->shard = shard;
    w->completer = tr_ch_completer_new(s);
    w->packer = tr_ch_packer_new();
    int rc = w->completer && w->packer ? tr_ch_session(s, &w->http, err) : no_memory(w, err);
    if (rc < 0) {
        free_writer(&w->writer);
        return rc;
    }
    *ret = &w->writer;
    return TR_OK;
}
