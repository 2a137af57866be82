#!/usr/bin/env bash
# Makes tests/fuzz/corpus anew: what real servers of PostgreSQL 15 and 18 send, what tailrace makes of it, the examples of the documentation. Needed when a format
# or a message is new; the suite needs what it made, not this.
#
#   tests/fuzz/corpus.sh
# shellcheck disable=SC2016,SC2034,SC2154 # dollar quotes of SQL; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/tailrace.sh"
here=$TR_SOURCE_ROOT/tests/fuzz

tables() {
    "$1" "create type mood as enum ('sad', 'ok')" \
        'create table t (id int primary key, v text, big text, m mood, n numeric(12,4), f float8, b bytea, at timestamptz)' \
        'alter table t alter big set storage external' \
        'create table f (a int, b text, c text)' 'alter table f replica identity full' \
        'create table k (a int, b text collate "C", v text, primary key (b, a))'
}

changes() {
    "$1" "insert into t values (1, 'plain', repeat('x', 2100), 'ok', 1.50, 'NaN', '\\x00ff', '2024-02-29 12:00+02'), (2, null, null, null, null, null, null, null)" \
        "update t set v = E'tab\\tnew\\nback\\\\slash' where id = 1" 'update t set id = 3 where id = 1' 'delete from t where id = 2' \
        "insert into f values (1, 'a', null), (1, 'a', null)" "update f set c = 'c'" 'delete from f' \
        "insert into k values (1, 'x', 'v'), (2, 'y', 'w')" "update k set b = 'z' where a = 1" \
        'truncate t, k cascade' \
        "select pg_logical_emit_message(true, 'tailrace/heartbeat/main', '1700000000000000')" \
        "select pg_logical_emit_message(false, 'outbox', 'between transactions')" \
        "begin; insert into t (id, v) select i, repeat('s', 300) from generate_series(10, 14) i; savepoint a; insert into k values (9, 'gone', ''); rollback to a;
         insert into k values (10, 'kept', ''); update t set v = 'u' where id = 11; commit" \
        "begin; insert into t (id) values (90); prepare transaction 'one'" "commit prepared 'one'" \
        "begin; insert into t (id) values (91); prepare transaction 'two'" "rollback prepared 'two'" \
        'alter table t add column late int default 7' "insert into t (id, v) values (20, 'late')"
}

# record NAME CLUSTER PROTOCOL OPTIONS: what the slot sends, a message a line, in hex.
record() {
    tr_psql "$2" -c "select encode(data, 'hex') from pg_logical_slot_peek_binary_changes('$1', null, null, 'proto_version', '$3', 'publication_names', 'p' $4)" >"$TR_TMP/$1.hex"
    grep -q '^4[29]' "$TR_TMP/$1.hex" || grep -q '^53' "$TR_TMP/$1.hex" || tr_fail "slot $1 sent no transaction"
}

tr_step 'messages'
for version in 15 18; do
    name=pg$version
    # 18 can stream every transaction; 15 only large ones
    streaming=()
    [ "$version" = 15 ] || streaming=('debug_logical_replication_streaming = immediate')
    tr_pg_start "$version" "$name" 'wal_level = logical' 'max_prepared_transactions = 4' "${streaming[@]}"
    one() {
        local s args=()
        for s in "$@"; do args+=(-c "$s"); done
        tr_psql "$name" "${args[@]}" >/dev/null
    }
    tables one
    one 'create publication p for table t, f, k' "select pg_create_logical_replication_slot('plain$version', 'pgoutput')" \
        "select pg_create_logical_replication_slot('twophase$version', 'pgoutput', false, true)"
    [ "$version" = 15 ] || one "select pg_create_logical_replication_slot('stream$version', 'pgoutput')"
    changes one
    record "plain$version" "$name" 1 ", 'messages', 'true'"
    [ "$version" = 15 ] || record "stream$version" "$name" 4 ", 'streaming', 'parallel', 'messages', 'true'"
    record "twophase$version" "$name" 3 ", 'streaming', 'on'"
done
tr_psql pg15 -c 'copy t to stdout' -c 'copy k to stdout' -c 'copy (select null::text, E'"'"'a\\b\tc\nd\r\b\f\v'"'"') to stdout' -c 'select' -c "copy (values ('', 'x')) to stdout" >"$TR_TMP/copy.txt"

tr_step 'a change log'
tt_start 15
tables tt_sql
TT_PG='    changelog: ["public.f"]'
tt_config 'log: {segment_size: 1MiB}'
tt_run
tt_live public.t public.k
tt_sql "insert into t (id, v, n) values (1, 'plain', 1.50)" 'update t set id = 3 where id = 1' "insert into k values (1, 'x', 'v')" 'delete from k' 'truncate t' 'alter table t add column late int' "insert into t (id) values (4)"
tt_mark
tt_stop

tr_step 'writing'
"$TAILRACE" init --dsn 'postgresql://u@127.0.0.1/shop' -o "$TR_TMP/init.yaml" >/dev/null 2>&1 || true
python3 "$here/corpus.py" "$TR_SOURCE_ROOT" "$TR_TMP"
du -sb "$here/corpus"
