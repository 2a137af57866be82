/*
 * ack.h: who still owes what for one poll of a lane.
 *
 * A tr_ack stands for all payloads of one poll. It starts with the reference of the pipeline loop that polled it; each
 * chunk, batch or ledger holding rows of that poll holds one more through its tr_ackset. The last reference to go posts
 * the ack to its sink (the checkpointer's intrusive queue) with the worst status anyone reported: posting neither
 * allocates nor blocks.
 *
 * Records that are dropped (filtered, skipped by policy) resolve as delivered by simply holding nothing. *Collections fail
 * by default*: a tr_ackset that is done without tr_ackset_deliver fails every poll it holds. So any teardown costs replay,
 * never loss.
 *
 * Cost: adding the poll that was added last is a compare, no atomic. A row therefore costs none; a chunk costs one atomic
 * per poll it holds rows of. Several sinks on one source simply hold the same ack: the worst status wins.
 *
 * Threads: an ackset has one owner at a time; acks are shared by atomics.
 */
#ifndef TR_ACK_H
#define TR_ACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum tr_ack_status { TR_ACK_DELIVERED = 0, TR_ACK_FAILED = 1 };

struct tr_ack;

/* Receives resolved acks: an intrusive multi-producer stack, drained by one consumer. */
struct tr_ack_sink {
    _Atomic(struct tr_ack *) head;
    void (*notify)(void *arg); /* called after a post onto an empty stack; must not block */
    void *notify_arg;
};

struct tr_ack {
    struct tr_ack *next;       /* the checkpointer's */
    struct tr_ack_sink *sink;
    uint64_t seq;              /* per lane and epoch, 0, 1, 2 … in poll order */
    int64_t upto;              /* committable position once this and all earlier polls are delivered */
    uint32_t lane, epoch;
    uint32_t payloads;
    _Atomic(uint32_t) refs;
    _Atomic(uint8_t) status;   /* worst of enum tr_ack_status */
};

void tr_ack_sink_init(struct tr_ack_sink *s, void (*notify)(void *), void *arg);
struct tr_ack *tr_ack_sink_take(struct tr_ack_sink *s); /* everything posted, linked by next, oldest post first */

/* refs = 1, the caller's. */
int tr_ack_new(struct tr_ack_sink *sink, uint32_t lane, uint32_t epoch, uint64_t seq, int64_t upto, struct tr_ack **ret);
void tr_ack_ref(struct tr_ack *a);
void tr_ack_unref(struct tr_ack *a);  /* the last one posts */
void tr_ack_fail(struct tr_ack *a);   /* marks; does not give up the reference */
void tr_ack_free(struct tr_ack *a);   /* the checkpointer, after it has taken the ack */

struct tr_ackset {
    struct tr_ack **v; /* NULL: inline_v, so that a set can be moved by assignment */
    uint32_t n, cap;
    struct tr_ack *inline_v[4];
};

void tr_ackset_init(struct tr_ackset *s);
int tr_ackset_add(struct tr_ackset *s, struct tr_ack *a);      /* free if a is the one added last; NOMEM */
int tr_ackset_merge(struct tr_ackset *to, struct tr_ackset *from); /* moves all; from is empty afterwards */
void tr_ackset_deliver(struct tr_ackset *s); /* after a durable write only; empties the set */
void tr_ackset_done(struct tr_ackset *s);    /* fails whatever was not delivered; frees */

#endif
