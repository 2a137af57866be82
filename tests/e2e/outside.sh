#!/usr/bin/env bash
# What is installed serves a project outside the tree: its own source and sink (examples/project), built by meson and by hand against headers and
# pkg-config alone, run, killed, asked, misconfigured.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=tests/e2e/installed.sh
. "$TR_E2E_DIR/installed.sh"
cd "$TR_TMP"

tr_step "install, and build against it"
tr_project
# shellcheck disable=SC2046
cc -std=gnu17 -Wall -Werror -o byhand project/errors.c project/csv_sink.c project/lines_source.c $(pkg-config --cflags --libs tailrace)
cat >kit.c <<'END'
#include <tailrace/memory.h>
int main(void)
{
    struct tr_mem_source *s = 0;
    return tr_mem_source_new(&s);
}
END
# shellcheck disable=SC2046
cc -std=c17 -Wall -Wextra -pedantic -Werror -o kit kit.c $(pkg-config --cflags --libs tailrace-test)
./kit

lines() { # FROM TO
    local i level
    for ((i = $1; i < $2; i++)); do
        level=INFO
        ((i % 3)) || level=ERROR
        echo "2026-01-01T00:00:00Z $level part$((i % 7)): message \"$i\", with things"
    done
}
errors() { # how many different ones are in the file; each line must be whole
    python3 - "$1" <<'END'
import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline='')))
assert rows[0] == ['time', 'component', 'text'], rows[0]
assert all(len(r) == 3 and r[0] == '2026-01-01T00:00:00Z' and r[2].endswith('", with things') for r in rows[1:])
print(len({r[2] for r in rows[1:]}), len(rows) - 1)
END
}

tr_step "to the end of a file, and again: nothing comes twice"
lines 0 3000 >log.txt
echo nonsense >>log.txt
printf '2026-01-01T00:00:00Z ERROR part0: message "3000", with things' >>log.txt # no line feed
cat >errors.yaml <<END
pipeline: {state_dir: state, commit_interval: 20ms}
source: {path: log.txt}
sinks:
- name: files
  dir: .
admin: {listen: off}
END
project/build/errors errors.yaml 2>log
tr_equal "errors" "1001 1001" "$(errors errors.csv)"
grep -q 'a record was skipped.*this is no line of a log.*stage=0' log || tr_fail "nothing tells of the line that was skipped"
./byhand errors.yaml 2>log
tr_equal "errors after a second run" "1001 1001" "$(errors errors.csv)"

tr_step "asked while it follows"
rm -rf state errors.csv
lines 0 30 >log.txt
port=$(tr_free_port)
sed -i "s/path: log.txt/path: log.txt, follow: true/; s/listen: off/listen: 127.0.0.1:$port/" errors.yaml
tr_spawn errors project/build/errors errors.yaml
# shellcheck disable=SC2154
pid=$PID_errors
tr_wait_until 10 "curl -fs 127.0.0.1:$port/readyz"
tr_wait_until 10 "curl -fs 127.0.0.1:$port/metrics | grep -q 'tailrace_stage_records_total{pipeline=\"errors\",chain=\"errors\",stage=\"1 filter is_error\",result=\"out\"} 10'"
curl -fs "127.0.0.1:$port/healthz" >/dev/null
curl -fs "127.0.0.1:$port/status" | python3 -c 'import json, sys; s = json.load(sys.stdin); assert s["state"] == "running" and s["stages"][0]["in"] == 30, s'
[ "$(curl -s -o /dev/null -w '%{http_code}' -d kind=pause "127.0.0.1:$port/request")" = 409 ] || tr_fail "a pipeline took a request"
kill -TERM "$pid"
wait "$pid" || tr_fail "SIGTERM ended it with $?"
tr_equal "errors after SIGTERM" "10 10" "$(errors errors.csv)"

tr_step "killed again and again while lines come"
sed -i "s/commit_interval: 20ms/commit_interval: 400ms/" errors.yaml
(for ((k = 0; k < 60; k++)); do
    lines $((30 + 500 * k)) $((530 + 500 * k))
    sleep 0.1
done >>log.txt) &
writer=$!
for ((k = 0; k < 8; k++)); do
    tr_spawn errors project/build/errors errors.yaml
    sleep "0.$((3 + k % 5))"
    tr_kill errors KILL || true
    printf '2026-01-01T00:00:00Z,torn' >>errors.csv # as a crash of the machine may leave it
done
wait "$writer"
sed -i 's/, follow: true//' errors.yaml
project/build/errors errors.yaml 2>log
read -r different all <<<"$(errors errors.csv)"
tr_equal "different errors" 10010 "$different"
tr_step "$((all - different)) of $all lines came twice"

tr_step "what is wrong is said"
says() { # TEXT: the program fails and says it
    if project/build/errors bad.yaml 2>log; then tr_fail "it ran, and should have said: $1"; fi
    grep -q -- "$1" log || { cat log >&2; tr_fail "it does not say: $1"; }
}
sed 's/path:/pth:/' errors.yaml >bad.yaml
says "bad.yaml:2: unknown key source.pth; did you mean path?"
sed 's/state_dir: state, //' errors.yaml >bad.yaml
says "set pipeline.state_dir"
printf 'a,b\n' >other.csv
mkdir elsewhere
mv other.csv elsewhere/errors.csv
sed 's/dir: \./dir: elsewhere/' errors.yaml >bad.yaml
says "sink files: elsewhere/errors.csv has other columns than time,component,text: move it away"
: >log.txt
cp errors.yaml bad.yaml
says "it is another file"
rm bad.yaml
says "there is no configuration file bad.yaml"
tr_step "done"
