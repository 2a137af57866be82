/* ch_shape.c: what the options say of one table: columns kept as text, LowCardinality, the order of the sorting key, partitions. */
#include <stdio.h>

#include "alloc.h"
#include "ch_sink.h"
#include "ddl_clickhouse.h"
#include "text.h"

static bool names_column(const struct tr_strv *patterns, const struct tr_schema *schema, const char *column)
{
    char name[3 * TR_SQL_NAME_MAX + 3];
    snprintf(name, sizeof name, "%s.%s.%s", schema->ns, schema->name, column);
    for (size_t k = 0; k < patterns->n; k++)
        if (tr_glob(tr_slice_str(patterns->v[k]), tr_slice_str(name)))
            return true;
    return false;
}

int tr_ch_as_kept(const struct ch_sink *s, const struct tr_schema *schema, struct tr_schema **ret, struct tr_err *err)
{
    const struct tr_strv *patterns = &s->o->as_text;
    struct tr_column *c = patterns->n ? tr_calloc(schema->n_columns + 1, sizeof *c) : NULL;
    if (!patterns->n) {
        *ret = tr_schema_ref(schema);
        return TR_OK;
    }
    if (!c)
        return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for a table", s->sql.what);
    for (uint32_t i = 0; i < schema->n_columns; i++) {
        c[i] = schema->columns[i];
        if (names_column(patterns, schema, c[i].name))
            c[i].type = TR_TYPE_TEXT;
    }
    struct tr_schema_def d = {.table_id = schema->table_id,
                              .version = schema->version,
                              .ns = schema->ns,
                              .name = schema->name,
                              .no_key_reason = schema->no_key_reason,
                              .columns = c,
                              .n_columns = schema->n_columns,
                              .full_identity = schema->full_identity,
                              .source_id = schema->source_id};
    int rc = tr_schema_new(&d, ret, err);
    tr_free(c);
    return rc == TR_NOMEM ? TR_RETRY : rc;
}

/* ---- "schema.table = text" ---- */

static struct tr_slice trimmed(struct tr_slice s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s = tr_slice_sub(s, 1, s.n);
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s = tr_slice_sub(s, 0, s.n - 1);
    return s;
}

static bool split(const char *entry, struct tr_slice *ret_table, struct tr_slice *ret_text)
{
    const char *equals = strchr(entry, '=');
    if (!equals)
        return false;
    *ret_table = trimmed(tr_slice_of(entry, (size_t)(equals - entry)));
    *ret_text = trimmed(tr_slice_str(equals + 1));
    return ret_table->n && ret_text->n;
}

static bool of_table(const struct tr_strv *entries, const struct tr_schema *schema, struct tr_slice *ret_text)
{
    for (size_t i = 0; i < entries->n; i++) {
        struct tr_slice table;
        if (split(entries->v[i], &table, ret_text) && tr_glob_table(table, tr_slice_str(schema->ns), tr_slice_str(schema->name)))
            return true;
    }
    return false;
}

int tr_ch_shape_check(const char *what, const struct tr_ch_options *o, struct tr_err *err)
{
    const struct {
        const char *name, *like;
        const struct tr_strv *v;
    } lists[] = {{"order_by", "public.t = b, a", &o->order_by}, {"partition_by", "public.t = toYYYYMM(day)", &o->partition_by}};
    struct tr_slice table, text;
    for (size_t l = 0; l < TR_ARRAY_LEN(lists); l++)
        for (size_t i = 0; i < lists[l].v->n; i++)
            if (!split(lists[l].v->v[i], &table, &text))
                return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: %s: '%.200s' is not of the form '%s'", what, lists[l].name, lists[l].v->v[i], lists[l].like);
    return TR_OK;
}

int tr_ch_shape(const struct tr_sqlsink *sql, const struct tr_schema *schema, struct tr_want *io, struct tr_err *err)
{
    const struct ch_sink *s = (const struct ch_sink *)(const void *)sql;
    struct tr_slice text;
    for (uint32_t i = 0; i < io->n && (io->dialect & TR_CLICKHOUSE_TODAY); i++)
        if (strncmp(io->columns[i].name, "_tr_", 4) != 0 && names_column(&s->o->low_cardinality, schema, io->columns[i].name) && tr_ch_low_cardinality(&io->columns[i]) < 0)
            return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for table %s", s->sql.what, io->name);
    int rc = TR_OK;
    char said[2 * TR_SQL_NAME_MAX + 2];
    snprintf(said, sizeof said, "%.63s.%.63s", schema->ns, schema->name);
    if (io->kind == TR_TABLE_MIRROR_SOFT && of_table(&s->o->order_by, schema, &text))
        rc = tr_ch_order_by(io, said, text, err);
    if (rc >= 0 && io->kind == TR_TABLE_MIRROR_SOFT && of_table(&s->o->partition_by, schema, &text))
        rc = tr_ch_partition_by(io, said, text, err);
    return rc < 0 && err ? tr_err_set(err, rc, TR_DOM_CONFIG, "%s: %s", s->sql.what, err->msg) : rc;
}
