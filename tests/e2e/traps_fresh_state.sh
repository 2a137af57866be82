#!/usr/bin/env bash
# The state directory is gone and the sinks are not: a new start builds every mirror anew, and no row of the old builds stays.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create database mirror" -c "create table t (id int primary key, v text)" -c "insert into t select g, 'v' from generate_series(1, 50) g"
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
all_live() { "$TAILRACE" status -c "$TR_TMP/t.yaml" --json | python3 -c 'import json,sys; exit([t["state"] for k in json.load(sys.stdin).get("sinks", []) for t in k["tables"] if t["name"] == "public.t"] != ["live", "live"])'; }
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
tr_wait_until 30 all_live
for how in TERM KILL; do
    tr_step "SIG$how, and the state directory goes"
    tr_kill tailrace "$how" || true
    rm -rf "$TR_TMP/state"
    tr_wait_until 30 'tr_psql src -q -c "select pg_drop_replication_slot('"'tailrace'"')" >/dev/null 2>&1'
    tr_psql src -q -c "delete from t where id = (select min(id) from t)" -c "update t set v = '$how' where id % 2 = 0" -c "insert into t select max(id) + 1, 'new' from t"
    tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
    tr_wait_until 30 all_live
    tr_psql src -q -c "insert into t select max(id) + 1, 'last' from t"
    # shellcheck disable=SC2016 # evaluated while waiting
    tr_wait_until 30 '[ "$(psql "$mirror" -XAtqc "select max(id) from t_live")" = "$(tr_psql src -Atc "select max(id) from t")" ]'
    # shellcheck disable=SC2016 # evaluated while waiting
    tr_wait_until 30 '[ "$(sqlite3 -cmd ".timeout 10000" "$TR_TMP/mirror.db" "select max(id) from t_live")" = "$(tr_psql src -Atc "select max(id) from t")" ]'
    python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.t
done
tr_step "done"
