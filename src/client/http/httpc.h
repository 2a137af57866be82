/*
 * httpc.h: an HTTP session by libcurl: connections that are kept between requests, a body of many slices that nobody joins, headers both ways, a
 * bounded answer, a deadline, TLS, and an interrupt from any thread.
 *
 * A kept connection is not used again once it was idle for idle_max_s: it should be less than what the server waits before it closes, since a
 * request on a connection that is being closed fails for nothing.
 *
 * Threads: one at a time, but tr_httpc_interrupt: a request under way, or else the next one, ends within milliseconds with RETRY.
 * Errors: RETRY in TR_DOM_CURL (code: libcurl's number, TR_HTTP_TIMED_OUT at the deadline): the peer may have acted on the request. FATAL where the
 * session itself cannot be (no such CA file). The status is the caller's to judge. Redirects are not followed, proxies not used.
 */
#ifndef TR_HTTPC_H
#define TR_HTTPC_H

#include <stdbool.h>
#include <stdint.h>

#include <tailrace/buf.h>

#include "http.h"

enum { TR_HTTPC_VALUE_CHARS = 128 };

struct tr_httpc;

struct tr_httpc_options {
    const char *what;                /* begins every message */
    const char *ca_file;             /* NULL: the system's authorities */
    const char *const *headers;      /* "Name: value" of every request; copied */
    uint32_t n_headers;
    uint32_t idle_max_s;
};

struct tr_httpc_header { /* of an answer: the name that is asked for, and its value, "" when there is none */
    const char *name;
    char value[TR_HTTPC_VALUE_CHARS];
};

struct tr_httpc_request {
    const char *url, *said;          /* said: the URL without secrets, for messages */
    const struct tr_slice *body;     /* POST of these, one behind the other; NULL: GET */
    size_t n_body;
    const char *content_type;        /* NULL: application/octet-stream */
    const char *content_encoding;    /* NULL: none */
    size_t answer_max;               /* a longer answer is RETRY */
};

int tr_httpc_new(const struct tr_httpc_options *o, struct tr_httpc **ret, struct tr_err *err);
struct tr_httpc *tr_httpc_free(struct tr_httpc *h);
/* The answer's body is appended to out; it may be there in part after an error. */
int tr_httpc_request(struct tr_httpc *h, const struct tr_httpc_request *q, int64_t deadline_ns, long *ret_status, struct tr_httpc_header *io_headers, uint32_t n_headers,
                     struct tr_buf *out, struct tr_err *err);
void tr_httpc_interrupt(struct tr_httpc *h);

#endif
