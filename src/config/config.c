#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "config_fill.h"
#include "text.h"

struct whole {
    struct tr_config cfg; /* first: what the caller holds */
    struct tr_arena arena;
    struct tr_yaml_doc *doc;
};

struct filler {
    struct tr_fill fill;
    struct whole *w;
    const struct tr_registry *reg;
};


static int section(struct filler *f, int which, const struct tr_yaml *root, void *base)
{
    const struct tr_section *s = &tr_sections[which];
    return tr_fill_section(&f->fill, root, s->name, &(struct tr_fill_table){s->fields, s->n, base, false});
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
        return tr_fill_bad(&f->fill, y ? y->line : 1, "the section source is missing: it names the database to capture");
    int rc = tr_fill_resolved(&f->fill, "source.", y, "type");
    if (rc < 0)
        return rc;
    const char *type = tr_fill_word(y, "type", "postgres");
    const char *names[16];
    for (size_t i = 0; i < f->reg->n_sources; i++) {
        names[i] = f->reg->sources[i]->name;
        if (!strcmp(f->reg->sources[i]->name, type))
            c->source_type = f->reg->sources[i];
    }
    if (!c->source_type) {
        char all[200];
        return tr_fill_bad(&f->fill, tr_yaml_get(y, "type")->line, "there is no source of type '%s'; there are: %s", type, list(names, f->reg->n_sources, all, sizeof all));
    }
    c->source_options = tr_arena_calloc(&f->w->arena, 1, c->source_type->options_size);
    if (!c->source_options)
        return tr_fill_nomem(&f->fill);
    const struct tr_fill_table tables[] = {{tr_sections[TR_SEC_SOURCE].fields, tr_sections[TR_SEC_SOURCE].n, &c->source, false}, {c->source_type->fields, c->source_type->n_fields, c->source_options, true}};
    return tr_fill_map(&f->fill, "source.", y, y->line, tables, TR_ARRAY_LEN(tables), NULL, 0);
}

static int one_sink(struct filler *f, const struct tr_yaml *y, struct tr_config_sink *s, size_t index)
{
    char path[80];
    const char *name = NULL;
    int rc = tr_fill_name(&f->fill, y, index, &name);
    if (rc < 0)
        return rc;
    snprintf(path, sizeof path, "sinks[%.40s].", name);
    rc = tr_fill_resolved(&f->fill, path, y, "type");
    if (rc < 0)
        return rc;
    const char *type = tr_fill_word(y, "type", NULL);
    if (!type)
        return tr_fill_bad(&f->fill, y->line, "sink %s has no type", name);
    const char *names[16];
    for (size_t i = 0; i < f->reg->n_sinks && i < TR_ARRAY_LEN(names); i++) {
        names[i] = f->reg->sinks[i]->name;
        if (!strcmp(names[i], type))
            s->type = f->reg->sinks[i];
    }
    if (!s->type) {
        char all[200];
        return tr_fill_bad(&f->fill, tr_yaml_get(y, "type")->line, "there is no sink of type '%s'; there are: %s", type, list(names, f->reg->n_sinks, all, sizeof all));
    }
    s->options = tr_arena_calloc(&f->w->arena, 1, s->type->options_size);
    if (!s->options)
        return tr_fill_nomem(&f->fill);
    const struct tr_fill_table tables[] = {{tr_sections[TR_SEC_SINK].fields, tr_sections[TR_SEC_SINK].n, &s->common, false}, {s->type->fields, s->type->n_fields, s->options, true}};
    return tr_fill_map(&f->fill, path, y, y->line, tables, TR_ARRAY_LEN(tables), NULL, 0);
}

static int sinks(struct filler *f, const struct tr_yaml *root)
{
    struct tr_config *c = &f->w->cfg;
    const struct tr_yaml *y = tr_yaml_get(root, "sinks");
    int rc = tr_fill_resolved(&f->fill, "", root, "sinks");
    if (rc < 0)
        return rc;
    if (!y || y->kind != TR_YAML_LIST || y->n == 0)
        return tr_fill_bad(&f->fill, y ? y->line : 1, "sinks is missing: a list of at least one sink, each with name and type");
    c->sinks = tr_arena_calloc(&f->w->arena, y->n, sizeof *c->sinks);
    if (!c->sinks)
        return tr_fill_nomem(&f->fill);
    for (size_t i = 0; i < y->n; i++) {
        rc = one_sink(f, &y->v[i], &c->sinks[i], i);
        if (rc < 0)
            return rc;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(c->sinks[k].common.name, c->sinks[i].common.name))
                return tr_fill_bad(&f->fill, y->v[i].line, "two sinks are named %s; positions are kept by name", c->sinks[i].common.name);
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
        return tr_fill_bad(&f->fill, line, "admin.listen must be address:port, as in 127.0.0.1:7171, or off, not '%.60s'", l);
    if (tr_parse_u64(tr_slice_str(colon + 1), &port, NULL) < 0 || port > 65535)
        return tr_fill_bad(&f->fill, line, "admin.listen needs a port from 0 to 65535, not '%.60s'; set one that is free, as in 127.0.0.1:7171", colon + 1);
    size_t n = (size_t)(colon - l);
    bool v6 = l[0] == '[' && n > 2 && l[n - 1] == ']' && strspn(l + 1, "0123456789abcdefABCDEF:.") == n - 2, v4 = strspn(l, "0123456789.") == n;
    if (!v6 && !v4 && strncmp(l, "localhost:", 10) != 0)
        return tr_fill_bad(&f->fill, line, "admin.listen needs a numeric address, as in 127.0.0.1:7171 or [::1]:7171, not '%.*s'", (int)TR_MIN(n, (size_t)60), l);
    return TR_OK;
}

static int all(struct filler *f)
{
    struct tr_config *c = &f->w->cfg;
    const struct tr_yaml *root = tr_yaml_root(f->w->doc);
    if (root->null)
        return tr_fill_bad(&f->fill, 1, "the file is empty; tailrace init writes a working one");
    if (root->kind != TR_YAML_MAP)
        return tr_fill_bad(&f->fill, 1, "the file must hold sections: source, sinks, …; tailrace init writes a working one");
    const char *extra[TR_SEC_COUNT];
    size_t n_extra = 0;
    for (int i = 1; i < TR_SEC_COUNT; i++)
        extra[n_extra++] = tr_sections[i].name;
    const struct tr_fill_table table = {tr_sections[TR_SEC_ROOT].fields, tr_sections[TR_SEC_ROOT].n, &c->root, false};
    int rc = tr_fill_map(&f->fill, "", root, 1, &table, 1, extra, n_extra);
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
    struct filler f = {.fill = {.doc = doc, .arena = &w->arena, .look = use == TR_CONFIG_TO_LOOK, .more = "tailrace help config lists all keys", .err = err}, .w = w, .reg = reg};
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
    if (rc == TR_REJECT && err && err->code == ENOENT)
        return tr_err_set(err, rc, TR_DOM_CONFIG, "%s; make one with: tailrace init --dsn postgresql://… -o %s", err->msg, path);
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
