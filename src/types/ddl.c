#include "ddl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "hash.h"
#include "text.h"

static int nomem(struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a table definition");
}

/* ---- types ---- */

/* Names the source qualified (a schema other than pg_catalog) or quoted are its own inventions. */
static bool everywhere(const char *type)
{
    return *type && !strpbrk(type, ".\"") && strcmp(type, "unknown") != 0 && strcmp(type, "-") != 0 && strcmp(type, "???") != 0;
}

static const char *pg_canonical(uint8_t type)
{
    switch (type) {
    case TR_TYPE_BOOL: return "boolean";
    case TR_TYPE_INT16: return "smallint";
    case TR_TYPE_INT32: return "integer";
    case TR_TYPE_INT64: return "bigint";
    case TR_TYPE_FLOAT32: return "real";
    case TR_TYPE_FLOAT64: return "double precision";
    case TR_TYPE_DECIMAL: return "numeric";
    case TR_TYPE_BYTES: return "bytea";
    case TR_TYPE_DATE: return "date";
    case TR_TYPE_TIME: return "time without time zone";
    case TR_TYPE_TIMETZ: return "time with time zone";
    case TR_TYPE_TIMESTAMP: return "timestamp without time zone";
    case TR_TYPE_TIMESTAMPTZ: return "timestamp with time zone";
    case TR_TYPE_INTERVAL: return "interval";
    case TR_TYPE_UUID: return "uuid";
    default: return "text";
    }
}

static const char *sqlite_type(uint8_t type)
{
    switch (type) {
    case TR_TYPE_BOOL:
    case TR_TYPE_INT16:
    case TR_TYPE_INT32:
    case TR_TYPE_INT64: return "INTEGER";
    case TR_TYPE_FLOAT32:
    case TR_TYPE_FLOAT64: return "REAL";
    case TR_TYPE_BYTES: return "BLOB";
    default: return "TEXT";
    }
}

/* Types of the system whose text a mirror's server may not take: reg… and aclitem name what need not exist there; of pg_…, which are its own
 * statistics, trees and catalog rows, only two are data. */
static bool own_to_server(const char *type)
{
    return !strncmp(type, "reg", 3) || !strncmp(type, "aclitem", 7) || (!strncmp(type, "pg_", 3) && strncmp(type, "pg_lsn", 6) != 0 && strncmp(type, "pg_snapshot", 11) != 0);
}

int tr_sql_type(enum tr_dialect d, const struct tr_column *c, struct tr_buf *out)
{
    if (d == TR_DIALECT_SQLITE)
        return tr_buf_append_str(out, sqlite_type(c->type));
    if (tr_dialect_clickhouse(d))
        return tr_ch_type_sql(d, c, out);
    return tr_buf_append_str(out, everywhere(c->source_type) && !own_to_server(c->source_type) ? c->source_type : pg_canonical(c->type));
}

int tr_sql_column_type(enum tr_dialect d, enum tr_table_kind kind, const struct tr_column *c, struct tr_buf *out)
{
    struct tr_buf type = {0};
    int rc = tr_sql_type(d, c, &type);
    const char *t = rc >= 0 ? tr_buf_cstr(&type) : NULL;
    if (!t)
        rc = TR_NOMEM;
    else if (!tr_dialect_clickhouse(d) || (kind != TR_TABLE_LOG && c->key_pos))
        rc = tr_buf_append_str(out, t);
    else
        rc = tr_buf_printf(out, "Nullable(%s)", t);
    tr_buf_done(&type);
    return rc;
}

int tr_sql_name(const char *ns, const char *name, struct tr_buf *out)
{
    int rc = TR_OK;
    if (*ns) {
        rc = tr_quote_ident(out, tr_slice_str(ns));
        if (rc >= 0)
            rc = tr_buf_append_u8(out, '.');
    }
    return rc >= 0 ? tr_quote_ident(out, tr_slice_str(name)) : rc;
}

/* ---- wanted tables ---- */

static int add(struct tr_want *w, const char *name, const char *type, uint16_t key_pos, const char *fill, bool unfillable)
{
    struct tr_want_column *v = tr_realloc(w->columns, (w->n + 1) * sizeof *v);
    if (!v)
        return TR_NOMEM;
    w->columns = v;
    struct tr_want_column *c = &v[w->n++];
    *c = (struct tr_want_column){
        .name = tr_strdup(name), .type = tr_strdup(type), .key_pos = key_pos, .fill = fill ? tr_strdup(fill) : NULL, .unfillable = unfillable};
    return c->name && c->type && (c->fill || !fill) ? TR_OK : TR_NOMEM;
}

void tr_want_done(struct tr_want *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        tr_free(w->columns[i].name);
        tr_free(w->columns[i].type);
        tr_free(w->columns[i].fill);
    }
    tr_free(w->columns);
    tr_free(w->ns);
    tr_free(w->name);
    tr_free(w->note);
    tr_free(w->partition);
    memset(w, 0, sizeof *w);
}

static bool same_name(enum tr_dialect d, const char *a, const char *b)
{
    return d == TR_DIALECT_SQLITE ? strcasecmp(a, b) == 0 : strcmp(a, b) == 0;
}

static int check_names(const struct tr_want *w, const struct tr_schema *s, struct tr_err *err)
{
    for (uint32_t i = 0; i < s->n_columns; i++) {
        const char *n = s->columns[i].name;
        if (!strncmp(n, "_tr_", 4))
            return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "column %s of table %s.%s has a name that tailrace keeps for itself (_tr_…); rename or exclude it", n, s->ns, s->name);
        for (uint32_t k = 0; k < i; k++)
            if (same_name(w->dialect, n, s->columns[k].name))
                return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "columns %s and %s of table %s.%s differ in case only, which this sink cannot tell apart", s->columns[k].name, n,
                                  s->ns, s->name);
    }
    return TR_OK;
}

static int add_ours(struct tr_want *w)
{
    bool lite = w->dialect == TR_DIALECT_SQLITE, ch = tr_dialect_clickhouse(w->dialect), today = w->dialect & TR_CLICKHOUSE_TODAY;
    const char *big = lite ? "INTEGER" : ch ? "UInt64" : "bigint";
    const char *ts = lite ? "TEXT" : !ch ? "timestamp with time zone" : today ? TR_CLICKHOUSE_TIME : "String";
    const char *ts_or_null = !ch ? ts : today ? "Nullable(" TR_CLICKHOUSE_TIME ")" : "Nullable(String)";
    const char *boolean = lite ? "INTEGER" : ch ? "UInt8" : "boolean";
    const char *text = lite ? "TEXT" : ch ? "String" : "text", *text_or_null = ch ? "Nullable(String)" : text;
    int rc = TR_OK;
    if (w->kind == TR_TABLE_LOG) {
        static const char *const names[] = {"_tr_epoch", "_tr_commit_lsn", "_tr_ordinal"};
        for (uint16_t i = 0; i < 3 && rc >= 0; i++)
            rc = add(w, names[i], big, (uint16_t)(i + 1), NULL, false);
        if (rc >= 0)
            rc = add(w, "_tr_op", text, 0, NULL, false);
        if (rc >= 0)
            rc = add(w, "_tr_commit_time", ts, 0, NULL, false);
        if (rc >= 0)
            rc = add(w, "_tr_xid", big, 0, NULL, false);
        if (rc >= 0)
            rc = add(w, "_tr_version", big, 0, NULL, false);
        if (rc >= 0)
            rc = add(w, "_tr_unchanged", text_or_null, 0, NULL, false);
        return rc >= 0 ? add(w, "_tr_old_key", text_or_null, 0, NULL, false) : rc;
    }
    rc = add(w, "_tr_version", big, 0, NULL, false);
    if (rc >= 0 && w->kind == TR_TABLE_MIRROR_SOFT)
        rc = add(w, "_tr_deleted", boolean, 0, NULL, false);
    if (rc >= 0 && w->kind == TR_TABLE_MIRROR_SOFT)
        rc = add(w, "_tr_deleted_at", ts_or_null, 0, NULL, false);
    return rc;
}

int tr_want_new(enum tr_dialect d, enum tr_table_kind kind, const struct tr_schema *s, const char *ns, const char *name, struct tr_want *ret, struct tr_err *err)
{
    struct tr_want w = {.dialect = d, .kind = kind, .schema_version = s->version, .ns = tr_strdup(ns), .name = tr_strdup(name)};
    int rc = w.ns && w.name ? check_names(&w, s, err) : nomem(err);
    if (rc >= 0 && kind != TR_TABLE_LOG && !s->n_key)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "table %s.%s can have no mirror: %s", s->ns, s->name, s->no_key_reason);
    if (rc >= 0 && kind == TR_TABLE_LOG)
        rc = add_ours(&w) < 0 ? nomem(err) : TR_OK;
    struct tr_buf type;
    tr_buf_init(&type);
    for (uint32_t i = 0; i < s->n_columns && rc >= 0; i++) {
        const struct tr_column *c = &s->columns[i];
        tr_buf_clear(&type);
        rc = tr_sql_column_type(d, kind, c, &type);
        const char *t = tr_buf_cstr(&type);
        /* a history holds what was sent: values from before a column was there are not made up */
        bool mirror = kind != TR_TABLE_LOG;
        if (rc < 0 || !t || add(&w, c->name, t, mirror ? c->key_pos : 0, mirror ? c->fill_default : NULL, mirror && !c->fill_default && (c->has_default || c->not_null)) < 0)
            rc = nomem(err);
        else {
            w.columns[w.n - 1].source_pos = c->source_pos;
            w.columns[w.n - 1].canonical = c->type;
        }
    }
    tr_buf_done(&type);
    if (rc >= 0 && kind != TR_TABLE_LOG)
        rc = add_ours(&w) < 0 ? nomem(err) : TR_OK;
    if (rc < 0) {
        tr_want_done(&w);
        return rc;
    }
    *ret = w;
    return TR_OK;
}

/* ---- plans ---- */

/* Names as the dialect quotes them. */
static int put_ident(const struct tr_want *w, const char *name, struct tr_buf *q)
{
    return tr_dialect_clickhouse(w->dialect) ? tr_ch_ident(tr_slice_str(name), q) : tr_quote_ident(q, tr_slice_str(name));
}

static int put_name(enum tr_dialect d, const char *ns, const char *name, struct tr_buf *q)
{
    return tr_dialect_clickhouse(d) ? tr_ch_name(ns, name, q) : tr_sql_name(ns, name, q);
}

/* The columns, the key, and what stands behind them. */
static int put_tail(const struct tr_want *w, struct tr_buf *q)
{
    bool ch = tr_dialect_clickhouse(w->dialect);
    int rc = ch ? tr_ch_engine_sql(w, q) : tr_buf_append_str(q, ", PRIMARY KEY (");
    bool any = false, more = true;
    for (uint16_t pos = 1; more && rc >= 0; pos++) {
        more = false;
        for (uint32_t i = 0; i < w->n; i++)
            if (w->columns[i].key_pos == pos) {
                more = true;
                rc = any ? tr_buf_append_str(q, ", ") : TR_OK;
                if (rc >= 0)
                    rc = put_ident(w, w->columns[i].name, q);
                any = true;
                break;
            }
    }
    if (rc >= 0)
        rc = tr_buf_append_u8(q, ')');
    return rc < 0 ? rc : ch ? tr_ch_settings_sql(w, q) : tr_buf_append_u8(q, ')');
}

/* " DEFAULT constant": what rows that are there took on at the source when the column was added. It stays with the column, since rows of the
 * older definition may still come (in flight, or delivered again) and do not name it. */
static int put_fill(const struct tr_want *w, const struct tr_want_column *c, struct tr_buf *q)
{
    if (!c->fill)
        return TR_OK;
    int rc = tr_buf_append_str(q, " DEFAULT ");
    if (rc < 0 || w->dialect == TR_DIALECT_POSTGRES)
        return rc < 0 ? rc : tr_quote_literal(q, tr_slice_str(c->fill));
    if (!strcmp(c->type, "BLOB") && !strncmp(c->fill, "\\x", 2))
        return tr_buf_printf(q, "X'%s'", c->fill + 2);
    if (!strcmp(c->type, "INTEGER") && (!strcmp(c->fill, "t") || !strcmp(c->fill, "f")))
        return tr_buf_append_str(q, c->fill[0] == 't' ? "1" : "0");
    rc = tr_buf_append_u8(q, '\''); /* SQLite knows no E'' strings */
    for (const char *s = c->fill; rc >= 0 && *s; s++)
        rc = tr_buf_append_str(q, *s == '\'' ? "''" : (char[2]){*s, 0});
    return rc >= 0 ? tr_buf_append_u8(q, '\'') : rc;
}

static int put_column(const struct tr_want *w, const struct tr_want_column *c, struct tr_buf *q)
{
    bool ch = tr_dialect_clickhouse(w->dialect);
    int rc = put_ident(w, c->name, q);
    if (rc >= 0)
        rc = tr_buf_printf(q, " %s%s", c->type, c->key_pos && !ch ? " NOT NULL" : "");
    return rc < 0 ? rc : ch ? tr_ch_column_sql(w, c, q) : put_fill(w, c, q);
}

/* Only where it is missing: CREATE SCHEMA asks for its privilege even where IF NOT EXISTS has nothing to do. */
static int plan_ns(const struct tr_want *w, struct tr_plan *p)
{
    struct tr_buf q;
    tr_buf_init(&q);
    bool ch = tr_dialect_clickhouse(w->dialect);
    int rc = tr_buf_append_str(&q, ch ? "CREATE DATABASE IF NOT EXISTS " : "CREATE SCHEMA ");
    if (rc >= 0)
        rc = put_ident(w, w->ns, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "create %s %s", ch ? "database" : "schema", w->ns);
    tr_buf_done(&q);
    return rc;
}

static int plan_create(const struct tr_want *w, bool no_ns, struct tr_plan *p, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = no_ns ? plan_ns(w, p) : TR_OK;
    if (rc >= 0)
        rc = tr_buf_append_str(&q, "CREATE TABLE ");
    if (rc >= 0)
        rc = put_name(w->dialect, w->ns, w->name, &q);
    for (uint32_t i = 0; i < w->n && rc >= 0; i++) {
        rc = tr_buf_append_str(&q, i ? ", " : " (");
        if (rc >= 0)
            rc = put_column(w, &w->columns[i], &q);
    }
    if (rc >= 0)
        rc = put_tail(w, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "create table %s", w->name);
    tr_buf_done(&q);
    return rc < 0 ? nomem(err) : TR_OK;
}

/* "ALTER TABLE name" and what is done to it. */
static int put_alter(const struct tr_want *w, const char *name, const char *what, struct tr_buf *q)
{
    int rc = tr_buf_append_str(q, "ALTER TABLE ");
    if (rc >= 0)
        rc = put_name(w->dialect, w->ns, name, q);
    return rc >= 0 ? tr_buf_append_str(q, what) : rc;
}

static int plan_add_column(const struct tr_want *w, const struct tr_want_column *c, struct tr_plan *p)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = put_alter(w, w->name, " ADD COLUMN ", &q);
    if (rc >= 0)
        rc = put_column(w, c, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "add column %s to table %s", c->name, w->name);
    tr_buf_done(&q);
    return rc;
}

static const struct tr_desc_column *have_column(const struct tr_want *w, const struct tr_table_desc *have, const char *name)
{
    for (uint32_t i = 0; i < have->n_columns; i++)
        if (same_name(w->dialect, have->columns[i].name, name))
            return &have->columns[i];
    return NULL;
}

static const struct tr_want_column *want_column(const struct tr_want *w, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (same_name(w->dialect, w->columns[i].name, name))
            return &w->columns[i];
    return NULL;
}

/* "length:name=position;" per column */
int tr_positions_put(const struct tr_want *w, struct tr_buf *out)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < w->n && rc >= 0; i++)
        if (w->columns[i].source_pos)
            rc = tr_buf_printf(out, "%zu:%s=%d;", strlen(w->columns[i].name), w->columns[i].name, w->columns[i].source_pos);
    return rc;
}

/* One entry of the text; NULL at its end, or where it is not one of ours. */
static const char *next_position(const char *text, struct tr_slice *ret_name, int16_t *ret_pos)
{
    char *end;
    size_t n = strtoul(text, &end, 10);
    if (*end != ':' || strlen(end + 1) < n + 1 || end[1 + n] != '=')
        return NULL;
    *ret_name = tr_slice_of(end + 1, n);
    *ret_pos = (int16_t)strtol(end + n + 2, &end, 10);
    return *end == ';' ? end + 1 : NULL;
}

int tr_positions_get(const char *text, struct tr_table_desc *io)
{
    struct tr_slice name;
    int16_t pos;
    tr_free(io->positions);
    io->positions = tr_strdup(text);
    while ((text = next_position(text, &name, &pos)))
        for (uint32_t i = 0; i < io->n_columns; i++)
            if (tr_slice_eq(tr_slice_str(io->columns[i].name), name))
                io->columns[i].source_pos = pos;
    return io->positions ? TR_OK : TR_NOMEM;
}

/* The table had that column when it was fitted last. */
static bool had_column(const struct tr_table_desc *have, const struct tr_want_column *c)
{
    struct tr_slice name;
    int16_t pos;
    for (const char *text = have->positions; text && (text = next_position(text, &name, &pos));)
        if (pos == c->source_pos && tr_slice_eq(tr_slice_str(c->name), name))
            return true;
    return false;
}

#define CURE "; take a new snapshot (tailrace table resnapshot), or change the sink's table by hand and resume"

static int not_ours(const struct tr_want *w, const struct tr_table_desc *have, struct tr_plan *p)
{
    bool ch = tr_dialect_clickhouse(w->dialect);
    const char *lacks = !ch ? "" : have_column(w, have, "_tr_version") ? " (its column _tr_version has no record of ours as its comment)" : " (it has no column _tr_version)";
    return tr_plan_refuse(p, "table %s%s%s exists in the sink and was not made by tailrace%s; rename or drop it%s, then resume", w->ns, *w->ns ? "." : "", w->name, lacks,
                          w->dialect == TR_DIALECT_POSTGRES ? ", or give the sink a schema of its own" : ch ? ", or give the sink a database of its own" : "");
}

/* One more difference that is not additive; the cure of all comes behind the last. */
__attribute__((format(printf, 2, 3))) static void differs(struct tr_plan *p, const char *fmt, ...)
{
    enum { ROOM_FOR_CURE = 150 };
    char text[256];
    size_t n = strlen(p->reason);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!p->refused)
        tr_plan_refuse(p, "%s", text);
    else if (n + strlen(text) + 2 < sizeof p->reason - ROOM_FOR_CURE)
        snprintf(p->reason + n, sizeof p->reason - n, "; %s", text);
    else if (n > 4 && strcmp(p->reason + n - 4, ", …") != 0)
        snprintf(p->reason + n, sizeof p->reason - n, ", …");
}

/* A column that nobody at the source has. */
static void column_too_many(const struct tr_want *w, const struct tr_table_desc *have, const struct tr_desc_column *c, struct tr_plan *p)
{
    bool theirs = have->positions && *have->positions && !c->source_pos && strncmp(c->name, "_tr_", 4) != 0;
    if (theirs && c->filled)
        return;
    if (theirs && tr_dialect_clickhouse(w->dialect))
        differs(p, "column %s of table %s was added in the sink and has no default there (with one it may stay)", c->name, w->name);
    else
        differs(p, "column %s of table %s is no longer in the source (dropped or renamed)", c->name, w->name);
}

int tr_reconcile(const struct tr_want *w, const struct tr_table_desc *have, struct tr_plan *p, struct tr_err *err)
{
    if (!have->exists)
        return plan_create(w, have->no_ns, p, err);
    if (!have->ours)
        return not_ours(w, have, p);
    bool soft = w->kind == TR_TABLE_MIRROR_SOFT;
    if (w->kind != TR_TABLE_LOG && soft != (have_column(w, have, "_tr_deleted") != NULL))
        return tr_plan_refuse(p,
                              "hard_delete was changed for table %s: in the sink deleted rows %s, by the configuration they %s; take a new snapshot (tailrace table resnapshot), or"
                              " set it back and resume",
                              w->name, soft ? "are gone" : "are marked", soft ? "are to be marked" : "are to go");
    bool older = w->schema_version < have->note.schema_version;
    for (uint32_t i = 0; i < have->n_columns && !older; i++)
        if (!want_column(w, have->columns[i].name) && w->kind != TR_TABLE_LOG)
            column_too_many(w, have, &have->columns[i], p);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct tr_want_column *c = &w->columns[i];
        const struct tr_desc_column *h = have_column(w, have, c->name);
        if (!h && older)
            return tr_plan_refuse(p, "changes of before column %s was dropped from table %s were met again" CURE, c->name, w->name);
        if (!h && c->source_pos && had_column(have, c))
            return tr_plan_refuse(p, "column %s was removed from table %s in the sink, and its values with it%s", c->name, w->name,
                                  w->kind == TR_TABLE_LOG ? "; add it again by hand, or rename the table (another is made), and resume" : "; take a new snapshot (tailrace table resnapshot)");
        if (!h && c->key_pos)
            return tr_plan_refuse(p, "column %s is new in the key of table %s" CURE, c->name, w->name);
        if (!h && c->unfillable)
            return tr_plan_refuse(p, "column %s was added to table %s with values that the stream does not tell (a default that is not a constant)" CURE, c->name, w->name);
        if (!h && !p->refused && plan_add_column(w, c, p) < 0)
            return nomem(err);
        if (h && (tr_dialect_clickhouse(w->dialect) ? !h->key_pos != !c->key_pos : h->key_pos != c->key_pos)) /* its sorting key may stand in any order */
            return tr_plan_refuse(p, "the key of table %s changed at column %s" CURE, w->name, c->name);
        if (h && !older && w->kind != TR_TABLE_LOG && h->source_pos && c->source_pos && h->source_pos != c->source_pos)
            return tr_plan_refuse(p, "column %s of table %s was dropped and added again: its old values are gone at the source" CURE, c->name, w->name);
        if (h && strcasecmp(h->type, c->type) != 0)
            differs(p, "column %s of table %s changed its type from %s to %s", c->name, w->name, h->type, c->type);
    }
    size_t n = strlen(p->reason);
    if (p->refused)
        snprintf(p->reason + n, sizeof p->reason - n, "%s", w->kind == TR_TABLE_LOG ? "; change the column by hand, or rename the table (another is made), and resume" : CURE);
    else if (tr_dialect_clickhouse(w->dialect))
        tr_ch_reconcile(w, have, p);
    return TR_OK;
}

void tr_sql_derived(const char *name, const char *suffix, char out[TR_SQL_NAME_MAX + 1])
{
    size_t n = strlen(name), k = strlen(suffix);
    TR_ASSERT(k <= 20);
    if (n + k <= TR_SQL_NAME_MAX) {
        memcpy(out, name, n);
        memcpy(out + n, suffix, k + 1);
        return;
    }
    size_t keep = TR_SQL_NAME_MAX - k - 9;
    while (keep && ((unsigned char)name[keep] & 0xc0) == 0x80) /* not inside a character */
        keep--;
    char hash[10];
    snprintf(hash, sizeof hash, "_%08x", (unsigned)tr_hash64(name, n));
    memcpy(out, name, keep);
    memcpy(out + keep, hash, 9);
    memcpy(out + keep + 9, suffix, k + 1);
}

static int put_view_name(const struct tr_want *w, struct tr_buf *q)
{
    char name[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(w->name, "_live", name);
    return put_name(w->dialect, w->ns, name, q);
}

static int plan_drop_view(const struct tr_want *w, struct tr_plan *p)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = tr_buf_append_str(&q, tr_dialect_clickhouse(w->dialect) ? "DROP TABLE IF EXISTS " : "DROP VIEW IF EXISTS ");
    if (rc >= 0)
        rc = put_view_name(w, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "drop the view over table %s", w->name);
    tr_buf_done(&q);
    return rc;
}

int tr_plan_view(const struct tr_want *w, struct tr_plan *p, struct tr_err *err)
{
    if (w->kind != TR_TABLE_MIRROR_SOFT)
        return TR_OK;
    struct tr_buf q;
    tr_buf_init(&q);
    bool ch = tr_dialect_clickhouse(w->dialect), replace = ch && (w->dialect & TR_CLICKHOUSE_EXCHANGE); /* where it cannot be replaced, there is none for a moment */
    int rc = replace ? TR_OK : plan_drop_view(w, p);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, replace ? "CREATE OR REPLACE VIEW " : "CREATE VIEW ");
    if (rc >= 0)
        rc = put_view_name(w, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " AS SELECT ");
    bool any = false;
    for (uint32_t i = 0; i < w->n && rc >= 0; i++) {
        if (!strncmp(w->columns[i].name, "_tr_", 4))
            continue;
        rc = tr_buf_append_str(&q, any ? ", " : "");
        if (rc >= 0)
            rc = put_ident(w, w->columns[i].name, &q);
        any = true;
    }
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " FROM ");
    if (rc >= 0)
        rc = put_name(w->dialect, w->ns, w->name, &q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, ch ? " FINAL WHERE NOT _tr_deleted" : " WHERE NOT _tr_deleted");
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "make the view over table %s", w->name);
    tr_buf_done(&q);
    return rc < 0 ? nomem(err) : TR_OK;
}

int tr_plan_drop(enum tr_dialect d, const char *ns, const char *name, struct tr_plan *p, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = tr_buf_append_str(&q, "DROP TABLE IF EXISTS ");
    if (rc >= 0)
        rc = put_name(d, ns, name, &q);
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "drop table %s", name);
    tr_buf_done(&q);
    return rc < 0 ? nomem(err) : TR_OK;
}

static int plan_rename(const struct tr_want *w, const char *shadow, struct tr_plan *p)
{
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = put_alter(w, shadow, " RENAME TO ", &q);
    if (rc >= 0)
        rc = tr_quote_ident(&q, tr_slice_str(w->name));
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "swap in the new build of table %s", w->name);
    tr_buf_done(&q);
    return rc;
}

/* DROP took the old key's name along; the new one keeps that of the build through the renaming, which would say __tr_build for ever. */
static int plan_rename_key(const struct tr_want *w, const char *from, struct tr_plan *p)
{
    char to[TR_SQL_NAME_MAX + 1];
    tr_sql_derived(w->name, "_pkey", to);
    if (!*from || !strcmp(from, to))
        return TR_OK;
    struct tr_buf q;
    tr_buf_init(&q);
    int rc = put_alter(w, w->name, " RENAME CONSTRAINT ", &q);
    if (rc >= 0)
        rc = tr_quote_ident(&q, tr_slice_str(from));
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " TO ");
    if (rc >= 0)
        rc = tr_quote_ident(&q, tr_slice_str(to));
    if (rc >= 0)
        rc = tr_plan_sql(p, &q, "name the key of table %s", w->name);
    tr_buf_done(&q);
    return rc;
}

int tr_plan_swap(const struct tr_want *w, const struct tr_table_desc *there, const char *shadow, const struct tr_table_desc *build, struct tr_plan *p, struct tr_err *err)
{
    if (there->exists && !there->ours)
        return not_ours(w, there, p);
    if (tr_dialect_clickhouse(w->dialect))
        return tr_ch_plan_swap(w, there, shadow, build, p, err) < 0 ? nomem(err) : TR_OK;
    int rc = plan_drop_view(w, p) < 0 ? nomem(err) : tr_plan_drop(w->dialect, w->ns, w->name, p, err);
    if (rc >= 0 && (plan_rename(w, shadow, p) < 0 || plan_rename_key(w, build->key_name, p) < 0))
        rc = nomem(err);
    if (rc >= 0)
        rc = tr_plan_view(w, p, err);
    if (rc >= 0 && tr_plan_renamed(p, w->ns, shadow, w->name, "mirror", build->note.snapshot_id) < 0)
        rc = nomem(err);
    return rc;
}
