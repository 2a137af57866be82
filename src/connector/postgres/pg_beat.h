/*
 * pg_beat.h: the heartbeat of a PostgreSQL source: a row of a table of ours or, where that row cannot be written or is not published, a
 * transactional logical message of which the stream makes the same change. Sessions send it (pg_beat.c says which), pg_decode.c knows it.
 *
 * Message: prefix "tailrace/heartbeat/" and the slot's name, content the time in µs since 1970, in decimal. What is under another prefix,
 * not transactional, or no such number, is somebody else's.
 */
#ifndef TR_PG_BEAT_H
#define TR_PG_BEAT_H

#include "pg_session.h"
#include "pgoutput.h"

#define TR_PG_MESSAGES_SINCE 140000 /* the pgoutput of PostgreSQL 13 does not send messages */

/* How a heartbeat is sent now. REJECT: it would be a message, which the server is too old for; names the cure, as *ret does. *ret_makes: the
 * table is missing, but tr_pg_beat_make will make it, and then a row is sent. */
int tr_pg_beat_way(struct pg_session *s, int64_t deadline_ns, struct tr_cdc_beat *ret, bool *ret_makes, struct tr_err *err);
/* The same, after the table was made if it is missing and may be made. */
int tr_pg_beat_make(struct pg_session *s, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err);
int tr_pg_beat_send(struct pg_session *s, int64_t now_us, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err);

/* The definition of the table, the same for row and message. */
int tr_pg_beat_schema(const struct tr_pg_source_options *o, struct tr_schema **ret, struct tr_err *err);
bool tr_pg_beat_is(const struct tr_pg_source_options *o, const struct tr_pg_msg *m);

#endif
