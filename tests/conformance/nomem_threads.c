/*
 * No memory in the threads: a pipeline over the memory connector, and apply over a change log (apply_kit.h). The nth allocation of all threads together fails, or all from it on
 * for a while. What runs fails and says why, is started again, as cdc/service.c would, or goes on by itself; in the end every row is there.
 *
 * To look into one that fails: TR_TEST_NTH=N does that allocation forty times before all others (TR_TEST_LASTING=1: with all that follow), TR_TEST_LOG=1 shows the
 * program's log.
 */
#include "nomem_kit.h"

#include "apply_kit.h"
#include "engine_kit.h"

enum { WHILE_MS = 60 };

static void arm(uint64_t n, bool lasting)
{
    if (lasting)
        tr_alloc_fail_from(n);
    else
        tr_alloc_fail_nth(n);
}

/* Every step of the way from the first allocation to the last one seen in a run without failures. */
static void each(const char *what, uint64_t samples, uint64_t (*run)(uint64_t n, bool lasting, bool *ret_failed))
{
    const uint64_t far = UINT64_C(1) << 60;
    bool failed = false;
    uint64_t n = far - run(far, false, &failed), most = samples / NOMEM_COARSER, step = (n + most - 1) / most, failures = 0, runs = 0;
    assert_false(failed);
    const char *only = getenv("TR_TEST_NTH"), *lasts = getenv("TR_TEST_LASTING");
    for (uint64_t again = 0; only && again < 40; again++)
        run(strtoull(only, NULL, 10), lasts != NULL, &failed);
    for (uint64_t k = 1; k <= n; k += step)
        for (int lasting = 0; lasting < 2; lasting++, runs++) {
            failed = false;
            if (getenv("TR_TEST_LOG"))
                print_message("%s: allocation %llu%s\n", what, (unsigned long long)k, lasting ? " and all that follow" : "");
            run(k, lasting, &failed);
            failures += failed;
        }
    print_message("%s: %llu allocations, step %llu: %llu runs, %llu of them ended with an error and were started again\n", what, (unsigned long long)n, (unsigned long long)step,
                  (unsigned long long)runs, (unsigned long long)failures);
    assert_true(failures > 0);
}

/* ---- a pipeline ---- */

enum { ROWS = 600 };

static void note_row(void *arg, const struct tr_mem_row *r)
{
    uint32_t *seen = arg;
    if (r->version <= ROWS)
        seen[r->version]++;
}

static uint64_t pipeline(uint64_t n, bool lasting, bool *ret_failed)
{
    static const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
    uint32_t seen[ROWS + 1] = {0};
    uint64_t left = 0;
    int64_t from = 0;
    for (int life = 0; from < ROWS; life++) {
        struct kit k;
        struct tr_err err = {0};
        struct tr_runtime_status s = {0};
        kit_init(&k, 1, &def);
        k.def.tuning.commit_eagerly = true;
        k.def_sink[0].tuning.batch_rows_max = 50;
        k.def_sink[0].tuning.chunk_bytes = 1024;
        k.def_sink[0].tuning.backoff_min_ns = MS / 10;
        tr_mem_poll_max(k.src, 0, 40);
        for (int64_t i = from + 1; i <= ROWS; i++)
            kit_row(&k, 0, i, 1 + (uint32_t)(i / 200), i, "x");
        if (life == 0)
            arm(n, lasting);
        int rc = tr_runtime_new(&k.def, &k.p, NULL, 0, &err);
        if (rc >= 0)
            rc = tr_runtime_start(k.p, &err);
        tr_alloc_spared(true);
        if (rc >= 0)
            assert_int_equal(tr_mem_assign(k.src, 0, (uint32_t)life, from), TR_OK);
        tr_alloc_spared(false);
        for (int64_t end = tr_now_ns() + (lasting && life == 0 ? WHILE_MS * MS : 10 * SEC); rc >= 0 && tr_now_ns() < end; tr_sleep_ns(MS / 5)) {
            s = kit_status(&k);
            if (s.state == TR_RT_FAILED || tr_mem_committed(k.src, 0) == ROWS)
                break;
        }
        if (life == 0)
            left = tr_alloc_fail_nth(0);
        if (rc >= 0 && s.state != TR_RT_FAILED) { /* it goes on by itself, or fails of what happened */
            for (int64_t end = tr_now_ns() + 10 * SEC; (s = kit_status(&k)).state != TR_RT_FAILED && tr_mem_committed(k.src, 0) != ROWS; tr_sleep_ns(MS / 5))
                if (tr_now_ns() > end)
                    fail_msg("allocation %llu%s: stuck at %lld: %s", (unsigned long long)n, lasting ? " and all that follow" : "", (long long)tr_mem_committed(k.src, 0), s.error.msg);
        }
        if (rc < 0)
            nomem_said("pipeline", n, rc, &err);
        else if (s.state == TR_RT_FAILED)
            nomem_said("pipeline", n, s.error.rc, &s.error);
        *ret_failed |= rc < 0 || s.state == TR_RT_FAILED;
        k.p = tr_runtime_free(k.p);
        from = TR_MAX(from, tr_mem_committed(k.src, 0));
        tr_mem_each_row(k.sink[0], note_row, seen);
        for (int64_t i = 1; i <= from; i++)
            if (!seen[i])
                fail_msg("allocation %llu%s: row %lld is committed and not in the sink", (unsigned long long)n, lasting ? " and all that follow" : "", (long long)i);
        kit_end(&k);
        assert_true(life < 4);
    }
    return left;
}

static void test_pipeline(void **state)
{
    (void)state;
    each("pipeline", 80, pipeline);
}

/* ---- apply ---- */

/* Ends when all is read and the table is live, the run has failed, or the time is up. */
static bool apply_failed(struct bed *b, int64_t for_ns, struct tr_err *err)
{
    struct tr_runtime_status s;
    struct tr_apply_lag lag;
    for (int64_t end = tr_now_ns() + for_ns; tr_now_ns() < end; tr_sleep_ns(MS / 5)) {
        tr_apply_status(b->run, &s, &lag);
        *err = s.error;
        if (s.state == TR_RT_FAILED)
            return true;
        if (table(b).state == TR_ST_PAUSED)
            fail_msg("a table was paused: %s", table(b).reason);
        if (s.watermark >= (int64_t)b->next - 1 && table(b).state == TR_ST_LIVE)
            return false;
    }
    return false;
}

static int apply_begin(struct bed *b, struct tr_err *err)
{
    int rc = tr_apply_open(&b->cfg, &b->run, err);
    return rc < 0 ? rc : tr_apply_start(b->run, err);
}

static uint64_t apply(uint64_t n, bool lasting, bool *ret_failed)
{
    struct tr_err err = {0};
    open_bed(&bed, 11);
    burst(&bed, 5);
    snapshot(&bed);
    burst(&bed, 20);
    arm(n, lasting);
    int rc = apply_begin(&bed, &err);
    bool failed = rc >= 0 && apply_failed(&bed, lasting ? WHILE_MS * MS : 10 * SEC, &err);
    uint64_t left = tr_alloc_fail_nth(0);
    tr_sleep_ns(2 * MS); /* what failed just before is told by then */
    burst(&bed, 5);
    for (int life = 0; rc < 0 || failed || apply_failed(&bed, 10 * SEC, &err); life++) {
        nomem_said("apply", n, rc < 0 ? rc : err.rc, &err);
        *ret_failed = true;
        assert_true(life < 4);
        bed.run = tr_apply_free(bed.run);
        failed = false;
        memset(&err, 0, sizeof err);
        rc = apply_begin(&bed, &err);
    }
    finish(&bed);
    close_bed(&bed);
    return left;
}

static void test_apply(void **state)
{
    (void)state;
    each("apply", 60, apply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_apply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
