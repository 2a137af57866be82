/*
 * connectors.h: the connectors that come with tailrace, for composition roots: the program's own, and pipelines (pipeline.h). Each type says by its field
 * table what it is configured with; `tailrace help config` prints the same.
 *
 * A connector has its place here in its library, and nothing else of it is public. A program that names none of them is linked without it.
 */
#ifndef TAILRACE_CONNECTORS_H
#define TAILRACE_CONNECTORS_H

#include <tailrace/component.h>

extern const struct tr_source_type tr_postgres_source_type; /* row changes: for tailrace run */
extern const struct tr_sink_type tr_postgres_sink_type;
extern const struct tr_sink_type tr_sqlite_sink_type;
extern const struct tr_sink_type tr_clickhouse_sink_type;

#endif
