/*
 * control_sqlite.h: the control store in one SQLite file.
 *
 * WAL mode, synchronous=FULL: what a call changed is on disk when it returns. One transaction per call (BEGIN IMMEDIATE, so that the lease
 * is checked under the write lock). The schema's version is in user_version; older ones are migrated at open, newer ones refused.
 * The lease clock is tr_wall_us.
 *
 * Threads: any, one at a time inside (a mutex). Several processes may have the file open; the lease decides who writes.
 */
#ifndef TR_CONTROL_SQLITE_H
#define TR_CONTROL_SQLITE_H

#include "control.h"

/* Makes the file when it is missing; its directory must be there. FATAL: damaged, or of a newer program. */
int tr_control_sqlite_open(const char *path, struct tr_control **ret, struct tr_err *err);

#endif
