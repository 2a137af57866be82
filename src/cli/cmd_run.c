/* cmd_run.c: tailrace run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tailrace/clock.h>
#include <tailrace/oslog.h>

#include "compose.h"
#include "failpoint.h"
#include "proc.h"

static int arm_failpoints(struct tr_err *err)
{
    const char *spec = getenv("TAILRACE_FAILPOINTS");
    if (!spec || !*spec)
        return TR_OK;
    tr_proc_install_failpoints();
    tr_oslog_write(TR_OSLOG_WARN, "tailrace", "fault points are armed by TAILRACE_FAILPOINTS: this is for tests");
    return tr_failpoint_arm(spec, err);
}

static int wait_for_the_end(struct tr_app *a)
{
    struct tr_err err;
    while (!tr_proc_stop_asked()) {
        if (tr_service_ended(a->service, &err)) {
            tr_oslog_err(TR_OSLOG_ERROR, "tailrace", NULL, 0, &err);
            return err.rc == TR_FENCED ? TR_EXIT_TAKEN : TR_EXIT_FAILED;
        }
        tr_sleep_ns(50 * TR_NS_PER_MS);
    }
    tr_oslog_write(TR_OSLOG_INFO, "tailrace", "stopping: draining what is in flight");
    return TR_EXIT_OK;
}

int tr_cli_cmd_run(int argc, char **argv)
{
    struct tr_cli_options o;
    int at = tr_cli_parse(argc, argv, "run", "c", 0, &o);
    if (at < 0)
        return -1 - at;
    struct tr_config *cfg = tr_cli_load(&o, TR_CONFIG_TO_RUN);
    if (!cfg)
        return TR_EXIT_CONFIG;
    tr_oslog_setup((enum tr_oslog_level)cfg->logging.level, cfg->logging.format == 1, 2);
    tr_proc_catch_stop();
    struct tr_app a = {.cfg = cfg};
    struct tr_err err = {0};
    int code = TR_EXIT_FAILED;
    int rc = arm_failpoints(&err);
    if (rc >= 0)
        rc = tr_app_open(&a, &err);
    if (rc >= 0)
        rc = tr_service_start(a.service, &err);
    if (rc >= 0) {
        char url[256] = "off";
        const char *listen = cfg->admin.listen, *colon = strrchr(listen, ':');
        if (a.admin) /* the port may have been 0 */
            snprintf(url, sizeof url, "http://%.*s:%d", colon ? (int)(colon - listen) : 0, listen, tr_admin_port(a.admin));
        tr_oslog_fields(TR_OSLOG_INFO, "tailrace", TR_OSLOG_F({"version", TR_VERSION}, {"config", o.config}, {"state_dir", cfg->root.state_dir}, {"admin", url}), "started");
        code = wait_for_the_end(&a);
    } else {
        code = rc == TR_REJECT ? TR_EXIT_CONFIG : rc == TR_RETRY && err.domain == TR_DOM_SYS && strstr(err.msg, "locked by") ? TR_EXIT_TAKEN : TR_EXIT_FAILED;
        if (code == TR_EXIT_TAKEN) /* nothing will be tried again, whatever the code of it says */
            tr_oslog_write(TR_OSLOG_ERROR, "tailrace", "%s", err.msg);
        else
            tr_oslog_err(TR_OSLOG_ERROR, "tailrace", NULL, 0, &err);
    }
    tr_app_close(&a);
    tr_config_free(cfg);
    if (code == TR_EXIT_OK)
        tr_oslog_write(TR_OSLOG_INFO, "tailrace", "stopped");
    return code;
}
