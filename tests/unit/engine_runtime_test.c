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
    struct tr_pipeline_status s = kit_status(&k);
    assert_int_equal(s.state, TR_PL_RUNNING);
    assert_int_equal(s.records_in, 1000);
    assert_int_equal(s.rows_out, 1000);
    assert_true(s.lanes_assigned);
    assert_int_equal(s.watermark, 1000);
    kit_stop(&k);
    assert_int_equal(kit_status(&k).state, TR_PL_STOPPED);
    assert_int_equal(kit_status(&k).error.rc, 0);
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
    assert_false(st.order_broken);
    kit_end(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_arrive_and_are_committed),
        cmocka_unit_test(test_drain_commits_synchronously),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
