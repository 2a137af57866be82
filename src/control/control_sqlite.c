#include "control_sqlite.h"

#include <sqlite3.h>
#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "control_check.h"
#include "fs.h"
#include "thread.h"

enum { BUSY_MS = 5000, SCHEMA_VERSION = 2 };

static const char *const migrations[SCHEMA_VERSION] = {
    "CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE lease(name TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE source(name TEXT PRIMARY KEY, system_id TEXT NOT NULL, timeline INTEGER NOT NULL, slot TEXT NOT NULL, epoch INTEGER NOT NULL,"
    " confirm_lsn INTEGER NOT NULL, log_offset INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE slot(source TEXT PRIMARY KEY, slot TEXT NOT NULL, state INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE tab(table_id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, ns TEXT NOT NULL, name TEXT NOT NULL,"
    " state INTEGER NOT NULL DEFAULT 0, snapshot_id INTEGER NOT NULL DEFAULT 0, begin_offset INTEGER NOT NULL DEFAULT -1,"
    " end_offset INTEGER NOT NULL DEFAULT -1, schema_version INTEGER NOT NULL DEFAULT 0, rows_read INTEGER NOT NULL DEFAULT 0,"
    " rows_estimate INTEGER NOT NULL DEFAULT 0, storage_fingerprint INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '',"
    " UNIQUE(source, ns, name));"
    "CREATE TABLE schema(table_id INTEGER NOT NULL REFERENCES tab, version INTEGER NOT NULL, effective_lsn INTEGER NOT NULL,"
    " fingerprint INTEGER NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY(table_id, version)) WITHOUT ROWID;"
    "CREATE TABLE chunk(table_id INTEGER NOT NULL REFERENCES tab, snapshot_id INTEGER NOT NULL, seq INTEGER NOT NULL, done INTEGER NOT NULL,"
    " rows INTEGER NOT NULL, lo BLOB NOT NULL, hi BLOB NOT NULL, PRIMARY KEY(table_id, snapshot_id, seq)) WITHOUT ROWID;"
    "CREATE TABLE sink_offset(sink TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, at_us INTEGER NOT NULL,"
    " PRIMARY KEY(sink, partition)) WITHOUT ROWID;"
    "CREATE TABLE sink_table(sink TEXT NOT NULL, table_id INTEGER NOT NULL, state INTEGER NOT NULL, relive INTEGER NOT NULL,"
    " mirror_live INTEGER NOT NULL, snapshot_id INTEGER NOT NULL, begin_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL,"
    " catchup_offset INTEGER NOT NULL, pause_offset INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY(sink, table_id)) WITHOUT ROWID;"
    "CREATE TABLE request(seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, scope TEXT NOT NULL, tab TEXT NOT NULL);"
    "CREATE TABLE audit(seq INTEGER PRIMARY KEY AUTOINCREMENT, at_us INTEGER NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,"
    " subject TEXT NOT NULL, outcome TEXT NOT NULL, detail TEXT NOT NULL);"
    "CREATE TABLE alarm(kind TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL, since_us INTEGER NOT NULL, seq INTEGER NOT NULL,"
    " PRIMARY KEY(kind, subject)) WITHOUT ROWID;",
    /* a mirror that was paused is not fed until its catch-up has joined */
    "ALTER TABLE sink_table ADD COLUMN log_from INTEGER NOT NULL DEFAULT -1; UPDATE sink_table SET mirror_live = 0 WHERE relive;"
    "ALTER TABLE tab ADD COLUMN membership INTEGER NOT NULL DEFAULT 0; ALTER TABLE tab ADD COLUMN filenode INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tab ADD COLUMN attributes INTEGER NOT NULL DEFAULT 0;",
};

#define TABLE_COLUMNS                                                                                                                                \
    "table_id, ns, name, state, snapshot_id, begin_offset, end_offset, schema_version, rows_read, rows_estimate, storage_fingerprint, reason,"        \
    " membership, filenode, attributes"

#define STATEMENTS(X)                                                                                                                                \
    X(BEGIN_READ, "BEGIN")                                                                                                                           \
    X(BEGIN_WRITE, "BEGIN IMMEDIATE")                                                                                                                \
    X(COMMIT, "COMMIT")                                                                                                                              \
    X(ROLLBACK, "ROLLBACK")                                                                                                                          \
    X(LEASE_GET, "SELECT holder, token, expires_us FROM lease WHERE name = ?1")                                                                      \
    X(LEASE_PUT, "INSERT INTO lease VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET holder = ?2, token = ?3, expires_us = ?4")                      \
    X(SOURCE_GET, "SELECT system_id, timeline, slot, epoch, confirm_lsn, log_offset FROM source WHERE name = ?1")                                    \
    X(SOURCE_PUT, "INSERT OR REPLACE INTO source VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")                                                                \
    X(SLOT_GET, "SELECT slot, state FROM slot WHERE source = ?1")                                                                                    \
    X(SLOT_PUT, "INSERT OR REPLACE INTO slot VALUES(?1, ?2, ?3)")                                                                                    \
    X(TABLE_FIND, "SELECT " TABLE_COLUMNS " FROM tab WHERE source = ?1 AND ns = ?2 AND name = ?3")                                                   \
    X(TABLE_ADD, "INSERT INTO tab(source, ns, name) VALUES(?1, ?2, ?3)")                                                                             \
    X(TABLE_PUT, "UPDATE tab SET state = ?2, snapshot_id = ?3, begin_offset = ?4, end_offset = ?5, schema_version = ?6, rows_read = ?7,"             \
                 " rows_estimate = ?8, storage_fingerprint = ?9, reason = ?10, membership = ?11, filenode = ?12, attributes = ?13"                    \
                 " WHERE table_id = ?1")                                                                                                             \
    X(TABLE_LIST, "SELECT " TABLE_COLUMNS " FROM tab WHERE source = ?1 ORDER BY table_id")                                                           \
    X(TABLE_HAS, "SELECT 1 FROM tab WHERE table_id = ?1")                                                                                            \
    X(COUNTER_NEXT, "INSERT INTO counter VALUES(?1, ?2) ON CONFLICT DO UPDATE SET value = max(value + 1, excluded.value) RETURNING value")           \
    X(SCHEMA_LAST, "SELECT version, CASE fingerprint WHEN ?2 THEN version END FROM schema WHERE table_id = ?1 ORDER BY version DESC LIMIT 1")                                      \
    X(SCHEMA_ADD, "INSERT INTO schema VALUES(?1, ?2, ?3, ?4, ?5)")                                                                                   \
    X(SCHEMA_LIST, "SELECT version, effective_lsn, bytes FROM schema WHERE table_id = ?1 ORDER BY version")                                          \
    X(CHUNK_PUT, "INSERT OR REPLACE INTO chunk VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")                                                                  \
    X(CHUNK_LIST, "SELECT seq, done, rows, lo, hi FROM chunk WHERE table_id = ?1 AND snapshot_id = ?2 ORDER BY seq")                                 \
    X(CHUNK_CLEAR, "DELETE FROM chunk WHERE table_id = ?1 AND snapshot_id < ?2")                                                                     \
    X(OFFSET_GET, "SELECT offset FROM sink_offset WHERE sink = ?1 AND partition = ?2")                                                               \
    X(OFFSET_PUT, "INSERT OR REPLACE INTO sink_offset VALUES(?1, ?2, ?3, ?4)")                                                                       \
    X(SINK_TABLE_PUT, "INSERT OR REPLACE INTO sink_table VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")                                 \
    X(SINK_TABLE_LIST, "SELECT table_id, state, relive, mirror_live, snapshot_id, begin_offset, end_offset, catchup_offset, pause_offset, reason,"   \
                       " log_from FROM sink_table WHERE sink = ?1 ORDER BY table_id")                                                                \
    X(SINK_LIST, "SELECT sink, partition, offset, at_us FROM sink_offset ORDER BY sink, partition")                                                  \
    X(REQUEST_PUT, "INSERT INTO request(kind, scope, tab) VALUES(?1, ?2, ?3)")                                                                       \
    X(REQUEST_FIRST, "SELECT seq, kind, scope, tab FROM request ORDER BY seq LIMIT 1")                                                               \
    X(REQUEST_DEL, "DELETE FROM request WHERE seq = ?1")                                                                                             \
    X(AUDIT_PUT, "INSERT INTO audit(at_us, actor, action, subject, outcome, detail) VALUES(?1, ?2, ?3, ?4, ?5, ?6)")                                 \
    X(AUDIT_LIST, "SELECT at_us, actor, action, subject, outcome, detail FROM audit ORDER BY seq DESC LIMIT ?1")                                     \
    X(ALARM_SET, "INSERT INTO alarm VALUES(?1, ?2, ?3, ?4, (SELECT 1 + coalesce(max(seq), 0) FROM alarm)) ON CONFLICT DO UPDATE SET text = ?3")      \
    X(ALARM_CLEAR, "DELETE FROM alarm WHERE kind = ?1 AND subject = ?2")                                                                             \
    X(ALARM_LIST, "SELECT kind, subject, text, since_us FROM alarm ORDER BY seq")

enum stmt {
#define X(name, sql) S_##name,
    STATEMENTS(X)
#undef X
    S_COUNT
};

static const char *const sql_of[S_COUNT] = {
#define X(name, sql) sql,
    STATEMENTS(X)
#undef X
};

struct store {
    struct tr_control c;
    struct tr_mutex lock; /* guards all below */
    sqlite3 *db;
    sqlite3_stmt *stmt[S_COUNT];
    char *path;
    char lease[64];
    uint64_t token;
};

static struct store *store_of(struct tr_control *c)
{
    return tr_container_of(c, struct store, c);
}

/* ---- SQLite ---- */

static int failed(struct store *s, struct tr_err *err)
{
    int code = sqlite3_extended_errcode(s->db), rc;
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_INTERRUPT:
        rc = TR_RETRY;
        break;
    case SQLITE_NOMEM:
        rc = TR_NOMEM;
        break;
    case SQLITE_CONSTRAINT:
        rc = TR_REJECT;
        break;
    default:
        rc = TR_FATAL;
    }
    tr_err_set(err, rc, TR_DOM_SQLITE, "control store %s: %s", s->path, sqlite3_errmsg(s->db));
    if (err)
        err->code = code;
    return rc;
}

static sqlite3_stmt *prepare(struct store *s, enum stmt id)
{
    if (!s->stmt[id])
        (void)sqlite3_prepare_v3(s->db, sql_of[id], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[id], NULL);
    return s->stmt[id];
}

/* A statement with its arguments, by kinds: s text, i 64-bit integer, b struct tr_slice. NULL: see failed(). */
static sqlite3_stmt *bind(struct store *s, enum stmt id, const char *kinds, va_list ap)
{
    sqlite3_stmt *q = prepare(s, id);
    int rc = SQLITE_OK;
    for (int i = 0; q && kinds[i] && rc == SQLITE_OK; i++) {
        if (kinds[i] == 's') {
            const char *text = va_arg(ap, const char *);
            rc = sqlite3_bind_text(q, i + 1, text ? text : "", -1, SQLITE_STATIC);
        } else if (kinds[i] == 'i') {
            rc = sqlite3_bind_int64(q, i + 1, (sqlite3_int64)va_arg(ap, uint64_t));
        } else {
            struct tr_slice b = va_arg(ap, struct tr_slice);
            rc = b.n ? sqlite3_bind_blob64(q, i + 1, b.p, b.n, SQLITE_STATIC) : sqlite3_bind_zeroblob(q, i + 1, 0);
        }
    }
    return rc == SQLITE_OK ? q : NULL;
}

/* Runs it to its end. */
static int run(struct store *s, struct tr_err *err, enum stmt id, const char *kinds, ...)
{
    va_list ap;
    va_start(ap, kinds);
    sqlite3_stmt *q = bind(s, id, kinds, ap);
    va_end(ap);
    int step = q ? sqlite3_step(q) : SQLITE_ERROR;
    int rc = step == SQLITE_DONE || step == SQLITE_ROW ? TR_OK : failed(s, err);
    sqlite3_reset(q);
    return rc;
}

/* The first row; 1: there is one, and *ret is to be reset after it was read. */
static int row(struct store *s, struct tr_err *err, sqlite3_stmt **ret, enum stmt id, const char *kinds, ...)
{
    va_list ap;
    va_start(ap, kinds);
    sqlite3_stmt *q = bind(s, id, kinds, ap);
    va_end(ap);
    int step = q ? sqlite3_step(q) : SQLITE_ERROR;
    *ret = q;
    if (step == SQLITE_ROW)
        return 1;
    int rc = step == SQLITE_DONE ? 0 : failed(s, err);
    sqlite3_reset(q);
    return rc;
}

static int more(struct store *s, struct tr_err *err, sqlite3_stmt *q)
{
    int step = sqlite3_step(q);
    if (step == SQLITE_ROW)
        return 1;
    int rc = step == SQLITE_DONE ? 0 : failed(s, err);
    sqlite3_reset(q);
    return rc;
}

static uint64_t col_u64(sqlite3_stmt *q, int i)
{
    return (uint64_t)sqlite3_column_int64(q, i);
}

static void col_text(sqlite3_stmt *q, int i, char *out, size_t n)
{
    const char *t = (const char *)sqlite3_column_text(q, i);
    snprintf(out, n, "%s", t ? t : "");
}

static struct tr_slice col_blob(sqlite3_stmt *q, int i)
{
    const void *p = sqlite3_column_blob(q, i);
    return tr_slice_of(p, (size_t)sqlite3_column_bytes(q, i));
}

/* ---- transactions ---- */

enum need { READ, WRITE, WRITE_LEASED, WRITE_LEASED_OR_ADMIN };

static int check_lease(struct store *s, const char *lease, uint64_t token, struct tr_err *err)
{
    sqlite3_stmt *q;
    if (token == 0)
        return tr_control_fenced(lease, token, err);
    int rc = row(s, err, &q, S_LEASE_GET, "s", lease);
    if (rc < 0)
        return rc;
    bool ours = rc > 0 && col_u64(q, 1) == token && sqlite3_column_bytes(q, 0) > 0;
    sqlite3_reset(q);
    return ours ? TR_OK : tr_control_fenced(lease, token, err);
}

static int finish(struct store *s, int rc, struct tr_err *err)
{
    if (rc >= 0) {
        int c = run(s, err, S_COMMIT, "");
        if (c < 0)
            rc = c;
    }
    if (rc < 0 && !sqlite3_get_autocommit(s->db))
        (void)run(s, NULL, S_ROLLBACK, "");
    tr_mutex_unlock(&s->lock);
    return rc;
}

/* On failure the lock is free again. */
static int begin(struct store *s, enum need need, struct tr_err *err)
{
    tr_mutex_lock(&s->lock);
    int rc = run(s, err, need == READ ? S_BEGIN_READ : S_BEGIN_WRITE, "");
    if (rc == TR_OK && (need == WRITE_LEASED || (need == WRITE_LEASED_OR_ADMIN && s->token)))
        rc = check_lease(s, s->lease, s->token, err);
    return rc < 0 ? finish(s, rc, err) : rc;
}

/* ---- leases ---- */

static int64_t expiry(int64_t ttl_ms)
{
    int64_t us, at;
    return __builtin_mul_overflow(ttl_ms, INT64_C(1000), &us) || __builtin_add_overflow(tr_wall_us(), us, &at) ? INT64_MAX : at;
}

static int lease_take(struct tr_control *c, const char *name, const char *holder, int64_t ttl_ms, uint64_t *ret_token, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    char was[128] = "";
    uint64_t token = 0;
    bool held = false;
    int rc = tr_control_check_name("the lease's name", name, 64, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the lease's holder", holder, sizeof was, err);
    if (rc < 0 || (rc = begin(s, WRITE, err)) < 0)
        return rc;
    rc = row(s, err, &q, S_LEASE_GET, "s", name);
    if (rc > 0) {
        col_text(q, 0, was, sizeof was);
        token = col_u64(q, 1);
        held = was[0] && sqlite3_column_int64(q, 2) > tr_wall_us();
        sqlite3_reset(q);
    }
    bool ours = strcmp(was, holder) == 0;
    if (rc >= 0 && held && !ours)
        rc = tr_control_held(name, was, err);
    if (!ours)
        token = TR_MAX(token + 1, (uint64_t)tr_wall_us());
    if (rc >= 0)
        rc = run(s, err, S_LEASE_PUT, "ssii", name, holder, token, (uint64_t)expiry(ttl_ms));
    rc = finish(s, rc, err);
    if (rc == TR_OK)
        *ret_token = token;
    return rc;
}

static int lease_change(struct tr_control *c, const char *name, uint64_t token, int64_t ttl_ms, bool release, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    char holder[128] = "";
    int rc = begin(s, WRITE, err);
    if (rc < 0)
        return rc;
    rc = check_lease(s, name, token, err);
    if (rc == TR_OK && (rc = row(s, err, &q, S_LEASE_GET, "s", name)) > 0) {
        col_text(q, 0, holder, sizeof holder);
        sqlite3_reset(q);
    }
    if (rc >= 0)
        rc = run(s, err, S_LEASE_PUT, "ssii", name, release ? "" : holder, token, release ? UINT64_C(0) : (uint64_t)expiry(ttl_ms));
    return finish(s, rc, err);
}

static int lease_renew(struct tr_control *c, const char *name, uint64_t token, int64_t ttl_ms, struct tr_err *err)
{
    return lease_change(c, name, token, ttl_ms, false, err);
}

static int lease_release(struct tr_control *c, const char *name, uint64_t token, struct tr_err *err)
{
    return lease_change(c, name, token, 0, true, err);
}

static void act_under(struct tr_control *c, const char *lease, uint64_t token)
{
    struct store *s = store_of(c);
    tr_mutex_lock(&s->lock);
    snprintf(s->lease, sizeof s->lease, "%s", lease ? lease : "");
    s->token = token;
    tr_mutex_unlock(&s->lock);
}

/* ---- sources ---- */

static int read_source(struct store *s, const char *source, struct tr_ctl_source *v, struct tr_err *err)
{
    sqlite3_stmt *q;
    memset(v, 0, sizeof *v);
    int rc = row(s, err, &q, S_SOURCE_GET, "s", source);
    if (rc > 0) {
        col_text(q, 0, v->system_id, sizeof v->system_id);
        v->timeline = (uint32_t)col_u64(q, 1);
        col_text(q, 2, v->slot, sizeof v->slot);
        v->epoch = (uint8_t)col_u64(q, 3);
        v->confirm_lsn = col_u64(q, 4);
        v->log_offset = col_u64(q, 5);
        sqlite3_reset(q);
    }
    return rc;
}

static int write_source(struct store *s, const char *source, const struct tr_ctl_source *v, struct tr_err *err)
{
    return run(s, err, S_SOURCE_PUT, "ssisiii", source, v->system_id, (uint64_t)v->timeline, v->slot, (uint64_t)v->epoch, v->confirm_lsn, v->log_offset);
}

static int source_get(struct tr_control *c, const char *source, struct tr_ctl_source *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    rc = read_source(s, source, ret, err);
    return finish(s, rc < 0 ? rc : TR_OK, err);
}

static int source_bind(struct tr_control *c, const char *source, const struct tr_ctl_source *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    struct tr_ctl_source was;
    int rc = tr_control_check_source(source, v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    rc = read_source(s, source, &was, err);
    if (rc > 0 && v->epoch < was.epoch)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "source %s is in epoch %u already: it cannot go back to %u", source, was.epoch, v->epoch);
    if (rc >= 0)
        rc = write_source(s, source, v, err);
    return finish(s, rc, err);
}

static int confirm(struct tr_control *c, const char *source, uint64_t confirm_lsn, uint64_t log_offset, struct tr_err *err)
{
    struct store *s = store_of(c);
    struct tr_ctl_source v;
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    rc = read_source(s, source, &v, err);
    if (rc == 0)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "source %s is not bound", source);
    v.confirm_lsn = TR_MAX(v.confirm_lsn, confirm_lsn);
    v.log_offset = TR_MAX(v.log_offset, log_offset);
    if (rc > 0)
        rc = write_source(s, source, &v, err);
    return finish(s, rc, err);
}

static int slot_get(struct tr_control *c, const char *source, char slot[64], enum tr_slot_state *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    slot[0] = '\0';
    *ret = TR_SLOT_NONE;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    rc = row(s, err, &q, S_SLOT_GET, "s", source);
    if (rc > 0) {
        col_text(q, 0, slot, 64);
        *ret = (enum tr_slot_state)col_u64(q, 1);
        sqlite3_reset(q);
    }
    return finish(s, rc < 0 ? rc : TR_OK, err);
}

/* One statement under the lease. */
#define LEASED(s, need, ...)                                                                                                                         \
    do {                                                                                                                                             \
        int rc_ = begin((s), (need), err);                                                                                                           \
        return rc_ < 0 ? rc_ : finish((s), run((s), err, __VA_ARGS__), err);                                                                         \
    } while (0)

static int slot_put(struct tr_control *c, const char *source, const char *slot, enum tr_slot_state state, struct tr_err *err)
{
    int rc = tr_control_check_name("the source's name", source, 64, err);
    if (rc == TR_OK && state != TR_SLOT_NONE)
        rc = tr_control_check_name("the slot's name", slot, 64, err);
    if (rc < 0)
        return rc;
    LEASED(store_of(c), WRITE_LEASED, S_SLOT_PUT, "ssi", source, slot, (uint64_t)state);
}

/* ---- tables ---- */

static void read_table(sqlite3_stmt *q, struct tr_ctl_table *t)
{
    memset(t, 0, sizeof *t);
    t->table_id = (uint32_t)col_u64(q, 0);
    col_text(q, 1, t->ns, sizeof t->ns);
    col_text(q, 2, t->name, sizeof t->name);
    t->state = (uint8_t)col_u64(q, 3);
    t->snapshot_id = col_u64(q, 4);
    t->begin_offset = col_u64(q, 5);
    t->end_offset = col_u64(q, 6);
    t->schema_version = (uint32_t)col_u64(q, 7);
    t->rows_read = col_u64(q, 8);
    t->rows_estimate = col_u64(q, 9);
    t->storage.fingerprint = col_u64(q, 10);
    col_text(q, 11, t->reason, sizeof t->reason);
    t->storage.membership = col_u64(q, 12);
    t->storage.filenode = col_u64(q, 13);
    t->storage.attributes = col_u64(q, 14);
}

static int table_ensure(struct tr_control *c, const char *source, const char *ns, const char *name, struct tr_ctl_table *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = tr_control_check_name("the source's name", source, 64, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the table's schema", ns, sizeof ret->ns, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the table's name", name, sizeof ret->name, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    rc = row(s, err, &q, S_TABLE_FIND, "sss", source, ns, name);
    if (rc == 0) {
        rc = run(s, err, S_TABLE_ADD, "sss", source, ns, name);
        if (rc == TR_OK)
            rc = row(s, err, &q, S_TABLE_FIND, "sss", source, ns, name);
    }
    if (rc > 0) {
        read_table(q, ret);
        sqlite3_reset(q);
    }
    return finish(s, rc < 0 ? rc : TR_OK, err);
}

static int table_put(struct tr_control *c, const struct tr_ctl_table *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_table(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    rc = run(s, err, S_TABLE_PUT, "iiiiiiiiisiii", (uint64_t)v->table_id, (uint64_t)v->state, v->snapshot_id, v->begin_offset, v->end_offset,
             (uint64_t)v->schema_version, v->rows_read, v->rows_estimate, v->storage.fingerprint, v->reason,
             v->storage.membership, v->storage.filenode, v->storage.attributes);
    if (rc == TR_OK && sqlite3_changes(s->db) == 0)
        rc = tr_control_no_table(v->table_id, err);
    return finish(s, rc, err);
}

static int table_list(struct tr_control *c, const char *source, void (*cb)(void *arg, const struct tr_ctl_table *t), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    struct tr_ctl_table t;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_TABLE_LIST, "s", source); rc > 0; rc = more(s, err, q)) {
        read_table(q, &t);
        cb(arg, &t);
    }
    return finish(s, rc, err);
}

static int snapshot_id_next(struct tr_control *c, uint64_t *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    uint64_t id = 0;
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    rc = row(s, err, &q, S_COUNTER_NEXT, "si", "snapshot", (uint64_t)tr_wall_us());
    if (rc > 0) {
        id = col_u64(q, 0);
        rc = more(s, err, q);
    }
    rc = finish(s, rc, err);
    if (rc == TR_OK)
        *ret = id;
    return rc;
}

static int must_have_table(struct store *s, uint32_t table_id, struct tr_err *err)
{
    sqlite3_stmt *q;
    int rc = row(s, err, &q, S_TABLE_HAS, "i", (uint64_t)table_id);
    if (rc > 0)
        sqlite3_reset(q);
    return rc == 0 ? tr_control_no_table(table_id, err) : rc < 0 ? rc : TR_OK;
}

static int schema_put(struct tr_control *c, uint32_t table_id, uint64_t effective_lsn, struct tr_slice bytes, uint64_t fingerprint, uint32_t *ret_version,
                      struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    uint64_t version = 0, same = 0;
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    rc = must_have_table(s, table_id, err);
    if (rc == TR_OK && (rc = row(s, err, &q, S_SCHEMA_LAST, "ii", (uint64_t)table_id, fingerprint)) > 0) {
        version = col_u64(q, 0);
        same = col_u64(q, 1); /* NULL reads as 0 */
        sqlite3_reset(q);
    }
    if (rc >= 0 && same)
        version = same;
    else if (rc >= 0)
        rc = run(s, err, S_SCHEMA_ADD, "iiiib", (uint64_t)table_id, ++version, effective_lsn, fingerprint, bytes);
    rc = finish(s, rc < 0 ? rc : TR_OK, err);
    if (rc == TR_OK)
        *ret_version = (uint32_t)version;
    return rc;
}

static int schema_list(struct tr_control *c, uint32_t table_id, void (*cb)(void *arg, uint32_t version, uint64_t effective_lsn, struct tr_slice bytes), void *arg,
                       struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_SCHEMA_LIST, "i", (uint64_t)table_id); rc > 0; rc = more(s, err, q))
        cb(arg, (uint32_t)col_u64(q, 0), col_u64(q, 1), col_blob(q, 2));
    return finish(s, rc, err);
}

/* ---- chunks ---- */

static int chunk_put(struct tr_control *c, const struct tr_ctl_chunk *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    rc = must_have_table(s, v->table_id, err);
    if (rc == TR_OK)
        rc = run(s, err, S_CHUNK_PUT, "iiiiibb", (uint64_t)v->table_id, v->snapshot_id, (uint64_t)v->seq, (uint64_t)v->done, v->rows, v->lo, v->hi);
    return finish(s, rc, err);
}

static int chunk_list(struct tr_control *c, uint32_t table_id, uint64_t snapshot_id, void (*cb)(void *arg, const struct tr_ctl_chunk *k), void *arg,
                      struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_CHUNK_LIST, "ii", (uint64_t)table_id, snapshot_id); rc > 0; rc = more(s, err, q)) {
        struct tr_ctl_chunk k = {.table_id = table_id, .snapshot_id = snapshot_id, .seq = (uint32_t)col_u64(q, 0), .done = col_u64(q, 1) != 0, .rows = col_u64(q, 2)};
        k.lo = col_blob(q, 3);
        k.hi = col_blob(q, 4);
        cb(arg, &k);
    }
    return finish(s, rc, err);
}

static int chunk_clear(struct tr_control *c, uint32_t table_id, uint64_t below_snapshot_id, struct tr_err *err)
{
    LEASED(store_of(c), WRITE_LEASED, S_CHUNK_CLEAR, "ii", (uint64_t)table_id, below_snapshot_id);
}

/* ---- sinks ---- */

static int read_offset(struct store *s, const char *sink, uint32_t partition, uint64_t *ret, struct tr_err *err)
{
    sqlite3_stmt *q;
    *ret = 0;
    int rc = row(s, err, &q, S_OFFSET_GET, "si", sink, (uint64_t)partition);
    if (rc > 0) {
        *ret = col_u64(q, 0);
        sqlite3_reset(q);
    }
    return rc;
}

static int offset_get(struct tr_control *c, const char *sink, uint32_t partition, uint64_t *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    int found = read_offset(s, sink, partition, ret, err);
    rc = finish(s, found < 0 ? found : TR_OK, err);
    return rc < 0 ? rc : !found;
}

static int offset_commit(struct tr_control *c, const struct tr_ctl_offset *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    uint64_t stored = 0;
    int rc = tr_control_check_offset(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    rc = read_offset(s, v->sink, v->partition, &stored, err);
    if (rc > 0 && v->offset < stored && !v->set_back)
        rc = tr_control_went_back(v, stored, err);
    if (rc >= 0)
        rc = run(s, err, S_OFFSET_PUT, "siii", v->sink, (uint64_t)v->partition, v->offset, (uint64_t)tr_wall_us());
    for (uint32_t i = 0; i < v->n_tables && rc == TR_OK; i++) {
        const struct tr_ctl_sink_table *t = &v->tables[i];
        rc = run(s, err, S_SINK_TABLE_PUT, "siiiiiiiiisi", v->sink, (uint64_t)t->table_id, (uint64_t)t->state, (uint64_t)t->relive, (uint64_t)t->mirror_live,
                 t->snapshot_id, t->begin_offset, t->end_offset, t->catchup_offset, t->pause_offset, t->reason, t->log_from);
    }
    return finish(s, rc, err);
}

static int sink_table_list(struct tr_control *c, const char *sink, void (*cb)(void *arg, const struct tr_ctl_sink_table *t), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_SINK_TABLE_LIST, "s", sink); rc > 0; rc = more(s, err, q)) {
        struct tr_ctl_sink_table t = {.table_id = (uint32_t)col_u64(q, 0), .state = (uint8_t)col_u64(q, 1)};
        t.relive = col_u64(q, 2) != 0;
        t.mirror_live = col_u64(q, 3) != 0;
        t.snapshot_id = col_u64(q, 4);
        t.begin_offset = col_u64(q, 5);
        t.end_offset = col_u64(q, 6);
        t.catchup_offset = col_u64(q, 7);
        t.pause_offset = col_u64(q, 8);
        col_text(q, 9, t.reason, sizeof t.reason);
        t.log_from = col_u64(q, 10);
        cb(arg, &t);
    }
    return finish(s, rc, err);
}

static int sink_list(struct tr_control *c, void (*cb)(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us), void *arg,
                     struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_SINK_LIST, ""); rc > 0; rc = more(s, err, q))
        cb(arg, (const char *)sqlite3_column_text(q, 0), (uint32_t)col_u64(q, 1), col_u64(q, 2), sqlite3_column_int64(q, 3));
    return finish(s, rc, err);
}

/* ---- operators ---- */

static int add_audit(struct store *s, const struct tr_ctl_audit *v, struct tr_err *err)
{
    return run(s, err, S_AUDIT_PUT, "isssss", (uint64_t)(v->at_us ? v->at_us : tr_wall_us()), v->actor, v->action, v->subject, v->outcome, v->detail);
}

static int request_put(struct tr_control *c, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    struct store *s = store_of(c);
    struct tr_ctl_audit a = {0};
    int rc = tr_control_check_request(actor, kind, scope, table, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED_OR_ADMIN, err)) < 0)
        return rc;
    snprintf(a.actor, sizeof a.actor, "%s", actor);
    snprintf(a.action, sizeof a.action, "%s", kind);
    snprintf(a.subject, sizeof a.subject, "%s", table ? table : "");
    snprintf(a.outcome, sizeof a.outcome, "requested");
    snprintf(a.detail, sizeof a.detail, "%s", scope ? scope : "");
    rc = run(s, err, S_REQUEST_PUT, "sss", kind, scope, table);
    if (rc == TR_OK)
        rc = add_audit(s, &a, err);
    return finish(s, rc, err);
}

static int request_take(struct tr_control *c, char kind[32], char scope[64], char table[160], struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    uint64_t seq = 0;
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    rc = row(s, err, &q, S_REQUEST_FIRST, "");
    if (rc == 0)
        rc = TR_AGAIN;
    if (rc > 0) {
        seq = col_u64(q, 0);
        col_text(q, 1, kind, 32);
        col_text(q, 2, scope, 64);
        col_text(q, 3, table, 160);
        sqlite3_reset(q);
        rc = run(s, err, S_REQUEST_DEL, "i", seq);
    }
    return finish(s, rc, err);
}

static int audit(struct tr_control *c, const struct tr_ctl_audit *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_audit(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED_OR_ADMIN, err)) < 0)
        return rc;
    return finish(s, add_audit(s, v, err), err);
}

static int audit_list(struct tr_control *c, uint32_t last, void (*cb)(void *arg, const struct tr_ctl_audit *a), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_AUDIT_LIST, "i", (uint64_t)last); rc > 0; rc = more(s, err, q)) {
        struct tr_ctl_audit a = {.at_us = sqlite3_column_int64(q, 0)};
        col_text(q, 1, a.actor, sizeof a.actor);
        col_text(q, 2, a.action, sizeof a.action);
        col_text(q, 3, a.subject, sizeof a.subject);
        col_text(q, 4, a.outcome, sizeof a.outcome);
        col_text(q, 5, a.detail, sizeof a.detail);
        cb(arg, &a);
    }
    return finish(s, rc, err);
}

static int alarm_set(struct tr_control *c, const char *kind, const char *subject, const char *text, struct tr_err *err)
{
    int rc = tr_control_check_alarm(kind, subject, err);
    if (rc < 0)
        return rc;
    LEASED(store_of(c), WRITE_LEASED, S_ALARM_SET, "sssi", kind, subject, text, (uint64_t)tr_wall_us());
}

static int alarm_clear(struct tr_control *c, const char *kind, const char *subject, struct tr_err *err)
{
    LEASED(store_of(c), WRITE_LEASED, S_ALARM_CLEAR, "ss", kind, subject);
}

static int alarm_list(struct tr_control *c, void (*cb)(void *arg, const struct tr_ctl_alarm *a), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    sqlite3_stmt *q;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (rc = row(s, err, &q, S_ALARM_LIST, ""); rc > 0; rc = more(s, err, q)) {
        struct tr_ctl_alarm a = {.since_us = sqlite3_column_int64(q, 3)};
        col_text(q, 0, a.kind, sizeof a.kind);
        col_text(q, 1, a.subject, sizeof a.subject);
        col_text(q, 2, a.text, sizeof a.text);
        cb(arg, &a);
    }
    return finish(s, rc, err);
}

/* ---- open and close ---- */

static void store_close(struct tr_control *c)
{
    if (!c)
        return;
    struct store *s = store_of(c);
    for (int i = 0; i < S_COUNT; i++)
        sqlite3_finalize(s->stmt[i]);
    sqlite3_close_v2(s->db);
    tr_mutex_done(&s->lock);
    tr_free(s->path);
    tr_free(s);
}

static int exec(struct store *s, const char *sql, struct tr_err *err)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? TR_OK : failed(s, err);
}

static int read_version(struct store *s, int *ret, struct tr_err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW ? TR_OK : failed(s, err);
    if (rc == TR_OK)
        *ret = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    return rc;
}

/* Under the write lock, so that two processes that open a new file do not both make it. */
static int migrate(struct store *s, struct tr_err *err)
{
    int version = 0;
    char sql[64];
    int rc = exec(s, "BEGIN IMMEDIATE", err);
    if (rc == TR_OK)
        rc = read_version(s, &version, err);
    if (rc == TR_OK && version > SCHEMA_VERSION)
        rc = tr_err_set(err, TR_FATAL, TR_DOM_CONTROL, "control store %s has version %d and this program knows up to %d: use the newer program", s->path, version,
                        SCHEMA_VERSION);
    for (; rc == TR_OK && version < SCHEMA_VERSION; version++)
        rc = exec(s, migrations[version], err);
    if (rc == TR_OK) {
        snprintf(sql, sizeof sql, "PRAGMA user_version = %d", SCHEMA_VERSION);
        rc = exec(s, sql, err);
    }
    if (rc == TR_OK)
        rc = exec(s, "COMMIT", err);
    return rc;
}

static int setup(struct store *s, struct tr_err *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    struct tr_file *f = NULL;
    /* a new file has the mode of the others in the state directory; it has values of keys in it */
    if (tr_fs_open(tr_fs_posix(), s->path, TR_FS_RDWR | TR_FS_CREATE | TR_FS_EXCL, &f, NULL) >= 0)
        tr_file_close(f);
    if (sqlite3_open_v2(s->path, &s->db, flags, NULL) != SQLITE_OK)
        return s->db ? failed(s, err) : tr_err_set(err, TR_NOMEM, TR_DOM_CONTROL, "no memory for the control store");
    (void)sqlite3_extended_result_codes(s->db, 1);
    (void)sqlite3_busy_timeout(s->db, BUSY_MS);
    int rc = exec(s, "PRAGMA journal_mode = WAL", err);
    if (rc == TR_OK)
        rc = exec(s, "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON", err);
    return rc < 0 ? rc : migrate(s, err);
}

int tr_control_sqlite_open(const char *path, struct tr_control **ret, struct tr_err *err)
{
    static const struct tr_control_ops ops = {
        .lease_take = lease_take,
        .lease_renew = lease_renew,
        .lease_release = lease_release,
        .act_under = act_under,
        .source_get = source_get,
        .source_bind = source_bind,
        .confirm = confirm,
        .slot_get = slot_get,
        .slot_put = slot_put,
        .table_ensure = table_ensure,
        .table_put = table_put,
        .table_list = table_list,
        .snapshot_id_next = snapshot_id_next,
        .schema_put = schema_put,
        .schema_list = schema_list,
        .chunk_put = chunk_put,
        .chunk_list = chunk_list,
        .chunk_clear = chunk_clear,
        .offset_get = offset_get,
        .offset_commit = offset_commit,
        .sink_table_list = sink_table_list,
        .sink_list = sink_list,
        .request_put = request_put,
        .request_take = request_take,
        .audit = audit,
        .audit_list = audit_list,
        .alarm_set = alarm_set,
        .alarm_clear = alarm_clear,
        .alarm_list = alarm_list,
        .close = store_close,
    };
    struct store *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONTROL, "no memory for the control store");
    s->c.ops = &ops;
    tr_mutex_init(&s->lock);
    s->path = tr_strdup(path);
    int rc = s->path ? setup(s, err) : tr_err_set(err, TR_NOMEM, TR_DOM_CONTROL, "no memory for the control store");
    if (rc < 0) {
        store_close(&s->c);
        return rc;
    }
    *ret = &s->c;
    return TR_OK;
}
