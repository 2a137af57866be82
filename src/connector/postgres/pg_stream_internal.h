/* pg_stream_internal.h: shared by the files of the stream (pg_stream.c: life and feedback; pg_decode.c: messages to changes). */
#ifndef TR_PG_STREAM_INTERNAL_H
#define TR_PG_STREAM_INTERNAL_H

#include <stdatomic.h>

#include <tailrace/change.h>
#include <tailrace/source.h>

#include "arena.h"
#include "pg_options.h"
#include "pg_schema.h"
#include "pg_txbuf.h"
#include "pgconn.h"
#include "thread.h"

/* One replication message being worked on. It is worked on again when it had to wait for a description. */
struct pg_item {
    struct tr_slice msg;
    uint64_t lsn;
    bool in_stream;  /* carries the xid of its (sub)transaction */
    bool aborted;    /* of a subtransaction that was rolled back: only its definitions count */
    bool set;
};

struct pg_rel {
    struct tr_schema *schema;
};

enum pg_state { PG_DOWN, PG_CONNECTING, PG_IDENTIFYING, PG_ASKING_SLOT, PG_STARTING, PG_STREAMING };
enum pg_side { SIDE_DOWN, SIDE_CONNECTING, SIDE_PREPARING, SIDE_READY, SIDE_BUSY };

struct pg_stream {
    struct tr_source source;
    struct tr_lane lane;
    const struct tr_pg_source_options *o;
    struct tr_mutex lock;         /* conn: the lane's thread, and the controller in a synchronous commit */
    _Atomic(uint64_t) confirmed;  /* what may be confirmed to the server; controller → lane */
    bool assigned;                /* controller */
    uint64_t from;

    /* the lane's thread from here on */
    struct tr_pgconn conn;
    enum pg_state state;
    short want;                   /* events while connecting */
    int64_t retry_at_ns, backoff_ns, last_feedback_ns;
    int64_t streaming_since_ns;
    int64_t asked_ns, quiet_since_ns; /* last looked for input; found none since, 0: there was some */
    int64_t window_since_ns, pause_ns, read_after_ns; /* pacing: messages are counted since; the present pause; 0: read when there is something */
    uint64_t window_messages;
    int64_t read_bytes;           /* taken out of what the last read brought */
    int64_t silence_ns;           /* how long that may last */
    uint64_t silent_pos;          /* where it lasted too long before */
    bool reply_now, paused;
    char system_id[32];           /* of the first connection; "" before */
    uint32_t timeline;
    uint64_t xid_ref;             /* a recent 64-bit transaction id, to extend the 32 bits on the wire */
    uint64_t received;            /* highest end of anything received */
    uint64_t pos, reported;       /* upto: now, and as last told */
    uint64_t sent_confirmed;

    struct tr_pgconn side;        /* catalog look-ups beside the stream */
    enum pg_side side_state;
    short side_want;
    int64_t side_retry_ns;
    struct tr_schema *described;  /* the answer for the held item */
    int64_t held_since_ns;        /* the item waits for it since; 0: it does not */
    unsigned let_go;              /* how often in a row that was for too long */

    struct tr_pgoutput dec;
    struct tr_u64map rels;        /* oid → struct pg_rel * */
    struct tr_schema *beat;       /* definition of the heartbeat table, for messages that take its row's place */
    struct tr_pg_txbuf txbuf;
    struct tr_pg_tx *replay;      /* a streamed transaction being delivered after its commit */
    uint32_t stream_xid;          /* between Stream Start and Stream Stop */
    struct pg_item item;          /* being worked on */
    char *item_mem;               /* libpq's memory behind item, if it came from the wire */
    struct tr_buf item_buf;       /* else its copy, while it waits beyond this poll */

    bool in_tx;                   /* a transaction is being delivered */
    struct {
        uint64_t commit_lsn, end_lsn, xid;
        int64_t ts_us;
        uint64_t rows;            /* met so far, delivered or skipped */
        uint64_t skip;            /* rows already delivered before the connection was lost */
    } tx;
    uint64_t last_commit;         /* commit LSN of the last transaction delivered whole */
    uint64_t part_commit, part_rows; /* and of the one that was cut off, with the rows delivered of it */

    /* the poll's output */
    struct tr_arena arena;
    struct tr_payload *v;
    uint32_t n, cap;
    int64_t now_us;
    uint64_t bytes;
    char **mem;                   /* libpq's memory behind the payloads */
    uint32_t n_mem, cap_mem;
    struct tr_schema **retired;   /* replaced definitions that payloads of this poll still use */
    uint32_t n_retired, cap_retired;
};

/* Works on s->item. 0: done; NOT_READY: waits for a description (the item stays); FATAL. */
int tr_pg_decode_item(struct pg_stream *s, struct tr_err *err);
/* The next message of a streamed transaction under replay into s->item; at its end emits the commit. EOF: no replay any more. */
int tr_pg_decode_replay(struct pg_stream *s, struct tr_err *err);
void tr_pg_decode_reset(struct pg_stream *s);        /* the connection was lost */
int tr_pg_decode_release_output(struct pg_stream *s); /* NOMEM */
void tr_pg_decode_done(struct pg_stream *s);         /* all that decoding holds; s itself, its connections and lock are the caller's */

#endif
