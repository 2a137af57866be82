/* The builder over the test kit: what it takes and refuses, that it starts only what fits, how it ends. Also run under TSan. */
#include <tailrace/pipeline.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tailrace/clock.h>
#include <tailrace/memory.h>
#include <tailrace/oslog.h>

#include "thread.h"

/* ---- a chain: each word of a payload becomes a row ---- */

struct word {
    struct tr_slice text;
};

struct counts {
    _Atomic uint64_t words;
};

TR_EMITTER(words, struct word);

static inline int split(struct counts *c, const struct tr_payload *p, struct words_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = p->value;
    int rc = rest.n ? TR_OK : tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "an empty line");
    while (rest.n && rc >= 0) {
        const uint8_t *blank = memchr(rest.p, ' ', rest.n);
        size_t n = blank ? (size_t)(blank - rest.p) : rest.n;
        c->words++;
        rc = words_emit(out, &(struct word){tr_slice_sub(rest, 0, n)});
        rest = tr_slice_sub(rest, n + 1, rest.n);
    }
    return rc;
}

static inline bool is_long(struct counts *c, const struct word *w)
{
    (void)c;
    return w->text.n > 2;
}

static inline struct tr_slice key_of(struct counts *c, const struct word *w)
{
    (void)c;
    return w->text;
}

static inline int row(struct counts *c, const struct word *w, struct tr_chain_row *r, struct tr_err *err)
{
    (void)c;
    (void)err;
    tr_chain_row_text(r, 0, w->text);
    return TR_OK;
}

TR_CHAIN(one, struct counts, TR_DECODE(split, words), TR_FILTER(is_long), TR_KEY(key_of), TR_TO(TR_ROWS(row)));

static int one_chain(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return one_new(def, arg, ret_ops, ret_chain, err);
}

static struct tr_schema *table(const char *name)
{
    const struct tr_column c = {.name = "word", .source_type = "text", .type = TR_TYPE_TEXT, .not_null = true, .key_pos = 1, .precision = -1};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = name, .no_key_reason = "", .columns = &c, .n_columns = 1};
    struct tr_schema *s = NULL;
    assert_int_equal(tr_schema_new(&d, &s, NULL), TR_OK);
    return s;
}

/* ---- a sink and a source with settings, as a connector has them ---- */

struct sink_options {
    int64_t rows;
    const char *greeting;
};

static const struct tr_field sink_fields[] = {
    {.name = "rows", .type = TR_F_INT, .def = "7", .min = 1, .max = 100, .offset = offsetof(struct sink_options, rows), .help = "Rows."},
    {.name = "greeting", .type = TR_F_STRING, .optional = true, .offset = offsetof(struct sink_options, greeting), .help = "Words."},
};

static struct sink_options seen; /* by the sink made last */
static struct tr_component_env seen_env;
static struct tr_mem_sink *made; /* by it, too */

static int sink_new(const void *options, const struct tr_component_env *env, struct tr_sink **ret, struct tr_err *err)
{
    const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC};
    (void)err;
    seen = *(const struct sink_options *)options;
    seen_env = *env;
    if (tr_mem_sink_new(&def, &made) < 0)
        return TR_NOMEM;
    *ret = tr_mem_sink_spi(made);
    return TR_OK;
}

static const struct tr_sink_type sink_type = {
    .abi = TR_COMPONENT_ABI, .name = "kept", .help = "", .fields = sink_fields, .n_fields = 2, .options_size = sizeof(struct sink_options), .sink_new = sink_new};

static struct tr_mem_source *lines(const char *const *v, size_t n, bool ends)
{
    struct tr_mem_source *s = NULL;
    assert_int_equal(tr_mem_source_new(&s), TR_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tr_mem_push(s, 0, (int64_t)i + 1, (struct tr_slice){NULL, 0}, tr_slice_str(v[i]), 0), TR_OK);
    assert_int_equal(tr_mem_assign(s, 0, 1, 0), TR_OK);
    if (ends) {
        tr_mem_eof(s, 0);
        tr_mem_end(s);
    }
    return s;
}

static const char *const three[] = {"the quick brown fox", "", "jumps over it"};

static int source_new(const void *options, const struct tr_component_env *env, struct tr_source **ret, struct tr_err *err)
{
    (void)options;
    (void)env;
    (void)err;
    *ret = tr_mem_source_spi(lines(three, 3, true));
    return TR_OK;
}

static const struct tr_source_type source_type = {.abi = TR_COMPONENT_ABI, .name = "three", .help = "", .source_new = source_new};

#define QUIET "admin: {listen: off}\nlogging: {level: error}\n"

static struct tr_pipeline *pipeline(const char *text)
{
    struct tr_pipeline *p = NULL;
    struct tr_err err = {0};
    if (tr_pipeline_parse("words", text, "words.yaml", &p, &err) < 0)
        fail_msg("%s", err.msg);
    return p;
}

static void close_source(struct tr_source *s)
{
    s->ops->close(s, 0);
}

/* ---- what it takes ---- */

static void test_runs_to_the_end_of_its_source(void **state)
{
    (void)state;
    struct counts counts = {0};
    struct tr_schema *t = table("words");
    struct tr_err err = {0};
    struct tr_source *source = NULL;
    struct tr_running *r = NULL;
    struct tr_pipeline *p = pipeline(QUIET "sinks:\n- name: kept\n  type: kept\n  greeting: hello\n  batch_rows: 2\npipeline: {commit_interval: 10ms}\n");
    struct tr_metrics *metrics = tr_pipeline_metrics(p);
    assert_non_null(metrics);
    assert_int_equal(tr_pipeline_threads(p), 1);
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink_type, .table = t}, &err), TR_OK);
    assert_int_equal(seen.rows, 7);
    assert_string_equal(seen.greeting, "hello");
    assert_string_equal(seen_env.name, "kept");
    assert_ptr_equal(seen_env.metrics, metrics);
    assert_int_equal(tr_pipeline_source(p, &source_type, &source, &err), TR_OK);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, &counts, &r, &err), TR_OK);
    assert_null(p);
    assert_null(source);
    assert_true(tr_running_join(r, tr_now_ns() + 30 * TR_NS_PER_S));

    struct tr_runtime_status st;
    struct tr_stage_stats stages[TR_CHAIN_STAGES_MAX];
    tr_running_status(r, &st);
    assert_int_equal(st.state, TR_RT_STOPPED);
    assert_int_equal(st.rows_out, 6);
    assert_int_equal(counts.words, 7);
    assert_int_equal(tr_running_stages(r, stages, TR_CHAIN_STAGES_MAX), 4);
    assert_int_equal(stages[0].skipped, 1);
    assert_int_equal(stages[1].in, 7);
    assert_int_equal(stages[1].out, 6);
    assert_int_equal(tr_running_port(r), 0);

    struct tr_buf page = {0};
    assert_int_equal(tr_metrics_render_prometheus(metrics, &page), TR_OK);
    const char *text = tr_buf_cstr(&page);
    assert_non_null(strstr(text, "tailrace_stage_records_total{pipeline=\"words\",chain=\"one\",stage=\"1 filter is_long\",result=\"out\"} 6\n"));
    assert_non_null(strstr(text, "tailrace_stage_records_total{pipeline=\"words\",chain=\"one\",stage=\"0 decode split\",result=\"skipped\"} 1\n"));
    tr_buf_done(&page);
    assert_null(tr_running_free(r));
    tr_schema_unref(t);
}

struct own {
    int64_t n;
    const char *secret;
};

static const struct tr_field own_fields[] = {{.name = "n", .type = TR_F_INT, .def = "3", .offset = offsetof(struct own, n), .help = "N."},
                                             {.name = "secret", .type = TR_F_SECRET, .optional = true, .offset = offsetof(struct own, secret), .help = "S."}};

static void test_sections_of_the_program(void **state)
{
    (void)state;
    struct own o = {0};
    struct tr_err err = {0};
    struct tr_pipeline *p = pipeline(QUIET "shop: {secret: '${TAILRACE_TEST_NOT_SET:-none}'}\n");
    assert_int_equal(tr_pipeline_section(p, "shop", own_fields, 2, &o, &err), TR_OK);
    assert_int_equal(o.n, 3);
    assert_string_equal(o.secret, "none");
    assert_int_equal(tr_pipeline_section(p, "sinks", own_fields, 2, &o, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "the section sinks is tailrace's"));
    tr_pipeline_free(p);
}

/* ---- what it refuses ---- */

static void test_outputs_are_added_by_their_own_call(void **state)
{
    (void)state;
    struct tr_err err = {0};
    struct tr_schema *t = table("words"), *keyless = NULL;
    const struct tr_column word = {.name = "word", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1};
    const struct tr_schema_def heap = {.table_id = 2, .version = 1, .ns = "public", .name = "heap", .no_key_reason = "rows are appended", .columns = &word, .n_columns = 1};
    assert_int_equal(tr_schema_new(&heap, &keyless, &err), TR_OK);
    struct tr_source *source = tr_mem_source_spi(lines(three, 3, true));
    struct tr_running *r = NULL;
    struct tr_pipeline *p = pipeline(QUIET);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "has no sink"));
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .type = &sink_type, .table = t}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "tr_pipeline_sink"));
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "a", .type = &sink_type, .table = t}, &err), TR_OK);
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "b", .type = &sink_type, .table = t}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "tr_pipeline_add_sink"));
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "a", .type = &sink_type, .table = t}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "a name of its own"));
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .table = t}, &err), TR_REJECT);
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .sink = tr_mem_sink_spi(made), .table = t}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "sinks a and b are one struct tr_sink"));
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .type = &sink_type, .table = keyless}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "a mirror keeps one row per key, and table public.heap has none"));
    assert_int_equal(tr_pipeline_add_sink(p, &(struct tr_output){.name = "b", .type = &sink_type, .table = t}, &err), TR_OK);

    /* A chain of one output does not fit two sinks: said when it starts. */
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "chain one has 1 outputs, the pipeline 2 sinks"));
    assert_non_null(p);
    assert_non_null(source);
    close_source(source);
    tr_pipeline_free(p);
    tr_schema_unref(t);
    tr_schema_unref(keyless);
}

static int no_chain(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)def;
    (void)thread;
    (void)ret_ops;
    (void)ret_chain;
    (void)err;
    return *(const int *)arg;
}

/* What cannot run is refused by name, whether or not anybody wants to know why, and belongs to its owner as before. */
static void test_what_is_not_there(void **state)
{
    (void)state;
    struct tr_schema *t = table("words");
    struct tr_source *source = tr_mem_source_spi(lines(three, 3, true)), *none = NULL;
    struct tr_running *r = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_err err = {0};
    assert_int_equal(tr_pipeline_new(NULL, NULL, &p, &err), TR_REJECT);
    assert_int_equal(tr_pipeline_new("", NULL, &p, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "a name"));
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, &err), TR_REJECT);
    p = pipeline(QUIET);
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink_type, .table = t}, NULL), TR_OK);
    assert_int_equal(tr_pipeline_start(&p, &none, one_chain, NULL, &r, &err), TR_REJECT);
    assert_int_equal(tr_pipeline_start(&p, &source, NULL, NULL, &r, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "NULL"));
    snprintf(err.msg, sizeof err.msg, "what another call said");
    assert_int_equal(tr_pipeline_start(&p, &source, no_chain, &(int){TR_REJECT}, &r, &err), TR_REJECT);
    assert_string_equal(err.msg, "pipeline words: the chain of thread 0 cannot be made: REJECT");
    assert_int_equal(tr_pipeline_start(&p, &source, no_chain, &(int){TR_OK}, &r, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "chain_new succeeded and made no chain"));
    tr_mem_script_bind(made, TR_REJECT, "", 1);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, &err), TR_REJECT);
    assert_string_equal(err.msg, "sink kept: it answered REJECT and gave no reason");
    tr_mem_script_bind(made, TR_REJECT, "no", 1);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, NULL), TR_REJECT);
    tr_mem_script(made, &(struct tr_mem_outcome){.rc = TR_FATAL});
    assert_int_equal(tr_pipeline_run(&p, &source, one_chain, &(struct counts){0}, NULL), TR_FATAL);
    assert_null(p);
    assert_null(source);
    tr_schema_unref(t);
}

static void refused(const char *text, const char *why)
{
    struct tr_err err = {0};
    struct own o = {0};
    struct tr_schema *t = table("words");
    struct tr_source *source = NULL;
    struct tr_running *r = NULL;
    struct tr_pipeline *p = NULL;
    int rc = tr_pipeline_parse("words", text, "words.yaml", &p, &err);
    if (rc >= 0)
        rc = tr_pipeline_section(p, "shop", own_fields, 2, &o, &err);
    if (rc >= 0)
        rc = tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink_type, .table = t}, &err);
    if (rc >= 0)
        rc = tr_pipeline_source(p, &source_type, &source, &err);
    if (rc >= 0)
        rc = tr_pipeline_start(&p, &source, one_chain, &(struct counts){0}, &r, &err);
    assert_int_equal(rc, TR_REJECT);
    if (!strstr(err.msg, why))
        fail_msg("'%s' does not say '%s'", err.msg, why);
    if (source)
        close_source(source);
    tr_pipeline_free(p);
    tr_schema_unref(t);
}

static void test_the_file_is_read_to_its_end(void **state)
{
    (void)state;
    refused(QUIET "shopp: {n: 1}\n", "words.yaml:3: unknown section shopp; did you mean shop?");
    refused(QUIET "elsewhere: {n: 1}\n", "unknown section elsewhere: nothing in this program asks for it");
    refused(QUIET "shop: {m: 1}\n", "words.yaml:3: unknown key shop.m");
    refused(QUIET "shop: 7\n", "shop is a section");
    refused(QUIET "sinks: [{name: keept}]\n", "this program has no sink keept; did you mean kept?");
    refused(QUIET "sinks: [{name: kept, rows: 101}]\n", "sinks[kept].rows must be between 1 and 100");
    refused(QUIET "sinks: [{name: kept, row: 1}]\n", "unknown key sinks[kept].row; did you mean rows?");
    refused(QUIET "sinks: [{name: kept, type: sqlite}]\n", "sink kept is a kept in this program, not a sqlite");
    refused(QUIET "sinks: [{name: kept}, {name: kept}]\n", "two sinks are named kept");
    refused(QUIET "sinks: {name: kept}\n", "sinks is a list");
    refused(QUIET "sinks: [{rows: 1}]\n", "sink 1 has no name");
    refused(QUIET "source: {path: x}\n", "unknown key source.path");
    refused(QUIET "pipeline: {threads: 0}\n", "pipeline.threads must be between 1 and 256");
    refused("- a\n", "sections");
    refused(QUIET "sinks: [{name: kept, type: [kept]}]\n", "sinks[kept].type is one word");
    refused(QUIET "pipeline: {state_dir: ''}\n", "pipeline.state_dir is empty");
    refused(QUIET "shop: ${TAILRACE_TEST_NOT_SET}\n", "shop needs the environment variable TAILRACE_TEST_NOT_SET");
    refused(QUIET "sinks: ${TAILRACE_TEST_NOT_SET}\n", "sinks needs the environment variable TAILRACE_TEST_NOT_SET");
}

static void test_types_of_another_version(void **state)
{
    (void)state;
    struct tr_sink_type sink = sink_type;
    struct tr_source_type source = source_type;
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_source *made_source = NULL;
    struct tr_pipeline *p = pipeline(QUIET);
    sink.abi = source.abi = TR_COMPONENT_ABI + 1;
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink, .table = t}, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "another version of tailrace"));
    assert_int_equal(tr_pipeline_source(p, &source, &made_source, &err), TR_REJECT);
    source = (struct tr_source_type){.abi = TR_COMPONENT_ABI, .name = "changes"};
    assert_int_equal(tr_pipeline_source(p, &source, &made_source, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "tailrace run"));
    tr_pipeline_free(p);
    tr_schema_unref(t);
}

/* What the file may say, the engine takes; a file that says nothing leaves the defaults. */
static void test_extremes_of_the_file(void **state)
{
    (void)state;
    static const char *const texts[] = {QUIET "pipeline: {max_inflight: 1MiB}\n", QUIET "sinks: [{name: kept, chunk_size: 1GiB}]\n", QUIET "sinks: [{name: kept, chunk_size: 4KiB, batch_size: 64KiB, linger: 0s}]\n"};
    struct tr_pipeline *empty = NULL;
    assert_int_equal(tr_pipeline_parse("words", "# nothing\n", "words.yaml", &empty, NULL), TR_OK);
    tr_pipeline_free(empty);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct tr_err err = {0};
        struct counts counts = {0};
        struct tr_schema *t = table("words");
        struct tr_source *source = tr_mem_source_spi(lines(three, 3, true));
        struct tr_pipeline *p = pipeline(texts[i]);
        assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink_type, .table = t}, &err), TR_OK);
        if (tr_pipeline_run(&p, &source, one_chain, &counts, &err) < 0)
            fail_msg("%s: %s", texts[i], err.msg);
        assert_int_equal(counts.words, 7);
        tr_schema_unref(t);
    }
}

/* ---- it starts only what fits ---- */

static struct tr_pipeline *with_sink(const char *text, struct tr_schema *t)
{
    struct tr_err err = {0};
    struct tr_pipeline *p = pipeline(text);
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .type = &sink_type, .table = t}, &err), TR_OK);
    return p;
}

static void test_a_table_that_does_not_fit(void **state)
{
    (void)state;
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_mem_source *m = lines(three, 3, true);
    struct tr_source *source = tr_mem_source_spi(m);
    struct tr_running *r = NULL;
    struct tr_pipeline *p = with_sink(QUIET, t);
    tr_mem_script_bind(made, TR_REJECT, "column word is a number there", 1);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, NULL, &r, &err), TR_REJECT);
    assert_string_equal(err.msg, "sink kept: column word is a number there");
    struct tr_mem_source_stats st;
    tr_mem_source_stats(m, &st);
    assert_int_equal(st.polls, 0); /* nothing was read */
    close_source(source);
    tr_pipeline_free(p);
    tr_schema_unref(t);
}

static void test_a_sink_that_is_away(void **state)
{
    (void)state;
    struct counts counts = {0};
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_source *source = tr_mem_source_spi(lines(three, 3, true));
    struct tr_running *r = NULL;
    struct tr_pipeline *p = with_sink(QUIET "pipeline: {start_timeout: 150ms}\n", t);
    tr_mem_script_probe(made, TR_RETRY, 1000);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, &counts, &r, &err), TR_RETRY);
    assert_non_null(strstr(err.msg, "sink kept could not be reached within pipeline.start_timeout"));
    tr_pipeline_free(p);

    p = with_sink(QUIET "pipeline: {start_timeout: 30s}\n", t);
    tr_mem_script_probe(made, TR_RETRY, 2);
    assert_int_equal(tr_pipeline_start(&p, &source, one_chain, &counts, &r, &err), TR_OK);
    assert_true(tr_running_join(r, tr_now_ns() + 30 * TR_NS_PER_S));
    struct tr_runtime_status st;
    tr_running_status(r, &st);
    assert_int_equal(st.rows_out, 6);
    tr_running_free(r);
    tr_schema_unref(t);
}

/* ---- many equal rows of one payload ---- */

TR_EMITTER(copies, struct word);

static inline int repeat(struct counts *c, const struct tr_payload *p, struct copies_emitter *out, struct tr_err *err)
{
    int rc = TR_OK;
    (void)err;
    for (int i = 0; i < 40 && rc >= 0; i++, c->words++)
        rc = copies_emit(out, &(struct word){p->value});
    return rc;
}

TR_CHAIN(equal, struct counts, TR_DECODE(repeat, copies), TR_TO(TR_ROWS(row)));

static int equal_chain(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread;
    return equal_new(def, arg, ret_ops, ret_chain, err);
}

/* They fill batches of the same bytes at the same position, which are not the same batch: a sink that drops what comes again keeps each. */
static void test_equal_batches_of_one_payload(void **state)
{
    (void)state;
    static char text[3001];
    const char *lines_of_it[] = {text, text};
    const struct tr_mem_sink_def def = {.caps = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_TOKEN};
    struct counts counts = {0};
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_mem_sink *sink = NULL;
    struct tr_running *r = NULL;
    struct tr_source *source;
    struct tr_pipeline *p = pipeline(QUIET "sinks: [{name: kept, batch_rows: 2, chunk_size: 4KiB}]\n");
    memset(text, 'x', 3000);
    source = tr_mem_source_spi(lines(lines_of_it, 2, true));
    assert_int_equal(tr_mem_sink_new(&def, &sink), TR_OK);
    assert_int_equal(tr_pipeline_sink(p, &(struct tr_output){.name = "kept", .sink = tr_mem_sink_spi(sink), .table = t, .variant = TR_TARGET_APPEND}, &err), TR_OK);
    assert_int_equal(tr_pipeline_start(&p, &source, equal_chain, &counts, &r, &err), TR_OK);
    assert_true(tr_running_join(r, tr_now_ns() + 30 * TR_NS_PER_S));
    struct tr_mem_sink_stats st;
    tr_mem_sink_stats(sink, &st);
    assert_true(st.batches > 10);
    assert_int_equal(st.duplicates, 0);
    assert_int_equal(st.rows, 80);
    tr_running_free(r);
    tr_schema_unref(t);
}

/* ---- how it ends ---- */

static void test_failure_is_told(void **state)
{
    (void)state;
    struct counts counts = {0};
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_source *source = tr_mem_source_spi(lines(three, 3, false));
    struct tr_pipeline *p = with_sink(QUIET, t);
    tr_mem_script(made, &(struct tr_mem_outcome){.rc = TR_FATAL});
    assert_int_equal(tr_pipeline_run(&p, &source, one_chain, &counts, &err), TR_FATAL);
    assert_non_null(strstr(err.msg, "sink kept: ")); /* which of them */
    assert_null(p);
    assert_null(source);
    tr_schema_unref(t);
}

static void ask_to_stop(void *arg)
{
    struct counts *c = arg; /* not the sink: by then it may be closed */
    while (c->words < 7)
        tr_sleep_ns(TR_NS_PER_MS);
    kill(getpid(), SIGTERM);
}

/* The last: a second signal would end the process. */
static void test_sigterm_drains(void **state)
{
    (void)state;
    struct counts counts = {0};
    struct tr_err err = {0};
    struct tr_schema *t = table("words");
    struct tr_mem_source *m = lines(three, 3, false);
    struct tr_source *source = tr_mem_source_spi(m);
    struct tr_pipeline *p = with_sink(QUIET, t);
    struct tr_thread *other = NULL;
    assert_int_equal(tr_thread_start(&other, "tr-test", ask_to_stop, &counts, &err), TR_OK);
    assert_int_equal(tr_pipeline_run(&p, &source, one_chain, &counts, &err), TR_OK);
    tr_thread_join(other);
    assert_null(p);
    assert_int_equal(counts.words, 7);

    /* The stop stays asked: a pipeline that still waits for its sink ends as well, and is nobody's to free. */
    source = tr_mem_source_spi(lines(three, 3, true));
    p = with_sink(QUIET, t);
    tr_mem_script_probe(made, TR_RETRY, 1000);
    assert_int_equal(tr_pipeline_run(&p, &source, one_chain, &counts, &err), TR_OK);
    assert_null(p);
    assert_null(source);
    assert_int_equal(counts.words, 7);
    tr_schema_unref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_to_the_end_of_its_source),
        cmocka_unit_test(test_sections_of_the_program),
        cmocka_unit_test(test_outputs_are_added_by_their_own_call),
        cmocka_unit_test(test_the_file_is_read_to_its_end),
        cmocka_unit_test(test_what_is_not_there),
        cmocka_unit_test(test_extremes_of_the_file),
        cmocka_unit_test(test_types_of_another_version),
        cmocka_unit_test(test_a_table_that_does_not_fit),
        cmocka_unit_test(test_a_sink_that_is_away),
        cmocka_unit_test(test_equal_batches_of_one_payload),
        cmocka_unit_test(test_failure_is_told),
        cmocka_unit_test(test_sigterm_drains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
