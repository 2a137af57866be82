/* pg_stream.h: the replication stream of a PostgreSQL source; see pg_stream.c. */
#ifndef TR_PG_STREAM_H
#define TR_PG_STREAM_H

#include <tailrace/component.h>
#include <tailrace/source.h>

#include "pg_options.h"

/* The options and the environment must outlive the source. from: position to start at, as recorded in the control store. */
int tr_pg_stream_new(const struct tr_pg_source_options *o, const struct tr_component_env *env, uint64_t from, struct tr_source **ret, struct tr_err *err);

#endif
