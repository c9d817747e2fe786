#!/usr/bin/env bash
# "NBD": package block/nbd reads from and writes to nbdkit and qemu-nbd, with payload to and from device memory (of
# devmem/plain: ordinary sockets, no guest), and for comparison through host memory:
# - all of nbdkit's pattern is read, at several sizes and depths, and each byte is right; nbdcopy reads the same;
# - nbdcopy and qemu-img read back the data that we wrote, and it is in qemu-nbd's file; we read the data that
#   nbdcopy wrote;
# - at 128 KiB, heads that the CPU looks at are less than 0.1 % of the data; no payload goes through host memory;
# - only blocks that a server refuses fail; an error names what a server does not support;
# - if a server is shut down, killed, or stopped, the client ends in bounded time. Servers and clients are this
#   machine's, or Debian's packages, unpacked (tools/nbd).
# It takes half a minute.
. "$(dirname "$0")/lib.sh"
. test/uses.sh
tool nbdclient
tools/nbd # fetches

# serve PROGRAM ARGUMENT...: starts nbdkit or qemu-nbd at $at, as process $server.
serve() {
  local p on=(nbdkit --foreground -i); p=$(port)
  [ "$1" = nbdkit ] || on=(qemu-nbd -b)
  at=127.0.0.1:$p
  tools/nbd "${on[@]}" 127.0.0.1 -p "$p" "${@:2}" > "$work/server.log" 2>&1 {said}>&- & server=$!
  served "$p" $server || { cat "$work/server.log" >&"$said"; fail "$*: does not serve"; }
}
# stop: ends the server.
stop() { kill $server; wait $server 2> /dev/null || true; }

# client JOB ARGUMENT...: runs the job of our client, in bounded time; its output is in $work/out.
client() {
  timeout 120 "$work/nbdclient" "$1" --server "$at" "${@:2}" > "$work/out" 2> "$work/err" ||
    { cat "$work/out" "$work/err" >&"$said"; fail "$*"; }
}
# value NAME: prints the value of this name in the client's output.
value() { sed -n "s/.*\b$1[= ]\([0-9a-f]*\).*/\1/p" "$work/out"; }
# digest: prints the digest of the data that the client read or wrote.
digest() { sed -n 's/^sha256 //p' "$work/out"; }
# refuses PATTERN JOB ARGUMENT...: the client fails within 20 s, with an error that matches.
refuses() {
  local want=$1 s=0 start=$SECONDS; shift
  timeout 20 "$work/nbdclient" "$1" --server "$at" "${@:2}" > "$work/out" 2> "$work/err" || s=$?
  [ $s = 1 ] && grep -qE -- "$want" "$work/err" ||
    { cat "$work/out" "$work/err" >&"$said"; fail "$*: status $s, want: $want"; }
  echo "ok   refused: $(head -n 1 "$work/err")"
}
# same WHAT DIGEST DIGEST
same() { [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: $2, and $3"; echo "ok   $1: sha256 ${2:0:16}..."; }

echo "== nbdkit pattern: reads"
serve nbdkit pattern size=64M
tools/nbd nbdcopy "nbd://$at" "$work/copy"
theirs=$(sha256sum "$work/copy" | cut -d ' ' -f 1)
for bs in 4096 131072 1048576; do
  for depth in 1 8 64; do
    client pattern --bs $bs --depth $depth
    echo "ok   bs $bs, depth $depth: $(sed -n 2p "$work/out")"
    [ "$(digest)" = "$theirs" ] || fail "nbdcopy reads $theirs, we $(digest)"
    [ $bs -lt 131072 ] || [ $((1000 * $(value looked))) -lt "$(value read)" ] || fail "too much was looked at"
  done
done
client pattern --bs 131072 --depth 8 --copy
echo "ok   copied, depth 8: $(sed -n 2p "$work/out")"
same "as nbdcopy reads it" "$(digest)" "$theirs"
client pattern --bs 66048 --depth 7
same "in blocks of 66048 bytes" "$(digest)" "$theirs"
refuses 'read-only file system' write --bs 1048576
stop
serve nbdkit pattern size=1000003
client pattern --bs 4099 --depth 5
same "a size that nothing divides" "$(digest)" \
  "$(tools/nbd nbdcopy "nbd://$at" - | sha256sum | cut -d ' ' -f 1)"
stop

echo "== nbdkit memory: writes"
serve nbdkit memory 32M
for options in "--bs 1048576 --depth 8" "--bs 131072 --depth 64" "--bs 4096 --depth 16" \
  "--bs 131072 --depth 8 --copy"; do
  seed=$RANDOM
  client write --seed $seed $options # several options
  echo "ok   $options: $(sed -n 2p "$work/out")"
  same "as nbdcopy reads it back" "$(digest)" "$(tools/nbd nbdcopy "nbd://$at" - | sha256sum | cut -d ' ' -f 1)"
  written=$(digest)
  client read
  same "and we" "$(digest)" "$written"
done
grep -q 'coherent true' "$work/out" ||
  fail "nbdkit's memory has NBD_FLAG_CAN_MULTI_CONN, and a flush: $(cat "$work/out")"
stop

echo "== qemu-nbd, a file"
truncate -s 32M "$work/disk"
serve qemu-nbd --persistent --shared=4 -f raw -x exp "$work/disk"
for options in "--bs 1048576 --depth 8" "--bs 65536 --depth 64" "--bs 4096 --depth 32"; do
  client write --export exp --seed $RANDOM $options
  echo "ok   $options: $(sed -n 2p "$work/out")"
  same "as it is in the file" "$(digest)" "$(sha256sum "$work/disk" | cut -d ' ' -f 1)"
done
written=$(digest)
tools/nbd qemu-img convert -f raw -O raw "nbd://$at/exp" "$work/back"
same "as qemu-img reads it back" "$written" "$(sha256sum "$work/back" | cut -d ' ' -f 1)"
client read --export exp --bs 131072 --depth 32
same "and we" "$(digest)" "$written"
head -c 32M "$work/copy" > "$work/half"
tools/nbd nbdcopy "$work/half" "nbd://$at/exp"
client pattern --export exp --bs 131072 --depth 16
same "what nbdcopy wrote, as we read it" "$(digest)" "$(sha256sum "$work/half" | cut -d ' ' -f 1)"
refuses 'export "tape": NBD_REP_ERR_UNKNOWN: there is no such export; it says .*: no such file' read --export tape
stop
serve qemu-nbd --persistent --read-only -f raw -x exp "$work/disk" # one client at a time, which may only read
client pattern --export exp
refuses 'read-only file system' write --export exp
stop
serve qemu-nbd --persistent -f raw -x exp "$work/disk"
refuses 'write connection to .*one client at a time can be opened read-only.*not done in 2s' \
  read --export exp --timeout 2s
client pattern --export exp --read-only
echo "ok   one client at a time can be opened read-only"
stop

echo "== what a server refuses"
serve nbdkit --filter=error pattern size=64M error-pread=ENOSPC error-pread-rate=20%
client pattern --bs 65536 --depth 16 --errors
[ "$(value refused)" -gt 50 ] && grep -q '\[NBD_ENOSPC (28):' "$work/out" || fail "$(cat "$work/out")"
echo "ok   $(sed -n 3p "$work/out"), of $(value ops) operations"
stop
serve nbdkit --oldstyle memory 1M
refuses 'oldstyle negotiation, which has no NBD_OPT_GO: operation not supported' read
stop
printf 'me:%064d\n' 7 > "$work/keys"
serve nbdkit --tls=require --tls-psk="$work/keys" memory 1M
refuses 'NBD_REP_ERR_TLS_REQD: a record of TLS cannot be decrypted in device memory here.*operation not supported' read
stop
refuses 'connection refused' read

echo "== a server that goes, or stops"
# left SIGNAL PATTERN: sends the server a signal while the client reads; the client's error must match.
left() {
  serve nbdkit pattern size=64M
  : > "$work/out" # the one before has opened its export
  timeout 60 "$work/nbdclient" pattern --server "$at" --pause --timeout 2s > "$work/out" 2> "$work/err" & local c=$! s=0
  until grep -q opened "$work/out" || ! kill -0 $c 2> /dev/null; do sleep 0.1; done
  kill -"$1" $server
  [ "$1" = STOP ] || wait $server 2> /dev/null || true
  wait $c || s=$?
  [ "$1" != STOP ] || { kill -CONT $server; stop; }
  [ $s = 1 ] && grep -qE "$2" "$work/err" || { cat "$work/err" >&"$said"; fail "SIG$1: status $s"; }
  echo "ok   SIG$1: $(head -n 1 "$work/err")"
}
left TERM 'the server is being shut down: ' # NBD_ESHUTDOWN
left KILL 'read connection to .*(connection reset|the server ended it|broken pipe)'
left STOP 'read connection to .*: no progress for 2s'
echo PASS
