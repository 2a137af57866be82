/*
 * A row is what any reader of the source can look at, so it is preferred; the message is for sources where nobody but their owner makes
 * or writes a table. The way is looked up from the catalog at each beat, so that a grant, a revoke, or an ALTER PUBLICATION counts from the
 * next beat on, in every session alike, and nothing has to be told to the stream: that asks for messages always.
 */
#include "pg_beat.h"

#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "text.h"

#define PREFIX "tailrace/heartbeat/"
#define COLUMNS " (slot text PRIMARY KEY, at_us bigint NOT NULL)"

/* ON CONFLICT (slot) reads the column: that takes SELECT. Not pg_publication_tables, which lists every table of the publication to find one. */
#define LOOK(in_schema) \
    "SELECT current_user, current_setting('transaction_read_only')::bool, n.oid IS NOT NULL, c.oid IS NOT NULL," \
    "  CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE') ELSE has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE') END," \
    "  coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE'), false)," \
    "  p.oid IS NOT NULL," \
    "  coalesce(p.puballtables, false) OR EXISTS (SELECT FROM pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = c.oid)" in_schema "," \
    "  coalesce(starts_with(obj_description(p.oid, 'pg_publication'), '" TR_PG_OUR_COMMENT "') AND pg_has_role(p.pubowner, 'USAGE'), false)," \
    "  coalesce(pg_has_role(c.relowner, 'USAGE'), false), current_database()" \
    " FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = $1 LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $2" \
    " LEFT JOIN pg_publication p ON p.pubname = $3"

static const char sql_look_15[] = LOOK(" OR EXISTS (SELECT FROM pg_publication_namespace x WHERE x.pnpubid = p.oid AND x.pnnspid = n.oid)");
static const char sql_look_13[] = LOOK("");

struct look {
    char user[64], database[64];
    bool read_only, schema, table; /* the last two: is there */
    bool makes, writes;            /* the user may */
    bool publication, published;   /* a table still to be made counts as published by FOR ALL TABLES or TABLES IN SCHEMA */
    bool alters;                   /* the publication is ours to alter, and so is, or will be, the table to put into it */
};

static int look(struct pg_session *s, int64_t deadline_ns, struct look *ret, struct tr_err *err)
{
    const char *v[] = {s->o->heartbeat_schema, TR_PG_HEARTBEAT_TABLE, s->o->publication};
    PGresult *r = NULL;
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, s->conn.server_version >= 150000 ? sql_look_15 : sql_look_13, 3, v, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    *ret = (struct look){.read_only = tr_pg_bool(r, 0, 1),
                         .schema = tr_pg_bool(r, 0, 2),
                         .table = tr_pg_bool(r, 0, 3),
                         .makes = tr_pg_bool(r, 0, 4),
                         .writes = tr_pg_bool(r, 0, 5),
                         .publication = tr_pg_bool(r, 0, 6),
                         .published = tr_pg_bool(r, 0, 7)};
    snprintf(ret->user, sizeof ret->user, "%s", tr_pg_val(r, 0, 0));
    snprintf(ret->database, sizeof ret->database, "%s", tr_pg_val(r, 0, 10));
    ret->alters = (ret->publication ? tr_pg_bool(r, 0, 8) : s->o->create) && (ret->table ? tr_pg_bool(r, 0, 9) : ret->makes);
    PQclear(r);
    return TR_OK;
}

static void put(struct tr_buf *b, const char *text, const char *ident)
{
    tr_buf_append_str(b, text);
    tr_quote_ident(b, tr_slice_str(ident));
}

static void put_table(struct tr_buf *b, const char *text, const struct tr_pg_source_options *o)
{
    put(b, text, o->heartbeat_schema);
    put(b, ".", TR_PG_HEARTBEAT_TABLE);
}

/* What an administrator has to run so that the row is possible. */
static void cure(const struct look *l, const struct tr_pg_source_options *o, char *ret, size_t cap)
{
    struct tr_buf b;
    tr_buf_init(&b);
    if (l->read_only) {
        put(&b, "ALTER ROLE ", l->user);
        tr_buf_append_str(&b, " SET default_transaction_read_only = off");
    } else if (!l->table && !l->publication) { /* what tailrace makes is also tailrace's to publish */
        put(&b, l->schema ? "GRANT CREATE, USAGE ON SCHEMA " : "GRANT CREATE ON DATABASE ", l->schema ? o->heartbeat_schema : l->database);
        put(&b, " TO ", l->user);
    } else {
        if (!l->table) {
            put(&b, "CREATE SCHEMA IF NOT EXISTS ", o->heartbeat_schema);
            put_table(&b, "; CREATE TABLE IF NOT EXISTS ", o);
            tr_buf_append_str(&b, COLUMNS "; ");
        }
        if (!l->writes) {
            put(&b, "GRANT USAGE ON SCHEMA ", o->heartbeat_schema);
            put(&b, " TO ", l->user);
            put_table(&b, "; GRANT SELECT, INSERT, UPDATE ON ", o);
            put(&b, " TO ", l->user);
        }
        if (!l->published) {
            put(&b, b.n ? "; ALTER PUBLICATION " : "ALTER PUBLICATION ", o->publication);
            put_table(&b, " ADD TABLE ", o);
        }
    }
    snprintf(ret, cap, "%s", tr_buf_cstr(&b) ? tr_buf_cstr(&b) : "");
    tr_buf_done(&b);
}

/* The one place that decides between row and message. */
static int decide(struct pg_session *s, const struct look *l, struct tr_cdc_beat *ret, struct tr_err *err)
{
    const char *ns = s->o->heartbeat_schema, *t = TR_PG_HEARTBEAT_TABLE;
    memset(ret, 0, sizeof *ret);
    if (l->read_only)
        snprintf(ret->why, sizeof ret->why, "transactions of user %s are read-only", l->user);
    else if (!l->table && !l->makes)
        snprintf(ret->why, sizeof ret->why, "user %s may not make table %s.%s", l->user, ns, t);
    else if (l->table && !l->writes)
        snprintf(ret->why, sizeof ret->why, "user %s may not write table %s.%s", l->user, ns, t);
    else if (!l->published && !l->alters)
        snprintf(ret->why, sizeof ret->why, "publication %s lacks table %s.%s, and user %s may not add it", s->o->publication, ns, t, l->user);
    else if (!l->table)
        snprintf(ret->why, sizeof ret->why, "table %s.%s does not exist", ns, t);
    ret->message = ret->why[0] != 0;
    if (!ret->message)
        return TR_OK;
    cure(l, s->o, ret->cure, sizeof ret->cure);
    if (s->conn.server_version >= TR_PG_MESSAGES_SINCE)
        return TR_OK;
    return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "source: no heartbeat can be sent: %s, and PostgreSQL %d does not send the message that could take its place; run: %s", ret->why,
                      s->conn.server_version / 10000, ret->cure);
}

int tr_pg_beat_way(struct pg_session *s, int64_t deadline_ns, struct tr_cdc_beat *ret, bool *ret_makes, struct tr_err *err)
{
    struct look l;
    int rc = look(s, deadline_ns, &l, err);
    if (rc < 0)
        return rc;
    *ret_makes = !l.read_only && !l.table && l.makes && (l.published || l.alters);
    return decide(s, &l, ret, err);
}

static int create(struct pg_session *s, bool schema, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf b;
    tr_buf_init(&b);
    if (!schema) { /* IF NOT EXISTS takes the privilege on the database also where the schema is there */
        put(&b, "CREATE SCHEMA IF NOT EXISTS ", s->o->heartbeat_schema);
        tr_buf_append_str(&b, "; ");
    }
    put_table(&b, "CREATE TABLE IF NOT EXISTS ", s->o);
    tr_buf_append_str(&b, COLUMNS);
    int rc = tr_pg_script(&s->conn, tr_buf_cstr(&b), deadline_ns, err);
    tr_buf_done(&b);
    return rc;
}

int tr_pg_beat_make(struct pg_session *s, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err)
{
    struct look l;
    struct tr_err why;
    int rc = look(s, deadline_ns, &l, err);
    if (rc >= 0 && !l.table && l.makes && !l.read_only) {
        rc = create(s, l.schema, deadline_ns, &why);
        if (rc < 0 && strcmp(why.sqlstate, "42501") != 0) {
            if (err)
                *err = why;
            return rc;
        }
        bool refused = rc < 0; /* for a reason that the catalog does not tell, such as an event trigger */
        rc = look(s, deadline_ns, &l, err);
        l.makes &= !refused;
    }
    return rc < 0 ? rc : decide(s, &l, ret, err);
}

int tr_pg_beat_send(struct pg_session *s, int64_t now_us, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err)
{
    bool makes;
    int rc = tr_pg_beat_way(s, deadline_ns, ret, &makes, err);
    if (rc < 0)
        return rc;
    struct tr_buf q;
    tr_buf_init(&q);
    /* without synchronous_commit=local a missing standby would stop the pulse */
    tr_buf_append_str(&q, "BEGIN; SET LOCAL synchronous_commit = local; ");
    if (ret->message) {
        struct tr_buf prefix;
        tr_buf_init(&prefix);
        tr_buf_printf(&prefix, PREFIX "%s", s->o->slot);
        tr_buf_append_str(&q, "SELECT pg_logical_emit_message(true, ");
        tr_quote_literal(&q, tr_buf_slice(&prefix));
        tr_buf_printf(&q, ", '%lld')", (long long)now_us);
        tr_buf_done(&prefix);
    } else {
        put_table(&q, "INSERT INTO ", s->o);
        tr_buf_append_str(&q, " AS h VALUES (");
        tr_quote_literal(&q, tr_slice_str(s->o->slot));
        tr_buf_printf(&q, ", %lld) ON CONFLICT (slot) DO UPDATE SET at_us = excluded.at_us", (long long)now_us);
    }
    tr_buf_append_str(&q, "; COMMIT");
    rc = tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err);
    if (rc < 0 && s->conn.pg)
        tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, NULL);
    tr_buf_done(&q);
    return rc;
}

/* ---- the stream's half ---- */

int tr_pg_beat_schema(const struct tr_pg_source_options *o, struct tr_schema **ret, struct tr_err *err)
{
    static const struct tr_column columns[] = {
        {.name = "slot", .source_type = "text", .source_type_id = 25, .type = TR_TYPE_TEXT, .not_null = true, .key_pos = 1, .precision = -1, .source_pos = 1},
        {.name = "at_us", .source_type = "bigint", .source_type_id = 20, .type = TR_TYPE_INT64, .not_null = true, .precision = -1, .source_pos = 2},
    };
    struct tr_schema_def d = {.ns = o->heartbeat_schema, .name = TR_PG_HEARTBEAT_TABLE, .no_key_reason = "", .columns = columns, .n_columns = 2};
    return tr_schema_new(&d, ret, err);
}

/* Anybody may send a message under our prefix: what is not of our making must not reach the sinks, nor stop the stream. */
bool tr_pg_beat_is(const struct tr_pg_source_options *o, const struct tr_pg_msg *m)
{
    int64_t at;
    struct tr_slice n = m->u.message.content;
    return (m->u.message.flags & 1) && !strncmp(m->u.message.prefix, PREFIX, sizeof PREFIX - 1) && !strcmp(m->u.message.prefix + sizeof PREFIX - 1, o->slot) && n.n &&
           n.p[0] >= '1' && n.p[0] <= '9' && tr_parse_i64(n, &at, NULL) == TR_OK;
}
