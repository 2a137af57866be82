#!/usr/bin/env bash
# Three in the morning, with nothing but metrics, probes, status and the log: what they say while a table is paused, the source is away, a
# drain takes its time; and what check and run say of a source that is not as it was.
# shellcheck disable=SC2013,SC2016 # names without blanks; evaluated while waiting
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
tr_psql src -q -c "create table t (id int primary key, v text)" -c "insert into t select g, 'v' from generate_series(1, 100) g" -c "create table other (id int primary key)" \
    -c "create table loose (a int)" -c "create table sqlite_notes (id int primary key)"
cd "$TR_TMP"
# shellcheck disable=SC2154 # set by tr_pg_start
dsn=$PG_DSN_src
port=$(tr_free_port)
cat >tailrace.yaml <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $dsn
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db, exclude: ['public.sqlite_*']}
engine: {heartbeat: 1s, commit_interval: 1s, drain_timeout: 12s}
admin: {listen: 127.0.0.1:$port}
YAML
t() { "$TAILRACE" "$@"; }
code() { # EXPECTED COMMAND…: its exit code; the output in $TR_TMP/out
    local want=$1 got=0
    shift
    "$@" >"$TR_TMP/out" 2>&1 || got=$?
    [ "$got" = "$want" ] || { cat "$TR_TMP/out" >&2; tr_fail "$* ended with $got, not $want"; }
}
says() { grep -Eq -- "$1" "${2:-$TR_TMP/out}" || { cat "${2:-$TR_TMP/out}" >&2; tr_fail "it does not say: $1"; }; }
get() { python3 -c 'import sys,urllib.request as u
try: r = u.urlopen(sys.argv[1], timeout=5)
except u.HTTPError as e: r = e
print(r.status); sys.stdout.write(r.read().decode())' "http://127.0.0.1:$port$1"; }
metric() { get /metrics | awk -v m="$1" '$1 == m { print $2 }'; }
is() { [ "$(metric "$1")" = "$2" ]; }
json() { t status --json | python3 -c "import json,sys; s = json.load(sys.stdin); print($1)"; }
ready() { [ "$(get /readyz | head -1)" = "$1" ]; }
count() { grep -Ec -- "$1" tailrace.log || true; }

tr_step "check before anything: what has no mirror"
code 0 t check
says 'loose: .*no primary key, so it can have no mirror; and no sink has it in its changelog: nothing of it is kept'
says "cure: .*or, for its history alone, changelog: \['public.loose'\] in a sink"
says 'nothing has been captured yet: at the first start slot tailrace is made'
sed "s/, exclude: .*\]}/}/" tailrace.yaml >names.yaml
code 0 t check -c names.yaml
says 'public.sqlite_notes: SQLite keeps names'
if grep -q 'matches no table' out; then tr_fail "a pattern that matches is complained of"; fi
sed "s/tables: .*/tables: ['public.*', public.othr, 'shop.*']/; s/, exclude: .*\]}/, tables: [public.t, oter], exclude: [public.sqlite_x], changelog: [public.ordres], hard_delete: [public.lose]}/" tailrace.yaml >names.yaml
code 0 t check -c names.yaml
says "warning .*source.tables: 'public.othr' matches no table of the source"
says "cure: did you mean public.other\?"
says "warning .*source.tables: 'shop.\*' matches no table of the source"
says "warning .*sinks\[lite\].tables: 'oter' matches no table that is captured"
says "cure: did you mean other\?"
says "note .*sinks\[lite\].exclude: 'public.sqlite_x' matches no table"
says "warning .*sinks\[lite\].changelog: 'public.ordres' matches no table"
says "warning .*sinks\[lite\].hard_delete: 'public.lose' matches no table"

tr_step "all well"
tr_spawn tailrace "$TAILRACE" run
tr_wait_until 20 "is 'tailrace_tables{pipeline=\"lite\",state=\"live\"}' 2 && ready 200"
tr_wait_until 5 "is 'tailrace_tables{pipeline=\"capture\",state=\"changelog_only\"}' 1 && is 'tailrace_tables{pipeline=\"capture\",state=\"live\"}' 3"
tr_equal "up" "1 1" "$(metric 'tailrace_pipeline_up{pipeline="capture"}') $(metric 'tailrace_pipeline_up{pipeline="lite"}')"
tr_equal "alarms" "0 0" "$(metric 'tailrace_alarms{kind="table"}') $(metric 'tailrace_alarms{kind="lag"}')"
says 'is not mirrored: it has no replica identity.*changelog: .*public.loose' tailrace.log
tr_equal "modes of mirror and control store" "600 640" "$(stat -c %a mirror.db state/control.db | xargs)"
get /metrics >metrics
for m in $(grep -o '^| `tailrace_[a-z_]*' "$TR_SOURCE_ROOT/docs/metrics.md" | grep -v tailrace_stage_ | tr -d '|` '); do
    says "^# TYPE $m " metrics
done
sed -n '/^```yaml/,/^```$/{p;/^```$/q}' "$TR_SOURCE_ROOT/docs/operations.md" | sed '/^```/d' >rules.yaml
promtool check rules rules.yaml >out || { cat out >&2; tr_fail "the alert rules of docs/operations.md"; }
for m in $(grep -o 'tailrace_[a-z_]*' rules.yaml | sort -u); do
    says "^# TYPE $m " metrics
done
code 0 t check
says 'being read by the tailrace that runs'

tr_step "a table is paused"
sqlite3 mirror.db 'drop view other_live; drop table other'
tr_psql src -q -c "insert into other values (1)"
tr_wait_until 20 "is 'tailrace_tables{pipeline=\"lite\",state=\"paused\"}' 1 && is 'tailrace_alarms{kind=\"table\"}' 1" || tr_fail "no metric of a pause"
tr_equal "since when" True "$(json '0 < s["now_us"] - [x for x in s["sinks"][0]["tables"] if x["name"] == "public.other"][0]["since_us"] < 60e6')"
code 0 t status
says 'public.other +paused +for [0-9]+ s: '
says 'ALARM table lite/public.other for [0-9]+ s'
code 1 t table resume public.othr
says 'there is no table public.othr .*did you mean public.other\?'
code 1 t table resume other --sink lite
says 'did you mean public.other\?'
code 1 t table resume public.other --sink lit
says 'there is no sink lit .*did you mean lite\?'
code 2 t table resnapshot public.other --sink lite
says 'there is no --sink here'
code 0 t table resnapshot public.other
tr_wait_until 20 "is 'tailrace_tables{pipeline=\"lite\",state=\"paused\"}' 0 && is 'tailrace_alarms{kind=\"table\"}' 0 && ready 200"

tr_step "a process that is stopped is not one that does not run"
# shellcheck disable=SC2154 # set by tr_spawn
kill -STOP "$PID_tailrace"
code 6 t status
says "a process listens on admin.listen, 127.0.0.1:$port, but does not answer within 5 s \\(state directory $TR_TMP/state\\): is it stopped"
if grep -q 'not running' out; then tr_fail "status says that it does not run"; fi
kill -CONT "$PID_tailrace"
tr_wait_until 10 'ready 200'

tr_step "the source is away"
tr_pg_stop src fast
tr_wait_until 15 'ready 503' || tr_fail "ready without a source"
get /readyz >out
says '^capture: .*source: '
tr_equal "alive" 200 "$(get /healthz | head -1)"
tr_wait_until 5 "is 'tailrace_pipeline_up{pipeline=\"capture\"}' 0 && is 'tailrace_pipeline_up{pipeline=\"lite\"}' 1" || tr_fail "the metric does not say which is away"
sleep 4
code 0 t status
says 'trouble for [0-9]+ s: source: '
says 'lag at least [0-9.]+ s: no heartbeat came through for [0-9]+ s'
tr_equal "status and metric of the lag" True "$(json "abs(s['sinks'][0]['lag_us']['end_to_end'] / 1e6 - $(metric 'tailrace_end_to_end_lag_seconds{sink="lite"}')) < 1.5")"
tr_equal "capture's trouble has a beginning" True "$(json '3e6 < s["now_us"] - s["capture"]["error_since_us"] < 60e6')"
tr_pg_restart src
tr_wait_until 30 'ready 200'
tr_equal "lines at the beginning, the end" "1 1" "$(count 'WARN  engine: .*pipeline=capture who=\S*.lane 0') $(count 'INFO  engine: well again after [0-9.]+ s pipeline=capture')"
tr_equal "of the heartbeat" "1 1" "$(count 'WARN  heartbeat:') $(count 'INFO  heartbeat: works again after')"

tr_step "a drain that takes its time"
python3 -c 'import sqlite3, time
c = sqlite3.connect("mirror.db", timeout=5, isolation_level=None)
c.execute("begin immediate")
print("locked", flush=True)
time.sleep(8)' >lock.out &
locker=$!
tr_wait_until 8 'grep -q locked lock.out'
tr_psql src -q -c "update t set v = 'w'"
sleep 1
kill -TERM "$PID_tailrace"
draining() { [ "$(json 's["state"] + " " + s["sinks"][0]["state"]' 2>/dev/null)" = "draining draining" ]; }
tr_wait_until 5 draining || tr_fail "status does not say that it drains"
code 0 t status
says '^draining for [0-9]+ s'
ready 503
code 0 t table resnapshot public.t
says 'tailrace is stopping'
says 'the request is kept'
wait "$PID_tailrace" || tr_fail "it did not stop cleanly"
wait "$locker"
says 'service: draining: [0-9]+ bytes on their way to being durable, for at most 12 s unit=lite' tailrace.log
says 'service: still draining: .*unit=lite' tailrace.log
tr_equal "what was in flight" w "$(sqlite3 mirror.db 'select v from t where id = 7')"

tr_step "stopped"
for what in "table list" "status"; do
    # shellcheck disable=SC2086 # two words
    code 6 t $what
    says "not running \(state directory $TR_TMP/state\): .*start it with: tailrace run"
done
code 1 t table resnapshot public.nothing
says 'there is no table public.nothing'
for what in "status x" "check x" "run x" "init --dsn x y" "log ls x" "table list x" "version x" "help run x"; do
    # shellcheck disable=SC2086 # words
    code 2 t $what
    says "one argument too many|it takes no table"
done
code 2 t status --interval x
says "interval takes seconds"
code 2 t log ls --from 3
code 1 t log cat --from 99999999
says 'beyond the end of the log: the next offset will be [0-9]+'

tr_step "a slot that somebody reads, that is gone, that was not ours"
tr_spawn reader /usr/lib/postgresql/15/bin/pg_recvlogical -d "$dsn" --slot tailrace --start -f - -o proto_version=1 -o publication_names=tailrace
reads() { [ "$(tr_psql src -c 'select active from pg_replication_slots')" = t ]; }
tr_wait_until 10 reads
code 4 t check
says 'error .*slot tailrace is in use by server process [0-9]+, and no tailrace answers'
tr_kill reader TERM || true
tr_wait_until 10 '! reads'
sed "s,state_dir: .*,state_dir: $TR_TMP/another," tailrace.yaml >another.yaml
code 4 t check -c another.yaml
says "error .*not in this state directory's ledger"
tr_psql src -q -c "select pg_drop_replication_slot('tailrace')" >/dev/null
code 0 t check
says 'warning .*a new epoch begins, and every table is snapshotted anew: slot tailrace is gone'

tr_step "wal_level, in the same words"
tr_psql src -q -c "drop publication tailrace" -c "alter system set wal_level = replica"
tr_pg_restart src
code 4 t check -c another.yaml
says 'wal_level is replica'
says "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL"
code 1 timeout 20 "$TAILRACE" run -c another.yaml
says "ERROR service: source: wal_level is replica; cure: ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL"
says 'INFO  postgres: .*insufficient.* connection=source severity=WARNING'
if grep -Eq '^(WARNING|NOTICE|DETAIL|HINT):' out; then tr_fail "a notice was printed as it came"; fi
tr_step "done"
