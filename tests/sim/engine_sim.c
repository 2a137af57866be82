/*
 * engine_sim.c: the engine's machines under one seeded scheduler: checkpointer, batcher, dispatcher, breakers, budget, with the real acks.
 *
 *   engine_sim [--seeds N] [--seed S] [--steps N] [--mutant NAME]
 *
 * One thread, a clock that is a number, one generator. A seed chooses a shape (how many lanes, many parts or one, boundaries,
 * writes in flight, pipelined or not, endpoints) and then, step by step, what happens: polls, pushes, flushes, writes that
 * succeed, fail, are applied and then time out, are refused or stale; endpoints that go and come; commits that fail; lanes lost
 * and assigned again; crashes, in which all that is volatile goes and only the sink and the committed positions stay.
 *
 * Always:      nothing is committed that is not durable; nothing at or below a committed position is missing;
 *              in order per key where that is promised (no row before its predecessor, and the last one stays);
 *              whole transactions where that is promised; memory within its bound
 * In the end:  once the faults stop, everything is delivered and committed within a bounded time
 *
 * Mutants, each an engine with one rule broken, must be caught:
 *   commit-early   commits what was polled        plus-one   contiguity by position + 1       ack-early   acks deliver at dispatch
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>

#include "ack.h"
#include "batcher.h"
#include "budget.h"
#include "check.h"
#include "checkpointer.h"
#include "dispatcher.h"
#include "prng.h"

enum { LANES_MAX = 4, RECS = 300, KEYS = 5, TABLES = 2, ROW_BYTES = 100, CHUNK_ROWS = 6, CHUNK_MAX = 512, WRITES_MAX = 8, QUEUE_MAX = 8 };
#define MS TR_NS_PER_MS

enum mutant { MUTANT_NONE, MUTANT_COMMIT_EARLY, MUTANT_PLUS_ONE, MUTANT_ACK_EARLY };
static const char *const mutant_names[] = {"none", "commit-early", "plus-one", "ack-early"};

struct rec {
    int64_t pos;
    uint8_t key, table;
    bool tx_end, filtered;
    int prev;           /* of the same key; -1 */
    /* durable, the sink's */
    uint32_t applied;
    bool skipped;       /* refused, and the owner recorded it */
};

struct chunk {
    struct tr_batcher_item it;
    struct tr_ackset acks;
    uint32_t n;
    struct {
        uint8_t lane;
        uint16_t rec;
    } v[CHUNK_MAX];
    bool boundary, idle, force; /* marks behind it */
    struct chunk *next;         /* queue */
};

struct sbatch {
    struct tr_list items;
    bool tx_end;
    uint64_t no;
};

struct write {
    struct sbatch *b;   /* NULL: free */
    uint64_t ticket;
    uint32_t endpoint;
    int64_t done_ns;
};

struct lane {
    struct rec recs[RECS];
    int64_t committed;  /* durable: what the source was given */
    /* volatile */
    uint32_t epoch;
    uint64_t issued;
    int cursor, from, to;      /* records of the poll whose push is pending: [from, to) */
    struct tr_ack *ack;        /* of the pending push */
    int64_t said;
    int64_t plus_one;          /* the mutant's watermark */
    bool idle;
};

struct counts {
    uint64_t polls, rows, chunks, batches, splits, writes, retries, applied_then_lost, rejects, stale, commits, commit_failures, losses, crashes, blocked, duplicates, breakers;
};

struct sim {
    struct tr_prng prng;
    uint64_t seed;
    uint32_t steps;
    enum mutant mutant;
    int64_t now;
    struct counts *c;
    char failure[256];
    /* shape */
    uint32_t lanes, groups;
    bool multi, boundary, pipelined, monotonic;
    uint32_t inflight, endpoints;
    uint64_t limit, high, low;
    /* world, survives crashes */
    struct lane lane[LANES_MAX];
    int state[LANES_MAX][KEYS];  /* last row applied per key */
    bool down[8];
    bool faults;
    uint32_t epoch_next;
    /* engine, volatile */
    bool up;
    struct tr_ack_sink acks;
    struct tr_ckpt ckpt;
    struct tr_batcher batcher;
    struct tr_dispatcher disp;
    struct tr_budget budget;
    struct chunk *open[LANES_MAX][TABLES];
    struct chunk *queue, **queue_tail;
    uint32_t queued;
    bool tx_open[LANES_MAX], shipped_in_tx[LANES_MAX], unmarked[LANES_MAX];
    struct write writes[WRITES_MAX];
    uint32_t n_writes;
    uint64_t charged, batch_no;
};

static bool fail(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool fail(struct sim *s, const char *fmt, ...)
{
    if (!s->failure[0]) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(s->failure, sizeof s->failure, fmt, ap);
        va_end(ap);
    }
    return false;
}

static bool chance(struct sim *s, uint64_t num, uint64_t den)
{
    return tr_prng_chance(&s->prng, num, den);
}

static uint64_t below(struct sim *s, uint64_t n)
{
    return tr_prng_below(&s->prng, n);
}

/* ---- the world -------------------------------------------------------------------------------------------------------- */

static void make_lane(struct sim *s, struct lane *l)
{
    int64_t pos = 0;
    int prev[KEYS], tx_left = 0;
    for (int k = 0; k < KEYS; k++)
        prev[k] = -1;
    for (int i = 0; i < RECS; i++) {
        struct rec *r = &l->recs[i];
        if (tx_left == 0) /* now and then one larger than the budget */
            tx_left = chance(s, 1, 60) ? 50 : 1 + (int)below(s, 6);
        pos += 1 + (int64_t)below(s, 3);
        *r = (struct rec){.pos = pos, .key = (uint8_t)below(s, KEYS)};
        r->table = r->key % TABLES;
        r->filtered = chance(s, 1, 10);
        r->prev = prev[r->key];
        if (!r->filtered)
            prev[r->key] = i;
        r->tx_end = --tx_left == 0 || i == RECS - 1;
    }
    l->committed = 0;
}

static bool durable(const struct rec *r)
{
    return r->applied || r->skipped || r->filtered;
}

static bool apply_rec(struct sim *s, uint32_t lane, int i)
{
    struct rec *r = &s->lane[lane].recs[i];
    int *st = &s->state[lane][r->key];
    if (!s->monotonic && r->prev >= 0 && !durable(&s->lane[lane].recs[r->prev]))
        return fail(s, "lane %u: the row at %lld of key %u was applied before the one at %lld", lane, (long long)r->pos, r->key,
                    (long long)s->lane[lane].recs[r->prev].pos);
    s->c->duplicates += r->applied > 0;
    r->applied++;
    if (!s->monotonic || i > *st)
        *st = i;
    return true;
}

static bool apply(struct sim *s, struct sbatch *b)
{
    int last[LANES_MAX];
    for (uint32_t l = 0; l < LANES_MAX; l++)
        last[l] = -1;
    TR_LIST_EACH (n, &b->items) {
        struct chunk *c = tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct chunk, it);
        for (uint32_t i = 0; i < c->n; i++) {
            if (!apply_rec(s, c->v[i].lane, c->v[i].rec))
                return false;
            last[c->v[i].lane] = TR_MAX(last[c->v[i].lane], (int)c->v[i].rec);
        }
    }
    for (uint32_t l = 0; s->boundary && b->tx_end && l < s->lanes; l++) {
        /* Whole transactions: every unfiltered row up to the end of the last one seen is there. */
        int i = last[l];
        while (i >= 0 && !s->lane[l].recs[i].tx_end) {
            i++;
            if (!durable(&s->lane[l].recs[i]))
                return fail(s, "lane %u: a batch that ends at a transaction's end holds half of the one at %lld", l, (long long)s->lane[l].recs[i].pos);
        }
    }
    return true;
}

/* ---- the engine's start and end ---------------------------------------------------------------------------------------- */

static void chunk_drop(struct sim *s, struct chunk *c, bool deliver)
{
    s->charged -= c->it.charge;
    if (deliver)
        tr_ackset_deliver(&c->acks);
    else
        tr_ackset_done(&c->acks);
    free(c);
}

static void items_drop(struct sim *s, struct tr_list *l, bool deliver)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(l)))
        chunk_drop(s, tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct chunk, it), deliver);
}

static void batch_drop(struct sim *s, struct sbatch *b, bool deliver)
{
    items_drop(s, &b->items, deliver);
    free(b);
}

static void assign(struct sim *s, uint32_t i)
{
    struct lane *l = &s->lane[i];
    l->epoch = s->epoch_next++;
    l->issued = 0;
    l->cursor = 0;
    while (l->cursor < RECS && l->recs[l->cursor].pos <= l->committed)
        l->cursor++;
    l->from = l->to = 0;
    l->ack = NULL;
    l->said = l->plus_one = l->committed;
    TR_ASSERT(tr_ckpt_begin_epoch(&s->ckpt, i, l->epoch, s->now) >= 0);
}

static void start(struct sim *s)
{
    struct tr_batcher_cfg bc = {.multi = s->multi,
                                .boundary = s->boundary,
                                .rows_max = 20,
                                .bytes_max = 20 * ROW_BYTES,
                                .tx_bytes_max = s->limit / 2,
                                .linger_ns = 20 * MS,
                                .bins_max = TABLES + 1,
                                .groups_max = s->groups};
    struct tr_disp_cfg dc = {.inflight = s->inflight,
                             .queue = 1,
                             .endpoints = s->endpoints,
                             .pipelined = s->pipelined,
                             .retry = {MS, 20 * MS},
                             .breaker_failures = 2,
                             .breaker_open_ns = 30 * MS};
    tr_ack_sink_init(&s->acks, NULL, NULL);
    tr_ckpt_init(&s->ckpt, 1024, 10 * MS, chance(s, 1, 2), s->now);
    TR_ASSERT(tr_batcher_init(&s->batcher, &bc) >= 0 && tr_dispatcher_init(&s->disp, &dc, &s->prng) >= 0);
    tr_budget_init(&s->budget, s->high, s->low, MS);
    s->queue = NULL;
    s->queue_tail = &s->queue;
    s->queued = 0;
    memset(s->tx_open, 0, sizeof s->tx_open);
    memset(s->shipped_in_tx, 0, sizeof s->shipped_in_tx);
    memset(s->unmarked, 0, sizeof s->unmarked);
    for (uint32_t i = 0; i < s->lanes; i++)
        assign(s, i);
    s->up = true;
}

static void free_acks(struct sim *s)
{
    for (struct tr_ack *a = tr_ack_sink_take(&s->acks), *next; a; a = next) {
        next = a->next;
        tr_ack_free(a);
    }
}

/* All that is volatile goes. What a write had begun may or may not happen. */
static void stop(struct sim *s)
{
    struct tr_list left;
    tr_list_init(&left);
    for (uint32_t i = 0; i < s->n_writes; i++) {
        if (s->faults && chance(s, 1, 2))
            apply(s, s->writes[i].b);
        else if (s->pipelined) /* in order: what follows a lost one is lost */
            break;
    }
    s->n_writes = 0;
    for (uint32_t g = 0; g < LANES_MAX; g++)
        for (uint32_t t = 0; t < TABLES; t++) {
            if (s->open[g][t])
                chunk_drop(s, s->open[g][t], false);
            s->open[g][t] = NULL;
        }
    for (struct chunk *c = s->queue, *next; c; c = next) {
        next = c->next;
        chunk_drop(s, c, false);
    }
    s->queue = NULL;
    tr_batcher_take_all(&s->batcher, &left);
    items_drop(s, &left, false);
    tr_batcher_done(&s->batcher);
    tr_dispatcher_on_forgotten(&s->disp, 0, 0);
    for (struct sbatch *b; (b = tr_dispatcher_take(&s->disp));)
        batch_drop(s, b, false);
    s->c->retries += s->disp.retries;
    tr_dispatcher_done(&s->disp);
    for (uint32_t i = 0; i < s->lanes; i++)
        if (s->lane[i].ack) {
            tr_ack_fail(s->lane[i].ack);
            tr_ack_unref(s->lane[i].ack);
            s->lane[i].ack = NULL;
        }
    free_acks(s);
    tr_ckpt_done(&s->ckpt);
    if (s->charged != 0)
        fail(s, "%llu bytes of the budget were never given back", (unsigned long long)s->charged);
    s->up = false;
}

/* ---- polls, pushes, chunks ---------------------------------------------------------------------------------------------- */

static uint32_t group_of(const struct sim *s, uint32_t lane)
{
    return lane % s->groups;
}

static void ship(struct sim *s, uint32_t g, uint32_t t)
{
    struct chunk *c = s->open[g][t];
    if (!c)
        return;
    s->open[g][t] = NULL;
    c->it.rows = c->n;
    c->it.bytes = c->it.charge;
    c->it.target = t + 1;
    c->it.table = t + 1;
    c->it.group = g;
    *s->queue_tail = c;
    s->queue_tail = &c->next;
    s->queued++;
    s->unmarked[g] = true;
    s->shipped_in_tx[g] = true;
    s->c->chunks++;
}

/* With marks behind the last chunk; a mark of its own when nothing is open. */
static void ship_all(struct sim *s, uint32_t g, bool boundary, bool idle, bool force)
{
    bool any = false;
    for (uint32_t t = 0; t < TABLES; t++)
        any |= s->open[g][t] != NULL;
    if (!any && !s->unmarked[g])
        return;
    for (uint32_t t = 0; t < TABLES; t++)
        ship(s, g, t);
    struct chunk *m;
    if (any) {
        m = tr_container_of(s->queue_tail, struct chunk, next);
    } else {
        m = calloc(1, sizeof *m);
        TR_ASSERT(m != NULL);
        tr_list_init(&m->it.node);
        tr_ackset_init(&m->acks);
        m->it.group = g;
        *s->queue_tail = m;
        s->queue_tail = &m->next;
        s->queued++;
    }
    m->boundary = boundary;
    m->idle = idle;
    m->force = force;
    if (boundary || !s->boundary)
        s->unmarked[g] = false;
    if (boundary)
        s->shipped_in_tx[g] = false;
}

static void put(struct sim *s, uint32_t lane, int i)
{
    struct lane *l = &s->lane[lane];
    uint32_t g = group_of(s, lane);
    struct rec *r = &l->recs[i];
    if (!r->filtered) {
        struct chunk *c = s->open[g][r->table];
        if (!c) {
            c = s->open[g][r->table] = calloc(1, sizeof *c);
            TR_ASSERT(c != NULL);
            tr_list_init(&c->it.node);
            tr_ackset_init(&c->acks);
            c->it.oldest_ns = s->now;
        }
        c->v[c->n].lane = (uint8_t)lane;
        c->v[c->n++].rec = (uint16_t)i;
        c->it.charge += ROW_BYTES;
        s->charged += ROW_BYTES;
        TR_ASSERT(tr_ackset_add(&c->acks, l->ack) >= 0);
        s->tx_open[g] = true;
        s->c->rows++;
        if (c->n >= (s->boundary ? 2 * CHUNK_ROWS : CHUNK_ROWS))
            ship(s, g, r->table);
    }
    if (r->tx_end) {
        s->tx_open[g] = false;
        if (s->boundary && s->shipped_in_tx[g])
            ship_all(s, g, true, false, false);
    }
}

static void push(struct sim *s, uint32_t lane)
{
    struct lane *l = &s->lane[lane];
    while (l->from < l->to) {
        if (s->budget.engaged || s->charged > s->high || s->queued >= QUEUE_MAX) {
            s->c->blocked += !s->budget.engaged;
            tr_budget_on_refused(&s->budget, s->now);
            return;
        }
        put(s, lane, l->from++);
    }
    tr_ack_unref(l->ack);
    l->ack = NULL;
}

static void poll(struct sim *s, uint32_t lane)
{
    struct lane *l = &s->lane[lane];
    const struct tr_ckpt_lane *ck = tr_ckpt_lane(&s->ckpt, lane, l->epoch);
    if (l->ack) {
        push(s, lane);
        return;
    }
    int n = (int)below(s, 12);
    l->idle = l->cursor == RECS;
    if (l->issued - ck->head >= 1000 || (l->idle && (l->said == INT64_MAX || !chance(s, 1, 10))))
        return;
    if (l->cursor + n > RECS)
        n = RECS - l->cursor;
    int64_t upto = INT64_MIN;
    if (n) /* a poll says at least what it holds, and may know more: no record until the next */
        upto = l->recs[l->cursor + n - 1].pos + (l->cursor + n < RECS && chance(s, 1, 4) ? l->recs[l->cursor + n].pos - l->recs[l->cursor + n - 1].pos - 1 : 0);
    else if (chance(s, 1, 2))
        upto = l->said; /* again, nothing new */
    s->c->polls++;
    TR_ASSERT(tr_ack_new(&s->acks, lane, l->epoch, l->issued++, upto, &l->ack) >= 0);
    l->from = l->cursor;
    l->cursor = l->to = l->cursor + n;
    if (upto != INT64_MIN)
        l->said = upto;
    push(s, lane);
}

/* ---- the shard ---------------------------------------------------------------------------------------------------------- */

static void pop_queue(struct sim *s)
{
    while (s->queue && tr_batcher_wants_more(&s->batcher)) {
        struct chunk *c = s->queue;
        s->queue = c->next;
        if (!s->queue)
            s->queue_tail = &s->queue;
        s->queued--;
        bool boundary = c->boundary, idle = c->idle, force = c->force;
        uint32_t g = c->it.group;
        if (c->n)
            tr_batcher_on_item(&s->batcher, &c->it);
        else
            chunk_drop(s, c, true);
        if (boundary)
            tr_batcher_on_boundary(&s->batcher, g);
        if (idle)
            tr_batcher_on_idle(&s->batcher);
        if (force)
            tr_batcher_on_force(&s->batcher);
    }
}

static void seal(struct sim *s)
{
    while (tr_dispatcher_room(&s->disp)) {
        struct tr_list items;
        bool tx_end = false;
        tr_list_init(&items);
        if (!tr_batcher_next(&s->batcher, s->now, tr_dispatcher_idle(&s->disp), &items, &tx_end))
            return;
        struct sbatch *b = calloc(1, sizeof *b);
        TR_ASSERT(b != NULL);
        tr_list_init(&b->items);
        tr_list_splice_back(&b->items, &items);
        b->tx_end = tx_end;
        b->no = s->batch_no++;
        s->c->batches++;
        tr_dispatcher_on_sealed(&s->disp, b, !s->pipelined && chance(s, 1, 8));
    }
}

static void forget_writes(struct sim *s, uint32_t from)
{
    s->n_writes = TR_MIN(s->n_writes, from);
}

static void skip(struct sim *s, struct sbatch *b)
{
    TR_LIST_EACH (n, &b->items) {
        struct chunk *c = tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct chunk, it);
        for (uint32_t i = 0; i < c->n; i++)
            s->lane[c->v[i].lane].recs[c->v[i].rec].skipped = true;
    }
}

static bool carry_out(struct sim *s)
{
    struct tr_disp_action a = tr_dispatcher_next(&s->disp, s->now);
    struct sbatch *b = a.batch;
    switch (a.kind) {
    case TR_DISP_ACT_NONE:
        return false;
    case TR_DISP_ACT_WRITE:
        TR_ASSERT(s->n_writes < WRITES_MAX && (s->pipelined || s->n_writes < s->inflight));
        s->writes[s->n_writes++] = (struct write){.b = b, .ticket = a.ticket, .endpoint = a.endpoint, .done_ns = s->now + (int64_t)below(s, 8) * MS};
        s->c->writes++;
        if (s->mutant == MUTANT_ACK_EARLY) {
            TR_LIST_EACH (n, &b->items) {
                struct chunk *c = tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct chunk, it);
                tr_ackset_deliver(&c->acks);
            }
        }
        return true;
    case TR_DISP_ACT_DONE:
        batch_drop(s, b, true);
        return true;
    case TR_DISP_ACT_REJECTED:
        s->c->rejects++;
        if (s->pipelined) { /* those behind it must not overtake */
            forget_writes(s, 0);
            tr_dispatcher_on_forgotten(&s->disp, 0, INT64_MIN);
        }
        skip(s, b);
        tr_dispatcher_on_dropped(&s->disp, b);
        return true;
    case TR_DISP_ACT_REBIND:
        s->c->stale++;
        tr_dispatcher_on_rebound(&s->disp, b, s->now + (int64_t)below(s, 3) * MS);
        return true;
    case TR_DISP_ACT_FAIL:
        fail(s, "a write failed for good, which nobody scripted");
        return false;
    }
    return false;
}

/* One write that is due comes to something. */
static void complete(struct sim *s, uint32_t at)
{
    struct write w = s->writes[at];
    int rc = TR_OK;
    uint8_t blame = TR_BLAME_NONE;
    bool apply_it = true;
    if (s->down[w.endpoint]) {
        rc = TR_RETRY;
        blame = TR_BLAME_ENDPOINT;
        apply_it = false;
    } else if (s->faults) {
        uint64_t x = below(s, 100);
        rc = x < 20 ? TR_RETRY : x < 23 ? TR_STALE : x < 25 ? TR_REJECT : TR_OK;
        blame = chance(s, 1, 2) ? TR_BLAME_ENDPOINT : TR_BLAME_BATCH;
        apply_it = rc == TR_OK || (rc == TR_RETRY && x < 10);
        s->c->applied_then_lost += rc == TR_RETRY && apply_it;
    }
    if (s->pipelined && rc == TR_STALE)
        rc = TR_RETRY, apply_it = false;
    if (apply_it)
        apply(s, w.b);
    if (s->pipelined && rc < 0) { /* ORDERED: all later ones fail too */
        forget_writes(s, at);
    } else {
        memmove(&s->writes[at], &s->writes[at + 1], (s->n_writes - at - 1) * sizeof w);
        s->n_writes--;
    }
    tr_dispatcher_on_result(&s->disp, w.ticket, rc, blame, (uint32_t)below(s, 3), s->now);
}

static void complete_due(struct sim *s)
{
    for (uint32_t i = 0; i < s->n_writes;) {
        if (s->writes[i].done_ns <= s->now) {
            complete(s, i);
            i = 0;
        } else if (s->pipelined) {
            return; /* in order */
        } else {
            i++;
        }
    }
}

/* An open transaction that holds the whole budget, while nothing is written, can only go in parts. */
static void press(struct sim *s)
{
    if (!s->boundary || !s->budget.engaged || s->n_writes || !tr_dispatcher_idle(&s->disp))
        return;
    for (uint32_t g = 0; g < s->groups; g++)
        for (uint32_t t = 0; s->tx_open[g] && t < TABLES; t++)
            ship(s, g, t);
    pop_queue(s);
    if (!s->queue && tr_batcher_empty(&s->batcher) && tr_batcher_staged(&s->batcher)) {
        tr_batcher_split(&s->batcher);
        s->c->splits++;
    }
}

static void shard(struct sim *s)
{
    complete_due(s);
    pop_queue(s);
    seal(s);
    while (carry_out(s))
        seal(s);
    press(s);
    seal(s);
    while (carry_out(s))
        ;
    tr_budget_on_level(&s->budget, s->queued >= QUEUE_MAX ? UINT64_MAX : s->charged, s->now);
}

static void flush_idle(struct sim *s)
{
    for (uint32_t g = 0; g < s->groups; g++)
        if (!(s->boundary && s->tx_open[g]))
            ship_all(s, g, s->boundary, true, chance(s, 1, 10));
}

/* ---- the controller ------------------------------------------------------------------------------------------------------ */

static void take_acks(struct sim *s)
{
    struct tr_ack *a = tr_ack_sink_take(&s->acks);
    while (a) {
        struct tr_ack *next = a->next;
        bool failed = atomic_load(&a->status) == TR_ACK_FAILED;
        TR_ASSERT(tr_ckpt_on_resolved(&s->ckpt, a->lane, a->epoch, a->seq, a->upto, failed, s->now) >= 0);
        struct lane *l = &s->lane[a->lane];
        if (a->epoch == l->epoch && !failed && a->upto == l->plus_one + 1)
            l->plus_one = a->upto;
        tr_ack_free(a);
        a = next;
    }
}

static bool check_committed(struct sim *s, uint32_t lane)
{
    struct lane *l = &s->lane[lane];
    for (int i = 0; i < RECS && l->recs[i].pos <= l->committed; i++)
        if (!durable(&l->recs[i]))
            return fail(s, "lane %u: %lld is committed, but the row at %lld is not durable", lane, (long long)l->committed, (long long)l->recs[i].pos);
    return true;
}

static void commit(struct sim *s)
{
    struct tr_watermark v[LANES_MAX];
    if (!tr_ckpt_due(&s->ckpt, s->now) && s->mutant == MUTANT_NONE)
        return;
    size_t n = tr_ckpt_collect(&s->ckpt, v, LANES_MAX);
    if (s->mutant == MUTANT_COMMIT_EARLY || s->mutant == MUTANT_PLUS_ONE) {
        n = s->lanes;
        for (uint32_t i = 0; i < n; i++)
            v[i] = (struct tr_watermark){i, s->lane[i].epoch, s->mutant == MUTANT_PLUS_ONE ? s->lane[i].plus_one : s->lane[i].said};
    }
    if (n == 0)
        return;
    if (s->faults && chance(s, 1, 10)) {
        s->c->commit_failures++;
        tr_ckpt_on_commit_failed(&s->ckpt, s->now, 5 * MS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct lane *l = &s->lane[v[i].lane];
        if (v[i].epoch != l->epoch || v[i].upto < l->committed) {
            fail(s, "lane %u: commit %lld of epoch %u after %lld of epoch %u", v[i].lane, (long long)v[i].upto, v[i].epoch, (long long)l->committed, l->epoch);
            return;
        }
        l->committed = v[i].upto;
        check_committed(s, v[i].lane);
    }
    s->c->commits++;
    tr_ckpt_on_committed(&s->ckpt, v, n, s->now);
}

/* The lane is taken from us without a barrier and given back at once: its rows under way are stale. */
static void lose_lane(struct sim *s, uint32_t lane)
{
    struct lane *l = &s->lane[lane];
    if (s->boundary || !s->monotonic) /* a second reader beside our own late writes: only for sinks that keep the higher version */
        return;
    if (l->ack) {
        tr_ack_fail(l->ack);
        tr_ack_unref(l->ack);
        l->ack = NULL;
    }
    tr_ckpt_end_epoch(&s->ckpt, lane, l->epoch);
    assign(s, lane);
    s->c->losses++;
}

/* ---- one seed ------------------------------------------------------------------------------------------------------------ */

static void shape(struct sim *s)
{
    s->boundary = chance(s, 1, 4);
    s->multi = s->boundary || chance(s, 2, 3);
    s->monotonic = chance(s, 1, 2);
    s->pipelined = !s->boundary && chance(s, 1, 4);
    s->inflight = s->boundary || (!s->monotonic && !s->pipelined) ? 1 : 1 + (uint32_t)below(s, 4);
    s->endpoints = s->pipelined ? 1 : 1 + (uint32_t)below(s, 3);
    s->lanes = 1 + (uint32_t)below(s, LANES_MAX);
    s->groups = s->boundary ? s->lanes : 1 + (uint32_t)below(s, s->lanes); /* one transaction at a time per thread */
    s->limit = 4000 + below(s, 8000);
    s->high = s->limit * 8 / 10;
    s->low = s->limit / 2;
    for (uint32_t i = 0; i < s->lanes; i++)
        make_lane(s, &s->lane[i]);
    for (uint32_t i = 0; i < LANES_MAX; i++)
        for (uint32_t k = 0; k < KEYS; k++)
            s->state[i][k] = -1;
}

static bool check_memory(struct sim *s)
{
    if (s->charged > s->high + ROW_BYTES)
        return fail(s, "%llu bytes are in flight; the bound is %llu", (unsigned long long)s->charged, (unsigned long long)(s->high + ROW_BYTES));
    return true;
}

static void step(struct sim *s)
{
    uint64_t x = below(s, 100);
    uint32_t lane = (uint32_t)below(s, s->lanes);
    if (x < 30)
        s->now += (int64_t)below(s, 6) * MS;
    else if (x < 70)
        poll(s, lane);
    else if (x < 78)
        flush_idle(s);
    else if (x < 80)
        s->down[below(s, s->endpoints)] ^= 1;
    else if (x < 81)
        lose_lane(s, lane);
    else if (x < 90)
        commit(s);
    shard(s);
    take_acks(s);
    check_memory(s);
}

static bool all_committed(const struct sim *s)
{
    for (uint32_t i = 0; i < s->lanes; i++)
        if (s->lane[i].committed < s->lane[i].recs[RECS - 1].pos)
            return false;
    return true;
}

/* The faults stop; everything must come to an end. */
static void settle(struct sim *s)
{
    s->faults = false;
    memset(s->down, 0, sizeof s->down);
    for (int i = 0; i < 20000 && !all_committed(s) && !s->failure[0]; i++) {
        for (uint32_t l = 0; l < s->lanes; l++)
            poll(s, l);
        if (i % 3 == 0)
            flush_idle(s);
        shard(s);
        take_acks(s);
        commit(s);
        check_memory(s);
        s->now += MS;
    }
    for (uint32_t l = 0; l < s->lanes && !s->failure[0]; l++) {
        if (s->lane[l].committed < s->lane[l].recs[RECS - 1].pos)
            fail(s, "no progress: lane %u stands at %lld of %lld", l, (long long)s->lane[l].committed, (long long)s->lane[l].recs[RECS - 1].pos);
        int want[KEYS];
        bool refused[KEYS] = {false}; /* what was refused in one life may have been applied in another */
        for (int k = 0; k < KEYS; k++)
            want[k] = -1;
        for (int i = 0; i < RECS; i++) {
            const struct rec *r = &s->lane[l].recs[i];
            refused[r->key] |= r->skipped;
            if (!r->filtered)
                want[r->key] = i;
        }
        for (int k = 0; k < KEYS && !s->failure[0]; k++)
            if (!refused[k] && s->state[l][k] != want[k])
                fail(s, "lane %u: key %d ends with row %d instead of %d", l, k, s->state[l][k], want[k]);
    }
}

static bool run(uint64_t seed, uint32_t steps, enum mutant mutant, struct counts *c)
{
    struct sim *s = calloc(1, sizeof *s);
    TR_ASSERT(s != NULL);
    s->seed = seed;
    s->steps = steps;
    s->mutant = mutant;
    s->c = c;
    s->faults = true;
    s->epoch_next = 1;
    tr_prng_init(&s->prng, seed);
    shape(s);
    start(s);
    uint32_t crash_at = steps / 2; /* at least one */
    for (uint32_t i = 0; i < steps && !s->failure[0]; i++) {
        if (i == crash_at || chance(s, 1, 120)) {
            stop(s);
            c->crashes++;
            for (uint32_t l = 0; l < s->lanes; l++)
                check_committed(s, l);
            start(s);
        }
        step(s);
    }
    if (!s->failure[0])
        settle(s);
    c->splits += s->batcher.splits;
    c->breakers += tr_dispatcher_open_breakers(&s->disp);
    stop(s);
    bool ok = !s->failure[0];
    if (!ok)
        printf("seed %llu: %s\n  replay: engine_sim --seed %llu --steps %u%s%s\n", (unsigned long long)seed, s->failure, (unsigned long long)seed, steps,
               mutant ? " --mutant " : "", mutant ? mutant_names[mutant] : "");
    free(s);
    return ok;
}

static int usage(void)
{
    fprintf(stderr, "usage: engine_sim [--seeds N] [--seed S] [--steps N] [--mutant commit-early|plus-one|ack-early]\n");
    return 2;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 2000, first = 1;
    uint32_t steps = 400, mutant = MUTANT_NONE, failed = 0;
    struct counts c = {0};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return usage();
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "--seeds") == 0) {
            seeds = strtoull(v, NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            first = strtoull(v, NULL, 10);
            seeds = 1;
        } else if (strcmp(argv[i], "--steps") == 0) {
            steps = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--mutant") == 0) {
            for (mutant = 1; mutant < TR_ARRAY_LEN(mutant_names) && strcmp(mutant_names[mutant], v) != 0; mutant++)
                ;
            if (mutant == TR_ARRAY_LEN(mutant_names))
                return usage();
        } else {
            return usage();
        }
    }
    for (uint64_t s = first; s < first + seeds && failed < 5; s++)
        failed += !run(s, steps, (enum mutant)mutant, &c);
    printf("%llu seeds of %u steps: %llu crashes, %llu lanes lost, %llu polls, %llu rows, %llu chunks, %llu batches (%llu splits), %llu writes, %llu retries, "
           "%llu applied and then lost, %llu refused, %llu stale, %llu duplicates, %llu blocked, %llu commits (%llu failed); %u seeds failed\n",
           (unsigned long long)seeds, steps, (unsigned long long)c.crashes, (unsigned long long)c.losses, (unsigned long long)c.polls, (unsigned long long)c.rows,
           (unsigned long long)c.chunks, (unsigned long long)c.batches, (unsigned long long)c.splits, (unsigned long long)c.writes, (unsigned long long)c.retries,
           (unsigned long long)c.applied_then_lost, (unsigned long long)c.rejects, (unsigned long long)c.stale, (unsigned long long)c.duplicates,
           (unsigned long long)c.blocked, (unsigned long long)c.commits, (unsigned long long)c.commit_failures, failed);
    return failed != 0;
}
