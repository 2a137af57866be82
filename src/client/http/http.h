/*
 * http.h: one HTTP request by libcurl, with a time-out that binds.
 *
 * Threads: any; each call has a handle of its own. Errors: RETRY when the peer could not be reached, or (code TR_HTTP_TIMED_OUT) did not
 * answer in time; the status code is the caller's to judge. Redirects are not followed, proxies not used.
 */
#ifndef TR_HTTP_H
#define TR_HTTP_H

#include <stdint.h>

#include <tailrace/buf.h>

enum { TR_HTTP_TIMED_OUT = 28 }; /* libcurl's own number, as are all of domain CURL */

/* body NULL: GET; else POST as application/x-www-form-urlencoded. The answer is appended to out, at most max bytes of it. */
int tr_http(const char *url, const char *body, int64_t timeout_ms, size_t max, long *ret_status, struct tr_buf *out, struct tr_err *err);

#endif
