/* pg_cdc.c: PostgreSQL as a source of row changes: its settings and its two halves, stream and sessions. */

#include "alloc.h"

#include <tailrace/connectors.h>
#include "check.h"
#include "pg_session.h"
#include "pg_stream.h"

#define F(field) offsetof(struct tr_pg_source_options, field)

static const struct tr_field fields[] = {
    {.name = "dsn", .type = TR_F_SECRET, .offset = F(dsn),
     .help = "Connection string of the primary: postgresql://user@host:port/database. Keep the password in ${ENV} or a passfile."},
    {.name = "replica_dsn", .type = TR_F_SECRET, .optional = true, .offset = F(replica_dsn),
     .help = "Connection string of a standby of it; snapshots read there instead of on the primary."},
    {.name = "tables", .type = TR_F_LIST, .offset = F(tables),
     .help = "Tables to capture, as schema.table with * as wildcard. A table created later enters as soon as it matches."},
    {.name = "exclude", .type = TR_F_LIST, .optional = true, .offset = F(exclude), .help = "Tables to leave out of what `tables` selects."},
    {.name = "slot", .type = TR_F_STRING, .def = "tailrace", .offset = F(slot), .help = "Replication slot; made and owned by tailrace."},
    {.name = "publication", .type = TR_F_STRING, .def = "tailrace", .offset = F(publication),
     .help = "Publication; made and kept in step with `tables` by tailrace unless somebody else made it."},
    {.name = "create", .type = TR_F_BOOL, .def = "true", .offset = F(create), .help = "Whether tailrace may create the publication."},
    {.name = "heartbeat_schema", .type = TR_F_STRING, .def = "tailrace", .offset = F(heartbeat_schema),
     .help = "Schema of the one-row table `heartbeat` from which end-to-end lag is measured; messages take its place where it may not be written."},
    {.name = "wal_sender_timeout", .type = TR_F_DURATION, .def = "10s", .min = 1000000000, .max = INT64_C(600000000000), .offset = F(wal_sender_timeout_ns),
     .help = "How long the server waits for feedback; also the longest that a stopped tailrace can hold up a fast shutdown of the server."},
    {.name = "stream_memory", .type = TR_F_SIZE, .def = "32MiB", .min = 1 << 20, .max = INT64_C(1) << 40, .offset = F(stream_memory),
     .help = "Memory for transactions that the server streams before they commit; what is beyond goes to a spill file in the state directory."},
};

struct pg_cdc {
    struct tr_cdc cdc;
    const struct tr_pg_source_options *o;
    struct tr_component_env env;
};

static struct pg_cdc *of(struct tr_cdc *c)
{
    return tr_container_of(c, struct pg_cdc, cdc);
}

static int session_new(struct tr_cdc *c, enum tr_cdc_role role, struct tr_cdc_session **ret, struct tr_err *err)
{
    return tr_pg_session_new(of(c)->o, role, ret, err);
}

static bool has_replica(const struct tr_cdc *c)
{
    const struct pg_cdc *p = (const struct pg_cdc *)(const void *)c; /* cdc is its first member */
    return p->o->replica_dsn && *p->o->replica_dsn;
}

static int stream_new(struct tr_cdc *c, uint64_t from, struct tr_source **ret, struct tr_err *err)
{
    return tr_pg_stream_new(of(c)->o, &of(c)->env, from, ret, err);
}

static const char *slot_name(const struct tr_cdc *c)
{
    return ((const struct pg_cdc *)(const void *)c)->o->slot;
}

static void heartbeat_table(const struct tr_cdc *c, const char **ret_ns, const char **ret_name)
{
    *ret_ns = ((const struct pg_cdc *)(const void *)c)->o->heartbeat_schema;
    *ret_name = TR_PG_HEARTBEAT_TABLE;
}

static void close_cdc(struct tr_cdc *c)
{
    tr_free(of(c));
}

static const struct tr_cdc_ops ops = {session_new, has_replica, stream_new, close_cdc, slot_name, heartbeat_table};

static int cdc_new(const void *options, const struct tr_component_env *env, struct tr_cdc **ret, struct tr_err *err)
{
    struct pg_cdc *p = tr_calloc(1, sizeof *p);
    if (!p)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for the source");
    p->cdc.ops = &ops;
    p->o = options;
    p->env = *env;
    *ret = &p->cdc;
    return TR_OK;
}

const struct tr_source_type tr_postgres_source_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "postgres",
    .help = "Row changes from PostgreSQL 13 or later, read from its write-ahead log through logical replication (pgoutput).",
    .fields = fields,
    .n_fields = TR_ARRAY_LEN(fields),
    .options_size = sizeof(struct tr_pg_source_options),
    .cdc_new = cdc_new,
};
