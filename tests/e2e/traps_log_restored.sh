#!/usr/bin/env bash
# The change log was restored from a copy that is older than the control store: what it lacks is asked of the source again, loudly. A sink that stood beyond its end does not
# go on from there once the log has grown past it.
# shellcheck disable=SC2016,SC2119,SC2154 # commands for tr_wait_until; variables from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
tt_start 15
tt_sql "create table t (id int primary key, v text)" "create table u (id int primary key, v text)" "insert into t select g, 'v' from generate_series(1, 50) g"
tt_config
tt_run
tt_live public.t public.u
tt_stop
cp -a "$TR_TMP/state/log" "$TR_TMP/older"

tr_step "two hundred changes that the copy lacks"
tt_run
tt_sql "update t set v = 'lost' || id where id % 2 = 0" "delete from t where id % 5 = 0" "insert into t select g, 'lost' from generate_series(100, 250) g" "insert into u values (1, 'lost')"
tt_equal public.t public.u
tt_stop

tr_step "the older log"
rm -r "$TR_TMP/state/log"
mv "$TR_TMP/older" "$TR_TMP/state/log"
tt_sql "update t set v = 'new' where id % 3 = 0" "delete from u" "insert into t select g, 'new' from generate_series(300, 900) g"
tt_run
tt_told 'the sink was at offset [0-9]+, but the log ends at [0-9]+'
tt_told 'a new epoch begins, .*the change log ends at offset [0-9]+, but [0-9]+ was durable'
tt_live public.t public.u
tt_equal public.t public.u
tr_wait_until 20 '! tt_status | grep -q "\"gapped\""' || tr_fail 'the alarm does not end'

tr_step "and once more, with sinks that had never seen the end"
tt_kill
tt_run
tt_sql "update t set v = 'after' where id % 7 = 0" "insert into u values (2, 'after')"
tt_equal public.t public.u
tr_equal 'new epochs' 1 "$(grep -c 'a new epoch begins' "$TR_TMP/tailrace.log")"
tr_step "done"
