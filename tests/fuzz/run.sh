#!/bin/sh
# run.sh BUILD-DIR [TARGET...]: fuzzes each target (or those named) for FUZZ_SECONDS (600), one after the other, from the stored inputs on. New inputs go to BUILD-DIR/fuzz-corpus;
# what breaks a target goes to tests/fuzz/crashes/<target>, where it is a test from then on. Exit status: 0 if nothing broke.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
build=$1
shift
: "${FUZZ_SECONDS:=600}"
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
if [ $# -eq 0 ]; then
    for dir in "$here"/corpus/*/; do
        set -- "$@" "$(basename "$dir")"
    done
fi
broken=0
for target; do
    program=$build/tests/fuzz/fuzz_$target
    [ -x "$program" ] || {
        echo "there is no fuzz target $target in $build: make fuzz builds them" >&2
        exit 2
    }
    own=$build/fuzz-corpus/$target
    crashes=$here/crashes/$target
    mkdir -p "$own" "$crashes"
    echo "==> $target: $FUZZ_SECONDS s"
    set -- "$own" "$here/corpus/$target" "$crashes"
    "$program" -max_total_time="$FUZZ_SECONDS" -timeout=30 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 -artifact_prefix="$crashes/" "$@" \
        >"$build/fuzz-$target.log" 2>&1 || {
        broken=$((broken + 1))
        echo "==> $target: BROKEN; the input is in $crashes, the whole report in $build/fuzz-$target.log"
        grep -E '^SUMMARY|does not hold|ERROR: |runtime error' "$build/fuzz-$target.log" | head -n 5
    }
    rmdir "$crashes" 2>/dev/null || true
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec|new_units_added)' "$build/fuzz-$target.log" | sed 's/^stat::/    /' || true
done
exit "$((broken > 0))"
