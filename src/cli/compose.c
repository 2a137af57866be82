#include "compose.h"

#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/metric.h>

#include "alloc.h"
#include "check.h"
#include "control_sqlite.h"
#include "fs.h"
#include "log.h"

static int need_envs(struct tr_app *a, struct tr_err *err)
{
    if (!a->envs)
        a->envs = tr_calloc(a->cfg->n_sinks + 1, sizeof *a->envs);
    return a->envs ? TR_OK : tr_err_set(err, TR_NOMEM, TR_DOM_CLI, "no memory");
}

int tr_app_source(struct tr_app *a, struct tr_err *err)
{
    int rc = need_envs(a, err);
    if (rc < 0)
        return rc;
    a->envs[0] = (struct tr_component_env){.name = a->cfg->source.name, .metrics = a->metrics, .state_dir = a->cfg->root.state_dir};
    return a->cfg->source_type->cdc_new(a->cfg->source_options, &a->envs[0], &a->cdc, err);
}

int tr_app_sinks(struct tr_app *a, struct tr_err *err)
{
    int rc = need_envs(a, err);
    a->sinks = tr_calloc(a->cfg->n_sinks + 1, sizeof *a->sinks);
    if (rc >= 0 && !a->sinks)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_CLI, "no memory");
    for (uint32_t i = 0; i < a->cfg->n_sinks && rc >= 0; i++) {
        const struct tr_config_sink *k = &a->cfg->sinks[i];
        const struct tr_set_sink *c = &k->common;
        a->envs[i + 1] = (struct tr_component_env){
            .name = c->name, .metrics = a->metrics, .state_dir = a->cfg->root.state_dir, .lease_token = a->lease, .hard_delete = c->hard_delete};
        struct tr_service_sink *s = &a->sinks[i];
        *s = (struct tr_service_sink){.name = c->name,
                                      .type = k->type->name,
                                      .max_inflight_bytes = c->max_inflight,
                                      .tables = c->tables,
                                      .exclude = c->exclude,
                                      .changelog = c->changelog,
                                      .freshness_ns = c->freshness_ns};
        tr_sink_tuning_default(&s->tuning);
        s->tuning.batch_rows_max = (uint64_t)c->batch_rows;
        s->tuning.batch_bytes_max = c->batch_size;
        s->tuning.linger_ns = TR_MAX(c->linger_ns, k->type->linger_min_ns);
        s->tuning.pace_ns = k->type->pace_ns;
        s->tuning.write_timeout_ns = c->write_timeout_ns;
        rc = k->type->sink_new(k->options, &a->envs[i + 1], &s->sink, err);
    }
    return rc;
}

static int open_state(struct tr_app *a, struct tr_err *err)
{
    const struct tr_config *c = a->cfg;
    char path[1024];
    int rc = tr_fs_mkdir_p(tr_fs_posix(), c->root.state_dir, err);
    if (rc < 0)
        return rc;
    tr_cli_state_path(c, "log", path, sizeof path);
    struct tr_log_options lo;
    tr_log_options_init(&lo);
    lo.dir = path;
    lo.segment_bytes = c->log.segment_size;
    lo.size_max = c->log.size_max;
    lo.retention_us = c->log.retention_ns / 1000;
    lo.metrics = a->metrics;
    rc = tr_log_embedded_open(&lo, &a->log, err);
    if (rc < 0)
        return rc;
    tr_cli_state_path(c, "control.db", path, sizeof path);
    rc = tr_control_sqlite_open(path, &a->control, err);
    if (rc >= 0) /* the log's lock is ours: whoever held this lease is gone */
        rc = a->control->ops->lease_take(a->control, TR_SERVICE_LEASE, "this state directory", TR_SERVICE_LEASE_TTL_MS, &a->lease, err);
    return rc;
}

static int status(void *arg, struct tr_buf *out)
{
    return tr_service_status(arg, out);
}

static bool live(void *arg, char *ret_reason, size_t cap)
{
    return tr_service_live(arg, ret_reason, cap);
}

static bool ready(void *arg, char *ret_reason, size_t cap)
{
    return tr_service_ready(arg, ret_reason, cap);
}

static int request(void *arg, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    return tr_service_request(arg, actor, kind, scope, table, err);
}

int tr_app_open(struct tr_app *a, struct tr_err *err)
{
    const struct tr_config *c = a->cfg;
    int rc = tr_metrics_new(&a->metrics, err);
    if (rc >= 0)
        rc = open_state(a, err);
    if (rc >= 0)
        rc = tr_app_source(a, err);
    if (rc >= 0)
        rc = tr_app_sinks(a, err);
    if (rc < 0)
        return rc;
    struct tr_service_config s = {.source_name = c->source.name,
                                  .cdc = a->cdc,
                                  .control = a->control,
                                  .lease_token = a->lease,
                                  .log = a->log,
                                  .metrics = a->metrics,
                                  .heartbeat_interval_ns = c->engine.heartbeat_ns,
                                  .commit_interval_ns = c->engine.commit_interval_ns,
                                  .drain_timeout_ns = c->engine.drain_timeout_ns,
                                  .stalled_fail_after_ns = c->engine.stalled_fail_after_ns,
                                  .capture_inflight_bytes = c->engine.max_inflight,
                                  .snapshot_workers = (uint32_t)c->snapshot.workers,
                                  .snapshot_tables_max = (uint32_t)c->snapshot.tables,
                                  .chunk_bytes = c->snapshot.chunk_size,
                                  .chunk_rows_max = (uint64_t)c->snapshot.chunk_rows,
                                  .sinks = a->sinks,
                                  .n_sinks = c->n_sinks};
    rc = tr_service_new(&s, &a->service, err);
    struct tr_admin_ops ops = {a->service, status, live, ready, request};
    if (rc >= 0 && strcmp(c->admin.listen, "off") != 0)
        rc = tr_admin_start(c->admin.listen, a->metrics, &ops, &a->admin, err);
    return rc;
}

void tr_app_close(struct tr_app *a)
{
    if (a->service) /* a drain may take a while: the endpoint answers until it is over */
        tr_service_join(a->service);
    a->admin = tr_admin_free(a->admin);
    a->service = tr_service_free(a->service);
    for (uint32_t i = 0; a->sinks && i < a->cfg->n_sinks; i++)
        if (a->sinks[i].sink)
            a->sinks[i].sink->ops->close(a->sinks[i].sink);
    if (a->cdc)
        a->cdc->ops->close(a->cdc);
    if (a->control) {
        if (a->lease)
            a->control->ops->lease_release(a->control, TR_SERVICE_LEASE, a->lease, NULL);
        a->control->ops->close(a->control);
    }
    if (a->log)
        a->log->ops->close(a->log);
    tr_free(a->sinks);
    tr_free(a->envs);
    tr_metrics_free(a->metrics);
    memset(a, 0, sizeof *a);
}
