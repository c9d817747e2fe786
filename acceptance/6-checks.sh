#!/usr/bin/env bash
# "`go vet`, the linter with depguard for the house's floors, `-race`, fuzz targets for the vhost-user decoder, the descriptor
# walker, the packet parser and the control codec run in `make test`."
. "$(dirname "$0")/lib.sh"

echo "== make test runs them"
plan=$(make -n test)
for what in 'go vet ./...' 'golangci-lint run' 'go test -race' 'tools/fuzz' 'acceptance/run'; do
  grep -qF -- "$what" <<< "$plan" || fail "make test does not run $what"
  echo "ok   $what"
done

echo "== fuzz targets, with their corpora"
for target in vhostuser:FuzzMessage vhostuser:FuzzSession virtq:FuzzDescriptorWalk splitter:FuzzParse control:FuzzFrame; do
  room=${target%%:*} name=${target##*:}
  tools/with-tools go test -count=1 -run "^$name\$" -v "./$room" > "$work/fuzz" || { cat "$work/fuzz" >&2; fail "$target"; }
  grep -q -- "--- PASS: $name" "$work/fuzz" || fail "no $name in $room"
  echo "ok   $room $name"
done

echo "== depguard holds the floors: each forbidden import must be refused"
[ -x bin/golangci-lint ] || make lint > /dev/null
root=$PWD tree=$work/tree
git clone -q . "$tree"
cp .golangci.yml "$tree/"
refuses() { # refuses ROOM IMPORT
  printf 'package %s\n\nimport _ "%s"\n' "$(basename "$1")" "$2" > "$tree/$1/zz_forbidden.go"
  if (cd "$tree" && "$root/tools/with-tools" "$root/bin/golangci-lint" run "./$1/" > "$work/lint" 2>&1); then fail "$1 may import $2"; fi
  grep -q 'depguard' "$work/lint" || { cat "$work/lint" >&2; fail "$1 importing $2 fails, but not by depguard"; }
  rm "$tree/$1/zz_forbidden.go"
  echo "ok   $1 must not import $2"
}
refuses splitter unsafe
refuses virtq vnic.dev/vnic/splitter
refuses wire vnic.dev/vnic/gpumem
refuses nic vnic.dev/vnic/virtq
refuses devmem gvisor.dev/gvisor/pkg/tcpip
echo PASS
