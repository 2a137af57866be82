#include "control_memory.h"

#include <stdio.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "control_check.h"
#include "thread.h"

/* Plain arrays, searched from end to end: a store holds tens of rows, and the simulator copies all of them often. */

struct lease {
    char name[64], holder[128];
    uint64_t token;
    int64_t expires_us;
};

struct source {
    char name[64];
    bool bound; /* else only the slot is set */
    struct tr_ctl_source v;
    char slot[64];
    enum tr_slot_state slot_state;
};

struct table {
    char source[64];
    struct tr_ctl_table v;
};

struct blob {
    uint8_t *p;
    size_t n;
};

struct schema {
    uint32_t table_id, version;
    uint64_t effective_lsn, fingerprint;
    struct blob bytes;
};

struct chunk {
    struct tr_ctl_chunk v; /* lo, hi unused */
    struct blob lo, hi;
};

struct offset {
    char sink[64];
    uint32_t partition;
    uint64_t offset;
    int64_t at_us;
};

struct sink_table {
    char sink[64];
    struct tr_ctl_sink_table v;
};

struct request {
    char kind[32], scope[64], table[160];
};

#define VECTORS(X)                                                                                                                                   \
    X(lease)                                                                                                                                         \
    X(source)                                                                                                                                        \
    X(table)                                                                                                                                         \
    X(schema)                                                                                                                                        \
    X(chunk)                                                                                                                                         \
    X(offset)                                                                                                                                        \
    X(sink_table)                                                                                                                                    \
    X(request)                                                                                                                                       \
    X(tr_ctl_audit)                                                                                                                                  \
    X(tr_ctl_alarm)

struct vec {
    void *v;
    size_t n, cap;
};

struct state {
#define X(name) struct vec name;
    VECTORS(X)
#undef X
    uint64_t snapshot_id;
};

/* The ith of a vector. */
#define AT(s, name, i) (&((struct name *)(s)->name.v)[i])
#define EACH(s, name, it) for (struct name *it = (s)->name.v, *it##_end_ = it ? it + (s)->name.n : it; it < it##_end_; it++)

struct store {
    struct tr_control c;
    struct tr_mutex lock; /* guards all below */
    struct state s;
    char lease[64];
    uint64_t token;
    int fail_next;
};

struct tr_control_snapshot {
    struct state s;
};

static struct store *store_of(struct tr_control *c)
{
    return tr_container_of(c, struct store, c);
}

/* ---- memory ---- */

static int nomem(struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_CONTROL, "no memory for the control store");
}

static int grow(struct vec *v, size_t more, size_t size)
{
    if (v->cap - v->n >= more)
        return TR_OK;
    size_t cap = TR_MAX(v->n + more, v->cap * 2);
    void *p = tr_realloc(v->v, cap * size);
    if (!p)
        return TR_NOMEM;
    v->v = p;
    v->cap = cap;
    return TR_OK;
}

/* A zeroed one more; NULL without memory. */
#define PUSH(s, name) ((struct name *)push(&(s)->name, sizeof(struct name)))

static void *push(struct vec *v, size_t size)
{
    if (grow(v, 1, size) < 0)
        return NULL;
    void *p = (char *)v->v + v->n++ * size;
    memset(p, 0, size);
    return p;
}

static void erase(struct vec *v, size_t i, size_t size)
{
    v->n--;
    memmove((char *)v->v + i * size, (char *)v->v + (i + 1) * size, (v->n - i) * size);
}

static int blob_set(struct blob *b, struct tr_slice s)
{
    uint8_t *p = tr_malloc(s.n + 1);
    if (!p)
        return TR_NOMEM;
    if (s.n)
        memcpy(p, s.p, s.n);
    tr_free(b->p);
    b->p = p;
    b->n = s.n;
    return TR_OK;
}

static struct tr_slice blob_slice(const struct blob *b)
{
    return tr_slice_of(b->p, b->n);
}

static void chunk_free(struct chunk *k)
{
    tr_free(k->lo.p);
    tr_free(k->hi.p);
}

static void state_done(struct state *s)
{
    EACH(s, schema, x)
        tr_free(x->bytes.p);
    EACH(s, chunk, k)
        chunk_free(k);
#define X(name) tr_free(s->name.v);
    VECTORS(X)
#undef X
    memset(s, 0, sizeof *s);
}

static int state_copy(struct state *to, const struct state *from)
{
    int rc = TR_OK;
    memset(to, 0, sizeof *to);
    to->snapshot_id = from->snapshot_id;
#define X(name)                                                                                                                                      \
    if (from->name.n && (rc = rc < 0 ? rc : grow(&to->name, from->name.n, sizeof(struct name))) == TR_OK) {                                          \
        memcpy(to->name.v, from->name.v, from->name.n * sizeof(struct name));                                                                        \
        to->name.n = from->name.n;                                                                                                                   \
    }
    VECTORS(X)
#undef X
    /* the copies still point to the blobs of `from`: let go of all before any of them can be freed */
    EACH(to, schema, x)
        x->bytes.p = NULL;
    EACH(to, chunk, k)
        k->lo.p = k->hi.p = NULL;
    for (size_t i = 0; i < to->schema.n && rc == TR_OK; i++)
        rc = blob_set(&AT(to, schema, i)->bytes, blob_slice(&AT(from, schema, i)->bytes));
    for (size_t i = 0; i < to->chunk.n && rc == TR_OK; i++) {
        rc = blob_set(&AT(to, chunk, i)->lo, blob_slice(&AT(from, chunk, i)->lo));
        if (rc == TR_OK)
            rc = blob_set(&AT(to, chunk, i)->hi, blob_slice(&AT(from, chunk, i)->hi));
    }
    if (rc < 0)
        state_done(to);
    return rc;
}

/* ---- calls ---- */

enum need { READ, WRITE, WRITE_LEASED, WRITE_LEASED_OR_ADMIN };

static struct lease *lease_find(struct state *s, const char *name)
{
    EACH(s, lease, l)
        if (strcmp(l->name, name) == 0)
            return l;
    return NULL;
}

static int check_lease(struct store *s, const char *name, uint64_t token, struct tr_err *err)
{
    const struct lease *l = lease_find(&s->s, name);
    return token && l && l->token == token && l->holder[0] ? TR_OK : tr_control_fenced(name, token, err);
}

static int finish(struct store *s, int rc)
{
    tr_mutex_unlock(&s->lock);
    return rc;
}

/* On failure the lock is free again. */
static int begin(struct store *s, enum need need, struct tr_err *err)
{
    tr_mutex_lock(&s->lock);
    int rc = s->fail_next;
    s->fail_next = 0;
    if (rc < 0)
        return finish(s, tr_err_set(err, rc, TR_DOM_CONTROL, "the control store was told to fail"));
    if (need == WRITE_LEASED || (need == WRITE_LEASED_OR_ADMIN && s->token))
        rc = check_lease(s, s->lease, s->token, err);
    return rc < 0 ? finish(s, rc) : TR_OK;
}

/* ---- leases ---- */

static int64_t expiry(int64_t ttl_ms)
{
    int64_t us, at;
    return __builtin_mul_overflow(ttl_ms, INT64_C(1000), &us) || __builtin_add_overflow(tr_wall_us(), us, &at) ? INT64_MAX : at;
}

static int lease_take(struct tr_control *c, const char *name, const char *holder, int64_t ttl_ms, uint64_t *ret_token, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_name("the lease's name", name, 64, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the lease's holder", holder, 128, err);
    if (rc < 0 || (rc = begin(s, WRITE, err)) < 0)
        return rc;
    struct lease *l = lease_find(&s->s, name);
    bool ours = l && strcmp(l->holder, holder) == 0;
    if (l && !ours && l->holder[0] && l->expires_us > tr_wall_us())
        return finish(s, tr_control_held(name, l->holder, err));
    if (!l && !(l = PUSH(&s->s, lease)))
        return finish(s, nomem(err));
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(l->holder, sizeof l->holder, "%s", holder);
    if (!ours)
        l->token = TR_MAX(l->token + 1, (uint64_t)tr_wall_us());
    l->expires_us = expiry(ttl_ms);
    *ret_token = l->token;
    return finish(s, TR_OK);
}

static int lease_renew(struct tr_control *c, const char *name, uint64_t token, int64_t ttl_ms, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE, err);
    if (rc < 0)
        return rc;
    rc = check_lease(s, name, token, err);
    if (rc == TR_OK)
        lease_find(&s->s, name)->expires_us = expiry(ttl_ms);
    return finish(s, rc);
}

static int lease_release(struct tr_control *c, const char *name, uint64_t token, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE, err);
    if (rc < 0)
        return rc;
    rc = check_lease(s, name, token, err);
    if (rc == TR_OK) {
        struct lease *l = lease_find(&s->s, name);
        l->holder[0] = '\0';
        l->expires_us = 0;
    }
    return finish(s, rc);
}

static void act_under(struct tr_control *c, const char *lease, uint64_t token)
{
    struct store *s = store_of(c);
    tr_mutex_lock(&s->lock);
    snprintf(s->lease, sizeof s->lease, "%s", lease ? lease : "");
    s->token = token;
    tr_mutex_unlock(&s->lock);
}

/* ---- sources ---- */

static struct source *source_find(struct state *s, const char *name)
{
    EACH(s, source, x)
        if (strcmp(x->name, name) == 0)
            return x;
    return NULL;
}

static struct source *source_make(struct state *s, const char *name)
{
    struct source *x = source_find(s, name);
    if (!x && (x = PUSH(s, source)))
        snprintf(x->name, sizeof x->name, "%s", name);
    return x;
}

static int source_get(struct tr_control *c, const char *source, struct tr_ctl_source *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    memset(ret, 0, sizeof *ret);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    const struct source *x = source_find(&s->s, source);
    if (x && x->bound)
        *ret = x->v;
    return finish(s, TR_OK);
}

static int source_bind(struct tr_control *c, const char *source, const struct tr_ctl_source *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_source(source, v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    struct source *x = source_make(&s->s, source);
    if (!x)
        return finish(s, nomem(err));
    if (x->bound && v->epoch < x->v.epoch)
        return finish(s, tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "source %s is in epoch %u already: it cannot go back to %u", source, x->v.epoch, v->epoch));
    x->v = *v;
    x->bound = true;
    return finish(s, TR_OK);
}

static int confirm(struct tr_control *c, const char *source, uint64_t confirm_lsn, uint64_t log_offset, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    struct source *x = source_find(&s->s, source);
    if (!x || !x->bound)
        return finish(s, tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "source %s is not bound", source));
    x->v.confirm_lsn = TR_MAX(x->v.confirm_lsn, confirm_lsn);
    x->v.log_offset = TR_MAX(x->v.log_offset, log_offset);
    return finish(s, TR_OK);
}

static int slot_get(struct tr_control *c, const char *source, char slot[64], enum tr_slot_state *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    slot[0] = '\0';
    *ret = TR_SLOT_NONE;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    const struct source *x = source_find(&s->s, source);
    if (x) {
        snprintf(slot, 64, "%s", x->slot);
        *ret = x->slot_state;
    }
    return finish(s, TR_OK);
}

static int slot_put(struct tr_control *c, const char *source, const char *slot, enum tr_slot_state state, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_name("the source's name", source, 64, err);
    if (rc == TR_OK && state != TR_SLOT_NONE)
        rc = tr_control_check_name("the slot's name", slot, 64, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    struct source *x = source_make(&s->s, source);
    if (!x)
        return finish(s, nomem(err));
    snprintf(x->slot, sizeof x->slot, "%s", slot ? slot : "");
    x->slot_state = state;
    return finish(s, TR_OK);
}

/* ---- tables ---- */

static struct table *table_find(struct state *s, uint32_t table_id)
{
    return table_id && table_id <= s->table.n ? AT(s, table, table_id - 1) : NULL; /* tables are never removed */
}

static int table_ensure(struct tr_control *c, const char *source, const char *ns, const char *name, struct tr_ctl_table *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_name("the source's name", source, 64, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the table's schema", ns, sizeof ret->ns, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the table's name", name, sizeof ret->name, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    EACH(&s->s, table, t)
        if (strcmp(t->source, source) == 0 && strcmp(t->v.ns, ns) == 0 && strcmp(t->v.name, name) == 0) {
            *ret = t->v;
            return finish(s, TR_OK);
        }
    struct table *t = PUSH(&s->s, table);
    if (!t)
        return finish(s, nomem(err));
    snprintf(t->source, sizeof t->source, "%s", source);
    snprintf(t->v.ns, sizeof t->v.ns, "%s", ns);
    snprintf(t->v.name, sizeof t->v.name, "%s", name);
    t->v.table_id = (uint32_t)s->s.table.n;
    t->v.begin_offset = t->v.end_offset = UINT64_MAX;
    *ret = t->v;
    return finish(s, TR_OK);
}

static int table_put(struct tr_control *c, const struct tr_ctl_table *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_table(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    struct table *t = table_find(&s->s, v->table_id);
    if (!t)
        return finish(s, tr_control_no_table(v->table_id, err));
    struct tr_ctl_table was = t->v;
    t->v = *v;
    memcpy(t->v.ns, was.ns, sizeof was.ns);
    memcpy(t->v.name, was.name, sizeof was.name);
    return finish(s, TR_OK);
}

static int table_list(struct tr_control *c, const char *source, void (*cb)(void *arg, const struct tr_ctl_table *t), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    EACH(&s->s, table, t)
        if (strcmp(t->source, source) == 0)
            cb(arg, &t->v);
    return finish(s, TR_OK);
}

static int snapshot_id_next(struct tr_control *c, uint64_t *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    *ret = s->s.snapshot_id = TR_MAX(s->s.snapshot_id + 1, (uint64_t)tr_wall_us());
    return finish(s, TR_OK);
}

static int schema_put(struct tr_control *c, uint32_t table_id, uint64_t effective_lsn, struct tr_slice bytes, uint64_t fingerprint, uint32_t *ret_version,
                      struct tr_err *err)
{
    struct store *s = store_of(c);
    const struct schema *same = NULL;
    uint32_t version = 0;
    struct blob copy = {0};
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    if (!table_find(&s->s, table_id))
        return finish(s, tr_control_no_table(table_id, err));
    EACH(&s->s, schema, x)
        if (x->table_id == table_id) {
            version = x->version; /* they come in order */
            same = x->fingerprint == fingerprint ? x : NULL; /* the latest decides */
        }
    if (!same) {
        struct schema *x = blob_set(&copy, bytes) < 0 ? NULL : PUSH(&s->s, schema);
        if (!x) {
            tr_free(copy.p);
            return finish(s, nomem(err));
        }
        *x = (struct schema){.table_id = table_id, .version = ++version, .effective_lsn = effective_lsn, .fingerprint = fingerprint, .bytes = copy};
    }
    *ret_version = same ? same->version : version;
    return finish(s, TR_OK);
}

static int schema_list(struct tr_control *c, uint32_t table_id, void (*cb)(void *arg, uint32_t version, uint64_t effective_lsn, struct tr_slice bytes), void *arg,
                       struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    EACH(&s->s, schema, x)
        if (x->table_id == table_id)
            cb(arg, x->version, x->effective_lsn, blob_slice(&x->bytes));
    return finish(s, TR_OK);
}

/* ---- chunks: kept in order of (table, snapshot, seq) ---- */

static int chunk_cmp(const struct chunk *k, const struct tr_ctl_chunk *v)
{
    if (k->v.table_id != v->table_id)
        return k->v.table_id < v->table_id ? -1 : 1;
    if (k->v.snapshot_id != v->snapshot_id)
        return k->v.snapshot_id < v->snapshot_id ? -1 : 1;
    return k->v.seq < v->seq ? -1 : k->v.seq > v->seq;
}

static int chunk_put(struct tr_control *c, const struct tr_ctl_chunk *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    struct chunk fresh = {.v = *v};
    size_t i = 0;
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    if (!table_find(&s->s, v->table_id))
        return finish(s, tr_control_no_table(v->table_id, err));
    fresh.v.lo = fresh.v.hi = (struct tr_slice){NULL, 0};
    while (i < s->s.chunk.n && chunk_cmp(AT(&s->s, chunk, i), v) < 0)
        i++;
    bool there = i < s->s.chunk.n && chunk_cmp(AT(&s->s, chunk, i), v) == 0;
    if (blob_set(&fresh.lo, v->lo) < 0 || blob_set(&fresh.hi, v->hi) < 0 || (!there && grow(&s->s.chunk, 1, sizeof fresh) < 0)) {
        chunk_free(&fresh);
        return finish(s, nomem(err));
    }
    struct chunk *k = AT(&s->s, chunk, i);
    if (there)
        chunk_free(k);
    else
        memmove(k + 1, k, (s->s.chunk.n++ - i) * sizeof *k);
    *k = fresh;
    return finish(s, TR_OK);
}

static int chunk_list(struct tr_control *c, uint32_t table_id, uint64_t snapshot_id, void (*cb)(void *arg, const struct tr_ctl_chunk *k), void *arg,
                      struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    EACH(&s->s, chunk, k)
        if (k->v.table_id == table_id && k->v.snapshot_id == snapshot_id) {
            struct tr_ctl_chunk v = k->v;
            v.lo = blob_slice(&k->lo);
            v.hi = blob_slice(&k->hi);
            cb(arg, &v);
        }
    return finish(s, TR_OK);
}

static int chunk_clear(struct tr_control *c, uint32_t table_id, uint64_t below_snapshot_id, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    for (size_t i = s->s.chunk.n; i-- > 0;) {
        struct chunk *k = AT(&s->s, chunk, i);
        if (k->v.table_id == table_id && k->v.snapshot_id < below_snapshot_id) {
            chunk_free(k);
            erase(&s->s.chunk, i, sizeof *k);
        }
    }
    return finish(s, TR_OK);
}

/* ---- sinks ---- */

static struct offset *offset_find(struct state *s, const char *sink, uint32_t partition)
{
    EACH(s, offset, o)
        if (o->partition == partition && strcmp(o->sink, sink) == 0)
            return o;
    return NULL;
}

static int offset_get(struct tr_control *c, const char *sink, uint32_t partition, uint64_t *ret, struct tr_err *err)
{
    struct store *s = store_of(c);
    *ret = 0;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    const struct offset *o = offset_find(&s->s, sink, partition);
    if (o)
        *ret = o->offset;
    return finish(s, o ? TR_OK : 1);
}

/* Kept in order of the table's id. */
static void put_sink_table(struct state *s, const char *sink, const struct tr_ctl_sink_table *v)
{
    size_t i = 0;
    while (i < s->sink_table.n && AT(s, sink_table, i)->v.table_id < v->table_id)
        i++;
    for (; i < s->sink_table.n && AT(s, sink_table, i)->v.table_id == v->table_id; i++)
        if (strcmp(AT(s, sink_table, i)->sink, sink) == 0) {
            AT(s, sink_table, i)->v = *v;
            return;
        }
    struct sink_table *t = AT(s, sink_table, i);
    memmove(t + 1, t, (s->sink_table.n++ - i) * sizeof *t);
    snprintf(t->sink, sizeof t->sink, "%s", sink);
    t->v = *v;
}

static int offset_commit(struct tr_control *c, const struct tr_ctl_offset *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_offset(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    struct offset *o = offset_find(&s->s, v->sink, v->partition);
    if (o && v->offset < o->offset && !v->set_back)
        return finish(s, tr_control_went_back(v, o->offset, err));
    if (grow(&s->s.sink_table, (size_t)v->n_tables + 1, sizeof(struct sink_table)) < 0 || (!o && !(o = PUSH(&s->s, offset))))
        return finish(s, nomem(err));
    snprintf(o->sink, sizeof o->sink, "%s", v->sink);
    o->partition = v->partition;
    o->offset = v->offset;
    o->at_us = tr_wall_us();
    for (uint32_t i = 0; i < v->n_tables; i++)
        put_sink_table(&s->s, v->sink, &v->tables[i]);
    return finish(s, TR_OK);
}

static int sink_table_list(struct tr_control *c, const char *sink, void (*cb)(void *arg, const struct tr_ctl_sink_table *t), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    EACH(&s->s, sink_table, t)
        if (strcmp(t->sink, sink) == 0)
            cb(arg, &t->v);
    return finish(s, TR_OK);
}

/* In order of name and partition, as the others give them. */
static int sink_list(struct tr_control *c, void (*cb)(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us), void *arg,
                     struct tr_err *err)
{
    struct store *s = store_of(c);
    const struct offset *last = NULL;
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (size_t k = 0; k < s->s.offset.n; k++) {
        const struct offset *least = NULL;
        EACH(&s->s, offset, o) {
            int above = last ? strcmp(o->sink, last->sink) : 1, below = least ? strcmp(o->sink, least->sink) : -1;
            if ((above > 0 || (above == 0 && o->partition > last->partition)) && (below < 0 || (below == 0 && o->partition < least->partition)))
                least = o;
        }
        cb(arg, least->sink, least->partition, least->offset, least->at_us);
        last = least;
    }
    return finish(s, TR_OK);
}

/* ---- operators ---- */

static int request_put(struct tr_control *c, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_request(actor, kind, scope, table, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED_OR_ADMIN, err)) < 0)
        return rc;
    struct tr_ctl_audit *a = grow(&s->s.request, 1, sizeof(struct request)) < 0 ? NULL : PUSH(&s->s, tr_ctl_audit);
    if (!a)
        return finish(s, nomem(err));
    struct request *q = PUSH(&s->s, request);
    snprintf(q->kind, sizeof q->kind, "%s", kind);
    snprintf(q->scope, sizeof q->scope, "%s", scope ? scope : "");
    snprintf(q->table, sizeof q->table, "%s", table ? table : "");
    a->at_us = tr_wall_us();
    snprintf(a->actor, sizeof a->actor, "%s", actor);
    snprintf(a->action, sizeof a->action, "%s", kind);
    snprintf(a->subject, sizeof a->subject, "%s", q->table);
    snprintf(a->outcome, sizeof a->outcome, "requested");
    snprintf(a->detail, sizeof a->detail, "%s", q->scope);
    return finish(s, TR_OK);
}

static int request_take(struct tr_control *c, char kind[32], char scope[64], char table[160], struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    if (s->s.request.n == 0)
        return finish(s, TR_AGAIN);
    const struct request *q = AT(&s->s, request, 0);
    memcpy(kind, q->kind, sizeof q->kind);
    memcpy(scope, q->scope, sizeof q->scope);
    memcpy(table, q->table, sizeof q->table);
    erase(&s->s.request, 0, sizeof *q);
    return finish(s, TR_OK);
}

static int audit(struct tr_control *c, const struct tr_ctl_audit *v, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_audit(v, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED_OR_ADMIN, err)) < 0)
        return rc;
    struct tr_ctl_audit *a = PUSH(&s->s, tr_ctl_audit);
    if (!a)
        return finish(s, nomem(err));
    *a = *v;
    if (!a->at_us)
        a->at_us = tr_wall_us();
    return finish(s, TR_OK);
}

static int audit_list(struct tr_control *c, uint32_t last, void (*cb)(void *arg, const struct tr_ctl_audit *a), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    for (size_t i = s->s.tr_ctl_audit.n; i-- > 0 && last-- > 0;)
        cb(arg, AT(&s->s, tr_ctl_audit, i));
    return finish(s, TR_OK);
}

static struct tr_ctl_alarm *alarm_find(struct state *s, const char *kind, const char *subject)
{
    EACH(s, tr_ctl_alarm, a)
        if (strcmp(a->kind, kind) == 0 && strcmp(a->subject, subject) == 0)
            return a;
    return NULL;
}

static int alarm_set(struct tr_control *c, const char *kind, const char *subject, const char *text, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = tr_control_check_alarm(kind, subject, err);
    if (rc < 0 || (rc = begin(s, WRITE_LEASED, err)) < 0)
        return rc;
    struct tr_ctl_alarm *a = alarm_find(&s->s, kind, subject);
    if (!a) {
        if (!(a = PUSH(&s->s, tr_ctl_alarm)))
            return finish(s, nomem(err));
        snprintf(a->kind, sizeof a->kind, "%s", kind);
        snprintf(a->subject, sizeof a->subject, "%s", subject);
        a->since_us = tr_wall_us();
    }
    snprintf(a->text, sizeof a->text, "%s", text ? text : "");
    return finish(s, TR_OK);
}

static int alarm_clear(struct tr_control *c, const char *kind, const char *subject, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, WRITE_LEASED, err);
    if (rc < 0)
        return rc;
    const struct tr_ctl_alarm *a = alarm_find(&s->s, kind, subject);
    if (a)
        erase(&s->s.tr_ctl_alarm, (size_t)(a - AT(&s->s, tr_ctl_alarm, 0)), sizeof *a);
    return finish(s, TR_OK);
}

static int alarm_list(struct tr_control *c, void (*cb)(void *arg, const struct tr_ctl_alarm *a), void *arg, struct tr_err *err)
{
    struct store *s = store_of(c);
    int rc = begin(s, READ, err);
    if (rc < 0)
        return rc;
    EACH(&s->s, tr_ctl_alarm, a)
        cb(arg, a);
    return finish(s, TR_OK);
}

/* ---- the store ---- */

static void store_close(struct tr_control *c)
{
    if (!c)
        return;
    struct store *s = store_of(c);
    state_done(&s->s);
    tr_mutex_done(&s->lock);
    tr_free(s);
}

int tr_control_memory_new(struct tr_control **ret, struct tr_err *err)
{
    static const struct tr_control_ops ops = {
        .lease_take = lease_take,
        .lease_renew = lease_renew,
        .lease_release = lease_release,
        .act_under = act_under,
        .source_get = source_get,
        .source_bind = source_bind,
        .confirm = confirm,
        .slot_get = slot_get,
        .slot_put = slot_put,
        .table_ensure = table_ensure,
        .table_put = table_put,
        .table_list = table_list,
        .snapshot_id_next = snapshot_id_next,
        .schema_put = schema_put,
        .schema_list = schema_list,
        .chunk_put = chunk_put,
        .chunk_list = chunk_list,
        .chunk_clear = chunk_clear,
        .offset_get = offset_get,
        .offset_commit = offset_commit,
        .sink_table_list = sink_table_list,
        .sink_list = sink_list,
        .request_put = request_put,
        .request_take = request_take,
        .audit = audit,
        .audit_list = audit_list,
        .alarm_set = alarm_set,
        .alarm_clear = alarm_clear,
        .alarm_list = alarm_list,
        .close = store_close,
    };
    struct store *s = tr_calloc(1, sizeof *s);
    if (!s)
        return nomem(err);
    s->c.ops = &ops;
    tr_mutex_init(&s->lock);
    *ret = &s->c;
    return TR_OK;
}

void tr_control_memory_fail_next(struct tr_control *c, int rc)
{
    struct store *s = store_of(c);
    tr_mutex_lock(&s->lock);
    s->fail_next = rc;
    tr_mutex_unlock(&s->lock);
}

struct tr_control_snapshot *tr_control_memory_snapshot(struct tr_control *c)
{
    struct store *s = store_of(c);
    struct tr_control_snapshot *x = tr_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    tr_mutex_lock(&s->lock);
    int rc = state_copy(&x->s, &s->s);
    tr_mutex_unlock(&s->lock);
    return rc < 0 ? tr_control_snapshot_free(x) : x;
}

int tr_control_memory_restore(struct tr_control *c, const struct tr_control_snapshot *x)
{
    struct store *s = store_of(c);
    struct state fresh;
    int rc = state_copy(&fresh, &x->s);
    if (rc < 0)
        return rc;
    tr_mutex_lock(&s->lock);
    state_done(&s->s);
    s->s = fresh;
    tr_mutex_unlock(&s->lock);
    return TR_OK;
}

struct tr_control_snapshot *tr_control_snapshot_free(struct tr_control_snapshot *s)
{
    if (s) {
        state_done(&s->s);
        tr_free(s);
    }
    return NULL;
}
