/*
 * append_bench.c: events of ten columns out of the test kit's source, through a typed chain, into ClickHouse: end to end but for a real source.
 *
 *     append_bench SQL                     the table, as a statement
 *     append_bench FILE ROWS               the same rows as RowBinary, for an INSERT … FORMAT of a ready-made file: the ceiling
 *     append_bench URL DATABASE ROWS       a run; prints rows, seconds and CPU-seconds as JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <tailrace/clickhouse.h>
#include <tailrace/clock.h>
#include <tailrace/connectors.h>
#include <tailrace/memory.h>
#include <tailrace/pipeline.h>

struct event {
    int64_t at_ms, price; /* price: four digits behind the point */
    uint64_t user;
    uint32_t session, took_ms;
    struct tr_slice country, url, agent, referrer;
    bool ok;
};

struct none {
    char unused;
};

TR_EMITTER(events, struct event);

static const struct tr_column columns[] = {
    TR_CH_COLUMN("at", "DateTime64(3)"), TR_CH_COLUMN("user", "UInt64"), TR_CH_COLUMN("session", "UInt32"), TR_CH_COLUMN("country", "LowCardinality(String)"), TR_CH_COLUMN("url", "String"),
    TR_CH_COLUMN("took_ms", "UInt32"), TR_CH_COLUMN("agent", "LowCardinality(String)"), TR_CH_COLUMN("ok", "Bool"), TR_CH_COLUMN("price", "Decimal(18, 4)"), TR_CH_COLUMN("referrer", "Nullable(String)"),
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* The nth event: what a decoder of a few comparisons would come to. */
static inline void make(int64_t n, struct event *e)
{
    static const char *const countries[] = {"AT", "DE", "FR", "US"}, *const agents[] = {"desktop/12.1", "mobile phone/3", "something else"};
    static const char urls[] = "/shop/articles/by-name/and-number/0123456789abcdef0123456789abcdef?session=no&page=17";
    uint64_t h = (uint64_t)n * UINT64_C(0x9E3779B97F4A7C15);
    *e = (struct event){.at_ms = 1700000000000 + n, .price = (int64_t)(h >> 44), .user = h >> 20, .session = (uint32_t)(h >> 32), .took_ms = (uint32_t)(h >> 52), .ok = h & 8};
    e->country = tr_slice_str(countries[h & 3]);
    e->agent = tr_slice_str(agents[(h >> 8) % 3]);
    e->url = tr_slice_of(urls, 20 + (h >> 16) % 60);
    e->referrer = h & 16 ? tr_slice_of(urls, (h >> 24) % 30) : (struct tr_slice){NULL, 0};
}

static inline int decode(struct none *u, const struct tr_payload *p, struct events_emitter *out, struct tr_err *err)
{
    struct event e;
    (void)u;
    (void)err;
    make(p->position, &e);
    return events_emit(out, &e);
}

static inline bool is_wanted(struct none *u, const struct event *e)
{
    (void)u;
    return e->user != 0;
}

static inline int row(struct none *u, const struct event *e, struct tr_buf *out, struct tr_err *err)
{
    (void)u;
    (void)err;
    int rc = tr_rb_i64(out, e->at_ms);
    rc |= tr_rb_u64(out, e->user);
    rc |= tr_rb_u32(out, e->session);
    rc |= tr_rb_string(out, e->country);
    rc |= tr_rb_string(out, e->url);
    rc |= tr_rb_u32(out, e->took_ms);
    rc |= tr_rb_string(out, e->agent);
    rc |= tr_rb_bool(out, e->ok);
    rc |= tr_rb_i64(out, e->price);
    rc |= tr_rb_null(out, !e->referrer.p);
    if (e->referrer.p)
        rc |= tr_rb_string(out, e->referrer);
    return rc ? TR_NOMEM : TR_OK;
}

TR_CHAIN(append, struct none, TR_DECODE(decode, events), TR_FILTER(is_wanted), TR_TO(TR_ENCODED(row)));

static int chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return append_new(def, arg, ret_ops, ret_chain, err);
}

static int statement(void)
{
    printf("CREATE TABLE events (");
    for (int i = 0; i < N_COLUMNS; i++)
        printf("%s%s %s", i ? ", " : "", columns[i].name, columns[i].source_type);
    printf(") ENGINE = MergeTree ORDER BY (user, at) SETTINGS non_replicated_deduplication_window = 1000\n");
    return 0;
}

static int file(const char *path, int64_t rows)
{
    FILE *f = fopen(path, "w");
    struct tr_buf b = {0};
    struct event e;
    bool ok = f;
    for (int64_t i = 1; i <= rows && ok; i++) {
        make(i, &e);
        ok = row(NULL, &e, &b, NULL) >= 0;
        if (ok && (b.n > 1 << 20 || i == rows)) {
            ok = fwrite(b.p, 1, b.n, f) == b.n;
            tr_buf_clear(&b);
        }
    }
    ok = f && fclose(f) == 0 && ok;
    tr_buf_done(&b);
    if (!ok)
        perror(path);
    return !ok;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int run(const char *url, const char *database, int64_t rows)
{
    const struct tr_schema_def table = {.table_id = 1, .version = 1, .ns = "bench", .name = "events", .no_key_reason = "rows are appended", .columns = columns, .n_columns = N_COLUMNS};
    char config[1000];
    struct none none = {0};
    struct tr_schema *schema = NULL;
    struct tr_mem_source *m = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_running *r = NULL;
    struct tr_err err = {0};
    snprintf(config, sizeof config, "{admin: {listen: off}, logging: {level: error}, sinks: [{name: ch, urls: '%s', database: '%s'}]}", url, database);
    int rc = tr_mem_source_new(&m);
    if (rc >= 0)
        rc = tr_mem_generate(m, 0, (uint64_t)rows, 8, 0);
    if (rc >= 0)
        rc = tr_mem_assign(m, 0, 1, 0);
    if (rc < 0)
        return 1;
    tr_mem_eof(m, 0);
    tr_mem_end(m);
    struct tr_source *source = tr_mem_source_spi(m);
    rc = tr_schema_new(&table, &schema, &err);
    if (rc >= 0)
        rc = tr_pipeline_parse("bench", config, "append_bench", &p, &err);
    if (rc >= 0)
        rc = tr_pipeline_sink(p, &(struct tr_output){.name = "ch", .type = &tr_clickhouse_sink_type, .table = schema, .variant = TR_TARGET_APPEND}, &err);
    int64_t from = tr_now_ns();
    double cpu = cpu_seconds();
    if (rc >= 0)
        rc = tr_pipeline_start(&p, &source, chain_new, &none, &r, &err);
    if (rc < 0) {
        fprintf(stderr, "append_bench: %s\n", err.msg);
        return 1;
    }
    tr_running_join(r, INT64_MAX);
    double seconds = (double)(tr_now_ns() - from) / 1e9;
    struct tr_runtime_status st;
    tr_running_status(r, &st);
    printf("{\"rows\": %llu, \"bytes\": %llu, \"batches\": %llu, \"seconds\": %.4f, \"cpu_seconds\": %.4f}\n", (unsigned long long)st.rows_out, (unsigned long long)st.bytes_out, (unsigned long long)st.batches, seconds, cpu_seconds() - cpu);
    tr_running_free(r);
    tr_schema_unref(schema);
    return st.state != TR_RT_STOPPED;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return statement();
    if (argc == 3)
        return file(argv[1], atoll(argv[2]));
    if (argc == 4)
        return run(argv[1], argv[2], atoll(argv[3]));
    fprintf(stderr, "usage: append_bench SQL | FILE ROWS | URL DATABASE ROWS\n");
    return 2;
}
