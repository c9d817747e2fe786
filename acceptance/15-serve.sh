#!/usr/bin/env bash
# "`vnic serve` for the user's own QEMU": QEMU runs with the flags that it prints, on either NIC, GPU memory included, as client
# and server, 10.0 and 11.1; iPXE; a stock virtio_net guest: DHCP, TCP both ways with TSO and checksum offload on and off, MTU
# 9000, VLAN, 4 queue pairs, curl from the host's loopback and back by --forward; a vnic that is started anew under QEMUs, whose
# flows take all queues as before; a second start, a killed one, SIGTERM; 64 ports that do nothing cost no CPU.
#
# Invariant: nic: A device that is idle wakes nobody.
. "$(dirname "$0")/lib.sh"
tool servelab
private_cache "$work/cache"
export VNIC_QEMU= VNIC_KERNEL= VNIC_MODULES=

# lab ARGUMENT...: servelab with the cache's QEMU, or -qemu.
lab() {
  local dir; dir=$(mktemp -d "$work/XXX")
  within 400 "$work/servelab" -vnic "$vnic" -cache "$work/cache" -dir "$dir" -limit 390s "$@" ||
    { tail -n 20 "$dir"/console-* >&2; fail "servelab $*"; }
}
s=0; old=$(VNIC_CACHE=$cache tools/qemu trixie bookworm-backports) || s=$?
[ $s = 0 ] || [ $s = 3 ] || fail "QEMU 10.0: status $s"
lab -nic virtio
lab -nic gve
lab -stock
if [ -n "$old" ]; then
  lab -nic virtio -client -qemu "$old"
  lab -stock -qemu "$old"
  # What people are told whose QEMU is too old for gve.
  "$vnic" serve --nic gve --socket-path "$work/g" > "$work/flags" 2> "$work/err" &
  pid=$!
  for _ in $(seq 100); do [ ! -s "$work/flags" ] || break; sleep 0.1; done
  eval "timeout 20 '$old' -display none $(grep '^  -' "$work/flags")" > "$work/says" 2>&1 && fail "QEMU 10.0 took gve's flags"
  why="'vfio-user-pci' is not a valid device model name"
  grep -q "$why" "$work/says" || fail "QEMU 10.0: $(cat "$work/says")"
  grep -q "^QEMU 10.1 or newer" "$work/flags" && grep "$why" "$work/flags" | sed 's/^/ok   /' || fail "$(cat "$work/flags")"
  kill $pid; wait $pid
  s=0; "$vnic" run --nic gve --qemu "$old" > "$work/says" 2>&1 || s=$?
  [ $s = 3 ] && grep 'too old for vfio-user: install 10.1 or newer' "$work/says" | sed 's/^/ok   /' || fail "status $s: $(cat "$work/says")"
else
  lab -nic virtio -client
  echo "skip QEMU 10.0: this machine's mirror has neither trixie nor bookworm-backports"
fi

# 64 ports: one clear message for whoever takes one of theirs; the memory of each; CPU time in 10 s.
for nic in virtio gve; do
  out=$work/out-$nic err=$work/err-$nic
  "$vnic" serve --nic "$nic" --socket-path "$work/s%d" --ports 64 --gpu-memory 0 --json > "$out" 2> "$err" &
  pid=$!
  for _ in $(seq 100); do [ ! -s "$out" ] || break; sleep 0.1; done
  for _ in $(seq 100); do "$work/jsoncheck" 'schema == 1' < "$out" > "$work/holds" 2>&1 && break; sleep 0.1; done
  holds "$out" 'schema == 1' 'port_bytes <= 1048576' 'ports.63.mac == "02:76:6e:69:00:40"'
  "$vnic" serve --socket-path "$work/s7" > "$work/second" 2>&1 && fail "a second start succeeded"
  grep -qx "vnic: socket $work/s7: in use: process $pid listens there: end it, or give another name" "$work/second" || fail "$(cat "$work/second")"
  ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
  before=$(ticks); sleep 10; after=$(ticks)
  [ $((after - before)) -le 1 ] || fail "$nic: $((after - before)) ticks of CPU in 10 s, with nobody there"
  grep -o '"[a-z]*_bytes": [0-9]*' "$out" | head -2 | sed "s/^/ok   $nic /"
  echo "ok   $nic: 64 ports: $((after - before)) ticks of CPU in 10 s"
  kill -KILL "$pid"; wait "$pid" 2>/dev/null || true
  [ "$(ls "$work" | grep -c '^s[0-9]')" = 64 ] || fail "not 64 sockets left by a killed vnic"
  rm "$out"
  "$vnic" serve --nic "$nic" --socket-path "$work/s%d" --ports 64 --gpu-memory 0 > "$out" 2> "$err" &
  pid=$!
  for _ in $(seq 100); do [ ! -s "$out" ] || break; sleep 0.1; done
  start=$(date +%s%N); kill -TERM "$pid"; wait "$pid" || fail "status $? after SIGTERM: $(cat "$err")"
  echo "ok   $nic: stale sockets replaced; SIGTERM: gone after $((($(date +%s%N) - start) / 1000000)) ms, status 0"
  [ -z "$(ls "$work" | grep '^s[0-9]')" ] || fail "sockets are left: $(ls "$work")"
done
echo PASS
