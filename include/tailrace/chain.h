/*
 * chain.h: what happens to records between a source and its sinks, composed at compile time into one loop.
 *
 * A chain is a list of stages in the order records take. TR_CHAIN makes of it a function that pushes one batch of payloads through all
 * of them: each stage is a `static inline` function that calls the next one by name, so the compiler sees the whole loop. The engine
 * reaches it through one indirect call per batch (struct tr_chain_ops, push.h); there is none per record, and nothing is allocated.
 *
 *     struct shop { double rate; };                                             // the user's own, one per pipeline thread
 *     struct order { struct tr_slice id, customer; int64_t cents; uint32_t n; }; // borrows from the payload
 *     struct line { const struct order *order; uint32_t no; };
 *
 *     TR_EMITTER(orders, struct order);
 *     TR_EMITTER(lines, struct line);
 *
 *     static inline int parse(struct shop *s, const struct tr_payload *p, struct orders_emitter *out, struct tr_err *err)
 *     {
 *         struct order o;
 *         if (!order_parse(p->value, &o))
 *             return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "this is no order");
 *         return orders_emit(out, &o);
 *     }
 *     static inline bool is_paid(struct shop *s, const struct order *o) { return o->cents > 0; }
 *     static inline void in_euro(struct shop *s, const struct order *o, struct order *ret) { *ret = *o; ret->cents = convert(s->rate, o->cents); }
 *     static inline int split(struct shop *s, const struct order *o, struct lines_emitter *out, struct tr_err *err)
 *     {
 *         int rc = TR_OK;
 *         for (uint32_t i = 0; i < o->n && rc >= 0; i++)
 *             rc = lines_emit(out, &(struct line){o, i});
 *         return rc;
 *     }
 *     static inline int line_row(struct shop *s, const struct line *l, struct tr_chain_row *row, struct tr_err *err)
 *     {
 *         tr_chain_row_text(row, 0, l->order->id);
 *         tr_chain_row_i64(row, 1, l->no);
 *         tr_chain_row_i64(row, 2, l->order->cents);
 *         return TR_OK;
 *     }
 *
 *     TR_CHAIN(shop_chain, struct shop,
 *              TR_DECODE(parse, orders), TR_FILTER(is_paid), TR_MAP(in_euro, struct order), TR_FLAT_MAP(split, lines),
 *              TR_TO(TR_ROWS(line_row)));
 *
 *     // in the pipeline's chain_new:
 *     return shop_chain_new(&(struct tr_chain_def){.outs = outs, .n_outs = n_outs, .schemas = &schema}, &shop, ret_ops, ret_chain, err);
 *
 * The stages. Every function takes the user's own struct first. T is the type of the records that reach the stage, U of those that leave it.
 *
 *   TR_DECODE(fn, emitter)   int fn(S *, const struct tr_payload *, struct <emitter>_emitter *, struct tr_err *)    0 … N records out of one payload;
 *                            comes first. NOT_READY before anything was emitted: the same payload comes again
 *   TR_DESERIALIZE(U)        comes first instead of TR_DECODE: def.deserializer (deserializer.h), chosen at run time, emits records of type U. This one
 *                            costs an indirect call per payload and per record
 *   TR_FILTER(fn)            bool fn(S *, const T *)                                         false: the record goes no further, and counts as delivered
 *   TR_MAP(fn, U)            void fn(S *, const T *, U *)
 *   TR_TRY_MAP(fn, U)        int fn(S *, const T *, U *, struct tr_err *)             the U stands zeroed
 *   TR_FLAT_MAP(fn, emitter) int fn(S *, const T *, struct <emitter>_emitter *, struct tr_err *)         emits 0 … N records, each pushed to the end at once
 *   TR_INSPECT(fn)           void fn(S *, const T *)
 *   TR_KEY(fn)               struct tr_slice fn(S *, const T *)          the key from here on, else the payload's: it chooses the output, and the shard of rows
 *                            that have no key of their own. It lives as long as the record
 *   TR_OWN(fn)               void fn(S *, T *)      directly behind TR_MAP or TR_TRY_MAP: their record is owned. fn releases what it holds, once, when
 *                            all behind has run, whatever came of it. A TR_TRY_MAP that fails leaves nothing to release
 *
 * The end, which comes last. An output is TR_ROWS or TR_ENCODED and belongs to the sink of the same number:
 *
 *   TR_TO(output, …)              each record to each of up to eight outputs
 *   TR_ROUTE(fn, output, …)       uint32_t fn(S *, const T *)          to the output of that number; a number without an output is an error of the record
 *   TR_ROUTE_BY_KEY(output, …)    to one by the hash of its key: records of one key go to one output
 *   TR_DISCARD()                  to none: the end of a chain that counts
 *   TR_ROWS(fn)      int fn(S *, const T *, struct tr_chain_row *, struct tr_err *)    fills a row as text, which the sink's own encoder takes: any sink.
 *                    The encoder is the sink's choice at run time: here lies an indirect call per row
 *   TR_ENCODED(fn)   int fn(S *, const T *, struct tr_buf *, struct tr_err *)       appends the row, in the sink's format, to the chunk itself. It must
 *                    not look at what stands before it. For sinks whose format is row by row
 *
 * Emitters are declared before the functions that call them: TR_EMITTER(e, U) makes `struct e_emitter` and `int e_emit(struct e_emitter *,
 * const U *)`, which returns 0 or a negative code that the function passes on (if it does not, that is noticed, and nothing more is pushed).
 * An emitter lives on the stack, for one call, and belongs to one chain.
 *
 * Ownership. Records live on the stack of one push_batch and may borrow: from the payload (until that payload's push is over) and from the record
 * they were made of. Who keeps something longer copies it. S is the caller's; the engine calls a chain on one thread, so S needs no lock as long as each
 * pipeline thread has its own. *_new copies the def; schemas are referenced, outs are lent by the engine.
 *
 * Errors of a record. REJECT says that this record is bad: by the stage's policy it is skipped and counted, or the pipeline fails (FATAL, with stage and
 * reason). The default is to fail; of TR_DECODE to skip, except for row changes (TR_PAYLOAD_CHANGE, TR_PAYLOAD_FRAME), which are never skipped.
 * TR_SKIP(stage) and TR_FAIL(stage) set it: TR_SKIP(TR_TRY_MAP(price, struct order)). The policy of the end is that of its outputs: a row that one
 * output refuses is skipped there alone. TR_DESERIALIZE has the deserializer's. Any other code fails the pipeline. What a flat_map emitted before it
 * rejected its record has gone on.
 *
 * Back-pressure. Room in all outputs is asked before a payload is begun, never inside it; the batch goes on later at the very payload it stopped at. No
 * stage runs twice for a record.
 *
 * Counters, per stage: records that came in, went out, and were skipped. They are added up on the stack and published when push_batch returns: into
 * def.counters, which is the caller's and outlives the chain (the engine frees a chain when its thread ends), and into the metrics of def.metrics.
 *
 * What is wrong is said in one line, by a _Static_assert: a function that does not fit its stage, an end that is not the last, a policy where
 * nothing can fail.
 */
#ifndef TAILRACE_CHAIN_H
#define TAILRACE_CHAIN_H

#include <stdatomic.h>
#include <stdbool.h>

#include <tailrace/deserializer.h>
#include <tailrace/metric.h>
#include <tailrace/push.h>

enum { TR_CHAIN_STAGES_MAX = 16, TR_CHAIN_OUTPUTS_MAX = 8 };

/* One row on its way to a sink's encoder. `change` stands as INSERT, of the output's schema, with the payload's position as version and its event time as
 * commit_us; the function may change op, version and times. Columns that it does not set are NULL. A mirror keeps one row per key, which is what the row has in
 * the key columns of its schema; one of them that is NULL is an error of the record. Of two rows of one key and one version a mirror keeps either: rows that one payload
 * comes to need keys of their own, or versions. */
struct tr_chain_row {
    struct tr_change change;
    struct tr_slice *v;
    uint8_t *state;
    char (*digits)[24];
    uint32_t n; /* columns */
    struct tr_buf key;
    bool stray; /* one was set that there is not: FATAL */
};

struct tr_chain_desc;

/* The caller's, zeroed; outlives the chains. Those of all threads may count into one: all of the same TR_CHAIN. */
struct tr_chain_counters {
    _Atomic(const struct tr_chain_desc *) desc;
    struct {
        _Atomic uint64_t in, out, skipped;
    } stage[TR_CHAIN_STAGES_MAX];
};

struct tr_chain_def {
    struct tr_out **outs;                   /* as chain_new got them */
    uint32_t n_outs;                        /* as many as the chain has outputs */
    struct tr_schema *const *schemas;       /* one per output: its table */
    const enum tr_target_variant *variants; /* one per output; NULL: mirrors */
    bool source_transactions;               /* the source marks the ends of its transactions, and sinks seal there; else each push_batch ends one */
    struct tr_deserializer *deserializer;   /* TR_DESERIALIZE: the chain's from a *_new that succeeded on */
    /* A record was skipped. May be NULL. Called by the pipeline thread, within push_batch. */
    void (*on_skip)(void *arg, uint32_t stage, const struct tr_payload *p, const struct tr_err *err);
    void *arg;
    struct tr_chain_counters *counters;     /* NULL: nobody wants to know */
    struct tr_metrics *metrics;             /* NULL: none. tailrace_stage_records_total{pipeline, chain, stage, result}: in, out, skipped */
    const char *pipeline;                   /* its label; with metrics */
};

struct tr_stage_stats {
    const char *kind, *name; /* "filter", "is_paid" */
    uint64_t in, out, skipped;
};

/* Fills up to max, returns the number of stages; 0 as long as there was no chain. Any thread. */
uint32_t tr_chain_stats(const struct tr_chain_counters *c, struct tr_stage_stats *v, uint32_t max);

/* The hash by which TR_ROUTE_BY_KEY chooses. */
uint64_t tr_chain_key_hash(struct tr_slice key);

/* ---- rows: the text of a column, as PostgreSQL prints it (schema.h) ---- */

static inline void tr_chain_row_text(struct tr_chain_row *r, uint32_t column, struct tr_slice text)
{
    if (column >= r->n) {
        r->stray = true;
        return;
    }
    r->v[column] = text;
    r->state[column] = TR_PRESENT;
}

void tr_chain_row_i64(struct tr_chain_row *r, uint32_t column, int64_t v);
void tr_chain_row_u64(struct tr_chain_row *r, uint32_t column, uint64_t v);
void tr_chain_row_bool(struct tr_chain_row *r, uint32_t column, bool v);

/* ==== what TR_CHAIN is made of; not to be called by hand ==== */

struct tr_chain_stage {
    const char *kind, *name;
    uint8_t policy;
    bool passes; /* puts out what came in and was not skipped */
};

struct tr_chain_desc {
    const char *name;
    const struct tr_chain_stage *stages;
    uint32_t n_stages, n_outputs;
    bool wants_deserializer;
};

struct tr_chain { /* the first member of a chain */
    const struct tr_chain_desc *desc;
    struct tr_chain_def def;
    struct tr_out *outs[TR_CHAIN_OUTPUTS_MAX];
    struct tr_schema *schemas[TR_CHAIN_OUTPUTS_MAX];
    struct tr_target *targets[TR_CHAIN_OUTPUTS_MAX];
    struct tr_chain_row rows[TR_CHAIN_OUTPUTS_MAX];
    enum tr_target_variant variants[TR_CHAIN_OUTPUTS_MAX];
    struct tr_cell *cells[TR_CHAIN_STAGES_MAX][3]; /* in, out, skipped; NULL without metrics */
    void *user;
};

struct tr_chain_run { /* one push_batch */
    struct tr_ack *ack;
    struct tr_err *err;
    int rc; /* below 0: the run is over */
    const struct tr_payload *payload;
    struct tr_slice key;
    uint64_t begun;      /* out[0] when the payload was begun */
    uint32_t failed;     /* stage + 1 */
    uint64_t in, out[TR_CHAIN_STAGES_MAX], skipped[TR_CHAIN_STAGES_MAX];
};

/* Emitters; the first member is what TR_DESERIALIZE hands to a deserializer. */
struct tr_chain_emitter {
    struct tr_emit emit;
    void *chain;
    struct tr_chain_run *run;
};

int tr_chain_open(size_t size, const struct tr_chain_desc *desc, const struct tr_chain_def *def, void *user, void **ret_chain, struct tr_err *err);
void tr_chain_abandon(void *chain);
void tr_chain_free(void *chain);
int tr_chain_flush(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err);
int tr_chain_bind(struct tr_chain *c, struct tr_err *err);
/* Answers what the stage is to return: 0 when the record is skipped. Cold. */
int tr_chain_failed(struct tr_chain *c, struct tr_chain_run *run, uint32_t stage, int rc) __attribute__((cold, noinline));
int tr_chain_no_output(struct tr_chain *c, struct tr_chain_run *run, uint32_t stage, uint32_t number) __attribute__((cold, noinline));
struct tr_chain_row *tr_chain_row_begin(struct tr_chain *c, const struct tr_chain_run *run, uint32_t output);
int tr_chain_row_put(struct tr_chain *c, const struct tr_chain_run *run, uint32_t output);
/* Ends a push_batch that came as far as `next`. */
int tr_chain_pushed(struct tr_chain *c, struct tr_chain_run *run, uint32_t from, uint32_t next, bool blocked, struct tr_push *ret);

static inline bool tr_chain_room(const struct tr_chain *c, uint32_t n_outputs)
{
    for (uint32_t i = 0; i < n_outputs; i++)
        if (tr_out_room(c->outs[i]) < 0)
            return false;
    return true;
}

static inline int tr_chain_tx_end(struct tr_chain *c, struct tr_chain_run *run, uint32_t n_outputs)
{
    for (uint32_t i = 0; i < n_outputs && run->rc >= 0; i++)
        run->rc = tr_out_tx_end(c->outs[i], run->err);
    return run->rc;
}

#define TR_EMITTER(e, U)               \
    struct e##_emitter {               \
        struct tr_chain_emitter to;    \
    };                                 \
    typedef U e##_record;              \
    static inline int e##_emit(struct e##_emitter *emitter, const e##_record *record)

/* Stages are lists: (kind, policy, name, …). */
#define TR_DECODE(fn, emitter) (tr_decode, TR_POLICY_SKIP, fn, emitter)
#define TR_DESERIALIZE(U) (tr_deserialize, TR_POLICY_SKIP, deserializer, U)
#define TR_FILTER(fn) (tr_filter, TR_POLICY_FAIL, fn, )
#define TR_MAP(fn, U) (tr_map, TR_POLICY_FAIL, fn, U)
#define TR_TRY_MAP(fn, U) (tr_try_map, TR_POLICY_FAIL, fn, U)
#define TR_FLAT_MAP(fn, emitter) (tr_flat_map, TR_POLICY_FAIL, fn, emitter)
#define TR_INSPECT(fn) (tr_inspect, TR_POLICY_FAIL, fn, )
#define TR_KEY(fn) (tr_key, TR_POLICY_FAIL, fn, )
#define TR_OWN(fn) (tr_own, TR_POLICY_FAIL, fn, )
#define TR_TO(...) (tr_to, TR_POLICY_FAIL, outputs, __VA_ARGS__)
#define TR_ROUTE(fn, ...) (tr_route, TR_POLICY_FAIL, fn, __VA_ARGS__)
#define TR_ROUTE_BY_KEY(...) (tr_route_by_key, TR_POLICY_FAIL, outputs, __VA_ARGS__)
#define TR_DISCARD() (tr_discard, TR_POLICY_FAIL, nothing, )
#define TR_ROWS(fn) (tr_rows, fn)
#define TR_ENCODED(fn) (tr_encoded, fn)
#define TR_SKIP(stage) TR_C_APPLY(TR_C_POLICY, TR_POLICY_SKIP, TR_C_LIST stage)
#define TR_FAIL(stage) TR_C_APPLY(TR_C_POLICY, TR_POLICY_FAIL, TR_C_LIST stage)

#define TR_C_APPLY(m, ...) m(__VA_ARGS__)
#define TR_C_LIST(...) __VA_ARGS__
#define TR_C_POLICY(policy, kind, was, ...) (kind, policy | TR_C_SET, __VA_ARGS__)
#define TR_C_SET 2 /* the policy was asked for */

/* What kinds there are, and of each: 1 first, 2 last; 4 has a policy; 8 makes a record that may be owned; 16 puts out what came in and was not skipped. */
#define TR_C_IS_tr_decode (1 | 4)
#define TR_C_IS_tr_deserialize 1
#define TR_C_IS_tr_filter 0
#define TR_C_IS_tr_map (8 | 16)
#define TR_C_IS_tr_try_map (4 | 8 | 16)
#define TR_C_IS_tr_flat_map 4
#define TR_C_IS_tr_inspect 16
#define TR_C_IS_tr_key 16
#define TR_C_IS_tr_own 16
#define TR_C_IS_tr_to (2 | 4)
#define TR_C_IS_tr_route (2 | 4)
#define TR_C_IS_tr_route_by_key (2 | 4)
#define TR_C_IS_tr_discard 2

/* m(chain, stage, next stage, stage's list) for each, in order. */
#define TR_C_COUNT(...) TR_C_COUNT_(__VA_ARGS__, M, M, M, M, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define TR_C_COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, count, ...) count
#define TR_C_CAT(a, b) TR_C_CAT_(a, b)
#define TR_C_CAT_(a, b) a##b
#define TR_C_EACH(m, c, ...) TR_C_CAT(TR_C_E, TR_C_COUNT(__VA_ARGS__))(m, c, __VA_ARGS__)
#define TR_C_EM(m, c, ...)
#define TR_C_K1 1
#define TR_C_K2 2
#define TR_C_K3 3
#define TR_C_K4 4
#define TR_C_K5 5
#define TR_C_K6 6
#define TR_C_K7 7
#define TR_C_K8 8
#define TR_C_K9 9
#define TR_C_K10 10
#define TR_C_K11 11
#define TR_C_K12 12
#define TR_C_K13 13
#define TR_C_K14 14
#define TR_C_K15 15
#define TR_C_K16 16
#define TR_C_KM 17
#define TR_C_E1(m, c, s0) m(c, 0, 1, s0)
#define TR_C_E2(m, c, s0, s1) TR_C_E1(m, c, s0) m(c, 1, 2, s1)
#define TR_C_E3(m, c, s0, s1, s2) TR_C_E2(m, c, s0, s1) m(c, 2, 3, s2)
#define TR_C_E4(m, c, s0, s1, s2, s3) TR_C_E3(m, c, s0, s1, s2) m(c, 3, 4, s3)
#define TR_C_E5(m, c, s0, s1, s2, s3, s4) TR_C_E4(m, c, s0, s1, s2, s3) m(c, 4, 5, s4)
#define TR_C_E6(m, c, s0, s1, s2, s3, s4, s5) TR_C_E5(m, c, s0, s1, s2, s3, s4) m(c, 5, 6, s5)
#define TR_C_E7(m, c, s0, s1, s2, s3, s4, s5, s6) TR_C_E6(m, c, s0, s1, s2, s3, s4, s5) m(c, 6, 7, s6)
#define TR_C_E8(m, c, s0, s1, s2, s3, s4, s5, s6, s7) TR_C_E7(m, c, s0, s1, s2, s3, s4, s5, s6) m(c, 7, 8, s7)
#define TR_C_E9(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8) TR_C_E8(m, c, s0, s1, s2, s3, s4, s5, s6, s7) m(c, 8, 9, s8)
#define TR_C_E10(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9) TR_C_E9(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8) m(c, 9, 10, s9)
#define TR_C_E11(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10) TR_C_E10(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9) m(c, 10, 11, s10)
#define TR_C_E12(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11) \
    TR_C_E11(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10) m(c, 11, 12, s11)
#define TR_C_E13(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12) \
    TR_C_E12(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11) m(c, 12, 13, s12)
#define TR_C_E14(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13) \
    TR_C_E13(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12) m(c, 13, 14, s13)
#define TR_C_E15(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14) \
    TR_C_E14(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13) m(c, 14, 15, s14)
#define TR_C_E16(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15) \
    TR_C_E15(m, c, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14) m(c, 15, 16, s15)

/* The same over outputs: a macro is not expanded within itself. */
#define TR_C_OUT_APPLY(m, ...) m(__VA_ARGS__)
#define TR_C_OUT_COUNT(...) TR_C_OUT_COUNT_(__VA_ARGS__, M, M, M, M, M, M, M, M, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define TR_C_OUT_COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
#define TR_C_OUT_CAT(a, b) TR_C_OUT_CAT_(a, b)
#define TR_C_OUT_CAT_(a, b) a##b
#define TR_C_OUT_EACH(m, c, ...) TR_C_OUT_CAT(TR_C_O, TR_C_OUT_COUNT(__VA_ARGS__))(m, c, __VA_ARGS__)
#define TR_C_O1(m, c, o0) m(c, 0, o0)
#define TR_C_O2(m, c, o0, o1) TR_C_O1(m, c, o0) m(c, 1, o1)
#define TR_C_O3(m, c, o0, o1, o2) TR_C_O2(m, c, o0, o1) m(c, 2, o2)
#define TR_C_O4(m, c, o0, o1, o2, o3) TR_C_O3(m, c, o0, o1, o2) m(c, 3, o3)
#define TR_C_O5(m, c, o0, o1, o2, o3, o4) TR_C_O4(m, c, o0, o1, o2, o3) m(c, 4, o4)
#define TR_C_O6(m, c, o0, o1, o2, o3, o4, o5) TR_C_O5(m, c, o0, o1, o2, o3, o4) m(c, 5, o5)
#define TR_C_O7(m, c, o0, o1, o2, o3, o4, o5, o6) TR_C_O6(m, c, o0, o1, o2, o3, o4, o5) m(c, 6, o6)
#define TR_C_O8(m, c, o0, o1, o2, o3, o4, o5, o6, o7) TR_C_O7(m, c, o0, o1, o2, o3, o4, o5, o6) m(c, 7, o7)
#define TR_C_OM(m, c, ...)
#define TR_C_N1 1
#define TR_C_N2 2
#define TR_C_N3 3
#define TR_C_N4 4
#define TR_C_N5 5
#define TR_C_N6 6
#define TR_C_N7 7
#define TR_C_N8 8
#define TR_C_NM 9

#define TR_C_FITS(c, fn, ret, what, ...)                        \
    _Static_assert(_Generic(&fn, ret(*)(__VA_ARGS__) : 1, default : 0), #c ": " #fn " must be " what);

/* -- first pass: types, names, and what is wrong -- */
#define TR_C_DECLARE(c, i, j, s) TR_C_APPLY(TR_C_DECLARE_, c, i, j, TR_C_LIST s)
#define TR_C_DECLARE_(c, i, j, kind, pol, name, ...)                                                                                                  \
    enum { c##_is_##i = TR_C_IS_##kind, c##_before_##j = TR_C_IS_##kind };                                                                                                             \
    _Static_assert(((i) == 0) == ((c##_is_##i & 1) != 0), #c ": TR_DECODE or TR_DESERIALIZE comes first, and only there (" #kind " " #name ")");       \
    _Static_assert(((j) == c##_stages) == ((c##_is_##i & 2) != 0), #c ": TR_TO, TR_ROUTE, TR_ROUTE_BY_KEY or TR_DISCARD comes last, and only there (" #kind " " #name ")"); \
    _Static_assert(!((pol) & TR_C_SET) || (c##_is_##i & 4), #c ": TR_SKIP or TR_FAIL around " #kind " " #name ", which has no policy");               \
    TR_C_TYPE_##kind(c, i, j, name, __VA_ARGS__)                                                                                                      \
    static inline int c##_push_##i(struct c##_chain *chain, struct tr_chain_run *run, const c##_in_##i *in);
#define TR_C_TYPE_tr_decode(c, i, j, fn, e)                                                                                       \
    typedef struct tr_payload c##_in_##i;                                                                                         \
    typedef e##_record c##_in_##j;                                                                                                \
    TR_C_FITS(c, fn, int, "int (S *, const struct tr_payload *, struct " #e "_emitter *, struct tr_err *)", c##_user *, const struct tr_payload *, struct e##_emitter *, struct tr_err *)
#define TR_C_TYPE_tr_deserialize(c, i, j, fn, U) \
    typedef struct tr_payload c##_in_##i;        \
    typedef U c##_in_##j;
#define TR_C_TYPE_tr_filter(c, i, j, fn, ...) \
    typedef c##_in_##i c##_in_##j;            \
    TR_C_FITS(c, fn, bool, "bool (S *, const T *), T what the stage before makes", c##_user *, const c##_in_##i *)
#define TR_C_TYPE_tr_map(c, i, j, fn, U) \
    typedef U c##_in_##j;                \
    TR_C_FITS(c, fn, void, "void (S *, const T *, " #U " *), T what the stage before makes", c##_user *, const c##_in_##i *, U *)
#define TR_C_TYPE_tr_try_map(c, i, j, fn, U) \
    typedef U c##_in_##j;                    \
    TR_C_FITS(c, fn, int, "int (S *, const T *, " #U " *, struct tr_err *), T what the stage before makes", c##_user *, const c##_in_##i *, U *, struct tr_err *)
#define TR_C_TYPE_tr_flat_map(c, i, j, fn, e) \
    typedef e##_record c##_in_##j;            \
    TR_C_FITS(c, fn, int, "int (S *, const T *, struct " #e "_emitter *, struct tr_err *), T what the stage before makes", c##_user *, const c##_in_##i *, struct e##_emitter *, struct tr_err *)
#define TR_C_TYPE_tr_inspect(c, i, j, fn, ...) \
    typedef c##_in_##i c##_in_##j;             \
    TR_C_FITS(c, fn, void, "void (S *, const T *), T what the stage before makes", c##_user *, const c##_in_##i *)
#define TR_C_TYPE_tr_key(c, i, j, fn, ...) \
    typedef c##_in_##i c##_in_##j;         \
    TR_C_FITS(c, fn, struct tr_slice, "struct tr_slice (S *, const T *), T what the stage before makes", c##_user *, const c##_in_##i *)
#define TR_C_TYPE_tr_own(c, i, j, fn, ...) \
    typedef c##_in_##i c##_in_##j;         \
    TR_C_FITS(c, fn, void, "void (S *, T *), T what the stage before makes", c##_user *, c##_in_##i *)
#define TR_C_TYPE_tr_to(c, i, j, fn, ...)                 \
    enum { c##_outputs = TR_C_OUT_CAT(TR_C_N, TR_C_OUT_COUNT(__VA_ARGS__)) };                              \
    _Static_assert((int)c##_outputs <= (int)TR_CHAIN_OUTPUTS_MAX, #c ": a chain has at most 8 outputs"); \
    typedef c##_in_##i c##_last;                          \
    TR_C_OUT_EACH(TR_C_OUTPUT, c, __VA_ARGS__)
#define TR_C_TYPE_tr_route(c, i, j, fn, ...)                                                                              \
    TR_C_FITS(c, fn, uint32_t, "uint32_t (S *, const T *), T what the stage before makes", c##_user *, const c##_in_##i *) \
    TR_C_TYPE_tr_to(c, i, j, fn, __VA_ARGS__)
#define TR_C_TYPE_tr_route_by_key TR_C_TYPE_tr_to
#define TR_C_TYPE_tr_discard(c, i, j, fn, ...) enum { c##_outputs = 0 };

/* -- second pass: the stages; c##_run_<i> is inlined into its caller whatever the compiler thinks of it -- */
#define TR_C_DEFINE(c, i, j, s) TR_C_APPLY(TR_C_DEFINE_, c, i, j, TR_C_LIST s)
#define TR_C_DEFINE_(c, i, j, kind, pol, name, ...) TR_C_DEFINE_##kind(c, i, j, name, __VA_ARGS__)
#define TR_C_PUSH(c, i)                                                                                                                        \
    static inline __attribute__((always_inline)) int c##_push_##i(struct c##_chain *chain, struct tr_chain_run *run, const c##_in_##i *in)
/* A failure behind us is not ours, and stands even if the function swallowed it. */
#define TR_C_EMITTING(c, i, j, fn, e)                                                                                          \
    TR_C_PUSH(c, i)                                                                                                            \
    {                                                                                                                          \
        struct e##_emitter out = {{.chain = chain, .run = run}};                                                               \
        int rc = fn(chain->base.user, in, &out, run->err);                                                                     \
        if (__builtin_expect(run->rc < 0, 0))                                                                                  \
            return run->rc;                                                                                                    \
        return __builtin_expect(rc < 0, 0) ? tr_chain_failed(&chain->base, run, i, rc) : TR_OK;                                \
    }                                                                                                                          \
    static inline int e##_emit(struct e##_emitter *emitter, const e##_record *record)                                          \
    {                                                                                                                          \
        struct tr_chain_run *run = emitter->to.run;                                                                            \
        if (__builtin_expect(run->rc < 0, 0))                                                                                  \
            return run->rc;                                                                                                    \
        run->out[i]++;                                                                                                         \
        return c##_push_##j(emitter->to.chain, run, record);                                                                   \
    }
#define TR_C_DEFINE_tr_decode TR_C_EMITTING
#define TR_C_DEFINE_tr_flat_map TR_C_EMITTING
#define TR_C_DEFINE_tr_deserialize(c, i, j, fn, U)                                                                             \
    static int c##_emitted_##i(struct tr_emit *emit, const void *record)                                                       \
    {                                                                                                                          \
        struct tr_chain_emitter *e = (struct tr_chain_emitter *)(void *)emit;                                                  \
        if (e->run->rc < 0)                                                                                                    \
            return e->run->rc;                                                                                                 \
        e->run->out[i]++;                                                                                                      \
        return c##_push_##j(e->chain, e->run, record);                                                                         \
    }                                                                                                                          \
    TR_C_PUSH(c, i)                                                                                                            \
    {                                                                                                                          \
        struct tr_chain_emitter out = {{c##_emitted_##i}, chain, run};                                                         \
        struct tr_deserializer *d = chain->base.def.deserializer;                                                              \
        int rc = d->ops->deserialize(d, in, &out.emit, run->err);                                                              \
        if (run->rc < 0)                                                                                                       \
            return run->rc;                                                                                                    \
        return rc < 0 ? tr_chain_failed(&chain->base, run, i, rc) : TR_OK;                                                     \
    }
#define TR_C_DEFINE_tr_filter(c, i, j, fn, ...)     \
    TR_C_PUSH(c, i)                                 \
    {                                               \
        if (!fn(chain->base.user, in))              \
            return TR_OK;                           \
        run->out[i]++;                              \
        return c##_push_##j(chain, run, in);        \
    }
#define TR_C_DEFINE_tr_map(c, i, j, fn, U)          \
    TR_C_PUSH(c, i)                                 \
    {                                               \
        U made;                                     \
        fn(chain->base.user, in, &made);            \
        return c##_push_##j(chain, run, &made);     \
    }
#define TR_C_DEFINE_tr_try_map(c, i, j, fn, U)                          \
    TR_C_PUSH(c, i)                                                     \
    {                                                                   \
        U made = {0}; /* the compiler cannot know that tr_err_set returns what is below 0 */ \
        int rc = fn(chain->base.user, in, &made, run->err);             \
        if (__builtin_expect(rc < 0, 0))                                \
            return tr_chain_failed(&chain->base, run, i, rc);           \
        return c##_push_##j(chain, run, &made);                         \
    }
#define TR_C_DEFINE_tr_inspect(c, i, j, fn, ...)    \
    TR_C_PUSH(c, i)                                 \
    {                                               \
        fn(chain->base.user, in);                   \
        return c##_push_##j(chain, run, in);        \
    }
#define TR_C_DEFINE_tr_key(c, i, j, fn, ...)        \
    TR_C_PUSH(c, i)                                 \
    {                                               \
        run->key = fn(chain->base.user, in);        \
        return c##_push_##j(chain, run, in);        \
    }
/* The record is the `made` of the map before. */
#define TR_C_DEFINE_tr_own(c, i, j, fn, ...)                                                                                  \
    _Static_assert(c##_before_##i & 8, #c ": TR_OWN(" #fn ") comes directly behind TR_MAP or TR_TRY_MAP"); \
    TR_C_PUSH(c, i)                                                                                                           \
    {                                                                                                                         \
        int rc = c##_push_##j(chain, run, in);                                                                                \
        union {                                                                                                               \
            const c##_in_##i *in;                                                                                             \
            c##_in_##i *made;                                                                                                 \
        } record = {in};                                                                                                      \
        fn(chain->base.user, record.made);                                                                                    \
        return rc;                                                                                                            \
    }

/* -- the end -- */
#define TR_C_OUTPUT(c, i, o) TR_C_OUT_APPLY(TR_C_OUTPUT_, c, i, TR_C_OUT_LIST o)
#define TR_C_OUT_LIST(...) __VA_ARGS__
#define TR_C_OUTPUT_(c, i, how, fn) TR_C_OUTPUT_##how(c, i, fn)
#define TR_C_OUTPUT_tr_rows(c, i, fn)                                                                                                         \
    TR_C_FITS(c, fn, int, "int (S *, const T *, struct tr_chain_row *, struct tr_err *), T what the stage before makes", c##_user *, const c##_last *, struct tr_chain_row *, struct tr_err *) \
    static inline int c##_output_##i(struct c##_chain *chain, struct tr_chain_run *run, uint32_t stage, const c##_last *in)                    \
    {                                                                                                                                         \
        int rc = fn(chain->base.user, in, tr_chain_row_begin(&chain->base, run, i), run->err);                                                \
        if (rc >= 0)                                                                                                                          \
            rc = tr_chain_row_put(&chain->base, run, i);                                                                                      \
        if (__builtin_expect(rc < 0, 0))                                                                                                      \
            return tr_chain_failed(&chain->base, run, stage, rc);                                                                             \
        run->out[stage]++;                                                                                                                    \
        return TR_OK;                                                                                                                         \
    }
#define TR_C_OUTPUT_tr_encoded(c, i, fn)                                                                                                      \
    TR_C_FITS(c, fn, int, "int (S *, const T *, struct tr_buf *, struct tr_err *), T what the stage before makes", c##_user *, const c##_last *, struct tr_buf *, struct tr_err *) \
    static inline int c##_output_##i(struct c##_chain *chain, struct tr_chain_run *run, uint32_t stage, const c##_last *in)                    \
    {                                                                                                                                         \
        struct tr_out *out = chain->base.outs[i];                                                                                             \
        struct tr_buf *to;                                                                                                                    \
        int rc = tr_out_open(out, chain->base.targets[i], run->key, &to, run->err);                                                           \
        if (rc >= 0) {                                                                                                                        \
            rc = fn(chain->base.user, in, to, run->err);                                                                                      \
            int closed = tr_out_close(out, rc >= 0, run->ack, run->payload->position, run->err);                                              \
            rc = rc < 0 ? rc : closed;                                                                                                        \
        }                                                                                                                                     \
        if (__builtin_expect(rc < 0, 0))                                                                                                      \
            return tr_chain_failed(&chain->base, run, stage, rc);                                                                             \
        run->out[stage]++;                                                                                                                    \
        return TR_OK;                                                                                                                         \
    }
#define TR_C_EVERY(c, i, o) \
    if (rc >= 0)               \
        rc = c##_output_##i(chain, run, c##_stages - 1, in);
#define TR_C_CASE(c, i, o) \
    case i:                   \
        return c##_output_##i(chain, run, c##_stages - 1, in);
#define TR_C_DEFINE_tr_to(c, i, j, fn, ...)             \
    TR_C_PUSH(c, i)                                     \
    {                                                   \
        int rc = TR_OK;                                 \
        TR_C_OUT_EACH(TR_C_EVERY, c, __VA_ARGS__)           \
        return rc;                                      \
    }
#define TR_C_ROUTED(c, i, number, ...)                                                     \
    TR_C_PUSH(c, i)                                                                        \
    {                                                                                      \
        uint32_t to = number;                                                              \
        switch (to) {                                                                      \
            TR_C_OUT_EACH(TR_C_CASE, c, __VA_ARGS__)                                           \
        default:                                                                           \
            return tr_chain_no_output(&chain->base, run, i, to);                           \
        }                                                                                  \
    }
#define TR_C_DEFINE_tr_route(c, i, j, fn, ...) TR_C_ROUTED(c, i, fn(chain->base.user, in), __VA_ARGS__)
/* The high half: a sink chooses its shard by the rest of a division of the same hash. */
#define TR_C_DEFINE_tr_route_by_key(c, i, j, fn, ...) \
    TR_C_ROUTED(c, i, (uint32_t)(((tr_chain_key_hash(run->key) >> 32) * c##_outputs) >> 32), __VA_ARGS__)
#define TR_C_DEFINE_tr_discard(c, i, j, fn, ...) \
    TR_C_PUSH(c, i)                              \
    {                                            \
        (void)chain;                             \
        (void)in;                                \
        run->out[i]++;                           \
        return TR_OK;                            \
    }

#define TR_C_STAGE(c, i, j, s) TR_C_APPLY(TR_C_STAGE_, TR_C_LIST s)
#define TR_C_STAGE_(kind, pol, name, ...) {&#kind[3], #name, (pol) & TR_POLICY_FAIL, (TR_C_IS_##kind & 16) != 0},
#define TR_C_WANTS(c, i, j, s) TR_C_APPLY(TR_C_WANTS_, i, TR_C_LIST s)
#define TR_C_WANTS_(i, kind, ...) +((i) == 0 && TR_C_IS_##kind == 1)

/* TR_CHAIN(name, S, stages …) at file scope makes
 *   int name_new(const struct tr_chain_def *def, S *user, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
 * REJECT for a def that does not fit the chain; NOMEM. The engine frees the chain by its ops. */
#define TR_CHAIN(c, S, ...)                                                                                                                    \
    struct c##_chain {                                                                                                                         \
        struct tr_chain base;                                                                                                                  \
    };                                                                                                                                         \
    typedef S c##_user;                                                                                                                        \
    enum { c##_before_0, c##_stages = TR_C_CAT(TR_C_K, TR_C_COUNT(__VA_ARGS__)) };                                                                                             \
    _Static_assert((int)c##_stages <= (int)TR_CHAIN_STAGES_MAX, #c ": a chain has at most 16 stages");                                                    \
    TR_C_EACH(TR_C_DECLARE, c, __VA_ARGS__)                                                                                                    \
    TR_C_EACH(TR_C_DEFINE, c, __VA_ARGS__)                                                                                                     \
    static int c##_push_batch(void *arg, const struct tr_payloads *in, uint32_t from, struct tr_push *ret, struct tr_err *err)                  \
    {                                                                                                                                          \
        struct c##_chain *chain = arg;                                                                                                         \
        struct tr_chain_run run = {.ack = in->ack, .err = err};                                                                                \
        bool blocked = false;                                                                                                                  \
        uint32_t next = from;                                                                                                                  \
        if (c##_outputs > 0 && from < in->n)                                                                                                   \
            run.rc = tr_chain_bind(&chain->base, err);                                                                                         \
        for (; run.rc >= 0 && next < in->n; next++) {                                                                                          \
            const struct tr_payload *p = &in->v[next];                                                                                         \
            if (!tr_chain_room(&chain->base, c##_outputs)) {                                                                                   \
                blocked = true;                                                                                                                \
                break;                                                                                                                         \
            }                                                                                                                                  \
            run.payload = p;                                                                                                                   \
            run.key = p->key;                                                                                                                  \
            if (!(p->flags & TR_PAYLOAD_TX_END) || p->value.n) {                                                                               \
                run.in++;                                                                                                                      \
                run.begun = run.out[0];                                                                                                          \
                if (__builtin_expect(c##_push_0(chain, &run, p) < 0, 0))                                                                       \
                    break;                                                                                                                     \
            }                                                                                                                                  \
            if (c##_outputs > 0 && (p->flags & TR_PAYLOAD_TX_END) && tr_chain_tx_end(&chain->base, &run, c##_outputs) < 0)                         \
                break;                                                                                                                         \
        }                                                                                                                                      \
        return tr_chain_pushed(&chain->base, &run, from, next, blocked, ret);                                                                 \
    }                                                                                                                                          \
    static inline int c##_new(const struct tr_chain_def *def, S *user, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err) \
    {                                                                                                                                          \
        static const struct tr_chain_ops ops = {c##_push_batch, tr_chain_flush, tr_chain_abandon, tr_chain_free};                              \
        static const struct tr_chain_stage stages[] = {TR_C_EACH(TR_C_STAGE, c, __VA_ARGS__)};                                                 \
        static const struct tr_chain_desc desc = {#c, stages, c##_stages, c##_outputs, (0 TR_C_EACH(TR_C_WANTS, c, __VA_ARGS__)) != 0};         \
        *ret_ops = &ops;                                                                                                                       \
        return tr_chain_open(sizeof(struct c##_chain), &desc, def, user, ret_chain, err);                                                      \
    }                                                                                                                                          \
    struct c##_chain

#endif
