/* main.c: finds the command and runs it. This folder is the only place that names connectors. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/connectors.h>

#include "check.h"
#include "cli.h"
#include "text.h"

static const struct tr_source_type *const sources[] = {&tr_postgres_source_type};
static const struct tr_sink_type *const sinks[] = {&tr_sqlite_sink_type, &tr_postgres_sink_type, &tr_clickhouse_sink_type};

const struct tr_registry tr_cli_registry = {sources, TR_ARRAY_LEN(sources), sinks, TR_ARRAY_LEN(sinks)};

#define CONFIG_HELP "  -c, --config FILE   configuration (default: $TAILRACE_CONFIG, else tailrace.yaml)\n"
#define JSON_HELP "      --json          machine-readable output\n"

const struct tr_cli_command tr_cli_commands[] = {
    {"init", tr_cli_cmd_init, "--dsn DSN [-o FILE]", "write a commented, working configuration",
     "Connects to the database, looks at its tables and writes a configuration that captures them into a SQLite mirror.\n\n"
     "      --dsn DSN       postgresql://user@host:port/database\n  -o, --output FILE   where to (default: tailrace.yaml; - for standard output)\n"},
    {"check", tr_cli_cmd_check, "[-c FILE] [--json]", "look the source and the sinks over, with a cure for each finding",
     "Changes nothing at the source or in a mirror; makes state_dir, and the file of a SQLite sink, where they are not there yet. Ends with 4 when there is an error among the findings.\n\n" CONFIG_HELP JSON_HELP},
    {"run", tr_cli_cmd_run, "[-c FILE]", "capture and mirror until stopped",
     "Runs in the foreground and logs to stderr. SIGTERM or Ctrl-C drains and stops; a second one stops at once (nothing is lost, the next\n"
     "start replays what was not recorded).\n\n" CONFIG_HELP},
    {"status", tr_cli_cmd_status, "[-c FILE] [--watch] [--interval S] [--json]", "tables, sinks, lag and alarms",
     "Asks the running process; if there is none, shows what it left.\n\n" CONFIG_HELP "      --watch         again and again\n      --interval S    seconds between two looks (default: 2)\n" JSON_HELP},
    {"table", tr_cli_cmd_table, "list | resume TABLE [--sink SINK] | resnapshot TABLE", "let a paused table go on, or read one anew",
     "  list                  tables and their states\n  resume TABLE          a paused table goes on where it stopped\n  resnapshot TABLE      reads the table anew, in every sink, beside the live mirror\n\n"
     "TABLE is schema.table. Without a running process the request is kept for the next start.\n\n      --sink SINK     resume in this sink only\n" CONFIG_HELP JSON_HELP},
    {"log", tr_cli_cmd_log, "ls | cat [--from N] [--count N] | verify", "look into the change log",
     "  ls        segments: offsets, size, age, tables\n  cat       frames as one JSON object per line\n  verify    every checksum, offset and definition; damage is listed\n\n"
     "      --from N        first offset (cat)\n      --count N       at most so many frames (cat; default: all)\n" CONFIG_HELP JSON_HELP},
    {"help", tr_cli_cmd_help, "[COMMAND | config [--man|--markdown|--schema]]", "this, a command, or all settings",
     "config lists every setting; --man, --markdown and --schema give it as manual page, Markdown and JSON Schema.\n"},
    {"version", tr_cli_cmd_version, "", "the program's version", ""},
    {NULL, NULL, NULL, NULL, NULL},
};

const struct tr_cli_command *tr_cli_find(const char *name)
{
    for (const struct tr_cli_command *c = tr_cli_commands; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}

static int number(const char *option, const char *text, uint64_t *ret)
{
    if (tr_parse_u64(tr_slice_str(text), ret, NULL) >= 0)
        return 0;
    fprintf(stderr, "tailrace: %s takes a whole number, not '%s'\n", option, text);
    return -1 - TR_EXIT_USAGE;
}

static int seconds(const char *option, const char *text, double *ret)
{
    char *end = NULL;
    *ret = strtod(text, &end);
    if (end != text && !*end && *ret >= 0.1 && *ret <= 86400)
        return 0;
    fprintf(stderr, "tailrace: %s takes seconds, from 0.1 to 86400, not '%s'\n", option, text);
    return -1 - TR_EXIT_USAGE;
}

static const struct option all[] = {
    {"config", required_argument, NULL, 'c'},   {"json", no_argument, NULL, 'j'},           {"watch", no_argument, NULL, 'w'},      {"sink", required_argument, NULL, 's'},
    {"dsn", required_argument, NULL, 'd'},      {"output", required_argument, NULL, 'o'},   {"from", required_argument, NULL, 'f'}, {"count", required_argument, NULL, 'n'},
    {"interval", required_argument, NULL, 'i'}, {"man", no_argument, NULL, 'M'},            {"markdown", no_argument, NULL, 'D'},   {"schema", no_argument, NULL, 'S'},
    {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
};

int tr_cli_parse(int argc, char **argv, const char *command, const char *allowed, int args_max, struct tr_cli_options *o)
{
    memset(o, 0, sizeof *o);
    const char *env = getenv("TAILRACE_CONFIG");
    o->config = env && *env ? env : "tailrace.yaml";
    o->interval = 2;
    optind = 1;
    opterr = 0;
    int c;
    while ((c = getopt_long(argc, argv, "c:o:h", all, NULL)) != -1) {
        if (c == '?' || (c != 'h' && !strchr(allowed, c))) {
            fprintf(stderr, "tailrace %s: unknown option %s, or its argument is missing; see tailrace help %s\n", command, argv[optind - 1], command);
            return -1 - TR_EXIT_USAGE;
        }
        int rc = 0;
        size_t n = strlen(o->given);
        if (!strchr(o->given, c) && n + 1 < sizeof o->given)
            o->given[n] = (char)c;
        switch (c) {
        case 'c': o->config = optarg; break;
        case 'j': o->json = true; break;
        case 'w': o->watch = true; break;
        case 's': o->sink = optarg; break;
        case 'd': o->dsn = optarg; break;
        case 'o': o->output = optarg; break;
        case 'f': rc = number("--from", optarg, &o->from); break;
        case 'n': rc = number("--count", optarg, &o->count); break;
        case 'i': rc = seconds("--interval", optarg, &o->interval); break;
        case 'M': o->form = "man"; break;
        case 'D': o->form = "markdown"; break;
        case 'S': o->form = "schema"; break;
        default: {
            char word[] = "help", *help[] = {word, argv[0], NULL};
            tr_cli_cmd_help(2, help);
            return -1 - TR_EXIT_OK;
        }
        }
        if (rc < 0)
            return rc;
    }
    if (argc - optind > args_max) {
        fprintf(stderr, "tailrace %s: '%s' is one argument too many; see tailrace help %s\n", command, argv[optind + args_max], command);
        return -1 - TR_EXIT_USAGE;
    }
    return optind;
}

bool tr_cli_stray(const struct tr_cli_options *o, const char *command, const char *verb, const char *options)
{
    for (const char *c = options; *c; c++)
        for (const struct option *a = all; strchr(o->given, *c) && a->name; a++)
            if (a->val == *c) {
                fprintf(stderr, "tailrace %s %s: there is no --%s here; see tailrace help %s\n", command, verb, a->name, command);
                return true;
            }
    return false;
}

struct tr_config *tr_cli_load(const struct tr_cli_options *o, enum tr_config_use use)
{
    struct tr_config *c = NULL;
    struct tr_err err;
    if (tr_config_load(o->config, &tr_cli_registry, use, &c, &err) >= 0)
        return c;
    fprintf(stderr, "tailrace: %s\n", err.msg);
    return NULL;
}

void tr_cli_state_path(const struct tr_config *c, const char *file, char *to, size_t cap)
{
    snprintf(to, cap, "%s/%s", c->root.state_dir, file);
}

int tr_cli_fail(const struct tr_err *err, int code)
{
    fprintf(stderr, "tailrace: %s\n", err->msg);
    return code;
}

int tr_cli_cmd_version(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "version", "", 0, &o);
    if (at < 0)
        return -1 - at;
    puts("tailrace " TR_VERSION);
    return TR_EXIT_OK;
}

static void usage(FILE *to)
{
    fputs("tailrace: changes out of a database, through a change log, into mirrors\n\n", to);
    for (const struct tr_cli_command *c = tr_cli_commands; c->name; c++)
        fprintf(to, "  %-8s %s\n", c->name, c->summary);
    fputs("\ntailrace help COMMAND says more; tailrace help config lists all settings.\n", to);
}

static void unknown(const char *name)
{
    const char *names[16];
    size_t n = 0;
    for (const struct tr_cli_command *k = tr_cli_commands; k->name && n < TR_ARRAY_LEN(names); k++)
        names[n++] = k->name;
    const char *near = tr_nearest(tr_slice_str(name), names, n);
    fprintf(stderr, "tailrace: there is no command '%s'%s%s%s tailrace help lists all\n", name, near ? "; did you mean " : "", near ? near : "", near ? "?" : ";");
}

static int help_config(const struct tr_cli_options *o)
{
    enum tr_config_doc form = !o->form ? TR_CONFIG_TEXT : !strcmp(o->form, "man") ? TR_CONFIG_MAN : !strcmp(o->form, "schema") ? TR_CONFIG_SCHEMA : TR_CONFIG_MARKDOWN;
    struct tr_buf b = {0};
    int rc = tr_config_document(&tr_cli_registry, form, &b);
    if (rc >= 0)
        fwrite(b.p, 1, b.n, stdout);
    tr_buf_done(&b);
    return rc < 0 ? TR_EXIT_FAILED : TR_EXIT_OK;
}

int tr_cli_cmd_help(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "help", "MDS", 1, &o);
    if (at < 0)
        return -1 - at;
    const char *topic = at < argc ? argv[at] : "";
    if (!strcmp(topic, "config"))
        return help_config(&o);
    if (tr_cli_stray(&o, "help", topic, "MDS"))
        return TR_EXIT_USAGE;
    if (!*topic) {
        usage(stdout);
        return TR_EXIT_OK;
    }
    const struct tr_cli_command *c = tr_cli_find(argv[at]);
    if (!c) {
        unknown(argv[at]);
        return TR_EXIT_USAGE;
    }
    printf("tailrace %s%s%s\n\n%s\n%s%s", c->name, *c->usage ? " " : "", c->usage, c->summary, *c->help ? "\n" : "", c->help);
    return TR_EXIT_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return TR_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h"))
        name = "help";
    else if (!strcmp(name, "--version") || !strcmp(name, "-V"))
        name = "version";
    const struct tr_cli_command *c = tr_cli_find(name);
    if (c)
        return c->run(argc - 1, argv + 1);
    unknown(name);
    return TR_EXIT_USAGE;
}
