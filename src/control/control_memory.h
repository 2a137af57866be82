/*
 * control_memory.h: the control store in memory, for the simulator and for tests.
 *
 * Same semantics as the others, checked by the same suite. What "durable" means here is the snapshot: take one where the simulated
 * machine goes down, restore it into the store of the next life.
 *
 * Threads: any (a mutex).
 */
#ifndef TR_CONTROL_MEMORY_H
#define TR_CONTROL_MEMORY_H

#include "control.h"

int tr_control_memory_new(struct tr_control **ret, struct tr_err *err);

/* The next call that could fail answers rc (with a message) and changes nothing; 0 disarms. */
void tr_control_memory_fail_next(struct tr_control *c, int rc);

struct tr_control_snapshot;
/* All that is stored, but not act_under and fail_next. NULL without memory. */
struct tr_control_snapshot *tr_control_memory_snapshot(struct tr_control *c);
int tr_control_memory_restore(struct tr_control *c, const struct tr_control_snapshot *s); /* NOMEM: c is as before */
struct tr_control_snapshot *tr_control_snapshot_free(struct tr_control_snapshot *s);

#endif
