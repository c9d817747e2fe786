#!/usr/bin/env bash
# KVM on a machine without it: QEMU's TCG emulates AMD's SVM, so a guest of 'vnic boot' (-cpu max) with the kernel's
# kvm-amd has a /dev/kvm that works, slowly, with KVM's own code. In that guest vnic runs guests by KVM. The
# script's log has the time of each step, and the lines that contain "kvm". 54-kvm-devices.sh tests devices in the
# same way.
#
# Invariant: vnic: Guests run by KVM, with both models of NIC.
. "$(dirname "$0")/lib.sh"
# QEMU, kernel and programs are fetched here.
within 300 "$vnic" run --accel tcg --nic gve --size 1M > "$work/fetched" 2>&1 || { cat "$work/fetched"; fail "by TCG"; }
cat > "$work/steps" <<'END'
step doctor 'not tried yet' vnic doctor
step 'run gve' '(kvm)' vnic run --offline --nic gve --size 4M
step probe 'a guest has booted with it' vnic doctor
step 'run virtio' '(kvm)' vnic run --offline --nic virtio --size 4M

begin=$SECONDS
vnic boot --offline --guests 2 --gpu-memory 0 -- sh -c 'ping -c 3 -w 30000 gateway && sleep 1000' > out 2>&1 & pid=$!
until [ "$(grep -c 'icmp_seq=3' out)" = 2 ]; do kill -0 $pid || failed boot; sleep 1; done
qemus() { # the guests' that run by KVM
  for f in $(grep -lsa 'guest=[g]uest' /proc/[0-9]*/cmdline); do grep -qsa kvm "$f" && echo "$f"; done
}
[ "$(qemus | wc -l)" = 2 ] || failed 'two QEMUs, by KVM'
echo "ok   $((SECONDS - begin)) s boot, two QEMUs (kvm): $(grep -m1 'icmp_seq=3' out)"
kill -9 $pid
for i in 1 2 3 4 5 6 7 8 9 10; do [ -n "$(qemus)" ] || break; sleep 1; done
[ -z "$(qemus)" ] || failed 'a QEMU outlives vnic'
echo "ok   killed: no QEMU is left"
END
in_kvm 1500 < "$work/steps"
