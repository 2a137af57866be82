/*
 * rowimage.h: the values of one row as stored in a frame. A persisted format (docs/formats/rowimage.md).
 *
 *   image  = varint(n) states value*
 *   states = ceil(n / 4) bytes, two bits per column, column 0 in the low bits of the first byte (enum tr_state)
 *   value  = varint(length) bytes           one per PRESENT column, in column order
 *
 * n may be smaller than the schema's column count: the missing columns are ABSENT.
 */
#ifndef TR_ROWIMAGE_H
#define TR_ROWIMAGE_H

#include <tailrace/change.h>

int tr_rowimage_encode(const struct tr_row *row, struct tr_buf *out);

/* v and state have room for cap columns. Values borrow from image. REJECT: malformed, or more than cap columns. */
int tr_rowimage_decode(struct tr_slice image, uint32_t cap, struct tr_slice *v, uint8_t *state, struct tr_row *ret, struct tr_err *err);

#endif
