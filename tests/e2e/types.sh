#!/usr/bin/env bash
# Every type that a column can have, with values at its edges: the same bytes in the log whether snapshot or stream brought them, equal in both
# mirrors, and kept there as docs/types.md says, whose table is made of what is found here.
#
#   tests/e2e/types.sh [15|18] [--write]    # --write puts the table into docs/types.md
# shellcheck disable=SC2016,SC2034,SC2046,SC2086,SC2119,SC2154 # commands for tr_wait_until; lists of tables; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

types() { python3 "$TR_E2E_DIR/type_values.py" "$1" --source "$TT_SHOP" "${@:2}" || exit 1; }
# Settings of the databases that would change what is printed or read must not matter. Money in a locale of its own, which Debian does not make by itself.
mkdir "$TR_TMP/locales"
localedef -i de_DE -f UTF-8 "$TR_TMP/locales/de_DE.UTF-8"
export LOCPATH=$TR_TMP/locales
tt_start "${1:-15}" 'fsync = off'
for setting in "datestyle = 'SQL, DMY'" "intervalstyle = iso_8601" "timezone = 'Asia/Kolkata'" 'extra_float_digits = -15' 'bytea_output = escape' 'xmloption = document' \
    'quote_all_identifiers = on' "lc_monetary = 'de_DE.UTF-8'"; do
    tt_sql "alter database shop set $setting"
done
for setting in "datestyle = 'German, DMY'" "intervalstyle = sql_standard" "timezone = 'America/New_York'" 'xmloption = document' 'array_nulls = off' 'standard_conforming_strings = off'; do
    tt_sql "alter database mirror set $setting"
done
tr_equal 'money as the source prints it' '1.234,56 €' "$(tt_sql "select '1234,56'::money")"
tr_step 'tables'
types prepare
tables=$(types tables)
tt_config 'snapshot: {tables: 20, chunk_rows: 50}'
tt_run
tr_step 'snapshots'
tt_live $tables
tr_step 'stream'
types stream
tt_equal $tables
"$TAILRACE" log cat -c "$TT_YAML" >"$TR_TMP/log.json"
types judge --sqlite "$TT_LITE_FILE" --postgres "$TT_MIRROR" --log "$TR_TMP/log.json" --page "$TR_SOURCE_ROOT/docs/types.md" "${@:2}"
tt_stop

tr_step 'a value that a sink cannot hold is refused by table and column'
tr_psql src -c 'create database snow' -c 'create database latin encoding latin1 template template0' -c 'create database bytes encoding sql_ascii template template0'
mv "$TR_TMP/state" "$TR_TMP/state-before"
TT_SHOP=${TT_SHOP/dbname=shop/dbname=bytes}
tt_config
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check.out" 2>&1 || true
grep -q '^warning.*the database is SQL_ASCII' "$TR_TMP/check.out" || tr_fail 'check does not warn of SQL_ASCII'
TT_SHOP=${TT_SHOP/dbname=bytes/dbname=snow}
TT_MIRROR=${TT_MIRROR/dbname=mirror/dbname=latin}
TT_SOURCE='  slot: snow'
TT_LITE_FILE=$TR_TMP/snow.db
tt_sql 'create table marker (id int primary key)' 'create table late (id int primary key, fine text, bad text)' 'create table early (id int primary key, bad text)' "insert into early values (1, '☃')"
tt_config
tt_run
tt_live public.late
tt_waits public.early 'paused.*column bad of table early.*no equivalent in encoding'
tt_sql "insert into late values (1, 'x', 'y')"
tt_mark
tt_sql "update late set bad = '☃'"
tt_waits public.late 'paused.*column bad of table late.*no equivalent in encoding'
tr_equal 'the states in SQLite' 'live live' "$(tt_in_sinks public.early | cut -d' ' -f1) $(tt_in_sinks public.late | cut -d' ' -f1)"
tt_stop
