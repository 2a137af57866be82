# shellcheck shell=bash
# Throwaway ClickHouse servers on loopback, on top of lib.sh. Sourced instead of it.
#
#   tr_ch_start 26 ch '<max_concurrent_queries>5</max_concurrent_queries>'   # elements of its configuration, if any
#   tr_ch ch 'select 1'                       # what the server answers, by HTTP; an answer with an exception fails the test
#   tr_ch ch 'insert into t format Native' <FILE
#   tr_kill ch KILL; tr_ch_restart ch         # on the same data and ports
#
# For a server NAME there are CH_URL_NAME, CH_PORT_NAME (HTTP), CH_TCP_PORT_NAME, CH_DATA_NAME, and what tr_spawn gives: PID_NAME, $TR_TMP/NAME.log.
# TR_CH_USERS: more elements of <users>.
# VERSION is 18 (Debian's 18.16) or 26 (26.7: scripts/setup.sh --test put it into the cache).
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tr_ch_config() {
    local dir=$1
    shift
    cat <<XML
<yandex>
    <logger><level>warning</level><console>1</console></logger>
    <path>$dir/data/</path>
    <tmp_path>$dir/tmp/</tmp_path>
    <user_files_path>$dir/files/</user_files_path>
    <format_schema_path>$dir/schemas/</format_schema_path>
    <users_config>$dir/users.xml</users_config>
    <default_profile>default</default_profile>
    <default_database>default</default_database>
    <mark_cache_size>67108864</mark_cache_size>
    <timezone>UTC</timezone>
    $*
</yandex>
XML
}

tr_ch_run() {
    local name=$1 dir=$TR_TMP/ch-$1
    if [ "$(tr_get CH_VERSION "$name")" = 18 ]; then
        tr_spawn "$name" clickhouse-server --config-file="$dir/config.xml"
    else
        tr_spawn "$name" python3 "$TR_E2E_DIR/chserver.py" "$(tr_cache_dir)/ch26/libchdb.so" "$dir/data" "$dir/config.xml" "$(tr_get CH_PORT "$name")" "$(tr_get CH_TCP_PORT "$name")"
    fi
    tr_wait_until 60 "! tr_alive $name || [ \"\$(curl -s \"\$CH_URL_$name/ping\")\" = Ok. ]" && tr_alive "$name"
}

# tr_ch_start VERSION NAME [XML...]
tr_ch_start() {
    local version=$1 name=$2 dir=$TR_TMP/ch-$2 attempt
    shift 2
    [[ $name =~ ^[A-Za-z0-9_]+$ ]] || tr_fail "a server's name is made of letters, digits and _, not '$name'"
    case $version in
    18) [ -n "$(type -P clickhouse-server)" ] || tr_fail 'there is no clickhouse-server; run scripts/setup.sh --test' ;;
    26) [ -r "$(tr_cache_dir)/ch26/libchdb.so" ] || tr_fail 'there is no ClickHouse 26; run scripts/setup.sh --test' ;;
    *) tr_fail "there is no ClickHouse $version here, only 18 and 26" ;;
    esac
    mkdir "$dir" "$dir/data" "$dir/tmp" "$dir/files" "$dir/schemas" || tr_fail "there is a server named $name already"
    cat >"$dir/users.xml" <<XML
<yandex>
    <profiles><default></default></profiles>
    <quotas><default></default></quotas>
    <users><default><password></password><profile>default</profile><quota>default</quota><networks><ip>127.0.0.1</ip></networks></default>${TR_CH_USERS:-}</users>
</yandex>
XML
    printf -v "CH_VERSION_$name" '%s' "$version"
    printf -v "CH_DATA_$name" '%s' "$dir/data"
    for attempt in 1 2 3 4 5; do
        printf -v "CH_PORT_$name" '%s' "$(tr_free_port)"
        printf -v "CH_TCP_PORT_$name" '%s' "$(tr_free_port)"
        printf -v "CH_URL_$name" '%s' "http://127.0.0.1:$(tr_get CH_PORT "$name")"
        tr_ch_config "$dir" "<listen_host>127.0.0.1</listen_host><http_port>$(tr_get CH_PORT "$name")</http_port><tcp_port>$(tr_get CH_TCP_PORT "$name")</tcp_port>" "$@" >"$dir/config.xml"
        if tr_ch_run "$name"; then
            return
        fi
        grep -qi 'address already in use' "$TR_TMP/$name.log" || break
    done
    tr_fail "ClickHouse $name does not start (attempt $attempt)"
}

# tr_ch_restart NAME: ends it if it runs, starts it on the same data and ports.
tr_ch_restart() {
    tr_kill "$1" TERM || true
    tr_ch_run "$1" || tr_fail "ClickHouse $1 does not start again"
}

# tr_ch NAME SQL [curl arguments]: the answer. With a body on its standard input if SQL is an INSERT … FORMAT.
tr_ch() {
    local name=$1 sql=$2 query=(--data-binary "$2") got
    shift 2
    if [[ $sql =~ ^[Ii][Nn][Ss][Ee][Rr][Tt].*[[:space:]][Ff][Oo][Rr][Mm][Aa][Tt][[:space:]]+[A-Za-z]+$ ]]; then
        query=(--url-query "query=$sql" --data-binary @-)
    fi
    got=$(curl -sS -o "$TR_TMP/ch-$name/answer" -D "$TR_TMP/ch-$name/head" -w '%{http_code}' "${query[@]}" "$@" "$(tr_get CH_URL "$name")/") || tr_fail "ClickHouse $name does not answer: $sql"
    if [ "$got" != 200 ] || grep -qi '^x-clickhouse-exception-code' "$TR_TMP/ch-$name/head"; then
        cat "$TR_TMP/ch-$name/answer" >&2
        tr_fail "ClickHouse $name answers $got: $sql"
    fi
    cat "$TR_TMP/ch-$name/answer"
}

# tr_chproxy NAME: a proxy in front of a server that meddles with INSERTs as the file $CHPROXY_MODE says (chproxy.py), and notes them in $CHPROXY_INSERTS. At $CHPROXY_URL.
tr_chproxy() {
    local port
    port=$(tr_free_port)
    CHPROXY_MODE=$TR_TMP/mode CHPROXY_INSERTS=$TR_TMP/inserts CHPROXY_URL=http://127.0.0.1:$port
    echo pass >"$CHPROXY_MODE"
    : >"$CHPROXY_INSERTS"
    tr_spawn chproxy python3 "$TR_E2E_DIR/chproxy.py" "$port" "$(tr_get CH_PORT "$1")" "$CHPROXY_MODE" "$CHPROXY_INSERTS"
    tr_wait_until 10 "curl -s $CHPROXY_URL/ping >/dev/null" || tr_fail 'the proxy does not answer'
}
