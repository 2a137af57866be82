#include "config_yaml.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "check.h"
#include "fs.h"
#include "text.h"

#include <tailrace/buf.h>

enum { FILE_MAX = 4 << 20, DEPTH_MAX = 32 };

struct tr_yaml_doc {
    struct tr_arena arena;
    char *name;
    struct tr_yaml root;
};

struct loader {
    struct tr_yaml_doc *doc;
    struct tr_err *err;
};

static int bad(struct loader *l, int line, const char *text)
{
    tr_err_set(l->err, TR_REJECT, TR_DOM_CONFIG, "%s:%d: %s", l->doc->name, line, text);
    tr_err_where(l->err, "%s:%d", l->doc->name, line);
    return TR_REJECT;
}

/* ${NAME}, ${NAME:-default}, $$; *ret_unset: the first name that is not set and has no default */
static int interpolate(struct loader *l, struct tr_slice in, int line, struct tr_buf *out, const char **ret_unset)
{
    for (size_t i = 0; i < in.n; i++) {
        if (in.p[i] != '$' || i + 1 >= in.n || (in.p[i + 1] != '{' && in.p[i + 1] != '$')) {
            if (tr_buf_append_u8(out, in.p[i]) < 0)
                return TR_NOMEM;
            continue;
        }
        if (in.p[i + 1] == '$') {
            if (tr_buf_append_u8(out, '$') < 0)
                return TR_NOMEM;
            i++;
            continue;
        }
        size_t from = i + 2, to = from, dash;
        while (to < in.n && in.p[to] != '}')
            to++;
        if (to == in.n)
            return bad(l, line, "a ${ without its }");
        for (dash = from; dash < to && !(in.p[dash] == ':' && dash + 1 < to && in.p[dash + 1] == '-'); dash++)
            ;
        char name[128];
        size_t n = dash - from;
        if (n == 0 || n >= sizeof name)
            return bad(l, line, "a ${} needs the name of an environment variable");
        memcpy(name, in.p + from, n);
        name[n] = 0;
        const char *v = getenv(name);
        struct tr_slice s = v && *v ? tr_slice_str(v) : dash < to ? tr_slice_of(in.p + dash + 2, to - dash - 2) : (struct tr_slice){NULL, 0};
        if (!(v && *v) && dash == to && !*ret_unset) {
            *ret_unset = tr_arena_strdup(&l->doc->arena, tr_slice_str(name));
            if (!*ret_unset)
                return TR_NOMEM;
        }
        if (tr_buf_append_slice(out, s) < 0)
            return TR_NOMEM;
        i = to;
    }
    return TR_OK;
}

static int line_of(struct fy_node *n)
{
    const struct fy_mark *m = NULL;
    struct fy_token *t = fy_node_get_type(n) == FYNT_SCALAR ? fy_node_get_scalar_token(n) : NULL;
    if (t)
        m = fy_token_start_mark(t);
    if (m)
        return m->line + 1;
    /* a collection stands where its first member does */
    void *it = NULL;
    if (fy_node_get_type(n) == FYNT_MAPPING) {
        struct fy_node_pair *p = fy_node_mapping_iterate(n, &it);
        return p ? line_of(fy_node_pair_key(p)) : 0;
    }
    if (fy_node_get_type(n) == FYNT_SEQUENCE) {
        struct fy_node *e = fy_node_sequence_iterate(n, &it);
        return e ? line_of(e) : 0;
    }
    return 0;
}

static int nomem(struct loader *l)
{
    return tr_err_set(l->err, TR_NOMEM, TR_DOM_CONFIG, "no memory for the configuration");
}

#define ALIAS "an alias (*name) is not resolved: write the value out; one that begins with * goes into single quotes"

static int convert(struct loader *l, struct fy_node *n, int depth, struct tr_yaml *to)
{
    struct tr_arena *a = &l->doc->arena;
    if (depth > DEPTH_MAX)
        return bad(l, line_of(n), "nested too deeply");
    to->line = line_of(n);
    if (fy_node_is_alias(n))
        return bad(l, to->line, ALIAS);
    switch (fy_node_get_type(n)) {
    case FYNT_SCALAR: {
        size_t len = 0;
        const char *s = fy_node_get_scalar(n, &len);
        to->kind = TR_YAML_SCALAR;
        struct tr_buf b;
        tr_buf_init(&b);
        int rc = interpolate(l, tr_slice_of(s, s ? len : 0), to->line, &b, &to->unset);
        if (rc >= 0) {
            to->text = tr_arena_strdup(a, tr_buf_slice(&b));
            bool plain = fy_node_get_style(n) == FYNS_PLAIN || fy_node_get_style(n) == FYNS_ANY;
            to->null = plain && (b.n == 0 || tr_slice_eq_str(tr_buf_slice(&b), "null") || tr_slice_eq_str(tr_buf_slice(&b), "~"));
        }
        tr_buf_done(&b);
        return rc == TR_NOMEM || (rc >= 0 && !to->text) ? nomem(l) : rc;
    }
    case FYNT_SEQUENCE: {
        int count = fy_node_sequence_item_count(n);
        to->kind = TR_YAML_LIST;
        to->v = tr_arena_calloc(a, (size_t)count + 1, sizeof *to->v);
        if (!to->v)
            return nomem(l);
        void *it = NULL;
        struct fy_node *e;
        while ((e = fy_node_sequence_iterate(n, &it))) {
            int rc = convert(l, e, depth + 1, &to->v[to->n]);
            if (rc < 0)
                return rc;
            to->n++;
        }
        return TR_OK;
    }
    default: {
        int count = fy_node_mapping_item_count(n);
        to->kind = TR_YAML_MAP;
        to->v = tr_arena_calloc(a, (size_t)count + 1, sizeof *to->v);
        if (!to->v)
            return nomem(l);
        void *it = NULL;
        struct fy_node_pair *p;
        while ((p = fy_node_mapping_iterate(n, &it))) {
            struct fy_node *k = fy_node_pair_key(p), *v = fy_node_pair_value(p);
            size_t len = 0;
            const char *s = k && fy_node_get_type(k) == FYNT_SCALAR ? fy_node_get_scalar(k, &len) : NULL;
            if (k && fy_node_is_alias(k))
                return bad(l, to->line, ALIAS);
            if (!s)
                return bad(l, to->line, "a key must be a plain word");
            struct tr_yaml *m = &to->v[to->n];
            int rc = v ? convert(l, v, depth + 1, m) : TR_OK;
            if (rc < 0)
                return rc;
            if (!v)
                *m = (struct tr_yaml){.kind = TR_YAML_SCALAR, .text = "", .null = true};
            m->key = tr_arena_strdup(a, tr_slice_of(s, len));
            m->key_line = line_of(k);
            if (!m->line)
                m->line = m->key_line;
            if (!m->key)
                return nomem(l);
            to->n++;
        }
        return TR_OK;
    }
    }
}

/* What to do about what libfyaml says, by a word of it. */
static const char *hint(const char *said)
{
    static const char *const hints[][2] = {
        {"duplicate", "a key may stand once in its section: keep one of them"},
        {"tab", "indent with blanks, not with tabs"},
        {"bracket", "close what [ or { opens"},
        {"flow", "close what [ or { opens"},
        {"brace", "close what [ or { opens"},
        {"escape", "put the value into single quotes: nothing is escaped in them"},
        {"quoted", "close the quote that was opened; a ' within '…' is written twice"},
        {"indent", "the keys of a section begin in the same column"},
    };
    for (size_t i = 0; i < TR_ARRAY_LEN(hints); i++)
        if (strstr(said, hints[i][0]))
            return hints[i][1];
    return "a value with : or # in it, or one that begins with a sign, goes into single quotes";
}

static int not_yaml(struct loader *l, const struct fy_diag_error *e)
{
    tr_err_set(l->err, TR_REJECT, TR_DOM_CONFIG, "%s:%d:%d: this is not YAML: %s; %s", l->doc->name, e->line, e->column, e->msg, hint(e->msg));
    tr_err_where(l->err, "%s:%d", l->doc->name, e->line);
    return TR_REJECT;
}

/* Nothing but blanks and comments: no document, and no error either. */
static bool is_empty(const char *text)
{
    for (text += strspn(text, " \t\r\n"); *text == '#'; text += strspn(text, " \t\r\n"))
        text += strcspn(text, "\n");
    return !*text;
}

/* The one document of a file. */
static int documents(struct loader *l, const char *text, struct fy_parser *parser, struct fy_diag *diag)
{
    struct fy_document *one = fy_parse_load_document(parser), *more = one ? fy_parse_load_document(parser) : NULL;
    struct fy_node *root = one ? fy_document_root(one) : NULL, *next = more ? fy_document_root(more) : NULL;
    void *first = NULL;
    const struct fy_diag_error *e = fy_diag_errors_iterate(diag, &first);
    int rc = TR_OK;
    if (e)
        rc = not_yaml(l, e);
    else if (more)
        rc = bad(l, next ? line_of(next) : 1, "a second document begins here, and would not be read: a file holds one, without --- in between");
    else if (!one && !is_empty(text))
        rc = bad(l, 1, "this is not YAML that can be read: begin with the sections, without % and ---");
    else if (root)
        rc = convert(l, root, 0, &l->doc->root);
    else
        l->doc->root = (struct tr_yaml){.kind = TR_YAML_SCALAR, .text = "", .null = true, .line = 1};
    if (more)
        fy_parse_document_destroy(parser, more);
    if (one)
        fy_parse_document_destroy(parser, one);
    return rc;
}

/* libfyaml 0.7 never comes back from some bytes that are not UTF-8. 0: all are; else the line of the first that is not. */
static int not_utf8(const char *text)
{
    struct tr_slice line = {(const uint8_t *)text, 0};
    for (int n = 1;; n++, line.p += line.n + 1) {
        line.n = strcspn((const char *)line.p, "\n");
        if (!tr_utf8_valid(line))
            return n;
        if (!line.p[line.n])
            return 0;
    }
}

int tr_yaml_parse(const char *text, const char *name, struct tr_yaml_doc **ret, struct tr_err *err)
{
    struct tr_yaml_doc *d = tr_calloc(1, sizeof *d);
    if (!d)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for the configuration");
    tr_arena_init(&d->arena, 16 << 10, 0);
    d->name = tr_strdup(name);
    struct loader l = {.doc = d, .err = err};
    int line = d->name ? not_utf8(text) : 0, rc;
    if (line || !d->name) {
        rc = line ? bad(&l, line, "this line is not UTF-8; save the file in that encoding") : nomem(&l);
        tr_yaml_free(d);
        return rc;
    }
    struct fy_diag_cfg dc;
    fy_diag_cfg_default(&dc);
    dc.fp = NULL;
    struct fy_diag *diag = fy_diag_create(&dc);
    fy_diag_set_collect_errors(diag, true); /* and print nothing */
    struct fy_parse_cfg pc = {.flags = FYPCF_DEFAULT_DOC, .diag = diag};
    struct fy_parser *parser = fy_parser_create(&pc);
    rc = parser && fy_parser_set_string(parser, text, strlen(text)) == 0 ? documents(&l, text, parser, diag) : nomem(&l);
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    if (rc < 0) {
        tr_yaml_free(d);
        return rc;
    }
    *ret = d;
    return TR_OK;
}

int tr_yaml_load(const char *path, struct tr_yaml_doc **ret, struct tr_err *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = tr_fs_read_file(tr_fs_posix(), path, FILE_MAX, &text, &n, err);
    if (rc == TR_NOT_READY) {
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "there is no configuration file %s", path);
        if (err)
            err->code = ENOENT;
        return rc;
    }
    if (rc < 0)
        return rc;
    if (strlen(text) < n)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "%s holds a zero byte after %zu others: it is no text", path, strlen(text));
    else
        rc = tr_yaml_parse(text, path, ret, err);
    tr_free(text);
    return rc;
}

const struct tr_yaml *tr_yaml_root(const struct tr_yaml_doc *d)
{
    return &d->root;
}

const char *tr_yaml_name(const struct tr_yaml_doc *d)
{
    return d->name;
}

struct tr_yaml_doc *tr_yaml_free(struct tr_yaml_doc *d)
{
    if (!d)
        return NULL;
    tr_arena_done(&d->arena);
    tr_free(d->name);
    tr_free(d);
    return NULL;
}

const struct tr_yaml *tr_yaml_get(const struct tr_yaml *map, const char *key)
{
    for (size_t i = 0; map && map->kind == TR_YAML_MAP && i < map->n; i++)
        if (!strcmp(map->v[i].key, key))
            return &map->v[i];
    return NULL;
}
