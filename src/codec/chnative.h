/*
 * chnative.h: encoder of one block of ClickHouse's Native format (ClickHouse manual, "Formats"; checked against servers, docs/formats/clickhouse.md).
 *
 *   block    = varint(columns) varint(rows) column*
 *   column   = string(name) string(type) data           string: varint(length) bytes
 *   data     = [flag of each row: 1 is NULL] values     flags only where Nullable; a NULL's value is zeros, '', an Enum's lowest member
 *   values   = scalars one behind the other (ch_value.h)
 *            | ARRAY: u64le(end of each row's elements)  data of all elements
 *            | MAP:   the same, with data of all keys and data of all values
 *            | TUPLE: data of each element in turn
 *
 * No block information stands before it, as for a URL without client_protocol_version. LowCardinality and SimpleAggregateFunction are sent as the type
 * within, which the server converts; every other type goes by the column's own text, because the server converts what differs without a word.
 *
 * Ownership: the block copies what it is given, but for the types, which must outlive it. One thread at a time. A finished block is empty again and keeps
 * its memory: once warm, nothing is allocated.
 * Errors: REJECT (ch_value.h) and NOMEM leave the column without the cell; tr_chnative_drop takes back the row's other cells.
 */
#ifndef TR_CHNATIVE_H
#define TR_CHNATIVE_H

#include "ch_value.h"

struct tr_chnative;

struct tr_chnative_column {
    struct tr_slice name;
    const struct tr_ch_type *type;
    struct tr_ch_from from;
};

int tr_chnative_new(const struct tr_chnative_column *columns, uint32_t n, struct tr_chnative **ret, struct tr_err *err);
struct tr_chnative *tr_chnative_free(struct tr_chnative *b); /* always NULL */

/* The next cell of a column; text NULL is NULL. Columns in any order, one cell each a row. */
int tr_chnative_cell(struct tr_chnative *b, uint32_t column, const struct tr_slice *text, struct tr_err *err);
/* The type's default, which for a Nullable is NULL. */
int tr_chnative_default(struct tr_chnative *b, uint32_t column, struct tr_err *err);

void tr_chnative_row(struct tr_chnative *b);  /* every column has its cell: the row is whole */
void tr_chnative_drop(struct tr_chnative *b); /* the cells behind the last whole row go */

uint64_t tr_chnative_rows(const struct tr_chnative *b);
size_t tr_chnative_bytes(const struct tr_chnative *b); /* of the data so far */

/* Appends the block to out, unless it has no rows, and empties it. On error it is as before. */
int tr_chnative_finish(struct tr_chnative *b, struct tr_buf *out, struct tr_err *err);
void tr_chnative_clear(struct tr_chnative *b);

#endif
