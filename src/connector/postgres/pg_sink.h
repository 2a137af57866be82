/* pg_sink.h: shared by pg_sink.c (targets, made on the target thread) and pg_writer.c (batches). */
#ifndef TR_PG_SINK_H
#define TR_PG_SINK_H

#include "component.h"
#include "list.h"
#include "pgconn.h"
#include "sink.h"
#include "sqlmirror.h"

struct tr_pg_sink_options {
    const char *dsn, *schema, *meta_schema;
};

struct pg_target {
    struct tr_target target;
    struct tr_list link;
    struct tr_schema *schema;
    struct tr_sqlm m;
    char ns[64], name[64];
    uint64_t id;              /* unique: names the writer's statements */
};

struct pg_sink {
    struct tr_sink sink;
    const struct tr_pg_sink_options *o;
    char name[64], what[80];
    uint64_t lease_token;
    struct tr_strv hard_delete;
    struct tr_pgconn conn;    /* target thread */
    struct tr_list targets;   /* target thread */
    uint64_t next_id;
};

int tr_pg_sink_connect(struct pg_sink *s, struct tr_pgconn *c, int64_t deadline_ns, struct tr_err *err); /* fine if connected */
int tr_pg_writer_new(struct pg_sink *s, struct tr_writer **ret, struct tr_err *err);

#endif
