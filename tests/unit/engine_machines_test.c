/* The engine's pure machines: checkpointer, batcher, dispatcher, breaker, retry, budget, refusals; and how troubles are told. No clock, no thread: time is a number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tailrace/clock.h>

#include "batcher.h"
#include "breaker.h"
#include "budget.h"
#include "check.h"
#include "checkpointer.h"
#include "dispatcher.h"
#include "engine.h"
#include "refusal.h"
#include "retry.h"

/* ---- checkpointer ---- */

/* "D0:10 F1 D2:30" – delivered poll 0 upto 10, failed poll 1 …; '-' as upto: no statement. Returns the watermark. */
static int64_t play(struct tr_ckpt *c, const char *script)
{
    for (const char *p = script; *p;) {
        char what = *p++;
        char *end;
        uint64_t seq = strtoull(p, &end, 10);
        int64_t upto = INT64_MIN;
        if (*end == ':' && end[1] != '-')
            upto = strtoll(end + 1, &end, 10);
        else if (*end == ':')
            end += 2;
        assert_true(tr_ckpt_on_resolved(c, 0, 1, seq, upto, what == 'F', 100) >= 0);
        for (p = end; *p == ' '; p++)
            ;
    }
    return tr_ckpt_lane(c, 0, 1)->upto;
}

static void test_prefix(void **state)
{
    static const struct {
        const char *script;
        int64_t watermark;
        uint64_t head;
        bool stalled;
    } rows[] = {
        {"", INT64_MIN, 0, false},
        {"D0:10", 10, 1, false},
        {"D1:20", INT64_MIN, 0, false},
        {"D1:20 D0:10", 20, 2, false},
        {"D2:30 D1:20 D0:10", 30, 3, false},
        {"D0:10 D1:- D2:30", 30, 3, false},
        {"D0:10 D1:-", 10, 2, false},
        {"D0:- D1:-", INT64_MIN, 2, false},
        {"D0:10 F1:20", 10, 1, true},
        {"D0:10 F1:20 D2:30", 10, 1, true},
        {"F2:30 D0:10 D1:20", 20, 2, true},
        {"D0:1000 D1:7 D2:2000", 2000, 3, false}, /* never below an earlier statement */
    };
    (void)state;
    for (size_t i = 0; i < TR_ARRAY_LEN(rows); i++) {
        struct tr_ckpt c;
        tr_ckpt_init(&c, 64, 5, false, 0);
        assert_int_equal(tr_ckpt_begin_epoch(&c, 0, 1, 0), TR_OK);
        assert_true(play(&c, rows[i].script) == rows[i].watermark);
        assert_int_equal(tr_ckpt_lane(&c, 0, 1)->head, rows[i].head);
        assert_true((tr_ckpt_stalled_since(&c) != INT64_MAX) == rows[i].stalled);
        tr_ckpt_done(&c);
    }
}

static void test_epochs(void **state)
{
    struct tr_ckpt c;
    struct tr_watermark w[4];
    (void)state;
    tr_ckpt_init(&c, 64, 5, true, 0);
    tr_ckpt_begin_epoch(&c, 0, 1, 0);
    tr_ckpt_on_resolved(&c, 0, 1, 0, 10, false, 1);
    tr_ckpt_on_resolved(&c, 0, 1, 1, 20, true, 1);
    assert_int_equal(tr_ckpt_settled(&c, 0, 1, 1), 1);
    assert_int_equal(tr_ckpt_settled(&c, 0, 1, 2), -1);
    tr_ckpt_begin_epoch(&c, 0, 2, 2); /* anew: the failure is history */
    assert_true(tr_ckpt_stalled_since(&c) == INT64_MAX);
    assert_int_equal(tr_ckpt_on_resolved(&c, 0, 1, 2, 99, false, 3), 0); /* stale */
    assert_int_equal(tr_ckpt_on_resolved(&c, 5, 1, 0, 99, false, 3), 0); /* never assigned */
    assert_int_equal(c.stale, 2);
    assert_int_equal(tr_ckpt_collect(&c, w, 4), 0);
    assert_int_equal(tr_ckpt_settled(&c, 0, 2, 1), 0);
    assert_int_equal(tr_ckpt_on_resolved(&c, 0, 2, 0, 15, false, 4), 1);
    assert_int_equal(tr_ckpt_collect(&c, w, 4), 1);
    assert_int_equal(w[0].epoch, 2);
    assert_int_equal(w[0].upto, 15);
    tr_ckpt_end_epoch(&c, 0, 1); /* not this one */
    assert_non_null(tr_ckpt_lane(&c, 0, 2));
    tr_ckpt_end_epoch(&c, 0, 2);
    assert_null(tr_ckpt_lane(&c, 0, 2));
    assert_int_equal(tr_ckpt_settled(&c, 0, 2, 9), 1);
    tr_ckpt_done(&c);
}

static void test_commit_ticks(void **state)
{
    struct tr_ckpt c;
    struct tr_watermark w[2];
    (void)state;
    tr_ckpt_init(&c, 64, 100, false, 0);
    tr_ckpt_begin_epoch(&c, 0, 1, 0);
    assert_true(tr_ckpt_next_wake(&c) == INT64_MAX); /* nothing moved */
    tr_ckpt_on_resolved(&c, 0, 1, 0, 10, false, 20);
    assert_int_equal(tr_ckpt_next_wake(&c), 100);
    assert_false(tr_ckpt_due(&c, 99));
    assert_true(tr_ckpt_due(&c, 100));
    size_t n = tr_ckpt_collect(&c, w, 2);
    tr_ckpt_on_commit_failed(&c, 100, 30);
    assert_false(tr_ckpt_due(&c, 129));
    assert_true(tr_ckpt_due(&c, 130));
    tr_ckpt_on_committed(&c, w, n, 130);
    assert_int_equal(tr_ckpt_collect(&c, w, 2), 0);
    tr_ckpt_on_resolved(&c, 0, 1, 1, 20, false, 140);
    assert_int_equal(tr_ckpt_next_wake(&c), 230);
    tr_ckpt_done(&c);
}

static void test_ring_grows_within_its_bound(void **state)
{
    struct tr_ckpt c;
    (void)state;
    tr_ckpt_init(&c, 1024, 100, false, 0);
    tr_ckpt_begin_epoch(&c, 0, 1, 0);
    for (uint64_t s = 1000; s > 0; s--)
        tr_ckpt_on_resolved(&c, 0, 1, s, (int64_t)s, false, 0);
    assert_int_equal(tr_ckpt_lane(&c, 0, 1)->cap, 1024);
    assert_int_equal(tr_ckpt_on_resolved(&c, 0, 1, 0, 0, false, 0), 1);
    assert_int_equal(tr_ckpt_lane(&c, 0, 1)->upto, 1000);
    tr_ckpt_done(&c);
}

/* ---- batcher ---- */

struct bed {
    struct tr_batcher b;
    struct tr_batcher_item items[64];
    uint32_t n;
};

static void bed_init(struct bed *d, bool multi, bool boundary)
{
    struct tr_batcher_cfg c = {.multi = multi, .boundary = boundary, .rows_max = 100, .bytes_max = 1000, .tx_bytes_max = 2000, .linger_ns = 50, .bins_max = 4, .groups_max = 2};
    memset(d, 0, sizeof *d);
    assert_int_equal(tr_batcher_init(&d->b, &c), TR_OK);
}

static void bed_add(struct bed *d, uint64_t target, uint32_t rows, uint64_t bytes, int64_t oldest)
{
    struct tr_batcher_item *it = &d->items[d->n++];
    *it = (struct tr_batcher_item){.target = target, .table = target / 10, .rows = rows, .bytes = bytes, .charge = bytes, .oldest_ns = oldest};
    tr_list_init(&it->node);
    tr_batcher_on_item(&d->b, it);
}

/* Rows in the next batch, -1 when none is due; *tx_end as told. */
static int bed_next(struct bed *d, int64_t now, bool no_writes, bool *ret_tx_end)
{
    struct tr_list l;
    bool tx_end = false;
    int rows = 0;
    tr_list_init(&l);
    if (!tr_batcher_next(&d->b, now, no_writes, &l, &tx_end))
        return -1;
    TR_LIST_EACH (n, &l)
        rows += (int)tr_container_of(n, struct tr_batcher_item, node)->rows;
    if (ret_tx_end)
        *ret_tx_end = tx_end;
    return rows;
}

static void test_idle_batches_go_in_rounds(void **state)
{
    struct bed d;
    (void)state;
    bed_init(&d, false, false);
    d.b.cfg.pace_ns = 20;
    d.b.cfg.linger_ns = 1000;
    bed_add(&d, 10, 1, 10, 5);
    tr_batcher_on_idle(&d.b);
    assert_int_equal(bed_next(&d, 5, true, NULL), 1); /* after a pause: at once */
    bed_add(&d, 10, 2, 10, 6);
    bed_add(&d, 20, 3, 10, 7);
    tr_batcher_on_idle(&d.b);
    assert_int_equal(bed_next(&d, 24, true, NULL), -1); /* the round began at 5 */
    assert_int_equal(tr_batcher_next_wake(&d.b), 25);
    bed_add(&d, 10, 4, 10, 24); /* goes along */
    assert_int_equal(bed_next(&d, 25, true, NULL), 6);
    assert_int_equal(bed_next(&d, 26, false, NULL), -1);
    assert_int_equal(tr_batcher_next_wake(&d.b), 1007); /* of this round: it waits for the write alone */
    bed_add(&d, 30, 5, 10, 26);
    tr_batcher_on_idle(&d.b);
    assert_int_equal(bed_next(&d, 27, true, NULL), 3); /* the other table of the round */
    assert_int_equal(bed_next(&d, 27, true, NULL), -1);
    assert_int_equal(tr_batcher_next_wake(&d.b), 45);
    tr_batcher_on_force(&d.b);
    assert_int_equal(bed_next(&d, 28, false, NULL), 5); /* what is due for another reason keeps no pace */
    bed_add(&d, 30, 100, 10, 29);
    assert_int_equal(bed_next(&d, 29, false, NULL), 100);
    assert_true(tr_batcher_empty(&d.b));
    tr_batcher_done(&d.b);
}

static void test_batch_by_size_linger_idle_force(void **state)
{
    struct bed d;
    (void)state;
    bed_init(&d, true, false);
    assert_int_equal(bed_next(&d, 0, true, NULL), -1);
    bed_add(&d, 10, 10, 100, 5);
    assert_int_equal(bed_next(&d, 54, true, NULL), -1); /* free, but nobody said idle */
    assert_int_equal(tr_batcher_next_wake(&d.b), 55);
    assert_int_equal(bed_next(&d, 55, false, NULL), 10); /* linger, whatever is being written */
    bed_add(&d, 10, 60, 10, 100);
    bed_add(&d, 20, 60, 10, 101);
    assert_false(tr_batcher_wants_more(&d.b));
    assert_int_equal(bed_next(&d, 101, false, NULL), 60); /* 120 rows: a prefix within 100 */
    assert_int_equal(tr_batcher_next_wake(&d.b), 151);
    tr_batcher_on_idle(&d.b);
    assert_int_equal(bed_next(&d, 102, false, NULL), -1); /* a write is under way: gather */
    bed_add(&d, 20, 1, 10, 102);
    assert_int_equal(bed_next(&d, 103, true, NULL), 61);
    bed_add(&d, 20, 7, 5000, 200);
    assert_int_equal(bed_next(&d, 200, false, NULL), 7); /* too large alone, and goes alone */
    bed_add(&d, 20, 3, 10, 300);
    tr_batcher_on_force(&d.b);
    assert_int_equal(bed_next(&d, 300, false, NULL), 3);
    bed_add(&d, 20, 4, 10, 300);
    tr_batcher_on_close(&d.b);
    assert_int_equal(bed_next(&d, 300, false, NULL), 4);
    bed_add(&d, 20, 5, 10, 300); /* still forced */
    assert_int_equal(bed_next(&d, 300, false, NULL), 5);
    assert_true(tr_batcher_empty(&d.b));
    tr_batcher_done(&d.b);
}

static void test_batch_per_target(void **state)
{
    struct bed d;
    (void)state;
    bed_init(&d, false, false);
    bed_add(&d, 10, 1, 10, 1);
    bed_add(&d, 20, 2, 10, 2);
    bed_add(&d, 10, 4, 10, 3);
    assert_int_equal(bed_next(&d, 51, true, NULL), 5); /* linger of target 10 */
    assert_int_equal(bed_next(&d, 51, true, NULL), -1);
    bed_add(&d, 21, 8, 10, 60); /* table 2 in another version: the older goes now */
    assert_int_equal(bed_next(&d, 51, true, NULL), 2);
    assert_int_equal(bed_next(&d, 61, true, NULL), -1);
    bed_add(&d, 30, 1, 10, 61);
    bed_add(&d, 40, 16, 500, 62);
    bed_add(&d, 50, 1, 10, 63); /* all four bins: the largest goes */
    assert_false(tr_batcher_wants_more(&d.b));
    assert_int_equal(bed_next(&d, 63, false, NULL), 16);
    assert_true(tr_batcher_wants_more(&d.b));
    tr_batcher_on_close(&d.b);
    int left = 0;
    for (int rows; (rows = bed_next(&d, 63, false, NULL)) >= 0;)
        left += rows;
    assert_int_equal(left, 10);
    tr_batcher_done(&d.b);
}

static void test_batch_boundaries(void **state)
{
    struct bed d;
    struct tr_list l;
    bool tx_end;
    (void)state;
    bed_init(&d, true, true);
    bed_add(&d, 10, 1, 10, 1);
    tr_batcher_on_force(&d.b);
    assert_int_equal(bed_next(&d, 1000, true, NULL), -1); /* half a transaction is not written, not even by force */
    assert_true(tr_batcher_staged(&d.b));
    bed_add(&d, 20, 2, 10, 2);
    tr_batcher_on_boundary(&d.b, 0);
    assert_false(tr_batcher_staged(&d.b));
    bed_add(&d, 10, 4, 10, 3); /* the next one has begun */
    assert_int_equal(bed_next(&d, 52, true, &tx_end), 3);
    assert_true(tx_end);
    assert_int_equal(bed_next(&d, 1000, true, NULL), -1);
    tr_batcher_on_boundary(&d.b, 1); /* another thread's end */
    assert_int_equal(bed_next(&d, 1000, true, NULL), -1);
    tr_batcher_on_boundary(&d.b, 0);
    assert_int_equal(bed_next(&d, 1000, true, NULL), 4);
    /* cut within the maximum, but only behind an end: 90 rows, 60 rows, 5 rows */
    bed_add(&d, 10, 50, 10, 10);
    bed_add(&d, 20, 40, 10, 10);
    tr_batcher_on_boundary(&d.b, 0);
    bed_add(&d, 10, 30, 10, 10);
    bed_add(&d, 20, 30, 10, 10);
    tr_batcher_on_boundary(&d.b, 0);
    assert_int_equal(bed_next(&d, 11, false, &tx_end), 90);
    assert_true(tx_end);
    assert_int_equal(bed_next(&d, 60, false, &tx_end), 60);
    /* larger than any batch: whole all the same */
    bed_add(&d, 10, 500, 900, 70);
    bed_add(&d, 20, 500, 900, 70);
    tr_batcher_on_boundary(&d.b, 0);
    assert_int_equal(bed_next(&d, 70, false, &tx_end), 1000);
    assert_true(tx_end);
    /* larger than half the budget: in parts, and says so */
    bed_add(&d, 10, 7, 1500, 80);
    assert_int_equal(bed_next(&d, 80, false, NULL), -1);
    bed_add(&d, 10, 8, 1500, 80);
    assert_int_equal(d.b.splits, 1);
    int first = bed_next(&d, 80, false, &tx_end);
    assert_int_equal(first, 15); /* with no end in sight all of it goes */
    assert_false(tx_end);
    bed_add(&d, 10, 9, 10, 81);
    tr_batcher_on_boundary(&d.b, 0);
    tr_batcher_on_force(&d.b);
    assert_int_equal(bed_next(&d, 81, false, &tx_end), 9);
    assert_true(tx_end);
    /* teardown: what is behind the last end is taken to be failed */
    bed_add(&d, 10, 11, 10, 90);
    tr_list_init(&l);
    tr_batcher_on_close(&d.b);
    tr_batcher_take_staged(&d.b, &l);
    assert_int_equal(tr_list_count(&l), 1);
    tr_batcher_done(&d.b);
}

/* ---- dispatcher ---- */

struct rig {
    struct tr_dispatcher d;
    struct tr_prng prng;
    int batch[16]; /* addresses only */
};

static void rig_init(struct rig *r, uint32_t inflight, uint32_t endpoints, bool pipelined)
{
    struct tr_disp_cfg c = {.inflight = inflight, .queue = 4, .endpoints = endpoints, .pipelined = pipelined, .retry = {10, 10}, .breaker_failures = 2, .breaker_open_ns = 100};
    tr_prng_init(&r->prng, 1);
    assert_int_equal(tr_dispatcher_init(&r->d, &c, &r->prng), TR_OK);
}

static void seal(struct rig *r, int i, bool dependent)
{
    tr_dispatcher_on_sealed(&r->d, &r->batch[i], dependent);
}

/* The next action must be this, on this batch; returns the ticket. */
static uint64_t want(struct rig *r, int64_t now, enum tr_disp_kind kind, int batch)
{
    struct tr_disp_action a = tr_dispatcher_next(&r->d, now);
    assert_int_equal(a.kind, kind);
    if (kind != TR_DISP_ACT_NONE)
        assert_ptr_equal(a.batch, &r->batch[batch]);
    return a.ticket;
}

static void test_one_write_at_a_time(void **state)
{
    struct rig r;
    (void)state;
    rig_init(&r, 1, 1, false);
    assert_true(tr_dispatcher_idle(&r.d));
    seal(&r, 0, false);
    seal(&r, 1, false);
    uint64_t t = want(&r, 0, TR_DISP_ACT_WRITE, 0);
    want(&r, 0, TR_DISP_ACT_NONE, 0);
    tr_dispatcher_on_result(&r.d, t, TR_RETRY, TR_BLAME_BATCH, 0, 0);
    want(&r, 4, TR_DISP_ACT_NONE, 0); /* backoff: at least half of 10 */
    assert_in_range(tr_dispatcher_next_wake(&r.d), 5, 10);
    t = want(&r, 10, TR_DISP_ACT_WRITE, 0); /* the same batch, before the next */
    tr_dispatcher_on_result(&r.d, t - 1, TR_OK, 0, 0, 10); /* an old ticket says nothing */
    want(&r, 10, TR_DISP_ACT_NONE, 0);
    tr_dispatcher_on_result(&r.d, t, TR_OK, 0, 0, 10);
    want(&r, 10, TR_DISP_ACT_DONE, 0);
    t = want(&r, 10, TR_DISP_ACT_WRITE, 1);
    tr_dispatcher_on_result(&r.d, t, TR_OK, 0, 0, 10);
    want(&r, 10, TR_DISP_ACT_DONE, 1);
    assert_true(tr_dispatcher_idle(&r.d));
    assert_int_equal(r.d.retries, 1);
    tr_dispatcher_done(&r.d);
}

static void test_several_in_flight_and_dependent(void **state)
{
    struct rig r;
    (void)state;
    rig_init(&r, 3, 1, false);
    seal(&r, 0, false);
    seal(&r, 1, false);
    seal(&r, 2, true);
    seal(&r, 3, false);
    uint64_t t0 = want(&r, 0, TR_DISP_ACT_WRITE, 0), t1 = want(&r, 0, TR_DISP_ACT_WRITE, 1);
    want(&r, 0, TR_DISP_ACT_NONE, 0); /* 2 depends on 0 and 1; 3 is outside the window */
    tr_dispatcher_on_result(&r.d, t1, TR_OK, 0, 0, 0);
    want(&r, 0, TR_DISP_ACT_DONE, 1);
    uint64_t t3 = want(&r, 0, TR_DISP_ACT_WRITE, 3);
    want(&r, 0, TR_DISP_ACT_NONE, 0);
    tr_dispatcher_on_result(&r.d, t0, TR_OK, 0, 0, 0);
    want(&r, 0, TR_DISP_ACT_DONE, 0);
    uint64_t t2 = want(&r, 0, TR_DISP_ACT_WRITE, 2);
    tr_dispatcher_on_result(&r.d, t3, TR_OK, 0, 0, 0);
    tr_dispatcher_on_result(&r.d, t2, TR_OK, 0, 0, 0);
    want(&r, 0, TR_DISP_ACT_DONE, 2);
    want(&r, 0, TR_DISP_ACT_DONE, 3);
    tr_dispatcher_done(&r.d);
}

static void test_rejected_stale_failed(void **state)
{
    struct rig r;
    (void)state;
    rig_init(&r, 1, 1, false);
    for (int i = 0; i < 4; i++)
        seal(&r, i, false);
    uint64_t t = want(&r, 0, TR_DISP_ACT_WRITE, 0);
    tr_dispatcher_on_result(&r.d, t, TR_REJECT, TR_BLAME_BATCH, 0, 0);
    want(&r, 0, TR_DISP_ACT_REJECTED, 0);
    want(&r, 0, TR_DISP_ACT_NONE, 0); /* said once */
    tr_dispatcher_on_rewritten(&r.d, &r.batch[0]);
    t = want(&r, 0, TR_DISP_ACT_WRITE, 0);
    tr_dispatcher_on_result(&r.d, t, TR_REJECT, TR_BLAME_BATCH, 0, 0);
    want(&r, 0, TR_DISP_ACT_REJECTED, 0);
    tr_dispatcher_on_dropped(&r.d, &r.batch[0]);
    want(&r, 0, TR_DISP_ACT_DONE, 0);
    t = want(&r, 0, TR_DISP_ACT_WRITE, 1);
    tr_dispatcher_on_result(&r.d, t, TR_STALE, TR_BLAME_TARGET, 0, 0);
    want(&r, 0, TR_DISP_ACT_REBIND, 1);
    want(&r, 0, TR_DISP_ACT_NONE, 0);
    tr_dispatcher_on_rebound(&r.d, &r.batch[1], INT64_MIN);
    t = want(&r, 0, TR_DISP_ACT_WRITE, 1);
    tr_dispatcher_on_result(&r.d, t, TR_FENCED, 0, 0, 0);
    want(&r, 0, TR_DISP_ACT_FAIL, 1);
    want(&r, 0, TR_DISP_ACT_NONE, 0);
    assert_ptr_equal(tr_dispatcher_take(&r.d), &r.batch[1]);
    assert_ptr_equal(tr_dispatcher_take(&r.d), &r.batch[2]);
    assert_ptr_equal(tr_dispatcher_take(&r.d), &r.batch[3]);
    assert_null(tr_dispatcher_take(&r.d));
    tr_dispatcher_done(&r.d);
}

static void test_endpoints(void **state)
{
    struct rig r;
    (void)state;
    rig_init(&r, 2, 2, false);
    seal(&r, 0, false);
    seal(&r, 1, false);
    struct tr_disp_action a = tr_dispatcher_next(&r.d, 0), b = tr_dispatcher_next(&r.d, 0);
    assert_int_equal(a.endpoint, 0);
    assert_int_equal(b.endpoint, 1);
    tr_dispatcher_on_result(&r.d, a.ticket, TR_RETRY, TR_BLAME_ENDPOINT, 0, 0);
    a = tr_dispatcher_next(&r.d, 20);
    assert_int_equal(a.endpoint, 0); /* in turn */
    tr_dispatcher_on_result(&r.d, a.ticket, TR_RETRY, TR_BLAME_ENDPOINT, 0, 20);
    assert_int_equal(tr_dispatcher_open_breakers(&r.d), 1); /* two in a row */
    a = tr_dispatcher_next(&r.d, 40);
    assert_int_equal(a.endpoint, 1); /* the healthy one, whoever's turn it is */
    tr_dispatcher_on_result(&r.d, a.ticket, TR_RETRY, TR_BLAME_ENDPOINT, 0, 40);
    tr_dispatcher_on_result(&r.d, b.ticket, TR_RETRY, TR_BLAME_ENDPOINT, 0, 40);
    assert_int_equal(tr_dispatcher_open_breakers(&r.d), 2);
    assert_int_equal(tr_dispatcher_next(&r.d, 60).kind, TR_DISP_ACT_NONE);
    assert_int_equal(tr_dispatcher_next_wake(&r.d), 120); /* when the first breaker lets a trial through */
    a = tr_dispatcher_next(&r.d, 120);
    assert_int_equal(a.kind, TR_DISP_ACT_WRITE);
    assert_int_equal(a.endpoint, 0);
    assert_int_equal(tr_dispatcher_next(&r.d, 120).kind, TR_DISP_ACT_NONE); /* one trial, not two */
    tr_dispatcher_on_result(&r.d, a.ticket, TR_OK, 0, 0, 121);
    assert_int_equal(tr_dispatcher_next(&r.d, 121).kind, TR_DISP_ACT_DONE);
    assert_int_equal(tr_dispatcher_next(&r.d, 121).endpoint, 0);
    tr_dispatcher_done(&r.d);
}

static void test_pipelined(void **state)
{
    struct rig r;
    uint64_t t[5];
    (void)state;
    rig_init(&r, 4, 1, true);
    for (int i = 0; i < 5; i++)
        seal(&r, i, false);
    for (int i = 0; i < 4; i++)
        t[i] = want(&r, 0, TR_DISP_ACT_WRITE, i);
    want(&r, 0, TR_DISP_ACT_NONE, 0); /* the window */
    tr_dispatcher_on_result(&r.d, t[1], TR_OK, 0, 0, 0); /* all up to it */
    want(&r, 0, TR_DISP_ACT_DONE, 0);
    want(&r, 0, TR_DISP_ACT_DONE, 1);
    t[4] = want(&r, 0, TR_DISP_ACT_WRITE, 4);
    tr_dispatcher_on_result(&r.d, t[2], TR_RETRY, TR_BLAME_ENDPOINT, 0, 0); /* all from it on */
    want(&r, 0, TR_DISP_ACT_NONE, 0);
    tr_dispatcher_on_result(&r.d, t[4], TR_OK, 0, 0, 0); /* of before: says nothing now */
    for (int i = 2; i < 5; i++)
        assert_true((t[i] = want(&r, 20, TR_DISP_ACT_WRITE, i)) > t[1]);
    assert_true(t[2] < t[3] && t[3] < t[4]); /* in order, under new tickets */
    tr_dispatcher_on_forgotten(&r.d, t[4], 30); /* nothing is behind it */
    want(&r, 29, TR_DISP_ACT_NONE, 0);
    assert_int_equal(r.d.busy, 3);
    tr_dispatcher_on_forgotten(&r.d, 0, 30);
    want(&r, 29, TR_DISP_ACT_NONE, 0);
    for (int i = 2; i < 5; i++)
        t[i] = want(&r, 30, TR_DISP_ACT_WRITE, i);
    tr_dispatcher_on_result(&r.d, t[3], TR_REJECT, 0, 0, 30); /* that one */
    want(&r, 30, TR_DISP_ACT_REJECTED, 3);
    tr_dispatcher_on_result(&r.d, t[4], TR_OK, 0, 0, 30);
    want(&r, 30, TR_DISP_ACT_DONE, 2);
    want(&r, 30, TR_DISP_ACT_DONE, 4);
    tr_dispatcher_on_dropped(&r.d, &r.batch[3]);
    want(&r, 30, TR_DISP_ACT_DONE, 3);
    assert_true(tr_dispatcher_idle(&r.d));
    tr_dispatcher_done(&r.d);
}

/* ---- breaker, retry, budget ---- */

static void test_breaker(void **state)
{
    struct tr_breaker b;
    (void)state;
    tr_breaker_init(&b, 3, 100);
    for (int i = 0; i < 2; i++)
        tr_breaker_on_failure(&b, i);
    tr_breaker_on_ok(&b); /* consecutive ones count */
    for (int i = 0; i < 3; i++) {
        assert_true(tr_breaker_allows(&b, 10));
        tr_breaker_on_failure(&b, 10);
    }
    assert_false(tr_breaker_allows(&b, 109));
    assert_int_equal(tr_breaker_next_wake(&b), 110);
    tr_breaker_on_failure(&b, 50); /* of a write that was under way */
    assert_true(tr_breaker_allows(&b, 110));
    tr_breaker_on_start(&b);
    assert_false(tr_breaker_allows(&b, 110));
    tr_breaker_on_failure(&b, 111); /* the trial failed: at once again */
    assert_false(tr_breaker_allows(&b, 210));
    assert_true(tr_breaker_allows(&b, 211));
    tr_breaker_on_start(&b);
    tr_breaker_on_neutral(&b); /* a trial that told nothing leaves room for another */
    assert_true(tr_breaker_allows(&b, 212));
    tr_breaker_on_start(&b);
    tr_breaker_on_ok(&b);
    assert_int_equal(b.state, TR_BREAKER_CLOSED);
    tr_breaker_init(&b, 0, 100);
    for (int i = 0; i < 100; i++)
        tr_breaker_on_failure(&b, 1);
    assert_true(tr_breaker_allows(&b, 1));
}

static void test_retry_delays(void **state)
{
    static const struct {
        uint32_t attempt, wish_ms;
        int64_t lo, hi;
    } rows[] = {
        {0, 0, 50 * TR_NS_PER_MS, 100 * TR_NS_PER_MS},
        {1, 0, 100 * TR_NS_PER_MS, 200 * TR_NS_PER_MS},
        {3, 0, 400 * TR_NS_PER_MS, 800 * TR_NS_PER_MS},
        {5, 0, 1000 * TR_NS_PER_MS, 2000 * TR_NS_PER_MS}, /* capped */
        {UINT32_MAX, 0, 1000 * TR_NS_PER_MS, 2000 * TR_NS_PER_MS},
        {0, 700, 700 * TR_NS_PER_MS, 700 * TR_NS_PER_MS},
        {0, 4000000, 20000 * TR_NS_PER_MS, 20000 * TR_NS_PER_MS}, /* a wish has its bound */
    };
    struct tr_retry r = {100 * TR_NS_PER_MS, 2000 * TR_NS_PER_MS};
    struct tr_prng p;
    (void)state;
    tr_prng_init(&p, 7);
    for (size_t i = 0; i < TR_ARRAY_LEN(rows); i++)
        for (int k = 0; k < 100; k++)
            assert_in_range(tr_retry_delay_ns(&r, rows[i].attempt, rows[i].wish_ms, &p), rows[i].lo, rows[i].hi);
    r = (struct tr_retry){0, 0};
    assert_in_range(tr_retry_delay_ns(&r, 9, 0, &p), 0, 1);
}

static void test_budget(void **state)
{
    struct tr_budget b;
    (void)state;
    tr_budget_init(&b, 80, 50, 10);
    assert_false(tr_budget_on_level(&b, 80, 0));
    assert_false(b.engaged);
    tr_budget_on_level(&b, 81, 100);
    assert_true(b.engaged);
    assert_false(tr_budget_on_level(&b, 51, 200)); /* not low enough */
    assert_true(tr_budget_next_wake(&b) == INT64_MAX);
    assert_true(tr_budget_on_level(&b, 50, 201));
    assert_false(b.engaged);
    assert_int_equal(b.blocked_ns, 101);
    tr_budget_on_refused(&b, 300);
    tr_budget_on_refused(&b, 305); /* one engagement */
    assert_false(tr_budget_on_level(&b, 0, 309));
    assert_int_equal(tr_budget_next_wake(&b), 310);
    assert_true(tr_budget_on_level(&b, 0, 310));
    assert_int_equal(b.engagements, 2);
}

static const char *why(const struct tr_refusals *r, uint32_t table_id, uint32_t variant, uint64_t generation)
{
    const struct tr_err *e = tr_refusals_why(r, table_id, variant, generation);
    return e ? e->msg : "";
}

static void test_refusals(void **state)
{
    struct tr_refusals r;
    struct tr_err a = {.msg = "a"}, b = {.msg = "b"};
    uint64_t g;
    (void)state;
    assert_int_equal(tr_refusals_init(&r), TR_OK);
    struct tr_generation *out = tr_refusals_enter(&r, NULL);
    assert_int_equal(tr_refusals_add(&r, 1, 0, &a), TR_OK);
    assert_int_equal(tr_refusals_add(&r, 1, 0, &b), TR_OK); /* known: the first reason stays */
    assert_string_equal(why(&r, 1, 0, 0), "a");
    assert_string_equal(why(&r, 1, 1, 0), ""); /* another variant, another table */
    assert_string_equal(why(&r, 2, 0, 0), "");
    assert_int_equal(tr_refusals_unbound(&r, 2, 0, &g), TR_OK);
    assert_string_equal(why(&r, 1, 0, g), "a"); /* not the one that was let go of */
    assert_int_equal(tr_refusals_unbound(&r, 1, 0, &g), TR_OK);
    assert_int_equal(g, 2);
    assert_string_equal(why(&r, 1, 0, 1), "a");
    assert_string_equal(why(&r, 1, 0, 2), "");
    assert_int_equal(tr_refusals_unbound(&r, 1, 0, &g), TR_OK); /* a second time: what came between stays in */
    assert_string_equal(why(&r, 1, 0, 2), "");
    assert_int_equal(tr_refusals_add(&r, 1, 0, &b), TR_OK); /* refused anew */
    assert_string_equal(why(&r, 1, 0, 3), "b");
    for (uint32_t t = 10; t < 30; t++)
        assert_int_equal(tr_refusals_add(&r, t, 2, &a), TR_OK);
    assert_string_equal(why(&r, 29, 2, 0), "a");
    assert_true(tr_refusals_enter(&r, out)->n == 3);
    tr_refusals_done(&r);
}

/* A refusal is kept until nothing put before the unbind is left, on whatever shard, nor can come from a terminal that has not seen it. */
static void test_refusals_expire(void **state)
{
    struct tr_refusals r;
    struct tr_err e = {.msg = "no"};
    uint64_t g;
    (void)state;
    assert_int_equal(tr_refusals_init(&r), TR_OK);
    struct tr_generation *one = tr_refusals_enter(&r, NULL), *two = tr_refusals_enter(&r, NULL);
    struct tr_generation *chunk = tr_generation_ref(one), *slow = tr_generation_ref(two);
    tr_refusals_add(&r, 1, 0, &e);
    tr_refusals_unbound(&r, 1, 0, &g);
    one = tr_refusals_enter(&r, one);
    tr_generation_unref(chunk);
    assert_true(tr_refusals_expire(&r)); /* the other terminal may still put something */
    two = tr_refusals_enter(&r, two);
    assert_true(tr_refusals_expire(&r)); /* and did */
    chunk = tr_generation_ref(one);      /* that newer ones never end does not matter */
    tr_refusals_unbound(&r, 2, 0, &g);
    assert_int_equal(tr_list_count(&r.generations), 3);
    tr_generation_unref(slow);
    assert_string_equal(why(&r, 1, 0, 0), "no");
    assert_false(tr_refusals_expire(&r));
    assert_string_equal(why(&r, 1, 0, 0), "");
    assert_int_equal(tr_list_count(&r.generations), 2);
    tr_refusals_add(&r, 3, 0, &e); /* not let go of: never */
    one = tr_refusals_enter(&r, one);
    two = tr_refusals_enter(&r, two);
    tr_generation_unref(chunk);
    assert_true(tr_refusals_expire(&r));
    assert_int_equal(tr_list_count(&r.generations), 1);
    for (int i = 0; i < 100; i++) { /* unbinds alone do not pile up */
        tr_refusals_unbound(&r, 2, 0, &g);
        one = tr_refusals_enter(&r, one);
        two = tr_refusals_enter(&r, two);
    }
    assert_in_range(tr_list_count(&r.generations), 1, 2);
    tr_refusals_unbound(&r, 3, 0, &g);
    tr_generation_unref(one);
    tr_generation_unref(two);
    assert_false(tr_refusals_expire(&r));
    tr_refusals_done(&r);
}

/* A sink that is away for an hour, as its shard and its target thread see it. */
static void test_two_reporters_are_told_once(void **state)
{
    static struct tr_runtime p = {.name = "p"};
    struct tr_clock_sim sim;
    struct tr_party lite = {.who = "lite"}, lane = {.who = "lane 0"};
    struct tr_trouble shard = {.with = &lite}, target = {.with = &lite}, other = {.with = &lane};
    struct tr_err write = {.rc = TR_RETRY, .msg = "connection refused"};
    int fds[2], lines = 0;
    char out[8192];
    (void)state;
    assert_int_equal(pipe(fds), 0);
    tr_oslog_setup(TR_OSLOG_INFO, false, fds[1]);
    tr_clock_sim_init(&sim, 1, 1000000);
    tr_clock_set(&sim.clock);
    tr_mutex_init(&p.lock);
    tr_list_init(&p.troubles);
    for (int s = 0; s < 3600; s += 10) {
        tr_pl_trouble(&p, &shard, &write);
        if (s >= 20) /* the next probe */
            tr_pl_trouble(&p, &target, &write);
        tr_clock_sim_advance(&sim, 10 * TR_NS_PER_S);
    }
    tr_pl_well(&p, &target);
    tr_pl_trouble(&p, &target, &write);
    tr_pl_trouble(&p, &other, &write); /* somebody else's */
    tr_pl_well(&p, &target);
    tr_pl_well(&p, &shard);
    tr_pl_well(&p, &shard);
    tr_pl_forget(&p, &other);
    assert_true(tr_list_empty(&p.troubles));
    tr_oslog_setup(TR_OSLOG_OFF, false, 2);
    close(fds[1]);
    size_t n = 0;
    for (ssize_t r; (r = read(fds[0], out + n, sizeof out - 1 - n)) > 0;)
        n += (size_t)r;
    close(fds[0]);
    out[n] = 0;
    for (const char *c = out; (c = strchr(c, '\n')); c++)
        lines++;
    assert_non_null(strstr(out, "well again after 60 min 0 s pipeline=p who=lite"));
    assert_null(strstr(strstr(out, "well again") + 1, "well again"));
    assert_int_equal(lines, 12 + 1 + 1 + 1); /* every five minutes, again at the end; the lane; well again */
    tr_mutex_done(&p.lock);
    tr_clock_set(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_commit_ticks),
        cmocka_unit_test(test_ring_grows_within_its_bound),
        cmocka_unit_test(test_batch_by_size_linger_idle_force),
        cmocka_unit_test(test_idle_batches_go_in_rounds),
        cmocka_unit_test(test_batch_per_target),
        cmocka_unit_test(test_batch_boundaries),
        cmocka_unit_test(test_one_write_at_a_time),
        cmocka_unit_test(test_several_in_flight_and_dependent),
        cmocka_unit_test(test_rejected_stale_failed),
        cmocka_unit_test(test_endpoints),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_breaker),
        cmocka_unit_test(test_retry_delays),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refusals_expire),
        cmocka_unit_test(test_two_reporters_are_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
