#!/usr/bin/env python3
"""Our bytes for every ClickHouse type, in every shape, beside a server's own.

    clickhouse_golden.py URL CH_ENCODE [SEED]

Per type, three tables of one column a shape: `ref` is filled by the server from SQL expressions; `rb` and `nt` from PostgreSQL's text of the same values,
encoded by us. All must read back the same, and what we sent must be what the server writes of ref.
"""
import ipaddress
import random
import struct
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid

URL, ENCODE = sys.argv[1:3]
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(10**9)
SETTINGS = {
    "26": {"allow_suspicious_low_cardinality_types": 1, "flatten_nested": 0, "enable_time_time64_type": 1, "async_insert": 0, "input_format_null_as_default": 0, "print_pretty_type_names": 0},
    "18": {"allow_experimental_low_cardinality_type": 1},
}
NULL = object()
DEFAULT = object()


def ask(sql, body=None, **settings):
    query = dict(SETTINGS.get(MAJOR, {}), **settings)
    if body is not None:
        query["query"] = sql
    request = urllib.request.Request(URL + "/?" + urllib.parse.urlencode(query), data=sql.encode() if body is None else body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.headers.get("X-ClickHouse-Exception-Code"):
                raise SystemExit("{}: {}".format(sql[:200], answer.read()[:500]))
            return answer.read()
    except urllib.error.HTTPError as e:
        raise SystemExit("{}: {}".format(sql[:200], e.read()[:500].decode(errors="replace")))


MAJOR = ""
MAJOR = ask("SELECT version()").decode().split(".")[0]
NEW = MAJOR != "18"


def literal(s):
    return "'" + s.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t") + "'"


# --- PostgreSQL's text of what has several values, and COPY's of that -------------------------------------------------------------


def array(items):
    def one(v):
        if v is NULL:
            return "NULL"
        if v == "" or v.upper() == "NULL" or any(c in v for c in '{},"\\ \t\n'):
            return '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return v

    return "{" + ",".join(one(v) for v in items) + "}"


def record(items):
    def one(v):
        if v is NULL:
            return ""
        if v == "" or any(c in v for c in '(),"\\ \t\n'):
            return '"' + v.replace("\\", "\\\\").replace('"', '""') + '"'
        return v

    return "(" + ",".join(one(v) for v in items) + ")"


def hstore(pairs):
    def quoted(v):
        return "NULL" if v is NULL else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ", ".join(quoted(k) + "=>" + quoted(v) for k, v in pairs)


def copied(v):
    if v is NULL:
        return "\\N"
    if v is DEFAULT:
        return "<default>"
    return v.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


# --- the types: (type, canonical type, [PostgreSQL's text, or (it, SQL)], where, can it be LowCardinality) ---------------------------

INTS = {8: "Int8", 16: "Int16", 32: "Int32", 64: "Int64", 128: "Int128", 256: "Int256"}


def cases():
    for bits, name in INTS.items():
        new = bits > 64
        kind = "int64" if bits > 32 else "int32"
        yield name, kind, [str(v) for v in (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 10 ** (bits // 4))][: 5 if bits < 16 else 6], new, not new
        yield "U" + name, kind, [str(v) for v in (0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits // 2))], new, not new
    yield "Bool", "bool", [("t", "true"), ("f", "false")], True, False
    floats = ["0", "1", "-1.5", "0.1", "1e+20", "-1e-05", "123456.79"]
    special = [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("-0", "-0.")]
    yield "Float32", "float32", [(v, "toFloat32(" + literal(v) + ")") for v in floats + ["3.4028235e+38", "1e-45"]] + [(p, "toFloat32({})".format(s)) for p, s in special], False, True
    yield "Float64", "float64", [(v, "toFloat64(" + literal(v) + ")") for v in floats + (["1.7976931348623157e+308", "2.2250738585072014e-308", "0.30000000000000004", "9007199254740993"] if NEW else [])] + special, False, True
    for digits, scale in ((1, 0), (9, 0), (9, 4), (9, 9), (18, 6), (18, 18), (38, 0), (38, 10), (38, 38), (76, 0), (76, 20), (76, 76)):
        top = "9" * digits
        top = (top[: digits - scale] or "0") + ("." + top[digits - scale :] if scale else "")
        small = "0." + "0" * (scale - 1) + "1" if scale else "1"
        values = ["0", top, "-" + top, small, "-" + small]
        sql = "toDecimal{}({{}}, {})".format(32 if digits <= 9 else 64 if digits <= 18 else 128 if digits <= 38 else 256, scale)
        yield "Decimal({}, {})".format(digits, scale), "decimal", [(v, sql.format(literal(v)) if digits in (9, 18, 38, 76) else None) for v in values], digits == 1 or digits > 38, False
    texts = ["", "a", "it's", 'quote " and \\ back', "tab\tnew\nline", "{}", "NULL", "(x,y)", "Привет, 世界", "x" * 300]
    yield "String", "text", texts, False, True
    yield "String", "bytes", [("\\x", "''"), ("\\x00ff41", "unhex('00FF41')"), ("\\x" + "ab" * 200, "unhex('" + "AB" * 200 + "')")], False, True
    yield "FixedString(5)", "text", [(v, "toFixedString({}, 5)".format(literal(v))) for v in ("", "abcde", "a'\\", "ж")], False, True
    yield "FixedString(3)", "bytes", [("\\x0000ff", "toFixedString(unhex('0000FF'), 3)")], False, True
    yield "Date", "date", ["1970-01-01", "2024-02-29"] + (["2149-06-06"] if NEW else ["2105-12-31"]), False, True
    yield "Date32", "date", ["1900-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "2299-12-31"], True, False
    stamps = ["1970-01-01 00:00:00", "2026-01-01 12:34:56", "2099-12-31 23:59:59", "2106-02-07 06:28:15"]
    yield "DateTime", "timestamptz", [(v + "+00", "CAST({} AS DateTime)".format(literal(v))) for v in (stamps if NEW else stamps[:2])], False, True
    yield "DateTime('Europe/Berlin')", "timestamptz", [("2026-07-01 12:00:00+00", "toDateTime(1782907200, 'Europe/Berlin')")], False, False
    for p in (0, 3, 6, 9):
        fraction = ("." + "123456789"[:p]) if p else ""
        days = ["1900-01-01 00:00:00", "1969-12-31 23:59:59" + fraction, "1970-01-01 00:00:00", "2026-01-01 12:34:56" + fraction, "2262-04-11 23:47:15" + fraction] + (["2299-12-31 23:59:59" + fraction] if p < 9 else [])
        yield "DateTime64({})".format(p), "timestamp", days, True, False
    yield "DateTime64(6, 'Asia/Kolkata')", "timestamptz", [("2026-01-01 00:00:00.000001+00", "toDateTime64('2026-01-01 05:30:00.000001', 6, 'Asia/Kolkata')")], True, False
    yield "Time", "time", ["00:00:00", "12:34:56", "24:00:00"], True, False
    yield "Time64(6)", "time", ["00:00:00", "12:34:56.000001", "23:59:59.999999"], True, False
    yield "UUID", "uuid", ["00000000-0000-0000-0000-000000000000", "00010203-0405-0607-0809-0a0b0c0d0e0f", "ffffffff-ffff-ffff-ffff-ffffffffffff"], False, False
    yield "IPv4", "network", ["0.0.0.0", "1.2.3.4", "255.255.255.255"], True, False
    yield "IPv6", "network", ["::", "::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8", "64:ff9b::1.2.3.4"], True, False
    yield "Enum8('a' = 1, 'it\\'s' = -128, 'tab\\t' = 127, '' = 0)", "enum", ["a", "it's", "tab\t", ""], False, False
    yield "Enum16('x, )' = 300, 'ж' = -32768, 'back\\\\' = 32767)", "enum", ["x, )", "ж", "back\\"], False, False


# --- the shapes: (name, type, [(PostgreSQL's text, SQL)]) ------------------------------------------------------------------------


def shapes(name, kind, values, low):
    """values: [(text, sql)]. Each shape has as many rows as there are values, and one more."""
    texts, sqls = [v[0] for v in values], [v[1] for v in values]
    n = len(values)

    def none(one, sql):
        return "arraySlice({}, 1, 0)".format(one.format(sql))

    two = [(i, (i + 1) % n) for i in range(n)]
    yield "plain", name, kind, "opaque", values + [values[0]]
    yield "nullable", "Nullable({})".format(name), kind, "opaque", values + [(NULL, "CAST(NULL AS Nullable({}))".format(name) if kind == "enum" else "NULL")]
    yield "arr", "Array({})".format(name), "array", kind, [(array([texts[a], texts[b]]), "[{}, {}]".format(sqls[a], sqls[b])) for a, b in two] + [("{}", none("[{}]", sqls[0]))]
    yield "arr_nullable", "Array(Nullable({}))".format(name), "array", kind, [
        (array([t, NULL]), "[CAST({} AS Nullable({})), NULL]".format(s, name)) for t, s in values
    ] + [("{}", none("[CAST({{}} AS Nullable({}))]".format(name), sqls[0]))]
    braces = lambda items: "{" + ",".join(items) + "}"
    yield "arr_arr", "Array(Array({}))".format(name), "array", kind, [
        (braces([array([texts[a]]), array([texts[b]])]), "[[{}], [{}]]".format(sqls[a], sqls[b])) for a, b in two
    ] + [("{}", none("[[{}]]", sqls[0]))]
    if kind != "bytes":  # within a composite or an hstore, text is text
        yield "tup", "Tuple({}, Nullable(String))".format(name), "opaque", "opaque", [(record([t, NULL]), "tuple({}, CAST(NULL AS Nullable(String)))".format(s)) for t, s in values] + [
            (record([texts[0], "x y"]), "tuple({}, CAST('x y' AS Nullable(String)))".format(sqls[0]))
        ]
    if NEW and kind != "bytes":
        yield "tup_named", "Tuple(a {}, `b c` Array({}))".format(name, name), "opaque", "opaque", [
            (record([texts[a], array([texts[b]])]), "tuple({}, [{}])".format(sqls[a], sqls[b])) for a, b in two
        ] + [(record([texts[0], "{}"]), "tuple({}, CAST([] AS Array({})))".format(sqls[0], name))]
        yield "map", "Map(String, {})".format(name), "opaque", "opaque", [(hstore([("k", texts[a]), ("", texts[b])]), "map('k', {}, '', {})".format(sqls[a], sqls[b])) for a, b in two] + [
            ("", "CAST(map() AS Map(String, {}))".format(name))
        ]
        yield "map_nullable", "Map(LowCardinality(String), Nullable({}))".format(name), "opaque", "opaque", [
            (hstore([("k", t), ("n", NULL)]), "map('k', CAST({} AS Nullable({})), 'n', NULL)".format(s, name)) for t, s in values
        ] + [("", "CAST(map() AS Map(LowCardinality(String), Nullable({})))".format(name))]
        yield "nested", "Nested(a {}, b Nullable({}))".format(name, name), "array", "opaque", [
            (array([record([t, NULL]), record([t, t])]), "[tuple({0}, NULL), tuple({0}, {0})]".format(s)) for t, s in values
        ] + [("{}", "CAST([] AS Array(Tuple(a {0}, b Nullable({0}))))".format(name))]
        yield "simple", "SimpleAggregateFunction(any, {})".format(name), kind, "opaque", values + [values[0]]
    if low:
        # its dictionary holds one zero: which one is a matter of order
        values = [v if v[0] != "-0" else values[0] for v in values]
        yield "low", "LowCardinality({})".format(name), kind, "opaque", values + [values[0]]
        yield "low_nullable", "LowCardinality(Nullable({}))".format(name), kind, "opaque", values + [(NULL, "NULL")]
        yield "low_arr", "Array(LowCardinality(Nullable({})))".format(name), "array", kind, [(array([t, NULL]), "[CAST({} AS Nullable({})), NULL]".format(s, name)) for t, s in values] + [
            ("{}", none("[CAST({{}} AS Nullable({}))]".format(name), sqls[0]))
        ]


def encode(mode, columns, rows):
    head = "".join("\t".join(copied(x) for x in c) + "\n" for c in columns)
    table = head + "\n" + "".join("\t".join(copied(v) for v in row) + "\n" for row in rows)
    done = subprocess.run([ENCODE, mode], input=table.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit("ch_encode {}: {}".format(mode, done.stderr.decode(errors="replace")))
    return done.stdout


def differ(what, ours, theirs):
    at = next((i for i in range(min(len(ours), len(theirs))) if ours[i] != theirs[i]), min(len(ours), len(theirs)))
    raise SystemExit("{}: differs at byte {} of {} and {}\n  ours:   {!r}\n  theirs: {!r}".format(what, at, len(ours), len(theirs), ours[max(0, at - 30) : at + 40], theirs[max(0, at - 30) : at + 40]))


def same(what, ours, theirs):
    if ours != theirs:
        differ(what, ours, theirs)


def one_type(name, kind, values, low):
    values = [v if isinstance(v, tuple) else (v, None) for v in values]
    values = [(t, s or "CAST({} AS {})".format(literal(t), name)) for t, s in values]
    made = list(shapes(name, kind, values, low))
    for table in ("ref", "rb", "nt", "named", "single"):
        ask("DROP TABLE IF EXISTS " + table)
        ask("CREATE TABLE {} ({}) ENGINE = Memory".format(table, ", ".join("`{}` {}".format(s[0], s[1]) for s in made)))
    described = dict(line.split("\t")[:2] for line in ask("DESCRIBE TABLE ref FORMAT TabSeparatedRaw").decode().splitlines())
    types = [described[s[0]] for s in made]
    same(name + " printed", subprocess.run([ENCODE, "types"], input="".join(t + "\n" for t in types).encode(), capture_output=True, check=True).stdout, "".join(t + "\n" for t in types).encode())
    rows = list(zip(*[[t for t, _ in s[4]] for s in made]))
    sqls = list(zip(*[[e for _, e in s[4]] for s in made]))
    if NEW:
        rows.append([DEFAULT] * len(made))
        sqls.append([made[1][4][-1][1] if s[0] == "nullable" else "defaultValueOfTypeName({})".format(literal(t)) for s, t in zip(made, types)])
    if NEW:
        ask("INSERT INTO ref VALUES " + ", ".join("(" + ", ".join(r) + ")" for r in sqls))
    else:  # whose VALUES take no Decimal of an expression
        for r in sqls:
            ask("INSERT INTO single SELECT " + ", ".join(r))
        ask("INSERT INTO ref SELECT * FROM single", max_threads=1)
    columns = [(s[0], t, s[2], s[3]) for s, t in zip(made, types)]
    bytes_rb = encode("rowbinary", columns, rows)
    ask("INSERT INTO rb FORMAT RowBinary", bytes_rb)
    text = ask("SELECT * FROM ref FORMAT TabSeparated")
    same(name + " RowBinary as text", ask("SELECT * FROM rb FORMAT TabSeparated"), text)
    same(name + " RowBinary", bytes_rb, ask("SELECT * FROM ref FORMAT RowBinary"))
    plain = [i for i, t in enumerate(types) if "LowCardinality" not in t]
    sent = range(len(types)) if NEW else plain  # 18.16 takes no plain type for a LowCardinality one
    wanted = ", ".join(columns[i][0] for i in sent)
    ask("INSERT INTO nt ({}) FORMAT Native".format(wanted), encode("native", [columns[i] for i in sent], [[r[i] for i in sent] for r in rows]))
    same(name + " Native as text", ask("SELECT {} FROM nt FORMAT TabSeparated".format(wanted)), ask("SELECT {} FROM ref FORMAT TabSeparated".format(wanted)))
    for i in plain:
        if not NEW and kind == "enum" and "Nullable" in types[i]:
            continue  # 18.16 has 0 below a NULL, where we have a member, as 26.7 has
        # To a client without a protocol version the server tells no zone of a DateTime.
        told = "DateTime" if columns[i][0] in ("plain", "simple") and name.startswith("DateTime(") else types[i]
        ours = encode("native", [(columns[i][0], told) + columns[i][2:]], [[r[i]] for r in rows])
        column = "CAST(simple AS {}) AS simple".format(name) if types[i].startswith("Simple") else columns[i][0]
        same("{} {} Native".format(name, types[i]), ours, ask("SELECT {} FROM ref FORMAT Native".format(column)))
    if NEW:
        bytes_named = encode("named", columns, rows)
        ask("INSERT INTO named FORMAT RowBinaryWithNamesAndTypes", bytes_named)
        same(name + " RowBinaryWithNamesAndTypes", bytes_named, ask("SELECT * FROM ref FORMAT RowBinaryWithNamesAndTypes"))
        same(name + " RowBinaryWithNamesAndTypes as text", ask("SELECT * FROM named FORMAT TabSeparated"), text)
    return len(made), len(rows)


def many(rows=3000):
    """Random values in one table: the server reads the same text itself, as TabSeparated, and writes the same bytes of it."""
    r = random.Random(SEED)

    def digits(n):
        return r.choice(["", "-"]) + str(r.randrange(10 ** r.randint(1, n)))

    def decimal(p, s):
        v = digits(p).zfill(s + 2) if s else digits(p)
        sign, v = ("-", v.lstrip("-")) if "-" in v else ("", v)
        v = v.zfill(s + 1)
        return sign + v[: len(v) - s] + "." + v[len(v) - s :]

    def float64():
        while True:
            v = struct.unpack("<d", r.randbytes(8))[0]
            if v == v and abs(v) != float("inf"):
                return repr(v)

    def stamp():
        return "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}".format(r.randint(1900, 2299), r.randint(1, 12), r.randint(1, 28), r.randrange(24), r.randrange(60), r.randrange(60), r.randrange(10**6))

    kinds = [
        ("i64", "Int64", "int64", lambda: str(r.randint(-(2 ** r.randint(0, 63)), 2 ** r.randint(0, 63) - 1))),
        ("u64", "UInt64", "int64", lambda: str(r.randrange(2 ** r.randint(1, 64)))),
        ("d9", "Decimal(9, 4)", "decimal", lambda: decimal(9, 4)),
        ("d18", "Decimal(18, 18)", "decimal", lambda: decimal(18, 18)),
        ("d38", "Decimal(38, 10)", "decimal", lambda: decimal(38, 10)),
        ("uuid", "UUID", "uuid", lambda: str(uuid.UUID(int=r.getrandbits(128)))),
        ("text", "Nullable(String)", "text", lambda: NULL if r.random() < 0.2 else "".join(r.choice("ab\\\t\n'ж{}") for _ in range(r.randrange(300)))),
    ]
    if NEW:
        kinds += [
            ("f64", "Float64", "float64", float64),  # 18.16 does not read them to the nearest
            ("i256", "Int256", "int64", lambda: str(r.randint(-(2 ** r.randint(0, 255)), 2 ** r.randint(0, 255) - 1))),
            ("u128", "UInt128", "int64", lambda: str(r.randrange(2 ** r.randint(1, 128)))),
            ("d76", "Decimal(76, 20)", "decimal", lambda: decimal(76, 20)),
            ("dt", "DateTime64(6)", "timestamp", stamp),
            ("d32", "Date32", "date", lambda: stamp()[:10]),
            ("v6", "IPv6", "network", lambda: str(ipaddress.IPv6Address(r.getrandbits(128) & r.getrandbits(128) & r.getrandbits(128) | r.getrandbits(8)))),
        ]
    for table in ("ref", "nt"):
        ask("DROP TABLE IF EXISTS " + table)
        ask("CREATE TABLE {} ({}) ENGINE = Memory".format(table, ", ".join("{} {}".format(k[0], k[1]) for k in kinds)))
    made = [[k[3]() for k in kinds] for _ in range(rows)]
    ask("INSERT INTO ref FORMAT TabSeparated", "".join("\t".join(copied(v) for v in row) + "\n" for row in made).encode())
    columns = [(k[0], k[1], k[2], "opaque") for k in kinds]
    native = encode("native", columns, made)
    ask("INSERT INTO nt FORMAT Native", native)
    same("random rows as RowBinary, seed {}".format(SEED), encode("rowbinary", columns, made), ask("SELECT * FROM ref FORMAT RowBinary"))
    same("random rows as Native, seed {}".format(SEED), native, ask("SELECT * FROM ref FORMAT Native"))
    same("random rows as text, seed {}".format(SEED), ask("SELECT * FROM nt FORMAT TabSeparated"), ask("SELECT * FROM ref FORMAT TabSeparated"))
    return rows * len(kinds)


def main():
    types = cells = 0
    for name, kind, values, new, low in cases():
        if new and not NEW:
            continue
        n, rows = one_type(name, kind, values, low and (NEW or kind == "text"))
        types += 1
        cells += n * rows
    print("{} types, {} cells in RowBinary and Native; {} random ones, seed {}".format(types, cells, many(), SEED))


main()
