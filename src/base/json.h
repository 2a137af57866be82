/* json.h - JSON written member by member, into a buffer.
 *
 * Owner:   the caller's struct, on its stack; zeroed but for `out`.
 * Errors:  sticky: rc is TR_NOMEM once there was no memory, and what was written is of no use then.
 * Keys are written as they are: literals of ours. key is NULL for an element of a list.
 */
#ifndef TR_JSON_H
#define TR_JSON_H

#include <stdbool.h>

#include <tailrace/buf.h>

struct tr_json {
	struct tr_buf *out;
	int rc;
	bool comma;
};

void tr_json_open(struct tr_json *j, const char *key, char bracket); /* '{' or '[' */
void tr_json_close(struct tr_json *j, char bracket);
void tr_json_str(struct tr_json *j, const char *key, const char *v);
void tr_json_num(struct tr_json *j, const char *key, int64_t v);
void tr_json_bool(struct tr_json *j, const char *key, bool v);

#endif
