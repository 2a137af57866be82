#!/usr/bin/env bash
# A table starts to match while writers of it are in flight. Publication membership is decided per change: the stream may hold the DELETE of
# a key and not the INSERT that outlives it. So its snapshot begins only when everything older than the publication's change has ended.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
TT_MATCH="'public.marker', 'late.*'"
tt_config
tt_run
tt_live public.marker
tr_step 'created and filled in a transaction that is open when others write'
tt_open a
tt_open b
tt_do b "select 'pid-' || pg_backend_pid()"
pid=$(sed -n 's/^pid-//p' "$TR_TMP/out-b")
# publication-race.sh: a moves 2 → 1, b's INSERT of 1 waits behind it, the table is published, a deletes 1, both commit
tt_sql 'create schema late' 'create table late.t (k int primary key, a int)' 'insert into late.t values (2, 20), (3, 30)'
tt_do a 'begin'
tt_do a 'update late.t set k = 1, a = 21 where k = 2'
tt_say b 'begin'
tt_say b 'insert into late.t values (1, 101)'
tt_hangs transactionid
"$TAILRACE" table resnapshot public.marker -c "$TT_YAML" >/dev/null # looks for tables at once
tr_wait_until 20 "[ \"\$(tt_sql \"select count(*) from pg_publication_tables where tablename = 't'\")\" = 1 ]" || tr_fail 'not published'
tt_waits late.t '^fencing.waits for.*process'
tt_do a 'delete from late.t where k = 1'
tt_do a 'commit'
tt_do b 'insert into late.t values (5, 50)'
tt_waits late.t "^fencing.waits for.*process $pid "
tr_equal 'begun' 0 "$(tt_frames SNAPSHOT_BEGIN late.t)"
tt_do b 'commit'
tt_do a 'insert into late.t values (6, 60)'
tt_live late.t
tr_equal 'the row is there' 101 "$(tt_mirror 'select a from late.t_live where k = 1')"
tt_equal late.t
tt_stop
