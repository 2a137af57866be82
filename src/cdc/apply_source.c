/*
 * apply_source.c: the lanes of apply, over readers of the log, and the commit of their positions to the control store.
 *
 * Offsets are committed after the sink's write and may lag it, never lead; whatever lies between is delivered again after a restart
 * and found applied by its version. The records of tables (states, pauses, catch-up positions) are put in the same transaction (as_of).
 */
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "apply_internal.h"
#include "check.h"
#include "failpoint.h"

enum { FRAMES_MAX = 256 };
enum {
    OF_SNAPSHOTS = 1 << TR_OP_READ | 1 << TR_OP_FILL, /* pass 1 alone has to do with these */
    OF_CHANGES = 1 << TR_OP_INSERT | 1 << TR_OP_UPDATE | 1 << TR_OP_DELETE | 1 << TR_OP_TRUNCATE,
};
#define HURRIED (100 * TR_NS_PER_MS)

static struct tr_apply_run *of(struct tr_source *s)
{
    return tr_container_of(s, struct tr_apply_run, source);
}

void tr_apply_wake(struct tr_apply_run *ap)
{
    tr_mutex_lock(&ap->lock);
    tr_waker_wake(ap->controller);
    tr_waker_wake(ap->lane_waker);
    tr_mutex_unlock(&ap->lock);
}

/* ---- main lane ---- */

static int main_poll(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct tr_apply_run *ap = tr_container_of(l, struct tr_apply_run, main_lane);
    int n = tr_log_reader_poll(ap->reader, ap->frames, TR_MIN(max, FRAMES_MAX), err);
    if (n < 0)
        return n;
    for (int i = 0; i < n; i++)
        ap->v[i] = (struct tr_payload){.meta = &ap->frames[i],
                                       .position = (int64_t)ap->frames[i].offset,
                                       .event_time_us = ap->frames[i].change.commit_us,
                                       .flags = TR_PAYLOAD_FRAME | (ap->frames[i].change.op == TR_OP_COMMIT ? TR_PAYLOAD_TX_END : 0)};
    *ret = (struct tr_payloads){.v = ap->v, .n = (uint32_t)n, .lane = AP_MAIN_LANE, .upto = n ? ap->v[n - 1].position : INT64_MIN};
    return n ? TR_OK : TR_AGAIN;
}

static int main_arm(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret)
{
    struct tr_apply_run *ap = tr_container_of(l, struct tr_apply_run, main_lane);
    tr_mutex_lock(&ap->lock);
    ap->lane_waker = w;
    tr_mutex_unlock(&ap->lock);
    return ap->reader->ops->arm(ap->reader, w, ret);
}

static int tend(struct tr_lane *l, int64_t now_ns, struct tr_err *err)
{
    (void)l;
    (void)now_ns;
    (void)err;
    return TR_OK;
}

static void pause_lane(struct tr_lane *l, bool on)
{
    (void)l;
    (void)on;
}

static void main_close(struct tr_lane *l)
{
    struct tr_apply_run *ap = tr_container_of(l, struct tr_apply_run, main_lane);
    tr_mutex_lock(&ap->lock);
    ap->lane_waker = NULL;
    tr_mutex_unlock(&ap->lock);
}

static const struct tr_lane_ops main_ops = {main_poll, main_arm, tend, pause_lane, main_close};

int tr_apply_main_lane_init(struct tr_apply_run *ap, struct tr_err *err)
{
    ap->main_lane = (struct tr_lane){.ops = &main_ops, .id = AP_MAIN_LANE, .epoch = 1};
    ap->frames = tr_malloc(FRAMES_MAX * sizeof *ap->frames);
    ap->v = tr_malloc(FRAMES_MAX * sizeof *ap->v);
    if (!ap->frames || !ap->v)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for sink %s", ap->cfg.name);
    int rc = ap->cfg.log->ops->reader_new(ap->cfg.log, 0, ap->start_offset, &ap->reader, err);
    if (rc >= 0)
        ap->reader->want.skip = OF_SNAPSHOTS;
    return rc;
}

/* ---- catch-up lanes ---- */

struct fill_key {
    uint64_t epoch, commit_lsn, ordinal;
};

static struct fill_key key_of(const struct tr_change *g)
{
    return (struct fill_key){g->epoch, g->commit_lsn, g->ordinal};
}

const struct ap_fill *tr_apply_fill(const struct ap_catchup *c, const struct tr_change *g)
{
    struct fill_key k = key_of(g);
    return tr_map_get(&c->fills, tr_slice_of(&k, sizeof k));
}

/* The first one wins: one that was read again after a crash may have seen a later value. */
static int keep_fill(struct ap_catchup *c, const struct tr_frame *f, struct tr_err *err)
{
    struct fill_key k = key_of(&f->change);
    struct tr_slice key = tr_slice_of(&k, sizeof k);
    if (tr_map_get(&c->fills, key))
        return TR_OK;
    struct ap_fill *fill = tr_calloc(1, sizeof *fill);
    if (fill) {
        fill->empty = f->change.flags & TR_CHG_EMPTY;
        fill->schema_version = f->schema_version;
        fill->n = f->image.n;
        fill->image = tr_malloc(f->image.n + 1);
        if (fill->image && f->image.n)
            memcpy(fill->image, f->image.p, f->image.n);
    }
    if (!fill || !fill->image || tr_map_put(&c->fills, key, fill, NULL) < 0) {
        if (fill)
            tr_free(fill->image);
        tr_free(fill);
        return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for the FILLs of table %s", c->table->name);
    }
    return TR_OK;
}

/* 1: this frame is for the chain. EOF: a newer snapshot has begun, this one is void. */
static int take_frame(struct ap_catchup *c, const struct tr_frame *f, bool *ret_seek, struct tr_err *err)
{
    if (f->table_id != c->table->table_id)
        return 0;
    uint8_t op = f->change.op;
    if (op == TR_OP_SNAPSHOT_BEGIN && f->change.snapshot_id > c->snapshot_id)
        return TR_EOF;
    if (c->phase == 1)
        return tr_op_is_row(op) && op != TR_OP_READ && f->offset >= c->change_from;
    if (f->change.snapshot_id != c->snapshot_id)
        return 0;
    switch (op) {
    case TR_OP_SNAPSHOT_BEGIN:
        return 1; /* makes the shadow, also for an empty table */
    case TR_OP_READ:
        return f->offset >= c->read_from;
    case TR_OP_FILL: {
        int rc = keep_fill(c, f, err);
        return rc < 0 ? rc : 0;
    }
    case TR_OP_SNAPSHOT_END:
        c->end = f->offset;
        *ret_seek = true;
        return 0;
    default:
        return 0;
    }
}

static int catchup_poll(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct ap_catchup *c = tr_container_of(l, struct ap_catchup, lane);
    if (c->finished)
        return TR_EOF;
    if (c->turn) {
        int rc = c->reader->ops->seek(c->reader, c->change_from, err);
        if (rc < 0)
            return rc;
        c->turn = false;
        c->phase = 1;
        c->reader->want.skip = OF_SNAPSHOTS;
    }
    int n = tr_log_reader_poll(c->reader, c->frames, TR_MIN(max, FRAMES_MAX), err);
    if (n <= 0)
        return n < 0 ? n : TR_AGAIN;
    uint32_t out = 0;
    int64_t upto = INT64_MIN;
    bool seek = false;
    int phase = c->phase;
    for (int i = 0; i < n && !seek; i++) {
        const struct tr_frame *f = &c->frames[i];
        int rc = take_frame(c, f, &seek, err);
        if (rc == TR_EOF) {
            c->finished = true; /* the main lane has met, or will meet, that BEGIN and makes another lane */
            return out ? TR_AGAIN : TR_EOF;
        }
        if (rc < 0)
            return rc;
        upto = (int64_t)phase << AP_PHASE_SHIFT | (int64_t)f->offset;
        if (rc == 1)
            c->v[out++] = (struct tr_payload){.meta = f, .position = upto, .flags = TR_PAYLOAD_FRAME | TR_PAYLOAD_SNAPSHOT};
    }
    *ret = (struct tr_payloads){.v = c->v, .n = out, .lane = c->lane.id, .upto = upto};
    c->turn = seek; /* at the next poll: these frames live until then */
    return TR_OK;
}

static int catchup_arm(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret)
{
    struct ap_catchup *c = tr_container_of(l, struct ap_catchup, lane);
    if (c->finished || c->turn)
        return 1;
    return c->reader->ops->arm(c->reader, w, ret);
}

static void catchup_close(struct tr_lane *l)
{
    struct ap_catchup *c = tr_container_of(l, struct ap_catchup, lane);
    tr_mutex_lock(&c->ap->lock);
    c->closed = true;
    tr_mutex_unlock(&c->ap->lock);
}

static const struct tr_lane_ops catchup_ops = {catchup_poll, catchup_arm, tend, pause_lane, catchup_close};

struct ap_catchup *tr_apply_catchup_free(struct ap_catchup *c)
{
    if (!c)
        return NULL;
    if (c->reader)
        c->reader->ops->free(c->reader);
    size_t it = 0;
    struct tr_slice k;
    void *v;
    while (tr_map_next(&c->fills, &it, &k, &v)) {
        struct ap_fill *f = v;
        tr_free(f->image);
        tr_free(f);
    }
    tr_map_done(&c->fills);
    tr_schema_unref(c->schema);
    tr_free(c->frames);
    tr_free(c->v);
    tr_free(c);
    return NULL;
}

int tr_apply_pin(struct tr_apply_run *ap, const struct ap_table *t, uint64_t offset, struct tr_err *err)
{
    char who[160];
    snprintf(who, sizeof who, "apply:%s:%u", ap->cfg.name, t->table_id);
    return ap->cfg.log->ops->pin(ap->cfg.log, who, 0, offset, err);
}

/* What the changelog had refused and retention has removed since is lost to it, and said; the rest is brought. The log is pinned there. */
static void history_in_reach(struct tr_apply_run *ap, struct ap_table *t, uint64_t first_offset, struct tr_ctl_sink_table *io)
{
    if (!t->changelog || io->log_from >= first_offset)
        return;
    tr_apply_history_lost(ap, t, io->log_from, first_offset);
    io->log_from = first_offset;
    tr_mutex_lock(&ap->lock);
    t->rec.log_from = TR_MAX(t->rec.log_from, first_offset);
    t->dirty = true;
    tr_mutex_unlock(&ap->lock);
}

/* Where the passes begin, from the record. */
static void set_out(struct ap_catchup *c, const struct tr_ctl_sink_table *r)
{
    const struct ap_table *t = c->table;
    bool building = r->state == TR_ST_LOADING;
    c->snapshot_id = r->snapshot_id;
    c->begin = r->begin_offset;
    c->end = r->end_offset;
    c->relive = r->relive;
    c->phase = r->relive ? 1 : 0;
    c->log_from = t->changelog ? r->log_from : UINT64_MAX;
    c->read_from = building ? TR_MAX(r->catchup_offset, r->begin_offset) : UINT64_MAX;
    uint64_t mirror_from = t->no_key && c->log_from != UINT64_MAX ? UINT64_MAX : r->relive ? r->pause_offset : r->begin_offset, first = TR_MIN(mirror_from, c->log_from);
    c->change_from = building ? first : TR_MAX(r->catchup_offset, first);
    c->consumed = c->change_from;
}

int tr_apply_catchup_new(struct tr_apply_run *ap, struct ap_table *t, struct ap_catchup **ret, struct tr_err *err)
{
    struct tr_log_stats st;
    struct ap_catchup *c = tr_calloc(1, sizeof *c);
    if (!c)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for table %s", t->name);
    tr_mutex_lock(&ap->lock);
    struct tr_ctl_sink_table r = t->rec;
    c->lane = (struct tr_lane){.ops = &catchup_ops, .id = ++ap->next_lane, .epoch = 1};
    tr_mutex_unlock(&ap->lock);
    c->ap = ap;
    c->table = t;
    tr_map_init(&c->fills);
    c->frames = tr_malloc(FRAMES_MAX * sizeof *c->frames);
    c->v = tr_malloc(FRAMES_MAX * sizeof *c->v);
    set_out(c, &r);
    int rc = c->frames && c->v ? tr_apply_pin(ap, t, TR_MIN(c->relive ? UINT64_MAX : c->begin, c->change_from), err)
                               : tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for table %s", t->name);
    if (rc >= 0)
        rc = ap->cfg.log->ops->stats(ap->cfg.log, 0, &st, err); /* with the pin set: what it holds now it goes on holding */
    if (rc >= 0) {
        history_in_reach(ap, t, st.first_offset, &r);
        set_out(c, &r);
    }
    uint64_t from = c->relive ? c->change_from : c->begin;
    if (rc >= 0 && TR_MIN(from, c->change_from) < st.first_offset)
        rc = TR_EOF;
    if (rc >= 0)
        rc = ap->cfg.log->ops->reader_new(ap->cfg.log, 0, from, &c->reader, err);
    if (rc < 0) {
        tr_apply_pin(ap, t, UINT64_MAX, NULL);
        tr_apply_catchup_free(c);
        return rc;
    }
    c->reader->want = (struct tr_log_want){.table_id = t->table_id, .skip = c->phase == 1 ? OF_SNAPSHOTS : OF_CHANGES};
    tr_mutex_lock(&ap->lock);
    c->next = ap->catchups;
    ap->catchups = c;
    tr_mutex_unlock(&ap->lock);
    *ret = c;
    tr_apply_wake(ap);
    return TR_OK;
}

/* ---- tables ---- */

struct ap_table *tr_apply_table(struct tr_apply_run *ap, uint32_t table_id)
{
    tr_mutex_lock(&ap->lock);
    struct ap_table *t = tr_u64map_get_ptr(&ap->tables, table_id);
    if (!t && (t = tr_calloc(1, sizeof *t))) {
        t->table_id = table_id;
        t->rec = (struct tr_ctl_sink_table){.table_id = table_id, .end_offset = UINT64_MAX, .log_from = UINT64_MAX};
        if (tr_u64map_put_ptr(&ap->tables, table_id, t) < 0) {
            tr_free(t);
            t = NULL;
        }
    }
    tr_mutex_unlock(&ap->lock);
    return t;
}

/* ---- the source ---- */

/* A heartbeat is through once everything up to it is durable in the sink. */
static void note_beats(struct tr_apply_run *ap)
{
    int64_t now = tr_wall_us();
    tr_mutex_lock(&ap->lock);
    while (ap->beat_n && ap->beats[ap->beat_head].offset < ap->pending) {
        const struct ap_beat *b = &ap->beats[ap->beat_head];
        ap->lag = (struct tr_apply_lag){.measured_us = now,
                                        .end_to_end_us = now - b->at_us,
                                        .capture_us = b->capture_us - b->at_us,
                                        .log_us = b->read_us - b->capture_us,
                                        .apply_us = now - b->read_us};
        ap->beat_head = (ap->beat_head + 1) % TR_ARRAY_LEN(ap->beats);
        ap->beat_n--;
    }
    tr_mutex_unlock(&ap->lock);
}

/* The record that goes with offset `pending`: what the main lane had put of this table from there on may not have reached the sink, and
 * after a restart the main lane will not put it again. */
static struct tr_ctl_sink_table as_of(const struct tr_ctl_sink_table *r, uint64_t pending)
{
    struct tr_ctl_sink_table v = *r;
    if (v.relive) {
        v.pause_offset = TR_MIN(v.pause_offset, pending);
        v.catchup_offset = TR_MIN(v.catchup_offset, pending);
    }
    if (v.log_from != UINT64_MAX)
        v.log_from = TR_MIN(v.log_from, pending);
    return v;
}

/* When the next record is due. */
static int64_t record_at(const struct tr_apply_run *ap)
{
    int64_t every = ap->cfg.pipeline.commit_interval_ns;
    return ap->last_record_ns + (atomic_load(&ap->hurry) ? TR_MIN(every, HURRIED) : every);
}

static int record(struct tr_apply_run *ap, bool now_please, struct tr_err *err)
{
    int64_t now = tr_now_ns();
    if (!now_please && now < record_at(ap)) {
        if (ap->record_trouble.rc < 0)
            *err = ap->record_trouble;
        return ap->record_trouble.rc;
    }
    ap->last_record_ns = now;
    ap->record_trouble.rc = TR_OK;
    atomic_store(&ap->hurry, false);
    struct tr_ctl_sink_table *v = NULL;
    uint32_t n = 0;
    tr_mutex_lock(&ap->lock);
    bool nomem = ap->tables.n && !(v = tr_calloc(ap->tables.n, sizeof *v));
    size_t it = 0;
    uint64_t id, p;
    while (!nomem && tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        if (!t->dirty)
            continue;
        v[n++] = as_of(&t->rec, ap->pending);
        t->dirty = false;
    }
    tr_mutex_unlock(&ap->lock);
    if (nomem)
        return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory to commit the offset of sink %s", ap->cfg.name);
    int rc = TR_OK;
    if (n || ap->pending != ap->recorded) {
        TR_FAILPOINT("apply.before_offset");
        struct tr_ctl_offset o = {.sink = ap->cfg.name, .partition = 0, .offset = ap->pending, .tables = v, .n_tables = n};
        rc = ap->cfg.control->ops->offset_commit(ap->cfg.control, &o, err);
    }
    if (rc >= 0) {
        ap->recorded = ap->pending;
    } else {
        ap->record_trouble = *err;
        ap->record_trouble.rc = rc;
    }
    tr_mutex_lock(&ap->lock);
    for (uint32_t i = 0; i < n; i++) {
        struct ap_table *t = tr_u64map_get_ptr(&ap->tables, v[i].table_id);
        if (t && rc < 0)
            t->dirty = true;
        else if (t && v[i].snapshot_id > atomic_exchange(&t->stored, v[i].snapshot_id))
            atomic_store(&ap->poked, true); /* it may join now */
    }
    tr_mutex_unlock(&ap->lock);
    tr_free(v);
    if (atomic_load(&ap->poked))
        tr_apply_wake(ap);
    return rc;
}

static int poll_event(struct tr_source *s, struct tr_event *ret, struct tr_err *err)
{
    struct tr_apply_run *ap = of(s);
    if (!ap->main_assigned) {
        ap->main_assigned = true;
        *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = AP_MAIN_LANE, .epoch = 1, .lane = &ap->main_lane};
        return TR_OK;
    }
    tr_mutex_lock(&ap->lock);
    struct ap_catchup *c, **at = &ap->catchups;
    while ((c = *at) && (c->assigned || c->released)) {
        if (c->released && (c->closed || !c->assigned)) {
            *at = c->next;
            tr_apply_catchup_free(c);
        } else {
            at = &c->next;
        }
    }
    if (c)
        c->assigned = true;
    tr_mutex_unlock(&ap->lock);
    if (c) {
        *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = c->lane.id, .epoch = 1, .lane = &c->lane};
        return TR_OK;
    }
    int rc = record(ap, false, err);
    return rc < 0 ? rc : TR_AGAIN;
}

static int arm(struct tr_source *s, struct tr_waker *w, struct tr_wait *ret)
{
    struct tr_apply_run *ap = of(s);
    tr_mutex_lock(&ap->lock);
    ap->controller = w;
    tr_mutex_unlock(&ap->lock);
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = record_at(ap)};
    return 0;
}

static int answer(struct tr_source *s, const struct tr_event *ev, struct tr_err *err)
{
    (void)s;
    (void)ev;
    (void)err;
    return TR_OK;
}

static void note_catchup(struct tr_apply_run *ap, const struct tr_watermark *w)
{
    tr_mutex_lock(&ap->lock);
    struct ap_catchup *c;
    for (c = ap->catchups; c && c->lane.id != w->lane; c = c->next)
        ;
    if (c && !c->closed && !c->released && c->snapshot_id == c->table->rec.snapshot_id) { /* not one whose table was paused, and resumed, since */
        struct tr_ctl_sink_table *r = &c->table->rec;
        bool pass2 = w->upto >> AP_PHASE_SHIFT;
        uint64_t next = (uint64_t)(w->upto & AP_OFFSET_MASK) + 1;
        if ((r->state == TR_ST_LOADING || r->state == TR_ST_CATCHING_UP) && (pass2 || r->state == TR_ST_LOADING)) {
            r->state = pass2 ? TR_ST_CATCHING_UP : TR_ST_LOADING;
            r->end_offset = c->end;
            r->catchup_offset = next;
            c->table->dirty = true;
        }
    }
    tr_mutex_unlock(&ap->lock);
}

static int commit(struct tr_source *s, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    struct tr_apply_run *ap = of(s);
    for (size_t i = 0; i < n; i++) {
        if (v[i].lane != AP_MAIN_LANE)
            note_catchup(ap, &v[i]);
        else if ((uint64_t)v[i].upto + 1 > ap->pending)
            ap->pending = (uint64_t)v[i].upto + 1;
    }
    note_beats(ap);
    int rc = record(ap, sync_deadline_ns != 0, err);
    return rc == TR_RETRY && !sync_deadline_ns ? TR_OK : rc; /* noted, and told by poll_event */
}

static void close_source(struct tr_source *s, int64_t deadline_ns)
{
    (void)s; /* its memory is the run's: tr_apply_free */
    (void)deadline_ns;
}

const struct tr_source_ops tr_apply_source_ops = {poll_event, arm, answer, commit, close_source};
