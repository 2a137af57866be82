/*
 * sink_suite.h: what every sink of row changes has to do, checked by one suite through sink.h alone: bind, encode, write.
 *
 * A new sink needs three things: open (fresh: an empty place; else the same place again), read_back of its current-state table, and a
 * main that calls tr_sink_suite_run. What a sink does not claim (capabilities) is not asked of it. The suite uses the tables
 * public.suite_a and public.suite_b: id bigint primary key, note text, and from version 2 on more text.
 *
 * read_back: one call of cb per row of the table, tombstones included where the sink keeps them. values are the columns in schema
 * order as text, NULL for SQL NULL; of a tombstone only the first (the key) is looked at.
 */
#ifndef TR_SINK_SUITE_H
#define TR_SINK_SUITE_H

#include <tailrace/sink.h>

enum { TR_SUITE_COLUMNS = 3 };

struct tr_suite_row {
    const char *values[TR_SUITE_COLUMNS];
    uint64_t version; /* 0: the sink keeps none */
    bool deleted;
};

typedef void (*tr_suite_row_fn)(void *cb_arg, const struct tr_suite_row *r);

struct tr_sink_factory {
    const char *name;
    void *arg;
    int (*open)(void *arg, bool fresh, struct tr_sink **ret, struct tr_err *err);
    int (*read_back)(void *arg, struct tr_sink *sink, const struct tr_schema *s, enum tr_target_variant variant, tr_suite_row_fn cb, void *cb_arg);
    uint32_t shard;      /* whose writer writes, and what is read back; tables are bound and swapped on all */
    bool keeps_nothing;  /* its place is gone with close: reopening is not asked */
};

/* Number of failed tests. */
int tr_sink_suite_run(const struct tr_sink_factory *f);

#endif
