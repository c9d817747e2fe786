#!/usr/bin/env bash
# "20 runs in a row of `vnic run --guest inproc` with loss and of the QEMU run: no flake, no leak."
# REPEAT says how often (20 unless told; `make test` takes fewer), QEMU_REPEAT how often with QEMU.
. "$(dirname "$0")/lib.sh"
n=${REPEAT:-20} q=${QEMU_REPEAT:-${REPEAT:-20}}
state() { find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name '*vnic*' 2>/dev/null | sort; pgrep -xc qemu-system-x86 || true; }
state > "$work/before"
for ((i = 1; i <= n; i++)); do
  "$vnic" run --guest inproc --size 64M --loss 1% --reorder 1% --seed "$i" --json > "$work/run.json" || fail "in-process run $i (--seed $i)"
  holds "$work/run.json" "$(devmem_proof_loss 0)" "$(copy_proof 1)" 'runs.0.retransmitted_bytes > 0' > "$work/checks" || { cat "$work/checks"; fail "in-process run $i"; }
done
echo "ok   $n in-process runs with loss and reordering"
for ((i = 1; i <= q; i++)); do
  within 120 "$vnic" run --size 16M --seed "$i" --json > "$work/run.json" || fail "QEMU run $i (--seed $i)"
  holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" > "$work/checks" || { cat "$work/checks"; fail "QEMU run $i"; }
done
echo "ok   $q QEMU runs"
state > "$work/after"
diff "$work/before" "$work/after" || fail "something is left"
echo PASS
