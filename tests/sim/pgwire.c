/*
 * pgwire.c: the walsender of the model, and libpq as far as the stream uses it. Defined in the simulator's executable, these functions
 * stand before those of libpq.so.
 *
 * The walsender reads the WAL up to what is flushed and collects each transaction's changes until its end, as the reorder buffer does; now
 * and then it streams an open one. Transactions that committed before the place where the client began are not sent again.
 */
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>

#include "check.h"
#include "pgmodel.h"
#include "text.h"

enum { FD_BASE = 100000, CONNS_MAX = 64, QUEUE_MAX = 256, RESULTS_MAX = 4, CELLS_MAX = 64 };

struct pg_result {
    ExecStatusType status;
    int rows, columns;
    char cell[CELLS_MAX][72];
    bool null[CELLS_MAX];
    char sqlstate[6], message[160];
};

struct message {
    char *p;
    int n;
};

struct pg_conn {
    int fd;
    uint64_t boot;
    bool replication, streaming, bad;
    char error[120];
    PGresult *results[RESULTS_MAX];
    uint32_t n_results;
    bool busy_until_end;     /* an answer's closing NULL is still to come */

    /* walsender */
    uint32_t next;           /* record */
    uint64_t start_at;
    bool reply_asked;
    int64_t beat_ns;
    struct message queue[QUEUE_MAX];
    uint32_t head, n;
    bool relation_sent[PG_TABLES];
    bool streamed[PG_TX_MAX];
    uint32_t sent_upto[PG_TX_MAX]; /* of a streamed one: its changes below that record are sent */
};

static struct pgmodel *m;
static struct pg_conn *conns[CONNS_MAX];

void pgwire_bind(struct pgmodel *model)
{
    m = model;
    memset(conns, 0, sizeof conns);
}

static bool dead(const struct pg_conn *c)
{
    return c->bad || c->boot != m->boot || !m->up;
}

/* ---- messages ---- */

static struct tr_buf out;
static bool in_stream;
static uint32_t stream_xid;

static void put32(uint32_t v)
{
    v = htobe32(v);
    tr_buf_append(&out, &v, 4);
}

static void put64(uint64_t v)
{
    v = htobe64(v);
    tr_buf_append(&out, &v, 8);
}

static void put16(uint16_t v)
{
    v = htobe16(v);
    tr_buf_append(&out, &v, 2);
}

static void put_text(const char *s)
{
    tr_buf_append(&out, s, strlen(s) + 1);
}

static void start(char type, uint64_t lsn)
{
    tr_buf_clear(&out);
    tr_buf_append_u8(&out, 'w');
    put64(lsn);
    put64(pg_lsn(m->n_wal));
    put64(0);
    tr_buf_append_u8(&out, (uint8_t)type);
}

static void start_change(char type, uint64_t lsn, uint32_t xid)
{
    start(type, lsn);
    if (in_stream)
        put32(xid);
}

static void send_out(struct pg_conn *c)
{
    TR_ASSERT(c->n < QUEUE_MAX);
    struct message *q = &c->queue[(c->head + c->n++) % QUEUE_MAX];
    q->p = malloc(out.n);
    TR_ASSERT(q->p != NULL);
    memcpy(q->p, out.p, out.n);
    q->n = (int)out.n;
}

static int64_t wire_time(int64_t us)
{
    return us - INT64_C(946684800000000);
}

static void put_value(uint32_t v)
{
    char text[16];
    int n = snprintf(text, sizeof text, "%u", v);
    tr_buf_append_u8(&out, 't');
    put32((uint32_t)n);
    tr_buf_append(&out, text, (size_t)n);
}

static void put_tuple(const struct pg_rec *r)
{
    put16(3);
    put_value(r->k2);
    put_value(r->a);
    if (r->unchanged)
        tr_buf_append_u8(&out, 'u');
    else
        put_value(r->t);
}

static void put_key(const struct pg_rec *r)
{
    tr_buf_append_u8(&out, 'K');
    put16(3);
    put_value(r->k1);
    tr_buf_append_u8(&out, 'n');
    tr_buf_append_u8(&out, 'n');
}

static void send_relation(struct pg_conn *c, uint32_t table, uint32_t xid)
{
    static const struct {
        const char *name;
        uint32_t type;
        uint8_t key;
    } cols[] = {{"id", 23, 1}, {"a", 23, 0}, {"t", 25, 0}};
    char name[8];
    start_change('R', 0, xid);
    put32(1000 + table);
    put_text("public");
    snprintf(name, sizeof name, "t%u", table);
    put_text(name);
    tr_buf_append_u8(&out, 'd');
    put16(3);
    for (int i = 0; i < 3; i++) {
        tr_buf_append_u8(&out, cols[i].key);
        put_text(cols[i].name);
        put32(cols[i].type);
        put32((uint32_t)-1);
    }
    send_out(c);
}

static void send_change(struct pg_conn *c, uint32_t rec)
{
    const struct pg_rec *r = &m->wal[rec];
    uint32_t xid = (uint32_t)r->xid;
    uint64_t lsn = pg_lsn(rec);
    if (r->kind == K_BEAT) {
        char text[32];
        int n = snprintf(text, sizeof text, "%llu", (unsigned long long)r->a * 1000000 + r->t);
        start_change('M', lsn, in_stream ? stream_xid : xid);
        tr_buf_append_u8(&out, 1);
        put64(lsn);
        put_text("tailrace/heartbeat/tailrace");
        put32((uint32_t)n);
        tr_buf_append(&out, text, (size_t)n);
        send_out(c);
        return;
    }
    if (!c->relation_sent[r->table] || tr_prng_chance(m->prng, 1, 16))
        send_relation(c, r->table, xid);
    c->relation_sent[r->table] = true;
    start_change(r->kind == K_INSERT ? 'I' : r->kind == K_DELETE ? 'D' : r->kind == K_TRUNCATE ? 'T' : 'U', lsn, xid);
    if (r->kind == K_TRUNCATE) {
        put32(1);
        tr_buf_append_u8(&out, 0);
        put32(1000 + r->table);
        send_out(c);
        return;
    }
    put32(1000 + r->table);
    if (r->kind == K_MOVE || r->kind == K_DELETE)
        put_key(r);
    if (r->kind != K_DELETE) {
        tr_buf_append_u8(&out, 'N');
        put_tuple(r);
    }
    send_out(c);
}

/* ---- decoding ---- */

static bool sent_of(const struct pg_conn *c, int top, uint32_t rec)
{
    return c->streamed[top] && rec < c->sent_upto[top];
}

/* What the reorder buffer holds of it at this record. */
static bool held(const struct pg_conn *c, int top, uint32_t rec, uint32_t upto)
{
    const struct pg_rec *r = &m->wal[rec];
    if (r->type != REC_CHANGE || pgmodel_top(m, r->tx) != top || !pgmodel_is_published(m, rec) || sent_of(c, top, rec))
        return false;
    for (uint32_t i = rec; i < upto; i++) /* a savepoint rolled back by now */
        if (m->wal[i].type == REC_SUB_ABORT && m->wal[i].tx == r->tx)
            return false;
    return true;
}

static uint32_t first_of(int top, uint32_t upto)
{
    for (uint32_t i = 0; i < upto; i++)
        if (m->wal[i].tx >= 0 && pgmodel_top(m, m->wal[i].tx) == top)
            return i;
    return upto;
}

static void stream_piece(struct pg_conn *c, int top, uint32_t upto)
{
    stream_xid = (uint32_t)m->tx[top].xid;
    start('S', 0);
    put32(stream_xid);
    tr_buf_append_u8(&out, !c->streamed[top]);
    send_out(c);
    if (!c->streamed[top]) { /* the definitions go with the first piece of each */
        memset(c->relation_sent, 0, sizeof c->relation_sent);
        m->c->streamed++;
    }
    in_stream = true;
    for (uint32_t i = first_of(top, upto); i < upto; i++)
        if (held(c, top, i, upto))
            send_change(c, i);
    in_stream = false;
    start('E', 0);
    send_out(c);
    c->streamed[top] = true;
    c->sent_upto[top] = upto;
    memset(c->relation_sent, 0, sizeof c->relation_sent); /* what was streamed counts only once it is committed */
}

static void send_commit(struct pg_conn *c, char type, uint32_t rec, int top)
{
    start(type, pg_lsn(rec));
    if (type == 'c')
        put32((uint32_t)m->tx[top].xid);
    tr_buf_append_u8(&out, 0);
    put64(pg_lsn(rec));
    put64(pg_lsn(rec + 1));
    put64((uint64_t)wire_time(m->tx[top].commit_us));
    send_out(c);
}

static void committed(struct pg_conn *c, uint32_t rec)
{
    int top = m->wal[rec].tx;
    bool any = false;
    if (pg_lsn(rec) < c->start_at) {
        TR_ASSERT(!c->streamed[top]);
        return;
    }
    if (m->tx[top].state == TX_RECORDED)
        m->c->hung_streamed++;
    uint32_t first = first_of(top, rec);
    for (uint32_t i = first; i < rec && !any; i++)
        any = held(c, top, i, rec);
    if (c->streamed[top]) {
        if (any)
            stream_piece(c, top, rec);
        send_commit(c, 'c', rec, top);
        return;
    }
    if (!any)
        return;
    start('B', pg_lsn(rec));
    put64(pg_lsn(rec));
    put64((uint64_t)wire_time(m->tx[top].commit_us));
    put32((uint32_t)m->tx[top].xid);
    send_out(c);
    for (uint32_t i = first; i < rec; i++)
        if (held(c, top, i, rec))
            send_change(c, i);
    send_commit(c, 'C', rec, top);
}

static void aborted(struct pg_conn *c, uint32_t rec)
{
    int tx = m->wal[rec].tx;
    if (tx < 0 || !c->streamed[pgmodel_top(m, tx)])
        return;
    start('A', 0);
    put32((uint32_t)m->tx[pgmodel_top(m, tx)].xid);
    put32((uint32_t)m->tx[tx].xid);
    send_out(c);
    m->c->streamed_aborted++;
}

/* One record; false: nothing more is flushed. */
static bool decode(struct pg_conn *c)
{
    if (c->next >= TR_MIN(m->flushed, m->sent_max) || c->n + 64 > QUEUE_MAX)
        return false;
    uint32_t rec = c->next++;
    const struct pg_rec *r = &m->wal[rec];
    if (r->type == REC_COMMIT)
        committed(c, rec);
    else if (r->type == REC_ABORT || r->type == REC_SUB_ABORT)
        aborted(c, rec);
    else if (r->type == REC_CHANGE && m->stream_one_in && pg_lsn(rec) >= c->start_at && tr_prng_chance(m->prng, 1, m->stream_one_in) && pgmodel_is_published(m, rec))
        stream_piece(c, pgmodel_top(m, r->tx), rec + 1);
    return true;
}

static void keepalive(struct pg_conn *c, bool reply)
{
    tr_buf_clear(&out);
    tr_buf_append_u8(&out, 'k');
    put64(pg_lsn(c->next));
    put64(0);
    tr_buf_append_u8(&out, reply);
    send_out(c);
    c->reply_asked = false;
    c->beat_ns = tr_now_ns() + 5 * TR_NS_PER_S;
}

static bool has_message(struct pg_conn *c)
{
    if (m->cut)
        return false;
    while (c->n == 0 && decode(c))
        ;
    if (c->n == 0 && (c->reply_asked || tr_now_ns() >= c->beat_ns))
        keepalive(c, !c->reply_asked);
    return c->n != 0;
}

static void feedback(struct pg_conn *c, const char *p)
{
    uint64_t flush;
    memcpy(&flush, p + 9, 8);
    flush = be64toh(flush);
    TR_ASSERT(flush <= pg_lsn(m->flushed));
    c->reply_asked |= p[33] != 0;
    if (flush <= m->slot.confirmed)
        return;
    m->slot.confirmed = flush;
    if (tr_prng_chance(m->prng, 1, 3))
        m->slot.on_disk = flush;
}

void pgwire_hang_up(int64_t noticed_ns)
{
    for (int i = 0; i < CONNS_MAX; i++)
        if (conns[i]) {
            if (m->slot.active == conns[i]) {
                m->slot.active = NULL;
                m->slot.active_until_ns = noticed_ns;
            }
            conns[i] = NULL;
        }
}

bool pgwire_fd_ready(int fd, short events)
{
    struct pg_conn *c = fd >= FD_BASE && fd < FD_BASE + CONNS_MAX ? conns[fd - FD_BASE] : NULL;
    if (!c || dead(c) || (events & POLLOUT))
        return true;
    return c->n_results || (c->streaming && has_message(c));
}

/* ---- libpq ---- */

static PGresult *result(struct pg_conn *c, ExecStatusType status)
{
    PGresult *r = calloc(1, sizeof *r);
    TR_ASSERT(r != NULL && c->n_results < RESULTS_MAX);
    r->status = status;
    c->results[c->n_results++] = r;
    return r;
}

static void cell(PGresult *r, int row, int column, const char *text)
{
    int i = row * r->columns + column;
    TR_ASSERT(i < CELLS_MAX);
    r->null[i] = !text;
    snprintf(r->cell[i], sizeof r->cell[i], "%s", text ? text : "");
}

static void refuse(struct pg_conn *c, const char *sqlstate, const char *text)
{
    PGresult *r = result(c, PGRES_FATAL_ERROR);
    snprintf(r->sqlstate, sizeof r->sqlstate, "%s", sqlstate);
    snprintf(r->message, sizeof r->message, "%s", text);
}

PGresult *pgwire_describe(void)
{
    static const char *const v[3][21] = {
        {"id", "23", "-1", "integer", "23", "b", "N", "1", "t", "f", NULL, "1", "f", "d", "t", "f", "f", NULL, NULL, NULL, "f"},
        {"a", "23", "-1", "integer", "23", "b", "N", "2", "f", "f", NULL, "0", "f", "d", "t", "f", "f", NULL, NULL, NULL, "f"},
        {"t", "25", "-1", "text", "25", "b", "S", "3", "f", "f", NULL, "0", "f", "d", "t", "f", "f", NULL, NULL, NULL, "f"},
    };
    PGresult *r = calloc(1, sizeof *r);
    TR_ASSERT(r != NULL);
    r->status = PGRES_TUPLES_OK;
    r->rows = 3;
    r->columns = 21;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 21; k++)
            cell(r, i, k, v[i][k]);
    return r;
}

PGconn *PQconnectStartParams(const char *const *keywords, const char *const *values, int expand)
{
    PGconn *c = calloc(1, sizeof *c);
    (void)expand;
    TR_ASSERT(c != NULL);
    for (int i = 0; keywords[i]; i++)
        c->replication |= !strcmp(keywords[i], "replication") && values[i];
    c->boot = m->boot;
    c->bad = !m->up || m->cut;
    snprintf(c->error, sizeof c->error, "the server is not there");
    for (c->fd = 0; c->fd < CONNS_MAX && conns[c->fd]; c->fd++)
        ;
    TR_ASSERT(c->fd < CONNS_MAX);
    conns[c->fd] = c;
    return c;
}

PostgresPollingStatusType PQconnectPoll(PGconn *c)
{
    return dead(c) ? PGRES_POLLING_FAILED : PGRES_POLLING_OK;
}

ConnStatusType PQstatus(const PGconn *c)
{
    return dead(c) ? CONNECTION_BAD : CONNECTION_OK;
}

char *PQerrorMessage(const PGconn *c)
{
    return (char *)(uintptr_t)c->error;
}

int PQsocket(const PGconn *c)
{
    return FD_BASE + c->fd;
}

int PQserverVersion(const PGconn *c)
{
    (void)c;
    return m->server_version;
}

int PQsetnonblocking(PGconn *c, int on)
{
    (void)c;
    (void)on;
    return 0;
}

PQnoticeReceiver PQsetNoticeReceiver(PGconn *c, PQnoticeReceiver f, void *arg)
{
    (void)c;
    (void)arg;
    return f;
}

PQconninfoOption *PQconninfoParse(const char *text, char **ret_err)
{
    (void)text;
    *ret_err = NULL;
    return calloc(1, sizeof(PQconninfoOption));
}

void PQconninfoFree(PQconninfoOption *o)
{
    free(o);
}

void PQfreemem(void *p)
{
    free(p);
}

void PQclear(PGresult *r)
{
    free(r);
}

void PQfinish(PGconn *c)
{
    for (uint32_t i = 0; i < c->n_results; i++)
        free(c->results[i]);
    while (c->n) {
        free(c->queue[c->head].p);
        c->head = (c->head + 1) % QUEUE_MAX;
        c->n--;
    }
    if (m->slot.active == c) {
        m->slot.active = NULL;
        m->slot.active_until_ns = tr_now_ns() + (int64_t)tr_prng_below(m->prng, 200 * TR_NS_PER_MS);
    }
    conns[c->fd] = NULL;
    free(c);
}

static void start_replication(struct pg_conn *c, const char *sql)
{
    const char *at = strstr(sql, "LOGICAL ");
    uint64_t from = 0;
    const char *end = at ? strchr(at + 8, ' ') : NULL;
    TR_ASSERT(end && tr_parse_lsn(tr_slice_of(at + 8, (size_t)(end - at - 8)), &from, NULL) == TR_OK);
    if (!m->slot.exists) {
        refuse(c, "42704", "the slot does not exist");
        return;
    }
    if (pgmodel_slot_active(m)) {
        refuse(c, "55006", "the slot is active");
        return;
    }
    m->slot.active = c;
    c->start_at = TR_MAX(from, m->slot.confirmed);
    c->next = 0; /* the catalog snapshot and open transactions: from the restart point, here always the beginning */
    c->streaming = true;
    c->beat_ns = tr_now_ns() + 5 * TR_NS_PER_S;
    result(c, PGRES_COPY_BOTH);
}

int PQsendQuery(PGconn *c, const char *sql)
{
    char text[64], a[TR_LSN_CHARS];
    if (dead(c))
        return 0;
    if (!strcmp(sql, "IDENTIFY_SYSTEM")) {
        PGresult *r = result(c, PGRES_TUPLES_OK);
        r->rows = 1;
        r->columns = 2;
        cell(r, 0, 0, "7");
        snprintf(text, sizeof text, "%u", m->timeline);
        cell(r, 0, 1, text);
    } else if (!strncmp(sql, "SELECT confirmed_flush_lsn", 26)) {
        PGresult *r = result(c, PGRES_TUPLES_OK);
        r->rows = m->slot.exists;
        r->columns = 4;
        cell(r, 0, 0, tr_format_lsn(m->slot.confirmed, a));
        cell(r, 0, 1, pgmodel_slot_active(m) ? "4711" : "0");
        cell(r, 0, 2, m->slot.lost ? "lost" : "reserved");
        snprintf(text, sizeof text, "%llu", (unsigned long long)m->next_xid);
        cell(r, 0, 3, text);
    } else {
        TR_ASSERT(!strncmp(sql, "START_REPLICATION", 17));
        start_replication(c, sql);
    }
    return 1;
}

int PQsendQueryParams(PGconn *c, const char *sql, int n, const Oid *types, const char *const *values, const int *lengths, const int *formats, int result_format)
{
    (void)sql;
    (void)types;
    (void)values;
    (void)lengths;
    (void)formats;
    (void)result_format;
    if (dead(c))
        return 0;
    TR_ASSERT(n == 4 && c->n_results < RESULTS_MAX);
    c->results[c->n_results++] = pgwire_describe();
    return 1;
}

int PQsendPrepare(PGconn *c, const char *name, const char *sql, int n, const Oid *types)
{
    (void)name;
    (void)sql;
    (void)n;
    (void)types;
    if (dead(c))
        return 0;
    result(c, PGRES_COMMAND_OK);
    return 1;
}

int PQsendQueryPrepared(PGconn *c, const char *name, int n, const char *const *values, const int *lengths, const int *formats, int result_format)
{
    (void)name;
    return PQsendQueryParams(c, "", n, NULL, values, lengths, formats, result_format);
}

int PQflush(PGconn *c)
{
    return dead(c) ? -1 : 0;
}

int PQconsumeInput(PGconn *c)
{
    return !dead(c);
}

int PQisBusy(PGconn *c)
{
    return !c->n_results && !c->busy_until_end;
}

PGresult *PQgetResult(PGconn *c)
{
    if (!c->n_results) {
        c->busy_until_end = false;
        return NULL;
    }
    PGresult *r = c->results[0];
    memmove(c->results, c->results + 1, --c->n_results * sizeof *c->results);
    c->busy_until_end = true;
    return r;
}

ExecStatusType PQresultStatus(const PGresult *r)
{
    return r ? r->status : PGRES_FATAL_ERROR;
}

int PQntuples(const PGresult *r)
{
    return r ? r->rows : 0;
}

char *PQgetvalue(const PGresult *r, int row, int column)
{
    TR_ASSERT(row < r->rows && column < r->columns);
    return (char *)(uintptr_t)r->cell[row * r->columns + column];
}

int PQgetisnull(const PGresult *r, int row, int column)
{
    TR_ASSERT(row < r->rows && column < r->columns);
    return r->null[row * r->columns + column];
}

char *PQresultErrorField(const PGresult *r, int field)
{
    if (!r || r->status != PGRES_FATAL_ERROR)
        return NULL;
    const char *text = field == PG_DIAG_SQLSTATE ? r->sqlstate : field == PG_DIAG_MESSAGE_PRIMARY ? r->message : NULL;
    return (char *)(uintptr_t)text;
}

int PQgetCopyData(PGconn *c, char **ret, int async)
{
    TR_ASSERT(async);
    if (dead(c) || !c->streaming || !has_message(c) || tr_prng_chance(m->prng, 1, 8)) /* packets end anywhere */
        return 0;
    struct message q = c->queue[c->head];
    c->head = (c->head + 1) % QUEUE_MAX;
    c->n--;
    *ret = q.p;
    return q.n;
}

int PQputCopyData(PGconn *c, const char *p, int n)
{
    if (dead(c))
        return -1;
    TR_ASSERT(n == 34 && p[0] == 'r');
    if (!m->cut)
        feedback(c, p);
    return 1;
}

int PQputCopyEnd(PGconn *c, const char *err)
{
    (void)err;
    c->streaming = false;
    return 1;
}
