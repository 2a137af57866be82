/* sqlite_sink.h: shared by the sink (sqlite_sink.c), its table catalog (sqlite_catalog.c) and its writers (sqlite_writer.c). */
#ifndef TR_SQLITE_SINK_H
#define TR_SQLITE_SINK_H

#include "sqlite_db.h"
#include "sqlsink.h"

struct tr_sqlite_options {
    const char *path;
};

struct sqlite_sink {
    struct tr_sqlsink sql;     /* first */
    struct tr_catalog catalog;
    const struct tr_sqlite_options *o;
    struct tr_sqlite_db db;    /* target thread */
};

extern const struct tr_catalog_ops tr_sqlite_catalog_ops;

int tr_sqlite_writer_new(struct sqlite_sink *s, struct tr_writer **ret, struct tr_err *err);

#endif
