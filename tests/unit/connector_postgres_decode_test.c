/* Replication messages into changes: heartbeats that come as logical messages, and everybody else's messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc.h"
#include "pg_beat.h"
#include "pg_stream_internal.h"

#define BYTES(s) tr_slice_of((const uint8_t *)(s), sizeof(s) - 1)
#define OURS "tailrace/heartbeat/main"

static struct tr_pg_source_options options = {.slot = "main", .heartbeat_schema = "tailrace"};

static int begin_test(void **state)
{
    struct pg_stream *s = tr_calloc(1, sizeof *s);
    struct tr_err err;
    if (!s || tr_pg_beat_schema(&options, &s->beat, &err) < 0)
        return -1;
    s->o = &options;
    s->dec.proto = 2;
    tr_u64map_init(&s->rels);
    tr_pg_txbuf_init(&s->txbuf, "/tmp", 1 << 20);
    tr_arena_init(&s->arena, 64 << 10, 0);
    *state = s;
    return 0;
}

static int end_test(void **state)
{
    struct pg_stream *s = *state;
    tr_pg_decode_done(s);
    tr_free(s);
    return 0;
}

static void take(struct pg_stream *s, struct tr_slice m)
{
    struct tr_err err;
    s->item = (struct pg_item){.msg = m, .lsn = 1, .set = true};
    assert_int_equal(tr_pg_decode_item(s, &err), TR_OK);
    assert_false(s->item.set);
}

static void put_be(struct tr_buf *b, uint64_t v, int bytes)
{
    while (bytes-- > 0)
        assert_int_equal(tr_buf_append_u8(b, (uint8_t)(v >> 8 * bytes)), TR_OK);
}

/* xid 0: not inside a stream. */
static void say(struct pg_stream *s, uint32_t xid, uint8_t flags, const char *prefix, const char *content)
{
    struct tr_buf b;
    tr_buf_init(&b);
    put_be(&b, 'M', 1);
    if (xid)
        put_be(&b, xid, 4);
    put_be(&b, flags, 1);
    put_be(&b, 7, 8);
    tr_buf_append_slice(&b, tr_slice_of((const uint8_t *)prefix, strlen(prefix) + 1));
    put_be(&b, strlen(content), 4);
    tr_buf_append_str(&b, content);
    struct tr_slice m = tr_arena_dup(&s->arena, tr_buf_slice(&b));
    tr_buf_done(&b);
    take(s, m);
}

static void begins(struct pg_stream *s, uint8_t lsn)
{
    uint8_t m[] = "B\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\5\0\0\2\xd6";
    m[8] = lsn;
    take(s, tr_slice_of(m, sizeof m - 1));
}

static void commits(struct pg_stream *s, uint8_t lsn)
{
    uint8_t m[] = "C\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5";
    m[9] = lsn;
    m[17] = (uint8_t)(lsn + 1);
    take(s, tr_slice_of(m, sizeof m - 1));
}

static void replays(struct pg_stream *s)
{
    struct tr_err err;
    int rc;
    while ((rc = tr_pg_decode_replay(s, &err)) == TR_OK)
        assert_int_equal(tr_pg_decode_item(s, &err), TR_OK);
    assert_int_equal(rc, TR_EOF);
}

static const struct tr_change *change(const struct pg_stream *s, uint32_t i)
{
    assert_true(i < s->n);
    return s->v[i].meta;
}

static void is_beat(const struct pg_stream *s, uint32_t i, const char *at_us)
{
    const struct tr_change *c = change(s, i);
    assert_int_equal(c->op, TR_OP_INSERT);
    assert_ptr_equal(c->schema, s->beat);
    assert_int_equal(c->after.n, 2);
    assert_int_equal(c->after.state[0], TR_PRESENT);
    assert_int_equal(c->after.state[1], TR_PRESENT);
    assert_true(tr_slice_eq_str(c->after.v[0], "main"));
    assert_true(tr_slice_eq_str(c->after.v[1], at_us));
}

/* What the row would have been: the change, then the commit. */
static void a_heartbeat(void **state)
{
    struct pg_stream *s = *state;
    assert_string_equal(s->beat->ns, "tailrace");
    assert_string_equal(s->beat->name, "heartbeat");
    assert_int_equal(s->beat->n_key, 1);
    assert_int_equal(s->beat->key[0], 0);
    begins(s, 16);
    say(s, 0, 1, OURS, "1700000000000000");
    commits(s, 16);
    assert_int_equal(s->n, 2);
    is_beat(s, 0, "1700000000000000");
    assert_int_equal(change(s, 0)->commit_lsn, 16);
    assert_int_equal(change(s, 1)->op, TR_OP_COMMIT);
    assert_int_equal(s->pos, 17);
}

/* Nothing of theirs comes out, and a transaction of nothing else has no commit; but the position moves. */
static void other_people(void **state)
{
    struct pg_stream *s = *state;
    static const char *const contents[] = {"", "0", "-1", "+1", "12x", " 1", "9223372036854775808", "99999999999999999999", "1700000000.0"};
    say(s, 0, 0, "outbox", "between transactions");
    say(s, 0, 1, OURS, "1700000000000000"); /* outside any: cannot be, but must not crash */
    begins(s, 16);
    say(s, 0, 1, "outbox", "1700000000000000");
    say(s, 0, 1, "", "1");
    say(s, 0, 1, "tailrace", "");
    say(s, 0, 1, "tailrace/heartbeat/", "1");
    say(s, 0, 1, "tailrace/heartbeat/mai", "1");
    say(s, 0, 1, "tailrace/heartbeat/main2", "1");
    say(s, 0, 0, OURS, "1");
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++)
        say(s, 0, 1, OURS, contents[i]);
    uint64_t bytes = s->bytes;
    assert_true(bytes > 0); /* a poll full of them ends */
    commits(s, 16);
    say(s, 0, 0, OURS, "1");
    assert_int_equal(s->n, 0);
    assert_int_equal(s->pos, 17);
    assert_false(s->in_tx);
    begins(s, 32);
    say(s, 0, 1, OURS, "9223372036854775807");
    commits(s, 32);
    assert_int_equal(s->n, 2);
    is_beat(s, 0, "9223372036854775807");
}

/* Streamed before its commit: other people's are not even held; of what was rolled back nothing remains, if the server would say so. */
static void streamed(void **state)
{
    struct pg_stream *s = *state;
    take(s, BYTES("S\0\0\2\xd6\1"));
    say(s, 726, 1, "outbox", "theirs");
    say(s, 726, 1, "tailrace", "");
    assert_int_equal(s->txbuf.memory, 0);
    say(s, 727, 1, OURS, "1700000000000001");
    assert_true(s->txbuf.memory > 0);
    say(s, 728, 1, OURS, "1700000000000002");
    take(s, BYTES("E"));
    say(s, 0, 0, "outbox", "not transactional, between pieces");
    take(s, BYTES("A\0\0\2\xd6\0\0\2\xd7"));
    assert_int_equal(s->n, 0);
    take(s, BYTES("c\0\0\2\xd6\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\5"));
    replays(s);
    assert_int_equal(s->n, 2);
    is_beat(s, 0, "1700000000000002");
    assert_int_equal(change(s, 1)->op, TR_OP_COMMIT);
    take(s, BYTES("S\0\0\2\xd9\1")); /* nothing of it was held */
    say(s, 729, 1, "outbox", "theirs");
    take(s, BYTES("E"));
    take(s, BYTES("c\0\0\2\xd9\0\0\0\0\0\0\0\0\x30\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\5"));
    assert_null(s->replay);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->pos, 0x40);
}

/* Sent again after the connection was lost in the middle: one heartbeat was delivered, the other follows, other people's do not count. */
static void sent_again(void **state)
{
    struct pg_stream *s = *state;
    begins(s, 16);
    say(s, 0, 1, "outbox", "theirs");
    say(s, 0, 1, OURS, "1");
    assert_int_equal(s->n, 1);
    tr_pg_decode_reset(s);
    assert_int_equal(tr_pg_decode_release_output(s), TR_OK);
    begins(s, 16);
    say(s, 0, 1, "outbox", "theirs");
    say(s, 0, 1, OURS, "1");
    say(s, 0, 1, OURS, "2");
    commits(s, 16);
    assert_int_equal(s->n, 2);
    is_beat(s, 0, "2");
}

static void cut_off(void **state)
{
    struct pg_stream *s = *state;
    static const struct { const char *p; size_t n; } bad[] = {{"M\1\0\0\0", 5}, {"M\0\0\2\xd6\1\0", 7}};
    struct tr_err err;
    for (int stream = 0; stream < 2; stream++) {
        s->stream_xid = stream ? 726 : 0;
        s->item = (struct pg_item){.msg = tr_slice_of((const uint8_t *)bad[stream].p, bad[stream].n), .set = true, .in_stream = stream};
        assert_int_equal(tr_pg_decode_item(s, &err), TR_FATAL);
        assert_int_equal(err.rc, TR_FATAL);
    }
}

/* What no server sends, in an order that no transaction has: it is refused, whatever it would have done. */
static void out_of_place(void **state)
{
    struct pg_stream *s = *state;
    static const struct { int set; struct tr_slice m; } cases[] = {
        {0, TR_SLICE_LIT("I\0\0\0\1N\0\0")}, {0, TR_SLICE_LIT("T\0\0\0\0\0")}, {0, TR_SLICE_LIT("E")},
        {0, TR_SLICE_LIT("C\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5")},
        {1, TR_SLICE_LIT("B\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\5\0\0\2\xd6")}, {1, TR_SLICE_LIT("S\0\0\2\xd6\1")},
        {1, TR_SLICE_LIT("C\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5")}, /* of another transaction */
        {2, TR_SLICE_LIT("S\0\0\2\xd6\1")}, {2, TR_SLICE_LIT("B\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\5\0\0\2\xd6")},
        {2, TR_SLICE_LIT("c\0\0\2\xd6\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\5")},
        {0, TR_SLICE_LIT("b\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\1g\0")}, /* two-phase, which was not asked for */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tr_err err = {0};
        tr_pg_decode_reset(s);
        if (cases[i].set == 1)
            begins(s, 16);
        if (cases[i].set == 2)
            take(s, BYTES("S\0\0\2\xd6\1"));
        s->item = (struct pg_item){.msg = cases[i].m, .set = true};
        if (tr_pg_decode_item(s, &err) != TR_FATAL || !strstr(err.msg, "cannot stand where"))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(s->n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_heartbeat, begin_test, end_test),
        cmocka_unit_test_setup_teardown(other_people, begin_test, end_test),
        cmocka_unit_test_setup_teardown(streamed, begin_test, end_test),
        cmocka_unit_test_setup_teardown(sent_again, begin_test, end_test),
        cmocka_unit_test_setup_teardown(cut_off, begin_test, end_test),
        cmocka_unit_test_setup_teardown(out_of_place, begin_test, end_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
