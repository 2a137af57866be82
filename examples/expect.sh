#!/usr/bin/env bash
# expect.sh PROGRAM FILE: runs the program; it must end well and print what is in the file.
set -euo pipefail
diff "$2" <("$1" || echo "ended with $?")
