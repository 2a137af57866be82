/*
 * service_setback.c: the change log ends before what the control store says was durable in it. A disk that lost what it had promised, or a log that was restored from a copy
 * older than the control store. It must be seen before the first frame is appended: later the log has grown past the recorded offsets, which then stand for other changes.
 *
 * What was lost is asked of the source again: the furthest offset is kept with the source, which makes capture begin a new epoch (agreement.c) and snapshot every table; then every
 * sink that was beyond the end goes back to it, and its tables wait for their new snapshot. In that order, so that a crash between the two leaves both to be done.
 */
#include <inttypes.h>
#include <stdio.h>

#include "alloc.h"
#include "check.h"
#include "service_internal.h"
#include "text.h"

struct setback {
    struct tr_service *s;
    uint64_t end;      /* of the log */
    uint64_t furthest; /* that the control store knows of */
    uint64_t sink_furthest;
    struct tr_ctl_sink_table *v;
    size_t n, cap;
    struct setback_sink {
        char name[64];
        uint64_t offset;
    } *sinks;
    size_t n_sinks, sinks_cap;
    bool nomem;
};

static const char lost[] = "the change log ends before what this sink had read; its tables are being snapshotted anew";

static uint64_t known(uint64_t offset)
{
    return offset == UINT64_MAX ? 0 : offset;
}

static void see_sink(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us)
{
    struct setback *b = arg;
    (void)partition; /* there is one: see contracts */
    (void)at_us;
    if (b->n_sinks == b->sinks_cap) {
        size_t cap = b->sinks_cap ? b->sinks_cap * 2 : 8;
        struct setback_sink *v = tr_realloc(b->sinks, cap * sizeof *v);
        if (!v) {
            b->nomem = true;
            return;
        }
        b->sinks = v;
        b->sinks_cap = cap;
    }
    struct setback_sink *k = &b->sinks[b->n_sinks++];
    snprintf(k->name, sizeof k->name, "%s", sink);
    k->offset = offset;
}

/* The offsets that a table's state in a sink rests on. (log_from and pause_offset lie before them.) */
static uint64_t furthest_of(const struct tr_ctl_sink_table *t)
{
    return TR_MAX(TR_MAX(known(t->begin_offset), known(t->end_offset)), known(t->catchup_offset));
}

static void see_sink_table(void *arg, const struct tr_ctl_sink_table *t)
{
    struct setback *b = arg;
    b->sink_furthest = TR_MAX(b->sink_furthest, furthest_of(t));
    if (b->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 32;
        struct tr_ctl_sink_table *v = tr_realloc(b->v, cap * sizeof *v);
        if (!v) {
            b->nomem = true;
            return;
        }
        b->v = v;
        b->cap = cap;
    }
    b->v[b->n++] = *t;
}

static void see_table(void *arg, const struct tr_ctl_table *t)
{
    struct setback *b = arg;
    b->furthest = TR_MAX(b->furthest, TR_MAX(known(t->begin_offset), known(t->end_offset)));
}

static int read_sink(struct setback *b, size_t i, struct tr_err *err)
{
    struct tr_control *c = b->s->cfg.control;
    b->n = 0;
    b->sink_furthest = b->sinks[i].offset;
    int rc = c->ops->sink_table_list(c, b->sinks[i].name, see_sink_table, b, err);
    return rc >= 0 && b->nomem ? tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the tables of sink %s", b->sinks[i].name) : rc;
}

static void set_back_table(struct tr_ctl_sink_table *t, uint64_t end)
{
    t->log_from = t->log_from == UINT64_MAX ? UINT64_MAX : TR_MIN(t->log_from, end);
    if (!t->snapshot_id) { /* it has no mirror to build anew */
        t->pause_offset = TR_MIN(t->pause_offset, end);
        t->catchup_offset = TR_MIN(t->catchup_offset, end);
        return;
    }
    t->state = TR_ST_GAPPED;
    t->relive = t->mirror_live = false;
    t->begin_offset = t->catchup_offset = t->pause_offset = end;
    t->end_offset = UINT64_MAX;
    snprintf(t->reason, sizeof t->reason, "%s", lost);
}

static int set_back_sink(struct setback *b, size_t i, struct tr_err *err)
{
    struct tr_control *c = b->s->cfg.control;
    int rc = read_sink(b, i, err);
    if (rc < 0 || b->sink_furthest <= b->end)
        return rc;
    tr_oslog_fields(TR_OSLOG_ERROR, "service", TR_OSLOG_F({"sink", b->sinks[i].name}),
                    "the sink was at offset %" PRIu64 ", but the log ends at %" PRIu64 ": it goes on from there, and builds its tables anew", b->sink_furthest, b->end);
    for (size_t k = 0; k < b->n; k++)
        set_back_table(&b->v[k], b->end);
    tr_control_alarm(c, TR_ALARM_GAPPED, b->sinks[i].name, lost);
    struct tr_ctl_offset o = {.sink = b->sinks[i].name, .offset = TR_MIN(b->sinks[i].offset, b->end), .set_back = true, .tables = b->v, .n_tables = (uint32_t)b->n};
    return c->ops->offset_commit(c, &o, err);
}

int tr_service_set_back(struct tr_service *s, struct tr_err *err)
{
    struct tr_control *c = s->cfg.control;
    struct setback b = {.s = s};
    struct tr_log_stats st;
    struct tr_ctl_source src;
    int rc = s->cfg.log->ops->stats(s->cfg.log, 0, &st, err);
    b.end = st.durable_offset;
    if (rc >= 0)
        rc = c->ops->source_get(c, s->cfg.source_name, &src, err);
    b.furthest = rc >= 0 ? src.log_offset : 0;
    if (rc >= 0)
        rc = c->ops->table_list(c, s->cfg.source_name, see_table, &b, err);
    if (rc >= 0)
        rc = c->ops->sink_list(c, see_sink, &b, err);
    if (rc >= 0 && b.nomem)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the list of sinks");
    for (size_t i = 0; i < b.n_sinks && rc >= 0; i++) {
        rc = read_sink(&b, i, err);
        b.furthest = TR_MAX(b.furthest, b.sink_furthest);
    }
    if (rc >= 0 && b.furthest > b.end && src.system_id[0])
        rc = c->ops->confirm(c, s->cfg.source_name, 0, b.furthest, err);
    for (size_t i = 0; i < b.n_sinks && rc >= 0 && b.furthest > b.end; i++)
        rc = set_back_sink(&b, i, err);
    tr_free(b.v);
    tr_free(b.sinks);
    return rc;
}
