package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
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
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/wiretest"
	"vnic.dev/vnic/splitter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit for expected events, far above their usual times.
const patience = 30 * time.Second

var (
	gatewayMAC = wire.MAC{2, 0, 0, 0, 0, 0xfe}
	prefix4    = netip.MustParsePrefix("10.118.110.254/24")
	prefix6    = netip.MustParsePrefix("fd76:6e69::fe/64")
)

func macOf(n byte) wire.MAC     { return wire.MAC{2, 0, 0, 0, 0, n} }
func addr4Of(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 118, 110, n}) }
func addr6Of(n byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x76, 2: 0x6e, 3: 0x69, 15: n})
}
func own4(port uint16) netip.AddrPort { return netip.AddrPortFrom(prefix4.Addr(), port) }
func own6(port uint16) netip.AddrPort { return netip.AddrPortFrom(prefix6.Addr(), port) }

func options() Options {
	return Options{
		MAC: gatewayMAC, Prefix4: prefix4, Prefix6: prefix6, NAT: true, Policy: Policy{HostPorts: AllPorts},
		Hosts: []Host{{"a", macOf(1), addr4Of(1), addr6Of(1)}, {"b", macOf(2), addr4Of(2), addr6Of(2)}},
	}
}

func newSwitch(t testing.TB) *wire.Switch {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { testkit.OK(t, sw.Close()) })
	return sw
}

type rig struct {
	t  testing.TB
	sw *wire.Switch
	g  *Gateway

	lose func(*wire.Packet) bool // reports whether a guest made from now on loses a received frame; nil: it loses none
}

// newRig starts a gateway on a new switch, with options(), changed by change. Before the start it removes the
// machine's resolvers and search domains, and then calls each set.
func newRig(t testing.TB, change func(*Options), set ...func(*Gateway)) *rig {
	t.Helper()
	w := &rig{t: t, sw: newSwitch(t)}
	w.start(change, set...)
	return w
}

func (w *rig) start(change func(*Options), set ...func(*Gateway)) {
	w.t.Helper()
	o := options()
	if change != nil {
		change(&o)
	}
	g, err := newGateway(w.sw, o)
	testkit.OK(w.t, err)
	g.resolvers = func() []netip.AddrPort { return nil }
	g.search = g.search[:1]
	for _, f := range set {
		f(g)
	}
	testkit.OK(w.t, g.start())
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("the gateway's counters: %+v", g.Stats())
		}
		testkit.OK(w.t, g.Close())
	})
	patient(w.t, g.ns)
	w.g = g
}

// patient makes a netstack ask for a neighbor's address as long as a test waits, instead of 3 s.
func patient(t testing.TB, ns *stack.Stack) {
	t.Helper()
	c := stack.DefaultNUDConfigurations()
	n := uint32(patience / c.RetransmitTimer)
	c.MaxMulticastProbes, c.MaxUnicastProbes = n, n
	for _, p := range []tcpip.NetworkProtocolNumber{header.IPv4ProtocolNumber, header.IPv6ProtocolNumber} {
		if err := ns.SetNUDConfigurations(ether.NIC, p, c); err != nil {
			t.Fatal(err)
		}
	}
}

// guest is a machine with its own netstack and static addresses.
type guest struct {
	t      testing.TB
	ns     *stack.Stack
	in     *inbox
	link   *wire.Link
	limits wire.Limits
	lose   func(*wire.Packet) bool
}

func (w *rig) guest(n byte, link ...wire.LinkOptions) *guest {
	t := w.t
	t.Helper()
	out, err := newOutbox(new(counters), slog.New(slog.DiscardHandler))
	testkit.OK(t, err)
	mac, mtu := macOf(n), w.g.o.MTU
	ep := &endpoint{Link: ether.Link{Addr: tcpip.LinkAddress(mac[:]), Bytes: uint32(mtu)}, out: out}
	v := &guest{t: t, in: newInbox(), limits: portLimits(mtu), ns: ether.New(udp.NewProtocol), lose: w.lose}
	recovery, rto := tcpip.TCPRecovery(0), tcpip.TCPMinRTOOption(50*time.Millisecond)
	sack := tcpip.TCPSACKEnabled(true)
	testkit.OK(t, ether.SetTCP(v.ns, &recovery, &rto, &sack))
	// A guest's sockets have room for the bursts of these tests, so that losses occur only on the way to it.
	room := tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: 4 << 20, Max: 4 << 20}
	testkit.Equal(t, "receive buffers", v.ns.SetOption(room), nil)
	if err := v.ns.CreateNIC(ether.NIC, ep); err != nil {
		t.Fatal(err)
	}
	patient(t, v.ns)
	routes := []tcpip.Route{ether.DefaultRoute(prefix4.Addr()), ether.DefaultRoute(prefix6.Addr())}
	for _, p := range []netip.Prefix{netip.PrefixFrom(addr4Of(n), 24), netip.PrefixFrom(addr6Of(n), 64)} {
		r := testkit.Must(ether.AddAddress(v.ns, p))(t)
		routes = append([]tcpip.Route{r}, routes...)
	}
	v.ns.SetRouteTable(routes)
	out.link, err = w.sw.Attach(v, append(link, wire.LinkOptions{})[0])
	testkit.OK(t, err)
	v.link = out.link
	out.run()
	p := &port{in: v.in, ep: ep, count: new(counters), done: make(chan struct{})}
	go p.run()
	t.Cleanup(func() {
		v.ns.Close()
		v.in.close()
		<-p.done
		v.ns.Wait()
		out.close()
		_ = w.sw.Detach(out.link)
	})
	return v
}

func (v *guest) Name() string        { return "guest" }
func (v *guest) Limits() wire.Limits { return v.limits }

func (v *guest) Deliver(w *wire.Worker, batch []*wire.Packet) {
	in := v.in.lane(0) // one lane for all senders, because none is hostile
	for i, p := range batch {
		if v.lose != nil && v.lose(p) {
			p.Verdict = wire.Verdict{Kind: wire.Taken}
			continue
		}
		n := int(p.Len()) - int(p.Meta.Headers.L3Off)
		if full, _ := in.reserve(n); full {
			for _, rest := range batch[i:] {
				rest.Verdict = wire.Verdict{Kind: wire.Busy, Queue: in}
			}
			return
		}
		a, reason := receive(w, p, nil, n)
		if p.Verdict = wire.Drop(reason); reason == wire.DropNone {
			p.Verdict = wire.Verdict{Kind: wire.Taken}
			in.put(a)
		}
	}
}

func (v *guest) dial(to netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := gonet.DialContextTCP(ctx, v.ns, fullAddress(to), ether.Protocol(to.Addr()))
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

func (v *guest) mustDial(to netip.AddrPort) *gonet.TCPConn {
	v.t.Helper()
	c, err := v.dial(to)
	testkit.OK(v.t, err)
	return c
}

func (v *guest) dialUDP(to netip.AddrPort) *gonet.UDPConn {
	v.t.Helper()
	a := fullAddress(to)
	c, err := gonet.DialUDP(v.ns, nil, &a, ether.Protocol(to.Addr()))
	testkit.OK(v.t, err)
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func (v *guest) listen(a netip.Addr, port uint16) *gonet.TCPListener {
	v.t.Helper()
	l, err := gonet.ListenTCP(v.ns, fullAddress(netip.AddrPortFrom(a, port)), ether.Protocol(a))
	testkit.OK(v.t, err)
	v.t.Cleanup(func() {
		l.Shutdown()
		l.Close()
	})
	return l
}

// raw is a machine for which the test makes and reads each frame.
type raw struct {
	t    testing.TB
	mac  wire.MAC
	link *wire.Link
	slot *outSlot
	pkt  wire.Packet
	w    *wire.Worker
	got  chan []byte
}

func (w *rig) raw(n byte, link ...wire.LinkOptions) *raw { return newRaw(w.t, w.sw, n, link...) }

func newRaw(t testing.TB, sw *wire.Switch, n byte, link ...wire.LinkOptions) *raw {
	t.Helper()
	b := make([]byte, slotSize)
	r := &raw{t: t, mac: macOf(n), slot: &outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)}, w: wire.NewWorker(),
		got: make(chan []byte, 4096)}
	var err error
	r.link, err = sw.Attach(r, append(link, wire.LinkOptions{})[0])
	testkit.OK(t, err)
	return r
}

func (r *raw) Name() string        { return "raw" }
func (r *raw) Limits() wire.Limits { return wire.Limits{MaxFrame: 9014} }

func (r *raw) Deliver(w *wire.Worker, batch []*wire.Packet) {
	wiretest.Take(w, batch, func(b []byte) {
		select {
		case r.got <- b:
		default:
		}
	})
}

// send sends a frame and, while the verdict is Busy, sends it again. It does not send a frame that cannot be described,
// and returns DropBadFrame.
func (r *raw) send(frame []byte) wire.Verdict {
	if !r.describe(frame) {
		return wire.Drop(wire.DropBadFrame)
	}
	return wiretest.Send(r.link, r.w, &r.pkt)
}

func (r *raw) mustSend(frame []byte) {
	r.t.Helper()
	if v := r.send(frame); v.Kind != wire.Taken {
		r.t.Fatalf("%+v", v)
	}
}

func (r *raw) describe(frame []byte) bool {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	ok := r.slot.describe(pkt, &r.pkt)
	p := &r.pkt
	if p.Meta.Csum = splitter.CsumNone; !ok && len(frame) >= splitter.EthLen &&
		p.Meta.Headers.Class == splitter.Malformed {
		p.Header = append([]byte(nil), frame[:min(len(frame), nic.MaxHeader)]...)
		p.PayloadLen = uint32(len(frame) - len(p.Header))
		p.Payload = append(p.Payload[:0], r.slot.mem.Segment(uint64(len(p.Header)), p.PayloadLen))
		p.Prepare()
		ok = true
	}
	return ok
}

type waker chan struct{}

func (w waker) Wake() { ether.Signal(w) }

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

// meet exchanges ARP with the gateway, so that the switch learns both MACs; it would flood a frame to an unknown MAC.
func (r *raw) meet() {
	r.t.Helper()
	r.send(r.arp(1, addr4Of(r.mac[5]), prefix4.Addr(), wire.MAC{}))
	r.await("answer", func(b []byte) bool { return isARP(b, 2) })
}

// isARP reports whether a frame is ARP with operation op: 1 for a request, 2 for an answer.
func isARP(b []byte, op byte) bool {
	return len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeARP && b[21] == op
}

func (r *raw) answerARP(b []byte) {
	if isARP(b, 1) {
		_ = r.send(r.arp(2, netip.AddrFrom4([4]byte(b[38:42])), prefix4.Addr(), gatewayMAC))
	}
}

func (r *raw) eth(to wire.MAC, etherType uint16, body ...[]byte) []byte {
	b := append(append(append([]byte{}, to[:]...), r.mac[:]...), byte(etherType>>8), byte(etherType))
	for _, x := range body {
		b = append(b, x...)
	}
	return b
}

func (r *raw) ip4(to wire.MAC, src, dst netip.Addr, proto uint8, body ...[]byte) []byte {
	ip, n := header.IPv4(make([]byte, 20)), 20
	for _, b := range body {
		n += len(b)
	}
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(n), TTL: 64, Protocol: proto,
		SrcAddr: ether.Address(src), DstAddr: ether.Address(dst)})
	ip.SetChecksum(^ip.CalculateChecksum())
	return r.eth(to, splitter.EtherTypeIPv4, append([][]byte{ip}, body...)...)
}

func (r *raw) udp4(to wire.MAC, src, dst netip.AddrPort, body []byte) []byte {
	u := header.UDP(make([]byte, 8))
	u.Encode(&header.UDPFields{SrcPort: src.Port(), DstPort: dst.Port(), Length: uint16(8 + len(body))})
	return r.ip4(to, src.Addr(), dst.Addr(), splitter.ProtoUDP, u, body)
}

func (r *raw) syn(src, dst netip.AddrPort) []byte {
	seg := header.TCP(make([]byte, 20))
	seg.Encode(&header.TCPFields{SrcPort: src.Port(), DstPort: dst.Port(), DataOffset: 20,
		Flags: header.TCPFlagSyn, WindowSize: 1000})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ether.Address(src.Addr()), ether.Address(dst.Addr()), 20)
	seg.SetChecksum(^seg.CalculateChecksum(sum))
	return r.ip4(gatewayMAC, src.Addr(), dst.Addr(), splitter.ProtoTCP, seg)
}

// serveTCP calls f on a goroutine for each connection to l, and then closes the connection. It closes l when the test
// ends.
func serveTCP(t testing.TB, l net.Listener, f func(net.Conn)) {
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
				f(c)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

// serveUDP answers each datagram to c with the datagrams that answer returns. It closes c when the test ends.
func serveUDP(t testing.TB, c net.PacketConn, answer func(b []byte) [][]byte) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, b := range answer(buf[:n]) {
				_, _ = c.WriteTo(b, from)
			}
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
}

func listenTCP(t testing.TB) (net.Listener, uint16) {
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func echoServer(t testing.TB, network string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen(network, map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network])
	if err != nil {
		t.Skipf("no loopback for %s here: %v", network, err)
	}
	serveTCP(t, l, echo)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// echo sends back what c receives. It hides c's methods from io.Copy, which would use splice(2) and keep its pipes
// open.
func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func udpEcho(t testing.TB) netip.AddrPort {
	c := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	serveUDP(t, c, sameDatagram)
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func sameDatagram(b []byte) [][]byte { return [][]byte{b} }

func exchangeDatagram(c net.Conn, data []byte) error {
	if _, err := c.Write(data); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	if err == nil && !bytes.Equal(buf[:n], data) {
		err = fmt.Errorf("%d bytes came back of %d, or others", n, len(data))
	}
	return err
}
