/*
 * cmd_status.c: tailrace status. One screen that answers, at 3 a.m.: is it running, how far behind is each sink, which table is not well and
 * why, what is a waiting snapshot waiting for. On a terminal --watch redraws; elsewhere each look is printed below the last.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tailrace/clock.h>

#include "ask.h"
#include "check.h"
#include "http.h"
#include "text.h"

struct memory { /* of the look before, for rates */
    int64_t at_us;
    double capture_rows, snapshot_rows;
    struct {
        char name[48];
        double rows;
    } sinks[64];
};

static const char *str(const json_t *o, const char *k)
{
    const char *s = json_string_value(json_object_get(o, k));
    return s ? s : "";
}

static int64_t num(const json_t *o, const char *k)
{
    return (int64_t)json_integer_value(json_object_get(o, k));
}

static void ago(int64_t us, char out[32])
{
    int64_t s = TR_MAX(us, 0) / 1000000; /* the clock may have been set back */
    if (s < 120)
        snprintf(out, 32, "%" PRId64 " s", s);
    else if (s < 7200)
        snprintf(out, 32, "%" PRId64 " min", s / 60);
    else if (s < 172800)
        snprintf(out, 32, "%" PRId64 " h", s / 3600);
    else
        snprintf(out, 32, "%" PRId64 " d", s / 86400);
}

/* "for 12 min: " before what has a beginning; nothing where that is not known. */
static void print_since(const json_t *root, const json_t *o, const char *key)
{
    char a[32];
    if (!json_object_get(o, key))
        return;
    ago(num(root, "now_us") - num(o, key), a);
    printf("for %s: ", a);
}

static void size(int64_t bytes, char out[TR_SIZE_CHARS])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(out, TR_SIZE_CHARS, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

static double rate(double now, double before, int64_t us)
{
    return us > 0 && now >= before ? (now - before) * 1e6 / (double)us : 0;
}

/* Nothing is said of a slot that was not looked at yet. */
static void show_slot(const json_t *c)
{
    char b[TR_SIZE_CHARS];
    const char *wal = str(c, "slot_wal_status");
    if (!strcmp(wal, "lost")) {
        printf(", the slot is lost");
    } else if (json_object_get(c, "slot_retained_bytes")) {
        size(num(c, "slot_retained_bytes"), b);
        printf(", slot holds back %s", b);
    }
    if (strcmp(wal, "lost") != 0 && json_object_get(c, "slot_headroom_bytes")) {
        size(num(c, "slot_headroom_bytes"), b);
        printf(" (%s left)", b);
    }
}

static void show_capture(const json_t *root, struct memory *m, int64_t dt)
{
    const json_t *c = json_object_get(root, "capture");
    char a[32], b[TR_SIZE_CHARS];
    ago(num(root, "now_us") - num(c, "since_us"), a);
    printf("capture  %s for %s", str(c, "state"), a);
    if (num(c, "epoch") > 1)
        printf(", epoch %" PRId64, num(c, "epoch"));
    if (dt)
        printf(", %.0f rows/s", rate((double)num(c, "records_in"), m->capture_rows, dt));
    if (!strcmp(str(c, "state"), "running"))
        printf(", stream at %s", str(c, "stream_lsn"));
    else
        printf(", confirmed up to %s", str(c, "confirmed_lsn"));
    show_slot(c);
    puts("");
    if (*str(c, "error")) {
        printf("         trouble ");
        print_since(root, c, "error_since_us");
        puts(str(c, "error"));
    }
    m->capture_rows = (double)num(c, "records_in");
    const json_t *l = json_object_get(root, "log");
    size(num(l, "bytes"), b);
    printf("log      offsets %" PRId64 " to %" PRId64 ", %s in %" PRId64 " segment%s\n", num(l, "first_offset"), num(l, "durable_offset"), b, num(l, "segments"),
           num(l, "segments") == 1 ? "" : "s");
}

static void show_tables(const json_t *root, struct memory *m, int64_t dt)
{
    const json_t *list = json_object_get(json_object_get(root, "capture"), "tables"), *t;
    size_t i;
    double read = 0;
    json_array_foreach(list, i, t)
        if (!strcmp(str(t, "state"), "snapshot"))
            read += (double)num(t, "rows_read");
    double r = dt ? rate(read, m->snapshot_rows, dt) : 0;
    m->snapshot_rows = read;
    printf("\n%-36s %-16s %s\n", "TABLE", "CAPTURE", "");
    json_array_foreach(list, i, t) {
        const char *state = str(t, "state");
        printf("%-36s %-16s", str(t, "name"), state);
        if (!strcmp(state, "snapshot")) {
            double done = (double)num(t, "rows_read"), all = (double)num(t, "rows_estimate");
            printf("%.0f rows", done);
            if (all > 0)
                printf(" of about %.0f (%.0f %%)", all, done < all ? 100 * done / all : 100);
            if (all > done && r > 0) {
                char eta[32];
                ago((int64_t)((all - done) / r * 1e6), eta);
                printf(", about %s to go", eta);
            }
        }
        print_since(root, t, "since_us");
        if (*str(t, "reason"))
            printf("%s%s", !strcmp(state, "snapshot") ? "; " : "", str(t, "reason"));
        puts("");
    }
}

static void show_sinks(const json_t *root, struct memory *m, int64_t dt)
{
    const json_t *list = json_object_get(root, "sinks"), *s, *t;
    int64_t first = num(json_object_get(root, "log"), "first_offset");
    size_t i, k;
    json_array_foreach(list, i, s) {
        char a[32];
        ago(num(root, "now_us") - num(s, "since_us"), a);
        printf("\nsink %s (%s)  %s for %s", str(s, "name"), str(s, "type"), str(s, "state"), a);
        if (i < sizeof m->sinks / sizeof m->sinks[0]) {
            if (dt && !strcmp(m->sinks[i].name, str(s, "name")))
                printf(", %.0f rows/s", rate((double)num(s, "rows_out"), m->sinks[i].rows, dt));
            snprintf(m->sinks[i].name, sizeof m->sinks[i].name, "%s", str(s, "name"));
            m->sinks[i].rows = (double)num(s, "rows_out");
        }
        printf(", %" PRId64 " frame%s behind", num(s, "behind"), num(s, "behind") == 1 ? "" : "s");
        if (num(s, "offset") < first)
            printf(", the first %" PRId64 " of them no longer in the log: its tables will be snapshotted anew", first - num(s, "offset"));
        const json_t *lag = json_object_get(s, "lag_us");
        if (lag) {
            double now = (double)num(lag, "end_to_end"), last = (double)num(lag, "last");
            ago(num(root, "now_us") - num(lag, "measured_us"), a);
            printf("\n     lag ");
            if (now > last) /* no heartbeat came through since */
                printf("at least %.1f s: no heartbeat came through for %s; the last took ", now / 1e6, a);
            printf("%.1f ms = capture %.1f + log %.1f + apply %.1f", last / 1e3, (double)num(lag, "capture") / 1e3, (double)num(lag, "log") / 1e3, (double)num(lag, "apply") / 1e3);
            if (now <= last)
                printf(", measured %s ago", a);
            printf(" (target %.0f ms)", (double)num(s, "freshness_target_us") / 1e3);
        } else {
            printf("\n     lag not measured yet: no heartbeat has come through");
        }
        puts("");
        if (*str(s, "error")) {
            printf("     trouble ");
            print_since(root, s, "error_since_us");
            puts(str(s, "error"));
        }
        size_t live = 0;
        const json_t *tables = json_object_get(s, "tables");
        json_array_foreach(tables, k, t) {
            if (!strcmp(str(t, "state"), "live")) {
                live++;
            } else {
                printf("     %-32s %-14s ", str(t, "name"), str(t, "state"));
                print_since(root, t, "since_us");
                puts(str(t, "reason"));
            }
        }
        if (json_array_size(tables)) /* of a sink that is being opened they are not known */
            printf("     %zu of %zu table%s live\n", live, json_array_size(tables), json_array_size(tables) == 1 ? "" : "s");
    }
    list = json_object_get(root, "alarms");
    json_array_foreach(list, i, s) {
        char a[32];
        ago(num(root, "now_us") - num(s, "since_us"), a);
        printf("\nALARM %s %s for %s: %s\n", str(s, "kind"), str(s, "subject"), a, str(s, "text"));
    }
}

static void show(const json_t *root, struct memory *m)
{
    int64_t now = num(root, "now_us"), dt = m->at_us ? now - m->at_us : 0;
    if (!strcmp(str(root, "state"), "draining")) {
        char a[32];
        ago(now - num(root, "draining_since_us"), a);
        printf("draining for %s: it was told to stop, and makes durable what is in flight\n", a);
    }
    show_capture(root, m, dt);
    show_tables(root, m, dt);
    show_sinks(root, m, dt);
    m->at_us = now;
}

/* ---- nobody runs ---- */

static const char *heartbeat_schema(const struct tr_config *c)
{
    const struct tr_source_type *t = c->source_type;
    for (size_t i = 0; i < t->n_fields; i++)
        if (!strcmp(t->fields[i].name, "heartbeat_schema"))
            return *(const char *const *)(const void *)((const char *)c->source_options + t->fields[i].offset);
    return "tailrace";
}

static void left_table(void *arg, const struct tr_ctl_table *t)
{
    const struct tr_config *c = arg;
    if (!strcmp(t->name, "heartbeat") && !strcmp(t->ns, heartbeat_schema(c)))
        return;
    static const char *const names[] = {
#define X(name, number, text) [number] = text,
        TR_TABLE_STATES(X)
#undef X
    };
    char name[140];
    snprintf(name, sizeof name, "%s.%s", t->ns, t->name);
    printf("%-36s %-16s %s\n", name, t->state < sizeof names / sizeof names[0] ? names[t->state] : "?", t->reason);
}

static void left_sink(void *arg, const char *sink, uint32_t partition, uint64_t offset, int64_t at_us)
{
    (void)arg;
    (void)partition;
    char a[32];
    ago(tr_wall_us() - at_us, a);
    printf("sink %s stopped at offset %" PRIu64 ", %s ago\n", sink, offset, a);
}

static void left_alarm(void *arg, const struct tr_ctl_alarm *a)
{
    (void)arg;
    char since[32];
    ago(tr_wall_us() - a->since_us, since);
    printf("ALARM %s %s for %s: %s\n", a->kind, a->subject, since, a->text);
}

static int show_left(const struct tr_config *c, const struct tr_err *why, bool json)
{
    bool listens = why->domain == TR_DOM_CURL && why->code == TR_HTTP_TIMED_OUT;
    if (json) {
        json_t *o = json_pack("{s:b, s:b, s:s}", "running", 0, "listens", listens, "error", why->msg);
        json_dumpf(o, stdout, 0);
        puts("");
        json_decref(o);
        return TR_EXIT_NOT_RUNNING;
    }
    printf("%s\n", why->msg);
    struct tr_control *ctl = NULL;
    struct tr_err err;
    if (tr_ask_control(c, &ctl, &err) < 0) {
        printf("%s\n", err.msg);
        return TR_EXIT_NOT_RUNNING;
    }
    puts(listens ? "what it wrote last:" : "what it left:");
    ctl->ops->table_list(ctl, c->source.name, left_table, (void *)(uintptr_t)c, NULL);
    ctl->ops->sink_list(ctl, left_sink, NULL, NULL);
    ctl->ops->alarm_list(ctl, left_alarm, NULL, NULL);
    ctl->ops->close(ctl);
    return TR_EXIT_NOT_RUNNING;
}

int tr_cli_cmd_status(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "status", "cjwi", 0, &o);
    if (at < 0)
        return -1 - at;
    struct tr_config *c = tr_cli_load(&o, TR_CONFIG_TO_LOOK);
    if (!c)
        return TR_EXIT_CONFIG;
    struct memory m = {0};
    int code;
    for (;;) {
        json_t *root = NULL;
        struct tr_err err;
        if (o.watch && isatty(1) && !o.json)
            fputs("\033[H\033[2J", stdout);
        if (tr_ask_status(c, &root, &err) < 0) {
            code = show_left(c, &err, o.json);
        } else {
            if (o.json) {
                json_dumpf(root, stdout, JSON_COMPACT);
                puts("");
            } else {
                show(root, &m);
            }
            json_decref(root);
            code = TR_EXIT_OK;
        }
        if (!o.watch)
            break;
        fflush(stdout);
        tr_sleep_ns((int64_t)(o.interval * 1e9));
        if (!o.json && !isatty(1))
            puts("---");
    }
    tr_config_free(c);
    return code;
}
