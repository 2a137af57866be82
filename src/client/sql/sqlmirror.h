/*
 * sqlmirror.h: what has to be said to a SQL database to apply one change to a mirror or a changelog table. Pure.
 *
 * A change becomes one or two *steps*; a step is a statement (told by its kind and by which columns are left out) with parameters. The
 * connector keeps a prepared statement per (kind, mask), binds and runs. Every statement is idempotent and keeps the higher version:
 *
 *   UPSERT      the whole row
 *   PATCH       an update that leaves columns unchanged: the live row with a lower version, if there is one, is changed in place
 *   MOVE        the upsert half of a key update with unchanged columns: they come from the live row under the old key, else from
 *               the live row under the new key, else the statement does nothing
 *   TOMBSTONE   soft: the row is marked deleted and keeps its values (or a bare tombstone is made); hard: it goes
 *   TRUNCATE    every row with a lower version becomes a tombstone, or goes
 *   LOG         one row of the changelog, unless that change is in it
 *
 * The two halves of a key update must be run in one transaction, upsert first: the other way round a redelivery would find a tombstone
 * where the base was.
 */
#ifndef TR_SQLMIRROR_H
#define TR_SQLMIRROR_H

#include <tailrace/change.h>

#include "arena.h"
#include "ddl.h"

enum tr_sqlm_kind { TR_SQLM_UPSERT, TR_SQLM_PATCH, TR_SQLM_MOVE, TR_SQLM_TOMBSTONE, TR_SQLM_TRUNCATE, TR_SQLM_LOG };

struct tr_sqlm {
    enum tr_dialect dialect;
    enum tr_table_kind kind;
    const struct tr_schema *schema;
    const char *ns, *name;     /* of the table in the sink */
    char **types;              /* per column, in the dialect */
    uint16_t n_rest;           /* columns that are not key columns */
};

struct tr_sqlm_param {
    uint8_t type;              /* canonical type the text is of */
    bool null;
    struct tr_slice text;
};

struct tr_sqlm_step {
    enum tr_sqlm_kind kind;
    const uint8_t *left_out;   /* n_columns flags, or NULL: columns the statement does not set (PATCH, MOVE) */
    const struct tr_sqlm_param *params;
    uint32_t n;
};

int tr_sqlm_init(struct tr_sqlm *m, enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *s, const char *ns, const char *name, struct tr_err *err);
void tr_sqlm_done(struct tr_sqlm *m);

/* 0, 1 or 2 steps, in the order in which they must run. Everything lives in the arena or in the change. */
int tr_sqlm_plan(const struct tr_sqlm *m, const struct tr_change *g, struct tr_arena *a, struct tr_sqlm_step steps[2], struct tr_err *err);

/* Of which column of the schema parameter n (from 1) of such a statement is the new value or the key; -1: of none. */
int tr_sqlm_param_column(const struct tr_schema *s, enum tr_sqlm_kind kind, const uint8_t *left_out, uint32_t n);

/* The statement of a step, with placeholders $1 … (PostgreSQL) or ?1 … (SQLite). */
int tr_sqlm_text(const struct tr_sqlm *m, const struct tr_sqlm_step *s, struct tr_buf *out);

/* PostgreSQL: the statement of many steps of one kind, UPSERT (no two of one key) or LOG, whose placeholders are arrays of what the one's are. */
int tr_sqlm_text_run(const struct tr_sqlm *m, enum tr_sqlm_kind kind, struct tr_buf *out);

#endif
