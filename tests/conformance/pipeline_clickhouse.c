/*
 * Pipelines into ClickHouse (TR_SUITE_URL; TR_SUITE_URL2 as a second shard), two threads and four lanes: rows appended to tables of the user's, one output
 * encoded inline and one as text; and a mirror. What does not fit is refused by name before it starts; a value that does not fit is the record's. Also run under TSan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clickhouse.h>
#include <tailrace/clock.h>
#include <tailrace/connectors.h>
#include <tailrace/memory.h>
#include <tailrace/pipeline.h>

#include "httpc.h"

enum { THREADS = 2, LANES = 4, EACH = 5000 };

static const char *url, *url2;

/* What the server answers to a statement, without the line feed. */
static char *ask(const char *where, const char *sql)
{
    struct tr_httpc *h = NULL;
    struct tr_httpc_options o = {.what = "reader", .idle_max_s = 1};
    struct tr_slice body = tr_slice_str(sql);
    struct tr_httpc_request r = {.url = where, .said = where, .body = &body, .n_body = 1, .answer_max = 1 << 20};
    struct tr_buf out = {0};
    struct tr_err err = {0};
    long status = 0;
    assert_int_equal(tr_httpc_new(&o, &h, &err), TR_OK);
    int rc = tr_httpc_request(h, &r, tr_now_ns() + 20 * TR_NS_PER_S, &status, NULL, 0, &out, &err);
    if (rc < 0 || status != 200)
        fail_msg("%s: %s%.*s", sql, err.msg, (int)out.n, out.n ? (const char *)out.p : "");
    while (out.n && out.p[out.n - 1] == '\n')
        out.n--;
    char *answer = malloc(out.n + 1);
    assert_non_null(answer);
    snprintf(answer, out.n + 1, "%.*s", (int)out.n, out.n ? (const char *)out.p : "");
    tr_buf_done(&out);
    tr_httpc_free(h);
    return answer;
}

static void run(const char *sql)
{
    free(ask(url, sql));
}

static void expect(const char *sql, const char *want)
{
    char *have = ask(url, sql);
    assert_string_equal(have, want);
    free(have);
}

/* ---- the chain: a number and whether its row is a bad one ---- */

struct number {
    int64_t n;
    bool bad;
};

struct none {
    char unused;
};

TR_EMITTER(numbers, struct number);

static inline int decode(struct none *u, const struct tr_payload *p, struct numbers_emitter *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    return numbers_emit(out, &(struct number){p->position, tr_slice_eq_str(p->value, "bad")});
}

static inline int encoded(struct none *u, const struct number *r, struct tr_buf *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    int rc = tr_rb_u64(out, (uint64_t)r->n);
    rc |= tr_rb_string(out, tr_slice_str(r->n % 2 ? "odd" : "even"));
    rc |= tr_rb_null(out, r->n % 3 == 0);
    if (r->n % 3)
        rc |= tr_rb_i32(out, (int32_t)-r->n);
    rc |= tr_rb_count(out, (uint64_t)r->n % 4);
    for (int64_t i = 0; i < r->n % 4; i++)
        rc |= tr_rb_string(out, tr_slice_str("t"));
    return rc ? TR_NOMEM : TR_OK;
}

static inline int text(struct none *u, const struct number *r, struct tr_chain_row *row, struct tr_err *err)
{
    (void)u;
    (void)err;
    tr_chain_row_i64(row, 0, r->n);
    tr_chain_row_text(row, 1, tr_slice_str(r->bad ? "infinity" : "2001-02-03 04:05:06.789+00"));
    tr_chain_row_text(row, 2, tr_slice_str("12.50"));
    tr_chain_row_bool(row, 3, r->n % 2);
    if (r->n % 5)
        tr_chain_row_text(row, 4, tr_slice_str("a note"));
    return TR_OK;
}

TR_CHAIN(both, struct none, TR_DECODE(decode, numbers), TR_SKIP(TR_TO(TR_ENCODED(encoded), TR_ROWS(text))));

TR_EMITTER(keyed_numbers, struct number);

static inline int decode_keyed(struct none *u, const struct tr_payload *p, struct keyed_numbers_emitter *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    return keyed_numbers_emit(out, &(struct number){p->position, false});
}

static inline struct tr_slice key_of(struct none *u, const struct number *r)
{
    (void)u;
    return tr_slice_of(&r->n, sizeof r->n);
}

TR_CHAIN(keyed, struct none, TR_DECODE(decode_keyed, keyed_numbers), TR_KEY(key_of), TR_TO(TR_ENCODED(encoded)));

static int keyed_chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return keyed_new(def, arg, ret_ops, ret_chain, err);
}

/* Into a mirror: each number is a version of the row of its remainder, every seventh deletes it. */
enum { KEYS = 500 };

TR_EMITTER(versions, struct number);

static inline int decode_version(struct none *u, const struct tr_payload *p, struct versions_emitter *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    return versions_emit(out, &(struct number){p->position, false});
}

static inline int version_row(struct none *u, const struct number *r, struct tr_chain_row *row, struct tr_err *err)
{
    (void)u;
    (void)err;
    tr_chain_row_i64(row, 0, r->n % KEYS);
    tr_chain_row_i64(row, 1, r->n);
    if (r->n % 7 == 0)
        row->change.op = TR_OP_DELETE;
    return TR_OK;
}

TR_CHAIN(mirrored, struct none, TR_DECODE(decode_version, versions), TR_TO(TR_ROWS(version_row)));

static int mirrored_chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return mirrored_new(def, arg, ret_ops, ret_chain, err);
}

static int chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return both_new(def, arg, ret_ops, ret_chain, err);
}

static const struct tr_column typed[] = {TR_CH_COLUMN("id", "UInt64"), TR_CH_COLUMN("name", "String"), TR_CH_COLUMN("n", "Nullable(Int32)"), TR_CH_COLUMN("tags", "Array(String)")};
static const struct tr_column as_text[] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .precision = -1},
                                           {.name = "at", .source_type = "timestamptz", .type = TR_TYPE_TIMESTAMPTZ, .precision = -1},
                                           {.name = "amount", .source_type = "numeric", .type = TR_TYPE_DECIMAL, .precision = -1},
                                           {.name = "flag", .source_type = "boolean", .type = TR_TYPE_BOOL, .precision = -1},
                                           {.name = "note", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};

static struct tr_schema *table(uint32_t id, const char *name, const struct tr_column *columns, uint32_t n)
{
    const struct tr_schema_def d = {.table_id = id, .version = 1, .ns = "x", .name = name, .no_key_reason = "appended", .columns = columns, .n_columns = n};
    struct tr_schema *s = NULL;
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    return s;
}

static struct tr_pipeline *pipeline(const char *more)
{
    char config[600];
    struct tr_err err = {0};
    struct tr_pipeline *p = NULL;
    struct tr_schema *a = table(1, "typed", typed, 4), *b = table(2, "as_text", as_text, 5);
    snprintf(config, sizeof config, "{admin: {listen: off}, logging: {level: error}, pipeline: {threads: %d}, sinks: [{name: a, urls: '%s', database: user%s}, {name: b, urls: '%s', database: user%s}]}", THREADS,
             url, more, url, more);
    if (tr_pipeline_parse("append", config, "test", &p, &err) < 0 ||
        tr_pipeline_sink(p, &(struct tr_output){.name = "a", .type = &tr_clickhouse_sink_type, .table = a, .variant = TR_TARGET_APPEND}, &err) < 0 ||
        tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .type = &tr_clickhouse_sink_type, .table = b, .variant = TR_TARGET_APPEND}, &err) < 0)
        fail_msg("%s", err.msg);
    tr_schema_unref(a);
    tr_schema_unref(b);
    return p;
}

static struct tr_mem_source *source(uint32_t bad_every)
{
    struct tr_mem_source *m = NULL;
    assert_int_equal(tr_mem_source_new(&m), TR_OK);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (int64_t i = 1; i <= EACH; i++)
            assert_int_equal(tr_mem_push(m, lane, lane + i * LANES, (struct tr_slice){NULL, 0}, tr_slice_str(bad_every && i % bad_every == 0 ? "bad" : "good"), 0), TR_OK);
        assert_int_equal(tr_mem_assign(m, lane, 1, 0), TR_OK);
        tr_mem_eof(m, lane);
    }
    tr_mem_end(m);
    return m;
}

#define CREATE_TYPED "CREATE TABLE user.typed (id UInt64, name LowCardinality(String), n Nullable(Int32), tags Array(String), made DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY id"
#define CREATE_TEXT "CREATE TABLE user.as_text (id UInt64, at DateTime64(3, 'UTC'), amount Decimal(10, 2), flag Bool, note Nullable(String)) ENGINE = MergeTree ORDER BY id"
#define WINDOW " SETTINGS non_replicated_deduplication_window = 100"

static void fresh(const char *create_typed, const char *create_text)
{
    run("DROP DATABASE IF EXISTS user SYNC");
    run("CREATE DATABASE user");
    run(create_typed);
    run(create_text);
}

static void test_rows_of_both_kinds(void **state)
{
    (void)state;
    struct none none = {0};
    struct tr_err err = {0};
    struct tr_running *r = NULL;
    fresh(CREATE_TYPED WINDOW, CREATE_TEXT WINDOW);
    struct tr_pipeline *p = pipeline("");
    struct tr_source *s = tr_mem_source_spi(source(1000));
    if (tr_pipeline_start(&p, &s, chain_new, &none, &r, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(tr_running_join(r, tr_now_ns() + 60 * TR_NS_PER_S));
    struct tr_runtime_status st;
    tr_running_status(r, &st);
    assert_int_equal(st.state, TR_RT_STOPPED);
    tr_running_free(r);
    expect("SELECT count(), uniqExact(id), sum(id), countIf(name = 'odd'), countIf(isNull(n)), sum(n) = -sumIf(id, id % 3 != 0), sum(length(tags)) = sum(id % 4), min(made) > toDateTime(0) FROM user.typed",
           "20000\t20000\t200070000\t10000\t6666\t1\t1\t1");
    /* LANES * EACH / 1000 rows were refused by the text output alone. */
    expect("SELECT count(), uniqExact(id), toString(min(at)), toString(max(at)), toString(sum(amount)), countIf(flag), countIf(isNull(note)) > 0 FROM user.as_text",
           "19980\t19980\t2001-02-03 04:05:06.789\t2001-02-03 04:05:06.789\t249750\t9990\t1");
}

static void refused(const char *create_typed, const char *create_text, const char *more, const char *why)
{
    struct none none = {0};
    struct tr_err err = {0};
    struct tr_running *r = NULL;
    fresh(create_typed, create_text);
    struct tr_pipeline *p = pipeline(more);
    struct tr_source *s = tr_mem_source_spi(source(0));
    assert_int_equal(tr_pipeline_start(&p, &s, chain_new, &none, &r, &err), TR_REJECT);
    if (!strstr(err.msg, why))
        fail_msg("'%s' does not say '%s'", err.msg, why);
    s->ops->close(s, 0);
    tr_pipeline_free(p);
}

static void test_differences_are_named(void **state)
{
    (void)state;
    refused("CREATE TABLE user.typed (id UInt32, name String, n Int32, tags Array(String)) ENGINE = MergeTree ORDER BY id" WINDOW, CREATE_TEXT WINDOW, "",
            "sink a: table user.typed differs: column id is UInt32 in the table, and the program writes UInt64; column n is Int32 in the table, and the program writes Nullable(Int32)");
    refused("CREATE TABLE user.typed (id UInt64, name String, n Nullable(Int32), tags Array(String) MATERIALIZED ['x']) ENGINE = MergeTree ORDER BY id" WINDOW, CREATE_TEXT WINDOW, "", "column tags is MATERIALIZED, and cannot be written");
    refused(CREATE_TYPED WINDOW, "CREATE TABLE user.as_text (id DateTime, at Int64, amount Decimal(10, 2), note JSON) ENGINE = MergeTree ORDER BY id" WINDOW, "",
            "column id is DateTime in the table, which takes no int64; column at is Int64 in the table, which takes no timestamptz; column note: ");
    refused(CREATE_TYPED WINDOW, "CREATE TABLE user.as_text (id UInt64, at DateTime64(3, 'UTC'), amount Decimal(10, 2), note String) ENGINE = MergeTree ORDER BY id" WINDOW, "", "column flag is not in the table");
    refused(CREATE_TYPED, CREATE_TEXT WINDOW, "", "ALTER TABLE user.typed MODIFY SETTING non_replicated_deduplication_window = 1000");
    refused("CREATE TABLE user.typed (id UInt64, name String, n Nullable(Int32), tags Array(String)) ENGINE = Memory", CREATE_TEXT WINDOW, "", "table user.typed (Memory) cannot drop an INSERT that comes again");
    refused("SELECT 1", CREATE_TEXT WINDOW, ", allow_duplicates: true", "there is no table user.typed; make it first: CREATE TABLE \"user\".\"typed\" (\"id\" UInt64, \"name\" String, \"n\" Nullable(Int32), \"tags\" Array(String))");
}

static void test_duplicates_may_be_allowed(void **state)
{
    (void)state;
    struct none none = {0};
    struct tr_err err = {0};
    struct tr_running *r = NULL;
    fresh("CREATE TABLE user.typed (id UInt64, name String, n Nullable(Int32), tags Array(String)) ENGINE = Memory", CREATE_TEXT);
    struct tr_pipeline *p = pipeline(", allow_duplicates: true");
    struct tr_source *s = tr_mem_source_spi(source(0));
    if (tr_pipeline_start(&p, &s, chain_new, &none, &r, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(tr_running_join(r, tr_now_ns() + 60 * TR_NS_PER_S));
    tr_running_free(r);
    expect("SELECT (SELECT count() FROM user.typed), (SELECT count() FROM user.as_text)", "20000\t20000");
}

static void test_shards_share_the_keys(void **state)
{
    (void)state;
    char config[400];
    const char *const urls[] = {url, url2};
    struct none none = {0};
    struct tr_err err = {0};
    struct tr_running *r = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_schema *a = table(1, "typed", typed, 4);
    struct tr_source *s = tr_mem_source_spi(source(0));
    long rows[2];
    for (int i = 0; i < 2; i++) {
        free(ask(urls[i], "DROP DATABASE IF EXISTS user SYNC"));
        free(ask(urls[i], "CREATE DATABASE user"));
        free(ask(urls[i], CREATE_TYPED WINDOW));
    }
    snprintf(config, sizeof config, "{admin: {listen: off}, logging: {level: error}, pipeline: {threads: %d}, sinks: [{name: a, urls: ['%s', '%s'], database: user}]}", THREADS, url, url2);
    if (tr_pipeline_parse("append", config, "test", &p, &err) < 0 ||
        tr_pipeline_sink(p, &(struct tr_output){.name = "a", .type = &tr_clickhouse_sink_type, .table = a, .variant = TR_TARGET_APPEND}, &err) < 0 ||
        tr_pipeline_start(&p, &s, keyed_chain_new, &none, &r, &err) < 0)
        fail_msg("%s", err.msg);
    tr_schema_unref(a);
    assert_true(tr_running_join(r, tr_now_ns() + 60 * TR_NS_PER_S));
    tr_running_free(r);
    for (int i = 0; i < 2; i++) {
        char *n = ask(urls[i], "SELECT uniqExact(id) FROM user.typed");
        rows[i] = atol(n);
        free(n);
    }
    assert_int_equal(rows[0] + rows[1], LANES * EACH);
    assert_true(rows[0] > LANES * EACH / 3 && rows[1] > LANES * EACH / 3);
}

static void test_a_mirror(void **state)
{
    (void)state;
    static const struct tr_column columns[] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1},
                                               {.name = "n", .source_type = "bigint", .type = TR_TYPE_INT64, .precision = -1}};
    const struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "kept", .no_key_reason = "", .columns = columns, .n_columns = 2};
    char config[300], want[100];
    struct none none = {0};
    struct tr_err err = {0};
    struct tr_running *r = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_schema *s = NULL;
    struct tr_source *from = tr_mem_source_spi(source(0));
    run("DROP DATABASE IF EXISTS mirrors SYNC");
    snprintf(config, sizeof config, "{admin: {listen: off}, logging: {level: error}, pipeline: {threads: %d}, sinks: [{name: a, urls: '%s', database: mirrors}]}", THREADS, url);
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    if (tr_pipeline_parse("mirrored", config, "test", &p, &err) < 0 || tr_pipeline_sink(p, &(struct tr_output){.name = "a", .type = &tr_clickhouse_sink_type, .table = s}, &err) < 0 ||
        tr_pipeline_start(&p, &from, mirrored_chain_new, &none, &r, &err) < 0)
        fail_msg("%s", err.msg);
    tr_schema_unref(s);
    assert_true(tr_running_join(r, tr_now_ns() + 60 * TR_NS_PER_S));
    tr_running_free(r);
    int64_t live = 0, sum = 0, last = LANES * EACH + LANES - 1;
    for (int64_t n = last; n > last - KEYS; n--)
        if (n % 7) {
            live++;
            sum += n;
        }
    snprintf(want, sizeof want, "%lld\t%lld\t%d", (long long)live, (long long)sum, KEYS);
    expect("SELECT (SELECT count() FROM mirrors.kept_live), (SELECT sum(n) FROM mirrors.kept_live), (SELECT count() FROM mirrors.kept FINAL)", want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_both_kinds),
        cmocka_unit_test(test_differences_are_named),
        cmocka_unit_test(test_duplicates_may_be_allowed),
        cmocka_unit_test(test_shards_share_the_keys),
        cmocka_unit_test(test_a_mirror),
    };
    url = getenv("TR_SUITE_URL");
    url2 = getenv("TR_SUITE_URL2");
    return url && url2 ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
