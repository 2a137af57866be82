/* One row image; the first byte says how many columns there are. There is one encoding of a row, but that a number may be written longer than it need be. */
#include "fuzz.h"
#include "rowimage.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_row row = {0}, again = {0};
    struct tr_err err = {0};
    struct tr_buf b = {0};
    size_t rest;
    uint32_t cap = n ? p[0] : 0;
    struct tr_slice *v = calloc(2 * cap + 1, sizeof *v);
    uint8_t *state = malloc(2 * cap + 1), *image = fuzz_rest(p, n, 1, &rest);
    FUZZ_MUST(v && state);
    struct tr_slice in = tr_slice_of(image, rest);
    if (fuzz_taken(tr_rowimage_decode(in, cap, v, state, &row, &err), TR_REJECT, &err)) {
        FUZZ_MUST(row.n <= cap);
        FUZZ_MUST(tr_rowimage_encode(&row, &b) == TR_OK);
        FUZZ_MUST(tr_rowimage_decode(tr_buf_slice(&b), cap, v + cap, state + cap, &again, &err) == TR_OK);
        FUZZ_MUST(again.n == row.n);
        for (uint32_t i = 0; i < row.n; i++) {
            FUZZ_MUST(row.state[i] == again.state[i]);
            FUZZ_MUST(row.state[i] != TR_PRESENT || tr_slice_eq(row.v[i], again.v[i]));
        }
        FUZZ_MUST(rest == 0 || b.n <= rest);
        FUZZ_MUST(b.n != rest || tr_slice_eq(tr_buf_slice(&b), in));
    } else {
        FUZZ_MUST(strstr(err.msg, "row image"));
    }
    tr_buf_done(&b);
    free(image);
    free(state);
    free(v);
    return 0;
}
