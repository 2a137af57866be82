/*
 * capture_source.c: what the capture pipeline reads from: the source's stream (lane 0) and a second lane (1) through which the
 * snapshot hands its rows and frames to capture, the log's only appender.
 *
 * Committing lane 0. The position is written to the control store, together with the log's durable offset, *before* the stream may
 * confirm it to the server. That write is a disk sync, so it is done at most every CONFIRM_EVERY (and at once when asked to be synchronous).
 * While a table that was met under another name is not noted in the control store nothing is recorded: after a crash it is met again.
 * That recording fails is told by poll_event, again and again until it works: a commit mostly only notes what is to be recorded.
 * Committing lane 1 tells the snapshot which of its runs are durable.
 */
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "arena.h"
#include "cdc_internal.h"
#include "check.h"
#include "list.h"

#define CONFIRM_EVERY TR_NS_PER_S
enum { SNAP_LANE = 1, QUEUE_BYTES_MAX = 32 << 20, ROWS_PER_POLL = 1024 };

/* Changes, or rows of a chunk. Those lie packed, and are changes only while they are delivered: a change is larger than most rows. */
struct tr_snap_run {
    struct tr_list link;
    struct tr_arena arena;
    struct tr_schema *schema;  /* of the first change, which others refer to on their own; of all rows */
    struct tr_change **v;
    uint8_t **rows;            /* as tr_snap_run_add_row packs them */
    uint32_t n, cap;           /* of either */
    uint32_t delivered;
    uint64_t snapshot_id, h;   /* of the rows */
    int64_t position;
};

struct snap_lane {
    struct tr_lane lane;
    struct tr_mutex lock;
    struct tr_cond room;
    struct tr_list queue;      /* lock */
    size_t queued;             /* lock: bytes */
    int64_t next_position;     /* lock */
    bool closed;               /* lock */
    struct tr_waker *waker;    /* lock: of the pipeline thread */
    struct tr_snap_run *run;   /* being delivered */
    struct tr_payload *v;      /* ROWS_PER_POLL, as the changes */
    struct tr_change *changes;
    struct tr_slice *values;   /* of the rows delivered now, each n_columns */
    uint8_t *states;
    uint32_t n_columns;
    _Atomic(int64_t) durable;
    void (*notify)(void *);
    void *notify_arg;
};

struct capture_source {
    struct tr_source source;
    struct tr_capture *cap;
    struct tr_source *stream;
    struct snap_lane snap;
    bool snap_assigned;
    uint64_t pending, recorded;   /* lane 0: highest watermark, and what the control store has */
    int64_t last_record_ns;
    struct tr_err trouble;        /* why the last attempt to record failed; rc 0: it did not */
};

static struct capture_source *of(struct tr_source *s)
{
    return tr_container_of(s, struct capture_source, source);
}

/* ---- runs ---- */

int tr_snap_run_new(struct tr_snap_run **ret, struct tr_err *err)
{
    struct tr_snap_run *r = tr_calloc(1, sizeof *r);
    if (!r)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for snapshot rows");
    tr_list_init(&r->link);
    tr_arena_init(&r->arena, 256 << 10, 0);
    *ret = r;
    return TR_OK;
}

struct tr_snap_run *tr_snap_run_free(struct tr_snap_run *r)
{
    if (!r)
        return NULL;
    for (uint32_t i = 0; r->v && i < r->n; i++)
        if (r->v[i]->schema != r->schema)
            tr_schema_unref(r->v[i]->schema);
    tr_schema_unref(r->schema);
    tr_arena_done(&r->arena);
    tr_free(r->v);
    tr_free((void *)r->rows);
    tr_free(r);
    return NULL;
}

static int grow(struct tr_snap_run *r, void **io_v)
{
    if (r->n < r->cap)
        return TR_OK;
    uint32_t cap = r->cap ? r->cap * 2 : 16;
    void *v = tr_realloc(*io_v, cap * sizeof(void *));
    if (!v)
        return TR_NOMEM;
    *io_v = v;
    r->cap = cap;
    return TR_OK;
}

struct tr_change *tr_snap_run_add(struct tr_snap_run *r, const struct tr_schema *schema)
{
    void *v = (void *)r->v;
    TR_ASSERT(!r->rows);
    if (grow(r, &v) < 0)
        return NULL;
    r->v = v;
    struct tr_change *c = TR_ARENA_NEW(&r->arena, struct tr_change);
    if (!c)
        return NULL;
    if (schema && !r->schema)
        r->schema = tr_schema_ref(schema);
    c->schema = schema == r->schema ? r->schema : schema ? tr_schema_ref(schema) : NULL;
    r->v[r->n++] = c;
    return c;
}

int tr_snap_run_copy(struct tr_snap_run *r, const struct tr_row *row, struct tr_row *ret)
{
    size_t need = row->n * sizeof(struct tr_slice) + row->n + 1u;
    for (uint32_t i = 0; i < row->n; i++)
        need += row->state[i] == TR_PRESENT ? row->v[i].n : 0;
    struct tr_slice *v = tr_arena_alloc(&r->arena, need);
    if (!v)
        return TR_NOMEM;
    uint8_t *st = (uint8_t *)(v + row->n), *p = st + row->n;
    for (uint32_t i = 0; i < row->n; i++) {
        st[i] = row->state[i];
        v[i] = (struct tr_slice){NULL, 0};
        if (st[i] != TR_PRESENT)
            continue;
        v[i] = tr_slice_of(p, row->v[i].n);
        if (row->v[i].n)
            memcpy(p, row->v[i].p, row->v[i].n);
        p += row->v[i].n;
    }
    *ret = (struct tr_row){.v = v, .state = st, .n = row->n};
    return TR_OK;
}

int tr_snap_run_bytes(struct tr_snap_run *r, struct tr_slice s, struct tr_slice *ret)
{
    *ret = tr_arena_dup(&r->arena, s);
    return ret->p ? TR_OK : TR_NOMEM;
}

size_t tr_snap_run_size(const struct tr_snap_run *r)
{
    return r->arena.bytes;
}

/* n lengths, n states, the bytes of those that are present. */
int tr_snap_run_add_row(struct tr_snap_run *r, const struct tr_schema *schema, uint64_t snapshot_id, const struct tr_row *row)
{
    void *rows = (void *)r->rows;
    uint32_t n = row->n;
    size_t need = n * sizeof(uint32_t) + n;
    TR_ASSERT(!r->v && n == schema->n_columns && (!r->schema || (r->schema == schema && r->snapshot_id == snapshot_id)));
    for (uint32_t i = 0; i < n; i++)
        need += row->state[i] == TR_PRESENT ? row->v[i].n : 0;
    if (grow(r, &rows) < 0)
        return TR_NOMEM;
    r->rows = rows;
    uint8_t *p = tr_arena_alloc_aligned(&r->arena, need, _Alignof(uint32_t));
    if (!p)
        return TR_NOMEM;
    if (!r->schema)
        r->schema = tr_schema_ref(schema);
    r->snapshot_id = snapshot_id;
    r->rows[r->n++] = p;
    uint32_t *len = (uint32_t *)(void *)p;
    p += n * sizeof *len;
    memcpy(p, row->state, n);
    p += n;
    for (uint32_t i = 0; i < n; i++) {
        len[i] = row->state[i] == TR_PRESENT ? (uint32_t)row->v[i].n : 0; /* a row is less than 2 GiB */
        if (len[i])
            memcpy(p, row->v[i].p, len[i]);
        p += len[i];
    }
    return TR_OK;
}

static void unpack(const struct tr_snap_run *r, uint32_t at, struct tr_slice *v, uint8_t *state, struct tr_change *ret)
{
    uint32_t n = r->schema->n_columns;
    const uint32_t *len = (const uint32_t *)(const void *)r->rows[at];
    const uint8_t *st = r->rows[at] + n * sizeof *len, *p = st + n;
    memcpy(state, st, n);
    for (uint32_t i = 0; i < n; i++) {
        v[i] = tr_slice_of(p, len[i]);
        p += len[i];
    }
    *ret = (struct tr_change){.op = TR_OP_READ, .schema = r->schema, .snapshot_id = r->snapshot_id, .end_lsn = r->h, .after = {.v = v, .state = state, .n = n}};
}

void tr_snap_run_set_h(struct tr_snap_run *r, uint64_t h)
{
    r->h = h;
}

/* ---- the snapshot's lane ---- */

int tr_capture_lane_submit(struct tr_source *src, struct tr_snap_run *run, int64_t *ret_position)
{
    struct snap_lane *l = &of(src)->snap;
    size_t size = tr_snap_run_size(run);
    tr_mutex_lock(&l->lock);
    while (!l->closed && l->queued && l->queued + size > QUEUE_BYTES_MAX)
        tr_cond_wait_until(&l->room, &l->lock, INT64_MAX);
    if (l->closed) {
        tr_mutex_unlock(&l->lock);
        tr_snap_run_free(run);
        return TR_EOF;
    }
    run->position = *ret_position = ++l->next_position;
    tr_list_push_back(&l->queue, &run->link);
    l->queued += size;
    tr_waker_wake(l->waker);
    tr_mutex_unlock(&l->lock);
    return TR_OK;
}

int64_t tr_capture_lane_durable(struct tr_source *src)
{
    return atomic_load(&of(src)->snap.durable);
}

void tr_capture_lane_close(struct tr_source *src)
{
    struct snap_lane *l = &of(src)->snap;
    tr_mutex_lock(&l->lock);
    l->closed = true;
    tr_cond_broadcast(&l->room);
    tr_mutex_unlock(&l->lock);
}

void tr_capture_lane_set_notify(struct tr_source *src, void (*notify)(void *), void *arg)
{
    of(src)->snap.notify = notify;
    of(src)->snap.notify_arg = arg;
}

static struct snap_lane *lane_of(struct tr_lane *l)
{
    return tr_container_of(l, struct snap_lane, lane);
}

static void next_run(struct snap_lane *l)
{
    if (l->run && l->run->delivered < l->run->n)
        return;
    l->run = tr_snap_run_free(l->run);
    tr_mutex_lock(&l->lock);
    struct tr_list *first = tr_list_pop_front(&l->queue);
    if (first) {
        l->run = tr_container_of(first, struct tr_snap_run, link);
        l->queued -= tr_snap_run_size(l->run);
        tr_cond_broadcast(&l->room);
    }
    tr_mutex_unlock(&l->lock);
}

/* For rows of so many columns. What is there is kept: tables follow one another. */
static int make_room(struct snap_lane *l, uint32_t n_columns, struct tr_err *err)
{
    if (!l->v)
        l->v = tr_malloc(ROWS_PER_POLL * sizeof *l->v);
    if (!l->changes)
        l->changes = tr_malloc(ROWS_PER_POLL * sizeof *l->changes);
    if (n_columns > l->n_columns) {
        tr_free(l->values);
        tr_free(l->states);
        l->values = tr_malloc(ROWS_PER_POLL * (size_t)n_columns * sizeof *l->values);
        l->states = tr_malloc(ROWS_PER_POLL * (size_t)n_columns);
        l->n_columns = l->values && l->states ? n_columns : 0;
    }
    return l->v && l->changes && n_columns <= l->n_columns ? TR_OK : tr_err_set(err, TR_FATAL, TR_DOM_CDC, "no memory for %d snapshot rows", ROWS_PER_POLL);
}

static int lane_poll(struct tr_lane *tl, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct snap_lane *l = lane_of(tl);
    next_run(l);
    struct tr_snap_run *r = l->run;
    if (!r)
        return TR_AGAIN;
    int rc = make_room(l, r->rows ? r->schema->n_columns : 0, err);
    if (rc < 0)
        return rc;
    uint32_t n = TR_MIN(r->n - r->delivered, TR_MIN(max, (uint32_t)ROWS_PER_POLL)), from = r->delivered;
    for (uint32_t i = 0; i < n; i++) {
        size_t cell = (size_t)i * l->n_columns;
        if (r->rows)
            unpack(r, from + i, l->values + cell, l->states + cell, &l->changes[i]);
        l->v[i] = (struct tr_payload){.meta = r->rows ? &l->changes[i] : r->v[from + i], .position = r->position, .flags = TR_PAYLOAD_CHANGE | TR_PAYLOAD_SNAPSHOT};
    }
    r->delivered += n;
    *ret = (struct tr_payloads){.v = l->v, .n = n, .lane = SNAP_LANE, .upto = r->delivered == r->n ? r->position : r->position - 1};
    return TR_OK;
}

static void set_wake_lane(struct snap_lane *l, struct tr_waker *w)
{
    struct tr_capture *c = tr_container_of(l, struct capture_source, snap)->cap;
    tr_mutex_lock(&c->lock);
    c->wake_lane = w;
    tr_mutex_unlock(&c->lock);
}

static int lane_arm(struct tr_lane *tl, struct tr_waker *w, struct tr_wait *ret)
{
    struct snap_lane *l = lane_of(tl);
    set_wake_lane(l, w);
    tr_mutex_lock(&l->lock);
    l->waker = w;
    int ready = !tr_list_empty(&l->queue);
    tr_mutex_unlock(&l->lock);
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    return ready;
}

static int lane_tend(struct tr_lane *l, int64_t now_ns, struct tr_err *err)
{
    (void)l;
    (void)now_ns;
    (void)err;
    return TR_OK;
}

static void lane_pause(struct tr_lane *l, bool on)
{
    (void)l;
    (void)on;
}

static void lane_close(struct tr_lane *tl)
{
    struct snap_lane *l = lane_of(tl);
    set_wake_lane(l, NULL);
    tr_mutex_lock(&l->lock);
    l->waker = NULL;
    l->closed = true;
    tr_cond_broadcast(&l->room);
    tr_mutex_unlock(&l->lock);
    l->run = tr_snap_run_free(l->run);
}

static const struct tr_lane_ops lane_ops = {lane_poll, lane_arm, lane_tend, lane_pause, lane_close};

/* ---- the source ---- */

static int record(struct capture_source *s, int64_t sync_deadline_ns, struct tr_err *err)
{
    int64_t now = tr_now_ns();
    if (s->pending == s->recorded)
        return TR_OK;
    if (!sync_deadline_ns && now - s->last_record_ns < CONFIRM_EVERY) {
        if (s->trouble.rc < 0)
            *err = s->trouble;
        return s->trouble.rc;
    }
    if (atomic_load(&s->cap->strays)) {
        s->last_record_ns = now;
        return TR_OK;
    }
    struct tr_log_stats st;
    int rc = s->cap->log->ops->stats(s->cap->log, 0, &st, err);
    if (rc >= 0)
        rc = s->cap->control->ops->confirm(s->cap->control, s->cap->source_name, s->pending, st.durable_offset, err);
    s->last_record_ns = now;
    s->trouble.rc = TR_OK;
    if (rc < 0) {
        s->trouble = *err;
        return s->trouble.rc = rc;
    }
    s->recorded = s->pending;
    struct tr_watermark w = {.lane = 0, .epoch = 1, .upto = (int64_t)s->recorded};
    return s->stream->ops->commit(s->stream, &w, 1, sync_deadline_ns, err);
}

static int poll_event(struct tr_source *src, struct tr_event *ret, struct tr_err *err)
{
    struct capture_source *s = of(src);
    if (!s->snap_assigned) {
        s->snap_assigned = true;
        *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = SNAP_LANE, .epoch = 1, .lane = &s->snap.lane};
        return TR_OK;
    }
    int rc = s->stream->ops->poll_event(s->stream, ret, err);
    if (rc != TR_AGAIN)
        return rc;
    rc = record(s, 0, err);
    return rc < 0 ? rc : TR_AGAIN;
}

static int source_arm(struct tr_source *src, struct tr_waker *w, struct tr_wait *ret)
{
    struct capture_source *s = of(src);
    int rc = s->stream->ops->arm(s->stream, w, ret);
    if (s->pending != s->recorded)
        ret->deadline_ns = TR_MIN(ret->deadline_ns, s->last_record_ns + CONFIRM_EVERY);
    return rc;
}

static int answer(struct tr_source *src, const struct tr_event *ev, struct tr_err *err)
{
    struct capture_source *s = of(src);
    return ev->lane_id == SNAP_LANE ? TR_OK : s->stream->ops->answer(s->stream, ev, err);
}

static int commit(struct tr_source *src, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    struct capture_source *s = of(src);
    for (size_t i = 0; i < n; i++) {
        if (v[i].lane == 0) {
            if (v[i].upto > 0 && (uint64_t)v[i].upto > s->pending)
                s->pending = (uint64_t)v[i].upto;
        } else if (v[i].upto > atomic_load(&s->snap.durable)) {
            atomic_store(&s->snap.durable, v[i].upto);
            if (s->snap.notify)
                s->snap.notify(s->snap.notify_arg);
        }
    }
    int rc = record(s, sync_deadline_ns, err);
    return rc == TR_RETRY && !sync_deadline_ns ? TR_OK : rc; /* noted, and told by poll_event */
}

static void close_source(struct tr_source *src, int64_t deadline_ns)
{
    struct capture_source *s = of(src);
    s->stream->ops->close(s->stream, deadline_ns);
    struct tr_list *l;
    while ((l = tr_list_pop_front(&s->snap.queue)))
        tr_snap_run_free(tr_container_of(l, struct tr_snap_run, link));
    tr_snap_run_free(s->snap.run);
    tr_free(s->snap.v);
    tr_free(s->snap.changes);
    tr_free(s->snap.values);
    tr_free(s->snap.states);
    tr_cond_done(&s->snap.room);
    tr_mutex_done(&s->snap.lock);
    tr_free(s);
}

static const struct tr_source_ops source_ops = {poll_event, source_arm, answer, commit, close_source};

int tr_capture_source_new(struct tr_capture *c, struct tr_source *stream, struct tr_source **ret, struct tr_err *err)
{
    struct capture_source *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the capture source");
    s->source.ops = &source_ops;
    s->cap = c;
    s->stream = stream;
    s->snap.lane = (struct tr_lane){.ops = &lane_ops, .id = SNAP_LANE, .epoch = 1};
    tr_mutex_init(&s->snap.lock);
    tr_cond_init(&s->snap.room);
    tr_list_init(&s->snap.queue);
    *ret = &s->source;
    return TR_OK;
}
