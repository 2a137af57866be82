#include "pipeline_internal.h"

#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "proc.h"
#include "runtime_json.h"

/* A stop is noticed between two tries: a peer that says nothing must not hold it up for long, a CREATE TABLE may. */
#define INFLIGHT_PER_SINK (UINT64_C(256) << 20)

enum { PROBE_TIMEOUT_S = 5, BIND_TIMEOUT_S = 30 };

struct tr_running {
    struct tr_pipeline *p;
    struct tr_source *source;
    struct tr_runtime *runtime;
    bool started;
    struct tr_admin *admin;
    tr_chain_new_fn chain_new;
    void *arg;
    struct tr_chain_counters counters;
    struct tr_oslog_limit skips;
};

/* ---- before a record is read ---- */

/* At least a second, at most so many, and no longer than there is. */
static int64_t deadline(int64_t until_ns, int64_t most_s)
{
    int64_t now = tr_now_ns();
    return TR_MAX(now + TR_NS_PER_S, TR_MIN(until_ns, now + most_s * TR_NS_PER_S));
}

/* err->msg says why in any case. */
static int ready(struct pl_output *o, int64_t until_ns, struct tr_err *err)
{
    struct tr_target *t = NULL;
    *err = (struct tr_err){0};
    int rc = o->sink->ops->probe ? o->sink->ops->probe(o->sink, deadline(until_ns, PROBE_TIMEOUT_S), err) : TR_OK;
    if (rc >= 0)
        rc = o->sink->ops->bind(o->sink, o->table, o->variant, 0, deadline(until_ns, BIND_TIMEOUT_S), &t, err);
    if (rc < 0 && !err->msg[0])
        tr_err_set(err, rc, TR_DOM_SINK, "it answered %s and gave no reason", tr_rc_name(rc));
    return rc;
}

/* Until it answers, and its table fits. */
static int await(struct tr_pipeline *p, struct pl_output *o, int64_t until_ns, bool (*stopped)(void), struct tr_err *err)
{
    int64_t pause_ns = 100 * TR_NS_PER_MS;
    bool told = false;
    for (;;) {
        int rc = ready(o, until_ns, err);
        if (rc >= 0)
            return TR_OK;
        if (stopped && stopped())
            return TR_EOF;
        if (rc != TR_RETRY && rc != TR_STALE && rc != TR_NOMEM && rc != TR_NOT_READY)
            return tr_err_set(err, rc, err->domain, "sink %s: %s", o->name, err->msg);
        if (tr_now_ns() + pause_ns > until_ns)
            return tr_err_set(err, rc, err->domain, "sink %s could not be reached within pipeline.start_timeout: %s", o->name, err->msg);
        if (!told)
            tr_oslog_err(TR_OSLOG_WARN, "pipeline", TR_OSLOG_F({"pipeline", p->name}, {"sink", o->name}), err);
        told = true;
        tr_sleep_ns(pause_ns);
        pause_ns = TR_MIN(2 * pause_ns, TR_NS_PER_S);
    }
}

/* ---- what the runtime and the endpoint ask ---- */

static void on_skip(void *arg, uint32_t stage, const struct tr_payload *payload, const struct tr_err *err)
{
    struct tr_running *r = arg;
    uint64_t more = 0;
    if (!tr_oslog_allow(&r->skips, 10 * TR_NS_PER_S, &more))
        return;
    char at[24], where[24];
    snprintf(at, sizeof at, "%lld", (long long)payload->position);
    snprintf(where, sizeof where, "%u", stage);
    tr_oslog_fields(TR_OSLOG_WARN, "pipeline", TR_OSLOG_F({"pipeline", r->p->name}, {"stage", where}, {"position", at}), "a record was skipped (and %llu before it): %s", (unsigned long long)more, err->msg);
}

static int chain_new(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n_outs, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    struct tr_running *r = arg;
    struct tr_schema *schemas[TR_CHAIN_OUTPUTS_MAX];
    enum tr_target_variant variants[TR_CHAIN_OUTPUTS_MAX];
    for (uint32_t i = 0; i < n_outs; i++) {
        schemas[i] = r->p->outputs[i].table;
        variants[i] = r->p->outputs[i].variant;
    }
    const struct tr_chain_def def = {.outs = outs,
                                     .n_outs = n_outs,
                                     .schemas = schemas,
                                     .variants = variants,
                                     .on_skip = on_skip,
                                     .arg = r,
                                     .counters = &r->counters,
                                     .metrics = r->p->metrics,
                                     .pipeline = r->p->name};
    struct tr_err said = {0};
    int rc = r->chain_new(r->arg, &def, thread, ret_ops, ret_chain, &said);
    if (rc < 0)
        tr_err_set(err, rc, said.domain, "pipeline %s: the chain of thread %u cannot be made: %s", r->p->name, thread, said.msg[0] ? said.msg : tr_rc_name(rc));
    return rc;
}

static const char *const state_names[] = {[TR_RT_STARTING] = "starting", [TR_RT_RUNNING] = "running", [TR_RT_DRAINING] = "draining", [TR_RT_STOPPED] = "stopped", [TR_RT_FAILED] = "failed"};

static int status_page(void *arg, struct tr_buf *out)
{
    struct tr_running *r = arg;
    struct tr_runtime_status st;
    struct tr_stage_stats stages[TR_CHAIN_STAGES_MAX];
    struct tr_json j = {.out = out};
    uint32_t n = tr_chain_stats(&r->counters, stages, TR_CHAIN_STAGES_MAX);
    tr_runtime_status(r->runtime, &st);
    tr_json_open(&j, NULL, '{');
    tr_json_str(&j, "pipeline", r->p->name);
    tr_json_str(&j, "state", state_names[st.state]);
    tr_json_str(&j, "error", st.error.rc < 0 ? st.error.msg : "");
    if (st.error.rc < 0)
        tr_json_num(&j, "error_since_us", st.error_since_us);
    tr_json_num(&j, "rss_bytes", (int64_t)tr_proc_rss_bytes());
    tr_runtime_status_json(&st, &j);
    tr_json_open(&j, "stages", '[');
    for (uint32_t i = 0; i < n; i++) {
        tr_json_open(&j, NULL, '{');
        tr_json_str(&j, "kind", stages[i].kind);
        tr_json_str(&j, "name", stages[i].name);
        tr_json_num(&j, "in", (int64_t)stages[i].in);
        tr_json_num(&j, "out", (int64_t)stages[i].out);
        tr_json_num(&j, "skipped", (int64_t)stages[i].skipped);
        tr_json_close(&j, '}');
    }
    tr_json_close(&j, ']');
    tr_json_close(&j, '}');
    return j.rc < 0 ? j.rc : tr_buf_append_str(out, "\n");
}

static bool live(void *arg, char *ret_reason, size_t cap)
{
    struct tr_running *r = arg;
    struct tr_runtime_status st;
    tr_runtime_status(r->runtime, &st);
    int64_t quiet = tr_now_ns() - st.poll_heartbeat_ns;
    if (st.state == TR_RT_FAILED)
        snprintf(ret_reason, cap, "failed: %s", st.error.msg);
    else if (st.state == TR_RT_RUNNING && st.poll_heartbeat_ns && quiet > 30 * TR_NS_PER_S)
        snprintf(ret_reason, cap, "the pipeline threads have not turned for %llds", (long long)(quiet / TR_NS_PER_S));
    else if (st.watermark_stalled_ns > 30 * TR_NS_PER_S)
        snprintf(ret_reason, cap, "a failed batch has held the position for %llds", (long long)(st.watermark_stalled_ns / TR_NS_PER_S));
    else
        return true;
    return false;
}

static bool ready_page(void *arg, char *ret_reason, size_t cap)
{
    struct tr_running *r = arg;
    struct tr_runtime_status st;
    tr_runtime_status(r->runtime, &st);
    if (st.state != TR_RT_RUNNING)
        snprintf(ret_reason, cap, "%s", state_names[st.state]);
    else if (!st.lanes_assigned)
        snprintf(ret_reason, cap, "the source has assigned nothing yet%s%s", st.error.rc < 0 ? ": " : "", st.error.rc < 0 ? st.error.msg : "");
    else if (!st.sinks_probed)
        snprintf(ret_reason, cap, "not every sink has answered%s%s", st.error.rc < 0 ? ": " : "", st.error.rc < 0 ? st.error.msg : "");
    else
        return true;
    return false;
}

static int request(void *arg, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    (void)arg;
    (void)actor;
    (void)scope;
    (void)table;
    return tr_err_set(err, TR_REJECT, TR_DOM_CLI, "a pipeline takes no request, so not %s: it is stopped by SIGTERM", kind);
}

/* ---- life ---- */

static int make(struct tr_running *r, struct tr_err *err)
{
    struct tr_pipeline *p = r->p;
    struct tr_runtime_sink sinks[TR_CHAIN_OUTPUTS_MAX];
    char warning[600];
    uint64_t max_inflight = p->set.max_inflight ? p->set.max_inflight : p->n_outputs * INFLIGHT_PER_SINK;
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        struct tr_sink_tuning *t = &p->outputs[i].tuning;
        t->record_bytes_max = TR_MIN(t->record_bytes_max, max_inflight);
        sinks[i] = (struct tr_runtime_sink){.name = p->outputs[i].name, .sink = p->outputs[i].sink, .tuning = *t};
    }
    struct tr_runtime_def def = {.name = p->name, .source = r->source, .sinks = sinks, .n_sinks = p->n_outputs, .chain_new = chain_new, .arg = r, .metrics = p->metrics};
    tr_runtime_tuning_default(&def.tuning);
    def.tuning.threads = (uint32_t)p->set.threads;
    def.tuning.poll_max = (uint32_t)p->set.poll_max;
    def.tuning.max_inflight_bytes = max_inflight;
    def.tuning.commit_interval_ns = p->set.commit_interval_ns;
    def.tuning.drain_timeout_ns = p->set.drain_timeout_ns;
    def.tuning.stalled_fail_after_ns = p->set.stalled_fail_after_ns;
    int rc = tr_runtime_new(&def, &r->runtime, warning, sizeof warning, err);
    if (rc >= 0 && warning[0])
        tr_oslog_fields(TR_OSLOG_WARN, "pipeline", TR_OSLOG_F({"pipeline", p->name}), "%s", warning);
    return rc;
}

/* Ends and frees what was made of pipeline and source, but not those. */
static struct tr_running *undo(struct tr_running *r)
{
    if (r->started) {
        tr_runtime_stop(r->runtime);
        tr_runtime_join(r->runtime, INT64_MAX);
    }
    r->admin = tr_admin_free(r->admin); /* before what it asks */
    r->runtime = tr_runtime_free(r->runtime);
    tr_free(r);
    return NULL;
}

int tr_running_begin(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn make_chain, void *arg, bool (*stopped)(void), struct tr_running **ret, struct tr_err *err)
{
    struct tr_pipeline *d = *p;
    if (!d || !*source || !make_chain)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "a pipeline is started with a source and a chain, and once: pipeline, source or chain_new is NULL");
    int rc = d->n_outputs ? tr_configfile_finish(d->file, err) : tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s has no sink: tr_pipeline_sink gives it one", d->name);
    int64_t until = tr_deadline_ns(tr_now_ns(), d->set.start_timeout_ns);
    for (uint32_t i = 0; i < d->n_outputs && rc >= 0; i++)
        rc = await(d, &d->outputs[i], until, stopped, err);
    if (rc < 0)
        return rc;
    struct tr_running *r = tr_calloc(1, sizeof *r);
    if (!r)
        return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for pipeline %s", d->name);
    *r = (struct tr_running){.p = d, .source = *source, .chain_new = make_chain, .arg = arg};
    rc = make(r, err);
    const struct tr_admin_ops ops = {r, status_page, live, ready_page, request};
    if (rc >= 0 && strcmp(d->admin.listen, "off") != 0)
        rc = tr_admin_start(d->admin.listen, d->metrics, &ops, &r->admin, err);
    if (rc >= 0)
        rc = tr_runtime_start(r->runtime, err);
    if (rc < 0) {
        undo(r);
        return rc;
    }
    r->started = true;
    *p = NULL;
    *source = NULL;
    *ret = r;
    return TR_OK;
}

int tr_pipeline_start(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn make_chain, void *arg, struct tr_running **ret, struct tr_err *err)
{
    struct tr_err unasked;
    return tr_running_begin(p, source, make_chain, arg, NULL, ret, err ? err : &unasked);
}

int tr_pipeline_run(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn make_chain, void *arg, struct tr_err *err)
{
    struct tr_running *r = NULL;
    struct tr_err unasked;
    if (!err)
        err = &unasked;
    tr_proc_catch_stop();
    int rc = tr_running_begin(p, source, make_chain, arg, tr_proc_stop_asked, &r, err);
    if (rc == TR_EOF) { /* asked to end before it began: as after any end */
        (*source)->ops->close(*source, 0);
        *source = NULL;
        *p = tr_pipeline_free(*p);
        return TR_OK;
    }
    if (rc < 0)
        return rc;
    while (!tr_running_join(r, tr_now_ns() + 50 * TR_NS_PER_MS))
        if (tr_proc_stop_asked())
            tr_running_stop(r);
    struct tr_runtime_status st;
    tr_running_status(r, &st);
    if (st.state == TR_RT_FAILED) {
        *err = st.error;
        rc = TR_FATAL;
    }
    tr_running_free(r);
    return rc;
}

void tr_running_stop(struct tr_running *r)
{
    tr_runtime_stop(r->runtime);
}

bool tr_running_join(struct tr_running *r, int64_t deadline_ns)
{
    return tr_runtime_join(r->runtime, deadline_ns);
}

void tr_running_status(const struct tr_running *r, struct tr_runtime_status *ret)
{
    tr_runtime_status(r->runtime, ret);
}

uint32_t tr_running_stages(const struct tr_running *r, struct tr_stage_stats *v, uint32_t max)
{
    return tr_chain_stats(&r->counters, v, max);
}

int tr_running_port(const struct tr_running *r)
{
    return r->admin ? tr_admin_port(r->admin) : 0;
}

struct tr_running *tr_running_free(struct tr_running *r)
{
    if (!r)
        return NULL;
    struct tr_pipeline *p = r->p;
    struct tr_source *source = r->source;
    int64_t until = tr_deadline_ns(tr_now_ns(), p->set.drain_timeout_ns);
    undo(r);
    source->ops->close(source, until);
    tr_pipeline_free(p); /* sinks, metrics, file */
    return NULL;
}
