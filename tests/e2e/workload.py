#!/usr/bin/env python3
"""A seeded, randomised workload for the equality test: SQL on standard output, to be fed to psql.

    workload.py SEED TRANSACTIONS WRITER | psql …

Every transaction is one of many kinds; some fail (unique violations), which is part of it. The tables are those of equality.sh.
"""
import random
import sys

seed, count, writer = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
r = random.Random(seed)
out = sys.stdout.write


def lit(n):
    body = "".join(r.choice("abcdefghijklmnopqrstuvwxyz '\\\t\"%é☃") for _ in range(n))
    return "'" + body.replace("'", "''") + "'"


def big():
    return f"repeat('{r.randrange(10**6)}-', {r.randrange(400, 1500)})"  # beyond the TOAST threshold, stored external


def key():
    return r.randrange(1, 400)


def item():
    k = r.random()
    i = key()
    if k < 0.25:
        return f"insert into item values ({i}, {r.randrange(10)}, {lit(12)}, {r.randrange(10**6) / 1000}, {big()}) on conflict (id) do nothing"
    if k < 0.45:
        return f"update item set a = {lit(8)}, b = b + 1 where id = {i}"  # big untouched
    if k < 0.55:
        return f"update item set big = {big()} where id between {i} and {i + 3}"
    if k < 0.75:
        return f"update item set id = {key()}{', a = ' + lit(5) if r.random() < 0.5 else ''}{', big = ' + big() if r.random() < 0.3 else ''} where id = {i}"
    if k < 0.85:
        return f"delete from item where id between {i} and {i + r.randrange(3)}"
    if k < 0.93:  # delete and insert of one key in one transaction
        return f"delete from item where id = {i}; insert into item values ({i}, 1, {lit(4)}, 1.500, {big()})"
    return f"update item set b = 1 where id = {i}; update item set b = 2 where id = {i}; update item set b = 3, a = null where id = {i}"


def pair():
    a, b = r.randrange(20), f"'k{r.randrange(20)}'"
    k = r.random()
    if k < 0.4:
        return f"insert into pair values ({a}, {b}, {lit(6)}, {big()}) on conflict do nothing"
    if k < 0.6:
        return f"update pair set v = {lit(6)} where k1 = {a} and k2 = {b}"
    if k < 0.8:
        return f"update pair set k2 = 'k{r.randrange(20)}' where k1 = {a} and k2 = {b}"
    return f"delete from pair where k1 = {a} and k2 = {b}"


def doc():
    n, m = f"'doc {r.randrange(60)}'", f"'doc {r.randrange(60)}'"
    k = r.random()
    if k < 0.4:
        return f"insert into doc values ({n}, {big()}, 0) on conflict (name) do update set n = doc.n + 1"
    if k < 0.7:
        return f"update doc set name = {m}, n = n + 1 where name = {n}"
    return f"delete from doc where name = {n}"


def ev():
    i, j = r.randrange(3000), r.randrange(3000)
    k = r.random()
    if k < 0.5:
        return f"insert into ev values ({i}, 'k', {lit(9)}) on conflict do nothing"
    if k < 0.8:
        return f"update ev set id = {j} where id = {i}"  # often into another partition
    return f"delete from ev where id = {i}"


def copy():
    rows = "".join(f"{r.randrange(100000)}\t{i}\n" for i in range(r.randrange(1, 60)))
    return f"copy nokey from stdin;\n{rows}\\."


def short():
    i = r.randrange(1, 100)
    k = r.random()
    if k < 0.05:
        return "truncate short"
    if k < 0.5:
        return f"insert into short values ({i}, {lit(5)}) on conflict (id) do update set v = excluded.v"
    return f"delete from short where id = {i}"


def hard():
    i = r.randrange(1, 100)
    k = r.random()
    if k < 0.03:
        return "truncate hard"
    if k < 0.4:
        return f"insert into hard values ({i}, {lit(5)}, {big()}) on conflict (id) do nothing"
    if k < 0.6:
        return f"update hard set v = {lit(3)} where id = {i}"
    if k < 0.8:
        return f"update hard set id = {r.randrange(1, 100)} where id = {i}"
    return f"delete from hard where id = {i}"


ops = [item, item, item, item, pair, pair, doc, doc, ev, ev, short, hard, hard]

for t in range(count):
    k = r.random()
    if k < 0.06:
        out(copy() + "\n")
        continue
    body = [r.choice(ops)() for _ in range(r.randrange(1, 6))]
    if k < 0.16:  # a savepoint rolled back
        at = r.randrange(len(body) + 1)
        body[at:at] = ["savepoint s", r.choice(ops)(), r.choice(ops)(), "rollback to s"]
    if k < 0.22:
        gid = f"{writer}_{seed}_{t}"
        end = "commit" if r.random() < 0.7 else "rollback"
        out("begin;\n" + ";\n".join(body) + f";\nprepare transaction '{gid}';\n")
        out(f"select pg_sleep({r.random() * 0.05:.3f});\n{end} prepared '{gid}';\n")
        continue
    out("begin;\n" + ";\n".join(body) + (";\nrollback;\n" if k > 0.95 else ";\ncommit;\n"))
