#!/usr/bin/env bash
# Tables that need care: a primary key that INCLUDEs a column with NULLs, a generated column, a row too wide for the mirror, a row larger
# than the default budget. One table's trouble stays that table's.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
wide=$(seq -s, -f 'c%.0f bigint' 1 1014)
tr_psql src -q -c "create database mirror" -c "create table incl (id int, v text, primary key (id) include (v))" -c "insert into incl values (1, null), (2, 'x')" \
    -c "create table gen (id int primary key, a int, g int generated always as (a * 2) stored, z text)" -c "insert into gen values (1, 2)" \
    -c "create table wide (id int primary key, $wide)" -c "insert into wide (id) values (1)" \
    -c "create table big (id int primary key, a text, b text)" -c "insert into big values (1, 'x', 'y')"
# shellcheck disable=SC2154
mirror=${PG_DSN_src/dbname=postgres/dbname=mirror}
cat >"$TR_TMP/t.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $PG_DSN_src
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db, max_inflight: 512MiB}
  - {name: pg, type: postgres, dsn: $mirror, max_inflight: 512MiB}
engine: {heartbeat: 1s, commit_interval: 1s, max_inflight: 256MiB}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
states() { "$TAILRACE" status -c "$TR_TMP/t.yaml" --json | python3 -c 'import json,sys; print(*sorted(t["name"] + "=" + t["state"] for k in json.load(sys.stdin)["sinks"] for t in k["tables"]))'; }
is() { states | tr ' ' '\n' | grep -c "^public.$1=$2\$" | grep -qx "$3"; }
lite() { sqlite3 -cmd '.timeout 10000' "$TR_TMP/mirror.db" "$1"; }
tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/t.yaml"
for t in incl gen wide big; do tr_wait_until 30 "is $t live 2" || tr_fail "$t: $(states)"; done
tr_step "changes come"
tr_psql src -q -c "update incl set v = 'y' where id = 1" -c "update incl set v = null where id = 2" -c "alter table incl replica identity full" -c "update incl set v = null where id = 1" -c "update gen set a = 5"
tr_psql src -q -c "update big set a = repeat('x', 50000000), b = repeat('y', 48000000)"
tr_psql src -q -c "update wide set $(seq -s, -f 'c%.0f = 9000000000000000000' 1 1014)"
tr_wait_until 60 'is wide paused 1' || tr_fail "the row too wide for the mirror: $(states)"
"$TAILRACE" status -c "$TR_TMP/t.yaml" | grep -q "row is too big" || tr_fail "the reason is not told"
tr_step "one table is paused in one sink, the others go on"
tr_psql src -q -c "insert into incl values (9, 'last')" -c "insert into gen values (9, 9)"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 60 '[ "$(psql "$mirror" -XAtqc "select (select count(*) from incl_live where id = 9) + (select count(*) from gen_live where id = 9)")" = 2 ]'
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 60 '[ "$(lite "select (select count(*) from incl_live where id = 9) + (select count(*) from gen_live where id = 9)")" = 2 ]'
for s in "wide live 1" "incl live 2" "gen live 2" "big live 2"; do
    # shellcheck disable=SC2086 # three words
    is $s || tr_fail "$(states)"
done
[ "$(lite "select length(a) + length(b) from big_live")" = 98000000 ] || tr_fail "the large row"
[ "$(lite "select count(*) from wide_live where c1014 = 9000000000000000000")" = 1 ] || tr_fail "the wide row in SQLite"
python3 "$TR_E2E_DIR/compare.py" --source "$PG_DSN_src" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.incl public.big
tr_step "done"
