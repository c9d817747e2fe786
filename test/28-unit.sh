#!/usr/bin/env bash
# "Unit: DynamicUser, a group, no capabilities, system call filter; its memory limit computed from ports and GPUs."
# The script starts a second systemd in namespaces, which starts the installed unit, configured as the unit's
# comments describe. QEMUs of another user, who is in the unit's group, send from GPU to GPU by their kernel's
# devmem TCP. Users outside of the group get no access. If the broker is killed, systemd starts the unit again. The
# script needs root and systemd. It checks that the memory limit is computed and set, not that the kernel enforces
# it.
[ "$(id -u)" = 0 ] || { echo "FAIL only root can start a systemd: run it as root" >&2; exit 1; }
[ "${own_mounts-}" ] || own_mounts=yes exec unshare --mount "$BASH" "$0" # they go with this script
. "$(dirname "$0")/lib.sh"
[ -x /lib/systemd/systemd ] || fail "no /lib/systemd/systemd: apt-get install systemd"
tree=$(find -L "$cache/qemu" -path '*/usr/bin/qemu-system-x86_64' | sort -V | tail -n 1); tree=${tree%/usr/bin/*}
[ -n "$tree" ] || fail "no QEMU in $cache: run vnic run --nic gve first"
chmod 755 "$work"
make -s install DESTDIR="$work/dest" PREFIX=/usr/local
"$root/tools/with-tools" --cc sh -c '"${CC:-gcc}" -O2 -o "$0" guest/docs/devmem.c' "$work/cdevmem"
"$vnic" image build --offline --nic gve -o "$work/guest" --copy "$work/cdevmem:/opt/" -- \
  sh -c '/opt/cdevmem && exit 7' > /dev/null
cat > "$work/dest/usr/local/bin/qemu-system-x86_64" <<'SH'
#!/bin/sh
QEMU_MODULE_DIR=/srv/qemu/usr/lib/x86_64-linux-gnu/qemu exec /srv/qemu/usr/lib64/ld-linux-x86-64.so.2 --library-path \
  /srv/qemu/usr/lib/x86_64-linux-gnu /srv/qemu/usr/bin/qemu-system-x86_64 \
  -L /srv/qemu/usr/share/qemu -L /srv/qemu/usr/share/seabios "$@"
SH
chmod +x "$work/dest/usr/local/bin/qemu-system-x86_64"

# A new control group, below the root of cgroup version 2.
machine='' groups=$work/groups/vnic-unit.$$
mkdir "$work/groups"
mount -t cgroup2 cgroup2 "$work/groups"
mkdir "$groups"
ended() {
  kill -KILL $machine $(jobs -p) 2>/dev/null && wait || true # unshare(1) takes no other signal
  local i
  for i in $(seq 50); do # the kernel is still about it
    ! find "$groups" -depth -type d -exec rmdir {} + 2>/dev/null || break
    sleep 0.1
  done
  umount "$work/groups"
  rm -rf "$work"
}
trap ended EXIT

# The root of the second systemd: this machine's files under a writable layer, and the unit.
cat > "$work/boot" <<'SH'
set -eu
work=$1 tree=$2 new=$1/new
[ ! "$3" ] || { echo 0 > "$3/cgroup.procs"; exec unshare --cgroup sh "$0" "$work" "$tree" ""; }
mount --make-rprivate /
mkdir "$new" && mount -t tmpfs tmpfs "$new" && mkdir "$new/upper" "$new/work" "$new/root"
mount -t overlay -o "lowerdir=/,upperdir=$new/upper,workdir=$new/work" overlay "$new/root"
cd "$new/root"
cp -a "$work/dest/." .
mkdir -p srv/qemu etc/vnic
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p ".$work"
mount --bind "$work" ".$work"
mount --bind "$tree" srv/qemu
echo uninitialized > etc/machine-id
printf '[Unit]\nDescription=nothing but a unit that is started\n' > etc/systemd/system/bare.target
pivot_root . mnt
umount -l /mnt
exec env -i container=namespaces PATH="$PATH" TERM=dumb /lib/systemd/systemd --unit=bare.target --log-target=journal
SH
unshare --mount --pid --uts --ipc --fork --kill-child sh "$work/boot" "$work" "$tree" "$groups" \
  > "$work/systemd.log" 2>&1 &
machine=$!; disown # or bash says that it was killed
# there COMMAND...: runs COMMAND in the namespaces of the second systemd.
there() { nsenter -t "$(pgrep -P $machine)" -m -p -u -i -r -w "$@"; }
# soon COMMAND...: repeats COMMAND until it succeeds.
soon() {
  local i
  for i in $(seq 300); do
    ! "$@" > /dev/null 2>&1 || return 0
    kill -0 $machine 2>/dev/null || break
    sleep 0.1
  done
  journal >&2 || cat "$work/systemd.log" >&2
  fail "not within 30 s: $*"
}
journal() { there journalctl --no-pager -o cat -u vnic@a; }
prop() { there systemctl show -P "$1" vnic@a; }
soon there systemctl is-active bare.target

echo "== as the unit's comments tell users to set it"
there groupadd -f -r kvm # Debian's QEMU packages make it
args="--ports 2 --nic gve --gpu-memory 128M"
there sh -eu -c 'printf "VNIC_SOCKET=/run/vnic-a/net%%d.sock\nVNIC_ARGS=%s\n" "$0" > /etc/vnic/a.conf
  mkdir -p /etc/systemd/system/vnic@a.service.d
  { echo "[Service]"; echo SupplementaryGroups=kvm; echo Environment=VNIC_GROUP=--socket-group=kvm
    /usr/local/bin/vnic serve --socket-path /run/vnic-a/net%d.sock $0 --print-memory-max 1G
  } > /etc/systemd/system/vnic@a.service.d/override.conf
  systemctl daemon-reload
  systemctl start vnic@a' "$args"
soon there test -S /run/vnic-a/net1.sock.gpu
pid=$(prop MainPID)
there cat "/proc/$pid/status" > "$work/status"
[ "$(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' "$work/status")" -ge 61184 ] || fail "no dynamic user: $(cat "$work/status")"
[ "$(grep -c '^Cap[A-Z][a-z]*:	0*$' "$work/status")" = 5 ] || fail "capabilities: $(cat "$work/status")"
grep -q '^NoNewPrivs:	1$' "$work/status" && grep -q '^Seccomp:	2$' "$work/status" || fail "$(cat "$work/status")"
limit=$(prop MemoryMax)
[ "$limit" -gt $((2 * (1 << 30) + 2 * (128 << 20))) ] && [ "$limit" -lt $((4 << 30)) ] || fail "memory limit $limit"
[ "$(there stat -c '%a %G' /run/vnic-a/net0.sock)" = '660 kvm' ] || fail "$(there ls -l /run/vnic-a)"
counters() {
  there sh -c 'VNIC_RUNTIME_DIR=/run/vnic-a/stat setpriv --reuid=$(stat -c %u /run/vnic-a) --clear-groups \
    vnic stat --json'
}
counters > "$work/stat.json"
holds "$work/stat.json" 'sandbox.mode == "on"' 'sandbox.refused == 0'
echo "ok   user $(there stat -c %u /run/vnic-a), no capabilities, $limit bytes at most"

echo "== QEMUs of the group's users"
# flags PORT: prints the QEMU command for the port from the unit's journal, as words for a shell.
journal > "$work/said"
flags() { awk -v port="# $1:" '/^#/ {on = index($0, port) == 1; next} !NF {on = 0} on {sub(/ \\$/, ""); printf "%s ", $0}' \
  "$work/said"; }
# of GROUP COMMAND...: runs COMMAND as nobody, with GROUP as an additional group.
of() {
  local group=$1; shift
  there setpriv --reuid=65534 --regid=65534 --groups="$group" env -C / TERM=dumb PATH=/usr/local/bin:/usr/bin:/bin \
    timeout 200 "$@"
}
kvm=$(there getent group kvm | cut -d: -f3)
for i in 0 1; do
  of "$kvm" sh -c "$(flags port$i) -nographic -vga none -nic none -no-reboot -accel tcg,thread=multi -cpu max \
    -kernel $work/guest/kernel -initrd $work/guest/initrd -append \"\$(cat $work/guest/append)\"" \
    < /dev/null > "$work/$i.log" 2>&1 &
  guest[$i]=$!
done
for i in 0 1; do wait ${guest[$i]} || { journal; cat "$work/$i.log"; fail "QEMU $i"; } >&2; done
tr -d '\r' < "$work/0.log" | grep -o 'received 25165824 bytes, 0 not in GPU memory, 0 wrong$' || \
  fail "$(cat "$work/0.log")"
counters > "$work/stat.json"
holds "$work/stat.json" 'sandbox.refused == 0'
s=0; of 65534 vnic gpu-fd /run/vnic-a/net0.sock.gpu -- true 2> "$work/err" || s=$?
[ $s != 0 ] && grep -q 'ermission denied' "$work/err" || fail "who is not in the group: status $s: $(cat "$work/err")"
echo "ok   who is not in the group: $(cat "$work/err")"

echo "== its broker is killed"
there pkill -KILL -P "$pid" -f __broker
again() { [ "$(prop MainPID)" != "$pid" ] && of "$kvm" vnic gpu-fd /run/vnic-a/net0.sock.gpu -- true; }
soon again
journal | grep '^vnic: sandbox: .* has ended: signal: killed' || { journal >&2; fail "the journal does not say why"; }
[ "$(prop NRestarts)" = 1 ] || fail "$(prop NRestarts) restarts"
there systemctl stop vnic@a
[ "$(prop Result)" = success ] || { journal >&2; fail "ended by $(prop Result)"; }
there test ! -e /run/vnic-a || fail "left: $(there ls /run/vnic-a)"
echo PASS
