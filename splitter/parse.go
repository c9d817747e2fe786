package splitter

import (
	"encoding/binary"
	"errors"
)

// maxVLANs is the most tags that Parse reads (802.1ad: a service and a customer tag).
const maxVLANs = 2

// Numbers of IPv6 extension headers (RFC 8200, 4.1; RFC 4302).
const (
	extHopByHop = 0
	extRouting  = 43
	extFragment = 44
	extAH       = ProtoAH
	extDestOpts = 60
)

var errMalformed = errors.New("malformed")

// Parse reads the headers of a frame of frameLen bytes; b is the start of the frame. It always fills in h.
// ErrShort means that b is too short to decide, and makes h.Class Malformed; it does not occur if b is the whole frame
// or has at least MaxHeader bytes. A frame that is wrong in itself is no error: its Class is Malformed.
func Parse(b []byte, frameLen uint32, h *Headers) error {
	*h = Headers{FrameLen: frameLen}
	p := parser{b: b, end: frameLen}
	if uint64(len(b)) > uint64(frameLen) {
		p.b = b[:frameLen]
	}
	if err := p.link(h); err != nil {
		et := h.EtherType
		*h = Headers{Class: Malformed, FrameLen: frameLen, EtherType: et, L3Off: h.L3Off, VLANs: h.VLANs, VLAN: h.VLAN}
		if err == ErrShort {
			return ErrShort
		}
	}
	return nil
}

// parser reads bytes of b only after its method need has checked that they are in b.
type parser struct {
	b   []byte // no longer than the frame
	end uint32 // end of the frame; once the IP header is read, end of the IP datagram
}

// need returns nil if the frame's first n bytes are in b, ErrShort if only b is too short, and errMalformed if end or
// MaxHeader is less than n.
func (p *parser) need(n uint32) error {
	if n > p.end || n > MaxHeader {
		return errMalformed
	}
	if n > uint32(len(p.b)) {
		return ErrShort
	}
	return nil
}

func (p *parser) link(h *Headers) error {
	if err := p.need(EthLen); err != nil {
		return err
	}
	off := uint32(EthLen)
	et := binary.BigEndian.Uint16(p.b[12:14])
	for (et == EtherTypeVLAN || et == EtherTypeQinQ) && h.VLANs < maxVLANs {
		if err := p.need(off + 4); err != nil {
			return err
		}
		if h.VLANs == 0 {
			h.VLAN = binary.BigEndian.Uint16(p.b[off : off+2])
		}
		et = binary.BigEndian.Uint16(p.b[off+2 : off+4])
		h.VLANs++
		off += 4
	}
	h.EtherType, h.L3Off = et, uint16(off)
	switch et {
	case EtherTypeIPv4:
		return p.ipv4(h, off)
	case EtherTypeIPv6:
		return p.ipv6(h, off)
	}
	h.Class, h.HdrLen = NotIP, uint16(off)
	return nil
}

// ipv4 reads an IPv4 header (RFC 791, 3.1) at offset l3, and what follows it unless the packet is a fragment.
func (p *parser) ipv4(h *Headers, l3 uint32) error {
	if err := p.need(l3 + 20); err != nil {
		return err
	}
	ip := p.b[l3 : l3+20]
	ihl, total := uint32(ip[0]&15)*4, uint32(binary.BigEndian.Uint16(ip[2:4]))
	if ip[0]>>4 != 4 || ihl < 20 || total < ihl || total > p.end-l3 {
		return errMalformed
	}
	p.end = l3 + total
	off := l3 + ihl
	if err := p.need(off); err != nil {
		return err
	}
	h.FrameLen = p.end
	h.Proto = ip[9]
	h.Flow.Proto = ip[9]
	copy(h.Flow.Src[:4], ip[12:16])
	copy(h.Flow.Dst[:4], ip[16:20])
	if binary.BigEndian.Uint16(ip[6:8])&0x3fff != 0 { // more fragments, or an offset
		h.Class, h.L4Off, h.HdrLen = Fragment, uint16(off), uint16(off)
		return nil
	}
	return p.transport(h, off)
}

// ipv6 reads an IPv6 header and its extension headers (RFC 8200, 3 and 4) at offset l3, and what follows them. It stops
// after a fragment header, and after a routing header with segments left.
func (p *parser) ipv6(h *Headers, l3 uint32) error {
	if err := p.need(l3 + 40); err != nil {
		return err
	}
	ip := p.b[l3 : l3+40]
	total := 40 + uint32(binary.BigEndian.Uint16(ip[4:6]))
	if ip[0]>>4 != 6 || total > p.end-l3 {
		return errMalformed
	}
	p.end = l3 + total
	h.FrameLen = p.end
	h.IPv6, h.Flow.IPv6 = true, true
	copy(h.Flow.Src[:], ip[8:24])
	copy(h.Flow.Dst[:], ip[24:40])
	next, off := ip[6], l3+40
	for { // ends: off grows by at least 8, and need bounds it
		var n uint32
		switch next {
		case extHopByHop, extDestOpts, extRouting, extAH, extFragment:
			if err := p.need(off + 8); err != nil {
				return err
			}
			n = (uint32(p.b[off+1]) + 1) * 8
		default:
			h.Proto, h.Flow.Proto = next, next
			return p.transport(h, off)
		}
		switch next {
		case extFragment: // also atomic fragments (RFC 6946)
			next = p.b[off]
			off += 8
			h.Class, h.Proto, h.Flow.Proto, h.L4Off, h.HdrLen = Fragment, next, next, uint16(off), uint16(off)
			return nil
		case extAH:
			n = (uint32(p.b[off+1]) + 2) * 4
		}
		if err := p.need(off + n); err != nil {
			return err
		}
		if next == extAH && !h.AH {
			h.AH, h.AHSPI = true, binary.BigEndian.Uint32(p.b[off+4:off+8])
		}
		if next == extRouting && p.b[off+3] != 0 { // segments left: the checksum covers another address than the header's
			off += n
			h.Class, h.Proto, h.Flow.Proto, h.L4Off, h.HdrLen = OtherIP, next, next, uint16(off), uint16(off)
			return nil
		}
		next = p.b[off]
		off += n
	}
}

func (p *parser) transport(h *Headers, off uint32) error {
	h.L4Off = uint16(off)
	switch h.Proto {
	case ProtoTCP: // RFC 9293, 3.1
		if err := p.need(off + 20); err != nil {
			return err
		}
		tcp := p.b[off : off+20]
		n := uint32(tcp[12]>>4) * 4
		if n < 20 {
			return errMalformed
		}
		if err := p.need(off + n); err != nil {
			return err
		}
		h.Class, h.HdrLen, h.TCPFlags = TCP, uint16(off+n), tcp[13]
		h.Flow.SrcPort, h.Flow.DstPort = binary.BigEndian.Uint16(tcp[0:2]), binary.BigEndian.Uint16(tcp[2:4])
		h.Seq, h.Ack = binary.BigEndian.Uint32(tcp[4:8]), binary.BigEndian.Uint32(tcp[8:12])
	case ProtoUDP: // RFC 768
		if err := p.need(off + 8); err != nil {
			return err
		}
		udp := p.b[off : off+8]
		if n := uint32(binary.BigEndian.Uint16(udp[4:6])); n < 8 || n > p.end-off {
			return errMalformed
		}
		h.Class, h.HdrLen = UDP, uint16(off+8)
		h.Flow.SrcPort, h.Flow.DstPort = binary.BigEndian.Uint16(udp[0:2]), binary.BigEndian.Uint16(udp[2:4])
	default:
		h.Class, h.HdrLen = OtherIP, uint16(off)
		return p.selectors(h, off)
	}
	return nil
}

// selectors reads the fields by which rules distinguish flows of other protocols: the ports of SCTP (RFC
// 9260, 3.1), the SPI of ESP and AH (RFC 4303, 2.1; RFC 4302, 2). Fields beyond the frame or
// MaxHeader stay 0.
func (p *parser) selectors(h *Headers, off uint32) error {
	n := selectorsLen(h.Proto)
	if n == 0 {
		return nil
	}
	switch p.need(off + n) {
	case nil:
		b := p.b[off+n-4 : off+n]
		h.Flow.SrcPort, h.Flow.DstPort = binary.BigEndian.Uint16(b[0:2]), binary.BigEndian.Uint16(b[2:4])
	case ErrShort:
		return ErrShort
	}
	return nil
}

func selectorsLen(proto uint8) uint32 {
	switch proto {
	case ProtoSCTP, ProtoESP:
		return 4
	case ProtoAH:
		return 8
	}
	return 0
}
