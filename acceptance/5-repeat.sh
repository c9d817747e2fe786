#!/usr/bin/env bash
# "20 runs in a row of `vnic run --guest inproc` with loss and of the QEMU run: no flake, no leak."
#
# REPEAT says how often (20 unless told; make test takes fewer), QEMU_REPEAT how often with QEMU. A run that fails is kept
# in OUT (default: a directory below /tmp), and the others go on: what is wanted is how often it happens.
. "$(dirname "$0")/lib.sh"
n=${REPEAT:-20} q=${QEMU_REPEAT:-${REPEAT:-20}}
export TMPDIR=$work/tmp VNIC_CACHE=$work/cache
mkdir "$TMPDIR"
private_cache "$VNIC_CACHE"
within 300 "$vnic" run --size 1M --mode devmem --json > /dev/null # fills it
files() { find "$TMPDIR" "$VNIC_CACHE" -mindepth 1 | sort; find /dev/shm -maxdepth 1 -name '*vnic*' | sort; }
files > "$work/before"
failed=0

# once WHAT SECONDS CONDITIONS ARGS...: one run, in a session of its own, of which nothing may be left.
once() {
  local what=$1 limit=$2 conds=$3 status=0 pid; shift 3
  setsid timeout --foreground --kill-after=10 "$limit" "$vnic" run --json "$@" > "$work/run.json" 2> "$work/err" & pid=$!
  wait $pid || status=$?
  if [ $status = 0 ]; then
    holds "$work/run.json" "$conds" > "$work/checks" 2>&1 || status="0, but $(grep ^FAIL "$work/checks")"
  fi
  [ -z "$(alive $pid)" ] || status="$status, and processes are left: $(alive $pid | xargs)"
  files > "$work/after"
  diff "$work/before" "$work/after" > "$work/diff" || status="$status, and files are left: $(cat "$work/diff")"
  [ "$status" = 0 ] && return
  failed=$((failed + 1))
  out=${OUT:-$(TMPDIR=/tmp mktemp -d /tmp/vnic-repeat-XXXXXX)}
  OUT=$out
  cp "$work/run.json" "$out/$failed.json"; cp "$work/err" "$out/$failed.err"
  echo "FAIL $what: status $status: vnic run $*: $out/$failed.err: $(head -n 1 "$work/err")"
}

start=$SECONDS
for ((i = 1; i <= n; i++)); do
  once "in-process run $i" 120 "$(devmem_proof_loss 0; copy_proof 1; echo 'runs.0.retransmitted_bytes > 0')" --guest inproc --size 64M --loss 1% --reorder 1% --seed $i
done
echo "     $n in-process runs with loss and reordering, $((SECONDS - start)) s"
start=$SECONDS
for ((i = 1; i <= q; i++)); do
  once "QEMU run $i" 180 "$(devmem_proof 0; copy_proof 1)" --size 16M --seed $i
done
echo "     $q QEMU runs, $((SECONDS - start)) s"
[ $failed = 0 ] || fail "$failed of $((n + q)) runs"
echo "ok   all $((n + q)) runs, nothing left of any"
echo PASS
