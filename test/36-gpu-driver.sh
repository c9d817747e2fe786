#!/usr/bin/env bash
# "A GPU driver in the guest": vnicgpu.ko, built by vnic for the kernel that is fetched, for Linux 7.3 and for 6.12.
#
# - `vnic run --nic gve --gpu-driver vnicgpu`: the same proof as without, and no nokaslr on the kernel's command
#   line.
# - Linux decides which NIC reaches which GPU: across root ports of a host bridge that forwards nothing it refuses,
#   and vnic reports that before and after; below a switch, and across root ports of a bridge that forwards, it
#   works. In two cases Linux cannot see the obstacle: behind a redirect, which QEMU's switches do not have, and
#   between host bridges that forward only between their own ports. Then the NIC bounces, and vnic counts and
#   reports it.
# - The other uses of devmem TCP work with it: all-reduce, a web server's file, blocks.
# - If a GPU is removed while a gVNIC writes to it, its driver waits until the NIC no longer uses it.
# - A program's pages in the GPU: a short test, on both kernels (`VNIC_LONG=1 go test ./test/internal/gpulab` runs
#   the long one). Pages on demand for a NIC on Linux 7.3; `make test` tests them on the other kernel.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$root/tools/with-tools" env CGO_ENABLED=0 go build -ldflags="-s -w" -o "$work/gpudriver-test" \
  ./internal/gpudriver/gpudriver-test

# lab P2P BELOW REDIRECT: a lab file; BELOW is what NIC and GPU are below.
lab() {
  cat << END
guests:
  a: &host
    sockets: [{name: s0, p2p: $1}]
    switches: [{name: sw0, below: s0}]
    nics: [{name: nic0, below: $2, model: gve}]
    gpus: [{name: gpu0, below: $2, memory: 64M, acs-redirect: $3}]
    driver: vnicgpu
  b: *host
END
}
lab none s0 false > "$work/none.yaml"
lab any s0 false > "$work/any.yaml"
lab none sw0 false > "$work/switch.yaml"
lab none sw0 true > "$work/acs.yaml"
# NIC and GPU at different sockets, whose host bridges forward between their own ports only: Linux cannot detect
# that.
cat > "$work/same-bridge.yaml" << END
guests:
  a: &host
    sockets: [{name: s0, p2p: same-bridge}, {name: s1, p2p: same-bridge}]
    nics: [{name: nic0, below: s0, model: gve}]
    gpus: [{name: gpu0, below: s1, memory: 64M}]
    driver: vnicgpu
  b: *host
END

# kernel WHAT ARGUMENT...: runs all tests with a guest kernel.
kernel() {
  local what=$1 status=0; shift
  echo "== $what"
  within 200 "$vnic" run --nic gve --gpu-driver vnicgpu --size 16M --mode devmem --json "$@" > "$work/run.json" \
    2> "$work/err" || fail "$what: $(cat "$work/err")"
  mapfile -t proof < <(devmem_proof 0)
  holds "$work/run.json" "${proof[@]}"
  echo "ok   below a switch without a lab file: 16 MiB, none in host memory"
  for l in switch any; do
    within 200 "$vnic" run --lab "$work/$l.yaml" --size 4M --mode devmem --json "$@" > "$work/run.json" \
      2> "$work/err" || fail "$what, $l: $(cat "$work/err")"
    holds "$work/run.json" 'runs.0.sha256_match == true' 'runs.0.tx.device >= 4194304' 'runs.0.rx.host == 0'
    echo "ok   $l: it works"
  done
  "$vnic" run --lab "$work/none.yaml" --size 4M --mode devmem "$@" > "$work/out" 2> "$work/err" || status=$?
  [ $status = 1 ] || fail "$what, none: status $status: $(cat "$work/err")"
  grep -q '^note: a: nic0-gpu0: Linux in this guest refuses it: the host bridge of s0 forwards nothing' "$work/err" ||
    fail "no note: $(cat "$work/err")"
  grep -q 'the NIC cannot reach it from where it is' "$work/err" || fail "no reason: $(cat "$work/err")"
  echo "ok   none: Linux refuses, as was said"
  for l in acs same-bridge; do
    within 200 "$vnic" run --lab "$work/$l.yaml" --size 4M --mode devmem --json "$@" > "$work/run.json" \
      2> "$work/err" || fail "$what, $l: $(cat "$work/err")"
    holds "$work/run.json" 'runs.0.sha256_match == true' 'runs.0.tx.device == 0' 'runs.0.rx.host >= 4194304'
    grep -q "^note: a: nic0-gpu0: Linux in this guest allows it: " "$work/err" || fail "no note: $(cat "$work/err")"
    echo "ok   $l: Linux allows, the NIC bounces all of it, and vnic says so"
  done
  within 200 "$vnic" boot --lab "$work/switch.yaml" --copy "$work/gpudriver-test:/bin/gpudriver-test" "$@" -- \
    sh -c '[ $VNIC_INDEX = 1 ] || { gpudriver-test && gpudriver-test private && ! grep nokaslr /proc/cmdline; }' \
    > "$work/out" 2> "$work/err" || fail "$what: $(cat "$work/out" "$work/err")"
  echo "ok   $(grep -c 'ok  ' "$work/out") cases of the driver's own test"
}

kernel "the kernel that is fetched"

read -r image dir < <("$root/tools/kernel" trixie-backports)
kernel "$(basename "$dir")" --kernel "$image" --modules "$dir"
( cd "$root" && VNIC_LONG=1 VNIC_KERNEL=$image VNIC_MODULES=$dir within 600 tools/with-tools go test -count=1 -run TestPaging \
  ./test/internal/gpulab ) > "$work/out" 2>&1 || fail "pages on demand: $(cat "$work/out")"
echo "ok   pages on demand"

echo "== Linux 6.12, whose gve has no devmem TCP, and which has no device-private pages: the module compiles and loads"
read -r image dir < <("$root/tools/kernel" trixie bookworm-backports)
within 300 "$vnic" boot --nic gve --gpu-driver vnicgpu --kernel "$image" --modules "$dir" \
  --copy "$work/gpudriver-test:/bin/gpudriver-test" -- sh -c 'set -e; gpudriver-test memory
    gpudriver-test private > out || grep -q "operation not supported" out
    ! dmesg | grep "cut here"' \
  > "$work/out" 2> "$work/err" || fail "$(cat "$work/out" "$work/err")"
echo "ok   $(basename "$dir"): $(grep -c 'ok  ' "$work/out") cases"
status=0
"$vnic" image build --gpu-driver vnicgpu --kernel "$image" --modules "$dir" --cache "$work/empty" --offline \
  -o "$work/guest" > "$work/out" 2> "$work/err" || status=$?
[ $status = 3 ] || fail "offline, with an empty cache: status $status: $(cat "$work/err")"
echo "ok   status $status: $(tail -n 1 "$work/err")"

echo "== a GPU that is removed in flight"
{ lab none sw0 false && echo 'script: [{at: 1s, set: gpu b.gpu0 remove}]'; } > "$work/removed.yaml"
status=0
within 300 "$vnic" run --lab "$work/removed.yaml" --size 8G --mode devmem > "$work/out" 2> "$work/err" || status=$?
[ $status = 1 ] || fail "status $status: $(cat "$work/err")"
grep -q '^note: b.gpu0: has been removed' "$work/err" || fail "$(cat "$work/err")"
grep -q 'b.gpu0: removed while it was used' "$work/err" || fail "$(cat "$work/err")"
echo "ok   $(tail -n 1 "$work/err")"

echo "== uses"
uses=(--nic gve --gpu-driver vnicgpu --json)
within 200 "$vnic" allreduce "${uses[@]}" -b 1M -e 1M > "$work/use.json"
holds "$work/use.json" 'modes.0.wrong == 0' 'modes.0.ranks.0.in.host == 0' 'modes.0.ranks.0.out.host == 0'
within 200 "$vnic" load "${uses[@]}" --size 16M > "$work/use.json"
holds "$work/use.json" 'runs.0.verified == true' 'runs.0.rx.host == 0'
within 200 "$vnic" block "${uses[@]}" --size 8M > "$work/use.json"
holds "$work/use.json" 'runs.0.verified == true' 'runs.1.verified == true' 'runs.2.verified == true' \
  'runs.0.rx.host == 0'
echo "ok   all-reduce, load and block on the driver's memory"
echo PASS
