#include "ack.h"

#include <string.h>

#include <tailrace/err.h>

#include "alloc.h"
#include "check.h"

void tr_ack_sink_init(struct tr_ack_sink *s, void (*notify)(void *), void *arg)
{
    atomic_init(&s->head, NULL);
    s->notify = notify;
    s->notify_arg = arg;
}

struct tr_ack *tr_ack_sink_take(struct tr_ack_sink *s)
{
    struct tr_ack *a = atomic_exchange_explicit(&s->head, NULL, memory_order_acquire), *out = NULL;
    while (a) { /* the stack holds the newest first */
        struct tr_ack *next = a->next;
        a->next = out;
        out = a;
        a = next;
    }
    return out;
}

int tr_ack_new(struct tr_ack_sink *sink, uint32_t lane, uint32_t epoch, uint64_t seq, int64_t upto, struct tr_ack **ret)
{
    struct tr_ack *a = tr_calloc(1, sizeof *a);
    if (!a)
        return TR_NOMEM;
    a->sink = sink;
    a->lane = lane;
    a->epoch = epoch;
    a->seq = seq;
    a->upto = upto;
    atomic_init(&a->refs, 1);
    *ret = a;
    return TR_OK;
}

void tr_ack_ref(struct tr_ack *a)
{
    atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
}

static void post(struct tr_ack *a)
{
    struct tr_ack_sink *s = a->sink; /* a may be taken and freed as soon as it is in */
    struct tr_ack *head = atomic_load_explicit(&s->head, memory_order_relaxed);
    do
        a->next = head;
    while (!atomic_compare_exchange_weak_explicit(&s->head, &head, a, memory_order_release, memory_order_relaxed));
    if (!head && s->notify)
        s->notify(s->notify_arg);
}

void tr_ack_unref(struct tr_ack *a)
{
    if (atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1)
        post(a);
}

void tr_ack_fail(struct tr_ack *a)
{
    atomic_store_explicit(&a->status, TR_ACK_FAILED, memory_order_relaxed);
}

void tr_ack_free(struct tr_ack *a)
{
    tr_free(a);
}

void tr_ackset_init(struct tr_ackset *s)
{
    s->n = 0;
    s->cap = (uint32_t)TR_ARRAY_LEN(s->inline_v);
    s->v = NULL; /* NULL stands for inline_v, so that a set may be moved by assignment */
}

static struct tr_ack **vec(struct tr_ackset *s)
{
    return s->v ? s->v : s->inline_v;
}

static int reserve(struct tr_ackset *s, uint32_t extra)
{
    if (s->n + extra <= s->cap)
        return TR_OK;
    uint32_t cap = s->cap * 2 > s->n + extra ? s->cap * 2 : s->n + extra;
    struct tr_ack **v = tr_malloc(cap * sizeof *v);
    if (!v)
        return TR_NOMEM;
    memcpy(v, vec(s), s->n * sizeof *v);
    tr_free(s->v);
    s->v = v;
    s->cap = cap;
    return TR_OK;
}

int tr_ackset_add(struct tr_ackset *s, struct tr_ack *a)
{
    if (s->n && vec(s)[s->n - 1] == a)
        return TR_OK;
    if (reserve(s, 1) < 0)
        return TR_NOMEM;
    tr_ack_ref(a);
    vec(s)[s->n++] = a;
    return TR_OK;
}

int tr_ackset_merge(struct tr_ackset *to, struct tr_ackset *from)
{
    if (reserve(to, from->n) < 0)
        return TR_NOMEM;
    struct tr_ack **src = vec(from), **dst = vec(to);
    for (uint32_t i = 0; i < from->n; i++) {
        if (to->n && dst[to->n - 1] == src[i])
            tr_ack_unref(src[i]); /* held already, cannot be the last reference */
        else
            dst[to->n++] = src[i];
    }
    from->n = 0;
    return TR_OK;
}

static void release(struct tr_ackset *s, bool failed)
{
    struct tr_ack **v = vec(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (failed)
            tr_ack_fail(v[i]);
        tr_ack_unref(v[i]);
    }
    tr_free(s->v);
    tr_ackset_init(s);
}

void tr_ackset_deliver(struct tr_ackset *s)
{
    release(s, false);
}

void tr_ackset_done(struct tr_ackset *s)
{
    release(s, true);
}
