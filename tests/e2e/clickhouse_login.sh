#!/usr/bin/env bash
# Logging in to ClickHouse (argument: 26 or 18): a password, also one that is wrong or changes under a running program; a bearer token; TLS verified by ca_file,
# with certificates that have expired, are of another authority or for another name, and a ca_file that is none. Each trouble is told by its name with
# its cure, costs nothing but time, and is over once cured. No secret is told anywhere. TLS and tokens end in a proxy: the servers that there are here
# have neither.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from the helpers
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"
version=${1:-26}

tr_authority ours
tr_authority theirs
tr_certificate good 10 ours IP:127.0.0.1
tr_certificate expired 0 ours IP:127.0.0.1
tr_certificate foreign 10 theirs IP:127.0.0.1
tr_certificate renamed 10 ours DNS:ch.example.org
TR_CH_USERS='<writer><password>S3cret-one</password><profile>default</profile><quota>default</quota><networks><ip>127.0.0.1</ip></networks></writer>'
tr_ch_start "$version" ch
TT_CH=ch
tt_start 15
port=$(tr_free_port)
mode=$TR_TMP/mode
echo pass >"$mode"
: >"$TR_TMP/inserts"
serve() { # CERTIFICATE
    tr_kill tls KILL 2>/dev/null || true
    tr_spawn tls python3 "$TR_E2E_DIR/chproxy.py" "$port" "$CH_PORT_ch" "$mode" "$TR_TMP/inserts" "$TR_TMP/$1.crt" "$TR_TMP/$1.key"
    tr_wait_until 10 "curl -sk https://127.0.0.1:$port/ping >/dev/null" || tr_fail 'the proxy does not answer'
}
configured() { # SETTINGS
    TT_CLICKHOUSE="ca_file: ${ca:-$TR_TMP/ours.crt}, $1"
    tt_config
}
change() { tt_sql "update t set n = n + 1 where id % 3 = $((RANDOM % 3))"; }
again() { # with the settings as they are now
    tt_kill
    tt_run
    tr_wait_until 20 'tt_status >/dev/null'
}
tt_sql 'create table t (id int primary key, n int)' "insert into t select g, 0 from generate_series(1, 300) g"

tr_step 'a password that is wrong from the start'
TT_CH_URLS=https://127.0.0.1:$port
serve good
configured 'user: writer, password: S3cret-wrong'
tt_run
if [ "$version" = 26 ]; then wrong='Authentication failed'; else wrong='Wrong password for user writer'; fi
tt_trouble ch "$wrong.*look at user, password, token"
configured 'user: writer, password: S3cret-one'
again
tt_live public.t
tt_equal public.t

tr_step 'it changes under the running program'
sed -i 's/S3cret-one/S3cret-two/' "$TR_TMP/ch-ch/users.xml"
tr_ch_restart ch
change
tt_trouble ch "$wrong.*look at user, password, token"
sed -i 's/S3cret-two/S3cret-one/' "$TR_TMP/ch-ch/users.xml"
tr_ch_restart ch
tt_equal public.t
tt_well

tr_step 'certificates'
for case in 'expired|certificate has expired; the server.s certificate must be renewed' 'foreign|local issuer certificate; set ca_file to the PEM file' \
    'renamed|no alternative certificate subject name matches.*; name the server in urls as its certificate does'; do
    serve "${case%%|*}"
    change
    tt_trouble ch "${case#*|}"
    tr_equal 'the SQLite sink' 'running|' "$(tt_units | sed -n 's/^lite|//p')"
    serve good
    tt_equal public.t
    tt_well
done
: >"$TR_TMP/empty.crt"
ca=$TR_TMP/empty.crt
configured 'user: writer, password: S3cret-one'
again
tt_trouble ch 'ca_file cannot be read, or is no PEM file'
ca=$TR_TMP/theirs.crt
configured 'user: writer, password: S3cret-one'
again
tt_trouble ch 'set ca_file to the PEM file of the authority'
ca=
TT_CH_URLS=https://127.0.0.1:$CH_PORT_ch
configured 'user: writer, password: S3cret-one'
again
tt_trouble ch 'https in urls needs the server.s TLS port'

tr_step 'a token'
TT_CH_URLS=https://127.0.0.1:$port
echo 'token S3cret-token' >"$mode"
configured 'token: S3cret-bad'
again
tt_trouble ch 'the token is not valid.*look at user, password, token'
configured 'token: S3cret-token'
again
change
tt_equal public.t
tt_well

tr_step 'no secret is told'
curl -s "$(sed -n 's/^admin: {listen: \(.*\)}$/http:\/\/\1/p' "$TT_YAML")/metrics" >"$TR_TMP/metrics"
grep -q tailrace_pipeline "$TR_TMP/metrics" || tr_fail 'no metrics'
tt_status >"$TR_TMP/status"
"$TAILRACE" check -c "$TT_YAML" >"$TR_TMP/printed" 2>&1 || true
tt_stop
if grep -l 'S3cret' "$TR_TMP/tailrace.log" "$TR_TMP/metrics" "$TR_TMP/status" "$TR_TMP/printed" || grep -rl 'S3cret' "$TR_TMP/state"; then
    tr_fail 'a secret is told'
fi
