#!/usr/bin/env bash
# An ordinary transaction, open on an otherwise quiet source. Begun before the first fence: BEGIN waits for it. Begun between BEGIN and the
# second fence: the chunk waits for it. Both visibly, naming it.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 500) g"
tt_config 'snapshot: {workers: 1, chunk_rows: 100}'
tt_run snapshot.before_fence=sleep:2000:1+

tr_step 'a transaction between BEGIN and the second fence'
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
tt_open a
tt_do a "begin; update t set v = 'new' where id in (5, 450); select 'pid-' || pg_backend_pid()"
pid=$(grep -m 1 '^pid-' "$TR_TMP/out-a")
tt_waits public.t "^snapshot.waits for.*process ${pid#pid-} "
[[ $("$TAILRACE" status -c "$TT_YAML") == *"process ${pid#pid-} "* ]] || tr_fail 'the status screen does not name the transaction'
tr_equal 'rows read while it is open' 0 "$(tt_frames READ public.t)"
tt_do a 'commit'
tt_live public.t
tt_equal public.t

tr_step 'a transaction before the first fence of another snapshot'
tt_do a "begin; update t set v = 'newer' where id in (7, 451)"
"$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null
tt_waits public.t "^fencing.waits for.*process ${pid#pid-} "
tr_equal 'snapshots begun' 1 "$(tt_frames SNAPSHOT_BEGIN public.t)"
tt_do a 'commit'
tr_wait_until 20 '[ "$(tt_frames SNAPSHOT_END public.t)" = 2 ]' || tr_fail 'the second snapshot does not end'
tt_live public.t
tt_equal public.t
tt_stop
