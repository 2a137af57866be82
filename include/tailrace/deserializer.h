/*
 * deserializer.h: one payload in, 0 … N records out.
 *
 * What TR_DESERIALIZE (chain.h) begins with: a decoder chosen at run time, say by a schema registry. One that is known at compile time is
 * a TR_DECODE, and inlined. For sources that yield raw bytes (Kafka); row-change sources decode in their lane instead. A deserializer
 * is owned by one pipeline thread, and freed with its chain. Records are emitted through emit() and borrow from the payload and from the
 * deserializer's own scratch memory for exactly that call.
 *
 * Answers: 0; NOT_READY (a schema fetch is pending; the same payload comes again; nothing is paused); REJECT (this payload
 * is bad: the stage's policy says skip and count, or fail). Row changes are never skipped.
 */
#ifndef TAILRACE_DESERIALIZER_H
#define TAILRACE_DESERIALIZER_H

#include <tailrace/err.h>
#include <tailrace/payload.h>

enum tr_error_policy { TR_POLICY_SKIP, TR_POLICY_FAIL };

struct tr_emit {
    int (*emit)(struct tr_emit *e, const void *record); /* 0, or a negative code that deserialize passes on */
};

struct tr_deserializer;

struct tr_deserializer_ops {
    int (*deserialize)(struct tr_deserializer *d, const struct tr_payload *in, struct tr_emit *out, struct tr_err *err);
    void (*free)(struct tr_deserializer *d);
};

struct tr_deserializer {
    const struct tr_deserializer_ops *ops;
    enum tr_error_policy policy;
};

#endif
