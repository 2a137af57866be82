#!/usr/bin/env bash
# Every ClickHouse type that we write, in every shape: our RowBinary and Native read back as they should, and are the server's own bytes.
#
#   tests/e2e/clickhouse_golden.sh [26|18 [SEED]]
set -euo pipefail
# shellcheck source=tests/e2e/clickhouse.sh
. "$(dirname "${BASH_SOURCE[0]}")/clickhouse.sh"

encode=$(dirname "$TAILRACE")/../../tests/e2e/ch_encode
[ -x "$encode" ] || tr_fail "there is no $encode; the build makes it"
tr_ch_start "${1:-26}" ch
tr_step "ClickHouse $(tr_ch ch 'SELECT version()')"
# shellcheck disable=SC2154 # set by tr_ch_start
python3 "$TR_E2E_DIR/clickhouse_golden.py" "$CH_URL_ch" "$encode" "${@:2}"
