/*
 * config.h: the configuration as the program uses it: loaded once, checked against the field tables of its sections and components.
 *
 * Unknown keys are refused with file, line and the nearest known key; values with what was found, what is allowed and where. Secrets
 * are never part of a message.
 *
 * Owner: tr_config owns every string and options struct; free it after everything made from it. Threads: read-only after load.
 */
#ifndef TR_CONFIG_H
#define TR_CONFIG_H

#include "settings.h"

#include <tailrace/buf.h>

/* The components the program knows; given by the composition root. */
struct tr_registry {
    const struct tr_source_type *const *sources;
    size_t n_sources;
    const struct tr_sink_type *const *sinks;
    size_t n_sinks;
};

struct tr_config_sink {
    struct tr_set_sink common;
    const struct tr_sink_type *type;
    void *options;
};

struct tr_config {
    struct tr_set_root root;
    struct tr_set_source source;
    const struct tr_source_type *source_type;
    void *source_options;
    struct tr_config_sink *sinks;
    uint32_t n_sinks;
    struct tr_set_log log;
    struct tr_set_snapshot snapshot;
    struct tr_set_engine engine;
    struct tr_set_admin admin;
    struct tr_set_logging logging;
};

/* Who only looks needs no connection strings: a component's own field that names an environment variable which is not set is left empty then,
 * and no component may be made from it. Everything else must resolve all the same. */
enum tr_config_use { TR_CONFIG_TO_RUN, TR_CONFIG_TO_LOOK };

int tr_config_load(const char *path, const struct tr_registry *reg, enum tr_config_use use, struct tr_config **ret, struct tr_err *err);
int tr_config_parse(const char *text, const char *name, const struct tr_registry *reg, enum tr_config_use use, struct tr_config **ret, struct tr_err *err);
struct tr_config *tr_config_free(struct tr_config *c);

/* Everything that can be configured, from the same tables: for a terminal, as a manual page (mdoc), as Markdown, as a JSON Schema. */
enum tr_config_doc { TR_CONFIG_TEXT, TR_CONFIG_MAN, TR_CONFIG_MARKDOWN, TR_CONFIG_SCHEMA };
int tr_config_document(const struct tr_registry *reg, enum tr_config_doc form, struct tr_buf *out);

#endif
