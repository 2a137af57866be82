/*
 * snapshot.c: how a table enters. One coordinator thread walks each table through the phases of snapshot_internal.h; workers read.
 * The rules, with what each of them prevents, are in docs/decisions/0002-snapshot.md; none may be left out.
 *
 * Everything a restart needs is in the log (BEGIN, READ, FILL and their H; key updates) and in the control store (chunk bounds): see
 * tr_snapshot_recover. A table whose BEGIN was cut off by recovery starts again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "snapshot_internal.h"

#define CALL_NS (30 * TR_NS_PER_S)
#define PLAN_NS (600 * TR_NS_PER_S)
#define NUDGE_AFTER (300 * TR_NS_PER_MS)

struct snap_request {
    struct tr_list link;
    struct tr_cap_table *table;
};

bool tr_snapshot_stopping(struct tr_snapshot *s)
{
    tr_mutex_lock(&s->lock);
    bool r = s->stop;
    tr_mutex_unlock(&s->lock);
    return r;
}

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

static void poke(void *arg)
{
    struct tr_snapshot *s = arg;
    tr_mutex_lock(&s->lock);
    s->poked = true;
    tr_cond_signal(&s->wake);
    tr_mutex_unlock(&s->lock);
}

void tr_snap_log(enum tr_oslog_level level, const struct tr_cap_table *t, const char *text)
{
    char name[TR_SNAP_NAME_CHARS];
    tr_oslog_fields(level, "snapshot", TR_OSLOG_F({"table", tr_snap_name(name, t)}), "%s", text);
}

int tr_snap_save(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_err *err)
{
    struct tr_control *c = s->cap->control;
    return c->ops->table_put(c, &t->ctl, err);
}

static void unpin(struct tr_snapshot *s, struct tr_cap_table *t)
{
    char who[32];
    snprintf(who, sizeof who, "snapshot:%u", t->ctl.table_id);
    s->cap->log->ops->pin(s->cap->log, who, 0, UINT64_MAX, NULL);
}

int tr_snap_pin(struct tr_snapshot *s, struct tr_cap_table *t, uint64_t offset, struct tr_err *err)
{
    char who[32];
    snprintf(who, sizeof who, "snapshot:%u", t->ctl.table_id);
    return s->cap->log->ops->pin(s->cap->log, who, 0, offset, err);
}

/* ---- the per-table record ---- */

static void free_chunks(struct tr_snap *p)
{
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        tr_buf_done(&p->chunks[i].lo);
        tr_buf_done(&p->chunks[i].hi);
    }
    tr_free(p->chunks);
    p->chunks = NULL;
    p->n_chunks = p->cap_chunks = 0;
}

static struct tr_snap *snap_free(struct tr_snap *p)
{
    if (!p)
        return NULL;
    free_chunks(p);
    tr_schema_unref(p->schema);
    tr_free(p);
    return NULL;
}

struct snap_chunk *tr_snap_add_chunk(struct tr_snap *p, struct tr_slice lo, struct tr_slice hi)
{
    if (p->n_chunks == p->cap_chunks) {
        uint32_t cap = p->cap_chunks ? p->cap_chunks * 2 : 16;
        struct snap_chunk *v = tr_realloc(p->chunks, cap * sizeof *v);
        if (!v)
            return NULL;
        p->chunks = v;
        p->cap_chunks = cap;
    }
    struct snap_chunk *k = &p->chunks[p->n_chunks];
    memset(k, 0, sizeof *k);
    k->seq = p->n_chunks;
    if (tr_buf_append_slice(&k->lo, lo) < 0 || tr_buf_append_slice(&k->hi, hi) < 0)
        return NULL;
    p->n_chunks++;
    return k;
}

static void restart_phases(struct tr_snap *p)
{
    free_chunks(p);
    p->schema = tr_schema_unref(p->schema);
    p->phase = SNAP_FENCE1;
    p->h_max = 0;
    p->begin_position = p->end_position = 0;
    p->planned = false;
    p->fills_upto = 0;
    p->again = false;
    p->waiting[0] = 0;
    atomic_store(&p->cancelled, false);
}

static void waits_no_more(struct tr_snap *p)
{
    p->waiting[0] = 0;
    if (!p->refused)
        p->table->ctl.reason[0] = 0;
}

int tr_snap_begin(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_err *err)
{
    if (!t->snap) {
        t->snap = tr_calloc(1, sizeof *t->snap);
        if (!t->snap)
            return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the snapshot of %s.%s", t->ns, t->name);
        t->snap->table = t;
    }
    restart_phases(t->snap);
    if (t->snap->next.fingerprint)
        t->ctl.storage = t->snap->next;
    t->snap->next = (struct tr_table_storage){0};
    t->ctl.state = TR_TABLE_FENCING;
    t->ctl.rows_read = 0;
    waits_no_more(t->snap);
    tr_snap_log(TR_OSLOG_INFO, t, "snapshot begins");
    return tr_snap_save(s, t, err);
}

static void waits(struct tr_snapshot *s, struct tr_snap *p, const char *what)
{
    int64_t now = tr_now_ns();
    if (strcmp(p->waiting, what) != 0) {
        if (!p->waiting[0])
            p->waiting_since_ns = now;
        snprintf(p->waiting, sizeof p->waiting, "%s", what);
    }
    /* a moment's wait is nobody's business */
    if (p->waiting[0] && now - p->waiting_since_ns > TR_NS_PER_S && now - p->saved_ns > TR_NS_PER_S) {
        p->saved_ns = now;
        snprintf(p->table->ctl.reason, sizeof p->table->ctl.reason, "waits for %.480s", p->waiting);
        tr_snap_save(s, p->table, NULL);
        if (TR_OSLOG_ONCE_PER(10))
            tr_snap_log(TR_OSLOG_WARN, p->table, p->table->ctl.reason);
    }
}

/* Has the stream passed lsn? An idle one is nudged along. */
static bool stream_passed(struct tr_snapshot *s, struct tr_snap *p, uint64_t lsn)
{
    if (atomic_load_explicit(&s->cap->stream_pos, memory_order_acquire) >= lsn) {
        waits_no_more(p);
        return true;
    }
    waits(s, p, "the replication stream to reach the snapshot's position");
    int64_t now = tr_now_ns();
    if (now - p->nudged_ns > NUDGE_AFTER) {
        p->nudged_ns = now;
        s->session->ops->nudge(s->session, in(CALL_NS), NULL);
    }
    return false;
}

/* ---- phases ---- */

static int submit_one(struct tr_snapshot *s, struct tr_snap *p, uint8_t op, uint64_t h, int64_t *ret_position, struct tr_err *err)
{
    struct tr_snap_run *r = NULL;
    int rc = tr_snap_run_new(&r, err);
    if (rc < 0)
        return rc;
    struct tr_change *c = tr_snap_run_add(r, p->schema);
    if (!c) {
        tr_snap_run_free(r);
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for a frame");
    }
    c->op = op;
    c->snapshot_id = p->table->ctl.snapshot_id;
    c->end_lsn = h;
    return tr_capture_lane_submit(s->lane, r, ret_position);
}

static int phase_fence1(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    struct tr_cap_table *t = p->table;
    struct tr_schema *sc = NULL;
    int rc = s->session->ops->describe(s->session, t->ns, t->name, in(CALL_NS), &sc, err);
    if (rc == 1)
        return tr_err_set(err, TR_REJECT, TR_DOM_CDC, "the table does not exist any more");
    if (rc < 0)
        return rc;
    tr_schema_unref(p->schema);
    p->schema = sc;
    if (!sc->n_key) {
        p->phase = SNAP_DONE;
        return tr_snap_keyless(s, t, sc->no_key_reason, err);
    }
    rc = s->session->ops->fence_xid(s->session, in(CALL_NS), &p->x_g, err);
    p->x_g_generation = s->session->ops->generation(s->session);
    if (rc >= 0)
        p->phase = SNAP_XMIN;
    return rc;
}

static int phase_xmin(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    uint64_t xmin = 0, flush;
    int rc = s->session->ops->xmin(s->session, in(CALL_NS), &xmin, err);
    if (rc < 0)
        return rc;
    if (s->session->ops->generation(s->session) != p->x_g_generation) { /* x_g may have been undone by a crash, and given out again */
        p->phase = SNAP_FENCE1;
        return TR_OK;
    }
    if (xmin < p->x_g) {
        waits(s, p, err->msg);
        return TR_OK;
    }
    rc = s->session->ops->position(s->session, in(CALL_NS), &p->l_lsn, &flush, err);
    if (rc < 0)
        return rc;
    waits_no_more(p);
    p->phase = SNAP_STREAM_L;
    return TR_OK;
}

static int phase_stream_l(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    if (!stream_passed(s, p, p->l_lsn))
        return TR_OK;
    struct tr_control *c = s->cap->control;
    struct tr_cap_table *t = p->table;
    if (!t->selected && !atomic_load(&t->source_id)) { /* gone when the tables were looked at: what strays after BEGIN would not be noticed */
        s->tables_at_ns = 0;
        p->again = true;
        return TR_OK;
    }
    struct tr_log_stats st;
    int rc = s->cap->log->ops->stats(s->cap->log, 0, &st, err);
    if (rc >= 0)
        rc = tr_snap_pin(s, t, st.durable_offset, err);
    if (rc >= 0)
        rc = c->ops->snapshot_id_next(c, &t->ctl.snapshot_id, err);
    if (rc < 0)
        return rc;
    t->ctl.begin_offset = st.durable_offset; /* BEGIN will stand at or above it */
    t->ctl.end_offset = UINT64_MAX;
    rc = tr_snap_save(s, t, err);
    TR_FAILPOINT("snapshot.before_begin");
    if (rc >= 0)
        rc = submit_one(s, p, TR_OP_SNAPSHOT_BEGIN, p->l_lsn, &p->begin_position, err);
    if (rc >= 0)
        p->phase = SNAP_BEGIN;
    return rc;
}

static int phase_begin(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    if (tr_capture_lane_durable(s->lane) < p->begin_position)
        return TR_OK;
    /* What was written before BEGIN is only read, so it must be read by a definition no older than BEGIN: a column that came after the first
     * look would be missing from rows that were inserted with it. */
    struct tr_schema *now = NULL;
    int rc = s->session->ops->describe(s->session, p->table->ns, p->table->name, in(CALL_NS), &now, err);
    if (rc == 1)
        return tr_err_set(err, TR_STALE, TR_DOM_CDC, "the table does not exist any more");
    if (rc < 0)
        return rc;
    p->again = now->fingerprint != p->schema->fingerprint;
    tr_schema_unref(now);
    if (p->again) {
        tr_snap_log(TR_OSLOG_INFO, p->table, "its definition changed while its snapshot began: starting it again");
        return TR_OK;
    }
    TR_FAILPOINT("snapshot.begun");
    p->table->ctl.state = TR_TABLE_CHUNKS;
    p->phase = SNAP_CHUNKS;
    return tr_snap_save(s, p->table, err);
}

static void push_task(struct tr_snapshot *s, struct snap_task *t)
{
    t->snap->out++;
    tr_mutex_lock(&s->lock);
    tr_list_push_back(&s->tasks, &t->link);
    tr_cond_broadcast(&s->work);
    tr_mutex_unlock(&s->lock);
}

static struct snap_task *new_task(struct tr_snap *p, enum snap_task_kind kind)
{
    struct snap_task *t = tr_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    tr_list_init(&t->link);
    t->kind = kind;
    t->snap = p;
    t->schema = tr_schema_ref(p->schema);
    t->snapshot_id = p->table->ctl.snapshot_id;
    return t;
}

static int queue_chunk(struct tr_snapshot *s, struct tr_snap *p, struct snap_chunk *k)
{
    struct snap_task *t = new_task(p, SNAP_TASK_CHUNK);
    if (!t || tr_buf_append_slice(&t->lo, tr_buf_slice(&k->lo)) < 0 || tr_buf_append_slice(&t->hi, tr_buf_slice(&k->hi)) < 0) {
        tr_snap_task_free(t);
        return TR_NOMEM;
    }
    t->seq = k->seq;
    k->queued = true;
    push_task(s, t);
    return TR_OK;
}

/* Plans the next chunk: (hi of the last one, hi]. */
static int plan_next(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    struct tr_slice lo = p->n_chunks ? tr_buf_slice(&p->chunks[p->n_chunks - 1].hi) : (struct tr_slice){NULL, 0};
    struct tr_buf hi;
    tr_buf_init(&hi);
    int rc = s->session->ops->chunk_plan(s->session, p->schema, lo, p->rows_per_chunk, in(PLAN_NS), &hi, err);
    struct snap_chunk *k = rc >= 0 ? tr_snap_add_chunk(p, lo, tr_buf_slice(&hi)) : NULL;
    tr_buf_done(&hi);
    if (rc < 0)
        return rc;
    if (!k)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for a chunk");
    p->planned = k->hi.n == 0;
    struct tr_ctl_chunk rec = {.table_id = p->table->ctl.table_id,
                               .snapshot_id = p->table->ctl.snapshot_id,
                               .seq = k->seq,
                               .lo = tr_buf_slice(&k->lo),
                               .hi = tr_buf_slice(&k->hi)};
    return s->cap->control->ops->chunk_put(s->cap->control, &rec, err);
}

static int mark_done(struct tr_snapshot *s, struct tr_snap *p, struct snap_chunk *k, struct tr_err *err)
{
    struct tr_ctl_chunk rec = {.table_id = p->table->ctl.table_id,
                               .snapshot_id = p->table->ctl.snapshot_id,
                               .seq = k->seq,
                               .done = true,
                               .rows = k->rows,
                               .lo = tr_buf_slice(&k->lo),
                               .hi = tr_buf_slice(&k->hi)};
    TR_FAILPOINT("snapshot.before_done");
    int rc = s->cap->control->ops->chunk_put(s->cap->control, &rec, err);
    if (rc < 0)
        return rc;
    k->done = true;
    p->table->ctl.rows_read += k->rows;
    return tr_snap_save(s, p->table, err);
}

static int phase_chunks(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    int64_t durable = tr_capture_lane_durable(s->lane);
    uint32_t open = 0;
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        struct snap_chunk *k = &p->chunks[i];
        if (!k->done && k->position && durable >= k->position) {
            int rc = mark_done(s, p, k, err);
            if (rc < 0)
                return rc;
        }
        if (!k->done && !k->queued && queue_chunk(s, p, k) < 0)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for a chunk");
        open += !k->done;
    }
    if (!p->planned && p->out < s->n_workers + 1)
        return plan_next(s, p, err);
    if (open == 0 && p->planned) {
        p->phase = SNAP_STREAM_H;
        p->table->ctl.state = TR_TABLE_FILLING;
        waits_no_more(p);
        return tr_snap_save(s, p->table, err);
    }
    return TR_OK;
}

/* The stream has passed the highest H of everything read: this is P. What moved before P and lacks its FILL is filled now; FILLs raise
 * H, so that this phase comes back here until nothing is missing. */
static int phase_stream_h(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    if (!stream_passed(s, p, p->h_max))
        return TR_OK;
    struct tr_cap_table *t = p->table;
    bool missing = false;
    tr_mutex_lock(&s->cap->lock);
    p->fills_upto = t->n_needs;
    for (size_t i = 0; i < t->n_needs; i++)
        missing |= !t->needs[i].filled;
    tr_mutex_unlock(&s->cap->lock);
    if (missing) {
        p->phase = SNAP_FILLS;
        return TR_OK;
    }
    int rc = submit_one(s, p, TR_OP_SNAPSHOT_END, p->h_max, &p->end_position, err);
    if (rc >= 0)
        p->phase = SNAP_END;
    return rc;
}

static int phase_fills(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    struct tr_cap_table *t = p->table;
    bool missing = false;
    for (size_t i = 0; i < p->fills_upto && p->out < 2 * s->n_workers; i++) {
        struct snap_task *task = NULL;
        tr_mutex_lock(&s->cap->lock);
        struct tr_cap_need *n = &t->needs[i];
        missing |= !n->filled;
        if (!n->filled && !n->asked && (task = new_task(p, SNAP_TASK_FILL))) {
            task->need = *n;
            task->need_index = i;
            task->need.key = tr_malloc(n->key_n + 1);
            if (task->need.key) {
                memcpy(task->need.key, n->key, n->key_n);
                n->asked = true;
            } else {
                task = tr_snap_task_free(task);
            }
        }
        bool none = !n->filled && !n->asked;
        tr_mutex_unlock(&s->cap->lock);
        if (task)
            push_task(s, task);
        else if (none)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for a FILL");
    }
    if (!missing && p->out == 0) {
        waits_no_more(p);
        p->phase = SNAP_STREAM_H;
    }
    return TR_OK;
}

static void alarm_of(struct tr_snapshot *s, const struct tr_cap_table *t, const char *text)
{
    char name[TR_SNAP_NAME_CHARS], subject[TR_ALARM_SUBJECT_CHARS];
    tr_control_alarm(s->cap->control, TR_ALARM_TABLE, tr_alarm_subject(subject, NULL, tr_snap_name(name, t)), text);
}

static int phase_end(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    if (tr_capture_lane_durable(s->lane) < p->end_position)
        return TR_OK;
    struct tr_cap_table *t = p->table;
    struct tr_log_stats st;
    int rc = s->cap->log->ops->stats(s->cap->log, 0, &st, err);
    if (rc < 0)
        return rc;
    t->ctl.state = TR_TABLE_LIVE;
    t->ctl.end_offset = st.durable_offset;
    t->ctl.reason[0] = 0;
    rc = tr_snap_save(s, t, err);
    if (rc < 0)
        return rc;
    s->cap->control->ops->chunk_clear(s->cap->control, t->ctl.table_id, t->ctl.snapshot_id + 1, NULL);
    unpin(s, t);
    p->phase = SNAP_DONE;
    p->refused = 0;
    alarm_of(s, t, NULL);
    char text[96];
    snprintf(text, sizeof text, "snapshot complete: %" PRIu64 " rows", t->ctl.rows_read);
    tr_snap_log(TR_OSLOG_INFO, t, text);
    return TR_OK;
}

static int step_phase(struct tr_snapshot *s, struct tr_snap *p, struct tr_err *err)
{
    switch (p->phase) {
    case SNAP_FENCE1: return phase_fence1(s, p, err);
    case SNAP_XMIN: return phase_xmin(s, p, err);
    case SNAP_STREAM_L: return phase_stream_l(s, p, err);
    case SNAP_BEGIN: return phase_begin(s, p, err);
    case SNAP_CHUNKS: return phase_chunks(s, p, err);
    case SNAP_STREAM_H: return phase_stream_h(s, p, err);
    case SNAP_FILLS: return phase_fills(s, p, err);
    case SNAP_END: return phase_end(s, p, err);
    case SNAP_DONE: break;
    }
    return TR_OK;
}

void tr_snap_pause(struct tr_snapshot *s, struct tr_cap_table *t, const char *reason)
{
    t->ctl.state = TR_TABLE_PAUSED;
    snprintf(t->ctl.reason, sizeof t->ctl.reason, "%s", reason);
    tr_snap_save(s, t, NULL);
    unpin(s, t);
    tr_snap_log(TR_OSLOG_ERROR, t, reason);
    alarm_of(s, t, reason);
}

static void table_trouble(struct tr_snapshot *s, struct tr_cap_table *t, const struct tr_err *err)
{
    if (tr_snapshot_stopping(s)) /* interrupted: no trouble */
        return;
    char name[TR_SNAP_NAME_CHARS];
    if (tr_oslog_failed(&t->snap->trouble, err))
        tr_oslog_err(TR_OSLOG_WARN, "snapshot", TR_OSLOG_F({"table", tr_snap_name(name, t)}), err);
}

static void table_well(struct tr_cap_table *t)
{
    char lasted[TR_OSLOG_LASTED_CHARS], text[64];
    if (t->snap->refused || !tr_oslog_well(&t->snap->trouble, lasted))
        return;
    snprintf(text, sizeof text, "goes on after %s", lasted);
    tr_snap_log(TR_OSLOG_INFO, t, text);
}

/* It cannot go on. Once that may be a definition that has just changed; again and again it is something for somebody to see to, and each beginning
 * costs frames in the log and a build in each sink. */
static void start_again(struct tr_snapshot *s, struct tr_snap *p, const struct tr_err *err)
{
    struct tr_cap_table *t = p->table;
    if (p->again)
        return;
    p->again = true;
    p->again_at_ns = p->refused ? in((INT64_C(1) << TR_MIN(p->refused - 1, 6)) * TR_NS_PER_S) : 0;
    p->refused++;
    snprintf(t->ctl.reason, sizeof t->ctl.reason, "%s", err->msg);
    tr_snap_save(s, t, NULL);
    table_trouble(s, t, err);
}

static void step_table(struct tr_snapshot *s, struct tr_cap_table *t)
{
    struct tr_snap *p = t->snap;
    struct tr_err err = {0};
    tr_mutex_lock(&s->cap->lock);
    bool broke = t->schema_broke;
    t->schema_broke = false;
    tr_mutex_unlock(&s->cap->lock);
    if (broke && p->phase > SNAP_STREAM_L) {
        tr_snap_log(TR_OSLOG_WARN, t, "its definition changed in a breaking way during the snapshot: starting it again");
        p->again = true;
    }
    if (p->again) {
        atomic_store(&p->cancelled, true);
        if (p->out == 0 && tr_now_ns() >= p->again_at_ns && tr_snap_begin(s, t, &err) < 0)
            tr_oslog_err(TR_OSLOG_ERROR, "snapshot", NULL, 0, &err);
        return;
    }
    if (tr_now_ns() < p->retry_at_ns)
        return;
    for (int i = 0; i < 4; i++) { /* phases that pass at once need not wait for the next round */
        enum snap_phase before = p->phase;
        int rc = step_phase(s, p, &err);
        if (rc < 0) {
            if (rc == TR_REJECT || rc == TR_STALE) {
                if (p->phase == SNAP_FENCE1) {
                    p->phase = SNAP_DONE;
                    p->refused = 0;
                    tr_snap_pause(s, t, err.msg);
                } else {
                    start_again(s, p, &err);
                    return;
                }
            }
            p->retry_at_ns = in(TR_NS_PER_S);
            waits(s, p, err.msg);
            table_trouble(s, t, &err);
            return;
        }
        if (p->phase == before)
            return;
        table_well(t);
    }
}

/* ---- results ---- */

static void take_result(struct tr_snapshot *s, struct snap_task *t)
{
    struct tr_snap *p = t->snap;
    struct tr_cap_table *table = p->table;
    p->out--;
    bool current = t->snapshot_id == table->ctl.snapshot_id && !p->again;
    if (t->kind == SNAP_TASK_CHUNK && current && t->seq < p->n_chunks) {
        struct snap_chunk *k = &p->chunks[t->seq];
        if (t->rc >= 0) {
            k->rows = t->rows;
            k->position = t->position ? t->position : INT64_MIN; /* no rows: nothing to wait for */
            p->h_max = TR_MAX(p->h_max, t->h);
            waits_no_more(p);
            table_well(table);
        } else {
            k->queued = false; /* again */
        }
    } else if (t->kind == SNAP_TASK_FILL && current) {
        tr_mutex_lock(&s->cap->lock);
        if (t->need_index < table->n_needs) {
            struct tr_cap_need *n = &table->needs[t->need_index];
            n->filled = t->rc >= 0;
            n->asked = t->rc >= 0;
        }
        tr_mutex_unlock(&s->cap->lock);
        if (t->rc >= 0)
            p->h_max = TR_MAX(p->h_max, t->h);
    }
    if (t->rc == TR_REJECT || t->rc == TR_STALE) {
        start_again(s, p, &t->err);
    } else if (t->rc < 0 && t->rc != TR_EOF) {
        p->retry_at_ns = in(TR_NS_PER_S);
        table_trouble(s, table, &t->err);
    }
    tr_snap_task_free(t);
}

static void take_requests(struct tr_snapshot *s)
{
    for (;;) {
        tr_mutex_lock(&s->lock);
        struct tr_list *l = tr_list_pop_front(&s->requests);
        tr_mutex_unlock(&s->lock);
        if (!l)
            return;
        struct snap_request *r = tr_container_of(l, struct snap_request, link);
        struct tr_cap_table *t = r->table;
        tr_free(r);
        if (tr_snap_under_way(t)) {
            t->snap->again = true;
            t->snap->again_at_ns = 0;
        } else if (t->known) {
            t->ctl.state = TR_TABLE_NEW;
            tr_snap_save(s, t, NULL);
        }
        s->tables_at_ns = 0;
    }
}

static void coordinate(void *arg)
{
    struct tr_snapshot *s = arg;
    for (;;) {
        tr_mutex_lock(&s->lock);
        if (!s->stop && !s->poked)
            tr_cond_wait_until(&s->wake, &s->lock, in(50 * TR_NS_PER_MS));
        s->poked = false;
        bool stop = s->stop;
        struct tr_list results;
        tr_list_init(&results);
        tr_list_splice_back(&results, &s->results);
        char waiting[512];
        snprintf(waiting, sizeof waiting, "%s", s->waiting);
        struct tr_snap *waiting_for = s->waiting_for;
        s->waiting_for = NULL;
        tr_mutex_unlock(&s->lock);
        struct tr_list *l;
        while ((l = tr_list_pop_front(&results)))
            take_result(s, tr_container_of(l, struct snap_task, link));
        if (stop)
            return;
        if (waiting_for)
            waits(s, waiting_for, waiting);
        take_requests(s);
        tr_snap_note_strays(s);
        tr_snap_look(s);
        tr_snap_begin_new(s);
        for (struct tr_cap_table *t = s->cap->tables; t && !tr_snapshot_stopping(s); t = t->next)
            if (tr_snap_under_way(t))
                step_table(s, t);
    }
}

/* ---- life ---- */

int tr_snapshot_new(struct tr_capture *c, const struct tr_snapshot_tuning *tuning, struct tr_snapshot **ret, struct tr_err *err)
{
    struct tr_snapshot *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the snapshot coordinator");
    s->cap = c;
    s->tuning = *tuning;
    tr_mutex_init(&s->lock);
    tr_u64map_init(&s->ids);
    tr_cond_init(&s->work);
    tr_cond_init(&s->wake);
    tr_list_init(&s->tasks);
    tr_list_init(&s->results);
    tr_list_init(&s->requests);
    *ret = s;
    return TR_OK;
}

static void run_worker(void *arg)
{
    tr_snapshot_worker_run(arg);
    tr_free(arg); /* its sessions are freed by tr_snapshot_free, which may still be interrupting them */
}

static int start_worker(struct tr_snapshot *s, struct tr_err *err)
{
    struct tr_cdc *cdc = s->cap->cdc;
    struct snap_worker *w = tr_calloc(1, sizeof *w);
    if (!w)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for a snapshot worker");
    w->s = s;
    int rc = cdc->ops->session_new(cdc, TR_CDC_PRIMARY, &w->primary, err);
    if (rc >= 0 && cdc->ops->has_replica(cdc))
        rc = cdc->ops->session_new(cdc, TR_CDC_REPLICA, &w->replica, err);
    if (rc >= 0) {
        s->worker_sessions[2 * s->n_workers] = w->primary;
        s->worker_sessions[2 * s->n_workers + 1] = w->replica;
        rc = tr_thread_start(&s->workers[s->n_workers], "tr-snap", run_worker, w, err);
    }
    if (rc < 0) {
        if (w->replica)
            w->replica->ops->free(w->replica);
        if (w->primary)
            w->primary->ops->free(w->primary);
        tr_free(w);
        return rc;
    }
    s->n_workers++;
    return TR_OK;
}

int tr_snapshot_start(struct tr_snapshot *s, struct tr_source *lane, struct tr_err *err)
{
    s->lane = lane;
    tr_capture_lane_set_notify(lane, poke, s);
    int rc = s->cap->cdc->ops->session_new(s->cap->cdc, TR_CDC_PRIMARY, &s->session, err);
    if (rc < 0)
        return rc;
    s->workers = tr_calloc(s->tuning.workers, sizeof(struct tr_thread *));
    s->worker_sessions = tr_calloc(2 * s->tuning.workers, sizeof(struct tr_cdc_session *));
    if (!s->workers || !s->worker_sessions)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for snapshot workers");
    while (rc >= 0 && s->n_workers < s->tuning.workers)
        rc = start_worker(s, err);
    return rc < 0 ? rc : tr_thread_start(&s->coordinator, "tr-snap-coord", coordinate, s, err);
}

struct tr_snapshot *tr_snapshot_free(struct tr_snapshot *s)
{
    if (!s)
        return NULL;
    tr_mutex_lock(&s->lock);
    s->stop = true;
    tr_cond_broadcast(&s->work);
    tr_cond_broadcast(&s->wake);
    tr_mutex_unlock(&s->lock);
    if (s->lane)
        tr_capture_lane_close(s->lane);
    for (uint32_t i = 0; i < 2 * s->n_workers; i++)
        if (s->worker_sessions[i])
            s->worker_sessions[i]->ops->interrupt(s->worker_sessions[i]);
    if (s->session)
        s->session->ops->interrupt(s->session);
    for (uint32_t i = 0; i < s->n_workers; i++)
        tr_thread_join(s->workers[i]);
    tr_thread_join(s->coordinator);
    struct tr_list *l;
    while ((l = tr_list_pop_front(&s->tasks)) || (l = tr_list_pop_front(&s->results)))
        tr_snap_task_free(tr_container_of(l, struct snap_task, link));
    while ((l = tr_list_pop_front(&s->requests)))
        tr_free(tr_container_of(l, struct snap_request, link));
    for (struct tr_cap_table *t = s->cap->tables; t; t = t->next)
        t->snap = snap_free(t->snap);
    for (uint32_t i = 0; i < 2 * s->n_workers; i++)
        if (s->worker_sessions[i])
            s->worker_sessions[i]->ops->free(s->worker_sessions[i]);
    if (s->session)
        s->session->ops->free(s->session);
    tr_free(s->workers);
    tr_free(s->worker_sessions);
    tr_mutex_done(&s->lock);
    tr_u64map_done(&s->ids);
    tr_cond_done(&s->work);
    tr_cond_done(&s->wake);
    tr_free(s);
    return NULL;
}

int tr_snapshot_request(struct tr_snapshot *s, const char *ns, const char *name)
{
    struct tr_cap_table *t;
    tr_mutex_lock(&s->cap->lock);
    for (t = s->cap->tables; t; t = t->next)
        if (!strcmp(t->ns, ns) && !strcmp(t->name, name))
            break;
    tr_mutex_unlock(&s->cap->lock);
    struct snap_request *r = t ? tr_calloc(1, sizeof *r) : NULL;
    if (!r)
        return 1;
    tr_list_init(&r->link);
    r->table = t;
    tr_mutex_lock(&s->lock);
    tr_list_push_back(&s->requests, &r->link);
    s->poked = true;
    tr_cond_signal(&s->wake);
    tr_mutex_unlock(&s->lock);
    return TR_OK;
}
