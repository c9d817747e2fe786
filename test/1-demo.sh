#!/usr/bin/env bash
# "make demo from a clean clone and empty cache: both modes complete under TCG, digests agree,
# tx.device and rx.device >= bytes, tx.host == rx.host == 0 in devmem mode, >= size in copy mode; at
# most 3 minutes after the downloads, 90 s when warm, on 2 cores."
#
# FULL=1 also begins with empty Go caches, so that modules are downloaded and everything is compiled anew. On a
# machine without Go the toolchain is fetched again, too.
. "$(dirname "$0")/lib.sh"
gocache=$(tools/with-tools go env GOCACHE) # before XDG_CACHE_HOME hides it
export VNIC_CACHE=$work/cache XDG_CACHE_HOME=$work/xdg GOCACHE=$gocache
if [ "${FULL:-0}" = 1 ]; then
  export GOMODCACHE=$work/gomod GOCACHE=$work/gocache GOFLAGS=-modcacherw
else
  echo "skipped: Go's own caches are not emptied, nor is Go fetched anew (FULL=1 does)"
  mkdir -p "$VNIC_CACHE"
  [ ! -d "$cache/tools/go" ] || { mkdir "$VNIC_CACHE/tools"; ln -s "$cache/tools/go" "$VNIC_CACHE/tools/go"; }
fi
git clone -q "$root" "$work/clone"
[ -z "$(git -C "$root" status --porcelain)" ] || \
  echo "note: the checkout has changes that are not committed; the clone is of $(git -C "$root" rev-parse --short HEAD)"

# demo LOG: runs make demo, and writes each line of its output to LOG with the second in which it came.
demo() {
  local start=$SECONDS line
  { make -C "$work/clone" demo 2>&1 || echo "make failed: $?"; } | while IFS= read -r line; \
    do echo "$((SECONDS - start)) $line"; done > "$1"
  took=$((SECONDS - start))
  ! grep -q '^[0-9]* make failed' "$1" || { cat "$1" >&2; fail "make demo"; }
}
at() { sed -n "s/^\([0-9]*\) stage: $2\$/\1/p" "$1" | head -n 1; }

echo "== make demo, clean clone, empty cache"
demo "$work/cold"
sed 's/^/   /' "$work/cold"
fetched=$(($(at "$work/cold" gpu-memory) - $(at "$work/cold" fetch)))
echo "ok   $took s: built within $(at "$work/cold" fetch) s, downloads $fetched s"
[ $((took - fetched)) -le 180 ] || fail "$((took - fetched)) s beside the downloads: more than 3 minutes"
[ "$(grep -Ec '^[0-9]+ +digest +match +match$' "$work/cold")" = 2 ] || \
  fail "not both NICs have digests that match in both modes"

echo "== make demo, warm"
demo "$work/warm"
echo "ok   $took s"
[ $took -le 90 ] || fail "$took s when warm: more than 90"
! grep -Eq '(download|unpack) ' "$work/warm" || fail "a warm run downloads"

echo "== the same as JSON"
within 90 "$work/clone/bin/vnic" run --json > "$work/run.json"
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'runs.-len- == 2' 'runs.0.bytes == 268435456' \
  'runs.1.bytes == 268435456' \
  'guest == "qemu"' 'ratio > 0'
[ "$(sed -n 's/.*"accel": "\(.*\)",/\1/p' "$work/run.json")" = tcg ] || echo "note: not under TCG, as KVM works here"
find "$VNIC_CACHE/tmp" -mindepth 1 | grep . && fail "the cache has temporary files"
echo "ok   the cache takes $(du -sm "$VNIC_CACHE" | cut -f1) MB"
echo PASS
