#!/usr/bin/env bash
# Packets lost, and a partition, in a network namespace of this test's own: packet filters on its loopback drop some, or all, of what goes to and
# comes from the server's port. Loss costs time only. A partition is noticed, and over once it is; the server gives up its side, too.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
if [ -z "${TR_IN_NETNS:-}" ]; then
    [ "$(id -u)" -eq 0 ] || { printf 'SKIP: a network namespace needs root\n' >&2; exit 77; }
    TR_IN_NETNS=1 exec unshare --net -- bash "${BASH_SOURCE[0]}" "$@"
fi
ip link set lo up
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=1
tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, n int, v text)' "insert into t select g, 0, repeat(md5(g::text), 8) from generate_series(1, 3000) g"
TT_SOURCE='  wal_sender_timeout: 2s'
TT_PG='    write_timeout: 3s'
tt_config 'snapshot: {chunk_rows: 500}'
nft add table inet faults
nft add chain inet faults in '{ type filter hook input priority 0; }'
# drop PORT [PERCENT]: of the packets from and to it, over what there was before
drop() {
    local way
    for way in sport dport; do
        # shellcheck disable=SC2086 # words
        nft add rule inet faults in tcp $way "$1" ${2:+numgen random mod 100 < $2} counter drop
    done
}
whole() { nft flush chain inet faults in; }
dropped() { nft list chain inet faults in | awk '/counter/ { for (i = 1; i < NF; i++) if ($i == "packets") n += $(i + 1) } END { print n + 0 }'; }
lossy() { # at least one packet was lost
    local n
    n=$(dropped)
    tr_step "$n packets dropped"
    [ "$n" -gt 0 ] || tr_fail 'no packet was dropped'
}
# What the test itself asks does not go over the network.
TT_SHOP="host=$PG_SOCK_src ${TT_SHOP#host=127.0.0.1 }"
TT_MIRROR="host=$PG_SOCK_dst ${TT_MIRROR#host=127.0.0.1 }"

tr_step 'a tenth of the packets is lost: snapshot, stream and sink are slower'
drop "$PG_PORT_src" 10
drop "$PG_PORT_dst" 10
tt_run
tt_live public.t public.marker
tt_sql "update t set n = n + 1" "insert into t select g, 0, repeat(md5(g::text), 8) from generate_series(3001, 9000) g" 'delete from t where id % 10 = 0'
tt_equal public.t
lossy
whole
tt_well

tr_step 'the source is cut off: noticed on both sides, the sinks stay as they are'
drop "$PG_PORT_src"
tt_sql "update t set v = 'meanwhile' where id % 3 = 0"
began=$SECONDS
tr_wait_until 10 '[ "$(tr_psql src -c "select count(*) from pg_stat_replication")" = 0 ]' || tr_fail 'the server does not give up the connection'
tt_trouble capture 'source: the server has said nothing for 6 s' 12
tr_step "noticed after $((SECONDS - began)) s"
tr_equal 'the sinks' 'running| running|' "$(tt_units | sed 1d | cut -d'|' -f2- | xargs -d '\n')"
lossy
whole
tt_equal public.t
tt_well

tr_step 'the PostgreSQL mirror is cut off: noticed after write_timeout, 3 s, the other goes on'
drop "$PG_PORT_dst"
tt_sql "update t set v = 'sink away' where id % 3 = 1"
tt_trouble pg 'sink pg: .*before (its|the) deadline' 10
tr_wait_until 10 '[ "$(tt_lite "select count(*) from t_live where v = '"'sink away'"'")" = "$(tt_sql "select count(*) from t where id % 3 = 1")" ]' || tr_fail 'the other sink does not go on'
lossy
whole
tt_equal public.t
tt_well
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
tr_step 'done'
