#!/usr/bin/env bash
# Two-phase commits (also prepared over a snapshot's beginning), savepoints rolled back inside large streamed transactions, interleaved large ones,
# some of them given up.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}" 'logical_decoding_work_mem = 64kB'
tt_sql 'create table t (id int primary key, v text, n int)' "insert into t select g, repeat('x', 100), 0 from generate_series(1, 3000) g"
TT_SOURCE='  stream_memory: 1MiB'
tt_config
tt_sql "begin; update t set n = 1 where id <= 10; insert into t values (5000, 'prepared', 0); prepare transaction 'before'"
tt_run
# the slot itself waits for it: PostgreSQL builds its first snapshot of running transactions
sleep 0.7
tt_sql "commit prepared 'before'"
tt_live public.t
tr_step 'streamed, interleaved, rolled back'
for s in a b c; do
    tt_open $s
    tt_do $s 'begin'
done
for i in 1 2 3 4; do
    tt_do a "update t set n = n + 1, v = repeat('a', 200) where id % 3 = 0"
    tt_do b "savepoint s$i"
    tt_do b "update t set n = n + 10, v = repeat('b', 300) where id % 3 = 1"
    tt_do b "insert into t select 10000 * $i + g, repeat('i', 100), g from generate_series(1, 1500) g"
    [ $((i % 2)) = 0 ] || tt_do b "rollback to s$i"
    tt_do c "update t set n = n + 100, v = repeat('c', 150) where id % 3 = 2"
done
tt_do b 'savepoint outer_one'
tt_do b 'savepoint inner_one'
tt_do b "delete from t where id % 3 = 1 and id < 500"
tt_do b 'release inner_one'
tt_do b 'rollback to outer_one'
tt_do b "update t set id = id + 500000 where id % 3 = 1 and id < 300"
tt_do c 'rollback'
tt_do b "prepare transaction 'big'"
tt_do a 'commit'
tt_equal public.t
tt_sql "commit prepared 'big'" "begin; delete from t where id % 3 = 2; prepare transaction 'never'"
tt_equal public.t
tr_step 'a snapshot that waits for it says so, and does not blame who waits for it as well'
tt_sql 'begin' 'select pg_current_xact_id()' 'lock table t in access exclusive mode' 'rollback' >/dev/null &
waiter=$!
tr_wait_until 10 "[ \"\$(tt_sql 'select count(*) from pg_locks where not granted')\" = 1 ]"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null
tt_waits public.t 'waits for prepared transaction never since'
tr_kill tailrace KILL || true
tt_sql "rollback prepared 'never'"
wait "$waiter"
tt_sql "begin; update t set n = -n; prepare transaction 'last'" "commit prepared 'last'"
tt_run
tt_equal public.t
tt_stop
