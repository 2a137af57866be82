#include "ddl_clickhouse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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
    case TR_TYPE_ENUM: return tr_buf_append_str(out, today && (d & TR_CLICKHOUSE_LOW_CARDINALITY) ? "LowCardinality(String)" : "String");
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

static int put_column(const struct tr_want *w, const struct tr_want_column *c, struct tr_buf *q)
{
    int rc = tr_ch_ident(tr_slice_str(c->name), q);
    if (rc >= 0)
        rc = tr_buf_printf(q, " %s", c->type);
    if (rc >= 0)
        rc = put_fill(c, q);
    if (rc < 0 || !w->note || strcmp(c->name, "_tr_version") != 0)
        return rc;
    rc = tr_buf_append_str(q, " COMMENT ");
    return rc >= 0 ? tr_ch_literal(tr_slice_str(w->note), q) : rc;
}

static int put_order(const struct tr_want *w, struct tr_buf *q)
{
    int rc = tr_buf_append_str(q, w->kind == TR_TABLE_LOG ? ") ENGINE = ReplacingMergeTree ORDER BY (" : ") ENGINE = ReplacingMergeTree(_tr_version) ORDER BY (");
    bool more = true;
    for (uint16_t pos = 1; more && rc >= 0; pos++) {
        more = false;
        for (uint32_t i = 0; i < w->n && rc >= 0; i++)
            if (w->columns[i].key_pos == pos) {
                more = true;
                rc = pos > 1 ? tr_buf_append_str(q, ", ") : TR_OK;
                if (rc >= 0)
                    rc = tr_ch_ident(tr_slice_str(w->columns[i].name), q);
            }
    }
    if (rc >= 0)
        rc = tr_buf_append_u8(q, ')');
    return rc >= 0 && (w->dialect & TR_CLICKHOUSE_TODAY) ? tr_buf_append_str(q, SETTINGS_TODAY) : rc;
}

static int plan_ns(const struct tr_want *w, struct tr_plan *p)
{
    struct tr_buf q = {0};
    int rc = tr_buf_append_str(&q, "CREATE DATABASE IF NOT EXISTS ");
    if (rc >= 0)
        rc = tr_ch_ident(tr_slice_str(w->ns), &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "create database %s", w->ns);
    tr_buf_done(&q);
    return rc;
}

int tr_ch_plan_create(const struct tr_want *w, bool no_ns, struct tr_plan *p)
{
    struct tr_buf q = {0};
    int rc = no_ns ? plan_ns(w, p) : TR_OK;
    if (rc >= 0)
        rc = tr_buf_append_str(&q, "CREATE TABLE ");
    if (rc >= 0)
        rc = tr_ch_name(w->ns, w->name, &q);
    for (uint32_t i = 0; i < w->n && rc >= 0; i++) {
        rc = tr_buf_append_str(&q, i ? ", " : " (");
        if (rc >= 0)
            rc = put_column(w, &w->columns[i], &q);
    }
    if (rc >= 0)
        rc = put_order(w, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "create table %s", w->name);
    tr_buf_done(&q);
    return rc;
}

/* "before ns.name after" as one step. */
static int plan_about(struct tr_plan *p, const char *before, const char *ns, const char *name, const char *after, const char *what)
{
    struct tr_buf q = {0};
    int rc = tr_buf_append_str(&q, before);
    if (rc >= 0)
        rc = tr_ch_name(ns, name, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, after);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "%s table %s", what, name);
    tr_buf_done(&q);
    return rc;
}

int tr_ch_plan_add_column(const struct tr_want *w, const struct tr_want_column *c, struct tr_plan *p)
{
    struct tr_buf add = {0};
    int rc = tr_buf_append_str(&add, " ADD COLUMN ");
    if (rc >= 0)
        rc = put_column(w, c, &add);
    if (rc >= 0)
        rc = tr_buf_cstr(&add) ? plan_about(p, "ALTER TABLE ", w->ns, w->name, tr_buf_cstr(&add), "add a column to") : TR_NOMEM;
    tr_buf_done(&add);
    return rc;
}

int tr_ch_plan_drop(const char *ns, const char *name, struct tr_plan *p)
{
    return plan_about(p, "DROP TABLE IF EXISTS ", ns, name, "", "drop");
}

/* The old servers cannot replace a view: for a moment there is none. */
int tr_ch_plan_view(const struct tr_want *w, struct tr_plan *p)
{
    char name[TR_SQL_NAME_MAX + 1];
    struct tr_buf q = {0};
    bool replace = w->dialect & TR_CLICKHOUSE_EXCHANGE, any = false;
    tr_sql_derived(w->name, "_live", name);
    int rc = replace ? TR_OK : tr_ch_plan_drop(w->ns, name, p);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, replace ? "CREATE OR REPLACE VIEW " : "CREATE VIEW ");
    if (rc >= 0)
        rc = tr_ch_name(w->ns, name, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " AS SELECT ");
    for (uint32_t i = 0; i < w->n && rc >= 0; i++) {
        if (!strncmp(w->columns[i].name, "_tr_", 4))
            continue;
        rc = tr_buf_append_str(&q, any ? ", " : "");
        if (rc >= 0)
            rc = tr_ch_ident(tr_slice_str(w->columns[i].name), &q);
        any = true;
    }
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " FROM ");
    if (rc >= 0)
        rc = tr_ch_name(w->ns, w->name, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " FINAL WHERE NOT _tr_deleted");
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "make the view over table %s", w->name);
    tr_buf_done(&q);
    return rc;
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
int tr_ch_plan_swap(const struct tr_want *w, const struct tr_table_desc *there, const char *shadow, struct tr_plan *p)
{
    char old[TR_SQL_NAME_MAX + 1];
    bool exchange = there->exists && (w->dialect & TR_CLICKHOUSE_EXCHANGE);
    tr_sql_derived(w->name, "__tr_old", old);
    int rc = exchange ? plan_two(w, "EXCHANGE TABLES ", w->name, " AND ", shadow, "", p) : TR_OK;
    if (!exchange) {
        struct tr_buf rest = {0};
        rc = tr_ch_plan_drop(w->ns, old, p);
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
    if (rc >= 0 && w->kind == TR_TABLE_MIRROR_SOFT)
        rc = tr_ch_plan_view(w, p);
    if (rc >= 0)
        rc = tr_plan_renamed(p, w->ns, shadow, w->name, "mirror");
    return rc >= 0 ? tr_ch_plan_drop(w->ns, exchange ? shadow : old, p) : rc;
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
