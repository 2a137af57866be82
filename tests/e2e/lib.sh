# shellcheck shell=bash
# Helpers for end-to-end tests: throwaway PostgreSQL clusters on loopback, waiting, and clearing up after oneself.
#
#   #!/usr/bin/env bash
#   set -euo pipefail
#   . "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#   tr_pg_start 15 src 'shared_buffers = 256MB'     # NAME is made of letters, digits and _
#   tr_psql src -c 'create table t (id int primary key)'
#   tr_spawn tailrace "$TAILRACE" run --config ...  # its pid in $PID_tailrace, its output in $TR_TMP/tailrace.log
#   tr_wait_until 10 'test "$(tr_psql src -c "select count(*) from t")" = 5'
#
# For a cluster NAME there are PG_DSN_NAME (TCP), PG_SOCK_DSN_NAME (unix socket), PG_PORT_NAME, PG_SOCK_NAME, PG_DATA_NAME,
# PG_BIN_NAME, PG_LOG_NAME. VERSION is 15 (Debian's) or 18 (scripts/setup.sh --test put it into the cache). The client programs are
# Debian's for both. Clusters run as `postgres` when we are root, since PostgreSQL refuses to run as root.
#
# A trap ends what this script has started, by pid, and removes $TR_TMP; TR_KEEP=1 keeps the files. Exit 77 is a skipped test.

if declare -F tr_cleanup >/dev/null; then # clickhouse.sh and tailrace.sh both stand on it
    return
fi

TR_E2E_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TR_SOURCE_ROOT=$(cd "$TR_E2E_DIR/../.." && pwd)
# shellcheck source=scripts/paths.sh
. "$TR_SOURCE_ROOT/scripts/paths.sh"

: "${TAILRACE:=$TR_SOURCE_ROOT/build/src/cli/tailrace}"
export TAILRACE
export LC_ALL=C PGTZ=UTC PGCONNECT_TIMEOUT=10
# Nothing of the caller's own database settings may leak in.
unset PYTHONUNBUFFERED # what is read by grep -q is written at once: a second write would meet a closed pipe
unset PGHOST PGPORT PGUSER PGDATABASE PGPASSWORD PGSERVICE PGOPTIONS PGDATA

TR_PG_CLIENT=/usr/lib/postgresql/15/bin
TR_TMP=$(mktemp -d "${TMPDIR:-/tmp}/tailrace-e2e.XXXXXX")
chmod 755 "$TR_TMP"
TR_PG_NAMES=()
TR_PIDS=()
TR_PID_NAMES=()
TR_AT_END=() # commands for the end, the last first, when the processes have ended and the files are still there
TR_START=$SECONDS
if [ "$(id -u)" -eq 0 ]; then
    TR_PG_USER=$(tr_pg_user)
else
    TR_PG_USER=$(id -un)
fi

tr_step() {
    printf '[%4ds] %s\n' "$((SECONDS - TR_START))" "$*" >&2
}

tr_fail() {
    printf 'FAIL: %s\n' "$*" >&2
    exit 1
}

# tr_skip WHY...: ends the test as skipped.
tr_skip() {
    printf 'SKIP: %s\n' "$*" >&2
    exit 77
}

# tr_equal WHAT EXPECTED ACTUAL
tr_equal() {
    if [ "$2" != "$3" ]; then
        printf 'FAIL: %s\n  expected: %s\n  actual:   %s\n' "$1" "$2" "$3" >&2
        exit 1
    fi
}

# tr_as_pg COMMAND...: as the clusters' user, with a clean environment (LOCPATH, if it is set, for locales of a test's own), in a directory that this user can see.
tr_as_pg() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && exec setpriv --reuid="$TR_PG_USER" --regid="$(id -g "$TR_PG_USER")" --init-groups -- \
            env -i PATH="$PATH" HOME=/ LC_ALL=C TZ=UTC ${LOCPATH:+LOCPATH="$LOCPATH"} "$@")
    else
        (cd / && exec env -i PATH="$PATH" HOME="$HOME" LC_ALL=C TZ=UTC ${LOCPATH:+LOCPATH="$LOCPATH"} "$@")
    fi
}

tr_get() {
    local var=$1_$2
    printf '%s' "${!var:?no cluster or process named $2}"
}

tr_pg_bin() {
    local dir
    case $1 in
    15) dir=/usr/lib/postgresql/15/bin ;;
    18) dir=$(tr_cache_dir)/pg18/bin ;;
    *) tr_fail "there is no PostgreSQL $1 here, only 15 and 18" ;;
    esac
    [ -x "$dir/postgres" ] || tr_fail "PostgreSQL $1 is not in $dir; run scripts/setup.sh --test"
    printf '%s' "$dir"
}

# A port nobody listens on, below the range that outgoing connections take theirs from. Somebody else may take it before it is
# used: tr_pg_start then tries another.
tr_free_port() {
    python3 - <<'PY'
import random, socket
for port in random.sample(range(20000, 32000), 200):
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port))
    except OSError:
        continue
    finally:
        s.close()
    print(port)
    break
else:
    raise SystemExit("no free port on 127.0.0.1")
PY
}

# tr_wait_until SECONDS 'COMMAND': until the command succeeds, looking ten times a second; 1 when the time is up.
tr_wait_until() {
    local deadline
    deadline=$(($(date +%s%N) + $1 * 1000000000))
    until eval "$2"; do
        if [ "$(date +%s%N)" -ge "$deadline" ]; then
            printf 'not within %s s: %s\n' "$1" "$2" >&2
            return 1
        fi
        sleep 0.1
    done
}

# --- certificates, by openssl ------------------------------------------------------------------------------------------------------

# tr_authority NAME: $TR_TMP/NAME.crt and NAME.key.
tr_authority() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 10 -subj "/CN=$1" -keyout "$TR_TMP/$1.key" -out "$TR_TMP/$1.crt" 2>/dev/null
}

# tr_certificate NAME DAYS AUTHORITY HOST: NAME.crt and NAME.key, signed by the authority, for IP:… or DNS:…. 0 days: it has expired.
tr_certificate() {
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$4" -keyout "$TR_TMP/$1.key" -out "$TR_TMP/$1.csr" 2>/dev/null
    printf 'subjectAltName = %s\n' "$4" >"$TR_TMP/$1.ext"
    openssl x509 -req -in "$TR_TMP/$1.csr" -CA "$TR_TMP/$3.crt" -CAkey "$TR_TMP/$3.key" -CAcreateserial -days "$2" -extfile "$TR_TMP/$1.ext" -out "$TR_TMP/$1.crt" 2>/dev/null
}

# --- processes -----------------------------------------------------------------------------------------------------------------

# tr_spawn NAME COMMAND...: in the background; output is appended to $TR_TMP/NAME.log, the pid is $PID_NAME. A name may be used again.
tr_spawn() {
    local name=$1
    shift
    "$@" >>"$TR_TMP/$name.log" 2>&1 </dev/null &
    TR_PIDS+=("$!")
    TR_PID_NAMES+=("$name")
    printf -v "PID_$name" '%s' "$!"
}

# A process that has ended but was not waited for yet does not count as alive.
tr_pid_alive() {
    local state
    state=$(ps -o stat= -p "$1" 2>/dev/null) || return 1
    [[ $state != Z* ]]
}

tr_alive() {
    tr_pid_alive "$(tr_get PID "$1")"
}

# tr_kill NAME [SIGNAL]: sends it (TERM by default) and waits; the process's exit status is the result.
tr_kill() {
    local pid
    pid=$(tr_get PID "$1")
    kill -s "${2:-TERM}" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null
}

# --- PostgreSQL ----------------------------------------------------------------------------------------------------------------

tr_pg_names_set() {
    local name=$1 bin=$2 port=$3 dir=$TR_TMP/pg-$1
    printf -v "PG_BIN_$name" '%s' "$bin"
    printf -v "PG_PORT_$name" '%s' "$port"
    printf -v "PG_DATA_$name" '%s' "$dir/data"
    printf -v "PG_SOCK_$name" '%s' "$dir"
    printf -v "PG_LOG_$name" '%s' "$dir/log"
    printf -v "PG_DSN_$name" '%s' "host=127.0.0.1 port=$port user=postgres dbname=postgres"
    printf -v "PG_SOCK_DSN_$name" '%s' "host=$dir port=$port user=postgres dbname=postgres"
}

tr_pg_home() {
    [[ $1 =~ ^[A-Za-z0-9_]+$ ]] || tr_fail "a cluster's name is made of letters, digits and _, not '$1'"
    [ ! -e "$TR_TMP/pg-$1" ] || tr_fail "there is a cluster named $1 already"
    mkdir "$TR_TMP/pg-$1"
    if [ "$(id -u)" -eq 0 ]; then
        chown "$TR_PG_USER": "$TR_TMP/pg-$1"
    fi
}

tr_pg_ctl_start() {
    tr_as_pg "$(tr_get PG_BIN "$1")/pg_ctl" -D "$(tr_get PG_DATA "$1")" -l "$(tr_get PG_LOG "$1")" -s -w -t 60 start >/dev/null 2>&1 </dev/null
}

# Starts it for the first time; a port that somebody took in the meantime is exchanged for another.
tr_pg_first_start() {
    local name=$1 bin=$2 data=$TR_TMP/pg-$1/data port attempt
    TR_PG_NAMES+=("$name")
    for attempt in 1 2 3 4 5; do
        port=$(tr_free_port)
        tr_pg_names_set "$name" "$bin" "$port"
        printf 'port = %s\n' "$port" | tr_as_pg tee -a "$data/postgresql.auto.conf" >/dev/null
        if tr_pg_ctl_start "$name"; then
            return
        fi
        grep -q 'could not bind\|could not create any TCP' "$TR_TMP/pg-$name/log" || break
    done
    tail -n 30 "$TR_TMP/pg-$name/log" >&2
    tr_fail "cluster $name does not start (attempt $attempt)"
}

# tr_pg_start VERSION NAME ['key = value'...]
tr_pg_start() {
    local version=$1 name=$2 bin line
    shift 2
    bin=$(tr_pg_bin "$version")
    tr_pg_home "$name"
    tr_as_pg "$bin/initdb" -D "$TR_TMP/pg-$name/data" -A trust -U postgres -E UTF8 --locale=C --no-sync >"$TR_TMP/initdb-$name.log" 2>&1 || {
        cat "$TR_TMP/initdb-$name.log" >&2
        tr_fail "initdb of $name failed"
    }
    {
        cat <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = '$TR_TMP/pg-$name'
wal_level = logical
max_wal_senders = 20
max_replication_slots = 20
max_prepared_transactions = 20
max_connections = 100
wal_keep_size = 256MB
shared_buffers = 64MB
log_min_messages = warning
log_line_prefix = '%m [%p] %a '
timezone = 'UTC'
CONF
        for line in "$@"; do
            printf '%s\n' "$line"
        done
    } | tr_as_pg tee -a "$TR_TMP/pg-$name/data/postgresql.conf" >/dev/null
    tr_pg_first_start "$name" "$bin"
}

# tr_psql NAME [psql arguments]: bare values, a field separator '|', stops at the first error.
tr_psql() {
    local name=$1
    shift
    "$TR_PG_CLIENT/psql" -X -q -At -v ON_ERROR_STOP=1 -d "$(tr_get PG_SOCK_DSN "$name")" "$@"
}

# tr_pgbench NAME [pgbench arguments]
tr_pgbench() {
    local name=$1
    shift
    "$TR_PG_CLIENT/pgbench" -h "$(tr_get PG_SOCK "$name")" -p "$(tr_get PG_PORT "$name")" -U postgres "$@" postgres
}

# tr_pg_stop NAME [fast|smart|immediate] [SECONDS]
tr_pg_stop() {
    tr_as_pg "$(tr_get PG_BIN "$1")/pg_ctl" -D "$(tr_get PG_DATA "$1")" -s -w -t "${3:-60}" -m "${2:-fast}" stop >/dev/null
}

# tr_pg_crash NAME: no shutdown checkpoint; what was not flushed is lost, and the next start recovers.
tr_pg_crash() {
    tr_pg_stop "$1" immediate
}

# tr_pg_restart NAME [fast|immediate]: stops it if it runs, starts it on the same port, waits until it answers.
tr_pg_restart() {
    if tr_as_pg "$(tr_get PG_BIN "$1")/pg_ctl" -D "$(tr_get PG_DATA "$1")" status >/dev/null; then
        tr_pg_stop "$1" "${2:-fast}"
    fi
    tr_pg_ctl_start "$1" || {
        tail -n 30 "$(tr_get PG_LOG "$1")" >&2
        tr_fail "cluster $1 does not start again"
    }
}

# tr_pg_standby NAME OF ['key = value'...]: a streaming replica of OF with a physical slot of its own.
# Debian's pg_basebackup refuses servers newer than itself, so the copy is made with the functions that it is built upon.
tr_pg_standby() {
    local name=$1 of=$2 bin from to line label='' word='' status=0
    shift 2
    bin=$(tr_get PG_BIN "$of")
    from=$(tr_get PG_DATA "$of")
    tr_pg_home "$name"
    to=$TR_TMP/pg-$name/data
    tr_psql "$of" -c "select pg_create_physical_replication_slot('standby_$name', true)" >/dev/null
    # The backup must be stopped by the session that started it.
    coproc TR_BACKUP { tr_psql "$of"; }
    local in=${TR_BACKUP[1]} out=${TR_BACKUP[0]} pid=$TR_BACKUP_PID
    printf "select 'started' from pg_backup_start('standby_%s', true);\n" "$name" >&"$in"
    read -r -t 60 word <&"$out" || true
    [ "$word" = started ] || tr_fail "a base backup of $of does not start"
    # Files that change or go while they are read are the normal case: replay of the WAL sets them right.
    # shellcheck disable=SC2016 # expanded by the inner shell
    tr_as_pg sh -c 'mkdir -m 700 "$2" && { tar -C "$1" --exclude="./pg_wal/*" --exclude="./pg_replslot/*" --exclude=./postmaster.pid \
        --exclude=./postmaster.opts --exclude="./pg_stat_tmp/*" --warning=no-file-changed --warning=no-file-removed -cf - . || test $? -eq 1; } |
        tar -C "$2" -xf -' sh "$from" "$to" || status=$?
    [ "$status" -eq 0 ] || tr_fail "copying $of failed ($status)"
    printf "select labelfile from pg_backup_stop(false);\n\\\\echo end-of-label\n" >&"$in"
    while read -r -t 60 line <&"$out" && [ "$line" != end-of-label ]; do
        label+=$line$'\n'
    done
    printf '\\q\n' >&"$in"
    wait "$pid" || true
    [[ $label == *'START WAL LOCATION'* ]] || tr_fail "the base backup of $of does not stop"
    # Not in psql's output: the label must end in exactly one newline.
    printf '%s\n' "${label%%$'\n'$'\n'}" | sed '/^$/d' | tr_as_pg tee "$to/backup_label" >/dev/null
    {
        printf "unix_socket_directories = '%s'\n" "$TR_TMP/pg-$name"
        printf "primary_conninfo = '%s application_name=%s'\n" "$(tr_get PG_SOCK_DSN "$of")" "$name"
        printf "primary_slot_name = 'standby_%s'\n" "$name"
        printf 'hot_standby = on\nhot_standby_feedback = on\nwal_retrieve_retry_interval = 200ms\n'
        for line in "$@"; do
            printf '%s\n' "$line"
        done
    } | tr_as_pg tee -a "$to/postgresql.auto.conf" >/dev/null
    tr_as_pg touch "$to/standby.signal"
    tr_pg_first_start "$name" "$bin"
    # shellcheck disable=SC2016
    tr_wait_until 30 '[ "$(tr_psql '"$of"' -c "select count(*) from pg_stat_replication where application_name = '"'$name'"' and state = '"'streaming'"'")" = 1 ]' ||
        tr_fail "the standby $name does not stream"
}

# --- the end -------------------------------------------------------------------------------------------------------------------

tr_cleanup() {
    local status=$? name pid i log
    trap - EXIT
    trap '' HUP INT TERM
    set +e
    for i in "${!TR_PIDS[@]}"; do
        pid=${TR_PIDS[$i]}
        # Only children of ours: a pid that was waited for may belong to somebody else by now.
        if [ "$(ps -o ppid= -p "$pid" 2>/dev/null | tr -d ' ')" = "$$" ]; then
            kill -s CONT "$pid" 2>/dev/null
            kill -s KILL "$pid" 2>/dev/null
            wait "$pid" 2>/dev/null
        fi
    done
    for name in "${TR_PG_NAMES[@]}"; do
        [ ! -e "$TR_TMP/pg-$name/data/postmaster.pid" ] || tr_pg_stop "$name" immediate 20 2>/dev/null
    done
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
        for name in "${TR_PG_NAMES[@]}"; do
            printf -- '--- end of the log of cluster %s\n' "$name" >&2
            tail -n 15 "$TR_TMP/pg-$name/log" >&2
        done
        for log in $(printf '%s\n' "${TR_PID_NAMES[@]}" | sort -u); do
            printf -- '--- end of the output of %s\n' "$log" >&2
            tail -n 40 "$TR_TMP/$log.log" >&2
        done
    fi
    for ((i = ${#TR_AT_END[@]} - 1; i >= 0; i--)); do
        eval "${TR_AT_END[$i]}"
    done
    if [ -n "${TR_KEEP:-}" ]; then
        printf 'kept: %s\n' "$TR_TMP" >&2
    else
        rm -rf "$TR_TMP"
    fi
    exit "$status"
}
trap tr_cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
