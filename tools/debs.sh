# debs: sourced by the scripts beside it. Debian packages, unpacked into vnic's cache: nothing is installed, apt's own
# state is not touched, and root is not needed.
#
#   VNIC_CACHE      the cache (default: $XDG_CACHE_HOME/vnic or ~/.cache/vnic)
#   VNIC_MIRROR     a Debian mirror (default: the first one that this machine's apt uses)
#   VNIC_KEYRING    the keyring that signs it (default: Debian's own)
#   VNIC_TOOLS_TMP  where packages are while they are fetched (default: the cache); on the cache's file system
cache=${VNIC_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/vnic}/tools
keyring=${VNIC_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
arch=$(dpkg --print-architecture 2>/dev/null || echo amd64)

say() { echo "${0##*/}: $*" >&2; }
die() { say "$*"; exit 3; }

mirror() {
  if [ -n "${VNIC_MIRROR:-}" ]; then echo "$VNIC_MIRROR"; return; fi
  # deb822 sources ("URIs:") and one-line sources ("deb [options] URI suite ..."); security archives are no mirrors.
  { cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs:[[:space:]]*//p' | tr ' ' '\n'
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
      sed -n 's/^deb[[:space:]]\{1,\}\(\[[^]]*\][[:space:]]*\)\{0,1\}\([^[:space:]]*\).*/\2/p'
  } | grep -E '/debian/?$' | head -n 1 || true
}

suite_of_machine() { ( . /etc/os-release && echo "${VERSION_CODENAME:-trixie}" ); }

# trusted NAME: checks that only this user and root can write to the parts of the cache that are used, because
# programs of the cache run with this user's rights; internal/machine/assets/trust.go has the same rule. A link is
# followed if it belongs to this user or root. If a group may write to a directory of this user, its right is
# removed first.
trusted() {
  local me d bad depth
  me=$(id -u)
  for d in "${cache%/tools}" "$cache" "$cache/$1"; do
    depth=1; [ "$d" != "$cache/$1" ] || depth=
    bad=$(find "$d" -maxdepth 0 ! -uid 0 ! -uid "$me" 2>/dev/null
      find -H "$d" ${depth:+-maxdepth 0} -type d -uid "$me" -perm -020 ! -perm -002 -exec chmod g-w {} \; \
        -o '(' ! -uid 0 ! -uid "$me" -o ! -type l -perm /022 ')' -print -quit 2>/dev/null) || true
    [ -z "$bad" ] || die "${bad%%$'\n'*}: another user's, or others may write it, and programs of ${cache%/tools} run as" \
      "you: if nobody else has put anything there, chmod -R go-w it, else remove it, or set VNIC_CACHE to your own"
  done
}

# fetch NAME SUITES PACKAGE...: unpacks the packages with all dependencies (with closure=no only the packages) as
# $cache/NAME, from the first of SUITES (one argument, separated by spaces) that has all of them. If the index of a
# suite is expired or cannot be reached, or if its packages have been replaced, fetch prints a note and tries the
# next suite. Files that match a pattern in $without (tar's --exclude, one pattern a line) are not unpacked.
fetch() {
  local name=$1 suites=$2 suite; shift 2
  trusted "$name"
  [ ! -e "$cache/$name/.complete" ] || return 0
  command -v apt-get >/dev/null || die "no apt-get here: this needs a Debian machine"
  local from; from=$(mirror)
  [ -n "$from" ] || die "no Debian mirror in this machine's apt sources: set VNIC_MIRROR"
  from=${from/#file:/copy:} # apt leaves packages where they are with file:
  [ -r "$keyring" ] || die "no keyring $keyring: install debian-archive-keyring or set VNIC_KEYRING"
  (umask 022; mkdir -p "$cache")
  for suite in $suites; do
    say "fetching $* ($suite) into $cache/$name"
    if fetch_from "$suite" "$from" "$cache/$name" "$@"; then return 0; fi
  done
  return 1
}

# quiet LOG WHAT COMMAND...: runs COMMAND, which fetches from a mirror. If it fails, quiet prints one line with WHAT
# and apt's first error.
quiet() {
  local log=$1 what=$2; shift 2
  "$@" > "$log" 2>&1 && return
  say "note: $what: $({ sed -n 's/^E: //p' "$log"; sed -n 's/^W: //p' "$log"; cat "$log"; } | head -n 1)"
  return 1
}

# fetch_from SUITE MIRROR DIRECTORY PACKAGE...: the same from one suite. Dependencies of a backports suite may also
# come from the suite that it extends.
fetch_from() (
  suite=$1 from=$2 dir=$3; shift 3
  exec {lock}< "${dir%/*}"
  # The lock is held until the end: if two processes fetch at once, the second uses the result of the first.
  flock -n "$lock" || { say "waiting for another script, which fetches into ${dir%/*}"; flock "$lock"; }
  [ ! -e "$dir/.complete" ] || exit 0
  umask 022
  s=$(mktemp -d "${VNIC_TOOLS_TMP:-$cache}/.apt-XXXXXX")
  export TMPDIR=$s # apt leaves files when it is interrupted
  trap 'rm -rf "$s"' EXIT
  mkdir -p "$s/lists/partial" "$s/archives/partial" "$s/root"; : > "$s/status"
  base=${suite%-backports}; [ "$base" != "$suite" ] && [ "${closure:-yes}" = yes ] || base=
  printf "deb [signed-by=$keyring] $from %s main\n" "$suite" $base > "$s/sources.list"
  # The machine's own apt hooks, such as package caches of desktops, must not run.
  printf '#clear %s;\n' \
    APT::Update::Pre-Invoke APT::Update::Post-Invoke APT::Update::Post-Invoke-Success > "$s/apt.conf"
  opts=(-qq -c "$s/apt.conf" -o "Dir::Etc::sourcelist=$s/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$s/lists" -o "Dir::State::status=$s/status" -o "Dir::Cache::archives=$s/archives"
    -o "Dir::Cache::pkgcache=$s/pkgcache" -o Dir::Cache::srcpkgcache= -o Acquire::Languages=none
    -o "APT::Default-Release=$suite" -o APT::Install-Recommends=false
    -o APT::Sandbox::User= -o APT::Update::Error-Mode=any -o Debug::NoLocking=1
    -o Acquire::Retries=2) # each is tried three times
  # After || and in conditions, where some callers use this function, set -e is off.
  quiet "$s/log" "$suite at $from" apt-get "${opts[@]}" update || exit 1
  if [ "${closure:-yes}" = yes ]; then
    quiet "$s/log" "$suite at $from" apt-get "${opts[@]}" -d -y install "$@" || exit 1
  else
    cd "$s/archives" && quiet "$s/log" "$suite at $from" apt-get "${opts[@]}" download "$@" || exit 1
  fi
  # On a system with merged /usr, package files under /bin and /lib belong under /usr.
  mkdir -p "$s/root/usr/bin" "$s/root/usr/sbin" "$s/root/usr/lib" "$s/root/usr/lib64"
  ln -s usr/bin usr/sbin usr/lib usr/lib64 "$s/root/"
  printf '%s' "${without:-}" > "$s/without"
  # A tree unpacked by root gets the same owner and modes as any other: this user's, and not writable by others.
  printf '%s\0' "$s"/archives/*.deb | s=$s xargs -0 -n 1 -P 2 bash -o pipefail -c \
    'dpkg-deb --fsys-tarfile "$0" |
      tar -x --no-same-owner --no-same-permissions -X "$s/without" --keep-directory-symlink -C "$s/root"' || exit 1
  touch "$s/root/.complete" && rm -rf "$dir" && mv -T "$s/root" "$dir"
)
