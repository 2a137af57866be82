/*
 * catalog.h: the contract of a table catalog: the only place where targets are made and altered.
 *
 * Three steps: describe what is there; reconcile it with what is wanted into a plan (types/ddl.h, pure; a plan is a value that can
 * be printed, tested and refused); execute the plan. No sink writes DDL text: the plan carries statements made by types/ddl.h, and the
 * records (which tables are ours, what they hold, which build they are) that go with them.
 *
 * describe   fills *ret (zeroed by the caller, who frees it with tr_table_desc_done, after an error too). A table that is neither there
 *            nor recorded is no error. Connects if need be.
 * execute    every step in order, statements and records, in one transaction where the sink has them. Idempotent: after a crash in
 *            the middle, describe and reconcile again yield the rest. STALE: the sink does not take a statement.
 *
 * Threads: the sink's target thread. Every call has a deadline (monotonic ns) and answers RETRY when it passes.
 *
 * register_sink and vend_credentials belong to external catalogs (Unity); a database that is its own catalog leaves them
 * NULL.
 */
#ifndef TR_CATALOG_H
#define TR_CATALOG_H

#include "plan.h"

struct tr_catalog;

struct tr_catalog_ops {
    int (*describe)(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_table_desc *ret, struct tr_err *err);
    int (*execute)(struct tr_catalog *c, const struct tr_plan *plan, int64_t deadline_ns, struct tr_err *err);
    int (*register_sink)(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, struct tr_err *err);
    int (*vend_credentials)(struct tr_catalog *c, const char *ns, const char *name, int64_t deadline_ns, char *ret, size_t cap, struct tr_err *err);
};

struct tr_catalog { /* first member of an implementation's own struct */
    const struct tr_catalog_ops *ops;
};

#endif
