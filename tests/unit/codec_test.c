/* The codecs against bytes written by hand from their specifications; cut off and changed at every place, nothing may crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "copytext.h"
#include "frame.h"
#include "key.h"
#include "pgoutput.h"
#include "rowimage.h"

#define BYTES(s) tr_slice_of((const uint8_t *)(s), sizeof(s) - 1)

static struct tr_pgoutput decoder;

/* A copy in memory of exactly that size, so that a sanitizer sees a read beyond it. */
static int decode(struct tr_slice s, bool in_stream, struct tr_pg_msg *m)
{
    static uint8_t *held;
    struct tr_err err;
    free(held);
    held = malloc(s.n ? s.n : 1);
    memcpy(held, s.p, s.n);
    memset(&err, 0, sizeof err);
    int rc = tr_pgoutput_decode(&decoder, tr_slice_of(held, s.n), in_stream, m, &err);
    if (rc < 0) {
        assert_int_equal(rc, TR_REJECT);
        assert_true(err.msg[0]);
    }
    return rc;
}

/* Every prefix is refused (but for those listed by `whole`), as is one byte more. */
static void golden(struct tr_slice s, bool in_stream, struct tr_pg_msg *m)
{
    struct tr_pg_msg other;
    uint8_t longer[512];
    assert_true(s.n < sizeof longer);
    for (size_t n = 0; n < s.n; n++)
        assert_int_equal(decode(tr_slice_of(s.p, n), in_stream, &other), TR_REJECT);
    memcpy(longer, s.p, s.n);
    longer[s.n] = 0;
    assert_int_equal(decode(tr_slice_of(longer, s.n + 1), in_stream, &other), TR_REJECT);
    assert_int_equal(decode(s, in_stream, m), TR_OK);
    assert_int_equal(m->type, s.p[0]);
}

static void transactions(void **state)
{
    struct tr_pg_msg m;
    (void)state;
    golden(BYTES("B\0\0\0\0\1\2\3\4\0\0\0\0\0\0\0\5\0\0\2\xd6"), false, &m);
    assert_int_equal(m.u.begin.final_lsn, 0x01020304);
    assert_int_equal(m.u.begin.ts, 5);
    assert_int_equal(m.xid, 726);
    golden(BYTES("C\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\xff\xff\xff\xff\xff\xff\xff\xff"), false, &m);
    assert_int_equal(m.u.commit.commit_lsn, 0x10);
    assert_int_equal(m.u.commit.end_lsn, 0x20);
    assert_int_equal(m.u.commit.ts, -1);
    assert_int_equal(m.xid, 0);
    golden(BYTES("O\0\0\0\1\0\0\0\2origin\0"), false, &m);
    assert_int_equal(m.u.origin.lsn, UINT64_C(0x100000002));
    assert_string_equal(m.u.origin.name, "origin");
    assert_int_equal(tr_pg_time_us(0), INT64_C(946684800000000));
}

static void relations(void **state)
{
    struct tr_pg_msg m;
    (void)state;
#define REL "\0\0\x40\1public\0t\0d\0\2\1id\0\0\0\0\x17\xff\xff\xff\xff\0v\0\0\0\6\xa4\0\x0a\0\6"
    golden(BYTES("R" REL), false, &m);
    assert_int_equal(m.u.relation.oid, 0x4001);
    assert_string_equal(m.u.relation.ns, "public");
    assert_string_equal(m.u.relation.name, "t");
    assert_int_equal(m.u.relation.identity, 'd');
    assert_int_equal(m.u.relation.n, 2);
    assert_int_equal(m.u.relation.cols[0].flags, 1);
    assert_string_equal(m.u.relation.cols[0].name, "id");
    assert_int_equal(m.u.relation.cols[0].type_oid, 23);
    assert_int_equal(m.u.relation.cols[0].typmod, -1);
    assert_string_equal(m.u.relation.cols[1].name, "v");
    assert_int_equal(m.u.relation.cols[1].typmod, 0xa0006);
    assert_int_equal(m.xid, 0);
    golden(BYTES("R\0\0\0\7" REL), true, &m); /* streamed: the xid stands behind the type */
    assert_int_equal(m.xid, 7);
    assert_int_equal(m.u.relation.oid, 0x4001);
    golden(BYTES("R\0\0\0\1\0pg_type\0n\0\0"), false, &m);
    assert_string_equal(m.u.relation.ns, "pg_catalog");
    golden(BYTES("Y\0\0\0\7public\0mood\0"), false, &m);
    assert_string_equal(m.u.type_.name, "mood");
    golden(BYTES("Y\0\0\0\5\0\0\0\7public\0mood\0"), true, &m);
    assert_int_equal(m.xid, 5);
}

static void rows(void **state)
{
    struct tr_pg_msg m;
    (void)state;
    golden(BYTES("I\0\0\0\1N\0\4t\0\0\0\1" "7nut\0\0\0\0"), false, &m);
    assert_true(m.u.row.has_new);
    assert_int_equal(m.u.row.old_kind, 0);
    assert_int_equal(m.u.row.new_.n, 4);
    assert_memory_equal(m.u.row.new_.kind, "tnut", 4);
    assert_true(tr_slice_eq_str(m.u.row.new_.v[0], "7"));
    assert_int_equal(m.u.row.new_.v[3].n, 0);
    golden(BYTES("I\0\0\0\x9\0\0\0\1N\0\1b\0\0\0\2\0\xff"), true, &m); /* binary */
    assert_int_equal(m.xid, 9);
    assert_memory_equal(m.u.row.new_.v[0].p, "\0\xff", 2);
    golden(BYTES("U\0\0\0\1N\0\1t\0\0\0\1x"), false, &m);
    assert_int_equal(m.u.row.old_kind, 0);
    golden(BYTES("U\0\0\0\1K\0\2t\0\0\0\1" "1nN\0\2t\0\0\0\1" "2u"), false, &m);
    assert_int_equal(m.u.row.old_kind, 'K');
    assert_true(tr_slice_eq_str(m.u.row.old.v[0], "1"));
    assert_int_equal(m.u.row.old.kind[1], 'n');
    assert_int_equal(m.u.row.new_.kind[1], 'u');
    golden(BYTES("U\0\0\0\3\0\0\0\1O\0\1t\0\0\0\3oldN\0\1t\0\0\0\3new"), true, &m);
    assert_int_equal(m.u.row.old_kind, 'O');
    assert_true(tr_slice_eq_str(m.u.row.old.v[0], "old"));
    assert_true(tr_slice_eq_str(m.u.row.new_.v[0], "new"));
    golden(BYTES("D\0\0\0\1K\0\1t\0\0\0\1" "5"), false, &m);
    assert_false(m.u.row.has_new);
    assert_true(tr_slice_eq_str(m.u.row.old.v[0], "5"));
    golden(BYTES("D\0\0\0\4\0\0\0\1O\0\1n"), true, &m);
    assert_int_equal(decode(BYTES("I\0\0\0\1K\0\1n"), false, &m), TR_REJECT);
    assert_int_equal(decode(BYTES("D\0\0\0\1N\0\1n"), false, &m), TR_REJECT);
    assert_int_equal(decode(BYTES("I\0\0\0\1N\0\1x"), false, &m), TR_REJECT);
    assert_int_equal(decode(BYTES("I\0\0\0\1N\0\1t\xff\xff\xff\xff"), false, &m), TR_REJECT);
    assert_int_equal(decode(BYTES("I\0\0\0\1N\xff\xff"), false, &m), TR_REJECT);
}

static void truncates_and_messages(void **state)
{
    struct tr_pg_msg m;
    (void)state;
    golden(BYTES("T\0\0\0\2\3\0\0\0\1\0\0\0\2"), false, &m);
    assert_int_equal(m.u.truncate.n, 2);
    assert_int_equal(m.u.truncate.flags, 3);
    assert_int_equal(tr_pg_truncate_oid(&m, 0), 1);
    assert_int_equal(tr_pg_truncate_oid(&m, 1), 2);
    golden(BYTES("T\0\0\0\x8\0\0\0\1\0\0\0\0\1"), true, &m);
    assert_int_equal(m.xid, 8);
    assert_int_equal(decode(BYTES("T\x40\0\0\0\0\0\0\0\1"), false, &m), TR_REJECT);
    golden(BYTES("M\1\0\0\0\0\0\0\0\x10pre\0\0\0\0\3a\0b"), false, &m);
    assert_int_equal(m.u.message.flags, 1);
    assert_int_equal(m.u.message.lsn, 0x10);
    assert_string_equal(m.u.message.prefix, "pre");
    assert_memory_equal(m.u.message.content.p, "a\0b", 3);
    golden(BYTES("M\0\0\0\2\1\0\0\0\0\0\0\0\x10pre\0\0\0\0\0"), true, &m);
    assert_int_equal(m.xid, 2);
}

static void streams(void **state)
{
    struct tr_pg_msg m;
    (void)state;
    golden(BYTES("S\0\0\0\7\1"), false, &m);
    assert_int_equal(m.xid, 7);
    assert_true(m.u.stream_start.first_segment);
    golden(BYTES("E"), true, &m);
    golden(BYTES("c\0\0\0\7\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3"), false, &m);
    assert_int_equal(m.xid, 7);
    assert_int_equal(m.u.commit.commit_lsn, 1);
    assert_int_equal(m.u.commit.end_lsn, 2);
    for (uint8_t proto = 2; proto <= 4; proto++) {
        decoder.proto = proto;
        assert_int_equal(decode(BYTES("A\0\0\0\7\0\0\0\x9"), false, &m), TR_OK); /* also at 4, when streaming is not parallel */
        assert_int_equal(m.xid, 7);
        assert_int_equal(m.u.stream_abort.subxid, 9);
        int rc = decode(BYTES("A\0\0\0\7\0\0\0\x9\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\6"), false, &m);
        assert_int_equal(rc, proto == 4 ? TR_OK : TR_REJECT);
        if (rc == TR_OK)
            assert_int_equal(m.u.stream_abort.lsn, 5);
    }
}

static void two_phase(void **state)
{
    struct tr_pg_msg m;
    (void)state;
    golden(BYTES("b\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\7gid\0"), false, &m);
    assert_int_equal(m.u.prepare.prepare_lsn, 1);
    assert_int_equal(m.u.prepare.end_lsn, 2);
    assert_int_equal(m.xid, 7);
    assert_string_equal(m.u.prepare.gid, "gid");
    for (const char *t = "PKp"; *t; t++) {
        char bytes[] = "P\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\7gid\0";
        bytes[0] = *t;
        golden(tr_slice_of((const uint8_t *)bytes, sizeof bytes - 1), false, &m);
        assert_int_equal(m.u.prepare.end_lsn, 2);
        assert_int_equal(m.xid, 7);
    }
    golden(BYTES("r\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\7gid\0"), false, &m);
    assert_int_equal(m.xid, 7);
    assert_string_equal(m.u.prepare.gid, "gid");
    assert_int_equal(decode(BYTES("Z"), false, &m), TR_REJECT);
    assert_int_equal(decode(BYTES("\0"), true, &m), TR_REJECT);
    assert_int_equal(decode(BYTES(""), true, &m), TR_REJECT);
}

/* Any bytes at all: an answer, never a crash (for sanitizers). */
static void noise(void **state)
{
    static const char types[] = "BCORYIUDTMSEcAbPKrp";
    uint32_t x = 1;
    struct tr_pg_msg m;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint8_t b[64];
        for (size_t k = 0; k < sizeof b; k++) {
            x = x * 1664525 + 1013904223;
            b[k] = x >> 30 ? (uint8_t)(x >> 26 & 7) : (uint8_t)(x >> 20);
        }
        b[0] = (uint8_t)types[x % (sizeof types - 1)];
        decoder.proto = 1 + (i & 3);
        decode(tr_slice_of(b, 1 + x / 7 % sizeof b), i & 8, &m);
    }
}

/* ---- COPY text ---- */

static void copy_text(void **state)
{
    struct tr_slice v[4];
    uint8_t st[4], scratch[128];
    struct tr_err err;
    (void)state;
    assert_int_equal(tr_copytext_decode(BYTES("a\t\\N\t\t\\\\N\n"), 4, scratch, v, st, &err), TR_OK);
    assert_memory_equal(st, ((uint8_t[]){TR_PRESENT, TR_NULL, TR_PRESENT, TR_PRESENT}), 4);
    assert_true(tr_slice_eq_str(v[0], "a"));
    assert_int_equal(v[2].n, 0);
    assert_true(tr_slice_eq_str(v[3], "\\N"));
    assert_int_equal(tr_copytext_decode(BYTES("x\\ty\\nz\\\\\\b\\f\\r\\v"), 1, scratch, v, st, &err), TR_OK);
    assert_true(tr_slice_eq_str(v[0], "x\ty\nz\\\b\f\r\v"));
    assert_int_equal(tr_copytext_decode(BYTES("\\101\\x42\\x4g\\q"), 1, scratch, v, st, &err), TR_OK);
    assert_true(tr_slice_eq_str(v[0], "AB\4gq"));
    assert_int_equal(tr_copytext_decode(BYTES("\\\\\\N\t\\."), 2, scratch, v, st, &err), TR_OK);
    assert_true(tr_slice_eq_str(v[0], "\\N"));
    assert_int_equal(tr_copytext_decode(BYTES("a\tb"), 1, scratch, v, st, &err), TR_REJECT);
    assert_int_equal(tr_copytext_decode(BYTES("a"), 2, scratch, v, st, &err), TR_REJECT);
    assert_int_equal(tr_copytext_decode(BYTES("a\\"), 1, scratch, v, st, &err), TR_REJECT);
    assert_int_equal(tr_copytext_decode(BYTES(""), 0, scratch, v, st, &err), TR_OK);
    assert_int_equal(tr_copytext_decode(BYTES("x"), 0, scratch, v, st, &err), TR_REJECT);
    struct tr_buf b;
    tr_buf_init(&b);
    for (int c = 1; c < 256; c++) { /* what is written is read back */
        uint8_t in[3] = {'<', (uint8_t)c, '>'};
        tr_buf_clear(&b);
        assert_int_equal(tr_copytext_append(&b, tr_slice_of(in, 3)), TR_OK);
        assert_int_equal(tr_copytext_decode(tr_buf_slice(&b), 1, scratch, v, st, &err), TR_OK);
        assert_true(tr_slice_eq(v[0], tr_slice_of(in, 3)));
    }
    tr_buf_done(&b);
}

/* ---- keys ---- */

static struct tr_schema *schema(uint8_t type1, uint8_t type2)
{
    struct tr_column c[] = {{.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1},
                            {.name = "b", .source_type = "x", .type = type2, .key_pos = 2, .precision = -1},
                            {.name = "a", .source_type = "x", .type = type1, .key_pos = 1, .precision = -1}};
    struct tr_schema_def d = {.table_id = 3, .version = 2, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = 3};
    struct tr_schema *s = NULL;
    struct tr_err err;
    assert_int_equal(tr_schema_new(&d, &s, &err), TR_OK);
    return s;
}

static void key_is(const struct tr_schema *s, const char *a, const char *b, struct tr_slice want)
{
    struct tr_slice v[3] = {{NULL, 0}, tr_slice_str(b), tr_slice_str(a)};
    uint8_t st[3] = {TR_NULL, TR_PRESENT, TR_PRESENT};
    struct tr_row r = {v, st, 3};
    struct tr_buf k;
    struct tr_err err;
    tr_buf_init(&k);
    assert_int_equal(tr_key_encode(s, &r, &k, &err), TR_OK);
    assert_int_equal(k.n, want.n);
    assert_memory_equal(k.p, want.p, want.n);
    struct tr_slice cols[2];
    assert_int_equal(tr_key_decode(tr_buf_slice(&k), 2, cols, &err), TR_OK);
    for (size_t n = 0; n < k.n; n++)
        assert_int_equal(tr_key_decode(tr_slice_of(k.p, n), 2, cols, &err), TR_REJECT);
    assert_int_equal(tr_key_decode(tr_buf_slice(&k), 1, cols, &err), TR_REJECT);
    tr_buf_done(&k);
}

static void keys(void **state)
{
    struct tr_err err;
    (void)state;
    struct tr_schema *s = schema(TR_TYPE_DECIMAL, TR_TYPE_FLOAT64);
    key_is(s, "1.00", "-0", BYTES("\1" "1\1" "0"));
    key_is(s, "1.10", "1.10", BYTES("\3" "1.1\4" "1.10"));
    key_is(s, "100", "100", BYTES("\3" "100\3" "100"));
    key_is(s, "-0.00", "-0.5", BYTES("\1" "0\4" "-0.5"));
    key_is(s, "0.000", "NaN", BYTES("\1" "0\3" "NaN"));
    key_is(s, "NaN", "Infinity", BYTES("\3NaN\x8Infinity"));
    struct tr_slice v[3] = {{NULL, 0}, BYTES("1"), {NULL, 0}};
    for (int st = TR_ABSENT; st < TR_PRESENT; st++) { /* a TOASTed key that was not sent, too */
        uint8_t states[3] = {TR_PRESENT, TR_PRESENT, (uint8_t)st};
        struct tr_row r = {v, states, 3};
        struct tr_buf k = {0};
        assert_int_equal(tr_key_encode(s, &r, &k, &err), TR_REJECT);
        assert_non_null(strstr(err.msg, "column a of table public.t"));
        tr_buf_done(&k);
    }
    tr_schema_unref(s);
    s = schema(TR_TYPE_TEXT, TR_TYPE_INT32);
    key_is(s, "1.00", "-0", BYTES("\4" "1.00\2" "-0"));
    key_is(s, "", "5", BYTES("\0\1" "5"));
    tr_schema_unref(s);
}

/* ---- row images and frames ---- */

static void row_images(void **state)
{
    struct tr_slice v[6] = {BYTES("ab"), {NULL, 0}, {NULL, 0}, {NULL, 0}, BYTES(""), BYTES("\0\1")}, w[6];
    uint8_t st[6] = {TR_PRESENT, TR_NULL, TR_UNCHANGED, TR_ABSENT, TR_PRESENT, TR_PRESENT}, u[6];
    struct tr_row r = {v, st, 6}, got;
    struct tr_buf b = {0};
    struct tr_err err;
    (void)state;
    assert_int_equal(tr_rowimage_encode(&r, &b), TR_OK);
    struct tr_slice want = BYTES("\6\x27\x0f\2ab\0\2\0\1"); /* states: 11 01 10 00, 11 11 from the low bits up */
    assert_int_equal(b.n, want.n);
    assert_memory_equal(b.p, want.p, want.n);
    assert_int_equal(tr_rowimage_decode(tr_buf_slice(&b), 6, w, u, &got, &err), TR_OK);
    assert_int_equal(got.n, 6);
    assert_memory_equal(u, st, 6);
    for (int i = 0; i < 6; i++)
        if (st[i] == TR_PRESENT)
            assert_true(tr_slice_eq(v[i], w[i]));
    for (size_t n = 1; n < b.n; n++)
        assert_int_equal(tr_rowimage_decode(tr_slice_of(b.p, n), 6, w, u, &got, &err), TR_REJECT);
    assert_int_equal(tr_rowimage_decode(tr_buf_slice(&b), 5, w, u, &got, &err), TR_REJECT); /* more columns than the schema */
    assert_int_equal(tr_rowimage_decode(BYTES(""), 6, w, u, &got, &err), TR_OK);
    assert_int_equal(got.n, 0);
    assert_int_equal(tr_rowimage_decode(BYTES("\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"), 6, w, u, &got, &err), TR_REJECT);
    tr_buf_done(&b);
}

static void frames(void **state)
{
    struct tr_schema *s = schema(TR_TYPE_INT32, TR_TYPE_INT32);
    struct tr_slice v[3] = {BYTES("value"), BYTES("2"), BYTES("1")};
    uint8_t st[3] = {TR_PRESENT, TR_PRESENT, TR_PRESENT};
    struct tr_change c = {.op = TR_OP_UPDATE, .epoch = 127, .flags = TR_CHG_MOVED | TR_CHG_UNCHANGED | TR_CHG_NO_UPSERT, .ordinal = 70000, .schema = s,
                          .version = UINT64_MAX, .commit_lsn = 1, .change_lsn = 128, .end_lsn = 3, .xid = UINT64_C(1) << 40, .snapshot_id = 9, .commit_us = -5,
                          .capture_us = INT64_MAX, .key = BYTES("\1" "1\1" "2"), .old_key = BYTES("\1" "0\1" "2"), .after = {v, st, 3}, .message = BYTES("m")};
    struct tr_buf b = {0};
    struct tr_err err;
    struct tr_frame_head h;
    struct tr_frame_body f;
    (void)state;
    assert_int_equal(tr_frame_encode(&c, &b, &err), TR_OK);
    assert_int_equal(tr_frame_decode(tr_buf_slice(&b), &f, &err), TR_OK);
    assert_int_equal(f.head.length, b.n);
    assert_int_equal(f.table_id, 3);
    assert_int_equal(f.schema_version, 2);
    assert_int_equal(f.change.op, TR_OP_UPDATE);
    assert_int_equal(f.change.flags, TR_CHG_MOVED | TR_CHG_UNCHANGED); /* notes to the sink are not persisted */
    assert_int_equal(f.change.epoch, 127);
    assert_true(f.change.version == UINT64_MAX && f.change.xid == UINT64_C(1) << 40 && f.change.change_lsn == 128);
    assert_int_equal(f.change.ordinal, 70000);
    assert_int_equal(f.change.commit_us, -5);
    assert_true(f.change.capture_us == INT64_MAX);
    assert_true(tr_slice_eq(f.change.key, c.key) && tr_slice_eq(f.change.old_key, c.old_key) && tr_slice_eq(f.change.message, c.message));
    assert_int_equal(f.old_image.n, 0);
    struct tr_slice w[3];
    uint8_t u[3];
    struct tr_row r;
    assert_int_equal(tr_rowimage_decode(f.image, 3, w, u, &r, &err), TR_OK);
    assert_true(tr_slice_eq_str(w[0], "value"));
    for (size_t n = 0; n < b.n; n++) { /* cut off, and one byte changed */
        int rc = tr_frame_peek(tr_slice_of(b.p, n), &h, &err);
        assert_int_equal(rc, TR_AGAIN);
        assert_int_equal(tr_frame_decode(tr_slice_of(b.p, n), &f, &err), TR_REJECT);
        b.p[n] ^= 0x20;
        assert_int_equal(tr_frame_decode(tr_buf_slice(&b), &f, &err), TR_REJECT);
        b.p[n] ^= 0x20;
    }
    assert_int_equal(tr_frame_decode(tr_buf_slice(&b), &f, &err), TR_OK);
    tr_buf_clear(&b);
    assert_int_equal(tr_frame_encode_schema(s, 1, TR_FRAME_REPEAT, &b, &err), TR_OK);
    assert_int_equal(tr_frame_decode(tr_buf_slice(&b), &f, &err), TR_OK);
    assert_int_equal(f.head.kind, TR_FRAME_REPEAT);
    struct tr_schema *again = NULL;
    assert_int_equal(tr_schema_decode(f.change.message, &again, &err), TR_OK);
    assert_true(again->fingerprint == s->fingerprint);
    tr_schema_unref(again);
    tr_schema_unref(s);
    tr_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transactions), cmocka_unit_test(relations), cmocka_unit_test(rows),       cmocka_unit_test(truncates_and_messages), cmocka_unit_test(streams),
        cmocka_unit_test(two_phase),    cmocka_unit_test(noise),     cmocka_unit_test(copy_text),  cmocka_unit_test(keys),                   cmocka_unit_test(row_images),
        cmocka_unit_test(frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
