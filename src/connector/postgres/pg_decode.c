/*
 * pg_decode.c: replication messages into changes, in commit order.
 *
 * An ordinary transaction (B … C) is sent after its commit and passed on as it comes. A streamed one (S … E pieces) is kept in the
 * txbuf until 'c' and then replayed from there; while that goes on nothing is read from the wire.
 *
 * When a connection is lost in the middle of a transaction, the server will send that transaction again, whole and identical (the WAL
 * decides its content): the rows already delivered are counted off and skipped, so that downstream sees one transaction.
 */
#include "alloc.h"
#include "check.h"
#include "pg_beat.h"
#include "pg_stream_internal.h"

int tr_pg_decode_release_output(struct pg_stream *s)
{
    for (uint32_t i = 0; i < s->n_mem; i++)
        PQfreemem(s->mem[i]);
    for (uint32_t i = 0; i < s->n_retired; i++)
        tr_schema_unref(s->retired[i]);
    s->n_mem = s->n_retired = s->n = 0;
    s->bytes = 0;
    if (s->item.set && !s->item_mem && s->item.msg.p != s->item_buf.p) { /* it waits for a description and lives in the arena */
        tr_buf_clear(&s->item_buf);
        if (tr_buf_append_slice(&s->item_buf, s->item.msg) < 0)
            return TR_NOMEM;
        s->item.msg = tr_buf_slice(&s->item_buf);
    }
    tr_arena_reset(&s->arena);
    return TR_OK;
}

void tr_pg_decode_reset(struct pg_stream *s)
{
    if (s->in_tx) {
        uint64_t done = TR_MAX(s->tx.rows, s->tx.skip);
        if (s->tx.commit_lsn > s->last_commit) {
            s->part_commit = s->tx.commit_lsn;
            s->part_rows = done;
        }
    }
    s->in_tx = false;
    s->stream_xid = 0;
    s->replay = tr_pg_tx_free(&s->txbuf, s->replay);
    tr_pg_txbuf_done(&s->txbuf);
    tr_pg_txbuf_init(&s->txbuf, s->txbuf.dir, s->txbuf.memory_max);
    if (s->item_mem)
        PQfreemem(s->item_mem);
    s->item_mem = NULL;
    s->item.set = false;
    s->described = tr_schema_unref(s->described);
}

void tr_pg_decode_done(struct pg_stream *s)
{
    tr_pg_decode_reset(s);
    tr_pg_decode_release_output(s);
    tr_pg_txbuf_done(&s->txbuf);
    size_t it = 0;
    uint64_t oid, v;
    while (tr_u64map_next(&s->rels, &it, &oid, &v)) {
        struct pg_rel *r = (struct pg_rel *)(uintptr_t)v;
        tr_schema_unref(r->schema);
        tr_free(r);
    }
    tr_u64map_done(&s->rels);
    tr_schema_unref(s->beat);
    tr_arena_done(&s->arena);
    tr_buf_done(&s->item_buf);
    tr_free(s->v);
    tr_free(s->mem);
    tr_free(s->retired);
}

static int nomem(struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "no memory while decoding the replication stream");
}

static int undecodable(struct tr_err *err)
{
    if (err)
        err->rc = TR_FATAL; /* a row change is never skipped */
    return TR_FATAL;
}

/* Room for one more payload with its change. */
static struct tr_change *emit(struct pg_stream *s, uint8_t op, uint64_t lsn, uint32_t flags)
{
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 1024;
        struct tr_payload *v = tr_realloc(s->v, cap * sizeof *v);
        if (!v)
            return NULL;
        s->v = v;
        s->cap = cap;
    }
    struct tr_change *c = TR_ARENA_NEW(&s->arena, struct tr_change);
    if (!c)
        return NULL;
    c->op = op;
    c->commit_lsn = s->tx.commit_lsn;
    c->change_lsn = lsn;
    c->xid = s->tx.xid;
    c->commit_us = s->tx.ts_us;
    c->capture_us = s->now_us;
    struct tr_payload *p = &s->v[s->n++];
    memset(p, 0, sizeof *p);
    p->meta = c;
    p->flags = TR_PAYLOAD_CHANGE | flags;
    p->position = (int64_t)(op == TR_OP_COMMIT ? s->tx.end_lsn : s->tx.commit_lsn);
    p->event_time_us = c->commit_us;
    return c;
}

/* Is this row to be delivered, or was it before the connection was lost? */
static bool wanted(struct pg_stream *s)
{
    s->tx.rows++;
    return s->tx.commit_lsn > s->last_commit && s->tx.rows > s->tx.skip;
}

static int begin(struct pg_stream *s, uint64_t commit_lsn, uint32_t xid, int64_t ts)
{
    memset(&s->tx, 0, sizeof s->tx);
    s->in_tx = true;
    s->tx.commit_lsn = commit_lsn;
    s->tx.ts_us = tr_pg_time_us(ts);
    /* the nearest 64-bit id with these low bits: two ids in flight are never 2^31 apart */
    s->xid_ref += (uint64_t)(int64_t)(int32_t)(xid - (uint32_t)s->xid_ref);
    s->tx.xid = s->xid_ref;
    s->tx.skip = commit_lsn == s->part_commit ? s->part_rows : 0;
    return TR_OK;
}

static int commit(struct pg_stream *s, uint64_t commit_lsn, uint64_t end_lsn, struct tr_err *err)
{
    s->tx.end_lsn = end_lsn;
    if (s->tx.rows && commit_lsn > s->last_commit) {
        struct tr_change *c = emit(s, TR_OP_COMMIT, commit_lsn, TR_PAYLOAD_TX_END);
        if (!c)
            return nomem(err);
        c->end_lsn = end_lsn;
    }
    s->last_commit = TR_MAX(s->last_commit, commit_lsn);
    s->in_tx = false;
    s->pos = TR_MAX(s->pos, end_lsn);
    s->received = TR_MAX(s->received, end_lsn);
    return TR_OK;
}

/* The tuple's columns as a row in the poll's arena. key_only: of a 'K' tuple the other columns are sent as nulls that mean nothing; so they are in an 'O' tuple
 * of a partition that has another identity than its root, whose name it goes by. */
static int put_row(struct pg_stream *s, const struct tr_schema *schema, const struct tr_pg_tuple *t, bool key_only, struct tr_row *ret, struct tr_err *err)
{
    if (t->n != schema->n_columns)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "table %s.%s: a row of %u columns where its definition has %u", schema->ns, schema->name,
                          t->n, schema->n_columns);
    struct tr_slice *v = tr_arena_alloc(&s->arena, t->n * sizeof *v + 1);
    uint8_t *st = tr_arena_alloc_aligned(&s->arena, t->n + 1u, 1);
    if (!v || !st)
        return nomem(err);
    for (uint16_t i = 0; i < t->n; i++) {
        v[i] = t->v[i];
        s->bytes += v[i].n;
        switch (t->kind[i]) {
        case 't':
            st[i] = TR_PRESENT;
            break;
        case 'n':
            st[i] = key_only && !schema->columns[i].key_pos ? TR_ABSENT : TR_NULL;
            break;
        case 'u':
            st[i] = TR_UNCHANGED;
            break;
        default:
            return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "table %s.%s: column %s came in binary, which was not asked for", schema->ns,
                              schema->name, schema->columns[i].name);
        }
    }
    *ret = (struct tr_row){.v = v, .state = st, .n = t->n};
    return TR_OK;
}

static struct pg_rel *rel_of(struct pg_stream *s, uint32_t oid, struct tr_err *err)
{
    struct pg_rel *r = tr_u64map_get_ptr(&s->rels, oid);
    if (!r || !r->schema) {
        tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "a row of relation %u came before its definition", oid);
        return NULL;
    }
    return r;
}

static int row(struct pg_stream *s, const struct tr_pg_msg *m, struct tr_err *err)
{
    struct pg_rel *r = rel_of(s, m->u.row.oid, err);
    if (!r)
        return TR_FATAL;
    if (!wanted(s))
        return TR_OK;
    uint8_t op = m->type == 'I' ? TR_OP_INSERT : m->type == 'U' ? TR_OP_UPDATE : TR_OP_DELETE;
    struct tr_change *c = emit(s, op, s->item.lsn, 0);
    if (!c)
        return nomem(err);
    c->schema = r->schema;
    int rc = TR_OK;
    if (m->u.row.old_kind)
        rc = put_row(s, r->schema, &m->u.row.old, m->u.row.old_kind == 'K' || !r->schema->full_identity, &c->before, err);
    if (rc == TR_OK && m->u.row.has_new)
        rc = put_row(s, r->schema, &m->u.row.new_, false, &c->after, err);
    return rc;
}

static int truncate_(struct pg_stream *s, const struct tr_pg_msg *m, struct tr_err *err)
{
    for (uint32_t i = 0; i < m->u.truncate.n; i++) {
        struct pg_rel *r = rel_of(s, tr_pg_truncate_oid(m, i), err);
        if (!r)
            return TR_FATAL;
        if (!wanted(s))
            continue;
        struct tr_change *c = emit(s, TR_OP_TRUNCATE, s->item.lsn, 0);
        if (!c)
            return nomem(err);
        c->schema = r->schema;
    }
    return TR_OK;
}

/* A heartbeat that came as a message becomes the change that its row would have been. (A streamed message does not say that the savepoint which
 * sent it was rolled back; heartbeats are sent outside of any.) */
static int message(struct pg_stream *s, const struct tr_pg_msg *m, struct tr_err *err)
{
    if (!s->in_tx || !tr_pg_beat_is(s->o, m) || !wanted(s))
        return TR_OK;
    struct tr_change *c = emit(s, TR_OP_INSERT, s->item.lsn, 0);
    struct tr_slice *v = tr_arena_alloc(&s->arena, 2 * sizeof *v);
    static const uint8_t present[2] = {TR_PRESENT, TR_PRESENT};
    if (!c || !v)
        return nomem(err);
    v[0] = tr_slice_str(s->o->slot);
    v[1] = m->u.message.content;
    c->schema = s->beat;
    c->after = (struct tr_row){.v = v, .state = present, .n = 2};
    return TR_OK;
}

/* The catalog is asked at every Relation message, also one that says what the last one said: the server sends it when something about the
 * table changed, and the message itself cannot tell a column that was dropped and added again. */
static int relation(struct pg_stream *s, const struct tr_pg_msg *m, struct tr_err *err)
{
    if (!s->described)
        return TR_NOT_READY;
    struct pg_rel *r = tr_u64map_get_ptr(&s->rels, m->u.relation.oid);
    if (r && r->schema && r->schema->fingerprint == s->described->fingerprint) {
        s->described = tr_schema_unref(s->described);
        return TR_OK;
    }
    if (!r) {
        r = tr_calloc(1, sizeof *r);
        if (!r || tr_u64map_put_ptr(&s->rels, m->u.relation.oid, r) < 0) {
            tr_free(r);
            return nomem(err);
        }
    }
    if (r->schema) {
        if (s->n_retired == s->cap_retired) {
            uint32_t cap = s->cap_retired ? s->cap_retired * 2 : 16;
            struct tr_schema **v = tr_realloc(s->retired, cap * sizeof *v);
            if (!v)
                return nomem(err);
            s->retired = v;
            s->cap_retired = cap;
        }
        s->retired[s->n_retired++] = r->schema;
    }
    r->schema = s->described;
    s->described = NULL;
    return TR_OK;
}

/* Where a message may stand. The server keeps to it; what does not is no stream of changes that could be followed. */
static bool in_place(const struct pg_stream *s, const struct tr_pg_msg *m)
{
    switch (m->type) {
    case 'B':
    case 'S':
    case 'c':
        return !s->in_tx && !s->stream_xid;
    case 'C':
        return s->in_tx && !s->replay && m->u.commit.commit_lsn == s->tx.commit_lsn;
    case 'E':
        return s->stream_xid;
    case 'I':
    case 'U':
    case 'D':
    case 'T':
        return s->in_tx;
    default:
        return !strchr("bPKrp", m->type); /* two-phase commit, which was not asked for */
    }
}

static int misplaced(char type, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "replication message '%c' cannot stand where the server sent it: the stream cannot be followed", type);
}

/* Inside Stream Start … Stop: goes into the holding buffer as it is, but for other people's messages. */
static int hold(struct pg_stream *s, struct tr_err *err)
{
    struct tr_slice m = s->item.msg;
    if (m.n < 5)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "a streamed message of %zu bytes is cut off", m.n);
    if (!memchr("RYIUDTMO", m.p[0], 8)) /* it would end, or begin, what it is replayed within */
        return misplaced((char)m.p[0], err);
    if (m.p[0] == 'M') {
        struct tr_pg_msg d;
        if (tr_pgoutput_decode(&s->dec, m, true, &d, err) < 0)
            return undecodable(err);
        if (!tr_pg_beat_is(s->o, &d))
            return TR_OK;
    }
    uint32_t subxid = (uint32_t)m.p[1] << 24 | (uint32_t)m.p[2] << 16 | (uint32_t)m.p[3] << 8 | m.p[4];
    return tr_pg_txbuf_add(&s->txbuf, s->stream_xid, subxid, s->item.lsn, m, err);
}

static int work(struct pg_stream *s, struct tr_err *err)
{
    struct tr_pg_msg m;
    char type = s->item.msg.n ? (char)s->item.msg.p[0] : 0;
    if (s->stream_xid && !s->replay && type != 'E' && type != 'A')
        return hold(s, err);
    int rc = tr_pgoutput_decode(&s->dec, s->item.msg, s->item.in_stream, &m, err);
    if (rc < 0)
        return undecodable(err);
    if (!in_place(s, &m))
        return misplaced(m.type, err);
    switch (m.type) {
    case 'B':
        return begin(s, m.u.begin.final_lsn, m.xid, m.u.begin.ts);
    case 'C':
        return commit(s, m.u.commit.commit_lsn, m.u.commit.end_lsn, err);
    case 'S':
        s->stream_xid = m.xid;
        return TR_OK;
    case 'E':
        s->stream_xid = 0;
        return TR_OK;
    case 'A':
        return tr_pg_txbuf_abort(&s->txbuf, m.xid, m.u.stream_abort.subxid, err);
    case 'c':
        begin(s, m.u.commit.commit_lsn, m.xid, m.u.commit.ts);
        s->tx.end_lsn = m.u.commit.end_lsn;
        s->replay = tr_pg_txbuf_take(&s->txbuf, m.xid);
        return s->replay ? TR_OK : commit(s, m.u.commit.commit_lsn, m.u.commit.end_lsn, err);
    case 'R':
        return relation(s, &m, err);
    case 'I':
    case 'U':
    case 'D':
        return s->item.aborted ? TR_OK : row(s, &m, err);
    case 'T':
        return s->item.aborted ? TR_OK : truncate_(s, &m, err);
    case 'M':
        return s->item.aborted ? TR_OK : message(s, &m, err);
    default: /* O Y: nothing for us */
        return TR_OK;
    }
}

/* The payloads borrow from libpq's memory until the next poll. */
static int keep_mem(struct pg_stream *s, struct tr_err *err)
{
    if (!s->item_mem)
        return TR_OK;
    if (s->n_mem == s->cap_mem) {
        uint32_t cap = s->cap_mem ? s->cap_mem * 2 : 1024;
        char **v = tr_realloc(s->mem, cap * sizeof *v);
        if (!v)
            return nomem(err);
        s->mem = v;
        s->cap_mem = cap;
    }
    s->mem[s->n_mem++] = s->item_mem;
    s->item_mem = NULL;
    return TR_OK;
}

int tr_pg_decode_item(struct pg_stream *s, struct tr_err *err)
{
    uint32_t before = s->n;
    int rc = work(s, err);
    if (rc == TR_NOT_READY)
        return rc;
    s->item.set = false;
    if (rc < 0)
        return rc;
    if (s->n != before)
        return keep_mem(s, err);
    s->bytes += s->item.msg.n; /* bounds a poll that yields nothing: feedback is due between polls */
    if (s->item_mem)
        PQfreemem(s->item_mem);
    s->item_mem = NULL;
    return TR_OK;
}

/* Rows of a replayed transaction borrow from the txbuf only until its next message: they are copied into the arena. */
int tr_pg_decode_replay(struct pg_stream *s, struct tr_err *err)
{
    struct tr_slice msg;
    uint64_t lsn;
    bool aborted;
    int rc = tr_pg_tx_next(&s->txbuf, s->replay, &msg, &lsn, &aborted, err);
    if (rc == TR_EOF) {
        s->replay = tr_pg_tx_free(&s->txbuf, s->replay);
        rc = commit(s, s->tx.commit_lsn, s->tx.end_lsn, err);
        return rc < 0 ? rc : TR_EOF;
    }
    if (rc < 0)
        return rc;
    s->item = (struct pg_item){.msg = tr_arena_dup(&s->arena, msg), .lsn = lsn, .in_stream = true, .aborted = aborted, .set = true};
    return s->item.msg.p ? TR_OK : nomem(err);
}
