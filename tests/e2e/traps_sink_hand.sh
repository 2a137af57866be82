#!/usr/bin/env bash
# Hands in the sinks: a view on a mirror, triggers that refuse or fail, a column, a changelog, a whole mirror file that go, two tables that would have one
# name. Each pauses its table and no other, or is mended by itself; cured and resumed, mirrors are equal and histories whole.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text, n int)' "insert into t select g, 'v' || g, g from generate_series(1, 20) g" \
    'create table by (id int primary key)' 'create table nk (a int)' 'alter table nk replica identity full' 'create schema s2' 'create table s2.x (id int primary key, v text)' "insert into s2.x values (1, 'inner')"
TT_MATCH="'public.*', 's2.*'"
TT_LITE="    changelog: ['public.t', 'public.nk']"
TT_PG="    changelog: ['public.t', 'public.nk']"
tt_config
tt_run
tt_live public.t public.by s2.x
tt_sql 'insert into nk values (0)'

# histories TABLE ROWS: the changelog of each sink holds so many changes, each once
histories() {
    tr_wait_until 20 "[ \"\$(tt_lite 'select count(*) from $1_changelog')\" = $2 ] && [ \"\$(tt_mirror 'select count(*) from $1_changelog')\" = $2 ]" || {
        tr_step "$1: $(tt_lite "select count(*) from $1_changelog") and $(tt_mirror "select count(*) from $1_changelog") instead of $2"
        tr_fail "the changelogs of $1 are not whole"
    }
}
bystander() {
    BY=$((${BY:-0} + 1))
    tt_sql "insert into by values ($BY)"
    tr_wait_until 15 "[ \"\$(tt_lite 'select count(*) from by')\" = $BY ] && [ \"\$(tt_mirror 'select count(*) from by')\" = $BY ]" || tr_fail "$1 stops another table, too"
}
resume() { "$TAILRACE" table resume "$1" -c "$TT_YAML" >/dev/null; }
resnapshot() { "$TAILRACE" table resnapshot "$1" -c "$TT_YAML" >/dev/null; }

tr_step 'a view of somebody on a mirror: the swap is refused, that table waits'
tt_mirror 'create view mine as select id from t'
resnapshot public.t
tt_waits public.t '^paused.*depend'
bystander 'a view'
tt_mirror 'drop view mine'
resume public.t
tt_live public.t
tt_equal public.t

tr_step 'triggers on a mirror: one that raises, one that misses a table'
tt_mirror "create function no() returns trigger language plpgsql as 'begin if new.id = 3 then raise exception ''not three''; end if; return new; end'" \
    'create trigger no before insert or update on t for each row execute function no()'
tt_lite 'create trigger no before update on t when new.id = 3 begin insert into missing values (1); end'
tt_sql 'update t set n = n + 100'
tr_wait_until 30 '[ "$(tt_state public.t | grep -c ^paused)" = 2 ]' || tr_fail 'a trigger that refuses does not pause its table'
tt_sql "update t set v = 'after' where id = 3" 'update t set n = n + 1 where id = 3'
bystander 'a trigger'
tt_mirror 'drop trigger no on t'
tt_lite 'drop trigger no'
resume public.t
tt_live public.t
tt_equal public.t
histories t 22

tr_step 'a column dropped by hand does not come back empty'
tt_mirror 'drop view t_live' 'alter table t drop column n'
tt_sql "update t set v = 'x' where id = 1"
tt_waits public.t '^paused.*column n was removed'
bystander 'a dropped column'
resnapshot public.t
tt_live public.t
tt_equal public.t
histories t 23
histories nk 1

tr_step 'changelogs dropped by hand begin anew'
tt_mirror 'drop table t_changelog' 'drop table nk_changelog'
tt_sql "update t set v = 'y' where id = 1" 'insert into nk values (1)'
tr_wait_until 20 '[ "$(tt_mirror "select count(*) from t_changelog" 2>/dev/null)" = 1 ] && [ "$(tt_mirror "select count(*) from nk_changelog" 2>/dev/null)" = 1 ]' ||
    tr_fail 'a changelog that was dropped does not begin anew'
tt_equal public.t
[ "$(tt_state public.t | grep -c ^live)" = 3 ] || tr_fail 'a changelog that was dropped pauses its table'

tr_step 'the mirror file is removed under the running program'
rm -f "$TT_LITE_FILE" "$TT_LITE_FILE-wal" "$TT_LITE_FILE-shm"
tt_sql "update t set v = 'z' where id = 2" 'insert into nk values (2)'
tr_wait_until 30 '[ "$(tt_lite "select count(*) from t_live" 2>/dev/null)" = 20 ]' || tr_fail 'the mirror is not built again'
tt_live public.t public.by s2.x
tt_equal public.t public.by s2.x
tr_wait_until 20 '[ "$(tt_lite "select count(*) from t_changelog")" = 25 ] && [ "$(tt_lite "select count(*) from nk_changelog")" = 3 ]' || tr_fail 'the history is not brought again'

tr_step 'two tables that would have one name: the second waits, also over a restart, and takes nothing'
tt_sql 'create table public.s2__x (id int primary key, v text)' "insert into public.s2__x values (1, 'outer')"
tr_wait_until 30 "grep -q 'mirrors s2.x already' <(tt_state public.s2__x)" || tr_fail 'two tables share a name'
tt_sql "update s2.x set v = 'inner 2'" "update public.s2__x set v = 'outer 2'"
tr_wait_until 15 '[ "$(tt_lite "select v from s2__x")" = "inner 2" ]' || tr_fail 'the first does not go on'
tt_kill
tt_run
tr_wait_until 20 'tt_is_live public.t s2.x' || tr_fail 'not live again'
tt_sql "update s2.x set v = 'inner 3'" "update public.s2__x set v = 'outer 3'"
tr_wait_until 15 '[ "$(tt_lite "select v from s2__x")" = "inner 3" ]' || tr_fail 'the first does not go on after a restart'
tt_equal public.t public.by s2.x
tr_step 'done'
tt_stop
