/*
 * payload.h: what a poll of a source yields, and a chain is pushed.
 *
 * Payloads are the lane's: everything they point to lives until that lane's next poll, which does not come before the chain has
 * consumed them all, and never crosses a thread. One poll has one ack, made by the engine.
 */
#ifndef TAILRACE_PAYLOAD_H
#define TAILRACE_PAYLOAD_H

#include <tailrace/slice.h>

struct tr_ack;

enum {
    TR_PAYLOAD_CHANGE = 1u << 0,   /* meta is a struct tr_change * */
    TR_PAYLOAD_TX_END = 1u << 1,   /* a source transaction ended here */
    TR_PAYLOAD_SNAPSHOT = 1u << 2, /* belongs to no source transaction */
    TR_PAYLOAD_FRAME = 1u << 3,    /* meta is a struct tr_frame * of the change log: tailrace's own */
};

struct tr_payload {
    struct tr_slice key, value, headers;
    const void *meta;       /* the source's own, borrowed */
    int64_t position;
    int64_t event_time_us;  /* Unix microseconds; 0 unknown */
    uint32_t flags;
};

struct tr_payloads {
    const struct tr_payload *v;
    uint32_t n, lane; /* lane: its id within the source */
    int64_t upto;     /* all at or below is here, delivered, or does not exist; INT64_MIN: no statement */
    struct tr_ack *ack; /* set by the engine before push_batch */
};

#endif
