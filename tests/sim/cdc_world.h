/* cdc_world.h: what the files of the whole simulation share. cdc_sim.c says what it is; cdc_process.c: tailrace, its deaths and restarts; cdc_events.c: what happens;
 * cdc_oracle.c: what must be true. */
#ifndef CDC_WORLD_H
#define CDC_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>

#include "pgmodel.h"

struct tr_control;
struct tr_fs;
struct tr_log;
struct tr_service;
struct tr_thread;

#define MS TR_NS_PER_MS
#define SEC TR_NS_PER_S
enum { SINKS = 2, OPEN_TX_MAX = 4, HISTORY_MAX = 4096, FAILURE_CHARS = 1024 };

/* What happened, over all seeds; printed. */
#define EVENTS(X) X(starts) X(kills) X(power_failures) X(killed_at_points) X(stops) X(disk_faults) X(sink_retries) X(sink_applied_retries) X(sink_delays) X(resnapshots) X(looks) X(clock_steps) X(network_cuts) X(tables_added) X(unpublished) X(refusals) X(resumes)

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
    uint64_t under_way[16]; /* the seed of each process */
    struct counts counts[16];
};

/* What a seed has; --shrink takes them away one by one. */
#define FEATURES(X) X(tailrace_crashes) X(source_crashes) X(async) X(hang) X(replica) X(truncate) X(unique_waits) X(streaming) X(sink_faults) X(disk_faults) X(resnapshot) X(slot_loss) X(failover) X(network) X(points) X(clock) X(lag) X(add_table) X(unpublish) X(refuse)

enum feature {
#define X(n) F_##n,
    FEATURES(X)
#undef X
    FEATURES_COUNT
};
struct history {
    uint64_t hash[PG_TABLES];
};

struct world {
    uint64_t seed;
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
    bool ended;
    /* the source's past, as the log must have it */
    struct history history[HISTORY_MAX];
    uint32_t n_history, history_rec;
    struct pg_row past[PG_TABLES][PG_KEYS + 1];
    bool calm;    /* no more faults */
    bool broken; /* continuity was lost once: mirrors lack something until they are made anew */
    uint32_t move_bias, spread, crash_bias;
    bool long_tx;      /* the oldest open transaction stays open */
    bool straddles;    /* and is older than the last table's publication, and deletes there what younger ones write: what the first fence is for */
    const char *point; /* where it dies more often than elsewhere */
    int open[OPEN_TX_MAX];
    uint32_t n_open;
    char failure[FAILURE_CHARS];
};

struct states {
    uint8_t sink[SINKS][PG_TABLES], capture[PG_TABLES];
    uint32_t id[PG_TABLES];
    char reason[160];
    int n;
};

extern struct world sim_w;
extern struct shared *sim_shared;

_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sim_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
uint64_t sim_below(uint64_t n);
bool sim_chance(uint64_t num, uint64_t den);
void sim_dump(void); /* for --trace: the WAL, the log, the mirrors */
void sim_disk_fault(uint32_t within); /* one of so many operations to come fails */
void sim_look_at_states(struct states *ret); /* as the control store has them */
const char *sim_some_point(void); /* a fault point */
void sim_start_process(void);
void sim_kill_process(void);
void sim_stop_process(void);
void sim_look_after_process(void); /* it may have died at an armed point, or ended by itself */
void sim_die_at_point(void);
void sim_sleep_at_point(uint64_t ms);
void sim_begin_past(void); /* of the source */
void sim_follow(void); /* the commits that are flushed */
void sim_look_at_mirrors(void); /* each shows what the source once was */
bool sim_differs(char *ret, size_t cap); /* is anything not live, or not equal to the source? */
void sim_check_log(void); /* against the WAL; tailrace is stopped */
void sim_open_log(void); /* tailrace is dead or stopped */
void sim_step(void);
void sim_cure(void); /* all that a sink refuses, and asks that it goes on */
void sim_end_transactions(void);
void sim_forget_ended(void);

#endif
