#!/usr/bin/env bash
# The examples that need a ClickHouse: the typed pipeline of examples/project, with crashes on both sides, and the one without code.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"
# shellcheck source=tests/e2e/tailrace.sh
. "$TR_E2E_DIR/tailrace.sh"
# shellcheck source=tests/e2e/installed.sh
. "$TR_E2E_DIR/installed.sh"
cd "$TR_TMP"

tr_step "servers, and the project"
tr_ch_start 26 ch
tr_ch ch 'CREATE DATABASE site'
tr_project

cat >visits.py <<'END'
# visits.py FROM TO: visits, a line each; visits.py --rows TO: the rows that they come to, sorted, as SELECT … FORMAT TSV prints them.
import sys, uuid
def visit(i):
    session = str(uuid.UUID(int=i * 7919 + 1))
    agent = 'fast' + 'bot' if i % 11 == 0 else ('mobile phone' if i % 3 == 0 else 'desk')
    referrer = '' if i % 4 else f'https://r{i}.example/?a=1'
    country = '' if i % 5 == 0 else 'AT' if i % 2 else 'FR'
    tags = [] if i % 6 == 0 else [f't{k}' for k in range(i % 4 + 1)]
    views = [(1760000000000 + i * 1000 + k, i % 900 + k, f'/page/{i}/{k}?x=ü') for k in range(i % 5)]
    return session, i * 1000003, country, agent, referrer, tags, views
def line(i):
    if i % 101 == 100:
        return 'this is no visit'
    s, user, country, agent, referrer, tags, views = visit(i)
    return '\t'.join([s, str(user), country, agent, referrer, ','.join(tags)] + [f'{a}:{t}:{u}' for a, t, u in views])
def rows(n):
    for i in range(n):
        s, user, country, agent, referrer, tags, views = visit(i)
        if i % 101 == 100 or agent.endswith('bot'):
            continue
        for at, took, url in views:
            yield '\t'.join([f'{at // 1000}.{at % 1000:03}', s, str(user), country or 'AT', url, str(took), agent, 'true' if agent.startswith('mobile') else 'false', referrer or '\\N',
                             '[' + ','.join(f"'{t}'" for t in tags) + ']'])
if sys.argv[1] == '--rows':
    print('\n'.join(sorted(rows(int(sys.argv[2])))))
else:
    for i in range(int(sys.argv[1]), int(sys.argv[2])):
        print(line(i))
END
# shellcheck disable=SC2154
export CLICKHOUSE_URL=$CH_URL_ch CLICKS_LISTEN=127.0.0.1:0
same() { # N: the table holds what the first N visits come to
    python3 visits.py --rows "$1" >want
    tr_ch ch "SELECT toUnixTimestamp64Milli(at) / 1000, session, user, country, url, took_ms, agent, mobile, referrer, tags FROM site.views FINAL FORMAT TSV" |
        python3 -c 'import sys
for l in sys.stdin:
    at, rest = l.rstrip("\n").split("\t", 1)
    print(f"{float(at):.3f}\t{rest}")' | LC_ALL=C sort >have
    LC_ALL=C sort -o want want
    cmp want have || { diff want have | head -10 >&2; tr_fail "site.views differs from what $1 visits come to"; }
}
clicks=project/build/clicks
refuses() { # TEXT: clicks fails before it reads, and says it
    if "$clicks" project/clicks.yaml 2>log; then tr_fail "it ran, and should have said: $1"; fi
    grep -q -- "$1" log || { cat log >&2; tr_fail "it does not say: $1"; }
    [ ! -e clicks-state/clicks.position ] || tr_fail "it read before it said: $1"
}

tr_step "what does not fit is said before a line is read"
python3 visits.py 0 20000 >clicks.tsv
refuses "sink views: there is no table site.views; make it first: CREATE TABLE .*\"at\" DateTime64(3, 'UTC'), .*SETTINGS non_replicated_deduplication_window = 1000"
tr_ch ch "$(sed 's/took_ms UInt32/took_ms UInt64/; s/    referrer.*//; s/1000$/0/' project/clicks.sql)"
refuses "table site.views does not drop an INSERT that comes again.*ALTER TABLE site.views MODIFY SETTING non_replicated_deduplication_window = 1000, or set allow_duplicates"
tr_ch ch "ALTER TABLE site.views MODIFY SETTING non_replicated_deduplication_window = 1000"
refuses "table site.views differs: column took_ms is UInt64 in the table, and the program writes UInt32; column referrer is not in the table"
tr_ch ch "DROP TABLE site.views"
tr_ch ch "$(cat project/clicks.sql)"

tr_step "a file, whole"
"$clicks" project/clicks.yaml 2>log
same 20000
tr_equal "rows, twice in it" "$(tr_ch ch 'SELECT count() FROM site.views FINAL')" "$(tr_ch ch 'SELECT count() FROM site.views')"

tr_step "followed, with kills of the pipeline and of ClickHouse"
(for ((k = 20; k < 60; k++)); do
    python3 visits.py "${k}000" "$((k + 1))000"
done >>clicks.tsv) &
writer=$!
export CLICKS_FOLLOW=true
for ((k = 0; k < 6; k++)); do
    tr_spawn clicks "$clicks" project/clicks.yaml
    sleep "0.$((3 + k))"
    if ((k % 2)); then
        tr_kill ch KILL || true
        sleep 0.5
        tr_ch_restart ch
        sleep 1
    fi
    tr_alive clicks || { cat "$TR_TMP/clicks.log" >&2; tr_fail "it ended by itself"; }
    tr_kill clicks KILL || true
done
wait "$writer"
CLICKS_FOLLOW=false "$clicks" project/clicks.yaml 2>log || { cat log >&2; tr_fail "the last run failed"; }
same 60000

tr_step "no code: PostgreSQL into ClickHouse and SQLite"
tr_pg_start 15 src
tr_psql src -q <<'END'
create type state as enum ('new', 'paid', 'sent');
create table orders (id int primary key, state text, total numeric(12, 2), note text);
create table events (id int, day date, what text, primary key (id, day));
insert into orders select g, (array['new', 'paid', 'sent'])[g % 3 + 1], g * 1.25, case when g % 2 = 0 then 'note ' || g end from generate_series(1, 3000) g;
insert into events select g, date '2026-01-01' + g % 90, 'event ' || g from generate_series(1, 3000) g;
END
# shellcheck disable=SC2154
export TAILRACE_DSN=$PG_DSN_src TAILRACE_STATE=$TR_TMP/state TAILRACE_LISTEN=127.0.0.1:0
tr_spawn tailrace "$TAILRACE" run -c "$TR_SOURCE_ROOT/examples/no-code/tailrace.yaml"
tr_wait_until 60 "! tr_alive tailrace || [ \"\$(curl -s \"\$CH_URL_ch\" --data-binary 'select (select count() from shop.orders_live) + (select count() from shop.events_live)')\" = 6000 ]"
tr_psql src -q -c "update orders set total = total + 1 where id <= 100" -c "delete from orders where id > 2990" -c "insert into events values (1, '2027-01-01', 'another')"
tr_wait_until 30 "[ \"\$(curl -s \"\$CH_URL_ch\" --data-binary 'select count(), sum(total) from shop.orders_live')\" = \"2990	\$(tr_psql src -Atc 'select trim_scale(sum(total)) from orders')\" ]"
tr_wait_until 30 "[ \"\$(curl -s \"\$CH_URL_ch\" --data-binary 'select count() from shop.events_live')\" = 3001 ]"
tr_equal "months" 4 "$(tr_ch ch "select uniq(partition) from system.parts where active and database = 'shop' and table = 'events'")"
tr_kill tailrace TERM || { cat "$TR_TMP/tailrace.log" >&2; tr_fail "tailrace ended with $?"; }
python3 "$TR_E2E_DIR/compare.py" --source "$TAILRACE_DSN" --clickhouse "$CLICKHOUSE_URL" --database shop --sqlite "$TAILRACE_STATE/mirror.db" public.orders public.events
tr_step "done"
