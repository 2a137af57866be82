/*
 * batcher.h: which chunks of a shard become one batch, and when.
 *
 * Items (chunks, by their numbers only) arrive in order. They wait in bins: one bin for a sink that takes many parts in one
 * write (MULTI), else one per target. A bin is sealed, as a prefix of its items, when
 *   size      its rows or bytes reach the maximum (a prefix never exceeds them, unless its first item alone does)
 *   linger    its oldest row has waited linger_ns
 *   idle      the rows were handed over because the sources are idle, and no write is in flight: latency. While one is, rows
 *             accumulate: natural group commit. With a pace, what this alone asks for is sealed in rounds, pace_ns apart: what came before a round
 *             began goes with it
 *   forced    a barrier, a revoke, or the drain
 *   order     (not MULTI) the same table arrives under another target: the older schema version goes first
 *   bins      (not MULTI) more targets than bins: the largest, then the oldest
 *
 * BOUNDARY. Items wait in the staging of their group (the pipeline thread they come from) until the group's next
 * transaction end, which moves them to the bin. A seal cuts only behind such an end, so a batch never holds half a
 * transaction; except that staging above tx_bytes_max (at most half the in-flight budget) is moved without an end and
 * sealed in parts (`splits` counts them), for else it could never be written.
 *
 * A pure machine owned by a shard worker. It allocates in init only: bins_max bins, groups_max stagings. Items are the caller's.
 */
#ifndef TR_BATCHER_H
#define TR_BATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"

struct tr_batcher_item {
    struct tr_list node;
    uint64_t target;     /* identity of the target */
    uint64_t binding;    /* equal for what was put between two unbinds */
    uint64_t table;      /* equal for all versions of one table and variant */
    uint32_t group;
    uint32_t rows;
    uint64_t bytes;      /* of payload */
    uint64_t charge;     /* held of the budget */
    int64_t oldest_ns;
    bool boundary;       /* the batcher's: a transaction ends behind this item */
};

struct tr_batcher_bin {
    struct tr_list items;
    uint64_t target, table, binding;
    uint64_t rows, bytes;
    int64_t oldest_ns;
    uint64_t seq;        /* rises with each bin opened */
    bool used, idle, forced;
    bool closed;         /* rows of its table came in another definition: nothing may be added behind them */
    bool partial;        /* BOUNDARY: ends inside a transaction larger than the bound */
};

struct tr_batcher_cfg {
    bool multi, boundary;
    uint64_t rows_max, bytes_max, tx_bytes_max;
    int64_t linger_ns, pace_ns;
    uint32_t bins_max, groups_max;
};

struct tr_batcher {
    struct tr_batcher_cfg cfg;
    struct tr_batcher_bin *bins;
    uint32_t n_bins;     /* used */
    uint64_t seq;
    int64_t round_ns;    /* with a pace: when the last round began … */
    uint64_t round_seq;  /* … and what bins were there: those below */
    struct tr_staging {
        struct tr_list items;
        uint64_t charge;
    } *staging;
    bool closing;
    uint64_t splits;
};

int tr_batcher_init(struct tr_batcher *b, const struct tr_batcher_cfg *cfg); /* NOMEM */
void tr_batcher_done(struct tr_batcher *b);                                  /* all items must have been taken */

void tr_batcher_on_item(struct tr_batcher *b, struct tr_batcher_item *it);
void tr_batcher_on_boundary(struct tr_batcher *b, uint32_t group); /* BOUNDARY only; else nothing */
void tr_batcher_on_idle(struct tr_batcher *b);                     /* what is in bins may go as soon as no write is in flight */
void tr_batcher_on_force(struct tr_batcher *b);                    /* what is in bins goes at once */
void tr_batcher_on_close(struct tr_batcher *b);                    /* no more items: forced, for good */
void tr_batcher_split(struct tr_batcher *b);                       /* BOUNDARY: staging moves to the bin without an end */

/* Moves the items of the next batch to `ret` (which is empty) and returns true, or false when nothing is due. no_writes: none is
 * in flight in this shard. */
bool tr_batcher_next(struct tr_batcher *b, int64_t now_ns, bool no_writes, struct tr_list *ret, bool *ret_tx_end);
int64_t tr_batcher_next_wake(const struct tr_batcher *b);
bool tr_batcher_empty(const struct tr_batcher *b);        /* bins; staging aside */
bool tr_batcher_staged(const struct tr_batcher *b);       /* something waits for its transaction's end */
void tr_batcher_take_staged(struct tr_batcher *b, struct tr_list *ret); /* to be failed */
void tr_batcher_take_all(struct tr_batcher *b, struct tr_list *ret);    /* bins and staging, to be failed */
bool tr_batcher_wants_more(const struct tr_batcher *b);   /* no bin is full */

#endif
