/*
 * errors.c: the errors of a log file as a CSV file; a pipeline whose source and sink are the program's own.
 *
 *     errors errors.yaml
 *
 * A line is "TIME LEVEL COMPONENT: TEXT". Lines that are none are skipped and counted.
 */
#include <stdio.h>
#include <string.h>

#include <tailrace/pipeline.h>

#include "csv_sink.h"
#include "lines_source.h"

struct entry { /* borrowed from the line */
    struct tr_slice time, level, component, text;
};

struct none {
    char unused;
};

TR_EMITTER(entries, struct entry);

/* Cuts *rest behind the next `at` and returns what was before it. */
static inline struct tr_slice word(struct tr_slice *rest, char at)
{
    const uint8_t *end = rest->n ? memchr(rest->p, at, rest->n) : NULL;
    struct tr_slice w = tr_slice_sub(*rest, 0, end ? (size_t)(end - rest->p) : rest->n);
    *rest = tr_slice_sub(*rest, w.n + 1, rest->n);
    return w;
}

static inline int parse(struct none *u, const struct tr_payload *p, struct entries_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = p->value;
    struct entry e = {.time = word(&rest, ' '), .level = word(&rest, ' '), .component = word(&rest, ':')};
    word(&rest, ' ');
    e.text = rest;
    (void)u;
    return e.component.n && e.text.n ? entries_emit(out, &e) : tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "this is no line of a log");
}

static inline bool is_error(struct none *u, const struct entry *e)
{
    (void)u;
    return tr_slice_eq_str(e->level, "ERROR");
}

static inline int row(struct none *u, const struct entry *e, struct tr_chain_row *r, struct tr_err *err)
{
    (void)u;
    (void)err;
    tr_chain_row_text(r, 0, e->time);
    tr_chain_row_text(r, 1, e->component);
    tr_chain_row_text(r, 2, e->text);
    return TR_OK;
}

TR_CHAIN(errors, struct none, TR_DECODE(parse, entries), TR_FILTER(is_error), TR_TO(TR_ROWS(row)));

static int chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return errors_new(def, arg, ret_ops, ret_chain, err);
}

int main(int argc, char **argv)
{
    static const struct tr_column columns[] = {{.name = "time", .source_type = "timestamptz", .type = TR_TYPE_TIMESTAMPTZ, .precision = -1},
                                               {.name = "component", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1},
                                               {.name = "text", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    const struct tr_schema_def table = {.table_id = 1, .version = 1, .ns = "log", .name = "errors", .no_key_reason = "a history", .columns = columns, .n_columns = 3};
    struct none user = {0};
    struct tr_schema *schema = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_source *source = NULL;
    struct tr_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: errors FILE.yaml\n");
        return 2;
    }
    int rc = tr_schema_new(&table, &schema, &err);
    if (rc >= 0)
        rc = tr_pipeline_new("errors", argv[1], &p, &err);
    if (rc >= 0)
        rc = tr_pipeline_sink(p, &(struct tr_output){.name = "files", .type = &csv_sink_type, .table = schema, .variant = TR_TARGET_APPEND}, &err);
    if (rc >= 0)
        rc = tr_pipeline_source(p, &lines_source_type, &source, &err);
    if (rc >= 0)
        rc = tr_pipeline_run(&p, &source, chain_new, &user, &err);
    if (source)
        source->ops->close(source, 0);
    tr_pipeline_free(p);
    tr_schema_unref(schema);
    if (rc < 0)
        fprintf(stderr, "errors: %s\n", err.msg);
    return rc < 0;
}
