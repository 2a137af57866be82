#include "sqlite_db.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "ddl.h"
#include "text.h"

enum { PROGRESS_OPS = 20000 };

static int over(void *arg)
{
    struct tr_sqlite_db *d = arg;
    return atomic_load(&d->interrupted) || tr_now_ns() > atomic_load(&d->deadline_ns);
}

int tr_sqlite_error(struct tr_sqlite_db *d, const char *doing, struct tr_err *err)
{
    int x = d->db ? sqlite3_extended_errcode(d->db) : SQLITE_CANTOPEN, code = x & 0xff;
    const char *text = d->db ? sqlite3_errmsg(d->db) : "not open";
    uint8_t blame = TR_BLAME_ENDPOINT;
    int rc;
    switch (code) {
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_RANGE:
        rc = TR_REJECT;
        blame = TR_BLAME_BATCH;
        break;
    case SQLITE_ERROR:
    case SQLITE_SCHEMA: /* no such table, no such column: somebody changed it */
        rc = TR_STALE;
        blame = TR_BLAME_TARGET;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        rc = TR_FATAL;
        break;
    default: /* busy, locked, full, I/O, read-only, interrupted */
        rc = TR_RETRY;
        break;
    }
    tr_err_set(err, rc, TR_DOM_SQLITE, "%s: %s (%s): %s", d->what, doing, d->path, code == SQLITE_INTERRUPT ? "did not end before its deadline" : text);
    if (err) {
        err->code = x;
        err->blame = blame;
    }
    return rc;
}

int tr_sqlite_exec(struct tr_sqlite_db *d, const char *sql, int64_t deadline_ns, struct tr_err *err)
{
    atomic_store(&d->deadline_ns, deadline_ns);
    if (sqlite3_exec(d->db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return TR_OK;
    char doing[64];
    snprintf(doing, sizeof doing, "%.60s", sql);
    return tr_sqlite_error(d, doing, err);
}

int tr_sqlite_open(struct tr_sqlite_db *d, int64_t deadline_ns, struct tr_err *err)
{
    atomic_store(&d->interrupted, false);
    if (d->db)
        return TR_OK;
    atomic_store(&d->deadline_ns, deadline_ns);
    if (sqlite3_open_v2(d->path, &d->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) {
        int rc = tr_sqlite_error(d, "opening the database", err);
        tr_sqlite_close(d);
        return rc == TR_STALE ? TR_RETRY : rc;
    }
    sqlite3_extended_result_codes(d->db, 1);
    sqlite3_busy_timeout(d->db, 5000);
    sqlite3_progress_handler(d->db, PROGRESS_OPS, over, d);
    int rc = tr_sqlite_exec(d, "PRAGMA journal_mode=WAL", deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(d, "PRAGMA synchronous=FULL", deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(d,
                            "CREATE TABLE IF NOT EXISTS _tailrace_tables (name TEXT PRIMARY KEY, source TEXT NOT NULL, kind TEXT NOT NULL, snapshot_id INTEGER NOT NULL,"
                            " schema_version INTEGER NOT NULL, positions TEXT NOT NULL);"
                            "CREATE TABLE IF NOT EXISTS _tailrace_lease (id INTEGER PRIMARY KEY CHECK (id = 1), token INTEGER NOT NULL);"
                            "INSERT OR IGNORE INTO _tailrace_lease VALUES (1, 0)",
                            deadline_ns, err);
    if (rc < 0)
        tr_sqlite_close(d);
    return rc == TR_STALE ? TR_RETRY : rc;
}

void tr_sqlite_close(struct tr_sqlite_db *d)
{
    sqlite3_close(d->db);
    d->db = NULL;
}

void tr_sqlite_interrupt(struct tr_sqlite_db *d)
{
    atomic_store(&d->interrupted, true); /* seen by the progress handler within milliseconds */
}

static sqlite3_stmt *prepare(struct tr_sqlite_db *d, const char *sql)
{
    sqlite3_stmt *s = NULL;
    return sqlite3_prepare_v2(d->db, sql, -1, &s, NULL) == SQLITE_OK ? s : NULL;
}

static int run(struct tr_sqlite_db *d, const char *sql, const char *doing, const char *const *texts, int n_texts, const int64_t *numbers, int n_numbers, struct tr_err *err)
{
    sqlite3_stmt *s = prepare(d, sql);
    bool ok = s;
    for (int i = 0; ok && i < n_texts; i++)
        sqlite3_bind_text(s, i + 1, texts[i], -1, SQLITE_STATIC);
    for (int i = 0; ok && i < n_numbers; i++)
        sqlite3_bind_int64(s, n_texts + i + 1, numbers[i]);
    ok = ok && sqlite3_step(s) == SQLITE_DONE;
    int rc = ok ? TR_OK : tr_sqlite_error(d, doing, err);
    sqlite3_finalize(s);
    return rc;
}

int tr_sqlite_note(struct tr_sqlite_db *d, const char *name, const struct tr_sqlite_note *n, const char *positions, struct tr_err *err)
{
    const char *texts[] = {name, n->source, n->kind, positions};
    int64_t numbers[] = {(int64_t)n->snapshot_id, n->schema_version};
    return run(d,
               "INSERT OR REPLACE INTO _tailrace_tables VALUES (?1, ?2, ?3, ?5, ?6,"
               " coalesce(?4, (SELECT positions FROM _tailrace_tables WHERE name = ?1), ''))",
               "noting a table", texts, 4, numbers, 2, err);
}

int tr_sqlite_rename(struct tr_sqlite_db *d, const char *from, const char *to, const char *kind, struct tr_err *err)
{
    const char *texts[] = {from, to, kind};
    return run(d, "UPDATE OR REPLACE _tailrace_tables SET name = ?2, kind = ?3 WHERE name = ?1", "noting a table", texts, 3, NULL, 0, err);
}

int tr_sqlite_find(struct tr_sqlite_db *d, const char *name, struct tr_sqlite_note *ret, struct tr_err *err)
{
    sqlite3_stmt *s = prepare(d, "SELECT source, kind, snapshot_id, schema_version FROM _tailrace_tables WHERE name = ?1");
    int step = SQLITE_ERROR, rc;
    memset(ret, 0, sizeof *ret);
    if (s) {
        sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
        step = sqlite3_step(s);
    }
    if (step == SQLITE_ROW) {
        snprintf(ret->source, sizeof ret->source, "%s", (const char *)sqlite3_column_text(s, 0));
        snprintf(ret->kind, sizeof ret->kind, "%s", (const char *)sqlite3_column_text(s, 1));
        ret->snapshot_id = (uint64_t)sqlite3_column_int64(s, 2);
        ret->schema_version = (uint32_t)sqlite3_column_int64(s, 3);
        rc = TR_OK;
    } else {
        rc = step == SQLITE_DONE ? 1 : tr_sqlite_error(d, "looking up a table", err);
    }
    sqlite3_finalize(s);
    return rc;
}

int tr_sqlite_forget(struct tr_sqlite_db *d, const char *name, struct tr_err *err)
{
    return run(d, "DELETE FROM _tailrace_tables WHERE name = ?1", "forgetting a table", &name, 1, NULL, 0, err);
}

static int positions(struct tr_sqlite_db *d, const char *name, struct tr_table_desc *io, struct tr_err *err)
{
    sqlite3_stmt *s = prepare(d, "SELECT positions FROM _tailrace_tables WHERE name = ?1");
    int step = SQLITE_ERROR;
    if (s) {
        sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
        step = sqlite3_step(s);
    }
    if (step == SQLITE_ROW)
        tr_positions_get((const char *)sqlite3_column_text(s, 0), io);
    int rc = step == SQLITE_ROW || step == SQLITE_DONE ? TR_OK : tr_sqlite_error(d, "describing a table", err);
    sqlite3_finalize(s);
    return rc;
}

int tr_sqlite_describe(struct tr_sqlite_db *d, const char *name, struct tr_table_desc *ret, struct tr_err *err)
{
    memset(ret, 0, sizeof *ret);
    sqlite3_stmt *s = prepare(d, "SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1)");
    int rc = s ? TR_OK : tr_sqlite_error(d, "describing a table", err);
    if (s)
        sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    while (rc >= 0) {
        int step = sqlite3_step(s);
        if (step == SQLITE_DONE)
            break;
        if (step != SQLITE_ROW)
            rc = tr_sqlite_error(d, "describing a table", err);
        else if (tr_desc_add(ret, (const char *)sqlite3_column_text(s, 0), (const char *)sqlite3_column_text(s, 1), sqlite3_column_int(s, 2), (uint16_t)sqlite3_column_int(s, 3)) < 0)
            rc = tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory to describe table %s", name);
    }
    sqlite3_finalize(s);
    ret->exists = ret->n_columns > 0;
    s = rc >= 0 ? prepare(d, "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = ?1 COLLATE NOCASE") : NULL;
    char live[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(name, "_live", live);
    if (s)
        sqlite3_bind_text(s, 1, live, -1, SQLITE_STATIC);
    ret->view = s && sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    struct tr_sqlite_note n;
    if (rc >= 0)
        rc = tr_sqlite_find(d, name, &n, err);
    ret->ours = rc == TR_OK;
    ret->snapshot_id = ret->ours ? n.snapshot_id : 0;
    ret->schema_version = ret->ours ? n.schema_version : 0;
    if (ret->ours)
        rc = positions(d, name, ret, err);
    return rc < 0 ? rc : TR_OK;
}
