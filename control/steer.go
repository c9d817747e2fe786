package control

import (
	"net/netip"
)

// Split is the header split policy of a receive queue.
type Split struct {
	Queue     uint16 // offset 0
	On        bool   // 2: 0 or 1
	Threshold uint32 // 4: hds-thresh: frames with less payload are not split. A bound queue needs 0, which splits all, also those without payload
}

const splitLen = 8 // 3: a byte, zero

func (s *Split) encode(b *[splitLen]byte) {
	*b = [splitLen]byte{}
	le.PutUint16(b[0:], s.Queue)
	b[2] = flag(s.On)
	le.PutUint32(b[4:], s.Threshold)
}

func (s *Split) decode(b *[splitLen]byte) error {
	if b[2] > 1 || b[3] != 0 {
		return badData("split: on %d, reserved %d", b[2], b[3])
	}
	*s = Split{Queue: le.Uint16(b[0:]), On: b[2] == 1, Threshold: le.Uint32(b[4:])}
	return nil
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// FlowRule steers packets of a flow to a receive queue.
type FlowRule struct {
	ID       uint32     // offset 0: chosen by the NIC, from 1
	IPv6     bool       // 4, bit 0: family of the packets, also where both addresses are any
	Proto    uint8      // 5: 6 TCP, 17 UDP
	Queue    uint16     // 6
	Src, Dst netip.Addr // 8, 24 (IPv4 in the first four bytes); 4, bits 1 and 2: as in the received packet; the zero Addr is any
	SrcPort  uint16     // 40; 4, bit 3: 0 is any
	DstPort  uint16     // 42; 4, bit 4: 0 is any
}

const ruleLen = 48 // 44: four bytes, zero

const (
	ruleIPv6 = 1 << iota
	ruleSrc
	ruleDst
	ruleSrcPort
	ruleDstPort
)

func (r *FlowRule) encode(b *[ruleLen]byte) error {
	*b = [ruleLen]byte{}
	le.PutUint32(b[0:], r.ID)
	b[4], b[5] = flag(r.IPv6), r.Proto
	le.PutUint16(b[6:], r.Queue)
	if r.Src.IsValid() {
		b[4] |= ruleSrc
		if err := putAddr((*[16]byte)(b[8:]), r.Src, r.IPv6); err != nil {
			return err
		}
	}
	if r.Dst.IsValid() {
		b[4] |= ruleDst
		if err := putAddr((*[16]byte)(b[24:]), r.Dst, r.IPv6); err != nil {
			return err
		}
	}
	if r.SrcPort != 0 {
		b[4] |= ruleSrcPort
		le.PutUint16(b[40:], r.SrcPort)
	}
	if r.DstPort != 0 {
		b[4] |= ruleDstPort
		le.PutUint16(b[42:], r.DstPort)
	}
	return nil
}

func (r *FlowRule) decode(b *[ruleLen]byte) error {
	f := b[4]
	*r = FlowRule{
		ID: le.Uint32(b[0:]), IPv6: f&ruleIPv6 != 0, Proto: b[5], Queue: le.Uint16(b[6:]),
		SrcPort: le.Uint16(b[40:]), DstPort: le.Uint16(b[42:]),
	}
	if f >= ruleDstPort<<1 || !zero(b[44:]) || (f&ruleSrcPort != 0) != (r.SrcPort != 0) || (f&ruleDstPort != 0) != (r.DstPort != 0) {
		return badData("rule: flags %#x with ports %d and %d", f, r.SrcPort, r.DstPort)
	}
	var err error
	if r.Src, err = getAddr((*[16]byte)(b[8:]), f&ruleSrc != 0, r.IPv6); err != nil {
		return err
	}
	r.Dst, err = getAddr((*[16]byte)(b[24:]), f&ruleDst != 0, r.IPv6)
	return err
}

// putAddr writes an address of the family; IPv4 in the first four bytes.
func putAddr(b *[16]byte, a netip.Addr, v6 bool) error {
	if a.Is4() == v6 || a.Zone() != "" {
		return badData("address %v: not of the family (IPv6: %v), or with a zone", a, v6)
	}
	copy(b[:], a.AsSlice())
	return nil
}

func getAddr(b *[16]byte, set, v6 bool) (netip.Addr, error) {
	switch {
	case !set && zero(b[:]):
		return netip.Addr{}, nil
	case set && v6:
		return netip.AddrFrom16(*b), nil
	case set && zero(b[4:]):
		return netip.AddrFrom4([4]byte(b[:])), nil
	}
	return netip.Addr{}, badData("address %x: bytes that the flags leave out are not zero", b[:])
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

// MaxRSSTable is the most entries that RSS may have on the wire.
const MaxRSSTable = 512

// RSS is a port's receive side scaling.
type RSS struct {
	HashTypes uint32   // offset 0
	Key       [40]byte // 8
	Table     []uint16 // 4: entries, u16; 48: receive queues; a power of two of them, up to MaxRSSTable
}

const rssLen = 48 // 6: two bytes, zero; then the table

func (r *RSS) append(b []byte) ([]byte, error) {
	n := len(r.Table)
	if n == 0 || n > MaxRSSTable || n&(n-1) != 0 {
		return nil, badData("RSS table of %d entries: not a power of two up to %d", n, MaxRSSTable)
	}
	var head [rssLen]byte
	le.PutUint32(head[0:], r.HashTypes)
	le.PutUint16(head[4:], uint16(n))
	copy(head[8:], r.Key[:])
	b = append(b, head[:]...)
	for _, q := range r.Table {
		b = le.AppendUint16(b, q)
	}
	return b, nil
}

func (r *RSS) decode(b []byte) error {
	if len(b) < rssLen {
		return badData("RSS of %d bytes, not %d and a table", len(b), rssLen)
	}
	n := int(le.Uint16(b[4:]))
	if n == 0 || n > MaxRSSTable || n&(n-1) != 0 || len(b) != rssLen+2*n || !zero(b[6:8]) {
		return badData("RSS table of %d entries in %d bytes: not a power of two up to %d, or another length", n, len(b)-rssLen, MaxRSSTable)
	}
	*r = RSS{HashTypes: le.Uint32(b[0:]), Key: [40]byte(b[8:]), Table: make([]uint16, n)}
	for i := range r.Table {
		r.Table[i] = le.Uint16(b[rssLen+2*i:])
	}
	return nil
}
