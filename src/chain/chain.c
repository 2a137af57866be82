/* chain.c: the part of a chain that runs once per batch, per row of an output, or when something is wrong (tailrace/chain.h). */
#include <tailrace/chain.h>

#include <inttypes.h>
#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "hash.h"
#include "key.h"

uint64_t tr_chain_key_hash(struct tr_slice key)
{
    return tr_hash64(key.p, key.n);
}

/* ---- life ---- */

enum { KEY_BYTES = 256 }; /* a longer one grows the buffer once */

static int row_init(struct tr_chain_row *r, uint32_t n)
{
    r->n = n;
    r->v = tr_calloc(n, sizeof *r->v);
    r->state = tr_calloc(n, 1);
    r->digits = tr_calloc(n, sizeof *r->digits);
    return r->v && r->state && r->digits && tr_buf_reserve(&r->key, KEY_BYTES) >= 0 ? TR_OK : TR_NOMEM;
}

void tr_chain_free(void *chain)
{
    struct tr_chain *c = chain;
    if (!c)
        return;
    for (uint32_t i = 0; i < TR_CHAIN_OUTPUTS_MAX; i++) {
        tr_free(c->rows[i].v);
        tr_free(c->rows[i].state);
        tr_free(c->rows[i].digits);
        tr_buf_done(&c->rows[i].key);
        tr_schema_unref(c->schemas[i]);
    }
    if (c->def.deserializer)
        c->def.deserializer->ops->free(c->def.deserializer);
    tr_free(c);
}

static int check(const struct tr_chain_desc *d, const struct tr_chain_def *def, struct tr_err *err)
{
    if (def->n_outs != d->n_outputs)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "chain %s has %" PRIu32 " outputs, the pipeline %" PRIu32 " sinks: they must be as many", d->name, d->n_outputs, def->n_outs);
    if (d->wants_deserializer != (def->deserializer != NULL))
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, d->wants_deserializer ? "chain %s begins with TR_DESERIALIZE: set deserializer" : "chain %s decodes by itself: leave deserializer out", d->name);
    for (uint32_t i = 0; i < d->n_outputs; i++)
        if (!def->outs || !def->outs[i] || !def->schemas || !def->schemas[i])
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "chain %s: output %" PRIu32 " has no sink or no schema", d->name, i);
    return TR_OK;
}

static int cells(struct tr_chain *c, const struct tr_chain_def *def, uint32_t stage)
{
    static const struct tr_metric_def about = {.name = "tailrace_stage_records_total", .help = "Records that came into a stage of a chain, went out of it, and were skipped.", .type = TR_COUNTER};
    static const char *const results[] = {"in", "out", "skipped"};
    const struct tr_chain_stage *s = &c->desc->stages[stage];
    struct tr_family *f = NULL;
    char name[120];
    snprintf(name, sizeof name, "%" PRIu32 " %s %s", stage, s->kind, s->name);
    int rc = tr_metrics_family(def->metrics, &about, &f, NULL);
    for (size_t i = 0; i < TR_ARRAY_LEN(results) && rc >= 0; i++) {
        const struct tr_label l[] = {{"pipeline", def->pipeline ? def->pipeline : ""}, {"chain", c->desc->name}, {"stage", name}, {"result", results[i]}};
        rc = tr_family_cell(f, l, TR_ARRAY_LEN(l), &c->cells[stage][i], NULL);
    }
    return rc;
}

int tr_chain_open(size_t size, const struct tr_chain_desc *desc, const struct tr_chain_def *def, void *user, void **ret_chain, struct tr_err *err)
{
    int rc = check(desc, def, err);
    if (rc < 0)
        return rc;
    struct tr_chain *c = tr_calloc(1, size);
    if (!c)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for chain %s", desc->name);
    c->desc = desc;
    c->user = user;
    for (uint32_t i = 0; i < desc->n_outputs; i++) {
        c->outs[i] = def->outs[i];
        c->schemas[i] = tr_schema_ref(def->schemas[i]);
        c->variants[i] = def->variants ? def->variants[i] : TR_TARGET_MIRROR;
        if (row_init(&c->rows[i], def->schemas[i]->n_columns) < 0) {
            tr_chain_free(c);
            return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for the rows of chain %s", desc->name);
        }
    }
    for (uint32_t i = 0; def->metrics && i < desc->n_stages; i++)
        if (cells(c, def, i) < 0) {
            tr_chain_free(c);
            return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for the metrics of chain %s", desc->name);
        }
    c->def = *def;
    if (def->counters)
        atomic_store(&def->counters->desc, desc);
    c->def.outs = NULL; /* the arrays are the caller's */
    c->def.schemas = NULL;
    c->def.variants = NULL;
    *ret_chain = c;
    return TR_OK;
}

/* Neither acks nor records are held between two pushes. */
void tr_chain_abandon(void *chain)
{
    (void)chain;
}

int tr_chain_flush(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err)
{
    (void)chain;
    (void)why;
    (void)err;
    ret->state = TR_PUSH_DONE;
    ret->linger_at_ns = INT64_MAX; /* what lingers is in the outs, which the engine looks after */
    return TR_OK;
}

/* ---- one push ---- */

int tr_chain_bind(struct tr_chain *c, struct tr_err *err)
{
    for (uint32_t i = 0; i < c->desc->n_outputs; i++) {
        int rc = tr_out_bind(c->outs[i], c->schemas[i], c->variants[i], 0, &c->targets[i], err);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

static int stop(struct tr_chain *c, struct tr_chain_run *run, uint32_t stage, int rc)
{
    const struct tr_chain_stage *s = &c->desc->stages[stage];
    struct tr_err *err = run->err;
    run->failed = stage + 1;
    if (rc == TR_AGAIN || rc == TR_NOT_READY || rc == TR_RETRY || rc == TR_STALE || rc == TR_EOF)
        return run->rc = tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "chain %s, stage %" PRIu32 " (%s %s) answered %s, which it may not%s", c->desc->name, stage, s->kind, s->name, tr_rc_name(rc),
                                    rc == TR_NOT_READY && stage == 0 ? " once it has emitted a record" : "");
    const char *why = err->rc < 0 ? err->msg : rc == TR_NOMEM ? "no memory" : "no reason given";
    return run->rc = tr_err_set(err, rc == TR_REJECT ? TR_FATAL : rc, err->rc < 0 ? err->domain : TR_DOM_ENGINE, "chain %s, stage %" PRIu32 " (%s %s), position %" PRId64 ": %s", c->desc->name, stage, s->kind, s->name,
                                run->payload->position, why);
}

int tr_chain_failed(struct tr_chain *c, struct tr_chain_run *run, uint32_t stage, int rc)
{
    enum tr_error_policy policy = c->desc->stages[stage].policy;
    if (stage == 0) {
        if (rc == TR_NOT_READY && run->out[0] == run->begun)
            return run->rc = rc;
        if (c->def.deserializer)
            policy = c->def.deserializer->policy;
        if (run->payload->flags & (TR_PAYLOAD_CHANGE | TR_PAYLOAD_FRAME))
            policy = TR_POLICY_FAIL;
    }
    if (rc != TR_REJECT || policy == TR_POLICY_FAIL)
        return stop(c, run, stage, rc);
    run->skipped[stage]++;
    if (run->err->rc >= 0)
        tr_err_set(run->err, TR_REJECT, TR_DOM_ENGINE, "%s %s gave no reason", c->desc->stages[stage].kind, c->desc->stages[stage].name);
    if (c->def.on_skip)
        c->def.on_skip(c->def.arg, stage, run->payload, run->err);
    run->err->rc = TR_OK; /* said, and over */
    return TR_OK;
}

int tr_chain_no_output(struct tr_chain *c, struct tr_chain_run *run, uint32_t stage, uint32_t number)
{
    tr_err_set(run->err, TR_REJECT, TR_DOM_ENGINE, "there is no output %" PRIu32 ", only 0 to %" PRIu32, number, c->desc->n_outputs - 1);
    return tr_chain_failed(c, run, stage, TR_REJECT);
}

static void publish(struct tr_chain *c, const struct tr_chain_run *run)
{
    struct tr_chain_counters *to = c->def.counters;
    uint64_t in = run->in;
    for (uint32_t i = 0; i < c->desc->n_stages; i++) {
        uint64_t out = run->out[i];
        if (c->desc->stages[i].passes)
            out = in - run->skipped[i] - (run->failed == i + 1);
        const uint64_t n[] = {in, out, run->skipped[i]};
        for (size_t k = 0; k < TR_ARRAY_LEN(n); k++)
            tr_counter_add(c->cells[i][k], n[k]);
        if (to) {
            atomic_fetch_add_explicit(&to->stage[i].in, in, memory_order_relaxed);
            atomic_fetch_add_explicit(&to->stage[i].out, out, memory_order_relaxed);
            atomic_fetch_add_explicit(&to->stage[i].skipped, run->skipped[i], memory_order_relaxed);
        }
        in = out;
    }
}

int tr_chain_pushed(struct tr_chain *c, struct tr_chain_run *run, uint32_t from, uint32_t next, bool blocked, struct tr_push *ret)
{
    bool waits = run->rc == TR_NOT_READY;
    if (waits && run->in)
        run->in--; /* it comes again */
    if (run->rc >= 0 || waits) {
        int rc = run->rc;
        run->rc = TR_OK;
        if (!c->def.source_transactions && next > from)
            tr_chain_tx_end(c, run, c->desc->n_outputs);
        if (run->rc >= 0)
            run->rc = rc;
        else
            waits = false;
    }
    publish(c, run);
    ret->next = next;
    ret->linger_at_ns = INT64_MAX;
    ret->state = waits ? TR_PUSH_NOT_READY : run->rc < 0 ? TR_PUSH_FAILED : blocked ? TR_PUSH_BLOCKED : TR_PUSH_DONE;
    return ret->state == TR_PUSH_FAILED ? run->rc : TR_OK;
}

uint32_t tr_chain_stats(const struct tr_chain_counters *c, struct tr_stage_stats *v, uint32_t max)
{
    const struct tr_chain_desc *desc = atomic_load(&c->desc);
    for (uint32_t i = 0; desc && i < desc->n_stages && i < max; i++)
        v[i] = (struct tr_stage_stats){.kind = desc->stages[i].kind,
                                       .name = desc->stages[i].name,
                                       .in = atomic_load_explicit(&c->stage[i].in, memory_order_relaxed),
                                       .out = atomic_load_explicit(&c->stage[i].out, memory_order_relaxed),
                                       .skipped = atomic_load_explicit(&c->stage[i].skipped, memory_order_relaxed)};
    return desc ? desc->n_stages : 0;
}

/* ---- rows ---- */

struct tr_chain_row *tr_chain_row_begin(struct tr_chain *c, const struct tr_chain_run *run, uint32_t output)
{
    struct tr_chain_row *r = &c->rows[output];
    memset(r->state, TR_NULL, r->n);
    r->stray = false;
    r->change = (struct tr_change){.op = TR_OP_INSERT,
                                   .schema = c->schemas[output],
                                   .version = (uint64_t)run->payload->position,
                                   .key = run->key,
                                   .commit_us = run->payload->event_time_us,
                                   .after = {r->v, r->state, r->n}};
    return r;
}

int tr_chain_row_put(struct tr_chain *c, const struct tr_chain_run *run, uint32_t output)
{
    struct tr_chain_row *r = &c->rows[output];
    if (r->stray)
        return tr_err_set(run->err, TR_FATAL, TR_DOM_SCHEMA, "a row of table %s.%s was given a column beyond its %" PRIu32, c->schemas[output]->ns, c->schemas[output]->name, r->n);
    if (c->variants[output] != TR_TARGET_APPEND && c->schemas[output]->n_key) {
        tr_buf_clear(&r->key);
        int rc = tr_key_encode(c->schemas[output], &r->change.after, &r->key, run->err);
        if (rc < 0)
            return rc;
        r->change.key = tr_buf_slice(&r->key);
    }
    return tr_out_put(c->outs[output], c->targets[output], &r->change, 1, run->ack, run->payload->position, run->err);
}

void tr_chain_row_u64(struct tr_chain_row *r, uint32_t column, uint64_t v)
{
    struct tr_slice text = {0};
    if (column < r->n) {
        char *end = r->digits[column] + sizeof r->digits[column], *p = end;
        do {
            *--p = (char)('0' + v % 10);
            v /= 10;
        } while (v);
        text = tr_slice_of(p, (size_t)(end - p));
    }
    tr_chain_row_text(r, column, text);
}

void tr_chain_row_i64(struct tr_chain_row *r, uint32_t column, int64_t v)
{
    tr_chain_row_u64(r, column, v < 0 ? -(uint64_t)v : (uint64_t)v);
    if (v < 0 && column < r->n) { /* 19 digits of 24 at most: there is room before them */
        char *p = r->digits[column] + sizeof r->digits[column] - r->v[column].n - 1;
        *p = '-';
        r->v[column] = tr_slice_of(p, r->v[column].n + 1);
    }
}

void tr_chain_row_bool(struct tr_chain_row *r, uint32_t column, bool v)
{
    tr_chain_row_text(r, column, tr_slice_str(v ? "t" : "f"));
}
