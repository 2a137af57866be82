/*
 * pgsource.c: the contract of spi/cdc_source.h on the model. The stream is the shipped one; sessions do on the model what those of
 * connector/postgres do by SQL. Every call takes a little time on its way there and back, in which a connection may be lost, after the
 * server has done what was asked or before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>

#include "check.h"
#include "key.h"
#include "pg_schema.h"
#include "pg_stream.h"
#include "pgmodel.h"

struct source {
    struct tr_cdc cdc;
    struct pgmodel *m;
    struct tr_pg_source_options options;
    struct tr_component_env env;
};

struct session {
    struct tr_cdc_session spi;
    struct pgmodel *m;
    bool replica, connected, interrupted;
    uint64_t boot, generation;
    /* an open chunk */
    bool open;
    uint32_t table, from, to, at; /* keys */
    struct pg_snapshot snapshot;
    struct pg_row rows[PG_KEYS + 1];
    bool read;
    /* the row given out */
    char text[3][16];
    struct tr_slice v[3];
    uint8_t state[3];
    const struct tr_schema *schema; /* of the open chunk; the caller's */
};

static struct session *of(struct tr_cdc_session *s)
{
    return tr_container_of(s, struct session, spi);
}

static int lost(struct session *s, struct tr_err *err, const char *why)
{
    s->connected = false;
    s->open = false;
    return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: %s", why);
}

static bool is_dead(const struct session *s)
{
    return !s->m->up || s->boot != s->m->boot;
}

static void travel(struct session *s)
{
    tr_sleep_ns((int64_t)tr_prng_below(s->m->prng, 300 * TR_NS_PER_US));
}

static int wait_while(struct session *s, bool (*holds)(struct session *s, uint64_t arg), uint64_t arg, int64_t deadline_ns, struct tr_err *err);

static bool is_cut(struct session *s, uint64_t arg)
{
    (void)arg;
    return s->m->cut;
}

/* At the server, connected. holds: something only this connection has (a chunk). */
static int arrive(struct session *s, bool holds, int64_t deadline_ns, struct tr_err *err)
{
    travel(s);
    int rc = wait_while(s, is_cut, 0, deadline_ns, err);
    if (rc < 0)
        return rc;
    if (s->connected && is_dead(s)) {
        bool told = holds || tr_prng_chance(s->m->prng, 1, 2);
        s->connected = s->open = false;
        if (told)
            return lost(s, err, "the connection was closed");
    }
    if (!s->connected) {
        if (holds || !s->m->up)
            return lost(s, err, "the server is not there");
        s->connected = true;
        s->boot = s->m->boot;
        s->generation = ++s->m->generation;
    }
    return TR_OK;
}

/* The answer comes back, or not. */
static int back(struct session *s, struct tr_err *err)
{
    if (tr_prng_chance(s->m->prng, 1, 3))
        travel(s);
    if (s->interrupted) {
        s->interrupted = false;
        return lost(s, err, "interrupted");
    }
    return is_dead(s) ? lost(s, err, "the connection was closed") : TR_OK;
}

/* When it hurts: what was read may be undone before anybody has asked whether it is flushed. */
static void crash_perhaps(struct pgmodel *m)
{
    bool undoes = false;
    for (uint32_t i = 1; m->crash_after_read && i < m->n_tx; i++)
        undoes |= m->tx[i].state == TX_VISIBLE && m->tx[i].commit_rec >= (int)m->flushed;
    if (m->crash_after_read && tr_prng_chance(m->prng, 1, undoes ? 2 : m->crash_after_read)) {
        pgmodel_crash(m);
        m->up = tr_prng_chance(m->prng, 1, 2);
    }
}

static int wait_while(struct session *s, bool (*holds)(struct session *s, uint64_t arg), uint64_t arg, int64_t deadline_ns, struct tr_err *err)
{
    while (holds(s, arg)) {
        if (s->interrupted) {
            s->interrupted = false;
            return lost(s, err, "interrupted");
        }
        if (tr_now_ns() >= deadline_ns)
            return lost(s, err, "no answer before the deadline");
        if (s->connected && is_dead(s))
            return lost(s, err, "the connection was closed");
        tr_sleep_ns((int64_t)tr_prng_below(s->m->prng, 20 * TR_NS_PER_MS));
    }
    return TR_OK;
}

/* ---- what is asked in passing ---- */

static int identity(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_identity *ret, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    *ret = (struct tr_cdc_identity){.system_id = "7", .timeline = s->m->timeline, .server_version = s->m->server_version, .database = "shop", .position = pg_lsn(s->m->n_wal)};
    return back(s, err);
}

static int check(struct tr_cdc_session *cs, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_finding *f), void *arg, struct tr_err *err)
{
    (void)cb;
    (void)arg;
    int rc = arrive(of(cs), false, deadline_ns, err);
    return rc < 0 ? rc : back(of(cs), err);
}

static int tables(struct tr_cdc_session *cs, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_cdc_table *t), void *arg, struct tr_err *err)
{
    struct session *s = of(cs);
    struct pgmodel *m = s->m;
    struct tr_cdc_table v[PG_TABLES];
    bool hidden[PG_TABLES];
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    memcpy(hidden, m->hidden, sizeof hidden);
    for (uint32_t i = 0; i < PG_TABLES; i++) {
        v[i] = (struct tr_cdc_table){.ns = "public", .published = pgmodel_publishes(m, i), .key_ok = true, .rows_estimate = PG_KEYS, .bytes_estimate = PG_KEYS * 30, .storage_fingerprint = 1,
                                     .membership = pgmodel_publishes(m, i) ? m->membership[i] : 0, .filenode = (uint64_t)m->storage[i] + 1, .attributes = 1, .source_id = 1000 + i};
        snprintf(v[i].name, sizeof v[i].name, "t%u", i);
        if (!v[i].published)
            snprintf(v[i].unpublished, sizeof v[i].unpublished, "the publication does not hold it");
    }
    rc = back(s, err);
    for (uint32_t i = 0; i < PG_TABLES && rc >= 0; i++)
        if (!hidden[i])
            cb(arg, &v[i]);
    return rc;
}

static int describe(struct tr_cdc_session *cs, const char *ns, const char *name, int64_t deadline_ns, struct tr_schema **ret, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc >= 0)
        rc = back(s, err);
    if (rc < 0)
        return rc;
    PGresult *r = pgwire_describe();
    rc = tr_pgschema_build(r, NULL, ns, name, ret, err);
    free(r);
    return rc;
}

static int publish(struct tr_cdc_session *cs, int64_t deadline_ns, bool *ret_changed, struct tr_err *err)
{
    struct session *s = of(cs);
    struct pgmodel *m = s->m;
    *ret_changed = false;
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < PG_TABLES; i++)
        if (!m->hidden[i] && !pgmodel_publishes(m, i)) {
            pgmodel_publish(m, i, true);
            *ret_changed = true;
        }
    return back(s, err);
}

/* ---- the slot ---- */

/* A transaction that was running when the slot was begun runs still. arg: its first one not to wait for. */
static bool older_runs(struct session *s, uint64_t arg)
{
    for (uint32_t i = 1; i < arg; i++)
        if (s->m->tx[i].xid && pgmodel_open(s->m, (int)i))
            return true;
    return false;
}

static int slot_create(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_lsn, struct tr_err *err)
{
    struct session *s = of(cs);
    struct pgmodel *m = s->m;
    int rc = arrive(s, false, deadline_ns, err);
    if (rc >= 0 && m->slot.exists)
        return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "the slot exists");
    if (rc >= 0)
        rc = wait_while(s, older_runs, m->n_tx, deadline_ns, err);
    if (rc < 0)
        return rc;
    m->flushed = m->n_wal;
    m->slot = (struct pg_slot){.exists = true, .confirmed = pg_lsn(m->n_wal), .on_disk = pg_lsn(m->n_wal), .created = pg_lsn(m->n_wal)};
    *ret_lsn = m->slot.confirmed;
    return back(s, err);
}

static int slot_drop(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    if (pgmodel_slot_active(s->m))
        return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "the slot is active");
    s->m->slot = (struct pg_slot){0};
    return back(s, err);
}

static int slot_state(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_slot *ret, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    const struct pg_slot *k = &s->m->slot;
    *ret = (struct tr_cdc_slot){.exists = k->exists, .active = pgmodel_slot_active(s->m), .active_pid = 4711, .confirmed = k->confirmed, .restart = PG_BASE,
                                .headroom_bytes = INT64_MAX};
    snprintf(ret->wal_status, sizeof ret->wal_status, "%s", k->lost ? "lost" : "reserved");
    return back(s, err);
}

/* ---- fences and positions ---- */

static int fence_xid(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_xid, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    *ret_xid = pgmodel_xid(s->m);
    return back(s, err);
}

static int xmin(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_xmin, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    *ret_xmin = pgmodel_xmin(s->m);
    rc = back(s, err);
    if (rc >= 0)
        snprintf(err->msg, sizeof err->msg, "transaction %llu", (unsigned long long)*ret_xmin);
    return rc;
}

static int position(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_insert, uint64_t *ret_flush, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    *ret_insert = pg_lsn(s->m->n_wal);
    *ret_flush = pg_lsn(s->m->flushed);
    return back(s, err);
}

static int nudge(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    pgmodel_xid(s->m);
    return back(s, err);
}

static int flush(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    pgmodel_flush(s->m, s->m->n_wal);
    return back(s, err);
}

static uint64_t generation(const struct tr_cdc_session *cs)
{
    return ((const struct session *)(const void *)cs)->generation;
}

static int heartbeat(struct tr_cdc_session *cs, int64_t now_us, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    pgmodel_beat(s->m, now_us);
    *ret = (struct tr_cdc_beat){.message = true, .why = "it is a model"};
    return back(s, err);
}

/* ---- rows ---- */

static void encoded(const struct tr_schema *t, uint32_t key, struct tr_buf *out)
{
    char text[16];
    struct tr_slice v[3] = {{0}};
    static const uint8_t state[3] = {TR_PRESENT, TR_NULL, TR_NULL};
    snprintf(text, sizeof text, "%u", key);
    v[0] = tr_slice_str(text);
    struct tr_row row = {v, state, 3};
    tr_buf_clear(out);
    TR_ASSERT(tr_key_encode(t, &row, out, NULL) >= 0);
}

/* 0: none such */
static uint32_t decoded(const struct tr_schema *t, struct tr_slice key)
{
    struct tr_buf b = {0};
    uint32_t r = 0;
    for (uint32_t k = 1; k <= PG_KEYS && key.n; k++) {
        encoded(t, k, &b);
        if (tr_slice_eq(tr_buf_slice(&b), key))
            r = k;
    }
    tr_buf_done(&b);
    return r;
}

static uint32_t table_of(const struct tr_schema *t)
{
    return (uint32_t)(t->name[1] - '0');
}

static int chunk_plan(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice lo, uint64_t rows, int64_t deadline_ns, struct tr_buf *ret_hi, struct tr_err *err)
{
    struct session *s = of(cs);
    (void)rows;
    tr_buf_clear(ret_hi);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    uint32_t hi = decoded(t, lo) + 1 + (uint32_t)tr_prng_below(s->m->prng, 3);
    if (hi < PG_KEYS)
        encoded(t, hi, ret_hi);
    return back(s, err);
}

static int chunk_open(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice lo, struct tr_slice hi, uint64_t min_xmin, int64_t deadline_ns, struct tr_err *err)
{
    struct session *s = of(cs);
    TR_ASSERT(!s->open);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    pgmodel_snapshot(s->m, s->replica, &s->snapshot);
    if (s->snapshot.xmin < min_xmin) {
        s->m->c->fence_waits++;
        rc = back(s, err);
        return rc < 0 ? rc : tr_err_set(err, TR_NOT_READY, TR_DOM_SOURCE, "transaction %llu", (unsigned long long)s->snapshot.xmin);
    }
    s->open = true;
    s->read = false;
    s->schema = t;
    s->table = table_of(t);
    s->from = decoded(t, lo) + 1;
    s->to = hi.n ? decoded(t, hi) : PG_KEYS;
    s->at = s->from;
    return back(s, err);
}

static bool table_locked(struct session *s, uint64_t arg)
{
    return pgmodel_locked(s->m, (uint32_t)arg, s->replica);
}

static void give(struct session *s, const struct tr_schema *t, uint32_t key, const struct pg_row *r, struct tr_cdc_row *ret)
{
    const uint32_t v[3] = {key, r->a, r->t};
    for (int i = 0; i < 3; i++) {
        snprintf(s->text[i], sizeof s->text[i], "%u", v[i]);
        s->v[i] = tr_slice_str(s->text[i]);
        s->state[i] = TR_PRESENT;
    }
    *ret = (struct tr_cdc_row){t, {s->v, s->state, 3}};
}

static int chunk_next(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_row *ret, struct tr_err *err)
{
    struct session *s = of(cs);
    int rc = TR_OK;
    if (!s->read) {
        rc = arrive(s, true, deadline_ns, err);
        if (rc >= 0)
            rc = wait_while(s, table_locked, s->table, deadline_ns, err); /* the snapshot is older than the lock */
        if (rc < 0)
            return rc;
        for (uint32_t k = s->from; k <= s->to; k++)
            s->rows[k] = pgmodel_read(s->m, &s->snapshot, s->replica, s->table, k);
        s->read = true;
        rc = back(s, err);
    }
    if (rc >= 0 && is_dead(s))
        rc = lost(s, err, "the connection was closed");
    if (rc < 0)
        return rc;
    while (s->at <= s->to && !s->rows[s->at].there)
        s->at++;
    if (s->at > s->to)
        return TR_EOF;
    give(s, s->schema, s->at, &s->rows[s->at], ret);
    s->at++;
    return TR_OK;
}

static int chunk_close(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err)
{
    struct session *s = of(cs);
    if (!s->open)
        return lost(s, err, "there is no chunk");
    int rc = arrive(s, true, deadline_ns, err);
    s->open = false;
    if (rc < 0)
        return rc;
    *ret_h = pg_lsn(s->replica ? s->m->replayed : s->m->n_wal);
    *ret_needs_flush = !s->replica;
    s->m->c->chunks++;
    s->m->c->replica_chunks += s->replica;
    rc = back(s, err);
    crash_perhaps(s->m);
    return rc;
}

static int fetch(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice key, uint64_t xid, int64_t deadline_ns, struct tr_cdc_row *ret, uint64_t *ret_h, bool *ret_needs_flush,
                 struct tr_err *err)
{
    struct session *s = of(cs);
    struct pgmodel *m = s->m;
    uint32_t table = table_of(t), k = decoded(t, key);
    int rc = arrive(s, false, deadline_ns, err);
    if (rc < 0)
        return rc;
    pgmodel_snapshot(m, false, &s->snapshot);
    for (uint32_t i = 0; i < m->n_tx; i++)
        if (m->tx[i].xid == xid && pgmodel_open(m, (int)i))
            return tr_err_set(err, TR_NOT_READY, TR_DOM_SOURCE, "transaction %llu", (unsigned long long)xid);
    rc = wait_while(s, table_locked, table, deadline_ns, err);
    if (rc < 0)
        return rc;
    struct pg_row r = pgmodel_read(m, &s->snapshot, false, table, k);
    *ret_h = pg_lsn(m->n_wal);
    *ret_needs_flush = true;
    rc = back(s, err);
    if (rc < 0)
        return rc;
    crash_perhaps(m);
    m->c->fills++;
    m->c->empty_fills += !r.there;
    if (!r.there)
        return 1;
    give(s, t, k, &r, ret);
    return TR_OK;
}

static void interrupt(struct tr_cdc_session *cs)
{
    of(cs)->interrupted = true;
}

static void session_free(struct tr_cdc_session *cs)
{
    free(of(cs));
}

static const struct tr_cdc_session_ops session_ops = {
    .identity = identity,
    .check = check,
    .tables = tables,
    .describe = describe,
    .publish = publish,
    .slot_create = slot_create,
    .slot_drop = slot_drop,
    .slot_state = slot_state,
    .fence_xid = fence_xid,
    .xmin = xmin,
    .position = position,
    .nudge = nudge,
    .flush = flush,
    .generation = generation,
    .chunk_plan = chunk_plan,
    .chunk_open = chunk_open,
    .chunk_next = chunk_next,
    .chunk_close = chunk_close,
    .fetch = fetch,
    .heartbeat = heartbeat,
    .interrupt = interrupt,
    .free = session_free,
};

/* ---- the source ---- */

static int session_new(struct tr_cdc *c, enum tr_cdc_role role, struct tr_cdc_session **ret, struct tr_err *err)
{
    struct session *s = calloc(1, sizeof *s);
    (void)err;
    TR_ASSERT(s != NULL);
    s->spi.ops = &session_ops;
    s->m = tr_container_of(c, struct source, cdc)->m;
    s->replica = role == TR_CDC_REPLICA;
    *ret = &s->spi;
    return TR_OK;
}

static bool has_replica(const struct tr_cdc *c)
{
    return ((const struct source *)(const void *)c)->m->with_replica;
}

static int stream_new(struct tr_cdc *c, uint64_t from, struct tr_source **ret, struct tr_err *err)
{
    struct source *s = tr_container_of(c, struct source, cdc);
    return tr_pg_stream_new(&s->options, &s->env, from, ret, err);
}

static void close_source(struct tr_cdc *c)
{
    free(tr_container_of(c, struct source, cdc));
}

static const char *slot_name(const struct tr_cdc *c)
{
    return ((const struct source *)(const void *)c)->options.slot;
}

static void heartbeat_table(const struct tr_cdc *c, const char **ret_ns, const char **ret_name)
{
    (void)c;
    *ret_ns = "tailrace";
    *ret_name = TR_PG_HEARTBEAT_TABLE;
}

static const struct tr_cdc_ops source_ops = {session_new, has_replica, stream_new, close_source, slot_name, heartbeat_table};

struct tr_cdc *pgsource_new(struct pgmodel *m)
{
    struct source *s = calloc(1, sizeof *s);
    TR_ASSERT(s != NULL);
    s->cdc.ops = &source_ops;
    s->m = m;
    s->options = (struct tr_pg_source_options){
        .dsn = "model", .slot = "tailrace", .publication = "tailrace", .heartbeat_schema = "tailrace", .wal_sender_timeout_ns = 10 * TR_NS_PER_S, .stream_memory = 64 << 20, .create = true};
    s->env = (struct tr_component_env){.name = "shop", .state_dir = "/tmp"};
    return &s->cdc;
}
