#!/usr/bin/env python3
"""Compares a source with its mirrors, value by value, from exports made by psql, sqlite3 and ClickHouse's own HTTP: none of tailrace's code takes part.

    compare.py --source DSN [--sqlite FILE] [--postgres DSN [--schema NAME]] [--clickhouse URL... --database NAME] [--hard TABLE,...] [--no-key TABLE,...] TABLE...

Every column of every row is fetched as text. SQLite's values are brought back to PostgreSQL's text by type: booleans from 0/1, bytes from
hex, floats by value (their eight bytes; -0 is 0), everything else must be the same text. Numeric *key* columns of SQLite mirrors are compared by value, as
documented. Several ClickHouses are shards, whose rows are counted together. ClickHouse has a view over every mirror, also of tables that --hard names; its numerics, floats and timestamps are compared by value. Prints a table and ends with 1 when anything is missing, extra or different.
"""
import argparse
import decimal
import json
import struct
import subprocess
import sys
import urllib.request

decimal.getcontext().prec = 200000  # more digits than a numeric has: normalize() rounds to this


def psql(dsn, sql):
    out = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-c", sql], stdout=subprocess.PIPE, check=True).stdout
    return out.decode()


def sqlite(path, sql):
    out = subprocess.run(["sqlite3", "-bail", "-cmd", ".timeout 10000", path, sql], stdout=subprocess.PIPE, check=True).stdout
    return out.decode()


def quote(name):
    return '"' + name.replace('"', '""') + '"'


def literal(text):
    return "'" + text.replace("'", "''") + "'"


class Table:
    def __init__(self, full, columns):
        # what inherits from it is a table of its own, what is a partition of it is not
        self.source = f"{'' if columns[0][3] else 'ONLY '}{'.'.join(quote(part) for part in full.split('.', 1))}"
        self.ns, self.name = full.split(".", 1)
        self.columns = [c[0] for c in columns]
        self.types = [c[1] for c in columns]  # a domain counts as what it is over
        self.key = [i for i, c in enumerate(columns) if c[2]]


def tables(dsn, names):
    """[Table]: the columns of all of them in one query."""
    values = ", ".join(f"({n}, {literal('.'.join(quote(part) for part in full.split('.', 1)))}::regclass)" for n, full in enumerate(names))
    rows = psql(dsn, f"""{SETTINGS}
        SELECT json_build_array(t.n, a.attname, format_type((WITH RECURSIVE d AS (SELECT a.atttypid AS oid UNION ALL SELECT t.typbasetype FROM d JOIN pg_type t ON t.oid = d.oid
            AND t.typtype = 'd') SELECT d.oid FROM d JOIN pg_type t ON t.oid = d.oid AND t.typtype <> 'd'), NULL), coalesce(a.attnum = ANY (i.indkey::int2[]), false), c.relkind = 'p')
        FROM (VALUES {values}) t(n, rel) JOIN pg_class c ON c.oid = t.rel JOIN pg_attribute a ON a.attrelid = t.rel LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
        WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY t.n, a.attnum""")
    columns = [[] for _ in names]
    for n, *c in map(json.loads, rows.splitlines()):
        columns[n].append(c)
    return [Table(*x) for x in zip(names, columns)]


SETTINGS = "SET datestyle = ISO; SET intervalstyle = postgres; SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = hex; SET lc_monetary = 'C'; SET search_path = pg_catalog; SET quote_all_identifiers = off; SET xmloption = content; "


def export_pg(dsn, table, relation):
    # format() uses the type's output function; a cast to text would strip the padding of char(n). A composite of NULLs IS NULL, but is distinct from it
    cols = ", ".join(f"CASE WHEN {quote(c)} IS DISTINCT FROM NULL THEN format('%s', {quote(c)}) END" for c in table.columns)
    out = psql(dsn, f"{SETTINGS} SELECT json_build_array({cols}) FROM {relation}")
    return [json.loads(line) for line in out.split("\n") if line]


def export_sqlite(path, table, relation):
    def col(c):
        q = quote(c)
        return f"CASE typeof({q}) WHEN 'real' THEN 'real:' || hex(ieee754_to_blob({q})) WHEN 'blob' THEN '\\x' || lower(hex({q})) WHEN 'null' THEN NULL ELSE CAST({q} AS TEXT) END"

    out = sqlite(path, f"SELECT json_array({', '.join(col(c) for c in table.columns)}) FROM {relation}")
    return [[real(v) for v in json.loads(line)] for line in out.split("\n") if line]


def export_clickhouse(url, table, relation):
    def col(c, t):
        q = '"' + c.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return q if t == "numeric" else f"if(isNull({q}), 'N', concat('v', hex(assumeNotNull(toString({q})))))"

    def value(t, v):
        if v in ("N", "\\N"):
            return None
        if t == "numeric":  # toString() of 18.16 gets long ones wrong
            return v
        v = bytes.fromhex(v[1:])
        return "\\x" + v.hex() if t == "bytea" else v.decode()

    sql = f"SELECT {', '.join(col(c, t) for c, t in zip(table.columns, table.types))} FROM {relation} FORMAT TabSeparated"
    with urllib.request.urlopen(url, data=sql.encode()) as answer:
        out = answer.read().decode()
    return [[value(t, v) for t, v in zip(table.types, line.split("\t"))] for line in out.splitlines()]


def moment(v):
    """A timestamp with six digits behind the point and without the zone, which is UTC."""
    v = v.removesuffix("+00")
    whole, _, fraction = v.partition(".")
    return whole if v.endswith(" BC") or "infinity" in v else f"{whole}.{fraction:0<6}"


def real(v):
    return repr(struct.unpack(">d", bytes.fromhex(v[5:]))[0]) if v and v.startswith("real:") else v


def floats(v, lite):
    if v.lower() == "nan":
        return "NaN"
    f = float(v.replace("Infinity", "inf"))
    return repr(f + 0.0 if lite else f)


def normal(table, row, lite):
    """One canonical tuple; equal tuples are equal rows."""
    out = []
    for i, v in enumerate(row):
        t = table.types[i]
        if v is None:
            out.append(None)
        elif t in ("real", "double precision"):
            out.append(floats(v, lite))
        elif t == "boolean":
            out.append({"true": "t", "false": "f", "1": "t", "0": "f"}.get(v, v))
        elif t.startswith("timestamp"):
            out.append(moment(v))
        elif t == "numeric" and lite == "clickhouse" and v not in ("NaN", "Infinity", "-Infinity"):
            out.append(str(decimal.Decimal(v).normalize()))
        elif t == "numeric" and lite and i in table.key and v not in ("NaN", "Infinity", "-Infinity"):
            out.append(str(decimal.Decimal(v).normalize()))
        else:
            out.append(v)
    return tuple(out)


def compare(table, source, mirror, lite):
    a = {}
    for row in source:
        n = normal(table, row, lite)
        a[n] = a.get(n, 0) + 1
    extra = []
    for row in mirror:
        n = normal(table, row, lite)
        if a.get(n, 0):
            a[n] -= 1
            if not a[n]:
                del a[n]
        else:
            extra.append(n)
    missing = [r for r, n in a.items() for _ in range(n)]
    # the same key on both sides is one wrong row, not one lost and one too many
    keys = {tuple(r[i] for i in table.key) for r in missing} if table.key else set()
    wrong = sum(1 for r in extra if tuple(r[i] for i in table.key) in keys) if table.key else 0
    for label, rows in (("missing", missing), ("extra", extra)):
        for r in rows[:3]:
            print(f"    {label} in {table.ns}.{table.name}: {str(r)[:300]}", file=sys.stderr)
    return len(missing) - wrong, wrong, len(extra) - wrong


def lite_name(t):
    return t.name if t.ns == "public" else f"{t.ns}__{t.name}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--source", required=True)
    p.add_argument("--sqlite")
    p.add_argument("--postgres")
    p.add_argument("--schema", default="")
    p.add_argument("--clickhouse", action="append")
    p.add_argument("--database", default="default")
    p.add_argument("--hard", default="")
    p.add_argument("--no-key", default="", help="tables without a key: their changelog's inserts are compared instead of a mirror")
    p.add_argument("tables", nargs="+")
    o = p.parse_args()
    hard = set(filter(None, o.hard.split(",")))
    no_key = set(filter(None, o.no_key.split(",")))
    bad = 0
    print(f"{'table':<32} {'rows':>9}  {'mirror':<10} {'lost':>6} {'wrong':>6} {'extra':>6}")
    for full, t in zip(o.tables, tables(o.source, o.tables)):
        source = export_pg(o.source, t, t.source)
        view = "_changelog" if full in no_key else "_live"
        suffix = "" if full in hard else view
        sides = []
        if o.sqlite:
            sides.append(("sqlite", lambda: export_sqlite(o.sqlite, t, quote(lite_name(t) + suffix)), True))
        if o.postgres:
            name = f"{quote(o.schema)}.{quote(lite_name(t) + suffix)}" if o.schema else f"{quote(t.ns)}.{quote(t.name + suffix)}"
            sides.append(("postgres", lambda: export_pg(o.postgres, t, name), False))
        if o.clickhouse:
            sides.append(("clickhouse", lambda: sum((export_clickhouse(url, t, f"{quote(o.database)}.{quote(lite_name(t) + view)}{' FINAL' if full in no_key else ''}") for url in o.clickhouse), []), "clickhouse"))
        for side, export, lite in sides:
            try:
                lost, wrong, extra = compare(t, source, export(), lite)
            except (subprocess.CalledProcessError, OSError):
                lost, wrong, extra = len(source), 0, 0
            print(f"{full:<32} {len(source):>9}  {side:<10} {lost:>6} {wrong:>6} {extra:>6}{'' if lost + wrong + extra == 0 else '   <-- NOT EQUAL'}", flush=True)
            bad += lost + wrong + extra
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
