#!/usr/bin/env bash
# "The benchmark of the slice is not slower": the checkout against 1acd496, by pairs of runs that benchstat compares
# (tools/benchcmp). BASE=COMMIT names another. The history is needed: no shallow clone.
. "$(dirname "$0")/lib.sh"
base=${BASE:-1acd496}
git cat-file -e "$base^{commit}" 2>/dev/null || fail "no commit $base here: git fetch --unshallow"
tools/benchcmp --base "$base" --pairs "${ROUNDS:-10}" nic/virtio nic/gve driver stack || fail "slower than $base"
echo PASS
