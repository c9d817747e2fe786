#!/usr/bin/env bash
# "README and ARCHITECTURE.md explain both personalities and when to choose which; make demo shows both; the linter shows
# that no shared room imports a personality."
#
# 1-demo.sh runs make demo, and wants both NICs' digests.
. "$(dirname "$0")/lib.sh"

echo "== make demo shows both"
plan=$(make -n demo)
grep -qx 'bin/vnic run' <<< "$plan" || fail "make demo does not show virtio"
grep -q '^bin/vnic run --nic gve' <<< "$plan" || fail "make demo does not show gve"
echo "ok   vnic run, vnic run --nic gve"

echo "== README and ARCHITECTURE.md"
for doc in README.md ARCHITECTURE.md; do
  for word in nic/virtio nic/gve vhost-user vfio-user; do
    if [ $doc = README.md ]; then word=${word#nic/}; fi
    grep -q -- "$word" $doc || fail "$doc says nothing of $word"
  done
  echo "ok   $doc"
done
grep -qi '^## which nic' README.md || fail "README.md does not say when to choose which"
echo "ok   README.md: when to choose which"

echo "== no shared room knows a personality, nor one the other"
# What would make a cycle (dma, wire, nic: a personality imports them) is refused by the compiler already.
refused 'splitter splitter vnic.dev/vnic/vfiouser
gpumem gpumem vnic.dev/vnic/vfiouser
control control vnic.dev/vnic/vfiouser
wire wire vnic.dev/vnic/vfiouser
nic nic vnic.dev/vnic/vfiouser
nic nic vnic.dev/vnic/vhostuser
vhostuser vhostuser vnic.dev/vnic/vfiouser
nic/virtio virtio vnic.dev/vnic/nic/gve
nic/virtio virtio vnic.dev/vnic/vfiouser
nic/gve gve vnic.dev/vnic/vhostuser
nic/gve gve vnic.dev/vnic/virtq
devmem/kernel kernel vnic.dev/vnic/control
devmem/kernel kernel vnic.dev/vnic/nic/gve'
rm -rf "$work/copy" # the other direction of a pair would make a cycle
refused 'nic/gve gve vnic.dev/vnic/nic/virtio'
echo PASS
