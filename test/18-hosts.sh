#!/usr/bin/env bash
# "an unprivileged Debian container with 64 MiB of /dev/shm and no /dev/kvm": the script makes it of namespaces,
# without a container engine. "Ubuntu 24.04 by --mirror/--keyring": this machine with Ubuntu's configuration of apt
# and /etc.
. "$(dirname "$0")/lib.sh"

container

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

echo "== as on Ubuntu 24.04: apt knows no Debian mirror, and there is no key of Debian's where Debian has it"
mirror=${VNIC_MIRROR:-$(. tools/debs.sh; mirror)} key=${VNIC_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
mkdir "$work/etc" "$work/keys"
cp "$key" "$work/keys/debian.gpg"
printf '%s\n' 'NAME="Ubuntu"' ID=ubuntu ID_LIKE=debian 'VERSION_ID="24.04"' VERSION_CODENAME=noble \
  'PRETTY_NAME="Ubuntu 24.04 LTS"' > "$work/etc/os-release"
printf '%s\n' 'Types: deb' 'URIs: http://archive.ubuntu.com/ubuntu/' 'Suites: noble' 'Components: main' \
  'Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg' > "$work/etc/ubuntu.sources"
cat > "$work/ubuntu" <<'EOF'
#!/bin/sh
exec unshare --user --map-root-user --mount sh -euc '
  here=$1; shift
  mount --bind "$here/etc/os-release" /etc/os-release
  mount -t tmpfs tmpfs /usr/share/keyrings
  [ ! -s /etc/apt/sources.list ] || mount --bind /dev/null /etc/apt/sources.list
  mount -t tmpfs tmpfs /etc/apt/sources.list.d
  cp "$here/etc/ubuntu.sources" /etc/apt/sources.list.d/
  unset VNIC_MIRROR VNIC_KEYRING
  exec "$@"' sh "${0%/*}" "$@"
EOF
chmod +x "$work/ubuntu"
s=0; "$work/ubuntu" "$vnic" run --size 1M --cache "$work/empty" > "$work/out" 2> "$work/err" || s=$?
[ $s = 3 ] && grep -q '^vnic: .*--mirror' "$work/err" || fail "status $s: $(cat "$work/err")"
echo "ok   status 3: $(grep '^vnic: ' "$work/err")"
within 300 "$work/ubuntu" "$vnic" run --nic gve --size 1M --mode devmem --cache "$work/empty" --mirror "$mirror" \
  --keyring "$work/keys/debian.gpg" --json > "$work/ubuntu.json"
holds "$work/ubuntu.json" "$(devmem_proof 0)" 'nic == "gve"'

echo "== it compiles for arm64, no more"
GOARCH=arm64 tools/with-tools go vet ./...

echo "== what the machine lacks is said"
"$work/container" "$vnic" doctor | tee "$work/doctor"
grep -Eq '^kvm +(worse|no|missing)' "$work/doctor" || fail "doctor does not say that KVM is not there"
echo PASS
