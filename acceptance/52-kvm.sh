#!/usr/bin/env bash
# KVM where there is none: QEMU's TCG emulates AMD's SVM, so a guest of 'vnic boot' (-cpu max) with the kernel's kvm-amd
# has a /dev/kvm that works, slowly, by KVM's own code paths. In it vnic runs guests of its own by KVM. The script's log
# has how long each step took, and what said "kvm".
#
# The outer guest has one processor: with two, QEMU 11.1 at times lets an interrupt through right behind VMRUN
# (docs/found.md).
#
# Invariant: vnic: Guests run by KVM, with both models of NIC.
. "$(dirname "$0")/lib.sh"
unset VNIC_ACCEL VNIC_SLOW
tool doorbell
# What a selftest needs is fetched and built here, and runs by TCG first.
within 900 "$vnic" selftest --accel tcg hw/devmem.py > "$work/selftest" 2>&1 || { cat "$work/selftest"; fail selftest; }

# What the outer guest gets: the kernel's modules, vnic, and on a disk the user's cache.
kernel=$(find "$cache"/kernel/*/usr/lib/modules -maxdepth 1 -mindepth 1 | sort | tail -1)
mkdir "$work/outer"
for m in virt/lib/irqbypass arch/x86/kvm/kvm arch/x86/kvm/kvm-amd drivers/block/virtio_blk fs/squashfs/squashfs \
  fs/overlayfs/overlay; do
  for f in "$kernel/kernel/$m".ko*; do
    case $f in *.xz) xz -dc "$f" ;; *.zst) zstd -dc "$f" ;; *) cat "$f" ;; esac > "$work/outer/${m##*/}.ko" ||
      fail "kernel ${kernel##*/} has no $m"
  done
done
cp "$vnic" "$work/doorbell" "$work/outer/"
mksquashfs=$(find "$cache"/selftests-tools -path '*/usr/bin/mksquashfs' | sort | tail -1)
"$mksquashfs" "$cache"/{qemu,kernel,programs,selftests,selftests-root,selftests-tools,resolved.json} \
  "$work/cache.squashfs" -keep-as-directory -noI -noD -noF -noX -no-progress > "$work/squashed" ||
  { cat "$work/squashed"; fail mksquashfs; }

cat > "$work/outer/steps" <<'END'
#!/bin/bash
cd /outer
failed() { cat out; vnic doctor --report; echo "FAIL $*"; exit 1; }
# step NAME PATTERN COMMAND...: the command passes, and says the pattern.
step() {
  local name=$1 pattern=$2 s=0 begin=$SECONDS; shift 2
  "$@" > out 2>&1 < /dev/null || s=$?
  [ $s = 0 ] && grep -q -e "$pattern" out || failed "$name: status $s"
  echo "ok   $((SECONDS - begin)) s $name: $(grep -m1 -e "$pattern" out)"
}
export VNIC_CACHE=/outer/cache VNIC_SLOW=10 HOME=/root PATH=/outer:$PATH
for m in irqbypass kvm kvm-amd virtio_blk squashfs overlay; do insmod $m.ko || failed $m; done
[ -c /dev/kvm ] || failed "no /dev/kvm"
mkdir lower cache over over/upper over/work
mount -t squashfs -o ro /dev/vda lower || failed 'the disk'
mount -t overlay -o lowerdir=lower,upperdir=over/upper,workdir=over/work none cache || failed overlay

step doctor 'not tried yet' vnic doctor
step 'run gve' '(kvm)' vnic run --offline --nic gve --size 16M
step probe 'a guest has booted with it' vnic doctor
step 'run virtio' '(kvm)' vnic run --offline --nic virtio --size 16M
step 'run gve --iommu' '(kvm)' vnic run --offline --nic gve --iommu --size 4M --mode devmem
step 'selftest hw/devmem.py' '(kvm)' vnic selftest --offline --accel kvm hw/devmem.py
grep -q 'proved .*as expected' out || failed 'selftest: what is expected'
step boot 'icmp_seq=3' vnic boot --offline --guests 2 --accel kvm --gpu-memory 0 -- ping -c 3 gateway

# The guest's clock, and GPU memory that comes and goes in its address space while its NIC works; then the other
# interrupt controller.
cat > memory <<'MEMORY'
cat /sys/devices/system/clocksource/clocksource0/current_clocksource
for d in /sys/bus/pci/devices/*; do [ "$(cat $d/device)" != 0x1110 ] || gpu=$d; done
ping -c 10 gateway > pinged & pid=$!
for i in 1 2 3 4 5 6 7 8; do
  echo 1 > $gpu/remove; [ ! -e $gpu ] || exit 1
  echo 1 > /sys/bus/pci/rescan; [ -e $gpu ] || exit 1
  echo 1 > $gpu/enable
done
wait $pid; s=$?; cat pinged; exit $s
MEMORY
step 'memory' '^kvm-clock' vnic boot --offline --accel kvm --copy /outer/memory:/memory -- sh /memory
grep -q 'icmp_seq=10' out || failed memory
step 'kernel-irqchip=split' 'icmp_seq=3' vnic boot --offline --accel kvm --gpu-memory 0 \
  --qemu-arg -machine --qemu-arg kernel-irqchip=split -- ping -c 3 gateway

# QEMU's SVM and KVM: an expected failure (docs/found.md); with it gone driver/pci.go needs no enter. An interrupt right
# before the store hides it, and a device that is found again has it again.
cat > ring <<'RING'
for d in /sys/bus/pci/devices/*; do [ "$(cat $d/device)" != 0x1110 ] || gpu=$d; done
for i in 1 2 3 4 5 6 7 8; do
  echo 1 > $gpu/enable; /doorbell $gpu/resource0 || exit 1
  echo 1 > $gpu/remove; echo 1 > /sys/bus/pci/rescan
done
RING
if vnic boot --offline --accel kvm --copy /outer/doorbell:/doorbell --copy /outer/ring:/ring \
  -- sh /ring > out 2>&1; then
  echo "note: the first access to a BAR after an exception no longer ends a guest: docs/found.md, driver/pci.go"
else
  grep -q 'Suberror: 3' out && grep -q 'accel tcg' out || failed doorbell
  echo "ok   doorbell: $(grep 'Suberror' out | head -1), as expected"
fi

vnic run --offline --nic gve --size 64G > out 2>&1 & pid=$!
until grep -q 'stage: transfer' out; do kill -0 $pid || failed transfer; sleep 1; done
qemus() { grep -lsa 'guest=[g]uest' /proc/[0-9]*/cmdline; }
[ "$(qemus | wc -l)" = 2 ] || failed 'two QEMUs'
kill -9 $pid
for i in 1 2 3 4 5 6 7 8 9 10; do qemus > /dev/null || break; sleep 1; done
! qemus || failed 'a QEMU outlives vnic'
echo "ok   killed: no QEMU is left"
echo done
END
chmod +x "$work/outer/steps"
within 1500 "$vnic" boot --accel tcg --memory 4G --gpu-memory 0 --copy "$work/outer:/outer" \
  --qemu-arg -drive --qemu-arg "file=$work/cache.squashfs,format=raw,if=virtio,readonly=on" \
  --timeout 24m -- /outer/steps | tee "$work/log"
grep -q '^done' "$work/log" || fail "the outer guest's steps"
