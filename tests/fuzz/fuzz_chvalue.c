/* One value's text for one type: the first byte says which, the second whose text it is. Rows and blocks take and refuse the same, for the same reason. */
#include <tailrace/schema.h>

#include "chnative.h"
#include "fuzz.h"
#include "rowbinary.h"

static const char *const types[] = {
    "Bool", "Int8", "Int64", "Int128", "Int256", "UInt16", "UInt64", "UInt256", "Float32", "Float64", "Decimal(9, 4)", "Decimal(38, 10)", "Decimal(76, 38)", "String", "FixedString(5)", "Date", "Date32",
    "DateTime", "DateTime64(3)", "DateTime64(9)", "Time", "Time64(6)", "UUID", "IPv4", "IPv6", "Enum8('a' = 1, 'b\\'' = -2)", "Nullable(Int32)", "LowCardinality(Nullable(String))", "Array(Int32)",
    "Array(Nullable(String))", "Array(Array(Array(String)))", "Map(String, Nullable(Int8))", "Map(Int8, Map(String, Array(String)))", "Tuple(Int8, Nullable(String))", "Nested(a Int8, b Array(String))",
    "Array(Tuple(String, Array(Tuple(String, Map(String, String)))))",
};
enum { TYPES = sizeof types / sizeof types[0] };

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_err err = {0}, block_err = {0};
    struct tr_arena a;
    struct tr_buf row = {0}, block = {0};
    struct tr_rowbinary rb = {0};
    struct tr_chnative *b;
    const struct tr_ch_type *t;
    size_t rest;
    uint8_t *bytes = fuzz_rest(p, n, 2, &rest);
    struct tr_slice text = tr_slice_of(bytes, rest);
    struct tr_ch_from from = {n > 1 ? p[1] % 22 : 0, n > 1 ? p[1] / 22 : 0};
    tr_arena_init(&a, 4096, 0);
    FUZZ_MUST(tr_ch_type_parse(tr_slice_str(types[n ? p[0] % TYPES : 0]), &a, &t, NULL) == TR_OK);
    FUZZ_MUST(tr_chnative_new(&(struct tr_chnative_column){{NULL, 0}, t, from}, 1, &b, NULL) == TR_OK);
    FUZZ_MUST(tr_buf_append_str(&row, "before") == TR_OK);
    int rc = tr_rowbinary_cell(&rb, t, from, &text, &row, &err), block_rc = tr_chnative_cell(b, 0, &text, &block_err);
    FUZZ_MUST(rc == block_rc);
    if (fuzz_taken(rc, TR_REJECT, &err)) {
        size_t size = row.n - 6;
        FUZZ_MUST(!t->width || size == t->width + t->nullable);
        FUZZ_MUST(t->depth || tr_chnative_bytes(b) == size);
        tr_chnative_row(b);
        FUZZ_MUST(tr_chnative_finish(b, &block, NULL) == TR_OK);
        FUZZ_MUST(t->depth || memcmp(block.p + block.n - size, row.p + 6, size) == 0);
    } else {
        FUZZ_MUST(row.n == 6 && tr_chnative_bytes(b) == 0);
        FUZZ_MUST(strcmp(err.msg, block_err.msg) == 0 && strstr(err.msg, "a value does not fit ClickHouse type"));
    }
    FUZZ_MUST(row.n >= 6 && memcmp(row.p, "before", 6) == 0);
    tr_chnative_free(b);
    tr_rowbinary_done(&rb);
    tr_buf_done(&row);
    tr_buf_done(&block);
    tr_arena_done(&a);
    free(bytes);
    return 0;
}
