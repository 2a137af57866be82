/* changelog_kit.h - makes transactions for a change log, and remembers what went in: the model that recovery is compared with.
 * One thread. */
#ifndef CHANGELOG_KIT_H
#define CHANGELOG_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc.h"
#include "check.h"
#include "frame.h"
#include "fs.h"
#include "log.h"
#include "prng.h"

enum { KIT_TABLES = 4 };

struct kit_frame {
	uint8_t *p;
	size_t n;
	bool tx_end;
	struct tr_pos pos; /* behind it; meaningful at a tx_end */
};

struct kit {
	struct tr_prng rnd;
	struct tr_schema *schema[KIT_TABLES];
	bool defined[KIT_TABLES];
	uint32_t schema_version[KIT_TABLES];
	struct kit_frame *v; /* by offset */
	size_t n, cap;
	struct tr_pos pos;
	uint64_t lsn;
	bool open;
	struct tr_buf run; /* the frames not appended yet: those from offset `from` */
	size_t from;
};

static inline struct tr_schema *
kit_schema(uint32_t table_id, uint32_t version)
{
	static const struct tr_column cols[] = {
		{ .name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .key_pos = 1, .not_null = true, .source_pos = 1 },
		{ .name = "t", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 2 },
	};
	char name[16];
	struct tr_schema *s = NULL;
	struct tr_schema_def d = { .table_id = table_id, .version = version, .ns = "public", .name = name, .columns = cols, .n_columns = 2 };

	snprintf(name, sizeof name, "t%u", table_id);
	assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
	return s;
}

static inline void
kit_init(struct kit *k, uint64_t seed)
{
	memset(k, 0, sizeof *k);
	tr_prng_init(&k->rnd, seed);
	k->lsn = 1000;
	for (uint32_t i = 0; i < KIT_TABLES; i++)
		k->schema[i] = kit_schema(i + 1, k->schema_version[i] = 1);
}

static inline void
kit_done(struct kit *k)
{
	for (size_t i = 0; i < k->n; i++)
		free(k->v[i].p);
	free(k->v);
	for (uint32_t i = 0; i < KIT_TABLES; i++)
		tr_schema_unref(k->schema[i]);
	tr_buf_done(&k->run);
}

/* Forget all frames from offset n on: recovery has cut them. */
static inline void
kit_cut(struct kit *k, size_t n)
{
	assert_true(n <= k->n);
	while (k->n > n)
		free(k->v[--k->n].p);
	assert_true(n == 0 || k->v[n - 1].tx_end);
	k->pos = n ? k->v[n - 1].pos : (struct tr_pos){ 0 };
	k->open = false;
	k->from = n;
	tr_buf_clear(&k->run);
	memset(k->defined, 0, sizeof k->defined); /* defined again before the next use */
}

static inline void
kit_put(struct kit *k, const struct tr_change *c, bool definition)
{
	size_t at = k->run.n;

	if (definition)
		assert_int_equal(tr_frame_encode_schema(c->schema, 1, TR_FRAME_ORDINARY, &k->run, NULL), TR_OK);
	else
		assert_int_equal(tr_frame_encode(c, &k->run, NULL), TR_OK);
	if (k->n == k->cap) {
		k->cap = k->cap ? k->cap * 2 : 64;
		k->v = realloc(k->v, k->cap * sizeof *k->v);
	}
	if (!definition && tr_op_opens_tx(c->op))
		k->open = true;
	if (!definition && c->op == TR_OP_COMMIT) {
		k->open = false;
		k->pos.commit_lsn = c->commit_lsn;
		k->pos.any_commit = true;
		k->pos.epoch = c->epoch;
	}
	if (!definition && (c->op == TR_OP_INSERT || c->op == TR_OP_UPDATE || c->op == TR_OP_SNAPSHOT_BEGIN))
		k->pos.version = c->version + (c->flags & TR_CHG_MOVED ? 1 : 0);
	if (!definition && c->op == TR_OP_SNAPSHOT_BEGIN)
		k->pos.epoch = c->epoch;
	k->pos.offset = k->n + 1;
	struct kit_frame *f = &k->v[k->n++];
	f->n = k->run.n - at;
	f->p = malloc(f->n);
	memcpy(f->p, k->run.p + at, f->n);
	f->tx_end = !k->open;
	f->pos = k->pos;
}

static inline void
kit_row(struct kit *k, uint8_t op, uint32_t table, size_t payload)
{
	static uint8_t junk[1 << 20];
	struct tr_slice v[2] = { TR_SLICE_LIT("17"), { junk, payload } };
	uint8_t state[2] = { TR_PRESENT, TR_PRESENT };
	struct tr_change c = {
		.op = op,
		.epoch = 1,
		.schema = k->schema[table],
		.version = k->pos.version + 1,
		.change_lsn = k->lsn,
		.key = TR_SLICE_LIT("\x02" "17"),
		.after = { v, state, 2 },
	};

	assert_true(payload <= sizeof junk);
	tr_prng_fill(&k->rnd, junk, payload < 64 ? payload : 64);
	if (op == TR_OP_UPDATE && tr_prng_chance(&k->rnd, 1, 4)) {
		c.flags = TR_CHG_MOVED;
		c.old_key = tr_slice_str("\x02" "16");
	}
	if (op == TR_OP_READ)
		c.version = 1;
	if (!k->defined[table]) {
		k->defined[table] = true;
		kit_put(k, &(struct tr_change){ .op = TR_OP_SCHEMA, .schema = k->schema[table] }, true);
	}
	kit_put(k, &c, false);
}

static inline void
kit_commit(struct kit *k)
{
	k->lsn += 1 + tr_prng_below(&k->rnd, 1000);
	kit_put(k, &(struct tr_change){ .op = TR_OP_COMMIT, .epoch = 1, .commit_lsn = k->lsn, .end_lsn = k->lsn + 8 }, false);
}

/* A new version of a table; its definition comes before its next row. */
static inline void
kit_alter(struct kit *k, uint32_t table)
{
	tr_schema_unref(k->schema[table]);
	k->schema[table] = kit_schema(table + 1, ++k->schema_version[table]);
	k->defined[table] = false;
}

/* Some rows, perhaps the end of the transaction, into k->run. */
static inline void
kit_some(struct kit *k, size_t payload_max)
{
	uint64_t rows = tr_prng_below(&k->rnd, 6);

	if (!k->open && tr_prng_chance(&k->rnd, 1, 6)) { /* a snapshot's rows, between transactions */
		struct tr_change c = { .op = TR_OP_SNAPSHOT_BEGIN, .epoch = 1, .version = k->pos.version + 1, .snapshot_id = 3 };

		kit_put(k, &c, false);
		kit_row(k, TR_OP_READ, 0, (size_t)tr_prng_below(&k->rnd, payload_max));
		return;
	}
	for (uint64_t i = 0; i <= rows; i++)
		kit_row(k, tr_prng_chance(&k->rnd, 1, 2) ? TR_OP_INSERT : TR_OP_UPDATE, (uint32_t)tr_prng_below(&k->rnd, KIT_TABLES),
		        (size_t)tr_prng_below(&k->rnd, payload_max));
	if (!tr_prng_chance(&k->rnd, 1, 3))
		kit_commit(k);
}

/* Appends what is in run, as one or two runs. On failure it stays, to be appended again. */
static inline int
kit_append(struct kit *k, struct tr_log *l, uint32_t partition, struct tr_err *err)
{
	struct tr_log_run v[2];
	uint64_t next = 0;
	size_t frames = k->n - k->from, half = frames / 2, bytes = 0;
	int rc;

	for (size_t i = 0; i < half; i++)
		bytes += k->v[k->from + i].n;
	v[0] = (struct tr_log_run){ { k->run.p, bytes }, (uint32_t)half };
	v[1] = (struct tr_log_run){ { k->run.p + bytes, k->run.n - bytes }, (uint32_t)(frames - half) };
	rc = tr_log_append(l, partition, v, 2, &next, err);
	if (rc < 0)
		return rc;
	assert_int_equal(next, k->n);
	k->from = k->n;
	tr_buf_clear(&k->run);
	return rc;
}

static inline void
kit_pos_equal(const struct tr_pos *a, const struct tr_pos *b)
{
	assert_int_equal(a->offset, b->offset);
	assert_int_equal(a->commit_lsn, b->commit_lsn);
	assert_int_equal(a->version, b->version);
	assert_int_equal(a->epoch, b->epoch);
	assert_int_equal(a->any_commit, b->any_commit);
}

/* Reads from offset to the end and compares with the model. Returns where the reader ended. */
static inline uint64_t
kit_check_read(struct kit *k, struct tr_log *l, uint32_t partition, uint64_t from, size_t step)
{
	struct tr_log_reader *r = NULL;
	struct tr_frame v[16];
	struct tr_err err = { 0 };
	uint64_t at = from;
	int n;

	if (l->ops->reader_new(l, partition, from, &r, &err) < 0)
		fail_msg("%s", err.msg);
	while ((n = tr_log_reader_poll(r, v, step, &err)) > 0) {
		for (int i = 0; i < n; i++, at++) {
			assert_true(at < k->n);
			assert_int_equal(v[i].offset, at);
			assert_int_equal(v[i].raw.n, k->v[at].n);
			assert_memory_equal(v[i].raw.p, k->v[at].p, k->v[at].n);
			assert_int_equal(v[i].tx_end, k->v[at].tx_end);
			if (v[i].table_id) {
				const struct tr_schema *s = r->ops->schema(r, v[i].table_id, v[i].schema_version);

				assert_non_null(s);
				assert_ptr_equal(s, v[i].change.schema);
				assert_int_equal(s->table_id, v[i].table_id);
				assert_int_equal(s->version, v[i].schema_version);
			}
		}
		assert_int_equal(r->next, at);
	}
	if (n != TR_AGAIN)
		fail_msg("reader: %s", err.msg);
	r->ops->free(r);
	return at;
}

static inline void
kit_remove_tree(struct tr_fs *fs, const char *dir)
{
	struct tr_names names = { 0 };

	if (tr_fs_list(fs, dir, &names, NULL) < 0)
		return;
	for (size_t i = 0; i < names.n; i++) {
		char path[1024];

		if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, names.v[i]) >= sizeof path)
			continue;
		if (tr_fs_unlink(fs, path, NULL) < 0)
			kit_remove_tree(fs, path);
	}
	tr_names_done(&names);
	(void)tr_fs_rmdir(fs, dir, NULL);
}

#endif
