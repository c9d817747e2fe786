#!/usr/bin/env bash
# "A guest with tools": u-root's commands in every guest, Debian packages by --tools.
# - On a machine with no shell and no tool in PATH a guest has a shell and commands, and pings; a ping of an
#   address that is denied gets an ICMP error.
# - --tools net: ethtool, ping and iperf3 between two guests, on either NIC. ethtool sets header split on gve, and
# Linux refuses it on virtio. Packages are fetched once, after a note with the megabytes; after that --offline
# works. - Packages have their own libraries, see the guest's files, and can start programs; also python and
# ncdevmem. - For a word that is no package, or a package that is not in the cache, the first line of the error says
# so.
#
# Invariant: vnic boot: Programs of packages run in a guest with their own libraries, and on the guest's files.
. "$(dirname "$0")/lib.sh"
private_cache "$work/cache"
export VNIC_CACHE=$work/cache VNIC_QEMU= VNIC_KERNEL= VNIC_MODULES=
cd "$work"
# has FILE TEXT...: the file contains each text as a part of a line.
has() {
  local file=$1 t; shift
  for t; do grep -qF -- "$t" "$file" || fail "no \"$t\" in: $(cat "$file")"; done
}

echo "== u-root alone"
cat > uroot.sh <<'SH'
set -e
cd /root
[ "$# $1" = '2 first' ]
x=0; until [ $x = 3 ]; do x=$((x + 1)); done
if [ $x = 3 ] && [ -n "$VNIC_INDEX" ]; then echo "loops $x"; fi
ls / > list; grep -c bbin list; ps > /dev/null; lsmod | grep virtio_net | wc -l
mount | grep 'proc /proc'; dmesg | grep -c Linux
ip address show eth0 | grep 10.118.110.1/24
netcat -l 127.0.0.1 7 > got < /dev/null &
until echo hello | netcat 127.0.0.1 7 > /dev/null; do sleep 1; done
wait; cat got
ping -c 1 gateway
if ping -c 1 8.8.8.8 2> said; then exit 1; fi
cat said
SH
within 90 env PATH=/nowhere "$vnic" boot --deny 8.8.8.8 --copy uroot.sh:/root/uroot.sh -- \
  sh /root/uroot.sh first second > out 2>&1 || fail "status $?: $(cat out)"
has out "loops 3" hello "proc /proc proc" "10.118.110.1/24" "64 bytes from gateway" "destination unreachable Code:13"
within 90 env PATH=/nowhere "$vnic" boot -- ls /bbin > out 2>&1 || fail "ls: $(cat out)"
has out insmod lsmod wget netcat gosh

echo "== --tools net, which nothing has fetched yet"
status=0; "$vnic" boot --offline --tools net -- true > out 2>&1 || status=$?
[ $status = 3 ] || fail "--offline: status $status"
head -n 1 out | grep -q '^vnic: --tools net in .*: not in the cache' || fail "--offline: $(cat out)"
status=0; "$vnic" boot --tools net,no-such-package -- true > out 2>&1 || status=$?
[ $status = 2 ] || fail "no-such-package: status $status"
grep '^vnic: ' out | head -n 1 | grep -q 'no package no-such-package' || fail "no-such-package: $(cat out)"
words='ethtool -i eth0 && ping -c1 gateway && if [ $VNIC_INDEX = 0 ]; then iperf3 -s -1; else '
words+='until iperf3 -c guest0 -t 1; do sleep 1; done; fi'
within 300 "$vnic" boot --guests 2 --tools net -- sh -c "$words" > out 2>&1 || fail "virtio: $(cat out)"
has out "MB are downloaded, this once" "driver: virtio_net" "1 received, 0% packet loss" "iperf Done."
within 180 "$vnic" boot --offline --nic gve --guests 2 --tools net -- sh -c "$words" > out 2>&1 ||
  fail "gve: $(cat out)"
has out "driver: gve" "1 received, 0% packet loss" "iperf Done."
! grep -q download out || fail "fetched twice: $(cat out)"

echo "== header split"
split='ethtool -G eth0 tcp-data-split on; echo "status $?"; ethtool -g eth0'
within 90 "$vnic" boot --nic gve --tools net -- sh -c "$split" > out 2>&1 || fail "gve: $(cat out)"
grep -q '^TCP data split:.*on$' out && has out "status 0" || fail "gve: $(cat out)"
within 90 "$vnic" boot --tools net -- sh -c "$split" > out 2>&1 || fail "virtio: $(cat out)"
has out "setting TCP data split is not supported"

echo "== libraries of their own, the guest's files, programs that start programs"
cat > program.py <<'PY'
import os, subprocess
print("in", os.getcwd())
print(subprocess.run(["ethtool", "-i", "eth0"], capture_output=True, text=True).stdout)
open("written", "w").write("by python")
PY
cat > all.sh <<'SH'
set -e
mkdir /new; cd /new
python3 /root/program.py; cat written; echo
tcpdump -i lo -c 1 -w dump > tcpdump.log 2>&1 & sleep 3
ping -c 2 127.0.0.1 > /dev/null; wait
tcpdump -r dump | grep 'echo request'
ip netns add there; ip netns exec there ip link | grep lo:
! mount | grep ' /etc/ld.so.cache '
ncdevmem -h 2>&1 | head -n 1; echo end
SH
tools=net,python,iproute2
if [ -e "$cache/selftests-tools" ] && [ -e "$cache/selftests-root" ]; then # else it is 400 MB to download
  tools=$tools,ncdevmem
  for d in selftests selftests-tools selftests-root; do ln -s "$cache/$d" "$work/cache/$d"; done
fi
within 400 "$vnic" boot --nic gve --copy program.py:/root/program.py --copy all.sh:/root/all.sh --tools $tools -- \
  sh /root/all.sh > out 2>&1 || fail "status $?: $(cat out)"
has out "in /new" "driver: gve" "by python" "ICMP echo request" "lo: <LOOPBACK>" end
[[ $tools != *ncdevmem ]] || has out "ncdevmem.real: invalid option"

echo "== vnic image build --tools: a file in the initrd, under a QEMU of somebody else's"
"$vnic" image build --offline --tools net -o image -- sh -c 'ethtool --version && ping -c1 127.0.0.1' > /dev/null
own_qemu qemu
within 120 ./qemu -nographic -vga none -nic none -no-reboot -accel tcg,thread=multi -cpu max -m 512M \
  -kernel image/kernel -initrd image/initrd -append "$(cat image/append)" < /dev/null > out 2>&1 ||
  fail "image: $(cat out)"
has out "ethtool version" "1 received, 0% packet loss" "sh: exit status 0"

echo "== what no program is"
status=0; "$vnic" boot -- no-such-program > out 2>&1 || status=$?
[ $status = 2 ] && grep -q '^vnic: command no-such-program: .*--tools PACKAGE' out || fail "status $status: $(cat out)"
