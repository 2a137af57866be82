/*
 * copytext.h: COPY text format (PostgreSQL manual, COPY, "Text Format"): one decoder for snapshot rows and one encoder.
 *
 * Decoding a line (without its newline, or with it) yields n columns: NULL for \N, else the text with its escapes undone.
 * Unescaped values borrow from the line itself; values with escapes are written into scratch, which must have room for
 * line.n bytes. Errors: REJECT for a wrong number of columns or a dangling backslash.
 */
#ifndef TR_COPYTEXT_H
#define TR_COPYTEXT_H

#include <tailrace/change.h>

int tr_copytext_decode(struct tr_slice line, uint32_t n_columns, uint8_t *scratch, struct tr_slice *v, uint8_t *state, struct tr_err *err);
int tr_copytext_append(struct tr_buf *out, struct tr_slice value); /* escapes; no delimiter */

#endif
