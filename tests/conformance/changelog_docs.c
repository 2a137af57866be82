/* The hex examples in docs/formats are what the code makes: `changelog_docs DIR`. With a second argument it prints them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frame.h"
#include "key.h"
#include "log_segment.h"
#include "rowimage.h"

static const char *docs;
static bool print;

static struct tr_schema *
example_schema(void)
{
	static const struct tr_column cols[] = {
		{ .name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1, .source_type_id = 20, .source_pos = 1 },
		{ .name = "price", .source_type = "numeric(10,2)", .type = TR_TYPE_DECIMAL, .key_pos = 2, .precision = 10, .scale = 2, .source_type_id = 1700, .source_pos = 2 },
		{ .name = "note", .source_type = "text", .fill_default = "-", .type = TR_TYPE_TEXT, .precision = -1, .source_type_id = 25, .source_pos = 4 },
		{ .name = "big", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1, .source_type_id = 25, .source_pos = 5 },
	};
	struct tr_schema *s = NULL;
	struct tr_schema_def d = { .table_id = 7, .version = 2, .ns = "public", .name = "item", .columns = cols, .n_columns = 4 };

	assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
	return s;
}

static const struct tr_slice values[4] = { TR_SLICE_LIT("300"), TR_SLICE_LIT("12.50"), { NULL, 0 }, { NULL, 0 } };
static const uint8_t states[4] = { TR_PRESENT, TR_PRESENT, TR_NULL, TR_UNCHANGED };
static const struct tr_row row = { values, states, 4 };

static void
make_key(struct tr_buf *b)
{
	struct tr_schema *s = example_schema();

	assert_int_equal(tr_key_encode(s, &row, b, NULL), TR_OK);
	tr_schema_unref(s);
}

static void
make_rowimage(struct tr_buf *b)
{
	assert_int_equal(tr_rowimage_encode(&row, b), TR_OK);
}

static void
make_frame(struct tr_buf *b)
{
	struct tr_schema *s = example_schema();
	struct tr_buf key = { 0 };
	struct tr_change c = {
		.op = TR_OP_UPDATE,
		.flags = TR_CHG_UNCHANGED,
		.epoch = 1,
		.ordinal = 3,
		.schema = s,
		.version = (UINT64_C(1) << 56) | 0x16B3748,
		.commit_lsn = 0x16B3748,
		.change_lsn = 0x16B3700,
		.xid = 742,
		.commit_us = 1700000000000000,
		.capture_us = 1700000000000250,
		.after = row,
	};

	make_key(&key);
	c.key = tr_buf_slice(&key);
	assert_int_equal(tr_frame_encode(&c, b, NULL), TR_OK);
	tr_buf_done(&key);
	tr_schema_unref(s);
}

static void
make_schema(struct tr_buf *b)
{
	struct tr_schema *s = example_schema();

	assert_int_equal(tr_schema_encode(s, b), TR_OK);
	tr_schema_unref(s);
}

static void
make_segment(struct tr_buf *b)
{
	struct tr_logseg_header h = {
		.partition = 2,
		.base = 1000,
		.created_us = 1700000000000000,
		.prev_base = 400,
		.prev_end = 67108000,
		.walk = {
			.now = { .offset = 1000, .commit_lsn = 0x16B3748, .version = (UINT64_C(1) << 56) | 0x16B3760, .epoch = 1, .any_commit = true },
			.end = { .offset = 990, .commit_lsn = 0x16B3748, .version = (UINT64_C(1) << 56) | 0x16B3748, .epoch = 1, .any_commit = true },
			.open = true,
		},
	};

	assert_int_equal(tr_buf_reserve(b, TR_LOGSEG_HEADER), TR_OK);
	tr_logseg_header_encode(&h, b->p);
	b->n = TR_LOGSEG_HEADER;

	struct tr_logseg_header back;

	assert_int_equal(tr_logseg_header_decode(tr_buf_slice(b), &back, NULL), TR_OK);
	assert_int_equal(back.walk.end.offset, 990);
	assert_true(back.walk.open);
}

static void
make_index(struct tr_buf *b)
{
	struct tr_logentry v[] = { { 1000, 4096, true }, { 1200, 70000, false } };
	struct tr_logdef_at d[] = { { 7, 2, 4096 } };
	struct tr_logindex x = { .partition = 2, .base = 1000, .frames = 250, .data_end = 90000, .first_us = 1700000000000000, .last_us = 1700000060000000,
		                 .v = v, .n = 2, .d = d, .n_d = 1 }, back;

	assert_int_equal(tr_logindex_encode(&x, b), TR_OK);
	assert_int_equal(tr_logindex_decode(tr_buf_slice(b), true, &back, NULL), TR_OK);
	assert_int_equal(back.n, 2);
	assert_int_equal(back.v[1].pos, 70000);
	assert_true(back.v[0].open && !back.v[1].open);
	assert_int_equal(tr_logindex_find(&back, 999) == NULL, 1);
	assert_int_equal(tr_logindex_find(&back, 1199)->pos, 4096);
	assert_int_equal(tr_logindex_find(&back, 1200)->pos, 70000);
	tr_logindex_done(&back);
}

static void
make_tail(struct tr_buf *b)
{
	struct tr_logtail t = { .base = 1000, .pos = 90000, .offset = 1250 };

	assert_int_equal(tr_buf_reserve(b, TR_LOGTAIL_BYTES), TR_OK);
	tr_logtail_encode(&t, b->p);
	b->n = TR_LOGTAIL_BYTES;
}

static int
hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes of the block that begins with "```hex NAME": pairs from the start of each line up to two blanks. */
static void
read_block(const char *file, const char *name, struct tr_buf *out)
{
	char path[1024], head[64];
	char *text = NULL, *at;
	size_t n;
	struct tr_err err = { 0 };

	snprintf(path, sizeof path, "%s/%s", docs, file);
	if (tr_fs_read_file(tr_fs_posix(), path, 1 << 20, &text, &n, &err) < 0)
		fail_msg("%s", err.msg);
	snprintf(head, sizeof head, "```hex %s\n", name);
	at = strstr(text, head);
	if (!at)
		fail_msg("%s has no block %s", path, name);
	for (at = strchr(at, '\n') + 1; strncmp(at, "```", 3) != 0; at = strchr(at, '\n') + 1) {
		const char *p = at;

		while (hex_digit(p[0]) >= 0 && hex_digit(p[1]) >= 0) {
			assert_int_equal(tr_buf_append_u8(out, (uint8_t)(hex_digit(p[0]) << 4 | hex_digit(p[1]))), TR_OK);
			p += 2;
			if (p[0] == ' ' && p[1] != ' ')
				p++;
		}
	}
	free(text);
}

static void
check(const char *file, const char *name, void (*make)(struct tr_buf *b))
{
	struct tr_buf is = { 0 }, said = { 0 };

	make(&is);
	if (print) {
		printf("%s:", name);
		for (size_t i = 0; i < is.n; i++)
			printf("%s%02x", i % 8 ? " " : "\n", is.p[i]);
		printf("\n");
	} else {
		read_block(file, name, &said);
		assert_int_equal(said.n, is.n);
		assert_memory_equal(said.p, is.p, is.n);
	}
	tr_buf_done(&is);
	tr_buf_done(&said);
}

static void
test_docs(void **state)
{
	(void)state;
	check("key.md", "key", make_key);
	check("rowimage.md", "rowimage", make_rowimage);
	check("frame.md", "frame", make_frame);
	check("schema.md", "schema", make_schema);
	check("segment.md", "header", make_segment);
	check("segment.md", "index", make_index);
	check("segment.md", "tail", make_tail);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_docs) };

	docs = argc > 1 ? argv[1] : "docs/formats";
	print = argc > 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
