#!/usr/bin/env bash
# The operator's cures: a mirror dropped behind our back pauses its table, and the snapshot asked for brings it back, with no row in
# between; a request made while tailrace is stopped is carried out at its next start.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start 15
tt_sql "create table t (id int primary key, v text)" "insert into t select g, 'v' from generate_series(1, 500) g" "create table other (id int primary key)"
TT_COMMIT=1s
TT_PG="    changelog: ['public.t']"
tt_config
state() { tt_in_sinks public.t | cut -d" " -f"$([ "$1" = lite ] && echo 1 || echo 2)"; }
is() { [ "$(state "$1")" = "$2" ]; }
tt_run
tr_wait_until 30 'is pg live'
tr_step "a mirror is dropped behind a writer that knows it"
tt_sql "update t set v = 'a' where id = 7"
tr_wait_until 20 '[ "$(tt_mirror "select v from t where id = 7")" = a ]'
tt_mirror "drop table t cascade"
tt_sql "update t set v = 'b' where id = 8"
tr_wait_until 20 'is pg paused' || tr_fail "no pause: $(state pg)"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML"
tr_wait_until 30 'is pg live' || tr_fail "the snapshot asked for did not cure it: $(state pg)"
tr_step "a snapshot is asked for while stopped"
tr_kill tailrace TERM || true
tt_mirror "delete from t where id = 9"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML"
tt_run
tr_wait_until 40 '[ "$(tt_mirror "select count(*) from t")" = 500 ]' || tr_fail "the request was thrown away: $("$TAILRACE" status -c "$TT_YAML")"
tr_wait_until 30 'is pg live && is lite live'
tr_step "a snapshot of an empty table, killed on its way, ends after a restart"
"$TAILRACE" table resnapshot public.other -c "$TT_YAML"
tt_kill
tt_run
others_live() { [ "$(tt_in_sinks public.t)|$(tt_in_sinks public.other)|$(tt_in_sinks public.marker)" = "live live|live live|live live" ]; }
tr_wait_until 30 others_live
tt_sql "insert into other values (1)" "insert into t values (501, 'last')"
tr_wait_until 20 '[ "$(tt_mirror "select count(*) from t where id = 501")" = 1 ]'
tr_wait_until 20 '[ "$(tt_lite "select count(*) from t where id = 501")" = 1 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$TT_SHOP" --sqlite "$TT_LITE_FILE" --postgres "$TT_MIRROR" public.t public.other
tr_step "done"
