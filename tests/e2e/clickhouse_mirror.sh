#!/usr/bin/env bash
# A ClickHouse mirror (argument: 26 or 18) beside the others, from a real PostgreSQL: snapshot, changes, TOAST, key moves, deletes, TRUNCATE, ADD COLUMN,
# a new snapshot; then tailrace is killed ten times and ClickHouse twice under load. Read through the view, it is the source, value by value; a
# tombstone keeps its row's last values; the changelog table, read with FINAL, has each change once.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
version=${1:-26}
RANDOM=${TR_SEED:-7}

tr_ch_start "$version" ch
TT_CH=ch
tt_start 15
tt_sql "create type mood as enum ('good', 'it''s bad')" \
    'create table t (id int primary key, n int, v text, big text)' 'alter table t alter big set storage external' \
    "insert into t select g, 0, 'v' || g, repeat(md5(g::text), 80) from generate_series(1, 2000) g" \
    'create table pair (k1 int, "k 2" text, v text, big text, primary key ("k 2", k1))' 'alter table pair alter big set storage external' \
    "insert into pair select g % 10, 'k' || g, 'v', repeat('p' || g, 900) from generate_series(1, 200) g" \
    'create table short (id int primary key, v text)' 'insert into short select g from generate_series(1, 50) g' \
    "create table every (id numeric(9, 2) primary key, b bool, i2 int2, i8 int8, f4 real, f8 float8, nu numeric, nd numeric(38, 10), t text, c char(5), by bytea, u uuid, d date,
        ts timestamp, tz timestamptz, ti time, iv interval, js jsonb, e mood, a int[], r int4range, ip inet)" \
    "insert into every values (1.5, true, -32768, 9223372036854775807, 1.1, '-Infinity', 1e30, 1234567890123456789012345678.0123456789, e'q\\'\"\\\\ \t\n☃', 'x', '\\x00ff27', gen_random_uuid(),
        '1900-01-01', '2026-02-03 04:05:06.1', '1970-01-01 00:00:00.000001+00', '23:59:59.5', '1 year -2 days 3.5s', '{\"a\": [1, null]}', 'it''s bad', '{1,NULL,3}', '[1,5)', '10.0.0.1/8')" \
    'insert into every (id) values (2)' \
    "insert into every (id, f4, f8, t, by, d, nd) values (-3.25, 'NaN', 1e-320, '', '', '2299-12-31', -0.0000000001)"
TT_CLICKHOUSE="changelog: ['public.t', 'public.short']"
[ "$version" = 18 ] && TT_CLICKHOUSE+=', format: native'
[ "$version" = 26 ] && TT_CLICKHOUSE+=", compression: zstd, low_cardinality: ['public.every.*', 'public.short.v', 'public.pair.k*']"
# more partitions in one INSERT than the server's default allows
TT_CLICKHOUSE+=", order_by: ['public.p* = k1, \"k 2\"'], partition_by: ['public.pair = \`k 2\`', 'public.t = intDiv(id, 1000)']"
tt_config 'snapshot: {workers: 2, chunk_rows: 300}'
tt_run
tt_live public.t public.pair public.short public.every public.marker
tr_step 'after the snapshot'
tt_equal public.t public.pair public.short public.every

tr_equal 'the sorting key as configured' 'k1, `k 2`|`k 2`' "$(tr_ch ch "select concat(sorting_key, '|', partition_key) from system.tables where database = 'shop' and name = 'pair'" | sed 's/[()]//g')"
tr_equal 'a partition for each k 2' 200 "$(tr_ch ch "select uniqExact(partition) from system.parts where active and database = 'shop' and table = 'pair'")"
[ "$version" = 18 ] || tr_equal 'LowCardinality where a pattern names a String' 'every: a by c e ip iv js nu r t ti, pair: k 2, short: v' \
    "$(tr_ch ch "select arrayStringConcat(groupArray(concat(table, ': ', c)), ', ') from (select table, arrayStringConcat(arraySort(groupArray(name)), ' ') as c from system.columns where database = 'shop' and table not like '%_live' and type like 'LowCardinality%' group by table order by table)")"

tr_step 'changes, unchanged values, key moves, deletes, TRUNCATE'
tt_sql 'update t set n = n + 1 where id <= 500' 'update t set id = id + 10000 where id between 101 and 150' "update t set id = id + 10000, v = 'moved' where id between 151 and 160" \
    'delete from t where id between 10 and 20' "insert into t values (15, 7, 'again', repeat('again', 500))" 'update pair set k1 = k1 + 100 where k1 = 3' \
    'begin; update t set n = 1 where id = 30; update t set n = 2, big = null where id = 30; update t set id = 20030 where id = 30; update t set n = 9 where id = 20030; delete from t where id = 31; end' \
    "update every set t = 'changed', f8 = 0.1, tz = '2262-04-11 23:47:16.854775+00'"
tt_sql 'truncate short' "insert into short values (7, 'after'), (8, 'after')" "begin; insert into short values (9, 'x'); truncate short; insert into short values (10, 'y'); end" "update short set v = 'z' where id = 10"
tt_equal public.t public.pair public.short public.every
tr_equal 'tombstones keep the last values' '11|0' "$(tr_ch ch "select concat(toString(count()), '|', toString(countIf(isNull(big) or isNull(v) or isNull(_tr_deleted_at)))) from shop.t final where _tr_deleted and id <= 20 or id = 31 and _tr_deleted")"
tr_equal 'what TRUNCATE took is there still, as tombstones' 49 "$(tr_ch ch 'select count() from shop.short final where _tr_deleted')"

tr_step 'columns are added'
tt_sql "alter table t add extra text default 'it''s \\ here'" 'alter table t add more int' "update t set more = id where id % 7 = 0" "insert into t values (5000, 1, 'v', 'b', null, 5)"
tt_equal public.t

tr_step 'a new snapshot, with readers'
tt_resnapshots t
tr_equal 'nothing is left of the builds' '' "$(tr_ch ch "select name from system.tables where database = 'shop' and name like '%\\_\\_tr\\_%'")"

tr_step 'kill -9: tailrace ten times, ClickHouse twice, under load'
cat >"$TR_TMP/load.sql" <<'SQL'
\set a random(1, 2000)
\set b random(1, 50)
begin;
update t set n = n + 1 where id = :a;
update t set id = id + 1000000 where id = :a and not exists (select from t where id = :a + 1000000);
update t set id = id - 1000000 where id = :b + 1000000 and not exists (select from t where id = :b);
update t set big = repeat(md5(n::text), 80) where id = :b;
delete from pair where "k 2" = 'k' || :b;
insert into pair values (:b % 10, 'k' || :b, 'again', repeat('q' || :a, 900)) on conflict do nothing;
insert into short values (:b, 's' || :a) on conflict (id) do update set v = excluded.v;
end;
SQL
printf '\\set a random(1, 30)\ntruncate short;\nupdate every set i8 = i8 - 1 where id = 1.5;\ndelete from short where id = :a;\n' >"$TR_TMP/rare.sql"
tr_spawn load "$TR_PG_CLIENT/pgbench" -n -c 2 -R 80 -T 600 -f "$TR_TMP/load.sql@60" -f "$TR_TMP/rare.sql@1" "$TT_SHOP"
points=('' sink.after_commit=kill:30 sink.before_commit=kill:45 apply.before_offset=kill:4)
for i in {0..9}; do
    tt_kill
    tt_run ${points[i % 4]:+"${points[i % 4]}"}
    case $i in
    3 | 6) # while it is at work
        sleep 0.7
        tr_kill ch KILL || true
        sleep 1
        tr_ch_restart ch
        ;;
    5) "$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null ;;
    esac
    if [ $((i % 4)) = 0 ]; then
        sleep 1.5
    else
        tt_died 40
    fi
done
tt_kill
tt_run
tr_wait_until 10 'tt_status >/dev/null'
tt_live public.t public.pair public.short public.every public.marker
tr_kill load || true
tt_equal public.t public.pair public.short public.every
tr_equal 'changes that the changelog table holds twice' 0 "$(tr_ch ch 'select count() - uniqExact(_tr_epoch, _tr_commit_lsn, _tr_ordinal) from shop.t_changelog final')"
# what the view shows of a key is what its last change in the history says
tr_equal 'the history ends where the mirror is' 0 "$(tr_ch ch "select count() from (select id, argMax(_tr_op, _tr_version) as op from shop.short_changelog group by id having op in ('insert', 'update')) where id not in (select id from shop.short final)")"
tt_well
tt_stop
