/* Encoding for ClickHouse: an event of ten columns from PostgreSQL's text, as RowBinary rows and as Native blocks, in turns; and each type alone. CPU time of one
 * thread. Prints JSON for bench.py. Usage: ch_bench */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tailrace/schema.h>

#include "chnative.h"
#include "prng.h"
#include "rowbinary.h"

enum { COLUMNS = 10, ROWS = 20000, TURNS = 15 };

static const struct {
    const char *name, *type;
    uint8_t from;
} event[COLUMNS] = {
    {"id", "UInt64", TR_TYPE_INT64},     {"at", "DateTime64(6)", TR_TYPE_TIMESTAMPTZ}, {"a", "Int32", TR_TYPE_INT32}, {"b", "Int32", TR_TYPE_INT32},  {"x", "Float64", TR_TYPE_FLOAT64},
    {"host", "String", TR_TYPE_TEXT}, {"path", "String", TR_TYPE_TEXT},             {"note", "String", TR_TYPE_TEXT}, {"key", "UUID", TR_TYPE_UUID}, {"parent", "Nullable(Int64)", TR_TYPE_INT64},
};

static struct tr_slice cells[ROWS][COLUMNS]; /* p NULL: NULL */
static struct tr_chnative_column columns[COLUMNS];
static struct tr_arena arena;

static void die(const char *what)
{
    fprintf(stderr, "ch_bench: %s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct tr_slice kept(const char *text)
{
    struct tr_slice s = tr_arena_dup(&arena, tr_slice_str(text));
    if (!s.p)
        die("no memory");
    return s;
}

static size_t make_rows(void)
{
    struct tr_prng r;
    char t[128];
    size_t bytes = 0;
    tr_prng_init(&r, 1);
    for (uint32_t i = 0; i < ROWS; i++) {
        uint64_t a = tr_prng_u64(&r), b = tr_prng_u64(&r);
        struct tr_slice *c = cells[i];
        snprintf(t, sizeof t, "%llu", 1000000000ull + i);
        c[0] = kept(t);
        snprintf(t, sizeof t, "2026-%02u-%02u %02u:%02u:%02u.%06u+00", (unsigned)(a % 12 + 1), (unsigned)(a / 12 % 28 + 1), (unsigned)(a / 1000 % 24), (unsigned)(b % 60), (unsigned)(b / 60 % 60), (unsigned)(b / 3600 % 1000000));
        c[1] = kept(t);
        snprintf(t, sizeof t, "%d", (int)(int32_t)a);
        c[2] = kept(t);
        snprintf(t, sizeof t, "%u", (unsigned)(b % 10000));
        c[3] = kept(t);
        snprintf(t, sizeof t, "%.17g", (double)(a >> 11) / 9007199254740992.0 * 1000);
        c[4] = kept(t);
        snprintf(t, sizeof t, "host-%u.example", (unsigned)(a % 1000));
        c[5] = kept(t);
        snprintf(t, sizeof t, "/api/v1/things/%llu/parts", (unsigned long long)(b % 100000000));
        c[6] = kept(t);
        snprintf(t, sizeof t, "%.*s", (int)(a % 48), "a note of some length that differs from row to row");
        c[7] = kept(t);
        snprintf(t, sizeof t, "%08x-%04x-%04x-%04x-%012llx", (unsigned)a, (unsigned)(a >> 32 & 0xffff), (unsigned)(a >> 48), (unsigned)(b & 0xffff), (unsigned long long)(b >> 16));
        c[8] = kept(t);
        snprintf(t, sizeof t, "%llu", (unsigned long long)(b >> 20));
        c[9] = a % 4 ? kept(t) : (struct tr_slice){NULL, 0};
        for (int k = 0; k < COLUMNS; k++)
            bytes += c[k].n;
    }
    return bytes;
}

static const struct tr_slice *cell(uint32_t row, uint32_t column)
{
    return cells[row][column].p ? &cells[row][column] : NULL;
}

static void rows(struct tr_rowbinary *rb, struct tr_buf *out, uint32_t from, uint32_t to)
{
    tr_buf_clear(out);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t k = from; k < to; k++)
            if (tr_rowbinary_cell(rb, columns[k].type, columns[k].from, cell(i, k), out, NULL) < 0)
                die("RowBinary");
}

static void block(struct tr_chnative *b, struct tr_buf *out, uint32_t from, uint32_t to)
{
    tr_buf_clear(out);
    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t k = from; k < to; k++)
            if (tr_chnative_cell(b, k - from, cell(i, k), NULL) < 0)
                die("Native");
        tr_chnative_row(b);
    }
    if (tr_chnative_finish(b, out, NULL) < 0)
        die("Native");
}

/* Best of the turns, in nanoseconds a row; the formats take turns. */
static void measure(uint32_t from, uint32_t to, double ret_ns[2], size_t ret_bytes[2])
{
    struct tr_rowbinary rb = {0};
    struct tr_chnative *b = NULL;
    struct tr_buf out = {0};
    if (tr_chnative_new(columns + from, to - from, &b, NULL) < 0)
        die("no memory");
    for (int turn = 0; turn < TURNS; turn++)
        for (int k = 0; k < 2; k++) {
            double t0 = now(), ns;
            if (k)
                block(b, &out, from, to);
            else
                rows(&rb, &out, from, to);
            ns = (now() - t0) * 1e9 / ROWS;
            ret_bytes[k] = out.n;
            if (!turn || ns < ret_ns[k])
                ret_ns[k] = ns;
        }
    tr_chnative_free(b);
    tr_rowbinary_done(&rb);
    tr_buf_done(&out);
}

int main(void)
{
    double ns[2];
    size_t bytes[2];
    tr_arena_init(&arena, 1 << 20, 0);
    for (uint32_t k = 0; k < COLUMNS; k++) {
        columns[k] = (struct tr_chnative_column){tr_slice_str(event[k].name), NULL, {event[k].from, TR_TYPE_OPAQUE}};
        if (tr_ch_type_parse(tr_slice_str(event[k].type), &arena, &columns[k].type, NULL) < 0)
            die("type");
    }
    size_t text = make_rows();
    measure(0, COLUMNS, ns, bytes);
    printf("{\"rows\": %d, \"text_bytes\": %zu, \"rowbinary\": {\"ns\": %.1f, \"bytes\": %zu}, \"native\": {\"ns\": %.1f, \"bytes\": %zu}, \"columns\": [", ROWS, text, ns[0], bytes[0], ns[1], bytes[1]);
    for (uint32_t k = 0; k < COLUMNS; k++) {
        measure(k, k + 1, ns, bytes);
        printf("%s{\"name\": \"%s\", \"type\": \"%s\", \"rowbinary_ns\": %.1f, \"native_ns\": %.1f}", k ? ", " : "", event[k].name, event[k].type, ns[0], ns[1]);
    }
    printf("]}\n");
    tr_arena_done(&arena);
    return 0;
}
