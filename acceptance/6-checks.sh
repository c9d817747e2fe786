#!/usr/bin/env bash
# "go vet, the linter with depguard for the house's floors, -race, fuzz targets for the vhost-user decoder, the descriptor
# walker, the packet parser and the control codec run in make test".
#
# make test runs all of these itself; here is shown that they would find something. FULL=1 also runs them.
. "$(dirname "$0")/lib.sh"

echo "== make test runs vet, lint, race and fuzz"
plan=$(make -n test)
for part in 'go vet ./\.\.\.' 'golangci-lint run ./\.\.\.' 'go test -race' 'tools/fuzz' 'acceptance/run'; do
  grep -q "$part" <<< "$plan" || fail "make test does not run $part"
  echo "ok   $part"
done

echo "== the floors of the house: what may not be imported is refused"
# ROOM PACKAGE IMPORT: upward, sideways, and unsafe where it has no business. None makes a cycle.
floors='splitter splitter vnic.dev/vnic/virtq
virtq virtq vnic.dev/vnic/gpumem
gpumem gpumem vnic.dev/vnic/vhostuser
control control vnic.dev/vnic/virtq
vhostuser vhostuser vnic.dev/vnic/guest-images/agent
wire wire vnic.dev/vnic/gpumem
nic nic vnic.dev/vnic/vhostuser
nic/virtio virtio vnic.dev/vnic/guest-images/agent
driver driver vnic.dev/vnic/wire
devmem devmem gvisor.dev/gvisor/pkg/tcpip
qemu qemu vnic.dev/vnic/nic/virtio
control control unsafe
stack stack unsafe'
refused "$floors"

echo "== fuzz targets, with a corpus that every test run plays"
for target in vhostuser/FuzzMessage vhostuser/FuzzSession virtq/FuzzDescriptorWalk splitter/FuzzParse control/FuzzFrame; do
  room=${target%/*} name=${target#*/}
  grep -q "^func $name(" "$room"/*_test.go || fail "no $name in $room"
  tools/with-tools go test -count=1 -run "^$name\$" -v "./$room" > "$work/fuzz" || { cat "$work/fuzz" >&2; fail "$target"; }
  seeds=$(grep -c "^    --- PASS: $name/" "$work/fuzz" || true)
  [ "$seeds" -gt 0 ] || fail "$target has no corpus"
  echo "ok   $target: $seeds inputs"
done
if [ "${FULL:-0}" = 1 ]; then make lint race fuzz; fi
echo PASS
