/*
 * cli.h: shared by the commands. Exit codes (docs/exit-codes.md):
 *   0 done · 1 failed · 2 wrong use · 3 configuration refused · 4 check found errors · 5 another process has it · 6 not running
 */
#ifndef TR_CLI_H
#define TR_CLI_H

#include "config.h"

enum { TR_EXIT_OK = 0, TR_EXIT_FAILED = 1, TR_EXIT_USAGE = 2, TR_EXIT_CONFIG = 3, TR_EXIT_FINDINGS = 4, TR_EXIT_TAKEN = 5, TR_EXIT_NOT_RUNNING = 6 };

extern const struct tr_registry tr_cli_registry;

struct tr_cli_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    const char *usage;                 /* arguments */
    const char *summary;
    const char *help;
};

extern const struct tr_cli_command tr_cli_commands[];
const struct tr_cli_command *tr_cli_find(const char *name);

int tr_cli_cmd_run(int argc, char **argv);
int tr_cli_cmd_check(int argc, char **argv);
int tr_cli_cmd_init(int argc, char **argv);
int tr_cli_cmd_status(int argc, char **argv);
int tr_cli_cmd_table(int argc, char **argv);
int tr_cli_cmd_log(int argc, char **argv);
int tr_cli_cmd_help(int argc, char **argv);
int tr_cli_cmd_version(int argc, char **argv);

/* Options common to most commands. Returns the index of the first argument that is none, or a negative exit code when usage was wrong (told
 * already) or help was asked for (-1 - TR_EXIT_OK). */
struct tr_cli_options {
    const char *config;   /* -c, --config; default $TAILRACE_CONFIG, then tailrace.yaml */
    bool json;            /* --json */
    bool watch;           /* --watch */
    const char *sink;     /* --sink */
    const char *dsn, *output; /* init */
    const char *form;     /* help config */
    uint64_t from, count; /* log cat */
    double interval;      /* --interval seconds */
    char given[24];       /* the letters of the options that were there */
};
/* allowed: letters of options, as in the table of main.c; more than args_max arguments besides them are wrong use. */
int tr_cli_parse(int argc, char **argv, const char *command, const char *allowed, int args_max, struct tr_cli_options *o);
/* An option that this verb of the command does not know, told; false: there is none. */
bool tr_cli_stray(const struct tr_cli_options *o, const char *command, const char *verb, const char *options);

/* Loads it, or tells why not; NULL then. */
struct tr_config *tr_cli_load(const struct tr_cli_options *o, enum tr_config_use use);
/* Path of a file in the state directory. */
void tr_cli_state_path(const struct tr_config *c, const char *file, char *to, size_t cap);
int tr_cli_fail(const struct tr_err *err, int code);

#endif
