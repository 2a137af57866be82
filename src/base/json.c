#include "json.h"

#include <inttypes.h>

#include "text.h"

static void
put(struct tr_json *j, const char *s)
{
	if (j->rc >= 0)
		j->rc = tr_buf_append_str(j->out, s);
}

static void
begin(struct tr_json *j, const char *key)
{
	if (j->comma)
		put(j, ", ");
	if (key) {
		put(j, "\"");
		put(j, key);
		put(j, "\": ");
	}
	j->comma = true;
}

void
tr_json_open(struct tr_json *j, const char *key, char bracket)
{
	begin(j, key);
	put(j, (char[]){ bracket, '\0' });
	j->comma = false;
}

void
tr_json_close(struct tr_json *j, char bracket)
{
	put(j, (char[]){ bracket, '\0' });
	j->comma = true;
}

void
tr_json_str(struct tr_json *j, const char *key, const char *v)
{
	begin(j, key);
	if (j->rc >= 0)
		j->rc = tr_json_string(j->out, tr_slice_str(v));
}

void
tr_json_num(struct tr_json *j, const char *key, int64_t v)
{
	begin(j, key);
	if (j->rc >= 0)
		j->rc = tr_buf_printf(j->out, "%" PRId64, v);
}

void
tr_json_bool(struct tr_json *j, const char *key, bool v)
{
	begin(j, key);
	put(j, v ? "true" : "false");
}
