#!/usr/bin/env bash
# PostgreSQL logs a heap tuple before it checks unique indexes, and may wait there: the DELETE of that key, committed meanwhile, has the
# higher LSN and the lower commit. With COPY, with an INSERT on a second unique index, with a key update; streaming and during a snapshot.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, w int unique, v text)' "insert into t select g, g, 'old' from generate_series(1, 2000) g"
tt_config 'snapshot: {workers: 1, chunk_rows: 100}'

waits() { # until session NAME waits for another transaction, in which case it is behind its heap record
    tr_wait_until 10 "[ \"\$(tr_psql src -c \"select count(*) from pg_stat_activity where wait_event = 'transactionid'\")\" = $1 ]" || tr_fail "$1 sessions should wait for a transaction"
}
round() { # BASE: keys BASE … BASE + 9 are the round's own
    local b=$1
    # COPY logs a page of rows and waits on its first one, which `holder` has deleted and not committed; the last one is deleted for good meanwhile
    tt_do a "begin; delete from t where id = $b"
    tt_say c "copy t from program 'printf \"$b\\t$b\\tcopied\\n$((b + 5))\\t$((b + 5))\\tcopied\\n\"'"
    waits 1
    tt_do b "delete from t where id = $((b + 5))"
    tt_do a 'commit'
    tt_do c "select 'copied'"
    # an INSERT that waits on the second unique index while its primary key's old row goes
    tt_do a "begin; delete from t where id = $((b + 1))"
    tt_say c "insert into t values ($((b + 2 + 100000)), $((b + 1)), 'inserted')"
    waits 1
    tt_do b "delete from t where id = $((b + 3))" 
    tt_do a 'commit'
    tt_do c "select 'inserted'"
    # a key update onto a key that is being deleted
    tt_do a "begin; delete from t where id = $((b + 6))"
    tt_say c "update t set id = $((b + 6)), w = -$((b + 6)), v = 'moved' where id = $((b + 7))"
    waits 1
    tt_do b "update t set v = 'other' where id = $((b + 8))"
    tt_do a 'commit'
    tt_do c "select 'moved'"
}
for s in a b c; do
    tt_open $s
done
tt_run snapshot.before_chunk=sleep:150:1+
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
tr_step 'during the snapshot'
round 1990
round 1000
round 20
tt_live public.t
tr_step 'streaming'
round 1500
tr_equal 'the copied row is there' 1 "$(tt_sql "select count(*) from t where id = 1505 and v = 'copied'")"
tt_equal public.t
tt_stop
