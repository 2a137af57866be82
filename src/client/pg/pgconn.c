#include "pgconn.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

/* Everything that decides how a value is printed and read. search_path: type names come out qualified unless they are the system's. row_security: a
 * policy on rows is an error, never a snapshot that lacks the rows which the stream has. */
static const char pinned[] = "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex "
                             "-c search_path=pg_catalog -c client_min_messages=warning -c standard_conforming_strings=on -c xmloption=content "
                             "-c lc_monetary=C -c array_nulls=on -c quote_all_identifiers=off -c row_security=off";

void tr_pgconn_init(struct tr_pgconn *c, const char *what)
{
    memset(c, 0, sizeof *c);
    snprintf(c->what, sizeof c->what, "%s", what);
}

void tr_pgconn_close(struct tr_pgconn *c)
{
    if (c->pg)
        PQfinish(c->pg);
    c->pg = NULL;
    c->server_version = 0;
}

void tr_pgconn_done(struct tr_pgconn *c)
{
    tr_pgconn_close(c);
    if (c->waker_ok)
        tr_waker_done(&c->waker);
    c->waker_ok = false;
}

void tr_pgconn_interrupt(struct tr_pgconn *c)
{
    atomic_store(&c->interrupted, true);
    if (c->waker_ok)
        tr_waker_wake(&c->waker);
}

int tr_pg_classify(const char *s, uint8_t *ret_blame)
{
    uint8_t blame = TR_BLAME_NONE;
    int rc;
    if (!s || !*s || !strncmp(s, "08", 2) || !strncmp(s, "57", 2) || !strncmp(s, "53", 2) || !strncmp(s, "58", 2) || !strncmp(s, "28", 2) ||
        !strncmp(s, "3D", 2) || !strncmp(s, "XX", 2)) {
        blame = TR_BLAME_ENDPOINT;
        rc = TR_RETRY;
    } else if (!strncmp(s, "40", 2) || !strncmp(s, "55", 2) || !strncmp(s, "25", 2)) {
        rc = TR_RETRY; /* serialization, lock, object in use, read-only */
    } else if (!strncmp(s, "22", 2) || !strncmp(s, "23", 2) || !strncmp(s, "54", 2) || !strncmp(s, "P0", 2) || !strncmp(s, "09", 2) || !strncmp(s, "27", 2) ||
               !strncmp(s, "38", 2) || !strncmp(s, "39", 2) || !strncmp(s, "44", 2)) { /* data, constraint, a limit of the server, what a trigger says */
        blame = TR_BLAME_BATCH;
        rc = TR_REJECT;
    } else if (!strncmp(s, "42", 2) || !strncmp(s, "0A", 2) || !strncmp(s, "2B", 2)) { /* 2B: something of somebody's hangs on it */
        blame = TR_BLAME_TARGET;
        rc = !strcmp(s, "42P01") || !strcmp(s, "42703") ? TR_STALE : TR_REJECT;
    } else {
        rc = TR_RETRY;
    }
    if (ret_blame)
        *ret_blame = blame;
    return rc;
}

/* libpq's texts end in newlines and may have several lines: the first says it. */
static void one_line(char *to, size_t cap, const char *from)
{
    size_t n = 0;
    while (*from == ' ' || *from == '\n')
        from++;
    for (; *from && n + 1 < cap; from++) {
        if (*from == '\n') {
            if (!from[1])
                break;
            if (n && to[n - 1] != ' ')
                to[n++] = ' ';
            continue;
        }
        if (*from == '\t')
            continue;
        to[n++] = *from;
    }
    to[n] = 0;
}

/* What stands in quotes in a message about data is the data. */
static void without_values(char *text)
{
    char *to = text;
    bool in = false;
    for (const char *p = text; *p; p++) {
        if (*p == '"' && !(in && p[1] == '"')) {
            in = !in;
            *to++ = '"';
        } else if (!in) {
            *to++ = *p;
        } else if (*p == '"') {
            p++;
        }
    }
    *to = 0;
}

int tr_pg_error(struct tr_pgconn *c, const PGresult *res, const char *doing, struct tr_err *err)
{
    char text[384], state[6] = "";
    const char *primary = res ? PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *st = res ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;
    if (st)
        snprintf(state, sizeof state, "%s", st);
    one_line(text, sizeof text, primary ? primary : c->pg ? PQerrorMessage(c->pg) : "not connected");
    if (!strncmp(state, "22", 2) && strcmp(state, "22021") != 0 && strcmp(state, "22P05") != 0) /* those quote names of encodings */
        without_values(text);
    uint8_t blame = TR_BLAME_ENDPOINT;
    int rc = tr_pg_classify(state, &blame);
    tr_err_set(err, rc, TR_DOM_PG, "%s: %s: %s", c->what, doing, *text ? text : "the connection was closed");
    if (err) {
        memcpy(err->sqlstate, state, sizeof state);
        err->blame = blame;
    }
    if (c->pg && PQstatus(c->pg) == CONNECTION_BAD)
        tr_pgconn_close(c);
    return rc;
}

static int timed_out(struct tr_pgconn *c, const char *doing, struct tr_err *err)
{
    bool intr = atomic_exchange(&c->interrupted, false);
    tr_pgconn_close(c); /* what the server will still send for this call must not be taken for the next one's answer */
    int rc = tr_err_set(err, TR_RETRY, TR_DOM_PG, "%s: %s: %s", c->what, doing, intr ? "interrupted" : "no answer before the deadline");
    if (err)
        err->blame = TR_BLAME_ENDPOINT;
    return rc;
}

int tr_pg_wait(struct tr_pgconn *c, bool want_write, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_wait w = {.fd = PQsocket(c->pg), .events = (short)(POLLIN | (want_write ? POLLOUT : 0)), .deadline_ns = deadline_ns};
    if (atomic_load(&c->interrupted))
        return TR_AGAIN;
    int64_t now = tr_now_ns();
    if (now >= deadline_ns)
        return TR_AGAIN;
    int n = tr_wait_many(&c->waker, &w, 1, deadline_ns - now, err);
    if (n < 0)
        return n;
    return atomic_load(&c->interrupted) || (n == 0 && tr_now_ns() >= deadline_ns) ? TR_AGAIN : TR_OK;
}

/* What a server says beside its answers; libpq would print it to stderr as it is. Primary text only: a detail may quote values. */
static void take_notice(void *arg, const PGresult *r)
{
    const struct tr_pgconn *c = arg;
    const char *text = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY), *severity = PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED);
    char line[384];
    bool warning = severity && !strcmp(severity, "WARNING");
    if (!text || !tr_oslog_enabled(warning ? TR_OSLOG_INFO : TR_OSLOG_DEBUG))
        return;
    one_line(line, sizeof line, text);
    tr_oslog_fields(warning ? TR_OSLOG_INFO : TR_OSLOG_DEBUG, "postgres", TR_OSLOG_F({"connection", c->what}, {"severity", severity}, {"sqlstate", PQresultErrorField(r, PG_DIAG_SQLSTATE)}),
                    "%s", line);
}

int tr_pgconn_start(struct tr_pgconn *c, const struct tr_pg_params *p, struct tr_err *err)
{
    tr_pgconn_close(c);
    if (!c->waker_ok) {
        int rc = tr_waker_init(&c->waker, err);
        if (rc < 0)
            return rc;
        c->waker_ok = true;
    }
    atomic_store(&c->interrupted, false);

    /* the user's own options stay, ours come behind them and win */
    char *parse_err = NULL;
    PQconninfoOption *opts = PQconninfoParse(p->dsn, &parse_err);
    if (!opts) {
        /* libpq's text may quote the string, and with it a password */
        PQfreemem(parse_err);
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG,
                          "%s: the connection string cannot be parsed; write postgresql://user@host:port/database or key=value pairs", c->what);
    }
    struct tr_buf o;
    tr_buf_init(&o);
    for (PQconninfoOption *k = opts; k->keyword; k++)
        if (!strcmp(k->keyword, "options") && k->val)
            tr_buf_printf(&o, "%s ", k->val);
    PQconninfoFree(opts);
    tr_buf_printf(&o, "%s", pinned);
    if (p->settings)
        tr_buf_printf(&o, " %s", p->settings);

    const char *k[] = {"dbname", "options", "application_name", "client_encoding", "replication", "keepalives", "tcp_user_timeout", NULL};
    const char *v[] = {p->dsn, tr_buf_cstr(&o), p->application_name, "UTF8", p->replication ? "database" : NULL, "1", "30000", NULL};
    c->pg = PQconnectStartParams(k, v, 1);
    tr_buf_done(&o);
    if (!c->pg)
        return tr_err_set(err, TR_NOMEM, TR_DOM_PG, "%s: no memory for a connection", c->what);
    PQsetNoticeReceiver(c->pg, take_notice, c);
    if (PQstatus(c->pg) == CONNECTION_BAD)
        return tr_pg_error(c, NULL, "connecting", err);
    return TR_OK;
}

int tr_pgconn_step(struct tr_pgconn *c, short *ret_events, struct tr_err *err)
{
    switch (PQconnectPoll(c->pg)) {
    case PGRES_POLLING_OK:
        PQsetnonblocking(c->pg, 1);
        c->server_version = PQserverVersion(c->pg);
        return 1;
    case PGRES_POLLING_READING:
        *ret_events = POLLIN;
        return 0;
    case PGRES_POLLING_WRITING:
        *ret_events = POLLOUT;
        return 0;
    default:
        return tr_pg_error(c, NULL, "connecting", err);
    }
}

int tr_pgconn_open(struct tr_pgconn *c, const struct tr_pg_params *p, int64_t deadline_ns, struct tr_err *err)
{
    int rc = tr_pgconn_start(c, p, err);
    short events = POLLOUT;
    while (rc >= 0) {
        struct tr_wait w = {.fd = PQsocket(c->pg), .events = events, .deadline_ns = deadline_ns};
        int64_t now = tr_now_ns();
        if (now >= deadline_ns || atomic_load(&c->interrupted))
            return timed_out(c, "connecting", err);
        rc = tr_wait_many(&c->waker, &w, 1, deadline_ns - now, err);
        if (rc < 0)
            return rc;
        rc = tr_pgconn_step(c, &events, err);
        if (rc == 1)
            return TR_OK;
    }
    return rc;
}

static int flush_out(struct tr_pgconn *c, int64_t deadline_ns, const char *doing, struct tr_err *err)
{
    for (;;) {
        int f = PQflush(c->pg);
        if (f == 0)
            return TR_OK;
        if (f < 0)
            return tr_pg_error(c, NULL, doing, err);
        int rc = tr_pg_wait(c, true, deadline_ns, err);
        if (rc == TR_AGAIN)
            return timed_out(c, doing, err);
        if (rc < 0)
            return rc;
        if (!PQconsumeInput(c->pg))
            return tr_pg_error(c, NULL, doing, err);
    }
}

/* The next result, NULL at the end of the command. */
static int next_result(struct tr_pgconn *c, int64_t deadline_ns, const char *doing, PGresult **ret, struct tr_err *err)
{
    while (PQisBusy(c->pg)) {
        int rc = tr_pg_wait(c, false, deadline_ns, err);
        if (rc == TR_AGAIN)
            return timed_out(c, doing, err);
        if (rc < 0)
            return rc;
        if (!PQconsumeInput(c->pg))
            return tr_pg_error(c, NULL, doing, err);
    }
    *ret = PQgetResult(c->pg);
    return TR_OK;
}

static void shorten(char out[48], const char *sql)
{
    size_t n = 0;
    while (*sql == ' ' || *sql == '\n')
        sql++;
    for (; *sql && n < 40; sql++)
        out[n++] = *sql == '\n' ? ' ' : *sql;
    out[n] = 0;
}

/* Takes all results of what was sent; keeps the last good one. In a COPY state returns at once. */
static int collect(struct tr_pgconn *c, const char *doing, int64_t deadline_ns, PGresult **ret, struct tr_err *err)
{
    PGresult *keep = NULL;
    int rc = flush_out(c, deadline_ns, doing, err);
    bool failed = false;
    while (rc >= 0) {
        PGresult *r = NULL;
        int w = next_result(c, deadline_ns, doing, &r, err);
        if (w < 0) {
            rc = w;
            break;
        }
        if (!r)
            break;
        ExecStatusType st = PQresultStatus(r);
        if (st == PGRES_COPY_IN || st == PGRES_COPY_OUT || st == PGRES_COPY_BOTH) {
            PQclear(keep);
            keep = r;
            break;
        }
        if (st == PGRES_COMMAND_OK || st == PGRES_TUPLES_OK || st == PGRES_EMPTY_QUERY) {
            PQclear(keep);
            keep = r;
            continue;
        }
        if (!failed) {
            rc = tr_pg_error(c, r, doing, err);
            failed = true;
        }
        PQclear(r);
        if (!c->pg)
            break;
        /* drain what follows so that the connection can be used again */
        while (c->pg && next_result(c, deadline_ns, doing, &r, NULL) >= 0 && r)
            PQclear(r);
        break;
    }
    if (rc < 0 || !ret) {
        PQclear(keep);
        keep = NULL;
    }
    if (ret)
        *ret = keep;
    return rc < 0 ? rc : TR_OK;
}

int tr_pg_exec(struct tr_pgconn *c, const char *sql, int n, const char *const *values, int64_t deadline_ns, PGresult **ret, struct tr_err *err)
{
    char doing[48];
    shorten(doing, sql);
    if (ret)
        *ret = NULL;
    if (!c->pg)
        return tr_pg_error(c, NULL, doing, err);
    /* the replication protocol knows simple queries only */
    int ok = n == 0 && !values ? PQsendQuery(c->pg, sql) : PQsendQueryParams(c->pg, sql, n, NULL, values, NULL, NULL, 0);
    if (!ok)
        return tr_pg_error(c, NULL, doing, err);
    return collect(c, doing, deadline_ns, ret, err);
}

int tr_pg_script(struct tr_pgconn *c, const char *sql, int64_t deadline_ns, struct tr_err *err)
{
    return tr_pg_exec(c, sql, 0, NULL, deadline_ns, NULL, err);
}

int tr_pg_copy_next(struct tr_pgconn *c, int64_t deadline_ns, char **ret, int *ret_n, struct tr_err *err)
{
    if (!c->pg)
        return tr_pg_error(c, NULL, "reading COPY data", err);
    for (;;) {
        int n = PQgetCopyData(c->pg, ret, 1);
        if (n > 0) {
            *ret_n = n;
            return TR_OK;
        }
        if (n == -1) {
            int rc = collect(c, "reading COPY data", deadline_ns, NULL, err);
            return rc < 0 ? rc : TR_EOF;
        }
        if (n == -2)
            return tr_pg_error(c, NULL, "reading COPY data", err);
        int rc = tr_pg_wait(c, false, deadline_ns, err);
        if (rc == TR_AGAIN)
            return timed_out(c, "reading COPY data", err);
        if (rc < 0)
            return rc;
        if (!PQconsumeInput(c->pg))
            return tr_pg_error(c, NULL, "reading COPY data", err);
    }
}

int tr_pg_copy_cancel(struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err)
{
    if (!c->pg)
        return TR_RETRY;
    char text[256];
    PGcancel *k = PQgetCancel(c->pg);
    if (k) {
        PQcancel(k, text, sizeof text); /* a new connection; best effort: without it the rest of the rows is read and dropped */
        PQfreeCancel(k);
    }
    for (;;) {
        char *row;
        int n, rc = tr_pg_copy_next(c, deadline_ns, &row, &n, err);
        if (rc < 0)
            return c->pg ? TR_OK : rc; /* EOF, or the cancellation itself */
        PQfreemem(row);
    }
}
