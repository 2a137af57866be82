#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"

int tr_desc_add(struct tr_table_desc *d, const char *name, const char *type, bool not_null, uint16_t key_pos)
{
    struct tr_desc_column *v = tr_realloc(d->columns, (d->n_columns + 1) * sizeof *v);
    if (!v)
        return TR_NOMEM;
    d->columns = v;
    struct tr_desc_column *c = &v[d->n_columns];
    *c = (struct tr_desc_column){.name = tr_strdup(name), .type = tr_strdup(type), .not_null = not_null, .key_pos = key_pos};
    if (!c->name || !c->type) {
        tr_free(c->name);
        tr_free(c->type);
        return TR_NOMEM;
    }
    d->n_columns++;
    return TR_OK;
}

void tr_table_desc_done(struct tr_table_desc *d)
{
    for (uint32_t i = 0; i < d->n_columns; i++) {
        tr_free(d->columns[i].name);
        tr_free(d->columns[i].type);
    }
    tr_free(d->columns);
    tr_free(d->positions);
    tr_free(d->engine);
    tr_free(d->partition);
    memset(d, 0, sizeof *d);
}

static struct tr_plan_step *step(struct tr_plan *p, enum tr_plan_op op, const char *ns, const char *name, const char *what)
{
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? p->cap * 2 : 8;
        struct tr_plan_step *v = tr_realloc(p->steps, cap * sizeof *v);
        if (!v)
            return NULL;
        p->steps = v;
        p->cap = cap;
    }
    struct tr_plan_step *s = &p->steps[p->n];
    *s = (struct tr_plan_step){.op = op, .what = tr_strdup(what)};
    if (!s->what)
        return NULL;
    snprintf(s->ns, sizeof s->ns, "%s", ns);
    snprintf(s->name, sizeof s->name, "%s", name);
    p->n++;
    return s;
}

int tr_plan_sql(struct tr_plan *p, struct tr_buf *sql, const char *what_fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, what_fmt);
    vsnprintf(what, sizeof what, what_fmt, ap);
    va_end(ap);
    if (tr_buf_append_u8(sql, 0) < 0)
        return TR_NOMEM;
    struct tr_plan_step *s = step(p, TR_PLAN_SQL, "", "", what);
    if (!s)
        return TR_NOMEM;
    s->sql = (char *)tr_buf_take(sql, NULL);
    return TR_OK;
}

int tr_plan_note(struct tr_plan *p, const char *ns, const char *name, const struct tr_table_note *note, const char *positions)
{
    char *copy = positions ? tr_strdup(positions) : NULL;
    struct tr_plan_step *s = positions && !copy ? NULL : step(p, TR_PLAN_NOTE, ns, name, "note a table");
    if (!s) {
        tr_free(copy);
        return TR_NOMEM;
    }
    s->note = *note;
    s->positions = copy;
    return TR_OK;
}

int tr_plan_renamed(struct tr_plan *p, const char *ns, const char *name, const char *to, const char *kind, uint64_t snapshot_id)
{
    struct tr_plan_step *s = step(p, TR_PLAN_RENAMED, ns, name, "note a table's new name");
    if (!s)
        return TR_NOMEM;
    snprintf(s->to, sizeof s->to, "%s", to);
    snprintf(s->note.kind, sizeof s->note.kind, "%s", kind);
    s->note.snapshot_id = snapshot_id;
    return TR_OK;
}

int tr_plan_refuse(struct tr_plan *p, const char *fmt, ...)
{
    va_list ap;
    tr_plan_done(p);
    va_start(ap, fmt);
    vsnprintf(p->reason, sizeof p->reason, fmt, ap);
    va_end(ap);
    p->refused = true;
    return TR_OK;
}

void tr_plan_done(struct tr_plan *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        tr_free(p->steps[i].what);
        tr_free(p->steps[i].sql);
        tr_free(p->steps[i].positions);
    }
    tr_free(p->steps);
    memset(p, 0, sizeof *p);
}
