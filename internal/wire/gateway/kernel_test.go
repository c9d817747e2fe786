package gateway

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// worldOnLo adds these addresses to lo; for a guest they are outside the gateway's networks.
var (
	world4 = netip.MustParseAddr("192.0.2.7")
	world6 = netip.MustParseAddr("2001:db8::7")
)

func worldOnLo(t *testing.T, mtu int) {
	t.Helper()
	lo := testkit.Must(netlink.LinkByName("lo"))(t)
	testkit.OK(t, errors.Join(netlink.LinkSetMTU(lo, mtu), netlink.LinkSetUp(lo)))
	for _, a := range []string{world4.String() + "/32", world6.String() + "/128"} {
		addr := testkit.Must(netlink.ParseAddr(a))(t)
		addr.Flags = 2 // IFA_F_NODAD: no duplicate address detection
		testkit.OK(t, netlink.AddrAdd(lo, addr))
	}
}

func icmpOf(b []byte) (msg []byte, from netip.Addr) {
	switch {
	case len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeIPv4 && b[23] == protoICMP:
		return b[34:], netip.AddrFrom4([4]byte(b[26:30]))
	case len(b) >= 62 && binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeIPv6 && b[20] == protoICMPv6:
		return b[54:], netip.AddrFrom16([16]byte(b[22:38]))
	}
	return nil, from
}

func (r *raw) awaitICMP(what string, typ, code byte) (msg []byte, from netip.Addr) {
	r.t.Helper()
	r.await(what, func(b []byte) bool {
		r.answerARP(b)
		r.answerND(b)
		msg, from = icmpOf(b)
		return msg != nil && msg[0] == typ && msg[1] == code
	})
	return msg, from
}

// pingGroups allows this process ping sockets: a new network namespace allows them to no group.
func pingGroups(t *testing.T) {
	t.Helper()
	testkit.OK(t, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0))
}

func TestPingsBySocketsOfTheKernel(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	worldOnLo(t, 65536)
	const prohibited4, prohibited6 = byte(header.ICMPv4AdminProhibited), byte(header.ICMPv6Prohibited)
	for _, c := range []struct {
		name         string
		allow        func(*testing.T)
		from4, from6 netip.Addr
		type4, code4 byte
		type6, code6 byte
	}{
		{"no group", func(*testing.T) {}, prefix4.Addr(), prefix6.Addr(), byte(header.ICMPv4DstUnreachable), prohibited4,
			byte(header.ICMPv6DstUnreachable), prohibited6},
		{"a group", pingGroups, world4, world6, byte(header.ICMPv4EchoReply), 0, byte(header.ICMPv6EchoReply), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.allow(t)
			r := newRig(t, nil).raw(1)
			r.meet()
			data := noise(56, 1)
			r.mustSend(r.ping(addr4Of(1), world4, 7, 1, 30, data))
			_, from := r.awaitICMP("answer of IPv4", c.type4, c.code4)
			testkit.Equal(t, "IPv4: who answers", from, c.from4)
			r.mustSend(r.ping(addr6Of(1), world6, 7, 1, 30, data))
			_, from = r.awaitICMP("answer of IPv6", c.type6, c.code6)
			testkit.Equal(t, "IPv6: who answers", from, c.from6)
		})
	}
}

func TestPathMTUOfTheKernel(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	const mtu = 1280
	worldOnLo(t, mtu)
	pingGroups(t)
	for _, c := range []struct {
		name      string
		src, dst  netip.Addr
		headers   int // bytes of the headers of IP and of UDP or echo
		typ, code byte
		reply     byte
	}{
		{"IPv4", addr4Of(1), world4, 28, byte(header.ICMPv4DstUnreachable), byte(header.ICMPv4FragmentationNeeded),
			byte(header.ICMPv4EchoReply)},
		{"IPv6", addr6Of(1), world6, 48, byte(header.ICMPv6PacketTooBig), 0, byte(header.ICMPv6EchoReply)},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := testkit.Must(net.ListenUDP("udp", &net.UDPAddr{IP: c.dst.AsSlice()}))(t)
			defer server.Close()
			to := netip.AddrPortFrom(c.dst, portOf(server))
			w := newRig(t, nil)
			r := w.raw(1)
			r.meet()
			for name, frame := range map[string]func(n int) []byte{
				"datagram": func(n int) []byte {
					from := netip.AddrPortFrom(c.src, 2000)
					return r.packet(c.src, c.dst, splitter.ProtoUDP, segment(splitter.ProtoUDP, from, to, noise(n-c.headers, 1)))
				},
				"ping": func(n int) []byte { return r.ping(c.src, c.dst, 7, 1, 30, noise(n-c.headers, 1)) },
			} {
				r.mustSend(df(frame(mtu + 1)))
				msg, from := r.awaitICMP(name+" too long", c.typ, c.code)
				testkit.Equal(t, name+": told by", from, w.g.ownAddr(c.dst))
				got := binary.BigEndian.Uint32(msg[4:])
				testkit.Equal(t, name+": MTU", got, mtu)
				r.mustSend(df(frame(mtu)))
				if name == "ping" {
					r.awaitICMP("echo reply", c.reply, 0)
				} else {
					testkit.Equal(t, "bytes that arrive", len(readFrom(t, server)), mtu-c.headers)
				}
			}
			if c.dst.Is4() {
				r.mustSend(r.udp4(gatewayMAC, netip.AddrPortFrom(c.src, 2000), to, noise(1400, 1)))
				testkit.Equal(t, "bytes of one that is cut", len(readFrom(t, server)), 1400)
			}
		})
	}
}

func df(frame []byte) []byte {
	if binary.BigEndian.Uint16(frame[12:]) == splitter.EtherTypeIPv4 {
		ip := header.IPv4(frame[14:34])
		ip.SetFlagsFragmentOffset(header.IPv4FlagDontFragment, 0)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	return frame
}
