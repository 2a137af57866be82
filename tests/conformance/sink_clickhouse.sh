#!/usr/bin/env bash
# sink_clickhouse.sh SUITE 18|26: runs it against a throwaway ClickHouse, and another.
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/clickhouse.sh"
tr_ch_start "$2" suite
tr_ch_start "$2" suite2
# shellcheck disable=SC2154 # set by tr_ch_start
TR_SUITE_URL=$CH_URL_suite TR_SUITE_URL2=$CH_URL_suite2 "$1"
