#!/usr/bin/env bash
# "`vnic` without Go, make or git: a tarball of `make release`, unpacked on a bare Debian 12 and 13, runs the demo's two
# commands and `vnic selftest hw/devmem.py`, and `vnic run --nic gve --gpu-driver vnicgpu`", which fetches a compiler.
# The script needs root, and debootstrap (tools/bare-debian). For each Debian it takes a quarter of an hour and
# downloads 700 MB. SUITES="trixie" selects one Debian.
. "$(dirname "$0")/lib.sh"
export VNIC_BARE=${VNIC_BARE:-$work/bare}
make -s release > "$work/release"
tarball=$root/$(tail -n 1 "$work/release")
[ -s "$tarball" ] || fail "make release: $(cat "$work/release")"

# Checks that nothing of the build is there, and then runs the commands of a new user.
cat > "$work/script" <<'EOF2'
for tool in go make git gcc cc; do
  if command -v $tool; then echo "there is a $tool here: this shows nothing"; exit 1; fi
done
set -ex
tar xf vnic-*.tar.gz
cd vnic-*/
bin/vnic run
bin/vnic run --nic gve --size 64M
bin/vnic selftest hw/devmem.py
bin/vnic run --nic gve --gpu-driver vnicgpu --size 16M
EOF2
for suite in ${SUITES:-bookworm trixie}; do
  echo "== $suite"
  tools/bare-debian --only "$tarball" $suite bash -c "$(cat "$work/script")" > "$work/out" 2>&1 ||
    { tail -n 60 "$work/out"; fail "$suite"; }
  # Both modes of the first two runs, and the one mode of the last.
  [ "$(grep -Ec '^[0-9]* *digest +match' "$work/out")" -ge 3 ] || { cat "$work/out"; fail "$suite: digests"; }
  grep -E '^\+|digest|untested' "$work/out"
done
echo PASS
