/*
 * ddl_clickhouse.h: the ClickHouse dialect of ddl.h; called by ddl.c, and by the ClickHouse catalog for what stands beside plans.
 *
 *   mirror     ENGINE = ReplacingMergeTree(_tr_version) ORDER BY (key): rows of a key are many until they are merged, FINAL reads the one of the
 *              highest version. Nothing merges tombstones away
 *   changelog  ENGINE = ReplacingMergeTree ORDER BY (_tr_epoch, _tr_commit_lsn, _tr_ordinal): a change that was delivered twice is one under FINAL
 *   view       SELECT … FROM mirror FINAL WHERE NOT _tr_deleted
 *
 * There are no transactions. A plan's statements are ordered so that one that ended anywhere is completed by the next, and the record of a table is
 * the comment of its column _tr_version: made with the table, and taken along when tables are renamed or exchanged.
 *
 *   record = "tailrace " kind " build " snapshot_id " version " schema_version " of " length ":" source " columns " positions
 */
#ifndef TR_DDL_CLICKHOUSE_H
#define TR_DDL_CLICKHOUSE_H

#include "ddl.h"

int tr_ch_ident(struct tr_slice name, struct tr_buf *out);   /* "name"; a backslash escapes */
int tr_ch_literal(struct tr_slice text, struct tr_buf *out); /* 'text' */
int tr_ch_name(const char *ns, const char *name, struct tr_buf *out);

int tr_ch_type_sql(enum tr_dialect d, const struct tr_column *c, struct tr_buf *out);

/* The dialect's parts of ddl.c's statements. NOMEM. */
int tr_ch_column_sql(const struct tr_want *w, const struct tr_want_column *c, struct tr_buf *q); /* behind name and type */
int tr_ch_engine_sql(const struct tr_want *w, struct tr_buf *q);                                 /* from the columns to the key's */
int tr_ch_settings_sql(const struct tr_want *w, struct tr_buf *q);                               /* behind the key */
int tr_ch_plan_swap(const struct tr_want *mirror, const struct tr_table_desc *there, const char *shadow, const struct tr_table_desc *build, struct tr_plan *io, struct tr_err *err);

/* Refuses a table of ours whose engine, partitions or window of deduplication a hand has changed. */
void tr_ch_reconcile(const struct tr_want *w, const struct tr_table_desc *have, struct tr_plan *io);
/* The setting that is a table's window of deduplication, by its engine; NULL: it has none. ret: what the table itself says of it, -1: nothing. */
const char *tr_ch_window(const char *engine, int64_t *ret);

/* What options say of one table, put into what is wanted of it. REJECT names what cannot be; said: the table, in messages.
 *   low_cardinality  a column that is a String becomes LowCardinality; others stay as they are
 *   order_by         "a, b": the columns of the key, each once, in the order of the sorting key
 *   partition_by     an expression; columns of the key, functions, operators and constants may stand there. A row must never change its partition,
 *                    or FINAL could not replace it by its newer version */
int tr_ch_low_cardinality(struct tr_want_column *io);
int tr_ch_order_by(struct tr_want *io, const char *said, struct tr_slice columns, struct tr_err *err);
int tr_ch_partition_by(struct tr_want *io, const char *said, struct tr_slice expression, struct tr_err *err);

/* The record of a table as text and back; get: false when the text is none of ours. */
int tr_ch_note_put(const struct tr_table_note *note, const char *positions, struct tr_buf *out);
bool tr_ch_note_get(const char *text, struct tr_table_note *ret, const char **ret_positions);
/* The statement that sets it. */
int tr_ch_note_sql(const char *ns, const char *name, const char *record, struct tr_buf *out);

/* The columns of a sorting key, as system.tables spells it: position of each column, from 1. */
void tr_ch_sorting_key(const char *text, struct tr_table_desc *io);

#endif
