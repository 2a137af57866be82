/*
 * plan.h: descriptions of tables and plans to change them, as plain values. They are the arguments of the table catalog's contract
 * (spi/catalog.h) and the results of types/ddl.h, so they stand below both.
 *
 * Ownership: a description and a plan own their strings; *_done frees them and leaves an empty value.
 */
#ifndef TR_PLAN_H
#define TR_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>

/* A longer name than PostgreSQL keeps has no place in a sink (tr_sql_derived shortens what is made of two). */
enum { TR_SQL_NAME_MAX = 63 };

/* What is recorded in the sink, beside a table that we made. */
struct tr_table_note {
    char source[200];        /* "schema.table" of what it holds */
    char kind[16];           /* mirror, shadow, changelog, meta */
    uint64_t snapshot_id;    /* of the build this table came from; 0: none */
    uint32_t schema_version; /* the newest definition it was fitted to */
};

/* A table as it is in the sink. */
struct tr_desc_column {
    char *name;
    char *type;         /* as the sink spells it */
    bool not_null;
    uint16_t key_pos;   /* 1-based, 0: not in the primary key */
    int16_t source_pos; /* of the source column it was made for; 0: unknown */
    bool filled;        /* what rows hold there need not be sent: a default, or computed. Asked where a table may have columns beside ours (ClickHouse) */
};

struct tr_table_desc {
    bool exists;
    bool ours;          /* noted as made by tailrace; such a table may have been removed since: exists is false then */
    bool view;          /* its view without the tombstones is there, and shows it as it is */
    bool no_ns;         /* the namespace it would be in is not there either */
    struct tr_desc_column *columns;
    uint32_t n_columns;
    char key_name[TR_SQL_NAME_MAX + 1]; /* of the primary key, where keys have names of their own and keep them through a rename */
    struct tr_table_note note;          /* zero unless ours */
    char *positions;                    /* as recorded (tr_positions_put); NULL: none */
    char *engine, *partition;           /* ClickHouse: with its arguments and all that follows; the partition key. NULL: not asked */
    int64_t window;                     /* ClickHouse: how many INSERTs are remembered; -1: unknown. Asked with the engine */
};

enum tr_plan_op {
    TR_PLAN_SQL,     /* a statement */
    TR_PLAN_NOTE,    /* record `note` for the table */
    TR_PLAN_RENAMED, /* the record of the table goes on under the name `to`, in place of the one there */
};

struct tr_plan_step {
    enum tr_plan_op op;
    char *what;                    /* in words, for errors and logs */
    char *sql;                     /* SQL */
    char ns[TR_SQL_NAME_MAX + 1], name[TR_SQL_NAME_MAX + 1], to[TR_SQL_NAME_MAX + 1];
    struct tr_table_note note;     /* NOTE; RENAMED: the kind it goes on as, and the build that it is */
    char *positions;               /* NOTE: the source's positions of the columns (tr_positions_put); NULL: those recorded stay */
};

struct tr_plan {
    struct tr_plan_step *steps;
    uint32_t n, cap;
    bool refused; /* not additive: steps is empty and reason says why and what cures it */
    char reason[512];
};

int tr_desc_add(struct tr_table_desc *d, const char *name, const char *type, bool not_null, uint16_t key_pos);
void tr_table_desc_done(struct tr_table_desc *d);

int tr_plan_sql(struct tr_plan *p, struct tr_buf *sql, const char *what_fmt, ...) __attribute__((format(printf, 3, 4))); /* takes the text over */
int tr_plan_note(struct tr_plan *p, const char *ns, const char *name, const struct tr_table_note *note, const char *positions);
int tr_plan_renamed(struct tr_plan *p, const char *ns, const char *name, const char *to, const char *kind, uint64_t snapshot_id);
int tr_plan_refuse(struct tr_plan *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* drops its steps; OK always */
void tr_plan_done(struct tr_plan *p);

#endif
