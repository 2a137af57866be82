#include "sink_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clock.h>

#include "check.h"
#include "hash.h"
#include "key.h"
#include "seg.h"

/* ---- the bench: one sink, its writer, and batches made by hand ---------------------------------------------------------- */

enum { PARTS_MAX = 4, ROWS_MAX = 20000 };

static const struct tr_sink_factory *F;

struct bench {
    struct tr_sink *sink;
    struct tr_writer *writer;
    struct tr_schema *a1, *a2, *b1;
    struct tr_pool pool;
    uint64_t ticket;
};

struct batch {
    struct tr_sealed sealed;
    struct tr_part parts[PARTS_MAX];
    struct tr_chunk chunks[PARTS_MAX];
    struct tr_span span;
};

static int64_t soon(void)
{
    return tr_now_ns() + 10 * TR_NS_PER_S;
}

static struct tr_schema *table(uint32_t id, uint32_t version, const char *name)
{
    struct tr_column c[TR_SUITE_COLUMNS] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1, .source_type_id = 20, .source_pos = 1},
                                            {.name = "note", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .source_type_id = 25, .source_pos = 2},
                                            {.name = "more", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .source_type_id = 25, .source_pos = 3}};
    struct tr_schema_def d = {.table_id = id, .version = version, .ns = "public", .name = name, .no_key_reason = "", .columns = c, .n_columns = version + 1};
    struct tr_schema *s = NULL;
    struct tr_err err;
    assert_int_equal(tr_schema_new(&d, &s, &err), TR_OK);
    return s;
}

static void open_sink(struct bench *b, bool fresh)
{
    struct tr_err err = {0};
    if (F->open(F->arg, fresh, &b->sink, &err) < 0)
        fail_msg("open: %s", err.msg);
    if (b->sink->ops->writer_new(b->sink, F->shard, &b->writer, &err) < 0)
        fail_msg("writer_new: %s", err.msg);
}

static void bench_init(struct bench *b)
{
    memset(b, 0, sizeof *b);
    tr_pool_init(&b->pool, UINT64_C(1) << 30, 0.8, 0.5);
    b->a1 = table(1, 1, "suite_a");
    b->a2 = table(1, 2, "suite_a");
    b->b1 = table(2, 1, "suite_b");
    open_sink(b, true);
}

static void close_sink(struct bench *b)
{
    b->writer->ops->free(b->writer);
    b->sink->ops->close(b->sink);
}

static void bench_done(struct bench *b)
{
    close_sink(b);
    tr_schema_unref(b->a1);
    tr_schema_unref(b->a2);
    tr_schema_unref(b->b1);
    assert_int_equal(tr_pool_charged(&b->pool), 0);
}

static bool can(const struct bench *b, uint32_t cap)
{
    return b->sink->caps & cap;
}

static struct tr_target *bind_as(struct bench *b, const struct tr_schema *s, enum tr_target_variant variant, uint64_t snapshot_id)
{
    struct tr_target *t = NULL;
    struct tr_err err = {0};
    if (b->sink->ops->bind(b->sink, s, variant, snapshot_id, soon(), &t, &err) < 0)
        fail_msg("bind %s: %s", s->name, err.msg);
    assert_non_null(t);
    return t;
}

/* A change with values; "=" stands for unchanged, NULL for NULL. */
struct row {
    uint8_t op;
    int64_t id;
    uint64_t version;
    const char *note, *more;
    int64_t old_id; /* MOVED; negative: its tombstone half only */
};

static void cell(const char *text, struct tr_slice *v, uint8_t *state, uint16_t *flags)
{
    *v = tr_slice_str(text);
    *state = !text ? TR_NULL : strcmp(text, "=") == 0 ? TR_UNCHANGED : TR_PRESENT;
    *flags |= *state == TR_UNCHANGED ? TR_CHG_UNCHANGED : 0;
}

static void encode(struct bench *b, struct tr_encoder *e, const struct tr_schema *s, const struct row *r, struct tr_buf *out)
{
    char id[24], old_id[24];
    struct tr_slice v[3] = {{0}}, kv[3] = {{0}};
    uint8_t st[3], kst[3] = {TR_PRESENT, TR_ABSENT, TR_ABSENT};
    struct tr_buf key = {0}, old = {0};
    struct tr_err err = {0};
    uint32_t done = 0;
    (void)b;
    snprintf(id, sizeof id, "%lld", (long long)r->id);
    snprintf(old_id, sizeof old_id, "%lld", llabs(r->old_id));
    struct tr_change c = {.op = r->op, .schema = s, .version = r->version, .commit_lsn = r->version, .change_lsn = r->version, .commit_us = 1700000000000000, .capture_us = 1700000000000001};
    v[0] = tr_slice_str(id);
    st[0] = TR_PRESENT;
    cell(r->note, &v[1], &st[1], &c.flags);
    cell(r->more, &v[2], &st[2], &c.flags);
    kv[0] = v[0];
    struct tr_row key_row = {kv, kst, s->n_columns};
    if (r->op == TR_OP_TRUNCATE) {
        c.flags = 0;
        if (e->ops->encode(e, &c, 1, &done, out, &err) < 0)
            fail_msg("encode: %s", err.msg);
        return;
    }
    c.flags |= r->old_id < 0 ? TR_CHG_NO_UPSERT : 0;
    if (r->op == TR_OP_DELETE) {
        c.flags = 0;
        c.before = key_row;
    } else {
        c.after = (struct tr_row){v, st, s->n_columns};
    }
    assert_int_equal(tr_key_encode(s, &key_row, &key, &err), TR_OK);
    c.key = tr_buf_slice(&key);
    struct tr_slice ov[3] = {tr_slice_str(old_id)};
    struct tr_row old_row = {ov, kst, s->n_columns};
    if (r->old_id) {
        c.flags |= TR_CHG_MOVED;
        assert_int_equal(tr_key_encode(s, &old_row, &old, &err), TR_OK);
        c.old_key = tr_buf_slice(&old);
        c.before = old_row;
    }
    if (e->ops->encode(e, &c, 1, &done, out, &err) < 0)
        fail_msg("encode: %s", err.msg);
    assert_int_equal(done, 1);
    tr_buf_done(&key);
    tr_buf_done(&old);
}

static void add_part(struct bench *b, struct batch *x, struct tr_target *t, const struct tr_schema *s, const struct row *v, uint32_t n)
{
    struct tr_encoder *e = NULL;
    struct tr_err err = {0};
    struct tr_seg *seg;
    uint32_t i = x->sealed.n_parts++;
    assert_int_equal(b->sink->ops->encoder_new(b->sink, t, &e, &err), TR_OK);
    assert_int_equal(tr_seg_new(&b->pool, 4096, &seg), TR_OK);
    for (uint32_t k = 0; k < n; k++)
        encode(b, e, s, &v[k], &seg->buf);
    if (e->ops->finish_chunk)
        assert_true(e->ops->finish_chunk(e, &seg->buf, &err) >= 0);
    e->ops->free(e);
    tr_seg_recharge(seg);
    x->chunks[i] = (struct tr_chunk){.bytes = tr_buf_slice(&seg->buf), .rows = n, .seg = seg};
    x->parts[i] = (struct tr_part){.target = t, .v = &x->chunks[i], .n = 1, .rows = n, .bytes = seg->buf.n};
    struct tr_hash128 h = tr_hash128(seg->buf.p, seg->buf.n);
    h.lo += (uint64_t)t->table_id << 8 | t->schema_version;
    tr_hash128_hex(h, x->parts[i].token);
    x->sealed.rows += n;
    x->sealed.bytes += seg->buf.n;
    x->span = (struct tr_span){.lane = 0, .epoch = 1, .first = (int64_t)v[0].version, .last = (int64_t)v[n - 1].version};
}

static void batch_init(struct batch *x)
{
    memset(x, 0, sizeof *x);
    x->sealed.parts = x->parts;
    x->sealed.spans = &x->span;
    x->sealed.n_spans = 1;
    x->sealed.tx_end = true;
}

static void batch_done(struct batch *x)
{
    for (uint32_t i = 0; i < x->sealed.n_parts; i++)
        tr_seg_unref(x->chunks[i].seg);
}

static int write_pipelined(struct bench *b, struct batch *x, struct tr_err *err)
{
    uint64_t ticket = ++b->ticket;
    int64_t until = soon();
    int rc = TR_AGAIN;
    while (rc == TR_AGAIN && tr_now_ns() < until)
        rc = b->writer->ops->submit(b->writer, &x->sealed, ticket, err);
    while (rc >= 0 && tr_now_ns() < until) {
        struct tr_done d[8];
        int n = b->writer->ops->reap(b->writer, 50, d, 8, err);
        for (int i = 0; i < n; i++)
            if (d[i].rc < 0 || d[i].ticket >= ticket)
                return d[i].rc;
        if (n < 0 && n != TR_AGAIN)
            return n;
    }
    return rc < 0 ? rc : TR_RETRY;
}

static void write_batch(struct bench *b, struct batch *x)
{
    struct tr_err err = {0};
    int rc = TR_OK;
    if (can(b, TR_CAP_PIPELINED))
        rc = write_pipelined(b, x, &err);
    else {
        if (b->writer->ops->complete)
            rc = b->writer->ops->complete(b->writer, &x->sealed, soon(), &err);
        for (uint32_t i = 0; i < x->sealed.n_parts; i++) /* it may have written the segments anew */
            x->chunks[i].bytes = tr_buf_slice(&x->chunks[i].seg->buf);
        if (rc >= 0)
            rc = b->writer->ops->write(b->writer, b->sink->endpoints ? b->sink->endpoints[F->shard * b->sink->n_endpoints] : NULL, &x->sealed, soon(), &err);
    }
    if (rc < 0)
        fail_msg("write: %s: %s", tr_rc_name(rc), err.msg);
}

static void put(struct bench *b, struct tr_target *t, const struct tr_schema *s, const struct row *v, uint32_t n)
{
    struct batch x;
    batch_init(&x);
    add_part(b, &x, t, s, v, n);
    write_batch(b, &x);
    batch_done(&x);
}

#define PUT(b, t, s, ...) put(b, t, s, (const struct row[]){__VA_ARGS__}, sizeof((const struct row[]){__VA_ARGS__}) / sizeof(struct row))

/* ---- looking back -------------------------------------------------------------------------------------------------------- */

struct look {
    int64_t id;
    bool found, deleted;
    uint64_t version;
    char note[256], more[256];
    bool note_null, more_null;
    uint32_t live, rows;
    size_t note_n;
};

static void see(void *arg, const struct tr_suite_row *r)
{
    struct look *l = arg;
    l->rows++;
    l->live += !r->deleted;
    if (strtoll(r->values[0], NULL, 10) != l->id)
        return;
    assert_false(l->found); /* a key twice */
    l->found = true;
    l->deleted = r->deleted;
    l->version = r->version;
    l->note_null = !r->values[1];
    l->more_null = !r->values[2];
    l->note_n = r->values[1] ? strlen(r->values[1]) : 0;
    snprintf(l->note, sizeof l->note, "%s", r->values[1] ? r->values[1] : "");
    snprintf(l->more, sizeof l->more, "%s", r->values[2] ? r->values[2] : "");
}

static struct look look_as(struct bench *b, const struct tr_schema *s, enum tr_target_variant variant, int64_t id)
{
    struct look l = {.id = id};
    assert_true(F->read_back(F->arg, b->sink, s, variant, see, &l) >= 0);
    return l;
}

static struct look look(struct bench *b, const struct tr_schema *s, int64_t id)
{
    return look_as(b, s, TR_TARGET_MIRROR, id);
}

static void is(struct bench *b, const struct tr_schema *s, int64_t id, uint64_t version, const char *note)
{
    struct look l = look(b, s, id);
    assert_true(l.found);
    assert_false(l.deleted);
    if (l.version)
        assert_int_equal(l.version, version);
    assert_string_equal(l.note, note);
}

static void is_gone(struct bench *b, const struct tr_schema *s, int64_t id)
{
    struct look l = look(b, s, id);
    assert_true(!l.found || l.deleted);
}

/* ---- the tests ------------------------------------------------------------------------------------------------------------ */

static void test_probe_and_bind(void **state)
{
    struct bench b;
    struct tr_err err = {0};
    (void)state;
    bench_init(&b);
    if (b.sink->ops->probe)
        assert_true(b.sink->ops->probe(b.sink, soon(), &err) >= 0);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    if (!can(&b, TR_CAP_ONE_TARGET)) {
        assert_int_equal(t->table_id, 1);
        assert_int_equal(t->schema_version, 1);
        assert_int_equal(t->variant, TR_TARGET_MIRROR);
    }
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "one", NULL, 0});
    t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0); /* idempotent: nothing is lost */
    PUT(&b, t, b.a1, {TR_OP_INSERT, 2, 11, "two", NULL, 0});
    is(&b, b.a1, 1, 10, "one");
    is(&b, b.a1, 2, 11, "two");
    assert_int_equal(look(&b, b.a1, 1).live, 2);
    bench_done(&b);
}

static void test_insert_update_delete(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "one", NULL, 0}, {TR_OP_INSERT, 2, 11, "two", NULL, 0}, {TR_OP_INSERT, 3, 12, NULL, NULL, 0},
        {TR_OP_INSERT, -4, 13, "", NULL, 0});
    PUT(&b, t, b.a1, {TR_OP_UPDATE, 1, 20, "uno", NULL, 0}, {TR_OP_DELETE, 2, 21, NULL, NULL, 0});
    is(&b, b.a1, 1, 20, "uno");
    is_gone(&b, b.a1, 2);
    assert_true(look(&b, b.a1, 3).note_null);
    assert_false(look(&b, b.a1, -4).note_null); /* an empty text is no NULL */
    PUT(&b, t, b.a1, {TR_OP_INSERT, 2, 30, "again", NULL, 0});
    is(&b, b.a1, 2, 30, "again");
    assert_int_equal(look(&b, b.a1, 2).live, 4);
    bench_done(&b);
}

static void test_within_a_batch_the_last_wins(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "a", NULL, 0}, {TR_OP_UPDATE, 1, 11, "b", NULL, 0}, {TR_OP_DELETE, 1, 12, NULL, NULL, 0},
        {TR_OP_INSERT, 1, 13, "c", NULL, 0}, {TR_OP_INSERT, 2, 14, "x", NULL, 0}, {TR_OP_DELETE, 2, 15, NULL, NULL, 0});
    is(&b, b.a1, 1, 13, "c");
    is_gone(&b, b.a1, 2);
    bench_done(&b);
}

/* The same batch again (a retry), and old rows in other batches (a replay after a crash), change nothing. */
static void test_redelivery(void **state)
{
    struct bench b;
    struct batch x;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    const struct row rows[] = {{TR_OP_INSERT, 1, 10, "one", NULL, 0}, {TR_OP_INSERT, 2, 11, "two", NULL, 0}, {TR_OP_UPDATE, 1, 12, "uno", NULL, 0}, {TR_OP_DELETE, 2, 13, NULL, NULL, 0}};
    batch_init(&x);
    add_part(&b, &x, t, b.a1, rows, 4);
    for (int i = 0; i < 3; i++) {
        write_batch(&b, &x);
        is(&b, b.a1, 1, 12, "uno");
        is_gone(&b, b.a1, 2);
    }
    batch_done(&x);
    if (can(&b, TR_CAP_MONOTONIC)) {
        PUT(&b, t, b.a1, {TR_OP_UPDATE, 1, 40, "newest", NULL, 0});
        put(&b, t, b.a1, rows + 1, 2);
        is(&b, b.a1, 1, 40, "newest");
        put(&b, t, b.a1, rows + 3, 1);
        is_gone(&b, b.a1, 2); /* a tombstone is not raised from the dead: 11 came after 13 */
    }
    bench_done(&b);
}

static void test_many_tables_in_one_batch(void **state)
{
    struct bench b;
    struct batch x;
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_MULTI)) {
        struct tr_target *ta = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0), *tb = bind_as(&b, b.b1, TR_TARGET_MIRROR, 0);
        const struct row ra[] = {{TR_OP_INSERT, 1, 10, "a", NULL, 0}}, rb[] = {{TR_OP_INSERT, 1, 11, "b", NULL, 0}, {TR_OP_INSERT, 2, 12, "bb", NULL, 0}};
        batch_init(&x);
        add_part(&b, &x, ta, b.a1, ra, 1);
        add_part(&b, &x, tb, b.b1, rb, 2);
        write_batch(&b, &x);
        batch_done(&x);
        is(&b, b.a1, 1, 10, "a");
        is(&b, b.b1, 1, 11, "b");
        is(&b, b.b1, 2, 12, "bb");
    }
    bench_done(&b);
}

static void test_a_column_is_added(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t1 = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t1, b.a1, {TR_OP_INSERT, 1, 10, "old", NULL, 0});
    struct tr_target *t2 = bind_as(&b, b.a2, TR_TARGET_MIRROR, 0);
    PUT(&b, t2, b.a2, {TR_OP_INSERT, 2, 20, "new", "more", 0});
    struct look l = look(&b, b.a2, 2);
    assert_string_equal(l.more, "more");
    is(&b, b.a2, 1, 10, "old");
    if (can(&b, TR_CAP_MULTI)) { /* both versions in one batch, in the order of their first use */
        struct batch x;
        const struct row r1[] = {{TR_OP_UPDATE, 1, 30, "first", NULL, 0}}, r2[] = {{TR_OP_UPDATE, 1, 31, "second", "m", 0}};
        batch_init(&x);
        add_part(&b, &x, t1, b.a1, r1, 1);
        add_part(&b, &x, t2, b.a2, r2, 1);
        write_batch(&b, &x);
        batch_done(&x);
        is(&b, b.a2, 1, 31, "second");
    }
    bench_done(&b);
}

static void test_unchanged_columns_stay(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_MERGE_COLUMNS) || b.writer->ops->complete) {
        struct tr_target *t = bind_as(&b, b.a2, TR_TARGET_MIRROR, 0);
        PUT(&b, t, b.a2, {TR_OP_INSERT, 1, 10, "long", "x", 0}, {TR_OP_INSERT, 2, 11, "moves", "y", 0});
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 1, 20, "=", "z", 0});
        is(&b, b.a2, 1, 20, "long");
        assert_string_equal(look(&b, b.a2, 1).more, "z");
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 1, 30, "=", "1", 0}, {TR_OP_UPDATE, 1, 31, "short", "=", 0}, {TR_OP_UPDATE, 1, 32, "=", "=", 0}); /* through a chain in one batch */
        is(&b, b.a2, 1, 32, "short");
        assert_string_equal(look(&b, b.a2, 1).more, "1");
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 3, 40, "=", "w", 2}); /* a key update carries them along; it owns versions 40 and 41 */
        is_gone(&b, b.a2, 2);
        is(&b, b.a2, 3, 41, "moves");
        assert_string_equal(look(&b, b.a2, 3).more, "w");
    }
    bench_done(&b);
}

static void test_a_key_moves(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "one", NULL, 0});
    for (int i = 0; i < 2; i++) { /* the second time it is a redelivery */
        PUT(&b, t, b.a1, {TR_OP_UPDATE, 5, 20, "five", NULL, 1});
        is_gone(&b, b.a1, 1);
        is(&b, b.a1, 5, 21, "five");
    }
    bench_done(&b);
}

/* What a key update was completed from may be another row by the time it is delivered again. */
static void test_a_key_update_again(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_MERGE_COLUMNS) || b.writer->ops->complete) {
        struct tr_target *t = bind_as(&b, b.a2, TR_TARGET_MIRROR, 0);
        PUT(&b, t, b.a2, {TR_OP_INSERT, 1, 10, "first", "x", 0});
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 2, 20, "=", "moved", 1});
        PUT(&b, t, b.a2, {TR_OP_INSERT, 1, 30, "another", "y", 0});
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 2, 20, "=", "moved", 1});
        is(&b, b.a2, 1, 30, "another");
        is(&b, b.a2, 2, 21, "first");
        PUT(&b, t, b.a2, {TR_OP_UPDATE, 3, 40, "=", "=", -2});
        is_gone(&b, b.a2, 2);
        is_gone(&b, b.a2, 3);
    }
    bench_done(&b);
}

/* Everything below its version goes, also when it comes again, and what is newer stays. */
static void test_truncate(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0), *other = can(&b, TR_CAP_MULTI) ? bind_as(&b, b.b1, TR_TARGET_MIRROR, 0) : NULL;
    if (other)
        PUT(&b, other, b.b1, {TR_OP_INSERT, 1, 9, "another table", NULL, 0});
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "old", NULL, 0}, {TR_OP_INSERT, 2, 11, "old", NULL, 0}, {TR_OP_UPDATE, 3, 12, "moved", NULL, 2});
    PUT(&b, t, b.a1, {TR_OP_TRUNCATE, 0, 20, NULL, NULL, 0}, {TR_OP_INSERT, 2, 21, "new", NULL, 0});
    for (int i = 0; i < 2; i++) {
        is_gone(&b, b.a1, 1);
        is_gone(&b, b.a1, 3);
        is(&b, b.a1, 2, 21, "new");
        PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "old", NULL, 0}, {TR_OP_TRUNCATE, 0, 20, NULL, NULL, 0});
    }
    if (other)
        is(&b, b.b1, 1, 9, "another table");
    bench_done(&b);
}

static void test_reopen(void **state)
{
    struct bench b;
    (void)state;
    if (F->keeps_nothing)
        return;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t, b.a1, {TR_OP_INSERT, 1, 10, "kept", NULL, 0}, {TR_OP_INSERT, 2, 11, "gone", NULL, 0}, {TR_OP_DELETE, 2, 12, NULL, NULL, 0});
    close_sink(&b);
    open_sink(&b, false);
    is(&b, b.a1, 1, 10, "kept");
    is_gone(&b, b.a1, 2);
    t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    PUT(&b, t, b.a1, {TR_OP_INSERT, 2, 11, "gone", NULL, 0}, {TR_OP_DELETE, 2, 12, NULL, NULL, 0}, {TR_OP_INSERT, 3, 13, "new", NULL, 0}); /* replay, then on */
    is_gone(&b, b.a1, 2);
    is(&b, b.a1, 3, 13, "new");
    bench_done(&b);
}

static void test_shadow_and_swap(void **state)
{
    struct bench b;
    struct tr_err err = {0};
    uint64_t built = 99;
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_SHADOW)) {
        struct tr_target *m = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
        PUT(&b, m, b.a1, {TR_OP_INSERT, 1, 10, "stays until the swap", NULL, 0});
        struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_SHADOW, 7);
        PUT(&b, t, b.a1, {TR_OP_READ, 2, 5, "snapshot", NULL, 0}, {TR_OP_READ, 3, 5, "snapshot", NULL, 0});
        PUT(&b, t, b.a1, {TR_OP_UPDATE, 3, 15, "newer", NULL, 0}, {TR_OP_READ, 3, 5, "snapshot", NULL, 0});
        is(&b, b.a1, 1, 10, "stays until the swap");
        assert_int_equal(look(&b, b.a1, 1).live, 1);
        for (int i = 0; i < 2; i++) /* idempotent */
            if (b.sink->ops->swap(b.sink, b.a1, 7, soon(), &err) < 0)
                fail_msg("swap: %s", err.msg);
        is_gone(&b, b.a1, 1);
        is(&b, b.a1, 2, 5, "snapshot");
        is(&b, b.a1, 3, 15, "newer");
        if (b.sink->ops->built) {
            assert_true(b.sink->ops->built(b.sink, b.a1, soon(), &built, &err) >= 0);
            assert_int_equal(built, 7);
        }
        m = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0); /* it is the mirror now, and goes on */
        PUT(&b, m, b.a1, {TR_OP_UPDATE, 2, 20, "on", NULL, 0});
        is(&b, b.a1, 2, 20, "on");
    }
    bench_done(&b);
}

/* A shadow begun under another id leaves nothing behind. */
static void test_a_shadow_begun_again(void **state)
{
    struct bench b;
    struct tr_err err = {0};
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_SHADOW) && !F->keeps_nothing) {
        struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_SHADOW, 7);
        PUT(&b, t, b.a1, {TR_OP_READ, 1, 5, "of the first attempt", NULL, 0});
        t = bind_as(&b, b.a1, TR_TARGET_SHADOW, 8);
        PUT(&b, t, b.a1, {TR_OP_READ, 2, 5, "of the second", NULL, 0});
        assert_true(b.sink->ops->swap(b.sink, b.a1, 8, soon(), &err) >= 0);
        is_gone(&b, b.a1, 1);
        is(&b, b.a1, 2, 5, "of the second");
    }
    bench_done(&b);
}

/* A crash came between a swap and our note of it: the build is made again under the same id, goes further, and its swap is no repetition. */
static void test_a_build_made_again(void **state)
{
    struct bench b;
    struct tr_err err = {0};
    (void)state;
    bench_init(&b);
    if (can(&b, TR_CAP_SHADOW) && !F->keeps_nothing) {
        struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_SHADOW, 7);
        PUT(&b, t, b.a1, {TR_OP_READ, 1, 5, "snapshot", NULL, 0});
        assert_true(b.sink->ops->swap(b.sink, b.a1, 7, soon(), &err) >= 0);
        close_sink(&b);
        open_sink(&b, false);
        t = bind_as(&b, b.a1, TR_TARGET_SHADOW, 7);
        PUT(&b, t, b.a1, {TR_OP_READ, 1, 5, "snapshot", NULL, 0}, {TR_OP_UPDATE, 1, 9, "since", NULL, 0});
        is(&b, b.a1, 1, 5, "snapshot");
        for (int i = 0; i < 2; i++)
            assert_true(b.sink->ops->swap(b.sink, b.a1, 7, soon(), &err) >= 0);
        is(&b, b.a1, 1, 9, "since");
    }
    bench_done(&b);
}

static void test_awkward_values(void **state)
{
    struct bench b;
    (void)state;
    static char big[100001];
    memset(big, 'x', sizeof big - 1);
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    static const char *const notes[] = {"it's", "\"quoted\"", "a\nb\tc\\d", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\x8a", "\\N", "NULL", "0", " spaces "};
    struct row rows[TR_ARRAY_LEN(notes) + 1];
    for (size_t i = 0; i < TR_ARRAY_LEN(notes); i++)
        rows[i] = (struct row){TR_OP_INSERT, (int64_t)i + 1, 10 + i, notes[i], NULL, 0};
    rows[TR_ARRAY_LEN(notes)] = (struct row){TR_OP_INSERT, 100, 99, big, NULL, 0};
    put(&b, t, b.a1, rows, TR_ARRAY_LEN(rows));
    for (size_t i = 0; i < TR_ARRAY_LEN(notes); i++)
        is(&b, b.a1, (int64_t)i + 1, 10 + i, notes[i]);
    assert_int_equal(look(&b, b.a1, 100).note_n, sizeof big - 1);
    bench_done(&b);
}

static void test_a_large_batch(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b);
    struct tr_target *t = bind_as(&b, b.a1, TR_TARGET_MIRROR, 0);
    struct row *rows = calloc(ROWS_MAX, sizeof *rows);
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        rows[i] = (struct row){TR_OP_INSERT, (int64_t)(i % (ROWS_MAX / 2)), 10 + i, i < ROWS_MAX / 2 ? "first" : "second", NULL, 0};
    put(&b, t, b.a1, rows, ROWS_MAX);
    free(rows);
    is(&b, b.a1, 0, 10 + ROWS_MAX / 2, "second");
    is(&b, b.a1, ROWS_MAX / 2 - 1, 10 + ROWS_MAX - 1, "second");
    assert_int_equal(look(&b, b.a1, 0).live, ROWS_MAX / 2);
    bench_done(&b);
}

int tr_sink_suite_run(const struct tr_sink_factory *f)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_and_bind),
        cmocka_unit_test(test_insert_update_delete),
        cmocka_unit_test(test_within_a_batch_the_last_wins),
        cmocka_unit_test(test_redelivery),
        cmocka_unit_test(test_many_tables_in_one_batch),
        cmocka_unit_test(test_a_column_is_added),
        cmocka_unit_test(test_unchanged_columns_stay),
        cmocka_unit_test(test_a_key_moves),
        cmocka_unit_test(test_a_key_update_again),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_reopen),
        cmocka_unit_test(test_shadow_and_swap),
        cmocka_unit_test(test_a_shadow_begun_again),
        cmocka_unit_test(test_a_build_made_again),
        cmocka_unit_test(test_awkward_values),
        cmocka_unit_test(test_a_large_batch),
    };
    F = f;
    return cmocka_run_group_tests_name(f->name, tests, NULL, NULL);
}
