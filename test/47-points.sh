#!/usr/bin/env bash
# Runs a command for each of a list of small things that users notice, and checks the command's output. Longer tests
# have their own scripts: 42 (tools), 43 (mistakes of devmem programs), 44 (the page), 45 (CI), 46 (docs' programs).
# A kernel 6.1 and passt are fetched into the cache: some 150 MB.
. "$(dirname "$0")/lib.sh"

# prints WHAT STATUS PATTERN COMMAND...: the command ends with this status, and a line on stdout or stderr matches.
prints() {
  local what=$1 want=$2 pattern=$3 s=0
  shift 3
  timeout --kill-after=10 120 "$@" > "$work/out" 2>&1 < /dev/null || s=$?
  [ "$s" = "$want" ] || fail "$what: status $s, not $want: $(tail -n 5 "$work/out")"
  shows "$what" "$pattern"
}
# shows WHAT PATTERN: a line of the last command's output matches, too.
shows() {
  grep -qE -- "$2" "$work/out" || fail "$1: nothing like '$2' in: $(tail -n 15 "$work/out")"
  echo "ok   $1: $(grep -m1 -E -- "$2" "$work/out" | cut -c 1-150)"
}
# first: like prints, but the first line must match.
first() {
  prints "$@"
  head -n 1 "$work/out" | grep -qE -- "$3" || fail "$1: not in the first line: $(head -n 3 "$work/out")"
}
silent() { # WHAT PATTERN: not in what the last one printed
  ! grep -qE -- "$2" "$work/out" || fail "$1: $(grep -m1 -E -- "$2" "$work/out")"
}
# awaits WHAT SECONDS CONDITION...: waits until the condition succeeds.
awaits() {
  local what=$1 last=$((SECONDS + $2))
  shift 2
  until "$@"; do
    [ $SECONDS -lt $last ] || fail "$what: not so far: $(tail -n 15 "$work/out")"
    read -rt 0.1 <> <(:) || true
  done
}
has() { grep -qE -- "$1" "$work/out"; }
# terminal STATUS COMMAND...: runs the command on a terminal, into which the function keys types. The terminal's
# output is in out, in the end line by line without colours.
terminal() {
  local want=$1 s=0
  shift
  : > "$work/out"
  keys | timeout --kill-after=10 120 script -qefc "exec $(printf '%q ' "$@")" -O "$work/out" > /dev/null || s=$?
  tr '\r' '\n' < "$work/out" | sed 's/\x1b\[[?0-9;]*[A-Za-z]//g' > "$work/plain"
  mv "$work/plain" "$work/out"
  [ $s = "$want" ] || fail "on a terminal: status $s, not $want: $(tail -n 15 "$work/out")"
}

cat > "$work/talk" <<'EOT'
#!/bin/sh
if [ "$VNIC_INDEX" = 0 ]; then
  exec devmem recv -p 5201 > /tmp/got
fi
head -c 3000000 /dev/zero > /tmp/sent
exec devmem send -s guest0 -p 5201 < /tmp/sent
EOT
chmod +x "$work/talk"

echo "== see"
for nic in virtio gve; do
  prints "who sent what to whom ($nic)" 0 'guest1.*guest0.* tcp +2\.9 MiB +2\.9 MiB +2\.9 MiB +2\.9 MiB +0 B' \
    "$vnic" boot --nic $nic --guests 2 --json "$work/flows.json" -- "$work/talk"
  holds "$work/flows.json" 'list.0.proto == "tcp"' 'list.0.rx.0.device_bytes >= 3000000' 'list.0.rx.0.host_bytes == 0' \
    'list.0.rx.0.rule > 0' 'list.0.rx.0.header_bytes > 0' 'list.0.rx.0.queues.-len- >= 1'
done
prints 'no account' 0 'total_received=3000000' "$vnic" boot --guests 2 --flows 0 -- "$work/talk"
silent 'no account' 'who sent what'
prints 'flows out of range' 2 '^vnic: --flows 99999' "$vnic" boot --flows 99999 -- true
prints 'a flood costs nothing more' 0 '^--- PASS: TestFlood' \
  tools/with-tools go test -count=1 -run TestFlood -v ./internal/nic/flows

mkdir "$work/forty"
(cd "$work/forty" && files_of "$root/docs/forty-lines.md")
sed 's/int queue = steer(&guest0);/struct sockaddr_in x = address("guest0", "5999"); int queue = steer(\&x);/' \
  "$work/forty/c/forty.c" > "$work/astray.c"
"$root/tools/with-tools" --cc sh -c '"${CC:-gcc}" -w -I"$0" -o "$1" "$1.c"' "$root/guest/docs" "$work/astray"
astray='none of it in GPU memory: the flow was not steered \(it came by queue [0-2]; bound is queue 3\)'
prints 'a flow that was not steered' 1 "$astray" \
  "$vnic" boot --guests 2 --nic gve -- "$work/astray"

"$vnic" run --nic gve --size 4M --mode devmem --hold-tokens 200 --pause-at verify > "$work/run" 2>&1 < /dev/null &
run=$!
awaits 'a run that is looked at' 60 grep -q 'stage: verify' "$work/run"
# A guest that answers late is missing in the output.
held() { "$vnic" stat --once $run > "$work/out" 2>&1 && has '^ *A 10\.118\.110\.1:5201 .* 200 '; }
awaits 'tokens that are held, and the flow' 30 held
shows 'tokens that are held, and the flow' 'TOKENS HELD'
shows 'of the connection' 'A 10\.118\.110\.1:5201 +B 10\.118\.110\.2:5201 +tcp +4\.0 MiB.* 200 '
told() { "$vnic" stat --json --once $run > "$work/stat.json" && grep -q tokens_held "$work/stat.json"; }
awaits 'the same in JSON' 30 told
holds "$work/stat.json" 'flows.list.0.rx.0.tokens_held == 200'
keys() { awaits 'stat in place' 30 has $'\x1b''\[[0-9]+A'; printf '\003'; }
terminal 0 "$vnic" stat $run
shows 'stat in place, in bits' 'bit/s'
kill $run; wait $run || true

echo "== say what is wrong"
prints 'one of two ends' 3 'guest1 has ended: exit status 3; --end first-failure ends guest0' \
  "$vnic" boot --guests 2 --end first-failure -- sh -c '[ $VNIC_INDEX = 1 ] && exit 3; sleep 1000'
prints 'the others go on' 5 'guest1 has ended: exit status 5; guest0 still runs' \
  "$vnic" boot --guests 2 -- sh -c 'if [ $VNIC_INDEX = 1 ]; then exit 5; fi; sleep 5'
prints 'a time limit' 124 '^vnic: .*20s.*guest0' "$vnic" boot --timeout 20s -- sleep 1000
keys() { awaits 'a shell' 60 has 'guest0:~# '; printf 'exec sleep 1000\n\035q'; }
terminal 1 "$vnic" boot
shows 'a guest that does not answer' 'Ctrl-\] q leaves'
shows 'is left' 'left by Ctrl-\] q'
keys() { awaits 'it boots' 60 has 'booting'; printf "echo ty''ped ahead; exit 7\n"; awaits 'a shell' 60 has 'guest0:'; }
terminal 7 "$vnic" boot
shows 'keys that are typed ahead' '^typed ahead'
silent 'keys that are typed ahead' "booting.*ty''ped"
printf '#!/usr/bin/env nosuch-interpreter\n' > "$work/script"
printf '#!/usr/bin/env bash\n[[ $BASH_VERSION ]] && echo "bash of this machine"\n' > "$work/bashed"
chmod +x "$work/script" "$work/bashed"
first 'a script without its interpreter' 3 'nosuch-interpreter' "$vnic" boot -- "$work/script"
prints 'an interpreter comes along' 0 '^bash of this machine' "$vnic" boot -- "$work/bashed"
truncate -s 300M "$work/large"
first 'files that do not fit' 2 '--memory' "$vnic" boot --memory 256M --copy "$work/large:/x" -- true

echo "== a QEMU at hand"
prints 'vnic qemu' 0 '^QEMU emulator version' "$vnic" qemu -- --version
mkdir -m 700 "$work/run.d"
export VNIC_RUNTIME_DIR=$work/run.d
for nic in virtio gve; do
  ports=2
  [ $nic = gve ] || ports=3 # the last NIC is for devmem programs
  prints "an image ($nic)" 0 'vnic serve --socket-path \$XDG_RUNTIME_DIR' \
    "$vnic" image build --nic $nic -o "$work/image-$nic" -- \
    sh -c 'ping -c 1 gateway; echo up $(ip -4 -o addr show scope global | wc -l); exit 7'
  "$vnic" serve --nic $nic --socket-path "$work/$nic%d" --ports $ports --image "$work/image-$nic" \
    > "$work/serve" 2> "$work/err" &
  serve=$!
  awaits 'a command to paste' 30 grep -q "^# or all $ports ports" "$work/serve"
  awaits 'the end of it' 30 sh -c 'tail -n 2 "$0" | grep -q -- -cpu' "$work/serve"
  sed -n "/^# or all $ports ports/,/^\$/p" "$work/serve" | tail -n +2 > "$work/paste"
  prints "it is pasted: both NICs of a guest ($nic)" 0 '^up 2' bash "$work/paste"
  shows 'its program' 'exit status 7'
  prints "what serve has counted ($nic)" 0 'who sent what to whom' "$vnic" stat --once $serve
  kill $serve; wait $serve || true
  grep -qE '^[0-9]{2}:[0-9]{2}:[0-9]{2} ' "$work/serve" "$work/err" || fail "serve's messages have no time"
done
echo "ok   serve's messages: $(cat "$work/serve" "$work/err" | grep -m1 -E '^[0-9]{2}:[0-9]{2}:')"

echo "== conventions"
prints 'a version' 0 '^vnic .* go1' "$vnic" --version
prints 'a command that is nearly one' 2 'boot' "$vnic" bot
prints 'a flag that is nearly one' 2 'did you mean --guests' "$vnic" boot --guest 2
prints 'a value that is nearly one' 2 'gve' "$vnic" boot --nic gvr -- true
prints 'values of a flag' 0 '^gve' "$vnic" __complete boot --nic ''
prints 'values of another' 0 '^first-failure' "$vnic" __complete boot --end ''
prints 'mtu' 0 'which is also the largest' "$vnic" boot --help
prints 'examples' 0 '\$XDG_RUNTIME_DIR' "$vnic" serve --help
make -s bin/vnic-docs > /dev/null
SOURCE_DATE_EPOCH=0 bin/vnic-docs docs --dir "$work/share"
for page in vnic vnic-boot vnic-run vnic-serve vnic-stat; do
  for section in 'EXIT STATUS' ENVIRONMENT FILES EXAMPLES; do
    [ $page != vnic ] || [ "$section" != EXAMPLES ] || continue
    grep -q "^\.SH $section" "$work/share/man/man1/$page.1" || fail "$page.1 has no $section"
  done
done
echo "ok   man pages have EXIT STATUS, ENVIRONMENT, FILES, EXAMPLES"
keys() { :; }
terminal 0 "$vnic" run --size 64M --mode devmem
shows 'progress ends at 100 %' 'devmem 100%'
silent 'the sandbox, on a terminal' 'sandbox'
prints 'doctor' 0 "ready: 'vnic run' has all it needs" "$vnic" doctor

echo "== kernels, and who answers"
(. tools/debs.sh; fetch linux-6.1 bookworm linux-image-cloud-amd64) || fail "no kernel 6.1 to be had"
old=$(ls -d "$cache"/tools/linux-6.1/usr/lib/modules/6.1*)
own=(--kernel "$(ls "$cache"/tools/linux-6.1/boot/vmlinuz-6.1*)" --modules "$old")
began=$SECONDS
prints 'doctor, of a kernel that cannot' 0 '^nic gve +missing +kernel 6\.1\..*too old' "$vnic" doctor "${own[@]}"
shows 'but by virtio' '^nic virtio +ok .*6\.1\.'
first 'boot, of the same' 3 '^vnic: kernel 6\.1\..*too old' "$vnic" boot --nic gve "${own[@]}" -- true
[ $((SECONDS - began)) -lt 20 ] || fail "it took $((SECONDS - began)) s to say so"
grep -q '6\.12 for an ordinary NIC' README.md && has '6\.12 for an ordinary NIC' || fail "README says something else"
echo "ok   README says the same"
have_passt
"$vnic" image build -o "$work/image" -- sh -c 'echo has $(ip -4 -o addr show scope global); exit 7' > /dev/null
passt --foreground --quiet --vhost-user --socket "$work/passt" --ipv4-only --address 10.0.3.15 --netmask 24 \
  --gateway 10.0.3.2 2> "$work/passt.log" &
awaits 'passt' 20 test -S "$work/passt"
prints 'DHCP behind passt' 0 'has .*10\.0\.3\.15/24' "$vnic" qemu -- -M q35,memory-backend=ram -m 512M \
  -object memory-backend-memfd,id=ram,size=512M,share=on -chardev "socket,id=p,path=$work/passt" \
  -netdev vhost-user,id=p,chardev=p -device virtio-net-pci,netdev=p,romfile= -kernel "$work/image/kernel" \
  -initrd "$work/image/initrd" -append "$(cat "$work/image/append")" -nographic -vga none -nic none -no-reboot \
  -accel tcg,thread=multi -cpu max

echo "== the console, captures, and a page of the metrics"
prints 'a good run' 0 . "$vnic" boot --log-dir "$work/logs" -- true
grep -q 'Linux version' "$work"/logs/* || fail "the console has no kernel's log: $(ls -l "$work/logs")"
echo "ok   the console has the kernel's log"
# frames ARGUMENT...: prints the frames of a capture with the transfer's payload, by sequence number, and the sum of
# their payload.
frames() {
  "$vnic" run --guest inproc --mode devmem --size 1M --pcap "$work/$1.pcapng" "${@:2}" > /dev/null 2>&1
  tools/tshark -r "$work/$1.pcapng" -Y 'tcp.len > 0' -T fields -E separator=/t -e tcp.len -e frame.comment \
    > "$work/$1" 2> "$work/tshark" || fail "tshark: $(cat "$work/tshark")"
  awk -F'\t' '{ n += $1 } END { print n }' "$work/$1"
}
n=$(frames once)
[ "$n" = 1048576 ] || fail "a capture has payload of $n bytes, not 1 MiB, once"
n=$(frames twice --pcap-ends)
[ "$n" = 2097152 ] || fail "--pcap-ends: a capture has payload of $n bytes, not twice 1 MiB"
grep -q 'of payload from GPU 0.*; to B: .*of payload to GPU 1' "$work/once" || fail "no comments of both ends: $(head -n 2 "$work/once")"
echo "ok   a capture has each frame once: $(head -n 1 "$work/once" | cut -c 1-140)"
"$vnic" boot --metrics 127.0.0.1:0 -- sleep 60 > "$work/out" 2> "$work/err" &
boot=$!
url() { sed -n 's/.*metrics at \(http:[^ ]*\)metrics.*/\1/p' "$work/err"; }
awaits 'the port of the metrics' 60 sh -c 'grep -q "metrics at" "$0"' "$work/err"
exec {tcp}<> "/dev/tcp/$(url | sed 's#http://\([^:]*\):\([0-9]*\)/#\1/\2#')"
printf 'GET / HTTP/1.0\r\n\r\n' >&"$tcp"
timeout 20 cat <&"$tcp" > "$work/page"
grep -q '<html' "$work/page" || fail "no page at $(url)"
echo "ok   a page at the port of the metrics"
kill $boot; wait $boot || true

echo "== for Go developers"
prints 'an example sets a call' 0 '^--- PASS: Example' tools/with-tools go test -count=1 -run '^Example' -v ./vhostuser
grep -q 'SetCall' vhostuser/example_test.go || fail "the example has no SetCall"
echo PASS
