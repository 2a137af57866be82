/*
 * pgconn.h: a PostgreSQL connection whose every call has a deadline that binds.
 *
 * A thin layer over libpq, used non-blocking only: connect, query, COPY in both directions. TLS and SCRAM are libpq's. The
 * session settings that decide how values are printed are pinned in the startup packet, alike for queries and for the
 * replication protocol, so that snapshot and stream store identical bytes: DateStyle, IntervalStyle, TimeZone, extra_float_digits,
 * bytea_output, client_encoding, search_path.
 *
 * Ownership: a tr_pgconn belongs to one thread; tr_pgconn_interrupt alone may come from another. Results are libpq's and freed with
 * PQclear. Name look-up is the one thing libpq does synchronously.
 *
 * Errors: RETRY when the connection is gone or the deadline passed (the object is then closed: open it anew); otherwise by
 * SQLSTATE (tr_pg_classify). Messages carry the server's primary text and detail-free context, never a value or a password.
 */
#ifndef TR_PGCONN_H
#define TR_PGCONN_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>
#include <tailrace/slice.h>
#include <tailrace/waker.h>

struct tr_pgconn {
    PGconn *pg;              /* NULL when closed */
    struct tr_waker waker;   /* interrupt */
    bool waker_ok;
    _Atomic(bool) interrupted;
    int server_version;      /* 150018; 0 when closed */
    char what[96];           /* "source", "sink reporting": begins every message */
};

struct tr_pg_params {
    const char *dsn;         /* URI or key=value; the password may come from PGPASSWORD or a passfile */
    const char *application_name;
    const char *settings;    /* further "-c name=value" options, or NULL */
    bool replication;        /* logical replication protocol */
};

void tr_pgconn_init(struct tr_pgconn *c, const char *what);
void tr_pgconn_done(struct tr_pgconn *c);

int tr_pgconn_open(struct tr_pgconn *c, const struct tr_pg_params *p, int64_t deadline_ns, struct tr_err *err);
void tr_pgconn_close(struct tr_pgconn *c);
void tr_pgconn_interrupt(struct tr_pgconn *c);

/* For a caller with a wait of its own (the replication lane): start, then step on readiness until 1 (connected). On 0 waits for
 * *ret_events on PQsocket. */
int tr_pgconn_start(struct tr_pgconn *c, const struct tr_pg_params *p, struct tr_err *err);
int tr_pgconn_step(struct tr_pgconn *c, short *ret_events, struct tr_err *err);

/* One statement with text parameters (values[i] NULL is SQL NULL). The result is PGRES_TUPLES_OK, PGRES_COMMAND_OK or a COPY state;
 * anything else is an error. ret may be NULL. */
int tr_pg_exec(struct tr_pgconn *c, const char *sql, int n, const char *const *values, int64_t deadline_ns, PGresult **ret, struct tr_err *err);
/* Several statements in one simple query; results are dropped. */
int tr_pg_script(struct tr_pgconn *c, const char *sql, int64_t deadline_ns, struct tr_err *err);

/* COPY OUT: one row (a pointer owned by libpq: PQfreemem), EOF at the end. */
int tr_pg_copy_next(struct tr_pgconn *c, int64_t deadline_ns, char **ret, int *ret_n, struct tr_err *err);
/* Gives up the COPY under way: cancels and drains. */
int tr_pg_copy_cancel(struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err);

/* Waits for readability (or writability while output is pending). AGAIN at the deadline. */
int tr_pg_wait(struct tr_pgconn *c, bool want_write, int64_t deadline_ns, struct tr_err *err);

/* What to do next, and whom to blame, for a SQLSTATE. */
int tr_pg_classify(const char *sqlstate, uint8_t *ret_blame);
/* Fills err from a failed result (or, res NULL, from the connection) and closes the connection if it is bad. */
int tr_pg_error(struct tr_pgconn *c, const PGresult *res, const char *doing, struct tr_err *err);

static inline const char *tr_pg_val(const PGresult *r, int row, int col)
{
    return PQgetisnull(r, row, col) ? "" : PQgetvalue(r, row, col);
}
static inline bool tr_pg_bool(const PGresult *r, int row, int col)
{
    return tr_pg_val(r, row, col)[0] == 't';
}

#endif
