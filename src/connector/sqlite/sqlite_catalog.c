/* sqlite_catalog.c: a SQLite database as its own table catalog; its records are the table _tailrace_tables (sqlite_db.h). */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "ddl.h"
#include "sqlite_sink.h"

static struct tr_sqlite_db *of(struct tr_catalog *c)
{
    return &tr_container_of(c, struct sqlite_sink, catalog)->db;
}

static sqlite3_stmt *prepare(struct tr_sqlite_db *d, const char *sql, const char *const *texts, int n)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(d->db, sql, -1, &s, NULL) != SQLITE_OK)
        return NULL;
    for (int i = 0; i < n; i++)
        sqlite3_bind_text(s, i + 1, texts[i], -1, SQLITE_STATIC);
    return s;
}

static int columns(struct tr_sqlite_db *d, const char *name, struct tr_table_desc *ret, struct tr_err *err)
{
    sqlite3_stmt *s = prepare(d, "SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1)", &name, 1);
    int rc = TR_OK, step = s ? SQLITE_ROW : SQLITE_ERROR;
    while (rc >= 0 && step == SQLITE_ROW) {
        step = sqlite3_step(s);
        if (step == SQLITE_ROW && tr_desc_add(ret, (const char *)sqlite3_column_text(s, 0), (const char *)sqlite3_column_text(s, 1), sqlite3_column_int(s, 2), (uint16_t)sqlite3_column_int(s, 3)) < 0)
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to describe table %s", d->what, name);
    }
    if (rc >= 0 && step != SQLITE_DONE)
        rc = tr_sqlite_error(d, "describing a table", err);
    sqlite3_finalize(s);
    ret->exists = ret->n_columns > 0;
    return rc;
}

static int view(struct tr_sqlite_db *d, const char *name, struct tr_table_desc *ret, struct tr_err *err)
{
    char live[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(name, "_live", live);
    const char *text = live;
    sqlite3_stmt *s = prepare(d, "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = ?1 COLLATE NOCASE", &text, 1);
    int step = s ? sqlite3_step(s) : SQLITE_ERROR;
    ret->view = step == SQLITE_ROW;
    int rc = step == SQLITE_ROW || step == SQLITE_DONE ? TR_OK : tr_sqlite_error(d, "describing a view", err);
    sqlite3_finalize(s);
    return rc;
}

static int record(struct tr_sqlite_db *d, const char *name, struct tr_table_desc *ret, struct tr_err *err)
{
    /* table names differ in more than case here, whatever they do at the source */
    sqlite3_stmt *s = prepare(d, "SELECT source, kind, snapshot_id, schema_version, positions FROM _tailrace_tables WHERE name = ?1 COLLATE NOCASE", &name, 1);
    int step = s ? sqlite3_step(s) : SQLITE_ERROR;
    if (step == SQLITE_ROW) {
        ret->ours = true;
        snprintf(ret->note.source, sizeof ret->note.source, "%s", (const char *)sqlite3_column_text(s, 0));
        snprintf(ret->note.kind, sizeof ret->note.kind, "%s", (const char *)sqlite3_column_text(s, 1));
        ret->note.snapshot_id = (uint64_t)sqlite3_column_int64(s, 2);
        ret->note.schema_version = (uint32_t)sqlite3_column_int64(s, 3);
    }
    int rc = step == SQLITE_ROW || step == SQLITE_DONE ? TR_OK : tr_sqlite_error(d, "looking up a table", err);
    if (step == SQLITE_ROW && tr_positions_get((const char *)sqlite3_column_text(s, 4), ret) < 0)
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to describe table %s", d->what, name);
    sqlite3_finalize(s);
    return rc;
}

static int describe(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err)
{
    (void)ns;
    struct tr_sqlite_db *d = of(c);
    int rc = tr_sqlite_open(d, deadline_ns, err);
    if (rc >= 0)
        rc = columns(d, name, ret, err);
    if (rc >= 0)
        rc = view(d, name, ret, err);
    return rc >= 0 ? record(d, name, ret, err) : rc;
}

static int run(struct tr_sqlite_db *d, sqlite3_stmt *s, const char *doing, struct tr_err *err)
{
    int rc = s && sqlite3_step(s) == SQLITE_DONE ? TR_OK : tr_sqlite_error(d, doing, err);
    sqlite3_finalize(s);
    return rc;
}

static int note(struct tr_sqlite_db *d, const struct tr_plan_step *p, struct tr_err *err)
{
    const char *texts[] = {p->name, p->note.source, p->note.kind, p->positions};
    sqlite3_stmt *s = prepare(d,
                              "INSERT OR REPLACE INTO _tailrace_tables VALUES (?1, ?2, ?3, ?5, ?6,"
                              " coalesce(?4, (SELECT positions FROM _tailrace_tables WHERE name = ?1), ''))",
                              texts, 4);
    if (s) {
        sqlite3_bind_int64(s, 5, (int64_t)p->note.snapshot_id);
        sqlite3_bind_int64(s, 6, p->note.schema_version);
    }
    return run(d, s, p->what, err);
}

static int renamed(struct tr_sqlite_db *d, const struct tr_plan_step *p, struct tr_err *err)
{
    const char *texts[] = {p->name, p->to, p->note.kind};
    return run(d, prepare(d, "UPDATE OR REPLACE _tailrace_tables SET name = ?2, kind = ?3 WHERE name = ?1", texts, 3), p->what, err);
}

static int execute(struct tr_catalog *c, const struct tr_plan *plan, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_sqlite_db *d = of(c);
    TR_ASSERT(!plan->refused);
    int rc = tr_sqlite_open(d, deadline_ns, err);
    if (rc >= 0)
        rc = tr_sqlite_exec(d, "BEGIN IMMEDIATE", deadline_ns, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < plan->n && rc >= 0; i++) {
        const struct tr_plan_step *p = &plan->steps[i];
        rc = p->op == TR_PLAN_NOTE ? note(d, p, err) : p->op == TR_PLAN_RENAMED ? renamed(d, p, err) : tr_sqlite_exec(d, p->sql, deadline_ns, err);
    }
    if (rc >= 0)
        rc = tr_sqlite_exec(d, "COMMIT", deadline_ns, err);
    if (rc < 0)
        sqlite3_exec(d->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

const struct tr_catalog_ops tr_sqlite_catalog_ops = {.describe = describe, .execute = execute};
