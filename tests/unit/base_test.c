/* Unit tests of src/base: golden values from the sources named in the headers, and boundaries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>
#include <tailrace/metric.h>
#include <tailrace/slice.h>

#include "alloc.h"
#include "arena.h"
#include "check.h"
#include "crc32c.h"
#include "cursor.h"
#include "failpoint.h"
#include "hash.h"
#include "list.h"
#include "map.h"
#include "pqueue.h"
#include "prng.h"
#include "ring.h"
#include "text.h"

#define S(lit) tr_slice_str(lit)

static void
assert_buf(struct tr_buf *b, const char *want)
{
	assert_string_equal(tr_buf_cstr(b), want);
	tr_buf_clear(b);
}

static void
test_err(void **state)
{
	struct tr_err err;
	char longer[600];

	(void)state;
	assert_int_equal(tr_err_set(NULL, TR_RETRY, TR_DOM_PG, "x"), TR_RETRY);
	assert_int_equal(tr_err_sys(NULL, TR_FATAL, 5, "x"), TR_FATAL);
	memset(&err, 0xff, sizeof err);
	assert_int_equal(tr_err_set(&err, TR_REJECT, TR_DOM_CONFIG, "table %s", "t"), TR_REJECT);
	assert_int_equal(err.rc, TR_REJECT);
	assert_int_equal(err.code, 0);
	assert_int_equal(err.retry_after_ms, 0);
	assert_string_equal(err.where, "");
	/* wrapping: the argument is the struct's own text */
	tr_err_set(&err, TR_FATAL, TR_DOM_LOG, "outer: %s", err.msg);
	assert_string_equal(err.msg, "outer: table t");
	tr_err_sys(&err, TR_FATAL, 2, "open %s", "/x");
	assert_string_equal(err.msg, "open /x: No such file or directory");
	assert_int_equal(err.code, 2);
	assert_int_equal(err.domain, TR_DOM_SYS);
	tr_err_where(&err, "%s:%d", "a.yaml", 7);
	assert_string_equal(err.where, "a.yaml:7");

	/* 510 bytes of ASCII, then a two-byte character across the border at 511 */
	memset(longer, 'a', 510);
	memcpy(longer + 510, "\xC3\xA9zz", 5);
	tr_err_set(&err, TR_FATAL, TR_DOM_LOG, "%s", longer);
	assert_int_equal(strlen(err.msg), 510);
	assert_true(tr_utf8_valid(S(err.msg)));
	memset(longer, 'a', 507);
	memcpy(longer + 507, "\xF0\x9F\x8C\x8Azz", 7); /* just fits: 507 + 4 = 511 */
	tr_err_set(&err, TR_FATAL, TR_DOM_LOG, "%s", longer);
	assert_int_equal(strlen(err.msg), 511);
	assert_true(tr_utf8_valid(S(err.msg)));
	memset(longer, 'a', 599);
	longer[599] = 0;
	tr_err_sys(&err, TR_FATAL, 2, "%s", longer);
	assert_int_equal(strlen(err.msg), 511);

	assert_string_equal(tr_rc_name(TR_NOT_READY), "NOT_READY");
	assert_string_equal(tr_rc_name(TR_NOMEM), "NOMEM");
	assert_string_equal(tr_rc_name(-99), "UNKNOWN");
	assert_string_equal(tr_rc_name(17), "OK");
	assert_string_equal(tr_err_domain_name(TR_DOM_HTTP), "http");
	assert_string_equal(tr_err_domain_name(TR_DOM_CLI), "cli");
}

static void
test_slice(void **state)
{
	static const struct tr_slice lit = TR_SLICE_LIT("ab\0c");

	(void)state;
	assert_int_equal(lit.n, 4);
	assert_true(tr_slice_eq(tr_slice_str(NULL), tr_slice_of("", 0)));
	assert_true(tr_slice_cmp(S("a"), S("ab")) < 0);
	assert_true(tr_slice_cmp(S("\xff"), S("a")) > 0);
	assert_int_equal(tr_slice_cmp(S("ab"), S("ab")), 0);
	assert_true(tr_slice_has_prefix(S("abc"), S("ab")));
	assert_false(tr_slice_has_prefix(S("a"), S("ab")));
	assert_int_equal(tr_slice_sub(S("abc"), 1, 99).n, 2);
	assert_int_equal(tr_slice_sub(S("abc"), 9, 99).n, 0);
}

static void
test_buf_and_cursor(void **state)
{
	static const uint64_t values[] = { 0, 1, 127, 128, 300, UINT32_MAX, INT64_MAX, UINT64_MAX };
	struct tr_buf b = { 0 };
	struct tr_cur c;
	size_t n;
	uint8_t *p;

	(void)state;
	assert_int_equal(tr_buf_append(&b, NULL, 0), TR_OK);
	tr_buf_append_u8(&b, 0x01);
	tr_buf_append_u16le(&b, 0x0203);
	tr_buf_append_u32le(&b, 0x04050607);
	tr_buf_append_u64le(&b, UINT64_C(0x08090a0b0c0d0e0f));
	assert_memory_equal(b.p, "\x01\x03\x02\x07\x06\x05\x04\x0f\x0e\x0d\x0c\x0b\x0a\x09\x08", 15);
	c = tr_cur_of(tr_buf_slice(&b));
	assert_int_equal(tr_cur_u8(&c), 1);
	assert_int_equal(tr_cur_le16(&c), 0x0203);
	assert_int_equal(tr_cur_le32(&c), 0x04050607);
	assert_int_equal(tr_cur_le64(&c), UINT64_C(0x08090a0b0c0d0e0f));
	assert_true(tr_cur_done(&c));
	c = tr_cur_of(tr_slice_of(b.p + 1, 14));
	assert_int_equal(tr_cur_be16(&c), 0x0302);
	assert_int_equal(tr_cur_be32(&c), 0x07060504);
	assert_int_equal(tr_cur_be64(&c), UINT64_C(0x0f0e0d0c0b0a0908));

	tr_buf_clear(&b);
	for (size_t i = 0; i < TR_ARRAY_LEN(values); i++)
		tr_buf_append_varint(&b, values[i]);
	c = tr_cur_of(tr_buf_slice(&b));
	for (size_t i = 0; i < TR_ARRAY_LEN(values); i++)
		assert_int_equal(tr_cur_varint(&c), values[i]);
	assert_true(tr_cur_done(&c));
	tr_buf_clear(&b);
	tr_buf_append_varint(&b, 300);
	assert_memory_equal(b.p, "\xac\x02", 2);

	/* printf across a growth */
	tr_buf_clear(&b);
	for (int i = 0; i < 100; i++)
		tr_buf_printf(&b, "%03d", i);
	assert_int_equal(b.n, 300);
	assert_memory_equal(b.p + 297, "099", 3);

	assert_int_equal(tr_buf_reserve(&b, SIZE_MAX), TR_NOMEM);
	assert_int_equal(b.n, 300);

	tr_alloc_fail_from(2);
	p = tr_malloc(1);
	assert_non_null(p);
	tr_free(p);
	for (int i = 0; i < 3; i++)
		assert_null(tr_malloc(1));
	assert_int_equal(tr_alloc_fail_nth(0), 0);
	tr_alloc_fail_from(2);
	tr_free(tr_malloc(1));
	assert_int_equal(tr_alloc_fail_nth(0), 1);
	tr_alloc_fail_nth(1);
	assert_int_equal(tr_buf_reserve(&b, 100000), TR_NOMEM);
	assert_int_equal(b.n, 300);
	p = tr_buf_take(&b, &n);
	assert_int_equal(n, 300);
	assert_null(b.p);
	free(p);
	tr_buf_done(&b);
	tr_buf_done(NULL);
}

static void
test_cursor_bad(void **state)
{
	struct tr_cur c = tr_cur_of(S("ab"));
	struct tr_slice s;

	(void)state;
	assert_int_equal(tr_cur_be32(&c), 0);
	assert_false(tr_cur_ok(&c));
	assert_int_equal(tr_cur_u8(&c), 0); /* sticky, though a byte is there */
	assert_int_equal(tr_cur_left(&c), 0);
	c = tr_cur_of(tr_slice_of("abc\0d", 5));
	s = tr_cur_cstr(&c);
	assert_true(tr_slice_eq(s, S("abc")));
	s = tr_cur_cstr(&c);
	assert_int_equal(s.n, 0);
	assert_false(tr_cur_ok(&c));
	c = tr_cur_of(tr_slice_of(NULL, 0));
	assert_true(tr_cur_done(&c));
	assert_int_equal(tr_cur_bytes(&c, 0).n, 0);
	assert_true(tr_cur_ok(&c));
	tr_cur_bytes(&c, SIZE_MAX);
	assert_false(tr_cur_ok(&c));
	/* 65 bits, and eleven bytes */
	c = tr_cur_of(S("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"));
	tr_cur_varint(&c);
	assert_false(tr_cur_ok(&c));
	c = tr_cur_of(S("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));
	tr_cur_varint(&c);
	assert_false(tr_cur_ok(&c));
	c = tr_cur_of(S("\x01\x02\x03"));
	assert_int_equal(tr_cur_zigzag(&c), -1);
	assert_int_equal(tr_cur_zigzag(&c), 1);
	assert_int_equal(tr_cur_zigzag(&c), -2);
}

static void
test_arena(void **state)
{
	struct tr_arena a;
	void *p;

	(void)state;
	tr_arena_init(&a, 1024, 8192);
	for (int i = 0; i < 200; i++) {
		p = tr_arena_alloc_aligned(&a, 7, 32);
		assert_non_null(p);
		assert_int_equal((uintptr_t)p % 32, 0);
		memset(p, i, 7);
	}
	assert_true(a.bytes <= 8192);
	p = tr_arena_alloc(&a, 8192);
	assert_null(p);
	assert_null(tr_arena_calloc(&a, SIZE_MAX, 2));
	tr_arena_reset(&a);
	assert_true(a.bytes >= 1024);
	assert_true(a.bytes < 8192);
	assert_string_equal(tr_arena_strdup(&a, S("hello")), "hello");
	assert_true(tr_slice_eq(tr_arena_dup(&a, S("xyz")), S("xyz")));
	assert_non_null(tr_arena_dup(&a, S("")).p);
	/* steady state: the same batch again and again allocates nothing */
	for (int round = 0; round < 3; round++) {
		tr_arena_reset(&a);
		if (round == 2)
			tr_alloc_fail_nth(1);
		for (int i = 0; i < 30; i++)
			assert_non_null(tr_arena_alloc(&a, 24));
	}
	assert_int_equal(tr_alloc_fail_nth(0), 1);
	tr_arena_done(&a);
	tr_arena_done(NULL);
	tr_arena_init(&a, 64, 0);
	assert_non_null(tr_arena_alloc(&a, 1 << 20)); /* unbounded; larger than a chunk */
	tr_arena_done(&a);
}

static void
test_hash(void **state)
{
	uint8_t data[300];
	struct tr_hasher h;
	struct tr_hash128 whole, parts;
	char hex[33];

	(void)state;
	/* xxhsum's values for the empty input */
	assert_int_equal(tr_hash64("", 0), UINT64_C(0x2d06800538d394c2));
	assert_int_equal(tr_hash64(NULL, 0), UINT64_C(0x2d06800538d394c2));
	tr_hash128_hex(tr_hash128("", 0), hex);
	assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)i;
	whole = tr_hash128(data, sizeof data);
	tr_hasher_init(&h);
	tr_hasher_add(&h, data, 100);
	tr_hasher_add(&h, NULL, 0);
	tr_hasher_add(&h, data + 100, 200);
	parts = tr_hasher_end128(&h);
	assert_int_equal(whole.lo, parts.lo);
	assert_int_equal(whole.hi, parts.hi);
	assert_true(tr_hash64_seed(1, "a", 1) != tr_hash64("a", 1));
}

static void
test_crc32c(void **state)
{
	uint8_t data[1000];
	struct tr_prng r;

	(void)state;
	assert_int_equal(tr_crc32c(0, "123456789", 9), 0xE3069283);
	assert_int_equal(tr_crc32c_portable(0, "123456789", 9), 0xE3069283);
	assert_int_equal(tr_crc32c(0, "", 0), 0);
	/* RFC 3720, B.4 */
	memset(data, 0, 32);
	assert_int_equal(tr_crc32c(0, data, 32), 0x8A9136AA);
	memset(data, 0xff, 32);
	assert_int_equal(tr_crc32c(0, data, 32), 0x62A8AB43);
	for (int i = 0; i < 32; i++)
		data[i] = (uint8_t)i;
	assert_int_equal(tr_crc32c(0, data, 32), 0x46DD794E);
	tr_prng_init(&r, 1);
	tr_prng_fill(&r, data, sizeof data);
	for (size_t n = 0; n < sizeof data; n += 7) {
		uint32_t whole = tr_crc32c(0, data, n);

		assert_int_equal(whole, tr_crc32c_portable(0, data, n));
		assert_int_equal(whole, tr_crc32c(tr_crc32c(0, data, n / 3), data + n / 3, n - n / 3));
	}
}

struct item {
	int id;
	struct tr_list link;
	struct tr_pqueue_node node;
};

static void
test_list(void **state)
{
	struct item v[4] = { { .id = 0 }, { .id = 1 }, { .id = 2 }, { .id = 3 } };
	struct tr_list l, other;
	int seen = 0;

	(void)state;
	tr_list_init(&l);
	tr_list_init(&other);
	assert_null(tr_list_pop_front(&l));
	tr_list_push_back(&l, &v[1].link);
	tr_list_push_back(&l, &v[2].link);
	tr_list_push_front(&l, &v[0].link);
	tr_list_push_back(&other, &v[3].link);
	tr_list_splice_back(&l, &other);
	tr_list_splice_back(&l, &other);
	assert_true(tr_list_empty(&other));
	assert_int_equal(tr_list_count(&l), 4);
	TR_LIST_EACH(it, &l) {
		assert_int_equal(tr_container_of(it, struct item, link)->id, seen++);
		if (seen == 2)
			tr_list_del(it);
	}
	assert_int_equal(seen, 4);
	tr_list_del(&v[1].link); /* twice is harmless */
	assert_int_equal(tr_list_count(&l), 3);
	assert_ptr_equal(tr_list_last(&l), &v[3].link);
	assert_ptr_equal(tr_list_pop_front(&l), &v[0].link);
}

static void
test_pqueue(void **state)
{
	enum { N = 500 };
	static struct item v[N];
	struct tr_pqueue q;
	struct tr_prng r;
	int64_t last = INT64_MIN;
	size_t left = N;

	(void)state;
	tr_prng_init(&r, 7);
	tr_pqueue_init(&q);
	assert_int_equal(tr_pqueue_next_key(&q), INT64_MAX);
	assert_int_equal(tr_pqueue_reserve(&q, N), TR_OK);
	tr_alloc_fail_nth(1);
	for (int i = 0; i < N; i++)
		assert_int_equal(tr_pqueue_push(&q, &v[i].node, tr_prng_range(&r, -50, 50)), TR_OK);
	assert_int_equal(tr_alloc_fail_nth(0), 1); /* within the reserve nothing is allocated */
	for (int i = 0; i < N; i += 5)
		tr_pqueue_update(&q, &v[i].node, tr_prng_range(&r, -90, 90));
	for (int i = 0; i < N; i += 7, left--)
		tr_pqueue_remove(&q, &v[i].node);
	tr_pqueue_remove(&q, &v[0].node);
	assert_false(tr_pqueue_contains(&v[0].node));
	assert_int_equal(q.n, left);
	while (left--) {
		struct tr_pqueue_node *n = tr_pqueue_pop(&q);

		assert_true(n->key >= last);
		last = n->key;
	}
	assert_null(tr_pqueue_pop(&q));
	/* equal keys: first in, first out */
	for (int i = 0; i < 20; i++)
		tr_pqueue_push(&q, &v[i].node, 5);
	for (int i = 0; i < 20; i++)
		assert_ptr_equal(tr_pqueue_pop(&q), &v[i].node);
	tr_pqueue_done(&q);
}

static void
test_map(void **state)
{
	enum { N = 2000 };
	struct tr_map m = { 0 };
	char key[32];
	struct tr_slice k;
	void *val = NULL, *old = NULL;
	size_t it = 0, seen = 0;

	(void)state;
	assert_false(tr_map_find(&m, S("x"), NULL));
	assert_false(tr_map_del(&m, S("x"), NULL));
	for (uintptr_t i = 0; i < N; i++) {
		snprintf(key, sizeof key, "table_%zu", (size_t)i);
		assert_int_equal(tr_map_put(&m, S(key), (void *)(i + 1), NULL), 0);
	}
	assert_int_equal(tr_map_put(&m, S("table_5"), (void *)99, &old), 1);
	assert_int_equal((uintptr_t)old, 6);
	for (uintptr_t i = 0; i < N; i += 2) {
		snprintf(key, sizeof key, "table_%zu", (size_t)i);
		assert_true(tr_map_del(&m, S(key), &old));
		assert_int_equal((uintptr_t)old, i + 1);
	}
	for (uintptr_t i = 0; i < N; i++) {
		snprintf(key, sizeof key, "table_%zu", (size_t)i);
		assert_int_equal(tr_map_find(&m, S(key), &val), i % 2);
		assert_int_equal((uintptr_t)tr_map_get(&m, S(key)), i % 2 == 0 ? 0 : i == 5 ? 99 : i + 1);
	}
	while (tr_map_next(&m, &it, &k, &val)) {
		assert_true(tr_slice_has_prefix(k, S("table_")));
		seen++;
	}
	assert_int_equal(seen, N / 2);
	/* binary and empty keys; failure leaves all as it was */
	assert_int_equal(tr_map_put(&m, tr_slice_of("a\0b", 3), NULL, NULL), 0);
	assert_true(tr_map_find(&m, tr_slice_of("a\0b", 3), &val));
	assert_false(tr_map_find(&m, S("a"), &val));
	assert_int_equal(tr_map_put(&m, S(""), NULL, NULL), 0);
	tr_alloc_fail_nth(1);
	assert_int_equal(tr_map_put(&m, S("new"), NULL, NULL), TR_NOMEM);
	assert_false(tr_map_find(&m, S("new"), NULL));
	tr_map_clear(&m);
	assert_false(tr_map_find(&m, S(""), NULL));
	tr_map_done(&m);
}

static void
test_u64map(void **state)
{
	struct tr_u64map m = { 0 };
	uint64_t model[64], v;
	bool has[64] = { false };
	struct tr_prng r;
	size_t it = 0, seen = 0, live = 0;

	(void)state;
	tr_prng_init(&r, 3);
	for (int i = 0; i < 20000; i++) {
		uint64_t k = tr_prng_below(&r, 64), x = tr_prng_u64(&r);
		/* a few keys, 0 and the largest among them */
		uint64_t key = k == 63 ? UINT64_MAX : k << 32;

		if (tr_prng_chance(&r, 1, 2)) {
			assert_int_equal(tr_u64map_put(&m, key, x), has[k]);
			has[k] = true;
			model[k] = x;
		} else {
			assert_int_equal(tr_u64map_del(&m, key, &v), has[k]);
			if (has[k])
				assert_int_equal(v, model[k]);
			has[k] = false;
		}
		k = tr_prng_below(&r, 63);
		assert_int_equal(tr_u64map_find(&m, k << 32, &v), has[k]);
		if (has[k])
			assert_int_equal(v, model[k]);
	}
	for (int i = 0; i < 64; i++)
		live += has[i];
	while (tr_u64map_next(&m, &it, NULL, NULL))
		seen++;
	assert_int_equal(seen, live);
	assert_int_equal(m.n, live);
	tr_u64map_put_ptr(&m, 5, &m);
	assert_ptr_equal(tr_u64map_get_ptr(&m, 5), &m);
	assert_null(tr_u64map_get_ptr(&m, 6));
	tr_u64map_done(&m);
	assert_int_equal(tr_u64map_reserve(&m, 100), TR_OK);
	tr_alloc_fail_nth(1);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(tr_u64map_put(&m, i, i), 0);
	assert_int_equal(tr_alloc_fail_nth(0), 1);
	tr_u64map_done(&m);
}

static void
test_ring(void **state)
{
	struct tr_ring r;
	int v[5];

	(void)state;
	assert_int_equal(tr_ring_init(&r, 3), TR_OK);
	assert_null(tr_ring_pop(&r));
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 3; i++)
			assert_int_equal(tr_ring_push(&r, &v[i]), TR_OK);
		assert_int_equal(tr_ring_push(&r, &v[3]), TR_AGAIN);
		assert_ptr_equal(tr_ring_pop(&r), &v[0]);
		assert_int_equal(tr_ring_push(&r, &v[4]), TR_OK);
		assert_ptr_equal(tr_ring_at(&r, 2), &v[4]);
		assert_ptr_equal(tr_ring_pop(&r), &v[1]);
		assert_ptr_equal(tr_ring_pop(&r), &v[2]);
		assert_ptr_equal(tr_ring_pop(&r), &v[4]);
	}
	tr_ring_done(&r);
}

static void
check_duration(const char *text, int rc, int64_t ns)
{
	struct tr_err err = { 0 };
	int64_t got = -1;

	assert_int_equal(tr_parse_duration(S(text), &got, &err), rc);
	if (rc == TR_OK)
		assert_int_equal(got, ns);
	else
		assert_non_null(strstr(err.msg, "duration"));
}

static void
check_size(const char *text, int rc, uint64_t bytes)
{
	uint64_t got = 1;

	assert_int_equal(tr_parse_size(S(text), &got, NULL), rc);
	if (rc == TR_OK)
		assert_int_equal(got, bytes);
}

static void
test_durations_and_sizes(void **state)
{
	char out[32];

	(void)state;
	check_duration("0", TR_OK, 0);
	check_duration("250ms", TR_OK, 250000000);
	check_duration("5s", TR_OK, 5000000000);
	check_duration("2m", TR_OK, 120000000000);
	check_duration("24h", TR_OK, 86400000000000);
	check_duration("7d", TR_OK, 604800000000000);
	check_duration("1h30m", TR_OK, 5400000000000);
	check_duration("1us", TR_OK, 1000);
	check_duration("106751d", TR_OK, INT64_C(106751) * 86400000000000);
	check_duration("106752d", TR_REJECT, 0);
	check_duration("99999999999999999999s", TR_REJECT, 0);
	check_duration("", TR_REJECT, 0);
	check_duration("5", TR_REJECT, 0);
	check_duration("5 s", TR_REJECT, 0);
	check_duration("-5s", TR_REJECT, 0);
	check_duration("s", TR_REJECT, 0);
	check_duration("1.5s", TR_REJECT, 0);
	assert_string_equal(tr_format_duration(604800000000000, out), "7d");
	assert_string_equal(tr_format_duration(5400000000000, out), "90m");
	assert_string_equal(tr_format_duration(250000000, out), "250ms");
	assert_string_equal(tr_format_duration(0, out), "0");
	assert_string_equal(tr_format_duration(INT64_MAX, out), "9223372036854775807ns");
	assert_string_equal(tr_format_duration(INT64_MIN, out), "-9223372036854775808ns");

	check_size("64MiB", TR_OK, 64 << 20);
	check_size("1GiB", TR_OK, 1 << 30);
	check_size("512k", TR_OK, 512 << 10);
	check_size("4096", TR_OK, 4096);
	check_size("1kB", TR_OK, 1000);
	check_size("1GB", TR_OK, 1000000000);
	check_size("0", TR_OK, 0);
	check_size("18446744073709551615", TR_OK, UINT64_MAX);
	check_size("18446744073709551616", TR_REJECT, 0);
	check_size("16777216TiB", TR_REJECT, 0);
	check_size("MiB", TR_REJECT, 0);
	check_size("", TR_REJECT, 0);
	check_size("1 MiB", TR_REJECT, 0);
	assert_string_equal(tr_format_size(64 << 20, out), "64MiB");
	assert_string_equal(tr_format_size(1025, out), "1025");
	assert_string_equal(tr_format_size(0, out), "0");
}

static void
test_parse_small(void **state)
{
	bool b = false;
	uint64_t u = 0;
	int64_t i = 0;
	char out[TR_LSN_CHARS], utc[TR_UTC_CHARS];
	struct tr_err err;

	(void)state;
	assert_int_equal(tr_parse_bool(S("Yes"), &b, NULL), TR_OK);
	assert_true(b);
	assert_int_equal(tr_parse_bool(S("off"), &b, NULL), TR_OK);
	assert_false(b);
	assert_int_equal(tr_parse_bool(S("1"), &b, NULL), TR_REJECT);
	assert_int_equal(tr_parse_bool(S(""), &b, NULL), TR_REJECT);
	assert_int_equal(tr_parse_lsn(S("16/B374D848"), &u, NULL), TR_OK);
	assert_int_equal(u, UINT64_C(0x16B374D848));
	assert_int_equal(tr_parse_lsn(S("FFFFFFFF/ffffffff"), &u, NULL), TR_OK);
	assert_int_equal(u, UINT64_MAX);
	assert_string_equal(tr_format_lsn(u, out), "FFFFFFFF/FFFFFFFF");
	assert_string_equal(tr_format_lsn(0, out), "0/0");
	assert_string_equal(tr_format_utc(0, utc), "1970-01-01 00:00:00.000000");
	assert_string_equal(tr_format_utc(-1, utc), "1969-12-31 23:59:59.999999");
	assert_string_equal(tr_format_utc(INT64_C(1790000000123456), utc), "2026-09-21 14:13:20.123456");
	for (size_t k = 0; k < 7; k++) {
		static const char *const bad[] = { "", "/", "1/", "/1", "123456789/0", "0/0x", "1" };

		assert_int_equal(tr_parse_lsn(S(bad[k]), &u, &err), TR_REJECT);
	}
	assert_int_equal(tr_parse_i64(S("-9223372036854775808"), &i, NULL), TR_OK);
	assert_int_equal(i, INT64_MIN);
	assert_int_equal(tr_parse_i64(S("9223372036854775808"), &i, NULL), TR_REJECT);
	assert_int_equal(tr_parse_i64(S("-"), &i, NULL), TR_REJECT);
	assert_int_equal(tr_parse_u64(S("12x"), &u, NULL), TR_REJECT);
	/* a message shows no foreign control characters */
	assert_int_equal(tr_parse_u64(S("\x1b[31m"), &u, &err), TR_REJECT);
	assert_string_equal(err.msg, "'?[31m' is not a whole number of 0 or more");
}

static void
test_quoting(void **state)
{
	struct tr_buf b = { 0 };

	(void)state;
	assert_int_equal(tr_quote_ident(&b, S("we\"ird")), TR_OK);
	assert_buf(&b, "\"we\"\"ird\"");
	assert_int_equal(tr_quote_ident(&b, S("")), TR_REJECT);
	assert_int_equal(tr_quote_ident(&b, tr_slice_of("a\0b", 3)), TR_REJECT);
	assert_int_equal(tr_quote_literal(&b, S("it's")), TR_OK);
	assert_buf(&b, "'it''s'");
	assert_int_equal(tr_quote_literal(&b, S("a\\'b")), TR_OK);
	assert_buf(&b, " E'a\\\\''b'");
	assert_int_equal(tr_quote_literal(&b, S("")), TR_OK);
	assert_buf(&b, "''");
	assert_int_equal(tr_json_string(&b, S("a\"\\\n\x01\xC3\xA9\xff z")), TR_OK);
	assert_buf(&b, "\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD z\"");
	assert_int_equal(tr_hex_encode(&b, S("\x01\xab\xff")), TR_OK);
	assert_buf(&b, "01abff");
	assert_int_equal(tr_hex_decode(&b, S("01ABff")), TR_OK);
	assert_buf(&b, "\x01\xab\xff");
	assert_int_equal(tr_hex_decode(&b, S("0")), TR_REJECT);
	assert_int_equal(tr_hex_decode(&b, S("00zz")), TR_REJECT);
	assert_int_equal(b.n, 0);
	tr_buf_done(&b);
}

static void
test_near_and_like(void **state)
{
	static const char *const names[] = { "queue_bytes_max", "linger", "publication" };
	char a65[66];

	(void)state;
	memset(a65, 'a', 65);
	a65[65] = 0;
	assert_int_equal(tr_edit_distance(S("kitten"), S("sitting")), 3);
	assert_int_equal(tr_edit_distance(S("ab"), S("ba")), 1);
	assert_int_equal(tr_edit_distance(S(""), S("abc")), 3);
	assert_int_equal(tr_edit_distance(S("ABC"), S("abc")), 0);
	assert_int_equal(tr_edit_distance(S(a65), S("a")), SIZE_MAX);
	a65[64] = 0;
	assert_int_equal(tr_edit_distance(S(a65), S("")), 64);
	assert_string_equal(tr_nearest(S("lingr"), names, 3), "linger");
	assert_string_equal(tr_nearest(S("queue_max_bytes"), names, 1) ? "near" : "far", "far");
	assert_string_equal(tr_nearest(S("publicaton"), names, 3), "publication");
	assert_null(tr_nearest(S("zzz"), names, 3));

	assert_true(tr_glob(S("*"), S("")));
	assert_true(tr_glob(S("a*c"), S("abbc")));
	assert_true(tr_glob(S("*a*b*"), S("xxaxxbxx")));
	assert_false(tr_glob(S("a*c"), S("abcd")));
	assert_true(tr_glob(S("a\\*"), S("a*")));
	assert_false(tr_glob(S("a\\*"), S("ab")));
	assert_false(tr_glob(S(""), S("a")));
	assert_true(tr_glob_table(S("public.*"), S("public"), S("orders")));
	assert_false(tr_glob_table(S("public.*"), S("private"), S("orders")));
	assert_true(tr_glob_table(S("*.ord*"), S("x"), S("orders")));
	assert_true(tr_glob_table(S("orders"), S("any"), S("orders")));
	assert_true(tr_glob_table(S("a\\.b.c"), S("a.b"), S("c")));
	assert_false(tr_glob_table(S("a.b.c"), S("a.b"), S("c")));
}

static void
test_utf8(void **state)
{
	static const char *const bad[] = { "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
		                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xC3", "\xE2\x82",
		                           "\xF0\x9F\x8C", "\xE2\x28\xA1", "abcdefgh\xff" };

	(void)state;
	assert_true(tr_utf8_valid(S("")));
	assert_true(tr_utf8_valid(S("plain ascii of more than eight bytes")));
	assert_true(tr_utf8_valid(S("\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF")));
	for (size_t i = 0; i < TR_ARRAY_LEN(bad); i++)
		assert_false(tr_utf8_valid(S(bad[i])));
}

static void
test_metrics(void **state)
{
	static const uint64_t bounds[] = { 10, 100 };
	struct tr_metrics *reg = NULL;
	struct tr_family *f = NULL, *same = NULL, *g = NULL, *h = NULL;
	struct tr_cell *a = NULL, *b = NULL, *c = NULL;
	struct tr_histogram *hist = NULL;
	struct tr_label labels[] = { { "sink", "a\"b\\c\nd" }, { "table", "t" } };
	struct tr_buf out = { 0 };
	struct tr_err err;

	(void)state;
	assert_int_equal(tr_metrics_new(&reg, NULL), TR_OK);
	assert_int_equal(tr_metrics_family(reg, &(struct tr_metric_def){ .name = "tr_rows_total", .help = "Rows\nwritten",
	                                                                 .type = TR_COUNTER, .cells_max = 2 },
	                                   &f, &err),
	                 TR_OK);
	assert_int_equal(tr_metrics_family(reg, &(struct tr_metric_def){ .name = "tr_rows_total", .type = TR_COUNTER },
	                                   &same, &err),
	                 TR_OK);
	assert_ptr_equal(f, same);
	assert_int_equal(tr_metrics_family(reg, &(struct tr_metric_def){ .name = "tr_rows_total", .type = TR_GAUGE }, &same, &err),
	                 TR_REJECT);
	assert_int_equal(tr_metrics_family(reg, &(struct tr_metric_def){ .name = "9x", .type = TR_GAUGE }, &same, &err), TR_REJECT);
	assert_int_equal(tr_family_cell(f, labels, 2, &a, &err), TR_OK);
	assert_int_equal((uintptr_t)a % 64, 0);
	assert_int_equal(tr_family_cell(f, labels, 2, &b, &err), TR_OK);
	assert_ptr_equal(a, b);
	tr_counter_inc(a);
	tr_counter_add(a, 41);
	tr_counter_add(NULL, 41);
	assert_int_equal(tr_family_cell(f, NULL, 0, &b, &err), TR_OK);
	/* the bound: two more label sets share one cell */
	labels[0].value = "x";
	assert_int_equal(tr_family_cell(f, labels, 2, &b, &err), TR_OK);
	labels[0].value = "y";
	assert_int_equal(tr_family_cell(f, labels, 2, &c, &err), TR_OK);
	assert_ptr_equal(b, c);
	labels[0].name = "no-name";
	assert_int_equal(tr_family_cell(f, labels, 2, &c, &err), TR_REJECT);
	tr_metrics_family(reg, &(struct tr_metric_def){ .name = "tr_lag_seconds", .type = TR_GAUGE, .unit = "seconds", .scale = 1e-9 },
	                  &g, &err);
	tr_family_cell(g, NULL, 0, &c, &err);
	tr_gauge_set(c, 2000000000);
	tr_gauge_add(c, -3500000000);
	tr_metrics_family(reg, &(struct tr_metric_def){ .name = "tr_wait", .type = TR_HISTOGRAM, .bounds = bounds, .n_bounds = 2 },
	                  &h, &err);
	tr_family_histogram(h, &(struct tr_label){ "k", "v" }, 1, &hist, &err);
	tr_histogram_observe(hist, 10);
	tr_histogram_observe(hist, 11);
	tr_histogram_observe(hist, 101);
	tr_histogram_observe(NULL, 1);
	assert_int_equal(tr_metrics_render_prometheus(reg, &out), TR_OK);
	assert_buf(&out, "# HELP tr_rows_total Rows\\nwritten\n# TYPE tr_rows_total counter\n"
	                 "tr_rows_total{sink=\"a\\\"b\\\\c\\nd\",table=\"t\"} 42\n"
	                 "tr_rows_total 0\n"
	                 "tr_rows_total{overflow=\"true\"} 0\n"
	                 "# HELP tr_lag_seconds \n# TYPE tr_lag_seconds gauge\n# UNIT tr_lag_seconds seconds\n"
	                 "tr_lag_seconds -1.5\n"
	                 "# HELP tr_wait \n# TYPE tr_wait histogram\n"
	                 "tr_wait_bucket{k=\"v\",le=\"10\"} 1\n"
	                 "tr_wait_bucket{k=\"v\",le=\"100\"} 2\n"
	                 "tr_wait_bucket{k=\"v\",le=\"+Inf\"} 3\n"
	                 "tr_wait_sum{k=\"v\"} 122\n"
	                 "tr_wait_count{k=\"v\"} 3\n");
	tr_buf_done(&out);
	reg = tr_metrics_free(reg);
	assert_null(reg);
	tr_metrics_free(NULL);
}

/* Creation with the nth allocation failing: an error or a working cell, never a leak (ASan looks). */
static void
test_metrics_nomem(void **state)
{
	(void)state;
	for (uint64_t nth = 1; nth < 20; nth++) {
		struct tr_metrics *reg = NULL;
		struct tr_family *f = NULL;
		struct tr_cell *c = NULL;
		struct tr_err err;
		int rc;

		tr_alloc_fail_nth(nth);
		rc = tr_metrics_new(&reg, &err);
		if (rc == TR_OK)
			rc = tr_metrics_family(reg, &(struct tr_metric_def){ .name = "m", .type = TR_COUNTER }, &f, &err);
		if (rc == TR_OK)
			rc = tr_family_cell(f, &(struct tr_label){ "a", "b" }, 1, &c, &err);
		if (tr_alloc_fail_nth(0) == 0) {
			assert_int_equal(rc, TR_NOMEM);
		} else {
			assert_int_equal(rc, TR_OK);
			tr_counter_inc(c);
		}
		tr_metrics_free(reg);
	}
}

static void
test_prng(void **state)
{
	uint64_t s = 1234567;
	struct tr_prng a, b;
	uint64_t count[10] = { 0 };

	(void)state;
	/* reference values of splitmix64 for seed 1234567 */
	assert_int_equal(tr_splitmix64(&s), UINT64_C(6457827717110365317));
	assert_int_equal(tr_splitmix64(&s), UINT64_C(3203168211198807973));
	/* xoshiro256**, state 1 2 3 4: from the reference implementation */
	a = (struct tr_prng){ { 1, 2, 3, 4 } };
	assert_int_equal(tr_prng_u64(&a), 11520);
	assert_int_equal(tr_prng_u64(&a), 0);
	assert_int_equal(tr_prng_u64(&a), 1509978240);
	assert_int_equal(tr_prng_u64(&a), UINT64_C(1215971899390074240));
	tr_prng_init(&a, 42);
	tr_prng_init(&b, 42);
	for (int i = 0; i < 10000; i++) {
		uint64_t v = tr_prng_below(&a, 10);

		assert_int_equal(v, tr_prng_below(&b, 10));
		count[v]++;
	}
	for (int i = 0; i < 10; i++)
		assert_in_range(count[i], 800, 1200);
	assert_int_equal(tr_prng_range(&a, 5, 5), 5);
	tr_prng_range(&a, INT64_MIN, INT64_MAX);
	assert_true(tr_prng_chance(&a, 1, 1));
	assert_false(tr_prng_chance(&a, 0, 1));
	for (int i = 0; i < 100; i++)
		assert_true(tr_prng_unit(&a) < 1.0);
}

static uint64_t slept_ms;

static void
note_sleep(uint64_t ms)
{
	slept_ms += ms;
}

static void
test_failpoint(void **state)
{
	struct tr_err err;

	(void)state;
	assert_false(TR_FAILPOINT("a"));
	assert_int_equal(tr_failpoint_arm("a=error:2,b=sleep:50,c=error:2+,d=sleep:7:1", &err), TR_OK);
	tr_failpoint_set_hooks(NULL, note_sleep);
	assert_false(TR_FAILPOINT("a"));
	assert_true(TR_FAILPOINT("a"));
	assert_false(TR_FAILPOINT("a"));
	assert_int_equal(tr_failpoint_hits("a"), 3);
	assert_false(TR_FAILPOINT("b"));
	assert_false(TR_FAILPOINT("b"));
	assert_int_equal(slept_ms, 100);
	assert_false(TR_FAILPOINT("c"));
	assert_true(TR_FAILPOINT("c"));
	assert_true(TR_FAILPOINT("c"));
	assert_false(TR_FAILPOINT("d"));
	assert_false(TR_FAILPOINT("d"));
	assert_int_equal(slept_ms, 107);
	assert_false(TR_FAILPOINT("unarmed"));
	for (size_t i = 0; i < 9; i++) {
		static const char *const bad[] = { "x",       "=kill",     "x=",      "x=explode", "x=error:0",
			                           "x=error:", "x=sleep", "x=error:1x", "ok=error,,x=kill" };

		assert_int_equal(tr_failpoint_arm(bad[i], &err), TR_REJECT);
	}
	assert_false(TR_FAILPOINT("ok")); /* nothing of a bad text is armed */
	tr_failpoint_clear();
	assert_false(TR_FAILPOINT("c"));
	tr_failpoint_set_hooks(NULL, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_err),
		cmocka_unit_test(test_slice),
		cmocka_unit_test(test_buf_and_cursor),
		cmocka_unit_test(test_cursor_bad),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_hash),
		cmocka_unit_test(test_crc32c),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_pqueue),
		cmocka_unit_test(test_map),
		cmocka_unit_test(test_u64map),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_durations_and_sizes),
		cmocka_unit_test(test_parse_small),
		cmocka_unit_test(test_quoting),
		cmocka_unit_test(test_near_and_like),
		cmocka_unit_test(test_utf8),
		cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_metrics_nomem),
		cmocka_unit_test(test_prng),
		cmocka_unit_test(test_failpoint),
	};

	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
