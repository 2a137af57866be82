/*
 * source_suite.h: what every source has to do, checked by one suite through source.h alone.
 *
 * A new source needs: open (a source that resumes from what was committed; the first time from the beginning), produce (n more
 * records appear, numbered 1, 2, 3 … without gap over the life of the place, in one lane or several, each a transaction of
 * its own or several together), record_no (which of them a payload is; 0 for commit markers and the like), and a main that calls
 * tr_source_suite_run. reset makes the place empty, before each test.
 */
#ifndef TR_SOURCE_SUITE_H
#define TR_SOURCE_SUITE_H

#include <tailrace/source.h>

struct tr_source_factory {
    const char *name;
    void *arg;
    int (*reset)(void *arg);
    int (*open)(void *arg, struct tr_source **ret, struct tr_err *err);
    int (*produce)(void *arg, uint32_t n);
    uint64_t (*record_no)(void *arg, const struct tr_payload *p);
    int (*revoke)(void *arg, uint32_t lane);  /* NULL: this source never revokes */
    int (*disconnect)(void *arg);             /* NULL: or the lane loses its peer and comes back by itself */
};

/* Number of failed tests. */
int tr_source_suite_run(const struct tr_source_factory *f);

#endif
