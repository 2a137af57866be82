#!/usr/bin/env bash
# Tables that need care: a primary key that INCLUDEs a column with NULLs, a generated column, a row too wide for the mirror, a row larger
# than the default budget. One table's trouble stays that table's.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start 15
wide=$(seq -s, -f 'c%.0f bigint' 1 1014)
tt_sql "create table incl (id int, v text, primary key (id) include (v))" "insert into incl values (1, null), (2, 'x')" \
    "create table gen (id int primary key, a int, g int generated always as (a * 2) stored, z text)" "insert into gen values (1, 2)" \
    "create table wide (id int primary key, $wide)" "insert into wide (id) values (1)" \
    "create table big (id int primary key, a text, b text)" "insert into big values (1, 'x', 'y')"
TT_COMMIT=1s
TT_LITE='    max_inflight: 512MiB'
TT_PG=$TT_LITE
TT_ENGINE='max_inflight: 256MiB'
tt_config
is() { [ "$(tt_in_sinks "public.$1" | tr " " "\n" | grep -cx "$2")" = "$3" ]; } # TABLE STATE IN_SO_MANY_SINKS
tt_run
for t in incl gen wide big; do tr_wait_until 30 "is $t live 2" || tr_fail "$t: $(tt_in_sinks "public.$t")"; done
tr_step "changes come"
tt_sql "update incl set v = 'y' where id = 1" "update incl set v = null where id = 2" "alter table incl replica identity full" "update incl set v = null where id = 1" "update gen set a = 5"
tt_sql "update big set a = repeat('x', 50000000), b = repeat('y', 48000000)"
tt_sql "update wide set $(seq -s, -f 'c%.0f = 9000000000000000000' 1 1014)"
tr_wait_until 60 'is wide paused 1' || tr_fail "the row too wide for the mirror: $(tt_in_sinks public.wide)"
"$TAILRACE" status -c "$TT_YAML" | grep -q "row is too big" || tr_fail "the reason is not told"
tr_step "one table is paused in one sink, the others go on"
tt_sql "insert into incl values (9, 'last')" "insert into gen values (9, 9)"
tr_wait_until 60 '[ "$(tt_mirror "select (select count(*) from incl_live where id = 9) + (select count(*) from gen_live where id = 9)")" = 2 ]'
tr_wait_until 60 '[ "$(tt_lite "select (select count(*) from incl_live where id = 9) + (select count(*) from gen_live where id = 9)")" = 2 ]'
for s in "wide live 1" "incl live 2" "gen live 2" "big live 2"; do
    # shellcheck disable=SC2086 # three words
    is $s || tr_fail "it is not so: $s"
done
[ "$(tt_lite "select length(a) + length(b) from big_live")" = 98000000 ] || tr_fail "the large row"
[ "$(tt_lite "select count(*) from wide_live where c1014 = 9000000000000000000")" = 1 ] || tr_fail "the wide row in SQLite"
python3 "$TR_E2E_DIR/compare.py" --source "$TT_SHOP" --sqlite "$TT_LITE_FILE" --postgres "$TT_MIRROR" public.incl public.big
tr_step "done"
