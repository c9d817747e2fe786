#!/usr/bin/env bash
# "Installed use: `go install` and a release tarball work from an empty directory with no Go
# toolchain and no checkout (guest programs embedded). `make install` with DESTDIR: binary, man
# pages, completions, JSON description, systemd unit."
. "$(dirname "$0")/lib.sh"
go=$(tools/with-tools bash -c 'command -v go')
goroot=$(tools/with-tools bash -c 'go env GOROOT')

# bare DIR COMMAND...: runs COMMAND in an empty directory, with an environment that leads neither to Go, nor to this
# checkout, nor to a QEMU of this machine.
bare() {
  local home=$1; shift
  rm -rf "$work/empty" && mkdir -p "$work/empty" "$home"
  (cd "$work/empty" && env -i HOME="$home" PATH=/usr/bin:/bin VNIC_CACHE="$home/cache" "$@")
}
if [ -x /usr/bin/go ] || [ -x /bin/go ]; then fail "this machine has Go in /usr/bin: the test would show nothing"; fi

# works PROGRAM HOME: checks that the program runs without any other file.
works() {
  bare "$2" "$1" version | grep '^vnic ' || fail "$1 version"
  bare "$2" "$1" run --guest inproc --size 16M --json > "$work/inproc.json" || fail "$1 run --guest inproc"
  holds "$work/inproc.json" "$(devmem_proof 0)"
  bare "$2" "$1" doctor > "$work/doctor" || fail "$1 doctor"
  grep -q 'ready' "$work/doctor" || { cat "$work/doctor" >&2; fail "$1 doctor"; }
  mkdir -p "$2"
  private_cache "$2/cache"
  bare "$2" "$1" run --size 4M --mode devmem --json > "$work/qemu.json" || fail "$1 run"
  holds "$work/qemu.json" "$(devmem_proof 0)" 'guest == "qemu"'
  exports "$1" "$2"
  bare "$2" "$1" image build --offline > "$work/image" || fail "$1 image build"
  [ -s "$work/empty/guest/initrd" ] || fail "$1 image build: no initrd"
}
# exports PROGRAM HOME: checks that the program writes the guests' tools.
exports() {
  bare "$2" "$1" image export || fail "$1 image export"
  grep -q '^Netcat for device memory TCP' < <("$work/empty/devmem" recv -h) || fail "$1 image export: no devmem"
}

# complete PREFIX WHERE: checks that all files are installed in WHERE, and can be used. PREFIX is the path that the
# files themselves refer to.
complete() {
  local prefix=$1 at=$2 f
  for f in bin/vnic libexec/vhost-user-vnic share/man/man1/vnic.1 share/man/man1/vnic-run.1 \
    share/man/man1/vnic-stat.1 share/man/man1/vnic-cache-rm.1 share/man/man1/vnic-image-build.1 \
    share/bash-completion/completions/vnic share/zsh/site-functions/_vnic share/fish/vendor_completions.d/vnic.fish \
    share/qemu/vhost-user/50-vnic.json lib/systemd/system/vnic@.service share/doc/vnic/README.md \
      share/doc/vnic/LICENSE share/doc/vnic/examples/devmem.c share/doc/vnic/examples/devmem.h; do
    [ -s "$at/$f" ] || fail "no $f"
  done
  (ldd "$at/bin/vnic" 2>&1 || true) | grep -q 'not a dynamic executable' || fail "bin/vnic needs libraries"
  [ ! -e "$at/share/man/man1/vnic-docs.1" ] || fail "a page for what is not there"
  for f in "$at"/share/man/man1/*.1; do
    LC_ALL=C.UTF-8 groff -man -ww -Tutf8 -z "$f" 2> "$work/groff" || fail "$f"
    [ ! -s "$work/groff" ] || { cat "$work/groff" >&2; fail "$f"; }
  done
  LC_ALL=C.UTF-8 groff -man -Tutf8 -P-c "$at/share/man/man1/vnic-run.1" | tr -s '[:space:]' ' ' > "$work/page"
  grep -q 'prove where its bytes went.* RAM of each guest .*vnic run --nic gve' "$work/page" || \
    { cat "$work/page" >&2; fail "the page of run says nothing"; }
  for f in "$at"/share/man/man1/vnic*.1; do
    for section in 'EXIT STATUS' ENVIRONMENT FILES; do
      grep -qx ".SH $section" "$f" || fail "$f has no section $section"
    done
  done
  grep -qx '.SH EXAMPLES' "$at/share/man/man1/vnic-run.1" || fail "the page of run has no examples"
  echo "ok   $(ls "$at/share/man/man1" | wc -l) man pages"
  bash -n "$at/share/bash-completion/completions/vnic" || fail "completion for bash"
  # The completion script asks the program for completions: source it, and call it as a shell would.
  PATH=$at/bin:/usr/bin:/bin bash -c '. "$1"; vnic __complete "" 2>/dev/null' \
    - "$at/share/bash-completion/completions/vnic" > "$work/commands"
  grep -q '^stat' "$work/commands" || fail "completion of commands"
  if command -v zsh > /dev/null; then zsh -n "$at/share/zsh/site-functions/_vnic"; fi
  if command -v fish > /dev/null; then fish -n "$at/share/fish/vendor_completions.d/vnic.fish"; fi
  "$work/jsoncheck" 'type == "net"' "binary == \"$prefix/libexec/vhost-user-vnic\"" \
    < "$at/share/qemu/vhost-user/50-vnic.json"
  "$at/libexec/vhost-user-vnic" --print-capabilities | "$work/jsoncheck" 'type == "net"'
  grep -q "^ExecStart=$prefix/bin/vnic serve " "$at/lib/systemd/system/vnic@.service" || fail "systemd unit"
  ! grep -rIl '@bindir@\|'"$root" "$at" || fail "paths of the build are in it"
}

echo "== make install"
make -s install DESTDIR="$work/dest" PREFIX=/opt/vnic
complete /opt/vnic "$work/dest/opt/vnic"
if command -v systemd-analyze > /dev/null; then
  sed "s|/opt/vnic/bin/vnic|$work/dest/opt/vnic/bin/vnic|" "$work/dest/opt/vnic/lib/systemd/system/vnic@.service" \
    > "$work/vnic@x.service"
  systemd-analyze verify --man=no "$work/vnic@x.service" 2> "$work/unit" || { cat "$work/unit" >&2; \
    fail "systemd unit"; }
  ! grep 'vnic@x' "$work/unit" || fail "systemd unit"
  # Exposure in tenths, at most 100; a value above --threshold is an error. (systemd 250 and newer.)
  systemd-analyze security --offline=yes --threshold=20 "$work/vnic@x.service" > "$work/unit" || \
    { cat "$work/unit" >&2; \
    fail "systemd unit: more exposed than 2.0 of 10"; }
fi
works "$work/dest/opt/vnic/bin/vnic" "$work/home1"

echo "== make release: the same bytes from two checkouts, made at different times"
for n in 1 2; do
  git clone -q "$root" "$work/src$n"
  (cd "$work/src$n" && make -s release VERSION=0.test > /dev/null)
  (cd "$work/src$n/dist" && sha256sum --quiet -c ./*.sha256)
done
cmp "$work"/src1/dist/*.tar.gz "$work"/src2/dist/*.tar.gz || fail "two builds differ"
echo "ok   $(cut -c-16 "$work"/src1/dist/*.sha256) $(stat -c %s "$work"/src1/dist/*.tar.gz) bytes"
mkdir "$work/untar"
tar -xzf "$work"/src1/dist/*.tar.gz -C "$work/untar"
top=$work/untar/vnic-0.test-linux-amd64
for f in README.md LICENSE INSTALL.md; do [ -s "$top/$f" ] || fail "no $f in the tarball"; done
root="$work/src1" complete /usr/local "$top"
bare "$work/home2" "$top/bin/vnic" version | grep '^vnic 0\.test, go' || fail "the version of a release"
works "$top/bin/vnic" "$work/home2"

echo "== go install, from a module as a proxy has it: no guest program inside"
module=$work/proxy/vnic.dev/vnic/@v
mkdir -p "$module"
echo v0.0.1 > "$module/list"
echo '{"Version":"v0.0.1"}' > "$module/v0.0.1.info"
cp go.mod "$module/v0.0.1.mod"
git archive --format=zip --prefix=vnic.dev/vnic@v0.0.1/ -o "$module/v0.0.1.zip" HEAD \
  -- . ':!tools' ':!internal/api/testdata' # modules of their own, which a proxy leaves out
# Modules other than vnic come from the user's module cache.
with_go() {
  bare "$work/home3" GOPATH="$work/gopath" GOMODCACHE="$work/gomod" GOFLAGS=-modcacherw \
    GOCACHE="$("$go" env GOCACHE)" GOBIN="$work/gobin" GOROOT="$goroot" \
    GOPROXY="file://$work/proxy,file://$("$go" env GOMODCACHE)/cache/download,$("$go" env GOPROXY)" \
      GONOSUMDB=vnic.dev GOSUMDB="$("$go" env GOSUMDB)" \
    CGO_ENABLED=0 http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" PATH="$(dirname "$go"):/usr/bin:/bin" "$@"
}
with_go go install vnic.dev/vnic/cmd/vnic@v0.0.1
bare "$work/home3" "$work/gobin/vnic" version | grep '^vnic v0\.0\.1, go' || fail "the version of a module"
private_cache "$work/home3/cache"
status=0
bare "$work/home3" "$work/gobin/vnic" run --size 4M --mode devmem > "$work/out" 2> "$work/err" || status=$?
[ $status = 3 ] && grep -q '^vnic: .*carries no guest program.*put Go in PATH' "$work/err" || { cat "$work/err" >&2; \
  fail "without Go: status $status"; }
echo "ok   without Go: $(grep '^vnic:' "$work/err")"
with_go "$work/gobin/vnic" run --size 4M --mode devmem --json > "$work/first.json" || fail "the first run, with Go"
holds "$work/first.json" "$(devmem_proof 0)"
bare "$work/home3" "$work/gobin/vnic" run --size 4M --mode devmem --json > "$work/second.json" || \
  fail "the next run, without Go"
holds "$work/second.json" "$(devmem_proof 0)"
exports "$work/gobin/vnic" "$work/home3"
bare "$work/home3" "$work/gobin/vnic" cache ls | grep '^programs/vnic-guest-' || fail "the guest program is not in the cache"
echo PASS
