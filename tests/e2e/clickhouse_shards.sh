#!/usr/bin/env bash
# A ClickHouse mirror over two shards (argument: 26 or 18), one of which has two addresses: each key on one shard alone, key updates over both, TRUNCATE and new
# snapshots on both, a key update that another shard would have to complete. A shard that is dead holds up its own rows only; a replica that is dead
# holds up the swap of a new build and nothing else; one that comes back is bound before it is written.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
version=${1:-26}

tr_ch_start "$version" a
tr_ch_start "$version" b
TT_CH='a b'
tt_start 15
# the second address of shard b
port=$(tr_free_port)
second() {
    tr_spawn second python3 "$TR_E2E_DIR/chproxy.py" "$port" "$CH_PORT_b" /dev/null /dev/null
    tr_wait_until 10 "curl -s http://127.0.0.1:$port/ping >/dev/null" || tr_fail 'the proxy does not answer'
}
second
TT_CH_URLS="'$CH_URL_a', '$CH_URL_b, http://127.0.0.1:$port/'"
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' || g from generate_series(1, 3000) g" \
    'create table big (id int primary key, n int, big text)' 'alter table big alter big set storage external' "insert into big select g, 0, repeat(md5(g::text), 80) from generate_series(1, 200) g" \
    'create table whole (id int primary key, n int, big text)' 'alter table whole alter big set storage external' 'alter table whole replica identity full' "insert into whole select id, n, big from big" \
    'create table o (id int primary key, v text)' "insert into o select g, 'v' from generate_series(1, 100) g"
TT_CLICKHOUSE="write_timeout: 5s, max_inflight: 32MiB, changelog: ['public.o']"
tt_config
tt_run
tt_live public.t public.big public.whole public.o public.marker
tt_equal public.t public.big public.whole public.o
tt_well

# no key is on both shards, whatever state its row is in
apart() {
    local t
    for t in "$@"; do
        tr_equal "shards that have rows of $t" 2 "$(tt_ch "select count() > 0 from shop.$t" | grep -c 1)"
        tr_equal "keys of $t on both shards" '' "$(tt_ch "select distinct id from shop.$t" | sort | uniq -d)"
    done
}
apart t big whole o

tr_step 'key updates, deletes, TRUNCATE'
tt_sql 'update t set id = id + 10000 where id % 5 = 0' 'delete from t where id % 7 = 0' "update t set v = 'again' where id % 11 = 0" 'update whole set id = id + 1000 where id % 2 = 0' \
    'update big set n = n + 1' "update big set id = id + 1000, big = repeat('x', 3000) where id <= 20" \
    'begin; update t set id = 77777 where id = 1; update t set id = 88888 where id = 77777; update t set id = 1 where id = 88888; end'
tt_equal public.t public.big public.whole
tt_sql 'truncate o' "insert into o select g, 'after' from generate_series(50, 90) g"
tt_equal public.o
tr_equal 'what TRUNCATE took, as tombstones on both shards' 59 "$(tt_ch 'select count() from shop.o final where _tr_deleted' | awk '{ n += $1 } END { print n }')"
tr_equal 'TRUNCATE in the history' 1 "$(tt_ch "select count() from shop.o_changelog final where _tr_op = 'truncate'" | awk '{ n += $1 } END { print n }')"
apart t big whole o

tr_step 'new snapshots, a new column'
tt_resnapshots t
tt_sql "alter table t add extra text default 'e'" "update t set extra = 'x' where id % 4 = 0"
tt_equal public.t
tr_equal 'nothing is left of the builds' '' "$(tt_ch "select name from system.tables where database = 'shop' and name like '%\\_\\_tr\\_%'")"

tr_step 'a key update that only the other shard could complete'
tt_sql 'update big set id = id + 5000 where id between 30 and 50'
tt_waits public.big 'paused.*table public.big: a change of a row.s key moves it to another shard of sink ch.*column big.*REPLICA IDENTITY FULL'
tt_sql 'alter table big replica identity full'
"$TAILRACE" table resnapshot public.big -c "$TT_YAML"
tt_live public.big
tt_sql 'update big set id = id + 5000 where id between 60 and 80'
tt_equal public.big

tr_step 'a dead shard: its rows wait, those of the other arrive; memory is bounded'
tr_kill b KILL || true
tt_sql "update t set v = 'dead'"
tr_wait_until 20 '[ "$(tr_ch a "select countIf(v != '"'dead'"') from shop.t_live")" = 0 ]' || tr_fail 'the living shard does not go on'
tt_trouble ch "Failed to connect|Couldn.t connect|Connection refused"
tt_sql "insert into t select g, 0, repeat('m', 1000) from generate_series(100001, 200000) g"
sleep 3
rss=$(awk '/VmRSS/ { print $2 }' "/proc/$PID_tailrace/status")
[ "$rss" -lt 400000 ] || tr_fail "tailrace takes $rss kB while a shard is dead"
inflight=$(curl -s "$(sed -n 's/^admin: {listen: \(.*\)}$/http:\/\/\1/p' "$TT_YAML")/metrics" | awk '/^tailrace_pipeline_inflight_bytes.*pipeline="ch"/ { printf "%d", $2 }')
{ [ "$inflight" -gt 100000 ] && [ "$inflight" -le 36000000 ]; } || tr_fail "$inflight bytes are in flight, with max_inflight at 32 MiB"
tr_ch_restart b
tt_equal public.t
apart t
tt_well

tr_step 'a dead replica: the swap of a new build waits for it, by name, and nothing else does'
tr_kill second KILL || true
tt_sql "update t set v = 'one replica' where id % 2 = 0"
tt_equal public.t
"$TAILRACE" table resnapshot public.o -c "$TT_YAML"
tt_trouble ch "127.0.0.1:$port.*(Failed to connect|Couldn.t connect|refused)" 40
tt_waits public.o "(loading|catching_up).*the new build of table public.o waits for http://127.0.0.1:$port, which does not answer" 40
tt_sql "update t set v = 'others flow' where id % 3 = 0" "insert into o values (1000, 'meanwhile')"
tt_equal public.t public.o
second
tt_live public.o
tt_sql "update o set v = 'swapped' where id % 2 = 0"
tt_equal public.o
tt_well 60

tr_step 'killed in the middle of a swap: the shards agree again'
for point in apply.before_swap apply.after_swap; do
    tt_kill
    tt_run "$point=kill"
    tr_wait_until 20 'tt_status >/dev/null'
    "$TAILRACE" table resnapshot public.o -c "$TT_YAML"
    tt_died 40
    tt_run
    tt_sql "update o set v = '$point' where id % 3 = 0"
    tt_live public.o
    tt_equal public.o public.t public.whole public.big
done

tr_step 'a swap that one server has through and the other has not is carried on'
tt_stop
tr_ch a 'create table shop.keep as shop.o'
tr_ch a 'insert into shop.keep select * from shop.o'
build=$(tr_ch a "select extract(comment, 'build ([0-9]+)') from system.columns where database = 'shop' and table = 'o' and name = '_tr_version'")
record=$(tr_ch a "select comment from system.columns where database = 'shop' and table = 'o' and name = '_tr_version'")
# as if a had not been reached: the build beside a mirror of another build
tr_ch a "alter table shop.keep comment column _tr_version '${record/mirror/shadow}'"
tr_ch a "alter table shop.o comment column _tr_version '${record/build $build/build 1}'"
tr_ch a 'truncate table shop.o'
tr_ch a 'rename table shop.keep to shop.o__tr_build'
tt_run
tt_live public.o
tt_sql "update o set v = 'carried on' where id % 2 = 1"
tt_equal public.o
tt_well

tr_step 'a mirror that one shard lost is built anew; killed on the way, what there is of it is not taken for the whole'
tt_stop
tr_ch b 'drop table shop.t'
tt_run
tr_wait_until 40 '[ "$(tr_ch b "exists table shop.t__tr_build")" = 1 ]' || tr_fail 'no build began'
tt_kill
tr_equal 'what stands at b when it was killed: no mirror, a build' '0 1' "$(tr_ch b 'exists table shop.t') $(tr_ch b 'exists table shop.t__tr_build')"
tt_run
tt_live public.t
tt_sql "update t set v = 'whole again' where id % 2 = 1"
tt_equal public.t public.o
apart t
tt_well

tr_step 'urls are changed, or name servers as replicas that share nothing: refused by name'
tt_stop
sed -i "s|urls: \\[.*\\], database|urls: ['$CH_URL_b', '$CH_URL_a'], database|" "$TT_YAML"
tt_run
tt_trouble ch 'was shard . of 2 of this sink, and would be . of 2 now'
tt_stop
[ "$version" = 26 ] || exit 0 # older servers do not tell
sed -i "s|urls: \\[.*\\], database: shop|urls: ['$CH_URL_a, $CH_URL_b'], database: none|" "$TT_YAML"
tt_run
tt_trouble ch 'table _tailrace_heartbeat at .* is not the one that another replica of shard 1 has'
tt_stop
