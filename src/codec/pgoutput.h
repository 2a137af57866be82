/*
 * pgoutput.h: decoder of PostgreSQL's logical replication messages, protocol 1 to 4 (PostgreSQL manual, chapter "Logical
 * Replication Message Formats"; traps in docs/lessons.md). Pure: bytes in, one struct out; everything borrows from the input.
 *
 * in_stream says that the message stands between Stream Start and Stream Stop, where R, Y, I, U, D, T and M carry the xid of
 * their (sub)transaction behind the type byte; an M that of the top-level transaction, even if a savepoint that is rolled back later
 * sent it (measured on 15 and 18). proto decides whether Stream Abort is 9 or 25 bytes.
 *
 * Errors: REJECT, naming the message type and what is wrong. Row changes must never be skipped: the lane makes it FATAL.
 */
#ifndef TR_PGOUTPUT_H
#define TR_PGOUTPUT_H

#include <stdbool.h>

#include <tailrace/err.h>
#include <tailrace/slice.h>

#define TR_PG_COLUMNS_MAX 1664

struct tr_pg_tuple {
    uint16_t n;                 /* columns; kind[i] is 'n', 'u', 't' or 'b' */
    const uint8_t *kind;        /* into the decoder's scratch */
    const struct tr_slice *v;
};

struct tr_pg_relcol {
    uint8_t flags;              /* 1: part of the replica identity */
    const char *name;
    uint32_t type_oid;
    int32_t typmod;
};

/* Timestamps are µs since 2000-01-01 as on the wire; tr_pg_time_us converts to Unix µs. */
struct tr_pg_msg {
    char type;                  /* as on the wire */
    uint32_t xid;               /* top-level for B S c A b P K r p; the subtransaction's inside a stream; else 0 */
    union {
        struct { uint64_t final_lsn; int64_t ts; } begin;                                        /* B */
        struct { uint8_t flags; uint64_t commit_lsn, end_lsn; int64_t ts; } commit;              /* C, c */
        struct { uint64_t lsn; const char *name; } origin;                                       /* O */
        struct { uint32_t oid; const char *ns, *name; char identity; uint16_t n; const struct tr_pg_relcol *cols; } relation; /* R */
        struct { uint32_t oid; const char *ns, *name; } type_;                                   /* Y */
        struct { uint32_t oid; char old_kind; /* 'K', 'O' or 0 */ struct tr_pg_tuple old, new_; bool has_new; } row; /* I U D */
        struct { uint8_t flags; uint32_t n; const uint8_t *oids_be; } truncate;                  /* T: tr_pg_truncate_oid */
        struct { uint8_t flags; uint64_t lsn; const char *prefix; struct tr_slice content; } message; /* M */
        struct { bool first_segment; } stream_start;                                             /* S */
        struct { uint32_t subxid; uint64_t lsn; int64_t ts; } stream_abort;                      /* A */
        struct { uint8_t flags; uint64_t prepare_lsn, end_lsn; int64_t ts; const char *gid; } prepare; /* b P K p; r uses two */
    } u;
};

struct tr_pgoutput {
    uint8_t proto;
    uint8_t old_kind[TR_PG_COLUMNS_MAX], new_kind[TR_PG_COLUMNS_MAX];
    struct tr_slice old_v[TR_PG_COLUMNS_MAX], new_v[TR_PG_COLUMNS_MAX];
    struct tr_pg_relcol cols[TR_PG_COLUMNS_MAX];
};

int tr_pgoutput_decode(struct tr_pgoutput *d, struct tr_slice msg, bool in_stream, struct tr_pg_msg *ret, struct tr_err *err);
uint32_t tr_pg_truncate_oid(const struct tr_pg_msg *m, uint32_t i);
int64_t tr_pg_time_us(int64_t ts);

#endif
