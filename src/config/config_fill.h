/*
 * config_fill.h: structs filled from the maps of a YAML document, by field tables (tailrace/component.h). What is wrong is said with file and line,
 * what is allowed, and the nearest known key.
 */
#ifndef TR_CONFIG_FILL_H
#define TR_CONFIG_FILL_H

#include <tailrace/component.h>

#include "arena.h"
#include "config_yaml.h"

struct tr_fill { /* one reading of a document */
    const struct tr_yaml_doc *doc;
    struct tr_arena *arena;   /* lists are made in it */
    bool look;                /* a component's field whose environment variable is not set is left empty */
    const char *more;         /* ends the message about an unknown key: where the known ones are */
    struct tr_err *err;
};

struct tr_fill_table {
    const struct tr_field *fields;
    size_t n;
    void *to;
    bool component;           /* the fields are a component's own */
};

int tr_fill_bad(struct tr_fill *f, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4))); /* REJECT */
int tr_fill_nomem(struct tr_fill *f);

/* A map filled into one or more structs; NULL: nothing stands there. path: said before a key in messages, as in "engine."; extra: keys that are read elsewhere. */
int tr_fill_map(struct tr_fill *f, const char *path, const struct tr_yaml *map, int line, const struct tr_fill_table *tables, size_t n_tables, const char *const *extra, size_t n_extra);
int tr_fill_section(struct tr_fill *f, const struct tr_yaml *root, const char *name, const struct tr_fill_table *table);

/* What kind of thing a section is, and its name, are read before its fields. */
const char *tr_fill_word(const struct tr_yaml *map, const char *key, const char *def);
int tr_fill_resolved(struct tr_fill *f, const char *path, const struct tr_yaml *map, const char *key);
int tr_fill_name(struct tr_fill *f, const struct tr_yaml *sink, size_t index, const char **ret); /* of an item of sinks */

#endif
