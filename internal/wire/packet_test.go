package wire

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// By IEEE 802.3 a frame has 24 bytes of overhead, 4 for its checksum, and at least 64 bytes with the checksum.
func TestWireLen(t *testing.T) {
	for _, c := range []struct {
		name           string
		header, n, mss int
		want           uint32
	}{
		{"the longest of an MTU of 1500", 54, 1460, 0, 1538},
		{"the shortest", 14, 46, 0, 84},
		{"padded", 54, 0, 0, 84},
		{"padded by a byte", 54, 5, 0, 84},
		{"not padded", 54, 6, 0, 84},
		{"a byte more", 54, 7, 0, 85},
		{"of two full segments", 54, 2920, 1460, 2 * 1538},
		{"with a short last one", 54, 1461, 1460, 1461 + 2*(54+24)},
		{"of the longest that needs no cut", 54, 1460, 1460, 1538},
	} {
		p := Packet{Header: make([]byte, c.header), PayloadLen: uint32(c.n)}
		if c.mss > 0 {
			p.Meta.GSOType, p.Meta.GSOSize = splitter.GSOTCPv4, uint16(c.mss)
		}
		testkit.Equal(t, c.name, p.WireLen(), c.want)
	}
}
