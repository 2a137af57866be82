/* What a sink's table must become, as a table: wanted definition × what is there → statements, or a refusal that names the column. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ddl.h"
#include "pg_types.h"

static struct tr_schema *schema_of(uint32_t version, const struct tr_column *c, uint32_t n)
{
    struct tr_schema_def d = {.table_id = 1, .version = version, .ns = "public", .name = "t", .no_key_reason = "it has no primary key", .columns = c, .n_columns = n};
    struct tr_schema *s = NULL;
    struct tr_err err;
    assert_int_equal(tr_schema_new(&d, &s, &err), TR_OK);
    return s;
}

#define ID {.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .not_null = true, .precision = -1}
#define V {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}

/* The statements a plan holds, one a line; or "refused: …". */
static const char *plan_text(const struct tr_plan *p)
{
    static char out[4096];
    size_t n = 0;
    out[0] = 0;
    if (p->refused) {
        assert_int_equal(p->n, 0);
        snprintf(out, sizeof out, "refused: %s", p->reason);
    }
    for (uint32_t i = 0; i < p->n; i++)
        if (p->steps[i].op == TR_PLAN_SQL)
            n += (size_t)snprintf(out + n, sizeof out - n, "%s%s", i ? "\n" : "", p->steps[i].sql);
        else
            n += (size_t)snprintf(out + n, sizeof out - n, "\n(%s %s %s)", p->steps[i].what, p->steps[i].name, p->steps[i].to);
    return out;
}

static const char *reconcile(enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *s, const struct tr_table_desc *have)
{
    struct tr_want w = {0};
    struct tr_plan p = {0};
    struct tr_err err;
    assert_int_equal(tr_want_new(d, kind, s, d == TR_DIALECT_SQLITE ? "" : "m", "t", &w, &err), TR_OK);
    assert_int_equal(tr_reconcile(&w, have, &p, &err), TR_OK);
    const char *text = plan_text(&p);
    tr_plan_done(&p);
    tr_want_done(&w);
    return text;
}

static void creates(void **state)
{
    (void)state;
    struct tr_column c[] = {{.name = "b", .source_type = "numeric(10,2)", .type = TR_TYPE_DECIMAL, .key_pos = 2, .precision = 10, .scale = 2},
                            {.name = "Odd \"name\"", .source_type = "public.mood", .type = TR_TYPE_ENUM, .precision = -1},
                            {.name = "a", .source_type = "bytea", .type = TR_TYPE_BYTES, .key_pos = 1, .precision = -1}};
    struct tr_schema *s = schema_of(1, c, 3);
    struct tr_table_desc none = {0};
    assert_string_equal(reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, &none),
                        "CREATE TABLE \"m\".\"t\" (\"b\" numeric(10,2) NOT NULL, \"Odd \"\"name\"\"\" text, \"a\" bytea NOT NULL, \"_tr_version\" bigint, \"_tr_deleted\" boolean,"
                        " \"_tr_deleted_at\" timestamp with time zone, PRIMARY KEY (\"a\", \"b\"))");
    assert_string_equal(reconcile(TR_DIALECT_SQLITE, TR_TABLE_MIRROR_HARD, s, &none),
                        "CREATE TABLE \"t\" (\"b\" TEXT NOT NULL, \"Odd \"\"name\"\"\" TEXT, \"a\" BLOB NOT NULL, \"_tr_version\" INTEGER, PRIMARY KEY (\"a\", \"b\"))");
    assert_non_null(strstr(reconcile(TR_DIALECT_SQLITE, TR_TABLE_LOG, s, &none), "PRIMARY KEY (\"_tr_epoch\", \"_tr_commit_lsn\", \"_tr_ordinal\"))"));
    tr_schema_unref(s);
}

struct there {
    const char *name, *type;
    uint16_t key_pos;
};

static void check(int line, uint32_t have_version, const struct there *t, const struct tr_column *c, uint32_t n, uint32_t version, const char *want)
{
    struct tr_table_desc d = {.exists = true, .ours = true, .note.schema_version = have_version};
    for (; t->name; t++)
        assert_int_equal(tr_desc_add(&d, t->name, t->type, t->key_pos != 0, t->key_pos), TR_OK);
    assert_int_equal(tr_desc_add(&d, "_tr_version", "bigint", false, 0), TR_OK);
    struct tr_schema *s = schema_of(version, c, n);
    const char *got = reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_HARD, s, &d);
    bool ok = !strncmp(want, "refused", 7) ? !strncmp(got, "refused", 7) && strstr(got, want + 9) : !strcmp(got, want);
    if (!ok)
        fail_msg("line %d: wanted: %s\n got: %s", line, want, got);
    tr_schema_unref(s);
    tr_table_desc_done(&d);
}

#define CHECK(have_version, version, want, there, ...)                                                                                                       \
    check(__LINE__, have_version, there, (const struct tr_column[]){__VA_ARGS__}, (uint32_t)(sizeof((struct tr_column[]){__VA_ARGS__}) / sizeof(struct tr_column)), version, want)

static void reconciles(void **state)
{
    (void)state;
    static const struct there id_v[] = {{"id", "integer", 1}, {"v", "text", 0}, {0}}, id[] = {{"id", "integer", 1}, {0}};
    CHECK(1, 1, "", id_v, ID, V);
    CHECK(1, 2, "", id_v, V, ID); /* order is nobody's business */
    CHECK(1, 2, "ALTER TABLE \"m\".\"t\" ADD COLUMN \"v\" text", id, ID, V);
    CHECK(1, 2, "ALTER TABLE \"m\".\"t\" ADD COLUMN \"v\" text DEFAULT 'it''s'", id, ID, {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .fill_default = "it's"});
    CHECK(1, 2, "ALTER TABLE \"m\".\"t\" ADD COLUMN \"a\" text\nALTER TABLE \"m\".\"t\" ADD COLUMN \"b\" text", id_v, ID, V,
          {.name = "a", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}, {.name = "b", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1});
    CHECK(1, 2, "ALTER TABLE \"m\".\"t\" ADD COLUMN \"v\" text DEFAULT 'x'", id, ID,
          {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .not_null = true, .has_default = true, .fill_default = "x"});
    CHECK(1, 2, "refused: column v was added to table t with values that the stream does not tell", id, ID,
          {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .has_default = true});
    CHECK(1, 2, "refused: column v was added", id, ID, {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .not_null = true});
    CHECK(1, 2, "refused: column v of table t is no longer in the source", id_v, ID);
    CHECK(1, 2, "refused: column v of table t is no longer in the source", id_v, ID, {.name = "w", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}); /* renamed */
    CHECK(1, 2, "refused: column v of table t changed its type from text to bigint", id_v, ID, {.name = "v", .source_type = "bigint", .type = TR_TYPE_INT64, .precision = -1});
    CHECK(1, 2, "refused: column v is new in the key", id, ID, {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .key_pos = 2, .precision = -1});
    CHECK(1, 2, "refused: the key of table t changed at column v", id_v, ID, {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .key_pos = 2, .precision = -1});
    CHECK(1, 2, "refused: the key of table t changed at column id", id_v, {.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .precision = -1},
          {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .key_pos = 1, .precision = -1});
    /* an older definition, met again after a restart: its columns are there, later ones are no reason */
    CHECK(3, 2, "", id_v, ID);
    CHECK(3, 2, "refused: changes of before column v was dropped from table t were met again", id, ID, V);
}

/* hard_delete set or taken away later: not a change at the source, and not one that the rows that are there could follow. */
static void delete_mode(void **state)
{
    (void)state;
    struct tr_column c[] = {ID, V};
    struct tr_schema *s = schema_of(1, c, 2);
    struct tr_table_desc d = {.exists = true, .ours = true, .note.schema_version = 1};
    assert_int_equal(tr_desc_add(&d, "id", "integer", true, 1), TR_OK);
    assert_int_equal(tr_desc_add(&d, "v", "text", false, 0), TR_OK);
    assert_int_equal(tr_desc_add(&d, "_tr_version", "bigint", false, 0), TR_OK);
    assert_string_equal(reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_HARD, s, &d), "");
    const char *got = reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, &d);
    assert_non_null(strstr(got, "refused: hard_delete was changed for table t: in the sink deleted rows are gone"));
    assert_non_null(strstr(got, "tailrace table resnapshot"));
    assert_int_equal(tr_desc_add(&d, "_tr_deleted", "boolean", false, 0), TR_OK);
    assert_int_equal(tr_desc_add(&d, "_tr_deleted_at", "timestamp with time zone", false, 0), TR_OK);
    assert_string_equal(reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, &d), "");
    got = reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_HARD, s, &d);
    assert_non_null(strstr(got, "refused: hard_delete was changed for table t: in the sink deleted rows are marked, by the configuration they are to go"));
    tr_table_desc_done(&d);
    tr_schema_unref(s);
}

static void strangers_and_logs(void **state)
{
    (void)state;
    struct tr_column c[] = {ID, V};
    struct tr_schema *s = schema_of(2, c, 2);
    struct tr_table_desc d = {.exists = true};
    assert_int_equal(tr_desc_add(&d, "id", "integer", true, 1), TR_OK);
    assert_non_null(strstr(reconcile(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, &d), "was not made by tailrace"));
    tr_table_desc_done(&d);
    /* a history keeps columns that are gone */
    static const char *const ours[] = {"_tr_epoch", "_tr_commit_lsn", "_tr_ordinal", "_tr_op", "_tr_commit_time", "_tr_xid", "_tr_version", "_tr_unchanged", "_tr_old_key"};
    static const char *const types[] = {"INTEGER", "INTEGER", "INTEGER", "TEXT", "TEXT", "INTEGER", "INTEGER", "TEXT", "TEXT"};
    d = (struct tr_table_desc){.exists = true, .ours = true, .note.schema_version = 1};
    for (uint16_t i = 0; i < 9; i++)
        assert_int_equal(tr_desc_add(&d, ours[i], types[i], false, i < 3 ? (uint16_t)(i + 1) : 0), TR_OK);
    assert_int_equal(tr_desc_add(&d, "gone", "TEXT", false, 0), TR_OK);
    assert_int_equal(tr_desc_add(&d, "ID", "INTEGER", false, 0), TR_OK); /* SQLite: in whatever case */
    assert_string_equal(reconcile(TR_DIALECT_SQLITE, TR_TABLE_LOG, s, &d), "ALTER TABLE \"t\" ADD COLUMN \"v\" TEXT");
    tr_table_desc_done(&d);
    tr_schema_unref(s);
}

static void refuses_names(void **state)
{
    (void)state;
    struct tr_want w;
    struct tr_err err;
    struct tr_column ours[] = {ID, {.name = "_tr_x", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    struct tr_schema *s = schema_of(1, ours, 2);
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, "m", "t", &w, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "_tr_x"));
    tr_schema_unref(s);
    struct tr_column twins[] = {ID, V, {.name = "V", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    s = schema_of(1, twins, 3);
    assert_int_equal(tr_want_new(TR_DIALECT_SQLITE, TR_TABLE_MIRROR_SOFT, s, "", "t", &w, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "differ in case only"));
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, "m", "t", &w, &err), TR_OK);
    tr_want_done(&w);
    tr_schema_unref(s);
    struct tr_column keyless[] = {V};
    s = schema_of(1, keyless, 1);
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, "m", "t", &w, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "it has no primary key"));
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_LOG, s, "m", "t", &w, &err), TR_OK);
    tr_want_done(&w);
    tr_schema_unref(s);
}

static void fills_by_dialect(void **state)
{
    (void)state;
    static const struct {
        uint8_t type;
        const char *source, *fill, *lite;
    } v[] = {
        {TR_TYPE_BOOL, "boolean", "t", "INTEGER DEFAULT 1"},   {TR_TYPE_BOOL, "boolean", "f", "INTEGER DEFAULT 0"}, {TR_TYPE_BYTES, "bytea", "\\x00ff", "BLOB DEFAULT X'00ff'"},
        {TR_TYPE_DECIMAL, "numeric", "12.50", "TEXT DEFAULT '12.50'"}, {TR_TYPE_TEXT, "text", "a'b", "TEXT DEFAULT 'a''b'"},
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        struct tr_column c[] = {ID, {.name = "n", .source_type = v[i].source, .type = v[i].type, .precision = -1, .fill_default = v[i].fill}};
        struct tr_schema *s = schema_of(2, c, 2);
        struct tr_table_desc d = {.exists = true, .ours = true, .note.schema_version = 1};
        assert_int_equal(tr_desc_add(&d, "id", "INTEGER", true, 1), TR_OK);
        assert_int_equal(tr_desc_add(&d, "_tr_version", "INTEGER", false, 0), TR_OK);
        char want[128];
        snprintf(want, sizeof want, "ALTER TABLE \"t\" ADD COLUMN \"n\" %s", v[i].lite);
        assert_string_equal(reconcile(TR_DIALECT_SQLITE, TR_TABLE_MIRROR_HARD, s, &d), want);
        tr_table_desc_done(&d);
        tr_schema_unref(s);
    }
}

static void swaps_and_names(void **state)
{
    (void)state;
    struct tr_column c[] = {ID, V};
    struct tr_schema *s = schema_of(1, c, 2);
    struct tr_want w = {0};
    struct tr_plan p = {0};
    struct tr_err err;
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, "m", "t", &w, &err), TR_OK);
    struct tr_table_desc none = {0}, build = {.exists = true, .ours = true, .key_name = "t__tr_build_pkey"};
    assert_int_equal(tr_plan_swap(&w, &none, "t__tr_build", &build, &p, &err), TR_OK);
    const char *text = plan_text(&p);
    assert_non_null(strstr(text, "ALTER TABLE \"m\".\"t\" RENAME CONSTRAINT \"t__tr_build_pkey\" TO \"t_pkey\""));
    assert_non_null(strstr(text, "(note a table's new name t__tr_build t)"));
    const char *drop = strstr(text, "DROP TABLE IF EXISTS \"m\".\"t\""), *rename = strstr(text, "RENAME TO \"t\""), *view = strstr(text, "CREATE VIEW \"m\".\"t_live\" AS SELECT \"id\", \"v\" FROM \"m\".\"t\" WHERE NOT _tr_deleted");
    assert_true(drop && rename && view && drop < rename && rename < view);
    tr_plan_done(&p);
    none.exists = true; /* somebody else's */
    assert_int_equal(tr_plan_swap(&w, &none, "t__tr_build", &build, &p, &err), TR_OK);
    assert_non_null(strstr(plan_text(&p), "refused: table m.t exists in the sink and was not made by tailrace"));
    tr_plan_done(&p);
    tr_want_done(&w);
    none = (struct tr_table_desc){.no_ns = true};
    assert_int_equal(tr_want_new(TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, s, "m", "t", &w, &err), TR_OK);
    assert_int_equal(tr_reconcile(&w, &none, &p, &err), TR_OK);
    assert_true(!strncmp(plan_text(&p), "CREATE SCHEMA \"m\"\nCREATE TABLE \"m\".\"t\"", 30));
    tr_plan_done(&p);
    tr_want_done(&w);
    tr_schema_unref(s);
    char out[TR_SQL_NAME_MAX + 1], other[TR_SQL_NAME_MAX + 1], longer[200];
    tr_sql_derived("t", "_live", out);
    assert_string_equal(out, "t_live");
    memset(longer, 'x', 63);
    longer[63] = 0;
    tr_sql_derived(longer, "_live", out);
    assert_int_equal(strlen(out), 63);
    longer[62] = 'y';
    tr_sql_derived(longer, "_live", other);
    assert_string_not_equal(out, other);
    for (int i = 0; i < 31; i++)
        memcpy(longer + 2 * i, "\xc3\xa9", 2);
    tr_sql_derived(longer, "_live", out); /* not cut inside a character */
    for (size_t i = 0; out[i]; i++)
        if ((unsigned char)out[i] == 0xc3)
            assert_int_equal((unsigned char)out[i + 1], 0xa9);
}

static void pg_type_map(void **state)
{
    (void)state;
    static const struct {
        uint32_t oid;
        char typtype, category;
        uint8_t want;
    } v[] = {{16, 'b', 'B', TR_TYPE_BOOL},    {20, 'b', 'N', TR_TYPE_INT64},     {1700, 'b', 'N', TR_TYPE_DECIMAL}, {17, 'b', 'U', TR_TYPE_BYTES},   {1184, 'b', 'D', TR_TYPE_TIMESTAMPTZ},
             {99999, 'e', 'E', TR_TYPE_ENUM}, {1007, 'b', 'A', TR_TYPE_ARRAY},   {3904, 'r', 'R', TR_TYPE_RANGE},   {600, 'b', 'G', TR_TYPE_OPAQUE}, {99999, 'c', 'C', TR_TYPE_OPAQUE},
             {2950, 'b', 'U', TR_TYPE_UUID},  {3802, 'b', 'U', TR_TYPE_JSON},    {869, 'b', 'I', TR_TYPE_NETWORK},  {701, 'b', 'N', TR_TYPE_FLOAT64}};
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        if (tr_pgtype_canonical(v[i].oid, v[i].typtype, v[i].category) != v[i].want)
            fail_msg("oid %u is %s", v[i].oid, tr_type_name(tr_pgtype_canonical(v[i].oid, v[i].typtype, v[i].category)));
    int32_t precision = 0, scale = 0;
    tr_pgtype_numeric((10 << 16 | 2) + 4, &precision, &scale);
    assert_int_equal(precision, 10);
    assert_int_equal(scale, 2);
    tr_pgtype_numeric((3 << 16 | (0x7ff & -2)) + 4, &precision, &scale); /* numeric(3,-2), PostgreSQL 15 */
    assert_int_equal(scale, -2);
    tr_pgtype_numeric(-1, &precision, &scale);
    assert_int_equal(precision, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(creates),         cmocka_unit_test(reconciles),      cmocka_unit_test(delete_mode),
        cmocka_unit_test(strangers_and_logs), cmocka_unit_test(refuses_names),
                                       cmocka_unit_test(fills_by_dialect), cmocka_unit_test(swaps_and_names), cmocka_unit_test(pg_type_map)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
