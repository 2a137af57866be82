/* proc.h - what this process is and may use.
 *
 * Purpose: processor count as the container grants it, memory in use, names; the signals that end it; and the two acts that fault points need.
 * Owner:   nothing. Threads: any.
 * Errors:  none: what cannot be found out is answered with a usable default, as noted.
 */
#ifndef TR_PROC_H
#define TR_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At least 1: the affinity mask, limited by cgroup CPU quotas (v2 cpu.max up the tree, v1 cfs_quota), rounded up. */
int tr_proc_cpus(void);
uint64_t tr_proc_rss_bytes(void); /* resident set; 0 if unknown */
int tr_proc_pid(void);
/* NUL-terminated, cut to fit; "localhost" if unknown. Returns out. */
char *tr_proc_hostname(char *out, size_t n);
/* Let fault points raise SIGKILL and sleep (failpoint.h). */
void tr_proc_install_failpoints(void);

/* SIGTERM and SIGINT ask the process to stop: once caught, tr_proc_stop_asked says whether they came. A second one ends it at once, with status 1: what was
 * not recorded is replayed. SIGPIPE is ignored from then on, too. */
void tr_proc_catch_stop(void);
bool tr_proc_stop_asked(void);

#endif
