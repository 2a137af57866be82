/* Chains by themselves: each stage, policies and counters, exact resumption, ownership. The outputs are this file's own tr_out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/chain.h>

#include "alloc.h"
#include "alloc_count.h"

/* ---- outputs, scripted ---- */

enum { ROWS_MAX = 64 };

struct tr_target {
    int unused;
};

struct tr_out {
    int room_in; /* says AGAIN until it was asked so often */
    uint32_t rooms, binds, ends, rows, undone;
    int bind_rc, put_rc;
    struct tr_target target;
    struct tr_buf buf;
    size_t from;
    bool open;
    struct {
        int64_t pos;
        char key[8], text[48];
    } row[ROWS_MAX];
};

int tr_out_room(struct tr_out *o)
{
    o->rooms++;
    if (o->room_in > 0) {
        o->room_in--;
        return TR_AGAIN;
    }
    return TR_OK;
}

int tr_out_bind(struct tr_out *o, const struct tr_schema *s, enum tr_target_variant variant, uint64_t snapshot_id, struct tr_target **ret, struct tr_err *err)
{
    assert_non_null(s);
    assert_true(variant == TR_TARGET_MIRROR && snapshot_id == 0);
    o->binds++;
    if (o->bind_rc < 0)
        return tr_err_set(err, o->bind_rc, TR_DOM_SINK, "bind");
    *ret = &o->target;
    return TR_OK;
}

/* A key of one short column (codec/key.h) as its text. */
static struct tr_slice of_column(struct tr_slice key)
{
    return key.n && key.p[0] == key.n - 1 ? tr_slice_sub(key, 1, key.n) : key;
}

static void took(struct tr_out *o, int64_t pos, struct tr_slice key, const char *text)
{
    if (o->rows < ROWS_MAX) {
        o->row[o->rows].pos = pos;
        snprintf(o->row[o->rows].key, sizeof o->row[0].key, "%" TR_SLICE_FMT, TR_SLICE_ARG(of_column(key)));
        snprintf(o->row[o->rows].text, sizeof o->row[0].text, "%s", text);
    }
    o->rows++;
}

int tr_out_put(struct tr_out *o, struct tr_target *t, const struct tr_change *v, uint32_t n, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    char text[64] = "";
    size_t at = 0;
    (void)ack;
    assert_ptr_equal(t, &o->target);
    assert_int_equal(n, 1);
    assert_int_equal(v->op, TR_OP_INSERT);
    if (o->put_rc < 0)
        return tr_err_set(err, o->put_rc, TR_DOM_SINK, "column note does not fit");
    for (uint32_t i = 0; i < v->after.n; i++)
        if (v->after.state[i] == TR_PRESENT)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%" TR_SLICE_FMT, i ? "," : "", TR_SLICE_ARG(v->after.v[i]));
        else
            at += (size_t)snprintf(text + at, sizeof text - at, "%s-", i ? "," : "");
    took(o, pos, v->key, text);
    return TR_OK;
}

static char open_key[8];

int tr_out_open(struct tr_out *o, struct tr_target *t, struct tr_slice key, struct tr_buf **ret, struct tr_err *err)
{
    (void)err;
    assert_ptr_equal(t, &o->target);
    assert_false(o->open);
    snprintf(open_key, sizeof open_key, "%" TR_SLICE_FMT, TR_SLICE_ARG(key));
    o->open = true;
    o->from = o->buf.n;
    *ret = &o->buf;
    return TR_OK;
}

int tr_out_close(struct tr_out *o, bool keep, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    char text[48];
    (void)ack;
    (void)err;
    assert_true(o->open);
    o->open = false;
    if (keep) {
        snprintf(text, sizeof text, "%.*s", (int)(o->buf.n - o->from), (const char *)o->buf.p + o->from);
        took(o, pos, tr_slice_str(open_key), text);
    } else {
        o->undone++;
        o->buf.n = o->from;
    }
    return TR_OK;
}

int tr_out_tx_end(struct tr_out *o, struct tr_err *err)
{
    (void)err;
    o->ends++;
    return TR_OK;
}

/* ---- records ---- */

struct rec {
    struct tr_slice text; /* borrows from the payload */
    int64_t n;
};

struct user {
    uint32_t decoded, filtered, mapped, tried, split, seen, made, freed;
    int64_t sum;
    int not_ready;          /* times decode says so, */
    uint32_t not_ready_from; /* once so many payloads are decoded */
    bool not_ready_late, swallow;
    int reject_code;
    struct tr_slice last;
};

TR_EMITTER(ones, struct rec);
TR_EMITTER(parts, struct rec);
TR_EMITTER(keyed, struct rec);
TR_EMITTER(owners, struct rec);
TR_EMITTER(counts, struct rec);
TR_EMITTER(counted, struct rec);
TR_EMITTER(routed, struct rec);
TR_EMITTER(strict, struct rec);
TR_EMITTER(hashed, struct rec);

/* The payload's text is a number, "x…" is bad. */
static inline int parse(struct user *u, const struct tr_payload *p, struct rec *ret, struct tr_err *err)
{
    char digits[24];
    u->decoded++;
    if (p->value.n && p->value.p[0] == 'x')
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "no number");
    snprintf(digits, sizeof digits, "%" TR_SLICE_FMT, TR_SLICE_ARG(p->value));
    *ret = (struct rec){p->value, atoll(digits)};
    return TR_OK;
}

static inline int decode_ones(struct user *u, const struct tr_payload *p, struct ones_emitter *out, struct tr_err *err)
{
    struct rec r = {0};
    if (u->not_ready > 0 && u->decoded >= u->not_ready_from) {
        u->not_ready--;
        return TR_NOT_READY;
    }
    int rc = parse(u, p, &r, err);
    if (rc >= 0)
        rc = ones_emit(out, &r);
    return u->not_ready_late ? TR_NOT_READY : rc;
}

#define DECODE_AS(e)                                                                                                               \
    static inline int decode_##e(struct user *u, const struct tr_payload *p, struct e##_emitter *out, struct tr_err *err)           \
    {                                                                                                                              \
        struct rec r = {0};                                                                                                              \
        int rc = parse(u, p, &r, err);                                                                                             \
        return rc < 0 ? rc : e##_emit(out, &r);                                                                                    \
    }
DECODE_AS(keyed)
DECODE_AS(owners)
DECODE_AS(counts)
DECODE_AS(routed)
DECODE_AS(strict)
DECODE_AS(hashed)

static inline bool not_negative(struct user *u, const struct rec *r)
{
    u->filtered++;
    return r->n >= 0;
}

static inline void twice(struct user *u, const struct rec *r, struct rec *ret)
{
    u->mapped++;
    *ret = (struct rec){r->text, 2 * r->n};
}

static inline int below_100(struct user *u, const struct rec *r, struct rec *ret, struct tr_err *err)
{
    u->tried++;
    if (r->n >= 100)
        return u->reject_code ? u->reject_code : tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "%lld is too much", (long long)r->n);
    *ret = *r;
    return TR_OK;
}

/* n, n + 1, … n + n % 4 - 1 */
static inline int split(struct user *u, const struct rec *r, struct parts_emitter *out, struct tr_err *err)
{
    int rc = TR_OK;
    (void)err;
    u->split++;
    for (int64_t i = 0; i < r->n % 4 && (rc >= 0 || u->swallow); i++)
        rc = parts_emit(out, &(struct rec){r->text, r->n + i});
    if (r->n == 42)
        return TR_REJECT;
    return u->swallow ? TR_OK : rc;
}

static inline int split_counted(struct user *u, const struct rec *r, struct counted_emitter *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    for (int i = 0; i < 3; i++)
        if (counted_emit(out, &(struct rec){r->text, r->n + i}) < 0)
            return TR_FATAL;
    return TR_OK;
}

static inline void see(struct user *u, const struct rec *r)
{
    u->seen++;
    u->sum += r->n;
    u->last = r->text;
}

static inline struct tr_slice first_digit(struct user *u, const struct rec *r)
{
    (void)u;
    return tr_slice_sub(r->text, 0, 1);
}

static inline int row(struct user *u, const struct rec *r, struct tr_chain_row *ret, struct tr_err *err)
{
    (void)u;
    (void)err;
    tr_chain_row_i64(ret, 0, r->n);
    if (r->n % 2 == 0)
        tr_chain_row_text(ret, 1, r->text);
    if (r->n == 31)
        tr_chain_row_bool(ret, 2, true);
    return TR_OK;
}

static inline int bytes(struct user *u, const struct rec *r, struct tr_buf *out, struct tr_err *err)
{
    (void)u;
    if (tr_buf_printf(out, "<%lld>", (long long)r->n) < 0)
        return TR_NOMEM;
    return r->n == 13 ? tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "unlucky") : TR_OK;
}

static inline uint32_t by_value(struct user *u, const struct rec *r)
{
    (void)u;
    return (uint32_t)(r->n % 4); /* 3 is no output */
}

struct owned {
    char *text;
    int64_t n;
};

static inline int make_owned(struct user *u, const struct rec *r, struct owned *ret, struct tr_err *err)
{
    if (r->n == 50)
        return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "not this");
    *ret = (struct owned){malloc(8), r->n};
    memcpy(ret->text, "owned", 6);
    u->made++;
    return TR_OK;
}

static inline void free_owned(struct user *u, struct owned *o)
{
    assert_string_equal(o->text, "owned");
    free(o->text);
    u->freed++;
}

static inline bool owned_is_even(struct user *u, const struct owned *o)
{
    (void)u;
    return o->n % 2 == 0;
}

static inline int owned_bytes(struct user *u, const struct owned *o, struct tr_buf *out, struct tr_err *err)
{
    (void)u;
    if (o->n == 60)
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "not 60");
    return tr_buf_append_str(out, o->text);
}

TR_CHAIN(all, struct user, TR_DECODE(decode_ones, ones), TR_FILTER(not_negative), TR_SKIP(TR_TRY_MAP(below_100, struct rec)), TR_FLAT_MAP(split, parts), TR_INSPECT(see), TR_TO(TR_ROWS(row)));
TR_CHAIN(strictly, struct user, TR_FAIL(TR_DECODE(decode_strict, strict)), TR_TRY_MAP(below_100, struct rec), TR_INSPECT(see), TR_DISCARD());
TR_CHAIN(pair, struct user, TR_DECODE(decode_keyed, keyed), TR_MAP(twice, struct rec), TR_KEY(first_digit), TR_SKIP(TR_TO(TR_ROWS(row), TR_ENCODED(bytes))));
TR_CHAIN(owning, struct user, TR_DECODE(decode_owners, owners), TR_SKIP(TR_TRY_MAP(make_owned, struct owned)), TR_OWN(free_owned), TR_FILTER(owned_is_even), TR_TO(TR_ENCODED(owned_bytes)));
TR_CHAIN(counting, struct user, TR_DECODE(decode_counts, counts), TR_FILTER(not_negative), TR_MAP(twice, struct rec), TR_FLAT_MAP(split_counted, counted), TR_INSPECT(see), TR_DISCARD());
TR_CHAIN(routing, struct user, TR_DECODE(decode_routed, routed), TR_SKIP(TR_ROUTE(by_value, TR_ENCODED(bytes), TR_ENCODED(bytes), TR_ROWS(row))));
TR_CHAIN(hashing, struct user, TR_DECODE(decode_hashed, hashed), TR_ROUTE_BY_KEY(TR_ENCODED(bytes), TR_ENCODED(bytes), TR_ENCODED(bytes)));
TR_CHAIN(dynamic, struct user, TR_DESERIALIZE(struct rec), TR_FILTER(not_negative), TR_INSPECT(see), TR_DISCARD());

/* ---- the bench ---- */

typedef int open_fn(const struct tr_chain_def *, struct user *, const struct tr_chain_ops **, void **, struct tr_err *);

struct skip {
    uint32_t n, stage;
    int64_t pos;
    char msg[64];
};

struct rig {
    struct user u;
    struct tr_out out[3];
    struct tr_out *outs[3];
    struct tr_schema *schema, *schemas[3];
    const struct tr_chain_ops *ops;
    void *chain;
    struct tr_payload v[ROWS_MAX];
    struct tr_payloads in;
    struct tr_push ret;
    struct tr_err err;
    struct skip skip;
    struct tr_chain_counters counters;
    struct tr_chain_def def;
};

static void note_skip(void *arg, uint32_t stage, const struct tr_payload *p, const struct tr_err *err)
{
    struct skip *s = arg;
    s->n++;
    s->stage = stage;
    s->pos = p->position;
    snprintf(s->msg, sizeof s->msg, "%.63s", err->rc < 0 ? err->msg : "");
}

static void rig_init(struct rig *r, open_fn *open, uint32_t n_outs)
{
    struct tr_column cols[2] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1},
                                {.name = "note", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = cols, .n_columns = 2};
    struct tr_deserializer *deserializer = r->def.deserializer;
    bool transactions = r->def.source_transactions;
    memset(r, 0, sizeof *r);
    assert_int_equal(tr_schema_new(&d, &r->schema, &r->err), TR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        r->outs[i] = &r->out[i];
        r->schemas[i] = r->schema;
    }
    r->def = (struct tr_chain_def){.outs = r->outs, .n_outs = n_outs, .schemas = r->schemas, .on_skip = note_skip, .arg = &r->skip, .counters = &r->counters, .deserializer = deserializer, .source_transactions = transactions};
    assert_int_equal(open(&r->def, &r->u, &r->ops, &r->chain, &r->err), TR_OK);
}

static void rig_end(struct rig *r)
{
    r->ops->abandon(r->chain);
    r->ops->free(r->chain);
    assert_int_equal(r->schema->refs, 1);
    tr_schema_unref(r->schema);
    for (uint32_t i = 0; i < 3; i++)
        tr_buf_done(&r->out[i].buf);
}

/* One payload per word, positions 1, 2, …; "." is a commit marker. */
static void words(struct rig *r, const char *text)
{
    uint32_t n = 0;
    while (*text) {
        size_t len = strcspn(text, " ");
        struct tr_slice w = tr_slice_of(text, len);
        assert_true(n < ROWS_MAX);
        r->v[n] = (struct tr_payload){.value = w, .key = w, .position = n + 1};
        if (*text == '.') {
            r->v[n].value.n = 0;
            r->v[n].flags = TR_PAYLOAD_TX_END;
        }
        n++;
        text += len + (text[len] == ' ');
    }
    r->in = (struct tr_payloads){.v = r->v, .n = n, .upto = n};
}

static int push(struct rig *r, uint32_t from)
{
    memset(&r->err, 0, sizeof r->err);
    return r->ops->push_batch(r->chain, &r->in, from, &r->ret, &r->err);
}

static void push_all(struct rig *r, const char *text)
{
    words(r, text);
    if (push(r, 0) < 0)
        fail_msg("%s", r->err.msg);
    assert_int_equal(r->ret.state, TR_PUSH_DONE);
    assert_int_equal(r->ret.next, r->in.n);
}

static void assert_stage(struct rig *r, uint32_t i, const char *kind, const char *name, uint64_t in, uint64_t out, uint64_t skipped)
{
    struct tr_stage_stats v[TR_CHAIN_STAGES_MAX];
    assert_true(tr_chain_stats(&r->counters, v, TR_CHAIN_STAGES_MAX) > i);
    assert_string_equal(v[i].kind, kind);
    assert_string_equal(v[i].name, name);
    if (v[i].in != in || v[i].out != out || v[i].skipped != skipped)
        fail_msg("stage %u (%s): in %u out %u skipped %u", i, name, (unsigned)v[i].in, (unsigned)v[i].out, (unsigned)v[i].skipped);
}

/* ---- the tests ---- */

static void test_every_stage_and_its_counters(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    push_all(&r, "1 2 -5 x 7 200 4");
    assert_int_equal(r.out[0].rows, 1 + 2 + 3 + 0);
    assert_string_equal(r.out[0].row[0].text, "1,-");
    assert_string_equal(r.out[0].row[1].text, "2,2");
    assert_string_equal(r.out[0].row[2].text, "3,-");
    assert_string_equal(r.out[0].row[5].text, "9,-");
    assert_int_equal(r.out[0].row[5].pos, 5);
    assert_string_equal(r.out[0].row[5].key, "9"); /* of its key column */
    assert_stage(&r, 0, "decode", "decode_ones", 7, 6, 1);
    assert_stage(&r, 1, "filter", "not_negative", 6, 5, 0);
    assert_stage(&r, 2, "try_map", "below_100", 5, 4, 1);
    assert_stage(&r, 3, "flat_map", "split", 4, 6, 0);
    assert_stage(&r, 4, "inspect", "see", 6, 6, 0);
    assert_stage(&r, 5, "to", "outputs", 6, 6, 0);
    assert_int_equal(r.u.seen, 6);
    assert_int_equal(r.u.sum, 1 + 2 + 3 + 7 + 8 + 9);
    assert_ptr_equal(r.u.last.p, r.v[4].value.p); /* borrowed, not copied */
    assert_int_equal(r.skip.n, 2);
    assert_int_equal(r.skip.stage, 2);
    assert_int_equal(r.skip.pos, 6);
    assert_string_equal(r.skip.msg, "200 is too much");
    assert_int_equal(r.out[0].ends, 1); /* no transactions at the source: a push is one */
    assert_true(r.ret.linger_at_ns == INT64_MAX);
    r.u.reject_code = TR_REJECT; /* and no word why */
    push_all(&r, "300");
    assert_string_equal(r.skip.msg, "try_map below_100 gave no reason");
    rig_end(&r);
}

/* Refused before every payload, in turns by one output and the other: nothing runs twice and nothing is left out. */
static void test_blocked_at_every_payload(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, pair_new, 2);
    words(&r, "10 20 30 40 50 60 70 80");
    uint32_t next = 0, blocks = 0;
    while (next < r.in.n) {
        for (uint32_t i = 0; i < 3; i++) {
            r.out[next % 2].room_in = 1;
            assert_int_equal(push(&r, next), TR_OK);
            assert_int_equal(r.ret.state, TR_PUSH_BLOCKED);
            assert_int_equal(r.ret.next, next);
            assert_int_equal(r.u.decoded, next);
            blocks++;
        }
        struct tr_payloads whole = r.in;
        r.in.n = next + 1; /* exactly one goes in */
        assert_int_equal(push(&r, next), TR_OK);
        assert_int_equal(r.ret.state, TR_PUSH_DONE);
        assert_int_equal(r.ret.next, ++next);
        r.in = whole;
    }
    assert_int_equal(blocks, 24);
    assert_int_equal(r.u.decoded, 8);
    assert_int_equal(r.u.mapped, 8);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(r.out[i].rows, 8);
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(r.out[i].row[k].pos, k + 1);
        assert_int_equal(r.out[i].ends, 8); /* none for a push that did nothing */
    }
    assert_stage(&r, 0, "decode", "decode_keyed", 8, 8, 0);
    assert_stage(&r, 1, "map", "twice", 8, 8, 0);
    rig_end(&r);
}

/* Fan-out is never cut in the middle: room is asked once per payload. */
static void test_room_is_asked_before_a_payload(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    push_all(&r, "7 3 2");
    assert_int_equal(r.out[0].rows, 8);
    assert_int_equal(r.out[0].rooms, 3);
    assert_int_equal(r.out[0].binds, 1);
    rig_end(&r);
}

static void test_not_ready(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    words(&r, "1 5");
    r.out[0].bind_rc = TR_NOT_READY;
    assert_int_equal(push(&r, 0), TR_OK);
    assert_int_equal(r.ret.state, TR_PUSH_NOT_READY);
    assert_int_equal(r.ret.next, 0);
    assert_int_equal(r.u.decoded, 0);
    r.out[0].bind_rc = 0;
    r.u.not_ready = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(push(&r, 0), TR_OK);
        assert_int_equal(r.ret.state, TR_PUSH_NOT_READY);
        assert_int_equal(r.ret.next, 0);
    }
    assert_stage(&r, 0, "decode", "decode_ones", 0, 0, 0);
    assert_int_equal(push(&r, 0), TR_OK);
    assert_int_equal(r.ret.state, TR_PUSH_DONE);
    assert_int_equal(r.u.decoded, 2);
    assert_stage(&r, 0, "decode", "decode_ones", 2, 2, 0);
    /* In the middle of a batch: it goes on there. */
    words(&r, "1 2 3");
    r.u.not_ready = 1;
    r.u.not_ready_from = 4;
    assert_int_equal(push(&r, 0), TR_OK);
    assert_int_equal(r.ret.state, TR_PUSH_NOT_READY);
    assert_int_equal(r.ret.next, 2);
    assert_int_equal(push(&r, 2), TR_OK);
    assert_int_equal(r.ret.state, TR_PUSH_DONE);
    assert_stage(&r, 0, "decode", "decode_ones", 5, 5, 0);
    /* Once a record is out the payload cannot come again. */
    r.u.not_ready_late = true;
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_int_equal(r.ret.state, TR_PUSH_FAILED);
    assert_non_null(strstr(r.err.msg, "answered NOT_READY, which it may not once it has emitted a record"));
    rig_end(&r);
    rig_init(&r, all_new, 1);
    words(&r, "1");
    r.out[0].bind_rc = TR_REJECT;
    assert_int_equal(push(&r, 0), TR_REJECT);
    assert_int_equal(r.ret.state, TR_PUSH_FAILED);
    rig_end(&r);
}

static void test_fail(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, strictly_new, 0);
    words(&r, "1 2 300 4");
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_int_equal(r.ret.state, TR_PUSH_FAILED);
    assert_int_equal(r.ret.next, 2);
    assert_string_equal(r.err.msg, "chain strictly, stage 1 (try_map below_100), position 3: 300 is too much");
    assert_int_equal(r.u.seen, 2);
    assert_int_equal(r.u.decoded, 3); /* stopped there */
    assert_stage(&r, 1, "try_map", "below_100", 3, 2, 0);
    assert_stage(&r, 2, "inspect", "see", 2, 2, 0);
    words(&r, "x");
    assert_int_equal(push(&r, 0), TR_FATAL); /* TR_FAIL(TR_DECODE(…)) */
    assert_string_equal(r.err.msg, "chain strictly, stage 0 (decode decode_strict), position 1: no number");
    words(&r, "300");
    r.u.reject_code = TR_AGAIN;
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_non_null(strstr(r.err.msg, "answered AGAIN, which it may not"));
    r.u.reject_code = TR_FENCED;
    assert_int_equal(push(&r, 0), TR_FENCED);
    r.u.reject_code = TR_REJECT;
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_non_null(strstr(r.err.msg, "no reason given"));
    assert_int_equal(r.skip.n, 0);
    rig_end(&r);
}

/* Skipping is for what is bad, not for what is broken: memory, fencing. */
static void test_skip_is_for_rejects_only(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    words(&r, "200");
    r.u.reject_code = TR_NOMEM;
    assert_int_equal(push(&r, 0), TR_NOMEM);
    assert_int_equal(r.ret.state, TR_PUSH_FAILED);
    assert_non_null(strstr(r.err.msg, "no memory"));
    rig_end(&r);
}

static void test_row_changes_are_never_skipped(void **state)
{
    static const uint32_t flags[] = {TR_PAYLOAD_CHANGE, TR_PAYLOAD_FRAME};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig r = {0};
        rig_init(&r, all_new, 1);
        words(&r, "1 x");
        r.v[1].flags = flags[i];
        assert_int_equal(push(&r, 0), TR_FATAL);
        assert_int_equal(r.ret.next, 1);
        assert_int_equal(r.skip.n, 0);
        rig_end(&r);
    }
}

/* A failure behind a flat_map ends the push there and then, and is told as that stage's, even if the function went on emitting. */
static void test_failure_behind_a_fan_out(void **state)
{
    (void)state;
    for (int swallow = 0; swallow < 2; swallow++) {
        struct rig r = {0};
        rig_init(&r, all_new, 1);
        r.u.swallow = swallow;
        r.out[0].put_rc = TR_REJECT;
        words(&r, "7 1");
        assert_int_equal(push(&r, 0), TR_FATAL);
        assert_int_equal(r.ret.next, 0);
        assert_int_equal(r.u.seen, 1);
        assert_string_equal(r.err.msg, "chain all, stage 5 (to outputs), position 1: column note does not fit");
        rig_end(&r);
    }
}

/* What was emitted before the record was rejected has gone on; the policy of flat_map is to fail. */
static void test_flat_map_rejects_late(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    words(&r, "42");
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_int_equal(r.out[0].rows, 2);
    assert_non_null(strstr(r.err.msg, "stage 3 (flat_map split), position 1: no reason given"));
    rig_end(&r);
}

static void test_outputs(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, pair_new, 2);
    push_all(&r, "-35 6");
    assert_string_equal(r.out[0].row[0].text, "-70,-35");
    assert_string_equal(r.out[0].row[0].key, "-70");
    assert_string_equal(r.out[1].row[0].text, "<-70>");
    assert_string_equal(r.out[1].row[1].text, "<12>");
    assert_string_equal(r.out[1].row[1].key, "6"); /* encoded by hand: the stage's, no longer the payload's */
    /* One output refuses a row: the other has it. */
    r.out[0].put_rc = TR_REJECT;
    push_all(&r, "8");
    assert_int_equal(r.out[0].rows, 2);
    assert_int_equal(r.out[1].rows, 3);
    assert_stage(&r, 3, "to", "outputs", 3, 5, 1);
    rig_end(&r);
}

static void test_an_encoded_row_that_is_refused_leaves_no_bytes(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, routing_new, 3);
    push_all(&r, "4 13 5"); /* 13 goes to output 1, half written */
    assert_int_equal(r.out[1].rows, 1);
    assert_int_equal(r.out[1].undone, 1);
    assert_int_equal(r.out[1].buf.n, 3);
    assert_int_equal(r.skip.n, 1);
    rig_end(&r);
}

static void test_routes(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, routing_new, 3);
    push_all(&r, "0 1 2 3 4 5 6 7");
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(r.out[i].rows, 2);
    assert_string_equal(r.out[2].row[1].text, "6,6");
    assert_stage(&r, 1, "route", "by_value", 8, 6, 2);
    assert_string_equal(r.skip.msg, "there is no output 3, only 0 to 2");
    rig_end(&r);
    rig_init(&r, hashing_new, 3);
    for (int turn = 0; turn < 2; turn++)
        push_all(&r, "1 2 3 4 5 6 7 8 9 10 11 12 14 15 16 17 18 19 20 21 22");
    for (uint32_t i = 0; i < 3; i++) { /* all outputs have some, and a key stays with its output */
        assert_in_range(r.out[i].rows, 2, 30);
        for (uint32_t k = 0; k < r.out[i].rows; k++)
            assert_int_equal(tr_chain_key_hash(tr_slice_str(r.out[i].row[k].key)) / ((UINT64_MAX / 3) + 1), i);
    }
    assert_int_equal(r.out[0].rows + r.out[1].rows + r.out[2].rows, 42);
    rig_end(&r);
}

static void test_owned_records(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, owning_new, 1);
    push_all(&r, "1 2 50 3 4 x");
    assert_int_equal(r.u.made, 4);
    assert_int_equal(r.u.freed, 4); /* two of them filtered */
    assert_int_equal(r.out[0].rows, 2);
    assert_stage(&r, 2, "own", "free_owned", 4, 4, 0);
    words(&r, "60 2");
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_int_equal(r.u.made, 5);
    assert_int_equal(r.u.freed, 5); /* also when what is behind fails */
    rig_end(&r);
}

static void test_transactions(void **state)
{
    struct rig r = {0};
    (void)state;
    r.def.source_transactions = true;
    rig_init(&r, all_new, 1);
    push_all(&r, "1 . 5 1 .");
    assert_int_equal(r.out[0].ends, 2);
    assert_int_equal(r.u.decoded, 3); /* markers are no records */
    push_all(&r, "1");
    assert_int_equal(r.out[0].ends, 2);
    r.in.n = 0; /* the position moved */
    assert_int_equal(push(&r, 0), TR_OK);
    assert_int_equal(r.ret.state, TR_PUSH_DONE);
    struct tr_push f = {.linger_at_ns = 1};
    assert_int_equal(r.ops->flush(r.chain, TR_FLUSH_FINAL, &f, &r.err), TR_OK);
    assert_true(f.state == TR_PUSH_DONE && f.linger_at_ns == INT64_MAX);
    rig_end(&r);
}

static void test_a_column_that_is_not_there(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, all_new, 1);
    words(&r, "31");
    assert_int_equal(push(&r, 0), TR_FATAL);
    assert_non_null(strstr(r.err.msg, "public.t was given a column beyond its 2"));
    rig_end(&r);
}

static void test_numbers_as_text(void **state)
{
    struct tr_slice v[1];
    uint8_t s[1];
    char digits[1][24];
    struct tr_chain_row row1 = {.v = v, .state = s, .digits = digits, .n = 1};
    static const struct {
        int64_t v;
        const char *text;
    } cases[] = {{0, "0"}, {-1, "-1"}, {INT64_MIN, "-9223372036854775808"}, {INT64_MAX, "9223372036854775807"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_chain_row_i64(&row1, 0, cases[i].v);
        assert_true(tr_slice_eq_str(v[0], cases[i].text));
    }
    tr_chain_row_u64(&row1, 0, UINT64_MAX);
    assert_true(tr_slice_eq_str(v[0], "18446744073709551615"));
    tr_chain_row_bool(&row1, 0, false);
    assert_true(tr_slice_eq_str(v[0], "f"));
}

/* ---- a deserializer chosen at run time ---- */

struct twin {
    struct tr_deserializer d;
    struct user *u;
    uint32_t freed;
    int not_ready;
};

/* Each payload twice. */
static int twin_deserialize(struct tr_deserializer *d, const struct tr_payload *in, struct tr_emit *out, struct tr_err *err)
{
    struct twin *t = (struct twin *)d;
    struct user scratch = {0};
    struct rec r = {0};
    if (t->not_ready > 0) {
        t->not_ready--;
        return TR_NOT_READY;
    }
    int rc = parse(&scratch, in, &r, err);
    for (int i = 0; i < 2 && rc >= 0; i++)
        rc = out->emit(out, &r);
    return rc;
}

static void twin_free(struct tr_deserializer *d)
{
    ((struct twin *)d)->freed++;
}

static const struct tr_deserializer_ops twin_ops = {twin_deserialize, twin_free};

static void test_deserializer(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        struct twin t = {.d = {&twin_ops, fails ? TR_POLICY_FAIL : TR_POLICY_SKIP}, .not_ready = 1};
        struct rig r = {.def.deserializer = &t.d};
        rig_init(&r, dynamic_new, 0);
        words(&r, "1 2 -3 x 4");
        assert_int_equal(push(&r, 0), TR_OK);
        assert_int_equal(r.ret.state, TR_PUSH_NOT_READY);
        assert_int_equal(push(&r, 0), fails ? TR_FATAL : TR_OK);
        assert_int_equal(r.ret.next, fails ? 3 : 5);
        assert_int_equal(r.u.seen, fails ? 4 : 6);
        assert_stage(&r, 0, "deserialize", "deserializer", fails ? 4 : 5, fails ? 6 : 8, fails ? 0 : 1);
        rig_end(&r);
        assert_int_equal(t.freed, 1);
    }
}

static void test_defs_that_do_not_fit(void **state)
{
    struct rig r = {0};
    struct twin t = {.d = {&twin_ops, TR_POLICY_SKIP}};
    void *chain = NULL;
    (void)state;
    rig_init(&r, all_new, 1);
    struct tr_chain_def d = r.def;
    d.n_outs = 2;
    assert_int_equal(all_new(&d, &r.u, &r.ops, &chain, &r.err), TR_REJECT);
    assert_string_equal(r.err.msg, "chain all has 1 outputs, the pipeline 2 sinks: they must be as many");
    d = r.def;
    d.schemas = NULL;
    assert_int_equal(all_new(&d, &r.u, &r.ops, &chain, &r.err), TR_REJECT);
    d = r.def;
    d.deserializer = &t.d;
    assert_int_equal(all_new(&d, &r.u, &r.ops, &chain, &r.err), TR_REJECT);
    d = (struct tr_chain_def){0};
    const struct tr_chain_ops *ops;
    assert_int_equal(dynamic_new(&d, &r.u, &ops, &chain, &r.err), TR_REJECT);
    assert_int_equal(t.freed, 0);
    assert_null(chain);
    rig_end(&r);
}

static void test_each_allocation_of_a_new_chain_fails(void **state)
{
    struct rig r = {0};
    struct twin t = {.d = {&twin_ops, TR_POLICY_SKIP}};
    (void)state;
    rig_init(&r, pair_new, 2);
    for (uint64_t nth = 1;; nth++) {
        const struct tr_chain_ops *ops;
        void *chain = NULL;
        tr_alloc_fail_nth(nth);
        int rc = pair_new(&r.def, &r.u, &ops, &chain, &r.err);
        bool failed = tr_alloc_fail_nth(0) == 0;
        assert_int_equal(rc, failed ? TR_NOMEM : TR_OK);
        if (!failed) {
            assert_int_equal(nth, 1 + 2 * 4 + 1);
            ops->free(chain);
            break;
        }
        assert_null(chain);
        assert_int_equal(r.schema->refs, 3); /* the rig's and its own chain's */
    }
    tr_alloc_fail_nth(1);
    struct tr_chain_def d = {.deserializer = &t.d};
    const struct tr_chain_ops *ops;
    void *chain = NULL;
    assert_int_equal(dynamic_new(&d, &r.u, &ops, &chain, &r.err), TR_NOMEM);
    tr_alloc_fail_nth(0);
    assert_int_equal(t.freed, 0); /* still the caller's */
    rig_end(&r);
}

static void test_nothing_is_allocated(void **state)
{
    struct rig r = {0};
    (void)state;
    rig_init(&r, counting_new, 0);
    words(&r, "1 2 3 x 4 5 -6 7 8 9 10");
    uint64_t before = alloc_count();
    void *volatile one = malloc(1);
    free(one);
    assert_true(alloc_count() > before); /* it counts */
    before = alloc_count();
    for (int i = 0; i < 1000; i++)
        (void)r.ops->push_batch(r.chain, &r.in, 0, &r.ret, &r.err);
    assert_int_equal(alloc_count() - before, 0);
    assert_int_equal(r.u.seen, 1000 * 9 * 3);
    rig_end(&r);
    /* With outputs: rows cost none either. The bytes' buffer grows, so it is there before. */
    rig_init(&r, pair_new, 2);
    assert_int_equal(tr_buf_reserve(&r.out[1].buf, 1 << 20), TR_OK);
    words(&r, "1 2 3 x 4 5 -6 7 8 9 10");
    before = alloc_count();
    for (int i = 0; i < 100; i++)
        (void)r.ops->push_batch(r.chain, &r.in, 0, &r.ret, &r.err);
    assert_int_equal(alloc_count() - before, 0);
    assert_int_equal(r.out[0].rows, 1000);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_stage_and_its_counters),
        cmocka_unit_test(test_blocked_at_every_payload),
        cmocka_unit_test(test_room_is_asked_before_a_payload),
        cmocka_unit_test(test_not_ready),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_skip_is_for_rejects_only),
        cmocka_unit_test(test_row_changes_are_never_skipped),
        cmocka_unit_test(test_failure_behind_a_fan_out),
        cmocka_unit_test(test_flat_map_rejects_late),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_an_encoded_row_that_is_refused_leaves_no_bytes),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_owned_records),
        cmocka_unit_test(test_transactions),
        cmocka_unit_test(test_a_column_that_is_not_there),
        cmocka_unit_test(test_numbers_as_text),
        cmocka_unit_test(test_deserializer),
        cmocka_unit_test(test_defs_that_do_not_fit),
        cmocka_unit_test(test_each_allocation_of_a_new_chain_fails),
        cmocka_unit_test(test_nothing_is_allocated),
    };
    return cmocka_run_group_tests_name("chain", tests, NULL, NULL);
}
