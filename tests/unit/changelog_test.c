/* Details of the embedded log: walking, indexes, scanning, and looking at it from outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc.h"
#include "fs_sim.h"
#include "log.h"
#include "log_inspect.h"
#include "log_segment.h"

static struct tr_schema *
make_schema(uint32_t table_id, uint32_t version)
{
	static const struct tr_column cols[] = { { .name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .key_pos = 1 } };
	struct tr_schema *s = NULL;
	struct tr_schema_def d = { .table_id = table_id, .version = version, .ns = "public", .name = "t", .columns = cols, .n_columns = 1 };

	assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
	return s;
}

static void
step(struct tr_logwalk *w, uint8_t op, uint8_t flags, uint8_t epoch, uint64_t version, uint64_t lsn, uint8_t kind)
{
	struct tr_logframe f = { .head = { .op = op, .flags = flags, .epoch = epoch, .kind = kind }, .version = version, .commit_lsn = lsn };

	tr_logwalk_step(w, &f);
}

/* What the tail says: which frames count for the version, the epoch, the end. */
static void
test_walk(void **state)
{
	struct tr_logwalk w = { 0 };

	(void)state;
	step(&w, TR_OP_SCHEMA, 0, 9, 99, 99, TR_FRAME_ORDINARY);
	assert_int_equal(w.end.offset, 1);
	assert_int_equal(w.end.version, 0);
	assert_int_equal(w.end.epoch, 0);
	step(&w, TR_OP_SCHEMA, 0, 9, 99, 99, TR_FRAME_REPEAT);
	assert_int_equal(w.now.offset, 1);
	step(&w, TR_OP_SNAPSHOT_BEGIN, 0, 2, 10, 0, 0);
	assert_int_equal(w.end.version, 10);
	assert_int_equal(w.end.epoch, 2);
	assert_false(w.end.any_commit);
	step(&w, TR_OP_READ, 0, 2, 500, 0, 0);
	step(&w, TR_OP_FILL, 0, 2, 500, 700, 0);
	assert_int_equal(w.end.version, 10);
	assert_int_equal(w.end.offset, 4);
	step(&w, TR_OP_UPDATE, TR_CHG_MOVED, 3, 11, 0, 0);
	assert_true(w.open);
	assert_int_equal(w.end.version, 10);
	step(&w, TR_OP_READ, 0, 3, 500, 0, 0); /* inside: without effect */
	assert_true(w.open);
	step(&w, TR_OP_COMMIT, 0, 3, 0, 800, 0);
	assert_false(w.open);
	assert_int_equal(w.end.version, 12);
	assert_int_equal(w.end.commit_lsn, 800);
	assert_int_equal(w.end.epoch, 3);
	assert_true(w.end.any_commit);
	step(&w, TR_OP_SNAPSHOT_BEGIN, 0, 4, 13, 0, 0); /* 800 says nothing of another epoch */
	assert_int_equal(w.end.epoch, 4);
	assert_false(w.end.any_commit);
	assert_int_equal(w.end.commit_lsn, 0);
	step(&w, TR_OP_COMMIT, 0, 4, 0, 70, 0);
	assert_int_equal(w.end.commit_lsn, 70);
	step(&w, TR_OP_SNAPSHOT_BEGIN, 0, 4, 13, 0, 0);
	assert_int_equal(w.end.commit_lsn, 70);
	step(&w, TR_OP_COMMIT, 0, 3, 0, 800, 0);
	step(&w, TR_OP_INSERT, TR_CHG_MOVED, 3, 13, 0, 0); /* only an update can move */
	step(&w, TR_OP_TRUNCATE, 0, 3, 14, 0, 0);
	step(&w, TR_OP_COMMIT, 0, 3, 0, 900, 0);
	assert_int_equal(w.end.version, 14);
	step(&w, TR_OP_HEARTBEAT, 0, 3, 0, 0, 0);
	assert_true(w.open);
	step(&w, TR_OP_COMMIT, 0, 3, 0, 901, 0);
	step(&w, TR_OP_SNAPSHOT_END, 0, 3, 700, 0, 0);
	assert_int_equal(w.end.version, 14);
	assert_int_equal(w.end.offset, 17);
}

static void
test_names(void **state)
{
	char name[TR_LOGNAME_MAX];
	uint64_t v = 0;

	(void)state;
	assert_string_equal(tr_logseg_name(name, 1000, ".seg"), "00000000000000001000.seg");
	assert_string_equal(tr_logseg_name(name, UINT64_MAX, ".idx"), "18446744073709551615.idx");
	assert_true(tr_logseg_parse(name, ".idx", &v));
	assert_true(v == UINT64_MAX);
	assert_false(tr_logseg_parse(name, ".seg", &v));
	assert_false(tr_logseg_parse("18446744073709551616.seg", ".seg", &v));
	assert_false(tr_logseg_parse("tail", ".seg", &v));
	assert_false(tr_logseg_parse("", ".seg", &v));
}

/* No prefix and no single flipped bit of an index, a header or a mark passes. */
static void
test_bad_bytes(void **state)
{
	struct tr_logentry v[] = { { 1, 4096, false } };
	struct tr_logdef_at d[] = { { 7, 2, 4096 } };
	struct tr_logindex x = { .base = 1, .v = v, .n = 1, .d = d, .n_d = 1 }, back;
	struct tr_buf b = { 0 };
	uint8_t mark[TR_LOGTAIL_BYTES];
	struct tr_logtail t;
	struct tr_err err;

	(void)state;
	assert_int_equal(tr_logindex_encode(&x, &b), TR_OK);
	for (size_t n = 0; n < b.n; n++)
		assert_int_equal(tr_logindex_decode(tr_slice_of(b.p, n), true, &back, &err), TR_REJECT);
	for (size_t bit = 0; bit < b.n * 8; bit++) {
		b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(tr_logindex_decode(tr_buf_slice(&b), true, &back, &err), TR_REJECT);
		b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_int_equal(tr_logindex_decode(tr_slice_of(b.p, b.n - 20), false, &back, &err), TR_OK); /* head and definitions */
	assert_int_equal(back.n_d, 1);
	tr_logindex_done(&back);
	tr_buf_done(&b);
	tr_logtail_encode(&(struct tr_logtail){ .base = 5, .failed = true }, mark);
	assert_int_equal(tr_logtail_decode(tr_slice_of(mark, sizeof mark), &t, &err), TR_OK);
	assert_true(t.failed && t.base == 5);
	mark[20] ^= 1;
	assert_int_equal(tr_logtail_decode(tr_slice_of(mark, sizeof mark), &t, &err), TR_REJECT);
}

/* ---- from outside ---- */

struct counts {
	uint64_t segments, frames, bad, tables;
	char path[128];
};

static int
count_segment(void *arg, const struct tr_log_segment_info *s)
{
	struct counts *c = arg;

	assert_int_equal(s->base, c->frames);
	c->segments++;
	c->frames += s->frames;
	c->tables += s->n_tables;
	assert_true(s->n_tables == 1 && strcmp(s->tables[0].name, "t") == 0);
	if (c->segments == 1)
		snprintf(c->path, sizeof c->path, "%s", s->path);
	return TR_OK;
}

static int
count_frame(void *arg, uint32_t partition, const struct tr_frame *f)
{
	struct counts *c = arg;

	assert_int_equal(partition, 0);
	assert_true(!f->table_id || f->change.schema);
	if (c->frames++ == 0)
		c->tables = f->offset;
	return TR_OK;
}

static int
count_bad(void *arg, const char *path, uint64_t pos, const char *what)
{
	struct counts *c = arg;

	(void)pos;
	(void)what;
	assert_non_null(strstr(path, "/log/p0000/"));
	c->bad++;
	return TR_OK;
}

static uint64_t
fill(struct tr_log *l, struct tr_schema *s, int txs, bool define)
{
	uint64_t next = 0;

	for (int i = 0; i < txs; i++) {
		struct tr_buf b = { 0 };
		static const uint8_t junk[1000];
		struct tr_slice v = tr_slice_of(junk, sizeof junk);
		uint8_t st = TR_PRESENT;
		struct tr_change c = { .op = TR_OP_INSERT, .schema = s, .version = (uint64_t)i + 1, .after = { &v, &st, 1 } };
		struct tr_log_run run = { .frames = 2 };

		if (define && i == 0) {
			assert_int_equal(tr_frame_encode_schema(s, 1, TR_FRAME_ORDINARY, &b, NULL), TR_OK);
			run.frames++;
		}
		assert_int_equal(tr_frame_encode(&c, &b, NULL), TR_OK);
		assert_int_equal(tr_frame_encode(&(struct tr_change){ .op = TR_OP_COMMIT, .commit_lsn = (uint64_t)i }, &b, NULL), TR_OK);
		run.bytes = tr_buf_slice(&b);
		assert_int_equal(tr_log_append(l, 0, &run, 1, &next, NULL), TR_OK);
		tr_buf_done(&b);
		assert_int_equal(tr_log_embedded_sync(l, NULL), TR_OK);
	}
	return next;
}

static void
test_inspect(void **state)
{
	struct tr_fs *fs = tr_fs_sim_new(1);
	struct tr_log_options o;
	struct tr_log *l = NULL;
	struct tr_schema *s = make_schema(7, 1);
	struct counts c = { 0 };
	struct tr_log_verdict v;
	struct tr_err err = { 0 };
	uint64_t next;

	(void)state;
	tr_log_options_init(&o);
	o.dir = "/log";
	o.fs = fs;
	o.segment_bytes = 16 << 10;
	o.sync_thread = false;
	assert_true(tr_log_inspect_ls(fs, "/log", count_segment, &c, &err) < 0);
	assert_int_equal(tr_log_embedded_open(&o, &l, &err), TR_OK);
	next = fill(l, s, 40, true);
	/* while it is open and locked */
	assert_int_equal(tr_log_inspect_ls(fs, "/log", count_segment, &c, &err), TR_OK);
	assert_true(c.segments > 2);
	assert_int_equal(c.frames, next);
	memset(&c.segments, 0, offsetof(struct counts, path));
	if (tr_log_inspect_verify(fs, "/log", count_bad, &c, &v, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(v.damaged, 0);
	assert_int_equal(v.frames, next);
	assert_int_equal(tr_log_inspect_cat(fs, "/log", 0, 30, 0, count_frame, &c, &err), TR_OK);
	assert_int_equal(c.frames, next - 30);
	assert_int_equal(c.tables, 30);
	c.frames = 0;
	assert_int_equal(tr_log_inspect_cat(fs, "/log", 0, 5, 3, count_frame, &c, &err), TR_OK);
	assert_int_equal(c.frames, 3);
	/* one flipped bit of the oldest segment is found, wherever it is */
	for (uint64_t bit = 0; bit < (UINT64_C(16) << 10) * 8; bit += 1009) {
		c.bad = 0;
		if (!tr_fs_sim_flip_bit(fs, c.path, bit))
			break; /* the first segment ends with its data */
		assert_int_equal(tr_log_inspect_verify(fs, "/log", count_bad, &c, &v, &err), TR_OK);
		/* the rest of the header's page says nothing */
		if (bit / 8 < TR_LOGSEG_HEADER || bit / 8 >= TR_LOGSEG_DATA)
			assert_true(v.damaged > 0 && c.bad == v.damaged);
		assert_true(tr_fs_sim_flip_bit(fs, c.path, bit));
	}
	l->ops->close(l);
	tr_schema_unref(s);
	tr_fs_sim_free(fs);
}

static void
remove_tree(const char *dir)
{
	struct tr_fs *fs = tr_fs_posix();
	struct tr_names names = { 0 };
	char path[512];

	if (tr_fs_list(fs, dir, &names, NULL) < 0)
		return;
	for (size_t i = 0; i < names.n; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, names.v[i]) < sizeof path && tr_fs_unlink(fs, path, NULL) < 0)
			remove_tree(path);
	tr_names_done(&names);
	(void)tr_fs_rmdir(fs, dir, NULL);
}

/* Each allocation of open, append, sync, read, retain and close fails once; afterwards all is as it was or as it should be. */
static int
life(const char *dir, const struct tr_log_run *run, struct tr_err *err)
{
	struct tr_log_options o;
	struct tr_log *l = NULL;
	struct tr_log_reader *r = NULL;
	struct tr_frame f[8];
	uint64_t next;
	int rc;

	tr_log_options_init(&o);
	o.dir = dir;
	o.segment_bytes = 8 << 10;
	o.sync_thread = false;
	rc = tr_log_embedded_open(&o, &l, err);
	if (rc < 0)
		return rc;
	for (int i = 0; i < 12 && rc >= 0; i++) {
		rc = tr_log_append(l, 0, run, 1, &next, err);
		if (rc >= 0 && i % 3 == 0)
			rc = tr_log_embedded_sync(l, err);
	}
	if (rc >= 0)
		rc = l->ops->pin(l, "x", 0, 5, err);
	if (rc >= 0)
		rc = l->ops->retain(l, INT64_MAX / 2, err);
	if (rc >= 0)
		rc = l->ops->reader_new(l, 0, 10, &r, err);
	if (rc >= 0 && (rc = tr_log_reader_poll(r, f, 8, err)) == TR_AGAIN)
		rc = 0;
	if (r)
		r->ops->free(r);
	l->ops->close(l);
	return rc < 0 ? rc : TR_OK;
}

static void
test_no_memory(void **state)
{
	char dir[64] = "/dev/shm/tr-log-XXXXXX"; /* thousands of syncs: where they cost nothing, if that is possible */
	struct tr_schema *s = make_schema(7, 1);
	struct tr_log_options o;
	struct tr_log *l = NULL;
	struct tr_err err = { 0 };
	static const uint8_t junk[1000];
	struct tr_slice v = tr_slice_of(junk, sizeof junk);
	uint8_t st = TR_PRESENT;
	struct tr_change c = { .op = TR_OP_INSERT, .schema = s, .version = 1, .after = { &v, &st, 1 } };
	struct tr_buf b = { 0 };
	uint64_t nth = 0;
	int rc;

	(void)state;
	if (!mkdtemp(dir)) {
		snprintf(dir, sizeof dir, "/tmp/tr-log-XXXXXX");
		assert_non_null(mkdtemp(dir));
	}
	assert_int_equal(tr_frame_encode(&c, &b, NULL), TR_OK);
	assert_int_equal(tr_frame_encode(&(struct tr_change){ .op = TR_OP_COMMIT }, &b, NULL), TR_OK);

	struct tr_log_run run = { tr_buf_slice(&b), 2 };

	do { /* always the same life, or the number of allocations would run away */
		remove_tree(dir);
		tr_log_options_init(&o);
		o.dir = dir;
		o.segment_bytes = 8 << 10;
		o.sync_thread = false;
		assert_int_equal(tr_log_embedded_open(&o, &l, &err), TR_OK);
		(void)fill(l, s, 12, true);
		l->ops->close(l);
		tr_alloc_fail_nth(++nth);
		rc = life(dir, &run, &err);
		if (rc < 0)
			assert_true(rc == TR_NOMEM || rc == TR_RETRY || rc == TR_FATAL);
	} while (tr_alloc_fail_nth(0) == 0);
	assert_true(nth > 20);
	assert_int_equal(life(dir, &run, &err), TR_OK);
	tr_buf_done(&b);
	tr_schema_unref(s);
	remove_tree(dir);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_walk),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_bad_bytes),
		cmocka_unit_test(test_inspect),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
