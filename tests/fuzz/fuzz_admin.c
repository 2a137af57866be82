/*
 * What a client sends to the admin endpoint, over loopback. First byte: bit 0, in two pieces. The endpoint answers or hangs up, answers are HTTP, a request that reaches the
 * program has fields of the length that was promised, and afterwards the endpoint serves the next one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <tailrace/admin.h>
#include <tailrace/metric.h>

#include "fuzz.h"

static _Atomic unsigned requests;

static int status(void *arg, struct tr_buf *out)
{
    (void)arg;
    return tr_buf_append_str(out, "{}");
}

static bool yes(void *arg, char *ret_reason, size_t cap)
{
    (void)arg;
    snprintf(ret_reason, cap, "ok");
    return true;
}

static bool no(void *arg, char *ret_reason, size_t cap)
{
    (void)arg;
    snprintf(ret_reason, cap, "not now");
    return false;
}

static int request(void *arg, const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    (void)arg;
    FUZZ_MUST(actor[0] && kind[0] && strlen(kind) < 200 && strlen(scope) < 200 && strlen(table) < 200);
    atomic_fetch_add(&requests, 1);
    if (!strcmp(kind, "resume"))
        return TR_OK;
    return tr_err_set(err, !strcmp(kind, "resnapshot") ? TR_RETRY : TR_REJECT, TR_DOM_CONFIG, "refused");
}

static struct tr_admin *endpoint;

static void stop(void)
{
    endpoint = tr_admin_free(endpoint);
}

static int start(void)
{
    static const struct tr_admin_ops ops = {NULL, status, yes, no, request};
    static struct tr_metrics *metrics;
    struct tr_err err;
    FUZZ_MUST(tr_metrics_new(&metrics, &err) == TR_OK);
    FUZZ_MUST(tr_admin_start("127.0.0.1:0", metrics, &ops, &endpoint, &err) == TR_OK);
    atexit(stop);
    return tr_admin_port(endpoint);
}

/* Sends, and reads till the endpoint hangs up. Returns the bytes of the answer. */
static size_t ask(int port, const uint8_t *p, size_t n, size_t first, char *out, size_t cap)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    /* an address has some 28,000 ports, and each rests for a minute */
    static uint32_t call;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK + 1 + call++ % 200)}};
    int later = 1;
    struct timeval patience = {20, 0}; /* longer than the endpoint's own */
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_MUST(s >= 0 && setsockopt(s, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later) == 0 && bind(s, (struct sockaddr *)&from, sizeof from) == 0);
    FUZZ_MUST(connect(s, (struct sockaddr *)&to, sizeof to) == 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    /* the endpoint may have hung up before the end */
    if (send(s, p, first, MSG_NOSIGNAL) == (ssize_t)first && first < n)
        (void)!send(s, p + first, n - first, MSG_NOSIGNAL);
    shutdown(s, SHUT_WR);
    size_t at = 0;
    for (;;) {
        char more[4096];
        ssize_t got = recv(s, at < cap ? out + at : more, at < cap ? cap - at : sizeof more, 0);
        if (got < 0 && errno == EINTR) /* libFuzzer has an alarm */
            continue;
        FUZZ_MUST(got >= 0 || errno == ECONNRESET);
        if (got <= 0)
            break;
        if (at < cap)
            at += (size_t)got;
    }
    close(s);
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static int port;
    static unsigned calls;
    char out[8192];
    size_t rest;
    if (!port)
        port = start();
    if (n > 8192)
        return 0;
    uint8_t *bytes = fuzz_rest(p, n, 1, &rest);
    size_t got = ask(port, bytes, rest, n && p[0] & 1 ? rest / 2 : rest, out, sizeof out);
    if (got >= 12) {
        FUZZ_MUST(!memcmp(out, "HTTP/1.", 7) && out[8] == ' ' && out[9] >= '1' && out[9] <= '5');
    } else {
        FUZZ_MUST(got == 0);
    }
    if (calls++ % 64 == 0) {
        static const char plain[] = "GET /healthz HTTP/1.0\r\n\r\n";
        got = ask(port, (const uint8_t *)plain, sizeof plain - 1, sizeof plain - 1, out, sizeof out);
        FUZZ_MUST(got > 15 && !memcmp(out + 8, " 200", 4));
    }
    free(bytes);
    return 0;
}
