package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/stack/internal/ether"
	"vnic.dev/vnic/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what must come; nothing takes as long.
const patience = 30 * time.Second

var (
	gatewayMAC = wire.MAC{2, 0, 0, 0, 0, 0xfe}
	prefix4    = netip.MustParsePrefix("10.118.110.254/24")
	prefix6    = netip.MustParsePrefix("fd76:6e69::fe/64")
)

// macOf, addr4Of and addr6Of are those of guest n.
func macOf(n byte) wire.MAC     { return wire.MAC{2, 0, 0, 0, 0, n} }
func addr4Of(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 118, 110, n}) }
func addr6Of(n byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x76, 2: 0x6e, 3: 0x69, 15: n})
}
func own4(port uint16) netip.AddrPort { return netip.AddrPortFrom(prefix4.Addr(), port) }
func own6(port uint16) netip.AddrPort { return netip.AddrPortFrom(prefix6.Addr(), port) }

// options are those of a gateway that knows guests 1 ("a") and 2 ("b").
func options() Options {
	return Options{
		MAC: gatewayMAC, Prefix4: prefix4, Prefix6: prefix6, NAT: true,
		Hosts: []Host{{"a", macOf(1), addr4Of(1), addr6Of(1)}, {"b", macOf(2), addr4Of(2), addr6Of(2)}},
	}
}

func newSwitch(t testing.TB) *wire.Switch {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := sw.Close(); err != nil {
			t.Error(err)
		}
	})
	return sw
}

// newTestGateway makes a gateway that asks no resolver of the machine, unless change says which.
func newTestGateway(t testing.TB, sw *wire.Switch, o Options, change ...func(*Gateway)) *Gateway {
	t.Helper()
	g, err := newGateway(sw, o)
	if err != nil {
		t.Fatal(err)
	}
	g.resolvers = func() []netip.AddrPort { return nil }
	for _, f := range change {
		f(g)
	}
	if err := g.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// guest is a machine with a netstack of its own, that has fixed addresses.
type guest struct {
	t      testing.TB
	ns     *stack.Stack
	n      byte
	ep     *endpoint
	in     *inbox
	limits wire.Limits
	link   *wire.Link
}

func newGuest(t testing.TB, sw *wire.Switch, n byte, mtu int, lo wire.LinkOptions) *guest {
	t.Helper()
	out, err := newOutbox(new(counters), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	mac := macOf(n)
	v := &guest{t: t, n: n, in: newInbox(), limits: portLimits(mtu),
		ep: &endpoint{Link: ether.Link{Addr: tcpip.LinkAddress(mac[:]), Bytes: uint32(mtu)}, out: out}}
	v.ns = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocol, ipv6.NewProtocolWithOptions(ipv6.Options{DADConfigs: stack.DADConfigurations{}}), arp.NewProtocol,
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
			icmp.NewProtocol6},
	})
	recovery, rto := tcpip.TCPRecovery(0), tcpip.TCPMinRTOOption(50*time.Millisecond)
	sack := tcpip.TCPSACKEnabled(true)
	for _, o := range []tcpip.SettableTransportProtocolOption{&recovery, &rto, &sack} {
		if err := v.ns.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.ns.CreateNIC(nicID, v.ep); err != nil {
		t.Fatal(err)
	}
	for _, p := range []netip.Prefix{netip.PrefixFrom(addr4Of(n), 24), netip.PrefixFrom(addr6Of(n), 64)} {
		a := tcpip.ProtocolAddress{Protocol: protocolOf(p.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: addressOf(p.Addr()), PrefixLen: p.Bits()}}
		if err := v.ns.AddProtocolAddress(nicID, a, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	v.ns.SetRouteTable([]tcpip.Route{
		{Destination: subnet(prefix4), NIC: nicID}, {Destination: subnet(prefix6), NIC: nicID},
		{Destination: header.IPv4EmptySubnet, Gateway: addressOf(prefix4.Addr()), NIC: nicID},
		{Destination: header.IPv6EmptySubnet, Gateway: addressOf(prefix6.Addr()), NIC: nicID},
	})
	if v.link, err = sw.Attach(v, lo); err != nil {
		t.Fatal(err)
	}
	out.link = v.link
	out.run()
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.run()
	}()
	t.Cleanup(func() {
		v.ns.Close()
		v.in.close()
		<-done
		v.ns.Wait()
		out.close()
		_ = sw.Detach(v.link)
	})
	return v
}

func subnet(p netip.Prefix) tcpip.Subnet {
	return tcpip.AddressWithPrefix{Address: addressOf(p.Addr()), PrefixLen: p.Bits()}.Subnet()
}

func (v *guest) Name() string        { return "guest" }
func (v *guest) Limits() wire.Limits { return v.limits }

func (v *guest) Deliver(w *wire.Worker, batch []*wire.Packet) {
	for i, p := range batch {
		n := int(p.Len()) - int(p.Meta.Headers.L3Off)
		if full, _ := v.in.room(n); full {
			for _, rest := range batch[i:] {
				rest.Verdict = wire.Verdict{Kind: wire.Busy, Queue: v.in}
			}
			return
		}
		a, reason := receive(w, p, nil, n)
		if p.Verdict = wire.Drop(reason); reason == wire.DropNone {
			p.Verdict = wire.Verdict{Kind: wire.Taken}
			v.in.put(a)
		}
	}
}

func (v *guest) run() {
	var batch []arrived
	for range v.in.filled {
		var closed bool
		batch, closed = v.in.take(batch[:0])
		for _, a := range batch {
			if d := v.ep.Dispatcher(); d != nil && !closed {
				pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(a.view)})
				d.DeliverNetworkPacket(tcpip.NetworkProtocolNumber(a.proto), pkt)
				pkt.DecRef()
			}
		}
		if closed {
			return
		}
	}
}

// dial connects from the guest.
func (v *guest) dial(to netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, v.ns, fullAddress(to), protocolOf(to.Addr()))
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

func (v *guest) mustDial(to netip.AddrPort) *gonet.TCPConn {
	v.t.Helper()
	c, err := v.dial(to)
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

func (v *guest) dialUDP(to netip.AddrPort) *gonet.UDPConn {
	v.t.Helper()
	a := fullAddress(to)
	c, err := gonet.DialUDP(v.ns, nil, &a, protocolOf(to.Addr()))
	if err != nil {
		v.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func (v *guest) listen(a netip.Addr, port uint16) *gonet.TCPListener {
	v.t.Helper()
	l, err := gonet.ListenTCP(v.ns, fullAddress(netip.AddrPortFrom(a, port)), protocolOf(a))
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() {
		l.Shutdown()
		l.Close()
	})
	return l
}

// raw is a machine that sends and gets frames.
type raw struct {
	t    testing.TB
	mac  wire.MAC
	link *wire.Link
	slot *outSlot
	pkt  wire.Packet // in the slot
	w    *wire.Worker
	got  chan []byte
}

func newRaw(t testing.TB, sw *wire.Switch, n byte) *raw {
	t.Helper()
	b := make([]byte, slotSize)
	r := &raw{t: t, mac: macOf(n), slot: &outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)}, w: wire.NewWorker(),
		got: make(chan []byte, 4096)}
	var err error
	if r.link, err = sw.Attach(r, wire.LinkOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *raw) Name() string        { return "raw" }
func (r *raw) Limits() wire.Limits { return wire.Limits{MaxFrame: 9014} }

func (r *raw) Deliver(w *wire.Worker, batch []*wire.Packet) {
	for _, p := range batch {
		b := make([]byte, p.Len())
		n := copy(b, p.Header)
		if _, err := w.Copier.Read(b[n:], p.Payload); err != nil {
			panic(err)
		}
		select {
		case r.got <- b:
		default:
		}
		p.Verdict = wire.Verdict{Kind: wire.Taken}
	}
}

// send sends a frame, and says what became of it. Only what waits is sent again.
func (r *raw) send(frame []byte) wire.Verdict {
	if !r.describe(frame) {
		return wire.Drop(wire.DropBadFrame)
	}
	p := &r.pkt
	for {
		r.link.Deliver(r.w, []*wire.Packet{p})
		if p.Verdict.Kind != wire.Busy {
			return p.Verdict
		}
		w := make(waker, 1)
		if p.Verdict.Queue.Arm(w) {
			<-w
		}
	}
}

// describe makes a packet of a frame, in the slot; false if it is none.
func (r *raw) describe(frame []byte) bool {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	ok := r.slot.describe(pkt, &r.pkt)
	p := &r.pkt
	if p.Meta.Csum = splitter.CsumNone; !ok && len(frame) >= splitter.EthLen &&
		p.Meta.Headers.Class == splitter.Malformed {
		p.Header = append([]byte(nil), frame[:min(len(frame), nic.MaxHeader)]...) // as nic.Describe does
		p.PayloadLen = uint32(len(frame) - len(p.Header))
		p.Payload = append(p.Payload[:0], r.slot.mem.Segment(uint64(len(p.Header)), p.PayloadLen))
		p.Prepare()
		ok = true
	}
	return ok
}

type waker chan struct{}

func (w waker) Wake() { signal(w) }

// await gives the first frame that came and is accepted.
func (r *raw) await(what string, accept func(b []byte) bool) []byte {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case b := <-r.got:
			if accept(b) {
				return b
			}
		case <-timeout:
			r.t.Fatalf("no %s", what)
		}
	}
}

// meet has the switch learn where the gateway is: frames to who is not known are lost where there is no room for them.
func (r *raw) meet() {
	r.t.Helper()
	r.send(r.arp(1, addr4Of(r.mac[5]), prefix4.Addr(), wire.MAC{}))
	r.await("answer", func(b []byte) bool { return b[12] == 8 && b[13] == 6 && b[21] == 2 })
}

// eth makes a frame from r.
func (r *raw) eth(to wire.MAC, etherType uint16, body ...[]byte) []byte {
	b := append(append(append([]byte{}, to[:]...), r.mac[:]...), byte(etherType>>8), byte(etherType))
	for _, x := range body {
		b = append(b, x...)
	}
	return b
}

// udp4 makes a UDP datagram over IPv4.
func (r *raw) udp4(to wire.MAC, src, dst netip.AddrPort, body []byte) []byte {
	ip, s, d := make([]byte, 20), src.Addr().As4(), dst.Addr().As4()
	header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: uint16(28 + len(body)), TTL: 64, Protocol: 17,
		SrcAddr: tcpip.AddrFrom4(s), DstAddr: tcpip.AddrFrom4(d)})
	header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
	u := make([]byte, 8)
	header.UDP(u).Encode(&header.UDPFields{SrcPort: src.Port(), DstPort: dst.Port(), Length: uint16(8 + len(body))})
	return r.eth(to, splitter.EtherTypeIPv4, ip, u, body) // no checksum
}

// syn makes the first segment of a connection over IPv4.
func (r *raw) syn(src, dst netip.AddrPort) []byte {
	ip, s, d := make([]byte, 20), src.Addr().As4(), dst.Addr().As4()
	header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: 40, TTL: 64, Protocol: 6,
		SrcAddr: tcpip.AddrFrom4(s), DstAddr: tcpip.AddrFrom4(d)})
	header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
	seg := make([]byte, 20)
	header.TCP(seg).Encode(&header.TCPFields{SrcPort: src.Port(), DstPort: dst.Port(), DataOffset: 20,
		Flags: header.TCPFlagSyn, WindowSize: 1000})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpip.AddrFrom4(s), tcpip.AddrFrom4(d), 20)
	header.TCP(seg).SetChecksum(^header.TCP(seg).CalculateChecksum(sum))
	return r.eth(gatewayMAC, splitter.EtherTypeIPv4, ip, seg)
}

// echoServer serves connections of the host's loopback: it sends back what comes, and ends when the other side does.
func echoServer(t testing.TB, network string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen(network, map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network])
	if err != nil {
		t.Skipf("no loopback for %s here: %v", network, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := c.Read(buf)
					if _, werr := c.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func newUDP(v *guest, at tcpip.FullAddress) (*gonet.UDPConn, error) {
	return gonet.DialUDP(v.ns, &at, nil, ipv6.ProtocolNumber)
}
