#!/usr/bin/env bash
# "Pages on demand": vnic rdma --mr odp, with a program whose pages the GPU's driver moves while another guest's NIC
# writes and reads them. It runs on the fetched kernel, and on Linux 7.3.
#
# - 16,384 pages, 500 migrations a second, for a minute: every digest is right, the NIC has counted exactly the
#   bytes of the transfer, and wrote to none of thousands of checked GPU pages after it had acknowledged the page's
#   invalidation. The same with reads, with compaction, and with a GPU that has room for a part of the pages.
# - Sabotage: a NIC that acknowledges invalidations but keeps using the old addresses is detected twice, by wrong
#   bytes and by changed pages.
# - Without peer-to-peer the NIC gets no address in the GPU, and exactly the pages that it accesses move back to
#   RAM.
# - Faults: answers lost, late acknowledgements, none at all; the GPU removed, the program killed, and a page's
#   memory broken, during transfers. A NIC that never acknowledges delays the program's exit once. The guest's
#   kernel logs no complaint in any of these cases. It takes ten minutes. PAGES, RATE and SECONDS_LONG change the
#   figures of the first case.
. "$(dirname "$0")/lib.sh"
. test/uses.sh

pages=${PAGES:-16384} rate=${RATE:-500} long=${SECONDS_LONG:-60}
limit=240

# figures: prints the figures about pages in a report.
figures() {
  python3 - "$work/json" <<'PY'
import json, sys
x = json.load(open(sys.argv[1]))["runs"][0]
p = x["pages"]
print("     %d rounds, %.0f MiB in %.0f s; maps: %d GPU, %d RAM; MiB: %.0f GPU, %.0f RAM; moved: %d to the GPU, "
      "%d back, %d touched, %d by Linux"
      % (x["rounds"], x["bytes"] / 2**20, x["seconds"], p["p2p_maps"], p["host_maps"],
      p["p2p_bytes"] / 2**20, p["host_bytes"] / 2**20, p["to_gpu"], p["to_ram"], p["touched"], p["moved_in_ram"]))
print("     %d invalidations, p50 %d us, p99 %d us, idle wake-up p99 %d us; %d parked, %d stale answers; DMA after "
      "acknowledgement: %d of %d pages" % (p["invalidations"], p["invalidation_p50_us"], p["invalidation_p99_us"],
      p["idle_wakeup_p99_us"], p["parked_packets"], p["stale_answers"], p["dma_after_ack"], p["pages_left"]))
PY
}

# right: the conditions for every report of a run without a fault.
right=('runs[0]["verified"]' 'runs[0]["bytes"] == r["size"] * runs[0]["rounds"]'
  'runs[0]["responder"]["device"] + runs[0]["responder"]["host"] - runs[0]["responder"]["again"] == runs[0]["bytes"]'
  'runs[0]["responder"]["gpu_file"] == 0' 'runs[0]["responder"]["bounced"] == 0'
  'runs[0]["requester"]["device"] - runs[0]["requester"]["again"] == runs[0]["bytes"]'
  'len(runs[0]["pages"]["program_sha256"]) == 64' 'runs[0]["pages"]["dma_after_ack"] == 0'
  'runs[0]["pages"]["refused"] == 0' 'not runs[0]["pages"]["quarantined"]')
# Pages move while they are used. The number within a few seconds depends on how busy the host is, so only the run
# of a minute, in the first case, checks it.
stormy=("${right[@]}" 'runs[0]["pages"]["pages_left"] > 0' 'runs[0]["pages"]["to_gpu"] > 0'
  'runs[0]["pages"]["p2p_bytes"] > 0' 'runs[0]["pages"]["host_bytes"] > 0' 'runs[0]["pages"]["invalidations"] > 0')

# paging WHAT OP ARGUMENT...: runs a transfer and checks its report, also against the conditions in the array more.
more=()
paging() {
  local what=$1 op=$2; shift 2
  use "$what" rdma "$op" --mr odp "${kernel[@]}" "$@"
  judge "$what" "${conditions[@]}" "${more[@]}"
  echo "ok   $what"
  figures
}

# ends WHAT PATTERN ARGUMENT...: the command ends with exit status 1, and the beginning of its error matches.
ends() {
  local what=$1 pattern=$2; shift 2
  echo "     $what"
  refuses 1 "$pattern" rdma put --mr odp --pages 512 "${kernel[@]}" "$@"
}

# A lab with the GPU's driver: the GPU has room for fewer pages than the program has.
full() {
  cat << END
guests:
  a: &host
    memory: 384M
    sockets: [{name: s0}]
    switches: [{name: sw0, below: s0}]
    nics: [{name: nic0, below: sw0, model: $1}]
    gpus: [{name: gpu0, below: sw0, memory: 64M}]
    driver: vnicgpu
  b:
    <<: *host
    gpus: [{name: gpu0, below: sw0, memory: 4M}]
END
}

# some MODEL: the cases that take little time.
some() {
  local m=(--nic "$1")
  conditions=("${stormy[@]}")
  paging "$1: put, 4,096 pages, $rate a second" put "${m[@]}" --pages 4096 --migrate "$rate" --time 10s
  paging "$1: get" get "${m[@]}" --pages 1024 --migrate "$rate" --time 5s
  more=('runs[0]["pages"]["moved_in_ram"] > 0')
  paging "$1: compaction" put "${m[@]}" --pages 2048 --migrate "$rate" --compact --time 10s
  conditions=("${right[@]}")
  full "$1" > "$work/full.yaml"
  more=('runs[0]["pages"]["p2p_bytes"] > 0' '3 * runs[0]["pages"]["host_bytes"] > runs[0]["pages"]["p2p_bytes"]')
  paging "$1: a GPU with room for less than half of the pages" put --lab "$work/full.yaml" --pages 2048 --migrate 100
  more=('runs[0]["pages"]["p2p_maps"] == 0' 'runs[0]["pages"]["touched"] == runs[0]["pages"]["pages"] == 1024'
    'runs[0]["pages"]["to_gpu"] == runs[0]["pages"]["to_ram"] == 0' 'runs[0]["responder"]["device"] == 0')
  paging "$1: without peer-to-peer" put "${m[@]}" --pages 1024 --migrate 0 --p2p off=1
  more=()
  paging "$1: answers are lost" put "${m[@]}" --pages 512 --migrate 100 --fault lose-answers=8
  paging "$1: acknowledgements are late" put "${m[@]}" --pages 512 --migrate 20 --fault late-ack=20ms

  ends "$1: sabotage" '^vnic: what was moved does not prove what it should' "${m[@]}" --migrate 2000 --time 5s \
    --fault stale
  for finding in 'is not what it was|is not what was put there' \
    'pages of the GPU were written to after the NIC had acknowledged'; do
    grep -E -m 1 -- "$finding" "$work/err" | cut -c 1-170 | sed 's/^/     /' ||
      { cat "$work/err" >&"$said"; fail "sabotage: not found: $finding"; }
  done
  ends "$1: all answers are lost" '^vnic: round 1: guest guest1.s NIC did not get .* pages that it asked for' \
    "${m[@]}" --fault lose-answers=1000
  ends "$1: no acknowledgement" '^vnic: .*guest1.*quarantine' "${m[@]}" --migrate 500 --time 5s --fault never-ack
  ends "$1: the GPU is removed" "^vnic: guest guest1's GPU was removed .* its program has all pages, in RAM" "${m[@]}" \
    --migrate 100 --fault remove-gpu=1s
  grep -q '^note: guest1.gpu0: has been removed' "$work/err" || fail "no note: $(cat "$work/err")"
  ends "$1: the program is killed" \
    "^vnic: guest guest1's program, .* was killed .* let go of all .* another queue pair has gone on: .*says the peer" \
    "${m[@]}" --migrate 100 --fault kill=1s
  ends "$1: ... and the NIC does not acknowledge" \
    "^vnic: guest guest1's program, .* was killed .* with 1 wait for the NIC in vain, and its region is in quarantine" \
    "${m[@]}" --fault never-ack,kill=1s
  # Linux waits for a second; the rest is the time of an exit on a busy machine.
  python3 - "$work/err" <<'PY' || fail "the exit was delayed beyond the bound"
import re, sys
unit = {"ms": 1e-3, "s": 1}
t, u = re.search(r"its exit took ([0-9.]+)(ms|s)", open(sys.argv[1]).read()).groups()
print("     the bound is 1 s, and the exit took %s%s" % (t, u))
sys.exit(not 1 <= float(t) * unit[u] < 10)
PY
  ends "$1: a page's memory is broken" \
    "^vnic: guest guest1's NIC did not get page 77, .*broken.* another queue pair has moved all others" "${m[@]}" \
    --fault bad-page=77
}

kernel=()
echo "== the kernel that is fetched"
conditions=("${stormy[@]}")
p='runs[0]["pages"]' least=$((rate * long / 20))
more=("$p[\"to_gpu\"] + $p[\"to_ram\"] > $((5 * least))" "$p[\"to_gpu\"] > $least" "$p[\"pages_left\"] > $least"
  "$p[\"invalidations\"] > $least")
for model in gve virtio; do
  paging "$model: put, $pages pages, $rate migrations a second, $long s" put --nic $model --pages "$pages" \
    --migrate "$rate" --time "${long}s"
done
more=()
some gve
some virtio

read -r image dir < <("$root/tools/kernel" trixie-backports)
kernel=(--kernel "$image" --modules "$dir")
echo "== $(basename "$dir")"
some gve
echo PASS
