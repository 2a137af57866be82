/* One persisted definition of a table. What decodes, encodes to the same bytes, unless a number was written longer than it need be. */
#include <tailrace/schema.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_schema *s = NULL, *again = NULL, *other = NULL;
    struct tr_err err = {0};
    struct tr_buf b = {0}, c = {0};
    struct tr_slice in = tr_slice_of(p, n);
    if (fuzz_taken(tr_schema_decode(in, &s, &err), TR_REJECT, &err)) {
        FUZZ_MUST(tr_schema_encode(s, &b) == TR_OK);
        FUZZ_MUST(b.n <= n);
        FUZZ_MUST(b.n != n || tr_slice_eq(tr_buf_slice(&b), in));
        FUZZ_MUST(tr_schema_decode(tr_buf_slice(&b), &again, &err) == TR_OK);
        FUZZ_MUST(again->fingerprint == s->fingerprint && again->table_id == s->table_id && again->version == s->version);
        FUZZ_MUST(tr_schema_encode(again, &c) == TR_OK && tr_slice_eq(tr_buf_slice(&b), tr_buf_slice(&c)));
        FUZZ_MUST(tr_schema_renumber(s, 7, 9, &other, &err) == TR_OK);
        FUZZ_MUST(other->fingerprint == s->fingerprint);
        for (uint32_t i = 0; i < s->n_key; i++)
            FUZZ_MUST(s->key[i] < s->n_columns && s->columns[s->key[i]].key_pos == i + 1);
        for (uint32_t i = 0; i < s->n_columns; i++)
            FUZZ_MUST(tr_schema_find(s, tr_slice_str(s->columns[i].name)) >= 0);
    }
    tr_schema_unref(s);
    tr_schema_unref(again);
    tr_schema_unref(other);
    tr_buf_done(&b);
    tr_buf_done(&c);
    return 0;
}
