#!/usr/bin/env bash
# Every type that a column can have, with values at its edges: the same bytes in the log whether snapshot or stream brought them, equal in both
# mirrors, and kept there as docs/types.md says, whose table is made of what is found here.
#
#   tests/e2e/types.sh [15|18] [--write]    # --write puts the table into docs/types.md
# shellcheck disable=SC2016,SC2034,SC2046,SC2086,SC2119,SC2154 # commands for tr_wait_until; lists of tables; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

types() { python3 "$TR_E2E_DIR/types.py" "$1" --source "$TT_SHOP" "${@:2}" || exit 1; }
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
tr_psql src -c "create database latin encoding sql_ascii template template0" -c 'create database latin_mirror'
mv "$TR_TMP/state" "$TR_TMP/state-before"
TT_SHOP=${TT_SHOP/dbname=shop/dbname=latin}
TT_MIRROR=${TT_MIRROR/dbname=mirror/dbname=latin_mirror}
TT_SOURCE='  slot: latin'
TT_LITE_FILE=$TR_TMP/latin.db
tt_sql 'create table marker (id int primary key)' 'create table late (id int primary key, fine text, bad text)' 'create table early (id int primary key, bad text)' "insert into early values (1, E'\\xe9')"
tt_config
tt_run
tt_live public.late
tt_waits public.early 'paused.*column bad of table early.*invalid byte sequence'
tt_sql "insert into late values (1, 'x', 'y')"
tt_mark
tt_sql "update late set bad = E'\\xe9'"
tt_waits public.late 'paused.*column bad of table late.*invalid byte sequence'
tr_equal 'the bytes in SQLite' 'E9|E9' "$(tt_lite "select (select hex(bad) from late_live) || '|' || (select hex(bad) from early_live)")"
tt_stop
