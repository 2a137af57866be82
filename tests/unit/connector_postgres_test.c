/* Transactions that the server streams before they commit: memory, spill file, subtransactions that are given up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "pg_session.h"
#include "pg_txbuf.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tr-txbuf-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* which also shows that nothing was left in it */
}

__attribute__((format(printf, 5, 6))) static void add(struct tr_pg_txbuf *b, uint32_t xid, uint32_t subxid, uint64_t lsn, const char *fmt, ...)
{
    static char text[70000];
    struct tr_err err;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert_int_equal(tr_pg_txbuf_add(b, xid, subxid, lsn, tr_slice_of((const uint8_t *)text, (size_t)n), &err), TR_OK);
}

static void next(struct tr_pg_txbuf *b, struct tr_pg_tx *t, const char *want, uint64_t lsn, bool aborted)
{
    struct tr_slice m;
    uint64_t got_lsn;
    bool got_aborted;
    struct tr_err err;
    assert_int_equal(tr_pg_tx_next(b, t, &m, &got_lsn, &got_aborted, &err), TR_OK);
    assert_true(tr_slice_eq_str(m, want));
    assert_int_equal(got_lsn, lsn);
    assert_int_equal(got_aborted, aborted);
}

static void ends(struct tr_pg_txbuf *b, struct tr_pg_tx *t)
{
    struct tr_slice m;
    uint64_t lsn;
    bool aborted;
    struct tr_err err;
    assert_int_equal(tr_pg_tx_next(b, t, &m, &lsn, &aborted, &err), TR_EOF);
    assert_int_equal(tr_pg_tx_next(b, t, &m, &lsn, &aborted, &err), TR_EOF);
}

static void interleaved(void **state)
{
    struct tr_pg_txbuf b;
    (void)state;
    tr_pg_txbuf_init(&b, dir, 1 << 20);
    add(&b, 7, 7, 1, "a");
    add(&b, 8, 8, 2, "b");
    add(&b, 7, 70, 3, "c");
    add(&b, 7, 71, 4, "d");
    add(&b, 8, 8, 5, "%s", "");
    add(&b, 7, 70, 6, "e");
    assert_int_equal(tr_pg_txbuf_abort(&b, 7, 70, NULL), TR_OK);
    add(&b, 7, 72, 7, "f");
    struct tr_pg_tx *t = tr_pg_txbuf_take(&b, 7);
    assert_non_null(t);
    next(&b, t, "a", 1, false);
    next(&b, t, "c", 3, true); /* told, not hidden: a Relation among them counts */
    next(&b, t, "d", 4, false);
    next(&b, t, "e", 6, true);
    next(&b, t, "f", 7, false);
    ends(&b, t);
    tr_pg_tx_free(&b, t);
    assert_null(tr_pg_txbuf_take(&b, 7));
    assert_int_equal(tr_pg_txbuf_abort(&b, 8, 8, NULL), TR_OK);
    assert_null(tr_pg_txbuf_take(&b, 8));
    assert_int_equal(tr_pg_txbuf_abort(&b, 9, 9, NULL), TR_OK); /* nothing of it was sent */
    assert_int_equal(tr_pg_txbuf_abort(&b, 9, 90, NULL), TR_OK);
    assert_int_equal(b.memory, 0);
    assert_int_equal(b.spill_count, 0);
    tr_pg_txbuf_done(&b);
}

/* The largest goes to disk, the bound holds, order and contents survive, nothing has a name in the directory. */
static void spills(void **state)
{
    enum { N = 400 };
    struct tr_pg_txbuf b;
    char want[70000];
    (void)state;
    tr_pg_txbuf_init(&b, dir, 1 << 20);
    for (uint32_t i = 0; i < N; i++) {
        add(&b, 7, 7 + i % 3, i, "%u:%0*u", i, (int)(i % 7 * 5000 + 1), i);
        add(&b, 100 + i % 5, 100 + i % 5, i, "small %u", i);
        assert_true(b.memory <= (1 << 20) + 200000);
        if (i == N / 2)
            assert_int_equal(tr_pg_txbuf_abort(&b, 7, 8, NULL), TR_OK);
    }
    assert_int_equal(b.spill_count, 1);
    assert_true(b.spilled > 2u << 20);
    struct tr_pg_tx *t = tr_pg_txbuf_take(&b, 7);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(want, sizeof want, "%u:%0*u", i, (int)(i % 7 * 5000 + 1), i);
        next(&b, t, want, i, i % 3 == 1);
    }
    ends(&b, t);
    tr_pg_tx_free(&b, t);
    assert_int_equal(b.spilled, 0);
    for (uint32_t x = 100; x < 105; x++) {
        t = tr_pg_txbuf_take(&b, x);
        for (uint32_t i = x - 100; i < N; i += 5) {
            snprintf(want, sizeof want, "small %u", i);
            next(&b, t, want, i, false);
        }
        ends(&b, t);
        tr_pg_tx_free(&b, t);
    }
    assert_int_equal(b.memory, 0);
    tr_pg_txbuf_done(&b);
}

/* A transaction given up after it spilled frees its file; the buffer may go with transactions still open. */
static void given_up(void **state)
{
    struct tr_pg_txbuf b;
    (void)state;
    tr_pg_txbuf_init(&b, dir, 100000);
    for (uint32_t i = 0; i < 50; i++)
        add(&b, 7, 7, i, "%050000u", i);
    assert_true(b.spilled > 0);
    assert_int_equal(tr_pg_txbuf_abort(&b, 7, 7, NULL), TR_OK);
    assert_int_equal(b.spilled, 0);
    assert_int_equal(b.memory, 0);
    for (uint32_t i = 0; i < 50; i++)
        add(&b, 8 + i % 2, 8, i, "%050000u", i);
    tr_pg_txbuf_done(&b);
}

/* No room on disk: an error to try again, and nothing of what is held is lost. */
static void no_disk(void **state)
{
    struct tr_pg_txbuf b;
    struct tr_err err = {0};
    static uint8_t big[200000];
    (void)state;
    tr_pg_txbuf_init(&b, "/nowhere/at/all", 100000);
    add(&b, 7, 7, 1, "first");
    int rc = tr_pg_txbuf_add(&b, 7, 7, 2, tr_slice_of(big, sizeof big), &err);
    assert_true(rc < 0);
    assert_true(err.msg[0]);
    struct tr_pg_tx *t = tr_pg_txbuf_take(&b, 7);
    next(&b, t, "first", 1, false);
    ends(&b, t); /* what was refused is given again: it is not there twice */
    tr_pg_tx_free(&b, t);
    tr_pg_txbuf_done(&b);
}

/* The minor releases before and after are well. */
static void bad_releases(void **state)
{
    static const int bad[] = {130021, 140018, 150013, 160009, 170005};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_true(tr_pg_decodes_badly(bad[i]));
        assert_false(tr_pg_decodes_badly(bad[i] - 1));
        assert_false(tr_pg_decodes_badly(bad[i] + 1));
    }
    assert_false(tr_pg_decodes_badly(180000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(interleaved), cmocka_unit_test(spills), cmocka_unit_test(given_up), cmocka_unit_test(no_disk), cmocka_unit_test(bad_releases)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
