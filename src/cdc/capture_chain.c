/*
 * capture_chain.c: the one place where changes enter the log: normalised, keyed, numbered.
 *
 *   identity   (epoch, commit LSN, ordinal); the ordinal counts the rows of a transaction as they pass here
 *   version    max(previous + 1, epoch << 56 | commit LSN), in commit order; a key update takes two, TRUNCATE and SNAPSHOT_BEGIN one
 *   drop       a transaction at or below the log's own last COMMIT was resent after a restart: the log holds it, whole
 *   identity of the table  changes go by name; where the name stands for another table than the coordinator knows, the tables concerned are
 *              to be snapshotted anew (tr_snap_note_strays)
 *   between    frames of the snapshot lane enter only while no source transaction is open (NOT_READY until then)
 *
 * A new schema is registered (control store) by a thread of its own; until its answer the chain says NOT_READY at that payload.
 */
#include <stdio.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>
#include <tailrace/push.h>

#include "alloc.h"
#include "arena.h"
#include "cdc_internal.h"
#include "check.h"
#include "key.h"
#include "rowimage.h"
#include "text.h"

struct capture_chain {
    struct tr_capture *cap;
    struct tr_out *out;
    struct tr_target *target;
    struct tr_schema *log_schema; /* what the log's one target is bound with */
    struct tr_arena arena;
    struct tr_buf key, old_key;
    struct tr_map by_name;        /* "ns\0name" → struct tr_cap_table * */
    struct tr_cap_table *last_table; /* of the change before, to skip the look-up */
    uint64_t last_fingerprint;       /* of its definition; covers the name */
    uint64_t version;             /* last one given */
    uint64_t last_commit;         /* of the log, this epoch */
    uint64_t tx_commit;           /* of the transaction under way; 0: none */
    bool tx_drop;
    uint32_t ordinal;             /* next */
    bool tx_open;                 /* a row of it went into the log */
    int64_t now_us;               /* when this push began */
};

/* ---- tables and their registration ---- */

struct tr_cap_table *tr_cap_table_of(struct tr_capture *c, const char *ns, const char *name)
{
    char both[2 * 64 + 2];
    int n = snprintf(both, sizeof both, "%s%c%s", ns, 0, name);
    struct tr_slice k = tr_slice_of(both, (size_t)n);
    tr_mutex_lock(&c->lock);
    struct tr_cap_table *t = tr_map_get(&c->by_name, k);
    if (!t && (t = tr_calloc(1, sizeof *t)) && tr_map_put(&c->by_name, k, t, NULL) < 0) {
        tr_free(t);
        t = NULL;
    } else if (t && !*t->name) {
        snprintf(t->ns, sizeof t->ns, "%s", ns);
        snprintf(t->name, sizeof t->name, "%s", name);
        t->heartbeat = !strcmp(ns, c->heartbeat_ns) && !strcmp(name, c->heartbeat_name);
        t->next = c->tables;
        c->tables = t;
    }
    tr_mutex_unlock(&c->lock);
    return t;
}

static struct tr_cap_table *table_of(struct capture_chain *h, const struct tr_schema *s)
{
    if (h->last_table && h->last_fingerprint == s->fingerprint)
        return h->last_table;
    char name[2 * 64 + 2];
    int n = snprintf(name, sizeof name, "%s%c%s", s->ns, 0, s->name);
    struct tr_slice k = tr_slice_of(name, (size_t)n);
    struct tr_cap_table *t = tr_map_get(&h->by_name, k);
    if (!t) {
        t = tr_cap_table_of(h->cap, s->ns, s->name);
        if (!t || tr_map_put(&h->by_name, k, t, NULL) < 0)
            return NULL;
    }
    h->last_table = t;
    h->last_fingerprint = s->fingerprint;
    return t;
}

void tr_cap_stray(struct tr_capture *c, struct tr_cap_table *t)
{
    if (!atomic_exchange(&t->strayed, true))
        atomic_fetch_add(&c->strays, 1);
}

/* Renamed and renamed back, swapped in and out: what was written meanwhile stands under the wrong name, and the catalog looks as before.
 * Also asked for changes that are dropped as resent: a crash may have come before it was noted.
 * The walk needs no lock (see tr_capture.tables), and is taken only when the source_id or `identities` changed. The coordinator stores
 * source_ids before it raises that, so what is read here too early is read again. */
static void check_identity(struct capture_chain *h, struct tr_cap_table *t, uint32_t id)
{
    uint32_t now = atomic_load(&h->cap->identities);
    if (!id || t->heartbeat || (t->checked_id == id && t->checked_at == now))
        return;
    t->checked_id = id;
    t->checked_at = now;
    uint32_t known = atomic_load(&t->source_id);
    if (known == id)
        return;
    for (struct tr_cap_table *x = h->cap->tables; x; x = x->next)
        if (atomic_load(&x->source_id) == id)
            tr_cap_stray(h->cap, x);
    if (known)
        tr_cap_stray(h->cap, t);
}

/* Takes the definition over; the one to use. The oldest goes when there is no room: were it needed again it would be asked for again. */
static struct tr_schema *remember(struct tr_cap_table *t, struct tr_schema *got)
{
    for (uint32_t i = 0; i < t->n_known; i++)
        if (t->known_v[i].schema->version == got->version) {
            tr_schema_unref(got);
            return t->known_v[i].schema;
        }
    if (t->n_known == TR_ARRAY_LEN(t->known_v)) {
        uint32_t oldest = t->known_v[0].schema == t->stream ? 1 : 0;
        if (t->known_v[oldest].schema == t->reg)
            t->reg = NULL;
        tr_schema_unref(t->known_v[oldest].schema);
        memmove(&t->known_v[oldest], &t->known_v[oldest + 1], (t->n_known - 1 - oldest) * sizeof t->known_v[0]);
        t->n_known--;
    }
    t->known_v[t->n_known++] = (struct tr_cap_schema){.schema = got};
    return got;
}

/* 0: t->reg numbers s. NOT_READY: asked. Snapshot rows may be of any definition met before (the one their snapshot began with); the stream
 * is at its latest or brings a new one, though it may look like an old one. */
static int registered(struct capture_chain *h, struct tr_cap_table *t, const struct tr_schema *s, bool snapshot, struct tr_err *err)
{
    if (!snapshot && t->stream && t->stream->fingerprint == s->fingerprint) {
        t->reg = t->stream;
        return TR_OK;
    }
    for (uint32_t i = t->n_known; snapshot && i-- > 0;)
        if (t->known_v[i].schema->fingerprint == s->fingerprint) {
            t->reg = t->known_v[i].schema;
            return TR_OK;
        }
    struct tr_capture *c = h->cap;
    int rc = TR_NOT_READY;
    tr_mutex_lock(&c->lock);
    if (t->reg_err.rc < 0) {
        if (err)
            *err = t->reg_err;
        rc = t->reg_err.rc == TR_RETRY ? TR_NOT_READY : TR_FATAL;
        memset(&t->reg_err, 0, sizeof t->reg_err); /* ask again */
    } else if (t->got) {
        struct tr_schema *got = t->got;
        t->got = NULL;
        got = remember(t, got);
        if (got->fingerprint == s->fingerprint) {
            t->reg = got;
            if (!snapshot)
                t->stream = got;
            rc = TR_OK;
        }
    } else if (!t->want) {
        t->want = tr_schema_ref(s);
        tr_cond_broadcast(&c->cond);
    }
    tr_mutex_unlock(&c->lock);
    return rc;
}

/* Is `now` what rows of a snapshot begun under `before` can still be read as? Only columns added at the end are. */
static bool compatible(const struct tr_schema *before, const struct tr_schema *now)
{
    if (before->n_columns > now->n_columns || before->n_key != now->n_key)
        return false;
    for (uint32_t i = 0; i < before->n_columns; i++) {
        const struct tr_column *a = &before->columns[i], *b = &now->columns[i];
        if (strcmp(a->name, b->name) != 0 || a->type != b->type || a->key_pos != b->key_pos || a->source_pos != b->source_pos)
            return false;
    }
    return true;
}

/* ---- putting frames into the log ---- */

static int put(struct capture_chain *h, struct tr_change *c, const struct tr_payloads *in, int64_t pos, struct tr_err *err)
{
    c->epoch = h->cap->epoch;
    return tr_out_put(h->out, h->target, c, 1, in->ack, pos, err);
}

static int define(struct capture_chain *h, struct tr_cap_table *t, const struct tr_payloads *in, int64_t pos, struct tr_err *err)
{
    struct tr_cap_schema *k = NULL;
    for (uint32_t i = 0; i < t->n_known; i++)
        if (t->known_v[i].schema == t->reg)
            k = &t->known_v[i];
    TR_ASSERT(k);
    if (k->defined)
        return TR_OK;
    struct tr_change c = {.op = TR_OP_SCHEMA, .schema = t->reg, .capture_us = tr_wall_us()};
    int rc = put(h, &c, in, pos, err);
    k->defined = rc >= 0;
    return rc;
}

static uint64_t next_version(struct capture_chain *h, uint64_t commit_lsn, bool two)
{
    uint64_t floor = (uint64_t)h->cap->epoch << 56 | (commit_lsn & ((UINT64_C(1) << 56) - 1));
    uint64_t v = TR_MAX(h->version + 1, floor);
    h->version = v + two;
    return v;
}

/* What the source left open but sent elsewhere: the before image of REPLICA IDENTITY FULL, or the key in a 'K' tuple. */
static int complete(struct capture_chain *h, struct tr_change *c, struct tr_err *err)
{
    bool open = false;
    for (uint32_t i = 0; i < c->after.n; i++)
        open |= c->after.state[i] == TR_UNCHANGED;
    if (!open)
        return TR_OK;
    uint32_t n = c->after.n;
    struct tr_slice *v = tr_arena_alloc(&h->arena, n * sizeof *v);
    uint8_t *st = tr_arena_alloc_aligned(&h->arena, n, 1);
    if (!v || !st)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for a row");
    open = false;
    for (uint32_t i = 0; i < n; i++) {
        v[i] = c->after.v[i];
        st[i] = c->after.state[i];
        if (st[i] == TR_UNCHANGED && i < c->before.n && (c->before.state[i] == TR_PRESENT || c->before.state[i] == TR_NULL)) {
            v[i] = c->before.v[i];
            st[i] = c->before.state[i];
        }
        open |= st[i] == TR_UNCHANGED;
    }
    c->after = (struct tr_row){.v = v, .state = st, .n = n};
    if (open)
        c->flags |= TR_CHG_UNCHANGED;
    return TR_OK;
}

static bool has_key(const struct tr_schema *s, const struct tr_row *r)
{
    for (uint32_t k = 0; k < s->n_key; k++)
        if (s->key[k] >= r->n || r->state[s->key[k]] != TR_PRESENT)
            return false;
    return s->n_key && r->n;
}

/* 1: it cannot be said which row the change is of; it is left out, and the table snapshotted anew. So is one whose old key was not sent: a partition had, for a while that
 * the catalog has forgotten, another replica identity than its root. */
static int set_keys(struct capture_chain *h, struct tr_cap_table *t, struct tr_change *c, struct tr_err *err)
{
    const struct tr_schema *s = c->schema;
    if (!s->n_key || c->op == TR_OP_TRUNCATE)
        return TR_OK;
    bool lean = c->before.n && !has_key(s, &c->before);
    if (lean)
        tr_cap_stray(h->cap, t);
    if (lean && c->op == TR_OP_DELETE)
        return 1;
    tr_buf_clear(&h->key);
    tr_buf_clear(&h->old_key);
    const struct tr_row *now = c->op == TR_OP_DELETE ? &c->before : &c->after;
    int rc = tr_key_encode(s, now, &h->key, err);
    if (rc < 0) {
        if (err)
            err->rc = TR_FATAL;
        return TR_FATAL; /* PostgreSQL sends a key that is stored out of line as the old one: docs/lessons.md 19 */
    }
    c->key = tr_buf_slice(&h->key);
    if (c->op != TR_OP_UPDATE || lean || !c->before.n)
        return TR_OK;
    rc = tr_key_encode(s, &c->before, &h->old_key, err);
    if (rc < 0)
        return TR_FATAL;
    if (!tr_slice_eq(tr_buf_slice(&h->old_key), c->key)) {
        c->old_key = tr_buf_slice(&h->old_key);
        c->flags |= TR_CHG_MOVED;
    }
    return TR_OK;
}

/* A key update with an unchanged value, while its table's snapshot runs, may have no base in the shadow: it needs a FILL. */
static int note_need(struct capture_chain *h, struct tr_cap_table *t, const struct tr_change *c, struct tr_err *err)
{
    uint8_t *key = tr_malloc(c->key.n + 1);
    tr_mutex_lock(&h->cap->lock);
    if (key && t->n_needs == t->cap_needs) {
        size_t cap = t->cap_needs ? t->cap_needs * 2 : 64;
        struct tr_cap_need *v = tr_realloc(t->needs, cap * sizeof *v);
        if (v) {
            t->needs = v;
            t->cap_needs = cap;
        }
    }
    bool ok = key && t->n_needs < t->cap_needs;
    if (ok) {
        memcpy(key, c->key.p, c->key.n);
        t->needs[t->n_needs++] = (struct tr_cap_need){
            .commit_lsn = c->commit_lsn, .xid = c->xid, .ordinal = c->ordinal, .epoch = h->cap->epoch, .key = key, .key_n = c->key.n};
    }
    tr_mutex_unlock(&h->cap->lock);
    if (ok)
        return TR_OK;
    tr_free(key);
    return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for a key update of table %s.%s", t->ns, t->name);
}

static int row(struct capture_chain *h, const struct tr_payloads *in, const struct tr_payload *p, struct tr_err *err)
{
    const struct tr_change *src = p->meta;
    if (src->commit_lsn != h->tx_commit) {
        h->tx_commit = src->commit_lsn;
        h->tx_drop = src->commit_lsn <= h->last_commit;
        h->ordinal = 0;
    }
    struct tr_cap_table *t = table_of(h, src->schema);
    if (!t)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for table %s.%s", src->schema->ns, src->schema->name);
    check_identity(h, t, src->schema->source_id);
    if (h->tx_drop)
        return TR_OK;
    const struct tr_schema *before = t->stream ? t->stream : t->reg;
    int rc = registered(h, t, src->schema, false, err);
    if (rc < 0)
        return rc;
    if (t->snapshot_id && before && before != t->reg && !compatible(before, t->reg)) {
        tr_mutex_lock(&h->cap->lock);
        t->schema_broke = true;
        tr_mutex_unlock(&h->cap->lock);
    }
    tr_arena_reset(&h->arena);
    struct tr_change c = *src;
    c.schema = t->reg;
    rc = define(h, t, in, p->position, err);
    if (rc >= 0)
        rc = complete(h, &c, err);
    if (rc >= 0)
        rc = set_keys(h, t, &c, err);
    if (rc != TR_OK)
        return TR_MIN(rc, TR_OK);
    c.ordinal = h->ordinal;
    c.version = next_version(h, c.commit_lsn, c.flags & TR_CHG_MOVED);
    if (t->heartbeat && c.op != TR_OP_DELETE && c.op != TR_OP_TRUNCATE)
        c.op = TR_OP_HEARTBEAT;
    rc = put(h, &c, in, p->position, err);
    if (rc < 0)
        return rc;
    h->ordinal++;
    h->tx_open = true;
    if (t->snapshot_id && (c.flags & TR_CHG_MOVED) && (c.flags & TR_CHG_UNCHANGED))
        return note_need(h, t, &c, err);
    return TR_OK;
}

static int commit(struct capture_chain *h, const struct tr_payloads *in, const struct tr_payload *p, struct tr_err *err)
{
    const struct tr_change *src = p->meta;
    int rc = TR_OK;
    if (h->tx_open) {
        struct tr_change c = *src;
        c.schema = NULL;
        rc = put(h, &c, in, p->position, err);
        if (rc < 0)
            return rc;
        h->last_commit = TR_MAX(h->last_commit, src->commit_lsn);
        rc = tr_out_tx_end(h->out, err);
    }
    int64_t lag = h->now_us - src->commit_us;
    atomic_store_explicit(&h->cap->stream_lag_us, (uint64_t)(lag > 0 ? lag : 0), memory_order_relaxed);
    h->tx_open = false;
    h->tx_drop = false;
    h->tx_commit = 0;
    return rc;
}

/* From the snapshot lane. */
static int snapshot_frame(struct capture_chain *h, const struct tr_payloads *in, const struct tr_payload *p, struct tr_err *err)
{
    if (h->tx_open || h->tx_commit)
        return TR_NOT_READY;
    const struct tr_change *src = p->meta;
    struct tr_cap_table *t = table_of(h, src->schema);
    if (!t)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for table %s.%s", src->schema->ns, src->schema->name);
    if (src->op != TR_OP_SNAPSHOT_BEGIN && src->snapshot_id != t->snapshot_id)
        return TR_OK; /* of a snapshot that was started again */
    int rc = registered(h, t, src->schema, true, err);
    if (rc < 0)
        return rc;
    rc = define(h, t, in, p->position, err);
    if (rc < 0)
        return rc;
    struct tr_change c = *src;
    c.schema = t->reg;
    c.capture_us = h->now_us;
    if (c.op == TR_OP_SNAPSHOT_BEGIN) {
        c.version = next_version(h, 0, false);
        t->snapshot_id = c.snapshot_id;
        t->begin_version = c.version;
        atomic_fetch_add(&h->cap->identities, 1); /* what strayed before is read; what strays from here on is looked for again */
        tr_mutex_lock(&h->cap->lock);
        for (size_t i = 0; i < t->n_needs; i++)
            tr_free(t->needs[i].key);
        t->n_needs = 0;
        t->schema_broke = false;
        tr_mutex_unlock(&h->cap->lock);
    } else if (c.op == TR_OP_READ) {
        tr_buf_clear(&h->key);
        rc = tr_key_encode(c.schema, &c.after, &h->key, err);
        if (rc < 0)
            return TR_FATAL;
        c.key = tr_buf_slice(&h->key);
        c.version = t->begin_version;
    } else if (c.op == TR_OP_FILL) {
        c.version = t->begin_version;
    } else if (c.op == TR_OP_SNAPSHOT_END) {
        t->snapshot_id = 0;
    }
    rc = put(h, &c, in, p->position, err);
    return rc < 0 ? rc : tr_out_tx_end(h->out, err);
}

static int push_batch(void *chain, const struct tr_payloads *in, uint32_t from, struct tr_push *ret, struct tr_err *err)
{
    struct capture_chain *h = chain;
    *ret = (struct tr_push){.next = from, .state = TR_PUSH_DONE, .linger_at_ns = INT64_MAX};
    if (!h->target) {
        int rc = tr_out_bind(h->out, h->log_schema, TR_TARGET_MIRROR, 0, &h->target, err);
        if (rc < 0) {
            ret->state = rc == TR_NOT_READY ? TR_PUSH_NOT_READY : TR_PUSH_FAILED;
            return TR_OK;
        }
    }
    h->now_us = tr_wall_us();
    for (uint32_t i = from; i < in->n; i++) {
        ret->next = i;
        if (tr_out_room(h->out) < 0) {
            ret->state = TR_PUSH_BLOCKED;
            return TR_OK;
        }
        const struct tr_payload *p = &in->v[i];
        int rc;
        if (p->flags & TR_PAYLOAD_SNAPSHOT)
            rc = snapshot_frame(h, in, p, err);
        else if (p->flags & TR_PAYLOAD_TX_END)
            rc = commit(h, in, p, err);
        else
            rc = row(h, in, p, err);
        if (rc < 0) {
            ret->state = rc == TR_NOT_READY ? TR_PUSH_NOT_READY : TR_PUSH_FAILED;
            if (rc != TR_NOT_READY && err && err->rc != TR_FATAL)
                err->rc = TR_FATAL; /* a change that cannot be taken into the log must not be passed over */
            return TR_OK;
        }
    }
    ret->next = in->n;
    if (in->lane == 0 && in->upto > 0)
        atomic_store_explicit(&h->cap->stream_pos, (uint64_t)in->upto, memory_order_release);
    return TR_OK;
}

static int flush(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err)
{
    (void)chain;
    (void)why;
    (void)err;
    *ret = (struct tr_push){.state = TR_PUSH_DONE, .linger_at_ns = INT64_MAX};
    return TR_OK;
}

static void abandon(void *chain)
{
    (void)chain; /* holds no acks of its own */
}

static void free_chain(void *chain)
{
    struct capture_chain *h = chain;
    tr_map_done(&h->by_name);
    tr_arena_done(&h->arena);
    tr_buf_done(&h->key);
    tr_buf_done(&h->old_key);
    tr_schema_unref(h->log_schema);
    tr_free(h);
}

static const struct tr_chain_ops ops = {push_batch, flush, abandon, free_chain};

int tr_capture_chain_new(struct tr_capture *c, struct tr_out *out, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    struct capture_chain *h = tr_calloc(1, sizeof *h);
    if (!h)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the capture chain");
    h->cap = c;
    h->out = out;
    tr_map_init(&h->by_name);
    tr_arena_init(&h->arena, 64 << 10, 0);
    h->version = c->tail.version;
    h->last_commit = c->tail.any_commit && c->tail.epoch == c->epoch ? c->tail.commit_lsn : 0;
    struct tr_schema_def d = {.ns = "", .name = "change log", .no_key_reason = "it is the log"};
    int rc = tr_schema_new(&d, &h->log_schema, err);
    if (rc < 0) {
        free_chain(h);
        return rc;
    }
    *ret_ops = &ops;
    *ret_chain = h;
    return TR_OK;
}
