#!/usr/bin/env bash
# "tshark reads the pcapng of a lossy run: no malformed packet, retransmissions there, comments
# there; with 8 ports under load capture never blocks traffic (drops are counted)."
#
# tshark reads the captures (this machine's, else Debian's: tools/tshark). A frame between two ports is in the file
# once, with its fate at both ports; with --pcap-ends it is there twice, so the script looks at TCP from one end: at
# the interfaces of one port.
. "$(dirname "$0")/lib.sh"
size=${SIZE:-16M}

# tshark ARGUMENT...: runs tshark, and shows its stderr only if it fails.
tshark() { tools/tshark "$@" 2> "$work/tshark.err" || { cat "$work/tshark.err" >&2; fail "tshark $*"; }; }
# read FILE [PORT]: runs tshark once on a file, or on the interfaces of one port in it. The functions below read its
# output. Payload is random, so tshark must treat it as data: otherwise a heuristic may take it for some protocol.
plain=(-d tcp.port==5201,data -d tcp.port==6201,data)
read_file() {
  local f=$1
  if [ -n "${2:-}" ]; then
    tshark "${plain[@]}" -r "$f" -Y "frame.interface_name matches \"^$2-\"" -w "$work/port.pcapng"
    f=$work/port.pcapng
  fi
  tshark "${plain[@]}" -r "$f" -T fields -E separator=/t -e frame.interface_name -e _ws.malformed \
    -e _ws.expert.severity -e frame.cap_len -e frame.len \
    -e tcp.len -e tcp.dstport -e tcp.analysis.retransmission -e tcp.analysis.ack_lost_segment -e frame.comment \
      > "$work/frames"
}
# frames CONDITION: prints the frames for which the condition, in awk's syntax, is true.
frames() {
  awk -F'\t' '
    { iface = $1; malformed = $2; severity = $3; captured = $4 + 0; whole = $5 + 0; len = $6 + 0; port = $7 }
    { again = $8; unseen = $9; comment = $10 }
    '"$1" "$work/frames"
}
# none CONDITION, some CONDITION: fails if there are such frames, or if there are none.
none() { frames "$1" > "$work/these"; [ ! -s "$work/these" ] || { awk 'NR <= 5' "$work/these" >&2; \
  fail "$(wc -l < "$work/these") frames are: $1"; }; echo "ok   no frame is: $1"; }
some() { frames "$1" > "$work/these"; [ -s "$work/these" ] || fail "no frame is: $1"; \
  echo "ok   $(wc -l < "$work/these") frames are: $1"; }
error=8388608 # PI_ERROR
tshark --version | awk 'NR == 1'

# lossy ARGUMENT...: captures a run over a lossy link, and checks what tshark finds in the capture.
lossy() {
  echo "== vnic run $* --loss 1%"
  "$vnic" run "$@" --loss 1% --seed 3 --size "$size" --json --pcap "$work/run.pcapng" --pcap-ends \
    > "$work/run.json"
  holds "$work/run.json" "$(devmem_proof 0)" 'runs.0.retransmitted_bytes > 0' 'pcap.packets > 100' \
    'pcap.missed == 0'
  read_file "$work/run.pcapng"
  [ "$(cut -f 1 "$work/frames" | sort -u | tr '\n' ' ')" = "A-rx A-tx B-rx B-tx " ] || \
    fail "not the interfaces of two ports"
  none 'malformed != ""'
  none "severity ~ /$error/"
  none 'comment == ""'
  none 'len > 0 && captured > 200' # headers only
  # A lost frame is in the capture at its sender, and not at its receiver. All sent payload was in one GPU, all
  # received payload is in the other.
  some 'iface == "A-tx" && comment ~ /lost on the link/'
  awk 'NR <= 2' "$work/these"
  none 'iface == "B-rx" && comment ~ /lost/'
  some 'iface == "A-tx" && len > 0 && port == 5201 && comment ~ /from GPU 0, frag 0x/'
  none 'iface == "A-tx" && len > 0 && port == 5201 && comment !~ /from GPU 0, frag 0x/'
  some 'iface == "B-rx" && len > 0 && port == 5201 && comment ~ /to GPU 1, frag 0x/'
  none 'iface == "B-rx" && len > 0 && port == 5201 && comment !~ /to GPU 1, frag 0x/'
  # At one end of the connection lost segments come again, and no byte is acknowledged before it was sent.
  read_file "$work/run.pcapng" A
  some 'iface == "A-tx" && again != ""'
  none 'unseen != ""'
}
lossy --guest inproc --mode devmem
lossy --guest inproc --mode devmem --family 6 --mtu 9000 --reorder 1%
for nic in ${NICS-virtio gve}; do lossy --nic "$nic" --mode devmem; done

echo "== each frame once, with both ends: nothing is sent again, and every byte has two places"
for nic in inproc ${NICS-virtio gve}; do
  how=(--nic "$nic"); [ $nic != inproc ] || how=(--guest inproc)
  "$vnic" run "${how[@]}" --mode devmem --size 4M --seed 3 --json --pcap "$work/run.pcapng" > "$work/run.json"
  holds "$work/run.json" "$(devmem_proof 0)" 'pcap.missed == 0'
  read_file "$work/run.pcapng"
  none 'malformed != ""'
  none 'again != "" || unseen != ""'
  none 'len > 0 && port == 5201 && comment !~ /from GPU 0, frag 0x.*; to B.* of payload to GPU 1, frag 0x/'
  some 'len > 0 && port == 5201'
done

echo "== without loss there is nothing of that: the negative control. Payload as far as asked for"
"$vnic" run --guest inproc --mode both --size 4M --seed 3 --json --pcap "$work/run.pcapng" --pcap-payload 65536 \
  > "$work/run.json"
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'pcap.missed == 0'
read_file "$work/run.pcapng" A
none 'malformed != ""'
none 'comment ~ /lost/'
none 'again != ""'
none 'captured != whole'
some 'len > 1000 && comment ~ /GPU 0, frag/'
some 'len > 1000 && comment ~ /host memory/' # mode copy

echo "== on stdout, for a tshark that reads along"
"$vnic" run --guest inproc --mode devmem --size 4M --pcap - 2> "$work/table" | \
  tools/tshark -r - -Y 'tcp.flags.syn == 1' 2> /dev/null > "$work/syn"
grep SYN "$work/syn"
grep '^pcap: -, .* 0 not captured' "$work/table"

"$vnic" run --guest inproc --mode devmem --size 16M --loss 0.1% --pcap - 2> "$work/table" | \
  head -c 1000 > /dev/null || fail "a reader that went away ended the run"
grep 'digest *match' "$work/table"
[ "$(grep -c 'nothing more is captured: .*broken pipe' "$work/table")" = 1 ] || { cat "$work/table" >&2; \
  fail "not told once"; }

echo "== a reader that takes nothing holds nobody up"
mkfifo "$work/fifo"
if "$vnic" run --guest inproc --size 4M --pcap "$work/fifo" 2> "$work/err"; then \
  fail "a FIFO that nobody has open was taken"; fi
grep 'a FIFO that nobody reads' "$work/err"
sleep 600 < "$work/fifo" & reader=$!
exec 9<> "$work/fifo" # until sleep has opened it too
within 120 "$vnic" run --guest inproc --size 256M --mtu 1500 --loss 0.1% --json --pcap "$work/fifo" > "$work/run.json"
exec 9>&-
kill $reader
holds "$work/run.json" "$(devmem_proof 0)" "$(copy_proof 1)" 'pcap.missed > 0' 'pcap.error != ""'
tools/with-tools go test -count=1 -v \
  -run 'TestBlockedWriterHoldsNobodyUp|TestNothingIsMissedWhenThereIsRoom|TestWriteErrorStopsCapture' \
  ./internal/wire/capture \
  | grep '^--- \|^ok\|^FAIL' | tee "$work/load"
[ "$(grep -c '^--- PASS' "$work/load")" = 3 ] || fail "eight ports under load"

echo "== a full disk ends the capture, not the run"
"$vnic" run --guest inproc --size 16M --json --pcap /dev/full > "$work/run.json" 2> "$work/err"
holds "$work/run.json" "$(devmem_proof 0)" 'pcap.packets == 0' 'pcap.missed > 0'
[ "$(grep -c 'nothing more is captured: .*no space left' "$work/err")" = 1 ] || { cat "$work/err" >&2; \
  fail "not told once"; }

echo "== allocations per packet, with a tap and without"
tools/with-tools go test -count=1 -v -run 'Alloc' ./internal/wire{,/capture} ./internal/nic/{virtio,gve} | \
  grep '^--- \|^ok\|^FAIL' | tee "$work/alloc"
! grep -q FAIL "$work/alloc" && grep -q 'TestTapAllocatesNothing' "$work/alloc" || fail "a packet costs allocations"
echo PASS
