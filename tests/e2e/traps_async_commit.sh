#!/usr/bin/env bash
# An asynchronous commit is seen by a chunk and then undone by a crash of the server: no phantom row, and none of its values.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}" 'checkpoint_timeout = 1h' 'autovacuum = off' 'bgwriter_lru_maxpages = 0'
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 100) g"
TT_HEARTBEAT=1h # a heartbeat would flush it
tt_config 'snapshot: {workers: 1, chunk_rows: 1000}'
# the first snapshots (t, marker) pass; the chunk of the second snapshot of t stops before and after its read. Nothing else may write WAL
# meanwhile that is flushed.
tt_run snapshot.before_chunk=sleep:2500:3 snapshot.after_read=sleep:6000:3
tt_live public.t public.marker
# the WAL writer is stopped: what is committed asynchronously stays unflushed
writer=$(tr_psql src -c "select pid from pg_stat_activity where backend_type = 'walwriter'")
kill -STOP "$writer"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
tt_sql 'set synchronous_commit = off' "insert into t values (1000, 'phantom')" "update t set v = 'phantom' where id = 5"
sleep 2.5
tr_equal 'unflushed WAL' t "$(tt_sql 'select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()')"
tr_equal 'what a chunk saw' phantom "$(tt_sql 'select v from t where id = 5')"
kill -KILL "$writer" # which is a crash of the server: what lay in its WAL buffers is gone
tr_wait_until 20 'tr_psql src -c "select 1" >/dev/null 2>&1' || tr_fail 'the server does not recover'
lost=$(tt_sql "select count(*) from t where v = 'phantom'")
[ "$lost" = 0 ] || tr_skip 'the asynchronous commit survived the crash: nothing was shown'
tr_wait_until 40 '[ "$(tt_frames SNAPSHOT_END public.t)" = 2 ]' || tr_fail 'the snapshot does not end after the crash'
tt_live public.t public.marker
tt_equal public.t
tr_equal 'phantoms' 0 "$(tt_mirror "select count(*) from t where v = 'phantom'")"
tr_equal 'phantoms in the log' 0 "$(tt_logged phantom && echo some || echo 0)"
tt_stop
