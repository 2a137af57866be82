#!/usr/bin/env bash
# The harness itself: both versions of PostgreSQL and of ClickHouse start, answer, crash, recover, stream to a standby, and leave nothing behind.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"

for version in 15 18; do
    name=src$version
    tr_step "PostgreSQL $version"
    tr_pg_start "$version" "$name" 'work_mem = 9MB'
    dsn=PG_DSN_$name
    tr_equal 'server version' "$version" "$("$TR_PG_CLIENT/psql" -X -At -d "${!dsn}" -c "select current_setting('server_version_num')::int / 10000")"
    tr_equal 'wal_level' logical "$(tr_psql "$name" -c 'show wal_level')"
    tr_equal 'own setting' 9MB "$(tr_psql "$name" -c 'show work_mem')"
    tr_equal 'prepared transactions' 20 "$(tr_psql "$name" -c 'show max_prepared_transactions')"
    tr_pgbench "$name" -i -s 1 -q >/dev/null 2>&1
    tr_psql "$name" -c "create table t (id int primary key, v text); insert into t select g, 'v' || g from generate_series(1, 1000) g"

    tr_step "PostgreSQL $version: standby"
    tr_pg_standby "rep$version" "$name"
    tr_psql "$name" -c "insert into t values (1001, 'after')"
    tr_wait_until 20 "[ \"\$(tr_psql rep$version -c 'select count(*) from t')\" = 1001 ]"
    tr_equal 'in recovery' t "$(tr_psql "rep$version" -c 'select pg_is_in_recovery()')"

    tr_step "PostgreSQL $version: crash and restart"
    tr_pg_crash "$name"
    if tr_psql "$name" -c 'select 1' >/dev/null 2>&1; then
        tr_fail 'a crashed cluster answers'
    fi
    tr_pg_restart "$name"
    tr_equal 'rows after recovery' 1001 "$(tr_psql "$name" -c 'select count(*) from t')"
    tr_pg_restart "$name"
    tr_psql "$name" -c "insert into t values (1002, 'after the restart')"
    tr_wait_until 20 "[ \"\$(tr_psql rep$version -c 'select count(*) from t')\" = 1002 ]"
    tr_pg_stop "rep$version"
    tr_pg_stop "$name"
done

for version in 26 18; do
    name=ch$version
    tr_step "ClickHouse $version"
    tr_ch_start "$version" "$name" '<keep_alive_timeout>7</keep_alive_timeout>'
    url=CH_URL_$name
    tr_equal 'server version' "$version" "$(curl -sS "${!url}/?query=SELECT+version()" | cut -d. -f1)"
    tr_equal 'own setting' 'Keep-Alive: timeout=7' "$(curl -sSI "${!url}/ping" | grep -io 'keep-alive: timeout=7')"
    tr_ch "$name" 'CREATE TABLE t (a UInt8, b String) ENGINE = MergeTree ORDER BY a'
    printf '\1\1\0\2\1\n' | tr_ch "$name" 'INSERT INTO t FORMAT RowBinary'
    if (printf '\1' | tr_ch "$name" 'INSERT INTO t FORMAT RowBinary') 2>/dev/null || (tr_ch "$name" 'SELECT no_such_column FROM t') 2>/dev/null; then
        tr_fail 'tr_ch takes an exception for an answer'
    fi
    tr_kill "$name" KILL || true
    if (tr_ch "$name" 'SELECT 1') 2>/dev/null; then
        tr_fail 'a killed server answers'
    fi
    tr_ch_restart "$name"
    tr_equal 'rows after kill -9' $'1\t\\0\n2\t\\n' "$(tr_ch "$name" 'SELECT a, b FROM t ORDER BY a')"
    tr_kill "$name" || true
done

tr_step 'processes'
tr_spawn sleeper sleep 1000
tr_alive sleeper
status=0
tr_kill sleeper || status=$?
tr_equal 'exit status of a process ended by SIGTERM' 143 "$status"
if tr_alive sleeper; then
    tr_fail 'an ended process is alive'
fi
if tr_wait_until 1 false 2>/dev/null; then
    tr_fail 'tr_wait_until does not give up'
fi

# What is left running is the trap's business: a second shell shows it.
tr_step 'clearing up'
left=$(
    bash -c '
        set -euo pipefail
        . "$1/lib.sh"
        tr_pg_start 15 left
        tr_spawn sleeper sleep 1000
        echo "$TR_TMP $PID_sleeper $(head -n 1 "$PG_DATA_left/postmaster.pid")"
        exit 3
    ' bash "$TR_E2E_DIR" 2>/dev/null
) && tr_fail 'the exit status got lost'
read -r dir sleeper postmaster <<<"$left"
[ ! -e "$dir" ] || tr_fail "$dir is left behind"
if tr_pid_alive "$sleeper" || tr_pid_alive "$postmaster"; then
    tr_fail 'processes are left behind'
fi
tr_step 'all well'
