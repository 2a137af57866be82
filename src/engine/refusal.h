/*
 * refusal.h: which tables of a sink have refused a part, and what is refused with it.
 *
 * A later row that went in would keep an earlier one of its key out for ever. So what was put for a table (and variant) before its chain
 * let go of it (tr_out_unbind) is refused as well, tried or not; what is put after it is tried again.
 *
 * Generations tell the two apart: each unbind begins one. A terminal is in one generation at a time, and a chunk belongs to the one
 * its terminal was in when it was begun. Both are users of theirs, so the oldest generation with users is the oldest of which anything is
 * queued, staged, sealed or in flight on any shard, or can still come: terminals enter only the present one. A refusal that the chain has
 * let go of matters no more when no older generation has users.
 *
 * A pure machine. Its caller serialises all calls (tr_sink_rt.lock) but ref and unref, which any thread makes.
 */
#ifndef TR_REFUSAL_H
#define TR_REFUSAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tailrace/err.h>

#include "list.h"

struct tr_generation {
    struct tr_list node;
    uint64_t n;
    _Atomic uint64_t users;
};

struct tr_refusal {
    uint32_t table_id, variant;
    uint64_t below;             /* generations that are refused: those below; UINT64_MAX: all, the chain has not let go yet */
    struct tr_err err;
};

struct tr_refusals {
    struct tr_refusal *v;       /* one per (table, variant) */
    uint32_t n, cap;
    struct tr_list generations; /* oldest first; the last is the present one */
};

int tr_refusals_init(struct tr_refusals *r); /* NOMEM */
void tr_refusals_done(struct tr_refusals *r);

/* The present generation, with the caller as one more user; leaves the one it was in (NULL: none). */
struct tr_generation *tr_refusals_enter(struct tr_refusals *r, struct tr_generation *was);
/* For a chunk, by a thread that is a user. */
static inline struct tr_generation *tr_generation_ref(struct tr_generation *g)
{
    atomic_fetch_add_explicit(&g->users, 1, memory_order_relaxed);
    return g;
}
static inline void tr_generation_unref(struct tr_generation *g)
{
    if (g)
        atomic_fetch_sub_explicit(&g->users, 1, memory_order_release);
}

/* A part was refused: all that is put for its table is, until the chain lets go. Refused already: its first error stays. NOMEM. */
int tr_refusals_add(struct tr_refusals *r, uint32_t table_id, uint32_t variant, const struct tr_err *err);
/* The chain lets go of it, refused or not: a new generation begins. NOMEM: it did not. */
int tr_refusals_unbound(struct tr_refusals *r, uint32_t table_id, uint32_t variant, uint64_t *ret_generation);
/* Why what was put in that generation is refused; NULL: it is not. */
const struct tr_err *tr_refusals_why(const struct tr_refusals *r, uint32_t table_id, uint32_t variant, uint64_t generation);
/* Forgets what matters no more. False: nothing is left. */
bool tr_refusals_expire(struct tr_refusals *r);

#endif
