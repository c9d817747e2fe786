#!/usr/bin/env bash
# A machine that is about twenty times slower: four busy loops run on its processors, and vnic with its guests runs
# beside them at nice 10. With --slow 20 the two commands of make demo pass, and no time limit ends them. The same
# command without the loops shows how slow the machine was.
#
# Invariant: vnic: On a machine that is N times slower runs with --slow N pass.
. "$(dirname "$0")/lib.sh"
unset VNIC_ACCEL VNIC_SLOW
cd "$work"
run() { # SECONDS NAME COMMAND...
  local limit=$1 name=$2 begin=$SECONDS; shift 2
  within "$limit" nice -n 10 "$vnic" run --accel tcg "$@" --json > run.json 2> err || { cat err >&2; fail "$name"; }
  holds run.json 'runs.0.sha256_match == true' 'runs.1.sha256_match == true'
  echo "ok   $name: $((SECONDS - begin)) s"
}
run 120 'alone: --size 32M' --size 32M
for ((i = 0; i < 4; i++)); do (while :; do :; done) & done
run 1500 'beside: --size 32M' --slow 20 --size 32M
run 1500 'beside: --nic gve --size 16M' --slow 20 --nic gve --size 16M
