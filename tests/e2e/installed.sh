# shellcheck shell=bash
# tailrace as it is installed, and examples/project built against it. Sourced beside lib.sh.
: "${TAILRACE_BUILD:=$TR_SOURCE_ROOT/build}"

# tr_project: installs into $TR_TMP/root, points PKG_CONFIG_PATH there, and builds a copy of the project into $TR_TMP/project/build.
tr_project() {
    local pc prefix
    meson install -C "$TAILRACE_BUILD" --no-rebuild --quiet --destdir "$TR_TMP/root"
    pc=$(dirname "$(find "$TR_TMP/root" -name tailrace.pc)")
    prefix=$(sed -n 's/^prefix=//p' "$pc/tailrace.pc")
    sed -i "s|^prefix=.*|prefix=$TR_TMP/root$prefix|" "$pc"/*.pc
    export PKG_CONFIG_PATH="$pc"
    cp -r "$TR_SOURCE_ROOT/examples/project" "$TR_TMP/project"
    meson setup "$TR_TMP/project/build" "$TR_TMP/project" >"$TR_TMP/setup.log" || { cat "$TR_TMP/setup.log" >&2; tr_fail "the project does not configure"; }
    ninja -C "$TR_TMP/project/build" >"$TR_TMP/build.log" || { cat "$TR_TMP/build.log" >&2; tr_fail "the project does not build"; }
}
