/* connector_postgres.h: the PostgreSQL connector's types, for the composition root alone. */
#ifndef TR_CONNECTOR_POSTGRES_H
#define TR_CONNECTOR_POSTGRES_H

#include <tailrace/component.h>

extern const struct tr_source_type tr_postgres_source_type;
extern const struct tr_sink_type tr_postgres_sink_type;

#endif
