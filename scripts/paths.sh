# shellcheck shell=sh
# Sourced. Where tailrace's scripts keep what they fetched: never in the source tree.
#
# As root the default is /var/cache/tailrace and not root's own cache: PostgreSQL refuses to run as root, and /root is closed to the
# user that runs it.
tr_cache_dir() {
    if [ -n "${TAILRACE_CACHE:-}" ]; then
        printf '%s\n' "$TAILRACE_CACHE"
    elif [ "$(id -u)" -eq 0 ]; then
        printf '%s\n' /var/cache/tailrace
    else
        printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/tailrace"
    fi
}

# The user that throwaway PostgreSQL clusters run as when we are root.
tr_pg_user() {
    if getent passwd postgres >/dev/null; then
        echo postgres
    else
        echo nobody
    fi
}
