#!/usr/bin/env bash
# What can befall a ClickHouse mirror: answers that lie (200 with an exception in a header, as text, from somebody else), too many parts, an INSERT that was
# applied and never answered (no row twice), a table changed by hand, a value that does not fit, and
# another process with a newer lease. Each is told by its name, nothing is lost, the other mirrors go on.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tr_ch_start 26 ch
TT_CH=ch
tt_start 15
tr_chproxy ch
mode=$CHPROXY_MODE inserts=$CHPROXY_INSERTS TT_CH_URLS=$CHPROXY_URL
TT_CLICKHOUSE='write_timeout: 2s'
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' from generate_series(1, 500) g" 'create table o (id int primary key, at timestamptz)' 'insert into o values (1, now())'
tt_config
tt_run
tt_live public.t public.o public.marker
tt_equal public.t public.o

change() { tt_sql "update t set n = n + 1 where id % 3 = $((RANDOM % 3))"; }
# befall MODE REGEX: while INSERTs meet this, status says so of the sink, and of no other
befall() {
    tr_step "$1"
    echo "$1" >"$mode"
    change
    tt_trouble ch "$2"
    tr_wait_until 20 "grep -q '^$1 ' '$inserts'" || tr_fail "no INSERT met $1"
    tr_equal 'the SQLite sink' 'running|' "$(tt_units | sed -n 's/^lite|//p')"
    echo pass >"$mode"
    tt_equal public.t public.o
    tt_well
}
befall header 'exception 241|Memory limit'
befall text 'Memory limit'
befall html 'welcome'
befall busy 'Too many parts'

tr_step 'applied, and never answered: it comes again under its token, and no row is there twice'
tr_ch ch 'system stop merges shop.t'
before=$(tr_ch ch 'select count() from shop.t')
echo late >"$mode"
tt_sql 'update t set n = -1 where id <= 100'
tr_wait_until 20 '[ "$(grep "^late " "$inserts" | sort | uniq -d | wc -l)" -gt 0 ]' || tr_fail 'no INSERT came again'
echo pass >"$mode"
tt_equal public.t
tr_equal 'rows that the INSERTs added' $((before + 100)) "$(tr_ch ch 'select count() from shop.t')"
tr_ch ch 'system start merges shop.t'
tt_well

tr_step 'a column is dropped by hand'
tr_ch ch 'alter table shop.t drop column v'
change
tt_waits public.t 'paused.*column v was removed from table t'
tt_sql "insert into o values (2, '2100-01-01')"
tr_wait_until 20 '[ "$(tr_ch ch "select count() from shop.o_live")" = 2 ]' || tr_fail 'the other table does not go on'
"$TAILRACE" table resnapshot public.t -c "$TT_YAML"
tt_live public.t
tt_equal public.t

tr_step 'a value that does not fit'
tt_sql "update o set at = 'infinity' where id = 1"
tt_waits public.o 'paused.*column at of table public.o: a value does not fit'
change
tt_equal public.t
tt_stop
sed -i 's/database: shop/&, as_text: [public.*.at]/' "$TT_YAML"
tt_run
tr_wait_until 20 'tt_status >/dev/null'
"$TAILRACE" table resnapshot public.o -c "$TT_YAML"
tt_live public.o
tt_equal public.t public.o

tr_step 'another process has a newer lease'
tr_ch ch "insert into shop._tailrace_lease (sink, token) values ('ch', 18446744073709551615)"
change
tr_wait_until 20 '! tr_alive tailrace' || tr_fail 'it goes on beside the other'
code=0
wait "$PID_tailrace" || code=$?
tr_equal 'exit code' 5 "$code"
tt_told 'sink ch: a process with a newer lease has written here'
tr_ch ch 'truncate table shop._tailrace_lease'
tt_run
tt_equal public.t public.o
tt_well
tt_stop
