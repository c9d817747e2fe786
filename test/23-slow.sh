#!/usr/bin/env bash
# "A slow receiver": beside a guest that takes 50, 0 or 1,000 frames a second, another receiver gets at least 90 %
# of its share of a sender's frames, on virtio, on gve, and from the gateway. And no frame is lost between two
# guests if one of them pauses for 100 ms each second. Each ratio is the median of 15 alternating pairs of
# measurements, with and without the slow guest; it is printed with its 95 % interval, and with the interval of
# pairs of equal measurements. It takes some 6 minutes: run it on a machine with nothing else to do.
. "$(dirname "$0")/lib.sh"
BADINPUT_SLOW=1 BADINPUT_VNIC=$vnic tools/with-tools go test ./test/internal/badinput -count=1 -v -timeout 20m \
  -run '^(TestOthersKeepTheirShare|TestPausesLoseNothing)$' > "$work/log" && passed=yes || passed=
grep -E ' of its share|frames sent|^ *--- ' "$work/log" | sed 's/^ *[a-z_]*\.go:[0-9]*: //'
[ "$passed" ] || fail "another receiver does not get its share, or frames are lost: see above"
echo PASS
