/*
 * A replication stream: messages, each behind its length (two bytes, big-endian). First byte: the protocol less one in bits 0 and 1, bit 2
 * little memory for streamed transactions. Second byte: after which message the connection is lost, and all is sent again.
 *
 * What comes out is whole transactions in rising order of their commits, the same changes whether or not the connection was lost, whatever was asked
 * in how many polls.
 */
#include <fcntl.h>
#include <unistd.h>

#include "alloc.h"
#include "fuzz.h"
#include "hash.h"
#include "pg_beat.h"
#include "pg_stream_internal.h"

enum { MESSAGES = 512, CHANGES = 4096 };

struct change {
    uint64_t digest, commit_lsn;
    uint8_t op;
};

struct seen {
    struct change v[CHANGES];
    size_t n;
    bool full;
};

static struct tr_pg_source_options options = {.slot = "main", .heartbeat_schema = "tailrace"};

static char spill[64]; /* directory of spill files, which are unlinked as soon as they are made */

static void remove_spill(void)
{
    rmdir(spill);
}

static struct pg_stream *stream_new(uint8_t settings)
{
    struct pg_stream *s = tr_calloc(1, sizeof *s);
    FUZZ_MUST(s && tr_pg_beat_schema(&options, &s->beat, NULL) == TR_OK);
    s->o = &options;
    s->dec.proto = (uint8_t)(1 + (settings & 3));
    tr_u64map_init(&s->rels);
    if (!*spill) {
        snprintf(spill, sizeof spill, "/dev/shm/tr-fuzz-XXXXXX");
        FUZZ_MUST(mkdtemp(spill));
        atexit(remove_spill);
    }
    tr_pg_txbuf_init(&s->txbuf, spill, settings & 4 ? 128 : 1 << 20);
    tr_arena_init(&s->arena, 4 << 10, 0);
    return s;
}

static void stream_free(struct pg_stream *s)
{
    tr_pg_decode_reset(s);
    FUZZ_MUST(tr_pg_decode_release_output(s) == TR_OK);
    FUZZ_MUST(s->txbuf.memory == 0 && s->txbuf.spilled == 0);
    tr_pg_decode_done(s);
    tr_free(s);
}

static void hash_row(struct tr_hasher *h, const struct tr_row *row, const struct tr_schema *s)
{
    FUZZ_MUST(row->n == 0 || row->n == s->n_columns);
    tr_hasher_add_u64(h, row->n);
    for (uint32_t i = 0; i < row->n; i++) {
        FUZZ_MUST(row->state[i] <= TR_PRESENT);
        tr_hasher_add(h, &row->state[i], 1);
        if (row->state[i] == TR_PRESENT) {
            tr_hasher_add_u64(h, row->v[i].n);
            tr_hasher_add(h, row->v[i].p, row->v[i].n);
        }
    }
}

/* The payloads of a poll are looked at and given back. */
static void poll_ends(struct pg_stream *s, struct seen *to)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tr_change *c = s->v[i].meta;
        struct tr_hasher h;
        tr_hasher_init(&h);
        tr_hasher_add_u64(&h, c->op);
        tr_hasher_add_u64(&h, c->xid);
        tr_hasher_add_u64(&h, c->end_lsn);
        tr_hasher_add_u64(&h, c->change_lsn);
        if (c->op != TR_OP_COMMIT) {
            tr_hasher_add_u64(&h, c->schema->fingerprint);
            hash_row(&h, &c->before, c->schema);
            hash_row(&h, &c->after, c->schema);
        }
        FUZZ_MUST((c->op == TR_OP_COMMIT) == ((s->v[i].flags & TR_PAYLOAD_TX_END) != 0));
        if (to->n == CHANGES) {
            to->full = true;
            break;
        }
        to->v[to->n++] = (struct change){tr_hasher_end128(&h).lo, c->commit_lsn, c->op};
    }
    FUZZ_MUST(tr_pg_decode_release_output(s) == TR_OK);
}

/* What the catalog would say, made of the message itself. */
static void describe(struct pg_stream *s)
{
    struct tr_column cols[TR_PG_COLUMNS_MAX];
    struct tr_pg_msg m;
    FUZZ_MUST(tr_pgoutput_decode(&s->dec, s->item.msg, s->item.in_stream, &m, NULL) == TR_OK && m.type == 'R');
    uint16_t key = 0;
    for (uint16_t i = 0; i < m.u.relation.n; i++) {
        bool is_key = m.u.relation.cols[i].flags & 1;
        cols[i] = (struct tr_column){.name = m.u.relation.cols[i].name, .source_type = "", .type = TR_TYPE_TEXT, .key_pos = is_key ? ++key : 0, .source_type_id = m.u.relation.cols[i].type_oid};
    }
    struct tr_schema_def d = {.ns = m.u.relation.ns, .name = m.u.relation.name, .columns = cols, .n_columns = m.u.relation.n, .full_identity = m.u.relation.identity == 'f'};
    if (tr_schema_new(&d, &s->described, NULL) < 0) { /* a name is missing: the catalog has all */
        d = (struct tr_schema_def){.ns = "public", .name = "nameless"};
        FUZZ_MUST(tr_schema_new(&d, &s->described, NULL) == TR_OK);
    }
}

static int take(struct pg_stream *s, struct tr_err *err)
{
    int rc = tr_pg_decode_item(s, err);
    if (rc == TR_NOT_READY) {
        describe(s);
        rc = tr_pg_decode_item(s, err);
        FUZZ_MUST(rc != TR_NOT_READY);
    }
    return rc;
}

static int feed(struct pg_stream *s, struct tr_slice m, uint64_t lsn, struct seen *to, struct tr_err *err)
{
    s->item = (struct pg_item){.msg = m, .lsn = lsn, .set = true};
    int rc = take(s, err);
    while (rc == TR_OK && s->replay) {
        rc = tr_pg_decode_replay(s, err);
        if (rc == TR_EOF)
            return TR_OK;
        if (rc == TR_OK)
            rc = take(s, err);
        if (s->n > 7) /* polls end also within a transaction */
            poll_ends(s, to);
    }
    return rc;
}

/* Messages [0, n). Returns how many were taken. */
static size_t run(struct pg_stream *s, const struct tr_slice *v, size_t n, struct seen *to)
{
    struct tr_err err = {0};
    for (size_t i = 0; i < n; i++) {
        int rc = feed(s, v[i], i + 1, to, &err);
        if (rc < 0)
            FUZZ_MUST(rc == TR_FATAL && err.rc == rc && err.msg[0]);
        if (rc < 0 || s->n > 7)
            poll_ends(s, to);
        if (rc < 0)
            return i;
    }
    poll_ends(s, to);
    return n;
}

/* Rows of one transaction, then its commit; commits rise. */
static void in_order(const struct seen *x)
{
    uint64_t last = 0, open = 0;
    for (size_t i = 0; i < x->n; i++) {
        FUZZ_MUST(x->v[i].commit_lsn > last);
        FUZZ_MUST(!open || x->v[i].commit_lsn == open);
        open = x->v[i].commit_lsn;
        if (x->v[i].op == TR_OP_COMMIT) {
            FUZZ_MUST(i > 0 && x->v[i - 1].op != TR_OP_COMMIT);
            last = open;
            open = 0;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static struct tr_slice v[MESSAGES];
    static struct seen straight, broken;
    uint8_t *own[MESSAGES];
    size_t messages = 0, lost = n > 1 ? p[1] : 0;
    uint8_t settings = n ? p[0] : 0;
    for (size_t at = 2; at + 2 <= n && messages < MESSAGES; messages++) {
        size_t len = (size_t)p[at] << 8 | p[at + 1], size;
        at += 2;
        if (len > n - at)
            len = n - at;
        own[messages] = fuzz_rest(p, at + len, at, &size);
        v[messages] = tr_slice_of(own[messages], len);
        at += len;
    }
    straight.n = broken.n = 0;
    straight.full = broken.full = false;
    struct pg_stream *s = stream_new(settings);
    size_t good = run(s, v, messages, &straight);
    stream_free(s);
    in_order(&straight);

    s = stream_new(settings);
    run(s, v, lost < good ? lost : good, &broken);
    tr_pg_decode_reset(s);
    FUZZ_MUST(run(s, v, good, &broken) == good);
    stream_free(s);
    if (!straight.full && !broken.full && good == messages) {
        FUZZ_MUST(straight.n == broken.n);
        FUZZ_MUST(memcmp(straight.v, broken.v, straight.n * sizeof straight.v[0]) == 0);
    }
    for (size_t i = 0; i < messages; i++)
        free(own[i]);
    return 0;
}
