package uplink

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/wiretest"
	"vnic.dev/vnic/splitter"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	s := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { s += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
	return nil
}

func (l *lines) having(parts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for _, s := range l.all {
		for _, p := range parts {
			if !strings.Contains(s, p) {
				continue next
			}
		}
		n++
	}
	return n
}

// side is a switch with an uplink, and one machine.
type side struct {
	*machine
	sw  *wire.Switch
	up  *Uplink
	log *lines
}

// newSide makes a side whose machine has a MAC that ends in n.
func newSide(t testing.TB, n byte, c Config, mtu int) *side {
	t.Helper()
	return newSideOf(t, n, c, Options{MTU: mtu})
}

// newSideOf is newSide with options, whose Config and Log it sets.
func newSideOf(t testing.TB, n byte, c Config, o Options) *side {
	t.Helper()
	s := &side{sw: wire.NewSwitch(slog.New(slog.DiscardHandler)), log: new(lines)}
	t.Cleanup(func() { testkit.OK(t, s.sw.Close()) })
	s.machine = newMachine(t, s.sw, n, wire.LinkOptions{Identity: &wire.Identity{MAC: macOf(n)}})
	c.Name = fmt.Sprint("up", n)
	o.Config, o.Log = c, slog.New(s.log)
	s.up = testkit.Must(New(s.sw, o))(t)
	t.Cleanup(func() { testkit.OK(t, s.up.Close()) })
	return s
}

// err returns why the uplink ended; nil: it has not ended, or Close ended it.
func (u *Uplink) err() error {
	select {
	case <-u.ended:
		return u.failed
	default:
		return nil
	}
}

func macOf(n byte) wire.MAC { return wire.MAC{2, 0, 0, 0, 0, n} }

// machine puts the frames that it receives into got.
type machine struct {
	t    testing.TB
	mac  wire.MAC
	link *wire.Link
	w    *wire.Worker
	got  chan []byte
	csum atomic.Int32 // splitter.Csum of the last received frame
}

func newMachine(t testing.TB, sw *wire.Switch, n byte, o wire.LinkOptions) *machine {
	t.Helper()
	m := &machine{t: t, mac: macOf(n), w: wire.NewWorker(), got: make(chan []byte, 4096)}
	m.link = testkit.Must(sw.Attach(m, o))(t)
	return m
}

func (m *machine) Name() string        { return fmt.Sprint("machine", m.mac[5]) }
func (m *machine) Limits() wire.Limits { return wire.Limits{MaxFrame: 9014} }

func (m *machine) Deliver(w *wire.Worker, batch []*wire.Packet) {
	for _, p := range batch {
		m.csum.Store(int32(p.Meta.Csum))
		wiretest.Take(w, []*wire.Packet{p}, func(b []byte) { m.got <- b })
	}
}

func packet(t testing.TB, b []byte) *wire.Packet {
	t.Helper()
	p := new(wire.Packet)
	segs := []dma.Segment{dma.NewBuffer(b, dma.Wire).Segment(0, uint32(len(b)))}
	testkit.OK(t, nic.ParseFrame(dma.NewCopier(), segs, 0, uint32(len(b)), make([]byte, nic.MaxHeader), p))
	p.Prepare()
	return p
}

// send sends a packet, again while its Verdict is Busy, and returns the last Verdict.
func (m *machine) send(p *wire.Packet) wire.Verdict { return wiretest.Send(m.link, m.w, p) }

func (m *machine) mustSend(b []byte) {
	m.t.Helper()
	if v := m.send(packet(m.t, b)); v.Kind != wire.Taken {
		m.t.Fatalf("%+v", v)
	}
}

func (m *machine) gets(want []byte) {
	m.t.Helper()
	if got := m.next(); !bytes.Equal(got, want) {
		m.t.Fatalf("got %x\nwant %x", got, want)
	}
}

func (m *machine) next() []byte {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), testkit.Patience)
	defer cancel()
	select {
	case b := <-m.got:
		return b
	case <-ctx.Done():
		m.t.Fatal("no frame came")
		return nil
	}
}

// plain makes a frame that is not IP.
func plain(from, to wire.MAC, body string) []byte {
	return append(append(append(bytes.Clone(to[:]), from[:]...), 0x88, 0xb6), body...)
}

var broadcast = wire.MAC{255, 255, 255, 255, 255, 255}

// tcp makes a frame with a TCP segment over IPv4, with n bytes of payload and a partial checksum.
func tcp(from, to wire.MAC, n int) []byte {
	b := append(append(bytes.Clone(to[:]), from[:]...), 8, 0)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, splitter.ProtoTCP
	binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
	copy(ip[12:], []byte{10, 0, 0, from[5], 10, 0, 0, to[5]})
	th := make([]byte, 20)
	binary.BigEndian.PutUint16(th, 1000)
	binary.BigEndian.PutUint16(th[2:], 7)
	th[12], th[13] = 5<<4, splitter.ACK
	b = append(append(b, ip...), th...)
	for i := range n {
		b = append(b, byte(i*7+i>>8*13))
	}
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(len(b)), &h)
	splitter.FixIPv4(&h, b)
	splitter.FixPartial(&h, b, uint32(n))
	return b
}

// partial marks a packet's checksum as partial; if mss is not 0, it makes the packet a GSO packet.
func partial(p *wire.Packet, mss uint16) *wire.Packet {
	m := &p.Meta
	m.Csum = splitter.CsumPartial
	m.CsumStart, m.CsumOffset, _ = splitter.CsumPlace(&m.Headers)
	if m.GSOSize = mss; mss != 0 {
		m.GSOType = splitter.GSOTCPv4
	}
	return p
}

var lastPort atomic.Uint32

func tunnel(vni uint32) (x, y Config) {
	a, b := loopback()
	return Config{VXLAN: &VXLAN{a, b, vni}}, Config{VXLAN: &VXLAN{b, a, vni}}
}

// loopback returns two addresses of this machine with one port. Other processes' tests use other addresses, and each
// call another port (up to 10,000 calls).
func loopback() (a, b netip.AddrPort) {
	port := uint16(20000 + lastPort.Add(1)%10000)
	x, y := testkit.Loopback()
	return netip.AddrPortFrom(x, port), netip.AddrPortFrom(y, port)
}

func peerOf(t testing.TB, c Config) *net.UDPConn {
	t.Helper()
	local, to := net.UDPAddrFromAddrPort(c.VXLAN.Remote), net.UDPAddrFromAddrPort(c.VXLAN.Local)
	u := testkit.Must(net.DialUDP("udp4", local, to))(t)
	t.Cleanup(func() { _ = u.Close() })
	return u
}

func datagram(vni uint32, f []byte) []byte {
	b := make([]byte, vxlanLen, vxlanLen+len(f))
	putVXLAN(b, vni)
	return append(b, f...)
}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func taken(t testing.TB, p *wire.Packet) {
	t.Helper()
	if p.Verdict.Kind != wire.Taken {
		t.Fatalf("%+v", p.Verdict)
	}
}
