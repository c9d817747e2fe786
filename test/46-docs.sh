#!/usr/bin/env bash
# "From an empty directory: a Go and a C program of 40 lines, and the entropy device, written from the docs alone, by a
# script that extracts the docs' code and runs it."
. "$(dirname "$0")/lib.sh"

export VNIC_SRC=$PWD
export PATH="$(dirname "$(realpath "$vnic")"):$PATH"

# follow DOC: writes the document's files into the current directory, and runs its commands one after another, with
# their output.
follow() {
  files_of "$1"
  rm -f output
  while read -r line; do
    echo "     \$ $line"
    within 300 "$VNIC_SRC/tools/with-tools" --cc sh -c "$line" >> output 2>&1 < /dev/null ||
      { cat output; fail "$line"; }
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

echo "== the entropy device, of the Go blocks of its tutorial"
doc=$root/docs/tutorial-vhost-user-device.md
mkdir "$work/rng"
awk '/^```go$/ { on = 1; if (n++) print ""; next } /^```$/ { on = 0 } on' "$doc" > "$work/rng/main.go"
( cd "$work/rng"
  "$root/tools/with-tools" sh -ec 'go mod init rng; go mod edit -replace vnic.dev/vnic="$VNIC_SRC"
    go mod tidy; go build -o rng' > go.log 2>&1 || fail "$(cat go.log)" )
own=$(awk '/^\)$/ { on = 1; next } on' "$work/rng/main.go" | grep -vcE '^[[:space:]]*(//.*)?$')
[ "$own" -le 60 ] || fail "$own lines of its own"
echo "ok   $own lines of its own"
module=$(find "$cache/kernel" -name 'virtio-rng.ko.xz' | sort | tail -n 1)
[ -n "$module" ] || fail "the kernel has no virtio-rng"
xz -dc "$module" > "$work/rng/virtio-rng.ko"
"$work/rng/rng" -counter -socket-path "$work/rng/rng.sock" > "$work/rng/log" 2>&1 &
until [ -S "$work/rng/rng.sock" ]; do kill -0 %1 || fail "$(cat "$work/rng/log")"; done
within 120 "$vnic" boot --qemu-arg -chardev --qemu-arg socket,id=rng,path="$work/rng/rng.sock" \
  --qemu-arg -device --qemu-arg vhost-user-rng-pci,chardev=rng --copy "$work/rng/virtio-rng.ko:/virtio-rng.ko" \
  -- sh -c 'insmod /virtio-rng.ko; cat /sys/class/misc/hw_random/rng_current; head -c 16 /dev/hwrng | od -An -v -tu1' \
  > "$work/rng/out" 2> "$work/rng/err" || fail "$(cat "$work/rng/err")"
kill %1
grep -qx 'virtio_rng.0' "$work/rng/out" || fail "the guest has no such device: $(cat "$work/rng/out")"
# With -counter the bytes are successive numbers; a read may consist of parts of two blocks.
tail -n 1 "$work/rng/out" |
  awk '{ for (i = 2; i <= NF; i++) n += ($i != ($(i - 1) + 1) % 256); exit NF != 16 || n > 1 }' ||
  fail "not the device's bytes: $(cat "$work/rng/out")"
echo "ok   the guest reads the device's bytes: $(tail -n 1 "$work/rng/out")"
