#!/usr/bin/env bash
# Another table takes the name of a mirrored one (an online migration's swap, a rebuild, a drop and a new start): the mirrors become
# the new table, without an operator, and keep no row of the old one.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start "${1:-15}"
tt_sql "create table t (id int primary key, v text)" "insert into t select g, 'old' from generate_series(1, 50) g" \
    "create table t_new (like t including all)" "insert into t_new values (1, 'new'), (99, 'new')" \
    "create table u (id int primary key, v text)" "insert into u select g, 'old' from generate_series(1, 50) g" \
    "create table d (id int primary key, v text)" "insert into d select g, 'old' from generate_series(1, 50) g"
TT_COMMIT=1s
tt_config
states() { echo "$(tt_in_sinks public.t), $(tt_in_sinks public.u), $(tt_in_sinks public.d)"; }
all_live() { [ "$(states)" = "live live, live live, live live" ]; }
tt_run
tr_wait_until 30 all_live
tr_step "three ways to replace a table"
tt_sql "begin; alter table t rename to t_old; alter table t_new rename to t; commit"
tt_sql "begin; create table u_new (like u including all); insert into u_new select id, 'rebuilt' from u where id <> 5; drop table u; alter table u_new rename to u; commit"
tt_sql "drop table d" "create table d (id int primary key, v text)" "insert into d values (3, 'fresh')"
replaced() { [ "$(tt_lite "select (select group_concat(id || v) from (select * from t_live order by id)), (select count(*) from u_live where v = 'rebuilt'), (select group_concat(id || v) from d_live)")" = '1new,99new|49|3fresh' ]; }
tr_wait_until 60 replaced || tr_fail "the mirror keeps the old tables: $(states)"
tr_wait_until 30 all_live
tt_sql "insert into t values (7, 'more')" "update u set v = 'more' where id = 7" "delete from d" "insert into d values (8, 'more')"
tr_wait_until 30 '[ "$(tt_lite "select count(*) from d_live where id = 8")" = 1 ]'
tr_wait_until 30 '[ "$(tt_mirror "select count(*) from d_live where id = 8")" = 1 ]'
tt_equal public.t public.u public.d
tr_step "done"
