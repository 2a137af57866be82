/*
 * Both queries end in the same columns, so that stream and session build equal schemas (equal fingerprints) for the same
 * table. What is read:
 *   - the columns: published ones only, i.e. never dropped, generated ones only where the publication sends them
 *   - the key: the primary key for REPLICA IDENTITY DEFAULT and FULL, the chosen index for USING INDEX; only if it is
 *     immediate (a deferrable key is no key), valid and complete
 *   - what makes that key unusable for a mirror: a column of it that is not sent (generated, or outside a column list), a partition whose own
 *     replica identity does not hold all of it
 *   - whether a key column compares otherwise than by its text (citext, nondeterministic collations)
 *   - attmissingval: the constant default that rows older than the column took on without being rewritten
 */
#include "pg_schema.h"

#include <stdlib.h>

#include "pg_types.h"

/* The columns of the key, at most one row. */
#define KEY                                                                                                                     \
    "k AS MATERIALIZED (SELECT (string_to_array(i.indkey::text, ' ')::int2[])[:i.indnkeyatts] AS cols FROM rel c JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid"  \
    "        AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND CASE c.relreplident WHEN 'i'"                  \
    "        THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END LIMIT 1),"

/* What a change of a partition carries is for the partition's own replica identity to say, which ALTER TABLE of the root does not touch: one that lacks
 * a part of the root's key, by name; and whether any has less than FULL. */
#define LEAVES                                                                                                                  \
    " leaves AS MATERIALIZED (SELECT min(t.relid::regclass::text) FILTER (WHERE h.relreplident <> 'f' AND EXISTS (SELECT FROM k JOIN pg_attribute ka ON ka.attrelid = c.oid AND ka.attnum = ANY (k.cols)"  \
    "        WHERE NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute ia ON ia.attrelid = h.oid AND ia.attnum = ANY ((string_to_array(i.indkey::text, ' ')::int2[])[:i.indnkeyatts])"  \
    "          WHERE i.indrelid = h.oid AND ia.attname = ka.attname AND CASE h.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))) AS odd_leaf,"  \
    "        bool_or(h.relreplident <> 'f') AS lean FROM rel c CROSS JOIN LATERAL pg_partition_tree(c.oid) t JOIN pg_class h ON h.oid = t.relid WHERE c.relkind = 'p' AND t.isleaf),"

#define TAIL                                                                                                                    \
    "SELECT r.name, r.typ, r.mod, format_type(r.typ, r.mod), b.oid, b.typtype, b.typcategory, coalesce(a.attnum, 0),"          \
    "       coalesce(a.attnotnull, false), coalesce(a.attgenerated <> '', false),"                                             \
    "       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] WHEN c.relkind = 'p' THEN (SELECT (l.attmissingval::text::text[])[1]"  \
    "         FROM pg_partition_tree(c.oid) pt JOIN pg_attribute l ON l.attrelid = pt.relid AND l.attname = a.attname WHERE l.atthasmissing LIMIT 1) END,"  \
    "       coalesce(array_position(k.cols, a.attnum), 0),"                                                                    \
    "       coalesce(NOT o.collisdeterministic, false) OR coalesce(b.typname = 'citext', false),"                              \
    "       c.relreplident, c.pk, c.pk_deferrable, coalesce(a.atthasdef, false), n.unsent, n.unsent_generated, l.odd_leaf, coalesce(l.lean, false)"           \
    " FROM rel c CROSS JOIN cols r"                                                                                            \
    " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = r.name::name AND NOT a.attisdropped AND a.atttypid = r.typ" \
    " LEFT JOIN LATERAL (WITH RECURSIVE d AS (SELECT t.oid, t.typbasetype, t.typtype, t.typcategory, t.typname FROM pg_type t"  \
    "        WHERE t.oid = r.typ UNION ALL SELECT x.oid, x.typbasetype, x.typtype, x.typcategory, x.typname"                    \
    "        FROM d JOIN pg_type x ON d.typtype = 'd' AND x.oid = d.typbasetype) SELECT * FROM d WHERE typtype <> 'd') b ON true" \
    " LEFT JOIN pg_collation o ON o.oid = a.attcollation"                                                                      \
    " LEFT JOIN k ON true LEFT JOIN leaves l ON true"                                                                          \
    " LEFT JOIN (SELECT g.attname AS unsent, g.attgenerated <> '' AS unsent_generated FROM k JOIN rel ON true JOIN pg_attribute g ON g.attrelid = rel.oid AND g.attnum = ANY (k.cols)"  \
    "        WHERE NOT EXISTS (SELECT FROM cols y WHERE y.name = g.attname) ORDER BY g.attgenerated <> '' DESC LIMIT 1) n ON true"  \
    " ORDER BY r.pos"

#define REL                                                                                                                     \
    "rel AS (SELECT c.oid, c.relkind, c.relreplident, exists (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS pk,"  \
    "        exists (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate) AS pk_deferrable" \
    "        FROM pg_class c"

const char tr_pgschema_sql_relation[] =
    "WITH " REL " WHERE c.oid = $1::oid UNION ALL SELECT $1::oid, 'r', 'd', false, false WHERE NOT exists (SELECT FROM pg_class WHERE oid = $1::oid)),"
    KEY LEAVES " cols AS (SELECT * FROM unnest($2::text[], $3::oid[], $4::int4[]) WITH ORDINALITY AS u(name, typ, mod, pos)) " TAIL;

#define TABLE_HEAD                                                                                                              \
    "WITH " REL " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')),"  \
    KEY LEAVES " cols AS (SELECT a.attname::text AS name, a.atttypid AS typ, a.atttypmod AS mod, a.attnum AS pos FROM rel JOIN pg_attribute a"    \
    "   ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped"

/* The columns that are sent: those of a column list, else all; generated ones from 18 on, if they are in the list or the publication sends them. A table
 * that is not published yet will be sent whole. Not pg_publication_tables, which lists every table of the publication to find one. */
#define PUBLISHED "   LEFT JOIN pg_publication p ON p.pubname = $3 LEFT JOIN pg_publication_rel x ON x.prpubid = p.oid AND x.prrelid = rel.oid"

static const char sql_table_18[] =
    TABLE_HEAD PUBLISHED "   WHERE CASE WHEN x.prattrs IS NOT NULL THEN a.attnum = ANY (x.prattrs) ELSE a.attgenerated = '' OR (a.attgenerated = 's' AND p.pubgencols = 's') END) " TAIL;

static const char sql_table_15[] = TABLE_HEAD PUBLISHED "   WHERE a.attgenerated = '' AND (x.prattrs IS NULL OR a.attnum = ANY (x.prattrs))) " TAIL;

static const char sql_table_13[] = TABLE_HEAD " WHERE a.attgenerated = '' AND $3::text IS NOT NULL) " TAIL;

const char *tr_pgschema_sql_table(int server_version)
{
    return server_version >= 180000 ? sql_table_18 : server_version >= 150000 ? sql_table_15 : sql_table_13;
}

static int put_array_text(struct tr_buf *b, const char *s)
{
    int rc = tr_buf_append_u8(b, '"');
    for (; rc == TR_OK && *s; s++) {
        if (*s == '"' || *s == '\\')
            rc = tr_buf_append_u8(b, '\\');
        if (rc == TR_OK)
            rc = tr_buf_append_u8(b, (uint8_t)*s);
    }
    return rc == TR_OK ? tr_buf_append_u8(b, '"') : rc;
}

int tr_pgschema_relation_params(const struct tr_pg_msg *m, struct tr_buf bufs[4], const char *ret_values[4])
{
    int rc = tr_buf_printf(&bufs[0], "%u", m->u.relation.oid);
    for (int k = 1; k < 4 && rc >= 0; k++)
        rc = tr_buf_append_u8(&bufs[k], '{');
    for (uint16_t i = 0; i < m->u.relation.n && rc >= 0; i++) {
        const struct tr_pg_relcol *c = &m->u.relation.cols[i];
        const char *comma = i ? "," : "";
        rc = tr_buf_append_str(&bufs[1], comma);
        if (rc >= 0)
            rc = put_array_text(&bufs[1], c->name);
        if (rc >= 0)
            rc = tr_buf_printf(&bufs[2], "%s%u", comma, c->type_oid);
        if (rc >= 0)
            rc = tr_buf_printf(&bufs[3], "%s%d", comma, c->typmod);
    }
    for (int k = 1; k < 4 && rc >= 0; k++)
        rc = tr_buf_append_u8(&bufs[k], '}');
    for (int k = 0; k < 4 && rc >= 0; k++)
        if (!(ret_values[k] = tr_buf_cstr(&bufs[k])))
            rc = TR_NOMEM;
    return rc < 0 ? rc : TR_OK;
}

static const char *val(const PGresult *r, int row, int col)
{
    return PQgetisnull(r, row, col) ? NULL : PQgetvalue(r, row, col);
}

static int num(const PGresult *r, int row, int col)
{
    const char *v = val(r, row, col);
    return v ? atoi(v) : 0;
}

/* Positions 1 … n by ascending catalog position, or by column order where the catalog does not know (it moved on). */
static void number_key(struct tr_column *cols, uint32_t n, const uint8_t *is_key, const int *catalog_pos)
{
    uint16_t next = 1;
    for (int pass = 0; pass < 2; pass++) {
        for (int want = pass ? 0 : 1; want <= (pass ? 0 : 32); want++)
            for (uint32_t i = 0; i < n; i++)
                if (is_key[i] && !cols[i].key_pos && catalog_pos[i] == want)
                    cols[i].key_pos = next++;
    }
}

int tr_pgschema_build(const PGresult *r, const struct tr_pg_msg *rel, const char *ns, const char *name, struct tr_schema **ret, struct tr_err *err)
{
    static _Thread_local struct tr_column cols[TR_COLUMNS_MAX];
    static _Thread_local uint8_t is_key[TR_COLUMNS_MAX];
    static _Thread_local int key_pos[TR_COLUMNS_MAX];
    static _Thread_local char reason[256];
    int n = PQntuples(r);
    if (n == 0)
        return 1;
    if (n > TR_COLUMNS_MAX)
        return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "table %s.%s has %d columns", ns, name, n);
    char identity = rel ? rel->u.relation.identity : tr_slice_str(val(r, 0, 13)).n ? val(r, 0, 13)[0] : 'd';
    bool pk = val(r, 0, 14) && val(r, 0, 14)[0] == 't', pk_deferrable = val(r, 0, 15) && val(r, 0, 15)[0] == 't';
    const char *unsent = val(r, 0, 17), *odd_leaf = val(r, 0, 19);
    bool unsent_generated = val(r, 0, 18) && val(r, 0, 18)[0] == 't', lean = val(r, 0, 20)[0] == 't';
    reason[0] = 0;
    uint32_t n_key = 0;
    const char *odd = NULL;
    bool current = true; /* the catalog still knows all that the message names */
    for (int i = 0; i < n; i++) {
        struct tr_column *c = &cols[i];
        memset(c, 0, sizeof *c);
        c->name = val(r, i, 0);
        c->source_type_id = (uint32_t)strtoul(val(r, i, 1), NULL, 10);
        c->source_type = val(r, i, 3) ? val(r, i, 3) : "unknown";
        const char *base = val(r, i, 4), *tt = val(r, i, 5), *tc = val(r, i, 6);
        c->type = tr_pgtype_canonical(base ? (uint32_t)strtoul(base, NULL, 10) : 0, tt ? tt[0] : 'b', tc ? tc[0] : 'X');
        tr_pgtype_numeric(c->type == TR_TYPE_DECIMAL ? num(r, i, 2) : -1, &c->precision, &c->scale);
        c->source_pos = (int16_t)num(r, i, 7);
        current &= c->source_pos != 0;
        c->not_null = val(r, i, 8) && val(r, i, 8)[0] == 't';
        c->generated = val(r, i, 9) && val(r, i, 9)[0] == 't';
        c->fill_default = val(r, i, 10);
        c->has_default = val(r, i, 16) && val(r, i, 16)[0] == 't';
        key_pos[i] = num(r, i, 11);
        /* FULL flags every column: only the catalog knows the key */
        is_key[i] = identity == 'f' || !rel ? key_pos[i] != 0 : identity != 'n' && (rel->u.relation.cols[i].flags & 1);
        n_key += is_key[i];
        if (is_key[i] && val(r, i, 12) && val(r, i, 12)[0] == 't')
            odd = c->name;
    }
    if (identity == 'n')
        snprintf(reason, sizeof reason, "REPLICA IDENTITY NOTHING");
    else if (unsent && (unsent_generated || current))
        snprintf(reason, sizeof reason, unsent_generated ? "key column %s is generated and not published (PostgreSQL 18 can publish it: publish_generated_columns)"
                                                         : "key column %s is not in the publication's column list", unsent);
    else if (odd_leaf)
        snprintf(reason, sizeof reason, "its partition %s has another replica identity, which lacks a part of the key; cure: ALTER TABLE %s REPLICA IDENTITY FULL", odd_leaf, odd_leaf);
    else if (odd)
        snprintf(reason, sizeof reason, "key column %s compares by more than its bytes (citext or a nondeterministic collation)", odd);
    else if (n_key == 0 && pk_deferrable && identity != 'i')
        snprintf(reason, sizeof reason, "its primary key is deferrable");
    else if (n_key == 0)
        snprintf(reason, sizeof reason, "%s", pk ? "its replica identity index is missing or not usable" : "it has no primary key");
    if (*reason) {
        memset(is_key, 0, (size_t)n);
        n_key = 0;
    }
    number_key(cols, (uint32_t)n, is_key, key_pos);
    struct tr_schema_def d = {
        .ns = ns, .name = name, .no_key_reason = reason, .columns = cols, .n_columns = (uint32_t)n, .full_identity = identity == 'f' && !lean, .source_id = rel ? rel->u.relation.oid : 0};
    return tr_schema_new(&d, ret, err);
}
