#!/usr/bin/env bash
# Rows deleted before, between and after their chunk, in soft and hard mode; TRUNCATE in the middle; a new snapshot of a live mirror under load,
# during which no reader sees the mirror empty, missing or short.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table soft (id int primary key, v text)' "insert into soft select g, 'old' from generate_series(1, 1000) g" \
    'create table hard (id int primary key, v text)' "insert into hard select g, 'old' from generate_series(1, 1000) g" \
    'create table cut (id int primary key, v text)' "insert into cut select g, 'old' from generate_series(1, 600) g"
TT_LITE="    hard_delete: ['public.hard']" TT_PG="    hard_delete: ['public.hard']"
tt_config 'snapshot: {workers: 1, chunk_rows: 50}'
tt_run snapshot.before_chunk=sleep:60:1+
tr_wait_until 20 "tt_state public.hard | grep -q '^snapshot'" || tr_fail 'no snapshot'
for t in soft hard; do
    tt_sql "delete from $t where id in (1, 500, 990)" # perhaps read already, perhaps not
done
tr_wait_until 20 '[ "$(tt_frames READ public.hard)" -ge 200 ]' || tr_fail 'no chunk was read'
for t in soft hard; do
    tt_sql "delete from $t where id in (2, 501, 991)" "insert into $t values (2, 'again'), (991, 'again')" "delete from $t where id = 991" \
        "begin; delete from $t where id = 3; insert into $t values (3, 'same tx'); delete from $t where id = 992; commit"
done
tt_sql 'truncate cut' "insert into cut select g, 'new' from generate_series(300, 320) g"
tt_live public.soft public.hard public.cut
for t in soft hard; do
    tt_sql "delete from $t where id in (4, 502, 993)"
done
tt_equal --hard public.hard public.soft public.hard public.cut
tr_equal 'tombstones keep their values' old "$(tt_mirror 'select v from soft where id = 502 and _tr_deleted')"
tr_equal 'hard deleted' 0 "$(tt_mirror 'select count(*) from hard where id in (1, 4, 502)')"

tr_step 'TRUNCATE while streaming, several tables, among other changes'
tt_sql "begin; insert into cut values (1000, 'gone'); truncate cut, hard; insert into cut values (1, 'left'); insert into hard values (1, 'left'); commit"
tt_equal --hard public.hard public.soft public.hard public.cut

tr_step 'a new snapshot of a live mirror, under load, with readers'
printf "%s\n" '\set i random(1, 300)' 'update soft set v = :i where id = 600 + :i;' >"$TR_TMP/load.sql"
tr_spawn load "$TR_PG_CLIENT/pgbench" -n -c 2 -T 600 -R 300 -f "$TR_TMP/load.sql" "$TT_SHOP"
want=$(tt_sql 'select count(*) from soft')
tr_spawn readers bash -c "
    while :; do
        a=\$('$TR_PG_CLIENT/psql' -X -At -d '$TT_MIRROR' -c 'select count(*) from soft_live' 2>&1); b=\$(sqlite3 -cmd '.timeout 10000' '$TT_LITE_FILE' 'select count(*) from soft_live' 2>&1)
        [ \"\$a\" = $want ] && [ \"\$b\" = $want ] || { echo \"a reader saw: \$a, \$b, not $want\"; exit 1; }
        echo looked
    done"
for i in 2 3; do
    "$TAILRACE" table resnapshot public.soft -c "$TT_YAML" >/dev/null
    tr_wait_until 40 "[ \"\$(tt_frames SNAPSHOT_END public.soft)\" -ge $i ]" || tr_fail 'the new snapshot does not end'
    tt_live public.soft
done
tr_kill load || true
tr_alive readers || tr_fail "$(tail -n 1 "$TR_TMP/readers.log")"
tr_kill readers || true
[ "$(grep -c looked "$TR_TMP/readers.log")" -ge 20 ] || tr_fail 'the readers hardly looked'
tt_equal --hard public.hard public.soft public.hard public.cut
tt_stop
