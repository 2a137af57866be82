#include "ch_type.h"

#include <stdlib.h>

#include "check.h"

static const struct kind {
    const char *name;
    uint8_t width;
} kinds[TR_CH_KINDS_] = {
#define X(kind, name, width) {name, width},
    TR_CH_KIND_LIST(X)
#undef X
};

struct parser {
    const uint8_t *p, *end;
    struct tr_arena *arena;
    struct tr_err *err;
    struct tr_slice whole;
};

enum { SHOWN_MAX = 100 };

static int refuse(struct parser *ps, struct tr_slice what, const char *why)
{
    what = tr_slice_sub(what, 0, SHOWN_MAX);
    return tr_err_set(ps->err, TR_REJECT, TR_DOM_SCHEMA, "ClickHouse type %" TR_SLICE_FMT "%s: %s", TR_SLICE_ARG(what), what.n == SHOWN_MAX ? "…" : "", why);
}

static int malformed(struct parser *ps, const char *why)
{
    return refuse(ps, ps->whole, why);
}

static int no_memory(struct parser *ps)
{
    return tr_err_set(ps->err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a ClickHouse type of %zu bytes", ps->whole.n);
}

static void skip_blanks(struct parser *ps)
{
    while (ps->p < ps->end && (*ps->p == ' ' || *ps->p == '\n' || *ps->p == '\t'))
        ps->p++;
}

static bool take(struct parser *ps, char c)
{
    const uint8_t *from = ps->p;
    skip_blanks(ps);
    if (ps->p == ps->end || *ps->p != (uint8_t)c) {
        ps->p = from;
        return false;
    }
    ps->p++;
    return true;
}

static bool is_word(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c >= 0x80;
}

static struct tr_slice word(struct parser *ps)
{
    skip_blanks(ps);
    const uint8_t *from = ps->p;
    while (ps->p < ps->end && is_word(*ps->p))
        ps->p++;
    return tr_slice_of(from, (size_t)(ps->p - from));
}

/* -32768 … 4294967295, which is all that types hold. */
static bool number(struct parser *ps, int64_t *ret)
{
    skip_blanks(ps);
    bool minus = take(ps, '-');
    const uint8_t *from = ps->p;
    int64_t v = 0;
    for (; ps->p < ps->end && *ps->p >= '0' && *ps->p <= '9' && ps->p - from < 11; ps->p++)
        v = v * 10 + (*ps->p - '0');
    *ret = minus ? -v : v;
    return ps->p != from && v <= UINT32_MAX;
}

/* Between quotes, with escapes as they are; the quotes are not part of it. */
static bool quoted(struct parser *ps, char quote, struct tr_slice *ret)
{
    if (!take(ps, quote))
        return false;
    const uint8_t *from = ps->p;
    while (ps->p < ps->end && *ps->p != (uint8_t)quote)
        ps->p += *ps->p == '\\' && ps->end - ps->p > 1 ? 2 : 1;
    if (ps->p >= ps->end)
        return false;
    *ret = tr_slice_of(from, (size_t)(ps->p - from));
    ps->p++;
    return true;
}

static uint8_t unescaped(uint8_t c)
{
    static const char from[] = "bfnrt0a", to[] = "\b\f\n\r\t\0\a";
    const char *at = c ? strchr(from, c) : NULL;
    return at ? (uint8_t)to[at - from] : c;
}

/* The bytes of a quoted text; \xHH is the one escape longer than two. */
static bool unquote(struct parser *ps, struct tr_slice spelled, struct tr_slice *ret)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t *out = tr_arena_alloc_aligned(ps->arena, spelled.n + 1, 1);
    size_t n = 0;
    if (!out)
        return false;
    for (size_t i = 0; i < spelled.n; i++) {
        if (spelled.p[i] != '\\' || i + 1 == spelled.n) {
            out[n++] = spelled.p[i];
            continue;
        }
        uint8_t c = spelled.p[++i];
        const char *hi = NULL, *lo = NULL;
        if (c == 'x' && i + 2 < spelled.n && spelled.p[i + 1] && spelled.p[i + 2]) {
            hi = strchr(hex, spelled.p[i + 1] | 0x20);
            lo = strchr(hex, spelled.p[i + 2] | 0x20);
        }
        if (hi && lo) {
            out[n++] = (uint8_t)((hi - hex) << 4 | (lo - hex));
            i += 2;
        } else {
            out[n++] = unescaped(c);
        }
    }
    *ret = tr_slice_of(out, n);
    return true;
}

static int parse(struct parser *ps, unsigned depth, const struct tr_ch_type **ret);

/* One more element of a growing array in the arena; what it outgrew stays there until the arena is reset. */
static void *grown(struct parser *ps, void *v, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    *cap = *cap ? *cap * 2 : 4;
    void *more = tr_arena_alloc(ps->arena, *cap * size);
    if (more && n)
        memcpy(more, v, n * size);
    return more;
}

/* ---- arguments by kind; the opening parenthesis is taken, the closing one is the caller's ---- */

static int parse_inner(struct parser *ps, unsigned depth, struct tr_ch_type *t, uint32_t n)
{
    const struct tr_ch_type **of = tr_arena_calloc(ps->arena, n, sizeof *of);
    if (!of)
        return no_memory(ps);
    for (uint32_t i = 0; i < n; i++) {
        if (i && !take(ps, ','))
            return malformed(ps, "a comma is missing");
        int rc = parse(ps, depth + 1, &of[i]);
        if (rc < 0)
            return rc;
    }
    t->of = of;
    t->n = n;
    return TR_OK;
}

/* A name stands before an element's type if a blank and more than ',' or ')' or '(' follow the word. */
static bool element_name(struct parser *ps, struct tr_slice *ret)
{
    skip_blanks(ps);
    const uint8_t *from = ps->p;
    if (ps->p < ps->end && (*ps->p == '`' || *ps->p == '"')) {
        if (!quoted(ps, (char)*ps->p, ret))
            return false;
        *ret = tr_slice_of(from, (size_t)(ps->p - from));
        return true;
    }
    *ret = word(ps);
    skip_blanks(ps);
    if (ret->n && ps->p < ps->end && *ps->p != ',' && *ps->p != ')' && *ps->p != '(')
        return true;
    ps->p = from;
    return false;
}

static int parse_elements(struct parser *ps, unsigned depth, struct tr_ch_type *t)
{
    const struct tr_ch_type **of = NULL;
    struct tr_slice *names = NULL;
    uint32_t n = 0, cap = 0, names_cap = 0, named = 0;
    skip_blanks(ps);
    if (ps->p < ps->end && *ps->p == ')')
        return malformed(ps, "an element is missing");
    do {
        of = grown(ps, of, n, &cap, sizeof *of);
        names = grown(ps, names, n, &names_cap, sizeof *names);
        if (!of || !names)
            return no_memory(ps);
        named += element_name(ps, &names[n]);
        int rc = parse(ps, depth + 1, &of[n]);
        if (rc < 0)
            return rc;
        n++;
    } while (take(ps, ','));
    if (named != n && (named || t->kind == TR_CH_NESTED))
        return malformed(ps, "an element has no name");
    t->of = of;
    t->n = n;
    t->names = named ? names : NULL;
    return TR_OK;
}

struct sorted {
    struct tr_slice name;
    uint32_t index;
};

static int by_name(const void *a, const void *b)
{
    return tr_slice_cmp(((const struct sorted *)a)->name, ((const struct sorted *)b)->name);
}

static int sort_members(struct parser *ps, struct tr_ch_type *t)
{
    struct sorted *s = tr_arena_alloc(ps->arena, t->n * sizeof *s);
    uint32_t *order = tr_arena_alloc(ps->arena, t->n * sizeof *order);
    if (!s || !order)
        return no_memory(ps);
    for (uint32_t i = 0; i < t->n; i++)
        s[i] = (struct sorted){t->members[i].name, i};
    qsort(s, t->n, sizeof *s, by_name);
    for (uint32_t i = 0; i < t->n; i++) {
        if (i && tr_slice_eq(s[i - 1].name, s[i].name))
            return malformed(ps, "a member stands there twice");
        order[i] = s[i].index;
    }
    t->by_name = order;
    return TR_OK;
}

static int parse_members(struct parser *ps, struct tr_ch_type *t)
{
    int64_t most = t->kind == TR_CH_ENUM8 ? INT8_MAX : INT16_MAX;
    struct tr_ch_member *members = NULL;
    uint32_t cap = 0;
    do {
        int64_t value;
        struct tr_slice spelled;
        members = grown(ps, members, t->n, &cap, sizeof *members);
        if (!members)
            return no_memory(ps);
        if (!quoted(ps, '\'', &spelled) || !take(ps, '=') || !number(ps, &value) || value > most || value < -most - 1)
            return malformed(ps, "a member is not 'name' = number, or its number is out of range");
        members[t->n] = (struct tr_ch_member){.spelled = spelled, .value = (int16_t)value};
        if (!unquote(ps, spelled, &members[t->n++].name))
            return no_memory(ps);
    } while (take(ps, ','));
    t->members = members;
    return sort_members(ps, t);
}

/* sum, groupArrayArray(10), …: up to the comma outside parentheses and quotes. */
static int parse_function(struct parser *ps, struct tr_ch_type *t)
{
    unsigned open = 0;
    struct tr_slice skipped;
    skip_blanks(ps);
    const uint8_t *from = ps->p;
    while (ps->p < ps->end && (open || *ps->p != ',')) {
        if (*ps->p == '\'') {
            if (!quoted(ps, '\'', &skipped))
                return malformed(ps, "a quote is not closed");
            continue;
        }
        if (*ps->p == ')' && !open)
            return malformed(ps, "the type of its values is missing");
        open += *ps->p == '(';
        open -= *ps->p == ')';
        ps->p++;
    }
    t->parameter = tr_slice_of(from, (size_t)(ps->p - from));
    return take(ps, ',') && t->parameter.n ? TR_OK : malformed(ps, "the type of its values is missing");
}

static int parse_decimal(struct parser *ps, struct tr_ch_type *t, int64_t precision)
{
    int64_t scale;
    if (!precision && !(number(ps, &precision) && take(ps, ',')))
        return malformed(ps, "a Decimal needs precision and scale");
    if (!number(ps, &scale) || precision < 1 || precision > 76 || scale < 0 || scale > precision)
        return malformed(ps, "a Decimal has 1 to 76 digits, and no more of them behind the point");
    t->precision = (uint8_t)precision;
    t->scale = (uint8_t)scale;
    t->width = precision <= 9 ? 4 : precision <= 18 ? 8 : precision <= 38 ? 16 : 32;
    return TR_OK;
}

static int parse_args(struct parser *ps, unsigned depth, struct tr_ch_type *t, int64_t decimal_digits)
{
    int64_t v;
    int rc;
    switch (t->kind) {
    case TR_CH_DECIMAL:
        return parse_decimal(ps, t, decimal_digits);
    case TR_CH_FIXED_STRING:
        if (!number(ps, &v) || v < 1 || v > 0xffffff) /* the server's own bound */
            return malformed(ps, "a FixedString has 1 to 16777215 bytes");
        t->width = (uint32_t)v;
        return TR_OK;
    case TR_CH_DATETIME:
        return quoted(ps, '\'', &t->parameter) ? TR_OK : malformed(ps, "its zone is not quoted");
    case TR_CH_DATETIME64:
    case TR_CH_TIME64:
        if (!number(ps, &v) || v < 0 || v > 9)
            return malformed(ps, "its precision is 0 to 9");
        t->scale = (uint8_t)v;
        if (t->kind == TR_CH_DATETIME64 && take(ps, ',') && !quoted(ps, '\'', &t->parameter))
            return malformed(ps, "its zone is not quoted");
        return TR_OK;
    case TR_CH_ENUM8:
    case TR_CH_ENUM16:
        return parse_members(ps, t);
    case TR_CH_SIMPLE_AGGREGATE:
        rc = parse_function(ps, t);
        return rc < 0 ? rc : parse_inner(ps, depth, t, 1);
    case TR_CH_NULLABLE:
    case TR_CH_LOW_CARDINALITY:
    case TR_CH_ARRAY:
        return parse_inner(ps, depth, t, 1);
    case TR_CH_MAP:
        return parse_inner(ps, depth, t, 2);
    case TR_CH_TUPLE:
    case TR_CH_NESTED:
        return parse_elements(ps, depth, t);
    default:
        return malformed(ps, "a type without parameters has some");
    }
}

/* ---- the tree ---- */

static bool is_container(uint8_t kind)
{
    return kind >= TR_CH_ARRAY;
}

/* What a Nested stores: Array(Tuple(…)) over the same elements. */
static int nested_value(struct parser *ps, struct tr_ch_type *t)
{
    struct tr_ch_type *tuple = TR_ARENA_NEW(ps->arena, struct tr_ch_type), *array = TR_ARENA_NEW(ps->arena, struct tr_ch_type);
    const struct tr_ch_type **of = tr_arena_calloc(ps->arena, 1, sizeof *of);
    if (!tuple || !array || !of)
        return no_memory(ps);
    *tuple = *array = *t;
    tuple->kind = TR_CH_TUPLE;
    tuple->value = tuple;
    *of = tuple;
    array->kind = TR_CH_ARRAY;
    array->n = 1;
    array->of = of;
    array->names = NULL;
    array->depth = ++t->depth;
    array->value = t->value = array;
    return TR_OK;
}

static int settle(struct parser *ps, struct tr_ch_type *t)
{
    const struct tr_ch_type *in = t->of ? t->of[0] : NULL;
    t->value = t;
    for (uint32_t i = 0; in && i < t->n; i++)
        t->depth = TR_MAX(t->depth, t->of[i]->depth);
    switch (t->kind) {
    case TR_CH_NULLABLE:
        if (in->value != in || is_container(in->kind))
            return refuse(ps, t->text, "only a scalar can be Nullable");
        t->nullable = true;
        break;
    case TR_CH_LOW_CARDINALITY:
        if (is_container(in->kind) || (in->kind != TR_CH_NULLABLE && in->value != in))
            return refuse(ps, t->text, "only a scalar, or a Nullable one, can be LowCardinality");
        break;
    case TR_CH_MAP:
        if (in->nullable)
            return refuse(ps, t->text, "a key of a Map cannot be Nullable");
        break;
    case TR_CH_NESTED:
        t->depth++;
        return nested_value(ps, t);
    default:
        break;
    }
    if (is_container(t->kind)) {
        t->depth++;
    } else if (in) {
        t->value = in->value;
        t->nullable |= in->nullable;
        t->width = in->width;
    }
    return TR_OK;
}

/* The kind, and for DecimalN(S) its digits. */
static uint8_t kind_of(struct tr_slice name, int64_t *ret_decimal_digits)
{
    static const struct { const char *name; uint8_t digits; } decimals[] = {{"Decimal32", 9}, {"Decimal64", 18}, {"Decimal128", 38}, {"Decimal256", 76}};
    *ret_decimal_digits = 0;
    for (uint8_t k = 0; k < TR_CH_KINDS_; k++)
        if (tr_slice_eq_str(name, kinds[k].name))
            return k;
    for (size_t i = 0; i < TR_ARRAY_LEN(decimals); i++)
        if (tr_slice_eq_str(name, decimals[i].name)) {
            *ret_decimal_digits = decimals[i].digits;
            return TR_CH_DECIMAL;
        }
    return TR_CH_KINDS_;
}

static int parse(struct parser *ps, unsigned depth, const struct tr_ch_type **ret)
{
    int64_t decimal_digits;
    struct tr_slice name = word(ps);
    struct tr_ch_type *t = TR_ARENA_NEW(ps->arena, struct tr_ch_type);
    if (!t)
        return no_memory(ps);
    *ret = t;
    if (depth >= TR_CH_DEPTH_MAX)
        return malformed(ps, "it is too deep");
    if (!name.n)
        return malformed(ps, "a name is missing");
    t->kind = kind_of(name, &decimal_digits);
    if (t->kind == TR_CH_KINDS_)
        return refuse(ps, name, "tailrace cannot write it");
    t->width = kinds[t->kind].width;
    if (take(ps, '(')) {
        int rc = parse_args(ps, depth, t, decimal_digits);
        if (rc < 0)
            return rc;
        if (!take(ps, ')'))
            return malformed(ps, "a parenthesis is not closed");
    } else if (!t->width && t->kind != TR_CH_STRING) {
        return malformed(ps, "its parameters are missing");
    } else if (t->kind == TR_CH_ENUM8 || t->kind == TR_CH_ENUM16 || t->kind == TR_CH_DATETIME64 || t->kind == TR_CH_TIME64) {
        return malformed(ps, "its parameters are missing");
    }
    t->text = tr_slice_of(name.p, (size_t)(ps->p - name.p));
    return settle(ps, t);
}

int tr_ch_type_parse(struct tr_slice text, struct tr_arena *arena, const struct tr_ch_type **ret, struct tr_err *err)
{
    struct parser ps = {.arena = arena, .err = err, .whole = text};
    if (text.n > TR_CH_TYPE_BYTES_MAX)
        return malformed(&ps, "it is longer than 4 MiB");
    struct tr_slice copy = tr_arena_dup(arena, text);
    const struct tr_ch_type *t;
    if (!copy.p)
        return no_memory(&ps);
    ps.whole = copy;
    ps.p = copy.p;
    ps.end = copy.p + copy.n;
    int rc = parse(&ps, 0, &t);
    if (rc < 0)
        return rc;
    skip_blanks(&ps);
    if (ps.p != ps.end)
        return malformed(&ps, "something follows it");
    *ret = t;
    return TR_OK;
}

/* ---- printing ---- */

static int print_inner(const struct tr_ch_type *t, bool plain, struct tr_buf *out)
{
    if (t->kind == TR_CH_SIMPLE_AGGREGATE && (tr_buf_append_slice(out, t->parameter) < 0 || tr_buf_append_str(out, ", ") < 0))
        return TR_NOMEM;
    for (uint32_t i = 0; i < t->n; i++) {
        if (i && tr_buf_append_str(out, ", ") < 0)
            return TR_NOMEM;
        if (t->names && (tr_buf_append_slice(out, t->names[i]) < 0 || tr_buf_append_u8(out, ' ') < 0))
            return TR_NOMEM;
        if (tr_ch_type_print(t->of[i], plain, out) < 0)
            return TR_NOMEM;
    }
    return TR_OK;
}

static int print_members(const struct tr_ch_type *t, struct tr_buf *out)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct tr_slice name = t->members[i].spelled;
        if (tr_buf_append_str(out, i ? ", '" : "'") < 0 || tr_buf_append_slice(out, name) < 0 || tr_buf_printf(out, "' = %d", t->members[i].value) < 0)
            return TR_NOMEM;
    }
    return TR_OK;
}

static int print_zone(const struct tr_ch_type *t, const char *before, struct tr_buf *out)
{
    return tr_buf_append_str(out, before) < 0 || tr_buf_append_slice(out, t->parameter) < 0 ? TR_NOMEM : tr_buf_append_u8(out, '\'');
}

static int print_args(const struct tr_ch_type *t, bool plain, struct tr_buf *out)
{
    switch (t->kind) {
    case TR_CH_DECIMAL:
        return tr_buf_printf(out, "%u, %u", t->precision, t->scale);
    case TR_CH_FIXED_STRING:
        return tr_buf_printf(out, "%u", t->width);
    case TR_CH_TIME64:
        return tr_buf_printf(out, "%u", t->scale);
    case TR_CH_DATETIME64:
        if (tr_buf_printf(out, "%u", t->scale) < 0)
            return TR_NOMEM;
        return t->parameter.n ? print_zone(t, ", '", out) : TR_OK;
    case TR_CH_DATETIME:
        return print_zone(t, "'", out);
    case TR_CH_ENUM8:
    case TR_CH_ENUM16:
        return print_members(t, out);
    default:
        return print_inner(t, plain, out);
    }
}

int tr_ch_type_print(const struct tr_ch_type *t, bool plain, struct tr_buf *out)
{
    if (plain && (t->kind == TR_CH_LOW_CARDINALITY || t->kind == TR_CH_SIMPLE_AGGREGATE))
        return tr_ch_type_print(t->of[0], plain, out);
    if (tr_buf_append_str(out, kinds[t->kind].name) < 0)
        return TR_NOMEM;
    bool parameters = t->n || t->parameter.n || t->kind == TR_CH_DECIMAL || t->kind == TR_CH_FIXED_STRING || t->kind == TR_CH_DATETIME64 || t->kind == TR_CH_TIME64;
    if (!parameters)
        return TR_OK;
    if (tr_buf_append_u8(out, '(') < 0 || print_args(t, plain, out) < 0)
        return TR_NOMEM;
    return tr_buf_append_u8(out, ')');
}

bool tr_ch_type_member(const struct tr_ch_type *t, struct tr_slice name, int16_t *ret_value)
{
    for (uint32_t lo = 0, hi = t->n; lo < hi;) {
        uint32_t mid = lo + (hi - lo) / 2;
        const struct tr_ch_member *m = &t->members[t->by_name[mid]];
        int c = tr_slice_cmp(name, m->name);
        if (c == 0) {
            *ret_value = m->value;
            return true;
        }
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return false;
}
