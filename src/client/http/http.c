#include "http.h"

#include <curl/curl.h>

_Static_assert(TR_HTTP_TIMED_OUT == (int)CURLE_OPERATION_TIMEDOUT, "http.h");

struct sink {
    struct tr_buf *out;
    size_t max;
};

static size_t take(char *p, size_t size, size_t n, void *arg)
{
    struct sink *s = arg;
    (void)size; /* always 1 */
    return s->out->n + n > s->max || tr_buf_append(s->out, p, n) < 0 ? 0 : n;
}

int tr_http(const char *url, const char *body, int64_t timeout_ms, size_t max, long *ret_status, struct tr_buf *out, struct tr_err *err)
{
    CURL *c = curl_easy_init();
    if (!c)
        return tr_err_set(err, TR_NOMEM, TR_DOM_HTTP, "no memory for a request");
    struct sink s = {out, max};
    char text[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &s);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, text);
    if (body)
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    CURLcode rc = curl_easy_perform(c);
    if (rc == CURLE_OK)
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, ret_status);
    curl_easy_cleanup(c);
    if (rc == CURLE_OK)
        return TR_OK;
    tr_err_set(err, TR_RETRY, TR_DOM_CURL, "%s: %s", url, *text ? text : curl_easy_strerror(rc));
    if (err)
        err->code = rc;
    return TR_RETRY;
}
