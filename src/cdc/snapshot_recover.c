/*
 * snapshot_recover.c: taking snapshots up again after a restart, from the log alone: which BEGIN stands there, the highest H of its READ
 * and FILL frames, which key updates still lack a FILL. Chunk bounds come from the control store. Runs before capture appends anything.
 */
#include <string.h>

#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "snapshot_internal.h"

struct recover_arg {
    struct tr_snapshot *s;
    int rc;
    struct tr_err *err;
};

static void load_table(void *arg, const struct tr_ctl_table *v)
{
    struct recover_arg *a = arg;
    struct tr_cap_table *t = tr_cap_table_of(a->s->cap, v->ns, v->name);
    if (!t) {
        a->rc = tr_err_set(a->err, TR_NOMEM, TR_DOM_CDC, "no memory for table %s.%s", v->ns, v->name);
        return;
    }
    t->ctl = *v;
    t->known = true;
    if (v->state != TR_TABLE_PAUSED)
        tr_snap_set_id(a->s, t, tr_snap_fingerprint_source_id(v->storage.fingerprint));
}

static void load_chunk(void *arg, const struct tr_ctl_chunk *k)
{
    struct tr_snap *p = arg;
    struct snap_chunk *c = k->seq == p->n_chunks ? tr_snap_add_chunk(p, k->lo, k->hi) : NULL;
    if (!c)
        return;
    c->done = k->done && k->rows; /* an empty one has left no H in the log: read again, it tells up to where it saw nothing */
    c->rows = k->rows;
    p->planned = k->hi.n == 0;
}

static int add_need(struct tr_cap_table *t, const struct tr_frame *f, struct tr_err *err)
{
    if (t->n_needs == t->cap_needs) {
        size_t cap = t->cap_needs ? t->cap_needs * 2 : 64;
        struct tr_cap_need *v = tr_realloc(t->needs, cap * sizeof *v);
        if (!v)
            return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the key updates of table %s.%s", t->ns, t->name);
        t->needs = v;
        t->cap_needs = cap;
    }
    const struct tr_change *c = &f->change;
    uint8_t *key = tr_malloc(c->key.n + 1);
    if (!key)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for the key updates of table %s.%s", t->ns, t->name);
    memcpy(key, c->key.p, c->key.n);
    t->needs[t->n_needs++] =
        (struct tr_cap_need){.commit_lsn = c->commit_lsn, .xid = c->xid, .ordinal = c->ordinal, .epoch = c->epoch, .key = key, .key_n = c->key.n};
    return TR_OK;
}

/* One frame of the log, seen by a table whose snapshot is to be taken up again. */
static int replay_frame(struct tr_log_reader *r, struct tr_cap_table *t, const struct tr_frame *f, bool *begun, bool *ended, struct tr_err *err)
{
    const struct tr_change *c = &f->change;
    if (f->table_id != t->ctl.table_id)
        return TR_OK;
    if (c->snapshot_id && c->snapshot_id != t->ctl.snapshot_id)
        return TR_OK;
    switch (c->op) {
    case TR_OP_SNAPSHOT_BEGIN: {
        /* the rest is read by the definition that the rows before were read by, even if columns were added since: a sink adds them
         * where the stream does, not before */
        const struct tr_schema *s = r->ops->schema(r, f->table_id, f->schema_version);
        if (!s)
            return tr_err_set(err, TR_FATAL, TR_DOM_CDC, "the log has no definition for the snapshot of table %s.%s", t->ns, t->name);
        tr_schema_unref(t->snap->schema);
        t->snap->schema = tr_schema_ref(s);
        if (t->n_known == 0)
            t->known_v[t->n_known++] = (struct tr_cap_schema){.schema = tr_schema_ref(s)}; /* under the number it has */
        if (!t->reg)
            t->reg = t->known_v[0].schema; /* what a definition from the stream is compared with */
        *begun = true;
        t->snapshot_id = c->snapshot_id;
        t->begin_version = c->version;
        break;
    }
    case TR_OP_SNAPSHOT_END:
        *ended = true;
        break;
    case TR_OP_READ:
        t->snap->h_max = TR_MAX(t->snap->h_max, c->end_lsn);
        break;
    case TR_OP_FILL:
        t->snap->h_max = TR_MAX(t->snap->h_max, c->end_lsn);
        for (size_t i = 0; i < t->n_needs; i++)
            if (t->needs[i].commit_lsn == c->commit_lsn && t->needs[i].ordinal == c->ordinal && t->needs[i].epoch == c->epoch)
                t->needs[i].filled = t->needs[i].asked = true;
        break;
    case TR_OP_UPDATE:
        if (*begun && (c->flags & TR_CHG_MOVED) && (c->flags & TR_CHG_UNCHANGED))
            return add_need(t, f, err);
        break;
    default:
        break;
    }
    return TR_OK;
}

static int take_up(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_err *err)
{
    struct tr_log *log = s->cap->log;
    struct tr_log_reader *r = NULL;
    bool begun = false, ended = false;
    int rc = log->ops->reader_new(log, 0, t->ctl.begin_offset, &r, err);
    if (rc < 0) {
        t->ctl.state = TR_TABLE_NEW; /* the log no longer reaches that far back */
        return TR_OK;
    }
    struct tr_frame f[256];
    while (rc >= 0) {
        rc = tr_log_reader_poll(r, f, TR_ARRAY_LEN(f), err);
        for (int i = 0; i < rc; i++) {
            int one = replay_frame(r, t, &f[i], &begun, &ended, err);
            if (one < 0) {
                rc = one;
                break;
            }
        }
    }
    r->ops->free(r);
    if (rc != TR_AGAIN)
        return rc;
    if (ended) {
        t->ctl.state = TR_TABLE_LIVE;
        t->ctl.end_offset = s->cap->tail.offset;
        t->snapshot_id = 0;
        return tr_snap_save(s, t, err);
    }
    if (!begun) {
        tr_snap_log(TR_OSLOG_WARN, t, "its snapshot's beginning was not durable: starting it again");
        t->ctl.state = TR_TABLE_NEW;
        t->snapshot_id = 0;
        return TR_OK;
    }
    rc = s->cap->control->ops->chunk_list(s->cap->control, t->ctl.table_id, t->ctl.snapshot_id, load_chunk, t->snap, err);
    if (rc < 0)
        return rc;
    t->snap->phase = SNAP_CHUNKS;
    t->ctl.rows_read = 0;
    for (uint32_t i = 0; i < t->snap->n_chunks; i++)
        t->ctl.rows_read += t->snap->chunks[i].done ? t->snap->chunks[i].rows : 0;
    return tr_snap_pin(s, t, t->ctl.begin_offset, err);
}

int tr_snapshot_recover(struct tr_snapshot *s, struct tr_err *err)
{
    struct tr_capture *c = s->cap;
    struct recover_arg a = {.s = s, .err = err};
    int rc = c->control->ops->table_list(c->control, c->source_name, load_table, &a, err);
    if (rc < 0 || a.rc < 0)
        return rc < 0 ? rc : a.rc;
    for (struct tr_cap_table *t = c->tables; t; t = t->next) {
        if (!t->known)
            continue;
        if (!t->snap) {
            t->snap = tr_calloc(1, sizeof *t->snap);
            if (!t->snap)
                return tr_err_set(err, TR_NOMEM, TR_DOM_CDC, "no memory for table %s.%s", t->ns, t->name);
            t->snap->table = t;
            t->snap->phase = SNAP_DONE;
            t->snap->rows_per_chunk = 1000;
        }
        if (t->ctl.state == TR_TABLE_FENCING) {
            t->ctl.state = TR_TABLE_NEW;
        } else if (t->ctl.state == TR_TABLE_CHUNKS || t->ctl.state == TR_TABLE_FILLING) {
            rc = take_up(s, t, err);
            if (rc < 0)
                return rc;
        }
    }
    return TR_OK;
}
