/*
 * key.h: the encoded key of a row: what equality, ordering per key and the choice of a partition rest on. A persisted format
 * (docs/formats/key.md).
 *
 *   key   = column*                 in key order
 *   column = varint(length) bytes   the column's text, made canonical for its type
 *
 * Canonical text: DECIMAL loses trailing zeros of its fraction and a negative zero its sign (1.0 and 1.00 are one key in
 * PostgreSQL); FLOAT's "-0" is "0". Of all other types the text is the key, also where PostgreSQL takes two texts for one (an
 * interval of 24 hours and of 1 day): it sends the old key whenever the bytes of a key change. citext and nondeterministic
 * collations are refused by the source.
 *
 * Partition = XXH3-64(key) modulo the number of partitions.
 */
#ifndef TR_KEY_H
#define TR_KEY_H

#include <tailrace/change.h>

struct tr_arena;

/* Appends the key of row to out. REJECT, naming the column, when a key column is not PRESENT. */
int tr_key_encode(const struct tr_schema *s, const struct tr_row *row, struct tr_buf *out, struct tr_err *err);

/* Splits an encoded key into n_key slices (borrowed). REJECT when malformed. */
int tr_key_decode(struct tr_slice key, uint32_t n_key, struct tr_slice *ret_cols, struct tr_err *err);

uint64_t tr_key_hash(struct tr_slice key);

#endif
