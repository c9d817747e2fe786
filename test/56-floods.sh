#!/usr/bin/env bash
# "An innocent guest beside a flood of the gateway": one port with 8 queues, or two ports with 4, flood the gateway
# with DNS, UDP to closed ports, new flows, SYN, ARP and DHCP. The innocent guest makes at least 80 % as many
# connections as beside the same number of threads that only spin (the median of 15 alternating pairs), and 20 of 20
# guests have a lease by their first retry. It takes some 6 minutes: run it on a machine with nothing else to do.
# TestFloods of internal/nic/virtio counts that none of the innocent guest's frames is lost.
. "$(dirname "$0")/lib.sh"
VNIC_FLOODS=1 tools/with-tools go test ./internal/wire/gateway -count=1 -v -timeout 20m \
  -run '^TestFloodsLeaveShares$' > "$work/log" &&
  passed=yes || passed=
grep -aE 'of what is left' "$work/log" | sed 's/^ *[a-z_]*\.go:[0-9]*: //'
[ "$passed" ] || fail "a guest beside a flood does not get its share: see above"
echo PASS
