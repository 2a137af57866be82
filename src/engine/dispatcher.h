/*
 * dispatcher.h: which sealed batch of a shard is written when, and to which endpoint.
 *
 * Batches are given in sealing order and keep it. At most `inflight` of the oldest unfinished ones are in the window; only those
 * are written. A batch that failed RETRY is written again, the same frozen bytes, after a backoff and to the next healthy
 * endpoint; it keeps its place, and its window slot.
 *
 * Order. The engine gives inflight > 1 only where order per key survives it. A *dependent* batch (it holds an unchanged
 * column or a key update, so its meaning rests on what came before; or the writer has `complete`) is started only when every
 * earlier batch is durable. In pipelined mode batches are submitted strictly in order; RETRY of a ticket puts it and all later
 * ones back, to be submitted again in order under new tickets.
 *
 * Endpoints are taken in rotation, those with an open breaker left out. Only blame ENDPOINT (or none given) counts against
 * the breaker.
 *
 * The caller asks next_action until it says NONE, and carries each action out:
 *   WRITE    start writing (submitting) slot->batch to `endpoint`; report by on_result (pipelined: on_submitted, on_done …)
 *   DONE     slot->batch is durable (or was dropped): deliver its acks; the slot is gone afterwards
 *   REJECTED the peer refused it: rewrite it and say on_rewritten, or on_dropped when nothing is left
 *   REBIND   its target changed: bind again, then say on_rebound
 *   FAIL     fenced or fatal: fail the pipeline; said once
 *
 * A pure machine owned by a shard worker; allocates in init only.
 */
#ifndef TR_DISPATCHER_H
#define TR_DISPATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/err.h>

#include "breaker.h"
#include "prng.h"
#include "retry.h"

enum tr_disp_state {
    TR_DISP_READY,    /* to be written, not before not_before_ns */
    TR_DISP_BUSY,
    TR_DISP_FINISHED, /* durable, DONE not yet said */
    TR_DISP_GONE,     /* DONE was said; waits for its place at the head to be popped */
    TR_DISP_REFUSED, TR_DISP_REFUSED_TOLD,
    TR_DISP_STALE, TR_DISP_STALE_TOLD,
    TR_DISP_FAILED, TR_DISP_FAILED_TOLD,
};

struct tr_disp_slot {
    void *batch;
    uint64_t ticket;     /* of the write under way; unique per write */
    int64_t not_before_ns, started_ns;
    uint32_t attempt, endpoint;
    uint8_t state;
    bool dependent;
};

struct tr_disp_cfg {
    uint32_t inflight, queue; /* window; sealed batches that may wait behind it */
    uint32_t endpoints;
    bool pipelined;
    struct tr_retry retry;
    uint32_t breaker_failures;
    int64_t breaker_open_ns;
};

enum tr_disp_kind { TR_DISP_ACT_NONE, TR_DISP_ACT_WRITE, TR_DISP_ACT_DONE, TR_DISP_ACT_REJECTED, TR_DISP_ACT_REBIND, TR_DISP_ACT_FAIL };

struct tr_disp_action {
    enum tr_disp_kind kind;
    void *batch;
    uint64_t ticket;
    uint32_t endpoint, attempt;
};

struct tr_dispatcher {
    struct tr_disp_cfg cfg;
    struct tr_disp_slot *slots; /* ring of inflight + queue */
    uint32_t cap, head, n;
    uint32_t busy;
    struct tr_breaker *breakers;
    uint32_t ep_next;
    uint64_t ticket_next;
    struct tr_prng *prng;       /* borrowed */
    uint64_t retries;
};

int tr_dispatcher_init(struct tr_dispatcher *d, const struct tr_disp_cfg *cfg, struct tr_prng *prng); /* NOMEM */
void tr_dispatcher_done(struct tr_dispatcher *d);

bool tr_dispatcher_room(const struct tr_dispatcher *d);
bool tr_dispatcher_idle(const struct tr_dispatcher *d); /* holds no unfinished batch */
void tr_dispatcher_on_sealed(struct tr_dispatcher *d, void *batch, bool dependent);
struct tr_disp_action tr_dispatcher_next(struct tr_dispatcher *d, int64_t now_ns);
int64_t tr_dispatcher_next_wake(const struct tr_dispatcher *d);

/* The write of `ticket` ended: TR_OK, RETRY, STALE, REJECT, anything else fails. Pipelined: OK counts for all up to ticket, RETRY
 * for all from it on. An unknown (older) ticket is ignored. */
void tr_dispatcher_on_result(struct tr_dispatcher *d, uint64_t ticket, int rc, uint8_t blame, uint32_t retry_after_ms, int64_t now_ns);
/* Pipelined: the writer forgot everything behind a ticket (abandon, a lost connection; 0: everything): those are READY again, in order. */
void tr_dispatcher_on_forgotten(struct tr_dispatcher *d, uint64_t after_ticket, int64_t not_before_ns);
void tr_dispatcher_on_rewritten(struct tr_dispatcher *d, void *batch);
void tr_dispatcher_on_dropped(struct tr_dispatcher *d, void *batch); /* nothing is left of it: it counts as durable */
void tr_dispatcher_on_rebound(struct tr_dispatcher *d, void *batch, int64_t not_before_ns);
void tr_dispatcher_on_rebind_failed(struct tr_dispatcher *d, void *batch, int rc); /* REJECT, or anything that fails */
/* Teardown: removes and returns any batch that is not BUSY; NULL when there is none. */
void *tr_dispatcher_take(struct tr_dispatcher *d);
uint32_t tr_dispatcher_open_breakers(const struct tr_dispatcher *d);

#endif
