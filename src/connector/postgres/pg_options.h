/* pg_options.h: the settings of a PostgreSQL source (field table in pg_cdc.c). */
#ifndef TR_PG_OPTIONS_H
#define TR_PG_OPTIONS_H

#include <tailrace/component.h>

struct tr_pg_source_options {
    const char *dsn, *replica_dsn;
    const char *slot, *publication, *heartbeat_schema;
    struct tr_strv tables, exclude;
    int64_t wal_sender_timeout_ns;
    uint64_t stream_memory;
    bool create;
};

#define TR_PG_HEARTBEAT_TABLE "heartbeat"

/* Does the configuration select this table? */
bool tr_pg_selected(const struct tr_pg_source_options *o, const char *ns, const char *name);

#endif
