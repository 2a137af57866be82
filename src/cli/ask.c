#include "ask.h"

#include <stdio.h>
#include <string.h>

#include "control_sqlite.h"
#include "fs.h"
#include "http.h"

enum { TIMEOUT_MS = 5000, ANSWER_MAX = 64 << 20 };

static int url_of(const struct tr_config *c, const char *path, char *to, size_t cap, struct tr_err *err)
{
    const char *l = c->admin.listen;
    if (!strcmp(l, "off"))
        return tr_err_set(err, TR_NOT_READY, TR_DOM_CLI, "admin.listen is off, so a running process cannot be asked (state directory %s)", c->root.state_dir);
    /* an address that means all of them is reached through loopback */
    if (!strncmp(l, "0.0.0.0:", 8))
        snprintf(to, cap, "http://127.0.0.1:%s%s", l + 8, path);
    else
        snprintf(to, cap, "http://%s%s", l, path);
    return TR_OK;
}

static int ask(const struct tr_config *c, const char *url, const char *body, size_t max, long *ret_status, struct tr_buf *out, struct tr_err *err)
{
    struct tr_err why;
    int rc = tr_http(url, body, TIMEOUT_MS, max, ret_status, out, &why);
    if (rc == TR_RETRY && why.domain == TR_DOM_CURL && why.code == TR_HTTP_TIMED_OUT) {
        tr_err_set(err, TR_NOT_READY, TR_DOM_CURL,
                   "a process listens on admin.listen, %s, but does not answer within %d s (state directory %s): is it stopped (SIGSTOP, a debugger), or the machine overloaded? Look at it "
                   "with ps; kill -CONT lets a stopped one go on",
                   c->admin.listen, TIMEOUT_MS / 1000, c->root.state_dir);
        if (err)
            err->code = TR_HTTP_TIMED_OUT;
        return TR_NOT_READY;
    }
    if (rc < 0)
        rc = tr_err_set(err, rc == TR_RETRY ? TR_NOT_READY : rc, TR_DOM_CLI,
                        "not running (state directory %s): nobody answers at admin.listen, %s; why it ended is in its log; start it with: tailrace run (%s)", c->root.state_dir, c->admin.listen, why.msg);
    return rc;
}

int tr_ask_status(const struct tr_config *c, json_t **ret, struct tr_err *err)
{
    char url[200];
    long code = 0;
    struct tr_buf b = {0};
    int rc = url_of(c, "/status", url, sizeof url, err);
    if (rc >= 0)
        rc = ask(c, url, NULL, ANSWER_MAX, &code, &b, err);
    if (rc >= 0) {
        json_error_t e;
        *ret = code == 200 ? json_loadb((const char *)b.p, b.n, 0, &e) : NULL;
        if (!*ret)
            rc = tr_err_set(err, TR_NOT_READY, TR_DOM_HTTP, "%s answered %ld, and not as tailrace does: is admin.listen another program's port?", url, code);
    }
    tr_buf_done(&b);
    return rc;
}

static int put_field(struct tr_buf *b, const char *name, const char *value)
{
    int rc = tr_buf_printf(b, "%s%s=", b->n ? "&" : "", name);
    for (; rc >= 0 && *value; value++) {
        unsigned char v = (unsigned char)*value;
        bool plain = (v >= 'a' && v <= 'z') || (v >= 'A' && v <= 'Z') || (v >= '0' && v <= '9') || v == '.' || v == '_' || v == '-';
        rc = plain ? tr_buf_append_u8(b, v) : tr_buf_printf(b, "%%%02X", v);
    }
    return rc;
}

int tr_ask_request(const struct tr_config *c, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    char url[200];
    long code = 0;
    struct tr_buf body = {0}, out = {0};
    int rc = url_of(c, "/request", url, sizeof url, err);
    if (rc >= 0 && (put_field(&body, "kind", kind) < 0 || put_field(&body, "scope", scope) < 0 || put_field(&body, "table", table) < 0 || !tr_buf_cstr(&body)))
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_CLI, "no memory");
    if (rc >= 0)
        rc = ask(c, url, tr_buf_cstr(&body), 64 << 10, &code, &out, err);
    if (rc >= 0 && code != 200) {
        const char *s = tr_buf_cstr(&out);
        rc = tr_err_set(err, code == 503 ? TR_RETRY : TR_REJECT, TR_DOM_HTTP, "%s%.*s", code == 503 ? "" : "refused: ", s ? (int)strcspn(s, "\n") : 0, s ? s : "");
    }
    tr_buf_done(&body);
    tr_buf_done(&out);
    return rc;
}

int tr_ask_control(const struct tr_config *c, struct tr_control **ret, struct tr_err *err)
{
    char path[1024];
    bool there = false;
    tr_cli_state_path(c, "control.db", path, sizeof path);
    int rc = tr_fs_exists(tr_fs_posix(), path, &there, err);
    if (rc >= 0 && !there)
        return tr_err_set(err, TR_NOT_READY, TR_DOM_CLI, "nothing has run in %s yet; start it with: tailrace run", c->root.state_dir);
    return rc < 0 ? rc : tr_control_sqlite_open(path, ret, err);
}
