#!/usr/bin/env bash
# The benchmarks, on real PostgreSQL on loopback: each figure beside its ceiling, taken in the same run. Writes docs/benchmarks.md.
#
#   bench/run.sh                       everything; TR_BENCH_ROUNDS=3, TR_BENCH_SECONDS=10, TR_BENCH_OUTAGE=180 (seconds), TR_BENCH_TABLES=10000, TR_BENCH_SCALE=1,
#                                      TR_BENCH_HOLD=60 (seconds)
#   bench/run.sh capture               only that part (capture, snapshot, log, mirror, latency, outage, tables, encode, chain, append, path, hold), printed, nothing is written
#
# Not part of CI: nothing here passes or fails.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tests/e2e/clickhouse.sh"
[ -x "$TAILRACE" ] || tr_fail "there is no $TAILRACE; make builds it"

tr_step 'starting the source and the PostgreSQL that holds the mirror'
tr_pg_start 15 src 'max_locks_per_transaction = 512' 'shared_buffers = 512MB' 'max_wal_size = 4GB' 'checkpoint_timeout = 30min'
tr_pg_start 15 dst 'shared_buffers = 256MB' 'max_wal_size = 4GB'
tr_ch_start 26 ch
tr_psql src -c 'create database bench'
tr_psql dst -c 'create database mirror'

status=0
# shellcheck disable=SC2154 # set by tr_pg_start and tr_ch_start
python3 "$TR_SOURCE_ROOT/bench/bench.py" --tailrace "$TAILRACE" --tmp "$TR_TMP" --bin "$TR_PG_CLIENT" \
    --source "${PG_SOCK_DSN_src/dbname=postgres/dbname=bench}" --mirror "${PG_SOCK_DSN_dst/dbname=postgres/dbname=mirror}" \
    --clickhouse "$CH_URL_ch" --log-bench "$(dirname "$TAILRACE")/../../bench/log_bench" --ch-bench "$(dirname "$TAILRACE")/../../bench/ch_bench" --chain-bench "$(dirname "$TAILRACE")/../../bench/chain_bench" --append-bench "$(dirname "$TAILRACE")/../../bench/append_bench" --clickhouse-pid "$PID_ch" --hold "${TR_BENCH_HOLD:-60}" --rounds "${TR_BENCH_ROUNDS:-3}" --seconds "${TR_BENCH_SECONDS:-10}" --outage "${TR_BENCH_OUTAGE:-180}" --scale "${TR_BENCH_SCALE:-1}" --start-up "${TR_BENCH_TABLES:-10000}" \
    --write "$TR_SOURCE_ROOT/docs/benchmarks.md" "$@" || status=$?
exit "$status"
