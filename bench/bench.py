#!/usr/bin/env python3
"""The parts of bench/run.sh: capture, snapshot and latency, each against its ceiling in the same run, medians over the rounds.

The peers are pg_recvlogical to /dev/null (what a client can take from the server's decoder at all) and COPY ... TO STDOUT to /dev/null (what
the server can read of a table). CPU is the client's own: user and system time of pg_recvlogical, psql or tailrace, not the server's."""
import argparse
import datetime
import http.client
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time

COLUMNS = "id bigint primary key, a int, b int, c bigint, d float8, at timestamptz, t text, h text"
ROW = "g, g % 1000, g % 77, g * 3, g * 0.25, clock_timestamp(), 'a text of some length', md5(g::text)"
TICK = os.sysconf("SC_CLK_TCK")


def say(text):
    print(text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, o):
        self.o = o
        self.port = 0
        self.next_id = 1
        self.proc = None
        self.rss_max = 0

    # --- PostgreSQL ---

    def sql(self, dsn, *statements):
        args = [os.path.join(self.o.bin, "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", dsn]
        for s in statements:
            args += ["-c", s]
        return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def source(self, *statements):
        return self.sql(self.o.source, *statements)

    def timed(self, args, out):
        """Seconds, CPU seconds and peak RSS of a child."""
        t = time.monotonic()
        with open(out, "wb") as sink:
            p = subprocess.Popen(args, stdout=sink)
            _, status, usage = os.wait4(p.pid, 0)
        if status:
            raise SystemExit("{} ended with {}".format(args[0], status))
        return time.monotonic() - t, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    # --- tailrace ---

    def write_config(self, name, tables, sinks, slot, more=""):
        path = os.path.join(self.o.tmp, name + ".yaml")
        with open(path, "w") as f:
            f.write("state_dir: {0}/state-{1}\nsource:\n  dsn: '{2}'\n  tables: ['{3}']\n  slot: {4}\n  publication: {4}\n  heartbeat_schema: beat_{4}\n".format(
                self.o.tmp, name, self.o.source, tables, slot))
            f.write("sinks:\n" + "".join("  - " + s + "\n" for s in sinks))
            f.write("engine: {{commit_interval: 1s}}\nadmin: {{listen: '127.0.0.1:{}'}}\n{}".format(self.port_of(), more))
        return path

    def port_of(self):
        import socket

        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        self.port = s.getsockname()[1]
        s.close()
        return self.port

    def start(self, config):
        with open(os.path.join(self.o.tmp, "tailrace.log"), "ab") as log:
            self.proc = subprocess.Popen([self.o.tailrace, "run", "-c", config], stdout=log, stderr=log)
        self.rss_max = 0

    def stop(self):
        if self.proc:
            self.proc.send_signal(signal.SIGTERM)
            if self.proc.wait(60):
                raise SystemExit("tailrace ended with {}".format(self.proc.returncode))
            self.proc = None

    def status(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            c.request("GET", "/status")
            s = json.loads(c.getresponse().read())
            c.close()
        except (OSError, ValueError, http.client.HTTPException):
            if self.proc.poll() is not None:
                raise SystemExit("tailrace is down; see tailrace.log (TR_KEEP=1 keeps it)")
            return None
        self.rss_max = max(self.rss_max, s["rss_bytes"])
        return s

    def wait(self, what, condition, seconds=120, every=0.02):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            s = self.status()
            if s and condition(s):
                return s
            time.sleep(every)
        raise SystemExit("not within {} s: {}; last: {}".format(seconds, what, json.dumps(self.status())))

    def cpu(self):
        with open("/proc/{}/stat".format(self.proc.pid)) as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / TICK

    def peak_rss(self):
        with open("/proc/{}/status".format(self.proc.pid)) as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return 0

    @staticmethod
    def table_state(s, name):
        return next((t["state"] for t in s["capture"]["tables"] if t["name"] == name), None)

    # --- parts ---

    def many(self, n):
        """n transactions of one row each."""
        self.source("set synchronous_commit = off",
                    "do $$ begin for g in {}..{} loop insert into cap.t values ({}); commit; end loop; end $$".format(self.next_id, self.next_id + n - 1, ROW))
        self.next_id += n

    def one(self, n):
        """One transaction of n rows."""
        self.source("insert into cap.t select {} from generate_series({}, {}) g".format(ROW, self.next_id, self.next_id + n - 1))
        self.next_id += n

    def drain_peer(self, end):
        t, cpu, rss = self.timed([os.path.join(self.o.bin, "pg_recvlogical"), "-d", self.o.source, "--slot", "peer", "--start", "--no-loop", "--endpos", end,
                                  "-o", "proto_version=1", "-o", "publication_names=bcap", "-f", "/dev/null"], os.path.join(self.o.tmp, "peer.out"))
        return t, cpu, rss

    def drain_us(self, config, rows):
        self.start(config)
        s = self.wait("capture runs", lambda s: s["capture"]["state"] == "running", every=0.005)
        t0, c0 = time.monotonic(), self.cpu()
        want = self.frames + rows
        s = self.wait("the backlog is in the log", lambda s: s["log"]["durable_offset"] >= want and s["capture"]["records_in"] >= rows)
        t = time.monotonic() - t0
        cpu, rss = self.cpu() - c0, self.peak_rss()
        self.stop()
        self.frames = s["log"]["durable_offset"]
        return t, cpu, rss

    def capture(self):
        n_many, n_one = int(300000 * self.o.scale), int(1000000 * self.o.scale)
        self.source("create schema cap", "create table cap.t ({})".format(COLUMNS))
        # a sink that wants nothing: what is measured is capture
        config = self.write_config("capture", "cap.*", ["{name: none, type: sqlite, path: '" + self.o.tmp + "/none.db', tables: ['no.thing']}"], "bcap")
        self.start(config)
        s = self.wait("the empty table is live", lambda s: self.table_state(s, "cap.t") == "live")
        self.stop()
        self.frames = s["log"]["durable_offset"]
        self.source("select pg_create_logical_replication_slot('peer', 'pgoutput')")
        out = {}
        for label, make, n in (("many", self.many, n_many), ("one", self.one, n_one)):
            runs = []
            for r in range(self.o.rounds):
                make(n)
                # pg_recvlogical ends at this position once something is sent at or beyond it
                end = self.source("select pg_current_wal_flush_lsn()")
                self.source("select pg_logical_emit_message(true, 'bench', 'end')")
                both = {}
                for who in ("peer", "us") if r % 2 == 0 else ("us", "peer"):
                    both[who] = self.drain_peer(end) if who == "peer" else self.drain_us(config, n)
                say("    {} {}: peer {:.0f} rows/s, {:.2f} CPU-s; tailrace {:.0f} rows/s, {:.2f} CPU-s, {:.0f} MiB".format(
                    label, r + 1, n / both["peer"][0], both["peer"][1], n / both["us"][0], both["us"][1], both["us"][2] / 2**20))
                runs.append(both)
            out[label] = {"n": n, "runs": runs}
        return out

    def snapshot(self):
        n = int(1000000 * self.o.scale)
        self.source("create schema snap", "create table snap.t ({})".format(COLUMNS), "insert into snap.t select {} from generate_series(1, {}) g".format(ROW, n),
                    "vacuum analyze snap.t")
        config = self.write_config("snapshot", "snap.*", ["{name: none, type: sqlite, path: '" + self.o.tmp + "/none2.db', tables: ['no.thing']}"], "bsnap")
        copy, us = [], []
        self.start(config)
        self.wait("the first snapshot is complete", lambda s: self.table_state(s, "snap.t") == "live")
        for r in range(self.o.rounds):
            copy.append(self.timed([os.path.join(self.o.bin, "psql"), "-X", "-q", "-d", self.o.source, "-c", "copy snap.t to stdout"], "/dev/null"))
            c0, t0 = self.cpu(), time.monotonic()
            subprocess.run([self.o.tailrace, "table", "resnapshot", "snap.t", "-c", config], check=True, stdout=subprocess.DEVNULL)
            self.wait("a new snapshot begins", lambda s: self.table_state(s, "snap.t") != "live", every=0.002)
            self.wait("the snapshot is complete", lambda s: self.table_state(s, "snap.t") == "live")
            us.append((time.monotonic() - t0, self.cpu() - c0, self.peak_rss()))
            say("    snapshot {}: COPY {:.0f} rows/s; tailrace {:.0f} rows/s, {:.2f} CPU-s, {:.0f} MiB".format(
                r + 1, n / copy[-1][0], n / us[-1][0], us[-1][1], us[-1][2] / 2**20))
        self.stop()
        return {"n": n, "copy": copy, "us": us}

    def latency(self):
        self.source("create schema lat", "create table lat.t (id bigserial primary key, at timestamptz default clock_timestamp(), v int, t text)")
        lite = os.path.join(self.o.tmp, "mirror.db")
        config = self.write_config("latency", "lat.*", ["{name: lite, type: sqlite, path: '" + lite + "'}", "{name: pg, type: postgres, dsn: '" + self.o.mirror + "'}"], "blat")
        self.start(config)
        self.wait("both mirrors are live", lambda s: len(s["sinks"]) == 2 and all(any(t["name"] == "lat.t" and t["state"] == "live" for t in k["tables"]) for k in s["sinks"]))
        script = os.path.join(self.o.tmp, "lat.sql")
        with open(script, "w") as f:
            f.write("insert into lat.t (v, t) values (1, 'a text of some length');\n")
        part = dict(w.split("=", 1) for w in self.o.source.split())
        runs = []
        for r in range(self.o.rounds):
            stop, seen = threading.Event(), {"sqlite": [], "postgres": []}
            watchers = [threading.Thread(target=self.watch_sqlite, args=(lite, stop, seen["sqlite"])),
                        threading.Thread(target=self.watch_postgres, args=(stop, seen["postgres"]))]
            for w in watchers:
                w.start()
            c0 = self.cpu()
            bench = subprocess.run(["pgbench", "-n", "-h", part["host"], "-p", part["port"], "-U", "postgres", "-c", "4", "-j", "1", "-R", "1000", "-T", str(self.o.seconds),
                                    "-f", script, part["dbname"]], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
            cpu = self.cpu() - c0
            time.sleep(1)
            stop.set()
            for w in watchers:
                w.join()
            tps = next((float(line.split()[2]) for line in bench.splitlines() if line.startswith("tps")), 0)
            one = {"tps": tps, "cpu": cpu / self.o.seconds}
            for k, v in seen.items():
                v.sort()
                one[k] = (v[len(v) // 2], v[len(v) * 99 // 100], len(v)) if v else (0, 0, 0)
            self.status()
            one["rss"] = self.peak_rss()
            say("    latency {}: {:.0f} tx/s; SQLite p50 {:.1f} p99 {:.1f} ms; PostgreSQL p50 {:.1f} p99 {:.1f} ms; {} and {} rows; {:.2f} CPU-s/s".format(
                r + 1, tps, one["sqlite"][0], one["sqlite"][1], one["postgres"][0], one["postgres"][1], one["sqlite"][2], one["postgres"][2], one["cpu"]))
            runs.append(one)
        self.stop()
        return runs

    @staticmethod
    def new_rows(rows, state, out):
        """rows: (id, epoch seconds of the insert). Ids of concurrent transactions become visible out of order."""
        now = time.time()
        for i, at in rows:
            if i not in state["seen"]:
                state["seen"].add(i)
                out.append((now - at) * 1000)
                state["max"] = max(state["max"], i)

    def watch_sqlite(self, path, stop, out):
        db = sqlite3.connect("file:{}?mode=ro".format(path), uri=True, timeout=5)
        top = db.execute('select coalesce(max(id), 0) from lat__t').fetchone()[0]
        state = {"seen": set(range(max(0, top - 200), top + 1)), "max": top}
        while not stop.is_set():
            rows = db.execute("select id, at from lat__t where id > ?", (state["max"] - 50,)).fetchall()
            self.new_rows([(i, datetime.datetime.fromisoformat(at.replace("+00", "+00:00")).timestamp()) for i, at in rows if i not in state["seen"]], state, out)
            time.sleep(0.001)
        db.close()

    def watch_postgres(self, stop, out):
        p = subprocess.Popen([os.path.join(self.o.bin, "psql"), "-X", "-q", "-At", "-d", self.o.mirror], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

        def ask(q):
            p.stdin.write(q + ";\n\\echo .\n")
            p.stdin.flush()
            rows = []
            for line in p.stdout:
                if line == ".\n":
                    return rows
                rows.append(line.rstrip("\n").split("|"))
            raise SystemExit("psql has ended")

        top = int(ask("select coalesce(max(id), 0) from lat.t")[0][0])
        state = {"seen": set(range(max(0, top - 200), top + 1)), "max": top}
        while not stop.is_set():
            self.new_rows([(int(i), float(at)) for i, at in ask("select id, extract(epoch from at) from lat.t where id > {}".format(state["max"] - 50))], state, out)
            time.sleep(0.001)
        p.stdin.close()
        p.wait()


def med(v):
    return statistics.median(v)


def report(o, out):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    mem = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    version = subprocess.run([o.tailrace, "version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    text = ["# Benchmarks", "",
            "Written by `make bench` (`bench/run.sh`, `bench/bench.py`). Real PostgreSQL 15 on the same machine, over a unix socket; medians of {} rounds; the peer runs in the".format(o.rounds),
            "same round on the same data, in alternating order. CPU is the client's own (tailrace, `pg_recvlogical`, `psql`), not the server's. Nothing here is a test.", "",
            "- Date: {}; {}".format(datetime.date.today().isoformat(), version),
            "- Machine: {}, {} cores, {:.0f} GiB; Linux {}; client, source and mirror share it".format(cpu, os.cpu_count(), mem / 2**20, platform.release()),
            "- Load average when it began: {:.1f}; above 0.5 other work shared the machine, and the figures are lower bounds and even the ratios are noisy".format(o.load),
            "- Rows of 8 columns: `bigint` key, 2 `int`, `bigint`, `float8`, `timestamptz`, `text`, `text(32)`", ""]
    if "capture" in out:
        text += ["## Capture: a backlog into the change log", "",
                 "The ceiling is `pg_recvlogical -o proto_version=1 -f /dev/null` on a second slot over the same WAL. tailrace is measured from the moment capture runs until the last row is durable.", "",
                 "| backlog | pg_recvlogical rows/s | CPU-s per 1M rows | tailrace rows/s | of the ceiling | CPU-s per 1M rows | peak RSS |", "|---|---|---|---|---|---|---|"]
        for k, label in (("many", "{:,} transactions of one row"), ("one", "one transaction of {:,} rows")):
            c = out["capture"][k]
            n, runs = c["n"], c["runs"]
            pr, ur = med([n / r["peer"][0] for r in runs]), med([n / r["us"][0] for r in runs])
            text.append("| {} | {:,.0f} | {:.2f} | {:,.0f} | {:.0f} % | {:.2f} | {:.0f} MiB |".format(
                label.format(n), pr, med([r["peer"][1] for r in runs]) * 1e6 / n, ur, med([100 * r["peer"][0] / r["us"][0] for r in runs]),
                med([r["us"][1] for r in runs]) * 1e6 / n, max(r["us"][2] for r in runs) / 2**20))
        text += ["", "tailrace asks for streaming (`proto_version` 2 on PostgreSQL 15), so a large transaction is sent while it is decoded; `pg_recvlogical` gets it at its end, after the server has spilled it to disk. That is how tailrace can come out above 100 %.", ""]
    if "snapshot" in out:
        s = out["snapshot"]
        n = s["n"]
        text += ["## Snapshot into the change log", "",
                 "The ceiling is `COPY … TO STDOUT` to /dev/null, one connection. tailrace with its defaults (2 workers), from the request to SNAPSHOT_END durable, fences included.", "",
                 "| rows | COPY rows/s | tailrace rows/s | of the ceiling | CPU-s per 1M rows | peak RSS |", "|---|---|---|---|---|---|",
                 "| {:,} | {:,.0f} | {:,.0f} | {:.0f} % | {:.2f} | {:.0f} MiB |".format(
                     n, med([n / c[0] for c in s["copy"]]), med([n / u[0] for u in s["us"]]), med([100 * c[0] / u[0] for c, u in zip(s["copy"], s["us"])]),
                     med([u[1] for u in s["us"]]) * 1e6 / n, max(u[2] for u in s["us"]) / 2**20), ""]
    if "latency" in out:
        runs = out["latency"]
        text += ["## From commit to visible in the mirror", "",
                 "`pgbench -c 4 -R 1000` inserts one row per transaction for {} s; a reader polls each mirror about once a millisecond. The row's own `clock_timestamp()` is the start, so the".format(o.seconds),
                 "source's commit and the polling are in the figures. Both mirrors run at once, with default settings.", "",
                 "| mirror | tx/s | p50 | p99 |", "|---|---|---|---|"]
        for k, label in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
            text.append("| {} | {:,.0f} | {:.1f} ms | {:.1f} ms |".format(label, med([r["tps"] for r in runs]), med([r[k][0] for r in runs]), med([r[k][1] for r in runs])))
        text += ["", "tailrace meanwhile: {:.2f} CPU-s per second, peak RSS {:.0f} MiB.".format(med([r["cpu"] for r in runs]), max(r["rss"] for r in runs) / 2**20), ""]
    return "\n".join(text)


def main():
    p = argparse.ArgumentParser()
    for name in ("tailrace", "tmp", "bin", "source", "mirror", "write"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=int, default=10)
    p.add_argument("--scale", type=float, default=1)
    p.add_argument("parts", nargs="*")
    o = p.parse_args()
    o.load = os.getloadavg()[0]
    b = Bench(o)
    parts = o.parts or ["capture", "snapshot", "latency"]
    out = {}
    try:
        for part in parts:
            say("==> " + part)
            out[part] = getattr(b, part)()
    finally:
        if b.proc:
            b.proc.kill()
            b.proc.wait()
    text = report(o, out)
    print(text)
    if not o.parts:
        with open(o.write, "w") as f:
            f.write(text)


if __name__ == "__main__":
    main()
