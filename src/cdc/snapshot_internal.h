/*
 * snapshot_internal.h: shared by snapshot.c (the coordinator), snapshot_tables.c (what it sees of the tables) and snapshot_worker.c (who reads rows).
 */
#ifndef TR_SNAPSHOT_INTERNAL_H
#define TR_SNAPSHOT_INTERNAL_H

#include <stdio.h>

#include <tailrace/oslog.h>

#include "cdc_internal.h"
#include "list.h"

/* Where a table's snapshot stands. The clauses are those of docs/decisions/0002. */
enum snap_phase {
    SNAP_FENCE1,   /* take x_g */
    SNAP_XMIN,     /* wait until everything older than x_g has ended, then L */
    SNAP_STREAM_L, /* wait until this run's stream has passed L, then hand BEGIN to capture */
    SNAP_BEGIN,    /* wait until BEGIN is durable */
    SNAP_CHUNKS,   /* chunks are read (workers take the second fence) */
    SNAP_STREAM_H, /* wait until the stream has passed the highest H: that is P */
    SNAP_FILLS,    /* key updates before P that lack a FILL are being filled */
    SNAP_END,      /* wait until END is durable */
    SNAP_DONE,
};

struct snap_chunk {
    uint32_t seq;
    bool done, queued;
    uint64_t rows;
    int64_t position;   /* of its last run; durable once the lane says so; 0: not read yet; INT64_MIN: it had no rows */
    struct tr_buf lo, hi;
};

struct tr_snap {
    struct tr_cap_table *table;
    enum snap_phase phase;
    struct tr_schema *schema;    /* the source's definition the rows are read by */
    uint64_t x_g, x_g_generation, l_lsn, h_max;
    int64_t begin_position, end_position;
    uint64_t rows_per_chunk;
    struct snap_chunk *chunks;
    uint32_t n_chunks, cap_chunks;
    bool planned;                /* the last chunk's hi is the end */
    uint32_t out;                /* tasks with workers */
    size_t fills_upto;           /* needs below this index are before P */
    int64_t waiting_since_ns, nudged_ns, retry_at_ns, saved_ns;
    char waiting[512];           /* what it waits for; "" */
    bool again;                  /* start over once no task is out, not before again_at_ns */
    int64_t again_at_ns;
    uint32_t refused;            /* how often reading it was refused since the last one was complete: then the reason stays, and the pauses grow */
    struct tr_oslog_episode trouble; /* with the source, at a step that is tried again */
    struct tr_table_storage next; /* the table's for the one that starts over; fingerprint 0: as it was. Recorded only then: a crash must not forget */
    _Atomic(bool) cancelled;     /* workers give up what they do for this table */
};

enum snap_task_kind { SNAP_TASK_CHUNK, SNAP_TASK_FILL };

struct snap_task {
    struct tr_list link;
    enum snap_task_kind kind;
    struct tr_snap *snap;
    struct tr_schema *schema;
    uint64_t snapshot_id;
    uint32_t seq;                /* CHUNK */
    struct tr_buf lo, hi;
    size_t need_index;           /* FILL */
    struct tr_cap_need need;     /* FILL: a copy, key owned */
    /* the result */
    int rc;
    struct tr_err err;
    uint64_t rows, h;
    int64_t position;
};

struct tr_snapshot {
    struct tr_capture *cap;
    struct tr_snapshot_tuning tuning;
    struct tr_source *lane;
    struct tr_mutex lock;
    struct tr_cond work, wake;   /* workers; coordinator */
    struct tr_list tasks, results;
    bool stop;                   /* lock */
    bool poked;                  /* lock: look again */
    char waiting[512];           /* lock: latest text from a worker that waits, with its table */
    struct tr_snap *waiting_for;
    struct tr_list requests;     /* lock: struct snap_request */
    struct tr_thread *coordinator, **workers;
    uint32_t n_workers;
    struct tr_cdc_session *session;          /* coordinator's, primary */
    struct tr_cdc_session **worker_sessions; /* for interrupting: [2 * i] primary, [2 * i + 1] replica or NULL */
    int64_t tables_at_ns;
    struct tr_u64map ids;        /* source_id → how many tables have it; 0 is not counted */
    bool ids_lost;               /* for want of memory: they tell nothing */
    bool unpublishable;                      /* the last look could not publish what is selected, and waiting does not help */
    struct tr_oslog_episode trouble, note_trouble, save_trouble; /* the coordinator's: with looking for tables, with noting those that strayed, with recording what it saw */
    bool unsaved;               /* since the look before */
};

struct snap_worker {
    struct tr_snapshot *s;
    struct tr_cdc_session *primary, *replica;
    struct {
        const struct tr_snap *snap;
        uint64_t snapshot_id, generation, xid;
    } fences[16];
    uint32_t next_fence;
};

/* tr_table_storage.fingerprint: which table a snapshot has read, in what storage. Upper half: its source_id (cdc_source.h). Lower half: of
 * its storage fingerprint then; 0 there is none that a table has, so the next look finds a new snapshot due. 0 as a whole: nothing is known. */
static inline uint64_t tr_snap_fingerprint(uint32_t source_id, uint64_t storage)
{
    uint32_t low = (uint32_t)(storage ^ storage >> 32);
    return storage ? (uint64_t)source_id << 32 | (low ? low : 1) : 0;
}

static inline uint64_t tr_snap_fingerprint_due(uint64_t fingerprint)
{
    return fingerprint & ~(uint64_t)UINT32_MAX;
}

static inline uint32_t tr_snap_fingerprint_source_id(uint64_t fingerprint)
{
    return (uint32_t)(fingerprint >> 32);
}

/* tr_table_storage.membership of a table that was found unpublished: whatever it has when it is published again is another one. */
#define TR_SNAP_UNPUBLISHED UINT64_MAX

static inline bool tr_snap_under_way(const struct tr_cap_table *t)
{
    return t->snap && t->snap->phase != SNAP_DONE;
}

/* "schema.table" */
enum { TR_SNAP_NAME_CHARS = 140 };
static inline const char *tr_snap_name(char ret[TR_SNAP_NAME_CHARS], const struct tr_cap_table *t)
{
    snprintf(ret, TR_SNAP_NAME_CHARS, "%s.%s", t->ns, t->name);
    return ret;
}

/* snapshot.c */
struct snap_chunk *tr_snap_add_chunk(struct tr_snap *p, struct tr_slice lo, struct tr_slice hi); /* NULL: no memory */
int tr_snap_pin(struct tr_snapshot *s, struct tr_cap_table *t, uint64_t offset, struct tr_err *err);
int tr_snap_save(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_err *err);
void tr_snap_log(enum tr_oslog_level level, const struct tr_cap_table *t, const char *text);
int tr_snap_begin(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_err *err); /* from its first phase */
void tr_snap_pause(struct tr_snapshot *s, struct tr_cap_table *t, const char *reason);

/* snapshot_tables.c */
int tr_snap_keyless(struct tr_snapshot *s, struct tr_cap_table *t, const char *no_key, struct tr_err *err); /* it can have none */
void tr_snap_note_strays(struct tr_snapshot *s);
void tr_snap_set_id(struct tr_snapshot *s, struct tr_cap_table *t, uint32_t id); /* t->source_id; the coordinator's, and before it runs */
void tr_snap_look(struct tr_snapshot *s);      /* at the source's tables, when that is due */
void tr_snap_begin_new(struct tr_snapshot *s); /* as many as may be under way */

void tr_snapshot_worker_run(void *arg); /* struct snap_worker * */
bool tr_snapshot_stopping(struct tr_snapshot *s);
struct snap_task *tr_snap_task_free(struct snap_task *t);

#endif
