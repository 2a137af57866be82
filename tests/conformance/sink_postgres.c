/* The sink suite over the PostgreSQL connector; sink_postgres.sh gives it a cluster (TR_SUITE_DSN). Each fresh place is a pair of schemas. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include <tailrace/connectors.h>

#include "pg_sink.h"
#include "sink_suite.h"

struct place {
    const char *dsn;
    bool hard;
    int n;
    char schema[32], meta[32];
    struct tr_pg_sink_options options; /* the sink borrows them, as it does the configuration's */
};

static int open_postgres(void *arg, bool fresh, struct tr_sink **ret, struct tr_err *err)
{
    struct place *p = arg;
    static const char *const every[] = {"*.*"};
    p->n += fresh;
    snprintf(p->schema, sizeof p->schema, "%s_%d", p->hard ? "hard" : "soft", p->n);
    snprintf(p->meta, sizeof p->meta, "meta_%s_%d", p->hard ? "hard" : "soft", p->n);
    p->options = (struct tr_pg_sink_options){.dsn = p->dsn, .schema = p->schema, .meta_schema = p->meta};
    struct tr_component_env env = {.name = "pg", .state_dir = "/tmp", .lease_token = 1, .hard_delete = {every, p->hard ? 1 : 0}};
    return tr_postgres_sink_type.sink_new(&p->options, &env, ret, err);
}

static int read_back(void *arg, struct tr_sink *sink, const struct tr_schema *s, enum tr_target_variant variant, tr_suite_row_fn cb, void *cb_arg)
{
    struct place *p = arg;
    char q[300];
    (void)sink;
    snprintf(q, sizeof q, "SELECT id, note, %s, _tr_version, %s FROM %s.%s%s", s->n_columns > 2 ? "more" : "NULL", p->hard ? "false" : "_tr_deleted", p->schema, s->name,
             variant == TR_TARGET_SHADOW ? "__tr_build" : "");
    PGconn *c = PQconnectdb(p->dsn);
    PGresult *r = PQexec(c, q);
    int rc = PQresultStatus(r) == PGRES_TUPLES_OK ? TR_OK : TR_FATAL;
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", q, PQerrorMessage(c));
    for (int i = 0; rc == TR_OK && i < PQntuples(r); i++) {
        struct tr_suite_row row = {.version = strtoull(PQgetvalue(r, i, 3), NULL, 10), .deleted = PQgetvalue(r, i, 4)[0] == 't'};
        for (int k = 0; k < TR_SUITE_COLUMNS; k++)
            row.values[k] = PQgetisnull(r, i, k) ? NULL : PQgetvalue(r, i, k);
        cb(cb_arg, &row);
    }
    PQclear(r);
    PQfinish(c);
    return rc;
}

int main(void)
{
    const char *dsn = getenv("TR_SUITE_DSN");
    if (!dsn)
        return 77;
    struct place soft = {.dsn = dsn}, hard = {.dsn = dsn, .hard = true};
    const struct tr_sink_factory f[] = {
        {.name = "postgres", .arg = &soft, .open = open_postgres, .read_back = read_back},
        {.name = "postgres, hard deletes", .arg = &hard, .open = open_postgres, .read_back = read_back},
    };
    return tr_sink_suite_run(&f[0]) + tr_sink_suite_run(&f[1]) != 0;
}
