#!/usr/bin/env bash
# "CPU ns a packet (all our threads) with queues up to the cores, ports in use up to 64, rules 1 to 1,024: within 25
# %, no slope above log n": frames of 64 B through a vnic serve. It measures the processor time of all threads of
# vnic and of its child processes (their clocks, clock_getcpuclockid(3)); another process fills the rings. Sizes: 2
# to 64 ports, where each port sends to the next, all at once; 1 to 8 queues of one port, one flow each; 1 to 1,024
# rules of the receiver, where successive frames match different rules. gve: ports only. There are 15 rounds; each
# measures all sizes, alternately upwards and downwards, and the smallest once more (A/A). A ratio
# compares two sizes of one round. The limits are for its median over the rounds, with the 95 % interval by order
# statistics:
# - the ratio of any size to the smallest is at most 1.25;
# - the ratio of any size to the size before (half of it; for rules a quarter) is at most 1.10. A cost that grows by
# log n adds the same amount with each doubling: 1.25 over five doublings is 1.05 each; a cost that grows by n adds
# nearly all in the last two. A limit is kept if the median is within 5 % of it and the interval's lower end reaches it.
# The rows of `vnic bench` have to keep the first limit, too: in them one port sends to 63 in turn, 4 frames to
# each, in one process. Printed, but not judged ("fan"): the same with rings that another processor fills. There
# every 4 frames use two or three cache lines that the other processor has just written (used.idx, avail.idx), and
# the lines of 63 rings. With BADINPUT_SCALE_COLD=1 each guest also uses 256 buffers. The script itself plays gve's
# driver, and a doorbell for 32 or 64 frames is a message on a socket: a gve frame costs more than twice as much as
# a virtio frame, mostly for these. And 64 idle ports use no tick of processor time and wake no thread, for 10 s.
# The script takes five minutes in all: run it on a machine with nothing else to do.
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
