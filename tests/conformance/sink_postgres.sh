#!/usr/bin/env bash
# sink_postgres.sh SUITE: runs it against a throwaway PostgreSQL.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
tr_pg_start 15 suite 'fsync = off'
# shellcheck disable=SC2154 # set by tr_pg_start
TR_SUITE_DSN=$PG_DSN_suite "$1"
