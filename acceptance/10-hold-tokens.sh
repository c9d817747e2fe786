#!/usr/bin/env bash
# "--hold-tokens: a receiver that never gives tokens back: drops counted, the connection stalls, goes on when it does;
# killing it frees everything (page pool and buffer counts back to what they were)."
#
# Invariant: vnic run: A receiver that holds its tokens until the pool is dry goes on when it returns them.
. "$(dirname "$0")/lib.sh"

echo "== tokens held until nothing comes any more"
within 180 "$vnic" run --nic gve --size 64M --mode devmem --hold-tokens 1000000 --json > "$work/hold.json"
holds "$work/hold.json" 'runs.0.hold.stalls >= 1' 'runs.0.hold.tokens >= 8192' 'runs.0.dropped_packets > 0' "$(devmem_proof_loss 0)"

echo "== the negative control: who gives them back neither stalls nor loses"
within 180 "$vnic" run --nic gve --size 64M --mode devmem --hold-tokens 1 --json > "$work/give.json"
holds "$work/give.json" 'runs.0.hold.stalls == 0' 'runs.0.dropped_packets == 0' "$(devmem_proof 0)"

echo "== a receiver that is killed with all its pages"
tools/with-tools go test -count=1 -run '^TestKilledReceiverLeavesNothing$' -v -timeout 5m ./cmd/vnic/internal/run > "$work/test" 2>&1 || { cat "$work/test" >&2; fail "TestKilledReceiverLeavesNothing"; }
grep -q -- '--- PASS: TestKilledReceiverLeavesNothing' "$work/test" || fail "no TestKilledReceiverLeavesNothing"
echo "ok   dropped packets were counted; after the kill no buffer, binding or rule is left, and the next receiver gets the memory"
echo PASS
