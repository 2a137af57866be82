/*
 * capture.c: bringing source, slot, control store and log into agreement, and running capture. Whether it may go on where it stopped is
 * decided in agreement.c.
 */
#include "capture.h"

#include <inttypes.h>
#include <stdio.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "agreement.h"
#include "alloc.h"
#include "check.h"
#include "text.h"

#define CALL_NS (30 * TR_NS_PER_S)
#define SLOT_NS (600 * TR_NS_PER_S) /* making a slot waits for running transactions to end */

struct tr_capture_run {
    struct tr_capture cap;
    struct tr_capture_config cfg;
    struct tr_cdc_session *session;
    struct tr_source *source;
    struct tr_sink *sink;
    struct tr_runtime *pipeline;
    uint64_t from;
};

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

/* ---- the registrar: numbers schemas in the control store ---- */

static int register_schema(struct tr_capture *c, const struct tr_cap_table *t, const struct tr_schema *want, struct tr_schema **ret, struct tr_err *err)
{
    struct tr_ctl_table rec;
    int rc = c->control->ops->table_ensure(c->control, c->source_name, t->ns, t->name, &rec, err);
    struct tr_buf bytes;
    tr_buf_init(&bytes);
    if (rc >= 0)
        rc = tr_schema_encode(want, &bytes);
    uint32_t version = 0;
    if (rc >= 0)
        rc = c->control->ops->schema_put(c->control, rec.table_id, atomic_load(&c->stream_pos), tr_buf_slice(&bytes), want->fingerprint, &version, err);
    tr_buf_done(&bytes);
    return rc < 0 ? rc : tr_schema_renumber(want, rec.table_id, version, ret, err);
}

static void registrar(void *arg)
{
    struct tr_capture *c = arg;
    tr_mutex_lock(&c->lock);
    while (!c->stop) {
        struct tr_cap_table *t;
        for (t = c->tables; t && !t->want; t = t->next)
            ;
        if (!t) {
            tr_cond_wait_until(&c->cond, &c->lock, INT64_MAX);
            continue;
        }
        struct tr_schema *want = t->want, *got = NULL;
        tr_mutex_unlock(&c->lock);
        struct tr_err err = {0};
        int rc = register_schema(c, t, want, &got, &err);
        tr_mutex_lock(&c->lock);
        t->want = tr_schema_unref(want);
        if (rc < 0)
            t->reg_err = err;
        else
            t->got = got;
        tr_waker_wake(c->wake_lane);
    }
    tr_mutex_unlock(&c->lock);
}

/* ---- agreement ---- */

struct tables {
    struct tr_ctl_table *v;
    size_t n, cap;
    bool nomem;
};

static void keep_table(void *arg, const struct tr_ctl_table *t)
{
    struct tables *l = arg;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 32;
        struct tr_ctl_table *v = tr_realloc(l->v, cap * sizeof *v);
        if (!v) {
            l->nomem = true;
            return;
        }
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = *t;
}

static int reset_tables(struct tr_capture_run *r, struct tr_err *err)
{
    struct tr_control *c = r->cap.control;
    struct tables l = {0};
    int rc = c->ops->table_list(c, r->cap.source_name, keep_table, &l, err);
    if (l.nomem)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the list of tables");
    for (size_t i = 0; i < l.n && rc >= 0; i++) {
        l.v[i].state = TR_TABLE_NEW;
        l.v[i].reason[0] = 0;
        rc = c->ops->table_put(c, &l.v[i], err);
    }
    tr_free(l.v);
    return rc;
}

static int make_slot(struct tr_capture_run *r, struct tr_ctl_source *src, struct tr_err *err)
{
    struct tr_control *c = r->cap.control;
    struct tr_cdc_session *s = r->session;
    const char *slot = r->cfg.cdc->ops->slot_name(r->cfg.cdc);
    bool changed;
    int rc = s->ops->publish(s, in(CALL_NS), &changed, err); /* publication first: the slot's backlog decodes under it */
    if (rc >= 0)
        rc = c->ops->slot_put(c, r->cap.source_name, slot, TR_SLOT_CREATING, err);
    if (rc >= 0)
        rc = s->ops->slot_drop(s, in(CALL_NS), err);
    tr_oslog_fields(TR_OSLOG_INFO, "capture", TR_OSLOG_F({"slot", slot}), "making the replication slot; this waits for transactions that are open now");
    uint64_t lsn = 0;
    if (rc >= 0)
        rc = s->ops->slot_create(s, in(SLOT_NS), &lsn, err);
    if (rc >= 0)
        rc = c->ops->source_bind(c, r->cap.source_name, src, err);
    struct tr_log_stats st;
    if (rc >= 0)
        rc = r->cap.log->ops->stats(r->cap.log, 0, &st, err);
    if (rc >= 0)
        rc = c->ops->confirm(c, r->cap.source_name, lsn, st.durable_offset, err);
    if (rc >= 0)
        rc = c->ops->slot_put(c, r->cap.source_name, slot, TR_SLOT_CREATED, err);
    r->from = lsn;
    return rc;
}

static int new_epoch(struct tr_capture_run *r, struct tr_ctl_source *src, const struct tr_cdc_identity *id, const char *why, struct tr_err *err)
{
    bool first = !src->system_id[0];
    if (src->epoch >= 127)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "source %s has been through 127 epochs; start over with a new state directory", r->cap.source_name);
    if (!first)
        tr_oslog_write(TR_OSLOG_WARN, "capture", "a new epoch begins, and every table is snapshotted anew: %s", why);
    /* after the highest epoch the log itself has seen, in case the store is older than the log */
    src->epoch = (uint8_t)(TR_MAX(src->epoch, r->cap.tail.epoch) + 1);
    snprintf(src->system_id, sizeof src->system_id, "%s", id->system_id);
    src->timeline = id->timeline;
    snprintf(src->slot, sizeof src->slot, "%s", r->cfg.cdc->ops->slot_name(r->cfg.cdc));
    src->confirm_lsn = 0;
    int rc = reset_tables(r, err);
    return rc < 0 ? rc : make_slot(r, src, err);
}

static int agree(struct tr_capture_run *r, struct tr_err *err)
{
    struct tr_control *c = r->cap.control;
    struct tr_cdc_session *s = r->session;
    struct tr_cdc_identity id;
    struct tr_ctl_source src;
    struct tr_cdc_slot slot;
    enum tr_slot_state ledger = TR_SLOT_NONE;
    char ledger_slot[64] = "", why[256];
    const char *name = r->cfg.cdc->ops->slot_name(r->cfg.cdc);
    int rc = s->ops->identity(s, in(CALL_NS), &id, err);
    if (rc >= 0)
        rc = c->ops->source_get(c, r->cap.source_name, &src, err);
    if (rc >= 0)
        rc = c->ops->slot_get(c, r->cap.source_name, ledger_slot, &ledger, err);
    if (rc >= 0)
        rc = s->ops->slot_state(s, in(CALL_NS), &slot, err);
    if (rc < 0)
        return rc;
    struct tr_agreement_facts facts = {.slot_name = name, .id = &id, .slot = &slot, .src = &src, .ledger_slot = ledger_slot, .ledger = ledger, .tail_offset = r->cap.tail.offset};
    enum tr_agreement verdict = tr_agreement_decide(&facts, why, sizeof why);
    if (verdict == TR_AGREE_FOREIGN || verdict == TR_AGREE_IN_USE)
        return tr_err_set(err, verdict == TR_AGREE_FOREIGN ? TR_REJECT : TR_RETRY, TR_DOM_CDC, "%s", why);
    if (verdict != TR_AGREE_RESUME) {
        rc = new_epoch(r, &src, &id, why, err);
    } else {
        r->from = src.confirm_lsn;
        bool changed;
        rc = s->ops->publish(s, in(CALL_NS), &changed, err);
    }
    r->cap.epoch = src.epoch;
    return rc;
}

static int chain_new(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n_outs, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    TR_ASSERT(n_outs == 1);
    struct tr_capture_run *r = arg;
    return tr_capture_chain_new(&r->cap, outs[0], ret_ops, ret_chain, err);
}

static int open_run(struct tr_capture_run *r, struct tr_err *err)
{
    struct tr_capture *c = &r->cap;
    int rc = c->log->ops->cut(c->log, 0, err);
    if (rc >= 0)
        rc = tr_log_tail(c->log, 0, &c->tail, err);
    if (rc >= 0)
        rc = c->cdc->ops->session_new(c->cdc, TR_CDC_PRIMARY, &r->session, err);
    if (rc >= 0) {
        rc = r->cfg.opening(r->cfg.arg, r->session) ? agree(r, err) : tr_err_set(err, TR_RETRY, TR_DOM_CDC, "capture is being stopped");
        r->cfg.opening(r->cfg.arg, NULL);
    }
    if (rc < 0)
        return rc;
    atomic_store(&c->stream_pos, 0);
    rc = tr_snapshot_new(c, &r->cfg.snapshot, &c->snapshot, err);
    if (rc >= 0)
        rc = tr_snapshot_recover(c->snapshot, err);
    struct tr_source *stream = NULL;
    if (rc >= 0)
        rc = c->cdc->ops->stream_new(c->cdc, r->from, &stream, err);
    if (rc >= 0) {
        rc = tr_capture_source_new(c, stream, &r->source, err);
        if (rc < 0)
            stream->ops->close(stream, 0);
    }
    if (rc >= 0)
        rc = tr_capture_sink_new(c->log, &r->sink, err);
    if (rc < 0)
        return rc;
    struct tr_runtime_sink sink = {.name = "changelog", .sink = r->sink, .tuning = r->cfg.sink};
    struct tr_runtime_def def = {.name = "capture",
                                 .tuning = r->cfg.pipeline,
                                 .source = r->source,
                                 .sinks = &sink,
                                 .n_sinks = 1,
                                 .chain_new = chain_new,
                                 .arg = r,
                                 .metrics = r->cfg.metrics};
    def.tuning.threads = 1;
    def.tuning.commit_eagerly = true;
    char warning[512] = "";
    rc = tr_runtime_new(&def, &r->pipeline, warning, sizeof warning, err);
    if (*warning)
        tr_oslog_write(TR_OSLOG_WARN, "capture", "%s", warning);
    return rc;
}

int tr_capture_open(const struct tr_capture_config *cfg, struct tr_capture_run **ret, struct tr_err *err)
{
    struct tr_capture_run *r = tr_calloc(1, sizeof *r);
    if (!r)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for capture");
    r->cfg = *cfg;
    struct tr_capture *c = &r->cap;
    c->source_name = cfg->source_name;
    c->control = cfg->control;
    c->log = cfg->log;
    c->cdc = cfg->cdc;
    c->has_changelog = cfg->has_changelog;
    c->arg = cfg->arg;
    snprintf(c->heartbeat_ns, sizeof c->heartbeat_ns, "%s", cfg->heartbeat_ns);
    snprintf(c->heartbeat_name, sizeof c->heartbeat_name, "%s", cfg->heartbeat_name);
    tr_mutex_init(&c->lock);
    tr_map_init(&c->by_name);
    tr_cond_init(&c->cond);
    int rc = open_run(r, err);
    if (rc < 0) {
        tr_capture_free(r);
        return rc;
    }
    *ret = r;
    return TR_OK;
}

int tr_capture_start(struct tr_capture_run *r, struct tr_err *err)
{
    int rc = tr_thread_start(&r->cap.registrar, "tr-registrar", registrar, &r->cap, err);
    if (rc >= 0)
        rc = tr_runtime_start(r->pipeline, err);
    if (rc >= 0)
        rc = tr_snapshot_start(r->cap.snapshot, r->source, err);
    return rc;
}

void tr_capture_stop(struct tr_capture_run *r)
{
    tr_runtime_stop(r->pipeline);
}

bool tr_capture_join(struct tr_capture_run *r, int64_t deadline_ns)
{
    return tr_runtime_join(r->pipeline, deadline_ns);
}

void tr_capture_status(struct tr_capture_run *r, struct tr_runtime_status *ret, uint64_t *ret_stream_pos)
{
    tr_runtime_status(r->pipeline, ret);
    if (ret_stream_pos)
        *ret_stream_pos = atomic_load(&r->cap.stream_pos);
}

int tr_capture_request(struct tr_capture_run *r, const char *ns, const char *name)
{
    return tr_snapshot_request(r->cap.snapshot, ns, name);
}

static void free_tables(struct tr_capture *c)
{
    tr_map_done(&c->by_name);
    while (c->tables) {
        struct tr_cap_table *t = c->tables;
        c->tables = t->next;
        for (uint32_t i = 0; i < t->n_known; i++)
            tr_schema_unref(t->known_v[i].schema);
        tr_schema_unref(t->want);
        tr_schema_unref(t->got);
        for (size_t i = 0; i < t->n_needs; i++)
            tr_free(t->needs[i].key);
        tr_free(t->needs);
        tr_free(t);
    }
}

struct tr_capture_run *tr_capture_free(struct tr_capture_run *r)
{
    if (!r)
        return NULL;
    struct tr_capture *c = &r->cap;
    c->snapshot = tr_snapshot_free(c->snapshot); /* before its lane goes */
    r->pipeline = tr_runtime_free(r->pipeline);
    if (c->registrar) {
        tr_mutex_lock(&c->lock);
        c->stop = true;
        tr_cond_broadcast(&c->cond);
        tr_mutex_unlock(&c->lock);
        tr_thread_join(c->registrar);
    }
    if (r->source)
        r->source->ops->close(r->source, in(TR_NS_PER_S));
    if (r->sink)
        r->sink->ops->close(r->sink);
    if (r->session)
        r->session->ops->free(r->session);
    free_tables(c);
    tr_mutex_done(&c->lock);
    tr_cond_done(&c->cond);
    tr_free(r);
    return NULL;
}
