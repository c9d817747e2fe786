#!/usr/bin/env bash
# "vnic load" loads files from nginx and other web servers into a guest's GPU, and every byte is right.
# - nginx on this machine, through the gateway: a whole file, the tensors of a safetensors file, records; with
#   guests in the process, and in QEMU on virtio and gve. The heads that the CPU looks at are less than 0.1 % of a
#   file; no payload is in host memory.
# - If nginx is killed in the middle and started again, or if a server ends bodies early, vnic requests the rest.
# - A file that changes during the load, a wrong byte, a server without ranges, chunks, https, a server that is not
#   there: for each, the error names the cause.
# - nginx in a stock guest, with its libraries, behind vnic boot --forward. nginx is this machine's, or Debian's,
#   unpacked (tools/nginx).
# It takes four minutes.
. "$(dirname "$0")/lib.sh"
. test/uses.sh
tools/nginx -v 2> "$work/version" || { cat "$work/version" >&2; fail "nginx"; }
echo "ok   $(cat "$work/version")"

# conf DIRECTORY PORT ADDRESS: writes a configuration with which nginx serves DIRECTORY/www there, as one process.
conf() {
  mkdir -p "$1/www"
  chmod 755 "$work" "$1" "$1/www"
  cat > "$1/conf" <<EOF
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
http {
  access_log ${4:-access.log};
  client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
  server {
    listen $3:$2;
    root www;
    location /slow/ { alias www/; limit_rate 3m; }
    location = /to-http { return 302 http://localhost:$2/raw; }
    location = /to-https { return 302 https://localhost:$2/raw; }
    location = /to-itself { return 302 http://localhost:$2/to-itself; }
    location = /secret { if (\$http_authorization != "Bearer of-the-ring") { return 401; } try_files /raw =404; }
  }
}
EOF
}
# nginx: starts nginx, as process $server.
nginx() {
  tools/nginx -p "$work/host/" -c "$work/host/conf" -e stderr > "$work/nginx.log" 2>&1 {said}>&- & server=$!
  served "$at" $server || { cat "$work/nginx.log" >&2; fail "nginx does not serve"; }
}
at=$(port)
conf "$work/host" "$at" 127.0.0.1
log=$work/host/access.log
nginx
url=http://localhost:$at

# The files that it serves: random bytes, and a safetensors file with names and types as in a small transformer.
(cd "$work/host/www" && head -c 25000003 /dev/urandom > raw && head -c 4000 /dev/urandom > small && : > empty)
cat > "$work/tensors.py" <<'PY'
import hashlib, json, os, sys
tensors, at = {"__metadata__": {"format": "pt"}}, 0
def add(name, dtype, width, *shape):
    global at
    n = width
    for d in shape:
        n *= d
    tensors[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
    at += n
add("transformer.wte.weight", "BF16", 2, 8001, 384)
for i in range(6):
    for name in "q", "k", "v", "out":
        add("transformer.h.%d.attn.%s_proj.weight" % (i, name), "F16", 2, 384, 384)
    add("transformer.h.%d.mlp.fc.weight" % i, "F32", 4, 1024, 384)
    add("transformer.h.%d.mlp.fc.bias" % i, "F32", 4, 1024)
    add("transformer.h.%d.ln.scale" % i, "F64", 8)
add("transformer.mask", "BOOL", 1, 3, 5, 7)
head = json.dumps(tensors).encode()
data = os.urandom(at)
with open(sys.argv[1], "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head + data)
print(hashlib.sha256(data).hexdigest(), len(tensors) - 1, at)
PY
read -r tensors_sum tensors tensors_bytes <<< "$(python3 "$work/tensors.py" "$work/host/www/model.safetensors")"
raw_sum=$(sha256sum "$work/host/www/raw" | cut -d ' ' -f 1)
raw_bytes=$(stat -c %s "$work/host/www/raw")
proof=('r["runs"][0]["verified"] is True' '[x["rx"]["host"] == 0 and x["host_bytes"] == 0 for x in runs]'
  '[x["rx"]["device"] >= x["bytes"] for x in runs]' '[x["looked_bytes"] * 1000 < x["bytes"] for x in runs]'
  '[x["resumed"] == 0 for x in runs]')

# loaded WHAT: prints a line about the last load.
loaded() {
  python3 - "$work/json" "$1" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
for x in r["runs"]:
    print("ok   %s, %s, %s: %d bytes, %.4f %% looked at, %d in host memory, %d requests on %d connections, %d resumed%s"
          % (sys.argv[2], r["nic"], x["mode"], x["bytes"], 100 * x["looked_bytes"] / x["bytes"], x["rx"]["host"],
             x["requests"], x["connections"], x["resumed"], ", verified" if x["verified"] else ""))
PY
}
inproc=(--guest inproc)

echo "== nginx, in the process"
whole() { # ARGUMENT...
  use "raw" load $url/raw --sha256 "$raw_sum" "$@"
  judge "raw" "${proof[@]}" "runs[0]['bytes'] == $raw_bytes == r['size']" "runs[0]['sha256'] == '$raw_sum'"
  loaded "raw"
}
model() { # ARGUMENT...
  use "tensors" load $url/model.safetensors --sha256 "$tensors_sum" "$@"
  judge "tensors" "${proof[@]}" "runs[0]['bytes'] == $tensors_bytes" "len(r['tensors']) == $tensors" \
    'r["tensors"][0]["name"] == "transformer.wte.weight" and r["tensors"][0]["shape"] == [8001, 384]' \
    'r["tensors"][-1]["dtype"] == "BOOL" and r["tensors"][-1]["bytes"] == 105' \
    "[x['bytes'] + x['gpu_offset'] - r['tensors'][0]['gpu_offset'] <= $tensors_bytes for x in r['tensors']]"
  loaded "$tensors tensors"
}
whole "${inproc[@]}"
whole "${inproc[@]}" --connections 1 --range 100M
whole "${inproc[@]}" --connections 16 --range 999999
model "${inproc[@]}"
use "both modes" load $url/raw "${inproc[@]}" --mode both --sha256 "$raw_sum"
judge "both modes" "[x['sha256'] == '$raw_sum' for x in runs]" 'runs[1]["mode"] == "copy"' \
  "runs[1]['rx']['device'] == 0 and runs[1]['rx']['host'] >= $raw_bytes" 'runs[0]["rx"]["host"] == 0'
loaded "both modes"
use "without peer-to-peer" load $url/raw "${inproc[@]}" --p2p off --sha256 "$raw_sum"
judge "without peer-to-peer" "runs[0]['rx']['bounced'] >= $raw_bytes" 'runs[0]["rx"]["device"] == 0'
loaded "without peer-to-peer"
use "loss" load $url/raw "${inproc[@]}" --loss 1% --sha256 "$raw_sum"
judge "loss" "${proof[@]}"
loaded "a link that loses segments"
use "records" load $url/raw "${inproc[@]}" --format records --record 50000 --skip 3 --batch 20 --step 1ms
judge "records" "runs[0]['bytes'] == 25000000" "runs[0]['records'] == 500" "${proof[@]:1:3}"
loaded "records"
use "redirect" load $url/to-http "${inproc[@]}" --sha256 "$raw_sum"
judge "redirect" "${proof[@]}" "r['url'] == '$url/raw'"
loaded "redirected"
use "header" load $url/secret "${inproc[@]}" --header 'Authorization: Bearer of-the-ring' --sha256 "$raw_sum"
loaded "with a header"
use "small" load $url/small "${inproc[@]}" --sha256 "$(sha256sum "$work/host/www/small" | cut -d ' ' -f 1)"
loaded "a small file"

echo "== what is not right"
python3 - "$work/host/www" <<'PY'
import sys
b = bytearray(open(sys.argv[1] + "/raw", "rb").read())
b[12345678] ^= 1
open(sys.argv[1] + "/wrong", "wb").write(b)
m = open(sys.argv[1] + "/model.safetensors", "rb").read()
open(sys.argv[1] + "/long.safetensors", "wb").write((1 << 62).to_bytes(8, "little") + m[8:])
open(sys.argv[1] + "/short.safetensors", "wb").write(m[:-1])
open(sys.argv[1] + "/bits.safetensors", "wb").write(m[:8] + b"[" + m[9:])
PY
refuses 1 'does not prove' load $url/wrong "${inproc[@]}" --sha256 "$raw_sum"
grep -q "WRONG: sha256 $(sha256sum "$work/host/www/wrong" | cut -d ' ' -f 1)" "$work/out" || fail "$(cat "$work/out")"
for f in long short bits; do
  refuses 1 "$f.safetensors: " load $url/$f.safetensors "${inproc[@]}"
done
refuses 1 'no records of 50001 bytes' load $url/raw "${inproc[@]}" --format records --record 50001
refuses 1 'answers "404' load $url/none "${inproc[@]}"
refuses 1 'answers "401' load $url/secret "${inproc[@]}"
refuses 1 'redirect to https://localhost:[0-9]*/raw: https: ' load $url/to-https "${inproc[@]}"
refuses 1 'redirect' load $url/to-itself "${inproc[@]}"
refuses 2 'https: a TLS record cannot be decrypted' load "https://localhost:$at/raw" "${inproc[@]}"
refuses 2 'http://HOST' load "ftp://localhost/raw" "${inproc[@]}"
refuses 1 'connection refused' load "http://localhost:$(port)/raw" "${inproc[@]}"

# Servers that behave in ways in which nginx does not.
cat > "$work/servers.py" <<'PY'
import http.server, sys
data = open(sys.argv[2], "rb").read()[:4000001]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last), len(data) - 1)
        body = data[first:last + 1]
        self.send_response(206)
        self.send_header("ETag", '"1"')
        other = 1 if self.path == "/other" and first else 0
        self.send_header("Content-Range", "bytes %d-%d/%d" % (first + other, last + other, len(data)))
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/early" and len(body) > 70000:
            body, self.close_connection = body[:len(body) // 2], True
        if self.path == "/never" and first:
            body, self.close_connection = b"", True
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
PY
other=$(port)
python3 "$work/servers.py" "$other" "$work/host/www/raw" > "$work/servers.log" 2>&1 & servers=$!
plain=$(port)
python3 -m http.server "$plain" --bind 127.0.0.1 --directory "$work/host/www" > "$work/plain.log" 2>&1 & plainly=$!
served "$other" $servers && served "$plain" $plainly || fail "$(cat "$work/servers.log" "$work/plain.log")"
refuses 1 'answers 200 to a request of a range: it serves none; nginx is one that does' \
  load "http://localhost:$plain/raw" "${inproc[@]}"
refuses 1 'Transfer-Encoding .*chunked' load "http://localhost:$other/chunked" "${inproc[@]}"
refuses 1 '(Content-Range|range)' load "http://localhost:$other/other" "${inproc[@]}"
limit=60 refuses 1 'never' load "http://localhost:$other/never" "${inproc[@]}" --retry 2s
early=$(head -c 4000001 "$work/host/www/raw" | sha256sum | cut -d ' ' -f 1)
use "bodies that end early" load "http://localhost:$other/early" "${inproc[@]}" --sha256 "$early"
judge "bodies that end early" 'runs[0]["resumed"] > 3' "runs[0]['verified'] is True" 'runs[0]["bytes"] == 4000001'
loaded "bodies that end early"

echo "== a file that changes, and nginx that is killed"
# many N: waits until nginx has answered N requests of vnic, process $client.
many() {
  until [ "$(wc -l < "$log")" -ge "$1" ]; do
    kill -0 $client 2> /dev/null || { cat "$work/err" >&2; fail "it ended before nginx answered $1 requests"; }
    sleep 0.05
  done
}
# begin ARGUMENT...: starts vnic load, as process $client.
begin() {
  : > "$log"
  timeout --kill-after=10 150 "$vnic" load "$@" --json > "$work/json" 2> "$work/err" & client=$!
}
changes() { # ARGUMENT...
  local s=0
  cp "$work/host/www/raw" "$work/host/www/changes"
  begin "$url/changes" --format records --record 50000 --skip 3 --batch 20 --prefetch 2 --step 200ms "$@"
  many 4
  head -c "$raw_bytes" /dev/urandom > "$work/host/www/next"
  touch -d '2001-01-01' "$work/host/www/next"
  mv "$work/host/www/next" "$work/host/www/changes"
  wait $client || s=$?
  refused 1 'changed' $s "a file that changes"
}
restarts() { # ARGUMENT...
  local s=0
  begin "$url/slow/raw" --sha256 "$raw_sum" "$@"
  many 6
  kill -KILL $server
  wait $server 2> /dev/null || true
  sleep 1 # for which nobody serves
  nginx
  wait $client || s=$?
  [ $s = 0 ] || { cat "$work/err" >&2; fail "nginx that is killed: status $s"; }
  judge "nginx that is killed" 'runs[0]["resumed"] > 0' 'runs[0]["verified"] is True' \
    "runs[0]['sha256'] == '$raw_sum'" 'runs[0]["host_bytes"] == 0'
  loaded "nginx that is killed and comes back"
}
changes "${inproc[@]}"
restarts "${inproc[@]}"
# nginx is killed, and not started again.
s=0
begin "$url/slow/raw" "${inproc[@]}" --retry 2s
many 6
kill -KILL $server
wait $server 2> /dev/null || true
wait $client || s=$?
refused 1 'refused|reset|EOF' $s "nginx that is gone"
nginx

echo "== nginx, a guest in QEMU"
for nic in virtio gve; do
  whole --nic $nic
  model --nic $nic
  changes --nic $nic
  restarts --nic $nic
done
refuses 1 'it serves none' load "http://localhost:$plain/raw" --nic gve

echo "== nginx in a stock guest"
mapfile -t where < <(tools/nginx --where)
[ -z "${where[1]-}" ] || export LD_LIBRARY_PATH=${where[1]}
conf "$work/guest" 8080 0.0.0.0 off
cp "$work/host/www/raw" "$work/host/www/model.safetensors" "$work/guest/www/"
chmod -R a+rX "$work/guest"
forward=$(port)
"$vnic" boot --forward "$forward:8080" --copy "$work/guest:/site" -- \
  "${where[0]}" -p /site/ -c /site/conf -e stderr > "$work/boot.out" 2> "$work/boot.err" < /dev/null & boot=$!
for ((i = 0; i < 120; i++)); do # the forward is there before nginx is
  ! timeout 20 "$vnic" load "http://localhost:$forward/raw" "${inproc[@]}" --sha256 "$raw_sum" --retry 500ms --json \
    > "$work/json" 2> "$work/err" || break
  kill -0 $boot 2> /dev/null || { cat "$work/boot.err" >&2; fail "nginx in a guest ended"; }
  sleep 0.5
done
judge "nginx in a guest" "${proof[@]}" "runs[0]['sha256'] == '$raw_sum'"
loaded "from a guest"
url=http://localhost:$forward
model "${inproc[@]}"
whole --nic virtio
model --nic gve
s=0
kill -INT $boot; wait $boot || s=$?
[ $s = 1 ] && grep -qx 'vnic: interrupted' "$work/boot.err" ||
  { cat "$work/boot.err" >&2; fail "nginx in a guest: status $s"; }
echo PASS
