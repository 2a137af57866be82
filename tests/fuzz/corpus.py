#!/usr/bin/env python3
"""What corpus.sh has recorded, as inputs of the fuzz targets: corpus.py SOURCE-ROOT DIRECTORY"""
import glob
import os
import re
import struct
import sys

ROOT, HERE = sys.argv[1], sys.argv[2]
CORPUS = os.path.join(ROOT, "tests/fuzz/corpus")
STREAMED = b"RYIUDTM"


def put(target, name, data):
    os.makedirs(os.path.join(CORPUS, target), exist_ok=True)
    with open(os.path.join(CORPUS, target, name), "wb") as f:
        f.write(data)


def put_once(target, name, data, seen={}):
    """One input of a kind, not hundreds of the same."""
    kind = (target, name)
    seen[kind] = seen.get(kind, 0) + 1
    if seen[kind] <= 3:
        put(target, "{}-{}".format(name, seen[kind]), data)


def messages():
    for path in sorted(glob.glob(os.path.join(HERE, "*.hex"))):
        name = os.path.basename(path)[:-4]
        proto = {"plain15": 1, "plain18": 1, "stream18": 4}.get(name, 3)
        with open(path, encoding="ascii") as f:
            all_ = [bytes.fromhex(line.strip()) for line in f if line.strip()]
        inside = False
        for m in all_:
            kind = chr(m[0])
            put_once("pgoutput", "{}-{}-{}".format(name, "stream" if inside else "alone", kind if kind.isupper() else "lower-" + kind), bytes([(proto - 1) << 1 | inside]) + m)
            inside = kind == "S" or (inside and kind != "E")
        # a lost connection after the seventh message, and after a later one
        for lost, memory in ((0, 0), (7, 4), (len(all_) // 2, 4)):
            stream = b"".join(struct.pack(">H", len(m)) + m for m in all_)
            put("decode", "{}-{}-{}".format(name, lost, memory), bytes([(proto - 1) | memory, lost]) + stream)


def varint(data, at):
    v = shift = 0
    while True:
        b = data[at]
        at += 1
        v |= (b & 0x7F) << shift
        shift += 7
        if b < 0x80:
            return v, at


def frames(data):
    at = 4096
    while at + 12 <= len(data):
        n = struct.unpack_from("<I", data, at)[0]
        if n == 0:
            return
        yield data[at : at + 4 + n]
        at += 4 + n


OPS = ["", "read", "insert", "update", "delete", "truncate", "commit", "schema", "begin", "end", "fill", "heartbeat", "message"]


def log():
    for path in sorted(glob.glob(os.path.join(HERE, "state/**/*.seg"), recursive=True)):
        with open(path, "rb") as f:
            data = f.read()
        whole = list(frames(data))
        for frame in whole:
            put_once("frame", OPS[frame[8]], b"\1" + frame)
            at = 12
            for _ in range(11):
                _, at = varint(frame, at)
            for part in ("key", "key", "rowimage", "rowimage", "schema"):
                n, at = varint(frame, at)
                piece, at = frame[at : at + n], at + n
                if not piece:
                    continue
                # the key's columns are counted; text, decimal
                if part == "key":
                    columns, pos = 0, 0
                    while pos < len(piece):
                        length, pos = varint(piece, pos)
                        pos += length
                        columns += 1
                    for type_ in (3, 7, 8):
                        put_once("key", "columns{}-type{}".format(columns, type_), bytes([columns - 1 | type_ << 2]) + piece)
                elif part == "rowimage":
                    put_once("rowimage", OPS[frame[8]], b"\x20" + piece)
                elif frame[8] == 7:
                    put_once("schema", "definition", piece)
        body = b"".join(whole)
        name = "log-" + os.path.basename(path)[:-4].lstrip("0")
        if len(body) < 30000:
            put("segment", name + "-plain", b"\0" + body)
            put("segment", name + "-fixed", b"\1" + body)
            put("segment", name + "-header", b"\3" + data[:100] + body)
            put("segment", name + "-sealed", b"\5" + body)
            index = bytearray(b"TRLOGIDX" + struct.pack("<IIQQQqqII", 1, 0, 0, len(whole), 4096 + len(body), 1, 2, 0, 0))
            put("segment", name + "-index", b"\x0d" + bytes(index[:64]).ljust(64, b"\0") + body)
    for n, text in ((0, "0.10"), (1, "-0.0"), (2, "NaN"), (3, "100")):
        put("key", "decimal-{}".format(n), bytes([7 << 2, len(text)]) + text.encode())


def copy():
    with open(os.path.join(HERE, "copy.txt"), "rb") as f:
        for n, line in enumerate(f):
            if n < 12:
                put("copytext", "line-{}".format(n), bytes([min(line.count(b"\t") + 1, 8)]) + line[:400])
    put("copytext", "escapes", b"\2" + rb"a\x41\101\q\b" + b"\t" + rb"\\N" + b"\n")
    put("copytext", "none", b"\0\n")


def config():
    n = 0
    for path in [os.path.join(ROOT, "README.md")] + sorted(glob.glob(os.path.join(ROOT, "docs/*.md"))):
        with open(path, encoding="utf-8") as f:
            for block in re.findall(r"```yaml\n(.*?)```", f.read(), re.S):
                put("config", "docs-{}".format(n), b"\0" + block.encode())
                n += 1
    for name in ("init.yaml", "tailrace.yaml"):
        path = os.path.join(HERE, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                # what a workplace is called does not matter
                put("config", name[:-5], b"\0" + f.read().replace(HERE, "/var/lib/tailrace").encode())
    small = "source: {dsn: 'postgresql://u@h/d', tables: ['public.*']}\nsinks:\n- {name: a, type: sqlite, path: x.db}\n"
    for k, text in enumerate(
        (
            small,
            small + "log: {retention: 7d, segment_size: 64MiB}\nlogging: {level: debug, format: json}\n",
            small.replace("'public.*'", "${A:-'x'}, $$"),
            small.replace("x.db", "${NOT_SET_AT_ALL}"),
            small + "admin: {listen: '[::1]:7171'}\nengine: &a {heartbeat: 1s}\n",
            "a: &x [1, *x]\n? {b: c}\n: |\n  d\n--- !!str e\n",
        )
    ):
        put("config", "small-{}".format(k), bytes([k & 1]) + text.encode())


def admin():
    def post(body, kind="application/x-www-form-urlencoded", path="/request"):
        body = body.encode()
        return "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n".format(path, kind, len(body)).encode() + body

    part = '--x\r\nContent-Disposition: form-data{}\r\n\r\nresume\r\n'
    for name, data in {
        "metrics": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "healthz": b"GET /healthz HTTP/1.0\r\n\r\n",
        "readyz": b"HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
        "status": b"GET /status?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "other": b"GET /../%2e HTTP/1.1\r\nHost: x\r\n\r\nDELETE / HTTP/1.1\r\nHost: x\r\n\r\n",
        "resume": post("kind=resume&scope=mirror&table=public.orders"),
        "resnapshot": post("kind=resnapshot&scope=&table=public.%22a+b%22"),
        "refused": post("kind=drop"),
        "unknown": post("kin=resume"),
        "long": post("kind=" + "r" * 300),
        "body": post("kind=resume&x=" + "y" * 5000),
        "elsewhere": post("kind=resume", path="/metrics"),
        "json": post('{"kind": "resume"}', kind="application/json"),
        "multipart": post(part.format('; name="kind"') + "--x--\r\n", kind="multipart/form-data; boundary=x"),
        "nameless": post("--x\r\n\r\nresume\r\n--x\r\nContent-Type: multipart/mixed; boundary=y\r\n\r\n--y\r\n\r\nresume\r\n--y--\r\n--x--\r\n", kind="multipart/form-data; boundary=x"),
        "chunked": b"POST /request HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"5\r\nkind=\r\n6\r\nresume\r\n0\r\n\r\n",
    }.items():
        put("admin", name, b"\0" + data)
    put("admin", "pieces", b"\1" + post("kind=resume&table=public.t"))


def clickhouse():
    # beside what fuzz_chvalue.c holds: what stands for the rest, and what is refused
    with open(os.path.join(ROOT, "tests/fuzz/fuzz_chvalue.c"), encoding="utf-8") as f:
        table = re.search(r"types\[\] = \{(.*?)\n\};", f.read(), re.S).group(1)
    types = [bytes(t, "utf-8").decode("unicode_escape") for t in re.findall(r'"((?:[^"\\]|\\.)*)"', table)]
    more = ["SimpleAggregateFunction(groupArrayArray(10), Array(Int8))", "DateTime64(6, 'UTC')", "Tuple(a Int8, `b c` Tuple(String))", "Decimal32(2)", "AggregateFunction(sum, UInt64)", "Variant(Int8, String)"]
    for k, text in enumerate(types + more):
        put("chtype", "type-{}".format(k), text.encode())
    texts = {
        "Bool": "t", "Int": "-12", "Float": "-1.5e-07", "Dec": "-12.50", "Str": "x", "Fix": "abc", "Date32": "1900-01-01", "Date": "2024-02-29", "DateTime": "2026-01-01 12:00:00.123456+05:30", "Time": "12:00:00.5",
        "UUID": "00010203-0405-0607-0809-0a0b0c0d0e0f", "IPv4": "1.2.3.4", "IPv6": "64:ff9b::1.2.3.4", "Enum": "b'", "Null": "7", "Low": "x", "Array(Int": "{1,2}", "Array(Null": '{a,NULL,"b \\"\\\\"}', "Array(Array": '{{{a},{"}"}}}',
        "Map(String": '"a"=>"1", "b"=>NULL', "Map(Int8": '"1"=>"\\"k\\"=>\\"{a,b}\\""', "Tuple": '(1,"a ""b""")', "Nested": '{"(1,\\"{a,b}\\")"}',
        "Array(Tuple": '{"(a,\\"{\\"\\"(b,\\"\\"\\"\\"\\"\\"\\"\\"k\\"\\"\\"\\"=>\\"\\"\\"\\"v\\"\\"\\"\\"\\"\\")\\"\\"}\\")"}',
    }
    for k, t in enumerate(types):
        key = max((key for key in texts if t.lstrip("U").startswith(key) or t.startswith(key)), key=len)
        put("chvalue", "value-{}".format(k), bytes([k, 0]) + texts[key].encode())
    for k, text in enumerate(["\\x00ff", "infinity", "NaN", "0044-03-15 BC", "123456789012345678901234567890.123456789", "[0:1]={1,2}"]):
        put("chvalue", "odd-{}".format(k), bytes([[13, 16, 9, 15, 12, 28][k], 9 if k == 0 else 0]) + text.encode())


messages()
log()
copy()
config()
admin()
clickhouse()
