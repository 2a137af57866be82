#!/usr/bin/env bash
# A column dropped and added again under its old name: its old values are gone at the source, so the table pauses; a new snapshot cures it.
# A definition that returns after another one is a new one.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start "${1:-15}"
tt_sql "create table t (id int primary key, v text)" "insert into t select g, 'v' from generate_series(1, 5) g" "create table other (id int primary key)"
TT_COMMIT=1s
tt_config
states() { echo "public.other: $(tt_in_sinks public.other), public.t: $(tt_in_sinks public.t)"; }
all_are() { [ "$(states)" = "public.other: live live, public.t: $1 $1" ]; }
tt_run
tr_wait_until 30 'all_are live'
tr_step "a column comes: it flows"
tt_sql "alter table t add c int" "update t set c = id"
tr_wait_until 20 '[ "$(tt_lite "select count(*) from t_live where c = id")" = 5 ]'
tr_step "it is dropped and added again: the table pauses, the other goes on"
tt_sql "alter table t drop c" "alter table t add c int" "update t set v = 'y' where id = 2" "insert into other values (1)"
tr_wait_until 20 'all_are paused' || tr_fail "$(states)"
"$TAILRACE" status -c "$TT_YAML" | grep -q "dropped and added again" || tr_fail "the reason is not told"
tr_wait_until 20 '[ "$(tt_lite "select count(*) from other_live")" = 1 ]'
"$TAILRACE" table resnapshot public.t -c "$TT_YAML"
tr_wait_until 30 'all_are live'
tr_step "restarted, and changed once more"
tt_kill
tt_sql "alter table t drop c" "update t set v = 'z' where id = 3"
tt_run
tr_wait_until 30 'all_are paused' || tr_fail "a dropped column did not pause the table: $(states)"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML"
tr_wait_until 30 'all_are live'
tt_equal public.t public.other
tr_step "done"
