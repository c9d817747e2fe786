#!/usr/bin/env bash
# "vnic block" reads blocks of remote devices into a guest's GPU and writes them from there, and every byte is
# right.
# - Linux's own NVMe/TCP target in a stock guest: blocks of 4K, 128K and 1M, 1, 8 and 64 at a time, in order and at
#   random, on virtio and gve. Data read and read back is right, and written data is on the target's disk; no byte
#   of the data read is in host memory, and of blocks of 128K the CPU looks at less than 0.1 %.
# - Without peer-to-peer all payload is bounced; in mode copy it is in host memory; a link may lose segments.
# - The same target as a user's own, in a guest of vnic boot behind --forward, with two namespaces.
# - nbdkit and qemu-nbd on this machine, with a guest in the process and in QEMU.
# - Servers that are not there, unknown names, sizes that do not fit: for each, the error names the cause. nbdkit
#   and qemu-nbd are this machine's, or Debian's, unpacked (tools/nbd).
# It takes five minutes.
. "$(dirname "$0")/lib.sh"
. test/uses.sh
tools/nbd # fetches

# serve PROGRAM ARGUMENT...: starts nbdkit or qemu-nbd as $url, as process $server.
serve() {
  local p on=(nbdkit --foreground -i); p=$(port)
  [ "$1" = nbdkit ] || on=(qemu-nbd -b)
  url=nbd://localhost:$p/
  tools/nbd "${on[@]}" 127.0.0.1 -p "$p" "${@:2}" > "$work/server.log" 2>&1 {said}>&- & server=$!
  served "$p" $server || { cat "$work/server.log" >&"$said"; fail "$*: does not serve"; }
}
stop() { kill $server; wait $server 2> /dev/null || true; }

# Conditions for each run. The payload of a read is in device memory only; of a write the commands, which the
# guest's CPU makes, are in host memory.
proof=('[x["failed"] == 0 and x["operations"] == -(-x["bytes"] // r["block_bytes"]) for x in runs]'
  '[x["verified"] is True or x["what"] == "write" and "nvmet in guest" not in r["server"] for x in runs]'
  'len(set(x["bytes"] for x in runs)) == 1'
  '[x["rx"]["host"] == 0 and x["host_bytes"] == 0 for x in runs if x["what"] != "write"]'
  '[x["rx"]["device"] >= x["bytes"] for x in runs if x["what"] != "write"]'
  '[x["tx"]["device"] >= x["bytes"] for x in runs if x["what"] == "write"] or len(runs) == 1'
  'r["block_bytes"] < 131072 or [x["looked_bytes"] * 1000 < x["bytes"] for x in runs if x["what"] != "write"]')
# For a write on a link that loses segments: some segments were retransmitted.
again=('[x["retransmitted_segments"] > 0 and x["tx"]["device"] > x["bytes"] for x in runs if x["what"] == "write"]')
# blocks WHAT ARGUMENT...: runs operations and checks their report; shown prints a line about them.
blocks() {
  use "$1" block --seed 7 "${@:2}"
  judge "$1" "${proof[@]}"
  shown "$1"
}
shown() {
  python3 - "$work/json" "$1" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
print("ok   %s, %s, bs %d, qd %d%s:" % (sys.argv[2], r["nic"], r["block_bytes"], r["depth"], ", random" if r["random"]
      else ""), ", ".join("%s%s %d bytes%s, %.4f %% looked at" % ("" if x["mode"] == "devmem" else x["mode"] + " ",
      x["what"], x["bytes"], " verified" if x["verified"] else "", 100 * x["looked_bytes"] / x["bytes"])
      for x in r["runs"]))
PY
}
inproc=(--guest inproc)

echo "== nbdkit and qemu-nbd, a guest in the process"
serve nbdkit pattern size=48M
orders=("" --random) k=0
for bs in 4K 20K 128K 1M; do
  for qd in 1 8 64; do
    size=20M
    [ $bs != 4K ] || size=4M
    blocks "nbdkit" "$url" "${inproc[@]}" --content nbdkit-pattern --bs $bs --qd $qd --size $size ${orders[k % 2]}
    k=$((k + 1))
  done
done
blocks "nbdkit, all of it" "$url" "${inproc[@]}" --content nbdkit-pattern --size 48M --gpu-memory 64M
blocks "nbdkit, from the middle" "$url" "${inproc[@]}" --content nbdkit-pattern --size 1000448 --offset 12345856 \
  --bs 9728
blocks "nbdkit, loss" "$url" "${inproc[@]}" --content nbdkit-pattern --size 8M --loss 1%
use "both modes" block "$url" "${inproc[@]}" --content nbdkit-pattern --size 8M --mode both
judge "both modes" 'runs[1]["mode"] == "copy"' 'runs[1]["rx"]["device"] == 0 and runs[1]["rx"]["host"] >= 8 << 20' \
  '[x["verified"] is True for x in runs]' 'runs[0]["rx"]["host"] == 0'
shown "both modes"
use "without peer-to-peer" block "$url" "${inproc[@]}" --content nbdkit-pattern --size 8M --p2p off
judge "without peer-to-peer" 'runs[0]["rx"]["device"] == 0 and runs[0]["rx"]["bounced"] >= 8 << 20' \
  'runs[0]["verified"] is True'
shown "without peer-to-peer: all bounced"

echo "== what is not right"
refuses 1 'has 50331648 bytes, and 67108864 from 0 on are asked for: --size, --offset' block "$url" "${inproc[@]}"
refuses 1 'are asked for: --size, --offset' block "$url" "${inproc[@]}" --size 1M --offset 48M
refuses 1 'read-only' block "$url" "${inproc[@]}" --write --size 1M
refuses 1 'the server breaks the protocol: PDU of type 0x4e' block "nvme-tcp${url#nbd}nqn.2026-01.org.example:disk" \
  "${inproc[@]}" --timeout 2s
refuses 2 'protocol "iscsi"' block "iscsi${url#nbd}disk" "${inproc[@]}"
refuses 2 '--bs 64M' block "$url" "${inproc[@]}" --bs 64M
refuses 2 '--size 2T' block "$url" "${inproc[@]}" --size 2T
refuses 2 '--verify' block "$url" "${inproc[@]}" --read --verify
stop
refuses 1 'connection refused' block "$url" "${inproc[@]}"
serve nbdkit pattern size=1000003 # which no block divides
blocks "nbdkit, odd" "$url" "${inproc[@]}" --content nbdkit-pattern --size 987658 --offset 12345 --bs 9999
stop
serve nbdkit --filter=blocksize-policy memory 8M blocksize-minimum=4096 blocksize-preferred=4096 blocksize-maximum=1M \
  blocksize-error-policy=error
refuses 1 'its blocks have 4096 bytes: --bs, --size and --offset are to be multiples' block "$url" "${inproc[@]}" \
  --size 1M --bs 10000
blocks "blocks of 4K" "$url" "${inproc[@]}" --write --verify --size 8M --bs 20K
stop

echo "== qemu-nbd"
truncate -s 32M "$work/disk"
serve qemu-nbd --persistent -e 4 -f raw "$work/disk"
for options in "--bs 4K --qd 64 --random" "--bs 20K --qd 8" "--bs 1M --qd 8"; do
  blocks "qemu-nbd" "$url" "${inproc[@]}" --write --verify --size 20M $options
done
blocks "qemu-nbd, loss" "$url" "${inproc[@]}" --write --verify --size 20M --loss 1%
judge "loss" "${again[@]}"
use "written" block "$url" "${inproc[@]}" --write --verify --size 32M --bs 128K
judge "written" '[x["verified"] is not False for x in runs]' \
  "runs[-1]['sha256'] == '$(sha256sum "$work/disk" | cut -d ' ' -f 1)'"
echo "ok   what was written is in qemu-nbd's file"
blocks "qemu-nbd, a guest in QEMU" "$url" --nic gve --write --verify --size 8M --bs 128K
stop
serve nbdkit pattern size=48M
blocks "nbdkit, a guest in QEMU" "$url" --nic virtio --content nbdkit-pattern --size 8M --bs 20K --qd 64
stop

echo "== Linux's target in a guest"
# The Go tests of block/nvmetcp cover all sizes and depths, also across pages. TestKernelReadsWhatWasWritten covers
# blocks of 20K, and reads written data with the kernel's own initiator.
blocks "nvmet" --nic gve --bs 4K --qd 64 --size 8M --random
blocks "nvmet" --nic virtio --bs 1M --qd 1 --size 8M
blocks "nvmet" --nic gve --bs 128K --qd 8 --size 8M
for nic in virtio gve; do
  use "both modes" block --nic $nic --mode both --size 8M
  judge "both modes" 'len(runs) == 6 and [x["mode"] for x in runs] == 3 * ["devmem"] + 3 * ["copy"]' \
    '[x["verified"] is True for x in runs]' '[x["rx"]["host"] == 0 for x in runs[:3] if x["what"] != "write"]' \
    '[x["rx"]["host"] >= x["bytes"] and x["rx"]["device"] == 0 for x in runs[3:] if x["what"] != "write"]' \
    'runs[4]["tx"]["host"] >= runs[4]["bytes"] and runs[4]["tx"]["device"] == 0'
  shown "nvmet, both modes"
  use "without peer-to-peer" block --nic $nic --p2p off --size 4M
  judge "without peer-to-peer" '[x["verified"] is True for x in runs]' \
    '[x["rx"]["device"] == 0 and x["rx"]["bounced"] >= x["bytes"] for x in runs if x["what"] != "write"]' \
    'runs[1]["tx"]["device"] == 0 and runs[1]["tx"]["bounced"] >= runs[1]["bytes"]'
  shown "nvmet, without peer-to-peer: all bounced"
  blocks "nvmet, loss" --nic $nic --loss 1% --size 4M
  judge "loss" "${again[@]}"
done
refuses 1 'its blocks have 512 bytes: --bs, --size and --offset are to be multiples' block --bs 1000 --size 1000000

echo "== a target of a user's own, in a stock guest"
tool nvmetserve
mkdir "$work/modules" "$work/disks"
# module NAME: adds this module and its dependencies to the guest, unless they are built into the kernel.
module() {
  local name=${1//[-_]/[-_]} file needs
  file=$(find -L "$cache/kernel" -path '*/modules/*' -name "$name.ko*" | head -n 1)
  [ -n "$file" ] && [ ! -e "$work/modules/${file##*/}" ] || return 0
  cp "$file" "$work/modules/"
  needs=$(xz -dcf "$file" | grep -az '^depends=' | tr '\0,' '\n ')
  for needs in ${needs#depends=}; do module "$needs"; done
}
module nvmet_tcp
python3 -c 'import sys
sys.stdout.buffer.write(b"".join(i.to_bytes(8, "big") for i in range(0, 8 << 20, 8)))' > "$work/disks/1" # as nbdkit's
truncate -s 8M "$work/disks/2"
nqn=nqn.2026-01.org.example:disks
p=$(port)
"$vnic" boot --forward "$p:4420" --copy "$work/modules:/modules" --copy "$work/disks:/disks" -- \
  "$work/nvmetserve" $nqn 0.0.0.0:4420 /modules /disks/1 /disks/2 > "$work/boot.out" 2> "$work/boot.err" \
  < /dev/null & boot=$!
for ((i = 0; i < 1200; i++)); do
  ! grep -q listens "$work/boot.out" && kill -0 $boot 2> /dev/null || break
  sleep 0.1
done
grep -q listens "$work/boot.out" || { cat "$work/boot.err" >&2; fail "nvmet in a stock guest"; }
url=nvme-tcp://localhost:$p/$nqn
blocks "namespace 1" "$url" "${inproc[@]}" --content nbdkit-pattern --size 8M
blocks "namespace 2" "$url?nsid=2" "${inproc[@]}" --write --verify --size 8M --bs 20K --qd 64 --random
blocks "namespace 1" "$url?nsid=1" --nic gve --content nbdkit-pattern --size 8M --bs 1M --qd 4
refuses 1 'namespace 3' block "$url?nsid=3" "${inproc[@]}" --size 1M
refuses 1 "${nqn}x" block "${url}x" "${inproc[@]}" --size 1M
refuses 1 'are asked for: --size, --offset' block "$url" "${inproc[@]}" --size 9M
refuses 1 'do not prove' block "$url?nsid=2" "${inproc[@]}" --size 8M --content nbdkit-pattern
# The server ends during many small operations.
timeout --kill-after=10 150 "$vnic" block "$url" "${inproc[@]}" --bs 512 --qd 1 --size 8M --timeout 2s > "$work/out" \
  2> "$work/err" < /dev/null & client=$!
until grep -q '^stage: transfer' "$work/err" || ! kill -0 $client 2> /dev/null; do sleep 0.05; done
s=0; kill -INT $boot; wait $boot || s=$?
[ $s = 1 ] || { cat "$work/boot.err" >&2; fail "the stock guest: status $s"; }
s=0; wait $client || s=$?
refused 1 "$nqn|nvme" $s "a target that goes away"
echo PASS
