/*
 * configfile.h: the YAML file of a program, asked for section by section.
 *
 * Each section is described by a table of fields (component.h) and filled into a struct of the asker's: defaults, ranges, ${NAME} and
 * ${NAME:-default} from the environment. What stands in the file and nobody asked for is refused in the end, by line and with the nearest key
 * that somebody did: a misspelt key is never passed over.
 *
 * Owner: the file owns every string that it filled in; free it after everything that was made from them. Threads: one at a time.
 * Errors: REJECT with file and line, what is wrong and what is allowed; NOMEM. Secrets are never part of a message.
 */
#ifndef TAILRACE_CONFIGFILE_H
#define TAILRACE_CONFIGFILE_H

#include <tailrace/component.h>

struct tr_configfile;

int tr_configfile_load(const char *path, struct tr_configfile **ret, struct tr_err *err);
/* name: what messages call it. */
int tr_configfile_parse(const char *text, const char *name, struct tr_configfile **ret, struct tr_err *err);

/* A section that is not there is filled with defaults. */
int tr_configfile_section(struct tr_configfile *f, const char *section, const struct tr_field *fields, size_t n, void *to, struct tr_err *err);

/* The member of the list `sinks` that has this name; not there: defaults. Its `type`, where it says one, must be `type`. Two tables: what
 * every sink has, and the component's own (n_own may be 0). */
int tr_configfile_sink(struct tr_configfile *f, const char *name, const char *type, const struct tr_field *common, size_t n_common, void *to, const struct tr_field *own, size_t n_own, void *to_own,
                       struct tr_err *err);

/* Memory that lives as long as the file: for structs that sections are filled into. Zeroed; NULL: there is none. */
void *tr_configfile_alloc(struct tr_configfile *f, size_t bytes);

/* REJECT when something stands in the file that was not asked for. */
int tr_configfile_finish(struct tr_configfile *f, struct tr_err *err);

struct tr_configfile *tr_configfile_free(struct tr_configfile *f);

#endif
