package splitter_test

import (
	"encoding/hex"
	"fmt"
	"log"
	"net/netip"
	"strings"

	"vnic.dev/vnic/splitter"
)

// superPacket has the headers of a frame that a guest with TSO may send, with both checksums 0. With its 4000 bytes of
// payload the frame has 4054 bytes.
const superPacket = `
	0200 0000 0001 0200 0000 0002 0800
	4500 0fc8 0001 4000 4006 0000 0a00 0001 0a00 0002
	9c40 1451 0000 03e8 0000 0001 5018 ffff 0000 0000`

// A NIC's work on one packet: find the end of the headers, choose a queue, and cut the packet into
// segments that fit the wire. The payload is not touched: its length and its sum are enough.
func Example() {
	hdr, err := hex.DecodeString(strings.Join(strings.Fields(superPacket), ""))
	must(err)
	const payload = 4000
	m := splitter.Meta{GSOType: splitter.GSOTCPv4, GSOSize: 1448}
	h := &m.Headers
	must(splitter.Parse(hdr, uint32(len(hdr)+payload), h))
	fmt.Printf("%v: %d bytes of headers, then %d of payload\n", h.Class, h.HdrLen, h.FrameLen-uint32(h.HdrLen))
	n, ok := h.SplitLen(256)
	fmt.Println("header buffer of 256 bytes:", n, ok)

	// A NIC takes the queue of the rule that matches, or else the queue for the hash; the example prints both.
	rss, err := splitter.NewRSS(splitter.DefaultKey, []uint16{0, 1, 2, 3})
	must(err)
	hash := rss.Hash(&h.Flow)
	fmt.Printf("hash %#08x: queue %d\n", hash, rss.Queue(hash))
	server := splitter.Flow{Dst: h.Flow.Dst, DstPort: 5201}
	const fields = splitter.FieldDst | splitter.FieldDstPort
	rules, err := splitter.NewRules([]splitter.Rule{{ID: 1, Flow: server, Fields: fields, Queue: 7}})
	must(err)
	queue, ok := rules.Lookup(&h.Flow)
	fmt.Printf("rule for port 5201 of %v: queue %d, %v\n", netip.AddrFrom4([4]byte(h.Flow.Dst[:4])), queue, ok)

	// The segments. A guest leaves the checksum partial, with the sum of the pseudo-header in the field: FixPartial
	// writes it for the example.
	m.Csum = splitter.CsumPartial
	m.CsumStart, m.CsumOffset, _ = splitter.CsumPlace(h)
	splitter.FixPartial(h, hdr, payload)
	must(splitter.CheckGSO(hdr, &m, payload))
	var s splitter.Segmenter
	must(s.Init(hdr, &m, payload))
	fmt.Println("segments:", s.Segments())
	for off := uint32(0); off < payload; off += s.MSS() {
		size := min(s.MSS(), payload-off)
		var head [splitter.MaxHeader]byte
		var piece splitter.Meta
		must(s.Piece(head[:], &piece, off, size))
		zeros := uint16(0) // the sum of this piece's payload, which is taken to be zeros
		piece.Complete(head[:h.HdrLen], zeros)
		verdict := splitter.VerifyL4(&piece.Headers, head[:h.HdrLen], size, zeros)
		fmt.Printf("seq %d: %d bytes, PSH %v, checksum good: %v\n", piece.Headers.Seq, size,
			piece.Headers.TCPFlags&splitter.PSH != 0, verdict == splitter.CsumGood)
	}
	// Output:
	// tcp: 54 bytes of headers, then 4000 of payload
	// header buffer of 256 bytes: 54 true
	// hash 0x033cbe4a: queue 2
	// rule for port 5201 of 10.0.0.2: queue 7, true
	// segments: 3
	// seq 1000: 1448 bytes, PSH false, checksum good: true
	// seq 2448: 1448 bytes, PSH false, checksum good: true
	// seq 3896: 1104 bytes, PSH true, checksum good: true
}

// must ends the program if there is an error.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
