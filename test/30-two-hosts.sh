#!/usr/bin/env bash
# "Two vnics in two network namespaces joined by the kernel's vxlan, and by OVS: both halves of the proof hold." The
# hosts are namespaces, a and b, with a cable (veth) between them. Each host's vnic runs one guest of the same lab
# file. The vnics are joined
# - by VXLAN uplinks, to each other;
# - by taps in bridges of the kernel's, which its VXLAN devices join;
# - by a tap in Open vSwitch, in its userspace datapath, at the other end of whose cable is a bridge of the
# kernel's; with guests in the process, two rails in both directions, and in QEMU of either model. Then the cases
# that must fail: a side that is not proved, a cable that is cut, a peer that is killed, and options that differ
# between the hosts. It takes two minutes.
. "$(dirname "$0")/lib.sh"
if [ ! "${own_net-}" ]; then # all is fetched before the script enters a namespace without a network
  tools/openvswitch > /dev/null
  rm -rf "$work"
  own_net=yes exec unshare --user --map-root-user --net --kill-child --fork "$BASH" "test/${0##*/}"
fi

ip link set lo up
unshare --net sleep infinity & b=$!
until [ "$(readlink "/proc/$b/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
on_b() { nsenter --net="/proc/$b/ns/net" "$@"; }
on_b ip link set lo up

# cable A B: joins the hosts by a cable with these ends.
cable() {
  ip link add name "$1" mtu 1600 type veth peer name "$2" mtu 1600 netns "$b"
  ip link set "$1" up
  on_b ip link set "$2" up
}
cable eth1 eth1
ip addr add 192.0.2.1/24 dev eth1
on_b ip addr add 192.0.2.2/24 dev eth1

# lab UPLINKS [MORE]: writes a lab file of two equal guests, with two NICs and two GPUs.
lab() {
  cat > "$work/lab.yaml" <<EOF
guests:
  a: &host
    memory: 256M
    sockets: [{name: s0}]
    switches: [{name: sw0, below: s0}, {name: sw1, below: s0}]
    nics:
      - {name: nic0, below: sw0, mtu: 1450, gpus: [gpu0]${3-}}
      - {name: nic1, below: sw1, mtu: 1450, gpus: [gpu1]${3-}}
    gpus: [{name: gpu0, below: sw0}, {name: gpu1, below: sw1}]
  b: *host
uplinks:
$1
${2-}
seed: 7
EOF
}
vxlan='  - {name: up0, of: a, vxlan: {local: "192.0.2.1:4789", remote: "192.0.2.2:4789", vni: 42}}
  - {name: up0, of: b, vxlan: {local: "192.0.2.2:4789", remote: "192.0.2.1:4789", vni: 42}}'
tap='  - {name: up0, tap: tap0}'

# halves HOW ARGUMENT...: starts both vnics, as processes $pa and $pb; ended waits for them, and sets $sa and $sb to
# their statuses. Their output is in $work/[ab].out and .err. HOW is qemu or inproc.
halves() {
  local how=$1; shift
  rm -f "$work/a.err" "$work/b.err" # callers wait for what the vnics write
  touch "$work/a.err"
  timeout 200 "$vnic" run --lab "$work/lab.yaml" --guest "a,$how" "$@" > "$work/a.out" 2> "$work/a.err" & pa=$!
  nsenter --net="/proc/$b/ns/net" timeout 200 "$vnic" run --lab "$work/lab.yaml" --guest "b,$how" "$@" \
    > "$work/b.out" 2> "$work/b.err" & pb=$!
}
ended() {
  sa=0 sb=0
  wait "$pa" || sa=$?
  wait "$pb" || sb=$?
}
# says HOST PATTERN: the first line of the host's error output matches.
says() {
  local line; line=$(grep -m 1 '^vnic: ' "$work/$1.err" || true)
  grep -qE -- "$2" <<< "$line" || { cat "$work"/[ab].err >&2; fail "host $1 says: $line; not: $2"; }
  echo "ok   host $1: $line"
}
# refuses HOST PATTERN ARGUMENT...: a half that ends without the other host, with one line that matches.
refuses() {
  local host=$1 want=$2 on=(); shift 2
  [ "$host" = a ] || on=(on_b)
  s=0; "${on[@]}" timeout 60 "$vnic" run "$@" > "$work/$host.out" 2> "$work/$host.err" || s=$?
  [ "$s" = 1 ] || [ "$s" = 2 ] || fail "status $s of: $*"
  says "$host" "$want"
}

# proved WHAT HOW ARGUMENT...: both halves are proved, and each reports that the other is.
proved() {
  local what=$1 start=$SECONDS; shift
  halves "$@" --json
  ended
  [ "$sa$sb" = 00 ] || { cat "$work"/[ab].err >&2; fail "$what: status $sa and $sb"; }
  local both=('half.peer_proved == true' 'runs.0.mode == "devmem"' 'runs.0.sha256_match == true'
    'runs.0.tx.host == 0' 'runs.0.rx.host == 0' 'runs.0.linear_bytes == 0')
  holds "$work/a.out" "${both[@]}" 'half.guest == "a"' 'rails.0.tx.device >= rails.0.bytes' 'rails.0.rx.device == 0' \
    > "$work/holds" || { cat "$work/holds"; fail "$what: host a"; }
  holds "$work/b.out" "${both[@]}" 'half.guest == "b"' 'rails.0.rx.device >= rails.0.bytes' 'rails.0.tx.device == 0' \
    > "$work/holds" || { cat "$work/holds"; fail "$what: host b"; }
  python3 - "$work/a.out" "$work/b.out" "$what" $((SECONDS - start)) <<'PY' || fail "$what: digests differ"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:3])
same = [(x["from"], x["to"], x["mode"], x["sha256"]) for x in a["rails"]] == \
       [(x["from"], x["to"], x["mode"], x["sha256"]) for x in b["rails"]]
print("ok   %s: %d transfers, %d bytes sent by a and %d received by b in mode devmem, none in host memory; %s s"
      % (sys.argv[3], len(a["rails"]), a["runs"][0]["tx"]["device"], b["runs"][0]["rx"]["device"], sys.argv[4]))
sys.exit(not same)
PY
}

echo "== VXLAN, vnic to vnic"
lab "$vxlan"
proved "vxlan" inproc --size 16M
proved "vxlan, both ways" inproc --size 8M --bidir
proved "vxlan, QEMU, virtio" qemu --size 8M --rails 1
proved "vxlan, QEMU, gve, both ways" qemu --size 8M --nic gve --bidir

echo "== taps, bridges and VXLAN of the kernel's"
bridge='ip link add br0 type bridge; ip tuntap add dev tap0 mode tap vnet_hdr
  for d in tap0 $1; do ip link set $d master br0 up; done; ip link set br0 up'
ip link add vx0 mtu 1500 type vxlan id 42 local 192.0.2.1 remote 192.0.2.2 dstport 4789
on_b ip link add vx0 mtu 1500 type vxlan id 42 local 192.0.2.2 remote 192.0.2.1 dstport 4789
sh -euc "$bridge" sh vx0
on_b sh -euc "$bridge" sh vx0
lab "$tap"
proved "the kernel's vxlan" inproc --size 16M
proved "the kernel's vxlan, both ways" inproc --size 8M --bidir
proved "the kernel's vxlan, QEMU, gve" qemu --size 8M --rails 1 --nic gve
sent=$(ip -json -statistics link show vx0 |
  python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["stats64"]["tx"]["bytes"])')
[ "$sent" -gt 30000000 ] || fail "the kernel's VXLAN device sent $sent bytes"
echo "ok   the kernel's VXLAN device of host a has sent $sent bytes"

echo "== Open vSwitch"
ip link del br0; ip link del vx0
on_b ip link del vx0
cable eth2 eth2
on_b ip link set eth2 master br0
mkdir "$work/ovs"
export OVS_RUNDIR=$work/ovs OVS_LOGDIR=$work/ovs
db=unix:$work/ovs/db.sock
ovs() { tools/openvswitch "$@"; }
ovs ovsdb-tool create "$work/ovs/conf.db" "$(tools/openvswitch)"
tools/openvswitch ovsdb-server "$work/ovs/conf.db" "--remote=p$db" > "$work/ovs/db.log" 2>&1 &
until [ -S "$work/ovs/db.sock" ]; do sleep 0.1; done
ovs ovs-vsctl --db="$db" --no-wait init
tools/openvswitch ovs-vswitchd "$db" > "$work/ovs/switch.log" 2>&1 &
within 30 tools/openvswitch ovs-vsctl --db="$db" add-br ovs0 -- set bridge ovs0 datapath_type=netdev -- \
  add-port ovs0 tap0 -- add-port ovs0 eth2
for p in tap0 eth2; do # add-port says nothing of a port that does not open
  [ "$(ovs ovs-vsctl --db="$db" get interface "$p" ofport)" -gt 0 ] ||
    { cat "$work/ovs/switch.log" >&2; fail "OVS: $p"; }
done
proved "OVS" inproc --size 16M
proved "OVS, both ways" inproc --size 2M --bidir
proved "OVS, QEMU, virtio" qemu --size 8M --rails 1
forwarded=$(ovs ovs-ofctl dump-ports ovs0 eth2 | sed -n 's/.*tx pkts=[0-9]*, bytes=\([0-9]*\).*/\1/p')
[ "$forwarded" -gt 30000000 ] || fail "OVS forwarded $forwarded bytes"
echo "ok   OVS has forwarded $forwarded bytes to host b"

echo "== what must not hold"
lab "$vxlan" 'script: [{at: 0s, set: nic b.nic0 p2p=off}, {at: 300ms, set: nic b.nic0 p2p=on}]' ', rate: 80Mbit'
halves inproc --size 8M --rails 1 --mode devmem
ended
[ "$sa$sb" = 11 ] || fail "a side that is not proved: status $sa and $sb"
says a 'the transfer does not prove what it should, says the host of guest b: .*payload in host memory'
says b 'the transfer does not prove what it should:'
grep -q 'a.nic0 to b.nic0: payload in host memory: 0 bytes sent, [1-9]' "$work/b.err" || fail "$(cat "$work/b.err")"

lab "$vxlan"
halves inproc --size 1G --stall 30
until grep -q 'devmem: ' "$work/a.err" || ! kill -0 "$pa"; do sleep 0.1; done
start=$SECONDS
ip link set eth1 down
ended
ip link set eth1 up
took=$((SECONDS - start))
[ "$sa$sb" = 11 ] && [ $took -lt 60 ] ||
  { cat "$work"/[ab].err >&2; fail "a cable that is cut: status $sa and $sb after $took s"; }
says a 'nothing has come from the host of guest b for 10s: its vnic is gone, or the network between'
says b 'nothing has come from the host of guest a for 10s: its vnic is gone, or the network between'
echo "ok   both ended $took s after the cable was cut"

for signal in KILL INT; do
  halves inproc --size 1G --stall 30
  until grep -q 'devmem: ' "$work/a.err" || ! kill -0 "$pa"; do sleep 0.1; done
  kill -$signal "$(pgrep -P "$pb" -x vnic)"
  ended
  [ "$sa" = 1 ] && [ "$sb" != 0 ] || fail "SIG$signal: status $sa and $sb"
  case $signal in
  KILL) says a 'nothing has come from the host of guest b for 10s: its vnic is gone' ;;
  INT) says a 'the host of guest b ended: ' ;;
  esac
done

# differ PATTERN ARGUMENT...: only b has these arguments; both hosts must end with a line that matches.
differ() {
  local want=$1; shift
  timeout 60 "$vnic" run --lab "$work/lab.yaml" --guest a,inproc --size 1M --mode devmem \
    > "$work/a.out" 2> "$work/a.err" & pa=$!
  on_b timeout 60 "$vnic" run --lab "$work/lab.yaml" --guest b,inproc --size 1M --mode devmem "$@" \
    > "$work/b.out" 2> "$work/b.err" & pb=$!
  ended
  [ "$sa$sb" = 11 ] || fail "$*: status $sa and $sb"
  says a "$want"
  says b '^vnic: '
}
differ '--mode is devmem here, and copy on the other host: give both the same' --mode copy
differ '--seed is 7 here, and 8 on the other host: give both the same' --seed 8
differ '--size is 1M here, and 2M on the other host: give both the same' --size 2M
sed 's/below: sw1}\]/below: sw1, memory: 128M}]/' "$work/lab.yaml" > "$work/other.yaml"
differ "other host's lab file is another one: \"memory: 64M\" here, \"memory: 128M\" there" --lab "$work/other.yaml"
refuses a 'no vnic that runs guest b came in 2s: start it' --lab "$work/lab.yaml" --guest a,inproc --peer-wait 2
refuses a 'guest c: the lab file has no such guest, but a, b' --lab "$work/lab.yaml" --guest c
refuses a 'guest a: nothing leads to the host of guest b' --lab pair --guest a --seed 1
refuses a 'guest a: both hosts need the same --seed' --lab pair --guest a
refuses a 'uplink up0: .*tap1' --lab pair --guest a,inproc --seed 1 --uplink tap=tap1
sed 's/mtu: 1450/mtu: 1600/' "$work/lab.yaml" > "$work/long.yaml"
refuses b 'uplink up0: it carries packets of 1550 bytes .* has an MTU of 1600: give all NICs one of 1550 at most' \
  --lab "$work/long.yaml" --guest b,inproc
python3 -c 'import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("192.0.2.1", 4789))
print("bound", flush=True)
time.sleep(60)' \
  > "$work/taken" & taken=$!
until [ -s "$work/taken" ]; do sleep 0.1; done
refuses a 'uplink up0: .*address already in use' --lab "$work/lab.yaml" --guest a,inproc
kill "$taken"
refuses b 'cannot assign requested address|no such address|not an address' --lab "$work/lab.yaml" --guest a,inproc
echo PASS
