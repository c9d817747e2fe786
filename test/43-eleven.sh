#!/usr/bin/env bash
# "Eleven mistakes of a devmem program (queue 0, queue out of range, pool too big, wrong binding id, flow not
# steered, tokens never returned, one side crashes, hangs, never connects, two programs on one device, freed buffer
# in flight): each ends by itself within its limit, and the first line names the mistake, on both models." A program
# without a mistake succeeds before and after them, on the same devices. test/internal/mistakes tests the same in
# one process.
#
# Invariant: devmem: On both models each of the mistakes in docs/mistakes.md ends by itself, and its
# first line is that of the page.
. "$(dirname "$0")/lib.sh"
"$root/tools/with-tools" env CGO_ENABLED=0 go build -ldflags="-s -w" -o "$work/mistakes" \
  ./test/internal/mistakes/guest
cp docs/mistakes.md "$work/"
cd "$work"
read -r a b < <(./mistakes count)
for nic in ${*:-virtio gve}; do
  echo "== $nic"
  within 600 "$vnic" boot --nic $nic --guests 2 --copy mistakes.md -- ./mistakes mistakes.md > out \
    2> err || { cat out err >&2; fail "$nic"; }
  cat out
  [ "$(grep -c 'ok   a: ' out)" = "$a" ] && [ "$(grep -c 'ok   b: ' out)" = "$b" ] || fail "$nic: not all were made"
done
echo PASS
