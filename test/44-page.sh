#!/usr/bin/env bash
# "A page": tests the page in a real browser with real runs: a devmem run, a lost segment, a stalled receiver, a fault.
# It also tests the page by keys alone, in dark mode and 360 px wide, and a report from a file without a network. With
# SHOTS=docs/images it writes the screenshots that docs/page.md shows; otherwise it makes, checks and deletes them.
. "$(dirname "$0")/lib.sh"

# The libraries that our browser needs must not be found by vnic.
where=$(tools/chromium --where)
mapfile -t browser <<< "$where"
mkdir -p "${SHOTS:=$work/shots}"
SHOTS=$(realpath "$SHOTS")
VNIC=$vnic CHROMIUM=${browser[0]} CHROMIUM_LIBRARIES=${browser[1]-} SHOTS=$SHOTS \
  within 600 tools/with-tools go test -tags browser -count=1 -timeout 9m "$@" ./test/internal/pagebrowser
for f in "$SHOTS"/page-*.png; do
  [ "$(stat -c %s "$f")" -lt 150000 ] || fail "$f has 150 KB or more"
done
[ "$(ls "$SHOTS"/page-*.png | wc -l)" -ge 6 ] || [ $# -gt 0 ] || fail "screenshots are missing"
echo PASS
