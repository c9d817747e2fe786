#!/usr/bin/env bash
# "Machines without a network: `vnic cache export FILE --for run,boot` writes one archive with the program and just what
# those commands need, at most 64 MiB; `vnic cache import FILE` elsewhere, and `run` and `boot` work with --offline": in
# a bare Debian whose only network is loopback, as an unprivileged user. The script needs root and debootstrap.
# VNIC_BARE has the same meaning as for tools/bare-debian.
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
# guest0 pings guest1. guest1 runs until it has received an echo request: InEchos is the ninth of ICMP's counters.
cat > pinger <<'END'
#!/bin/sh
if [ "$(hostname)" = guest0 ]; then
  until ping -c 1 guest1; do :; done
  echo "$1 reached guest1"
else
  until set -- $(grep ^Icmp: /proc/net/snmp | tail -n 1) && [ "${10}" -gt 0 ]; do :; done
fi
END
chmod +x pinger
if command -v qemu-system-x86_64; then exit 1; fi
tar xf vnic.tar vnic.gz && gunzip vnic.gz
./vnic cache import vnic.tar
if ./vnic block --offline --size 4M 2> lacks; then exit 1; fi
grep -q 'not in the archive that was imported' lacks || { cat lacks; exit 1; }
for nic in virtio gve; do
  ./vnic run --offline --size 4M --nic $nic --json > $nic.json
  grep -q '"sha256_match": true' $nic.json
  if grep -q '"sha256_match": false' $nic.json; then exit 1; fi
  ./vnic boot --offline --guests 2 --timeout 180s --nic $nic -- ./pinger $nic > boot.out 2>&1 ||
    { cat boot.out; exit 1; }
  grep -q "$nic reached guest1" boot.out
done
echo all of it
EOF
within 1200 tools/bare-debian --only "$work/vnic.tar" --offline trixie bash -c "$(cat "$work/there")" | tee "$work/out"
grep -qx 'all of it' "$work/out" || fail "it ended early"
