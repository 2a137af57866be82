/* What composing costs: the same filter, map and flat_map over a borrowed record of five fields, into nothing, as a bare loop, as a chain
 * (tailrace/chain.h), and with a function pointer per stage. CPU time of one thread; variants in turns; medians. Prints JSON for bench.py.
 * Usage: chain_bench; or chain_bench VARIANT ROUNDS to run one variant only, for a profiler. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tailrace/chain.h>

#include "alloc_count.h"

enum { BATCH = 512, BATCHES = 400, TURNS = 9 };

/* What a payload holds, in fixed places: two numbers, then two texts. */
struct wire {
    int64_t id, cents;
    uint8_t customer_n, note_n;
    char text[46];
};

struct order {
    int64_t id, cents;
    struct tr_slice customer, note;
    uint32_t parts;
};

struct line {
    const struct order *order;
    uint32_t no;
    int64_t cents;
};

struct till {
    int64_t sum;
    uint64_t lines;
};

static inline void order_read(const struct tr_payload *p, struct order *ret)
{
    const uint8_t *b = p->value.p;
    memcpy(&ret->id, b + offsetof(struct wire, id), 8);
    memcpy(&ret->cents, b + offsetof(struct wire, cents), 8);
    uint8_t n = b[offsetof(struct wire, customer_n)], m = b[offsetof(struct wire, note_n)];
    ret->customer = tr_slice_of(b + offsetof(struct wire, text), n);
    ret->note = tr_slice_of(b + offsetof(struct wire, text) + n, m);
    ret->parts = 1 + (n & 1);
}

TR_EMITTER(orders, struct order);
TR_EMITTER(lines, struct line);

static inline int parse(struct till *t, const struct tr_payload *p, struct orders_emitter *out, struct tr_err *err)
{
    struct order o;
    (void)t;
    if (p->value.n < sizeof(struct wire))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a short order");
    order_read(p, &o);
    return orders_emit(out, &o);
}

static inline bool is_paid(struct till *t, const struct order *o)
{
    (void)t;
    return o->cents % 4 != 0;
}

static inline void with_tax(struct till *t, const struct order *o, struct order *ret)
{
    (void)t;
    *ret = *o;
    ret->cents += o->cents / 8;
}

static inline int split(struct till *t, const struct order *o, struct lines_emitter *out, struct tr_err *err)
{
    int rc = TR_OK;
    (void)t;
    (void)err;
    for (uint32_t i = 0; i < o->parts && rc >= 0; i++)
        rc = lines_emit(out, &(struct line){o, i, o->cents / o->parts});
    return rc;
}

static inline void count(struct till *t, const struct line *l)
{
    t->lines++;
    t->sum += l->cents ^ l->order->id ^ (int64_t)(l->order->customer.n + l->order->note.p[0]) ^ l->no;
}

TR_CHAIN(orders_chain, struct till, TR_DECODE(parse, orders), TR_FILTER(is_paid), TR_MAP(with_tax, struct order), TR_FLAT_MAP(split, lines), TR_INSPECT(count), TR_DISCARD());

/* ---- by hand ---- */

static __attribute__((noinline)) int bare(struct till *t, const struct tr_payloads *in, struct tr_err *err)
{
    for (uint32_t i = 0; i < in->n; i++) {
        const struct tr_payload *p = &in->v[i];
        struct order o;
        if (p->value.n < sizeof(struct wire))
            return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a short order");
        order_read(p, &o);
        if (!is_paid(t, &o))
            continue;
        o.cents += o.cents / 8;
        for (uint32_t k = 0; k < o.parts; k++)
            count(t, &(struct line){&o, k, o.cents / o.parts});
    }
    return TR_OK;
}

/* ---- a pointer per stage ---- */

struct stage {
    int (*push)(const struct stage *s, struct till *t, const void *record);
};

static int at_count(const struct stage *s, struct till *t, const void *record)
{
    (void)s;
    count(t, record);
    return TR_OK;
}

static int at_split(const struct stage *s, struct till *t, const void *record)
{
    const struct order *o = record;
    int rc = TR_OK;
    for (uint32_t i = 0; i < o->parts && rc >= 0; i++)
        rc = s[1].push(s + 1, t, &(struct line){o, i, o->cents / o->parts});
    return rc;
}

static int at_map(const struct stage *s, struct till *t, const void *record)
{
    struct order made;
    with_tax(t, record, &made);
    return s[1].push(s + 1, t, &made);
}

static int at_filter(const struct stage *s, struct till *t, const void *record)
{
    return is_paid(t, record) ? s[1].push(s + 1, t, record) : TR_OK;
}

static int at_decode(const struct stage *s, struct till *t, const void *record)
{
    const struct tr_payload *p = record;
    struct order o;
    if (p->value.n < sizeof(struct wire))
        return TR_REJECT;
    order_read(p, &o);
    return s[1].push(s + 1, t, &o);
}

static struct stage stages[] = {{at_decode}, {at_filter}, {at_map}, {at_split}, {at_count}};

static __attribute__((noinline)) int by_pointer(struct till *t, const struct tr_payloads *in)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < in->n && rc >= 0; i++)
        rc = stages[0].push(stages, t, &in->v[i]);
    return rc;
}

/* ---- */

static struct wire wires[BATCH];
static struct tr_payload payloads[BATCH];
static struct tr_payloads batch = {.v = payloads, .n = BATCH, .upto = BATCH};
static const char *const variants[] = {"bare", "chain", "pointers"};
static const struct tr_chain_ops *ops;
static void *chain;
static struct till chain_till;

static void die(const char *what)
{
    fprintf(stderr, "chain_bench: %s\n", what);
    exit(1);
}

/* The chain is reached through its ops, as the engine does. */
static struct till run(uint32_t variant, uint32_t batches)
{
    struct till t = {0};
    struct tr_err err = {0};
    struct tr_push ret;
    int rc = TR_OK;
    chain_till = t;
    for (uint32_t i = 0; i < batches && rc >= 0; i++)
        if (variant == 0)
            rc = bare(&t, &batch, &err);
        else if (variant == 1)
            rc = ops->push_batch(chain, &batch, 0, &ret, &err);
        else
            rc = by_pointer(&t, &batch);
    if (rc < 0)
        die("a variant failed");
    return variant == 1 ? chain_till : t;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    double ns[3][TURNS];
    uint64_t allocations[3] = {0};
    struct till first = {0};
    struct tr_err err;
    uint32_t seed = 1;
    for (uint32_t i = 0; i < BATCH; i++) {
        seed = seed * 1664525 + 1013904223;
        wires[i] = (struct wire){.id = i, .cents = seed >> 8, .customer_n = (uint8_t)(8 + (seed >> 28)), .note_n = 12, .text = "a customer and a note"};
        payloads[i] = (struct tr_payload){.value = tr_slice_of(&wires[i], sizeof wires[i]), .position = i + 1};
    }
    if (orders_chain_new(&(struct tr_chain_def){0}, &chain_till, &ops, &chain, &err) < 0)
        die(err.msg);
    if (argc == 3) {
        for (uint32_t v = 0; v < 3; v++)
            if (!strcmp(argv[1], variants[v]))
                printf("%llu\n", (unsigned long long)run(v, (uint32_t)atoi(argv[2])).lines);
        ops->free(chain);
        return 0;
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (uint32_t v = 0; v < 3; v++) {
            uint64_t before = alloc_count();
            double t0 = now();
            struct till t = run(v, BATCHES);
            ns[v][turn] = (now() - t0) / ((double)BATCH * BATCHES);
            allocations[v] += alloc_count() - before;
            if (!first.lines)
                first = t;
            if (t.sum != first.sum || t.lines != first.lines)
                die("the variants disagree");
        }
    if (allocations[1])
        die("the chain allocates");
    printf("{\"batch\": %d, \"records\": %d, \"lines\": %llu", BATCH, BATCH * BATCHES, (unsigned long long)first.lines);
    for (uint32_t v = 0; v < 3; v++) {
        qsort(ns[v], TURNS, sizeof ns[v][0], by_value);
        printf(", \"%s\": {\"ns\": %.3f, \"allocations\": %llu}", variants[v], ns[v][TURNS / 2], (unsigned long long)allocations[v]);
    }
    printf("}\n");
    ops->free(chain);
    return 0;
}
