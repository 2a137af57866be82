/*
 * What is done to one table at two ClickHouses, which are libmicrohttpd servers of this process: each knows a mirror and a build of it by their
 * snapshot_ids, answers the questions of ch_catalog.c, and dies or is slow when it is told to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <microhttpd.h>

#include <tailrace/clock.h>
#include <tailrace/connectors.h>

#include "ch_sink.h"
#include "check.h"
#include "ddl.h"

enum { NONE = -1 }; /* there is no such table */

static struct server {
    struct MHD_Daemon *daemon;
    char url[64];
    /* the test's while no request is under way */
    int mirror, build; /* their snapshot_ids */
    bool dead;
    const char *dies_at;   /* dead from the statement on that begins so, which is not carried out */
    const char *twice;     /* the next statement that begins so is carried out twice */
    uint32_t dropped;      /* the builds, or the mirrors before them */
    _Atomic(uint32_t) asked;
} servers[2];

static struct tr_schema *schema;
static struct tr_sink *sink;

/* ---- a server ---- */

static void put(struct tr_buf *b, const char *s)
{
    tr_buf_append_varint(b, strlen(s));
    tr_buf_append_str(b, s);
}

static void table(struct tr_buf *out, const char *kind, int id)
{
    static const char *const columns[][2] = {{"id", "Int32"}, {"_tr_version", "UInt64"}, {"_tr_deleted", "UInt8"}, {"_tr_deleted_at", "Nullable(" TR_CLICKHOUSE_TIME ")"}};
    char record[128];
    snprintf(record, sizeof record, "tailrace %s build %d version 1 of 8:public.t columns ", kind, id);
    for (size_t i = 0; i < TR_ARRAY_LEN(columns) && id != NONE; i++) {
        put(out, columns[i][0]);
        put(out, columns[i][1]);
        put(out, i == 1 ? record : "");
        put(out, "");
    }
}

static bool begins(const char *q, const char *with)
{
    return with && !strncmp(q, with, strlen(with));
}

static void exchange(struct server *s)
{
    int was = s->mirror;
    s->mirror = s->build;
    s->build = was;
}

static void carry_out(struct server *s, const char *q, struct tr_buf *out)
{
    if (strstr(q, "version()"))
        tr_buf_append_str(out, "26.7.1\tAtomic\n");
    else if (begins(q, "SELECT 1"))
        tr_buf_append_str(out, "1\n");
    else if (strstr(q, "default_kind"))
        table(out, strstr(q, "'t__tr_build'") ? "shadow" : "mirror", strstr(q, "'t__tr_build'") ? s->build : s->mirror);
    else if (strstr(q, "sorting_key")) {
        put(out, "id");
        put(out, "");
        put(out, "ReplacingMergeTree(_tr_version) ORDER BY id SETTINGS non_replicated_deduplication_window = 1000");
    } else if (begins(q, "EXCHANGE TABLES"))
        exchange(s);
    else if (begins(q, "RENAME TABLE")) {
        s->mirror = s->build;
        s->build = NONE;
    } else if (begins(q, "CREATE TABLE") && strstr(q, "t__tr_build"))
        s->build = 7;
    else if (begins(q, "DROP TABLE") && strstr(q, "t__tr_build")) {
        s->build = NONE;
        s->dropped++;
    } else if (begins(q, "ALTER TABLE") && strstr(q, "'tailrace mirror build 0 "))
        s->mirror = 0;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *path, const char *method, const char *version, const char *data, size_t *n, void **con)
{
    struct server *s = arg;
    struct tr_buf *body = *con, out = {0};
    (void)path;
    (void)method;
    (void)version;
    if (!body) {
        *con = calloc(1, sizeof *body);
        return *con ? MHD_YES : MHD_NO;
    }
    if (*n) {
        tr_buf_append(body, data, *n);
        *n = 0;
        return MHD_YES;
    }
    const char *q = tr_buf_cstr(body);
    s->asked++;
    s->dead |= begins(q, s->dies_at);
    if (!s->dead)
        carry_out(s, q, &out);
    if (!s->dead && begins(q, s->twice)) {
        s->twice = NULL;
        carry_out(s, q, &out);
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(out.n, out.p ? (void *)out.p : (void *)body, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result rc = MHD_queue_response(c, s->dead ? 503 : 200, r);
    MHD_destroy_response(r);
    tr_buf_done(&out);
    return rc;
}

static void completed(void *arg, struct MHD_Connection *c, void **con, enum MHD_RequestTerminationCode how)
{
    struct tr_buf *body = *con;
    (void)arg;
    (void)c;
    (void)how;
    if (body)
        tr_buf_done(body);
    free(body);
}

/* ---- a sink of two shards, or of two replicas ---- */

static void reopen(bool replicas)
{
    static const char *urls[2];
    static char both[2 * sizeof servers[0].url];
    static struct tr_ch_options options = {.database = "d", .user = "u"};
    const struct tr_component_env env = {.name = "x", .state_dir = "/tmp"};
    struct tr_err err;
    if (sink)
        sink->ops->close(sink);
    snprintf(both, sizeof both, "%s,%s", servers[0].url, servers[1].url);
    urls[0] = replicas ? both : servers[0].url;
    urls[1] = servers[1].url;
    options.urls = (struct tr_strv){urls, replicas ? 1 : 2};
    if (tr_clickhouse_sink_type.sink_new(&options, &env, &sink, &err) < 0)
        fail_msg("%s", err.msg);
}

static int start(void **state)
{
    static const struct tr_column c[] = {{.name = "id", .source_type = "integer", .type = TR_TYPE_INT32, .key_pos = 1, .precision = -1}};
    const struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = 1};
    struct tr_err err;
    (void)state;
    for (size_t i = 0; i < TR_ARRAY_LEN(servers); i++) {
        struct server *s = &servers[i];
        s->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, handle, s, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
        if (!s->daemon)
            return -1;
        snprintf(s->url, sizeof s->url, "http://127.0.0.1:%u", MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
    }
    return tr_schema_new(&d, &schema, &err);
}

static int stop(void **state)
{
    (void)state;
    sink->ops->close(sink);
    tr_schema_unref(schema);
    for (size_t i = 0; i < TR_ARRAY_LEN(servers); i++)
        MHD_stop_daemon(servers[i].daemon);
    return 0;
}

static void are(int mirror_a, int build_a, int mirror_b, int build_b)
{
    for (size_t i = 0; i < TR_ARRAY_LEN(servers); i++) {
        servers[i].mirror = i ? mirror_b : mirror_a;
        servers[i].build = i ? build_b : build_a;
        servers[i].dead = false;
        servers[i].dies_at = servers[i].twice = NULL;
        servers[i].dropped = 0;
    }
    reopen(false);
}

static int64_t soon(void)
{
    return tr_now_ns() + 10 * TR_NS_PER_S;
}

static void swaps(int rc, const char *says)
{
    struct tr_err err = {0};
    int got = sink->ops->swap(sink, schema, 7, soon(), &err);
    if (got != rc || (says && !strstr(err.msg, says)))
        fail_msg("%s: %s", tr_rc_name(got), err.msg);
}

static void probe(int rc)
{
    struct tr_err err;
    if (sink->ops->probe(sink, soon(), &err) != rc)
        fail_msg("%s", err.msg);
}

/* ---- tests ---- */

static void test_a_swap_waits_for_all_before_it_begins(void **state)
{
    (void)state;
    are(5, 7, 5, 7);
    servers[1].dead = true;
    swaps(TR_NOT_READY, "is swapped in at all servers at once");
    assert_int_equal(servers[0].mirror, 5);
    servers[1].dead = false;
    probe(TR_OK);
    swaps(TR_OK, NULL);
    assert_int_equal(servers[0].mirror, 7);
    assert_int_equal(servers[1].mirror, 7);
}

/* NOT_READY would say that nothing was done, and have the build gone on with, which is there no more at the first. */
static void test_a_swap_that_began_is_through_before_anything_else(void **state)
{
    (void)state;
    are(5, 7, 5, 7);
    servers[1].dies_at = "EXCHANGE";
    swaps(TR_RETRY, NULL);
    assert_int_equal(servers[0].mirror, 7);
    assert_int_equal(servers[1].mirror, 5);
    for (int i = 0; i < 3; i++)
        swaps(TR_RETRY, "others may have swapped it in already");
    servers[1].dies_at = NULL;
    servers[1].dead = false;
    probe(TR_OK);
    swaps(TR_OK, NULL);
    assert_int_equal(servers[1].mirror, 7);
    assert_int_equal(servers[0].mirror, 7);
}

/* The mirror of a table is lost at one server, so that it is built anew under the id which the other has still, and that one dies. */
static void test_no_build_begins_before_the_old_mirror_is_disowned_everywhere(void **state)
{
    struct tr_target *t;
    struct tr_err err = {0};
    uint64_t built = 1;
    (void)state;
    are(NONE, NONE, 7, NONE);
    assert_int_equal(sink->ops->built(sink, schema, soon(), &built, &err), TR_OK);
    assert_int_equal(built, 0);
    servers[1].dead = true;
    assert_int_equal(sink->ops->bind(sink, schema, TR_TARGET_SHADOW, 7, soon(), &t, &err), TR_RETRY);
    servers[1].dead = false;
    reopen(false); /* tailrace is started again */
    assert_int_equal(sink->ops->built(sink, schema, soon(), &built, &err), TR_OK);
    assert_int_equal(built, 0);
    assert_int_equal(servers[0].mirror, NONE);
}

/* The request that timed out is carried out after all, beside the one that was sent again: the build is where it was, and must not be dropped. */
static void test_an_exchange_that_comes_twice(void **state)
{
    (void)state;
    are(5, 7, 5, 7);
    servers[0].twice = "EXCHANGE";
    swaps(TR_RETRY, "is not the build that was swapped in");
    assert_int_equal(servers[0].dropped, 0);
    swaps(TR_OK, NULL);
    assert_int_equal(servers[0].mirror, 7);
    assert_int_equal(servers[1].mirror, 7);
}

/* A table that was bound while the first replica was away, before the second went: it is to be looked at where somebody answers. */
static void test_a_replica_that_is_away_is_waited_for_by_nobody(void **state)
{
    struct tr_target *t = NULL;
    struct tr_writer *w = NULL;
    struct tr_err err = {0};
    (void)state;
    are(7, NONE, 7, NONE);
    reopen(true);
    servers[0].dead = true;
    if (sink->ops->bind(sink, schema, TR_TARGET_MIRROR, 7, soon(), &t, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sink->ops->writer_new(sink, 0, &w, &err), TR_OK);
    const struct tr_part part = {.target = t};
    struct tr_sealed b = {.parts = &part, .n_parts = 1};
    assert_int_equal(w->ops->complete(w, &b, soon(), &err), TR_OK);
    servers[0].dead = false;
    servers[1].dead = true;
    probe(TR_RETRY);
    assert_int_equal(w->ops->complete(w, &b, soon(), &err), TR_STALE);
    assert_int_equal(sink->ops->bind(sink, schema, TR_TARGET_MIRROR, 7, soon(), &t, &err), TR_OK);
    assert_int_equal(w->ops->complete(w, &b, soon(), &err), TR_OK);
    uint32_t asked = servers[1].asked;
    assert_int_equal(w->ops->write(w, sink->endpoints[1], &b, soon(), &err), TR_RETRY);
    assert_non_null(strstr(err.msg, "is passed over until it does"));
    assert_int_equal(servers[1].asked, asked);
    servers[0].dead = true;
    probe(TR_RETRY);
    w->ops->write(w, sink->endpoints[1], &b, soon(), &err);
    assert_int_equal(servers[1].asked, asked + 2); /* by the probe and, now that nobody is there, by the writer */
    w->ops->free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_swap_waits_for_all_before_it_begins), cmocka_unit_test(test_a_swap_that_began_is_through_before_anything_else),
                                       cmocka_unit_test(test_no_build_begins_before_the_old_mirror_is_disowned_everywhere), cmocka_unit_test(test_an_exchange_that_comes_twice),
                                       cmocka_unit_test(test_a_replica_that_is_away_is_waited_for_by_nobody)};
    return cmocka_run_group_tests(tests, start, stop);
}
