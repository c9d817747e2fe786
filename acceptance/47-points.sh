#!/usr/bin/env bash
# A list of what people meet: a command each, and what it must print. What takes longer has a script of its own:
# 42 (tools), 43 (mistakes of devmem programs), 44 (the page), 45 (CI), 46 (docs' programs).
. "$(dirname "$0")/lib.sh"

# prints WHAT STATUS PATTERN COMMAND...: with that status, and a line like that on stdout or stderr.
prints() {
  local what=$1 want=$2 pattern=$3 s=0
  shift 3
  timeout --kill-after=10 120 "$@" > "$work/out" 2>&1 < /dev/null || s=$?
  [ "$s" = "$want" ] || fail "$what: status $s, not $want: $(tail -n 5 "$work/out")"
  grep -qE -- "$pattern" "$work/out" || fail "$what: nothing like '$pattern' in: $(tail -n 15 "$work/out")"
  echo "ok   $what: $(grep -m1 -E -- "$pattern" "$work/out" | cut -c 1-150)"
}
# first is prints for the first line.
first() {
  prints "$@"
  head -n 1 "$work/out" | grep -qE -- "$3" || fail "$1: not in the first line: $(head -n 3 "$work/out")"
}
silent() { # WHAT PATTERN: not in what the last one printed
  ! grep -qE -- "$2" "$work/out" || fail "$1: $(grep -m1 -E -- "$2" "$work/out")"
}

cat > "$work/talk" <<'EOF'
#!/bin/sh
if [ "$VNIC_INDEX" = 0 ]; then
  exec devmem recv -p 5201 > /tmp/got
fi
s=$(sed -n 's/^\([0-9.]*\).*guest0-devmem.*/\1/p' /etc/hosts | head -n 1)
head -c 3000000 /dev/zero > /tmp/sent
exec devmem send -s "$s" -p 5201 < /tmp/sent
EOF
chmod +x "$work/talk"

echo "== see"
prints 'who sent what to whom' 0 'guest1.*guest0.* tcp +2\.9 MiB +2\.9 MiB +2\.9 MiB +2\.9 MiB +0 B' \
  "$vnic" boot --guests 2 --json "$work/flows.json" -- "$work/talk"
holds "$work/flows.json" 'list.0.proto == "tcp"' 'list.0.rx.0.device_bytes == 3000000' 'list.0.rx.0.host_bytes == 0'
prints 'no account' 0 'total_received=3000000' "$vnic" boot --guests 2 --flows 0 -- "$work/talk"
silent 'no account' 'who sent what'
prints 'flows out of range' 2 '^vnic: --flows 99999' "$vnic" boot --flows 99999 -- true

awk '/^`c\/forty.c`:$/ { on = 1; next } on && /^    / { print substr($0, 5) } on && /^Build/ { exit }' docs/forty-lines.md |
  sed 's/int queue = steer(&guest0);/struct sockaddr_in x = address("guest0", "5999"); int queue = steer(\&x);/' \
    > "$work/astray.c"
"$root/tools/with-tools" --cc sh -c '"${CC:-gcc}" -w -I"$0" -o "$1" "$1.c"' "$root/guest/docs" "$work/astray"
astray='none of it in GPU memory: the flow was not steered \(it came by queue [0-2]; bound is queue 3\)'
prints 'a flow that was not steered' 1 "$astray" \
  "$vnic" boot --guests 2 --nic gve -- "$work/astray"

echo "== say what is wrong"
prints 'one of two ends' 3 'guest1 has ended: exit status 3; --end first-failure ends guest0' \
  "$vnic" boot --guests 2 --end first-failure -- sh -c '[ $VNIC_INDEX = 1 ] && exit 3; sleep 1000'
prints 'a time limit' 124 '^vnic: .*20s.*guest0' "$vnic" boot --timeout 20s -- sleep 1000
printf '#!/usr/bin/env nosuch-interpreter\n' > "$work/script"
chmod +x "$work/script"
first 'a script without its interpreter' 3 'nosuch-interpreter' "$vnic" boot -- "$work/script"
truncate -s 300M "$work/large"
first 'files that do not fit' 2 '--memory' "$vnic" boot --memory 256M --copy "$work/large:/x" -- true

echo "== a QEMU at hand"
prints 'vnic qemu' 0 '^QEMU emulator version' "$vnic" qemu -- --version
prints 'a command to paste' 124 'qemu.* -|vnic qemu --' timeout 10 "$vnic" serve --socket-path "$work/v%d" --ports 2

echo "== conventions"
prints 'a version' 0 '^vnic .* go1' "$vnic" --version
prints 'a command that is nearly one' 2 'boot' "$vnic" bot
prints 'a flag that is nearly one' 2 'did you mean --guests' "$vnic" boot --guest 2
prints 'a value that is nearly one' 2 'gve' "$vnic" boot --nic gvr -- true
prints 'values of a flag' 0 '^gve' "$vnic" __complete boot --nic ''
prints 'mtu' 0 'which is also the largest' "$vnic" boot --help

echo "== the console, and a page of the metrics"
prints 'a good run' 0 . "$vnic" boot --log-dir "$work/logs" -- true
grep -q 'Linux version' "$work"/logs/* || fail "the console has no kernel's log: $(ls -l "$work/logs")"
echo "ok   the console has the kernel's log"
"$vnic" boot --metrics 127.0.0.1:0 -- sleep 60 > "$work/out" 2> "$work/err" &
for _ in $(seq 600); do
  url=$(sed -n 's/.*metrics at \(http:[^ ]*\)metrics.*/\1/p' "$work/err")
  [ -z "$url" ] || break
  read -rt 0.1 <> <(:) || true
done
"$root/tools/with-tools" curl -sf "$url" 2> /dev/null | grep -q '<html' ||
  curl -sf "$url" | grep -q '<html' || fail "no page at $url"
echo "ok   a page at the port of the metrics"
kill %1
