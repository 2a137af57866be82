/*
 * ch_sink.c: ClickHouse as a mirror; the tables it keeps are client/sql/sqlsink.h's, all in one database. Bookkeeping beside them: _tailrace_lease
 * (the highest lease token that has written for a sink), and the record of each table, which is its column _tr_version's comment.
 */
#include "ch_sink.h"

#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>
#include <tailrace/connectors.h>

#include "alloc.h"
#include "check.h"
#include "ddl_clickhouse.h"
#include "text.h"

#define LINGER_MIN_NS (500 * TR_NS_PER_MS)
#define PACE_NS (30 * TR_NS_PER_MS) /* an INSERT takes a third of that, and each is a part to be merged */

static struct ch_sink *of(struct tr_sink *s)
{
    return tr_container_of(s, struct ch_sink, sql.sink);
}

/* ---- operations ---- */

static int bind_table(struct tr_sink *ts, const struct tr_schema *schema, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err)
{
    struct tr_schema *kept = NULL;
    if (v == TR_TARGET_APPEND)
        return tr_ch_bind(of(ts), schema, v, 0, deadline_ns, ret, err);
    int rc = tr_ch_as_kept(of(ts), schema, &kept, err);
    if (rc >= 0)
        rc = tr_ch_bind(of(ts), kept, v, snapshot_id, deadline_ns, ret, err);
    tr_schema_unref(kept);
    return rc;
}

static int check_table(struct tr_sink *ts, const struct tr_schema *schema, enum tr_target_variant v, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_schema *kept = NULL;
    int rc = tr_ch_as_kept(of(ts), schema, &kept, err);
    if (rc >= 0)
        rc = tr_ch_check(of(ts), kept, v, deadline_ns, err);
    tr_schema_unref(kept);
    return rc;
}

static int swap(struct tr_sink *ts, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_schema *kept = NULL;
    int rc = tr_ch_as_kept(of(ts), schema, &kept, err);
    if (rc >= 0)
        rc = tr_ch_swap(of(ts), kept, snapshot_id, deadline_ns, err);
    tr_schema_unref(kept);
    return rc;
}

static int built(struct tr_sink *ts, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret, struct tr_err *err)
{
    struct tr_schema *kept = NULL;
    int rc = tr_ch_as_kept(of(ts), schema, &kept, err);
    if (rc >= 0)
        rc = tr_ch_built(of(ts), kept, deadline_ns, ret, err);
    tr_schema_unref(kept);
    return rc;
}

static int probe(struct tr_sink *ts, int64_t deadline_ns, struct tr_err *err)
{
    return tr_ch_probe(of(ts), deadline_ns, err);
}

static int writer_new(struct tr_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err)
{
    return tr_ch_writer_new(of(s), shard, ret, err);
}

static void close_sink(struct tr_sink *ts)
{
    struct ch_sink *s = of(ts);
    TR_LIST_EACH (n, &s->sql.targets)
        tr_ch_table_free(tr_container_of(n, struct tr_sqltarget, link)->own);
    tr_sqlsink_done(&s->sql);
    tr_httpc_free(s->http);
    for (size_t i = 0; i < TR_ARRAY_LEN(s->headers); i++)
        tr_free(s->headers[i]);
    tr_ch_endpoints_done(s);
    tr_free(s);
}

static const struct tr_sink_ops ops = {.bind = bind_table,
                                       .check = check_table,
                                       .swap = swap,
                                       .built = built,
                                       .probe = probe,
                                       .encoder_new = tr_ch_encoder_new,
                                       .writer_new = writer_new,
                                       .close = close_sink};

/* ---- birth ---- */

static int no_memory(const char *name, struct tr_err *err)
{
    return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for sink %s", name);
}

static char *header(const char *name, const char *value)
{
    size_t n = strlen(name) + strlen(value) + 3;
    char *s = tr_calloc(1, n);
    if (s)
        snprintf(s, n, "%s: %s", name, value);
    return s;
}

static int headers(struct ch_sink *s, struct tr_err *err)
{
    const struct tr_ch_options *o = s->o;
    bool token = o->token && *o->token;
    const char *const v[] = {o->user, o->password, o->token};
    for (size_t i = 0; i < TR_ARRAY_LEN(v); i++)
        if (v[i] && strpbrk(v[i], "\r\n"))
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: user, password and token are one line each", s->sql.what);
    if (token && o->password && *o->password)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: there is a password and a token; one of them logs in", s->sql.what);
    if (token) {
        size_t n = strlen(o->token) + 16;
        char *bearer = tr_calloc(1, n);
        if (bearer)
            snprintf(bearer, n, "Bearer %s", o->token);
        s->headers[0] = bearer ? header("Authorization", bearer) : NULL;
        tr_free(bearer);
        return s->headers[0] ? TR_OK : no_memory(s->sql.name, err);
    }
    s->headers[0] = header("X-ClickHouse-User", o->user);
    s->headers[1] = o->password && *o->password ? header("X-ClickHouse-Key", o->password) : NULL;
    return s->headers[0] && (s->headers[1] || !o->password || !*o->password) ? TR_OK : no_memory(s->sql.name, err);
}

#define CAPS (TR_CAP_MONOTONIC | TR_CAP_TOKEN | TR_CAP_SHADOW)

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    struct ch_sink *s = tr_calloc(1, sizeof *s);
    if (!s)
        return no_memory(env->name, err);
    s->o = options;
    tr_sqlsink_init(&s->sql, &ops, TR_DIALECT_CLICKHOUSE, &s->catalog, env);
    s->sql.sink.caps = CAPS | (s->o->tombstone == TR_CH_TOMBSTONE_ROW ? TR_CAP_COMPLETE_DELETES : 0);
    s->sql.ns = s->sql.meta_ns = s->o->database;
    s->sql.shape = tr_ch_shape;
    s->catalog.ops = &tr_ch_catalog_ops;
    int rc = TR_OK;
    if (env->hard_delete.n)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: ClickHouse keeps deleted rows as tombstones, which hard_delete cannot change: leave it out, and query the view", s->sql.what);
    if (rc >= 0)
        rc = tr_ch_shape_check(s->sql.what, s->o, err);
    if (rc >= 0)
        rc = tr_ch_endpoints(s, err);
    if (rc >= 0)
        rc = headers(s, err);
    if (rc < 0) {
        close_sink(&s->sql.sink);
        return rc;
    }
    *ret = &s->sql.sink;
    return TR_OK;
}

#define F(field) offsetof(struct tr_ch_options, field)

static const char *const formats[] = {"rowbinary", "native", NULL};
static const char *const compressions[] = {"none", "zstd", "lz4", NULL}, *const tombstones[] = {"row", "key", NULL};

static const struct tr_field fields[] = {
    {.name = "urls", .type = TR_F_LIST, .offset = F(urls),
     .help = "HTTP addresses of the servers, http://host:8123 or https://host:8443. Each is a shard, and rows are spread over them by key; where commas separate several in one, they are replicas of that shard: writes take turns and leave out those that fail."},
    {.name = "database", .type = TR_F_STRING, .def = "default", .offset = F(database), .help = "Database of all tables; made when it is not there."},
    {.name = "user", .type = TR_F_STRING, .def = "default", .offset = F(user), .help = "User."},
    {.name = "password", .type = TR_F_SECRET, .optional = true, .offset = F(password), .help = "Password of the user."},
    {.name = "token", .type = TR_F_SECRET, .optional = true, .offset = F(token), .help = "JWT to log in with, instead of user and password."},
    {.name = "ca_file", .type = TR_F_STRING, .optional = true, .offset = F(ca_file), .help = "PEM file of the authorities that https is verified by; without it, the system's."},
    {.name = "format", .type = TR_F_ENUM, .def = "rowbinary", .choices = formats, .offset = F(format),
     .help = "What rows are sent as. native takes less of the server's processor time and more of tailrace's, and a column that was given another type by hand is converted to, where rowbinary notices."},
    {.name = "compression", .type = TR_F_ENUM, .def = "none", .choices = compressions, .offset = F(compression),
     .help = "Of what is sent. lz4 takes little processor time, zstd more and saves more bandwidth; servers before 24.1 are sent it uncompressed."},
    {.name = "tombstone", .type = TR_F_ENUM, .def = "row", .choices = tombstones, .offset = F(tombstone),
     .help = "What a deleted row keeps: row, its last values, which are read back for it; key, its key alone, which costs no reading where much is deleted."},
    {.name = "as_text", .type = TR_F_LIST, .optional = true, .offset = F(as_text),
     .help = "Patterns of columns, schema.table.column, kept as the text that the source prints: for values that the column's ClickHouse type cannot hold, such as infinity. A table that is there takes a new snapshot."},
    {.name = "low_cardinality", .type = TR_F_LIST, .optional = true, .offset = F(low_cardinality),
     .help = "Patterns of columns, schema.table.column, kept as LowCardinality: enums, and texts of few different values. Of the columns that a pattern names, those that are a String are so kept. A table that is there takes a "
             "new snapshot."},
    {.name = "order_by", .type = TR_F_LIST, .optional = true, .offset = F(order_by),
     .help = "Another order of a mirror's sorting key, as 'schema.table = b, a': the columns of the key, each once. The first entry whose pattern names a table holds; for a mirror that is there from its next snapshot on."},
    {.name = "partition_by", .type = TR_F_LIST, .optional = true, .offset = F(partition_by),
     .help = "Partitions of a mirror, as 'schema.table = toYYYYMM(day)': an expression over columns of the key, since a row must never change its partition. The first entry whose pattern names a table holds; for a mirror that "
             "is there from its next snapshot on."},
    {.name = "allow_duplicates", .type = TR_F_BOOL, .def = "false", .offset = F(allow_duplicates),
     .help = "Take a table that cannot drop an INSERT which comes again, so that a lost answer leaves rows twice; in a mirror FINAL shows them once."},
};

const struct tr_sink_type tr_clickhouse_sink_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "clickhouse",
    .help = "Mirror in a ClickHouse database, over HTTP.",
    .fields = fields,
    .n_fields = TR_ARRAY_LEN(fields),
    .options_size = sizeof(struct tr_ch_options),
    .caps = CAPS,
    .linger_min_ns = LINGER_MIN_NS,
    .pace_ns = PACE_NS,
    .sink_new = sink_new,
};
