#!/usr/bin/env bash
# "vnic run --guest inproc --size 4G --json on a machine with 8 GiB; a test holds 0 allocations per packet in the datapath".
. "$(dirname "$0")/lib.sh"
size=${SIZE:-4G}

echo "== $size in process, with the address space of an 8 GiB machine's memory"
within 600 "$vnic" run --guest inproc --size "$size" --json > "$work/run.json"
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'guest == "inproc"'
rss=$(bash -c '"$0" run --guest inproc --size 256M --mode devmem --json >/dev/null & p=$!; m=0
  while kill -0 $p 2>/dev/null; do r=$(sed -n "s/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p" /proc/$p/status 2>/dev/null || true); [ "${r:-0}" -gt $m ] && m=$r; sleep 0.2; done; echo $m' "$vnic")
echo "peak resident memory: $((rss / 1024)) MiB, GPU memory included"
[ "$rss" -lt $((4 << 20)) ] || fail "more than 4 GiB resident"

echo "== allocations per packet: tests whose names say so"
tools/with-tools go test -count=1 -run 'Alloc' ./dma ./virtq ./splitter ./wire ./nic/virtio ./driver | tee "$work/alloc"
grep -q '^ok' "$work/alloc" && ! grep -q 'no tests to run' "$work/alloc" || fail "a room of the datapath has no such test"
echo PASS
