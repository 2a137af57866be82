#include "batcher.h"

#include "alloc.h"
#include "check.h"

#include <tailrace/clock.h>
#include <tailrace/err.h>

static struct tr_batcher_item *item_of(struct tr_list *n)
{
    return tr_container_of(n, struct tr_batcher_item, node);
}

int tr_batcher_init(struct tr_batcher *b, const struct tr_batcher_cfg *cfg)
{
    *b = (struct tr_batcher){.cfg = *cfg, .round_ns = INT64_MIN};
    TR_ASSERT(!cfg->boundary || cfg->multi);
    if (cfg->multi)
        b->cfg.bins_max = 1;
    TR_ASSERT(b->cfg.bins_max > 0);
    b->bins = tr_calloc(b->cfg.bins_max, sizeof *b->bins);
    if (!b->bins)
        return TR_NOMEM;
    for (uint32_t i = 0; i < b->cfg.bins_max; i++)
        tr_list_init(&b->bins[i].items);
    if (cfg->boundary) {
        TR_ASSERT(cfg->groups_max > 0);
        b->staging = tr_calloc(cfg->groups_max, sizeof *b->staging);
        if (!b->staging) {
            tr_free(b->bins);
            b->bins = NULL;
            return TR_NOMEM;
        }
        for (uint32_t i = 0; i < cfg->groups_max; i++)
            tr_list_init(&b->staging[i].items);
    }
    return TR_OK;
}

void tr_batcher_done(struct tr_batcher *b)
{
    if (!b->bins)
        return;
    for (uint32_t i = 0; i < b->cfg.bins_max; i++)
        TR_ASSERT(tr_list_empty(&b->bins[i].items));
    tr_free(b->bins);
    tr_free(b->staging);
    b->bins = NULL;
    b->staging = NULL;
}

static void recount(struct tr_batcher_bin *bin)
{
    bin->rows = bin->bytes = 0;
    bin->oldest_ns = INT64_MAX;
    TR_LIST_EACH (n, &bin->items) {
        struct tr_batcher_item *it = item_of(n);
        bin->rows += it->rows;
        bin->bytes += it->bytes;
        bin->oldest_ns = TR_MIN(bin->oldest_ns, it->oldest_ns);
    }
}

static void bin_add(struct tr_batcher_bin *bin, struct tr_batcher_item *it)
{
    tr_list_push_back(&bin->items, &it->node);
    bin->rows += it->rows;
    bin->bytes += it->bytes;
    bin->oldest_ns = TR_MIN(bin->oldest_ns, it->oldest_ns);
}

static struct tr_batcher_bin *bin_open(struct tr_batcher *b, uint64_t target, uint64_t table, uint64_t binding)
{
    for (uint32_t i = 0; i < b->cfg.bins_max; i++) {
        struct tr_batcher_bin *bin = &b->bins[i];
        if (!bin->used) {
            bin->used = true;
            bin->idle = bin->partial = bin->closed = false;
            bin->seq = b->seq++;
            bin->forced = b->closing;
            bin->target = target;
            bin->table = table;
            bin->binding = binding;
            bin->rows = bin->bytes = 0;
            bin->oldest_ns = INT64_MAX;
            b->n_bins++;
            return bin;
        }
    }
    return NULL;
}

static struct tr_batcher_bin *largest(struct tr_batcher *b)
{
    struct tr_batcher_bin *best = NULL;
    for (uint32_t i = 0; i < b->cfg.bins_max; i++) {
        struct tr_batcher_bin *bin = &b->bins[i];
        if (bin->used && (!best || bin->bytes > best->bytes || (bin->bytes == best->bytes && bin->oldest_ns < best->oldest_ns)))
            best = bin;
    }
    return best;
}

/* Not MULTI. The caller asks wants_more before it adds, so that there is always a free bin here. */
static struct tr_batcher_bin *bin_for(struct tr_batcher *b, const struct tr_batcher_item *it)
{
    struct tr_batcher_bin *hit = NULL;
    for (uint32_t i = 0; i < b->cfg.bins_max; i++) {
        struct tr_batcher_bin *bin = &b->bins[i];
        if (!bin->used)
            continue;
        if (bin->target == it->target && bin->binding == it->binding && !bin->closed)
            hit = bin;
        else if (bin->table == it->table)
            bin->forced = bin->closed = true;
    }
    if (!hit)
        hit = bin_open(b, it->target, it->table, it->binding);
    TR_ASSERT(hit != NULL); /* else the caller did not ask */
    if (b->n_bins == b->cfg.bins_max)
        largest(b)->forced = true;
    return hit;
}

static struct tr_batcher_bin *only_bin(struct tr_batcher *b)
{
    return b->bins[0].used ? &b->bins[0] : bin_open(b, 0, 0, 0);
}

static void unstage(struct tr_batcher *b, struct tr_staging *s, bool boundary)
{
    if (tr_list_empty(&s->items))
        return;
    struct tr_batcher_bin *bin = only_bin(b);
    struct tr_list *n;
    struct tr_batcher_item *last = NULL;
    while ((n = tr_list_pop_front(&s->items))) {
        last = item_of(n);
        last->boundary = false;
        bin_add(bin, last);
    }
    last->boundary = boundary;
    bin->partial = !boundary;
    s->charge = 0;
    if (!boundary)
        b->splits++;
}

void tr_batcher_on_item(struct tr_batcher *b, struct tr_batcher_item *it)
{
    it->boundary = false;
    if (!b->cfg.boundary) {
        bin_add(b->cfg.multi ? only_bin(b) : bin_for(b, it), it);
        return;
    }
    TR_ASSERT(it->group < b->cfg.groups_max);
    struct tr_staging *s = &b->staging[it->group];
    tr_list_push_back(&s->items, &it->node);
    s->charge += it->charge;
    if (s->charge > b->cfg.tx_bytes_max)
        unstage(b, s, false);
}

void tr_batcher_on_boundary(struct tr_batcher *b, uint32_t group)
{
    if (!b->cfg.boundary)
        return;
    struct tr_staging *s = &b->staging[group];
    if (tr_list_empty(&s->items)) { /* the rest of a transaction that was split may be behind us already */
        if (b->bins[0].used && b->bins[0].partial) {
            item_of(tr_list_last(&b->bins[0].items))->boundary = true;
            b->bins[0].partial = false;
        }
        return;
    }
    unstage(b, s, true);
}

void tr_batcher_on_idle(struct tr_batcher *b)
{
    for (uint32_t i = 0; i < b->cfg.bins_max; i++)
        b->bins[i].idle |= b->bins[i].used;
}

void tr_batcher_on_force(struct tr_batcher *b)
{
    for (uint32_t i = 0; i < b->cfg.bins_max; i++)
        b->bins[i].forced |= b->bins[i].used;
}

void tr_batcher_on_close(struct tr_batcher *b)
{
    b->closing = true;
    tr_batcher_on_force(b);
}

void tr_batcher_split(struct tr_batcher *b)
{
    for (uint32_t i = 0; b->staging && i < b->cfg.groups_max; i++)
        unstage(b, &b->staging[i], false);
}

static bool bin_full(const struct tr_batcher *b, const struct tr_batcher_bin *bin)
{
    return bin->rows >= b->cfg.rows_max || bin->bytes >= b->cfg.bytes_max;
}

static int64_t bin_due(const struct tr_batcher *b, const struct tr_batcher_bin *bin)
{
    return bin_full(b, bin) || bin->forced || bin->partial ? INT64_MIN : tr_deadline_ns(bin->oldest_ns, b->cfg.linger_ns);
}

/* Moves the longest prefix that keeps within the maxima (at least one item; BOUNDARY: at least one transaction) to ret. */
static void cut(struct tr_batcher *b, struct tr_batcher_bin *bin, struct tr_list *ret, bool *ret_tx_end)
{
    uint64_t rows = 0, bytes = 0;
    struct tr_list *end = NULL; /* last node of the cut so far */
    TR_LIST_EACH (n, &bin->items) {
        struct tr_batcher_item *it = item_of(n);
        rows += it->rows;
        bytes += it->bytes;
        if (end && (rows > b->cfg.rows_max || bytes > b->cfg.bytes_max))
            break;
        if (!b->cfg.boundary || it->boundary)
            end = n;
    }
    if (!end) /* BOUNDARY: only part of a transaction is here */
        end = tr_list_last(&bin->items);
    *ret_tx_end = !b->cfg.boundary || item_of(end)->boundary;
    struct tr_list *n;
    do {
        n = tr_list_pop_front(&bin->items);
        tr_list_push_back(ret, n);
    } while (n != end);
    if (tr_list_empty(&bin->items)) {
        bin->used = false;
        b->n_bins--;
    } else {
        recount(bin);
    }
}

/* When the bin may go for no other reason than that its rows wait for nothing. */
static int64_t idle_due(const struct tr_batcher *b, const struct tr_batcher_bin *bin)
{
    return b->cfg.pace_ns == 0 || bin->seq < b->round_seq || b->round_ns == INT64_MIN ? INT64_MIN : tr_deadline_ns(b->round_ns, b->cfg.pace_ns);
}

static void begin_round(struct tr_batcher *b, int64_t now_ns)
{
    for (uint32_t i = 0; i < b->cfg.bins_max && b->n_bins; i++) {
        const struct tr_batcher_bin *bin = &b->bins[i];
        if (bin->used && bin->idle && bin->seq >= b->round_seq && idle_due(b, bin) <= now_ns) {
            b->round_ns = now_ns;
            b->round_seq = b->seq;
            return;
        }
    }
}

bool tr_batcher_next(struct tr_batcher *b, int64_t now_ns, bool no_writes, struct tr_list *ret, bool *ret_tx_end)
{
    struct tr_batcher_bin *best = NULL;
    int64_t best_due = INT64_MAX;
    if (b->cfg.pace_ns && no_writes)
        begin_round(b, now_ns);
    for (uint32_t i = 0; i < b->cfg.bins_max && b->n_bins; i++) {
        struct tr_batcher_bin *bin = &b->bins[i];
        if (!bin->used)
            continue;
        int64_t due = bin_due(b, bin);
        if (bin->idle && no_writes && due > now_ns && idle_due(b, bin) <= now_ns)
            due = now_ns;
        if (due <= now_ns && (!best || due < best_due || (due == best_due && bin->seq < best->seq))) {
            best = bin;
            best_due = due;
        }
    }
    if (!best)
        return false;
    cut(b, best, ret, ret_tx_end);
    return true;
}

int64_t tr_batcher_next_wake(const struct tr_batcher *b)
{
    int64_t r = INT64_MAX;
    for (uint32_t i = 0; i < b->cfg.bins_max && b->n_bins; i++)
        if (b->bins[i].used) {
            r = TR_MIN(r, bin_due(b, &b->bins[i]));
            int64_t idle = b->bins[i].idle ? idle_due(b, &b->bins[i]) : INT64_MIN;
            if (idle > INT64_MIN) /* else it waits for a write to end, which is told */
                r = TR_MIN(r, idle);
        }
    return r;
}

bool tr_batcher_empty(const struct tr_batcher *b)
{
    return b->n_bins == 0;
}

bool tr_batcher_staged(const struct tr_batcher *b)
{
    for (uint32_t i = 0; b->staging && i < b->cfg.groups_max; i++)
        if (!tr_list_empty(&b->staging[i].items))
            return true;
    return false;
}

void tr_batcher_take_staged(struct tr_batcher *b, struct tr_list *ret)
{
    for (uint32_t i = 0; b->staging && i < b->cfg.groups_max; i++) {
        tr_list_splice_back(ret, &b->staging[i].items);
        b->staging[i].charge = 0;
    }
}

void tr_batcher_take_all(struct tr_batcher *b, struct tr_list *ret)
{
    for (uint32_t i = 0; i < b->cfg.bins_max; i++) {
        tr_list_splice_back(ret, &b->bins[i].items);
        b->bins[i].used = false;
    }
    b->n_bins = 0;
    tr_batcher_take_staged(b, ret);
}

bool tr_batcher_wants_more(const struct tr_batcher *b)
{
    if (!b->cfg.multi && b->n_bins == b->cfg.bins_max)
        return false;
    for (uint32_t i = 0; i < b->cfg.bins_max && b->n_bins; i++)
        if (b->bins[i].used && bin_full(b, &b->bins[i]))
            return false;
    return true;
}
