/*
 * batch.h: what a shard collects and a writer is given.
 *
 * A chunk is a run of encoded rows of one target. A sealed batch is the unit that is written, retried and acknowledged; it
 * is *frozen*: from sealing to its end its bytes, parts, spans and tokens do not change, whatever happens to it. Only a
 * REJECT that proves nothing was applied lets the engine make new, smaller batches out of it.
 */
#ifndef TAILRACE_BATCH_H
#define TAILRACE_BATCH_H

#include <stdbool.h>

#include <tailrace/buf.h>

struct tr_seg;    /* the engine's: bytes that count against the in-flight budget */
struct tr_target; /* defined by the sink; see sink.h */

struct tr_chunk {
    struct tr_slice bytes; /* what the encoder appended */
    uint32_t rows;
    struct tr_seg *seg;
};

/* For `complete` only: the chunk gets the bytes of *b, and *b those it had. */
void tr_chunk_swap(const struct tr_chunk *c, struct tr_buf *b);

/* Which positions of which lane are inside. */
struct tr_span {
    uint32_t lane, epoch;
    int64_t first, last;
};

/* One table at one schema version. token: XXH3-128 in hex over sink, table, schema version, spans, bytes and its number among the batches that end at one position, for a sink with TR_CAP_TOKEN; else "". */
struct tr_part {
    const struct tr_target *target;
    const struct tr_chunk *v;
    uint32_t n;
    uint64_t rows, bytes;
    char token[40];
};

struct tr_sealed {
    const struct tr_part *parts;
    const struct tr_span *spans;
    uint32_t n_parts, n_spans;
    uint64_t rows, bytes;
    bool tx_end;        /* ends at a source transaction boundary */
    int64_t oldest_ns;  /* monotonic time at which its first row was put */
};

#endif
