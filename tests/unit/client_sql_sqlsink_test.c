/* When a SQL sink makes, fits, swaps or refuses a table: the rules of sqlsink.c over a scripted table catalog. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "sqlsink.h"

/* ---- a catalog that says what it is told to, and remembers the plan ---- */

struct table {
    const char *name, *source; /* source NULL: no record of it */
    bool exists, view;
    uint64_t snapshot_id;
    uint32_t version;          /* definition 2 has the column v */
    const char *positions;
};

static struct fake {
    struct tr_catalog catalog;
    struct table tables[4];
    uint32_t n_calls;
    int answer;
    const struct table *late;  /* what the first table turns into before the next plan is executed, which is refused by that */
    char plan[4096];
} fake;

static int describe(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    (void)c;
    (void)deadline_ns;
    (void)err;
    ret->no_ns = !strcmp(ns, "new");
    for (size_t i = 0; i < TR_ARRAY_LEN(fake.tables); i++) {
        const struct table *t = &fake.tables[i];
        if (!t->name || strcmp(t->name, name) != 0)
            continue;
        ret->exists = t->exists;
        ret->view = t->view;
        if (t->source) {
            ret->ours = true;
            ret->note.snapshot_id = t->snapshot_id;
            ret->note.schema_version = t->version;
            snprintf(ret->note.source, sizeof ret->note.source, "%s", t->source);
            assert_int_equal(tr_positions_get(t->positions ? t->positions : "", ret), TR_OK);
        }
        if (!t->exists)
            continue;
        assert_int_equal(tr_desc_add(ret, "id", "integer", true, 1), TR_OK);
        if (t->version > 1)
            assert_int_equal(tr_desc_add(ret, "v", "text", false, 0), TR_OK);
        assert_int_equal(tr_desc_add(ret, "_tr_version", "bigint", false, 0), TR_OK);
        assert_int_equal(tr_desc_add(ret, "_tr_deleted", "boolean", false, 0), TR_OK);
        assert_int_equal(tr_desc_add(ret, "_tr_deleted_at", "timestamp with time zone", false, 0), TR_OK);
    }
    return TR_OK;
}

static int execute(struct tr_catalog *c, const struct tr_plan *p, int64_t deadline_ns, struct tr_err *err)
{
    (void)c;
    (void)deadline_ns;
    size_t n = 0;
    fake.n_calls++;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tr_plan_step *s = &p->steps[i];
        if (s->op == TR_PLAN_SQL)
            n += (size_t)snprintf(fake.plan + n, sizeof fake.plan - n, "%s;", s->what);
        else if (s->op == TR_PLAN_NOTE)
            n += (size_t)snprintf(fake.plan + n, sizeof fake.plan - n, "note %s.%s %s %s %u %u%s;", s->ns, s->name, s->note.source, s->note.kind, (unsigned)s->note.snapshot_id,
                                  s->note.schema_version, s->positions ? "" : " old positions");
        else
            n += (size_t)snprintf(fake.plan + n, sizeof fake.plan - n, "renamed %s.%s %s %s;", s->ns, s->name, s->to, s->note.kind);
    }
    if (fake.late) {
        fake.tables[0] = *fake.late;
        fake.late = NULL;
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "it is there already");
    }
    return fake.answer < 0 ? tr_err_set(err, fake.answer, TR_DOM_SINK, "scripted") : TR_OK;
}

static const struct tr_catalog_ops catalog_ops = {.describe = describe, .execute = execute};

static struct tr_sqlsink sink;

static void open_sink(const char *ns)
{
    static const char *const hard[] = {"public.h"};
    const struct tr_component_env env = {.name = "m", .hard_delete = {hard, 1}};
    fake = (struct fake){.catalog.ops = &catalog_ops};
    tr_sqlsink_init(&sink, NULL, TR_DIALECT_POSTGRES, &fake.catalog, &env);
    sink.ns = ns;
    sink.meta_ns = "tailrace";
}

static struct tr_schema *schema_of(const char *ns, const char *name, uint32_t version)
{
    struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .source_pos = 1, .precision = -1},
                            {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 2, .precision = -1}};
    struct tr_schema_def d = {.table_id = 1, .version = version, .ns = ns, .name = name, .no_key_reason = "", .columns = c, .n_columns = version > 1 ? 2 : 1};
    struct tr_schema *s = NULL;
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    return s;
}

static struct tr_err err;

static int bind_as(const char *ns, const char *name, uint32_t version, enum tr_target_variant v, uint64_t snapshot_id)
{
    struct tr_schema *s = schema_of(ns, name, version);
    struct tr_target *t = NULL;
    fake.plan[0] = 0;
    fake.n_calls = 0;
    memset(&err, 0, sizeof err);
    int rc = tr_sqlsink_bind(&sink.sink, s, v, snapshot_id, INT64_MAX, &t, &err);
    assert_int_equal(rc >= 0, t != NULL);
    tr_schema_unref(s);
    return rc;
}

static int swap_as(uint64_t snapshot_id)
{
    struct tr_schema *s = schema_of("public", "t", 1);
    fake.plan[0] = 0;
    fake.n_calls = 0;
    memset(&err, 0, sizeof err);
    int rc = tr_sqlsink_swap(&sink.sink, s, snapshot_id, INT64_MAX, &err);
    tr_schema_unref(s);
    return rc;
}

#define VIEW "drop the view over table t;make the view over table t;"

static void makes(void **state)
{
    (void)state;
    open_sink(NULL);
    assert_int_equal(bind_as("public", "t", 2, TR_TARGET_MIRROR, 0), TR_OK);
    assert_string_equal(fake.plan, "create table t;" VIEW "note public.t public.t mirror 0 2;");
    assert_int_equal(bind_as("public", "h", 1, TR_TARGET_MIRROR, 0), TR_OK); /* hard: no tombstones, no view */
    assert_string_equal(fake.plan, "create table h;note public.h public.h mirror 0 1;");
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_SHADOW, 7), TR_OK);
    assert_string_equal(fake.plan, "create table t__tr_build;note public.t__tr_build public.t shadow 7 1;");
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_CHANGELOG, 0), TR_OK);
    assert_string_equal(fake.plan, "create table t_changelog;note public.t_changelog public.t changelog 0 1;");
    assert_int_equal(bind_as("new", "t", 1, TR_TARGET_CHANGELOG, 0), TR_OK);
    assert_string_equal(fake.plan, "create schema new;create table t_changelog;note new.t_changelog new.t changelog 0 1;");
    assert_int_equal(bind_as("tailrace", "heartbeat", 1, TR_TARGET_META, 0), TR_OK);
    assert_string_equal(fake.plan, "create table _tailrace_heartbeat;note tailrace._tailrace_heartbeat tailrace.heartbeat meta 0 1;");
    tr_sqlsink_done(&sink);
    open_sink("one");
    assert_int_equal(bind_as("other", "t", 1, TR_TARGET_CHANGELOG, 0), TR_OK);
    assert_string_equal(fake.plan, "create table other__t_changelog;note one.other__t_changelog other.t changelog 0 1;");
    tr_sqlsink_done(&sink);
}

static void fits(void **state)
{
    (void)state;
    open_sink(NULL);
    fake.tables[0] = (struct table){"t", "public.t", true, true, 5, 1, NULL};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_OK);
    assert_int_equal(fake.n_calls, 0); /* it fits: nothing is asked of the sink */
    assert_int_equal(bind_as("public", "t", 2, TR_TARGET_MIRROR, 0), TR_OK);
    assert_string_equal(fake.plan, "add column v to table t;" VIEW "note public.t public.t mirror 5 2;");
    fake.tables[0].version = 2; /* an older definition, delivered again: the newer record stays */
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_OK);
    assert_int_equal(fake.n_calls, 0);
    fake.tables[0].view = false;
    assert_int_equal(bind_as("public", "t", 2, TR_TARGET_MIRROR, 0), TR_OK);
    assert_string_equal(fake.plan, VIEW);
    assert_int_equal(bind_as("public", "t", 3, TR_TARGET_MIRROR, 0), TR_OK); /* a definition that differs in nothing we keep */
    assert_string_equal(fake.plan, VIEW "note public.t public.t mirror 5 3;");
    fake.tables[0] = (struct table){"t__tr_build", "public.t", true, false, 5, 2, NULL};
    assert_int_equal(bind_as("public", "t", 2, TR_TARGET_SHADOW, 5), TR_OK); /* the same build goes on */
    assert_int_equal(fake.n_calls, 0);
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_SHADOW, 6), TR_OK); /* another's goes, whatever definition it had */
    assert_string_equal(fake.plan, "drop table t__tr_build;create table t__tr_build;note public.t__tr_build public.t shadow 6 1;");
    fake.tables[0].exists = false;
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_SHADOW, 5), TR_OK); /* a build that somebody dropped is begun again */
    assert_string_equal(fake.plan, "create table t__tr_build;note public.t__tr_build public.t shadow 5 1;");
    tr_sqlsink_done(&sink);
}

static void refuses(void **state)
{
    (void)state;
    open_sink("one");
    fake.tables[0] = (struct table){"t", "public.t", false, false, 5, 1, NULL};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_REJECT);
    assert_string_equal(err.msg, "sink m: table one.t was removed from the sink; take a new snapshot: tailrace table resnapshot public.t");
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 5), TR_REJECT);
    fake.tables[0] = (struct table){"t", "public.t", true, true, 5, 1, NULL};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 5), TR_OK);
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 6), TR_REJECT); /* restored from another time */
    assert_non_null(strstr(err.msg, "is not the build that was made of public.t"));
    fake.tables[0] = (struct table){0};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 5), TR_REJECT); /* another database: it would begin without what it had */
    fake.tables[0] = (struct table){"t_changelog", "public.t", false, false, 0, 1, NULL};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_CHANGELOG, 0), TR_OK); /* a history may be begun anew */
    fake.tables[0] = (struct table){"t", "public.t", true, true, 5, 1, "2:id=1;1:v=2;"};
    assert_int_equal(bind_as("public", "t", 2, TR_TARGET_MIRROR, 5), TR_REJECT); /* it had that column: somebody dropped it */
    assert_string_equal(err.msg, "sink m: column v was removed from table t in the sink, and its values with it; take a new snapshot (tailrace table resnapshot)");
    fake.n_calls = 0;
    fake.tables[0] = (struct table){"a__b", "a.b", true, true, 5, 1, NULL};
    assert_int_equal(bind_as("public", "a__b", 1, TR_TARGET_MIRROR, 0), TR_REJECT);
    assert_string_equal(err.msg, "sink m: table one.a__b mirrors a.b already; public.a__b would need the same name");
    fake.tables[0] = (struct table){"t", NULL, true, true, 0, 0, NULL};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_REJECT);
    assert_non_null(strstr(err.msg, "sink m: table one.t exists in the sink and was not made by tailrace"));
    assert_int_equal(fake.n_calls, 0);
    fake.tables[0] = (struct table){0};
    fake.answer = TR_STALE; /* our own statement: no second try */
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_REJECT);
    assert_int_equal(err.rc, TR_REJECT);
    fake.answer = TR_RETRY;
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_RETRY);
    tr_sqlsink_done(&sink);
}

static int check_as(uint32_t version, enum tr_target_variant v)
{
    struct tr_schema *s = schema_of("public", "t", version);
    fake.n_calls = 0;
    memset(&err, 0, sizeof err);
    int rc = tr_sqlsink_check(&sink.sink, s, v, INT64_MAX, &err);
    assert_int_equal(fake.n_calls, 0); /* nothing is asked of the sink */
    tr_schema_unref(s);
    return rc;
}

static void checks(void **state)
{
    (void)state;
    open_sink("one");
    assert_int_equal(check_as(1, TR_TARGET_MIRROR), TR_OK); /* not there yet */
    fake.tables[0] = (struct table){"t", "public.t", true, true, 5, 1, NULL};
    assert_int_equal(check_as(2, TR_TARGET_MIRROR), TR_OK); /* a column would be added */
    assert_int_equal(check_as(1, TR_TARGET_CHANGELOG), TR_OK);
    fake.tables[0].version = 2; /* the source's own description has no version, and is the newest there is */
    assert_int_equal(check_as(1, TR_TARGET_MIRROR), TR_REJECT);
    assert_non_null(strstr(err.msg, "sink m: column v of table t is no longer in the source"));
    fake.tables[0] = (struct table){"t", NULL, true, true, 0, 0, NULL};
    assert_int_equal(check_as(1, TR_TARGET_MIRROR), TR_REJECT);
    assert_non_null(strstr(err.msg, "was not made by tailrace"));
    tr_sqlsink_done(&sink);
}

static void swaps(void **state)
{
    (void)state;
    open_sink(NULL);
    fake.tables[0] = (struct table){"t__tr_build", "public.t", true, false, 7, 1, NULL};
    assert_int_equal(swap_as(7), TR_OK);
    assert_string_equal(fake.plan, "drop the view over table t;drop table t;swap in the new build of table t;" VIEW "renamed public.t__tr_build t mirror;");
    fake.tables[1] = (struct table){"t", "public.t", true, true, 7, 1, NULL};
    assert_int_equal(swap_as(7), TR_OK); /* made again although the swap was done: the build is ahead */
    assert_int_equal(fake.n_calls, 1);
    assert_int_equal(swap_as(8), TR_REJECT);
    fake.tables[0] = (struct table){0};
    assert_int_equal(swap_as(7), TR_OK); /* done before */
    assert_int_equal(fake.n_calls, 0);
    fake.tables[1].exists = false;
    assert_int_equal(swap_as(7), TR_REJECT);
    assert_string_equal(err.msg, "sink m: the build of table public.t was removed from the sink; take a new snapshot: tailrace table resnapshot public.t");
    fake.tables[0] = (struct table){"t__tr_build", "public.t", true, false, 7, 1, NULL};
    fake.tables[1] = (struct table){"t", NULL, true, false, 0, 0, NULL};
    assert_int_equal(swap_as(7), TR_REJECT); /* never over a table of somebody else's */
    fake.tables[1] = (struct table){"t", "Public.t", true, true, 3, 1, NULL};
    assert_int_equal(swap_as(7), TR_REJECT); /* nor over another table's mirror */
    assert_int_equal(fake.n_calls, 0);
    tr_sqlsink_done(&sink);
}

static void says_what_is_built(void **state)
{
    (void)state;
    struct tr_schema *s = schema_of("public", "t", 1);
    uint64_t id = 99;
    open_sink(NULL);
    assert_int_equal(tr_sqlsink_built(&sink.sink, s, INT64_MAX, &id, &err), TR_OK);
    assert_int_equal(id, 0);
    fake.tables[0] = (struct table){"t", "public.t", true, true, 7, 1, NULL};
    assert_int_equal(tr_sqlsink_built(&sink.sink, s, INT64_MAX, &id, &err), TR_OK);
    assert_int_equal(id, 7);
    fake.tables[0].source = "other.t";
    assert_int_equal(tr_sqlsink_built(&sink.sink, s, INT64_MAX, &id, &err), TR_OK);
    assert_int_equal(id, 0);
    fake.tables[0].source = "public.t";
    fake.tables[0].exists = false;
    assert_int_equal(tr_sqlsink_built(&sink.sink, s, INT64_MAX, &id, &err), TR_OK);
    assert_int_equal(id, 0);
    tr_sqlsink_done(&sink);
    tr_schema_unref(s);
}

/* A request that was given up, and is carried out beside the one that was sent again. */
static void carried_out_late(void **state)
{
    static const struct table created = {"t", "public.t", true, false, 0, 1, NULL}, other = {"t", "public.u", true, false, 0, 1, NULL}, swapped = {"t", "public.t", true, true, 7, 1, NULL};
    (void)state;
    open_sink(NULL);
    fake.late = &created;
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_OK);
    assert_string_equal(fake.plan, VIEW); /* what was left to do */
    assert_int_equal(fake.n_calls, 2);
    fake.tables[0] = (struct table){0};
    fake.late = &other; /* somebody else's, which it stays */
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_REJECT);
    assert_int_equal(fake.n_calls, 1);
    fake.answer = TR_REJECT;
    fake.tables[0] = (struct table){0};
    assert_int_equal(bind_as("public", "t", 1, TR_TARGET_MIRROR, 0), TR_REJECT); /* for another reason: once */
    assert_int_equal(fake.n_calls, 1);
    fake.tables[1] = (struct table){"t__tr_build", "public.t", true, false, 7, 1, NULL};
    assert_int_equal(swap_as(7), TR_REJECT);
    fake.answer = TR_OK;
    fake.late = &swapped;
    assert_int_equal(swap_as(7), TR_OK);
    assert_int_equal(fake.n_calls, 1);
    tr_sqlsink_done(&sink);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(carried_out_late), cmocka_unit_test(makes), cmocka_unit_test(fits), cmocka_unit_test(refuses), cmocka_unit_test(checks), cmocka_unit_test(swaps), cmocka_unit_test(says_what_is_built)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
