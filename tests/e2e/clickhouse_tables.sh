#!/usr/bin/env bash
# Tables of a ClickHouse mirror that a hand, an option or a value does not leave as they should be (argument: 26 or 18): `check` and `status` name table, column, what is there and what cures
# it; the table waits, the others go on. What `init` writes works. Dropping repeated INSERTs works, and is checked. Tombstones of keys alone.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
version=${1:-26}

tr_ch_start "$version" ch
TT_CH=ch
tt_start 15
all=
for t in fine retyped extra filled dropped engine sorted parts forgets mine; do
    tt_sql "create table $t (id int primary key, n int, v text)" "insert into $t select g, g, 'v' || g from generate_series(1, 20) g"
    [ "$t" = mine ] || all+=" public.$t"
done
tt_sql 'create table days (day date, id int, at timestamptz, primary key (id, day))' "insert into days select date '2026-01-01' + g, g, now() from generate_series(1, 30) g" \
    'create table badly (like days including all)' 'create table sortedly (like days including all)'
tr_ch ch 'create database shop'
tr_ch ch 'create table shop.mine (id Int32, n Int32) engine = MergeTree order by id'
TT_CLICKHOUSE="tombstone: key, changelog: ['public.fine'], order_by: ['public.days = day, id', 'public.sortedly = day'], partition_by: ['public.days = day', 'public.badly = toYYYYMM(at)']"
TT_COMMIT=60s # whatever is killed comes again
tr_step 'what init writes, with the ClickHouse sink taken out of its comment'
(
    cd "$TR_TMP"
    "$TAILRACE" init --dsn "$TT_SHOP" -o init.yaml
    sed -i "/# - name: olap/,/database: mirror/ s/# //; s|http://localhost:8123|$(tr_get CH_URL ch)|" init.yaml
    "$TAILRACE" check -c init.yaml
) >"$TR_TMP/init" 2>&1 || { cat "$TR_TMP/init" >&2 && tr_fail 'what init writes does not work'; }
grep -q '^ok .*sink olap (clickhouse) can be written' "$TR_TMP/init" || { cat "$TR_TMP/init" >&2 && tr_fail 'init does not offer ClickHouse'; }

tt_config
tt_run

tr_step 'options that cannot be, and a table of somebody else'
tt_waits public.badly 'paused.*partition_by of table public.badly uses at, which is no column of its key: a row must never change its partition'
tt_waits public.sortedly 'paused.*order_by of table public.sortedly lacks id, a column of the key'
tt_waits public.mine 'paused.*table shop.mine exists in the sink and was not made by tailrace .it has no column _tr_version.; rename or drop it'
# shellcheck disable=SC2086 # names
tt_live $all public.days public.marker
tt_equal public.days
tr_equal 'a partition a day' 30 "$(tr_ch ch "select uniqExact(partition) from system.parts where active and database = 'shop' and table = 'days'")"
tt_sql 'update days set at = now()' 'update days set day = day + 1000 where id % 2 = 0' 'delete from days where id < 10' 'truncate dropped' "insert into dropped values (1, 1, 'after')"
tt_equal public.days public.dropped

tr_step 'tombstones of keys'
tt_sql 'delete from fine where id <= 5' 'update fine set id = id + 100 where id = 6' "insert into fine values (1, 1, 'again')"
tt_equal public.fine
tr_equal 'what they keep' '2:1:1 3:1:1 4:1:1 5:1:1 6:1:1' \
    "$(tr_ch ch "select arrayStringConcat(groupArray(concat(toString(id), ':', toString(isNull(n)), ':', toString(isNull(v)))), ' ') from (select * from shop.fine final where _tr_deleted order by id)")"

tr_step 'a TRUNCATE comes again after a crash: what was written after it stays'
tt_sql 'truncate dropped' "insert into dropped select g, g, 'later' from generate_series(1, 10) g"
tt_equal public.dropped
tt_kill
tt_run
tr_wait_until 20 'tt_status >/dev/null'
tt_sql "insert into dropped values (50, 50, 'after the crash')"
tt_equal public.dropped
tr_equal 'rows that live' 11 "$(tr_ch ch 'select count() from shop.dropped_live')"

if [ "$version" != 18 ]; then
    tr_step 'an INSERT that comes again under its token is dropped'
    twice() { # ROWS: adds them under one token, twice
        for _ in 1 2; do
            tr_ch ch "insert into shop.forgets (id, n, v, _tr_version, _tr_deleted) select number + 1000, 0, 'x', 1, 1 from numbers($1)" --url-query "insert_deduplication_token=t$1" --url-query async_insert=0
        done
    }
    tr_ch ch 'system stop merges shop.forgets'
    twice 3
    tr_equal 'rows and parts' '3 1' "$(tr_ch ch "select concat(toString(count()), ' ', toString(uniqExact(_part))) from shop.forgets where id >= 1000")"
    tr_ch ch 'alter table shop.forgets modify setting non_replicated_deduplication_window = 0'
    twice 4
    tr_equal 'without a window both stay' 11 "$(tr_ch ch 'select count() from shop.forgets where id >= 1000')"
    tr_ch ch 'system start merges shop.forgets'
fi

tr_step 'hands'
tt_stop
tr_ch ch 'alter table shop.retyped modify column n Nullable(Int64)'
tr_ch ch "alter table shop.retyped modify column v String default ''"
tr_ch ch 'alter table shop.extra add column theirs Int32'
tr_ch ch "alter table shop.filled add column theirs Int32 default id + 1"
tr_ch ch 'alter table shop.dropped drop column v'
other() { # TABLE ENGINE…: with the same columns and record
    tr_ch ch "rename table shop.$1 to shop.$1_before"
    tr_ch ch "$(tr_ch ch "select concat('create table shop.$1 (', arrayStringConcat(groupArray(concat('\`', name, '\` ', type, if(comment = '', '', concat(' comment ''', comment, '''')))), ', '), ') engine = $2') from (select * from system.columns where database = 'shop' and table = '$1_before') format TabSeparatedRaw")"
    tr_ch ch "insert into shop.$1 select * from shop.$1_before"
    tr_ch ch "drop table shop.$1_before"
}
other engine 'MergeTree order by id'
other sorted 'ReplacingMergeTree(_tr_version) order by tuple()'
other parts 'ReplacingMergeTree(_tr_version) partition by _tr_deleted order by id'
declare -A why=(
    [retyped]='column n of table retyped changed its type from Nullable.Int64. to Nullable.Int32.; column v of table retyped changed its type from String to Nullable.String.; take a new snapshot'
    [extra]='column theirs of table extra was added in the sink and has no default there'
    [dropped]='column v was removed from table dropped in the sink'
    [engine]='table shop.engine has the engine MergeTree.*and must have ReplacingMergeTree._tr_version.; take a new snapshot'
    [sorted]='the key of table sorted changed at column id'
    [parts]='table shop.parts is partitioned by _tr_deleted in the sink.*take a new snapshot'
)
[ "$version" = 18 ] || why[forgets]='table shop.forgets has non_replicated_deduplication_window = 0 in the sink.*ALTER TABLE shop.forgets MODIFY SETTING non_replicated_deduplication_window = 1000, then resume'
code=0
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check" 2>&1 || code=$?
[ "$code" != 0 ] || tr_fail 'check finds nothing'
for t in "${!why[@]}"; do
    grep -Eq "^error.*sink ch: .*${why[$t]}" "$TR_TMP/check" || { cat "$TR_TMP/check" >&2 && tr_fail "check does not say it of $t"; }
done
grep -q '^error.*sink ch: partition_by of table public.badly uses at' "$TR_TMP/check" || tr_fail 'check does not say it of partition_by'
[ "$(grep -c '^error' "$TR_TMP/check")" = $((${#why[@]} + 3)) ] || { cat "$TR_TMP/check" >&2 && tr_fail 'check says more'; }
tt_run
tr_wait_until 20 'tt_status >/dev/null'
for t in "${!why[@]}"; do
    tt_told "its next change will pause it: sink ch: .*${why[$t]}"
done
for t in "${!why[@]}" fine filled; do
    tt_sql "update $t set n = n + 1"
done
for t in "${!why[@]}"; do
    tt_waits "public.$t" "paused.*${why[$t]}"
done
tt_equal public.fine public.filled public.days
tr_equal 'a column of their own' 0 "$(tr_ch ch 'select count() from shop.filled final where theirs != id + 1')"

tr_step 'and their cures'
tr_ch ch 'drop table shop.mine'
for t in "${!why[@]}"; do
    if [ "$t" = forgets ]; then
        tr_ch ch 'alter table shop.forgets modify setting non_replicated_deduplication_window = 1000'
        tr_ch ch 'alter table shop.forgets delete where id >= 1000' --url-query mutations_sync=1
        "$TAILRACE" table resume public.forgets -c "$TT_YAML" >/dev/null
    elif [ "$t" = extra ]; then
        tr_ch ch 'alter table shop.extra drop column theirs'
        "$TAILRACE" table resume public.extra -c "$TT_YAML" >/dev/null
    else
        "$TAILRACE" table resnapshot "public.$t" -c "$TT_YAML" >/dev/null
    fi
done
"$TAILRACE" table resume public.mine -c "$TT_YAML" >/dev/null
# shellcheck disable=SC2086
tt_live $all public.days public.mine public.marker
# shellcheck disable=SC2086
tt_equal $all public.days public.mine
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check" 2>&1 || true
tr_equal 'what check still finds' 2 "$(grep -c '^error' "$TR_TMP/check")"

[ "$version" != 18 ] || { tt_stop && exit 0; } # it keeps those as text
tr_step 'values that do not fit: each pauses its table, by column'
values=("numeric(10, 2)|'NaN'" "numeric(76, 70)|'NaN'" "date|'infinity'" "date|'0044-03-15 BC'" "timestamptz|'1899-12-31'" "timestamp|'2300-01-01'" "timestamp|'-infinity'")
for i in "${!values[@]}"; do
    tt_sql "create table value_$i (id int primary key, odd ${values[i]%|*})" "insert into value_$i values (1, null)"
done
for i in "${!values[@]}"; do
    tt_live "public.value_$i"
    tt_sql "insert into value_$i values (2, ${values[i]#*|})"
done
for i in "${!values[@]}"; do
    tt_waits "public.value_$i" "paused.*column odd of table public.value_$i: a value does not fit ClickHouse type"
done
tt_sql "create table digits (id int primary key, n numeric(76, 3), more numeric(100, 10), any_ numeric)" "insert into digits select 1, -x, x, x from (select (repeat('9', 73) || '.125')::numeric as x) x" \
    "insert into digits values (2, 0.001, $(printf '9%.0s' {1..90}).0000000001, 'NaN')"
tt_live public.digits
tt_equal public.fine public.digits
tt_stop
