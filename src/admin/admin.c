#include <tailrace/admin.h>

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <tailrace/metric.h>

#include "alloc.h"
#include "text.h"

enum { BODY_MAX = 4096, FIELD_MAX = 200 };

struct tr_admin {
    struct MHD_Daemon *daemon;
    struct tr_metrics *metrics;
    struct tr_admin_ops ops;
};

/* A POST while it comes in. */
struct call {
    struct MHD_PostProcessor *pp;
    size_t seen;
    char kind[FIELD_MAX], scope[FIELD_MAX], table[FIELD_MAX];
};

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type, struct tr_buf *body)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(body->n, body->n ? body->p : (void *)body, MHD_RESPMEM_MUST_COPY);
    tr_buf_done(body);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    enum MHD_Result rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result answer_text(struct MHD_Connection *c, unsigned status, const char *text)
{
    struct tr_buf b = {0};
    tr_buf_printf(&b, "%s\n", text);
    return answer(c, status, "text/plain; charset=utf-8", &b);
}

static enum MHD_Result get(struct tr_admin *a, struct MHD_Connection *c, const char *url)
{
    struct tr_buf b = {0};
    char reason[2000] = "";
    if (!strcmp(url, "/metrics")) {
        if (tr_metrics_render_prometheus(a->metrics, &b) < 0) {
            tr_buf_done(&b);
            return answer_text(c, 500, "no memory");
        }
        return answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    }
    if (!strcmp(url, "/status")) {
        if (a->ops.status(a->ops.arg, &b) < 0) {
            tr_buf_done(&b);
            return answer_text(c, 500, "no memory");
        }
        return answer(c, 200, "application/json", &b);
    }
    if (!strcmp(url, "/healthz"))
        return answer_text(c, a->ops.live(a->ops.arg, reason, sizeof reason) ? 200 : 503, reason);
    if (!strcmp(url, "/readyz"))
        return answer_text(c, a->ops.ready(a->ops.arg, reason, sizeof reason) ? 200 : 503, reason);
    return answer_text(c, 404, "there are /metrics, /healthz, /readyz, /status, and POST /request");
}

static enum MHD_Result field(void *arg, enum MHD_ValueKind kind, const char *key, const char *filename, const char *type, const char *encoding, const char *data, uint64_t off,
                             size_t size)
{
    (void)kind;
    (void)filename;
    (void)type;
    (void)encoding;
    struct call *p = arg;
    char *to = !strcmp(key, "kind") ? p->kind : !strcmp(key, "scope") ? p->scope : !strcmp(key, "table") ? p->table : NULL;
    if (!to || off + size >= FIELD_MAX)
        return MHD_NO;
    memcpy(to + off, data, size);
    to[off + size] = 0;
    return MHD_YES;
}

static enum MHD_Result post(struct tr_admin *a, struct MHD_Connection *c, const char *url, const char *data, size_t *size, void **state)
{
    struct call *p = *state;
    if (!p) {
        p = tr_calloc(1, sizeof *p);
        if (!p)
            return MHD_NO;
        p->pp = MHD_create_post_processor(c, 1024, field, p);
        *state = p;
        return MHD_YES;
    }
    if (*size) {
        p->seen += *size;
        if (p->pp && p->seen <= BODY_MAX)
            MHD_post_process(p->pp, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/request") != 0)
        return answer_text(c, 404, "only /request takes a POST");
    if (!p->pp || p->seen > BODY_MAX || !*p->kind)
        return answer_text(c, 400, "send the form fields kind (resume, resnapshot), scope (a sink, or empty) and table");
    struct tr_err err;
    int rc = a->ops.request(a->ops.arg, "admin endpoint", p->kind, p->scope, p->table, &err);
    if (rc < 0)
        return answer_text(c, rc == TR_RETRY ? 503 : 409, err.msg);
    return answer_text(c, 200, "done");
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *data, size_t *size, void **state)
{
    (void)version;
    struct tr_admin *a = arg;
    if (!strcmp(method, "POST"))
        return post(a, c, url, data, size, state);
    if (!strcmp(method, "GET") || !strcmp(method, "HEAD"))
        return get(a, c, url);
    return answer_text(c, 405, "GET or POST");
}

static void completed(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code)
{
    (void)arg;
    (void)c;
    (void)code;
    struct call *p = *state;
    if (!p)
        return;
    if (p->pp)
        MHD_destroy_post_processor(p->pp);
    tr_free(p);
    *state = NULL;
}

static int parse(const char *listen, struct sockaddr_storage *sa, bool *ret_v6, struct tr_err *err)
{
    char host[80];
    const char *colon = strrchr(listen, ':');
    uint64_t port = 0;
    memset(sa, 0, sizeof *sa);
    size_t n = colon ? (size_t)(colon - listen) : 0;
    if (!colon || n == 0 || n >= sizeof host || tr_parse_u64(tr_slice_str(colon + 1), &port, NULL) < 0 || port > 65535)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "admin.listen must be address:port, as in 127.0.0.1:7171, not '%s'", listen);
    snprintf(host, sizeof host, "%.*s", (int)n, listen);
    struct sockaddr_in *v4 = (struct sockaddr_in *)sa;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)sa;
    *ret_v6 = host[0] == '[' && host[n - 1] == ']';
    if (*ret_v6) {
        host[n - 1] = 0;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1)
            return TR_OK;
    } else {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, !strcmp(host, "localhost") ? "127.0.0.1" : host, &v4->sin_addr) == 1)
            return TR_OK;
    }
    return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "admin.listen needs a numeric address, not '%s'", host);
}

int tr_admin_start(const char *listen, struct tr_metrics *metrics, const struct tr_admin_ops *ops, struct tr_admin **ret, struct tr_err *err)
{
    struct sockaddr_storage sa;
    bool v6 = false;
    int rc = parse(listen, &sa, &v6, err);
    if (rc < 0)
        return rc;
    struct tr_admin *a = tr_calloc(1, sizeof *a);
    if (!a)
        return tr_err_set(err, TR_NOMEM, TR_DOM_HTTP, "no memory for the admin endpoint");
    a->metrics = metrics;
    a->ops = *ops;
    a->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | (v6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL, handle, a, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&sa,
                                 MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_CONNECTION_LIMIT, 64u, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
    if (!a->daemon) {
        tr_free(a);
        return tr_err_set(err, TR_RETRY, TR_DOM_HTTP, "the admin endpoint cannot listen on %s: is the port taken? Set admin.listen, or admin.listen: off", listen);
    }
    *ret = a;
    return TR_OK;
}

int tr_admin_port(const struct tr_admin *a)
{
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(a->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return i ? i->port : 0;
}

struct tr_admin *tr_admin_free(struct tr_admin *a)
{
    if (!a)
        return NULL;
    MHD_stop_daemon(a->daemon);
    tr_free(a);
    return NULL;
}
