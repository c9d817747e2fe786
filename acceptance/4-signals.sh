#!/usr/bin/env bash
# "SIGINT, SIGTERM and SIGKILL at each of 8 named stages: within 5 s no child, socket, memory file or temporary directory
# is left (compared before and after), and the next run works. Bad flags, no QEMU and no network, no space for GPU memory, a
# kernel without what we need, a killed guest: one clear message each, exit status as CONVENTIONS.md says."
#
# Each run is a session; what it has open is noted before the signal, and looked for on the whole machine after it. That
# the next run works is shown by the next case, which goes as far as its own stage, and by a whole run at the end.
. "$(dirname "$0")/lib.sh"
tool silent
export TMPDIR=$work/tmp VNIC_CACHE=$work/cache
mkdir "$TMPDIR"
private_cache "$VNIC_CACHE"
files() { find "$TMPDIR" "$VNIC_CACHE" -mindepth 1 -maxdepth 4 | sort; find /dev/shm -maxdepth 1 -name '*vnic*' | sort; }

# begin ARGS...: starts a run in a session of its own.
begin() {
  files > "$work/before"
  setsid "$vnic" run "$@" > "$work/out" 2> "$work/err" &
  pid=$!
}
# until_line PATTERN: waits for a line on its stderr; until_alive N: for that many processes.
until_line() { until_ grep -q "$1" "$work/err"; }
until_alive() { until_ enough "$1"; }
enough() { [ "$(alive "$pid" | wc -l)" -ge "$1" ]; }
until_() {
  local i
  for ((i = 0; i < 1200; i++)); do
    ! "$@" || return 0
    kill -0 "$pid" 2>/dev/null || { cat "$work/err" >&2; fail "ended before: $*"; }
    sleep 0.05
  done
  fail "waited in vain for: $*"
}
# end SIGNAL WHAT [PROCESSES]: sends it, and holds what is left, the status and the message against what they must be.
end() {
  local sig=$1 what=$2 status=0 t0 took
  [ "$(alive "$pid" | wc -l)" -ge "${3:-1}" ] || fail "$what: fewer than ${3:-1} processes before the signal: this test would see nothing"
  held "$pid" > "$work/held"
  t0=${EPOCHREALTIME/./}
  case $sig in GROUP) kill -INT -- "-$pid" ;; TWICE) kill -INT "$pid"; sleep 1.2; kill -INT "$pid" ;; *) kill "-$sig" "$pid" ;; esac
  wait "$pid" 2>/dev/null || status=$?
  while [ -n "$(alive "$pid")" ]; do
    [ $((${EPOCHREALTIME/./} - t0)) -lt 5000000 ] || { for p in $(alive "$pid"); do tr '\0' ' ' < "/proc/$p/cmdline"; echo; done >&2; fail "$sig $what: processes are left"; }
    sleep 0.05
  done
  took=$((${EPOCHREALTIME/./} - t0))
  [ $took -lt 5000000 ] || fail "$sig $what: took $((took / 1000)) ms"
  still "$work/held" > "$work/still"
  [ ! -s "$work/still" ] || { cat "$work/still" >&2; fail "$sig $what: somebody has its sockets or memory"; }
  files > "$work/after"
  diff "$work/before" "$work/after" >&2 || fail "$sig $what: files are left"
  case $sig in
    KILL) [ $status = 137 ] || fail "$sig $what: status $status" ;;
    *) [ $status = 1 ] || { cat "$work/err" >&2; fail "$sig $what: status $status"; }
      [ "$(grep -c '^vnic: interrupted' "$work/err")" = 1 ] && [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] || { cat "$work/err" >&2; fail "$sig $what: not one message"; } ;;
  esac
  echo "ok   $sig $what: $(wc -l < "$work/held") sockets and memory files, none left after $((took / 1000)) ms, status $status"
}

"$vnic" run --size 4M --mode devmem --json > /dev/null # fills the cache, and shows that a run works
echo "== at each stage"
for stage in fetch gpu-memory boot setup prepare connect transfer verify; do
  case $stage in fetch | gpu-memory | boot) n=1 ;; *) n=3 ;; esac # vnic and two QEMUs
  for sig in INT TERM KILL; do
    begin --size 4M --mode devmem --pause-at $stage
    until_line "^stage: $stage\$"
    end $sig "at $stage" $n
  done
done
echo "== in the middle of things"
mkdir "$work/nothing"
"$work/silent" > "$work/port" & silent=$!
until [ -s "$work/port" ]; do kill -0 $silent; sleep 0.05; done
for sig in INT KILL; do # TERM goes INT's way
  PATH=/usr/bin:/bin no_proxy=127.0.0.1 http_proxy='' begin --mirror "http://127.0.0.1:$(cat "$work/port")/debian" --cache "$work/nothing" --size 4M
  until_alive 3 # vnic, apt-get, what it reads the mirror with
  end $sig "while a mirror does not answer" 3
  left=$(find "$work/nothing" -mindepth 2)
  [ -z "$left" ] || fail "$sig while fetching: left $left"
  begin --size 4M --mode devmem
  until_alive 3
  end $sig "while guests boot" 3
  begin --size 2G --mode devmem
  until_line '^stage: transfer' && sleep 0.3
  end $sig "in mid-transfer, mode devmem" 3
  begin --size 2G --mode copy
  until_line '^stage: transfer' && sleep 0.3
  end $sig "in mid-transfer, mode copy" 3
done
kill $silent
begin --size 4M --mode devmem --pause-at transfer
until_line '^stage: transfer'
end GROUP "(Ctrl-C of a terminal) at transfer" 3
for which in 1 2; do # a QEMU that does not react, as it is stopped
  begin --size 4M --mode devmem --pause-at transfer
  until_line '^stage: transfer'
  kill -STOP "$(alive $pid | grep -vx $pid | sed -n ${which}p)"
  if [ $which = 1 ]; then end INT "with a QEMU that hangs" 3; else end TWICE "with a QEMU that hangs" 3; fi
done
within 120 "$vnic" run --size 4M --mode devmem --json > "$work/next.json"
holds "$work/next.json" "$(devmem_proof 0)"

# refused STATUS PATTERN COMMAND...: one message, with the words of PATTERN, and the exit status.
refused() {
  local want=$1 pattern=$2 status=0; shift 2
  timeout 120 "$@" > "$work/out" 2> "$work/err" || status=$?
  [ $status = "$want" ] || { cat "$work/err" >&2; fail "status $status, not $want: $*"; }
  one_message "$pattern" "$*"
  echo "ok   $status: $(grep '^vnic: ' "$work/err")"
}
one_message() { # PATTERN WHAT
  [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] || { cat "$work/err" >&2; fail "not one message: $2"; }
  grep -Eq "^vnic: .*($1)" "$work/err" || { cat "$work/err" >&2; fail "no /$1/: $2"; }
  ! grep -q 'goroutine ' "$work/err" || fail "a stack trace: $2"
  [ ! -s "$work/out" ] || fail "output beside the message: $2"
}
echo "== wrong use: 2"
refused 2 'size' "$vnic" run --size nonsense
refused 2 'size' "$vnic" run --size 0
refused 2 'size' "$vnic" run --size -1
refused 2 'loss' "$vnic" run --loss 150%
refused 2 'family' "$vnic" run --family 5
refused 2 'mode' "$vnic" run --mode rdma
refused 2 'unknown flag' "$vnic" run --no-such-flag
refused 2 'unknown command' "$vnic" walk
refused 2 'gpu-memory' "$vnic" run --gpu-memory 100M
refused 2 'mtu' "$vnic" run --mtu 20
refused 2 'modules' "$vnic" run --modules /lib/modules
echo "== something is missing: 3"
refused 3 'package mirror not reachable.*(--mirror|--qemu)' env PATH=/usr/bin:/bin no_proxy=127.0.0.1 http_proxy= VNIC_MIRROR=http://127.0.0.1:9/debian "$vnic" run --cache "$work/nothing"
refused 3 'not in the cache' env PATH=/usr/bin:/bin "$vnic" run --offline --cache "$work/nothing"
refused 3 'no/such/qemu.*install' "$vnic" run --qemu /no/such/qemu
refused 3 'no/such/kernel.*--kernel' "$vnic" run --kernel /no/such/kernel
refused 3 'not a bzImage' "$vnic" run --kernel /etc/passwd
kernel=$(find "$VNIC_CACHE/kernel/" -name 'vmlinuz*' | head -n 1)
mkdir -p "$work/modules"
refused 3 'uio_pci_generic' "$vnic" run --kernel "$kernel" --modules "$work/modules"
refused 3 'gpu-memory 64T' "$vnic" run --guest inproc --gpu-memory 64T --size 1M
refused 3 'gpu-memory 512M' bash -c 'ulimit -f 1024; exec "$0" run --guest inproc --size 1M' "$vnic"
refused 3 'cache' "$vnic" run --cache /proc/no/such
echo "== a guest that is killed: 1"
for which in 1 2; do
  begin --size 2G --mode devmem
  until_line '^stage: transfer' && sleep 0.3
  kill -KILL "$(alive $pid | grep -vx $pid | sed -n ${which}p)"
  t0=$SECONDS status=0
  wait $pid || status=$?
  [ $((SECONDS - t0)) -le 5 ] || fail "took $((SECONDS - t0)) s to notice"
  [ $status = 1 ] || { cat "$work/err" >&2; fail "status $status"; }
  one_message 'guest [AB]: QEMU ended early: signal: killed' "a guest killed"
  [ -z "$(alive $pid)" ] || fail "processes left"
  echo "ok   $status after $((SECONDS - t0)) s: $(grep '^vnic: ' "$work/err")"
done
echo PASS
