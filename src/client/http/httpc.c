#include "httpc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"

struct tr_httpc {
    CURL *easy;
    CURLM *multi;                  /* for its wake-up */
    struct curl_slist *headers;
    char *what;
    _Atomic(bool) interrupted;
    /* of the request under way */
    const struct tr_httpc_request *q;
    size_t slice, off;             /* next byte of the body */
    struct tr_httpc_header *want;
    uint32_t n_want;
    struct tr_buf *out;
    size_t taken;
    bool too_long, no_memory;
    char text[CURL_ERROR_SIZE];
};

static size_t give(char *to, size_t size, size_t n, void *arg)
{
    struct tr_httpc *h = arg;
    size_t cap = size * n, at = 0;
    while (at < cap && h->slice < h->q->n_body) {
        struct tr_slice s = h->q->body[h->slice];
        size_t k = TR_MIN(s.n - h->off, cap - at);
        if (k)
            memcpy(to + at, s.p + h->off, k);
        at += k;
        h->off += k;
        if (h->off == s.n) {
            h->slice++;
            h->off = 0;
        }
    }
    return at;
}

/* libcurl sends the body again from its beginning when a kept connection turns out to be closed. */
static int rewind_body(void *arg, curl_off_t offset, int origin)
{
    struct tr_httpc *h = arg;
    if (offset || origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    h->slice = h->off = 0;
    return CURL_SEEKFUNC_OK;
}

static size_t take(char *p, size_t size, size_t n, void *arg)
{
    struct tr_httpc *h = arg;
    (void)size; /* always 1 */
    h->too_long = h->taken + n > h->q->answer_max;
    h->no_memory = !h->too_long && tr_buf_append(h->out, p, n) < 0;
    h->taken += n;
    return h->too_long || h->no_memory ? 0 : n;
}

static size_t header(char *p, size_t size, size_t n, void *arg)
{
    struct tr_httpc *h = arg;
    (void)size;
    for (uint32_t i = 0; i < h->n_want; i++) {
        size_t k = strlen(h->want[i].name);
        if (n <= k || p[k] != ':' || strncasecmp(p, h->want[i].name, k) != 0)
            continue;
        size_t from = k + 1, to = n;
        while (from < to && (p[from] == ' ' || p[from] == '\t'))
            from++;
        while (to > from && (p[to - 1] == '\n' || p[to - 1] == '\r' || p[to - 1] == ' '))
            to--;
        snprintf(h->want[i].value, sizeof h->want[i].value, "%.*s", (int)TR_MIN(to - from, sizeof h->want[i].value - 1), p + from);
    }
    return n;
}

static int no_memory(const char *what, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_HTTP, "%s: no memory for a request", what);
}

static bool add_header(struct curl_slist **l, const char *text)
{
    struct curl_slist *n = curl_slist_append(*l, text);
    if (n)
        *l = n;
    return n;
}

int tr_httpc_new(const struct tr_httpc_options *o, struct tr_httpc **ret, struct tr_err *err)
{
    struct tr_httpc *h = tr_calloc(1, sizeof *h);
    if (!h)
        return no_memory(o->what, err);
    h->what = tr_strdup(o->what);
    h->easy = curl_easy_init();
    h->multi = curl_multi_init();
    bool ok = h->what && h->easy && h->multi && add_header(&h->headers, "Expect:");
    for (uint32_t i = 0; i < o->n_headers && ok; i++)
        ok = add_header(&h->headers, o->headers[i]);
    if (!ok) {
        tr_httpc_free(h);
        return no_memory(o->what, err);
    }
    curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h->easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(h->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h->easy, CURLOPT_MAXAGE_CONN, (long)o->idle_max_s);
    curl_easy_setopt(h->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(h->easy, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(h->easy, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, header);
    curl_easy_setopt(h->easy, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(h->easy, CURLOPT_READFUNCTION, give);
    curl_easy_setopt(h->easy, CURLOPT_READDATA, h);
    curl_easy_setopt(h->easy, CURLOPT_SEEKFUNCTION, rewind_body);
    curl_easy_setopt(h->easy, CURLOPT_SEEKDATA, h);
    curl_easy_setopt(h->easy, CURLOPT_ERRORBUFFER, h->text);
    if (o->ca_file && curl_easy_setopt(h->easy, CURLOPT_CAINFO, o->ca_file) != CURLE_OK) {
        tr_httpc_free(h);
        return tr_err_set(err, TR_FATAL, TR_DOM_CURL, "%s: this libcurl takes no CA file", o->what);
    }
    *ret = h;
    return TR_OK;
}

struct tr_httpc *tr_httpc_free(struct tr_httpc *h)
{
    if (!h)
        return NULL;
    curl_easy_cleanup(h->easy);
    curl_multi_cleanup(h->multi);
    curl_slist_free_all(h->headers);
    tr_free(h->what);
    tr_free(h);
    return NULL;
}

static int failed(struct tr_httpc *h, CURLcode rc, struct tr_err *err)
{
    char text[CURL_ERROR_SIZE + 64];
    if (h->no_memory || rc == CURLE_OUT_OF_MEMORY)
        return no_memory(h->what, err);
    if (h->too_long)
        snprintf(text, sizeof text, "the answer is longer than %zu bytes", h->q->answer_max);
    else
        snprintf(text, sizeof text, "%s", *h->text ? h->text : curl_easy_strerror(rc));
    tr_err_set(err, TR_RETRY, TR_DOM_CURL, "%s: %s: %s", h->what, h->q->said, text);
    if (err) {
        err->code = rc;
        err->blame = TR_BLAME_ENDPOINT;
    }
    return TR_RETRY;
}

static int over(struct tr_httpc *h, bool interrupted, struct tr_err *err)
{
    tr_err_set(err, TR_RETRY, TR_DOM_CURL, "%s: %s: %s", h->what, h->q->said, interrupted ? "the request was broken off" : "no answer before the deadline");
    if (err) {
        err->code = TR_HTTP_TIMED_OUT;
        err->blame = TR_BLAME_ENDPOINT;
    }
    return TR_RETRY;
}

/* Until it is done; RETRY when it is not in time. */
static int drive(struct tr_httpc *h, int64_t deadline_ns, CURLcode *ret, struct tr_err *err)
{
    for (;;) {
        int running = 0, left;
        if (curl_multi_perform(h->multi, &running) != CURLM_OK)
            return no_memory(h->what, err);
        CURLMsg *m = curl_multi_info_read(h->multi, &left);
        if (m && m->msg == CURLMSG_DONE) {
            *ret = m->data.result;
            return TR_OK;
        }
        if (atomic_exchange(&h->interrupted, false))
            return over(h, true, err);
        int64_t rest = deadline_ns - tr_now_ns();
        if (rest <= 0)
            return over(h, false, err);
        curl_multi_poll(h->multi, NULL, 0, (int)TR_MIN(rest / TR_NS_PER_MS + 1, 1000), NULL);
    }
}

static bool own_headers(struct tr_httpc *h, const struct tr_httpc_request *q, struct curl_slist **ret)
{
    char type[160], encoding[80];
    snprintf(type, sizeof type, "Content-Type: %s", q->content_type ? q->content_type : "application/octet-stream");
    snprintf(encoding, sizeof encoding, "Content-Encoding: %s", q->content_encoding ? q->content_encoding : "");
    *ret = NULL;
    for (const struct curl_slist *l = h->headers; l; l = l->next)
        if (!add_header(ret, l->data))
            return false;
    return !q->body || (add_header(ret, type) && (!q->content_encoding || add_header(ret, encoding)));
}

static void set_body(struct tr_httpc *h, const struct tr_httpc_request *q)
{
    curl_off_t n = 0;
    for (size_t i = 0; i < q->n_body; i++)
        n += (curl_off_t)q->body[i].n;
    if (!q->body) {
        curl_easy_setopt(h->easy, CURLOPT_HTTPGET, 1L);
        return;
    }
    curl_easy_setopt(h->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(h->easy, CURLOPT_POSTFIELDS, NULL);
    curl_easy_setopt(h->easy, CURLOPT_POSTFIELDSIZE_LARGE, n);
}

int tr_httpc_request(struct tr_httpc *h, const struct tr_httpc_request *q, int64_t deadline_ns, long *ret_status, struct tr_httpc_header *io_headers, uint32_t n_headers,
                     struct tr_buf *out, struct tr_err *err)
{
    struct curl_slist *headers;
    h->q = q;
    h->slice = h->off = h->taken = 0;
    h->want = io_headers;
    h->n_want = n_headers;
    h->out = out;
    h->too_long = h->no_memory = false;
    *h->text = 0;
    for (uint32_t i = 0; i < n_headers; i++)
        *io_headers[i].value = 0;
    CURLcode done = CURLE_OUT_OF_MEMORY;
    int rc = own_headers(h, q, &headers) && curl_easy_setopt(h->easy, CURLOPT_URL, q->url) == CURLE_OK ? TR_OK : no_memory(h->what, err);
    if (rc >= 0) {
        curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, headers);
        set_body(h, q);
        rc = curl_multi_add_handle(h->multi, h->easy) == CURLM_OK ? drive(h, deadline_ns, &done, err) : no_memory(h->what, err);
        if (rc >= 0 && done == CURLE_OK)
            curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, ret_status);
        curl_multi_remove_handle(h->multi, h->easy); /* one that is not done is broken off: its connection is closed */
        curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, NULL);
    }
    curl_slist_free_all(headers);
    if (rc >= 0 && done != CURLE_OK)
        rc = failed(h, done, err);
    h->q = NULL;
    return rc;
}

void tr_httpc_interrupt(struct tr_httpc *h)
{
    atomic_store(&h->interrupted, true);
    curl_multi_wakeup(h->multi);
}
