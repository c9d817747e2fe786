#!/usr/bin/env bash
# "Gateway TCP against passt with vhost-user by the same frontend, both ways: >= 1.5; in a guest beside slirp and
# passt: faster." If this machine has no passt with vhost-user, Debian 13's is fetched into the cache. The script
# first runs vnic bench (rows passt-out and passt-in: a goal is met if the median is within 5 % of it and the better
# end of the interval reaches it). Then a guest with three NICs, of vnic, slirp (QEMU's -netdev user) and passt,
# moves the same bytes to and from this machine by each in turn. It takes some minutes: run it on a machine with
# nothing else to do. ROUNDS and BYTES change what the guest does.
. "$(dirname "$0")/lib.sh"
have_passt

failed=
"$vnic" bench --only passt-out,passt-in --json > "$work/bench.json" || fail "vnic bench"
for row in 0 1; do
  holds "$work/bench.json" "rows.$row.measured == true" || fail "passt is not measured"
  holds "$work/bench.json" "rows.$row.ratio.median >= 1.425" "rows.$row.ratio.high >= 1.5" || failed=yes
done

tool gateways
"$work/gateways" serve > "$work/port" &
passt --foreground --quiet --vhost-user --socket "$work/passt.sock" --ipv4-only --address 10.0.3.15 --netmask 24 \
  --gateway 10.0.3.2 --map-host-loopback 10.0.3.2 --dns none --tcp-ports none --udp-ports none 2> "$work/passt.log" &
for _ in $(seq 100); do [ ! -S "$work/passt.sock" ] || [ ! -s "$work/port" ] || break; sleep 0.1; done
[ -S "$work/passt.sock" ] || { cat "$work/passt.log" >&2; fail "passt does not start"; }
port=$(cat "$work/port")
cat > "$work/guest.sh" <<SH
set -e
for i in /sys/class/net/*; do
  case \$(cat \$i/address) in
    52:54:00:00:02:15) ip address add 10.0.2.15/24 dev \${i##*/}; ip link set \${i##*/} up ;;
    52:54:00:00:03:15) ip address add 10.0.3.15/24 dev \${i##*/}; ip link set \${i##*/} mtu 65520 up ;;
  esac
done
exec $work/gateways ${ROUNDS:-15} ${BYTES:-$((32 << 20))} vnic=gateway:$port slirp=10.0.2.2:$port passt=10.0.3.2:$port
SH
args=()
for a in -netdev user,id=slirp,net=10.0.2.0/24 -device virtio-net-pci,netdev=slirp,mac=52:54:00:00:02:15 \
  -chardev "socket,id=passt,path=$work/passt.sock" -netdev vhost-user,id=passt,chardev=passt \
  -device virtio-net-pci,netdev=passt,mac=52:54:00:00:03:15; do args+=(--qemu-arg "$a"); done
timeout 1500 "$vnic" boot --gpu-memory 0 "${args[@]}" --copy "$work/gateways" --copy "$work/guest.sh" -- \
  sh "$work/guest.sh" || failed=yes
[ -z "$failed" ] || fail "a ratio is not reached: see above"
echo PASS
