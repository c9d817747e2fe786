#!/usr/bin/env bash
# Compares vnic's gateway with slirp and passt, for docs/gateway.md. One guest has three NICs: of vnic serve, of
# QEMU's -netdev user, and of Debian 13's passt, which is fetched into the cache. The outside world consists of
# network namespaces: a router, and behind a link of MTU 1280 a host. It needs no privileges except user namespaces.
# - It measures twelve rows. It fails if slirp and passt both do better than vnic in a row other than the rates, or
#   if docs/gateway.md has another yes, some or no; figures may differ. WRITE=yes writes that page instead.
# - For vnic only: if the host allows no pings, the guest gets ICMP's "administratively prohibited"; a traceroute
#   sees the gateway, the router and the host.
# It takes five minutes: the guest boots twice.
. "$(dirname "$0")/lib.sh"
export CGO_ENABLED=0
if [ ! "${own_net-}" ]; then # all is fetched before the script enters a namespace without a network
  debian_passt
  tool gatewayrows # its modules, too
  unshare --user --map-root-user --net --mount true ||
    fail "this machine allows no user namespaces: set kernel.unprivileged_userns_clone or user.max_user_namespaces"
  rm -rf "$work"
  own_net=yes exec unshare --user --map-root-user --net --mount --kill-child --fork "$BASH" "test/${0##*/}"
fi
debian_passt
tool gatewayrows

echo "== the world"
unshare --net sleep infinity & router=$!
unshare --net sleep infinity & world=$!
for p in $router $world; do
  until [ "$(readlink "/proc/$p/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do read -rt 0.1 <> <(:) || true; done
done
on() { local p=$1; shift; nsenter --net="/proc/$p/ns/net" "$@"; }
ip link add host0 type veth peer name router0 netns $router
on $router ip link add router1 mtu 1280 type veth peer name world0 mtu 1280 netns $world
ip link set lo up
ip addr add 10.99.1.2/24 dev host0
ip addr add fd99:1::2/64 dev host0 nodad
ip link set host0 up
ip route add default via 10.99.1.1
on $router ip addr add 10.99.1.1/24 dev router0
on $router ip addr add fd99:1::1/64 dev router0 nodad
on $router ip addr add 10.99.2.1/24 dev router1
on $router ip addr add fd99:2::1/64 dev router1 nodad
on $router ip link set router0 up
on $router ip link set router1 up
on $router sh -c 'echo 1 | tee /proc/sys/net/ipv4/ip_forward > /proc/sys/net/ipv6/conf/all/forwarding'
for i in 2 3 4; do
  on $world ip addr add 10.99.2.$i/24 dev world0
  on $world ip addr add fd99:2::$i/64 dev world0 nodad
done
on $world ip link set lo up
on $world ip link set world0 up
on $world ip route add default via 10.99.2.1
on $world ip route add default via fd99:2::1
ip route add default via fd99:1::1
printf 'nameserver 10.99.2.2\nsearch corp.example.test example.test\n' > "$work/resolv.conf"
mount --bind "$work/resolv.conf" /etc/resolv.conf
"$work/gatewayrows" serve "/proc/$world/ns/net" > "$work/rows" & served=$!

echo "== the gateways, and a guest with a NIC of each"
cd "$work"
own_qemu qemu
"$vnic" image build --offline -o image --copy gatewayrows:/opt/ -- /opt/gatewayrows guest > image.txt
passt --foreground --quiet --socket "$work/passt.sock" --tcp-ports none --udp-ports 127.0.0.1/7013:7010 \
  2> passt.log & passt=$!
"$vnic" serve --socket-path "$work/vnic.sock" --gpu-memory 0 --forward udp:7011:7010 > serve.out 2> serve.err & serve=$!
# awaits WHAT PROCESS CONDITION...: waits until the condition succeeds; fails with WHAT if the process has ended.
awaits() {
  local what=$1 process=$2; shift 2
  until "$@"; do
    kill -0 "$process" 2> /dev/null || { tail -n 20 ./*.log serve.err >&2; fail "$what"; }
    read -rt 0.1 <> <(:) || true
  done
}
awaits "passt does not start" $passt [ -S passt.sock ]
awaits "vnic serve does not start" $serve grep -q '^$' serve.out
flags=$(sed -n '/^# port0:/,/^$/p' serve.out | sed -n 's/^  //p' | sed 's/ \\$//' | tr '\n' ' ')
eval "within 900 ./qemu $flags -nographic -vga none -nic none -accel tcg,thread=multi -cpu max \
  -kernel image/kernel -initrd image/initrd -append \"\$(cat image/append)\" \
  -netdev user,id=slirp,hostfwd=udp:127.0.0.1:7012-:7010 \
  -device virtio-net-pci,netdev=slirp,romfile=,mac=52:54:00:00:02:15 \
  -netdev stream,id=passt,server=off,addr.type=unix,addr.path=$work/passt.sock \
  -device virtio-net-pci,netdev=passt,romfile=,mac=52:54:00:00:03:15 \
  -device virtio-net-pci,romfile=" < /dev/null > guest.log 2>&1 || # the last one is left to devmem programs
  { tail -n 40 guest.log >&2; fail "the guest"; }
for p in $served $passt $serve; do kill -0 $p || fail "a gateway, or the world, has ended"; done

echo "== what it has measured"
qemu=$(./qemu --version | sed -n '1s/.*version \([^ ]*\).*/\1/p')
passt=$(zcat "$cache/tools/passt/usr/share/doc/passt/changelog.Debian.gz" | sed -n '1s/.*(\(.*\)).*/\1/p')
libslirp=$(sed -n '/"name": "libslirp0"/{n; s/.*: "\(.*\)".*/\1/p}' "$cache/resolved.json")
kernel=$(find "$cache"/kernel/*/usr/lib/modules -maxdepth 1 -mindepth 1 | sort | tail -1)
s=0; ./gatewayrows table rows > table || s=$?
cat > gateway.md <<END
# The gateway, beside slirp and passt

Guests reach other networks through the gateway (package \`internal/wire/gateway\`): DHCP, DNS, NAT and forwards. slirp
(QEMU's \`-netdev user\`) and passt are other programs with the same task. A guest with a NIC of each measured the rows
below. "yes" means that all of it worked, "some" a part, "no" nothing. In rows with counts 19 of 20 are enough for a
"yes" of slirp and passt, and 1 of 20 still is their "no".

$(cat table)

- **Pings** need sockets that the host allows to groups: \`sysctl net.ipv4.ping_group_range\`. Without
  that vnic answers a guest's ping at once with "prohibited".
- **A silent flow of UDP** was silent for 35 s; then the server sent a datagram, and after it the guest. According to
  their source code, a silent flow lives for 2 minutes in vnic, while its table has room, for 4 minutes in slirp (10 s
  to port 53), and for 3 minutes in passt.
- **Bursts** arrive completely only if the host allows large socket buffers: \`sysctl net.core.rmem_max\`, which was
  $(cat /proc/sys/net/core/rmem_max). vnic counts the datagrams that it loses: \`lost_datagrams\` of \`vnic stat --json\`.
- **The search list**: slirp sends one only if \`dnssearch=\` names it. vnic's has the guests' own domain first.
- **The restart**: the guest restarts in the same QEMU, without closing its connections. slirp and passt keep the old
  connections, with which new ones from the same ports collide; each new connection has 10 s to succeed.
- **The rates** were measured in a guest that QEMU emulates, on $(nproc) processors: of 32 MiB by TCP, and 20,000 datagrams of
  1,200 bytes by UDP, each sent as fast as the sender can. They do not count for the test's result.

QEMU $qemu, libslirp $libslirp, passt $passt, Linux ${kernel##*/} in the guest.
This page was made by:

    WRITE=yes test/55-gateway.sh

Without \`WRITE=yes\` the script fails if it measures another yes, some or no than this page has. It also fails if slirp
and passt both do better than vnic in a row.
END
cat gateway.md
[ $s = 0 ] || fail "see above"
[ "${WRITE-}" != yes ] || cp gateway.md "$root/docs/gateway.md"
# kinds FILE: prints the file's table with only the yes, some or no of each cell.
kinds() { sed -nE '/^\|/ { / rate \|/d; s/ (yes|some|no): [^|]*/ \1 /g; p }' "$1"; }
small=
[ "$(cat /proc/sys/net/core/rmem_max)" -ge $((4 << 20)) ] || small='^| bursts'
diff <(kinds "$root/docs/gateway.md" | grep -v "${small:-^$}") <(kinds gateway.md | grep -v "${small:-^$}") ||
  fail "docs/gateway.md (<) has another table than what is measured (>): see why, then WRITE=yes $0"
echo PASS
