# vnic selftest runs this script in the guest, in the root of the tests, before each program. It brings both interfaces
# to the state in which their driver leaves a new device, and sets their addresses; the second interface is in a network
# namespace of its own. It removes what the previous program left in the driver or in the stack, with the devices.
#
#   MAC0 MAC1     MAC addresses of the tested interface, and of the remote one
#   LOCAL_V4 ...  the addresses, as the tests get them (tools/testing/selftests/drivers/net/README.rst)
#   PREFIX        length of the addresses' networks, IPv4's and IPv6's
#   NTUPLE        on: the script switches flow rules on, which the driver leaves off
#   MTU           the MTU of both interfaces
#   FAULTY        on: the tested NIC has a fault (--sabotage), which the tests should find, not this script
set -eu
fail() { echo "setup: $*" >&2; exit 1; }

ip -all netns exec true > /dev/null 2>&1 || true
for ns in $(ip netns list | cut -d' ' -f1); do
  for pid in $(ip netns pids "$ns"); do kill -9 "$pid" 2> /dev/null || true; done
  ip netns del "$ns" || true
done

# The devices, by their MACs; a device that moved with its namespace comes back by itself.
drivers=
for dev in $(ls -d /sys/bus/pci/drivers/*/0000:* 2> /dev/null); do
  case ${dev%/*} in */gve | */virtio-pci | */vmxnet3 | */e1000e) ;; *) continue ;; esac
  case $(cat "$dev/class") in 0x0200*) ;; *) continue ;; esac
  drivers="$drivers $dev"
done
[ -n "$drivers" ] || fail "the guest's kernel drives no NIC"
# fq_codel, which many kernels have by default, drops frames that waited for 5 ms, and changes the order of flows: on an
# emulated processor frames wait that long, and tests would report the drops as the NIC's fault.
echo pfifo_fast > /proc/sys/net/core/default_qdisc
for dev in $drivers; do echo "${dev##*/}" > "${dev%/*}/unbind"; done
for dev in $drivers; do echo "${dev##*/}" > "${dev%/*}/bind" || fail "the driver does not take ${dev##*/} again"; done

named() { # MAC NAME
  local tries
  for tries in $(seq 200); do
    for d in /sys/class/net/*; do
      if [ "$(cat "$d/address")" = "$1" ] && [ -e "$d/device" ]; then
        [ "${d##*/}" = "$2" ] || ip link set "${d##*/}" name "$2"
        return
      fi
    done
    sleep 0.05
  done
  fail "no interface has the MAC $1"
}
# An interface may have the name that the other one should get.
for d in /sys/class/net/eth*; do [ ! -e "$d" ] || ip link set "${d##*/}" name "old${d##*/eth}"; done
named "$MAC0" eth0
named "$MAC1" eth1

ip link set lo up
ip netns add remote
ip link set eth1 netns remote
set -- $PREFIX
ip link set eth0 mtu "$MTU"
ip addr add "$LOCAL_V4/$1" dev eth0
ip addr add "$LOCAL_V6/$2" dev eth0 nodad
ip link set eth0 up
# From several queues a program's frames would leave in any order, which tests would report as the NIC's fault.
ip netns exec remote ethtool -L eth1 tx 1 > /dev/null 2>&1 || true
ip -n remote link set lo up
ip -n remote link set eth1 mtu "$MTU"
ip -n remote addr add "$REMOTE_V4/$1" dev eth1
ip -n remote addr add "$REMOTE_V6/$2" dev eth1 nodad
ip -n remote link set eth1 up
ip -n remote route add "$LOCAL_PREFIX_V6" via "$LOCAL_V6"
if [ "${NTUPLE:-}" = on ]; then ethtool -K eth0 ntuple on; fi

tries=100
if [ "${FAULTY:-}" = on ]; then tries=3; fi
for tries in $(seq "$tries"); do
  if ping -c 1 -W 1 "$REMOTE_V4" > /dev/null 2>&1 && ping -c 1 -W 1 "$REMOTE_V6" > /dev/null 2>&1; then exit 0; fi
  sleep 0.1
done
[ "${FAULTY:-}" = on ] || fail "the remote end does not answer"
