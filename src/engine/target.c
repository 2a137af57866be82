#include "engine.h"

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "retry.h"

/* The target thread of a sink: binds, swaps, rebinds after STALE, and probes. One thing at a time, each to a deadline; what answers
 * RETRY waits its backoff and is asked again for ever. Answers stay in the entry; terminals look there. */

enum { PROBE_EVERY_S = 15 };

void tr_target_ent_free(struct tr_target_ent *e)
{
    tr_list_del(&e->node);
    tr_schema_unref(e->schema);
    tr_free(e);
}

static struct tr_target_ent *due_entry(struct tr_sink_rt *k, int64_t now_ns, int64_t *wake_ns)
{
    TR_LIST_EACH (n, &k->targets) {
        struct tr_target_ent *e = tr_container_of(n, struct tr_target_ent, node);
        if (e->state != TR_BIND_PENDING)
            continue;
        if (e->not_before_ns <= now_ns)
            return e;
        *wake_ns = TR_MIN(*wake_ns, e->not_before_ns);
    }
    return NULL;
}

static int64_t backoff(struct tr_sink_rt *k, uint32_t attempt, const struct tr_err *err)
{
    struct tr_retry r = {k->t.backoff_min_ns, k->t.backoff_max_ns};
    return tr_deadline_ns(tr_now_ns(), tr_retry_delay_ns(&r, attempt, err->retry_after_ms, &k->prng));
}

static bool comes_again(int rc)
{
    return rc == TR_RETRY || rc == TR_AGAIN || rc == TR_NOT_READY || rc == TR_STALE || rc == TR_NOMEM;
}

/* e is ours while it is PENDING: nobody else changes its key, schema or job fields. */
static void carry_out(struct tr_sink_rt *k, struct tr_target_ent *e)
{
    struct tr_err err = {0};
    struct tr_target *t = NULL;
    int64_t deadline = tr_deadline_ns(tr_now_ns(), k->t.write_timeout_ns);
    int rc = e->swap ? k->sink->ops->swap(k->sink, e->schema, e->key.snapshot_id, deadline, &err)
                     : k->sink->ops->bind(k->sink, e->schema, (enum tr_target_variant)e->key.variant, e->key.snapshot_id, deadline, &t, &err);
    bool later = e->swap && rc == TR_NOT_READY; /* nothing was done: who asked has others to go on with, and asks again */
    bool again = rc < 0 && comes_again(rc) && !later, fatal = rc < 0 && !again && !later && rc != TR_REJECT;
    if (rc < 0)
        tr_pl_answered(&err, rc, k->name);
    tr_mutex_lock(&k->lock);
    if (again) {
        e->not_before_ns = backoff(k, e->attempt++, &err);
    } else if (rc < 0) {
        e->err = err;
        e->state = TR_BIND_REFUSED;
    } else {
        e->target = t;
        e->state = TR_BIND_READY;
    }
    tr_mutex_unlock(&k->lock);
    if (again || later) {
        tr_pl_trouble(k->p, &k->trouble, &err);
    } else {
        tr_pl_well(k->p, &k->trouble);
        if (fatal)
            tr_pl_fail(k->p, &err);
        else if (rc < 0)
            tr_oslog_err(TR_OSLOG_WARN, "engine", TR_OSLOG_F({"pipeline", k->p->name}, {"sink", k->name}), &err);
    }
    if (!again)
        tr_pl_wake_workers(k->p);
}

/* ---- binds ---------------------------------------------------------------------------------------------------------- */

static bool entry_of(struct tr_sink_rt *k, const struct tr_target *t, struct tr_target_ent *ret)
{
    bool found = false;
    tr_mutex_lock(&k->lock);
    TR_LIST_EACH (n, &k->targets) {
        struct tr_target_ent *e = tr_container_of(n, struct tr_target_ent, node);
        if (!e->swap && e->state == TR_BIND_READY && e->target == t) {
            *ret = *e;
            found = true;
        }
    }
    tr_mutex_unlock(&k->lock);
    return found;
}

/* Binds every target of the batch again. The same bytes follow, whatever pointer bind answers with. */
static void rebind(struct tr_sink_rt *k, struct tr_ebatch *b)
{
    b->bind_rc = TR_OK;
    for (uint32_t i = 0; i < b->sealed.n_parts && b->bind_rc == TR_OK; i++) {
        struct tr_target_ent e;
        struct tr_target *t = NULL;
        if (!entry_of(k, b->sealed.parts[i].target, &e))
            continue;
        int rc = k->sink->ops->bind(k->sink, e.schema, (enum tr_target_variant)e.key.variant, e.key.snapshot_id,
                                    tr_deadline_ns(tr_now_ns(), k->t.write_timeout_ns), &t, &b->err);
        if (rc < 0) {
            b->err.rc = b->bind_rc = comes_again(rc) ? TR_STALE : rc;
            b->bind_part = i;
        }
    }
    struct tr_shard *s = b->shard;
    tr_mutex_lock(&s->lock);
    tr_list_push_back(&s->rebound, &b->node);
    tr_mutex_unlock(&s->lock);
    tr_waker_wake(&s->waker);
}

void tr_sink_rebind(struct tr_sink_rt *k, struct tr_ebatch *b)
{
    tr_mutex_lock(&k->lock);
    tr_list_push_back(&k->rebinds, &b->node);
    tr_mutex_unlock(&k->lock);
    tr_waker_wake(&k->waker);
}

static void probe(struct tr_sink_rt *k, int64_t now_ns)
{
    struct tr_err err = {0};
    int rc = k->sink->ops->probe ? k->sink->ops->probe(k->sink, tr_deadline_ns(now_ns, k->t.write_timeout_ns), &err) : TR_OK;
    bool was = atomic_exchange(&k->probed, rc >= 0);
    if (rc >= 0) {
        k->probe_attempt = 0;
        k->probe_ns = tr_deadline_ns(tr_now_ns(), PROBE_EVERY_S * TR_NS_PER_S);
        bool told = k->trouble.set;
        tr_pl_well(k->p, &k->trouble);
        if (!was && !told)
            tr_oslog_fields(TR_OSLOG_INFO, "engine", TR_OSLOG_F({"pipeline", k->p->name}, {"sink", k->name}), "sink is reachable");
        return;
    }
    tr_pl_answered(&err, rc, k->name);
    k->probe_ns = backoff(k, k->probe_attempt++, &err);
    tr_pl_trouble(k->p, &k->trouble, &err);
    if (rc == TR_FATAL || rc == TR_FENCED)
        tr_pl_fail(k->p, &err);
}

static int64_t target_step(struct tr_sink_rt *k, int64_t now_ns)
{
    int64_t wake = k->probe_ns;
    struct tr_ebatch *b = NULL;
    tr_mutex_lock(&k->lock);
    struct tr_list *n = tr_list_pop_front(&k->rebinds);
    if (n)
        b = tr_container_of(n, struct tr_ebatch, node);
    struct tr_target_ent *e = due_entry(k, now_ns, &wake);
    tr_mutex_unlock(&k->lock);
    if (b)
        rebind(k, b);
    if (e)
        carry_out(k, e);
    if (!b && !e && k->probe_ns <= now_ns) {
        probe(k, now_ns);
        wake = k->probe_ns;
    }
    return b || e ? now_ns : wake;
}

void tr_target_main(void *arg)
{
    struct tr_sink_rt *k = arg;
    struct tr_err err;
    k->probe_ns = INT64_MIN;
    while (!atomic_load(&k->p->ended) && !atomic_load(&k->p->abort)) {
        int64_t now = tr_now_ns(), wake = target_step(k, now);
        if (wake <= now)
            continue;
        if (tr_wait_many(&k->waker, NULL, 0, TR_MIN(wake - now, TR_NS_PER_S), &err) == TR_FATAL) {
            tr_pl_fail(k->p, &err);
            return;
        }
    }
}
