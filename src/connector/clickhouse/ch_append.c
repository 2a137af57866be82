/*
 * ch_append.c: rows as they are, into a table of the user's (TR_TARGET_APPEND), which is compared with the definition and never altered.
 *
 * A column of the definition either names a ClickHouse type (clickhouse.h: rows come encoded, or as text), which must be the table's own; or has a type of
 * schema.h and comes as text, which is converted to whatever type the table has: one that takes no value of that kind is refused here, one value that
 * does not fit is refused at its row.
 *
 * A chunk is rows in RowBinary, one after the other. What the table's types are is frozen with the first bind: chunks that were encoded for them are no
 * good for others.
 */
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "rowbinary.h"

static int no_memory(const struct ch_sink *s, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for a table", s->sql.what);
}

/* ---- what is there ---- */

static int ask(struct ch_sink *s, const char *select, const char *name_is, const char *name, int64_t deadline_ns, struct tr_buf *ret, struct tr_err *err)
{
    int rc = tr_ch_question(s, select, "database", s->sql.ns, name_is, name, "RowBinary", deadline_ns, ret, err);
    return rc == TR_STALE || rc == TR_REJECT ? TR_RETRY : rc; /* a question says nothing of the table */
}

static int no_table(const struct ch_sink *s, const struct tr_schema *schema, struct tr_err *err)
{
    struct tr_buf q = {0};
    bool ok = tr_ch_name(s->sql.ns, schema->name, &q) >= 0 && tr_buf_append_str(&q, " (") >= 0;
    for (uint32_t i = 0; i < schema->n_columns && ok; i++) {
        const struct tr_column *c = &schema->columns[i];
        ok = (!i || tr_buf_append_str(&q, ", ") >= 0) && tr_ch_ident(tr_slice_str(c->name), &q) >= 0 && tr_buf_append_u8(&q, ' ') >= 0;
        if (ok && c->type == TR_TYPE_OPAQUE)
            ok = tr_buf_append_str(&q, c->source_type) >= 0;
        else if (ok)
            ok = tr_buf_printf(&q, c->not_null ? "%s" : "Nullable(%s)", "…") >= 0;
    }
    ok = ok && tr_buf_cstr(&q);
    int rc = ok ? tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "there is no table %s.%s; make it first: CREATE TABLE %s) ENGINE = MergeTree ORDER BY … SETTINGS non_replicated_deduplication_window = 1000", s->sql.ns,
                             schema->name, tr_buf_cstr(&q))
                : no_memory(s, err);
    tr_buf_done(&q);
    return rc;
}

/* That an INSERT which comes again, because its answer was lost, is dropped. */
static int check_engine(struct ch_sink *s, const struct tr_schema *schema, int64_t deadline_ns, struct tr_err *err)
{
    static const char setting[] = "non_replicated_deduplication_window";
    struct tr_buf a = {0}, text = {0};
    bool today = s->sql.dialect & TR_CLICKHOUSE_TODAY;
    int rc = ask(s, today ? "SELECT engine, engine_full, ifNull((SELECT any(value) FROM system.merge_tree_settings WHERE name = 'non_replicated_deduplication_window'), '0') FROM system.tables"
                          : "SELECT engine, '', '0' FROM system.tables",
                 "name", schema->name, deadline_ns, &a, err);
    struct tr_cur c = tr_cur_of(tr_buf_slice(&a));
    if (rc >= 0 && !a.n)
        rc = no_table(s, schema, err);
    if (rc >= 0) {
        struct tr_slice engine = tr_cur_bytes(&c, tr_cur_varint(&c)), full = tr_cur_bytes(&c, tr_cur_varint(&c)), value = tr_cur_bytes(&c, tr_cur_varint(&c));
        int64_t own = -1;
        char number[24];
        if (tr_buf_append_slice(&text, full) < 0 || !tr_buf_cstr(&text))
            rc = no_memory(s, err);
        else
            tr_ch_window(tr_buf_cstr(&text), &own);
        snprintf(number, sizeof number, "%" TR_SLICE_FMT, TR_SLICE_ARG(value));
        bool shared = tr_slice_has_prefix(engine, tr_slice_str("Replicated")) || tr_slice_has_prefix(engine, tr_slice_str("Shared"));
        bool tree = engine.n >= 9 && !memcmp(engine.p + engine.n - 9, "MergeTree", 9);
        bool drops = s->o->allow_duplicates || shared || (tree && (own >= 0 ? own > 0 : strtoull(number, NULL, 10) > 0));
        if (rc >= 0 && !tr_cur_done(&c))
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the answer to the question for table %s is none", s->sql.what, schema->name);
        else if (rc >= 0 && !drops && tree && today)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA,
                            "table %s.%s does not drop an INSERT that comes again, so that rows would be there twice when an answer is lost: ALTER TABLE %s.%s MODIFY SETTING %s = 1000, or set allow_duplicates of the sink", s->sql.ns,
                            schema->name, s->sql.ns, schema->name, setting);
        else if (rc >= 0 && !drops)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "table %s.%s (%" TR_SLICE_FMT "%s) cannot drop an INSERT that comes again, so that rows would be there twice when an answer is lost: set allow_duplicates of the sink if they may", s->sql.ns,
                            schema->name, TR_SLICE_ARG(engine), today ? "" : " of a server this old");
    }
    tr_buf_done(&text);
    tr_buf_done(&a);
    return rc;
}

/* ---- column by column ---- */

static const char *sample(uint8_t type)
{
    switch (type) {
    case TR_TYPE_BOOL: return "t";
    case TR_TYPE_INT16:
    case TR_TYPE_INT32:
    case TR_TYPE_INT64:
    case TR_TYPE_FLOAT32:
    case TR_TYPE_FLOAT64:
    case TR_TYPE_DECIMAL: return "1";
    case TR_TYPE_BYTES: return "\\x";
    case TR_TYPE_DATE: return "2001-02-03";
    case TR_TYPE_TIME: return "01:02:03";
    case TR_TYPE_TIMESTAMP: return "2001-02-03 04:05:06";
    case TR_TYPE_TIMESTAMPTZ: return "2001-02-03 04:05:06+00";
    case TR_TYPE_UUID: return "00112233-4455-6677-8899-aabbccddeeff";
    case TR_TYPE_ARRAY: return "{}";
    default: return NULL; /* its text says */
    }
}

struct differences {
    struct tr_buf text;
    uint32_t n;
    bool failed;
};

__attribute__((format(printf, 2, 3))) static void differs(struct differences *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    d->failed |= (d->n++ && tr_buf_append_str(&d->text, "; ") < 0) || tr_buf_vprintf(&d->text, fmt, ap) < 0;
    va_end(ap);
}

/* The type as it is sent, for comparing: without LowCardinality and SimpleAggregateFunction. */
static bool plain(const struct tr_ch_type *t, struct tr_buf *out)
{
    tr_buf_clear(out);
    return tr_ch_type_print(t, true, out) >= 0;
}

static int compare(struct ch_table *t, uint32_t i, const struct tr_column *c, struct tr_slice has, struct differences *d)
{
    const struct tr_ch_type *want = NULL, *is = NULL;
    struct tr_buf a = {0}, b = {0};
    struct tr_err e = {0};
    int rc = tr_ch_type_parse(has, &t->arena, &is, &e);
    if (rc == TR_REJECT)
        differs(d, "column %s: %s", c->name, e.msg);
    if (rc >= 0 && c->type == TR_TYPE_OPAQUE) {
        rc = tr_ch_type_parse(tr_arena_dup(&t->arena, tr_slice_str(c->source_type)), &t->arena, &want, &e);
        if (rc == TR_REJECT)
            differs(d, "column %s: the program's type: %s", c->name, e.msg);
        else if (rc >= 0 && (!plain(want, &a) || !plain(is, &b)))
            rc = TR_NOMEM;
        else if (rc >= 0 && !tr_slice_eq(tr_buf_slice(&a), tr_buf_slice(&b)))
            differs(d, "column %s is %" TR_SLICE_FMT " in the table, and the program writes %s", c->name, TR_SLICE_ARG(has), c->source_type);
    } else if (rc >= 0 && sample(c->type)) {
        struct tr_rowbinary rb = {0};
        struct tr_slice v = tr_slice_str(sample(c->type));
        rc = tr_rowbinary_cell(&rb, is, (struct tr_ch_from){.type = c->type, .element = TR_TYPE_OPAQUE}, &v, &a, &e);
        tr_rowbinary_done(&rb);
        if (rc == TR_REJECT)
            differs(d, "column %s is %" TR_SLICE_FMT " in the table, which takes no %s", c->name, TR_SLICE_ARG(has), tr_type_name(c->type));
    }
    t->columns[i] = (struct ch_column){.type = is, .from = {.type = c->type, .element = TR_TYPE_OPAQUE}};
    tr_buf_done(&a);
    tr_buf_done(&b);
    return rc == TR_REJECT ? TR_OK : rc;
}

/* The columns of the definition, each with the type that the table has. */
static int columns(struct ch_sink *s, struct ch_table *t, int64_t deadline_ns, struct tr_err *err)
{
    const struct tr_schema *sc = t->schema;
    struct tr_buf a = {0};
    struct differences d = {0};
    bool *seen = tr_arena_calloc(&t->arena, sc->n_columns + 1, sizeof *seen);
    int rc = seen ? ask(s, "SELECT name, type, default_kind FROM system.columns", "table", sc->name, deadline_ns, &a, err) : no_memory(s, err);
    struct tr_cur c = tr_cur_of(tr_buf_slice(&a));
    while (rc >= 0 && !tr_cur_done(&c)) {
        struct tr_slice name = tr_cur_bytes(&c, tr_cur_varint(&c)), type = tr_cur_bytes(&c, tr_cur_varint(&c)), kind = tr_cur_bytes(&c, tr_cur_varint(&c));
        if (!tr_cur_ok(&c)) {
            rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: the answer to the question for the columns of %s is none", s->sql.what, sc->name);
            break;
        }
        int i = tr_schema_find(sc, name);
        if (i < 0)
            continue; /* it gets its default */
        seen[i] = true;
        if (tr_slice_eq_str(kind, "MATERIALIZED") || tr_slice_eq_str(kind, "ALIAS"))
            differs(&d, "column %s is %" TR_SLICE_FMT ", and cannot be written", sc->columns[i].name, TR_SLICE_ARG(kind));
        type = tr_arena_dup(&t->arena, type);
        rc = type.p ? compare(t, (uint32_t)i, &sc->columns[i], type, &d) : TR_NOMEM;
        if (rc < 0)
            rc = no_memory(s, err);
    }
    for (uint32_t i = 0; i < sc->n_columns && rc >= 0; i++)
        if (!seen[i])
            differs(&d, "column %s is not in the table", sc->columns[i].name);
    if (rc >= 0 && d.n)
        rc = d.failed || !tr_buf_cstr(&d.text) ? no_memory(s, err)
                                               : tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "table %s.%s differs: %s. Alter the table, or what the program declares", s->sql.ns, sc->name, tr_buf_cstr(&d.text));
    t->n = rc >= 0 ? sc->n_columns : 0;
    tr_buf_done(&d.text);
    tr_buf_done(&a);
    return rc;
}

/* ---- the target ---- */

static struct tr_sqltarget *known(const struct ch_sink *s, const struct tr_schema *schema)
{
    TR_LIST_EACH (n, &s->sql.targets) {
        struct tr_sqltarget *t = tr_container_of(n, struct tr_sqltarget, link);
        if (t->target.variant == TR_TARGET_APPEND && t->target.table_id == schema->table_id && t->target.schema_version == schema->version && t->schema->fingerprint == schema->fingerprint)
            return t;
    }
    return NULL;
}

static int new_target(struct ch_sink *s, struct ch_table *table, const struct tr_schema *schema, struct tr_target **ret, struct tr_err *err)
{
    struct tr_sqltarget *t = tr_calloc(1, sizeof *t);
    if (!t)
        return no_memory(s, err);
    t->target = (struct tr_target){.table_id = schema->table_id, .schema_version = schema->version, .variant = TR_TARGET_APPEND};
    t->schema = tr_schema_ref(schema);
    t->id = ++s->sql.next_id;
    snprintf(t->ns, sizeof t->ns, "%s", s->sql.ns);
    snprintf(t->name, sizeof t->name, "%s", schema->name);
    t->own = table;
    tr_list_init(&t->link);
    tr_list_push_back(&s->sql.targets, &t->link);
    *ret = &t->target;
    return TR_OK;
}

int tr_ch_append_bind(struct ch_sink *s, const struct tr_schema *schema, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err)
{
    struct tr_sqltarget *was = known(s, schema);
    struct ch_table *t = NULL;
    int rc = strlen(schema->name) > TR_SQL_NAME_MAX ? tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "the table name %.80s… is longer than %d bytes", schema->name, TR_SQL_NAME_MAX) : TR_OK;
    if (rc >= 0)
        rc = check_engine(s, schema, deadline_ns, err);
    if (rc >= 0)
        rc = tr_ch_table_append(s, was ? was->schema : schema, &t, err);
    if (rc >= 0)
        rc = columns(s, t, deadline_ns, err);
    if (rc >= 0)
        rc = tr_ch_table_statements(s, t, err);
    if (rc >= 0 && was) {
        const struct ch_table *had = was->own;
        if (strcmp(had->insert, t->insert) != 0 || !tr_slice_eq(had->header, t->header))
            rc = tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "a column of table %s.%s has another type than when the program started, or than at another server: alter it back, or start the program again", s->sql.ns, schema->name);
        *ret = &was->target;
    } else if (rc >= 0 && (rc = new_target(s, t, schema, ret, err)) >= 0) {
        t = NULL;
    }
    tr_ch_table_free(t);
    return rc;
}

/* ---- rows that come as text ---- */

struct encoder {
    struct tr_encoder encoder;
    const struct ch_table *t;
    struct tr_rowbinary rb;
};

static int put_row(struct encoder *e, const struct tr_change *g, struct tr_buf *out, struct tr_err *err)
{
    const struct tr_schema *s = e->t->schema;
    if (g->op != TR_OP_INSERT && g->op != TR_OP_READ)
        return tr_err_set(err, TR_REJECT, TR_DOM_SINK, "table %s is appended to: it takes new rows only", s->name);
    for (uint32_t i = 0; i < e->t->n; i++) {
        bool there = i < g->after.n && g->after.state[i] == TR_PRESENT;
        int rc = tr_rowbinary_cell(&e->rb, e->t->columns[i].type, e->t->columns[i].from, there ? &g->after.v[i] : NULL, out, err);
        if (rc < 0)
            return tr_err_set(err, rc, TR_DOM_SINK, "column %s of table %s: %s", s->columns[i].name, s->name, rc == TR_NOMEM ? "no memory" : err ? err->msg : "");
    }
    return TR_OK;
}

static int encode(struct tr_encoder *te, const struct tr_change *v, uint32_t n, uint32_t *ret_done, struct tr_buf *out, struct tr_err *err)
{
    struct encoder *e = tr_container_of(te, struct encoder, encoder);
    for (*ret_done = 0; *ret_done < n; ++*ret_done) {
        size_t at = out->n;
        int rc = put_row(e, &v[*ret_done], out, err);
        if (rc < 0) {
            out->n = at;
            return rc;
        }
    }
    return TR_OK;
}

static void free_encoder(struct tr_encoder *te)
{
    struct encoder *e = tr_container_of(te, struct encoder, encoder);
    tr_rowbinary_done(&e->rb);
    tr_free(e);
}

int tr_ch_append_encoder(const struct ch_table *t, struct tr_encoder **ret, struct tr_err *err)
{
    static const struct tr_encoder_ops ops = {.encode = encode, .free = free_encoder};
    struct encoder *e = tr_calloc(1, sizeof *e);
    if (!e)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for an encoder");
    e->encoder.ops = &ops;
    e->t = t;
    *ret = &e->encoder;
    return TR_OK;
}
