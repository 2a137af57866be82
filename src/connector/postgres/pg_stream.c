/*
 * pg_stream.c: the replication stream as a lane: connecting, feedback, waiting. What the messages mean is pg_decode.c's.
 *
 * Nothing here blocks. A lost server is retried for ever with backoff; each failure is told once through poll's RETRY. What can
 * not be mended by waiting is FATAL: another system or timeline under the same address, a slot that is gone, lost, or already
 * confirmed beyond where we must start (the server would silently skip what lies between). The pause begins small again only after a connection
 * that lasted: a server that answers well each time, and a transaction that fails here each time, are a loop too.
 *
 * Silence. Feedback asks for an answer each second. A connection that says nothing at all for SILENCE times wal_sender_timeout is dead though TCP
 * holds it (a firewall, a proxy): it is given up, as is an attempt to connect after that time, or CONNECTING_MAX. A server that decodes in silence for longer gets twice the time when it is met at the same
 * position again.
 *
 * Feedback. flush and apply say what commit() allowed, write what was received. It is sent about once a second, when the server asks,
 * and soon after there is more to confirm; never above what commit() was given. A keepalive's position is ours to confirm once
 * everything received before it is durable: it becomes `pos` (upto) as soon as no transaction is being delivered. An open streamed
 * transaction does not hold it back: the server sends that one again, whole.
 *
 * Pacing. Where messages flow fast, being woken for each costs more than the message itself, here and in every thread behind. So once the socket
 * is empty it is left alone until PACE_AIM more should be there, PACE_MAX at most (a unix socket holds about 270 small messages: the server must not
 * be kept waiting). Below PACE_FROM messages a second nothing is held back.
 *
 * Messages outside any transaction carry LSN 0/0 (Relation) and never count as progress.
 *
 * Logical messages are asked for always where the server can send them, though only heartbeats without a table need them: the way of the
 * heartbeat may change without a new connection, and a transaction that is sent again has as many rows as before, which pg_decode.c
 * counts on. The price is other people's messages on the wire; they are dropped as they come, also out of streamed transactions.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "cursor.h"
#include "pg_beat.h"
#include "pg_stream.h"
#include "pg_stream_internal.h"
#include "text.h"

enum { POLL_BYTES_MAX = 4 << 20 };

#define BACKOFF_MIN (200 * TR_NS_PER_MS)
#define BACKOFF_MAX (10 * TR_NS_PER_S)
#define FEEDBACK_EVERY TR_NS_PER_S
#define CONFIRM_AFTER (100 * TR_NS_PER_MS)
#define HELD_MIN (3 * TR_NS_PER_S)
#define HELD_MAX (60 * TR_NS_PER_S)
#define ASKED_GAP (5 * TR_NS_PER_S)
#define SILENCE_MAX (600 * TR_NS_PER_S)
#define CONNECTING_MAX (30 * TR_NS_PER_S)
#define PACE_WINDOW (5 * TR_NS_PER_MS)
#define PACE_MAX TR_NS_PER_MS
enum { SILENCE = 3, PACE_FROM = 10000, PACE_AIM = 128, SHORT_READ = 4096 };

static struct pg_stream *of_lane(struct tr_lane *l)
{
    return tr_container_of(l, struct pg_stream, lane);
}

static struct pg_stream *of_source(struct tr_source *s)
{
    return tr_container_of(s, struct pg_stream, source);
}

/* ---- connection ---- */

static int down(struct pg_stream *s, int rc, struct tr_err *err)
{
    int64_t now = tr_now_ns();
    tr_pgconn_close(&s->conn);
    tr_pgconn_close(&s->side);
    s->side_state = SIDE_DOWN;
    if (s->state == PG_STREAMING && now - s->streaming_since_ns > BACKOFF_MAX)
        s->backoff_ns = BACKOFF_MIN;
    s->state = PG_DOWN;
    tr_pg_decode_reset(s);
    s->retry_at_ns = now + s->backoff_ns;
    s->backoff_ns = TR_MIN(s->backoff_ns * 2, BACKOFF_MAX);
    s->sent_confirmed = 0;
    s->read_after_ns = s->pause_ns = 0;
    if (rc != TR_FATAL && err)
        err->rc = rc = TR_RETRY;
    return rc == TR_FATAL ? rc : TR_RETRY;
}

static int fatal(struct pg_stream *s, struct tr_err *err)
{
    (void)err;
    return down(s, TR_FATAL, NULL);
}

static int64_t silence_base(const struct pg_stream *s)
{
    return TR_MIN(SILENCE * s->o->wal_sender_timeout_ns, SILENCE_MAX);
}

static int64_t connecting_ns(const struct pg_stream *s)
{
    return TR_MIN(silence_base(s), CONNECTING_MAX);
}

static int start_connecting(struct pg_stream *s, struct tr_err *err)
{
    char settings[64];
    snprintf(settings, sizeof settings, "-c wal_sender_timeout=%lld", (long long)(s->o->wal_sender_timeout_ns / TR_NS_PER_MS));
    struct tr_pg_params p = {.dsn = s->o->dsn, .application_name = "tailrace", .settings = settings, .replication = true};
    int rc = tr_pgconn_start(&s->conn, &p, err);
    if (rc < 0)
        return down(s, rc, err);
    s->state = PG_CONNECTING;
    s->want = POLLOUT;
    s->retry_at_ns = tr_now_ns() + connecting_ns(s); /* from here on: when to give up on this attempt */
    return TR_OK;
}

static int send_query(struct pg_stream *s, const char *sql, enum pg_state next, struct tr_err *err)
{
    if (!PQsendQuery(s->conn.pg, sql) || PQflush(s->conn.pg) < 0)
        return down(s, tr_pg_error(&s->conn, NULL, "starting replication", err), err);
    s->state = next;
    return TR_OK;
}

static int ask_slot(struct pg_stream *s, struct tr_err *err)
{
    struct tr_buf b;
    tr_buf_init(&b);
    tr_buf_append_str(&b, "SELECT confirmed_flush_lsn, coalesce(active_pid, 0), coalesce(wal_status, ''), pg_snapshot_xmax(pg_current_snapshot())"
                          " FROM pg_replication_slots WHERE slot_type = 'logical' AND slot_name = ");
    tr_quote_literal(&b, tr_slice_str(s->o->slot));
    int rc = send_query(s, tr_buf_cstr(&b), PG_ASKING_SLOT, err);
    tr_buf_done(&b);
    return rc;
}

static int identified(struct pg_stream *s, const PGresult *r, struct tr_err *err)
{
    const char *id = tr_pg_val(r, 0, 0);
    uint32_t tli = (uint32_t)strtoul(tr_pg_val(r, 0, 1), NULL, 10);
    if (!s->system_id[0]) {
        snprintf(s->system_id, sizeof s->system_id, "%s", id);
        s->timeline = tli;
    } else if (strcmp(s->system_id, id) || s->timeline != tli) {
        tr_err_set(err, TR_FATAL, TR_DOM_SOURCE,
                   "source: the server behind the connection changed (system %s timeline %u, was %s timeline %u); positions of the two do not compare",
                   id, tli, s->system_id, s->timeline);
        return fatal(s, err);
    }
    return ask_slot(s, err);
}

static int slot_known(struct pg_stream *s, const PGresult *r, struct tr_err *err)
{
    const char *slot = s->o->slot;
    if (PQntuples(r) == 0) {
        tr_err_set(err, TR_FATAL, TR_DOM_SOURCE,
                   "source: replication slot %s does not exist (any more); what was committed meanwhile can only be had by a new snapshot", slot);
        return fatal(s, err);
    }
    uint64_t confirmed = 0;
    tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 0)), &confirmed, NULL);
    char a[TR_LSN_CHARS], b[TR_LSN_CHARS];
    if (!strcmp(tr_pg_val(r, 0, 2), "lost")) {
        tr_err_set(err, TR_FATAL, TR_DOM_SOURCE,
                   "source: the server has removed WAL that slot %s still needed (wal_status lost); raise max_slot_wal_keep_size and take a new snapshot",
                   slot);
        return fatal(s, err);
    }
    uint64_t from = TR_MAX(s->from, atomic_load(&s->confirmed));
    if (confirmed > from) {
        tr_err_set(err, TR_FATAL, TR_DOM_SOURCE,
                   "source: slot %s is confirmed up to %s, but our record ends at %s: someone else has read from it, and what lies between is lost to us",
                   slot, tr_format_lsn(confirmed, a), tr_format_lsn(from, b));
        return fatal(s, err);
    }
    if (strcmp(tr_pg_val(r, 0, 1), "0") != 0) {
        int rc = tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: slot %s is in use by server process %s; is a second tailrace running on it?", slot,
                            tr_pg_val(r, 0, 1));
        return down(s, rc, err);
    }
    s->xid_ref = strtoull(tr_pg_val(r, 0, 3), NULL, 10);
    int v = s->conn.server_version;
    s->dec.proto = v >= 160000 ? 4 : v >= 140000 ? 2 : 1;
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "START_REPLICATION SLOT ");
    tr_quote_ident(&q, tr_slice_str(slot));
    tr_buf_printf(&q, " LOGICAL %s (proto_version '%d', publication_names ", tr_format_lsn(from, a), s->dec.proto);
    struct tr_buf pub;
    tr_buf_init(&pub);
    tr_quote_ident(&pub, tr_slice_str(s->o->publication));
    tr_quote_literal(&q, tr_buf_slice(&pub));
    tr_buf_done(&pub);
    if (s->dec.proto >= 2)
        tr_buf_append_str(&q, ", streaming 'on'");
    if (v >= TR_PG_MESSAGES_SINCE)
        tr_buf_append_str(&q, ", messages 'true'");
    tr_buf_append_str(&q, ")");
    int rc = send_query(s, tr_buf_cstr(&q), PG_STARTING, err);
    tr_buf_done(&q);
    return rc;
}

/* The answer of the step under way. AGAIN: not here yet. */
static int step_answer(struct pg_stream *s, struct tr_err *err)
{
    if (PQflush(s->conn.pg) < 0 || !PQconsumeInput(s->conn.pg))
        return down(s, tr_pg_error(&s->conn, NULL, "starting replication", err), err);
    if (PQisBusy(s->conn.pg))
        return TR_AGAIN;
    PGresult *r = PQgetResult(s->conn.pg);
    ExecStatusType st = PQresultStatus(r);
    int rc;
    if (s->state == PG_STARTING && st == PGRES_COPY_BOTH) {
        s->state = PG_STREAMING;
        s->streaming_since_ns = tr_now_ns();
        s->quiet_since_ns = 0;
        s->last_feedback_ns = 0;
        s->reported = UINT64_MAX; /* the next poll tells that we are back, also on an idle server */
        rc = TR_OK;
    } else if (s->state != PG_STARTING && st == PGRES_TUPLES_OK) {
        PGresult *end;
        while ((end = PQgetResult(s->conn.pg))) /* a simple query's answer ends at once */
            PQclear(end);
        rc = s->state == PG_IDENTIFYING ? identified(s, r, err) : slot_known(s, r, err);
    } else {
        rc = down(s, tr_pg_error(&s->conn, r, "starting replication", err), err);
    }
    PQclear(r);
    return rc;
}

/* Towards PG_STREAMING. AGAIN: waiting. */
static int advance(struct pg_stream *s, struct tr_err *err)
{
    for (;;) {
        int rc;
        if (s->state != PG_DOWN && s->state != PG_STREAMING && tr_now_ns() > s->retry_at_ns) {
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: no answer while connecting for %lld s", (long long)(connecting_ns(s) / TR_NS_PER_S));
            return down(s, rc, err);
        }
        switch (s->state) {
        case PG_DOWN:
            if (tr_now_ns() < s->retry_at_ns)
                return TR_AGAIN;
            rc = start_connecting(s, err);
            break;
        case PG_CONNECTING: {
            struct pollfd p = {.fd = PQsocket(s->conn.pg), .events = s->want};
            if (poll(&p, 1, 0) == 0)
                return TR_AGAIN;
            rc = tr_pgconn_step(&s->conn, &s->want, err);
            if (rc < 0)
                return down(s, rc, err);
            if (rc == 1)
                rc = send_query(s, "IDENTIFY_SYSTEM", PG_IDENTIFYING, err);
            break;
        }
        case PG_STREAMING:
            return TR_OK;
        default:
            rc = step_answer(s, err);
            break;
        }
        if (rc < 0)
            return rc;
    }
}

/* ---- look-ups beside the stream ---- */

static int side_lost(struct pg_stream *s, struct tr_err *err)
{
    tr_pgconn_close(&s->side);
    s->side_state = SIDE_DOWN;
    s->side_retry_ns = tr_now_ns() + TR_NS_PER_S;
    return err && err->rc == TR_FATAL ? TR_FATAL : TR_AGAIN; /* the stream goes on waiting; the next attempt will say more */
}

static int side_ask(struct pg_stream *s, struct tr_err *err)
{
    struct tr_pg_msg m;
    int rc = tr_pgoutput_decode(&s->dec, s->item.msg, s->item.in_stream, &m, err);
    if (rc < 0)
        return TR_FATAL;
    struct tr_buf bufs[4] = {{0}};
    const char *v[4] = {0};
    rc = tr_pgschema_relation_params(&m, bufs, v);
    if (rc >= 0 && !PQsendQueryPrepared(s->side.pg, "describe", 4, v, NULL, NULL, 0))
        rc = tr_pg_error(&s->side, NULL, "describing a table", err);
    for (int i = 0; i < 4; i++)
        tr_buf_done(&bufs[i]);
    if (rc < 0)
        return side_lost(s, err);
    s->side_state = SIDE_BUSY;
    return TR_OK;
}

/* Planning the query takes ten times as long as running it, and a new connection meets every table anew. */
static int side_prepare(struct pg_stream *s, struct tr_err *err)
{
    if (!PQsendPrepare(s->side.pg, "describe", tr_pgschema_sql_relation, 4, NULL)) {
        tr_pg_error(&s->side, NULL, "describing a table", err);
        return side_lost(s, err);
    }
    s->side_state = SIDE_PREPARING;
    return TR_OK;
}

/* The answer to what was sent last; the NULL that ends it is still to be taken. AGAIN: it is not here yet. */
static int side_result(struct pg_stream *s, PGresult **ret, struct tr_err *err)
{
    if (PQflush(s->side.pg) < 0 || !PQconsumeInput(s->side.pg)) {
        tr_pg_error(&s->side, NULL, "describing a table", err);
        return side_lost(s, err);
    }
    if (PQisBusy(s->side.pg))
        return TR_AGAIN;
    *ret = PQgetResult(s->side.pg);
    return TR_OK;
}

static int side_prepared(struct pg_stream *s, struct tr_err *err)
{
    PGresult *r = NULL, *end;
    int rc = side_result(s, &r, err);
    if (rc < 0)
        return rc;
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    if (!ok)
        tr_pg_error(&s->side, r, "describing a table", err);
    PQclear(r);
    while (ok && (end = PQgetResult(s->side.pg)))
        PQclear(end);
    s->side_state = SIDE_READY;
    return ok ? TR_OK : side_lost(s, err);
}

static int side_answer(struct pg_stream *s, struct tr_err *err)
{
    PGresult *r = NULL, *end;
    int rc = side_result(s, &r, err);
    if (rc < 0)
        return rc;
    if (PQresultStatus(r) != PGRES_TUPLES_OK) {
        tr_pg_error(&s->side, r, "describing a table", err);
        rc = TR_RETRY;
    } else {
        struct tr_pg_msg m;
        rc = tr_pgoutput_decode(&s->dec, s->item.msg, s->item.in_stream, &m, err);
        if (rc == TR_OK)
            rc = tr_pgschema_build(r, &m, m.u.relation.ns, m.u.relation.name, &s->described, err);
        if (rc == 1) { /* a table without columns: the catalog has nothing to add */
            struct tr_schema_def d = {.ns = m.u.relation.ns, .name = m.u.relation.name, .no_key_reason = "it has no columns", .source_id = m.u.relation.oid};
            rc = tr_schema_new(&d, &s->described, err);
        }
        if (rc < 0)
            rc = TR_FATAL;
    }
    PQclear(r);
    while (rc == TR_OK && (end = PQgetResult(s->side.pg)))
        PQclear(end);
    s->side_state = SIDE_READY;
    if (rc == TR_RETRY)
        return side_lost(s, err);
    return rc;
}

/* Moves the description of the held item on. 0: s->described is here. AGAIN: waiting. */
static int side_step(struct pg_stream *s, struct tr_err *err)
{
    for (;;) {
        int rc = TR_OK;
        switch (s->side_state) {
        case SIDE_DOWN: {
            if (tr_now_ns() < s->side_retry_ns)
                return TR_AGAIN;
            struct tr_pg_params p = {.dsn = s->o->dsn, .application_name = "tailrace catalog"};
            if (tr_pgconn_start(&s->side, &p, err) < 0)
                return side_lost(s, NULL);
            s->side_state = SIDE_CONNECTING;
            s->side_want = POLLOUT;
            break;
        }
        case SIDE_CONNECTING: {
            struct pollfd p = {.fd = PQsocket(s->side.pg), .events = s->side_want};
            if (poll(&p, 1, 0) == 0)
                return TR_AGAIN;
            rc = tr_pgconn_step(&s->side, &s->side_want, err);
            if (rc < 0)
                return side_lost(s, NULL);
            if (rc == 1)
                rc = side_prepare(s, err);
            break;
        }
        case SIDE_PREPARING:
            rc = side_prepared(s, err);
            break;
        case SIDE_READY:
            rc = side_ask(s, err);
            break;
        case SIDE_BUSY:
            rc = side_answer(s, err);
            if (rc < 0 || s->described)
                return rc;
            break;
        }
        if (rc < 0)
            return rc;
    }
}

/* ---- feedback ---- */

static void be64(uint8_t *p, uint64_t v)
{
    v = htobe64(v);
    memcpy(p, &v, 8);
}

/* A connection that was found broken is gone until the next poll deals with it. */
static bool can_send(const struct pg_stream *s)
{
    return s->state == PG_STREAMING && s->conn.pg;
}

/* Under s->lock. */
static int feedback(struct pg_stream *s, int64_t now_ns, bool force, struct tr_err *err)
{
    if (!can_send(s))
        return TR_OK;
    uint64_t confirmed = TR_MAX(s->from, atomic_load(&s->confirmed));
    int64_t since = now_ns - s->last_feedback_ns;
    bool due = force || s->reply_now || since >= FEEDBACK_EVERY || (confirmed != s->sent_confirmed && since >= CONFIRM_AFTER);
    if (!due)
        return TR_OK;
    uint8_t m[34];
    m[0] = 'r';
    be64(m + 1, TR_MAX(s->received, confirmed));
    be64(m + 9, confirmed);
    be64(m + 17, confirmed);
    be64(m + 25, (uint64_t)(tr_wall_us() - INT64_C(946684800000000)));
    m[33] = 1; /* asks for a keepalive back: its position moves an idle slot on */
    if (PQputCopyData(s->conn.pg, (const char *)m, sizeof m) < 0 || PQflush(s->conn.pg) < 0)
        return tr_pg_error(&s->conn, NULL, "sending feedback", err);
    s->last_feedback_ns = now_ns;
    s->sent_confirmed = confirmed;
    s->reply_now = false;
    return TR_OK;
}

/* ---- the lane ---- */

/* The socket is empty, or was after a short read: when to read it again. */
static void pace(struct pg_stream *s, int64_t now_ns)
{
    int64_t window = now_ns - s->window_since_ns;
    if (window >= PACE_WINDOW) {
        int64_t per_s = (int64_t)((double)s->window_messages * (double)TR_NS_PER_S / (double)window);
        s->pause_ns = per_s < PACE_FROM ? 0 : TR_MIN(PACE_AIM * TR_NS_PER_S / per_s, PACE_MAX);
        s->window_since_ns = now_ns;
        s->window_messages = 0;
    }
    s->read_after_ns = s->pause_ns ? now_ns + s->pause_ns : 0;
    s->read_bytes = 0;
}

/* Nothing is here. Time in which nobody looked does not count. */
static int quiet(struct pg_stream *s, int64_t now, struct tr_err *err)
{
    if (!s->quiet_since_ns || now - s->asked_ns > ASKED_GAP)
        s->quiet_since_ns = now;
    s->asked_ns = now;
    if (now - s->quiet_since_ns < s->silence_ns)
        return TR_AGAIN;
    int64_t lasted = (now - s->quiet_since_ns) / TR_NS_PER_S;
    s->silence_ns = s->pos == s->silent_pos ? TR_MIN(s->silence_ns * 2, SILENCE_MAX) : silence_base(s);
    s->silent_pos = s->pos;
    return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: the server has said nothing for %lld s, though asked each second; the connection is given up", (long long)lasted);
}

/* One message off the wire into s->item. AGAIN: none here; EOF does not occur. */
static int next_message(struct pg_stream *s, struct tr_err *err)
{
    for (bool fresh = false;;) {
        char *m = NULL;
        int n = PQgetCopyData(s->conn.pg, &m, 1);
        if (n == 0) {
            int64_t now = fresh || s->pause_ns ? tr_now_ns() : 0;
            if (now < s->read_after_ns)
                return TR_AGAIN;
            if (fresh || (s->pause_ns && s->read_bytes && s->read_bytes < SHORT_READ))
                pace(s, now);
            if (fresh)
                return quiet(s, now, err);
            if (now < s->read_after_ns)
                return TR_AGAIN;
            s->read_bytes = 0;
            if (!PQconsumeInput(s->conn.pg))
                return tr_pg_error(&s->conn, NULL, "reading the stream", err);
            fresh = true;
            continue;
        }
        if (n < 0) {
            PGresult *r = PQgetResult(s->conn.pg);
            int rc = tr_pg_error(&s->conn, PQresultStatus(r) == PGRES_FATAL_ERROR ? r : NULL, "reading the stream", err);
            const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
            if (state && !strcmp(state, "42704")) /* the publication is not there, or not yet at this position: asking again does not help */
                err->rc = rc = TR_FATAL;
            PQclear(r);
            return rc;
        }
        s->quiet_since_ns = 0;
        s->window_messages++;
        s->read_bytes += n;
        struct tr_cur c = {(const uint8_t *)m, (const uint8_t *)m + n, false};
        uint8_t type = tr_cur_u8(&c);
        if (type == 'k') {
            uint64_t lsn = tr_cur_be64(&c);
            tr_cur_be64(&c);
            bool reply = tr_cur_u8(&c) != 0;
            bool ok = tr_cur_ok(&c);
            PQfreemem(m);
            if (!ok)
                return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "source: a keepalive of %d bytes is cut off", n);
            s->reply_now |= reply;
            s->received = TR_MAX(s->received, lsn);
            if (!s->in_tx)
                s->pos = TR_MAX(s->pos, lsn);
            continue;
        }
        if (type != 'w') {
            PQfreemem(m);
            return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "source: a replication message of unknown type 0x%02x", type);
        }
        uint64_t lsn = tr_cur_be64(&c);
        tr_cur_be64(&c);
        tr_cur_be64(&c);
        if (!tr_cur_ok(&c)) {
            PQfreemem(m);
            return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "source: a replication message of %d bytes is cut off", n);
        }
        s->item = (struct pg_item){.msg = tr_slice_of(c.p, (size_t)(c.end - c.p)), .lsn = lsn, .set = true};
        s->item_mem = m;
        return TR_OK;
    }
}

/* A server that is shutting down takes no new connection, but waits for its walsenders, and so for us to read on: while we wait for the
 * catalog it would wait for ever, since our feedback keeps the connection alive. So we let go; the transaction comes again. Each time in a row we wait
 * longer: a server may also be so slow that the answer takes its time. */
static int held_too_long(struct pg_stream *s, struct tr_err *err)
{
    int64_t now = tr_now_ns();
    if (!s->held_since_ns)
        s->held_since_ns = now;
    int64_t most = TR_MIN(HELD_MIN << TR_MIN(s->let_go, 8u), HELD_MAX);
    if (now - s->held_since_ns < most)
        return TR_AGAIN;
    s->held_since_ns = 0;
    s->let_go++;
    return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: a table's definition could not be asked for within %lld s; connecting anew", (long long)(most / TR_NS_PER_S));
}

static int gather(struct pg_stream *s, uint32_t max, struct tr_err *err)
{
    while (s->n < max && s->bytes < POLL_BYTES_MAX) {
        int rc = TR_OK;
        if (!s->item.set) {
            rc = s->replay ? tr_pg_decode_replay(s, err) : next_message(s, err);
            if (rc == TR_EOF)
                continue;
            if (rc < 0)
                return rc;
        }
        rc = tr_pg_decode_item(s, err);
        if (rc == TR_NOT_READY) {
            rc = side_step(s, err);
            if (rc == TR_OK) {
                s->let_go = 0;
                continue;
            }
            if (rc == TR_AGAIN)
                return held_too_long(s, err);
        }
        s->held_since_ns = 0;
        if (rc < 0)
            return rc;
    }
    return TR_OK;
}

static int poll_locked(struct pg_stream *s, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    if (tr_pg_decode_release_output(s) < 0)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "no memory while decoding the replication stream");
    int rc = advance(s, err);
    if (rc < 0)
        return rc;
    s->now_us = tr_wall_us();
    rc = gather(s, max, err);
    if (rc == TR_AGAIN || rc == TR_OK) {
        int f = feedback(s, tr_now_ns(), false, err);
        if (f < 0)
            rc = f;
    }
    if (rc < 0 && rc != TR_AGAIN) {
        if (s->n == 0)
            return down(s, rc, err);
        /* what was decoded before the failure stands: deliver it, the connection is found dead at the next poll */
        down(s, rc, err);
        if (rc == TR_FATAL)
            return rc;
        s->retry_at_ns = tr_now_ns() + BACKOFF_MIN;
    }
    if (s->n == 0 && s->pos == s->reported && rc == TR_AGAIN)
        return TR_AGAIN; /* otherwise what came had nothing for us, and there is more of it, perhaps in libpq's own buffer */
    s->reported = s->pos;
    *ret = (struct tr_payloads){.v = s->v, .n = s->n, .lane = s->lane.id, .upto = (int64_t)s->pos};
    return TR_OK;
}

static int lane_poll(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct pg_stream *s = of_lane(l);
    tr_mutex_lock(&s->lock);
    int rc = poll_locked(s, max, ret, err);
    tr_mutex_unlock(&s->lock);
    return rc;
}

static int lane_arm(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret)
{
    (void)w;
    struct pg_stream *s = of_lane(l);
    int64_t now = tr_now_ns();
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = s->retry_at_ns};
    if (s->state == PG_DOWN)
        return 0;
    ret->fd = PQsocket(s->conn.pg);
    if (s->state == PG_CONNECTING) {
        ret->events = s->want;
        return 0;
    }
    ret->events = POLLIN;
    if (s->state != PG_STREAMING)
        return 0;
    ret->deadline_ns = TR_MAX(s->last_feedback_ns + FEEDBACK_EVERY, now);
    if (atomic_load(&s->confirmed) != s->sent_confirmed)
        ret->deadline_ns = TR_MIN(ret->deadline_ns, s->last_feedback_ns + CONFIRM_AFTER);
    if (s->item.set) { /* the catalog's answer is awaited, not the stream */
        if (s->side_state == SIDE_DOWN) {
            ret->fd = -1;
            ret->deadline_ns = TR_MIN(ret->deadline_ns, s->side_retry_ns);
        } else {
            ret->fd = PQsocket(s->side.pg);
            ret->events = s->side_state == SIDE_CONNECTING ? s->side_want : POLLIN;
        }
    } else if (s->read_after_ns > now) {
        ret->fd = -1;
        ret->deadline_ns = TR_MIN(ret->deadline_ns, s->read_after_ns);
    }
    return 0;
}

static int lane_tend(struct tr_lane *l, int64_t now_ns, struct tr_err *err)
{
    struct pg_stream *s = of_lane(l);
    tr_mutex_lock(&s->lock);
    int rc = feedback(s, now_ns, false, err);
    tr_mutex_unlock(&s->lock);
    return rc; /* a lost connection is dealt with by the next poll: payloads held stay valid */
}

static void lane_pause(struct tr_lane *l, bool on)
{
    of_lane(l)->paused = on;
}

static void lane_close(struct tr_lane *l)
{
    struct pg_stream *s = of_lane(l);
    tr_mutex_lock(&s->lock);
    tr_pg_decode_release_output(s);
    tr_mutex_unlock(&s->lock);
}

static const struct tr_lane_ops lane_ops = {lane_poll, lane_arm, lane_tend, lane_pause, lane_close};

/* ---- the source ---- */

static int poll_event(struct tr_source *src, struct tr_event *ret, struct tr_err *err)
{
    (void)err;
    struct pg_stream *s = of_source(src);
    if (s->assigned)
        return TR_AGAIN;
    s->assigned = true;
    *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = 0, .epoch = 1, .lane = &s->lane};
    return TR_OK;
}

static int source_arm(struct tr_source *src, struct tr_waker *w, struct tr_wait *ret)
{
    (void)src;
    (void)w;
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    return 0;
}

static int answer(struct tr_source *src, const struct tr_event *ev, struct tr_err *err)
{
    (void)src;
    (void)ev;
    (void)err;
    return TR_OK;
}

static int source_commit(struct tr_source *src, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    struct pg_stream *s = of_source(src);
    for (size_t i = 0; i < n; i++)
        if (v[i].lane == 0 && (uint64_t)v[i].upto > atomic_load(&s->confirmed))
            atomic_store(&s->confirmed, (uint64_t)v[i].upto);
    if (!sync_deadline_ns)
        return TR_OK;
    tr_mutex_lock(&s->lock);
    int rc = feedback(s, tr_now_ns(), true, err);
    while (rc == TR_OK && can_send(s)) {
        int f = PQflush(s->conn.pg);
        if (f == 0)
            break;
        if (f < 0)
            rc = tr_pg_error(&s->conn, NULL, "sending feedback", err);
        else if (tr_pg_wait(&s->conn, true, sync_deadline_ns, err) != TR_OK)
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: the last feedback could not be sent before the deadline");
    }
    tr_mutex_unlock(&s->lock);
    return rc;
}

static void source_close(struct tr_source *src, int64_t deadline_ns)
{
    (void)deadline_ns;
    struct pg_stream *s = of_source(src);
    if (can_send(s)) {
        PQputCopyEnd(s->conn.pg, NULL);
        PQflush(s->conn.pg);
    }
    tr_pg_decode_done(s);
    tr_pgconn_done(&s->conn);
    tr_pgconn_done(&s->side);
    tr_mutex_done(&s->lock);
    tr_free(s);
}

static const struct tr_source_ops source_ops = {poll_event, source_arm, answer, source_commit, source_close};

int tr_pg_stream_new(const struct tr_pg_source_options *o, const struct tr_component_env *env, uint64_t from, struct tr_source **ret, struct tr_err *err)
{
    struct pg_stream *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for the replication stream");
    int rc = tr_pg_beat_schema(o, &s->beat, err);
    if (rc < 0) {
        tr_free(s);
        return rc;
    }
    s->source.ops = &source_ops;
    s->lane = (struct tr_lane){.ops = &lane_ops, .id = 0, .epoch = 1};
    s->o = o;
    s->from = from;
    s->pos = s->reported = s->received = from;
    s->backoff_ns = BACKOFF_MIN;
    s->silence_ns = silence_base(s);
    s->silent_pos = UINT64_MAX;
    tr_mutex_init(&s->lock);
    tr_pgconn_init(&s->conn, "source");
    tr_pgconn_init(&s->side, "source");
    tr_u64map_init(&s->rels);
    tr_pg_txbuf_init(&s->txbuf, env->state_dir, o->stream_memory);
    tr_arena_init(&s->arena, 256 << 10, 0);
    *ret = &s->source;
    return TR_OK;
}
