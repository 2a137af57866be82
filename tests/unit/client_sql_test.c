/* What is said to a SQL database for a change: the texts, and the same statements run on SQLite in memory, in every order that redelivery can
 * bring about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "key.h"
#include "sqlmirror.h"

static struct tr_schema *schema;
static sqlite3 *db;
static struct tr_sqlm mirror, history;
static struct tr_arena arena;

/* id, n, big, num: the key is (id); (id, num) when two is set */
static void open_mirror(enum tr_table_kind kind, bool two)
{
    struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .precision = -1},
                            {.name = "n", .source_type = "integer", .type = TR_TYPE_INT32, .precision = -1},
                            {.name = "big", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1},
                            {.name = "num", .source_type = "numeric", .type = TR_TYPE_DECIMAL, .key_pos = two ? 2 : 0, .precision = -1}};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = 4};
    struct tr_err err;
    assert_int_equal(tr_schema_new(&d, &schema, &err), TR_OK);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    for (int i = 0; i < 2; i++) {
        struct tr_want w = {0};
        struct tr_table_desc none = {0};
        struct tr_plan p = {0};
        assert_int_equal(tr_want_new(TR_DIALECT_SQLITE, i ? TR_TABLE_LOG : kind, schema, "", i ? "log" : "t", &w, &err), TR_OK);
        assert_int_equal(tr_reconcile(&w, &none, &p, &err), TR_OK);
        for (uint32_t k = 0; k < p.n; k++)
            assert_int_equal(sqlite3_exec(db, p.steps[k].sql, NULL, NULL, NULL), SQLITE_OK);
        tr_plan_done(&p);
        tr_want_done(&w);
    }
    assert_int_equal(tr_sqlm_init(&mirror, TR_DIALECT_SQLITE, kind, schema, "", "t", &err), TR_OK);
    assert_int_equal(tr_sqlm_init(&history, TR_DIALECT_SQLITE, TR_TABLE_LOG, schema, "", "log", &err), TR_OK);
    tr_arena_init(&arena, 4096, 0);
}

static void close_mirror(void)
{
    tr_sqlm_done(&mirror);
    tr_sqlm_done(&history);
    tr_arena_done(&arena);
    schema = tr_schema_unref(schema);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* ---- changes: "id,n,big,num"; "-" is NULL, "~" unchanged ---- */

struct made {
    struct tr_change g;
    char text[2][64];
    struct tr_slice v[2][4];
    uint8_t st[2][4];
    struct tr_buf key[2];
};

static void row_of(struct made *m, int which, const char *spec)
{
    snprintf(m->text[which], sizeof m->text[which], "%s", spec);
    char *p = m->text[which];
    for (int i = 0; i < 4; i++) {
        char *e = p + strcspn(p, ",");
        bool last = !*e;
        *e = 0;
        m->v[which][i] = tr_slice_str(p);
        m->st[which][i] = !strcmp(p, "-") ? TR_NULL : !strcmp(p, "~") ? TR_UNCHANGED : !strcmp(p, "?") ? TR_ABSENT : TR_PRESENT;
        p = last ? e : e + 1;
    }
    struct tr_row *r = which ? &m->g.before : &m->g.after;
    *r = (struct tr_row){m->v[which], m->st[which], 4};
    struct tr_err err;
    tr_buf_init(&m->key[which]);
    assert_int_equal(tr_key_encode(schema, r, &m->key[which], &err), TR_OK);
}

/* Which column a parameter is of, against the parameters that were planned. */
static void columns_of(const struct tr_sqlm_step *s, const struct tr_change *g)
{
    uint32_t n = 0, want = s->kind == TR_SQLM_TRUNCATE ? 0 : s->kind == TR_SQLM_TOMBSTONE ? schema->n_key : schema->n_columns;
    const struct tr_row *r = g->op == TR_OP_DELETE ? &g->before : &g->after;
    for (uint32_t i = 0; s->left_out && i < schema->n_columns; i++)
        want -= s->left_out[i];
    for (uint32_t k = 0; k < s->n; k++) {
        int c = tr_sqlm_param_column(schema, s->kind, s->left_out, k + 1);
        if (c < 0)
            continue;
        n++;
        assert_int_equal(s->params[k].type, schema->columns[c].type);
        if (!schema->columns[c].key_pos && !s->params[k].null)
            assert_true(tr_slice_eq(s->params[k].text, r->v[c]));
    }
    assert_int_equal(n, want);
}

static int step_row(const struct tr_sqlm *to, const struct tr_change *g)
{
    struct tr_sqlm_step steps[2];
    struct tr_err err;
    int n = tr_sqlm_plan(to, g, &arena, steps, &err), changed = 0;
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        struct tr_buf q = {0};
        sqlite3_stmt *s = NULL;
        columns_of(&steps[i], g);
        assert_int_equal(tr_sqlm_text(to, &steps[i], &q), TR_OK);
        if (sqlite3_prepare_v2(db, tr_buf_cstr(&q), -1, &s, NULL) != SQLITE_OK)
            fail_msg("%s: %s", sqlite3_errmsg(db), tr_buf_cstr(&q));
        assert_int_equal((uint32_t)sqlite3_bind_parameter_count(s), steps[i].n);
        for (uint32_t k = 0; k < steps[i].n; k++)
            if (!steps[i].params[k].null)
                sqlite3_bind_text(s, (int)k + 1, (const char *)steps[i].params[k].text.p, (int)steps[i].params[k].text.n, SQLITE_TRANSIENT);
        if (sqlite3_step(s) != SQLITE_DONE)
            fail_msg("%s: %s", sqlite3_errmsg(db), tr_buf_cstr(&q));
        changed += sqlite3_changes(db);
        sqlite3_finalize(s);
        tr_buf_done(&q);
    }
    tr_arena_reset(&arena);
    return changed;
}

static int apply_to(const struct tr_sqlm *to, uint8_t op, uint64_t version, const char *before, const char *after, uint16_t flags)
{
    struct made m = {.g = {.op = op, .version = version, .schema = schema, .commit_lsn = version, .commit_us = (int64_t)version * 1000000, .flags = flags, .epoch = 1}};
    if (after)
        row_of(&m, 0, after);
    if (before)
        row_of(&m, 1, before);
    m.g.key = tr_buf_slice(&m.key[after ? 0 : 1]);
    if (after && before && !tr_slice_eq(tr_buf_slice(&m.key[0]), tr_buf_slice(&m.key[1]))) {
        m.g.old_key = tr_buf_slice(&m.key[1]);
        m.g.flags |= TR_CHG_MOVED;
    }
    int n = step_row(to, &m.g);
    tr_buf_done(&m.key[0]);
    tr_buf_done(&m.key[1]);
    return n;
}

static int ins(uint64_t version, const char *row) { return apply_to(&mirror, TR_OP_INSERT, version, NULL, row, 0); }
static int upd(uint64_t version, const char *row) { return apply_to(&mirror, TR_OP_UPDATE, version, NULL, row, 0); }
static int mov(uint64_t version, const char *from, const char *to) { return apply_to(&mirror, TR_OP_UPDATE, version, from, to, 0); }
static int del(uint64_t version, const char *row) { return apply_to(&mirror, TR_OP_DELETE, version, row, NULL, 0); }
static int trunc_(uint64_t version) { return apply_to(&mirror, TR_OP_TRUNCATE, version, NULL, NULL, 0); }

/* All rows as "id,n,big,num@version", with a + before those that are marked deleted, in key order. */
static const char *all(const char *from)
{
    static char out[1024];
    char q[300];
    sqlite3_stmt *s;
    bool soft = mirror.kind == TR_TABLE_MIRROR_SOFT;
    snprintf(q, sizeof q, "SELECT %s || coalesce(id, '-') || ',' || coalesce(n, '-') || ',' || coalesce(big, '-') || ',' || coalesce(num, '-') || '@' || _tr_version FROM %s ORDER BY id, num, _tr_version",
             soft && *from == 't' ? "CASE WHEN _tr_deleted THEN '+' ELSE '' END" : "''", from);
    if (sqlite3_prepare_v2(db, q, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    out[0] = 0;
    while (sqlite3_step(s) == SQLITE_ROW)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s", *out ? " " : "", sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    return out;
}

static void guards(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    assert_int_equal(ins(10, "1,5,x,1.50"), 1);
    assert_int_equal(ins(10, "1,6,y,1.50"), 0); /* the same again: nothing */
    assert_int_equal(ins(9, "1,4,w,1.50"), 0);  /* older */
    assert_int_equal(upd(11, "1,-,z,-"), 1);
    assert_string_equal(all("t"), "1,-,z,-@11");
    assert_int_equal(del(20, "1,-,-,-"), 1); /* keeps its values */
    assert_string_equal(all("t"), "+1,-,z,-@20");
    assert_int_equal(upd(15, "1,7,late,-"), 0);
    assert_int_equal(del(20, "1,-,-,-"), 0);
    assert_int_equal(del(12, "2,-,-,-"), 1); /* of a row that never came: a bare tombstone, which guards */
    assert_int_equal(ins(11, "2,1,late,-"), 0);
    assert_string_equal(all("t"), "+1,-,z,-@20 +2,-,-,-@12");
    assert_int_equal(ins(21, "1,8,again,-"), 1);
    assert_string_equal(all("t"), "1,8,again,-@21 +2,-,-,-@12");
    close_mirror();
}

static void hard_mode(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_HARD, false);
    ins(10, "1,5,x,-");
    assert_int_equal(del(9, "1,-,-,-"), 0);
    assert_int_equal(del(11, "1,-,-,-"), 1);
    assert_string_equal(all("t"), "");
    ins(12, "1,5,x,-");
    ins(13, "2,5,y,-");
    mov(14, "2,?,?,?", "3,6,~,-"); /* takes 14 and 15 */
    assert_string_equal(all("t"), "1,5,x,-@12 3,6,y,-@15");
    assert_int_equal(trunc_(15), 1);
    assert_string_equal(all("t"), "3,6,y,-@15");
    close_mirror();
}

static void patches(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    assert_int_equal(upd(9, "1,1,~,-"), 0); /* no base: nothing, and above all no NULL */
    assert_string_equal(all("t"), "");
    ins(10, "1,5,BIG,-");
    assert_int_equal(upd(11, "1,6,~,2"), 1);
    assert_string_equal(all("t"), "1,6,BIG,2@11");
    assert_int_equal(upd(11, "1,7,~,3"), 0);
    del(12, "1,-,-,-");
    assert_int_equal(upd(13, "1,8,~,-"), 0); /* never from a tombstone */
    assert_string_equal(all("t"), "+1,6,BIG,2@12");
    close_mirror();
}

static void moves(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    ins(10, "1,5,BIG,-");
    assert_int_equal(mov(20, "1,?,?,?", "2,6,~,-"), 2); /* the old key's row is the base; tombstone 20, upsert 21 */
    assert_string_equal(all("t"), "+1,5,BIG,-@20 2,6,BIG,-@21");
    assert_int_equal(mov(20, "1,?,?,?", "2,6,~,-"), 0); /* again */
    assert_string_equal(all("t"), "+1,5,BIG,-@20 2,6,BIG,-@21");
    /* redelivered after the old key was used again: the higher versions stay, and the base of another row is not taken */
    ins(30, "1,1,OTHER,-");
    assert_int_equal(mov(20, "1,?,?,?", "2,6,~,-"), 0);
    assert_string_equal(all("t"), "1,1,OTHER,-@30 2,6,BIG,-@21");
    /* no live row under the old key: the new key's own (it came with a later chunk, or the upsert half was durable before a crash) */
    ins(31, "5,1,OWN,-");
    assert_int_equal(mov(40, "4,?,?,?", "5,9,~,-"), 2);
    assert_string_equal(all("t"), "1,1,OTHER,-@30 2,6,BIG,-@21 +4,-,-,-@40 5,9,OWN,-@41");
    /* both are there: the old key's comes first */
    ins(50, "6,1,OLD,-");
    ins(51, "7,1,NEW,-");
    mov(60, "6,?,?,?", "7,2,~,-");
    assert_string_equal(all("t WHERE id IN (6, 7)"), "+6,1,OLD,-@60 7,2,OLD,-@61");
    /* no base at all: only the tombstone */
    assert_int_equal(mov(70, "8,?,?,?", "9,1,~,-"), 1);
    assert_string_equal(all("t WHERE id IN (8, 9)"), "+8,-,-,-@70");
    /* complete rows need no base */
    mov(80, "10,?,?,?", "11,1,all,-");
    assert_string_equal(all("t WHERE id IN (10, 11)"), "+10,-,-,-@80 11,1,all,-@81");
    /* an empty FILL: the tombstone half alone */
    assert_int_equal(apply_to(&mirror, TR_OP_UPDATE, 90, "11,?,?,?", "12,1,~,-", TR_CHG_NO_UPSERT), 1);
    assert_string_equal(all("t WHERE id IN (11, 12)"), "+11,1,all,-@90");
    close_mirror();
}

static void truncates(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    ins(10, "1,1,a,-");
    del(11, "2,?,?,?");
    ins(30, "3,3,c,-");
    assert_int_equal(trunc_(20), 2);
    assert_string_equal(all("t"), "+1,1,a,-@20 +2,-,-,-@20 3,3,c,-@30");
    assert_int_equal(ins(15, "1,1,a,-"), 0);
    assert_int_equal(trunc_(20), 0);
    close_mirror();
}

/* Numeric keys are one key whatever their scale. */
static void numeric_keys(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, true);
    ins(10, "1,1,a,1.50");
    assert_int_equal(upd(11, "1,2,~,1.5"), 1);
    assert_int_equal(upd(12, "1,3,~,1.500"), 1);
    ins(13, "1,4,b,1");
    assert_int_equal(del(14, "1,?,?,1.0"), 1);
    assert_string_equal(all("t"), "+1,4,b,1@14 1,3,a,1.5@12");
    close_mirror();
}

static void histories(void **state)
{
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    for (int again = 0; again < 2; again++) { /* a change is in it once, by identity */
        assert_int_equal(apply_to(&history, TR_OP_INSERT, 10, NULL, "1,5,x,-", 0), !again);
        assert_int_equal(apply_to(&history, TR_OP_UPDATE, 11, "1,?,?,?", "2,6,~,-", 0), !again);
        assert_int_equal(apply_to(&history, TR_OP_DELETE, 12, "2,?,?,?", NULL, 0), !again);
        assert_int_equal(apply_to(&history, TR_OP_TRUNCATE, 13, NULL, NULL, 0), !again);
    }
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT group_concat(_tr_op || ':' || coalesce(_tr_unchanged, '') || ':' || coalesce(_tr_old_key, '') || ':' || coalesce(id, ''), ' ') FROM (SELECT * FROM log ORDER BY _tr_version)", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(s, 0), "insert:::1 update:[\"big\"]:[\"1\"]:2 delete:::2 truncate:::");
    sqlite3_finalize(s);
    close_mirror();
}

/* Whatever prefix of it was applied before a crash, and however often it is delivered again from the start: the same rows in the end. */
static void redelivery(void **state)
{
    static const struct {
        char op;
        uint64_t version;
        const char *before, *after;
    } v[] = {{'i', 10, NULL, "1,1,ONE,-"}, {'i', 11, NULL, "2,2,TWO,-"},     {'m', 12, "1,?,?,?", "3,3,~,-"}, {'m', 14, "2,?,?,?", "1,4,~,-"}, {'d', 16, "3,?,?,?", NULL},
             {'u', 17, NULL, "1,5,~,-"},   {'m', 18, "1,?,?,?", "2,6,~,-"}, {'i', 20, NULL, "3,7,new,-"},    {'m', 21, "3,?,?,?", "1,8,~,-"}, {'u', 23, NULL, "2,9,~,-"}};
    enum { N = sizeof v / sizeof v[0] };
    char want[1024] = "";
    (void)state;
    for (int cut = 0; cut <= N; cut++)
        for (int cut2 = 0; cut2 <= cut; cut2++) {
            open_mirror(TR_TABLE_MIRROR_SOFT, false);
            for (int run = 0; run < 3; run++)
                for (int i = 0; i < (run == 0 ? cut : run == 1 ? cut2 : N); i++) {
                    if (v[i].op == 'd')
                        del(v[i].version, v[i].before);
                    else
                        apply_to(&mirror, v[i].op == 'i' ? TR_OP_INSERT : TR_OP_UPDATE, v[i].version, v[i].before, v[i].after, 0);
                }
            if (!*want) {
                snprintf(want, sizeof want, "%s", all("t"));
                assert_string_equal(want, "1,8,new,-@22 2,9,TWO,-@23 +3,7,new,-@21");
            }
            assert_string_equal(all("t"), want);
            close_mirror();
        }
}

static void texts(void **state)
{
    struct tr_sqlm m;
    struct tr_sqlm_step st = {.kind = TR_SQLM_MOVE};
    static const uint8_t left[4] = {0, 0, 1, 0};
    struct tr_err err;
    struct tr_buf q = {0};
    (void)state;
    open_mirror(TR_TABLE_MIRROR_SOFT, false);
    assert_int_equal(tr_sqlm_init(&m, TR_DIALECT_POSTGRES, TR_TABLE_MIRROR_SOFT, schema, "m\"x", "t", &err), TR_OK);
    st.left_out = left;
    assert_int_equal(tr_sqlm_text(&m, &st, &q), TR_OK);
    assert_string_equal(tr_buf_cstr(&q),
                        "INSERT INTO \"m\"\"x\".\"t\" AS t (\"id\", \"n\", \"big\", \"num\", _tr_version, _tr_deleted, _tr_deleted_at) SELECT $1::integer, $2::integer, b.\"big\", $3::numeric,"
                        " $4::bigint, false, NULL FROM (SELECT 0 AS _tr_rank, \"big\" FROM \"m\"\"x\".\"t\" WHERE \"id\" = $5::integer AND NOT _tr_deleted UNION ALL SELECT 1 AS _tr_rank, \"big\""
                        " FROM \"m\"\"x\".\"t\" WHERE \"id\" = $1::integer AND NOT _tr_deleted ORDER BY 1 LIMIT 1) AS b WHERE true ON CONFLICT (\"id\") DO UPDATE SET \"id\" = excluded.\"id\","
                        " \"n\" = excluded.\"n\", \"big\" = excluded.\"big\", \"num\" = excluded.\"num\", _tr_version = excluded._tr_version, _tr_deleted = excluded._tr_deleted,"
                        " _tr_deleted_at = excluded._tr_deleted_at WHERE t._tr_version < excluded._tr_version");
    tr_buf_clear(&q);
    st = (struct tr_sqlm_step){.kind = TR_SQLM_PATCH, .left_out = left};
    assert_int_equal(tr_sqlm_text(&m, &st, &q), TR_OK);
    assert_string_equal(tr_buf_cstr(&q), "UPDATE \"m\"\"x\".\"t\" SET \"id\" = $1::integer, \"n\" = $2::integer, \"num\" = $3::numeric, _tr_version = $4::bigint WHERE \"id\" = $1::integer"
                                         " AND _tr_version < $4::bigint AND NOT _tr_deleted");
    tr_buf_clear(&q);
    assert_int_equal(tr_sqlm_text_run(&m, TR_SQLM_UPSERT, &q), TR_OK);
    assert_string_equal(tr_buf_cstr(&q),
                        "INSERT INTO \"m\"\"x\".\"t\" AS t (\"id\", \"n\", \"big\", \"num\", _tr_version, _tr_deleted, _tr_deleted_at) SELECT u.c1, u.c2, u.c3, u.c4, u.c5, false, NULL"
                        " FROM unnest($1::integer[], $2::integer[], $3::text[], $4::numeric[], $5::bigint[]) AS u(c1, c2, c3, c4, c5) ON CONFLICT (\"id\") DO UPDATE SET"
                        " \"id\" = excluded.\"id\", \"n\" = excluded.\"n\", \"big\" = excluded.\"big\", \"num\" = excluded.\"num\", _tr_version = excluded._tr_version,"
                        " _tr_deleted = excluded._tr_deleted, _tr_deleted_at = excluded._tr_deleted_at WHERE t._tr_version < excluded._tr_version");
    tr_buf_done(&q);
    tr_sqlm_done(&m);
    close_mirror();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(guards),    cmocka_unit_test(hard_mode),    cmocka_unit_test(patches),   cmocka_unit_test(moves), cmocka_unit_test(truncates),
                                       cmocka_unit_test(numeric_keys), cmocka_unit_test(histories), cmocka_unit_test(redelivery), cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
