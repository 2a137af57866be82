/*
 * cdc_internal.h: shared by the files of capture and snapshot. Not for other rooms: those include cdc.h.
 *
 * Who owns what
 *   chain fields       capture's one pipeline thread
 *   snapshot fields    the snapshot coordinator's thread
 *   shared fields      under cap->lock
 */
#ifndef TR_CDC_INTERNAL_H
#define TR_CDC_INTERNAL_H

#include <stdatomic.h>

#include <tailrace/change.h>
#include <tailrace/sink.h>

#include "cdc_source.h"
#include "changelog.h"
#include "control.h"
#include "map.h"
#include "thread.h"

/* A key update with an unchanged column that went into the log during its table's snapshot, and needs a FILL. */
struct tr_cap_need {
    uint64_t commit_lsn, xid;
    uint32_t ordinal;
    uint8_t epoch;
    bool asked, filled;
    uint8_t *key;            /* encoded new key; owned */
    size_t key_n;
};

struct tr_cap_table {
    struct tr_cap_table *next;
    char ns[64], name[64];
    bool heartbeat;

    /* chain */
    struct tr_schema *reg;      /* the definition in use, of stream or snapshot: one of `known_v` */
    struct tr_schema *stream;   /* the stream's latest: one of `known_v`. A definition that returns after another is numbered anew */
    struct tr_cap_schema {
        struct tr_schema *schema; /* numbered; same fingerprint as the source's */
        bool defined;           /* it stands in the log (in this run) */
    } known_v[8];               /* snapshot and stream may use different ones side by side */
    uint32_t n_known;
    uint64_t snapshot_id, begin_version; /* the snapshot whose rows are taken now; 0: none */
    uint32_t checked_id, checked_at;     /* source_id last met under this name, and `identities` then */

    /* shared */
    struct tr_schema *want;     /* to be registered; the registrar takes it */
    struct tr_schema *got;      /* its answer */
    struct tr_err reg_err;      /* rc 0: none */
    struct tr_cap_need *needs;
    size_t n_needs, cap_needs;
    bool schema_broke;          /* a breaking change arrived while the snapshot ran */

    _Atomic(uint32_t) source_id; /* of the table that this name stood for when the coordinator last looked; 0: unknown, or none any more */
    _Atomic(bool) strayed;       /* capture met changes of it under another name, or of another one under its name */

    /* snapshot */
    struct tr_ctl_table ctl;
    struct tr_snap *snap;
    bool known;                 /* ctl was loaded */
    bool selected;              /* the configuration selects it and it exists */
    bool published;             /* likewise, and all that happens to it is streamed */
};

struct tr_capture {
    const char *source_name;
    struct tr_control *control;
    struct tr_log *log;
    struct tr_cdc *cdc;
    uint8_t epoch;
    char heartbeat_ns[64], heartbeat_name[64];
    bool (*has_changelog)(void *arg, const char *ns, const char *name);
    void *arg;
    struct tr_pos tail;         /* of the log when capture started */

    _Atomic(uint64_t) stream_pos; /* everything that committed at or below it is in the log (appended) */
    _Atomic(uint64_t) stream_lag_us; /* now - commit time of the newest change seen */
    _Atomic(uint32_t) identities;    /* grows when what capture found about names and source_ids may not hold any more */
    _Atomic(uint32_t) strays;        /* tables `strayed` and not yet noted in the control store: while there are any, no position is recorded */

    struct tr_mutex lock;
    struct tr_cond cond;        /* registrar: work, stop */
    struct tr_map by_name;      /* lock: "ns\0name" → struct tr_cap_table * */
    struct tr_cap_table *_Atomic tables; /* grows at its head under the lock; whoever has the head may walk on: `next` never changes */
    bool stop;
    struct tr_thread *registrar;
    struct tr_waker *wake_lane; /* lock: of the pipeline thread, which waits for the registrar; NULL: not known */
    struct tr_snapshot *snapshot;
};

/* Finds or makes the record of a table. Any thread; never NULL but for lack of memory. */
struct tr_cap_table *tr_cap_table_of(struct tr_capture *c, const char *ns, const char *name);

void tr_cap_stray(struct tr_capture *c, struct tr_cap_table *t);

/* capture_sink.c: the change log as the capture pipeline's sink. */
int tr_capture_sink_new(struct tr_log *log, struct tr_sink **ret, struct tr_err *err);

/* capture_chain.c */
struct tr_chain_ops;
int tr_capture_chain_new(struct tr_capture *c, struct tr_out *out, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err);

/* capture_source.c: the stream, plus one lane through which snapshot rows and frames enter. Takes the stream over. */
struct tr_snap_run; /* a run of changes with the memory behind them */
int tr_capture_source_new(struct tr_capture *c, struct tr_source *stream, struct tr_source **ret, struct tr_err *err);
/* Snapshot side of that lane. submit blocks while more than the bound is queued, returns the run's position (rising) or EOF when the
 * lane is closed; takes the run over. durable_upto: highest position whose run, and all before it, are durable in the log. */
int tr_capture_lane_submit(struct tr_source *src, struct tr_snap_run *run, int64_t *ret_position);
int64_t tr_capture_lane_durable(struct tr_source *src);
void tr_capture_lane_close(struct tr_source *src);
void tr_capture_lane_set_notify(struct tr_source *src, void (*notify)(void *), void *arg);

/* Runs are built by one thread and then handed over. */
int tr_snap_run_new(struct tr_snap_run **ret, struct tr_err *err);
struct tr_snap_run *tr_snap_run_free(struct tr_snap_run *r);
/* A zeroed change in the run's memory; its schema is referenced. copy makes the row's values the run's own. NULL: no memory. */
struct tr_change *tr_snap_run_add(struct tr_snap_run *r, const struct tr_schema *schema);
int tr_snap_run_copy(struct tr_snap_run *r, const struct tr_row *row, struct tr_row *ret);
int tr_snap_run_bytes(struct tr_snap_run *r, struct tr_slice s, struct tr_slice *ret);
/* A READ of that snapshot, in a run that has nothing else, all of one schema; H is set once for all. */
int tr_snap_run_add_row(struct tr_snap_run *r, const struct tr_schema *schema, uint64_t snapshot_id, const struct tr_row *row);
size_t tr_snap_run_size(const struct tr_snap_run *r);
void tr_snap_run_set_h(struct tr_snap_run *r, uint64_t h);

/* snapshot.c */
struct tr_snapshot_tuning {
    uint32_t workers;
    uint64_t chunk_bytes, chunk_rows_max;
    uint32_t tables_max;         /* how many tables are under way at once */
};
int tr_snapshot_new(struct tr_capture *c, const struct tr_snapshot_tuning *t, struct tr_snapshot **ret, struct tr_err *err);
int tr_snapshot_recover(struct tr_snapshot *s, struct tr_err *err); /* reads the log; before capture runs */
int tr_snapshot_start(struct tr_snapshot *s, struct tr_source *lane, struct tr_err *err);
struct tr_snapshot *tr_snapshot_free(struct tr_snapshot *s);          /* stops and joins */
int tr_snapshot_request(struct tr_snapshot *s, const char *ns, const char *name); /* a new snapshot of that table; rc 1: unknown */

#endif
