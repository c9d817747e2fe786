# Sourced, after lib.sh, by scripts that end runs by signals. Each run is a session. Before the signal the functions
# list what it has open, and after it they look for these files on the whole machine. The cache and the directory
# for temporary files are private.
export TMPDIR=$work/tmp VNIC_CACHE=$work/cache
mkdir "$TMPDIR"
private_cache "$VNIC_CACHE"
files() { find "$TMPDIR" "$VNIC_CACHE" -mindepth 1 -maxdepth 4 | sort; \
  find /dev/shm -maxdepth 1 -name '*vnic*' | sort; }

# begin ARGS...: starts vnic run in a new session. launch COMMAND ARGS...: starts another command in the same way.
begin() { launch run "$@"; }
launch() {
  files > "$work/before"
  : > "$work/err" # now: until_line must not find what the run before has said
  setsid "$vnic" "$@" > "$work/out" 2> "$work/err" < /dev/null &
  pid=$!
}
# qemus: prints the QEMUs of the run: the session's processes other than vnic and its broker.
qemus() {
  local p
  for p in $(alive "$pid"); do
    [ "$p" = "$pid" ] || tr '\0' ' ' < "/proc/$p/cmdline" | grep -q ' __broker ' || echo "$p"
  done
}
# until_line PATTERN: waits for a line on the run's stderr.
until_line() { until_ grep -q "$1" "$work/err"; }
# until_guests N: waits for N QEMUs that boot a guest. Before them vnic runs others for a moment, to find QEMU's
# version.
until_guests() { until_ booting "$1"; }
booting() {
  local p n=0
  for p in $(alive "$pid"); do
    ! tr '\0' ' ' 2>/dev/null < "/proc/$p/cmdline" | grep -q ' -kernel ' || n=$((n + 1))
  done
  [ $n -ge "$1" ]
}
until_() {
  local i
  for ((i = 0; i < 1200; i++)); do
    ! "$@" || return 0
    kill -0 "$pid" 2>/dev/null || { cat "$work/err" >&2; fail "ended before: $*"; }
    sleep 0.05
  done
  fail "waited in vain for: $*"
}
# end SIGNAL WHAT [PROCESSES]: sends the signal, and checks that nothing is left, the exit status and the message.
end() {
  local sig=$1 what=$2 status=0 t0 took
  [ "$(alive "$pid" | wc -l)" -ge "${3:-1}" ] || \
    fail "$what: fewer than ${3:-1} processes before the signal: this test would see nothing"
  held "$pid" > "$work/held"
  t0=${EPOCHREALTIME/./}
  case $sig in GROUP) kill -INT -- "-$pid" ;; TWICE) kill -INT "$pid"; sleep 1.2; kill -INT "$pid" ;; \
    *) kill "-$sig" "$pid" ;; esac
  wait "$pid" 2>/dev/null || status=$?
  while [ -n "$(alive "$pid")" ]; do
    [ $((${EPOCHREALTIME/./} - t0)) -lt 5000000 ] || { for p in $(alive "$pid"); do tr '\0' ' ' < "/proc/$p/cmdline"; \
      echo; done >&2; fail "$sig $what: processes are left"; }
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
      [ "$(grep -c '^vnic: interrupted' "$work/err")" = 1 ] && [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] || \
        { cat "$work/err" >&2; fail "$sig $what: not one message"; } ;;
  esac
  echo "ok   $sig $what: $(wc -l \
    < "$work/held") sockets and memory files, none left after $((took / 1000)) ms, status $status"
}
# silent_mirror: starts a server that accepts connections and never answers, because it is stopped, so that a fetch
# waits. $mirror is its URL, $silent its process.
silent_mirror() {
  VNIC_RUNTIME_DIR=$work/silent "$vnic" serve --gpu-memory 0 --socket-path "$work/silent.sock" --metrics 127.0.0.1:0 \
    > "$work/silent.out" 2> "$work/silent.err" &
  silent=$! pid=$!
  until_ grep -q '^metrics at ' "$work/silent.err"
  kill -STOP $silent
  mirror=$(sed -n 's|^metrics at \(http://[^/]*\)/.*|\1/debian|p' "$work/silent.err")
}

# fetching: succeeds if apt's HTTP process runs, which waits for the mirror. apt starts other processes before it,
# which end at once.
fetching() {
  local p
  for p in $(alive "$pid"); do
    ! tr '\0' ' ' 2>/dev/null < "/proc/$p/cmdline" | grep -q '/methods/http' || return 0
  done
  return 1
}

one_message() { # PATTERN WHAT
  [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] || { cat "$work/err" >&2; fail "not one message: $2"; }
  grep -Eq "^vnic: .*($1)" "$work/err" || { cat "$work/err" >&2; fail "no /$1/: $2"; }
  ! grep -q 'goroutine ' "$work/err" || fail "a stack trace: $2"
  [ ! -s "$work/out" ] || fail "output beside the message: $2"
}
