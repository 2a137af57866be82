/*
 * apply_internal.h: shared by the files of apply: one sink's projection of the log.
 *
 * The *main lane* reads the log from the sink's offset on and feeds tables that are live. A *catch-up lane* builds one table: pass 1 the
 * READ rows of its snapshot as they arrive, pass 2 that table's changes from SNAPSHOT_BEGIN on, into a shadow; or, for a table
 * that was paused, its changes from the pause on, in place. Where a catch-up has consumed all that the main lane has consumed, the
 * table joins: everything put so far is made durable, the shadow is swapped in, and the main lane feeds it from there.
 *
 * Positions of a catch-up lane: phase << 62 | log offset, so that they rise although pass 2 goes back to the beginning.
 *
 * Threads: fields marked chain belong to the pipeline thread, which also polls the lanes; shared ones to ap->lock.
 */
#ifndef TR_APPLY_INTERNAL_H
#define TR_APPLY_INTERNAL_H

#include <stdatomic.h>

#include "apply.h"
#include "map.h"
#include "thread.h"

#define AP_PHASE_SHIFT 62
#define AP_OFFSET_MASK ((INT64_C(1) << AP_PHASE_SHIFT) - 1)

enum { AP_MAIN_LANE = 0 };

struct ap_fill {
    bool empty;
    uint32_t schema_version;
    uint8_t *image;
    size_t n;
};

struct ap_catchup {
    struct tr_lane lane;
    struct ap_catchup *next;      /* ap->catchups; shared */
    struct tr_apply_run *ap;
    struct ap_table *table;
    struct tr_log_reader *reader;
    uint64_t snapshot_id, begin;
    _Atomic(uint64_t) end;        /* set by the pipeline thread, looked at by the controller */
    uint64_t read_from;           /* pass 1: READ rows below this offset are in the shadow already */
    uint64_t change_from;         /* pass 2 starts here */
    uint64_t log_from;            /* pass 2: changes from here on go to the changelog as well, which had refused them; UINT64_MAX: none */
    bool relive;                  /* no pass 1, no shadow */
    int phase;                    /* 0, 1 */
    bool turn;                    /* pass 1 is through: pass 2 from the next poll on */
    bool assigned;                /* shared: handed to the engine */
    bool finished;                /* chain: the lane ends at its next poll */
    bool released;                /* lock: the chain does not know it any more */
    bool closed;                  /* shared: the engine is through with it */
    uint64_t consumed;            /* chain: pass 2, next offset */
    int64_t join_ns;              /* chain: not before, since the sink could not swap */
    struct tr_schema *schema;     /* chain: latest definition met */
    struct tr_map fills;          /* (epoch, commit LSN, ordinal) → struct ap_fill * */
    struct tr_frame *frames;
    struct tr_payload *v;
};

struct ap_table {
    uint32_t table_id;

    /* written by tr_apply_table_mode_load under the lock; the chain, which calls it, reads them without */
    char name[140];               /* for people */
    bool changelog, no_key;

    /* chain */
    uint8_t state;                /* enum tr_sink_table_state; rec's, but for what a writer's refusal has put there since */
    bool mirror_live;             /* the main lane feeds the mirror */
    struct ap_catchup *catchup;
    struct {                      /* targets bound for the definition used last */
        uint32_t version;
        struct tr_target *target;
    } mirror, changelog_target, shadow;
    bool log_held;                /* the changelog has refused a change: nothing goes there but by the catch-up that brings it from there on */
    bool shadow_rows;             /* rows for a shadow may still be on their way to the sink */

    /* shared: under the lock. The chain alone writes rec's snapshot_id, begin_offset and relive outside of a pause, and reads those without */
    struct tr_ctl_sink_table rec;
    bool dirty;
    bool resume;                  /* an operator wants it to go on */
    bool history_lost;            /* its changelog alarm is raised */
    _Atomic(bool) rejected;       /* rec says PAUSED; the chain has yet to follow */
    _Atomic(uint64_t) stored;     /* snapshot_id of the record in the control store */
};

struct ap_beat {                  /* a heartbeat on its way through */
    uint64_t offset;
    int64_t at_us, commit_us, capture_us, read_us;
};

struct tr_apply_run {
    struct tr_apply_config cfg;
    struct tr_source source;
    struct tr_runtime *pipeline;

    struct tr_lane main_lane;
    struct tr_log_reader *reader;
    struct tr_frame *frames;
    struct tr_payload *v;
    bool main_assigned;

    struct tr_mutex lock;
    struct tr_u64map tables;      /* shared: table_id → struct ap_table * */
    struct ap_catchup *catchups;  /* shared */
    uint32_t next_lane;
    struct tr_waker *controller;  /* shared: given by the source's arm */
    struct tr_waker *lane_waker;  /* shared */
    struct ap_beat beats[64];     /* shared: ring */
    uint32_t beat_head, beat_n;
    struct tr_apply_lag lag;      /* shared */
    _Atomic(bool) poked;          /* the chain is to look around */
    _Atomic(bool) hurry;          /* a table waits for its record to be stored */

    /* controller */
    uint64_t start_offset;        /* next offset to apply, as of the control store at start */
    uint64_t again_until;         /* below it a process before this one may have applied more than it recorded */
    uint64_t pending, recorded;   /* next offset: watermark, control store */
    int64_t last_record_ns;
    struct tr_err record_trouble; /* why the last attempt to record failed; rc 0: it did not */
};

/* apply_source.c */
extern const struct tr_source_ops tr_apply_source_ops;
int tr_apply_main_lane_init(struct tr_apply_run *ap, struct tr_err *err);
struct ap_table *tr_apply_table(struct tr_apply_run *ap, uint32_t table_id); /* finds or makes; NULL: no memory */
/* Makes the lane that rec of this table asks for. EOF: the log no longer holds what it needs. */
int tr_apply_catchup_new(struct tr_apply_run *ap, struct ap_table *t, struct ap_catchup **ret, struct tr_err *err);
struct ap_catchup *tr_apply_catchup_free(struct ap_catchup *c);
void tr_apply_wake(struct tr_apply_run *ap);
int tr_apply_pin(struct tr_apply_run *ap, const struct ap_table *t, uint64_t offset, struct tr_err *err); /* UINT64_MAX: no longer */
const struct ap_fill *tr_apply_fill(const struct ap_catchup *c, const struct tr_change *g);

/* apply.c */
void tr_apply_table_mode_load(struct tr_apply_run *ap, struct ap_table *t, const struct tr_schema *s); /* name, changelog, no_key */
/* Records that `variant` cannot take the change at `offset`. The chain's next step for that table is to let go of it. */
void tr_apply_pause(struct tr_apply_run *ap, struct ap_table *t, enum tr_target_variant variant, uint64_t offset, const struct tr_err *why);
/* The changelog of this table lacks the changes in [from, to) for ever. */
void tr_apply_history_lost(struct tr_apply_run *ap, struct ap_table *t, uint64_t from, uint64_t to);
void tr_apply_alarm(struct tr_apply_run *ap, const struct ap_table *t, enum tr_alarm kind, const char *text); /* NULL: it is over */

/* apply_chain.c */
int tr_apply_chain_new(struct tr_apply_run *ap, struct tr_out *out, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err);

#endif
