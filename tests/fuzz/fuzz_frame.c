/* One frame of the change log. First byte: bit 0, the length and the checksum are made right before. What decodes is the same after encoding
 * and decoding again. */
#include "crc32c.h"
#include "frame.h"
#include "fuzz.h"
#include "rowimage.h"

enum { COLUMNS = 64 };

static void seal(uint8_t *p, size_t n)
{
    uint32_t len = htole32((uint32_t)(n - 4)), crc = htole32(tr_crc32c(0, p + 8, n - 8));
    memcpy(p, &len, 4);
    memcpy(p + 4, &crc, 4);
}

/* The body's images as rows; false: one of them is no image. */
static bool rows_of(struct tr_frame_body *f, struct tr_slice *v, uint8_t *state)
{
    return tr_rowimage_decode(f->old_image, COLUMNS, v, state, &f->change.before, NULL) == TR_OK &&
           tr_rowimage_decode(f->image, COLUMNS, v + COLUMNS, state + COLUMNS, &f->change.after, NULL) == TR_OK;
}

static bool same_row(const struct tr_row *a, const struct tr_row *b)
{
    for (uint32_t i = 0; i < a->n && a->n == b->n; i++)
        if (a->state[i] != b->state[i] || (a->state[i] == TR_PRESENT && !tr_slice_eq(a->v[i], b->v[i])))
            return false;
    return a->n == b->n;
}

static void same(const struct tr_frame_body *x, const struct tr_frame_body *y)
{
    const struct tr_change *a = &x->change, *b = &y->change;
    FUZZ_MUST(a->op == b->op && a->epoch == b->epoch && a->flags == b->flags && a->ordinal == b->ordinal);
    FUZZ_MUST(a->version == b->version && a->commit_lsn == b->commit_lsn && a->change_lsn == b->change_lsn && a->end_lsn == b->end_lsn);
    FUZZ_MUST(a->xid == b->xid && a->snapshot_id == b->snapshot_id && a->commit_us == b->commit_us && a->capture_us == b->capture_us);
    FUZZ_MUST(tr_slice_eq(a->key, b->key) && tr_slice_eq(a->old_key, b->old_key) && tr_slice_eq(a->message, b->message));
    FUZZ_MUST(x->table_id == y->table_id && x->schema_version == y->schema_version);
    FUZZ_MUST(same_row(&a->before, &b->before) && same_row(&a->after, &b->after));
}

static void again(struct tr_frame_body *f)
{
    struct tr_slice v[4 * COLUMNS];
    uint8_t state[4 * COLUMNS];
    struct tr_frame_body g;
    struct tr_schema *s = NULL;
    struct tr_buf b = {0};
    if (!rows_of(f, v, state))
        return;
    struct tr_schema_def d = {.table_id = f->table_id, .version = f->schema_version, .ns = "public", .name = "t"};
    FUZZ_MUST(tr_schema_new(&d, &s, NULL) == TR_OK);
    f->change.schema = s;
    FUZZ_MUST(tr_frame_encode(&f->change, &b, NULL) == TR_OK);
    FUZZ_MUST(tr_frame_decode(tr_buf_slice(&b), &g, NULL) == TR_OK);
    FUZZ_MUST(rows_of(&g, v + 2 * COLUMNS, state + 2 * COLUMNS));
    same(f, &g);
    tr_buf_done(&b);
    tr_schema_unref(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_frame_head head = {0};
    struct tr_frame_body f;
    struct tr_err err = {0};
    size_t rest;
    uint8_t *bytes = fuzz_rest(p, n, 1, &rest);
    if (n && p[0] & 1 && rest >= TR_FRAME_HEADER)
        seal(bytes, rest);
    struct tr_slice in = tr_slice_of(bytes, rest);
    int rc = tr_frame_peek(in, &head, &err);
    FUZZ_MUST(rc == TR_OK || rc == TR_AGAIN || rc == TR_REJECT);
    FUZZ_MUST(rc != TR_OK || head.length <= rest);
    if (fuzz_taken(tr_frame_decode(in, &f, &err), TR_REJECT, &err)) {
        FUZZ_MUST(rc == TR_OK);
        again(&f);
    }
    free(bytes);
    return 0;
}
