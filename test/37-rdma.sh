#!/usr/bin/env bash
# "vnic rdma": the NIC of one guest writes and reads the memory of another's GPU over RoCEv2. The Go tests of
# internal/job/rdma cover sizes, queue pairs, path MTUs, RAM and a NIC without peer-to-peer. Here:
# - In the process: links that also duplicate, reorder and corrupt packets, and two NICs without peer-to-peer. In
#   QEMU: guests of both models, also one with the other. Every byte is right, and both NICs have counted exactly
#   these bytes.
# - tshark dissects captures: operation codes, RETH and AETH are there, and packets and payload of each direction
#   are as the NICs have counted. The ICRC of each packet equals the one that zlib computes.
# - The responder's guest uses next to no processor time.
# - If a guest is killed during a transfer, the error names it. Nothing is left after that, nor after Ctrl-C.
#   Mistakes end the command at once, with a message that says what to do.
# It takes four minutes.
. "$(dirname "$0")/lib.sh"
. test/signals.sh
. test/uses.sh

# Conditions for each run: bytes of all rounds, counted once, and the memory in which they lay. ends are both ends
# of all runs.
cat > "$work/rdma.py" <<'PY'
import json, sys
r, kind = json.load(open(sys.argv[1])), sys.argv[2]
bad, want = [], r["size"] * r["rounds"]
for x in r["runs"]:
    if not x["verified"] or x["sha256"] != x["source_sha256"] or len(x["sha256"]) != 64:
        bad.append("digests: %s" % x)
    if x["bytes"] != want or x["work_requests"] < -(-r["size"] // r["block_bytes"]) * r["rounds"]:
        bad.append("%d bytes by %d work requests" % (x["bytes"], x["work_requests"]))
    for who in ("requester", "responder"):
        e = x[who]
        if e["device"] + e["gpu_file"] + e["host"] != want + e["again"]:
            bad.append("%s: not all payload, once: %s" % (who, e))
        place = "host" if x["mr"] == "ram" or not e["p2p"] else "device"
        bounced = e["host"] if x["mr"] != "ram" and not e["p2p"] else 0
        if e[place] != want + e["again"] or e["bounced"] != bounced:
            bad.append("%s: payload is not in %s memory alone: %s" % (who, place, e))
        late = x["requester"]["timeouts"] # where nobody has a processor for a quarter of a second
        if e["error_naks"] or kind == "exact" and not late and (e["again_packets"] or e["sequence_naks"]):
            bad.append("%s: something was lost or refused: %s" % (who, e))
    a = x["requester"]
    # A requester of a READ notices a lost answer from the next one, without a NAK.
    if kind == "loss" and not (a["again_packets"] and (r["op"] == "get" or a["sequence_naks"] + a["timeouts"])):
        bad.append("nothing was sent again: %s" % a)
    cpu = x["responder"]["guest_cpu_seconds_per_gb"]
    print("ok   %s, %s to %s, %s: %d bytes, path MTU %d, %d packets, %d sent again, %d bounced%s" % (
        r["op"], a["nic"], x["responder"]["nic"], x["mr"], want, x["path_mtu"],
        a["request_packets"] + a["response_packets"], a["again_packets"],
        a["bounced"] + x["responder"]["bounced"], "" if cpu is None else ", CPU s/GB %.2f and %.2f" % (
            a["guest_cpu_seconds_per_gb"], cpu)))
sys.exit("\n".join(bad) or 0)
PY
# moves ARGUMENT...: runs vnic rdma and checks its report. moves loss ARGUMENT...: the same on links that lose
# segments. moves late: the same with emulated guests, which may be late.
moves() {
  local kind=exact
  case $1 in loss|late) kind=$1; shift ;; esac
  use "$*" rdma "$@" --seed 7
  python3 "$work/rdma.py" "$work/json" $kind || { cat "$work/json" >&2; fail "vnic rdma $*"; }
}
quick=(--guest inproc)

echo "== in the process"
for op in put get; do
  moves $op "${quick[@]}" --size 8M --p2p off
  moves $op "${quick[@]}" --size 8M --lab a3-high
  judge "a preset" 'runs[0]["requester"]["guest"] == "a" and runs[0]["responder"]["guest"] == "b"'
  moves loss $op "${quick[@]}" --size 8M --loss 1% --reorder 1% --duplicate 1% --corrupt 1% --qps 3
done
use "not compared" rdma put "${quick[@]}" --size 4M --verify=false
judge "not compared" 'runs[0]["verified"] is False and "sha256" not in runs[0]'

echo "== as tshark and zlib see it"
# Compares the packets of a capture, as tshark dissects them, with the NICs' counters; and each packet's ICRC with
# the CRC of its bytes, in which fields that routers change are ones (IBA Volume 1, annex A17.3.3).
cat > "$work/packets.py" <<'PY'
import json, sys, zlib
r, op = json.load(open(sys.argv[1])), sys.argv[2]
first, middle, last, only = (6, 7, 8, 10) if op == "put" else (13, 14, 15, 16)
bad, ports, icrc, dmalen = [], {}, 0, 0
for line in open(sys.argv[3]):
    iface, malformed, opcode, dma, syndrome, pad, length, data = line.rstrip("\n").split("\t")
    if malformed:
        bad.append("malformed: " + line[:200])
    if not opcode:
        continue
    code, n = int(opcode, 0), int(length) - 8 - 12 - 4 - int(pad or 0)
    p = ports.setdefault(iface, {"packets": {}, "payload": 0, "reth": 0, "aeth": 0})
    p["packets"][code] = p["packets"].get(code, 0) + 1
    if dma:
        p["reth"] += 1
        n -= 16
        if iface.startswith("guest0") and iface.endswith("tx"):
            dmalen += int(dma, 0)
    if syndrome:
        p["aeth"] += 1
        n -= 4
    p["payload"] += n
    # The ICRC, if the whole frame was captured.
    b = bytes.fromhex(data)
    if len(b) == 14 + 20 + int(length):
        ip = bytearray(b[14:-4])
        ip[1] = ip[8] = ip[10] = ip[11] = ip[26] = ip[27] = ip[32] = 0xff
        if zlib.crc32(bytes(8 * [0xff]) + bytes(ip)) != int.from_bytes(b[-4:], "little"):
            bad.append("ICRC: " + line[:200])
        icrc += 1
x, missed = r["runs"][0], r["pcap"]["missed"]
a, b = x["requester"], x["responder"]
asks, answers = ports["guest0.nic0-tx"], ports["guest1.nic0-tx"]
data = asks if op == "put" else answers
end = a if op == "put" else b
def same(what, found, counted):
    if found != counted:
        bad.append("%s: tshark finds %d, the NIC has counted %d" % (what, found, counted))
same("packets of requests", sum(asks["packets"].values()), a["request_packets"])
same("packets of answers", sum(answers["packets"].values()), b["response_packets"])
same("bytes of payload", data["payload"], end["device"] + end["host"])
if op == "put":
    same("acknowledgments", answers["packets"].get(17, 0), b["response_packets"])
    same("with AETH", answers["aeth"], b["response_packets"])
    same("with RETH", asks["reth"], asks["packets"].get(first, 0) + asks["packets"].get(only, 0))
else:
    same("READs", asks["packets"].get(12, 0), a["request_packets"])
    same("with RETH", asks["reth"], a["request_packets"])
if not a["again_packets"]:
    same("bytes that RETHs announce", dmalen, x["bytes"])
if missed or set(data["packets"]) - {first, middle, last, only, 17} or not data["packets"].get(middle):
    bad.append("missed %d, packets %s" % (missed, data["packets"]))
print("ok   %s: packets by operation code: asked %s, answered %s; %d bytes of payload; %d ICRCs right" % (op,
      asks["packets"], answers["packets"], data["payload"], icrc))
sys.exit("\n".join(bad[:10]) or (0 if icrc or len(sys.argv) > 4 else "no ICRC was seen"))
PY
# dissect OP [headers]: dissects the capture of the last run with tshark. With "headers" only headers were captured.
dissect() {
  VNIC_CACHE=$cache tools/tshark -r "$work/rdma.pcapng" -T fields -E separator=/t -e frame.interface_name \
    -e _ws.malformed -e infiniband.bth.opcode -e infiniband.reth.dmalen -e infiniband.aeth.syndrome \
    -e infiniband.bth.padcnt \
    -e udp.length -e frame.number > "$work/fields" 2> "$work/tshark.err" || { cat "$work/tshark.err" >&2; fail tshark; }
  # The captured bytes of each frame, as hexadecimal digits, from the pcapng's enhanced packet blocks.
  python3 - "$work/rdma.pcapng" "$work/fields" > "$work/frames" <<'PY'
import struct, sys
data, frames, at = open(sys.argv[1], "rb").read(), [], 0
while at < len(data):
    kind, size = struct.unpack_from("<II", data, at)
    if kind == 6:
        n = struct.unpack_from("<I", data, at + 20)[0]
        frames.append(data[at + 28:at + 28 + n].hex())
    at += size
for line in open(sys.argv[2]):
    head, number = line.rstrip("\n").rsplit("\t", 1)
    print(head + "\t" + frames[int(number) - 1])
PY
  python3 "$work/packets.py" "$work/json" "$1" "$work/frames" ${2:-} || fail "what tshark finds of $1"
}
# The snapshot length fits a whole packet of path MTU 1024, and is not larger: with larger records the buffer holds
# fewer, and the capture misses some.
capture=(--pcap-ends --pcap "$work/rdma.pcapng")
for op in put get; do
  moves $op "${quick[@]}" --size 1M --block 100K "${capture[@]}"
  dissect $op headers
  moves $op "${quick[@]}" --size 500001 --block 100K "${capture[@]}" --pcap-payload 2048
  dissect $op
  # The link is slow: otherwise packets come faster than the file is written, and the capture misses some.
  moves loss $op "${quick[@]}" --size 1M --block 100K --loss 1% --delay 2ms "${capture[@]}" --pcap-payload 2048
  dissect $op
done
for nic in virtio gve; do
  moves late put --nic $nic --size 1M "${capture[@]}" --pcap-payload 2048
  dissect put
done

echo "== in QEMU"
moves late put --size 64M --rounds 4
# The rest of the processor time answers the host's requests, measured in hundredths of a second.
judge "the responder does nothing" \
  '2 * runs[0]["responder"]["guest_cpu_seconds_per_gb"] < runs[0]["requester"]["guest_cpu_seconds_per_gb"]'
moves late get --nic gve --size 64M --mr gpu,ram
moves late get --nic gve,virtio --mtu 9000 --size 32M --qps 4
moves late put --nic virtio,gve --family 6 --size 16M --block 64K --qd 64
for nic in virtio gve; do
  moves loss put --nic $nic --size 8M --loss 1%
  moves late get --nic $nic --size 8M --p2p off=0
done
moves late put --lab a3-high --size 8M

echo "== a guest that is killed, and Ctrl-C"
# until_moving: waits until payload moves. Links lose segments, so that the transfer takes some time.
until_moving() {
  launch rdma put --nic gve,virtio --size 128M --loss 1% --delay 1ms
  until_guests 2
  until_line '^  gpu: 25%'
}
# guest NAME: prints the process of the guest's QEMU.
guest() {
  local p
  for p in $(qemus); do ! grep -qsz "^guest=guest $1," "/proc/$p/cmdline" || echo "$p"; done
}
for name in guest1 guest0; do
  until_moving
  victim=$(guest $name)
  [ "$(wc -w <<< "$victim")" = 1 ] || fail "QEMUs of $name: $victim"
  start=$SECONDS s=0
  kill -KILL "$victim"
  wait "$pid" || s=$?
  refused 1 "guest $name: QEMU ended early" $s "$name killed"
  [ -z "$(alive "$pid")" ] || fail "$name killed: processes are left: $(alive "$pid")"
  [ $((SECONDS - start)) -lt 30 ] || fail "$name killed: it took $((SECONDS - start)) s"
  grep -m 1 'what it ended: guest guest0: put: ' "$work/err" | cut -c 1-170 | sed 's/^/   /' || { cat "$work/err" >&2; \
    fail "$name killed: not in the middle"; }
  files > "$work/after"
  diff "$work/before" "$work/after" >&2 || fail "$name killed: files are left"
done
until_moving
end INT "a put, in the middle" 3

echo "== what is not right"
refuses 2 'which\? put writes guest 1.s memory, get reads it' rdma
refuses 2 'put, to write guest 1.s memory, or get, to read it' rdma push
refuses 2 'a larger --gpu-memory, or less data' rdma put --size 1G
refuses 2 'a larger --gpu-memory, or less data' rdma put --nic gve --size 256M
refuses 2 '--qd 0: 1 to 1024' rdma put --qd 0
refuses 2 '--block 0' rdma get --block 0
refuses 2 'none with --guest inproc' rdma put --nic gve "${quick[@]}"
refuses 2 '--p2p off=2: guests are 0 to 1' rdma put --p2p off=2
refuses 2 'unknown flag: --mode' rdma put --mode copy
refuses 2 '--mr disk: gpu, ram' rdma put --mr disk
echo PASS
