#!/usr/bin/env bash
# "ncdevmem receives 64 MiB with validation (0 errors) and sends, over IPv4 and IPv6": the kernel's own test of devmem TCP, of
# the guest kernel's version, on a stock kernel with its own gve driver. Our process is the peer and the judge.
#
# What it proves, beside what ncdevmem says itself (acceptance/internal/ncdevmem tells how):
#   - bytes: what it found in its dma-buf and what it sent are compared in the peer, byte by byte (random bytes);
#   - place: the NIC wrote to, and read from, the GPU's file only. ncdevmem registers no buffer, so the counts are of that file
#     as a whole; and the host finds the bytes in GPU memory and not in guest RAM by looking at both;
#   - negative controls: the same with its buffer elsewhere, and a plain sender, are counted, and found, in host memory.
#
# Invariant: vnic run: Linux's own ncdevmem receives and sends over the NIC, and every byte is compared.
. "$(dirname "$0")/lib.sh"
tool ncdevmem
tools=$(tools/ncdevmem)
export TMPDIR=$work/tmp
mkdir "$TMPDIR"
limit=${LIMIT:-240}

# left SESSION: nothing of it, five seconds after its end at the latest.
left() {
  local t0=$SECONDS
  while [ -n "$(alive "$1")" ]; do
    [ $((SECONDS - t0)) -lt 5 ] || { for p in $(alive "$1"); do tr '\0' ' ' < "/proc/$p/cmdline"; echo; done >&2; fail "processes are left"; }
    sleep 0.05
  done
  find "$TMPDIR" -mindepth 1 | grep . && fail "files are left"
  [ -z "${2:-}" ] || { still "$2" > "$work/still"; [ ! -s "$work/still" ] || { cat "$work/still" >&2; fail "somebody has its sockets or memory"; }; }
  echo "ok   no process, file, socket or memory of it is left"
}

start=$SECONDS status=0
setsid timeout --foreground --kill-after=10 "$limit" "$work/ncdevmem" "$tools" & pid=$!
wait $pid || status=$?
[ $status = 0 ] || fail "status $status after $((SECONDS - start)) s"
echo "ok   $((SECONDS - start)) s of $limit"
left $pid

for sig in TERM KILL; do
  echo "== SIG$sig while the guest is there"
  setsid "$work/ncdevmem" "$tools" > "$work/out" 2>&1 & pid=$!
  for ((i = 0; i < 1200; i++)); do
    [ "$(alive $pid | wc -l)" -lt 2 ] || break # the program, and QEMU
    kill -0 $pid 2>/dev/null || { cat "$work/out" >&2; fail "ended too early"; }
    sleep 0.05
  done
  [ "$(alive $pid | wc -l)" -ge 2 ] || fail "no QEMU"
  held $pid > "$work/held"
  [ -s "$work/held" ] || fail "nothing to be seen of it"
  kill -$sig $pid
  wait $pid 2>/dev/null && fail "status 0"
  left $pid "$work/held"
done
echo PASS
