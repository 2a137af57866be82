#include "pipeline_internal.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "fs.h"

#define S INT64_C(1000000000)
#define MS INT64_C(1000000)
#define MIB (INT64_C(1) << 20)
#define GIB (INT64_C(1) << 30)

#define F(field) offsetof(struct pl_settings, field)

static const struct tr_field settings[] = {
    {.name = "threads", .type = TR_F_INT, .def = "1", .min = 1, .max = 256, .offset = F(threads), .help = "Threads that poll, run the chain and encode. More than the source has lanes are idle."},
    {.name = "poll_max", .type = TR_F_INT, .def = "1024", .min = 1, .max = 1 << 20, .unit = "payloads", .offset = F(poll_max), .help = "At most this many payloads in a poll."},
    {.name = "max_inflight", .type = TR_F_SIZE, .optional = true, .min = MIB, .max = 1024 * GIB, .offset = F(max_inflight), .help = "Memory for rows between the source and the durable write. By default 256MiB for each sink."},
    {.name = "commit_interval", .type = TR_F_DURATION, .def = "5s", .min = 10 * MS, .max = 600 * S, .offset = F(commit_interval_ns), .help = "How often positions are handed to the source; what lies behind them is read again after a crash."},
    {.name = "drain_timeout", .type = TR_F_DURATION, .def = "25s", .min = S, .max = 3600 * S, .offset = F(drain_timeout_ns), .help = "How long a stop may take before unwritten batches are abandoned (and read again at the next start)."},
    {.name = "stalled_fail_after", .type = TR_F_DURATION, .def = "120s", .min = S, .max = 86400 * S, .offset = F(stalled_fail_after_ns), .help = "A position stuck behind a failed batch this long fails the pipeline."},
    {.name = "start_timeout", .type = TR_F_DURATION, .def = "60s", .min = 0, .max = 86400 * S, .offset = F(start_timeout_ns), .help = "How long a start waits for sinks that cannot be reached."},
    {.name = "state_dir", .type = TR_F_STRING, .optional = true, .offset = F(state_dir), .help = "Directory where the source and the sinks may keep files; made when it is not there."},
};
#undef F

struct sink_settings { /* what every sink has in the file */
    int64_t linger_ns, batch_rows, write_timeout_ns, inflight;
    uint64_t batch_size, chunk_size;
    bool order_none;
};

#define F(field) offsetof(struct sink_settings, field)

static const struct tr_field sink_fields[] = {
    {.name = "batch_rows", .type = TR_F_INT, .def = "100000", .min = 1, .max = 10000000, .unit = "rows", .offset = F(batch_rows), .help = "A batch holds at most about this many rows."},
    {.name = "batch_size", .type = TR_F_SIZE, .def = "16MiB", .min = 64 << 10, .max = 4 * GIB, .offset = F(batch_size), .help = "A batch holds at most about this many bytes."},
    {.name = "chunk_size", .type = TR_F_SIZE, .def = "1MiB", .min = 4 << 10, .max = GIB, .offset = F(chunk_size), .help = "Rows are handed over in chunks of about this size."},
    {.name = "linger", .type = TR_F_DURATION, .def = "1s", .min = 0, .max = 600 * S, .offset = F(linger_ns), .help = "How long a batch may wait for more rows while rows keep coming; an idle sink writes at once. At least what the sink is made for (ClickHouse: 500ms)."},
    {.name = "write_timeout", .type = TR_F_DURATION, .def = "30s", .min = 100 * MS, .max = 3600 * S, .offset = F(write_timeout_ns), .help = "A write that takes longer is given up and tried again."},
    {.name = "inflight", .type = TR_F_INT, .def = "2", .min = 1, .max = 64, .offset = F(inflight), .help = "Concurrent writes per shard, where the sink keeps the order of a key."},
    {.name = "order_none", .type = TR_F_BOOL, .def = "false", .offset = F(order_none), .help = "Rows of a key may be written in any order: concurrent writes for any sink."},
};
#undef F

/* ---- life ---- */

struct tr_pipeline *tr_pipeline_free(struct tr_pipeline *p)
{
    if (!p)
        return NULL;
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        p->outputs[i].sink->ops->close(p->outputs[i].sink);
        tr_schema_unref(p->outputs[i].table);
    }
    tr_metrics_free(p->metrics);
    tr_configfile_free(p->file);
    tr_free(p);
    return NULL;
}

static int sections(struct tr_pipeline *p, struct tr_err *err)
{
    struct tr_set_logging logging = {0};
    const struct tr_section *a = &tr_sections[TR_SEC_ADMIN], *l = &tr_sections[TR_SEC_LOGGING];
    int rc = tr_configfile_section(p->file, "pipeline", settings, TR_ARRAY_LEN(settings), &p->set, err);
    if (rc >= 0)
        rc = tr_configfile_section(p->file, a->name, a->fields, a->n, &p->admin, err);
    if (rc >= 0)
        rc = tr_configfile_section(p->file, l->name, l->fields, l->n, &logging, err);
    if (rc >= 0)
        tr_oslog_setup((enum tr_oslog_level)logging.level, logging.format == 1, 2);
    return rc;
}

static int named(const char *name, struct tr_err *err)
{
    const size_t max = sizeof((struct tr_pipeline *)NULL)->name - 1;
    if (name && *name && strlen(name) <= max)
        return TR_OK;
    return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "a pipeline needs a name of 1 to %zu bytes", max);
}

static int made(const char *name, struct tr_configfile *file, struct tr_pipeline **ret, struct tr_err *err)
{
    struct tr_pipeline *p = tr_calloc(1, sizeof *p);
    if (!p) {
        tr_configfile_free(file);
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for pipeline %s", name);
    }
    p->file = file;
    snprintf(p->name, sizeof p->name, "%s", name);
    int rc = sections(p, err);
    if (rc >= 0)
        rc = tr_metrics_new(&p->metrics, err);
    if (rc >= 0 && p->set.state_dir && !*p->set.state_dir)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline.state_dir is empty: name a directory, or leave it out");
    if (rc >= 0 && p->set.state_dir)
        rc = tr_fs_mkdir_p(tr_fs_posix(), p->set.state_dir, err);
    if (rc < 0) {
        tr_pipeline_free(p);
        return rc;
    }
    *ret = p;
    return TR_OK;
}

int tr_pipeline_new(const char *name, const char *path, struct tr_pipeline **ret, struct tr_err *err)
{
    struct tr_configfile *file = NULL;
    int rc = named(name, err);
    if (rc >= 0)
        rc = path ? tr_configfile_load(path, &file, err) : tr_configfile_parse("{}", name, &file, err);
    return rc < 0 ? rc : made(name, file, ret, err);
}

int tr_pipeline_parse(const char *name, const char *text, const char *from, struct tr_pipeline **ret, struct tr_err *err)
{
    struct tr_configfile *file = NULL;
    int rc = named(name, err);
    if (rc >= 0)
        rc = tr_configfile_parse(text, from, &file, err);
    return rc < 0 ? rc : made(name, file, ret, err);
}

/* ---- what it is built of ---- */

int tr_pipeline_section(struct tr_pipeline *p, const char *section, const struct tr_field *fields, size_t n, void *to, struct tr_err *err)
{
    static const char *const ours[] = {"pipeline", "source", "sinks", "admin", "logging"};
    for (size_t i = 0; i < TR_ARRAY_LEN(ours); i++)
        if (!strcmp(section, ours[i]))
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s: the section %s is tailrace's: give the program's own another name", p->name, section);
    return tr_configfile_section(p->file, section, fields, n, to, err);
}

struct tr_metrics *tr_pipeline_metrics(struct tr_pipeline *p)
{
    return p->metrics;
}

uint32_t tr_pipeline_threads(const struct tr_pipeline *p)
{
    return (uint32_t)p->set.threads;
}

static struct tr_component_env env_of(struct tr_pipeline *p, const char *name)
{
    return (struct tr_component_env){.name = name, .metrics = p->metrics, .state_dir = p->set.state_dir};
}

/* Options live as long as the file: components may point into them. */
static int options_of(struct tr_pipeline *p, size_t size, void **ret, struct tr_err *err)
{
    *ret = tr_configfile_alloc(p->file, size + 1);
    return *ret ? TR_OK : tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for pipeline %s", p->name);
}

static int fits(const struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err)
{
    if (!o->name || !o->table || !o->type == !o->sink)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s: output %u needs a name, a table, and either a type or a sink", p->name, p->n_outputs);
    if (p->n_outputs == TR_CHAIN_OUTPUTS_MAX)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s: a chain has at most %d outputs", p->name, TR_CHAIN_OUTPUTS_MAX);
    if (o->variant == TR_TARGET_MIRROR && !o->table->n_key)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "sink %s: a mirror keeps one row per key, and table %s.%s has none: give its columns key_pos, or the output the variant TR_TARGET_APPEND", o->name,
                          o->table->ns, o->table->name);
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        if (!strcmp(p->outputs[i].name, o->name))
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s: there is a sink %s already: give each output a name of its own", p->name, o->name);
        if (o->sink == p->outputs[i].sink)
            return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s: sinks %s and %s are one struct tr_sink: make one for each output", p->name, p->outputs[i].name, o->name);
    }
    if (o->type && o->type->abi != TR_COMPONENT_ABI)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "sink %s: type %s was built for another version of tailrace (ABI %u, here %d): build it again", o->name, o->type->name, o->type->abi, TR_COMPONENT_ABI);
    return TR_OK;
}

static int add(struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err)
{
    int rc = fits(p, o, err);
    if (rc < 0)
        return rc;
    struct pl_output *k = &p->outputs[p->n_outputs];
    struct sink_settings s = {0};
    void *options = NULL;
    char *name = tr_configfile_alloc(p->file, strlen(o->name) + 1);
    const struct tr_sink_type *t = o->type;
    if (!name)
        return tr_err_set(err, TR_NOMEM, TR_DOM_CONFIG, "no memory for pipeline %s", p->name);
    memcpy(name, o->name, strlen(o->name));
    rc = options_of(p, t ? t->options_size : 0, &options, err);
    if (rc >= 0)
        rc = tr_configfile_sink(p->file, name, t ? t->name : "program", sink_fields, TR_ARRAY_LEN(sink_fields), &s, t ? t->fields : NULL, t ? t->n_fields : 0, options, err);
    *k = (struct pl_output){.name = name, .sink = o->sink, .variant = o->variant, .env = env_of(p, name)};
    if (rc >= 0 && t)
        rc = t->sink_new(options, &k->env, &k->sink, err);
    if (rc < 0)
        return rc;
    tr_sink_tuning_default(&k->tuning);
    k->tuning.linger_ns = t ? TR_MAX(s.linger_ns, t->linger_min_ns) : s.linger_ns;
    k->tuning.pace_ns = t ? t->pace_ns : 0;
    k->tuning.batch_rows_max = (uint64_t)s.batch_rows;
    k->tuning.batch_bytes_max = s.batch_size;
    k->tuning.chunk_bytes = s.chunk_size;
    k->tuning.write_timeout_ns = s.write_timeout_ns;
    k->tuning.inflight = (uint32_t)s.inflight;
    k->tuning.order_none = s.order_none;
    k->table = tr_schema_ref(o->table);
    p->n_outputs++;
    return TR_OK;
}

int tr_pipeline_sink(struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err)
{
    if (p->n_outputs)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s has a sink, %s: a further output is tr_pipeline_add_sink's", p->name, p->outputs[0].name);
    return add(p, o, err);
}

int tr_pipeline_add_sink(struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err)
{
    if (!p->n_outputs)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "pipeline %s has no sink yet: the first output is tr_pipeline_sink's", p->name);
    return add(p, o, err);
}

int tr_pipeline_source(struct tr_pipeline *p, const struct tr_source_type *type, struct tr_source **ret, struct tr_err *err)
{
    void *options = NULL;
    if (type->abi != TR_COMPONENT_ABI)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "source type %s was built for another version of tailrace (ABI %u, here %d): build it again", type->name, type->abi, TR_COMPONENT_ABI);
    if (!type->source_new)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "source type %s yields row changes, which the change log takes: tailrace run, and read its sinks", type->name);
    int rc = options_of(p, type->options_size, &options, err);
    if (rc >= 0)
        rc = tr_configfile_section(p->file, "source", type->fields, type->n_fields, options, err);
    p->source_env = env_of(p, p->name);
    return rc < 0 ? rc : type->source_new(options, &p->source_env, ret, err);
}
