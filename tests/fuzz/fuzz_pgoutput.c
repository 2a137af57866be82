/* One replication message. First byte: bit 0 within a stream, bits 1 and 2 the protocol less one. What decodes is encoded again, which must yield the
 * same bytes, so nothing was passed over. */
#include "fuzz.h"
#include "pgoutput.h"

static struct tr_pgoutput decoder;

static void be(struct tr_buf *b, uint64_t v, int bytes)
{
    while (bytes-- > 0)
        FUZZ_MUST(tr_buf_append_u8(b, (uint8_t)(v >> 8 * bytes)) == TR_OK);
}

static void cstr(struct tr_buf *b, const char *s)
{
    FUZZ_MUST(tr_buf_append(b, s, strlen(s) + 1) == TR_OK);
}

static void tuple(struct tr_buf *b, const struct tr_pg_tuple *t)
{
    be(b, t->n, 2);
    for (uint16_t i = 0; i < t->n; i++) {
        be(b, t->kind[i], 1);
        if (t->kind[i] == 't' || t->kind[i] == 'b') {
            be(b, t->v[i].n, 4);
            FUZZ_MUST(tr_buf_append_slice(b, t->v[i]) == TR_OK);
        }
    }
}

/* in: for what the decoder rightly leaves out (the time of a rollback) or says in other words (pg_catalog; any byte but 0 for the first piece). */
static void encode(const struct tr_pg_msg *m, bool in_stream, struct tr_slice in, struct tr_buf *b)
{
    be(b, (uint8_t)m->type, 1);
    if (in_stream && strchr("RYIUDTM", m->type))
        be(b, m->xid, 4);
    switch (m->type) {
    case 'B':
        be(b, m->u.begin.final_lsn, 8);
        be(b, (uint64_t)m->u.begin.ts, 8);
        be(b, m->xid, 4);
        break;
    case 'c':
        be(b, m->xid, 4);
        __attribute__((fallthrough));
    case 'C':
        be(b, m->u.commit.flags, 1);
        be(b, m->u.commit.commit_lsn, 8);
        be(b, m->u.commit.end_lsn, 8);
        be(b, (uint64_t)m->u.commit.ts, 8);
        break;
    case 'O':
        be(b, m->u.origin.lsn, 8);
        cstr(b, m->u.origin.name);
        break;
    case 'R':
        be(b, m->u.relation.oid, 4);
        cstr(b, !strcmp(m->u.relation.ns, "pg_catalog") && !in.p[b->n] ? "" : m->u.relation.ns);
        cstr(b, m->u.relation.name);
        be(b, (uint8_t)m->u.relation.identity, 1);
        be(b, m->u.relation.n, 2);
        for (uint16_t i = 0; i < m->u.relation.n; i++) {
            be(b, m->u.relation.cols[i].flags, 1);
            cstr(b, m->u.relation.cols[i].name);
            be(b, m->u.relation.cols[i].type_oid, 4);
            be(b, (uint32_t)m->u.relation.cols[i].typmod, 4);
        }
        break;
    case 'Y':
        be(b, m->u.type_.oid, 4);
        cstr(b, m->u.type_.ns);
        cstr(b, m->u.type_.name);
        break;
    case 'I':
    case 'U':
    case 'D':
        be(b, m->u.row.oid, 4);
        if (m->u.row.old_kind) {
            be(b, (uint8_t)m->u.row.old_kind, 1);
            tuple(b, &m->u.row.old);
        }
        if (m->u.row.has_new) {
            be(b, 'N', 1);
            tuple(b, &m->u.row.new_);
        }
        FUZZ_MUST(m->u.row.has_new == (m->type != 'D'));
        FUZZ_MUST(m->type != 'I' || !m->u.row.old_kind);
        break;
    case 'T':
        be(b, m->u.truncate.n, 4);
        be(b, m->u.truncate.flags, 1);
        for (uint32_t i = 0; i < m->u.truncate.n; i++)
            be(b, tr_pg_truncate_oid(m, i), 4);
        break;
    case 'M':
        be(b, m->u.message.flags, 1);
        be(b, m->u.message.lsn, 8);
        cstr(b, m->u.message.prefix);
        be(b, m->u.message.content.n, 4);
        FUZZ_MUST(tr_buf_append_slice(b, m->u.message.content) == TR_OK);
        break;
    case 'S':
        be(b, m->xid, 4);
        be(b, m->u.stream_start.first_segment ? in.p[in.n - 1] : 0, 1);
        break;
    case 'E':
        break;
    case 'A':
        be(b, m->xid, 4);
        be(b, m->u.stream_abort.subxid, 4);
        if (in.n > 9) {
            FUZZ_MUST(decoder.proto >= 4);
            be(b, m->u.stream_abort.lsn, 8);
            be(b, (uint64_t)m->u.stream_abort.ts, 8);
        }
        break;
    default:
        FUZZ_MUST(strchr("bPKrp", m->type));
        if (m->type != 'b')
            be(b, m->u.prepare.flags, 1);
        be(b, m->u.prepare.prepare_lsn, 8);
        be(b, m->u.prepare.end_lsn, 8);
        be(b, (uint64_t)m->u.prepare.ts, 8);
        if (m->type == 'r')
            FUZZ_MUST(tr_buf_append(b, in.p + b->n, 8) == TR_OK);
        be(b, m->xid, 4);
        cstr(b, m->u.prepare.gid);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_pg_msg m;
    struct tr_err err = {0};
    struct tr_buf b = {0};
    size_t rest;
    bool in_stream = n && p[0] & 1;
    decoder.proto = (uint8_t)(1 + (n ? p[0] >> 1 & 3 : 0));
    uint8_t *msg = fuzz_rest(p, n, 1, &rest);
    struct tr_slice in = tr_slice_of(msg, rest);
    if (fuzz_taken(tr_pgoutput_decode(&decoder, in, in_stream, &m, &err), TR_REJECT, &err)) {
        encode(&m, in_stream, in, &b);
        FUZZ_MUST(tr_slice_eq(tr_buf_slice(&b), in));
    } else {
        FUZZ_MUST(strstr(err.msg, "pgoutput message"));
    }
    tr_buf_done(&b);
    free(msg);
    return 0;
}
