#!/usr/bin/env bash
# `vnic boot` and the machine on which it runs: --forward, --pcap, --metrics, `vnic stat` and `vnic cache` during a
# boot, by a user without privileges; and a shell with a working terminal (job control, resize), whose settings are
# restored however vnic ends.
#
# Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
. "$(dirname "$0")/lib.sh"
cd "$work"

cat > server.go <<'GO'
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// A server of bytes, an echo by UDP, a question to another server, and an end when it is told to.
func main() {
	if len(os.Args) > 1 { // the host's: it says one word
		l, err := net.Listen("tcp", os.Args[1])
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
		panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })))
	}
	http.HandleFunc("/ask/", func(w http.ResponseWriter, r *http.Request) {
		c := http.Client{Timeout: 20 * time.Second}
		answer, err := c.Get("http://" + r.URL.Path[len("/ask/"):])
		if err != nil {
			fmt.Fprint(w, err)
			return
		}
		defer answer.Body.Close()
		io.Copy(w, answer.Body)
	})
	http.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from the guest") })
	http.HandleFunc("/bytes", func(w http.ResponseWriter, _ *http.Request) {
		for range 4 << 10 {
			w.Write(bytes.Repeat([]byte("0123456789abcdef"), 64))
		}
	})
	http.HandleFunc("/end", func(http.ResponseWriter, *http.Request) { os.Exit(4) })
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		panic(err)
	}
	u, err := net.ListenPacket("udp", ":7")
	if err != nil {
		panic(err)
	}
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, _ := u.ReadFrom(b)
			u.WriteTo(append([]byte("echo "), b[:n]...), from)
		}
	}()
	fmt.Println("up as", os.Getuid())
	panic(http.Serve(l, nil))
}
GO
(cd "$root" && CGO_ENABLED=0 tools/with-tools go build -o "$work/server" "$work/server.go")

# Runs a command as nobody, a user without privileges, who has a home, and in it a cache with our QEMU and kernel.
home=$work/home
mkdir -p "$home/.cache/vnic"
for d in qemu kernel; do mkdir "$home/.cache/vnic/$d"; cp -a "$cache/$d/." "$home/.cache/vnic/$d/"; done
cp "$cache/resolved.json" "$home/.cache/vnic/"
cp "$vnic" server "$home/"
if [ "$(id -u)" = 0 ]; then
  chmod 711 "$work"
  chown -R -h 65534:65534 "$home"
  nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --inh-caps=-all)
else
  nobody=()
fi
nobody+=(env -i -C "$home" HOME="$home" PATH=/usr/bin:/bin)
free_port() {
  local p
  for p in $(shuf -i 20000-30000 -n 100); do { : <> "/dev/tcp/127.0.0.1/$p"; } 2> /dev/null || { echo "$p"; return; \
    }; done
}
wait_for() { # PATTERN FILE
  for _ in $(seq 1800); do
    ! grep -q "$1" "$2" || return 0
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.1
  done
  cat out err >&2; fail "no $1"
}

echo "== a server in a guest, of a user without privileges"
tcp=$(free_port) udp=$(free_port)
"${nobody[@]}" "$home/vnic" boot --forward "$tcp:8080" --forward "udp:$udp:7" --pcap p.pcapng --pcap-payload 200 \
  --metrics 127.0.0.1:0 --log-dir logs \
  -- ./server > out 2> err < /dev/null & pid=$!
wait_for '^up as 0$' out
# get PATH: prints the server's file at PATH, by curl if there is one.
get() {
  if curl --version > curl 2>&1; then curl -sS --noproxy '*' --max-time 60 "http://127.0.0.1:$tcp$1"; return; fi
  exec 5<> "/dev/tcp/127.0.0.1/$tcp"
  printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&5
  sed '1,/^\r$/d' <&5
}
[ "$(get /hello)" = "hello from the guest" ] || fail "--forward: $(get /hello)"
sum=$(for _ in $(seq 4096); do printf '0123456789abcdef%.0s' {1..64}; done | sha256sum)
[ "$(get /bytes | sha256sum)" = "$sum" ] || fail "--forward: 4 MiB are not what was sent"
exec 6<> "/dev/udp/127.0.0.1/$udp"
printf 'a datagram' >&6
answer=$(timeout 20 dd bs=2000 count=1 <&6 2> dd) || fail "--forward udp: no answer"
[ "$answer" = "echo a datagram" ] || fail "--forward udp: $answer"
exec 6>&-
echo "ok   --forward: TCP, 4 MiB as they are, UDP"
"${nobody[@]}" "$home/vnic" stat $pid --json > stat.json || fail "vnic stat"
holds stat.json 'command == "boot"' 'ports.0.name == "guest0"' 'ports.0.link.sent_bytes >= 4194304' \
  'ports.0.link.received >= 10'
"${nobody[@]}" "$home/vnic" stat $pid --once | grep -E '^ +guest0 +wire +tx' | sed 's/^/ok  /'
url=$(sed -n 's/^note: metrics at \(.*\)/\1/p' err)
curl -sS --noproxy '*' "$url" > metrics 2> curl || true
# For a guest of boot the gateway's address is the host's loopback: the guest reaches servers there, but no port of
# vnic itself.
"${nobody[@]}" "$home/server" 127.0.0.1:0 > host.port & host=$!
for _ in $(seq 100); do [ ! -s host.port ] || break; sleep 0.1; done
metrics=${url#*127.0.0.1:} metrics=${metrics%%/*}
got=$(get "/ask/10.118.110.254:$(cat host.port)")
[ "$got" = hello ] || fail "a guest reaches no server of the host: $got"
got=$(get "/ask/10.118.110.254:$metrics/metrics")
case $got in
*refused*) ;;
*) fail "a guest reaches --metrics of its own vnic: $got" ;;
esac
kill $host
echo "ok   --metrics at port $metrics is refused to the guest: $got"
[ ! -s metrics ] || awk \
  '$1 == "vnic_link_bytes_total{direction=\"tx\",port=\"guest0\"}" && $2 >= 4194304 { ok = 1 } END { exit !ok }' \
  metrics ||
  { grep '^vnic_link' metrics >&2; fail "--metrics"; }
echo "ok   $(grep '^vnic_link_bytes_total.*guest0' metrics | head -n 1)"
s=0; "${nobody[@]}" "$home/vnic" cache rm --all > rm.out 2> rm.err || s=$?
[ $s = 1 ] && [ "$(grep -c '^vnic: .*in use by' rm.err)" = 1 ] && [ "$(ls "$home/.cache/vnic/qemu" | wc -l)" = 1 ] || \
  fail "cache rm of a boot: status $s: $(cat rm.err)"
echo "ok   $(grep ^vnic: rm.err)"
get /end > end 2>&1 || true
s=0; wait $pid || s=$?
[ $s = 4 ] && ! grep -q '^vnic: ' err || fail "status $s: $(cat err)"
[ "$(od -An -tx1 -N4 "$home/p.pcapng")" = " 0a 0d 0d 0a" ] && grep -aq 'hello from the guest' "$home/p.pcapng" || \
  fail "--pcap"
[ -e "$home/logs/console-guest0.log" ] || fail "--log-dir"
[ "$(id -u)" != 0 ] || [ "$(stat -c %u "$home/p.pcapng")" = 65534 ] || fail "it ran as another user"
[ ! -e /tmp/vnic-65534 ] || [ -z "$(ls /tmp/vnic-65534)" ] || fail "left: $(ls /tmp/vnic-65534)"
echo "ok   status 4; $(stat -c %s "$home/p.pcapng") bytes captured"

echo "== terminals"
if ! python3 -c 'import pty' 2> err; then echo "skip terminals: no python3"; echo PASS; exit; fi
export VNIC_RUNTIME_DIR=$work/rt VNIC_QEMU= VNIC_KERNEL= VNIC_MODULES=
private_cache "$work/cache"
for how in 'exit:status 5, .*: $' 'TERM:status 1, .*: interrupted' 'INT:status 1, .*: interrupted' \
  'HUP:status 1, .*: interrupted' \
  'QEMU:status 1, .*: guest0: QEMU ended early: signal: killed' 'TWICE:status 1, '; do
  timeout 200 python3 "$root/test/terminal.py" "${how%%:*}" "$vnic" boot --cache "$work/cache" > out 2> err || \
    { cat err >&2; fail "terminal, ${how%%:*}"; }
  grep -Eq "^${how#*:}" out || fail "terminal, ${how%%:*}: $(cat out)"
  [ ! -e rt ] || [ -z "$(ls rt)" ] || fail "terminal, ${how%%:*}: $(ls rt) is left"
  echo "ok   ${how%%:*}: $(cat out)"
done
echo PASS
