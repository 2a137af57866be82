/*
 * pipeline.h: a pipeline as a C program: one source, a chain of the program's own, one or more sinks, at least once.
 *
 *     int main(int argc, char **argv)
 *     {
 *         struct tr_pipeline *p = NULL;
 *         struct tr_source *source = NULL;
 *         struct tr_err err = {0};
 *         int rc = tr_pipeline_new("shop", argc > 1 ? argv[1] : NULL, &p, &err);
 *         if (rc >= 0)
 *             rc = tr_pipeline_section(p, "shop", shop_fields, N_SHOP_FIELDS, &shop, &err);
 *         if (rc >= 0)
 *             rc = tr_pipeline_sink(p, &(struct tr_output){.name = "orders", .type = &tr_clickhouse_sink_type, .table = orders}, &err);
 *         if (rc >= 0)
 *             rc = tr_pipeline_source(p, &lines_source_type, &source, &err);
 *         if (rc >= 0)
 *             rc = tr_pipeline_run(&p, &source, chain_new, &shop, &err);
 *         if (source) // not started
 *             source->ops->close(source, 0);
 *         tr_pipeline_free(p);
 *         if (rc < 0)
 *             fprintf(stderr, "shop: %s\n", err.msg);
 *         return rc < 0;
 *     }
 *
 * The file (configfile.h). Topology is code; the file configures connectors and tuning:
 *
 *     pipeline: {threads: 2, max_inflight: 256MiB}    # tailrace/runtime.h's tuning; all have defaults
 *     source: {…}                                     # fields of the source's type
 *     sinks:
 *       - name: orders                                # as in the program; tuning of any sink, and fields of its type
 *         urls: http://localhost:8123
 *     admin: {listen: 127.0.0.1:7171}                 # metrics, health, status; off to have none
 *     logging: {level: info, format: text}
 *     shop: {…}                                       # the program's own sections
 *
 * Order is not a matter of care. Metrics and the log are made by tr_pipeline_new, so nothing can be counted before there is something to count with; a
 * component is made through the pipeline, so it has them. What is being built is a struct tr_pipeline, what runs a struct tr_running: a call that
 * makes no sense in the other state does not compile, and starting takes the pipeline (and the source) away from its owner. The first output is
 * `sink`, each further one `add_sink`: repeating `sink` is refused, lest a second destination is mistaken for a change of the first.
 *
 * What the builder does, in terms of what lies below it; who needs another order, several pipelines in a process, or no file does the same by hand:
 *
 *     tr_pipeline_new       tr_configfile_load; tr_configfile_section for pipeline, admin and logging; tr_oslog_setup; tr_metrics_new
 *     tr_pipeline_section   tr_configfile_section
 *     tr_pipeline_source    tr_configfile_section("source", type->fields); type->source_new(options, env)
 *     tr_pipeline_sink      tr_configfile_sink(name, type->fields); type->sink_new(options, env); a tr_runtime_sink {name, sink, tuning}
 *     tr_pipeline_start     tr_configfile_finish; for each output, until start_timeout: sink->ops->probe, then sink->ops->bind(table, variant), so that a
 *                           table that does not fit is said before a record is read; tr_runtime_new with a chain_new that calls the program's own
 *                           with a filled tr_chain_def; tr_runtime_start; tr_admin_start with the metrics
 *     tr_pipeline_run       tr_pipeline_start; until SIGTERM, SIGINT, the source's end or a failure: tr_runtime_join; tr_running_free
 *     tr_running_free       tr_runtime_stop, join, free; admin; then the sinks' and the source's close; metrics; the file
 *
 * Threads: a tr_pipeline belongs to one; tr_running_stop and tr_running_status may be called from any, the rest of tr_running from one.
 * Nothing of it touches the data path: the chain is called by the engine as its ops say, once per batch.
 * Link with what `pkg-config --libs tailrace` says.
 */
#ifndef TAILRACE_PIPELINE_H
#define TAILRACE_PIPELINE_H

#include <tailrace/chain.h>
#include <tailrace/component.h>
#include <tailrace/runtime.h>

struct tr_pipeline;
struct tr_running;

/* One output of the chain, in the chain's order. */
struct tr_output {
    const char *name;             /* of the sink: in the file, logs and metrics */
    const struct tr_sink_type *type;
    struct tr_sink *sink;         /* instead of type: one made by hand, of one output. From a successful call on the pipeline's, which closes it. In the file it has the
                                     tuning of any sink, and no type (or `program`) */
    struct tr_schema *table;      /* a reference is taken */
    enum tr_target_variant variant; /* MIRROR, for a table with a key, or APPEND */
};

/* Makes the chain of one pipeline thread, say by what TR_CHAIN made: `return shop_chain_new(def, &shops[thread], ret_ops, ret_chain, err)`. def is filled in but
 * for deserializer and source_transactions; its on_skip logs, at most a line every 10 s. The function may pass an altered copy on. */
typedef int (*tr_chain_new_fn)(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err);

/* name: in logs, metrics and positions; 1 to 63 bytes. path: NULL: no file, all defaults. */
int tr_pipeline_new(const char *name, const char *path, struct tr_pipeline **ret, struct tr_err *err);
/* As if a file of this text stood at `from`; for tests. */
int tr_pipeline_parse(const char *name, const char *text, const char *from, struct tr_pipeline **ret, struct tr_err *err);

/* A section of the program's own. Strings live as long as the pipeline, and what it becomes. */
int tr_pipeline_section(struct tr_pipeline *p, const char *section, const struct tr_field *fields, size_t n, void *to, struct tr_err *err);
/* For metrics of the program's own; lives as long as the pipeline, and what it becomes. */
struct tr_metrics *tr_pipeline_metrics(struct tr_pipeline *p);
uint32_t tr_pipeline_threads(const struct tr_pipeline *p); /* how many chains there will be */

/* REJECT for a second one. */
int tr_pipeline_sink(struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err);
/* REJECT when there is no first one, or one of that name. */
int tr_pipeline_add_sink(struct tr_pipeline *p, const struct tr_output *o, struct tr_err *err);
/* A source out of the section `source`; the caller's until it is given to start or run, and closed by ops->close if it never is, before the pipeline is freed. One made by
 * hand is given to them likewise; its settings are in a section of the program's own. */
int tr_pipeline_source(struct tr_pipeline *p, const struct tr_source_type *type, struct tr_source **ret, struct tr_err *err);

/* Begins. On success *p and *source are NULL and belong to *ret; after a failure they are the caller's still. arg outlives what runs.
 * REJECT: a table does not fit (names table, column and cure), a key of the file that nobody asked for, a setting; RETRY: a sink could not be reached within start_timeout. */
int tr_pipeline_start(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn chain_new, void *arg, struct tr_running **ret, struct tr_err *err);
/* The whole of a process: start, and wait for SIGTERM or SIGINT (a second one ends the process at once), the source's end, or a failure. 0: ended as asked,
 * all that was read is durable or will be read again. FATAL: failed; start again, from what was committed; err->msg names the sink, where one is the reason. *p and *source are
 * NULL afterwards, whatever came of it but a failure to start. A program that runs several pipelines uses start, and watches for signals itself. */
int tr_pipeline_run(struct tr_pipeline **p, struct tr_source **source, tr_chain_new_fn chain_new, void *arg, struct tr_err *err);
struct tr_pipeline *tr_pipeline_free(struct tr_pipeline *p); /* one that was not started */

void tr_running_stop(struct tr_running *r); /* begins the drain; returns at once */
/* Waits until it has ended (true) or the deadline (false). */
bool tr_running_join(struct tr_running *r, int64_t deadline_ns);
void tr_running_status(const struct tr_running *r, struct tr_runtime_status *ret);
/* Counts of the stages: as tr_chain_stats. */
uint32_t tr_running_stages(const struct tr_running *r, struct tr_stage_stats *v, uint32_t max);
int tr_running_port(const struct tr_running *r); /* of the admin endpoint; 0: there is none */
struct tr_running *tr_running_free(struct tr_running *r); /* stops it, waits for the drain, closes source and sinks */

#endif
