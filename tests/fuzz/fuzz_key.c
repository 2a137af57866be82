/* One encoded key; the first byte says how many columns and of which type. Encoding what was decoded makes it canonical, once. */
#include "fuzz.h"
#include "key.h"

enum { COLUMNS = 4 };

static struct tr_schema *schema_of(uint8_t type, uint32_t n)
{
    static const char *const names[COLUMNS] = {"a", "b", "c", "d"};
    struct tr_column c[COLUMNS] = {{0}};
    struct tr_schema *s = NULL;
    for (uint32_t i = 0; i < n; i++)
        c[i] = (struct tr_column){.name = names[i], .source_type = "", .type = type, .key_pos = (uint16_t)(n - i)};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .columns = c, .n_columns = n};
    FUZZ_MUST(tr_schema_new(&d, &s, NULL) == TR_OK);
    return s;
}

/* decode, then encode. */
static int turn(const struct tr_schema *s, struct tr_slice key, struct tr_slice *v, struct tr_buf *out, struct tr_err *err)
{
    struct tr_slice in_order[COLUMNS];
    static const uint8_t state[COLUMNS] = {TR_PRESENT, TR_PRESENT, TR_PRESENT, TR_PRESENT};
    int rc = tr_key_decode(key, s->n_key, in_order, err);
    if (rc < 0)
        return rc;
    for (uint32_t k = 0; k < s->n_key; k++)
        v[s->key[k]] = in_order[k];
    struct tr_row row = {v, state, s->n_columns};
    FUZZ_MUST(tr_key_encode(s, &row, out, NULL) == TR_OK);
    return TR_OK;
}

/* -12.50, as numeric and float print it; of other texts nothing is said. */
static bool is_number(struct tr_slice v)
{
    size_t i = v.n && v.p[0] == '-', digits = 0, points = 0;
    for (; i < v.n; i++) {
        points += v.p[i] == '.';
        digits += v.p[i] >= '0' && v.p[i] <= '9';
        if (points + (v.p[i] >= '0' && v.p[i] <= '9') == 0 || points > 1 || !digits)
            return false;
    }
    return digits && v.p[v.n - 1] != '.';
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_slice v[COLUMNS], w[COLUMNS];
    struct tr_err err = {0};
    struct tr_buf b = {0}, c = {0};
    size_t rest;
    uint8_t type = n ? p[0] >> 2 & 15 : 0;
    struct tr_schema *s = schema_of(type, 1 + (n ? p[0] & 3 : 0));
    uint8_t *key = fuzz_rest(p, n, 1, &rest);
    struct tr_slice in = tr_slice_of(key, rest);
    if (fuzz_taken(turn(s, in, v, &b, &err), TR_REJECT, &err)) {
        FUZZ_MUST(b.n <= rest);
        FUZZ_MUST(b.n != rest || tr_slice_eq(tr_buf_slice(&b), in));
        FUZZ_MUST(turn(s, tr_buf_slice(&b), w, &c, &err) == TR_OK);
        bool numbers = true;
        for (uint32_t i = 0; i < s->n_columns; i++)
            numbers &= is_number(v[i]);
        if (numbers || (type != TR_TYPE_DECIMAL && type != TR_TYPE_FLOAT32 && type != TR_TYPE_FLOAT64))
            FUZZ_MUST(tr_slice_eq(tr_buf_slice(&b), tr_buf_slice(&c)));
        FUZZ_MUST(c.n != b.n || tr_key_hash(tr_buf_slice(&b)) == tr_key_hash(tr_buf_slice(&c)));
        for (uint32_t i = 0; i < s->n_columns && type == TR_TYPE_TEXT; i++)
            FUZZ_MUST(tr_slice_eq(v[i], w[i]));
    } else {
        FUZZ_MUST(strstr(err.msg, "encoded key"));
    }
    tr_buf_done(&b);
    tr_buf_done(&c);
    tr_schema_unref(s);
    free(key);
    return 0;
}
