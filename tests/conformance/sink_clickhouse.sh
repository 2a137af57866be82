#!/usr/bin/env bash
# sink_clickhouse.sh SUITE 18|26: runs it against a throwaway ClickHouse.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/clickhouse.sh"
tr_ch_start "$2" suite
# shellcheck disable=SC2154 # set by tr_ch_start
TR_SUITE_URL=$CH_URL_suite "$1"
