
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>

#include "alloc.h"
#include "check.h"
#include "mem_lock.h"

struct stored {
    struct tr_payload p;
    struct tr_change change;
};

struct mem_log {
    uint32_t id;
    struct stored **v;
    size_t n, cap;
    uint64_t generate;
    uint32_t value_bytes, tx_every;
    int64_t upto_idle;
    bool eof;
    uint32_t poll_max, fail_times;
    int fail_rc;
    int64_t committed, committed_sync;
    uint32_t epoch;
    bool assigned;       /* a lane is out */
    struct mem_lane *lane;
    struct mem_log *next;
};

struct mem_lane {
    struct tr_lane spi;
    struct tr_mem_source *s;
    struct mem_log *log;
    size_t next;
    uint64_t made;
    int64_t said;        /* the last upto */
    struct tr_payload *out;
    uint32_t cap;
    uint8_t *value;
    struct tr_waker *waker;
    bool paused;
};

struct mem_event {
    struct tr_event ev;
    char why[128];
    struct mem_event *next;
};

struct tr_mem_source {
    struct tr_source spi;
    struct tr_mutex lock;
    struct mem_log *logs;
    struct mem_event *events, *shown;
    struct tr_waker *waker;
    int fail_commit, fail_event;
    uint32_t fail_commit_times, fail_event_times;
    bool ended;
    struct tr_mem_source_stats stats;
};

static struct mem_log *log_get(struct tr_mem_source *s, uint32_t id)
{
    for (struct mem_log *l = s->logs; l; l = l->next)
        if (l->id == id)
            return l;
    struct mem_log *l = tr_calloc(1, sizeof *l);
    TR_ASSERT(l != NULL); /* a test kit without memory */
    l->id = id;
    l->upto_idle = l->committed = l->committed_sync = INT64_MIN;
    l->next = s->logs;
    s->logs = l;
    return l;
}

static void wake_lane(struct mem_log *l)
{
    if (l->lane)
        tr_waker_wake(l->lane->waker);
}

/* ---- data ------------------------------------------------------------------------------------------------------------ */

static void *put(uint8_t **at, const void *p, size_t n)
{
    void *to = *at;
    if (n)
        memcpy(to, p, n);
    *at += n;
    return to;
}

static size_t row_size(const struct tr_row *r)
{
    size_t n = r->n * (sizeof(struct tr_slice) + 1) + sizeof(void *);
    for (uint32_t i = 0; i < r->n; i++)
        n += r->state[i] == TR_PRESENT ? r->v[i].n : 0;
    return n;
}

static void row_copy(uint8_t **at, struct tr_row *r)
{
    *at += -(uintptr_t)*at & (sizeof(void *) - 1);
    if (r->n == 0)
        return;
    struct tr_slice *v = put(at, r->v, r->n * sizeof *v);
    r->state = put(at, r->state, r->n);
    r->v = v;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->state[i] == TR_PRESENT)
            v[i].p = put(at, v[i].p, v[i].n);
}

static int push(struct tr_mem_source *s, uint32_t lane, struct tr_payload p, const struct tr_change *c)
{
    size_t bytes = p.key.n + p.value.n;
    if (c)
        bytes += row_size(&c->before) + row_size(&c->after) + c->key.n + c->old_key.n + c->message.n;
    struct stored *st = tr_calloc(1, sizeof *st + bytes);
    if (!st)
        return TR_NOMEM;
    uint8_t *at = (uint8_t *)(st + 1);
    st->p = p;
    if (c) {
        st->change = *c;
        if (c->schema)
            tr_schema_ref(c->schema);
        row_copy(&at, &st->change.before);
        row_copy(&at, &st->change.after);
        st->change.key.p = put(&at, c->key.p, c->key.n);
        st->change.old_key.p = put(&at, c->old_key.p, c->old_key.n);
        st->change.message.p = put(&at, c->message.p, c->message.n);
        st->p.meta = &st->change;
        st->p.key = st->change.key;
    } else {
        st->p.key.p = put(&at, p.key.p, p.key.n);
        st->p.value.p = put(&at, p.value.p, p.value.n);
    }
    tr_mem_lock(&s->lock);
    struct mem_log *l = log_get(s, lane);
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 64;
        l->v = tr_realloc(l->v, l->cap * sizeof(void *));
        TR_ASSERT(l->v != NULL);
    }
    TR_ASSERT(l->n == 0 || l->v[l->n - 1]->p.position < p.position);
    l->v[l->n++] = st;
    wake_lane(l);
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

int tr_mem_push(struct tr_mem_source *s, uint32_t lane, int64_t position, struct tr_slice key, struct tr_slice value, uint32_t flags)
{
    return push(s, lane, (struct tr_payload){.key = key, .value = value, .position = position, .flags = flags}, NULL);
}

int tr_mem_push_row(struct tr_mem_source *s, uint32_t lane, int64_t position, const struct tr_change *c)
{
    uint32_t flags = TR_PAYLOAD_CHANGE | (c->op == TR_OP_READ ? TR_PAYLOAD_SNAPSHOT : 0) | (c->op == TR_OP_COMMIT ? TR_PAYLOAD_TX_END : 0);
    return push(s, lane, (struct tr_payload){.position = position, .flags = flags}, c);
}

int tr_mem_push_tx_end(struct tr_mem_source *s, uint32_t lane, int64_t position)
{
    return push(s, lane, (struct tr_payload){.position = position, .flags = TR_PAYLOAD_TX_END}, NULL);
}

int tr_mem_generate(struct tr_mem_source *s, uint32_t lane, uint64_t n, uint32_t value_bytes, uint32_t tx_every)
{
    tr_mem_lock(&s->lock);
    struct mem_log *l = log_get(s, lane);
    l->value_bytes = value_bytes;
    l->tx_every = tx_every;
    l->generate = n;
    wake_lane(l);
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

#define WITH_LOG(s, lane, ...)                  \
    do {                                        \
        tr_mem_lock(&(s)->lock);              \
        struct mem_log *l = log_get(s, lane);   \
        __VA_ARGS__;                            \
        wake_lane(l);                           \
        tr_mem_unlock(&(s)->lock);            \
    } while (0)

void tr_mem_upto(struct tr_mem_source *s, uint32_t lane, int64_t upto)
{
    WITH_LOG(s, lane, l->upto_idle = upto);
}

void tr_mem_eof(struct tr_mem_source *s, uint32_t lane)
{
    WITH_LOG(s, lane, l->eof = true);
}

void tr_mem_poll_max(struct tr_mem_source *s, uint32_t lane, uint32_t max)
{
    WITH_LOG(s, lane, l->poll_max = max);
}

void tr_mem_fail_poll(struct tr_mem_source *s, uint32_t lane, int rc, uint32_t times)
{
    WITH_LOG(s, lane, l->fail_rc = rc, l->fail_times = times);
}

void tr_mem_fail_commit(struct tr_mem_source *s, int rc, uint32_t times)
{
    tr_mem_lock(&s->lock);
    s->fail_commit = rc;
    s->fail_commit_times = times;
    tr_mem_unlock(&s->lock);
}

int64_t tr_mem_committed(struct tr_mem_source *s, uint32_t lane)
{
    int64_t r;
    WITH_LOG(s, lane, r = l->committed);
    return r;
}

int64_t tr_mem_committed_sync(struct tr_mem_source *s, uint32_t lane)
{
    int64_t r;
    WITH_LOG(s, lane, r = l->committed_sync);
    return r;
}

bool tr_mem_lane_open(struct tr_mem_source *s, uint32_t lane)
{
    bool r;
    WITH_LOG(s, lane, r = l->lane != NULL);
    return r;
}

bool tr_mem_lane_paused(struct tr_mem_source *s, uint32_t lane)
{
    bool r;
    WITH_LOG(s, lane, r = l->lane && l->lane->paused);
    return r;
}

void tr_mem_source_stats(struct tr_mem_source *s, struct tr_mem_source_stats *ret)
{
    tr_mem_lock(&s->lock);
    *ret = s->stats;
    tr_mem_unlock(&s->lock);
}

/* ---- the lane -------------------------------------------------------------------------------------------------------- */

static struct mem_lane *lane_of(struct tr_lane *l)
{
    return tr_container_of(l, struct mem_lane, spi);
}

static uint32_t take_generated(struct mem_lane *m, uint32_t max)
{
    struct mem_log *l = m->log;
    uint32_t n = 0;
    for (; n < max && m->made < l->generate; n++) {
        m->made++;
        bool end = l->tx_every && m->made % l->tx_every == 0;
        m->out[n] = (struct tr_payload){.position = (int64_t)m->made, .flags = end ? TR_PAYLOAD_TX_END : 0};
        if (!end)
            m->out[n].value = tr_slice_of(m->value, l->value_bytes);
    }
    return n;
}

static int lane_poll(struct tr_lane *lane, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct mem_lane *m = lane_of(lane);
    struct mem_log *l = m->log;
    struct tr_mem_source *s = m->s;
    int rc = TR_OK;
    tr_mem_lock(&s->lock);
    s->stats.polls++;
    if (l->poll_max)
        max = TR_MIN(max, l->poll_max);
    if (m->cap < max) {
        m->out = tr_realloc(m->out, max * sizeof *m->out);
        TR_ASSERT(m->out != NULL);
        m->cap = max;
    }
    if (l->value_bytes && !m->value)
        m->value = tr_calloc(1, l->value_bytes);
    uint32_t n = 0;
    if (l->fail_times) {
        l->fail_times--;
        rc = tr_err_set(err, l->fail_rc, TR_DOM_SOURCE, "scripted failure of a poll");
    } else if (l->generate) {
        n = take_generated(m, max);
    } else {
        for (; n < max && m->next < l->n; n++)
            m->out[n] = l->v[m->next++]->p;
    }
    *ret = (struct tr_payloads){.v = m->out, .n = n, .lane = l->id, .upto = INT64_MIN};
    if (n) {
        ret->upto = m->said = m->out[n - 1].position;
    } else if (rc == TR_OK && l->upto_idle > m->said) {
        ret->upto = m->said = l->upto_idle;
    } else if (rc == TR_OK) {
        rc = l->eof ? TR_EOF : TR_AGAIN;
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static int lane_arm(struct tr_lane *lane, struct tr_waker *w, struct tr_wait *ret)
{
    struct mem_lane *m = lane_of(lane);
    struct mem_log *l = m->log;
    tr_mem_lock(&m->s->lock);
    m->waker = w;
    bool ready = m->next < l->n || m->made < l->generate || l->eof || l->fail_times || l->upto_idle > m->said;
    tr_mem_unlock(&m->s->lock);
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    return ready;
}

static int lane_tend(struct tr_lane *lane, int64_t now_ns, struct tr_err *err)
{
    struct mem_lane *m = lane_of(lane);
    (void)now_ns;
    (void)err;
    tr_mem_lock(&m->s->lock);
    m->s->stats.tends++;
    tr_mem_unlock(&m->s->lock);
    return TR_OK;
}

static void lane_pause(struct tr_lane *lane, bool on)
{
    struct mem_lane *m = lane_of(lane);
    tr_mem_lock(&m->s->lock);
    m->paused = on;
    if (on)
        m->s->stats.pauses++;
    else
        m->s->stats.resumes++;
    tr_mem_unlock(&m->s->lock);
}

static void lane_close(struct tr_lane *lane)
{
    struct mem_lane *m = lane_of(lane);
    tr_mem_lock(&m->s->lock);
    m->s->stats.closed_lanes++;
    m->log->lane = NULL;
    m->log->assigned = false;
    tr_mem_unlock(&m->s->lock);
    tr_free(m->out);
    tr_free(m->value);
    tr_free(m);
}

static const struct tr_lane_ops lane_ops = {lane_poll, lane_arm, lane_tend, lane_pause, lane_close};

/* ---- the source ------------------------------------------------------------------------------------------------------ */

static struct tr_mem_source *source_of(struct tr_source *s)
{
    return tr_container_of(s, struct tr_mem_source, spi);
}

/* Under the lock. */
static void post(struct tr_mem_source *s, const struct tr_event *ev, const char *why)
{
    struct mem_event *e = tr_calloc(1, sizeof *e), **at = &s->events;
    TR_ASSERT(e != NULL);
    e->ev = *ev;
    if (why) {
        memcpy(e->why, why, TR_MIN(strlen(why), sizeof e->why - 1));
        e->ev.text = e->why;
    }
    while (*at)
        at = &(*at)->next;
    *at = e;
    tr_waker_wake(s->waker);
}

int tr_mem_assign(struct tr_mem_source *s, uint32_t lane, uint32_t epoch, int64_t from)
{
    struct mem_lane *m = tr_calloc(1, sizeof *m);
    if (!m)
        return TR_NOMEM;
    tr_mem_lock(&s->lock);
    struct mem_log *l = log_get(s, lane);
    TR_ASSERT(!l->lane);
    m->spi = (struct tr_lane){.ops = &lane_ops, .id = lane, .epoch = epoch};
    m->s = s;
    m->log = l;
    m->said = from;
    m->made = l->generate && from > 0 ? (uint64_t)from : 0;
    while (m->next < l->n && l->v[m->next]->p.position <= from)
        m->next++;
    l->lane = m;
    l->epoch = epoch;
    l->assigned = true;
    l->committed = l->committed_sync = INT64_MIN;
    post(s, &(struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = lane, .epoch = epoch, .lane = &m->spi}, NULL);
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

void tr_mem_revoke(struct tr_mem_source *s, uint32_t lane)
{
    tr_mem_lock(&s->lock);
    post(s, &(struct tr_event){.kind = TR_EVENT_REVOKED, .lane_id = lane, .epoch = log_get(s, lane)->epoch}, NULL);
    tr_mem_unlock(&s->lock);
}

void tr_mem_lose(struct tr_mem_source *s, uint32_t lane, const char *why)
{
    tr_mem_lock(&s->lock);
    post(s, &(struct tr_event){.kind = TR_EVENT_LOST, .lane_id = lane, .epoch = log_get(s, lane)->epoch}, why);
    tr_mem_unlock(&s->lock);
}

void tr_mem_fail_event(struct tr_mem_source *s, int rc, uint32_t times)
{
    tr_mem_lock(&s->lock);
    s->fail_event = rc;
    s->fail_event_times = times;
    tr_waker_wake(s->waker);
    tr_mem_unlock(&s->lock);
}

void tr_mem_end(struct tr_mem_source *s)
{
    tr_mem_lock(&s->lock);
    s->ended = true;
    tr_waker_wake(s->waker);
    tr_mem_unlock(&s->lock);
}

static int source_poll_event(struct tr_source *spi, struct tr_event *ret, struct tr_err *err)
{
    struct tr_mem_source *s = source_of(spi);
    int rc = TR_AGAIN;
    tr_mem_lock(&s->lock);
    tr_free(s->shown);
    s->shown = NULL;
    if (s->fail_event_times) {
        rc = tr_err_set(err, s->fail_event, TR_DOM_SOURCE, "scripted failure of the source");
        s->fail_event_times--;
    } else if (s->events) {
        s->shown = s->events;
        s->events = s->events->next;
        *ret = s->shown->ev;
        rc = TR_OK;
    } else if (s->ended) {
        rc = TR_EOF;
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static int source_arm(struct tr_source *spi, struct tr_waker *w, struct tr_wait *ret)
{
    struct tr_mem_source *s = source_of(spi);
    tr_mem_lock(&s->lock);
    s->waker = w;
    bool ready = s->events || s->fail_event_times;
    tr_mem_unlock(&s->lock);
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    return ready;
}

static int source_answer(struct tr_source *spi, const struct tr_event *ev, struct tr_err *err)
{
    struct tr_mem_source *s = source_of(spi);
    (void)err;
    tr_mem_lock(&s->lock);
    if (ev->kind == TR_EVENT_ASSIGNED)
        s->stats.assigned_answers++;
    else
        s->stats.revoked_answers++;
    tr_mem_unlock(&s->lock);
    return TR_OK;
}

static int source_commit(struct tr_source *spi, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    struct tr_mem_source *s = source_of(spi);
    int rc = TR_OK;
    tr_mem_lock(&s->lock);
    if (s->fail_commit_times) {
        s->fail_commit_times--;
        s->stats.commit_failures++;
        rc = tr_err_set(err, s->fail_commit, TR_DOM_SOURCE, "scripted failure of a commit");
    } else {
        s->stats.commits++;
        s->stats.sync_commits += sync_deadline_ns != 0;
        s->stats.last_commit_ns = tr_now_ns();
        for (size_t i = 0; i < n; i++) {
            struct mem_log *l = log_get(s, v[i].lane);
            if (!l->assigned || l->epoch != v[i].epoch || v[i].upto < l->committed) {
                s->stats.order_broken = true;
                continue;
            }
            l->committed = v[i].upto;
            if (sync_deadline_ns)
                l->committed_sync = v[i].upto;
        }
    }
    tr_mem_unlock(&s->lock);
    return rc;
}

static void source_close(struct tr_source *spi, int64_t deadline_ns)
{
    struct tr_mem_source *s = source_of(spi);
    (void)deadline_ns;
    for (struct mem_event *e = s->events, *next; e; e = next) {
        next = e->next;
        if (e->ev.kind == TR_EVENT_ASSIGNED) /* nobody took it */
            lane_close(e->ev.lane);
        tr_free(e);
    }
    tr_free(s->shown);
    for (struct mem_log *l = s->logs, *next; l; l = next) {
        next = l->next;
        for (size_t i = 0; i < l->n; i++) {
            if (l->v[i]->change.schema)
                tr_schema_unref(l->v[i]->change.schema);
            tr_free(l->v[i]);
        }
        tr_free(l->v);
        tr_free(l);
    }
    tr_mutex_done(&s->lock);
    tr_free(s);
}

static const struct tr_source_ops source_ops = {source_poll_event, source_arm, source_answer, source_commit, source_close};

int tr_mem_source_new(struct tr_mem_source **ret)
{
    struct tr_mem_source *s = tr_calloc(1, sizeof *s);
    if (!s)
        return TR_NOMEM;
    s->spi.ops = &source_ops;
    tr_mutex_init(&s->lock);
    *ret = s;
    return TR_OK;
}

struct tr_source *tr_mem_source_spi(struct tr_mem_source *s)
{
    return &s->spi;
}
