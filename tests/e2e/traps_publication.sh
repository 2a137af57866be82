#!/usr/bin/env bash
# What is not published is not streamed, and nobody says so. A table that leaves the publication for a while, a publication that is dropped, that
# loses an operation or gains a row filter under a running capture: each break is noticed and a new snapshot taken, also where the break is over
# by the next look. PostgreSQL 15 ends the stream when the publication is gone, so that a new epoch begins; 18 only warns and goes on.
# shellcheck disable=SC2016,SC2034,SC2086,SC2119,SC2154 # commands for tr_wait_until; lists of tables; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

version=${1:-15}
tables='byself byhand ops filter cols'
names=$(printf 'public.%s ' $tables)
tt_start "$version"
for t in $tables; do
    tt_sql "create table $t (id int primary key, v text)" "insert into $t select g, 'v' from generate_series(1, 50) g"
done
tt_sql 'create table keyless (v text)' 'alter table keyless replica identity full'
TT_LITE="    changelog: ['public.byhand', 'public.keyless']"
tt_config
tt_run
tt_live $names public.marker
look() { "$TAILRACE" table resnapshot public.marker -c "$TT_YAML" >/dev/null; } # makes it look at the tables at once
ends() { tt_frames SNAPSHOT_END "public.$1"; }
logged() { grep -c "$1" "$TR_TMP/tailrace.log" || true; }
anew() { # TABLE COUNT...: so many snapshots of each have ended
    while [ $# -gt 0 ]; do
        tr_wait_until 40 "[ \"\$(tt_frames SNAPSHOT_END public.$1)\" = $2 ]" || tr_fail "$1 has $(ends "$1") snapshots, not $2: $(tt_state "public.$1")"
        shift 2
    done
}
damage() { # TABLE
    tt_sql "insert into $1 values ((select max(id) + 1 from $1), 'lost')" "delete from $1 where id = (select min(id) from $1)" "update $1 set v = 'lost' where id = (select max(id) from $1 where v = 'v')"
}
healed() {
    tt_live $names public.marker
    tt_equal $names
}
healed

tr_step 'what is no break: another table, a comment, freezing, a restart'
tt_sql 'create table more (id int primary key)' "comment on publication tailrace is 'managed by tailrace, and by us'" 'vacuum freeze pg_publication' 'vacuum full pg_publication'
look
tt_live public.more
tt_kill
tt_run
tt_live public.more public.marker
look
sleep 1
anew byself 1 byhand 1 ops 1 filter 1 cols 1

tr_step 'tables leave the publication, and come back by hand and by themselves, with a row filter and a column list'
tt_sql 'alter publication tailrace drop table byhand, byself, keyless'
damage byhand
damage byself
tt_sql 'alter publication tailrace add table byhand, keyless' 'alter publication tailrace drop table filter, cols' 'alter publication tailrace add table filter where (id < 60), cols (id)'
damage filter
damage cols
look
anew byself 2 byhand 2 filter 2 cols 2 ops 1
tr_equal 'row filters and column lists' '' "$(tt_sql "select prrelid::regclass from pg_publication_rel where prqual is not null or prattrs is not null")"
tt_sql "insert into filter values (1000, 'after')" "insert into cols values (1000, 'after')"
healed
[ "$(logged 'had left the publication.*Its changelog lacks for good what came between')" = 1 ] || tr_fail 'nothing is said about the changelog'
[ "$(logged 'had left the publication.*its changelog lacks for good what came between')" = 1 ] || tr_fail 'nothing is said about the changelog without a mirror'

tr_step 'an operation is not published for a while; then no operation at all but INSERT until it is put right'
tt_sql "alter publication tailrace set (publish = 'insert')"
damage ops
tt_sql "alter publication tailrace set (publish = 'insert, update, delete, truncate')"
look
anew ops 2 byself 3
healed
tt_sql "alter publication tailrace set (publish = 'insert', publish_via_partition_root = false)"
damage ops
look
anew ops 3 byself 4
healed
tr_equal 'options' t "$(tt_sql "select pubviaroot and pubupdate and pubdelete and pubtruncate from pg_publication")"

tr_step 'the publication goes, and changes come'
tt_sql 'drop publication tailrace'
for t in $tables; do
    damage "$t"
done
[ "$version" = 15 ] || look
tr_wait_until 60 '[ "$(logged "the publication was made again")" -gt 0 ]' || tr_fail 'nothing is noticed'
tr_wait_until 60 "[ \"\$(ends byself)\" -ge 5 ]" || tr_fail 'no new snapshot'
[ "$version" = 18 ] || tr_wait_until 60 '[ "$(logged "the publication was dropped and made again")" = 1 ]' || tr_fail 'the log does not say why'
healed

tr_step 'a restart afterwards is an ordinary one'
tr_kill tailrace TERM || true
: >"$TR_TMP/tailrace.log"
count=$(ends byself)
tt_run
tt_sql "insert into byself values (5000, 'after')"
healed
look
sleep 1
anew byself "$count"
[ "$(logged 'a new epoch begins')" = 0 ] || tr_fail 'a new epoch without a cause'

tr_step 'a publication that is not ours is not put right: what it does not publish is paused until it does'
check() { "$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check.out" 2>&1 || true; }
tt_sql "comment on publication tailrace is 'ours'"
check
tr_equal 'errors found' 0 "$(grep -c '^error' "$TR_TMP/check.out")"
tt_sql "alter publication tailrace set (publish = 'insert')"
damage ops
look
tt_waits public.ops '^paused.publication tailrace does not publish all of insert'
check
grep -q '^error.*must publish insert, update, delete and truncate' "$TR_TMP/check.out" || tr_fail "check does not find it: $(cat "$TR_TMP/check.out")"
tt_sql "alter publication tailrace set (publish = 'insert, update, delete, truncate')"
look
healed
tt_sql 'alter publication tailrace drop table ops' 'create table late (id int primary key)' 'insert into late values (1)'
damage ops
damage byself
look
tt_waits public.ops '^paused.publication tailrace does not hold it'
tt_waits public.late '^new.publication tailrace does not hold it'
tt_equal public.byself
check
tr_equal 'errors found' 2 "$(grep -c '^error.*is not captured: publication tailrace does not hold it' "$TR_TMP/check.out")"
tt_sql 'alter publication tailrace add table ops, late'
look
tt_live public.late
healed
tt_equal public.late
tt_sql 'alter publication tailrace drop table filter' 'alter publication tailrace add table filter where (id < 1000)'
check
grep -q '^warn.*row filter or column list on public.filter' "$TR_TMP/check.out" || tr_fail "check does not find it: $(cat "$TR_TMP/check.out")"
look
tr_wait_until 40 '[ "$(tt_lite "select count(*) from filter_live where id >= 1000")" = 0 ]' || tr_fail 'the mirror does not have the rows that are published'
tt_stop
