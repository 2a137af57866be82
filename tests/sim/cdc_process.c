/* cdc_process.c: the life of tailrace in the simulation: started as the composition root does, killed, robbed of its power, stopped. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <tailrace/metric.h>

#include "cdc_world.h"
#include "check.h"
#include "control_memory.h"
#include "failpoint.h"
#include "fs_sim.h"
#include "log.h"
#include "sched_sim.h"
#include "service.h"
#include "thread.h"

void sim_die_at_point(void)
{
    sim_w.died_at_point = true;
    tr_sched_crash();
}

void sim_sleep_at_point(uint64_t ms)
{
    tr_sleep_ns((int64_t)ms * MS);
}

static int serve(struct tr_err *err)
{
    static const char *const all[] = {"public.*"};
    struct tr_log_options lo;
    struct tr_service_sink sinks[SINKS];
    uint64_t token = 0;
    struct tr_metrics *metrics = NULL;
    TR_ASSERT(tr_metrics_new(&metrics, err) >= 0);
    tr_log_options_init(&lo);
    lo.dir = "/state/log";
    lo.segment_bytes = sim_w.segment_bytes;
    lo.fs = sim_w.fs;
    int rc = tr_log_embedded_open(&lo, &sim_w.log, err);
    if (rc < 0)
        return rc;
    rc = sim_w.control->ops->lease_take(sim_w.control, TR_SERVICE_LEASE, "this state directory", TR_SERVICE_LEASE_TTL_MS, &token, err);
    for (int i = 0; i < SINKS; i++) {
        sinks[i] = (struct tr_service_sink){
            .name = i ? "two" : "one", .type = "memory", .sink = tr_mem_sink_spi(sim_w.sinks[i]), .max_inflight_bytes = 256 << 10, .changelog = {all, 1}, .freshness_ns = 10 * SEC};
        tr_sink_tuning_default(&sinks[i].tuning);
        sinks[i].tuning.batch_rows_max = 1 + sim_below(50);
        sinks[i].tuning.linger_ns = (int64_t)sim_below(20) * MS;
        sinks[i].tuning.backoff_min_ns = MS;
        sinks[i].tuning.backoff_max_ns = 500 * MS;
        sinks[i].tuning.chunk_bytes = 512 + sim_below(4096);
        sinks[i].tuning.queue_chunks = 2 + (uint32_t)sim_below(8);
        sinks[i].tuning.batch_bytes_max = 32 << 10;
    }
    struct tr_cdc *cdc = pgsource_new(&sim_w.pg);
    struct tr_service_config cfg = {.source_name = "shop",
                                    .cdc = cdc,
                                    .control = sim_w.control,
                                    .lease_token = token,
                                    .log = sim_w.log,
                                    .metrics = metrics,
                                    .heartbeat_interval_ns = sim_w.heartbeat,
                                    .commit_interval_ns = sim_w.commit_interval,
                                    .drain_timeout_ns = 10 * SEC,
                                    .stalled_fail_after_ns = 120 * SEC,
                                    .capture_inflight_bytes = 1 << 20,
                                    .snapshot_workers = sim_w.workers,
                                    .snapshot_tables_max = sim_w.tables_max,
                                    .chunk_bytes = 1 << 20,
                                    .chunk_rows_max = 1000,
                                    .sinks = sinks,
                                    .n_sinks = SINKS};
    if (rc >= 0)
        rc = tr_service_new(&cfg, &sim_w.service, err);
    if (rc >= 0)
        rc = tr_service_start(sim_w.service, err);
    sim_w.running = rc >= 0;
    while (rc >= 0 && sim_w.wanted && !tr_service_ended(sim_w.service, err))
        tr_sleep_ns(20 * MS);
    if (rc >= 0 && sim_w.wanted)
        rc = err->rc;
    sim_w.running = false;
    sim_w.service = tr_service_free(sim_w.service);
    sim_w.control->ops->lease_release(sim_w.control, TR_SERVICE_LEASE, token, NULL);
    cdc->ops->close(cdc);
    sim_w.log->ops->close(sim_w.log);
    sim_w.log = NULL;
    tr_metrics_free(metrics);
    return rc;
}

static void run_process(void *arg)
{
    struct tr_err err = {0};
    (void)arg;
    int rc = serve(&err);
    if (rc < 0) {
        sim_w.ended = true;
        sim_w.end = err;
    }
    sim_w.done = true;
}

static const char *const points[] = {"snapshot.before_begin", "snapshot.begun",    "snapshot.before_fence", "snapshot.before_chunk", "snapshot.after_read", "snapshot.before_fill",
                                     "snapshot.before_done",  "snapshot.before_note", "apply.before_offset", "apply.before_swap",     "apply.after_swap",    "log.before_sync",
                                     "log.after_sync"};

const char *sim_some_point(void)
{
    return points[sim_below(TR_ARRAY_LEN(points))];
}

void sim_start_process(void)
{
    struct tr_err err = {0};
    tr_failpoint_clear();
    if (sim_w.on[F_points] && sim_chance(1, 2)) {
        char spec[80];
        snprintf(spec, sizeof spec, "%s=kill:%u", sim_w.point && sim_chance(3, 4) ? sim_w.point : sim_some_point(), 1 + (unsigned)sim_below(sim_chance(1, 2) ? 2 : 6));
        TR_ASSERT(tr_failpoint_arm(spec, &err) >= 0);
        sim_trace("armed: %s", spec);
    }
    if (sim_w.on[F_disk_faults] && !sim_w.calm && sim_chance(1, 6)) /* while log and control store are opened */
        sim_disk_fault(60);
    sim_w.wanted = true;
    sim_w.ended = sim_w.done = false;
    sim_w.c->starts++;
    sim_trace("tailrace starts");
    TR_ASSERT(tr_thread_start(&sim_w.process, "process", run_process, NULL, &err) >= 0);
}

/* What the dead process left: the server and the disk see that it is gone. */
static void bury(bool power)
{
    if (power) {
        sim_w.c->power_failures++;
        tr_fs_sim_crash(sim_w.fs);
    } else {
        sim_w.c->kills++;
        tr_fs_sim_kill(sim_w.fs);
    }
    pgwire_hang_up(tr_now_ns() + (sim_chance(1, 2) ? 0 : (int64_t)sim_below(3000) * MS));
    sim_w.process = NULL;
    sim_w.service = NULL;
    sim_w.log = NULL;
    sim_w.running = false;
    sim_trace("tailrace is dead (%s)", power ? "power failure" : "killed");
}

void sim_kill_process(void)
{
    tr_sched_crash();
    bury(sim_chance(1, 2));
}

/* It may have died at an armed point, or ended by itself. */
void sim_look_after_process(void)
{
    if (sim_w.died_at_point) {
        sim_w.died_at_point = false;
        sim_w.c->killed_at_points++;
        bury(sim_chance(1, 2));
    }
    if (sim_w.process && sim_w.ended) {
        sim_w.process = tr_thread_join(sim_w.process);
        if (sim_w.end.rc != TR_RETRY && !(sim_w.end.rc == TR_FATAL && sim_w.broken) && !sim_w.on[F_disk_faults])
            sim_fail("tailrace ended by itself: %s", sim_w.end.msg);
        sim_trace("tailrace ended: %s", sim_w.end.msg);
    }
}

void sim_stop_process(void)
{
    sim_trace("tailrace is asked to stop");
    sim_w.wanted = false;
    sim_w.c->stops++;
    while (!sim_w.done && !sim_w.died_at_point)
        tr_sleep_ns(5 * MS);
    if (sim_w.done)
        sim_w.process = tr_thread_join(sim_w.process);
    sim_look_after_process();
    sim_trace("tailrace has stopped");
}

