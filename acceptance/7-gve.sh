#!/usr/bin/env bash
# "vnic run --nic gve --size 64M --json with stock kernel 7.2 under TCG: devmem: digests agree, tx.device == rx.device ==
# bytes, host 0, linear_bytes 0, --audit 0 hits; copy: host >= size. At most 180 s on 2 cores, downloads aside."
. "$(dirname "$0")/lib.sh"
size=${SIZE:-64M}

echo "== the kernel's own devmem TCP, and --audit"
within 180 "$vnic" run --nic gve --size "$size" --audit --json > "$work/gve.json"
holds "$work/gve.json" 'nic == "gve"' "$(devmem_proof 0)" "$(copy_proof 1)" 'runs.0.audit.hits_sender == 0' \
  'runs.0.audit.hits_receiver == 0' 'runs.0.audit.bytes_scanned > 0' 'runs.1.audit.hits_sender > 0' 'runs.1.audit.hits_receiver > 0'

echo "== p2p off, the negative control: payload in host memory"
within 180 "$vnic" run --nic gve --size 16M --mode devmem --p2p off --json > "$work/off.json"
holds "$work/off.json" 'runs.0.sha256_match == true' 'runs.0.tx.host >= runs.0.bytes' 'runs.0.rx.host >= runs.0.bytes' \
  'runs.0.tx.device == 0' 'runs.0.rx.device == 0' 'runs.0.bounced_bytes >= runs.0.bytes'
echo PASS
