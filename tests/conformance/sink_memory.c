/* The sink suite over the memory connector, in both shapes of writers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/memory.h>

#include "alloc.h"
#include "key.h"
#include "sink_suite.h"

struct place {
    struct tr_mem_sink_def def;
    struct tr_mem_sink *sink;
};

static int open_memory(void *arg, bool fresh, struct tr_sink **ret, struct tr_err *err)
{
    struct place *p = arg;
    (void)fresh;
    if (tr_mem_sink_new(&p->def, &p->sink) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SINK, "no memory");
    *ret = tr_mem_sink_spi(p->sink);
    return TR_OK;
}

struct relay {
    tr_suite_row_fn cb;
    void *arg;
};

static char *text(const struct tr_row *r, uint32_t i)
{
    return i < r->n && r->state[i] == TR_PRESENT ? tr_strndup(r->v[i]) : NULL;
}

static void relay(void *arg, struct tr_slice key, uint64_t version, bool deleted, const struct tr_row *row)
{
    const struct relay *r = arg;
    struct tr_suite_row s = {.version = version, .deleted = deleted};
    char *v[TR_SUITE_COLUMNS], id[24];
    struct tr_slice col;
    struct tr_err err;
    for (uint32_t i = 0; i < TR_SUITE_COLUMNS; i++)
        s.values[i] = v[i] = text(row, i);
    if (tr_key_decode(key, 1, &col, &err) < 0) /* the row of a key update's tombstone is the new one: the id is in the key */
        abort();
    snprintf(id, sizeof id, "%" TR_SLICE_FMT, TR_SLICE_ARG(col));
    s.values[0] = id;
    r->cb(r->arg, &s);
    for (uint32_t i = 0; i < TR_SUITE_COLUMNS; i++)
        tr_free(v[i]);
}

static int read_back(void *arg, struct tr_sink *sink, const struct tr_schema *s, enum tr_target_variant variant, tr_suite_row_fn cb, void *cb_arg)
{
    struct place *p = arg;
    struct relay r = {cb, cb_arg};
    (void)sink;
    tr_mem_read_back(p->sink, s->table_id, variant, relay, &r);
    return TR_OK;
}

int main(void)
{
    enum { CAPS = TR_CAP_MULTI | TR_CAP_MONOTONIC | TR_CAP_MERGE_COLUMNS | TR_CAP_SHADOW };
    struct place blocking = {.def = {.caps = CAPS}}, columnar = {.def = {.caps = CAPS | TR_CAP_TOKEN, .columnar = true}}, pipelined = {.def = {.caps = CAPS | TR_CAP_PIPELINED}};
    const struct tr_sink_factory f[] = {
        {.name = "memory", .arg = &blocking, .open = open_memory, .read_back = read_back, .keeps_nothing = true},
        {.name = "memory, columnar, with tokens", .arg = &columnar, .open = open_memory, .read_back = read_back, .keeps_nothing = true},
        {.name = "memory, pipelined", .arg = &pipelined, .open = open_memory, .read_back = read_back, .keeps_nothing = true},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        failed += tr_sink_suite_run(&f[i]);
    return failed != 0;
}
