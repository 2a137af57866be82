/*
 * engine_kit.h: a pipeline over the memory connector, for the runtime's tests. The chain hands every row to every sink.
 */
#ifndef TR_ENGINE_KIT_H
#define TR_ENGINE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>
#include <tailrace/metric.h>
#include <tailrace/oslog.h>
#include <tailrace/runtime.h>

#include "alloc.h"
#include "check.h"
#include "thread.h"

#define MS TR_NS_PER_MS
#define SEC TR_NS_PER_S
enum { KIT_SINKS_MAX = 3 };

struct kit {
    struct tr_mem_source *src;
    struct tr_mem_sink *sink[KIT_SINKS_MAX];
    struct tr_runtime_sink def_sink[KIT_SINKS_MAX];
    struct tr_runtime_def def;
    struct tr_runtime *p;
    struct tr_schema *schema[4]; /* tables 1 … 4 */
    char warning[512];
    /* scripts of the chain */
    _Atomic int not_ready_times;
    _Atomic uint32_t unbind;     /* a table whose mirror is to be forgotten before the next payload */
    _Atomic int barrier;         /* asks for one before each payload (1), between transactions (2) */
    _Atomic uint64_t chains_freed, watermarks, rejected;
    _Atomic int64_t reject_first;
    enum tr_reject_answer reject_answer;
};

struct kit_chain {
    struct kit *k;
    struct tr_out *outs[KIT_SINKS_MAX];
    uint32_t n;
    bool in_tx;
};

static inline int kit_put(struct kit_chain *c, const struct tr_payload *p, struct tr_ack *ack, struct tr_err *err)
{
    struct tr_change made, *v = &made;
    struct tr_target *t[KIT_SINKS_MAX];
    if (p->flags & TR_PAYLOAD_CHANGE) {
        memcpy(&made, p->meta, sizeof made);
    } else {
        /* static: a generated payload is one text column */
        static const uint8_t present = TR_PRESENT;
        made = (struct tr_change){.op = TR_OP_INSERT, .schema = c->k->schema[0], .version = (uint64_t)p->position, .key = p->key, .after = {&p->value, &present, 1}};
    }
    if (v->op == TR_OP_COMMIT)
        return TR_OK;
    for (uint32_t i = 0; i < c->n; i++) {
        int rc = tr_out_bind(c->outs[i], v->schema, v->op == TR_OP_READ ? TR_TARGET_SHADOW : TR_TARGET_MIRROR, v->snapshot_id, &t[i], err);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        int rc = tr_out_put(c->outs[i], t[i], v, 1, ack, p->position, err);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

/* What was read is durable, becomes the mirror, and its targets are forgotten. */
static inline int kit_swap(struct kit_chain *c, const struct tr_change *v, struct tr_err *err)
{
    for (uint32_t i = 0; i < c->n; i++) {
        int rc = tr_out_barrier(c->outs[i], err);
        if (rc >= 0)
            rc = tr_out_swap(c->outs[i], v->schema, v->snapshot_id, err);
        if (rc < 0)
            return rc == TR_AGAIN ? TR_NOT_READY : rc; /* asked again */
        tr_out_unbind(c->outs[i], v->schema->table_id, TR_TARGET_MIRROR);
        tr_out_unbind(c->outs[i], v->schema->table_id, TR_TARGET_SHADOW);
    }
    return TR_OK;
}

static inline int kit_push(void *chain, const struct tr_payloads *in, uint32_t from, struct tr_push *ret, struct tr_err *err)
{
    struct kit_chain *c = chain;
    ret->linger_at_ns = INT64_MAX;
    for (ret->next = from; ret->next < in->n; ret->next++) {
        const struct tr_payload *p = &in->v[ret->next];
        int rc = TR_OK;
        for (uint32_t i = 0; i < c->n; i++)
            if (tr_out_room(c->outs[i]) < 0) {
                ret->state = TR_PUSH_BLOCKED;
                return TR_OK;
            }
        if (atomic_load(&c->k->not_ready_times) > 0) {
            atomic_fetch_sub(&c->k->not_ready_times, 1);
            ret->state = TR_PUSH_NOT_READY;
            return TR_OK;
        }
        uint32_t unbind = atomic_exchange(&c->k->unbind, 0);
        for (uint32_t i = 0; unbind && i < c->n; i++)
            tr_out_unbind(c->outs[i], unbind, TR_TARGET_MIRROR);
        int barrier = atomic_load_explicit(&c->k->barrier, memory_order_relaxed);
        for (uint32_t i = 0; (barrier == 1 || (barrier == 2 && !c->in_tx)) && i < c->n && rc == TR_OK; i++)
            rc = tr_out_barrier(c->outs[i], err);
        if (rc == TR_OK && (p->flags & TR_PAYLOAD_CHANGE) && ((const struct tr_change *)p->meta)->op == TR_OP_SNAPSHOT_END)
            rc = kit_swap(c, p->meta, err);
        else if (rc == TR_OK && (p->value.n || (p->flags & TR_PAYLOAD_CHANGE)))
            rc = kit_put(c, p, in->ack, err);
        for (uint32_t i = 0; rc == TR_OK && (p->flags & TR_PAYLOAD_TX_END) && i < c->n; i++)
            rc = tr_out_tx_end(c->outs[i], err);
        if (rc == TR_OK)
            c->in_tx = !(p->flags & TR_PAYLOAD_TX_END);
        if (rc == TR_NOT_READY) {
            ret->state = TR_PUSH_NOT_READY;
            return TR_OK;
        }
        if (rc < 0) {
            ret->state = TR_PUSH_FAILED;
            return rc;
        }
    }
    ret->state = TR_PUSH_DONE;
    return TR_OK;
}

static inline int kit_flush(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err)
{
    (void)chain;
    (void)why;
    (void)err;
    ret->state = TR_PUSH_DONE;
    ret->linger_at_ns = INT64_MAX;
    return TR_OK;
}

static inline void kit_abandon(void *chain)
{
    (void)chain;
}

static inline void kit_chain_free(void *chain)
{
    struct kit_chain *c = chain;
    atomic_fetch_add(&c->k->chains_freed, 1);
    free(c);
}

static const struct tr_chain_ops kit_chain_ops = {kit_push, kit_flush, kit_abandon, kit_chain_free};

static inline int kit_chain_new(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n, const struct tr_chain_ops **ret_ops, void **ret, struct tr_err *err)
{
    struct kit_chain *c = calloc(1, sizeof *c);
    (void)thread;
    (void)err;
    c->k = arg;
    c->n = n;
    memcpy(c->outs, outs, n * sizeof *outs);
    *ret_ops = &kit_chain_ops;
    *ret = c;
    return TR_OK;
}

static inline enum tr_reject_answer kit_on_reject(void *arg, uint32_t sink, const struct tr_target *t, int64_t first, const struct tr_err *err)
{
    struct kit *k = arg;
    (void)sink;
    (void)t;
    (void)err;
    atomic_fetch_add(&k->rejected, 1);
    atomic_store(&k->reject_first, first);
    return k->reject_answer;
}

static inline void kit_on_watermark(void *arg, const struct tr_watermark *v, size_t n)
{
    struct kit *k = arg;
    (void)v;
    atomic_fetch_add(&k->watermarks, n);
}

static inline struct tr_schema *kit_schema(uint32_t table_id, uint32_t version)
{
    char name[16];
    struct tr_column cols[3] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1},
                                {.name = "note", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1},
                                {.name = "more", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    struct tr_schema *s = NULL;
    struct tr_err err;
    snprintf(name, sizeof name, "t%u", table_id);
    struct tr_schema_def d = {.table_id = table_id, .version = version, .ns = "public", .name = name, .no_key_reason = "", .columns = cols, .n_columns = version > 1 ? 3 : 2};
    assert_int_equal(tr_schema_new(&d, &s, &err), TR_OK);
    return s;
}

/* Everything small and quick; a test changes what it is about before kit_start. */
static inline void kit_init(struct kit *k, uint32_t n_sinks, const struct tr_mem_sink_def *defs)
{
    static const char *const names[KIT_SINKS_MAX] = {"a", "b", "c"};
    memset(k, 0, sizeof *k);
    tr_oslog_setup(getenv("TR_TEST_LOG") ? TR_OSLOG_INFO : TR_OSLOG_OFF, false, 2);
    assert_int_equal(tr_mem_source_new(&k->src), TR_OK);
    for (uint32_t i = 0; i < n_sinks; i++) {
        assert_int_equal(tr_mem_sink_new(&defs[i], &k->sink[i]), TR_OK);
        k->def_sink[i] = (struct tr_runtime_sink){.name = names[i], .sink = tr_mem_sink_spi(k->sink[i])};
        tr_sink_tuning_default(&k->def_sink[i].tuning);
        k->def_sink[i].tuning.backoff_min_ns = 2 * MS;
        k->def_sink[i].tuning.backoff_max_ns = 20 * MS;
        k->def_sink[i].tuning.breaker_open_ns = 20 * MS;
        k->def_sink[i].tuning.linger_ns = 50 * MS;
    }
    for (uint32_t i = 0; i < 4; i++)
        k->schema[i] = kit_schema(i + 1, 1);
    k->def = (struct tr_runtime_def){.name = "test",
                                      .source = tr_mem_source_spi(k->src),
                                      .sinks = k->def_sink,
                                      .n_sinks = n_sinks,
                                      .chain_new = kit_chain_new,
                                      .on_reject = kit_on_reject,
                                      .on_watermark = kit_on_watermark,
                                      .arg = k};
    tr_runtime_tuning_default(&k->def.tuning);
    k->def.tuning.commit_interval_ns = 20 * MS;
    k->def.tuning.min_pause_ns = 2 * MS;
    k->reject_answer = TR_REJECT_DROP;
}

static inline void kit_start(struct kit *k)
{
    struct tr_err err = {0};
    if (tr_runtime_new(&k->def, &k->p, k->warning, sizeof k->warning, &err) < 0 || tr_runtime_start(k->p, &err) < 0)
        fail_msg("%s", err.msg);
}

static inline struct tr_runtime_status kit_status(struct kit *k)
{
    struct tr_runtime_status s;
    tr_runtime_status(k->p, &s);
    return s;
}

static inline void kit_stop(struct kit *k)
{
    tr_runtime_stop(k->p);
    assert_true(tr_runtime_join(k->p, tr_now_ns() + 20 * SEC));
}

static inline void kit_end(struct kit *k)
{
    k->p = tr_runtime_free(k->p);
    for (uint32_t i = 0; i < k->def.n_sinks; i++)
        tr_mem_sink_spi(k->sink[i])->ops->close(tr_mem_sink_spi(k->sink[i]));
    tr_mem_source_spi(k->src)->ops->close(tr_mem_source_spi(k->src), 0);
    for (uint32_t i = 0; i < 4; i++)
        tr_schema_unref(k->schema[i]);
}

/* A row of table (1 …) with integer key. */
static inline void kit_row_op(struct kit *k, uint32_t lane, int64_t pos, uint8_t op, uint32_t table, int64_t key, const char *note, uint16_t flags)
{
    char id[24];
    uint8_t state[2] = {TR_PRESENT, note ? TR_PRESENT : TR_NULL};
    snprintf(id, sizeof id, "%lld", (long long)key);
    struct tr_slice v[2] = {tr_slice_str(id), tr_slice_str(note)};
    struct tr_change c = {.op = op, .flags = flags, .schema = k->schema[table - 1], .version = (uint64_t)pos, .key = v[0], .after = {v, state, 2}};
    c.snapshot_id = op == TR_OP_READ || op == TR_OP_SNAPSHOT_END ? 7 : 0;
    assert_int_equal(tr_mem_push_row(k->src, lane, pos, &c), TR_OK);
}

static inline void kit_row(struct kit *k, uint32_t lane, int64_t pos, uint32_t table, int64_t key, const char *note)
{
    kit_row_op(k, lane, pos, TR_OP_INSERT, table, key, note, 0);
}

/* Waits, up to 10 s, until the expression is true. */
#define KIT_UNTIL(cond)                                          \
    do {                                                         \
        int64_t until_ = tr_now_ns() + 10 * SEC;                 \
        while (!(cond)) {                                        \
            if (tr_now_ns() > until_)                            \
                fail_msg("timed out waiting for: %s", #cond);    \
            tr_sleep_ns(MS / 2);                                 \
        }                                                        \
    } while (0)

#endif
