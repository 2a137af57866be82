#!/bin/sh
# run-suites.sh BUILD-DIR SUITE...: runs these suites of a build that is there; the last line is `N passed, N failed, N skipped`.
# A suite without tests is named and passed over. Exit status: 0 if no test failed.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=$1
shift

failed=0
logs=
for suite in "$@"; do
    log=$build/meson-logs/suite-$suite.json
    rm -f "$log"
    if [ -z "$(meson test -C "$build" --no-rebuild --list --suite "$suite" 2>/dev/null | grep -v '^ninja:\|^No suitable' || true)" ]; then
        echo "==> $suite: no tests"
        continue
    fi
    echo "==> $suite"
    start=$(date +%s)
    at_once=
    # End-to-end tests mostly wait: half as many again as there are processors.
    [ "$suite" != e2e ] || at_once="--num-processes $((($(nproc) * 3 + 1) / 2))"
    # shellcheck disable=SC2086 # several options
    meson test -C "$build" --no-rebuild --suite "$suite" --logbase "suite-$suite" --print-errorlogs $at_once ${TAILRACE_MESON_TEST_OPTIONS:-} </dev/null || failed=1
    logs="$logs $log"
    # shellcheck disable=SC2086 # several files
    echo "==> $suite: $(python3 "$root/scripts/count_tests.py" $log) in $(($(date +%s) - start)) s"
done

# shellcheck disable=SC2086
total=$(python3 "$root/scripts/count_tests.py" $logs)
case $total in
*' 0 failed,'*) ;;
*) failed=1 ;;
esac
echo "$total"
exit "$failed"
