package wire

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// unchecked marks, within Link.forward, a packet that admit lets pass, but whose source addresses checkSource still has
// to check.
const unchecked = NumDropReasons + 1

func (l *Link) checked() bool { return l.who != nil && !l.who.Router }

// passes reports whether the parsed headers suffice to accept a packet's source addresses: the MAC is in d.allowed, and
// the IP address, if any, is in d.allowed or unspecified. If it returns false, checkSource has to decide. It takes no
// lock.
func (d *identity) passes(p *Packet) bool {
	allowed, h := d.allowed.Load(), &p.Meta.Headers
	if !allowed.hasMAC(p.Src) {
		return false
	}
	switch h.Class {
	case splitter.TCP, splitter.UDP:
	case splitter.NotIP:
		return h.EtherType != splitter.EtherTypeARP && !tagged(h)
	case splitter.OtherIP:
		if h.Proto == protoICMPv6 || len(p.Header) < int(h.HdrLen) {
			return false
		}
	case splitter.Fragment:
		if h.IPv6 || len(p.Header) < int(h.HdrLen) {
			return false
		}
	default:
		return false
	}
	s := flowSource(h)
	return s.unspecified() || allowed.has(s)
}

// sameSource reports whether two packets are TCP or UDP and have the same source addresses.
func sameSource(p, before *Packet) bool {
	h, b := &p.Meta.Headers, &before.Meta.Headers
	return (h.Class == splitter.TCP || h.Class == splitter.UDP) && (b.Class == splitter.TCP || b.Class == splitter.UDP) &&
		h.IPv6 == b.IPv6 && h.Flow.Src == b.Flow.Src && p.Src == before.Src
}

func flowSource(h *splitter.Headers) source {
	s := source{b: h.Flow.Src}
	if h.IPv6 {
		s.kind = kindIPv6
	}
	return s
}

// tagged reports whether the frame has more VLAN tags than splitter parses.
func tagged(h *splitter.Headers) bool {
	return h.EtherType == splitter.EtherTypeVLAN || h.EtherType == splitter.EtherTypeQinQ
}

const (
	arpLen      = 28 // RFC 826, for IPv4 on Ethernet
	ipv4Len     = 20 // RFC 791
	ipv6Len     = 40 // RFC 8200
	protoICMPv6 = 58

	ndRouterSolicit   = 133 // RFC 4861, 4.1
	ndRouterAdvert    = 134 // 4.2
	ndNeighborSolicit = 135 // 4.3
	ndNeighborAdvert  = 136 // 4.4
	ndRedirect        = 137 // 4.5

	ndSourceLink = 1 // 4.6.1: options with a MAC
	ndTargetLink = 2
)

// checkSource returns why the port may not send a packet, or DropNone. It also returns p, or, if it had to read
// payload, a copy of p with these bytes in the Header, because the sender may rewrite the payload after the check.
func (l *Link) checkSource(w *Worker, p *Packet) (*Packet, DropReason) {
	d, h := l.who, &p.Meta.Headers
	if r := d.from(p.Src.source(), p.Src); r != DropNone {
		return p, r
	}
	if tagged(h) || h.Class == splitter.Malformed && h.EtherType == 0 {
		return p, DropBadFrame // a receiver may parse further than splitter, and find other addresses
	}
	l3 := int(h.L3Off)
	q, r := w.pulled(p, checkedLen(h))
	if r != DropNone {
		return q, r
	}
	b := q.Header
	switch {
	case h.Class == splitter.NotIP && h.EtherType == splitter.EtherTypeARP:
		return q, d.arp(b[min(l3, len(b)):], p.Src)
	case h.Class == splitter.NotIP:
		return q, DropNone
	case h.Class == splitter.Malformed:
		return q, d.malformed(h, b, p.Src)
	}
	if r := d.from(flowSource(h), p.Src); r != DropNone {
		return q, r
	}
	switch {
	case h.IPv6 && h.Class == splitter.OtherIP && h.Proto == protoICMPv6:
		b = b[min(int(h.L4Off), len(b)):]
		return q, d.neighbor(b, flowSource(h).unspecified(), q.Len() > uint32(len(q.Header)), p.Src)
	case h.IPv6 && h.Class == splitter.Fragment:
		return q, fragmented(h, b)
	}
	return q, DropNone
}

func checkedLen(h *splitter.Headers) uint32 {
	switch {
	case h.Class == splitter.TCP || h.Class == splitter.UDP:
		return 0
	case h.EtherType == splitter.EtherTypeARP:
		return uint32(h.L3Off) + arpLen
	case h.Class == splitter.Malformed:
		return uint32(h.L3Off) + ipv6Len
	case h.IPv6 && (h.Class == splitter.Fragment || h.Proto == protoICMPv6):
		return splitter.MaxHeader
	}
	return uint32(h.HdrLen)
}

// pulled returns p, or the worker's copy of p, with at least n bytes in its Header (or splitter.MaxHeader bytes, or the
// whole frame, if these are fewer); or the reason to drop p.
func (w *Worker) pulled(p *Packet, n uint32) (*Packet, DropReason) {
	n = min(n, p.Len(), splitter.MaxHeader)
	have := uint32(len(p.Header))
	if have >= n {
		return p, DropNone
	}
	x := &w.whole
	if p != &x.Packet {
		from := cursor{segs: p.Payload}
		if !x.describe(p, &from, p.PayloadLen) {
			return p, DropBadFrame
		}
	}
	if k, err := w.Copier.Read(x.hdr[have:n], x.Payload); err != nil || uint32(k) != n-have {
		return p, DropFault
	}
	rest := cursor{segs: x.Payload}
	rest.skip(n - have)
	w.csumSegs, _ = rest.take(dma.Reuse(w.csumSegs), x.PayloadLen-(n-have))
	x.Payload, w.csumSegs = w.csumSegs, x.Payload
	x.Header, x.PayloadLen = x.hdr[:n], x.PayloadLen-(n-have)
	return &x.Packet, DropNone
}

// from returns why the port may not send from an address, or DropNone. It may bind the address to the port (allow). mac
// is Refusal.MAC.
func (d *identity) from(s source, mac MAC) DropReason {
	if s.kind != kindMAC && s.unspecified() || d.allowed.Load().has(s) {
		return DropNone
	}
	return d.allow(s, false, mac)
}

func (d *identity) linkAddr(b []byte) DropReason {
	m := MAC(b[:6])
	return d.from(m.source(), m)
}

// arp checks the sender addresses in an ARP frame (RFC 826); in a probe (RFC 5227), which has no sender IP address, the
// target's in place of it.
func (d *identity) arp(b []byte, mac MAC) DropReason {
	if len(b) < arpLen || binary.BigEndian.Uint16(b[2:]) != splitter.EtherTypeIPv4 || b[4] != 6 || b[5] != 4 {
		return DropBadFrame
	}
	if r := d.linkAddr(b[8:]); r != DropNone {
		return r
	}
	from, to := source4(b[14:18]), source4(b[24:28])
	if !from.unspecified() {
		return d.from(from, mac)
	}
	if to.unicast() {
		return d.allow(to, true, mac)
	}
	return DropNone
}

// neighbor checks an ICMPv6 message of neighbor discovery (RFC 4861): the target of a neighbor advertisement, a
// redirect or a probe, and the MACs in the options. It accepts other messages. unspecified: the IPv6 source is ::.
// cut: b is only the start of the message; then neighbor checks the options in b of router advertisements and
// redirects, and refuses other neighbor discovery messages.
func (d *identity) neighbor(b []byte, unspecified, cut bool, mac MAC) DropReason {
	if len(b) < 1 {
		return DropNone
	}
	options := 8
	switch b[0] {
	case ndRouterSolicit:
	case ndRouterAdvert:
		options = 16
	case ndNeighborSolicit, ndNeighborAdvert:
		options = 24
	case ndRedirect:
		options = 40
	default:
		return DropNone
	}
	if len(b) < options || cut && b[0] != ndRouterAdvert && b[0] != ndRedirect {
		return DropBadFrame
	}
	r := DropNone
	switch target := source6(b[8:min(24, len(b))]); {
	case b[0] == ndNeighborSolicit && unspecified:
		r = d.allow(target, true, mac)
	case b[0] == ndNeighborAdvert, b[0] == ndRedirect:
		r = d.from(target, mac)
	}
	for b = b[options:]; r == DropNone && len(b) >= 8 && b[1] != 0; b = b[min(len(b), int(b[1])*8):] {
		if b[0] == ndSourceLink || b[0] == ndTargetLink {
			r = d.linkAddr(b[2:])
		}
	}
	return r
}

// malformed checks the IP source address of a frame whose headers are inconsistent or too long, because a
// receiver may be less strict than splitter. It refuses a frame that is not IP or lacks a part of the first IP header,
// and IPv6 with an extension header or ICMPv6.
func (d *identity) malformed(h *splitter.Headers, b []byte, mac MAC) DropReason {
	ip := b[min(int(h.L3Off), len(b)):]
	switch {
	case h.EtherType == splitter.EtherTypeIPv4 && len(ip) >= ipv4Len:
		return d.from(source4(ip[12:16]), mac)
	case h.EtherType == splitter.EtherTypeIPv6 && len(ip) >= ipv6Len && !extension(ip[6]) && ip[6] != protoICMPv6:
		return d.from(source6(ip[8:24]), mac)
	}
	return DropBadFrame
}

// fragmented refuses the first fragment of a neighbor discovery message, which is forbidden (RFC 6980), and a
// first fragment whose extension headers, or whose ICMPv6 type, are not whole in b, the start of the frame (RFC 7112).
// It accepts other IPv6 fragments.
func fragmented(h *splitter.Headers, b []byte) DropReason {
	off := int(h.L4Off)
	if off < 8 || off > len(b) {
		return DropBadFrame
	}
	if binary.BigEndian.Uint16(b[off-6:])&^7 != 0 {
		return DropNone
	}
	next := b[off-8]
	for extension(next) {
		if len(b) < off+8 {
			return DropBadFrame
		}
		n := (int(b[off+1]) + 1) * 8
		switch next {
		case extFragment:
			n = 8
		case extAH:
			n = (int(b[off+1]) + 2) * 4
		}
		next, off = b[off], off+n
	}
	if next != protoICMPv6 {
		return DropNone
	}
	if len(b) <= off || b[off] >= ndRouterSolicit && b[off] <= ndRedirect {
		return DropBadFrame
	}
	return DropNone
}

// Extension headers of IPv6 (RFC 8200, 4.1; RFC 4302), except ESP.
const (
	extHopByHop = 0
	extRouting  = 43
	extFragment = 44
	extAH       = 51
	extDestOpts = 60
)

func extension(next byte) bool {
	switch next {
	case extHopByHop, extRouting, extFragment, extAH, extDestOpts:
		return true
	}
	return false
}
