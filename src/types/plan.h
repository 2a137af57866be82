/*
 * plan.h: descriptions of tables and plans to change them, as plain values. They are the arguments of the table catalog's contract
 * (spi/catalog.h) and the results of types/ddl.h, so they stand below both.
 */
#ifndef TR_PLAN_H
#define TR_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>

/* A table as it is in the sink. */
struct tr_desc_column {
    char *name;
    char *type;       /* as the sink spells it */
    bool not_null;
    uint16_t key_pos; /* 1-based, 0: not in the primary key */
    int16_t source_pos; /* of the source column it was made for; 0: unknown */
};

struct tr_table_desc {
    bool exists;
    struct tr_desc_column *columns;
    uint32_t n_columns;
    uint64_t snapshot_id; /* of the build this table came from, as recorded beside it; 0: none */
    uint32_t schema_version; /* of the newest definition it was fitted to */
    bool ours;            /* recorded as made by tailrace */
    bool view;            /* its view without the tombstones is there */
};

struct tr_plan_step {
    char *sql;
    char *what; /* in words, for logs and for `check` */
};

struct tr_plan {
    struct tr_plan_step *steps;
    uint32_t n, cap;
    bool refused; /* not additive: steps is empty and reason says why and what cures it */
    char reason[512];
};

int tr_desc_add(struct tr_table_desc *d, const char *name, const char *type, bool not_null, uint16_t key_pos);
void tr_table_desc_done(struct tr_table_desc *d);
int tr_plan_add(struct tr_plan *p, struct tr_buf *sql, const char *what_fmt, ...) __attribute__((format(printf, 3, 4))); /* takes the text over */
void tr_plan_done(struct tr_plan *p);

#endif
