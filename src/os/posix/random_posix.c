#include "random.h"

#include <errno.h>
#include <sys/random.h>

#include "check.h"
#include "prng.h"

static tr_random_fn replaced;
static void *replaced_ctx;

void
tr_random_bytes(void *p, size_t n)
{
	uint8_t *b = p;

	if (replaced) {
		replaced(replaced_ctx, p, n);
		return;
	}
	while (n) {
		ssize_t k = getrandom(b, n, 0);

		if (k < 0 && errno == EINTR)
			continue;
		TR_ASSERT(k > 0);
		b += k;
		n -= (size_t)k;
	}
}

uint64_t
tr_random_u64(void)
{
	uint64_t v;

	tr_random_bytes(&v, sizeof v);
	return v;
}

void
tr_random_set(tr_random_fn fn, void *ctx)
{
	replaced_ctx = ctx;
	replaced = fn;
}

static void
from_prng(void *ctx, void *p, size_t n)
{
	tr_prng_fill(ctx, p, n);
}

void
tr_random_set_prng(struct tr_prng *prng)
{
	tr_random_set(prng ? from_prng : NULL, prng);
}
