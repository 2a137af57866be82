/* The runtime over the memory connector: lanes, acks, commits, drain, back-pressure. Also run under TSan. */
#include "engine_kit.h"

static const struct tr_mem_sink_def plain = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};

static void test_rows_arrive_and_are_committed(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    for (int64_t i = 1; i <= 1000; i++)
        kit_row(&k, 0, i, 1, i % 100, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    assert_true(tr_mem_wait_rows(k.sink[0], 1000, tr_now_ns() + 10 * SEC));
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1000);
    struct tr_runtime_status s = kit_status(&k);
    assert_int_equal(s.state, TR_RT_RUNNING);
    assert_int_equal(s.records_in, 1000);
    assert_int_equal(s.rows_out, 1000);
    assert_true(s.lanes_assigned);
    assert_int_equal(s.watermark, 1000);
    KIT_UNTIL(kit_status(&k).sinks_probed);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
    assert_int_equal(kit_status(&k).error.rc, 0);
    assert_int_equal(kit_status(&k).inflight_bytes, 0);
    assert_true(k.watermarks > 0);
    kit_end(&k);
    assert_int_equal(k.chains_freed, 1);
}

static void test_drain_commits_synchronously(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.commit_interval_ns = 3600 * SEC;
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    kit_start(&k);
    for (int64_t i = 1; i <= 100; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).records_in == 100);
    kit_stop(&k);
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(tr_mem_committed_sync(k.src, 0), 100);
    assert_int_equal(st.closed_lanes, 1);
    assert_int_equal(st.assigned_answers, 1);
    assert_false(st.order_broken);
    kit_end(&k);
}

static void test_drain_gives_up_at_its_deadline(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.drain_timeout_ns = 300 * MS;
    kit_start(&k);
    tr_mem_hold(k.sink[0], true);
    for (int64_t i = 1; i <= 10; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).records_in == 10);
    int64_t start = tr_now_ns();
    kit_stop(&k);
    assert_true(tr_now_ns() - start < 1000 * MS);
    struct tr_runtime_status s = kit_status(&k);
    assert_int_equal(s.state, TR_RT_STOPPED);
    assert_int_equal(s.error.rc, TR_RETRY);
    assert_non_null(strstr(s.error.msg, "drain_timeout"));
    assert_true(tr_mem_committed(k.src, 0) == INT64_MIN);
    kit_end(&k);
}

static void test_stop_before_anything_came(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
    kit_end(&k);
    kit_init(&k, 1, &plain); /* made and never started */
    struct tr_err err;
    assert_int_equal(tr_runtime_new(&k.def, &k.p, NULL, 0, &err), TR_OK);
    kit_end(&k);
    kit_init(&k, 1, &plain); /* freed while it runs */
    kit_start(&k);
    for (int64_t i = 1; i <= 100; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    kit_end(&k);
}

static void test_eof_commits_and_closes_the_lane(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.commit_interval_ns = 3600 * SEC;
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    kit_start(&k);
    for (int64_t i = 1; i <= 50; i++)
        kit_row(&k, 7, i, 1, i, "x");
    tr_mem_eof(k.src, 7);
    assert_int_equal(tr_mem_assign(k.src, 7, 3, 0), TR_OK);
    KIT_UNTIL(!tr_mem_lane_open(k.src, 7));
    assert_int_equal(tr_mem_committed_sync(k.src, 7), 50);
    assert_int_equal(kit_status(&k).state, TR_RT_RUNNING);
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.revoked_answers, 0);
    kit_stop(&k);
    kit_end(&k);
}

static void test_revoke_is_answered_after_the_barrier(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.commit_interval_ns = 3600 * SEC;
    k.def_sink[0].tuning.linger_ns = 3600 * SEC;
    kit_start(&k);
    tr_mem_hold(k.sink[0], true);
    for (int64_t i = 1; i <= 50; i++) {
        kit_row(&k, 0, i, 1, i, "x");
        kit_row(&k, 1, i, 2, i, "y");
    }
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    assert_int_equal(tr_mem_assign(k.src, 1, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).records_in == 100);
    tr_mem_revoke(k.src, 0);
    tr_sleep_ns(50 * MS);
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.revoked_answers, 0); /* not while its rows are not durable */
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(!tr_mem_lane_open(k.src, 0));
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.revoked_answers, 1);
    assert_int_equal(tr_mem_committed_sync(k.src, 0), 50);
    assert_true(tr_mem_lane_open(k.src, 1));
    /* again, in a new epoch, behind what was committed */
    kit_row(&k, 0, 51, 1, 51, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 2, 50), TR_OK);
    assert_true(tr_mem_wait_rows(k.sink[0], 101, tr_now_ns() + 10 * SEC));
    kit_stop(&k);
    assert_int_equal(tr_mem_committed(k.src, 0), 51);
    tr_mem_source_stats(k.src, &st);
    assert_false(st.order_broken);
    kit_end(&k);
}

static void test_a_lost_lane_is_let_go(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.drain_timeout_ns = 100 * MS; /* also the barrier of a lane */
    kit_start(&k);
    tr_mem_hold(k.sink[0], true);
    for (int64_t i = 1; i <= 5; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).records_in == 5);
    tr_mem_lose(k.src, 0, "the group went on without us");
    KIT_UNTIL(!tr_mem_lane_open(k.src, 0));
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.revoked_answers, 0);
    assert_true(tr_mem_committed(k.src, 0) == INT64_MIN);
    tr_mem_hold(k.sink[0], false); /* what comes of it now is stale */
    assert_true(tr_mem_wait_rows(k.sink[0], 5, tr_now_ns() + 10 * SEC));
    kit_stop(&k);
    tr_mem_source_stats(k.src, &st);
    assert_false(st.order_broken);
    kit_end(&k);
}

static void test_poll_errors_are_shown_and_pass(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    tr_mem_fail_poll(k.src, 0, TR_RETRY, UINT32_MAX);
    kit_start(&k);
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).error.rc == TR_RETRY);
    assert_true(kit_status(&k).error_since_us > 0);
    assert_int_equal(kit_status(&k).state, TR_RT_RUNNING);
    tr_mem_fail_poll(k.src, 0, TR_RETRY, 0);
    kit_row(&k, 0, 1, 1, 1, "x");
    assert_true(tr_mem_wait_rows(k.sink[0], 1, tr_now_ns() + 10 * SEC));
    KIT_UNTIL(kit_status(&k).error.rc == 0);
    tr_mem_fail_poll(k.src, 0, TR_FATAL, 1);
    kit_row(&k, 0, 2, 1, 1, "x");
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).state, TR_RT_FAILED);
    assert_int_equal(kit_status(&k).error.rc, TR_FATAL);
    kit_end(&k);
}

static void test_event_errors_are_shown_and_pass(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    kit_start(&k);
    tr_mem_fail_event(k.src, TR_RETRY, UINT32_MAX);
    KIT_UNTIL(kit_status(&k).error.rc == TR_RETRY);
    assert_int_equal(kit_status(&k).state, TR_RT_RUNNING);
    tr_mem_fail_event(k.src, TR_RETRY, 0);
    kit_row(&k, 0, 1, 1, 1, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    assert_true(tr_mem_wait_rows(k.sink[0], 1, tr_now_ns() + 10 * SEC));
    KIT_UNTIL(kit_status(&k).error.rc == 0);
    tr_mem_fail_event(k.src, TR_FATAL, 1);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).state, TR_RT_FAILED);
    assert_int_equal(kit_status(&k).error.rc, TR_FATAL);
    kit_end(&k);
}

/* A sink is not reached until it has answered. */
static void test_a_sink_is_probed_until_it_answers(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def_sink[0].tuning.backoff_min_ns = k.def_sink[0].tuning.backoff_max_ns = 20 * MS;
    tr_mem_script_probe(k.sink[0], TR_RETRY, UINT32_MAX);
    kit_start(&k);
    KIT_UNTIL(kit_status(&k).error.rc == TR_RETRY);
    assert_false(kit_status(&k).sinks_probed);
    tr_mem_script_probe(k.sink[0], TR_RETRY, 0);
    KIT_UNTIL(kit_status(&k).sinks_probed && kit_status(&k).error.rc == 0);
    struct tr_mem_sink_stats st;
    tr_mem_sink_stats(k.sink[0], &st);
    assert_true(st.probes >= 2);
    kit_stop(&k);
    kit_end(&k);

    kit_init(&k, 1, &plain);
    tr_mem_script_probe(k.sink[0], TR_FENCED, 1);
    kit_start(&k);
    assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
    assert_int_equal(kit_status(&k).error.rc, TR_FENCED);
    kit_end(&k);
}

/* ---- a source that says what cannot be ---- */

enum wrong { WRONG_EOF, WRONG_BACK, WRONG_NULL, WRONG_SILENT, WRONG_EMPTY, WRONG_SAME, WRONG_NO_LANE, WRONG_TWICE, WRONG_COMMIT, WRONG_EVENT };

struct wrong_source {
    struct tr_source spi; /* first */
    struct tr_lane lane, again;
    enum wrong how;
    uint32_t events;
    _Atomic uint32_t polls, closed;
};

static struct wrong_source *wrong_of(struct tr_lane *l)
{
    return l->epoch == 1 ? tr_container_of(l, struct wrong_source, lane) : tr_container_of(l, struct wrong_source, again);
}

static int wrong_poll(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    static const struct tr_payload one = {.value = TR_SLICE_LIT("x"), .position = 9};
    struct wrong_source *s = wrong_of(l);
    uint32_t n = s->polls++;
    (void)max;
    (void)err;
    *ret = (struct tr_payloads){.v = s->how == WRONG_NULL ? NULL : &one, .n = 1, .upto = n ? 8 : 9};
    if (s->how == WRONG_EMPTY || s->how == WRONG_SAME)
        *ret = (struct tr_payloads){.upto = s->how == WRONG_SAME ? 9 : INT64_MIN};
    if ((s->how == WRONG_COMMIT || s->how == WRONG_TWICE) && n)
        return TR_AGAIN;
    return s->how == WRONG_EOF ? TR_EOF : s->how == WRONG_SILENT ? TR_FATAL : TR_OK;
}

static int wrong_lane_arm(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret)
{
    (void)l;
    (void)w;
    (void)ret;
    return 0;
}

static void wrong_lane_close(struct tr_lane *l)
{
    wrong_of(l)->closed++;
}

static const struct tr_lane_ops wrong_lane_ops = {.poll = wrong_poll, .arm = wrong_lane_arm, .close = wrong_lane_close};

static int wrong_event(struct tr_source *spi, struct tr_event *ret, struct tr_err *err)
{
    struct wrong_source *s = (struct wrong_source *)spi;
    uint32_t n = s->events++;
    (void)err;
    *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .epoch = n + 1, .lane = s->how == WRONG_NO_LANE ? NULL : n ? &s->again : &s->lane};
    return s->how == WRONG_EVENT ? TR_FATAL : n > (s->how == WRONG_TWICE) ? TR_AGAIN : TR_OK;
}

static int wrong_answer(struct tr_source *s, const struct tr_event *ev, struct tr_err *err)
{
    (void)s;
    (void)ev;
    (void)err;
    return TR_OK;
}

static int wrong_commit(struct tr_source *s, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    (void)v;
    (void)n;
    (void)sync_deadline_ns;
    (void)err;
    return ((struct wrong_source *)s)->how == WRONG_COMMIT ? TR_FATAL : TR_OK;
}

static const struct tr_source_ops wrong_ops = {.poll_event = wrong_event, .answer = wrong_answer, .commit = wrong_commit};

/* Rows that came with EOF, or below a position that may be committed already, would be lost in silence: the pipeline fails by name instead. No failure is
 * without a reason, every lane is closed, and one that says nothing new for ever is not polled without pause. */
static void test_a_source_that_says_what_cannot_be(void **state)
{
    static const struct {
        enum wrong how;
        const char *says; /* NULL: nothing is wrong */
        uint32_t closed;
    } cases[] = {{WRONG_EOF, "lane 0 ended in a poll with 1 payloads", 1}, {WRONG_BACK, "lane 0 went back: a poll up to 8 after one up to 9", 1}, {WRONG_NULL, "lane 0 said that a poll has 1 payloads, and gave none", 1},
                 {WRONG_SILENT, "lane 0 answered FATAL and gave no reason", 1}, {WRONG_EMPTY, NULL, 1}, {WRONG_SAME, NULL, 1}, {WRONG_NO_LANE, "assigned lane 0 without a lane", 0},
                 {WRONG_TWICE, "assigned lane 0 again before it was given back", 2}, {WRONG_COMMIT, "the commit of the source answered FATAL and gave no reason", 1}, {WRONG_EVENT, "the source answered FATAL and gave no reason", 0}};
    (void)state;
    for (size_t i = 0; i < TR_ARRAY_LEN(cases); i++) {
        struct kit k;
        struct wrong_source s = {.spi = {&wrong_ops}, .lane = {&wrong_lane_ops, 0, 1}, .again = {&wrong_lane_ops, 0, 2}, .how = cases[i].how};
        kit_init(&k, 1, &plain);
        k.def.source = &s.spi;
        kit_start(&k);
        if (cases[i].says) {
            assert_true(tr_runtime_join(k.p, tr_now_ns() + 10 * SEC));
            assert_int_equal(kit_status(&k).state, TR_RT_FAILED);
            if (!strstr(kit_status(&k).error.msg, cases[i].says))
                fail_msg("'%s' does not say '%s'", kit_status(&k).error.msg, cases[i].says);
        } else {
            KIT_UNTIL(s.polls > 2);
            uint32_t before = s.polls;
            tr_sleep_ns(200 * MS);
            assert_in_range(s.polls - before, 0, 40); /* one each 50 ms, were the clock exact */
            kit_stop(&k);
            assert_int_equal(kit_status(&k).state, TR_RT_STOPPED);
        }
        kit_end(&k);
        assert_int_equal(s.closed, cases[i].closed);
    }
}

static void test_commit_errors_come_again(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.commit_eagerly = true;
    tr_mem_fail_commit(k.src, TR_RETRY, 1);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(kit_status(&k).error.rc == TR_RETRY);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1);
    KIT_UNTIL(kit_status(&k).error.rc == 0);
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.commit_failures, 1);
    kit_stop(&k);
    kit_end(&k);
}

static void test_eager_commits_do_not_wait(void **state)
{
    struct kit k;
    (void)state;
    kit_init(&k, 1, &plain);
    k.def.tuning.commit_interval_ns = 3600 * SEC;
    k.def.tuning.commit_eagerly = true;
    kit_start(&k);
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    for (int64_t i = 1; i <= 20; i++) {
        kit_row(&k, 0, i, 1, i, "x");
        KIT_UNTIL(tr_mem_committed(k.src, 0) == i);
    }
    tr_mem_upto(k.src, 0, 1000); /* no row, only a position */
    tr_mem_push_tx_end(k.src, 1, 1);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1000);
    kit_stop(&k);
    kit_end(&k);
}

/* 100 MB through 2 MiB of budget. */
static void test_back_pressure_bounds_memory(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    struct tr_mem_sink_stats ss;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true, .write_ns = 4 * MS};
    (void)state;
    kit_init(&k, 1, &d);
    k.def.tuning.max_inflight_bytes = 2 << 20;
    k.def_sink[0].tuning.batch_bytes_max = 256 << 10;
    k.def_sink[0].tuning.chunk_bytes = 64 << 10;
    k.def_sink[0].tuning.queue_chunks = 8;
    k.def_sink[0].tuning.record_bytes_max = 1 << 20;
    tr_mem_generate(k.src, 0, 100000, 1000, 0);
    tr_mem_hold(k.sink[0], true);
    kit_start(&k);
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(tr_mem_lane_paused(k.src, 0));
    tr_mem_hold(k.sink[0], false);
    uint64_t most = 0;
    int64_t until = tr_now_ns() + 20 * SEC;
    do {
        struct tr_runtime_status s = kit_status(&k);
        most = TR_MAX(most, s.inflight_bytes);
        tr_sleep_ns(MS / 4);
        tr_mem_sink_stats(k.sink[0], &ss);
    } while (ss.rows < 100000 && tr_now_ns() < until);
    assert_int_equal(ss.rows, 100000);
    assert_in_range(most, 1, 2 << 20);
    kit_stop(&k);
    tr_mem_source_stats(k.src, &st);
    assert_true(st.pauses > 0);
    assert_int_equal(st.pauses, st.resumes);
    kit_end(&k);
}

static void test_a_blocked_lane_is_tended(void **state)
{
    struct kit k;
    struct tr_mem_source_stats before, after;
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .count_only = true};
    (void)state;
    kit_init(&k, 1, &d);
    k.def.tuning.max_inflight_bytes = 1 << 20;
    k.def_sink[0].tuning.record_bytes_max = 1 << 20;
    k.def_sink[0].tuning.chunk_bytes = 16 << 10;
    tr_mem_hold(k.sink[0], true);
    tr_mem_generate(k.src, 0, 1000000, 1000, 0);
    kit_start(&k);
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(tr_mem_lane_paused(k.src, 0) && kit_status(&k).blocked);
    tr_sleep_ns(100 * MS);
    tr_mem_source_stats(k.src, &before);
    tr_sleep_ns(1100 * MS);
    tr_mem_source_stats(k.src, &after);
    assert_int_equal(after.polls, before.polls); /* its payloads are still held */
    assert_true(after.tends - before.tends >= 2);
    assert_true(tr_now_ns() - kit_status(&k).poll_heartbeat_ns < 200 * MS);
    tr_mem_hold(k.sink[0], false);
    KIT_UNTIL(!tr_mem_lane_paused(k.src, 0));
    k.p = tr_runtime_free(k.p);
    kit_end(&k);
}

static void test_not_ready_pauses_nothing(void **state)
{
    struct kit k;
    struct tr_mem_source_stats st;
    (void)state;
    kit_init(&k, 1, &plain);
    atomic_store(&k.not_ready_times, 5);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    assert_true(tr_mem_wait_rows(k.sink[0], 1, tr_now_ns() + 10 * SEC));
    tr_mem_source_stats(k.src, &st);
    assert_int_equal(st.pauses, 0);
    kit_stop(&k);
    kit_end(&k);
}

struct order {
    int64_t last[16];
    uint64_t seen;
    bool broken;
};

static void check_order(void *arg, const struct tr_mem_row *r)
{
    struct order *o = arg;
    int64_t key = strtoll((const char *)r->key.p, NULL, 10), lane = key / 1000;
    o->broken |= (int64_t)r->version <= o->last[lane];
    o->last[lane] = (int64_t)r->version;
    o->seen++;
}

/* Without MONOTONIC one write at a time: the rows of each lane arrive in order, whatever the writes come to. */
static void test_order_survives_retries(void **state)
{
    struct kit k;
    struct order o = {0};
    struct tr_mem_sink_def d = {.caps = TR_CAP_MULTI};
    (void)state;
    kit_init(&k, 1, &d);
    k.def.tuning.threads = 2;
    k.def_sink[0].tuning.batch_rows_max = 100;
    k.def_sink[0].tuning.inflight = 4; /* forced to 1 */
    for (int i = 0; i < 40; i++)
        tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = i % 3 ? TR_RETRY : TR_OK});
    kit_start(&k);
    for (uint32_t lane = 0; lane < 4; lane++) {
        tr_mem_poll_max(k.src, lane, 37);
        for (int64_t i = 1; i <= 1000; i++)
            kit_row(&k, lane, i, 1, lane * 1000 + i % 7, "x");
        assert_int_equal(tr_mem_assign(k.src, lane, 1, 0), TR_OK);
    }
    for (uint32_t lane = 0; lane < 4; lane++)
        KIT_UNTIL(tr_mem_committed(k.src, lane) == 1000);
    struct tr_mem_sink_stats ss;
    tr_mem_sink_stats(k.sink[0], &ss);
    assert_int_equal(ss.in_write_max, 1);
    assert_true(kit_status(&k).retries >= 26);
    kit_stop(&k);
    tr_mem_each_row(k.sink[0], check_order, &o);
    assert_false(o.broken);
    assert_int_equal(o.seen, 4000);
    kit_end(&k);
}

struct seen {
    uint8_t by_pos[4096];
};

static void note_seen(void *arg, const struct tr_mem_row *r)
{
    struct seen *s = arg;
    s->by_pos[r->version]++;
}

/* Killed at a random moment and started from what was committed, again and again: nothing is missing. */
static void test_at_least_once_over_restarts(void **state)
{
    struct kit k;
    struct seen seen = {{0}};
    int64_t from = 0;
    (void)state;
    for (int round = 0; round < 8; round++) {
        kit_init(&k, 1, &plain);
        k.def_sink[0].tuning.batch_rows_max = 64;
        k.def.tuning.commit_eagerly = true;
        tr_mem_poll_max(k.src, 0, 50);
        for (int i = 0; i < 20; i++)
            tr_mem_script(k.sink[0], &(struct tr_mem_outcome){.rc = i % 2 ? TR_RETRY : TR_OK, .apply = i % 4 == 1, .delay_ns = MS / 2});
        for (int64_t i = from + 1; i <= 4000; i++)
            kit_row(&k, 0, i, 1, i, "x");
        kit_start(&k);
        assert_int_equal(tr_mem_assign(k.src, 0, (uint32_t)round, from), TR_OK);
        if (round < 7) {
            tr_sleep_ns((3 + round) * MS);
            k.p = tr_runtime_free(k.p); /* no drain */
        } else {
            KIT_UNTIL(tr_mem_committed(k.src, 0) == 4000);
            kit_stop(&k);
        }
        from = TR_MAX(from, tr_mem_committed(k.src, 0));
        tr_mem_each_row(k.sink[0], note_seen, &seen);
        for (int64_t i = 1; i <= from; i++)
            assert_true(seen.by_pos[i] > 0);
        kit_end(&k);
    }
}

static void test_two_sinks_the_worst_counts(void **state)
{
    struct kit k;
    struct tr_mem_sink_def d[2] = {plain, plain};
    (void)state;
    kit_init(&k, 2, d);
    k.def.tuning.commit_eagerly = true;
    kit_start(&k);
    tr_mem_hold(k.sink[1], true);
    for (int64_t i = 1; i <= 10; i++)
        kit_row(&k, 0, i, 1, i, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    assert_true(tr_mem_wait_rows(k.sink[0], 10, tr_now_ns() + 10 * SEC));
    tr_sleep_ns(30 * MS);
    assert_true(tr_mem_committed(k.src, 0) == INT64_MIN);
    tr_mem_hold(k.sink[1], false);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 10);
    kit_stop(&k);
    kit_end(&k);
}

static void test_checks_and_the_sizing_rule(void **state)
{
    struct kit k;
    struct tr_err err = {0};
    (void)state;
    struct tr_mem_sink_def two = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC, .shards = 2};
    kit_init(&k, 1, &two);
    k.def_sink[0].tuning.batch_bytes_max = 128 << 20;
    kit_start(&k);
    assert_non_null(strstr(k.warning, "2 shards x 2 in flight x 128MiB"));
    kit_stop(&k);
    kit_end(&k);

    kit_init(&k, 1, &plain);
    kit_start(&k);
    assert_string_equal(k.warning, ""); /* the defaults keep the rule */
    kit_stop(&k);
    kit_end(&k);

    struct tr_mem_sink_def bad = {.caps = TR_CAP_BOUNDARY | TR_CAP_MULTI, .shards = 2};
    kit_init(&k, 1, &bad);
    assert_int_equal(tr_runtime_new(&k.def, &k.p, NULL, 0, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "shard"));
    kit_end(&k);

    kit_init(&k, 1, &plain);
    k.def.tuning.low_ratio = 0.9;
    assert_int_equal(tr_runtime_new(&k.def, &k.p, NULL, 0, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "low_ratio"));
    kit_end(&k);
}

static void test_metrics(void **state)
{
    struct kit k;
    struct tr_err err;
    struct tr_buf out = {0};
    (void)state;
    kit_init(&k, 1, &plain);
    assert_int_equal(tr_metrics_new(&k.def.metrics, &err), TR_OK);
    kit_start(&k);
    kit_row(&k, 0, 1, 1, 1, "x");
    assert_int_equal(tr_mem_assign(k.src, 0, 1, 0), TR_OK);
    KIT_UNTIL(tr_mem_committed(k.src, 0) == 1);
    kit_stop(&k);
    assert_int_equal(tr_metrics_render_prometheus(k.def.metrics, &out), TR_OK);
    assert_non_null(strstr(tr_buf_cstr(&out), "tailrace_pipeline_records_in_total{pipeline=\"test\"} 1\n"));
    assert_non_null(strstr(tr_buf_cstr(&out), "tailrace_pipeline_rows_out_total{pipeline=\"test\",sink=\"a\"} 1\n"));
    assert_non_null(strstr(tr_buf_cstr(&out), "tailrace_pipeline_batch_write_seconds_count{pipeline=\"test\",sink=\"a\"} 1\n"));
    tr_buf_done(&out);
    kit_end(&k);
    tr_metrics_free(k.def.metrics);
}

/* Each allocation of making and starting fails once. */
static void test_without_memory_nothing_is_made(void **state)
{
    uint32_t refused = 0;
    (void)state;
    for (uint64_t nth = 1;; nth++) {
        struct kit k;
        struct tr_err err = {0};
        struct tr_mem_sink_def d[2] = {plain, {.caps = TR_CAP_MONOTONIC, .shards = 2}};
        kit_init(&k, 2, d);
        k.def.tuning.threads = 2;
        tr_alloc_fail_nth(nth);
        int rc = tr_runtime_new(&k.def, &k.p, NULL, 0, &err);
        if (rc >= 0)
            rc = tr_runtime_start(k.p, &err);
        bool left = tr_alloc_fail_nth(0) != 0;
        refused += rc < 0;
        if (rc < 0)
            assert_true(err.msg[0] != 0);
        kit_end(&k);
        if (left)
            break;
        assert_true(nth < 500);
    }
    assert_true(refused > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_arrive_and_are_committed),
        cmocka_unit_test(test_drain_commits_synchronously),
        cmocka_unit_test(test_drain_gives_up_at_its_deadline),
        cmocka_unit_test(test_stop_before_anything_came),
        cmocka_unit_test(test_eof_commits_and_closes_the_lane),
        cmocka_unit_test(test_revoke_is_answered_after_the_barrier),
        cmocka_unit_test(test_a_lost_lane_is_let_go),
        cmocka_unit_test(test_poll_errors_are_shown_and_pass),
        cmocka_unit_test(test_event_errors_are_shown_and_pass),
        cmocka_unit_test(test_a_sink_is_probed_until_it_answers),
        cmocka_unit_test(test_a_source_that_says_what_cannot_be),
        cmocka_unit_test(test_commit_errors_come_again),
        cmocka_unit_test(test_eager_commits_do_not_wait),
        cmocka_unit_test(test_back_pressure_bounds_memory),
        cmocka_unit_test(test_a_blocked_lane_is_tended),
        cmocka_unit_test(test_not_ready_pauses_nothing),
        cmocka_unit_test(test_order_survives_retries),
        cmocka_unit_test(test_at_least_once_over_restarts),
        cmocka_unit_test(test_two_sinks_the_worst_counts),
        cmocka_unit_test(test_checks_and_the_sizing_rule),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_without_memory_nothing_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
