/* metric.h - metric registry, families and cells.
 *
 * Purpose: counting that costs one relaxed atomic, and rendering that disturbs nobody.
 * Owner:   the registry owns families and cells; they live until tr_metrics_free and are never removed, so a pointer
 *          to a cell stays valid. Connectors are *given* cells.
 * Threads: any thread may create families and cells, count, and render, all at once: families and cells hang in
 *          append-only lists, published by compare-and-swap. Each cell has its own cache line.
 * Errors:  creation: TR_NOMEM; TR_REJECT for a bad name or for a family asked again with another type. A family
 *          holds at most cells_max cells; label sets beyond share one cell labelled overflow="true": a metric never
 *          stops a pipeline.
 *
 * Counting accepts a NULL cell and does nothing, so that tests and tools need no registry.
 * Format: Prometheus text exposition 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#ifndef TAILRACE_METRIC_H
#define TAILRACE_METRIC_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <tailrace/buf.h>
#include <tailrace/err.h>

enum tr_metric_type { TR_COUNTER = 1, TR_GAUGE, TR_GAUGE_DOUBLE, TR_HISTOGRAM };
enum { TR_LABELS_MAX = 6, TR_BUCKETS_MAX = 24, TR_CELLS_MAX_DEFAULT = 10000 };

struct tr_label {
	const char *name, *value;
};

/* Copied at creation. */
struct tr_metric_def {
	const char *name; /* [a-zA-Z_:][a-zA-Z0-9_:]*, with unit and _total as Prometheus wants them */
	const char *help;
	const char *unit; /* "seconds", "bytes"; NULL: none */
	enum tr_metric_type type;
	double scale;               /* rendered = counted * scale; 0 means 1. Nanoseconds as seconds: 1e-9 */
	const uint64_t *bounds;     /* histogram: rising upper bounds (inclusive), as counted */
	uint32_t n_bounds;          /* at most TR_BUCKETS_MAX */
	uint32_t cells_max;         /* 0: TR_CELLS_MAX_DEFAULT */
};

struct tr_metrics;
struct tr_family;

struct tr_cell {
	_Alignas(64) _Atomic uint64_t v; /* u64, int64 or the bits of a double, by the family's type */
};

struct tr_histogram {
	_Alignas(64) _Atomic uint64_t sum;
	uint32_t n_bounds;
	const uint64_t *bounds;                      /* the family's */
	_Atomic uint64_t count[TR_BUCKETS_MAX + 1]; /* not cumulative; the last is +Inf */
};

int tr_metrics_new(struct tr_metrics **ret, struct tr_err *err);
struct tr_metrics *tr_metrics_free(struct tr_metrics *reg);
/* The same name gives the same family; its first definition stays. */
int tr_metrics_family(struct tr_metrics *reg, const struct tr_metric_def *def, struct tr_family **ret,
                      struct tr_err *err);
/* The same labels in the same order give the same cell. */
int tr_family_cell(struct tr_family *f, const struct tr_label *labels, size_t n_labels, struct tr_cell **ret,
                   struct tr_err *err);
int tr_family_histogram(struct tr_family *f, const struct tr_label *labels, size_t n_labels,
                        struct tr_histogram **ret, struct tr_err *err);
/* Appends everything; TR_NOMEM. Each value is read once, not all at the same instant. */
int tr_metrics_render_prometheus(const struct tr_metrics *reg, struct tr_buf *out);

/* Bounds from 100 µs to 60 s, counted in nanoseconds: latencies. */
extern const uint64_t tr_latency_bounds_ns[];
enum { TR_LATENCY_BOUNDS = 18 };

static inline void
tr_counter_add(struct tr_cell *c, uint64_t n)
{
	if (c)
		atomic_fetch_add_explicit(&c->v, n, memory_order_relaxed);
}

static inline void
tr_counter_inc(struct tr_cell *c)
{
	tr_counter_add(c, 1);
}

static inline void
tr_gauge_set(struct tr_cell *c, int64_t v)
{
	if (c)
		atomic_store_explicit(&c->v, (uint64_t)v, memory_order_relaxed);
}

static inline void
tr_gauge_add(struct tr_cell *c, int64_t n)
{
	tr_counter_add(c, (uint64_t)n);
}

static inline void
tr_gauge_set_double(struct tr_cell *c, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof bits);
	tr_gauge_set(c, (int64_t)bits);
}

static inline uint64_t
tr_cell_get(const struct tr_cell *c)
{
	return c ? atomic_load_explicit(&c->v, memory_order_relaxed) : 0;
}

static inline void
tr_histogram_observe(struct tr_histogram *h, uint64_t v)
{
	uint32_t i = 0;

	if (!h)
		return;
	while (i < h->n_bounds && v > h->bounds[i])
		i++;
	atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->sum, v, memory_order_relaxed);
}

#endif
