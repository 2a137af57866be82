/*
 * snapshot_worker.c: reads one chunk, or the row of one FILL, and hands it to capture.
 *
 * Second fence. Each worker takes an x_f of its own for every (snapshot, primary connection): BEGIN was durable before the first task
 * was handed out, so any id given out after that is a valid fence; and since it is bound to the connection it was taken on, a
 * server crash, which may give ids out again, cannot pass unnoticed: after the read the worker asks that very connection, and if it is
 * a new one, what was read is thrown away.
 *
 * Flush rule. Rows may show asynchronous commits that a crash undoes. H is the insert position after the read, on the same connection;
 * the rows are handed on only once everything up to H is flushed. On a replica H is the replay position, which is flushed on the primary
 * by construction.
 */
#include <stdio.h>
#include <string.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "snapshot_internal.h"

enum { RUN_BYTES = 1 << 20, RUN_ROWS = 8192, ROWS_PER_LOOK = 16 };

#define CALL_NS (30 * TR_NS_PER_S)
#define ROW_NS (120 * TR_NS_PER_S) /* for ROWS_PER_LOOK rows: the clock is not asked for each */

struct snap_task *tr_snap_task_free(struct snap_task *t)
{
    if (!t)
        return NULL;
    tr_schema_unref(t->schema);
    tr_buf_done(&t->lo);
    tr_buf_done(&t->hi);
    tr_free(t->need.key);
    tr_free(t);
    return NULL;
}

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

static bool given_up(struct snap_worker *w, const struct snap_task *t)
{
    return tr_snapshot_stopping(w->s) || atomic_load(&t->snap->cancelled);
}

static int gone(struct tr_err *err)
{
    return tr_err_set(err, TR_EOF, TR_DOM_CDC, "given up");
}

/* Shows what the task waits for, then waits a little. */
static void wait_visibly(struct snap_worker *w, const struct snap_task *t, const char *what)
{
    struct tr_snapshot *s = w->s;
    tr_mutex_lock(&s->lock);
    snprintf(s->waiting, sizeof s->waiting, "%s", what);
    s->waiting_for = t->snap;
    s->poked = true;
    tr_cond_signal(&s->wake);
    if (!s->stop)
        tr_cond_wait_until(&s->work, &s->lock, in(100 * TR_NS_PER_MS));
    tr_mutex_unlock(&s->lock);
}

static int second_fence(struct snap_worker *w, const struct snap_task *t, uint64_t *ret_xid, uint64_t *ret_generation, struct tr_err *err)
{
    const struct tr_cdc_session_ops *o = w->primary->ops;
    uint64_t g = o->generation(w->primary);
    for (size_t i = 0; i < TR_ARRAY_LEN(w->fences); i++)
        if (w->fences[i].snap == t->snap && w->fences[i].snapshot_id == t->snapshot_id && w->fences[i].generation == g) {
            *ret_xid = w->fences[i].xid;
            *ret_generation = g;
            return TR_OK;
        }
    TR_FAILPOINT("snapshot.before_fence");
    int rc = o->fence_xid(w->primary, in(CALL_NS), ret_xid, err);
    if (rc < 0)
        return rc;
    *ret_generation = o->generation(w->primary);
    uint32_t i = w->next_fence++ % TR_ARRAY_LEN(w->fences);
    w->fences[i].snap = t->snap;
    w->fences[i].snapshot_id = t->snapshot_id;
    w->fences[i].generation = *ret_generation;
    w->fences[i].xid = *ret_xid;
    return TR_OK;
}

/* Everything up to h is flushed, asked on the connection of that generation. RETRY: it is another one now. */
static int flushed(struct snap_worker *w, const struct snap_task *t, uint64_t h, bool needs_flush, uint64_t generation, struct tr_err *err)
{
    const struct tr_cdc_session_ops *o = w->primary->ops;
    for (bool asked = false;;) {
        uint64_t insert, flush = 0;
        if (given_up(w, t))
            return gone(err);
        if (o->generation(w->primary) != generation)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "the connection to the primary was lost during the read");
        int rc = o->position(w->primary, in(CALL_NS), &insert, &flush, err);
        if (rc < 0)
            return rc;
        if (o->generation(w->primary) != generation)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "the connection to the primary was lost during the read");
        if (!needs_flush || flush >= h)
            return TR_OK;
        if (!asked) { /* the server's own WAL writer would take its time, for every chunk and FILL */
            asked = true;
            if (o->flush(w->primary, in(CALL_NS), err) >= 0)
                continue;
        }
        wait_visibly(w, t, "WAL of asynchronous commits to be flushed");
    }
}

struct runs {
    struct tr_snap_run **v;
    uint32_t n, cap;
};

static void free_runs(struct runs *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        tr_snap_run_free(r->v[i]);
    tr_free(r->v);
    *r = (struct runs){0};
}

static int add_row(struct runs *r, const struct snap_task *t, const struct tr_cdc_row *row, uint32_t *in_run, struct tr_err *err)
{
    if (r->n == 0 || *in_run >= RUN_ROWS || tr_snap_run_size(r->v[r->n - 1]) >= RUN_BYTES) {
        if (r->n == r->cap) {
            uint32_t cap = r->cap ? r->cap * 2 : 16;
            struct tr_snap_run **v = tr_realloc(r->v, cap * sizeof *v);
            if (!v)
                return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for the rows of a chunk");
            r->v = v;
            r->cap = cap;
        }
        int rc = tr_snap_run_new(&r->v[r->n], err);
        if (rc < 0)
            return rc;
        r->n++;
        *in_run = 0;
    }
    struct tr_snap_run *run = r->v[r->n - 1];
    if (tr_snap_run_add_row(run, t->schema, t->snapshot_id, &row->row) < 0)
        return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for the rows of a chunk");
    (*in_run)++;
    return TR_OK;
}

/* One attempt. */
static int read_chunk(struct snap_worker *w, struct snap_task *t, struct runs *runs, struct tr_err *err)
{
    struct tr_cdc_session *from = w->replica ? w->replica : w->primary;
    uint64_t xf = 0, generation = 0;
    int rc = second_fence(w, t, &xf, &generation, err);
    TR_FAILPOINT("snapshot.before_chunk");
    while (rc >= 0) {
        if (given_up(w, t))
            return gone(err);
        if (w->primary->ops->generation(w->primary) != generation)
            return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "the connection to the primary was lost");
        rc = from->ops->chunk_open(from, t->schema, tr_buf_slice(&t->lo), tr_buf_slice(&t->hi), xf, in(CALL_NS), err);
        if (rc != TR_NOT_READY)
            break;
        wait_visibly(w, t, err->msg);
        uint64_t insert, flush; /* asked so that a crash of the primary is met: it may have taken the fence's id back, and none so high may ever come on an idle server */
        rc = w->primary->ops->position(w->primary, in(CALL_NS), &insert, &flush, err);
    }
    uint32_t in_run = 0;
    int64_t until = 0;
    while (rc >= 0) {
        struct tr_cdc_row row;
        if (t->rows % ROWS_PER_LOOK == 0)
            until = in(ROW_NS);
        rc = from->ops->chunk_next(from, until, &row, err);
        if (rc >= 0)
            rc = add_row(runs, t, &row, &in_run, err);
        if (rc >= 0) {
            t->rows++;
            if ((t->rows & 1023) == 0 && given_up(w, t))
                rc = gone(err);
        }
        if (rc < 0 && rc != TR_EOF)
            break;
        if (rc == TR_EOF && given_up(w, t))
            break;
    }
    uint64_t h = 0;
    bool needs_flush = false, whole = rc == TR_EOF && !given_up(w, t);
    struct tr_err close_err;
    int cl = from->ops->chunk_close(from, in(CALL_NS), &h, &needs_flush, &close_err);
    if (!whole)
        return rc < 0 ? rc : gone(err);
    if (cl < 0) {
        *err = close_err;
        return cl;
    }
    TR_FAILPOINT("snapshot.after_read");
    rc = flushed(w, t, h, needs_flush, generation, err);
    if (rc < 0)
        return rc;
    t->h = h;
    for (uint32_t i = 0; i < runs->n; i++)
        tr_snap_run_set_h(runs->v[i], h);
    return TR_OK;
}

static int read_fill(struct snap_worker *w, struct snap_task *t, struct runs *runs, struct tr_err *err)
{
    struct tr_cdc_row row;
    uint64_t h = 0;
    bool needs_flush = false;
    int rc;
    TR_FAILPOINT("snapshot.before_fill");
    for (;;) {
        if (given_up(w, t))
            return gone(err);
        rc = w->primary->ops->fetch(w->primary, t->schema, tr_slice_of(t->need.key, t->need.key_n), t->need.xid, in(CALL_NS), &row, &h, &needs_flush, err);
        if (rc != TR_NOT_READY)
            break;
        wait_visibly(w, t, err->msg);
    }
    if (rc < 0)
        return rc;
    bool empty = rc == 1;
    runs->v = tr_calloc(1, sizeof *runs->v);
    if (!runs->v || tr_snap_run_new(&runs->v[0], err) < 0)
        return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for a FILL");
    runs->n = runs->cap = 1;
    struct tr_change *c = tr_snap_run_add(runs->v[0], t->schema);
    if (!c || tr_snap_run_bytes(runs->v[0], tr_slice_of(t->need.key, t->need.key_n), &c->key) < 0 ||
        (!empty && tr_snap_run_copy(runs->v[0], &row.row, &c->after) < 0))
        return tr_err_set(err, TR_RETRY, TR_DOM_CDC, "no memory for a FILL");
    c->op = TR_OP_FILL;
    c->snapshot_id = t->snapshot_id;
    c->commit_lsn = t->need.commit_lsn;
    c->ordinal = t->need.ordinal;
    c->xid = t->need.xid;
    c->flags = empty ? TR_CHG_EMPTY : 0;
    c->end_lsn = h;
    t->h = h;
    /* fetch and flush on one connection: after it the generation is that of the read, or the read is void */
    return flushed(w, t, h, needs_flush, w->primary->ops->generation(w->primary), err);
}

static void work(struct snap_worker *w, struct snap_task *t)
{
    struct runs runs = {0};
    int rc;
    for (int64_t pause = 100 * TR_NS_PER_MS;; pause = TR_MIN(pause * 2, 5 * TR_NS_PER_S)) {
        t->rows = 0;
        rc = t->kind == SNAP_TASK_CHUNK ? read_chunk(w, t, &runs, &t->err) : read_fill(w, t, &runs, &t->err);
        if (rc != TR_RETRY || given_up(w, t))
            break;
        free_runs(&runs);
        for (int64_t end = in(pause); tr_now_ns() < end && !given_up(w, t);)
            wait_visibly(w, t, t->err.msg);
    }
    for (uint32_t i = 0; i < runs.n && rc >= 0; i++) {
        rc = tr_capture_lane_submit(w->s->lane, runs.v[i], &t->position);
        runs.v[i] = NULL; /* taken over, also when refused */
    }
    free_runs(&runs);
    t->rc = rc;
}

void tr_snapshot_worker_run(void *arg)
{
    struct snap_worker *w = arg;
    struct tr_snapshot *s = w->s;
    for (;;) {
        tr_mutex_lock(&s->lock);
        while (!s->stop && tr_list_empty(&s->tasks))
            tr_cond_wait_until(&s->work, &s->lock, INT64_MAX);
        struct tr_list *l = s->stop ? NULL : tr_list_pop_front(&s->tasks);
        tr_mutex_unlock(&s->lock);
        if (!l)
            break;
        struct snap_task *t = tr_container_of(l, struct snap_task, link);
        work(w, t);
        tr_mutex_lock(&s->lock);
        tr_list_push_back(&s->results, &t->link);
        s->poked = true;
        tr_cond_signal(&s->wake);
        tr_mutex_unlock(&s->lock);
    }
}
