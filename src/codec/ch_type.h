/*
 * ch_type.h: a ClickHouse type as a tree. Parsed from the text that DESCRIBE and system.columns give, and printed the way the server spells it.
 *
 *   type   = name | name "(" args ")"         args by kind: types, numbers, 'a' = 1 members, a 'zone', [name] type elements
 *   name   = the server's own canonical names only (docs/formats/clickhouse.md lists them); Decimal32/64/128/256(S) are Decimal(9/18/38/76, S)
 *
 * AggregateFunction, Variant, Dynamic, JSON and every name not listed are refused: their bytes depend on the server's version, or we do not know them.
 *
 * Ownership: a tree lives in the caller's arena and dies with it; it is immutable, any thread may read it. Its depth is at most TR_CH_DEPTH_MAX.
 * Errors: REJECT in TR_DOM_SCHEMA, naming the type; NOMEM.
 */
#ifndef TR_CH_TYPE_H
#define TR_CH_TYPE_H

#include <stdbool.h>

#include <tailrace/buf.h>

#include "arena.h"

enum { TR_CH_DEPTH_MAX = 32, TR_CH_TYPE_BYTES_MAX = 4 << 20 };

/* kind, name, bytes of a value where all values have the same */
#define TR_CH_KIND_LIST(X)                                                                                                                           \
    X(BOOL, "Bool", 1)                                                                                                                               \
    X(INT8, "Int8", 1)                                                                                                                               \
    X(INT16, "Int16", 2)                                                                                                                             \
    X(INT32, "Int32", 4)                                                                                                                             \
    X(INT64, "Int64", 8)                                                                                                                             \
    X(INT128, "Int128", 16)                                                                                                                          \
    X(INT256, "Int256", 32)                                                                                                                          \
    X(UINT8, "UInt8", 1)                                                                                                                             \
    X(UINT16, "UInt16", 2)                                                                                                                           \
    X(UINT32, "UInt32", 4)                                                                                                                           \
    X(UINT64, "UInt64", 8)                                                                                                                           \
    X(UINT128, "UInt128", 16)                                                                                                                        \
    X(UINT256, "UInt256", 32)                                                                                                                        \
    X(FLOAT32, "Float32", 4)                                                                                                                         \
    X(FLOAT64, "Float64", 8)                                                                                                                         \
    X(DECIMAL, "Decimal", 0)           /* by its precision */                                                                                        \
    X(STRING, "String", 0)                                                                                                                           \
    X(FIXED_STRING, "FixedString", 0)  /* by its length */                                                                                           \
    X(DATE, "Date", 2)                                                                                                                               \
    X(DATE32, "Date32", 4)                                                                                                                           \
    X(DATETIME, "DateTime", 4)                                                                                                                       \
    X(DATETIME64, "DateTime64", 8)                                                                                                                   \
    X(TIME, "Time", 4)                                                                                                                               \
    X(TIME64, "Time64", 8)                                                                                                                           \
    X(UUID, "UUID", 16)                                                                                                                              \
    X(IPV4, "IPv4", 4)                                                                                                                               \
    X(IPV6, "IPv6", 16)                                                                                                                              \
    X(ENUM8, "Enum8", 1)                                                                                                                             \
    X(ENUM16, "Enum16", 2)                                                                                                                           \
    X(NULLABLE, "Nullable", 0)                                                                                                                       \
    X(LOW_CARDINALITY, "LowCardinality", 0)                                                                                                          \
    X(SIMPLE_AGGREGATE, "SimpleAggregateFunction", 0)                                                                                                \
    X(ARRAY, "Array", 0)                                                                                                                             \
    X(MAP, "Map", 0)                                                                                                                                 \
    X(TUPLE, "Tuple", 0)                                                                                                                             \
    X(NESTED, "Nested", 0)

enum tr_ch_kind {
#define X(kind, name, width) TR_CH_##kind,
    TR_CH_KIND_LIST(X)
#undef X
        TR_CH_KINDS_
};

struct tr_ch_member {
    struct tr_slice name; /* its bytes */
    struct tr_slice spelled; /* with the server's escapes, without quotes */
    int16_t value;
};

struct tr_ch_type {
    uint8_t kind;      /* enum tr_ch_kind */
    uint8_t precision; /* DECIMAL: digits */
    uint8_t scale;     /* DECIMAL, DATETIME64, TIME64: digits behind the point */
    uint8_t depth;     /* levels of Array, Map, Tuple and Nested, itself counted */
    bool nullable;     /* Nullable, also within LowCardinality and SimpleAggregateFunction */
    uint32_t width;    /* bytes of a value where all have the same; 0: String and what has inner types */
    uint32_t n;        /* inner types; ENUM8, ENUM16: members */
    const struct tr_ch_type *const *of;   /* inner types; MAP: key and value */
    const struct tr_slice *names;         /* TUPLE, NESTED: as the server spells them; NULL: none has a name */
    const struct tr_ch_member *members;   /* as given */
    const uint32_t *by_name;              /* indexes of members, by the bytes of their names */
    struct tr_slice parameter;            /* DATETIME, DATETIME64: the zone as spelled; SIMPLE_AGGREGATE: the function */
    struct tr_slice text;                 /* as parsed */
    const struct tr_ch_type *value;       /* what bytes are made of: without NULLABLE, LOW_CARDINALITY, SIMPLE_AGGREGATE; NESTED as ARRAY of TUPLE */
};

int tr_ch_type_parse(struct tr_slice text, struct tr_arena *arena, const struct tr_ch_type **ret, struct tr_err *err);

/* Appends the server's spelling. plain: without LowCardinality and SimpleAggregateFunction, as Native blocks are sent. TR_OK or NOMEM. */
int tr_ch_type_print(const struct tr_ch_type *t, bool plain, struct tr_buf *out);

/* Is there such a member, and its value. */
bool tr_ch_type_member(const struct tr_ch_type *t, struct tr_slice name, int16_t *ret_value);

#endif
