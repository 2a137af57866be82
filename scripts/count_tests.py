#!/usr/bin/env python3
"""Counts what Meson test logs (testlog.json, one object a line) say, as `N passed, N failed, N skipped`.

A cmocka program counts as the cases that it reports, every other test as one. A program that failed counts at least one failure, also
where it died without a word. Plain counts of that same form may be given, too: arguments of three numbers, `12,0,1`.
"""
import json
import os
import re
import sys

CMOCKA = {
    "passed": re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.", re.M),
    "failed": re.compile(r"^\[  FAILED  \] (?:[^\n:]*: )?(\d+) test\(s\)", re.M),
    "skipped": re.compile(r"^\[  SKIPPED \] (?:[^\n:]*: )?(\d+) test\(s\)", re.M),
}


def count_test(test):
    output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    found = {kind: sum(int(n) for n in pattern.findall(output)) for kind, pattern in CMOCKA.items()}
    result = test["result"]
    if result in ("OK", "EXPECTEDFAIL"):
        if not any(found.values()):
            found["passed"] = 1
        # The program as a whole says that all is well (it may test a failing test).
        found["passed"] += found.pop("failed")
        found["failed"] = 0
    elif result == "SKIP":
        found = {"passed": 0, "failed": 0, "skipped": max(1, found["skipped"])}
    else:
        found["failed"] = max(1, found["failed"])
    return found


def main(arguments):
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for argument in arguments:
        plain = re.fullmatch(r"(\d+),(\d+),(\d+)", argument)
        if plain:
            for kind, number in zip(total, plain.groups()):
                total[kind] += int(number)
            continue
        if not os.path.exists(argument):
            continue
        with open(argument, encoding="utf-8", errors="replace") as log:
            for line in log:
                if line.strip():
                    for kind, number in count_test(json.loads(line)).items():
                        total[kind] += number
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**total))


if __name__ == "__main__":
    main(sys.argv[1:])
