/*
 * pg_session.c: the blocking side of a PostgreSQL source: identity, publication, slot, fences, positions, heartbeat.
 *
 * Publication. It holds exactly the selected tables plus the heartbeat table (if heartbeats are rows: pg_beat.c), and publishes through partition roots. One that we made
 * carries our comment and is altered freely; a publication somebody else made is only checked: missing tables are an error naming
 * the statement that adds them.
 *
 * Membership. That a table has been published without a break is known by the oids of the publication and of the row that puts the table into it,
 * which each DROP and ADD changes, and by the xmin of the publication's row, which ALTER PUBLICATION SET, OWNER TO and RENAME change, but not ADD
 * and DROP TABLE, nor COMMENT. Freezing leaves xmin as it is.
 *
 * Looks. With ten thousand tables each look would describe each of them, though all it wants to know is whether there is a usable key. So what a
 * description said of that is kept together with a stamp over all it came from: the rows of pg_class, pg_attribute, pg_index and of the publication. It
 * is taken from the list, before the description, and so can only be too old, which the next look finds. A partitioned table's key depends on
 * its leaves as well: it is described each time.
 */
#include "pg_session.h"

#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "hash.h"
#include "map.h"
#include "pg_beat.h"
#include "text.h"

#define LISTED_MAX TR_NS_PER_S

struct pg_session *tr_pg_session_of(struct tr_cdc_session *s)
{
    return tr_container_of(s, struct pg_session, session);
}

int tr_pg_session_ready(struct pg_session *s, int64_t deadline_ns, struct tr_err *err)
{
    if (s->conn.pg)
        return TR_OK;
    tr_pg_chunk_reset(s);
    bool replica = s->role == TR_CDC_REPLICA;
    struct tr_pg_params p = {.dsn = replica ? s->o->replica_dsn : s->o->dsn, .application_name = "tailrace session", .settings = "-c lock_timeout=30000 -c jit=off"}; /* jit: a second per look at the catalog */
    int rc = tr_pgconn_open(&s->conn, &p, deadline_ns, err);
    if (rc < 0)
        return rc;
    s->generation++;
    if (s->conn.server_version < 130000) {
        int v = s->conn.server_version;
        tr_pgconn_close(&s->conn);
        return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "source: the server is PostgreSQL %d; tailrace needs 13 or later", v / 10000);
    }
    return TR_OK;
}

int tr_pg_session_value(struct pg_session *s, const char *sql, int n, const char *const *values, int64_t deadline_ns, char *ret, size_t cap, struct tr_err *err)
{
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, sql, n, values, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    rc = PQntuples(r) ? TR_OK : 1;
    snprintf(ret, cap, "%s", rc == TR_OK ? tr_pg_val(r, 0, 0) : "");
    PQclear(r);
    return rc;
}

int tr_pg_session_waits_for(struct pg_session *s, uint64_t fence, int64_t deadline_ns, struct tr_err *err)
{
    if (s->role == TR_CDC_REPLICA)
        return tr_err_set(err, TR_NOT_READY, TR_DOM_SOURCE, "the replica has not replayed transaction %llu yet", (unsigned long long)fence);
    char text[256] = "";
    int rc = tr_pg_session_value(s,
                                 "SELECT coalesce((SELECT what FROM"
                                 "  (SELECT format('transaction of process %s (application %s, user %s), open for %s, %s', pid, nullif(application_name, ''), usename,"
                                 "    date_trunc('second', clock_timestamp() - xact_start), coalesce('waiting on ' || wait_event, state)) AS what, age(backend_xid) AS old"
                                 "    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
                                 "   UNION ALL SELECT format('prepared transaction %s since %s', gid, date_trunc('second', prepared)), age(transaction) FROM pg_prepared_xacts) o"
                                 "  ORDER BY old DESC LIMIT 1), 'a transaction that is about to end')", /* others may wait for the oldest */
                                 0, NULL, deadline_ns, text, sizeof text, err);
    if (rc < 0)
        return rc;
    return tr_err_set(err, TR_NOT_READY, TR_DOM_SOURCE, "%s", text);
}

static int identity(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_identity *ret, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn,
                        "SELECT (SELECT system_identifier FROM pg_control_system()), ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int,"
                        " current_database(), pg_current_wal_insert_lsn()",
                        0, NULL, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    memset(ret, 0, sizeof *ret);
    snprintf(ret->system_id, sizeof ret->system_id, "%s", tr_pg_val(r, 0, 0));
    ret->timeline = (uint32_t)strtoul(tr_pg_val(r, 0, 1), NULL, 10);
    snprintf(ret->database, sizeof ret->database, "%s", tr_pg_val(r, 0, 2));
    ret->server_version = s->conn.server_version;
    rc = tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 3)), &ret->position, err);
    PQclear(r);
    return rc;
}

bool tr_pg_selected(const struct tr_pg_source_options *o, const char *ns, const char *name)
{
    struct tr_slice n = tr_slice_str(ns), t = tr_slice_str(name);
    if (!strcmp(ns, o->heartbeat_schema) && !strcmp(name, TR_PG_HEARTBEAT_TABLE))
        return true;
    for (size_t i = 0; i < o->exclude.n; i++)
        if (tr_glob_table(tr_slice_str(o->exclude.v[i]), n, t))
            return false;
    for (size_t i = 0; i < o->tables.n; i++)
        if (tr_glob_table(tr_slice_str(o->tables.v[i]), n, t))
            return true;
    return false;
}

/* Everything that could be selected: ordinary and partitioned tables, no leaves of a partition tree, nothing temporary or unlogged. Sizes are
 * the planner's: asking for real ones takes a lock, and one table locked for long would hide all others. */
#define IDENTITY(of) \
    "(" of ".relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = " of ".oid AND i.indisvalid AND i.indimmediate" \
    "   AND CASE " of ".relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))"
/* From 18 on UPDATE and DELETE fail as well where a generated column of the identity is not published; a virtual one never is. */
#define UNSENT_18(of) \
    "EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = " of ".oid AND g.attgenerated <> '' AND NOT g.attisdropped AND NOT (g.attgenerated = 's' AND coalesce(p.pubgencols = 's' OR g.attnum = ANY (x.prattrs), false))" \
    "   AND (" of ".relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = " of ".oid AND g.attnum = ANY (i.indkey::int2[])" \
    "     AND CASE " of ".relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)))"
#define UNSENT_13(of) "false"
#define TABLES(place, limited, in_schema, unsent) \
    "SELECT n.nspname, c.relname, c.relkind, coalesce((p.puballtables OR " place " IS NOT NULL) AND (c.relkind = 'r' OR p.pubviaroot), false)," \
    "  CASE c.relkind WHEN 'p' THEN (SELECT coalesce(sum(greatest(l.reltuples, 0)), 0) FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid" \
    "       WHERE t.isleaf) ELSE greatest(c.reltuples, 0) END::bigint," \
    "  8192::bigint * CASE c.relkind WHEN 'p' THEN (SELECT coalesce(sum(greatest(k.relpages, 0)), 0) FROM pg_partition_tree(c.oid) t JOIN pg_class h ON h.oid = t.relid" \
    "       JOIN pg_class k ON k.oid IN (h.oid, h.reltoastrelid)) ELSE greatest(c.relpages, 0) + coalesce((SELECT greatest(k.relpages, 0) FROM pg_class k WHERE k.oid = c.reltoastrelid), 0) END," \
    "  c.oid || coalesce('=' || CASE c.relkind WHEN 'p' THEN (SELECT string_agg(t.relid::oid || ':' || coalesce(pg_relation_filenode(t.relid), 0), ',' ORDER BY t.relid::oid)" \
    "       FROM pg_partition_tree(c.oid) t WHERE t.isleaf) END, ''), c.oid," \
    "  coalesce(format('%s/%s', p.oid, p.xmin), ''), coalesce(" place ", 0), " limited "," \
    "  coalesce(p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, false)," \
    "  CASE c.relkind WHEN 'r' THEN c.relfilenode ELSE 0 END, CASE c.relkind WHEN 'r' THEN coalesce((SELECT hashtextextended(string_agg(" \
    "       format('%s:%s:%s:%s', a.attnum, a.atttypid, a.atttypmod, a.xmin), ',' ORDER BY a.attnum), 0)" \
    "       FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), 0) ELSE 0 END," \
    "  CASE c.relkind WHEN 'r' THEN " IDENTITY("c") " AND NOT " unsent("c") " ELSE NOT EXISTS (SELECT FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid" \
    "       WHERE t.isleaf AND (NOT " IDENTITY("l") " OR " unsent("l") ")) END," \
    "  CASE c.relkind WHEN 'r' THEN " unsent("c") " ELSE EXISTS (SELECT FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid WHERE t.isleaf AND " unsent("l") ") END," \
    "  CASE c.relkind WHEN 'r' THEN hashtextextended(concat_ws('/', n.nspname, c.relname, c.relreplident, p.oid, p.xmin, x.oid, x.xmin," \
    "       (SELECT string_agg(format('%s:%s', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid) FROM pg_index i WHERE i.indrelid = c.oid)), 0) ELSE 0 END" \
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_publication p ON p.pubname = $1" \
    " LEFT JOIN pg_publication_rel x ON x.prpubid = p.oid AND x.prrelid = c.oid" in_schema \
    " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'" \
    "   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') ORDER BY 1, 2"

#define PLACE_15 "coalesce(x.oid, y.oid)", "coalesce(x.prqual IS NOT NULL OR x.prattrs IS NOT NULL, false)", \
                 " LEFT JOIN pg_publication_namespace y ON y.pnpubid = p.oid AND y.pnnspid = n.oid"
#define TABLES_OF(...) TABLES(__VA_ARGS__)

static const char sql_tables_18[] = TABLES_OF(PLACE_15, UNSENT_18);
static const char sql_tables_15[] = TABLES_OF(PLACE_15, UNSENT_13);
static const char sql_tables_13[] = TABLES("x.oid", "false", "", UNSENT_13);

static const char *sql_tables(const struct pg_session *s)
{
    int v = s->conn.server_version;
    return v >= 180000 ? sql_tables_18 : v >= 150000 ? sql_tables_15 : sql_tables_13;
}

/* See the head of this file. */
static uint64_t membership(const PGresult *r, int i)
{
    const char *whole = tr_pg_val(r, i, 8);
    uint64_t h = *whole ? tr_hash64(whole, strlen(whole)) : 0;
    uint32_t high = (uint32_t)(h ^ h >> 32);
    return tr_pg_bool(r, i, 3) ? (uint64_t)(high ? high : 1) << 32 | strtoul(tr_pg_val(r, i, 9), NULL, 10) : 0;
}

static void why_unpublished(const struct pg_session *s, const PGresult *r, int i, char *ret, size_t cap)
{
    const char *name = s->o->publication;
    if (!*tr_pg_val(r, i, 8))
        snprintf(ret, cap, "there is no publication %s", name);
    else if (!tr_pg_bool(r, i, 3) && tr_pg_bool(r, i, 15))
        snprintf(ret, cap, "its replica identity has a generated column that is not published, so that UPDATE and DELETE of it would fail at the source: give it a primary key without one, and"
                           " REPLICA IDENTITY DEFAULT");
    else if (!tr_pg_bool(r, i, 3) && !tr_pg_bool(r, i, 14))
        snprintf(ret, cap, "it has no replica identity, so that UPDATE and DELETE of it would fail at the source if it were published: give it a primary key, or, for its history alone,"
                           " REPLICA IDENTITY FULL");
    else if (!tr_pg_bool(r, i, 3))
        snprintf(ret, cap, "publication %s does not hold it%s", name, *tr_pg_val(r, i, 2) == 'p' ? ", or publishes its partitions in place of it" : "");
    else if (!tr_pg_bool(r, i, 11))
        snprintf(ret, cap, "publication %s does not publish all of insert, update, delete and truncate", name);
    else
        *ret = 0;
}

struct pg_key {
    uint64_t stamp;
    char *why_none;  /* NULL: it has one */
};

static struct pg_key *key_free(struct pg_key *k)
{
    if (k)
        tr_free(k->why_none);
    tr_free(k);
    return NULL;
}

static void forget_keys(struct pg_session *s)
{
    size_t it = 0;
    uint64_t oid, v;
    while (tr_u64map_next(&s->keys, &it, &oid, &v))
        key_free((struct pg_key *)(uintptr_t)v);
    tr_u64map_done(&s->keys);
}

/* Without memory it is described again next time. */
static void keep_key(struct pg_session *s, uint32_t oid, uint64_t stamp, const struct tr_cdc_table *t)
{
    struct pg_key *k = tr_u64map_get_ptr(&s->keys, oid);
    tr_u64map_del(&s->keys, oid, NULL);
    key_free(k);
    k = tr_calloc(1, sizeof *k);
    if (!k)
        return;
    k->stamp = stamp;
    bool ok = t->key_ok || (k->why_none = tr_strdup(t->no_key)) != NULL;
    if (!ok || tr_u64map_put_ptr(&s->keys, oid, k) < 0)
        key_free(k);
}

/* key_ok and no_key. 1: the table was dropped meanwhile. */
static int look_at_key(struct pg_session *s, const PGresult *r, int i, int64_t deadline_ns, struct tr_cdc_table *t, struct tr_err *err)
{
    uint64_t own = (uint64_t)strtoll(tr_pg_val(r, i, 16), NULL, 10), stamp = own ? tr_hash_u64(own) ^ t->attributes : 0;
    const struct pg_key *known = stamp ? tr_u64map_get_ptr(&s->keys, t->source_id) : NULL;
    if (known && known->stamp == stamp) {
        t->key_ok = !known->why_none;
        snprintf(t->no_key, sizeof t->no_key, "%s", t->key_ok ? "" : known->why_none);
        return TR_OK;
    }
    struct tr_schema *sc = NULL;
    int rc = s->session.ops->describe(&s->session, t->ns, t->name, deadline_ns, &sc, err);
    if (rc != TR_OK)
        return rc;
    t->key_ok = sc->n_key != 0;
    snprintf(t->no_key, sizeof t->no_key, "%s", sc->no_key_reason);
    tr_schema_unref(sc);
    if (stamp)
        keep_key(s, t->source_id, stamp, t);
    return TR_OK;
}

static void forget_list(struct pg_session *s)
{
    PQclear(s->listed);
    s->listed = NULL;
}

/* All that could be selected. The list that publish() has just seen will do. */
static int list(struct pg_session *s, int64_t deadline_ns, PGresult **ret, struct tr_err *err)
{
    const char *v[] = {s->o->publication};
    if (s->listed && s->listed_generation == s->generation && tr_now_ns() - s->listed_ns < LISTED_MAX) {
        *ret = s->listed;
        s->listed = NULL;
        return TR_OK;
    }
    forget_list(s);
    return tr_pg_exec(&s->conn, sql_tables(s), 1, v, deadline_ns, ret, err);
}

static int tables(struct tr_cdc_session *cs, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_cdc_table *t), void *arg, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = list(s, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < PQntuples(r) && rc >= 0; i++) {
        if (!tr_pg_selected(s->o, tr_pg_val(r, i, 0), tr_pg_val(r, i, 1)))
            continue;
        struct tr_cdc_table t = {.published = tr_pg_bool(r, i, 3) && tr_pg_bool(r, i, 11),
                                 .rows_estimate = strtoull(tr_pg_val(r, i, 4), NULL, 10),
                                 .bytes_estimate = strtoull(tr_pg_val(r, i, 5), NULL, 10),
                                 .membership = membership(r, i),
                                 .filenode = strtoull(tr_pg_val(r, i, 12), NULL, 10),
                                 .attributes = (uint64_t)strtoll(tr_pg_val(r, i, 13), NULL, 10),
                                 .source_id = (uint32_t)strtoul(tr_pg_val(r, i, 7), NULL, 10)};
        snprintf(t.ns, sizeof t.ns, "%s", tr_pg_val(r, i, 0));
        snprintf(t.name, sizeof t.name, "%s", tr_pg_val(r, i, 1));
        const char *tree = tr_pg_val(r, i, 6);
        t.storage_fingerprint = *tree ? tr_hash64(tree, strlen(tree)) : 0;
        rc = look_at_key(s, r, i, deadline_ns, &t, err);
        if (rc != TR_OK) {
            rc = rc == 1 ? TR_OK : rc;
            continue;
        }
        t.partial = tr_pg_bool(r, i, 10);
        t.no_identity = !tr_pg_bool(r, i, 14);
        t.generated_identity = tr_pg_bool(r, i, 15);
        why_unpublished(s, r, i, t.unpublished, sizeof t.unpublished);
        cb(arg, &t);
    }
    PQclear(r);
    return rc < 0 ? rc : TR_OK;
}

static int describe(struct tr_cdc_session *cs, const char *ns, const char *name, int64_t deadline_ns, struct tr_schema **ret, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    struct tr_buf q;
    tr_buf_init(&q);
    if (rc >= 0 && s->prepared != s->generation) { /* planning it takes ten times as long as running it */
        tr_buf_printf(&q, "PREPARE tr_describe (text, text, text) AS %s", tr_pgschema_sql_table(s->conn.server_version));
        rc = tr_buf_cstr(&q) ? tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err) : tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "no memory to describe a table");
        if (rc >= 0)
            s->prepared = s->generation;
    }
    tr_buf_clear(&q);
    if (rc >= 0) {
        tr_buf_append_str(&q, "EXECUTE tr_describe (");
        tr_quote_literal(&q, tr_slice_str(ns));
        tr_buf_append_str(&q, ", ");
        tr_quote_literal(&q, tr_slice_str(name));
        tr_buf_append_str(&q, ", ");
        tr_quote_literal(&q, tr_slice_str(s->o->publication));
        rc = tr_buf_append_str(&q, ")") == TR_OK && tr_buf_cstr(&q) ? tr_pg_exec(&s->conn, tr_buf_cstr(&q), 0, NULL, deadline_ns, &r, err)
                                                                     : tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "no memory to describe a table");
    }
    tr_buf_done(&q);
    if (rc < 0)
        return rc;
    rc = tr_pgschema_build(r, NULL, ns, name, ret, err);
    PQclear(r);
    return rc;
}

/* ---- publication ---- */

/* ONLY: else the tables that inherit from it would come and go with it, which are tables of their own, perhaps without an identity. */
static int put_name(struct tr_buf *b, const char *kind, const char *ns, const char *name)
{
    int rc = *kind == 'r' ? tr_buf_append_str(b, "ONLY ") : TR_OK;
    if (rc >= 0)
        rc = tr_quote_ident(b, tr_slice_str(ns));
    if (rc >= 0)
        rc = tr_buf_append_u8(b, '.');
    return rc >= 0 ? tr_quote_ident(b, tr_slice_str(name)) : rc;
}

static int put_statement(struct pg_session *s, struct tr_buf *q, const char *verb, const struct tr_buf *names)
{
    tr_buf_append_str(q, "ALTER PUBLICATION ");
    tr_quote_ident(q, tr_slice_str(s->o->publication));
    return tr_buf_printf(q, " %s TABLE %.*s; ", verb, (int)names->n, (const char *)names->p);
}

/* Row filters and column lists of a publication of ours go in one transaction with their return to it whole: DROP and ADD. */
static int alter(struct pg_session *s, const PGresult *r, bool ours, bool without_beat, int64_t deadline_ns, bool *ret_changed, struct tr_err *err)
{
    struct tr_buf add, drop;
    tr_buf_init(&add);
    tr_buf_init(&drop);
    int rc = TR_OK;
    for (int i = 0; i < PQntuples(r) && rc >= 0; i++) {
        const char *ns = tr_pg_val(r, i, 0), *name = tr_pg_val(r, i, 1);
        /* Published without a replica identity, a table refuses UPDATE and DELETE: that is not ours to do to anybody. */
        bool in = tr_pg_bool(r, i, 3), want = tr_pg_selected(s->o, ns, name) && tr_pg_bool(r, i, 14);
        bool whole = !ours || !tr_pg_bool(r, i, 10);
        if ((in == want && (!in || whole)) || (in && !ours))
            continue;
        if (without_beat && !strcmp(ns, s->o->heartbeat_schema) && !strcmp(name, TR_PG_HEARTBEAT_TABLE))
            continue;
        for (int k = 0; k < 2 && rc >= 0; k++) {
            struct tr_buf *b = k ? &drop : &add;
            if (k ? !in : !want)
                continue;
            rc = tr_buf_append_str(b, b->n ? ", " : "");
            if (rc >= 0)
                rc = put_name(b, tr_pg_val(r, i, 2), ns, name);
        }
    }
    if (rc >= 0 && add.n && !ours)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "source: publication %s was not made by tailrace and lacks %s; run: ALTER PUBLICATION \"%s\" ADD TABLE %s",
                        s->o->publication, tr_buf_cstr(&add), s->o->publication, tr_buf_cstr(&add));
    struct tr_buf q;
    tr_buf_init(&q);
    if (rc >= 0 && drop.n)
        rc = put_statement(s, &q, "DROP", &drop);
    if (rc >= 0 && add.n)
        rc = put_statement(s, &q, "ADD", &add);
    if (rc >= 0 && q.n) {
        rc = tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err);
        *ret_changed = true;
    }
    tr_buf_done(&q);
    tr_buf_done(&add);
    tr_buf_done(&drop);
    return rc < 0 ? rc : TR_OK;
}

/* Into the comment, where it is after a commit: a slot that stands before it cannot decode what lies between (slot_state). */
static int note_position(struct pg_session *s, int64_t deadline_ns, struct tr_err *err)
{
    char lsn[TR_LSN_CHARS] = "";
    int rc = tr_pg_session_value(s, "SELECT pg_current_wal_insert_lsn()", 0, NULL, deadline_ns, lsn, sizeof lsn, err);
    if (rc < 0)
        return rc;
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "COMMENT ON PUBLICATION ");
    tr_quote_ident(&q, tr_slice_str(s->o->publication));
    tr_buf_printf(&q, " IS '" TR_PG_OUR_COMMENT ", made at %s'", lsn);
    rc = tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err);
    tr_buf_done(&q);
    return rc;
}

static int set_options(struct pg_session *s, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q;
    tr_buf_init(&q);
    tr_buf_append_str(&q, "ALTER PUBLICATION ");
    tr_quote_ident(&q, tr_slice_str(s->o->publication));
    tr_buf_append_str(&q, " SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)");
    int rc = tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err);
    tr_buf_done(&q);
    return rc;
}

static int publish_selected(struct pg_session *s, int64_t deadline_ns, bool *ret_changed, struct tr_err *err)
{
    *ret_changed = false;
    forget_list(s);
    const char *v[] = {s->o->publication};
    struct tr_cdc_beat beat;
    int rc = tr_pg_beat_make(s, deadline_ns, &beat, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, "SELECT puballtables, coalesce(starts_with(obj_description(oid, 'pg_publication'), '" TR_PG_OUR_COMMENT "'), false), pubviaroot,"
                                  " pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = $1", 1, v, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    bool exists = PQntuples(r) == 1, all = exists && tr_pg_bool(r, 0, 0), ours = !exists || tr_pg_bool(r, 0, 1);
    bool fit = !exists || (tr_pg_bool(r, 0, 2) && tr_pg_bool(r, 0, 3));
    PQclear(r);
    if (!fit && ours) {
        rc = set_options(s, deadline_ns, err);
        if (rc < 0)
            return rc;
        *ret_changed = true;
    } else if (!fit)
        return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE,
                          "source: publication %s must publish insert, update, delete and truncate through partition roots; run: ALTER PUBLICATION \"%s\""
                          " SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)",
                          s->o->publication, s->o->publication);
    if (all)
        return TR_OK;
    if (!exists) {
        if (!s->o->create)
            return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "source: publication %s does not exist and create is off; create it, or set create: true",
                              s->o->publication);
        struct tr_buf q;
        tr_buf_init(&q);
        tr_buf_append_str(&q, "CREATE PUBLICATION ");
        tr_quote_ident(&q, tr_slice_str(s->o->publication));
        tr_buf_append_str(&q, " WITH (publish_via_partition_root = true); COMMENT ON PUBLICATION ");
        tr_quote_ident(&q, tr_slice_str(s->o->publication));
        tr_buf_append_str(&q, " IS '" TR_PG_OUR_COMMENT "'");
        rc = tr_pg_script(&s->conn, tr_buf_cstr(&q), deadline_ns, err);
        tr_buf_done(&q);
        *ret_changed = true;
        if (rc >= 0)
            rc = note_position(s, deadline_ns, err);
        if (rc < 0)
            return rc;
    }
    rc = tr_pg_exec(&s->conn, sql_tables(s), 1, v, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    rc = alter(s, r, ours, beat.message, deadline_ns, ret_changed, err);
    if (rc >= 0 && !*ret_changed) {
        s->listed = r;
        s->listed_ns = tr_now_ns();
        s->listed_generation = s->generation;
    } else {
        PQclear(r);
    }
    return rc;
}

static int publish(struct tr_cdc_session *cs, int64_t deadline_ns, bool *ret_changed, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = publish_selected(s, deadline_ns, ret_changed, err);
    return rc < 0 ? tr_pg_explain(s, rc, err) : rc;
}

/* ---- slot ---- */

static int slot_create(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_lsn, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    char lsn[TR_LSN_CHARS] = "";
    const char *v[] = {s->o->slot};
    int rc = tr_pg_session_value(s, "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput')", 1, v, deadline_ns, lsn, sizeof lsn, err);
    return rc < 0 ? tr_pg_explain(s, rc, err) : tr_parse_lsn(tr_slice_str(lsn), ret_lsn, err);
}

static int slot_drop(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    char dummy[8];
    const char *v[] = {s->o->slot};
    int rc = tr_pg_session_value(s, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active", 1, v, deadline_ns,
                                 dummy, sizeof dummy, err);
    return rc < 0 ? rc : TR_OK;
}

static int slot_state(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_cdc_slot *ret, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    memset(ret, 0, sizeof *ret);
    const char *v[] = {s->o->slot, s->o->publication};
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn,
                        "SELECT active, coalesce(active_pid, 0), confirmed_flush_lsn, restart_lsn, coalesce(wal_status, ''), safe_wal_size,"
                        " coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint,"
                        " (SELECT substring(obj_description(p.oid, 'pg_publication') from '^" TR_PG_OUR_COMMENT ", made at ([0-9A-F]+/[0-9A-F]+)$') FROM pg_publication p WHERE p.pubname = $2)"
                        " FROM pg_replication_slots WHERE slot_name = $1 AND slot_type = 'logical'",
                        2, v, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    ret->exists = PQntuples(r) == 1;
    if (ret->exists) {
        ret->active = tr_pg_bool(r, 0, 0);
        ret->active_pid = atoll(tr_pg_val(r, 0, 1));
        tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 2)), &ret->confirmed, NULL);
        tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 3)), &ret->restart, NULL);
        snprintf(ret->wal_status, sizeof ret->wal_status, "%s", tr_pg_val(r, 0, 4));
        bool lost = !strcmp(ret->wal_status, "lost"); /* then, too, there is no safe_wal_size */
        ret->headroom_bytes = lost ? 0 : PQgetisnull(r, 0, 5) ? INT64_MAX : atoll(tr_pg_val(r, 0, 5));
        ret->retained_bytes = atoll(tr_pg_val(r, 0, 6));
        if (!PQgetisnull(r, 0, 7))
            tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 7)), &ret->published, NULL);
    }
    PQclear(r);
    return TR_OK;
}

/* ---- fences and positions ---- */

static int fence_xid(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_xid, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    char xid[32] = "";
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "BEGIN", deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_session_value(s, "SELECT pg_current_xact_id()", 0, NULL, deadline_ns, xid, sizeof xid, err);
    if (rc >= 0) /* rolled back: a commit could hang on a missing synchronous standby */
        rc = tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, err);
    if (rc < 0)
        return rc;
    *ret_xid = strtoull(xid, NULL, 10);
    return TR_OK;
}

static int xmin(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_xmin, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    char x[32] = "";
    int rc = tr_pg_session_value(s, "SELECT pg_snapshot_xmin(pg_current_snapshot())", 0, NULL, deadline_ns, x, sizeof x, err);
    if (rc < 0)
        return rc;
    *ret_xmin = strtoull(x, NULL, 10);
    struct tr_err who;
    rc = tr_pg_session_waits_for(s, *ret_xmin, deadline_ns, &who);
    if (rc != TR_NOT_READY)
        return rc;
    if (err)
        *err = who; /* described for the case that xmin is too low */
    return TR_OK;
}

static int position(struct tr_cdc_session *cs, int64_t deadline_ns, uint64_t *ret_insert, uint64_t *ret_flush, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = tr_pg_exec(&s->conn, "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()", 0, NULL, deadline_ns, &r, err);
    if (rc < 0)
        return rc;
    rc = tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 0)), ret_insert, err);
    if (rc >= 0)
        rc = tr_parse_lsn(tr_slice_str(tr_pg_val(r, 0, 1)), ret_flush, err);
    PQclear(r);
    return rc;
}

static uint64_t generation(const struct tr_cdc_session *cs)
{
    const struct pg_session *s = (const struct pg_session *)(const void *)((const char *)cs - offsetof(struct pg_session, session));
    return s->conn.pg ? s->generation : s->generation + 1; /* closed: whatever comes next is another connection */
}

static int heartbeat(struct tr_cdc_session *cs, int64_t now_us, int64_t deadline_ns, struct tr_cdc_beat *ret, struct tr_err *err)
{
    return tr_pg_beat_send(tr_pg_session_of(cs), now_us, deadline_ns, ret, err);
}

/* A published row or a message that is asked for, not just any WAL: the rest reaches us only with the next keepalive. */
static int nudge(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_cdc_beat beat;
    return tr_pg_beat_send(tr_pg_session_of(cs), tr_wall_us(), deadline_ns, &beat, err);
}

/* The commit of a transaction that wrote something flushes all that was written before it. The message is for nobody: no decoder knows its prefix. */
static int flush(struct tr_cdc_session *cs, int64_t deadline_ns, struct tr_err *err)
{
    struct pg_session *s = tr_pg_session_of(cs);
    int rc = tr_pg_session_ready(s, deadline_ns, err);
    if (rc >= 0)
        rc = tr_pg_script(&s->conn, "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_logical_emit_message(true, 'tailrace', ''); COMMIT", deadline_ns, err);
    if (rc < 0 && s->conn.pg)
        tr_pg_script(&s->conn, "ROLLBACK", deadline_ns, NULL);
    return rc;
}

static void interrupt(struct tr_cdc_session *cs)
{
    tr_pgconn_interrupt(&tr_pg_session_of(cs)->conn);
}

static void free_session(struct tr_cdc_session *cs)
{
    struct pg_session *s = tr_pg_session_of(cs);
    tr_pg_chunk_reset(s);
    tr_pgconn_done(&s->conn);
    forget_list(s);
    forget_keys(s);
    tr_free(s->scratch);
    tr_free(s->v);
    tr_free(s->state);
    tr_free(s);
}

static const struct tr_cdc_session_ops ops = {
    .identity = identity,
    .check = tr_pg_check,
    .tables = tables,
    .describe = describe,
    .publish = publish,
    .slot_create = slot_create,
    .slot_drop = slot_drop,
    .slot_state = slot_state,
    .fence_xid = fence_xid,
    .xmin = xmin,
    .position = position,
    .nudge = nudge,
    .flush = flush,
    .generation = generation,
    .chunk_plan = tr_pg_chunk_plan,
    .chunk_open = tr_pg_chunk_open,
    .chunk_next = tr_pg_chunk_next,
    .chunk_close = tr_pg_chunk_close,
    .fetch = tr_pg_fetch,
    .heartbeat = heartbeat,
    .interrupt = interrupt,
    .free = free_session,
};

int tr_pg_session_new(const struct tr_pg_source_options *o, enum tr_cdc_role role, struct tr_cdc_session **ret, struct tr_err *err)
{
    if (role == TR_CDC_REPLICA && !o->replica_dsn)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "source: no replica_dsn is configured");
    struct pg_session *s = tr_calloc(1, sizeof *s);
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for a session");
    s->session.ops = &ops;
    s->o = o;
    s->role = role;
    tr_u64map_init(&s->keys);
    tr_pgconn_init(&s->conn, role == TR_CDC_REPLICA ? "replica" : "source");
    *ret = &s->session;
    return TR_OK;
}
