#!/usr/bin/env bash
# Passwords and certificates at the source and at the PostgreSQL mirror: SCRAM over TLS with sslmode=verify-full works; a password that is wrong at
# the start or changed under a running program, a certificate that has expired, one of another authority and one of another name are each told
# by name, cost nothing but time, and are over once cured. The password itself is never told.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

serve() { # CERTIFICATE: the server has it from its next connection on
    local f
    for f in crt key; do
        tr_as_pg tee "$PG_DATA_src/server.$f" <"$TR_TMP/$1.$f" >/dev/null
    done
    tr_as_pg chmod 600 "$PG_DATA_src/server.key"
    tr_psql src -c 'alter system set ssl = on' -c 'select pg_reload_conf()' >/dev/null
    sleep 0.3
}
sever() { # USER: its connections end, the next ones meet what is new
    tr_psql src -c "select pg_terminate_backend(pid) from pg_stat_activity where usename = '$1'" >/dev/null 2>&1
}
tr_authority ours
tr_authority theirs
tr_certificate good 10 ours IP:127.0.0.1
tr_certificate expired 0 ours IP:127.0.0.1
tr_certificate foreign 10 theirs IP:127.0.0.1
tr_certificate renamed 10 ours DNS:db.example.org

tt_start "${1:-15}" "password_encryption = 'scram-sha-256'"
serve good
tr_psql src -c "create role reader login replication superuser password 'S3cret-source'" -c "create role writer login superuser password 'S3cret-sink'"
{
    printf 'hostssl all,replication reader,writer 127.0.0.1/32 scram-sha-256\nhostnossl all,replication reader,writer 127.0.0.1/32 reject\n'
    cat "$PG_DATA_src/pg_hba.conf"
} >"$TR_TMP/hba"
tr_as_pg tee "$PG_DATA_src/pg_hba.conf" <"$TR_TMP/hba" >/dev/null
tr_psql src -c 'select pg_reload_conf()' >/dev/null
tt_sql 'create table t (id int primary key, v text)' "insert into t select g, 'v' from generate_series(1, 100) g"
tls="sslmode=verify-full sslrootcert=$TR_TMP/ours.crt"
direct=$TT_SHOP
mirror=$TT_MIRROR
configured() { # PASSWORD AT THE SOURCE, AT THE SINK
    TT_SHOP="host=127.0.0.1 port=$PG_PORT_src user=reader dbname=shop password=$1 $tls"
    TT_MIRROR="postgresql://writer:$2@127.0.0.1:$PG_PORT_src/mirror?sslmode=verify-full&sslrootcert=$TR_TMP/ours.crt"
    tt_config
    TT_SHOP=$direct
    TT_MIRROR=$mirror
}

tr_step 'wrong passwords from the start'
configured S3cret-wrong S3cret-bad
code=0
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check.log" 2>&1 || code=$?
tr_equal 'exit code of check' 4 "$code"
grep -q 'password authentication failed for user "reader"' "$TR_TMP/check.log" || tr_fail 'check does not say whose password is wrong'
tt_run
tt_trouble capture 'password authentication failed for user "reader"'
tt_trouble pg 'password authentication failed for user "writer"'
tt_told 'WARN.*password authentication failed for user ."reader'
tr_kill tailrace TERM || tr_fail 'it does not stop'

tr_step 'right ones, SCRAM over TLS with the certificate verified'
configured S3cret-source S3cret-sink
tt_run
tt_live public.t public.marker
tt_equal public.t
tr_equal 'connections without TLS' 0 "$(tr_psql src -c "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) where usename in ('reader', 'writer') and not ssl")"
[ "$(tr_psql src -c "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) where usename in ('reader', 'writer') and ssl")" -ge 3 ] || tr_fail 'no connections with TLS'
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/check.log" 2>&1 || tr_fail "check finds errors: $(cat "$TR_TMP/check.log")"

tr_step 'passwords changed under a running program: what is connected goes on, what connects anew does not'
tr_psql src -c "alter role reader password 'S3cret-source-2'" -c "alter role writer password 'S3cret-sink-2'"
tt_sql "update t set v = 'connected' where id = 1"
tt_equal public.t
sever reader
sever writer
tt_sql "update t set v = 'not connected' where id = 2"
tt_trouble capture 'password authentication failed for user "reader"'
tr_equal 'the SQLite mirror has what there was' connected "$(tt_lite 'select v from t where id = 1')"
tr_psql src -c "alter role reader password 'S3cret-source'"
tt_trouble pg 'password authentication failed for user "writer"'
tr_psql src -c "alter role writer password 'S3cret-sink'"
tt_equal public.t
tt_well

tr_step 'a certificate that has expired; then one of another authority, and one of another name'
meets() { # CERTIFICATE MESSAGE
    serve "$1"
    sever reader
    sever writer
    tt_sql "update t set v = '$1' where id % 10 = 3"
    tt_trouble capture "$2"
    tt_trouble pg "$2"
}
meets expired 'certificate verify failed'
serve good
tt_equal public.t
tt_well
meets foreign 'certificate verify failed'
meets renamed 'does not match host name'
serve good
tt_equal public.t
tt_well
tt_stop

tr_step 'no password is told'
[ -s "$TR_TMP/tailrace.log" ] || tr_fail 'there is no log'
! grep -rl 'S3cret' "$TR_TMP"/*.log "$TR_TMP/state" || tr_fail 'a password was told'
tr_step 'done'
