#!/usr/bin/env bash
# Another table takes the name of a mirrored one (an online migration's swap, a rebuild, a drop and a new start): the mirrors become
# the new table, without an operator, and keep no row of the old one.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create database mirror" -c "create table t (id int primary key, v text)" -c "insert into t select g, 'old' from generate_series(1, 50) g" \
    -c "create table t_new (like t including all)" -c "insert into t_new values (1, 'new'), (99, 'new')" \
    -c "create table u (id int primary key, v text)" -c "insert into u select g, 'old' from generate_series(1, 50) g" \
    -c "create table d (id int primary key, v text)" -c "insert into d select g, 'old' from generate_series(1, 50) g"
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
all_live() { [ "$(states | tr ' ' '\n' | grep -c '^public\.[tud]=live')" = 6 ]; }
lite() { sqlite3 -cmd '.timeout 10000' "$TR_TMP/mirror.db" "$1"; }
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
tr_wait_until 30 all_live
tr_step "three ways to replace a table"
tr_psql src -q -c "begin; alter table t rename to t_old; alter table t_new rename to t; commit"
tr_psql src -q -c "begin; create table u_new (like u including all); insert into u_new select id, 'rebuilt' from u where id <> 5; drop table u; alter table u_new rename to u; commit"
tr_psql src -q -c "drop table d" -c "create table d (id int primary key, v text)" -c "insert into d values (3, 'fresh')"
replaced() { [ "$(lite "select (select group_concat(id || v) from (select * from t_live order by id)), (select count(*) from u_live where v = 'rebuilt'), (select group_concat(id || v) from d_live)")" = '1new,99new|49|3fresh' ]; }
tr_wait_until 60 replaced || tr_fail "the mirror keeps the old tables: $(states)"
tr_wait_until 30 all_live
tr_psql src -q -c "insert into t values (7, 'more')" -c "update u set v = 'more' where id = 7" -c "delete from d" -c "insert into d values (8, 'more')"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(lite "select count(*) from d_live where id = 8")" = 1 ]'
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(psql "$mirror" -XAtqc "select count(*) from d_live where id = 8")" = 1 ]'
python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.t public.u public.d
tr_step "done"
