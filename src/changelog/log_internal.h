/*
 * log_internal.h: what the parts of the embedded log share.
 *
 * Threads and locks. `lock` of a partition guards the fields marked L. Those marked A are the appender's: it writes them holding the
 * lock where they are also marked L, so that it reads them freely and all others under the lock. append and retain exclude each
 * other through `busy`.
 */
#ifndef TR_LOG_INTERNAL_H
#define TR_LOG_INTERNAL_H

#include <tailrace/metric.h>

#include "list.h"
#include "log.h"
#include "log_segment.h"
#include "map.h"
#include "thread.h"

struct tr_logseg {
    uint64_t base;
    uint64_t end;      /* L: base of the next; UINT64_MAX: this is the active one */
    uint64_t data_end; /* L: position behind its last frame, once sealed */
    uint64_t bytes;    /* L: what it counts for on disk */
    int64_t created_us, sealed_us;
    uint32_t readers;  /* L */
    bool removed;      /* L: it is being removed: no reader enters it or reads on */
    bool dropped;      /* L: it is in segs no longer: freed by the last reader that leaves */
    struct tr_logindex *index; /* L: of the active segment, and of a sealed one until its file is written */
};

struct tr_logpoint { /* a place where no transaction is open */
    uint64_t base, pos, offset;
};

#define TR_LOGDEF_NOWHERE (UINT64_MAX - 1)

/* A definition ever seen: the frame to repeat, and the newest segment that has it. */
struct tr_logdef {
    uint32_t table_id, version;
    uint64_t in;        /* base of that segment; UINT64_MAX: of an append that failed; TR_LOGDEF_NOWHERE: not known, perhaps in none */
    uint64_t was;       /* what `in` was before the append under way */
    struct tr_buf frame;
};

struct tr_logpin {
    struct tr_list link;
    uint64_t offset;
    char who[];
};

struct tr_logspare {
    uint32_t id;
    uint64_t zeroed; /* from its beginning, synced */
    bool ready;
};

struct tr_logcells {
    struct tr_cell *bytes, *frames, *segments, *disk, *durable, *recycled, *removed;
    struct tr_histogram *sync_ns;
};

struct tr_elog;

struct tr_logpart {
    struct tr_elog *log;
    uint32_t id;
    char *dir;
    struct tr_mutex lock, busy;
    struct tr_mutex marking; /* one writes the file "tail" at a time; taken before lock */
    struct tr_cond work;  /* the sync thread waits */
    struct tr_cond moved; /* durable moved, or a sync ended */
    struct tr_thread *thread;
    bool stop;    /* L */
    bool syncing; /* L: file is being synced: it may not be closed */
    int failed;   /* L: 0, or TR_FATAL for ever */
    struct tr_err why;

    struct tr_logseg **segs; /* L, A */
    size_t n, cap;
    uint64_t bytes;          /* L: of all segments */

    struct tr_file *file;    /* A: the active segment */
    struct tr_logwalk walk;  /* L, A: at the tail */
    uint64_t pos;            /* L, A */
    uint64_t dirty_to;       /* A: a failed append may have left bytes between pos and here */
    struct tr_logpoint end;  /* L, A: last place without an open transaction */
    struct tr_logpoint durable;  /* L */
    uint64_t reported;           /* L: what durable(want 0) said last */
    struct tr_logpoint marked;   /* L: what the file "tail" says */
    int64_t no_spare_until_ns;   /* L */

    struct tr_u64map defs;   /* A: key -> struct tr_logdef */
    struct tr_buf staging;   /* A */
    struct tr_list pins, readers; /* L */

    struct tr_logspare spares[TR_LOG_SPARES_MAX]; /* L; [0] is used and prepared first */
    uint32_t n_spares, spare_next;
    bool preparing;                               /* L: [0] is being zeroed */
    struct tr_logcells cells;
};

struct tr_elog {
    struct tr_log log;
    struct tr_log_options o;
    char *dir;
    struct tr_file *lock;
    struct tr_logpart *parts;
    uint64_t part_size_max; /* 0: none */
    struct tr_thread *tender;
    struct tr_mutex tend_lock; /* guards what follows; taken last */
    struct tr_cond tend_work;
    bool tend_due, tend_stop;
    bool tend_hears;           /* a sync is news: the tender does not know of anything to mark yet */
};

struct tr_elog *tr_elog_of(struct tr_log *l);
struct tr_logpart *tr_logpart_at(struct tr_log *l, uint32_t p, struct tr_err *err); /* NULL: REJECT is set */

/* log_open.c */
int tr_logpart_open(struct tr_logpart *p, struct tr_err *err);
void tr_logseg_free(struct tr_logseg *s);
int tr_logpart_push(struct tr_logpart *p, struct tr_logseg *s); /* NOMEM; room for one more in segs first */

/* log_append.c */
int tr_logpart_append(struct tr_logpart *p, const struct tr_log_run *v, size_t n, uint64_t *ret_next, struct tr_err *err);
int tr_logpart_def_learn(struct tr_logpart *p, struct tr_slice raw, const struct tr_logframe *f, struct tr_logdef **ret, struct tr_err *err);
int tr_logpart_def_carry(struct tr_logpart *p, struct tr_logdef *d, struct tr_err *err);

/* log_cut.c */
int tr_logpart_cut(struct tr_logpart *p, struct tr_err *err);

/* log_sync.c: lock is held where it says so */
int tr_logpart_sync(struct tr_logpart *p, bool force, struct tr_err *err); /* held; let go while the disk works. force: whatever was appended */
int tr_logpart_fail(struct tr_logpart *p, const struct tr_err *why);   /* held: FATAL for ever */
int tr_logpart_check(struct tr_logpart *p, struct tr_err *err);        /* held: that failure again */
void tr_logpart_advance(struct tr_logpart *p, struct tr_logpoint to);  /* held */
bool tr_logpart_tend(struct tr_logpart *p);                            /* not held: one step of housekeeping; true: there is more */
void tr_elog_synced(struct tr_elog *e);                                /* more is durable, and to be marked */
void tr_elog_poke(struct tr_elog *e);                                  /* there is housekeeping to do */
void tr_elog_tender(void *arg);
void tr_logpart_mark_tail(struct tr_logpart *p, bool failed);          /* not held */
void tr_logpart_thread(void *arg);

/* log_retain.c */
int tr_logpart_retain(struct tr_logpart *p, int64_t now_us, uint64_t room, struct tr_err *err); /* busy held; room: bytes to be free below size_max. 1: more may go once the open transaction has ended */
bool tr_logpart_spare_take(struct tr_logpart *p, uint32_t *ret_id);    /* not held: a ready one */
bool tr_logpart_spare_step(struct tr_logpart *p, uint64_t bytes);      /* not held; true: there is more to do */
bool tr_logpart_spare_wanted(const struct tr_logpart *p);              /* held */
int tr_logpart_pin(struct tr_logpart *p, const char *who, uint64_t offset, struct tr_err *err);
uint64_t tr_logpart_pinned(struct tr_logpart *p);                      /* held */

/* log_reader.c */
int tr_logpart_reader_new(struct tr_logpart *p, uint64_t offset, struct tr_log_reader **ret, struct tr_err *err);
void tr_logpart_wake_readers(struct tr_logpart *p);                    /* held */

#endif
