/* sqlite_sink.h: shared by sqlite_sink.c (targets, made on the target thread) and sqlite_writer.c (batches). */
#ifndef TR_SQLITE_SINK_H
#define TR_SQLITE_SINK_H

#include "component.h"
#include "list.h"
#include "sink.h"
#include "sqlite_db.h"
#include "sqlmirror.h"

struct tr_sqlite_options {
    const char *path;
};

struct sqlite_target {
    struct tr_target target;
    struct tr_list link;
    struct tr_schema *schema;
    struct tr_sqlm m;
    char name[200];      /* of the table */
    uint64_t id;         /* unique: keys the writers' statement caches */
};

struct sqlite_sink {
    struct tr_sink sink;
    const struct tr_sqlite_options *o;
    char name[96], what[112];
    uint64_t lease_token;
    struct tr_strv hard_delete;
    struct tr_sqlite_db db;  /* target thread */
    struct tr_list targets;  /* target thread */
    uint64_t next_id;
};

int tr_sqlite_writer_new(struct sqlite_sink *s, struct tr_writer **ret, struct tr_err *err);

#endif
