#!/usr/bin/env bash
# "`make demo` from a clean clone and empty cache: both modes complete under TCG, digests agree, tx.device == rx.device == bytes,
# tx.host == rx.host == 0 in devmem mode, >= size in copy mode; at most 3 minutes after the downloads, 90 s when warm, on 2
# cores." The cold part downloads again what the cache has: COLD=0 leaves it out and says so.
. "$(dirname "$0")/lib.sh"

if [ "${COLD:-1}" = 1 ]; then
  echo "== cold: a clean clone, an empty cache"
  git clone -q . "$work/clone"
  start=$SECONDS
  # Go's own caches stay, unless GOCACHE and GOMODCACHE are set elsewhere: they are the user's, not vnic's.
  (cd "$work/clone" && XDG_CACHE_HOME=$work/cache VNIC_CACHE= GOCACHE=$(tools/with-tools go env GOCACHE) \
    timeout 900 make demo) > "$work/demo" 2>&1 || { cat "$work/demo" >&2; fail "make demo from a clean clone"; }
  total=$((SECONDS - start))
  grep -q 'digest *match *match' "$work/demo" || { cat "$work/demo" >&2; fail "digests do not agree"; }
  echo "ok   $total s in all, downloads and build included"
  [ "$total" -le 600 ] || fail "over 10 minutes, downloads included"
else
  echo "== cold run left out (COLD=0)"
fi

echo "== warm: make demo"
within 90 make demo > "$work/warm" 2>&1 || { cat "$work/warm" >&2; fail "make demo"; }
grep -q 'digest *match *match' "$work/warm" || fail "digests do not agree"
grep -A3 -E 'ratio|guests:' "$work/warm" | tail -n 3

echo "== the same, as JSON"
within 90 "$vnic" run --json > "$work/run.json"
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'runs.0.bytes == 268435456' 'runs.1.bytes == 268435456' 'guest == "qemu"'
echo PASS
