"""The tables of docs/benchmarks.md, from what bench.py measured."""
import datetime
import os
import platform
import statistics
import subprocess

MIB = 2**20


def med(v):
    return statistics.median(list(v))


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows] + [""]


def head(o):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    mem = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    version = subprocess.run([o.tailrace, "version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return ["# Benchmarks", "",
            "Written by `make bench` (`bench/run.sh`, `bench/bench.py`, `bench/report.py`). Real PostgreSQL 15 on the same machine, over a unix socket; medians of {} rounds; the peer runs in the".format(o.rounds),
            "same round on the same data, in alternating order. CPU is the client's own (tailrace, `pg_recvlogical`, `psql`), not the server's. Nothing here is a test.", "",
            "- Date: {}; {}".format(datetime.date.today().isoformat(), version),
            "- Machine: {}, {} cores, {:.0f} GiB; Linux {}; client, source and mirror share it".format(cpu, os.cpu_count(), mem / 2**20, platform.release()),
            "- Load average when it began: {:.1f}; above 0.5 other work shared the machine, and the figures are lower bounds and even the ratios are noisy".format(o.load),
            "- Rows of 8 columns where nothing else is said: `bigint` key, 2 `int`, `bigint`, `float8`, `timestamptz`, `text`, `text(32)`", ""]


def capture(o, c):
    rows = []
    for x in c:
        n, runs = x["n"], x["runs"]
        rows.append([x["label"], "{:,.0f}".format(med(n / r["peer"][0] for r in runs)), "{:.2f}".format(med(r["peer"][1] for r in runs) * 1e6 / n),
                     "{:,.0f}".format(med(n / r["us"][0] for r in runs)), "{:.0f} %".format(med(100 * r["peer"][0] / r["us"][0] for r in runs)),
                     "{:.2f}".format(med(r["us"][1] for r in runs) * 1e6 / n), "{:.0f} MiB".format(max(r["us"][2] for r in runs) / MIB)])
    return ["## Capture: a backlog into the change log", "",
            "The ceiling is `pg_recvlogical -o proto_version=1 -f /dev/null` on a second slot over the same WAL. tailrace is measured from the moment capture runs until the last row is durable.", ""] + \
        table(["backlog", "pg_recvlogical rows/s", "CPU-s per 1M rows", "tailrace rows/s", "of the ceiling", "CPU-s per 1M rows", "peak RSS"], rows) + \
        ["tailrace asks for streaming (`proto_version` 2 on PostgreSQL 15), so a large transaction is sent while it is decoded; `pg_recvlogical` gets it at its end, after the server has spilled it to disk. "
         "And it reads a fast stream in intervals of up to 1 ms, where `pg_recvlogical` is woken for each message and so takes the processor from the server. That is how tailrace can come out above 100 %.", ""]


def snapshot(o, s):
    n, runs = s["n"], s["runs"]
    return ["## Snapshot into the change log", "",
            "The ceiling is `COPY … TO STDOUT` to /dev/null, one connection, as text (what tailrace reads) and binary. tailrace with its defaults (2 workers), from the request to SNAPSHOT_END durable, fences included.", ""] + \
        table(["rows", "COPY rows/s", "COPY binary rows/s", "tailrace rows/s", "of COPY", "of COPY binary", "CPU-s per 1M rows", "peak RSS"],
              [["{:,}".format(n), "{:,.0f}".format(med(n / r["text"] for r in runs)), "{:,.0f}".format(med(n / r["binary"] for r in runs)), "{:,.0f}".format(med(n / r["us"] for r in runs)),
                "{:.0f} %".format(med(100 * r["text"] / r["us"] for r in runs)), "{:.0f} %".format(med(100 * r["binary"] / r["us"] for r in runs)),
                "{:.2f}".format(med(r["cpu"] for r in runs) * 1e6 / n), "{:.0f} MiB".format(max(r["rss"] for r in runs) / MIB)]])


def log(o, runs):
    rows = []
    for i in range(len(runs[0]["append"])):
        a = [r["append"][i] for r in runs]
        size, raw, ours = (med(x[k] for x in a) for k in ("bytes", "raw_per_s", "log_per_s"))
        rows.append(["{:,.0f} bytes".format(size), "{:,.0f}".format(raw), "{:,.0f}".format(ours), "{:.0f} %".format(med(100 * x["log_per_s"] / x["raw_per_s"] for x in a)), "{:.0f}".format(ours * size / MIB),
                     "{:.0f} %".format(med(100 * x["busy_log_per_s"] / x["busy_raw_per_s"] for x in a))])
    p = [r["replay"] for r in runs]
    return ["## The change log and its disk", "",
            "`bench/log_bench.c`: transactions appended and waited for, in turns with `pwrite` and `fdatasync` of the same bytes into a file that is written already. The next segment is zeroed before it is needed, as the raw file was; in the last column meanwhile, on the same disk: for an append that never pauses each byte is written twice.", ""] + \
        table(["append", "raw per second", "log per second", "of the ceiling", "MiB/s", "while the next segment is zeroed"], rows) + \
        ["Replay: a reader takes {:,.0f} frames/s, {:,.0f} MiB/s, each checked and decoded but for its columns, out of the page cache; `read()` of the same files {:,.0f} MiB/s.".format(
            med(x["frames"] / x["log_seconds"] for x in p), med(x["bytes"] / x["log_seconds"] for x in p) / MIB, med(x["raw_bytes"] / x["raw_seconds"] for x in p) / MIB), ""]


def mirror(o, m):
    n, rows = m["n"], []
    for kind, label in (("postgres", "PostgreSQL"), ("sqlite", "SQLite"), ("clickhouse", "ClickHouse")):
        for what, say in (("build", "a table of {:,} rows is mirrored"), ("apply", "all {:,} rows are updated, 100 a transaction")):
            runs = m[kind]
            rows.append([label, say.format(n), "{:,.0f}".format(med(n / r[what + "_peer"] for r in runs)), "{:,.0f}".format(med(n / r[what + "_us"] for r in runs)),
                         "{:.0f} %".format(med(100 * r[what + "_peer"] / r[what + "_us"] for r in runs)), "{:.2f}".format(med(r["cpu"] for r in runs) * 1e6 / n) if what == "apply" else "–"])
    return ["## From the source into a mirror", "",
            "By hand: the rows as they are in the end, read with one `COPY … TO STDOUT`, then for each 10,000 of them one transaction of `COPY` into a temporary table and `INSERT … ON CONFLICT DO UPDATE` (PostgreSQL), or of `executemany` of",
            "the same upsert (Python's sqlite3; parsing the rows is not counted), or one `INSERT … FORMAT TabSeparated` of the ready file into a table like the mirror (ClickHouse). tailrace: from its start to the mirror live (build: start-up, publication, slot, fences, snapshot, log, shadow, swap), and from capture running with the changes in the WAL to the last one visible (apply: decoding by the server, log, mirror).", ""] + \
        table(["mirror", "", "by hand rows/s", "tailrace rows/s", "of the ceiling", "CPU-s per 1M rows"], rows)


def latency(o, runs):
    rows = [[label, "{:,.0f}".format(med(r["tps"] for r in runs)), "{:.1f} ms".format(med(r[k][0] for r in runs)), "{:.1f} ms".format(med(r[k][1] for r in runs))]
            for k, label in (("sqlite", "SQLite"), ("postgres", "PostgreSQL"))]
    return ["## From commit to visible in the mirror", "",
            "`pgbench -c 4 -R 1000` inserts one row per transaction for {} s; a reader polls each mirror about once a millisecond. The row's own `clock_timestamp()` is the start, so the".format(o.seconds),
            "source's commit and the polling are in the figures. Both mirrors run at once, with default settings.", ""] + \
        table(["mirror", "tx/s", "p50", "p99"], rows) + \
        ["tailrace meanwhile: {:.2f} CPU-s per second, peak RSS {:.0f} MiB.".format(med(r["cpu"] for r in runs), max(r["rss"] for r in runs) / MIB), ""]


def outage(o, x):
    return ["## Memory while a sink is away", "",
            "The PostgreSQL mirror takes no connections for {:.0f} s while {:,} rows are written, {:,.0f} a second.".format(x["seconds"], x["rows"], x["rows"] / x["seconds"]), ""] + \
        table(["RSS before", "at the end", "slope in the second half", "change log at the end", "to catch up", "peak RSS, catching up included"],
              [["{:.0f} MiB".format(x["before"] / MIB), "{:.0f} MiB".format(x["end"] / MIB), "{:+.2f} MiB a minute".format(x["slope"] / MIB), "{:,.0f} MiB".format(x["log"] / MIB),
                "{:.1f} s, {:,.0f} rows/s".format(x["caught_up"], x["rows"] / x["caught_up"]), "{:.0f} MiB".format(x["peak"] / MIB)]])


def tables(o, x):
    return ["## Many tables", "",
            "{:,} empty tables of 20 columns on one slot. RSS is that of a process started again when all are live.".format(x["n"]), ""] + \
        table(["all known after", "all live after", "CPU-s until then", "started again after", "RSS with one table", "RSS", "per idle table", "CPU-s per second, idle"],
              [["{:.0f} s".format(x["known"]), "{:.0f} s".format(x["live"]), "{:.0f}".format(x["live_cpu"]), "{:.1f} s".format(x["again"]), "{:.0f} MiB".format(x["one"] / MIB), "{:.0f} MiB".format(x["rss"] / MIB),
                "{:.1f} KiB".format((x["rss"] - x["one"]) / x["n"] / 1024), "{:.3f}".format(x["idle"])]])


def encode(o, runs):
    rows, n, first = [], runs[0]["rows"], runs[0]["columns"]
    for kind, label in (("rowbinary", "RowBinary"), ("native", "Native")):
        size, ns = runs[0][kind]["bytes"] / n, med(r[kind]["ns"] for r in runs)
        rows.append([label, "{:.0f} bytes".format(size), "{:.0f} ns".format(ns), "{:.0f} MB/s".format(size / ns * 1e3), "{:.0f} MB/s".format(runs[0]["text_bytes"] / n / ns * 1e3)])
    cells = [["`{}`".format(c["type"])] + ["{:.0f}".format(med(r["columns"][i][k] for r in runs)) for k in ("rowbinary_ns", "native_ns")] for i, c in enumerate(first)]
    return ["## Encoding for ClickHouse", "",
            "`bench/ch_bench.c`: {:,} events of ten columns, from PostgreSQL's text, validated; CPU time of one thread, best of the turns, formats in turns. Native costs {:.2f} times RowBinary.".format(
                n, med(r["native"]["ns"] / r["rowbinary"]["ns"] for r in runs)), ""] + \
        table(["format", "a row", "a row takes", "bytes out", "text in"], rows) + table(["type, alone", "RowBinary, ns a cell", "Native, ns a cell"], cells)


def chain(o, c):
    runs, rows = c["runs"], []
    for kind, label in (("bare", "a loop by hand"), ("chain", "`TR_CHAIN`"), ("pointers", "a function pointer per stage")):
        rows.append([label, "{:.1f} ns".format(med(r[kind]["ns"] for r in runs)), "{:+.1f} ns".format(med(r[kind]["ns"] - r["bare"]["ns"] for r in runs)), "{:.0f}".format(c["instructions"][kind]),
                     str(max(r[kind]["allocations"] for r in runs))])
    return ["## Chains", "",
            "`bench/chain_bench.c`: decode, filter, map and flat_map over a borrowed record of five fields into nothing, {:.2f} rows a record; CPU time of one thread, medians of nine turns, the variants in turns; instructions counted by callgrind.".format(
                runs[0]["lines"] / runs[0]["records"]), ""] + \
        table(["", "a record takes", "over the bare loop", "instructions", "allocations"], rows)


def append(o, x):
    n, runs = x["n"], x["runs"]
    return ["## From memory into ClickHouse", "",
            "`bench/append_bench.c`: {:,} events of ten columns ({:.0f} bytes a row) out of the test kit's source, decoded, filtered and encoded inline by a typed chain, into a MergeTree that drops what comes twice. The ceiling is one `INSERT … FORMAT RowBinary` of the same rows "
            "as a ready-made file.".format(n, x["bytes"] / n), ""] + \
        table(["ready file rows/s", "tailrace rows/s", "of the ceiling", "CPU-s per 1M rows"],
              [["{:,.0f}".format(med(n / r["peer"] for r in runs)), "{:,.0f}".format(med(n / r["us"]["seconds"] for r in runs)), "{:.0f} %".format(med(100 * r["peer"] / r["us"]["seconds"] for r in runs)),
                "{:.2f}".format(med(r["us"]["cpu_seconds"] for r in runs) * 1e6 / n)]])


def path(o, c):
    rows = []
    for x in c:
        n, runs = x["n"], x["runs"]
        rows.append([x["label"], "{:,.0f}".format(med(n / r["ceiling"][0] for r in runs)), "{:,.0f}".format(med(n / r["us"][0] for r in runs)), "{:.0f} %".format(med(100 * r["ceiling"][0] / r["us"][0] for r in runs)),
                     "{:.2f}".format(med(r["us"][1] for r in runs) * 1e6 / n), "{:.0f} MiB".format(max(r["us"][2] for r in runs) / MIB), "{:.2f}".format(med(r["us"][3] for r in runs) * 1e6 / n),
                     "{:,.0f}".format(med(n / r["peer"][0] for r in runs)), "{:.2f}".format(med(r["peer"][1] for r in runs) * 1e6 / n)])
    return ["## The whole path: PostgreSQL, change log, ClickHouse mirror", "",
            "A backlog in the WAL. The ceiling is `pg_recvlogical` to /dev/null; the peer ClickHouse's own MaterializedPostgreSQL, whose server stood still (SIGSTOP) while the backlog was made. tailrace: from capture running to the last row visible in the mirror. Its CPU is its own process's; the server's is that "
            "of ClickHouse meanwhile.", ""] + \
        table(["backlog", "pg_recvlogical rows/s", "tailrace rows/s", "of the ceiling", "CPU-s per 1M rows", "peak RSS", "server's CPU-s per 1M", "MaterializedPostgreSQL rows/s", "server's CPU-s per 1M"], rows)


def hold(o, x):
    return ["## From commit to visible in ClickHouse, held", "",
            "`pgbench -c 4 -R 1000` inserts one row per transaction for {} s; a reader asks the mirror about every two milliseconds. The row's own `clock_timestamp()` is the start.".format(x["seconds"]), ""] + \
        table(["tx/s", "p50", "p99", "active parts at most, by thirds of the time", "CPU-s per second", "peak RSS"],
              [["{:,.0f}".format(x["tps"]), "{:.1f} ms".format(x["p50"]), "{:.1f} ms".format(x["p99"]), " / ".join(str(p) for p in x["parts"]), "{:.2f}".format(x["cpu"]), "{:.0f} MiB".format(x["peak"] / MIB)]])


def report(o, out):
    text = head(o)
    for part in (capture, snapshot, log, mirror, latency, outage, tables, encode, chain, append, path, hold):
        if part.__name__ in out:
            text += part(o, out[part.__name__])
    return "\n".join(text)
