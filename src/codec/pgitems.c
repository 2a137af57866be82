#include "pgitems.h"

#include <tailrace/err.h>

static int refuse(struct tr_pg_items *it, const char *why)
{
    it->why = why;
    return TR_REJECT;
}

void tr_pg_items_begin(struct tr_pg_items *it, enum tr_pg_items_kind kind, struct tr_slice text, uint8_t *scratch)
{
    *it = (struct tr_pg_items){.p = text.p, .end = text.p + text.n, .scratch = scratch, .kind = (uint8_t)kind};
}

static bool take(struct tr_pg_items *it, const char *what)
{
    size_t n = strlen(what);
    if ((size_t)(it->end - it->p) < n || memcmp(it->p, what, n) != 0)
        return false;
    it->p += n;
    return true;
}

/* Behind the opening quote, up to and with the closing one. A record doubles quotes, the others put a backslash before them; all double backslashes. */
static bool quoted(struct tr_pg_items *it, struct tr_slice *ret)
{
    const uint8_t *from = it->p;
    uint8_t *out = NULL;
    while (it->p < it->end) {
        uint8_t c = *it->p++;
        bool escaped = c == '\\' || (c == '"' && it->kind == TR_PG_RECORD && it->p < it->end && *it->p == '"');
        if (escaped && it->p < it->end) {
            if (!out) {
                out = it->scratch;
                memcpy(out, from, (size_t)(it->p - 1 - from));
                out += it->p - 1 - from;
            }
            *out++ = *it->p++;
        } else if (c == '"') {
            *ret = out ? tr_slice_of(it->scratch, (size_t)(out - it->scratch)) : tr_slice_of(from, (size_t)(it->p - 1 - from));
            if (out)
                it->scratch = out;
            return true;
        } else if (out) {
            *out++ = c;
        }
    }
    return false;
}

/* An array within an array: up to its closing brace. */
static bool braces(struct tr_pg_items *it, struct tr_slice *ret)
{
    const uint8_t *from = it->p;
    unsigned open = 0;
    bool inside = false;
    for (; it->p < it->end; it->p++) {
        uint8_t c = *it->p;
        if (c == '\\' && it->end - it->p > 1)
            it->p++;
        else if (c == '"')
            inside = !inside;
        else if (!inside && c == '{')
            open++;
        else if (!inside && c == '}' && --open == 0) {
            *ret = tr_slice_of(from, (size_t)(++it->p - from));
            return true;
        }
    }
    return false;
}

static void plain(struct tr_pg_items *it, uint8_t close, struct tr_slice *ret)
{
    const uint8_t *from = it->p;
    while (it->p < it->end && *it->p != ',' && *it->p != close)
        it->p++;
    *ret = tr_slice_of(from, (size_t)(it->p - from));
}

static int next_hstore(struct tr_pg_items *it, struct tr_pg_item *ret)
{
    if (it->is_value) {
        if (!take(it, "=>"))
            return refuse(it, "it is no hstore: a value is missing");
        if (take(it, "NULL"))
            ret->null = true;
        else if (!take(it, "\"") || !quoted(it, &ret->text))
            return refuse(it, "it is no hstore: a value is not quoted");
    } else {
        if (it->p == it->end)
            return 0;
        if (it->begun && !take(it, ", "))
            return refuse(it, "it is no hstore: pairs are not separated by a comma");
        if (!take(it, "\"") || !quoted(it, &ret->text))
            return refuse(it, "it is no hstore: a key is not quoted");
        it->begun = true;
    }
    it->is_value = !it->is_value;
    return 1;
}

int tr_pg_items_next(struct tr_pg_items *it, struct tr_pg_item *ret)
{
    bool array = it->kind == TR_PG_ARRAY;
    uint8_t close = array ? '}' : ')';
    *ret = (struct tr_pg_item){.text = tr_slice_of(it->p, 0)};
    if (it->kind == TR_PG_HSTORE)
        return next_hstore(it, ret);
    if (!it->begun) {
        it->begun = true;
        if (array && it->p < it->end && *it->p == '[')
            return refuse(it, "its array does not begin at 1");
        if (!take(it, array ? "{" : "("))
            return refuse(it, array ? "it is no array" : "it is no composite value");
        if (array && it->end - it->p == 1 && take(it, "}"))
            return 0;
    } else if (it->p < it->end && *it->p == close) {
        it->p++;
        return it->p == it->end ? 0 : refuse(it, "something follows its last item");
    } else if (!take(it, ",")) {
        return refuse(it, "its last item is not followed by the end");
    }
    if (take(it, "\"")) {
        if (!quoted(it, &ret->text))
            return refuse(it, "a quote is not closed");
    } else if (array && it->p < it->end && *it->p == '{') {
        ret->array = true;
        if (!braces(it, &ret->text))
            return refuse(it, "a brace is not closed");
    } else {
        plain(it, close, &ret->text);
        ret->null = array ? tr_slice_eq_str(ret->text, "NULL") : !ret->text.n;
        if (array && !ret->text.n)
            return refuse(it, "an item is missing");
    }
    return 1;
}
