#!/usr/bin/env bash
# The demo: a real PostgreSQL under pgbench load, captured into a SQLite and a PostgreSQL mirror; tailrace is killed with SIGKILL in the middle;
# at the end source and mirrors are compared value by value, from exports by psql and sqlite3.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tr_step "starting a throwaway PostgreSQL 15"
tr_pg_start 15 src
tr_psql src -q -c "create database shop" -c "create database mirror"
# shellcheck disable=SC2154
shop=$(printf '%s' "$PG_DSN_src" | sed 's/dbname=postgres/dbname=shop/')
# shellcheck disable=SC2154
mirror=$(printf '%s' "$PG_DSN_src" | sed 's/dbname=postgres/dbname=mirror/')

tr_step "filling it: pgbench's four tables, and one with every awkward type"
pgbench -i -q -s 3 "$shop" >/dev/null 2>&1 || tr_fail 'pgbench -i'
psql -X -q -v ON_ERROR_STOP=1 -d "$shop" <<'SQL'
alter table pgbench_history add column hid bigserial primary key;
create type mood as enum ('sad', 'ok', 'happy');
create domain positive as int check (value > 0);
create table awkward (
    id int primary key, b boolean, i2 smallint, i8 bigint, f4 real, f8 double precision, n numeric, n2 numeric(20, 5), t text, v varchar(20), c char(5),
    by bytea, d date, tm time, tz timetz, ts timestamp, tstz timestamptz, iv interval, u uuid, j json, jb jsonb, m mood, dom positive, ia int[], ta text[],
    r int4range, ip inet, mac macaddr, p point, bits bit varying, x xml);
insert into awkward values
    (1, true, -32768, 9223372036854775807, 'NaN', 'Infinity', 'NaN', -0.00001, E'tab\tnewline\nback\\slash "quoted" \u2603 \U0001F600', '', 'ab', '\x00ff10',
     'infinity', '23:59:59.999999', '12:00:00+05:30', '0001-01-01 00:00:00 BC', '-infinity', '1 year -3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
     '{"a": [1, 2.50]}', '{"b": null}', 'happy', 7, '{1,NULL,3}', E'{"a,b","c\\"d",NULL,""}', '[1,10)', '::1/128', '08:00:2b:01:02:03', '(1.5,-2)', B'10110', '<a>&amp;</a>'),
    (3, false, 32767, -9223372036854775808, 1.17549435e-38, 5e-324, 123456789012345678901234567890.123456789, 0, 'NULL', 'NULL', '', '', '4713-01-01 BC', '00:00', '00:00+00',
     '294276-12-31 23:59:59.999999', '2026-11-30 12:00:00.5+00', '-1 day', null, 'null', '"x"', 'sad', 1, '{}', '{}', 'empty', '10.1.2.3/8', null, null, B'', null);
insert into awkward (id) values (2);
insert into awkward (id, t) select g, repeat(md5(g::text), 300) from generate_series(10, 60) g;
SQL

cat >"$TR_TMP/demo.yaml" <<YAML
state_dir: $TR_TMP/state
source:
  dsn: $shop
  tables: ['public.*']
sinks:
  - {name: lite, type: sqlite, path: $TR_TMP/mirror.db}
  - {name: pg, type: postgres, dsn: $mirror}
engine: {heartbeat: 1s, commit_interval: 1s}
admin: {listen: 127.0.0.1:$(tr_free_port)}
YAML
run() { tr_spawn tailrace "$TAILRACE" run -c "$TR_TMP/demo.yaml"; }
live() { "$TAILRACE" status -c "$TR_TMP/demo.yaml" --json 2>/dev/null | python3 -c '
import json, sys
s = json.load(sys.stdin)
states = [t["state"] for k in s.get("sinks", []) for t in k["tables"]]
sys.exit(0 if len(states) >= '"$1"' and all(x == "live" for x in states) else 1)'; }
lag() { "$TAILRACE" status -c "$TR_TMP/demo.yaml" | grep -E '^(capture|sink|     lag)' | sed 's/^/        /' >&2 || true; }

tr_step "tailrace run: snapshot and stream begin"
run
tr_spawn load pgbench -n -c 4 -T 30 "$shop"
for i in $(seq 40); do
    psql -X -q -d "$shop" -c "update awkward set i8 = $i, v = 'round $i' where id in (1, $((i % 50 + 10)))" -c "update awkward set id = id + 1000 where id = $((i + 15))" \
        -c "delete from awkward where id = $((i + 1008))" >/dev/null
    [ $((i % 10)) -eq 0 ] && lag
    if [ "$i" -eq 15 ]; then
        tr_step "kill -9"
        tr_kill tailrace KILL || true
        sleep 0.5
        tr_step "tailrace run again: it goes on where it was"
        run
    fi
    sleep 0.5
done
tr_step "the load ends; waiting until both mirrors have caught up"
tr_wait_until 30 '! tr_alive load'
tr_wait_until 60 'live 10'
# a last change, by which both mirrors can be seen to have arrived
psql -X -q -d "$shop" -c "insert into awkward (id, t) values (999999, 'the end')"
tr_wait_until 30 "[ \"\$(sqlite3 '$TR_TMP/mirror.db' 'select count(*) from awkward_live where id = 999999')\" = 1 ]"
tr_wait_until 30 "[ \"\$(psql -X -A -t -d '$mirror' -c 'select count(*) from awkward_live where id = 999999')\" = 1 ]"
lag
tr_step "comparing value by value"
python3 "$TR_E2E_DIR/compare.py" --source "$shop" --sqlite "$TR_TMP/mirror.db" --postgres "$mirror" public.pgbench_accounts public.pgbench_tellers public.pgbench_branches \
    public.pgbench_history public.awkward
"$TAILRACE" log verify -c "$TR_TMP/demo.yaml"
tr_step "SIGTERM: draining"
tr_kill tailrace TERM || tr_fail 'tailrace did not stop cleanly'
tr_step "source and mirrors are equal"
tr_step "next: your own database: docs/guide.md, and build/src/cli/tailrace init --dsn postgresql://user@host:port/database"
