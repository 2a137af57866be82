#!/usr/bin/env bash
# ALTER TABLE … ADD COLUMN during a snapshot and while streaming, nullable and with a constant default; a breaking change pauses that table
# alone and visibly; a new snapshot cures it, or a hand in the sink and `table resume`.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
for t in t u w; do
    tt_sql "create table $t (id int primary key, v text, d text)" "insert into $t select g, 'old', 'drop me' from generate_series(1, 600) g"
done
tt_config 'snapshot: {workers: 1, chunk_rows: 50}'
tr_step 'a column that is added, and filled, between the look at the table and BEGIN'
tt_run snapshot.before_begin=sleep:700:1+
tr_wait_until 20 "tt_state public.t | grep -q '^fencing'" || tr_fail 'no snapshot'
tt_sql 'alter table t add column early int' 'update t set early = id where id <= 5'
tt_live public.t
tt_equal public.t
tt_kill
rm -rf "$TR_TMP/state" "$TT_LITE_FILE"*
tr_psql src -c 'drop database mirror' -c 'create database mirror'
tt_ch 'drop database shop'
tr_wait_until 20 "tr_psql src -c \"select pg_drop_replication_slot('tailrace')\" >/dev/null 2>&1" || tr_fail 'the slot stays in use'
tt_run snapshot.before_chunk=sleep:60:1+
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot of t'
tr_wait_until 20 '[ "$(tt_frames READ public.t)" -ge 100 ]' || tr_fail 'no chunk was read'
tr_step 'during the snapshot'
tt_sql 'alter table t add column n int' "alter table t add column c text default 'constant'" "update t set n = id where id in (3, 590)" "insert into t values (1000, 'new', 'drop me', 1, 5, 'own')" \
    "update t set c = 'changed' where id in (4, 591)"
tt_live public.t public.u public.w
tt_equal public.t public.u
tr_step 'while streaming'
tt_sql 'alter table u add column n int' "update u set n = id where id = 5" "alter table u add column c numeric(10, 2) default 12.50" "insert into u values (1000, 'new', 'drop me', 7)" \
    "alter table u add column b boolean default true, add column x bytea default '\\x00ff'" "update u set b = false where id = 6"
# of a value that is added to an enum the stream tells nothing
tt_sql "create type mood as enum ('ok')" 'alter table u add column m mood' "update u set m = 'ok' where id = 8"
tt_equal public.u
tt_sql "alter type mood add value 'sad' before 'ok'" "update u set m = 'sad' where id = 9"
tt_equal public.u public.t

tr_step 'a breaking change pauses that table alone'
tt_sql 'alter table u drop column d' "update u set v = 'after' where id = 7" "update t set v = 'flows on' where id = 7"
for s in lite pg; do
    tr_wait_until 20 "[ \"\$(tt_state public.u | grep -c '^paused|.*')\" -ge 2 ]" || { tt_state public.u >&2; tr_fail "u is not paused in $s"; }
done
tt_mark
tr_equal 'the others flow on' 'flows on' "$(tt_mirror 'select v from t_live where id = 7')"
tr_equal 'the paused one stays as it was' old "$(tt_mirror 'select v from u_live where id = 7')"
tt_state public.u | grep -q '^paused|.*d' || tr_fail 'the reason does not name the column'
"$TAILRACE" table resnapshot public.u -c "$TT_YAML" >/dev/null
tt_live public.u
tt_equal public.u public.t

tr_step 'a hand in the sink, then resume'
tt_sql 'alter table w drop column d' "update w set v = 'after' where id = 8"
tr_wait_until 20 "[ \"\$(tt_state public.w | grep -c '^paused|.*')\" -ge 2 ]" || tr_fail 'w is not paused'
tt_sql "insert into w values (2000, 'while paused')" 'delete from w where id = 9' 'update w set id = 3000 where id = 10'
tt_kill
tt_run
tr_wait_until 20 'tt_status >/dev/null'
tt_waits public.w '^paused'
tt_mirror 'drop view w_live' 'alter table w drop column d'
tt_lite 'drop view w_live; alter table w drop column d'
tt_ch 'alter table shop.w drop column d'
"$TAILRACE" table resume public.w -c "$TT_YAML" >/dev/null
tt_live public.w
tt_equal public.w public.u public.t

tr_step 'a breaking change during a snapshot starts it again'
tt_kill
tt_run snapshot.before_chunk=sleep:60:1+
tr_wait_until 20 '"$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null 2>&1' || tr_fail 'capture does not come back'
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
tt_sql 'alter table t drop column d' "update t set v = 'in between' where id = 300" 'alter table t alter column n type bigint' "update t set n = 5000000000 where id = 301"
tr_wait_until 40 '[ "$(tt_frames SNAPSHOT_END public.t)" -ge 2 ]' || tr_fail 'the snapshot does not end'
tt_live public.t
tt_equal public.w public.u public.t
tt_stop
