/* ask.h: talking to a running process through its admin endpoint, and reading the control store when there is none. */
#ifndef TR_ASK_H
#define TR_ASK_H

#include <jansson.h>

#include "cli.h"
#include "control.h"

/* GET /status. NOT_READY: nobody answers, with the cure. The caller owns *ret. */
int tr_ask_status(const struct tr_config *c, json_t **ret, struct tr_err *err);
/* POST /request. REJECT with the reason when it was refused, RETRY when it cannot be now, NOT_READY when nobody answers. */
int tr_ask_request(const struct tr_config *c, const char *kind, const char *scope, const char *table, struct tr_err *err);
/* The control store of this state directory; NOT_READY when nothing has run there yet. */
int tr_ask_control(const struct tr_config *c, struct tr_control **ret, struct tr_err *err);

#endif
