/*
 * schema.h: what a table looks like at one moment of its history.
 *
 * A tr_schema is immutable, reference counted and versioned. Row images, changes and log frames name it by
 * (table_id, version); the definition itself travels in band in the change log, so that a frame can be read for ever
 * without asking the source again.
 *
 * Ownership: tr_schema_ref/unref from any thread (the count is atomic); everything a schema points to lives inside one
 * allocation and dies with it. Strings are UTF-8 and NUL terminated.
 *
 * table_id is ours: dense, given once per (source, namespace, name) by the control store and never reused. version
 * starts at 1 and grows by one for each definition of that table that capture saw.
 */
#ifndef TAILRACE_SCHEMA_H
#define TAILRACE_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>
#include <tailrace/slice.h>

/* Canonical types. A value is always carried as the source's own text (for PostgreSQL: the output of the type's output
 * function under our pinned settings); the canonical type says how a sink may interpret that text. The numbers are a
 * persisted format: append only. */
#define TR_TYPE_LIST(X)                                                                                                \
    X(OPAQUE, 0, "opaque")   /* text whose meaning we do not know: extension types, composites, geometric */           \
    X(BOOL, 1, "bool")       /* "t" / "f" */                                                                           \
    X(INT16, 2, "int16")                                                                                               \
    X(INT32, 3, "int32")                                                                                               \
    X(INT64, 4, "int64")                                                                                               \
    X(FLOAT32, 5, "float32") /* shortest round-trip text; "NaN", "Infinity", "-Infinity" */                            \
    X(FLOAT64, 6, "float64")                                                                                           \
    X(DECIMAL, 7, "decimal") /* any precision; "NaN", "Infinity", "-Infinity" */                                       \
    X(TEXT, 8, "text")                                                                                                 \
    X(BYTES, 9, "bytes")     /* "\x" and lower-case hex */                                                             \
    X(DATE, 10, "date")      /* ISO; may be "infinity", "-infinity" or end in " BC" */                                 \
    X(TIME, 11, "time")                                                                                                \
    X(TIMETZ, 12, "timetz")                                                                                            \
    X(TIMESTAMP, 13, "timestamp")                                                                                      \
    X(TIMESTAMPTZ, 14, "timestamptz") /* always printed in UTC: "+00" */                                               \
    X(INTERVAL, 15, "interval")       /* IntervalStyle postgres */                                                     \
    X(UUID, 16, "uuid")                                                                                                \
    X(JSON, 17, "json")                                                                                                \
    X(ENUM, 18, "enum")                                                                                                \
    X(ARRAY, 19, "array")                                                                                              \
    X(RANGE, 20, "range")                                                                                              \
    X(NETWORK, 21, "network")

enum tr_type {
#define X(name, num, text) TR_TYPE_##name = num,
    TR_TYPE_LIST(X)
#undef X
};

#define TR_COLUMNS_MAX 1664 /* PostgreSQL's MaxTupleAttributeNumber */

struct tr_column {
    const char *name;
    const char *source_type;  /* as the source spells it with its modifiers, e.g. "numeric(10,2)", "public.mood" */
    const char *fill_default; /* text of a constant default that existing rows took on when the column was added
                                 (pg_attribute.attmissingval); NULL: existing rows hold NULL */
    uint8_t type;             /* enum tr_type */
    bool not_null;
    bool has_default;         /* rows that existed when it was added may hold values that fill_default does not tell (a volatile default) */
    bool generated;           /* computed by the source; a sink stores the value it is sent */
    uint16_t key_pos;         /* 1-based position in the key; 0: not a key column */
    int32_t precision;        /* DECIMAL digits, -1 unknown */
    int32_t scale;
    uint32_t source_type_id;  /* the source's own number for the type (PostgreSQL oid); 0 unknown */
    int16_t source_pos;       /* the source's own number for the column (attnum): tells a rename from a drop and add */
};

struct tr_schema {
    uint32_t table_id;
    uint32_t version;
    const char *ns;   /* schema in PostgreSQL's sense */
    const char *name;
    uint32_t n_columns;
    uint32_t n_key;                  /* 0: the table has no usable key; it gets a changelog only */
    const struct tr_column *columns;
    const uint16_t *key;             /* n_key column indexes in key order */
    const char *no_key_reason;       /* why n_key is 0, in words for a human; "" otherwise */
    bool full_identity;              /* before images are complete (REPLICA IDENTITY FULL) */
    uint64_t fingerprint;            /* over all of the definition but its numbers: equal means the same bytes */
    uint32_t source_id;              /* the source's own number for the table (PostgreSQL oid), where the source gave the definition; 0 unknown.
                                        Whose definition it is, not part of it: neither in the fingerprint nor in the persisted form */
    _Atomic(uint32_t) refs;
};

/* Description from which a schema is built; all pointers are borrowed for the call. */
struct tr_schema_def {
    uint32_t table_id, version;
    const char *ns, *name, *no_key_reason;
    const struct tr_column *columns;
    uint32_t n_columns;
    bool full_identity;
    uint32_t source_id;
};

/* Errors: REJECT for a definition that breaks a rule above (names the column), NOMEM. */
int tr_schema_new(const struct tr_schema_def *def, struct tr_schema **ret, struct tr_err *err);
struct tr_schema *tr_schema_ref(const struct tr_schema *s);
struct tr_schema *tr_schema_unref(const struct tr_schema *s); /* always NULL */

/* A copy of s under another (table_id, version). */
int tr_schema_renumber(const struct tr_schema *s, uint32_t table_id, uint32_t version, struct tr_schema **ret, struct tr_err *err);

int tr_schema_find(const struct tr_schema *s, struct tr_slice name); /* column index or -1 */

/* The persisted form (docs/formats/schema.md), used by SCHEMA frames and by the control store. decode checks everything
 * and answers REJECT for bytes it cannot trust. */
int tr_schema_encode(const struct tr_schema *s, struct tr_buf *out);
int tr_schema_decode(struct tr_slice bytes, struct tr_schema **ret, struct tr_err *err);

const char *tr_type_name(uint8_t type);

#endif
