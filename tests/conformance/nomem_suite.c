/* No memory: definitions, codecs, configuration, the builder, DDL, change log, control stores and the decoder of the replication stream (nomem_kit.h). Threads: nomem_threads.c. */
#include "nomem_kit.h"

#include <malloc.h>
#include <sqlite3.h>
#include <unistd.h>

#include <tailrace/connectors.h>
#include <tailrace/pipeline.h>

#include "changelog_kit.h"
#include "check.h"
#include "config.h"
#include "control_memory.h"
#include "control_sqlite.h"
#include "copytext.h"
#include "ddl.h"
#include "chnative.h"
#include "frame.h"
#include "fs.h"
#include "key.h"
#include "log.h"
#include "pg_beat.h"
#include "pg_stream_internal.h"
#include "rowbinary.h"
#include "rowimage.h"

#define WITH(expr)             \
    do {                       \
        if (rc >= 0)           \
            rc = (expr);       \
    } while (0)

/* For what has no error of its own to fill. */
static int bare(int rc, struct tr_err *err)
{
    return rc < 0 ? tr_err_set(err, rc, TR_DOM_CODEC, "no memory") : rc;
}

static const struct tr_column columns[] = {
    {.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .not_null = true, .source_pos = 1, .precision = -1},
    {.name = "n", .source_type = "numeric(12,4)", .type = TR_TYPE_DECIMAL, .source_pos = 2, .precision = 12, .scale = 4},
    {.name = "v", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 3, .precision = -1, .fill_default = "x"},
};

static int schema_of(uint32_t version, uint32_t n, struct tr_schema **ret, struct tr_err *err)
{
    struct tr_schema_def d = {.table_id = 1, .version = version, .ns = "public", .name = "t", .no_key_reason = "", .columns = columns, .n_columns = n};
    return tr_schema_new(&d, ret, err);
}

/* ---- definitions and codecs ---- */

static int codecs(void *arg, struct tr_err *err)
{
    static const uint8_t state[] = {TR_PRESENT, TR_NULL, TR_PRESENT};
    static const struct tr_slice v[] = {TR_SLICE_LIT("1"), {NULL, 0}, TR_SLICE_LIT("a\tb")};
    const struct tr_row row = {v, state, 3};
    struct tr_schema *s = NULL, *t = NULL, *u = NULL;
    struct tr_buf def = {0}, frame = {0}, key = {0}, copy = {0}, image = {0};
    (void)arg;
    int rc = schema_of(1, 3, &s, err);
    WITH(bare(tr_schema_encode(s, &def), err));
    WITH(tr_schema_decode(tr_buf_slice(&def), &t, err));
    WITH(tr_schema_renumber(s, 2, 3, &u, err));
    WITH(tr_key_encode(s, &row, &key, err));
    WITH(bare(tr_rowimage_encode(&row, &image), err));
    WITH(bare(tr_copytext_append(&copy, v[2]), err));
    size_t before = frame.n;
    WITH(tr_frame_encode_schema(s, 1, TR_FRAME_ORDINARY, &frame, err));
    struct tr_change c = {.op = TR_OP_INSERT, .epoch = 1, .schema = s, .version = 7, .key = tr_buf_slice(&key), .after = row};
    if (rc >= 0) {
        before = frame.n;
        rc = tr_frame_encode(&c, &frame, err);
    }
    if (rc < 0)
        assert_int_equal(frame.n, before); /* nothing of what failed is left in it */
    struct tr_frame_body body;
    if (rc >= 0) {
        assert_int_equal(tr_frame_decode(tr_slice_sub(tr_buf_slice(&frame), before, frame.n), &body, NULL), TR_OK);
        assert_true(tr_slice_eq(body.image, tr_buf_slice(&image)));
        assert_int_equal(t->fingerprint, s->fingerprint);
        assert_int_equal(u->version, 3);
    }
    tr_schema_unref(s);
    tr_schema_unref(t);
    tr_schema_unref(u);
    tr_buf_done(&def);
    tr_buf_done(&frame);
    tr_buf_done(&key);
    tr_buf_done(&copy);
    tr_buf_done(&image);
    return rc;
}

/* Two blocks and rows; the second turn finds everything warm. */
static int clickhouse(void *arg, struct tr_err *err)
{
    static const char *const types[] = {"Nullable(Enum8('a' = 1, 'b' = 2))", "Map(String, Array(Int8))", "Tuple(a String, b SimpleAggregateFunction(sum, Decimal(38, 2)))"};
    static const struct tr_slice v[] = {TR_SLICE_LIT("b"), TR_SLICE_LIT("\"k\"=>\"{1,2}\", \"l\"=>\"{}\""), TR_SLICE_LIT("(\"x \"\"y\",1.5)")};
    struct tr_chnative_column cols[3] = {{.name = TR_SLICE_LIT("c")}};
    struct tr_chnative *b = NULL;
    struct tr_rowbinary rb = {0};
    struct tr_buf block = {0}, row = {0};
    struct tr_arena arena;
    (void)arg;
    tr_arena_init(&arena, 64, 0);
    int rc = TR_OK;
    for (int i = 0; i < 3; i++)
        WITH(tr_ch_type_parse(tr_slice_str(types[i]), &arena, &cols[i].type, err));
    WITH(tr_chnative_new(cols, 3, &b, err));
    const struct tr_ch_type *const all[] = {cols[0].type, cols[1].type, cols[2].type};
    const struct tr_slice names[3] = {cols[0].name};
    WITH(tr_rowbinary_header(names, all, 3, &row, err));
    for (int turn = 0; turn < 2 && rc >= 0; turn++) {
        tr_buf_clear(&block);
        for (int i = 0; i < 6 && rc >= 0; i++) {
            size_t n = tr_chnative_bytes(b);
            for (uint32_t k = 0; k < 3; k++) {
                WITH(i % 3 == 1 ? tr_chnative_default(b, k, err) : tr_chnative_cell(b, k, i % 3 == 2 && k == 0 ? NULL : &v[k], err));
                size_t before = row.n;
                WITH(i % 3 == 1 ? tr_rowbinary_default(cols[k].type, &row, err) : tr_rowbinary_cell(&rb, cols[k].type, cols[k].from, &v[k], &row, err));
                assert_true(rc >= 0 || row.n == before);
            }
            if (rc >= 0) {
                tr_chnative_row(b);
            } else {
                tr_chnative_drop(b);
                assert_int_equal(tr_chnative_bytes(b), n);
            }
        }
        WITH(tr_chnative_finish(b, &block, err));
    }
    if (rc >= 0)
        assert_int_equal(tr_chnative_rows(b), 0);
    tr_chnative_free(b);
    tr_rowbinary_done(&rb);
    tr_buf_done(&block);
    tr_buf_done(&row);
    tr_arena_done(&arena);
    return rc;
}

/* ---- configuration ---- */

static const struct tr_source_type *const sources[] = {&tr_postgres_source_type};
static const struct tr_sink_type *const sinks[] = {&tr_sqlite_sink_type, &tr_postgres_sink_type};
static const struct tr_registry registry = {sources, TR_ARRAY_LEN(sources), sinks, TR_ARRAY_LEN(sinks)};

static int configuration(void *arg, struct tr_err *err)
{
    static const char text[] = "source:\n  dsn: postgresql://u@h/${NO_SUCH_NAME:-db}\n  tables: ['public.*', 'a.b']\n"
                               "sinks:\n  - {name: one, type: sqlite, path: x.db}\n  - name: two\n    type: postgres\n    dsn: postgresql://u@h/m\n    tables: [public.t]\n"
                               "engine: {heartbeat: 2s}\nlogging: {format: json}\n";
    struct tr_config *c = NULL;
    struct tr_buf out = {0};
    (void)arg;
    int rc = tr_config_parse(text, "t.yaml", &registry, TR_CONFIG_TO_RUN, &c, err);
    if (rc >= 0) {
        assert_int_equal(c->n_sinks, 2);
        assert_string_equal(((struct tr_pg_source_options *)c->source_options)->dsn, "postgresql://u@h/db");
    }
    for (int form = TR_CONFIG_TEXT; form <= TR_CONFIG_SCHEMA; form++)
        WITH(bare(tr_config_document(&registry, (enum tr_config_doc)form, &out), err));
    tr_buf_done(&out);
    tr_config_free(c);
    return rc;
}

/* ---- the builder of C programs, up to its start (nomem_threads.c has what runs) ---- */

static void source_close(struct tr_source *s, int64_t deadline_ns)
{
    (void)deadline_ns;
    free(s);
}

static const struct tr_source_ops source_ops = {.close = source_close};

static int source_new(const void *unused, const struct tr_component_env *env, struct tr_source **ret, struct tr_err *err)
{
    (void)unused;
    (void)env;
    (void)err;
    *ret = malloc(sizeof **ret);
    assert_non_null(*ret);
    (*ret)->ops = &source_ops;
    return TR_OK;
}

static const struct tr_source_type source_type = {.abi = TR_COMPONENT_ABI, .name = "none", .help = "", .options_size = 8, .source_new = source_new};

static int builder(void *arg, struct tr_err *err)
{
    static const struct tr_field fields[] = {{.name = "words", .type = TR_F_LIST, .offset = 0, .help = "Words."}};
    struct tr_strv words = {0};
    struct tr_pipeline *p = NULL;
    struct tr_source *source = NULL;
    int rc = tr_pipeline_parse("shop", "shop: {words: [a, b]}\nsinks: [{name: a, path: x.db}, {name: b, path: y.db}]\n", "shop.yaml", &p, err);
    if (rc >= 0)
        rc = tr_pipeline_section(p, "shop", fields, 1, &words, err);
    if (rc >= 0)
        rc = tr_pipeline_sink(p, &(struct tr_output){.name = "a", .type = &tr_sqlite_sink_type, .table = arg}, err);
    if (rc >= 0)
        rc = tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .type = &tr_sqlite_sink_type, .table = arg}, err);
    if (rc >= 0)
        rc = tr_pipeline_source(p, &source_type, &source, err);
    if (rc >= 0)
        assert_int_equal(words.n, 2);
    if (source)
        source->ops->close(source, 0);
    tr_pipeline_free(p);
    return rc;
}

/* ---- DDL ---- */

static int fitted(enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *old, const struct tr_schema *new_, struct tr_err *err)
{
    struct tr_want w = {0}, w2 = {0};
    struct tr_table_desc none = {0}, have = {0}, build = {0};
    struct tr_plan p = {0}, p2 = {0}, p3 = {0};
    struct tr_buf positions = {0};
    int rc = tr_want_new(d, kind, old, d == TR_DIALECT_SQLITE ? "" : "m", "t", &w, err);
    WITH(tr_reconcile(&w, &none, &p, err));
    WITH(bare(tr_positions_put(&w, &positions), err));
    have.exists = have.ours = build.exists = build.ours = true;
    for (uint32_t i = 0; i < w.n && rc >= 0; i++) {
        rc = bare(tr_desc_add(&have, w.columns[i].name, w.columns[i].type, w.columns[i].key_pos != 0, w.columns[i].key_pos), err);
        WITH(bare(tr_desc_add(&build, w.columns[i].name, w.columns[i].type, w.columns[i].key_pos != 0, w.columns[i].key_pos), err));
    }
    if (rc >= 0) {
        have.note.schema_version = 1;
        rc = bare(tr_positions_get(tr_buf_cstr(&positions) ? (const char *)positions.p : "", &have), err);
    }
    WITH(tr_want_new(d, kind, new_, d == TR_DIALECT_SQLITE ? "" : "m", "t", &w2, err));
    WITH(tr_reconcile(&w2, &have, &p2, err));
    if (kind != TR_TABLE_LOG) {
        WITH(tr_plan_view(&w, &p3, err));
        WITH(tr_plan_swap(&w, &have, "t__tr_build", &build, &p3, err));
    }
    WITH(tr_plan_drop(d, "", "t", &p3, err));
    if (rc >= 0)
        assert_true(p.n > 0 && !p.refused && !p3.refused);
    tr_want_done(&w);
    tr_want_done(&w2);
    tr_table_desc_done(&none);
    tr_table_desc_done(&have);
    tr_table_desc_done(&build);
    tr_plan_done(&p);
    tr_plan_done(&p2);
    tr_plan_done(&p3);
    tr_buf_done(&positions);
    return rc;
}

static int ddl(void *arg, struct tr_err *err)
{
    struct tr_schema *old = NULL, *new_ = NULL;
    (void)arg;
    int rc = schema_of(1, 2, &old, err);
    WITH(schema_of(2, 3, &new_, err));
    for (int d = TR_DIALECT_SQLITE; d <= TR_DIALECT_CLICKHOUSE; d++)
        for (int kind = TR_TABLE_MIRROR_SOFT; kind <= TR_TABLE_LOG; kind++)
            WITH(fitted((enum tr_dialect)d, (enum tr_table_kind)kind, old, new_, err));
    tr_schema_unref(old);
    tr_schema_unref(new_);
    return rc;
}

/* ---- the change log ---- */

struct log_bed {
    char dir[64], log[80];
    struct tr_buf first, next; /* three frames (the definition, a row, its commit), then two */
    uint64_t durable;
};

static struct tr_log_options log_options(const struct log_bed *b)
{
    struct tr_log_options o;
    tr_log_options_init(&o);
    o.dir = b->log;
    o.segment_bytes = TR_LOG_SEGMENT_BYTES_MIN;
    o.retention_us = 1;
    o.sync_thread = false;
    return o;
}

static void make_runs(struct log_bed *b)
{
    static const uint8_t junk[1500], state[] = {TR_PRESENT, TR_NULL, TR_PRESENT};
    const struct tr_slice v[] = {TR_SLICE_LIT("1"), {NULL, 0}, {junk, sizeof junk}};
    struct tr_schema *s = NULL;
    assert_int_equal(schema_of(1, 3, &s, NULL), TR_OK);
    struct tr_change c = {.op = TR_OP_INSERT, .epoch = 1, .schema = s, .version = 1, .after = {v, state, 3}}, end = {.op = TR_OP_COMMIT, .epoch = 1, .commit_lsn = 9};
    assert_int_equal(tr_frame_encode_schema(s, 1, TR_FRAME_ORDINARY, &b->first, NULL), TR_OK);
    for (int i = 0; i < 2; i++) {
        struct tr_buf *to = i ? &b->next : &b->first;
        assert_int_equal(tr_frame_encode(&c, to, NULL), TR_OK);
        assert_int_equal(tr_frame_encode(&end, to, NULL), TR_OK);
    }
    tr_schema_unref(s);
}

/* Offsets are dense from the oldest on; returns the one behind the last. */
static int read_through(struct tr_log *l, uint64_t *ret_end, struct tr_err *err)
{
    struct tr_log_stats st;
    struct tr_log_reader *r = NULL;
    struct tr_frame v[4];
    int n = l->ops->stats(l, 0, &st, err);
    if (n < 0 || (n = l->ops->reader_new(l, 0, st.first_offset, &r, err)) < 0)
        return n;
    *ret_end = st.first_offset;
    while ((n = tr_log_reader_poll(r, v, 4, err)) > 0)
        for (int i = 0; i < n; i++, ++*ret_end) {
            assert_int_equal(v[i].offset, *ret_end);
            assert_true(!v[i].table_id || v[i].change.schema);
        }
    r->ops->free(r);
    return n == TR_AGAIN ? TR_OK : n;
}

static void log_before(void *arg)
{
    struct log_bed *b = arg;
    kit_remove_tree(tr_fs_posix(), b->log);
    b->durable = 0;
}

static int log_run(void *arg, struct tr_err *err)
{
    struct log_bed *b = arg;
    struct tr_log_options o = log_options(b);
    struct tr_log_run first = {tr_buf_slice(&b->first), 3}, next = {tr_buf_slice(&b->next), 2};
    struct tr_log *l = NULL;
    uint64_t end = 0, at = 0;
    int rc = tr_log_embedded_open(&o, &l, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < 20 && rc >= 0; i++) {
        rc = tr_log_append(l, 0, i ? &next : &first, 1, &end, err);
        if (rc >= 0 && i % 3 == 0 && (rc = tr_log_embedded_sync(l, err)) >= 0)
            b->durable = end;
        if (rc >= 0 && i == 10)
            rc = read_through(l, &at, err);
    }
    WITH(l->ops->pin(l, "x", 0, 8, err));
    WITH(l->ops->retain(l, INT64_MAX / 2, err));
    WITH(l->ops->cut(l, 0, err));
    tr_log_embedded_abandon(l);
    if (rc < 0)
        return rc;
    /* recovery, with many segments */
    rc = tr_log_embedded_open(&o, &l, err);
    if (rc < 0)
        return rc;
    rc = read_through(l, &at, err);
    if (rc >= 0)
        assert_int_equal(at, end);
    l->ops->close(l);
    return rc;
}

/* Whatever failed: what was durable is there, and the log goes on. */
static void log_after(void *arg, int rc, const struct tr_err *err)
{
    struct log_bed *b = arg;
    struct tr_log_options o = log_options(b);
    uint64_t end = 0, next = 0;
    struct tr_log *l = NULL;
    struct tr_err later = {0};
    if (tr_log_embedded_open(&o, &l, &later) < 0 || read_through(l, &end, &later) < 0)
        fail_msg("after %d '%s': %s", rc, err->msg, later.msg);
    assert_true(end >= b->durable);
    struct tr_log_run run = {tr_buf_slice(end ? &b->next : &b->first), end ? 2 : 3};
    assert_int_equal(tr_log_append(l, 0, &run, 1, &next, &later), TR_OK);
    assert_int_equal(next, end + run.frames);
    l->ops->close(l);
}

/* ---- control stores ---- */

/* SQLite's own allocations fail like ours. */
static void *lite_malloc(int n)
{
    return tr_malloc((size_t)n);
}

static void *lite_realloc(void *p, int n)
{
    return tr_realloc(p, (size_t)n);
}

static int lite_size(void *p)
{
    return p ? (int)malloc_usable_size(p) : 0;
}

static int lite_round(int n)
{
    return (n + 7) & ~7;
}

static int lite_init(void *arg)
{
    (void)arg;
    return SQLITE_OK;
}

static void lite_shutdown(void *arg)
{
    (void)arg;
}

static const sqlite3_mem_methods lite_memory = {lite_malloc, free, lite_realloc, lite_size, lite_round, lite_init, lite_shutdown, NULL};

struct control_bed {
    char dir[64], path[80]; /* path "": in memory */
};

static void see_table(void *arg, const struct tr_ctl_table *t)
{
    *(uint64_t *)arg += t->table_id == 1;
}

static void see_offset(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us)
{
    (void)partition;
    (void)at_us;
    if (!strcmp(sink, "s"))
        *(uint64_t *)arg = offset;
}

static void see_schema(void *arg, uint32_t version, uint64_t effective_lsn, struct tr_slice bytes)
{
    (void)effective_lsn;
    (void)bytes;
    *(uint64_t *)arg = version;
}

static void see_chunk(void *arg, const struct tr_ctl_chunk *k)
{
    *(uint64_t *)arg += k->rows;
}

static void see_sink_table(void *arg, const struct tr_ctl_sink_table *t)
{
    *(uint64_t *)arg += t->state == TR_ST_LIVE;
}

static void see_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    (void)a;
    ++*(uint64_t *)arg;
}

static void control_before(void *arg)
{
    struct control_bed *b = arg;
    char other[100];
    if (!*b->path)
        return;
    unlink(b->path);
    snprintf(other, sizeof other, "%s-wal", b->path);
    unlink(other);
    snprintf(other, sizeof other, "%s-shm", b->path);
    unlink(other);
}

static int control_run(void *arg, struct tr_err *err)
{
    struct control_bed *b = arg;
    struct tr_control *c = NULL;
    struct tr_ctl_table t;
    struct tr_ctl_source src = {.system_id = "1", .timeline = 1, .slot = "s", .epoch = 1};
    struct tr_ctl_chunk chunk = {.table_id = 1, .snapshot_id = 5, .rows = 3, .lo = TR_SLICE_LIT(""), .hi = TR_SLICE_LIT("\x01" "9")};
    struct tr_ctl_sink_table st = {.table_id = 1, .state = TR_ST_LIVE};
    struct tr_ctl_offset at = {.sink = "s", .offset = 17, .tables = &st, .n_tables = 1};
    char kind[32], scope[64], table[160];
    uint64_t token = 0, tables = 0, offset = 0, versions = 0, rows = 0, live = 0, alarms = 0, id = 0;
    uint32_t version = 0;
    int rc = *b->path ? tr_control_sqlite_open(b->path, &c, err) : tr_control_memory_new(&c, err);
    if (rc < 0)
        return rc;
    WITH(c->ops->lease_take(c, "l", "me", 60000, &token, err));
    c->ops->act_under(c, "l", token);
    WITH(c->ops->source_bind(c, "src", &src, err));
    WITH(c->ops->slot_put(c, "src", "slot", TR_SLOT_CREATED, err));
    WITH(c->ops->table_ensure(c, "src", "public", "t", &t, err));
    WITH(c->ops->table_put(c, &t, err));
    WITH(c->ops->snapshot_id_next(c, &id, err));
    WITH(c->ops->schema_put(c, 1, 1, tr_slice_str("one"), 5, &version, err));
    WITH(c->ops->schema_put(c, 1, 2, tr_slice_str("two"), 6, &version, err));
    WITH(c->ops->chunk_put(c, &chunk, err));
    WITH(c->ops->offset_commit(c, &at, err));
    WITH(c->ops->request_put(c, "me", "resume", "s", "public.t", err));
    WITH(c->ops->alarm_set(c, "lag", "s", "late", err));
    WITH(c->ops->table_list(c, "src", see_table, &tables, err));
    WITH(c->ops->schema_list(c, 1, see_schema, &versions, err));
    WITH(c->ops->chunk_list(c, 1, 5, see_chunk, &rows, err));
    WITH(c->ops->sink_table_list(c, "s", see_sink_table, &live, err));
    WITH(c->ops->sink_list(c, see_offset, &offset, err));
    WITH(c->ops->alarm_list(c, see_alarm, &alarms, err));
    WITH(c->ops->request_take(c, kind, scope, table, err));
    WITH(c->ops->chunk_clear(c, 1, 99, err));
    WITH(c->ops->alarm_clear(c, "lag", "s", err));
    WITH(c->ops->lease_release(c, "l", token, err));
    c->ops->close(c);
    if (rc >= 0)
        assert_true(tables == 1 && versions == 2 && rows == 3 && live == 1 && offset == 17 && alarms == 1);
    return rc;
}

/* What is kept in a file is whole or not there, and can be opened again. */
static void control_after(void *arg, int rc, const struct tr_err *err)
{
    struct control_bed *b = arg;
    struct tr_control *c = NULL;
    struct tr_err later = {0};
    uint64_t offset = 0, live = 0;
    (void)rc;
    if (!*b->path)
        return;
    if (tr_control_sqlite_open(b->path, &c, &later) < 0)
        fail_msg("after '%s': %s", err->msg, later.msg);
    assert_int_equal(c->ops->sink_list(c, see_offset, &offset, &later), TR_OK);
    assert_int_equal(c->ops->sink_table_list(c, "s", see_sink_table, &live, &later), TR_OK);
    assert_true((offset == 17) == (live == 1)); /* one transaction */
    c->ops->close(c);
}

/* ---- the replication stream ---- */

struct decode_bed {
    char dir[64];             /* of spill files */
    uint8_t *bytes;           /* an input of the fuzz target `decode`: messages behind their lengths */
    size_t n;
    uint64_t whole, got;      /* changes */
    struct pg_stream *s;
    uint64_t last_lsn;
};

static struct tr_pg_source_options options = {.slot = "main", .heartbeat_schema = "tailrace"};

static void stream_new(struct decode_bed *b)
{
    struct pg_stream *s = calloc(1, sizeof *s);
    assert_non_null(s);
    assert_int_equal(tr_pg_beat_schema(&options, &s->beat, NULL), TR_OK);
    s->o = &options;
    s->dec.proto = 4;
    tr_u64map_init(&s->rels);
    tr_pg_txbuf_init(&s->txbuf, b->dir, 256);
    tr_arena_init(&s->arena, 4 << 10, 0);
    b->s = s;
    b->got = b->last_lsn = 0;
}

static void stream_free(struct pg_stream *s)
{
    tr_pg_decode_done(s);
    free(s);
}

static int describe(struct pg_stream *s, struct tr_err *err)
{
    struct tr_column cols[32];
    struct tr_pg_msg m;
    assert_int_equal(tr_pgoutput_decode(&s->dec, s->item.msg, s->item.in_stream, &m, NULL), TR_OK);
    assert_true(m.type == 'R' && m.u.relation.n <= 32);
    for (uint16_t i = 0; i < m.u.relation.n; i++)
        cols[i] = (struct tr_column){.name = m.u.relation.cols[i].name, .source_type = "", .type = TR_TYPE_TEXT};
    struct tr_schema_def d = {.ns = m.u.relation.ns, .name = m.u.relation.name, .columns = cols, .n_columns = m.u.relation.n, .full_identity = m.u.relation.identity == 'f'};
    return tr_schema_new(&d, &s->described, err);
}

/* A poll that succeeded delivers; of one that failed in the midst nothing is (FATAL), or what was decoded before (else). */
static int deliver(struct decode_bed *b, int rc)
{
    if (rc != TR_FATAL)
        for (uint32_t i = 0; i < b->s->n; i++) {
            const struct tr_change *c = b->s->v[i].meta;
            assert_true(c->commit_lsn >= b->last_lsn);
            assert_true(c->op == TR_OP_COMMIT || c->schema);
            b->last_lsn = c->commit_lsn;
            b->got++;
        }
    int end = tr_pg_decode_release_output(b->s);
    return rc < 0 ? rc : end;
}

static int take(struct decode_bed *b, struct tr_err *err)
{
    struct pg_stream *s = b->s;
    int rc = tr_pg_decode_item(s, err);
    if (rc == TR_NOT_READY) {
        if (b->got % 3 == 0) { /* the poll ends while the catalog is asked */
            rc = deliver(b, TR_OK);
            if (rc < 0)
                return tr_err_set(err, rc, TR_DOM_SOURCE, "no memory");
        }
        rc = describe(s, err);
        WITH(tr_pg_decode_item(s, err));
    }
    return rc;
}

static int feed(struct decode_bed *b, struct tr_err *err)
{
    struct pg_stream *s = b->s;
    int rc = TR_OK;
    for (size_t at = 2; at + 2 <= b->n && rc >= 0;) {
        size_t n = (size_t)b->bytes[at] << 8 | b->bytes[at + 1];
        s->item = (struct pg_item){.msg = tr_slice_of(b->bytes + at + 2, n), .lsn = at, .set = true};
        at += 2 + n;
        rc = take(b, err);
        while (rc >= 0 && s->replay) {
            rc = tr_pg_decode_replay(s, err);
            if (rc == TR_EOF) {
                rc = TR_OK;
                break;
            }
            WITH(take(b, err));
        }
        if (rc < 0 || s->n > 5) {
            int end = deliver(b, rc);
            if (rc >= 0 && end < 0)
                tr_err_set(err, end, TR_DOM_SOURCE, "no memory");
            rc = end;
        }
    }
    return rc < 0 ? rc : deliver(b, TR_OK);
}

static void decode_before(void *arg)
{
    stream_new(arg);
}

static int decode_run(void *arg, struct tr_err *err)
{
    struct decode_bed *b = arg;
    int rc = feed(b, err);
    if (rc >= 0) {
        if (!b->whole)
            b->whole = b->got;
        assert_int_equal(b->got, b->whole);
    }
    return rc;
}

/* After FATAL the unit is started again, from the committed position; after anything else the same object connects anew, and the server sends all of it again. */
static void decode_after(void *arg, int rc, const struct tr_err *err)
{
    struct decode_bed *b = arg;
    struct tr_err later = {0};
    (void)err;
    if (rc == TR_FATAL) {
        stream_free(b->s);
        stream_new(b);
    } else {
        tr_pg_decode_reset(b->s);
    }
    if (rc < 0) {
        if (feed(b, &later) < 0)
            fail_msg("after '%s': %s", err->msg, later.msg);
        assert_int_equal(b->got, b->whole);
    }
    stream_free(b->s);
}

/* ---- */

static void test_codecs(void **state)
{
    (void)state;
    nomem_every(&(struct nomem_case){.what = "definitions and codecs", .run = codecs});
}

static void test_configuration(void **state)
{
    (void)state;
    nomem_every(&(struct nomem_case){.what = "configuration", .run = configuration});
}

static void test_builder(void **state)
{
    const struct tr_column id = {.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .not_null = true, .key_pos = 1, .precision = -1};
    const struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "x", .name = "t", .no_key_reason = "", .columns = &id, .n_columns = 1};
    struct tr_schema *s = NULL;
    (void)state;
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    nomem_every(&(struct nomem_case){.what = "builder", .arg = s, .run = builder});
    tr_schema_unref(s);
}

static void test_ddl(void **state)
{
    (void)state;
    nomem_every(&(struct nomem_case){.what = "DDL", .run = ddl});
}

static void test_log(void **state)
{
    struct log_bed b = {.dir = "/dev/shm/tr-nomem-XXXXXX"}; /* where syncs cost nothing */
    (void)state;
    assert_non_null(mkdtemp(b.dir));
    snprintf(b.log, sizeof b.log, "%s/log", b.dir);
    make_runs(&b);
    nomem_every(&(struct nomem_case){.what = "change log", .samples = 1600, .arg = &b, .before = log_before, .run = log_run, .after = log_after});
    kit_remove_tree(tr_fs_posix(), b.dir);
    tr_buf_done(&b.first);
    tr_buf_done(&b.next);
}

static void test_clickhouse(void **state)
{
    (void)state;
    nomem_every(&(struct nomem_case){.what = "ClickHouse's formats", .run = clickhouse});
}

static void test_control_memory(void **state)
{
    struct control_bed b = {0};
    (void)state;
    nomem_every(&(struct nomem_case){.what = "control store in memory", .arg = &b, .run = control_run});
}

static void test_control_sqlite(void **state)
{
    struct control_bed b = {.dir = "/dev/shm/tr-nomem-XXXXXX"};
    (void)state;
    assert_non_null(mkdtemp(b.dir));
    snprintf(b.path, sizeof b.path, "%s/control.db", b.dir);
    nomem_every(&(struct nomem_case){.what = "control store in SQLite", .samples = 300, .arg = &b, .before = control_before, .run = control_run, .after = control_after});
    control_before(&b);
    assert_int_equal(rmdir(b.dir), 0);
}

static const char *corpus;

static void test_decode(void **state)
{
    static const char *const names[] = {"plain15-0-0", "stream18-0-0"};
    (void)state;
    for (size_t i = 0; i < TR_ARRAY_LEN(names); i++) {
        struct decode_bed b = {.dir = "/dev/shm/tr-nomem-XXXXXX"};
        assert_non_null(mkdtemp(b.dir));
        char path[1024], *text = NULL;
        snprintf(path, sizeof path, "%s/%s", corpus, names[i]);
        assert_int_equal(tr_fs_read_file(tr_fs_posix(), path, 1 << 20, &text, &b.n, NULL), TR_OK);
        b.bytes = (uint8_t *)text;
        nomem_every(&(struct nomem_case){.what = names[i], .arg = &b, .before = decode_before, .run = decode_run, .after = decode_after});
        assert_true(b.whole > 20);
        free(text);
        assert_int_equal(rmdir(b.dir), 0);
    }
}

/* Its argument is the corpus of the fuzz target `decode`. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codecs),         cmocka_unit_test(test_configuration), cmocka_unit_test(test_ddl),    cmocka_unit_test(test_log),
        cmocka_unit_test(test_control_memory), cmocka_unit_test(test_control_sqlite), cmocka_unit_test(test_decode), cmocka_unit_test(test_clickhouse),
        cmocka_unit_test(test_builder),
    };
    corpus = argc > 1 ? argv[1] : ".";
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &lite_memory) != SQLITE_OK || sqlite3_initialize() != SQLITE_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
