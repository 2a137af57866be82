#!/usr/bin/env bash
# kill -9 at every fault point there is (tests/lint/house.py finds one that is left out): around BEGIN and the fences, before and after a chunk is
# read, before it is noted as done, before a FILL, around an append to the log, its sync and its next segment, between a sink's write and its offset,
# before a commit, during the swap, before a table that changed its name is noted. tailrace goes on where it was, and the mirrors are equal.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, n int, big text)' 'alter table t alter big set storage external' \
    "insert into t select g, 0, repeat(md5(g::text), 80) from generate_series(1, 600) g" \
    'create table h (id int primary key, n int)' "insert into h select g, 0 from generate_series(1, 300) g"
TT_LITE="    hard_delete: ['public.h']" TT_PG="    hard_delete: ['public.h']"
tt_sql 'create table r (id int primary key, n int)' 'insert into r select g, 0 from generate_series(1, 20) g'
tt_config 'snapshot: {workers: 1, chunk_rows: 50}' 'log: {segment_size: 1MiB}'
cat >"$TR_TMP/load.sql" <<'SQL'
\set a random(1, 600)
\set b random(1, 300)
begin;
update t set n = n + 1 where id = :a;
update t set id = id + 1000000 where id = :a and not exists (select from t where id = :a + 1000000);
update t set id = id - 1000000 where id = :b + 1000000 and not exists (select from t where id = :b);
update h set n = n + 1 where id = :b;
delete from h where id = :a;
insert into h values (:a, 1) on conflict do nothing;
end;
SQL
tr_spawn load "$TR_PG_CLIENT/pgbench" -n -c 2 -R 60 -T 600 -f "$TR_TMP/load.sql" "$TT_SHOP"
slow=snapshot.before_chunk=sleep:30:1+

resnapshot() {
    "$TAILRACE" table resnapshot public.t -c "$TT_YAML" >/dev/null || true
    "$TAILRACE" table resnapshot public.h -c "$TT_YAML" >/dev/null || true
}
for point in snapshot.before_begin=kill:2 snapshot.begun=kill:1 snapshot.before_fence=kill:1 snapshot.before_chunk=kill:3 snapshot.after_read=kill:4 \
    snapshot.before_done=kill:3 log.append=kill:15 log.before_sync=kill:20 log.after_sync=kill:20 log.roll=kill:1 \
    sink.after_commit=kill:9 apply.before_offset=kill:6 sink.before_commit=kill:12 snapshot.before_fill=kill:2 apply.before_swap=kill:1 apply.after_swap=kill:2; do
    tr_step "$point"
    tt_run "$slow" "$point"
    # The runs before may have come to the end of the snapshot already: its points are then met in a new one.
    tr_wait_until 5 '! tr_alive tailrace' || resnapshot
    tt_died 40
done
tr_step 'once more, to the end; a new snapshot of both is killed as well'
tt_run
tt_live public.t public.h public.marker
for point in snapshot.after_read=kill:3 apply.before_swap=kill:1 sink.after_commit=kill:20 apply.before_offset=kill:5; do
    tt_kill
    tt_run "$slow" "$point"
    tr_wait_until 20 'tt_status >/dev/null'
    resnapshot
    tr_step "$point"
    tt_died 40
done
tt_run snapshot.before_note=kill:1
tt_live public.t public.h public.r public.marker
tr_step 'snapshot.before_note=kill:1'
tt_sql 'begin; alter table r rename to r2; update r2 set n = 1 where id < 10; alter table r2 rename to r; commit; update r set n = n + 1'
tt_died
tt_run
tt_live public.t public.h public.r public.marker
tr_kill load || true
tr_wait_until 30 '[ "$(tt_frames SNAPSHOT_END public.r)" -ge 2 ]' || tr_fail 'no new snapshot of the table that was renamed'
tt_live public.r
tt_equal --hard public.h public.t public.h public.r
"$TAILRACE" log verify -c "$TT_YAML" >&2
tt_stop
