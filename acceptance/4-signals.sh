#!/usr/bin/env bash
# "SIGINT, SIGTERM and SIGKILL at each of 8 named stages: within 5 s no child, socket, memory file or temporary directory
# is left (compared before and after), and the next run works. Bad flags, no QEMU and no network, no space for GPU memory, a
# kernel without what we need, a killed guest: one clear message each, exit status as CONVENTIONS.md says."
. "$(dirname "$0")/lib.sh"
export TMPDIR=$work/tmp; mkdir "$TMPDIR"
cache=${VNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vnic}

# Everything that a run starts inherits this mark, so that what is left of it is found whoever its parent is by now.
marked() { grep -lzs "^VNIC_ACCEPTANCE=$1\$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | while read -r p; do
  [ "$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$p/status" 2>/dev/null)" = Z ] || echo "$p"; done || true; }
state() { # what a run could leave: files, sockets, shared memory
  find "$TMPDIR" /dev/shm "$cache" -mindepth 1 -maxdepth 2 ! -name 'probe*' 2>/dev/null | sort
  awk '{print $8}' /proc/net/unix | grep -i vnic | sort || true
}

run_until() { # run_until STAGE SIGNAL
  local stage=$1 sig=$2 mark="$$-$1-$2" log=$work/log status=0
  state > "$work/before"
  VNIC_ACCEPTANCE=$mark setsid "$vnic" run --size 4M --mode devmem --pause-at "$stage" > "$work/out" 2> "$log" &
  local pid=$!
  for ((i = 0; i < 600; i++)); do
    grep -q "^stage: $stage\$" "$log" && break
    kill -0 $pid 2>/dev/null || { cat "$log" >&2; fail "ended before stage $stage"; }
    sleep 0.1
  done
  kill -"$sig" $pid
  local t0=$SECONDS
  wait $pid 2>/dev/null || status=$?
  while [ -n "$(marked "$mark")" ]; do
    [ $((SECONDS - t0)) -le 5 ] || { for p in $(marked "$mark"); do tr '\0' ' ' < "/proc/$p/cmdline"; echo; done >&2; fail "$sig at $stage: processes left"; }
    sleep 0.1
  done
  state > "$work/after"
  diff "$work/before" "$work/after" >&2 || fail "$sig at $stage: something is left"
  case $sig in
    KILL) [ $status = 137 ] || fail "$sig at $stage: status $status" ;;
    *) [ $status = 1 ] || fail "$sig at $stage: status $status"; grep -q '^vnic: interrupted' "$log" || fail "$sig at $stage: no message" ;;
  esac
  echo "ok   SIG$sig at $stage: nothing left after $((SECONDS - t0)) s, status $status"
}

"$vnic" run --size 4M --mode devmem --json > /dev/null # fills the cache, and shows that a run works
for stage in fetch gpu-memory boot setup prepare connect transfer verify; do
  for sig in INT TERM KILL; do run_until $stage $sig; done
done
within 120 "$vnic" run --size 4M --mode devmem --json > "$work/next.json"
holds "$work/next.json" "$(devmem_proof 0)"

# refused STATUS PATTERN COMMAND...: one message, with the words of PATTERN, and the exit status.
refused() {
  local want=$1 pattern=$2 status=0; shift 2
  timeout 120 "$@" > "$work/out" 2> "$work/err" || status=$?
  [ $status = "$want" ] || { cat "$work/err" >&2; fail "status $status, not $want: $*"; }
  grep -Eq "$pattern" "$work/err" || { cat "$work/err" >&2; fail "no /$pattern/: $*"; }
  [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] || { cat "$work/err" >&2; fail "not one message: $*"; }
  ! grep -q 'goroutine ' "$work/err" || fail "a stack trace: $*"
  echo "ok   $status: $(grep '^vnic: ' "$work/err" | cut -c1-150)"
}
echo "== wrong use: 2"
refused 2 'size' "$vnic" run --size nonsense
refused 2 'size' "$vnic" run --size 0
refused 2 'loss' "$vnic" run --loss 150%
refused 2 'family' "$vnic" run --family 5
refused 2 'mode' "$vnic" run --mode rdma
refused 2 'unknown flag' "$vnic" run --no-such-flag
refused 2 'unknown command' "$vnic" walk
refused 2 'gpu-memory' "$vnic" run --gpu-memory 100M
refused 2 'mtu' "$vnic" run --mtu 20
refused 2 'modules' "$vnic" run --modules /lib/modules
echo "== something is missing: 3"
empty=$work/empty; mkdir "$empty"
refused 3 'QEMU|qemu' env PATH=/usr/bin:/bin VNIC_MIRROR=http://127.0.0.1:9/debian "$vnic" run --cache "$empty"
refused 3 'QEMU|qemu|cache' "$vnic" run --offline --cache "$empty"
refused 3 'no/such' "$vnic" run --qemu /no/such/qemu
refused 3 'no/such' "$vnic" run --kernel /no/such/kernel
kernel=$(find "$cache" -name 'vmlinuz*' | head -n 1)
mkdir -p "$work/modules"
refused 3 'uio' "$vnic" run --kernel "$kernel" --modules "$work/modules"
refused 3 'GPU|space|memory' bash -c 'ulimit -v unlimited; exec "$0" run --guest inproc --gpu-memory 64T --size 1M' "$vnic"
echo "== a guest that is killed: 1"
VNIC_ACCEPTANCE=$$-killed "$vnic" run --size 4M --mode devmem --pause-at connect > "$work/out" 2> "$work/err" & pid=$!
until grep -q '^stage: connect' "$work/err"; do kill -0 $pid || fail "ended early"; sleep 0.1; done
victim=$(marked $$-killed | grep -v "^$pid\$" | head -n 1)
kill -KILL "$victim"
status=0; wait $pid || status=$?
[ $status = 1 ] || { cat "$work/err" >&2; fail "status $status"; }
grep -Eq '^vnic: .*(QEMU|guest)' "$work/err" || { cat "$work/err" >&2; fail "no message"; }
echo "ok   1: $(grep '^vnic: ' "$work/err" | cut -c1-150)"
[ -z "$(marked $$-killed)" ] || fail "processes left"
echo PASS
