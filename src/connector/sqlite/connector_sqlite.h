/* connector_sqlite.h: the SQLite connector's type, for the composition root alone. */
#ifndef TR_CONNECTOR_SQLITE_H
#define TR_CONNECTOR_SQLITE_H

#include <tailrace/component.h>

extern const struct tr_sink_type tr_sqlite_sink_type;

#endif
