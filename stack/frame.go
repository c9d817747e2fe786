package stack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/splitter"
)

const (
	ethLen = header.EthernetMinimumSize
	// maxHeader is the length of the longest headers that netstack makes, but for IPv4 options.
	maxHeader = ethLen + header.IPv6MinimumSize + header.TCPHeaderMaximumSize
)

// txHeader is the header of an outgoing packet, from which the headers of its frames are made.
type txHeader struct {
	b    [maxHeader + header.IPv4MaximumHeaderSize]byte
	n    int // bytes of b in use
	l4   int // offset of the transport header; 0: the packet has none
	ipv6 bool
	// The sum of the pseudo-header without the length, if summed.
	sum    uint16
	summed bool
}

// set copies the headers of pkt. It returns false if they do not fit.
func (h *txHeader) set(pkt *stack.PacketBuffer) bool {
	link, network, transport := pkt.LinkHeader().Slice(), pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()
	if len(link)+len(network)+len(transport) > len(h.b) {
		return false
	}
	h.n = copy(h.b[:], link)
	h.n += copy(h.b[h.n:], network)
	h.l4 = 0
	if len(transport) > 0 {
		h.l4 = h.n
	}
	h.n += copy(h.b[h.n:], transport)
	h.ipv6 = pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber
	h.summed = false
	return true
}

func (h *txHeader) tcp() header.TCP { return header.TCP(h.b[h.l4:h.n]) }

// frame writes the header of a frame with bytes [pos, pos+n) of the packet's payload of total bytes to dst, and sets
// the header, checksum and GSO fields of f. The device completes the TCP checksum.
func (h *txHeader) frame(dst []byte, f *driver.TxFrame, pos, n, total int, mss uint16) {
	dst = dst[:copy(dst, h.b[:h.n])]
	f.Header = dst
	tcp := header.TCP(dst[h.l4:])
	if n != total {
		tcp.SetSequenceNumber(tcp.SequenceNumber() + uint32(pos))
		if pos+n < total {
			tcp.SetFlags(uint8(tcp.Flags() &^ (header.TCPFlagPsh | header.TCPFlagFin)))
		}
	}
	l4len := uint16(len(tcp) + n)
	if h.ipv6 {
		header.IPv6(dst[ethLen:]).SetPayloadLength(uint16(h.l4-ethLen-header.IPv6MinimumSize) + l4len)
	} else if n != total {
		ip := header.IPv4(dst[ethLen:])
		ip.SetTotalLength(uint16(h.l4-ethLen) + l4len)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	tcp.SetChecksum(h.pseudoSum(header.TCPProtocolNumber, l4len))
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(h.l4), header.TCPChecksumOffset
	if mss > 0 && n > int(mss) {
		f.GSOSize, f.GSOType = mss, splitter.GSOTCPv4
		if h.ipv6 {
			f.GSOType = splitter.GSOTCPv6
		}
	}
}

// pseudoSum returns the sum of the pseudo-header for n bytes of transport header and payload.
func (h *txHeader) pseudoSum(proto tcpip.TransportProtocolNumber, n uint16) uint16 {
	if !h.summed {
		h.summed = true
		var ip header.Network = header.IPv4(h.b[ethLen:])
		if h.ipv6 {
			ip = header.IPv6(h.b[ethLen:])
		}
		h.sum = header.PseudoHeaderChecksum(proto, ip.SourceAddress(), ip.DestinationAddress(), 0)
	}
	return checksum.Combine(h.sum, n)
}

// other fills in f, the only frame of a packet without a whole TCP header, but not f.Linear.
func (h *txHeader) other(dst []byte, f *driver.TxFrame, pkt *stack.PacketBuffer, n int) {
	dst = dst[:copy(dst, h.b[:h.n])]
	f.Header = dst
	if pkt.TransportProtocolNumber != header.UDPProtocolNumber || h.l4 == 0 || h.n-h.l4 != header.UDPMinimumSize {
		return
	}
	udp := header.UDP(dst[h.l4:])
	if udp.Checksum() != 0 {
		return
	}
	if ip := header.IPv4(dst[ethLen:]); !h.ipv6 && (ip.More() || ip.FragmentOffset() != 0) {
		return
	}
	udp.SetChecksum(h.pseudoSum(header.UDPProtocolNumber, uint16(len(udp)+n)))
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(h.l4), 6 // RFC 768
}

// flowKey returns the flow key of a packet, as in the packets that the peer sends back.
func (h *txHeader) flowKey() splitter.Flow {
	k := splitter.Flow{Proto: splitter.ProtoTCP, IPv6: h.ipv6}
	tcp := h.b[h.l4:h.n]
	k.DstPort, k.SrcPort = binary.BigEndian.Uint16(tcp[0:]), binary.BigEndian.Uint16(tcp[2:])
	if h.ipv6 {
		copy(k.Dst[:], h.b[ethLen+8:ethLen+24])
		copy(k.Src[:], h.b[ethLen+24:ethLen+40])
	} else {
		copy(k.Dst[:4], h.b[ethLen+12:ethLen+16])
		copy(k.Src[:4], h.b[ethLen+16:ethLen+20])
	}
	return k
}

// dataAt returns bytes [pos, pos+n) of a packet's payload, in place or in scratch. ok is false if the packet
// ends before, or has a placeholder there.
func dataAt(pkt *stack.PacketBuffer, hdrLen, pos, n int, scratch *[]byte) (b []byte, ok bool) {
	if n == 0 {
		return nil, true
	}
	list, skip := pkt.AsViewList()
	skip += hdrLen + pos
	out := (*scratch)[:0]
	for v := list.Front(); v != nil && len(out) < n; v = v.Next() {
		if size := v.Size(); skip >= size {
			skip -= size
			continue
		}
		if isPlaceholder(v) {
			return nil, false
		}
		b := v.AsSlice()[skip:]
		skip = 0
		if len(out) == 0 && len(b) >= n {
			return b[:n], true
		}
		out = append(out, b[:min(len(b), n-len(out))]...)
	}
	*scratch = out
	return out, len(out) == n
}

// wscale returns the window scale option of a SYN (RFC 7323, 2.2), but at most 14 (2.3), or -1 without the option.
func wscale(tcp []byte) int8 {
	if o := tcpOption(tcp, header.TCPOptionWS, header.TCPOptionWSLength); o != nil {
		return int8(min(o[0], 14))
	}
	return -1
}

// tcpOption returns the data of the first option with this kind and size, or nil. size counts the bytes of kind and
// length too.
func tcpOption(tcp []byte, kind, size byte) []byte {
	if len(tcp) < header.TCPMinimumSize {
		return nil
	}
	for o := tcp[header.TCPMinimumSize:]; len(o) > 0; {
		switch o[0] {
		case header.TCPOptionEOL:
			return nil
		case header.TCPOptionNOP:
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return nil
		}
		if o[0] == kind && o[1] == size {
			return o[2:size]
		}
		o = o[o[1]:]
	}
	return nil
}
