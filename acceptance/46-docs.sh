#!/usr/bin/env bash
# "From an empty directory: a Go and a C program of 40 lines, and the entropy device, written from the docs alone, by a
# script that extracts the docs' code and runs it." A block behind a line "`NAME`:" is that file; a block behind a line
# that ends in ":" and begins with "Build" or "Run" is what a reader types.
. "$(dirname "$0")/lib.sh"

export VNIC_SRC=$PWD
export PATH="$(dirname "$(realpath "$vnic")"):$PATH"

# follow DOC: writes its files into the current directory, and runs its commands one after another, with their output.
follow() {
  rm -f commands
  awk '
    /^`[^`]*`:$/ { name = substr($0, 2, length($0) - 3); into = name; if (sub("/[^/]*$", "", name)) system("mkdir -p " name); name = into; next }
    /^(Build|Run) .*:$/ { into = "commands"; next }
    /^    / { if (into) print substr($0, 5) > into; next }
    /^$/ { if (into == name && into) print "" > into; next }
    { into = "" }' "$1"
  rm -f output
  while read -r line; do
    echo "     \$ $line"
    within 300 "$VNIC_SRC/tools/with-tools" --cc sh -c "$line" >> output 2>&1 < /dev/null || { cat output; fail "$line"; }
  done < commands
}

echo "== forty lines of Go and of C"
mkdir "$work/forty"
( cd "$work/forty" && follow "$VNIC_SRC/docs/forty-lines.md" )
for f in main.go c/forty.c; do
  n=$(grep -c '[^[:space:]]' "$work/forty/$f")
  [ "$n" -le 40 ] || fail "$f has $n lines"
  echo "ok   $f: $n lines that are not empty"
done
[ "$(grep -c '^\[0\] 1048576 bytes in GPU memory$' "$work/forty/output")" = 2 ] || fail "$(cat "$work/forty/output")"
[ "$(grep -c '^\[0\] 1048576 bytes in GPU memory, 0 in host memory$' "$work/forty/output")" = 1 ] ||
  fail "$(cat "$work/forty/output")"
grep -q 'who sent what to whom' "$work/forty/output" || fail "no account of flows"
