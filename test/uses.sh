# Sourced, after lib.sh, by the scripts of the uses of device memory: vnic allreduce, load, block and rdma, and package
# block/nbd.

# port: prints a free port, outside of the range of ephemeral ports: otherwise a connection that tests whether the
# port is served could be connected to itself.
port() {
  python3 -c 'import random, socket
while True:
    s = socket.socket()
    p = random.randrange(10000, 30000)
    try:
        s.bind(("127.0.0.1", p))
    except OSError:
        continue
    print(p)
    break'
}
# served PORT PROCESS: waits until a process accepts connections at PORT; fails if PROCESS ends before.
served() {
  local i
  for ((i = 0; i < 600; i++)); do
    ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null || return 0
    kill -0 "$2" 2> /dev/null || break
    sleep 0.1
  done
  return 1
}

# use WHAT ARGUMENT...: runs vnic with these arguments, in bounded time; its report is in $work/json, for judge.
use() {
  local what=$1 s=0; shift
  timeout --kill-after=10 "${limit:-150}" "$vnic" "$@" --json > "$work/json" 2> "$work/err" || s=$?
  [ $s = 0 ] || { cat "$work/err" >&"$said"; fail "$what: status $s of: vnic $*"; }
}
# judge WHAT CONDITION...: checks conditions on the report r, in Python; if one is a list, each of its items. It
# prints a condition that is false.
cat > "$work/judge.py" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
where = {"r": r, "runs": r.get("runs", []), "modes": r.get("modes", []),
         "ranks": [dict(x, mode=m["mode"]) for m in r.get("modes", []) for x in m["ranks"]],
         "rows": [x for m in r.get("modes", []) for x in m["rows"]]}
bad = []
for c in sys.argv[3:]:
    try:
        holds = eval("(" + c + ")", where)
        if isinstance(holds, list):
            holds = bool(holds) and all(holds)
    except Exception as e:
        holds, c = False, "%s: %r" % (c, e)
    if holds is not True:
        bad.append(c)
if bad:
    json.dump(r, sys.stdout, indent=1)
    sys.exit("\n" + "\n".join("does not hold: " + c for c in bad))
PY
judge() { python3 "$work/judge.py" "$work/json" "$@" >&"$said" || fail "$1"; }

# refuses STATUS PATTERN ARGUMENT...: vnic ends with this status, in bounded time, and the first line of its error
# output matches.
refuses() {
  local status=$1 want=$2 s=0; shift 2
  timeout --kill-after=10 "${limit:-150}" "$vnic" "$@" > "$work/out" 2> "$work/err" < /dev/null || s=$?
  refused "$status" "$want" $s "vnic $*"
}
# refused STATUS PATTERN HAS WHAT: checks the same for a vnic that has ended with status HAS.
refused() {
  local first; first=$(grep -m 1 '^vnic: ' "$work/err" || true)
  [ "$3" = "$1" ] && grep -qE -- "$2" <<< "$first" && [ "$(grep -c '^vnic: ' "$work/err")" = 1 ] &&
    ! grep -q 'goroutine ' "$work/err" || { cat "$work/err" >&"$said"; fail "$4: status $3, want $1 and: $2"; }
  echo "ok   status $3: ${first:0:170}"
}
