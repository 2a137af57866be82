#!/usr/bin/env python3
"""The parts of bench/run.sh, each against its ceiling in the same run, medians over the rounds; report.py writes the tables.

The peers are pg_recvlogical to /dev/null (what a client can take from the server's decoder at all), COPY ... TO STDOUT to /dev/null (what
the server can read of a table), a loop of COPY and INSERT ... ON CONFLICT by hand, executemany of Python's sqlite3, and pwrite + fdatasync. CPU is
the client's own: user and system time of pg_recvlogical, psql or tailrace, not the server's."""
import argparse
import datetime
import glob
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

from bench_base import BATCH, COLUMNS, ROW, TABLES, WIDE, say, TICK
from bench_clickhouse import ClickHouse
from report import report


class Bench(ClickHouse):
    def __init__(self, o):
        self.o = o
        self.port = 0
        self.next_id = 1
        self.proc = None

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

    # --- parts: a backlog, and what takes it ---

    def rows(self, table, row, n, each):
        """n rows in transactions of `each`; row: expressions of g."""
        self.source("set synchronous_commit = off",
                    "do $$ begin for b in 0..{} loop insert into {} select {} from generate_series({} + b * {}, {} + b * {} + {}) g; commit; end loop; end $$".format(
                        max(n // each, 1) - 1, table, row, self.next_id, each, self.next_id, each, each - 1))
        self.next_id += n

    def many(self, n):
        self.rows("cap.t", ROW, n, 1)

    def one(self, n):
        self.rows("cap.t", ROW, n, n)

    def wide(self, n):
        self.rows("cap.wide", "g, " + ", ".join("g + {}".format(i) if i % 2 else "'value {}'".format(i) for i in range(WIDE)), n, 100)

    def large(self, n):
        self.rows("cap.large", "g, repeat(md5(g::text), 32768)", n, 10)

    def tables1000(self, n):
        self.source("set synchronous_commit = off",
                    "do $$ begin for g in {}..{} loop execute format('insert into capn.n%s values ($1, $1, $2)', g % {}) using g, 'a text of some length'; if g % 10 = 0 then commit; end if; end loop; end $$".format(
                        self.next_id, self.next_id + n - 1, TABLES))
        self.next_id += n

    def drain_peer(self, end, publication):
        t, cpu, rss = self.timed([os.path.join(self.o.bin, "pg_recvlogical"), "-d", self.o.source, "--slot", "peer", "--start", "--no-loop", "--endpos", end,
                                  "-o", "proto_version=1", "-o", "publication_names=" + publication, "-f", "/dev/null"], os.path.join(self.o.tmp, "peer.out"))
        return t, cpu, rss

    def drain_us(self, config, rows):
        self.start(config)
        s = self.wait("capture runs", lambda s: s["capture"]["state"] == "running", every=0.005)
        t0, c0 = time.monotonic(), self.cpu()
        want = self.frames + rows
        s = self.wait("the backlog is in the log", lambda s: s["log"]["durable_offset"] >= want and s["capture"]["records_in"] >= rows, every=0.05)
        t = time.monotonic() - t0
        cpu, rss = self.cpu() - c0, self.peak_rss()
        self.stop()
        self.frames = s["log"]["durable_offset"]
        return t, cpu, rss

    def capture(self):
        self.source("create schema cap", "create table cap.t ({})".format(COLUMNS), "create table cap.large (id bigint primary key, v text)",
                    "create table cap.wide (id bigint primary key, {})".format(", ".join("c{} {}".format(i, "bigint" if i % 2 else "text") for i in range(WIDE))),
                    "create schema capn",
                    "do $$ begin for g in 0..{} loop execute format('create table capn.n%s (id bigint primary key, a bigint, t text)', g); end loop; end $$".format(TABLES - 1))
        return self.capture_of("cap", 3, (("{:,} transactions of one row", self.many, 300000), ("one transaction of {:,} rows", self.one, 1000000),
                                          ("{{:,}} rows of {} columns, 100 a transaction".format(WIDE + 1), self.wide, 30000),
                                          ("{:,} rows with a value of 1 MiB, 10 a transaction", self.large, 200))) + \
            self.capture_of("capn", TABLES, (("{{:,}} rows over {:,} tables, 10 a transaction".format(TABLES), self.tables1000, 100000),))

    def capture_of(self, schema, n_tables, shapes):
        # a sink that wants nothing: what is measured is capture
        config = self.write_config(schema, schema + ".*", ["{name: none, type: sqlite, path: '" + self.o.tmp + "/none-" + schema + ".db', tables: ['no.thing']}"], "b" + schema)
        self.start(config)
        s = self.wait("the empty tables are live", lambda s: sum(t["state"] == "live" for t in s["capture"]["tables"]) == n_tables, seconds=600, every=0.5)
        self.stop()
        self.frames = s["log"]["durable_offset"]
        self.source("select pg_create_logical_replication_slot('peer', 'pgoutput')")
        out = []
        for label, make, n in shapes:
            runs = []
            n = max(int(n * self.o.scale) // 100 * 100, 100)
            for r in range(self.o.rounds):
                make(n)
                # pg_recvlogical ends at this position once something is sent at or beyond it
                end = self.source("select pg_current_wal_flush_lsn()")
                self.source("select pg_logical_emit_message(true, 'bench', 'end')")
                both = {}
                for who in ("peer", "us") if r % 2 == 0 else ("us", "peer"):
                    both[who] = self.drain_peer(end, "b" + schema) if who == "peer" else self.drain_us(config, n)
                say("    {}, {}: peer {:.0f} rows/s, {:.2f} CPU-s; tailrace {:.0f} rows/s, {:.2f} CPU-s, {:.0f} MiB".format(
                    label.format(n), r + 1, n / both["peer"][0], both["peer"][1], n / both["us"][0], both["us"][1], both["us"][2] / 2**20))
                runs.append(both)
            out.append({"label": label.format(n), "n": n, "runs": runs})
        self.source("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name in ('peer', 'b{}')".format(schema))
        return out

    def snapshot(self):
        n = int(1000000 * self.o.scale)
        self.source("create schema snap", "create table snap.t ({})".format(COLUMNS), "insert into snap.t select {} from generate_series(1, {}) g".format(ROW, n),
                    "vacuum analyze snap.t")
        config = self.write_config("snapshot", "snap.*", ["{name: none, type: sqlite, path: '" + self.o.tmp + "/none2.db', tables: ['no.thing']}"], "bsnap")
        runs = []
        self.start(config)
        self.wait("the first snapshot is complete", lambda s: self.table_state(s, "snap.t") == "live")
        for r in range(self.o.rounds):
            text, binary = [self.timed([os.path.join(self.o.bin, "psql"), "-X", "-q", "-d", self.o.source, "-c", "copy snap.t to stdout" + how], "/dev/null")[0]
                            for how in ("", " (format binary)")]
            c0, t0 = self.cpu(), time.monotonic()
            subprocess.run([self.o.tailrace, "table", "resnapshot", "snap.t", "-c", config], check=True, stdout=subprocess.DEVNULL)
            self.wait("a new snapshot begins", lambda s: self.table_state(s, "snap.t") != "live", every=0.002)
            self.wait("the snapshot is complete", lambda s: self.table_state(s, "snap.t") == "live")
            runs.append({"text": text, "binary": binary, "us": time.monotonic() - t0, "cpu": self.cpu() - c0, "rss": self.peak_rss()})
            say("    snapshot {}: COPY {:.0f} rows/s, binary {:.0f}; tailrace {:.0f} rows/s, {:.2f} CPU-s, {:.0f} MiB".format(
                r + 1, n / text, n / binary, n / runs[-1]["us"], runs[-1]["cpu"], runs[-1]["rss"] / 2**20))
        self.stop()
        return {"n": n, "runs": runs}

    def log(self):
        """bench/log_bench.c, in a directory on the disk that the rest of the run is on."""
        runs = []
        for _ in range(self.o.rounds):
            where = os.path.join(self.o.tmp, "log-bench")
            runs.append(json.loads(subprocess.run([self.o.log_bench, where], check=True, stdout=subprocess.PIPE, text=True).stdout))
            subprocess.run(["rm", "-r", where], check=True)
            say("    log: " + json.dumps(runs[-1]))
        return runs

    def encode(self):
        """bench/ch_bench.c."""
        runs = []
        for _ in range(self.o.rounds):
            runs.append(json.loads(subprocess.run([self.o.ch_bench], check=True, stdout=subprocess.PIPE, text=True).stdout))
            say("    encode: " + json.dumps(runs[-1]))
        return runs

    def chain(self):
        """bench/chain_bench.c, and its instructions under callgrind: what more batches cost."""
        runs = []
        for _ in range(self.o.rounds):
            runs.append(json.loads(subprocess.run([self.o.chain_bench], check=True, stdout=subprocess.PIPE, text=True).stdout))
            say("    chain: " + json.dumps(runs[-1]))
        instructions = {}
        for variant in ("bare", "chain", "pointers"):
            few, many = (self.instructions([self.o.chain_bench, variant, str(n)]) for n in (10, 40))
            instructions[variant] = (many - few) / (30 * runs[0]["batch"])
        say("    chain, instructions a record: " + json.dumps(instructions))
        return {"runs": runs, "instructions": instructions}

    def instructions(self, command):
        done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"] + command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return int(re.search(r"Collected : (\d+)", done.stderr).group(1))

    # --- mirrors, against loops by hand ---

    MIRROR = ("create table {} ({}, _tr_version bigint not null, _tr_deleted boolean not null default false, _tr_deleted_at timestamptz)")
    SET = ", ".join("{0} = excluded.{0}".format(c.split()[0]) for c in COLUMNS.split(", ")) + ", _tr_version = excluded._tr_version, _tr_deleted = false"

    def batches(self, query):
        """The rows of the source in files of a batch each, as COPY text; the seconds that reading them took."""
        for f in glob.glob(self.o.tmp + "/batch-*"):
            os.unlink(f)
        t = time.monotonic()
        out = subprocess.run([os.path.join(self.o.bin, "psql"), "-X", "-q", "-d", self.o.source, "-c", "copy ({}) to stdout".format(query)], check=True, stdout=subprocess.PIPE).stdout
        read = time.monotonic() - t
        lines = out.splitlines(keepends=True)
        names = []
        for i in range(0, len(lines), BATCH):
            names.append("{}/batch-{:05}".format(self.o.tmp, i // BATCH))
            with open(names[-1], "wb") as f:
                f.writelines(lines[i:i + BATCH])
        return names, read

    def peer_postgres(self, names):
        script = ["create temp table w ({}, v bigint);".format(COLUMNS.replace(" primary key", ""))]
        for f in names:
            script.append("begin;\n\\copy w from '{}'\ninsert into peer as t ({}, _tr_version) select * from w on conflict (id) do update set {} where t._tr_version < excluded._tr_version;\n"
                          "truncate w;\ncommit;".format(f, ", ".join(c.split()[0] for c in COLUMNS.split(", ")), self.SET))
        t = time.monotonic()
        subprocess.run([os.path.join(self.o.bin, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", self.o.mirror], check=True, input="\n".join(script), text=True)
        return time.monotonic() - t

    def peer_sqlite(self, db, names):
        cols = [c.split()[0] for c in COLUMNS.split(", ")]
        sql = "insert into peer as t ({}, _tr_version) values ({}) on conflict (id) do update set {} where t._tr_version < excluded._tr_version".format(
            ", ".join(cols), ", ".join("?" * (len(cols) + 1)), self.SET)
        seconds = 0.0
        for f in names:
            with open(f) as lines:
                rows = [line.rstrip("\n").split("\t") for line in lines]
            t = time.monotonic()
            db.execute("begin immediate")
            db.executemany(sql, rows)
            db.commit()
            seconds += time.monotonic() - t
        return seconds

    def peer_clickhouse(self, names):
        t = time.monotonic()
        for f in names:
            with open(f, "rb") as rows:
                self.ch("insert into bench.peer ({}, _tr_version) format TabSeparated".format(", ".join(c.split()[0] for c in COLUMNS.split(", "))), rows.read())
        return time.monotonic() - t

    def seen(self, kind, lite, mark):
        if kind == "clickhouse":
            return self.ch("select count() from bench.mir__t where id = {}".format(mark)) == "1"
        if kind == "postgres":
            return self.sql(self.o.mirror, "select count(*) from mir.t where id = {}".format(mark)) == "1"
        db = sqlite3.connect("file:{}?mode=ro".format(lite), uri=True, timeout=5)
        try:
            return db.execute("select count(*) from mir__t where id = ?", (mark,)).fetchone()[0] == 1
        finally:
            db.close()

    def mirror_round(self, kind, n, r):
        """A table that is there is mirrored; then, with tailrace stopped meanwhile, all of it is updated in transactions of a hundred rows."""
        lite, name = "{}/mirror-{}.db".format(self.o.tmp, r), "bmir{}{}".format(kind[0], r)
        self.source("drop schema if exists mir cascade", "create schema mir", "create table mir.t ({})".format(COLUMNS),
                    "insert into mir.t select {} from generate_series(1, {}) g".format(ROW, n), "vacuum analyze mir.t")
        names, read = self.batches("select *, 1 from mir.t order by id")
        if kind == "postgres":
            self.sql(self.o.mirror, "drop schema if exists mir cascade", "drop table if exists peer", "drop schema if exists tailrace cascade", self.MIRROR.format("peer", COLUMNS))
            sink, peer = "{name: m, type: postgres, dsn: '" + self.o.mirror + "'}", self.peer_postgres
        elif kind == "clickhouse":
            self.ch("drop database if exists bench")
            self.ch("create database bench")
            self.ch("create table bench.peer (id Int64, a Nullable(Int32), b Nullable(Int32), c Nullable(Int64), d Nullable(Float64), at Nullable(DateTime64(6, 'UTC')), t Nullable(String), h Nullable(String),"
                            " _tr_version UInt64, _tr_deleted UInt8, _tr_deleted_at Nullable(DateTime64(6, 'UTC'))) engine = ReplacingMergeTree(_tr_version) order by id"
                            " settings fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1")
            sink, peer = "{name: m, type: clickhouse, urls: ['" + self.o.clickhouse + "'], database: bench}", self.peer_clickhouse
        else:
            db = sqlite3.connect("{}/peer-{}.db".format(self.o.tmp, r), isolation_level=None)
            db.executescript("pragma journal_mode = wal; pragma synchronous = full; " + self.MIRROR.format("peer", COLUMNS))
            sink, peer = "{name: m, type: sqlite, path: '" + lite + "'}", lambda files: self.peer_sqlite(db, files)
        out = {"build_peer": read + peer(names)}
        config = self.write_config("mirror", "mir.*", [sink], name)
        t = time.monotonic()
        self.start(config)
        self.wait("the mirror is live", lambda s: s["sinks"] and any(x["name"] == "mir.t" and x["state"] == "live" for x in s["sinks"][0]["tables"]), seconds=600)
        out["build_us"] = time.monotonic() - t
        self.stop()
        self.source("set synchronous_commit = off", "do $$ begin for g in 0..{} loop update mir.t set a = a + 1 where id between g * 100 + 1 and g * 100 + 100; commit; end loop; end $$".format(n // 100 - 1))
        mark = -1 - r
        self.source("insert into mir.t (id) values ({})".format(mark))
        names, read = self.batches("select *, 2 from mir.t where id > 0 order by id")
        out["apply_peer"] = read + peer(names)
        self.start(config)
        self.wait("capture runs", lambda s: s["capture"]["state"] == "running", every=0.005)
        t, c = time.monotonic(), self.cpu()
        while not self.seen(kind, lite, mark):
            time.sleep(0.02)
        out["apply_us"], out["cpu"] = time.monotonic() - t, self.cpu() - c
        self.stop()
        self.source("select pg_drop_replication_slot('{}')".format(name), "drop publication {}".format(name))
        return out

    def mirror(self):
        n = max(int(500000 * self.o.scale) // 100 * 100, 1000)
        out = {"n": n}
        for kind in ("postgres", "sqlite", "clickhouse"):
            out[kind] = []
            for r in range(self.o.rounds):
                one = self.mirror_round(kind, n, r)
                out[kind].append(one)
                say("    {} {}: built {:.0f} rows/s (by hand {:.0f}), applied {:.0f} (by hand {:.0f}), {:.2f} CPU-s".format(
                    kind, r + 1, n / one["build_us"], n / one["build_peer"], n / one["apply_us"], n / one["apply_peer"], one["cpu"]))
        return out

    # --- how much it holds ---

    def outage(self):
        """The PostgreSQL sink is away while the source goes on: memory, and how long it takes to catch up."""
        self.source("create schema outg", "create table outg.t ({})".format(COLUMNS))
        self.sql(self.o.mirror, "drop schema if exists outg cascade", "drop schema if exists tailrace cascade")
        admin = self.o.mirror.replace("dbname=mirror", "dbname=postgres")
        config = self.write_config("outage", "outg.*", ["{name: pg, type: postgres, dsn: '" + self.o.mirror + "'}"], "bout")
        self.start(config)
        self.wait("the mirror is live", lambda s: s["sinks"] and any(x["name"] == "outg.t" and x["state"] == "live" for x in s["sinks"][0]["tables"]))
        before = self.status()["rss_bytes"]
        self.sql(admin, "alter database mirror allow_connections false", "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = 'mirror'")
        points, rows, start = [], 0, time.monotonic()
        while time.monotonic() - start < self.o.outage:
            self.rows("outg.t", ROW, 5000, 10)
            rows += 5000
            time.sleep(max(0, start + len(points) + 1 - time.monotonic()))  # 5,000 rows a second
            s = self.status()
            points.append((time.monotonic() - start, s["rss_bytes"], s["log"]["bytes"]))
        seconds = time.monotonic() - start
        self.sql(admin, "alter database mirror allow_connections true")
        t, last = time.monotonic(), self.next_id - 1
        while True:
            try:
                if self.sql(self.o.mirror, "select count(*) from outg.t where id = {}".format(last)) == "1":
                    break
            except subprocess.CalledProcessError:
                pass
            time.sleep(0.1)
            if time.monotonic() - t > 600:
                raise SystemExit("the mirror has not caught up in ten minutes")
        caught_up, peak = time.monotonic() - t, self.peak_rss()
        self.stop()
        half = [p for p in points if p[0] > seconds / 2]
        mean_t, mean_r = (sum(p[k] for p in half) / len(half) for k in (0, 1))
        slope = sum((p[0] - mean_t) * (p[1] - mean_r) for p in half) / max(sum((p[0] - mean_t) ** 2 for p in half), 1e-9) * 60
        out = {"seconds": seconds, "rows": rows, "before": before, "end": points[-1][1], "slope": slope, "log": points[-1][2], "caught_up": caught_up, "peak": peak}
        say("    outage: " + json.dumps(out))
        return out

    def tables(self):
        """Start-up with ten thousand (TR_BENCH_TABLES) empty tables of twenty columns; what each costs when nothing happens."""
        n = int(self.o.start_up * self.o.scale)
        config = self.write_config("tables", "many.*", ["{name: none, type: sqlite, path: '" + self.o.tmp + "/none3.db', tables: ['no.thing']}"], "bmany")
        self.source("create schema many", "create table many.t0 (id int primary key)")
        self.start(config)
        self.wait("one table is live", lambda s: self.table_state(s, "many.t0") == "live")
        time.sleep(1)
        one = self.status()["rss_bytes"]
        self.stop()
        self.source("set synchronous_commit = off",
                    "do $$ declare c text := (select string_agg(format(', c%s %s', i, case when i % 3 = 0 then 'text' else 'int' end), '') from generate_series(2, 20) i);"
                    " begin for g in 1.." + str(n) + " loop execute format('create table many.t%s (id bigint primary key%s)', g, c); if g % 200 = 0 then commit; end if; end loop; end $$")
        t = time.monotonic()
        self.start(config)
        self.wait("all tables are known", lambda s: len(s["capture"]["tables"]) > n, seconds=1200, every=1)
        known, c = time.monotonic() - t, self.cpu()
        self.wait("all tables are live", lambda s: sum(x["state"] == "live" for x in s["capture"]["tables"]) > n, seconds=3600, every=2)
        live, cpu = time.monotonic() - t, self.cpu()
        self.stop()
        t = time.monotonic()
        self.start(config)
        s = self.wait("it starts again", lambda s: s["capture"]["state"] == "running" and len(s["capture"]["tables"]) > n)
        again = time.monotonic() - t
        time.sleep(25)  # two looks
        c, t = self.cpu(), time.monotonic()
        time.sleep(20)
        idle = (self.cpu() - c) / (time.monotonic() - t)
        with open("/proc/{}/status".format(self.proc.pid)) as f: # what a status of so many tables needs for a moment is not counted
            rss = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS:"))
        self.stop()
        out = {"n": n, "one": one, "rss": rss, "known": known, "live": live, "live_cpu": cpu, "again": again, "idle": idle}
        say("    tables: " + json.dumps(out))
        return out

    def latency(self):
        self.source("create schema lat", "create table lat.t (id bigserial primary key, at timestamptz default clock_timestamp(), v int, t text)")
        lite = os.path.join(self.o.tmp, "mirror.db")
        self.sql(self.o.mirror, "drop schema if exists tailrace cascade")  # what another part's sink has noted
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


def main():
    p = argparse.ArgumentParser()
    for name in ("tailrace", "log-bench", "ch-bench", "chain-bench", "append-bench", "tmp", "bin", "source", "mirror", "clickhouse", "write"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--outage", type=float, default=180)
    p.add_argument("--clickhouse-pid", type=int, required=True)
    p.add_argument("--hold", type=int, default=60)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=int, default=10)
    p.add_argument("--scale", type=float, default=1)
    p.add_argument("--start-up", type=int, default=10000)
    p.add_argument("parts", nargs="*")
    o = p.parse_args()
    o.load = os.getloadavg()[0]
    b = Bench(o)
    parts = o.parts or ["capture", "snapshot", "log", "mirror", "latency", "outage", "tables", "encode", "chain", "append", "path", "hold"]
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
