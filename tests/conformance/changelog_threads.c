/* One appender, the sync thread, retention, and readers that start, seek and wait, all at once: for ThreadSanitizer. And what the
 * disk gives: `changelog_threads bench DIR` compares append and sync with the same writes on a file written before. */
#include "changelog_kit.h"

#include <tailrace/clock.h>
#include <tailrace/waker.h>

#include "thread.h"

enum { TXS = 3000, READERS = 3 };

struct world {
	struct tr_log *l;
	_Atomic uint64_t appended; /* when it is done; 0 before */
	_Atomic uint64_t gone;
};

static void
reader_main(void *arg)
{
	struct world *w = arg;
	struct tr_log_reader *r = NULL;
	struct tr_waker waker;
	struct tr_wait wait;
	struct tr_frame v[32];
	struct tr_err err = { 0 };
	uint64_t at = 0;
	int rc;

	TR_ASSERT(tr_waker_init(&waker, &err) == TR_OK);
	TR_ASSERT(w->l->ops->reader_new(w->l, 0, 0, &r, &err) == TR_OK || err.rc == TR_FATAL);
	while (!r) {
		at = (uint64_t)err.code;
		TR_ASSERT(w->l->ops->reader_new(w->l, 0, at, &r, &err) == TR_OK || err.rc == TR_FATAL);
	}
	for (;;) {
		rc = tr_log_reader_poll(r, v, 32, &err);
		if (rc == TR_AGAIN) {
			uint64_t end = atomic_load(&w->appended);

			if (end && at == end)
				break;
			if (r->ops->arm(r, &waker, &wait) == 0)
				TR_ASSERT(tr_wait_many(&waker, NULL, 0, 50 * TR_NS_PER_MS, &err) >= 0);
			continue;
		}
		if (rc == TR_FATAL) { /* retention was faster */
			if (err.code <= (int64_t)at)
				fprintf(stderr, "a reader at offset %llu: %s\n", (unsigned long long)at, err.msg);
			TR_ASSERT(err.code > (int64_t)at);
			at = (uint64_t)err.code;
			atomic_fetch_add(&w->gone, 1);
			rc = r->ops->seek(r, at, &err);
			TR_ASSERT(rc == TR_OK || rc == TR_FATAL);
			continue;
		}
		TR_ASSERT(rc > 0);
		for (int i = 0; i < rc; i++) {
			TR_ASSERT(v[i].offset == at++);
			TR_ASSERT(!v[i].table_id || v[i].change.schema);
		}
		if (at % 61 == 0)
			TR_ASSERT(r->ops->seek(r, at, &err) == TR_OK || err.rc == TR_FATAL);
	}
	r->ops->free(r);
	tr_waker_done(&waker);
}

static void
janitor_main(void *arg)
{
	struct world *w = arg;
	struct tr_err err = { 0 };
	struct tr_log_stats s;

	while (!atomic_load(&w->appended)) {
		TR_ASSERT(w->l->ops->stats(w->l, 0, &s, &err) == TR_OK);
		TR_ASSERT(w->l->ops->pin(w->l, "janitor", 0, s.durable_offset > 400 ? s.durable_offset - 400 : 0, &err) == TR_OK);
		TR_ASSERT(w->l->ops->retain(w->l, INT64_MAX / 2, &err) == TR_OK);
		tr_sleep_ns(2 * TR_NS_PER_MS);
	}
}

static void
test_all_at_once(void **state)
{
	char dir[] = "/tmp/tr-changelog-XXXXXX";
	struct tr_log_options o;
	struct world w = { 0 };
	struct kit k;
	struct tr_err err = { 0 };
	struct tr_thread *t[READERS + 1];
	uint64_t off = 0;

	(void)state;
	assert_non_null(mkdtemp(dir));
	tr_log_options_init(&o);
	o.dir = dir;
	o.segment_bytes = 64 << 10;
	if (tr_log_embedded_open(&o, &w.l, &err) < 0)
		fail_msg("%s", err.msg);
	kit_init(&k, 1);
	for (int i = 0; i < READERS; i++)
		assert_int_equal(tr_thread_start(&t[i], "reader", reader_main, &w, &err), TR_OK);
	assert_int_equal(tr_thread_start(&t[READERS], "janitor", janitor_main, &w, &err), TR_OK);
	for (int i = 0; i < TXS; i++) {
		kit_some(&k, 700);
		if (kit_append(&k, w.l, 0, &err) < 0)
			fail_msg("%s", err.msg);
		if (k.open && i % 97 == 0) {
			struct tr_pos pos;

			assert_int_equal(w.l->ops->cut(w.l, 0, &err), TR_OK);
			assert_int_equal(tr_log_tail(w.l, 0, &pos, &err), TR_OK);
			kit_cut(&k, pos.offset);
		}
		if (i % 50 == 0)
			(void)tr_log_durable(w.l, 0, 0, 20, &off, &err);
	}
	if (k.open) {
		kit_commit(&k);
		assert_int_equal(kit_append(&k, w.l, 0, &err), TR_OK);
	}
	assert_int_equal(tr_log_durable(w.l, 0, k.n, 10000, &off, &err), TR_OK);
	assert_int_equal(off, k.n);
	atomic_store(&w.appended, k.n);
	for (int i = 0; i <= READERS; i++)
		tr_thread_join(t[i]);
	struct tr_log_stats s;

	assert_int_equal(w.l->ops->stats(w.l, 0, &s, &err), TR_OK);
	assert_int_equal(kit_check_read(&k, w.l, 0, s.first_offset, 16), k.n);
	w.l->ops->close(w.l);
	kit_done(&k);
	kit_remove_tree(tr_fs_posix(), dir);
}

/* ---- figures ---- */

static double
mb(uint64_t bytes, int64_t ns)
{
	return (double)bytes / (1 << 20) / ((double)ns / 1e9);
}

static int64_t
raw(const char *dir, size_t run, uint64_t total)
{
	char path[512];
	struct tr_file *f = NULL;
	uint8_t *p = malloc(run);

	memset(p, 'x', run);
	snprintf(path, sizeof path, "%s/raw", dir);
	TR_ASSERT(tr_fs_open(tr_fs_posix(), path, TR_FS_RDWR | TR_FS_CREATE, &f, NULL) == TR_OK);
	TR_ASSERT(tr_file_preallocate_zero(f, 0, UINT64_C(64) << 20, NULL) == TR_OK);
	int64_t t = tr_now_ns();
	for (uint64_t at = 0; at < total; at += run) {
		TR_ASSERT(tr_file_pwrite(f, p, run, at % (UINT64_C(64) << 20), NULL) == TR_OK);
		TR_ASSERT(tr_file_fdatasync(f, NULL) == TR_OK);
	}
	t = tr_now_ns() - t;
	tr_file_close(f);
	(void)tr_fs_unlink(tr_fs_posix(), path, NULL);
	free(p);
	return t;
}

static int
bench(const char *parent)
{
	static const size_t runs[] = { 4 << 10, 64 << 10, 1 << 20 };

	for (size_t i = 0; i < 3; i++) {
		uint64_t total = i == 0 ? UINT64_C(64) << 20 : UINT64_C(512) << 20, bytes = 0;
		char dir[512];
		struct tr_log_options o;
		struct tr_log *l = NULL;
		struct kit k;
		struct tr_err err = { 0 };

		snprintf(dir, sizeof dir, "%s/bench-log", parent);
		tr_log_options_init(&o);
		o.dir = dir;
		if (tr_log_embedded_open(&o, &l, &err) < 0) {
			fprintf(stderr, "%s\n", err.msg);
			return 1;
		}
		kit_init(&k, 1);
		kit_row(&k, TR_OP_INSERT, 0, 10);
		kit_commit(&k);
		TR_ASSERT(kit_append(&k, l, 0, &err) == TR_OK);
		while (k.run.n < runs[i] - 400)
			kit_row(&k, TR_OP_INSERT, 0, TR_MIN(runs[i] - 400 - k.run.n, (size_t)300));
		kit_commit(&k);
		struct tr_log_run run = { tr_buf_slice(&k.run), (uint32_t)(k.n - k.from) };
		int64_t pure = raw(parent, run.bytes.n, total), ns[2], quiet;

		for (int pass = 0; pass < 2; pass++) { /* the first in new files, the second in recycled ones */
			uint64_t next = 0;
			int64_t t = tr_now_ns();

			for (bytes = 0; bytes < total; bytes += run.bytes.n) {
				TR_ASSERT(tr_log_append(l, 0, &run, 1, &next, &err) == TR_OK);
				TR_ASSERT(tr_log_durable(l, 0, next, 10000, &next, &err) == TR_OK);
			}
			ns[pass] = tr_now_ns() - t;
			if (pass == 0) {
				TR_ASSERT(l->ops->retain(l, INT64_MAX / 2, &err) == TR_OK);
				tr_sleep_ns(TR_NS_PER_S);
			}
		}
		/* without waiting: group commit */
		uint64_t next = 0;

		quiet = tr_now_ns();
		for (uint64_t done = 0; done < total; done += run.bytes.n)
			TR_ASSERT(tr_log_append(l, 0, &run, 1, &next, &err) == TR_OK);
		TR_ASSERT(tr_log_durable(l, 0, next, 60000, &next, &err) == TR_OK);
		quiet = tr_now_ns() - quiet;

		struct tr_log_reader *r = NULL;
		struct tr_log_stats s;
		struct tr_frame v[256];
		uint64_t read = 0, frames = 0;
		int n;

		TR_ASSERT(l->ops->stats(l, 0, &s, &err) == TR_OK);
		TR_ASSERT(l->ops->reader_new(l, 0, s.first_offset, &r, &err) == TR_OK);
		int64_t t = tr_now_ns();
		while ((n = tr_log_reader_poll(r, v, 256, &err)) > 0)
			for (int j = 0; j < n; j++, frames++)
				read += v[j].raw.n;
		t = tr_now_ns() - t;
		r->ops->free(r);
		l->ops->close(l);
		int64_t pure2 = raw(parent, run.bytes.n, total);

		t = t ? t : 1;
		printf("%7zu B runs: raw fdatasync %.0f and %.0f MB/s; append+durable new %.0f, recycled %.0f MB/s; appended ahead %.0f MB/s; reader %.0f MB/s, %.1f M frames/s\n",
		       run.bytes.n, mb(total, pure), mb(total, pure2), mb(bytes, ns[0]), mb(bytes, ns[1]), mb(total, quiet), mb(read, t),
		       (double)frames / ((double)t / 1e3));
		kit_done(&k);
		kit_remove_tree(tr_fs_posix(), dir);
	}
	return 0;
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_at_once) };

	if (argc == 3 && strcmp(argv[1], "bench") == 0)
		return bench(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
