/*
 * pg_txbuf.h: in-progress transactions that the server streams before they commit, held until they do.
 *
 * Messages are kept in arrival order with the subtransaction they belong to; the abort of a subtransaction removes what it
 * sent. Memory is bounded over all transactions together: beyond the bound the largest one moves to a spill file (unlinked at
 * once, so that a crash leaves nothing behind) and grows there. A full disk is RETRY: nothing is confirmed, nothing is lost.
 *
 * Threads: the lane's pipeline thread only.
 */
#ifndef TR_PG_TXBUF_H
#define TR_PG_TXBUF_H

#include <tailrace/buf.h>

#include "map.h"

struct tr_pg_tx;

struct tr_pg_txbuf {
    struct tr_u64map by_xid;   /* top-level xid → struct tr_pg_tx * */
    const char *dir;           /* for spill files */
    uint64_t memory_max, memory, spilled; /* bytes held in memory and on disk now */
    uint64_t spill_count;      /* transactions ever spilled */
};

void tr_pg_txbuf_init(struct tr_pg_txbuf *b, const char *dir, uint64_t memory_max);
void tr_pg_txbuf_done(struct tr_pg_txbuf *b);

int tr_pg_txbuf_add(struct tr_pg_txbuf *b, uint32_t xid, uint32_t subxid, uint64_t lsn, struct tr_slice msg, struct tr_err *err);
int tr_pg_txbuf_abort(struct tr_pg_txbuf *b, uint32_t xid, uint32_t subxid, struct tr_err *err); /* subxid == xid: the whole transaction. NOMEM: not noted */

/* Takes a committed transaction out for reading in order; NULL when nothing of it was sent. next: rc 0 and the message (borrowed
 * until the next call), EOF at the end. Messages of aborted subtransactions come with *ret_aborted set: Relation messages among them
 * still count, rows do not. */
struct tr_pg_tx *tr_pg_txbuf_take(struct tr_pg_txbuf *b, uint32_t xid);
int tr_pg_tx_next(struct tr_pg_txbuf *b, struct tr_pg_tx *t, struct tr_slice *ret_msg, uint64_t *ret_lsn, bool *ret_aborted, struct tr_err *err);
struct tr_pg_tx *tr_pg_tx_free(struct tr_pg_txbuf *b, struct tr_pg_tx *t);

#endif
