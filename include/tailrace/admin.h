/*
 * admin.h: the HTTP endpoint: what machines and operators ask a running process.
 *
 *   GET  /metrics   Prometheus text exposition 0.0.4
 *   GET  /healthz   200 while the loops turn and no position is stuck; 503 and the reason otherwise
 *   GET  /readyz    200 while changes flow from the source into every sink; 503 and what is in the way, a line each, otherwise
 *   GET  /status    everything, as JSON (docs/status.md)
 *   POST /request   kind, scope, table (form fields): an operator's action; 200, 409 and why it was refused, or 503: not now
 *
 * It has no authentication and belongs on loopback. Requests are bounded: headers by libmicrohttpd, bodies to 4 KiB.
 *
 * Threads: one of libmicrohttpd's; the callbacks must be safe to call from it and must not wait for the data path.
 */
#ifndef TAILRACE_ADMIN_H
#define TAILRACE_ADMIN_H

#include <stdbool.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>

struct tr_admin;
struct tr_metrics;

struct tr_admin_ops {
    void *arg;
    int (*status)(void *arg, struct tr_buf *out);
    bool (*live)(void *arg, char *ret_reason, size_t cap);
    bool (*ready)(void *arg, char *ret_reason, size_t cap);
    int (*request)(void *arg, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err);
};

/* listen: "127.0.0.1:7171", "[::1]:7171". Port 0 takes a free one; tr_admin_port tells which. */
int tr_admin_start(const char *listen, struct tr_metrics *metrics, const struct tr_admin_ops *ops, struct tr_admin **ret, struct tr_err *err);
int tr_admin_port(const struct tr_admin *a);
struct tr_admin *tr_admin_free(struct tr_admin *a);

#endif
