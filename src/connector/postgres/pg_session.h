/* pg_session.h: conversations with a PostgreSQL source for snapshots, checks and heartbeats; see pg_session.c, pg_chunk.c, pg_check.c. */
#ifndef TR_PG_SESSION_H
#define TR_PG_SESSION_H

#include "cdc_source.h"
#include "map.h"
#include "pg_options.h"
#include "pg_schema.h"
#include "pgconn.h"

#define TR_PG_OUR_COMMENT "managed by tailrace" /* begins the comment on a publication that we made */

struct pg_session {
    struct tr_cdc_session session;
    const struct tr_pg_source_options *o;
    enum tr_cdc_role role;
    struct tr_pgconn conn;
    uint64_t generation;
    uint64_t prepared;           /* generation of the connection that knows the statement of describe() */
    struct tr_u64map keys;       /* table's oid → struct pg_key *: what describe() said of its key */
    PGresult *listed;            /* the list that publish() found nothing to alter by, for the call of tables() that follows it */
    int64_t listed_ns;
    uint64_t listed_generation;

    /* the open chunk, or the row of the last fetch */
    const struct tr_schema *table;
    bool chunk_open, copy_done;
    char *line;                  /* libpq's */
    uint8_t *scratch;
    size_t scratch_cap;
    struct tr_slice *v;
    uint8_t *state;
    uint32_t cap;
    PGresult *row;
};

/* Minor releases whose decoding fails in large workloads with "invalid memory alloc request size": docs/lessons.md 13. By server_version_num. */
bool tr_pg_decodes_badly(int server_version);

int tr_pg_session_new(const struct tr_pg_source_options *o, enum tr_cdc_role role, struct tr_cdc_session **ret, struct tr_err *err);

/* Connected, or connects now. */
int tr_pg_session_ready(struct pg_session *s, int64_t deadline_ns, struct tr_err *err);
/* One text value of a one-row query; rc 1 when there is no row. */
int tr_pg_session_value(struct pg_session *s, const char *sql, int n, const char *const *values, int64_t deadline_ns, char *ret, size_t cap, struct tr_err *err);
/* Describes the oldest transaction that has an id; err gets NOT_READY. */
int tr_pg_session_waits_for(struct pg_session *s, uint64_t fence, int64_t deadline_ns, struct tr_err *err);
struct pg_session *tr_pg_session_of(struct tr_cdc_session *s);

/* pg_chunk.c */
int tr_pg_chunk_plan(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice lo, uint64_t rows, int64_t deadline_ns, struct tr_buf *ret_hi, struct tr_err *err);
int tr_pg_chunk_open(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice lo, struct tr_slice hi, uint64_t min_xmin, int64_t deadline_ns, struct tr_err *err);
int tr_pg_chunk_next(struct tr_cdc_session *s, int64_t deadline_ns, struct tr_cdc_row *ret, struct tr_err *err);
int tr_pg_chunk_close(struct tr_cdc_session *s, int64_t deadline_ns, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err);
int tr_pg_fetch(struct tr_cdc_session *s, const struct tr_schema *t, struct tr_slice key, uint64_t xid, int64_t deadline_ns, struct tr_cdc_row *ret, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err);
void tr_pg_chunk_reset(struct pg_session *s);

/* pg_check.c */
int tr_pg_check(struct tr_cdc_session *s, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_finding *f), void *arg, struct tr_err *err);
/* What the server refused, in the words of check: rc or, where waiting does not help, REJECT. err stays as it is when check has nothing to say. */
int tr_pg_explain(struct pg_session *s, int rc, struct tr_err *err);

#endif
