/* Conformance of a control store: SQLite and the one in memory, by the same calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tailrace/clock.h>

#include "control_memory.h"
#include "control_sqlite.h"

struct bed {
	bool sqlite;
	char dir[64], path[80];
	struct tr_control *c;
	struct tr_clock_sim clock;
	uint64_t token;
};

static struct tr_err err;

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) != TR_OK)                                                                                   \
			fail_msg("%s: %s", #call, err.msg);                                                            \
	} while (0)

static void
bed_open(struct bed *b)
{
	OK(b->sqlite ? tr_control_sqlite_open(b->path, &b->c, &err) : tr_control_memory_new(&b->c, &err));
}

/* SQLite: closed and opened again. Memory: another store, of a snapshot. */
static void
bed_reopen(struct bed *b)
{
	if (b->sqlite) {
		b->c->ops->close(b->c);
		bed_open(b);
	} else {
		struct tr_control_snapshot *s = tr_control_memory_snapshot(b->c);

		assert_non_null(s);
		b->c->ops->close(b->c);
		bed_open(b);
		OK(tr_control_memory_restore(b->c, s));
		tr_control_snapshot_free(s);
	}
	b->c->ops->act_under(b->c, "stream", b->token);
}

typedef void (*bed_fn)(struct bed *b);

static void
on_both(bed_fn fn)
{
	for (int i = 0; i < 2; i++) {
		struct bed b = { .sqlite = i == 0, .dir = "/tmp/tr-control-XXXXXX" };

		tr_clock_sim_init(&b.clock, 0, 1700000000000000);
		tr_clock_set(&b.clock.clock);
		assert_non_null(mkdtemp(b.dir));
		snprintf(b.path, sizeof b.path, "%s/control.db", b.dir);
		bed_open(&b);
		OK(b.c->ops->lease_take(b.c, "stream", "host-1", 10000, &b.token, &err));
		b.c->ops->act_under(b.c, "stream", b.token);
		fn(&b);
		b.c->ops->close(b.c);
		if (b.sqlite) {
			char p[96];

			unlink(b.path);
			snprintf(p, sizeof p, "%s-wal", b.path);
			unlink(p);
			snprintf(p, sizeof p, "%s-shm", b.path);
			unlink(p);
		}
		rmdir(b.dir);
		tr_clock_set(NULL);
	}
}

static void
leases(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	uint64_t t = 0, id, first = b->token, second, third;

	assert_true(first >= (uint64_t)tr_wall_us()); /* of two stores, the one taken later has the higher token */
	assert_int_equal(o->lease_take(b->c, "stream", "host-2", 1000, &t, &err), TR_RETRY);
	assert_non_null(strstr(err.msg, "host-1"));
	OK(o->lease_take(b->c, "stream", "host-1", 10000, &t, &err)); /* ours already */
	assert_int_equal(t, first);
	OK(o->lease_take(b->c, "other", "host-2", 1000, &t, &err));
	assert_true(t >= first);
	tr_clock_sim_advance(&b->clock, 9 * TR_NS_PER_S);
	OK(o->lease_renew(b->c, "stream", first, 10000, &err));
	tr_clock_sim_advance(&b->clock, 9 * TR_NS_PER_S);
	assert_int_equal(o->lease_take(b->c, "stream", "host-2", 1000, &t, &err), TR_RETRY);
	OK(o->snapshot_id_next(b->c, &id, &err));
	assert_true(id >= (uint64_t)tr_wall_us()); /* so that two stores do not give the same */
	uint64_t before = id;
	OK(o->snapshot_id_next(b->c, &id, &err));
	assert_true(id == before + 1);
	tr_clock_sim_advance(&b->clock, 2 * TR_NS_PER_S); /* it has expired, and nobody took it: still ours */
	OK(o->snapshot_id_next(b->c, &id, &err));
	assert_true(id > before + 1);
	before = id;
	OK(o->lease_take(b->c, "stream", "host-2", 1000, &t, &err));
	assert_true((second = t) > first);
	assert_int_equal(o->snapshot_id_next(b->c, &id, &err), TR_FENCED);
	assert_int_equal(o->lease_renew(b->c, "stream", first, 10000, &err), TR_FENCED);
	assert_int_equal(o->lease_release(b->c, "stream", first, &err), TR_FENCED);
	b->token = second;
	bed_reopen(b);
	o = b->c->ops;
	OK(o->snapshot_id_next(b->c, &id, &err));
	assert_true(id > before);
	OK(o->lease_release(b->c, "stream", second, &err));
	assert_int_equal(o->snapshot_id_next(b->c, &id, &err), TR_FENCED);
	OK(o->lease_take(b->c, "stream", "host-2", 1000, &t, &err));
	assert_true((third = t) > second);
	o->act_under(b->c, "stream", third);
	before = id;
	OK(o->snapshot_id_next(b->c, &id, &err));
	assert_true(id > before);
	assert_int_equal(o->lease_take(b->c, "", "host-2", 1000, &t, &err), TR_REJECT);
}

/* Every call that changes something is fenced, and changes nothing. */
static void
fencing(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_source src = { .system_id = "7", .epoch = 1 };
	struct tr_ctl_table t, t2;
	struct tr_ctl_chunk k = { .table_id = 1 };
	struct tr_ctl_offset off = { .sink = "s", .offset = 5 };
	struct tr_ctl_audit a = { .action = "x" };
	char kind[32], scope[64], table[160];
	uint32_t version;
	uint64_t id;

	OK(o->source_bind(b->c, "src", &src, &err));
	OK(o->table_ensure(b->c, "src", "public", "t", &t, &err));
	for (int i = 0; i < 2; i++) { /* a stale token, and none */
		o->act_under(b->c, "stream", i ? 0 : 77);
		assert_int_equal(o->source_bind(b->c, "src", &src, &err), TR_FENCED);
		assert_int_equal(o->confirm(b->c, "src", 9, 9, &err), TR_FENCED);
		assert_int_equal(o->slot_put(b->c, "src", "slot", TR_SLOT_CREATED, &err), TR_FENCED);
		assert_int_equal(o->table_ensure(b->c, "src", "public", "u", &t2, &err), TR_FENCED);
		assert_int_equal(o->table_put(b->c, &t, &err), TR_FENCED);
		assert_int_equal(o->snapshot_id_next(b->c, &id, &err), TR_FENCED);
		assert_int_equal(o->schema_put(b->c, 1, 0, tr_slice_str("x"), 1, &version, &err), TR_FENCED);
		assert_int_equal(o->chunk_put(b->c, &k, &err), TR_FENCED);
		assert_int_equal(o->chunk_clear(b->c, 1, 99, &err), TR_FENCED);
		assert_int_equal(o->offset_commit(b->c, &off, &err), TR_FENCED);
		assert_int_equal(o->request_take(b->c, kind, scope, table, &err), TR_FENCED);
		assert_int_equal(o->alarm_set(b->c, "lag", "s", "x", &err), TR_FENCED);
		assert_int_equal(o->alarm_clear(b->c, "lag", "s", &err), TR_FENCED);
		assert_int_equal(o->request_put(b->c, "me", "pause", "s", "t", &err), i ? TR_OK : TR_FENCED);
		assert_int_equal(o->audit(b->c, &a, &err), i ? TR_OK : TR_FENCED);
	}
	assert_int_equal(o->offset_get(b->c, "s", 0, &id, &err), 1);
	OK(o->source_get(b->c, "src", &src, &err));
	assert_int_equal(src.confirm_lsn, 0);
}

static void
sources(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_source v = { .system_id = "7436", .timeline = 3, .slot = "tr", .epoch = 2, .confirm_lsn = UINT64_C(0xFFFFFFFF00000001) }, got;
	char slot[64];
	enum tr_slot_state st;

	OK(o->source_get(b->c, "src", &got, &err));
	assert_string_equal(got.system_id, "");
	assert_int_equal(got.epoch, 0);
	assert_int_equal(o->confirm(b->c, "src", 1, 1, &err), TR_REJECT);
	OK(o->slot_get(b->c, "src", slot, &st, &err));
	assert_int_equal(st, TR_SLOT_NONE);
	OK(o->slot_put(b->c, "src", "tr", TR_SLOT_CREATING, &err));
	OK(o->source_get(b->c, "src", &got, &err));
	assert_int_equal(got.epoch, 0); /* a slot alone binds nothing */
	OK(o->source_bind(b->c, "src", &v, &err));
	OK(o->source_get(b->c, "src", &got, &err));
	assert_memory_equal(&got, &v, sizeof v);
	v.epoch = 3;
	v.confirm_lsn = 100;
	v.log_offset = 7;
	OK(o->source_bind(b->c, "src", &v, &err));
	OK(o->confirm(b->c, "src", 90, 9, &err)); /* neither goes back */
	OK(o->confirm(b->c, "src", 110, 8, &err));
	bed_reopen(b);
	o = b->c->ops;
	OK(o->source_get(b->c, "src", &got, &err));
	assert_int_equal(got.confirm_lsn, 110);
	assert_int_equal(got.log_offset, 9);
	v.epoch = 2;
	assert_int_equal(o->source_bind(b->c, "src", &v, &err), TR_REJECT);
	v.epoch = 0;
	assert_int_equal(o->source_bind(b->c, "src", &v, &err), TR_REJECT);
	v.epoch = 128;
	assert_int_equal(o->source_bind(b->c, "src", &v, &err), TR_REJECT);
	OK(o->slot_get(b->c, "src", slot, &st, &err));
	assert_string_equal(slot, "tr");
	assert_int_equal(st, TR_SLOT_CREATING);
	OK(o->slot_put(b->c, "src", "", TR_SLOT_NONE, &err));
}

struct seen {
	int n;
	char text[1024];
};

static void
see_table(void *arg, const struct tr_ctl_table *t)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%u:%s.%s/%u ", t->table_id, t->ns, t->name, t->state);
}

static void
see_schema(void *arg, uint32_t version, uint64_t lsn, struct tr_slice bytes)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%u@%llu=%" TR_SLICE_FMT " ", version, (unsigned long long)lsn, TR_SLICE_ARG(bytes));
}

static void
tables(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_table t, u, again;
	struct seen seen = { 0 };
	uint32_t version = 0;
	char longer[100];

	OK(o->table_ensure(b->c, "src", "public", "a", &t, &err));
	assert_int_equal(t.table_id, 1);
	assert_int_equal(t.state, TR_TABLE_NEW);
	assert_true(t.begin_offset == UINT64_MAX && t.end_offset == UINT64_MAX);
	OK(o->table_ensure(b->c, "src", "public", "b", &u, &err));
	assert_int_equal(u.table_id, 2);
	OK(o->table_ensure(b->c, "elsewhere", "public", "a", &u, &err));
	assert_int_equal(u.table_id, 3);
	t.state = TR_TABLE_CHUNKS;
	t.snapshot_id = 4;
	t.begin_offset = 17;
	t.rows_read = UINT64_MAX;
	t.storage = (struct tr_table_storage){ UINT64_MAX - 5, UINT64_MAX - 6, 7, INT64_MAX };
	snprintf(t.reason, sizeof t.reason, "it's \xC3\xA9 reason");
	OK(o->table_put(b->c, &t, &err));
	bed_reopen(b);
	o = b->c->ops;
	OK(o->table_ensure(b->c, "src", "public", "a", &again, &err));
	assert_memory_equal(&again, &t, sizeof t);
	OK(o->table_list(b->c, "src", see_table, &seen, &err));
	assert_string_equal(seen.text, "1:public.a/2 2:public.b/0 ");
	t.table_id = 99;
	assert_int_equal(o->table_put(b->c, &t, &err), TR_REJECT);
	t.table_id = 1;
	t.state = 50;
	assert_int_equal(o->table_put(b->c, &t, &err), TR_REJECT);
	memset(longer, 'x', sizeof longer);
	longer[99] = 0;
	assert_int_equal(o->table_ensure(b->c, "src", "public", longer, &u, &err), TR_REJECT);

	OK(o->schema_put(b->c, 1, 10, tr_slice_str("one"), 111, &version, &err));
	assert_int_equal(version, 1);
	OK(o->schema_put(b->c, 1, 11, tr_slice_str("again"), 111, &version, &err));
	assert_int_equal(version, 1);
	OK(o->schema_put(b->c, 1, 12, tr_slice_str("two"), UINT64_MAX, &version, &err));
	assert_int_equal(version, 2);
	OK(o->schema_put(b->c, 2, 12, tr_slice_str("x"), 5, &version, &err));
	assert_int_equal(version, 1);
	OK(o->schema_put(b->c, 1, 13, tr_slice_str("one"), 111, &version, &err)); /* back again after another: new */
	assert_int_equal(version, 3);
	assert_int_equal(o->schema_put(b->c, 77, 13, tr_slice_str("one"), 111, &version, &err), TR_REJECT);
	bed_reopen(b);
	o = b->c->ops;
	memset(&seen, 0, sizeof seen);
	OK(o->schema_list(b->c, 1, see_schema, &seen, &err));
	assert_string_equal(seen.text, "1@10=one 2@12=two 3@13=one ");
}

static void
see_chunk(void *arg, const struct tr_ctl_chunk *k)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%u%s(%" TR_SLICE_FMT ",%" TR_SLICE_FMT "]%llu ", k->seq, k->done ? "+" : "-", TR_SLICE_ARG(k->lo),
	         TR_SLICE_ARG(k->hi), (unsigned long long)k->rows);
}

static void
chunks(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_table t;
	struct seen seen = { 0 };
	struct tr_ctl_chunk k = { .table_id = 1, .snapshot_id = 2, .seq = 1, .lo = tr_slice_str("m") };

	assert_int_equal(o->chunk_put(b->c, &k, &err), TR_REJECT);
	OK(o->table_ensure(b->c, "src", "public", "a", &t, &err));
	OK(o->chunk_put(b->c, &k, &err));
	k = (struct tr_ctl_chunk){ .table_id = 1, .snapshot_id = 2, .seq = 0, .hi = tr_slice_str("m") };
	OK(o->chunk_put(b->c, &k, &err));
	k.done = true;
	k.rows = 12;
	OK(o->chunk_put(b->c, &k, &err));
	k.snapshot_id = 1;
	OK(o->chunk_put(b->c, &k, &err));
	bed_reopen(b);
	o = b->c->ops;
	OK(o->chunk_list(b->c, 1, 2, see_chunk, &seen, &err));
	assert_string_equal(seen.text, "0+(,m]12 1-(m,]0 ");
	OK(o->chunk_clear(b->c, 1, 2, &err));
	memset(&seen, 0, sizeof seen);
	OK(o->chunk_list(b->c, 1, 1, see_chunk, &seen, &err));
	assert_int_equal(seen.n, 0);
	OK(o->chunk_list(b->c, 1, 2, see_chunk, &seen, &err));
	assert_int_equal(seen.n, 2);
}

static void
see_sink_table(void *arg, const struct tr_ctl_sink_table *t)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%u/%u%s%s %lld %lld %s;", t->table_id, t->state, t->relive ? "r" : "", t->mirror_live ? "m" : "",
	         (long long)t->end_offset, (long long)t->log_from, t->reason);
}

static void
see_sink(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%s/%u=%llu@%lld ", sink, partition, (unsigned long long)offset, (long long)(at_us % 1000000000));
}

static void
sinks(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_sink_table t[2] = {
		{ .table_id = 5, .state = TR_ST_LIVE, .mirror_live = true, .end_offset = UINT64_MAX, .log_from = UINT64_MAX },
		{ .table_id = 2, .state = TR_ST_PAUSED, .relive = true, .end_offset = 3, .log_from = 7, .reason = "why" },
	};
	struct tr_ctl_offset v = { .sink = "b", .partition = 1, .offset = 10, .tables = t, .n_tables = 2 };
	struct seen seen = { 0 };
	uint64_t off = 9;

	assert_int_equal(o->offset_get(b->c, "b", 1, &off, &err), 1);
	assert_int_equal(off, 0);
	OK(o->offset_commit(b->c, &v, &err));
	tr_clock_sim_advance(&b->clock, TR_NS_PER_S);
	v = (struct tr_ctl_offset){ .sink = "b", .partition = 0, .offset = 4 };
	OK(o->offset_commit(b->c, &v, &err));
	v.sink = "a";
	OK(o->offset_commit(b->c, &v, &err));
	v = (struct tr_ctl_offset){ .sink = "b", .partition = 1, .offset = 9, .tables = t, .n_tables = 1 };
	t[0].state = TR_ST_GAPPED;
	assert_int_equal(o->offset_commit(b->c, &v, &err), TR_REJECT); /* with all it carries */
	v.set_back = true;
	OK(o->offset_commit(b->c, &v, &err));
	OK(o->offset_get(b->c, "b", 1, &off, &err));
	assert_int_equal(off, 9);
	t[0].state = TR_ST_LIVE;
	v = (struct tr_ctl_offset){ .sink = "b", .partition = 1, .offset = 10, .tables = t, .n_tables = 1 };
	OK(o->offset_commit(b->c, &v, &err));
	t[0].state = TR_ST_GAPPED;
	bed_reopen(b);
	o = b->c->ops;
	assert_int_equal(o->offset_get(b->c, "b", 1, &off, &err), 0);
	assert_int_equal(off, 10);
	OK(o->sink_table_list(b->c, "b", see_sink_table, &seen, &err));
	assert_string_equal(seen.text, "2/4r 3 7 why;5/3m -1 -1 ;");
	v.offset = 10;
	OK(o->offset_commit(b->c, &v, &err));
	memset(&seen, 0, sizeof seen);
	OK(o->sink_table_list(b->c, "b", see_sink_table, &seen, &err));
	assert_string_equal(seen.text, "2/4r 3 7 why;5/5m -1 -1 ;");
	memset(&seen, 0, sizeof seen);
	OK(o->sink_table_list(b->c, "a", see_sink_table, &seen, &err));
	assert_int_equal(seen.n, 0);
	OK(o->sink_list(b->c, see_sink, &seen, &err));
	assert_string_equal(seen.text, "a/0=4@1000000 b/0=4@1000000 b/1=10@1000000 ");
}

static void
see_audit(void *arg, const struct tr_ctl_audit *a)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%s %s %s %s %s;", a->actor, a->action, a->subject, a->outcome, a->detail);
}

static void
see_alarm(void *arg, const struct tr_ctl_alarm *a)
{
	struct seen *s = arg;
	size_t at = strlen(s->text);

	s->n++;
	snprintf(s->text + at, sizeof s->text - at, "%s %s %s %lld;", a->kind, a->subject, a->text, (long long)(a->since_us % 1000000000));
}

static void
operators(struct bed *b)
{
	const struct tr_control_ops *o = b->c->ops;
	struct tr_ctl_audit a = { .actor = "eve", .action = "rebuild", .subject = "t", .outcome = "refused", .detail = "no" };
	struct seen seen = { 0 };
	char kind[32], scope[64], table[160];

	assert_int_equal(o->request_take(b->c, kind, scope, table, &err), TR_AGAIN);
	OK(o->request_put(b->c, "ann", "pause", "sink a", "public.t", &err));
	OK(o->request_put(b->c, "bob", "resume", "", "public.u", &err));
	OK(o->audit(b->c, &a, &err));
	assert_int_equal(o->request_put(b->c, "", "resume", "", "public.u", &err), TR_REJECT);
	bed_reopen(b);
	o = b->c->ops;
	OK(o->request_take(b->c, kind, scope, table, &err));
	assert_string_equal(kind, "pause");
	assert_string_equal(scope, "sink a");
	assert_string_equal(table, "public.t");
	OK(o->request_take(b->c, kind, scope, table, &err));
	assert_string_equal(kind, "resume");
	assert_int_equal(o->request_take(b->c, kind, scope, table, &err), TR_AGAIN);
	OK(o->audit_list(b->c, 2, see_audit, &seen, &err)); /* the newest first */
	assert_string_equal(seen.text, "eve rebuild t refused no;bob resume public.u requested ;");

	memset(&seen, 0, sizeof seen);
	OK(o->alarm_set(b->c, "lag", "sink a", "5 min", &err));
	tr_clock_sim_advance(&b->clock, TR_NS_PER_S);
	OK(o->alarm_set(b->c, "headroom", "slot", "low", &err));
	OK(o->alarm_set(b->c, "lag", "sink a", "6 min", &err));
	bed_reopen(b);
	o = b->c->ops;
	OK(o->alarm_list(b->c, see_alarm, &seen, &err));
	assert_string_equal(seen.text, "lag sink a 6 min 0;headroom slot low 1000000;");
	OK(o->alarm_clear(b->c, "lag", "sink a", &err));
	OK(o->alarm_clear(b->c, "lag", "sink a", &err));
	memset(&seen, 0, sizeof seen);
	OK(o->alarm_list(b->c, see_alarm, &seen, &err));
	assert_int_equal(seen.n, 1);
}

#define BOTH(fn)                                                                                                       \
	static void test_##fn(void **state)                                                                            \
	{                                                                                                              \
		(void)state;                                                                                           \
		on_both(fn);                                                                                           \
	}
BOTH(leases)
BOTH(fencing)
BOTH(sources)
BOTH(tables)
BOTH(chunks)
BOTH(sinks)
BOTH(operators)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leases),
		cmocka_unit_test(test_fencing),
		cmocka_unit_test(test_sources),
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_sinks),
		cmocka_unit_test(test_operators),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
