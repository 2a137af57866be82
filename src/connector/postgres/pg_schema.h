/*
 * pg_schema.h: a table's schema out of PostgreSQL's catalog, for sessions (by name) and for the stream (by what a Relation message
 * says, completed from the catalog as it is now).
 *
 * A Relation message lacks attribute numbers, nullability, type names and the key of a REPLICA IDENTITY FULL table, and it may be older
 * than the catalog: columns are matched by name and type, and what cannot be matched stays as the message says.
 */
#ifndef TR_PG_SCHEMA_H
#define TR_PG_SCHEMA_H

#include <libpq-fe.h>

#include <tailrace/schema.h>

#include "pgoutput.h"

/* Query and its one parameter list for a Relation message: $1 oid, $2 names, $3 type oids, $4 type modifiers (array literals). */
extern const char tr_pgschema_sql_relation[];
int tr_pgschema_relation_params(const struct tr_pg_msg *relation, struct tr_buf bufs[4], const char *ret_values[4]);

/* Query for a table: $1 namespace, $2 name, $3 publication. */
const char *tr_pgschema_sql_table(int server_version);

/* Builds the schema from either query's result. relation NULL: by the catalog alone. Rc 1: the table does not exist. */
int tr_pgschema_build(const PGresult *r, const struct tr_pg_msg *relation, const char *ns, const char *name, struct tr_schema **ret, struct tr_err *err);

#endif
