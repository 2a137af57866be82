#!/usr/bin/env bash
# A replica as the source of snapshots, and it lags: the chunk waits, visibly, until it has replayed the fence.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 500) g"
tr_pg_standby rep src
TT_SOURCE="  replica_dsn: ${PG_DSN_rep/dbname=postgres/dbname=shop}"
tt_config 'snapshot: {workers: 1, chunk_rows: 100}'
tr_psql rep -c 'select pg_wal_replay_pause()' >/dev/null
tt_sql "update t set v = 'before' where id = 7" 'delete from t where id = 8' "insert into t values (1000, 'before')"
tt_run
tt_waits public.t '^snapshot.waits for the replica'
tt_sql "update t set v = 'meanwhile' where id in (9, 400)" 'delete from t where id = 401' "update t set id = 2000 where id = 402"
tr_equal 'rows read meanwhile' 0 "$(tt_frames READ public.t)"
tr_psql rep -c 'select pg_wal_replay_resume()' >/dev/null
tt_live public.t
[ "$(tt_frames READ public.t)" -ge 499 ] || tr_fail 'READ frames are missing'
tt_equal public.t
tr_step 'the replica goes away: the chunks wait for it, the stream goes on'
tr_pg_stop rep fast
"$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null
tt_waits public.t '^snapshot.waits for'
tt_sql "update t set v = 'later' where id = 10"
tt_mark
tr_equal 'the mirror goes on' later "$(tt_mirror 'select v from t_live where id = 10')"
tr_pg_restart rep
tt_live public.t
tt_equal public.t
tt_stop
