#!/usr/bin/env bash
# "Killed, interrupted, started twice, socket in use, stale socket, full disk, wrong kernel modules:
# one clear message each, nothing left." For boot, serve, stat, cache, and run with --pcap and
# --metrics; 4-signals.sh has the rest of run.
#
# Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
. "$(dirname "$0")/lib.sh"
. test/signals.sh
export VNIC_RUNTIME_DIR=$work/rt VNIC_QEMU= VNIC_KERNEL= VNIC_MODULES=
cd "$work"
mkdir dir sockets mods
echo > file

kept() { files | grep -vE '/images/[0-9a-f]{64}\.cpio$'; } # the cache may have new images
# says STATUS PATTERN COMMAND...: the command ends with this status and one message that matches PATTERN, and leaves
# no new file, socket or process.
says() {
  local want=$1 pattern=$2 status=0; shift 2
  kept > before.says
  timeout --kill-after=5 100 "$@" > out 2> err.says < /dev/null || status=$?
  sed -i '/^stage: /d; /^  update /d' err.says # how far it is
  [ $status = "$want" ] || { cat err.says >&2; fail "status $status, not $want: $*"; }
  [ "$(grep -c '^vnic: ' err.says)" = 1 ] && grep -Eq "^vnic: .*($pattern)" err.says || { cat err.says >&2; \
    fail "not one message with /$pattern/: $*"; }
  ! grep -q 'goroutine ' err.says && [ ! -s out ] || { cat out err.says >&2; fail "more than a message: $*"; }
  kept | diff before.says - >&2 && [ -z "$(find sockets dir -mindepth 1)" ] || fail "something is left: $*"
  echo "ok   $status: $(grep '^vnic: ' err.says | cut -c -240)"
}
# fine STATUS COMMAND...: the command ends with this status and no message.
fine() {
  local want=$1 status=0; shift
  timeout --kill-after=5 100 "$@" > out 2> err.fine < /dev/null || status=$?
  [ $status = "$want" ] && ! grep -q '^vnic: ' err.fine || { cat out err.fine >&2; \
    fail "status $status, not $want: $*"; }
}
# once PATTERN FILE: exactly one line of the file matches.
once() { [ "$(grep -Ec "$1" "$2")" = 1 ] || { cat "$2" >&2; fail "not once: $1"; }; }
wait_for() { local pid=$!; until_ "$@"; } # with the last that was started, which is to live meanwhile
free_port() { # of TCP, with the one above it
  local p
  for p in $(shuf -i 20000-30000 -n 100); do
    { : <> "/dev/tcp/127.0.0.1/$p"; } 2> /dev/null || \
      { : <> "/dev/tcp/127.0.0.1/$((p + 1))"; } 2> /dev/null || { echo "$p"; return; }
  done
  fail "no free port"
}
no_sockets() { [ ! -e rt ] || [ -z "$(ls rt)" ] || fail "$1: $(ls rt) is left"; }
serve() { rm -f out.serve; "$vnic" serve --gpu-memory 0 "$@" > out.serve 2> err.serve & server=$!; \
  wait_for test -s out.serve; }

# qemu VERSION SHELL...: makes ./qemu, which reports this version of QEMU, and runs SHELL when it is started to run
# a machine.
qemu() {
  { printf '#!/bin/sh\ncase "$*" in *--version) echo "QEMU emulator version %s"; exit ;; esac\n' "$1"; echo "${2-}"; \
    } > qemu
  chmod +x qemu
}
qemu 11.1.0 'exit 1'
for nic in virtio gve; do # now the cache has what a start leaves there
  for cmd in boot run; do "$vnic" $cmd --nic $nic --qemu ./qemu > out 2>&1 < /dev/null || true; done
done
"$vnic" cache rm nothing 2> err || true

echo "== sockets"
says 1 'file of this name, which is no socket: give another' "$vnic" serve --socket-path file
says 1 'file of this name, which is no socket: give another' "$vnic" serve --socket-path dir
says 1 'no such file or directory: make its directory' "$vnic" serve --socket-path sockets/no/s
says 1 'not a directory: give a name in a directory' "$vnic" serve --socket-path file/s
says 1 '(no such file|permission denied|not permitted).*: (make|give)' "$vnic" serve --socket-path /proc/s
says 2 '120 bytes, a socket.s name has 107' "$vnic" serve --socket-path "$(printf 'x%.0s' $(seq 120))"
says 2 'twice' "$vnic" serve --socket-path s --socket-path ./s
says 2 'no socket: give' "$vnic" serve
echo "== names of files and addresses"
for cmd in "run --guest inproc --size 1M" "serve --socket-path sockets/s" "boot"; do
  says 1 'pcap: dir: is a directory: give another' "$vnic" $cmd --pcap dir
  says 1 'pcap: no/p: no such file or directory: make its directory' "$vnic" $cmd --pcap no/p
  says 1 'metrics 192.0.2.1:9.*cannot assign.*: give another' "$vnic" $cmd --metrics 192.0.2.1:9
  says 2 'metrics 9: not HOST:PORT' "$vnic" $cmd --metrics 9
done
says 1 'log-dir: .*file: not a directory: give' "$vnic" boot --log-dir file -- sh
says 2 'forward x: not' "$vnic" boot --forward x -- sh
says 2 'gdb 65536' "$vnic" boot --gdb 65536 -- sh
says 1 'no vnic of this user is running: looked in .*/rt' "$vnic" stat
says 1 'no vnic of this user is running as process 1' "$vnic" stat 1
says 2 'not the number of a process' "$vnic" stat x
mkdir -m 755 open
says 1 'open \(not to be trusted: open to others, mode 0755: chmod 700 it\)' env VNIC_RUNTIME_DIR="$work/open" \
  "$vnic" stat
says 3 'cache .*/file: no cache directory.*: set VNIC_CACHE' "$vnic" cache ls --cache file
says 3 'cache .*/file: no cache directory.*: set VNIC_CACHE' "$vnic" boot --cache file -- sh
says 1 '"nothing" is not in the cache' "$vnic" cache rm nothing
says 2 'rm: names' "$vnic" cache rm

echo "== QEMU"
says 3 '/no/qemu: no usable QEMU: no such file.*: install' "$vnic" boot --qemu /no/qemu -- sh
says 3 'permission denied: install' "$vnic" boot --qemu ./file -- sh
says 3 'no QEMU: --version says' "$vnic" boot --qemu /bin/cat -- sh
qemu 5.2.0
says 3 'QEMU 5.2.0: no usable QEMU: too old for vhost-user: install' "$vnic" boot --qemu ./qemu -- sh
qemu 10.0.1
says 3 'QEMU 10.0.1: no usable QEMU: too old for vfio-user: install' "$vnic" boot --nic gve --qemu ./qemu -- sh
qemu 11.1.0 'echo no memory >&2; exit 1'
says 1 'guest0: QEMU ended early: exit status 1' "$vnic" boot --qemu ./qemu -- sh
grep -q '^    no memory' err.says || fail "not QEMU's words: $(cat err.says)"
qemu 11.1.0 'kill -SEGV $$'
says 1 'guest0: QEMU ended early: signal: seg' "$vnic" boot --qemu ./qemu -- sh
qemu 11.1.0 "echo \"qemu: -device x: 'vfio-user-pci' is not a valid device model name\" >&2; exit 1"
says 3 'QEMU 11.1.0: this QEMU lacks a device: vfio-user-pci: give another' "$vnic" boot --nic gve --qemu ./qemu -- sh
says 1 'guest0: QEMU ended early' "$vnic" boot --qemu-arg -no-such-option -- sh

echo "== kernels and modules"
kernel=$(find -L "$cache/kernel" -name 'vmlinuz*' | head -n 1)
of() { find -L "$cache/kernel" -name "$1.ko*" | head -n 1; }
says 3 'no/kernel: no guest kernel.*: give' "$vnic" boot --kernel no/kernel -- sh
says 3 'file: no guest kernel: not a bzImage: give' "$vnic" boot --kernel file -- sh
head -c 3000000 "$kernel" > short
says 3 'a bzImage that is cut short: 3000000 of' "$vnic" boot --kernel short -- sh
says 2 'modules without --kernel' "$vnic" boot --modules mods -- sh
for nic in virtio gve; do
  driver=virtio_net; [ $nic = virtio ] || driver=gve
  for cmd in "boot --nic $nic" "run --nic $nic"; do
    end="-- sh" m="($driver|uio_pci_generic)"; [ "${cmd%% *}" = boot ] || end=""
    says 3 'no such directory: give' "$vnic" $cmd --kernel "$kernel" --modules mods/none $end
    rm -rf mods/*
    says 3 "module $m: not among the kernel.s modules" "$vnic" $cmd --kernel "$kernel" --modules mods $end
    for x in $driver uio_pci_generic; do head -c 1000 /dev/urandom > mods/$x.ko; done
    says 3 "module $m: .*$m.ko: cannot be read as a module" "$vnic" $cmd --kernel "$kernel" --modules mods $end
    rm mods/*; : > mods/$driver.ko.bz2; : > mods/uio_pci_generic.ko.lz4
    says 3 "module $m: .* is unknown: it must be unpacked, or packed by" "$vnic" $cmd --kernel "$kernel" \
      --modules mods $end
    rm mods/*
  done
done
cp "$(of virtio_net)" mods
says 3 'module net_failover, needed by virtio_net: not among' "$vnic" boot --kernel "$kernel" --modules mods -- sh
cp "$(of net_failover)" "$(of failover)" "$(of uio)" "$(of uio_pci_generic)" "$(of gve)" mods
case $(of gve) in *.xz)
  xz -d mods/*.xz
  version=$(basename "$(dirname "$kernel")") other=$(basename "$(dirname "$kernel")" | tr 0-9 1)
  sed -i "s/vermagic=$version/vermagic=$other/" mods/*.ko
  for cmd in boot run; do
    for nic in virtio gve; do
      says 3 "made for another kernel: its is ${other%%+*}.*, this is ${version%%+*}" "$vnic" $cmd --nic $nic \
        --kernel "$kernel" --modules mods
    done
  done
esac

rm mods/*
head -c 1000 /dev/urandom > mods/virtio_net.ko.zst
says 3 'kernel .*: module virtio_net: .* cannot be read as a module: .*: give its own modules by --modules' \
  "$vnic" boot --kernel "$kernel" --modules mods -- sh
own=(--kernel "$kernel" --modules "$(dirname "$kernel")" --append) # as if the kernel had less built in
says 1 'guest kernel panic: .*: the kernel must have initramfs' "$vnic" boot "${own[@]}" \
  initcall_blacklist=populate_rootfs -- sh
says 3 'no network interface .*: take a newer one' "$vnic" boot "${own[@]}" initcall_blacklist=virtio_pci_driver_init \
  -- sh

echo "== full disk"
if unshare --user --map-root-user --mount true 2> unshare; then
  mkdir mnt
  unshare --user --map-root-user --mount sh -c "
    mount -t tmpfs -o size=64k tmpfs $work/mnt && mkdir $work/mnt/a $work/mnt/inodes && : > $work/mnt/fill &&
    mount -t tmpfs -o nr_inodes=1 tmpfs $work/mnt/inodes && echo \$\$ > $work/holder && exec sleep 1000" &
  wait_for test -s holder
  full=/proc/$!/root$work/mnt
  left() { find "$full" ! -type d ! -name lock ! -name '*.json' ! -type l ! -name fill | grep . >&2 && \
    fail "$1: files are left"; return 0; }
  mkdir "$full/c"
  for d in qemu kernel programs; do ln -s "$cache/$d" "$full/c/$d"; done
  cp "$cache/resolved.json" . && ln -s "$work/resolved.json" "$full/c/" # it may be larger than that disk
  for cmd in "boot -- sh" "boot --nic gve -- sh" "run --size 1M"; do
    set -- $cmd; c=$1; shift
    says 3 'cache .*: not enough space: write .*no space left on device: free some, or set VNIC_CACHE' "$vnic" $c \
      --cache "$full/c" "$@"
    left "an image"
  done
  private_cache limited
  rm -rf limited/images
  says 3 'cache .*: not enough space: write .*file too large: free some' \
    bash -c 'ulimit -f 100; exec "$@"' sh "$vnic" boot --cache "$work/limited" -- sh
  if python3 -c '' 2> unshare; then # a mirror whose lists do not fit
    mkdir -p mirror/debian/dists/{forky,trixie,trixie-backports}
    for d in mirror/debian/dists/*; do head -c 300000 /dev/zero > $d/InRelease; done
    python3 -u -m http.server 0 --bind 127.0.0.1 --directory mirror > http 2>&1 &
    wait_for grep -q 'port [0-9]' http
    says 3 'not enough space .*No space left.*: free some, or set VNIC_CACHE' env PATH=/usr/bin:/bin:/usr/sbin:/sbin \
      no_proxy=127.0.0.1 http_proxy= \
      "$vnic" boot --mirror "http://127.0.0.1:$(sed -n 's/.*port \([0-9]*\).*/\1/p' http)/debian" --cache "$full/c2" \
        -- sh
    left "a fetch"
  fi
  head -c 100000 /dev/zero > "$full/fill" 2> /dev/null || true
  says 1 'no space left on device: free some, or give a name elsewhere' "$vnic" serve --socket-path "$full/inodes/s"
  fine 0 env TMPDIR="$full" VNIC_RUNTIME_DIR="$full/inodes/rt" "$vnic" run --guest inproc --size 1M --gpu-memory 32M
  fine 0 "$vnic" run --guest inproc --size 1M --gpu-memory 32M --mode devmem --pcap "$full/p"
  once 'nothing more is captured: .*no space left' err.fine
  grep -q 'digest *match' out || fail "a full disk of a capture harms the traffic: $(cat out)"
  rm "$full/p"
  fine 7 "$vnic" boot --cache "$work/cache" --pcap "$full/p" --log-dir "$full/logs" --append loglevel=7 -- \
    sh -c 'exit 7'
  once 'no space left' <(grep pcap err.fine)
  once 'no space left' <(grep log-dir err.fine)
  echo "ok   caches, captures, logs, TMPDIR, sockets on a full disk: $(grep -c '^note: ' err.fine) notes"
else
  echo "skip full disk: this machine allows no file systems of ours: $(cat unshare)"
fi
for cmd in "run --guest inproc --size 1M --gpu-memory 32M --json" "cache ls" "serve --socket-path sockets/s" \
  "version"; do
  timeout 60 "$vnic" $cmd > /dev/full 2> err && fail "$cmd > /dev/full: status 0"
  once '^vnic: write /dev/stdout: no space left on device$' err
done
says 3 'files for the guests: not enough memory: file too large: free some' \
  bash -c 'ulimit -f 1024; exec "$@"' sh "$vnic" boot -- sh

echo "== started twice: two serves"
forward=$(free_port)
mkdir s
serve --socket-path s/one --metrics 127.0.0.1:0 --forward "$forward:22" --pcap pcap
metrics=$(sed -n 's|^metrics at http://\(.*\)/metrics$|\1|p' err.serve)
inode=$(stat -c %i s/one pcap)
says 1 "socket s/one: in use: process $server listens there: end it, or give another" "$vnic" serve --socket-path s/one
says 1 "socket s/one: in use: process $server" "$vnic" serve --nic gve --socket-path s/two --socket-path s/one
for cmd in "serve --socket-path s/two" "run --guest inproc --size 1M --gpu-memory 32M" "boot -- sh"; do
  set -- $cmd; c=$1; shift
  says 1 'pcap: in use: another process writes to it: give another' "$vnic" $c --pcap pcap "$@"
  says 1 "metrics $metrics: .*address already in use: give another" "$vnic" $c --metrics "$metrics" "$@"
done
says 1 "forward tcp 127.0.0.1:$forward .*in use: give another port" "$vnic" serve --socket-path s/two \
  --forward "$forward:80"
says 1 "forward tcp 127.0.0.1:$forward .*in use: give another port" "$vnic" boot --forward "$forward:80" -- sh
serve2=$server
serve --socket-path s/two --nic gve
"$vnic" stat > out 2> err && fail "stat of two"
grep -q "^vnic: 2 are running: say which" err || fail "$(cat err)"
fine 0 "$vnic" stat "$serve2" --once
[ "$inode" = "$(stat -c %i s/one pcap)" ] && [ "$(ls s)" = $'one\ntwo' ] || fail "the first one's files: $(ls s)"

echo "== serve and stat: interrupted, killed"
"$vnic" stat "$server" > out.stat 2> err.stat & stat=$!
wait_for test -s out.stat
kill -KILL "$server"; wait "$server" 2> /dev/null || true
wait $stat && grep -qx "vnic $server has ended" err.stat || fail "stat of one that is killed: $(cat err.stat)"
[ -S s/two ] && [ -S "rt/$server.sock" ] || fail "a killed serve leaves no sockets: this test would see nothing"
serve --socket-path s/two # replaces what is stale
[ "$(ls rt | wc -l)" = 2 ] || fail "stale: $(ls rt)"
for sig in INT TERM HUP; do
  kill -$sig "$server"; wait "$server" || fail "SIG$sig: serve: status $?: $(cat err.serve)"
  [ "$(ls s)" = one ] && [ "$(ls rt)" = "$serve2.sock" ] || fail "SIG$sig: serve leaves $(ls s rt)"
  rm out.stat; "$vnic" stat "$serve2" > out.stat 2> err.stat & stat=$!
  wait_for test -s out.stat
  kill -$sig $stat; wait $stat && [ ! -s err.stat ] || fail "SIG$sig: stat: $(cat err.stat)"
  serve --socket-path s/two
done
kill -HUP "$server" "$serve2"; wait "$server" && wait "$serve2" || fail "serve: status $?"
[ -z "$(ls s)" ] || fail "left: $(ls s)"
no_sockets "serve"
{ sleep 0.3; s=0; "$vnic" cache ls 2> err || s=$?; echo $s > status; } | true # which has gone by then
[ "$(cat status)" = 141 ] && [ ! -s err ] || fail "cache ls | true: status $(cat status): $(cat err)"
echo "ok   SIGINT, SIGTERM, SIGHUP: status 0, nothing left; SIGKILL: the next start replaces what is stale"

echo "== a QEMU of one's own, some of whose memory is not shared"
"$vnic" image build --nic gve -o image -- true > out 2> err || fail "image: $(cat err)"
serve --socket-path s/gve --nic gve
timeout 100 "$vnic" qemu -- -M q35,memory-backend=ram -m 512M,slots=1,maxmem=2G \
  -object memory-backend-memfd,id=ram,size=512M,share=on -object memory-backend-memfd,id=more,size=256M,share=off \
  -device pc-dimm,memdev=more -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"s/gve"}}' \
  -kernel image/kernel -initrd image/initrd -append "$(cat image/append) memhp_default_state=online_kernel" \
  -nographic -vga none -nic none -no-reboot -accel tcg,thread=multi -cpu max > out.qemu 2>&1 < /dev/null || \
  fail "QEMU, status $?: $(tail -n 20 out.qemu)"
grep -q 'exit status 0' out.qemu || fail "the guest did not run: $(tail -n 20 out.qemu)"
once 'memory of the guest is not shared.* address=0x100000000 size=0x10000000 .*memory-backend-memfd.*share=on' \
  err.serve
kill -TERM "$server"; wait "$server" || fail "serve: status $?: $(cat err.serve)"
no_sockets "serve, behind that QEMU"
echo "ok   memory of a private backend is named, and QEMU goes on"

echo "== serve comes back with fewer queues than QEMU has"
serve --socket-path s/few --queues 4
timeout 100 "$vnic" qemu -- -S -M q35,memory-backend=ram -m 64M \
  -object memory-backend-memfd,id=ram,size=64M,share=on -chardev socket,id=n,path=s/few,reconnect-ms=200 \
  -netdev vhost-user,id=n,chardev=n,queues=4 -device virtio-net-pci,netdev=n,mq=on,romfile= \
  -display none -accel tcg > out.qemu 2>&1 < /dev/null & qemu=$!
wait_for grep -q 'connected$' err.serve
kill -TERM "$server"; wait "$server" || fail "serve: status $?: $(cat err.serve)"
serve --socket-path s/few --queues 1
pid=$qemu until_ sh -c '[ "$(grep -c "you are asking more queues" out.qemu)" -ge 10 ]' # so often it hangs up
kill -TERM $qemu; wait $qemu || true
once 'connected$' err.serve && once 'hung up$' err.serve && [ "$(wc -l < err.serve)" = 3 ] && \
  once "hangs up behind GET_FEATURES again and again: .* more queues.*Offered are queue pairs: 1; .*--queues" err.serve
kill -TERM "$server"; wait "$server" || fail "serve: status $?: $(cat err.serve)"
no_sockets "serve, behind that QEMU"
echo "ok   $(grep -o 'process .* again and again' err.serve), which is said once"

echo "== run with --pcap and --metrics"
for sig in INT HUP KILL; do
  begin --guest inproc --size 1M --gpu-memory 32M --pcap "$work/pcap" --metrics 127.0.0.1:0 --pause-at transfer
  until_line '^stage: transfer'
  end $sig "with --pcap and --metrics" 2
  [ $sig = KILL ] || no_sockets "SIG$sig"
done
fine 0 "$vnic" run --guest inproc --size 1M --gpu-memory 32M --pcap pcap
no_sockets "the run after one that was killed"

echo "== boot: at each stage"
fine 0 "$vnic" boot -- sh -c true # its image is there
silent_mirror
mkdir nothing
ln -s "$cache/programs" nothing/ # else boot builds u-root's commands, before it asks the mirror
for sig in INT HUP KILL; do
  PATH=/usr/bin:/bin no_proxy=127.0.0.1 http_proxy='' launch boot --mirror "$mirror" --cache "$work/nothing" -- sh
  until_ fetching
  end $sig "boot, while a mirror does not answer" 3
  [ -z "$(find nothing -mindepth 2)" ] || fail "a fetch leaves $(find nothing -mindepth 2)"
done
kill -KILL $silent
for ms in 30 60 100 150 220 300; do # also where the image is made
  rm -f "$VNIC_CACHE"/images/*
  setsid "$vnic" boot -- sh > out 2> err < /dev/null & pid=$!
  sleep 0.$(printf %03d $ms)
  kill -KILL $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
  gone() { [ -z "$(alive "$victim")" ]; }
  victim=$pid pid=$$; until_ gone
  [ -z "$(ls "$VNIC_CACHE/images" | grep -vE '^[0-9a-f]{64}\.cpio$')" ] && [ -z "$(ls "$TMPDIR")" ] || \
    fail "killed after $ms ms: $(ls "$VNIC_CACHE/images" "$TMPDIR") is left"
done
fine 0 "$vnic" boot -- sh -c true
no_sockets "the boot after some that were killed"
for sig in TERM HUP GROUP KILL; do
  launch boot -- sh
  until_guests 1
  end $sig "boot, while the guest boots" 3
done
for sig in KILL HUP TWICE; do
  nic=virtio; [ $sig != KILL ] || nic=gve
  launch boot --nic $nic --log-dir "$work/logs" --pcap "$work/pcap" -- sh -c 'echo up >&2; sleep 1000'
  until_line '^up$'
  files > before # the image of this NIC may be new
  [ $sig != TWICE ] || kill -STOP "$(qemus)"
  end $sig "boot, while its program runs" 3
  [ $sig = KILL ] || no_sockets "SIG$sig"
done

echo "== started twice: two boots"
gdb=$(free_port)
mkfifo in
setsid "$vnic" boot --gdb "$gdb" --log-dir logs --pcap pcap --metrics 127.0.0.1:0 -- \
  sh -c 'echo up >&2; read x; echo $x; exit 9' < in > out.first 2> err.first & pid=$!
exec 3> in
wait_for grep -q '^up' err.first
console=$(stat -c '%i %s' logs/console-guest0.log)
says 1 'log-dir: logs/console-guest0.log: in use: another process writes to it: give another' "$vnic" boot \
  --log-dir logs -- sh
says 1 "gdb: port $gdb of guest0 is in use: give another" "$vnic" boot --gdb "$gdb" -- sh
says 1 'pcap: in use: another process' "$vnic" boot --pcap pcap -- sh
[ "$(stat -c '%i %s' logs/console-guest0.log)" = "$console" ] || fail "its console was touched"
fine 6 "$vnic" boot --log-dir logs2 -- sh -c 'exit 6' # two at a time
echo done >&3
exec 3>&-
s=0; wait $pid || s=$?
[ $s = 9 ] && [ "$(cat out.first)" = done ] || fail "the first: status $s: $(cat out.first err.first)"
no_sockets "two boots"
echo "ok   two boots at a time, one after the other's mistakes; what they write is theirs"

echo "== QEMU killed; a reader that goes away"
launch boot -- sh -c 'echo up >&2; sleep 1000'
until_line '^up$'
kill -KILL "$(qemus)"
s=0; wait $pid || s=$?
[ $s = 1 ] || fail "QEMU killed: status $s: $(cat err)"
one_message 'guest0: QEMU ended early: signal: killed' "QEMU killed"
s=0
{ timeout 60 "$vnic" boot --host-ports all -- sh -c 'while echo y; do :; done' 2> err; echo $? > status; } | \
  head -n 1 > out || true
[ "$(cat status)" = 141 ] && [ ! -s err ] || fail "| head: status $(cat status): $(cat err)"
no_sockets "| head"
echo PASS
