#!/usr/bin/env bash
# "`vnic image build` and `vnic image export` (the static guest tool)", for a QEMU of the user's own on `vnic
# serve`: two QEMUs are started by hand with the flags that it prints, on either NIC. One boots an image of `vnic
# image build` and has a shell on its serial line; the other boots a user's own initramfs, whose only file of vnic
# is the exported tool. The tool sends from GPU to GPU; the host counts in which memory the payload lay.
#
# Invariant: vnic image: The tool works in a guest that has nothing else of ours.
. "$(dirname "$0")/lib.sh"
export CGO_ENABLED=0
tool bareguest
private_cache "$work/cache"
export VNIC_CACHE=$work/cache VNIC_KERNEL= VNIC_MODULES=
cd "$work"

# In place of a user's own QEMU: the one of the cache, as a program.
own_qemu qemu
common='-nographic -vga none -nic none -no-reboot -accel tcg,thread=multi -cpu max'

# waits FILE TEXT SECONDS PROCESS: waits until the file contains the text; fails after SECONDS, or if the process
# that writes it has ended.
waits() {
  local i
  for i in $(seq $(($3 * 10))); do
    grep -aq -- "$2" "$1" 2>/dev/null && return
    kill -0 "$4" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$1" >&2
  fail "no '$2' in $1"
}

# The exported tool, and the messages for mistakes.
"$vnic" image export
[ "$(stat -c %a devmem)" = 755 ] || fail "the tool is not executable"
! ldd devmem > /dev/null 2>&1 || fail "the tool is no static program"
s=0; "$vnic" image export 2> err || s=$?
[ $s = 1 ] && grep -q 'devmem: is there already' err || fail "status $s: $(cat err)"
cat > small <<'SH'
mount -t tmpfs -o size=1M tmpfs "$1"
says() {
  s=0; "$vnic" image "$@" 2> err || s=$?
  [ $s = 1 ] && grep -q "$text" err || { echo "status $s"; cat err; exit 1; }
}
vnic=$2
text='^vnic: .*/devmem: no space left on device: free some, or give a name elsewhere$' says export -o "$1/devmem"
text='^vnic: .*/guest: no space left on device: ' says build --offline -o "$1/guest"
[ -z "$(ls -A "$1")" ] || { ls -lA "$1"; exit 1; }
mount -o remount,ro "$1"
text='read-only file system: give a name where you may write$' says build --offline -o "$1/guest"
SH
mkdir disk
unshare --user --map-root-user --mount bash -eu small "$work/disk" "$vnic" || fail "full, or read-only"
echo "ok   a full disk, a read-only one: said, and nothing is left"

# image NIC DIR ARGUMENT...: builds an image twice, and compares the two byte for byte.
image() {
  local nic=$1 dir=$2; shift 2
  "$vnic" image build --offline --nic "$nic" -o "$dir" --copy devmem:/opt/ "$@" > "$dir.txt"
  TERM=dumb "$vnic" image build --offline --nic "$nic" -o "$dir.again" --copy devmem:/opt/ "$@" > /dev/null
  diff -r "$dir" "$dir.again" || fail "two builds differ"
  rm -r "$dir.again"
}
# flags PORT: prints the QEMU flags that vnic serve has printed for the port, as words for a shell.
flags() { sed -n "/^# $1:/,/^\$/p" serve.out | sed -n 's/^  //p' | sed 's/ \\$//' | tr '\n' ' '; }
# sum PORT rx|tx WHAT [QUEUE]: prints the sum of a counter of vnic stat over the port's queues.
sum() {
  tr -d ' ,"{}' < stat.json | awk -F: -v port="$1" -v dir="$2" -v what="$3" -v queue="${4:-}" '
    $1 == "name" { p = $2 } $1 == "index" { q = $2 } $1 == "rx" || $1 == "tx" { d = $1 }
    p == port && d == dir && $1 == what && (queue == "" || q == queue) { n += $2 } END { print n + 0 }'
}
bytes=16777216

# pair NIC DEVICE QUEUE ARGUMENT...: runs the transfer with a vnic serve that has these arguments; the receiver
# binds QUEUE.
pair() {
  local nic=$1 device=$2 words serve recv send sha; shift 3
  rm -f in serve.out ./*.log; mkfifo in
  "$vnic" serve --nic "$nic" --socket-path "$work/s%d" --ports 2 --gpu-memory 128M "$@" > serve.out \
    2> serve.err & serve=$!
  waits serve.out 'dev-net1.*\(s1\|:02,\)' 20 $serve
  words=$(sed -n 's/^for devmem TCP.*: //p' serve.out)
  eval "timeout 150 ./qemu $(flags port0) $common -kernel $nic/kernel -initrd bare-$nic" \
    "-append 'console=ttyS0 quiet panic=-1 tsc=unstable $words -- recv -f $device -s 10.118.110.101 -p 5201 -L'" \
    < /dev/null > recv.log 2>&1 & recv=$!
  eval "timeout 150 ./qemu $(flags \
    port1) $common -kernel $nic/kernel -initrd $nic/initrd -append \"\$(cat $nic/append)\"" < in \
    > send.log 2>&1 & send=$!
  exec 3> in
  waits send.log 'port1:~# ' 100 $send
  waits recv.log 'Waiting for connection on 10.118.110.101:5201' 100 $recv
  grep -aq 'eth0 has 10.118.110.2/24' send.log || fail "no address by DHCP"
  echo "head -c $bytes /dev/urandom > /tmp/x; sha256sum /tmp/x; sleep 1000 & jobs" >&3
  echo "/opt/devmem send -s 10.118.110.101 -p 5201 < /tmp/x; exit 5" >&3
  wait $send || { cat send.log >&2; fail "the sender's QEMU"; }
  wait $recv || { cat recv.log >&2; fail "the receiver's QEMU"; }
  exec 3>&-
  "$vnic" stat --json $serve > stat.json
  kill -TERM $serve; wait $serve || fail "vnic serve: $(cat serve.err)"
  tr -d '\r' < send.log > s.log; tr -d '\r' < recv.log > r.log
  grep -q 'Running *sleep 1000' s.log || { cat s.log >&2; fail "no job control"; }
  grep -q '^vnic-guest: .*sh: exit status 5$' s.log || { cat s.log >&2; fail "the shell's end"; }
  sha=$(sed -n 's/^.*\([0-9a-f]\{64\}\)  \/tmp\/x$/\1/p' s.log)
  [ -n "$sha" ] && grep -q "^bareguest: recv: $bytes bytes, sha256 $sha: exit status 0\$" r.log || \
    { cat s.log r.log >&2; fail "$nic: not what was sent"; }
  echo "ok   $nic $*: $bytes bytes, sha256 $sha, in both guests"
}

modules=$(dirname "$(find -L "$cache/kernel" -name kernel -type d -path '*/modules/*' | head -n 1)")
for nic in virtio gve; do
  image $nic $nic
  case $nic in
    virtio) device=virtio queue=1 files="uio/uio.ko uio/uio_pci_generic.ko" ;;
    gve) device=eth0 queue=3 files=net/ethernet/google/gve/gve.ko ;;
  esac
  ./bareguest -o bare-$nic -tool devmem $(for f in $files; do ls "$modules/kernel/drivers/$f"*; done)
  pair $nic $device $queue
  # At most a few bytes of payload are retransmitted, and no frame is lost. The payload in host memory is DHCP's.
  tx=$(sum port1 tx device_bytes) host=$(sum port1 tx host_bytes) rx=$(sum port0 rx device_bytes) \
    rxhost=$(sum port0 rx host_bytes $queue)
  echo "ok   $nic: sent from device memory $tx, from host memory $host; \
received in device memory $rx, in host memory $rxhost"
  [ "$tx" = "$rx" ] && [ "$tx" -ge $bytes ] && [ "$tx" -lt $((bytes + bytes / 20)) ] && [ "$host" -lt 8192 ] && \
    [ "$rxhost" = 0 ] || fail "counters"
done

# The negative control: if the NIC cannot reach the GPU, the same bytes arrive, and are counted as host memory.
pair virtio virtio 1 --p2p off
tx=$(sum port1 tx device_bytes) host=$(sum port1 tx host_bytes) rx=$(sum port0 rx device_bytes) \
  rxhost=$(sum port0 rx host_bytes 1)
echo "ok   --p2p off: sent from device memory $tx, from host memory $host; \
received in device memory $rx, in host memory $rxhost"
[ "$tx" = 0 ] && [ "$rx" = 0 ] && [ "$host" -ge $bytes ] && [ "$rxhost" -ge $bytes ] || fail "counters without P2P"

# A user's program in both guests, which sends by the kernel's own API: its output and its exit status are on the
# console.
"$root/tools/with-tools" --cc sh -c '"${CC:-gcc}" -O2 -o cdevmem "$0"' "$root/guest/docs/devmem.c"
image gve program --copy cdevmem:/opt/ -- sh -c 'echo "I am $(hostname) with $VNIC_DEVICE"; /opt/cdevmem && exit 7'
rm serve.out
"$vnic" serve --nic gve --socket-path "$work/s%d" --ports 2 --gpu-memory 128M > serve.out 2> serve.err & serve=$!
waits serve.out 'dev-net1.*s1' 20 $serve
for i in 0 1; do
  eval "timeout 150 ./qemu $(flags \
    port$i) $common -kernel program/kernel -initrd program/initrd -append \"\$(cat program/append)\"" \
    < /dev/null > $i.log 2>&1 &
  guest[$i]=$!
done
for i in 0 1; do
  wait ${guest[$i]} || { cat $i.log >&2; fail "QEMU $i"; }
  tr -d '\r' < $i.log > s.log
  grep -q "I am port$i with eth0\$" s.log && grep -q '^vnic-guest: sh: exit status 7$' s.log || { cat s.log >&2; \
    fail "a program"; }
done
tr -d '\r' < 0.log | grep -q 'received 25165824 bytes, 0 not in GPU memory, 0 wrong$' || fail "$(cat 0.log)"
kill -TERM $serve; wait $serve
echo "ok   a C program sends from GPU to GPU; its output and exit status are on the console"
[ -z "$(ls | grep '^s[0-9]$')" ] || fail "sockets are left"
echo PASS
