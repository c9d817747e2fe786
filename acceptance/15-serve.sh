#!/usr/bin/env bash
# "`vnic serve` for the user's own QEMU": QEMU runs with the flags that it prints, on either NIC, GPU memory included, as client
# and server; a stock virtio_net guest: DHCP, TCP both ways with TSO and checksum offload on and off, MTU 9000, VLAN, 4 queue
# pairs; a second start, a killed one, SIGTERM; 64 ports that do nothing cost no CPU.
. "$(dirname "$0")/lib.sh"
tool servelab
private_cache "$work/cache"

for how in '-nic virtio' '-nic virtio -client' '-nic gve' '-stock'; do
  dir=$(mktemp -d "$work/XXX")
  within 240 "$work/servelab" -vnic "$vnic" -cache "$work/cache" -dir "$dir" -limit 230s $how ||
    { tail -n 20 "$dir"/console-* >&2; fail "servelab $how"; }
done

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
