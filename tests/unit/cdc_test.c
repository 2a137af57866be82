/* What is pure in the platform's own room: may capture go on, what is the lag while no heartbeat comes through, what is noted of tables that strayed, when a look at the tables finds a new snapshot due. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/clock.h>

#include "agreement.h"
#include "alloc.h"
#include "check.h"
#include "control_memory.h"
#include "service_internal.h"
#include "snapshot_internal.h"

struct world {
    struct tr_cdc_identity id;
    struct tr_cdc_slot slot;
    struct tr_ctl_source src;
    struct tr_agreement_facts f;
};

/* A state directory that stopped cleanly, and its slot. */
static struct world *well(struct world *w)
{
    *w = (struct world){.id = {.system_id = "7", .timeline = 1},
                        .slot = {.exists = true, .confirmed = 100, .wal_status = "reserved"},
                        .src = {.system_id = "7", .timeline = 1, .slot = "ours", .epoch = 1, .confirm_lsn = 100, .log_offset = 50}};
    w->f = (struct tr_agreement_facts){
        .slot_name = "ours", .id = &w->id, .slot = &w->slot, .src = &w->src, .ledger_slot = "ours", .ledger = TR_SLOT_CREATED, .tail_offset = 50};
    return w;
}

static void is(const struct world *w, enum tr_agreement want, const char *why)
{
    char got[256];
    assert_int_equal(tr_agreement_decide(&w->f, got, sizeof got), want);
    if (!strstr(got, why) || (!*why && *got))
        fail_msg("'%s' does not say '%s'", got, why);
}

static void test_agreement(void **state)
{
    (void)state;
    struct world w;
    is(well(&w), TR_AGREE_RESUME, "");
    well(&w)->f.tail_offset = UINT64_MAX;
    is(&w, TR_AGREE_RESUME, "");
    well(&w)->f.tail_offset = 49;
    is(&w, TR_AGREE_NEW_EPOCH, "the change log ends at offset 49");
    well(&w)->slot.exists = false;
    is(&w, TR_AGREE_NEW_EPOCH, "slot ours is gone");
    well(&w)->slot.active = true;
    w.slot.active_pid = 42;
    is(&w, TR_AGREE_IN_USE, "server process 42");
    well(&w)->slot.confirmed = 101;
    is(&w, TR_AGREE_NEW_EPOCH, "confirmed up to");
    well(&w)->slot.published = 101;
    is(&w, TR_AGREE_NEW_EPOCH, "the publication was dropped");
    snprintf(well(&w)->slot.wal_status, sizeof w.slot.wal_status, "lost");
    is(&w, TR_AGREE_NEW_EPOCH, "lost WAL");
    well(&w)->id.timeline = 2;
    is(&w, TR_AGREE_NEW_EPOCH, "timeline 2, was on 1");
    snprintf(well(&w)->id.system_id, sizeof w.id.system_id, "8");
    is(&w, TR_AGREE_NEW_EPOCH, "another system");
    well(&w)->f.ledger = TR_SLOT_CREATING;
    is(&w, TR_AGREE_NEW_EPOCH, "never finished");
}

/* A slot that is there and not ours is nobody's to drop. */
static void test_agreement_of_strangers(void **state)
{
    (void)state;
    struct world w;
    memset(&well(&w)->src, 0, sizeof w.src);
    w.f.ledger = TR_SLOT_NONE;
    w.f.ledger_slot = "";
    is(&w, TR_AGREE_FOREIGN, "slot ours exists, but not in");
    w.slot.active = true; /* and that somebody reads it makes it no more ours */
    is(&w, TR_AGREE_FOREIGN, "slot ours exists, but not in");
    w.slot.exists = w.slot.active = false;
    is(&w, TR_AGREE_FIRST, "nothing has been captured yet");
    w.f.ledger = TR_SLOT_CREATING;
    w.f.ledger_slot = "ours";
    is(&w, TR_AGREE_FIRST, "never finished");
    /* the name was changed in the configuration */
    well(&w)->f.slot_name = "theirs";
    is(&w, TR_AGREE_FOREIGN, "slot theirs exists, but not in");
    w.slot.exists = false;
    is(&w, TR_AGREE_NEW_EPOCH, "slot theirs is configured, and until now it was ours");
}

/* Status, alarm and metric: one figure, which grows while nothing comes through. */
static void test_lag(void **state)
{
    (void)state;
    struct tr_service s = {.cfg = {.heartbeat_interval_ns = 5 * TR_NS_PER_S}, .started_us = 1000000};
    struct unit u = {.service = &s};
    assert_int_equal(tr_service_lag_us(&s, &u, 1000000), 0);
    assert_int_equal(tr_service_lag_us(&s, &u, 5000000), 0);
    assert_int_equal(tr_service_lag_us(&s, &u, 66000000), 60000000); /* nothing since the start, a minute after it was due */
    u.lag = (struct tr_apply_lag){.measured_us = 70000000, .end_to_end_us = 1234};
    assert_int_equal(tr_service_lag_us(&s, &u, 71000000), 1234);
    assert_int_equal(tr_service_lag_us(&s, &u, 75001000), 1234);
    assert_int_equal(tr_service_lag_us(&s, &u, 175000000), 100000000);
    s.cfg.heartbeat_interval_ns = 0; /* none: nothing can be said */
    assert_int_equal(tr_service_lag_us(&s, &u, 175000000), 1234);
}

static void test_ready(void **state)
{
    (void)state;
    struct tr_service s = {.started_us = 1};
    struct unit u = {.service = &s, .name = "capture", .state = UNIT_FAILED, .err = {.rc = TR_RETRY, .msg = "connection refused"}};
    char why[200];
    assert_false(tr_service_unit_ready(&u, why, sizeof why));
    assert_string_equal(why, "capture: failed: connection refused");
    u.state = UNIT_DRAINING;
    u.err = (struct tr_err){0};
    assert_false(tr_service_unit_ready(&u, why, sizeof why));
    assert_string_equal(why, "capture: draining");
}

/* Of a table that a snapshot has read, of one that is due, and of one that is not known. */
static void test_fingerprints(void **state)
{
    (void)state;
    assert_true(tr_snap_fingerprint(7, 0) == 0);
    static const uint64_t storage[] = {1, UINT32_MAX, UINT64_MAX, UINT64_C(5) << 32 | 5 /* its halves cancel out */};
    for (size_t i = 0; i < sizeof storage / sizeof *storage; i++) {
        uint64_t f = tr_snap_fingerprint(7, storage[i]), due = tr_snap_fingerprint_due(f);
        assert_true(f != due && due != tr_snap_fingerprint(8, storage[i]) && due != 0);
        assert_int_equal(tr_snap_fingerprint_source_id(f), 7);
        assert_int_equal(tr_snap_fingerprint_source_id(due), 7);
    }
}

/* A control store that refuses at first, while capture meets the table again. */
struct busy_store {
    struct tr_control control;
    struct tr_capture *cap;
    struct tr_cap_table *again;
    int refusals;
    uint64_t fingerprint;
};

static int busy_put(struct tr_control *c, const struct tr_ctl_table *v, struct tr_err *err)
{
    struct busy_store *b = (struct busy_store *)c;
    if (b->again)
        tr_cap_stray(b->cap, b->again);
    b->again = NULL;
    if (b->refusals-- > 0)
        return tr_err_set(err, TR_RETRY, TR_DOM_CONTROL, "the control store is busy");
    b->fingerprint = v->storage.fingerprint;
    return TR_OK;
}

/* Every stray is noted in the end, and none is counted that is not: while one is, capture records no position. */
static void test_strays(void **state)
{
    (void)state;
    static const struct tr_control_ops ops = {.table_put = busy_put};
    for (int refusals = 0; refusals < 3; refusals++)
        for (int again = 0; again < 2; again++) {
            uint64_t read = tr_snap_fingerprint(7, 9);
            struct tr_cap_table t = {.ns = "public", .name = "a", .ctl = {.state = TR_TABLE_LIVE, .storage.fingerprint = read}};
            struct tr_capture cap = {.tables = &t};
            struct busy_store b = {.control.ops = &ops, .cap = &cap, .again = again ? &t : NULL, .refusals = refusals};
            struct tr_snapshot s = {.cap = &cap};
            cap.control = &b.control;
            tr_cap_stray(&cap, &t);
            for (int i = 0; i < refusals; i++) {
                tr_snap_note_strays(&s);
                assert_int_equal(cap.strays, 1);
                assert_true(t.ctl.storage.fingerprint == read);
                assert_true(s.note_trouble.since_us != 0);
            }
            tr_snap_note_strays(&s);
            tr_snap_note_strays(&s);
            assert_int_equal(cap.strays, 0);
            assert_true(b.fingerprint == tr_snap_fingerprint_due(read));
            assert_true(s.note_trouble.since_us == 0);
        }
}

static int short_log(struct tr_log *l, uint32_t partition, struct tr_log_stats *ret, struct tr_err *err)
{
    (void)l;
    (void)partition;
    (void)err;
    *ret = (struct tr_log_stats){.durable_offset = 50, .appended_offset = 50};
    return TR_OK;
}

static void keep_table(void *arg, const struct tr_ctl_sink_table *t)
{
    struct tr_ctl_sink_table *v = arg;
    v[t->table_id] = *t;
}

/* A log that ends before what was recorded: only what was beyond its end goes back to it, and the source is told, so that a new epoch begins. */
static void test_set_back(void **state)
{
    (void)state;
    static const struct tr_log_ops log_ops = {.stats = short_log};
    struct tr_log log = {.ops = &log_ops, .partitions = 1};
    struct tr_control *c = NULL;
    struct tr_err err;
    uint64_t token, at = 0;
    assert_int_equal(tr_control_memory_new(&c, &err), TR_OK);
    assert_int_equal(c->ops->lease_take(c, TR_SERVICE_LEASE, "we", 10000, &token, &err), TR_OK);
    c->ops->act_under(c, TR_SERVICE_LEASE, token);
    struct tr_ctl_source src = {.system_id = "7", .timeline = 1, .slot = "ours", .epoch = 1, .confirm_lsn = 100, .log_offset = 40};
    assert_int_equal(c->ops->source_bind(c, "shop", &src, &err), TR_OK);
    struct tr_ctl_sink_table beyond[] = {
        {.table_id = 1, .state = TR_ST_LIVE, .mirror_live = true, .snapshot_id = 5, .begin_offset = 10, .end_offset = 20, .log_from = UINT64_MAX},
        {.table_id = 2, .state = TR_ST_PAUSED, .end_offset = UINT64_MAX, .pause_offset = 70, .log_from = 90},
    };
    struct tr_ctl_sink_table within = {.table_id = 1, .state = TR_ST_LIVE, .mirror_live = true, .snapshot_id = 5, .begin_offset = 10, .end_offset = 20, .log_from = UINT64_MAX}, seen[3];
    struct tr_ctl_offset o[] = {{.sink = "a", .offset = 100, .tables = beyond, .n_tables = 2}, {.sink = "b", .offset = 50, .tables = &within, .n_tables = 1}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(c->ops->offset_commit(c, &o[i], &err), TR_OK);
    struct tr_service s = {.cfg = {.control = c, .log = &log, .source_name = "shop"}};
    tr_control_memory_fail_next(c, TR_RETRY);
    assert_int_equal(tr_service_set_back(&s, &err), TR_RETRY);
    for (int again = 0; again < 2; again++) { /* a crash may lie between */
        assert_int_equal(tr_service_set_back(&s, &err), TR_OK);
        assert_int_equal(c->ops->source_get(c, "shop", &src, &err), TR_OK);
        assert_int_equal(src.log_offset, 100);
        assert_int_equal(src.confirm_lsn, 100);
        assert_int_equal(c->ops->offset_get(c, "a", 0, &at, &err), TR_OK);
        assert_int_equal(at, 50);
        assert_int_equal(c->ops->sink_table_list(c, "a", keep_table, seen, &err), TR_OK);
        assert_int_equal(seen[1].state, TR_ST_GAPPED);
        assert_false(seen[1].mirror_live);
        assert_int_equal(seen[2].state, TR_ST_PAUSED);
        assert_int_equal(seen[2].pause_offset, 50);
        assert_int_equal(seen[2].log_from, 50);
        assert_int_equal(c->ops->offset_get(c, "b", 0, &at, &err), TR_OK);
        assert_int_equal(at, 50);
        assert_int_equal(c->ops->sink_table_list(c, "b", keep_table, seen, &err), TR_OK);
        assert_int_equal(seen[1].state, TR_ST_LIVE);
    }
    c->ops->close(c);
}

/* A source with one table, and a control store that takes what it is given. */
struct looked {
    struct tr_cdc_session session;
    struct tr_control control;
    struct tr_cdc_table found;
    int published; /* what publish answers */
    int puts;
    struct tr_ctl_table put;
};

static int looked_publish(struct tr_cdc_session *s, int64_t deadline_ns, bool *ret_changed, struct tr_err *err)
{
    (void)deadline_ns;
    *ret_changed = false;
    struct looked *l = tr_container_of(s, struct looked, session);
    return l->published < 0 ? tr_err_set(err, l->published, TR_DOM_SOURCE, "not ours") : TR_OK;
}

static int looked_tables(struct tr_cdc_session *s, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_cdc_table *t), void *arg, struct tr_err *err)
{
    (void)deadline_ns;
    (void)err;
    cb(arg, &tr_container_of(s, struct looked, session)->found);
    return TR_OK;
}

static int looked_put(struct tr_control *c, const struct tr_ctl_table *v, struct tr_err *err)
{
    (void)err;
    struct looked *l = tr_container_of(c, struct looked, control);
    l->puts++;
    l->put = *v;
    return TR_OK;
}

static int looked_alarm_set(struct tr_control *c, const char *kind, const char *subject, const char *text, struct tr_err *err)
{
    (void)c, (void)kind, (void)subject, (void)text, (void)err;
    return TR_OK;
}

static int looked_pin(struct tr_log *l, const char *who, uint32_t partition, uint64_t offset, struct tr_err *err)
{
    (void)l, (void)who, (void)partition, (void)offset, (void)err;
    return TR_OK;
}

static void look_at(struct tr_snapshot *s)
{
    s->tables_at_ns = 0;
    tr_snap_look(s);
}

static void test_looks(void **state)
{
    (void)state;
    static const struct tr_cdc_session_ops session_ops = {.publish = looked_publish, .tables = looked_tables};
    static const struct tr_control_ops control_ops = {.table_put = looked_put, .alarm_set = looked_alarm_set};
    static const struct tr_log_ops log_ops = {.pin = looked_pin};
    const struct tr_table_storage was = {tr_snap_fingerprint(7, 9), UINT64_C(5) << 32 | 6, 70, 80};
    const struct {
        struct tr_table_storage known;
        uint64_t membership, filenode, attributes;
        bool due;
    } v[] = {
        {was, was.membership, 70, 80, false},
        {{was.fingerprint, 0, 0, 0}, was.membership, 70, 80, false}, /* of a release before these were recorded */
        {was, was.membership + 1, 70, 80, true},
        {was, was.membership + (UINT64_C(1) << 32), 70, 80, true},
        {was, was.membership, 71, 80, false}, /* VACUUM FULL */
        {was, was.membership, 70, 81, false}, /* SET STATISTICS */
        {was, was.membership, 71, 81, true},
        {{was.fingerprint, was.membership, 0, 80}, was.membership, 71, 81, false},
    };
    for (size_t i = 0; i < TR_ARRAY_LEN(v); i++)
        for (int under_way = 0; under_way < 2; under_way++) {
            struct tr_snap *snap = tr_calloc(1, sizeof *snap);
            assert_non_null(snap);
            snap->phase = under_way ? SNAP_CHUNKS : SNAP_DONE;
            struct tr_cap_table t = {.ns = "public", .name = "a", .snap = snap, .known = true, .source_id = 7,
                                     .ctl = {.state = under_way ? TR_TABLE_CHUNKS : TR_TABLE_LIVE, .storage = v[i].known}};
            struct looked l = {.session.ops = &session_ops, .control.ops = &control_ops,
                               .found = {.ns = "public", .name = "a", .published = true, .key_ok = true, .storage_fingerprint = 9, .source_id = 7,
                                         .membership = v[i].membership, .filenode = v[i].filenode, .attributes = v[i].attributes}};
            struct tr_log log = {.ops = &log_ops};
            struct tr_capture cap = {.tables = &t, .control = &l.control, .log = &log};
            struct tr_snapshot s = {.cap = &cap, .session = &l.session};
            const struct tr_table_storage now = {was.fingerprint, v[i].membership, v[i].filenode, v[i].attributes};
            tr_mutex_init(&cap.lock);
            tr_map_init(&cap.by_name);
            tr_u64map_init(&s.ids);
            assert_int_equal(tr_map_put(&cap.by_name, tr_slice_of("public\0a", 8), &t, NULL), 0);
            snap->table = &t;
            l.found.published = false; /* what it has meanwhile is not recorded */
            look_at(&s);
            assert_memory_equal(&t.ctl.storage, &v[i].known, sizeof now);
            l.found.published = true;
            look_at(&s);
            assert_true(under_way ? snap->again == v[i].due : t.ctl.state == (v[i].due ? TR_TABLE_NEW : TR_TABLE_LIVE));
            if (under_way && v[i].due) { /* recorded only when it starts over */
                assert_memory_equal(&t.ctl.storage, &v[i].known, sizeof now);
                assert_memory_equal(&snap->next, &now, sizeof now);
            } else {
                assert_memory_equal(&t.ctl.storage, &now, sizeof now);
                assert_int_equal(l.puts, !v[i].due && memcmp(&now, &v[i].known, sizeof now) != 0);
            }
            /* not ours to publish: paused until it is, and then another snapshot */
            t.ctl.state = TR_TABLE_LIVE;
            snap->phase = SNAP_DONE;
            snap->next = (struct tr_table_storage){0};
            l.published = TR_REJECT;
            l.found.published = false;
            look_at(&s);
            look_at(&s);
            assert_int_equal(l.put.state, TR_TABLE_PAUSED);
            assert_true(l.put.storage.membership == TR_SNAP_UNPUBLISHED);
            l.found.published = true; /* others are not yet */
            look_at(&s);
            assert_int_equal(t.ctl.state, TR_TABLE_NEW);
            assert_memory_equal(&t.ctl.storage, &now, sizeof now);
            tr_mutex_done(&cap.lock);
            tr_map_done(&cap.by_name);
            tr_u64map_done(&s.ids);
            tr_free(snap);
        }
}

int main(void)
{
    tr_oslog_setup(TR_OSLOG_OFF, false, 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_agreement_of_strangers),
        cmocka_unit_test(test_lag),
        cmocka_unit_test(test_ready),
        cmocka_unit_test(test_fingerprints),
        cmocka_unit_test(test_strays),
        cmocka_unit_test(test_set_back),
        cmocka_unit_test(test_looks),
    };
    return cmocka_run_group_tests_name("cdc", tests, NULL, NULL);
}
