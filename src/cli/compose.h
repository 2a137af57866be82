/*
 * compose.h: the composition root: everything a configuration names, made in order and taken down in reverse.
 *
 * Order matters: the log's lock comes before the lease. Who holds the lock is the only process on this state directory, and may take over
 * the lease of one that was killed without waiting for it to expire.
 */
#ifndef TR_COMPOSE_H
#define TR_COMPOSE_H

#include <tailrace/admin.h>

#include "cdc_source.h"
#include "cli.h"
#include "service.h"

struct tr_app {
    struct tr_config *cfg;      /* borrowed */
    struct tr_metrics *metrics;
    struct tr_log *log;
    struct tr_control *control;
    uint64_t lease;
    struct tr_cdc *cdc;
    struct tr_component_env *envs; /* [0] source, then the sinks */
    struct tr_service_sink *sinks;
    struct tr_service *service;
    struct tr_admin *admin;
};

int tr_app_source(struct tr_app *a, struct tr_err *err);           /* the source alone: for check and init */
int tr_app_sinks(struct tr_app *a, struct tr_err *err);
int tr_app_open(struct tr_app *a, struct tr_err *err);             /* everything, not yet running */
void tr_app_close(struct tr_app *a);

#endif
