#!/usr/bin/env bash
# "The benchmark of the slice is not slower": compares the checkout with commit 1acd496, by pairs of runs and
# benchstat (tools/benchcmp). BASE=COMMIT names another base. It needs the history, so no shallow clone.
. "$(dirname "$0")/lib.sh"
base=${BASE:-1acd496}
git cat-file -e "$base^{commit}" 2>/dev/null || fail "no commit $base here: git fetch --unshallow"
tools/benchcmp --base "$base" --pairs "${ROUNDS:-10}" nic/virtio nic/gve driver stack || fail "slower than $base"
echo PASS
