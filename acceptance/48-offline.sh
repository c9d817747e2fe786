#!/usr/bin/env bash
# "Machines without a network: `vnic cache export FILE --for run,boot` writes one archive with the program and just what
# those commands need, at most 64 MiB; `vnic cache import FILE` elsewhere, and `run` and `boot` work with --offline": in
# a bare Debian with loopback alone, as an unprivileged user. Needs root and debootstrap. VNIC_BARE: as in
# tools/bare-debian.
. "$(dirname "$0")/lib.sh"

echo "== export"
within 600 "$vnic" cache export "$work/vnic.tar" --for run,boot --json > "$work/export.json"
bytes=$(stat -c %s "$work/vnic.tar")
holds "$work/export.json" "bytes == $bytes" "sha256 == \"$(sha256sum < "$work/vnic.tar" | cut -d' ' -f1)\""
[ "$bytes" -le $((64 << 20)) ] || fail "the archive has $bytes bytes"
echo "ok   $bytes bytes"

echo "== damage is found, and leaves nothing"
damaged() { # what is wrong is in $work/bad.tar
  s=0
  VNIC_CACHE=$work/none "$vnic" cache import "$work/bad.tar" > "$work/out" 2> "$work/err" || s=$?
  [ $s = 1 ] && grep -q "$1" "$work/err" || fail "status $s: $(cat "$work/err")"
  [ ! -e "$work/none/resolved.json" ] && [ -z "$(find "$work/none" -mindepth 2)" ] || fail "the import left something"
}
head -c $((bytes - 1000000)) "$work/vnic.tar" > "$work/bad.tar"
damaged 'damaged or cut short'
cp "$work/vnic.tar" "$work/bad.tar"
printf x | dd of="$work/bad.tar" bs=1 seek=$((bytes - 5000000)) conv=notrunc status=none
damaged 'damaged or cut short'

echo "== import, run and boot, on a machine that has nothing"
cat > "$work/there" <<'EOF'
set -eu
! command -v qemu-system-x86_64 >/dev/null
tar xf vnic.tar vnic.gz && gunzip vnic.gz
./vnic cache import vnic.tar
! ./vnic block --offline --size 4M 2> lacks || exit 1
grep -q 'not in the archive that was imported' lacks || { cat lacks; exit 1; }
for nic in virtio gve; do
  ./vnic run --offline --size 4M --nic $nic --json > $nic.json
  grep -q '"sha256_match": true' $nic.json
  ! grep -q '"sha256_match": false' $nic.json
  # Each pings the other, until it answers. The one that is later may find the other gone: then boot's status is red.
  ./vnic boot --offline --guests 2 --nic $nic -- sh -c 'peer=guest0; [ "$(hostname)" != guest0 ] || peer=guest1
    ping -c 1 $peer && echo "$0 reached $peer"' $nic > boot.out 2>&1 || true
  cat boot.out
  grep -q "$nic reached guest1" boot.out
done
echo all of it
EOF
within 1200 tools/bare-debian --only "$work/vnic.tar" --offline trixie bash -c "$(cat "$work/there")" | tee "$work/out"
grep -qx 'all of it' "$work/out" || fail "it ended early"
