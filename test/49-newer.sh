#!/usr/bin/env bash
# A Debian that is newer than all versions with which vnic was tested: a signed mirror with the real mirror's QEMU
# and kernel under higher version numbers. The commands of "make demo" run with them, from an empty cache and then
# from the filled one, and each run prints "untested" once; "make check" passes with that mirror and that cache.
# This script takes four minutes on two cores if make lint has run before, and downloads 90 MB.
. "$(dirname "$0")/lib.sh"
tool signmirror
# The mirror's packages come from the real mirror, as this machine's apt sources or VNIC_MIRROR name it.
. "$root/tools/debs.sh"
go=$(dirname "$(tools/with-tools sh -c 'command -v go')")

echo "== a mirror with higher versions"
suites=$(sed -n '/"suites": \[/,/\]/ s/^\s*"\([^" ]*\)",*$/\1/p' internal/machine/assets/versions.lock | tr '\n' ' ')
m=$work/mirror
# packages SUITE: writes apt's entries for QEMU, the kernel and all their dependencies to $m/Packages, and the
# package files that vnic uses to $m/pool.
packages() (
  apt=$work/apt-$1 base=${1%-backports}
  [ "$base" != "$1" ] || base=
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$m/pool"; : > "$apt/status"
  printf "deb [signed-by=$keyring] ${2/#file:/copy:} %s main\n" "$1" $base > "$apt/sources.list"
  opts=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache::archives=$apt/archives"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o "APT::Default-Release=$1" -o APT::Install-Recommends=false
    -o APT::Sandbox::User= -o APT::Update::Error-Mode=any -o Debug::NoLocking=1)
  apt-get "${opts[@]}" update || exit 1
  need() { apt-get "${opts[@]}" --print-uris -y -d install "$@" | sed -n "s/^'[^']*' \([^_ ]*\)_.*/\1/p"; }
  qemu=$(need qemu-system-x86) kernel=$(need linux-image-cloud-amd64)
  [ -n "$qemu" ] && [ -n "$kernel" ] || exit 1
  # shellcheck disable=SC2086 # names
  apt-cache "${opts[@]}" show --no-all-versions $(printf '%s\n' $qemu $kernel | sort -u) > "$m/Packages" || exit 1
  # shellcheck disable=SC2046,SC2086
  cd "$m/pool" && apt-get "${opts[@]}" download $qemu $(grep -E '^linux-(binary|image|modules)-[0-9]' <<< "$kernel") ||
    exit 1
  for f in *.deb; do mv "$f" "${f%%_*}.deb"; done
)
from=$(mirror)
for s in $suites none; do
  [ "$s" != none ] || fail "no suite of $suites serves"
  ! packages "$s" "${from:-http://deb.debian.org/debian}" || break
  rm -rf "$m"
done
version() { sed -n "/^Package: $1\$/,/^\$/ s/^Version: //p" "$m/Packages" | head -n 1; }
qemu=$(version qemu-system-x86) kernel=$(version linux-image-cloud-amd64)
# Packages of one source have the same version, and depend on each other in exactly that version.
awk -v q="$qemu" -v k="$kernel" '
  function raised(line, v,  i) {
    while (i = index(line, "(= " v ")")) line = substr(line, 1, i + 2) v "+vnic1" substr(line, i + 3 + length(v))
    return line
  }
  /^Package: / { name = $2 }
  /^Version: / && ($2 == q || $2 == k) { $0 = $0 "+vnic1" }
  /^Filename: / { $0 = "Filename: pool/" name ".deb" }
  { print raised(raised($0, q), k) }' "$m/Packages" > "$work/Packages"
mv "$work/Packages" "$m/Packages"
# shellcheck disable=SC2046
"$work/signmirror" "$m" $(printf '%s\n' $suites $(sed 's/-backports//g' <<< "$suites") | sort -u)
export VNIC_MIRROR=file:$m VNIC_KEYRING=$m/keys.gpg VNIC_CACHE=$work/cache XDG_CACHE_HOME=$work/xdg
unset VNIC_QEMU VNIC_KERNEL VNIC_MODULES
echo "ok   QEMU $qemu+vnic1, kernel $kernel+vnic1"

echo "== what make demo runs"
demo() { # ARGUMENT...
  within 300 "$vnic" run --size 16M "$@" > "$work/out" 2> "$work/err" || {
    cat "$work/out" "$work/err" >&2
    fail "vnic run $*"
  }
  grep -Eq '^ *digest +match +match$' "$work/out" || fail "vnic run $*: $(cat "$work/out")"
  [ "$(cat "$work/out" "$work/err" | grep -c untested)" = 1 ] ||
    fail "untested is not said once: $(cat "$work/out" "$work/err")"
  for part in "qemu $qemu+vnic1, tested with" "kernel $kernel+vnic1, tested with"; do
    [ "$(grep -o "note: untested: .*$part" "$work/err" | wc -l)" = 1 ] || fail "no $part: $(cat "$work/err")"
  done
}
# vnic would use a QEMU in PATH instead of the mirror's, if it were new enough.
mkdir "$work/path"
printf '#!/bin/sh\necho QEMU emulator version 7.2.0\n' > "$work/path/qemu-system-x86_64"
chmod +x "$work/path/qemu-system-x86_64"
export PATH=$work/path:$PATH
demo
demo --nic gve
"$vnic" doctor > "$work/doctor" || fail "doctor: $(cat "$work/doctor")"

echo "== make check"
within 1500 env -u MAKEFLAGS -u MAKELEVEL PATH="$go:$PATH" XDG_CACHE_HOME="${cache%/vnic*}" make check >&2
echo PASS
