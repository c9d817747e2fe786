#!/usr/bin/env bash
# "An innocent guest beside a flood of the gateway": of DNS, UDP to nobody, new flows, SYN, ARP and DHCP, by one port with 8
# queues and by two with 4: it makes at least 80 % as many connections as beside as many threads that only spin (the
# median of 15 alternating pairs), and 20 of 20 guests have a lease by their first retry. It takes some 6 minutes: run it
# on a machine with nothing else to do. That none of its frames is missed, TestFloods of internal/nic/virtio shows by
# counts.
. "$(dirname "$0")/lib.sh"
VNIC_FLOODS=1 tools/with-tools go test ./internal/wire/gateway -count=1 -v -timeout 20m \
  -run '^TestFloodsLeaveShares$' > "$work/log" &&
  passed=yes || passed=
grep -aE 'of what is left' "$work/log" | sed 's/^ *[a-z_]*\.go:[0-9]*: //'
[ "$passed" ] || fail "a guest beside a flood does not get its share: see above"
echo PASS
