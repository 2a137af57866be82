/*
 * rowbinary.h: encoder of ClickHouse's RowBinary and RowBinaryWithNamesAndTypes (ClickHouse manual, "Formats"; checked against servers, docs/formats/clickhouse.md).
 *
 *   rows   = row*                                row = cell*            in the order of the INSERT's columns
 *   cell   = [flag] value                        flag only where Nullable: 1 is NULL, and nothing follows
 *   array  = varint(n) cell*   map = varint(n) (key cell)*   tuple = cell*   others as in ch_value.h
 *   header = varint(n) name* type*               strings of varint(length) bytes; the server takes only its own spelling of a type
 *
 * Ownership: the struct holds scratch of its own (init, done) and no bytes of the rows, which go to the caller's buffer. One thread at a time.
 * Once the buffers have grown nothing is allocated. Errors: REJECT (ch_value.h) or NOMEM, and then the buffer is as before the cell.
 */
#ifndef TR_ROWBINARY_H
#define TR_ROWBINARY_H

#include "ch_value.h"

struct tr_rowbinary {
    struct tr_buf scratch;
};

void tr_rowbinary_done(struct tr_rowbinary *rb);

/* One cell; text NULL is NULL. */
int tr_rowbinary_cell(struct tr_rowbinary *rb, const struct tr_ch_type *t, struct tr_ch_from from, const struct tr_slice *text, struct tr_buf *out, struct tr_err *err);

/* The type's default, which for a Nullable is NULL. */
int tr_rowbinary_default(const struct tr_ch_type *t, struct tr_buf *out, struct tr_err *err);

int tr_rowbinary_header(const struct tr_slice *names, const struct tr_ch_type *const *types, uint32_t n, struct tr_buf *out, struct tr_err *err);

#endif
