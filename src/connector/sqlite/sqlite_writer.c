/*
 * sqlite_writer.c: one sealed batch, one transaction. Statements are prepared once per (target, kind, columns left out) and bound per row.
 *
 * Values. Integers and booleans are stored as INTEGER, finite floats as REAL, bytes as BLOB, everything else as the source's text; NaN and
 * the infinities are text in a REAL column, which SQLite keeps as it is.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "map.h"
#include "sqlbatch.h"
#include "sqlite_sink.h"
#include "text.h"

enum { STATEMENTS_MAX = 2000 };

struct sqlite_writer {
    struct tr_writer writer;
    struct sqlite_sink *sink;
    struct tr_sqlite_db db;
    struct tr_map statements;  /* target id, kind, left_out → sqlite3_stmt * */
    struct tr_arena arena;
    struct tr_buf key, text, blob;
};

static struct sqlite_writer *of(struct tr_writer *w)
{
    return tr_container_of(w, struct sqlite_writer, writer);
}

static void drop_statements(struct sqlite_writer *w)
{
    size_t it = 0;
    struct tr_slice k;
    void *v;
    while (tr_map_next(&w->statements, &it, &k, &v))
        sqlite3_finalize(v);
    tr_map_clear(&w->statements);
}

static int statement(struct sqlite_writer *w, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, sqlite3_stmt **ret, struct tr_err *err)
{
    tr_buf_clear(&w->key);
    if (tr_buf_append_u64le(&w->key, t->id) < 0 || tr_buf_append_u8(&w->key, (uint8_t)s->kind) < 0 ||
        (s->left_out && tr_buf_append(&w->key, s->left_out, t->schema->n_columns) < 0))
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for a statement");
    *ret = tr_map_get(&w->statements, tr_buf_slice(&w->key));
    if (*ret)
        return TR_OK;
    if (w->statements.n >= STATEMENTS_MAX)
        drop_statements(w);
    tr_buf_clear(&w->text);
    if (tr_sqlm_text(&t->m, s, &w->text) < 0 || !tr_buf_cstr(&w->text))
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for a statement");
    if (sqlite3_prepare_v3(w->db.db, tr_buf_cstr(&w->text), -1, SQLITE_PREPARE_PERSISTENT, ret, NULL) != SQLITE_OK)
        return tr_sqlite_error(&w->db, t->name, err);
    if (tr_map_put(&w->statements, tr_buf_slice(&w->key), *ret, NULL) < 0) {
        sqlite3_finalize(*ret);
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for a statement");
    }
    return TR_OK;
}

static int bind_text(sqlite3_stmt *st, int i, struct tr_slice v)
{
    return sqlite3_bind_text64(st, i, v.p ? (const char *)v.p : "", v.n, SQLITE_STATIC, SQLITE_UTF8);
}

static int bind_float(sqlite3_stmt *st, int i, struct tr_slice v)
{
    char s[64];
    if (v.n >= sizeof s)
        return bind_text(st, i, v);
    memcpy(s, v.p, v.n);
    s[v.n] = 0;
    char *end;
    double d = strtod(s, &end);
    return *end || !isfinite(d) ? bind_text(st, i, v) : sqlite3_bind_double(st, i, d);
}

static int bind_param(struct sqlite_writer *w, sqlite3_stmt *st, int i, const struct tr_sqlm_param *p)
{
    int64_t n;
    if (p->null)
        return sqlite3_bind_null(st, i);
    switch (p->type) {
    case TR_TYPE_BOOL:
        return sqlite3_bind_int(st, i, p->text.n && p->text.p[0] == 't');
    case TR_TYPE_INT16:
    case TR_TYPE_INT32:
    case TR_TYPE_INT64:
        return tr_parse_i64(p->text, &n, NULL) < 0 ? bind_text(st, i, p->text) : sqlite3_bind_int64(st, i, n);
    case TR_TYPE_FLOAT32:
    case TR_TYPE_FLOAT64:
        return bind_float(st, i, p->text);
    case TR_TYPE_BYTES:
        tr_buf_clear(&w->blob);
        if (p->text.n < 2 || p->text.p[0] != '\\' || p->text.p[1] != 'x' || tr_hex_decode(&w->blob, tr_slice_sub(p->text, 2, p->text.n)) < 0)
            return bind_text(st, i, p->text);
        return sqlite3_bind_blob64(st, i, w->blob.p ? w->blob.p : (const void *)"", w->blob.n, SQLITE_TRANSIENT);
    default:
        return bind_text(st, i, p->text);
    }
}

static int run(struct sqlite_writer *w, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = statement(w, t, s, &st, err);
    if (rc < 0)
        return rc;
    int b = SQLITE_OK;
    for (uint32_t i = 0; i < s->n && b == SQLITE_OK; i++)
        b = bind_param(w, st, (int)i + 1, &s->params[i]);
    if (b != SQLITE_OK || sqlite3_step(st) != SQLITE_DONE)
        rc = tr_sqlite_error(&w->db, t->name, err);
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return rc;
}

static int write_part(struct sqlite_writer *w, const struct tr_part *part, int64_t deadline_ns, struct tr_err *err)
{
    const struct tr_sqltarget *t = tr_sqltarget_of(part->target);
    struct tr_sqlbatch_iter it;
    struct tr_change g;
    tr_sqlbatch_begin(&it, part, t->schema, &w->arena);
    uint32_t n = 0;
    for (;;) {
        tr_arena_reset(&w->arena);
        int rc = tr_sqlbatch_next(&it, &g, err);
        if (rc == TR_EOF)
            return TR_OK;
        struct tr_sqlm_step steps[2];
        if (rc >= 0)
            rc = tr_sqlm_plan(&t->m, &g, &w->arena, steps, err);
        for (int i = 0, n_steps = rc; i < n_steps && rc >= 0; i++)
            rc = run(w, t, &steps[i], err);
        if (rc < 0)
            return rc;
        if ((++n & 255) == 0 && (tr_now_ns() > deadline_ns || atomic_load(&w->db.interrupted))) /* short statements never meet the progress handler */
            return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the batch did not end before its deadline", w->db.what);
    }
}

static int check_lease(struct sqlite_writer *w, struct tr_err *err)
{
    sqlite3_stmt *st = NULL;
    uint64_t token = 0, ours = w->sink->sql.lease_token;
    if (sqlite3_prepare_v2(w->db.db, "SELECT token FROM _tailrace_lease", -1, &st, NULL) != SQLITE_OK)
        return tr_sqlite_error(&w->db, "checking the lease", err);
    bool ok = sqlite3_step(st) == SQLITE_ROW;
    if (ok)
        token = (uint64_t)sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    if (!ok)
        return tr_sqlite_error(&w->db, "checking the lease", err);
    if (token > ours)
        return tr_err_set(err, TR_FENCED, TR_DOM_SINK, "%s: a process with a newer lease has written here, so this one must stop; if the state directory was restored from a backup, see docs/operations.md, Backup", w->db.what);
    if (token == ours)
        return TR_OK;
    char sql[80];
    snprintf(sql, sizeof sql, "UPDATE _tailrace_lease SET token = %llu", (unsigned long long)ours);
    return sqlite3_exec(w->db.db, sql, NULL, NULL, NULL) == SQLITE_OK ? TR_OK : tr_sqlite_error(&w->db, "taking the lease", err);
}

static int write_batch(struct tr_writer *tw, struct tr_endpoint *ep, const struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err)
{
    (void)ep;
    struct sqlite_writer *w = of(tw);
    int rc = tr_sqlite_open(&w->db, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(&w->db, "BEGIN IMMEDIATE", deadline_ns, err);
    if (rc < 0)
        return rc;
    rc = check_lease(w, err);
    for (uint32_t i = 0; i < b->n_parts && rc >= 0; i++) {
        rc = write_part(w, &b->parts[i], deadline_ns, err);
        if ((rc == TR_REJECT || rc == TR_STALE) && err) {
            err->code = i;
            err->blame = rc == TR_REJECT ? TR_BLAME_BATCH : TR_BLAME_TARGET;
        }
    }
    TR_FAILPOINT("sink.before_commit");
    if (rc >= 0)
        rc = tr_sqlite_exec(&w->db, "COMMIT", deadline_ns, err);
    TR_FAILPOINT("sink.after_commit");
    if (rc < 0) {
        sqlite3_exec(w->db.db, "ROLLBACK", NULL, NULL, NULL);
        if (rc == TR_STALE)
            drop_statements(w);
    }
    return rc < 0 ? rc : TR_OK;
}

static void interrupt(struct tr_writer *tw)
{
    tr_sqlite_interrupt(&of(tw)->db);
}

static void free_writer(struct tr_writer *tw)
{
    struct sqlite_writer *w = of(tw);
    drop_statements(w);
    tr_map_done(&w->statements);
    tr_sqlite_close(&w->db);
    tr_arena_done(&w->arena);
    tr_buf_done(&w->key);
    tr_buf_done(&w->text);
    tr_buf_done(&w->blob);
    tr_free(w);
}

static const struct tr_writer_ops ops = {.write = write_batch, .interrupt = interrupt, .free = free_writer};

int tr_sqlite_writer_new(struct sqlite_sink *s, struct tr_writer **ret, struct tr_err *err)
{
    struct sqlite_writer *w = tr_calloc(1, sizeof *w);
    if (!w)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for a writer");
    w->writer.ops = &ops;
    w->sink = s;
    w->db.path = s->o->path;
    w->db.what = s->sql.what;
    tr_map_init(&w->statements);
    tr_arena_init(&w->arena, 64 << 10, 0);
    *ret = &w->writer;
    return TR_OK;
}
