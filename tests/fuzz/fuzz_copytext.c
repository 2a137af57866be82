/* One line of COPY's text format; the first byte says how many columns. What decodes is the same after encoding and decoding again. */
#include "copytext.h"
#include "fuzz.h"

enum { COLUMNS = 8 };

static void encode(const struct tr_slice *v, const uint8_t *state, uint32_t n, struct tr_buf *b)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            FUZZ_MUST(tr_buf_append_u8(b, '\t') == TR_OK);
        if (state[i] == TR_NULL)
            FUZZ_MUST(tr_buf_append_str(b, "\\N") == TR_OK);
        else
            FUZZ_MUST(tr_copytext_append(b, v[i]) == TR_OK);
    }
}

static int decode(struct tr_slice line, uint32_t n, uint8_t **scratch, struct tr_slice *v, uint8_t *state, struct tr_err *err)
{
    *scratch = malloc(line.n ? line.n : 1); /* as much as the contract asks for */
    FUZZ_MUST(*scratch != NULL);
    return tr_copytext_decode(line, n, *scratch, v, state, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_slice v[COLUMNS], w[COLUMNS];
    uint8_t state[COLUMNS], again[COLUMNS], *scratch, *other;
    struct tr_err err = {0};
    struct tr_buf b = {0}, c = {0};
    size_t rest;
    uint32_t columns = n ? p[0] % (COLUMNS + 1) : 0;
    uint8_t *line = fuzz_rest(p, n, 1, &rest);
    if (fuzz_taken(decode(tr_slice_of(line, rest), columns, &scratch, v, state, &err), TR_REJECT, &err) && columns) {
        size_t sum = 0;
        encode(v, state, columns, &b);
        FUZZ_MUST(decode(tr_buf_slice(&b), columns, &other, w, again, &err) == TR_OK);
        for (uint32_t i = 0; i < columns; i++) {
            FUZZ_MUST(state[i] == again[i] && (state[i] == TR_NULL || state[i] == TR_PRESENT));
            FUZZ_MUST(tr_slice_eq(v[i], w[i]));
            sum += v[i].n;
        }
        FUZZ_MUST(sum <= rest);
        encode(w, again, columns, &c);
        FUZZ_MUST(tr_slice_eq(tr_buf_slice(&b), tr_buf_slice(&c)));
        free(other);
    }
    tr_buf_done(&b);
    tr_buf_done(&c);
    free(scratch);
    free(line);
    return 0;
}
