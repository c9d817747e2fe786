#!/usr/bin/env bash
# "vnic allreduce": guests add up the memory of their GPUs on a ring.
# - Four guests in QEMU, two on gve and two on virtio, are one ring: for each type of elements, at counts that
#   nothing divides, no element is wrong, and the NICs have counted as payload exactly what a ring passes on, all of it
#   in device memory; elsewhere nothing. All operations, both modes, and 1 to 8 ranks in the process.
# - One rank without peer-to-peer: only its bytes lie in host memory. A link that loses segments: some are sent again.
# - A guest that is killed in the middle is named first; neighbours say of which rank nothing came, and in what step.
#   It, and Ctrl-C, leave nothing.
# - The output is that of nccl-tests, whose parsers' rules hold.
# It takes ten minutes.
. "$(dirname "$0")/lib.sh"
. acceptance/signals.sh
. acceptance/uses.sh

# What a ring passes on is the textbook's: 2 (n - 1) / n of the elements for each rank of an all-reduce, which is exact
# for all ranks together, and what one sends is what the next one gets. A row has two halves, each with an operation
# more, which is compared.
cat > "$work/ring.py" <<'PY'
import json, sys
r, loss = json.load(open(sys.argv[1])), sys.argv[2] == "loss"
n, bad = r["ranks"], []
each = {"all_reduce": 2 * (n - 1), "reduce_scatter": n - 1, "all_gather": n - 1, "broadcast": n - 1}[r["op"]]
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
        if r["op"] == "all_reduce" and abs(sent[i] - each * times * sums // n) > 4 * n * times * len(m["rows"]):
            bad.append("rank %d passed on %d bytes: more or less than its part" % (i, sent[i]))
        host = x["out"]["host"] + x["in"]["host"] + x["linear_bytes"]
        device = x["out"]["device"] + x["in"]["device"]
        bounced = x["out"]["bounced"] + x["in"]["bounced"]
        want = (0, 0, 0) # whether some are in device memory, in host memory, bounced
        if n > 1:
            want = (0, 1, 0) if m["mode"] == "copy" else (1, 0, 0) if x["p2p"] else (0, 1, 1)
        if (device > 0, host > 0, bounced > 0) != want:
            bad.append("rank %d, mode %s: %d bytes in device memory, %d in host memory, %d bounced"
                       % (i, m["mode"], device, host, bounced))
        if again and not loss and r["guest"] == "inproc":
            bad.append("rank %d sent %d bytes again" % (i, again))
    again = sum(x["out"]["retransmitted"] for x in m["ranks"])
    if loss and not again:
        bad.append("nothing was sent again")
    nics = " ".join(x["nic"] + ("" if x["p2p"] else " without p2p") for x in m["ranks"])
    print("ok   %s, %s, %s, %d ranks (%s), counts %s: 0 wrong; %d bytes passed on, as expected; %d sent again"
          % (r["op"], r["type"], m["mode"], n, nics, ",".join(str(x["count"]) for x in m["rows"]), sum(sent), again))
sys.exit("\n".join(bad) or 0)
PY
# ring WHAT ARGUMENT...: a ring that holds. loss WHAT: one whose links lose segments.
ring() {
  local kind=exact
  [ "$1" != loss ] || { kind=loss; shift; }
  use "$1" allreduce --seed 7 "${@:2}"
  python3 "$work/ring.py" "$work/json" $kind || { cat "$work/json" >&2; fail "$1"; }
}
mixed=(--guests 4 --nic gve,gve,virtio,virtio -n 1 -w 0)
quick=(--guest inproc -n 2 -w 1)

echo "== in the process"
for n in 1 2 3 4 8; do
  for t in int32 float bfloat16; do
    ring "$n ranks, $t" "${quick[@]}" --guests $n --dtype $t --count 1,$n,$((n + 1)),$((n > 1 ? n - 1 : 2)),100001
  done
done
for op in reduce_scatter all_gather broadcast; do
  ring "$op" "${quick[@]}" --guests 3 --op $op $([ $op != broadcast ] || echo --root 2) --mode both \
    --count 3,100001
done
ring loss "loss" "${quick[@]}" --guests 4 --loss 1% --count 100001
ring "rank 2 without peer-to-peer" "${quick[@]}" --guests 4 --p2p off=2 --count 100001
ring "IPv6" "${quick[@]}" --guests 3 --family 6 --count 100001
ring "a preset" "${quick[@]}" --lab a3-high --count 100001
judge "a preset" '[x["guest"] for x in ranks] == ["a", "b"]'
ring "captured" "${quick[@]}" --guests 2 --count 100001 --pcap "$work/ring.pcapng"
judge "captured" 'r["pcap"]["packets"] > 100'
# Each segment is captured once. Besides what the ring passes on each rank has said 16 bytes to the next one.
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
for t in int32 float bfloat16; do
  ring "$t" "${mixed[@]}" --dtype $t --count 1,3,5,1000001
done
ring "rank 2 without peer-to-peer" "${mixed[@]}" --p2p off=2 --count 100001
ring loss "loss" "${mixed[@]}" --loss 1% --count 100001
ring "reduce_scatter, both modes" --guests 3 --nic gve,virtio -n 1 -w 0 --op reduce_scatter --mode both --count 100001
ring "all_gather" --guests 2 --nic gve,virtio -n 1 -w 0 --op all_gather --dtype bfloat16 --count 100001
ring "broadcast" --guests 3 --nic virtio,gve -n 1 -w 0 --op broadcast --root 1 --dtype int32 --count 100001
ring "a preset" --lab a3-high -n 1 -w 0 --count 100001

echo "== a guest that is killed, and Ctrl-C"
# until_transfer: a ring of many operations, in the middle of one.
until_transfer() {
  launch allreduce --guests 3 --nic gve,virtio -b 4M -e 4M -n 100000 -w 0 --timeout 5s
  until_guests 3
  until_line '^stage: transfer'
}
# guest NAME: its QEMU.
guest() {
  local p
  for p in $(qemus); do ! grep -qsz "^guest=guest $1," "/proc/$p/cmdline" || echo "$p"; done
}
until_transfer
victim=$(guest guest1)
[ "$(wc -w <<< "$victim")" = 1 ] || fail "QEMUs of guest1: $victim"
start=$SECONDS s=0
kill -KILL "$victim"
wait "$pid" || s=$?
refused 1 'guest1' $s "killed"
[ -z "$(alive "$pid")" ] || fail "killed: processes are left: $(alive "$pid")"
[ $((SECONDS - start)) -lt 60 ] || fail "killed: it took $((SECONDS - start)) s"
grep -m 2 -E 'rank [02] \(guest[02]\).*rank [0-9].*step [0-9]' "$work/err" | cut -c 1-170 | sed 's/^/     /' ||
  { cat "$work/err" >&2; fail "killed: no neighbour says in which step"; }
files > "$work/after"
diff "$work/before" "$work/after" >&2 || fail "killed: files are left"
until_transfer
end INT "a ring, in the middle" 4
echo PASS
