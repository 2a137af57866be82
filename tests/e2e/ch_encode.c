/*
 * Encodes a table for a ClickHouse server: what tests/e2e/clickhouse_golden.py compares with the server's own bytes.
 *
 *   ch_encode rowbinary|named|native <TABLE >BYTES     named: RowBinaryWithNamesAndTypes
 *   ch_encode types <TYPES >TYPES                      parses and prints one type a line
 *
 * TABLE is in COPY's text format: a line "name type from element" a column (from and element: names of canonical types), an empty line, the rows.
 * A cell of "<default>" asks for the type's default.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chnative.h"
#include "copytext.h"
#include "rowbinary.h"

enum { COLUMNS_MAX = 64 };

static struct {
    struct tr_slice names[COLUMNS_MAX];
    const struct tr_ch_type *types[COLUMNS_MAX];
    struct tr_chnative_column columns[COLUMNS_MAX];
    uint32_t n;
    struct tr_arena arena;
    struct tr_buf out;
    struct tr_rowbinary rb;
    struct tr_chnative *block;
} table;

static _Noreturn void fail(const char *where, struct tr_slice what, const struct tr_err *err)
{
    fprintf(stderr, "%s %" TR_SLICE_FMT ": %s\n", where, TR_SLICE_ARG(what), err->msg);
    exit(1);
}

static uint8_t canonical(struct tr_slice name)
{
    for (uint8_t t = 0; t <= TR_TYPE_NETWORK; t++)
        if (tr_slice_eq_str(name, tr_type_name(t)))
            return t;
    fail("no canonical type", name, &(struct tr_err){0});
}

static const struct tr_ch_type *type_of(struct tr_slice text)
{
    const struct tr_ch_type *t;
    struct tr_err err;
    if (tr_ch_type_parse(text, &table.arena, &t, &err) < 0)
        fail("type", text, &err);
    return t;
}

static void print_type(struct tr_slice line)
{
    if (tr_ch_type_print(type_of(line), false, &table.out) < 0 || tr_buf_append_u8(&table.out, '\n') < 0)
        abort();
}

/* Values of a line in memory that lasts; scratch of the decoder too. */
static void decode(struct tr_slice line, uint32_t n, struct tr_slice *v, uint8_t *state)
{
    struct tr_err err;
    struct tr_slice kept = tr_arena_dup(&table.arena, line);
    uint8_t *scratch = tr_arena_alloc(&table.arena, line.n + 1);
    if (!kept.p || !scratch)
        abort();
    if (tr_copytext_decode(kept, n, scratch, v, state, &err) < 0)
        fail("line", line, &err);
}

static void add_column(struct tr_slice line)
{
    struct tr_slice v[4];
    uint8_t state[4];
    uint32_t i = table.n++;
    if (table.n > COLUMNS_MAX)
        abort();
    decode(line, 4, v, state);
    table.names[i] = v[0];
    table.types[i] = type_of(v[1]);
    table.columns[i] = (struct tr_chnative_column){v[0], table.types[i], {canonical(v[2]), canonical(v[3])}};
}

static void add_row(struct tr_slice line, bool native)
{
    struct tr_slice v[COLUMNS_MAX];
    uint8_t state[COLUMNS_MAX];
    struct tr_err err = {0};
    decode(line, table.n, v, state);
    for (uint32_t i = 0; i < table.n; i++) {
        const struct tr_slice *text = state[i] == TR_PRESENT ? &v[i] : NULL;
        bool is_default = text && tr_slice_eq_str(*text, "<default>");
        int rc;
        if (native)
            rc = is_default ? tr_chnative_default(table.block, i, &err) : tr_chnative_cell(table.block, i, text, &err);
        else
            rc = is_default ? tr_rowbinary_default(table.types[i], &table.out, &err) : tr_rowbinary_cell(&table.rb, table.types[i], table.columns[i].from, text, &table.out, &err);
        if (rc < 0)
            fail("column", table.names[i], &err);
    }
    if (native)
        tr_chnative_row(table.block);
}

static void begin(const char *format, bool native)
{
    struct tr_err err;
    int rc = TR_OK;
    if (native)
        rc = tr_chnative_new(table.columns, table.n, &table.block, &err);
    else if (strcmp(format, "named") == 0)
        rc = tr_rowbinary_header(table.names, table.types, table.n, &table.out, &err);
    if (rc < 0)
        fail("format", tr_slice_str(format), &err);
}

int main(int argc, char **argv)
{
    const char *format = argc == 2 ? argv[1] : "";
    bool types = strcmp(format, "types") == 0, native = strcmp(format, "native") == 0, rows = false;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (!types && !native && strcmp(format, "rowbinary") != 0 && strcmp(format, "named") != 0) {
        fprintf(stderr, "usage: ch_encode rowbinary|named|native|types\n");
        return 2;
    }
    tr_arena_init(&table.arena, 65536, 0);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct tr_slice s = tr_slice_of(line, (size_t)(n - (line[n - 1] == '\n')));
        if (types)
            print_type(s);
        else if (rows)
            add_row(s, native);
        else if (s.n)
            add_column(s);
        else {
            begin(format, native);
            rows = true;
        }
    }
    if (native && tr_chnative_finish(table.block, &table.out, NULL) < 0)
        abort();
    fwrite(table.out.p, 1, table.out.n, stdout);
    tr_chnative_free(table.block);
    tr_rowbinary_done(&table.rb);
    tr_buf_done(&table.out);
    tr_arena_done(&table.arena);
    free(line);
    return fflush(stdout) == 0 ? 0 : 1;
}
