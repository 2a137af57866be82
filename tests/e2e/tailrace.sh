# shellcheck shell=bash disable=SC2016,SC2120,SC2154
# tailrace in end-to-end tests, on top of lib.sh: a source database `shop` in cluster src, a SQLite mirror and a PostgreSQL mirror, sessions
# that stay open, and waiting for what status shows.
#
#   . "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"    # sources lib.sh
#   tt_start 15 ['key = value'...]                    # cluster and databases; the mirror lives in a cluster of its own, dst, if TT_DST=1
#   tt_sql 'create table …'
#   tt_config ['line of YAML'...]                     # more top-level lines, e.g. 'snapshot: {workers: 1, chunk_rows: 50}'
#   tt_run [name=kill|sleep:ms...]                    # tailrace in the background, with these fault points; again after tt_kill
#   tt_live public.t public.u                         # waits until both mirrors have them live
#   tt_equal public.t public.u                        # a marker row, the wait for it in both mirrors, compare.py
#
# With a ClickHouse server of clickhouse.sh, TT_CH=its name: a third mirror, sink `ch`, in its database `shop`. With several, 'a b': its shards. SINK=clickhouse in the environment
# (clickhouse18: of 18.16) starts one, so that a test runs with it as well.
#
# Variables before tt_config: TT_SOURCE (more lines of the source section), TT_LITE, TT_PG, TT_CLICKHOUSE (more of each sink's), TT_CH_URLS (for those of TT_CH), TT_HEARTBEAT, TT_COMMIT, TT_ENGINE
# (more of the engine's, as "key: value").

# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TT_MARK=0

tt_start() {
    local version=$1
    shift
    tr_pg_start "$version" src "$@"
    tr_psql src -c 'create database shop'
    TT_SHOP=${PG_DSN_src/dbname=postgres/dbname=shop}
    if [ "${TT_DST:-}" = 1 ]; then
        tr_pg_start 15 dst
        tr_psql dst -c 'create database mirror'
        TT_MIRROR=${PG_DSN_dst/dbname=postgres/dbname=mirror}
    else
        tr_psql src -c 'create database mirror'
        TT_MIRROR=${PG_DSN_src/dbname=postgres/dbname=mirror}
    fi
    TT_LITE_FILE=$TR_TMP/mirror.db
    TT_YAML=$TR_TMP/tailrace.yaml
    case ${SINK:-} in
    clickhouse | clickhouse18)
        # shellcheck source=tests/e2e/clickhouse.sh
        . "$TR_E2E_DIR/clickhouse.sh"
        [ "$SINK" = clickhouse ] && version=26 || version=18
        tr_ch_start "$version" ch
        TT_CH=ch
        ;;
    '') ;;
    *) tr_fail "SINK is clickhouse or clickhouse18, not '$SINK'" ;;
    esac
    tt_sql 'create table marker (id int primary key)'
}

# psql on the source, the PostgreSQL mirror; sqlite3 on the SQLite mirror. Statements as arguments, or on stdin.
tt_psql() {
    local dsn=$1 s args=()
    shift
    for s in "$@"; do
        args+=(-c "$s")
    done
    "$TR_PG_CLIENT/psql" -X -q -At -v ON_ERROR_STOP=1 -d "$dsn" "${args[@]}"
}
tt_sql() { tt_psql "$TT_SHOP" "$@"; }
tt_mirror() { tt_psql "$TT_MIRROR" "$@"; }
tt_lite() { sqlite3 -bail -cmd '.timeout 10000' "$TT_LITE_FILE" "$@"; }
# On the ClickHouse mirror, if there is one; on every shard of it, one answer behind the other.
tt_ch() {
    local s name
    for s in "$@"; do
        for name in ${TT_CH:-}; do
            tr_ch "$name" "$s" || return
        done
    done
}

tt_clickhouse_sink() {
    [ -n "${TT_CH:-}" ] || return 0
    local name urls=
    for name in $TT_CH; do
        urls+=${urls:+, }$(tr_get CH_URL "$name")
    done
    printf '  - {name: ch, type: clickhouse, urls: [%s], database: shop%s}\n' "${TT_CH_URLS:-$urls}" "${TT_CLICKHOUSE:+, $TT_CLICKHOUSE}"
}

tt_config() {
    {
        cat <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $TT_SHOP
  tables: [${TT_MATCH:-"'public.*'"}]
${TT_SOURCE:-}
sinks:
  - name: lite
    type: sqlite
    path: $TT_LITE_FILE
${TT_LITE:-}
  - name: pg
    type: postgres
    dsn: $TT_MIRROR
${TT_PG:-}
$(tt_clickhouse_sink)
engine: {heartbeat: ${TT_HEARTBEAT:-1s}, commit_interval: ${TT_COMMIT:-200ms}${TT_ENGINE:+, $TT_ENGINE}}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
        printf '%s\n' "$@"
    } >"$TT_YAML"
}

tt_run() {
    local IFS=,
    TAILRACE_FAILPOINTS="$*" tr_spawn tailrace "$TAILRACE" run -c "$TT_YAML"
}

tt_kill() {
    tr_kill tailrace KILL || true
}

# Until tailrace has killed itself at an armed fault point.
tt_died() {
    tr_wait_until "${1:-30}" '! tr_alive tailrace' || tr_fail 'no fault point was reached'
    local status=0
    wait "$PID_tailrace" 2>/dev/null || status=$?
    tr_equal 'exit status of tailrace at a fault point (SIGKILL)' 137 "$status"
}

tt_status() { "$TAILRACE" status -c "$TT_YAML" --json 2>/dev/null; }

# tt_state TABLE: "state|reason" of its snapshot, then "state|reason" in each sink, one a line.
tt_state() {
    tt_status | python3 -c '
import json, sys
s = json.load(sys.stdin)
for l in [s["capture"]["tables"]] + [k["tables"] for k in s["sinks"]]:
    t = [t for t in l if t["name"] == sys.argv[1]]
    print("%s|%s" % (t[0]["state"], t[0]["reason"]) if t else "none|")' "$1" 2>/dev/null
}

# tt_in_sinks TABLE: its state in the SQLite sink and in the PostgreSQL sink.
tt_in_sinks() { tt_state "$1" | sed '1d; 4,$d' | cut -d'|' -f1 | xargs; }

# tt_waits TABLE REGEX [SECONDS]: status says that its snapshot, or a sink's table, is in such a state for such a reason.
tt_waits() {
    tr_wait_until "${3:-20}" "tt_state '$1' | grep -Eq '$2'" || {
        tt_state "$1" >&2
        tr_fail "$1 does not show '$2'"
    }
}

# tt_units: "name|state|error" of capture and of each sink, one a line.
tt_units() {
    tt_status | python3 -c '
import json, sys
s = json.load(sys.stdin)
for name, u in [("capture", s["capture"])] + [(k["name"], k) for k in s["sinks"]]:
    print("%s|%s|%s" % (name, u["state"], u["error"]))' 2>/dev/null
}

# tt_trouble UNIT REGEX [SECONDS]: status says of capture, or of a sink, that it is in such trouble.
tt_trouble() {
    tr_wait_until "${3:-20}" "tt_units | grep -Eq '^$1[|][a-z]+[|].*($2)'" || {
        tt_units >&2
        tr_fail "status does not say of $1: $2"
    }
}

# tt_well [SECONDS]: every unit runs and none is in trouble.
tt_well() {
    tr_wait_until "${1:-40}" '[ "$(tt_units | cut -d"|" -f2- | sort -u)" = "running|" ]' || {
        tt_units >&2
        tr_fail 'a unit is still in trouble'
    }
}

# tt_told REGEX [SECONDS]: the program's log has such a line.
tt_told() {
    tr_wait_until "${2:-20}" "grep -Eq '$1' '$TR_TMP/tailrace.log'" || tr_fail "the log does not say: $1"
}

tt_is_live() { # one look at status, however many tables
    tt_status | python3 -c '
import json, sys
s = json.load(sys.stdin)
live = [{t["name"] for t in l if t["state"] == "live"} for l in [s["capture"]["tables"]] + [k["tables"] for k in s["sinks"]]]
sys.exit(0 if len(live) >= 3 and all(set(sys.argv[1:]) <= l for l in live) else 1)' "$@" 2>/dev/null
}

tt_live() {
    tr_wait_until "${TT_WAIT:-40}" "tt_is_live $*" || {
        for t in "$@"; do
            printf '%s\n' "$t" >&2
            tt_state "$t" >&2 || true
        done
        tr_fail "not live: $*"
    }
}

# A last change, by which both mirrors can be seen to have arrived: mirrors are consistent, so what came before it is there too.
tt_mark() {
    TT_MARK=$((TT_MARK + 1))
    tt_sql 'set synchronous_commit = local' "insert into marker values ($TT_MARK)"
    tr_wait_until "${TT_WAIT:-40}" "[ \"\$(tt_lite 'select count(*) from marker_live where id = $TT_MARK' 2>/dev/null)\" = 1 ]" || tr_fail 'the SQLite mirror has not arrived'
    tr_wait_until "${TT_WAIT:-40}" "[ \"\$(tt_mirror 'select count(*) from marker_live where id = $TT_MARK' 2>/dev/null)\" = 1 ]" || tr_fail 'the PostgreSQL mirror has not arrived'
    [ -z "${TT_CH:-}" ] || tr_wait_until "${TT_WAIT:-40}" "[ \"\$(tt_ch 'select id from shop.marker_live where id = $TT_MARK' 2>/dev/null)\" = $TT_MARK ]" || tr_fail 'the ClickHouse mirror has not arrived'
}

# tt_equal [--hard TABLE,...] TABLE...
tt_equal() {
    tt_mark
    local name compare=(python3 "$TR_E2E_DIR/compare.py" --source "$TT_SHOP")
    if [ -n "${TT_CH:-}" ]; then # its tables arrive each for itself
        for name in $TT_CH; do
            compare+=(--clickhouse "$(tr_get CH_URL "$name")")
        done
        compare+=(--database shop)
        tr_wait_until "${TT_WAIT:-40}" '"${compare[@]}" '"$*"' >"$TR_TMP/compare" 2>&1' || cat "$TR_TMP/compare" >&2
    fi
    "${compare[@]}" --sqlite "$TT_LITE_FILE" --postgres "$TT_MIRROR" "$@" public.marker >&2 || {
        "$TAILRACE" log verify -c "$TT_YAML" >&2 || true
        tr_fail "the mirrors are not equal to the source"
    }
}

# tt_frames OP TABLE: how many such frames the log holds.
tt_frames() {
    "$TAILRACE" log cat -c "$TT_YAML" | grep -ic "\"op\": \"$1\", \"table\": \"$2\"" || true
}

# tt_logged REGEX: a frame in the log looks like that. (Not grep -q, which would end the writer before its time.)
tt_logged() {
    [ "$("$TAILRACE" log cat -c "$TT_YAML" | grep -Ec "$1")" -gt 0 ]
}

tt_stop() {
    tr_kill tailrace TERM || tr_fail "tailrace did not stop cleanly ($?)"
}

# --- sessions that stay open -------------------------------------------------------------------------------------------------------

# tt_open NAME [DSN]: a psql that takes statements; on $TT_SHOP by default.
tt_open() {
    mkfifo "$TR_TMP/fifo-$1"
    "$TR_PG_CLIENT/psql" -X -q -At -d "${2:-$TT_SHOP}" <"$TR_TMP/fifo-$1" >"$TR_TMP/out-$1" 2>&1 &
    TR_PIDS+=("$!")
    TR_PID_NAMES+=("session")
    : >>"$TR_TMP/session.log"
    exec {TT_FD}>"$TR_TMP/fifo-$1"
    printf -v "FD_$1" '%s' "$TT_FD"
}

# tt_say NAME SQL: does not wait for it, which may hang.
tt_say() {
    local fd=FD_$1
    printf '%s;\n' "$2" >&"${!fd}"
}

# tt_do NAME SQL: until it is done.
tt_do() {
    tt_say "$1" "$2"
    local fd=FD_$1
    printf '\\echo done-%s\n' "$((++TT_DONE))" >&"${!fd}"
    tr_wait_until 20 "grep -q '^done-$TT_DONE\$' '$TR_TMP/out-$1'" || {
        cat "$TR_TMP/out-$1" >&2
        tr_fail "session $1 hangs in: $2"
    }
}
TT_DONE=0

tt_close() {
    local fd=FD_$1
    eval "exec ${!fd}>&-"
}

# Until a backend of the source hangs in such a wait event.
tt_hangs() {
    tr_wait_until 20 "[ \"\$(tr_psql src -c \"select count(*) > 0 from pg_stat_activity where wait_event = '$1'\")\" = t ]" || tr_fail "nothing hangs in $1"
}

# tt_resnapshots TABLE: two new snapshots of public.TABLE (columns id, n), one after the other, each with an update before it is live.
tt_resnapshots() {
    local i before
    for i in 1 2; do
        "$TAILRACE" table resnapshot "public.$1" -c "$TT_YAML"
        before=$(tt_frames SNAPSHOT_END "public.$1")
        tr_wait_until 30 "[ \"\$(tt_frames SNAPSHOT_END public.$1)\" -gt $before ]" || tr_fail 'no new snapshot'
        tt_sql "update $1 set n = n + $i where id % 3 = 0"
        tt_live "public.$1"
        tt_equal "public.$1"
    done
}
