#include "pgoutput.h"

#include "cursor.h"

static int64_t be64s(struct tr_cur *c)
{
    return (int64_t)tr_cur_be64(c);
}

static const char *cstr(struct tr_cur *c)
{
    struct tr_slice s = tr_cur_cstr(c);
    return s.p ? (const char *)s.p : ""; /* the NUL stands behind it */
}

static void tuple(struct tr_cur *c, struct tr_slice *v, uint8_t *kind, struct tr_pg_tuple *ret)
{
    uint16_t n = tr_cur_be16(c);
    if (n > TR_PG_COLUMNS_MAX) {
        tr_cur_fail(c);
        return;
    }
    for (uint16_t i = 0; i < n && tr_cur_ok(c); i++) {
        kind[i] = tr_cur_u8(c);
        v[i] = (struct tr_slice){NULL, 0};
        if (kind[i] == 't' || kind[i] == 'b')
            v[i] = tr_cur_bytes(c, tr_cur_be32(c));
        else if (kind[i] != 'n' && kind[i] != 'u')
            tr_cur_fail(c);
    }
    ret->n = n;
    ret->kind = kind;
    ret->v = v;
}

static void row(struct tr_pgoutput *d, struct tr_cur *c, struct tr_pg_msg *m)
{
    m->u.row.oid = tr_cur_be32(c);
    uint8_t k = tr_cur_u8(c);
    if ((k == 'K' || k == 'O') && m->type != 'I') {
        m->u.row.old_kind = (char)k;
        tuple(c, d->old_v, d->old_kind, &m->u.row.old);
        if (m->type == 'D')
            return;
        k = tr_cur_u8(c);
    }
    if (k != 'N' || m->type == 'D') {
        tr_cur_fail(c);
        return;
    }
    m->u.row.has_new = true;
    tuple(c, d->new_v, d->new_kind, &m->u.row.new_);
}

static void relation(struct tr_pgoutput *d, struct tr_cur *c, struct tr_pg_msg *m)
{
    m->u.relation.oid = tr_cur_be32(c);
    m->u.relation.ns = cstr(c);
    if (!*m->u.relation.ns)
        m->u.relation.ns = "pg_catalog"; /* sent as the empty string */
    m->u.relation.name = cstr(c);
    m->u.relation.identity = (char)tr_cur_u8(c);
    uint16_t n = tr_cur_be16(c);
    if (n > TR_PG_COLUMNS_MAX)
        tr_cur_fail(c);
    for (uint16_t i = 0; i < n && tr_cur_ok(c); i++) {
        d->cols[i].flags = tr_cur_u8(c);
        d->cols[i].name = cstr(c);
        d->cols[i].type_oid = tr_cur_be32(c);
        d->cols[i].typmod = (int32_t)tr_cur_be32(c);
    }
    m->u.relation.n = n;
    m->u.relation.cols = d->cols;
}

static void prepare(struct tr_cur *c, struct tr_pg_msg *m)
{
    if (m->type != 'b')
        m->u.prepare.flags = tr_cur_u8(c);
    m->u.prepare.prepare_lsn = tr_cur_be64(c);
    m->u.prepare.end_lsn = tr_cur_be64(c);
    m->u.prepare.ts = be64s(c);
    if (m->type == 'r')
        be64s(c); /* rollback time */
    m->xid = tr_cur_be32(c);
    m->u.prepare.gid = cstr(c);
}

int tr_pgoutput_decode(struct tr_pgoutput *d, struct tr_slice msg, bool in_stream, struct tr_pg_msg *m, struct tr_err *err)
{
    struct tr_cur cur = tr_cur_of(msg), *c = &cur;
    memset(m, 0, sizeof *m);
    m->type = (char)tr_cur_u8(c);
    if (in_stream && m->type && strchr("RYIUDTM", m->type))
        m->xid = tr_cur_be32(c);
    switch (m->type) {
    case 'B':
        m->u.begin.final_lsn = tr_cur_be64(c);
        m->u.begin.ts = be64s(c);
        m->xid = tr_cur_be32(c);
        break;
    case 'c':
        m->xid = tr_cur_be32(c);
        __attribute__((fallthrough));
    case 'C':
        m->u.commit.flags = tr_cur_u8(c);
        m->u.commit.commit_lsn = tr_cur_be64(c);
        m->u.commit.end_lsn = tr_cur_be64(c);
        m->u.commit.ts = be64s(c);
        break;
    case 'O':
        m->u.origin.lsn = tr_cur_be64(c);
        m->u.origin.name = cstr(c);
        break;
    case 'R':
        relation(d, c, m);
        break;
    case 'Y':
        m->u.type_.oid = tr_cur_be32(c);
        m->u.type_.ns = cstr(c);
        m->u.type_.name = cstr(c);
        break;
    case 'I':
    case 'U':
    case 'D':
        row(d, c, m);
        break;
    case 'T':
        m->u.truncate.n = tr_cur_be32(c);
        m->u.truncate.flags = tr_cur_u8(c);
        if (m->u.truncate.n > tr_cur_left(c) / 4)
            tr_cur_fail(c);
        else
            m->u.truncate.oids_be = tr_cur_take(c, (size_t)m->u.truncate.n * 4);
        break;
    case 'M':
        m->u.message.flags = tr_cur_u8(c);
        m->u.message.lsn = tr_cur_be64(c);
        m->u.message.prefix = cstr(c);
        m->u.message.content = tr_cur_bytes(c, tr_cur_be32(c));
        break;
    case 'S':
        m->xid = tr_cur_be32(c);
        m->u.stream_start.first_segment = tr_cur_u8(c) != 0;
        break;
    case 'E':
        break;
    case 'A':
        m->xid = tr_cur_be32(c);
        m->u.stream_abort.subxid = tr_cur_be32(c);
        if (d->proto >= 4 && tr_cur_left(c) >= 16) { /* only with streaming = parallel */
            m->u.stream_abort.lsn = tr_cur_be64(c);
            m->u.stream_abort.ts = be64s(c);
        }
        break;
    case 'b':
    case 'P':
    case 'K':
    case 'r':
    case 'p':
        prepare(c, m);
        break;
    default:
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "pgoutput message of unknown type 0x%02x (%zu bytes)", (unsigned)(uint8_t)m->type, msg.n);
    }
    if (!tr_cur_done(c))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "pgoutput message '%c' of %zu bytes is malformed", m->type, msg.n);
    return TR_OK;
}

uint32_t tr_pg_truncate_oid(const struct tr_pg_msg *m, uint32_t i)
{
    uint32_t v;
    memcpy(&v, m->u.truncate.oids_be + (size_t)i * 4, 4);
    return be32toh(v);
}

int64_t tr_pg_time_us(int64_t ts)
{
    return ts + INT64_C(946684800000000); /* 2000-01-01 */
}
