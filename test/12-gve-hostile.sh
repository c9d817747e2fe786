#!/usr/bin/env bash
# "A killed server never hangs QEMU's shutdown": `vnic run --nic gve` is the vfio-user server of its QEMUs. The
# script sends signals to vnic and to the QEMUs. TestServerGoesWhileQEMULives (test/internal/gvelab) tests a server
# that ends while its QEMU runs on.
#
# Invariant: vfiouser: A server that is killed never keeps QEMU from ending.
. "$(dirname "$0")/lib.sh"
. test/signals.sh
ulimit -c 0

echo "== vnic run --nic gve, which is the server, and its QEMUs: signals"
gve=(--nic gve --size 4M --mode devmem)
within 180 "$vnic" run "${gve[@]}" --json > "$work/first.json" # fills the cache, and shows that a run works
holds "$work/first.json" "$(devmem_proof 0)"
for sig in INT TERM KILL; do # 4-signals.sh has the other stages
  begin "${gve[@]}"
  until_guests 2
  end $sig "while guests boot" 4
done
for sig in TERM KILL; do
  begin "${gve[@]}" --pause-at transfer
  until_line '^stage: transfer'
  end $sig "at transfer" 4
done
begin --nic gve --size 256M --mode devmem
until_line '^stage: transfer' && sleep 0.3 # wherever that is
end KILL "in mid-transfer" 4

echo "== a QEMU that aborts or is killed: vnic says so, and all is gone in 5 s"
for sig in ABRT KILL; do
  begin --nic gve --size 256M --mode devmem
  until_line '^stage: transfer'
  kill -$sig "$(qemus | head -n 1)"
  t0=$SECONDS status=0
  wait "$pid" || status=$?
  [ $((SECONDS - t0)) -le 5 ] || fail "took $((SECONDS - t0)) s to notice"
  [ $status = 1 ] || { cat "$work/err" >&2; fail "status $status"; }
  one_message "guest [AB]: QEMU ended early: signal: $([ $sig = ABRT ] && echo aborted || echo killed)" \
    "a QEMU ended by $sig"
  [ -z "$(alive "$pid")" ] || fail "processes left"
  echo "ok   $status after $((SECONDS - t0)) s: $(grep '^vnic: ' "$work/err")"
done
echo PASS
