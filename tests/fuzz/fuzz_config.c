/* A configuration file. First byte: bit 0, for who only looks. It loads, the same way each time, or the message says in which line what is wrong. */
#include "check.h"

#include <tailrace/connectors.h>
#include "config.h"
#include "fuzz.h"

/* libfyaml 0.7 loses 1 KiB over a quoted text of many pieces; a process reads its configuration once. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfyaml.so";
}

static const struct tr_source_type *const sources[] = {&tr_postgres_source_type};
static const struct tr_sink_type *const sinks[] = {&tr_sqlite_sink_type, &tr_postgres_sink_type};
static const struct tr_registry registry = {sources, TR_ARRAY_LEN(sources), sinks, TR_ARRAY_LEN(sinks)};

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct tr_config *c = NULL, *d = NULL;
    struct tr_err err = {0}, other = {0};
    enum tr_config_use use = n && p[0] & 1 ? TR_CONFIG_TO_LOOK : TR_CONFIG_TO_RUN;
    size_t rest;
    if (n > 16 << 10)
        return 0;
    uint8_t *bytes = fuzz_rest(p, n, 1, &rest);
    char *text = malloc(rest + 1);
    FUZZ_MUST(text != NULL);
    memcpy(text, bytes, rest);
    text[rest] = 0;
    bool ok = fuzz_taken(tr_config_parse(text, "t.yaml", &registry, use, &c, &err), TR_REJECT, &err);
    FUZZ_MUST((tr_config_parse(text, "t.yaml", &registry, use, &d, &other) == TR_OK) == ok);
    if (ok) {
        FUZZ_MUST(c->source_type && c->source_options && c->n_sinks > 0 && c->n_sinks == d->n_sinks);
        FUZZ_MUST(c->root.state_dir && !strcmp(c->root.state_dir, d->root.state_dir));
        for (uint32_t i = 0; i < c->n_sinks; i++) {
            FUZZ_MUST(c->sinks[i].type && c->sinks[i].options && c->sinks[i].common.name[0]);
            FUZZ_MUST(!strcmp(c->sinks[i].common.name, d->sinks[i].common.name));
            for (uint32_t k = 0; k < i; k++)
                FUZZ_MUST(strcmp(c->sinks[i].common.name, c->sinks[k].common.name) != 0);
        }
    } else {
        FUZZ_MUST(strstr(err.msg, "t.yaml") || strstr(err.where, "t.yaml"));
        FUZZ_MUST(!strcmp(err.msg, other.msg));
    }
    tr_config_free(c);
    tr_config_free(d);
    free(text);
    free(bytes);
    return 0;
}
