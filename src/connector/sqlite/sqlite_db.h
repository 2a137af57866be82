/*
 * sqlite_db.h: a SQLite connection whose calls have a deadline, and the bookkeeping tables every mirror database carries:
 *
 *   _tailrace_tables (name, source, kind, snapshot_id, schema_version, positions)   which tables are ours, what they mirror, which build they are and
 *                                                        the newest definition they were fitted to
 *   _tailrace_lease  (token)                             the highest lease token that has written here
 *
 * Durability: journal_mode=WAL, synchronous=FULL: a committed transaction survives a power cut.
 * Threads: one connection, one thread; tr_sqlite_interrupt from any.
 */
#ifndef TR_SQLITE_DB_H
#define TR_SQLITE_DB_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tailrace/err.h>

struct tr_sqlite_db {
    sqlite3 *db;               /* NULL: closed */
    const char *path;
    const char *what;          /* "sink reporting": begins every message */
    _Atomic(int64_t) deadline_ns;
    _Atomic(bool) interrupted;
};

/* Fine if open; the deadline is for all that follows. FATAL, once: the file is not the one that was opened. */
int tr_sqlite_open(struct tr_sqlite_db *d, int64_t deadline_ns, struct tr_err *err);
void tr_sqlite_close(struct tr_sqlite_db *d);
void tr_sqlite_interrupt(struct tr_sqlite_db *d);

int tr_sqlite_exec(struct tr_sqlite_db *d, const char *sql, int64_t deadline_ns, struct tr_err *err);
/* Fills err from the connection's last error: RETRY, STALE, REJECT or FATAL. */
int tr_sqlite_error(struct tr_sqlite_db *d, const char *doing, struct tr_err *err);

#endif
