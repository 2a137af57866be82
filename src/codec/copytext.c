#include "copytext.h"

static int hexval(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One escape at p (behind the backslash); returns the bytes it took, 0 when there are none. */
static size_t unescape(const uint8_t *p, const uint8_t *end, uint8_t *ret)
{
    if (p == end)
        return 0;
    switch (*p) {
    case 'b': *ret = '\b'; return 1;
    case 'f': *ret = '\f'; return 1;
    case 'n': *ret = '\n'; return 1;
    case 'r': *ret = '\r'; return 1;
    case 't': *ret = '\t'; return 1;
    case 'v': *ret = '\v'; return 1;
    case 'x': {
        size_t n = 1;
        int v = 0;
        while (n < 3 && p + n < end && hexval(p[n]) >= 0)
            v = v * 16 + hexval(p[n++]);
        *ret = n > 1 ? (uint8_t)v : 'x';
        return n;
    }
    default:
        break;
    }
    if (*p >= '0' && *p <= '7') {
        size_t n = 0;
        int v = 0;
        while (n < 3 && p + n < end && p[n] >= '0' && p[n] <= '7')
            v = v * 8 + (p[n++] - '0');
        *ret = (uint8_t)v;
        return n;
    }
    *ret = *p;
    return 1;
}

int tr_copytext_decode(struct tr_slice line, uint32_t n_columns, uint8_t *scratch, struct tr_slice *v, uint8_t *state, struct tr_err *err)
{
    static const uint8_t empty[1];
    const uint8_t *p = line.n ? line.p : empty, *end = p + line.n;
    if (p < end && end[-1] == '\n')
        end--;
    if (n_columns == 0)
        return p == end ? TR_OK : tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a COPY row has values where no column was asked for");
    bool plain = !memchr(p, '\\', (size_t)(end - p));
    for (uint32_t i = 0; i < n_columns; i++) {
        const uint8_t *start = p;
        if (plain) {
            const uint8_t *tab = memchr(p, '\t', (size_t)(end - p));
            p = tab ? tab : end;
        }
        while (p < end && *p != '\t' && *p != '\\')
            p++;
        v[i] = tr_slice_of(start, (size_t)(p - start));
        state[i] = TR_PRESENT;
        if (p < end && *p == '\\') {
            if (p == start && end - p >= 2 && p[1] == 'N' && (end - p == 2 || p[2] == '\t')) {
                p += 2;
                v[i] = (struct tr_slice){NULL, 0};
                state[i] = TR_NULL;
            } else {
                uint8_t *out = scratch;
                size_t head = (size_t)(p - start);
                if (head)
                    memcpy(out, start, head);
                size_t n = head;
                while (p < end && *p != '\t') {
                    if (*p != '\\') {
                        out[n++] = *p++;
                        continue;
                    }
                    size_t took = unescape(p + 1, end, &out[n]);
                    if (took == 0)
                        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a COPY row ends in a single backslash");
                    n++;
                    p += 1 + took;
                }
                v[i] = tr_slice_of(out, n);
                scratch += n;
            }
        }
        bool last = i + 1 == n_columns;
        if (last ? p != end : (p == end || *p != '\t'))
            return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a COPY row does not have %u columns", n_columns);
        if (!last)
            p++;
    }
    return TR_OK;
}

int tr_copytext_append(struct tr_buf *out, struct tr_slice value)
{
    if (tr_buf_reserve(out, value.n * 2) < 0)
        return TR_NOMEM;
    for (size_t i = 0; i < value.n; i++) {
        uint8_t c = value.p[i], e = 0;
        switch (c) {
        case '\\': e = '\\'; break;
        case '\b': e = 'b'; break;
        case '\f': e = 'f'; break;
        case '\n': e = 'n'; break;
        case '\r': e = 'r'; break;
        case '\t': e = 't'; break;
        case '\v': e = 'v'; break;
        default: break;
        }
        if (e)
            tr_buf_put_u8(out, '\\');
        tr_buf_put_u8(out, e ? e : c);
    }
    return TR_OK;
}
