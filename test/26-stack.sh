#!/usr/bin/env bash
# "Stack": TCP from GPU to GPU in frames of MTU 1500 is at least 2.5 times as fast as at df71dac, the commit of the
# first figures of vnic bench (BASE=COMMIT names another); a byte that is received into GPU memory costs the
# receiver at most 0.5 of the processor time of one that is copied to host memory, in frames of 1448 bytes that the
# NIC merges, and at most 0.15 in GSO packets of 64 KiB; and on links that lose 1 % or reorder 2 %, a transfer with
# coalescing takes no longer, and no more acknowledgements and retransmissions, than without. Each figure is the
# median of 15 alternating pairs with its 95 % interval (PAIRS=N, at least 6); if the noise can differ, an A/A pair
# is measured with it. A goal is met if the median is within 5 % of it, and the better end of the interval reaches
# it. The script takes some 10 minutes, on a machine with nothing else to do, and needs the history, so no shallow
# clone.
. "$(dirname "$0")/lib.sh"
base=${BASE:-df71dac} pairs=${PAIRS:-15}
git cat-file -e "$base^{commit}" 2>/dev/null || fail "no commit $base here: git fetch --unshallow"
command -v python3 >/dev/null || fail "no python3: install it"
git worktree add --detach --quiet "$work/base" "$base"
trap 'git worktree remove --force "$work/base"; rm -rf "$work"' EXIT
make -s -C "$work/base" build
tools/with-tools go test -c -o "$work/bench.test" ./internal/job/bench
export PYTHONPATH=test PYTHONDONTWRITEBYTECODE=1 # interval.py
tools/with-tools python3 - "$work" "$vnic" "$pairs" <<'PY' || fail "slower or dearer than it is to be: see above"
import json, re, subprocess, sys

from interval import interval

work, vnic, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3])

def out(*command):
    p = subprocess.run(command, capture_output=True, text=True, cwd="internal/job/bench")
    if p.returncode:
        sys.exit(f"{command}: {p.stderr or p.stdout}")
    return p.stdout

met = True
def judge(name, ratios, want, most=True, aa=None):
    """At most want, or at least."""
    global met
    mid, lo, hi = interval(ratios)
    ok = mid <= 1.05 * want and lo <= want if most else mid >= 0.95 * want and hi >= want
    met = met and ok
    beside = "; A/A %.3f, %.3f to %.3f" % interval(aa) if aa else ""
    print("%-6s %-44s %.3f, 95 %% interval %.3f to %.3f, goal %s %.2f%s" % ("met" if ok else "NOT", name, mid, lo, hi,
          "<=" if most else ">=", want, beside), flush=True)

def mtu(program):
    rows = json.loads(out(program, "bench", "--only", "mtu-1500", "--pairs", "6", "--json"))["rows"]
    return rows[0]["ours"]["median"]

ratio, aa = [], []
for i in range(pairs):
    a = mtu(work + "/base/bin/vnic")
    b, c = mtu(vnic), mtu(vnic)
    ratio.append(b / a)
    aa.append(c / b)
judge("mtu-1500, of its speed at the base", ratio, 2.5, most=False, aa=aa)

unit = {"us": 1e-6, "ms": 1e-3, "s": 1, "mins": 60}
def receiver(mode, size, chunks):
    """Processor time of the receiver but for its NIC, in seconds."""
    profile = work + "/cpu.prof"
    out(work + "/bench.test", "-test.run", "^$", "-test.bench", f"^BenchmarkReceiver$/^{mode}-{size}$",
        "-test.benchtime", f"{chunks}x", "-receiver-profile", profile)
    tags = out("go", "tool", "pprof", "-tags", "-ignore", r"nic\.\(\*Sender\)", work + "/bench.test", profile)
    v, u = re.search(r"([\d.]+)(us|ms|s|mins)\s+\([^)]*\): receiver", tags).groups()
    return float(v) * unit[u]

for size, chunks, want in ("1448", 8000, 0.5), ("64k", 20000, 0.15):
    ratio, aa = [], []
    for i in range(pairs):
        copied = receiver("copy", size, chunks)
        a, b = receiver("devmem", size, chunks), receiver("devmem", size, chunks)
        ratio.append(a / copied)
        aa.append(b / a)
    judge(f"receiver's time a byte, devmem/copy, {size}", ratio, want, aa=aa)

lossy = {}
for line in out(work + "/bench.test", "-test.run", "^$", "-test.bench", "^BenchmarkLossy$", "-test.benchtime", "1x",
                "-lossy-pairs", str(pairs)).splitlines():
    if m := re.search(r"ratios (\w+) (\w+): (.*)", line):
        judge(f"{m[1]}: {m[2]}, coalescing on/off", [float(x) for x in m[3].split()], 1)
        lossy[m[1], m[2]] = True
if len(lossy) != 6:
    sys.exit(f"of 6 comparisons under loss and reordering {len(lossy)} were made")
sys.exit(not met)
PY
echo PASS
