# Sourced by the scripts of this folder. $vnic is the program under test, $work a directory that is removed at the
# end.
set -euo pipefail
# Resets SIGHUP to its default: under nohup(1) it is ignored, also by vnic, and scripts that wait until SIGHUP has
# ended vnic would wait for ever.
[ "${SIGHUP-}" = default ] || SIGHUP=default exec env --default-signal=HUP "$BASH" "$0" "$@"
unset MAKEFLAGS MAKELEVEL MFLAGS # of the make that runs us
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
vnic=${VNIC:-$root/bin/vnic}
[ -x "$vnic" ] || { echo "no $vnic: run make build first" >&2; exit 1; }
cache=${VNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vnic}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null && kill -CONT $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
exec {said}>&2 # also where a command's own stderr goes elsewhere
fail() { echo "FAIL $*" >&"$said"; exit 1; }

# tool NAME: builds test/internal/NAME as $work/NAME.
tool() { "$root/tools/with-tools" go build -ldflags="-s -w" -o "$work/$1" "./test/internal/$1"; }
tool jsoncheck

# within SECONDS COMMAND...: runs COMMAND, and fails if it takes longer.
within() {
  local limit=$1 start=$SECONDS; shift
  timeout --kill-after=10 "$limit" "$@" || { local s=$?; [ $s = 124 ] && fail "over $limit s: $*"; return $s; }
  echo "ok   $((SECONDS - start)) s of $limit: $*" >&2
}

# Fetches and builds everything that a guest needs, into the user's cache, before the script begins. So no output
# that the script checks has notes about it, and vnic also runs without a network, or with an empty PATH.
grep -Eq ' to fetch | none yet$' < <("$vnic" doctor) && within 900 "$vnic" boot -- true

# container: makes $work/container, which runs a command as a user who is nobody outside, without privileges and network,
# without /dev/kvm, with a small /dev/shm.
container() {
  cat > "$work/container" <<'EOF'
#!/bin/sh
exec unshare --user --map-root-user --mount --net --pid --fork --kill-child sh -euc '
  mount -t proc proc /proc
  mount -t tmpfs -o size=64M tmpfs /dev/shm
  [ ! -e /dev/kvm ] || { : > "$1/nothing"; mount --bind "$1/nothing" /dev/kvm; }
  shift
  exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --securebits=+noroot "$@"' sh "${0%/*}" "$@"
EOF
  chmod +x "$work/container"
}

# devmem_proof RUN: prints the conditions that prove a run of mode devmem. An emulated guest that is late may
# retransmit a segment although none was lost, so the bytes may be more than the payload.
devmem_proof() {
  printf '%s\n' "runs.$1.mode == \"devmem\"" "runs.$1.sha256_match == true" "runs.$1.tx.device >= runs.$1.bytes" \
    "runs.$1.rx.device >= runs.$1.bytes" "runs.$1.tx.host == 0" "runs.$1.rx.host == 0" "runs.$1.linear_bytes == 0"
}
copy_proof() {
  printf '%s\n' "runs.$1.mode == \"copy\"" "runs.$1.sha256_match == true" "runs.$1.tx.host >= runs.$1.bytes" \
    "runs.$1.rx.host >= runs.$1.bytes" "runs.$1.tx.device == 0" "runs.$1.rx.device == 0"
}
# holds FILE CONDITION...: the JSON in FILE fulfils all conditions, which are lines or arguments.
holds() {
  local file=$1 conds=(); shift
  mapfile -t conds < <(printf '%s\n' "$@")
  "$work/jsoncheck" "${conds[@]}" < "$file"
}

# private_cache DIR: makes a private cache with the contents of the user's cache. So only files that the script's
# runs add are new in it, and other runs on this machine do not change it.
private_cache() {
  mkdir "$1" "$1/programs"
  for d in "$cache"/{qemu,kernel,programs/u-root-*}; do [ ! -d "$d" ] || ln -s "$d" "$1/${d#"$cache/"}"; done
  for f in resolved.json kvm.json; do [ ! -e "$cache/$f" ] || cp "$cache/$f" "$1/"; done
}

# files_of DOC: writes a document's files into the current directory, and the commands for the reader into the file
# commands. A block after a line "`NAME`:" is that file; a block after a line that begins with "Build" or "Run" and
# ends in ":" has commands.
files_of() {
  rm -f commands
  awk '
    /^`[^`]*`:$/ {
      name = into = substr($0, 2, length($0) - 3)
      if (sub("/[^/]*$", "", into)) system("mkdir -p " into)
      into = name
      next
    }
    /^(Build|Run) .*:$/ { into = "commands"; next }
    /^    / { if (into) print substr($0, 5) > into; next }
    /^$/ { if (into == name && into) print "" > into; next }
    { into = "" }' "$1"
}

# deb PACKAGE PROGRAM [FILE]: puts PROGRAM in PATH, as $work/bin/PROGRAM, from Debian 13's PACKAGE, which is fetched
# into the cache. If the program has another name in /usr/bin, that is FILE.
deb() {
  local dir loader libraries
  dir=$(. tools/debs.sh; fetch "$1" trixie "$1" >&2 && echo "$cache/$1/usr") ||
    fail "no $1 to be had: install Debian 13's, or set VNIC_MIRROR"
  loader=$(ls "$dir"/lib64/ld-linux-* | head -n 1) libraries=$dir/lib/$(ls "$dir/lib" | grep -m 1 -- -linux-gnu)
  mkdir -p "$work/bin"
  cat > "$work/bin/$2" <<SH
#!/bin/sh
# The program runs with the libraries of its own suite.
exec '$loader' --library-path '$libraries' '$dir/bin/${3:-$2}' "\$@"
SH
  chmod +x "$work/bin/$2"
  export PATH=$work/bin:$PATH
}

# debian_passt: puts Debian 13's passt in PATH, which is fetched into the cache.
debian_passt() {
  local file=passt
  ! grep -qw avx2 /proc/cpuinfo || file=passt.avx2
  deb passt passt $file
}
# have_passt: puts a passt with vhost-user in PATH: this machine's, else Debian 13's.
have_passt() { grep -q -- --vhost-user < <(passt --help 2>&1) || debian_passt; }

# own_qemu FILE: makes FILE, a program that runs the cache's QEMU, to stand for a user's own QEMU.
own_qemu() {
  local tree
  tree=$(find -L "$cache/qemu" -path '*/usr/bin/qemu-system-x86_64' | head -n 1); tree=${tree%/usr/bin/*}
  [ -n "$tree" ] || fail "no QEMU in $cache: run vnic run first"
  cat > "$1" <<SH
#!/bin/sh
QEMU_MODULE_DIR='$tree/usr/lib/x86_64-linux-gnu/qemu' exec '$tree/usr/lib64/ld-linux-x86-64.so.2' --library-path \
  '$tree/usr/lib/x86_64-linux-gnu' '$tree/usr/bin/qemu-system-x86_64' \
  -L '$tree/usr/share/qemu' -L '$tree/usr/share/seabios' "\$@"
SH
  chmod +x "$1"
}

# alive SESSION: prints the processes of a session. setsid makes a session for a run, and vnic's child processes
# stay in it.
alive() {
  local p s
  for p in /proc/[0-9]*; do
    { read -r s < "$p/stat"; } 2>/dev/null || continue
    set -- "$1" ${s##*) } # state ppid pgrp session
    [ "$5" != "$1" ] || [ "$2" = Z ] || echo "${p#/proc/}"
  done
}
# held SESSION: prints the sockets and memory files that the session's processes have open.
held() {
  local p
  for p in $(alive "$1"); do
    find "/proc/$p/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null || true
    find "/proc/$p/fd" -lname '/memfd:*' -exec stat -L -c 'memfd:%d:%i' {} + 2>/dev/null || true
  done | sort -u
}
# still FILE: prints those sockets and memory files listed in FILE that any process still has open.
still() {
  { find /proc/[0-9]*/fd -lname 'socket:*' -printf '%l\n' || true; \
    find /proc/[0-9]*/fd -lname '/memfd:*' -exec stat -L -c 'memfd:%d:%i' {} + || true; } 2>/dev/null |
    sort -u | comm -12 "$1" -
}

# in_kvm SECONDS FILE...: runs the script on stdin in a guest of QEMU's TCG that has /dev/kvm, vnic, the user's
# cache (on a disk) and $work's FILEs. The script starts in /outer, where these are, and can use the functions step
# and failed:
#
#   step NAME PATTERN COMMAND...: the command succeeds, and its output, in ./out, matches the pattern
#
# The outer guest has one processor: with two, QEMU 11.1 at times lets an interrupt through right behind VMRUN
# (docs/found.md).
in_kvm() {
  local limit=$1 kernel m f; shift
  unset VNIC_ACCEL VNIC_SLOW
  kernel=$(find "$cache"/kernel/*/usr/lib/modules -maxdepth 1 -mindepth 1 | sort | tail -1)
  mkdir "$work/outer"
  for m in virt/lib/irqbypass arch/x86/kvm/kvm arch/x86/kvm/kvm-amd drivers/block/virtio_blk fs/squashfs/squashfs \
    fs/overlayfs/overlay; do
    for f in "$kernel/kernel/$m".ko*; do
      case $f in *.xz) xz -dc "$f" ;; *.zst) zstd -dc "$f" ;; *) cat "$f" ;; esac > "$work/outer/${m##*/}.ko" ||
        fail "kernel ${kernel##*/} has no $m"
    done
  done
  cp "$vnic" "$work/outer/vnic"
  for f; do cp "$work/$f" "$work/outer/"; done
  deb squashfs-tools mksquashfs
  mksquashfs "$cache"/{qemu,kernel,programs,resolved.json} $(ls -d "$cache"/selftests* 2> /dev/null) \
    "$work/cache.squashfs" -keep-as-directory -noI -noD -noF -noX -no-progress > "$work/squashed" ||
    { cat "$work/squashed"; fail mksquashfs; }
  {
    cat <<'END'
#!/bin/bash
cd /outer
failed() { cat out; vnic doctor --report; echo "FAIL $*"; exit 1; }
step() {
  local name=$1 pattern=$2 s=0 begin=$SECONDS; shift 2
  "$@" > out 2>&1 < /dev/null || s=$?
  [ $s = 0 ] && grep -q -e "$pattern" out || failed "$name: status $s"
  echo "ok   $((SECONDS - begin)) s $name: $(grep -m1 -e "$pattern" out)"
}
export VNIC_CACHE=/outer/cache VNIC_SLOW=10 HOME=/root PATH=/outer:$PATH
for m in irqbypass kvm kvm-amd virtio_blk squashfs overlay; do insmod $m.ko || failed $m; done
[ -c /dev/kvm ] || failed "no /dev/kvm"
mkdir lower cache over over/upper over/work
mount -t squashfs -o ro /dev/vda lower || failed 'the disk'
mount -t overlay -o lowerdir=lower,upperdir=over/upper,workdir=over/work none cache || failed overlay
END
    cat
    echo 'echo done'
  } > "$work/outer/steps"
  chmod +x "$work/outer/steps"
  within "$limit" "$vnic" boot --accel tcg --memory 4G --gpu-memory 0 --copy "$work/outer:/outer" \
    --qemu-arg -drive --qemu-arg "file=$work/cache.squashfs,format=raw,if=virtio,readonly=on" \
    --timeout "$((limit - 60))s" -- /outer/steps | tee "$work/log"
  grep -q '^done' "$work/log" || fail "the outer guest's steps"
}
