/*
 * cdc_oracle.c: what must be true: the past of the source after the model of it, the mirrors, the log, the changelogs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cdc_world.h"
#include "check.h"
#include "control_memory.h"
#include "log.h"
#include "sched_sim.h"

/* ---- for people ---- */

void sim_open_log(void)
{
    struct tr_log_options lo;
    tr_log_options_init(&lo);
    lo.dir = "/state/log";
    lo.segment_bytes = sim_w.segment_bytes;
    lo.fs = sim_w.fs;
    lo.sync_thread = false;
    struct tr_err err = {0};
    if (tr_log_embedded_open(&lo, &sim_w.log, &err) < 0 && !sim_w.trace)
        sim_fail("the log cannot be read: %s", err.msg);
}

static void dump_written(void *arg, const struct tr_mem_row *r)
{
    fprintf(stderr, "sink %d batch %" PRIu64 " table %u variant %d %s version %" PRIu64 " flags %x key %.*s", *(const int *)arg, r->batch, r->table_id, r->variant, tr_op_name(r->op), r->version, r->flags,
            (int)r->key.n, (const char *)r->key.p);
    for (uint32_t i = 0; i < r->row.n; i++)
        fprintf(stderr, " %d:%.*s", r->row.state[i], r->row.state[i] == TR_PRESENT ? (int)r->row.v[i].n : 0, (const char *)r->row.v[i].p);
    fprintf(stderr, "\n");
}

static void dump_row(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    const int *who = arg;
    fprintf(stderr, "mirror %d table %d key %.*s version %" PRIu64 "%s:", who[0], who[1], (int)key.n, (const char *)key.p, version, deleted ? " deleted" : "");
    for (uint32_t i = 0; i < row->n; i++)
        fprintf(stderr, " %d:%.*s", row->state[i], row->state[i] == TR_PRESENT ? (int)row->v[i].n : 0, (const char *)row->v[i].p);
    fprintf(stderr, "\n");
}

/* For --trace: the WAL, and the log. */
void sim_dump(void)
{
    static const char *const kinds[] = {"INSERT", "UPDATE", "UPDATE t", "MOVE", "DELETE", "TRUNCATE", "BEAT"}, *const types[] = {"", "COMMIT", "abort", "sub abort", "restart"};
    struct tr_log_reader *r = NULL;
    struct tr_frame f[64];
    int n;
    if (!sim_w.trace)
        return;
    for (uint32_t i = 0; i < sim_w.pg.n_wal; i++) {
        const struct pg_rec *c = &sim_w.pg.wal[i];
        if (c->type != REC_CHANGE)
            fprintf(stderr, "wal %u %" PRIx64 " T%d %s\n", i, pg_lsn(i), c->tx, types[c->type]);
        else
            fprintf(stderr, "wal %u %" PRIx64 " T%d (top %d) xid %" PRIu64 " %s t%u %u -> %u (%u, %s%u)%s\n", i, pg_lsn(i), c->tx, pgmodel_top(&sim_w.pg, c->tx), c->xid, kinds[c->kind], c->table, c->k1, c->k2,
                    c->a, c->unchanged ? "unchanged " : "", c->t, pgmodel_is_published(&sim_w.pg, i) ? "" : " unpublished");
    }
    if (!sim_w.log)
        sim_open_log();
    if (!sim_w.log || sim_w.log->ops->reader_new(sim_w.log, 0, 0, &r, NULL) < 0)
        return;
    while ((n = tr_log_reader_poll(r, f, TR_ARRAY_LEN(f), NULL)) > 0)
        for (int i = 0; i < n; i++)
            fprintf(stderr, "log %" PRIu64 " %s table %u snapshot %" PRIu64 " version %" PRIu64 " commit %" PRIx64 "/%u xid %" PRIu64 " H %" PRIx64 " flags %x key %.*s old %.*s image %.*s\n", f[i].offset,
                    tr_op_name(f[i].change.op), f[i].table_id, f[i].change.snapshot_id, f[i].change.version, f[i].change.commit_lsn, f[i].change.ordinal, f[i].change.xid, f[i].change.end_lsn, f[i].change.flags, (int)f[i].change.key.n,
                    (const char *)f[i].change.key.p, (int)f[i].change.old_key.n, (const char *)f[i].change.old_key.p, (int)f[i].image.n, (const char *)f[i].image.p);
    r->ops->free(r);
    for (int k = 0; k < SINKS; k++)
        tr_mem_each_row(sim_w.sinks[k], dump_written, &k);
    for (int k = 0; k < SINKS; k++)
        for (uint32_t t = 1; t < 5; t++)
            tr_mem_read_back(sim_w.sinks[k], t, TR_TARGET_MIRROR, dump_row, &(int[]){k, (int)t});
}

/* ---- states of tables, as the control store has them ---- */

static void see_capture(void *arg, const struct tr_ctl_table *t)
{
    struct states *s = arg;
    if (strcmp(t->ns, "public") != 0)
        return;
    uint32_t i = (uint32_t)(t->name[1] - '0');
    s->capture[i] = t->state;
    s->id[i] = t->table_id;
    if (t->state != TR_TABLE_LIVE)
        snprintf(s->reason, sizeof s->reason, "%s: %.80s", t->name, t->reason);
}

static void see_sink(void *arg, const struct tr_ctl_sink_table *t)
{
    struct states *s = arg;
    for (int i = 0; i < PG_TABLES; i++)
        if (s->id[i] && s->id[i] == t->table_id)
            s->sink[s->n][i] = t->state;
}

void sim_look_at_states(struct states *s)
{
    memset(s, 0, sizeof *s);
    sim_w.control->ops->table_list(sim_w.control, "shop", see_capture, s, NULL);
    for (s->n = 0; s->n < SINKS; s->n++)
        sim_w.control->ops->sink_table_list(sim_w.control, s->n ? "two" : "one", see_sink, s, NULL);
}

/* ---- the past ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
    return tr_splitmix64(&h);
}

static uint64_t hash_table(uint32_t table, const struct pg_row *rows)
{
    uint64_t h = table + 1;
    for (uint32_t k = 1; k <= PG_KEYS; k++)
        if (rows[k].there)
            h = mix(mix(mix(h, k), rows[k].a), rows[k].t);
    return h;
}

static void remember(void)
{
    TR_ASSERT(sim_w.n_history < HISTORY_MAX);
    struct history *h = &sim_w.history[sim_w.n_history++];
    for (uint32_t t = 0; t < PG_TABLES; t++) {
        h->hash[t] = hash_table(t, sim_w.past[t]);
    }
}

static void past_change(uint32_t rec)
{
    const struct pg_rec *r = &sim_w.pg.wal[rec];
    if (r->kind == K_BEAT)
        return;
    struct pg_row *rows = sim_w.past[r->table];
    if (r->kind == K_TRUNCATE)
        memset(rows, 0, sizeof sim_w.past[0]);
    else if (r->kind == K_MOVE || r->kind == K_DELETE)
        rows[r->k1].there = false;
    if (r->kind != K_TRUNCATE && r->kind != K_DELETE)
        rows[r->k2] = (struct pg_row){true, r->a, r->t};
}

void sim_begin_past(void)
{
    memset(sim_w.past, 0, sizeof sim_w.past);
    for (uint32_t i = 0; i < sim_w.pg.n_ver; i++)
        if (sim_w.pg.ver[i].xmin == 0)
            sim_w.past[sim_w.pg.ver[i].table][sim_w.pg.ver[i].key] = (struct pg_row){true, sim_w.pg.ver[i].a, sim_w.pg.ver[i].t};
    sim_w.history_rec = 0;
    remember();
}

static bool survives(int tx)
{
    return sim_w.pg.tx[tx].state != TX_ABORTED;
}

/* Follows the commits that are flushed. */
void sim_follow(void)
{
    for (; sim_w.history_rec < sim_w.pg.flushed; sim_w.history_rec++) {
        const struct pg_rec *c = &sim_w.pg.wal[sim_w.history_rec];
        if (c->type != REC_COMMIT)
            continue;
        for (uint32_t i = 0; i < sim_w.history_rec; i++)
            if (sim_w.pg.wal[i].type == REC_CHANGE && pgmodel_top(&sim_w.pg, sim_w.pg.wal[i].tx) == c->tx && survives(sim_w.pg.wal[i].tx))
                past_change(i);
        remember();
    }
}

/* ---- what the mirrors show ---- */

struct seen {
    struct pg_row rows[PG_KEYS + 1];
    bool odd;
};

static uint32_t number(struct tr_slice v)
{
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)v.n, (const char *)v.p);
    return (uint32_t)strtoul(text, NULL, 10);
}

static void see(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    struct seen *s = arg;
    (void)key;
    (void)version;
    if (deleted)
        return;
    uint32_t k = row->n == 3 && row->state[0] == TR_PRESENT ? number(row->v[0]) : 0;
    if (k < 1 || k > PG_KEYS || row->state[1] != TR_PRESENT || row->state[2] != TR_PRESENT) {
        s->odd = true;
        return;
    }
    s->rows[k] = (struct pg_row){true, number(row->v[1]), number(row->v[2])};
}

static bool was_once(const uint64_t *hash, const bool *live)
{
    for (uint32_t i = sim_w.n_history; i-- > 0;) {
        bool same = true;
        for (uint32_t t = 0; t < PG_TABLES; t++)
            same &= !live[t] || sim_w.history[i].hash[t] == hash[t];
        if (same)
            return true;
    }
    return false;
}

static void show_rows(const struct pg_row *rows, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t k = 1; k <= PG_KEYS && n < cap - 40; k++)
        if (rows[k].there)
            n += (size_t)snprintf(out + n, cap - n, " %u(%u,%u)", k, rows[k].a, rows[k].t);
}

/* All live tables of a mirror at once, as one reader would see them: the sink's lock is held for neither, but nobody runs between. */
void sim_look_at_mirrors(void)
{
    struct states s;
    if (sim_w.broken)
        return;
    sim_look_at_states(&s);
    for (int k = 0; k < SINKS; k++) {
        uint64_t hash[PG_TABLES] = {0};
        bool live[PG_TABLES], any = false, odd = false;
        struct seen seen[PG_TABLES];
        uint64_t before = tr_sched_switches();
        for (uint32_t t = 0; t < PG_TABLES; t++) {
            memset(&seen[t], 0, sizeof seen[t]);
            live[t] = s.sink[k][t] == TR_ST_LIVE;
            any |= live[t];
            if (!live[t])
                continue;
            tr_mem_read_back(sim_w.sinks[k], s.id[t], TR_TARGET_MIRROR, see, &seen[t]);
            odd |= seen[t].odd;
            hash[t] = hash_table(t, seen[t].rows);
        }
        if (!any || tr_sched_switches() != before) /* somebody ran between: not one look */
            continue;
        sim_w.c->looks++;
        sim_follow(); /* after the look, during which more may have been committed, and have arrived */
        bool was = was_once(hash, live);
        if (!was && sim_w.on[F_refuse]) { /* a pause is recorded a little later than it begins */
            was = true;
            for (uint32_t t = 0; t < PG_TABLES; t++) {
                bool alone[PG_TABLES] = {false};
                alone[t] = live[t];
                was &= was_once(hash, alone);
            }
        }
        if (odd || !was) {
            char a[200], b[200];
            show_rows(seen[0].rows, a, sizeof a);
            show_rows(seen[1].rows, b, sizeof b);
            sim_fail("mirror %d shows what the source never was: t0%s%s; t1%s%s%s", k, live[0] ? "" : " (not live)", a, live[1] ? "" : " (not live)", b, odd ? "; a value is missing" : "");
        }
    }
}

bool sim_differs(char *ret, size_t cap)
{
    struct states s;
    sim_look_at_states(&s);
    for (uint32_t t = 0; t < PG_TABLES; t++) {
        if (s.capture[t] != TR_TABLE_LIVE) {
            snprintf(ret, cap, "t%u is in state %u at capture (%s)", t, s.capture[t], s.reason);
            return true;
        }
        for (int k = 0; k < SINKS; k++) {
            struct seen seen = {0};
            if (s.sink[k][t] != TR_ST_LIVE) {
                snprintf(ret, cap, "t%u is in state %u in sink %d", t, s.sink[k][t], k);
                return true;
            }
            tr_mem_read_back(sim_w.sinks[k], s.id[t], TR_TARGET_MIRROR, see, &seen);
            for (uint32_t i = 1; i <= PG_KEYS; i++) {
                struct pg_row want = pgmodel_now(&sim_w.pg, t, i), is = seen.rows[i];
                if (seen.odd || want.there != is.there || (want.there && (want.a != is.a || want.t != is.t))) {
                    snprintf(ret, cap, "mirror %d: t%u row %u is {%d %u %u} and should be {%d %u %u}%s", k, t, i, is.there, is.a, is.t, want.there, want.a, want.t,
                             seen.odd ? "; a value is missing" : "");
                    return true;
                }
            }
        }
    }
    return false;
}

/* ---- the log ---- */

static int by_number(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static uint64_t history_v[SINKS][65536];
static size_t history_n[SINKS];
static int history_sink;

static void see_history(void *arg, const struct tr_mem_row *r)
{
    (void)arg;
    if (r->variant == TR_TARGET_CHANGELOG && history_n[history_sink] < TR_ARRAY_LEN(history_v[0]))
        history_v[history_sink][history_n[history_sink]++] = r->version;
}

static bool kept(int sink, uint64_t version)
{
    return bsearch(&version, history_v[sink], history_n[sink], sizeof version, by_number) != NULL;
}

static uint32_t changes_of(uint32_t commit_rec)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < commit_rec; i++) {
        const struct pg_rec *r = &sim_w.pg.wal[i];
        n += r->type == REC_CHANGE && pgmodel_top(&sim_w.pg, r->tx) == sim_w.pg.wal[commit_rec].tx && survives(r->tx) && pgmodel_is_published(&sim_w.pg, i);
    }
    return n;
}

/* The frames of the last epoch against the WAL: each transaction once, whole, in order. */
void sim_check_log(void)
{
    struct tr_log_reader *r = NULL;
    struct tr_frame f[64];
    struct tr_err err = {0};
    struct tr_pos tail;
    sim_open_log();
    if (sim_w.log->ops->reader_new(sim_w.log, 0, 0, &r, &err) < 0 || tr_log_tail(sim_w.log, 0, &tail, &err) < 0)
        sim_fail("the log cannot be read: %s", err.msg);
    for (history_sink = 0; history_sink < SINKS; history_sink++) {
        history_n[history_sink] = 0;
        tr_mem_each_row(sim_w.sinks[history_sink], see_history, NULL);
        qsort(history_v[history_sink], history_n[history_sink], sizeof history_v[0][0], by_number);
    }
    uint64_t last_commit = 0, version = 0;
    uint8_t epoch = 0;
    uint32_t in_tx = 0, next_rec = 0;
    int n;
    while ((n = tr_log_reader_poll(r, f, TR_ARRAY_LEN(f), &err)) > 0)
        for (int i = 0; i < n; i++) {
            const struct tr_change *c = &f[i].change;
            if (c->epoch != epoch) {
                epoch = c->epoch;
                last_commit = 0;
                in_tx = 0;
                next_rec = epoch == tail.epoch ? pg_rec_at(sim_w.pg.slot.created) : 0;
            }
            if (c->op == TR_OP_SNAPSHOT_BEGIN) {
                if (c->version <= version)
                    sim_fail("offset %" PRIu64 ": version %" PRIu64 " does not rise", f[i].offset, c->version);
                version = c->version;
            }
            if (tr_op_opens_tx(c->op)) {
                if (c->ordinal != in_tx && c->op != TR_OP_HEARTBEAT)
                    sim_fail("offset %" PRIu64 ": ordinal %u where %u comes next", f[i].offset, c->ordinal, in_tx);
                in_tx++;
                if (c->op != TR_OP_HEARTBEAT) {
                    if (c->version <= version)
                        sim_fail("offset %" PRIu64 ": version %" PRIu64 " does not rise", f[i].offset, c->version);
                    version = c->version + ((c->flags & TR_CHG_MOVED) != 0);
                    for (int k = 0; k < SINKS; k++)
                        if (!kept(k, c->version))
                            sim_fail("changelog %d lacks version %" PRIu64 " (offset %" PRIu64 ")", k, c->version, f[i].offset);
                }
            }
            if (c->op != TR_OP_COMMIT)
                continue;
            if (c->commit_lsn <= last_commit)
                sim_fail("offset %" PRIu64 ": a transaction twice, or out of order", f[i].offset);
            last_commit = c->commit_lsn;
            if (epoch == tail.epoch) {
                uint32_t rec = pg_rec_at(c->commit_lsn);
                for (; next_rec < rec; next_rec++)
                    if (sim_w.pg.wal[next_rec].type == REC_COMMIT && changes_of(next_rec))
                        sim_fail("the log lacks T%d, committed at record %u", sim_w.pg.wal[next_rec].tx, next_rec);
                if (rec >= sim_w.pg.n_wal || sim_w.pg.wal[rec].type != REC_COMMIT)
                    sim_fail("the log has a transaction that never was, at record %u", rec);
                if (in_tx != changes_of(rec))
                    sim_fail("T%d has %u changes in the log and made %u", sim_w.pg.wal[rec].tx, in_tx, changes_of(rec));
                next_rec = rec + 1;
            }
            in_tx = 0;
        }
    if (n != TR_AGAIN)
        sim_fail("reading the log: %s", err.msg);
    for (; next_rec < sim_w.pg.n_wal; next_rec++)
        if (sim_w.pg.wal[next_rec].type == REC_COMMIT && changes_of(next_rec) && sim_w.pg.wal[next_rec].tx >= 0 && pg_lsn(next_rec) < sim_w.pg.slot.confirmed)
            sim_fail("the log lacks T%d, committed at record %u and confirmed", sim_w.pg.wal[next_rec].tx, next_rec);
    r->ops->free(r);
    sim_w.log->ops->close(sim_w.log);
    sim_w.log = NULL;
}

