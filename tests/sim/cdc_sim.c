/*
 * cdc_sim.c: the whole of tailrace under one seeded scheduler. Everything between a source's wire and a sink's contract is the shipped
 * code: stream and decoder, capture, snapshot, change log, engine, apply, service, with all their threads (os/sim/sched_sim.h), on a disk in
 * memory that crashes (os/sim/fs_sim.h), the control store in memory, a model of PostgreSQL (pgmodel.h) and two memory sinks.
 *
 *   cdc_sim [--seeds N] [--from S] [--steps N] [--jobs N] [--trace] [--shrink] [--without FEATURE]...      (--jobs 0: in this process, for a debugger)
 *
 * A seed chooses a world (what is likely, which faults there are) and then, step by step, what happens in it. In the end the faults stop, all
 * transactions end, and what must be true is looked at.
 *
 * Always:     a mirror whose tables are live shows the source as it was after some commit, all tables of it after the same
 * In the end: tailrace comes to rest with all tables live, within a bounded time; both mirrors equal the source; each committed
 *             change of a published table stands in the log once, in commit order, and in the changelogs. What was confirmed to the server before
 *             it was durable is not sent again after a crash, and so is missing there
 */
#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tailrace/oslog.h>

#include "cdc_world.h"
#include "check.h"
#include "control_memory.h"
#include "failpoint.h"
#include "fs_sim.h"
#include "random.h"
#include "sched_sim.h"
#include "service.h"

enum { BATCH = 32 };

static const char *const feature_names[] = {
#define X(n) #n,
    FEATURES(X)
#undef X
};

struct world sim_w;
struct shared *sim_shared;

_Noreturn void sim_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sim_w.failure, sizeof sim_w.failure, fmt, ap);
    va_end(ap);
    if (!atomic_exchange(&sim_shared->failed, true)) {
        sim_shared->failed_seed = sim_w.seed;
        memcpy(sim_shared->failure, sim_w.failure, sizeof sim_shared->failure);
    }
    if (sim_w.trace) {
        fprintf(stderr, "FAILED: %s\n", sim_w.failure);
        sim_dump();
    }
    _exit(1);
}

void sim_trace(const char *fmt, ...)
{
    if (!sim_w.trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%10.3f  ", (double)(tr_now_ns() - SEC) / 1e9);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

uint64_t sim_below(uint64_t n)
{
    return tr_prng_below(&sim_w.prng, n);
}

bool sim_chance(uint64_t num, uint64_t den)
{
    return tr_prng_chance(&sim_w.prng, num, den);
}

static void stuck(const char *who)
{
    sim_fail("all threads wait for ever:%s", who);
}

/* ---- one seed ---- */

/* All that the source had committed when it was asked first is in the log and recorded by every sink: a mirror may be equal before, with a changelog that is not. */
struct arrival {
    uint64_t lsn, offset;
};

static bool all_arrived(struct arrival *a)
{
    struct tr_ctl_source src;
    struct tr_log_stats log;
    const struct tr_control_ops *o = sim_w.control->ops;
    if (!a->lsn)
        a->lsn = pg_lsn(sim_w.pg.n_wal);
    if (!a->offset && (!sim_w.log || o->source_get(sim_w.control, "shop", &src, NULL) < 0 || src.confirm_lsn < a->lsn || sim_w.log->ops->stats(sim_w.log, 0, &log, NULL) < 0))
        return false;
    if (!a->offset)
        a->offset = log.durable_offset;
    for (int k = 0; k < SINKS; k++) {
        uint64_t offset = 0;
        if (o->offset_get(sim_w.control, k ? "two" : "one", 0, &offset, NULL) < 0 || offset < a->offset)
            return false;
    }
    return true;
}

static void come_to_rest(void)
{
    char why[256];
    struct arrival arrival = {0};
    int64_t deadline = tr_now_ns() + 900 * SEC;
    for (int quiet = 0; quiet < 5;) {
        sim_look_after_process();
        if (!sim_w.process)
            sim_start_process();
        pgmodel_flush(&sim_w.pg, sim_w.pg.n_wal);
        sim_w.pg.replayed = sim_w.pg.flushed;
        sim_cure();
        if (!all_arrived(&arrival))
            snprintf(why, sizeof why, "what the source has committed has not arrived");
        else
            quiet = sim_differs(why, sizeof why) ? 0 : quiet + 1;
        if (tr_now_ns() > deadline) {
            struct tr_buf b = {0};
            if (sim_w.trace && sim_w.service && tr_service_status(sim_w.service, &b) >= 0)
                fprintf(stderr, "%s\n", tr_buf_cstr(&b));
            sim_fail("after the faults no rest within 900 s: %s", why);
        }
        tr_sleep_ns(300 * MS);
    }
}

static void make_world(uint64_t seed, const bool *without)
{
    static const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE};
    struct counts *c = sim_w.c;
    bool traced = sim_w.trace;
    memset(&sim_w, 0, sizeof sim_w);
    sim_w.c = c;
    sim_w.trace = traced;
    sim_w.seed = seed;
    tr_prng_init(&sim_w.prng, seed);
    struct tr_sched_options so = {.seed = tr_prng_u64(&sim_w.prng),
                                  .preempt = 1 + (uint32_t)sim_below(64),
                                  .stall = (uint32_t)(sim_chance(1, 2) ? 0 : 50 + sim_below(1000)),
                                  .stall_max_ns = (int64_t)(1 + sim_below(500)) * MS,
                                  .stuck = stuck,
                                  .fd_ready = pgwire_fd_ready};
    tr_sched_start(&so);
    tr_random_set_prng(&sim_w.prng);
    tr_failpoint_set_hooks(sim_die_at_point, sim_sleep_at_point);
    for (int i = 0; i < FEATURES_COUNT; i++)
        sim_w.on[i] = sim_chance(1, 2);
    for (int i = F_slot_loss; i <= F_failover; i++)
        sim_w.on[i] = sim_chance(1, 8);
    sim_w.on[F_unpublish] = sim_chance(1, 8);
    sim_w.on[F_disk_faults] = sim_chance(1, 4);
    sim_w.on[F_tailrace_crashes] = sim_chance(7, 8);
    for (int i = 0; i < FEATURES_COUNT; i++)
        sim_w.on[i] &= !without[i];
    pgmodel_init(&sim_w.pg, &sim_w.prng, &sim_w.c->pg);
    sim_w.pg.with_async = sim_w.on[F_async];
    sim_w.pg.with_hang = sim_w.on[F_hang];
    sim_w.pg.with_replica = sim_w.on[F_replica];
    sim_w.pg.by_first = sim_chance(1, 2);
    sim_w.pg.stream_one_in = sim_w.on[F_streaming] ? 1 + (uint32_t)sim_below(20) : 0;
    sim_w.pg.server_version = sim_chance(1, 2) ? 180000 : 150000;
    pgwire_bind(&sim_w.pg);
    sim_w.fs = tr_fs_sim_new(tr_prng_u64(&sim_w.prng));
    if (sim_chance(1, 2))
        tr_fs_sim_short_io(sim_w.fs, true);
    TR_ASSERT(sim_w.fs && tr_control_memory_new(&sim_w.control, NULL) >= 0);
    for (int i = 0; i < SINKS; i++)
        TR_ASSERT(tr_mem_sink_new(&def, &sim_w.sinks[i]) >= 0);
    sim_w.commit_interval = (int64_t)(20 + sim_below(sim_chance(1, 2) ? 100 : 5000)) * MS;
    sim_w.heartbeat = sim_chance(3, 4) ? (int64_t)(1 + sim_below(10)) * SEC : 0;
    sim_w.workers = 1 + (uint32_t)sim_below(3);
    sim_w.tables_max = 1 + (uint32_t)sim_below(2);
    sim_w.segment_bytes = (8 + sim_below(24)) << 10;
    sim_w.pg.hidden[PG_TABLES - 1] = sim_w.on[F_add_table];
    sim_w.pg.crash_after_read = sim_w.on[F_source_crashes] && sim_chance(1, 2) ? 4 + (uint32_t)sim_below(30) : 0;
    sim_w.long_tx = sim_chance(1, 3);
    if ((sim_w.straddles = sim_w.on[F_add_table] && sim_chance(1, 6))) {
        sim_w.long_tx = sim_w.pg.by_first = sim_w.on[F_lag] = true;
        sim_w.on[F_source_crashes] = sim_w.on[F_unique_waits] = false;
        sim_w.on[F_tailrace_crashes] &= sim_chance(1, 2);
    }
    sim_w.pg.sent_max = sim_w.on[F_lag] ? 0 : UINT32_MAX;
    sim_w.crash_bias = 1 + (uint32_t)sim_below(3);
    sim_w.point = sim_chance(1, 2) ? sim_some_point() : NULL;
    sim_w.move_bias = (uint32_t)sim_below(5);
    sim_w.spread = (uint32_t)sim_below(2);
    sim_begin_past();
}

static void run_seed(uint64_t seed, uint32_t steps, const bool *without)
{
    make_world(seed, without);
    int64_t pace = (int64_t)(1 + sim_below(sim_w.straddles ? 100 + sim_below(200) : sim_chance(1, 4) ? 300 : 40)) * MS; /* between two steps, at most */
    sim_start_process();
    for (uint32_t i = 0; i < steps; i++) {
        sim_step();
        tr_sleep_ns((int64_t)sim_below((uint64_t)pace));
        sim_look_after_process();
    }
    sim_trace("the faults stop");
    sim_w.on[F_points] = false;
    sim_w.calm = true;
    tr_failpoint_clear();
    tr_fs_sim_fail_nth(sim_w.fs, 0, 0);
    sim_w.pg.up = true;
    sim_w.pg.cut = false;
    sim_w.pg.with_async = sim_w.pg.with_hang = false;
    sim_w.pg.crash_after_read = 0;
    sim_w.pg.sent_max = UINT32_MAX;
    memset(sim_w.pg.hidden, 0, sizeof sim_w.pg.hidden);
    sim_end_transactions();
    char why[256];
    for (int again = 0;; again++) { /* a new snapshot may begin even now */
        come_to_rest();
        sim_look_at_mirrors();
        sim_stop_process();
        if (sim_w.ended)
            sim_fail("at the end: %s", sim_w.end.msg);
        if (!sim_differs(why, sizeof why))
            break;
        if (again == 5)
            sim_fail("after the end: %s", why);
    }
    sim_check_log();
    sim_w.c->switches += tr_sched_switches();
    sim_w.c->virtual_ms += (uint64_t)(tr_now_ns() / MS);
    sim_w.c->seeds++;
    tr_sched_stop();
    for (int i = 0; i < SINKS; i++)
        tr_mem_sink_spi(sim_w.sinks[i])->ops->close(tr_mem_sink_spi(sim_w.sinks[i]));
    sim_w.control->ops->close(sim_w.control);
    tr_fs_sim_free(sim_w.fs);
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
    sim_w.c = &sim_shared->counts[slot];
    sim_w.trace = a->trace;
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* what is freed is used again, not given back and fetched anew */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int n = 0; n < BATCH; n++) {
        uint64_t seed = atomic_fetch_add(&sim_shared->next, 1);
        if (seed >= a->from + a->seeds || atomic_load(&sim_shared->failed))
            break;
        sim_shared->under_way[slot] = sim_w.seed = seed;
        run_seed(seed, a->steps, a->without);
    }
    _exit(0);
}

static int one_by_one(const struct args *a)
{
    sim_w.c = &sim_shared->counts[0];
    sim_w.trace = a->trace;
    for (uint64_t seed = a->from; seed < a->from + a->seeds; seed++)
        run_seed(seed, a->steps, a->without);
    return 0;
}

/* A process dies now and then of what a crash leaks: each takes a batch of seeds only. */
static bool run_all(const struct args *a)
{
    uint32_t alive = 0;
    int slot = 0;
    atomic_store(&sim_shared->next, a->from);
    atomic_store(&sim_shared->failed, false);
    pid_t pids[16] = {0};
    for (;;) {
        while (alive < a->jobs && atomic_load(&sim_shared->next) < a->from + a->seeds && !atomic_load(&sim_shared->failed)) {
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
        if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !atomic_exchange(&sim_shared->failed, true)) {
            sim_shared->failed_seed = sim_shared->under_way[slot]; /* an assertion of tailrace itself */
            snprintf(sim_shared->failure, sizeof sim_shared->failure, "the process died (status 0x%x)", status);
        }
    }
    return !atomic_load(&sim_shared->failed);
}

static void add_up(struct counts *sum)
{
    memset(sum, 0, sizeof *sum);
    for (size_t i = 0; i < TR_ARRAY_LEN(sim_shared->counts); i++)
        for (size_t k = 0; k < sizeof *sum / sizeof(uint64_t); k++) {
            uint64_t a, b;
            memcpy(&a, (char *)sum + 8 * k, 8);
            memcpy(&b, (char *)&sim_shared->counts[i] + 8 * k, 8);
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
           " async_undone %" PRIu64 " streamed_before_visible %" PRIu64 " streamed_open %" PRIu64 " streamed_aborts %" PRIu64 " heartbeats %" PRIu64 " failovers %" PRIu64 " slots_lost %" PRIu64 " removed_from_publication %" PRIu64 "\n",
           p->tx, p->commits, p->aborts, p->sub_aborts, p->moves, p->truncates, p->unique_waits, p->crashes, p->async_undone, p->hung_streamed, p->streamed, p->streamed_aborted, p->beats,
           p->failovers, p->slots_lost, p->removals);
    printf("snapshot: chunks %" PRIu64 " (replica %" PRIu64 ") fence_waits %" PRIu64 " fills %" PRIu64 " (empty %" PRIu64 ") added_to_publication %" PRIu64 "\n", p->chunks, p->replica_chunks, p->fence_waits,
           p->fills, p->empty_fills, p->adds);
}

/* The rest of a command line that repeats a seed. */
static void print_again(uint64_t seed, const struct args *a)
{
    printf("--from %" PRIu64 " --seeds 1 --steps %u --trace", seed, a->steps);
    for (int i = 0; i < FEATURES_COUNT; i++)
        if (a->without[i])
            printf(" --without %s", feature_names[i]);
    printf("\n");
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
    printf("smallest found: ");
    print_again(seed, &a);
    printf("  %s\n", sim_shared->failure);
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
    sim_shared = mmap(NULL, sizeof *sim_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TR_ASSERT(sim_shared != MAP_FAILED);
    if (a.jobs == 0) /* in this process, for a debugger */
        return one_by_one(&a);
    bool ok = run_all(&a);
    print_counts();
    if (ok)
        return 0;
    uint64_t seed = sim_shared->failed_seed;
    printf("FAILED: seed %" PRIu64 ": %s\nagain: %s ", seed, sim_shared->failure, argv[0]);
    print_again(seed, &a);
    if (a.shrink)
        shrink(a, seed);
    return 1;
}
