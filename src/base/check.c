#include "check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void
tr_assert_failed(const char *file, int line, const char *func, const char *what)
{
	/* stderr is unbuffered: one line comes out even when the heap is gone. */
	fprintf(stderr, "tailrace: assertion failed at %s:%d in %s: %s\n", file, line, func, what);
	abort();
}
