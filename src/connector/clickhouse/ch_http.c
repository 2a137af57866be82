/*
 * ch_http.c: one query over HTTP, and what its answer means.
 *
 * An answer is a success when its status is 200, it has no X-ClickHouse-Exception-Code, and no exception stands in its body: what has no data to
 * answer with must be empty; data end before the frame of an exception, which names the answer's X-ClickHouse-Exception-Tag (wait_end_of_query has
 * the server answer when it is through, so that there should be none). Codes: ErrorCodes.cpp of ClickHouse.
 */
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "ch_sink.h"
#include "check.h"
#include "ddl_clickhouse.h"

enum { IDLE_MAX_S = 2 /* the server closes after 3 */ };

int tr_ch_session(const struct ch_sink *s, struct tr_httpc **ret, struct tr_err *err)
{
    const char *headers[TR_ARRAY_LEN(s->headers)];
    struct tr_httpc_options o = {.what = s->sql.what, .ca_file = s->o->ca_file, .headers = headers, .idle_max_s = IDLE_MAX_S};
    for (size_t i = 0; i < TR_ARRAY_LEN(s->headers); i++)
        if (s->headers[i])
            headers[o.n_headers++] = s->headers[i];
    return tr_httpc_new(&o, ret, err);
}

static bool holds(struct tr_slice s, const char *what)
{
    return s.n && memmem(s.p, s.n, what, strlen(what));
}

/* "Code: 47" at the beginning of an exception's text. */
static long code_in(struct tr_slice body)
{
    static const char word[] = "Code: ";
    const uint8_t *p = body.n ? memmem(body.p, body.n, word, sizeof word - 1) : NULL;
    long code = 0;
    for (p = p ? p + sizeof word - 1 : NULL; p && p < body.p + body.n && *p >= '0' && *p <= '9' && code < 100000; p++)
        code = code * 10 + (*p - '0');
    return code;
}

static bool one_of(long code, const short *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (v[i] == code)
            return true;
    return false;
}

/* The text of an exception without what follows it; never a value: the server may quote what it could not read, so that one is cut at its colon. */
static void say(char to[400], struct tr_slice body)
{
    static const char *const ends[] = {"(version ", ", e.what()", "Stack trace", "\n", ": While executing", ": while "};
    size_t n = TR_MIN(body.n, 399);
    for (size_t i = 0; i < TR_ARRAY_LEN(ends); i++) {
        const uint8_t *p = n ? memmem(body.p, n, ends[i], strlen(ends[i])) : NULL;
        if (p)
            n = (size_t)(p - body.p);
    }
    snprintf(to, 400, "%.*s", (int)n, n ? (const char *)body.p : "");
}

int tr_ch_url_escape(struct tr_slice text, struct tr_buf *out)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    int rc = TR_OK;
    for (size_t i = 0; i < text.n && rc >= 0; i++)
        rc = text.p[i] && strchr(plain, text.p[i]) ? tr_buf_append_u8(out, text.p[i]) : tr_buf_printf(out, "%%%02X", text.p[i]);
    return rc < 0 ? rc : TR_OK;
}

/* What an operator can do about a connection that could not be had; libcurl's words are told before it. */
static const char *cure(const struct tr_err *err)
{
    enum { SSL_CONNECT = 35, PEER_FAILED = 60, CA_FILE = 77 };
    if (err->code == CA_FILE)
        return "; ca_file cannot be read, or is no PEM file of certificates";
    if (err->code == SSL_CONNECT)
        return "; https in urls needs the server's TLS port (https_port)";
    if (err->code != PEER_FAILED)
        return "";
    if (strstr(err->msg, "expired"))
        return "; the server's certificate must be renewed";
    if (strstr(err->msg, "not yet valid"))
        return "; look at the clocks";
    if (strstr(err->msg, "subject name"))
        return "; name the server in urls as its certificate does, or have it made for this name";
    return "; set ca_file to the PEM file of the authority that signed the server's certificate";
}

/* The frame that an exception gets which arose when data were under way already. */
static bool framed(const char *tag, struct tr_slice body)
{
    char frame[TR_HTTPC_VALUE_CHARS + 32];
    snprintf(frame, sizeof frame, "__exception__\r\n%s", tag);
    return *tag && holds(body, frame);
}

int tr_ch_judge(const char *what, const struct ch_answer *a, struct tr_err *err)
{
    /* the server's, for a while, or one of a query's limits: the same bytes, later or elsewhere */
    static const short again[] = {159, 164, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 244, 252, 254, 279, 285, 286, 290, 297, 305, 319, 364, 394, 425, 439, 745, 999, 1000};
    /* who may do what: until somebody grants it */
    static const short login[] = {192, 193, 194, 195, 291, 492, 497, 516};
    static const short schema[] = {16, 33, 60, 81, 117, 131};
    struct tr_slice body = a->body;
    if (a->status == 200 && !a->code && (a->data ? !framed(a->tag, body) : !body.n))
        return TR_OK;
    long code = a->code ? a->code : code_in(body);
    char said[400];
    say(said, body);
    int rc = TR_REJECT;
    uint8_t blame = TR_BLAME_BATCH;
    if (code == 252 && holds(body, "partitions for single INSERT")) {
        rc = TR_REJECT;
    } else if (one_of(code, schema, TR_ARRAY_LEN(schema))) {
        rc = TR_STALE;
        blame = TR_BLAME_TARGET;
    } else if (!code || one_of(code, again, TR_ARRAY_LEN(again)) || one_of(code, login, TR_ARRAY_LEN(login))) {
        rc = TR_RETRY; /* without a code it was somebody between us and the server who answered */
        blame = TR_BLAME_ENDPOINT;
    }
    if (*said)
        tr_err_set(err, rc, TR_DOM_HTTP, "%s: %s%s", what, said, one_of(code, login, TR_ARRAY_LEN(login)) ? " (look at user, password, token and grants)" : "");
    else
        tr_err_set(err, rc, TR_DOM_HTTP, "%s: HTTP status %ld, exception %ld", what, a->status, code);
    if (err) {
        err->code = code;
        err->blame = blame;
    }
    return rc;
}

int tr_ch_ask(const struct ch_sink *s, struct tr_httpc *h, const struct tr_endpoint *ep, const struct ch_query *q, int64_t deadline_ns, struct tr_buf *out, struct tr_err *err)
{
    struct tr_buf url = {0};
    struct tr_httpc_header headers[] = {{.name = "X-ClickHouse-Exception-Code"}, {.name = "X-ClickHouse-Exception-Tag"}};
    size_t from = out->n;
    long status = 0;
    int rc = tr_buf_printf(&url, "%s/?wait_end_of_query=1%s", ep->url, q->params);
    struct tr_httpc_request r = {.url = rc >= 0 ? tr_buf_cstr(&url) : NULL,
                                 .said = ep->url,
                                 .body = q->body,
                                 .n_body = q->n_body,
                                 .content_type = q->content_type,
                                 .content_encoding = q->content_encoding,
                                 .answer_max = q->answer_max};
    rc = r.url ? tr_httpc_request(h, &r, deadline_ns, &status, headers, TR_ARRAY_LEN(headers), out, err) : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory for a query", s->sql.what);
    tr_buf_done(&url);
    if (rc < 0) {
        const char *do_this = err && err->domain == TR_DOM_CURL ? cure(err) : "";
        size_t n = err ? strlen(err->msg) : 0;
        if (*do_this)
            snprintf(err->msg + n, sizeof err->msg - n, "%s", do_this);
        return rc;
    }
    char what[256];
    snprintf(what, sizeof what, "%s: %.120s", s->sql.what, ep->url);
    struct ch_answer a = {.status = status, .code = strtol(headers[0].value, NULL, 10), .tag = headers[1].value, .data = q->data, .body = tr_slice_sub(tr_buf_slice(out), from, out->n)};
    return tr_ch_judge(what, &a, err);
}

int tr_ch_say(struct ch_sink *s, const char *sql, const char *params, bool data, int64_t deadline_ns, struct tr_buf *out, struct tr_err *err)
{
    struct tr_slice body = tr_slice_str(sql);
    struct ch_query q = {.params = params, .body = &body, .n_body = 1, .content_type = "text/plain", .data = data, .answer_max = 64 << 20};
    int rc = s->http ? TR_OK : tr_ch_session(s, &s->http, err);
    return rc >= 0 ? tr_ch_ask(s, s->http, &s->endpoints[s->at], &q, deadline_ns, out, err) : rc;
}

int tr_ch_question(struct ch_sink *s, const char *select, const char *ns_is, const char *ns, const char *name_is, const char *name, const char *format, int64_t deadline_ns, struct tr_buf *out,
                   struct tr_err *err)
{
    struct tr_buf q = {0};
    bool ok = tr_buf_printf(&q, "%s WHERE %s = ", select, ns_is) >= 0 && tr_ch_literal(tr_slice_str(ns), &q) >= 0;
    if (ok && name_is)
        ok = tr_buf_printf(&q, " AND %s = ", name_is) >= 0 && tr_ch_literal(tr_slice_str(name), &q) >= 0;
    ok = ok && tr_buf_printf(&q, " FORMAT %s", format) >= 0 && tr_buf_cstr(&q);
    int rc = ok ? tr_ch_say(s, tr_buf_cstr(&q), "", true, deadline_ns, out, err) : tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to ask for table %s", s->sql.what, name ? name : ns);
    tr_buf_done(&q);
    return rc;
}
