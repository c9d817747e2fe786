#!/usr/bin/env bash
# KVM where there is none: QEMU's TCG emulates AMD's SVM, so a guest of 'vnic boot' (-cpu max) with the kernel's kvm-amd
# has a /dev/kvm that works, slowly, by KVM's own code paths. In it vnic runs guests of its own by KVM. The script's log
# has how long each step took, and what said "kvm".
#
# Invariant: vnic: Guests run by KVM, with both models of NIC.
. "$(dirname "$0")/lib.sh"
unset VNIC_ACCEL VNIC_SLOW
cd "$work"
kernel=$(find "$cache"/kernel/*/usr/lib/modules -maxdepth 1 -mindepth 1 | sort | tail -1)
mkdir outer
for m in virt/lib/irqbypass drivers/crypto/ccp/ccp arch/x86/kvm/kvm arch/x86/kvm/kvm-amd; do
  f=$(ls "$kernel/kernel/$m".ko* 2> /dev/null || true)
  [ -n "$f" ] || continue
  case $f in *.xz) xz -dc "$f" ;; *.zst) zstd -dc "$f" ;; *) cat "$f" ;; esac > "outer/$(basename "$m").ko"
done
[ -s outer/kvm-amd.ko ] || fail "kernel ${kernel##*/} has no kvm-amd"
cp "$vnic" outer/vnic
"$vnic" cache export outer/archive --for run,boot

cat > outer/steps <<'END'
#!/bin/bash
# In the outer guest. Each step says how long it took; the last line is "done".
cd /outer
export VNIC_CACHE=/outer/cache VNIC_SLOW=10 HOME=/root PATH=/outer:$PATH
for m in irqbypass ccp kvm kvm-amd; do [ ! -e $m.ko ] || insmod $m.ko || echo "insmod $m: $?"; done
vnic cache import archive || exit 1
[ -c /dev/kvm ] || { echo "FAIL no /dev/kvm"; exit 1; }
step() { # NAME PATTERN COMMAND...: the command passes, and says the pattern
  local name=$1 pattern=$2 s=0 begin=$SECONDS; shift 2
  "$@" > out 2>&1 < /dev/null || s=$?
  if [ $s != 0 ] || ! grep -q "$pattern" out; then
    cat out; vnic doctor --report; echo "FAIL $name: status $s"; exit 1
  fi
  echo "ok   $((SECONDS - begin)) s $name: $(grep -m1 "$pattern" out)"
}
step doctor 'not tried yet' vnic doctor
step 'run gve' '(kvm)' vnic run --offline --nic gve --size 16M
step probe 'a guest has booted with it' vnic doctor
step 'run gve --iommu' '(kvm)' vnic run --offline --nic gve --iommu --size 4M --mode devmem
step boot ' 0% packet loss' vnic boot --offline --guests 2 --accel kvm --gpu-memory 0 -- ping -c 3 gateway
step 'run virtio' '(kvm)' vnic run --offline --nic virtio --size 16M
vnic run --offline --nic gve --size 64G > out 2>&1 & pid=$!
until grep -q 'stage: transfer' out; do kill -0 $pid || { cat out; echo "FAIL transfer"; exit 1; }; sleep 1; done
kill -9 $pid
for i in 1 2 3 4 5 6 7 8 9 10; do pidof -s ld-linux-x86-64.so.2 > /dev/null || break; sleep 1; done
if pgrep -f guest=guest > /dev/null; then echo "FAIL a QEMU outlives vnic"; exit 1; fi
echo "ok   killed: no QEMU is left"
echo done
END
chmod +x outer/steps
within 1500 "$vnic" boot --accel tcg --cpus 2 --memory 8G --gpu-memory 0 --copy "$work/outer:/outer" --timeout 24m -- \
  /outer/steps | tee log
grep -q '^done' log || fail "the outer guest's steps"
