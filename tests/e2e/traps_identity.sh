#!/usr/bin/env bash
# A published table without a replica identity refuses UPDATE and DELETE. Being captured must not do that to a table, nor to one that loses its key; what
# is not published says so, and comes in by itself when it may.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, v text)' "insert into t values (1, 'a'), (2, 'b')" 'create table nk (a int)' 'insert into nk values (1)' \
    'create table pt (id int, v text) partition by range (id)' 'create table pt1 partition of pt for values from (0) to (10)' "insert into pt values (1, 'p')"
TT_LITE="    changelog: ['public.nk']"
tt_config
tt_run
tt_live public.t
tr_wait_until 20 'tt_status | grep -q "it has no replica identity"' || tr_fail 'nothing is said of the table that is not published'
tr_step 'tables without a key can be written at the source'
tt_sql 'update nk set a = 2' 'insert into nk values (3)' 'delete from nk where a = 3' "update pt set v = 'q'" 'create table later (a int)' 'insert into later values (1)'
sleep 12 # a look at the tables
tt_sql 'update later set a = 2' 'update nk set a = 4'
"$TAILRACE" check -c "$TT_YAML" 2>&1 | grep -q 'nk is not published.*fail at the source' || tr_fail 'check does not say it'
tr_step 'one that loses its key waits, and comes back with it'
tt_sql 'alter table t drop constraint t_pkey'
tr_wait_until 15 "tt_sql \"update t set v = 'c' where id = 1\" 2>/dev/null" || tr_fail 'the source refuses UPDATE for good'
tt_waits public.t '^paused.*replica identity'
tt_sql "insert into t values (3, 'd')" 'alter table t add primary key (id)' "update t set v = 'e' where id = 2"
tr_wait_until 30 'tt_is_live public.t && [ "$(tt_mirror "select count(*) from t_live")" = 3 ]' || tr_fail 'it does not come back'
tt_equal public.t
tr_step 'with REPLICA IDENTITY FULL there is a history'
tt_sql 'alter table nk replica identity full'
# shellcheck disable=SC2034 # read by the command that is waited for
tr_wait_until 20 'tt_sql "update nk set a = a + 1"; [ "$(tt_lite "select count(*) > 0 from nk_changelog" 2>/dev/null)" = 1 ]' || tr_fail 'no history'
tt_stop
