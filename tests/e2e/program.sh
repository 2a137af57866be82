#!/usr/bin/env bash
# The program as a user meets it: init, check, run, status, table, log, help; the admin endpoint; what it says when something is wrong, and that
# it never says a password.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tr_pg_start 15 src
# shellcheck disable=SC2154
dsn="postgresql://postgres:S3cr%2475et@127.0.0.1:$PG_PORT_src/postgres"
tr_psql src -q -c "create table orders (id int primary key, what text)" -c "insert into orders select g, 'order ' || g from generate_series(1, 500) g" \
    -c "create table loose (a int)"
cd "$TR_TMP"
t() { "$TAILRACE" "$@"; }
code() { # EXPECTED COMMAND…: its exit code; the output in $TR_TMP/out
    local want=$1 got=0
    shift
    "$@" >"$TR_TMP/out" 2>&1 || got=$?
    [ "$got" = "$want" ] || { cat "$TR_TMP/out" >&2; tr_fail "$* ended with $got, not $want"; }
}
says() { grep -q -- "$1" "$TR_TMP/out" || { cat "$TR_TMP/out" >&2; tr_fail "it does not say: $1"; }; }

tr_step "init, check"
code 2 t
code 2 t runn
says "did you mean run? tailrace help lists all"
code 2 t frobnicate
says "no command 'frobnicate'; tailrace help lists all"
code 3 t run -c missing.yaml
says "tailrace init"
code 0 t init --dsn "$dsn"
says "2 tables found, 1 of them without a usable key. Next: export TAILRACE_DSN="
grep -q 'S3cr' tailrace.yaml && tr_fail "init wrote a password into a file"
code 1 t init --dsn "$dsn"
says "is there already"
code 3 t check
says "tailrace.yaml:[0-9]*: source.dsn needs the environment variable TAILRACE_DSN, which is not set: export TAILRACE_DSN="
code 6 t status
code 6 t table list
code 1 t table resume public.orders
says "nothing has run"
export TAILRACE_DSN=$dsn
port=$(tr_free_port)
sed -i "s/127.0.0.1:7171/127.0.0.1:$port/; s/mirror.db/$(printf '%s' "$TR_TMP" | sed 's,/,\\/,g')\\/mirror.db/" tailrace.yaml
code 0 t check
says "loose: it has no primary key"
code 0 t check --json
python3 -c 'import json,sys; d = json.load(open(sys.argv[1])); assert d["errors"] == 0 and d["findings"], d' "$TR_TMP/out"
sed 's/retention: 7d/retntion: 7d/' tailrace.yaml >bad.yaml
code 3 t check -c bad.yaml
says "bad.yaml:[0-9]*: unknown key log.retntion; did you mean retention"
sed 's/retention: 7d/retention: 7 parsecs/' tailrace.yaml >bad.yaml
code 3 t check -c bad.yaml
says "log.retention"
sed 's/type: sqlite/type: sqlight/' tailrace.yaml >bad.yaml
code 3 t check -c bad.yaml
says "there are: sqlite, postgres"
TAILRACE_DSN="postgresql://postgres:S3cr%2475et@127.0.0.1:1/postgres" code 4 t check
says "cure: check that the server runs"
for f in "" --man --markdown --schema; do code 0 t help config ${f:+"$f"}; done
python3 -c 'import json,sys; json.load(open(sys.argv[1]))' "$TR_TMP/out"
for c in init check run status table log help version; do code 0 t help $c; done
code 6 t status
says "nothing has run"

tr_step "run, status, the admin endpoint"
tr_spawn tailrace "$TAILRACE" run
live() { t status --json | python3 -c 'import json,sys; s = json.load(sys.stdin); x = [t["state"] for k in s["sinks"] for t in k["tables"]]; sys.exit(x != ["live"])'; }
tr_wait_until 30 live
lag_measured() { t status --json | python3 -c 'import json,sys; sys.exit("lag_us" not in json.load(sys.stdin)["sinks"][0])'; }
tr_wait_until 30 lag_measured
code 0 t status
says "1 of 1 table live"
says "lag .* ms = capture"
code 5 t run
says "locked by process [0-9]*: stop it first, or use another directory$"
(
    unset TAILRACE_DSN
    code 0 t status
    code 0 t table list
    code 0 t log verify
    code 3 t run
) || exit 1
get() { python3 -c 'import sys,urllib.request as u
try: r = u.urlopen(sys.argv[1], timeout=5)
except u.HTTPError as e: r = e
print(r.status); sys.stdout.write(r.read().decode())' "http://127.0.0.1:$port$1"; }
tr_equal "healthz" "200 ok" "$(get /healthz | xargs)"
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 15 '[ "$(get /readyz | head -1)" = 200 ]'
tr_equal "an unknown page" 404 "$(get /nothing | head -1)"
get /metrics | tail -n +2 | promtool check metrics || tr_fail "promtool refuses the metrics"
get /metrics >"$TR_TMP/metrics"
grep -q '^tailrace_end_to_end_lag_seconds{sink="lite"}' "$TR_TMP/metrics" || tr_fail "no lag metric"
code 0 t table list
says "public.loose .*changelog_only"
code 1 t table resume public.orders
says "is not paused"
code 1 t table resnapshot public.nothing
says "there is no table public.nothing"
code 0 t table resnapshot public.orders
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 'grep -c "snapshot complete" tailrace.log | grep -qx 2'
tr_wait_until 30 live
code 0 t log ls
code 0 t log ls --json
code 0 t log verify
says "sound"
code 0 t log cat --from 0 --count 3
python3 -c 'import json,sys; [json.loads(x) for x in open(sys.argv[1])]' "$TR_TMP/out"
tr_equal "rows in the mirror" 500 "$(sqlite3 mirror.db 'select count(*) from orders_live')"

tr_step "a sink whose mirror was removed is built anew; a foreign slot is refused"
tr_kill tailrace TERM || tr_fail "it did not stop cleanly"
rm -f mirror.db mirror.db-wal mirror.db-shm
tr_psql src -q -c "update orders set what = 'changed' where id = 7"
tr_spawn tailrace "$TAILRACE" run
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(sqlite3 mirror.db "select what from orders_live where id = 7" 2>/dev/null)" = changed ]'
# shellcheck disable=SC2016 # evaluated while waiting
tr_wait_until 30 '[ "$(sqlite3 mirror.db "select count(*) from orders_live" 2>/dev/null)" = 500 ]'
tr_kill tailrace TERM || tr_fail "it did not stop cleanly"
sed 's/state_dir: .*/state_dir: another/' tailrace.yaml >other.yaml
code 1 t run -c other.yaml
says "is another process's, or this is not its state directory"
grep -rl 'S3cr' "$TR_TMP"/*.log "$TR_TMP"/out tailrace-state 2>/dev/null && tr_fail "a password was written"
code 6 t status
says "stopped at offset"
grep heartbeat "$TR_TMP/out" && tr_fail "the heartbeat table is among the tables"
tr_step "done"
