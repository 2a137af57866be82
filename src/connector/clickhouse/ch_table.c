/* ch_table.c: a table as its rows are written: types, statements, cells of a row, records of a chunk. */
#include <stdio.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "rowbinary.h"

static int no_memory(const char *name, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "no memory for the statements of table %s", name);
}

static int columns(struct ch_table *t, const struct tr_want *w, struct tr_err *err)
{
    t->columns = tr_calloc(w->n + 1, sizeof *t->columns);
    if (!t->columns)
        return no_memory(w->name, err);
    for (; t->n < w->n; t->n++) {
        const struct tr_want_column *c = &w->columns[t->n];
        struct tr_slice type = tr_arena_dup(&t->arena, tr_slice_str(c->type));
        if (!type.p)
            return no_memory(w->name, err);
        int rc = tr_ch_type_parse(type, &t->arena, &t->columns[t->n].type, err);
        if (rc < 0)
            return rc == TR_NOMEM ? no_memory(w->name, err) : rc;
        t->columns[t->n].from = (struct tr_ch_from){.type = c->canonical, .element = TR_TYPE_OPAQUE};
    }
    t->first = w->kind == TR_TABLE_LOG ? w->n - t->schema->n_columns : 0;
    return TR_OK;
}

static bool list(const struct tr_want *w, struct tr_buf *q)
{
    for (uint32_t i = 0; i < w->n; i++)
        if ((i && tr_buf_append_str(q, ", ") < 0) || tr_ch_ident(tr_slice_str(w->columns[i].name), q) < 0)
            return false;
    return true;
}

static char *taken(struct tr_buf *q, bool ok)
{
    char *s = ok && tr_buf_cstr(q) ? tr_strdup(tr_buf_cstr(q)) : NULL;
    tr_buf_clear(q);
    return s;
}

static bool header(struct ch_table *t, const struct tr_want *w, struct tr_buf *q)
{
    struct tr_slice *names = tr_arena_alloc(&t->arena, (w->n + 1) * sizeof *names);
    const struct tr_ch_type **types = tr_arena_alloc(&t->arena, (w->n + 1) * sizeof *types);
    for (uint32_t i = 0; i < w->n && names && types; i++) {
        names[i] = tr_slice_str(w->columns[i].name);
        types[i] = t->columns[i].type;
    }
    bool ok = names && types && tr_rowbinary_header(names, types, w->n, q, NULL) >= 0;
    if (ok)
        t->header = tr_arena_dup(&t->arena, tr_buf_slice(q));
    tr_buf_clear(q);
    return ok && t->header.p;
}

static bool heads(struct ch_table *t, const struct tr_want *w, struct tr_buf *q)
{
    struct tr_buf type = {0};
    bool ok = true;
    for (uint32_t i = 0; i < w->n && ok; i++) {
        size_t n = strlen(w->columns[i].name);
        tr_buf_clear(&type);
        ok = tr_ch_type_print(t->columns[i].type, true, &type) >= 0 && tr_buf_append_varint(q, n) >= 0 && tr_buf_append(q, w->columns[i].name, n) >= 0 &&
             tr_buf_append_varint(q, type.n) >= 0 && tr_buf_append_slice(q, tr_buf_slice(&type)) >= 0;
        t->columns[i].head = ok ? tr_arena_dup(&t->arena, tr_buf_slice(q)) : (struct tr_slice){NULL, 0};
        ok = ok && t->columns[i].head.p;
        tr_buf_clear(q);
    }
    tr_buf_done(&type);
    return ok;
}

static bool key_list(const struct ch_table *t, bool structure, struct tr_buf *q)
{
    const struct tr_schema *s = t->schema;
    for (uint32_t k = 0; k < s->n_key; k++) {
        if (k && tr_buf_append_str(q, ", ") < 0)
            return false;
        if (!structure && tr_ch_ident(tr_slice_str(s->columns[s->key[k]].name), q) < 0)
            return false;
        if (structure && (tr_buf_printf(q, "k%u ", k) < 0 || tr_ch_type_print(t->columns[t->first + s->key[k]].type, true, q) < 0))
            return false;
    }
    return true;
}

static bool statements(struct ch_table *t, const struct tr_want *w, struct tr_buf *q)
{
    bool ok = tr_buf_append_str(q, "INSERT INTO ") >= 0 && tr_ch_name(w->ns, w->name, q) >= 0 && tr_buf_append_str(q, " (") >= 0 && list(w, q) &&
              tr_buf_printf(q, ") FORMAT %s\n", t->native ? "Native" : t->today ? "RowBinaryWithNamesAndTypes" : "RowBinary") >= 0;
    t->insert = taken(q, ok);
    if (!t->insert || (t->native ? !heads(t, w, q) : t->today && !header(t, w, q)))
        return false;
    ok = tr_buf_append_str(q, "SELECT max(n) FROM (SELECT count() AS n FROM system.parts WHERE active AND database = ") >= 0 && tr_ch_literal(tr_slice_str(w->ns), q) >= 0 &&
         tr_buf_append_str(q, " AND table = ") >= 0 && tr_ch_literal(tr_slice_str(w->name), q) >= 0 && tr_buf_append_str(q, " GROUP BY partition) FORMAT RowBinary") >= 0;
    t->parts = taken(q, ok);
    if (!t->parts || t->kind != TR_TABLE_MIRROR_SOFT)
        return t->parts;
    ok = tr_buf_append_str(q, "SELECT ") >= 0 && list(w, q) && tr_buf_append_str(q, " FROM ") >= 0 && tr_ch_name(w->ns, w->name, q) >= 0 &&
         tr_buf_append_str(q, " FINAL WHERE (") >= 0 && key_list(t, false, q) && tr_buf_append_str(q, ") IN keys FORMAT RowBinary") >= 0;
    t->select = taken(q, ok);
    t->keys = taken(q, key_list(t, true, q));
    ok = tr_buf_append_str(q, "INSERT INTO ") >= 0 && tr_ch_name(w->ns, w->name, q) >= 0 && tr_buf_append_str(q, " (") >= 0 && list(w, q) && tr_buf_append_str(q, ") SELECT ") >= 0;
    for (uint32_t i = 0; i < t->schema->n_columns && ok; i++)
        ok = tr_ch_ident(tr_slice_str(w->columns[i].name), q) >= 0 && tr_buf_append_str(q, ", ") >= 0;
    t->truncate[0] = taken(q, ok);
    ok = tr_buf_append_str(q, " FROM ") >= 0 && tr_ch_name(w->ns, w->name, q) >= 0 && tr_buf_append_str(q, " FINAL WHERE NOT _tr_deleted AND _tr_version < ") >= 0;
    t->truncate[1] = taken(q, ok);
    return t->select && t->keys && t->truncate[0] && t->truncate[1];
}

int tr_ch_table_append(const struct ch_sink *s, const struct tr_schema *schema, struct ch_table **ret, struct tr_err *err)
{
    struct ch_table *t = tr_calloc(1, sizeof *t);
    if (!t)
        return no_memory(schema->name, err);
    tr_arena_init(&t->arena, 4 << 10, 0);
    t->kind = TR_TABLE_LOG;
    t->today = s->sql.dialect & TR_CLICKHOUSE_TODAY;
    t->append = t->partitioned = true;
    t->schema = schema;
    t->columns = tr_calloc(schema->n_columns + 1, sizeof *t->columns);
    if (!t->columns) {
        tr_ch_table_free(t);
        return no_memory(schema->name, err);
    }
    *ret = t;
    return TR_OK;
}

/* For a tr_want that is only read. */
static char *borrowed(const char *s)
{
    return (char *)(uintptr_t)s;
}

int tr_ch_table_statements(const struct ch_sink *s, struct ch_table *t, struct tr_err *err)
{
    struct tr_buf q = {0};
    struct tr_want w = {.n = t->n, .ns = borrowed(s->sql.ns), .name = borrowed(t->schema->name)};
    w.columns = tr_arena_calloc(&t->arena, t->n + 1, sizeof *w.columns);
    for (uint32_t i = 0; i < t->n && w.columns; i++)
        w.columns[i].name = borrowed(t->schema->columns[i].name);
    bool ok = w.columns && statements(t, &w, &q);
    tr_buf_done(&q);
    return ok ? TR_OK : no_memory(t->schema->name, err);
}

int tr_ch_table_new(const struct ch_sink *s, const struct tr_sqltarget *target, enum tr_table_kind kind, struct ch_table **ret, struct tr_err *err)
{
    struct tr_want w = {0};
    struct tr_buf q = {0};
    struct ch_table *t = tr_calloc(1, sizeof *t);
    if (!t)
        return no_memory(target->name, err);
    tr_arena_init(&t->arena, 4 << 10, 0);
    t->kind = kind;
    t->today = s->sql.dialect & TR_CLICKHOUSE_TODAY;
    t->native = s->o->format == TR_CH_NATIVE;
    t->schema = target->schema;
    int rc = tr_sqlsink_want(&s->sql, kind, target->schema, target->ns, target->name, &w, err);
    t->partitioned = rc >= 0 && w.partition;
    if (rc >= 0)
        rc = columns(t, &w, err);
    if (rc >= 0 && !statements(t, &w, &q))
        rc = no_memory(target->name, err);
    tr_buf_done(&q);
    tr_want_done(&w);
    if (rc < 0) {
        tr_ch_table_free(t);
        return rc == TR_NOMEM ? TR_RETRY : rc;
    }
    *ret = t;
    return TR_OK;
}

struct ch_table *tr_ch_table_free(struct ch_table *t)
{
    if (!t)
        return NULL;
    tr_free(t->columns);
    tr_free(t->insert);
    tr_free(t->select);
    tr_free(t->keys);
    tr_free(t->parts);
    tr_free(t->truncate[0]);
    tr_free(t->truncate[1]);
    tr_arena_done(&t->arena);
    tr_free(t);
    return NULL;
}

/* ---- rows ---- */

bool tr_ch_row(const struct ch_table *t, struct tr_cur *c, uint32_t *ends)
{
    const uint8_t *from = c->p;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tr_ch_type *type = t->columns[i].type;
        bool null = type->nullable && tr_cur_u8(c);
        if (!null)
            tr_cur_bytes(c, type->value->width ? type->value->width : tr_cur_varint(c));
        ends[i] = (uint32_t)(c->p - from);
    }
    return tr_cur_ok(c);
}

uint64_t tr_ch_row_version(const struct ch_table *t, const uint8_t *row, const uint32_t *ends)
{
    uint64_t v;
    memcpy(&v, row + ends[t->n - 3] - sizeof v, sizeof v);
    return le64toh(v);
}

bool tr_ch_row_deleted(const struct ch_table *t, const uint8_t *row, const uint32_t *ends)
{
    return row[ends[t->n - 2] - 1];
}

int tr_ch_row_key(const struct ch_table *t, const uint8_t *row, const uint32_t *ends, struct tr_buf *out)
{
    const struct tr_schema *s = t->schema;
    int rc = TR_OK;
    for (uint32_t k = 0; k < s->n_key && rc >= 0; k++) {
        uint32_t i = t->first + s->key[k], from = i ? ends[i - 1] : 0;
        rc = tr_buf_append(out, row + from, ends[i] - from);
    }
    return rc;
}

/* ---- records ---- */

int tr_ch_record_next(struct tr_cur *c, struct ch_record *ret, struct tr_err *err)
{
    if (tr_cur_done(c))
        return TR_EOF;
    ret->kind = tr_cur_u8(c);
    ret->body = tr_cur_bytes(c, tr_cur_le32(c));
    if (!tr_cur_ok(c) || ret->kind < CH_ROW || ret->kind > CH_TRUNCATE)
        return tr_err_set(err, TR_FATAL, TR_DOM_SINK, "a batch's own bytes are broken");
    return TR_OK;
}

int tr_ch_record_begin(enum ch_kind kind, struct tr_buf *out)
{
    return tr_buf_append_u8(out, (uint8_t)kind) < 0 ? TR_NOMEM : tr_buf_append_u32le(out, 0);
}

void tr_ch_record_end(struct tr_buf *out, size_t from)
{
    uint32_t n = htole32((uint32_t)(out->n - from - 5));
    memcpy(out->p + from + 1, &n, sizeof n);
}
