#!/usr/bin/env bash
# "A ready GitHub composite action in the repository (cache, boot, artifacts: pcap, report.html, JUnit from a
# program's TAP or `go test -json` output): its script is shell that a test runs in a container-like root." The test
# takes the commands of the action's steps from action.yml, and runs them as a user without privileges, network and
# /dev/kvm.
. "$(dirname "$0")/lib.sh"

container

echo "== the cache is filled outside: there is no network in there"
within 300 "$vnic" run --size 1M --mode devmem --nic gve --json > "$work/warm.json"

# Runs the action's step "run", with its inputs in environment variables, as a runner does.
awk '/^ *run: \|$/ { on = 1; next } on && /^    - / { exit } on { sub(/^        /, ""); print }' \
  action.yml > "$work/step"
grep -q packaging/ci/vnic-ci "$work/step" || fail "action.yml has no step that runs vnic-ci"
for input in nic guests timeout flags name out; do
  grep -q "VNIC_CI_$(echo $input | tr a-z A-Z): \${{ inputs.$input }}" action.yml || fail "input $input goes nowhere"
  grep -q "VNIC_CI_$(echo $input | tr a-z A-Z)" packaging/ci/vnic-ci || fail "vnic-ci has no $input"
done
step() { # NAME NIC COMMAND: leaves the results in $work/NAME, and the status in $s
  s=0
  within 240 env GITHUB_ACTION_PATH="$PWD" GITHUB_OUTPUT="$work/$1.output" COMMAND="$3" VNIC_CI_NIC="$2" \
    VNIC_CI_GUESTS=2 VNIC_CI_TIMEOUT=120s VNIC_CI_FLAGS="${4:-}" VNIC_CI_NAME="$1" VNIC_CI_OUT="$work/$1" VNIC="$vnic" \
    "$work/container" sh -e "$work/step" > "$work/$1.stdout" 2> "$work/$1.stderr" || s=$?
  grep -qx "status=$s" "$work/$1.output" || fail "$1: status $s is not told: $(cat "$work/$1.output" "$work/$1.stderr")"
}
files() { # NAME: all of them are there
  for f in output.txt junit.xml report.html capture.pcapng flows.json machine.txt status; do
    [ -s "$work/$1/$f" ] || fail "$1: no $f: $(tail -n 5 "$work/$1.stderr")"
  done
  [ "$(ls "$work/$1/consoles" | wc -l)" = 2 ] || fail "$1: no consoles"
  [ "$(stat -c %s "$work/$1/report.html")" -lt 2000000 ] || fail "$1: report.html is too large"
}

cat > "$work/tap" <<'EOF'
#!/bin/sh
echo TAP version 13
echo 1..2
echo ok 1 - starts
if [ "$1" = good ]; then echo ok 2 - ends; exit 0; fi
echo "# it was told to"
echo not ok 2 - ends
exit 1
EOF
chmod +x "$work/tap"

echo "== a test that passes, in two guests"
step good virtio "'$work/tap' good"
[ $s = 0 ] || fail "status $s: $(tail -n 5 "$work/good.stderr")"
files good
# In the container an empty file hides the machine's own /dev/kvm (container, lib.sh).
grep -qx "vnic-ci: guests ran by tcg" "$work/good.stderr" &&
  grep -Eq "kvm: (no /dev/kvm|/dev/kvm is not a device)" "$work/good/machine.txt" ||
  fail "nothing of KVM: $(cat "$work/good.stderr" "$work/good/machine.txt")"
grep -q '<testsuites .*tests="4" failures="0" errors="0"' "$work/good/junit.xml" || fail "$(cat "$work/good/junit.xml")"

echo "== one that fails: the same, and red"
step bad gve "'$work/tap' bad"
[ $s = 1 ] || fail "status $s"
files bad
grep -q '<testsuites .*tests="4" failures="2" errors="0"' "$work/bad/junit.xml" || fail "$(cat "$work/bad/junit.xml")"
grep -q 'it was told to' "$work/bad/junit.xml" || fail "the failure has no reason"

echo "== one that hangs ends by itself, and is red"
s=0
timeout --signal=KILL 120 env VNIC="$vnic" VNIC_CI_TIMEOUT=15s VNIC_CI_OUT="$work/hangs" \
  "$work/container" packaging/ci/vnic-ci sleep 1000 > "$work/out" 2> "$work/err" || s=$?
[ $s = 124 ] || fail "status $s: $(cat "$work/err")"
grep -q 'failures="1"' "$work/hangs/junit.xml" || fail "$(cat "$work/hangs/junit.xml")"

echo "== mistakes"
mistake() { # STATUS TEXT COMMAND...
  local want=$1 text=$2 s=0
  shift 2
  "$@" > "$work/out" 2> "$work/err" || s=$?
  [ $s = "$want" ] && head -n 1 "$work/err" | grep -q "$text" || fail "$*: status $s: $(cat "$work/err")"
  echo "ok   $(head -n 1 "$work/err")"
}
mistake 2 'no command' packaging/ci/vnic-ci
mistake 3 'there is no ./nosuch' env VNIC=./nosuch packaging/ci/vnic-ci true
mistake 2 'VNIC_CI_OUT' env VNIC="$vnic" VNIC_CI_OUT=/proc/nosuch packaging/ci/vnic-ci true
