package capture

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// The headers of RoCEv2 (IBA Volume 1, annex A17) continue behind UDP's: a capture of headers includes them.
const (
	rocePort = 4791
	bthLen   = 12 // Base Transport Header (9.2)
)

// roceExt is the length of captured headers behind BTH, by operation code of reliable connections (table 38):
// RETH has 16 bytes, AETH and immediate data 4 each.
var roceExt = [...]int{0x03: 4, 0x05: 4, 0x06: 16, 0x09: 4, 0x0a: 16, 0x0b: 16 + 4, 0x0c: 16, 0x0d: 4, 0x0f: 4, 0x10: 4,
	0x11: 4}

// roceHead returns how many bytes at the start of a packet's payload, which lies in segs, are headers of RoCEv2, by
// its operation code; 0 for other packets, and if BTH is incomplete or cannot be read. b is scratch memory of at least
// bthLen bytes.
func roceHead(w *wire.Worker, p *wire.Packet, segs []dma.Segment, b []byte) int {
	h := &p.Meta.Headers
	if h.Class != splitter.UDP || h.Flow.DstPort != rocePort || p.PayloadLen < bthLen || len(b) < bthLen {
		return 0
	}
	n, _ := w.Copier.Read(b[:bthLen], segs)
	switch {
	case n < bthLen:
		return 0
	case int(b[0]) < len(roceExt):
		return bthLen + roceExt[b[0]]
	}
	return bthLen
}
