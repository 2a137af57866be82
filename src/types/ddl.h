/*
 * ddl.h: what a table of a SQL sink should look like, and the statements that make it so. Pure; the only author of DDL.
 *
 *   mirror     the source's columns, nullable but for the key, plus _tr_version, and for soft deletes _tr_deleted and _tr_deleted_at;
 *              the key is the primary key and the only constraint
 *   changelog  _tr_epoch, _tr_commit_lsn, _tr_ordinal (the primary key), _tr_op, _tr_commit_time, _tr_xid, _tr_version, _tr_unchanged,
 *              _tr_old_key, then the source's columns
 *   view       <mirror>_live: the source's columns of rows that are not tombstones (soft deletes only)
 *
 * A wanted table is built from a schema, reconciled with what is there into a tr_plan (catalog.h's shape), and executed by the sink's
 * catalog. Additive differences become statements; anything else refuses, by column name and with the cure.
 *
 * Types per dialect. SQLite: INTEGER for bool and integers, REAL for finite floats (NaN and infinities as text, which SQLite keeps),
 * BLOB for bytes, TEXT for all others, numeric included, so that nothing is rounded. PostgreSQL: the source's own type where every
 * PostgreSQL has it, else what its canonical type maps to, else text. ClickHouse (ddl_clickhouse.h): integers, floats, Bool, UUID, Decimal for
 * numeric(p, s) that it can hold, Date32 and DateTime64(6) where the server has them, String, which takes any bytes, for all others.
 *
 * Plans are appended to (`io`), so that several become one transaction; a refusal drops what was there. After an error the plan is not to be
 * executed.
 *
 * Ownership: want and plan own their strings; *_done frees. Threads: any, one at a time.
 */
#ifndef TR_DDL_H
#define TR_DDL_H

#include <tailrace/schema.h>

#include "plan.h"

enum tr_dialect {
    TR_DIALECT_SQLITE,
    TR_DIALECT_POSTGRES,
    TR_DIALECT_CLICKHOUSE,                     /* what ClickHouse 18.16 has; with more by these: */
    TR_CLICKHOUSE_TODAY = 1 << 4,              /* Bool, Date32, DateTime64, a deduplication window */
    TR_CLICKHOUSE_EXCHANGE = 1 << 5,           /* EXCHANGE TABLES, CREATE OR REPLACE VIEW */
};

static inline bool tr_dialect_clickhouse(enum tr_dialect d)
{
    return (d & 15) == TR_DIALECT_CLICKHOUSE;
}

#define TR_CLICKHOUSE_TIME "DateTime64(6, 'UTC')"

enum tr_table_kind { TR_TABLE_MIRROR_SOFT, TR_TABLE_MIRROR_HARD, TR_TABLE_LOG };

struct tr_want_column {
    char *name, *type;
    char *fill;                /* constant for rows that are there when the column is added; NULL: none */
    uint16_t key_pos;
    int16_t source_pos;        /* the source's own number: tells a column that was dropped and added again */
    bool unfillable;           /* rows that are there may hold values nobody told us */
    uint8_t canonical;         /* enum tr_type */
};

struct tr_want {
    enum tr_dialect dialect;
    enum tr_table_kind kind;
    char *ns, *name;           /* ns "" : no namespace (SQLite) */
    uint32_t schema_version;
    struct tr_want_column *columns;
    uint32_t n;
    char *partition;           /* ClickHouse: an expression over columns of the key, by which the table is partitioned (tr_ch_partition_by). NULL: none */
    char *note;                /* ClickHouse: the record that is made with the table; the caller puts it there. NULL: none */
};

/* ns, name: of the table in the sink. REJECT when two source columns collide with each other or with ours (_tr_…). */
int tr_want_new(enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *s, const char *ns, const char *name, struct tr_want *ret, struct tr_err *err);
void tr_want_done(struct tr_want *w);

/* Type of a column in a dialect, as the sink itself would spell it. */
int tr_sql_type(enum tr_dialect d, const struct tr_column *c, struct tr_buf *out);
/* The same as a column of such a table has it: ClickHouse says where there may be NULL. */
int tr_sql_column_type(enum tr_dialect d, enum tr_table_kind kind, const struct tr_column *c, struct tr_buf *out);
/* "ns"."name" or "name". */
int tr_sql_name(const char *ns, const char *name, struct tr_buf *out);

/* The name of a table or view beside another: name and suffix, shortened with a hash where that would be longer than the 63 bytes that
 * PostgreSQL keeps of a name. */
void tr_sql_derived(const char *name, const char *suffix, char out[TR_SQL_NAME_MAX + 1]);

/* create or evolve; a plan without steps: it fits as it is. A definition older than the one the table was fitted to (changes delivered again
 * after a restart) asks for nothing and only needs its columns to be there. */
int tr_reconcile(const struct tr_want *w, const struct tr_table_desc *have, struct tr_plan *io, struct tr_err *err);
/* The source positions of a table's columns as a text to be kept beside it, and back. NOMEM. */
int tr_positions_put(const struct tr_want *w, struct tr_buf *out);
int tr_positions_get(const char *text, struct tr_table_desc *io);
/* Makes (again) the view over a soft mirror. */
int tr_plan_view(const struct tr_want *w, struct tr_plan *io, struct tr_err *err);
/* The shadow takes the mirror's name, the old mirror and its view go, the view is made anew. mirror: the wanted mirror under its real name;
 * there, build: the mirror and the shadow as they are. */
int tr_plan_swap(const struct tr_want *mirror, const struct tr_table_desc *there, const char *shadow, const struct tr_table_desc *build, struct tr_plan *io, struct tr_err *err);
int tr_plan_drop(enum tr_dialect d, const char *ns, const char *name, struct tr_plan *io, struct tr_err *err);

#endif
