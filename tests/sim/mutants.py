#!/usr/bin/env python3
"""Shows that the simulator sees: each mutant is tailrace with one rule taken out, and must be caught.

    mutants.py BUILD_DIR [--jobs N] [--seeds N] [--find] [--all] [NAME...]

A mutant (mutants/NAME.mutant) names a source file, the text to replace and what to put there, and a seed that catches it, or another program of the
build that must fail. The file is compiled once more as the
build does it, and linked into the simulator in place of its own. When the seed does not catch it any more (any change of the code shifts what
a seed does), up to --seeds others are tried. --find writes the seed that was found into the mutant's file. Those that show up in one of many
thousand seeds only are marked rare, and tried only with --all or by name.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIM = "tests/sim/cdc_sim"


class Mutant:
    def __init__(self, path):
        text = path.read_text()
        head, _, rest = text.partition("--- old\n")
        old, _, rest = rest.partition("\n--- new\n")
        new, _, _ = rest.partition("\n--- end\n") if "\n--- end\n" in rest else ("", "", "")
        fields = dict(re.findall(r"^(\w+): (.*)$", head, re.M))
        self.path, self.name = path, path.stem
        self.what, self.file = fields["what"], fields["file"]
        self.seed = int(fields["seed"]) if "seed" in fields else None
        self.program = fields.get("program", SIM)
        self.rare = fields.get("rare") == "yes"
        self.old, self.new = old, new

    def keep_seed(self, seed):
        text = self.path.read_text()
        line = f"seed: {seed}\n"
        text = re.sub(r"^seed: .*\n", line, text, count=1, flags=re.M) if self.seed is not None else text.replace("--- old\n", line + "--- old\n", 1)
        self.path.write_text(text)


def compile_commands(build):
    out = {}
    for c in json.loads((build / "compile_commands.json").read_text()):
        file = os.path.realpath(os.path.join(c["directory"], c["file"]))
        if ".p/" in c["output"] and "_test" not in c["output"]:
            out.setdefault(file, c)
    return out


def link_command(build, program):
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", program], check=True, capture_output=True, text=True).stdout.splitlines()
    return shlex.split([x for x in lines if f"-o {program} " in x][-1])


def mutated(m):
    text = (ROOT / m.file).read_text()
    if text.count(m.old) != 1:
        raise RuntimeError(f"the text to replace stands {text.count(m.old)} times in {m.file}: mend {m.path.name}")
    return text.replace(m.old, m.new)


def build_mutant(m, build, commands, work):
    source = ROOT / m.file
    changed = pathlib.Path(work) / source.name
    changed.write_text(mutated(m))
    c = commands[os.path.realpath(source)]
    args = shlex.split(c["command"])
    obj = pathlib.Path(work) / (source.name + ".o")
    args[args.index("-o") + 1] = str(obj)
    at = max(i for i, a in enumerate(args) if os.path.realpath(os.path.join(c["directory"], a)) == os.path.realpath(source))
    args[at] = str(changed)
    for flag in ("-MF", "-MQ"):
        if flag in args:
            args[args.index(flag) + 1] = str(obj) + ".d"
    r = subprocess.run([args[0], "-iquote", str(source.parent), "-Wno-error", "-w", *args[1:]], cwd=c["directory"], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"does not compile: {r.stderr[-800:]}")
    exe = pathlib.Path(work) / "sim"
    line = link_command(build, m.program)
    line[line.index("-o") + 1] = str(exe)
    own = [i for i, a in enumerate(line) if a == c["output"]]
    if own:
        line[own[0]] = str(obj)
    else:
        line.insert(min(i for i, a in enumerate(line) if a.endswith(".o")), str(obj))
    r = subprocess.run(line, cwd=build, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"does not link: {r.stderr[-800:]}")
    return exe


def run(exe, first, seeds):
    """The seed that failed and why; None: all went well."""
    try:
        r = subprocess.run([exe, "--from", str(first), "--seeds", str(seeds), "--jobs", "1"], capture_output=True, text=True, errors="replace", timeout=3600)
    except subprocess.TimeoutExpired:
        return None
    if r.returncode == 0:
        return None
    found = re.search(r"FAILED: seed (\d+): (.*)", r.stdout)
    return (int(found.group(1)), found.group(2)) if found else (first, f"it died (status {r.returncode})")


def try_one(m, build, commands, args):
    with tempfile.TemporaryDirectory(prefix="tr-mutant-") as work:
        try:
            exe = build_mutant(m, build, commands, work)
        except RuntimeError as e:
            return m, None, str(e)
        if m.program != SIM:
            r = subprocess.run([exe], cwd=build, capture_output=True, text=True, errors="replace", timeout=300)
            return m, (0, f"{m.program} fails") if r.returncode else None, "its program does not fail"
        caught = run(exe, m.seed, 1) if m.seed is not None else None
        if not caught:
            caught = run(exe, 1, args.seeds)
        if caught and args.find and caught[0] != m.seed:
            m.keep_seed(caught[0])
        return m, caught, "" if caught else f"not caught in {args.seeds} seeds"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--seeds", type=int, default=4000)
    p.add_argument("--find", action="store_true")
    p.add_argument("--all", action="store_true")
    p.add_argument("names", nargs="*")
    args = p.parse_intermixed_args()
    build = args.build.resolve()
    mutants = [Mutant(x) for x in sorted((HERE / "mutants").glob("*.mutant"))]
    unknown = set(args.names) - {m.name for m in mutants}
    if unknown:
        sys.exit(f"there is no mutant {', '.join(sorted(unknown))}")
    for m in mutants:
        mutated(m)  # the rare ones, too, are to fit the code as it is
    mutants = [m for m in mutants if m.name in args.names or (not args.names and (args.all or not m.rare))]
    commands = compile_commands(build)
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for m, caught, why in pool.map(lambda m: try_one(m, build, commands, args), mutants):
            missed += not caught
            print(f"caught {f'by seed {caught[0]}' if caught[0] else '':<14} {m.name}: {caught[1][:140]}" if caught else f"MISSED {m.name} ({m.what}): {why}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} mutants caught")
    return 1 if missed or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
