/* cdc_events.c: what happens in the world, step by step: clients of the source, its end, the death of tailrace, sinks, disk, network, clock. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cdc_world.h"
#include "check.h"
#include "control_memory.h"
#include "fs_sim.h"
#include "sched_sim.h"

void sim_forget_ended(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sim_w.n_open; i++)
        if (pgmodel_open(&sim_w.pg, sim_w.open[i]))
            sim_w.open[n++] = sim_w.open[i];
    sim_w.n_open = n;
}

static int some_open(enum pg_tx_state state)
{
    sim_forget_ended();
    int found[OPEN_TX_MAX], n = 0;
    for (uint32_t i = 0; i < sim_w.n_open; i++)
        if (sim_w.pg.tx[sim_w.open[i]].state == state)
            found[n++] = sim_w.open[i];
    return n ? found[sim_below((uint64_t)n)] : -1;
}

static bool key_there(uint32_t table, uint32_t key)
{
    return pgmodel_now(&sim_w.pg, table, key).there;
}

static void client_op(void)
{
    static const enum pg_kind mixed[16] = {K_UPDATE, K_UPDATE, K_UPDATE, K_UPDATE_T, K_UPDATE_T, K_INSERT, K_INSERT, K_INSERT, K_INSERT, K_DELETE, K_DELETE, K_DELETE, K_MOVE, K_MOVE, K_MOVE, K_TRUNCATE};
    static const enum pg_kind moving[16] = {K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_MOVE, K_UPDATE, K_UPDATE, K_UPDATE_T, K_INSERT, K_INSERT, K_INSERT, K_DELETE, K_DELETE};
    int tx = some_open(TX_ACTIVE);
    if (tx < 0)
        return;
    if (sim_w.pg.tx[tx].n_pending) {
        pgmodel_check(&sim_w.pg, tx);
        return;
    }
    enum pg_kind kind = (sim_below(4) < sim_w.move_bias ? moving : mixed)[sim_below(16)];
    if (kind == K_TRUNCATE && (!sim_w.on[F_truncate] || sim_below(4)))
        kind = K_INSERT;
    uint32_t table = (uint32_t)sim_below(PG_TABLES);
    bool same_key = false, collides = false;
    if (sim_w.straddles && sim_chance(3, 4)) {
        bool old = tx == sim_w.open[0];
        table = PG_TABLES - 1;
        kind = !old ? (sim_chance(3, 4) ? K_UPDATE_T : K_INSERT) : pgmodel_publishes(&sim_w.pg, table) ? K_DELETE : K_UPDATE_T;
        same_key = sim_chance(1, 2);
        /* its record lies before the publication, and it waits for the old transaction, whose DELETE comes behind it */
        collides = same_key && !old && !pgmodel_publishes(&sim_w.pg, table);
        if (collides)
            kind = K_INSERT;
    }
    uint32_t a = same_key ? 1 : 1 + (uint32_t)sim_below(PG_KEYS), b = 1 + (uint32_t)sim_below(PG_KEYS);
    for (int i = 0; !collides && i < PG_KEYS && key_there(table, a) == (kind == K_INSERT); i++)
        a = a % PG_KEYS + 1;
    for (int i = 0; kind == K_MOVE && i < PG_KEYS && (b == a || key_there(table, b)); i++)
        b = b % PG_KEYS + 1;
    bool did = pgmodel_op(&sim_w.pg, tx, kind, table, a, b, collides || (sim_w.on[F_unique_waits] && sim_chance(1, 3)));
    sim_trace("T%d %s t%u %u%s%u%s", tx, (const char *[]){"INSERT", "UPDATE", "UPDATE t", "MOVE", "DELETE", "TRUNCATE", "BEAT"}[kind], table, a, kind == K_MOVE ? " to " : " (", b,
          did ? (kind == K_MOVE ? "" : ")") : " not now");
}

static void commit(int tx)
{
    sim_trace("T%d commits (xid %" PRIu64 ")", tx, sim_w.pg.tx[tx].xid);
    pgmodel_commit(&sim_w.pg, tx);
}

static void break_continuity(void)
{
    sim_w.broken = true;
}

static void restart_source(void)
{
    sim_follow();
    sim_w.n_open = 0;
}

enum act { A_NEW, A_OP, A_COMMIT, A_ABORT, A_SAVEPOINT, A_ROLLBACK_TO, A_SHOW, A_FLUSH, A_REPLAY, A_CRASH_SOURCE, A_SOURCE_UP, A_KILL, A_STOP, A_START, A_SINK, A_DISK, A_RESNAPSHOT, A_SLOT, A_FAILOVER, A_CUT, A_SEND, A_ADD, A_UNPUBLISH, A_REFUSE, A_CURE,
           A_LOOK, A_CLOCK, A_NOTHING, A_COUNT };

static enum act choose(void)
{
    uint32_t weight[A_COUNT] = {0}, sum = 0;
    sim_forget_ended();
    bool up = sim_w.pg.up;
    if (up && sim_w.n_open < OPEN_TX_MAX && sim_w.pg.n_tx < PG_TX_MAX - 64)
        weight[A_NEW] = sim_w.n_open ? 2 + sim_w.spread * 2 : 8;
    if (up && sim_w.n_open && sim_w.pg.n_wal < PG_REC_MAX - 1024 && sim_w.pg.n_ver < PG_VER_MAX - 64) {
        weight[A_OP] = 12;
        weight[A_COMMIT] = sim_w.spread ? 3 : 6;
        weight[A_ABORT] = 1;
        weight[A_SAVEPOINT] = weight[A_ROLLBACK_TO] = 1;
    }
    weight[A_SHOW] = 6;
    weight[A_FLUSH] = sim_w.pg.flushed < sim_w.pg.n_wal ? 4 : 0;
    weight[A_REPLAY] = sim_w.pg.replayed < sim_w.pg.flushed ? 4 : 0;
    weight[A_CRASH_SOURCE] = up && sim_w.on[F_source_crashes] ? sim_w.crash_bias : 0;
    weight[A_SOURCE_UP] = up ? 0 : 6;
    weight[A_KILL] = sim_w.process && sim_w.on[F_tailrace_crashes] ? 1 + 2 * sim_w.broken : 0; /* the beginning of an epoch is the place to meet */
    weight[A_STOP] = sim_w.process && sim_w.running && !sim_below(8) ? 1 : 0;
    weight[A_START] = sim_w.process ? 0 : 8;
    weight[A_SINK] = sim_w.on[F_sink_faults] ? 2 : 0;
    weight[A_DISK] = sim_w.on[F_disk_faults] ? 1 : 0;
    weight[A_RESNAPSHOT] = sim_w.running && sim_w.on[F_resnapshot] && !sim_below(4) ? 1 : 0;
    weight[A_SLOT] = up && sim_w.on[F_slot_loss] && !sim_below(16) ? 1 : 0;
    weight[A_FAILOVER] = up && sim_w.on[F_failover] && !sim_below(16) ? 1 : 0;
    weight[A_CUT] = sim_w.on[F_network] ? 1 : 0;
    weight[A_SEND] = sim_w.on[F_lag] ? 3 : 0;
    for (int t = 0; t < PG_TABLES; t++)
        weight[A_ADD] |= sim_w.pg.hidden[t];
    weight[A_UNPUBLISH] = up && sim_w.on[F_unpublish] && !sim_below(8) ? 1 : 0;
    weight[A_REFUSE] = sim_w.on[F_refuse] && !sim_below(4) ? 1 : 0;
    weight[A_CURE] = sim_w.on[F_refuse] ? 1 : 0;
    weight[A_LOOK] = 4;
    weight[A_CLOCK] = sim_w.on[F_clock] && !sim_below(8) ? 1 : 0;
    weight[A_NOTHING] = 2;
    for (int i = 0; i < A_COUNT; i++)
        sum += weight[i];
    uint64_t r = sim_below(sum);
    for (int i = 0; i < A_COUNT; i++) {
        if (r < weight[i])
            return (enum act)i;
        r -= weight[i];
    }
    return A_NOTHING;
}

void sim_disk_fault(uint32_t within)
{
    sim_w.c->disk_faults++;
    tr_fs_sim_fail_nth(sim_w.fs, 1 + sim_below(within), sim_chance(1, 2) ? ENOSPC : EIO);
}

static void sink_fault(void)
{
    struct tr_mem_sink *s = sim_w.sinks[sim_below(SINKS)];
    struct tr_mem_outcome o = {.times = 1 + (uint32_t)sim_below(3)};
    switch (sim_below(4)) {
    case 0:
        o.rc = TR_RETRY;
        sim_w.c->sink_retries++;
        break;
    case 1:
        o.rc = TR_RETRY;
        o.apply = true;
        sim_w.c->sink_applied_retries++;
        break;
    case 2:
        o.delay_ns = (int64_t)sim_below(400) * MS;
        sim_w.c->sink_delays++;
        break;
    default:
        o.rc = TR_RETRY;
        o.apply = sim_chance(1, 2);
        o.delay_ns = (int64_t)sim_below(2000) * MS;
        sim_w.c->sink_delays++;
    }
    o.blame = TR_BLAME_ENDPOINT;
    tr_mem_script(s, &o);
}

static void refuse(void)
{
    static const enum tr_target_variant variants[] = {TR_TARGET_MIRROR, TR_TARGET_SHADOW, TR_TARGET_CHANGELOG};
    struct states s;
    sim_look_at_states(&s);
    uint32_t t = (uint32_t)sim_below(PG_TABLES);
    if (!s.id[t])
        return;
    uint64_t k = sim_below(SINKS), v = sim_below(TR_ARRAY_LEN(variants));
    sim_w.c->refusals++;
    sim_trace("sink %d refuses t%u, variant %d", (int)k, t, variants[v]);
    tr_mem_taking(sim_w.sinks[k], s.id[t], variants[v], sim_chance(1, 2) ? TR_MEM_REFUSES_ROWS : TR_MEM_REFUSES_BINDS);
}

void sim_cure(void)
{
    struct states s;
    sim_look_at_states(&s);
    for (int k = 0; k < SINKS; k++)
        for (int t = 0; t < PG_TABLES; t++) {
            char name[16];
            for (int v = TR_TARGET_MIRROR; s.id[t] && v <= TR_TARGET_CHANGELOG; v++)
                tr_mem_taking(sim_w.sinks[k], s.id[t], (enum tr_target_variant)v, TR_MEM_TAKES);
            snprintf(name, sizeof name, "public.t%d", t);
            if (s.sink[k][t] == TR_ST_PAUSED && sim_w.control->ops->request_put(sim_w.control, "sim", "resume", k ? "two" : "one", name, NULL) >= 0)
                sim_w.c->resumes++;
        }
}

static void request_snapshot(void)
{
    char name[16];
    snprintf(name, sizeof name, "public.t%u", (unsigned)sim_below(PG_TABLES));
    if (sim_w.control->ops->request_put(sim_w.control, "sim", "resnapshot", "", name, NULL) >= 0)
        sim_w.c->resnapshots++;
    sim_trace("resnapshot %s", name);
}

void sim_step(void)
{
    struct pgmodel *pg = &sim_w.pg;
    int tx;
    enum act a = choose();
    switch (a) {
    case A_NEW:
        sim_w.open[sim_w.n_open++] = pgmodel_begin(pg);
        break;
    case A_OP:
        client_op();
        break;
    case A_COMMIT:
        if ((tx = some_open(TX_ACTIVE)) >= 0 && !pg->tx[tx].n_pending && !(sim_w.long_tx && tx == sim_w.open[0] && sim_below(24)))
            commit(tx);
        break;
    case A_ABORT:
        if ((tx = some_open(TX_ACTIVE)) >= 0 && !(sim_w.long_tx && tx == sim_w.open[0])) {
            sim_trace("T%d aborts", tx);
            pgmodel_abort(pg, tx);
        }
        break;
    case A_SAVEPOINT:
        if ((tx = some_open(TX_ACTIVE)) >= 0 && !pg->tx[tx].n_pending)
            pgmodel_savepoint(pg, tx);
        break;
    case A_ROLLBACK_TO:
        if ((tx = some_open(TX_ACTIVE)) >= 0) {
            sim_trace("T%d rolls back to its savepoint %d", tx, pg->tx[tx].sub);
            pgmodel_rollback_to(pg, tx);
        }
        break;
    case A_SHOW:
        if ((tx = some_open(TX_RECORDED)) >= 0 && pgmodel_can_show(pg, tx)) {
            sim_trace("T%d is visible", tx);
            pgmodel_show(pg, tx);
        }
        break;
    case A_FLUSH:
        pgmodel_flush(pg, sim_chance(1, 2) ? pg->n_wal : pg->flushed + 1 + (uint32_t)sim_below(pg->n_wal - pg->flushed));
        break;
    case A_REPLAY:
        pg->replayed += sim_chance(1, 2) ? pg->flushed - pg->replayed : 1 + (uint32_t)sim_below(pg->flushed - pg->replayed);
        break;
    case A_CRASH_SOURCE:
        sim_trace("the server crashes, %u of %u records flushed", pg->flushed, pg->n_wal);
        restart_source();
        pgmodel_crash(pg);
        break;
    case A_SOURCE_UP:
        pg->up = true;
        break;
    case A_KILL:
        sim_kill_process();
        break;
    case A_STOP:
        sim_stop_process();
        break;
    case A_START:
        sim_start_process();
        break;
    case A_SINK:
        sink_fault();
        break;
    case A_DISK:
        sim_disk_fault(20);
        break;
    case A_RESNAPSHOT:
        request_snapshot();
        break;
    case A_SLOT:
        sim_trace("the slot is lost");
        break_continuity();
        pg->c->slots_lost++;
        pg->boot++;
        if (sim_chance(1, 2))
            pg->slot = (struct pg_slot){0};
        else
            pg->slot.lost = true;
        pg->slot.active = NULL;
        break;
    case A_FAILOVER:
        sim_trace("the standby is promoted, %u of %u records replayed", pg->replayed, pg->n_wal);
        restart_source();
        break_continuity();
        pgmodel_promote(pg);
        sim_w.n_history = 0;
        sim_begin_past();
        break;
    case A_CUT:
        sim_w.c->network_cuts++;
        if (pg->cut && sim_chance(1, 2))
            pg->boot++; /* and the connections are gone */
        pg->cut = !pg->cut;
        break;
    case A_SEND:
        if (pg->sent_max < pg->flushed)
            pg->sent_max += sim_chance(1, 2) ? pg->flushed - pg->sent_max : 1 + (uint32_t)sim_below(pg->flushed - pg->sent_max);
        break;
    case A_ADD:
        for (int t = 0; t < PG_TABLES; t++)
            sim_w.c->tables_added += pg->hidden[t];
        memset(pg->hidden, 0, sizeof pg->hidden);
        break;
    case A_UNPUBLISH:
        sim_w.c->unpublished++;
        break_continuity(); /* until the next look the mirror lacks what is not sent */
        pgmodel_publish(pg, (uint32_t)sim_below(PG_TABLES), false);
        break;
    case A_REFUSE:
        refuse();
        break;
    case A_CURE:
        sim_cure();
        break;
    case A_LOOK:
        sim_look_at_mirrors();
        break;
    case A_CLOCK:
        sim_w.c->clock_steps++;
        tr_sched_step_wall((int64_t)sim_below(7200) * 1000000 - INT64_C(3600000000));
        break;
    default:
        break;
    }
}

void sim_end_transactions(void)
{
    struct pgmodel *pg = &sim_w.pg;
    for (int guard = 0; guard < 1000; guard++) {
        sim_forget_ended();
        if (!sim_w.n_open)
            return;
        bool progress = false;
        for (uint32_t i = 0; i < sim_w.n_open; i++) {
            int tx = sim_w.open[i];
            if (pg->tx[tx].state == TX_RECORDED) {
                pgmodel_flush(pg, pg->n_wal);
                pgmodel_show(pg, tx);
                progress = true;
            } else if (pg->tx[tx].n_pending == 0) {
                commit(tx);
                progress = true;
            } else {
                uint32_t before = pg->tx[tx].n_pending;
                progress |= pgmodel_check(pg, tx) || pg->tx[tx].n_pending < before;
            }
        }
        if (!progress)
            pgmodel_abort(pg, sim_w.open[sim_w.n_open - 1]); /* a deadlock */
    }
    sim_fail("the model's transactions do not end");
}

