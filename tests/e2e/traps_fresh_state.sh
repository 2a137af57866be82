#!/usr/bin/env bash
# The state directory is gone and the sinks are not: a new start builds every mirror anew, and no row of the old builds stays.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start "${1:-15}"
tt_sql "create table t (id int primary key, v text)" "insert into t select g, 'v' from generate_series(1, 50) g"
TT_COMMIT=1s
tt_config
all_live() { [ "$(tt_in_sinks public.t)" = "live live" ]; }
tt_run
tr_wait_until 30 all_live
for how in TERM KILL; do
    tr_step "SIG$how, and the state directory goes"
    tr_kill tailrace "$how" || true
    rm -rf "$TR_TMP/state"
    tr_wait_until 30 'tt_sql "select pg_drop_replication_slot('"'tailrace'"')" >/dev/null 2>&1'
    tt_sql "delete from t where id = (select min(id) from t)" "update t set v = '$how' where id % 2 = 0" "insert into t select max(id) + 1, 'new' from t"
    tt_run
    tr_wait_until 30 all_live
    tt_sql "insert into t select max(id) + 1, 'last' from t"
    tr_wait_until 30 '[ "$(tt_mirror "select max(id) from t_live")" = "$(tt_sql "select max(id) from t")" ]'
    tr_wait_until 30 '[ "$(tt_lite "select max(id) from t_live")" = "$(tt_sql "select max(id) from t")" ]'
    tt_equal public.t
done
tr_step "done"
