#!/usr/bin/env bash
# "vnic run --guest inproc --size 4G --json on a machine with 8 GiB; a test holds 0 allocations per packet in the datapath".
. "$(dirname "$0")/lib.sh"
size=${SIZE:-4G}

echo "== $size in process, in far less memory than 8 GiB"
begin=$SECONDS
"$vnic" run --guest inproc --size "$size" --json > "$work/run.json" & pid=$!
peak=0
while kill -0 $pid 2>/dev/null; do # VmHWM is the most so far
  r=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null || true)
  [ "${r:-0}" -le $peak ] || peak=$r
  [ $((SECONDS - begin)) -lt 600 ] || { kill $pid; fail "over 600 s"; }
  sleep 0.1
done
wait $pid || fail "the run"
echo "ok   $((SECONDS - begin)) s, peak resident memory $((peak / 1024)) MiB, both GPUs included"
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'guest == "inproc"'
[ $peak -gt $((256 << 10)) ] || fail "peak memory was not seen"
[ $peak -lt $((4 << 20)) ] || fail "more than 4 GiB resident"

echo "== allocations per packet: tests whose names say so"
tools/with-tools go test -count=1 -run 'Alloc' ./dma ./virtq ./splitter ./wire ./nic/virtio ./driver | tee "$work/alloc"
grep -q '^ok' "$work/alloc" && ! grep -q 'no tests to run' "$work/alloc" || fail "a room of the datapath has no such test"
echo PASS
