#!/usr/bin/env bash
# "vnic run --size 64M --loss 1% --seed 1 within 300 s with the same proof (tx.device >= bytes); --family 6; --audit;
# --p2p off": what each prints must hold, and the negative controls must fail what they are there to fail.
#
# Invariant: vnic run: Payload goes from GPU to GPU and not through host memory, and the negative controls fail
# as they must.
. "$(dirname "$0")/lib.sh"
size=${SIZE:-64M}

echo "== loss 1%"
within 300 "$vnic" run --size "$size" --loss 1% --seed 1 --json > "$work/loss.json"
holds "$work/loss.json" "$(devmem_proof_loss 0)" "$(copy_proof 1)" 'runs.0.retransmitted_bytes > 0' 'runs.0.dropped_packets > 0'

echo "== IPv6"
within 180 "$vnic" run --size 16M --family 6 --json > "$work/v6.json"
holds "$work/v6.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'family == 6'

echo "== audit: no piece of payload in guest RAM in mode devmem; the same scan finds mode copy's"
within 180 "$vnic" run --size 32M --audit --json > "$work/audit.json"
holds "$work/audit.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'runs.0.audit.hits_sender == 0' 'runs.0.audit.hits_receiver == 0' \
  'runs.0.audit.bytes_scanned > 0' 'runs.1.audit.hits_sender > 0' 'runs.1.audit.hits_receiver > 0'

echo "== p2p off, the negative control: same seed, same digest, but payload in host memory"
within 180 "$vnic" run --size 32M --seed 7 --mode devmem --json > "$work/on.json"
within 180 "$vnic" run --size 32M --seed 7 --mode devmem --p2p off --json > "$work/off.json"
holds "$work/on.json" "$(devmem_proof 0)"
sum=$(sed -n 's/.*"sha256": "\(.*\)",/\1/p' "$work/on.json")
holds "$work/off.json" 'runs.0.sha256_match == true' "runs.0.sha256 == \"$sum\"" 'runs.0.tx.host >= runs.0.bytes' \
  'runs.0.rx.host >= runs.0.bytes' 'runs.0.tx.device == 0' 'runs.0.rx.device == 0' 'runs.0.bounced_bytes >= runs.0.bytes'
echo PASS
