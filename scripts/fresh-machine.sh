#!/usr/bin/env bash
# The README's two commands on a machine that has nothing: a bare Debian 12 root made with debootstrap, a clean clone of this
# repository's HEAD in it, and there, in a chroot, ./scripts/demo and ./scripts/test. Needs root; not part of CI.
#
#   scripts/fresh-machine.sh [COMMAND...]    other commands than the two, each one argument
#
# The bare root takes over how this machine reaches its registries (Debian mirror, proxies, certificates, npm registry), no account
# or token. FRESH_ROOT names the directory to build it in (default: a new one under TMPDIR); TR_KEEP=1 leaves it there at the end.
set -euo pipefail

say() {
    printf 'fresh-machine: %s\n' "$*" >&2
}

[ "$(id -u)" -eq 0 ] || {
    say 'this needs root (debootstrap, mount, chroot)'
    exit 1
}
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm
[ $# -gt 0 ] || set -- ./scripts/demo ./scripts/test

if ! command -v debootstrap >/dev/null; then
    say 'installing debootstrap'
    apt-get -q -o DPkg::Lock::Timeout=500 update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=500 install --no-install-recommends debootstrap >/dev/null
fi

if [ -n "${FRESH_ROOT:-}" ]; then
    root=$FRESH_ROOT
    [ ! -e "$root" ] || {
        say "$root is there already"
        exit 1
    }
    mkdir -p "$root"
else
    root=$(mktemp -d "${TMPDIR:-/tmp}/tailrace-fresh.XXXXXX")
fi
root=$(cd "$root" && pwd -P)
chmod 755 "$root"
mounts=()
inside=

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local status=$? mounted pid
    trap - EXIT
    trap '' HUP INT TERM
    if [ -n "$inside" ]; then
        kill -s TERM "$inside" 2>/dev/null || true
        wait "$inside" 2>/dev/null || true
    fi
    # What still runs in the root (it is ours: nothing else has this root) would keep it mounted.
    for pid in /proc/[0-9]*; do
        if [ "$(readlink "$pid/root" 2>/dev/null)" = "$root" ]; then
            kill -s KILL "${pid#/proc/}" 2>/dev/null || true
        fi
    done
    for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do
        umount "${mounts[$i]}" 2>/dev/null || umount -l "${mounts[$i]}" || true
    done
    mounted=$(awk -v root="$root/" 'index($2, root) == 1 { print $2 }' /proc/mounts)
    if [ -n "$mounted" ]; then
        say "not removing $root, since these are still mounted: $mounted"
    elif [ -n "${TR_KEEP:-}" ]; then
        say "kept: $root"
    else
        rm -rf --one-file-system "$root"
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the bare root -------------------------------------------------------------------------------------------------------------

# The first mirror of the suite in this machine's own sources, deb822 or one-line.
mirror=$(
    {
        sed -n 's/^URIs:[[:space:]]*\([^ ]*debian\/\{0,1\}\)\([[:space:]].*\)\{0,1\}$/\1/p' /etc/apt/sources.list.d/*.sources || true
        sed -n "s/^deb[[:space:]]\(\[[^]]*\][[:space:]]*\)\{0,1\}\([^ ]*\)[[:space:]]*${suite}[[:space:]].*/\2/p" /etc/apt/sources.list /etc/apt/sources.list.d/*.list || true
    } 2>/dev/null | head -n 1 || true
)
: "${mirror:=http://deb.debian.org/debian}"

say "a bare $suite from $mirror in $root"
# debootstrap fetches with wget, which does not read apt's proxy settings.
proxy=$(apt-config dump Acquire::http::Proxy 2>/dev/null | sed -n 's/^Acquire::http::Proxy "\(.*\)";$/\1/p')
http_proxy=${http_proxy:-$proxy} debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1 || {
    tail -n 30 "$root.log" "$root/debootstrap/debootstrap.log" >&2 2>/dev/null
    rm -f "$root.log"
    say 'debootstrap failed'
    exit 1
}
rm -f "$root.log"

say "how this machine reaches its registries"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"
rm -f "$root/etc/apt/sources.list"
# Debian's own sources only: a bare machine has no others.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [ -f "$file" ] && grep -q "$suite" "$file" && ! grep -E '^(deb|URIs:)' "$file" | grep -qv 'debian'; then
        cp "$file" "$root$file"
    fi
done
if ! grep -rqs "^deb\|^URIs" "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"; then
    printf 'deb %s %s main\n' "$mirror" "$suite" >"$root/etc/apt/sources.list"
fi
# Proxies, time-outs and certificates of apt; nothing else of its configuration.
apt-config dump | grep -E '^Acquire::(https?::(Proxy|Timeout|CAInfo|Verify)|Retries|ForceIPv)' >"$root/etc/apt/apt.conf.d/90host" || true

environment=(HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -f "$bundle" ]; then
    mkdir -p "$root/etc/ssl"
    cp -L "$bundle" "$root/etc/ssl/host-ca.crt"
    environment+=(SSL_CERT_FILE=/etc/ssl/host-ca.crt NODE_EXTRA_CA_CERTS=/etc/ssl/host-ca.crt)
    sed -i "s#\"$bundle\"#\"/etc/ssl/host-ca.crt\"#" "$root/etc/apt/apt.conf.d/90host"
fi
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
{
    [ ! -f "$root/etc/ssl/host-ca.crt" ] || echo 'cafile=/etc/ssl/host-ca.crt'
    if command -v npm >/dev/null; then
        for key in registry proxy https-proxy; do
            value=$(npm config get "$key" 2>/dev/null || true)
            case $value in
            '' | null | undefined) ;;
            *) printf '%s=%s\n' "$key" "$value" ;;
            esac
        done
    fi
} >"$root/root/.npmrc"

mount -t proc proc "$root/proc"
mounts+=("$root/proc")
mkdir -p "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mounts+=("$root/dev/shm")

git clone -q --no-hardlinks "$source_root" "$root/root/tailrace"
commit=$(git -C "$root/root/tailrace" rev-parse --short HEAD)

# --- the commands --------------------------------------------------------------------------------------------------------------

status=0
for command in "$@"; do
    say "commit $commit, in a bare $suite: $command"
    start=$SECONDS
    chroot "$root" /usr/bin/env -i "${environment[@]}" sh -c "cd /root/tailrace && $command" </dev/null &
    inside=$!
    rc=0
    wait "$inside" || rc=$?
    inside=
    say "$command: exit status $rc after $((SECONDS - start)) s"
    [ "$rc" -eq 0 ] || status=1
done
exit "$status"
