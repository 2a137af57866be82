#include "ddl_clickhouse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "check.h"

/* An INSERT that was answered has been written to the disk, and a merge keeps it so; one that comes again under its token is dropped. */
#define SETTINGS_TODAY " SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1"

static int quoted(struct tr_slice s, char quote, struct tr_buf *out)
{
    int rc = tr_buf_append_u8(out, (uint8_t)quote);
    for (size_t i = 0; i < s.n && rc >= 0; i++) {
        if (s.p[i] == quote || s.p[i] == '\\')
            rc = tr_buf_append_u8(out, '\\');
        if (rc >= 0)
            rc = tr_buf_append_u8(out, s.p[i]);
    }
    return rc >= 0 ? tr_buf_append_u8(out, (uint8_t)quote) : rc;
}

int tr_ch_ident(struct tr_slice name, struct tr_buf *out)
{
    return quoted(name, '"', out);
}

int tr_ch_literal(struct tr_slice text, struct tr_buf *out)
{
    return quoted(text, '\'', out);
}

int tr_ch_name(const char *ns, const char *name, struct tr_buf *out)
{
    int rc = *ns ? tr_ch_ident(tr_slice_str(ns), out) : TR_OK;
    if (rc >= 0 && *ns)
        rc = tr_buf_append_u8(out, '.');
    return rc >= 0 ? tr_ch_ident(tr_slice_str(name), out) : rc;
}

/* ---- types ---- */

int tr_ch_type_sql(enum tr_dialect d, const struct tr_column *c, struct tr_buf *out)
{
    bool today = d & TR_CLICKHOUSE_TODAY;
    int32_t digits = today ? 76 : 38;
    switch (c->type) {
    case TR_TYPE_BOOL: return tr_buf_append_str(out, today ? "Bool" : "UInt8");
    case TR_TYPE_INT16: return tr_buf_append_str(out, "Int16");
    case TR_TYPE_INT32: return tr_buf_append_str(out, "Int32");
    case TR_TYPE_INT64: return tr_buf_append_str(out, "Int64");
    case TR_TYPE_FLOAT32: return tr_buf_append_str(out, "Float32");
    case TR_TYPE_FLOAT64: return tr_buf_append_str(out, "Float64");
    case TR_TYPE_UUID: return tr_buf_append_str(out, "UUID");
    case TR_TYPE_DATE: return tr_buf_append_str(out, today ? "Date32" : "String");
    case TR_TYPE_TIMESTAMP:
    case TR_TYPE_TIMESTAMPTZ: return tr_buf_append_str(out, today ? TR_CLICKHOUSE_TIME : "String");
    case TR_TYPE_DECIMAL:
        if (c->precision >= 1 && c->precision <= digits && c->scale >= 0 && c->scale <= c->precision)
            return tr_buf_printf(out, "Decimal(%d, %d)", c->precision, c->scale);
        return tr_buf_append_str(out, "String");
    default: return tr_buf_append_str(out, "String");
    }
}

/* ---- statements ---- */

/* What rows that are there took on at the source when the column was added; it stays with the column (ddl.c: put_fill). */
static int put_fill(const struct tr_want_column *c, struct tr_buf *q)
{
    struct tr_slice v = tr_slice_str(c->fill ? c->fill : "");
    if (!c->fill)
        return TR_OK;
    int rc = tr_buf_append_str(q, " DEFAULT CAST(");
    if (c->canonical == TR_TYPE_BYTES && v.n >= 2) {
        if (rc >= 0)
            rc = tr_buf_append_str(q, "unhex(");
        if (rc >= 0)
            rc = tr_ch_literal(tr_slice_sub(v, 2, v.n), q);
        if (rc >= 0)
            rc = tr_buf_append_u8(q, ')');
    } else if (c->canonical == TR_TYPE_BOOL) {
        rc = rc >= 0 ? tr_buf_append_str(q, *c->fill == 't' ? "1" : "0") : rc;
    } else {
        if (c->canonical == TR_TYPE_TIMESTAMPTZ && !strstr(c->type, "String") && v.n > 3 && !memcmp(v.p + v.n - 3, "+00", 3))
            v.n -= 3;
        rc = rc >= 0 ? tr_ch_literal(v, q) : rc;
    }
    return rc >= 0 ? tr_buf_printf(q, " AS %s)", c->type) : rc;
}

int tr_ch_column_sql(const struct tr_want *w, const struct tr_want_column *c, struct tr_buf *q)
{
    int rc = put_fill(c, q);
    if (rc < 0 || !w->note || strcmp(c->name, "_tr_version") != 0)
        return rc;
    rc = tr_buf_append_str(q, " COMMENT ");
    return rc >= 0 ? tr_ch_literal(tr_slice_str(w->note), q) : rc;
}

int tr_ch_engine_sql(const struct tr_want *w, struct tr_buf *q)
{
    int rc = tr_buf_append_str(q, w->kind == TR_TABLE_LOG ? ") ENGINE = ReplacingMergeTree" : ") ENGINE = ReplacingMergeTree(_tr_version)");
    if (rc >= 0 && w->partition)
        rc = tr_buf_printf(q, " PARTITION BY (%s)", w->partition);
    return rc >= 0 ? tr_buf_append_str(q, " ORDER BY (") : rc;
}

int tr_ch_settings_sql(const struct tr_want *w, struct tr_buf *q)
{
    return w->dialect & TR_CLICKHOUSE_TODAY ? tr_buf_append_str(q, SETTINGS_TODAY) : TR_OK;
}

static int plan_two(const struct tr_want *w, const char *verb, const char *a, const char *between, const char *b, const char *rest, struct tr_plan *p)
{
    struct tr_buf q = {0};
    int rc = tr_buf_append_str(&q, verb);
    if (rc >= 0)
        rc = tr_ch_name(w->ns, a, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, between);
    if (rc >= 0)
        rc = tr_ch_name(w->ns, b, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, rest);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "swap in the new build of table %s", w->name);
    tr_buf_done(&q);
    return rc;
}

/* Ended anywhere, it is begun again by a swap of the same build, or it is through but for the old table, which the next build drops. */
int tr_ch_plan_swap(const struct tr_want *w, const struct tr_table_desc *there, const char *shadow, const struct tr_table_desc *build, struct tr_plan *p, struct tr_err *err)
{
    char old[TR_SQL_NAME_MAX + 1];
    bool exchange = there->exists && (w->dialect & TR_CLICKHOUSE_EXCHANGE);
    tr_sql_derived(w->name, "__tr_old", old);
    int rc = exchange ? plan_two(w, "EXCHANGE TABLES ", w->name, " AND ", shadow, "", p) : TR_OK;
    if (!exchange) {
        struct tr_buf rest = {0};
        rc = tr_plan_drop(w->dialect, w->ns, old, p, err);
        if (rc >= 0)
            rc = tr_buf_append_str(&rest, ", ");
        if (rc >= 0)
            rc = tr_ch_name(w->ns, shadow, &rest);
        if (rc >= 0)
            rc = tr_buf_append_str(&rest, " TO ");
        if (rc >= 0)
            rc = tr_ch_name(w->ns, w->name, &rest);
        if (rc >= 0 && !tr_buf_cstr(&rest))
            rc = TR_NOMEM;
        if (rc >= 0)
            rc = there->exists ? plan_two(w, "RENAME TABLE ", w->name, " TO ", old, tr_buf_cstr(&rest), p) : plan_two(w, "RENAME TABLE ", shadow, " TO ", w->name, "", p);
        tr_buf_done(&rest);
    }
    if (rc >= 0)
        rc = tr_plan_view(w, p, err);
    if (rc >= 0)
        rc = tr_plan_renamed(p, w->ns, shadow, w->name, "mirror", build->note.snapshot_id);
    return rc >= 0 ? tr_plan_drop(w->dialect, w->ns, exchange ? shadow : old, p, err) : rc;
}

/* ---- what options say of a table ---- */

int tr_ch_low_cardinality(struct tr_want_column *io)
{
    const char *type = !strcmp(io->type, "String") ? "LowCardinality(String)" : !strcmp(io->type, "Nullable(String)") ? "LowCardinality(Nullable(String))" : NULL;
    char *copy = type ? tr_strdup(type) : NULL;
    if (!type)
        return TR_OK;
    if (!copy)
        return TR_NOMEM;
    tr_free(io->type);
    io->type = copy;
    return TR_OK;
}

/* What stands in an expression: a name, the name of a function (a parenthesis follows), a constant, or one character of anything else. */
enum word { WORD_END, WORD_NAME, WORD_CALL, WORD_CONSTANT, WORD_OTHER, WORD_TOO_LONG };

static bool in_word(uint8_t c)
{
    return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static bool blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static enum word next_word(struct tr_slice *at, char name[TR_SQL_NAME_MAX + 1])
{
    size_t i = 0, n = 0;
    while (i < at->n && blank(at->p[i]))
        i++;
    if (i == at->n)
        return WORD_END;
    uint8_t c = at->p[i], quote = c == '"' || c == '`' || c == '\'' ? c : 0;
    bool number = c >= '0' && c <= '9', fits = true;
    if (!quote && !in_word(c)) {
        name[0] = (char)c;
        name[1] = 0;
        *at = tr_slice_sub(*at, i + 1, at->n);
        return WORD_OTHER;
    }
    for (i += quote != 0; i < at->n; i++) {
        c = at->p[i];
        if (quote ? c == quote : !in_word(c) && !(number && c == '.'))
            break;
        if (quote && c == '\\' && i + 1 < at->n)
            c = at->p[++i];
        if (n < TR_SQL_NAME_MAX)
            name[n++] = (char)c;
        else
            fits = false;
    }
    name[n] = 0;
    i += quote && i < at->n;
    *at = tr_slice_sub(*at, i, at->n);
    while (at->n && blank(at->p[0]))
        *at = tr_slice_sub(*at, 1, at->n);
    if (number || quote == '\'')
        return WORD_CONSTANT;
    return !fits ? WORD_TOO_LONG : at->n && at->p[0] == '(' ? WORD_CALL : WORD_NAME;
}

static struct tr_want_column *key_column_of(const struct tr_want *w, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->columns[i].key_pos && !strcmp(w->columns[i].name, name))
            return &w->columns[i];
    return NULL;
}

int tr_ch_order_by(struct tr_want *io, const char *said, struct tr_slice columns, struct tr_err *err)
{
    struct tr_slice at = columns;
    uint16_t n = 0, n_key = 0;
    char name[TR_SQL_NAME_MAX + 1] = "";
    enum word w;
    uint16_t *order = tr_calloc(io->n + 1, sizeof *order);
    if (!order)
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for order_by");
    for (uint32_t i = 0; i < io->n; i++)
        n_key = (uint16_t)(n_key + (io->columns[i].key_pos != 0));
    int rc = TR_OK;
    do {
        w = next_word(&at, name);
        const struct tr_want_column *c = w == WORD_NAME ? key_column_of(io, name) : NULL;
        if (!c)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "order_by of table %s: %s%s; it takes the columns of the key, and nothing else, in the order wanted, like 'schema.table = b, a'", said,
                            w == WORD_NAME ? name : "there must be names with commas between them", w == WORD_NAME ? " is no column of the table's key" : "");
        else if (order[c - io->columns])
            rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "order_by of table %s names %s twice", said, name);
        else
            order[c - io->columns] = ++n;
        w = rc >= 0 ? next_word(&at, name) : WORD_END;
    } while (w == WORD_OTHER && *name == ',');
    if (rc >= 0 && w != WORD_END)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "order_by of table %s: what stands at %s is no column of the key; it takes names with commas between them", said, name);
    for (uint32_t i = 0; rc >= 0 && n < n_key && i < io->n; i++)
        if (io->columns[i].key_pos && !order[i])
            rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "order_by of table %s lacks %s, a column of the key: without it rows of different keys would replace each other", said,
                            io->columns[i].name);
    for (uint32_t i = 0; rc >= 0 && i < io->n; i++)
        io->columns[i].key_pos = order[i];
    tr_free(order);
    return rc;
}

int tr_ch_partition_by(struct tr_want *io, const char *said, struct tr_slice expression, struct tr_err *err)
{
    struct tr_slice at = expression;
    char name[TR_SQL_NAME_MAX + 1] = "";
    int depth = 0;
    for (enum word w; (w = next_word(&at, name)) != WORD_END;) {
        if (w == WORD_TOO_LONG || (w == WORD_NAME && !key_column_of(io, name)))
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG,
                              "partition_by of table %s uses %s, which is no column of its key: a row must never change its partition, because ClickHouse replaces it by its newer version only within one; use columns of the "
                              "key, functions, operators and constants alone",
                              said, name);
        depth += w == WORD_OTHER && *name == '(' ? 1 : w == WORD_OTHER && *name == ')' ? -1 : 0;
        if (depth < 0)
            break;
    }
    if (depth)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "partition_by of table %s is no expression: its parentheses do not match", said);
    tr_free(io->partition);
    io->partition = tr_strndup(expression);
    return io->partition ? TR_OK : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for partition_by");
}

/* ---- a table that is there ---- */

static bool ends_with(const char *text, size_t n, const char *end)
{
    size_t k = strlen(end);
    return n >= k && !memcmp(text + n - k, end, k);
}

const char *tr_ch_window(const char *engine, int64_t *ret)
{
    bool replicated = !strncmp(engine, "Replicated", 10);
    const char *name = replicated ? "replicated_deduplication_window" : "non_replicated_deduplication_window";
    char text[48];
    *ret = -1;
    if (!ends_with(engine, strcspn(engine, "( "), "MergeTree") || !strncmp(engine, "Shared", 6))
        return NULL;
    snprintf(text, sizeof text, " %s = ", name);
    const char *at = strstr(engine, text);
    if (at)
        *ret = strtoll(at + strlen(text), NULL, 10);
    return name;
}

/* How much of the text is the engine with its arguments. */
static size_t engine_end(const char *engine)
{
    size_t i = strcspn(engine, "( ");
    bool quotes = false;
    for (int depth = 0; engine[i]; i++) {
        char c = engine[i];
        if (quotes && c == '\\' && engine[i + 1])
            i++;
        else if (c == '\'')
            quotes = !quotes;
        else if (!quotes && c == ' ' && !depth)
            break;
        else if (!quotes)
            depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    return i;
}

/* "…ReplacingMergeTree(…, _tr_version)"; of a changelog table the engine alone. */
static bool engine_fits(const struct tr_want *w, const char *engine)
{
    size_t n = engine_end(engine);
    return ends_with(engine, strcspn(engine, "( "), "ReplacingMergeTree") && (w->kind == TR_TABLE_LOG || ends_with(engine, n, "(_tr_version)") || ends_with(engine, n, ", _tr_version)"));
}

void tr_ch_reconcile(const struct tr_want *w, const struct tr_table_desc *have, struct tr_plan *io)
{
    int64_t own;
    struct tr_err err;
    if (!have->engine)
        return;
    if (!engine_fits(w, have->engine)) {
        tr_plan_refuse(io, "table %s.%s has the engine %.*s in the sink, and must have %s; take a new snapshot (tailrace table resnapshot), or give it that engine and resume", w->ns, w->name,
                       (int)TR_MIN(engine_end(have->engine), (size_t)120), have->engine, w->kind == TR_TABLE_LOG ? "ReplacingMergeTree" : "ReplacingMergeTree(_tr_version)");
        return;
    }
    struct tr_want probe = *w;
    probe.partition = NULL;
    if (w->kind != TR_TABLE_LOG && have->partition && tr_ch_partition_by(&probe, w->name, tr_slice_str(have->partition), &err) == TR_REJECT) {
        tr_plan_refuse(io, "table %s.%s is partitioned by %.120s in the sink, which is not made of columns of its key alone: a row would not be replaced by its newer version in another partition; take a new snapshot "
                           "(tailrace table resnapshot)", w->ns, w->name, have->partition);
    } else if (!have->window) {
        const char *setting = tr_ch_window(have->engine, &own);
        tr_plan_refuse(io, "table %s.%s has %s = 0 in the sink, so an INSERT that comes again because its answer was lost leaves its rows twice; ALTER TABLE %s.%s MODIFY SETTING %s = 1000, then resume", w->ns, w->name,
                       setting ? setting : "no deduplication", w->ns, w->name, setting ? setting : "");
    }
    tr_free(probe.partition);
}

/* ---- records ---- */

int tr_ch_note_put(const struct tr_table_note *n, const char *positions, struct tr_buf *out)
{
    return tr_buf_printf(out, "tailrace %s build %" PRIu64 " version %u of %zu:%s columns %s", n->kind, n->snapshot_id, n->schema_version, strlen(n->source), n->source, positions ? positions : "");
}

static bool word(const char **at, const char *w)
{
    size_t n = strlen(w);
    if (strncmp(*at, w, n) != 0)
        return false;
    *at += n;
    return true;
}

static bool number(const char **at, uint64_t *ret)
{
    char *end;
    *ret = strtoull(*at, &end, 10);
    bool ok = end != *at && **at >= '0' && **at <= '9';
    *at = end;
    return ok;
}

bool tr_ch_note_get(const char *text, struct tr_table_note *ret, const char **ret_positions)
{
    uint64_t version, n;
    *ret = (struct tr_table_note){0};
    if (!word(&text, "tailrace "))
        return false;
    size_t k = strcspn(text, " ");
    if (!k || k >= sizeof ret->kind)
        return false;
    memcpy(ret->kind, text, k);
    text += k;
    if (!word(&text, " build ") || !number(&text, &ret->snapshot_id) || !word(&text, " version ") || !number(&text, &version) || !word(&text, " of ") || !number(&text, &n) ||
        !word(&text, ":") || n >= sizeof ret->source || strlen(text) < n)
        return false;
    memcpy(ret->source, text, n);
    text += n;
    ret->schema_version = (uint32_t)version;
    *ret_positions = text + strlen(" columns ");
    return word(&text, " columns ");
}

int tr_ch_note_sql(const char *ns, const char *name, const char *record, struct tr_buf *out)
{
    int rc = tr_buf_append_str(out, "ALTER TABLE ");
    if (rc >= 0)
        rc = tr_ch_name(ns, name, out);
    if (rc >= 0)
        rc = tr_buf_append_str(out, " COMMENT COLUMN _tr_version ");
    return rc >= 0 ? tr_ch_literal(tr_slice_str(record), out) : rc;
}

static const char *key_column(const char *text, char name[TR_SQL_NAME_MAX + 1])
{
    size_t n = 0;
    bool quotes = *text == '`';
    for (text += quotes; *text && !(quotes ? *text == '`' : *text == ',' || *text == ')'); text++) {
        text += quotes && *text == '\\' && text[1];
        if (n < TR_SQL_NAME_MAX)
            name[n++] = *text;
    }
    name[n] = 0;
    text += *text && quotes;
    return text + strspn(text, "), ");
}

void tr_ch_sorting_key(const char *text, struct tr_table_desc *io)
{
    char name[TR_SQL_NAME_MAX + 1];
    text += *text == '(';
    for (uint16_t pos = 1; *text; pos++) {
        text = key_column(text, name);
        for (uint32_t i = 0; i < io->n_columns; i++)
            if (!strcmp(io->columns[i].name, name))
                io->columns[i].key_pos = pos;
    }
}
