#!/usr/bin/env bash
# What can befall a mirror: its server stopped, read-only, its SQLite file locked by another program or read-only; and a sink that is away while the
# log reaches its size bound: that one is gapped, loudly, and is built anew by new snapshots; the others go on all the time. A second process on one
# configuration is refused and the first does not notice.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
mkdir "$TR_TMP/lite"
TT_LITE_FILE=$TR_TMP/lite/mirror.db
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' from generate_series(1, 200) g" 'create table nk (a int)' 'alter table nk replica identity full'
TT_LITE="    changelog: ['public.nk']"
TT_PG="    changelog: ['public.nk']
    max_inflight: 1MiB
    batch_size: 64KiB"
tt_config 'log: {segment_size: 1MiB, size_max: 4MiB}'
tt_run
tt_live public.t public.marker
tt_equal public.t

change() { tt_sql "update t set n = n + 1 where id % 3 = $((RANDOM % 3))" "insert into nk values (1)"; }
both() {
    TT_MARK=$((TT_MARK + 1))
    tt_sql "insert into marker values ($TT_MARK)"
}
lite_goes_on() {
    both
    tr_wait_until 20 '[ "$(tt_lite "select count(*) from marker where id = $TT_MARK")" = 1 ]' || tr_fail 'the SQLite mirror does not go on'
    tr_equal 'the SQLite sink' 'running|' "$(tt_units | sed -n 's/^lite|//p')"
}
pg_goes_on() {
    both
    tr_wait_until 20 '[ "$(tt_mirror "select count(*) from marker where id = $TT_MARK")" = 1 ]' || tr_fail 'the PostgreSQL mirror does not go on'
    tr_equal 'the PostgreSQL sink' 'running|' "$(tt_units | sed -n 's/^pg|//p')"
}

tr_step 'a second process on the same configuration'
code=0
"$TAILRACE" run -c "$TT_YAML" >"$TR_TMP/second.log" 2>&1 || code=$?
tr_equal 'exit code' 5 "$code"
grep -q "locked by process $PID_tailrace" "$TR_TMP/second.log" || tr_fail "it does not say who has the lock: $(cat "$TR_TMP/second.log")"
change
tt_equal public.t

tr_step 'the server of the PostgreSQL mirror is stopped'
tr_pg_stop dst
change
tt_trouble pg 'sink pg: .*Connection refused'
lite_goes_on
sleep 5
change
tr_pg_restart dst
tt_equal public.t
tt_well
tt_told 'INFO.*well again after.*who=pg'

tr_step 'it is read-only'
tr_psql dst -c 'alter system set default_transaction_read_only = on' -c 'select pg_reload_conf()' >/dev/null
tr_psql dst -c "set default_transaction_read_only = off; select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tailrace sink'" >/dev/null
change
tt_trouble pg 'sink pg: .*read-only transaction'
lite_goes_on
tr_psql dst -c 'set default_transaction_read_only = off' -c 'alter system reset default_transaction_read_only' -c 'select pg_reload_conf()' >/dev/null
tt_equal public.t
tt_well

tr_step 'another program has locked the SQLite file'
mkfifo "$TR_TMP/locker"
sqlite3 "$TT_LITE_FILE" <"$TR_TMP/locker" >"$TR_TMP/locker.log" 2>&1 &
TR_PIDS+=("$!")
TR_PID_NAMES+=(locker)
exec {locker}>"$TR_TMP/locker"
printf '.timeout 10000\nbegin exclusive;\nselect 1;\n' >&"$locker"
tr_wait_until 10 "grep -q 1 '$TR_TMP/locker.log'"
change
tt_trouble lite 'sink lite: .*locked'
pg_goes_on
printf 'commit;\n' >&"$locker"
exec {locker}>&-
tt_equal public.t
tt_well

tr_step 'a sink is away while the log reaches its size bound'
tr_pg_stop dst
change
tt_trouble pg 'Connection refused'
for _ in $(seq 24); do
    tt_sql "update t set n = n + 1, v = repeat(md5(random()::text), 60) where id <= 150"
done
tt_sql 'delete from t where id <= 20'
gone() { tt_status | python3 -c 'import json, sys; s = json.load(sys.stdin); sys.exit(s["log"]["first_offset"] <= [k["offset"] for k in s["sinks"] if k["name"] == "pg"][0])'; }
tr_wait_until 60 gone || tr_fail 'the log keeps what is beyond its bound'
[ "$(du -sm "$TR_TMP/state/log" | awk '{ print $1 }')" -le 8 ] || tr_fail 'the log has outgrown its bound'
lite_goes_on
"$TAILRACE" status -c "$TT_YAML" >"$TR_TMP/status.log"
grep -Eq '^sink pg .* frames behind, the first [0-9]+ of them no longer in the log' "$TR_TMP/status.log" || tr_fail "status does not say that the sink is no longer covered: $(cat "$TR_TMP/status.log")"
tr_pg_restart dst
tt_told 'ERROR.*apply: gapped: the sink stopped at offset [0-9]+ and the log now begins at [0-9]+; asking for new snapshots of its tables sink=pg'
tt_live public.t public.marker
tt_equal public.t
tt_well
alarms() { tt_status | python3 -c 'import json, sys; print(*[a["kind"] + "|" + a["subject"] for a in json.load(sys.stdin)["alarms"]])'; }
tr_wait_until 10 '[ "$(alarms)" = "changelog|pg/public.nk" ]' || tr_fail "the alarms are: $(alarms)"
"$TAILRACE" table resume public.nk --sink pg -c "$TT_YAML" >/dev/null
tr_wait_until 10 '[ -z "$(alarms)" ]' || tr_fail "the alarms are: $(alarms)"
tr_equal 'snapshots of t: the first, and the one that closed the gap' 2 "$(grep -c 'snapshot complete: .*table=public.t$' "$TR_TMP/tailrace.log")"

tr_step 'the directory of the SQLite mirror is read-only'
tt_stop
writable() { # yes|no
    if [ "$(id -u)" -ne 0 ]; then
        chmod "$([ "$1" = yes ] && echo 700 || echo 500)" "$TR_TMP/lite"
    elif [ "$1" = no ]; then
        mount --bind -o ro "$TR_TMP/lite" "$TR_TMP/lite"
        TR_AT_END+=("umount '$TR_TMP/lite' 2>/dev/null")
    else
        umount "$TR_TMP/lite"
    fi
}
writable no
tt_run
tt_trouble lite 'sink lite: .*(readonly|unable to open|read-only)'
change
pg_goes_on
writable yes
tt_equal public.t
tt_well
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
