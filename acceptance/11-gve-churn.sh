#!/usr/bin/env bash
# "50 bind/unbind cycles, rmmod/insmod of gve, link down and up, under traffic: the kernel log has no WARN but the one that
# docs/specs/gve.md explains."
#
# One guest with two gVNICs, wired to each other: TCP streams, ordinary and of device memory, run through all of it, every
# byte compared. What is done, and after how many seconds, is what the program prints.
#
# Invariant: vnic run: 50 bindings and reloads of the driver under traffic leave no kernel warning but the one
# that is explained.
. "$(dirname "$0")/lib.sh"
tool gvechurn
mkdir "$work/tmp"
private_cache "$work/cache"

within 240 env TMPDIR="$work/tmp" "$work/gvechurn" -cache "$work/cache" -cycles "${CYCLES:-50}" -console "$work/console" -limit 230s |
  tee "$work/out" || { tail -n 40 "$work/console" >&2; fail "gvechurn"; }
for step in '50 bind/unbind cycles' 'eth0 down and up . times while bound' 'link 0 up=true' 'driver unloaded and loaded' \
  "no WARNING, BUG, Oops or timeout" 'the one warning that docs/specs/gve.md explains'; do
  grep -q "^ok .*$step" "$work/out" || [ "${CYCLES:-50}" != 50 ] || fail "not seen: $step"
done
[ -z "$(find "$work/tmp" -mindepth 1)" ] || fail "files are left: $(find "$work/tmp" -mindepth 1)"
echo PASS
