#!/usr/bin/env bash
# NICs and GPUs are removed from their guests during traffic, and receivers return tokens late:
# - by a script of the lab file, and by vnic lab set in a running vnic, with guests in QEMU and in the process. The
#   run ends in bounded time with exit status 1 and the error "no such device", which names the removed device; the
#   other rail goes on, and its digest matches;
# - the removal of other devices is refused with one line, and does not change the run;
# - late tokens are counted, and the stream is right.
# It takes a minute and a half. The Go test TestStockDriverLosesItsNIC, with VNIC_LONG, tests the kernel's own
# driver.
. "$(dirname "$0")/lib.sh"

# lab RATE SCRIPT [OPTION]: writes a lab file of two rails; NICs of the first have this rate and option.
lab() {
  cat <<YAML
guests:
  a: &host
    memory: 320M
    sockets: [{name: s0}]
    switches: [{name: sw0, below: s0}]
    nics: [{name: nic0, below: sw0, rate: $1${3:+, $3}}, {name: nic1, below: sw0, rate: 16Mbit}]
    gpus: [{name: gpu0, below: sw0, memory: 64M}, {name: gpu1, below: sw0, memory: 64M}]
  b: *host
script: [$2]
YAML
}

# says FILE TEXT...: the file contains each text.
says() {
  local file=$1 text
  shift
  for text in "$@"; do
    grep -qF -- "$text" "$file" || { cat "$file" >&"$said"; fail "not said: $text"; }
  done
}

# one_rail: the report has only the second rail, and its digest matches.
one_rail() {
  "$work/jsoncheck" 'rails.0.from == "a.nic1"' "rails.0.sha256_match == true" "rails.0.rx.host == 0" < "$work/json" ||
    fail "the other rail"
  [ "$(grep -c '"from"' "$work/json")" = 1 ] || fail "the rail that has lost something is in the report"
}

# lost COMMAND...: the run fails within its time limit.
lost() {
  local status=0
  within 120 "$@" > "$work/json" 2> "$work/log" || status=$?
  [ $status = 1 ] || { cat "$work/log" >&"$said"; fail "exit status $status, want 1: $*"; }
}

run=("$vnic" run --mode devmem --json --size 16M)

lab 2Mbit '{at: 200ms, set: nic b.nic0 remove}, {at: 200ms, set: nic b.nic1 remove=1}' > "$work/bad.yaml"
"${run[@]}" --lab "$work/bad.yaml" 2> "$work/log" && fail "a script that is wrong was taken"
says "$work/log" 'does nothing any more'

for guest in inproc qemu; do
  for what in "nic b.nic0" "gpu a.gpu0"; do
    lab 2Mbit "{at: 200ms, set: $what remove}" > "$work/lab.yaml"
    lost "${run[@]}" --guest $guest --lab "$work/lab.yaml"
    says "$work/log" "a.nic0 to b.nic0: ${what#* }: removed while it was used" "no such device" \
      "at 200ms: $what remove" "${what#* }: has been removed"
    one_rail
    echo "ok   $guest: $what"
  done
done

# In a running vnic.
lab 2Mbit "" "hotplug: true" > "$work/lab.yaml"
timeout 180 "${run[@]}" --lab "$work/lab.yaml" > "$work/json" 2> "$work/log" &
pid=$!
vnic_pid() { pgrep -P "$pid" -x vnic | head -n 1; } # timeout's child
for _ in $(seq 600); do # refused until the guests are set up
  p=$(vnic_pid) && [ -n "$p" ] && "$vnic" lab set "$p" nic b.nic1 tokens=50ms 2> "$work/set" && break
  kill -0 $pid 2> /dev/null || { cat "$work/log" >&"$said"; fail "the run has ended"; }
  sleep 0.1
done
"$vnic" lab set "$p" gpu b.gpu9 remove 2> "$work/set" && fail "a GPU that is not there was removed"
says "$work/set" "b.gpu9 is no GPU of the lab: there are a.gpu0"
while read -r kind name; do # which have no such port
  "$vnic" lab set "$p" "$kind" "$name" remove 2> "$work/set" && fail "$name: its port cannot let go of it"
  says "$work/set" "$name cannot be removed: the port above it cannot let go of it: give it hotplug: true"
  [ "$(wc -l < "$work/set")" = 1 ] || { cat "$work/set" >&"$said"; fail "not in one line"; }
done <<< $'nic a.nic1\ngpu a.gpu0'
"$vnic" lab set "$p" nic a.nic0 remove || fail "vnic lab set nic a.nic0 remove"
"$vnic" lab set "$p" nic a.nic0 remove 2> "$work/set" && fail "it was removed twice"
says "$work/set" "a.nic0 was removed before"
status=0
wait $pid || status=$?
[ $status = 1 ] || { cat "$work/log" >&"$said"; fail "exit status $status, want 1"; }
says "$work/log" "a.nic0: removed while it was used" "has been removed: no such device"
one_rail
"$work/jsoncheck" "rails.0.late_tokens.tokens > 0" < "$work/json" || fail "no token was late"
echo "ok   vnic lab set"

# Devices without a port, and a gVNIC.
lab 0.1Gbit "{at: 0s, set: nic a.nic0 remove}, {at: 0s, set: gpu a.gpu0 remove}" |
  sed '/sockets:/d; /switches:/d; s/below: sw0, //g' > "$work/flat.yaml"
within 120 "${run[@]}" --size 4M --lab "$work/flat.yaml" > "$work/json" 2> "$work/log" || fail "vnic run --lab flat.yaml"
says "$work/log" "a.nic0 cannot be removed: it is on the root complex" "a.gpu0 cannot be removed: it is on the root complex"
lab 0.1Gbit "{at: 0s, set: nic a.nic0 remove}, {at: 0s, set: gpu a.gpu0 remove}" > "$work/gve.yaml"
within 150 "${run[@]}" --nic gve --size 4M --lab "$work/gve.yaml" > "$work/json" 2> "$work/log" || {
  cat "$work/log" >&"$said"; fail "vnic run --nic gve"; }
says "$work/log" "QEMU aborts at device_del of vfio-user" "a.gpu0 cannot be removed: its memory is a NUMA node's"
echo PASS
