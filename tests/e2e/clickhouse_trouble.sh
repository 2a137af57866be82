#!/usr/bin/env bash
# More of what can befall a ClickHouse mirror: too many parts, by a real server; no space and a read-only table, by a proxy; an answer that dribbles in, to the
# deadline; a connection that the server closed while it was idle; a server that is restarted under load; a user who may only read; tables that a hand
# altered or renamed. Each is told by its name, nothing is lost, no row is there twice, and no other mirror is held up.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TR_CH_USERS='<reader><password></password><profile>default</profile><quota>default</quota><networks><ip>127.0.0.1</ip></networks><grants><query>GRANT SELECT ON *.*</query></grants></reader>'
tr_ch_start 26 ch
TT_CH=ch
tt_start 15
tr_chproxy ch
mode=$CHPROXY_MODE inserts=$CHPROXY_INSERTS TT_CH_URLS=$CHPROXY_URL
TT_CLICKHOUSE='write_timeout: 3s'
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' from generate_series(1, 500) g" 'create table o (id int primary key, v text)' "insert into o values (1, 'v')"
tt_config
tt_run
tt_live public.t public.o public.marker
tt_equal public.t public.o

change() { tt_sql "update t set n = n + 1 where id % 3 = $((RANDOM % 3))"; }
others_run() { tr_equal 'the SQLite sink' 'running|' "$(tt_units | sed -n 's/^lite|//p')"; }
for answer in 'full|not enough space' 'readonly|readonly mode'; do
    tr_step "${answer%%|*}"
    echo "${answer%%|*}" >"$mode"
    change
    tt_trouble ch "${answer#*|}"
    others_run
    echo pass >"$mode"
    tt_equal public.t public.o
    tt_well
done

tr_step 'an answer that dribbles in: given up at the deadline, and its rows come again under their token'
tr_ch ch 'system stop merges shop.t'
before=$(tr_ch ch 'select count() from shop.t')
echo slow >"$mode"
tt_sql 'update t set n = -1 where id <= 100'
tr_wait_until 20 '[ "$(grep "^slow " "$inserts" | sort | uniq -d | wc -l)" -gt 0 ]' || tr_fail 'no INSERT came again'
tt_trouble ch 'no answer before the deadline'
others_run
echo pass >"$mode"
tt_equal public.t
tr_equal 'rows that the INSERTs added' $((before + 100)) "$(tr_ch ch 'select count() from shop.t')"
tt_well

tr_step 'too many parts'
tr_ch ch "alter table shop.t modify setting parts_to_throw_insert = $(tr_ch ch "select count() from system.parts where active and database = 'shop' and table = 't'"), parts_to_delay_insert = 100000"
change
tt_trouble ch 'Too many parts'
others_run
tt_sql "insert into o values (2, 'meanwhile')"
tr_ch ch 'system start merges shop.t'
tr_ch ch 'alter table shop.t reset setting parts_to_throw_insert, parts_to_delay_insert'
tt_equal public.t public.o
tt_well

tr_step 'too many partitions in one INSERT: refused by name, since it comes the same again'
said=$(curl -s "$CH_URL_ch/" -d 'create table default.p engine = MergeTree partition by number order by number as select number from numbers(101)')
[[ $said == *'Code: 252'*'partitions for single INSERT'* ]] || tr_fail "what tells it from too many parts: $said"

tr_step 'a table altered by hand'
for hand in 'alter table shop.t modify column n Nullable(String)|paused.*column n .*type' 'rename table shop.t to shop.was|paused.*table .*t was removed from the sink'; do
    tr_ch ch "${hand%%|*}"
    change
    tt_waits public.t "${hand#*|}"
    tt_sql "update o set v = v || 'x'"
    tr_wait_until 20 '[ "$(tr_ch ch "select v from shop.o_live where id = 1")" = "$(tt_sql "select v from o where id = 1")" ]' || tr_fail 'the other table does not go on'
    "$TAILRACE" table resnapshot public.t -c "$TT_YAML"
    tt_live public.t
    tt_equal public.t public.o
done
tt_stop

tr_step 'idle for longer than the server keeps a connection: no write fails for it'
TT_CH_URLS=
TT_HEARTBEAT=1h
TT_CLICKHOUSE='write_timeout: 3s'
tt_config
tt_run
tr_wait_until 20 'tt_status >/dev/null'
retries() {
    curl -s "$(sed -n 's/^admin: {listen: \(.*\)}$/http:\/\/\1/p' "$TT_YAML")/metrics" | awk '/^tailrace_pipeline_retries_total.*sink="ch"/ { n += $2; found = 1 } END { if (!found) exit 1; print n }'
}
tt_equal public.t
for idle in 2.5 3.2 5; do
    sleep "$idle"
    change
    tt_equal public.t
done
tr_equal 'writes that had to be repeated' 0 "$(retries)"

tr_step 'restarted under load'
printf '\\set a random(1, 500)\nupdate t set n = n + 1 where id = :a;\n' >"$TR_TMP/load.sql"
tr_spawn load "$TR_PG_CLIENT/pgbench" -n -c 2 -R 100 -T 600 -f "$TR_TMP/load.sql" "$TT_SHOP"
sleep 1
tr_ch_restart ch
sleep 1
tr_kill ch KILL || true
sleep 2
rss=$(awk '/VmRSS/ { print $2 }' "/proc/$PID_tailrace/status")
[ "$rss" -lt 300000 ] || tr_fail "tailrace takes $rss kB while the server is away"
tr_ch_restart ch
sleep 1
tr_kill load || true
tt_equal public.t public.o
tt_well

tr_step 'a user who may only read'
tt_stop
TT_CLICKHOUSE='user: reader'
tt_config
tt_run
change
tt_trouble ch 'Not enough privileges.*look at user, password, token and grants'
tt_kill
TT_CLICKHOUSE=
tt_config
tt_run
tr_wait_until 20 'tt_status >/dev/null'
tt_equal public.t public.o
tt_well 60
tt_stop
