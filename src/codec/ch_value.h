/*
 * ch_value.h: a value's PostgreSQL text to the binary of one ClickHouse type. The one place where values are validated: the server stores what it is
 * sent, an unknown Enum number or an overflown Decimal too, and fails when it is read.
 *
 * A value is written as it is, or refused: it is never rounded, clamped, wrapped, cut or moved. docs/formats/clickhouse.md has the rules by type.
 *
 * Scalars are the same bytes in RowBinary and in a Native block's data; String is varint(length) bytes. All is little endian, but for IPv6.
 *
 * Threads: any. Nothing is allocated but in the caller's buffers.
 * Errors: REJECT in TR_DOM_SCHEMA with the type and the reason, without the value; the caller adds the column. NOMEM.
 */
#ifndef TR_CH_VALUE_H
#define TR_CH_VALUE_H

#include "ch_type.h"

/* Whose text it is, as enum tr_type (schema.h): it decides where one text means two things ("\x41" is a byte as BYTES, four as TEXT). */
struct tr_ch_from {
    uint8_t type;
    uint8_t element; /* of an array's elements; OPAQUE if not known */
};

/* t is a `value` (ch_type.h) without inner types. One value behind out's bytes; on error out is as before. */
int tr_ch_value_append(const struct tr_ch_type *t, uint8_t from, struct tr_slice text, struct tr_buf *out, struct tr_err *err);

/* The type's default: 0, '', 1970-01-01 (Date32: 1900-01-01), the lowest member. t as above. */
int tr_ch_value_append_default(const struct tr_ch_type *t, struct tr_buf *out);

/* REJECT that t takes no NULL. */
int tr_ch_value_no_null(const struct tr_ch_type *t, struct tr_err *err);

/* A part of a value with inner types: which of t's inner types it is for; text NULL for a NULL. scratch: what is free of it. */
typedef int (*tr_ch_part_fn)(void *ctx, uint32_t inner, const struct tr_slice *text, struct tr_ch_from from, uint8_t *scratch, struct tr_err *err);

/* t is an ARRAY, MAP or TUPLE `value`: splits the text (array, hstore, composite) and calls part for each, in order; a MAP's keys and values take turns.
 * scratch has room for t->depth times text.n bytes. *ret_n: elements of the array, pairs of the map. Stops at the first error, which is part's or its own. */
int tr_ch_value_parts(const struct tr_ch_type *t, struct tr_ch_from from, struct tr_slice text, uint8_t *scratch, tr_ch_part_fn part, void *ctx, uint64_t *ret_n,
                      struct tr_err *err);

#endif
