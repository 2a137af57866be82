/*
 * pg_check.c: looks a source over as a doctor would: each finding names the thing, what is wrong with it and the statement or setting
 * that cures it. Nothing is changed.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "check.h"
#include "pg_beat.h"
#include "text.h"

struct doctor {
    struct pg_session *s;
    int64_t deadline_ns;
    void (*cb)(void *arg, const struct tr_finding *f);
    void *arg;
    struct tr_err *err;
    bool foreign; /* the publication is not ours to alter */
};

__attribute__((format(printf, 5, 6))) static void say(struct doctor *d, enum tr_finding_level level, const char *code, const char *subject, const char *fmt, ...)
{
    struct tr_finding f = {.level = level};
    snprintf(f.code, sizeof f.code, "%s", code);
    snprintf(f.subject, sizeof f.subject, "%s", subject);
    va_list ap;
    va_start(ap, fmt);
    char both[1100];
    vsnprintf(both, sizeof both, fmt, ap);
    va_end(ap);
    char *cure = strstr(both, " => "); /* "what is" => "what to do" */
    if (cure) {
        *cure = 0;
        snprintf(f.cure, sizeof f.cure, "%.500s", cure + 4);
    }
    snprintf(f.text, sizeof f.text, "%.500s", both);
    d->cb(d->arg, &f);
}

static int query(struct doctor *d, const char *sql, int n, const char *const *v, PGresult **ret)
{
    int rc = tr_pg_session_ready(d->s, d->deadline_ns, d->err);
    return rc < 0 ? rc : tr_pg_exec(&d->s->conn, sql, n, v, d->deadline_ns, ret, d->err);
}

bool tr_pg_decodes_badly(int v)
{
    return v == 130021 || v == 140018 || v == 150013 || v == 160009 || v == 170005;
}

static int check_server(struct doctor *d)
{
    PGresult *r = NULL;
    int64_t t0 = tr_wall_us();
    int rc = query(d,
                   "SELECT current_setting('server_version'), current_setting('wal_level'), current_setting('max_replication_slots')::int,"
                   " current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication),"
                   " current_setting('max_slot_wal_keep_size'), pg_is_in_recovery(), (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),"
                   " has_database_privilege(current_database(), 'CREATE'), (extract(epoch FROM clock_timestamp()) * 1e6)::bigint, current_user,"
                   " current_setting('max_prepared_transactions')::int, current_setting('server_version_num')::int, current_setting('server_encoding')",
                   0, NULL, &r);
    if (rc < 0)
        return rc;
    int64_t t1 = tr_wall_us();
    const char *ver = tr_pg_val(r, 0, 0), *user = tr_pg_val(r, 0, 11);
    int num = atoi(tr_pg_val(r, 0, 13));
    if (tr_pg_decodes_badly(num))
        say(d, TR_FINDING_WARN, "server_version", "server", "PostgreSQL %s is known to fail decoding large workloads with 'invalid memory alloc request size' => update to the next minor release", ver);
    else
        say(d, TR_FINDING_OK, "server_version", "server", "PostgreSQL %s", ver);
    if (!strcmp(tr_pg_val(r, 0, 14), "SQL_ASCII"))
        say(d, TR_FINDING_WARN, "encoding", "server", "the database is SQL_ASCII: PostgreSQL refuses to send text of it that is not UTF-8, and capture would stand at the first => make sure that it holds UTF-8 only, or move it to a database with an encoding");
    if (strcmp(tr_pg_val(r, 0, 1), "logical") != 0)
        say(d, TR_FINDING_ERROR, "wal_level", "server", "wal_level is %s => ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL", tr_pg_val(r, 0, 1));
    else
        say(d, TR_FINDING_OK, "wal_level", "server", "wal_level is logical");
    if (tr_pg_bool(r, 0, 7))
        say(d, TR_FINDING_ERROR, "primary", "server", "dsn points to a standby => point dsn at the primary and use replica_dsn for the standby");
    int slots = atoi(tr_pg_val(r, 0, 2)), used = atoi(tr_pg_val(r, 0, 4));
    const char *v[] = {d->s->o->slot};
    char own[8] = "";
    int have = tr_pg_session_value(d->s, "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1", 1, v, d->deadline_ns, own, sizeof own, d->err);
    if (have < 0) {
        PQclear(r);
        return have;
    }
    if (have == 1 && used >= slots)
        say(d, TR_FINDING_ERROR, "max_replication_slots", "server", "all %d replication slots are taken => ALTER SYSTEM SET max_replication_slots = %d; then restart, or drop a slot that nobody reads", slots, slots + 5);
    else
        say(d, TR_FINDING_OK, "max_replication_slots", "server", "%d of %d replication slots are in use", used, slots);
    int senders = atoi(tr_pg_val(r, 0, 3)), busy = atoi(tr_pg_val(r, 0, 5));
    if (busy >= senders)
        say(d, TR_FINDING_ERROR, "max_wal_senders", "server", "all %d WAL senders are busy => ALTER SYSTEM SET max_wal_senders = %d; then restart", senders, senders + 5);
    else
        say(d, TR_FINDING_OK, "max_wal_senders", "server", "%d of %d WAL senders are busy", busy, senders);
    if (!tr_pg_bool(r, 0, 8))
        say(d, TR_FINDING_ERROR, "replication_role", user, "user %s may not replicate => ALTER ROLE \"%s\" REPLICATION", user, user);
    else
        say(d, TR_FINDING_OK, "replication_role", user, "user %s may replicate", user);
    if (!tr_pg_bool(r, 0, 9) && d->s->o->create)
        say(d, TR_FINDING_WARN, "create_privilege", user, "user %s may not create schemas or publications in this database => GRANT CREATE ON DATABASE ... TO \"%s\", or create the publication by hand", user, user);
    if (!strcmp(tr_pg_val(r, 0, 6), "-1"))
        say(d, TR_FINDING_NOTE, "max_slot_wal_keep_size", "server", "WAL kept for a slot is unbounded: while tailrace is down the server's disk fills => set max_slot_wal_keep_size, and alarm on tailrace's headroom");
    int64_t skew = strtoll(tr_pg_val(r, 0, 10), NULL, 10) - (t0 + t1) / 2;
    if (llabs(skew) > 1000000)
        say(d, TR_FINDING_WARN, "clock", "server", "the server's clock differs from ours by %" PRId64 " ms; lag figures will be off by as much => run an NTP daemon on both", skew / 1000);
    else
        say(d, TR_FINDING_OK, "clock", "server", "clocks agree to %" PRId64 " ms", (int64_t)llabs(skew) / 1000);
    PQclear(r);
    return TR_OK;
}

static int check_heartbeat(struct doctor *d)
{
    const char *ns = d->s->o->heartbeat_schema;
    char name[160];
    snprintf(name, sizeof name, "%s.%s", ns, TR_PG_HEARTBEAT_TABLE);
    struct tr_cdc_beat beat = {0};
    struct tr_err err;
    bool makes = false;
    int rc = tr_pg_beat_way(d->s, d->deadline_ns, &beat, &makes, &err);
    if (rc < 0 && !(rc == TR_REJECT && beat.message)) {
        if (d->err)
            *d->err = err;
        return rc;
    }
    if (makes)
        say(d, TR_FINDING_OK, "heartbeat", name, "the heartbeat is a row of %s, which will be made at the first start", name);
    else if (rc == TR_REJECT)
        say(d, TR_FINDING_ERROR, "heartbeat", name, "no heartbeat can be sent: %s, and this server does not send the message that could take its place => %s", beat.why, beat.cure);
    else if (beat.message)
        say(d, TR_FINDING_NOTE, "heartbeat", name, "the heartbeat is a transactional message, for %s; to have a row => %s", beat.why, beat.cure);
    else
        say(d, TR_FINDING_OK, "heartbeat", name, "the heartbeat is a row of %s", name);
    return TR_OK;
}

static int check_slot(struct doctor *d)
{
    struct tr_cdc_slot slot;
    int rc = d->s->session.ops->slot_state(&d->s->session, d->deadline_ns, &slot, d->err);
    if (rc < 0)
        return rc;
    const char *name = d->s->o->slot;
    if (!slot.exists) /* what follows from that is for who knows the state directory */
        return TR_OK;
    char a[TR_SIZE_CHARS], b[TR_SIZE_CHARS];
    tr_format_size((uint64_t)slot.retained_bytes >> 20 << 20, a);
    tr_format_size((uint64_t)(slot.headroom_bytes == INT64_MAX ? 0 : slot.headroom_bytes) >> 20 << 20, b);
    if (!strcmp(slot.wal_status, "lost"))
        say(d, TR_FINDING_WARN, "slot", name, "slot %s has lost WAL it needed => raise max_slot_wal_keep_size; tailrace drops and makes it anew by itself", name);
    else if (slot.headroom_bytes != INT64_MAX && slot.headroom_bytes < slot.retained_bytes)
        say(d, TR_FINDING_WARN, "slot", name, "slot %s holds back %s of WAL and has %s left before the server gives up on it => start tailrace, or raise max_slot_wal_keep_size", name, a, b);
    else
        say(d, TR_FINDING_OK, "slot", name, "slot %s holds back %s of WAL", name, a);
    return TR_OK;
}

static int check_publication(struct doctor *d)
{
    const char *name = d->s->o->publication, *v[] = {name};
    PGresult *r = NULL;
    int rc = query(d,
                   "SELECT coalesce(starts_with(obj_description(oid, 'pg_publication'), '" TR_PG_OUR_COMMENT "'), false),"
                   " pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1",
                   1, v, &r);
    if (rc < 0)
        return rc;
    bool exists = PQntuples(r) == 1;
    d->foreign = exists ? !tr_pg_bool(r, 0, 0) : !d->s->o->create;
    if (!exists && d->foreign)
        say(d, TR_FINDING_ERROR, "publication", name, "there is no publication %s, and create is off => CREATE PUBLICATION \"%s\" FOR TABLE ... WITH (publish_via_partition_root = true)", name, name);
    else if (exists && !(tr_pg_bool(r, 0, 1) && tr_pg_bool(r, 0, 2)))
        say(d, d->foreign ? TR_FINDING_ERROR : TR_FINDING_WARN, "publication", name, "publication %s must publish insert, update, delete and truncate, through partition roots%s => ALTER PUBLICATION \"%s\""
            " SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)", name, d->foreign ? "" : "; tailrace puts that right, and takes new snapshots", name);
    else
        say(d, TR_FINDING_OK, "publication", name, "publication %s %s", name, !exists ? "will be made at the first start" : d->foreign ? "publishes every operation" : "is tailrace's");
    PQclear(r);
    return TR_OK;
}

static void one_table(void *arg, const struct tr_cdc_table *t)
{
    struct doctor *d = arg;
    char name[160];
    snprintf(name, sizeof name, "%s.%s", t->ns, t->name);
    const char *pub = d->s->o->publication;
    bool beat = !strcmp(t->ns, d->s->o->heartbeat_schema) && !strcmp(t->name, TR_PG_HEARTBEAT_TABLE); /* it has a finding of its own */
    if (!t->published && d->foreign && !beat)
        say(d, TR_FINDING_ERROR, "table_published", name, "%s is not captured: %s => ALTER PUBLICATION \"%s\" ADD TABLE %s, unless another finding says more", name, t->unpublished, pub, name);
    else if (t->partial && d->foreign)
        say(d, TR_FINDING_WARN, "table_partial", name, "publication %s has a row filter or column list on %s: only those rows and columns reach a mirror => to have all: ALTER PUBLICATION \"%s\" DROP TABLE %s;"
            " ALTER PUBLICATION \"%s\" ADD TABLE %s", pub, name, pub, name, pub, name);
    else if (t->partial)
        say(d, TR_FINDING_WARN, "table_partial", name, "publication %s is tailrace's, and has a row filter or column list on %s: tailrace removes it and takes a new snapshot => to keep it, make a publication of your own", pub, name);
    const char *lacks = t->generated_identity ? "whose replica identity has a generated column that is not published" : "which has no replica identity";
    const char *full = t->generated_identity ? "REPLICA IDENTITY DEFAULT, with a primary key that has no generated column," : "REPLICA IDENTITY FULL";
    if (t->no_identity && t->published)
        say(d, TR_FINDING_ERROR, "table_identity", name, "publication %s holds %s, %s: UPDATE and DELETE of it fail at the source => ALTER TABLE %s %s"
            " or give it a primary key", pub, name, lacks, name, full);
    else if (t->no_identity)
        say(d, TR_FINDING_NOTE, "table_identity", name, "%s is not published, since UPDATE and DELETE of it would fail at the source => ALTER TABLE %s %s brings it into %s", name, name, full,
            t->generated_identity ? "mirrors" : "changelogs");
    if (!t->key_ok)
        say(d, TR_FINDING_WARN, "table_key", name, "%s: %s, so it can have no mirror => ALTER TABLE %s ADD PRIMARY KEY (...), or ALTER TABLE %s REPLICA IDENTITY USING INDEX ...", name, t->no_key, name, name);
    else
        say(d, TR_FINDING_OK, "table_key", name, "%s has a usable key%s", name, t->published || d->foreign ? "" : "; it will be added to the publication");
}

/* Named, without a wildcard, and yet nothing that can be captured. */
static int check_kinds(struct doctor *d)
{
    PGresult *r = NULL;
    int rc = query(d,
                   "SELECT n.nspname, c.relname, CASE WHEN c.relispartition THEN 'a partition of ' || (SELECT format('%I.%I', rn.nspname, rc.relname) FROM pg_class rc JOIN pg_namespace rn ON rn.oid = rc.relnamespace"
                   "   WHERE rc.oid = pg_partition_root(c.oid)) WHEN c.relkind = 'v' THEN 'a view' WHEN c.relkind = 'm' THEN 'a materialized view'"
                   "   ELSE 'a foreign table' END, c.relispartition FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                   " WHERE c.relkind IN ('v', 'm', 'f') OR (c.relkind IN ('r', 'p') AND c.relispartition)",
                   0, NULL, &r);
    for (int i = 0; rc >= 0 && i < PQntuples(r); i++) {
        char name[160];
        snprintf(name, sizeof name, "%s.%s", tr_pg_val(r, i, 0), tr_pg_val(r, i, 1));
        for (size_t k = 0; k < d->s->o->tables.n; k++)
            if (!strcmp(d->s->o->tables.v[k], name))
                say(d, TR_FINDING_WARN, "table_kind", name, "%s is %s, and is not captured by itself => name %s", name, tr_pg_val(r, i, 2),
                    tr_pg_bool(r, i, 3) ? "the table that it is a partition of: all its partitions come with it" : "the tables that its rows come from, if they are of this database and in its WAL");
    }
    PQclear(r);
    return rc < 0 ? rc : TR_OK;
}

static int check_tables(struct doctor *d)
{
    int rc = d->s->session.ops->tables(&d->s->session, d->deadline_ns, one_table, d, d->err);
    PGresult *r = NULL;
    if (rc >= 0)
        rc = query(d,
                   "SELECT n.nspname, c.relname, c.relpersistence = 'u', has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'),"
                   " pg_has_role(c.relowner, 'USAGE'), current_user, row_security_active(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                   " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence IN ('p', 'u')"
                   " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')",
                   0, NULL, &r);
    if (rc < 0)
        return rc;
    int selected = 0;
    for (int i = 0; i < PQntuples(r); i++) {
        const char *ns = tr_pg_val(r, i, 0), *t = tr_pg_val(r, i, 1), *user = tr_pg_val(r, i, 6);
        if (!tr_pg_selected(d->s->o, ns, t) || (!strcmp(ns, d->s->o->heartbeat_schema) && !strcmp(t, TR_PG_HEARTBEAT_TABLE)))
            continue;
        selected++;
        char name[160];
        snprintf(name, sizeof name, "%s.%s", ns, t);
        if (tr_pg_bool(r, i, 2))
            say(d, TR_FINDING_WARN, "unlogged", name, "%s is unlogged: PostgreSQL writes no WAL for it and nothing of it can be captured => ALTER TABLE %s SET LOGGED", name, name);
        if (!tr_pg_bool(r, i, 3) || !tr_pg_bool(r, i, 4))
            say(d, TR_FINDING_ERROR, "select_privilege", name, "user %s may not read %s, so no snapshot can be taken => GRANT USAGE ON SCHEMA \"%s\" TO \"%s\"; GRANT SELECT ON %s TO \"%s\"", user, name, ns, user, name, user);
        if (tr_pg_bool(r, i, 7))
            say(d, TR_FINDING_ERROR, "row_security", name, "row security hides rows of %s from user %s, so no snapshot can be taken => ALTER ROLE \"%s\" BYPASSRLS", name, user, user);
        if (!tr_pg_bool(r, i, 5) && d->s->o->create)
            say(d, TR_FINDING_NOTE, "table_owner", name, "user %s does not own %s and cannot put it into a publication => as its owner: ALTER PUBLICATION \"%s\" ADD TABLE %s", user, name, d->s->o->publication, name);
    }
    if (!selected)
        say(d, TR_FINDING_ERROR, "tables", "source.tables", "no table matches => check `tables` for spelling; patterns are schema.table with * as wildcard");
    PQclear(r);
    return TR_OK;
}

static void keep_error(void *arg, const struct tr_finding *f)
{
    struct tr_finding *first = arg;
    if (f->level == TR_FINDING_ERROR && !*first->code)
        *first = *f;
}

int tr_pg_explain(struct pg_session *s, int rc, struct tr_err *err)
{
    struct tr_finding f = {0};
    struct tr_err why;
    struct doctor d = {.s = s, .deadline_ns = tr_now_ns() + 15 * TR_NS_PER_S, .cb = keep_error, .arg = &f, .err = &why};
    if (!err || !err->sqlstate[0]) /* it was not the server that said no */
        return rc;
    bool privilege = !strcmp(err->sqlstate, "42501");
    if (check_server(&d) >= 0 && *f.code) {
        bool waiting_helps = strcmp(f.code, "wal_level") != 0 && strcmp(f.code, "replication_role") != 0;
        return tr_err_set(err, waiting_helps ? rc : TR_REJECT, TR_DOM_SOURCE, "source: %s; cure: %s", f.text, f.cure);
    }
    if (privilege)
        tr_err_set(err, rc, TR_DOM_SOURCE, "%.400s; tailrace check says what the user needs", err->msg);
    return rc;
}

int tr_pg_check(struct tr_cdc_session *cs, int64_t deadline_ns, void (*cb)(void *arg, const struct tr_finding *f), void *arg, struct tr_err *err)
{
    struct doctor d = {.s = tr_pg_session_of(cs), .deadline_ns = deadline_ns, .cb = cb, .arg = arg, .err = err};
    int rc = check_server(&d);
    if (rc >= 0)
        rc = check_heartbeat(&d);
    if (rc >= 0)
        rc = check_slot(&d);
    if (rc >= 0)
        rc = check_publication(&d);
    if (rc >= 0)
        rc = check_tables(&d);
    if (rc >= 0)
        rc = check_kinds(&d);
    return rc < 0 ? rc : TR_OK;
}
