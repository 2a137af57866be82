#include "source_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clock.h>

#include "hash.h"

/* The suite plays the engine: one thread is controller and pipeline at once. */

enum { LANES_MAX = 16, RECORDS_MAX = 4096 };

static const struct tr_source_factory *F;

struct bench {
    struct tr_source *src;
    struct tr_waker waker;
    struct tr_lane *lanes[LANES_MAX];
    int64_t last[LANES_MAX], upto[LANES_MAX]; /* highest position and statement so far */
    uint32_t n_lanes;
    uint8_t seen[RECORDS_MAX];
    uint64_t distinct;
};

static int64_t soon(void)
{
    return tr_now_ns() + 20 * TR_NS_PER_S;
}

static void take_events(struct bench *b)
{
    struct tr_event ev = {0};
    struct tr_err err = {0};
    while (b->src->ops->poll_event(b->src, &ev, &err) >= 0) {
        if (ev.kind == TR_EVENT_ASSIGNED) {
            assert_true(b->n_lanes < LANES_MAX);
            assert_non_null(ev.lane);
            assert_int_equal(ev.lane->id, ev.lane_id);
            b->last[b->n_lanes] = b->upto[b->n_lanes] = INT64_MIN;
            b->lanes[b->n_lanes++] = ev.lane;
            assert_true(b->src->ops->answer(b->src, &ev, &err) >= 0);
        }
        memset(&ev, 0, sizeof ev);
    }
}

static void bench_open(struct bench *b)
{
    struct tr_err err = {0};
    memset(b, 0, sizeof *b);
    assert_int_equal(tr_waker_init(&b->waker, &err), TR_OK);
    if (F->open(F->arg, &b->src, &err) < 0)
        fail_msg("open: %s", err.msg);
    int64_t until = soon();
    while (b->n_lanes == 0 && tr_now_ns() < until) {
        take_events(b);
        tr_sleep_ns(TR_NS_PER_MS);
    }
    assert_true(b->n_lanes > 0);
}

static void bench_close(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_lanes; i++)
        b->lanes[i]->ops->close(b->lanes[i]);
    b->src->ops->close(b->src, soon());
    tr_waker_done(&b->waker);
}

static uint64_t digest(const struct tr_payloads *p)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < p->n; i++)
        h = tr_hash64_seed(h, p->v[i].value.p, p->v[i].value.n) ^ tr_hash64_seed(h, p->v[i].key.p, p->v[i].key.n) ^ F->record_no(F->arg, &p->v[i]);
    return h;
}

static void check_payloads(struct bench *b, uint32_t lane, const struct tr_payloads *p)
{
    struct tr_err err = {0};
    for (uint32_t i = 0; i < p->n; i++) {
        assert_true(p->v[i].position >= b->last[lane]); /* a marker may share the position of its last row */
        b->last[lane] = p->v[i].position;
        uint64_t no = F->record_no(F->arg, &p->v[i]);
        if (no == 0)
            continue;
        assert_true(no < RECORDS_MAX);
        b->distinct += b->seen[no] == 0;
        b->seen[no]++;
    }
    if (p->upto != INT64_MIN) {
        assert_true(p->upto >= b->upto[lane]);
        b->upto[lane] = p->upto;
    }
    /* what is held stays valid while the lane is only tended */
    uint64_t before = digest(p);
    for (int i = 0; i < 3; i++)
        assert_true(b->lanes[lane]->ops->tend == NULL || b->lanes[lane]->ops->tend(b->lanes[lane], tr_now_ns(), &err) >= 0);
    assert_true(digest(p) == before);
}

/* One poll of every lane; false: all said AGAIN. */
static bool poll_all(struct bench *b, uint32_t max)
{
    bool any = false;
    for (uint32_t i = 0; i < b->n_lanes; i++) {
        struct tr_payloads p = {.upto = INT64_MIN};
        struct tr_err err = {0};
        int rc = b->lanes[i]->ops->poll(b->lanes[i], max, &p, &err);
        if (rc == TR_AGAIN || rc == TR_RETRY)
            continue;
        if (rc < 0)
            fail_msg("poll: %s: %s", tr_rc_name(rc), err.msg);
        assert_true(p.n <= max);
        check_payloads(b, i, &p);
        any = true;
    }
    return any;
}

static void wait_for_data(struct bench *b, int64_t max_ns)
{
    struct tr_wait w[LANES_MAX];
    struct tr_err err = {0};
    for (uint32_t i = 0; i < b->n_lanes; i++) {
        w[i] = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
        if (b->lanes[i]->ops->arm(b->lanes[i], &b->waker, &w[i]) == 1)
            return;
    }
    assert_true(tr_wait_many(&b->waker, w, b->n_lanes, max_ns, &err) >= 0);
}

static void read_until(struct bench *b, uint64_t distinct, uint32_t max)
{
    int64_t until = soon();
    while (b->distinct < distinct) {
        if (tr_now_ns() > until)
            fail_msg("only %llu of %llu records came", (unsigned long long)b->distinct, (unsigned long long)distinct);
        if (!poll_all(b, max))
            wait_for_data(b, 50 * TR_NS_PER_MS);
    }
    for (int i = 0; i < 20; i++) /* markers and positions behind the last record */
        if (!poll_all(b, max))
            tr_sleep_ns(TR_NS_PER_MS);
}

static void commit(struct bench *b, int64_t sync_deadline_ns)
{
    struct tr_watermark w[LANES_MAX];
    struct tr_err err = {0};
    size_t n = 0;
    for (uint32_t i = 0; i < b->n_lanes; i++)
        if (b->upto[i] != INT64_MIN)
            w[n++] = (struct tr_watermark){.lane = b->lanes[i]->id, .epoch = b->lanes[i]->epoch, .upto = b->upto[i]};
    if (n && b->src->ops->commit(b->src, w, n, sync_deadline_ns, &err) < 0)
        fail_msg("commit: %s", err.msg);
}

/* ---- the tests ------------------------------------------------------------------------------------------------------------ */

static void begin(struct bench *b, uint32_t records)
{
    assert_true(F->reset(F->arg) >= 0);
    if (records)
        assert_true(F->produce(F->arg, records) >= 0);
    bench_open(b);
}

static void test_everything_comes_once_and_in_order(void **state)
{
    struct bench b;
    (void)state;
    begin(&b, 300);
    read_until(&b, 300, 7);
    for (uint64_t i = 1; i <= 300; i++)
        assert_int_equal(b.seen[i], 1);
    assert_false(poll_all(&b, 7));
    for (uint32_t i = 0; i < b.n_lanes; i++)
        assert_true(b.last[i] == INT64_MIN || b.upto[i] >= b.last[i]);
    bench_close(&b);
}

static void test_new_data_ends_the_wait(void **state)
{
    struct bench b;
    (void)state;
    begin(&b, 0);
    for (int round = 1; round <= 5; round++) {
        while (poll_all(&b, 100))
            ;
        int64_t start = tr_now_ns();
        assert_true(F->produce(F->arg, 1) >= 0);
        while (b.distinct < (uint64_t)round) {
            wait_for_data(&b, 5 * TR_NS_PER_S);
            poll_all(&b, 100);
            assert_true(tr_now_ns() - start < 4 * TR_NS_PER_S);
        }
    }
    bench_close(&b);
}

static void test_what_was_not_committed_comes_again(void **state)
{
    struct bench b;
    (void)state;
    begin(&b, 50);
    read_until(&b, 50, 100);
    bench_close(&b); /* nothing was committed */
    bench_open(&b);
    read_until(&b, 50, 100);
    bench_close(&b);
}

static void test_what_was_committed_does_not(void **state)
{
    struct bench b;
    (void)state;
    begin(&b, 50);
    read_until(&b, 50, 100);
    commit(&b, soon());
    bench_close(&b);
    assert_true(F->produce(F->arg, 20) >= 0);
    bench_open(&b);
    read_until(&b, 20, 100);
    for (uint64_t i = 51; i <= 70; i++)
        assert_true(b.seen[i] > 0); /* nothing is missing */
    for (uint64_t i = 1; i <= 50; i++)
        assert_int_equal(b.seen[i], 0);
    bench_close(&b);
}

static void test_many_small_commits(void **state)
{
    struct bench b;
    (void)state;
    begin(&b, 0);
    for (uint32_t i = 1; i <= 30; i++) {
        assert_true(F->produce(F->arg, 3) >= 0);
        read_until(&b, 3 * i, 100);
        commit(&b, 0); /* cheap, and may be sent later */
    }
    commit(&b, soon());
    bench_close(&b);
    bench_open(&b);
    for (int i = 0; i < 20; i++)
        if (!poll_all(&b, 100))
            tr_sleep_ns(TR_NS_PER_MS);
    assert_int_equal(b.distinct, 0);
    bench_close(&b);
}

static void test_a_pause_loses_nothing(void **state)
{
    struct bench b;
    struct tr_err err = {0};
    (void)state;
    begin(&b, 20);
    read_until(&b, 20, 5);
    for (uint32_t i = 0; i < b.n_lanes; i++)
        if (b.lanes[i]->ops->pause)
            b.lanes[i]->ops->pause(b.lanes[i], true);
    assert_true(F->produce(F->arg, 20) >= 0);
    for (int k = 0; k < 10; k++) {
        for (uint32_t i = 0; i < b.n_lanes; i++)
            if (b.lanes[i]->ops->tend)
                assert_true(b.lanes[i]->ops->tend(b.lanes[i], tr_now_ns(), &err) >= 0);
        tr_sleep_ns(5 * TR_NS_PER_MS);
    }
    for (uint32_t i = 0; i < b.n_lanes; i++)
        if (b.lanes[i]->ops->pause)
            b.lanes[i]->ops->pause(b.lanes[i], false);
    read_until(&b, 40, 5);
    bench_close(&b);
}

static void test_a_lost_peer_comes_back(void **state)
{
    struct bench b;
    (void)state;
    if (!F->disconnect)
        return;
    begin(&b, 20);
    read_until(&b, 20, 100);
    assert_true(F->disconnect(F->arg) >= 0);
    assert_true(F->produce(F->arg, 20) >= 0);
    read_until(&b, 40, 100);
    bench_close(&b);
}

static void test_a_revoke_is_asked_for(void **state)
{
    struct bench b;
    struct tr_event ev = {0};
    struct tr_err err = {0};
    (void)state;
    if (!F->revoke)
        return;
    begin(&b, 20);
    read_until(&b, 20, 100);
    assert_true(F->revoke(F->arg, b.lanes[0]->id) >= 0);
    int64_t until = soon();
    while (b.src->ops->poll_event(b.src, &ev, &err) < 0 || ev.kind == TR_EVENT_STATS)
        assert_true(tr_now_ns() < until);
    assert_int_equal(ev.kind, TR_EVENT_REVOKED);
    assert_int_equal(ev.lane_id, b.lanes[0]->id);
    assert_int_equal(ev.epoch, b.lanes[0]->epoch);
    commit(&b, soon()); /* the barrier's */
    assert_true(b.src->ops->answer(b.src, &ev, &err) >= 0);
    bench_close(&b);
}

int tr_source_suite_run(const struct tr_source_factory *f)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_comes_once_and_in_order),
        cmocka_unit_test(test_new_data_ends_the_wait),
        cmocka_unit_test(test_what_was_not_committed_comes_again),
        cmocka_unit_test(test_what_was_committed_does_not),
        cmocka_unit_test(test_many_small_commits),
        cmocka_unit_test(test_a_pause_loses_nothing),
        cmocka_unit_test(test_a_lost_peer_comes_back),
        cmocka_unit_test(test_a_revoke_is_asked_for),
    };
    F = f;
    return cmocka_run_group_tests_name(f->name, tests, NULL, NULL);
}
