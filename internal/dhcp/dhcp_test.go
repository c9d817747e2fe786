package dhcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}

type client struct {
	pc     net.PacketConn
	server *net.UDPAddr
	wait   time.Duration
}

func lease(ctx context.Context, c *client) (Lease, error) {
	return ask(ctx, c.pc, mac, nclient4.WithServerAddr(c.server), nclient4.WithTimeout(c.wait))
}

func pair(t *testing.T) (*client, net.PacketConn) {
	t.Helper()
	var ends [2]net.PacketConn
	for i := range ends {
		pc := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
		t.Cleanup(func() { _ = pc.Close() })
		ends[i] = pc
	}
	return &client{pc: ends[0], server: ends[1].LocalAddr().(*net.UDPAddr), wait: 10 * time.Second}, ends[1]
}

func serve(t *testing.T, pc net.PacketConn, n int,
	answers func(i int, m *dhcpv4.DHCPv4) [][]byte) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for i := range n {
			got, from, err := pc.ReadFrom(b)
			if err != nil {
				t.Error(err)
				return
			}
			m, err := dhcpv4.FromBytes(b[:got])
			if err != nil {
				t.Error(err)
				return
			}
			for _, a := range answers(i, m) {
				testkit.NoError(t, testkit.Err(pc.WriteTo(a, from)))
			}
		}
	}()
	return done
}

func reply(t *testing.T, m *dhcpv4.DHCPv4, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) []byte {
	r, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithRouter(net.IPv4(10, 1, 2, 254)), dhcpv4.WithDNS(net.IPv4(10, 1, 2, 254)),
		dhcpv4.WithOption(dhcpv4.OptHostName("port2")),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 1, 2, 254)))}, more...)...)
	if err != nil {
		t.Error(err)
		return nil
	}
	return r.ToBytes()
}

func answer(t *testing.T, i int, m *dhcpv4.DHCPv4) []byte {
	if i == 0 {
		return reply(t, m, dhcpv4.MessageTypeOffer)
	}
	return reply(t, m, dhcpv4.MessageTypeAck)
}

// Answers to other clients, malformed answers, and answers of a server whose offer was not accepted are ignored.
func TestLeaseIsTaken(t *testing.T) {
	c, pc := pair(t)
	done := serve(t, pc, 2, func(i int, m *dhcpv4.DHCPv4) [][]byte {
		other := *m
		other.TransactionID[0] ^= 1
		stranger := *m
		stranger.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 2}
		not := dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 4))
		list := [][]byte{{1, 2, 3}, m.ToBytes(), reply(t, m, 0, not)}
		for _, k := range []dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak} {
			list = append(list, reply(t, &other, k, not), reply(t, &stranger, k, not),
				reply(t, m, k, not, func(r *dhcpv4.DHCPv4) { r.OpCode = dhcpv4.OpcodeBootRequest }))
			if i == 1 { // of a server whose offer was not accepted
				list = append(list, reply(t, m, k, not, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 1, 2, 253)))))
			}
		}
		return append(list, answer(t, i, m))
	})
	l, err := lease(t.Context(), c)
	<-done
	gw := []netip.Addr{netip.MustParseAddr("10.1.2.254")}
	if err != nil || l.Addr != netip.MustParsePrefix("10.1.2.3/24") || !slices.Equal(l.Routers, gw) ||
		!slices.Equal(l.DNS, gw) || l.Name != "port2" {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestAsksAgainAndGivesUp(t *testing.T) {
	c, pc := pair(t)
	c.wait = time.Millisecond
	n := 0
	done := serve(t, pc, tries, func(int, *dhcpv4.DHCPv4) [][]byte { n++; return nil })
	testkit.ErrorIs(t, testkit.Err(lease(t.Context(), c)), ErrNoAnswer)
	<-done
	testkit.Equal(t, "questions", n, tries)
	ctx, cancel := context.WithCancel(t.Context())
	c, pc = pair(t)
	c.wait = time.Hour
	done = serve(t, pc, 1, func(int, *dhcpv4.DHCPv4) [][]byte { cancel(); return nil })
	testkit.ErrorIs(t, testkit.Err(lease(ctx, c)), context.Canceled)
	<-done
}

func TestMTUIsTaken(t *testing.T) {
	for _, x := range []struct {
		value []byte
		want  int
	}{
		{nil, 0}, {[]byte{0x05, 0xdc}, 1500}, {[]byte{0x23, 0x28}, 9000}, {[]byte{0, 67}, 0}, {[]byte{0, 68}, 68},
		{[]byte{9}, 0},
	} {
		c, pc := pair(t)
		done := serve(t, pc, 2, func(i int, m *dhcpv4.DHCPv4) [][]byte {
			if i == 0 || x.value == nil {
				return [][]byte{answer(t, i, m)}
			}
			return [][]byte{reply(t, m, dhcpv4.MessageTypeAck, dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, x.value))}
		})
		l, err := lease(t.Context(), c)
		<-done
		testkit.OK(t, err)
		testkit.Equal(t, fmt.Sprintf("MTU of %v", x.value), l.MTU, x.want)
	}
}

// After a server's refusal the client returns an error with the server's message.
func TestRefusalIsSaid(t *testing.T) {
	c, pc := pair(t)
	done := serve(t, pc, 2, func(i int, m *dhcpv4.DHCPv4) [][]byte {
		if i == 0 {
			return [][]byte{answer(t, i, m)}
		}
		return [][]byte{reply(t, m, dhcpv4.MessageTypeNak, dhcpv4.WithOption(dhcpv4.OptMessage("no more addresses")))}
	})
	testkit.ErrorSays(t, testkit.Err(lease(t.Context(), c)), "no more addresses")
	<-done
}

func TestInterfaceThatCannotAskIsNamed(t *testing.T) {
	testkit.LeavesNothing(t)
	const none = "vnic-no-such0"
	testkit.ErrorSays(t, testkit.Err(Ask(t.Context(), "lo", nil)),
		`DHCP on lo: MAC "": not that of an Ethernet interface`)
	testkit.ErrorSays(t, testkit.Err(Ask(t.Context(), none, mac)), "DHCP on "+none+": ", "no such network interface")
	testkit.ErrorIs(t, testkit.Err(listenUDP(t.Context(), none)), unix.ENODEV, "UDP")
}

func TestBadLeasesAreRefused(t *testing.T) {
	for name, bad := range map[string]dhcpv4.Modifier{
		"no address": dhcpv4.WithYourIP(net.IPv4zero), "multicast": dhcpv4.WithYourIP(net.IPv4(224, 0, 0, 1)),
		"no mask":         dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask),
		"mask with holes": dhcpv4.WithNetmask(net.IPv4Mask(255, 0, 255, 0)),
	} {
		c, pc := pair(t)
		done := serve(t, pc, 2, func(i int, m *dhcpv4.DHCPv4) [][]byte {
			if i == 0 {
				return [][]byte{reply(t, m, dhcpv4.MessageTypeOffer)}
			}
			return [][]byte{reply(t, m, dhcpv4.MessageTypeAck, bad)}
		})
		if l, err := lease(t.Context(), c); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
		<-done
	}
}

func FuzzLease(f *testing.F) {
	m := testkit.Must(dhcpv4.New(dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithRouter(net.IPv4(10, 1, 2, 254)),
		dhcpv4.WithOption(dhcpv4.OptHostName("a\nb"))))(f)
	f.Add(m.ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := dhcpv4.FromBytes(b)
		if err != nil {
			return
		}
		l, err := read(m)
		if err == nil && (!l.Addr.IsValid() || !l.Addr.Addr().Is4() || !hostName(l.Name)) {
			t.Errorf("%+v", l)
		}
	})
}
