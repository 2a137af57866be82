#!/usr/bin/env bash
# A user that may replicate and read, and nothing else: heartbeats are transactional messages. They nudge a snapshot on an idle server and measure the lag
# in both mirrors; other people's messages, also in large streamed transactions, do no harm. What `check` names as the cure brings the row.
# shellcheck disable=SC2016,SC2030,SC2031,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}" 'logical_decoding_work_mem = 64kB' # the least there is: streams early
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'old' from generate_series(1, 500) g" \
    'create role reader login replication' 'grant usage on schema public to reader' 'grant select on all tables in schema public to reader' \
    'create publication tailrace for table t, marker with (publish_via_partition_root = true)'
TT_SOURCE='  create: false'
config() { # SECONDS BETWEEN HEARTBEATS
    (
        TT_HEARTBEAT=$1
        TT_SHOP=${TT_SHOP/user=postgres/user=reader}
        tt_config
    )
    grep -q 'user=reader' "$TT_YAML" || tr_fail "the DSN does not name the user: $(grep dsn "$TT_YAML")"
}
beats() { tt_frames HEARTBEAT tailrace.heartbeat; }
logged() { grep -c "heartbeat: $1" "$TR_TMP/tailrace.log" || true; }
measured() { # both sinks have measured the lag after the time given (µs)
    tt_status | python3 -c '
import json, sys
s = json.load(sys.stdin)["sinks"]
sys.exit(not all(k.get("lag_us", {}).get("measured_us", 0) > int(sys.argv[1]) and 0 <= k["lag_us"]["end_to_end"] < 60e6 for k in s) or len(s) != 2)' "$1"
}
measures() { # from now on
    local now
    now=$(python3 -c 'import time; print(int(time.time() * 1e6))')
    tr_wait_until 20 "measured $now" || {
        tt_status >&2
        tr_fail "$1: no lag is measured"
    }
}
finding() { # of `check` on the heartbeat: its FIELD
    "$TAILRACE" check -c "$TT_YAML" --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
assert d["errors"] == 0, d
print([f for f in d["findings"] if f["code"] == "heartbeat"][0][sys.argv[1]])' "$1"
}

config 1h # one at the start: what moves the idle stream under the snapshot is a nudge
tr_step 'check, and a snapshot on an idle server'
tr_equal 'level of the finding' note "$(finding level)"
[[ $(finding text) == *'user reader may not make table tailrace.heartbeat'* ]] || tr_fail "check says: $(finding text)"
tt_run
tt_live public.t public.marker
tr_wait_until 20 'measured 0' || tr_fail 'no lag is measured'
[ "$(beats)" -ge 2 ] || tr_fail 'the snapshots were not nudged'
tt_equal public.t
tr_equal 'logged' 1 "$(logged 'heartbeats are transactional messages: user reader may not make table tailrace.heartbeat')"
tr_equal 'heartbeat in the SQLite mirror' tailrace "$(tt_lite 'select slot from _tailrace_heartbeat')"
tr_equal 'heartbeat in the PostgreSQL mirror' tailrace "$(tt_mirror 'select slot from tailrace._tailrace_heartbeat')"
tr_equal 'tables of ours in the source' 0 "$(tt_sql "select count(*) from pg_class where relname = 'heartbeat'")"
tt_stop

tr_step 'messages of other people'
config 200ms
tt_run
foreign() { printf "select pg_logical_emit_message(%s, %s, repeat('x', 3000)), pg_logical_emit_message(%s, 'tailrace/heartbeat/tailrace', '%s')" "$1" "$2" "$1" "$3"; }
for t in true false; do
    for what in '' 'soon' '-5' '99999999999999999999'; do
        tt_sql "$(foreign $t "'outbox'" "$what")" "$(foreign $t "''" "$what")" "begin; $(foreign $t "'tailrace'" "$what"); insert into t values (1000 + (select count(*) from t), 'with a message'); commit" >/dev/null
    done
done
for s in a b; do
    tt_open $s
    tt_do $s begin
    tt_do $s "insert into t select 100000 * (1 + ascii('$s') - 97) + g, repeat('$s', 200) from generate_series(1, 3000) g"
done
tt_do a "do \$\$ begin for i in 1 .. 3000 loop perform pg_logical_emit_message(true, 'outbox', repeat('m', 500)), pg_logical_emit_message(i % 2 = 0, 'outbox', 'n'); end loop; end \$\$"
tt_do a 'savepoint s'
tt_do a "$(foreign true "'outbox'" none)"
tt_do a "update t set v = 'not to be seen' where id < 200"
tt_do a 'rollback to s'
tt_do b "$(foreign true "'outbox'" '')"
tt_do b "$(foreign false "'outbox'" '')"
tt_do a "update t set v = 'streamed' where id < 100"
tr_wait_until 20 '[ "$(tt_sql "select stream_txns > 1 from pg_stat_replication_slots")" = t ]' || tr_fail 'the transactions are not streamed'
tt_do a commit
tt_do b rollback
tt_equal public.t
measures 'after messages of other people'
tr_equal 'rows of the rolled back savepoint' 0 "$(tt_lite "select count(*) from t_live where v = 'not to be seen'")"
tr_equal 'heartbeats in the log that are none' 0 "$("$TAILRACE" log cat -c "$TT_YAML" | grep -i '"op": "HEARTBEAT"' | grep -Evc '"slot": "tailrace", "at_us": "?[0-9]{16}\b' || true)"
tr_equal 'restarts, errors' 0 "$(grep -c ' ERROR \| WARN ' "$TR_TMP/tailrace.log" || true)"

tr_step 'killed between two heartbeats'
tt_kill
tt_sql "update t set v = 'while it was down' where id < 10" "$(foreign true "'outbox'" 1)" >/dev/null
tt_run
tt_equal public.t
measures 'after a kill'

tr_step 'the cure, while it runs: rows; and back, for each reason'
cure=$(finding cure)
tt_sql "$cure"
tr_wait_until 20 '[ "$(logged "heartbeats are rows of their table again")" = 1 ]' || tr_fail "not cured by: $cure"
measures 'with the row'
tr_equal 'rows of the heartbeat table' 1 "$(tt_sql 'select count(*) from tailrace.heartbeat')"
tr_equal 'level of the finding' ok "$(finding level)"
tt_sql 'alter publication tailrace drop table tailrace.heartbeat'
tr_wait_until 20 '[ "$(logged "heartbeats are transactional messages: publication tailrace lacks table tailrace.heartbeat, and user reader may not add it")" = 1 ]' || tr_fail 'not published: still a row'
measures 'not published'
tt_sql "$(finding cure)"
tr_wait_until 20 '[ "$(logged "heartbeats are rows of their table again")" = 2 ]' || tr_fail 'published: still a message'
tt_stop
tt_sql 'revoke insert on tailrace.heartbeat from reader'
tt_run
tr_wait_until 20 '[ "$(logged "heartbeats are transactional messages: user reader may not write table tailrace.heartbeat")" = 1 ]' || tr_fail 'not writable: no message'
measures 'not writable'
tt_sql "$(finding cure)" 'alter role reader set default_transaction_read_only = on'
tt_stop
tt_run
tr_wait_until 20 '[ "$(logged "heartbeats are transactional messages: transactions of user reader are read-only")" -ge 1 ]' || tr_fail 'read-only: no message'
tt_sql "update t set v = 'read-only' where id = 1"
tt_equal public.t
measures 'read-only'
tr_equal 'definitions of the heartbeat' 1 "$(sqlite3 "$TR_TMP/state/control.db" "select count(*) from schema where table_id = (select table_id from tab where name = 'heartbeat')" 2>&1)"
tt_stop

tr_step 'a publication of ours needs no administrator'
tt_sql 'alter role reader reset default_transaction_read_only' 'drop schema tailrace cascade' 'drop publication tailrace' 'grant create on database shop to reader' \
    'alter table t owner to reader' 'alter table marker owner to reader'
sed -i 's/  create: false//' "$TT_YAML"
before=$(logged 'heartbeats are transactional messages')
tr_equal 'level of the finding' ok "$(finding level)"
tt_run
tt_live public.t public.marker
tt_equal public.t
measures 'a table of ours'
tr_equal 'logged' "$before" "$(logged 'heartbeats are transactional messages')"
tr_equal 'rows of the heartbeat table' 1 "$(tt_sql 'select count(*) from tailrace.heartbeat')"
tt_stop
tr_step 'done'
