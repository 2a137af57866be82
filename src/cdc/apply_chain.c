/*
 * apply_chain.c: frames of the log into rows of one sink.
 *
 * Main lane: rows of live tables go to the mirror, every row of a table with a changelog goes there, whatever the mirror's state.
 * Catch-up lanes: see apply_internal.h. Their rows enter only between source transactions of the main lane, so that a sink that seals at
 * transaction ends never has to hold one open for them.
 *
 * Joining a table takes several calls: until the barrier, the swap and the note are through, every lane is told NOT_READY.
 *
 * Pausing. A target may refuse a definition or a row here (at that very frame), or the writer a part of a batch (whose rows were put long
 * before). Both record it by tr_apply_pause: the record says PAUSED from then on, and `rejected` that the chain has yet to follow. Until it does, at
 * that table's next frame or between transactions, set_state leaves the record alone. Following (let_go) ends the table's catch-up and
 * unbinds its targets, by which the engine knows which rows were put before: those are refused, too. What the record then says of where to go
 * on holds for every row: the mirror from pause_offset (relive) or from its snapshot's beginning, the changelog from log_from, both by one
 * catch-up lane that a resume makes. While there is one, the main lane puts nothing to that mirror, and nothing to a changelog that is held: rows of a
 * key arrive in order, or an update with unchanged columns would meet the wrong base.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "alloc.h"
#include "apply_internal.h"
#include "arena.h"
#include "check.h"
#include "failpoint.h"
#include "rowimage.h"
#include "text.h"

/* A catch-up that is this close holds the main lane at its next transaction end, so that the two meet. */
enum { HOLD_WITHIN = 20000 };

#define JOIN_AGAIN_NS TR_NS_PER_S

struct apply_chain {
    struct tr_apply_run *ap;
    struct tr_out *out;
    struct tr_arena arena;
    uint64_t main_next;        /* next offset of the main lane, at a transaction end */
    bool tx_open, tx_rows;
    struct ap_table *joining;
    uint32_t n_catchups;       /* tables that have one */
    struct ap_table *last;     /* table of the frame before */
};

static void log_table(enum tr_oslog_level level, struct apply_chain *h, const struct ap_table *t, const char *text)
{
    tr_oslog_fields(level, "apply", TR_OSLOG_F({"sink", h->ap->cfg.name}, {"table", t->name}), "%s", text);
}

/* ---- states ---- */

/* The chain's own state, and the record's unless that says PAUSED by now. reason may be NULL. */
static void set_state(struct apply_chain *h, struct ap_table *t, uint8_t state, const char *reason)
{
    tr_mutex_lock(&h->ap->lock);
    t->state = state;
    if (!atomic_load(&t->rejected)) {
        t->rec.state = state;
        t->rec.mirror_live = t->mirror_live;
        if (reason)
            snprintf(t->rec.reason, sizeof t->rec.reason, "%s", reason);
        t->dirty = true;
    }
    tr_mutex_unlock(&h->ap->lock);
}

static void forget_targets(struct apply_chain *h, struct ap_table *t)
{
    t->mirror.target = t->shadow.target = t->changelog_target.target = NULL;
    tr_out_unbind(h->out, t->table_id, TR_TARGET_MIRROR);
    tr_out_unbind(h->out, t->table_id, TR_TARGET_SHADOW);
    tr_out_unbind(h->out, t->table_id, TR_TARGET_CHANGELOG);
}

static void end_catchup(struct apply_chain *h, struct ap_table *t)
{
    if (!t->catchup)
        return;
    tr_mutex_lock(&h->ap->lock);
    t->catchup->finished = t->catchup->released = true; /* the controller may free it now */
    t->catchup = NULL;
    tr_mutex_unlock(&h->ap->lock);
    h->n_catchups--;
    tr_apply_pin(h->ap, t, UINT64_MAX, NULL);
}

/* The record says that the table is paused (tr_apply_pause): nothing of it is put any more, but its history if the changelog takes it. */
static void let_go(struct apply_chain *h, struct ap_table *t)
{
    bool new = t->state != TR_ST_PAUSED;
    char text[900];
    end_catchup(h, t);
    tr_mutex_lock(&h->ap->lock);
    atomic_store(&t->rejected, false);
    t->state = TR_ST_PAUSED;
    t->mirror_live = false;
    t->log_held = t->rec.log_from != UINT64_MAX;
    snprintf(text, sizeof text, "paused: %s; after curing it: tailrace table resume %s --sink %s", t->rec.reason, t->name, h->ap->cfg.name);
    tr_mutex_unlock(&h->ap->lock);
    forget_targets(h, t);
    if (new)
        log_table(TR_OSLOG_ERROR, h, t, text);
}

static void pause_table(struct apply_chain *h, struct ap_table *t, enum tr_target_variant variant, uint64_t offset, const struct tr_err *why)
{
    tr_apply_pause(h->ap, t, variant, offset, why);
    let_go(h, t);
}

static int catch_up(struct apply_chain *h, struct ap_table *t, uint8_t state, struct tr_err *err)
{
    end_catchup(h, t);
    set_state(h, t, state, NULL);
    int rc = tr_apply_catchup_new(h->ap, t, &t->catchup, err);
    h->n_catchups += rc >= 0;
    if (rc != TR_EOF)
        return rc;
    static const char gapped[] = "the log no longer holds what this table needs; a new snapshot was asked for";
    t->mirror_live = false;
    set_state(h, t, TR_ST_GAPPED, gapped);
    log_table(TR_OSLOG_ERROR, h, t, gapped);
    struct tr_control *c = h->ap->cfg.control;
    c->ops->request_put(c, h->ap->cfg.name, "resnapshot", "", t->name, NULL);
    return TR_OK;
}

static int begin_snapshot(struct apply_chain *h, struct ap_table *t, const struct tr_frame *f, struct tr_err *err)
{
    struct tr_apply_table_mode m = {0};
    const struct tr_schema *s = h->ap->reader->ops->schema(h->ap->reader, f->table_id, f->schema_version);
    if (s)
        h->ap->cfg.mode(h->ap->cfg.arg, s->ns, s->name, &m);
    if (!m.mirror)
        return TR_OK;
    if (t->rec.snapshot_id >= f->change.snapshot_id)
        return TR_OK; /* delivered again after a restart */
    if (t->catchup || t->shadow_rows) {
        /* an earlier build ends here: none of its rows may arrive in the new one, which has the same name */
        end_catchup(h, t);
        t->shadow_rows = true; /* until the barrier is through: this may take several calls */
        int rc = tr_out_barrier(h->out, err);
        if (rc < 0)
            return rc;
        t->shadow_rows = false;
        t->shadow.target = NULL;
        tr_out_unbind(h->out, t->table_id, TR_TARGET_SHADOW);
    }
    tr_mutex_lock(&h->ap->lock);
    bool refused = atomic_exchange(&t->rejected, false); /* what is replaced now; a changelog's place is kept in log_from */
    t->mirror_live &= !refused;
    t->log_held = t->rec.log_from != UINT64_MAX;
    t->rec.state = TR_ST_LOADING;
    t->rec.snapshot_id = f->change.snapshot_id;
    t->rec.begin_offset = t->rec.catchup_offset = f->offset;
    t->rec.end_offset = UINT64_MAX;
    t->rec.relive = false;
    t->rec.reason[0] = 0;
    tr_mutex_unlock(&h->ap->lock);
    if (refused)
        forget_targets(h, t);
    log_table(TR_OSLOG_INFO, h, t, "loading its snapshot");
    int rc = catch_up(h, t, TR_ST_LOADING, err);
    atomic_store(&h->ap->hurry, true); /* see may_join */
    tr_apply_wake(h->ap);
    return rc;
}

/* ---- rows ---- */

static int decode(struct apply_chain *h, const struct tr_schema *s, struct tr_slice image, struct tr_row *ret, struct tr_err *err)
{
    if (!image.n) {
        *ret = (struct tr_row){0};
        return TR_OK;
    }
    struct tr_slice *v = tr_arena_alloc(&h->arena, (s->n_columns + 1) * sizeof *v);
    uint8_t *st = tr_arena_alloc_aligned(&h->arena, s->n_columns + 1, 1);
    if (!v || !st)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for a row");
    return tr_rowimage_decode(image, s->n_columns, v, st, ret, err);
}

/* Completes a key update from its FILL. A column that the FILL does not know (added since) stays unchanged. */
static int complete(struct apply_chain *h, const struct ap_catchup *c, struct tr_change *g, struct tr_err *err)
{
    const struct ap_fill *f = tr_apply_fill(c, g);
    if (!f)
        return TR_OK;
    if (f->empty) {
        g->flags |= TR_CHG_NO_UPSERT;
        return TR_OK;
    }
    const struct tr_schema *fs = c->reader->ops->schema(c->reader, c->table->table_id, f->schema_version);
    if (!fs)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "the log holds a FILL of table %s whose definition it lacks", c->table->name);
    struct tr_row fill;
    int rc = decode(h, fs, tr_slice_of(f->image, f->n), &fill, err);
    if (rc < 0)
        return rc;
    uint32_t n = g->after.n;
    struct tr_slice *v = tr_arena_alloc(&h->arena, (n + 1) * sizeof *v);
    uint8_t *st = tr_arena_alloc_aligned(&h->arena, n + 1, 1);
    if (!v || !st)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for a row");
    bool open = false;
    for (uint32_t i = 0; i < n; i++) {
        v[i] = g->after.v[i];
        st[i] = g->after.state[i];
        if (st[i] == TR_UNCHANGED) {
            int k = tr_schema_find(fs, tr_slice_str(g->schema->columns[i].name));
            if (k >= 0 && (uint32_t)k < fill.n && (fill.state[k] == TR_PRESENT || fill.state[k] == TR_NULL)) {
                v[i] = fill.v[k];
                st[i] = fill.state[k];
            }
        }
        open |= st[i] == TR_UNCHANGED;
    }
    g->after = (struct tr_row){.v = v, .state = st, .n = n};
    g->flags |= TR_CHG_FILLED;
    if (!open)
        g->flags &= (uint16_t)~TR_CHG_UNCHANGED;
    return TR_OK;
}

/* Target of a table for this definition. REJECT pauses the table (rc 1: the row is skipped). */
static int target(struct apply_chain *h, struct ap_table *t, const struct tr_schema *s, enum tr_target_variant variant, uint64_t snapshot_id, uint64_t offset,
                  struct tr_target **ret, struct tr_err *err)
{
    struct tr_target **slot = variant == TR_TARGET_MIRROR ? &t->mirror.target : variant == TR_TARGET_SHADOW ? &t->shadow.target : &t->changelog_target.target;
    uint32_t *version = variant == TR_TARGET_MIRROR ? &t->mirror.version : variant == TR_TARGET_SHADOW ? &t->shadow.version : &t->changelog_target.version;
    if (*slot && *version == s->version) {
        *ret = *slot;
        return TR_OK;
    }
    int rc = tr_out_bind(h->out, s, variant, snapshot_id, ret, err);
    if (rc == TR_REJECT) {
        pause_table(h, t, variant, offset, err);
        *ret = NULL;
        return 1;
    }
    if (rc < 0)
        return rc;
    *slot = *ret;
    *version = s->version;
    return TR_OK;
}

static int put(struct apply_chain *h, struct ap_table *t, enum tr_target_variant variant, struct tr_target *to, const struct tr_change *g, const struct tr_payloads *in,
               const struct tr_frame *f, int64_t pos, struct tr_err *err)
{
    int rc = tr_out_put(h->out, to, g, 1, in->ack, pos, err);
    if (rc == TR_REJECT) {
        pause_table(h, t, variant, f->offset, err);
        return 1;
    }
    h->tx_rows |= rc >= 0;
    return rc;
}

static void load_mode(struct apply_chain *h, struct ap_table *t, const struct tr_schema *s)
{
    if (!t->name[0])
        tr_apply_table_mode_load(h->ap, t, s);
}

static struct ap_table *table_of(struct apply_chain *h, uint32_t id)
{
    if (!h->last || h->last->table_id != id)
        h->last = tr_apply_table(h->ap, id);
    return h->last;
}

static int no_schema(const struct tr_frame *f, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "the log has no definition for table %u version %u at offset %llu", f->table_id, f->schema_version,
                      (unsigned long long)f->offset);
}

static int64_t find_i64(const struct tr_schema *s, const struct tr_row *r, const char *column)
{
    int i = tr_schema_find(s, tr_slice_str(column));
    int64_t v = 0;
    if (i >= 0 && (uint32_t)i < r->n && r->state[i] == TR_PRESENT)
        tr_parse_i64(r->v[i], &v, NULL);
    return v;
}

static int heartbeat(struct apply_chain *h, const struct tr_payloads *in, const struct tr_frame *f, const struct tr_schema *s, struct tr_err *err)
{
    struct tr_apply_run *ap = h->ap;
    struct tr_change g = f->change;
    g.schema = s;
    int rc = decode(h, s, f->image, &g.after, err);
    struct tr_target *to = NULL;
    if (rc >= 0)
        rc = tr_out_bind(h->out, s, TR_TARGET_META, 0, &to, err);
    if (rc >= 0)
        rc = tr_out_put(h->out, to, &g, 1, in->ack, (int64_t)f->offset, err);
    if (rc < 0)
        return rc;
    h->tx_rows = true;
    tr_mutex_lock(&ap->lock);
    if (ap->beat_n < TR_ARRAY_LEN(ap->beats))
        ap->beats[(ap->beat_head + ap->beat_n++) % TR_ARRAY_LEN(ap->beats)] = (struct ap_beat){.offset = f->offset,
                                                                                           .at_us = find_i64(s, &g.after, "at_us"),
                                                                                           .commit_us = g.commit_us,
                                                                                           .capture_us = g.capture_us,
                                                                                           .read_us = tr_wall_us()};
    tr_mutex_unlock(&ap->lock);
    return TR_OK;
}

/* The row into whatever targets of its table want it now. */
static int row(struct apply_chain *h, const struct tr_payloads *in, const struct tr_frame *f, struct ap_table *t, struct ap_catchup *c, int64_t pos, struct tr_err *err)
{
    struct tr_log_reader *reader = c ? c->reader : h->ap->reader;
    const struct tr_schema *s = reader->ops->schema(reader, f->table_id, f->schema_version);
    if (!s)
        return no_schema(f, err);
    load_mode(h, t, s);
    if (atomic_load_explicit(&t->rejected, memory_order_relaxed))
        let_go(h, t);
    if (c && c->finished)
        return TR_OK;
    uint8_t op = f->change.op;
    bool to_shadow = c && !c->relive && f->offset >= c->begin;
    bool to_mirror = !t->no_key && (c ? c->relive : t->mirror_live);
    if (!c && t->state == TR_ST_LIVE && f->offset < t->rec.begin_offset) /* delivered again, and the build has it */
        to_mirror = false;
    /* the history goes on while the mirror is paused */
    bool to_changelog = t->changelog && tr_op_is_row(op) && op != TR_OP_READ && (c ? f->offset >= c->log_from : !t->log_held);
    enum tr_target_variant variant = to_shadow ? TR_TARGET_SHADOW : TR_TARGET_MIRROR;
    struct tr_target *to = NULL, *log = NULL;
    if (to_shadow || to_mirror) {
        /* while another is built, the mirror is of a build before it, which the record does not name any more */
        uint64_t build = to_shadow || c || t->state == TR_ST_LIVE ? t->rec.snapshot_id : 0;
        int rc = target(h, t, s, variant, build, f->offset, &to, err);
        if (rc < 0 || (c && c->finished))
            return rc < 0 ? rc : TR_OK;
    }
    if (to_changelog) {
        int rc = target(h, t, s, TR_TARGET_CHANGELOG, 0, f->offset, &log, err);
        if (rc < 0)
            return rc;
        if (rc == 1)
            return TR_OK;
    }
    if (to_shadow && (!c->schema || c->schema->version != s->version)) {
        tr_schema_unref(c->schema);
        c->schema = tr_schema_ref(s);
    }
    if (op == TR_OP_SNAPSHOT_BEGIN || (!to && !log))
        return TR_OK;
    tr_arena_reset(&h->arena);
    struct tr_change g = f->change;
    g.schema = s;
    int rc = decode(h, s, f->image, &g.after, err);
    if (rc >= 0)
        rc = decode(h, s, f->old_image, &g.before, err);
    struct tr_change filled = g; /* a history holds what was sent */
    if (rc >= 0 && to_shadow && (g.flags & TR_CHG_MOVED) && (g.flags & TR_CHG_UNCHANGED))
        rc = complete(h, c, &filled, err);
    t->shadow_rows |= rc >= 0 && to_shadow;
    if (rc >= 0 && to)
        rc = put(h, t, variant, to, &filled, in, f, pos, err);
    if (rc >= 0 && log && !(c && c->finished))
        rc = put(h, t, TR_TARGET_CHANGELOG, log, &g, in, f, pos, err);
    return rc < 0 ? rc : TR_OK;
}

/* ---- joining ---- */

/* A shadow holds what the table was only from its snapshot's end on: before, rows are in it that were read later, and key updates that the main
 * lane, which may have begun behind the catch-up, would put without their FILL. And only where a process before this one cannot have applied more, to
 * this table or to those that it is to be consistent with. */
static bool may_join(const struct apply_chain *h, const struct ap_catchup *c)
{
    if (!c || c->finished || c->phase != 1 || h->main_next < h->ap->again_until || tr_now_ns() < c->join_ns)
        return false;
    if (c->relive)
        return true;
    /* The store must know of this build before the sink has it: a crash right after the swap would else have it built once more, and a second
     * one would leave the first, which nobody has fed since, for the finished one. */
    return atomic_load(&c->table->stored) == c->snapshot_id && h->main_next > c->end;
}

static bool can_join(const struct apply_chain *h, const struct ap_table *t)
{
    const struct ap_catchup *c = t->catchup;
    return may_join(h, c) && !c->turn && !h->tx_open && c->consumed >= h->main_next;
}

/* 0 when no table is joining any more; NOT_READY while one is. */
static int join_step(struct apply_chain *h, struct tr_err *err)
{
    struct ap_table *t = h->joining;
    if (!t)
        return TR_OK;
    struct ap_catchup *c = t->catchup;
    int rc = tr_out_barrier(h->out, err);
    if (rc >= 0 && atomic_load(&t->rejected)) {
        let_go(h, t);
        h->joining = NULL;
        return TR_OK;
    }
    TR_FAILPOINT("apply.before_swap");
    if (rc >= 0 && !c->relive)
        rc = c->schema ? tr_out_swap(h->out, c->schema, c->snapshot_id, err)
                       : tr_err_set(err, TR_FATAL, TR_DOM_CDC, "table %s is to join but its snapshot's beginning was never met", t->name);
    if (rc == TR_AGAIN) { /* the sink cannot swap now; both lanes go on as before */
        c->join_ns = tr_now_ns() + JOIN_AGAIN_NS;
        set_state(h, t, t->state, err->msg);
        h->joining = NULL;
        return TR_OK;
    }
    if (rc == TR_REJECT) {
        pause_table(h, t, TR_TARGET_SHADOW, h->main_next, err);
        h->joining = NULL;
        return TR_OK;
    }
    if (rc < 0)
        return rc;
    TR_FAILPOINT("apply.after_swap");
    forget_targets(h, t);
    end_catchup(h, t);
    t->shadow_rows = false; /* they are behind the barrier */
    t->mirror_live = true;
    t->log_held = false; /* the catch-up brought the changelog here, too */
    tr_mutex_lock(&h->ap->lock);
    t->rec.relive = false;
    t->rec.log_from = UINT64_MAX;
    tr_mutex_unlock(&h->ap->lock);
    set_state(h, t, TR_ST_LIVE, "");
    log_table(TR_OSLOG_INFO, h, t, "live");
    tr_apply_alarm(h->ap, t, TR_ALARM_TABLE, NULL);
    bool gapped = false;
    size_t it = 0;
    uint64_t id, p;
    while (tr_u64map_next(&h->ap->tables, &it, &id, &p))
        gapped |= ((const struct ap_table *)(uintptr_t)p)->state == TR_ST_GAPPED;
    if (!gapped)
        tr_control_alarm(h->ap->cfg.control, TR_ALARM_GAPPED, h->ap->cfg.name, NULL);
    h->joining = NULL;
    return TR_OK;
}

/* Where a paused table goes on; under the lock, so that a writer that refuses once more finds the table on its way. */
static void resume_record(struct ap_table *t)
{
    struct tr_ctl_sink_table *r = &t->rec;
    t->resume = false;
    r->reason[0] = 0;
    if (r->relive) {
        r->state = TR_ST_CATCHING_UP;
        r->catchup_offset = TR_MIN(r->pause_offset, r->log_from);
    } else if (r->snapshot_id) {
        r->state = TR_ST_LOADING;
        r->catchup_offset = r->begin_offset;
    } else {
        r->state = TR_ST_WAITING; /* its snapshot has not begun; that brings the changelog along */
    }
    t->state = r->state;
    t->dirty = true;
}

/* Looks for tables to join, to resume, or whose catch-up is so close that the main lane must wait for it. Between transactions only. */
static int look_around(struct apply_chain *h, bool *ret_hold, struct tr_err *err)
{
    struct tr_apply_run *ap = h->ap;
    *ret_hold = false;
    for (;;) {
        int rc = join_step(h, err);
        if (rc < 0)
            return rc;
        struct ap_table *join = NULL, *resume = NULL, *rejected = NULL;
        tr_mutex_lock(&ap->lock);
        size_t it = 0;
        uint64_t id, p;
        while (tr_u64map_next(&ap->tables, &it, &id, &p)) {
            struct ap_table *t = (struct ap_table *)(uintptr_t)p;
            if (atomic_load(&t->rejected))
                rejected = t;
            if (t->resume && t->state == TR_ST_PAUSED)
                resume = t;
            if (can_join(h, t))
                join = t;
            else if (may_join(h, t->catchup) && t->catchup->consumed + HOLD_WITHIN >= h->main_next)
                *ret_hold = true;
        }
        if (resume && !rejected)
            resume_record(resume);
        tr_mutex_unlock(&ap->lock);
        if (rejected) {
            let_go(h, rejected);
            continue;
        }
        if (resume) {
            log_table(TR_OSLOG_INFO, h, resume, "resumed");
            if (resume->state != TR_ST_WAITING)
                rc = catch_up(h, resume, resume->state, err);
            if (rc < 0)
                return rc;
            continue;
        }
        if (!join)
            return TR_OK;
        h->joining = join;
    }
}

/* ---- frames ---- */

static int main_frame(struct apply_chain *h, const struct tr_payloads *in, const struct tr_frame *f, struct tr_err *err)
{
    uint8_t op = f->change.op;
    int rc = TR_OK;
    if (!h->tx_open) {
        bool hold = false;
        if (h->joining || h->n_catchups || atomic_exchange_explicit(&h->ap->poked, false, memory_order_relaxed)) {
            rc = look_around(h, &hold, err);
            if (rc < 0)
                return rc;
            if (hold)
                return TR_NOT_READY;
        }
    }
    struct ap_table *t = f->table_id ? table_of(h, f->table_id) : NULL;
    if (f->table_id && !t)
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for table %u", f->table_id);
    if (op == TR_OP_COMMIT) {
        if (h->tx_rows)
            rc = tr_out_tx_end(h->out, err);
        h->tx_rows = false;
    } else if (op == TR_OP_SNAPSHOT_BEGIN) {
        const struct tr_schema *s = h->ap->reader->ops->schema(h->ap->reader, f->table_id, f->schema_version);
        if (!s)
            return no_schema(f, err);
        load_mode(h, t, s);
        rc = begin_snapshot(h, t, f, err);
    } else if (op == TR_OP_HEARTBEAT) {
        const struct tr_schema *s = h->ap->reader->ops->schema(h->ap->reader, f->table_id, f->schema_version);
        rc = s ? heartbeat(h, in, f, s, err) : no_schema(f, err);
    } else if (tr_op_is_row(op) && op != TR_OP_READ) {
        rc = row(h, in, f, t, NULL, (int64_t)f->offset, err);
    }
    if (rc < 0)
        return rc;
    h->tx_open = !f->tx_end;
    if (f->tx_end)
        h->main_next = f->offset + 1;
    return TR_OK;
}

static struct ap_catchup *lane_of(struct apply_chain *h, uint32_t lane)
{
    tr_mutex_lock(&h->ap->lock);
    struct ap_catchup *c;
    for (c = h->ap->catchups; c && c->lane.id != lane; c = c->next)
        ;
    tr_mutex_unlock(&h->ap->lock);
    return c;
}

static int catchup_frame(struct apply_chain *h, const struct tr_payloads *in, const struct tr_payload *p, struct ap_catchup *c, struct tr_err *err)
{
    if (h->tx_open)
        return TR_NOT_READY;
    int rc = join_step(h, err);
    if (rc < 0)
        return rc;
    const struct tr_frame *f = p->meta;
    if (c->finished)
        return TR_OK;
    if (c->phase == 1 && f->offset >= h->main_next && (c->relive || f->offset > c->end)) {
        /* all that the main lane has had is here: join before anything newer of this table, or wait until the main lane has come so far */
        if (may_join(h, c)) {
            c->consumed = f->offset;
            h->joining = c->table;
        }
        return TR_NOT_READY;
    }
    rc = row(h, in, f, c->table, c, p->position, err);
    if (rc >= 0 && h->tx_rows) {
        rc = tr_out_tx_end(h->out, err);
        h->tx_rows = false;
    }
    return rc;
}

static int push_batch(void *chain, const struct tr_payloads *in, uint32_t from, struct tr_push *ret, struct tr_err *err)
{
    struct apply_chain *h = chain;
    *ret = (struct tr_push){.next = from, .state = TR_PUSH_DONE, .linger_at_ns = INT64_MAX};
    struct ap_catchup *c = in->lane == AP_MAIN_LANE ? NULL : lane_of(h, in->lane);
    for (uint32_t i = from; i < in->n; i++) {
        ret->next = i;
        if (tr_out_room(h->out) < 0) {
            ret->state = TR_PUSH_BLOCKED;
            return TR_OK;
        }
        int rc = TR_OK;
        if (in->lane == AP_MAIN_LANE)
            rc = main_frame(h, in, in->v[i].meta, err);
        else if (c)
            rc = catchup_frame(h, in, &in->v[i], c, err);
        if (rc < 0) {
            ret->state = rc == TR_NOT_READY ? TR_PUSH_NOT_READY : TR_PUSH_FAILED;
            if (rc != TR_NOT_READY && rc != TR_FENCED && err)
                err->rc = TR_FATAL;
            return TR_OK;
        }
    }
    ret->next = in->n;
    if (c && !c->finished && in->upto != INT64_MIN && in->upto >> AP_PHASE_SHIFT)
        c->consumed = TR_MAX(c->consumed, (uint64_t)(in->upto & AP_OFFSET_MASK) + 1);
    return TR_OK;
}

static int flush(void *chain, enum tr_flush why, struct tr_push *ret, struct tr_err *err)
{
    struct apply_chain *h = chain;
    *ret = (struct tr_push){.state = TR_PUSH_DONE, .linger_at_ns = INT64_MAX};
    if (why == TR_FLUSH_FINAL || h->tx_open)
        return TR_OK;
    bool hold;
    int rc = look_around(h, &hold, err);
    if (rc == TR_NOT_READY)
        ret->state = TR_PUSH_NOT_READY;
    else if (rc < 0)
        ret->state = TR_PUSH_FAILED;
    return TR_OK;
}

static void abandon(void *chain)
{
    (void)chain;
}

static void free_chain(void *chain)
{
    struct apply_chain *h = chain;
    tr_arena_done(&h->arena);
    tr_free(h);
}

static const struct tr_chain_ops ops = {push_batch, flush, abandon, free_chain};

/* Takes up what the control store remembers: catch-ups that a restart interrupted. */
static int take_up(struct apply_chain *h, struct tr_err *err)
{
    struct tr_apply_run *ap = h->ap;
    int rc = TR_OK;
    size_t it = 0;
    uint64_t id, p;
    while (rc >= 0 && tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        t->state = t->rec.state;
        t->mirror_live = t->rec.mirror_live;
        t->log_held = t->rec.log_from != UINT64_MAX;
        if (t->state == TR_ST_LOADING || t->state == TR_ST_CATCHING_UP)
            rc = catch_up(h, t, t->state, err);
    }
    return rc;
}

int tr_apply_chain_new(struct tr_apply_run *ap, struct tr_out *out, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    struct apply_chain *h = tr_calloc(1, sizeof *h);
    if (!h)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for sink %s", ap->cfg.name);
    h->ap = ap;
    h->out = out;
    h->main_next = ap->start_offset;
    tr_arena_init(&h->arena, 64 << 10, 0);
    int rc = take_up(h, err);
    if (rc < 0) {
        free_chain(h);
        return rc;
    }
    *ret_ops = &ops;
    *ret_chain = h;
    return TR_OK;
}
