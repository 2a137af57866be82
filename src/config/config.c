#include "config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "check.h"
#include "config_yaml.h"
#include "text.h"

struct whole {
    struct tr_config cfg; /* first: what the caller holds */
    struct tr_arena arena;
    struct tr_yaml_doc *doc;
};

struct filler {
    struct whole *w;
    const struct tr_registry *reg;
    enum tr_config_use use;
    struct tr_err *err;
};

__attribute__((format(printf, 3, 4))) static int bad(struct filler *f, int line, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    tr_err_set(f->err, TR_REJECT, TR_DOM_CONFIG, "%s:%d: %s", tr_yaml_name(f->w->doc), line, msg);
    tr_err_where(f->err, "%s:%d", tr_yaml_name(f->w->doc), line);
    return TR_REJECT;
}

static int nomem(struct filler *f)
{
    return tr_err_set(f->err, TR_NOMEM, TR_DOM_CONFIG, "no memory for the configuration");
}

/* The environment variable that a value, or one of a list, needs and that is not set; else NULL. */
static const char *unset(const struct tr_yaml *y)
{
    const char *name = y->unset;
    for (size_t i = 0; y->kind == TR_YAML_LIST && i < y->n && !name; i++)
        name = y->v[i].unset;
    return name;
}

static int bad_unset(struct filler *f, const char *path, const struct tr_yaml *y)
{
    const char *name = unset(y);
    return bad(f, y->line, "%s%s needs the environment variable %s, which is not set: export %s=… first, or give a default, ${%s:-…}", path, y->key, name, name, name);
}

/* ---- one value ---- */

static int in_bounds(struct filler *f, const struct tr_field *d, const char *path, int line, int64_t v)
{
    if ((d->min == 0 && d->max == 0) || (v >= d->min && v <= d->max))
        return TR_OK;
    char lo[48], hi[48];
    if (d->type == TR_F_DURATION) {
        tr_format_duration(d->min, lo);
        tr_format_duration(d->max, hi);
    } else if (d->type == TR_F_SIZE) {
        tr_format_size((uint64_t)d->min, lo);
        tr_format_size((uint64_t)d->max, hi);
    } else {
        snprintf(lo, sizeof lo, "%" PRId64, d->min);
        snprintf(hi, sizeof hi, "%" PRId64, d->max);
    }
    return bad(f, line, "%s%s must be between %s and %s", path, d->name, lo, hi);
}

static int set_enum(struct filler *f, const struct tr_field *d, const char *path, int line, const char *text, int32_t *to)
{
    size_t n = 0;
    char all[200] = "";
    for (; d->choices[n]; n++) {
        if (!strcmp(d->choices[n], text)) {
            *to = (int32_t)n;
            return TR_OK;
        }
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%s%s", n ? ", " : "", d->choices[n]);
    }
    return bad(f, line, "%s%s is one of %s, not '%s'", path, d->name, all, text);
}

static int set_scalar(struct filler *f, const struct tr_field *d, const char *path, int line, const char *text, void *to)
{
    struct tr_slice s = tr_slice_str(text);
    struct tr_err e = {0};
    int rc = TR_OK;
    int64_t v = 0;
    switch (d->type) {
    case TR_F_STRING:
    case TR_F_SECRET:
        *(const char **)to = text;
        return TR_OK;
    case TR_F_BOOL:
        rc = tr_parse_bool(s, (bool *)to, &e);
        break;
    case TR_F_INT:
        rc = tr_parse_i64(s, &v, &e);
        *(int64_t *)to = v;
        break;
    case TR_F_SIZE: {
        uint64_t u = 0;
        rc = tr_parse_size(s, &u, &e);
        *(uint64_t *)to = u;
        v = u > INT64_MAX ? INT64_MAX : (int64_t)u;
        break;
    }
    case TR_F_DURATION:
        rc = tr_parse_duration(s, &v, &e);
        *(int64_t *)to = v;
        break;
    case TR_F_ENUM:
        return set_enum(f, d, path, line, text, to);
    case TR_F_LIST:
        break;
    }
    if (rc < 0)
        return bad(f, line, "%s%s: %s", path, d->name, e.msg);
    bool number = d->type == TR_F_INT || d->type == TR_F_SIZE || d->type == TR_F_DURATION;
    return number ? in_bounds(f, d, path, line, v) : TR_OK;
}

static int set_list(struct filler *f, const struct tr_field *d, const char *path, const struct tr_yaml *y, struct tr_strv *to)
{
    const struct tr_yaml *v = y->kind == TR_YAML_LIST ? y->v : y;
    size_t n = y->kind == TR_YAML_LIST ? y->n : 1;
    const char **list = tr_arena_calloc(&f->w->arena, n + 1, sizeof *list);
    if (!list)
        return nomem(f);
    for (size_t i = 0; i < n; i++) {
        if (v[i].kind != TR_YAML_SCALAR || v[i].null)
            return bad(f, v[i].line ? v[i].line : y->line, "%s%s is a list of words", path, d->name);
        list[i] = v[i].text;
    }
    *to = (struct tr_strv){.v = list, .n = n};
    return TR_OK;
}

static int set(struct filler *f, const struct tr_field *d, const char *path, const struct tr_yaml *y, void *base)
{
    void *to = (char *)base + d->offset;
    if (d->type == TR_F_LIST && (y->kind == TR_YAML_LIST || (y->kind == TR_YAML_SCALAR && !y->null)))
        return set_list(f, d, path, y, to);
    if (y->kind != TR_YAML_SCALAR || y->null)
        return bad(f, y->key_line ? y->key_line : y->line, "%s%s needs a value", path, d->name);
    return set_scalar(f, d, path, y->line, y->text, to);
}

static int set_default(struct filler *f, const struct tr_field *d, const char *path, int line, void *base)
{
    if (d->def && d->type != TR_F_LIST)
        return set_scalar(f, d, path, line, d->def, (char *)base + d->offset);
    if (d->optional)
        return TR_OK;
    return bad(f, line, "%s%s is missing: %s", path, d->name, d->help);
}

/* A field whose value needs a variable that is not set. */
static int set_unknown(const struct tr_field *d, void *base)
{
    if (d->type == TR_F_STRING || d->type == TR_F_SECRET)
        *(const char **)((char *)base + d->offset) = "";
    return TR_OK;
}

/* ---- sections ---- */

static int unknown(struct filler *f, const char *path, const struct tr_yaml *y, const struct tr_field *const *tables, const size_t *counts, size_t n_tables,
                   const char *const *extra, size_t n_extra)
{
    const char *names[128];
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < counts[t] && n < TR_ARRAY_LEN(names); i++)
            names[n++] = tables[t][i].name;
    for (size_t i = 0; i < n_extra && n < TR_ARRAY_LEN(names); i++)
        names[n++] = extra[i];
    const char *near = tr_nearest(tr_slice_str(y->key), names, n);
    return near ? bad(f, y->key_line, "unknown key %s%s; did you mean %s?", path, y->key, near)
                : bad(f, y->key_line, "unknown key %s%s; tailrace help config lists all keys", path, y->key);
}

static const struct tr_field *find(const struct tr_field *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return &v[i];
    return NULL;
}

/* A section of one or two tables (the program's and the component's), each with a struct of its own. */
static int fill(struct filler *f, const char *path, const struct tr_yaml *map, int line, const struct tr_field *const *tables, const size_t *counts, void *const *bases,
                size_t n_tables, const char *const *extra, size_t n_extra)
{
    for (size_t i = 0; map && i < map->n; i++) {
        const struct tr_yaml *y = &map->v[i];
        bool known = false;
        for (size_t t = 0; t < n_tables && !known; t++)
            known = find(tables[t], counts[t], y->key);
        for (size_t e = 0; e < n_extra && !known; e++)
            known = !strcmp(extra[e], y->key);
        if (!known)
            return unknown(f, path, y, tables, counts, n_tables, extra, n_extra);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(map->v[k].key, y->key))
                return bad(f, y->key_line, "%s%s stands twice", path, y->key);
    }
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < counts[t]; i++) {
            const struct tr_field *d = &tables[t][i];
            const struct tr_yaml *y = tr_yaml_get(map, d->name);
            int rc;
            if (y && unset(y)) /* the second table is the component's */
                rc = f->use == TR_CONFIG_TO_LOOK && t == 1 ? set_unknown(d, bases[t]) : bad_unset(f, path, y);
            else
                rc = y ? set(f, d, path, y, bases[t]) : set_default(f, d, path, line, bases[t]);
            if (rc < 0)
                return rc;
        }
    return TR_OK;
}

static int section(struct filler *f, int which, const struct tr_yaml *root, void *base)
{
    const struct tr_section *s = &tr_sections[which];
    const struct tr_yaml *y = tr_yaml_get(root, s->name);
    if (y && y->kind != TR_YAML_MAP && !y->null)
        return bad(f, y->line, "%s is a section: keys below it, indented", s->name);
    char path[40];
    snprintf(path, sizeof path, "%s.", s->name);
    return fill(f, path, y && y->kind == TR_YAML_MAP ? y : NULL, y ? y->line : 1, &s->fields, &s->n, &base, 1, NULL, 0);
}

static const char *word(const struct tr_yaml *map, const char *key, const char *def)
{
    const struct tr_yaml *y = tr_yaml_get(map, key);
    return y && y->kind == TR_YAML_SCALAR && !y->null ? y->text : def;
}

/* What kind of thing a section is, and its name, are read before its fields. */
static int resolved(struct filler *f, const char *path, const struct tr_yaml *map, const char *key)
{
    const struct tr_yaml *y = tr_yaml_get(map, key);
    return y && unset(y) ? bad_unset(f, path, y) : TR_OK;
}

static const char *list(const char *const *names, size_t n, char *to, size_t cap)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(to + at, cap - at, "%s%s", i ? ", " : "", names[i]);
    return to;
}

static int source(struct filler *f, const struct tr_yaml *root)
{
    struct tr_config *c = &f->w->cfg;
    const struct tr_yaml *y = tr_yaml_get(root, "source");
    if (!y || y->kind != TR_YAML_MAP)
        return bad(f, y ? y->line : 1, "the section source is missing: it names the database to capture");
    int rc = resolved(f, "source.", y, "type");
    if (rc < 0)
        return rc;
    const char *type = word(y, "type", "postgres");
    const char *names[16];
    for (size_t i = 0; i < f->reg->n_sources; i++) {
        names[i] = f->reg->sources[i]->name;
        if (!strcmp(f->reg->sources[i]->name, type))
            c->source_type = f->reg->sources[i];
    }
    if (!c->source_type) {
        char all[200];
        return bad(f, tr_yaml_get(y, "type")->line, "there is no source of type '%s'; there are: %s", type, list(names, f->reg->n_sources, all, sizeof all));
    }
    c->source_options = tr_arena_calloc(&f->w->arena, 1, c->source_type->options_size);
    if (!c->source_options)
        return nomem(f);
    const struct tr_field *tables[] = {tr_sections[TR_SEC_SOURCE].fields, c->source_type->fields};
    size_t counts[] = {tr_sections[TR_SEC_SOURCE].n, c->source_type->n_fields};
    void *bases[] = {&c->source, c->source_options};
    return fill(f, "source.", y, y->line, tables, counts, bases, 2, NULL, 0);
}

static int one_sink(struct filler *f, const struct tr_yaml *y, struct tr_config_sink *s, size_t index)
{
    char path[80];
    const char *name = word(y, "name", NULL), *type = word(y, "type", NULL);
    snprintf(path, sizeof path, "sinks[%.40s].", name ? name : "?");
    if (y->kind != TR_YAML_MAP)
        return bad(f, y->line, "each sink is a section with at least name and type");
    int rc = resolved(f, path, y, "name");
    if (rc >= 0)
        rc = resolved(f, path, y, "type");
    if (rc < 0)
        return rc;
    if (!name)
        return bad(f, y->line, "sink %zu has no name", index + 1);
    if (!type)
        return bad(f, y->line, "sink %s has no type", name);
    if (!*name || strlen(name) > 40 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != strlen(name))
        return bad(f, y->line, "sink name '%.60s' may have up to 40 letters, digits, _ and -", name);
    const char *names[16];
    for (size_t i = 0; i < f->reg->n_sinks && i < TR_ARRAY_LEN(names); i++) {
        names[i] = f->reg->sinks[i]->name;
        if (!strcmp(names[i], type))
            s->type = f->reg->sinks[i];
    }
    if (!s->type) {
        char all[200];
        return bad(f, tr_yaml_get(y, "type")->line, "there is no sink of type '%s'; there are: %s", type, list(names, f->reg->n_sinks, all, sizeof all));
    }
    s->options = tr_arena_calloc(&f->w->arena, 1, s->type->options_size);
    if (!s->options)
        return nomem(f);
    const struct tr_field *tables[] = {tr_sections[TR_SEC_SINK].fields, s->type->fields};
    size_t counts[] = {tr_sections[TR_SEC_SINK].n, s->type->n_fields};
    void *bases[] = {&s->common, s->options};
    return fill(f, path, y, y->line, tables, counts, bases, 2, NULL, 0);
}

static int sinks(struct filler *f, const struct tr_yaml *root)
{
    struct tr_config *c = &f->w->cfg;
    const struct tr_yaml *y = tr_yaml_get(root, "sinks");
    if (!y || y->kind != TR_YAML_LIST || y->n == 0)
        return bad(f, y ? y->line : 1, "sinks is missing: a list of at least one sink, each with name and type");
    c->sinks = tr_arena_calloc(&f->w->arena, y->n, sizeof *c->sinks);
    if (!c->sinks)
        return nomem(f);
    for (size_t i = 0; i < y->n; i++) {
        int rc = one_sink(f, &y->v[i], &c->sinks[i], i);
        if (rc < 0)
            return rc;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(c->sinks[k].common.name, c->sinks[i].common.name))
                return bad(f, y->v[i].line, "two sinks are named %s; positions are kept by name", c->sinks[i].common.name);
        c->n_sinks++;
    }
    return TR_OK;
}

/* What tr_admin_start would refuse, before anything else is done: off, or a numeric address and a port. */
static int admin(struct filler *f, const struct tr_yaml *root)
{
    struct tr_config *c = &f->w->cfg;
    int rc = section(f, TR_SEC_ADMIN, root, &c->admin);
    if (rc < 0 || !strcmp(c->admin.listen, "off"))
        return rc;
    const struct tr_yaml *y = tr_yaml_get(tr_yaml_get(root, "admin"), "listen");
    int line = y ? y->line : 1;
    const char *l = c->admin.listen, *colon = strrchr(l, ':');
    uint64_t port = 0;
    if (!colon || colon == l)
        return bad(f, line, "admin.listen must be address:port, as in 127.0.0.1:7171, or off, not '%.60s'", l);
    if (tr_parse_u64(tr_slice_str(colon + 1), &port, NULL) < 0 || port > 65535)
        return bad(f, line, "admin.listen needs a port from 0 to 65535, not '%.60s'; set one that is free, as in 127.0.0.1:7171", colon + 1);
    size_t n = (size_t)(colon - l);
    bool v6 = l[0] == '[' && n > 2 && l[n - 1] == ']' && strspn(l + 1, "0123456789abcdefABCDEF:.") == n - 2, v4 = strspn(l, "0123456789.") == n;
    if (!v6 && !v4 && strncmp(l, "localhost:", 10) != 0)
        return bad(f, line, "admin.listen needs a numeric address, as in 127.0.0.1:7171 or [::1]:7171, not '%.*s'", (int)TR_MIN(n, (size_t)60), l);
    return TR_OK;
}

static int all(struct filler *f)
{
    struct tr_config *c = &f->w->cfg;
    const struct tr_yaml *root = tr_yaml_root(f->w->doc);
    if (root->kind != TR_YAML_MAP)
        return bad(f, 1, "the file must hold sections: source, sinks, …; tailrace init writes a working one");
    const char *extra[TR_SEC_COUNT];
    size_t n_extra = 0;
    for (int i = 1; i < TR_SEC_COUNT; i++)
        extra[n_extra++] = tr_sections[i].name;
    void *base = &c->root;
    int rc = fill(f, "", root, 1, &tr_sections[TR_SEC_ROOT].fields, &tr_sections[TR_SEC_ROOT].n, &base, 1, extra, n_extra);
    if (rc >= 0)
        rc = source(f, root);
    if (rc >= 0)
        rc = sinks(f, root);
    if (rc >= 0)
        rc = section(f, TR_SEC_LOG, root, &c->log);
    if (rc >= 0)
        rc = section(f, TR_SEC_SNAPSHOT, root, &c->snapshot);
    if (rc >= 0)
        rc = section(f, TR_SEC_ENGINE, root, &c->engine);
    if (rc >= 0)
        rc = admin(f, root);
    return rc >= 0 ? section(f, TR_SEC_LOGGING, root, &c->logging) : rc;
}

static int finish(struct tr_yaml_doc *doc, const struct tr_registry *reg, enum tr_config_use use, struct tr_config **ret, struct tr_err *err)
{
    struct whole *w = tr_calloc(1, sizeof *w);
    if (!w) {
        tr_yaml_free(doc);
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for the configuration");
    }
    tr_arena_init(&w->arena, 4096, 0);
    w->doc = doc;
    struct filler f = {.w = w, .reg = reg, .use = use, .err = err};
    int rc = all(&f);
    if (rc < 0) {
        tr_config_free(&w->cfg);
        return rc;
    }
    *ret = &w->cfg;
    return TR_OK;
}

int tr_config_load(const char *path, const struct tr_registry *reg, enum tr_config_use use, struct tr_config **ret, struct tr_err *err)
{
    struct tr_yaml_doc *doc = NULL;
    int rc = tr_yaml_load(path, &doc, err);
    return rc < 0 ? rc : finish(doc, reg, use, ret, err);
}

int tr_config_parse(const char *text, const char *name, const struct tr_registry *reg, enum tr_config_use use, struct tr_config **ret, struct tr_err *err)
{
    struct tr_yaml_doc *doc = NULL;
    int rc = tr_yaml_parse(text, name, &doc, err);
    return rc < 0 ? rc : finish(doc, reg, use, ret, err);
}

struct tr_config *tr_config_free(struct tr_config *c)
{
    if (!c)
        return NULL;
    struct whole *w = tr_container_of(c, struct whole, cfg);
    tr_arena_done(&w->arena);
    tr_yaml_free(w->doc);
    tr_free(w);
    return NULL;
}
