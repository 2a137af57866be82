#!/usr/bin/env bash
# A name stands for another table for a moment that no look at the catalog sees: renamed and renamed back (a root of partitions too), swapped out and in
# again, a stranger in its place. What the stream then says under the wrong name must not be missing, or stay, in the mirror: also when tailrace is
# killed before it has taken note, and when all of it happens while tailrace is away.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
for t in t u d k w; do
    tt_sql "create table $t (id int primary key, v text)" "insert into $t select g, 'old' from generate_series(1, 50) g"
done
tt_sql 'create table u2 (like u including all)' "insert into u2 values (1, 'two'), (99, 'two')" \
    'create table p (id int primary key, v text) partition by range (id)' 'create table p_low partition of p for values from (0) to (25)' \
    'create table p_high partition of p for values from (25) to (1000)' "insert into p select g, 'old' from generate_series(1, 50) g"
# Every table is published, a stranger too, or those that tailrace put there.
[ "${1:-15}" = 18 ] || tt_sql 'create publication tailrace for all tables with (publish_via_partition_root = true)'
tables='public.t public.u public.u2 public.d public.k public.w public.p'
tt_config
tt_run
# shellcheck disable=SC2086
tt_live $tables

# What is in one transaction is never seen by others: no look at the catalog can fall between.
away() { # TABLE: changes made while it has another name
    printf '%s;' begin "alter table $1 rename to ${1}_away" "insert into ${1}_away values (200, 'away')" "update ${1}_away set v = 'away' where id < 10" \
        "delete from ${1}_away where id = 20" "alter table ${1}_away rename to $1" commit
}
snapshots() { grep -c "snapshot complete.* table=public.$1\$" "$TR_TMP/tailrace.log" || true; }
taken() { # TABLE N: its Nth snapshot is complete
    tr_wait_until 40 "[ \"\$(snapshots $1)\" -ge $2 ]" || tr_fail "no new snapshot of $1 is taken"
}

tr_step 'renamed and renamed back, swapped out and in, a stranger in its place'
tt_sql "$(away t)" "$(away p)" \
    "begin; alter table u rename to u_away; alter table u2 rename to u; insert into u values (300, 'for u2'); update u_away set v = 'for u' where id = 3; alter table u rename to u2; alter table u_away rename to u; commit" \
    "begin; alter table d rename to d_away; create table d (id int primary key, v text); insert into d values (1, 'stranger'), (400, 'stranger'); drop table d; alter table d_away rename to d; commit" \
    'insert into w select g from generate_series(500, 510) g'
for t in t p u u2; do
    taken $t 2
done
[ "${1:-15}" = 18 ] || taken d 2
# shellcheck disable=SC2086
tt_live $tables
# shellcheck disable=SC2086
tt_equal $tables
tr_equal 'rows of strangers' 0 "$(tt_lite "select (select count(*) from d_live where v = 'stranger') + (select count(*) from u_live where v = 'for u2')")"

tr_step 'killed before it has taken note'
tt_stop
tt_run snapshot.before_note=sleep:3000
tt_live public.k
tt_sql "$(away k)"
tt_mark
sleep 2 # positions are recorded each second: not this one
tt_kill
tt_run
taken k 2
tt_live public.k
tt_equal public.k

tr_step 'renamed, changed and renamed back while it was away'
tt_stop
tt_sql 'alter table k rename to k_away' "insert into k_away values (600, 'away')" 'alter table k_away rename to k' 'alter table p rename to p_away' "delete from p_away where id = 5" 'alter table p_away rename to p'
tt_run
taken k 3
taken p 3
# shellcheck disable=SC2086
tt_live $tables
# shellcheck disable=SC2086
tt_equal $tables

tr_step 'renamed for good: what was needless is not done again'
tr_equal 'snapshots of a table that was never renamed' 1 "$(snapshots w)"
tt_sql 'alter table w rename to w_new' "insert into w_new values (700, 'new')"
tt_live public.w_new
tt_waits public.w '^paused'
sleep 12
tr_equal 'snapshots of the old name, of the new name' '1 1' "$(snapshots w) $(snapshots w_new)"
# shellcheck disable=SC2086
tt_equal ${tables/public.w/public.w_new}
tt_stop
tr_step 'done'
