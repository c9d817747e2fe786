#!/usr/bin/env bash
# "CPU ns a packet (all our threads) with queues up to the cores, ports in use up to 64, rules 1 to 1,024: within 25 %,
# no slope above log n": frames of 64 B through a vnic serve. What is measured is the processor time of all threads of
# vnic and of what it has started (their clocks, clock_getcpuclockid(3)); who fills the rings is another process.
# Sizes: ports 2 to 64, each sends to the next, all at once; queues 1 to 8 of one port, one flow each; rules 1 to 1,024
# of the receiver, of which each frame meets another. gve: ports. 15 rounds; each measures all sizes, up and down in
# turn, and the smallest once more (A/A).
#
# The rule. A ratio is of two sizes of one round; its median over the rounds, and the 95 % interval by order statistics:
# - of any size to the smallest: at most 1.25;
# - of any size to the one before (twice as much; for rules four times): at most 1.10. What grows by log n adds as much
#   with each doubling: 1.25 over five of them is 1.05 each; what grows by n has all of it in the last two.
# Met when the median is within 5 % of that and the interval's lower end reaches it. `vnic bench` is held to the first
# too: its rows are one port that sends to 63 in turn, 4 frames to each, in one process.
#
# Not judged, but printed ("fan"): the same by rings that another processor fills. There each 4 frames meet two or three
# cache lines that the other one has just written (used.idx, avail.idx), and those of 63 rings; a driver's ring is what
# it is. BADINPUT_SCALE_COLD=1 has each guest use 256 buffers, too. gve is driven by hand, a doorbell for 32 or 64
# frames is a message: its frame costs more than twice as much as virtio's, most of it for these.
#
# And: 64 idle ports take no tick and wake no thread, for 10 s. It takes five minutes in all: run it on a machine with
# nothing else to do.
. "$(dirname "$0")/lib.sh"
BADINPUT_SCALE=1 BADINPUT_IDLE=10s BADINPUT_VNIC=$vnic tools/with-tools go test ./test/internal/badinput \
  -count=1 -v -timeout 20m -run '^(TestCostsGrowSlowly|TestIdlePortsDoNothing)$' > "$work/log" && passed=yes || passed=
grep -E ' ns a frame|95 %|wanted|ports: in|^ *--- |^=== RUN .*\/' "$work/log" | sed 's/^ *[a-z_]*\.go:[0-9]*: //'
"$vnic" bench --only queues,ports,rules --json > "$work/bench"
python3 - "$work/bench" <<'PY' && [ "$passed" ] || fail "a small frame costs more where there is more"
import json, sys
bad = False
for row in json.load(open(sys.argv[1]))["rows"]:
    r, a = row["ratio"], row["aa"]
    print("vnic bench %-10s %.3f (95 %%: %.3f to %.3f); A/A %.3f" %
          (row["name"], r["median"], r["low"], r["high"], a["median"]))
    bad = bad or r["median"] > 1.05 * 1.25 or r["low"] > 1.25
sys.exit(bad)
PY
echo PASS
