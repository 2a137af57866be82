/*
 * pg_writer.c: one sealed batch, one transaction, in libpq's pipeline mode: statements are prepared once per (target, kind, columns left
 * out), then sent without waiting; the answers are read back every WINDOW statements or WINDOW_ROWS rows, so that neither side's buffers fill
 * up while the other waits.
 *
 * Whole rows that follow one another go together in one statement (pg_run.h); what needs a statement of its own ends the run, so that the
 * order of a table's changes stays. A batch that is refused is written again row by row: for the error to name the column, and since two keys
 * that differ to us may be one to the mirror's index (citext), which ROW_TWICE says.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "map.h"
#include "pg_run.h"
#include "pg_sink.h"
#include "sqlbatch.h"

enum { WINDOW = 512, WINDOW_ROWS = 4096, STATEMENTS_MAX = 2000 };

#define ROW_TWICE "21000" /* ON CONFLICT DO UPDATE command cannot affect row a second time */

struct pg_writer {
    struct tr_writer writer;
    struct pg_sink *sink;
    struct tr_pgconn conn;
    struct tr_map statements;    /* target id, kind, run?, left_out → its number */
    uintptr_t next_statement;
    struct tr_arena arena;
    struct tr_buf key, text;
    struct tr_buf params;        /* NUL-terminated copies */
    const char **values;
    uint32_t cap;
    struct {
        uint32_t part;
        uintptr_t statement;     /* 0: none of ours */
    } sent[WINDOW + 8];          /* whose answers are outstanding; oldest first */
    uint32_t n_sent, rows_sent;
    const struct tr_sealed *batch;
    struct pg_run run;
    bool by_row;                 /* this batch without runs */
};

static struct pg_writer *of(struct tr_writer *w)
{
    return tr_container_of(w, struct pg_writer, writer);
}

static int lost(struct pg_writer *w, const char *doing, struct tr_err *err)
{
    int rc = tr_pg_error(&w->conn, NULL, doing, err);
    tr_pgconn_close(&w->conn);
    return rc == TR_REJECT || rc == TR_STALE ? TR_RETRY : rc;
}

/* Everything that was asked for is out and a byte or more of answers is in, or both are being worked on. */
static int pump(struct pg_writer *w, int64_t deadline_ns, struct tr_err *err)
{
    int f = PQflush(w->conn.pg);
    if (f < 0)
        return lost(w, "writing", err);
    int rc = tr_pg_wait(&w->conn, f > 0, deadline_ns, err);
    if (rc == TR_AGAIN) {
        tr_pgconn_close(&w->conn);
        rc = tr_err_set(err, TR_RETRY, TR_DOM_PG, "%s: the batch did not end before its deadline", w->conn.what);
        if (err)
            err->blame = TR_BLAME_ENDPOINT;
        return rc;
    }
    if (rc < 0)
        return rc;
    return PQconsumeInput(w->conn.pg) ? TR_OK : lost(w, "writing", err);
}

static int take(struct pg_writer *w, int64_t deadline_ns, PGresult **ret, struct tr_err *err)
{
    while (PQisBusy(w->conn.pg)) {
        int rc = pump(w, deadline_ns, err);
        if (rc < 0)
            return rc;
    }
    *ret = PQgetResult(w->conn.pg);
    return TR_OK;
}

/* The server says of which parameter it could not take the value: that is a column. */
static void name_column(struct pg_writer *w, const PGresult *r, uint32_t part, uintptr_t statement, struct tr_err *err)
{
    const char *context = PQresultErrorField(r, PG_DIAG_CONTEXT), *at = context ? strstr(context, "parameter $") : NULL;
    const struct tr_sqltarget *t = tr_sqltarget_of(w->batch->parts[part].target);
    size_t it = 0;
    struct tr_slice k;
    void *v;
    while (at && statement && tr_map_next(&w->statements, &it, &k, &v)) {
        if ((uintptr_t)v != statement || k.n < 10)
            continue;
        int i = tr_sqlm_param_column(t->schema, k.p[8], k.n > 10 ? k.p + 10 : NULL, (uint32_t)strtoul(at + strlen("parameter $"), NULL, 10));
        char text[sizeof err->msg];
        memcpy(text, err->msg, sizeof text);
        if (i >= 0)
            snprintf(err->msg, sizeof err->msg, "column %s of table %s: %.400s", t->schema->columns[i].name, t->name, text);
        return;
    }
}

/* Reads the answers of all statements sent. The first failure stays in err, the rest are aborted ones. */
static int drain(struct pg_writer *w, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < w->n_sent; i++) {
        PGresult *r = NULL;
        int t = take(w, deadline_ns, &r, err);
        if (t < 0)
            return t;
        ExecStatusType st = PQresultStatus(r);
        if (rc >= 0 && st == PGRES_FATAL_ERROR) {
            rc = tr_pg_error(&w->conn, r, "writing", err);
            if ((rc == TR_REJECT || rc == TR_STALE) && err) {
                err->code = w->sent[i].part;
                err->blame = rc == TR_REJECT ? TR_BLAME_BATCH : TR_BLAME_TARGET;
                name_column(w, r, w->sent[i].part, w->sent[i].statement, err);
            }
        }
        PQclear(r);
        if (!w->conn.pg)
            return rc < 0 ? rc : TR_RETRY;
        t = take(w, deadline_ns, &r, NULL); /* the NULL that ends each statement's answer */
        if (t < 0)
            return t;
        PQclear(r);
    }
    w->n_sent = w->rows_sent = 0;
    return rc;
}

static int sent(struct pg_writer *w, uint32_t part, uintptr_t statement, uint32_t rows, int64_t deadline_ns, struct tr_err *err)
{
    w->sent[w->n_sent].part = part;
    w->sent[w->n_sent++].statement = statement;
    w->rows_sent += rows;
    if (w->n_sent < WINDOW && w->rows_sent < WINDOW_ROWS)
        return TR_OK;
    if (!PQsendFlushRequest(w->conn.pg))
        return lost(w, "writing", err);
    return drain(w, deadline_ns, err);
}

static int send_text(struct pg_writer *w, const char *sql, uint32_t part, int64_t deadline_ns, struct tr_err *err)
{
    if (!PQsendQueryParams(w->conn.pg, sql, 0, NULL, NULL, NULL, NULL, 0))
        return lost(w, "writing", err);
    return sent(w, part, 0, 1, deadline_ns, err);
}

static int no_memory(const char *for_what, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for a %s", for_what);
}

/* s == NULL: the statement of the run. */
static int statement(struct pg_writer *w, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, uint32_t part, int64_t deadline_ns, char name[24], uintptr_t *ret, struct tr_err *err)
{
    tr_buf_clear(&w->key);
    if (tr_buf_append_u64le(&w->key, t->id) < 0 || tr_buf_append_u8(&w->key, (uint8_t)(s ? s->kind : w->run.kind)) < 0 || tr_buf_append_u8(&w->key, !s) < 0 ||
        (s && s->left_out && tr_buf_append(&w->key, s->left_out, t->schema->n_columns) < 0))
        return no_memory("statement", err);
    void *known = NULL;
    if (tr_map_find(&w->statements, tr_buf_slice(&w->key), &known)) {
        *ret = (uintptr_t)known;
        snprintf(name, 24, "tr%llu", (unsigned long long)*ret);
        return TR_OK;
    }
    tr_buf_clear(&w->text);
    int rc = s ? tr_sqlm_text(&t->m, s, &w->text) : tr_sqlm_text_run(&t->m, w->run.kind, &w->text);
    if (rc < 0 || !tr_buf_cstr(&w->text))
        return no_memory("statement", err);
    uintptr_t n = *ret = ++w->next_statement;
    snprintf(name, 24, "tr%llu", (unsigned long long)n);
    if (tr_map_put(&w->statements, tr_buf_slice(&w->key), (void *)n, NULL) < 0)
        return no_memory("statement", err);
    if (!PQsendPrepare(w->conn.pg, name, tr_buf_cstr(&w->text), 0, NULL))
        return lost(w, "preparing", err);
    return sent(w, part, 0, 1, deadline_ns, err);
}

static int reserve_values(struct pg_writer *w, uint32_t n, struct tr_err *err)
{
    if (n <= w->cap)
        return TR_OK;
    const char **v = tr_realloc((void *)w->values, n * sizeof *v);
    if (!v)
        return no_memory("row", err);
    w->values = v;
    w->cap = n;
    return TR_OK;
}

static int run_step(struct pg_writer *w, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, uint32_t part, int64_t deadline_ns, struct tr_err *err)
{
    char name[24];
    uintptr_t number = 0;
    int rc = statement(w, t, s, part, deadline_ns, name, &number, err);
    if (rc >= 0)
        rc = reserve_values(w, s->n, err);
    if (rc < 0)
        return rc;
    size_t need = 0;
    for (uint32_t i = 0; i < s->n; i++)
        need += s->params[i].text.n + 1;
    tr_buf_clear(&w->params);
    if (tr_buf_reserve(&w->params, need) < 0)
        return no_memory("row", err);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tr_sqlm_param *p = &s->params[i];
        w->values[i] = p->null ? NULL : (const char *)w->params.p + w->params.n;
        if (p->null)
            continue;
        tr_buf_put(&w->params, p->text.p, p->text.n);
        tr_buf_put_u8(&w->params, 0);
    }
    if (!PQsendQueryPrepared(w->conn.pg, name, (int)s->n, w->values, NULL, NULL, 0))
        return lost(w, "writing", err);
    return sent(w, part, number, 1, deadline_ns, err);
}

/* Sends the run, if there is one. */
static int end_run(struct pg_writer *w, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_run *r = &w->run;
    if (!r->target)
        return TR_OK;
    char name[24];
    uintptr_t number = 0;
    int rc = statement(w, r->target, NULL, r->part, deadline_ns, name, &number, err);
    if (rc >= 0)
        rc = reserve_values(w, r->n_columns, err);
    if (rc >= 0 && tr_pg_run_values(r, w->values) < 0)
        rc = no_memory("row", err);
    if (rc >= 0 && !PQsendQueryPrepared(w->conn.pg, name, (int)r->n_columns, w->values, NULL, NULL, 0))
        rc = lost(w, "writing", err);
    uint32_t part = r->part, n = r->n;
    tr_pg_run_clear(r);
    return rc >= 0 ? sent(w, part, number, n, deadline_ns, err) : rc;
}

static int step(struct pg_writer *w, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_slice key, uint32_t part, int64_t deadline_ns, struct tr_err *err)
{
    bool suits = !w->by_row && tr_pg_run_suits(s);
    int rc = TR_OK;
    if (!suits || !tr_pg_run_takes(&w->run, t, s, key))
        rc = end_run(w, deadline_ns, err);
    if (rc < 0)
        return rc;
    if (!suits)
        return run_step(w, t, s, part, deadline_ns, err);
    if (tr_pg_run_add(&w->run, t, s, key, part) < 0)
        return no_memory("row", err);
    return tr_pg_run_full(&w->run) ? end_run(w, deadline_ns, err) : TR_OK;
}

static int write_part(struct pg_writer *w, const struct tr_part *p, uint32_t index, int64_t deadline_ns, struct tr_err *err)
{
    const struct tr_sqltarget *t = tr_sqltarget_of(p->target);
    struct tr_sqlbatch_iter it;
    struct tr_change g;
    tr_sqlbatch_begin(&it, p, t->schema, &w->arena);
    for (;;) {
        tr_arena_reset(&w->arena);
        int rc = tr_sqlbatch_next(&it, &g, err);
        if (rc == TR_EOF)
            return end_run(w, deadline_ns, err);
        struct tr_sqlm_step steps[2];
        if (rc >= 0)
            rc = tr_sqlm_plan(&t->m, &g, &w->arena, steps, err);
        for (int i = 0, n = rc; i < n && rc >= 0; i++)
            rc = step(w, t, &steps[i], g.key, index, deadline_ns, err);
        if (rc < 0)
            return rc;
    }
}

static int check_lease(struct pg_writer *w, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    char ours[24];
    snprintf(ours, sizeof ours, "%llu", (unsigned long long)w->sink->sql.lease_token);
    tr_buf_append_str(&q, "INSERT INTO ");
    tr_pg_sink_meta(w->sink, "_tailrace_lease", &q);
    tr_buf_append_str(&q, " AS l VALUES ($1, $2) ON CONFLICT (sink) DO UPDATE SET token = greatest(l.token, excluded.token) RETURNING token");
    const char *v[] = {w->sink->sql.name, ours};
    PGresult *r = NULL;
    const char *sql = tr_buf_cstr(&q);
    int rc = sql ? tr_pg_exec(&w->conn, sql, 2, v, deadline_ns, &r, err) : TR_RETRY;
    tr_buf_done(&q);
    if (rc < 0)
        return rc;
    bool fenced = strtoull(tr_pg_val(r, 0, 0), NULL, 10) > w->sink->sql.lease_token;
    PQclear(r);
    return fenced ? tr_err_set(err, TR_FENCED, TR_DOM_SINK, "%s: a process with a newer lease has written here, so this one must stop; if the state directory was restored from a backup, see docs/operations.md, Backup", w->conn.what) : TR_OK;
}

/* Out of pipeline mode with nothing outstanding; a connection that cannot be brought there is closed. */
static void leave_pipeline(struct pg_writer *w, int64_t deadline_ns)
{
    if (!w->conn.pg)
        return;
    bool ok = PQpipelineSync(w->conn.pg);
    for (uint32_t i = 0; ok; i++) {
        PGresult *r = NULL;
        if (take(w, deadline_ns, &r, NULL) < 0 || !w->conn.pg)
            return;
        ExecStatusType st = r ? PQresultStatus(r) : PGRES_EMPTY_QUERY;
        PQclear(r);
        if (st == PGRES_PIPELINE_SYNC)
            break;
        ok = i < 4 * WINDOW;
    }
    w->n_sent = w->rows_sent = 0;
    if (!ok || !PQexitPipelineMode(w->conn.pg))
        tr_pgconn_close(&w->conn);
}

static int write_rows(struct pg_writer *w, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    if (!PQenterPipelineMode(w->conn.pg))
        return lost(w, "writing", err);
    w->n_sent = w->rows_sent = 0;
    w->batch = b;
    tr_pg_run_clear(&w->run);
    int rc = TR_OK;
    for (uint32_t i = 0; i < b->n_parts && rc >= 0; i++)
        rc = write_part(w, &b->parts[i], i, deadline_ns, err);
    TR_FAILPOINT("sink.before_commit");
    if (rc >= 0)
        rc = send_text(w, "COMMIT", 0, deadline_ns, err);
    if (rc >= 0 && !PQsendFlushRequest(w->conn.pg))
        rc = lost(w, "writing", err);
    if (rc >= 0)
        rc = drain(w, deadline_ns, err);
    leave_pipeline(w, deadline_ns);
    return rc;
}

static int attempt(struct pg_writer *w, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    if (!w->conn.pg || w->statements.n > STATEMENTS_MAX) { /* a new session knows no statement */
        tr_pgconn_close(&w->conn);
        tr_map_clear(&w->statements);
    }
    int rc = tr_pg_sink_connect(w->sink, &w->conn, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_script(&w->conn, "BEGIN", deadline_ns, err);
    if (rc >= 0)
        rc = check_lease(w, deadline_ns, err);
    if (rc >= 0)
        rc = write_rows(w, b, deadline_ns, err);
    TR_FAILPOINT("sink.after_commit");
    if (rc >= 0)
        return TR_OK;
    if (w->conn.pg) {
        tr_pg_script(&w->conn, "ROLLBACK", deadline_ns, NULL);
        /* a statement whose preparation failed, or was aborted, is not there although we noted it */
        tr_pgconn_close(&w->conn);
    }
    return rc;
}

static int write_batch(struct tr_writer *tw, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    (void)ep;
    struct pg_writer *w = of(tw);
    w->by_row = false;
    int rc = attempt(w, b, deadline_ns, err);
    if (rc < 0 && (rc == TR_REJECT || !strcmp(err->sqlstate, ROW_TWICE))) {
        *err = (struct tr_err){0};
        w->by_row = true;
        rc = attempt(w, b, deadline_ns, err);
    }
    return rc;
}

static void interrupt(struct tr_writer *tw)
{
    tr_pgconn_interrupt(&of(tw)->conn);
}

static void free_writer(struct tr_writer *tw)
{
    struct pg_writer *w = of(tw);
    tr_pgconn_done(&w->conn);
    tr_map_done(&w->statements);
    tr_arena_done(&w->arena);
    tr_buf_done(&w->key);
    tr_buf_done(&w->text);
    tr_buf_done(&w->params);
    tr_pg_run_done(&w->run);
    tr_free((void *)w->values);
    tr_free(w);
}

static const struct tr_writer_ops ops = {.write = write_batch, .interrupt = interrupt, .free = free_writer};

int tr_pg_writer_new(struct pg_sink *s, struct tr_writer **ret, struct tr_err *err)
{
    struct pg_writer *w = tr_calloc(1, sizeof *w);
    if (!w)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a writer");
    w->writer.ops = &ops;
    w->sink = s;
    tr_pgconn_init(&w->conn, s->sql.what);
    tr_map_init(&w->statements);
    tr_arena_init(&w->arena, 64 << 10, 0);
    *ret = &w->writer;
    return TR_OK;
}
