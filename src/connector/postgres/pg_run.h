/*
 * pg_run.h: rows of one table gathered for one statement. A column of a run is one parameter, an array in text form, and the statement
 * unnests them (tr_sqlm_text_run). For the statements of whole rows only, UPSERT and LOG; and no key twice, since ON CONFLICT may touch a
 * row once. Keys are told apart by their hash: two that share one merely end a run early.
 *
 * Ownership: the writer's, which begins a run with a target and empties it with tr_pg_run_clear. What was added is copied.
 */
#ifndef TR_PG_RUN_H
#define TR_PG_RUN_H

#include "sqlsink.h"

enum { PG_RUN_ROWS = 1024, PG_RUN_BYTES = 256 << 10 };

struct pg_run {
    const struct tr_sqltarget *target; /* NULL: no row is in it */
    enum tr_sqlm_kind kind;
    uint32_t part, n, n_columns, cap;
    size_t bytes;
    struct tr_buf *columns;            /* the arrays, without the closing brace */
    uint64_t keys[2 * PG_RUN_ROWS];    /* hashes, open addressing; 0: free */
};

void tr_pg_run_done(struct pg_run *r);
void tr_pg_run_clear(struct pg_run *r);

/* Can this row stand in the run? false: the run has to be written first, or the step is none that runs in one. */
bool tr_pg_run_takes(const struct pg_run *r, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_slice key);
bool tr_pg_run_suits(const struct tr_sqlm_step *s);
int tr_pg_run_add(struct pg_run *r, const struct tr_sqltarget *t, const struct tr_sqlm_step *s, struct tr_slice key, uint32_t part); /* NOMEM */
bool tr_pg_run_full(const struct pg_run *r);
/* The parameters, NUL-terminated, n_columns of them. NOMEM */
int tr_pg_run_values(struct pg_run *r, const char **ret);

#endif
