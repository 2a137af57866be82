/*
 * pipeline_internal.h: what is built (pipeline.c) and what runs (running.c).
 */
#ifndef TR_PIPELINE_INTERNAL_H
#define TR_PIPELINE_INTERNAL_H

#include <tailrace/admin.h>
#include <tailrace/configfile.h>
#include <tailrace/metric.h>
#include <tailrace/oslog.h>
#include <tailrace/pipeline.h>

#include "settings.h"

struct pl_settings { /* the section `pipeline` */
    int64_t threads, poll_max, commit_interval_ns, drain_timeout_ns, stalled_fail_after_ns, start_timeout_ns;
    uint64_t max_inflight;
    const char *state_dir;
};

struct pl_output {
    const char *name; /* the file's */
    struct tr_sink *sink;
    struct tr_schema *table;
    enum tr_target_variant variant;
    struct tr_sink_tuning tuning;
    struct tr_component_env env;
};

struct tr_pipeline {
    char name[64];
    struct tr_configfile *file;
    struct tr_metrics *metrics;
    struct pl_settings set;
    struct tr_set_admin admin;
    struct tr_component_env source_env;
    struct pl_output outputs[TR_CHAIN_OUTPUTS_MAX];
    uint32_t n_outputs;
};

/* stopped: asked while a sink is waited for; NULL: nobody asks. EOF: it said so. */
int tr_running_begin(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn chain_new, void *arg, bool (*stopped)(void), struct tr_running **ret, struct tr_err *err);

#endif
