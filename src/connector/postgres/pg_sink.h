/* pg_sink.h: shared by the sink (pg_sink.c), its table catalog (pg_catalog.c) and its writers (pg_writer.c). */
#ifndef TR_PG_SINK_H
#define TR_PG_SINK_H

#include "pgconn.h"
#include "sqlsink.h"

struct tr_pg_sink_options {
    const char *dsn, *schema, *meta_schema;
};

struct pg_sink {
    struct tr_sqlsink sql;    /* first */
    struct tr_catalog catalog;
    const struct tr_pg_sink_options *o;
    struct tr_pgconn conn;    /* target thread */
};

extern const struct tr_catalog_ops tr_pg_catalog_ops;

int tr_pg_sink_connect(struct pg_sink *s, struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err); /* fine if connected */
int tr_pg_sink_meta(const struct pg_sink *s, const char *table, struct tr_buf *b); /* "meta_schema"."table" */
int tr_pg_writer_new(struct pg_sink *s, struct tr_writer **ret, struct tr_err *err);

#endif
