/* The sink suite over the ClickHouse connector; sink_clickhouse.sh gives it two servers (TR_SUITE_URL, TR_SUITE_URL2). Each fresh place is a database. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/connectors.h>

#include "ch_sink.h"
#include "sink_suite.h"

struct place {
    const char *const *urls, *read;
    size_t n_urls;
    const char *prefix;
    int32_t format, tombstone, compression;
    int n;
    char database[48];
    struct tr_ch_options options; /* the sink borrows them, as it does the configuration's */
};

static int open_clickhouse(void *arg, bool fresh, struct tr_sink **ret, struct tr_err *err)
{
    struct place *p = arg;
    p->n += fresh;
    snprintf(p->database, sizeof p->database, "suite \"%s\" %d", p->prefix, p->n);
    p->options = (struct tr_ch_options){.urls = {p->urls, p->n_urls}, .database = p->database, .user = "default", .format = p->format, .tombstone = p->tombstone, .compression = p->compression};
    struct tr_component_env env = {.name = "ch", .state_dir = "/tmp", .lease_token = 1};
    return tr_clickhouse_sink_type.sink_new(&p->options, &env, ret, err);
}

static const char *string(struct tr_cur *c, char **to)
{
    struct tr_slice s = tr_cur_bytes(c, tr_cur_varint(c));
    char *copy = malloc(s.n + 1);
    memcpy(copy, s.n ? (const void *)s.p : "", s.n);
    copy[s.n] = 0;
    return *to = copy;
}

static int read_back(void *arg, struct tr_sink *sink, const struct tr_schema *s, enum tr_target_variant variant, tr_suite_row_fn cb, void *cb_arg)
{
    struct place *p = arg;
    char q[400];
    struct tr_httpc *h = NULL;
    struct tr_httpc_options o = {.what = "reader", .idle_max_s = 1};
    struct tr_buf out = {0};
    struct tr_err err = {0};
    long status = 0;
    (void)sink;
    int n = snprintf(q, sizeof q, "SELECT toString(id), assumeNotNull(note), isNull(note), assumeNotNull(%s), isNull(%s), toUInt64(_tr_version), toUInt8(_tr_deleted) FROM \"suite \\\"%s\\\" %d\".%s%s FINAL FORMAT RowBinary",
                     s->n_columns > 2 ? "more" : "note", s->n_columns > 2 ? "more" : "note", p->prefix, p->n, s->name, variant == TR_TARGET_SHADOW ? "__tr_build" : "");
    struct tr_slice body = tr_slice_of(q, (size_t)n);
    struct tr_httpc_request r = {.url = p->read, .said = p->read, .body = &body, .n_body = 1, .answer_max = 64 << 20};
    int rc = tr_httpc_new(&o, &h, &err);
    if (rc >= 0)
        rc = tr_httpc_request(h, &r, tr_now_ns() + 10 * TR_NS_PER_S, &status, NULL, 0, &out, &err);
    if (rc < 0 || status != 200) {
        fprintf(stderr, "%s: %s%.*s\n", q, err.msg, (int)out.n, out.n ? (const char *)out.p : "");
        rc = TR_FATAL;
    }
    struct tr_cur c = tr_cur_of(tr_buf_slice(&out));
    while (rc >= 0 && tr_cur_left(&c)) {
        struct tr_suite_row row = {0};
        char *v[3];
        for (int i = 0; i < 3; i++) {
            row.values[i] = string(&c, &v[i]);
            if (i && tr_cur_u8(&c))
                row.values[i] = NULL;
        }
        row.version = tr_cur_le64(&c);
        row.deleted = tr_cur_u8(&c);
        cb(cb_arg, &row);
        for (int i = 0; i < 3; i++)
            free(v[i]);
    }
    tr_buf_done(&out);
    tr_httpc_free(h);
    return rc;
}

int main(void)
{
    const char *url = getenv("TR_SUITE_URL"), *url2 = getenv("TR_SUITE_URL2");
    if (!url || !url2)
        return 77;
    char twice[200]; /* two addresses of one server */
    snprintf(twice, sizeof twice, "%s, %s/", url, url);
    const char *const replicas[] = {twice}, *const one[] = {url}, *const shards[] = {url2, url};
    struct place row = {.urls = replicas, .read = url, .n_urls = 1, .prefix = "row"},
                 key = {.urls = one, .read = url, .n_urls = 1, .prefix = "key", .format = TR_CH_NATIVE, .tombstone = TR_CH_TOMBSTONE_KEY, .compression = TR_CH_ZSTD},
                 shard = {.urls = shards, .read = url, .n_urls = 2, .prefix = "shard", .compression = TR_CH_LZ4};
    const struct tr_sink_factory f[] = {
        {.name = "clickhouse", .arg = &row, .open = open_clickhouse, .read_back = read_back},
        {.name = "clickhouse, Native, tombstones of keys, zstd", .arg = &key, .open = open_clickhouse, .read_back = read_back},
        {.name = "clickhouse, two shards, lz4", .arg = &shard, .open = open_clickhouse, .read_back = read_back, .shard = 1},
    };
    return tr_sink_suite_run(&f[0]) + tr_sink_suite_run(&f[1]) + tr_sink_suite_run(&f[2]) != 0;
}
