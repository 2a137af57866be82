/* Unit tests of src/os: the real file system and the crashing one, threads, queue, waker, log. Also run under TSan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tailrace/buf.h>
#include <tailrace/clock.h>
#include <tailrace/metric.h>
#include <tailrace/oslog.h>
#include <tailrace/waker.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "fs.h"
#include "fs_sim.h"
#include "prng.h"
#include "proc.h"
#include "random.h"
#include "thread.h"

#define OK(call) assert_int_equal((call), TR_OK)

static void
test_clock(void **state)
{
	struct tr_clock_sim sim;
	int64_t a = tr_now_ns(), wall = tr_wall_us();

	(void)state;
	tr_sleep_ns(2 * TR_NS_PER_MS);
	assert_true(tr_now_ns() - a >= 2 * TR_NS_PER_MS);
	assert_true(wall > INT64_C(1600000000000000));
	tr_clock_sim_init(&sim, 500, 1000);
	tr_clock_set(&sim.clock);
	assert_int_equal(tr_now_ns(), 500);
	tr_sleep_ns(400);
	tr_sleep_ns(400);
	assert_int_equal(tr_now_ns(), 1300);
	assert_int_equal(tr_wall_us(), 1001);
	tr_clock_set(NULL);
	assert_true(tr_now_ns() > 1300);
	assert_int_equal(tr_deadline_ns(5, INT64_MAX), INT64_MAX);
	assert_int_equal(tr_deadline_ns(5, 6), 11);
}

static void
test_random(void **state)
{
	struct tr_prng prng, same;

	(void)state;
	assert_true(tr_random_u64() != tr_random_u64());
	tr_prng_init(&prng, 9);
	tr_prng_init(&same, 9);
	tr_random_set_prng(&prng);
	assert_int_equal(tr_random_u64(), tr_prng_u64(&same));
	tr_random_set_prng(NULL);
}

/* ---- files: the same test for both implementations ---- */

static void
file_basics(struct tr_fs *fs, const char *root)
{
	struct tr_file *f = NULL, *other = NULL;
	struct tr_names names = { 0 };
	struct tr_err err;
	char dir[200], path[256], to[256], text[16] = "";
	uint64_t size = 0;
	size_t n = 0;
	bool there = false;
	char *whole = NULL;

	snprintf(dir, sizeof dir, "%s/a/b//c", root);
	OK(tr_fs_mkdir_p(fs, dir, &err));
	OK(tr_fs_mkdir_p(fs, dir, &err));
	snprintf(path, sizeof path, "%s/one", dir);
	snprintf(to, sizeof to, "%s/two", dir);
	assert_int_equal(tr_fs_open(fs, path, TR_FS_RDWR, &f, &err), TR_NOT_READY);
	assert_int_equal(err.code, ENOENT);
	assert_non_null(strstr(err.msg, path));
	assert_non_null(strstr(err.msg, "No such file"));
	OK(tr_fs_open(fs, path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_EXCL, &f, &err));
	assert_int_equal(tr_fs_open(fs, path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_EXCL, &other, &err), TR_STALE);
	OK(tr_file_pwrite(f, "hello", 5, 3, &err));
	OK(tr_file_fdatasync(f, &err));
	OK(tr_file_size(f, &size, &err));
	assert_int_equal(size, 8);
	OK(tr_file_pread(f, text, 8, 0, NULL, &err));
	assert_memory_equal(text, "\0\0\0hello", 8);
	assert_int_equal(tr_file_pread(f, text, 9, 0, NULL, &err), TR_EOF);
	OK(tr_file_pread(f, text, 9, 4, &n, &err));
	assert_int_equal(n, 4);
	OK(tr_file_pread(f, text, 9, 400, &n, &err));
	assert_int_equal(n, 0);
	OK(tr_file_truncate(f, 4, &err));
	OK(tr_file_truncate(f, 6, &err));
	OK(tr_file_pread(f, text, 6, 0, NULL, &err));
	assert_memory_equal(text, "\0\0\0h\0\0", 6);
	OK(tr_file_preallocate_zero(f, 2, (5 << 19) + 1, &err));
	OK(tr_file_size(f, &size, &err));
	assert_int_equal(size, (5 << 19) + 3);
	OK(tr_fs_open(fs, path, TR_FS_RDONLY, &other, &err));
	assert_int_equal(tr_file_pwrite(other, "x", 1, 0, &err), TR_FATAL);
	other = tr_file_close(other);
	f = tr_file_close(f);
	assert_null(f);
	OK(tr_fs_rename(fs, path, to, &err));
	OK(tr_fs_exists(fs, path, &there, &err));
	assert_false(there);
	OK(tr_fs_exists(fs, to, &there, &err));
	assert_true(there);
	OK(tr_fs_fsync_dir(fs, dir, &err));
	OK(tr_fs_write_file(fs, path, "abc", 3, &err));
	OK(tr_fs_write_file(fs, path, "abcd", 4, &err));
	OK(tr_fs_read_file(fs, path, 100, &whole, &n, &err));
	assert_int_equal(n, 4);
	assert_string_equal(whole, "abcd");
	free(whole);
	assert_int_equal(tr_fs_read_file(fs, path, 3, &whole, &n, &err), TR_REJECT);
	OK(tr_fs_list(fs, dir, &names, &err));
	assert_int_equal(names.n, 2);
	assert_string_equal(names.v[0], "one");
	assert_string_equal(names.v[1], "two");
	tr_names_done(&names);
	assert_int_equal(tr_fs_rmdir(fs, dir, &err), TR_STALE);
	OK(tr_fs_unlink(fs, path, &err));
	assert_int_equal(tr_fs_unlink(fs, path, &err), TR_NOT_READY);
	OK(tr_fs_unlink(fs, to, &err));
	OK(tr_fs_rmdir(fs, dir, &err));
	OK(tr_fs_free_bytes(fs, root, &size, &err));
	assert_true(size > 0);

	snprintf(path, sizeof path, "%s/lock", root);
	OK(tr_fs_lock(fs, path, &f, &err));
	assert_int_equal(tr_fs_lock(fs, path, &other, &err), TR_RETRY);
	snprintf(text, sizeof text, "%d", tr_proc_pid());
	assert_non_null(strstr(err.msg, text));
	tr_file_close(f);
	OK(tr_fs_lock(fs, path, &f, &err));
	tr_file_close(f);
	OK(tr_fs_unlink(fs, path, &err));
}

static void
test_fs_posix(void **state)
{
	char root[] = "/tmp/tailrace-os-test-XXXXXX", path[64];
	struct tr_err err;

	(void)state;
	assert_non_null(mkdtemp(root));
	file_basics(tr_fs_posix(), root);
	snprintf(path, sizeof path, "%s/a/b", root);
	OK(tr_fs_rmdir(tr_fs_posix(), path, &err));
	snprintf(path, sizeof path, "%s/a", root);
	OK(tr_fs_rmdir(tr_fs_posix(), path, &err));
	OK(tr_fs_rmdir(tr_fs_posix(), root, &err));
}

static void
test_fs_sim(void **state)
{
	struct tr_fs *fs = tr_fs_sim_new(1);
	struct tr_err err;

	(void)state;
	OK(tr_fs_mkdir_p(fs, "/data", &err));
	file_basics(fs, "/data");
	file_basics(fs, "."); /* relative names */
	tr_fs_sim_free(fs);
}

static void
test_fs_sim_short_io(void **state)
{
	struct tr_fs *fs = tr_fs_sim_new(2);
	struct tr_file *f = NULL;
	struct tr_err err;
	uint8_t in[5000], out[5000];
	struct tr_prng r;

	(void)state;
	tr_prng_init(&r, 2);
	tr_prng_fill(&r, in, sizeof in);
	tr_fs_sim_short_io(fs, true);
	OK(tr_fs_open(fs, "f", TR_FS_RDWR | TR_FS_CREATE, &f, &err));
	for (int i = 0; i < 20; i++) {
		OK(tr_file_pwrite(f, in, sizeof in, 17, &err));
		memset(out, 0, sizeof out);
		OK(tr_file_pread(f, out, sizeof out, 17, NULL, &err));
		assert_memory_equal(in, out, sizeof in);
	}
	tr_file_close(f);
	tr_fs_sim_free(fs);
}

/* 8 sectors synced, the middle ones overwritten without a sync, the file grown: what does each seed leave? */
static void
test_fs_sim_torn(void **state)
{
	enum { SECTORS = 8, SIZE = SECTORS * 512 };
	int kept = 0, lost = 0, torn = 0, garbled = 0, grown = 0, ungrown = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct tr_fs *fs = tr_fs_sim_new(seed);
		struct tr_file *f = NULL;
		struct tr_err err;
		uint8_t old[SIZE], new[SIZE], got[2 * SIZE];
		size_t n = 0;

		memset(old, 'o', sizeof old);
		memset(new, 'n', sizeof new);
		OK(tr_fs_open(fs, "seg", TR_FS_RDWR | TR_FS_CREATE, &f, &err));
		OK(tr_fs_fsync_dir(fs, ".", &err));
		OK(tr_file_pwrite(f, old, SIZE, 0, &err));
		OK(tr_file_fdatasync(f, &err));
		/* unaligned on purpose: from the middle of sector 1 to the middle of sector 6 */
		OK(tr_file_pwrite(f, new, 5 * 512, 768, &err));
		OK(tr_file_pwrite(f, new, 100, SIZE + 512, &err));
		tr_fs_sim_crash(fs);
		assert_int_equal(tr_file_pread(f, got, 1, 0, &n, &err), TR_FATAL);
		assert_int_equal(err.code, EIO);
		tr_file_close(f);
		OK(tr_fs_open(fs, "seg", TR_FS_RDWR, &f, &err));
		OK(tr_file_pread(f, got, sizeof got, 0, &n, &err));
		assert_true(n >= SIZE);
		/* what was synced and not overwritten is there, byte by byte */
		assert_memory_equal(got, old, 768);
		assert_memory_equal(got + 768 + 5 * 512, old, SIZE - 768 - 5 * 512);
		for (int s = 2; s < 6; s++) {
			const uint8_t *p = got + s * 512;
			size_t new_bytes = 0, old_bytes = 0;

			while (new_bytes < 512 && p[new_bytes] == 'n')
				new_bytes++;
			while (new_bytes + old_bytes < 512 && p[new_bytes + old_bytes] == 'o')
				old_bytes++;
			kept += new_bytes == 512;
			lost += old_bytes == 512;
			torn += new_bytes && old_bytes && new_bytes + old_bytes == 512;
			garbled += new_bytes + old_bytes < 512;
		}
		if (n > SIZE) {
			for (size_t i = SIZE; i < TR_MIN(n, (size_t)SIZE + 512); i++)
				assert_int_equal(got[i], 0);
			grown++;
		} else {
			ungrown++;
		}
		tr_file_close(f);
		tr_fs_sim_free(fs);
	}
	/* 800 pieces: all four fates, about as often as fs_sim.h says */
	assert_in_range(kept, 320, 480);
	assert_in_range(lost, 140, 260);
	assert_in_range(torn, 60, 140);
	assert_in_range(garbled, 60, 140);
	assert_true(grown > 50 && ungrown > 20);
}

/* Synced bytes survive any number of crashes, whatever is done between; and the same seed does the same. */
static uint64_t
crash_run(uint64_t seed)
{
	enum { SIZE = 10000 };
	struct tr_fs *fs = tr_fs_sim_new(seed);
	struct tr_file *f = NULL;
	struct tr_err err;
	struct tr_prng r;
	uint8_t model[SIZE] = { 0 }, got[SIZE], piece[700];
	bool dirty[SIZE] = { false };
	uint64_t sum = 0;

	tr_prng_init(&r, seed);
	OK(tr_fs_open(fs, "seg", TR_FS_RDWR | TR_FS_CREATE, &f, &err));
	OK(tr_file_preallocate_zero(f, 0, SIZE, &err));
	OK(tr_fs_fsync_dir(fs, ".", &err));
	for (int i = 0; i < 400; i++) {
		size_t n = (size_t)tr_prng_below(&r, sizeof piece), off = (size_t)tr_prng_below(&r, SIZE - sizeof piece);
		uint64_t what = tr_prng_below(&r, 20);

		if (what == 0) {
			tr_fs_sim_crash(fs);
			tr_file_close(f);
			OK(tr_fs_open(fs, "seg", TR_FS_RDWR, &f, &err));
			OK(tr_file_pread(f, got, SIZE, 0, NULL, &err));
			for (size_t k = 0; k < SIZE; k++) {
				if (!dirty[k])
					assert_int_equal(got[k], model[k]);
				sum = sum * 31 + got[k];
			}
			memcpy(model, got, SIZE);
			memset(dirty, 0, sizeof dirty);
		} else if (what < 4) {
			OK(tr_file_fdatasync(f, &err));
			memset(dirty, 0, sizeof dirty);
		} else {
			tr_prng_fill(&r, piece, n);
			OK(tr_file_pwrite(f, piece, n, off, &err));
			memcpy(model + off, piece, n);
			memset(dirty + off, 1, n);
		}
	}
	tr_file_close(f);
	tr_fs_sim_free(fs);
	return sum;
}

static void
test_fs_sim_crashes(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed < 10; seed++)
		assert_int_equal(crash_run(seed), crash_run(seed));
	assert_true(crash_run(1) != crash_run(2));
}

static void
put(struct tr_fs *fs, const char *path, const char *text)
{
	struct tr_file *f = NULL;
	struct tr_err err;

	OK(tr_fs_open(fs, path, TR_FS_RDWR | TR_FS_CREATE, &f, &err));
	OK(tr_file_pwrite(f, text, strlen(text), 0, &err));
	OK(tr_file_fdatasync(f, &err));
	tr_file_close(f);
}

/* Made by a process that ended before its name was durable: whoever finds it there makes it so. */
static void
test_fs_sim_mkdir_again(void **state)
{
	int lost = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct tr_fs *fs = tr_fs_sim_new(seed);
		struct tr_err err;
		bool there = false;

		OK(tr_fs_mkdir_p(fs, "a", &err));
		assert_int_equal(fs->ops->mkdir(fs, "a/b"), 0);
		if (seed % 2)
			OK(tr_fs_mkdir_p(fs, "a/b/c", &err));
		tr_fs_sim_crash(fs);
		OK(tr_fs_exists(fs, seed % 2 ? "a/b/c" : "a/b", &there, &err));
		assert_true(there || seed % 2 == 0);
		lost += !there;
		tr_fs_sim_free(fs);
	}
	assert_true(lost > 0); /* or this shows nothing */
}

static void
test_fs_sim_directories(void **state)
{
	int named = 0, renamed = 0, removed = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct tr_fs *fs = tr_fs_sim_new(seed);
		struct tr_err err;
		bool there = false, old_name = false, new_name = false;
		char *text = NULL;
		size_t n;

		OK(tr_fs_mkdir_p(fs, "d", &err));
		put(fs, "d/synced", "S");
		put(fs, "d/from", "F");
		put(fs, "d/target", "old");
		OK(tr_fs_write_file(fs, "d/written", "W", 1, &err));
		OK(tr_fs_fsync_dir(fs, "d", &err));
		put(fs, "d/unsynced", "U");
		OK(tr_fs_rename(fs, "d/from", "d/target", &err));
		OK(tr_fs_unlink(fs, "d/written", &err));
		tr_fs_sim_crash(fs);
		OK(tr_fs_exists(fs, "d/synced", &there, &err));
		assert_true(there);
		OK(tr_fs_exists(fs, "d/unsynced", &there, &err));
		named += there;
		OK(tr_fs_exists(fs, "d/written", &there, &err));
		removed += !there;
		/* a rename is done or not: never both names, never none, and the content goes with it */
		OK(tr_fs_exists(fs, "d/from", &old_name, &err));
		OK(tr_fs_exists(fs, "d/target", &new_name, &err));
		assert_true(new_name);
		OK(tr_fs_read_file(fs, "d/target", 9, &text, &n, &err));
		assert_string_equal(text, old_name ? "old" : "F");
		free(text);
		renamed += !old_name;
		tr_fs_sim_free(fs);
	}
	assert_in_range(named, 25, 75);
	assert_in_range(renamed, 25, 75);
	assert_in_range(removed, 25, 75);
}

static void
test_fs_sim_replace_is_atomic(void **state)
{
	(void)state;
	/* crash at every operation of a replacement: old or new, whole, and new once the call said so */
	for (uint64_t seed = 1; seed <= 20; seed++) {
		for (uint64_t nth = 1; nth < 9; nth++) {
			struct tr_fs *fs = tr_fs_sim_new(seed);
			struct tr_err err;
			char *text = NULL;
			size_t n;
			int rc;

			OK(tr_fs_write_file(fs, "state", "old", 3, &err));
			tr_fs_sim_fail_nth(fs, nth, EIO);
			rc = tr_fs_write_file(fs, "state", "newer", 5, &err);
			assert_true(rc == TR_OK || rc == TR_FATAL);
			tr_fs_sim_fail_nth(fs, 0, 0);
			tr_fs_sim_crash(fs);
			OK(tr_fs_read_file(fs, "state", 9, &text, &n, &err));
			if (rc == TR_OK)
				assert_string_equal(text, "newer");
			else
				assert_true(strcmp(text, "old") == 0 || strcmp(text, "newer") == 0);
			free(text);
			tr_fs_sim_free(fs);
		}
	}
}

static void
test_fs_sim_controls(void **state)
{
	struct tr_fs *fs = tr_fs_sim_new(5);
	struct tr_file *f = NULL;
	struct tr_err err;
	uint64_t size = 0, ops;
	char c;

	(void)state;
	OK(tr_fs_open(fs, "f", TR_FS_RDWR | TR_FS_CREATE, &f, &err));
	tr_fs_sim_set_full(fs, 10);
	OK(tr_file_pwrite(f, "12345678", 8, 0, &err));
	assert_int_equal(tr_file_pwrite(f, "12345678", 8, 8, &err), TR_RETRY);
	assert_int_equal(err.code, ENOSPC);
	assert_non_null(strstr(err.msg, "No space left"));
	OK(tr_file_size(f, &size, &err));
	assert_int_equal(size, 10); /* what still fitted */
	OK(tr_file_pwrite(f, "xx", 2, 0, &err)); /* no growth: fine */
	OK(tr_fs_free_bytes(fs, ".", &size, &err));
	assert_int_equal(size, 0);
	tr_fs_sim_set_full(fs, UINT64_MAX);
	OK(tr_file_fdatasync(f, &err));
	assert_true(tr_fs_sim_flip_bit(fs, "f", 8 * 2 + 1));
	OK(tr_file_pread(f, &c, 1, 2, NULL, &err));
	assert_int_equal(c, '3' ^ 2);
	assert_false(tr_fs_sim_flip_bit(fs, "f", 8 * 100));
	assert_false(tr_fs_sim_flip_bit(fs, "none", 0));
	ops = tr_fs_sim_ops(fs);
	tr_fs_sim_fail_nth(fs, 2, EIO);
	OK(tr_file_pwrite(f, "y", 1, 0, &err));
	assert_int_equal(tr_file_fdatasync(f, &err), TR_FATAL);
	OK(tr_file_fdatasync(f, &err));
	assert_int_equal(tr_fs_sim_ops(fs), ops + 3);
	tr_file_close(f);
	tr_fs_sim_free(fs);
	tr_fs_sim_free(NULL);
}

/* ---- threads ---- */

enum { PRODUCERS = 2, PER_PRODUCER = 20000 };

struct shared {
	struct tr_queue queue;
	struct tr_waker room[PRODUCERS];
	uint32_t items[PRODUCERS][PER_PRODUCER];
	_Atomic uint32_t next_producer;
	_Atomic uint64_t sum;
};

static void
producer(void *arg)
{
	struct shared *s = arg;
	uint32_t me = atomic_fetch_add(&s->next_producer, 1);

	for (uint32_t i = 0; i < PER_PRODUCER; i++) {
		s->items[me][i] = i + 1;
		while (tr_queue_try_push(&s->queue, &s->items[me][i]) == TR_AGAIN)
			tr_sleep_ns(20000);
	}
}

static void
consumer(void *arg)
{
	struct shared *s = arg;
	void *p;
	uint64_t sum = 0;
	int rc;

	while ((rc = tr_queue_pop(&s->queue, tr_now_ns() + TR_NS_PER_S, &p)) != TR_EOF) {
		if (rc == TR_OK)
			sum += *(uint32_t *)p;
	}
	atomic_fetch_add(&s->sum, sum);
}

static void
test_queue_threads(void **state)
{
	static struct shared s;
	struct tr_thread *p[PRODUCERS], *c[2];
	struct tr_err err;

	(void)state;
	OK(tr_queue_init(&s.queue, 64, &err));
	for (int i = 0; i < 2; i++)
		OK(tr_thread_start(&c[i], "consumer-with-a-long-name", consumer, &s, &err));
	for (int i = 0; i < PRODUCERS; i++)
		OK(tr_thread_start(&p[i], "producer", producer, &s, &err));
	for (int i = 0; i < PRODUCERS; i++)
		assert_null(tr_thread_join(p[i]));
	tr_queue_close(&s.queue);
	for (int i = 0; i < 2; i++)
		tr_thread_join(c[i]);
	assert_int_equal(atomic_load(&s.sum), (uint64_t)PRODUCERS * PER_PRODUCER * (PER_PRODUCER + 1) / 2);
	tr_queue_done(&s.queue);
}

static void
test_queue_alone(void **state)
{
	struct tr_queue q;
	struct tr_waker pushed, room;
	struct tr_err err;
	void *v[8], *p = NULL;
	int x[4];
	int64_t t;

	(void)state;
	OK(tr_queue_init(&q, 3, &err));
	OK(tr_waker_init(&pushed, &err));
	OK(tr_waker_init(&room, &err));
	tr_queue_set_wakers(&q, &pushed, &room);
	assert_int_equal(tr_queue_pop(&q, 0, &p), TR_AGAIN);
	t = tr_now_ns();
	assert_int_equal(tr_queue_pop(&q, t + 5 * TR_NS_PER_MS, &p), TR_AGAIN);
	assert_true(tr_now_ns() >= t + 5 * TR_NS_PER_MS);
	for (int i = 0; i < 3; i++)
		OK(tr_queue_try_push(&q, &x[i]));
	assert_int_equal(tr_wait_many(&pushed, NULL, 0, 0, &err), 1);
	assert_int_equal(tr_wait_many(&pushed, NULL, 0, 0, &err), 0);
	OK(tr_queue_pop(&q, 0, &p));
	assert_ptr_equal(p, &x[0]);
	assert_int_equal(tr_wait_many(&room, NULL, 0, 0, &err), 0); /* nobody was refused yet */
	OK(tr_queue_try_push(&q, &x[3]));
	assert_int_equal(tr_queue_try_push(&q, &x[0]), TR_AGAIN);
	assert_int_equal(tr_queue_count(&q), 3);
	assert_int_equal(tr_queue_pop_many(&q, 0, v, 2), 2);
	assert_ptr_equal(v[1], &x[2]);
	assert_int_equal(tr_wait_many(&room, NULL, 0, 0, &err), 1);
	tr_queue_close(&q);
	assert_int_equal(tr_queue_try_push(&q, &x[0]), TR_EOF);
	assert_int_equal(tr_queue_pop_many(&q, INT64_MAX, v, 8), 1); /* what was in it is not lost */
	assert_int_equal(tr_queue_pop_many(&q, INT64_MAX, v, 8), TR_EOF);
	tr_queue_done(&q);
	tr_waker_done(&pushed);
	tr_waker_done(&room);
}

struct pingpong {
	struct tr_waker there, back;
	_Atomic uint32_t ball;
};

static void
ponger(void *arg)
{
	struct pingpong *g = arg;
	sigset_t set;

	/* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	TR_ASSERT(sigismember(&set, SIGTERM) == 1);
	for (uint32_t i = 1; i <= 5000; i++) {
		while (atomic_load_explicit(&g->ball, memory_order_acquire) < 2 * i - 1)
			TR_ASSERT(tr_wait_many(&g->there, NULL, 0, 5 * TR_NS_PER_S, NULL) == 1);
		atomic_store_explicit(&g->ball, 2 * i, memory_order_release);
		tr_waker_wake(&g->back);
	}
}

/* A lost wake shows as a wait of five seconds that ends with 0. */
static void
test_waker_threads(void **state)
{
	static struct pingpong g;
	struct tr_thread *t = NULL;
	struct tr_err err;

	(void)state;
	OK(tr_waker_init(&g.there, &err));
	OK(tr_waker_init(&g.back, &err));
	OK(tr_thread_start(&t, "ponger", ponger, &g, &err));
	for (uint32_t i = 1; i <= 5000; i++) {
		atomic_store_explicit(&g.ball, 2 * i - 1, memory_order_release);
		tr_waker_wake(&g.there);
		while (atomic_load_explicit(&g.ball, memory_order_acquire) < 2 * i)
			assert_int_equal(tr_wait_many(&g.back, NULL, 0, 5 * TR_NS_PER_S, &err), 1);
	}
	tr_thread_join(t);
	tr_waker_done(&g.there);
	tr_waker_done(&g.back);
}

static void
test_wait_many(void **state)
{
	struct tr_waker w;
	struct tr_wait v[100];
	struct tr_err err;
	int fds[2];
	int64_t t;

	(void)state;
	OK(tr_waker_init(&w, &err));
	assert_int_equal(pipe(fds), 0);
	for (int i = 0; i < 100; i++)
		v[i] = (struct tr_wait){ -1, 0, INT64_MAX };
	v[99] = (struct tr_wait){ fds[0], POLLIN, INT64_MAX };
	assert_int_equal(tr_wait_many(&w, v, 100, 0, &err), 0);
	t = tr_now_ns();
	assert_int_equal(tr_wait_many(&w, v, 100, 3 * TR_NS_PER_MS, &err), 0);
	assert_true(tr_now_ns() - t >= 3 * TR_NS_PER_MS);
	v[4].deadline_ns = tr_now_ns() + 2 * TR_NS_PER_MS;
	assert_int_equal(tr_wait_many(&w, v, 100, INT64_MAX, &err), 1); /* the deadline */
	assert_int_equal(write(fds[1], "x", 1), 1);
	assert_int_equal(tr_wait_many(NULL, v, 100, INT64_MAX, &err), 2); /* and the pipe */
	tr_waker_wake(&w);
	tr_waker_wake(&w);
	assert_int_equal(tr_wait_many(&w, v, 100, INT64_MAX, &err), 3);
	assert_int_equal(tr_wait_many(&w, v, 100, 0, &err), 2); /* the waker was cleared */
	tr_waker_wake(NULL);
	close(fds[0]);
	close(fds[1]);
	tr_waker_done(&w);
}

struct counting {
	struct tr_metrics *reg;
	_Atomic bool stop;
};

static void
counter_thread(void *arg)
{
	struct counting *c = arg;
	char table[16];

	for (int i = 0; i < 2000; i++) {
		struct tr_family *f = NULL;
		struct tr_cell *cell = NULL;

		TR_ASSERT(tr_metrics_family(c->reg, &(struct tr_metric_def){ .name = "rows_total", .type = TR_COUNTER }, &f,
		                            NULL) == TR_OK);
		snprintf(table, sizeof table, "t%d", i % 20);
		TR_ASSERT(tr_family_cell(f, &(struct tr_label){ "table", table }, 1, &cell, NULL) == TR_OK);
		tr_counter_inc(cell);
	}
}

/* base's registry, here because base has no threads: two create and count, one renders. */
static void
test_metrics_threads(void **state)
{
	struct counting c = { 0 };
	struct tr_thread *t[2] = { NULL };
	struct tr_buf out = { 0 };
	struct tr_family *f = NULL;
	struct tr_cell *cell = NULL;
	struct tr_err err;

	(void)state;
	OK(tr_metrics_new(&c.reg, &err));
	for (int i = 0; i < 2; i++)
		OK(tr_thread_start(&t[i], "counter", counter_thread, &c, &err));
	for (int i = 0; i < 50; i++) {
		tr_buf_clear(&out);
		OK(tr_metrics_render_prometheus(c.reg, &out));
	}
	for (int i = 0; i < 2; i++)
		tr_thread_join(t[i]);
	OK(tr_metrics_family(c.reg, &(struct tr_metric_def){ .name = "rows_total", .type = TR_COUNTER }, &f, &err));
	OK(tr_family_cell(f, &(struct tr_label){ "table", "t7" }, 1, &cell, &err));
	assert_int_equal(tr_cell_get(cell), 200); /* one cell, whoever made it */
	tr_buf_done(&out);
	tr_metrics_free(c.reg);
}

static void
test_proc(void **state)
{
	char host[256], small[4];

	(void)state;
	assert_true(tr_proc_cpus() >= 1);
	assert_true(tr_proc_rss_bytes() > 100000);
	assert_int_equal(tr_proc_pid(), getpid());
	assert_true(strlen(tr_proc_hostname(host, sizeof host)) > 0);
	tr_proc_hostname(small, sizeof small);
	assert_true(strlen(small) < sizeof small);
	assert_int_equal(tr_thread_pin(-1, NULL), TR_REJECT);
}

static void
test_failpoint_kill(void **state)
{
	int status = 0;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		tr_proc_install_failpoints();
		if (tr_failpoint_arm("os.test=kill:2", NULL) == TR_OK) {
			TR_FAILPOINT("os.test");
			TR_FAILPOINT("os.test");
		}
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void
read_line(int fd, char *out, size_t n)
{
	ssize_t k = read(fd, out, n - 1);

	assert_true(k > 0);
	out[k] = 0;
}

static void
test_oslog(void **state)
{
	struct tr_clock_sim sim;
	struct tr_err err;
	enum tr_oslog_level level;
	struct tr_oslog_limit limit = { 0 };
	uint64_t refused = 9;
	char line[20000], longer[5000];
	int fds[2], allowed = 0;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	tr_clock_sim_init(&sim, 1, INT64_C(1769860800123456));
	tr_clock_set(&sim.clock);
	tr_oslog_setup(TR_OSLOG_INFO, false, fds[1]);
	tr_oslog_write(TR_OSLOG_DEBUG, "engine", "not shown");
	tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({ "pipeline", "orders" }, { "note", "two words" }, { "none", NULL }),
	                "started\n%d", 7);
	read_line(fds[0], line, sizeof line);
	assert_string_equal(line, "2026-01-31T12:00:00.123456Z INFO  engine: started\\n7 pipeline=orders note=\"two words\"\n");
	tr_oslog_setup(TR_OSLOG_DEBUG, true, fds[1]);
	tr_err_sys(&err, TR_RETRY, ENOSPC, "write %s", "/x \"y\"");
	tr_err_where(&err, "a.yaml:3");
	tr_oslog_err(TR_OSLOG_ERROR, "engine", TR_OSLOG_F({ "sink", "s" }), &err);
	read_line(fds[0], line, sizeof line);
	assert_string_equal(line, "{\"ts\":\"2026-01-31T12:00:00.123456Z\",\"level\":\"error\",\"component\":\"engine\","
	                          "\"msg\":\"write /x \\\"y\\\": No space left on device\",\"sink\":\"s\",\"rc\":\"RETRY\","
	                          "\"domain\":\"sys\",\"code\":\"28\",\"where\":\"a.yaml:3\"}\n");
	memset(longer, '\x01', sizeof longer - 1);
	longer[sizeof longer - 1] = 0;
	tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({ "a", longer }, { "b", longer }), "long");
	read_line(fds[0], line, sizeof line);
	assert_true(strlen(line) <= 16384);
	assert_string_equal(line + strlen(line) - 3, "\"}\n");
	OK(tr_oslog_parse_level("warn", &level));
	assert_int_equal(level, TR_OSLOG_WARN);
	assert_int_equal(tr_oslog_parse_level("loud", &level), TR_REJECT);

	assert_true(tr_oslog_allow(&limit, 10 * TR_NS_PER_S, &refused));
	assert_int_equal(refused, 0);
	assert_false(tr_oslog_allow(&limit, 10 * TR_NS_PER_S, &refused));
	assert_false(tr_oslog_allow(&limit, 10 * TR_NS_PER_S, &refused));
	tr_clock_sim_advance(&sim, 10 * TR_NS_PER_S);
	assert_true(tr_oslog_allow(&limit, 10 * TR_NS_PER_S, &refused));
	assert_int_equal(refused, 2);
	for (int i = 0; i < 3; i++)
		allowed += TR_OSLOG_ONCE_PER(10);
	assert_int_equal(allowed, 1);
	tr_clock_set(NULL);
	tr_oslog_setup(TR_OSLOG_INFO, false, 2);
	close(fds[0]);
	close(fds[1]);
}

/* A server that is away for ten minutes, and was told of in a flood before. */
static void
test_oslog_episode(void **state)
{
	struct tr_clock_sim sim;
	struct tr_oslog_episode e = { 0 };
	struct tr_err refused = { .rc = TR_RETRY, .msg = "connection refused" }, silent = { .rc = TR_RETRY, .msg = "no answer" };
	char lasted[TR_OSLOG_LASTED_CHARS];
	int told = 0;

	(void)state;
	tr_clock_sim_init(&sim, 1, INT64_C(1769860800123456));
	tr_clock_set(&sim.clock);
	assert_false(tr_oslog_well(&e, lasted));
	for (int i = 0; i < 1200; i++) {
		told += tr_oslog_failed(&e, &refused);
		tr_clock_sim_advance(&sim, TR_NS_PER_S / 2);
	}
	assert_int_equal(told, 2);
	assert_int_equal(e.since_us, INT64_C(1769860800123456));
	for (int i = told = 0; i < 240; i++) { /* two minutes of now this, now that */
		told += tr_oslog_failed(&e, i % 2 ? &refused : &silent);
		tr_clock_sim_advance(&sim, TR_NS_PER_S / 2);
	}
	assert_in_range(told, 2, 4);
	assert_true(tr_oslog_well(&e, lasted));
	assert_string_equal(lasted, "12 min 0 s");
	assert_false(tr_oslog_well(&e, lasted));
	assert_true(tr_oslog_failed(&e, &refused));
	tr_clock_sim_advance(&sim, 2345 * TR_NS_PER_MS);
	assert_true(tr_oslog_well(&e, lasted));
	assert_string_equal(lasted, "2.3 s");
	tr_clock_set(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_fs_posix),
		cmocka_unit_test(test_fs_sim),
		cmocka_unit_test(test_fs_sim_short_io),
		cmocka_unit_test(test_fs_sim_torn),
		cmocka_unit_test(test_fs_sim_crashes),
		cmocka_unit_test(test_fs_sim_mkdir_again),
		cmocka_unit_test(test_fs_sim_directories),
		cmocka_unit_test(test_fs_sim_replace_is_atomic),
		cmocka_unit_test(test_fs_sim_controls),
		cmocka_unit_test(test_queue_threads),
		cmocka_unit_test(test_queue_alone),
		cmocka_unit_test(test_waker_threads),
		cmocka_unit_test(test_wait_many),
		cmocka_unit_test(test_metrics_threads),
		cmocka_unit_test(test_proc),
		cmocka_unit_test(test_failpoint_kill),
		cmocka_unit_test(test_oslog),
		cmocka_unit_test(test_oslog_episode),
	};

	return cmocka_run_group_tests_name("os", tests, NULL, NULL);
}
