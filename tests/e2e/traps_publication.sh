#!/usr/bin/env bash
# The publication is dropped under a running capture: the slot cannot decode what lies between, so a new epoch begins by itself.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create table t (id int primary key, v text)" -c "insert into t select g, 'v' from generate_series(1, 50) g"
# shellcheck disable=SC2154
cat >"$TR_TMP/t.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $PG_DSN_src
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db}
engine: {heartbeat: 1s, commit_interval: 1s}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
lite() { sqlite3 -cmd '.timeout 10000' "$TR_TMP/mirror.db" "$1" 2>&1; }
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from t_live")" = 50 ]'
tr_step "the publication goes, and changes come"
tr_psql src -q -c "drop publication tailrace" -c "update t set v = 'between' where id = 1" -c "delete from t where id = 2"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 60 '[ "$(lite "select (select v from t_live where id = 1), (select count(*) from t_live)")" = "between|49" ]' || tr_fail "capture does not come back"
grep -q "the publication was dropped and made again" "$TR_TMP/tailrace.log" || tr_fail "the log does not say why"
tr_psql src -q -c "insert into t values (51, 'after')"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from t_live")" = 50 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" public.t
tr_step "a restart afterwards is an ordinary one"
tr_kill tailrace TERM || true
: >"$TR_TMP/tailrace.log"
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
tr_psql src -q -c "insert into t values (52, 'after')"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from t_live")" = 51 ]'
! grep -q "a new epoch begins" "$TR_TMP/tailrace.log" || tr_fail "a new epoch without a cause"
tr_step "done"
