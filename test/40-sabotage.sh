#!/usr/bin/env bash
# "--sabotage": faults of the NIC, and the tests that detect them. For each fault the table names two cases.
# - The case of internal/nic/nictest fails with the fault, on each model, and passes without.
# - The case of the kernel's selftests passes three times in a row without the fault, and fails the first time with
#   it, on each model that the table names.
# This script takes a quarter of an hour, on a machine that does nothing else. MODELS="gve virtio" and FAULTS="cut
# end" choose some models and faults.
. "$(dirname "$0")/lib.sh"

echo "== the suite of the NIC"
within 300 tools/with-tools go test -vet=off -count=1 -run '^TestSuiteSeesSabotage$' ./internal/nic/{gve,virtio}

echo "== the kernel's tests"
"$vnic" selftest --sabotage list > "$work/faults"
cat > "$work/sees.py" <<'PY'
import collections, json, os, re, subprocess, sys
vnic, model, table = sys.argv[1:]
bad = 0

def say(text):
    print(text, flush=True)

green = "without a fault"

def run(what, *args):
    """The results of a run: {(program, case): {column: [results]}}. Of a green run it prints what failed cases said."""
    done = subprocess.run(["timeout", "900", vnic, "selftest", "--nic", model, "--json", *args],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        sys.exit("FAIL %s: status %d: %s" % (what, done.returncode, done.stderr[-2000:]))
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    for p in json.loads(done.stdout)["programs"]:
        for c in p["cases"]:
            results[p["name"], c["name"]][p["column"]].append(c["result"])
            if c["result"] != "pass" and what == green:
                said = [c.get("reason", "")] + c.get("diagnostics", [])[-20:]
                say("     %s (%s) %s: %s" % (c["name"], p["column"], c["result"], "\n       ".join(said)))
    return results

# For each fault that a test detects on this model: the program, the case, and the flags that it needs.
faults = []
for line in open(table).read().splitlines()[1:]:
    name, _, has, _, _, _, test = re.split(r"  +", line.strip())
    if name not in os.environ.get("FAULTS", name).split():
        continue
    m = re.match(r"(\S+):(\S+?)(?: \((.*)\))?$", test)
    if not m:
        say("     %-14s no test of the kernel's" % name)
        continue
    about = (m[3] or "").split(", ")
    if has not in ("both", model) or about[0] in ("gve", "virtio") and about[0] != model:
        continue
    faults.append((name, m[1], m[2], tuple(a for about in about if about.startswith("--") for a in about.split())))


groups = collections.defaultdict(set)
for _, program, case, flags in faults:
    groups[flags].add(program + ":" + case)
passes = {}  # the column in which a case passes
for flags, tests in groups.items():
    passed = run(green, "--patch-tests", "--repeat", "3", *flags, *sorted(tests))
    for t in sorted(tests):
        program, case = t.split(":", 1)
        got = passed.get((program, case), {})
        column = next((k for k in sorted(got, reverse=True) if got[k] == ["pass"] * 3), None)
        if column is None:
            say("FAIL %s does not pass three times without a fault: %s" % (t, got))
            bad += 1
        else:
            say("ok   %s passes three times without a fault (%s)" % (t, column))
        passes[t, flags] = column
for name, program, case, flags in faults:
    t, column = program + ":" + case, passes[program + ":" + case, flags]
    patched = ["--patch-tests"] if column == "patched" else []
    red = run(name, "--sabotage", name, *patched, *flags, t)
    got = [r for (p, _), columns in red.items() if p == program for r in columns.get(column or "unmodified", [])]
    # A program that cannot begin reports that as a case of its own. In any case none of the requested cases may
    # pass.
    if not got or "pass" in got or not any(r in ("fail", "timeout", "error") for r in got):
        say("FAIL %s: %s is %s" % (name, t, got))
        bad += 1
    else:
        say("ok   %-14s %s: %s" % (name, t, ", ".join(got)))
sys.exit(bool(bad))
PY
status=0
for model in ${MODELS:-gve virtio}; do
  echo "== $model"
  python3 "$work/sees.py" "$vnic" "$model" "$work/faults" || status=1
done
[ $status = 0 ] || fail "a fault that is not seen, or a test that does not pass without one"
echo PASS
