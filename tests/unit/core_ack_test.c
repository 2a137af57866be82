/* Unit tests of src/core: acks, their sets, and segments, which are the budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ack.h"
#include "seg.h"

struct note {
    int n;
};

static void notify(void *arg)
{
    ((struct note *)arg)->n++;
}

static void free_all(struct tr_ack *a)
{
    for (struct tr_ack *next; a; a = next) {
        next = a->next;
        tr_ack_free(a);
    }
}

static void test_the_last_reference_posts_the_worst(void **state)
{
    struct tr_ack_sink sink;
    struct tr_ackset one, two;
    struct tr_ack *a, *b;
    struct note note = {0};
    (void)state;
    tr_ack_sink_init(&sink, notify, &note);
    tr_ackset_init(&one);
    tr_ackset_init(&two);
    assert_int_equal(tr_ack_new(&sink, 1, 2, 0, 10, &a), 0);
    assert_int_equal(tr_ack_new(&sink, 1, 2, 1, 20, &b), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(tr_ackset_add(&one, a), 0); /* one reference */
    assert_int_equal(tr_ackset_add(&two, a), 0);
    assert_int_equal(tr_ackset_add(&two, b), 0);
    tr_ack_unref(a);
    tr_ack_unref(b);
    tr_ackset_deliver(&one);
    assert_null(tr_ack_sink_take(&sink));
    tr_ackset_done(&two); /* not delivered: fails */
    assert_int_equal(note.n, 1);
    struct tr_ack *got = tr_ack_sink_take(&sink);
    assert_ptr_equal(got, a);
    assert_ptr_equal(got->next, b);
    assert_int_equal(atomic_load(&a->status), TR_ACK_FAILED);
    assert_int_equal(atomic_load(&b->status), TR_ACK_FAILED);
    free_all(got);
}

static void test_sets_move_and_merge(void **state)
{
    struct tr_ack_sink sink;
    struct tr_ackset from, to, moved;
    struct tr_ack *v[10];
    int n = 0;
    (void)state;
    tr_ack_sink_init(&sink, NULL, NULL);
    tr_ackset_init(&from);
    tr_ackset_init(&to);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tr_ack_new(&sink, 0, 0, (uint64_t)i, i, &v[i]), 0);
        assert_int_equal(tr_ackset_add(i < 3 ? &to : &from, v[i]), 0);
    }
    assert_int_equal(tr_ackset_add(&to, v[3]), 0); /* the same at the seam */
    moved = from;
    tr_ackset_init(&from);
    assert_int_equal(tr_ackset_merge(&to, &moved), 0);
    assert_int_equal(to.n, 10);
    assert_int_equal(moved.n, 0);
    tr_ackset_done(&moved);
    tr_ackset_done(&from);
    for (int i = 0; i < 10; i++)
        tr_ack_unref(v[i]);
    tr_ackset_deliver(&to);
    struct tr_ack *got = tr_ack_sink_take(&sink);
    for (struct tr_ack *a = got; a; a = a->next, n++)
        assert_int_equal(atomic_load(&a->status), TR_ACK_DELIVERED);
    assert_int_equal(n, 10);
    free_all(got);
}

static void low(void *arg)
{
    ++*(int *)arg;
}

static void test_the_pool_is_the_budget(void **state)
{
    struct tr_pool p;
    struct tr_seg *a, *b, *c;
    int lows = 0;
    (void)state;
    tr_pool_init(&p, 10000, 0.8, 0.5);
    p.on_low = low;
    p.on_low_arg = &lows;
    assert_int_equal(tr_seg_new(&p, 6000, &a), 0);
    assert_int_equal(tr_seg_new(&p, 6000, &b), TR_AGAIN);
    assert_int_equal(tr_seg_force(&p, 6000, &b), 0); /* its payload has begun */
    assert_int_equal(tr_pool_charged(&p), 12000);
    assert_true(tr_pool_above_high(&p));
    tr_seg_ref(b);
    tr_seg_unref(b);
    assert_int_equal(tr_pool_charged(&p), 12000);
    tr_seg_unref(b);
    assert_int_equal(lows, 0);
    tr_seg_trim(a); /* empty: gives all but a byte back */
    assert_int_equal(lows, 1);
    tr_seg_unref(a);
    assert_int_equal(tr_pool_charged(&p), 0);
    assert_int_equal(tr_seg_new(&p, 50000, &c), 0); /* one always passes when the pool is empty */
    tr_seg_unref(c);
    assert_int_equal(atomic_load(&p.peak), 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_reference_posts_the_worst),
        cmocka_unit_test(test_sets_move_and_merge),
        cmocka_unit_test(test_the_pool_is_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
