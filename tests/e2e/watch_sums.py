#!/usr/bin/env python3
"""Looks every 50 ms at one snapshot of each mirror: the four sums of pgbench must always agree.

    watch_sums.py SQLITE_FILE POSTGRES_DSN REPORT

Runs until terminated; writes "looks violations" and the first violations to REPORT. A mirror that cannot be read at a moment (being swapped, its
server restarting) is not looked at; the number of looks says that it was looked at often enough.
"""
import signal
import sqlite3
import subprocess
import sys
import time

SQL = ("SELECT (SELECT coalesce(sum(abalance), 0) FROM {0}pgbench_accounts_live), (SELECT coalesce(sum(tbalance), 0) FROM {0}pgbench_tellers_live),"
       " (SELECT coalesce(sum(bbalance), 0) FROM {0}pgbench_branches_live), (SELECT coalesce(sum(delta), 0) FROM {0}pgbench_history_live)")


class Lite:
    name = "sqlite"

    def __init__(self, path):
        self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)

    def look(self):
        return self.db.execute(SQL.format("")).fetchone()


class Postgres:
    name = "postgres"

    def __init__(self, dsn):
        self.dsn, self.p = dsn, None

    def look(self):
        if self.p is None or self.p.poll() is not None:
            self.p = subprocess.Popen(["psql", "-X", "-q", "-A", "-t", "-F", " ", "-d", self.dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.p.stdin.write(SQL.format("public.") + ";\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline().split()
        return tuple(int(x) for x in line) if len(line) == 4 else None


def main():
    looks, violations, first = {"sqlite": 0, "postgres": 0}, 0, []
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    sides = [Lite(sys.argv[1]), Postgres(sys.argv[2])]
    while not stop:
        for side in sides:
            try:
                sums = side.look()
            except (sqlite3.Error, OSError, ValueError):
                sums = None
                if side.name == "postgres":
                    side.p = None
            if sums is None:
                continue
            looks[side.name] += 1
            if len(set(sums)) != 1:
                violations += 1
                first.append(f"{side.name}: accounts {sums[0]} tellers {sums[1]} branches {sums[2]} history {sums[3]}")
        time.sleep(0.05)
    with open(sys.argv[3], "w") as f:
        f.write(f"{looks['sqlite']} {looks['postgres']} {violations}\n" + "\n".join(first[:20]) + "\n")


main()
