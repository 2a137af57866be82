/*
 * clickhouse.h: rows of a ClickHouse table, encoded inline by a typed chain: RowBinary, cell after cell, into the chunk itself.
 *
 * For outputs of variant TR_TARGET_APPEND: rows as they are, into a table that is there (the sink never makes or alters it). Its columns are declared by
 * ClickHouse's own types, which the sink compares with the table before a record is read, column by column; a difference is refused by name:
 *
 *     static const struct tr_column columns[] = {
 *         TR_CH_COLUMN("at", "DateTime64(3)"), TR_CH_COLUMN("user", "UInt64"), TR_CH_COLUMN("tags", "Array(LowCardinality(String))"), TR_CH_COLUMN("ref", "Nullable(String)")};
 *
 *     static inline int hit_row(struct site *s, const struct hit *h, struct tr_buf *out, struct tr_err *err)   // TR_ENCODED(hit_row)
 *     {
 *         int rc = tr_rb_i64(out, h->at_ms);
 *         rc |= tr_rb_u64(out, h->user);
 *         rc |= tr_rb_count(out, h->n_tags);
 *         for (uint32_t i = 0; i < h->n_tags; i++)
 *             rc |= tr_rb_string(out, h->tags[i]);
 *         rc |= tr_rb_null(out, !h->ref.n);
 *         if (h->ref.n)
 *             rc |= tr_rb_string(out, h->ref);
 *         return rc ? TR_NOMEM : TR_OK;
 *     }
 *
 * A row has one cell per declared column, in order. The server does not look at what it is sent: a cell too few shifts all that follows, and a number that is
 * no member of an Enum makes later SELECTs fail. TR_ROWS takes the same declarations, with values as text, and checks each.
 *
 *   cell  = [null] value            null only where the type is Nullable: 1 and nothing more, or 0 and the value
 *   Array = count cell*    Map = count (key value)*    Tuple = cell*    LowCardinality(T) and SimpleAggregateFunction(f, T) as T
 *
 * Format: ClickHouse manual, "RowBinary"; docs/formats/clickhouse.md. Answers: TR_OK or TR_NOMEM, and then nothing was appended. Threads: the chain's.
 */
#ifndef TAILRACE_CLICKHOUSE_H
#define TAILRACE_CLICKHOUSE_H

#include <tailrace/buf.h>
#include <tailrace/schema.h>

/* One of the columns of a tr_schema_def. */
#define TR_CH_COLUMN(column, clickhouse_type) {.name = (column), .source_type = (clickhouse_type), .type = TR_TYPE_OPAQUE, .precision = -1}

static inline int tr_rb_u8(struct tr_buf *b, uint8_t v) { return tr_buf_append_u8(b, v); }
static inline int tr_rb_u16(struct tr_buf *b, uint16_t v) { return tr_buf_append_u16le(b, v); }
static inline int tr_rb_u32(struct tr_buf *b, uint32_t v) { return tr_buf_append_u32le(b, v); }
static inline int tr_rb_u64(struct tr_buf *b, uint64_t v) { return tr_buf_append_u64le(b, v); }
static inline int tr_rb_i8(struct tr_buf *b, int8_t v) { return tr_rb_u8(b, (uint8_t)v); }     /* also Enum8 */
static inline int tr_rb_i16(struct tr_buf *b, int16_t v) { return tr_rb_u16(b, (uint16_t)v); } /* also Enum16 */
static inline int tr_rb_i32(struct tr_buf *b, int32_t v) { return tr_rb_u32(b, (uint32_t)v); } /* also Date32 (days), Decimal of up to 9 digits (scaled) */
static inline int tr_rb_i64(struct tr_buf *b, int64_t v) { return tr_rb_u64(b, (uint64_t)v); } /* also DateTime64 (ticks), Decimal of up to 18 digits (scaled) */
static inline int tr_rb_bool(struct tr_buf *b, bool v) { return tr_rb_u8(b, v); }
static inline int tr_rb_null(struct tr_buf *b, bool is_null) { return tr_rb_u8(b, is_null); }  /* before each cell of a Nullable */
static inline int tr_rb_count(struct tr_buf *b, uint64_t n) { return tr_buf_append_varint(b, n); } /* before the elements of an Array or Map */
static inline int tr_rb_date(struct tr_buf *b, uint16_t days) { return tr_rb_u16(b, days); }          /* since 1970-01-01 */
static inline int tr_rb_datetime(struct tr_buf *b, uint32_t seconds) { return tr_rb_u32(b, seconds); }
static inline int tr_rb_ipv4(struct tr_buf *b, uint32_t address) { return tr_rb_u32(b, address); }    /* 127.0.0.1 is 0x7f000001 */

/* 128 bits: Int128, UInt128, Decimal of up to 38 digits (scaled). */
static inline int tr_rb_i128(struct tr_buf *b, int64_t high, uint64_t low)
{
    int rc = tr_buf_reserve(b, 16);
    if (rc >= 0) {
        tr_buf_put_u64le(b, low);
        tr_buf_put_u64le(b, (uint64_t)high);
    }
    return rc;
}

static inline int tr_rb_f32(struct tr_buf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return tr_rb_u32(b, bits);
}

static inline int tr_rb_f64(struct tr_buf *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return tr_rb_u64(b, bits);
}

/* String: any bytes. */
static inline int tr_rb_string(struct tr_buf *b, struct tr_slice v)
{
    int rc = tr_buf_reserve(b, TR_VARINT_MAX + v.n);
    if (rc >= 0) {
        tr_buf_put_varint(b, v.n);
        tr_buf_put(b, v.p, v.n);
    }
    return rc;
}

/* FixedString(n): cut to n, or filled up with NUL. */
static inline int tr_rb_fixed(struct tr_buf *b, struct tr_slice v, size_t n)
{
    int rc = tr_buf_reserve(b, n);
    size_t is = v.n < n ? v.n : n;
    if (rc >= 0) {
        tr_buf_put(b, v.p, is);
        memset(b->p + b->n, 0, n - is);
        b->n += n - is;
    }
    return rc;
}

/* The 16 bytes in the order in which the text has them. */
static inline int tr_rb_uuid(struct tr_buf *b, const uint8_t v[16])
{
    int rc = tr_buf_reserve(b, 16);
    for (int i = 0; i < 16 && rc >= 0; i++)
        tr_buf_put_u8(b, v[i < 8 ? 7 - i : 23 - i]);
    return rc;
}

static inline int tr_rb_ipv6(struct tr_buf *b, const uint8_t v[16]) /* network order */
{
    return tr_buf_append(b, v, 16);
}

#endif
