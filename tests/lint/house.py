#!/usr/bin/env python3
"""The house rules that a machine can check. Silent and 0 if all is well, else one line per finding and 1.

    tests/lint/house.py [--build DIR] [ROOT]

  banned      calls that overflow, hide state or start shells: nowhere in C; the clock, randomness, files and sockets: only in src/os
              (what must be otherwise is in tests/lint/allow.txt, file by file, each with its reason)
  include     no #include "../..."; header names are unique; a room sees only its own headers and those of lower floors
  floors      a room's meson.build names only rooms of lower floors
  prefix      every function with external linkage is tr_*
  size        no C file, header or script over 1,000 lines
  python      no script is named like a module of Python's own, which those beside it would import in its place
  marks       nothing is left marked as unfinished
  paths       no path of somebody's own workplace
  generated   docs/generated/ is what the program prints today
  faults      tailrace is killed at every fault point of src/ by some end-to-end test
"""
import os
import re
import subprocess
import sys

# Rooms and their floors, as in ARCHITECTURE.md. A room may use lower floors only; rooms of one floor never see each other.
FLOORS = {
    "base": 0,
    "os": 1,
    "core": 1,
    "codec": 2,
    "types": 2,
    "spi": 3,
    "chain": 4,
    "config": 4,
    "client": 4,
    "engine": 5,
    "changelog": 5,
    "control": 5,
    "catalog": 5,
    "connector": 5,
    "cdc": 6,
    "admin": 7,
    "pipeline": 8,
    "cli": 8,
}
NESTED = ("client", "connector")

BANNED = {
    "strcpy": "use snprintf or tr_* with a length",
    "strcat": "use snprintf or tr_* with a length",
    "sprintf": "use snprintf",
    "vsprintf": "use vsnprintf",
    "gets": "use fgets",
    "strtok": "it keeps state; walk the bytes",
    "system": "no shells",
    "popen": "no shells",
    "alloca": "use an arena",
    "rand": "randomness is src/os's",
    "srand": "randomness is src/os's",
}
# Only src/os, so that the simulator can own them.
SEAM = {
    "time": "the clock is src/os's",
    "clock": "the clock is src/os's",
    "clock_gettime": "the clock is src/os's",
    "gettimeofday": "the clock is src/os's",
    "nanosleep": "waiting is src/os's",
    "clock_nanosleep": "waiting is src/os's",
    "usleep": "waiting is src/os's",
    "sleep": "waiting is src/os's",
    "getrandom": "randomness is src/os's",
    "getentropy": "randomness is src/os's",
    "random": "randomness is src/os's",
    "arc4random": "randomness is src/os's",
    "open": "files are src/os's",
    "openat": "files are src/os's",
    "creat": "files are src/os's",
    "fopen": "files are src/os's",
    "fdopen": "files are src/os's",
    "freopen": "files are src/os's",
    "mkstemp": "files are src/os's",
    "tmpfile": "files are src/os's",
    "opendir": "files are src/os's",
    "unlink": "files are src/os's",
    "rename": "files are src/os's",
    "mkdir": "files are src/os's",
    "fsync": "files are src/os's",
    "fdatasync": "files are src/os's",
    "socket": "sockets are src/os's",
}
LINES_MAX = 1000
LISTED = re.compile(r"\.(c|h)$")
TEXT = re.compile(r"(\.(c|h|py|sh|md|txt|build|yaml|yml|json|html|css|js|sql|service|1|5|7)|/[^./]+)$")
MARKS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
PATHS = re.compile("(?<![A-Za-z0-9_.$}])/wo" + r"rk/|\bfa" + "rm-")
KEYWORDS = {"if", "while", "for", "switch", "return", "sizeof", "do", "else", "_Alignof", "_Static_assert", "defined", "__attribute__"}


class House:
    def __init__(self, root, build=None):
        self.root = os.path.abspath(root)
        self.build = os.path.abspath(build) if build else None
        self.findings = []
        self.allowed = {}
        self.allow_used = set()
        self.files = self.list_files()
        self.cache = {}

    def list_files(self):
        """What git knows or would take; without git (a copied tree) whatever is there."""
        try:
            out = subprocess.run(
                ["git", "-c", "safe.directory=*", "-C", self.root, "ls-files", "-z", "-c", "-o", "--exclude-standard", "--full-name"],
                check=True,
                capture_output=True,
            ).stdout
            top = subprocess.run(
                ["git", "-c", "safe.directory=*", "-C", self.root, "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True
            ).stdout.strip()
            if os.path.realpath(top) == os.path.realpath(self.root):
                names = out.decode().split("\0")
                return sorted(set(n for n in names if n and os.path.isfile(os.path.join(self.root, n))))
        except (OSError, subprocess.CalledProcessError):
            pass
        names = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if not f.startswith((".git", "build"))]
            names += [os.path.relpath(os.path.join(folder, f), self.root) for f in files]
        return sorted(names)

    def read(self, name):
        if name not in self.cache:
            with open(os.path.join(self.root, name), encoding="utf-8", errors="replace") as file:
                self.cache[name] = file.read()
        return self.cache[name]

    def find(self, rule, name, line, text):
        self.findings.append("{}:{}: [{}] {}".format(name, line, rule, text))

    def c_files(self, *folders):
        return [n for n in self.files if n.endswith((".c", ".h")) and n.startswith(folders)]

    # --- rules ---

    def read_allow(self):
        name = "tests/lint/allow.txt"
        if name not in self.files:
            return
        for number, line in enumerate(self.read(name).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split(None, 2)
            if len(parts) < 3:
                self.find("banned", name, number, "an exemption is: FILE CALL REASON")
                continue
            self.allowed[(parts[0], parts[1])] = number

    def banned(self):
        self.read_allow()
        for name in self.c_files("src/", "include/", "tests/", "bench/", "examples/"):
            calls = dict(BANNED)
            if name.startswith(("src/", "include/")) and not name.startswith("src/os/"):
                calls.update(SEAM)
            # Not a member (x->open), not part of a longer name.
            pattern = re.compile(r"(?<![\w.>])(" + "|".join(calls) + r")\s*\(")
            for number, line in enumerate(code_of(self.read(name)).splitlines(), 1):
                for match in pattern.finditer(line):
                    call = match.group(1)
                    if (name, call) in self.allowed:
                        self.allow_used.add((name, call))
                        continue
                    self.find("banned", name, number, "{}(): {}".format(call, calls[call]))
        for key, number in self.allowed.items():
            if key not in self.allow_used:
                self.find("banned", "tests/lint/allow.txt", number, "{} no longer calls {}(): take the line out".format(*key))

    def include(self):
        home = {}
        for name in self.c_files("src/", "include/", "tests/", "bench/"):
            if name.endswith(".h"):
                base = os.path.basename(name)
                if base in home:
                    self.find("include", name, 1, "{} is also the name of {}; header names are unique".format(base, home[base]))
                home.setdefault(base, name)
        for name in self.c_files("src/", "include/", "tests/", "bench/", "examples/"):
            for number, line in enumerate(self.read(name).splitlines(), 1):
                match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
                if not match:
                    continue
                what = match.group(1)
                if what.startswith("../") or "/../" in what:
                    self.find("include", name, number, '#include "{}": include by name, and depend on the room in meson.build'.format(what))
                    continue
                target = home.get(os.path.basename(what), "")
                mine, theirs = room_of(name), room_of(target)
                if mine and theirs and not may_use(mine, theirs):
                    self.find("include", name, number, "src/{} must not see src/{} ({})".format(mine, theirs, os.path.basename(what)))
                if name.startswith("include/") and target.startswith("src/"):
                    self.find("include", name, number, "a public header must not include an internal one ({})".format(what))

    def floors(self):
        for name in self.files:
            if not (name.startswith("src/") and name.endswith("/meson.build")):
                continue
            mine = room_of(name)
            if mine is None:
                self.find("floors", name, 1, "this room is not in the floor plan (ARCHITECTURE.md, and FLOORS in tests/lint/house.py)")
                continue
            for number, line in enumerate(self.read(name).splitlines(), 1):
                for var in re.findall(r"\b([a-z0-9_]+)_dep\b", line.split("#")[0]):
                    theirs = room_of_var(var)
                    if theirs and theirs != mine and not may_use(mine, theirs):
                        self.find("floors", name, number, "src/{} must not depend on src/{}".format(mine, theirs))

    def prefix(self):
        for name in self.c_files("src/"):
            if name.endswith(".c"):
                for function, number in functions_of(os.path.join(self.root, name), self.read(name)):
                    if not function.startswith("tr_") and function != "main":
                        self.find("prefix", name, number, "{}() is neither static nor tr_*".format(function))
        # What the compiler made of it, variables included.
        if self.build and os.path.isdir(os.path.join(self.build, "src")):
            for folder, _, files in os.walk(os.path.join(self.build, "src")):
                for library in sorted(f for f in files if re.fullmatch(r"libtr_.*\.a", f)):
                    path = os.path.join(folder, library)
                    done = subprocess.run(["nm", "--extern-only", "--defined-only", "--format=posix", path], capture_output=True, text=True, check=False)
                    for line in done.stdout.splitlines():
                        parts = line.split()
                        if len(parts) >= 2 and len(parts[1]) == 1 and not parts[0].startswith(("tr_", "__", "_")) and parts[0] != "main":
                            self.find("prefix", os.path.relpath(path, self.root), 1, "symbol {} is not tr_*".format(parts[0]))

    def size(self):
        for name in self.files:
            if name.startswith(("src/", "include/", "tests/", "bench/", "scripts/", "examples/")) and re.search(r"\.(c|h|py|sh|build)$", name):
                lines = self.read(name).count("\n")
                if lines > LINES_MAX:
                    self.find("size", name, lines, "{} lines, more than {}: split it".format(lines, LINES_MAX))

    def python(self):
        for name in self.files:
            stem, ending = os.path.splitext(os.path.basename(name))
            if ending == ".py" and stem in sys.stdlib_module_names:
                self.find("python", name, 1, "Python has a module {}: give it another name".format(stem))

    def text(self):
        for name in self.files:
            if not TEXT.search("/" + name) or name == "LICENSE" or name.startswith(("tests/fuzz/corpus/", "tests/data/")):
                continue
            for number, line in enumerate(self.read(name).splitlines(), 1):
                match = MARKS.search(line)
                if match:
                    self.find("marks", name, number, "{}: finish it, or file it".format(match.group(1)))
                if PATHS.search(line):
                    self.find("paths", name, number, "a path of somebody's own workplace")

    def generated(self):
        """docs/generated/FILE is the output of a `tailrace help config` option. It counts from the day it exists."""
        program = os.path.join(self.build, "src/cli/tailrace") if self.build else ""
        sources = {
            "tailrace.yaml.5": ["help", "config", "--man"],
            "tailrace.schema.json": ["help", "config", "--schema"],
            "config.md": ["help", "config", "--markdown"],
        }
        there = [n for n in self.files if n.startswith("docs/generated/")]
        for name in there:
            if os.path.basename(name) not in sources:
                self.find("generated", name, 1, "nobody knows what generates this: add it to generated() in tests/lint/house.py")
        if not os.access(program, os.X_OK):
            return
        for file, arguments in sources.items():
            name = "docs/generated/" + file
            if name not in there:
                continue
            done = subprocess.run([program] + arguments, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.find("generated", name, 1, "tailrace {} fails: {}".format(" ".join(arguments), done.stderr.strip()[:200]))
            elif done.stdout != self.read(name):
                self.find("generated", name, 1, "stale: tailrace {} > {}".format(" ".join(arguments), name))

    def faults(self):
        tests = "".join(self.read(n) for n in self.files if n.startswith("tests/e2e/") and n.endswith(".sh"))
        for name in self.c_files("src/"):
            for number, line in enumerate(self.read(name).splitlines(), 1):
                for point in re.findall(r'TR_FAILPOINT\("([^"]+)"\)', line):
                    if not re.search(r"\b" + re.escape(point) + "=kill", tests) and not line.lstrip().startswith("/*"):
                        self.find("faults", name, number, "no end-to-end test kills at fault point {0}: {0}=kill:N in tests/e2e/traps_kill.sh".format(point))

    def check(self):
        for rule in (self.banned, self.include, self.floors, self.prefix, self.size, self.python, self.text, self.generated, self.faults):
            rule()
        return self.findings


def room_of(name):
    """src/client/pg/x.c -> client/pg; None for what is in no room, or in one that the plan does not know."""
    parts = name.split("/")
    if len(parts) < 3 or parts[0] != "src" or parts[1] not in FLOORS:
        return None
    if parts[1] in NESTED:
        return "/".join(parts[1:3]) if len(parts) > 3 else None
    return parts[1]


def room_of_var(var):
    """client_pg -> client/pg; None for a dependency from outside."""
    if var in FLOORS and var not in NESTED:
        return var
    for nest in NESTED:
        if var.startswith(nest + "_"):
            return nest + "/" + var[len(nest) + 1 :]
    return None


def may_use(mine, theirs):
    if mine == theirs:
        return True
    # Only the composition root knows concrete connectors.
    if theirs.startswith("connector/"):
        return mine == "cli"
    return FLOORS[theirs.split("/")[0]] < FLOORS[mine.split("/")[0]]


def code_of(source):
    """The source with comments and the insides of literals blanked, line by line in place."""

    def blank(match):
        text = match.group(0)
        if text[0] in "\"'":
            return text[0] + re.sub(r"[^\n]", " ", text[1:-1]) + text[0]
        return re.sub(r"[^\n]", " ", text)

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'", blank, source, flags=re.S)


def functions_of(path, source):
    """Functions with external linkage defined in a C file: from ctags if there, else by the look of the text."""
    try:
        done = subprocess.run(
            ["ctags", "--options=NONE", "--language-force=C", "--kinds-C=f", "--fields=+n", "--excmd=number", "-f", "-", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and "unrecognized" not in done.stderr.lower():
            for line in done.stdout.splitlines():
                fields = line.split("\t")
                if len(fields) > 3 and not line.startswith("!") and "file:" not in fields[3:]:
                    yield fields[0], int(fields[2].split(";")[0])
            return
    except OSError:
        pass
    lines = code_of(source).splitlines()
    for number, line in enumerate(lines, 1):
        match = re.match(r"^(?!static\b|typedef\b|extern\b|#)(?:[A-Za-z_][\w\s*]*?[\s*])?([A-Za-z_]\w*)\s*\(", line)
        if not match or match.group(1) in KEYWORDS:
            continue
        # The type may stand on a line of its own.
        if line.startswith(match.group(1)) and (number < 2 or not re.match(r"^(?!static\b)[A-Za-z_][\w\s*]*$", lines[number - 2])):
            continue
        # A definition: a brace comes before any semicolon.
        rest = "\n".join(lines[number - 1 : number + 12])[match.end() :]
        brace, end = rest.find("{"), rest.find(";")
        if brace >= 0 and (end < 0 or brace < end):
            yield match.group(1), number


def main(arguments):
    build = None
    if arguments[:1] == ["--build"]:
        build = arguments[1]
        arguments = arguments[2:]
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    findings = House(root, build).check()
    for finding in findings:
        print(finding)
    if findings:
        print("{} finding{} against the house rules (CONTRIBUTING.md)".format(len(findings), "" if len(findings) == 1 else "s"))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
