/* Tables that a sink refuses, and what becomes of them (apply_kit.h). Also run under TSan. */
#include "apply_kit.h"

static void live_mirror_goes_on_in_place(void **state)
{
    (void)state;
    go_live(&bed, 1);
    tr_mem_taking(bed.sink, TABLE, TR_TARGET_MIRROR, TR_MEM_REFUSES_ROWS);
    burst(&bed, 30);
    wait_state(&bed, TR_ST_PAUSED);
    struct tr_mem_sink_stats before, after;
    tr_mem_sink_stats(bed.sink, &before);
    assert_true(table(&bed).relive);
    finish(&bed);
    tr_mem_sink_stats(bed.sink, &after);
    assert_int_equal(before.swaps, after.swaps); /* no other build */
    close_bed(&bed);
}

static void live_changelog_is_continued(void **state)
{
    (void)state;
    for (int how = TR_MEM_REFUSES_ROWS; how <= TR_MEM_REFUSES_BINDS; how++)
        for (int restart = 0; restart < 2; restart++) {
            go_live(&bed, 2);
            stop(&bed, true); /* so that targets are bound anew */
            tr_mem_taking(bed.sink, TABLE, TR_TARGET_CHANGELOG, (enum tr_mem_taking)how);
            start(&bed);
            burst(&bed, 30);
            wait_state(&bed, TR_ST_PAUSED);
            assert_true(table(&bed).log_from < bed.next);
            burst(&bed, 30);
            if (restart) {
                stop(&bed, restart == 1);
                start(&bed);
            }
            finish(&bed);
            close_bed(&bed);
        }
}

/* What a changelog refuses while its table is built is brought with the build, from before the snapshot's beginning if need be; also over a
 * restart and a second snapshot. */
static void changelog_that_refuses_during_a_build(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        open_bed(&bed, 3);
        tr_mem_taking(bed.sink, TABLE, TR_TARGET_CHANGELOG, TR_MEM_REFUSES_ROWS);
        start(&bed);
        burst(&bed, 10); /* before its snapshot */
        wait_state(&bed, TR_ST_PAUSED);
        snapshot(&bed);
        burst(&bed, 10);
        if (n & 1) {
            stop(&bed, n == 1);
            start(&bed);
        }
        if (n & 2)
            snapshot(&bed);
        finish(&bed);
        close_bed(&bed);
    }
}

static void refused_build_begins_again(void **state)
{
    (void)state;
    for (int how = TR_MEM_REFUSES_ROWS; how <= TR_MEM_REFUSES_BINDS; how++) {
        open_bed(&bed, 4);
        start(&bed);
        tr_mem_taking(bed.sink, TABLE, TR_TARGET_SHADOW, (enum tr_mem_taking)how);
        snapshot(&bed);
        wait_state(&bed, TR_ST_PAUSED);
        assert_false(table(&bed).relive);
        burst(&bed, 10);
        finish(&bed);
        close_bed(&bed);
    }
}

/* More than the main lane would wait for: it must not write to the mirror what is newer than what the catch-up has yet to bring, since an update
 * that leaves a column unchanged would carry the old value past the newer one's guard. */
static void mirror_is_not_fed_past_its_catch_up(void **state)
{
    (void)state;
    go_live(&bed, 5);
    tr_mem_taking(bed.sink, TABLE, TR_TARGET_MIRROR, TR_MEM_REFUSES_ROWS);
    burst(&bed, 5);
    wait_state(&bed, TR_ST_PAUSED);
    for (int i = 0; i < 12; i++)
        burst(&bed, 1000);
    wait_read(&bed);
    tr_mem_taking(bed.sink, TABLE, TR_TARGET_MIRROR, TR_MEM_TAKES);
    tr_mem_hold(bed.sink, true);
    tr_apply_resume(bed.run, "public.t");
    wait_state(&bed, TR_ST_CATCHING_UP);
    burst(&bed, 3);
    tr_sleep_ns(20 * MS);
    tr_mem_hold(bed.sink, false);
    finish(&bed);
    close_bed(&bed);
}

/* Retention removes what nobody has pinned. Returns the first offset that is left. */
static uint64_t retain(struct bed *b)
{
    struct tr_log_stats s;
    assert_int_equal(b->log->ops->retain(b->log, INT64_MAX / 2, NULL), TR_OK);
    assert_int_equal(b->log->ops->stats(b->log, 0, &s, NULL), TR_OK);
    return s.first_offset;
}

static void see_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    struct tr_buf *kinds = arg;
    assert_int_equal(tr_buf_printf(kinds, "%s ", a->kind), TR_OK);
}

static void alarms_are(struct bed *b, const char *want)
{
    struct tr_buf kinds = {0};
    assert_int_equal(b->control->ops->alarm_list(b->control, see_alarm, &kinds, NULL), TR_OK);
    assert_string_equal(kinds.n ? tr_buf_cstr(&kinds) : "", want);
    tr_buf_done(&kinds);
}

/* A pause longer than retention: the hole in the history is told, over a restart too, until an operator takes note of it; all else goes on. */
static void paused_beyond_retention(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        open_bed(&bed, 6);
        bed.no_mirror = n & 1;
        start(&bed);
        if (!bed.no_mirror) {
            snapshot(&bed);
            wait_state(&bed, TR_ST_LIVE);
        }
        wait_read(&bed);
        tr_mem_taking(bed.sink, TABLE, TR_TARGET_CHANGELOG, TR_MEM_REFUSES_ROWS);
        burst(&bed, 30);
        wait_state(&bed, TR_ST_PAUSED);
        bed.lost_from = table(&bed).log_from;
        for (int i = 0; i < 10; i++)
            burst(&bed, 100);
        wait_read(&bed);
        bed.lost_to = retain(&bed);
        assert_true(bed.lost_to > bed.lost_from);
        if (n & 2) {
            stop(&bed, true);
            start(&bed);
        }
        finish(&bed);
        alarms_are(&bed, "changelog ");
        stop(&bed, true);
        start(&bed);
        wait_read(&bed);
        assert_int_equal(tr_apply_resume(bed.run, "public.t"), TR_OK);
        alarms_are(&bed, "");
        assert_int_equal(tr_apply_resume(bed.run, "public.t"), 1);
        burst(&bed, 30);
        finish(&bed);
        close_bed(&bed);
    }
}

/* A sink that was away for longer than retention. */
static void away_beyond_retention(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        open_bed(&bed, 7);
        bed.no_mirror = n;
        start(&bed);
        snapshot(&bed);
        if (!bed.no_mirror)
            wait_state(&bed, TR_ST_LIVE);
        wait_read(&bed);
        stop(&bed, true);
        bed.lost_from = bed.next;
        for (int i = 0; i < 10; i++)
            burst(&bed, 100);
        bed.lost_to = retain(&bed);
        start(&bed);
        finish(&bed);
        alarms_are(&bed, "changelog ");
        close_bed(&bed);
    }
}

static void whatever_comes(void **state)
{
    (void)state;
    const char *from = getenv("TR_TEST_SEED"), *n = getenv("TR_TEST_SEEDS");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1, last = first + (n ? strtoull(n, NULL, 10) : 25);
    for (uint64_t seed = first; seed < last; seed++) {
        open_bed(&bed, seed);
        start(&bed);
        struct tr_prng *r = &bed.rnd;
        for (int step = 0; step < 30; step++) {
            switch (tr_prng_below(r, 10)) {
            case 0:
                snapshot(&bed);
                break;
            case 1:
            case 2: {
                enum tr_target_variant v = (enum tr_target_variant)tr_prng_below(r, 3);
                tr_mem_taking(bed.sink, TABLE, v, (enum tr_mem_taking)tr_prng_below(r, 3));
                break;
            }
            case 3:
                tr_mem_taking(bed.sink, TABLE, (enum tr_target_variant)tr_prng_below(r, 3), TR_MEM_TAKES);
                tr_apply_resume(bed.run, "");
                break;
            case 4:
                stop(&bed, tr_prng_chance(r, 1, 2));
                start(&bed);
                break;
            case 5:
                if (bed.snapshot_id && tr_prng_chance(r, 1, 3))
                    finish(&bed);
                break;
            case 6:
                tr_mem_script(bed.sink, &(struct tr_mem_outcome){.rc = TR_RETRY, .apply = tr_prng_chance(r, 1, 2), .blame = TR_BLAME_ENDPOINT});
                tr_mem_script(bed.sink, &(struct tr_mem_outcome){.delay_ns = (int64_t)tr_prng_below(r, 6) * MS, .times = 1 + (uint32_t)tr_prng_below(r, 10)});
                break;
            default:
                burst(&bed, 1 + (int)tr_prng_below(r, 40));
                break;
            }
            tr_sleep_ns((int64_t)tr_prng_below(r, 3) * MS);
        }
        if (!bed.snapshot_id)
            snapshot(&bed);
        if (getenv("TR_TEST_SEEDS"))
            print_message("seed %llu\n", (unsigned long long)seed);
        finish(&bed);
        close_bed(&bed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_mirror_goes_on_in_place),
        cmocka_unit_test(live_changelog_is_continued),
        cmocka_unit_test(changelog_that_refuses_during_a_build),
        cmocka_unit_test(refused_build_begins_again),
        cmocka_unit_test(mirror_is_not_fed_past_its_catch_up),
        cmocka_unit_test(paused_beyond_retention),
        cmocka_unit_test(away_beyond_retention),
        cmocka_unit_test(whatever_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
