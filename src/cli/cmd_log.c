/* cmd_log.c: tailrace log ls | cat | verify: the change log from outside, also while a process writes it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "fs.h"
#include "key.h"
#include "log_inspect.h"
#include "rowimage.h"
#include "text.h"

static void time_text(int64_t us, char out[32])
{
    time_t t = (time_t)(us / 1000000);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static int segment(void *arg, const struct tr_log_segment_info *s)
{
    bool json = *(const bool *)arg;
    char a[32], b[32];
    time_text(s->first_us, a);
    time_text(s->last_us, b);
    if (json) {
        printf("{\"path\": \"%s\", \"partition\": %u, \"base\": %" PRIu64 ", \"frames\": %" PRIu64 ", \"data_bytes\": %" PRIu64 ", \"file_bytes\": %" PRIu64
               ", \"first\": \"%s\", \"last\": \"%s\", \"active\": %s, \"tables\": %u}\n",
               s->path, s->partition, s->base, s->frames, s->data_bytes, s->file_bytes, a, s->last ? "" : b, s->last ? "true" : "false", s->n_tables);
        return TR_OK;
    }
    printf("%-14" PRIu64 " %-12" PRIu64 " %10.1f MiB  %s  %s  %u table%s\n", s->base, s->frames, (double)s->data_bytes / 1048576.0, a, s->last ? "active              " : b, s->n_tables, s->n_tables == 1 ? "" : "s");
    return TR_OK;
}

static void put_str(struct tr_buf *b, const char *k, struct tr_slice v, const char *comma)
{
    tr_buf_printf(b, "%s\"%s\": ", comma, k);
    tr_json_string(b, v);
}

static void put_row(struct tr_buf *b, const char *k, const struct tr_schema *s, struct tr_slice image)
{
    static struct tr_slice v[TR_COLUMNS_MAX];
    static uint8_t st[TR_COLUMNS_MAX];
    struct tr_row r;
    if (!s || !image.n || tr_rowimage_decode(image, s->n_columns, v, st, &r, NULL) < 0)
        return;
    tr_buf_printf(b, ", \"%s\": {", k);
    const char *comma = "";
    for (uint32_t i = 0; i < r.n; i++) {
        if (st[i] == TR_ABSENT)
            continue;
        if (st[i] == TR_PRESENT)
            put_str(b, s->columns[i].name, v[i], comma);
        else {
            tr_buf_append_str(b, comma);
            tr_json_string(b, tr_slice_str(s->columns[i].name));
            tr_buf_append_str(b, st[i] == TR_NULL ? ": null" : ": {\"unchanged\": true}");
        }
        comma = ", ";
    }
    tr_buf_append_str(b, "}");
}

static int frame(void *arg, uint32_t partition, const struct tr_frame *f)
{
    *(bool *)arg = true;
    (void)partition;
    const struct tr_change *c = &f->change;
    struct tr_buf b = {0};
    char lsn[TR_LSN_CHARS];
    tr_buf_printf(&b, "{\"offset\": %" PRIu64 ", \"op\": \"%s\"", f->offset, tr_op_name(c->op));
    if (c->schema) {
        tr_buf_append_str(&b, ", \"table\": ");
        struct tr_buf n = {0};
        tr_buf_printf(&n, "%s.%s", c->schema->ns, c->schema->name);
        tr_json_string(&b, tr_buf_slice(&n));
        tr_buf_done(&n);
    }
    if (c->version)
        tr_buf_printf(&b, ", \"version\": %" PRIu64, c->version);
    if (c->commit_lsn)
        tr_buf_printf(&b, ", \"epoch\": %u, \"commit_lsn\": \"%s\", \"ordinal\": %u", c->epoch, tr_format_lsn(c->commit_lsn, lsn), c->ordinal);
    if (c->snapshot_id)
        tr_buf_printf(&b, ", \"snapshot\": %" PRIu64, c->snapshot_id);
    if (c->flags & TR_CHG_MOVED)
        tr_buf_append_str(&b, ", \"key_update\": true");
    if (c->op == TR_OP_FILL && (c->flags & TR_CHG_EMPTY))
        tr_buf_append_str(&b, ", \"empty\": true");
    put_row(&b, "before", c->schema, f->old_image);
    put_row(&b, "after", c->schema, f->image);
    tr_buf_append_str(&b, "}\n");
    fwrite(b.p, 1, b.n, stdout);
    tr_buf_done(&b);
    return ferror(stdout) ? TR_EOF : TR_OK;
}

static int note_end(void *arg, const struct tr_log_segment_info *s)
{
    *(uint64_t *)arg = s->base + s->frames;
    return TR_OK;
}

/* From the beginning, which retention moves, or from where the user says; beyond the end that is an error. */
static int show_frames(const char *dir, const struct tr_cli_options *o, struct tr_err *err)
{
    bool given = strchr(o->given, 'f') != NULL, any = false;
    uint64_t end = 0;
    int rc = tr_log_inspect_cat(tr_fs_posix(), dir, 0, o->from, o->count, frame, &any, err);
    if (rc == TR_FATAL && !given && err->code > 0)
        rc = tr_log_inspect_cat(tr_fs_posix(), dir, 0, (uint64_t)err->code, o->count, frame, &any, err);
    if (rc < 0 || any || !given)
        return rc;
    rc = tr_log_inspect_ls(tr_fs_posix(), dir, note_end, &end, err);
    if (rc >= 0 && o->from > end)
        return tr_err_set(err, TR_REJECT, TR_DOM_CLI, "--from %" PRIu64 " is beyond the end of the log: the next offset will be %" PRIu64, o->from, end);
    if (rc >= 0)
        fprintf(stderr, "tailrace: nothing at offset %" PRIu64 " yet: it is the next one\n", o->from);
    return rc;
}

static int damage(void *arg, const char *path, uint64_t pos, const char *what)
{
    (void)arg;
    printf("damaged: %s at byte %" PRIu64 ": %s\n", path, pos, what);
    return TR_OK;
}

static int verify(const char *dir, bool json, struct tr_err *err)
{
    struct tr_log_verdict v = {0};
    int rc = tr_log_inspect_verify(tr_fs_posix(), dir, damage, NULL, &v, err);
    if (rc < 0)
        return tr_cli_fail(err, TR_EXIT_FAILED);
    if (json)
        printf("{\"segments\": %" PRIu64 ", \"frames\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"damaged\": %" PRIu64 "}\n", v.segments, v.frames, v.bytes, v.damaged);
    else
        printf("%" PRIu64 " segment%s, %" PRIu64 " frame%s, %.1f MiB: %s\n", v.segments, v.segments == 1 ? "" : "s", v.frames, v.frames == 1 ? "" : "s", (double)v.bytes / 1048576.0, v.damaged ? "DAMAGED" : "sound");
    return v.damaged ? TR_EXIT_FAILED : TR_EXIT_OK;
}

int tr_cli_cmd_log(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "log", "cjfn", 1, &o);
    if (at < 0)
        return -1 - at;
    const char *verb = at < argc ? argv[at] : "";
    bool ls = !strcmp(verb, "ls"), cat = !strcmp(verb, "cat");
    if (!ls && !cat && strcmp(verb, "verify") != 0) {
        fputs("tailrace log: ls, cat or verify\n", stderr);
        return TR_EXIT_USAGE;
    }
    if (!cat && tr_cli_stray(&o, "log", verb, "fn"))
        return TR_EXIT_USAGE;
    struct tr_config *c = tr_cli_load(&o, TR_CONFIG_TO_LOOK);
    if (!c)
        return TR_EXIT_CONFIG;
    char dir[1024];
    tr_cli_state_path(c, "log", dir, sizeof dir);
    struct tr_err err;
    int code = TR_EXIT_OK, rc = TR_OK;
    if (ls) {
        if (!o.json)
            printf("%-14s %-12s %14s  %-20s  %-20s\n", "OFFSET", "FRAMES", "DATA", "FIRST", "LAST");
        rc = tr_log_inspect_ls(tr_fs_posix(), dir, segment, &o.json, &err);
    } else if (cat) {
        rc = show_frames(dir, &o, &err);
    } else {
        code = verify(dir, o.json, &err);
    }
    if (rc < 0 && rc != TR_EOF && rc != TR_AGAIN)
        code = tr_cli_fail(&err, TR_EXIT_FAILED);
    tr_config_free(c);
    return code;
}
