/*
 * typed_chain.c: a pipeline written as a C program. Orders come in as text, "id;country;cents;item,item,…"; each item that was paid for becomes
 * a row in the table of its region. Source and sinks are those of the test kit, in memory; a real pipeline names others and changes nothing else.
 *
 * The records borrow: no byte of an order is copied before its row is encoded into the sink's chunk, and nothing is allocated per record.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/memory.h>
#include <tailrace/pipeline.h>

/* ---- records, and the state of one pipeline thread ---- */

struct order {
    struct tr_slice id, country, items; /* of the payload */
    int64_t cents;
};

struct item {
    const struct order *order;
    struct tr_slice name;
    int64_t cents;
};

struct shop {
    int64_t per_mille_tax;
    int64_t turnover; /* of this thread; read when it has ended */
};

/* ---- the stages ---- */

TR_EMITTER(orders, struct order);
TR_EMITTER(items, struct item);

/* Cuts *rest at the next `at` and returns what is before it. */
static inline struct tr_slice field(struct tr_slice *rest, char at)
{
    const uint8_t *end = rest->n ? memchr(rest->p, at, rest->n) : NULL;
    size_t n = end ? (size_t)(end - rest->p) : rest->n;
    struct tr_slice f = tr_slice_sub(*rest, 0, n);
    *rest = tr_slice_sub(*rest, n + 1, rest->n);
    return f;
}

static inline int parse(struct shop *s, const struct tr_payload *p, struct orders_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = p->value;
    struct order o = {.id = field(&rest, ';'), .country = field(&rest, ';')};
    struct tr_slice cents = field(&rest, ';');
    (void)s;
    for (size_t i = 0; i < cents.n; i++) {
        if (cents.p[i] < '0' || cents.p[i] > '9' || o.cents > INT32_MAX)
            return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "the amount is no number of cents");
        o.cents = 10 * o.cents + (cents.p[i] - '0');
    }
    o.items = rest;
    return orders_emit(out, &o);
}

static inline bool is_paid(struct shop *s, const struct order *o)
{
    (void)s;
    return o->cents > 0 && o->items.n > 0;
}

static inline void with_tax(struct shop *s, const struct order *o, struct order *ret)
{
    *ret = *o;
    ret->cents += o->cents * s->per_mille_tax / 1000;
}

/* An order's price is shared evenly among its items. */
static inline int split(struct shop *s, const struct order *o, struct items_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = o->items;
    int64_t n = 1;
    int rc = TR_OK;
    (void)s;
    (void)err;
    for (size_t i = 0; i < rest.n; i++)
        n += rest.p[i] == ',';
    while (rest.n && rc >= 0)
        rc = items_emit(out, &(struct item){o, field(&rest, ','), o->cents / n});
    return rc;
}

static inline void count(struct shop *s, const struct item *i)
{
    s->turnover += i->cents;
}

enum { EUROPE, ELSEWHERE };

static inline uint32_t region(struct shop *s, const struct item *i)
{
    (void)s;
    return tr_slice_eq_str(i->order->country, "AT") || tr_slice_eq_str(i->order->country, "FR") ? EUROPE : ELSEWHERE;
}

static inline int item_row(struct shop *s, const struct item *i, struct tr_chain_row *row, struct tr_err *err)
{
    (void)s;
    (void)err;
    tr_chain_row_text(row, 0, i->order->id);
    tr_chain_row_text(row, 1, i->name);
    tr_chain_row_i64(row, 2, i->cents);
    return TR_OK;
}

TR_CHAIN(shop_chain, struct shop,
         TR_DECODE(parse, orders),
         TR_FILTER(is_paid),
         TR_MAP(with_tax, struct order),
         TR_FLAT_MAP(split, items),
         TR_INSPECT(count),
         TR_ROUTE(region, TR_ROWS(item_row), TR_ROWS(item_row)));

/* ---- the pipeline around it ---- */

static int chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread; /* there is one, so one shop will do */
    return shop_chain_new(def, arg, ret_ops, ret_chain, err);
}

/* A mirror keeps one row per key: order and item together. */
static struct tr_schema *table(uint32_t id, const char *name)
{
    const struct tr_column columns[] = {{.name = "order_id", .source_type = "text", .type = TR_TYPE_TEXT, .not_null = true, .key_pos = 1, .precision = -1},
                                        {.name = "item", .source_type = "text", .type = TR_TYPE_TEXT, .not_null = true, .key_pos = 2, .precision = -1},
                                        {.name = "cents", .source_type = "bigint", .type = TR_TYPE_INT64, .precision = -1}};
    struct tr_schema_def d = {.table_id = id, .version = 1, .ns = "shop", .name = name, .no_key_reason = "", .columns = columns, .n_columns = 3};
    struct tr_schema *s = NULL;
    struct tr_err err;
    if (tr_schema_new(&d, &s, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return s;
}

static void print_row(void *arg, const struct tr_mem_row *r)
{
    printf("  %s: %" TR_SLICE_FMT " %" TR_SLICE_FMT " %" TR_SLICE_FMT "\n", (const char *)arg, TR_SLICE_ARG(r->row.v[0]), TR_SLICE_ARG(r->row.v[1]), TR_SLICE_ARG(r->row.v[2]));
}

/* The test kit's source: the orders, and then its end. */
static struct tr_mem_source *orders_source(void)
{
    static const char *const orders[] = {"1;AT;1000;cup,plate", "2;US;300;pen", "3;FR;0;voucher", "4;FR;x;lamp", "5;FR;999;ink,pen,nib"};
    struct tr_mem_source *s = NULL;
    int rc = tr_mem_source_new(&s);
    for (int64_t i = 0; i < (int64_t)(sizeof orders / sizeof *orders) && rc >= 0; i++)
        rc = tr_mem_push(s, 0, i + 1, (struct tr_slice){NULL, 0}, tr_slice_str(orders[i]), 0);
    if (rc >= 0)
        rc = tr_mem_assign(s, 0, 1, 0);
    if (rc < 0)
        exit(1);
    tr_mem_eof(s, 0);
    tr_mem_end(s);
    return s;
}

int main(void)
{
    static char names[2][16] = {"europe", "elsewhere"};
    struct shop shop = {.per_mille_tax = 200};
    struct tr_mem_sink_def kind = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
    struct tr_mem_sink *sinks[2] = {NULL};
    struct tr_schema *tables[2] = {table(1, names[EUROPE]), table(2, names[ELSEWHERE])};
    struct tr_mem_source *orders = orders_source();
    struct tr_source *source = tr_mem_source_spi(orders);
    struct tr_pipeline *p = NULL;
    struct tr_running *running = NULL;
    struct tr_err err = {0};

    int rc = tr_pipeline_parse("shop", "{admin: {listen: off}, logging: {level: error}}", "typed_chain", &p, &err);
    for (int i = 0; i < 2 && rc >= 0; i++) {
        if (tr_mem_sink_new(&kind, &sinks[i]) < 0)
            return 1;
        struct tr_output out = {.name = names[i], .sink = tr_mem_sink_spi(sinks[i]), .table = tables[i]};
        rc = i == EUROPE ? tr_pipeline_sink(p, &out, &err) : tr_pipeline_add_sink(p, &out, &err);
    }
    if (rc >= 0)
        rc = tr_pipeline_start(&p, &source, chain_new, &shop, &running, &err);
    if (rc < 0) {
        fprintf(stderr, "typed_chain: %s\n", err.msg);
        return 1;
    }
    tr_running_join(running, INT64_MAX); /* the source has an end */

    struct tr_stage_stats stats[TR_CHAIN_STAGES_MAX];
    uint32_t n = tr_running_stages(running, stats, TR_CHAIN_STAGES_MAX);
    for (uint32_t i = 0; i < n; i++)
        printf("%-8s %-8s in %llu, out %llu, skipped %llu\n", stats[i].kind, stats[i].name, (unsigned long long)stats[i].in, (unsigned long long)stats[i].out, (unsigned long long)stats[i].skipped);
    for (int i = 0; i < 2; i++)
        tr_mem_each_row(sinks[i], print_row, names[i]);
    printf("turnover %lld, committed up to %lld\n", (long long)shop.turnover, (long long)tr_mem_committed(orders, 0));
    tr_running_free(running);
    for (int i = 0; i < 2; i++)
        tr_schema_unref(tables[i]);
    return 0;
}
