/* What a ClickHouse server's answer means, and changes that become records without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/connectors.h>

#include "ch_sink.h"
#include "check.h"
#include "key.h"

static void judged(long status, long code, const char *tag, bool data, const char *body, int rc, uint8_t blame)
{
    struct tr_err err = {0};
    struct ch_answer a = {.status = status, .code = code, .tag = tag, .data = data, .body = tr_slice_str(body)};
    int got = tr_ch_judge("sink x", &a, &err);
    if (got != rc || (rc < 0 && err.blame != blame))
        fail_msg("%ld %ld '%s': %s, blame %d: %s", status, code, body, tr_rc_name(got), err.blame, err.msg);
}

#define E TR_BLAME_ENDPOINT
#define T TR_BLAME_TARGET
#define B TR_BLAME_BATCH

static void test_answers(void **state)
{
    (void)state;
    judged(200, 0, "", false, "", TR_OK, 0);
    judged(200, 0, "abc", true, "rows with DB::Exception and Code: 60. in them", TR_OK, 0);
    judged(200, 0, "abc", true, "rows\r\n__exception__\r\nabc\r\nCode: 241. DB::Exception: Memory", TR_RETRY, E);
    judged(200, 0, "", false, "Code: 241. DB::Exception: Memory", TR_RETRY, E);
    judged(200, 0, "", false, "<html>", TR_RETRY, E);
    judged(200, 241, "", true, "", TR_RETRY, E);
    judged(200, 27, "", false, "", TR_REJECT, B);
    judged(500, 252, "", false, "Code: 252. DB::Exception: Too many parts (3000). Merges are", TR_RETRY, E);
    judged(500, 252, "", false, "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100)", TR_REJECT, B);
    judged(404, 60, "", false, "Code: 60. DB::Exception: Table shop.t does not exist", TR_STALE, T);
    judged(404, 0, "", false, "Code: 60, e.displayText() = DB::Exception: Table shop.t doesn't exist., e.what() = DB::Exception", TR_STALE, T);
    judged(400, 117, "", false, "Code: 117. DB::Exception: types", TR_STALE, T);
    judged(500, 1002, "", false, "Code: 1002. DB::Exception: Unknown", TR_REJECT, B);
    judged(502, 0, "", false, "Bad gateway", TR_RETRY, E);
    judged(403, 516, "", false, "Code: 516. DB::Exception: default: Authentication failed", TR_RETRY, E);
    judged(500, 164, "", false, "Code: 164. DB::Exception: readonly", TR_RETRY, E);
}

static void test_no_values_in_messages(void **state)
{
    (void)state;
    struct tr_err err = {0};
    struct ch_answer a = {.status = 400, .code = 27, .tag = "", .body = tr_slice_str("Code: 27. DB::Exception: Cannot parse input: (at row 1)\nRow 1: parsed text: 'secret': While executing X. (CANNOT_PARSE) (version 26.7)")};
    assert_int_equal(tr_ch_judge("sink x", &a, &err), TR_REJECT);
    assert_string_equal(err.msg, "sink x: Code: 27. DB::Exception: Cannot parse input: (at row 1)");
}

static void test_escapes(void **state)
{
    (void)state;
    struct tr_buf b = {0};
    assert_int_equal(tr_ch_url_escape(tr_slice_str("k0 DateTime64(6, 'UTC')&x=%\xc3\xa9"), &b), TR_OK);
    assert_string_equal(tr_buf_cstr(&b), "k0%20DateTime64%286%2C%20%27UTC%27%29%26x%3D%25%C3%A9");
    tr_buf_done(&b);
}

static int opened(const char *const *urls, size_t n, struct tr_sink **ret, struct tr_err *err)
{
    static struct tr_ch_options o;
    const struct tr_component_env env = {.name = "x", .state_dir = "/tmp", .lease_token = 1};
    o = (struct tr_ch_options){.urls = {urls, n}, .database = "d", .user = "u"};
    return tr_clickhouse_sink_type.sink_new(&o, &env, ret, err);
}

static void test_urls(void **state)
{
    (void)state;
    struct tr_sink *s = NULL;
    struct tr_err err = {0};
    const char *const good[] = {"http://a:1/, https://b:2", "http://c:3"};
    assert_int_equal(opened(good, 2, &s, &err), TR_OK);
    assert_int_equal(s->shards, 2);
    assert_int_equal(s->n_endpoints, 2);
    assert_int_equal(s->shard_endpoints[0], 2);
    assert_int_equal(s->shard_endpoints[1], 1);
    assert_string_equal(s->endpoints[1]->url, "https://b:2");
    assert_string_equal(s->endpoints[2]->url, "http://c:3");
    assert_int_equal(s->endpoints[2]->shard, 1);
    s->ops->close(s);
    static const char *const bad[] = {"a:1", "http://a:1,", "http://a:1,,http://b:1", "http://u:p@a:1", "http://a:1/?x=1", "ftp://a"};
    for (size_t i = 0; i < TR_ARRAY_LEN(bad); i++) {
        assert_int_equal(opened(&bad[i], 1, &s, &err), TR_REJECT);
        assert_non_null(strstr(err.msg, "each of urls is http"));
        assert_null(strstr(err.msg, "u:p"));
    }
    const char *many[CH_ENDPOINTS_MAX + 1];
    for (size_t i = 0; i < TR_ARRAY_LEN(many); i++)
        many[i] = "http://a:1";
    assert_int_equal(opened(many, TR_ARRAY_LEN(many), &s, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "more than 64 servers"));
    assert_int_equal(opened(many, 0, &s, &err), TR_REJECT);
}

/* ---- records ---- */

static struct ch_sink sink;
static struct tr_ch_options options;
static struct tr_sqltarget target;
static struct ch_table *table;
static struct tr_encoder *encoder;

static int setup(void **state)
{
    (void)state;
    const struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .precision = -1},
                                  {.name = "n", .source_type = "numeric(5,2)", .type = TR_TYPE_DECIMAL, .precision = 5, .scale = 2},
                                  {.name = "big", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = 3};
    struct tr_err err;
    sink.o = &options;
    sink.sql.dialect = (enum tr_dialect)(TR_DIALECT_CLICKHOUSE | TR_CLICKHOUSE_TODAY);
    assert_int_equal(tr_schema_new(&d, &target.schema, &err), TR_OK);
    snprintf(target.ns, sizeof target.ns, "m");
    snprintf(target.name, sizeof target.name, "t");
    assert_int_equal(tr_ch_table_new(&sink, &target, TR_TABLE_MIRROR_SOFT, &table, &err), TR_OK);
    target.own = table;
    return tr_ch_encoder_new(&sink.sql.sink, &target.target, &encoder, &err);
}

static int teardown(void **state)
{
    (void)state;
    encoder->ops->free(encoder);
    tr_ch_table_free(table);
    tr_schema_unref(target.schema);
    return 0;
}

/* "=": unchanged. */
static int encoded(uint8_t op, uint64_t version, const char *id, const char *n, const char *big, struct tr_buf *out, struct tr_err *err)
{
    const char *const texts[] = {id, n, big};
    struct tr_slice v[3];
    uint8_t st[3];
    struct tr_buf key = {0};
    uint32_t done;
    for (int i = 0; i < 3; i++) {
        v[i] = tr_slice_str(texts[i] ? texts[i] : "");
        st[i] = !texts[i] ? TR_NULL : !strcmp(texts[i], "=") ? TR_UNCHANGED : TR_PRESENT;
    }
    struct tr_row row = {v, st, 3};
    struct tr_change g = {.op = op, .schema = target.schema, .version = version, .commit_us = 1, .after = op == TR_OP_DELETE ? (struct tr_row){0} : row};
    assert_int_equal(tr_key_encode(target.schema, &row, &key, err), TR_OK);
    g.key = tr_buf_slice(&key);
    int rc = encoder->ops->encode(encoder, &g, 1, &done, out, err);
    tr_buf_done(&key);
    return rc;
}

static void test_rows(void **state)
{
    (void)state;
    struct tr_buf out = {0}, key = {0};
    struct tr_err err;
    struct ch_record r;
    uint32_t ends[6];
    assert_int_equal(encoded(TR_OP_INSERT, 258, "7", "-1.5", NULL, &out, &err), TR_OK);
    assert_int_equal(encoded(TR_OP_UPDATE, 259, "7", "1", "=", &out, &err), TR_OK);
    assert_int_equal(encoded(TR_OP_DELETE, 260, "7", NULL, NULL, &out, &err), TR_OK);
    struct tr_cur c = tr_cur_of(tr_buf_slice(&out));
    assert_int_equal(tr_ch_record_next(&c, &r, &err), TR_OK);
    assert_int_equal(r.kind, CH_ROW);
    static const uint8_t row[] = {7, 0, 0, 0, /* n */ 0, 0x6a, 0xff, 0xff, 0xff, /* big */ 1, /* version */ 2, 1, 0, 0, 0, 0, 0, 0, /* deleted, at */ 0, 1};
    assert_int_equal(r.body.n, sizeof row);
    assert_memory_equal(r.body.p, row, sizeof row);
    struct tr_cur cells = tr_cur_of(r.body);
    assert_true(tr_ch_row(table, &cells, ends));
    assert_true(tr_cur_done(&cells));
    assert_int_equal(tr_ch_row_version(table, r.body.p, ends), 258);
    assert_false(tr_ch_row_deleted(table, r.body.p, ends));
    assert_int_equal(tr_ch_row_key(table, r.body.p, ends, &key), TR_OK);
    assert_int_equal(key.n, 4);
    cells = tr_cur_of(tr_slice_of(row, sizeof row - 1)); /* cut */
    assert_false(tr_ch_row(table, &cells, ends));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr_ch_record_next(&c, &r, &err), TR_OK);
        assert_int_equal(r.kind, CH_OPEN);
        assert_int_equal(r.body.p[0], i ? CH_TOMBSTONE : CH_PATCH);
    }
    assert_int_equal(tr_ch_record_next(&c, &r, &err), TR_EOF);
    c = tr_cur_of(tr_slice_of(out.p, 10));
    assert_int_equal(tr_ch_record_next(&c, &r, &err), TR_FATAL);
    tr_buf_done(&out);
    tr_buf_done(&key);
}

static void test_a_value_that_does_not_fit(void **state)
{
    (void)state;
    struct tr_buf out = {0};
    struct tr_err err;
    assert_int_equal(encoded(TR_OP_INSERT, 1, "7", "1.00", "ok", &out, &err), TR_OK);
    size_t n = out.n;
    assert_int_equal(encoded(TR_OP_INSERT, 2, "8", "NaN", "x", &out, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "column n of table public.t: a value does not fit ClickHouse type Decimal(5, 2)"));
    assert_int_equal(out.n, n);
    tr_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_urls), cmocka_unit_test(test_no_values_in_messages), cmocka_unit_test(test_escapes), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_a_value_that_does_not_fit)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
