#include "lines_source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tailrace/clock.h>
#include <tailrace/source.h>

enum { PAYLOADS_MAX = 4096 };

struct options {
    const char *path;
    bool follow;
    uint64_t line_max;
};

struct lines {
    struct tr_source source; /* first */
    struct tr_lane lane;
    const struct options *o;
    char *position_path, *temporary_path;
    int dir;                 /* of state_dir */
    int64_t committed;
    bool assigned;           /* the controller's: the one event there is was told */
    bool ended;
    /* the lane's */
    int fd;
    uint8_t *buf;            /* bytes [at, n) are not yet delivered; those before were, and live until the next poll */
    size_t at, n, cap;
    int64_t offset;          /* in the file, of buf[at] */
    struct tr_payload payloads[PAYLOADS_MAX];
};

static struct lines *of_lane(struct tr_lane *l)
{
    return (struct lines *)(void *)((char *)l - offsetof(struct lines, lane));
}

/* ---- the lane: one pipeline thread ---- */

/* More bytes behind buf[n). 0: there are none now. */
static int more(struct lines *s, struct tr_err *err)
{
    memmove(s->buf, s->buf + s->at, s->n - s->at);
    s->n -= s->at;
    s->at = 0;
    if (s->n == s->cap) {
        if (s->cap >= s->o->line_max)
            return tr_err_set(err, TR_FATAL, TR_DOM_SOURCE, "%s: the line at offset %" PRId64 " is longer than line_max (%" PRIu64 " bytes): raise it", s->o->path, s->offset, s->o->line_max);
        size_t cap = s->cap * 2 < s->o->line_max ? s->cap * 2 : (size_t)s->o->line_max;
        uint8_t *p = realloc(s->buf, cap);
        if (!p)
            return tr_err_set(err, TR_RETRY, TR_DOM_SOURCE, "%s: no memory for a line", s->o->path);
        s->buf = p;
        s->cap = cap;
    }
    ssize_t n = pread(s->fd, s->buf + s->n, s->cap - s->n, s->offset + (int64_t)s->n);
    if (n < 0)
        return tr_err_sys(err, TR_RETRY, errno, "%s: cannot be read", s->o->path);
    s->n += (size_t)n;
    return n > 0;
}

/* Cuts lines out of the buffer. `rest`: what is left without a line feed is a line, too. */
static uint32_t cut(struct lines *s, uint32_t max, bool rest)
{
    uint32_t n = 0;
    while (n < max && n < PAYLOADS_MAX && s->at < s->n) {
        uint8_t *p = s->buf + s->at, *end = memchr(p, '\n', s->n - s->at);
        if (!end && !rest)
            break;
        size_t len = end ? (size_t)(end - p) : s->n - s->at, took = len + (end ? 1 : 0);
        s->at += took;
        s->offset += (int64_t)took;
        s->payloads[n++] = (struct tr_payload){.value = tr_slice_of(p, len), .position = s->offset};
    }
    return n;
}

static int poll_lines(struct tr_lane *l, uint32_t max, struct tr_payloads *ret, struct tr_err *err)
{
    struct lines *s = of_lane(l);
    uint32_t n = cut(s, max, false);
    while (n == 0) {
        int rc = more(s, err);
        if (rc < 0)
            return rc;
        n = cut(s, max, rc == 0 && !s->o->follow);
        if (rc == 0 && n == 0)
            return s->o->follow ? TR_AGAIN : TR_EOF;
    }
    *ret = (struct tr_payloads){.v = s->payloads, .n = n, .lane = l->id, .upto = s->payloads[n - 1].position};
    return TR_OK;
}

/* Files do not tell when they grow. */
static int arm(struct tr_lane *l, struct tr_waker *w, struct tr_wait *ret)
{
    (void)l;
    (void)w;
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = tr_now_ns() + 50 * TR_NS_PER_MS};
    return 0;
}

static int tend(struct tr_lane *l, int64_t now_ns, struct tr_err *err)
{
    (void)l;
    (void)now_ns;
    (void)err;
    return TR_OK;
}

static void pause_lane(struct tr_lane *l, bool on)
{
    (void)l;
    (void)on;
}

static void close_lane(struct tr_lane *l)
{
    of_lane(l)->ended = true; /* the lane is part of the source */
}

static const struct tr_lane_ops lane_ops = {poll_lines, arm, tend, pause_lane, close_lane};

/* ---- the source: the controller ---- */

static int poll_event(struct tr_source *source, struct tr_event *ret, struct tr_err *err)
{
    struct lines *s = (struct lines *)source;
    (void)err;
    if (s->assigned)
        return s->ended ? TR_EOF : TR_AGAIN;
    s->assigned = true;
    *ret = (struct tr_event){.kind = TR_EVENT_ASSIGNED, .lane_id = 0, .epoch = 1, .lane = &s->lane};
    return TR_OK;
}

static int arm_source(struct tr_source *source, struct tr_waker *w, struct tr_wait *ret)
{
    (void)source;
    (void)w;
    *ret = (struct tr_wait){.fd = -1, .deadline_ns = INT64_MAX};
    return 0;
}

static int answer(struct tr_source *source, const struct tr_event *ev, struct tr_err *err)
{
    (void)source;
    (void)ev;
    (void)err;
    return TR_OK;
}

static int store(struct lines *s, int64_t position, struct tr_err *err)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRId64 "\n", position);
    int fd = open(s->temporary_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write(fd, text, (size_t)len) == len && fsync(fd) == 0;
    if (fd >= 0)
        ok &= close(fd) == 0;
    ok = ok && rename(s->temporary_path, s->position_path) == 0 && fsync(s->dir) == 0;
    return ok ? TR_OK : tr_err_sys(err, TR_RETRY, errno, "%s: the position cannot be stored", s->position_path);
}

static int commit(struct tr_source *source, const struct tr_watermark *v, size_t n, int64_t sync_deadline_ns, struct tr_err *err)
{
    struct lines *s = (struct lines *)source;
    (void)sync_deadline_ns; /* every commit is durable when this returns */
    for (size_t i = 0; i < n; i++)
        if (v[i].upto > s->committed) {
            int rc = store(s, v[i].upto, err);
            if (rc < 0)
                return rc;
            s->committed = v[i].upto;
        }
    return TR_OK;
}

static void close_source(struct tr_source *source, int64_t deadline_ns)
{
    struct lines *s = (struct lines *)source;
    (void)deadline_ns;
    if (s->fd >= 0)
        close(s->fd);
    if (s->dir >= 0)
        close(s->dir);
    free(s->position_path);
    free(s->temporary_path);
    free(s->buf);
    free(s);
}

static const struct tr_source_ops source_ops = {poll_event, arm_source, answer, commit, close_source};

/* ---- birth ---- */

static int begin(struct lines *s, struct tr_err *err)
{
    struct stat st;
    FILE *f = fopen(s->position_path, "r");
    if (f && fscanf(f, "%" SCNd64, &s->committed) != 1)
        s->committed = -1;
    if (f)
        fclose(f);
    if (s->committed < 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "%s holds no position: put the offset of the next line there, or remove it to begin anew", s->position_path);
    s->fd = open(s->o->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return tr_err_sys(err, TR_REJECT, errno, "%s cannot be opened", s->o->path);
    if (st.st_size < s->committed)
        return tr_err_set(err, TR_REJECT, TR_DOM_SOURCE, "%s has %lld bytes, and %" PRId64 " were read of it: it is another file. Remove %s to begin anew", s->o->path, (long long)st.st_size, s->committed,
                          s->position_path);
    s->offset = s->committed;
    return TR_OK;
}

static int source_new(const void *options, const struct tr_component_env *env, struct tr_source **ret, struct tr_err *err)
{
    struct lines *s = calloc(1, sizeof *s);
    if (!env->state_dir) {
        free(s);
        return tr_err_set(err, TR_REJECT, TR_DOM_CONFIG, "source lines keeps its position in a file: set pipeline.state_dir");
    }
    if (!s)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for the source");
    s->source.ops = &source_ops;
    s->lane = (struct tr_lane){.ops = &lane_ops, .id = 0, .epoch = 1};
    s->o = options;
    s->fd = -1;
    s->cap = 64 << 10;
    s->buf = malloc(s->cap);
    s->dir = open(env->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t n = strlen(env->state_dir) + strlen(env->name) + 20;
    s->position_path = malloc(n);
    s->temporary_path = malloc(n);
    int rc = TR_OK;
    if (!s->buf || !s->position_path || !s->temporary_path) {
        rc = tr_err_set(err, TR_NOMEM, TR_DOM_SOURCE, "no memory for the source");
    } else if (s->dir < 0) {
        rc = tr_err_sys(err, TR_REJECT, errno, "%s cannot be opened", env->state_dir);
    } else {
        snprintf(s->position_path, n, "%s/%s.position", env->state_dir, env->name);
        snprintf(s->temporary_path, n, "%s/%s.position.new", env->state_dir, env->name);
        rc = begin(s, err);
    }
    if (rc < 0) {
        close_source(&s->source, 0);
        return rc;
    }
    *ret = &s->source;
    return TR_OK;
}

#define F(field) offsetof(struct options, field)

static const struct tr_field fields[] = {
    {.name = "path", .type = TR_F_STRING, .offset = F(path), .help = "The file."},
    {.name = "follow", .type = TR_F_BOOL, .def = "false", .offset = F(follow), .help = "Wait for more at its end."},
    {.name = "line_max", .type = TR_F_SIZE, .def = "1MiB", .min = 64 << 10, .max = INT64_C(1) << 30, .offset = F(line_max), .help = "A longer line fails the pipeline."},
};

const struct tr_source_type lines_source_type = {
    .abi = TR_COMPONENT_ABI,
    .name = "lines",
    .help = "The lines of a text file.",
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    .options_size = sizeof(struct options),
    .source_new = source_new,
};
