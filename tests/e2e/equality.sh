#!/usr/bin/env bash
# The equality run: a randomised workload on a real PostgreSQL (argument: 15 or 18) while tailrace is killed with SIGKILL at least 20 times, at
# least 5 of them during snapshots and 5 between a sink's write and its offset, and PostgreSQL is restarted twice, once by crash. Then both
# mirrors equal the source value by value, the changelog tables hold every committed change exactly once (counted against a second slot read by
# test_decoding), and no look at a mirror ever saw half a transaction.
#
#   equality.sh VERSION [SEED] [KILLS PER PHASE] [--clickhouse[=18]]   the seed steers the workload and the moments; it does not make a run repeat exactly
#
# --clickhouse adds a mirror in ClickHouse 26 (or 18.16), which is killed, too, twice a phase; read with FINAL, it ends equal as well.
#
# With more than 20 kills per phase (make torture) other mishaps come between them: connections ended by the server, both servers crashed, a mirror
# that is read-only or locked, tailrace stopped for longer than wal_sender_timeout, ClickHouse killed or stopped, new snapshots. With fewer than 7 (the short
# form) the large transaction has 20,000 rows instead of a million, and pgbench's accounts are 10,000.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
clickhouse=
for a in "$@"; do
    case $a in
    --clickhouse) clickhouse=26 ;;
    --clickhouse=*) clickhouse=${a#*=} ;;
    *) continue ;;
    esac
    set -- "${@:1:$#-1}" # the last of them
done
version=$1
seed=${2:-${TR_SEED:-1}}
[ "$seed" = random ] && seed=$RANDOM
per_phase=${3:-7}
tr_step "PostgreSQL $version, seed $seed (bash tests/e2e/equality.sh $version $seed)"
RANDOM=$seed

tr_pg_start "$version" src 'logical_decoding_work_mem = 1MB' 'max_wal_size = 4GB'
tr_pg_start 15 dst
[ -z "$clickhouse" ] || tr_ch_start "$clickhouse" ch
tr_psql src -q -c "create database shop"
# shellcheck disable=SC2154
shop=$(printf '%s' "$PG_DSN_src" | sed 's/dbname=postgres/dbname=shop/')
# shellcheck disable=SC2154
mirror=$PG_DSN_dst
lite=$TR_TMP/mirror.db
sql() { psql -X -q -v ON_ERROR_STOP=1 -d "$shop" "$@"; }

pgbench -i -q -s 1 "$shop" >/dev/null 2>&1 || tr_fail "pgbench -i"
accounts=$((per_phase < 7 ? 10000 : 100000))
sql -c "delete from pgbench_accounts where aid > $accounts"
cat >"$TR_TMP/bank.sql" <<SQL
\\set aid random(1, $accounts)
\\set bid random(1, 1)
\\set tid random(1, 10)
\\set delta random(-5000, 5000)
begin;
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
select abalance from pgbench_accounts where aid = :aid;
update pgbench_tellers set tbalance = tbalance + :delta where tid = :tid;
update pgbench_branches set bbalance = bbalance + :delta where bid = :bid;
insert into pgbench_history (tid, bid, aid, delta, mtime) values (:tid, :bid, :aid, :delta, current_timestamp);
end;
SQL
sql <<'SQL'
alter table pgbench_history add column hid bigserial primary key;
create table item (id bigint primary key, grp int, a text, b numeric(12, 3), big text);
alter table item alter big set storage external;
create table pair (k1 int, k2 text, v text, big text, primary key (k1, k2));
alter table pair alter big set storage external;
create table doc (name text primary key, body text, n int);
alter table doc alter body set storage external;
create table ev (id bigint primary key, kind text, payload text) partition by range (id);
create table ev_a partition of ev for values from (0) to (1000);
create table ev_b partition of ev for values from (1000) to (2000);
create table ev_c partition of ev for values from (2000) to (3000);
create table nokey (a int, b text);
alter table nokey replica identity full;
create table short (id int primary key, v text);
create table hard (id int primary key, v text, big text);
alter table hard alter big set storage external;
create table bulk (id int primary key, v text);
insert into item select g, g % 10, 'start', g, repeat(md5(g::text), 80) from generate_series(1, 300) g;
insert into doc select 'doc ' || g, repeat(md5(g::text), 80), 0 from generate_series(1, 60) g;
insert into ev select g, 'k', 'start' from generate_series(0, 2999, 3) g;
insert into hard select g, 'start', repeat(md5(g::text), 80) from generate_series(1, 100, 2) g;
insert into bulk select g, 'start' from generate_series(1, 20000) g;
SQL
tables="public.pgbench_accounts public.pgbench_tellers public.pgbench_branches public.pgbench_history public.item public.pair public.doc public.ev public.short public.hard public.bulk public.late"

cat >"$TR_TMP/eq.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $shop
  tables: ['public.*']
  exclude: ['public.ev_*']
sinks:
  - {name: lite, type: sqlite, path: $lite, changelog: ['public.item', 'public.pair', 'public.ev', 'public.nokey', 'public.hard', 'public.short'], hard_delete: ['public.hard']}
  - {name: pg, type: postgres, dsn: $mirror, changelog: ['public.item', 'public.pair', 'public.ev', 'public.nokey', 'public.hard', 'public.short'], hard_delete: ['public.hard']}
$([ -z "$clickhouse" ] || echo "  - {name: ch, type: clickhouse, urls: [$(tr_get CH_URL ch)], database: shop, changelog: ['public.item', 'public.pair', 'public.ev', 'public.nokey', 'public.hard', 'public.short']}")
snapshot: {chunk_rows: 400, workers: 2}
engine: {heartbeat: 1s, commit_interval: 300ms}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML

sinks=$((clickhouse ? 3 : 2))
kills=0
start() { TAILRACE_FAILPOINTS=${1:-} tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/eq.yaml"; }
kill9() {
    tr_kill tailrace KILL || true
    kills=$((kills + 1))
}
nap() { sleep "$(awk -v r=$((RANDOM % 1000)) -v lo="$1" -v hi="$2" 'BEGIN { print lo + (hi - lo) * r / 1000 }')"; }
status_is() { # what every table of every sink must be, e.g. all live
    "$TAILRACE" status -c "$TR_TMP/eq.yaml" --json 2>/dev/null | python3 -c '
import json, sys
s = json.load(sys.stdin)
t = [x for k in s["sinks"] for x in k["tables"]]
sys.exit(0 if len(t) >= int(sys.argv[1]) and all(x["state"] == "live" for x in t) else 1)' "$1"
}

ch_kills=0
kill_clickhouse() {
    [ -n "$clickhouse" ] || return 0
    tr_kill ch KILL || true
    ch_kills=$((ch_kills + 1))
    nap 0 1.5
    tr_ch_restart ch
}

mishaps=0
mishap() {
    [ "$per_phase" -gt 20 ] || return 0
    mishaps=$((mishaps + 1))
    case $((RANDOM % (clickhouse ? 12 : 9))) in
    0) sql -c "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tailrace%'" >/dev/null || true ;;
    1) psql -X -q -d "$mirror" -c "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tailrace%'" >/dev/null || true ;;
    2) tr_pg_restart dst immediate ;;
    3) tr_pg_crash src && tr_pg_restart src ;;
    4)
        # shellcheck disable=SC2154 # tr_spawn sets it
        kill -STOP "$PID_tailrace"
        nap 1 14 # wal_sender_timeout is 10 s
        kill -CONT "$PID_tailrace"
        ;;
    5)
        psql -X -q -d "$mirror" -c 'alter system set default_transaction_read_only = on' -c 'select pg_reload_conf()' >/dev/null
        nap 1 4
        psql -X -q -d "$mirror" -c 'set transaction_read_only = off' -c 'alter system reset default_transaction_read_only' -c 'select pg_reload_conf()' >/dev/null
        ;;
    6) printf 'begin exclusive;\n.shell sleep 2\n' | sqlite3 "$lite" || true ;;
    7) "$TAILRACE" table resnapshot "public.$(shuf -n 1 -e item pair doc hard ev --random-source=<(yes "$RANDOM"))" -c "$TR_TMP/eq.yaml" >/dev/null 2>&1 || true ;;
    8) nap 0.1 1 ;;
    9) kill_clickhouse ;;
    10)
        # shellcheck disable=SC2154 # tr_spawn sets it
        kill -STOP "$PID_ch"
        nap 0.5 4
        kill -CONT "$PID_ch"
        ;;
    11) tr_ch_restart ch ;;
    esac
}

# the judge: a second slot, made before the workload begins
sql -c "select pg_create_logical_replication_slot('judge', 'test_decoding')" >/dev/null

writers() { # endless, until $TR_TMP/stop is there
    local n=$1 i=0
    while [ ! -e "$TR_TMP/stop" ]; do
        i=$((i + 1))
        # a transaction that was prepared when the server went away belongs to nobody any more, and holds its locks; one that is prepared only after this look runs into the timeout
        for g in $(psql -X -A -t -d "$shop" -c "select gid from pg_prepared_xacts where gid like 'w${n}_%'" 2>/dev/null); do
            psql -X -q -d "$shop" -c "rollback prepared '$g'" >/dev/null 2>&1 || true
        done
        python3 "$TR_E2E_DIR/workload.py" $((seed * 1000 + n * 100000 + i)) 40 "w${n}" 2>/dev/null | PGOPTIONS='-c lock_timeout=10s' psql -X -q -d "$shop" >/dev/null 2>&1 || sleep 0.3
        sleep 0.1
    done
}
bank() {
    while [ ! -e "$TR_TMP/stop" ]; do
        pgbench -n -c 2 -T 5 -R 150 -f "$TR_TMP/bank.sql" "$shop" >/dev/null 2>&1 || sleep 0.3
    done
}

tr_step "phase 1: snapshots under load, with $per_phase kills"
start
tr_wait_until 20 "tr_psql src -c \"select 1 from pg_replication_slots where slot_name = 'tailrace'\" | grep -q 1"
writers 1 & w1=$!
writers 2 & w2=$!
bank & w3=$!
TR_PIDS+=("$w1" "$w2" "$w3")
TR_PID_NAMES+=(writers1 writers2 bank)
for i in $(seq "$per_phase"); do
    nap 0.4 2.0
    kill9
    start
    mishap
    case $i in 1 | 5) kill_clickhouse ;; esac
    [ "$i" = 3 ] && sql -c "alter table item add column c1 text" -c "alter table ev add column extra int default 7"
done
tr_wait_until 90 'status_is '$((11 * sinks))'' || tr_fail "the snapshots did not complete: $("$TAILRACE" status -c "$TR_TMP/eq.yaml")"
tr_spawn watch python3 "$TR_E2E_DIR/watch_sums.py" "$lite" "$mirror" "$TR_TMP/sums"

million=$((per_phase < 7 ? 20000 : 1000000))
tr_step "phase 2: streaming, with $per_phase kills, $million rows in one transaction, PostgreSQL restarted and crashed"
sql -c "begin; insert into bulk select g, 'million' from generate_series(20001, 20000 + $million) g; update bulk set v = 'done' where id % 1000 = 0; commit" &
bulk=$!
sql -c "alter table item add column c2 int default 42" -c "create table late (id int primary key, v text); insert into late select g, 'late' from generate_series(1, 5000) g"
for i in $(seq "$per_phase"); do
    nap 0.5 2.5
    kill9
    start
    mishap
    [ "$i" = 3 ] && wait "$bulk" && tr_pg_restart src
    [ "$i" = 5 ] && tr_pg_crash src && tr_pg_restart src
    case $i in 2 | 6) kill_clickhouse ;; esac
    [ "$i" = 2 ] && "$TAILRACE" table resnapshot public.doc -c "$TR_TMP/eq.yaml" >/dev/null 2>&1
done

tr_step "phase 3: killed $per_phase times between a sink's write and its offset"
for i in $(seq "$per_phase"); do
    kill9
    kills=$((kills - 1)) # this one only makes room for the armed one
    case $((i % 3)) in
    0) start "apply.before_offset=kill:$((1 + RANDOM % 5))" ;;
    1) start "sink.after_commit=kill:$((1 + RANDOM % 20))" ;;
    2) start "sink.before_commit=kill:$((1 + RANDOM % 20))" ;;
    esac
    tr_wait_until 180 '! tr_alive tailrace' || tr_fail "the fault point was not met" # the million rows may still be on their way
    kills=$((kills + 1))
    case $i in 1 | 4) kill_clickhouse ;; esac
    start
    nap 0.2 1
done
[ "$per_phase" -ge 3 ] || wait "$bulk" # the third kill waited for it

tr_step "the load ends after $kills kills and $mishaps other mishaps, ClickHouse killed $ch_kills times"
touch "$TR_TMP/stop"
wait "$w1" "$w2" "$w3" || true
for g in $(sql -A -t -c "select gid from pg_prepared_xacts"); do sql -c "rollback prepared '$g'"; done
tr_wait_until 120 'status_is '$((12 * sinks))'' || tr_fail "not all tables came live: $("$TAILRACE" status -c "$TR_TMP/eq.yaml")"
sql -c "insert into short values (-1, 'the end')"
tr_wait_until 120 "[ \"\$(sqlite3 -cmd '.timeout 10000' '$lite' 'select count(*) from short_live where id = -1')\" = 1 ]" || tr_fail "the SQLite mirror did not arrive"
tr_wait_until 120 "[ \"\$(psql -X -A -t -d '$mirror' -c 'select count(*) from short_live where id = -1')\" = 1 ]" || tr_fail "the PostgreSQL mirror did not arrive"

tr_step "comparing value by value"
if [ -n "$clickhouse" ]; then # its tables arrive each for itself
    tr_wait_until 120 "python3 '$TR_E2E_DIR/compare.py' --source '$shop' --clickhouse '$(tr_get CH_URL ch)' --database shop --no-key public.nokey $tables public.nokey >'$TR_TMP/compare' 2>&1" || {
        cat "$TR_TMP/compare" >&2
        tr_fail "the ClickHouse mirror is not equal to the source"
    }
    cat "$TR_TMP/compare" >&2
fi
# shellcheck disable=SC2086
python3 "$TR_E2E_DIR/compare.py" --source "$shop" --sqlite "$lite" --postgres "$mirror" --hard public.hard --no-key public.nokey $tables public.nokey || tr_fail "a mirror is not equal to the source"

tr_step "counting the changelogs against the judge's slot"
sql -A -t -F ' ' -c "
    select case when t like 'ev\\_%' then 'ev' else t end, lower(op), count(*)
    from (select split_part(split_part(data, ' ', 2), '.', 2) as x, split_part(data, ' ', 3) as op, data
          from pg_logical_slot_peek_changes('judge', null, null, 'skip-empty-xacts', '1') where data like 'table public.%') d,
         lateral (select trim(trailing ':' from x) as t) n, lateral (select 1) z
    where trim(trailing ':' from x) ~ '^(item|pair|ev|nokey|hard|short)' and op in ('INSERT:', 'UPDATE:', 'DELETE:')
    group by 1, 2 order by 1, 2" | tr -d ':' >"$TR_TMP/judge"
for side in lite pg ${clickhouse:+ch}; do
    : >"$TR_TMP/counted-$side"
    for t in ev hard item nokey pair short; do
        q="select '$t', _tr_op, count(*) from ${t}_changelog where _tr_op in ('insert', 'update', 'delete') group by 2 order by 2"
        case $side in
        lite) sqlite3 -separator ' ' -cmd '.timeout 10000' "$lite" "$q" ;;
        pg) psql -X -A -t -F ' ' -d "$mirror" -c "$q" ;;
        ch) tr_ch ch "select concat('$t ', _tr_op, ' ', toString(count())) from shop.${t}_changelog final where _tr_op in ('insert', 'update', 'delete') group by _tr_op" ;;
        esac >>"$TR_TMP/counted-$side"
    done
    sort "$TR_TMP/counted-$side" >"$TR_TMP/a"
    sort "$TR_TMP/judge" >"$TR_TMP/b"
    diff "$TR_TMP/b" "$TR_TMP/a" >&2 || tr_fail "the changelog tables of $side do not hold every committed change exactly once (<: the source, >: the changelog)"
done

tr_step "the reader's verdict"
tr_kill watch TERM || true
read -r looks_lite looks_pg violations <"$TR_TMP/sums"
tr_step "$looks_lite looks at SQLite, $looks_pg at PostgreSQL, $violations saw half a transaction"
[ "$violations" = 0 ] || { cat "$TR_TMP/sums" >&2; tr_fail "a reader saw half a transaction"; }
if [ "$looks_lite" -le 50 ] || [ "$looks_pg" -le 50 ]; then tr_fail "the reader looked too seldom"; fi
if [ -n "$clickhouse" ] && [ "$ch_kills" -lt 3 ]; then tr_fail "ClickHouse was killed $ch_kills times only"; fi
if [ "$kills" -lt 20 ] && [ "$per_phase" -ge 7 ]; then tr_fail "only $kills kills"; fi
"$TAILRACE" log verify -c "$TR_TMP/eq.yaml" >&2
tr_kill tailrace TERM || tr_fail "tailrace did not stop cleanly"
tr_step "equal after $kills kills and $mishaps other mishaps"
