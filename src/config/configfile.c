#include <tailrace/configfile.h>

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "config_fill.h"
#include "text.h"

enum { ASKED_MAX = 128 };

struct tr_configfile {
    struct tr_yaml_doc *doc;
    struct tr_arena arena;
    const char *sections[ASKED_MAX], *sinks[ASKED_MAX]; /* asked for; the arena's */
    size_t n_sections, n_sinks;
};

static struct tr_fill fill_of(struct tr_configfile *f, struct tr_err *err)
{
    return (struct tr_fill){.doc = f->doc, .arena = &f->arena, .more = "the program knows no key like it", .err = err};
}

static int made(struct tr_yaml_doc *doc, struct tr_configfile **ret, struct tr_err *err)
{
    struct tr_configfile *f = tr_calloc(1, sizeof *f);
    if (!f) {
        tr_yaml_free(doc);
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for the configuration");
    }
    f->doc = doc;
    tr_arena_init(&f->arena, 4096, 0);
    if (tr_yaml_root(doc)->kind != TR_YAML_MAP && !tr_yaml_root(doc)->null) {
        struct tr_fill fill = fill_of(f, err);
        tr_fill_bad(&fill, 1, "the file must hold sections: source, sinks, …");
        tr_configfile_free(f);
        return TR_REJECT;
    }
    *ret = f;
    return TR_OK;
}

int tr_configfile_load(const char *path, struct tr_configfile **ret, struct tr_err *err)
{
    struct tr_yaml_doc *doc = NULL;
    int rc = tr_yaml_load(path, &doc, err);
    return rc < 0 ? rc : made(doc, ret, err);
}

int tr_configfile_parse(const char *text, const char *name, struct tr_configfile **ret, struct tr_err *err)
{
    struct tr_yaml_doc *doc = NULL;
    int rc = tr_yaml_parse(text, name, &doc, err);
    return rc < 0 ? rc : made(doc, ret, err);
}

void *tr_configfile_alloc(struct tr_configfile *f, size_t bytes)
{
    return tr_arena_calloc(&f->arena, 1, bytes);
}

/* Remembers that it was asked for. */
static int ask(struct tr_fill *fill, const char **v, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(v[i], name))
            return TR_OK;
    char *copy = tr_arena_alloc(fill->arena, strlen(name) + 1);
    if (!copy)
        return tr_fill_nomem(fill);
    if (*n == ASKED_MAX)
        return tr_err_set(fill->err, TR_REJECT, TR_DOM_CONFIG, "%s: more than %d sections or sinks are asked for", tr_yaml_name(fill->doc), ASKED_MAX);
    memcpy(copy, name, strlen(name) + 1);
    v[(*n)++] = copy;
    return TR_OK;
}

int tr_configfile_section(struct tr_configfile *f, const char *section, const struct tr_field *fields, size_t n, void *to, struct tr_err *err)
{
    struct tr_fill fill = fill_of(f, err);
    int rc = ask(&fill, f->sections, &f->n_sections, section);
    return rc < 0 ? rc : tr_fill_section(&fill, tr_yaml_root(f->doc), section, &(struct tr_fill_table){fields, n, to, true});
}

/* NULL: the list has none of that name. */
static int find_sink(struct tr_fill *fill, const char *name, const struct tr_yaml **ret)
{
    const struct tr_yaml *list = tr_yaml_get(tr_yaml_root(fill->doc), "sinks");
    *ret = NULL;
    int rc = tr_fill_resolved(fill, "", tr_yaml_root(fill->doc), "sinks");
    if (rc < 0 || !list || list->null)
        return rc;
    if (list->kind != TR_YAML_LIST)
        return tr_fill_bad(fill, list->line, "sinks is a list, each member with a name");
    for (size_t i = 0; i < list->n; i++) {
        const char *is = NULL;
        rc = tr_fill_name(fill, &list->v[i], i, &is);
        if (rc < 0)
            return rc;
        if (!strcmp(is, name) && *ret)
            return tr_fill_bad(fill, list->v[i].line, "two sinks are named %s", name);
        if (!strcmp(is, name))
            *ret = &list->v[i];
    }
    return TR_OK;
}

int tr_configfile_sink(struct tr_configfile *f, const char *name, const char *type, const struct tr_field *common, size_t n_common, void *to, const struct tr_field *own, size_t n_own, void *to_own,
                       struct tr_err *err)
{
    struct tr_fill fill = fill_of(f, err);
    const struct tr_yaml *y = NULL;
    char path[80];
    snprintf(path, sizeof path, "sinks[%.40s].", name);
    int rc = ask(&fill, f->sinks, &f->n_sinks, name);
    if (rc >= 0)
        rc = find_sink(&fill, name, &y);
    if (rc >= 0 && y)
        rc = tr_fill_resolved(&fill, path, y, "type");
    const struct tr_yaml *is = tr_yaml_get(y, "type");
    if (rc >= 0 && is && is->kind != TR_YAML_SCALAR)
        rc = tr_fill_bad(&fill, is->line, "%stype is one word", path);
    const char *says = y ? tr_fill_word(y, "type", type) : type;
    if (rc >= 0 && strcmp(says, type) != 0)
        rc = tr_fill_bad(&fill, y->line, "sink %s is a %s in this program, not a %.60s: correct type, or leave it out", name, type, says);
    if (rc < 0)
        return rc;
    static const char *const read_here[] = {"name", "type"};
    const struct tr_fill_table tables[] = {{common, n_common, to, false}, {own, n_own, to_own, true}};
    return tr_fill_map(&fill, path, y, y ? y->line : 1, tables, TR_ARRAY_LEN(tables), read_here, TR_ARRAY_LEN(read_here));
}

static bool asked(const char *const *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(v[i], name))
            return true;
    return false;
}

int tr_configfile_finish(struct tr_configfile *f, struct tr_err *err)
{
    struct tr_fill fill = fill_of(f, err);
    const struct tr_yaml *root = tr_yaml_root(f->doc);
    const char *known[ASKED_MAX + 1];
    memcpy(known, f->sections, f->n_sections * sizeof *known);
    known[f->n_sections] = "sinks";
    for (size_t i = 0; root->kind == TR_YAML_MAP && i < root->n; i++) {
        const struct tr_yaml *y = &root->v[i];
        if (!strcmp(y->key, "sinks") || asked(f->sections, f->n_sections, y->key))
            continue;
        const char *near = tr_nearest(tr_slice_str(y->key), known, f->n_sections + 1);
        return near ? tr_fill_bad(&fill, y->key_line, "unknown section %.60s; did you mean %s?", y->key, near) : tr_fill_bad(&fill, y->key_line, "unknown section %.60s: nothing in this program asks for it", y->key);
    }
    const struct tr_yaml *sinks = tr_yaml_get(root, "sinks");
    for (size_t i = 0; sinks && sinks->kind == TR_YAML_LIST && i < sinks->n; i++) {
        const char *name = NULL;
        int rc = tr_fill_name(&fill, &sinks->v[i], i, &name);
        if (rc < 0)
            return rc;
        if (asked(f->sinks, f->n_sinks, name))
            continue;
        const char *near = tr_nearest(tr_slice_str(name), f->sinks, f->n_sinks);
        return tr_fill_bad(&fill, sinks->v[i].line, near ? "this program has no sink %s; did you mean %s?" : "this program has no sink %s%s", name, near ? near : "");
    }
    return TR_OK;
}

struct tr_configfile *tr_configfile_free(struct tr_configfile *f)
{
    if (!f)
        return NULL;
    tr_arena_done(&f->arena);
    tr_yaml_free(f->doc);
    tr_free(f);
    return NULL;
}
