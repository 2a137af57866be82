/*
 * checkpointer.h: which position of each lane may be committed.
 *
 * Per (lane, epoch) the polls are numbered 0, 1, 2 … by the thread that made them. Each is resolved once, in any order, as
 * delivered or failed. The committable position is the `upto` of the last poll of the *contiguous delivered prefix*, never
 * arithmetic on positions. `upto` INT64_MIN makes no statement: the prefix passes over it, the position stays.
 *
 *   polls   0 D 10   1 D 20   2 –   3 D 40        watermark 20 until poll 2 is resolved, then 40
 *   polls   0 D 10   1 F      2 D 30              watermark 10 for ever: a failed batch stalls, and `stalled_since` says so
 *
 * begin_epoch starts a lane anew; what is resolved for an older epoch (or for a lane that has ended) is discarded.
 *
 * A pure machine owned by the controller. It allocates only in begin_epoch and when the ring of a lane doubles, up to
 * polls_max entries: the engine polls no further than that ahead of the prefix.
 */
#ifndef TR_CHECKPOINTER_H
#define TR_CHECKPOINTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/source.h>

struct tr_ckpt_poll {
    int64_t upto;
    uint8_t state; /* 0 outstanding, 1 delivered, 2 failed */
};

struct tr_ckpt_lane {
    uint32_t lane, epoch;
    struct tr_ckpt_poll *ring; /* ring[seq & (cap - 1)] for head <= seq < head + cap */
    uint32_t cap;
    uint64_t head;             /* lowest seq that is not in the delivered prefix */
    int64_t upto;              /* INT64_MIN: none yet */
    int64_t committed;         /* what the source was last given */
    int64_t moved_ns;          /* when upto last advanced */
    int64_t stalled_since_ns;  /* INT64_MAX: no failed poll */
};

struct tr_ckpt {
    struct tr_ckpt_lane *v;
    uint32_t n, cap, polls_max;
    int64_t interval_ns, next_ns;
    bool eager;
    uint64_t stale;            /* acks discarded */
};

void tr_ckpt_init(struct tr_ckpt *c, uint32_t polls_max, int64_t interval_ns, bool eager, int64_t now_ns);
void tr_ckpt_done(struct tr_ckpt *c);

int tr_ckpt_begin_epoch(struct tr_ckpt *c, uint32_t lane, uint32_t epoch, int64_t now_ns); /* NOMEM */
void tr_ckpt_end_epoch(struct tr_ckpt *c, uint32_t lane, uint32_t epoch);                  /* what comes later for it is stale */
/* NOMEM, else 1 when the lane's watermark moved, 0 when not. */
int tr_ckpt_on_resolved(struct tr_ckpt *c, uint32_t lane, uint32_t epoch, uint64_t seq, int64_t upto, bool failed, int64_t now_ns);

const struct tr_ckpt_lane *tr_ckpt_lane(const struct tr_ckpt *c, uint32_t lane, uint32_t epoch);
/* All of the first `issued` polls are delivered (1), still outstanding (0), or one of them failed (-1). */
int tr_ckpt_settled(const struct tr_ckpt *c, uint32_t lane, uint32_t epoch, uint64_t issued);

/* Committing: when due, collect what moved, hand it over, and say how that went. A hand-over that failed is due again after
 * retry_ns. */
bool tr_ckpt_due(const struct tr_ckpt *c, int64_t now_ns);
size_t tr_ckpt_collect(const struct tr_ckpt *c, struct tr_watermark *v, size_t max);
void tr_ckpt_on_committed(struct tr_ckpt *c, const struct tr_watermark *v, size_t n, int64_t now_ns);
void tr_ckpt_on_commit_failed(struct tr_ckpt *c, int64_t now_ns, int64_t retry_ns);
int64_t tr_ckpt_next_wake(const struct tr_ckpt *c);

int64_t tr_ckpt_stalled_since(const struct tr_ckpt *c); /* earliest over all lanes; INT64_MAX: none */

#endif
