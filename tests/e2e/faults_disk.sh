#!/usr/bin/env bash
# Full disks: under the change log, under a spill file, under the control store, under the SQLite mirror. Each is told by name, nothing more is
# confirmed to the source, which keeps its WAL, the sinks go on with what they can have, and once there is space all go on by themselves.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

[ "$(id -u)" -eq 0 ] || tr_skip 'mounting needs root'
disk() { # DIRECTORY SIZE
    mkdir -p "$1"
    mount -t tmpfs -o "size=$2" tailrace-e2e "$1"
    TR_AT_END+=("umount '$1'")
}
fill() { # DIRECTORY [KILOBYTES LEFT]
    local left
    left=$(df -k --output=avail "$1" | tail -n 1)
    head -c "$(((left - ${2:-0}) * 1024))" /dev/zero >"$1/ballast" 2>/dev/null || true
}
free() { rm -f "$1/ballast"; }
slot() { tr_psql src -c "select $1 from pg_replication_slots where slot_name = 'tailrace'"; }

disk "$TR_TMP/state" 24m
disk "$TR_TMP/state/log" 48m
disk "$TR_TMP/lite" 64m
tt_start "${1:-15}" 'logical_decoding_work_mem = 64kB'
TT_LITE_FILE=$TR_TMP/lite/mirror.db
tt_sql 'create table t (id int primary key, v text)' 'alter table t alter v set storage external' "insert into t select g, 'v' from generate_series(1, 100) g"
TT_SOURCE='  stream_memory: 1MiB'
tt_config 'log: {segment_size: 1MiB, size_max: 24MiB}'
tt_run
tt_live public.t public.marker
tt_equal public.t

# load FROM KILOBYTES: rows of 4 kB, a transaction each 25
load() {
    tt_sql "do \$\$ begin for i in 1..$2/100 loop insert into t select $1 + i * 25 + g, repeat(md5(i::text), 128) from generate_series(1, 25) g; commit; end loop; end \$\$"
}
# stands LSN: capture has not confirmed that, and the source keeps the WAL from before it
stands() {
    tr_equal "the slot stands before $1" t "$(slot "confirmed_flush_lsn < '$1' and restart_lsn <= confirmed_flush_lsn and wal_status in ('reserved', 'extended')")"
}
now() { tr_psql src -c 'select pg_current_wal_insert_lsn()'; }

tr_step 'the change log'
fill "$TR_TMP/state/log"
load 1000 4000
lsn=$(now)
tt_trouble capture 'No space left on device'
tt_told 'WARN.*No space left on device'
sleep 1
stands "$lsn"
tr_equal 'the sinks' 'running| running|' "$(tt_units | sed 1d | cut -d'|' -f2- | xargs -d '\n')"
free "$TR_TMP/state/log"
tt_equal public.t
tt_well
tt_told 'running again after|well again after'
tr_wait_until 20 "[ \"\$(slot \"confirmed_flush_lsn >= '$lsn'\")\" = t ]" || tr_fail 'nothing is confirmed any more'

tr_step 'the spill file of a transaction that is streamed: the control store has room, the spill has not'
fill "$TR_TMP/state" 3000
tt_sql "insert into t select 10000 + g, repeat(md5(g::text), 128) from generate_series(1, 3000) g"
lsn=$(now)
tt_trouble capture 'spill-[0-9]+.*No space left on device'
sleep 3
again=$(grep -c 'WARN.*spill-.*No space left' "$TR_TMP/tailrace.log")
[ "$again" -le 2 ] || tr_fail "the same trouble is told $again times within 3 s"
tt_trouble capture 'spill-[0-9]+.*No space left on device' 1
stands "$lsn"
tr_equal 'rows of a transaction that is not complete' 0 "$(tt_lite 'select count(*) from t where id > 10000')"
tr_equal 'the sinks' 'running| running|' "$(tt_units | sed 1d | cut -d'|' -f2- | xargs -d '\n')"
free "$TR_TMP/state"
tt_equal public.t
tt_well

tr_step 'the control store, which has to note wide tables'
fill "$TR_TMP/state"
for i in 1 2 3 4; do
    # shellcheck disable=SC2046 # one word for each column
    tt_sql "create table wide$i (id int primary key, $(printf 'a_column_whose_name_is_as_long_as_they_may_be_%03d int, ' $(seq 95)) n int)" "insert into wide$i values (1)"
done
load 20000 2000
tt_trouble capture 'control store .*: database or disk is full'
for _ in 1 2 3 4 5 6; do # each makes it look at the tables
    "$TAILRACE" table resnapshot public.marker -c "$TT_YAML" >/dev/null 2>&1 || true
    sleep 0.3
done
told=$(grep -c 'WARN *snapshot: control store' "$TR_TMP/tailrace.log" || true)
[[ $told -ge 1 && $told -le 6 ]] || tr_fail "the same trouble is told $told times"
lsn=$(now)
stands "$lsn"
free "$TR_TMP/state"
tt_live public.wide1 public.wide2 public.wide3 public.wide4
tt_equal public.t public.wide1 public.wide2 public.wide3 public.wide4
tt_well

tr_step 'the SQLite mirror'
tt_lite 'pragma wal_checkpoint(truncate)' >/dev/null # or what is written goes into a file that is long enough
fill "$TR_TMP/lite"
load 30000 4000
tt_trouble lite '(full|No space)'
TT_MARK=$((TT_MARK + 1))
tt_sql "insert into marker values ($TT_MARK)"
tr_wait_until 20 '[ "$(tt_mirror "select count(*) from marker where id = $TT_MARK")" = 1 ]' || tr_fail 'the other sink does not go on'
lsn=$(now)
tr_wait_until 20 "[ \"\$(slot \"confirmed_flush_lsn >= '$lsn'\")\" = t ]" || tr_fail 'capture does not go on'
free "$TR_TMP/lite"
tt_equal public.t
tt_well
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
