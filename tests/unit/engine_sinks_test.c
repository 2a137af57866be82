/* The runtime over the memory sink: what writes and binds can come to, boundaries, shapes of writers. Also run under TSan. */
#include "engine.h"
#include "engine_kit.h"
#include "hash.h"

static const struct tr_mem_sink_def plain = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
static const struct tr_mem_sink_def boundary = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_BOUNDARY};

static void assign(struct kit *k)
{
    assert_int_equal(tr_mem_assign(k->src, 0, 1, 0), TR_OK);
}

static void wait_rows(struct kit *k, uint64_t n)
{
    if (!tr_mem_wait_rows(k->sink[0], n, tr_now_ns() + 10 * SEC)) {
        struct tr_runtime_status s = kit_status(k);
        fail_msg("only %llu rows of %llu; %s", (unsigned long long)s.rows_out, (unsigned long long)n, s.error.msg);
    }
}

static struct tr_mem_sink_stats stats(struct kit *k)
{
    struct tr_mem_sink_stats s;
    tr_mem_sink_stats(k->sink[0], &s);
    return s;
}

struct list {
    struct tr_mem_batch v[256];
    uint32_t n;
};

static void note_batch(void *arg, const struct tr_mem_batch *b)
{
    struct list *l = arg;
    if (l->n < 256)
        l->v[l->n++] = *b;
}

/* A retry is the same batch: same rows, same token, so the peer can tell. */
static void test_a_retry_is_the_same_bytes(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_TOKEN};
    (void)state;
    kit_init(&k, 1, &d);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_RETRY, .apply = true});
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_RETRY, .apply = true});
    kit_start(&k);
    for (int64_t i = 1; i <= 20; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 20);
    assert_int_equal(stats(&k).rows, 20);
    assert_int_equal(stats(&k).duplicates, 2);
    assert_int_equal(kit_status(&k).retries, 2);
    kit_stop(&k);
    kit_end(&k);
}

/* Three tables are bound, and a write is under way: what comes now becomes one batch. */
static void busy(struct kit *k)
{
    for (uint32_t t = 1; t <= 3; t++)
        kit_row(k, 0, t, t, 1, "x");
    assign(k);
    wait_rows(k, 3);
    KIT_UNTIL(kit_status(k).rows_out == 3);
    uint64_t writes = stats(k).writes;
    tr_mem_hold(k->sink[0], true);
    kit_row(k, 0, 4, 1, 2, "x");
    KIT_UNTIL(stats(k).writes == writes + 1);
}

static void test_a_refused_part_is_dropped(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    busy(&k);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_REJECT, .part = 1});
    kit_row(&k, 0, 5, 1, 1, "x");
    kit_row(&k, 0, 6, 2, 1, "y");
    kit_row(&k, 0, 7, 3, 1, "z");
    kit_row(&k, 0, 8, 2, 2, "y");
    KIT_UNTIL(kit_status(&k).records_in == 8);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 8);
    assert_int_equal(k.rejected, 1);
    assert_int_equal(k.reject_first, 6);
    assert_int_equal(stats(&k).rows, 6);
    assert_int_equal(kit_status(&k).rejects, 1);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
    kit_end(&k);
}

/* A later row that went in would keep an earlier one of its key out: so nothing does until the chain has let go of the table. */
static void test_what_follows_a_refused_part_is_refused(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    busy(&k);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_REJECT, .part = 1});
    kit_row(&k, 0, 5, 1, 1, "x");
    kit_row(&k, 0, 6, 2, 1, "y");
    KIT_UNTIL(kit_status(&k).records_in == 6);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(k.rejected == 1 && tr_mem_committed(k.src, 0) == 6);
    assert_int_equal(stats(&k).rows, 5);
    kit_row(&k, 0, 7, 2, 2, "y"); /* the sink would take it */
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 7);
    kit_row(&k, 0, 8, 3, 2, "z");
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 8);
    assert_int_equal(k.rejected, 2);
    assert_int_equal(stats(&k).rows, 6);
    assert_true(k.p->sinks[0].any_refusal);
    atomic_store(&k.unbind, 2);
    kit_row(&k, 0, 9, 2, 1, "y");
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 9);
    assert_int_equal(k.rejected, 2);
    assert_int_equal(stats(&k).rows, 7);
    assert_false(k.p->sinks[0].any_refusal); /* nothing from before is left */
    kit_stop(&k);
    kit_end(&k);
}

static void test_a_batch_of_nothing_but_the_refused_part(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_REJECT});
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1);
    assert_int_equal(stats(&k).rows, 0);
    assert_int_equal(kit_status(&k).error.rc, TR_OK); /* the sink is well: it is that table's trouble */
    kit_stop(&k);
    kit_end(&k);
}

static void fails_with(int rc, enum tr_reject_answer answer)
{
    struct kit k;
    kit_init(&k, 1, &plain);
    k.reject_answer = answer;
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = rc});
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assign(&k);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).state, TR_RT_FAILED);
    assert_int_equal(kit_status(&k).error.rc, rc);
    assert_true(tr_mem_committed(k.src, 0) == INT64_MIN);
    kit_end(&k);
}

static void test_what_fails_the_pipeline(void **state)
{
    (void)state;
    fails_with(TR_FATAL, TR_REJECT_DROP);
    fails_with(TR_FENCED, TR_REJECT_DROP);
    fails_with(TR_REJECT, TR_REJECT_FAIL);
}

/* Bound again, it is stale again: what is missing is not the target. The table is refused, and the sink goes on. */
static void test_stale_for_ever_is_refused(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    busy(&k);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_STALE, .part = 1, .times = 4});
    kit_row(&k, 0, 5, 1, 1, "x");
    kit_row(&k, 0, 6, 2, 1, "y");
    KIT_UNTIL(kit_status(&k).records_in == 6);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(k.rejected == 1 && tr_mem_committed(k.src, 0) == 6);
    assert_int_equal(k.reject_first, 6);
    assert_int_equal(stats(&k).rows, 5);
    kit_stop(&k);
    kit_end(&k);
}

/* A sink that does not answer the question for the target has not said that the target is as it should be. */
static void test_stale_waits_for_a_sink_that_is_away(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    busy(&k);
    kit_row(&k, 0, 5, 1, 1, "x");
    kit_row(&k, 0, 6, 2, 1, "y");
    KIT_UNTIL(kit_status(&k).records_in == 6);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_STALE, .part = 1, .times = 6});
    tr_mem_script_bind(k.sink[0], TR_RETRY, "the peer is away", 5);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 6);
    assert_int_equal(k.rejected, 0);
    assert_int_equal(stats(&k).rows, 6);
    kit_stop(&k);
    kit_end(&k);
}

static void test_stale_binds_again(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = TR_STALE, .times = 2});
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    kit_row(&k, 0, 2, 2, 1, "x");
    assign(&k);
    wait_rows(&k, 2);
    assert_true(stats(&k).binds >= 4);
    kit_stop(&k);
    kit_end(&k);
}

static void test_binds_are_tried_again_and_refusals_remembered(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    tr_mem_script_bind(k.sink[0], TR_RETRY, "the peer is away", 4);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assign(&k);
    wait_rows(&k, 1);
    assert_int_equal(stats(&k).binds, 5);
    KIT_UNTIL(kit_status(&k).error.rc == 0);
    kit_stop(&k);
    kit_end(&k);

    kit_init(&k, 1, &plain); /* this chain does not skip tables: the refusal reaches it and fails the push */
    tr_mem_script_bind(k.sink[0], TR_REJECT, "column note cannot be held", 1);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assign(&k);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).error.rc, TR_REJECT);
    assert_string_equal(kit_status(&k).error.msg, "column note cannot be held");
    kit_end(&k);
}

/* ---- boundaries ---- */

static void test_batches_end_at_transaction_ends(void **state)
{
    struct kit k;
    static struct list l;
    int64_t pos = 0;
    (void)state;
    memset(&l, 0, sizeof l);
    kit_init(&k, 1, &boundary);
    k.def_sink[0].tuning.batch_rows_max = 40;
    k.def_sink[0].tuning.chunk_bytes = 256; /* chunks fill up inside transactions */
    k.def.tuning.poll_max = 17;
    kit_start(&k);
    for (int tx = 1; tx <= 100; tx++) {
        for (int r = 0; r < 1 + tx % 13; r++)
            kit_row(&k, 0, ++pos, 1 + (uint32_t)(r % 3), r, "some text to fill chunks with");
        tr_mem_push_tx_end(k.src, 0, ++pos);
    }
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == pos);
    kit_stop(&k);
    tr_mem_each_batch(k.sink[0], note_batch, &l);
    assert_true(l.n > 1);
    /* positions of transaction ends, made again */
    int64_t end = 0;
    uint32_t b = 0;
    for (int tx = 1; tx <= 100; tx++) {
        end += 1 + tx % 13;
        if (b < l.n && l.v[b].span.last == end) {
            assert_true(l.v[b].tx_end);
            b++;
        }
        end++;
    }
    assert_int_equal(b, l.n); /* each batch's last position is a transaction's last row */
    kit_end(&k);
}

static void test_final_fails_the_open_transaction(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &boundary);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    kit_start(&k);
    tr_mem_hold(k.sink[0], true);
    kit_row(&k, 0, 1, 1, 1, "x"); /* a first transaction keeps the shard busy, so that the rest stands open */
    tr_mem_push_tx_end(k.src, 0, 2);
    tr_mem_poll_max(k.src, 0, 2);
    assign(&k);
    KIT_UNTIL(stats(&k).writes == 1);
    kit_row(&k, 0, 3, 1, 2, "x");
    tr_mem_push_tx_end(k.src, 0, 4);
    kit_row(&k, 0, 5, 1, 3, "half");
    kit_row(&k, 0, 6, 2, 3, "half");
    KIT_UNTIL(kit_status(&k).records_in == 6);
    tr_mem_hold(k.sink[0], false);
    kit_stop(&k);
    assert_int_equal(stats(&k).rows, 2);
    assert_in_range(tr_mem_committed(k.src, 0), 3, 4); /* 3 when the poll that brought the end of the transaction brought a half row too */
    assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
    kit_end(&k);
}

static void test_a_huge_transaction_goes_in_parts(void **state)
{
    struct kit k;
    static struct list l;
    static char text[1001];
    (void)state;
    memset(&l, 0, sizeof l);
    memset(text, 'x', sizeof text - 1);
    kit_init(&k, 1, &boundary);
    k.def.tuning.max_inflight_bytes = 1 << 20;
    k.def_sink[0].tuning.record_bytes_max = 1 << 20;
    k.def_sink[0].tuning.chunk_bytes = 32 << 10;
    kit_start(&k);
    for (int64_t i = 1; i <= 4000; i++) /* 4 MiB */
        kit_row(&k, 0, i, 1 + (uint32_t)(i % 3), i, text);
    tr_mem_push_tx_end(k.src, 0, 4001);
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 4001);
    kit_stop(&k);
    assert_int_equal(stats(&k).rows, 4000);
    tr_mem_each_batch(k.sink[0], note_batch, &l);
    assert_true(l.n >= 4);
    assert_false(l.v[0].tx_end);
    assert_true(l.v[l.n - 1].tx_end);
    kit_end(&k);
}

/* ---- parts and schema versions ---- */

struct order {
    uint64_t last;
    uint64_t backward;
};

static void check_order(void *arg, const struct tr_mem_row *r)
{
    struct order *o = arg;
    o->backward += r->version < o->last;
    o->last = r->version;
}

/* A table that changes to another definition and back is a part for each stretch: rows of a key never change places. */
static void test_versions_become_parts_in_order(void **state)
{
    struct kit k;
    static struct list l;
    struct order o = {0};
    (void)state;
    memset(&l, 0, sizeof l);
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    tr_schema_unref(k.schema[3]);
    k.schema[3] = kit_schema(1, 2); /* table 1 again */
    kit_start(&k);
    busy(&k);
    kit_row(&k, 0, 5, 1, 1, "v1");
    kit_row(&k, 0, 6, 4, 1, "v2");
    kit_row(&k, 0, 7, 4, 2, "v2");
    kit_row(&k, 0, 8, 1, 1, "v1");
    kit_row(&k, 0, 9, 2, 2, "other");
    KIT_UNTIL(kit_status(&k).records_in == 9);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 9);
    kit_stop(&k);
    tr_mem_each_batch(k.sink[0], note_batch, &l);
    assert_int_equal(l.v[l.n - 1].rows, 5);
    assert_int_equal(l.v[l.n - 1].n_parts, 4);
    tr_mem_each_row(k.sink[0], check_order, &o);
    assert_int_equal(o.backward, 0);
    kit_end(&k);
}

static void only_one_table(void *arg, const struct tr_mem_batch *b)
{
    (void)arg;
    assert_int_equal(b->n_parts, 1);
}

static void test_without_multi_a_batch_has_one_part(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MONOTONIC, .shards = 2};
    (void)state;
    kit_init(&k, 1, &d);
    kit_start(&k);
    for (int64_t i = 1; i <= 300; i++)
        kit_row(&k, 0, i, 1 + (uint32_t)(i % 3), i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 300);
    kit_stop(&k);
    tr_mem_each_batch(k.sink[0], only_one_table, NULL);
    kit_end(&k);
}

/* At once after a pause, and with a pace no more often than that. */
static void test_idle_rows_keep_the_pace(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    k.def_sink[0].tuning.pace_ns = 300 * MS;
    kit_start(&k);
    assign(&k);
    int64_t start = tr_now_ns();
    for (int64_t i = 1; i <= 50; i++) {
        kit_row(&k, 0, i, 1, i, "x");
        tr_sleep_ns(2 * MS);
    }
    wait_rows(&k, 50);
    uint64_t rounds = (uint64_t)((tr_now_ns() - start) / (300 * MS));
    assert_true(stats(&k).batches >= 2 && stats(&k).batches <= 2 + rounds);
    kit_stop(&k);
    kit_end(&k);
}

static void test_an_idle_row_is_written_at_once(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    k.def.tuning.commit_eagerly = true;
    kit_start(&k);
    assign(&k);
    for (int64_t i = 1; i <= 50; i++) {
        kit_row(&k, 0, i, 1, i, "x");
        KIT_UNTIL(tr_mem_committed(k.src, 0) == i);
    }
    kit_stop(&k);
    kit_end(&k);
}

static void test_linger_is_kept_while_rows_keep_coming(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true, .endpoints = 1};
    (void)state;
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.linger_ns = 20 * MS;
    tr_mem_generate(k.src, 0, UINT64_MAX / 4, 10, 0);
    tr_mem_poll_max(k.src, 0, 1);
    kit_start(&k);
    assign(&k);
    wait_rows(&k, 1000);
    k.p = tr_runtime_free(k.p);
    kit_end(&k);
}

static void test_a_row_too_large_is_refused_by_name(void **state)
{
    struct kit k;
    static char text[5001];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.record_bytes_max = 4096;
    kit_start(&k);
    kit_row(&k, 0, 1, 2, 1, text);
    assign(&k);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).error.rc, TR_REJECT);
    assert_non_null(strstr(kit_status(&k).error.msg, "public.t2"));
    assert_non_null(strstr(kit_status(&k).error.msg, "column note"));
    kit_end(&k);
}

/* ---- shards ---- */

struct shards {
    struct tr_mem_batch *batches;
    uint32_t n, truncates[2], misplaced, dead, alive;
    uint64_t now_version, old_version;
};

static uint32_t shard_of_key(struct tr_slice key)
{
    return (uint32_t)(tr_hash64(key.p, key.n) % 2);
}

static void keep_batch(void *arg, const struct tr_mem_batch *b)
{
    struct shards *s = arg;
    s->batches = tr_realloc(s->batches, (s->n + 1) * sizeof *s->batches);
    assert_non_null(s->batches);
    s->batches[s->n++] = *b;
}

static void place_row(void *arg, const struct tr_mem_row *r)
{
    struct shards *s = arg;
    uint32_t shard = s->batches[r->batch].shard;
    s->truncates[shard] += r->op == TR_OP_TRUNCATE;
    if (r->op == TR_OP_TRUNCATE)
        return;
    s->misplaced += shard_of_key(r->key) != shard || ((r->flags & TR_CHG_MOVED) && shard_of_key(r->old_key) != shard);
}

static void count_row(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    struct shards *s = arg;
    (void)row;
    s->dead += deleted;
    s->alive += !deleted;
    if (tr_slice_eq(key, tr_slice_str("1")))
        s->old_version = deleted ? version : 0;
    if (!deleted && version > s->now_version)
        s->now_version = version;
}

/* Key `from` becomes the first one from `to` on that is, or is not, of the same shard. */
static void move_key(struct kit *k, int64_t pos, const char *from, int64_t to, bool same, bool unchanged)
{
    char id[24];
    uint8_t state[2] = {TR_PRESENT, unchanged ? TR_UNCHANGED : TR_PRESENT};
    do
        snprintf(id, sizeof id, "%lld", (long long)to++);
    while ((shard_of_key(tr_slice_str(id)) == shard_of_key(tr_slice_str(from))) != same);
    struct tr_slice v[2] = {tr_slice_str(id), tr_slice_str("moved")};
    struct tr_change c = {.op = TR_OP_UPDATE, .flags = (uint16_t)(TR_CHG_MOVED | (unchanged ? TR_CHG_UNCHANGED : 0)), .schema = k->schema[0], .version = (uint64_t)pos, .key = v[0],
                          .old_key = tr_slice_str(from), .after = {v, state, 2}};
    assert_int_equal(tr_mem_push_row(k->src, 0, pos, &c), TR_OK);
}

static void test_rows_go_to_the_shards_of_their_keys(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2};
    struct shards s = {0};
    (void)state;
    kit_init(&k, 1, &d);
    kit_start(&k);
    assign(&k);
    for (int64_t i = 1; i <= 20; i++)
        kit_row(&k, 0, i, 1, 1000 + i, "x");
    kit_row_op(&k, 0, 21, TR_OP_TRUNCATE, 1, 0, NULL, 0);
    kit_row(&k, 0, 22, 1, 1, "x");
    kit_row(&k, 0, 23, 1, 2, "x");
    move_key(&k, 24, "2", 100, true, true);
    move_key(&k, 26, "1", 200, false, false);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 26);
    kit_stop(&k);
    tr_mem_each_batch(k.sink[0], keep_batch, &s);
    tr_mem_each_row(k.sink[0], place_row, &s);
    tr_mem_read_back(k.sink[0], 1, TR_TARGET_MIRROR, count_row, &s);
    assert_int_equal(s.truncates[0], 1);
    assert_int_equal(s.truncates[1], 1);
    assert_int_equal(s.misplaced, 0);
    assert_int_equal(s.alive, 2);
    assert_int_equal(s.old_version, 26);
    assert_int_equal(s.now_version, 27);
    tr_free(s.batches);
    kit_end(&k);
}

static void test_a_row_that_another_shard_knows_is_refused_by_name(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2};
    (void)state;
    kit_init(&k, 1, &d);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    move_key(&k, 2, "1", 200, false, true);
    assign(&k);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).error.rc, TR_REJECT);
    assert_non_null(strstr(kit_status(&k).error.msg, "table public.t1"));
    assert_non_null(strstr(kit_status(&k).error.msg, "column note"));
    assert_non_null(strstr(kit_status(&k).error.msg, "REPLICA IDENTITY FULL"));
    kit_end(&k);
}

static void note_endpoints(void *arg, const struct tr_mem_batch *b)
{
    uint32_t *seen = arg;
    seen[b->shard] |= 1u << b->endpoint;
}

/* Shards need not have equally many endpoints. */
static void test_each_shard_has_its_endpoints(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2, .endpoints = 2};
    const uint32_t endpoints[2] = {1, 2};
    uint32_t seen[2] = {0};
    struct tr_err err = {0};
    (void)state;
    kit_init(&k, 1, &d);
    tr_mem_sink_spi(k.sink[0])->shard_endpoints = (const uint32_t[]){1, 3};
    assert_int_equal(tr_runtime_new(&k.def, &k.p, k.warning, sizeof k.warning, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "shard 1 has 3 endpoints"));
    tr_mem_sink_spi(k.sink[0])->shard_endpoints = endpoints;
    k.def.tuning.commit_eagerly = true;
    kit_start(&k);
    assign(&k);
    for (int64_t i = 1; i <= 60; i++) {
        kit_row(&k, 0, i, 1, i, "x");
        KIT_UNTIL(tr_mem_committed(k.src, 0) == i);
    }
    kit_stop(&k);
    tr_mem_each_batch(k.sink[0], note_endpoints, seen);
    assert_int_equal(seen[0], 1);
    assert_int_equal(seen[1], 3);
    kit_end(&k);
}

/* ---- shapes ---- */

static void test_columnar_encoders(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .columnar = true};
    (void)state;
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.chunk_bytes = 1000;
    kit_start(&k);
    for (int64_t i = 1; i <= 500; i++)
        kit_row(&k, 0, i, 1 + (uint32_t)(i % 3), i, "text");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 500);
    assert_int_equal(stats(&k).rows, 500);
    kit_stop(&k);
    kit_end(&k);
}

static void pipelined(uint32_t caps, bool refuse)
{
    struct kit k;
    struct order o = {0};
    struct tr_mem_sink_def d = {.caps = caps | TR_CAP_PIPELINED | TR_CAP_ORDERED, .window = 3, .write_ns = MS / 2};
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.inflight = 8;
    k.def_sink[0].tuning.batch_rows_max = 20;
    for (int i = 0; i < 60; i++)
        tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = refuse && i == 20 ? TR_REJECT : i % 7 == 3 ? TR_RETRY : TR_OK, .apply = i % 2});
    kit_start(&k);
    for (int64_t i = 1; i <= 2000; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 2000);
    assert_true(stats(&k).in_write_max > 1);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
    tr_mem_each_row(k.sink[0], check_order, &o);
    if (!refuse)
        assert_true(o.backward <= 60); /* only back to a ticket that failed, then forward again */
    kit_end(&k);
}

static void test_pipelined_writers(void **state)
{
    (void)state;
    pipelined(TR_CAP_MULTI, false);
    pipelined(TR_CAP_MULTI | TR_CAP_MONOTONIC, true);
    pipelined(TR_CAP_MULTI, true);
}

static void test_pipelined_drain_and_hold(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_PIPELINED | TR_CAP_ORDERED};
    (void)state;
    kit_init(&k, 1, &d);
    k.def.tuning.drain_timeout_ns = 200 * MS;
    kit_start(&k);
    tr_mem_hold(k.sink[0], true);
    kit_row(&k, 0, 1, 1, 1, "x");
    assign(&k);
    KIT_UNTIL(stats(&k).writes == 1);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).error.rc, TR_RETRY);
    assert_true(stats(&k).abandons > 0);
    kit_end(&k);
}

static void test_one_target_keeps_total_order(void **state)
{
    struct kit k;
    struct order o = {0};
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_ORDERED | TR_CAP_ONE_TARGET};
    (void)state;
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.chunk_bytes = 500;
    kit_start(&k);
    for (int64_t i = 1; i <= 1000; i++)
        kit_row(&k, 0, i, 1 + (uint32_t)(i % 3), i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1000);
    kit_stop(&k);
    assert_int_equal(stats(&k).binds, 1);
    tr_mem_each_row(k.sink[0], check_order, &o);
    assert_int_equal(o.backward, 0);
    kit_end(&k);
}

static void test_endpoints_are_rotated_and_left_out(void **state)
{
    struct kit k;
    static struct list l;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .endpoints = 3};
    (void)state;
    memset(&l, 0, sizeof l);
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.batch_rows_max = 10;
    k.def_sink[0].tuning.breaker_failures = 1;
    k.def_sink[0].tuning.breaker_open_ns = 3600 * SEC;
    tr_mem_endpoint_down(k.sink[0], 1, true);
    kit_start(&k);
    for (int64_t i = 1; i <= 300; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 300);
    tr_mem_each_batch(k.sink[0], note_batch, &l);
    uint32_t by[3] = {0};
    for (uint32_t i = 0; i < l.n; i++)
        by[l.v[i].endpoint]++;
    assert_int_equal(by[1], 0);
    assert_true(by[0] > 5 && by[2] > 5);
    assert_in_range(kit_status(&k).retries, 1, 3);
    kit_stop(&k);
    kit_end(&k);
}

/* complete, and what has an unchanged column, wait until everything earlier is durable. */
static void test_dependent_batches_wait(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .complete = true, .write_ns = MS};
    (void)state;
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.inflight = 4;
    k.def_sink[0].tuning.batch_rows_max = 10;
    kit_start(&k);
    for (int64_t i = 1; i <= 200; i++)
        kit_row_op(&k, 0, i, TR_OP_UPDATE, 1, i, "x", TR_CHG_UNCHANGED);
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 200);
    assert_true(stats(&k).completes >= 20);
    assert_int_equal(stats(&k).in_write_max, 1);
    kit_stop(&k);
    kit_end(&k);
}

static void test_independent_batches_overlap(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .write_ns = 5 * MS};
    (void)state;
    kit_init(&k, 1, &d);
    k.def_sink[0].tuning.inflight = 4;
    k.def_sink[0].tuning.batch_rows_max = 10;
    kit_start(&k);
    for (int64_t i = 1; i <= 400; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 400);
    assert_true(stats(&k).in_write_max > 1);
    kit_stop(&k);
    kit_end(&k);
}

static void test_a_barrier_waits_until_durable(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    atomic_store(&k.barrier, 1);
    kit_start(&k);
    for (int64_t i = 1; i <= 30; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 30);
    assert_int_equal(stats(&k).batches, 30);
    kit_stop(&k);
    kit_end(&k);
}

static void test_a_barrier_between_transactions(void **state)
{
    struct kit k;
    int64_t pos = 0;
    (void)state;
    kit_init(&k, 1, &boundary);
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    atomic_store(&k.barrier, 2);
    kit_start(&k);
    for (int tx = 0; tx < 20; tx++) {
        for (int r = 0; r < 3; r++)
            kit_row(&k, 0, ++pos, 1 + (uint32_t)r, tx, "x");
        tr_mem_push_tx_end(k.src, 0, ++pos);
    }
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == pos);
    assert_int_equal(stats(&k).batches, 20);
    kit_stop(&k);
    kit_end(&k);
}

static void count_key(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    (void)key;
    (void)version;
    (void)row;
    *(int *)arg += !deleted;
}

static void test_a_shadow_is_swapped_in(void **state)
{
    struct kit k;
    int mirror = 0, shadow = 0;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_SHADOW};
    (void)state;
    kit_init(&k, 1, &d);
    kit_start(&k);
    for (int64_t i = 1; i <= 10; i++)
        kit_row_op(&k, 0, i, TR_OP_READ, 1, i, "x", 0);
    kit_row_op(&k, 0, 11, TR_OP_SNAPSHOT_END, 1, 0, NULL, 0);
    kit_row(&k, 0, 12, 1, 11, "behind");
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 12);
    kit_stop(&k);
    assert_int_equal(stats(&k).swaps, 1);
    tr_mem_read_back(k.sink[0], 1, TR_TARGET_MIRROR, count_key, &mirror);
    tr_mem_read_back(k.sink[0], 1, TR_TARGET_SHADOW, count_key, &shadow);
    assert_int_equal(mirror, 11);
    assert_int_equal(shadow, 0);
    kit_end(&k);
}

/* One that cannot be done now is asked for again, for as long as it takes: what was answered before leaves nothing behind. */
static void test_a_swap_that_is_put_off(void **state)
{
    enum { TIMES = 100 };
    struct kit k;
    uint32_t left = 0;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_SHADOW};
    (void)state;
    kit_init(&k, 1, &d);
    tr_mem_script_swap(k.sink[0], TR_NOT_READY, TIMES);
    kit_start(&k);
    kit_row_op(&k, 0, 1, TR_OP_READ, 1, 1, "x", 0);
    kit_row_op(&k, 0, 2, TR_OP_SNAPSHOT_END, 1, 0, NULL, 0);
    assign(&k);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 2);
    kit_stop(&k);
    assert_int_equal(stats(&k).swaps, 1);
    tr_mutex_lock(&k.p->sinks[0].lock);
    TR_LIST_EACH (n, &k.p->sinks[0].targets)
        left++;
    tr_mutex_unlock(&k.p->sinks[0].lock);
    assert_int_equal(left, 1); /* the bind */
    kit_end(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_retry_is_the_same_bytes),
        cmocka_unit_test(test_a_refused_part_is_dropped),
        cmocka_unit_test(test_what_follows_a_refused_part_is_refused),
        cmocka_unit_test(test_a_batch_of_nothing_but_the_refused_part),
        cmocka_unit_test(test_what_fails_the_pipeline),
        cmocka_unit_test(test_stale_binds_again),
        cmocka_unit_test(test_stale_for_ever_is_refused),
        cmocka_unit_test(test_stale_waits_for_a_sink_that_is_away),
        cmocka_unit_test(test_binds_are_tried_again_and_refusals_remembered),
        cmocka_unit_test(test_batches_end_at_transaction_ends),
        cmocka_unit_test(test_final_fails_the_open_transaction),
        cmocka_unit_test(test_a_huge_transaction_goes_in_parts),
        cmocka_unit_test(test_versions_become_parts_in_order),
        cmocka_unit_test(test_without_multi_a_batch_has_one_part),
        cmocka_unit_test(test_an_idle_row_is_written_at_once),
        cmocka_unit_test(test_idle_rows_keep_the_pace),
        cmocka_unit_test(test_linger_is_kept_while_rows_keep_coming),
        cmocka_unit_test(test_a_row_too_large_is_refused_by_name),
        cmocka_unit_test(test_columnar_encoders),
        cmocka_unit_test(test_pipelined_writers),
        cmocka_unit_test(test_pipelined_drain_and_hold),
        cmocka_unit_test(test_one_target_keeps_total_order),
        cmocka_unit_test(test_endpoints_are_rotated_and_left_out),
        cmocka_unit_test(test_dependent_batches_wait),
        cmocka_unit_test(test_independent_batches_overlap),
        cmocka_unit_test(test_rows_go_to_the_shards_of_their_keys),
        cmocka_unit_test(test_a_row_that_another_shard_knows_is_refused_by_name),
        cmocka_unit_test(test_each_shard_has_its_endpoints),
        cmocka_unit_test(test_a_barrier_waits_until_durable),
        cmocka_unit_test(test_a_barrier_between_transactions),
        cmocka_unit_test(test_a_shadow_is_swapped_in),
        cmocka_unit_test(test_a_swap_that_is_put_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
