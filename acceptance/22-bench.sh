#!/usr/bin/env bash
# "The benchmark of the slice is not slower": frame by frame, HEAD against the last commit before gateway, taps and `vnic serve`, in one
# run: both programs take turns, and the best of each counts. BASE=COMMIT names another. The history is needed: no shallow clone.
. "$(dirname "$0")/lib.sh"
base=${BASE:-03a3f64} rounds=${ROUNDS:-16}
each=1.50 all=1.05 # how much slower at most: one of them, whose time is of several threads on few cores; their geometric mean
git cat-file -e "$base^{commit}" 2>/dev/null || fail "no commit $base here: git fetch --unshallow"

git clone -q "$root" "$work/base"
git -C "$work/base" checkout -q "$base"
# ROOM BENCHMARK METRIC
benches='nic/virtio Worker ns/frame
nic/gve Worker ns/frame
driver GPUToGPU/64K ns/op
driver GPUToGPU/1448 ns/op
stack Stream ns/op'
mapfile -t rooms < <(cut -d' ' -f1 <<< "$benches" | sort -u)
for which in base head; do
  dir=$root
  [ $which = head ] || dir=$work/base
  for room in "${rooms[@]}"; do
    (cd "$dir" && "$root/tools/with-tools" go test -c -o "$work/$which-${room//\//-}" "./$room")
  done
done

for round in $(seq "$rounds"); do
  order='base head'; [ $((round % 2)) = 0 ] || order='head base'
  while read -r room bench metric; do
    for which in $order; do
      dir=$root
      [ $which = head ] || dir=$work/base
      # The benchmark of that time shares a ring with a worker, and can fall over it.
      (cd "$dir/$room" && timeout 120 "$work/$which-${room//\//-}" -test.run '^$' -test.bench "^Benchmark${bench//\//\$/^}\$" -test.benchtime 100ms) > "$work/out" 2>&1 ||
        [ $which = base ] || { cat "$work/out" >&2; fail "$room: Benchmark$bench"; }
      awk -v which="$which" -v room="$room" -v metric="$metric" '/^Benchmark/ {
        for (i = 3; i < NF; i += 2) if ($(i + 1) == metric) { sub(/-[0-9]+$/, "", $1); print room, $1, metric, which, $i } }' "$work/out" >> "$work/all"
    done
  done <<< "$benches"
done

awk -v each=$each -v all=$all '{ k = $1 " " $2; unit[k] = $3; if (!((k, $4) in best) || $5 < best[k, $4]) best[k, $4] = $5 }
  END {
    for (k in unit) {
      if (!((k, "base") in best) || !((k, "head") in best)) { print "FAIL only one has " k; bad = 1; continue }
      r = best[k, "head"] / best[k, "base"]; sum += log(r); n++
      printf "%s %-48s %9.0f %s, before %9.0f: %.2f\n", (r > each ? "SLOW" : "ok  "), k, best[k, "head"], unit[k], best[k, "base"], r
      if (r > each) bad = 1
    }
    if (!n) { print "FAIL nothing was measured"; exit 1 }
    printf "%s mean of %d ratios %.3f\n", (exp(sum / n) > all ? "SLOW" : "ok  "), n, exp(sum / n)
    if (exp(sum / n) > all) bad = 1
    exit bad
  }' "$work/all" | sort
[ "${PIPESTATUS[0]}" = 0 ] || fail "slower than $base"
echo PASS
