/* Chains in the real engine, between the memory source and the memory sink. Also run under TSan. */
#include <tailrace/chain.h>

#include "alloc_count.h"
#include "engine_kit.h"

enum { THREADS = 2 };

/* "id:note", borrowed. */
struct event {
    struct tr_slice id, note;
};

struct user {
    _Atomic uint64_t decoded, seen;
};

TR_EMITTER(events, struct event);
TR_EMITTER(copies, struct event);
TR_EMITTER(plain, struct event);

static inline int split_payload(struct user *u, const struct tr_payload *p, struct event *ret, struct tr_err *err)
{
    atomic_fetch_add_explicit(&u->decoded, 1, memory_order_relaxed);
    const uint8_t *colon = p->value.n ? memchr(p->value.p, ':', p->value.n) : NULL;
    if (!colon)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "no colon");
    size_t n = (size_t)(colon - p->value.p);
    *ret = (struct event){tr_slice_sub(p->value, 0, n), tr_slice_sub(p->value, n + 1, p->value.n)};
    return TR_OK;
}

static inline int decode(struct user *u, const struct tr_payload *p, struct events_emitter *out, struct tr_err *err)
{
    struct event e = {0};
    int rc = split_payload(u, p, &e, err);
    return rc < 0 ? rc : events_emit(out, &e);
}

static inline int decode_plain(struct user *u, const struct tr_payload *p, struct plain_emitter *out, struct tr_err *err)
{
    struct event e = {0};
    int rc = split_payload(u, p, &e, err);
    return rc < 0 ? rc : plain_emit(out, &e);
}

static inline bool wanted(struct user *u, const struct event *e)
{
    (void)u;
    return !tr_slice_eq_str(e->note, "no");
}

/* Once more with its key doubled. */
static inline int copy(struct user *u, const struct event *e, struct copies_emitter *out, struct tr_err *err)
{
    char doubled[32];
    (void)u;
    (void)err;
    int rc = copies_emit(out, e);
    if (rc < 0)
        return rc;
    int n = snprintf(doubled, sizeof doubled, "%" TR_SLICE_FMT "%" TR_SLICE_FMT, TR_SLICE_ARG(e->id), TR_SLICE_ARG(e->id));
    return copies_emit(out, &(struct event){tr_slice_of(doubled, (size_t)n), e->note}); /* on the stack: rows are taken at once */
}

static inline struct tr_slice id_of(struct user *u, const struct event *e)
{
    (void)u;
    return e->id;
}

static inline void see(struct user *u, const struct event *e)
{
    (void)e;
    atomic_fetch_add_explicit(&u->seen, 1, memory_order_relaxed);
}

static inline int row(struct user *u, const struct event *e, struct tr_chain_row *ret, struct tr_err *err)
{
    (void)u;
    (void)err;
    ret->change.version = 7;
    tr_chain_row_text(ret, 0, e->id);
    tr_chain_row_text(ret, 1, e->note);
    return TR_OK;
}

/* The memory sink's format (memory.h), written by hand: what `row` comes to. */
static inline int bytes(struct user *u, const struct event *e, struct tr_buf *out, struct tr_err *err)
{
    uint32_t key = (uint32_t)e->id.n + 1, n = (uint32_t)(1 + 2 + 8 + 4 + key + 4 + 2 + 1 + e->id.n + 2 + e->note.n);
    (void)u;
    (void)err;
    if (tr_buf_reserve(out, n + 4 + 8) < 0)
        return TR_NOMEM;
    size_t at = out->n;
    tr_buf_put_u32le(out, 0);
    tr_buf_put_u8(out, TR_OP_INSERT);
    tr_buf_put_u16le(out, 0);
    tr_buf_put_u64le(out, 7);
    tr_buf_put_u32le(out, key); /* codec/key.h, of one short column */
    tr_buf_put_varint(out, e->id.n);
    tr_buf_put(out, e->id.p, e->id.n);
    tr_buf_put_u32le(out, 0);
    tr_buf_put_varint(out, 2);
    tr_buf_put_u8(out, TR_PRESENT | TR_PRESENT << 2);
    tr_buf_put_varint(out, e->id.n);
    tr_buf_put(out, e->id.p, e->id.n);
    tr_buf_put_varint(out, e->note.n);
    tr_buf_put(out, e->note.p, e->note.n);
    n = htole32((uint32_t)(out->n - at - 4));
    memcpy(out->p + at, &n, 4);
    return TR_OK;
}

TR_CHAIN(both, struct user, TR_DECODE(decode, events), TR_FILTER(wanted), TR_FLAT_MAP(copy, copies), TR_KEY(id_of), TR_INSPECT(see), TR_TO(TR_ROWS(row), TR_ENCODED(bytes)));
TR_CHAIN(inlined, struct user, TR_FAIL(TR_DECODE(decode_plain, plain)), TR_KEY(id_of), TR_INSPECT(see), TR_SKIP(TR_TO(TR_ENCODED(bytes))));

struct rig {
    struct kit k;
    struct user users[THREADS];
    struct tr_chain_counters counters; /* of both threads */
    bool inlined_only, transactions;
};

static int chain_new(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n, const struct tr_chain_ops **ret_ops, void **ret, struct tr_err *err)
{
    struct rig *r = arg;
    struct tr_schema *const schemas[] = {r->k.schema[0], r->k.schema[0]};
    struct tr_chain_def d = {.outs = outs, .n_outs = n, .schemas = schemas, .source_transactions = r->transactions, .counters = &r->counters};
    return (r->inlined_only ? inlined_new : both_new)(&d, &r->users[thread], ret_ops, ret, err);
}

static void rig_init(struct rig *r, uint32_t n_sinks, const struct tr_mem_sink_def *defs)
{
    memset(r, 0, sizeof *r);
    kit_init(&r->k, n_sinks, defs);
    r->k.def.chain_new = chain_new;
    r->inlined_only = n_sinks == 1;
}

static void event(struct rig *r, uint32_t lane, int64_t pos, const char *note)
{
    char text[64];
    snprintf(text, sizeof text, "%lld:%s", (long long)pos, note);
    assert_int_equal(tr_mem_push(r->k.src, lane, pos, tr_slice_str(text), tr_slice_str(text), 0), TR_OK);
}

static uint64_t sum_of(struct rig *r, bool seen)
{
    uint64_t n = 0;
    for (int i = 0; i < THREADS; i++)
        n += atomic_load(seen ? &r->users[i].seen : &r->users[i].decoded);
    return n;
}

static uint64_t rows_of(struct rig *r, uint32_t sink)
{
    struct tr_mem_sink_stats s;
    tr_mem_sink_stats(r->k.sink[sink], &s);
    return s.rows;
}

static void add_row(void *arg, const struct tr_mem_row *m)
{
    uint64_t h = 14695981039346656037u;
    assert_int_equal(m->op, TR_OP_INSERT);
    assert_int_equal(m->row.n, 2);
    assert_int_equal(m->key.p[0], m->row.v[0].n); /* codec/key.h, of one column */
    assert_true(tr_slice_eq(tr_slice_sub(m->key, 1, m->key.n), m->row.v[0]));
    assert_int_equal(m->version, 7);
    for (uint32_t i = 0; i < m->row.n; i++)
        for (size_t k = 0; k < m->row.v[i].n; k++)
            h = (h ^ m->row.v[i].p[k]) * 1099511628211u;
    *(uint64_t *)arg += h; /* order is a shard's */
}

struct spread {
    uint64_t rows[2];
};

static void note_shard(void *arg, const struct tr_mem_batch *b)
{
    ((struct spread *)arg)->rows[b->shard] += b->rows;
}

/* The same rows by the sink's own encoder and by the chain's, over two shards and two threads, from two lanes. */
static void test_rows_and_encoded_rows_are_the_same(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d[2] = {{.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2}, {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2}};
    uint64_t sums[2] = {0};
    (void)state;
    rig_init(&r, 2, d);
    r.k.def.tuning.threads = THREADS;
    kit_start(&r.k);
    for (uint32_t lane = 0; lane < 2; lane++) {
        for (int64_t i = 1; i <= 500; i++)
            event(&r, lane, i, i % 5 == 0 ? "no" : "yes");
        tr_mem_push(r.k.src, lane, 501, tr_slice_str("k"), tr_slice_str("a payload that is bad"), 0);
        assert_int_equal(tr_mem_assign(r.k.src, lane, 1, 0), TR_OK);
    }
    KIT_UNTIL(tr_mem_committed(r.k.src, 0) == 501 && tr_mem_committed(r.k.src, 1) == 501); /* filtered and skipped ones count as delivered */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(rows_of(&r, i), 2 * 2 * 400);
        tr_mem_each_row(r.k.sink[i], add_row, &sums[i]);
    }
    assert_int_equal(sums[0], sums[1]);
    struct spread spread[2] = {0};
    for (uint32_t i = 0; i < 2; i++) {
        tr_mem_each_batch(r.k.sink[i], note_shard, &spread[i]);
        assert_true(spread[i].rows[0] > 100 && spread[i].rows[1] > 100);
    }
    assert_int_equal(sum_of(&r, false), 2 * 501);
    assert_int_equal(sum_of(&r, true), 2 * 2 * 400);
    kit_stop(&r.k);
    struct tr_stage_stats all[6];
    assert_int_equal(tr_chain_stats(&r.counters, all, 6), 6);
    assert_int_equal(all[0].in, 1002);
    assert_int_equal(all[0].skipped, 2);
    assert_int_equal(all[1].out, 800);
    assert_int_equal(all[2].out, 1600);
    assert_int_equal(all[5].out, 3200);
    kit_end(&r.k);
}

/* A sink that stands still blocks the lane; what was decoded is never decoded again. */
static void test_back_pressure_repeats_nothing(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d[2] = {{.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true}, {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true}};
    char note[1024];
    (void)state;
    rig_init(&r, 2, d);
    memset(note, 'n', sizeof note);
    r.k.def.tuning.max_inflight_bytes = 1 << 20;
    for (uint32_t i = 0; i < 2; i++) {
        r.k.def_sink[i].tuning.chunk_bytes = 16 << 10;
        r.k.def_sink[i].tuning.batch_bytes_max = 64 << 10;
        r.k.def_sink[i].tuning.record_bytes_max = 1 << 20;
        tr_mem_hold(r.k.sink[i], true);
    }
    kit_start(&r.k);
    for (int64_t i = 1; i <= 3000; i++) {
        int n = snprintf(note, 32, "%lld:", (long long)i);
        note[n] = 'n';
        assert_int_equal(tr_mem_push(r.k.src, 0, i, tr_slice_of(note, (size_t)n), tr_slice_of(note, sizeof note), 0), TR_OK);
    }
    assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
    for (int round = 0; round < 3; round++) {
        KIT_UNTIL(tr_mem_lane_paused(r.k.src, 0) || sum_of(&r, false) == 3000);
        if (round == 0)
            assert_true(sum_of(&r, false) < 3000);
        for (uint32_t i = 0; i < 2; i++)
            tr_mem_hold(r.k.sink[i], false);
        tr_sleep_ns(2 * MS);
        for (uint32_t i = 0; i < 2; i++)
            tr_mem_hold(r.k.sink[i], round < 2);
    }
    KIT_UNTIL(tr_mem_committed(r.k.src, 0) == 3000);
    assert_int_equal(sum_of(&r, false), 3000);
    assert_int_equal(sum_of(&r, true), 6000);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rows_of(&r, i), 6000);
    kit_stop(&r.k);
    kit_end(&r.k);
}

static void test_a_failing_stage_fails_the_pipeline(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
    (void)state;
    rig_init(&r, 1, &d);
    kit_start(&r.k);
    tr_mem_poll_max(r.k.src, 0, 2);
    event(&r, 0, 1, "yes");
    event(&r, 0, 2, "yes");
    event(&r, 0, 3, "yes");
    tr_mem_push(r.k.src, 0, 4, tr_slice_str("k"), tr_slice_str("bad"), 0);
    event(&r, 0, 5, "yes");
    assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
    assert_true(tr_runtime_join(r.k.p, tr_now_ns() + 10 * SEC));
    struct tr_runtime_status s = kit_status(&r.k);
    assert_int_equal(s.state, TR_RT_FAILED);
    assert_int_equal(s.error.rc, TR_FATAL);
    assert_string_equal(s.error.msg, "chain inlined, stage 0 (decode decode_plain), position 4: no colon");
    assert_true(tr_mem_committed(r.k.src, 0) <= 2);
    assert_int_equal(sum_of(&r, true), 3);
    kit_end(&r.k);
}

static void test_encoded_rows_need_a_row_by_row_sink(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .columnar = true};
    (void)state;
    rig_init(&r, 1, &d);
    kit_start(&r.k);
    event(&r, 0, 1, "yes");
    assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
    assert_true(tr_runtime_join(r.k.p, tr_now_ns() + 10 * SEC));
    assert_non_null(strstr(kit_status(&r.k).error.msg, "sink a writes blocks of columns"));
    assert_int_equal(rows_of(&r, 0), 0);
    kit_end(&r.k);
}

/* The row that is too large is skipped, and nothing of it is left in the chunk that the others are in. */
static void test_an_encoded_row_that_is_too_large(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
    char big[8192];
    (void)state;
    rig_init(&r, 1, &d);
    r.k.def_sink[0].tuning.record_bytes_max = 4096;
    kit_start(&r.k);
    memset(big, 'b', sizeof big);
    memcpy(big, "1:", 2);
    tr_mem_push(r.k.src, 0, 1, tr_slice_str("k"), tr_slice_of(big, sizeof big), 0); /* first in its chunk */
    event(&r, 0, 2, "yes");
    memcpy(big, "3:", 2);
    tr_mem_push(r.k.src, 0, 3, tr_slice_str("k"), tr_slice_of(big, sizeof big), 0);
    event(&r, 0, 4, "yes");
    assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(tr_mem_committed(r.k.src, 0) == 4);
    assert_int_equal(rows_of(&r, 0), 2);
    kit_stop(&r.k);
    struct tr_stage_stats v[4];
    assert_int_equal(tr_chain_stats(&r.counters, v, 4), 4);
    assert_int_equal(v[3].skipped, 2);
    kit_end(&r.k);
}

struct shape {
    uint32_t batches, ends;
    uint64_t rows;
};

static void note_batch(void *arg, const struct tr_mem_batch *b)
{
    struct shape *s = arg;
    s->batches++;
    s->ends += b->tx_end;
    s->rows += b->rows;
}

/* A sink that seals at transaction ends gets them: the source's, or, from one that knows none, those of the pushes. */
static void test_boundaries(void **state)
{
    (void)state;
    for (int transactions = 0; transactions < 2; transactions++) {
        struct rig r;
        struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_BOUNDARY};
        struct shape s = {0};
        rig_init(&r, 1, &d);
        r.transactions = transactions;
        kit_start(&r.k);
        for (int64_t i = 1; i <= 10; i++)
            event(&r, 0, i, "yes");
        if (transactions)
            tr_mem_push_tx_end(r.k.src, 0, 11);
        event(&r, 0, 12, "yes");
        assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
        KIT_UNTIL(sum_of(&r, true) == 11);
        if (!transactions)
            KIT_UNTIL(tr_mem_committed(r.k.src, 0) == 12);
        kit_stop(&r.k);
        tr_mem_each_batch(r.k.sink[0], note_batch, &s);
        assert_int_equal(s.rows, transactions ? 10 : 11); /* the last one's transaction never ended: it is not applied */
        assert_int_equal(s.ends, s.batches);
        kit_end(&r.k);
    }
}

/* Polls, chunks and batches cost allocations; records do not: far fewer than one each. */
static void test_allocations_do_not_grow_with_records(void **state)
{
    struct rig r;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true};
    (void)state;
    rig_init(&r, 1, &d);
    kit_start(&r.k);
    for (int64_t i = 1; i <= 20000; i++)
        event(&r, 0, i, "yes");
    uint64_t before = alloc_count();
    assert_int_equal(tr_mem_assign(r.k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(rows_of(&r, 0) == 20000);
    assert_in_range(alloc_count() - before, 1, 2000);
    kit_stop(&r.k);
    kit_end(&r.k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_encoded_rows_are_the_same),
        cmocka_unit_test(test_back_pressure_repeats_nothing),
        cmocka_unit_test(test_a_failing_stage_fails_the_pipeline),
        cmocka_unit_test(test_encoded_rows_need_a_row_by_row_sink),
        cmocka_unit_test(test_an_encoded_row_that_is_too_large),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_allocations_do_not_grow_with_records),
    };
    return cmocka_run_group_tests_name("chain_pipeline", tests, NULL, NULL);
}
