#include "settings.h"

#include "check.h"

#define S INT64_C(1000000000)
#define MS INT64_C(1000000)
#define MIB (INT64_C(1) << 20)
#define GIB (INT64_C(1) << 30)

#define F(type, field) offsetof(struct tr_set_##type, field)

static const struct tr_field root[] = {
    {.name = "state_dir", .type = TR_F_STRING, .def = "tailrace-state", .offset = F(root, state_dir),
     .help = "Directory of the change log, the control store and spill files. One process at a time; relative to the working directory."},
};

static const struct tr_field source[] = {
    {.name = "name", .type = TR_F_STRING, .def = "main", .offset = F(source, name), .help = "Name of the source, in metrics, logs and the control store."},
    {.name = "type", .type = TR_F_STRING, .def = "postgres", .offset = F(source, type), .help = "What kind of source."},
};

static const struct tr_field sink[] = {
    {.name = "name", .type = TR_F_STRING, .offset = F(sink, name), .help = "Name of the sink; its position is kept under it."},
    {.name = "type", .type = TR_F_STRING, .offset = F(sink, type), .help = "What kind of sink."},
    {.name = "tables", .type = TR_F_LIST, .optional = true, .offset = F(sink, tables), .help = "Patterns of captured tables this sink mirrors; all by default."},
    {.name = "exclude", .type = TR_F_LIST, .optional = true, .offset = F(sink, exclude), .help = "Patterns of tables to leave out."},
    {.name = "changelog", .type = TR_F_LIST, .optional = true, .offset = F(sink, changelog), .help = "Patterns of tables that also get an append-only history."},
    {.name = "hard_delete", .type = TR_F_LIST, .optional = true, .offset = F(sink, hard_delete),
     .help = "Patterns of tables whose deleted rows are removed. By default they are marked (_tr_deleted) and keep their last values."},
    {.name = "freshness", .type = TR_F_DURATION, .def = "60s", .min = MS, .max = 7 * 86400 * S, .offset = F(sink, freshness_ns),
     .help = "Target of end-to-end lag; over it for five minutes raises an alarm."},
    {.name = "batch_rows", .type = TR_F_INT, .def = "10000", .min = 1, .max = 10000000, .unit = "rows", .offset = F(sink, batch_rows), .help = "A batch holds at most about this many rows."},
    {.name = "batch_size", .type = TR_F_SIZE, .def = "8MiB", .min = 64 << 10, .max = 4 * GIB, .offset = F(sink, batch_size), .help = "A batch holds at most about this many bytes."},
    {.name = "linger", .type = TR_F_DURATION, .def = "5ms", .min = 0, .max = 60 * S, .offset = F(sink, linger_ns),
     .help = "How long a batch may wait for more rows while rows keep coming; an idle sink writes at once. In a ClickHouse sink at least 500ms, and 30ms between two writes of an idle one."},
    {.name = "write_timeout", .type = TR_F_DURATION, .def = "60s", .min = S, .max = 3600 * S, .offset = F(sink, write_timeout_ns), .help = "A write that takes longer is given up and tried again."},
    {.name = "max_inflight", .type = TR_F_SIZE, .def = "128MiB", .min = MIB, .max = 64 * GIB, .offset = F(sink, max_inflight), .help = "Memory for rows between the change log and the durable write."},
};

static const struct tr_field log_[] = {
    {.name = "segment_size", .type = TR_F_SIZE, .def = "64MiB", .min = MIB, .max = 4 * GIB, .offset = F(log, segment_size), .help = "Size of one segment file."},
    {.name = "retention", .type = TR_F_DURATION, .def = "7d", .min = 60 * S, .max = 3650 * 86400 * S, .offset = F(log, retention_ns), .help = "Segments older than this are removed, unless a snapshot still needs them."},
    {.name = "size_max", .type = TR_F_SIZE, .optional = true, .def = "0", .offset = F(log, size_max), .help = "Bound of the whole log; the oldest segments go first. 0: unbounded."},
};

static const struct tr_field snapshot[] = {
    {.name = "workers", .type = TR_F_INT, .def = "2", .min = 1, .max = 64, .offset = F(snapshot, workers), .help = "Connections that read chunks at the same time."},
    {.name = "tables", .type = TR_F_INT, .def = "4", .min = 1, .max = 1000, .offset = F(snapshot, tables), .help = "Tables that are snapshotted at the same time."},
    {.name = "chunk_size", .type = TR_F_SIZE, .def = "8MiB", .min = 64 << 10, .max = GIB, .offset = F(snapshot, chunk_size), .help = "Chunks are planned to about this size; each worker holds one in memory."},
    {.name = "chunk_rows", .type = TR_F_INT, .def = "50000", .min = 50, .max = 10000000, .unit = "rows", .offset = F(snapshot, chunk_rows), .help = "At most this many rows in a chunk."},
};

static const struct tr_field engine[] = {
    {.name = "commit_interval", .type = TR_F_DURATION, .def = "5s", .min = 10 * MS, .max = 600 * S, .offset = F(engine, commit_interval_ns), .help = "How often a sink's position is recorded; what lies behind it is applied again after a crash."},
    {.name = "drain_timeout", .type = TR_F_DURATION, .def = "25s", .min = S, .max = 3600 * S, .offset = F(engine, drain_timeout_ns), .help = "How long a stop may take before unwritten batches are abandoned (and replayed at the next start)."},
    {.name = "stalled_fail_after", .type = TR_F_DURATION, .def = "120s", .min = S, .max = 86400 * S, .offset = F(engine, stalled_fail_after_ns), .help = "A pipeline whose position is stuck behind a failed batch this long is restarted."},
    {.name = "heartbeat", .type = TR_F_DURATION, .def = "10s", .min = 100 * MS, .max = 3600 * S, .offset = F(engine, heartbeat_ns), .help = "How often a heartbeat is written at the source."},
    {.name = "max_inflight", .type = TR_F_SIZE, .def = "64MiB", .min = MIB, .max = 64 * GIB, .offset = F(engine, max_inflight), .help = "Memory for changes between the source and the change log."},
};

static const struct tr_field admin[] = {
    {.name = "listen", .type = TR_F_STRING, .def = "127.0.0.1:7171", .offset = F(admin, listen), .help = "Address and port of metrics, health and status; off to have none. It has no authentication: keep it on loopback."},
};

static const char *const levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const formats[] = {"text", "json", NULL};

static const struct tr_field logging[] = {
    {.name = "level", .type = TR_F_ENUM, .def = "info", .choices = levels, .offset = F(logging, level), .help = "Least severe lines to write."},
    {.name = "format", .type = TR_F_ENUM, .def = "text", .choices = formats, .offset = F(logging, format), .help = "Form of the log lines on stderr."},
};

#define T(name, var, text) {name, text, var, TR_ARRAY_LEN(var)}

const struct tr_section tr_sections[TR_SEC_COUNT] = {
    [TR_SEC_ROOT] = T("", root, "Top level."),
    [TR_SEC_SOURCE] = T("source", source, "The database whose changes are captured."),
    [TR_SEC_SINK] = T("sinks", sink, "A list: the places that mirror it."),
    [TR_SEC_LOG] = T("log", log_, "The change log."),
    [TR_SEC_SNAPSHOT] = T("snapshot", snapshot, "How tables enter."),
    [TR_SEC_ENGINE] = T("engine", engine, "Positions, stopping, memory."),
    [TR_SEC_ADMIN] = T("admin", admin, "The HTTP endpoint."),
    [TR_SEC_LOGGING] = T("logging", logging, "The program's own log."),
};
