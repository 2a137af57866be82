#!/bin/sh
# Lint of every script of the tree.
set -eu
cd "$(dirname "$0")/../.."
command -v shellcheck >/dev/null || {
    echo 'shellcheck is not installed' >&2
    exit 77
}
# By name, and by first line for those without a suffix.
find . \( -name .git -o -name 'build*' -o -name node_modules \) -prune -o -type f -print | while read -r file; do
    case $file in
    *.sh) echo "$file" ;;
    ./scripts/* | ./.ci/* | ./packaging/*) ! head -n 1 "$file" | grep -aq '^#!.*sh$' || echo "$file" ;;
    esac
done | xargs shellcheck -x
