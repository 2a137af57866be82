#!/usr/bin/env bash
# An UPDATE that hangs in synchronous commit is in the stream long before anybody sees it. Before the first fence it holds BEGIN back,
# between BEGIN and the chunk it holds the chunk back; the heartbeat goes on meanwhile.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 300) g" \
    'create table u (id int primary key, v text)' "insert into u select g, 'old' from generate_series(1, 300) g"
tt_config 'snapshot: {workers: 2, chunk_rows: 100}'
hang() { # TABLE ID: a session whose commit hangs, until release
    tt_open "s_$1"
    tt_do "s_$1" "select 'pid-' || pg_backend_pid()"
    pid=$(sed -n 's/^pid-//p' "$TR_TMP/out-s_$1")
    tt_do "s_$1" 'set synchronous_commit = on'
    tt_say "s_$1" "update $1 set v = 'hanging' where id = $2"
    tt_hangs SyncRep
}
standby() {
    tr_psql src -c "alter system set synchronous_standby_names = '$1'" -c 'select pg_reload_conf()' >/dev/null
}
heartbeat() { tt_sql 'select beat from tailrace.heartbeat' 2>/dev/null || tt_sql 'select at_us from tailrace.heartbeat'; }

# everything but the hanging sessions goes on as if nothing had happened
tr_psql src -c 'alter database shop set synchronous_commit = local' -c 'alter role postgres set synchronous_commit = local'
tt_run snapshot.before_fence=sleep:2500:1+

tr_step 'between BEGIN and the chunk'
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
standby nobody
hang t 7
tt_waits public.t "^snapshot.waits for.*process $pid .*SyncRep"
one=$(heartbeat)
tr_wait_until 5 '[ "$(heartbeat)" != "$one" ]' || tr_fail 'the heartbeat stopped'
tr_equal 'rows read meanwhile' 0 "$(tt_frames READ public.t)"
standby ''
tt_live public.t public.u
tt_equal public.t public.u

tr_step 'before the first fence'
standby nobody
hang u 9
"$TAILRACE" table resnapshot public.u -c "$TT_YAML" >/dev/null
tt_waits public.u "^fencing.waits for.*process $pid .*SyncRep"
tr_equal 'snapshots of u begun' 1 "$(tt_frames SNAPSHOT_BEGIN public.u)"
standby ''
tr_wait_until 20 '[ "$(tt_frames SNAPSHOT_END public.u)" = 2 ]' || tr_fail 'the second snapshot does not end'
tt_live public.t public.u
tt_equal public.t public.u
tt_stop
