/*
 * component.h: how a connector describes itself, once.
 *
 * A connector is one folder and one `const struct tr_source_type` or `tr_sink_type`. Its field table yields validation, help
 * text, the manual page, the JSON Schema and redaction, so that none of them can disagree. Only a composition root names the types: tailrace itself, or a program (pipeline.h).
 *
 * Field values are stored into the component's own options struct at `offset`:
 *   STRING, SECRET  const char * (NUL terminated, owned by the config document; SECRET is never printed)
 *   BOOL            bool
 *   INT             int64_t
 *   SIZE            uint64_t bytes ("64MiB")
 *   DURATION        int64_t ns ("5s")
 *   ENUM            int32_t index into choices
 *   LIST            struct tr_strv
 * min/max bound INT, SIZE (bytes) and DURATION (ns); 0/0 means unbounded. A NULL default makes the field required unless
 * `optional` is set (then the zero value means "not given").
 *
 * tr_field is also what the other sections of a configuration are made of, a program's own included (configfile.h).
 */
#ifndef TAILRACE_COMPONENT_H
#define TAILRACE_COMPONENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tailrace/err.h>

#define TR_COMPONENT_ABI 1

enum tr_field_type { TR_F_STRING, TR_F_SECRET, TR_F_BOOL, TR_F_INT, TR_F_SIZE, TR_F_DURATION, TR_F_ENUM, TR_F_LIST };

struct tr_strv {
    const char *const *v;
    size_t n;
};

struct tr_field {
    const char *name;
    enum tr_field_type type;
    bool optional;
    const char *def;             /* default, as it would be written in YAML */
    int64_t min, max;
    const char *unit;            /* for people: "bytes", "rows", … */
    const char *const *choices;  /* ENUM: NULL terminated */
    const char *help;            /* one or two sentences */
    size_t offset;
};

struct tr_source;
struct tr_cdc;
struct tr_sink;
struct tr_metrics;

/* What the composition root hands to a component when it makes one. */
struct tr_component_env {
    const char *name;            /* as configured */
    struct tr_metrics *metrics;
    const char *state_dir;       /* where it may keep files of its own (spills, positions); exists. NULL: there is none */
    uint64_t lease_token;        /* sinks: fencing token of this process; 0: there is none, and nobody is fenced (processes that share their work) */
    struct tr_strv hard_delete;  /* sinks: patterns of tables whose deleted rows go instead of becoming tombstones */
};

struct tr_source_type {
    uint32_t abi;
    const char *name;            /* "postgres" */
    const char *help;
    const struct tr_field *fields;
    size_t n_fields, options_size;
    /* exactly one of the two */
    int (*source_new)(const void *options, const struct tr_component_env *env, struct tr_source **ret, struct tr_err *err);
    int (*cdc_new)(const void *options, const struct tr_component_env *env, struct tr_cdc **ret, struct tr_err *err);
};

struct tr_sink_type {
    uint32_t abi;
    const char *name;            /* "sqlite" */
    const char *help;
    const struct tr_field *fields;
    size_t n_fields, options_size;
    uint32_t caps;
    int64_t pace_ns;             /* tr_sink_tuning: single rows are gathered so long, lest each be a write */
    int64_t linger_min_ns;       /* a write of it costs so much that rows are gathered for at least so long while they keep coming; 0: none does */
    /* May be NULL. Why a table of the source cannot be kept under its name, "" if it can; needs no connection. */
    void (*check_table)(const void *options, const char *ns, const char *name, char *ret, size_t cap);
    int (*sink_new)(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err);
};

#endif
