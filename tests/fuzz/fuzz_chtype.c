/* One ClickHouse type. What is printed of it is read again, as the same tree; so is what Native blocks say of it. */
#include "ch_type.h"
#include "fuzz.h"

static void check_tree(const struct tr_ch_type *t, unsigned level)
{
    const struct tr_ch_type *v = t->value;
    FUZZ_MUST(level < TR_CH_DEPTH_MAX && v && v->value == v);
    FUZZ_MUST(v->kind != TR_CH_NULLABLE && v->kind != TR_CH_LOW_CARDINALITY && v->kind != TR_CH_SIMPLE_AGGREGATE && v->kind != TR_CH_NESTED);
    FUZZ_MUST(!v->nullable && v->depth == t->depth);
    FUZZ_MUST((v->depth > 0) == (v->kind == TR_CH_ARRAY || v->kind == TR_CH_MAP || v->kind == TR_CH_TUPLE));
    FUZZ_MUST((v->width > 0) == (!v->depth && v->kind != TR_CH_STRING));
    FUZZ_MUST(!v->members || (tr_ch_type_member(v, v->members[v->n - 1].name, &(int16_t){0}) && v->n <= 65536));
    for (uint32_t i = 0; t->of && i < t->n; i++) {
        FUZZ_MUST(t->of[i]->depth <= t->depth);
        check_tree(t->of[i], level + 1);
    }
}

static const struct tr_ch_type *again(struct tr_arena *a, const struct tr_ch_type *t, bool plain, struct tr_buf *out)
{
    const struct tr_ch_type *u;
    FUZZ_MUST(tr_ch_type_print(t, plain, out) == TR_OK);
    FUZZ_MUST(tr_ch_type_parse(tr_buf_slice(out), a, &u, NULL) == TR_OK);
    return u;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_err err = {0};
    struct tr_arena a;
    struct tr_buf first = {0}, second = {0}, plain = {0};
    const struct tr_ch_type *t;
    size_t rest;
    uint8_t *text = fuzz_rest(p, n, 0, &rest);
    tr_arena_init(&a, 4096, 0);
    if (fuzz_taken(tr_ch_type_parse(tr_slice_of(text, rest), &a, &t, &err), TR_REJECT, &err)) {
        check_tree(t, 0);
        again(&a, again(&a, t, false, &first), false, &second);
        FUZZ_MUST(tr_slice_eq(tr_buf_slice(&first), tr_buf_slice(&second)));
        const struct tr_ch_type *u = again(&a, t, true, &plain);
        FUZZ_MUST(u->value->kind == t->value->kind && u->nullable == t->nullable && u->value->width == t->value->width);
    } else {
        FUZZ_MUST(strstr(err.msg, "ClickHouse type"));
    }
    tr_buf_done(&first);
    tr_buf_done(&second);
    tr_buf_done(&plain);
    tr_arena_done(&a);
    free(text);
    return 0;
}
