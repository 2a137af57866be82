/* The ClickHouse dialect: statements word by word, types by policy, records and sorting keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ddl_clickhouse.h"

enum { TODAY = TR_DIALECT_CLICKHOUSE | TR_CLICKHOUSE_TODAY | TR_CLICKHOUSE_EXCHANGE };

static struct tr_schema *schema_of(const struct tr_column *c, uint32_t n)
{
    struct tr_schema_def d = {.table_id = 1, .version = 3, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = n};
    struct tr_schema *s = NULL;
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    return s;
}

static const char *text_of(struct tr_plan *p)
{
    static char out[4096];
    size_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s\n", p->steps[i].op == TR_PLAN_SQL ? p->steps[i].sql : p->steps[i].what);
    tr_plan_done(p);
    return out;
}

static struct tr_want want_of(int d, enum tr_table_kind kind, const struct tr_schema *s, const char *note)
{
    struct tr_want w = {0};
    assert_int_equal(tr_want_new((enum tr_dialect)d, kind, s, "m", "t", &w, NULL), TR_OK);
    w.note = note ? strdup(note) : NULL;
    return w;
}

#define ID {.name = "i d", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 2, .precision = -1}
#define K {.name = "k\"\\", .source_type = "text", .type = TR_TYPE_TEXT, .key_pos = 1, .precision = -1}
#define AT {.name = "at", .source_type = "timestamp with time zone", .type = TR_TYPE_TIMESTAMPTZ, .precision = -1}

static void test_tables(void **state)
{
    (void)state;
    const struct tr_column c[] = {ID, K, AT};
    struct tr_schema *s = schema_of(c, 3);
    struct tr_table_desc none = {.no_ns = true};
    struct tr_plan p = {0};
    struct tr_want w = want_of(TODAY, TR_TABLE_MIRROR_SOFT, s, "it's");
    assert_int_equal(tr_reconcile(&w, &none, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "CREATE DATABASE IF NOT EXISTS \"m\"\n"
                                     "CREATE TABLE \"m\".\"t\" (\"i d\" Int32, \"k\\\"\\\\\" String, \"at\" Nullable(DateTime64(6, 'UTC')), \"_tr_version\" UInt64 COMMENT 'it\\'s', \"_tr_deleted\" UInt8,"
                                     " \"_tr_deleted_at\" Nullable(DateTime64(6, 'UTC'))) ENGINE = ReplacingMergeTree(_tr_version) ORDER BY (\"k\\\"\\\\\", \"i d\")"
                                     " SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1\n");
    assert_int_equal(tr_plan_view(&w, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "CREATE OR REPLACE VIEW \"m\".\"t_live\" AS SELECT \"i d\", \"k\\\"\\\\\", \"at\" FROM \"m\".\"t\" FINAL WHERE NOT _tr_deleted\n");
    tr_want_done(&w);
    none.no_ns = false;
    w = want_of(TR_DIALECT_CLICKHOUSE, TR_TABLE_LOG, s, NULL);
    assert_int_equal(tr_reconcile(&w, &none, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "CREATE TABLE \"m\".\"t\" (\"_tr_epoch\" UInt64, \"_tr_commit_lsn\" UInt64, \"_tr_ordinal\" UInt64, \"_tr_op\" String, \"_tr_commit_time\" String, \"_tr_xid\" UInt64,"
                                     " \"_tr_version\" UInt64, \"_tr_unchanged\" Nullable(String), \"_tr_old_key\" Nullable(String), \"i d\" Nullable(Int32), \"k\\\"\\\\\" Nullable(String),"
                                     " \"at\" Nullable(String)) ENGINE = ReplacingMergeTree ORDER BY (\"_tr_epoch\", \"_tr_commit_lsn\", \"_tr_ordinal\")\n");
    tr_want_done(&w);
    tr_schema_unref(s);
}

static void test_swaps(void **state)
{
    (void)state;
    const struct tr_column c[] = {ID, K};
    struct tr_schema *s = schema_of(c, 2);
    struct tr_table_desc none = {0}, there = {.exists = true, .ours = true}, theirs = {.exists = true};
    struct tr_plan p = {0};
    struct tr_want w = want_of(TODAY, TR_TABLE_MIRROR_HARD, s, NULL);
    assert_int_equal(tr_plan_swap(&w, &there, "t__tr_build", &there, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "EXCHANGE TABLES \"m\".\"t\" AND \"m\".\"t__tr_build\"\nnote a table's new name\nDROP TABLE IF EXISTS \"m\".\"t__tr_build\"\n");
    assert_int_equal(tr_plan_swap(&w, &none, "t__tr_build", &there, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "DROP TABLE IF EXISTS \"m\".\"t__tr_old\"\nRENAME TABLE \"m\".\"t__tr_build\" TO \"m\".\"t\"\nnote a table's new name\nDROP TABLE IF EXISTS \"m\".\"t__tr_old\"\n");
    assert_int_equal(tr_plan_swap(&w, &theirs, "t__tr_build", &there, &p, NULL), TR_OK);
    assert_true(p.refused);
    tr_plan_done(&p);
    tr_want_done(&w);
    w = want_of(TR_DIALECT_CLICKHOUSE, TR_TABLE_MIRROR_HARD, s, NULL);
    assert_int_equal(tr_plan_swap(&w, &there, "t__tr_build", &there, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "DROP TABLE IF EXISTS \"m\".\"t__tr_old\"\nRENAME TABLE \"m\".\"t\" TO \"m\".\"t__tr_old\", \"m\".\"t__tr_build\" TO \"m\".\"t\"\nnote a table's new name\n"
                                     "DROP TABLE IF EXISTS \"m\".\"t__tr_old\"\n");
    tr_want_done(&w);
    tr_schema_unref(s);
}

static void added(int d, struct tr_column c, const char *want)
{
    const struct tr_column all[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .precision = -1}, c};
    struct tr_schema *s = schema_of(all, 2);
    struct tr_table_desc have = {.exists = true, .ours = true};
    struct tr_plan p = {0};
    struct tr_want w = want_of(d, TR_TABLE_MIRROR_HARD, s, NULL);
    assert_int_equal(tr_desc_add(&have, "id", "Int32", false, 1), TR_OK);
    assert_int_equal(tr_desc_add(&have, "_tr_version", "UInt64", false, 0), TR_OK);
    assert_int_equal(tr_reconcile(&w, &have, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), want);
    tr_want_done(&w);
    tr_table_desc_done(&have);
    tr_schema_unref(s);
}

static void test_columns_are_added(void **state)
{
    (void)state;
#define ADD "ALTER TABLE \"m\".\"t\" ADD COLUMN \"c\" "
    added(TODAY, (struct tr_column){.name = "c", .source_type = "bytea", .type = TR_TYPE_BYTES, .fill_default = "\\x00ff", .precision = -1}, ADD "Nullable(String) DEFAULT CAST(unhex('00ff') AS Nullable(String))\n");
    added(TODAY, (struct tr_column){.name = "c", .source_type = "boolean", .type = TR_TYPE_BOOL, .fill_default = "t", .precision = -1}, ADD "Nullable(Bool) DEFAULT CAST(1 AS Nullable(Bool))\n");
    added(TODAY, (struct tr_column){.name = "c", .source_type = "timestamp with time zone", .type = TR_TYPE_TIMESTAMPTZ, .fill_default = "2026-01-02 03:04:05+00", .precision = -1},
          ADD "Nullable(DateTime64(6, 'UTC')) DEFAULT CAST('2026-01-02 03:04:05' AS Nullable(DateTime64(6, 'UTC')))\n");
    added(TR_DIALECT_CLICKHOUSE, (struct tr_column){.name = "c", .source_type = "timestamp with time zone", .type = TR_TYPE_TIMESTAMPTZ, .fill_default = "2026-01-02 03:04:05+00", .precision = -1},
          ADD "Nullable(String) DEFAULT CAST('2026-01-02 03:04:05+00' AS Nullable(String))\n");
    added(TODAY, (struct tr_column){.name = "c", .source_type = "text", .type = TR_TYPE_TEXT, .fill_default = "it's \\", .precision = -1}, ADD "Nullable(String) DEFAULT CAST('it\\'s \\\\' AS Nullable(String))\n");
    added(TODAY, (struct tr_column){.name = "c", .source_type = "integer", .type = TR_TYPE_INT32, .precision = -1}, ADD "Nullable(Int32)\n");
}

static void is_type(int d, uint8_t type, int32_t precision, int32_t scale, const char *want)
{
    struct tr_column c = {.name = "c", .source_type = "x", .type = type, .precision = precision, .scale = scale};
    struct tr_buf b = {0};
    assert_int_equal(tr_sql_column_type((enum tr_dialect)d, TR_TABLE_MIRROR_SOFT, &c, &b), TR_OK);
    assert_string_equal(tr_buf_cstr(&b), want);
    tr_buf_done(&b);
}

static void test_types(void **state)
{
    (void)state;
    is_type(TODAY, TR_TYPE_DECIMAL, 76, 76, "Nullable(Decimal(76, 76))");
    is_type(TODAY, TR_TYPE_DECIMAL, 77, 0, "Nullable(String)");
    is_type(TODAY, TR_TYPE_DECIMAL, 3, -2, "Nullable(String)");
    is_type(TODAY, TR_TYPE_DECIMAL, 2, 5, "Nullable(String)");
    is_type(TODAY, TR_TYPE_DECIMAL, -1, 0, "Nullable(String)");
    is_type(TR_DIALECT_CLICKHOUSE, TR_TYPE_DECIMAL, 38, 2, "Nullable(Decimal(38, 2))");
    is_type(TR_DIALECT_CLICKHOUSE, TR_TYPE_DECIMAL, 39, 2, "Nullable(String)");
    is_type(TODAY, TR_TYPE_DATE, -1, 0, "Nullable(Date32)");
    is_type(TR_DIALECT_CLICKHOUSE, TR_TYPE_DATE, -1, 0, "Nullable(String)");
    is_type(TR_DIALECT_CLICKHOUSE, TR_TYPE_BOOL, -1, 0, "Nullable(UInt8)");
    is_type(TODAY, TR_TYPE_ENUM, -1, 0, "Nullable(String)");
    is_type(TODAY, TR_TYPE_JSON, -1, 0, "Nullable(String)");
    is_type(TODAY, TR_TYPE_UUID, -1, 0, "Nullable(UUID)");
}

static void test_records(void **state)
{
    (void)state;
    struct tr_table_note n = {.source = "odd schema.a \"of\" 3:b columns ", .kind = "mirror", .snapshot_id = UINT64_MAX, .schema_version = 7}, got;
    struct tr_buf b = {0};
    const char *positions = NULL;
    assert_int_equal(tr_ch_note_put(&n, "2:id=1;", &b), TR_OK);
    assert_true(tr_ch_note_get(tr_buf_cstr(&b), &got, &positions));
    assert_memory_equal(&n, &got, sizeof n);
    assert_string_equal(positions, "2:id=1;");
    for (size_t i = 0; i < b.n - 7; i++) { /* cut anywhere before the positions it is none, and nothing is read behind it */
        char *cut = strndup((const char *)b.p, i);
        assert_false(tr_ch_note_get(cut, &got, &positions));
        free(cut);
    }
    static const char *const none[] = {"", "a comment", "tailrace", "tailrace mirror build -1 version 1 of 1:a columns ", "tailrace mirror build 1 version 1 of 9999:a columns ",
                                       "tailrace averyveryverylongkind build 1 version 1 of 1:a columns "};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(tr_ch_note_get(none[i], &got, &positions));
    tr_buf_done(&b);
}

static void test_sorting_keys(void **state)
{
    (void)state;
    static const char *const texts[] = {"a, `b c`, `d\\`,e`", "(a, `b c`, `d\\`,e`)"};
    for (int i = 0; i < 2; i++) {
        struct tr_table_desc d = {0};
        static const char *const names[] = {"d`,e", "v", "b c", "a"};
        static const int want[] = {3, 0, 2, 1};
        for (int k = 0; k < 4; k++)
            assert_int_equal(tr_desc_add(&d, names[k], "String", false, 0), TR_OK);
        tr_ch_sorting_key(texts[i], &d);
        for (int k = 0; k < 4; k++)
            assert_int_equal(d.columns[k].key_pos, want[k]);
        tr_table_desc_done(&d);
    }
}

#define SLICE(text) tr_slice_str(text)

static void refused(int (*option)(struct tr_want *, const char *, struct tr_slice, struct tr_err *), struct tr_want *w, const char *text, const char *why)
{
    struct tr_err err = {0};
    assert_int_equal(option(w, "s.t", SLICE(text), &err), TR_REJECT);
    if (!strstr(err.msg, why))
        fail_msg("'%s': %s", text, err.msg);
}

static void test_options_of_a_table(void **state)
{
    (void)state;
    const struct tr_column c[] = {ID, K, AT};
    struct tr_schema *s = schema_of(c, 3);
    struct tr_table_desc none = {0};
    struct tr_plan p = {0};
    struct tr_want w = want_of(TODAY, TR_TABLE_MIRROR_HARD, s, NULL);
    assert_int_equal(tr_ch_order_by(&w, "s.t", SLICE("\"i d\", `k\"\\\\`"), NULL), TR_OK);
    static const char *const good[] = {"tuple()", "intDiv(`i d`, 1000)", "(\"i d\" % 10, substring(`k\"\\\\`, 1, 1))", "'i'' d' = `k\"\\\\`", "1.5e3 + 0x1f"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(tr_ch_partition_by(&w, "s.t", SLICE(good[i]), NULL), TR_OK);
    assert_int_equal(tr_ch_partition_by(&w, "s.t", SLICE(good[1]), NULL), TR_OK);
    assert_int_equal(tr_ch_low_cardinality(&w.columns[0]), TR_OK); /* an Int32, and stays one */
    assert_int_equal(tr_ch_low_cardinality(&w.columns[1]), TR_OK);
    assert_int_equal(tr_reconcile(&w, &none, &p, NULL), TR_OK);
    assert_string_equal(text_of(&p), "CREATE TABLE \"m\".\"t\" (\"i d\" Int32, \"k\\\"\\\\\" LowCardinality(String), \"at\" Nullable(DateTime64(6, 'UTC')), \"_tr_version\" UInt64)"
                                     " ENGINE = ReplacingMergeTree(_tr_version) PARTITION BY (intDiv(`i d`, 1000)) ORDER BY (\"i d\", \"k\\\"\\\\\")"
                                     " SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1\n");
    refused(tr_ch_order_by, &w, "\"i d\"", "lacks k");
    refused(tr_ch_order_by, &w, "`i d`, `i d`", "twice");
    refused(tr_ch_order_by, &w, "`i d`, at", "at is no column of the table's key");
    refused(tr_ch_order_by, &w, "`i d` desc", "desc is no column of the key");
    refused(tr_ch_order_by, &w, "lower(`i d`)", "names with commas");
    refused(tr_ch_order_by, &w, "`i d`,", "names with commas");
    refused(tr_ch_partition_by, &w, "toYYYYMM(at)", "uses at, which is no column of its key");
    refused(tr_ch_partition_by, &w, "intDiv(`i d`, 10) + _tr_version", "uses _tr_version");
    refused(tr_ch_partition_by, &w, "(select 1)", "uses select");
    refused(tr_ch_partition_by, &w, "`i d`) order by (`i d`", "parentheses");
    refused(tr_ch_partition_by, &w, "intDiv(`i d`, 10", "parentheses");
    refused(tr_ch_partition_by, &w, ")(", "parentheses");
    refused(tr_ch_partition_by, &w, "a_name_that_is_longer_than_any_column_of_postgresql_can_be_because_it_has_more_than_63_bytes", "no column");
    assert_int_equal(w.columns[0].key_pos, 1); /* what is refused changes nothing */
    tr_want_done(&w);
    tr_schema_unref(s);
}

/* A table that is there: id and v as wanted, with so much of it altered. */
static void fits(const char *engine, const char *partition, int64_t window, const struct tr_desc_column *more, const char *why)
{
    const struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .source_pos = 1, .precision = -1},
                                  {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 2, .precision = -1},
                                  {.name = "w", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 3, .precision = -1}};
    struct tr_schema *s = schema_of(c, 3);
    struct tr_want w = want_of(TODAY, TR_TABLE_MIRROR_HARD, s, NULL);
    struct tr_table_desc have = {.exists = true, .ours = true, .engine = strdup(engine), .partition = strdup(partition), .window = window};
    struct tr_plan p = {0};
    bool odd = more && !strcmp(more->name, "v");
    assert_int_equal(tr_desc_add(&have, "id", "Int32", false, 1), TR_OK);
    assert_int_equal(tr_desc_add(&have, "v", odd ? more->type : "Nullable(String)", false, odd ? more->key_pos : 0), TR_OK);
    assert_int_equal(tr_desc_add(&have, "w", odd && !more->key_pos ? "String" : "Nullable(String)", false, 0), TR_OK);
    assert_int_equal(tr_desc_add(&have, "_tr_version", "UInt64", false, 0), TR_OK);
    if (more && !odd) {
        assert_int_equal(tr_desc_add(&have, more->name, more->type, false, 0), TR_OK);
        have.columns[4].filled = more->filled;
    }
    assert_int_equal(tr_positions_get("2:id=1;1:v=2;1:w=3;", &have), TR_OK);
    assert_int_equal(tr_reconcile(&w, &have, &p, NULL), TR_OK);
    assert_int_equal(p.n, 0);
    if (!why ? p.refused : !strstr(p.reason, why))
        fail_msg("%s, %s: '%s'", engine, partition, p.reason);
    tr_plan_done(&p);
    tr_want_done(&w);
    tr_table_desc_done(&have);
    tr_schema_unref(s);
}

static void test_tables_that_are_there(void **state)
{
    (void)state;
#define OURS "ReplacingMergeTree(_tr_version) ORDER BY id"
    fits(OURS, "", -1, NULL, NULL);
    fits(OURS " SETTINGS non_replicated_deduplication_window = 1000", "intDiv(id, 10)", 1000, NULL, NULL);
    fits("ReplicatedReplacingMergeTree('/a(b)', 'r', _tr_version) ORDER BY id", "", 100, NULL, NULL);
    fits("SharedReplacingMergeTree(_tr_version) ORDER BY id", "", -1, NULL, NULL);
    fits("MergeTree ORDER BY _tr_version", "", -1, NULL, "table m.t has the engine MergeTree in the sink, and must have ReplacingMergeTree(_tr_version)");
    fits("ReplacingMergeTree ORDER BY id", "", -1, NULL, "must have ReplacingMergeTree(_tr_version)");
    fits("ReplacingMergeTree(v_tr_version) ORDER BY id", "", -1, NULL, "must have ReplacingMergeTree(_tr_version)");
    fits("ReplacingMergeTree(_tr_version, _tr_deleted) ORDER BY id", "", -1, NULL, "must have ReplacingMergeTree(_tr_version)");
    fits("MergeTree COMMENT 'ReplacingMergeTree(_tr_version)'", "", -1, NULL, "must have ReplacingMergeTree(_tr_version)");
    fits(OURS, "v", -1, NULL, "table m.t is partitioned by v in the sink");
    fits(OURS, "", 0, NULL, "table m.t has non_replicated_deduplication_window = 0 in the sink, so an INSERT that comes again because its answer was lost leaves its rows twice;"
                            " ALTER TABLE m.t MODIFY SETTING non_replicated_deduplication_window = 1000, then resume");
    fits("ReplicatedReplacingMergeTree('/a', 'r', _tr_version)", "", 0, NULL, "ALTER TABLE m.t MODIFY SETTING replicated_deduplication_window = 1000");
    fits(OURS, "", -1, &(struct tr_desc_column){.name = (char[]){"x"}, .type = (char[]){"Int8"}, .filled = true}, NULL);
    fits(OURS, "", -1, &(struct tr_desc_column){.name = (char[]){"x"}, .type = (char[]){"Int8"}}, "column x of table t was added in the sink and has no default there");
    fits(OURS, "", -1, &(struct tr_desc_column){.name = (char[]){"v"}, .type = (char[]){"Int8"}},
         "column v of table t changed its type from Int8 to Nullable(String); column w of table t changed its type from String to Nullable(String); take a new snapshot");
    fits(OURS, "", -1, &(struct tr_desc_column){.name = (char[]){"v"}, .type = (char[]){"Nullable(String)"}, .key_pos = 2}, "the key of table t changed at column v");
}

static void test_windows(void **state)
{
    (void)state;
    int64_t n;
    assert_string_equal(tr_ch_window("ReplacingMergeTree(v) ORDER BY id SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 7", &n), "non_replicated_deduplication_window");
    assert_int_equal(n, 7);
    assert_string_equal(tr_ch_window("MergeTree ORDER BY id", &n), "non_replicated_deduplication_window");
    assert_int_equal(n, -1);
    assert_string_equal(tr_ch_window("ReplicatedMergeTree('a', 'b') SETTINGS non_replicated_deduplication_window = 7", &n), "replicated_deduplication_window");
    assert_int_equal(n, -1);
    assert_string_equal(tr_ch_window("SummingMergeTree(n) ORDER BY id", &n), "non_replicated_deduplication_window");
    assert_null(tr_ch_window("Memory", &n));
    assert_null(tr_ch_window("", &n));
    assert_null(tr_ch_window("SharedReplacingMergeTree ORDER BY id", &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables), cmocka_unit_test(test_swaps), cmocka_unit_test(test_columns_are_added), cmocka_unit_test(test_types), cmocka_unit_test(test_records),
                                       cmocka_unit_test(test_sorting_keys), cmocka_unit_test(test_options_of_a_table), cmocka_unit_test(test_tables_that_are_there),
                                       cmocka_unit_test(test_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
