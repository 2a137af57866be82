/*
 * apply_kit.h: apply over a real change log, the control store in memory and the memory sink, with a model of the one table that says what the mirror must hold in
 * the end and which changes the changelog must have. One thread calls it.
 */
#ifndef APPLY_KIT_H
#define APPLY_KIT_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>
#include <tailrace/oslog.h>

#include "apply.h"
#include "check.h"
#include "control_memory.h"
#include "frame.h"
#include "fs.h"
#include "key.h"
#include "log.h"
#include "prng.h"

#define MS TR_NS_PER_MS
#define SEC TR_NS_PER_S
enum { KEYS = 12, TABLE = 1, CHANGES_MAX = 200000 };

struct model_row {
    bool there;
    uint32_t n, big;
};

struct bed {
    char dir[64];
    struct tr_log *log;
    struct tr_control *control;
    struct tr_mem_sink *sink;
    struct tr_schema *schema;
    struct tr_apply_config cfg;
    struct tr_apply_run *run;
    struct tr_prng rnd;
    struct tr_buf frames;
    uint32_t n_frames;
    uint64_t next, lsn, version, snapshot_id;
    struct model_row rows[KEYS];
    struct {
        uint64_t version, offset;
    } changed[CHANGES_MAX];
    size_t n_changed;
    bool no_mirror;
    uint64_t lost_from, lost_to; /* offsets of changes that the changelog may lack */
};

static inline void mode(void *arg, const char *ns, const char *name, struct tr_apply_table_mode *ret)
{
    const struct bed *b = arg;
    (void)ns;
    (void)name;
    *ret = (struct tr_apply_table_mode){.mirror = !b->no_mirror, .changelog = true};
}

/* ---- the log ---- */

static inline void put(struct bed *b, const struct tr_change *c)
{
    assert_int_equal(tr_frame_encode(c, &b->frames, NULL), TR_OK);
    b->n_frames++;
}

static inline void append(struct bed *b)
{
    const struct tr_log_run run = {tr_buf_slice(&b->frames), b->n_frames};
    uint64_t durable = 0;
    assert_int_equal(tr_log_append(b->log, 0, &run, 1, &b->next, NULL), TR_OK);
    while (durable < b->next)
        assert_true(tr_log_durable(b->log, 0, b->next, 1000, &durable, NULL) >= 0);
    tr_buf_clear(&b->frames);
    b->n_frames = 0;
}

static inline void put_row(struct bed *b, uint8_t op, uint32_t k, bool unchanged, uint64_t version)
{
    char id[12], n[12], big[12];
    snprintf(id, sizeof id, "%u", k);
    snprintf(n, sizeof n, "%u", b->rows[k].n);
    snprintf(big, sizeof big, "%u", b->rows[k].big);
    const struct tr_slice v[] = {tr_slice_str(id), tr_slice_str(n), tr_slice_str(big)};
    const uint8_t whole[] = {TR_PRESENT, TR_PRESENT, TR_PRESENT}, part[] = {TR_PRESENT, TR_PRESENT, TR_UNCHANGED}, key_only[] = {TR_PRESENT, TR_ABSENT, TR_ABSENT};
    const struct tr_row row = {v, op == TR_OP_DELETE ? key_only : unchanged ? part : whole, 3};
    struct tr_change c = {.op = op, .epoch = 1, .schema = b->schema, .version = version, .flags = unchanged ? TR_CHG_UNCHANGED : 0, .change_lsn = b->lsn};
    struct tr_buf key = {0};
    assert_int_equal(tr_key_encode(b->schema, &row, &key, NULL), TR_OK);
    c.key = tr_buf_slice(&key);
    if (op == TR_OP_READ)
        c.snapshot_id = b->snapshot_id;
    if (op == TR_OP_DELETE)
        c.before = row;
    else
        c.after = row;
    put(b, &c);
    tr_buf_done(&key);
}

static inline void change(struct bed *b, uint32_t k)
{
    struct model_row *r = &b->rows[k];
    uint64_t dice = tr_prng_below(&b->rnd, 20);
    uint8_t op = !r->there ? TR_OP_INSERT : dice == 0 ? TR_OP_DELETE : TR_OP_UPDATE;
    bool unchanged = op == TR_OP_UPDATE && dice > 3; /* most of them, or the next whole row would soon heal what was lost */
    r->there = op != TR_OP_DELETE;
    r->n = (uint32_t)tr_prng_below(&b->rnd, 1000000);
    if (!unchanged)
        r->big = (uint32_t)tr_prng_below(&b->rnd, 1000000);
    put_row(b, op, k, unchanged, ++b->version);
    assert_true(b->n_changed < CHANGES_MAX);
    b->changed[b->n_changed].version = b->version;
    b->changed[b->n_changed++].offset = b->next + b->n_frames - 1;
}

/* A definition: the same columns under the next version, which the sink has to be asked about. */
static inline void define(struct bed *b)
{
    static const struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .not_null = true, .source_pos = 1, .precision = -1},
                                         {.name = "n", .source_type = "integer", .type = TR_TYPE_INT32, .source_pos = 2, .precision = -1},
                                         {.name = "big", .source_type = "text", .type = TR_TYPE_TEXT, .source_pos = 3, .precision = -1}};
    struct tr_schema_def d = {.table_id = TABLE, .version = b->schema ? b->schema->version + 1 : 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = 3};
    struct tr_buf bytes = {0};
    uint32_t version = 0;
    tr_schema_unref(b->schema);
    assert_int_equal(tr_schema_new(&d, &b->schema, NULL), TR_OK);
    assert_int_equal(tr_schema_encode(b->schema, &bytes), TR_OK);
    assert_true(b->control->ops->schema_put(b->control, TABLE, 1, tr_buf_slice(&bytes), d.version, &version, NULL) >= 0);
    assert_int_equal(version, d.version);
    tr_buf_done(&bytes);
    assert_int_equal(tr_frame_encode_schema(b->schema, 1, TR_FRAME_ORDINARY, &b->frames, NULL), TR_OK);
    b->n_frames++;
}

static inline void transaction(struct bed *b)
{
    if (tr_prng_chance(&b->rnd, 1, 12))
        define(b);
    for (uint64_t n = 1 + tr_prng_below(&b->rnd, 4); n; n--)
        change(b, (uint32_t)tr_prng_below(&b->rnd, KEYS));
    b->lsn += 10;
    put(b, &(struct tr_change){.op = TR_OP_COMMIT, .epoch = 1, .commit_lsn = b->lsn, .end_lsn = b->lsn + 8});
}

/* With changes among its rows, whose versions are above those of the rows. */
static inline void snapshot(struct bed *b)
{
    uint32_t left = KEYS;
    b->snapshot_id++;
    uint64_t version = ++b->version;
    struct model_row then[KEYS];
    memcpy(then, b->rows, sizeof then);
    put(b, &(struct tr_change){.op = TR_OP_SNAPSHOT_BEGIN, .epoch = 1, .schema = b->schema, .version = version, .snapshot_id = b->snapshot_id});
    while (left) {
        if (tr_prng_chance(&b->rnd, 1, 3)) {
            transaction(b);
            continue;
        }
        left--;
        struct model_row now = b->rows[left];
        b->rows[left] = then[left];
        if (then[left].there)
            put_row(b, TR_OP_READ, left, false, version);
        b->rows[left] = now;
    }
    put(b, &(struct tr_change){.op = TR_OP_SNAPSHOT_END, .epoch = 1, .schema = b->schema, .version = ++b->version, .snapshot_id = b->snapshot_id});
    append(b);
}

/* ---- the run ---- */

static inline void start(struct bed *b)
{
    struct tr_err err = {0};
    if (tr_apply_open(&b->cfg, &b->run, &err) < 0 || tr_apply_start(b->run, &err) < 0)
        fail_msg("%s", err.msg);
}

static inline void stop(struct bed *b, bool drain)
{
    if (drain) {
        tr_apply_stop(b->run);
        assert_true(tr_apply_join(b->run, tr_now_ns() + 30 * SEC));
    }
    b->run = tr_apply_free(b->run);
}

static inline void open_bed(struct bed *b, uint64_t seed)
{
    static const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE};
    struct tr_log_options o;
    struct tr_ctl_table ct;
    memset(b, 0, sizeof *b);
    tr_oslog_setup(getenv("TR_TEST_LOG") ? TR_OSLOG_DEBUG : TR_OSLOG_OFF, false, 2);
    tr_prng_init(&b->rnd, seed);
    snprintf(b->dir, sizeof b->dir, "/tmp/tr-apply-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    tr_log_options_init(&o);
    o.dir = b->dir;
    o.segment_bytes = 16 << 10;
    o.retention_us = 1;
    assert_int_equal(tr_log_embedded_open(&o, &b->log, NULL), TR_OK);
    assert_int_equal(tr_control_memory_new(&b->control, NULL), TR_OK);
    uint64_t token = 0;
    struct tr_ctl_source src = {.system_id = "1", .timeline = 1, .slot = "s", .epoch = 1};
    assert_int_equal(b->control->ops->lease_take(b->control, "l", "me", 600000, &token, NULL), TR_OK);
    b->control->ops->act_under(b->control, "l", token);
    assert_int_equal(b->control->ops->source_bind(b->control, "s", &src, NULL), TR_OK);
    assert_true(b->control->ops->table_ensure(b->control, "s", "public", "t", &ct, NULL) >= 0);
    assert_int_equal(ct.table_id, TABLE);
    assert_int_equal(tr_mem_sink_new(&def, &b->sink), TR_OK);
    define(b);
    b->version = b->lsn = 1000;
    b->cfg = (struct tr_apply_config){.name = "mem", .sink = tr_mem_sink_spi(b->sink), .log = b->log, .control = b->control, .mode = mode, .arg = b};
    tr_runtime_tuning_default(&b->cfg.pipeline);
    tr_sink_tuning_default(&b->cfg.tuning);
    /* little room and small batches: rows are on their way for long, and much is on its way when something happens */
    b->cfg.pipeline.commit_interval_ns = (int64_t)(1 + tr_prng_below(&b->rnd, 30)) * MS;
    b->cfg.pipeline.poll_max = 64;
    b->cfg.pipeline.max_inflight_bytes = 512 << 10;
    b->cfg.tuning.backoff_min_ns = MS;
    b->cfg.tuning.batch_rows_max = 40;
    b->cfg.tuning.queue_chunks = 4;
    b->cfg.tuning.chunk_bytes = 1024;
    b->cfg.tuning.record_bytes_max = b->cfg.tuning.batch_bytes_max = 64 << 10;
    transaction(b);
    append(b);
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline void close_bed(struct bed *b)
{
    stop(b, true);
    b->cfg.sink->ops->close(b->cfg.sink);
    b->control->ops->close(b->control);
    b->log->ops->close(b->log);
    tr_schema_unref(b->schema);
    tr_buf_done(&b->frames);
    assert_int_equal(nftw(b->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- what is there ---- */

static inline void see_table(void *arg, const char *name, const struct tr_ctl_sink_table *t)
{
    (void)name;
    *(struct tr_ctl_sink_table *)arg = *t;
}

static inline struct tr_ctl_sink_table table(struct bed *b)
{
    struct tr_ctl_sink_table t = {0};
    tr_apply_tables(b->run, see_table, &t);
    return t;
}

/* The main lane has read all there is, and what it put is durable. */
static inline bool has_read(struct bed *b)
{
    struct tr_runtime_status s;
    struct tr_apply_lag lag;
    tr_apply_status(b->run, &s, &lag);
    if (s.state == TR_RT_FAILED)
        fail_msg("%s", s.error.msg);
    return s.watermark >= (int64_t)b->next - 1;
}

static inline void wait_read(struct bed *b)
{
    for (int64_t deadline = tr_now_ns() + 20 * SEC; !has_read(b); tr_sleep_ns(MS))
        assert_true(tr_now_ns() < deadline);
}

/* What the service does with a request. */
static inline void take_request(struct bed *b)
{
    char kind[32], scope[64], name[160];
    if (b->control->ops->request_take(b->control, kind, scope, name, NULL) == TR_OK && !strcmp(kind, "resnapshot"))
        snapshot(b);
}

/* A table without a mirror is not shown while it is well. */
static inline bool is_done(struct bed *b)
{
    return has_read(b) && table(b).state == (b->no_mirror ? TR_ST_WAITING : TR_ST_LIVE);
}

static inline void wait_state(struct bed *b, uint8_t state)
{
    int64_t deadline = tr_now_ns() + 20 * SEC;
    while (table(b).state != state) {
        if (tr_now_ns() > deadline)
            fail_msg("the table is in state %u and not in %u: %s", table(b).state, state, table(b).reason);
        tr_sleep_ns(MS);
    }
}

static inline int by_number(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static uint64_t logged[4 * CHANGES_MAX];
static size_t n_logged;

static inline void see_row(void *arg, const struct tr_mem_row *r)
{
    (void)arg;
    if (r->variant == TR_TARGET_CHANGELOG && n_logged < TR_ARRAY_LEN(logged))
        logged[n_logged++] = r->version;
}

struct found {
    uint64_t version;          /* the highest */
    struct model_row rows[KEYS];
};

static inline uint32_t number(struct tr_slice v)
{
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)v.n, (const char *)v.p);
    return (uint32_t)strtoul(text, NULL, 10);
}

static inline void see_state(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    struct found *f = arg;
    (void)key;
    f->version = TR_MAX(f->version, version);
    if (deleted)
        return;
    uint32_t k = number(row->v[0]);
    assert_true(k < KEYS && row->state[1] == TR_PRESENT);
    f->rows[k] = (struct model_row){true, number(row->v[1]), row->state[2] == TR_PRESENT ? number(row->v[2]) : UINT32_MAX};
}

static inline void check_history(struct bed *b)
{
    n_logged = 0;
    tr_mem_each_row(b->sink, see_row, NULL);
    qsort(logged, n_logged, sizeof *logged, by_number);
    size_t at = 0;
    for (size_t i = 0; i < b->n_changed; i++) {
        uint64_t version = b->changed[i].version, offset = b->changed[i].offset;
        while (at < n_logged && logged[at] < version)
            at++;
        if ((at == n_logged || logged[at] != version) && (offset < b->lost_from || offset >= b->lost_to))
            fail_msg("the changelog lacks change %zu of %zu (version %llu, offset %llu)", i, b->n_changed, (unsigned long long)version, (unsigned long long)offset);
    }
}

static inline void check_mirror(struct bed *b)
{
    struct found f = {0};
    tr_mem_read_back(b->sink, TABLE, TR_TARGET_MIRROR, see_state, &f);
    for (uint32_t k = 0; k < KEYS; k++) {
        const struct model_row *is = &f.rows[k], *want = &b->rows[k];
        if (is->there != want->there || (want->there && (is->n != want->n || is->big != want->big)))
            fail_msg("row %u is {%d %u %u} and should be {%d %u %u}; versions reached %llu of %llu", k, is->there, is->n, is->big, want->there, want->n, want->big,
                     (unsigned long long)f.version, (unsigned long long)b->version);
    }
}

/* Cured and resumed, the table becomes live, equal to the model, with a whole history. */
static inline void finish(struct bed *b)
{
    for (int v = TR_TARGET_MIRROR; v <= TR_TARGET_CHANGELOG; v++)
        tr_mem_taking(b->sink, TABLE, (enum tr_target_variant)v, TR_MEM_TAKES);
    int64_t deadline = tr_now_ns() + 30 * SEC;
    for (bool live = false; !live;) {
        live = is_done(b);
        if (tr_now_ns() > deadline)
            fail_msg("the table is in state %u: %s", table(b).state, table(b).reason);
        if (table(b).state == TR_ST_PAUSED)
            tr_apply_resume(b->run, "");
        take_request(b);
        tr_sleep_ns(MS);
    }
    if (!b->no_mirror)
        check_mirror(b);
    check_history(b);
    assert_true(b->no_mirror || table(b).log_from == UINT64_MAX);
}

static struct bed bed;

static inline void burst(struct bed *b, int n)
{
    while (n--)
        transaction(b);
    append(b);
}

static inline void go_live(struct bed *b, uint64_t seed)
{
    open_bed(b, seed);
    start(b);
    snapshot(b);
    wait_state(b, TR_ST_LIVE);
}

#endif
