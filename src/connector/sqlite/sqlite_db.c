#include "sqlite_db.h"

#include <stdio.h>

#include <tailrace/clock.h>

#include "fs.h"
#include "thread.h"

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

/* A mirror holds a database's rows: a new file is its owner's alone (SQLite would make it 0644), and whoever wants others to read it says so
 * once; the mode of a file that is there stays. One at a time: closing a descriptor lets go of the locks that this process has on the file. */
static void make_private(const char *path)
{
    static struct tr_mutex one = TR_MUTEX_INITIALIZER;
    struct tr_file *f = NULL;
    tr_mutex_lock(&one);
    if (tr_fs_open(tr_fs_posix(), path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_EXCL | TR_FS_PRIVATE, &f, NULL) >= 0) /* else SQLite says why */
        tr_file_close(f);
    tr_mutex_unlock(&one);
}

/* Somebody removed or replaced the file: what is written goes where nobody will find it. */
static bool has_moved(struct tr_sqlite_db *d)
{
    int moved = 0;
    return sqlite3_file_control(d->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved;
}

int tr_sqlite_open(struct tr_sqlite_db *d, int64_t deadline_ns, struct tr_err *err)
{
    atomic_store(&d->interrupted, false);
    atomic_store(&d->deadline_ns, deadline_ns);
    if (d->db && !has_moved(d))
        return TR_OK;
    if (d->db) {
        tr_sqlite_close(d);
        return tr_err_set(err, TR_FATAL, TR_DOM_SQLITE, "%s: the file %s was removed or replaced while it was in use", d->what, d->path);
    }
    make_private(d->path);
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
