#!/usr/bin/env bash
# chain_calls.sh PROGRAM: the chain of bench/chain_bench.c is one loop: its push_batch has no indirect call, and calls no stage. What it does
# call is reached once per batch or when something is wrong.
set -euo pipefail
code=$(objdump -d --no-show-raw-insn "$1" | awk '/^[0-9a-f]+ <orders_chain_push_batch>:$/ { on = 1 } on { print } /^$/ { on = 0 }')
[ "$(wc -l <<<"$code")" -gt 20 ] || { echo 'there is no orders_chain_push_batch'; exit 1; }
calls=$(grep -oE '\b(call|jmp)q? .*' <<<"$code" | grep -vE '^jmpq? +[0-9a-f]+ <orders_chain_push_batch' | sort -u || true)
echo "$calls"
! grep -vE '^(call|jmp)q? +[0-9a-f]+ <(tr_chain_pushed|tr_chain_failed|tr_chain_bind|tr_err_set|memset@plt|orders_chain_push_batch\.cold)(\+0x[0-9a-f]+)?>$' <<<"$calls" | grep .
