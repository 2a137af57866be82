/*
 * settings.h: the sections of the configuration that are the program's own, each a struct and the field table it is filled by.
 */
#ifndef TR_SETTINGS_H
#define TR_SETTINGS_H

#include <tailrace/component.h>

struct tr_set_root {
    const char *state_dir;
};

struct tr_set_log {
    uint64_t segment_size, size_max;
    int64_t retention_ns;
};

struct tr_set_snapshot {
    int64_t workers, tables, chunk_rows;
    uint64_t chunk_size;
};

struct tr_set_engine {
    int64_t commit_interval_ns, drain_timeout_ns, stalled_fail_after_ns, heartbeat_ns;
    uint64_t max_inflight;
};

struct tr_set_admin {
    const char *listen;
};

struct tr_set_logging {
    int32_t level, format;
};

/* What every sink has beside its own fields. */
struct tr_set_sink {
    const char *name, *type;
    struct tr_strv tables, exclude, changelog, hard_delete;
    int64_t freshness_ns, linger_ns, batch_rows, write_timeout_ns;
    uint64_t batch_size, max_inflight;
};

struct tr_set_source {
    const char *name, *type;
};

struct tr_section {
    const char *name;   /* "" : top level */
    const char *help;
    const struct tr_field *fields;
    size_t n;
};

enum { TR_SEC_ROOT, TR_SEC_SOURCE, TR_SEC_SINK, TR_SEC_LOG, TR_SEC_SNAPSHOT, TR_SEC_ENGINE, TR_SEC_ADMIN, TR_SEC_LOGGING, TR_SEC_COUNT };
extern const struct tr_section tr_sections[TR_SEC_COUNT];

#endif
