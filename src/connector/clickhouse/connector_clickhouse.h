/* connector_clickhouse.h: the ClickHouse connector's type, for the composition root alone. */
#ifndef TR_CONNECTOR_CLICKHOUSE_H
#define TR_CONNECTOR_CLICKHOUSE_H

#include <tailrace/component.h>

extern const struct tr_sink_type tr_clickhouse_sink_type;

#endif
