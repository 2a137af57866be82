/* config_fill.c: structs filled from the maps of a YAML document, by field tables. */
#include "config_fill.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "text.h"

int tr_fill_bad(struct tr_fill *f, int line, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    tr_err_set(f->err, TR_REJECT, TR_DOM_CONFIG, "%s:%d: %s", tr_yaml_name(f->doc), line, msg);
    tr_err_where(f->err, "%s:%d", tr_yaml_name(f->doc), line);
    return TR_REJECT;
}

int tr_fill_nomem(struct tr_fill *f)
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

static int bad_unset(struct tr_fill *f, const char *path, const struct tr_yaml *y)
{
    const char *name = unset(y);
    return tr_fill_bad(f, y->line, "%s%s needs the environment variable %s, which is not set: export %s=… first, or give a default, ${%s:-…}", path, y->key, name, name, name);
}

/* ---- one value ---- */

static int in_bounds(struct tr_fill *f, const struct tr_field *d, const char *path, int line, int64_t v)
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
    return tr_fill_bad(f, line, "%s%s must be between %s and %s", path, d->name, lo, hi);
}

static int set_enum(struct tr_fill *f, const struct tr_field *d, const char *path, int line, const char *text, int32_t *to)
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
    return tr_fill_bad(f, line, "%s%s is one of %s, not '%s'", path, d->name, all, text);
}

static int set_scalar(struct tr_fill *f, const struct tr_field *d, const char *path, int line, const char *text, void *to)
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
        return tr_fill_bad(f, line, "%s%s: %s", path, d->name, e.msg);
    bool number = d->type == TR_F_INT || d->type == TR_F_SIZE || d->type == TR_F_DURATION;
    return number ? in_bounds(f, d, path, line, v) : TR_OK;
}

static int set_list(struct tr_fill *f, const struct tr_field *d, const char *path, const struct tr_yaml *y, struct tr_strv *to)
{
    const struct tr_yaml *v = y->kind == TR_YAML_LIST ? y->v : y;
    size_t n = y->kind == TR_YAML_LIST ? y->n : 1;
    const char **list = tr_arena_calloc(f->arena, n + 1, sizeof *list);
    if (!list)
        return tr_fill_nomem(f);
    for (size_t i = 0; i < n; i++) {
        if (v[i].kind != TR_YAML_SCALAR || v[i].null)
            return tr_fill_bad(f, v[i].line ? v[i].line : y->line, "%s%s is a list of words", path, d->name);
        list[i] = v[i].text;
    }
    *to = (struct tr_strv){.v = list, .n = n};
    return TR_OK;
}

static int set(struct tr_fill *f, const struct tr_field *d, const char *path, const struct tr_yaml *y, void *base)
{
    void *to = (char *)base + d->offset;
    if (d->type == TR_F_LIST && (y->kind == TR_YAML_LIST || (y->kind == TR_YAML_SCALAR && !y->null)))
        return set_list(f, d, path, y, to);
    if (y->kind != TR_YAML_SCALAR || y->null)
        return tr_fill_bad(f, y->key_line ? y->key_line : y->line, "%s%s needs a value", path, d->name);
    return set_scalar(f, d, path, y->line, y->text, to);
}

static int set_default(struct tr_fill *f, const struct tr_field *d, const char *path, int line, void *base)
{
    if (d->def && d->type != TR_F_LIST)
        return set_scalar(f, d, path, line, d->def, (char *)base + d->offset);
    if (d->optional)
        return TR_OK;
    return tr_fill_bad(f, line, "%s%s is missing: %s", path, d->name, d->help);
}

/* A field whose value needs a variable that is not set. */
static int set_unknown(const struct tr_field *d, void *base)
{
    if (d->type == TR_F_STRING || d->type == TR_F_SECRET)
        *(const char **)((char *)base + d->offset) = "";
    return TR_OK;
}

/* ---- sections ---- */

static int unknown(struct tr_fill *f, const char *path, const struct tr_yaml *y, const struct tr_fill_table *tables, size_t n_tables, const char *const *extra, size_t n_extra)
{
    const char *names[128];
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < tables[t].n && n < TR_ARRAY_LEN(names); i++)
            names[n++] = tables[t].fields[i].name;
    for (size_t i = 0; i < n_extra && n < TR_ARRAY_LEN(names); i++)
        names[n++] = extra[i];
    const char *near = tr_nearest(tr_slice_str(y->key), names, n);
    return near ? tr_fill_bad(f, y->key_line, "unknown key %s%.60s; did you mean %s?", path, y->key, near)
                : tr_fill_bad(f, y->key_line, "unknown key %s%.60s; %s", path, y->key, f->more);
}

static const struct tr_field *find(const struct tr_field *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return &v[i];
    return NULL;
}

int tr_fill_map(struct tr_fill *f, const char *path, const struct tr_yaml *map, int line, const struct tr_fill_table *tables, size_t n_tables, const char *const *extra, size_t n_extra)
{
    for (size_t i = 0; map && i < map->n; i++) {
        const struct tr_yaml *y = &map->v[i];
        bool known = false;
        for (size_t t = 0; t < n_tables && !known; t++)
            known = find(tables[t].fields, tables[t].n, y->key);
        for (size_t e = 0; e < n_extra && !known; e++)
            known = !strcmp(extra[e], y->key);
        if (!known)
            return unknown(f, path, y, tables, n_tables, extra, n_extra);
    }
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < tables[t].n; i++) {
            const struct tr_field *d = &tables[t].fields[i];
            const struct tr_yaml *y = tr_yaml_get(map, d->name);
            int rc;
            if (y && unset(y))
                rc = f->look && tables[t].component ? set_unknown(d, tables[t].to) : bad_unset(f, path, y);
            else
                rc = y ? set(f, d, path, y, tables[t].to) : set_default(f, d, path, line, tables[t].to);
            if (rc < 0)
                return rc;
        }
    return TR_OK;
}

int tr_fill_section(struct tr_fill *f, const struct tr_yaml *root, const char *name, const struct tr_fill_table *table)
{
    const struct tr_yaml *y = tr_yaml_get(root, name);
    int rc = tr_fill_resolved(f, "", root, name);
    if (rc < 0)
        return rc;
    if (y && y->kind != TR_YAML_MAP && !y->null)
        return tr_fill_bad(f, y->line, "%s is a section: keys below it, indented", name);
    char path[80];
    snprintf(path, sizeof path, "%s.", name);
    return tr_fill_map(f, path, y && y->kind == TR_YAML_MAP ? y : NULL, y ? y->line : 1, table, 1, NULL, 0);
}

const char *tr_fill_word(const struct tr_yaml *map, const char *key, const char *def)
{
    const struct tr_yaml *y = tr_yaml_get(map, key);
    return y && y->kind == TR_YAML_SCALAR && !y->null ? y->text : def;
}

int tr_fill_resolved(struct tr_fill *f, const char *path, const struct tr_yaml *map, const char *key)
{
    const struct tr_yaml *y = tr_yaml_get(map, key);
    return y && unset(y) ? bad_unset(f, path, y) : TR_OK;
}

int tr_fill_name(struct tr_fill *f, const struct tr_yaml *y, size_t index, const char **ret)
{
    const char *name = y->kind == TR_YAML_MAP ? tr_fill_word(y, "name", NULL) : NULL;
    char path[80];
    snprintf(path, sizeof path, "sinks[%.40s].", name ? name : "?");
    if (y->kind != TR_YAML_MAP)
        return tr_fill_bad(f, y->line, "each sink is a section that says its name");
    int rc = tr_fill_resolved(f, path, y, "name");
    if (rc < 0)
        return rc;
    if (!name)
        return tr_fill_bad(f, y->line, "sink %zu has no name", index + 1);
    if (!*name || strlen(name) > 40 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != strlen(name))
        return tr_fill_bad(f, y->line, "sink name '%.60s' may have up to 40 letters, digits, _ and -", name);
    *ret = name;
    return TR_OK;
}
