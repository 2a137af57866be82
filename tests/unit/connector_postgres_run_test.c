/* Rows of a table gathered for one statement: what goes in, what ends a run, and how values are written in an array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "pg_run.h"

static struct pg_run run;
static const struct tr_sqltarget one, other;

static struct tr_sqlm_step step(enum tr_sqlm_kind kind, const struct tr_sqlm_param *v, uint32_t n)
{
    return (struct tr_sqlm_step){.kind = kind, .params = v, .n = n};
}

static void add(const struct tr_sqltarget *t, enum tr_sqlm_kind kind, const char *key, const char *text)
{
    struct tr_sqlm_param v[] = {{.text = tr_slice_str(key)}, {.null = !text, .text = text ? tr_slice_str(text) : (struct tr_slice){NULL, 0}}};
    struct tr_sqlm_step s = step(kind, v, 2);
    assert_true(tr_pg_run_takes(&run, t, &s, tr_slice_str(key)));
    assert_int_equal(tr_pg_run_add(&run, t, &s, tr_slice_str(key), 3), TR_OK);
}

static bool takes(const struct tr_sqltarget *t, enum tr_sqlm_kind kind, const char *key)
{
    struct tr_sqlm_step s = step(kind, NULL, 0);
    return tr_pg_run_takes(&run, t, &s, tr_slice_str(key));
}

static void test_values(void **state)
{
    (void)state;
    const char *v[2];
    add(&one, TR_SQLM_UPSERT, "1", "plain");
    add(&one, TR_SQLM_UPSERT, "2", NULL);
    add(&one, TR_SQLM_UPSERT, "3", "");
    add(&one, TR_SQLM_UPSERT, "4", "NULL");
    add(&one, TR_SQLM_UPSERT, "5", "a \"quoted\" \\ and {a,b}\n");
    assert_int_equal(tr_pg_run_values(&run, v), TR_OK);
    assert_string_equal(v[0], "{\"1\",\"2\",\"3\",\"4\",\"5\"}");
    assert_string_equal(v[1], "{\"plain\",NULL,\"\",\"NULL\",\"a \\\"quoted\\\" \\\\ and {a,b}\n\"}");
    assert_int_equal(run.n, 5);
    assert_int_equal(run.part, 3);
    tr_pg_run_clear(&run);
    add(&one, TR_SQLM_UPSERT, "1", "again");
    assert_int_equal(tr_pg_run_values(&run, v), TR_OK);
    assert_string_equal(v[1], "{\"again\"}");
    tr_pg_run_clear(&run);
}

static void test_what_ends_a_run(void **state)
{
    (void)state;
    struct tr_sqlm_step s = step(TR_SQLM_PATCH, NULL, 0);
    assert_false(tr_pg_run_suits(&s));
    s.kind = TR_SQLM_MOVE;
    assert_false(tr_pg_run_suits(&s));
    s.kind = TR_SQLM_TOMBSTONE;
    assert_false(tr_pg_run_suits(&s));
    add(&one, TR_SQLM_UPSERT, "1", "a");
    add(&one, TR_SQLM_UPSERT, "2", "b");
    assert_true(takes(&one, TR_SQLM_UPSERT, "3"));
    assert_false(takes(&one, TR_SQLM_UPSERT, "1"));
    assert_false(takes(&other, TR_SQLM_UPSERT, "3"));
    assert_false(takes(&one, TR_SQLM_LOG, "3"));
    tr_pg_run_clear(&run);
    assert_true(takes(&other, TR_SQLM_LOG, "1"));
    add(&one, TR_SQLM_LOG, "1", "a");
    assert_true(takes(&one, TR_SQLM_LOG, "1")); /* history takes every change of a key */
    tr_pg_run_clear(&run);
}

static void test_bounds(void **state)
{
    (void)state;
    char key[16];
    for (int i = 0; i < PG_RUN_ROWS; i++) {
        assert_false(tr_pg_run_full(&run));
        snprintf(key, sizeof key, "%d", i);
        add(&one, TR_SQLM_UPSERT, key, "x");
    }
    assert_true(tr_pg_run_full(&run));
    for (int i = 0; i < PG_RUN_ROWS; i++) {
        snprintf(key, sizeof key, "%d", i);
        assert_false(takes(&one, TR_SQLM_UPSERT, key));
    }
    tr_pg_run_clear(&run);
    static char large[PG_RUN_BYTES + 1];
    memset(large, 'x', sizeof large - 1);
    add(&one, TR_SQLM_UPSERT, "1", large);
    assert_true(tr_pg_run_full(&run));
    tr_pg_run_done(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_what_ends_a_run),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
