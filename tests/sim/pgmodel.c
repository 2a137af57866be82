#include "pgmodel.h"

#include <string.h>

#include <tailrace/clock.h>

#include "check.h"

void pgmodel_init(struct pgmodel *m, struct tr_prng *prng, struct pg_counts *c)
{
    memset(m, 0, sizeof *m);
    m->prng = prng;
    m->c = c;
    m->next_xid = 10;
    m->latest_xid = 9;
    m->up = true;
    m->boot = 1;
    m->timeline = 1;
    m->value = 100;
    /* transaction 0 wrote what was there before */
    m->tx[0] = (struct pg_tx){.state = TX_VISIBLE, .parent = -1, .xid = 9, .commit_rec = -1, .sub = -1};
    m->n_tx = 1;
    for (uint32_t t = 0; t < PG_TABLES; t++) {
        m->membership[t] = (UINT64_C(1) << 32) + t + 1;
        for (uint32_t k = 1; k <= PG_KEYS; k++)
            if (tr_prng_chance(prng, 1, 2))
                m->ver[m->n_ver++] = (struct pg_ver){.table = (uint8_t)t, .key = (uint8_t)k, .a = k, .t = k + 10, .xmin = 0, .xmax = -1, .indexed = true};
    }
}

/* ---- transactions ---- */

int pgmodel_top(const struct pgmodel *m, int tx)
{
    return m->tx[tx].parent < 0 ? tx : m->tx[tx].parent;
}

static enum pg_tx_state state_of(const struct pgmodel *m, int tx)
{
    const struct pg_tx *t = &m->tx[tx];
    return t->parent < 0 || t->state == TX_ABORTED ? t->state : m->tx[t->parent].state;
}

bool pgmodel_open(const struct pgmodel *m, int tx)
{
    enum pg_tx_state s = state_of(m, tx);
    return s == TX_ACTIVE || s == TX_RECORDED;
}

static uint32_t write_rec(struct pgmodel *m, struct pg_rec r)
{
    TR_ASSERT(m->n_wal < PG_REC_MAX);
    m->wal[m->n_wal] = r;
    return m->n_wal++;
}

static int make_tx(struct pgmodel *m, int parent)
{
    TR_ASSERT(m->n_tx < PG_TX_MAX);
    struct pg_tx *t = &m->tx[m->n_tx];
    *t = (struct pg_tx){.state = TX_ACTIVE, .parent = parent, .commit_rec = -1, .sub = -1};
    for (uint32_t i = 0; i < PG_TABLES; i++)
        t->storage[i] = -1;
    return (int)m->n_tx++;
}

int pgmodel_begin(struct pgmodel *m)
{
    m->c->tx++;
    return make_tx(m, -1);
}

static void need_xid(struct pgmodel *m, int tx)
{
    struct pg_tx *t = &m->tx[tx];
    if (t->xid)
        return;
    if (t->parent >= 0)
        need_xid(m, t->parent);
    t->xid = m->next_xid++;
}

static void complete(struct pgmodel *m, int tx)
{
    for (uint32_t i = 0; i < m->n_tx; i++)
        if (((int)i == tx || m->tx[i].parent == tx) && m->tx[i].xid)
            m->latest_xid = TR_MAX(m->latest_xid, m->tx[i].xid);
}

void pgmodel_abort(struct pgmodel *m, int tx)
{
    struct pg_tx *t = &m->tx[tx];
    TR_ASSERT(t->parent < 0);
    t->state = TX_ABORTED;
    t->n_pending = 0;
    m->c->aborts++;
    if (t->xid) {
        write_rec(m, (struct pg_rec){.type = REC_ABORT, .tx = tx, .xid = t->xid});
        complete(m, tx);
    }
}

void pgmodel_savepoint(struct pgmodel *m, int tx)
{
    m->tx[tx].sub = make_tx(m, tx);
}

void pgmodel_rollback_to(struct pgmodel *m, int tx)
{
    int sub = m->tx[tx].sub;
    if (sub < 0 || m->tx[tx].n_pending || m->tx[tx].truncated)
        return;
    m->tx[sub].state = TX_ABORTED;
    m->tx[tx].sub = -1;
    if (m->tx[sub].xid) {
        m->c->sub_aborts++;
        write_rec(m, (struct pg_rec){.type = REC_SUB_ABORT, .tx = sub, .xid = m->tx[sub].xid});
    }
}

void pgmodel_commit(struct pgmodel *m, int tx)
{
    struct pg_tx *t = &m->tx[tx];
    if (!t->xid) {
        t->state = TX_ABORTED; /* has changed nothing */
        return;
    }
    t->state = TX_RECORDED;
    t->async = m->with_async && !t->truncated && tr_prng_chance(m->prng, 1, 2);
    t->hangs = m->with_hang && !t->async && tr_prng_chance(m->prng, 1, 2);
    t->commit_us = tr_wall_us();
    t->commit_rec = (int)write_rec(m, (struct pg_rec){.type = REC_COMMIT, .tx = tx, .xid = t->xid});
    m->c->commits++;
    if (!t->async && !t->hangs) {
        m->flushed = m->n_wal;
        pgmodel_show(m, tx);
    }
}

bool pgmodel_can_show(const struct pgmodel *m, int tx)
{
    const struct pg_tx *t = &m->tx[tx];
    return t->parent < 0 && t->state == TX_RECORDED && (t->async || m->flushed > (uint32_t)t->commit_rec);
}

void pgmodel_show(struct pgmodel *m, int tx)
{
    struct pg_tx *t = &m->tx[tx];
    t->state = TX_VISIBLE;
    complete(m, tx);
    for (uint32_t i = 0; i < PG_TABLES; i++)
        if (t->storage[i] >= 0)
            m->storage[i] = t->storage[i];
}

uint64_t pgmodel_xid(struct pgmodel *m)
{
    uint64_t x = m->next_xid++;
    write_rec(m, (struct pg_rec){.type = REC_ABORT, .tx = -1, .xid = x});
    m->latest_xid = TR_MAX(m->latest_xid, x);
    return x;
}

void pgmodel_beat(struct pgmodel *m, int64_t at_us)
{
    int tx = make_tx(m, -1);
    need_xid(m, tx);
    write_rec(m, (struct pg_rec){.type = REC_CHANGE, .kind = K_BEAT, .tx = tx, .a = (uint32_t)(at_us / 1000000), .t = (uint32_t)(at_us % 1000000), .xid = m->tx[tx].xid});
    m->tx[tx].state = TX_RECORDED;
    m->tx[tx].commit_us = tr_wall_us();
    m->tx[tx].commit_rec = (int)write_rec(m, (struct pg_rec){.type = REC_COMMIT, .tx = tx, .xid = m->tx[tx].xid});
    m->flushed = m->n_wal;
    pgmodel_show(m, tx);
    m->c->beats++;
}

void pgmodel_flush(struct pgmodel *m, uint32_t upto)
{
    m->flushed = TR_MAX(m->flushed, TR_MIN(upto, m->n_wal));
}

/* ---- rows ---- */

static bool mine(const struct pgmodel *m, int tx, int of)
{
    return pgmodel_top(m, of) == tx && state_of(m, of) != TX_ABORTED;
}

static int storage_of(const struct pgmodel *m, int tx, uint32_t table)
{
    return m->tx[tx].storage[table] >= 0 ? m->tx[tx].storage[table] : m->storage[table];
}

/* The version of the key that tx may change; -1: none, or *ret_wait: somebody is changing it. */
static int find(const struct pgmodel *m, int tx, uint32_t table, uint32_t key, bool *ret_wait)
{
    int storage = storage_of(m, tx, table);
    *ret_wait = false;
    for (uint32_t i = 0; i < m->n_ver; i++) {
        const struct pg_ver *v = &m->ver[i];
        if (v->gone || v->table != table || v->key != key || v->storage != storage || !v->indexed)
            continue;
        if (!mine(m, tx, v->xmin) && state_of(m, v->xmin) != TX_VISIBLE)
            continue;
        if (v->xmax >= 0 && state_of(m, v->xmax) != TX_ABORTED) {
            if (mine(m, tx, v->xmax) || state_of(m, v->xmax) == TX_VISIBLE)
                continue;
            *ret_wait = true;
            return -1;
        }
        return (int)i;
    }
    return -1;
}

enum unique { UNIQUE_OK, UNIQUE_WAIT, UNIQUE_VIOLATED };

static enum unique unique(const struct pgmodel *m, int tx, int at)
{
    const struct pg_ver *n = &m->ver[at];
    for (uint32_t i = 0; i < m->n_ver; i++) {
        const struct pg_ver *v = &m->ver[i];
        if ((int)i == at || v->gone || v->table != n->table || v->key != n->key || v->storage != n->storage || !v->indexed || state_of(m, v->xmin) == TX_ABORTED)
            continue;
        if (!mine(m, tx, v->xmin) && pgmodel_open(m, v->xmin))
            return UNIQUE_WAIT;
        if (v->xmax >= 0 && state_of(m, v->xmax) != TX_ABORTED) {
            if (mine(m, tx, v->xmax) || state_of(m, v->xmax) == TX_VISIBLE)
                continue;
            return UNIQUE_WAIT;
        }
        return UNIQUE_VIOLATED;
    }
    return UNIQUE_OK;
}

bool pgmodel_check(struct pgmodel *m, int tx)
{
    struct pg_tx *t = &m->tx[tx];
    while (t->n_pending) {
        enum unique u = unique(m, tx, t->pending[0]);
        if (u == UNIQUE_WAIT)
            return false;
        if (u == UNIQUE_VIOLATED) {
            pgmodel_abort(m, tx);
            return true;
        }
        m->ver[t->pending[0]].indexed = true;
        memmove(t->pending, t->pending + 1, --t->n_pending * sizeof *t->pending);
    }
    return true;
}

static void change(struct pgmodel *m, int tx, struct pg_rec r)
{
    int who = m->tx[tx].sub >= 0 ? m->tx[tx].sub : tx;
    need_xid(m, who);
    r.type = REC_CHANGE;
    r.tx = who;
    r.xid = m->tx[who].xid;
    write_rec(m, r);
    m->tx[tx].wrote[r.table] = true;
}

static int put(struct pgmodel *m, int tx, uint32_t table, uint32_t key, uint32_t a, uint32_t t, bool indexed)
{
    int who = m->tx[tx].sub >= 0 ? m->tx[tx].sub : tx;
    TR_ASSERT(m->n_ver < PG_VER_MAX);
    m->ver[m->n_ver] = (struct pg_ver){.table = (uint8_t)table, .key = (uint8_t)key, .a = a, .t = t, .xmin = who, .xmax = -1, .storage = storage_of(m, tx, table), .indexed = indexed};
    return (int)m->n_ver++;
}

static bool insert(struct pgmodel *m, int tx, uint32_t table, uint32_t key, bool late)
{
    struct pg_tx *t = &m->tx[tx];
    uint32_t a = ++m->value, b = ++m->value;
    if (t->n_pending == PG_PENDING_MAX)
        return false;
    t->pending[t->n_pending++] = put(m, tx, table, key, a, b, false);
    change(m, tx, (struct pg_rec){.kind = K_INSERT, .table = (uint8_t)table, .k2 = (uint8_t)key, .a = a, .t = b});
    if (late || !pgmodel_check(m, tx))
        m->c->unique_waits++;
    return true;
}

static bool truncate_(struct pgmodel *m, int tx, uint32_t table)
{
    for (uint32_t i = 1; i < m->n_tx; i++)
        if ((int)i != tx && m->tx[i].parent < 0 && pgmodel_open(m, (int)i) && m->tx[i].wrote[table])
            return false;
    if (m->tx[tx].sub >= 0 || m->tx[tx].n_pending)
        return false;
    m->tx[tx].storage[table] = ++m->next_storage;
    m->tx[tx].truncated = true;
    change(m, tx, (struct pg_rec){.kind = K_TRUNCATE, .table = (uint8_t)table});
    m->c->truncates++;
    return true;
}

static bool locked_for(const struct pgmodel *m, int self, uint32_t table)
{
    for (uint32_t i = 1; i < m->n_tx; i++)
        if ((int)i != self && m->tx[i].parent < 0 && pgmodel_open(m, (int)i) && m->tx[i].storage[table] >= 0)
            return true;
    return false;
}

bool pgmodel_op(struct pgmodel *m, int tx, enum pg_kind kind, uint32_t table, uint32_t k1, uint32_t k2, bool late)
{
    bool wait;
    if (locked_for(m, tx, table))
        return false;
    if (kind == K_TRUNCATE)
        return truncate_(m, tx, table);
    if (kind == K_INSERT)
        return insert(m, tx, table, k1, late);
    int at = find(m, tx, table, k1, &wait);
    if (at < 0)
        return false;
    struct pg_ver *v = &m->ver[at];
    int who = m->tx[tx].sub >= 0 ? m->tx[tx].sub : tx;
    if (kind == K_MOVE && (k1 == k2 || m->tx[tx].n_pending == PG_PENDING_MAX))
        return false;
    v->xmax = who;
    if (kind == K_DELETE) {
        change(m, tx, (struct pg_rec){.kind = kind, .table = (uint8_t)table, .k1 = (uint8_t)k1});
        return true;
    }
    bool unchanged = kind == K_UPDATE || (kind == K_MOVE && tr_prng_chance(m->prng, 3, 4));
    uint32_t a = ++m->value, t = unchanged ? v->t : ++m->value, key = kind == K_MOVE ? k2 : k1;
    int n = put(m, tx, table, key, a, t, kind != K_MOVE);
    change(m, tx, (struct pg_rec){.kind = kind, .table = (uint8_t)table, .k1 = (uint8_t)k1, .k2 = (uint8_t)key, .a = a, .t = t, .unchanged = unchanged});
    if (kind != K_MOVE)
        return true;
    m->c->moves++;
    m->tx[tx].pending[m->tx[tx].n_pending++] = n;
    if (late || !pgmodel_check(m, tx))
        m->c->unique_waits++;
    return true;
}

/* ---- the end of a server ---- */

/* Of what is behind `upto` nothing remains. */
static void lose(struct pgmodel *m, uint32_t upto)
{
    uint64_t highest = 9;
    for (uint32_t i = 0; i < upto; i++)
        highest = TR_MAX(highest, m->wal[i].xid);
    m->n_wal = upto;
    memset(m->storage, 0, sizeof m->storage);
    for (uint32_t i = 1; i < m->n_tx; i++) {
        struct pg_tx *t = &m->tx[i];
        if (t->state == TX_ABORTED || t->parent >= 0)
            continue;
        bool there = t->commit_rec >= 0 && (uint32_t)t->commit_rec < upto;
        m->c->async_undone += t->state == TX_VISIBLE && !there;
        t->state = there ? TX_VISIBLE : TX_ABORTED;
        t->n_pending = 0;
    }
    for (uint32_t i = 1; i < m->n_tx; i++)
        if (m->tx[i].parent >= 0 && m->tx[m->tx[i].parent].state == TX_ABORTED)
            m->tx[i].state = TX_ABORTED;
    for (uint32_t i = 0; i < upto; i++)
        if (m->wal[i].type == REC_COMMIT)
            for (uint32_t t = 0; t < PG_TABLES; t++)
                if (m->tx[m->wal[i].tx].storage[t] >= 0)
                    m->storage[t] = m->tx[m->wal[i].tx].storage[t];
    for (uint32_t i = 0; i < m->n_ver; i++)
        m->ver[i].gone |= state_of(m, m->ver[i].xmin) == TX_ABORTED;
    m->next_xid = highest + 1;
    m->latest_xid = highest;
    write_rec(m, (struct pg_rec){.type = REC_RESTART, .tx = -1, .xid = highest});
    m->flushed = m->n_wal;
    for (uint32_t t = 0; t < PG_TABLES; t++)
        while (m->n_publishing[t] && m->publishing[t][m->n_publishing[t] - 1].rec >= upto) /* ALTER PUBLICATION is flushed before it answers: only a failover loses it */
            m->n_publishing[t]--;
    m->up = false;
    m->boot++;
    m->slot.active = NULL;
    m->slot.active_until_ns = 0;
}

void pgmodel_crash(struct pgmodel *m)
{
    m->c->crashes++;
    lose(m, m->flushed);
    m->slot.confirmed = m->slot.on_disk;
}

void pgmodel_promote(struct pgmodel *m)
{
    m->c->failovers++;
    lose(m, m->replayed);
    m->timeline++;
    if (tr_prng_chance(m->prng, 1, 2))
        m->slot = (struct pg_slot){0};
    m->slot.confirmed = m->slot.on_disk = TR_MIN(m->slot.on_disk, pg_lsn(m->replayed)); /* one that was kept in step with the primary's */
}

/* ---- snapshots ---- */

uint64_t pgmodel_xmin(const struct pgmodel *m)
{
    uint64_t r = m->latest_xid + 1;
    for (uint32_t i = 1; i < m->n_tx; i++)
        if (m->tx[i].xid && pgmodel_open(m, (int)i))
            r = TR_MIN(r, m->tx[i].xid);
    return r;
}

/* A standby knows what it has replayed: ids that it met and did not see end. */
uint64_t pgmodel_replica_xmin(const struct pgmodel *m)
{
    uint64_t highest = 9, done = 9, base = 9;
    bool ended[PG_REC_MAX] = {false};
    for (uint32_t i = 0; i < m->replayed; i++) {
        const struct pg_rec *r = &m->wal[i];
        if (r->type == REC_RESTART) {
            base = highest = done = r->xid;
            memset(ended, 0, sizeof ended);
            continue;
        }
        highest = TR_MAX(highest, r->xid);
        if (r->type == REC_COMMIT || r->type == REC_ABORT) {
            done = TR_MAX(done, r->xid);
            if (r->xid < PG_REC_MAX)
                ended[r->xid] = true;
            for (uint32_t k = 0; r->tx >= 0 && k < m->n_tx; k++)
                if (m->tx[k].parent == r->tx && m->tx[k].xid && m->tx[k].xid < PG_REC_MAX) {
                    ended[m->tx[k].xid] = true;
                    done = TR_MAX(done, m->tx[k].xid);
                }
        }
    }
    uint64_t r = done + 1;
    for (uint64_t x = base + 1; x <= highest && x < r && x < PG_REC_MAX; x++)
        if (!ended[x])
            r = x;
    return r;
}

void pgmodel_snapshot(const struct pgmodel *m, bool replica, struct pg_snapshot *ret)
{
    ret->n = m->n_tx;
    for (uint32_t i = 0; i < m->n_tx; i++)
        ret->visible[i] = replica ? i == 0 : state_of(m, (int)i) == TX_VISIBLE;
    if (replica) {
        for (uint32_t i = 0; i < m->replayed; i++)
            if (m->wal[i].type == REC_COMMIT)
                ret->visible[m->wal[i].tx] = true;
        for (uint32_t i = 0; i < m->n_tx; i++)
            if (m->tx[i].parent >= 0)
                ret->visible[i] = m->tx[i].state != TX_ABORTED && ret->visible[m->tx[i].parent];
    }
    ret->xmin = replica ? pgmodel_replica_xmin(m) : pgmodel_xmin(m);
    ret->xmax = m->latest_xid + 1;
}

static int replica_storage(const struct pgmodel *m, uint32_t table)
{
    int r = 0;
    for (uint32_t i = 0; i < m->replayed; i++)
        if (m->wal[i].type == REC_COMMIT && m->tx[m->wal[i].tx].storage[table] >= 0)
            r = m->tx[m->wal[i].tx].storage[table];
    return r;
}

bool pgmodel_locked(const struct pgmodel *m, uint32_t table, bool replica)
{
    if (!replica)
        return locked_for(m, -1, table);
    bool locked = false;
    int by = -1;
    for (uint32_t i = 0; i < m->replayed; i++) {
        const struct pg_rec *r = &m->wal[i];
        if (r->type == REC_CHANGE && r->kind == K_TRUNCATE && r->table == table) {
            locked = true;
            by = r->tx;
        } else if (r->type == REC_RESTART || ((r->type == REC_COMMIT || r->type == REC_ABORT) && r->tx == by)) {
            locked = false;
        }
    }
    return locked;
}

static bool in_snapshot(const struct pg_snapshot *s, int tx)
{
    return (uint32_t)tx < s->n && s->visible[tx];
}

struct pg_row pgmodel_read(const struct pgmodel *m, const struct pg_snapshot *s, bool replica, uint32_t table, uint32_t key)
{
    int storage = replica ? replica_storage(m, table) : m->storage[table];
    for (uint32_t i = 0; i < m->n_ver; i++) {
        const struct pg_ver *v = &m->ver[i];
        if (v->table == table && v->key == key && v->storage == storage && in_snapshot(s, v->xmin) && !(v->xmax >= 0 && in_snapshot(s, v->xmax)))
            return (struct pg_row){true, v->a, v->t};
    }
    return (struct pg_row){0};
}

struct pg_row pgmodel_now(const struct pgmodel *m, uint32_t table, uint32_t key)
{
    static struct pg_snapshot s;
    pgmodel_snapshot(m, false, &s);
    return pgmodel_read(m, &s, false, table, key);
}

bool pgmodel_is_published(const struct pgmodel *m, uint32_t rec)
{
    const struct pg_rec *r = &m->wal[rec];
    if (r->kind == K_BEAT)
        return true;
    uint32_t first = rec;
    if (m->by_first)
        for (uint32_t i = 0; i < rec; i++)
            if (m->wal[i].type == REC_CHANGE && pgmodel_top(m, m->wal[i].tx) == pgmodel_top(m, r->tx)) {
                first = i;
                break;
            }
    bool on = false;
    for (uint32_t i = 0; i < m->n_publishing[r->table] && m->publishing[r->table][i].rec <= first; i++)
        on = m->publishing[r->table][i].on;
    return on;
}

bool pgmodel_publishes(const struct pgmodel *m, uint32_t table)
{
    return m->n_publishing[table] && m->publishing[table][m->n_publishing[table] - 1].on;
}

bool pgmodel_slot_active(const struct pgmodel *m)
{
    return m->slot.active || tr_now_ns() < m->slot.active_until_ns;
}

void pgmodel_publish(struct pgmodel *m, uint32_t table, bool on)
{
    if (pgmodel_publishes(m, table) == on || m->n_publishing[table] == PG_PUBLISHINGS_MAX)
        return;
    m->publishing[table][m->n_publishing[table]++] = (struct pg_publishing){m->n_wal, on};
    m->membership[table] += on;
    pgmodel_xid(m);
    m->flushed = m->n_wal;
    m->c->adds += on;
    m->c->removals += !on;
}
