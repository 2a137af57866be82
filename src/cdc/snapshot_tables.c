/*
 * snapshot_tables.c: tables come and go. The coordinator's looks at the source's catalog: which tables are selected, which are to be
 * snapshotted (anew), which are gone, and which stood under another name for a while.
 *
 * A new snapshot is due where the stream may not have told all of a table since the last one: is_due compares what is recorded with what is found
 * (docs/decisions/0011, 0014). One that begins after the look is sound: its fence waits for every transaction that is older.
 *
 * Names that stand for another table between two looks: capture's thread compares each definition's source_id with what the last look found
 * under its name (check_identity in capture_chain.c); where they differ it counts the tables concerned as strayed (tr_cap_stray). So does
 * set_identity here, when a look finds that names have moved. tr_snap_note_strays records them in the control store, the next look takes a new snapshot, and
 * until they are recorded no position is (capture_source.c).
 */
#include <stdio.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "alloc.h"
#include "check.h"
#include "failpoint.h"
#include "snapshot_internal.h"

#define CALL_NS (30 * TR_NS_PER_S)
#define TABLES_EVERY (10 * TR_NS_PER_S)

static int64_t in(int64_t ns)
{
    return tr_now_ns() + ns;
}

/* Some sink keeps a changelog of it. */
static bool has_history(const struct tr_snapshot *s, const struct tr_cap_table *t)
{
    return s->cap->has_changelog && s->cap->has_changelog(s->cap->arg, t->ns, t->name);
}

/* ---- without a key ---- */

/* Without a usable key there is no mirror, and a history only where a sink was told to keep one. */
int tr_snap_keyless(struct tr_snapshot *s, struct tr_cap_table *t, const char *no_key, struct tr_err *err)
{
    bool kept = has_history(s, t);
    char reason[sizeof t->ctl.reason], text[800];
    snprintf(reason, sizeof reason, "%.300s%s", no_key, kept ? "" : "; no sink has it in its changelog either, so nothing of it is kept");
    if (t->ctl.state == TR_TABLE_NO_SNAPSHOT && !strcmp(t->ctl.reason, reason))
        return TR_OK;
    t->ctl.state = TR_TABLE_NO_SNAPSHOT;
    memcpy(t->ctl.reason, reason, sizeof reason);
    if (kept)
        snprintf(text, sizeof text, "has no mirror, only a changelog: %s", reason);
    else
        snprintf(text, sizeof text, "is not mirrored: %s. Give it a key, or name it in a sink's changelog: ['%s.%s']", reason, t->ns, t->name);
    tr_snap_log(TR_OSLOG_WARN, t, text);
    return tr_snap_save(s, t, err);
}

/* ---- names and identities ---- */

void tr_snap_set_id(struct tr_snapshot *s, struct tr_cap_table *t, uint32_t id)
{
    uint32_t was = atomic_load(&t->source_id);
    uint64_t n = 0;
    if (was && tr_u64map_find(&s->ids, was, &n) && n > 1)
        tr_u64map_put(&s->ids, was, n - 1); /* replaces: needs no memory */
    else if (was)
        tr_u64map_del(&s->ids, was, NULL);
    n = 0;
    if (id) {
        tr_u64map_find(&s->ids, id, &n);
        if (tr_u64map_put(&s->ids, id, n + 1) < 0)
            s->ids_lost = true;
    }
    atomic_store(&t->source_id, id);
}

static void set_identity(struct tr_snapshot *s, struct tr_cap_table *t, uint32_t id)
{
    struct tr_capture *c = s->cap;
    if (atomic_load(&t->source_id) == id)
        return;
    bool held = id && (s->ids_lost || tr_u64map_find(&s->ids, id, NULL));
    for (struct tr_cap_table *x = c->tables; held && x; x = x->next)
        if (x != t && atomic_load(&x->source_id) == id) { /* the table had that name before, and may get it back before the next look */
            tr_cap_stray(c, x);
            tr_snap_set_id(s, x, 0);
        }
    tr_snap_set_id(s, t, id);
    atomic_fetch_add(&c->identities, 1);
}

static void note_failed(struct tr_snapshot *s, struct tr_cap_table *t, const struct tr_err *err)
{
    /* Strayed anew while it was being saved: capture has counted it a second time. */
    if (atomic_exchange(&t->strayed, true))
        atomic_fetch_sub(&s->cap->strays, 1);
    char name[TR_SNAP_NAME_CHARS];
    if (tr_oslog_failed(&s->note_trouble, err))
        tr_oslog_err(TR_OSLOG_WARN, "snapshot", TR_OSLOG_F({"strayed", tr_snap_name(name, t)}), err);
}

/* Tables that capture met under another name, or others under theirs. A fingerprint that no table has is recorded, so that the next look at
 * the tables takes a new snapshot, also after a crash. Before a BEGIN there is nothing to mend: what strayed before it is read. */
void tr_snap_note_strays(struct tr_snapshot *s)
{
    bool failed = false;
    for (struct tr_cap_table *t = atomic_load(&s->cap->strays) ? s->cap->tables : NULL; t; t = t->next) {
        if (!atomic_exchange(&t->strayed, false))
            continue;
        if (t->ctl.state == TR_TABLE_LIVE || (tr_snap_under_way(t) && t->snap->phase >= SNAP_BEGIN)) {
            struct tr_err err = {0};
            uint64_t was = t->ctl.storage.fingerprint;
            TR_FAILPOINT("snapshot.before_note");
            t->ctl.storage.fingerprint = tr_snap_fingerprint_due(was);
            if (tr_snap_save(s, t, &err) < 0) {
                t->ctl.storage.fingerprint = was;
                note_failed(s, t, &err);
                failed = true;
                continue;
            }
            tr_snap_log(TR_OSLOG_WARN, t, "its changes came under another name, another table's under this one, or without the whole key (a partition's replica identity): unless the next look at the tables finds it gone, a new snapshot is taken");
        }
        atomic_fetch_sub(&s->cap->strays, 1);
    }
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (!failed && tr_oslog_well(&s->note_trouble, lasted))
        tr_oslog_write(TR_OSLOG_INFO, "snapshot", "noting tables that came under another name works again after %s", lasted);
}

/* ---- the look ---- */

/* 0: not known */
static bool differs(uint64_t known, uint64_t now)
{
    return known && now && known != now;
}

/* A break in what is streamed of a table, by the upper half of its membership: of all tables, or of this one. */
static const char *break_of(const struct tr_table_storage *known, const struct tr_table_storage *now)
{
    if (!differs(known->membership, now->membership))
        return NULL;
    return known->membership >> 32 != now->membership >> 32 ? "the publication was made again, or its options or owner were altered"
                                                            : "the table had left the publication, or was in it with a row filter or column list";
}

/* A new snapshot is due: what was read of the table, and streamed since, may not be what it holds. ALTER TABLE rewrites rows and changes columns in
 * one transaction; VACUUM FULL, CLUSTER and TRUNCATE change only the storage. */
static bool is_due(struct tr_snapshot *s, const struct tr_cap_table *t, const struct tr_table_storage *known, const struct tr_table_storage *now, char *why, size_t cap)
{
    const char *breach = break_of(known, now);
    bool kept = has_history(s, t);
    if (differs(known->fingerprint, now->fingerprint))
        snprintf(why, cap, "another table has its name now or had it for a while, or its partitions changed outside the stream (attach, detach, truncate or rewrite of a leaf): taking a new snapshot");
    else if (breach)
        snprintf(why, cap, "%s, so that changes of it may not have come: taking a new snapshot%s", breach, kept ? ". Its changelog lacks for good what came between" : "");
    else if (differs(known->filenode, now->filenode) && differs(known->attributes, now->attributes))
        snprintf(why, cap, "ALTER TABLE has rewritten its rows, which the stream does not tell: taking a new snapshot");
    else
        return false;
    return true;
}

/* Each look meets it again, for each table; over when a look has passed without it. */
static void not_saved(struct tr_snapshot *s, const struct tr_err *err)
{
    s->unsaved = true;
    if (tr_oslog_failed(&s->save_trouble, err))
        tr_oslog_err(TR_OSLOG_WARN, "snapshot", NULL, 0, err);
}

static void all_saved(struct tr_snapshot *s)
{
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (!s->unsaved && tr_oslog_well(&s->save_trouble, lasted))
        tr_oslog_write(TR_OSLOG_INFO, "snapshot", "recording the tables works again after %s", lasted);
    s->unsaved = false;
}

/* Only a part of it has changed, or was not known. */
static void record(struct tr_snapshot *s, struct tr_cap_table *t, struct tr_table_storage *known, const struct tr_table_storage *now)
{
    struct tr_table_storage was = *known;
    if (!memcmp(&was, now, sizeof was))
        return;
    struct tr_err err;
    *known = *now;
    if (tr_snap_save(s, t, &err) < 0) {
        *known = was; /* the next look tries it again */
        not_saved(s, &err);
    }
}

/* It has a history, and no snapshot mends that. */
static void see_keyless(struct tr_snapshot *s, struct tr_cap_table *t, const struct tr_cdc_table *d, const struct tr_table_storage *now)
{
    struct tr_table_storage known = t->ctl.storage;
    const char *breach = break_of(&known, now);
    char text[256];
    t->ctl.storage.membership = now->membership; /* saved by keyless, or below */
    tr_snap_keyless(s, t, d->no_key, NULL);
    if (known.membership != now->membership && tr_snap_save(s, t, NULL) < 0) {
        t->ctl.storage.membership = known.membership;
    } else if (breach && has_history(s, t)) {
        snprintf(text, sizeof text, "%s, so that changes of it may not have come: its changelog lacks for good what came between", breach);
        tr_snap_log(TR_OSLOG_WARN, t, text);
    }
}

/* In a publication that is not ours to alter, or without a replica identity. Else one of ours has it by the next look, and then another
 * membership. */
static void see_unpublished(struct tr_snapshot *s, struct tr_cap_table *t, const struct tr_cdc_table *d)
{
    char reason[400];
    if (!(s->unpublishable || d->no_identity) || tr_snap_under_way(t))
        return;
    if (d->no_identity && (t->ctl.state == TR_TABLE_NEW || t->ctl.state == TR_TABLE_NO_SNAPSHOT)) {
        tr_snap_keyless(s, t, d->unpublished, NULL);
        return;
    }
    snprintf(reason, sizeof reason, "%s. Changes of it do not come; a new snapshot is taken once it is published. tailrace check says more", d->unpublished);
    if (t->ctl.state == TR_TABLE_LIVE) {
        t->ctl.storage.membership = TR_SNAP_UNPUBLISHED;
        tr_snap_pause(s, t, reason);
    } else if (t->ctl.state == TR_TABLE_NEW && strcmp(t->ctl.reason, reason) != 0) {
        snprintf(t->ctl.reason, sizeof t->ctl.reason, "%s", reason);
        tr_snap_save(s, t, NULL);
    }
}

static void see_table(void *arg, const struct tr_cdc_table *d)
{
    struct tr_snapshot *s = arg;
    struct tr_capture *c = s->cap;
    struct tr_cap_table *t = tr_cap_table_of(c, d->ns, d->name);
    if (!t || t->heartbeat)
        return;
    struct tr_err err;
    if (!t->known) {
        if (c->control->ops->table_ensure(c->control, c->source_name, d->ns, d->name, &t->ctl, &err) < 0) {
            not_saved(s, &err);
            return;
        }
        t->known = true;
    }
    t->selected = true;
    set_identity(s, t, d->source_id);
    t->published = d->published;
    if (!d->published) {
        see_unpublished(s, t, d);
        return;
    }
    t->ctl.rows_estimate = d->rows_estimate;
    uint64_t per_row = d->rows_estimate ? d->bytes_estimate / d->rows_estimate : 0;
    uint64_t rows = per_row ? s->tuning.chunk_bytes / TR_MAX(per_row, 1) : 1000;
    rows = TR_MIN(TR_MAX(rows, 50), s->tuning.chunk_rows_max);
    struct tr_table_storage now = {tr_snap_fingerprint(d->source_id, d->storage_fingerprint), d->membership, d->filenode, d->attributes};
    struct tr_table_storage *known = t->snap && t->snap->next.fingerprint ? &t->snap->next : &t->ctl.storage;
    char why[400];
    if (t->ctl.state == TR_TABLE_NEW && d->key_ok) {
        t->ctl.storage = now;
    } else if (!d->key_ok && (t->ctl.state == TR_TABLE_NEW || t->ctl.state == TR_TABLE_NO_SNAPSHOT)) {
        see_keyless(s, t, d, &now);
    } else if (t->ctl.state == TR_TABLE_NO_SNAPSHOT) {
        t->ctl.state = TR_TABLE_NEW;
        t->ctl.storage = now;
    } else if (t->ctl.state == TR_TABLE_PAUSED && t->ctl.storage.membership == TR_SNAP_UNPUBLISHED) {
        tr_snap_log(TR_OSLOG_INFO, t, "is published again: taking a new snapshot");
        t->ctl.state = TR_TABLE_NEW;
        t->ctl.storage = now;
    } else if (t->ctl.state == TR_TABLE_LIVE || tr_snap_under_way(t)) {
        if (!is_due(s, t, known, &now, why, sizeof why)) {
            record(s, t, known, &now);
        } else {
            tr_snap_log(TR_OSLOG_WARN, t, why);
            if (tr_snap_under_way(t)) {
                t->snap->again = true;
                t->snap->next = now;
            } else {
                t->ctl.state = TR_TABLE_NEW;
                t->ctl.storage = now;
            }
        }
    }
    if (t->snap)
        t->snap->rows_per_chunk = rows;
    else if ((t->snap = tr_calloc(1, sizeof *t->snap))) {
        t->snap->table = t;
        t->snap->phase = SNAP_DONE;
        t->snap->rows_per_chunk = rows;
    }
}

void tr_snap_look(struct tr_snapshot *s)
{
    struct tr_err err;
    bool changed = false;
    int64_t now = tr_now_ns();
    if (now < s->tables_at_ns)
        return;
    s->tables_at_ns = now + TABLES_EVERY;
    int rc = s->session->ops->publish(s->session, in(CALL_NS), &changed, &err);
    s->unpublishable = rc == TR_REJECT;
    if (s->unpublishable) { /* what is published is looked at all the same */
        if (tr_oslog_failed(&s->trouble, &err))
            tr_oslog_err(TR_OSLOG_WARN, "snapshot", NULL, 0, &err);
        rc = TR_OK;
    }
    if (rc >= 0) {
        for (struct tr_cap_table *t = s->cap->tables; t; t = t->next)
            t->selected = t->published = false;
        rc = s->session->ops->tables(s->session, in(CALL_NS), see_table, s, &err);
    }
    if (rc < 0) {
        s->tables_at_ns = now + TR_NS_PER_S;
        if (tr_oslog_failed(&s->trouble, &err))
            tr_oslog_err(TR_OSLOG_WARN, "snapshot", NULL, 0, &err);
        return;
    }
    char lasted[TR_OSLOG_LASTED_CHARS];
    if (!s->unpublishable && tr_oslog_well(&s->trouble, lasted))
        tr_oslog_write(TR_OSLOG_INFO, "snapshot", "looking for tables again after %s", lasted);
    all_saved(s);
    /* a table that is gone keeps what the sinks have of it, and says so */
    for (struct tr_cap_table *t = s->cap->tables; t; t = t->next)
        if (t->known && !t->selected && t->ctl.state == TR_TABLE_LIVE)
            tr_snap_pause(s, t, "the table does not exist any more, or is not selected by the configuration");
    for (struct tr_cap_table *t = s->cap->tables; t; t = t->next)
        if (t->known && !t->selected && atomic_load(&t->source_id)) {
            tr_cap_stray(s->cap, t); /* what comes until it is seen again is not looked for */
            set_identity(s, t, 0);
        }
}

void tr_snap_begin_new(struct tr_snapshot *s)
{
    uint32_t running = 0;
    for (struct tr_cap_table *t = s->cap->tables; t; t = t->next)
        running += tr_snap_under_way(t);
    for (struct tr_cap_table *t = s->cap->tables; t && running < s->tuning.tables_max; t = t->next) {
        if (!t->known || !t->published || t->ctl.state != TR_TABLE_NEW || tr_snap_under_way(t))
            continue;
        struct tr_err err;
        if (tr_snap_begin(s, t, &err) < 0)
            not_saved(s, &err);
        else
            running++;
    }
}
