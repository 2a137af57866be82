#!/usr/bin/env bash
# The operator's cures: a mirror dropped behind our back pauses its table, and the snapshot asked for brings it back, with no row in
# between; a request made while tailrace is stopped is carried out at its next start.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create database mirror" -c "create table t (id int primary key, v text)" -c "insert into t select g, 'v' from generate_series(1, 500) g" -c "create table other (id int primary key)"
# shellcheck disable=SC2154
mirror=${PG_DSN_src/dbname=postgres/dbname=mirror}
cat >"$TR_TMP/t.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $PG_DSN_src
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db}
  - {name: pg, type: postgres, dsn: $mirror, changelog: ['public.t']}
engine: {heartbeat: 1s, commit_interval: 1s}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
state() { "$TAILRACE" status -c "$TR_TMP/t.yaml" --json | python3 -c 'import json,sys; print(*[t["state"] for k in json.load(sys.stdin).get("sinks", []) for t in k["tables"] if k["name"] == sys.argv[1] and t["name"] == "public.t"])' "$1"; }
is() { [ "$(state "$1")" = "$2" ]; }
in_pg() { psql "$mirror" -XAtqc "$1" 2>/dev/null; }
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
tr_wait_until 30 'is pg live'
tr_step "a mirror is dropped behind a writer that knows it"
tr_psql src -q -c "update t set v = 'a' where id = 7"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 20 '[ "$(in_pg "select v from t where id = 7")" = a ]'
in_pg "drop table t cascade"
tr_psql src -q -c "update t set v = 'b' where id = 8"
tr_wait_until 20 'is pg paused' || tr_fail "no pause: $(state pg)"
"$TAILRACE" table resnapshot public.t -c "$TR_TMP/t.yaml"
tr_wait_until 30 'is pg live' || tr_fail "the snapshot asked for did not cure it: $(state pg)"
tr_step "a snapshot is asked for while stopped"
tr_kill tailrace TERM || true
in_pg "delete from t where id = 9"
"$TAILRACE" table resnapshot public.t -c "$TR_TMP/t.yaml"
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 40 '[ "$(in_pg "select count(*) from t")" = 500 ]' || tr_fail "the request was thrown away: $("$TAILRACE" status -c "$TR_TMP/t.yaml")"
tr_wait_until 30 'is pg live && is lite live'
tr_step "a snapshot of an empty table, killed on its way, ends after a restart"
"$TAILRACE" table resnapshot public.other -c "$TR_TMP/t.yaml"
tr_kill tailrace KILL || true
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
others_live() { "$TAILRACE" status -c "$TR_TMP/t.yaml" --json | python3 -c 'import json,sys; exit({t["state"] for k in json.load(sys.stdin)["sinks"] for t in k["tables"]} != {"live"})'; }
tr_wait_until 30 others_live
tr_psql src -q -c "insert into other values (1)" -c "insert into t values (501, 'last')"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 20 '[ "$(in_pg "select count(*) from t where id = 501")" = 1 ]'
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 20 '[ "$(sqlite3 -cmd ".timeout 10000" "$TR_TMP/mirror.db" "select count(*) from t where id = 501")" = 1 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.t public.other
tr_step "done"
