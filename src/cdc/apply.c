/*
 * apply.c: one run of apply: opening from the control store, and the answers to a writer that refuses.
 *
 * A new sink starts at the beginning of the log, so that its changelog tables hold what the log holds and each table enters with its
 * SNAPSHOT_BEGIN. A sink whose offset the log no longer reaches is *gapped*: all its tables wait for new snapshots, which are asked for.
 */
#include "apply_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"

struct load_arg {
    struct tr_apply_run *ap;
    bool nomem;
};

static void load_sink_table(void *arg, const struct tr_ctl_sink_table *v)
{
    struct load_arg *a = arg;
    struct ap_table *t = tr_apply_table(a->ap, v->table_id);
    if (!t) {
        a->nomem = true;
        return;
    }
    t->rec = *v;
    atomic_store(&t->stored, v->snapshot_id);
}

struct latest {
    uint32_t table_id;
    struct tr_schema *schema;
    int rc;
    struct tr_err *err;
};

static void keep_latest(void *arg, uint32_t version, uint64_t effective_lsn, struct tr_slice bytes)
{
    (void)effective_lsn;
    struct latest *l = arg;
    struct tr_schema *stored = NULL, *s = NULL;
    if (l->rc < 0)
        return;
    l->rc = tr_schema_decode(bytes, &stored, l->err);
    if (l->rc >= 0)
        l->rc = tr_schema_renumber(stored, l->table_id, version, &s, l->err); /* it was stored before it had its number */
    tr_schema_unref(stored);
    if (l->rc < 0)
        return;
    tr_schema_unref(l->schema);
    l->schema = s;
}

void tr_apply_table_mode_load(struct tr_apply_run *ap, struct ap_table *t, const struct tr_schema *s)
{
    struct tr_apply_table_mode m = {0};
    ap->cfg.mode(ap->cfg.arg, s->ns, s->name, &m);
    tr_mutex_lock(&ap->lock);
    snprintf(t->name, sizeof t->name, "%s.%s", s->ns, s->name);
    t->changelog = m.changelog;
    t->dirty |= m.changelog; /* known to the store, so that what it misses while the sink is away can be told */
    t->no_key = !m.mirror || !s->n_key;
    tr_mutex_unlock(&ap->lock);
}

/* The mirror was dropped, or the whole database is another: then the changelog is gone as well, and if it is not, it has what comes already. */
static void rebuild(struct tr_apply_run *ap, struct ap_table *t, uint64_t built, uint64_t first_offset)
{
    tr_oslog_fields(TR_OSLOG_WARN, "apply", TR_OSLOG_F({"sink", ap->cfg.name}, {"table", t->name}),
                    "the mirror in the sink is not the one that was built (%" PRIu64 ", known is %" PRIu64 "): building it anew from the log, and a changelog from offset %" PRIu64, built,
                    t->rec.snapshot_id, first_offset);
    t->rec.state = TR_ST_LOADING;
    t->rec.relive = t->rec.mirror_live = false;
    t->rec.catchup_offset = t->rec.begin_offset;
    if (t->changelog)
        t->rec.log_from = first_offset;
    t->dirty = true;
}

/* What its next change would pause it for is told at once. */
static void foretell(struct tr_apply_run *ap, const struct ap_table *t, const struct tr_schema *schema)
{
    struct tr_err why = {0};
    if (t->rec.state == TR_ST_LIVE && ap->cfg.sink->ops->check && ap->cfg.sink->ops->check(ap->cfg.sink, schema, TR_TARGET_MIRROR, tr_now_ns() + 30 * TR_NS_PER_S, &why) == TR_REJECT)
        tr_oslog_fields(TR_OSLOG_WARN, "apply", TR_OSLOG_F({"sink", ap->cfg.name}, {"table", t->name}), "its next change will pause it: %s", why.msg);
}

/* A crash between the swap and its note: the sink itself knows which build its mirror is. */
static int settle(struct tr_apply_run *ap, struct ap_table *t, uint64_t first_offset, bool *io_rebuilt, struct tr_err *err)
{
    struct latest l = {.table_id = t->table_id, .err = err};
    int rc = ap->cfg.control->ops->schema_list(ap->cfg.control, t->table_id, keep_latest, &l, err);
    if (rc >= 0)
        rc = l.rc;
    if (rc >= 0 && l.schema) {
        tr_apply_table_mode_load(ap, t, l.schema);
        uint64_t built = 0;
        bool building = (t->rec.state == TR_ST_CATCHING_UP || t->rec.state == TR_ST_LOADING) && !t->rec.relive;
        bool standing = t->rec.state == TR_ST_LIVE || ((t->rec.state == TR_ST_PAUSED || t->rec.state == TR_ST_CATCHING_UP) && t->rec.relive);
        if (standing && !t->no_key) {
            rc = ap->cfg.sink->ops->built(ap->cfg.sink, l.schema, tr_now_ns() + 30 * TR_NS_PER_S, &built, err);
            if (rc >= 0 && built != t->rec.snapshot_id) { /* dropped, or restored from another time: built anew from the log */
                rebuild(ap, t, built, first_offset);
                *io_rebuilt |= built == 0;
            } else if (rc >= 0) {
                foretell(ap, t, l.schema);
            }
        } else if (building) {
            rc = ap->cfg.sink->ops->built(ap->cfg.sink, l.schema, tr_now_ns() + 30 * TR_NS_PER_S, &built, err);
            if (rc >= 0 && built && built == t->rec.snapshot_id) {
                t->rec.state = TR_ST_LIVE;
                t->rec.mirror_live = true;
                t->rec.log_from = UINT64_MAX; /* durable before the swap */
                t->dirty = true;
            }
        }
    }
    tr_schema_unref(l.schema);
    return rc;
}

void tr_apply_alarm(struct tr_apply_run *ap, const struct ap_table *t, enum tr_alarm kind, const char *text)
{
    char subject[TR_ALARM_SUBJECT_CHARS];
    tr_control_alarm(ap->cfg.control, kind, tr_alarm_subject(subject, ap->cfg.name, t->name), text);
}

/* Alarms of before this run that are for an operator to take note of. */
static void see_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    struct tr_apply_run *ap = arg;
    size_t it = 0;
    uint64_t id, p;
    while (!strcmp(a->kind, tr_alarm_kind(TR_ALARM_CHANGELOG)) && tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        char subject[TR_ALARM_SUBJECT_CHARS];
        tr_alarm_subject(subject, ap->cfg.name, t->name);
        t->history_lost |= !strcmp(a->subject, subject);
    }
}

static int gapped(struct tr_apply_run *ap, uint64_t oldest, struct tr_err *err)
{
    struct tr_control *c = ap->cfg.control;
    uint64_t from = ap->start_offset;
    tr_oslog_fields(TR_OSLOG_ERROR, "apply", TR_OSLOG_F({"sink", ap->cfg.name}),
                    "gapped: the sink stopped at offset %" PRIu64 " and the log now begins at %" PRIu64 "; asking for new snapshots of its tables", from, oldest);
    ap->start_offset = oldest;
    size_t it = 0;
    uint64_t id, p;
    int rc = TR_OK;
    bool any = false;
    while (rc >= 0 && tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        if (t->changelog)
            tr_apply_history_lost(ap, t, TR_MIN(from, t->rec.log_from), oldest);
        if (t->rec.log_from != UINT64_MAX)
            t->rec.log_from = TR_MAX(t->rec.log_from, oldest);
        t->dirty = true;
        if (t->no_key) /* a snapshot would bring its changelog nothing */
            continue;
        any = true;
        t->rec.state = TR_ST_GAPPED;
        t->rec.mirror_live = false;
        snprintf(t->rec.reason, sizeof t->rec.reason, "the log no longer holds what this sink had not read");
        rc = c->ops->request_put(c, ap->cfg.name, "resnapshot", "", t->name, err);
    }
    if (any)
        tr_control_alarm(c, TR_ALARM_GAPPED, ap->cfg.name, "the log no longer holds what this sink had not read; its tables are being snapshotted anew");
    return rc;
}

/* A mirror is gone: perhaps the whole database. Tables that have nothing but a changelog cannot be asked, so they are brought what the log holds;
 * what is there already stays as it is. */
static void rewrite_histories(struct tr_apply_run *ap, uint64_t first_offset)
{
    size_t it = 0;
    uint64_t id, p;
    while (tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        if (!t->no_key || !t->changelog)
            continue;
        t->rec.log_from = t->rec.pause_offset = t->rec.catchup_offset = first_offset;
        t->rec.relive = true;
        if (t->rec.state != TR_ST_PAUSED)
            t->rec.state = TR_ST_CATCHING_UP;
        t->dirty = true;
    }
}

static int load(struct tr_apply_run *ap, struct tr_err *err)
{
    struct tr_control *c = ap->cfg.control;
    struct tr_log_stats st;
    struct load_arg a = {.ap = ap};
    int rc = c->ops->offset_get(c, ap->cfg.name, 0, &ap->start_offset, err);
    bool rebuilt = false;
    bool fresh = rc == 1;
    if (rc >= 0)
        rc = ap->cfg.log->ops->stats(ap->cfg.log, 0, &st, err);
    if (rc >= 0)
        rc = c->ops->sink_table_list(c, ap->cfg.name, load_sink_table, &a, err);
    if (rc >= 0 && a.nomem)
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the tables of sink %s", ap->cfg.name);
    size_t it = 0;
    uint64_t id, p;
    while (rc >= 0 && tr_u64map_next(&ap->tables, &it, &id, &p))
        rc = settle(ap, (struct ap_table *)(uintptr_t)p, st.first_offset, &rebuilt, err);
    if (rc >= 0 && rebuilt)
        rewrite_histories(ap, st.first_offset);
    if (rc >= 0)
        rc = c->ops->alarm_list(c, see_alarm, ap, err);
    if (rc >= 0 && fresh)
        ap->start_offset = st.first_offset;
    else if (rc >= 0 && ap->start_offset < st.first_offset)
        rc = gapped(ap, st.first_offset, err);
    if (rc >= 0 && ap->start_offset > st.durable_offset) /* service_setback.c leaves none of these */
        rc = tr_err_set(err, TR_FATAL, TR_DOM_CDC, "sink %s is at offset %" PRIu64 ", but the log ends at %" PRIu64, ap->cfg.name, ap->start_offset, st.durable_offset);
    ap->pending = ap->recorded = ap->start_offset;
    ap->again_until = rc >= 0 && !fresh ? st.durable_offset : 0;
    return rc;
}

void tr_apply_history_lost(struct tr_apply_run *ap, struct ap_table *t, uint64_t from, uint64_t to)
{
    char text[200];
    snprintf(text, sizeof text, "the changelog lacks the changes from offset %" PRIu64 " to %" PRIu64 ": the log does not hold them any more", from, to - 1);
    tr_oslog_fields(TR_OSLOG_ERROR, "apply", TR_OSLOG_F({"sink", ap->cfg.name}, {"table", t->name}), "%s", text);
    tr_mutex_lock(&ap->lock);
    t->history_lost = true;
    tr_mutex_unlock(&ap->lock);
    tr_apply_alarm(ap, t, TR_ALARM_CHANGELOG, text);
}

/*
 * The one rule of pausing, for the chain (a definition or a row that the sink does not take) and for the writer (a part of a batch, whose rows
 * may have been put long before, so that the chain may have paused the table already, or have begun to catch it up again).
 *
 * A mirror that was live, or going on after a pause, stays as it is and is continued in place from `offset`; one that was being built starts over
 * from its snapshot. A changelog is continued from `offset` whatever becomes of the mirror. So is a table that has nothing but a changelog.
 */
static void pause_record(struct ap_table *t, enum tr_target_variant variant, uint64_t offset, const struct tr_err *why)
{
    struct tr_ctl_sink_table *r = &t->rec;
    if (variant == TR_TARGET_CHANGELOG)
        r->log_from = TR_MIN(r->log_from, offset);
    if (r->state == TR_ST_PAUSED) {
        if (variant != TR_TARGET_SHADOW)
            r->pause_offset = TR_MIN(r->pause_offset, offset);
        return;
    }
    if (r->state == TR_ST_CATCHING_UP && r->relive) /* rows of before the last pause may still be refused while the catch-up is far behind them */
        offset = TR_MIN(offset, r->catchup_offset);
    r->relive = variant != TR_TARGET_SHADOW && (r->state == TR_ST_LIVE || (r->state == TR_ST_CATCHING_UP && r->relive) || (r->state == TR_ST_WAITING && t->no_key));
    r->state = TR_ST_PAUSED;
    r->mirror_live = false;
    r->pause_offset = offset;
    snprintf(r->reason, sizeof r->reason, "%.500s", why->msg);
}

void tr_apply_pause(struct tr_apply_run *ap, struct ap_table *t, enum tr_target_variant variant, uint64_t offset, const struct tr_err *why)
{
    tr_mutex_lock(&ap->lock);
    pause_record(t, variant, offset, why);
    t->dirty = true;
    atomic_store(&t->rejected, true);
    atomic_store(&ap->poked, true);
    tr_mutex_unlock(&ap->lock);
    tr_apply_alarm(ap, t, TR_ALARM_TABLE, why->msg);
}

static enum tr_reject_answer on_reject(void *arg, uint32_t sink, const struct tr_target *target, int64_t first, const struct tr_err *err)
{
    (void)sink;
    struct tr_apply_run *ap = arg;
    if (target->variant == TR_TARGET_META)
        return TR_REJECT_FAIL;
    tr_mutex_lock(&ap->lock);
    struct ap_table *t = tr_u64map_get_ptr(&ap->tables, target->table_id);
    tr_mutex_unlock(&ap->lock);
    if (!t)
        return TR_REJECT_FAIL;
    tr_apply_pause(ap, t, target->variant, (uint64_t)(first & AP_OFFSET_MASK), err);
    return TR_REJECT_DROP;
}

static int chain_new(void *arg, uint32_t thread, struct tr_out **outs, uint32_t n_outs, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    TR_ASSERT(n_outs == 1);
    return tr_apply_chain_new(arg, outs[0], ret_ops, ret_chain, err);
}

int tr_apply_open(const struct tr_apply_config *cfg, struct tr_apply_run **ret, struct tr_err *err)
{
    struct tr_apply_run *ap = tr_calloc(1, sizeof *ap);
    if (!ap)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for sink %s", cfg->name);
    ap->cfg = *cfg;
    ap->source.ops = &tr_apply_source_ops;
    tr_mutex_init(&ap->lock);
    tr_u64map_init(&ap->tables);
    int rc = load(ap, err);
    if (rc >= 0)
        rc = tr_apply_main_lane_init(ap, err);
    if (rc >= 0) {
        struct tr_runtime_sink sink = {.name = cfg->name, .sink = cfg->sink, .tuning = cfg->tuning};
        struct tr_runtime_def def = {.name = cfg->name,
                                     .tuning = cfg->pipeline,
                                     .source = &ap->source,
                                     .sinks = &sink,
                                     .n_sinks = 1,
                                     .chain_new = chain_new,
                                     .on_reject = on_reject,
                                     .arg = ap,
                                     .metrics = cfg->metrics};
        def.tuning.threads = 1;
        def.tuning.commit_eagerly = true; /* lag is measured on it; the control store is written every commit interval only */
        char warning[512] = "";
        rc = tr_runtime_new(&def, &ap->pipeline, warning, sizeof warning, err);
        if (*warning)
            tr_oslog_fields(TR_OSLOG_WARN, "apply", TR_OSLOG_F({"sink", cfg->name}), "%s", warning);
    }
    if (rc < 0) {
        tr_apply_free(ap);
        return rc;
    }
    *ret = ap;
    return TR_OK;
}

int tr_apply_start(struct tr_apply_run *ap, struct tr_err *err)
{
    return tr_runtime_start(ap->pipeline, err);
}

void tr_apply_stop(struct tr_apply_run *ap)
{
    tr_runtime_stop(ap->pipeline);
}

bool tr_apply_join(struct tr_apply_run *ap, int64_t deadline_ns)
{
    return tr_runtime_join(ap->pipeline, deadline_ns);
}

void tr_apply_status(struct tr_apply_run *ap, struct tr_runtime_status *ret, struct tr_apply_lag *ret_lag)
{
    tr_runtime_status(ap->pipeline, ret);
    tr_mutex_lock(&ap->lock);
    *ret_lag = ap->lag;
    tr_mutex_unlock(&ap->lock);
    if (ret->watermark == INT64_MIN) /* nothing delivered since the start */
        ret->watermark = (int64_t)ap->start_offset - 1;
}

void tr_apply_tables(struct tr_apply_run *ap, void (*cb)(void *arg, const char *name, const struct tr_ctl_sink_table *t), void *arg)
{
    tr_mutex_lock(&ap->lock);
    size_t it = 0;
    uint64_t id, p;
    while (tr_u64map_next(&ap->tables, &it, &id, &p)) {
        const struct ap_table *t = (const struct ap_table *)(uintptr_t)p;
        if (t->name[0] && (!t->no_key || (t->rec.state != TR_ST_WAITING && t->rec.state != TR_ST_LIVE)))
            cb(arg, t->name, &t->rec);
    }
    tr_mutex_unlock(&ap->lock);
}

/* A table whose changelog alarm is raised, which then is not any more. */
static struct ap_table *take_lost(struct tr_apply_run *ap, const char *table)
{
    struct ap_table *found = NULL;
    size_t it = 0;
    uint64_t id, p;
    tr_mutex_lock(&ap->lock);
    while (!found && tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        if (t->history_lost && (!*table || !strcmp(t->name, table))) {
            t->history_lost = false;
            found = t;
        }
    }
    tr_mutex_unlock(&ap->lock);
    return found;
}

int tr_apply_resume(struct tr_apply_run *ap, const char *table)
{
    int rc = 1;
    struct ap_table *lost;
    while ((lost = take_lost(ap, table))) { /* seen, then */
        tr_apply_alarm(ap, lost, TR_ALARM_CHANGELOG, NULL);
        rc = TR_OK;
    }
    tr_mutex_lock(&ap->lock);
    size_t it = 0;
    uint64_t id, p;
    while (tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        if (t->rec.state == TR_ST_PAUSED && (!*table || !strcmp(t->name, table))) {
            t->resume = true;
            rc = TR_OK;
        }
    }
    tr_mutex_unlock(&ap->lock);
    atomic_store(&ap->poked, true);
    tr_apply_wake(ap);
    return rc;
}

struct tr_apply_run *tr_apply_free(struct tr_apply_run *ap)
{
    if (!ap)
        return NULL;
    ap->pipeline = tr_runtime_free(ap->pipeline);
    while (ap->catchups) {
        struct ap_catchup *c = ap->catchups;
        ap->catchups = c->next;
        tr_apply_catchup_free(c);
    }
    if (ap->reader)
        ap->reader->ops->free(ap->reader);
    size_t it = 0;
    uint64_t id, p;
    while (tr_u64map_next(&ap->tables, &it, &id, &p)) {
        struct ap_table *t = (struct ap_table *)(uintptr_t)p;
        tr_apply_pin(ap, t, UINT64_MAX, NULL);
        tr_free(t);
    }
    tr_u64map_done(&ap->tables);
    tr_free(ap->frames);
    tr_free(ap->v);
    tr_mutex_done(&ap->lock);
    tr_free(ap);
    return NULL;
}
