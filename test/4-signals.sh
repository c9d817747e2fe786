#!/usr/bin/env bash
# "SIGINT, SIGTERM and SIGKILL at each of 8 named stages: within 5 s no child, socket, memory file
# or temporary directory is left (compared before and after), and the next run works. Bad flags, no
# QEMU and no network, no space for GPU memory, a kernel without what we need, a killed guest: one
# clear message each, exit status as CONVENTIONS.md says."
#
# Each run is a session. The script lists what it has open before the signal, and looks for these files on the whole
# machine after it. The next case, which runs up to its own stage, and a complete run at the end show that the next
# run works.
#
# Invariant: vnic: A signal at any stage ends what was started, and leaves nothing.
. "$(dirname "$0")/lib.sh"
. test/signals.sh

"$vnic" run --size 4M --mode devmem --json > /dev/null # fills the cache, and shows that a run works
echo "== at each stage"
for stage in fetch gpu-memory boot setup prepare connect transfer verify; do
  case $stage in fetch | gpu-memory | boot) n=2 ;; *) n=4 ;; esac # vnic, its broker and two QEMUs
  for sig in INT TERM KILL; do
    begin --size 4M --mode devmem --pause-at $stage
    until_line "^stage: $stage\$"
    end $sig "at $stage" $n
  done
done
echo "== in the middle of things"
mkdir "$work/nothing"
silent_mirror
for sig in INT KILL; do # TERM goes INT's way
  PATH=/usr/bin:/bin no_proxy=127.0.0.1 http_proxy='' begin --mirror "$mirror" --cache "$work/nothing" --size 4M
  until_ fetching # vnic, its broker, apt-get, what it reads the mirror with
  end $sig "while a mirror does not answer" 4
  left=$(find "$work/nothing" -mindepth 2)
  [ -z "$left" ] || fail "$sig while fetching: left $left"
  begin --size 4M --mode devmem
  until_guests 2
  end $sig "while guests boot" 4
  begin --size 2G --mode devmem
  until_line '^stage: transfer' && sleep 0.3
  end $sig "in mid-transfer, mode devmem" 4
  begin --size 2G --mode copy
  until_line '^stage: transfer' && sleep 0.3
  end $sig "in mid-transfer, mode copy" 4
done
kill -KILL $silent
begin --size 4M --mode devmem --pause-at transfer
until_line '^stage: transfer'
end GROUP "(Ctrl-C of a terminal) at transfer" 4
for which in 1 2; do # a QEMU that does not react, as it is stopped
  begin --size 4M --mode devmem --pause-at transfer
  until_line '^stage: transfer'
  kill -STOP "$(qemus | sed -n ${which}p)"
  if [ $which = 1 ]; then end INT "with a QEMU that hangs" 4; else end TWICE "with a QEMU that hangs" 4; fi
done
within 120 "$vnic" run --size 4M --mode devmem --json > "$work/next.json"
holds "$work/next.json" "$(devmem_proof 0)"

# refused STATUS PATTERN COMMAND...: the command ends with this status, and one message that matches PATTERN.
refused() {
  local want=$1 pattern=$2 status=0; shift 2
  timeout 120 "$@" > "$work/out" 2> "$work/err" || status=$?
  [ $status = "$want" ] || { cat "$work/err" >&2; fail "status $status, not $want: $*"; }
  one_message "$pattern" "$*"
  echo "ok   $status: $(grep '^vnic: ' "$work/err")"
}
echo "== wrong use: 2"
refused 2 'size' "$vnic" run --size nonsense
refused 2 'size' "$vnic" run --size 0
refused 2 'size' "$vnic" run --size -1
refused 2 'loss' "$vnic" run --loss 150%
refused 2 'family' "$vnic" run --family 5
refused 2 'mode' "$vnic" run --mode rdma
refused 2 'unknown flag' "$vnic" run --no-such-flag
refused 2 'unknown command' "$vnic" walk
refused 2 'gpu-memory' "$vnic" run --gpu-memory 100M
refused 2 'mtu' "$vnic" run --mtu 20
refused 2 'modules' "$vnic" run --modules /lib/modules
echo "== something is missing: 3"
refused 3 'package mirror not reachable.*(--mirror|--qemu)' env PATH=/usr/bin:/bin no_proxy=127.0.0.1 http_proxy= \
  VNIC_MIRROR=http://127.0.0.1:9/debian "$vnic" run --cache "$work/nothing"
refused 3 'not in the cache' env PATH=/usr/bin:/bin "$vnic" run --offline --cache "$work/nothing"
refused 3 'no/such/qemu.*install' "$vnic" run --qemu /no/such/qemu
refused 3 'no/such/kernel.*--kernel' "$vnic" run --kernel /no/such/kernel
refused 3 'not a bzImage' "$vnic" run --kernel /etc/passwd
kernel=$(find "$VNIC_CACHE/kernel/" -name 'vmlinuz*' | head -n 1)
mkdir -p "$work/modules"
refused 3 'uio_pci_generic' "$vnic" run --kernel "$kernel" --modules "$work/modules"
refused 3 'gpu-memory 64T' "$vnic" run --guest inproc --gpu-memory 64T --size 1M
refused 3 'gpu-memory 512M' bash -c 'ulimit -f 1024; exec "$0" run --guest inproc --size 1M' "$vnic"
refused 3 'cache' "$vnic" run --cache /proc/no/such
echo "== a guest that is killed: 1"
for which in 1 2; do
  begin --size 2G --mode devmem
  until_line '^stage: transfer' && sleep 0.3
  kill -KILL "$(qemus | sed -n ${which}p)"
  t0=$SECONDS status=0
  wait $pid || status=$?
  [ $((SECONDS - t0)) -le 5 ] || fail "took $((SECONDS - t0)) s to notice"
  [ $status = 1 ] || { cat "$work/err" >&2; fail "status $status"; }
  one_message 'guest [AB]: QEMU ended early: signal: killed' "a guest killed"
  [ -z "$(alive $pid)" ] || fail "processes left"
  echo "ok   $status after $((SECONDS - t0)) s: $(grep '^vnic: ' "$work/err")"
done
echo PASS
