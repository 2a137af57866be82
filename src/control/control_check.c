#include "control_check.h"

#include <string.h>

#define L(x) ((unsigned long long)(x))

int tr_control_check_name(const char *what, const char *s, size_t max, struct tr_err *err)
{
    size_t n = s ? strlen(s) : 0;
    if (n == 0)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "%s is empty", what);
    if (n >= max)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "%s '%.32s…' is %zu bytes long; at most %zu are possible", what, s, n, max - 1);
    return TR_OK;
}

int tr_control_check_source(const char *source, const struct tr_ctl_source *v, struct tr_err *err)
{
    int rc = tr_control_check_name("the source's name", source, 64, err);
    if (rc == TR_OK && (v->epoch < 1 || v->epoch > 127))
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "epoch %u of source %s: 1 to 127 are possible", v->epoch, source);
    return rc;
}

int tr_control_check_table(const struct tr_ctl_table *v, struct tr_err *err)
{
    if (v->state > TR_TABLE_NO_SNAPSHOT)
        return tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "table %u cannot be in state %u", v->table_id, v->state);
    return TR_OK;
}

int tr_control_check_offset(const struct tr_ctl_offset *v, struct tr_err *err)
{
    int rc = tr_control_check_name("the sink's name", v->sink, 64, err);
    for (uint32_t i = 0; i < v->n_tables && rc == TR_OK; i++)
        if (v->tables[i].state > TR_ST_REFUSED)
            rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "table %u of sink %s cannot be in state %u", v->tables[i].table_id, v->sink, v->tables[i].state);
    return rc;
}

int tr_control_check_audit(const struct tr_ctl_audit *v, struct tr_err *err)
{
    return tr_control_check_name("the audited action", v->action, sizeof v->action, err);
}

int tr_control_check_request(const char *actor, const char *kind, const char *scope, const char *table, struct tr_err *err)
{
    int rc = tr_control_check_name("the actor", actor, 64, err);
    if (rc == TR_OK)
        rc = tr_control_check_name("the kind of request", kind, 32, err);
    if (rc == TR_OK && scope && strlen(scope) >= 64)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "the scope of the request is too long");
    if (rc == TR_OK && table && strlen(table) >= 160)
        rc = tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "the table of the request is too long");
    return rc;
}

int tr_control_check_alarm(const char *kind, const char *subject, struct tr_err *err)
{
    int rc = tr_control_check_name("the kind of alarm", kind, 32, err);
    return rc < 0 ? rc : tr_control_check_name("the alarm's subject", subject, 160, err);
}

int tr_control_fenced(const char *lease, uint64_t token, struct tr_err *err)
{
    if (token == 0)
        return tr_err_set(err, TR_FENCED, TR_DOM_CONTROL, "this needs a lease, and none is held");
    return tr_err_set(err, TR_FENCED, TR_DOM_CONTROL, "lease %s is no longer held under token %llu: another process took over", lease, L(token));
}

int tr_control_held(const char *lease, const char *holder, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_CONTROL, "lease %s is held by %s; it can be taken when that ends or its time runs out", lease, holder);
}

int tr_control_went_back(const struct tr_ctl_offset *v, uint64_t stored, struct tr_err *err)
{
    return tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "sink %s, partition %u: offset %llu is below %llu, which is committed already", v->sink, v->partition, L(v->offset),
                      L(stored));
}

int tr_control_no_table(uint32_t table_id, struct tr_err *err)
{
    return tr_err_set(err, TR_REJECT, TR_DOM_CONTROL, "there is no table %u", table_id);
}
