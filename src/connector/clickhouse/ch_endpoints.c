/*
 * ch_endpoints.c: which servers there are, what each is, and what is done at every one of them.
 *
 * Each of `urls` is a shard; its replicas are separated by commas. A table is bound at every server that answers and at one of each shard at least; one
 * that was away has it once it is bound there, and is not written until then (ch_table.bound). A build is swapped in at every server or at none: what
 * a crash leaves half done is carried on by built and bind, which find the build beside a mirror that is older.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"

enum { TODAY = 2401 /* year and month of the release */ };

static int no_memory(const struct ch_sink *s, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory", s->sql.what);
}

static struct tr_endpoint *here(const struct ch_sink *s)
{
    return &s->endpoints[s->at];
}

/* ---- birth ---- */

static int add_url(struct ch_sink *s, struct tr_slice u, uint32_t shard, struct tr_err *err)
{
    while (u.n && u.p[0] == ' ')
        u = tr_slice_sub(u, 1, u.n);
    while (u.n && (u.p[u.n - 1] == ' ' || u.p[u.n - 1] == '/'))
        u.n--;
    char *url = tr_strndup(u);
    if (!url)
        return no_memory(s, err);
    struct tr_endpoint *ep = &s->endpoints[s->n_endpoints++];
    *ep = (struct tr_endpoint){.url = url, .shard = shard};
    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) || strlen(url) != u.n || strpbrk(url, "?#@ \r\n"))
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG,
                          "%s: each of urls is http:// or https://, host and port, without user and query (user, password and token are settings of their own); commas separate the replicas of a shard",
                          s->sql.what);
    s->per_shard[shard]++;
    return TR_OK;
}

static int add_shard(struct ch_sink *s, const char *urls, uint32_t shard, struct tr_err *err)
{
    int rc = TR_OK;
    for (const char *end; rc >= 0; urls = end + 1) {
        end = strchrnul(urls, ',');
        rc = s->n_endpoints < CH_ENDPOINTS_MAX ? add_url(s, tr_slice_of(urls, (size_t)(end - urls)), shard, err)
                                               : tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: urls names more than %d servers", s->sql.what, CH_ENDPOINTS_MAX);
        if (!*end)
            break;
    }
    return rc;
}

int tr_ch_endpoints(struct ch_sink *s, struct tr_err *err)
{
    const struct tr_strv *urls = &s->o->urls;
    struct tr_sink *sink = &s->sql.sink;
    if (!urls->n)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s: urls is empty; name at least one, like http://localhost:8123", s->sql.what);
    s->endpoints = tr_calloc(CH_ENDPOINTS_MAX, sizeof *s->endpoints);
    s->per_shard = tr_calloc(urls->n, sizeof *s->per_shard);
    s->acked = tr_calloc(urls->n, sizeof *s->acked);
    int rc = s->endpoints && s->per_shard && s->acked ? TR_OK : TR_NOMEM;
    for (size_t i = 0; i < urls->n && rc >= 0; i++)
        rc = add_shard(s, urls->v[i], (uint32_t)i, err);
    if (rc < 0)
        return rc == TR_REJECT ? rc : tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for %s", s->sql.what);
    for (size_t i = 0; i < urls->n; i++)
        sink->n_endpoints = TR_MAX(sink->n_endpoints, s->per_shard[i]);
    sink->shards = (uint32_t)urls->n;
    sink->shard_endpoints = s->per_shard;
    s->by_index = tr_calloc((size_t)sink->shards * sink->n_endpoints, sizeof(void *));
    if (!s->by_index)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory for %s", s->sql.what);
    for (uint32_t i = 0, k = 0; i < s->n_endpoints; i++) {
        k = i && s->endpoints[i].shard == s->endpoints[i - 1].shard ? k + 1 : 0;
        s->by_index[s->endpoints[i].shard * sink->n_endpoints + k] = &s->endpoints[i];
    }
    sink->endpoints = s->by_index;
    return TR_OK;
}

void tr_ch_endpoints_done(struct ch_sink *s)
{
    for (uint32_t i = 0; i < s->n_endpoints; i++)
        tr_free(s->endpoints[i].url);
    tr_free(s->endpoints);
    tr_free(s->by_index);
    tr_free(s->per_shard);
    tr_free(s->acked);
}

/* ---- what a server is ---- */

static bool say_name(const struct ch_sink *s, const char *before, const char *after, struct tr_buf *q)
{
    tr_buf_clear(q);
    return tr_buf_append_str(q, before) >= 0 && tr_ch_name(s->sql.meta_ns, "_tailrace_lease", q) >= 0 && tr_buf_append_str(q, after) >= 0 && tr_buf_cstr(q);
}

/* Which shard of how many this server was for this sink: rows of a key would be on two of them if that changed. */
static int shard_record(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    const struct tr_endpoint *ep = here(s);
    uint64_t is = (uint64_t)ep->shard << 32 | s->sql.sink.shards, was = is;
    char name[128];
    struct tr_buf q = {0}, a = {0};
    snprintf(name, sizeof name, "%s (shard)", s->sql.name);
    bool ok = say_name(s, "SELECT max(token) FROM ", " WHERE sink = ", &q) && tr_ch_literal(tr_slice_str(name), &q) >= 0 && tr_buf_append_str(&q, " FORMAT RowBinary") >= 0 && tr_buf_cstr(&q);
    int rc = ok ? tr_ch_say(s, tr_buf_cstr(&q), "", true, deadline_ns, &a, err) : no_memory(s, err);
    struct tr_cur c = tr_cur_of(tr_buf_slice(&a));
    if (rc >= 0)
        was = tr_cur_le64(&c);
    if (rc >= 0 && !tr_cur_done(&c))
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: %s: the answer to the question for the shard is none", s->sql.what, ep->url);
    if (rc >= 0 && !was) {
        ok = say_name(s, "INSERT INTO ", " (sink, token) VALUES (", &q) && tr_ch_literal(tr_slice_str(name), &q) >= 0 && tr_buf_printf(&q, ", %llu)", (unsigned long long)is) >= 0 && tr_buf_cstr(&q);
        tr_buf_clear(&a);
        rc = ok ? tr_ch_say(s, tr_buf_cstr(&q), s->sql.dialect & TR_CLICKHOUSE_TODAY ? "&async_insert=0" : "", false, deadline_ns, &a, err) : no_memory(s, err);
    } else if (rc >= 0 && was != is) {
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK,
                        "%s: %s was shard %llu of %llu of this sink, and would be %u of %u now, where other keys belong: set urls as they were, or begin with an empty database on every server (docs/operations.md, ClickHouse)",
                        s->sql.what, ep->url, (unsigned long long)(was >> 32) + 1, (unsigned long long)(was & UINT32_MAX), ep->shard + 1, s->sql.sink.shards);
    }
    tr_buf_done(&q);
    tr_buf_done(&a);
    return rc;
}

/* CREATE asks for its privilege even where IF NOT EXISTS has nothing to do. */
static int lease_table(struct ch_sink *s, bool has_database, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf q = {0}, none = {0};
    bool ok = tr_buf_append_str(&q, "CREATE DATABASE ") >= 0 && tr_ch_ident(tr_slice_str(s->sql.meta_ns), &q) >= 0 && tr_buf_cstr(&q);
    int rc = ok && has_database ? TR_OK : ok ? tr_ch_say(s, tr_buf_cstr(&q), "", false, deadline_ns, &none, err) : TR_NOMEM;
    tr_buf_clear(&none);
    ok = ok && say_name(s, "CREATE TABLE IF NOT EXISTS ", " (sink String, token UInt64) ENGINE = ReplacingMergeTree(token) ORDER BY sink", &q);
    if (ok && rc >= 0)
        rc = tr_ch_say(s, tr_buf_cstr(&q), "", false, deadline_ns, &none, err);
    tr_buf_done(&q);
    tr_buf_done(&none);
    return ok ? rc : no_memory(s, err);
}

static int agree(struct ch_sink *s, int dialect, struct tr_err *err)
{
    for (uint32_t i = 0; i < s->n_endpoints; i++)
        if (i != s->at && atomic_load(&s->endpoints[i].known) && (int)s->sql.dialect != dialect)
            return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: %s and %s are not alike (one is older than 24.1, or its database is an Ordinary one); all servers of a sink must be", s->sql.what,
                              here(s)->url, s->endpoints[i].url);
    if ((int)s->sql.dialect != dialect) /* a server that came back is asked again while writers read it */
        s->sql.dialect = (enum tr_dialect)dialect;
    return TR_OK;
}

/* Version, and the engine of the database: "" where it is not there yet, and then it will be an Atomic one. */
static int ask_server(struct ch_sink *s, int64_t deadline_ns, bool *ret_has_database, struct tr_err *err)
{
    struct tr_buf q = {0}, a = {0};
    bool ok = tr_buf_append_str(&q, "SELECT version(), (SELECT arrayStringConcat(groupArray(engine)) FROM system.databases WHERE name = ") >= 0 && tr_ch_literal(tr_slice_str(s->sql.meta_ns), &q) >= 0 &&
              tr_buf_append_str(&q, ") FORMAT TSV") >= 0 && tr_buf_cstr(&q);
    int rc = ok ? tr_ch_say(s, tr_buf_cstr(&q), "", true, deadline_ns, &a, err) : no_memory(s, err);
    const char *text = rc >= 0 ? tr_buf_cstr(&a) : "";
    char *end = NULL;
    unsigned long year = strtoul(text ? text : "", &end, 10), month = end && *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
    if (rc >= 0 && !year)
        rc = tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: what answers at %s is no ClickHouse", s->sql.what, here(s)->url);
    if (rc >= 0) {
        int d = TR_DIALECT_CLICKHOUSE;
        if (year * 100 + month >= TODAY)
            d |= TR_CLICKHOUSE_TODAY | (strstr(text, "\tOrdinary") ? 0 : TR_CLICKHOUSE_EXCHANGE);
        *ret_has_database = !strstr(text, "\t\n");
        rc = agree(s, d, err);
    }
    tr_buf_done(&q);
    tr_buf_done(&a);
    return rc;
}

int tr_ch_connect(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    if (atomic_load(&here(s)->known))
        return TR_OK;
    bool has_database = false;
    int rc = ask_server(s, deadline_ns, &has_database, err);
    if (rc >= 0 && s->sql.lease_token)
        rc = lease_table(s, has_database, deadline_ns, err);
    if (rc >= 0 && s->sql.lease_token)
        rc = shard_record(s, deadline_ns, err);
    atomic_store(&here(s)->known, rc >= 0);
    return rc == TR_STALE || rc == TR_REJECT ? TR_RETRY : rc;
}

/* ---- at every server ---- */

struct job {
    const struct tr_schema *schema;
    enum tr_target_variant variant;
    uint64_t snapshot_id;
    struct tr_target **ret;
    uint64_t ids[CH_ENDPOINTS_MAX], newest; /* builds: of the mirror at each (0: none, or it did not answer), and what all should be */
    char uuids[CH_ENDPOINTS_MAX][40]; /* per shard: of the table, where one was asked for it */
};

typedef int (*job_fn)(struct ch_sink *s, struct job *j, int64_t deadline_ns, struct tr_err *err);

static int where(const struct ch_sink *s, int rc, struct tr_err *err)
{
    if (!err || s->n_endpoints == 1 || strstr(err->msg, here(s)->url))
        return rc;
    size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, " (at %s)", here(s)->url);
    return rc;
}

/* Each of the servers that are left has its share of the time: one that is silent must not use up that of the others. */
static int64_t share(const struct ch_sink *s, int64_t deadline_ns)
{
    int64_t now = tr_now_ns();
    return deadline_ns <= now ? deadline_ns : now + (deadline_ns - now) / (s->n_endpoints - s->at);
}

/* OK: at every server that answers, and at least one of each shard. A server that was away the last time is left out while its shard has another. */
static int at_each(struct ch_sink *s, job_fn fn, struct job *j, int64_t deadline_ns, struct tr_err *err)
{
    uint64_t done = 0, there = 0;
    struct tr_err why = {0};
    for (uint32_t i = 0; i < s->n_endpoints; i++)
        there |= atomic_load(&s->endpoints[i].away) ? 0 : UINT64_C(1) << s->endpoints[i].shard;
    for (s->at = 0; s->at < s->n_endpoints; s->at++) {
        struct tr_endpoint *ep = here(s);
        struct tr_err e = {0};
        if (atomic_load(&ep->away) && (there >> ep->shard & 1))
            continue;
        int rc = tr_ch_connect(s, share(s, deadline_ns), &e);
        if (rc >= 0)
            rc = fn(s, j, share(s, deadline_ns), &e);
        atomic_store(&ep->away, rc == TR_RETRY);
        if (rc < 0 && rc != TR_RETRY) {
            where(s, rc, &e);
            s->at = 0;
            if (err)
                *err = e;
            return rc;
        }
        if (rc >= 0)
            done |= UINT64_C(1) << ep->shard;
        else
            why = e;
    }
    s->at = 0;
    if (done == UINT64_MAX >> (64 - s->sql.sink.shards))
        return TR_OK;
    if (err && why.rc)
        *err = why;
    return why.rc ? TR_RETRY : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: a shard has no server that answers", s->sql.what);
}

static int look(struct ch_sink *s, struct job *j, int64_t deadline_ns, struct tr_err *err)
{
    return tr_sqlsink_built(&s->sql.sink, j->schema, deadline_ns, &j->ids[s->at], err);
}

/* The build of this id here takes its place, if it is here. */
static int carry_on(struct ch_sink *s, const struct job *j, uint64_t id, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_err why;
    int rc = tr_sqlsink_swap(&s->sql.sink, j->schema, id, deadline_ns, &why);
    if (rc < 0 && rc != TR_REJECT && err)
        *err = why;
    return rc == TR_REJECT ? TR_OK : rc; /* it is not: whoever needs it says so */
}

/* uuid and engine of a table of ours at the server we are at, "" where there is no such table. */
static int ask_table(struct ch_sink *s, const char *name, int64_t deadline_ns, struct tr_buf *ret, struct tr_err *err)
{
    int rc = tr_ch_question(s, "SELECT concat(toString(uuid), ' ', engine) FROM system.tables", "database", s->sql.meta_ns, "name", name, "TSVRaw", deadline_ns, ret, err);
    return rc >= 0 && !tr_buf_cstr(ret) ? no_memory(s, err) : rc;
}

/* Replicas that are servers of their own, with a table each, would each have a part of the rows. Those that share it call it by one UUID. */
static int check_shared(struct ch_sink *s, struct job *j, const char *name, int64_t deadline_ns, struct tr_err *err)
{
    static const char none[] = "00000000-";
    struct tr_buf here_is = {0};
    struct tr_endpoint *ep = here(s);
    char *uuid = j->uuids[ep->shard];
    if (s->per_shard[ep->shard] == 1 || !(s->sql.dialect & TR_CLICKHOUSE_TODAY))
        return TR_OK;
    int rc = ask_table(s, name, deadline_ns, &here_is, err);
    const char *is = rc >= 0 ? tr_buf_cstr(&here_is) : "", *engine = strchr(is, ' ');
    if (engine && strncmp(is, none, sizeof none - 1) != 0 && strncmp(engine, " Replicated", 11) != 0) {
        if (*uuid && strncmp(uuid, is, 36) != 0)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_SINK,
                            "%s: table %s at %s is not the one that another replica of shard %u has: name replicas only where they share their tables, and make other servers shards of their own (an item of urls each)",
                            s->sql.what, name, ep->url, ep->shard + 1);
        else
            snprintf(uuid, sizeof j->uuids[0], "%.36s", is);
    }
    tr_buf_done(&here_is);
    return rc;
}

/* A build that is made again has the id of the mirror it will replace, where that one is still there: it must not be taken for one of which some
 * servers have been swapped. So that mirror is of no build from now on, at every server before the build begins at any. */
static int disown_mirror(struct ch_sink *s, struct job *j, int64_t deadline_ns, struct tr_err *err)
{
    char name[TR_SQL_NAME_MAX + 1];
    struct tr_table_desc d = {0};
    struct tr_plan plan = {0};
    tr_sqlsink_place(&s->sql, j->schema, TR_TARGET_MIRROR, name);
    int rc = s->catalog.ops->describe(&s->catalog, s->sql.ns, name, deadline_ns, &d, err);
    if (rc >= 0 && d.ours && d.note.snapshot_id == j->snapshot_id) {
        struct tr_table_note note = d.note;
        note.snapshot_id = 0;
        rc = tr_plan_note(&plan, s->sql.ns, name, &note, d.positions) < 0 ? no_memory(s, err) : s->catalog.ops->execute(&s->catalog, &plan, deadline_ns, err);
    }
    tr_plan_done(&plan);
    tr_table_desc_done(&d);
    return rc;
}

static int bind_here(struct ch_sink *s, struct job *j, int64_t deadline_ns, struct tr_err *err)
{
    char name[TR_SQL_NAME_MAX + 1];
    int rc = TR_OK;
    if (j->variant == TR_TARGET_APPEND) {
        rc = tr_ch_append_bind(s, j->schema, deadline_ns, j->ret, err);
        if (rc >= 0)
            atomic_fetch_or(&tr_ch_table_of(*j->ret)->bound, UINT64_C(1) << s->at);
        return rc;
    }
    if (j->newest && j->ids[s->at] != j->newest)
        rc = carry_on(s, j, j->newest, deadline_ns, err);
    tr_sqlsink_place(&s->sql, j->schema, j->variant, name);
    if (rc >= 0)
        rc = tr_sqlsink_bind(&s->sql.sink, j->schema, j->variant, j->snapshot_id, deadline_ns, j->ret, err);
    if (rc >= 0)
        rc = check_shared(s, j, name, deadline_ns, err);
    if (rc < 0)
        return rc;
    struct tr_sqltarget *t = tr_container_of(*j->ret, struct tr_sqltarget, target);
    struct ch_table *table = t->own;
    if (!table) {
        rc = tr_ch_table_new(s, t, t->m.kind, &table, err);
        t->own = table;
    }
    if (rc >= 0)
        atomic_fetch_or(&table->bound, UINT64_C(1) << s->at);
    return rc;
}

int tr_ch_bind(struct ch_sink *s, const struct tr_schema *schema, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err)
{
    struct job j = {.schema = schema, .variant = v, .snapshot_id = snapshot_id, .ret = ret};
    job_fn first = s->n_endpoints == 1 ? NULL : v == TR_TARGET_MIRROR ? look : v == TR_TARGET_SHADOW ? disown_mirror : NULL;
    int rc = first ? at_each(s, first, &j, deadline_ns, err) : TR_OK;
    for (uint32_t i = 0; i < s->n_endpoints; i++)
        j.newest = TR_MAX(j.newest, j.ids[i]);
    return rc >= 0 ? at_each(s, bind_here, &j, deadline_ns, err) : rc;
}

static int check_here(struct ch_sink *s, struct job *j, int64_t deadline_ns, struct tr_err *err)
{
    return tr_sqlsink_check(&s->sql.sink, j->schema, j->variant, deadline_ns, err);
}

int tr_ch_check(struct ch_sink *s, const struct tr_schema *schema, enum tr_target_variant v, int64_t deadline_ns, struct tr_err *err)
{
    struct job j = {.schema = schema, .variant = v};
    return at_each(s, check_here, &j, deadline_ns, err);
}

int tr_ch_built(struct ch_sink *s, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret, struct tr_err *err)
{
    struct job j = {.schema = schema};
    uint64_t agree = UINT64_MAX;
    int rc = at_each(s, look, &j, deadline_ns, err);
    for (uint32_t i = 0; i < s->n_endpoints; i++)
        j.newest = TR_MAX(j.newest, j.ids[i]);
    for (s->at = 0; s->at < s->n_endpoints && rc >= 0; s->at++) {
        if (atomic_load(&here(s)->away))
            continue;
        if (j.ids[s->at] != j.newest && (rc = carry_on(s, &j, j.newest, deadline_ns, err)) >= 0)
            rc = look(s, &j, deadline_ns, err);
        agree &= j.ids[s->at] == j.newest ? UINT64_MAX : 0;
    }
    s->at = 0;
    *ret = j.newest & agree;
    return rc;
}

static int answers(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    struct tr_buf a = {0};
    int rc = tr_ch_say(s, "SELECT 1", "", true, deadline_ns, &a, err);
    tr_buf_done(&a);
    return rc == TR_REJECT || rc == TR_STALE ? TR_RETRY : rc;
}

int tr_ch_probe(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err)
{
    int worst = TR_OK;
    for (s->at = 0; s->at < s->n_endpoints; s->at++) {
        struct tr_err e = {0};
        int rc = tr_ch_connect(s, share(s, deadline_ns), &e);
        if (rc >= 0)
            rc = answers(s, share(s, deadline_ns), &e);
        atomic_store(&here(s)->away, rc < 0);
        if (rc < 0 && worst >= 0) {
            worst = where(s, rc, &e);
            if (err)
                *err = e;
        }
    }
    s->at = 0;
    return worst;
}

/* Once begun it is through at every server before anything else is written: where it is through, the build is the mirror, and a build that went on there
 * would be another one, begun empty. */
int tr_ch_swap(struct ch_sink *s, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err)
{
    int rc = TR_OK;
    bool begun = s->swapping == snapshot_id;
    for (s->at = 0; s->at < s->n_endpoints && s->n_endpoints > 1; s->at++) {
        struct tr_err why = {0};
        struct tr_endpoint *ep = here(s);
        bool away = atomic_load(&ep->away);
        rc = away ? TR_RETRY : answers(s, share(s, deadline_ns), &why);
        atomic_store(&ep->away, rc < 0);
        if (rc < 0)
            return tr_err_set(err, begun ? TR_RETRY : TR_NOT_READY, TR_DOM_SINK, "%s: the new build of table %s.%s waits for %s, which does not answer, and %s%s%s", s->sql.what, schema->ns, schema->name, ep->url,
                              begun ? "others may have swapped it in already, so the sink waits, too" : "is swapped in at all servers at once", *why.msg ? ": " : "", why.msg);
    }
    s->swapping = snapshot_id;
    for (s->at = 0; s->at < s->n_endpoints && rc >= 0; s->at++) {
        rc = tr_ch_connect(s, share(s, deadline_ns), err);
        if (rc >= 0)
            rc = tr_sqlsink_swap(&s->sql.sink, schema, snapshot_id, share(s, deadline_ns), err);
        if (rc < 0)
            where(s, rc, err);
    }
    if (rc >= 0 || rc == TR_REJECT)
        s->swapping = 0;
    s->at = 0;
    return rc;
}
