/*
 * sqlbatch.h: how rows travel inside a sealed batch of a SQL sink: as frames (codec/frame.h), which keep the four states of a column and
 * both images. An encoder for the pipeline thread and an iterator for the writer thread.
 */
#ifndef TR_SQLBATCH_H
#define TR_SQLBATCH_H

#include <tailrace/sink.h>

#include "arena.h"

int tr_sqlbatch_encoder_new(struct tr_encoder **ret, struct tr_err *err);

/* Rows of one part in order. A row borrows from the batch and from the arena, which the caller resets when it is through with the row. */
struct tr_sqlbatch_iter {
    const struct tr_part *part;
    const struct tr_schema *schema;
    struct tr_arena *arena;
    uint32_t chunk, off;
};

void tr_sqlbatch_begin(struct tr_sqlbatch_iter *it, const struct tr_part *part, const struct tr_schema *schema, struct tr_arena *arena);
int tr_sqlbatch_next(struct tr_sqlbatch_iter *it, struct tr_change *ret, struct tr_err *err); /* EOF at the end; FATAL: our own bytes are broken */

#endif
