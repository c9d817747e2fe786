package gateway

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

func segment(proto byte, src, dst netip.AddrPort, body []byte) []byte {
	if proto == splitter.ProtoTCP {
		seg := header.TCP(make([]byte, 20))
		seg.Encode(&header.TCPFields{SrcPort: src.Port(), DstPort: dst.Port(), DataOffset: 20, Flags: header.TCPFlagSyn,
			WindowSize: 1000})
		sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ether.Address(src.Addr()), ether.Address(dst.Addr()), 20)
		seg.SetChecksum(^seg.CalculateChecksum(sum))
		return seg
	}
	u := append(make([]byte, 8), body...)
	header.UDP(u).Encode(&header.UDPFields{SrcPort: src.Port(), DstPort: dst.Port(), Length: uint16(len(u))})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, ether.Address(src.Addr()), ether.Address(dst.Addr()),
		uint16(len(u)))
	binary.BigEndian.PutUint16(u[6:], ^splitter.Sum(u, sum))
	return u
}

// packet makes a frame to the gateway with an IP packet, IPv4 or IPv6 as dst is; next is the payload's protocol.
func (r *raw) packet(src, dst netip.Addr, next byte, body []byte) []byte {
	if dst.Is4() {
		return r.ip4(gatewayMAC, src, dst, next, body)
	}
	ip := make([]byte, 40)
	header.IPv6(ip).Encode(&header.IPv6Fields{PayloadLength: uint16(len(body)), HopLimit: 64,
		TransportProtocol: tcpip.TransportProtocolNumber(next), SrcAddr: ether.Address(src), DstAddr: ether.Address(dst)})
	return r.eth(gatewayMAC, splitter.EtherTypeIPv6, ip, body)
}

// source is guest 1's address in the family of dst.
func source(dst netip.Addr, port uint16) netip.AddrPort {
	if dst.Is4() {
		return netip.AddrPortFrom(addr4Of(1), port)
	}
	return netip.AddrPortFrom(addr6Of(1), port)
}

// fragments makes two fragments of the IPv4 packet in a frame: its first 8*cut bytes, and its bytes from 8*off on,
// counted after the IP header.
func fragments(frame []byte, cut, off int) [][]byte {
	first, second := slices.Clone(frame[:34+8*cut]), slices.Concat(frame[:34], frame[34+8*off:])
	for i, f := range [][]byte{first, second} {
		ip := header.IPv4(f[14:34])
		ip.SetID(77)
		ip.SetTotalLength(uint16(len(f) - 14))
		ip.SetFlagsFragmentOffset([]uint8{header.IPv4FlagMoreFragments, 0}[i], []uint16{0, uint16(8 * off)}[i])
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	return [][]byte{first, second}
}

func (r *raw) fragments6(src, dst netip.Addr, next byte, body []byte, cut, off int) [][]byte {
	head := func(off int, more byte) []byte {
		h := []byte{next, 0, 0, 0, 0, 0, 0, 77}
		binary.BigEndian.PutUint16(h[2:], uint16(off*8)|uint16(more))
		return h
	}
	return [][]byte{r.packet(src, dst, 44, append(head(0, 1), body[:8*cut]...)),
		r.packet(src, dst, 44, append(head(off, 0), body[8*off:]...))}
}
