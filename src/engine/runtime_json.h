/* runtime_json.h: the counts of a runtime as members of a JSON object, for status pages. */
#ifndef TR_RUNTIME_JSON_H
#define TR_RUNTIME_JSON_H

#include <tailrace/runtime.h>

#include "json.h"

void tr_runtime_status_json(const struct tr_runtime_status *st, struct tr_json *j);

#endif
