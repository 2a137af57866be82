#!/usr/bin/env bash
# What makes two rows one, at the source and in a mirror: every kind of key and replica identity. Each either ends right (the mirrors equal the source after
# inserts, updates, key updates and deletes, beside a snapshot and after it) or is refused by name, with the cure, by `check` and at the start.
# shellcheck disable=SC2016,SC2034,SC2086,SC2119,SC2154 # commands for tr_wait_until; lists of tables; variables for and from tailrace.sh
set -euo pipefail
# shellcheck source=tests/e2e/tailrace.sh
. "$(dirname "${BASH_SOURCE[0]}")/tailrace.sh"

version=${1:-15}
right=
refused=()
tt_start "$version" 'fsync = off'

# right TABLE DDL CHANGES: a table that a mirror can follow. The changes can be made twice.
right() {
    tt_sql <<<"$2"
    printf '%s;\n' "$3" >>"$TR_TMP/changes.sql"
    right+=" public.$1"
}

# values TABLE KEY_TYPE FROM TO OTHER: FROM and TO are one key to PostgreSQL but not one text, or two keys. A row goes from one to the other and back, is deleted as
# one and inserted as the other, with a value that is stored out of line and not sent again.
values() {
    local t=$1 from="($3)::$2" to="($4)::$2" other="($5)::$2"
    right "$t" "create table $t (k $2 primary key, n int, big text); alter table $t alter big set storage external;
        insert into $t select k, 1, repeat('read', 1000) from (values ($from), ($other)) v(k) on conflict do nothing" "
        update $t set k = $to, n = 2 where n = 1 and k = $from; update $t set n = n + 1; update $t set k = $from where k = $to; update $t set k = $to where k = $from;
        delete from $t where k = $from or k = $to; insert into $t values ($from, 3, repeat('new', 2000)); update $t set k = $to where k = $from;
        begin; delete from $t where k = $from or k = $to; insert into $t values ($to, 4, repeat('x', 3000)); update $t set k = $from where k = $to; commit; update $t set n = n + 1 where k = $other;
        begin; update $t set k = $to, n = 1 where k = $from; commit"
}

at() { printf '%s' "${2//@/$1}"; } # TABLE STATEMENTS, in which @ stands for it

# refuse TABLE REGEX DDL: what `check` says of it, and `status`.
refuse() {
    tt_sql <<<"$3"
    refused+=("$1" "$2")
}

# illegal WHAT SQLSTATE SQL: PostgreSQL itself refuses it, so that nothing of ours needs to.
illegal() {
    local said
    said=$(tt_sql '\set VERBOSITY sqlstate' "$3" 2>&1) && tr_fail "PostgreSQL takes it: $1"
    [[ $said == *"$2"* ]] || tr_fail "$1: $said"
}

tr_step 'keys whose values are equal but not the same text'
tt_sql "create extension citext" "create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)" "create collation de (provider = icu, locale = 'de')" \
    "create type mood as enum ('sad', 'happy')" 'create domain dnum as numeric' 'create domain dci as citext' 'create type pair as (a numeric, b text)' 'create type cipair as (a citext, b int)'
values k_numeric numeric 1.0 1.00 "'NaN'"
values k_numeric_scale 'numeric(10,3)' 1.5 2.5 -0.5
values k_numeric_zero numeric 0 0.000 "'Infinity'"
values k_domain dnum 1.0 1.000 -2
values k_float8 float8 "'-0'" "'0'" "'NaN'"
values k_float4 float4 "'-0'" "'0'" "'-Infinity'"
values k_char 'char(5)' "'a'" "'b'" "'ab'"
values k_bpchar bpchar "'a'::bpchar" "'a  '::bpchar" "'b'"
values k_varchar varchar "'a'" "'a '" "'A'"
values k_de "text collate de" "'ä'" "'a'" "'z'"
values k_jsonb jsonb "'1.0'" "'1.00'" "'{\"a\": 1}'"
values k_interval interval "'24 hours'" "'1 day'" "'1 month'"
values k_timetz timetz "'12:00+00'" "'13:00+01'" "'24:00+00'"
values k_numerics 'numeric[]' "'{1.0,NULL}'" "'{1.00,NULL}'" "'{}'"
values k_floats 'float8[]' "'{-0}'" "'{0}'" "'{NaN}'"
values k_range numrange "'[1.0,2]'" "'[1.00,2.0]'" "'empty'"
values k_multirange nummultirange "'{[1.0,2]}'" "'{[1.00,2.0]}'" "'{}'"
values k_pair pair "'(1.0,x)'" "'(1.00,x)'" "'(,)'"
values k_cipair cipair "'(Ab,1)'" "'(aB,1)'" "'(,1)'"
values k_citexts 'citext[]' "'{Ab}'" "'{aB}'" "'{c}'"
values k_enum mood "'sad'" "'happy'" "'sad'::mood"
values k_bytea bytea "'\\x00'" "'\\x0000'" "'\\x'"
values k_inet inet "'10.0.0.1/8'" "'10.0.0.1'" "'::1'"
values k_bool bool true false true
for t in ci citext dci; do
    refuse "r_$t" 'key column k compares by more than its bytes' "create table r_$t (k $([ $t = ci ] && echo 'text collate ci' || echo $t) primary key, n int)"
done

tr_step 'primary keys, unique indexes, replica identities'
rows() { printf "insert into %s select g, g, 'v' || g from generate_series(1, 5) g" "$1"; }
# writes TABLE [CONDITION]: updates, key updates of each column and deletes, that end where they began
writes() {
    at "$1" "update @ set v = v || '.'; update @ set id = id + 100 where id = 2; update @ set u = u + 100 where id = 3; update @ set id = id - 100, u = -u where id = 102;
        begin; update @ set id = 1000 where id = 4; update @ set id = 4 where id = 5; update @ set id = 5 where id = 1000; commit; delete from @ where id = 1; insert into @ values (1, 1, 'new')"
}
three='(id int not null, u int not null, v text)'
right i_default "create table i_default (id int primary key, u int not null, v text); $(rows i_default)" "$(writes i_default)"
right i_full "create table i_full (id int primary key, u int not null, v text); alter table i_full replica identity full; $(rows i_full)" "$(writes i_full)"
right i_index "create table i_index $three; create unique index i_index_u on i_index (id desc) include (v); alter table i_index replica identity using index i_index_u; $(rows i_index)" "$(writes i_index)"
right i_other "create table i_other (id int primary key, u int not null, v text); create unique index i_other_u on i_other (u, id); alter table i_other replica identity using index i_other_u; $(rows i_other)" "$(writes i_other)"
right i_pattern "create table i_pattern (id text not null, u int not null, v text); create unique index i_pattern_u on i_pattern (id text_pattern_ops); alter table i_pattern replica identity using index i_pattern_u;
    insert into i_pattern values ('a', 1), ('B', 2)" "update i_pattern set id = id || 'x' where id = 'a'; delete from i_pattern where id = 'B'; insert into i_pattern values ('B', 3, 'y'), (u&'\\00e9', 4, 'z'); delete from i_pattern where u in (1, 4); insert into i_pattern values ('a', 1)"
right i_coarse "create table i_coarse (id text not null, u int not null, v text); create unique index i_coarse_u on i_coarse (id collate ci); alter table i_coarse replica identity using index i_coarse_u;
    insert into i_coarse values ('a', 1), ('B', 2)" "update i_coarse set id = 'A' where id = 'a'; update i_coarse set id = 'a' where id = 'A'; delete from i_coarse where id = 'B'; insert into i_coarse values ('b', 3); update i_coarse set id = 'B' where id = 'b'"
right i_always "create table i_always (id int generated always as identity primary key, u int not null, v text); insert into i_always (u) select g from generate_series(1, 5) g" "insert into i_always (u) values (7); update i_always set v = 'y' where u = 2; delete from i_always where u = 3"
right i_big "create table i_big (id text primary key, n int, v text); alter table i_big alter id set storage external; insert into i_big select (select string_agg(md5(g || '/' || i), '') from generate_series(1, 70) i), g, repeat('v', 4000) from generate_series(1, 4) g" \
    "update i_big set n = n + 1; update i_big set id = reverse(id) where n % 2 = 0; delete from i_big where n = (select min(n) from i_big); insert into i_big select (select string_agg(md5(n || '/' || i), '') from generate_series(1, 70) i), n, 'x' from (select count(*) + 100 + max(n) from i_big) x(n)"
none='it has no primary key'
unpublished='is not published, since UPDATE and DELETE of it would fail at the source .*REPLICA IDENTITY FULL'
refuse r_none "$unpublished" "create table r_none $three"
refuse r_unique "$unpublished" "create table r_unique (id int not null unique, u int)"
refuse r_deferrable 'its primary key is deferrable' "create table r_deferrable (id int primary key deferrable initially deferred, u int)"
refuse r_deferrable_full 'its primary key is deferrable' "create table r_deferrable_full (id int primary key deferrable, u int); alter table r_deferrable_full replica identity full"
refuse r_nothing 'REPLICA IDENTITY NOTHING' "create table r_nothing (id int primary key, u int); alter table r_nothing replica identity nothing"
refuse r_full "$none" "create table r_full $three; alter table r_full replica identity full"
refuse r_dropped "$none|its replica identity index is missing" "create table r_dropped $three; create unique index r_dropped_u on r_dropped (id); alter table r_dropped replica identity using index r_dropped_u; drop index r_dropped_u"
tt_sql "create table x $three" 'alter table x add n int'
illegal 'an identity of an index with a nullable part' 42809 'create unique index x1 on x (id, n); alter table x replica identity using index x1'
illegal 'of a partial index' 0A000 'create unique index x2 on x (id) where id > 0; alter table x replica identity using index x2'
illegal 'of an expression' 0A000 'create unique index x3 on x ((id + 1)); alter table x replica identity using index x3'
illegal 'of a deferrable constraint' 0A000 'alter table x add constraint x4 unique (id) deferrable; alter table x replica identity using index x4'
illegal 'of an index that is not unique' 42809 'create index x5 on x (id); alter table x replica identity using index x5'
illegal 'a part of a primary key that may be null' 42P16 'alter table i_default alter id drop not null'
illegal 'a key of a type without an order' 42704 'create table y (k json primary key)'
tt_sql 'drop table x'

tr_step 'generated columns'
right g_plain "create table g_plain (id int primary key, u int not null, v text, g int generated always as (u * 2) stored); insert into g_plain values (1, 1, 'a'), (2, 2, 'b')" "update g_plain set u = u + 1; delete from g_plain where id = 2; insert into g_plain values (2, 5, 'n')"
[ "$version" -lt 18 ] || right g_virtual "create table g_virtual (id int primary key, u int not null, v text, g int generated always as (u * 2) virtual); insert into g_virtual values (1, 1, 'a'), (2, 2, 'b')" "update g_virtual set u = u + 1; delete from g_virtual where id = 2; insert into g_virtual values (2, 5, 'n')"
generated="create table @ (id int primary key, u int not null, v text, g int generated always as (u * 2) stored); alter table @ replica identity full; insert into @ values (1, 1, 'a'), (2, 2, 'b')"
# PostgreSQL 18 refuses UPDATE of a published table whose identity has a generated column that is not published
if [ "$version" -lt 18 ]; then
    right g_full "$(at g_full "$generated")" "update g_full set u = u + 1; delete from g_full where id = 2; insert into g_full values (2, 5, 'n')"
else
    refuse r_gfull "is not published, since UPDATE and DELETE of it would fail at the source .*REPLICA IDENTITY DEFAULT" "$(at r_gfull "$generated")"
    refuse r_gvirtual "is not published, since UPDATE and DELETE of it would fail at the source .*REPLICA IDENTITY DEFAULT" "$(at r_gvirtual "${generated/stored/virtual}")"
fi
refuse r_gkey 'key column g is generated and not published' "create table r_gkey (a int, b int not null, g int generated always as (b * 2) stored, primary key (a, g)); insert into r_gkey values (1, 1), (1, 2)"
refuse r_gonly 'key column g is generated and not published' "create table r_gonly (b int, g int generated always as (b * 2) stored primary key); insert into r_gonly values (1), (2)"

tr_step 'partitions, each with an identity and an order of columns of its own'
part() { # TABLE: a partitioned table with two leaves; $2 is done to them
    at "$1" "create table @ (id int, u int not null, v text, r int, primary key (id, r)) partition by list (r); alter table @ alter v set storage external;
        create table @_1 partition of @ for values in (1); create table @_2 (r int not null, x int, v text, u int not null, id int not null); alter table @_2 drop x; alter table @ attach partition @_2 for values in (2);
        $2; insert into @ select g, g, repeat('v', 3000), 1 + g % 2 from generate_series(1, 8) g"
}
moves() { # of keys, with and without a value stored out of line, within a leaf and between leaves
    at "$1" "update @ set u = u + 1; update @ set id = id + 100 where id in (1, 2); update @ set id = id - 100, u = 0 where id in (101, 102); update @ set r = 3 - r where id = 3; update @ set r = 3 - r, v = v || 'x' where id = 3; delete from @ where id in (5, 6);
        insert into @ values (5, 5, repeat('n', 3000), 2), (6, 6, 'short', 1); truncate @_1; insert into @ select g, g, repeat('w', 3000), 1 from generate_series(20, 24, 2) g; delete from @ where r = 1 and id = 22; update @ set id = 22, u = u where id = 24 and r = 1"
}
again() { moves "$1" | sed "s/truncate $1_1;/delete from $1 where r = 1;/"; } # TRUNCATE of a leaf is for traps_partitions.sh
right p_plain "$(part p_plain '')" "$(again p_plain)"
right p_leaf_full "$(part p_leaf_full 'alter table p_leaf_full_1 replica identity full')" "$(again p_leaf_full)"
right p_root_full "$(part p_root_full 'alter table p_root_full replica identity full')" "$(again p_root_full)"
right p_all_full "$(part p_all_full 'alter table p_all_full replica identity full; alter table p_all_full_1 replica identity full; alter table p_all_full_2 replica identity full')" "$(again p_all_full)"
right p_index "create table p_index (id int not null, u int not null, v text, r int not null) partition by list (r); alter table p_index alter v set storage external; create unique index p_index_u on p_index (id, r); alter table p_index replica identity using index p_index_u;
    create table p_index_1 partition of p_index for values in (1); create table p_index_2 partition of p_index for values in (2); alter table p_index_1 replica identity full; alter table p_index_2 replica identity using index p_index_2_id_r_idx;
    insert into p_index select g, g, repeat('v', 3000), 1 + g % 2 from generate_series(1, 8) g" "$(again p_index)"
right p_sub "create table p_sub (id int, u int not null, v text, r int, primary key (id, r, u)) partition by list (r); create table p_sub_1 partition of p_sub for values in (1, 2) partition by range (u); create table p_sub_11 partition of p_sub_1 for values from (-1000) to (5);
    create table p_sub_12 partition of p_sub_1 for values from (5) to (1000); insert into p_sub select g, g, repeat('v', 3000), 1 + g % 2 from generate_series(1, 8) g" "update p_sub set u = 9 - u; update p_sub set id = -id; update p_sub set r = 3 - r; delete from p_sub where u = 3; insert into p_sub values (30, 3, 'n', 1); update p_sub set id = abs(id)"
refuse p_leaf_index 'its partition public.p_leaf_index_1 has another replica identity' "$(part p_leaf_index 'create unique index p_leaf_index_u on p_leaf_index_1 (u); alter table p_leaf_index_1 replica identity using index p_leaf_index_u')"
refuse p_leaf_nothing "$unpublished" "$(part p_leaf_nothing 'alter table p_leaf_nothing_2 replica identity nothing')"

tr_step 'inheritance, and what is no table with a log of its own'
right h_parent "create table h_parent (id int primary key, u int not null, v text); create table h_bare () inherits (h_parent); create table h_child (extra int, primary key (id)) inherits (h_parent);
    insert into h_parent values (1, 1, 'p'); insert into h_child values (1, 1, 'c'), (2, 2, 'c'); insert into h_bare values (1, 7, 'b'), (9, 9, 'b')" "update h_parent set v = v || '.'; delete from only h_parent where id = 1; insert into h_parent values (1, 1, 'p'); update h_bare set u = 8"
right+=' public.h_child'
refuse h_bare "$unpublished" ''
refuse n_unlogged 'is unlogged' 'create unlogged table n_unlogged (id int primary key)'
tt_sql 'create view n_view as select 1 as id' 'create materialized view n_mat as select 1 as id' 'create extension postgres_fdw' 'create server s foreign data wrapper postgres_fdw' "create foreign table n_foreign (id int) server s"
tt_open temporary
tt_do temporary 'create temp table n_temp (id int primary key)'

TT_MATCH="'public.*', 'public.n_view', 'public.n_mat', 'public.n_foreign', 'public.p_plain_1'"
tt_config 'snapshot: {tables: 20, chunk_rows: 50}'
check() { { "$TAILRACE" check -c "$TT_YAML" 2>&1 || true; } | sed -z 's/\n *cure:/ cure:/g' >"$TR_TMP/check.out"; } # a finding a line
check_says() { # REGEX
    grep -Eq "$1" "$TR_TMP/check.out" || {
        cat "$TR_TMP/check.out" >&2
        tr_fail "check does not say '$1'"
    }
}
tr_step 'check'
check
for ((i = 0; i < ${#refused[@]}; i += 2)); do
    check_says "public\.${refused[i]}\b.*(${refused[i + 1]})"
done
check_says 'n_view is a view'
check_says 'n_mat is a materialized view'
check_says 'n_foreign is a foreign table'
check_says 'p_plain_1 is a partition of public.p_plain'
tr_step 'start, with changes beside the snapshots'
tt_run snapshot.before_chunk=sleep:100:1+
tr_wait_until 30 "tt_status | grep -q '\"snapshot\"'" || tr_fail 'no snapshot'
tt_sql <"$TR_TMP/changes.sql" || tr_fail 'being captured makes a statement fail at the source'
tt_live $right
tt_equal $right
tr_step 'changes after the snapshots'
tt_sql <"$TR_TMP/changes.sql" || tr_fail 'being captured makes a statement fail at the source'
tt_equal $right
tr_step 'what is refused says so, has no mirror, and can be written at the source'
for ((i = 0; i < ${#refused[@]}; i += 2)); do
    t=${refused[i]}
    case $t in
    n_*) [ "$(tt_state "public.$t" | head -n 1)" = 'none|' ] || tr_fail "$t is captured" ;;
    *) tt_waits "public.$t" "^changelog_only\|..." ;;
    esac
    [ -z "$(tt_lite "select name from sqlite_master where name = '$t'")$(tt_mirror "select relname from pg_class where relname = '$t'")" ] || tr_fail "$t has a mirror"
    [ "$t" = n_unlogged ] || tt_sql "update $t set $(tt_sql "select string_agg(format('%1\$I = %1\$I', attname), ', ') from pg_attribute where attrelid = '$t'::regclass and attnum > 0 and attgenerated = '' and attidentity = ''")" || tr_fail "$t cannot be updated"
done
tr_step 'an identity that lacked a part of the key while nobody looked'
tt_kill
tt_sql 'create unique index p_sub_u on p_sub_11 (u)' 'alter table p_sub_11 replica identity using index p_sub_u' 'update p_sub set id = id + 5000 where u = 1' 'update p_sub set u = -u where u = 2' 'delete from p_sub where u = 4' 'alter table p_sub_11 replica identity default'
tt_run
tr_wait_until 40 '[ "$(tt_frames SNAPSHOT_END public.p_sub)" = 2 ]' || tr_fail 'no new snapshot'
tt_live $right
tt_equal $right
tt_sql 'delete from p_sub' "insert into p_sub select g, g, repeat('v', 3000), 1 + g % 2 from generate_series(1, 8) g"
tr_step 'a table that others inherit from comes in later'
tt_sql 'create table h_late (id int primary key, v text)' 'create table h_heir () inherits (h_late)' "insert into h_heir values (1, 'h'), (1, 'i')" "insert into h_late values (1, 'p')"
tr_wait_until 30 'tt_sql "update h_heir set v = v" && tt_is_live public.h_late' || tr_fail 'being captured makes a statement fail at the source'
tt_sql 'update h_heir set v = v' || tr_fail 'being captured makes a statement fail at the source'
right+=' public.h_late'
tr_step 'identities that change while it runs'
tt_sql 'alter table i_default replica identity full' 'alter table i_full replica identity default' 'alter table p_plain_1 replica identity full' 'alter table p_all_full_2 replica identity default'
tt_sql <"$TR_TMP/changes.sql"
tt_equal $right
tt_sql 'create unique index p_plain_u on p_plain_2 (u)' 'alter table p_plain_2 replica identity using index p_plain_u' 'update p_plain set u = u + 1000' 'update p_plain set id = id + 1000 where r = 2'
tt_waits public.p_plain 'paused.*its partition public.p_plain_2 has another replica identity'
tt_sql 'alter table p_plain_2 replica identity full' 'update p_plain set u = u + 1'
tt_sql 'delete from p_plain where r = 2 and id = (select min(id) from p_plain where r = 2)'
"$TAILRACE" table resnapshot public.p_plain -c "$TT_YAML" >/dev/null
tr_wait_until 40 '[ "$(tt_frames SNAPSHOT_END public.p_plain)" = 2 ]' || tr_fail 'no new snapshot'
tt_live public.p_plain
tt_equal $right
tt_stop
tr_step 'a publication made by hand, with column lists, row filters and generated columns; a user whose rows are hidden'
tr_psql src -c 'create database mirror2'
tt_sql <<<"create schema hand; create role cap login replication; grant usage on schema hand, public to cap; alter default privileges in schema hand grant select on tables to cap; grant select on marker to cap;
    create table hand.columns (id int primary key, hidden int, v text, hidden_too text); insert into hand.columns select g, g, 'v', 'x' from generate_series(1, 5) g;
    create table hand.filtered (id int primary key, v text); insert into hand.filtered select g, 'v' from generate_series(-3, 3) g;
    create table hand.filtered_full (id int primary key, u int, v text); alter table hand.filtered_full alter v set storage external, replica identity full; insert into hand.filtered_full select g, g, repeat('v', 3000) from generate_series(-3, 3) g;
    create table hand.part_of_key (a int, b int, v text, primary key (a, b)); insert into hand.part_of_key values (1, 1), (1, 2);
    create table hand.secret (id int primary key, owner text); insert into hand.secret values (1, 'cap'), (2, 'somebody'); alter table hand.secret enable row level security; create policy own on hand.secret using (owner = current_user);
    create table hand.generated (a int, b int not null, g int generated always as (b * 2) stored, v text, primary key (a, g)); insert into hand.generated (a, b, v) select 1, g, 'v' from generate_series(1, 5) g;
    create publication byhand for table marker, hand.columns (id, v), hand.filtered where (id > 0), hand.filtered_full where (u > 0), hand.part_of_key (a), hand.secret$([ "$version" -lt 18 ] || echo ', hand.generated') with (publish_via_partition_root$([ "$version" -lt 18 ] || echo ', publish_generated_columns = stored'))"
mv "$TR_TMP/state" "$TR_TMP/state-before"
TT_MIRROR=${TT_MIRROR/dbname=mirror/dbname=mirror2}
TT_LITE_FILE=$TR_TMP/hand.db
TT_MATCH="'hand.*', 'public.marker'"
TT_SOURCE=$'  publication: byhand\n  slot: byhand\n  create: false\n  exclude: [hand.generated]'
[ "$version" -lt 18 ] || TT_SOURCE=${TT_SOURCE%$'\n'*}
shop=$TT_SHOP
TT_SHOP=${shop/user=postgres/user=cap}
tt_config 'snapshot: {chunk_rows: 50}'
TT_SHOP=$shop
check
check_says 'hand.part_of_key: key column b is not in the publication.s column list'
check_says '^error.*row security hides rows of hand.secret from user cap.*ALTER ROLE "cap" BYPASSRLS'
tt_run
hand='hand.columns hand.filtered hand.filtered_full'
[ "$version" -lt 18 ] || hand+=' hand.generated'
tt_live $hand public.marker
rows_equal() { # TABLE COLUMNS CONDITION
    local of
    of=$(tt_sql "select $2 from hand.$1 where $3 order by 1, 2")
    tr_equal "$1 in SQLite" "$of" "$(tt_lite "select $2 from hand__$1_live order by 1, 2")"
    tr_equal "$1 in PostgreSQL" "$of" "$(tt_mirror "select $2 from hand.$1_live order by 1, 2")"
}
hand_equal() {
    tt_mark
    rows_equal columns 'id, v' true
    rows_equal filtered 'id, v' 'id > 0'
    rows_equal filtered_full 'id, u, v' 'u > 0'
    [ "$version" -lt 18 ] || rows_equal generated 'a, g, b, v' true
}
hand_equal
tt_sql <<<"update hand.columns set hidden = 7, v = 'w' where id = 2; update hand.columns set hidden_too = 'y'; update hand.columns set id = 20 where id = 3; delete from hand.columns where id = 1;
    update hand.filtered set id = id + 10 where id > 0; update hand.filtered set id = -id; update hand.filtered set v = 'w'; update hand.filtered set id = 20 where id = -11; update hand.filtered set id = -20 where id = 2; delete from hand.filtered where id = 3;
    update hand.filtered_full set u = -u; update hand.filtered_full set id = id + 10; update hand.filtered_full set v = v || u where u > 1; delete from hand.filtered_full where u = 1; update hand.filtered_full set u = 5 where u = -3;"
[ "$version" -lt 18 ] || tt_sql 'update hand.generated set b = b + 10' 'delete from hand.generated where g = 22' "update hand.generated set a = 2, v = 'w' where g = 24" 'update hand.generated set b = 100 - b'
hand_equal
tt_waits hand.part_of_key '^changelog_only.key column b is not in the publication'
tt_waits hand.secret 'row-level security'
tr_equal 'a mirror of rows that are hidden' '' "$(tt_lite "select name from sqlite_master where name = 'hand__secret'")"
[ "$(tt_frames SNAPSHOT_BEGIN hand.secret)" -le 6 ] || tr_fail 'a snapshot that is refused begins again and again'
tr_step 'and the cure'
tt_psql "${shop/dbname=shop/dbname=postgres}" 'alter role cap bypassrls'
"$TAILRACE" table resnapshot hand.secret -c "$TT_YAML" >/dev/null
tt_live hand.secret
tr_equal 'rows' 2 "$(tt_lite 'select count(*) from hand__secret_live')"
tt_stop
