#!/usr/bin/env bash
# "an unprivileged Debian container with 64 MiB of /dev/shm and no /dev/kvm": the same made of namespaces, which need no engine.
. "$(dirname "$0")/lib.sh"

# As a user who is nobody outside, without privileges and network, without /dev/kvm, with a small /dev/shm.
cat > "$work/container" <<'EOF'
#!/bin/sh
exec unshare --user --map-root-user --mount --net --pid --fork --kill-child sh -euc '
  mount -t proc proc /proc
  mount -t tmpfs -o size=64M tmpfs /dev/shm
  [ ! -e /dev/kvm ] || { : > "$1/nothing"; mount --bind "$1/nothing" /dev/kvm; }
  shift
  exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --securebits=+noroot "$@"' sh "${0%/*}" "$@"
EOF
chmod +x "$work/container"

echo "== what it is like in there"
"$work/container" sh -c 'df -m /dev/shm | tail -n 1; grep CapEff /proc/self/status' | tee "$work/like"
grep -q '^tmpfs *64 ' "$work/like" || fail "/dev/shm is not 64 MiB"
grep -q '^CapEff:[^1-9a-f]*$' "$work/like" || fail "it has capabilities"

echo "== the cache is filled outside: there is no network in there"
within 300 "$vnic" run --size 1M --mode devmem --nic gve --json > "$work/warm.json"

for nic in virtio gve; do
  echo "== --nic $nic"
  within 180 "$work/container" "$vnic" run --nic "$nic" --size 64M --json > "$work/$nic.json"
  holds "$work/$nic.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'accel == "tcg"' "nic == \"$nic\""
done

echo "== it compiles for arm64, no more"
GOARCH=arm64 tools/with-tools go vet ./...

echo "== what the machine lacks is said"
"$work/container" "$vnic" doctor | tee "$work/doctor"
grep -Eq '^kvm +(worse|no|missing)' "$work/doctor" || fail "doctor does not say that KVM is not there"
echo PASS
