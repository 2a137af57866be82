/* The configuration: what is refused and how it is said, what ${…} becomes, and that no secret is ever part of a message or a document. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config.h"

struct source_options {
    const char *dsn;
    struct tr_strv tables;
    bool create;
};

struct sink_options {
    const char *path, *password;
};

static const struct tr_field source_fields[] = {
    {.name = "dsn", .type = TR_F_SECRET, .offset = offsetof(struct source_options, dsn), .help = "Connection string."},
    {.name = "tables", .type = TR_F_LIST, .offset = offsetof(struct source_options, tables), .help = "Tables."},
    {.name = "create", .type = TR_F_BOOL, .def = "true", .offset = offsetof(struct source_options, create), .help = "Whether."},
};
static const struct tr_field sink_fields[] = {
    {.name = "path", .type = TR_F_STRING, .offset = offsetof(struct sink_options, path), .help = "A file."},
    {.name = "password", .type = TR_F_SECRET, .optional = true, .offset = offsetof(struct sink_options, password), .help = "A password."},
};
static const struct tr_source_type source_type = {.abi = 1, .name = "postgres", .help = "x", .fields = source_fields, .n_fields = 3, .options_size = sizeof(struct source_options)};
static const struct tr_sink_type sink_type = {.abi = 1, .name = "file", .help = "x", .fields = sink_fields, .n_fields = 2, .options_size = sizeof(struct sink_options)};
static const struct tr_source_type *const sources[] = {&source_type};
static const struct tr_sink_type *const sinks[] = {&sink_type};
static const struct tr_registry registry = {sources, 1, sinks, 1};

#define SOURCE "source:\n  dsn: postgresql://u@h/db\n  tables: ['public.*']\n"
#define SINKS "sinks:\n  - name: one\n    type: file\n    path: /tmp/x\n"

static struct tr_config *good(const char *text)
{
    struct tr_config *c = NULL;
    struct tr_err err = {0};
    if (tr_config_parse(text, "t.yaml", &registry, TR_CONFIG_TO_RUN, &c, &err) < 0)
        fail_msg("%s\n%s", err.msg, text);
    return c;
}

/* Refused, and the message holds each of these; never the secret. */
static void refused(const char *text, const char *a, const char *b)
{
    struct tr_config *c = NULL;
    struct tr_err err = {0};
    assert_int_equal(tr_config_parse(text, "t.yaml", &registry, TR_CONFIG_TO_RUN, &c, &err), TR_REJECT);
    char all[1024];
    snprintf(all, sizeof all, "%s | %s", err.where, err.msg);
    if (!strstr(all, a) || (b && !strstr(all, b)))
        fail_msg("'%s' does not hold '%s' and '%s'", all, a, b ? b : "");
    assert_null(strstr(all, "s3cret"));
}

static void defaults(void **state)
{
    (void)state;
    struct tr_config *c = good(SOURCE SINKS);
    assert_string_equal(c->root.state_dir, "tailrace-state");
    assert_int_equal(c->log.retention_ns, INT64_C(7) * 86400 * 1000000000);
    assert_int_equal(c->log.segment_size, 64 << 20);
    assert_int_equal(c->engine.commit_interval_ns, INT64_C(5000000000));
    assert_int_equal(c->engine.drain_timeout_ns, INT64_C(25000000000));
    assert_int_equal(c->engine.heartbeat_ns, INT64_C(10000000000));
    assert_int_equal(c->n_sinks, 1);
    assert_string_equal(c->sinks[0].common.name, "one");
    assert_int_equal(c->sinks[0].common.batch_rows, 10000);
    const struct source_options *o = c->source_options;
    assert_string_equal(o->dsn, "postgresql://u@h/db");
    assert_true(o->create);
    assert_int_equal(o->tables.n, 1);
    assert_string_equal(o->tables.v[0], "public.*");
    tr_config_free(c);
}

static void values(void **state)
{
    (void)state;
    struct tr_config *c = good("state_dir: /var/lib/x\n" SOURCE "  create: false\nsinks:\n  - {name: a, type: file, path: x, tables: [public.a, 'public.b'], freshness: 1m, batch_size: 1MiB}\n"
                               "  - {name: b, type: file, path: y, tables: public.c}\nlogging: {level: debug, format: json}\nlog:\n");
    assert_string_equal(c->root.state_dir, "/var/lib/x");
    assert_false(((struct source_options *)c->source_options)->create);
    assert_int_equal(c->n_sinks, 2);
    assert_int_equal(c->sinks[0].common.tables.n, 2);
    assert_int_equal(c->sinks[0].common.freshness_ns, INT64_C(60000000000));
    assert_int_equal(c->sinks[0].common.batch_size, 1 << 20);
    assert_int_equal(c->sinks[1].common.tables.n, 1); /* a word alone is a list of one */
    assert_int_equal(c->logging.level, 0);
    assert_int_equal(c->logging.format, 1);
    tr_config_free(c);
}

/* Bytes that are no text are told by their line, before the YAML parser sees them; nothing behind a zero byte is passed over. */
static void no_text(void **state)
{
    static const char zero[] = SOURCE SINKS "\0engin: {}\n";
    char path[] = "/tmp/tr-config-XXXXXX";
    struct tr_config *c = NULL;
    struct tr_err err = {0};
    (void)state;
    refused(SOURCE "%\xce\n", "t.yaml:4: this line is not UTF-8", NULL);
    refused(SOURCE SINKS "# caf\xe9\n", "t.yaml:8", "not UTF-8");
    tr_config_free(good("# caf\xc3\xa9\n" SOURCE SINKS));
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, zero, sizeof zero - 1), (ssize_t)sizeof zero - 1);
    close(fd);
    assert_int_equal(tr_config_load(path, &registry, TR_CONFIG_TO_RUN, &c, &err), TR_REJECT);
    assert_non_null(strstr(err.msg, "zero byte"));
    unlink(path);
}

static void unknown_keys(void **state)
{
    (void)state;
    refused(SOURCE SINKS "engin: {}\n", "t.yaml:8", "did you mean engine?");
    refused(SOURCE SINKS "engine:\n  comit_interval: 5s\n", "t.yaml:9", "did you mean commit_interval?");
    refused(SOURCE "  tabels: []\n" SINKS, "t.yaml:4", "source.tabels; did you mean tables?");
    refused(SOURCE SINKS "    pth: x\n", "t.yaml:8", "sinks[one].pth; did you mean path?");
    refused(SOURCE SINKS "zzzzzzzzzzzz: 1\n", "unknown key zzzzzzzzzzzz", "tailrace help config");
    refused(SOURCE SINKS "engine: {heartbeat: 1s}\nengine: {heartbeat: 2s}\n", "t.yaml:9", NULL);
}

static void wrong_values(void **state)
{
    (void)state;
    refused(SOURCE SINKS "engine: {heartbeat: 1ms}\n", "engine.heartbeat must be between 100ms and 1h", "t.yaml:8");
    refused(SOURCE SINKS "engine: {heartbeat: soon}\n", "engine.heartbeat", "t.yaml:8");
    refused(SOURCE SINKS "snapshot:\n  workers: 0\n", "snapshot.workers must be between 1 and 64", "t.yaml:9");
    refused(SOURCE SINKS "snapshot:\n  workers: 99999999999999999999\n", "snapshot.workers", "t.yaml:9");
    refused(SOURCE SINKS "log: {segment_size: 1KiB}\n", "log.segment_size must be between 1MiB and 4GiB", NULL);
    refused(SOURCE SINKS "logging: {level: loud}\n", "logging.level is one of debug, info, warn, error, not 'loud'", NULL);
    refused(SOURCE "  create: perhaps\n" SINKS, "source.create", "t.yaml:4");
    refused(SOURCE SINKS "engine: {heartbeat: }\n", "engine.heartbeat needs a value", NULL);
    refused(SOURCE SINKS "engine: {heartbeat: [1s]}\n", "engine.heartbeat needs a value", NULL);
    refused(SOURCE SINKS "engine: 5s\n", "engine is a section", NULL);
    refused("source:\n  dsn: x\n  tables: [{a: b}]\n" SINKS, "source.tables is a list of words", "t.yaml:3");
}

static void missing(void **state)
{
    (void)state;
    refused(SINKS, "the section source is missing", NULL);
    refused("source:\n  tables: [a]\n" SINKS, "source.dsn is missing", NULL);
    refused("source:\n  dsn: x\n" SINKS, "source.tables is missing", NULL);
    refused(SOURCE, "sinks is missing", NULL);
    refused(SOURCE "sinks: []\n", "sinks is missing", NULL);
    refused(SOURCE "sinks: [{type: file, path: x}]\n", "sink 1 has no name", NULL);
    refused(SOURCE "sinks: [{name: a, path: x}]\n", "sink a has no type", NULL);
    refused(SOURCE "sinks: [{name: a, type: fil, path: x}]\n", "there is no sink of type 'fil'; there are: file", NULL);
    refused(SOURCE "sinks: [{name: 'a b', type: file, path: x}]\n", "sink name 'a b'", NULL);
    refused(SOURCE "sinks: [{name: a, type: file}]\n", "sinks[a].path is missing", NULL);
    refused(SOURCE "sinks: [{name: a, type: file, path: x}, {name: a, type: file, path: y}]\n", "two sinks are named a", NULL);
    refused("source: {type: oracle, dsn: x, tables: [a]}\n" SINKS, "there is no source of type 'oracle'", NULL);
}

static void not_yaml(void **state)
{
    (void)state;
    refused("", "empty", "t.yaml:1");
    refused(SOURCE SINKS "---\nengine: {heartbeat: 1s}\n", "t.yaml:9: a second document", NULL);
    refused(SOURCE SINKS "--- [\n", "t.yaml:", "not YAML");
    refused("%YAML 9.9\n---\n" SOURCE SINKS, "t.yaml:1", "not YAML");
    refused("source: &s {dsn: x, tables: [a]}\nengine: *s\n" SINKS, "t.yaml:2: an alias (*name) is not resolved", NULL);
    refused("source: {dsn: *nowhere, tables: [a]}\n" SINKS, "an alias (*name) is not resolved", NULL);
    refused("# nothing yet\n\n", "empty", NULL);
    refused("source: [\n", "not YAML", "t.yaml:2:1: this is not YAML: flow sequence without a closing bracket; close what");
    refused(SOURCE "  dsn: x\n" SINKS, "t.yaml:4:3: this is not YAML: duplicate key; a key may stand once", NULL);
    refused("source:\n\tdsn: x\n", "t.yaml:2:", "blanks, not with tabs");
    refused("a:\n  b: 1\n c: 2\n", "t.yaml:3:2: ", "same column");
    refused("a: 'x\n", "t.yaml:", "close the quote");
    refused("a: @x\n", "t.yaml:1:4: ", "single quotes");
    refused("- a\n- b\n", "must hold sections", NULL);
    refused("just words\n", "must hold sections", NULL);
    char deep[204] = "a: ";
    memset(deep + 3, '[', 100);
    memset(deep + 103, ']', 100);
    deep[203] = 0;
    refused(deep, "t.yaml", NULL);
}

static void interpolation(void **state)
{
    (void)state;
    setenv("TR_TEST_HOST", "example", 1);
    setenv("TR_TEST_EMPTY", "", 1);
    unsetenv("TR_TEST_NONE");
    struct tr_config *c = good("state_dir: $$x${TR_TEST_HOST}-${TR_TEST_NONE:-def}-${TR_TEST_EMPTY:-e}-$y\n" SOURCE SINKS);
    assert_string_equal(c->root.state_dir, "$xexample-def-e-$y");
    tr_config_free(c);
    setenv("TR_TEST_HOST", "x: {y}\n- z", 1); /* a value is text, whatever it looks like */
    c = good("state_dir: ${TR_TEST_HOST}\n" SOURCE SINKS);
    assert_string_equal(c->root.state_dir, "x: {y}\n- z");
    tr_config_free(c);
    refused("state_dir: ${TR_TEST_NONE}\n" SOURCE SINKS, "t.yaml:1", "TR_TEST_NONE");
    refused(SOURCE SINKS "engine: ${TR_TEST_NONE}\n", "t.yaml:8: engine needs the environment variable TR_TEST_NONE", NULL);
    refused(SOURCE "sinks: ${TR_TEST_NONE}\n", "t.yaml:4: sinks needs the environment variable TR_TEST_NONE", NULL);
    refused("state_dir: ${TR_TEST_EMPTY}\n" SOURCE SINKS, "TR_TEST_EMPTY", NULL);
    refused("state_dir: ${TR_TEST_HOST\n" SOURCE SINKS, "without its }", NULL);
    refused("state_dir: ${}\n" SOURCE SINKS, "needs the name", NULL);
}

/* Who only looks needs no connection strings, but all that is not a component's own. */
static void to_look(void **state)
{
    (void)state;
    unsetenv("TR_TEST_NONE");
    struct tr_config *c = NULL;
    struct tr_err err = {0};
    assert_int_equal(tr_config_parse("source: {dsn: 'a${TR_TEST_NONE}', tables: ['x', '${TR_TEST_NONE}']}\nsinks: [{name: one, type: file, path: '${TR_TEST_NONE}', password: '${TR_TEST_NONE}'}]\n",
                                     "t.yaml", &registry, TR_CONFIG_TO_LOOK, &c, &err),
                     TR_OK);
    assert_string_equal(((struct source_options *)c->source_options)->dsn, "");
    assert_string_equal(((struct sink_options *)c->sinks[0].options)->path, "");
    tr_config_free(c);
    static const char *const must[] = {"state_dir: ${TR_TEST_NONE}\n" SOURCE SINKS, SOURCE SINKS "admin: {listen: '${TR_TEST_NONE}'}\n", SOURCE "  name: ${TR_TEST_NONE}\n" SINKS,
                                       SOURCE "  type: ${TR_TEST_NONE}\n" SINKS, SOURCE "sinks: [{name: 'a${TR_TEST_NONE}', type: file, path: x}]\n"};
    for (size_t i = 0; i < sizeof must / sizeof must[0]; i++) {
        assert_int_equal(tr_config_parse(must[i], "t.yaml", &registry, TR_CONFIG_TO_LOOK, &c, &err), TR_REJECT);
        if (!strstr(err.msg, "needs the environment variable TR_TEST_NONE, which is not set: export"))
            fail_msg("%s", err.msg);
    }
}

static void listen(void **state)
{
    (void)state;
    static const char *const fine[] = {"off", "127.0.0.1:7171", "0.0.0.0:0", "localhost:65535", "'[::1]:80'"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        char text[400];
        snprintf(text, sizeof text, SOURCE SINKS "admin:\n  listen: %s\n", fine[i]);
        tr_config_free(good(text));
    }
    refused(SOURCE SINKS "admin:\n  listen: 127.0.0.1:99999\n", "t.yaml:9: admin.listen needs a port from 0 to 65535, not '99999'", "as in 127.0.0.1:7171");
    refused(SOURCE SINKS "admin: {listen: '127.0.0.1:'}\n", "t.yaml:8: admin.listen needs a port", NULL);
    refused(SOURCE SINKS "admin: {listen: '7171'}\n", "t.yaml:8: admin.listen must be address:port", NULL);
    refused(SOURCE SINKS "admin: {listen: 'db.example:7171'}\n", "admin.listen needs a numeric address", NULL);
}

static void secrets(void **state)
{
    (void)state;
    setenv("TR_TEST_SECRET", "s3cret", 1);
    /* beside a secret, everything that can go wrong does */
    refused("source:\n  dsn: postgresql://u:s3cret@h/db\n  tables: [a]\n  extra: 1\n" SINKS, "source.extra", NULL);
    refused("source:\n  dsn: ${TR_TEST_SECRET}\n  tables: [a]\n" SINKS "    nope: 1\n", "nope", NULL);
    refused(SOURCE SINKS "    password: [s3cret]\n", "sinks[one].password needs a value", NULL);
    refused(SOURCE SINKS "    password: {s3cret: s3cret}\n", "sinks[one].password needs a value", NULL);
    refused("source:\n  dsn: {url: s3cret}\n  tables: [a]\n" SINKS, "source.dsn needs a value", NULL);
    refused("source:\n  dsn: s3cret ${TR_TEST_NONE}\n  tables: [a]\n" SINKS, "TR_TEST_NONE", NULL);
    refused("source:\n  dsn: 's3cret\n  tables: [a]\n" SINKS, "t.yaml", NULL);
    refused("source:\n  dsn: \"s3cret\\q\"\n  tables: [a]\n" SINKS, "t.yaml", NULL);
}

static void documents(void **state)
{
    (void)state;
    static const enum tr_config_doc forms[] = {TR_CONFIG_TEXT, TR_CONFIG_MAN, TR_CONFIG_MARKDOWN, TR_CONFIG_SCHEMA};
    for (int i = 0; i < 4; i++) {
        struct tr_buf b = {0};
        assert_int_equal(tr_config_document(&registry, forms[i], &b), TR_OK);
        for (int s = 0; s < TR_SEC_COUNT; s++)
            for (size_t k = 0; k < tr_sections[s].n; k++)
                if (!strstr(tr_buf_cstr(&b), tr_sections[s].fields[k].name))
                    fail_msg("form %d lacks %s", i, tr_sections[s].fields[k].name);
        assert_non_null(strstr(tr_buf_cstr(&b), "password"));
        tr_buf_done(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults), cmocka_unit_test(values),   cmocka_unit_test(unknown_keys),  cmocka_unit_test(no_text),  cmocka_unit_test(wrong_values), cmocka_unit_test(missing),
                                       cmocka_unit_test(not_yaml), cmocka_unit_test(interpolation), cmocka_unit_test(secrets), cmocka_unit_test(to_look), cmocka_unit_test(listen), cmocka_unit_test(documents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
