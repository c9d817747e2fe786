package control

import (
	"cmp"
	"net/netip"
)

// Split is the header split policy of a receive queue.
type Split struct {
	Queue uint16 // offset 0
	On    bool   // 2: 0 or 1
	_     uint8
	// 4: hds-thresh, in bytes: if On, the NIC does not split frames with less payload; 0: it splits frames without
	// payload, too
	Threshold uint32
}

// FlowRule steers packets of a flow to a receive queue.
type FlowRule struct {
	ID    uint32 // offset 0: chosen by the NIC, from 1
	IPv6  bool   // 4, bit 0: family of the packets, also if the rule has no address
	Proto uint8  // 5: 6 TCP, 17 UDP, 132 SCTP; 50 ESP, 51 AH
	Queue uint16 // 6
	// offsets 8 and 24 (IPv4 in the first four bytes), and bits 1 and 2 at offset 4, which are set if the rule
	// has the address; the zero Addr means any
	Src, Dst netip.Addr
	// offsets 40 and 42, and bits 3 and 4 at offset 4, which are set if the port is not 0: 0 means any. For ESP
	// and AH the ports are the upper and the lower half of the SPI, which is compared as a whole; 0 in both
	// means any.
	SrcPort, DstPort uint16
}

// HasSPI reports whether r is a rule for ESP or AH.
func (r *FlowRule) HasSPI() bool { return r.Proto == protoESP || r.Proto == protoAH }

// SPI returns the security parameters index of a rule for ESP or AH; 0: any.
func (r *FlowRule) SPI() uint32 { return uint32(r.SrcPort)<<16 | uint32(r.DstPort) }

// SetSPI sets the security parameters index of a rule for ESP or AH.
func (r *FlowRule) SetSPI(spi uint32) { r.SrcPort, r.DstPort = uint16(spi>>16), uint16(spi) }

const (
	protoTCP  = 6
	protoUDP  = 17
	protoESP  = 50
	protoAH   = 51
	protoSCTP = 132
)

func (r FlowRule) number() uint32 { return r.ID }

type flowRule struct {
	ID               uint32
	Flags            uint8
	Proto            uint8
	Queue            uint16
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	_                uint32
}

const (
	ruleIPv6 = 1 << iota
	ruleSrc
	ruleDst
	ruleSrcPort
	ruleDstPort
)

func (r FlowRule) append(b []byte) ([]byte, error) {
	w := flowRule{ID: r.ID, Proto: r.Proto, Queue: r.Queue, SrcPort: r.SrcPort, DstPort: r.DstPort}
	w.Flags = bit(r.IPv6, ruleIPv6) | bit(r.Src.IsValid(), ruleSrc) | bit(r.Dst.IsValid(), ruleDst) |
		bit(r.SrcPort != 0, ruleSrcPort) | bit(r.DstPort != 0, ruleDstPort)
	if err := cmp.Or(putAddr(&w.Src, r.Src, r.IPv6), putAddr(&w.Dst, r.Dst, r.IPv6)); err != nil {
		return nil, err
	}
	return encode(b, w)
}

func bit(on bool, flag uint8) uint8 {
	if on {
		return flag
	}
	return 0
}

func (r *FlowRule) decode(data []byte) (int, error) {
	var w flowRule
	n, err := decodeFixed(data, &w)
	*r = FlowRule{ID: w.ID, IPv6: w.Flags&ruleIPv6 != 0, Proto: w.Proto, Queue: w.Queue,
		SrcPort: w.SrcPort, DstPort: w.DstPort}
	if w.Flags&ruleSrc != 0 {
		r.Src = getAddr(w.Src, r.IPv6)
	}
	if w.Flags&ruleDst != 0 {
		r.Dst = getAddr(w.Dst, r.IPv6)
	}
	return n, err
}

// putAddr writes a to b, IPv4 to the first four bytes, and nothing for the zero Addr. It refuses an address with
// a zone, or of another family than v6 selects.
func putAddr(b *[16]byte, a netip.Addr, v6 bool) error {
	if a.IsValid() && (a.Is4() == v6 || a.Zone() != "") {
		return badData("address %v: not of the family (IPv6: %v), or with a zone", a, v6)
	}
	copy(b[:], a.AsSlice())
	return nil
}

func getAddr(b [16]byte, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:]))
}

// Hash types of RSS, as bits (virtio 1.3, 5.1.6.4.3.1: VIRTIO_NET_HASH_TYPE_*).
const (
	HashIPv4  = 1 << 0
	HashTCPv4 = 1 << 1
	HashUDPv4 = 1 << 2
	HashIPv6  = 1 << 3
	HashTCPv6 = 1 << 4
	HashUDPv6 = 1 << 5
)

// MaxRSSTable bounds the entries of RSS's table on the wire.
const MaxRSSTable = 512

// RSS is a port's receive side scaling.
type RSS struct {
	HashTypes uint32   // offset 0
	Key       [40]byte // 8
	Table     []uint16 // 4: number of entries, u16; 48: receive queues; a power of two of them, up to MaxRSSTable
}

type rssHead struct {
	HashTypes uint32
	Entries   uint16
	_         uint16
	Key       [40]byte
}

func checkTable(n int) error {
	if n == 0 || n > MaxRSSTable || n&(n-1) != 0 {
		return badData("RSS table of %d entries: not a power of two up to %d", n, MaxRSSTable)
	}
	return nil
}

func (r RSS) append(b []byte) ([]byte, error) {
	if err := checkTable(len(r.Table)); err != nil {
		return nil, err
	}
	head := rssHead{HashTypes: r.HashTypes, Entries: uint16(len(r.Table)), Key: r.Key}
	return appendElems(b, head, r.Table, MaxRSSTable, "RSS table of %d entries, at most %d")
}

func (r *RSS) decode(data []byte) (int, error) {
	var h rssHead
	n, err := decodeFixed(data, &h)
	if err == nil {
		err = checkTable(int(h.Entries))
	}
	if err != nil {
		return 0, err
	}
	*r = RSS{HashTypes: h.HashTypes, Key: h.Key, Table: make([]uint16, h.Entries)}
	m, err := decodeFixed(data[n:], r.Table)
	return n + m, err
}
