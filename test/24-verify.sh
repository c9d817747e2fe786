#!/usr/bin/env bash
# "Verification at the speed of memory": `vnic run --guest inproc --size 8G --mode devmem` of this checkout against
# 1acd496, in alternating pairs, each after an A/A pair of the base. BASE=COMMIT names another base, PAIRS the
# number of pairs (15), SIZE the size. It passes if the median of the ratios new/base is at most 7/13, within 5 %,
# if the ratio of the transfer's time is at most 1.05, and if no run of the checkout needed more memory than the
# base's largest. It takes some ten minutes, on a machine with nothing else to do, and needs the history, so no
# shallow clone.
. "$(dirname "$0")/lib.sh"
base=${BASE:-1acd496} pairs=${PAIRS:-15} size=${SIZE:-8G}
git cat-file -e "$base^{commit}" 2>/dev/null || fail "no commit $base here: git fetch --unshallow"
command -v python3 >/dev/null || fail "no python3: install it"
git worktree add --detach --quiet "$work/base" "$base"
trap 'git worktree remove --force "$work/base"; rm -rf "$work"' EXIT
make -s -C "$work/base" build
export PYTHONPATH=test PYTHONDONTWRITEBYTECODE=1 # interval.py
python3 - "$work/base/bin/vnic" "$vnic" "$pairs" "$size" <<'PY' || fail "too slow, or too much memory"
import json, os, resource, subprocess, sys, tempfile, time

from interval import interval

base, new, pairs, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def run(program):
    """Wall time, transfer time and largest resident set of one run."""
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        pid = os.posix_spawn(program, [program, "run", "--guest", "inproc", "--size", size, "--mode", "devmem",
                                       "--seed", "1", "--json"], os.environ,
                             file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)])
        _, status, usage = os.wait4(pid, 0)
        wall = time.monotonic() - start
        if status != 0:
            sys.exit(f"{program}: status {status}")
        out.seek(0)
        r = json.load(out)["runs"][0]
        if not r["sha256_match"]:
            sys.exit(f"{program}: no match")
        return wall, r["seconds"], usage.ru_maxrss

ratios = {"A/A total": [], "total": [], "A/A transfer": [], "transfer": []}
rss = {base: 0, new: 0}
for i in range(pairs):
    order = [base, new, base] if i % 2 == 0 else [base, base, new]
    got = [(p, run(p)) for p in order]
    a, b = [v for p, v in got if p == base]
    c = next(v for p, v in got if p == new)
    for p, v in got:
        rss[p] = max(rss[p], v[2])
    ratios["A/A total"].append(b[0] / a[0])
    ratios["A/A transfer"].append(b[1] / a[1])
    ratios["total"].append(c[0] / ((a[0] + b[0]) / 2))
    ratios["transfer"].append(c[1] / ((a[1] + b[1]) / 2))
    print(f"pair {i+1}: total {a[0]:.2f} {b[0]:.2f} -> {c[0]:.2f} s, transfer {a[1]:.2f} {b[1]:.2f} -> {c[1]:.2f} s",
          flush=True)
for name, x in ratios.items():
    print("%-13s median %.3f, 95 %% interval %.3f to %.3f" % (name, *interval(x)))
print(f"largest resident set: {rss[base]} KiB, new {rss[new]} KiB")
want = 7 / 13
total, transfer = interval(ratios["total"]), interval(ratios["transfer"])
ok = total[0] <= 1.05 * want and total[1] <= want and transfer[0] <= 1.05 and transfer[1] <= 1
sys.exit(0 if ok and rss[new] <= 1.02 * rss[base] else 1)
PY
echo PASS
