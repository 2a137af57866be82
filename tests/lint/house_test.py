#!/usr/bin/env python3
"""Tests the test: every house rule finds its bad sample, and nothing in a good one."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402

GOOD = {
    "src/base/err.h": '#include <stdint.h>\nint tr_err_set(int code);\n',
    "src/base/err.c": (
        '#include "err.h"\n/* strcpy(a, b) in a comment, "../x" too */\n'
        "static int helper(int n)\n{\n    return n;\n}\n\n"
        'int tr_err_set(int code)\n{\n    const char *s = "system(x)";\n    return helper(code) + (s != 0);\n}\n'
    ),
    "src/base/meson.build": "base_dep = declare_dependency(dependencies: [xxhash_dep])\n",
    "src/os/clock.c": "#include <time.h>\n#include \"err.h\"\nlong tr_clock_now(void)\n{\n    return (long)time(0);\n}\n",
    "src/os/meson.build": "os_dep = declare_dependency(dependencies: [base_dep, threads_dep])\n",
    "src/spi/source.c": "#include \"err.h\"\nint tr_source_open(struct t *t)\n{\n    return t->open(t) + t->o.time(t);\n}\n",
    "src/client/pg/wire.h": "int tr_wire_x(void);\n",
    "src/connector/postgres/meson.build": "connector_postgres_dep = declare_dependency(dependencies: [spi_dep, client_pg_dep, pq_dep])\n",
    "src/connector/postgres/source.c": '#include "wire.h"\n#include "err.h"\n',
    "src/cli/main.c": "int main(void)\n{\n    return 0;\n}\n",
    "src/cli/meson.build": "tailrace_exe = executable('tailrace', dependencies: [admin_dep, connector_postgres_dep])\n",
    "tests/unit/base_test.c": "#include <time.h>\nlong when(void)\n{\n    return time(0);\n}\n",
    "scripts/x.sh": "#!/bin/sh\nmktemp /tmp/a." + "X" * 6 + "\n",
}

# rule, file, contents, a piece of the finding
BAD = [
    ("banned", "src/base/a.c", "static void f(char *d, const char *s)\n{\n    strcpy(d, s);\n}\n", "a.c:3: [banned] strcpy()"),
    ("banned", "src/base/a.c", "static int f(void)\n{\n    return rand ();\n}\n", "rand()"),
    ("banned", "tests/unit/a_test.c", "static int f(void)\n{\n    return system(\"ls\");\n}\n", "system()"),
    ("banned", "src/connector/postgres/b.c", "static long f(void)\n{\n    return time(0);\n}\n", "time()"),
    ("banned", "src/client/pg/b.c", "static int f(void)\n{\n    return open(\"a\", 0);\n}\n", "open()"),
    ("banned", "src/control/b.c", "static int f(void)\n{\n    return socket(1, 2, 3);\n}\n", "socket()"),
    ("banned", "tests/lint/allow.txt", "src/base/err.c strcpy it once did\n", "no longer calls strcpy()"),
    ("include", "src/base/a.c", '#include "../os/clock.h"\n', "include by name"),
    ("include", "src/os/err.h", "int tr_x(void);\n", "header names are unique"),
    ("include", "src/base/a.c", '#include "wire.h"\n', "src/base must not see src/client/pg"),
    ("include", "src/client/sql/a.c", '#include "wire.h"\n', "src/client/sql must not see src/client/pg"),
    ("include", "include/tailrace/a.h", '#include "err.h"\n', "a public header"),
    ("floors", "src/os/meson.build", "os_dep = declare_dependency(dependencies: [core_dep])\n", "src/os must not depend on src/core"),
    ("floors", "src/cdc/meson.build", "cdc_dep = x(dependencies: [connector_postgres_dep])\n", "src/cdc must not depend on src/connector/postgres"),
    ("floors", "src/connector/sqlite/meson.build", "x = [control_dep]\n", "src/connector/sqlite must not depend on src/control"),
    ("floors", "src/attic/meson.build", "attic_dep = []\n", "not in the floor plan"),
    ("prefix", "src/base/a.c", "int\nloose(int a,\n    int b)\n{\n    return a + b;\n}\n", "loose() is neither static nor tr_*"),
    ("prefix", "src/base/a.c", "struct s *loose(void)\n{\n    return 0;\n}\n", "loose() is neither static nor tr_*"),
    ("size", "src/base/a.c", "\n" * 1001, "1001 lines"),
    ("python", "tests/e2e/types.py", "x = 1\n", "Python has a module types"),
    ("marks", "src/base/a.h", "/* TO" + "DO later */\n", "TO" + "DO"),
    ("marks", "docs/a.md", "X" * 3 + " here\n", "X" * 3),
    ("paths", "scripts/y.sh", "cd /wo" + "rk/main\n", "workplace"),
    ("paths", "docs/a.md", "on fa" + "rm-7\n", "workplace"),
    ("generated", "docs/generated/odd.txt", "x\n", "nobody knows"),
    ("faults", "src/base/a.c", 'static void f(void)\n{\n    TR_FAILPOINT("a.point");\n}\n', "no end-to-end test kills at fault point a.point"),
]


def findings(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return house.House(root).check()


class HouseTest(unittest.TestCase):
    def test_good(self):
        self.assertEqual(findings(GOOD), [])

    def test_bad(self):
        for rule, name, text, piece in BAD:
            with self.subTest(rule=rule, name=name, piece=piece):
                found = findings({**GOOD, name: text})
                self.assertTrue(any("[" + rule + "]" in f and piece in f for f in found), found)
                self.assertEqual([f for f in found if "[" + rule + "]" not in f], [], "other rules fired, too")

    def test_without_ctags(self):
        path = os.environ["PATH"]
        try:
            os.environ["PATH"] = "/nonexistent"
            self.assertEqual(findings(GOOD), [])
            for rule, name, text, piece in BAD:
                if rule == "prefix":
                    with self.subTest(piece=piece):
                        self.assertTrue(any(piece in f for f in findings({**GOOD, name: text})))
        finally:
            os.environ["PATH"] = path

    def test_exemption(self):
        files = {
            **GOOD,
            "src/control/b.c": "static int f(void)\n{\n    return unlink(\"a\");\n}\n",
            "tests/lint/allow.txt": "# why\nsrc/control/b.c unlink the library leaves its file behind\n",
        }
        self.assertEqual(findings(files), [])

    def test_exit_status(self):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "house.py")
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "src/base"))
            self.assertEqual(subprocess.run([sys.executable, program, root], check=False).returncode, 0)
            with open(os.path.join(root, "src/base/a.c"), "w", encoding="utf-8") as file:
                file.write("int loose(void)\n{\n    return 0;\n}\n")
            self.assertEqual(subprocess.run([sys.executable, program, root], check=False, stdout=subprocess.DEVNULL).returncode, 1)

    def test_generated(self):
        with tempfile.TemporaryDirectory() as root:
            program = os.path.join(root, "build/src/cli/tailrace")
            page = os.path.join(root, "docs/generated/tailrace.schema.json")
            for path, text in ((program, "#!/bin/sh\necho \"$@\"\n"), (page, "help config --schema\n")):
                os.makedirs(os.path.dirname(path))
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            os.chmod(program, 0o755)
            build = os.path.join(root, "build")
            self.assertEqual(house.House(root, build).check(), [])
            with open(page, "a", encoding="utf-8") as file:
                file.write("old\n")
            self.assertTrue(any("stale" in f for f in house.House(root, build).check()))


if __name__ == "__main__":
    unittest.main()
