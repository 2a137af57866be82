#!/usr/bin/env bash
# What networks do to connections, through a proxy of our own (faultproxy.py) on the way to the source and to the PostgreSQL mirror: resets,
# messages cut in their middle, delay, a thin line, connections that are held and say nothing. Each is told by name and is over by itself, whether
# it meets the stream, inside a large streamed transaction too, a snapshot worker, or the sink.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}" 'logical_decoding_work_mem = 64kB'
proxied() { # NAME: a proxy in front of the server
    local port
    port=$(tr_free_port)
    tr_spawn "proxy_$1" python3 "$TR_E2E_DIR/faultproxy.py" "$port" "$PG_PORT_src" "$TR_TMP/$1"
    tr_wait_until 10 "[ -S '$TR_TMP/$1' ]"
    printf -v "PORT_$1" '%s' "$port"
}
# way NAME COMMAND...: to the proxy in front of the source, of the mirror
way() {
    local answer
    answer=$(python3 "$TR_E2E_DIR/faultproxy.py" "$TR_TMP/$1" "${@:2}") || tr_fail "the proxy does not know: $* ($answer)"
    printf '%s' "$answer"
}
hit() { # NAME SECONDS: a rule set since the last of these has met a connection
    local now
    tr_wait_until "$2" "[ \"\$(way $1 hits)\" -gt \"\${HITS_$1:-0}\" ]" || tr_fail "no connection of the $1 has met the fault"
    now=$(way "$1" hits)
    printf -v "HITS_$1" '%s' "$now"
}
over() { # TABLE...: no faults any more: all is well, nothing is missing
    way source clear >/dev/null
    way sink clear >/dev/null
    tt_well
    tt_equal "$@"
}
write() { tt_sql "update t set n = n + 1, v = repeat(md5(random()::text), 8) where id % 7 = $((RANDOM % 7))"; }
big() { tt_sql "insert into t select (select max(id) from t) + g, g, repeat(md5(g::text), 8) from generate_series(1, 6000) g"; }
waiting() { tr_wait_until 10 'tt_status | grep -q "\"waits for source: .*closed"' || tr_fail 'no table says that it waits for the source'; }

proxied source
proxied sink
direct=$TT_SHOP
mirror=$TT_MIRROR
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, 'v' from generate_series(1, 5000) g"
TT_SHOP=${direct/port=$PG_PORT_src/port=$PORT_source}
TT_MIRROR=${mirror/port=$PG_PORT_src/port=$PORT_sink}
TT_SOURCE='  wal_sender_timeout: 2s'
TT_PG='    write_timeout: 3s'
tt_config 'snapshot: {workers: 1, chunk_rows: 500}'
TT_SHOP=$direct
TT_MIRROR=$mirror

tr_step 'a snapshot worker: reset within its rows, cut within a row, over a thin line'
way source rule 'match=COPY (' skip=200 reset >/dev/null
tt_run
hit source 20
waiting
way source rule 'match=COPY (' skip=1001 truncate >/dev/null
hit source 20
waiting
way source rule 'match=COPY (' rate=20000 >/dev/null
hit source 20
sleep 1
way source clear >/dev/null
tt_live public.t public.marker
tt_equal public.t

stream='match=START_REPLICATION'
tr_step 'the stream: reset; cut within a message'
way source rule "$stream" skip=50000 reset >/dev/null
big
hit source 20
tt_trouble capture 'source: .*(reset|closed)' 5
over public.t
way source rule "$stream" skip=70001 truncate >/dev/null
big
hit source 20
over public.t

tr_step 'the stream: within a transaction that is streamed before its commit'
tt_open bulk "$TT_SHOP"
tt_do bulk "begin; insert into t select 1000000 + g, g, repeat(md5(g::text), 8) from generate_series(1, 6000) g"
way source rule "$stream" skip=100001 truncate >/dev/null
tt_do bulk "update t set n = n + 1 where id > 1000000"
hit source 20
way source clear >/dev/null
tt_do bulk 'commit'
tt_close bulk
over public.t

tr_step 'the stream: late, and over a thin line'
way source rule "$stream" delay=300 >/dev/null
write
hit source 10
tt_equal public.t
way source rule "$stream" rate=500000 >/dev/null
big
hit source 10
over public.t

tr_step 'the stream: held, in silence; noticed after three times wal_sender_timeout, 6 s; a new connection that is held, too'
way source rule match=replication stall >/dev/null # in its startup packet
write
hit source 10
began=$SECONDS
tt_trouble capture 'source: the server has said nothing for 6 s' 15
[ $((SECONDS - began)) -le 10 ] || tr_fail "it took $((SECONDS - began)) s"
tt_trouble capture 'source: no answer while connecting for 6 s' 15
over public.t

tr_step 'the sink: reset, cut within a message, late'
for fault in reset truncate; do
    way sink rule skip=7 "$fault" >/dev/null
    write
    hit sink 10
    tt_trouble pg 'sink pg: ' 10
    over public.t
done
way sink rule delay=200 >/dev/null
write
hit sink 10
over public.t

tr_step 'the sink: held, in silence; noticed after write_timeout, 3 s; the other sink goes on'
way sink rule stall >/dev/null
write
hit sink 10
tt_trouble pg 'sink pg: .*before (its|the) deadline' 10
tr_equal 'the other sink' 'running|' "$(tt_units | sed -n 's/^lite|//p')"
over public.t
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
