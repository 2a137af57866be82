#!/usr/bin/env bash
# Idle: WAL of another database does not pile up behind the slot. Stop: with tailrace stopped, PostgreSQL shuts down fast within our
# wal_sender_timeout; SIGTERM under load drains within its deadline and loses nothing.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 1000) g"
TT_HEARTBEAT=1h # so that it cannot be the heartbeat
tt_config
tt_run
tt_live public.t
tr_step 'WAL of another database'
tr_psql src -c 'create database other'
lsn=$(tr_psql src -c 'select pg_current_wal_insert_lsn()')
"$TR_PG_CLIENT/psql" -X -q -d "${TT_SHOP/dbname=shop/dbname=other}" -c "create table x as select g, repeat('w', 200) from generate_series(1, 50000) g"
end=$(tr_psql src -c 'select pg_current_wal_insert_lsn()')
tr_wait_until 20 "[ \"\$(tr_psql src -c \"select confirmed_flush_lsn >= '$end' from pg_replication_slots where slot_name = 'tailrace'\")\" = t ]" || {
    tr_psql src -c "select *, '$lsn', '$end' from pg_replication_slots" >&2
    tr_fail 'the slot does not advance'
}
tr_step 'the connection is cut while nothing happens: trouble, and then none, without anything to wait for'
troubled() { tt_status | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["capture"]["error"] == "")'; }
tr_psql src -q -c 'select pg_terminate_backend(pid) from pg_stat_replication' >/dev/null
tr_wait_until 5 troubled
tr_wait_until 10 '! troubled' || tr_fail 'capture is connected again and does not say so'
tr_step 'SIGTERM under load'
tr_spawn load "$TR_PG_CLIENT/psql" -X -q -d "$TT_SHOP" -c "do \$\$ begin for i in 1..2000000 loop update t set v = 'v' || i where id = 1 + i % 1000; commit; end loop; end \$\$"
sleep 2
began=$SECONDS
tt_stop
[ $((SECONDS - began)) -le 25 ] || tr_fail "draining took $((SECONDS - began)) s"
grep -q 'abandon' "$TR_TMP/tailrace.log" && tr_fail 'batches were abandoned'
tt_run
sleep 2
tr_step 'SIGSTOP, then a fast shutdown of PostgreSQL'
kill -STOP "$PID_tailrace"
tr_kill load || true
began=$SECONDS
tr_pg_stop src fast 60
took=$((SECONDS - began))
tr_step "it took $took s"
[ "$took" -le 15 ] || tr_fail "a stopped tailrace held up the shutdown for $took s"
kill -CONT "$PID_tailrace"
tr_pg_restart src
tt_live public.t
tt_equal public.t
tt_stop
tr_step 'SIGTERM while a slot is being made, which waits for a transaction that is open'
tr_psql src -q -c "select pg_drop_replication_slot('tailrace')" >/dev/null
tt_open held
tt_do held "begin; insert into t values (-1, 'open')"
slots=$(grep -c 'making the replication slot' "$TR_TMP/tailrace.log")
tt_run
tr_wait_until 20 "[ \$(grep -c 'making the replication slot' '$TR_TMP/tailrace.log') -gt $slots ]" || tr_fail 'no slot was made'
sleep 1
began=$SECONDS
tt_stop
[ $((SECONDS - began)) -le 5 ] || tr_fail "stopping took $((SECONDS - began)) s"
tt_do held 'commit'
tt_run
tt_live public.t
tt_equal public.t
tt_stop
