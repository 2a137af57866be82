/* The sink suite over the SQLite connector, with soft and with hard deletes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include <tailrace/connectors.h>

#include "sink_suite.h"
#include "sqlite_sink.h"

struct place {
    char path[128];
    bool hard;
    struct tr_sqlite_options options; /* the sink borrows them, as it does the configuration's */
};

static int open_sqlite(void *arg, bool fresh, struct tr_sink **ret, struct tr_err *err)
{
    struct place *p = arg;
    static const char *const every[] = {"*.*"};
    p->options.path = p->path;
    struct tr_component_env env = {.name = "lite", .state_dir = "/tmp", .lease_token = 1, .hard_delete = {every, p->hard ? 1 : 0}};
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    for (int i = 0; fresh && i < 4; i++) {
        char f[160];
        snprintf(f, sizeof f, "%s%s", p->path, suffixes[i]);
        unlink(f);
    }
    return tr_sqlite_sink_type.sink_new(&p->options, &env, ret, err);
}

static int read_back(void *arg, struct tr_sink *sink, const struct tr_schema *s, enum tr_target_variant variant, tr_suite_row_fn cb, void *cb_arg)
{
    struct place *p = arg;
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    char q[300];
    (void)sink;
    snprintf(q, sizeof q, "SELECT id, note, %s, _tr_version, %s FROM %s%s", s->n_columns > 2 ? "more" : "NULL", p->hard ? "0" : "_tr_deleted", s->name,
             variant == TR_TARGET_SHADOW ? "__tr_build" : "");
    if (sqlite3_open_v2(p->path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK || sqlite3_prepare_v2(db, q, -1, &st, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", q, sqlite3_errmsg(db));
        sqlite3_close(db);
        return TR_FATAL;
    }
    while (sqlite3_step(st) == SQLITE_ROW) {
        struct tr_suite_row r = {.version = (uint64_t)sqlite3_column_int64(st, 3), .deleted = sqlite3_column_int(st, 4)};
        for (int i = 0; i < TR_SUITE_COLUMNS; i++)
            r.values[i] = (const char *)sqlite3_column_text(st, i);
        cb(cb_arg, &r);
    }
    sqlite3_finalize(st);
    sqlite3_close(db);
    return TR_OK;
}

int main(void)
{
    char dir[] = "/tmp/tr-sqlite-XXXXXX";
    if (!mkdtemp(dir))
        return 2;
    struct place soft = {0}, hard = {.hard = true};
    snprintf(soft.path, sizeof soft.path, "%s/soft.db", dir);
    snprintf(hard.path, sizeof hard.path, "%s/hard.db", dir);
    const struct tr_sink_factory f[] = {
        {.name = "sqlite", .arg = &soft, .open = open_sqlite, .read_back = read_back},
        {.name = "sqlite, hard deletes", .arg = &hard, .open = open_sqlite, .read_back = read_back},
    };
    int failed = tr_sink_suite_run(&f[0]) + tr_sink_suite_run(&f[1]);
    char cmd[4][160];
    for (int i = 0; i < 2; i++) {
        const char *path = i ? hard.path : soft.path;
        static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
        for (int k = 0; k < 4; k++) {
            snprintf(cmd[k], sizeof cmd[k], "%s%s", path, suffixes[k]);
            unlink(cmd[k]);
        }
    }
    rmdir(dir);
    return failed != 0;
}
