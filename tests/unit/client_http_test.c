/* The HTTP session against a libmicrohttpd server of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <microhttpd.h>

#include <tailrace/clock.h>

#include "check.h"
#include "httpc.h"
#include "thread.h"

static struct MHD_Daemon *server;
static char url[64];
static _Atomic(int) connections;

struct body {
    struct tr_buf b;
};

/* /echo: the body. /slow: nothing for a second. Every answer says in X-Got what came in X-Tell. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *path, const char *method, const char *version, const char *data, size_t *n, void **con)
{
    struct body *b = *con;
    (void)arg;
    (void)method;
    (void)version;
    if (!b) {
        *con = calloc(1, sizeof(struct body));
        return *con ? MHD_YES : MHD_NO;
    }
    if (*n) {
        tr_buf_append(&b->b, data, *n);
        *n = 0;
        return MHD_YES;
    }
    if (!strcmp(path, "/slow"))
        tr_sleep_ns(TR_NS_PER_S);
    struct MHD_Response *r = MHD_create_response_from_buffer(b->b.n, b->b.p ? (void *)b->b.p : (void *)b, MHD_RESPMEM_MUST_COPY);
    const char *told = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Tell");
    MHD_add_response_header(r, "X-Got", told ? told : "-");
    enum MHD_Result rc = MHD_queue_response(c, !strcmp(path, "/teapot") ? 418 : 200, r);
    MHD_destroy_response(r);
    return rc;
}

static void completed(void *arg, struct MHD_Connection *c, void **con, enum MHD_RequestTerminationCode how)
{
    struct body *b = *con;
    (void)arg;
    (void)c;
    (void)how;
    if (b)
        tr_buf_done(&b->b);
    free(b);
}

static void connected(void *arg, struct MHD_Connection *c, void **ctx, enum MHD_ConnectionNotificationCode how)
{
    (void)arg;
    (void)c;
    (void)ctx;
    if (how == MHD_CONNECTION_NOTIFY_STARTED)
        connections++;
}

static int start(void **state)
{
    (void)state;
    server = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION, 0, NULL, NULL, handle, NULL, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
                              connected, NULL, MHD_OPTION_END);
    if (!server)
        return -1;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", MHD_get_daemon_info(server, MHD_DAEMON_INFO_BIND_PORT)->port);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    MHD_stop_daemon(server);
    return 0;
}

static struct tr_httpc *session(void)
{
    static const char *const headers[] = {"X-Tell: a secret"};
    struct tr_httpc_options o = {.what = "sink x", .headers = headers, .n_headers = 1, .idle_max_s = 2};
    struct tr_httpc *h = NULL;
    struct tr_err err;
    assert_int_equal(tr_httpc_new(&o, &h, &err), TR_OK);
    return h;
}

static int ask(struct tr_httpc *h, const char *path, const struct tr_slice *body, size_t n, size_t max, int64_t ms, long *status, struct tr_httpc_header *header, struct tr_buf *out, struct tr_err *err)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", url, path);
    struct tr_httpc_request q = {.url = full, .said = "http://said", .body = body, .n_body = n, .answer_max = max};
    return tr_httpc_request(h, &q, tr_now_ns() + ms * TR_NS_PER_MS, status, header, header ? 1 : 0, out, err);
}

static void test_body_of_slices(void **state)
{
    static char big[300000];
    struct tr_httpc *h = session();
    struct tr_httpc_header got = {.name = "x-got"};
    struct tr_buf out = {0};
    struct tr_err err;
    long status = 0;
    (void)state;
    memset(big, 'b', sizeof big);
    connections = 0;
    for (int i = 0; i < 3; i++) {
        const struct tr_slice body[] = {tr_slice_str("head\n"), {NULL, 0}, tr_slice_of(big, sizeof big), tr_slice_str("tail")};
        tr_buf_clear(&out);
        assert_int_equal(ask(h, "/echo", body, 4, 1 << 20, 10000, &status, &got, &out, &err), TR_OK);
        assert_int_equal(status, 200);
        assert_int_equal(out.n, 5 + sizeof big + 4);
        assert_memory_equal(out.p, "head\nbbb", 8);
        assert_memory_equal(out.p + out.n - 6, "bbtail", 6);
        assert_string_equal(got.value, "a secret");
    }
    assert_int_equal(connections, 1); /* kept */
    tr_buf_clear(&out);
    assert_int_equal(ask(h, "/teapot", NULL, 0, 100, 10000, &status, NULL, &out, &err), TR_OK);
    assert_int_equal(status, 418);
    tr_buf_done(&out);
    tr_httpc_free(h);
}

static void test_bounds(void **state)
{
    struct tr_httpc *h = session();
    struct tr_buf out = {0};
    struct tr_err err;
    long status;
    const struct tr_slice body = tr_slice_str("eleven byte");
    (void)state;
    assert_int_equal(ask(h, "/echo", &body, 1, 10, 10000, &status, NULL, &out, &err), TR_RETRY);
    assert_non_null(strstr(err.msg, "sink x: http://said: the answer is longer than 10 bytes"));
    int64_t before = tr_now_ns();
    assert_int_equal(ask(h, "/slow", &body, 1, 100, 100, &status, NULL, &out, &err), TR_RETRY);
    assert_int_equal(err.code, TR_HTTP_TIMED_OUT);
    assert_true(tr_now_ns() - before < 800 * TR_NS_PER_MS);
    tr_buf_clear(&out); /* what is left of the answer that came too late goes with its connection */
    assert_int_equal(ask(h, "/echo", &body, 1, 100, 10000, &status, NULL, &out, &err), TR_OK);
    assert_int_equal(out.n, 11);
    tr_buf_done(&out);
    tr_httpc_free(h);
}

static void interrupter(void *arg)
{
    tr_sleep_ns(100 * TR_NS_PER_MS);
    tr_httpc_interrupt(arg);
}

static void test_interrupt(void **state)
{
    struct tr_httpc *h = session();
    struct tr_buf out = {0};
    struct tr_err err;
    struct tr_thread *t = NULL;
    long status;
    (void)state;
    assert_int_equal(tr_thread_start(&t, "interrupter", interrupter, h, &err), TR_OK);
    int64_t before = tr_now_ns();
    assert_int_equal(ask(h, "/slow", NULL, 0, 100, 10000, &status, NULL, &out, &err), TR_RETRY);
    assert_true(tr_now_ns() - before < 800 * TR_NS_PER_MS);
    tr_thread_join(t);
    assert_int_equal(ask(h, "/echo", NULL, 0, 100, 10000, &status, NULL, &out, &err), TR_OK);
    tr_buf_done(&out);
    tr_httpc_free(h);
}

static void test_nobody_there(void **state)
{
    struct tr_httpc *h = session();
    struct tr_buf out = {0};
    struct tr_err err;
    long status;
    struct tr_httpc_request q = {.url = "http://127.0.0.1:1/", .said = "http://127.0.0.1:1/", .answer_max = 10};
    (void)state;
    assert_int_equal(tr_httpc_request(h, &q, tr_now_ns() + TR_NS_PER_S, &status, NULL, 0, &out, &err), TR_RETRY);
    assert_int_equal(err.blame, TR_BLAME_ENDPOINT);
    tr_httpc_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_body_of_slices), cmocka_unit_test(test_bounds), cmocka_unit_test(test_interrupt), cmocka_unit_test(test_nobody_there)};
    return cmocka_run_group_tests(tests, start, stop);
}
