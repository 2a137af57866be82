/* The change log beside the disk it lies on: appends that are waited for against pwrite + fdatasync of the same sizes into a file that is
 * written already, in turns; and a reader through the log against read() of its files. Prints JSON for bench.py. Usage: log_bench DIR */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tailrace/clock.h>

#include "alloc.h"
#include "check.h"
#include "frame.h"
#include "log.h"

enum { SEGMENT = 64 << 20, TURNS = 10, FRAMES = 256 };

static void die(const char *what, const struct tr_err *err)
{
    fprintf(stderr, "log_bench: %s%s%s\n", what, err ? ": " : "", err ? err->msg : "");
    exit(1);
}

static struct tr_schema *schema;
static uint64_t version, lsn;

static void make_schema(void)
{
    static const struct tr_column c[] = {{.name = "id", .source_type = "bigint", .type = TR_TYPE_INT64, .key_pos = 1, .precision = -1},
                                         {.name = "a", .source_type = "integer", .type = TR_TYPE_INT32, .precision = -1},
                                         {.name = "at", .source_type = "timestamp with time zone", .type = TR_TYPE_TIMESTAMPTZ, .precision = -1},
                                         {.name = "t", .source_type = "text", .type = TR_TYPE_TEXT, .precision = -1}};
    struct tr_schema_def d = {.table_id = 1, .version = 1, .ns = "public", .name = "t", .no_key_reason = "", .columns = c, .n_columns = TR_ARRAY_LEN(c)};
    struct tr_err err;
    if (tr_schema_new(&d, &schema, &err) < 0)
        die("schema", &err);
}

/* A transaction of about `bytes`; returns its frames. */
static uint32_t transaction(struct tr_buf *b, size_t bytes, bool define)
{
    struct tr_err err;
    uint32_t n = 0;
    char id[24], text[97];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tr_buf_clear(b);
    if (define && ++n && tr_frame_encode_schema(schema, 1, TR_FRAME_ORDINARY, b, &err) < 0)
        die("frame", &err);
    lsn += 1000;
    for (uint32_t i = 0; i == 0 || b->n + 200 < bytes; i++, n++) {
        snprintf(id, sizeof id, "%llu", (unsigned long long)++version);
        struct tr_slice v[] = {tr_slice_str(id), tr_slice_str("12345"), tr_slice_str("2026-01-01 00:00:00+00"), tr_slice_str(text)};
        uint8_t st[] = {TR_PRESENT, TR_PRESENT, TR_PRESENT, TR_PRESENT};
        struct tr_change c = {.op = TR_OP_INSERT, .epoch = 1, .schema = schema, .version = version, .commit_lsn = lsn, .change_lsn = lsn, .xid = version,
                              .ordinal = i, .commit_us = 1, .capture_us = 1, .key = tr_slice_str(id), .after = {v, st, 4}};
        if (tr_frame_encode(&c, b, &err) < 0)
            die("frame", &err);
    }
    struct tr_change c = {.op = TR_OP_COMMIT, .epoch = 1, .commit_lsn = lsn, .end_lsn = lsn + 1, .commit_us = 1};
    if (tr_frame_encode(&c, b, &err) < 0)
        die("frame", &err);
    return n + 1;
}

static void append(struct tr_log *l, const struct tr_buf *b, uint32_t frames)
{
    struct tr_err err;
    struct tr_log_run run = {tr_slice_of(b->p, b->n), frames};
    uint64_t next = 0, durable = 0;
    if (tr_log_append(l, 0, &run, 1, &next, &err) < 0)
        die("append", &err);
    while (durable < next)
        if (tr_log_durable(l, 0, next, 1000, &durable, &err) < 0)
            die("durable", &err);
}

static double seconds(int64_t since)
{
    return (double)(tr_now_ns() - since) / 1e9;
}

static int written_file(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/raw", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    static const uint8_t zeros[1 << 20];
    for (size_t at = 0; fd >= 0 && at < SEGMENT; at += sizeof zeros)
        if (pwrite(fd, zeros, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros)
            die("writing", NULL);
    if (fd < 0 || fsync(fd) < 0)
        die("the raw file", NULL);
    return fd;
}

/* Until no segment is being prepared: the raw file was written before its time is taken, too. */
static void let_prepare(const char *dir)
{
    char part[4096 + 16];
    snprintf(part, sizeof part, "%s/p0000", dir);
    for (bool busy = true; busy;) {
        DIR *d = opendir(part);
        busy = false;
        for (struct dirent *e; d && (e = readdir(d));)
            busy |= strncmp(e->d_name, "spare-", 6) == 0;
        if (d)
            closedir(d);
        if (busy)
            tr_sleep_ns(10 * TR_NS_PER_MS);
    }
}

struct rates {
    double bytes, raw, log;
};

/* In turns, so that both meet the same disk. rests: between the turns segments are prepared, not meanwhile. */
static struct rates bench_append(struct tr_log *l, const char *dir, int raw, size_t bytes, uint32_t each, bool rests)
{
    struct tr_buf b;
    tr_buf_init(&b);
    double t_raw = 0, t_log = 0;
    uint64_t n_bytes = 0;
    off_t at = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        uint32_t frames = transaction(&b, bytes, false);
        if (rests)
            let_prepare(dir);
        int64_t t = tr_now_ns();
        for (uint32_t i = 0; i < each; i++) {
            if (at + (off_t)b.n > SEGMENT)
                at = 0;
            if (pwrite(raw, b.p, b.n, at) != (ssize_t)b.n || fdatasync(raw) < 0)
                die("writing", NULL);
            at += (off_t)b.n;
        }
        t_raw += seconds(t);
        for (uint32_t i = 0; i < each; i++) {
            t = tr_now_ns();
            append(l, &b, frames);
            t_log += seconds(t);
            n_bytes += b.n;
            frames = transaction(&b, bytes, false);
        }
    }
    double n = (double)each * TURNS;
    tr_buf_done(&b);
    return (struct rates){(double)n_bytes / n, n / t_raw, n / t_log};
}

static void bench_size(struct tr_log *l, const char *dir, int raw, size_t bytes, uint32_t each, bool last)
{
    struct rates r = bench_append(l, dir, raw, bytes, each, true), busy = bench_append(l, dir, raw, bytes, each, false);
    printf("  {\"bytes\": %.0f, \"raw_per_s\": %.0f, \"log_per_s\": %.0f, \"busy_raw_per_s\": %.0f, \"busy_log_per_s\": %.0f}%s\n", r.bytes, r.raw, r.log, busy.raw, busy.log, last ? "" : ",");
}

static uint64_t read_files(const char *dir)
{
    char part[4096], path[8192];
    static char buf[1 << 20];
    uint64_t sum = 0;
    snprintf(part, sizeof part, "%s/log/p0000", dir);
    DIR *d = opendir(part);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strstr(e->d_name, ".seg"))
            continue;
        snprintf(path, sizeof path, "%s/%s", part, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        for (ssize_t k; fd >= 0 && (k = read(fd, buf, sizeof buf)) > 0;)
            sum += (uint64_t)k;
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    return sum;
}

static void bench_replay(struct tr_log *l, const char *dir)
{
    struct tr_log_reader *r = NULL;
    struct tr_err err;
    struct tr_frame *v = tr_malloc(FRAMES * sizeof *v);
    uint64_t bytes = 0, frames = 0;
    if (!v || l->ops->reader_new(l, 0, 0, &r, &err) < 0)
        die("a reader", &err);
    read_files(dir); /* into the page cache */
    int64_t t = tr_now_ns();
    uint64_t raw = read_files(dir);
    double t_raw = seconds(t);
    t = tr_now_ns();
    for (int n; (n = tr_log_reader_poll(r, v, FRAMES, &err)) > 0; frames += (uint64_t)n)
        for (int i = 0; i < n; i++)
            bytes += v[i].raw.n;
    double t_log = seconds(t);
    r->ops->free(r);
    tr_free(v);
    printf(" \"replay\": {\"frames\": %llu, \"bytes\": %llu, \"log_seconds\": %.4f, \"raw_bytes\": %llu, \"raw_seconds\": %.4f}}\n", (unsigned long long)frames,
           (unsigned long long)bytes, t_log, (unsigned long long)raw, t_raw);
}

int main(int argc, char **argv)
{
    char dir[4096];
    struct tr_err err;
    struct tr_log *l = NULL;
    struct tr_log_options o;
    struct tr_buf b;
    if (argc != 2)
        die("usage: log_bench DIR", NULL);
    snprintf(dir, sizeof dir, "%s/log", argv[1]);
    mkdir(argv[1], 0700);
    make_schema();
    tr_log_options_init(&o);
    o.dir = dir;
    o.segment_bytes = SEGMENT;
    if (tr_log_embedded_open(&o, &l, &err) < 0)
        die("opening the log", &err);
    int raw = written_file(argv[1]);
    /* the first segment of a log grows; those that follow were zeroed before they are needed */
    tr_buf_init(&b);
    for (uint64_t sum = 0; sum < SEGMENT + (1 << 20); sum += b.n) {
        uint32_t frames = transaction(&b, 1 << 20, sum == 0);
        append(l, &b, frames);
    }
    tr_buf_done(&b);
    printf("{\"append\": [\n");
    bench_size(l, dir, raw, 4 << 10, 200, false);
    bench_size(l, dir, raw, 64 << 10, 40, false);
    bench_size(l, dir, raw, 1 << 20, 10, true);
    printf(" ],\n");
    bench_replay(l, argv[1]);
    l->ops->close(l);
    close(raw);
    tr_schema_unref(schema);
    return 0;
}
