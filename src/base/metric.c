#include <tailrace/metric.h>

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "alloc.h"
#include "check.h"

/* Both lists only ever grow at their end: walk to the NULL, swap the new node in; if somebody else was
 * faster, go on from his. So whoever creates a name first wins, without a lock, and the order is stable. */
struct node {
	struct node *_Atomic next;
	char *labels; /* rendered, without braces: a="b",c="d" */
	union {
		struct tr_cell cell;
		struct tr_histogram histogram;
	};
};

struct tr_family {
	struct tr_family *_Atomic next;
	char *name, *help, *unit;
	enum tr_metric_type type;
	double scale;
	uint64_t bounds[TR_BUCKETS_MAX];
	uint32_t n_bounds, cells_max;
	_Atomic uint32_t n_cells;
	struct node *_Atomic nodes;
};

struct tr_metrics {
	struct tr_family *_Atomic families;
};

const uint64_t tr_latency_bounds_ns[TR_LATENCY_BOUNDS] = {
	100000,    250000,    500000,     1000000,    2500000,    5000000,     10000000,    25000000,    50000000,
	100000000, 250000000, 500000000, 1000000000, 2500000000, 5000000000, 10000000000, 30000000000, 60000000000,
};

int
tr_metrics_new(struct tr_metrics **ret, struct tr_err *err)
{
	struct tr_metrics *reg = tr_calloc(1, sizeof *reg);

	if (!reg)
		return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for the metric registry");
	*ret = reg;
	return TR_OK;
}

static void
node_free(struct node *n)
{
	if (n)
		tr_free(n->labels);
	tr_free(n);
}

static void
family_free(struct tr_family *f)
{
	struct node *n, *next;

	if (!f)
		return;
	for (n = f->nodes; n; n = next) {
		next = n->next;
		node_free(n);
	}
	tr_free(f->name);
	tr_free(f->help);
	tr_free(f->unit);
	tr_free(f);
}

struct tr_metrics *
tr_metrics_free(struct tr_metrics *reg)
{
	struct tr_family *f, *next;

	if (!reg)
		return NULL;
	for (f = reg->families; f; f = next) {
		next = f->next;
		family_free(f);
	}
	tr_free(reg);
	return NULL;
}

static bool
valid_name(const char *s, bool colon)
{
	if (!s || !*s || (*s >= '0' && *s <= '9'))
		return false;
	for (; *s; s++)
		if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
		      *s == '_' || (colon && *s == ':')))
			return false;
	return true;
}

static struct tr_family *
family_new(const struct tr_metric_def *def)
{
	struct tr_family *f = tr_calloc(1, sizeof *f);

	if (!f)
		return NULL;
	f->name = tr_strdup(def->name);
	f->help = tr_strdup(def->help ? def->help : "");
	f->unit = tr_strdup(def->unit ? def->unit : "");
	if (!f->name || !f->help || !f->unit) {
		family_free(f);
		return NULL;
	}
	f->type = def->type;
	f->scale = fpclassify(def->scale) == FP_ZERO ? 1.0 : def->scale;
	f->n_bounds = def->n_bounds;
	f->cells_max = def->cells_max ? def->cells_max : TR_CELLS_MAX_DEFAULT;
	for (uint32_t i = 0; i < def->n_bounds; i++)
		f->bounds[i] = def->bounds[i];
	return f;
}

int
tr_metrics_family(struct tr_metrics *reg, const struct tr_metric_def *def, struct tr_family **ret, struct tr_err *err)
{
	struct tr_family *_Atomic *link = &reg->families;
	struct tr_family *fresh = NULL, *f;

	if (!valid_name(def->name, true))
		return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "'%s' is no metric name", def->name ? def->name : "");
	if (def->n_bounds > TR_BUCKETS_MAX || (def->type == TR_HISTOGRAM) != (def->n_bounds > 0))
		return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "metric %s: a histogram, and nothing else, has 1 to %d bounds",
		                  def->name, TR_BUCKETS_MAX);
	for (;;) {
		f = atomic_load_explicit(link, memory_order_acquire);
		if (!f) {
			if (!fresh && !(fresh = family_new(def)))
				return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for metric %s", def->name);
			if (atomic_compare_exchange_strong_explicit(link, &f, fresh, memory_order_acq_rel,
			                                            memory_order_acquire)) {
				*ret = fresh;
				return TR_OK;
			}
		}
		if (strcmp(f->name, def->name) == 0)
			break;
		link = &f->next;
	}
	family_free(fresh);
	if (f->type != def->type)
		return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "metric %s exists with another type", def->name);
	*ret = f;
	return TR_OK;
}

/* Label values: backslash, quote and newline are escaped; help: backslash and newline. */
static int
append_escaped(struct tr_buf *b, const char *s, bool quotes)
{
	for (; *s; s++) {
		int rc = TR_OK;

		if (*s == '\\' || (quotes && *s == '"'))
			rc = tr_buf_append_u8(b, '\\');
		else if (*s == '\n')
			rc = tr_buf_append(b, "\\", 1);
		if (rc == TR_OK)
			rc = tr_buf_append_u8(b, *s == '\n' ? 'n' : (uint8_t)*s);
		if (rc < 0)
			return rc;
	}
	return TR_OK;
}

static int
render_labels(struct tr_buf *b, const struct tr_family *f, const struct tr_label *labels, size_t n, struct tr_err *err)
{
	if (n > TR_LABELS_MAX)
		return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "metric %s: more than %d labels", f->name, TR_LABELS_MAX);
	for (size_t i = 0; i < n; i++) {
		if (!valid_name(labels[i].name, false))
			return tr_err_set(err, TR_REJECT, TR_DOM_ENGINE, "metric %s: bad label name", f->name);
		if (tr_buf_printf(b, "%s%s=\"", i ? "," : "", labels[i].name) < 0 ||
		    append_escaped(b, labels[i].value ? labels[i].value : "", true) < 0 || tr_buf_append_u8(b, '"') < 0)
			return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for metric %s", f->name);
	}
	if (!tr_buf_cstr(b))
		return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for metric %s", f->name);
	return TR_OK;
}

static struct node *
node_new(const struct tr_family *f, const char *labels)
{
	struct node *n = tr_aligned_alloc(64, sizeof *n);

	if (!n)
		return NULL;
	memset(n, 0, sizeof *n);
	n->labels = tr_strdup(labels);
	if (!n->labels) {
		node_free(n);
		return NULL;
	}
	if (f->type == TR_HISTOGRAM) {
		n->histogram.bounds = f->bounds;
		n->histogram.n_bounds = f->n_bounds;
	}
	return n;
}

static struct node *
node_get(struct tr_family *f, const char *labels)
{
	struct node *_Atomic *link = &f->nodes;
	struct node *fresh = NULL, *n;

	for (;;) {
		n = atomic_load_explicit(link, memory_order_acquire);
		if (!n) {
			if (atomic_load_explicit(&f->n_cells, memory_order_relaxed) >= f->cells_max &&
			    strcmp(labels, "overflow=\"true\"") != 0) {
				node_free(fresh);
				return node_get(f, "overflow=\"true\"");
			}
			if (!fresh && !(fresh = node_new(f, labels)))
				return NULL;
			if (atomic_compare_exchange_strong_explicit(link, &n, fresh, memory_order_acq_rel,
			                                            memory_order_acquire)) {
				atomic_fetch_add_explicit(&f->n_cells, 1, memory_order_relaxed);
				return fresh;
			}
		}
		if (strcmp(n->labels, labels) == 0)
			break;
		link = &n->next;
	}
	node_free(fresh);
	return n;
}

static int
get(struct tr_family *f, const struct tr_label *labels, size_t n_labels, struct node **ret, struct tr_err *err)
{
	TR_CLEANUP(tr_buf_done) struct tr_buf b = { 0 };
	int rc = render_labels(&b, f, labels, n_labels, err);

	if (rc < 0)
		return rc;
	*ret = node_get(f, (const char *)b.p);
	if (!*ret)
		return tr_err_set(err, TR_NOMEM, TR_DOM_ENGINE, "no memory for metric %s", f->name);
	return TR_OK;
}

int
tr_family_cell(struct tr_family *f, const struct tr_label *labels, size_t n_labels, struct tr_cell **ret,
               struct tr_err *err)
{
	struct node *n = NULL;
	int rc;

	TR_ASSERT(f->type != TR_HISTOGRAM);
	rc = get(f, labels, n_labels, &n, err);
	if (rc == TR_OK)
		*ret = &n->cell;
	return rc;
}

int
tr_family_histogram(struct tr_family *f, const struct tr_label *labels, size_t n_labels, struct tr_histogram **ret,
                    struct tr_err *err)
{
	struct node *n = NULL;
	int rc;

	TR_ASSERT(f->type == TR_HISTOGRAM);
	rc = get(f, labels, n_labels, &n, err);
	if (rc == TR_OK)
		*ret = &n->histogram;
	return rc;
}

/* ---- rendering ---- */

static int
append_double(struct tr_buf *b, double v)
{
	if (isnan(v))
		return tr_buf_append_str(b, "NaN");
	if (isinf(v))
		return tr_buf_append_str(b, v > 0 ? "+Inf" : "-Inf");
	return tr_buf_printf(b, "%.15g", v);
}

static bool
unscaled(const struct tr_family *f)
{
	return f->scale >= 1.0 && f->scale <= 1.0;
}

static int
append_value(struct tr_buf *b, const struct tr_family *f, uint64_t v)
{
	double d;

	switch (f->type) {
	case TR_GAUGE:
		return unscaled(f) ? tr_buf_printf(b, "%" PRId64, (int64_t)v)
		                   : append_double(b, (double)(int64_t)v * f->scale);
	case TR_GAUGE_DOUBLE:
		memcpy(&d, &v, sizeof d);
		return append_double(b, d * f->scale);
	case TR_COUNTER:
	case TR_HISTOGRAM:
		break;
	}
	return unscaled(f) ? tr_buf_printf(b, "%" PRIu64, v) : append_double(b, (double)v * f->scale);
}

static int
render_histogram(struct tr_buf *b, const struct tr_family *f, const struct node *n)
{
	const struct tr_histogram *h = &n->histogram;
	const char *comma = n->labels[0] ? "," : "", *open = n->labels[0] ? "{" : "", *close = n->labels[0] ? "}" : "";
	uint64_t total = 0;

	for (uint32_t i = 0; i <= f->n_bounds; i++) {
		total += atomic_load_explicit(&h->count[i], memory_order_relaxed);
		if (tr_buf_printf(b, "%s_bucket{%s%sle=\"", f->name, n->labels, comma) < 0 ||
		    (i < f->n_bounds ? append_value(b, f, f->bounds[i]) : tr_buf_append_str(b, "+Inf")) < 0 ||
		    tr_buf_printf(b, "\"} %" PRIu64 "\n", total) < 0)
			return TR_NOMEM;
	}
	if (tr_buf_printf(b, "%s_sum%s%s%s ", f->name, open, n->labels, close) < 0 ||
	    append_value(b, f, atomic_load_explicit(&h->sum, memory_order_relaxed)) < 0 ||
	    tr_buf_printf(b, "\n%s_count%s%s%s %" PRIu64 "\n", f->name, open, n->labels, close, total) < 0)
		return TR_NOMEM;
	return TR_OK;
}

static int
render_node(struct tr_buf *b, const struct tr_family *f, const struct node *n)
{
	if (f->type == TR_HISTOGRAM)
		return render_histogram(b, f, n);
	if (tr_buf_append_str(b, f->name) < 0 ||
	    (n->labels[0] && tr_buf_printf(b, "{%s}", n->labels) < 0) || tr_buf_append_u8(b, ' ') < 0 ||
	    append_value(b, f, tr_cell_get(&n->cell)) < 0 || tr_buf_append_u8(b, '\n') < 0)
		return TR_NOMEM;
	return TR_OK;
}

static int
render_head(struct tr_buf *b, const struct tr_family *f)
{
	const char *type = f->type == TR_COUNTER ? "counter" : f->type == TR_HISTOGRAM ? "histogram" : "gauge";

	if (tr_buf_printf(b, "# HELP %s ", f->name) < 0 || append_escaped(b, f->help, false) < 0 ||
	    tr_buf_printf(b, "\n# TYPE %s %s\n", f->name, type) < 0)
		return TR_NOMEM;
	/* a comment to 0.0.4 parsers, metadata to OpenMetrics ones */
	if (f->unit[0] && tr_buf_printf(b, "# UNIT %s %s\n", f->name, f->unit) < 0)
		return TR_NOMEM;
	return TR_OK;
}

int
tr_metrics_render_prometheus(const struct tr_metrics *reg, struct tr_buf *out)
{
	const struct tr_family *f;
	const struct node *n;

	for (f = atomic_load_explicit(&reg->families, memory_order_acquire); f;
	     f = atomic_load_explicit(&f->next, memory_order_acquire)) {
		n = atomic_load_explicit(&f->nodes, memory_order_acquire);
		if (n && render_head(out, f) < 0)
			return TR_NOMEM;
		for (; n; n = atomic_load_explicit(&n->next, memory_order_acquire))
			if (render_node(out, f, n) < 0)
				return TR_NOMEM;
	}
	return TR_OK;
}
