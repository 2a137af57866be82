#!/usr/bin/env bash
# The wall clock of the machine that tailrace runs on is set forward and back by an hour, under load (libfaketime, which leaves the monotonic clock
# alone, as a step does). No row is lost, no timer stalls, lag is measured on, nothing is removed from the log before its time, and a lease that
# seems to have run out, or to be from the future, stops nobody.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' from generate_series(1, 500) g"
tt_config 'log: {segment_size: 1MiB, retention: 3h}'
clock() { # OFFSET
    printf '%s\n' "$1" >"$TR_TMP/clock.new"
    mv "$TR_TMP/clock.new" "$TR_TMP/clock"
}
run() {
    local lib
    lib=$(dpkg -L libfaketime | grep '/libfaketimeMT.so.1$')
    LD_PRELOAD=$lib FAKETIME_TIMESTAMP_FILE=$TR_TMP/clock FAKETIME_CACHE_DURATION=1 DONT_FAKE_MONOTONIC=1 tt_run
}
offset_of_clock() { tt_status | python3 -c 'import json, sys, time; print(round((json.load(sys.stdin)["now_us"] / 1e6 - time.time()) / 60))'; }
lag_ms() { tt_status | python3 -c 'import json, sys; print(max(k["lag_us"]["end_to_end"] for k in json.load(sys.stdin)["sinks"]) // 1000)'; }
beat() { tt_status | python3 -c 'import json, sys; print(min(k["lag_us"]["measured_us"] for k in json.load(sys.stdin)["sinks"]))'; }
log_field() { tt_status | python3 -c 'import json, sys; print(json.load(sys.stdin)["log"][sys.argv[1]])' "$1"; }
clock +0
run
tt_live public.t public.marker
tr_spawn load "$TR_PG_CLIENT/psql" -X -q -d "$TT_SHOP" -c "do \$\$ begin for i in 1..2000000 loop update t set n = n + 1, v = repeat(md5(i::text), 60) where id = 1 + i % 500; commit; perform pg_sleep(0.001); end loop; end \$\$"
step() { # OFFSET MINUTES
    local was
    tr_step "the clock is set to $1"
    clock "$1"
    tr_wait_until 10 "[ \"\$(offset_of_clock)\" = $2 ]" || tr_fail "tailrace's clock is at $(offset_of_clock) min"
    was=$(beat)
    tr_wait_until 5 "[ \"\$(beat)\" != $was ]" || tr_fail 'no heartbeats any more'
    tr_wait_until 10 '[ "$(lag_ms)" -lt 3000 ]' || tr_fail "the lag is $(lag_ms) ms"
    tt_mark
    tt_well
}
step +1h 60
step -1h -60
tr_step 'killed and started again with a lease from the future; then with one that has run out'
clock +1h
sleep 1
tt_kill
clock -1h
run
tt_mark
tt_kill
clock +1h
run
tt_mark
tt_well
tr_psql src -c "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like 'do %'" >/dev/null # its client's end would not end it
tr_kill load || true
tt_equal public.t
tr_wait_until 40 '[ "$(ps -o etimes= -p "$PID_tailrace")" -ge 33 ]' # retention has looked
tr_equal 'the oldest offset' 0 "$(log_field first_offset)"
[ "$(log_field segments)" -ge 2 ] || tr_fail 'there was nothing to remove'
tt_equal public.t
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
