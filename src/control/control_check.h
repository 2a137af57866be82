/*
 * control_check.h: what every control store checks of its arguments before it looks at what it holds.
 * Threads: any. Errors: REJECT, naming the argument.
 */
#ifndef TR_CONTROL_CHECK_H
#define TR_CONTROL_CHECK_H

#include "control.h"

/* Not empty and shorter than max, as the structs of control.h have room for. */
int tr_control_check_name(const char *what, const char *s, size_t max, struct tr_err *err);
int tr_control_check_source(const char *source, const struct tr_ctl_source *v, struct tr_err *err);
int tr_control_check_table(const struct tr_ctl_table *v, struct tr_err *err);
int tr_control_check_offset(const struct tr_ctl_offset *v, struct tr_err *err);
int tr_control_check_audit(const struct tr_ctl_audit *v, struct tr_err *err);
int tr_control_check_request(const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err);
int tr_control_check_alarm(const char *kind, const char *subject, struct tr_err *err);

/* The same words from every implementation. */
int tr_control_fenced(const char *lease, uint64_t token, struct tr_err *err);
int tr_control_held(const char *lease, const char *holder, struct tr_err *err);
int tr_control_went_back(const struct tr_ctl_offset *v, uint64_t stored, struct tr_err *err);
int tr_control_no_table(uint32_t table_id, struct tr_err *err);

#endif
