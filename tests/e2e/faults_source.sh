#!/usr/bin/env bash
# What can befall the source and our slot there: the slot dropped under a running and a stopped tailrace, held by somebody else, its WAL lost; the
# server with wal_level = replica; tailrace, and the server's walsender, stopped for longer than wal_sender_timeout; a table dropped; a failover to
# another timeline. Each is told by name; mirrors are equal afterwards, by themselves.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}" 'wal_keep_size = 0' 'wal_receiver_timeout = 5s'
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'v' from generate_series(1, 200) g" 'create table u (id int primary key)' 'insert into u values (1)'
TT_SOURCE='  wal_sender_timeout: 2s'
tt_config
tt_run
tt_live public.t public.u public.marker
tt_equal public.t public.u

slot() { tr_psql src -c "select $1 from pg_replication_slots where slot_name = 'tailrace'"; }
epoch() { tt_status | python3 -c 'import json, sys; print(json.load(sys.stdin)["capture"]["epoch"])' 2>/dev/null; }
n=0
change() { # every kind, so that a mirror that missed it differs
    n=$((n + 1))
    tt_sql "insert into t values (1000 + $n, 'new')" "delete from t where id = $n" "update t set v = '$n' where id % 10 = 5"
}
anew() { # EPOCH REASON
    tr_wait_until 30 "[ \"\$(epoch)\" = $1 ]" || tr_fail "the epoch is $(epoch), not $1"
    tt_told "WARN.*a new epoch begins, and every table is snapshotted anew: $2"
    grep 'a new epoch begins' "$TR_TMP/tailrace.log" | tail -n 1 | grep -Eq "$2" || tr_fail "the last epoch begins for another reason than '$2'"
    "$TAILRACE" status -c "$TT_YAML" >"$TR_TMP/status.log" || true
    grep -q "^capture .*, epoch $1," "$TR_TMP/status.log" || tr_fail "status does not tell the epoch: $(cat "$TR_TMP/status.log")"
    tt_live public.t public.marker
    tt_equal public.t
    tt_well
}
drop_slot() {
    tr_wait_until 10 'tr_psql src -c "select pg_terminate_backend(active_pid) from pg_replication_slots where active" -c "select pg_drop_replication_slot('"'tailrace'"')" >/dev/null 2>&1'
}

tr_step 'the slot is dropped under a running tailrace'
drop_slot
change
tt_told 'ERROR.*source: replication slot tailrace does not exist'
anew 2 'slot tailrace is gone'

tr_step 'and under one that was killed'
tt_kill
change
drop_slot
change
tt_run
anew 3 'slot tailrace is gone'

tr_step 'somebody else reads from the slot, and confirms nothing: no new epoch'
tt_stop
tr_spawn holder "$TR_PG_CLIENT/pg_recvlogical" -d "$TT_SHOP" -S tailrace --start -s 0 -F 0 -o proto_version=1 -o publication_names=tailrace -f "$TR_TMP/held"
tr_wait_until 10 '[ "$(slot active)" = t ]'
change
tt_run
tt_trouble capture "slot tailrace is in use by server process $(slot active_pid)"
tr_kill holder KILL || true
tt_equal public.t
tt_well
tr_equal 'the epoch' 3 "$(epoch)"

tr_step 'somebody else reads from the slot, and confirms'
tt_stop
change
"$TR_PG_CLIENT/psql" -X -q -d "$TT_SHOP" -c "select count(*) from pg_logical_slot_get_binary_changes('tailrace', null, null, 'proto_version', '1', 'publication_names', 'tailrace')" >/dev/null
tt_run
anew 4 'slot tailrace is confirmed up to [0-9A-F/]+, our record ends at'

tr_step 'tailrace is stopped (SIGSTOP) for longer than wal_sender_timeout'
kill -STOP "$PID_tailrace"
change
tr_wait_until 10 '[ "$(slot active)" = f ]' || tr_fail 'the server does not give up the connection'
code=0
"$TAILRACE" status -c "$TT_YAML" >"$TR_TMP/status.log" 2>&1 || code=$?
tr_equal 'exit code of status' 6 "$code"
grep -q 'a process listens on .*, but does not answer within 5 s' "$TR_TMP/status.log" || tr_fail "status does not say that it is stopped: $(cat "$TR_TMP/status.log")"
kill -CONT "$PID_tailrace"
tt_equal public.t
tt_well

tr_step 'the walsender is stopped: noticed after 6 s; its slot is taken until it goes on'
sender=$(slot active_pid)
kill -STOP "$sender"
change
tt_trouble capture 'source: (the server has said nothing for 6 s|slot tailrace is in use)' 12
tt_trouble capture "slot tailrace is in use by server process $sender"
kill -CONT "$sender"
tt_equal public.t
tt_well
tr_equal 'the epoch' 4 "$(epoch)"

tr_step 'the server has removed WAL that the slot needed'
tt_kill
change
tr_psql src -c "alter system set max_slot_wal_keep_size = '1MB'" -c 'select pg_reload_conf()' >/dev/null
for _ in 1 2 3 4; do
    tr_psql src -c "select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))" -c 'select pg_switch_wal()' >/dev/null
done
tr_psql src -c 'checkpoint'
tr_wait_until 10 '[ "$(slot wal_status)" = lost ]' || tr_fail "wal_status is $(slot wal_status)"
change
tt_run
anew 5 'slot tailrace has lost WAL it needed'
tr_psql src -c 'alter system reset max_slot_wal_keep_size' -c 'select pg_reload_conf()' >/dev/null

tr_step 'wal_level = replica: the server does not start with the slot, so somebody dropped it; tailrace ends with the cure'
drop_slot
tr_psql src -c 'alter system set wal_level = replica'
tr_pg_restart src
ended() { ! tr_alive tailrace; }
tr_wait_until 30 ended || tr_fail 'it goes on'
code=0
wait "$PID_tailrace" || code=$?
tr_equal 'exit code' 1 "$code"
tt_told 'ERROR.*wal_level is replica; cure: ALTER SYSTEM SET wal_level = .logical.; then restart PostgreSQL'
change
tr_psql src -c 'alter system reset wal_level'
tr_pg_restart src
change
tt_run
anew 6 'the slot was never finished' # it was begun when it was found gone

tr_step 'a table is dropped'
tt_sql 'drop table u'
tt_waits public.u '^paused.the table does not exist any more'
change
tt_equal public.t

tr_step 'failover: the standby that takes the address lacks what came last'
tr_pg_standby rep src
tt_equal public.t
tr_psql rep -c "alter system set primary_conninfo = ''" -c 'select pg_reload_conf()' >/dev/null
tr_wait_until 10 '[ "$(tr_psql src -c "select count(*) from pg_stat_replication where application_name = '"'rep'"'")" = 0 ]'
tt_sql "insert into t values (5000, 'only the old one had it')" "update t set v = 'only the old one had it' where id = 50"
tt_mark
TT_MARK=$((TT_MARK + 1)) # the new primary lacks that one
tr_pg_stop src immediate
tr_as_pg "$PG_BIN_rep/pg_ctl" -D "$PG_DATA_rep" -s -w promote >/dev/null
tr_pg_stop rep fast
printf "port = %s\n" "$PG_PORT_src" | tr_as_pg tee -a "$PG_DATA_rep/postgresql.auto.conf" >/dev/null
tr_pg_ctl_start rep
change
anew 7 'the source is on timeline 2, was on 1'
tr_equal 'what only the old one had' 0 "$(tt_mirror "select count(*) from t_live where v like 'only the old%'")"
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
