/* The source suite over the memory connector, with one lane and with three. The place is what is remembered here between opens. */
#include <stdlib.h>
#include <string.h>

#include <tailrace/memory.h>

#include "source_suite.h"

enum { LANES_MAX = 4 };

struct place {
    uint32_t lanes;
    struct tr_mem_source *src;      /* lives in here; the suite is given a proxy, whose close keeps it */
    struct tr_source proxy;
    uint64_t produced;
    int64_t committed[LANES_MAX];
    uint32_t epoch;
};

static struct tr_source *inner(struct tr_source *s)
{
    return tr_mem_source_spi(((struct place *)(void *)((char *)s - offsetof(struct place, proxy)))->src);
}

static int poll_event(struct tr_source *s, struct tr_event *ret, struct tr_err *err)
{
    return inner(s)->ops->poll_event(inner(s), ret, err);
}

static int arm(struct tr_source *s, struct tr_waker *w, struct tr_wait *ret)
{
    return inner(s)->ops->arm(inner(s), w, ret);
}

static int answer(struct tr_source *s, const struct tr_event *ev, struct tr_err *err)
{
    return inner(s)->ops->answer(inner(s), ev, err);
}

static int commit(struct tr_source *s, const struct tr_watermark *v, size_t n, int64_t deadline_ns, struct tr_err *err)
{
    struct place *p = (struct place *)(void *)((char *)s - offsetof(struct place, proxy));
    for (size_t i = 0; i < n; i++)
        p->committed[v[i].lane] = v[i].upto;
    return inner(s)->ops->commit(inner(s), v, n, deadline_ns, err);
}

static void close_proxy(struct tr_source *s, int64_t deadline_ns)
{
    (void)s;
    (void)deadline_ns;
}

static const struct tr_source_ops proxy_ops = {poll_event, arm, answer, commit, close_proxy};

static void drop(struct place *p)
{
    if (p->src)
        tr_mem_source_spi(p->src)->ops->close(tr_mem_source_spi(p->src), 0);
    p->src = NULL;
}

static int reset(void *arg)
{
    struct place *p = arg;
    drop(p);
    memset(p->committed, 0, sizeof p->committed);
    p->produced = 0;
    return tr_mem_source_new(&p->src);
}

static int open_source(void *arg, struct tr_source **ret, struct tr_err *err)
{
    struct place *p = arg;
    p->proxy.ops = &proxy_ops;
    p->epoch++;
    for (uint32_t i = 0; i < p->lanes; i++)
        if (tr_mem_assign(p->src, i, p->epoch, p->committed[i]) < 0)
            return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory");
    *ret = &p->proxy;
    return TR_OK;
}

static int produce(void *arg, uint32_t n)
{
    struct place *p = arg;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t no = ++p->produced;
        uint32_t lane = (uint32_t)(no % p->lanes);
        if (tr_mem_push(p->src, lane, (int64_t)no * 10, tr_slice_of(&no, 4), tr_slice_of(&no, sizeof no), 0) < 0 || tr_mem_push_tx_end(p->src, lane, (int64_t)no * 10 + 1) < 0)
            return TR_NOMEM;
    }
    return TR_OK;
}

static uint64_t record_no(void *arg, const struct tr_payload *p)
{
    uint64_t no = 0;
    (void)arg;
    if (p->value.n == sizeof no)
        memcpy(&no, p->value.p, sizeof no);
    return no;
}

static int revoke(void *arg, uint32_t lane)
{
    tr_mem_revoke(((struct place *)arg)->src, lane);
    return TR_OK;
}

static int disconnect(void *arg)
{
    tr_mem_fail_poll(((struct place *)arg)->src, 0, TR_RETRY, 3);
    return TR_OK;
}

int main(void)
{
    struct place one = {.lanes = 1}, three = {.lanes = 3};
    const struct tr_source_factory f[] = {
        {"memory, one lane", &one, reset, open_source, produce, record_no, revoke, disconnect},
        {"memory, three lanes", &three, reset, open_source, produce, record_no, revoke, disconnect},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        failed += tr_source_suite_run(&f[i]);
    drop(&one);
    drop(&three);
    return failed != 0;
}
