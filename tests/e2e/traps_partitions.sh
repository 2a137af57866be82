#!/usr/bin/env bash
# A partitioned table through its root. Cross-partition updates are a DELETE and an INSERT; TRUNCATE of a leaf, ATTACH of a filled table and
# DETACH send nothing: they are noticed, and a new snapshot is taken.
# shellcheck disable=SC2016,SC2034,SC2119,SC2154 # commands for tr_wait_until; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

tt_start "${1:-15}"
tt_sql 'create schema parts' 'create table p (id int, region int, v text, primary key (id, region)) partition by list (region)' \
    'create table parts.p1 partition of p for values in (1)' 'create table parts.p2 partition of p for values in (2)' 'create table parts.p3 partition of p for values in (3)' \
    "insert into p select g, 1 + g % 3, 'old' from generate_series(1, 300) g" \
    'create table parts.extra (id int, region int, v text, primary key (id, region))' "insert into parts.extra select g, 4, 'attached' from generate_series(1, 50) g"
TT_MATCH="'public.*'"
tt_config
tt_run
tt_live public.p
tt_equal public.p
tr_step 'cross-partition updates'
tt_sql 'update p set region = 2 where region = 1 and id % 2 = 0' "begin; update p set region = 3 where id = 6; update p set region = 1, v = 'back' where id = 6; commit" \
    "insert into p values (1000, 1, 'new')" 'truncate p' "insert into p select g, 1 + g % 3, 'again' from generate_series(1, 300) g"
tt_equal public.p
ends=$(tt_frames SNAPSHOT_END public.p)
look() { "$TAILRACE" table resnapshot public.marker -c "$TT_YAML" >/dev/null; } # makes it look at the tables at once
again() { # WHAT: a new snapshot was taken by itself
    look
    tr_wait_until 30 "[ \"\$(tt_frames SNAPSHOT_END public.p)\" -gt $ends ]" || tr_fail "$1 went unnoticed"
    ends=$(tt_frames SNAPSHOT_END public.p)
    tt_live public.p public.marker
    tt_equal public.p
}
tr_step 'TRUNCATE of a leaf'
tt_sql 'truncate parts.p2'
again 'TRUNCATE of a leaf'
tr_step 'ATTACH of a filled table'
tt_sql 'alter table p attach partition parts.extra for values in (4)' "update p set v = 'changed' where id = 7 and region = 4"
again 'ATTACH'
tr_step 'DETACH'
tt_sql 'alter table p detach partition parts.p3'
again 'DETACH'
tt_stop
