/* What is special to each control store: files and versions of SQLite's, hooks of the one in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "alloc.h"
#include "control_memory.h"
#include "control_sqlite.h"

static char dir[64], path[96];

static int
make_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof dir, "/tmp/tr-control-XXXXXX");
	snprintf(path, sizeof path, "%s/control.db", mkdtemp(dir));
	return 0;
}

static int
remove_dir(void **state)
{
	char p[128];

	(void)state;
	unlink(path);
	snprintf(p, sizeof p, "%s-wal", path);
	unlink(p);
	snprintf(p, sizeof p, "%s-shm", path);
	unlink(p);
	return rmdir(dir);
}

static void
sql(const char *text)
{
	sqlite3 *db = NULL;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

static int
keep_text(void *arg, int n, char **v, char **names)
{
	(void)n;
	(void)names;
	snprintf(arg, 64, "%s", v[0]);
	return 0;
}

static void
test_versions(void **state)
{
	struct tr_control *c = NULL;
	struct tr_err err = { 0 };
	sqlite3 *db = NULL;
	char text[64] = "";

	(void)state;
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_OK);
	c->ops->close(c);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "PRAGMA journal_mode", keep_text, text, NULL), SQLITE_OK);
	assert_string_equal(text, "wal");
	sqlite3_close(db);
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_OK);
	c->ops->close(c);
	sql("PRAGMA user_version = 99");
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_FATAL);
	assert_non_null(strstr(err.msg, "newer"));
}

static void
keep_sink_table(void *arg, const struct tr_ctl_sink_table *t)
{
	*(struct tr_ctl_sink_table *)arg = *t;
}

static void
keep_table(void *arg, const struct tr_ctl_table *t)
{
	*(struct tr_ctl_table *)arg = *t;
}

static void
test_upgrade(void **state)
{
	struct tr_control *c = NULL;
	struct tr_ctl_sink_table t = { 0 };
	struct tr_ctl_table a = { 0 };
	struct tr_err err = { 0 };

	(void)state;
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_OK);
	c->ops->close(c);
	sql("ALTER TABLE sink_table DROP COLUMN log_from; ALTER TABLE tab DROP COLUMN membership; ALTER TABLE tab DROP COLUMN filenode;"
	    "ALTER TABLE tab DROP COLUMN attributes; INSERT INTO tab(source, ns, name, state, storage_fingerprint) VALUES('src', 'public', 'a', 4, 6); PRAGMA user_version = 1; INSERT INTO sink_table VALUES('s', 3, 4, 1, 1, 7, 8, 9, 10, 11, 'why')");
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_OK);
	assert_int_equal(c->ops->sink_table_list(c, "s", keep_sink_table, &t, &err), TR_OK);
	assert_int_equal(t.pause_offset, 11);
	assert_true(t.relive && !t.mirror_live && t.log_from == UINT64_MAX);
	assert_int_equal(c->ops->table_list(c, "src", keep_table, &a, &err), TR_OK);
	assert_int_equal(a.state, TR_TABLE_LIVE);
	assert_true(a.storage.fingerprint == 6 && !a.storage.membership && !a.storage.filenode && !a.storage.attributes);
	c->ops->close(c);
}

static void
test_damaged(void **state)
{
	struct tr_control *c = NULL;
	struct tr_err err = { 0 };
	FILE *f = fopen(path, "w");

	(void)state;
	for (int i = 0; i < 1000; i++)
		fputs("this is no database\n", f);
	fclose(f);
	assert_int_equal(tr_control_sqlite_open(path, &c, &err), TR_FATAL);
	assert_non_null(strstr(err.msg, path));
	assert_int_equal(tr_control_sqlite_open("/nowhere/at/all.db", &c, &err), TR_FATAL);
}

/* Two handles stand for two processes: the later lease fences the earlier one. */
static void
test_two_processes(void **state)
{
	struct tr_control *a = NULL, *b = NULL;
	struct tr_err err = { 0 };
	uint64_t ta = 0, tb = 0, id = 0;

	(void)state;
	assert_int_equal(tr_control_sqlite_open(path, &a, &err), TR_OK);
	assert_int_equal(tr_control_sqlite_open(path, &b, &err), TR_OK);
	assert_int_equal(a->ops->lease_take(a, "s", "a", 0, &ta, &err), TR_OK); /* expired at once */
	a->ops->act_under(a, "s", ta);
	assert_int_equal(a->ops->snapshot_id_next(a, &id, &err), TR_OK);
	assert_int_equal(b->ops->lease_take(b, "s", "b", 60000, &tb, &err), TR_OK);
	assert_true(tb > ta);
	assert_int_equal(a->ops->snapshot_id_next(a, &id, &err), TR_FENCED);
	b->ops->act_under(b, "s", tb);
	uint64_t before = id;
	assert_int_equal(b->ops->snapshot_id_next(b, &id, &err), TR_OK);
	assert_true(id > before);
	a->ops->close(a);
	b->ops->close(b);
}

static void
test_memory_hooks(void **state)
{
	struct tr_control *c = NULL;
	struct tr_control_snapshot *s;
	struct tr_ctl_chunk k = { .table_id = 1, .lo = tr_slice_str("a"), .hi = tr_slice_str("b") };
	struct tr_ctl_table t;
	struct tr_err err = { 0 };
	uint64_t token = 0, id = 0;
	uint32_t version = 0;

	(void)state;
	assert_int_equal(tr_control_memory_new(&c, &err), TR_OK);
	assert_int_equal(c->ops->lease_take(c, "s", "a", 60000, &token, &err), TR_OK);
	c->ops->act_under(c, "s", token);
	assert_int_equal(c->ops->table_ensure(c, "src", "n", "t", &t, &err), TR_OK);
	assert_int_equal(c->ops->chunk_put(c, &k, &err), TR_OK);
	assert_int_equal(c->ops->schema_put(c, 1, 1, tr_slice_str("def"), 5, &version, &err), TR_OK);
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_OK);
	tr_control_memory_fail_next(c, TR_RETRY);
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_RETRY);
	uint64_t before = id;
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_OK);
	assert_true(id > before);
	before = id;
	s = tr_control_memory_snapshot(c);
	assert_non_null(s);
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_OK);
	assert_int_equal(c->ops->chunk_clear(c, 1, 99, &err), TR_OK);
	for (uint64_t nth = 1; nth < 4; nth++) { /* no memory: as before */
		tr_alloc_fail_nth(nth);
		assert_int_equal(tr_control_memory_restore(c, s), TR_NOMEM);
		assert_int_equal(tr_alloc_fail_nth(0), 0);
	}
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_OK);
	assert_true(id > before + 1);
	assert_int_equal(tr_control_memory_restore(c, s), TR_OK);
	assert_int_equal(tr_control_memory_restore(c, s), TR_OK); /* again: a snapshot stays whole */
	assert_int_equal(c->ops->snapshot_id_next(c, &id, &err), TR_OK);
	assert_true(id > before);
	tr_control_snapshot_free(s);
	c->ops->close(c);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_versions, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_upgrade, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_damaged, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_two_processes, make_dir, remove_dir),
		cmocka_unit_test(test_memory_hooks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
