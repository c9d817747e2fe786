#!/usr/bin/env bash
# "The same with --loss 1% --seed 1 (300 s), --family 6, 4 queues of which 2 are bound."
. "$(dirname "$0")/lib.sh"
size=${SIZE:-64M}

echo "== loss 1%"
within 300 "$vnic" run --nic gve --size "$size" --loss 1% --seed 1 --json > "$work/loss.json"
holds "$work/loss.json" "$(devmem_proof_loss 0)" "$(copy_proof 1)" 'runs.0.retransmitted_bytes > 0' 'runs.0.dropped_packets > 0'

echo "== IPv6"
within 180 "$vnic" run --nic gve --size 16M --family 6 --json > "$work/v6.json"
holds "$work/v6.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'family == 6'

echo "== 4 queues, 2 of them bound"
within 180 "$vnic" run --nic gve --size 16M --bind-queues 2 --json > "$work/queues.json"
holds "$work/queues.json" 'bind_queues == 2' "$(devmem_proof 0)" "$(copy_proof 1)"
echo PASS
