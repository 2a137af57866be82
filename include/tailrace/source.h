/*
 * source.h: the contract of a source and its lanes.
 *
 * A source is split in two. The *source* is the control side: the controller thread asks it for events (lanes assigned,
 * revoked, lost), answers them, and hands it watermarks to commit. A *lane* is the data side: a pollable unit owned by one
 * pipeline thread.
 *
 * Lanes. poll, arm, tend and pause are called by the lane's pipeline thread only, and none of them blocks.
 *   poll   yields up to max payloads, all borrowed until this lane's next poll. One poll has one ack, made by the engine
 *          from `upto`. n may be 0 when only the position moved. AGAIN: nothing now. EOF: the lane has ended, and what was before
 *          it came in an earlier poll: the engine flushes, waits for its acks, commits and closes it. RETRY: the lane lost its peer and is coming back by itself;
 *          the engine records the error and goes on polling. FATAL fails the pipeline.
 *   arm    after AGAIN: fills ret with the descriptor and/or deadline to wait for. May keep the waker (valid until close)
 *          to announce data from another thread. 1: data is ready already, do not wait.
 *   tend   feedback and keepalive. Called at least every 500 ms *instead of* poll while payloads are still held (a blocked
 *          push), so that a blocked lane keeps its peer alive. Payloads held stay valid.
 *   pause  a hint: the lane is, or no longer is, held back by back-pressure.
 *   close  frees the lane; its payloads die. After REVOKED was answered or the pipeline ended.
 *
 * Positions are int64, increase within (lane, epoch), and are the source's own (an LSN, an offset). `upto` of a poll says:
 * everything at or below it is in this or an earlier poll, or does not exist; so it never goes back, which is FATAL: what lies below one that was
 * committed would never be read again. Watermarks are contiguous over delivered
 * polls, never arithmetic on positions.
 *
 * A commit marker is a payload of its own: TR_PAYLOAD_TX_END, empty value. Payloads of a snapshot carry TR_PAYLOAD_SNAPSHOT;
 * they neither open nor close a transaction.
 *
 * A source of row changes puts a `struct tr_change *` (decoded, borrowed likewise) into `meta` and sets TR_PAYLOAD_CHANGE.
 * Decode errors of row changes are never skipped: the lane answers FATAL.
 *
 * Source. poll_event, arm, answer, commit and close are called by the controller thread only.
 *   poll_event  AGAIN: nothing, and all is well. RETRY: trouble, which lasts until another answer. ASSIGNED carries a lane (the engine owns it from then on until close) and its start epoch.
 *               EOF: there will be no event any more; once all lanes have ended (all of it durable and committed) the pipeline stops by itself.
 *   answer      exactly once per ASSIGNED (after the lane is wired to a thread) and per REVOKED (after the drain barrier).
 *   commit      records watermarks; the lane sends them in its next poll or tend. sync_deadline_ns != 0: returns only when
 *               the peer has them, and all handed before,
 *               or the deadline passed (RETRY); n may be 0 then. Must be cheap otherwise. A source may need a control
 *               store write first; then it happens here. Watermarks never go back within an epoch.
 *   close       frees everything; lanes are closed before it. A revoke during close is answered inline.
 *
 * A lane's tend and pause may be NULL, and a source's arm: then its events are asked for every 100 ms. A failure is told with err filled in: the engine
 * knows no other reason.
 */
#ifndef TAILRACE_SOURCE_H
#define TAILRACE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/err.h>
#include <tailrace/payload.h>
#include <tailrace/waker.h>

struct tr_lane;
struct tr_source;

enum tr_event_kind { TR_EVENT_ASSIGNED = 1, TR_EVENT_REVOKED, TR_EVENT_LOST, TR_EVENT_STATS };

struct tr_event {
    enum tr_event_kind kind;
    uint32_t lane_id, epoch; /* the epoch starts anew with each assignment of that lane id */
    struct tr_lane *lane;    /* ASSIGNED */
    const char *text;        /* STATS, LOST: borrowed until the next poll_event */
};

struct tr_watermark {
    uint32_t lane, epoch;
    int64_t upto;
};

struct tr_lane_ops {
    int (*poll)(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err);
    int (*arm)(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret);
    int (*tend)(struct tr_lane *l, int64_t now_ns, struct tr_err *err);
    void (*pause)(struct tr_lane *l, bool on);
    void (*close)(struct tr_lane *l);
};

struct tr_lane { /* first member of an implementation's own struct */
    const struct tr_lane_ops *ops;
    uint32_t id, epoch;
};

struct tr_source_ops {
    int (*poll_event)(struct tr_source *s, struct tr_event *ret, struct tr_err *err);
    int (*arm)(struct tr_source *s, struct tr_waker *w, struct tr_wait *ret);
    int (*answer)(struct tr_source *s, const struct tr_event *ev, struct tr_err *err);
    int (*commit)(struct tr_source *s, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err);
    void (*close)(struct tr_source *s, int64_t deadline_ns);
};

struct tr_source { /* first member of an implementation's own struct */
    const struct tr_source_ops *ops;
};

#endif
