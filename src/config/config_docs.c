/* config_docs.c: the field tables as text, manual page, Markdown and JSON Schema. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "config.h"
#include "text.h"

struct doc {
    struct tr_buf *out;
    int rc;
};

__attribute__((format(printf, 2, 3))) static void put(struct doc *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (d->rc >= 0)
        d->rc = tr_buf_vprintf(d->out, fmt, ap);
    va_end(ap);
}

static const char *type_name(const struct tr_field *f)
{
    switch (f->type) {
    case TR_F_STRING: return "string";
    case TR_F_SECRET: return "secret string";
    case TR_F_BOOL: return "true or false";
    case TR_F_INT: return "number";
    case TR_F_SIZE: return "size";
    case TR_F_DURATION: return "duration";
    case TR_F_ENUM: return "word";
    case TR_F_LIST: return "list";
    }
    return "";
}

/* "duration, 1s to 10m, default 10s" */
static void describe(const struct tr_field *f, char *to, size_t cap)
{
    char lo[48], hi[48];
    size_t n = (size_t)snprintf(to, cap, "%s", type_name(f));
    if (f->type == TR_F_ENUM)
        for (size_t i = 0; f->choices[i] && n < cap; i++)
            n += (size_t)snprintf(to + n, cap - n, "%s%s", i ? " | " : ": ", f->choices[i]);
    if ((f->min || f->max) && n < cap) {
        if (f->type == TR_F_DURATION) {
            tr_format_duration(f->min, lo);
            tr_format_duration(f->max, hi);
        } else if (f->type == TR_F_SIZE) {
            tr_format_size((uint64_t)f->min, lo);
            tr_format_size((uint64_t)f->max, hi);
        } else {
            snprintf(lo, sizeof lo, "%" PRId64, f->min);
            snprintf(hi, sizeof hi, "%" PRId64, f->max);
        }
        n += (size_t)snprintf(to + n, cap - n, ", %s to %s", lo, hi);
    }
    if (f->unit && n < cap)
        n += (size_t)snprintf(to + n, cap - n, " %s", f->unit);
    if (n >= cap)
        return;
    if (f->def)
        snprintf(to + n, cap - n, ", default %s", f->def);
    else
        snprintf(to + n, cap - n, f->optional ? ", optional" : ", required");
}

static void fields_text(struct doc *d, const struct tr_field *f, size_t n, const char *indent)
{
    char about[300];
    for (size_t i = 0; i < n; i++) {
        describe(&f[i], about, sizeof about);
        put(d, "%s%s (%s)\n%s    %s\n", indent, f[i].name, about, indent, f[i].help);
    }
}

static void fields_markdown(struct doc *d, const struct tr_field *f, size_t n)
{
    char about[300];
    put(d, "| key | value | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        describe(&f[i], about, sizeof about);
        for (char *c = about; *c; c++)
            if (*c == '|')
                *c = '/';
        put(d, "| `%s` | %s | %s |\n", f[i].name, about, f[i].help);
    }
    put(d, "\n");
}

static void fields_man(struct doc *d, const struct tr_field *f, size_t n)
{
    char about[300];
    put(d, ".Bl -tag -width Ds\n");
    for (size_t i = 0; i < n; i++) {
        describe(&f[i], about, sizeof about);
        put(d, ".It Cm %s Pq %s\n%s\n", f[i].name, about, f[i].help);
    }
    put(d, ".El\n");
}

static void human(struct doc *d, const struct tr_registry *reg, enum tr_config_doc form)
{
    void (*md)(struct doc *, const struct tr_field *, size_t) = form == TR_CONFIG_MAN ? fields_man : fields_markdown;
    for (int i = 0; i < TR_SEC_COUNT; i++) {
        const struct tr_section *s = &tr_sections[i];
        const char *title = *s->name ? s->name : "top level";
        if (form == TR_CONFIG_TEXT)
            put(d, "%s: %s\n", title, s->help);
        else if (form == TR_CONFIG_MAN)
            put(d, ".Sh %s\n%s\n", title, s->help);
        else
            put(d, "## %s\n%s\n\n", title, s->help);
        if (form == TR_CONFIG_TEXT)
            fields_text(d, s->fields, s->n, "  ");
        else
            md(d, s->fields, s->n);
        size_t n = i == TR_SEC_SOURCE ? reg->n_sources : i == TR_SEC_SINK ? reg->n_sinks : 0;
        for (size_t k = 0; k < n; k++) {
            const char *name = i == TR_SEC_SOURCE ? reg->sources[k]->name : reg->sinks[k]->name, *help = i == TR_SEC_SOURCE ? reg->sources[k]->help : reg->sinks[k]->help;
            const struct tr_field *f = i == TR_SEC_SOURCE ? reg->sources[k]->fields : reg->sinks[k]->fields;
            size_t nf = i == TR_SEC_SOURCE ? reg->sources[k]->n_fields : reg->sinks[k]->n_fields;
            if (form == TR_CONFIG_TEXT) {
                put(d, "  with type: %s (%s)\n", name, help);
                fields_text(d, f, nf, "    ");
            } else if (form == TR_CONFIG_MAN) {
                put(d, ".Ss %s, type %s\n%s\n", s->name, name, help);
                md(d, f, nf);
            } else {
                put(d, "### %s, type: %s\n%s\n\n", s->name, name, help);
                md(d, f, nf);
            }
        }
        if (form == TR_CONFIG_TEXT)
            put(d, "\n");
    }
}

/* ---- JSON Schema ---- */

static void str(struct doc *d, const char *s)
{
    if (d->rc >= 0)
        d->rc = tr_json_string(d->out, tr_slice_str(s));
}

static void property(struct doc *d, const struct tr_field *f, bool comma)
{
    put(d, "%s\n", comma ? "," : "");
    str(d, f->name);
    put(d, ": {\"description\": ");
    str(d, f->help);
    switch (f->type) {
    case TR_F_BOOL: put(d, ", \"type\": [\"boolean\", \"string\"]"); break;
    case TR_F_INT: put(d, ", \"type\": [\"integer\", \"string\"]"); break;
    case TR_F_LIST: put(d, ", \"type\": [\"array\", \"string\"], \"items\": {\"type\": \"string\"}"); break;
    case TR_F_ENUM:
        put(d, ", \"enum\": [");
        for (size_t i = 0; f->choices[i]; i++) {
            put(d, i ? ", " : "");
            str(d, f->choices[i]);
        }
        put(d, "]");
        break;
    case TR_F_SIZE:
    case TR_F_DURATION: put(d, ", \"type\": [\"string\", \"integer\"]"); break;
    default: put(d, ", \"type\": \"string\""); break;
    }
    if (f->def && f->type != TR_F_LIST) {
        put(d, ", \"default\": ");
        str(d, f->def);
    }
    if (f->type == TR_F_SECRET)
        put(d, ", \"writeOnly\": true");
    put(d, "}");
}

/* Properties of the section and, when given, of a component type, whose `type` is then fixed. */
static void object(struct doc *d, const struct tr_section *s, const char *type, const struct tr_field *more, size_t n_more)
{
    put(d, "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {");
    for (size_t i = 0; i < s->n; i++) {
        if (type && !strcmp(s->fields[i].name, "type")) {
            put(d, "%s\n\"type\": {\"const\": ", i ? "," : "");
            str(d, type);
            put(d, "}");
            continue;
        }
        property(d, &s->fields[i], i > 0);
    }
    for (size_t i = 0; i < n_more; i++)
        property(d, &more[i], true);
    put(d, "}");
    bool any = false;
    for (size_t k = 0; k < 2; k++) {
        const struct tr_field *f = k ? more : s->fields;
        size_t n = k ? n_more : s->n;
        for (size_t i = 0; i < n; i++)
            if (!f[i].def && !f[i].optional) {
                put(d, any ? ", " : ", \"required\": [");
                str(d, f[i].name);
                any = true;
            }
    }
    put(d, any ? "]}" : "}");
}

static void schema(struct doc *d, const struct tr_registry *reg)
{
    put(d, "{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\", \"title\": \"tailrace configuration\", \"type\": \"object\", \"additionalProperties\": false,\n"
           "\"required\": [\"source\", \"sinks\"],\n\"properties\": {");
    const struct tr_section *root = &tr_sections[TR_SEC_ROOT];
    for (size_t i = 0; i < root->n; i++)
        property(d, &root->fields[i], i > 0);
    for (int i = 1; i < TR_SEC_COUNT; i++) {
        const struct tr_section *s = &tr_sections[i];
        put(d, ",\n");
        str(d, s->name);
        put(d, ": ");
        if (i == TR_SEC_SOURCE) {
            put(d, "{\"oneOf\": [");
            for (size_t k = 0; k < reg->n_sources; k++) {
                put(d, k ? ",\n" : "");
                object(d, s, reg->sources[k]->name, reg->sources[k]->fields, reg->sources[k]->n_fields);
            }
            put(d, "]}");
        } else if (i == TR_SEC_SINK) {
            put(d, "{\"type\": \"array\", \"minItems\": 1, \"items\": {\"oneOf\": [");
            for (size_t k = 0; k < reg->n_sinks; k++) {
                put(d, k ? ",\n" : "");
                object(d, s, reg->sinks[k]->name, reg->sinks[k]->fields, reg->sinks[k]->n_fields);
            }
            put(d, "]}}");
        } else {
            object(d, s, NULL, NULL, 0);
        }
    }
    put(d, "}}\n");
}

int tr_config_document(const struct tr_registry *reg, enum tr_config_doc form, struct tr_buf *out)
{
    struct doc d = {.out = out};
    if (form == TR_CONFIG_SCHEMA) {
        schema(&d, reg);
        return d.rc < 0 ? d.rc : TR_OK;
    }
    if (form == TR_CONFIG_MAN)
        put(&d, ".Dd $Mdocdate$\n.Dt TAILRACE.YAML 5\n.Os tailrace\n.Sh NAME\n.Nm tailrace.yaml\n.Nd configuration of tailrace\n.Sh DESCRIPTION\n"
                "One YAML file. In every value, ${NAME} and ${NAME:-default} are replaced from the environment.\n"
                "Durations are written as 250ms, 5s, 2m, 24h or 7d; sizes as 64MiB or 1GiB. Unknown keys are refused.\n");
    else if (form == TR_CONFIG_MARKDOWN)
        put(&d, "# Configuration\nMade by `tailrace help config --markdown`; edit the field tables, not this page.\n\nOne YAML file. In every value, `${NAME}` and `${NAME:-default}` are "
                "replaced from the environment. Durations are written as `250ms`, `5s`, `2m`, `24h` or `7d`; sizes as `64MiB` or `1GiB`. Unknown keys are refused.\n\n");
    human(&d, reg, form);
    return d.rc < 0 ? d.rc : TR_OK;
}
