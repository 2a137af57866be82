"""The parts of bench.py that are about ClickHouse: rows out of a program's memory, the whole path from PostgreSQL, and how soon a commit is seen."""
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request

from bench_base import COLUMNS, ROW, TICK, say


class ClickHouse:
    """Mixed into Bench."""

    def ch(self, sql, data=None, **settings):
        settings.setdefault("async_insert", 0)
        settings.setdefault("max_insert_threads", 1)
        query = urllib.parse.urlencode(dict(settings, **({"query": sql} if data is not None else {})))
        with urllib.request.urlopen(self.o.clickhouse + "/?" + query, data=sql.encode() if data is None else data) as answer:
            return answer.read().decode().strip()

    def ch_cpu(self):
        with open("/proc/{}/stat".format(self.o.clickhouse_pid)) as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / TICK

    def append(self):
        """bench/append_bench.c: events through a typed chain, and the same rows by one INSERT of a ready-made file."""
        n, path, runs = int(2000000 * self.o.scale), os.path.join(self.o.tmp, "events"), []
        table = subprocess.run([self.o.append_bench, "SQL"], check=True, stdout=subprocess.PIPE, text=True).stdout.replace("CREATE TABLE ", "CREATE TABLE bench_append.")
        subprocess.run([self.o.append_bench, path, str(n)], check=True)
        with open(path, "rb") as f:
            rows = f.read()
        self.ch("create database if not exists bench_append")
        for r in range(self.o.rounds):
            one = {}
            for who in ("peer", "us") if r % 2 == 0 else ("us", "peer"):
                self.ch("drop table if exists bench_append.events sync")
                self.ch(table)
                if who == "peer":
                    t = time.monotonic()
                    self.ch("INSERT INTO bench_append.events FORMAT RowBinary", rows)
                    one["peer"] = time.monotonic() - t
                else:
                    one["us"] = json.loads(subprocess.run([self.o.append_bench, self.o.clickhouse, "bench_append", str(n)], check=True, stdout=subprocess.PIPE, text=True).stdout)
                if self.ch("select count() from bench_append.events") != str(n):
                    raise SystemExit("not all rows are in the table")
            runs.append(one)
            say("    append {}: ready file {:.0f} rows/s; tailrace {:.0f} rows/s, {:.2f} CPU-s".format(r + 1, n / one["peer"], n / one["us"]["seconds"], one["us"]["cpu_seconds"]))
        self.ch("drop database bench_append sync")
        return {"n": n, "bytes": len(rows), "runs": runs}

    # --- PostgreSQL → change log → mirror ---

    def until_there(self, table, mark):
        while self.ch("select count() from {} where id = {}".format(table, mark)) == "0":
            time.sleep(0.02)

    def path(self):
        """A backlog in the WAL, taken by pg_recvlogical, by tailrace into a mirror, and by ClickHouse's own MaterializedPostgreSQL."""
        self.source("drop schema if exists pth cascade", "create schema pth", "create table pth.t ({})".format(COLUMNS), "drop user if exists pthmat", "create user pthmat with superuser password 'peer'")
        part = dict(w.split("=", 1) for w in self.o.source.split())
        self.ch("drop database if exists bench_path sync")
        self.ch("drop database if exists bench_mat sync")
        config = self.write_config("path", "pth.*", ["{name: m, type: clickhouse, urls: ['" + self.o.clickhouse + "'], database: bench_path}"], "bpth")
        self.start(config)
        self.wait("the mirror is live", lambda s: s["sinks"] and any(x["name"] == "pth.t" and x["state"] == "live" for x in s["sinks"][0]["tables"]))
        self.stop()
        self.ch("create database bench_mat engine = MaterializedPostgreSQL('127.0.0.1:{}', '{}', 'pthmat', 'peer') settings materialized_postgresql_schema = 'pth'".format(part["port"], part["dbname"]),
                allow_experimental_database_materialized_postgresql=1)
        self.until_tables("bench_mat", 1)
        self.source("select pg_create_logical_replication_slot('peer', 'pgoutput')")
        out = []
        for label, each, n in (("{:,} transactions of one row", 1, 300000), ("one transaction of {:,} rows", 0, 1000000)):
            n, runs = max(int(n * self.o.scale) // 100 * 100, 100), []
            for r in range(self.o.rounds):
                os.kill(self.o.clickhouse_pid, signal.SIGSTOP)  # MaterializedPostgreSQL cannot be detached
                self.rows("pth.t", ROW, n, each or n)
                end = self.source("select pg_current_wal_flush_lsn()")
                self.source("select pg_logical_emit_message(true, 'bench', 'end')")
                mark, one = self.next_id - 1, {}
                for who in ("peer", "ceiling", "us") if r % 2 == 0 else ("peer", "us", "ceiling"):
                    one[who] = getattr(self, "path_" + who)(config, mark, end)
                runs.append(one)
                say("    path, {}, {}: pg_recvlogical {:.0f} rows/s; tailrace {:.0f} rows/s, {:.2f} CPU-s, {:.0f} MiB, server {:.2f} CPU-s; MaterializedPostgreSQL {:.0f} rows/s, server {:.2f} CPU-s".format(
                    label.format(n), r + 1, n / one["ceiling"][0], n / one["us"][0], one["us"][1], one["us"][2] / 2**20, one["us"][3], n / one["peer"][0], one["peer"][1]))
            out.append({"label": label.format(n), "n": n, "runs": runs})
        self.ch("drop database bench_mat sync")
        self.source("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name in ('peer', 'bpth')", "drop publication bpth")
        return out

    def until_tables(self, database, n):
        end = time.monotonic() + 60
        while self.ch("select count() from system.tables where database = '{}'".format(database)) != str(n):
            if time.monotonic() > end:
                raise SystemExit("MaterializedPostgreSQL has made no table")
            time.sleep(0.1)

    def path_ceiling(self, config, mark, end):
        del config, mark
        return self.drain_peer(end, "bpth")

    def path_us(self, config, mark, end):
        del end
        server = self.ch_cpu()
        self.start(config)
        self.wait("capture runs", lambda s: s["capture"]["state"] == "running", every=0.005)
        t, c = time.monotonic(), self.cpu()
        self.until_there("bench_path.pth__t", mark)
        t, c, rss = time.monotonic() - t, self.cpu() - c, self.peak_rss()
        self.stop()
        return t, c, rss, self.ch_cpu() - server

    def path_peer(self, config, mark, end):
        del config, end
        server, t = self.ch_cpu(), time.monotonic()
        os.kill(self.o.clickhouse_pid, signal.SIGCONT)
        self.until_there("bench_mat.t", mark)
        return time.monotonic() - t, self.ch_cpu() - server

    # --- from commit to visible, for as long as one likes ---

    def hold(self):
        """1,000 transactions a second for --hold seconds: when each row is seen, and how many parts the table has."""
        self.source("drop schema if exists hold cascade", "create schema hold", "create table hold.t (id bigserial primary key, at timestamptz default clock_timestamp(), v int, t text)")
        self.ch("drop database if exists bench_hold sync")
        config = self.write_config("hold", "hold.*", ["{name: m, type: clickhouse, urls: ['" + self.o.clickhouse + "'], database: bench_hold}"], "bhold")
        self.start(config)
        self.wait("the mirror is live", lambda s: s["sinks"] and any(x["name"] == "hold.t" and x["state"] == "live" for x in s["sinks"][0]["tables"]))
        script = os.path.join(self.o.tmp, "hold.sql")
        with open(script, "w") as f:
            f.write("insert into hold.t (v, t) values (1, 'a text of some length');\n")
        part = dict(w.split("=", 1) for w in self.o.source.split())
        stop, seen, parts = threading.Event(), [], []
        watchers = [threading.Thread(target=self.watch_clickhouse, args=(stop, seen)), threading.Thread(target=self.watch_parts, args=(stop, parts))]
        for w in watchers:
            w.start()
        c0 = self.cpu()
        bench = subprocess.run(["pgbench", "-n", "-h", part["host"], "-p", part["port"], "-U", "postgres", "-c", "4", "-j", "1", "-R", "1000", "-T", str(self.o.hold), "-f", script, part["dbname"]],
                               check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        cpu = self.cpu() - c0
        time.sleep(2)
        stop.set()
        for w in watchers:
            w.join()
        tps = next((float(line.split()[2]) for line in bench.splitlines() if line.startswith("tps")), 0)
        missing = int(self.source("select count(*) from hold.t")) - int(self.ch("select count() from bench_hold.hold__t_live"))
        self.status()
        peak = self.peak_rss()
        self.stop()
        self.source("select pg_drop_replication_slot('bhold')", "drop publication bhold")
        seen.sort()
        third = max(len(parts) // 3, 1)
        out = {"seconds": self.o.hold, "tps": tps, "p50": seen[len(seen) // 2], "p99": seen[len(seen) * 99 // 100], "rows": len(seen), "missing": missing, "cpu": cpu / self.o.hold, "peak": peak,
               "parts": [max(parts[i * third:(i + 1) * third] or [0]) for i in range(3)]}
        say("    hold: {:.0f} tx/s for {} s; p50 {:.1f} p99 {:.1f} ms over {} rows; active parts at most {} / {} / {} in its thirds; {:.2f} CPU-s/s; {:.0f} MiB; {} rows missing".format(
            tps, self.o.hold, out["p50"], out["p99"], len(seen), *out["parts"], out["cpu"], peak / 2**20, missing))
        return out

    def watch_clickhouse(self, stop, out):
        """Asks for what is new about every two milliseconds, on one connection."""
        host = urllib.parse.urlparse(self.o.clickhouse)
        c = http.client.HTTPConnection(host.hostname, host.port, timeout=30)
        state = {"seen": set(), "max": 0}
        while not stop.is_set():
            c.request("POST", "/", "select id, toUnixTimestamp64Micro(assumeNotNull(at)) from bench_hold.hold__t where id > {} format TSV".format(state["max"] - 50))
            lines = c.getresponse().read().decode().splitlines()
            self.new_rows([(int(i), int(at) / 1e6) for i, at in (line.split("\t") for line in lines)], state, out)
            if len(state["seen"]) > 100000:
                state["seen"] = {i for i in state["seen"] if i > state["max"] - 5000}
            time.sleep(0.002)
        c.close()

    def watch_parts(self, stop, parts):
        while not stop.wait(1):
            parts.append(int(self.ch("select count() from system.parts where active and database = 'bench_hold' and table = 'hold__t'")))
