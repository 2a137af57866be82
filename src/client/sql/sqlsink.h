/*
 * sqlsink.h: what is the same in every sink that is a SQL database: which tables it keeps for a source table and what they are called, when
 * one is made, fitted, swapped in or refused, and who owns a name. A connector embeds it, gives it a table catalog (spi/catalog.h), and
 * writes batches.
 *
 * For a source table there is a mirror <t>, over it <t>_live (a view without tombstones), on request <t>_changelog, and while it is being
 * built <t>__tr_build. Tables outside the source's schema `public` get their schema as a prefix (other.t → other__t) where the sink
 * has one namespace only. A name that would be longer than 63 bytes is shortened with a hash.
 *
 * A table is touched only if the sink's record of it says that we made it, and for this very source table.
 *
 * Ownership: the caller's catalog and strings outlive the sink; targets live until tr_sqlsink_done. Threads: the sink's target thread;
 * targets are read by writers.
 */
#ifndef TR_SQLSINK_H
#define TR_SQLSINK_H

#include <tailrace/component.h>
#include <tailrace/sink.h>

#include "catalog.h"
#include "list.h"
#include "sqlmirror.h"

struct tr_sqltarget {
    struct tr_target target;   /* first, so that a part's target is one of these */
    struct tr_list link;
    struct tr_schema *schema;
    struct tr_sqlm m;
    char ns[TR_SQL_NAME_MAX + 1], name[TR_SQL_NAME_MAX + 1];
    uint64_t id;               /* unique in the sink: keys the writers' statement caches */
    void *own;                 /* the connector's, from its bind on; freed by its close */
};

struct tr_sqlsink {
    struct tr_sink sink;       /* first */
    struct tr_catalog *catalog;
    enum tr_dialect dialect;
    const char *ns;            /* one namespace for all tables, "" where the database has none; NULL: each keeps its source's */
    const char *meta_ns;       /* of the heartbeat's table; "" where there is none */
    char name[96], what[112];  /* as configured; "sink NAME" begins every message */
    uint64_t lease_token;
    struct tr_strv hard_delete;
    /* What the sink's own options say of a table, put into what is wanted of it. NULL: nothing. REJECT, RETRY. */
    int (*shape)(const struct tr_sqlsink *s, const struct tr_schema *schema, struct tr_want *io, struct tr_err *err);
    struct tr_list targets;
    uint64_t next_id;
};

/* Capabilities of such a sink, all from the statements that sqlmirror.h makes and the catalog's swap. */
#define TR_SQLSINK_CAPS (TR_CAP_MULTI | TR_CAP_BOUNDARY | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW | TR_CAP_DELETE)

void tr_sqlsink_init(struct tr_sqlsink *s, const struct tr_sink_ops *ops, enum tr_dialect d, struct tr_catalog *catalog, const struct tr_component_env *env);
void tr_sqlsink_done(struct tr_sqlsink *s);

static inline const struct tr_sqltarget *tr_sqltarget_of(const struct tr_target *t)
{
    return (const struct tr_sqltarget *)(const void *)t;
}

/* The mirror's name for a table of the source; one_ns as tr_sqlsink.ns. */
void tr_sqlsink_name(const char *one_ns, const char *ns, const char *name, char out[TR_SQL_NAME_MAX + 1]);

/* The name of the table that a variant is kept in. */
void tr_sqlsink_place(const struct tr_sqlsink *s, const struct tr_schema *schema, enum tr_target_variant v, char out[TR_SQL_NAME_MAX + 1]);
/* What is wanted of a table: by its definition, and by the sink's options. */
int tr_sqlsink_want(const struct tr_sqlsink *s, enum tr_table_kind kind, const struct tr_schema *schema, const char *ns, const char *name, struct tr_want *ret, struct tr_err *err);

/* Members of tr_sink_ops. */
int tr_sqlsink_bind(struct tr_sink *s, const struct tr_schema *schema, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret,
                    struct tr_err *err);
int tr_sqlsink_check(struct tr_sink *s, const struct tr_schema *schema, enum tr_target_variant v, int64_t deadline_ns, struct tr_err *err);
int tr_sqlsink_swap(struct tr_sink *s, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err);
int tr_sqlsink_built(struct tr_sink *s, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret_snapshot_id, struct tr_err *err);
int tr_sqlsink_encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err);

#endif
