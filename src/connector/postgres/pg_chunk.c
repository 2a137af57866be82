/*
 * pg_chunk.c: reading rows under a snapshot: chunks by key range, and single rows for FILL.
 *
 * A range is (lo, hi] as a row comparison over the key in the table's own order, which the key's index serves. Values come as COPY
 * text, decoded by the same rules that the stream's text follows. Row filters of the publication apply here as well.
 */
#include <stdlib.h>

#include "alloc.h"
#include "check.h"
#include "copytext.h"
#include "key.h"
#include "pg_session.h"
#include "text.h"

void tr_pg_chunk_reset(struct pg_session *s)
{
    if (s->line)
        PQfreemem(s->line);
    s->line = NULL;
    PQclear(s->row);
    s->row = NULL;
    s->chunk_open = false;
    s->copy_done = false;
}

static int reserve_row(struct pg_session *s, uint32_t n, struct tr_err *err)
{
    if (n <= s->cap)
        return TR_OK;
    struct tr_slice *v = tr_realloc(s->v, n * sizeof *v);
    if (v)
        s->v = v;
    uint8_t *st = v ? tr_realloc(s->state, n) : NULL;
    if (!st)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for a row of %u columns", n);
    s->state = st;
    s->cap = n;
    return TR_OK;
}

static int put_columns(struct tr_buf *b, const struct tr_schema *t, bool key_only)
{
    int rc = TR_OK;
    for (uint32_t i = 0; i < (key_only ? t->n_key : t->n_columns) && rc >= 0; i++) {
        const struct tr_column *c = &t->columns[key_only ? t->key[i] : i];
        if (i)
            rc = tr_buf_append_str(b, ", ");
        if (rc >= 0)
            rc = tr_quote_ident(b, tr_slice_str(c->name));
    }
    return rc;
}

static int put_table(struct tr_buf *b, const struct tr_schema *t)
{
    int rc = tr_quote_ident(b, tr_slice_str(t->ns));
    if (rc >= 0)
        rc = tr_buf_append_u8(b, '.');
    return rc >= 0 ? tr_quote_ident(b, tr_slice_str(t->name)) : rc;
}

/* How a key is compared as its index does: with the operators of each type's default order, which for a type of an extension are in its schema, not in
 * the search path, and perhaps of other names; a domain as what it is over, since there are no operators for a domain over an enum. */
enum { KEY_COLUMNS_MAX = 32 }; /* PostgreSQL's INDEX_MAX_KEYS */

struct key_ops {
    bool named;                            /* some column has operators that must be named */
    char op[KEY_COLUMNS_MAX][5][2 * 64 + 16]; /* by position in the key and strategy less 1: < <= = >= > */
    char base[KEY_COLUMNS_MAX][2 * 64 + 8];   /* what a domain is over; empty for other types */
};

enum key_op { KEY_LT, KEY_LE, KEY_EQ, KEY_GE, KEY_GT };

static const char *const plain_ops[5] = {"<", "<=", "=", ">=", ">"};

static int read_ops(struct pg_session *s, const struct tr_schema *t, int64_t deadline_ns, struct key_ops *ret, struct tr_err *err)
{
    bool own = false; /* types of the system have their operators where everybody finds them */
    ret->named = false;
    struct tr_buf types;
    tr_buf_init(&types);
    int rc = t->n_key <= KEY_COLUMNS_MAX ? tr_buf_append_u8(&types, '{') : TR_REJECT;
    for (uint32_t k = 0; k < t->n_key && rc >= 0; k++) {
        const struct tr_column *c = &t->columns[t->key[k]];
        own |= strpbrk(c->source_type, ".\"") != NULL;
        rc = tr_buf_printf(&types, "%s%u", k ? "," : "", c->source_type_id);
        ret->base[k][0] = 0;
        for (int o = 0; o < 5; o++)
            snprintf(ret->op[k][o], sizeof ret->op[k][o], "%s", plain_ops[o]);
    }
    if (rc >= 0)
        rc = tr_buf_append_u8(&types, '}');
    PGresult *r = NULL;
    const char *v[] = {tr_buf_cstr(&types)};
    if (rc >= 0 && own)
        rc = tr_pg_exec(&s->conn,
                        "WITH RECURSIVE d AS (SELECT x.pos, t.oid, t.typtype, t.typbasetype FROM unnest($1::oid[]) WITH ORDINALITY x(oid, pos) JOIN pg_type t ON t.oid = x.oid"
                        "  UNION ALL SELECT d.pos, t.oid, t.typtype, t.typbasetype FROM d JOIN pg_type t ON d.typtype = 'd' AND t.oid = d.typbasetype)"
                        " SELECT d.pos, 0, format_type(d.oid, -1) FROM d WHERE d.typtype <> 'd' AND EXISTS (SELECT FROM d x WHERE x.pos = d.pos AND x.typtype = 'd')"
                        " UNION ALL SELECT d.pos, m.amopstrategy, format('OPERATOR(%I.%s)', n.nspname, o.oprname) FROM d JOIN pg_opclass c ON c.opcintype = d.oid AND c.opcdefault"
                        " JOIN pg_am a ON a.oid = c.opcmethod AND a.amname = 'btree' JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = d.oid AND m.amoprighttype = d.oid"
                        " JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE n.nspname <> 'pg_catalog'",
                        1, v, deadline_ns, &r, err);
    tr_buf_done(&types);
    for (int i = 0; r && rc >= 0 && i < PQntuples(r); i++) {
        int k = atoi(tr_pg_val(r, i, 0)) - 1, o = atoi(tr_pg_val(r, i, 1)) - 1;
        if (k >= 0 && k < (int)t->n_key && o < 0) {
            snprintf(ret->base[k], sizeof ret->base[k], "%s", tr_pg_val(r, i, 2));
        } else if (k >= 0 && k < (int)t->n_key && o < 5) {
            snprintf(ret->op[k][o], sizeof ret->op[k][o], "%s", tr_pg_val(r, i, 2));
            ret->named = true;
        }
    }
    PQclear(r);
    return rc < 0 ? rc : TR_OK;
}

static int put_column(struct tr_buf *b, const struct tr_schema *t, const struct key_ops *o, uint32_t k)
{
    int rc = tr_quote_ident(b, tr_slice_str(t->columns[t->key[k]].name));
    return rc >= 0 && *o->base[k] ? tr_buf_printf(b, "::%s", o->base[k]) : rc;
}

static int put_literal(struct tr_buf *b, const struct tr_schema *t, const struct key_ops *o, uint32_t k, struct tr_slice text)
{
    int rc = tr_quote_literal(b, text);
    return rc >= 0 ? tr_buf_printf(b, "::%s", *o->base[k] ? o->base[k] : t->columns[t->key[k]].source_type) : rc;
}

static int put_one(struct tr_buf *b, const struct tr_schema *t, const struct key_ops *o, uint32_t k, enum key_op op, struct tr_slice text)
{
    int rc = put_column(b, t, o, k);
    if (rc >= 0)
        rc = tr_buf_printf(b, " %s ", o->op[k][op]);
    return rc >= 0 ? put_literal(b, t, o, k, text) : rc;
}

/* (a, b) op ('lit'::type, …) as one row comparison, which an index serves whole */
static int put_rows(struct tr_buf *b, const struct tr_schema *t, const struct key_ops *o, enum key_op op, const struct tr_slice *cols)
{
    int rc = tr_buf_append_u8(b, '(');
    for (uint32_t k = 0; k < t->n_key && rc >= 0; k++) {
        rc = k ? tr_buf_append_str(b, ", ") : TR_OK;
        if (rc >= 0)
            rc = put_column(b, t, o, k);
    }
    if (rc >= 0)
        rc = tr_buf_printf(b, ") %s (", plain_ops[op]);
    for (uint32_t k = 0; k < t->n_key && rc >= 0; k++) {
        rc = k ? tr_buf_append_str(b, ", ") : TR_OK;
        if (rc >= 0)
            rc = put_literal(b, t, o, k, cols[k]);
    }
    return rc >= 0 ? tr_buf_append_u8(b, ')') : rc;
}

/* The same column by column, each with operators of its own: "a >= x AND (a > x OR (a = x AND …))"; what comes first bounds an index scan. */
static int put_each(struct tr_buf *b, const struct tr_schema *t, const struct key_ops *o, enum key_op op, const struct tr_slice *cols)
{
    int rc = TR_OK;
    for (uint32_t k = 0; k < t->n_key && rc >= 0; k++) {
        bool last = k + 1 == t->n_key;
        if (op == KEY_EQ || last) {
            rc = put_one(b, t, o, k, op, cols[k]);
            if (rc >= 0 && !last)
                rc = tr_buf_append_str(b, " AND ");
            continue;
        }
        enum key_op strict = op == KEY_GT || op == KEY_GE ? KEY_GT : KEY_LT, or_equal = strict == KEY_GT ? KEY_GE : KEY_LE;
        rc = put_one(b, t, o, k, or_equal, cols[k]);
        if (rc >= 0)
            rc = tr_buf_append_str(b, " AND (");
        if (rc >= 0)
            rc = put_one(b, t, o, k, strict, cols[k]);
        if (rc >= 0)
            rc = tr_buf_append_str(b, " OR (");
        if (rc >= 0)
            rc = put_one(b, t, o, k, KEY_EQ, cols[k]);
        if (rc >= 0)
            rc = tr_buf_append_str(b, " AND ");
    }
    for (uint32_t k = 1; op != KEY_EQ && k < t->n_key && rc >= 0; k++)
        rc = tr_buf_append_str(b, "))");
    return rc;
}

/* " AND key op the encoded key" */
static int put_compare(struct pg_session *s, struct tr_buf *b, const struct tr_schema *t, enum key_op op, struct tr_slice key, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_slice cols[TR_COLUMNS_MAX];
    struct key_ops ops;
    int rc = tr_key_decode(key, t->n_key, cols, err);
    if (rc >= 0)
        rc = read_ops(s, t, deadline_ns, &ops, err);
    if (rc >= 0)
        rc = tr_buf_append_str(b, " AND ");
    if (rc >= 0)
        rc = ops.named ? put_each(b, t, &ops, op, cols) : put_rows(b, t, &ops, op, cols);
    return rc;
}

/* FROM [ONLY] table WHERE row filter AND: plain tables without their inheritance children, which are tables of their own. */
static int put_from(struct pg_session *s, struct tr_buf *b, const struct tr_schema *t, int64_t deadline_ns, struct tr_err *err)
{
    const char *v[] = {t->ns, t->name, s->o->publication};
    const char *sql = s->conn.server_version >= 150000
                          ? "SELECT c.relkind = 'p', pg_get_expr(x.prqual, x.prrelid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                            " LEFT JOIN pg_publication p ON p.pubname = $3 AND NOT p.puballtables AND NOT EXISTS (SELECT FROM pg_publication_namespace y"
                            "   WHERE y.pnpubid = p.oid AND y.pnnspid = n.oid) LEFT JOIN pg_publication_rel x ON x.prpubid = p.oid AND x.prrelid = c.oid"
                            " WHERE n.nspname = $1 AND c.relname = $2"
                          : "SELECT c.relkind = 'p', NULL FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                            " WHERE n.nspname = $1 AND c.relname = $2 AND $3::text IS NOT NULL";
    PGresult *r = NULL;
    int rc = tr_pg_exec(&s->conn, sql, 3, v, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    if (PQntuples(r) == 0) {
        rc = tr_err_set(err, TR_STALE, TR_DOM_SOURCE, "source: table %s.%s does not exist any more", t->ns, t->name);
    } else {
        rc = tr_buf_append_str(b, tr_pg_bool(r, 0, 0) ? " FROM " : " FROM ONLY ");
        if (rc >= 0)
            rc = put_table(b, t);
        if (rc >= 0)
            rc = PQgetisnull(r, 0, 1) ? tr_buf_append_str(b, " WHERE true") : tr_buf_printf(b, " WHERE (%s)", PQgetvalue(r, 0, 1));
    }
    PQclear(r);
    return rc;
}

static const char *text_of(struct tr_buf *b)
{
    const char *s = tr_buf_cstr(b);
    return s ? s : "";
}

int tr_pg_chunk_plan(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice lo, uint64_t rows, int64_t deadline_ns, struct tr_buf *ret_hi,
                     struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    tr_buf_clear(ret_hi);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    struct tr_buf q;
    tr_buf_init(&q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, "SELECT ");
    if (rc >= 0)
        rc = put_columns(&q, t, true);
    if (rc >= 0)
        rc = put_from(s, &q, t, deadline_ns, err);
    if (rc >= 0 && lo.n)
        rc = put_compare(s, &q, t, KEY_GT, lo, deadline_ns, err);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, " ORDER BY ");
    if (rc >= 0)
        rc = put_columns(&q, t, true);
    if (rc >= 0)
        rc = tr_buf_printf(&q, " OFFSET %llu LIMIT 1", (unsigned long long)(rows ? rows - 1 : 0));
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, text_of(&q), 0, NULL, deadline_ns, &r, err);
    tr_buf_done(&q);
    if (rc < 0)
        return rc;
    if (PQntuples(r) == 1) {
        struct tr_slice v[TR_COLUMNS_MAX];
        uint8_t st[TR_COLUMNS_MAX];
        memset(st, TR_ABSENT, t->n_columns);
        for (uint32_t i = 0; i < t->n_key; i++) {
            v[t->key[i]] = tr_slice_of(PQgetvalue(r, 0, (int)i), (size_t)PQgetlength(r, 0, (int)i));
            st[t->key[i]] = PQgetisnull(r, 0, (int)i) ? TR_NULL : TR_PRESENT;
        }
        struct tr_row row = {.v = v, .state = st, .n = t->n_columns};
        rc = tr_key_encode(t, &row, ret_hi, err);
    }
    PQclear(r);
    return rc < 0 ? rc : TR_OK;
}

static int begin_snapshot(struct pg_session *s, int64_t deadline_ns, struct tr_err *err)
{
    return tr_pg_script(&s->conn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", deadline_ns, err);
}

static void rollback(struct pg_session *s, int64_t deadline_ns)
{
    if (s->conn.pg)
        tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, NULL);
}

int tr_pg_chunk_open(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice lo, struct tr_slice hi, uint64_t min_xmin, int64_t deadline_ns,
                     struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    TR_ASSERT(!s->chunk_open);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    if (rc >= 0)
        rc = reserve_row(s, t->n_columns, err);
    if (rc < 0)
        return rc;
    tr_pg_chunk_reset(s);
    rc = begin_snapshot(s, deadline_ns, err);
    char xmin[32] = "";
    if (rc >= 0)
        rc = tr_pg_session_value(s, "SELECT pg_snapshot_xmin(pg_current_snapshot())", 0, NULL, deadline_ns, xmin, sizeof xmin, err);
    if (rc >= 0 && strtoull(xmin, NULL, 10) < min_xmin) {
        rollback(s, deadline_ns);
        return tr_pg_session_waits_for(s, min_xmin, deadline_ns, err);
    }
    struct tr_buf q;
    tr_buf_init(&q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, "COPY (SELECT ");
    if (rc >= 0)
        rc = put_columns(&q, t, false);
    if (rc >= 0)
        rc = put_from(s, &q, t, deadline_ns, err);
    if (rc >= 0 && lo.n)
        rc = put_compare(s, &q, t, KEY_GT, lo, deadline_ns, err);
    if (rc >= 0 && hi.n)
        rc = put_compare(s, &q, t, KEY_LE, hi, deadline_ns, err);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, ") TO STDOUT");
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, text_of(&q), 0, NULL, deadline_ns, NULL, err);
    tr_buf_done(&q);
    if (rc < 0) {
        rollback(s, deadline_ns);
        return rc;
    }
    s->table = t;
    s->chunk_open = true;
    return TR_OK;
}

int tr_pg_chunk_next(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_row *ret, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    if (!s->chunk_open)
        return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: the chunk was lost with its connection");
    if (s->line)
        PQfreemem(s->line);
    s->line = NULL;
    int n = 0, rc = tr_pg_copy_next(&s->conn, deadline_ns, &s->line, &n, err);
    if (rc == TR_EOF) {
        s->copy_done = true;
        return rc;
    }
    if (rc < 0) {
        tr_pg_chunk_reset(s);
        rollback(s, deadline_ns);
        return rc;
    }
    if ((size_t)n > s->scratch_cap) {
        size_t cap = (size_t)n * 2;
        uint8_t *p = tr_realloc(s->scratch, cap);
        if (!p)
            return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for a row of %d bytes", n);
        s->scratch = p;
        s->scratch_cap = cap;
    }
    rc = tr_copytext_decode(tr_slice_of(s->line, (size_t)n), s->table->n_columns, s->scratch, s->v, s->state, err);
    if (rc < 0)
        return rc;
    *ret = (struct tr_cdc_row){.schema = s->table, .row = {.v = s->v, .state = s->state, .n = s->table->n_columns}};
    return TR_OK;
}

/* H: everything the read may have seen lies below it. */
static int take_h(struct pg_session *s, int64_t deadline_ns, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err)
{
    char lsn[TR_LSN_CHARS] = "";
    bool replica = s->role == TR_CDC_REPLICA;
    int rc = tr_pg_session_value(s, replica ? "SELECT pg_last_wal_replay_lsn()" : "SELECT pg_current_wal_insert_lsn()", 0, NULL, deadline_ns, lsn, sizeof lsn, err);
    if (rc >= 0)
        rc = tr_parse_lsn(tr_slice_str(lsn), ret_h, err);
    *ret_needs_flush = !replica;
    return rc;
}

int tr_pg_chunk_close(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    bool open = s->chunk_open, done = s->copy_done;
    tr_pg_chunk_reset(s);
    if (!open || !s->conn.pg)
        return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "source: the chunk was lost with its connection");
    if (!done) { /* given up: nothing of it is to be used */
        tr_pg_copy_cancel(&s->conn, deadline_ns, err);
        rollback(s, deadline_ns);
        return TR_OK;
    }
    int rc = take_h(s, deadline_ns, ret_h, ret_needs_flush, err);
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "COMMIT", deadline_ns, err);
    return rc < 0 ? rc : TR_OK;
}

int tr_pg_fetch(struct tr_cdc_session *cs, const struct tr_schema *t, struct tr_slice key, uint64_t xid, int64_t deadline_ns, struct tr_cdc_row *ret,
                uint64_t *ret_h, bool *ret_needs_flush, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    if (rc >= 0)
        rc = reserve_row(s, t->n_columns, err);
    if (rc < 0)
        return rc;
    tr_pg_chunk_reset(s);
    rc = begin_snapshot(s, deadline_ns, err);
    char id[24], visible[8] = "";
    snprintf(id, sizeof id, "%llu", (unsigned long long)xid);
    const char *v[] = {id};
    if (rc >= 0)
        rc = tr_pg_session_value(s, "SELECT pg_visible_in_snapshot($1::xid8, pg_current_snapshot())", 1, v, deadline_ns, visible, sizeof visible, err);
    if (rc >= 0 && visible[0] != 't') {
        rollback(s, deadline_ns);
        return tr_pg_session_waits_for(s, xid + 1, deadline_ns, err);
    }
    struct tr_buf q;
    tr_buf_init(&q);
    if (rc >= 0)
        rc = tr_buf_append_str(&q, "SELECT ");
    if (rc >= 0)
        rc = put_columns(&q, t, false);
    if (rc >= 0)
        rc = put_from(s, &q, t, deadline_ns, err);
    if (rc >= 0)
        rc = put_compare(s, &q, t, KEY_EQ, key, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, text_of(&q), 0, NULL, deadline_ns, &s->row, err);
    tr_buf_done(&q);
    if (rc >= 0)
        rc = take_h(s, deadline_ns, ret_h, ret_needs_flush, err);
    if (rc < 0) {
        rollback(s, deadline_ns);
        return rc;
    }
    rc = tr_pg_script(&s->conn, "COMMIT", deadline_ns, err);
    if (rc < 0)
        return rc;
    if (PQntuples(s->row) == 0)
        return 1;
    for (uint32_t i = 0; i < t->n_columns; i++) {
        s->state[i] = PQgetisnull(s->row, 0, (int)i) ? TR_NULL : TR_PRESENT;
        s->v[i] = tr_slice_of(PQgetvalue(s->row, 0, (int)i), (size_t)PQgetlength(s->row, 0, (int)i));
    }
    *ret = (struct tr_cdc_row){.schema = t, .row = {.v = s->v, .state = s->state, .n = t->n_columns}};
    return TR_OK;
}
