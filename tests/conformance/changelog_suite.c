/* Conformance of a change log: the embedded one, on the real file system and on the simulated one. */
#include "changelog_kit.h"

#include <unistd.h>

#include <tailrace/clock.h>
#include <tailrace/metric.h>
#include <tailrace/waker.h>

#include "failpoint.h"
#include "fs_sim.h"

struct bed {
	bool sim;
	struct tr_fs *fs;
	char dir[64];
	struct tr_log_options o;
	struct tr_log *l;
	struct kit k;
};

static void
bed_open(struct bed *b)
{
	struct tr_err err = { 0 };

	if (tr_log_embedded_open(&b->o, &b->l, &err) < 0)
		fail_msg("open: %s", err.msg);
}

static void
bed_start(struct bed *b, bool sim, uint64_t seed)
{
	memset(b, 0, sizeof *b);
	b->sim = sim;
	if (sim) {
		b->fs = tr_fs_sim_new(seed);
		snprintf(b->dir, sizeof b->dir, "/data/log");
	} else {
		snprintf(b->dir, sizeof b->dir, "/tmp/tr-changelog-XXXXXX");
		assert_non_null(mkdtemp(b->dir));
		b->fs = tr_fs_posix();
	}
	tr_log_options_init(&b->o);
	b->o.dir = b->dir;
	b->o.fs = b->fs;
	b->o.segment_bytes = 16 << 10;
	b->o.sync_thread = false;
	kit_init(&b->k, seed);
}

static void
bed_end(struct bed *b)
{
	if (b->l)
		b->l->ops->close(b->l);
	kit_done(&b->k);
	if (b->sim)
		tr_fs_sim_free(b->fs);
	else
		kit_remove_tree(b->fs, b->dir);
}

static void
bed_reopen(struct bed *b)
{
	b->l->ops->close(b->l);
	b->l = NULL;
	bed_open(b);
}

static uint64_t
durable_now(struct tr_log *l)
{
	uint64_t off = 0;

	(void)tr_log_durable(l, 0, 1, 0, &off, NULL);
	return off;
}

static void
sync_ok(struct bed *b)
{
	struct tr_err err = { 0 };

	if (tr_log_embedded_sync(b->l, &err) < 0)
		fail_msg("sync: %s", err.msg);
}

static void
append_ok(struct bed *b)
{
	struct tr_err err = { 0 };

	if (kit_append(&b->k, b->l, 0, &err) < 0)
		fail_msg("append: %s", err.msg);
}

static void
one_tx(struct bed *b, size_t payload)
{
	kit_row(&b->k, TR_OP_INSERT, 0, payload);
	kit_commit(&b->k);
	append_ok(b);
}

typedef void (*bed_fn)(struct bed *b);

static void
on_both(bed_fn fn)
{
	for (int sim = 0; sim < 2; sim++) {
		struct bed b;

		bed_start(&b, sim, 1);
		bed_open(&b);
		fn(&b);
		bed_end(&b);
	}
}

/* ---- what the contract says ---- */

static void
basics(struct bed *b)
{
	struct tr_pos pos;
	struct tr_err err;
	uint64_t off = 99;

	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	assert_int_equal(pos.offset, 0);
	assert_false(pos.any_commit);
	assert_int_equal(tr_log_durable(b->l, 0, 1, 10, &off, &err), TR_AGAIN);
	assert_int_equal(off, 0);
	one_tx(b, 10);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), 0); /* not durable yet */
	sync_ok(b);
	assert_int_equal(tr_log_durable(b->l, 0, 0, 10, &off, &err), TR_OK);
	assert_int_equal(off, b->k.n);
	assert_int_equal(tr_log_durable(b->l, 0, 0, 10, &off, &err), TR_AGAIN);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 1), b->k.n);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	kit_pos_equal(&pos, &b->k.pos);

	/* half a transaction is neither durable nor seen nor in the tail */
	struct tr_pos before = pos;

	kit_row(&b->k, TR_OP_UPDATE, 0, 100);
	append_ok(b);
	sync_ok(b);
	assert_int_equal(durable_now(b->l), before.offset);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	kit_pos_equal(&pos, &before);
	kit_commit(&b->k);
	append_ok(b);
	sync_ok(b);
	assert_int_equal(durable_now(b->l), b->k.n);

	/* partitions and positions that are not there */
	assert_int_equal(tr_log_tail(b->l, 7, &pos, &err), TR_REJECT);
	struct tr_log_reader *r = NULL;

	assert_int_equal(b->l->ops->reader_new(b->l, 0, b->k.n + 1, &r, &err), TR_FATAL);
	assert_int_equal(err.code, b->k.n);
	for (int i = 0; i < 200; i++) {
		kit_some(&b->k, 900);
		append_ok(b);
		if (i % 7 == 0)
			sync_ok(b);
	}
	if (b->k.open) {
		kit_commit(&b->k);
		append_ok(b);
	}
	sync_ok(b);
	for (uint64_t from = 0; from < b->k.n; from += 13)
		assert_int_equal(kit_check_read(&b->k, b->l, 0, from, 16), b->k.n);
	bed_reopen(b);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	kit_pos_equal(&pos, &b->k.pos);
	for (uint64_t from = 0; from < b->k.n; from += 29)
		assert_int_equal(kit_check_read(&b->k, b->l, 0, from, 3), b->k.n);
}

static void
cutting(struct bed *b)
{
	struct tr_err err = { 0 };
	struct tr_pos pos;
	struct tr_log_stats s;

	for (int i = 0; i < 3; i++) {
		one_tx(b, 100);
		for (int j = 0; j < 20 + i; j++) { /* over several segments, or one */
			kit_row(&b->k, TR_OP_INSERT, (uint32_t)j % KIT_TABLES, i == 2 ? 10 : 3000);
			append_ok(b);
			if (j % 5 == 0)
				sync_ok(b);
		}
		assert_int_equal(b->l->ops->cut(b->l, 0, &err), TR_OK);
		assert_int_equal(tr_log_tail(b->l, 0, &pos, NULL), TR_OK);
		assert_int_equal(b->l->ops->stats(b->l, 0, &s, NULL), TR_OK);
		assert_int_equal(s.appended_offset, pos.offset);
		kit_cut(&b->k, pos.offset);
		memset(b->k.defined, 1, sizeof b->k.defined); /* it still knows them, even those taken back */
		for (int j = 0; j < 9; j++) {
			kit_row(&b->k, TR_OP_INSERT, (uint32_t)j % KIT_TABLES, 3000);
			kit_commit(&b->k);
			append_ok(b);
		}
		sync_ok(b);
		assert_int_equal(b->l->ops->cut(b->l, 0, &err), TR_OK); /* nothing to cut */
		assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
	}
	bed_reopen(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
}

static void
test_cutting(void **state)
{
	(void)state;
	on_both(cutting);
}

static void
test_basics(void **state)
{
	(void)state;
	on_both(basics);
}

static void
large(struct bed *b)
{
	one_tx(b, 100);
	one_tx(b, 1 << 20); /* 64 segments large */
	one_tx(b, 100);
	one_tx(b, 700 << 10);
	one_tx(b, 10);
	sync_ok(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
	bed_reopen(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
}

static void
test_large(void **state)
{
	(void)state;
	on_both(large);
}

static void
undefined(struct bed *b)
{
	struct tr_err err = { 0 };
	struct tr_pos pos;

	b->k.defined[2] = true; /* a lie */
	kit_row(&b->k, TR_OP_INSERT, 2, 5);
	kit_commit(&b->k);
	assert_int_equal(kit_append(&b->k, b->l, 0, &err), TR_FATAL);
	assert_non_null(strstr(err.msg, "never defined"));
	kit_cut(&b->k, 0);
	one_tx(b, 5);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	kit_pos_equal(&pos, &b->k.pos);
	/* the same version with another content */
	tr_schema_unref(b->k.schema[0]);
	b->k.schema[0] = kit_schema(9, 1);
	b->k.schema[0]->table_id = 1;
	b->k.defined[0] = false;
	kit_row(&b->k, TR_OP_INSERT, 0, 5);
	assert_int_equal(kit_append(&b->k, b->l, 0, &err), TR_FATAL);
	/* what is not frames */
	struct tr_log_run run = { TR_SLICE_LIT("what is this?"), 1 };

	assert_int_equal(tr_log_append(b->l, 0, &run, 1, NULL, &err), TR_FATAL);
}

static void
test_undefined(void **state)
{
	(void)state;
	on_both(undefined);
}

static void
fill_to(struct bed *b, size_t segments)
{
	struct tr_log_stats s;

	do {
		one_tx(b, 1000);
		assert_int_equal(b->l->ops->stats(b->l, 0, &s, NULL), TR_OK);
	} while (s.segments < segments);
	sync_ok(b);
}

static void
retention(struct bed *b)
{
	struct tr_log_stats s;
	struct tr_err err = { 0 };
	struct tr_log_reader *r = NULL, *late = NULL;
	struct tr_frame f[1];
	int64_t later = INT64_MAX / 2;

	/* table 3 is defined in the first segment only */
	kit_row(&b->k, TR_OP_INSERT, 3, 5);
	kit_commit(&b->k);
	append_ok(b);
	fill_to(b, 6);
	assert_int_equal(b->l->ops->pin(b->l, "sink a", 0, 60, &err), TR_OK);
	assert_int_equal(b->l->ops->pin(b->l, "sink b", 0, 0, &err), TR_OK);
	assert_int_equal(b->l->ops->retain(b->l, later, &err), TR_OK);
	b->l->ops->stats(b->l, 0, &s, NULL);
	assert_int_equal(s.first_offset, 0);
	assert_int_equal(s.pinned_offset, 0);
	assert_int_equal(b->l->ops->reader_new(b->l, 0, 0, &r, &err), TR_OK);
	assert_int_equal(tr_log_reader_poll(r, f, 1, &err), 1);
	assert_int_equal(b->l->ops->reader_new(b->l, 0, b->k.n, &late, &err), TR_OK);
	assert_int_equal(b->l->ops->pin(b->l, "sink b", 0, UINT64_MAX, &err), TR_OK);
	assert_int_equal(b->l->ops->retain(b->l, later, &err), TR_OK);
	b->l->ops->stats(b->l, 0, &s, NULL);
	assert_true(s.first_offset > 0 && s.first_offset <= 60);
	assert_int_equal(tr_log_reader_poll(r, f, 1, &err), TR_FATAL);
	assert_int_equal(err.code, s.first_offset);
	assert_int_equal(r->ops->seek(r, 0, &err), TR_FATAL);
	assert_int_equal(r->ops->seek(r, s.first_offset, &err), TR_OK);
	assert_int_equal(tr_log_reader_poll(r, f, 1, &err), 1);
	assert_int_equal(f[0].offset, s.first_offset);
	assert_int_equal(tr_log_reader_poll(late, f, 1, &err), TR_AGAIN);
	r->ops->free(r);
	late->ops->free(late);
	/* nothing is young enough to stay: all but the active one go */
	assert_int_equal(b->l->ops->pin(b->l, "sink a", 0, UINT64_MAX, &err), TR_OK);
	assert_int_equal(b->l->ops->retain(b->l, later, &err), TR_OK);
	b->l->ops->stats(b->l, 0, &s, NULL);
	assert_int_equal(s.segments, 1);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset, 16), b->k.n);
	/* its definition was carried, also across a restart */
	bed_reopen(b);
	kit_row(&b->k, TR_OP_INSERT, 3, 5);
	kit_commit(&b->k);
	append_ok(b);
	sync_ok(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset, 16), b->k.n);
}

static void
test_retention(void **state)
{
	(void)state;
	for (int sim = 0; sim < 2; sim++) {
		struct bed b;

		bed_start(&b, sim, 1);
		bed_open(&b);
		retention(&b);
		bed_end(&b);
	}
}

static void
size_bound(struct bed *b)
{
	struct tr_err err = { 0 };
	struct tr_log_stats s;
	int rc = TR_OK;

	b->l->ops->close(b->l);
	b->o.size_max = 64 << 10;
	bed_open(b);
	assert_int_equal(b->l->ops->pin(b->l, "snapshot", 0, 0, &err), TR_OK);
	for (int i = 0; i < 1000 && rc == TR_OK; i++) {
		kit_row(&b->k, TR_OP_INSERT, 0, 1000);
		kit_commit(&b->k);
		rc = kit_append(&b->k, b->l, 0, &err);
		sync_ok(b);
	}
	assert_int_equal(rc, TR_AGAIN);
	assert_int_equal(kit_append(&b->k, b->l, 0, &err), TR_AGAIN);
	assert_int_equal(b->l->ops->stats(b->l, 0, &s, NULL), TR_OK);
	assert_true(s.bytes <= s.size_max);
	assert_int_equal(s.first_offset, 0);
	b->l->ops->pin(b->l, "snapshot", 0, UINT64_MAX, &err);
	for (int i = 0; i < 300; i++) {
		append_ok(b);
		sync_ok(b);
		kit_row(&b->k, TR_OP_INSERT, 0, 1000);
		kit_commit(&b->k);
		b->l->ops->stats(b->l, 0, &s, NULL);
		assert_true(s.bytes <= s.size_max);
	}
	append_ok(b);
	sync_ok(b);
	assert_true(s.first_offset > 0);
	b->l->ops->stats(b->l, 0, &s, NULL);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset, 16), b->k.n);
}

/* A definition that stands in the oldest segment alone cannot be carried within a transaction, so nothing may be removed until its end. */
static void
size_bound_within_transactions(struct bed *b)
{
	struct tr_log_stats s;

	b->l->ops->close(b->l);
	b->o.size_max = 64 << 10;
	bed_open(b);
	kit_row(&b->k, TR_OP_INSERT, 0, 1000);
	kit_commit(&b->k);
	for (int i = 1; i <= 600; i++) {
		kit_row(&b->k, TR_OP_INSERT, 1, 1000);
		if (i % 12 == 0)
			kit_commit(&b->k);
		append_ok(b);
		if (!b->k.open)
			sync_ok(b);
		b->l->ops->stats(b->l, 0, &s, NULL);
		assert_true(s.bytes <= s.size_max + b->o.segment_bytes);
	}
	assert_true(s.first_offset > 0);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset, 16), b->k.n);
}

static void
test_size_bound(void **state)
{
	(void)state;
	on_both(size_bound);
	on_both(size_bound_within_transactions);
}

static void
waking(struct bed *b)
{
	struct tr_log_reader *r = NULL;
	struct tr_waker w;
	struct tr_wait wait;
	struct tr_frame f[4];
	struct tr_err err;

	assert_int_equal(tr_waker_init(&w, &err), TR_OK);
	assert_int_equal(b->l->ops->reader_new(b->l, 0, 0, &r, &err), TR_OK);
	assert_int_equal(tr_log_reader_poll(r, f, 4, &err), TR_AGAIN);
	assert_int_equal(r->ops->arm(r, &w, &wait), 0);
	one_tx(b, 10);
	assert_int_equal(tr_wait_many(&w, NULL, 0, 0, &err), 0);
	sync_ok(b);
	assert_int_equal(tr_wait_many(&w, NULL, 0, 0, &err), 1);
	assert_int_equal(r->ops->arm(r, &w, &wait), 1);
	assert_int_equal(tr_log_reader_poll(r, f, 4, &err), 3);
	assert_true(f[2].tx_end && !f[1].tx_end && f[0].tx_end);
	assert_int_equal(f[1].change.op, TR_OP_INSERT);
	assert_int_equal(r->ops->arm(r, &w, &wait), 0);
	r->ops->free(r);
	tr_waker_done(&w);
}

static void
test_waking(void **state)
{
	(void)state;
	on_both(waking);
}

static void
one_owner(struct bed *b)
{
	struct tr_log *l = NULL;
	struct tr_err err = { 0 };

	assert_int_equal(tr_log_embedded_open(&b->o, &l, &err), TR_RETRY);
	bed_reopen(b);
	b->l->ops->close(b->l);
	b->l = NULL;
	b->o.partitions = 3;
	assert_int_equal(tr_log_embedded_open(&b->o, &l, &err), TR_REJECT);
	assert_non_null(strstr(err.msg, "has 1 partitions"));
	b->o.partitions = 1;
	b->o.segment_bytes = 100;
	assert_int_equal(tr_log_embedded_open(&b->o, &l, &err), TR_REJECT);
	b->o.segment_bytes = 16 << 10;
}

static void
test_one_owner(void **state)
{
	(void)state;
	on_both(one_owner);
}

static void
partitions(struct bed *b)
{
	struct kit k[3];

	b->l->ops->close(b->l);
	kit_remove_tree(b->fs, b->dir);
	b->o.partitions = 3;
	bed_open(b);
	for (int i = 0; i < 3; i++)
		kit_init(&k[i], (uint64_t)i);
	for (int round = 0; round < 40; round++)
		for (uint32_t i = 0; i < 3; i++) {
			kit_some(&k[i], 800);
			if (k[i].open)
				kit_commit(&k[i]);
			assert_int_equal(kit_append(&k[i], b->l, i, NULL), TR_OK);
		}
	sync_ok(b);
	bed_reopen(b);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(kit_check_read(&k[i], b->l, i, 0, 16), k[i].n);
		kit_done(&k[i]);
	}
}

static void
test_partitions(void **state)
{
	(void)state;
	on_both(partitions);
}

/* ---- faults ---- */

static void
test_disk_full(void **state)
{
	struct bed b;
	struct tr_err err = { 0 };
	int rc = TR_OK;

	(void)state;
	bed_start(&b, true, 5);
	bed_open(&b);
	tr_fs_sim_set_full(b.fs, 90 << 10);
	while (rc == TR_OK) {
		kit_row(&b.k, TR_OP_INSERT, (uint32_t)tr_prng_below(&b.k.rnd, KIT_TABLES), 1000);
		kit_commit(&b.k);
		rc = kit_append(&b.k, b.l, 0, &err);
		if (rc == TR_OK)
			sync_ok(&b);
	}
	assert_int_equal(rc, TR_RETRY);
	assert_int_equal(err.code, 28); /* ENOSPC */
	assert_int_equal(kit_append(&b.k, b.l, 0, &err), TR_RETRY);
	assert_int_equal(kit_check_read(&b.k, b.l, 0, 0, 16), b.k.from); /* no trace */
	tr_fs_sim_set_full(b.fs, UINT64_MAX);
	append_ok(&b);
	sync_ok(&b);
	assert_int_equal(kit_check_read(&b.k, b.l, 0, 0, 16), b.k.n);
	bed_reopen(&b);
	assert_int_equal(kit_check_read(&b.k, b.l, 0, 0, 16), b.k.n);
	bed_end(&b);
}

/* After a failed sync: FATAL for ever, and the next open trusts nothing beyond what was durable. */
static void
failed_sync(struct bed *b)
{
	struct tr_err err = { 0 };
	struct tr_pos pos;
	uint64_t durable;

	one_tx(b, 10);
	sync_ok(b);
	durable = b->k.n;
	one_tx(b, 10);
	assert_int_equal(tr_failpoint_arm("log.before_sync=error:1", &err), TR_OK);
	assert_int_equal(tr_log_embedded_sync(b->l, &err), TR_FATAL);
	tr_failpoint_clear();
	assert_int_equal(tr_log_embedded_sync(b->l, &err), TR_FATAL);
	kit_row(&b->k, TR_OP_INSERT, 0, 5);
	assert_int_equal(kit_append(&b->k, b->l, 0, &err), TR_FATAL);
	assert_int_equal(tr_log_durable(b->l, 0, durable + 1, 0, NULL, &err), TR_FATAL);
	bed_reopen(b);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	assert_int_equal(pos.offset, durable);
	kit_cut(&b->k, durable);
	one_tx(b, 20);
	sync_ok(b);
	bed_reopen(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
}

static void
test_failed_sync(void **state)
{
	(void)state;
	on_both(failed_sync);
}

static void
fault_points(struct bed *b)
{
	struct tr_err err = { 0 };

	one_tx(b, 10);
	assert_int_equal(tr_failpoint_arm("log.append=error:1", &err), TR_OK);
	kit_row(&b->k, TR_OP_INSERT, 0, 5);
	kit_commit(&b->k);
	assert_int_equal(kit_append(&b->k, b->l, 0, &err), TR_RETRY);
	append_ok(b);
	tr_failpoint_clear();
	assert_int_equal(tr_failpoint_arm("log.roll=error:1", &err), TR_OK);
	for (int i = 0, failed = 0; i < 40; i++) {
		kit_row(&b->k, TR_OP_INSERT, 0, 1000);
		kit_commit(&b->k);
		if (kit_append(&b->k, b->l, 0, &err) < 0) {
			assert_int_equal(failed++, 0);
			append_ok(b);
		}
	}
	assert_true(tr_failpoint_hits("log.roll") > 1);
	tr_failpoint_clear();
	sync_ok(b);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), b->k.n);
}

static void
test_fault_points(void **state)
{
	(void)state;
	on_both(fault_points);
}

/* Same length each time, so that what is stale would stand exactly where the next frame is looked for. */
static void
same_length_tx(struct bed *b)
{
	kit_row(&b->k, TR_OP_INSERT, 0, 200);
	kit_commit(&b->k);
}

static void
expect_end(struct bed *b, uint64_t end)
{
	struct tr_pos pos;

	tr_log_embedded_abandon(b->l);
	bed_open(b);
	assert_int_equal(tr_log_tail(b->l, 0, &pos, NULL), TR_OK);
	assert_int_equal(pos.offset, end);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, 0, 16), end);
}

/* A failed append got two of its three transactions onto the disk; another one of the same length follows. */
static void
test_stale_after_failure(void **state)
{
	struct bed b;
	struct tr_err err = { 0 };

	(void)state;
	bed_start(&b, true, 1);
	bed_open(&b);
	one_tx(&b, 200);
	same_length_tx(&b);
	append_ok(&b);
	sync_ok(&b);

	size_t before = b.k.n;

	same_length_tx(&b);
	size_t one = b.k.run.n;

	same_length_tx(&b);
	same_length_tx(&b);

	uint64_t held = 0, more;

	tr_fs_sim_set_full(b.fs, UINT64_C(1) << 40);
	(void)tr_fs_free_bytes(b.fs, "/data", &more, NULL);
	held = (UINT64_C(1) << 40) - more;
	tr_fs_sim_set_full(b.fs, held + 2 * one + 10);
	assert_int_equal(kit_append(&b.k, b.l, 0, &err), TR_RETRY);
	tr_fs_sim_set_full(b.fs, UINT64_MAX);
	kit_cut(&b.k, before);
	b.k.defined[0] = true;
	same_length_tx(&b);
	assert_int_equal(b.k.run.n, one);
	append_ok(&b);
	sync_ok(&b);
	expect_end(&b, before + 2);
	bed_end(&b);
}

/* A crash lost the first of two transactions and kept the second; recovery cuts, and another one of the same length follows. */
static void
test_stale_after_crash(void **state)
{
	struct bed b;
	struct tr_file *f = NULL;
	uint64_t size = 0;

	(void)state;
	bed_start(&b, true, 1);
	bed_open(&b);
	one_tx(&b, 200);
	sync_ok(&b);

	size_t before = b.k.n;

	same_length_tx(&b);
	size_t one = b.k.run.n;

	same_length_tx(&b);
	append_ok(&b);
	sync_ok(&b);
	assert_int_equal(tr_fs_open(b.fs, "/data/log/p0000/00000000000000000000.seg", TR_FS_RDONLY, &f, NULL), TR_OK);
	assert_int_equal(tr_file_size(f, &size, NULL), TR_OK);
	tr_file_close(f);
	tr_log_embedded_abandon(b.l);
	assert_true(tr_fs_sim_flip_bit(b.fs, "/data/log/p0000/00000000000000000000.seg", (size - 2 * one + 50) * 8));
	bed_open(&b);
	assert_int_equal(durable_now(b.l), before);
	kit_cut(&b.k, before);
	b.k.defined[0] = true;
	same_length_tx(&b);
	assert_int_equal(b.k.run.n, one);
	append_ok(&b);
	sync_ok(&b);
	expect_end(&b, before + 2);
	bed_end(&b);
}

/* Every bit matters: in a sealed segment, and below the mark in the last one. */
static void
test_corruption(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		struct bed b;
		struct tr_err err = { 0 };
		struct tr_log_stats s;
		char path[128];
		struct tr_log_reader *r = NULL;
		struct tr_frame f[16];
		int n, rc;

		bed_start(&b, true, seed);
		bed_open(&b);
		fill_to(&b, 3);
		b.l->ops->stats(b.l, 0, &s, NULL);
		bool last = tr_prng_chance(&b.k.rnd, 1, 2);
		b.l->ops->close(b.l);
		b.l = NULL;
		struct tr_names names = { 0 };
		uint64_t base = 0;

		assert_int_equal(tr_fs_list(b.fs, "/data/log/p0000", &names, NULL), TR_OK);
		for (size_t i = 0; i < names.n; i++)
			if (strstr(names.v[i], ".seg") && (last || base == 0)) {
				base = 1;
				snprintf(path, sizeof path, "/data/log/p0000/%s", names.v[i]);
			}
		tr_names_done(&names);
		assert_true(tr_fs_sim_flip_bit(b.fs, path, (4096 + tr_prng_below(&b.k.rnd, 900)) * 8 + 3));
		rc = tr_log_embedded_open(&b.o, &b.l, &err);
		if (last) {
			assert_int_equal(rc, TR_FATAL);
			assert_non_null(strstr(err.msg, path));
		} else if (rc == TR_OK) {
			assert_int_equal(b.l->ops->reader_new(b.l, 0, 0, &r, &err), TR_OK);
			while ((n = tr_log_reader_poll(r, f, 16, &err)) > 0)
				;
			assert_int_equal(n, TR_FATAL);
			assert_non_null(strstr(err.msg, path));
			r->ops->free(r);
		} else {
			assert_int_equal(rc, TR_FATAL);
		}
		bed_end(&b);
	}
}

/* ---- crashes ---- */

static uint64_t n_crashes, n_cut, n_kept, n_rolls, n_failed, n_recycled, n_removed, n_taken_back;

static void
check_recovered(struct bed *b, uint64_t durable, uint64_t first)
{
	struct tr_pos pos, none = { 0 };
	struct tr_err err = { 0 };
	struct tr_log_stats s;
	uint64_t had = b->k.n;

	assert_int_equal(tr_log_tail(b->l, 0, &pos, &err), TR_OK);
	if (pos.offset < durable || pos.offset > b->k.n)
		fail_msg("recovered to %llu, durable was %llu, appended %zu", (unsigned long long)pos.offset, (unsigned long long)durable, b->k.n);
	kit_cut(&b->k, pos.offset);
	kit_pos_equal(&pos, pos.offset ? &b->k.pos : &none);
	assert_int_equal(durable_now(b->l), pos.offset);
	assert_int_equal(b->l->ops->stats(b->l, 0, &s, &err), TR_OK);
	assert_true(s.first_offset >= first);
	assert_true(s.first_offset <= pos.offset);
	assert_int_equal(s.appended_offset, pos.offset);
	assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset, 7), pos.offset);
	if (pos.offset > s.first_offset)
		assert_int_equal(kit_check_read(&b->k, b->l, 0, s.first_offset + tr_prng_below(&b->k.rnd, pos.offset - s.first_offset), 16), pos.offset);
	n_cut += had > pos.offset;
	n_kept += pos.offset > durable;
}

static void
cut_model(struct bed *b)
{
	struct tr_pos pos;

	assert_int_equal(tr_log_tail(b->l, 0, &pos, NULL), TR_OK);
	kit_cut(&b->k, pos.offset);
}

static uint64_t
cell_of(struct tr_metrics *m, const char *name)
{
	TR_CLEANUP(tr_buf_done) struct tr_buf b = { 0 };
	const char *at;
	char line[96];

	assert_int_equal(tr_metrics_render_prometheus(m, &b), TR_OK);
	snprintf(line, sizeof line, "\n%s{partition=\"0\"} ", name);
	at = strstr(tr_buf_cstr(&b), line);
	return at ? strtoull(at + strlen(line), NULL, 10) : 0;
}

static void
run_crashes(uint64_t seed)
{
	struct bed b;
	struct tr_err err = { 0 };
	uint64_t durable = 0, first = 0;
	bool pending = false, broken = false;
	struct tr_metrics *m = NULL;
	struct tr_clock_sim clock;

	tr_clock_sim_init(&clock, 0, 1700000000000000);
	tr_clock_set(&clock.clock);
	bed_start(&b, true, seed);
	assert_int_equal(tr_metrics_new(&m, NULL), TR_OK);
	b.o.metrics = m;
	b.o.segment_bytes = (8u << 10) << tr_prng_below(&b.k.rnd, 3);
	if (tr_prng_chance(&b.k.rnd, 1, 4))
		tr_fs_sim_short_io(b.fs, true);
	for (int life = 0; life < 4; life++) {
		uint64_t ops = 5 + tr_prng_below(&b.k.rnd, 60);

		while (tr_log_embedded_open(&b.o, &b.l, &err) < 0) { /* a crash, or a failed operation, during recovery */
			if (err.rc == TR_REJECT || strstr(err.msg, "damaged") || strstr(err.msg, "missing"))
				fail_msg("open: %s", err.msg);
			n_crashes++;
			tr_fs_sim_crash(b.fs);
		}
		tr_fs_sim_fail_nth(b.fs, 0, 0);
		check_recovered(&b, durable, first);
		durable = b.k.n;
		pending = broken = false;
		for (uint64_t i = 0; i < ops && !broken; i++) {
			uint64_t what = tr_prng_below(&b.k.rnd, 16);

			tr_clock_sim_advance(&clock, TR_NS_PER_S);
			int rc = TR_OK;

			if (what < 8 || pending) {
				if (!pending)
					kit_some(&b.k, tr_prng_chance(&b.k.rnd, 1, 20) ? 20000 : 1500);
				rc = kit_append(&b.k, b.l, 0, &err);
				pending = rc < 0;
			} else if (what < 12) {
				rc = tr_log_embedded_sync(b.l, &err);
			} else if (what == 12) {
				(void)b.l->ops->pin(b.l, "x", 0, tr_prng_below(&b.k.rnd, b.k.n + 1), NULL);
				rc = b.l->ops->retain(b.l, INT64_MAX / 2, &err);
			} else if (what == 13) {
				kit_alter(&b.k, (uint32_t)tr_prng_below(&b.k.rnd, KIT_TABLES));
			} else if (what == 14 && b.k.open && tr_prng_chance(&b.k.rnd, 1, 2)) {
				rc = b.l->ops->cut(b.l, 0, &err);
				if (rc == TR_OK)
					cut_model(&b);
				n_taken_back++;
			} else if (what == 14 && tr_prng_chance(&b.k.rnd, 1, 3)) {
				tr_fs_sim_fail_nth(b.fs, 1 + tr_prng_below(&b.k.rnd, 12), tr_prng_chance(&b.k.rnd, 1, 2) ? 28 : 5);
			} else {
				struct tr_log_stats s;

				tr_fs_sim_fail_nth(b.fs, 0, 0);
				(void)b.l->ops->stats(b.l, 0, &s, NULL);
				if (durable_now(b.l) > s.first_offset)
					(void)kit_check_read(&b.k, b.l, 0, s.first_offset, 16);
			}
			n_failed += rc < 0;
			broken = rc == TR_FATAL;
			struct tr_log_stats s;

			(void)b.l->ops->stats(b.l, 0, &s, NULL);
			durable = s.durable_offset;
			first = s.first_offset;
			n_rolls += s.segments;
		}
		n_recycled += cell_of(m, "tailrace_log_recycled_segments_total");
		n_removed += cell_of(m, "tailrace_log_removed_segments_total");
		uint64_t how = tr_prng_below(&b.k.rnd, 8);

		if (how == 0) {
			tr_fs_sim_fail_nth(b.fs, 0, 0);
			b.l->ops->close(b.l);
			durable = b.k.n;
			while (durable && !b.k.v[durable - 1].tx_end)
				durable--;
			if (pending || broken)
				durable = 0; /* not looked at closely */
		} else {
			n_crashes++;
			if (how < 7)
				tr_fs_sim_crash(b.fs);
			tr_log_embedded_abandon(b.l);
		}
		b.l = NULL;
		tr_fs_sim_fail_nth(b.fs, 0, 0);
		if (tr_prng_chance(&b.k.rnd, 1, 3)) /* and the next recovery is cut short somewhere */
			tr_fs_sim_fail_nth(b.fs, 1 + tr_prng_below(&b.k.rnd, 60), 5);
	}
	b.o.metrics = NULL;
	tr_fs_sim_fail_nth(b.fs, 0, 0);
	bed_open(&b);
	check_recovered(&b, durable, first);
	bed_end(&b);
	tr_metrics_free(m);
	tr_clock_set(NULL);
}

static void
test_crashes(void **state)
{
	const char *one = getenv("TR_SEED"), *many = getenv("TR_SEEDS");
	uint64_t n = many ? strtoull(many, NULL, 10) : 2500;

	(void)state;
	if (one) {
		run_crashes(strtoull(one, NULL, 10));
		return;
	}
	for (uint64_t seed = 1; seed <= n; seed++) {
		char text[32];

		snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
		setenv("TR_SEED_NOW", text, 1);
		run_crashes(seed);
	}
	unsetenv("TR_SEED_NOW");
	printf("crashes %llu, tails cut %llu, tails kept beyond durable %llu, failed operations %llu, recycled %llu, removed %llu, taken back %llu\n",
	       (unsigned long long)n_crashes, (unsigned long long)n_cut, (unsigned long long)n_kept, (unsigned long long)n_failed,
	       (unsigned long long)n_recycled, (unsigned long long)n_removed, (unsigned long long)n_taken_back);
	assert_true(n_cut > n / 2 && n_kept > n / 4 && n_failed > n / 4);
	assert_true(n < 1000 || (n_recycled > 0 && n_removed > 0));
}

/* Only after a failure: say how to repeat it. */
static int
say_seed(void **state)
{
	const char *seed = getenv("TR_SEED_NOW");

	(void)state;
	if (seed)
		fprintf(stderr, "last seed: TR_SEED=%s\n", seed);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_basics),
		cmocka_unit_test(test_cutting),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_undefined),
		cmocka_unit_test(test_retention),
		cmocka_unit_test(test_size_bound),
		cmocka_unit_test(test_waking),
		cmocka_unit_test(test_one_owner),
		cmocka_unit_test(test_partitions),
		cmocka_unit_test(test_disk_full),
		cmocka_unit_test(test_failed_sync),
		cmocka_unit_test(test_fault_points),
		cmocka_unit_test(test_stale_after_failure),
		cmocka_unit_test(test_stale_after_crash),
		cmocka_unit_test(test_corruption),
		cmocka_unit_test_setup_teardown(test_crashes, NULL, say_seed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
