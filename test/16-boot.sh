#!/usr/bin/env bash
# "A static program that exits 7, and a dynamic one that prints, on both fetched kernels and on a kernel given by
# path; output unmangled, status passed on." "A C program with the kernel's API on gve." The script also tests
# errors, signals, and that nothing is left. TestProgramRunsInAGuest (internal/job/boot) tests programs of
# package guest.
#
# Invariant: vnic boot: A program's output and exit status reach the host unchanged, with either
# NIC.
. "$(dirname "$0")/lib.sh"
private_cache "$work/cache"
export VNIC_CACHE=$work/cache VNIC_QEMU= VNIC_KERNEL= VNIC_MODULES=
cd "$work"

cat > static.go <<'GO'
package main

import "os"

// All bytes, a line without an end, and input as it comes.
func main() {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	os.Stdout.Write(all)
	os.Stderr.WriteString("to stderr\n")
	b := make([]byte, 1<<20)
	for {
		n, err := os.Stdin.Read(b)
		os.Stdout.Write(b[:n])
		if err != nil {
			os.Exit(7)
		}
	}
}
GO
cat > dynamic.c <<'C'
#include <stdio.h>
#include <math.h>
#include <unistd.h>
int main(int argc, char **argv) {
  char host[64];
  gethostname(host, sizeof host);
  printf("%s: %d arguments, the root of 2 is %.6f\n", host, argc, sqrt(argc));
  return 0;
}
C
(cd "$root" && tools/with-tools go build -o "$work/static" "$work/static.go")
tools=$root/tools
"$tools/with-tools" --cc sh -c '"${CC:-gcc}" -o dynamic dynamic.c -lm'
readelf -d dynamic 2>/dev/null | grep -q NEEDED || grep -aq 'libm\.so' dynamic || fail "dynamic is static"
head -c 300000 /dev/urandom > input
{ printf "$(printf '\\%03o' $(seq 0 255))"; cat input; } > want

# programs WHAT ARGUMENT...: runs both programs in a guest of `vnic boot ARGUMENT...`.
programs() {
  local what=$1 s=0; shift
  timeout 240 "$vnic" boot "$@" --host-ports all -- ./static < input > out 2> err || s=$?
  [ $s = 7 ] || { cat err >&2; fail "$what: static: status $s"; }
  cmp out want || fail "$what: its output is mangled"
  [ "$(grep -v '^note: no device memory TCP: kernel 6\.' err)" = "to stderr" ] || fail "$what: stderr: $(cat err)"
  within 240 "$vnic" boot "$@" -- ./dynamic 2 > out 2> err2 < /dev/null || { cat err2 >&2; \
    fail "$what: dynamic: status $?"; }
  [ "$(cat out)" = "guest0: 2 arguments, the root of 2 is 1.414214" ] || fail "$what: dynamic: $(cat out)"
  echo "ok   $what: static: status 7, $(stat -c %s want) bytes as they are; dynamic prints"
}
programs "fetched kernel, virtio"
programs "fetched kernel, gve" --nic gve
kernel=$(find -L "$cache/kernel" -name 'vmlinuz*' | head -n 1)
cp "$kernel" bzImage
cp -r "$(dirname "$(find -L "$cache/kernel" -name modules.order -o -name kernel -type d -path '*/modules/*' | \
  head -n 1)")" modules
programs "kernel by path" --kernel bzImage --modules modules
if older=$(VNIC_CACHE=$cache "$tools/kernel" bookworm-backports trixie); then
  read -r image dir <<< "$older"
  programs "kernel $(basename "$dir"), virtio" --kernel "$image" --modules "$dir"
  programs "kernel $(basename "$dir"), gve" --nic gve --kernel "$image" --modules "$dir"
  s=0; "$vnic" boot --kernel "$image" --modules modules -- ./static > out 2> err || s=$?
  [ $s = 3 ] && [ ! -s out ] && grep -q 'made for another kernel' err || \
    fail "modules of another kernel: status $s: $(cat err)"
  echo "ok   modules of another kernel: $(head -n 1 err)"
else
  echo "skip kernel 6.12: this machine's mirror has neither bookworm-backports nor trixie"
fi

# When a program starts, the network works: the link is up, and all addresses can be bound (none is
# IFA_F_TENTATIVE).
cat > ready <<'SH'
#!/bin/bash
echo "eth0 $(cat /sys/class/net/eth0/operstate)"
while read -r addr _ _ _ flags name; do
  [ $name != eth0 ] || echo "$addr $((0x$flags & 0x40))"
done < /proc/net/if_inet6
exec 3<>/dev/tcp/gateway/53 && echo "the gateway answers"
SH
chmod +x ready
for nic in virtio gve; do
  within 240 "$vnic" boot --nic $nic -- ./ready > out 2> err < /dev/null || { cat out err >&2; fail "$nic: ready"; }
  grep -qx 'eth0 up' out && grep -qx 'the gateway answers' out && ! grep -q 'not ready' err || { cat out err >&2; \
    fail "$nic: ready"; }
  grep -q '^fd766e69.*1 0$' out && grep -q '^fe80' out && ! grep -q ' 64$' out || { cat out err >&2; \
    fail "$nic: addresses"; }
  echo "ok   $nic: eth0 is up and no address tentative when the program starts"
done

# Checks the host's counters of runs whose payload must lie in one kind of memory at both ends, and in no other.
export VNIC_RUNTIME_DIR=$work/run
cat > sums.py <<'PY'
import json, sys
want, size = sys.argv[1], int(sys.argv[2])
for p in json.load(sys.stdin)["ports"]:
    for way in ("rx", "tx"):
        sums = {k: sum(q[way][k + "_bytes"] for q in p["queues"]) for k in ("device", "host", "gpu_file", "bounced")}
        busy = (p["name"].split("-")[0], way) in (("guest0", "rx"), ("guest1", "tx")) and p.get("gpus")
        got = sums.pop(want)
        if any(sums.values()) or (got < size if busy else got > 0): # more: what TCP has sent again
            sys.exit("%s %s: %d in %s memory, elsewhere %s: %d expected" % \
                (p["name"], way, got, want, sums, size if busy else 0))
        if busy:
            print("ok   %s %s: %d bytes of payload in %s memory, of %d, 0 elsewhere" % \
                (p["name"], way, got, want, size))
    for g in p.get("gpus") or []:
        if g["registered_bytes"]:
            sys.exit("%s: %d bytes are registered still" % (p["name"], g["registered_bytes"]))
PY
# counted NIC MEMORY BYTES SCRIPT: runs a shell script in two guests, and checks the counters when it has succeeded
# in both.
counted() {
  local nic=$1 memory=$2 size=$3 pid s=0
  "$vnic" boot --nic $nic --guests 2 --copy cdevmem -- sh -c "$4; s=\$?; echo status \$s; sleep 1000" > out 2> err \
    < /dev/null &
  pid=$!
  for _ in $(seq 2400); do [ "$(grep -c ' status ' out)" != 2 ] && kill -0 $pid 2>/dev/null || break; sleep 0.1; done
  [ "$(grep -c ' status 0$' out)" = 2 ] || { cat out err >&2; fail "$nic: $4"; }
  "$vnic" stat --json > stat || { cat out err >&2; fail "$nic: $4: no counters"; }
  kill $pid; wait $pid || s=$?
  [ $s = 1 ] || { cat out err >&2; fail "$nic: $4: status $s"; }
  python3 sums.py "$memory" "$size" < stat || fail "$nic: $4: the host's counters"
}
"$tools/with-tools" --cc sh -c '"${CC:-gcc}" -O2 -Wall -Wextra -Werror -o cdevmem "$0"' "$root/guest/docs/devmem.c"

# A C program on Linux's own API. With "host" it binds nothing, as a negative control: then the same counters must
# show host memory.
counted gve device 25165824 ./cdevmem
grep -qx '\[0\] received 25165824 bytes, 0 not in GPU memory, 0 wrong' out || fail "C: $(cat out)"
counted gve host 25165824 './cdevmem host'
grep -qx '\[0\] received 25165824 bytes, 25165824 not in GPU memory, 0 wrong' out || fail "C, control: $(cat out)"

# The GPU memory of a program that is killed, while it waits or receives, is freed: 64 MiB are enough for any number
# of such programs.
cat > killed <<'SH'
#!/bin/bash
listens() { grep -q '^ *[0-9]*: [0-9A-F]*:1451 0*:0000 0A' /proc/net/tcp; }
receives() { grep -q '^ *[0-9]*: [0-9A-F]*:1451 [0-9A-F:]* 01' /proc/net/tcp; }
if [ $VNIC_INDEX = 1 ]; then # it sends once guest0 has opened port 7, after its third kill
  until : 2> /dev/null < /dev/tcp/guest0/7; do sleep 0.1; done
  until ./cdevmem; do sleep 0.1; done
  exit 0
fi
for i in 1 2 3 4 5 6; do
  ./cdevmem & pid=$!
  stage=listens
  [ $i -lt 4 ] || stage=receives
  until $stage; do kill -0 $pid || { wait $pid; exit; }; sleep 0.1; done # it has received all before
  [ $i -lt 4 ] || sleep 0.0$((3 * (i - 3)))
  kill -9 $pid || { wait $pid; exit; }
  wait $pid
  while listens; do sleep 0.1; done
  [ $i != 3 ] || netcat -l 0.0.0.0 7 < /dev/null > /dev/null &
done
exec ./cdevmem
SH
chmod +x killed
within 240 "$vnic" boot --nic gve --guests 2 --gpu-memory 64M --copy cdevmem -- ./killed > out 2> err < /dev/null || \
  { cat out err >&2; fail "C, killed"; }
grep -qx '\[0\] received 25165824 bytes, 0 not in GPU memory, 0 wrong' out || { cat out err >&2; fail "C, killed"; }
killed=$(grep -c Killed err || true)
[ "$killed" -ge 3 ] || { cat out err >&2; fail "C: $killed were killed, of at least three"; }
echo "ok   C: after $killed that were killed one receives all, with $(grep -c 'reset by peer' err || \
  true) connections reset on the way"

# Names, the gateway, a server on the host's loopback, and a server in a guest behind a forward.
python3 -m http.server 0 --bind 127.0.0.1 --directory "$work" > http 2>&1 &
for _ in $(seq 100); do
  port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' http)
  [ -z "$port" ] && kill -0 $! 2>/dev/null || break
  sleep 0.1
done
if [ -n "$port" ]; then
  cat > get <<'SH'
#!/bin/bash
exec 3<>/dev/tcp/gateway/$1
printf 'GET /dynamic.c HTTP/1.0\r\n\r\n' >&3
cat <&3
SH
  chmod +x get
  within 240 "$vnic" boot -- ./get "$port" > out 2> err || { cat out err >&2; fail "gateway"; }
  grep -q 'int main' out || { cat out err >&2; fail "nothing from the host's server"; }
  echo "ok   a guest reads from a server on the host's loopback"
fi

# Mistakes are found before anything boots.
# refused STATUS TEXT ARGUMENT...
refused() {
  local status=$1 text=$2 s=0; shift 2
  timeout 20 "$vnic" boot "$@" > out 2> err || s=$?
  [ $s = "$status" ] && [ ! -s out ] && [ "$(grep -c '^vnic: ' err)" = 1 ] && grep -q "$text" err || \
    fail "status $s: $(cat err)"
  echo "ok   status $s: $(head -n 1 err)"
}
"$tools/with-tools" --cc sh \
  -c 'echo "int f(void){return 1;}" | "${CC:-gcc}" -shared -Wl,-soname,libgone.so -o libgone.so -x c - &&
  echo "int f(void);int main(void){return f();}" | "${CC:-gcc}" -o needs -x c - -x none ./libgone.so'
rm libgone.so
refused 3 'libgone.so' -- ./needs
refused 2 'too much' --memory 192M --copy "$(head -c 100000000 /dev/zero > big; echo big)" -- ./static

# Ctrl-C and SIGTERM end vnic and its guests at once, and leave nothing.
for sig in INT TERM; do
  setsid "$vnic" boot -- sh -c 'echo up; sleep 1000' > out 2> err < /dev/null &
  pid=$!
  for _ in $(seq 1200); do ! grep -q up out && kill -0 $pid 2>/dev/null || break; sleep 0.1; done
  grep -q up out || fail "no program: $(cat err)"
  held $pid > held
  start=$(date +%s%N); kill -$sig $pid; s=0; wait $pid || s=$?
  took=$((($(date +%s%N) - start) / 1000000))
  [ $s = 1 ] && grep -qx 'vnic: interrupted' err || fail "SIG$sig: status $s: $(cat err)"
  [ -z "$(alive $pid)" ] && [ -z "$(still held)" ] || fail "SIG$sig leaves $(alive $pid) $(still held)"
  echo "ok   SIG$sig: gone after $took ms, nothing left"
done
echo PASS
