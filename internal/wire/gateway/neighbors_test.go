package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func TestNeighbors(t *testing.T) {
	w := newRig(t, nil)
	r := w.raw(1)
	for range 3 { // a wrong answer to these would come before the answer to the next
		r.send(r.arp(1, addr4Of(1), addr4Of(2), wire.MAC{}))
		r.send(r.arp(1, addr4Of(1), netip.MustParseAddr("8.8.8.8"), wire.MAC{}))
	}
	r.send(r.arp(1, addr4Of(1), prefix4.Addr(), wire.MAC{}))
	b := r.await("answer", func(b []byte) bool { return isARP(b, 2) })
	if netip.AddrFrom4([4]byte(b[28:32])) != prefix4.Addr() || wire.MAC(b[22:28]) != gatewayMAC {
		t.Errorf("%x", b)
	}

	advert := func(b []byte) bool { return len(b) >= 78 && b[20] == protoICMPv6 && b[54] == ndNeighborAdvert }
	r.send(r.solicit(addr6Of(2)))
	r.send(r.solicit(netip.MustParseAddr("2001:db8::1")))
	for _, a := range []netip.Addr{prefix6.Addr(), w.g.local6()} {
		r.send(r.solicit(a))
		b := r.await("advertisement", advert)
		if netip.AddrFrom16([16]byte(b[62:78])) != a || wire.MAC(b[6:12]) != gatewayMAC || b[58]&0x80 == 0 {
			t.Errorf("%x", b)
		}
	}
}

func (r *raw) icmp6(to wire.MAC, src, dst netip.Addr, msg []byte) []byte {
	ip := make([]byte, 40)
	header.IPv6(ip).Encode(&header.IPv6Fields{PayloadLength: uint16(len(msg)),
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          255, SrcAddr: ether.Address(src), DstAddr: ether.Address(dst)})
	msg[2], msg[3] = 0, 0
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: header.ICMPv6(msg), Src: ether.Address(src),
		Dst: ether.Address(dst)})
	binary.BigEndian.PutUint16(msg[2:], sum)
	return r.eth(to, splitter.EtherTypeIPv6, ip, msg)
}

func (r *raw) solicit(target netip.Addr) []byte {
	a := target.As16()
	msg := append(append(make([]byte, 8), a[:]...), append([]byte{1, 1}, r.mac[:]...)...)
	msg[0] = ndSolicit
	group := header.SolicitedNodeAddr(tcpip.AddrFrom16(a)).As16()
	return r.icmp6(wire.MAC{0x33, 0x33, group[12], group[13], group[14], group[15]}, addr6Of(1), netip.AddrFrom16(group),
		msg)
}

func (r *raw) solicitRouter(from netip.Addr) []byte {
	return r.icmp6(wire.MAC{0x33, 0x33, 0, 0, 0, 2}, from, netip.MustParseAddr("ff02::2"),
		[]byte{ndRouterSolicit, 0, 0, 0, 0, 0, 0, 0})
}

func (r *raw) routerAdvertisement() []byte {
	r.t.Helper()
	r.send(r.solicitRouter(netip.MustParseAddr("fe80::1")))
	return r.await("router advertisement", func(b []byte) bool {
		return len(b) > 62 && b[20] == protoICMPv6 && b[54] == 134
	})
}

func TestRouterAdvertisements(t *testing.T) {
	b := newRig(t, nil).raw(1).routerAdvertisement()
	src, dst := tcpip.AddrFrom16([16]byte(b[22:38])), tcpip.AddrFrom16([16]byte(b[38:54]))
	msg := header.ICMPv6(b[54:])
	sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: msg, Src: src, Dst: dst})
	testkit.Equal(t, "checksum", msg.Checksum(), sum)
	ra := header.NDPRouterAdvert(msg.MessageBody())
	if ra.RouterLifetime() != 2*time.Hour || !header.IsV6LinkLocalUnicastAddress(src) {
		t.Errorf("%v from %v", ra.RouterLifetime(), src)
	}
	it, err := ra.Options().Iter(true)
	testkit.OK(t, err)
	var prefix header.NDPPrefixInformation
	var dns header.NDPRecursiveDNSServer
	for o, done, err := it.Next(); !done && err == nil; o, done, err = it.Next() {
		switch o := o.(type) {
		case header.NDPPrefixInformation:
			prefix = o
		case header.NDPRecursiveDNSServer:
			dns = o
		}
	}
	if prefix == nil || prefix.Prefix() != ether.Address(prefix6.Masked().Addr()) || !prefix.OnLinkFlag() ||
		!prefix.AutonomousAddressConfigurationFlag() {
		t.Errorf("prefix: %x", prefix)
	}
	if as, err := dns.Addresses(); err != nil || len(as) != 1 || as[0] != ether.Address(prefix6.Addr()) {
		t.Errorf("dns: %v, %v", as, err)
	}
	a := EUI64(prefix6, wire.MAC{0x52, 0x54, 0, 1, 2, 3})
	testkit.Equal(t, "address", a, netip.MustParseAddr("fd76:6e69::5054:ff:fe01:203"))
}

func TestPing(t *testing.T) {
	r := newRig(t, nil).raw(1)
	ping4 := func(dst netip.Addr, seq byte) {
		msg := make([]byte, 64)
		msg[0], msg[7] = 8, seq
		header.ICMPv4(msg).SetChecksum(^splitter.Sum(msg, 0))
		r.send(r.ip4(gatewayMAC, addr4Of(1), dst, 1, msg))
	}
	ping6 := func(dst netip.Addr, seq byte) {
		msg := make([]byte, 64)
		msg[0], msg[7] = 128, seq
		r.send(r.icmp6(gatewayMAC, addr6Of(1), dst, msg))
	}
	ping4(netip.MustParseAddr("8.8.8.8"), 1)
	ping4(prefix4.Addr(), 2)
	ping6(netip.MustParseAddr("2001:db8::1"), 3)
	ping6(prefix6.Addr(), 4)
	got := map[byte]bool{}
	refused4, refused6 := false, false
	r.await("pongs, and refusals", func(b []byte) bool {
		r.answerARP(b)
		switch {
		case b[12] == 8 && b[13] == 0 && b[23] == 1 && b[34] == 0:
			got[b[41]] = true
		case b[20] == protoICMPv6 && b[54] == ndSolicit:
			a := addr6Of(1).As16()
			msg := append(append([]byte{ndNeighborAdvert, 0, 0, 0, 0x60, 0, 0, 0}, a[:]...),
				append([]byte{2, 1}, r.mac[:]...)...)
			r.send(r.icmp6(gatewayMAC, addr6Of(1), netip.AddrFrom16([16]byte(b[22:38])), msg))
		case b[20] == protoICMPv6 && b[54] == 129:
			got[b[61]] = true
		case b[12] == 8 && b[13] == 0 && b[23] == 1 && b[34] == 3:
			refused4 = b[35] == 13 && netip.AddrFrom4([4]byte(b[26:30])) == prefix4.Addr() && b[69] == 1 // it quotes ping 1
		case b[20] == protoICMPv6 && b[54] == 1:
			refused6 = b[55] == 1 && netip.AddrFrom16([16]byte(b[22:38])) == prefix6.Addr() && b[109] == 3
		}
		return got[2] && got[4] && refused4 && refused6
	})
	if got[1] || got[3] {
		t.Error("it answers for others")
	}
}

func TestPingWithoutNAT(t *testing.T) {
	w := newRig(t, func(o *Options) { o.NAT = false })
	r := w.raw(1)
	send := func(kind byte, dst string, seq byte) {
		msg := make([]byte, 64)
		msg[0], msg[7] = kind, seq
		header.ICMPv4(msg).SetChecksum(^splitter.Sum(msg, 0))
		r.send(r.ip4(gatewayMAC, addr4Of(1), netip.MustParseAddr(dst), 1, msg))
	}
	send(3, "8.8.8.8", 1)
	send(11, "8.8.8.8", 2)
	send(8, "224.0.0.1", 3)
	send(8, "127.0.0.1", 4)
	send(8, "255.255.255.255", 5)
	send(8, "0.0.0.0", 6)
	send(8, "8.8.8.8", 7)
	r.await("a refusal", func(b []byte) bool {
		r.answerARP(b)
		if b[12] != 8 || b[13] != 0 || b[23] != 1 {
			return false
		}
		if b[34] != 3 || b[35] != 0 || b[69] != 7 {
			t.Errorf("type %d code %d answers packet %d", b[34], b[35], b[69])
		}
		return b[69] == 7
	})
}
