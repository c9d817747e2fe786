#!/usr/bin/env bash
# "vnic allreduce": guests add up the memory of their GPUs on a ring. The Go tests of internal/job/allreduce cover
# types, counts, operations, modes, numbers of ranks, a rank without peer-to-peer and a killed rank. This script
# tests the installed program, and uses other programs:
# - Over IPv6 and on a preset, in the process; with guests of both models on links that lose segments, and on a
#   preset: no element is wrong, and the NICs have counted exactly the payload that a ring sends, all of it in
#   device memory.
# - tshark finds the ring's payload. The output follows the rules of nccl-tests' parsers.
# - Ctrl-C leaves nothing.
# It takes four minutes.
. "$(dirname "$0")/lib.sh"
. test/signals.sh
. test/uses.sh

# A ring sends the textbook's amount: 2 (n - 1) / n of the elements for each rank of an all-reduce, which is exact
# for the sum of all ranks; and each rank receives what the previous one sends. A row has two halves, each with an
# additional operation, whose result is compared.
cat > "$work/ring.py" <<'PY'
import json, sys
r, loss = json.load(open(sys.argv[1])), sys.argv[2] == "loss"
n, bad = r["ranks"], []
each = 2 * (n - 1)
for m in r["modes"]:
    times = 2 * (r["iters"] + r["warmup_iters"] + 1)
    sums = sum(row["bytes"] for row in m["rows"])
    if any(h["wrong"] != 0 for row in m["rows"] for h in (row["out_of_place"], row["in_place"])):
        bad.append("elements are wrong")
    sent = [x["out"]["device"] + x["out"]["host"] - x["out"]["retransmitted"] for x in m["ranks"]]
    got = [x["in"]["device"] + x["in"]["host"] - x["in"]["retransmitted"] for x in m["ranks"]]
    if len(sent) != n or sum(sent) != each * times * sums:
        bad.append("all ranks passed on %d bytes, and a ring %d" % (sum(sent), each * times * sums))
    for i, x in enumerate(m["ranks"]):
        again = x["out"]["retransmitted"]
        if sent[i] != x["expected"]["out"] or got[i] != x["expected"]["in"] or got[(i + 1) % n] != sent[i]:
            bad.append("rank %d: %d out, %d in, expected %s" % (i, sent[i], got[i], x["expected"]))
        if abs(sent[i] - each * times * sums // n) > 4 * n * times * len(m["rows"]):
            bad.append("rank %d passed on %d bytes: more or less than its part" % (i, sent[i]))
        host = x["out"]["host"] + x["in"]["host"] + x["linear_bytes"]
        device = x["out"]["device"] + x["in"]["device"]
        if device == 0 or host > 0:
            bad.append("rank %d: %d bytes in device memory, %d in host memory" % (i, device, host))
        if again and not loss and r["guest"] == "inproc":
            bad.append("rank %d sent %d bytes again" % (i, again))
    again = sum(x["out"]["retransmitted"] for x in m["ranks"])
    if loss and not again:
        bad.append("nothing was sent again")
    print("ok   %s, %d ranks (%s), counts %s: 0 wrong; %d bytes passed on, as expected; %d sent again" % (r["type"], n,
          " ".join(x["nic"] for x in m["ranks"]), ",".join(str(x["count"]) for x in m["rows"]), sum(sent), again))
sys.exit("\n".join(bad) or 0)
PY
# ring WHAT ARGUMENT...: runs a ring and checks its report. loss WHAT: the same on links that lose segments.
ring() {
  local kind=exact
  [ "$1" != loss ] || { kind=loss; shift; }
  use "$1" allreduce --seed 7 "${@:2}"
  python3 "$work/ring.py" "$work/json" $kind || { cat "$work/json" >&2; fail "$1"; }
}
quick=(--guest inproc -n 2 -w 1)

echo "== in the process"
ring "IPv6" "${quick[@]}" --guests 3 --family 6 --count 100001
ring "a preset" "${quick[@]}" --lab a3-high --count 100001
judge "a preset" '[x["guest"] for x in ranks] == ["a", "b"]'
ring "captured" "${quick[@]}" --guests 2 --count 100001 --pcap "$work/ring.pcapng"
judge "captured" 'r["pcap"]["packets"] > 100'
# Each segment is captured once. Besides the ring's payload each rank has sent a hello of 16 bytes to the next one.
VNIC_CACHE=$cache tools/tshark -r "$work/ring.pcapng" -T fields -e tcp.len 2> "$work/tshark.err" > "$work/lengths" ||
  { cat "$work/tshark.err" >&2; fail "tshark"; }
python3 - "$work/json" "$work/lengths" <<'PY' || fail "what tshark finds"
import json, sys
r = json.load(open(sys.argv[1]))
lengths = [int(x) for x in open(sys.argv[2]).read().split()]
expected = sum(x["expected"]["out"] for x in r["modes"][0]["ranks"])
print("ok   --pcap: tshark finds %d packets, with %d bytes; the ring has passed on %d"
      % (len(lengths), sum(lengths), expected))
sys.exit(sum(lengths) != expected + 16 * r["ranks"])
PY

echo "== as nccl-tests' parsers read it"
timeout 60 "$vnic" allreduce "${quick[@]}" -b 8 -e 1M -f 8 > "$work/out" 2> "$work/err" || { cat "$work/err" >&2; \
  fail "a table"; }
python3 - "$work/out" <<'PY' || { cat "$work/out" >&2; fail "not nccl-tests' columns"; }
import re, sys
text = open(sys.argv[1]).read()
rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
assert len(rows) == 6 and all(len(x) == 13 for x in rows), rows
assert [int(x[0]) for x in rows] == [8 * 8 ** i for i in range(6)]
for x in rows:
    assert int(x[0]) == 4 * int(x[1]) and x[2:5] == ["float", "sum", "-1"] and x[8] == x[12] == "0", x
    for half in (x[5:8], x[9:12]):
        us, alg, bus = map(float, half)
        assert us > 0 and abs(alg - int(x[0]) / us / 1e3) < 0.01 + 0.01 * alg and abs(bus - alg) < 0.011, x # two ranks
avg = re.search(r"^# Avg bus bandwidth\s*:\s*([0-9.e+-]+)\s*$", text, re.M)
assert avg and float(avg.group(1)) >= 0 and re.search(r"^# Out of bounds values : 0 OK$", text, re.M)
print("ok   6 rows of 13 columns; average bus bandwidth", avg.group(1))
PY

echo "== QEMU, gve and virtio in one ring"
ring loss "loss" --guests 4 --nic gve,gve,virtio,virtio -n 1 -w 0 --loss 1% --count 100001
ring "a preset" --lab a3-high -n 1 -w 0 --count 100001

echo "== Ctrl-C"
# Ctrl-C during a ring of many operations.
launch allreduce --guests 3 --nic gve,virtio -b 4M -e 4M -n 100000 -w 0 --timeout 5s
until_guests 3
until_line '^stage: transfer'
end INT "a ring, in the middle" 4
echo PASS
