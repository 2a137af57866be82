#!/usr/bin/env bash
# Two processes with a state of their own are pointed at the same sinks: the later one has them, the earlier one stops.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create database mirror" -c "create table t (id int primary key, v text)" -c "insert into t select g, 'v' from generate_series(1, 5) g"
# shellcheck disable=SC2154
mirror=${PG_DSN_src/dbname=postgres/dbname=mirror}
cat >"$TR_TMP/t.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $PG_DSN_src
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db}
  - {name: pg, type: postgres, dsn: $mirror}
engine: {heartbeat: 1s, commit_interval: 1s}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
states() { "$TAILRACE" status -c "$TR_TMP/t.yaml" --json | python3 -c 'import json,sys; print(*sorted(t["name"] + "=" + t["state"] for k in json.load(sys.stdin)["sinks"] for t in k["tables"]))'; }
lite() { sqlite3 -cmd '.timeout 10000' "$TR_TMP/mirror.db" "$1"; }
sed "s,^state_dir: .*,state_dir: $TR_TMP/state2,; s,^  dsn: .*,&\n  slot: second\n  publication: second,; s,127.0.0.1:[0-9]*,127.0.0.1:$(tr_free_port)," "$TR_TMP/t.yaml" >"$TR_TMP/second.yaml"
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from t_live" 2>&1)" = 5 ]'
tr_spawn second "$TAILRACE" run -c "$TR_TMP/second.yaml"
second_live() { "$TAILRACE" status -c "$TR_TMP/second.yaml" --json | python3 -c 'import json,sys; exit([t["state"] for k in json.load(sys.stdin)["sinks"] for t in k["tables"] if t["name"] == "public.t"] != ["live", "live"])'; }
tr_wait_until 40 second_live
tr_psql src -q -c "insert into t values (6, 'v')"
fenced() { grep -q "newer lease" "$TR_TMP/tailrace.log"; }
tr_wait_until 30 fenced || tr_fail "two processes write the same sinks"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from t_live")" = 6 ]'
tr_kill tailrace KILL || true
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(psql "$mirror" -XAtqc "select count(*) from t_live")" = 6 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.t
tr_step "done"
