#!/usr/bin/env bash
# "Admin queue, vfio-user decoder and option parsers are fuzzed; a killed server never hangs QEMU's shutdown and says in the
# log what the guest will see."
#
# Options are a device's to write and its driver's to read; what a guest writes beside commands are registers and PCI
# configuration. FUZZTIME says how long each target hunts here; make fuzz runs them too. A number of runs, as Go's fuzzer on a
# machine with much else to do takes the end of a time for a failure ("context deadline exceeded").
#
# Invariant: vfiouser: A server that is killed never keeps QEMU from ending.
. "$(dirname "$0")/lib.sh"
. acceptance/signals.sh
tool gvelost
ulimit -c 0
fuzztime=${FUZZTIME:-300x}

echo "== fuzz targets: their corpus, then $fuzztime each"
tools/with-tools go test -count=1 -run '^Fuzz' -v ./vfiouser/... ./nic/gve > "$work/corpus" || { cat "$work/corpus" >&2; fail "corpus"; }
for target in vfiouser/FuzzMessage vfiouser/FuzzSession vfiouser/pci/FuzzConfig nic/gve/FuzzDevice nic/gve/FuzzCommands nic/gve/FuzzTransmitRing nic/gve/FuzzReceiveRing; do
  room=${target%/*} name=${target##*/}
  seeds=$(grep -c "^    --- PASS: $name/" "$work/corpus" || true)
  [ "$seeds" -gt 0 ] || fail "$target has no corpus"
  within 120 tools/with-tools go test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -parallel 2 "./$room" > "$work/fuzz" 2> "$work/err" || { cat "$work/fuzz" "$work/err" >&2; fail "$target"; }
  execs=$(sed -n 's/^fuzz: elapsed:.* execs: \([0-9]*\) .*/\1/p' "$work/fuzz" | tail -n 1)
  [ "${execs:-0}" -gt 0 ] || { cat "$work/fuzz" >&2; fail "$target did not run"; }
  echo "ok   $target: $seeds inputs of the corpus, $execs more"
done

echo "== vnic run --nic gve, which is the server, and its QEMUs: signals"
gve=(--nic gve --size 4M --mode devmem)
within 180 "$vnic" run "${gve[@]}" --json > "$work/first.json" # fills the cache, and shows that a run works
holds "$work/first.json" "$(devmem_proof 0)"
for sig in INT TERM KILL; do # 4-signals.sh has the other stages
  begin "${gve[@]}"
  until_alive 3
  end $sig "while guests boot" 3
done
for sig in TERM KILL; do
  begin "${gve[@]}" --pause-at transfer
  until_line '^stage: transfer'
  end $sig "at transfer" 3
done
begin --nic gve --size 256M --mode devmem
until_line '^stage: transfer' && sleep 0.3 # wherever that is
end KILL "in mid-transfer" 3

echo "== a QEMU that aborts or is killed: vnic says so, and all is gone in 5 s"
for sig in ABRT KILL; do
  begin --nic gve --size 256M --mode devmem
  until_line '^stage: transfer'
  kill -$sig "$(alive "$pid" | grep -vx "$pid" | head -n 1)"
  t0=$SECONDS status=0
  wait "$pid" || status=$?
  [ $((SECONDS - t0)) -le 5 ] || fail "took $((SECONDS - t0)) s to notice"
  [ $status = 1 ] || { cat "$work/err" >&2; fail "status $status"; }
  one_message "guest [AB]: QEMU ended early: signal: $([ $sig = ABRT ] && echo aborted || echo killed)" "a QEMU ended by $sig"
  [ -z "$(alive "$pid")" ] || fail "processes left"
  echo "ok   $status after $((SECONDS - t0)) s: $(grep '^vnic: ' "$work/err")"
done

echo "== a server that goes while its QEMU lives on"
setsid "$work/gvelost" -cache "$VNIC_CACHE" > "$work/out" 2> "$work/err" & pid=$!
for ((i = 0; i < 2400; i++)); do [ -n "$(alive $pid)" ] || break; sleep 0.1; done
[ -z "$(alive $pid)" ] || { kill -KILL -- -$pid; cat "$work/out" "$work/err" >&2; fail "over 240 s"; }
status=0; wait $pid || status=$?
cat "$work/out"
[ $status = 0 ] || { cat "$work/err" >&2; fail "gvelost: $status"; }
[ "$(grep -c "^ok .*our log says.*the guest has lost a device" "$work/out")" = 2 ] || fail "the log does not say what the guest will see"
[ "$(grep -Ec "^ok .*(QEMU ended .* after it was told to quit|the guest has powered off|QEMU has aborted)" "$work/out")" = 4 ] || fail "not each of 4 QEMUs has ended"
echo PASS
