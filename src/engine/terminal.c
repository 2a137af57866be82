#include "engine.h"

#include <string.h>

#include "alloc.h"
#include "check.h"
#include "hash.h"

/* The terminal stage: from rows to chunks.
 *
 * An *open* chunk per (target, shard) is being filled; at most open_chunks_max stand open, within open_bytes_max. Shipping a
 * chunk hands it to its shard's queue or, when that is full, parks it; while anything is parked tr_out_room says AGAIN.
 * Encoders of shipped chunks are kept in a short LRU list: a busy target reuses its own, ten thousand idle ones cost nothing.
 *
 * Boundaries. For a BOUNDARY sink chunks of several targets must be cut at the same transaction end. So nothing is shipped inside
 * a transaction unless a chunk grows to twice its size; once something was (shipped_in_tx), the end of that transaction ships the
 * rest and a mark. Each chunk touched by the current transaction remembers how long it was when the transaction began, so that
 * FINAL can cut the tail off. */

struct open_chunk {
    struct tr_list node;     /* in open or idle */
    struct tr_list touched;  /* by the transaction that is open */
    struct tr_pqueue_node linger;
    uint64_t key;
    struct tr_target *target;
    uint32_t shard;
    struct tr_encoder *enc;
    struct tr_msg *msg;      /* NULL: idle */
    uint64_t charge;         /* its part of open_bytes */
    size_t guess;            /* capacity to begin with */
    size_t mark_bytes;
    uint32_t mark_rows, mark_acks;
    bool tail_shares;        /* the first row behind the mark came with the poll of the last one before it */
};

struct shard_side {
    struct tr_list parked;
    bool unflushed, unforced;  /* something was shipped since the last IDLE, FORCE mark */
};

struct tr_out {
    struct tr_worker *w;
    struct tr_sink_rt *k;
    struct tr_list open, idle, touched;
    uint32_t n_open, n_idle, n_parked;
    uint64_t open_bytes;
    struct tr_pqueue linger;
    struct tr_u64map by_key;
    struct open_chunk *last;
    struct shard_side *sides;
    bool tx_open, shipped_in_tx, tx_full;
    struct open_chunk *inline_chunk; /* between tr_out_open and tr_out_close */
    size_t inline_from;
    uint64_t sent;
    struct tr_map binds;       /* tr_target_key -> tr_target_ent */
    struct tr_target_key last_key;
    struct tr_target *last_target;
    struct tr_generation *generation;
    /* shared */
    _Atomic uint64_t done;
    _Atomic bool want_room, want_idle, want_done;
};

int tr_out_new(struct tr_worker *w, struct tr_sink_rt *k, struct tr_out **ret)
{
    struct tr_out *o = tr_calloc(1, sizeof *o);
    if (!o)
        return TR_NOMEM;
    o->w = w;
    o->k = k;
    tr_list_init(&o->open);
    tr_list_init(&o->idle);
    tr_list_init(&o->touched);
    tr_pqueue_init(&o->linger);
    tr_u64map_init(&o->by_key);
    tr_map_init(&o->binds);
    o->sides = tr_calloc(k->n_shards, sizeof *o->sides);
    if (!o->sides) {
        tr_free(o);
        return TR_NOMEM;
    }
    for (uint32_t i = 0; i < k->n_shards; i++)
        tr_list_init(&o->sides[i].parked);
    o->generation = tr_refusals_enter(&k->refusals, NULL); /* nothing runs yet */
    *ret = o;
    return TR_OK;
}

static void fail_nomem(struct tr_out *o, const char *what)
{
    struct tr_err err;
    tr_err_set(&err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory for %s", o->k->name, what);
    tr_pl_fail(o->w->p, &err);
}

/* ---- shipping ------------------------------------------------------------------------------------------------------ */

static void send(struct tr_out *o, uint32_t shard, struct tr_msg *m)
{
    struct shard_side *side = &o->sides[shard];
    m->it.group = o->w->index;
    if (m->seg) {
        o->sent++;
        side->unflushed = side->unforced = true;
    }
    if (m->flags & TR_MSG_IDLE)
        side->unflushed = false;
    if (m->flags & TR_MSG_FORCE)
        side->unflushed = side->unforced = false;
    if (tr_list_empty(&side->parked)) {
        int rc = tr_queue_try_push(&o->k->shards[shard].queue, m);
        if (rc == TR_OK)
            return;
        if (rc == TR_EOF) { /* torn down before us */
            tr_msg_fail(m);
            return;
        }
    }
    tr_list_push_back(&side->parked, &m->it.node);
    o->n_parked++;
}

static void send_mark(struct tr_out *o, uint32_t shard, uint8_t flags)
{
    struct tr_msg *m = tr_msg_new(o);
    if (!m) {
        fail_nomem(o, "a mark");
        return;
    }
    m->flags = flags;
    send(o, shard, m);
}

static bool unpark_side(struct tr_out *o, uint32_t shard)
{
    struct shard_side *side = &o->sides[shard];
    while (!tr_list_empty(&side->parked)) {
        struct tr_batcher_item *it = tr_container_of(tr_list_first(&side->parked), struct tr_batcher_item, node);
        struct tr_msg *m = tr_container_of(it, struct tr_msg, it);
        tr_list_del(&it->node); /* before the push: from then on it is the shard's */
        int rc = tr_queue_try_push(&o->k->shards[shard].queue, m);
        if (rc == TR_AGAIN) {
            tr_list_push_front(&side->parked, &it->node);
            return false;
        }
        o->n_parked--;
        if (rc == TR_EOF)
            tr_msg_fail(m);
    }
    return true;
}

bool tr_out_unpark(struct tr_out *o)
{
    if (!o->n_parked)
        return true;
    /* The flag first: a pop after it wakes us, a pop before it is seen by the push. */
    atomic_store(&o->want_room, true);
    bool all = true;
    for (uint32_t i = 0; i < o->k->n_shards; i++)
        all &= unpark_side(o, i);
    if (all)
        atomic_store(&o->want_room, false);
    return all;
}

static void chunk_free(struct tr_out *o, struct open_chunk *c)
{
    if (o->last == c)
        o->last = NULL;
    tr_u64map_del(&o->by_key, c->key, NULL);
    tr_list_del(&c->node);
    tr_list_del(&c->touched);
    if (c->enc)
        c->enc->ops->free(c->enc);
    tr_free(c);
}

/* The chunk has no message any more. */
static void chunk_idle(struct tr_out *o, struct open_chunk *c)
{
    tr_pqueue_remove(&o->linger, &c->linger);
    tr_list_del(&c->touched);
    tr_list_del(&c->node);
    tr_list_push_back(&o->idle, &c->node);
    o->open_bytes -= c->charge;
    c->charge = 0;
    c->msg = NULL;
    o->n_open--;
    if (++o->n_idle > TR_ENCODERS_IDLE_MAX) {
        chunk_free(o, tr_container_of(tr_list_first(&o->idle), struct open_chunk, node));
        o->n_idle--;
    }
}

static void ship(struct tr_out *o, struct open_chunk *c, uint8_t flags)
{
    struct tr_msg *m = c->msg;
    struct tr_err err = {0};
    uint32_t shard = c->shard;
    if (c->enc->ops->finish_chunk && c->enc->ops->finish_chunk(c->enc, &m->seg->buf, &err) < 0) {
        tr_pl_answered(&err, TR_FATAL, o->k->name);
        tr_pl_fail(o->w->p, &err);
    }
    size_t n = m->seg->buf.n, cap = 4096;
    while (cap < n + n / 4 && cap < o->k->t.chunk_bytes)
        cap *= 2;
    c->guess = TR_MIN(cap, (size_t)o->k->t.chunk_bytes);
    tr_seg_recharge(m->seg);
    tr_seg_trim(m->seg);
    m->it.target = (uintptr_t)c->target;
    m->it.table = (uint64_t)c->target->table_id << 8 | (uint64_t)c->target->variant;
    m->it.rows = m->rows;
    m->it.bytes = m->seg->buf.n;
    m->it.charge = m->seg->charge;
    m->flags = flags;
    if (!(flags & TR_MSG_BOUNDARY))
        o->shipped_in_tx = true;
    chunk_idle(o, c);
    send(o, shard, m);
}

/* Ships what is open for one shard; the last chunk carries the flags, which go out as a mark of their own when nothing is open but
 * something before is not yet covered by them. */
static void ship_shard(struct tr_out *o, uint32_t s, uint8_t flags)
{
    struct open_chunk *last = NULL;
    TR_LIST_EACH (n, &o->open) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
        if (c->shard != s)
            continue;
        if (last)
            ship(o, last, 0);
        last = c;
    }
    if (last)
        ship(o, last, flags);
    else if (((flags & TR_MSG_BOUNDARY) && o->shipped_in_tx) || ((flags & TR_MSG_IDLE) && o->sides[s].unflushed) ||
             ((flags & TR_MSG_FORCE) && o->sides[s].unforced))
        send_mark(o, s, flags);
}

static void ship_all(struct tr_out *o, uint8_t flags)
{
    for (uint32_t s = 0; s < o->k->n_shards; s++)
        ship_shard(o, s, flags);
    if (flags & TR_MSG_BOUNDARY)
        o->shipped_in_tx = o->tx_full = false;
}

static uint8_t boundary_flag(const struct tr_out *o)
{
    return o->k->boundary ? TR_MSG_BOUNDARY : 0;
}

/* A chunk that may not stay open. Between transactions of a BOUNDARY sink all go, with the mark; inside one its end brings the rest. */
static void ship_early(struct tr_out *o, struct open_chunk *c)
{
    if (o->k->boundary && !o->tx_open)
        ship_all(o, TR_MSG_BOUNDARY);
    else
        ship(o, c, 0);
}

static void ship_table(struct tr_out *o, uint32_t table_id, enum tr_target_variant variant)
{
    for (struct open_chunk *found = NULL;; found = NULL) {
        TR_LIST_EACH (n, &o->open) {
            struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
            if (!found && c->target->table_id == table_id && c->target->variant == variant)
                found = c;
        }
        if (!found)
            return;
        ship_early(o, found);
    }
}

/* ---- room, bind ---------------------------------------------------------------------------------------------------- */

int tr_out_room(struct tr_out *o)
{
    if (o->w->budget.engaged || !tr_out_unpark(o) || tr_pool_above_high(&o->w->p->pool))
        return TR_AGAIN;
    return TR_OK;
}

static struct tr_target_ent *find_ent(struct tr_sink_rt *k, const struct tr_target_key *key, bool swap)
{
    TR_LIST_EACH (n, &k->targets) {
        struct tr_target_ent *e = tr_container_of(n, struct tr_target_ent, node);
        if (!e->forgotten && e->swap == swap && memcmp(&e->key, key, sizeof *key) == 0)
            return e;
    }
    return NULL;
}

/* Under the sink's lock. */
static struct tr_target_ent *ask(struct tr_sink_rt *k, const struct tr_target_key *key, const struct tr_schema *s, bool swap)
{
    struct tr_target_ent *e = find_ent(k, key, swap);
    if (e)
        return e;
    e = tr_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->key = *key;
    e->swap = swap;
    e->schema = s ? tr_schema_ref(s) : NULL;
    e->not_before_ns = INT64_MIN;
    tr_list_push_back(&k->targets, &e->node);
    tr_waker_wake(&k->waker);
    return e;
}

static void check_generation(struct tr_out *o)
{
    if (atomic_load_explicit(&o->k->generation, memory_order_acquire) == o->generation->n)
        return;
    tr_mutex_lock(&o->k->lock);
    o->generation = tr_refusals_enter(&o->k->refusals, o->generation);
    tr_mutex_unlock(&o->k->lock);
    o->last_target = NULL;
    tr_map_clear(&o->binds);
}

int tr_out_bind(struct tr_out *o, const struct tr_schema *s, enum tr_target_variant variant, uint64_t snapshot_id, struct tr_target **ret,
                struct tr_err *err)
{
    struct tr_sink_rt *k = o->k;
    struct tr_target_key key = {0};
    if (!k->one_target) {
        TR_ASSERT(s != NULL);
        key = (struct tr_target_key){.table_id = s->table_id, .version = s->version, .snapshot_id = snapshot_id, .variant = (uint32_t)variant};
    }
    check_generation(o);
    if (o->last_target && memcmp(&key, &o->last_key, sizeof key) == 0) {
        *ret = o->last_target;
        return TR_OK;
    }
    struct tr_target_ent *e = tr_map_get(&o->binds, tr_slice_of(&key, sizeof key));
    int rc = TR_OK;
    if (!e) {
        tr_mutex_lock(&k->lock);
        e = ask(k, &key, s, false);
        if (!e)
            rc = tr_err_set(err, TR_NOT_READY, TR_DOM_ENGINE, "sink %s: no memory to bind", k->name);
        else if (e->state == TR_BIND_PENDING)
            rc = tr_err_set(err, TR_NOT_READY, TR_DOM_ENGINE, "sink %s: binding a table", k->name);
        else if (e->state == TR_BIND_REFUSED) {
            *err = e->err;
            rc = TR_REJECT;
        }
        tr_mutex_unlock(&k->lock);
        if (rc < 0)
            return rc;
        if (tr_map_put(&o->binds, tr_slice_of(&key, sizeof key), e, NULL) < 0)
            return tr_err_set(err, TR_NOT_READY, TR_DOM_ENGINE, "sink %s: no memory to bind", k->name);
    }
    o->last_key = key;
    o->last_target = e->target;
    *ret = e->target;
    return TR_OK;
}

int tr_out_swap(struct tr_out *o, const struct tr_schema *s, uint64_t snapshot_id, struct tr_err *err)
{
    struct tr_sink_rt *k = o->k;
    struct tr_target_key key = {.table_id = s->table_id, .version = s->version, .snapshot_id = snapshot_id};
    tr_mutex_lock(&k->lock);
    struct tr_target_ent *e = ask(k, &key, s, true);
    int rc = TR_OK;
    if (!e || e->state == TR_BIND_PENDING) {
        rc = tr_err_set(err, TR_NOT_READY, TR_DOM_ENGINE, "sink %s: swapping a table", k->name);
    } else {
        if (e->state == TR_BIND_REFUSED) {
            *err = e->err;
            rc = err->rc == TR_NOT_READY ? TR_AGAIN : err->rc;
        }
        tr_target_ent_free(e); /* asked again, it is done again */
    }
    tr_mutex_unlock(&k->lock);
    return rc;
}

void tr_out_unbind(struct tr_out *o, uint32_t table_id, enum tr_target_variant variant)
{
    struct tr_sink_rt *k = o->k;
    tr_mutex_lock(&k->lock);
    TR_LIST_EACH (n, &k->targets) {
        struct tr_target_ent *e = tr_container_of(n, struct tr_target_ent, node);
        if (!e->swap && e->key.table_id == table_id && e->key.variant == (uint32_t)variant)
            e->forgotten = true;
    }
    uint64_t generation;
    int rc = tr_refusals_unbound(&k->refusals, table_id, (uint32_t)variant, &generation);
    if (rc >= 0)
        atomic_store_explicit(&k->generation, generation, memory_order_release);
    tr_mutex_unlock(&k->lock);
    if (rc < 0)
        fail_nomem(o, "letting go of a table");
    ship_table(o, table_id, variant); /* what is put from here on must not share a chunk with it */
    check_generation(o);
    TR_LIST_EACH (n, &o->idle) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
        if (c->target->table_id == table_id && c->target->variant == variant) {
            chunk_free(o, c);
            o->n_idle--;
        }
    }
}

/* ---- put ------------------------------------------------------------------------------------------------------------ */

static uint32_t shard_of(const struct tr_out *o, const struct tr_change *c)
{
    uint32_t n = o->k->n_shards;
    return n == 1 ? 0 : (uint32_t)(tr_hash64(c->key.p, c->key.n) % n);
}

/* What stands open of the same table in another definition goes first, or two rows of a key might change places. */
static void ship_rival(struct tr_out *o, const struct tr_target *t, uint32_t shard)
{
    TR_LIST_EACH (n, &o->open) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
        if (c->target == t || c->shard != shard || c->target->table_id != t->table_id || c->target->variant != t->variant)
            continue;
        ship_early(o, c);
        return; /* there is one at most */
    }
}

static int chunk_find(struct tr_out *o, struct tr_target *t, uint32_t shard, struct open_chunk **ret, struct tr_err *err)
{
    struct open_chunk *c = o->last;
    if (c && c->target == t && c->shard == shard) {
        *ret = c;
        return TR_OK;
    }
    uint64_t key = (uint64_t)(uintptr_t)t << 16 | shard;
    c = tr_u64map_get_ptr(&o->by_key, key);
    if (!c) {
        c = tr_calloc(1, sizeof *c);
        if (!c || tr_u64map_put_ptr(&o->by_key, key, c) < 0) {
            tr_free(c);
            return tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory for a chunk", o->k->name);
        }
        tr_list_init(&c->node);
        tr_list_init(&c->touched);
        c->key = key;
        c->target = t;
        c->shard = shard;
        c->guess = TR_MIN((size_t)16384, (size_t)o->k->t.chunk_bytes);
        int rc = o->k->sink->ops->encoder_new(o->k->sink, t, &c->enc, err);
        if (rc < 0) {
            c->enc = NULL;
            chunk_free(o, c);
            return rc;
        }
        tr_list_push_back(&o->idle, &c->node);
        o->n_idle++;
    }
    o->last = c;
    *ret = c;
    return TR_OK;
}

static int chunk_begin(struct tr_out *o, struct open_chunk *c, struct tr_err *err)
{
    struct tr_msg *m = tr_msg_new(o);
    /* tr_out_room was asked for this payload, so it is taken even if the budget has been used up since. */
    if (!m || tr_pqueue_reserve(&o->linger, o->linger.n + 1) < 0 || tr_seg_force(&o->w->p->pool, c->guess, &m->seg) < 0) {
        if (m)
            tr_msg_fail(m);
        return tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory for a chunk of %zu bytes", o->k->name, c->guess);
    }
    m->target = c->target;
    m->generation = tr_generation_ref(o->generation);
    m->it.binding = o->generation->n;
    m->it.oldest_ns = o->w->now_ns;
    c->msg = m;
    c->mark_bytes = 0;
    c->mark_rows = c->mark_acks = 0;
    c->charge = m->seg->charge;
    o->open_bytes += c->charge;
    tr_list_del(&c->node);
    tr_list_push_back(&o->open, &c->node);
    o->n_idle--;
    o->n_open++;
    /* Half of the linger is the chunk's, the rest the batch's. */
    tr_pqueue_push(&o->linger, &c->linger, tr_deadline_ns(o->w->now_ns, o->k->t.linger_ns / 2));
    return TR_OK;
}

static int span_note(struct tr_msg *m, const struct tr_ack *a, int64_t pos)
{
    for (uint32_t i = m->n_spans; i-- > 0;) {
        struct tr_span *s = &m->spans[i];
        if (s->lane == a->lane && s->epoch == a->epoch) {
            if (pos < s->first)
                s->first = pos;
            if (pos > s->last)
                s->last = pos;
            return TR_OK;
        }
    }
    if (m->n_spans == m->cap_spans) {
        struct tr_span *v = tr_malloc(2 * m->cap_spans * sizeof *v);
        if (!v)
            return TR_NOMEM;
        memcpy(v, m->spans, m->n_spans * sizeof *v);
        if (m->spans != m->inline_span)
            tr_free(m->spans);
        m->spans = v;
        m->cap_spans *= 2;
    }
    m->spans[m->n_spans++] = (struct tr_span){.lane = a->lane, .epoch = a->epoch, .first = pos, .last = pos};
    return TR_OK;
}

static size_t held(const struct open_chunk *c)
{
    return c->msg->seg->buf.n + (c->enc->ops->buffered ? c->enc->ops->buffered(c->enc) : 0);
}

static uint64_t row_bytes(const struct tr_change *c, uint32_t *ret_largest)
{
    uint64_t sum = c->key.n + c->old_key.n + c->message.n, most = 0;
    *ret_largest = UINT32_MAX;
    const struct tr_row *rows[] = {&c->after, &c->before};
    for (size_t r = 0; r < TR_ARRAY_LEN(rows); r++)
        for (uint32_t i = 0; i < rows[r]->n; i++)
            if (rows[r]->state[i] == TR_PRESENT) {
                sum += rows[r]->v[i].n;
                if (rows[r]->v[i].n > most) {
                    most = rows[r]->v[i].n;
                    *ret_largest = i;
                }
            }
    return sum;
}

/* Names the row that is too large, by table and its largest column. */
static int refuse_large(struct tr_out *o, const struct tr_change *v, uint32_t n, struct tr_err *err)
{
    uint32_t at = 0, largest = UINT32_MAX, column;
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t b = row_bytes(&v[i], &column);
        if (b >= most) {
            most = b;
            at = i;
            largest = column;
        }
    }
    const struct tr_schema *s = v[at].schema;
    return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "table %s.%s: a row of about %llu bytes (most of it in column %s) exceeds the largest row of sink %s, %llu bytes: raise max_inflight",
                      s ? s->ns : "", s ? s->name : "", (unsigned long long)most, s && largest < s->n_columns ? s->columns[largest].name : "?",
                      o->k->name, (unsigned long long)o->k->t.record_bytes_max);
}

static bool too_large(const struct tr_out *o, const struct tr_change *v, uint32_t n)
{
    uint32_t column;
    for (uint32_t i = 0; i < n; i++)
        if (row_bytes(&v[i], &column) > o->k->t.record_bytes_max)
            return true;
    return false;
}

static int encode_run(struct tr_out *o, struct open_chunk *c, const struct tr_change *v, uint32_t n, struct tr_err *err)
{
    struct tr_buf *buf = &c->msg->seg->buf;
    uint32_t done = 0;
    size_t before = buf->n;
    bool holds = c->enc->ops->buffered != NULL;
    if (holds && too_large(o, v, n)) /* what it holds inside cannot be taken back */
        return refuse_large(o, v, n, err);
    int rc = c->enc->ops->encode(c->enc, v, n, &done, buf, err);
    if (rc >= 0 && !holds && buf->n - before > o->k->t.record_bytes_max && (n == 1 || too_large(o, v, n)))
        rc = refuse_large(o, v, n, err);
    if (rc < 0) {
        if (!holds)
            buf->n = before;
        if (rc == TR_NOMEM)
            rc = tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory to encode a row", o->k->name);
    }
    return rc < 0 ? rc : TR_OK;
}

static bool chunk_full(const struct tr_out *o, const struct open_chunk *c, uint32_t factor)
{
    const struct tr_sink_tuning *t = &o->k->t;
    return held(c) >= t->chunk_bytes * factor || c->msg->acks.n >= t->acks_max * factor || c->msg->rows >= t->batch_rows_max;
}

static void mark_touched(struct tr_out *o)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(&o->touched))) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, touched);
        c->mark_bytes = c->msg->seg->buf.n;
        c->mark_rows = c->msg->rows;
        c->mark_acks = c->msg->acks.n;
    }
}

static void enforce_limits(struct tr_out *o)
{
    while (o->n_open > o->k->t.open_chunks_max || (o->open_bytes > o->k->t.open_bytes_max && o->n_open > 1)) {
        struct open_chunk *best = NULL;
        TR_LIST_EACH (n, &o->open) { /* oldest first, so that equals fall to the oldest */
            struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
            if (!best || c->charge > best->charge)
                best = c;
        }
        if (o->k->boundary && !o->tx_open)
            ship_all(o, TR_MSG_BOUNDARY);
        else
            ship(o, best, 0);
    }
}

/* ret->msg is there, with room to encode into. */
static int put_begin(struct tr_out *o, struct tr_target *t, uint32_t shard, struct open_chunk **ret, struct tr_err *err)
{
    struct open_chunk *c = o->last;
    if (!c || c->target != t || c->shard != shard || !c->msg)
        ship_rival(o, t, shard);
    int rc = chunk_find(o, t, shard, &c, err);
    if (rc < 0 || (!c->msg && (rc = chunk_begin(o, c, err)) < 0))
        return rc;
    *ret = c;
    return TR_OK;
}

/* Nothing was put after all. */
static void put_undo(struct tr_out *o, struct open_chunk *c)
{
    struct tr_msg *m = c->msg;
    if (m->rows == 0) { /* nothing else is in it */
        chunk_idle(o, c);
        tr_msg_fail(m);
    }
}

/* Rows were appended to the chunk: n of them count from here on. */
static int put_end(struct tr_out *o, struct open_chunk *c, uint32_t n, bool opens_tx, bool dependent, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    struct tr_msg *m = c->msg;
    uint32_t acks = m->acks.n;
    /* An ack held without a row is harmless; a row without its ack would be a loss. So the ack comes before the count. */
    if (tr_ackset_add(&m->acks, ack) < 0 || span_note(m, ack, pos) < 0) {
        put_undo(o, c);
        return tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "sink %s: no memory for an ack", o->k->name);
    }
    m->rows += n;
    m->dependent |= dependent;
    o->tx_open |= opens_tx;
    if (m->seg->buf.cap != m->seg->charge)
        tr_seg_recharge(m->seg);
    o->open_bytes += m->seg->charge - c->charge;
    c->charge = m->seg->charge;
    if (o->k->boundary) {
        if (tr_list_empty(&c->touched)) {
            tr_list_push_back(&o->touched, &c->touched);
            c->tail_shares = m->acks.n == acks;
        }
        if (!o->tx_open) {
            mark_touched(o);
            if (chunk_full(o, c, 1))
                ship_all(o, TR_MSG_BOUNDARY);
        } else if (chunk_full(o, c, 2)) {
            ship(o, c, 0);
        } else {
            o->tx_full |= chunk_full(o, c, 1);
        }
    } else if (chunk_full(o, c, 1)) {
        ship(o, c, 0);
    }
    enforce_limits(o);
    return TR_OK;
}

static int put_run(struct tr_out *o, struct tr_target *t, uint32_t shard, const struct tr_change *v, uint32_t n, struct tr_ack *ack, int64_t pos,
                   struct tr_err *err)
{
    struct open_chunk *c;
    bool opens_tx = false, dependent = false;
    int rc = put_begin(o, t, shard, &c, err);
    if (rc < 0)
        return rc;
    rc = encode_run(o, c, v, n, err);
    if (rc < 0) {
        put_undo(o, c);
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) {
        dependent |= (v[i].flags & (TR_CHG_MOVED | TR_CHG_UNCHANGED)) != 0 || v[i].op == TR_OP_TRUNCATE ||
                     (v[i].op == TR_OP_DELETE && (o->k->sink->caps & TR_CAP_COMPLETE_DELETES));
        opens_tx |= tr_op_opens_tx(v[i].op);
    }
    return put_end(o, c, n, opens_tx, dependent, ack, pos, err);
}

/* A row of a table is its key's shard's; a history's, which is of both keys, is the new one's. */
static bool of_its_key(const struct tr_target *t)
{
    return t->variant == TR_TARGET_MIRROR || t->variant == TR_TARGET_SHADOW;
}

static int refuse_move(const struct tr_out *o, const struct tr_change *v, struct tr_err *err)
{
    uint32_t i = 0;
    while (i + 1 < v->after.n && v->after.state[i] != TR_UNCHANGED)
        i++;
    return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE,
                      "table %s.%s: a change of a row's key moves it to another shard of sink %s, and the source did not send column %s, which it left as it was: ALTER TABLE %s.%s REPLICA IDENTITY FULL, or one shard, then take a new snapshot: tailrace table resnapshot %s.%s",
                      v->schema->ns, v->schema->name, o->k->name, v->schema->columns[i].name, v->schema->ns, v->schema->name, v->schema->ns, v->schema->name);
}

/* A key update whose keys are of two shards: to each what is its own. */
static int put_apart(struct tr_out *o, struct tr_target *t, const struct tr_change *v, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    struct tr_change old = *v, now = *v;
    old.op = TR_OP_DELETE;
    old.flags = 0;
    old.key = v->old_key;
    old.after = (struct tr_row){0};
    now.flags &= (uint16_t)~TR_CHG_MOVED;
    now.version++;
    old.old_key = now.old_key = (struct tr_slice){NULL, 0};
    if ((v->flags & TR_CHG_UNCHANGED) && !(v->flags & TR_CHG_NO_UPSERT))
        return refuse_move(o, v, err);
    int rc = v->flags & TR_CHG_NO_UPSERT ? TR_OK : put_run(o, t, shard_of(o, &now), &now, 1, ack, pos, err);
    return rc >= 0 ? put_run(o, t, shard_of(o, &old), &old, 1, ack, pos, err) : rc;
}

/* One that is not its key's shard's alone. 0: it is. */
static int put_everywhere(struct tr_out *o, struct tr_target *t, const struct tr_change *v, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    int rc = TR_OK;
    if (!of_its_key(t))
        return 0;
    if ((v->flags & TR_CHG_MOVED) && tr_hash64(v->key.p, v->key.n) % o->k->n_shards != tr_hash64(v->old_key.p, v->old_key.n) % o->k->n_shards)
        rc = put_apart(o, t, v, ack, pos, err);
    else if (v->op == TR_OP_TRUNCATE)
        for (uint32_t s = 0; s < o->k->n_shards && rc >= 0; s++)
            rc = put_run(o, t, s, v, 1, ack, pos, err);
    else
        return 0;
    return rc < 0 ? rc : 1;
}

int tr_out_put(struct tr_out *o, struct tr_target *t, const struct tr_change *v, uint32_t n, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    if (o->k->n_shards == 1)
        return n ? put_run(o, t, 0, v, n, ack, pos, err) : TR_OK;
    for (uint32_t i = 0, k; i < n; i = k) {
        uint32_t shard = shard_of(o, &v[i]);
        int rc = put_everywhere(o, t, &v[i], ack, pos, err);
        for (k = i + 1; rc == 0 && k < n && shard_of(o, &v[k]) == shard && !(v[k].flags & TR_CHG_MOVED) && v[k].op != TR_OP_TRUNCATE;)
            k++;
        if (rc == 0)
            rc = put_run(o, t, shard, v + i, k - i, ack, pos, err);
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

int tr_out_open(struct tr_out *o, struct tr_target *t, struct tr_slice key, struct tr_buf **ret, struct tr_err *err)
{
    TR_ASSERT(!o->inline_chunk);
    struct open_chunk *c;
    uint32_t n = o->k->n_shards;
    int rc = put_begin(o, t, n == 1 ? 0 : (uint32_t)(tr_hash64(key.p, key.n) % n), &c, err);
    if (rc < 0)
        return rc;
    if (c->enc->ops->buffered) {
        put_undo(o, c);
        return tr_err_set(err, TR_FATAL, TR_DOM_ENGINE, "sink %s writes blocks of columns, which cannot be encoded row by row from outside: hand it rows", o->k->name);
    }
    o->inline_chunk = c;
    o->inline_from = c->msg->seg->buf.n;
    *ret = &c->msg->seg->buf;
    return TR_OK;
}

int tr_out_close(struct tr_out *o, bool keep, struct tr_ack *ack, int64_t pos, struct tr_err *err)
{
    struct open_chunk *c = o->inline_chunk;
    TR_ASSERT(c);
    struct tr_buf *buf = &c->msg->seg->buf;
    size_t bytes = buf->n - o->inline_from;
    int rc = TR_OK;
    o->inline_chunk = NULL;
    if (keep && bytes <= o->k->t.record_bytes_max)
        return put_end(o, c, 1, true, false, ack, pos, err);
    if (keep)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "a row of %zu bytes exceeds the largest row of sink %s, %llu bytes: raise max_inflight", bytes, o->k->name,
                        (unsigned long long)o->k->t.record_bytes_max);
    buf->n = o->inline_from;
    put_undo(o, c);
    return rc;
}

/* ---- ends, flushes, barrier ----------------------------------------------------------------------------------------- */

int tr_out_tx_end(struct tr_out *o, struct tr_err *err)
{
    (void)err;
    o->tx_open = false;
    if (!o->k->boundary)
        return TR_OK;
    mark_touched(o);
    if (o->shipped_in_tx || o->tx_full)
        ship_all(o, TR_MSG_BOUNDARY);
    return TR_OK;
}

/* FINAL inside a transaction: the open chunks are cut back to where it began, and what is cut off fails. */
static void cut_tail(struct tr_out *o)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(&o->touched))) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, touched);
        struct tr_msg *m = c->msg;
        bool holds = c->enc->ops->buffered && c->enc->ops->buffered(c->enc);
        if (c->mark_rows == 0 || holds) {
            chunk_idle(o, c);
            tr_msg_fail(m);
            continue;
        }
        struct tr_ack **v = m->acks.v ? m->acks.v : m->acks.inline_v;
        for (uint32_t i = c->mark_acks - c->tail_shares; i < m->acks.n; i++)
            tr_ack_fail(v[i]);
        m->seg->buf.n = c->mark_bytes;
        m->rows = c->mark_rows;
    }
}

static void flush_final(struct tr_out *o)
{
    if (o->k->boundary && o->tx_open) {
        if (o->shipped_in_tx) { /* the shard holds a part: it fails its staging, we ours */
            TR_LIST_EACH (n, &o->open) {
                struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
                struct tr_msg *m = c->msg;
                chunk_idle(o, c);
                tr_msg_fail(m);
            }
            return;
        }
        cut_tail(o);
        o->tx_open = false;
    }
    ship_all(o, (uint8_t)(TR_MSG_FORCE | boundary_flag(o)));
}

/* A shard that is writing gets no more for now: rows go on gathering in larger chunks, and it wakes us when it is quiet. */
static void flush_idle(struct tr_out *o)
{
    if (o->k->boundary && o->tx_open)
        return;
    atomic_store(&o->want_idle, true); /* before the look: a shard that becomes quiet after it wakes us */
    for (uint32_t s = 0; s < o->k->n_shards; s++)
        if (atomic_load(&o->k->shards[s].quiet))
            ship_shard(o, s, (uint8_t)(TR_MSG_IDLE | boundary_flag(o)));
    if (o->k->boundary && !o->sides[0].unflushed)
        o->shipped_in_tx = o->tx_full = false;
    bool rest = o->n_open > 0;
    for (uint32_t s = 0; s < o->k->n_shards; s++)
        rest |= o->sides[s].unflushed;
    if (!rest)
        atomic_store(&o->want_idle, false);
}

void tr_out_flush(struct tr_out *o, enum tr_flush why, int64_t now_ns)
{
    tr_out_unpark(o);
    switch (why) {
    case TR_FLUSH_IDLE:
        flush_idle(o);
        break;
    case TR_FLUSH_LINGER:
        if (tr_out_next_linger(o) > now_ns)
            break;
        if (o->k->boundary) {
            ship_all(o, TR_MSG_BOUNDARY);
            break;
        }
        while (tr_pqueue_next_key(&o->linger) <= now_ns)
            ship(o, tr_container_of(tr_pqueue_peek(&o->linger), struct open_chunk, linger), 0);
        break;
    case TR_FLUSH_FINAL:
        flush_final(o);
        break;
    }
}

int64_t tr_out_next_linger(const struct tr_out *o)
{
    return o->k->boundary && o->tx_open ? INT64_MAX : tr_pqueue_next_key(&o->linger);
}

void tr_out_force(struct tr_out *o)
{
    if (!(o->k->boundary && o->tx_open))
        ship_all(o, (uint8_t)(TR_MSG_FORCE | boundary_flag(o)));
}

void tr_out_press(struct tr_out *o)
{
    if (o->k->boundary && o->tx_open && o->n_open && !o->n_parked)
        ship_all(o, 0);
}

int tr_out_barrier(struct tr_out *o, struct tr_err *err)
{
    TR_ASSERT(!o->tx_open || !o->k->boundary);
    ship_all(o, (uint8_t)(TR_MSG_FORCE | boundary_flag(o)));
    atomic_store(&o->want_done, true);
    if (atomic_load(&o->done) != o->sent)
        return tr_err_set(err, TR_NOT_READY, TR_DOM_ENGINE, "sink %s: waiting until what was sent is durable", o->k->name);
    atomic_store(&o->want_done, false);
    return TR_OK;
}

void tr_out_on_done(struct tr_out *o)
{
    atomic_fetch_add(&o->done, 1);
    if (atomic_load(&o->want_done))
        tr_waker_wake(&o->w->waker);
}

void tr_out_wake(struct tr_out *o, bool room, bool idle)
{
    if ((room && atomic_exchange(&o->want_room, false)) || (idle && atomic_exchange(&o->want_idle, false)))
        tr_waker_wake(&o->w->waker);
}

/* ---- teardown ------------------------------------------------------------------------------------------------------- */

void tr_out_abandon(struct tr_out *o)
{
    TR_LIST_EACH (n, &o->open) {
        struct open_chunk *c = tr_container_of(n, struct open_chunk, node);
        struct tr_msg *m = c->msg;
        chunk_idle(o, c);
        tr_msg_fail(m);
    }
    for (uint32_t i = 0; i < o->k->n_shards; i++) {
        struct tr_list *n;
        while ((n = tr_list_pop_front(&o->sides[i].parked)))
            tr_msg_fail(tr_container_of(tr_container_of(n, struct tr_batcher_item, node), struct tr_msg, it));
    }
    o->n_parked = 0;
    TR_LIST_EACH (n, &o->idle)
        chunk_free(o, tr_container_of(n, struct open_chunk, node));
    o->n_idle = 0;
}

void tr_out_free(struct tr_out *o)
{
    if (!o)
        return;
    tr_out_abandon(o);
    tr_pqueue_done(&o->linger);
    tr_u64map_done(&o->by_key);
    tr_map_done(&o->binds);
    tr_free(o->sides);
    tr_generation_unref(o->generation);
    tr_free(o);
}
