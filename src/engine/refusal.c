#include "refusal.h"

#include "alloc.h"
#include "check.h"

static struct tr_generation *generation_of(struct tr_list *n)
{
    return tr_container_of(n, struct tr_generation, node);
}

static struct tr_generation *present(const struct tr_refusals *r)
{
    return generation_of(tr_list_last(&r->generations));
}

static struct tr_generation *begin(struct tr_refusals *r, uint64_t n)
{
    struct tr_generation *g = tr_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->n = n;
    tr_list_push_back(&r->generations, &g->node);
    return g;
}

int tr_refusals_init(struct tr_refusals *r)
{
    *r = (struct tr_refusals){0};
    tr_list_init(&r->generations);
    return begin(r, 0) ? TR_OK : TR_NOMEM;
}

void tr_refusals_done(struct tr_refusals *r)
{
    struct tr_list *n;
    while ((n = tr_list_pop_front(&r->generations)))
        tr_free(generation_of(n));
    tr_free(r->v);
}

struct tr_generation *tr_refusals_enter(struct tr_refusals *r, struct tr_generation *was)
{
    struct tr_generation *g = tr_generation_ref(present(r));
    tr_generation_unref(was);
    return g;
}

static struct tr_refusal *find(const struct tr_refusals *r, uint32_t table_id, uint32_t variant)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->v[i].table_id == table_id && r->v[i].variant == variant)
            return &r->v[i];
    return NULL;
}

int tr_refusals_add(struct tr_refusals *r, uint32_t table_id, uint32_t variant, const struct tr_err *err)
{
    struct tr_refusal *f = find(r, table_id, variant);
    if (f && f->below == UINT64_MAX)
        return TR_OK;
    if (!f && r->n == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 4;
        struct tr_refusal *v = tr_realloc(r->v, cap * sizeof *v);
        if (!v)
            return TR_NOMEM;
        r->v = v;
        r->cap = cap;
    }
    if (!f)
        f = &r->v[r->n++];
    *f = (struct tr_refusal){.table_id = table_id, .variant = variant, .below = UINT64_MAX, .err = *err};
    return TR_OK;
}

int tr_refusals_unbound(struct tr_refusals *r, uint32_t table_id, uint32_t variant, uint64_t *ret_generation)
{
    struct tr_generation *g = begin(r, present(r)->n + 1);
    if (!g)
        return TR_NOMEM;
    struct tr_refusal *f = find(r, table_id, variant);
    if (f && f->below == UINT64_MAX)
        f->below = g->n;
    tr_refusals_expire(r); /* also where nothing was ever refused: the list of generations stays short */
    *ret_generation = g->n;
    return TR_OK;
}

const struct tr_err *tr_refusals_why(const struct tr_refusals *r, uint32_t table_id, uint32_t variant, uint64_t generation)
{
    const struct tr_refusal *f = find(r, table_id, variant);
    return f && generation < f->below ? &f->err : NULL;
}

bool tr_refusals_expire(struct tr_refusals *r)
{
    TR_LIST_EACH (n, &r->generations) {
        struct tr_generation *g = generation_of(n);
        if (g == present(r) || atomic_load_explicit(&g->users, memory_order_acquire))
            break;
        tr_list_del(n);
        tr_free(g);
    }
    uint64_t oldest = generation_of(tr_list_first(&r->generations))->n;
    for (uint32_t i = 0; i < r->n;) {
        if (r->v[i].below <= oldest)
            r->v[i] = r->v[--r->n];
        else
            i++;
    }
    return r->n > 0;
}
