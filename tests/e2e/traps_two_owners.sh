#!/usr/bin/env bash
# Two processes with a state of their own are pointed at the same sinks: the later one has them, the earlier one stops.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start 15
tt_sql "create table t (id int primary key, v text)" "insert into t select g, 'v' from generate_series(1, 5) g"
TT_COMMIT=1s
tt_config
sed "s,^state_dir: .*,state_dir: $TR_TMP/state2,; s,^  dsn: .*,&\n  slot: second\n  publication: second,; s,127.0.0.1:[0-9]*,127.0.0.1:$(tr_free_port)," "$TT_YAML" >"$TR_TMP/second.yaml"
tt_run
tr_wait_until 30 '[ "$(tt_lite "select count(*) from t_live" 2>&1)" = 5 ]'
tr_spawn second "$TAILRACE" run -c "$TR_TMP/second.yaml"
second_live() { "$TAILRACE" status -c "$TR_TMP/second.yaml" --json | python3 -c 'import json,sys; exit([t["state"] for k in json.load(sys.stdin)["sinks"] for t in k["tables"] if t["name"] == "public.t"] != ["live", "live"])'; }
tr_wait_until 40 second_live
tt_sql "insert into t values (6, 'v')"
fenced() { grep -q "newer lease" "$TR_TMP/tailrace.log"; }
tr_wait_until 30 fenced || tr_fail "two processes write the same sinks"
tr_wait_until 30 '[ "$(tt_lite "select count(*) from t_live")" = 6 ]'
tt_kill
tr_wait_until 30 '[ "$(tt_mirror "select count(*) from t_live")" = 6 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$TT_SHOP" --sqlite "$TT_LITE_FILE" --postgres "$TT_MIRROR" public.t
tr_step "done"
