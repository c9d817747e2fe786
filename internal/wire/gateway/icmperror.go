package gateway

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

// trouble is an error of a guest's datagram, in ICMP's terms (RFC 792, RFC 4443).
type trouble struct {
	typ, code uint8
	mtu       uint32     // 0: the error is not about the MTU
	from      netip.Addr // the host or router that reported the error; not valid: the gateway
}

// An error quotes as much of a datagram as fits into the shortest packet that each host accepts (RFC 1812,
// 4.3.2.3; RFC 4443, 2.4 c).
const (
	quoted4 = 576 - header.IPv4MinimumSize - icmpHeaderLen
	quoted6 = header.IPv6MinimumMTU - header.IPv6MinimumSize - icmpHeaderLen
)

// icmpHeaderLen is the length in bytes of the header of ICMP errors and echoes, for IPv4 and IPv6.
const icmpHeaderLen = header.ICMPv4MinimumSize

// troubled implements flowReader.
func (f *flow) troubled(s *flowSocket, oob []byte, to netip.AddrPort, b []byte) {
	if t, ok := f.troubleOf(oob); ok {
		d := outgoing{port: s.port, data: b}
		if s.to.to.Port() == 0 {
			d.port = to.Port()
		}
		f.tell(t, &d)
	}
}

// troubleOf reads the extended error in a socket's control messages; false: there is none, or guests do not get it.
func (f *flow) troubleOf(oob []byte) (t trouble, ok bool) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return t, false
	}
	for _, m := range list {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if v4 || v6 {
			return f.parseError(m.Data)
		}
	}
	return t, false
}

// parseError reads a sock_extended_err (linux/errqueue.h): errno 4 bytes, origin 1, type 1, code 1, padding
// 1, info 4, data 4, and the address of the error's source.
func (f *flow) parseError(b []byte) (t trouble, ok bool) {
	if len(b) < 16 {
		return t, false
	}
	t.typ, t.code, t.mtu = b[5], b[6], binary.NativeEndian.Uint32(b[8:])
	switch b[4] {
	case unix.SO_EE_ORIGIN_LOCAL: // the call that sent the datagram returns the same error
	case unix.SO_EE_ORIGIN_ICMP:
		ok = f.key.server.Is4() && (t.typ == uint8(header.ICMPv4DstUnreachable) || t.typ == uint8(header.ICMPv4TimeExceeded))
		if t.typ != uint8(header.ICMPv4DstUnreachable) || t.code != uint8(header.ICMPv4FragmentationNeeded) {
			t.mtu = 0
		}
		if b = b[16:]; len(b) >= unix.SizeofSockaddrInet4 {
			t.from = netip.AddrFrom4([4]byte(b[4:8]))
		}
	case unix.SO_EE_ORIGIN_ICMP6:
		ok = f.key.server.Is6() && t.typ >= uint8(header.ICMPv6DstUnreachable) && t.typ <= uint8(header.ICMPv6TimeExceeded)
		if t.typ != uint8(header.ICMPv6PacketTooBig) {
			t.mtu = 0
		}
		if b = b[16:]; len(b) >= unix.SizeofSockaddrInet6 {
			t.from = netip.AddrFrom16([16]byte(b[8:24]))
		}
	}
	return t, ok
}

func (f *flow) troubleFor(err error, mtu uint32) (t trouble, ok bool) {
	v6 := f.key.server.Is6()
	unreachable := func(code4 header.ICMPv4Code, code6 header.ICMPv6Code) (trouble, bool) {
		if v6 {
			return trouble{typ: uint8(header.ICMPv6DstUnreachable), code: uint8(code6)}, true
		}
		return trouble{typ: uint8(header.ICMPv4DstUnreachable), code: uint8(code4)}, true
	}
	switch {
	case errors.Is(err, unix.EMSGSIZE) && v6:
		return trouble{typ: uint8(header.ICMPv6PacketTooBig), mtu: mtu}, mtu != 0
	case errors.Is(err, unix.EMSGSIZE):
		t, _ = unreachable(header.ICMPv4FragmentationNeeded, 0)
		t.mtu = mtu
		return t, mtu != 0
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		return unreachable(header.ICMPv4NetUnreachable, header.ICMPv6NetworkUnreachable)
	case errors.Is(err, unix.EHOSTUNREACH):
		return unreachable(header.ICMPv4HostUnreachable, header.ICMPv6AddressUnreachable)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return unreachable(header.ICMPv4AdminProhibited, header.ICMPv6Prohibited)
	}
	return t, false
}

// failed tells the guest about an error of datagram d, if ICMP has a message for it (troubleFor). mtu is the path's
// MTU if the datagram is too long for it, else 0.
func (f *flow) failed(err error, mtu int, d *outgoing) {
	if t, ok := f.troubleFor(err, uint32(mtu)); ok {
		f.tell(t, d)
	}
}

// tell sends an ICMP error about datagram d to the guest, if allowsError allows. The source is the server, by the
// address that the guest knows, or the router or host that found the error; the gateway, if t.from is not valid, not
// global, in the gateway's networks or an address of this machine.
func (f *flow) tell(t trouble, d *outgoing) {
	from := t.from.Unmap()
	switch {
	case from == f.host:
		from = f.key.server
	case !from.IsGlobalUnicast() || f.gateway.ours(from) || f.gateway.host.has(from):
		from = f.gateway.ownAddr(f.key.server)
	}
	var udp [header.UDPMinimumSize]byte
	quoted := d.data
	if f.key.proto == splitter.ProtoUDP {
		header.UDP(udp[:]).Encode(&header.UDPFields{SrcPort: f.key.guest.Port(), DstPort: d.port,
			Length: uint16(min(len(d.data)+len(udp), 0xffff))})
		quoted = append(udp[:], quoted...)
	} else if len(quoted) >= header.ICMPv4MinimumSize {
		quoted = append([]byte(nil), quoted...)
		binary.BigEndian.PutUint16(quoted[4:], f.key.guest.Port())
	}
	f.gateway.sendError(f.entry.owner, t, from, f.key, quoted)
}

func (g *Gateway) ownAddr(family netip.Addr) netip.Addr {
	if family.Is4() {
		return g.o.Prefix4.Addr()
	}
	return g.o.Prefix6.Addr()
}

func (g *Gateway) ours(a netip.Addr) bool { return g.o.Prefix4.Contains(a) || g.o.Prefix6.Contains(a) }

// sendError sends an ICMP error to a guest, about its packet to a server, if allowsError allows and from is of
// the packet's IP version. body is the packet behind the IP header.
func (g *Gateway) sendError(to owner, t trouble, from netip.Addr, about flowKey, body []byte) {
	if !from.IsValid() || from.Is4() != about.guest.Addr().Is4() || !g.allowsError(to) {
		return
	}
	r := g.routeTo(about.guest.Addr(), from)
	if r == nil {
		return
	}
	defer r.Release()
	src, dst := ether.Address(about.guest.Addr()), ether.Address(about.server)
	ipLen, quoted, mtu := header.IPv4MinimumSize, quoted4, min(t.mtu, math.MaxUint16)
	if from.Is6() {
		ipLen, quoted, mtu = header.IPv6MinimumSize, quoted6, t.mtu
	}
	body = body[:min(len(body), quoted-ipLen)]
	b := make([]byte, icmpHeaderLen+ipLen, icmpHeaderLen+quoted)
	b[0], b[1] = t.typ, t.code
	binary.BigEndian.PutUint32(b[4:], mtu) // RFC 1191, 4, where the first 16 bits are 0; RFC 4443, 3.2
	if from.Is4() {
		ip := header.IPv4(b[icmpHeaderLen:])
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(ipLen + len(body)), TTL: 1, Protocol: about.proto,
			SrcAddr: src, DstAddr: dst})
		ip.SetChecksum(^ip.CalculateChecksum())
	} else {
		header.IPv6(b[icmpHeaderLen:]).Encode(&header.IPv6Fields{PayloadLength: uint16(len(body)), HopLimit: 1,
			TransportProtocol: tcpip.TransportProtocolNumber(about.proto), SrcAddr: src, DstAddr: dst})
	}
	sendICMP(r, append(b, body...))
}

// sendICMP sends an ICMP message, whose checksum field is 0, to a guest.
func sendICMP(r *stack.Route, b []byte) {
	proto := header.ICMPv4ProtocolNumber
	if r.NetProto() == header.IPv6ProtocolNumber {
		proto = header.ICMPv6ProtocolNumber
		header.ICMPv6(b).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: b,
			Src: r.LocalAddress(), Dst: r.RemoteAddress()}))
	} else {
		header.ICMPv4(b).SetChecksum(^checksumOf(b))
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(r.MaxHeaderLength()) + icmpHeaderLen, Payload: buffer.MakeWithData(b[icmpHeaderLen:])})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = proto
	copy(pkt.TransportHeader().Push(icmpHeaderLen), b)
	_ = r.WritePacket(stack.NetworkHeaderParams{Protocol: proto, TTL: r.DefaultTTL()}, pkt)
}
