/*
 * cdc_sim.c: the whole of tailrace under one seeded scheduler. Everything between a source's wire and a sink's contract is the shipped
 * code: stream and decoder, capture, snapshot, change log, engine, apply, service, with all their threads (os/sim/sched_sim.h), on a disk in
 * memory that crashes (os/sim/fs_sim.h), the control store in memory, a model of PostgreSQL (pgmodel.h) and two memory sinks.
 *
 *   cdc_sim [--seeds N] [--from S] [--steps N] [--jobs N] [--trace] [--shrink]
 *
 * A seed chooses a world (what is likely, which faults there are) and then, step by step, what happens in it. In the end the faults stop, all
 * transactions end, and what must be true is looked at.
 *
 * Always:     nothing is confirmed to the server that is not in the durable log (pgwire.c's feedback, checked when tailrace has died);
 *             a mirror whose tables are live shows the source as it was after some commit, all tables of it after the same
 * In the end: tailrace comes to rest with all tables live, within a bounded time; both mirrors equal the source; each committed
 *             change of a published table stands in the log once, in commit order, and in the changelogs
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "control_memory.h"
#include "failpoint.h"
#include "fs_sim.h"
#include "log.h"
#include "memory.h"
#include "metric.h"
#include "oslog.h"
#include "pgmodel.h"
#include "random.h"
#include "sched_sim.h"
#include "service.h"
#include "thread.h"

#define MS TR_NS_PER_MS
#define SEC TR_NS_PER_S
enum { SINKS = 2, OPEN_TX_MAX = 4, BATCH = 32, HISTORY_MAX = 4096, FAILURE_CHARS = 1024 };

/* What happened, over all seeds; printed. */
#define EVENTS(X) X(starts) X(kills) X(power_failures) X(killed_at_points) X(stops) X(disk_full) X(sink_retries) X(sink_applied_retries) X(sink_delays) X(resnapshots) X(looks) X(clock_steps) X(network_cuts)

struct counts {
#define X(n) uint64_t n;
    EVENTS(X)
#undef X
    struct pg_counts pg;
    uint64_t switches, seeds, virtual_ms;
};

/* Between the processes of one run. */
struct shared {
    _Atomic uint64_t next;
    _Atomic bool failed;
    uint64_t failed_seed;
    char failure[FAILURE_CHARS];
    struct counts counts[16];
};

/* What a seed has; --shrink takes them away one by one. */
#define FEATURES(X) X(tailrace_crashes) X(source_crashes) X(async) X(hang) X(replica) X(truncate) X(unique_waits) X(streaming) X(sink_faults) X(disk_faults) X(resnapshot) X(slot_loss) X(failover) X(network) X(points) X(clock)

enum feature {
#define X(n) F_##n,
    FEATURES(X)
#undef X
    FEATURES_COUNT
};
static const char *const feature_names[] = {
#define X(n) #n,
    FEATURES(X)
#undef X
};

struct history {
    uint64_t hash[PG_TABLES], both;
};

struct world {
    uint64_t seed;
    uint32_t steps;
    struct tr_prng prng;
    struct counts *c;
    bool trace;
    bool on[FEATURES_COUNT];
    struct pgmodel pg;
    struct tr_fs *fs;
    struct tr_control *control;
    struct tr_mem_sink *sinks[SINKS];
    int64_t commit_interval, heartbeat;
    uint32_t workers, tables_max;
    uint64_t segment_bytes;
    /* the process */
    struct tr_thread *process;
    bool wanted, running, done, died_at_point;
    struct tr_service *service;
    struct tr_log *log;
    struct tr_err end;
    uint64_t log_at_start;
    bool was_live[SINKS][PG_TABLES];
    bool ended;
    /* the source's past, as the log must have it */
    struct history history[HISTORY_MAX];
    uint32_t n_history, history_rec;
    struct pg_row past[PG_TABLES][PG_KEYS + 1];
    bool broken; /* continuity was lost once: mirrors lack something until they are made anew */
    uint32_t move_bias, spread;
    int open[OPEN_TX_MAX];
    uint32_t n_open;
    char failure[FAILURE_CHARS];
};

static struct world w;
static struct shared *shared;
static char failing_features[512];

static _Noreturn void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void dump(void);

static _Noreturn void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w.failure, sizeof w.failure, fmt, ap);
    va_end(ap);
    if (!atomic_exchange(&shared->failed, true)) {
        shared->failed_seed = w.seed;
        memcpy(shared->failure, w.failure, sizeof shared->failure);
    }
    if (w.trace) {
        fprintf(stderr, "FAILED: %s\n", w.failure);
        dump();
    }
    _exit(1);
}

static void open_log_to_read(void)
{
    struct tr_log_options lo;
    tr_log_options_init(&lo);
    lo.dir = "/state/log";
    lo.segment_bytes = w.segment_bytes;
    lo.fs = w.fs;
    lo.sync_thread = false;
    struct tr_err err = {0};
    if (tr_log_embedded_open(&lo, &w.log, &err) < 0 && !w.trace)
        fail("the log cannot be read: %s", err.msg);
}

static void dump_written(void *arg, const struct tr_mem_row *r)
{
    fprintf(stderr, "sink %d batch %" PRIu64 " table %u variant %d %s version %" PRIu64 " flags %x key %.*s", *(const int *)arg, r->batch, r->table_id, r->variant, tr_op_name(r->op), r->version, r->flags,
            (int)r->key.n, (const char *)r->key.p);
    for (uint32_t i = 0; i < r->row.n; i++)
        fprintf(stderr, " %d:%.*s", r->row.state[i], r->row.state[i] == TR_PRESENT ? (int)r->row.v[i].n : 0, (const char *)r->row.v[i].p);
    fprintf(stderr, "\n");
}

static void dump_row(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    const int *who = arg;
    fprintf(stderr, "mirror %d table %d key %.*s version %" PRIu64 "%s:", who[0], who[1], (int)key.n, (const char *)key.p, version, deleted ? " deleted" : "");
    for (uint32_t i = 0; i < row->n; i++)
        fprintf(stderr, " %d:%.*s", row->state[i], row->state[i] == TR_PRESENT ? (int)row->v[i].n : 0, (const char *)row->v[i].p);
    fprintf(stderr, "\n");
}

/* For --trace: the WAL, and the log. */
static void dump(void)
{
    static const char *const kinds[] = {"INSERT", "UPDATE", "UPDATE t", "MOVE", "DELETE", "TRUNCATE", "BEAT"}, *const types[] = {"", "COMMIT", "abort", "sub abort", "other", "restart"};
    struct tr_log_reader *r = NULL;
    struct tr_frame f[64];
    int n;
    if (!w.trace)
        return;
    for (uint32_t i = 0; i < w.pg.n_wal; i++) {
        const struct pg_rec *c = &w.pg.wal[i];
        if (c->type != REC_CHANGE)
            fprintf(stderr, "wal %u %" PRIx64 " T%d %s\n", i, pg_lsn(i), c->tx, types[c->type]);
        else
            fprintf(stderr, "wal %u %" PRIx64 " T%d (top %d) xid %" PRIu64 " %s t%u %u -> %u (%u, %s%u)%s\n", i, pg_lsn(i), c->tx, pgmodel_top(&w.pg, c->tx), c->xid, kinds[c->kind], c->table, c->k1, c->k2,
                    c->a, c->unchanged ? "unchanged " : "", c->t, pgmodel_is_published(&w.pg, i) ? "" : " unpublished");
    }
    if (!w.log)
        open_log_to_read();
    if (!w.log || w.log->ops->reader_new(w.log, 0, 0, &r, NULL) < 0)
        return;
    while ((n = tr_log_reader_poll(r, f, TR_ARRAY_LEN(f), NULL)) > 0)
        for (int i = 0; i < n; i++)
            fprintf(stderr, "log %" PRIu64 " %s table %u snapshot %" PRIu64 " version %" PRIu64 " commit %" PRIx64 "/%u xid %" PRIu64 " H %" PRIx64 " flags %x key %.*s old %.*s image %.*s\n", f[i].offset,
                    tr_op_name(f[i].change.op), f[i].table_id, f[i].change.snapshot_id, f[i].change.version, f[i].change.commit_lsn, f[i].change.ordinal, f[i].change.xid, f[i].change.end_lsn, f[i].change.flags, (int)f[i].change.key.n,
                    (const char *)f[i].change.key.p, (int)f[i].change.old_key.n, (const char *)f[i].change.old_key.p, (int)f[i].image.n, (const char *)f[i].image.p);
    r->ops->free(r);
    for (int k = 0; k < SINKS; k++)
        tr_mem_each_row(w.sinks[k], dump_written, &k);
    for (int k = 0; k < SINKS; k++)
        for (uint32_t t = 1; t < 5; t++)
            tr_mem_read_back(w.sinks[k], t, TR_TARGET_MIRROR, dump_row, &(int[]){k, (int)t});
}

static void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void trace(const char *fmt, ...)
{
    if (!w.trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%10.3f  ", (double)(tr_now_ns() - SEC) / 1e9);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

static uint64_t below(uint64_t n)
{
    return tr_prng_below(&w.prng, n);
}

static bool chance(uint64_t num, uint64_t den)
{
    return tr_prng_chance(&w.prng, num, den);
}

static void stuck(const char *who)
{
    fail("all threads wait for ever:%s", who);
}

/* ---- states of tables, as the control store has them ---- */

struct states {
    uint8_t sink[SINKS][PG_TABLES], capture[PG_TABLES];
    uint32_t id[PG_TABLES];
    char reason[160];
    int n;
};

static void see_capture(void *arg, const struct tr_ctl_table *t)
{
    struct states *s = arg;
    if (strcmp(t->ns, "public") != 0)
        return;
    uint32_t i = (uint32_t)(t->name[1] - '0');
    s->capture[i] = t->state;
    s->id[i] = t->table_id;
    if (t->state != TR_TABLE_LIVE)
        snprintf(s->reason, sizeof s->reason, "%s: %.80s", t->name, t->reason);
}

static void see_sink(void *arg, const struct tr_ctl_sink_table *t)
{
    struct states *s = arg;
    for (int i = 0; i < PG_TABLES; i++)
        if (s->id[i] && s->id[i] == t->table_id)
            s->sink[s->n][i] = t->state;
}

static void look_at_states(struct states *s)
{
    memset(s, 0, sizeof *s);
    w.control->ops->table_list(w.control, "shop", see_capture, s, NULL);
    for (s->n = 0; s->n < SINKS; s->n++)
        w.control->ops->sink_table_list(w.control, s->n ? "two" : "one", see_sink, s, NULL);
}

/* ---- the process ---- */

static void die_at_point(void)
{
    w.died_at_point = true;
    tr_sched_crash();
}

static void sleep_at_point(uint64_t ms)
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
    lo.segment_bytes = w.segment_bytes;
    lo.fs = w.fs;
    int rc = tr_log_embedded_open(&lo, &w.log, err);
    if (rc < 0)
        return rc;
    struct tr_log_stats stats;
    struct states states;
    TR_ASSERT(w.log->ops->stats(w.log, 0, &stats, err) >= 0);
    w.log_at_start = stats.durable_offset;
    look_at_states(&states);
    for (int k = 0; k < SINKS; k++)
        for (int t = 0; t < PG_TABLES; t++)
            w.was_live[k][t] = states.sink[k][t] == TR_ST_LIVE;
    rc = w.control->ops->lease_take(w.control, TR_SERVICE_LEASE, "this state directory", TR_SERVICE_LEASE_TTL_MS, &token, err);
    for (int i = 0; i < SINKS; i++) {
        sinks[i] = (struct tr_service_sink){
            .name = i ? "two" : "one", .type = "memory", .sink = tr_mem_sink_spi(w.sinks[i]), .max_inflight_bytes = 256 << 10, .changelog = {all, 1}, .freshness_ns = 10 * SEC};
        tr_sink_tuning_default(&sinks[i].tuning);
        sinks[i].tuning.batch_rows_max = 1 + below(50);
        sinks[i].tuning.linger_ns = (int64_t)below(20) * MS;
        sinks[i].tuning.backoff_min_ns = MS;
        sinks[i].tuning.backoff_max_ns = 500 * MS;
        sinks[i].tuning.chunk_bytes = 512 + below(4096);
        sinks[i].tuning.queue_chunks = 2 + (uint32_t)below(8);
        sinks[i].tuning.batch_bytes_max = 32 << 10;
    }
    struct tr_cdc *cdc = pgsource_new(&w.pg);
    struct tr_service_config cfg = {.source_name = "shop",
                                    .cdc = cdc,
                                    .control = w.control,
                                    .lease_token = token,
                                    .log = w.log,
                                    .metrics = metrics,
                                    .heartbeat_interval_ns = w.heartbeat,
                                    .commit_interval_ns = w.commit_interval,
                                    .drain_timeout_ns = 10 * SEC,
                                    .stalled_fail_after_ns = 120 * SEC,
                                    .capture_inflight_bytes = 1 << 20,
                                    .snapshot_workers = w.workers,
                                    .snapshot_tables_max = w.tables_max,
                                    .chunk_bytes = 1 << 20,
                                    .chunk_rows_max = 1000,
                                    .sinks = sinks,
                                    .n_sinks = SINKS};
    if (rc >= 0)
        rc = tr_service_new(&cfg, &w.service, err);
    if (rc >= 0)
        rc = tr_service_start(w.service, err);
    w.running = rc >= 0;
    while (rc >= 0 && w.wanted && !tr_service_ended(w.service, err))
        tr_sleep_ns(20 * MS);
    if (rc >= 0 && w.wanted)
        rc = err->rc;
    w.running = false;
    w.service = tr_service_free(w.service);
    w.control->ops->lease_release(w.control, TR_SERVICE_LEASE, token, NULL);
    cdc->ops->close(cdc);
    w.log->ops->close(w.log);
    w.log = NULL;
    tr_metrics_free(metrics);
    return rc;
}

static void run_process(void *arg)
{
    struct tr_err err = {0};
    (void)arg;
    int rc = serve(&err);
    if (rc < 0) {
        w.ended = true;
        w.end = err;
    }
    w.done = true;
}

static const char *const points[] = {"snapshot.before_begin", "snapshot.begun",    "snapshot.before_fence", "snapshot.before_chunk", "snapshot.after_read", "snapshot.before_fill",
                                     "snapshot.before_done",  "snapshot.before_note", "apply.before_offset", "apply.before_swap",     "apply.after_swap",    "log.before_sync",
                                     "log.after_sync"};

static void start_process(void)
{
    struct tr_err err = {0};
    tr_failpoint_clear();
    if (w.on[F_points] && chance(1, 2)) {
        char spec[80];
        snprintf(spec, sizeof spec, "%s=kill:%u", points[below(TR_ARRAY_LEN(points))], 1 + (unsigned)below(6));
        TR_ASSERT(tr_failpoint_arm(spec, &err) >= 0);
        trace("armed: %s", spec);
    }
    w.wanted = true;
    w.ended = w.done = false;
    w.c->starts++;
    trace("tailrace starts");
    TR_ASSERT(tr_thread_start(&w.process, "process", run_process, NULL, &err) >= 0);
}

/* What the dead process left: the server and the disk see that it is gone. */
static void bury(bool power)
{
    if (power) {
        w.c->power_failures++;
        tr_fs_sim_crash(w.fs);
    } else {
        w.c->kills++;
        tr_fs_sim_kill(w.fs);
    }
    pgwire_hang_up(tr_now_ns() + (chance(1, 2) ? 0 : (int64_t)below(3000) * MS));
    w.process = NULL;
    w.service = NULL;
    w.log = NULL;
    w.running = false;
    trace("tailrace is dead (%s)", power ? "power failure" : "killed");
}

static void kill_process(void)
{
    tr_sched_crash();
    bury(chance(1, 2));
}

/* It may have died at an armed point, or ended by itself. */
static void look_after_process(void)
{
    if (w.died_at_point) {
        w.died_at_point = false;
        w.c->killed_at_points++;
        bury(chance(1, 2));
    }
    if (w.process && w.ended) {
        w.process = tr_thread_join(w.process);
        if (w.end.rc != TR_RETRY && !(w.end.rc == TR_FATAL && w.broken) && !w.on[F_disk_faults])
            fail("tailrace ended by itself: %s", w.end.msg);
        trace("tailrace ended: %s", w.end.msg);
    }
}

static void stop_process(void)
{
    trace("tailrace is asked to stop");
    w.wanted = false;
    w.c->stops++;
    while (!w.done && !w.died_at_point)
        tr_sleep_ns(5 * MS);
    if (w.done)
        w.process = tr_thread_join(w.process);
    look_after_process();
    trace("tailrace has stopped");
}

/* ---- the past ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
    return tr_splitmix64(&h);
}

static uint64_t hash_table(uint32_t table, const struct pg_row *rows)
{
    uint64_t h = table + 1;
    for (uint32_t k = 1; k <= PG_KEYS; k++)
        if (rows[k].there)
            h = mix(mix(mix(h, k), rows[k].a), rows[k].t);
    return h;
}

static void remember(void)
{
    TR_ASSERT(w.n_history < HISTORY_MAX);
    struct history *h = &w.history[w.n_history++];
    h->both = 0;
    for (uint32_t t = 0; t < PG_TABLES; t++) {
        h->hash[t] = hash_table(t, w.past[t]);
        h->both = mix(h->both, h->hash[t]);
    }
}

static void past_change(uint32_t rec)
{
    const struct pg_rec *r = &w.pg.wal[rec];
    if (r->kind == K_BEAT)
        return;
    struct pg_row *rows = w.past[r->table];
    if (r->kind == K_TRUNCATE)
        memset(rows, 0, sizeof w.past[0]);
    else if (r->kind == K_MOVE || r->kind == K_DELETE)
        rows[r->k1].there = false;
    if (r->kind != K_TRUNCATE && r->kind != K_DELETE)
        rows[r->k2] = (struct pg_row){true, r->a, r->t};
}

static void begin_past(void)
{
    memset(w.past, 0, sizeof w.past);
    for (uint32_t i = 0; i < w.pg.n_ver; i++)
        if (w.pg.ver[i].xmin == 0)
            w.past[w.pg.ver[i].table][w.pg.ver[i].key] = (struct pg_row){true, w.pg.ver[i].a, w.pg.ver[i].t};
    w.history_rec = 0;
    remember();
}

static bool survives(int tx)
{
    return w.pg.tx[tx].state != TX_ABORTED;
}

/* Follows the commits that are flushed. */
static void follow(void)
{
    for (; w.history_rec < w.pg.flushed; w.history_rec++) {
        const struct pg_rec *c = &w.pg.wal[w.history_rec];
        if (c->type != REC_COMMIT)
            continue;
        for (uint32_t i = 0; i < w.history_rec; i++)
            if (w.pg.wal[i].type == REC_CHANGE && pgmodel_top(&w.pg, w.pg.wal[i].tx) == c->tx && survives(w.pg.wal[i].tx))
                past_change(i);
        remember();
    }
}

/* ---- what the mirrors show ---- */

struct seen {
    struct pg_row rows[PG_KEYS + 1];
    bool odd;
};

static uint32_t number(struct tr_slice v)
{
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)v.n, (const char *)v.p);
    return (uint32_t)strtoul(text, NULL, 10);
}

static void see(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    struct seen *s = arg;
    (void)key;
    (void)version;
    if (deleted)
        return;
    uint32_t k = number(row->v[0]);
    if (k < 1 || k > PG_KEYS || row->state[1] != TR_PRESENT || row->state[2] != TR_PRESENT) {
        s->odd = true;
        return;
    }
    s->rows[k] = (struct pg_row){true, number(row->v[1]), number(row->v[2])};
}

/* After a crash the main lane reads again what the tables that were live then have already: one that joins meanwhile is behind them until that is
 * over (docs/guarantees.md). */
static bool may_differ(const struct states *s, int sink)
{
    uint64_t offset = 0;
    bool joined = false;
    for (uint32_t t = 0; t < PG_TABLES; t++)
        joined |= s->sink[sink][t] == TR_ST_LIVE && !w.was_live[sink][t];
    return joined && (w.control->ops->offset_get(w.control, sink ? "two" : "one", 0, &offset, NULL) < 0 || offset < w.log_at_start);
}

static bool was_once(const uint64_t *hash, const bool *live)
{
    for (uint32_t i = w.n_history; i-- > 0;) {
        bool same = true;
        for (uint32_t t = 0; t < PG_TABLES; t++)
            same &= !live[t] || w.history[i].hash[t] == hash[t];
        if (same)
            return true;
    }
    return false;
}

static void show_rows(const struct pg_row *rows, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t k = 1; k <= PG_KEYS && n < cap - 40; k++)
        if (rows[k].there)
            n += (size_t)snprintf(out + n, cap - n, " %u(%u,%u)", k, rows[k].a, rows[k].t);
}

/* All live tables of a mirror at once, as one reader would see them: the sink's lock is held for neither, but nobody runs between. */
static void look_at_mirrors(void)
{
    struct states s;
    if (w.broken)
        return;
    follow();
    look_at_states(&s);
    for (int k = 0; k < SINKS; k++) {
        uint64_t hash[PG_TABLES] = {0};
        bool live[PG_TABLES], any = false, odd = false;
        struct seen seen[PG_TABLES];
        uint64_t before = tr_sched_switches();
        for (uint32_t t = 0; t < PG_TABLES; t++) {
            memset(&seen[t], 0, sizeof seen[t]);
            live[t] = s.sink[k][t] == TR_ST_LIVE;
            any |= live[t];
            if (!live[t])
                continue;
            tr_mem_read_back(w.sinks[k], s.id[t], TR_TARGET_MIRROR, see, &seen[t]);
            odd |= seen[t].odd;
            hash[t] = hash_table(t, seen[t].rows);
        }
        if (!any || tr_sched_switches() != before) /* somebody ran between: not one look */
            continue;
        w.c->looks++;
        bool was = was_once(hash, live);
        if (!was && may_differ(&s, k)) {
            was = true;
            for (uint32_t t = 0; t < PG_TABLES; t++) {
                bool alone[PG_TABLES] = {false};
                alone[t] = live[t];
                was &= was_once(hash, alone);
            }
        }
        if (odd || !was) {
            char a[200], b[200];
            show_rows(seen[0].rows, a, sizeof a);
            show_rows(seen[1].rows, b, sizeof b);
            fail("mirror %d shows what the source never was: t0%s%s; t1%s%s%s", k, live[0] ? "" : " (not live)", a, live[1] ? "" : " (not live)", b, odd ? "; a value is missing" : "");
        }
    }
}

/* ---- what happens ---- */

static void forget_ended(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w.n_open; i++)
        if (pgmodel_open(&w.pg, w.open[i]))
            w.open[n++] = w.open[i];
    w.n_open = n;
}

static int some_open(enum pg_tx_state state)
{
    forget_ended();
    int found[OPEN_TX_MAX], n = 0;
    for (uint32_t i = 0; i < w.n_open; i++)
        if (w.pg.tx[w.open[i]].state == state)
            found[n++] = w.open[i];
    return n ? found[below((uint64_t)n)] : -1;
}

static bool key_there(int tx, uint32_t table, uint32_t key)
{
    (void)tx;
    return pgmodel_now(&w.pg, table, key).there;
}

static void client_op(void)
{
    static const enum pg_kind mixed[16] = {K_UPDATE, K_UPDATE, K_UPDATE, K_UPDATE_T, K_UPDATE_T, K_INSERT, K_INSERT, K_INSERT, K_INSERT, K_DELETE, K_DELETE, K_DELETE, K_MOVE, K_MOVE, K_MOVE, K_TRUNCATE};
    static const enum pg_kind moving[16] = {K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_UPDATE, K_UPDATE, K_UPDATE_T, K_INSERT, K_INSERT, K_INSERT, K_DELETE, K_DELETE};
    int tx = some_open(TX_ACTIVE);
    if (tx < 0)
        return;
    if (w.pg.tx[tx].n_pending) {
        pgmodel_check(&w.pg, tx);
        return;
    }
    enum pg_kind kind = (below(4) < w.move_bias ? moving : mixed)[below(16)];
    if (kind == K_TRUNCATE && (!w.on[F_truncate] || below(4)))
        kind = K_INSERT;
    uint32_t table = (uint32_t)below(PG_TABLES), a = 1 + (uint32_t)below(PG_KEYS), b = 1 + (uint32_t)below(PG_KEYS);
    for (int i = 0; i < PG_KEYS && key_there(tx, table, a) == (kind == K_INSERT); i++)
        a = a % PG_KEYS + 1;
    for (int i = 0; kind == K_MOVE && i < PG_KEYS && (b == a || key_there(tx, table, b)); i++)
        b = b % PG_KEYS + 1;
    bool did = pgmodel_op(&w.pg, tx, kind, table, a, b, w.on[F_unique_waits] && chance(1, 3));
    if (did)
        w.pg.tx[tx].ops++;
    trace("T%d %s t%u %u%s%u%s", tx, (const char *[]){"INSERT", "UPDATE", "UPDATE t", "MOVE", "DELETE", "TRUNCATE", "BEAT"}[kind], table, a, kind == K_MOVE ? " to " : " (", b,
          did ? (kind == K_MOVE ? "" : ")") : " not now");
}

static void commit(int tx)
{
    trace("T%d commits (xid %" PRIu64 ")", tx, w.pg.tx[tx].xid);
    pgmodel_commit(&w.pg, tx);
}

static void break_continuity(void)
{
    w.broken = true;
}

static void restart_source(void)
{
    follow();
    w.n_open = 0;
}

enum act { A_NEW, A_OP, A_COMMIT, A_ABORT, A_SAVEPOINT, A_ROLLBACK_TO, A_SHOW, A_FLUSH, A_REPLAY, A_CRASH_SOURCE, A_SOURCE_UP, A_KILL, A_STOP, A_START, A_SINK, A_DISK, A_RESNAPSHOT, A_SLOT, A_FAILOVER, A_CUT,
           A_LOOK, A_CLOCK, A_NOTHING, A_COUNT };

static enum act choose(void)
{
    uint32_t weight[A_COUNT] = {0}, sum = 0;
    forget_ended();
    bool up = w.pg.up;
    if (up && w.n_open < OPEN_TX_MAX && w.pg.n_tx < PG_TX_MAX - 64)
        weight[A_NEW] = w.n_open ? 2 + w.spread * 2 : 8;
    if (up && w.n_open && w.pg.n_wal < PG_REC_MAX - 1024 && w.pg.n_ver < PG_VER_MAX - 64) {
        weight[A_OP] = 12;
        weight[A_COMMIT] = w.spread ? 3 : 6;
        weight[A_ABORT] = 1;
        weight[A_SAVEPOINT] = weight[A_ROLLBACK_TO] = 1;
    }
    weight[A_SHOW] = 6;
    weight[A_FLUSH] = w.pg.flushed < w.pg.n_wal ? 4 : 0;
    weight[A_REPLAY] = w.pg.replayed < w.pg.flushed ? 4 : 0;
    weight[A_CRASH_SOURCE] = up && w.on[F_source_crashes] ? 1 : 0;
    weight[A_SOURCE_UP] = up ? 0 : 6;
    weight[A_KILL] = w.process && w.on[F_tailrace_crashes] ? 1 : 0;
    weight[A_STOP] = w.process && w.running && !below(8) ? 1 : 0;
    weight[A_START] = w.process ? 0 : 8;
    weight[A_SINK] = w.on[F_sink_faults] ? 2 : 0;
    weight[A_DISK] = w.on[F_disk_faults] ? 1 : 0;
    weight[A_RESNAPSHOT] = w.running && w.on[F_resnapshot] && !below(4) ? 1 : 0;
    weight[A_SLOT] = up && w.on[F_slot_loss] && !below(16) ? 1 : 0;
    weight[A_FAILOVER] = up && w.on[F_failover] && !below(32) ? 1 : 0;
    weight[A_CUT] = w.on[F_network] ? 1 : 0;
    weight[A_LOOK] = 4;
    weight[A_CLOCK] = w.on[F_clock] && !below(8) ? 1 : 0;
    weight[A_NOTHING] = 2;
    for (int i = 0; i < A_COUNT; i++)
        sum += weight[i];
    uint64_t r = below(sum);
    for (int i = 0; i < A_COUNT; i++) {
        if (r < weight[i])
            return (enum act)i;
        r -= weight[i];
    }
    return A_NOTHING;
}

static void sink_fault(void)
{
    struct tr_mem_sink *s = w.sinks[below(SINKS)];
    struct tr_mem_outcome o = {.times = 1 + (uint32_t)below(3)};
    switch (below(4)) {
    case 0:
        o.rc = TR_RETRY;
        w.c->sink_retries++;
        break;
    case 1:
        o.rc = TR_RETRY;
        o.apply = true;
        w.c->sink_applied_retries++;
        break;
    case 2:
        o.delay_ns = (int64_t)below(400) * MS;
        w.c->sink_delays++;
        break;
    default:
        o.rc = TR_RETRY;
        o.apply = chance(1, 2);
        o.delay_ns = (int64_t)below(2000) * MS;
        w.c->sink_delays++;
    }
    o.blame = TR_BLAME_ENDPOINT;
    tr_mem_script(s, &o);
}

static void request_snapshot(void)
{
    char name[16];
    snprintf(name, sizeof name, "public.t%u", (unsigned)below(PG_TABLES));
    if (w.control->ops->request_put(w.control, "sim", "resnapshot", "", name, NULL) >= 0)
        w.c->resnapshots++;
    trace("resnapshot %s", name);
}

static void step(void)
{
    struct pgmodel *pg = &w.pg;
    int tx;
    enum act a = choose();
    switch (a) {
    case A_NEW:
        w.open[w.n_open++] = pgmodel_begin(pg);
        break;
    case A_OP:
        client_op();
        break;
    case A_COMMIT:
        if ((tx = some_open(TX_ACTIVE)) >= 0 && !pg->tx[tx].n_pending)
            commit(tx);
        break;
    case A_ABORT:
        if ((tx = some_open(TX_ACTIVE)) >= 0) {
            trace("T%d aborts", tx);
            pgmodel_abort(pg, tx);
        }
        break;
    case A_SAVEPOINT:
        if ((tx = some_open(TX_ACTIVE)) >= 0 && !pg->tx[tx].n_pending)
            pgmodel_savepoint(pg, tx);
        break;
    case A_ROLLBACK_TO:
        if ((tx = some_open(TX_ACTIVE)) >= 0) {
            trace("T%d rolls back to its savepoint %d", tx, pg->tx[tx].sub);
            pgmodel_rollback_to(pg, tx);
        }
        break;
    case A_SHOW:
        if ((tx = some_open(TX_RECORDED)) >= 0 && pgmodel_can_show(pg, tx)) {
            trace("T%d is visible", tx);
            pgmodel_show(pg, tx);
        }
        break;
    case A_FLUSH:
        pgmodel_flush(pg, chance(1, 2) ? pg->n_wal : pg->flushed + 1 + (uint32_t)below(pg->n_wal - pg->flushed));
        break;
    case A_REPLAY:
        pg->replayed += chance(1, 2) ? pg->flushed - pg->replayed : 1 + (uint32_t)below(pg->flushed - pg->replayed);
        break;
    case A_CRASH_SOURCE:
        trace("the server crashes, %u of %u records flushed", pg->flushed, pg->n_wal);
        restart_source();
        pgmodel_crash(pg);
        break;
    case A_SOURCE_UP:
        pg->up = true;
        break;
    case A_KILL:
        kill_process();
        break;
    case A_STOP:
        stop_process();
        break;
    case A_START:
        start_process();
        break;
    case A_SINK:
        sink_fault();
        break;
    case A_DISK:
        w.c->disk_full++;
        tr_fs_sim_fail_nth(w.fs, 1 + below(20), chance(1, 2) ? ENOSPC : EIO);
        break;
    case A_RESNAPSHOT:
        request_snapshot();
        break;
    case A_SLOT:
        trace("the slot is lost");
        break_continuity();
        pg->c->slots_lost++;
        pg->boot++;
        if (chance(1, 2))
            pg->slot = (struct pg_slot){0};
        else
            pg->slot.lost = true;
        pg->slot.active = NULL;
        break;
    case A_FAILOVER:
        trace("the standby is promoted, %u of %u records replayed", pg->replayed, pg->n_wal);
        restart_source();
        break_continuity();
        pgmodel_promote(pg);
        w.n_history = 0;
        begin_past();
        break;
    case A_CUT:
        w.c->network_cuts++;
        if (pg->cut && chance(1, 2))
            pg->boot++; /* and the connections are gone */
        pg->cut = !pg->cut;
        break;
    case A_LOOK:
        look_at_mirrors();
        break;
    case A_CLOCK:
        w.c->clock_steps++;
        tr_sched_step_wall((int64_t)below(7200) * 1000000 - INT64_C(3600000000));
        break;
    default:
        break;
    }
}

/* ---- the end ---- */

static void end_transactions(void)
{
    struct pgmodel *pg = &w.pg;
    for (int guard = 0; guard < 1000; guard++) {
        forget_ended();
        if (!w.n_open)
            return;
        bool progress = false;
        for (uint32_t i = 0; i < w.n_open; i++) {
            int tx = w.open[i];
            if (pg->tx[tx].state == TX_RECORDED) {
                pgmodel_flush(pg, pg->n_wal);
                pgmodel_show(pg, tx);
                progress = true;
            } else if (pg->tx[tx].n_pending == 0) {
                commit(tx);
                progress = true;
            } else {
                uint32_t before = pg->tx[tx].n_pending;
                progress |= pgmodel_check(pg, tx) || pg->tx[tx].n_pending < before;
            }
        }
        if (!progress)
            pgmodel_abort(pg, w.open[w.n_open - 1]); /* a deadlock */
    }
    fail("the model's transactions do not end");
}

static bool differs(char *ret, size_t cap)
{
    struct states s;
    look_at_states(&s);
    for (uint32_t t = 0; t < PG_TABLES; t++) {
        if (s.capture[t] != TR_TABLE_LIVE) {
            snprintf(ret, cap, "t%u is in state %u at capture (%s)", t, s.capture[t], s.reason);
            return true;
        }
        for (int k = 0; k < SINKS; k++) {
            struct seen seen = {0};
            if (s.sink[k][t] != TR_ST_LIVE) {
                snprintf(ret, cap, "t%u is in state %u in sink %d", t, s.sink[k][t], k);
                return true;
            }
            tr_mem_read_back(w.sinks[k], s.id[t], TR_TARGET_MIRROR, see, &seen);
            for (uint32_t i = 1; i <= PG_KEYS; i++) {
                struct pg_row want = pgmodel_now(&w.pg, t, i), is = seen.rows[i];
                if (seen.odd || want.there != is.there || (want.there && (want.a != is.a || want.t != is.t))) {
                    snprintf(ret, cap, "mirror %d: t%u row %u is {%d %u %u} and should be {%d %u %u}%s", k, t, i, is.there, is.a, is.t, want.there, want.a, want.t,
                             seen.odd ? "; a value is missing" : "");
                    return true;
                }
            }
        }
    }
    return false;
}

static void come_to_rest(void)
{
    char why[256];
    int64_t deadline = tr_now_ns() + 900 * SEC;
    for (int quiet = 0; quiet < 5;) {
        look_after_process();
        if (!w.process)
            start_process();
        pgmodel_flush(&w.pg, w.pg.n_wal);
        w.pg.replayed = w.pg.flushed;
        quiet = differs(why, sizeof why) ? 0 : quiet + 1;
        if (tr_now_ns() > deadline) {
            struct tr_buf b = {0};
            if (w.trace && w.service && tr_service_status(w.service, &b) >= 0)
                fprintf(stderr, "%s\n", tr_buf_cstr(&b));
            fail("after the faults no rest within 900 s: %s", why);
        }
        tr_sleep_ns(300 * MS);
    }
}

/* ---- the log ---- */

struct in_log {
    uint64_t version;
    uint8_t op;
};

static int by_number(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static uint64_t history_v[SINKS][65536];
static size_t history_n[SINKS];
static int history_sink;

static void see_history(void *arg, const struct tr_mem_row *r)
{
    (void)arg;
    if (r->variant == TR_TARGET_CHANGELOG && history_n[history_sink] < TR_ARRAY_LEN(history_v[0]))
        history_v[history_sink][history_n[history_sink]++] = r->version;
}

static bool kept(int sink, uint64_t version)
{
    return bsearch(&version, history_v[sink], history_n[sink], sizeof version, by_number) != NULL;
}

static uint32_t changes_of(uint32_t commit_rec)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < commit_rec; i++) {
        const struct pg_rec *r = &w.pg.wal[i];
        n += r->type == REC_CHANGE && pgmodel_top(&w.pg, r->tx) == w.pg.wal[commit_rec].tx && survives(r->tx) && pgmodel_is_published(&w.pg, i);
    }
    return n;
}

/* The frames of the last epoch against the WAL: each transaction once, whole, in order. */
static void check_log(void)
{
    struct tr_log_reader *r = NULL;
    struct tr_frame f[64];
    struct tr_err err = {0};
    struct tr_pos tail;
    open_log_to_read();
    if (w.log->ops->reader_new(w.log, 0, 0, &r, &err) < 0 || tr_log_tail(w.log, 0, &tail, &err) < 0)
        fail("the log cannot be read: %s", err.msg);
    for (history_sink = 0; history_sink < SINKS; history_sink++) {
        history_n[history_sink] = 0;
        tr_mem_each_row(w.sinks[history_sink], see_history, NULL);
        qsort(history_v[history_sink], history_n[history_sink], sizeof history_v[0][0], by_number);
    }
    uint64_t last_commit = 0, version = 0;
    uint8_t epoch = 0;
    uint32_t in_tx = 0, next_rec = 0;
    int n;
    while ((n = tr_log_reader_poll(r, f, TR_ARRAY_LEN(f), &err)) > 0)
        for (int i = 0; i < n; i++) {
            const struct tr_change *c = &f[i].change;
            if (c->epoch != epoch) {
                epoch = c->epoch;
                last_commit = 0;
                in_tx = 0;
                next_rec = epoch == tail.epoch ? pg_rec_at(w.pg.slot.created) : 0;
            }
            if (tr_op_opens_tx(c->op)) {
                if (c->ordinal != in_tx && c->op != TR_OP_HEARTBEAT)
                    fail("offset %" PRIu64 ": ordinal %u where %u comes next", f[i].offset, c->ordinal, in_tx);
                in_tx++;
                if (c->op != TR_OP_HEARTBEAT) {
                    if (c->version <= version)
                        fail("offset %" PRIu64 ": version %" PRIu64 " does not rise", f[i].offset, c->version);
                    version = c->version + ((c->flags & TR_CHG_MOVED) != 0);
                    for (int k = 0; k < SINKS; k++)
                        if (!kept(k, c->version))
                            fail("changelog %d lacks version %" PRIu64 " (offset %" PRIu64 ")", k, c->version, f[i].offset);
                }
            }
            if (c->op != TR_OP_COMMIT)
                continue;
            if (c->commit_lsn <= last_commit)
                fail("offset %" PRIu64 ": a transaction twice, or out of order", f[i].offset);
            last_commit = c->commit_lsn;
            if (epoch == tail.epoch) {
                uint32_t rec = pg_rec_at(c->commit_lsn);
                for (; next_rec < rec; next_rec++)
                    if (w.pg.wal[next_rec].type == REC_COMMIT && changes_of(next_rec))
                        fail("the log lacks T%d, committed at record %u", w.pg.wal[next_rec].tx, next_rec);
                if (rec >= w.pg.n_wal || w.pg.wal[rec].type != REC_COMMIT)
                    fail("the log has a transaction that never was, at record %u", rec);
                if (in_tx != changes_of(rec))
                    fail("T%d has %u changes in the log and made %u", w.pg.wal[rec].tx, in_tx, changes_of(rec));
                next_rec = rec + 1;
            }
            in_tx = 0;
        }
    if (n != TR_AGAIN)
        fail("reading the log: %s", err.msg);
    for (; next_rec < w.pg.n_wal; next_rec++)
        if (w.pg.wal[next_rec].type == REC_COMMIT && changes_of(next_rec) && w.pg.wal[next_rec].tx >= 0 && pg_lsn(next_rec) < w.pg.slot.confirmed)
            fail("the log lacks T%d, committed at record %u and confirmed", w.pg.wal[next_rec].tx, next_rec);
    r->ops->free(r);
    w.log->ops->close(w.log);
    w.log = NULL;
}

/* ---- one seed ---- */

static void make_world(uint64_t seed, uint32_t steps, const bool *without)
{
    static const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE};
    struct counts *c = w.c;
    bool traced = w.trace;
    memset(&w, 0, sizeof w);
    w.c = c;
    w.trace = traced;
    w.seed = seed;
    w.steps = steps;
    tr_prng_init(&w.prng, seed);
    struct tr_sched_options so = {.seed = tr_prng_u64(&w.prng),
                                  .preempt = 1 + (uint32_t)below(64),
                                  .stall = (uint32_t)(chance(1, 2) ? 0 : 50 + below(1000)),
                                  .stall_max_ns = (int64_t)(1 + below(500)) * MS,
                                  .stuck = stuck,
                                  .fd_ready = pgwire_fd_ready};
    tr_sched_start(&so);
    tr_random_set_prng(&w.prng);
    tr_failpoint_set_hooks(die_at_point, sleep_at_point);
    for (int i = 0; i < FEATURES_COUNT; i++)
        w.on[i] = chance(1, 2);
    for (int i = F_slot_loss; i <= F_failover; i++)
        w.on[i] = chance(1, 8);
    w.on[F_disk_faults] = chance(1, 4);
    w.on[F_tailrace_crashes] = chance(7, 8);
    for (int i = 0; i < FEATURES_COUNT; i++)
        w.on[i] &= !without[i];
    pgmodel_init(&w.pg, &w.prng, &w.c->pg);
    w.pg.with_async = w.on[F_async];
    w.pg.with_hang = w.on[F_hang];
    w.pg.with_replica = w.on[F_replica];
    w.pg.by_first = chance(1, 2);
    w.pg.stream_one_in = w.on[F_streaming] ? 1 + (uint32_t)below(20) : 0;
    w.pg.server_version = chance(1, 2) ? 180000 : 150000;
    pgwire_bind(&w.pg);
    w.fs = tr_fs_sim_new(tr_prng_u64(&w.prng));
    if (chance(1, 2))
        tr_fs_sim_short_io(w.fs, true);
    TR_ASSERT(w.fs && tr_control_memory_new(&w.control, NULL) >= 0);
    for (int i = 0; i < SINKS; i++)
        TR_ASSERT(tr_mem_sink_new(&def, &w.sinks[i]) >= 0);
    w.commit_interval = (int64_t)(20 + below(chance(1, 2) ? 100 : 5000)) * MS;
    w.heartbeat = chance(3, 4) ? (int64_t)(1 + below(10)) * SEC : 0;
    w.workers = 1 + (uint32_t)below(3);
    w.tables_max = 1 + (uint32_t)below(2);
    w.segment_bytes = (8 + below(24)) << 10;
    w.move_bias = (uint32_t)below(5);
    w.spread = (uint32_t)below(2);
    begin_past();
}

static void run_seed(uint64_t seed, uint32_t steps, const bool *without)
{
    make_world(seed, steps, without);
    int64_t pace = (int64_t)(1 + below(40)) * MS; /* between two steps, at most */
    start_process();
    for (uint32_t i = 0; i < steps; i++) {
        step();
        tr_sleep_ns((int64_t)below((uint64_t)pace));
        look_after_process();
    }
    trace("the faults stop");
    w.on[F_points] = false;
    tr_failpoint_clear();
    tr_fs_sim_fail_nth(w.fs, 0, 0);
    w.pg.up = true;
    w.pg.cut = false;
    w.pg.with_async = w.pg.with_hang = false;
    end_transactions();
    char why[256];
    for (int again = 0;; again++) { /* a new snapshot may begin even now */
        come_to_rest();
        look_at_mirrors();
        stop_process();
        if (w.ended)
            fail("at the end: %s", w.end.msg);
        if (!differs(why, sizeof why))
            break;
        if (again == 5)
            fail("after the end: %s", why);
    }
    check_log();
    w.c->switches += tr_sched_switches();
    w.c->virtual_ms += (uint64_t)(tr_now_ns() / MS);
    w.c->seeds++;
    tr_sched_stop();
    for (int i = 0; i < SINKS; i++)
        tr_mem_sink_spi(w.sinks[i])->ops->close(tr_mem_sink_spi(w.sinks[i]));
    w.control->ops->close(w.control);
    tr_fs_sim_free(w.fs);
}

/* ---- all of them ---- */

struct args {
    uint64_t seeds, from;
    uint32_t steps, jobs;
    bool trace, shrink;
    bool without[FEATURES_COUNT];
};

static void child(const struct args *a, int slot)
{
    w.c = &shared->counts[slot];
    w.trace = a->trace;
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* what is freed is used again, not given back and fetched anew */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int n = 0; n < BATCH; n++) {
        uint64_t seed = atomic_fetch_add(&shared->next, 1);
        if (seed >= a->from + a->seeds || atomic_load(&shared->failed))
            break;
        w.seed = seed;
            run_seed(seed, a->steps, a->without);
    }
    _exit(0);
}

static int one_by_one(const struct args *a)
{
    w.c = &shared->counts[0];
    w.trace = a->trace;
    for (uint64_t seed = a->from; seed < a->from + a->seeds; seed++)
        run_seed(seed, a->steps, a->without);
    return 0;
}

/* A process dies now and then of what a crash leaks: each takes a batch of seeds only. */
static bool run_all(const struct args *a)
{
    uint32_t alive = 0;
    int slot = 0;
    atomic_store(&shared->next, a->from);
    atomic_store(&shared->failed, false);
    pid_t pids[16] = {0};
    for (;;) {
        while (alive < a->jobs && atomic_load(&shared->next) < a->from + a->seeds && !atomic_load(&shared->failed)) {
            for (slot = 0; pids[slot]; slot++)
                ;
            fflush(stdout);
            fflush(stderr);
            pid_t p = fork();
            TR_ASSERT(p >= 0);
            if (p == 0)
                child(a, slot);
            pids[slot] = p;
            alive++;
        }
        if (!alive)
            break;
        int status;
        pid_t p = wait(&status);
        for (slot = 0; pids[slot] != p; slot++)
            ;
        pids[slot] = 0;
        alive--;
        if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !atomic_exchange(&shared->failed, true)) {
            shared->failed_seed = shared->counts[slot].seeds; /* not known exactly: an assertion of tailrace itself */
            snprintf(shared->failure, sizeof shared->failure, "the process died (status 0x%x); run its seeds one by one", status);
        }
    }
    return !atomic_load(&shared->failed);
}

static void add_up(struct counts *sum)
{
    memset(sum, 0, sizeof *sum);
    for (size_t i = 0; i < TR_ARRAY_LEN(shared->counts); i++)
        for (size_t k = 0; k < sizeof *sum / sizeof(uint64_t); k++) {
            uint64_t a, b;
            memcpy(&a, (char *)sum + 8 * k, 8);
            memcpy(&b, (char *)&shared->counts[i] + 8 * k, 8);
            a += b;
            memcpy((char *)sum + 8 * k, &a, 8);
        }
}

static void print_counts(void)
{
    struct counts s;
    add_up(&s);
    printf("seeds %" PRIu64 ", threads changed %" PRIu64 " times, %.1f h of the simulated clock\n", s.seeds, s.switches, (double)s.virtual_ms / 3.6e6);
#define X(n) printf("%s %" PRIu64 "  ", #n, s.n);
    EVENTS(X)
#undef X
    const struct pg_counts *p = &s.pg;
    printf("\nsource: transactions %" PRIu64 " commits %" PRIu64 " aborts %" PRIu64 " savepoints_rolled_back %" PRIu64 " moves %" PRIu64 " truncates %" PRIu64 " unique_waits %" PRIu64 " crashes %" PRIu64
           " async_undone %" PRIu64 " streamed_before_visible %" PRIu64 " streamed_open %" PRIu64 " streamed_aborts %" PRIu64 " heartbeats %" PRIu64 " failovers %" PRIu64 " slots_lost %" PRIu64 "\n",
           p->tx, p->commits, p->aborts, p->sub_aborts, p->moves, p->truncates, p->unique_waits, p->crashes, p->async_undone, p->hung_streamed, p->streamed, p->streamed_aborted, p->beats,
           p->failovers, p->slots_lost);
    printf("snapshot: chunks %" PRIu64 " (replica %" PRIu64 ") fence_waits %" PRIu64 " fills %" PRIu64 " (empty %" PRIu64 ") tables_added %" PRIu64 "\n", p->chunks, p->replica_chunks, p->fence_waits,
           p->fills, p->empty_fills, p->adds);
}

/* Fewer steps and fewer features, as long as it fails. */
static void shrink(struct args a, uint64_t seed)
{
    a.from = seed;
    a.seeds = 1;
    a.jobs = 1;
    a.trace = false;
    for (int i = 0; i < FEATURES_COUNT; i++) {
        a.without[i] = true;
        if (run_all(&a))
            a.without[i] = false;
    }
    for (uint32_t cut = a.steps / 2; cut; cut /= 2)
        while (a.steps > cut) {
            a.steps -= cut;
            if (run_all(&a)) {
                a.steps += cut;
                break;
            }
        }
    run_all(&a);
    printf("smallest found: --from %" PRIu64 " --seeds 1 --steps %u --trace", seed, a.steps);
    for (int i = 0; i < FEATURES_COUNT; i++)
        if (a.without[i])
            printf(" --without %s", feature_names[i]);
    printf("\n  %s\n", shared->failure);
}

static int usage(void)
{
    fprintf(stderr, "usage: cdc_sim [--seeds N] [--from S] [--steps N] [--jobs N] [--trace] [--shrink] [--without FEATURE]...\n");
    return 2;
}

static bool parse(int argc, char **argv, struct args *a)
{
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--trace")) {
            a->trace = true;
            continue;
        }
        if (!strcmp(argv[i], "--shrink")) {
            a->shrink = true;
            continue;
        }
        if (!v)
            return false;
        i++;
        if (!strcmp(argv[i - 1], "--seeds"))
            a->seeds = strtoull(v, NULL, 10);
        else if (!strcmp(argv[i - 1], "--from"))
            a->from = strtoull(v, NULL, 10);
        else if (!strcmp(argv[i - 1], "--steps"))
            a->steps = (uint32_t)strtoul(v, NULL, 10);
        else if (!strcmp(argv[i - 1], "--jobs"))
            a->jobs = (uint32_t)strtoul(v, NULL, 10);
        else if (!strcmp(argv[i - 1], "--without")) {
            int f = 0;
            while (f < FEATURES_COUNT && strcmp(feature_names[f], v) != 0)
                f++;
            if (f == FEATURES_COUNT)
                return false;
            a->without[f] = true;
        } else
            return false;
    }
    return a->jobs <= 16;
}

/* What dies in a crash is lost. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0:detect_stack_use_after_return=0";
}

int main(int argc, char **argv)
{
    struct args a = {.seeds = 1000, .from = 1, .steps = 500, .jobs = 2};
    if (!parse(argc, argv, &a))
        return usage();
    tr_oslog_setup(a.trace ? TR_OSLOG_DEBUG : TR_OSLOG_OFF, false, 2);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TR_ASSERT(shared != MAP_FAILED);
    if (a.jobs == 0) /* in this process, for a debugger */
        return one_by_one(&a);
    bool ok = run_all(&a);
    print_counts();
    if (ok)
        return 0;
    uint64_t seed = shared->failed_seed;
    printf("FAILED: seed %" PRIu64 ": %s\nagain: %s --from %" PRIu64 " --seeds 1 --steps %u --trace\n", seed, shared->failure, argv[0], seed, a.steps);
    if (a.shrink)
        shrink(a, seed);
    (void)failing_features;
    return 1;
}
