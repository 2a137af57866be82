#!/usr/bin/env bash
# Unchanged TOAST values throughout a snapshot: the stream does not carry them. Rows updated before, between and after their chunk, keys moved
# into and out of ranges already read, chains of moves, keys used again: FILL frames appear, and no value becomes NULL or another row's.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

TT_DST=${TT_DST:-}
tt_start "${1:-15}"
tt_sql 'create table t (id int primary key, n int, big text, big2 text)' 'alter table t alter big set storage external, alter big2 set storage external' \
    "insert into t select g, 0, repeat(md5(g::text), 100), case when g % 3 = 0 then repeat(md5(g::text || 'x'), 90) end from generate_series(1, 1500) g"
tt_config 'snapshot: {workers: 1, chunk_rows: 50}'
tt_run snapshot.before_chunk=sleep:100:1+
tr_wait_until 20 "tt_state public.t | grep -q '^snapshot'" || tr_fail 'no snapshot'
tr_wait_until 20 '[ "$(tt_frames READ public.t)" -ge 100 ]' || tr_fail 'no chunk was read'
for i in $(seq 8); do
    # low keys have been read, high ones not yet
    tt_sql "update t set n = n + 1 where id in ($i, $((700 + i)), $((1400 + i)))" \
        "update t set id = id + 5000, n = n + 1 where id = $((10 + i))" \
        "update t set id = -id, n = n + 1 where id = $((1450 + i))" \
        "update t set id = id - 2000 where id = $((1480 + i))" \
        "begin; update t set id = 9000 + $i where id = $((1300 + i)); update t set id = 9100 + $i where id = 9000 + $i; update t set n = -1 where id = 9100 + $i; commit" \
        "begin; update t set id = 20000 where id = $((1200 + i)); update t set id = $((1200 + i)) where id = $((1220 + i)); update t set id = $((1220 + i)) where id = 20000; commit" \
        "begin; update t set id = -9000 - $i where id = $((1320 + i)); delete from t where id = -9000 - $i; commit" \
        "begin; delete from t where id = $((30 + i)); insert into t values ($((30 + i)), 5, repeat('again$i', 500), null); commit" \
        "begin; delete from t where id = $((1340 + i)); update t set id = $((1340 + i)) where id = $((50 + i)); commit" \
        "begin; update t set id = 30000 + $i where id = $((1360 + i)); insert into t values ($((1360 + i)), 6, 'new', repeat('z', 4000)); savepoint a; update t set id = -30000 where id = $((1380 + i)); rollback to a; commit"
    sleep 0.15
done
tt_live public.t
[ "$(tt_frames FILL public.t)" -ge 8 ] || tr_fail "only $(tt_frames FILL public.t) FILL frames"
tt_logged '"op": "fill".*"empty": true' || tr_fail 'no empty FILL, although a moved row was deleted'
tt_equal public.t
tr_step 'streaming'
tt_sql 'update t set id = id + 100000 where id between 100 and 300' 'update t set n = n + 1' 'begin; update t set id = id - 100000 where id > 100000; update t set n = n + 1; commit'
tt_equal public.t
tr_step 'a value of 9 MiB, streamed, left unchanged, and moved to another key'
tt_sql "insert into t values (400000, 0, repeat('0123456789abcdef', 589824), null)" 'update t set n = 1 where id = 400000' 'update t set id = 400001 where id = 400000'
tt_equal public.t
tr_equal 'its length' 9437184 "$(tt_mirror 'select length(big) from t_live where id = 400001')"
tr_equal 'values lost' '0|0' "$(tt_mirror 'select count(*) filter (where big is null), count(*) - (select count(*) from t_live) from t_live')"
tt_stop
