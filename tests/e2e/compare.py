#!/usr/bin/env python3
"""Compares a source with its mirrors, value by value, from exports made by psql and sqlite3: none of tailrace's code takes part.

    compare.py --source DSN [--sqlite FILE] [--postgres DSN [--schema NAME]] [--hard TABLE,...] [--no-key TABLE,...] TABLE...

Every column of every row is fetched as text. SQLite's values are brought back to PostgreSQL's text by type: booleans from 0/1, bytes from
hex, floats by value (17 digits), everything else must be the same text. Numeric *key* columns of SQLite mirrors are compared by value, as
documented. Prints a table and ends with 1 when anything is missing, extra or different.
"""
import argparse
import decimal
import json
import subprocess
import sys


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
    def __init__(self, dsn, full):
        self.ns, self.name = full.split(".", 1)
        rows = psql(dsn, f"""
            SELECT json_build_array(a.attname, format_type(a.atttypid, NULL), coalesce(a.attnum = ANY (i.indkey::int2[]), false))
            FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
            WHERE a.attrelid = {literal(quote(self.ns) + '.' + quote(self.name))}::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            ORDER BY a.attnum""")
        cols = [json.loads(line) for line in rows.splitlines()]
        self.columns = [c[0] for c in cols]
        self.types = [c[1] for c in cols]
        self.key = [i for i, c in enumerate(cols) if c[2]]


SETTINGS = "SET datestyle = ISO; SET intervalstyle = postgres; SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = hex; "


def export_pg(dsn, table, relation):
    # format() uses the type's output function; a cast to text would strip the padding of char(n)
    cols = ", ".join(f"CASE WHEN {quote(c)} IS NULL THEN NULL ELSE format('%s', {quote(c)}) END" for c in table.columns)
    out = psql(dsn, f"{SETTINGS} SELECT json_build_array({cols}) FROM {relation}")
    return [json.loads(line) for line in out.split("\n") if line]


def export_sqlite(path, table, relation):
    def col(c):
        q = quote(c)
        return f"CASE typeof({q}) WHEN 'real' THEN printf('%!.17g', {q}) WHEN 'blob' THEN '\\x' || lower(hex({q})) WHEN 'null' THEN NULL ELSE CAST({q} AS TEXT) END"

    out = sqlite(path, f"SELECT json_array({', '.join(col(c) for c in table.columns)}) FROM {relation}")
    return [json.loads(line) for line in out.split("\n") if line]


def floats(v):
    return "NaN" if v == "NaN" else repr(float(v.replace("Infinity", "inf")))


def normal(table, row, lite):
    """One canonical tuple; equal tuples are equal rows."""
    out = []
    for i, v in enumerate(row):
        t = table.types[i]
        if v is None:
            out.append(None)
        elif t in ("real", "double precision"):
            out.append(floats(v))
        elif t == "boolean":
            out.append({"true": "t", "false": "f", "1": "t", "0": "f"}.get(v, v))
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
    p.add_argument("--hard", default="")
    p.add_argument("--no-key", default="", help="tables without a key: their changelog's inserts are compared instead of a mirror")
    p.add_argument("tables", nargs="+")
    o = p.parse_args()
    hard = set(filter(None, o.hard.split(",")))
    no_key = set(filter(None, o.no_key.split(",")))
    bad = 0
    print(f"{'table':<32} {'rows':>9}  {'mirror':<10} {'lost':>6} {'wrong':>6} {'extra':>6}")
    for full in o.tables:
        t = Table(o.source, full)
        source = export_pg(o.source, t, f"{quote(t.ns)}.{quote(t.name)}")
        suffix = "_changelog" if full in no_key else "" if full in hard else "_live"
        sides = []
        if o.sqlite:
            sides.append(("sqlite", lambda: export_sqlite(o.sqlite, t, quote(lite_name(t) + suffix)), True))
        if o.postgres:
            name = f"{quote(o.schema)}.{quote(lite_name(t) + suffix)}" if o.schema else f"{quote(t.ns)}.{quote(t.name + suffix)}"
            sides.append(("postgres", lambda: export_pg(o.postgres, t, name), False))
        for side, export, lite in sides:
            try:
                lost, wrong, extra = compare(t, source, export(), lite)
            except subprocess.CalledProcessError:
                lost, wrong, extra = len(source), 0, 0
            print(f"{full:<32} {len(source):>9}  {side:<10} {lost:>6} {wrong:>6} {extra:>6}{'' if lost + wrong + extra == 0 else '   <-- NOT EQUAL'}", flush=True)
            bad += lost + wrong + extra
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
