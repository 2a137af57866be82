/*
 * config_yaml.h: a YAML file as a plain tree, with ${NAME} and ${NAME:-default} replaced from the environment in every scalar. $$ is a
 * dollar sign. A scalar with a name that is not set and has no default is marked with it: whether that matters is for the reader to say.
 *
 * Owner: the document owns all nodes and strings. Threads: one at a time. Errors: REJECT in domain CONFIG, with file and line in where and message.
 */
#ifndef TR_CONFIG_YAML_H
#define TR_CONFIG_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include <tailrace/err.h>

enum tr_yaml_kind { TR_YAML_SCALAR, TR_YAML_LIST, TR_YAML_MAP };

struct tr_yaml {
    enum tr_yaml_kind kind;
    int line;               /* 1-based */
    const char *key;        /* of a map's member */
    int key_line;
    const char *text;       /* SCALAR; "" for null */
    bool null;
    const char *unset;      /* SCALAR: the environment variable that it needs and that is not set (text is without it); else NULL */
    struct tr_yaml *v;      /* LIST, MAP: members */
    size_t n;
};

struct tr_yaml_doc;

int tr_yaml_load(const char *path, struct tr_yaml_doc **ret, struct tr_err *err);
int tr_yaml_parse(const char *text, const char *name, struct tr_yaml_doc **ret, struct tr_err *err);
const struct tr_yaml *tr_yaml_root(const struct tr_yaml_doc *d);
const char *tr_yaml_name(const struct tr_yaml_doc *d);
struct tr_yaml_doc *tr_yaml_free(struct tr_yaml_doc *d);

const struct tr_yaml *tr_yaml_get(const struct tr_yaml *map, const char *key); /* NULL: not there */

#endif
