/*
 * clicks.c: the flagship: visits out of a file into ClickHouse, one row per page view, typed from end to end.
 *
 *     clicks clicks.yaml                        # examples/project/clicks.yaml
 *
 * A line is a visit, tab-separated: session (UUID), user, country, agent, referrer ("" for none), tags (comma between them), and then each view as
 * "milliseconds since 1970:milliseconds it took:url". Robots are left out. Records borrow from the line; rows are encoded into the chunk that is sent, as RowBinary;
 * nothing is allocated per record, and no call in the loop is indirect. The table is the user's (clicks.sql), and compared with the columns below before a
 * line is read.
 *
 * A crash may have rows written again. The table is a ReplacingMergeTree whose sorting key is the row's identity, so FINAL shows each once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clickhouse.h>
#include <tailrace/connectors.h>
#include <tailrace/pipeline.h>

#include "lines_source.h"

enum { TAGS_MAX = 32 };

struct visit { /* borrowed from the line */
    uint8_t session[16];
    uint64_t user;
    struct tr_slice country, agent, referrer, tags, views;
};

struct view {
    const struct visit *visit;
    int64_t at_ms;
    uint32_t took_ms;
    struct tr_slice url;
};

struct site { /* of one pipeline thread */
    const char *home; /* country of visits that name none */
};

TR_EMITTER(visits, struct visit);
TR_EMITTER(views, struct view);

/* ---- reading ---- */

/* Cuts *rest behind the next `at` and returns what was before it. */
static inline struct tr_slice field(struct tr_slice *rest, char at)
{
    const uint8_t *end = rest->n ? memchr(rest->p, at, rest->n) : NULL;
    struct tr_slice f = tr_slice_sub(*rest, 0, end ? (size_t)(end - rest->p) : rest->n);
    *rest = tr_slice_sub(*rest, f.n + 1, rest->n);
    return f;
}

static inline bool number(struct tr_slice s, uint64_t max, uint64_t *ret)
{
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned d = s.p[i] - (unsigned)'0';
        if (d > 9 || v > (max - d) / 10)
            return false;
        v = 10 * v + d;
    }
    *ret = v;
    return s.n > 0;
}

static inline bool uuid(struct tr_slice s, uint8_t ret[16])
{
    static const int8_t digit[128] = {['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5, ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16};
    int n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '-' && (i == 8 || i == 13 || i == 18 || i == 23))
            continue;
        int d = s.p[i] < 128 ? digit[s.p[i]] - 1 : -1;
        if (d < 0 || n == 32)
            return false;
        ret[n / 2] = (uint8_t)(n % 2 ? ret[n / 2] | d : d << 4);
        n++;
    }
    return n == 32;
}

static inline int parse(struct site *s, const struct tr_payload *p, struct visits_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = p->value;
    struct visit v = {0};
    (void)s;
    if (!uuid(field(&rest, '\t'), v.session) || !number(field(&rest, '\t'), UINT64_MAX, &v.user))
        return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a visit begins with session (UUID) and user (number)");
    v.country = field(&rest, '\t');
    v.agent = field(&rest, '\t');
    v.referrer = field(&rest, '\t');
    v.tags = field(&rest, '\t');
    v.views = rest;
    return visits_emit(out, &v);
}

/* ---- the stages ---- */

static inline bool is_human(struct site *s, const struct visit *v)
{
    (void)s;
    return v->agent.n < 3 || memcmp(v->agent.p + v->agent.n - 3, "bot", 3) != 0;
}

static inline void at_home(struct site *s, const struct visit *v, struct visit *ret)
{
    *ret = *v;
    if (!v->country.n)
        ret->country = tr_slice_str(s->home);
}

static inline int split(struct site *s, const struct visit *v, struct views_emitter *out, struct tr_err *err)
{
    struct tr_slice rest = v->views;
    int rc = TR_OK;
    (void)s;
    while (rest.n && rc >= 0) {
        struct tr_slice at = field(&rest, ':'), took = field(&rest, ':');
        uint64_t a, t;
        if (!number(at, 4102444800000, &a) || !number(took, UINT32_MAX, &t))
            return tr_err_set(err, TR_REJECT, TR_DOM_CODEC, "a view begins with two times in milliseconds");
        rc = views_emit(out, &(struct view){v, (int64_t)a, (uint32_t)t, field(&rest, '\t')});
    }
    return rc;
}

static inline struct tr_slice session_of(struct site *s, const struct view *v)
{
    (void)s;
    return tr_slice_of(v->visit->session, sizeof v->visit->session); /* a visit's rows go to one shard */
}

static const struct tr_column columns[] = {
    TR_CH_COLUMN("at", "DateTime64(3, 'UTC')"), TR_CH_COLUMN("session", "UUID"),
    TR_CH_COLUMN("user", "UInt64"),             TR_CH_COLUMN("country", "LowCardinality(String)"),
    TR_CH_COLUMN("url", "String"),              TR_CH_COLUMN("took_ms", "UInt32"),
    TR_CH_COLUMN("agent", "LowCardinality(String)"), TR_CH_COLUMN("mobile", "Bool"),
    TR_CH_COLUMN("referrer", "Nullable(String)"),    TR_CH_COLUMN("tags", "Array(String)"),
};

static inline int view_row(struct site *s, const struct view *v, struct tr_buf *out, struct tr_err *err)
{
    const struct visit *of = v->visit;
    struct tr_slice rest = of->tags;
    uint64_t tags = of->tags.n > 0;
    (void)s;
    (void)err;
    for (size_t i = 0; i < of->tags.n; i++)
        tags += of->tags.p[i] == ',';
    int rc = tr_rb_i64(out, v->at_ms);
    rc |= tr_rb_uuid(out, of->session);
    rc |= tr_rb_u64(out, of->user);
    rc |= tr_rb_string(out, of->country);
    rc |= tr_rb_string(out, v->url);
    rc |= tr_rb_u32(out, v->took_ms);
    rc |= tr_rb_string(out, of->agent);
    rc |= tr_rb_bool(out, of->agent.n > 6 && !memcmp(of->agent.p, "mobile", 6));
    rc |= tr_rb_null(out, !of->referrer.n);
    if (of->referrer.n)
        rc |= tr_rb_string(out, of->referrer);
    rc |= tr_rb_count(out, tags);
    while (tags--)
        rc |= tr_rb_string(out, field(&rest, ','));
    return rc ? TR_NOMEM : TR_OK;
}

TR_CHAIN(clicks, struct site,
         TR_DECODE(parse, visits),
         TR_FILTER(is_human),
         TR_MAP(at_home, struct visit),
         TR_SKIP(TR_FLAT_MAP(split, views)),
         TR_KEY(session_of),
         TR_TO(TR_ENCODED(view_row)));

/* ---- the program ---- */

static int chain_new(void *arg, const struct tr_chain_def *def, uint32_t thread, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{
    (void)thread; /* a site is read only, so one will do for all */
    return clicks_new(def, arg, ret_ops, ret_chain, err);
}

static const struct tr_field site_fields[] = {
    {.name = "home", .type = TR_F_STRING, .def = "??", .offset = offsetof(struct site, home), .help = "Country of visits that name none."},
};

int main(int argc, char **argv)
{
    const struct tr_schema_def table = {.table_id = 1, .version = 1, .ns = "site", .name = "views", .no_key_reason = "rows are appended", .columns = columns, .n_columns = sizeof columns / sizeof *columns};
    struct site site = {0};
    struct tr_schema *schema = NULL;
    struct tr_pipeline *p = NULL;
    struct tr_source *source = NULL;
    struct tr_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: clicks FILE.yaml\n");
        return 2;
    }
    int rc = tr_schema_new(&table, &schema, &err);
    if (rc >= 0)
        rc = tr_pipeline_new("clicks", argv[1], &p, &err);
    if (rc >= 0)
        rc = tr_pipeline_section(p, "site", site_fields, 1, &site, &err);
    if (rc >= 0)
        rc = tr_pipeline_sink(p, &(struct tr_output){.name = "views", .type = &tr_clickhouse_sink_type, .table = schema, .variant = TR_TARGET_APPEND}, &err);
    if (rc >= 0)
        rc = tr_pipeline_source(p, &lines_source_type, &source, &err);
    if (rc >= 0)
        rc = tr_pipeline_run(&p, &source, chain_new, &site, &err);
    if (source)
        source->ops->close(source, 0);
    tr_pipeline_free(p);
    tr_schema_unref(schema);
    if (rc < 0)
        fprintf(stderr, "clicks: %s\n", err.msg);
    return rc < 0;
}
